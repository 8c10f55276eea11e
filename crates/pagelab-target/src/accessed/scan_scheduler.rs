//! The schedule: the processes to be swept, how often, and the cost.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagelab_sys::clock;
use pagelab_sys::scheduling::PinnedThread;

use super::image::MemoryUsage;
use super::profiler::{AccessProfiler, TICK};
use super::split::SplitState;
use super::{image, slow_down_permille, sweep};

/// Smallest memory that is swept.
pub(super) const RESIDENT_MIN: u64 = 4 << 20;

/// Sweeps while mappings are split once, as long as there is time for them.
const SWEEPS_PER_SPLIT: u32 = 4;

/// The longest time by which further sweeps delay the merge.
const SPLIT_TIME_MAX: Duration = Duration::from_millis(50);

/// CPU time of a first sweep by page in memory: reading the mappings, clearing, and scanning.
const PAGE_WORK: Duration = Duration::from_nanos(200);

/// The same by zero-page entry.
const ENTRY_WORK: Duration = Duration::from_nanos(100);

/// Interval of checks for memory pressure.
const PRESSURE_RECHECK: Duration = Duration::from_millis(200);

/// Pages whose bits are cleared, and scanned, in some 50 ms each: other programs can do without the CPU for
/// so long.
const SHORT_SWEEP_PAGES_MAX: u64 = 1 << 20;

/// Turns at each permille of duty while the time doubles, …
const TURNS_PER_PERMILLE: u32 = 4;
/// … but not further than this.
const TICK_MAX: Duration = Duration::from_millis(250);

/// Interval at which the accessed pages of a process are read that cannot afford a sweep.
const RESCAN_INTERVAL: Duration = Duration::from_secs(1);

