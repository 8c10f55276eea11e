//! Scans of never-written memory: zero-page entries are dropped, and those that return are counted. The cost
//! is charged to the same account as that of sweeps.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::order_statistics::median;
use pagelab_model::random::SplitMix64;
use pagelab_model::size::format_bytes;
use pagelab_sys::clock;
use pagelab_sys::mapping::{Advice, Mapping};

use super::image::{self, MemoryUsage, SweptImage};
use super::profiler::AccessProfiler;
use super::scan_scheduler::RESIDENT_MIN;
use super::zero_pages::rescan::{self, DroppedRun, RescanContext};
use super::zero_pages::run_selection::{self, SelectedRun};
use super::{ProfileTarget, slow_down_permille};
use super::{sweep, zero_pages};
use crate::dontneed::CpuUsage;

/// Runs that are dropped in one stop of the program, at most, and at least. What a stop costs by itself, they
/// share.
const RUNS_PER_STOP_MAX: usize = 128;
const RUNS_PER_STOP_MIN: usize = 8;

/// Stops in one turn.
const STOPS_PER_TURN: u32 = 4;

/// Memory and rounds with which the cost of a return is measured, and the cost that is assumed otherwise.
const CALIBRATION_BYTES: u64 = 1 << 20;
const CALIBRATION_ROUNDS: usize = 3;
const ASSUMED_FAULT_COST: Duration = Duration::from_nanos(3000);

