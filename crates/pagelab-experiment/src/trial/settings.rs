//! The settings of a variant, made before a trial and undone after it: all through the guard, all read back.

use pagelab_contig::reserve::Reserve;
use pagelab_host::guard::{Fate, Guard, GuardError, Knob, Options, Outcome, Watched};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{paths, settings};
use pagelab_model::experiment::{Flag, Measure};
use pagelab_model::{Absence, AbsentWhy, Bytes, Meminfo};

use super::fragmentation::{self, Held};
use super::hog::HogProcess;
use super::{Bench, cache};
use crate::aside::Aside;
use crate::group::Group;
use crate::recipe::{HogKind, Pin, Variant, Workload};
use crate::swap::Swap;

/// What holds while a trial runs.
pub(super) struct Settings {
    guard: Option<Guard>,
    /// The trial's control group, where one can be had.
    pub group: Option<Group>,
    /// The group around it and its competitor, where both share a limit.
    pub(super) shared: Option<Group>,
    fragmentation: Option<Held>,
    /// The competitor, where it is a process.
    pub hog: Option<HogProcess>,
    aside: Option<Aside>,
    /// The CPU that the trial has for itself.
    pub cpu: Option<u32>,
    /// Settings that are not what was asked for.
    pub flags: Vec<Flag>,
    /// What was done that the report should tell.
    pub notes: Vec<String>,
}

/// What is left after the trial.
pub(super) struct Undone {
    pub measures: Vec<Measure>,
    pub flags: Vec<Flag>,
    pub notes: Vec<String>,
}

impl Settings {
    /// Makes them. An error is why the trial cannot begin; then everything is undone.
    pub fn make(
        bench: &Bench<'_>,
        workload: &Workload,
        variant: &Variant,
        seed: u64,
    ) -> Result<Settings, String> {
        let guard = match &bench.site {
            Ok(site) => Guard::begin(site, Watched::left_to_restore(), Options::default()).map_err(text),
            Err(why) => Err(why.clone()),
        };
        let (guard, no_guard) = match guard {
            Ok(guard) => (Some(guard), String::new()),
            Err(why) => (None, why),
        };
        let mut made = Settings {
            guard,
            group: None,
            shared: None,
            fragmentation: None,
            hog: None,
            aside: None,
            cpu: None,
            flags: Vec::new(),
            notes: Vec::new(),
        };
        // First, while free memory is whole and huge pages can be had for it.
        if let Some(wanted) = &variant.fragmentation {
            let guard = made.guard.as_ref();
            let held = fragmentation::hold(wanted, seed, bench.look, guard, bench.stop)?;
            made.fragmentation = Some(held);
        }
        made.modes(variant, &no_guard)?;
        made.own_group(variant, &no_guard)?;
        made.swap(variant, &bench.swap)?;
        made.competitor(variant, bench)?;
        made.pin(variant.pin)?;
        if let Some(wanted) = variant.page_cache {
            let not_so = cache::prepare(wanted, &workload.files, made.guard.as_ref())?;
            not_so.into_iter().for_each(|text| made.flag(text));
        }
        // Last: everything above used the caches itself.
        if variant.evict {
            made.notes.push(cache::evict(bench.machine, made.cpu, available().unwrap_or_default())?);
        }
        Ok(made)
    }

