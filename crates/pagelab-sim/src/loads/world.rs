//! What all loads share: the machine, the clock, draws, caches, and what is kept of the run.

use pagelab_model::seed::SplitMix64;

use super::files::Caches;
use super::place::Place;
use super::process::Process;
use super::slab::Slab;
use crate::machine::{Ask, Class, Held, Machine};
use crate::study::{Figure, Outcome, Picture, Series};
use crate::words::Wrong;

/// Steps of the clock in a second: one is 10 ms, a timer tick of `CONFIG_HZ=100`.
pub(super) const TICKS: u64 = 100;

/// Pages that background reclaim frees in a tick at most: 200 MiB/s.
const BACKGROUND: u32 = 512;

/// Why a load ends before its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// Something cannot be.
    Wrong(Wrong),
    /// Who asked for it wants no more.
    Stopped,
}

impl From<Wrong> for Halt {
    fn from(wrong: Wrong) -> Halt {
        Halt::Wrong(wrong)
    }
}

/// The result of a part of a load.
pub(super) type Ran<T = ()> = Result<T, Halt>;

/// The world of a load.
pub(super) struct World<'a> {
    pub(super) machine: Machine,
    pub(super) random: SplitMix64,
    pub(super) place: Place,
    /// The processor at work.
    pub(super) cpu: u16,
    pub(super) caches: Caches,
    /// Areas of address space: 88 bytes each.
    pub(super) areas: Slab,
    /// Blocks of directories and inode tables that were read.
    pub(super) blocks: Vec<Held>,
    /// Look-ups so far.
    pub(super) metadata: u64,
    /// Base pages that there was no room for.
    pub(super) short: u64,
    /// Kernel memory that stays.
    pub(super) kept: Vec<Held>,
    /// Processes that stay.
    pub(super) daemons: Vec<Process>,
    pub(super) outcome: Outcome,
    pub(super) phase: String,
    parameters: Vec<(&'static str, u64)>,
    tick: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u32) -> bool,
    pictures: u32,
}

impl<'a> World<'a> {
    pub(super) fn new(
        machine: Machine,
        place: Place,
        parameters: Vec<(&'static str, u64)>,
        (seed, pictures): (u64, u32),
        progress: &'a mut dyn FnMut(u32) -> bool,
    ) -> World<'a> {
        let is_64 = place.is_64;
        World {
            machine,
            random: SplitMix64::new(seed),
            place,
            cpu: 0,
            caches: Caches::new(is_64),
            areas: Slab::new(Class::Kernel, if is_64 { 22 } else { 44 }),
            blocks: Vec::new(),
            metadata: 0,
            short: 0,
            kept: Vec::new(),
            daemons: Vec::new(),
            outcome: Outcome::default(),
            phase: String::new(),
            parameters,
            tick: 0,
            total: 1,
            progress,
            pictures,
        }
    }

    /// The value of a parameter. All loads list those that they read; one that none lists is 0.
    pub(super) fn parameter(&self, name: &str) -> u64 {
        self.parameters.iter().find(|parameter| parameter.0 == name).map_or(0, |parameter| parameter.1)
    }

    /// The same, as a count.
    pub(super) fn count(&self, name: &str) -> u32 {
        u32::try_from(self.parameter(name)).unwrap_or(u32::MAX)
    }

    /// Says how long the load will take, in seconds.
    pub(super) fn takes(&mut self, seconds: u64) {
        self.takes_ticks(seconds.saturating_mul(TICKS));
    }

    /// The same, in steps of the clock.
    pub(super) fn takes_ticks(&mut self, ticks: u64) {
        self.total = ticks.max(1);
    }

    /// A base page, for the processor at work.
    pub(super) fn page(&self, class: Class) -> Ask {
        Ask { cpu: self.cpu, ..Ask::page(class) }
    }

    /// Asks, and counts what there was no room for.
    pub(super) fn got(&mut self, ask: Ask) -> Result<Option<Held>, Wrong> {
        let held = self.machine.ask(&ask)?;
        self.short += u64::from(held.is_none());
        Ok(held)
    }

    /// One of eight values, each as likely: a distribution by its quantiles.
    pub(super) fn drawn(&mut self, of: &[u32; 8]) -> u32 {
        of[self.random.below(8) as usize]
    }

    /// Goes on to another processor.
    pub(super) fn moves(&mut self) {
        self.cpu = self.random.below(u64::from(self.machine.config().keep.cpus)) as u16;
    }

    /// Lets 10 ms pass: background reclaim works.
    pub(super) fn pass(&mut self) -> Ran {
        self.machine.background(BACKGROUND)?;
        self.tick += 1;
        if self.tick.is_multiple_of(TICKS) {
            self.second()?;
        }
        let before = (self.tick - 1) * u64::from(self.pictures) / self.total;
        if self.tick * u64::from(self.pictures) / self.total > before {
            let picture = self.picture();
            self.outcome.pictures.push(picture);
        }
        let done = (self.tick * 1000 / self.total).min(1000) as u32;
        if self.tick.is_multiple_of(64) && !(self.progress)(done) {
            return Err(Halt::Stopped);
        }
        Ok(())
    }

