//! Scans for dropped entries that returned, and their schedule.
//!
//! A dropped entry stays missing until its page is accessed, so several scans cost the program nothing. If
//! the pages of a region return at one rate, those that are missing at a scan return by the next as if they
//! had been dropped at that moment: each scan is a separate observation. A run that has mostly returned is
//! not scanned again, since its last pages are the cold ones of the region.

use std::fs::File;
use std::io;
use std::time::Duration;

use pagelab_host::root::Root;
use pagelab_sys::{clock, pagemap_scan};

use super::run_selection::SelectedRun;
use super::{RegionLocation, ZeroPages};
use crate::accessed::named_regions::NamedRegions;
use crate::dontneed::{CpuUsage, TaskClock};

/// The first pause; later ones depend on the results.
pub const FIRST_PAUSE_NS: u64 = 100_000;

/// A shorter pause is none.
const PAUSE_MIN_NS: u64 = 30_000;

/// A run of which this part has returned is not scanned again, in permille; at the first scan, this part.
const KNOWN_PERMILLE: u64 = 250;
const HOT_PERMILLE: u64 = 750;

/// The pause is right if this share of the hottest runs has returned, in permille.
pub const HOTTEST_RETURNED_MIN: u64 = 400;
const HOTTEST_RETURNED_MAX: u64 = 850;

/// The pause before an extra scan, in pauses in which the hottest pages returned: it samples the others.
const EXTRA_SCAN_FACTOR: u32 = 4;

/// The hottest runs: one of this many, and two of few.
const HOTTEST_PART: usize = 64;
const HOTTEST_RUNS_MIN: usize = 2;

/// CPU time above which the process clock is precise enough, and the period of the usual CPU share.
const CPU_TIME_RELIABLE_NS: u64 = 20_000_000;
const CPU_SHARE_PERIOD_NS: u64 = 50_000_000;

/// The smallest CPU share of a program that is assumed.
const CPU_SHARE_MIN: f64 = 0.01;

/// Page faults are at most this part of the time between two scans, by their measured cost.
const FAULT_SHARE_MAX: f64 = 0.75;
/// A program that did not run at all between two scans counts as one that ran this part of the time.
const RUN_SHARE_MIN: f64 = 1e-4;

/// The dropped entries of a run.
#[derive(Clone, Debug)]
pub struct DroppedRun {
    selected: SelectedRun,
    /// Pages that had not returned when the program was seen to run again: all, before the first scan.
    pages: u64,
    /// Pages that had.
    returned_first: u64,
    /// Of the others, those that had returned at the last scan.
    returned: u64,
    /// When it was dropped, or scanned last.
    at_ns: u64,
    /// Enough of it has returned.
    pub is_known: bool,
    /// It was not scanned yet.
    is_unscanned: bool,
}

impl DroppedRun {
    /// Entries of a run that were dropped at this time.
    pub fn new(selected: SelectedRun, page: u64, at_ns: u64) -> DroppedRun {
        let pages = (selected.run.end - selected.run.start) / page.max(1);
        DroppedRun {
            selected,
            pages,
            returned_first: 0,
            returned: 0,
            at_ns,
            is_known: false,
            is_unscanned: true,
        }
    }

    /// Records a scan with its number of returned pages: (pages, those that returned, elapsed time). The
    /// first scan, as soon as the program runs again, gives no observation, since the time of its resumption
    /// is unknown; but for a run that has returned by then, which is hotter than can be measured.
    fn record_scan(&mut self, returned_total: u64, now_ns: u64) -> Option<(u64, u64, u64)> {
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.at_ns, now_ns));
        if std::mem::take(&mut self.is_unscanned) {
            let returned_total = returned_total.min(self.pages);
            self.is_known = returned_total * 1000 > self.pages * HOT_PERMILLE;
            if self.is_known {
                self.returned = returned_total;
                return Some((self.pages, returned_total, elapsed_ns));
            }
            (self.returned_first, self.pages) = (returned_total, self.pages - returned_total);
            return None;
        }
        let returned = returned_total.saturating_sub(self.returned_first).clamp(self.returned, self.pages);
        let new_returns = returned - std::mem::replace(&mut self.returned, returned);
        let observation = (self.pages - (returned - new_returns), new_returns, elapsed_ns);
        let is_known = self.returned_permille() >= KNOWN_PERMILLE;
        let was_known = std::mem::replace(&mut self.is_known, is_known);
        (!was_known).then_some(observation)
    }

    /// The returned part, in permille.
    fn returned_permille(&self) -> u64 {
        self.returned * 1000 / self.pages.max(1)
    }
}

/// The context of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RescanContext {
    /// Bytes of a base page.
    pub page: u64,
    /// Bytes of a huge page.
    pub huge: u64,
    /// CPU time in which the program could access memory, over the time since the last scan.
    pub run_share: f64,
}

