//! Scans of never-written memory: entries of the page of zeros are dropped, and after a while it is looked
//! which are back. What that costs goes into the same account as sweeps.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;
use pagelab_sys::map::{Advice, Mapping};

use super::image::{self, Image, InMemory};
use super::turns::LEAST_RESIDENT;
use super::watch::Watch;
use super::zeros;
use super::zeros::looks::{self, Dropped, Looking, Next};
use super::zeros::passes::{self, Drawn};
use super::{Subject, slow_down_permille};
use crate::drops::Used;

/// Runs that are dropped in one stop of the program, at most, and at least. What a stop costs by itself, they
/// share.
const RUNS_MOST: usize = 128;
const RUNS_LEAST: usize = 8;

/// Stops in one turn.
const BATCHES_OF_A_TURN: u32 = 4;

/// How often a pause looks whether it is cut short.
const SLICE: Duration = Duration::from_millis(20);

/// Memory with which a return is priced, in how many rounds, and what is taken where it cannot be.
const PRICED_IN: u64 = 1 << 20;
const ROUNDS: usize = 3;
const ASSUMED: Duration = Duration::from_nanos(3000);

impl Watch<'_> {
    /// Whether entries of the page of zeros may be dropped; else why not, in a phrase.
    fn drops_zeros(&self) -> Result<(), String> {
        if !self.hands.is_somebody() {
            return Err("nothing is injected (--no-split)".to_owned());
        }
        if self.wanted.drops_zeros {
            return Ok(());
        }
        Err(match self.wanted.subject {
            Subject::Process(_) => "for a process that runs, it is asked for by --zero-page yes".to_owned(),
            Subject::Command(_) => "it was not wanted (--zero-page no)".to_owned(),
        })
    }

    /// Scans what an image has of never-written memory, as far as its time has earned it; `working` is the
    /// work of this turn.
    pub(super) fn scan_zeros(&mut self, at: usize, memory: InMemory, working: Duration) {
        let lived = self.images[at].account.lived();
        let is_filled = self.images[at].zeros.is_filled(lived, memory.tables);
        if self.images[at].zeros.is_resting() {
            // Sweeps have all of the share meanwhile.
            return self.images[at].account.parts(memory.resident, 0, LEAST_RESIDENT);
        }
        if self.images[at].zeros.listings() == 0 && self.drops_zeros().is_ok() {
            let beside = memory.beside(self.page.bytes());
            self.images[at].account.parts(memory.resident, beside, LEAST_RESIDENT);
        }
        if !is_filled || !self.duty_allows(working) {
            return;
        }
        if self.images[at].zeros.is_stale(lived) && !self.list_zeros(at) {
            return;
        }
        let may = self.drops_zeros();
        let image = &mut self.images[at];
        let zero = if may.is_ok() { image.zeros.bytes } else { 0 };
        image.account.parts(memory.resident, zero, LEAST_RESIDENT);
        if let (Err(why), true) = (&may, image.zeros.bytes >= zeros::LEAST) {
            self.not_dropped.insert(image.process.pid, why.clone());
        }
        if zero < zeros::LEAST {
            return;
        }
        let before = self.cost();
        for _ in 0..BATCHES_OF_A_TURN {
            let working = working + self.cost().saturating_sub(before);
            if !self.duty_allows(working) || self.wanted.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.scan_some(at) {
                Ok(true) => {}
                Ok(false) => return,
                // It ended, or became another program.
                Err(_) => return self.images[at].zeros.rests(),
            }
        }
    }

    fn duty_allows(&self, working: Duration) -> bool {
        let permille = u128::from(self.wanted.duty_permille);
        self.has_all_the_time()
            || (self.busy + working).as_nanos() * 1000 <= self.began.elapsed().as_nanos() * permille
    }

    fn list_zeros(&mut self, at: usize) -> bool {
        let pid = self.images[at].process.pid;
        match self.images[at].list_zeros(&self.root, self.huge) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let why = "this kernel does not tell where the page of zeros is mapped (PAGEMAP_SCAN, 6.7)";
                self.not_dropped.insert(pid, why.to_owned());
                self.images[at].zeros.rests();
                false
            }
            Err(_) => false,
        }
    }

    /// One stop of the program, and looks after it. `false`: no more of it now.
    fn scan_some(&mut self, at: usize) -> io::Result<bool> {
        let (page, huge) = (self.page.bytes(), self.huge);
        let back = *self.return_cost.get_or_insert_with(|| return_cost(page).unwrap_or(ASSUMED));
        let process = self.images[at].process;
        let image = &mut self.images[at];
        let each = back * u32::try_from(image.zeros.run_pages()).unwrap_or(u32::MAX) + image.zeros.run_stop;
        let most = match slow_down_permille(self.wanted.duty_permille) {
            Some(permille) => {
                let room = image.account.room_for_drops(permille).as_nanos() / each.as_nanos().max(1);
                usize::try_from(room).unwrap_or(RUNS_MOST).min(RUNS_MOST)
            }
            None => RUNS_MOST,
        };
        if most < RUNS_LEAST {
            return Ok(false);
        }
        let pagemap = File::open(paths::process(process.pid, "pagemap"))?;
        let drawn = image.zeros.draw(&pagemap, most, page, huge)?;
        if drawn.is_empty() {
            // What was listed is gone.
            return Ok(self.list_zeros(at) && self.images[at].zeros.bytes >= zeros::LEAST);
        }
        let Some((mut dropped, used)) = self.drop_drawn(at, &drawn, back) else { return Ok(false) };
        let ledger = self.hands.ledger(process.pid);
        self.images[at].name(ledger);
        self.look_until_told(at, &mut dropped, used)?;
        Ok(true)
    }

    /// Drops the entries of runs: what was dropped, and what the process had used then. A return costs so
    /// much. `None`: none were.
    fn drop_drawn(&mut self, at: usize, drawn: &[Drawn], back: Duration) -> Option<(Vec<Dropped>, Used)> {
        let page = self.page.bytes();
        let process = self.images[at].process;
        let runs: Vec<_> = drawn.iter().map(|drawn| drawn.run.clone()).collect();
        let waited = image::waited(&self.root, process.pid);
        let dropped = match self.hands.drop_zeros(process, &runs) {
            Ok(dropped) => dropped,
            Err(_) if !process.is_there(&self.root) => return None,
            Err(not) => {
                self.not_dropped.insert(process.pid, not.why);
                self.images[at].zeros.rests();
                return None;
            }
        };
        self.not_dropped.remove(&process.pid);
        *self.effort.stopped_ns.get_or_insert(0) += dropped.stopped_ns;
        self.all_stood_ns += dropped.stopped_ns;
        // Where it waits for a CPU in a stop, it would have waited without one.
        let waited = image::waited(&self.root, process.pid).saturating_sub(waited);
        let stopped = Duration::from_nanos(dropped.stopped_ns).saturating_sub(waited);
        let pages: u64 = dropped.parts.iter().map(|part| (part.end - part.start) / page).sum();
        let image = &mut self.images[at];
        image.account.drops(stopped + back * u32::try_from(pages).unwrap_or(u32::MAX));
        image.zeros.run_stop = stopped / u32::try_from(runs.len()).unwrap_or(1).max(1);
        image.zeros.has_dropped(pages);
        let of = |part: &std::ops::Range<u64>| {
            let whole =
                drawn.iter().find(|drawn| drawn.run.start <= part.start && part.end <= drawn.run.end)?;
            Some(Dropped::new(Drawn { run: part.clone(), ..whole.clone() }, page, dropped.used.at_ns))
        };
        Some((dropped.parts.iter().filter_map(of).collect(), dropped.used))
    }

    /// Looks what is back until that tells the rates, or the longest pause is over.
    fn look_until_told(&mut self, at: usize, dropped: &mut [Dropped], mut before: Used) -> io::Result<()> {
        let pid = self.images[at].process.pid;
        let back = self.return_cost.unwrap_or(ASSUMED) * 4 / 5;
        let usual = self.images[at].usual(before);
        // While it was dropped it stood; since then it ran as usual for the moment until this clock is read.
        let mut task_ns = self.images[at].zeros.task_ns(&self.root, pid);
        let mut untold_ns = clock::monotonic_ns().saturating_sub(before.at_ns) as f64 * usual;
        let (mut began, mut pause) = (Instant::now(), self.images[at].zeros.pause());
        let (mut is_first, mut is_later) = (true, false);
        let returned = self.images[at].zeros.returned;
        let had_returns = returned > 0;
        loop {
            if !is_first {
                self.pause(pause);
            }
            let now = Used::by(&self.root, pid);
            let task_now = self.images[at].zeros.task_ns(&self.root, pid);
            let ran_ns = task_ns.zip(task_now).map(|(from, to)| to.saturating_sub(from) as f64 + untold_ns);
            let looking = Looking::new((self.page.bytes(), self.huge), before, now, ran_ns, back, usual);
            (before, task_ns, untold_ns) = (now, task_now, 0.0);
            let waited = began.elapsed();
            let image = &mut self.images[at];
            let hottest = image.look_at_dropped(dropped, &looking)?;
            if std::mem::take(&mut is_first) && !dropped.iter().all(Dropped::is_told) {
                began = Instant::now();
                continue;
            }
            let next = image.zeros.after(hottest, waited, is_later, self.wanted.pause);
            // Nothing came back of any region, and in earlier scans something did: the program does something
            // else now. That is one moment among many; looked at for longer and longer, it would outweigh
            // all others in each region that happens to be drawn in it.
            if had_returns && image.zeros.returned == returned {
                return Ok(());
            }
            let is_over = dropped.iter().all(Dropped::is_told) || self.wanted.stop.load(Ordering::Relaxed);
            match next {
                Next::Look(more) if !is_over => {
                    is_later = hottest >= looks::HOTTEST_LEAST;
                    pause = more;
                }
                _ => return Ok(()),
            }
        }
    }

    fn pause(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while Instant::now() < end && !self.wanted.stop.load(Ordering::Relaxed) {
            thread::sleep(end.saturating_duration_since(Instant::now()).min(SLICE));
        }
    }

    /// What a reader must know of never-written memory.
    pub(super) fn say_of_zeros(&mut self, is_unseen: bool) {
        if self.not_dropped.is_empty() && is_unseen && !self.images.iter().any(|i| i.zeros.batches > 0) {
            self.note(
                "memory that was read and never written is the kernel's page of zeros, which has no bits of \
                 its own: not seen here, since the program ended before its entries could be dropped. \
                 --source exact sees it"
                    .to_owned(),
            );
        }
        self.say_what_came_back();
        let mut kept = std::collections::BTreeMap::new();
        for (why, bytes) in self.images.iter().flat_map(|image| &image.zeros.kept) {
            *kept.entry(*why).or_insert(0) += bytes;
        }
        for (why, bytes) in kept {
            self.note(format!(
                "{} KiB that were read and never written were left as they are: {why}; not seen here. \
                 --source exact sees them",
                bytes >> 10
            ));
        }
        for (pid, why) in std::mem::take(&mut self.not_dropped) {
            let image = self.images.iter().find(|image| image.process.pid == pid);
            let bytes = image.map_or(0, |image| image.zeros.most);
            if image.is_some_and(|image| image.zeros.batches > 0) {
                self.note(format!("scans of never-written memory of process {pid} ended: {why}"));
            } else {
                self.note(format!(
                    "memory that was read and never written is the kernel's page of zeros, which has no bits \
                     of its own; {} MiB of process {pid} were not seen, since its entries could not be \
                     dropped: {why}. --source exact sees them",
                    bytes >> 20
                ));
            }
        }
    }

    fn say_what_came_back(&mut self) {
        let sum = |of: fn(&Image) -> u64| self.images.iter().map(of).sum::<u64>();
        let (batches, most) = (sum(|image| image.zeros.batches), sum(|image| image.zeros.most));
        let (dropped, returned) = (sum(|image| image.zeros.dropped), sum(|image| image.zeros.returned));
        if batches > 0 {
            self.effort.zero_scans = Some(batches);
            self.effort.zero_pages = Some((dropped, returned));
            let scaled = match self.wanted.tlb_entries {
                Some(entries) => format!(
                    "what comes back was accessed, and how much of that walked is computed for a TLB of \
                     {entries} entries"
                ),
                None => "what comes back was accessed, which is more than walked: the TLB of this processor \
                         is not known"
                    .to_owned(),
            };
            let mixed = match self.images.iter().map(Image::sweeps).sum::<u64>() {
                0 => "",
                _ => {
                    "; other memory is known by accessed bits, so the order of the two kinds is less sure \
                      than that within each"
                }
            };
            self.note(format!(
                "{} MiB were read and never written, on the kernel's page of zeros: {dropped} entries of it \
                 were dropped in {batches} stops of all threads ({:.1} ms), and {returned} were back when it \
                 was looked; {scaled}{mixed}",
                most >> 20,
                self.all_stood_ns as f64 / 1e6
            ));
        }
    }
}

