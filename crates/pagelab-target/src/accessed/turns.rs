//! Whose turn it is: who is swept, how often, and what it costs.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagelab_sys::affinity::Pinned;
use pagelab_sys::clock;

use super::image::InMemory;
use super::split::Pieces;
use super::watch::{TICK, Watch};
use super::{image, slow_down_permille, sweep};

/// Less in memory is not worth a sweep.
pub(super) const LEAST_RESIDENT: u64 = 4 << 20;

/// Sweeps while mappings are split once, as long as there is time for them.
const SWEEPS_OF_A_SPLIT: u32 = 4;

/// The longest that further sweeps put off the merge.
const SPLIT_MOST: Duration = Duration::from_millis(50);

/// CPU time of a first sweep by page in memory: looking at the mappings, clearing, and looking.
const PAGE_WORK: Duration = Duration::from_nanos(200);

/// The same by entry of a page table that maps no page of its own: of the zero page.
const ENTRY_WORK: Duration = Duration::from_nanos(100);

/// How long it holds that memory is not short.
const RELIEVED: Duration = Duration::from_millis(200);

/// Pages of which the bits are cleared, and looked at, in some 50 ms each: other programs
/// can do without the CPU for so long.
const SHORT: u64 = 1 << 20;

/// At each permille of duty, so many turns while the time doubles, …
const TICKS_A_PERMILLE: u32 = 4;
/// … but not further than this.
const TICK_MOST: Duration = Duration::from_millis(250);

