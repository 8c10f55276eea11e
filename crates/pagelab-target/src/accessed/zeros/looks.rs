//! Looks at what is back of dropped entries, and how late they are made.
//!
//! An entry that is dropped stays so until its page is accessed, so it costs the program nothing to look
//! several times. Of a region whose pages return at one rate, those that are not back at a look are as likely
//! to be at the next as if they had been dropped at that moment: each look is an observation of its own. What
//! is mostly back is not looked at again, since the pages that come last are the cold ones of the region.

use std::fs::File;
use std::io;
use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_sys::{clock, pagemap_scan};

use super::passes::Drawn;
use super::{Place, Zeros};
use crate::accessed::names::Names;
use crate::drops::{TaskClock, Used};

/// The first pause; later ones follow what is found.
pub const FIRST_PAUSE_NS: u64 = 100_000;

/// A shorter one is none.
const PAUSE_LEAST_NS: u64 = 30_000;

/// A region of which this part is back is not looked at again, in permille; at the first look, this part.
const IS_TOLD: u64 = 250;
const IS_BACK: u64 = 750;

/// The pause is right where so much of the hottest runs is back, in permille.
pub const HOTTEST_LEAST: u64 = 400;
const HOTTEST_MOST: u64 = 850;

/// One more look follows after so many times the pause in which the hottest came back: it tells of the rest.
const LATER: u32 = 4;

/// The hottest are one of so many runs, and two of few.
const HOTTEST_PART: usize = 64;
const HOTTEST_FEWEST: usize = 2;

/// So much CPU time is told well enough, and so long ago it is looked what part of the time it usually is.
const CPU_TOLD_NS: u64 = 20_000_000;
const USUAL_NS: u64 = 50_000_000;

/// No program is thought to rest for more of the time than this.
const USUAL_LEAST: f64 = 0.01;

/// Page faults are at most this part of the time between two looks, by what is known of their price.
const FAULTS_MOST: f64 = 0.75;
/// A program that did not run at all between two looks is taken as one that ran this part of the time.
const RAN_LEAST: f64 = 1e-4;

/// Entries that were dropped of a run.
#[derive(Clone, Debug)]
pub struct Dropped {
    drawn: Drawn,
    /// Pages that were not back when the program was seen to run again: all, before the first look.
    pages: u64,
    /// Pages that were.
    before: u64,
    /// Of the others, those that were back at the last look.
    back: u64,
    /// When it was dropped, or looked at last.
    at_ns: u64,
    /// Enough of it is back.
    is_told: bool,
    /// It was not looked at yet.
    is_new: bool,
}

impl Dropped {
    /// Entries of a run that were dropped then.
    pub fn new(drawn: Drawn, page: u64, at_ns: u64) -> Dropped {
        let pages = (drawn.run.end - drawn.run.start) / page.max(1);
        Dropped { drawn, pages, before: 0, back: 0, at_ns, is_told: false, is_new: true }
    }

    /// Whether a later look tells nothing more.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// What a look that finds so many pages back at that moment tells: pages, of them those that came back,
    /// and since when. Of the first look, which is made as soon as the program runs again, this is nothing,
    /// since nobody knows when it did; but for a run that is back by then, which is hotter than can be told.
    fn tells(&mut self, all_back: u64, now_ns: u64) -> Option<(u64, u64, u64)> {
        let waited_ns = now_ns.saturating_sub(std::mem::replace(&mut self.at_ns, now_ns));
        if std::mem::take(&mut self.is_new) {
            let all_back = all_back.min(self.pages);
            self.is_told = all_back * 1000 > self.pages * IS_BACK;
            if self.is_told {
                self.back = all_back;
                return Some((self.pages, all_back, waited_ns));
            }
            (self.before, self.pages) = (all_back, self.pages - all_back);
            return None;
        }
        let back = all_back.saturating_sub(self.before).clamp(self.back, self.pages);
        let came = back - std::mem::replace(&mut self.back, back);
        let told = (self.pages - (back - came), came, waited_ns);
        let is_told = self.share() >= IS_TOLD;
        let was_told = std::mem::replace(&mut self.is_told, is_told);
        (!was_told).then_some(told)
    }

    /// What came back, in permille.
    fn share(&self) -> u64 {
        self.back * 1000 / self.pages.max(1)
    }
}

/// What a look goes by.
#[derive(Clone, Copy, Debug)]
pub struct Looking {
    /// Bytes of a page.
    pub page: u64,
    /// Bytes of a huge page.
    pub huge: u64,
    /// CPU time in which the program could access memory, to the time that went by since the last look.
    pub running: f64,
}