impl AccessProfiler<'_> {
    /// Whether entries of the zero page may be dropped; else why not, in a phrase.
    fn check_drop_allowed(&self) -> Result<(), String> {
        if !self.injector.can_inject() {
            return Err("injection is disabled (--no-split)".to_owned());
        }
        if self.request.drop_zero_pages {
            return Ok(());
        }
        Err(match self.request.target {
            ProfileTarget::Process(_) => "for a running process, enable it with --zero-page yes".to_owned(),
            ProfileTarget::Command(_) => "disabled by --zero-page no".to_owned(),
        })
    }

    /// Scans the never-written memory of an image, within its earned budget; `working` is the work of this
    /// turn.
    pub(super) fn scan_zero_pages(&mut self, index: usize, memory: MemoryUsage, working: Duration) {
        let lifetime = self.images[index].account.lifetime;
        let is_filled = self.images[index].zero_pages.check_filled(lifetime, memory.page_tables);
        if self.images[index].zero_pages.is_backing_off() {
            // Sweeps have all of the share meanwhile.
            return self.images[index].account.set_shares(memory.resident, 0, RESIDENT_MIN);
        }
        if self.images[index].zero_pages.listings == 0 && self.check_drop_allowed().is_ok() {
            let beside = memory.zero_mapped_max(self.page.bytes());
            self.images[index].account.set_shares(memory.resident, beside, RESIDENT_MIN);
        }
        if !is_filled || !self.duty_allows(working) {
            return;
        }
        if self.images[index].zero_pages.is_stale(lifetime) && !self.list_zero_ranges(index) {
            return;
        }
        let allowed = self.check_drop_allowed();
        let image = &mut self.images[index];
        let zero_bytes = if allowed.is_ok() { image.zero_pages.droppable_bytes } else { 0 };
        image.account.set_shares(memory.resident, zero_bytes, RESIDENT_MIN);
        if let (Err(why), true) = (&allowed, image.zero_pages.droppable_bytes >= zero_pages::ZERO_BYTES_MIN) {
            self.drop_failures.insert(image.process.pid, why.clone());
        }
        if zero_bytes < zero_pages::ZERO_BYTES_MIN {
            return;
        }
        let before = self.work_time();
        for _ in 0..STOPS_PER_TURN {
            let working = working + self.work_time().saturating_sub(before);
            if !self.duty_allows(working) || self.request.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.scan_batch(index) {
                Ok(true) => {}
                Ok(false) => return,
                // It ended, or became another program.
                Err(_) => return self.images[index].zero_pages.back_off(),
            }
        }
    }

    fn duty_allows(&self, working: Duration) -> bool {
        let permille = u128::from(self.request.duty_permille);
        self.is_unlimited()
            || (self.busy_time + working).as_nanos() * 1000 <= self.start.elapsed().as_nanos() * permille
    }

    fn list_zero_ranges(&mut self, index: usize) -> bool {
        let pid = self.images[index].process.pid;
        match self.images[index].list_zero_ranges(&self.root, self.huge) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let why = "this kernel does not report mappings of the zero page (PAGEMAP_SCAN, 6.7)";
                self.drop_failures.insert(pid, why.to_owned());
                self.images[index].zero_pages.back_off();
                false
            }
            Err(_) => false,
        }
    }

    /// One stop of the program, and the scans after it. `false`: no more stops in this turn.
    fn scan_batch(&mut self, index: usize) -> io::Result<bool> {
        let (page, huge) = (self.page.bytes(), self.huge);
        let fault_cost =
            *self.return_cost.get_or_insert_with(|| measure_return_cost(page).unwrap_or(ASSUMED_FAULT_COST));
        let process = self.images[index].process;
        let image = &mut self.images[index];
        let run_cost = fault_cost * u32::try_from(image.zero_pages.run_pages()).unwrap_or(u32::MAX)
            + image.zero_pages.run_stop_time;
        let runs_max = match slow_down_permille(self.request.duty_permille) {
            Some(permille) => {
                let room = image.account.drop_budget(permille).as_nanos() / run_cost.as_nanos().max(1);
                usize::try_from(room).unwrap_or(RUNS_PER_STOP_MAX).min(RUNS_PER_STOP_MAX)
            }
            None => RUNS_PER_STOP_MAX,
        };
        if runs_max < RUNS_PER_STOP_MIN {
            return Ok(false);
        }
        let pagemap = File::open(paths::process_file(process.pid, "pagemap"))?;
        let selected = image.zero_pages.select_runs(&pagemap, runs_max, page, huge)?;
        if selected.is_empty() {
            // The listed ranges are unmapped.
            return Ok(self.list_zero_ranges(index)
                && self.images[index].zero_pages.droppable_bytes >= zero_pages::ZERO_BYTES_MIN);
        }
        let Some((mut dropped, used)) = self.drop_runs(index, &selected, fault_cost) else {
            return Ok(false);
        };
        let table = self.injector.mapping_table(process.pid);
        self.images[index].set_mapping_table(table);
        self.rescan_until_known(index, &mut dropped, used)?;
        Ok(true)
    }

    /// Drops the entries of runs; returns the dropped runs and the process's CPU time. A return costs so
    /// much. `None`: none were.
    fn drop_runs(
        &mut self,
        index: usize,
        selected: &[SelectedRun],
        fault_cost: Duration,
    ) -> Option<(Vec<DroppedRun>, CpuUsage)> {
        let page = self.page.bytes();
        let process = self.images[index].process;
        let runs: Vec<_> = selected.iter().map(|run| run.run.clone()).collect();
        let wait_before = image::run_queue_wait(&self.root, process.pid);
        let dropped = match self.injector.drop_zero_pages(process, &runs) {
            Ok(dropped) => dropped,
            Err(_) if !process.is_running(&self.root) => return None,
            Err(reason) => {
                self.drop_failures.insert(process.pid, reason);
                self.images[index].zero_pages.back_off();
                return None;
            }
        };
        self.drop_failures.remove(&process.pid);
        *self.profiling_cost.stopped_ns.get_or_insert(0) += dropped.stopped_ns;
        self.zero_stop_ns += dropped.stopped_ns;
        // A wait for a CPU during a stop would also have happened without the stop.
        let stop_wait = image::run_queue_wait(&self.root, process.pid).saturating_sub(wait_before);
        let stopped = Duration::from_nanos(dropped.stopped_ns).saturating_sub(stop_wait);
        let pages: u64 = dropped.parts.iter().map(|part| (part.end - part.start) / page).sum();
        let image = &mut self.images[index];
        image.account.charge_drop(stopped + fault_cost * u32::try_from(pages).unwrap_or(u32::MAX));
        image.zero_pages.run_stop_time = stopped / u32::try_from(runs.len()).unwrap_or(1).max(1);
        image.zero_pages.record_drop(pages);
        let to_dropped_run = |part: &std::ops::Range<u64>| {
            let source_run =
                selected.iter().find(|run| run.run.start <= part.start && part.end <= run.run.end)?;
            Some(DroppedRun::new(
                SelectedRun { run: part.clone(), ..source_run.clone() },
                page,
                dropped.usage.at_ns,
            ))
        };
        Some((dropped.parts.iter().filter_map(to_dropped_run).collect(), dropped.usage))
    }

    /// Scans for returned entries until the rates are known, or the longest pause is over.
    fn rescan_until_known(
        &mut self,
        index: usize,
        dropped: &mut [DroppedRun],
        mut last_usage: CpuUsage,
    ) -> io::Result<()> {
        let pid = self.images[index].process.pid;
        let fault_cost = self.return_cost.unwrap_or(ASSUMED_FAULT_COST) * 4 / 5;
        let cpu_share = self.images[index].cpu_share(last_usage);
        // It was stopped during the drop; since then it ran with its usual share until this clock is read.
        let mut task_ns = self.images[index].zero_pages.task_ns(&self.root, pid);
        let mut unclocked_ns = clock::monotonic_ns().saturating_sub(last_usage.at_ns) as f64 * cpu_share;
        let (mut began, mut pause) = (Instant::now(), self.images[index].zero_pages.pause());
        let (mut is_first_scan, mut is_extra_scan) = (true, false);
        let returned = self.images[index].zero_pages.returned_entries;
        let had_returns = returned > 0;
        loop {
            if !is_first_scan {
                sweep::wait_unless_stopped(pause, self.request.stop);
            }
            let usage = CpuUsage::read(&self.root, pid);
            let task_now = self.images[index].zero_pages.task_ns(&self.root, pid);
            let ran_ns =
                task_ns.zip(task_now).map(|(from, to)| to.saturating_sub(from) as f64 + unclocked_ns);
            let run_share = rescan::run_share(last_usage, usage, ran_ns, fault_cost, cpu_share);
            let context = RescanContext { page: self.page.bytes(), huge: self.huge, run_share };
            (last_usage, task_ns, unclocked_ns) = (usage, task_now, 0.0);
            let waited = began.elapsed();
            let image = &mut self.images[index];
            let hottest = image.rescan_dropped(dropped, &context)?;
            if std::mem::take(&mut is_first_scan) && !dropped.iter().all(|run| run.is_known) {
                began = Instant::now();
                continue;
            }
            let next = image.zero_pages.next_pause(hottest, waited, is_extra_scan, self.request.pause_max);
            // No entry of any region returned, and in earlier scans some did: the program does something else
            // now. That is one moment among many; with longer and longer scans it would outweigh all others
            // in each region that happens to be selected in it.
            if had_returns && image.zero_pages.returned_entries == returned {
                return Ok(());
            }
            let is_over = dropped.iter().all(|run| run.is_known) || self.request.stop.load(Ordering::Relaxed);
            let Some(delay) = next.filter(|_| !is_over) else { return Ok(()) };
            (is_extra_scan, pause) = (hottest >= rescan::HOTTEST_RETURNED_MIN, delay);
        }
    }

    /// Adds the notes on never-written memory.
    pub(super) fn report_zero_pages(&mut self, is_unseen: bool) {
        if self.drop_failures.is_empty() && is_unseen && !self.images.iter().any(|i| i.zero_pages.stops > 0) {
            let is_listed = self.images.iter().any(|image| image.zero_pages.listings > 0);
            let most = self.images.iter().map(|image| image.zero_pages.droppable_max).max().unwrap_or(0);
            let reason = match self.check_drop_allowed() {
                Err(why) => format!("its entries were not dropped: {why}"),
                Ok(()) if is_listed && most < zero_pages::ZERO_BYTES_MIN => {
                    let least = format_bytes(Bytes(zero_pages::ZERO_BYTES_MIN));
                    format!("it was less than {least} at every scan")
                }
                Ok(()) => format!("{} before its entries could be dropped", self.end_phrase()),
            };
            let exact = self.exact_hint();
            self.add_note(format!(
                "memory that was only read is on the zero page, which has no accessed bits: not observed, \
                 because {reason}; hint: use {exact}"
            ));
        }
        self.report_returned_entries();
        let mut kept = std::collections::BTreeMap::new();
        for (why, bytes) in self.images.iter().flat_map(|image| &image.zero_pages.ineligible_bytes) {
            *kept.entry(*why).or_insert(0) += bytes;
        }
        for (why, bytes) in kept {
            self.add_note(format!(
                "{} of memory that was only read was not observed: {why}; hint: use {}",
                format_bytes(Bytes(bytes)),
                self.exact_hint()
            ));
        }
        for (pid, why) in std::mem::take(&mut self.drop_failures) {
            let image = self.images.iter().find(|image| image.process.pid == pid);
            let bytes = image.map_or(0, |image| image.zero_pages.droppable_max);
            if image.is_some_and(|image| image.zero_pages.stops > 0) {
                self.add_note(format!(
                    "stopped scanning process {pid} for memory that was never written: {why}"
                ));
            } else {
                self.add_note(format!(
                    "memory that was only read is on the zero page, which has no accessed bits; {} of \
                     process {pid} was not observed, because its entries were not dropped: {why}; hint: use \
                     {}",
                    format_bytes(Bytes(bytes)),
                    self.exact_hint()
                ));
            }
        }
    }

    fn report_returned_entries(&mut self) {
        let sum = |of: fn(&SweptImage) -> u64| self.images.iter().map(of).sum::<u64>();
        let (batches, most) =
            (sum(|image| image.zero_pages.stops), sum(|image| image.zero_pages.droppable_max));
        let (dropped, returned) =
            (sum(|image| image.zero_pages.dropped_entries), sum(|image| image.zero_pages.returned_entries));
        if batches > 0 {
            self.profiling_cost.zero_scans = Some(batches);
            self.profiling_cost.zero_pages = Some((dropped, returned));
            let scaled = match self.request.tlb_entries {
                Some(entries) => format!(
                    "entries that returned were accessed; their page walks are computed for a TLB of \
                     {entries} entries"
                ),
                None => {
                    "entries that returned were accessed, but not necessarily by page walks: the TLB of this \
                     processor is unknown"
                        .to_owned()
                }
            };
            let mixed = match sum(|image| image.sweeps) {
                0 => "",
                _ => {
                    "; other memory is observed by accessed bits, so the order between the two kinds is less \
                     certain than within each"
                }
            };
            self.add_note(format!(
                "{} was only read and is on the zero page: {dropped} entries were dropped in {batches} stops \
                 of all threads ({:.1} ms), and {returned} returned; {scaled}{mixed}",
                format_bytes(Bytes(most)),
                self.zero_stop_ns as f64 / 1e6
            ));
        }
    }
}