/// What a page fault that maps the page of zeros costs here, with a quarter more for page tables that lie in
/// no cache. Measured in memory of our own.
fn return_cost(page: u64) -> io::Result<Duration> {
    let mut memory = Mapping::anonymous(Bytes(PRICED_IN), Bytes(page))?;
    let _ = memory.advise(0..PRICED_IN, Advice::NoHugePage);
    let run = passes::RUN_OF_ALL * page;
    let mut order: Vec<u64> = (0..PRICED_IN / run).collect();
    let mut draws = SplitMix64::new(1);
    let mut prices = Vec::new();
    for _ in 0..ROUNDS {
        passes::shuffle(&mut order, &mut draws);
        let read = |memory: &Mapping| {
            let before = clock::thread_cpu_ns();
            for at in order.iter().flat_map(|nth| (0..passes::RUN_OF_ALL).map(move |n| nth * run + n * page))
            {
                std::hint::black_box(memory.words().get((at / size_of::<u64>() as u64) as usize).copied());
            }
            clock::thread_cpu_ns().saturating_sub(before)
        };
        memory.advise(0..PRICED_IN, Advice::DontNeed)?;
        let (faults, usual) = (read(&memory), read(&memory));
        prices.push(faults.saturating_sub(usual) / (PRICED_IN / page));
    }
    prices.sort_unstable();
    Ok(Duration::from_nanos((prices[ROUNDS / 2] * 5 / 4).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_has_a_price_of_a_page_fault() {
        let price = return_cost(rustix::param::page_size() as u64).unwrap();
        assert!(price > Duration::from_nanos(50) && price < Duration::from_millis(1), "{price:?}");
    }
}