impl AccessProfiler<'_> {
    /// Whether sweeps are requested all the time.
    pub(super) fn is_unlimited(&self) -> bool {
        slow_down_permille(self.request.duty_permille).is_none()
    }

    /// The time until the next turn. Checking whether one is due must cost less than the turn: the time grows
    /// if the duty is small.
    pub(super) fn time_to_next_turn(&self) -> Duration {
        if self.is_unlimited() {
            return Duration::ZERO;
        }
        let part = self.start.elapsed() / (self.request.duty_permille.max(1) * TURNS_PER_PERMILLE);
        part.clamp(TICK, TICK_MAX)
    }

    /// Sweeps each process that is large enough and whose time has earned it, once. Returns the cost.
    pub(super) fn run_turn(&mut self) -> Duration {
        let before = self.work_time();
        if self.pressure_checked.is_none_or(|since| since.elapsed() >= PRESSURE_RECHECK) {
            if let Some(why) = (self.request.memory_pressure)() {
                self.add_note(format!("scans were skipped: {why}"));
                return self.work_time().saturating_sub(before);
            }
            self.pressure_checked = Some(Instant::now());
        }
        let count = self.images.len();
        // The first process is another one each time, since the rest of the duty may be enough for one only.
        let first = self.sweeps as usize % count.max(1);
        for index in (first..count).chain(0..first) {
            if !self.images[index].is_alive || self.request.stop.load(Ordering::Relaxed) {
                continue;
            }
            if !self.images[index].process.is_running(&self.root) {
                self.images[index].is_alive = false;
                continue;
            }
            let memory = self.images[index].read_memory(&self.root);
            let resident = memory.resident;
            self.images[index].update_lifetime(&self.root, resident, &self.request.page_cost);
            let working = self.work_time().saturating_sub(before);
            self.scan_zero_pages(index, memory, working);
            let lifetime = self.images[index].account.lifetime;
            let is_filled = self.images[index].growth.check_steady(lifetime, resident);
            let working = self.work_time().saturating_sub(before);
            if resident < RESIDENT_MIN || !is_filled || !self.can_afford_sweep(index, memory, working) {
                continue;
            }
            let work_start = self.work_time();
            self.images[index].growth.record_sweep(lifetime);
            if self.sweep_image(index, resident).is_err() {
                // It ended, or became another program.
                self.images[index].is_alive = self.images[index].process.is_running(&self.root);
            }
            let work = self.work_time().saturating_sub(work_start);
            self.images[index].last_turn_work = Some(work);
            self.sweep_time += work;
        }
        self.work_time().saturating_sub(before)
    }

    /// Whether both the duty and its time have earned a sweep of it; `working` is the work of this turn.
    fn can_afford_sweep(&mut self, index: usize, memory: MemoryUsage, working: Duration) -> bool {
        let Some(permille) = slow_down_permille(self.request.duty_permille) else { return true };
        let (page, pid) = (self.page.bytes(), self.images[index].process.pid);
        let resident = memory.resident;
        let pages = resident / page;
        let to_u32 = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let entries = memory.zero_mapped_max(page) / page;
        let first = PAGE_WORK.saturating_mul(to_u32(pages)) + ENTRY_WORK.saturating_mul(to_u32(entries));
        let sweep_work = self.images[index].last_turn_work.unwrap_or(first);
        let earned = self.start.elapsed().as_nanos() * u128::from(self.request.duty_permille) / 1000;
        let sweep_budget = earned as f64 * self.images[index].account.sweep_share();
        if (self.busy_time + working + sweep_work).as_nanos() > earned
            || (self.sweep_time + sweep_work).as_nanos() as f64 > sweep_budget
        {
            return false;
        }
        let pieces = if self.can_split(index) { resident / self.huge } else { 0 };
        let image = &mut self.images[index];
        // If it waits for a CPU anyway, sweeps take one from it.
        let cpu_taken = first.mul_f64(image.waited_share());
        if image.account.allows(image.account.expected_sweep_cost(pages, pieces, cpu_taken), permille) {
            return true;
        }
        if !image.account.has_costs() || image.last_scan.elapsed() < RESCAN_INTERVAL {
            return false;
        }
        // Pages that were not accessed since the last sweep are not due again.
        image.last_scan = Instant::now();
        let Some((resident, accessed)) = sweep::read_accessed_bytes(&self.root, pid) else { return false };
        image.account.record_scan(resident / page, accessed / page);
        image.account.allows(image.account.expected_sweep_cost(resident / page, pieces, cpu_taken), permille)
    }

    fn can_split(&self, index: usize) -> bool {
        !self.images[index].is_unsplittable && self.injector.can_inject()
    }

    /// CPU time of sweeps: pagelab's, the splitter's, and the same amount again for the system calls that the
    /// splitter or the supervisor injected into the program. Waiting for a CPU slows no other process.
    pub(super) fn work_time(&self) -> Duration {
        let own = clock::process_cpu_ns(std::process::id()).unwrap_or_else(|_| clock::thread_cpu_ns());
        Duration::from_nanos(own + self.injector.cpu_ns() + self.injector.calls_cpu_ns())
    }

    /// Splits, sweeps a few times and merges; the cost is charged to the account.
    fn sweep_image(&mut self, index: usize, resident: u64) -> io::Result<()> {
        let pid = self.images[index].process.pid;
        let (cost, waited, began) =
            (self.work_time(), image::run_queue_wait(&self.root, pid), Instant::now());
        let (stopped, in_stops) = (self.profiling_cost.stopped_ns.unwrap_or(0), self.stop_wait_ns);
        let result = self.sweep_repeatedly(index, resident);
        let work = self.work_time().saturating_sub(cost);
        let waited = image::run_queue_wait(&self.root, pid).saturating_sub(waited);
        let stopped = self.profiling_cost.stopped_ns.unwrap_or(0).saturating_sub(stopped);
        let stopped_time = stopped.saturating_sub(self.stop_wait_ns.saturating_sub(in_stops));
        // CPU waiting beyond the usual is charged to sweeps, up to their work.
        let usual_wait = began.elapsed().mul_f64(self.images[index].waited_share());
        let cpu_taken = waited.saturating_sub(usual_wait).min(work);
        self.images[index].account.charge_stop(Duration::from_nanos(stopped_time) + cpu_taken);
        result
    }

    fn sweep_repeatedly(&mut self, index: usize, resident: u64) -> io::Result<()> {
        let not_found = |_| io::Error::from(io::ErrorKind::NotFound);
        let process = self.images[index].process;
        let page = self.page.bytes();
        let has_two_cpus = PinnedThread::allowed_cpus().len() > 1;
        let image = &mut self.images[index];
        let mappings = image.read_mappings(&self.root, self.huge).map_err(not_found)?;
        let split = match self.split_mappings(index, &mappings) {
            SplitState::Whole => None,
            SplitState::Split(ranges, since) => Some((ranges, since)),
            SplitState::Postponed => return Ok(()),
        };
        let began = Instant::now();
        let mut pages = resident / page;
        let mut results = Vec::new();
        for _ in 0..SWEEPS_PER_SPLIT {
            let image = &mut self.images[index];
            let pause = Duration::from_nanos(image.pause_ns);
            image.account.record_clear(pages);
            let result = sweep::sweep_process(
                &self.root,
                process.pid,
                pages <= SHORT_SWEEP_PAGES_MAX && has_two_cpus,
                &mut image.clear_refs,
                pause,
                self.request.stop,
            );
            if let Ok(result) = &result {
                let (resident, accessed) = result.accessed_bytes();
                pages = resident / page;
                image.account.record_scan(pages, accessed / page);
                image.last_scan = Instant::now();
            }
            let next_cost = image.account.repeat_sweep_cost();
            let is_too_costly = slow_down_permille(self.request.duty_permille)
                .is_some_and(|permille| !image.account.allows(next_cost, permille));
            results.push(result);
            let each = began.elapsed() / results.len() as u32;
            let is_late =
                began.elapsed() + each > SPLIT_TIME_MAX || self.request.stop.load(Ordering::Relaxed);
            if is_late || is_too_costly || results.last().is_some_and(Result::is_err) {
                break;
            }
        }
        if let Some((ranges, since)) = split {
            self.merge_ranges(process, &ranges, since);
        }
        let table = self.injector.mapping_table(process.pid);
        self.images[index].set_mapping_table(table);
        for result in results {
            self.images[index].add_sweep(&result?, page, self.huge, self.request.pause_max)?;
            self.sweeps += 1;
        }
        Ok(())
    }
}