/// The share between two usages, with page faults of this cost: in these the program accesses nothing. The
/// CPU time of a process is too coarse for a short time, so `ran_ns` counts, if it is known, and else the
/// `cpu_share` part of the time.
pub fn run_share(
    last_usage: CpuUsage,
    usage: CpuUsage,
    ran_ns: Option<f64>,
    fault_cost: Duration,
    cpu_share: f64,
) -> f64 {
    let elapsed_ns = usage.at_ns.saturating_sub(last_usage.at_ns).max(1) as f64;
    let cpu_ns = usage.cpu_ns.saturating_sub(last_usage.cpu_ns);
    let cpu_part = match ran_ns {
        Some(ran_ns) => (ran_ns / elapsed_ns).max(RUN_SHARE_MIN),
        None if cpu_ns >= CPU_TIME_RELIABLE_NS => cpu_ns as f64 / elapsed_ns,
        None => cpu_share,
    };
    let fault_ns = usage.faults.saturating_sub(last_usage.faults) as f64 * fault_cost.as_nanos() as f64;
    let fault_share = (fault_ns / (elapsed_ns * cpu_part).max(1.0)).clamp(0.0, FAULT_SHARE_MAX);
    cpu_part * (1.0 - fault_share)
}

impl ZeroPages {
    /// Scans dropped entries, and returns how much of the hottest runs has returned, in permille.
    pub fn rescan(
        &mut self,
        pagemap: &File,
        dropped: &mut [DroppedRun],
        names: &NamedRegions,
        context: &RescanContext,
    ) -> io::Result<u64> {
        let mut shares = Vec::new();
        for run in dropped.iter_mut() {
            let mut returned_bytes = 0;
            pagemap_scan::for_each_populated(pagemap, run.selected.run.clone(), |part| {
                returned_bytes += part.end - part.start
            })?;
            let (was_unscanned, returned_before) = (run.is_unscanned, run.returned + run.returned_first);
            if let Some((pages, new_returns, elapsed_ns)) =
                run.record_scan(returned_bytes / context.page, clock::monotonic_ns())
            {
                let region = self.regions.entry(locate_region(&run.selected, names)).or_default();
                let lag_ns = elapsed_ns as f64 * context.run_share;
                region.samples.add_sweep(pages, new_returns, (lag_ns as u64).max(1));
                region.number = run.selected.run.start / context.huge;
            }
            if was_unscanned {
                let region = self.regions.entry(locate_region(&run.selected, names)).or_default();
                region.record_selection(run.selected.pages);
                region.number = run.selected.run.start / context.huge;
            }
            self.returned_entries += run.returned + run.returned_first - returned_before;
            shares.push(run.returned_permille());
        }
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let counted = shares.len().div_ceil(HOTTEST_PART).max(HOTTEST_RUNS_MIN).min(shares.len());
        Ok(shares.iter().take(counted).sum::<u64>() / (counted as u64).max(1))
    }

    /// Records a stop and its number of dropped entries.
    pub fn record_drop(&mut self, pages: u64) {
        self.dropped_entries += pages;
        self.stops += 1;
        self.last_refusal = None;
    }

    /// The program's CPU time over the time, in the last period; all its threads together. The first period
    /// begins at the usage `first`.
    pub fn cpu_share(&mut self, usage: CpuUsage, first: impl FnOnce() -> CpuUsage) -> f64 {
        let (last_usage, share) = *self.cpu_share.get_or_insert_with(|| (first(), 1.0));
        let elapsed_ns = usage.at_ns.saturating_sub(last_usage.at_ns);
        if elapsed_ns < CPU_SHARE_PERIOD_NS {
            return share;
        }
        let cpu_ns = usage.cpu_ns.saturating_sub(last_usage.cpu_ns);
        let share = (cpu_ns as f64 / elapsed_ns as f64).max(CPU_SHARE_MIN);
        self.cpu_share = Some((usage, share));
        share
    }

    /// The process's CPU time by a clock that is precise between ticks, if there is one: since it was first
    /// read.
    pub fn task_ns(&mut self, root: &Root, pid: u32) -> Option<u64> {
        self.task_clock.get_or_insert_with(|| TaskClock::open(root, pid)).as_ref()?.read_ns()
    }

    /// The pause between a drop and the first scan.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause_ns)
    }

    /// The pause before another scan, by the returned share of the hottest runs (in permille), `waited` after
    /// the drop; no scan is later than `pause_max` after it. `is_extra`: it was the extra scan. `None`: the
    /// next entries are dropped.
    pub fn next_pause(
        &mut self,
        hottest: u64,
        waited: Duration,
        is_extra: bool,
        pause_max: Duration,
    ) -> Option<Duration> {
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let least = Duration::from_nanos(PAUSE_MIN_NS);
        let next = match hottest {
            _ if is_extra => None,
            0..HOTTEST_RETURNED_MIN => Some(waited.max(least)),
            _ => Some(waited.max(least) * (EXTRA_SCAN_FACTOR - 1)),
        };
        if !is_extra {
            self.pause_ns = match hottest {
                HOTTEST_RETURNED_MAX.. if waited_ns <= PAUSE_MIN_NS => 0,
                HOTTEST_RETURNED_MAX.. => waited_ns / 2,
                0..HOTTEST_RETURNED_MIN => (waited_ns * 2).max(PAUSE_MIN_NS),
                _ => waited_ns,
            }
            .min(u64::try_from(pause_max.as_nanos()).unwrap_or(u64::MAX));
        }
        next.filter(|next| waited + *next <= pause_max)
    }
}