/// How long a process that cannot afford a sweep is left before it is looked what it has accessed since.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Watch<'_> {
    /// Whether a person wants sweeps all the time.
    pub(super) fn has_all_the_time(&self) -> bool {
        slow_down_permille(self.wanted.duty_permille).is_none()
    }

    /// The time until the next turn. Looking whether one is due shall cost less than it: longer and longer,
    /// where little duty is asked for.
    pub(super) fn until_next(&self) -> Duration {
        if self.has_all_the_time() {
            return Duration::ZERO;
        }
        let part = self.began.elapsed() / (self.wanted.duty_permille.max(1) * TICKS_A_PERMILLE);
        part.clamp(TICK, TICK_MOST)
    }

    /// Sweeps everybody who is large enough and whose time has earned it, once: what it cost.
    pub(super) fn turn(&mut self) -> Duration {
        let before = self.cost();
        if self.relieved.is_none_or(|since| since.elapsed() >= RELIEVED) {
            if let Some(why) = (self.wanted.pressure)() {
                self.note(format!("sweeps were left out: {why}"));
                return self.cost().saturating_sub(before);
            }
            self.relieved = Some(Instant::now());
        }
        let count = self.images.len();
        // Who comes first is another one each time, since what is left of the duty may be enough for one.
        let first = self.sweeps as usize % count.max(1);
        for at in (first..count).chain(0..first) {
            if !self.images[at].is_alive || self.wanted.stop.load(Ordering::Relaxed) {
                continue;
            }
            if !self.images[at].process.is_there(&self.root) {
                self.images[at].is_alive = false;
                continue;
            }
            let memory = self.images[at].memory(&self.root);
            let resident = memory.resident;
            self.images[at].lives(&self.root, resident, &self.wanted.price);
            let working = self.cost().saturating_sub(before);
            self.scan_zeros(at, memory, working);
            let lived = self.images[at].account.lived();
            let is_filled = self.images[at].growth.is_over(lived, resident);
            let working = self.cost().saturating_sub(before);
            if resident < LEAST_RESIDENT || !is_filled || !self.affords(at, memory, working) {
                continue;
            }
            let begun = self.cost();
            self.images[at].growth.sweeps(lived);
            match self.sweep(at, resident) {
                Ok(()) => {}
                // It ended, or became another program.
                Err(_) => self.images[at].is_alive = self.images[at].process.is_there(&self.root),
            }
            let work = self.cost().saturating_sub(begun);
            self.images[at].work = Some(work);
            self.busy_with_sweeps += work;
        }
        self.cost().saturating_sub(before)
    }

    /// Whether both the duty and its time have earned a sweep of it; `working` is the work of this turn.
    fn affords(&mut self, at: usize, memory: InMemory, working: Duration) -> bool {
        let Some(permille) = slow_down_permille(self.wanted.duty_permille) else { return true };
        let (page, pid) = (self.page.bytes(), self.images[at].process.pid);
        let resident = memory.resident;
        let pages = resident / page;
        let times = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let entries = memory.beside(page) / page;
        let first = PAGE_WORK.saturating_mul(times(pages)) + ENTRY_WORK.saturating_mul(times(entries));
        let one = self.images[at].work.unwrap_or(first);
        let earned = self.began.elapsed().as_nanos() * u128::from(self.wanted.duty_permille) / 1000;
        let own = earned as f64 * self.images[at].account.sweeps_part();
        if (self.busy + working + one).as_nanos() > earned
            || (self.busy_with_sweeps + one).as_nanos() as f64 > own
        {
            return false;
        }
        let pieces = if self.splits_can_be_made(at) { resident / self.huge } else { 0 };
        let image = &mut self.images[at];
        // Where it waits for a CPU anyway, sweeps take one from it.
        let taken = first.mul_f64(image.waited_share());
        if image.account.allows(image.account.expected(pages, pieces, taken), permille) {
            return true;
        }
        if !image.account.is_used() || image.looked.elapsed() < LOOK_AGAIN {
            return false;
        }
        // What it has not accessed since the last sweep is not due again.
        image.looked = Instant::now();
        let Some((resident, young)) = sweep::young(&self.root, pid) else { return false };
        image.account.looked(resident / page, young / page);
        image.account.allows(image.account.expected(resident / page, pieces, taken), permille)
    }

    fn splits_can_be_made(&self, at: usize) -> bool {
        !self.images[at].is_whole && self.hands.is_somebody()
    }

    /// Time in which work for sweeps was really done: pagelab's own, the splitter's, and as long once more
    /// for the calls that it, or the supervisor, had the program make. Time of waiting for a CPU slows nobody
    /// down.
    pub(super) fn cost(&self) -> Duration {
        let own = clock::process_cpu_ns(std::process::id()).unwrap_or_else(|_| clock::thread_cpu_ns());
        Duration::from_nanos(own + self.hands.cpu_ns() + self.hands.calls_cpu_ns())
    }

    /// Splits, sweeps a few times and merges; what that costs goes into the account.
    fn sweep(&mut self, at: usize, resident: u64) -> io::Result<()> {
        let pid = self.images[at].process.pid;
        let (cost, waited, began) = (self.cost(), image::waited(&self.root, pid), Instant::now());
        let (stopped, in_stops) = (self.effort.stopped_ns.unwrap_or(0), self.waited_ns);
        let swept = self.sweep_some(at, resident);
        let work = self.cost().saturating_sub(cost);
        let waited = image::waited(&self.root, pid).saturating_sub(waited);
        let stopped = self.effort.stopped_ns.unwrap_or(0).saturating_sub(stopped);
        let stood = stopped.saturating_sub(self.waited_ns.saturating_sub(in_stops));
        // What it waited for a CPU beyond what it always does is owed to sweeps, as far as they worked.
        let usual = began.elapsed().mul_f64(self.images[at].waited_share());
        let taken = waited.saturating_sub(usual).min(work);
        self.images[at].account.stood(Duration::from_nanos(stood) + taken);
        swept
    }

    fn sweep_some(&mut self, at: usize, resident: u64) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::NotFound);
        let process = self.images[at].process;
        let page = self.page.bytes();
        let has_two_cpus = Pinned::allowed().len() > 1;
        let image = &mut self.images[at];
        let mappings = image.mappings(&self.root).map_err(gone)?;
        let split = match self.split(at, &mappings) {
            Pieces::Whole => None,
            Pieces::Split(ranges, since) => Some((ranges, since)),
            Pieces::NotNow => return Ok(()),
        };
        let began = Instant::now();
        let mut pages = resident / page;
        let mut swept = Vec::new();
        for _ in 0..SWEEPS_OF_A_SPLIT {
            let image = &mut self.images[at];
            let pause = Duration::from_nanos(image.pause_ns);
            image.account.clears(pages);
            let one = sweep::sweep(
                &self.root,
                process.pid,
                pages <= SHORT && has_two_cpus,
                &mut image.clearer,
                pause,
                self.wanted.stop,
            );
            if let Ok(one) = &one {
                let (resident, young) = one.young();
                pages = resident / page;
                image.account.looked(pages, young / page);
                image.looked = Instant::now();
            }
            let more = image.account.expected_soon();
            let is_dear = slow_down_permille(self.wanted.duty_permille)
                .is_some_and(|permille| !image.account.allows(more, permille));
            swept.push(one);
            let each = began.elapsed() / swept.len() as u32;
            let is_late = began.elapsed() + each > SPLIT_MOST || self.wanted.stop.load(Ordering::Relaxed);
            if is_late || is_dear || swept.last().is_some_and(Result::is_err) {
                break;
            }
        }
        if let Some((ranges, since)) = split {
            self.merge(process, &ranges, since);
        }
        let ledger = self.hands.ledger(process.pid);
        self.images[at].name(ledger);
        for one in swept {
            self.images[at].take(&one?, page, self.huge, self.wanted.pause)?;
            self.sweeps += 1;
        }
        Ok(())
    }
}