impl Looking {
    /// From one moment to the next, with page faults of this price: in these the program accesses nothing.
    /// The CPU time of a process is told too coarsely for a short time, so that it counts as `ran_ns`, where
    /// that is known, and else as the `usual` part of the time.
    pub fn new(
        (page, huge): (u64, u64),
        before: Used,
        now: Used,
        ran_ns: Option<f64>,
        price: Duration,
        usual: f64,
    ) -> Looking {
        let went_by = now.at_ns.saturating_sub(before.at_ns).max(1) as f64;
        let cpu_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        let part = match ran_ns {
            Some(ran_ns) => (ran_ns / went_by).max(RAN_LEAST),
            None if cpu_ns >= CPU_TOLD_NS => cpu_ns as f64 / went_by,
            None => usual,
        };
        let faults = now.faults.saturating_sub(before.faults) as f64 * price.as_nanos() as f64;
        let in_faults = (faults / (went_by * part).max(1.0)).clamp(0.0, FAULTS_MOST);
        Looking { page, huge, running: part * (1.0 - in_faults) }
    }
}

/// What follows a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// One more look, after this pause.
    Look(Duration),
    /// The next entries are dropped.
    Enough,
}

impl Zeros {
    /// Looks what is back of dropped entries, and returns how much of the hottest runs is, in permille.
    pub fn look(
        &mut self,
        pagemap: &File,
        dropped: &mut [Dropped],
        names: &Names,
        looking: &Looking,
    ) -> io::Result<u64> {
        let mut shares = Vec::new();
        for of in dropped.iter_mut() {
            let mut back = 0;
            pagemap_scan::populated(pagemap, of.drawn.run.clone(), |part| back += part.end - part.start)?;
            let (was_new, before) = (of.is_new, of.back + of.before);
            if let Some((pages, came, waited_ns)) = of.tells(back / looking.page, clock::monotonic_ns()) {
                let region = self.regions.entry(place(&of.drawn, names)).or_default();
                let lag_ns = waited_ns as f64 * looking.running;
                region.seen.add(pages, came, (lag_ns as u64).max(1));
                region.number = of.drawn.run.start / looking.huge;
            }
            if was_new {
                let region = self.regions.entry(place(&of.drawn, names)).or_default();
                region.had(of.drawn.pages);
                region.number = of.drawn.run.start / looking.huge;
            }
            self.returned += of.back + of.before - before;
            shares.push(of.share());
        }
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let counted = shares.len().div_ceil(HOTTEST_PART).max(HOTTEST_FEWEST).min(shares.len());
        Ok(shares.iter().take(counted).sum::<u64>() / (counted as u64).max(1))
    }

    /// So many entries were dropped in one stop.
    pub fn has_dropped(&mut self, pages: u64) {
        self.dropped += pages;
        self.batches += 1;
        self.refused = None;
    }

    /// Whether it was never asked what is usual.
    pub fn is_new(&self) -> bool {
        self.usual.is_none()
    }

    /// What part of the time the program's CPU time is, as of the last while; all its threads together.
    pub fn usual(&mut self, now: Used) -> f64 {
        let (before, usual) = *self.usual.get_or_insert((now, 1.0));
        let went_by = now.at_ns.saturating_sub(before.at_ns);
        if went_by < USUAL_NS {
            return usual;
        }
        let cpu_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        let usual = (cpu_ns as f64 / went_by as f64).max(USUAL_LEAST);
        self.usual = Some((now, usual));
        usual
    }

    /// The process's CPU time by a clock that is told between ticks, where there is one: since it was first
    /// asked for.
    pub fn task_ns(&mut self, root: &Root, pid: u32) -> Option<u64> {
        self.task_clock.get_or_insert_with(|| TaskClock::of_process(root, pid)).as_ref()?.ns()
    }

    /// How long after a drop it is looked first.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause_ns)
    }

    /// What follows a look that found so much of the hottest runs back (in permille), `waited` after the
    /// drop; no look is made later than `most` after it. `is_later`: that look was one more.
    pub fn after(&mut self, hottest: u64, waited: Duration, is_later: bool, most: Duration) -> Next {
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let least = Duration::from_nanos(PAUSE_LEAST_NS);
        let next = match hottest {
            _ if is_later => None,
            0..HOTTEST_LEAST => Some(waited.max(least)),
            _ => Some(waited.max(least) * (LATER - 1)),
        };
        if !is_later {
            self.pause_ns = match hottest {
                HOTTEST_MOST.. if waited_ns <= PAUSE_LEAST_NS => 0,
                HOTTEST_MOST.. => waited_ns / 2,
                0..HOTTEST_LEAST => (waited_ns * 2).max(PAUSE_LEAST_NS),
                _ => waited_ns,
            }
            .min(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        }
        next.filter(|next| waited + *next <= most).map_or(Next::Enough, Next::Look)
    }
}