    /// A CPU of its own.
    fn pin(&mut self, pin: Option<Pin>) -> Result<(), String> {
        let Some(pin) = pin else { return Ok(()) };
        match Aside::begin() {
            Ok(aside) => {
                self.cpu = Some(aside.cpu());
                self.notes.extend(aside.said());
                self.aside = Some(aside);
                Ok(())
            }
            Err(why) if pin == Pin::IfTwo => {
                self.notes.push(format!("{why}; the trial goes on without a CPU of its own"));
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    fn flag(&mut self, text: String) {
        self.flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text });
    }

    /// Modes of huge pages, of the machine.
    fn modes(&mut self, variant: &Variant, no_guard: &str) -> Result<(), String> {
        let whole = variant.thp.and_then(|thp| thp.machine_mode());
        let whole = whole.map(|mode| (Knob::thp_enabled(), mode));
        let sizes = variant.mthp.iter().map(|(size, mode)| (Knob::thp_size_enabled(*size), mode.as_str()));
        for (knob, mode) in whole.into_iter().chain(sizes) {
            let Some(guard) = &self.guard else {
                return Err(format!("{} cannot be set to {mode:?}: {no_guard}", knob.label()));
            };
            let applied = guard.set(&knob, mode).map_err(|error| self.not_set(&error))?;
            if !applied.is_exact() {
                self.flag(format!("{} was to be {mode:?} and is {:?}", knob.label(), applied.got));
            }
        }
        Ok(())
    }

    fn not_set(&self, error: &GuardError) -> String {
        let root = Root::live();
        let thp = settings::read(&Reader::new(&root)).thp;
        let sizes = thp.ok().map(|thp| thp.sizes).unwrap_or_default();
        let sizes: Vec<String> = sizes.iter().map(|size| crate::recipe::short(size.size)).collect();
        match sizes.is_empty() {
            true => format!("{error}; this kernel has no sizes of its own (6.8 and later have)"),
            false => format!("{error}; sizes here are {}", sizes.join(", ")),
        }
    }

    /// The control group. It need not come, unless a limit is wanted.
    fn own_group(&mut self, variant: &Variant, no_guard: &str) -> Result<(), String> {
        let is_shared = variant.hog.is_some_and(|hog| hog.leaves.is_some());
        let made = match &self.guard {
            Some(guard) if is_shared => Group::make_shared(guard, "shared").and_then(|shared| {
                let made = Group::make_inside(guard, "trial", &shared);
                self.shared = Some(shared);
                made
            }),
            Some(guard) => Group::make(guard, "trial"),
            None => Err(Absence::new("control groups", AbsentWhy::Failed, no_guard)),
        };
        let made = made.map_err(|absence| absence.reason().to_owned());
        match made {
            Ok(made) => self.group = Some(made.group),
            Err(why) if variant.memory_limit.is_some() => {
                return Err(format!("memory_limit needs a control group of its own: {why}"));
            }
            Err(why) => self.notes.push(format!("no control group of its own: {why}")),
        }
        let is_inside = self.group.as_ref().is_some_and(|group| group.usage().is_ok());
        if is_shared && !is_inside {
            return Err(
                "hog.leaves: the trial cannot be put into the limit that it shares: its group has no \
                        memory controller"
                    .to_owned(),
            );
        }
        if let (Some(limit), Some(group)) = (variant.memory_limit, self.limited()) {
            let got = group
                .limit_memory(limit)
                .map_err(|absence| format!("memory_limit: {}: {}", absence.source, absence.reason()))?;
            // The kernel rounds down to whole pages.
            if got > limit || limit.0 - got.0 > limit.0 / 100 {
                self.flag(format!("memory_limit was to be {} bytes and is {}", limit.0, got.0));
            }
        }
        Ok(())
    }

    /// The group whose memory is limited: the trial's, or that of the trial and its competitor.
    fn limited(&self) -> Option<&Group> {
        self.shared.as_ref().or(self.group.as_ref())
    }

    /// What the group may swap. A swap file that is on for other variants is not for those that want none.
    fn swap(&mut self, variant: &Variant, swap: &Swap) -> Result<(), String> {
        let is_wanted = variant.swap.is_some_and(|size| size.0 > 0);
        if let Some(why) = swap.missing().filter(|_| is_wanted) {
            return Err(format!("swap: {why}"));
        }
        let limit = match variant.swap {
            Some(limit) => limit,
            None if swap.is_on() => Bytes(0),
            None => return Ok(()),
        };
        let Some(group) = self.limited() else { return Ok(()) };
        match group.limit_swap(limit) {
            Ok(got) if got > limit || limit.0 - got.0 > limit.0 / 100 => {
                self.flag(format!("swap was to be {} bytes and is {}", limit.0, got.0));
            }
            Ok(_) => {}
            // Where nobody swaps there is nothing to forbid.
            Err(_) if limit.0 == 0 && !swaps() => {}
            Err(absence) => self.flag(format!(
                "swap was to be {} bytes at the most, and the group swaps as it likes: {}: {}",
                limit.0,
                absence.source,
                absence.reason()
            )),
        }
        Ok(())
    }

    /// A process beside the trial. A thread is started by the workload's own process.
    fn competitor(&mut self, variant: &Variant, bench: &Bench<'_>) -> Result<(), String> {
        let Some(hog) = variant.hog else { return Ok(()) };
        let total = bench.total;
        let room = Reserve::of(total).room(available().unwrap_or_default());
        if hog.size > room {
            return Err(format!(
                "hog: {} MiB are wanted, and {} MiB can be taken without going below the reserve",
                hog.size.0 >> 20,
                room.0 >> 20
            ));
        }
        if hog.how == HogKind::Process {
            let beside = match (&self.shared, &self.guard) {
                (Some(shared), Some(guard)) => {
                    let made = Group::make_beside(guard, "rival", shared);
                    Some(made.map_err(|absence| format!("hog: {}: {}", absence.source, absence.reason()))?)
                }
                _ => None,
            };
            self.hog = Some(HogProcess::start(hog.size, beside.as_ref(), bench.stop)?);
        }
        Ok(())
    }

    /// Looks after what is held.
    pub fn tick(&mut self) {
        if let Some(held) = &mut self.fragmentation {
            held.tick();
        }
    }

    /// CPU time that a competitor used so far, ns.
    pub fn hog_cpu_ns(&self) -> u64 {
        self.hog.as_ref().map_or(0, HogProcess::cpu_ns)
    }

    /// Undoes everything, in the opposite order.
    pub fn finish(self) -> Undone {
        let mut undone = Undone { measures: Vec::new(), flags: self.flags, notes: self.notes };
        if let Some(aside) = self.aside {
            undone.notes.extend(aside.finish());
        }
        drop(self.hog);
        if let Some(held) = self.fragmentation {
            let (measures, flags) = held.finish();
            undone.measures.extend(measures);
            undone.flags.extend(flags);
        }
        drop(self.group);
        let outcomes = self.guard.map(Guard::finish).unwrap_or_default();
        undone.notes.extend(outcomes.iter().filter(|o| is_left(o)).map(|outcome| {
            let fate = outcome.fate.word().replace('_', " ");
            format!("{} could not be put back: {fate} {}", outcome.what, outcome.detail)
        }));
        undone
    }
}

/// Whether this machine swaps to anything. What cannot be read may be.
fn swaps() -> bool {
    let root = Root::live();
    settings::read(&Reader::new(&root)).swap.is_ok_and(|areas| !areas.is_empty())
}

fn is_left(outcome: &Outcome) -> bool {
    !matches!(outcome.fate, Fate::Restored | Fate::AlreadyBack | Fate::OneWay)
}

fn text(error: GuardError) -> String {
    error.to_string()
}

/// Memory that can be had without swapping.
fn available() -> Option<Bytes> {
    let root = Root::live();
    let info: Meminfo = Reader::new(&root).parse(paths::MEMINFO, pagelab_formats::meminfo::parse).ok()?;
    info.available()
}