/// Cost of a page fault that maps the zero page on this machine, with a quarter more for page tables that are
/// in no cache. Measured in memory of our own.
fn measure_return_cost(page: u64) -> io::Result<Duration> {
    let mut memory = Mapping::anonymous(Bytes(CALIBRATION_BYTES), Bytes(page))?;
    let _ = memory.advise(0..CALIBRATION_BYTES, Advice::NoHugePage);
    let run = run_selection::RUN_PAGES * page;
    let mut order: Vec<u64> = (0..CALIBRATION_BYTES / run).collect();
    let mut random = SplitMix64::new(1);
    let mut costs_ns = Vec::new();
    for _ in 0..CALIBRATION_ROUNDS {
        random.shuffle(&mut order);
        let read_all = |memory: &Mapping| {
            let before = clock::thread_cpu_ns();
            for at in
                order.iter().flat_map(|nth| (0..run_selection::RUN_PAGES).map(move |n| nth * run + n * page))
            {
                std::hint::black_box(memory.words().get((at / size_of::<u64>() as u64) as usize).copied());
            }
            clock::thread_cpu_ns().saturating_sub(before)
        };
        memory.advise(0..CALIBRATION_BYTES, Advice::DontNeed)?;
        let (faults, baseline) = (read_all(&memory), read_all(&memory));
        costs_ns.push(faults.saturating_sub(baseline) / (CALIBRATION_BYTES / page));
    }
    let cost_ns = median(&mut costs_ns).unwrap_or_default();
    Ok(Duration::from_nanos((cost_ns * 5 / 4).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_costs_a_page_fault() {
        let cost = measure_return_cost(rustix::param::page_size() as u64).unwrap();
        assert!(cost > Duration::from_nanos(50) && cost < Duration::from_millis(1), "{cost:?}");
    }
}