fn place(drawn: &Drawn, names: &Names) -> Place {
    let parts = names.parts(&drawn.region);
    match parts.iter().find(|(at, ..)| at.contains(&drawn.run.start)) {
        Some((at, mapping, offset)) => Place::Named(*mapping, *offset, offset + (at.end - at.start)),
        None => Place::At(drawn.region.start, drawn.region.end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(100);

    /// The pauses of one drop of a program whose hottest runs come back at this rate.
    fn looks(zeros: &mut Zeros, rate: f64) -> Vec<u64> {
        let (mut waited, mut pause, mut is_later) = (Duration::ZERO, zeros.pause(), false);
        let mut made = Vec::new();
        loop {
            waited += pause;
            made.push(waited.as_micros() as u64);
            let hottest = ((1.0 - (-rate * waited.as_nanos() as f64).exp()) * 1000.0) as u64;
            match zeros.after(hottest, waited, is_later, MOST) {
                Next::Enough => return made,
                Next::Look(more) => (pause, is_later) = (more, hottest >= HOTTEST_LEAST),
            }
        }
    }

    #[test]
    fn the_first_drop_finds_the_pause_and_one_more_look_tells_of_the_rest() {
        let mut zeros = Zeros::new(1);
        // A page in a millisecond.
        assert_eq!(looks(&mut zeros, 1e-6), [100, 200, 400, 800, 3200]);
        assert_eq!(looks(&mut zeros, 1e-6), [800, 3200]);
        // Slower than the longest pause tells.
        assert_eq!(looks(&mut zeros, 1e-10).last(), Some(&51_200));
        // Faster and faster, until there is no pause.
        let mut zeros = Zeros::new(1);
        let firsts: Vec<u64> = (0..4).map(|_| looks(&mut zeros, 1e-3)[0]).collect();
        assert_eq!(firsts, [100, 50, 25, 0]);
    }

    #[test]
    fn time_that_goes_by_counts_as_far_as_the_program_ran_and_was_not_in_page_faults() {
        let of = |us: u64, cpu_us: u64, faults, usual| {
            let now = Used { at_ns: us * 1000, cpu_ns: cpu_us * 1000, faults };
            let price = Duration::from_micros(1);
            Looking::new((4096, 2 << 20), Used::default(), now, None, price, usual).running
        };
        let of_clock = |ran_us: f64| {
            let (size, now) = ((4096, 2 << 20), Used { at_ns: 4_000_000, ..Used::default() });
            Looking::new(size, Used::default(), now, Some(ran_us * 1e3), Duration::ZERO, 1.0).running
        };
        // It waited for a CPU for most of four milliseconds: nothing that did not come back is at rest.
        assert!((of_clock(100.0) - 0.025).abs() < 1e-9 && of_clock(0.0) > 0.0);
        // Of a short time the CPU time is not told; of a long one it is.
        assert!((of(400, 4000, 0, 1.0) - 1.0).abs() < 1e-9);
        assert!((of(400, 0, 0, 0.5) - 0.5).abs() < 1e-9);
        assert!((of(80_000, 40_000, 0, 1.0) - 0.5).abs() < 1e-9);
        assert!((of(400, 0, 100, 1.0) - 0.75).abs() < 1e-9);
        assert!((of(400, 0, 900, 1.0) - 0.25).abs() < 1e-9, "never all of it");
    }

    #[test]
    fn the_first_look_tells_what_is_left_and_later_ones_what_came_since() {
        let drawn = Drawn { run: 0..16 * 4096, region: 0..2 << 20, pages: 512 };
        let mut of = Dropped::new(drawn.clone(), 4096, 1000);
        assert_eq!(of.tells(4, 1500), None);
        assert_eq!((of.tells(6, 2500), of.is_told()), (Some((12, 2, 1000)), false));
        assert_eq!((of.tells(9, 4500), of.is_told()), (Some((10, 3, 2000)), true));
        assert_eq!(of.tells(16, 9000), None, "enough was told");
        assert_eq!(of.share(), 1000);
        // All but gone by the first look.
        let mut hot = Dropped::new(drawn, 4096, 1000);
        assert_eq!((hot.tells(13, 1500), hot.is_told()), (Some((16, 13, 500)), true));
    }

    #[test]
    fn what_is_usual_is_that_of_the_last_while() {
        let mut zeros = Zeros::new(1);
        let of = |ms: u64, cpu_ms: u64| Used { at_ns: ms * 1_000_000, cpu_ns: cpu_ms * 1_000_000, faults: 0 };
        let parts = [of(0, 0), of(100, 200), of(120, 200), of(200, 210)].map(|now| zeros.usual(now));
        let wanted = [1.0, 2.0, 2.0, 0.1];
        assert!(parts.iter().zip(wanted).all(|(part, wanted)| (part - wanted).abs() < 1e-9), "{parts:?}");
    }
}