    /// Says where another number of pictures was kept than was wanted: they are spread over the time that the
    /// load was reckoned to take.
    pub(super) fn count_pictures(&mut self) {
        let (kept, wanted) = (self.outcome.pictures.len(), self.pictures);
        if kept as u64 != u64::from(wanted) {
            let (reckoned, took) = (self.total / TICKS, self.tick / TICKS);
            self.outcome.notes.push(format!(
                "pictures: {kept} were kept, and {wanted} asked for: the load was reckoned to take \
                 {reckoned} s, and took {took} s"
            ));
        }
    }

    /// What happens once a second: a daemon does something, a script runs a helper, and the kernel takes what
    /// it keeps.
    fn second(&mut self) -> Ran {
        if !self.daemons.is_empty() {
            let at = self.random.below(self.daemons.len() as u64) as usize;
            let process = std::mem::take(&mut self.daemons[at]);
            let hot = u64::from(process.pages()) * self.parameter("hot") / 100;
            self.use_first(&process, hot as usize)?;
            self.daemons[at] = process;
        }
        let seconds = self.parameter("restart");
        if seconds > 0 && (self.tick / TICKS).is_multiple_of(seconds) && !self.daemons.is_empty() {
            let at = self.random.below(self.daemons.len() as u64) as usize;
            let old = self.daemons.swap_remove(at);
            self.end(old)?;
            let mut new = self.start(40)?;
            self.grow(&mut new, self.count("daemon_pages"))?;
            self.daemons.push(new);
        }
        for _ in 0..self.parameter("helpers") {
            self.moves();
            let mut helper = self.start(25)?;
            self.grow(&mut helper, self.count("helper_pages"))?;
            self.end(helper)?;
        }
        let (second, leak) = (self.tick / TICKS, self.parameter("leak"));
        for _ in (second - 1) * leak / 10..second * leak / 10 {
            self.moves();
            let ask = self.page(Class::Kernel);
            let held = self.got(ask)?;
            self.kept.extend(held);
        }
        Ok(())
    }

    /// Begins a phase; the books are checked between them.
    pub(super) fn begin(&mut self, phase: &str) -> Ran {
        self.machine.validate()?;
        phase.clone_into(&mut self.phase);
        Ok(())
    }

    /// Keeps a figure of the phase.
    pub(super) fn figure(&mut self, name: &str, value: u64, per: u64, unit: &'static str) {
        let (phase, name) = (self.phase.clone(), name.to_owned());
        self.outcome.figures.push(Figure { phase, name, value, per, unit });
    }

    /// F_u of the huge pages' order, in millionths.
    pub(super) fn usability(&self) -> i64 {
        let (value, per) = self.machine.unusable(self.place.huge);
        (u128::from(value) * 1_000_000 / u128::from(per.max(1))) as i64
    }

    /// Keeps a series of the phase.
    pub(super) fn follow(&mut self, name: &str, over: &'static str, points: Vec<(u64, i64)>) {
        self.follow_plain(&format!("{name}({})", self.place.huge), over, points);
    }

    /// The same of what belongs to no order.
    pub(super) fn follow_plain(&mut self, name: &str, over: &'static str, points: Vec<(u64, i64)>) {
        let name = format!("{name} {}", self.phase.trim_start_matches("highalloc "));
        self.outcome.series.push(Series { name, over, points });
    }

    /// Figures of memory now: pages by what they are used for, F_u.
    pub(super) fn census(&mut self) -> Ran {
        let mut pages = [0u64; Class::ALL.len()];
        let mut free = self.place.frames;
        for (_, frames, class) in self.picture().runs {
            for (count, of) in pages.iter_mut().zip(Class::ALL) {
                *count += if class == Some(of) { u64::from(frames) } else { 0 };
            }
            free -= if class.is_some() { u64::from(frames) } else { 0 };
        }
        let all = self.place.frames;
        for (count, class) in pages.into_iter().zip(Class::ALL) {
            self.figure(&format!("pages: {}", called(class)), count, all, "share");
        }
        self.figure("pages: free", free, all, "share");
        let (order, (value, per)) = (self.place.huge, self.machine.unusable(self.place.huge));
        self.figure(&format!("F_u({order})"), value, per.max(1), "share");
        Ok(())
    }

    /// Memory now.
    fn picture(&self) -> Picture {
        let mut runs: Vec<(u32, u32, Option<Class>)> = Vec::new();
        let mut owners = Vec::new();
        for (setup, zone) in self.machine.memory().zones() {
            owners.extend_from_slice(zone.zone().owners());
            let mut frame = setup.shape.first;
            while frame < setup.shape.end() {
                let (class, frames) = match self.machine.used_for(frame) {
                    Some((class, order)) => (Some(class), 1 << order),
                    None => (None, 1),
                };
                match runs.last_mut() {
                    Some((first, count, before)) if *before == class && *first + *count == frame => {
                        *count += frames;
                    }
                    _ => runs.push((frame, frames, class)),
                }
                frame += frames;
            }
        }
        Picture { step: self.tick, phase: self.phase.clone(), runs, owners }
    }
}

/// A class in words.
fn called(class: Class) -> &'static str {
    match class {
        Class::Kernel => "kernel",
        Class::PageTable => "page tables",
        Class::Cache => "names and inodes",
        Class::File => "files",
        Class::Anonymous => "programs",
        Class::Huge => "huge pages",
        Class::Buffer => "block devices",
    }
}