fn locate_region(selected: &SelectedRun, names: &NamedRegions) -> RegionLocation {
    let parts = names.find_parts(&selected.region);
    match parts.iter().find(|(at, ..)| at.contains(&selected.run.start)) {
        Some((at, mapping, offset)) => {
            RegionLocation::InMapping(*mapping, *offset, offset + (at.end - at.start))
        }
        None => RegionLocation::AtAddress(selected.region.start, selected.region.end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(100);

    /// The pauses of one drop of a program whose hottest runs return at this rate.
    fn scan_delays(zeros: &mut ZeroPages, rate: f64) -> Vec<u64> {
        let (mut waited, mut pause, mut is_later) = (Duration::ZERO, zeros.pause(), false);
        let mut made = Vec::new();
        loop {
            waited += pause;
            made.push(waited.as_micros() as u64);
            let hottest = ((1.0 - (-rate * waited.as_nanos() as f64).exp()) * 1000.0) as u64;
            match zeros.next_pause(hottest, waited, is_later, MOST) {
                None => return made,
                Some(more) => (pause, is_later) = (more, hottest >= HOTTEST_RETURNED_MIN),
            }
        }
    }

    #[test]
    fn the_first_drop_finds_the_pause_and_an_extra_scan_samples_the_others() {
        let mut zeros = ZeroPages::new(1);
        // A page in a millisecond.
        assert_eq!(scan_delays(&mut zeros, 1e-6), [100, 200, 400, 800, 3200]);
        assert_eq!(scan_delays(&mut zeros, 1e-6), [800, 3200]);
        // Slower than the longest pause resolves.
        assert_eq!(scan_delays(&mut zeros, 1e-10).last(), Some(&51_200));
        // Faster and faster, until there is no pause.
        let mut zeros = ZeroPages::new(1);
        let firsts: Vec<u64> = (0..4).map(|_| scan_delays(&mut zeros, 1e-3)[0]).collect();
        assert_eq!(firsts, [100, 50, 25, 0]);
    }

    #[test]
    fn only_time_in_which_the_program_ran_without_page_faults_counts() {
        let of = |us: u64, cpu_us: u64, faults, usual| {
            let now = CpuUsage { at_ns: us * 1000, cpu_ns: cpu_us * 1000, faults };
            let fault_cost = Duration::from_micros(1);
            run_share(CpuUsage::default(), now, None, fault_cost, usual)
        };
        let of_clock = |ran_us: f64| {
            let now = CpuUsage { at_ns: 4_000_000, ..CpuUsage::default() };
            run_share(CpuUsage::default(), now, Some(ran_us * 1e3), Duration::ZERO, 1.0)
        };
        // It waited for a CPU for most of four milliseconds: missing entries are not idle.
        assert!((of_clock(100.0) - 0.025).abs() < 1e-9 && of_clock(0.0) > 0.0);
        // The CPU time is too coarse for a short time, and not for a long one.
        assert!((of(400, 4000, 0, 1.0) - 1.0).abs() < 1e-9);
        assert!((of(400, 0, 0, 0.5) - 0.5).abs() < 1e-9);
        assert!((of(80_000, 40_000, 0, 1.0) - 0.5).abs() < 1e-9);
        assert!((of(400, 0, 100, 1.0) - 0.75).abs() < 1e-9);
        assert!((of(400, 0, 900, 1.0) - 0.25).abs() < 1e-9, "never all of it");
    }

    #[test]
    fn the_first_scan_counts_the_missing_pages_and_later_ones_those_that_returned() {
        let selected = SelectedRun { run: 0..16 * 4096, region: 0..2 << 20, pages: 512 };
        let mut of = DroppedRun::new(selected.clone(), 4096, 1000);
        assert_eq!(of.record_scan(4, 1500), None);
        assert_eq!((of.record_scan(6, 2500), of.is_known), (Some((12, 2, 1000)), false));
        assert_eq!((of.record_scan(9, 4500), of.is_known), (Some((10, 3, 2000)), true));
        assert_eq!(of.record_scan(16, 9000), None, "it is known already");
        assert_eq!(of.returned_permille(), 1000);
        // Almost all returned by the first scan.
        let mut hot = DroppedRun::new(selected, 4096, 1000);
        assert_eq!((hot.record_scan(13, 1500), hot.is_known), (Some((16, 13, 500)), true));
    }

    #[test]
    fn the_usual_cpu_share_is_that_of_the_last_period() {
        let mut zeros = ZeroPages::new(1);
        let of =
            |ms: u64, cpu_ms: u64| CpuUsage { at_ns: ms * 1_000_000, cpu_ns: cpu_ms * 1_000_000, faults: 0 };
        let parts =
            [of(0, 0), of(100, 200), of(120, 200), of(200, 210)].map(|now| zeros.cpu_share(now, || now));
        let wanted = [1.0, 2.0, 2.0, 0.1];
        assert!(parts.iter().zip(wanted).all(|(part, wanted)| (part - wanted).abs() < 1e-9), "{parts:?}");
    }
}
