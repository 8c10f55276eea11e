//! Readings of a trial's processes: their status files, and the charges of their group.
//!
//! A reading opens two files of the group and one of each process. None of them makes the kernel walk page
//! tables.

use pagelab_formats::{process_status, swap};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{Absence, AbsenceReason, Counters, Reading};
use pagelab_sys::clock::thread_cpu_ns;

use super::time_budget::{TimeBudget, TypicalDuration};
use super::{ProbeReadings, ProbeSelection, ProbeTarget};

/// Initial time budget of readings, in addition to their share of the trial's time.
const GRACE_NS: u64 = 1_000_000;
/// Initial estimate of the time of one process, ns.
const LOOK_NS_GUESS: u64 = 100_000;
/// Maximum number of processes read. For a larger tree, the source states that it is truncated.
const PROCESSES_MAX: usize = 4000;

/// One process in one reading. Amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessSample {
    pub pid: u32,
    pub anonymous: u64,
    pub file: u64,
    pub shmem: u64,
    pub hugetlb: u64,
    pub page_tables: u64,
}

#[derive(Debug, Default)]
pub(super) struct TreeSample {
    pub processes: Vec<ProcessSample>,
    /// `memory.stat` of the group, and whether it is that of version 2.
    pub memory_stat: Option<(Counters, bool)>,
}

/// The processes over the time of the trial.
#[derive(Debug)]
pub(super) struct ProcessTree {
    root: Root,
    is_selected: bool,
    has_page_tables: bool,
    time_budget: TimeBudget,
    typical_look: TypicalDuration,
    /// Earliest time of the next reading, ns since the trial began.
    next_look_ns: u64,
    scan_count: u64,
    last_sample: TreeSample,
    page_tables: PeakAndLast,
    page_tables_source: &'static str,
    memory_usage: PeakAndLast,
    /// Swap of the group, its page cache, and the use of all swap areas.
    swap: PeakAndLast,
    file: PeakAndLast,
    swap_used: PeakAndLast,
    has_kernel_peak: Option<bool>,
    is_truncated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeakAndLast {
    /// Both; `None` before the first.
    pub peak_and_last: Option<(u64, u64)>,
}

impl PeakAndLast {
    pub(super) fn record(&mut self, value: u64) {
        let highest = self.peak_and_last.map_or(value, |(highest, _)| highest.max(value));
        self.peak_and_last = Some((highest, value));
    }

    pub(super) fn peak_bytes(self) -> Option<u64> {
        self.peak_and_last.map(|(highest, _)| highest)
    }

    pub(super) fn last_bytes(self) -> Option<u64> {
        self.peak_and_last.map(|(_, last)| last)
    }
}

/// Reason for the absence of readings during a short trial.
pub(super) fn too_short_absence() -> Absence {
    Absence::new("scans of the running trial", AbsenceReason::Undefined, "it exited before the first scan")
        .with_hint("use a workload that runs for a second or more")
}

impl ProcessTree {
    pub(super) fn new(root: &Root, selection: &ProbeSelection) -> ProcessTree {
        ProcessTree {
            root: root.clone(),
            is_selected: selection.huge || selection.page_tables,
            has_page_tables: selection.page_tables,
            time_budget: TimeBudget::new(1000 * selection.share_permille, GRACE_NS),
            typical_look: TypicalDuration(LOOK_NS_GUESS),
            next_look_ns: 0,
            scan_count: 0,
            last_sample: TreeSample::default(),
            page_tables: PeakAndLast::default(),
            page_tables_source: "VmPTE of status, summed over its processes",
            memory_usage: PeakAndLast::default(),
            swap: PeakAndLast::default(),
            file: PeakAndLast::default(),
            swap_used: PeakAndLast::default(),
            has_kernel_peak: None,
            is_truncated: false,
        }
    }

    /// Takes a reading if the budget permits it and the trial still has processes.
    pub(super) fn sample(&mut self, target: &ProbeTarget<'_>, elapsed_ns: u64) -> Option<&TreeSample> {
        let may_read =
            elapsed_ns >= self.next_look_ns && self.time_budget.can_afford(elapsed_ns, self.typical_look.0);
        if !self.is_selected || !may_read {
            return None;
        }
        let cpu_ns = thread_cpu_ns();
        let processes = self.sample_processes(target);
        let stat = target.cgroup.and_then(|group| group.read_memory_stat().ok());
        // If the kernel keeps the peak itself, the usage is not read.
        let keeps_peak = *self
            .has_kernel_peak
            .get_or_insert_with(|| target.cgroup.is_none_or(|group| group.read_memory_peak().is_ok()));
        if let Some(usage) =
            target.cgroup.filter(|_| !keeps_peak).and_then(|group| group.read_memory_usage().ok())
        {
            self.memory_usage.record(usage.0);
        }
        let has_processes = !processes.is_empty();
        if has_processes {
            self.record_swap(target, stat.as_ref());
            self.scan_count += 1;
            // Version 2 reports it for the group (5.11), with the tables of processes that have just ended.
            let cgroup_page_tables =
                stat.as_ref().and_then(|(stat, is_v2)| stat.get("pagetables").filter(|_| *is_v2));
            if cgroup_page_tables.is_some() {
                self.page_tables_source = "pagetables of memory.stat of its cgroup";
            }
            let page_table_sum = processes.iter().map(|process| process.page_tables).sum();
            self.page_tables.record(cgroup_page_tables.unwrap_or(page_table_sum));
            self.last_sample = TreeSample { processes, memory_stat: stat };
        }
        let took_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        self.time_budget.spend(elapsed_ns, took_ns, self.typical_look.0);
        self.typical_look.update(took_ns);
        // Without this the initial budget would be spent in a burst of readings at the start, where there is
        // least to observe.
        self.next_look_ns = elapsed_ns.saturating_add(
            self.typical_look.0.saturating_mul(500_000) / self.time_budget.share_ppm().max(1),
        );
        has_processes.then_some(&self.last_sample)
    }

    /// The values of the group, and beside them those of the swap areas.
    fn record_swap(&mut self, target: &ProbeTarget<'_>, stat: Option<&(Counters, bool)>) {
        let line = |v1: &str, v2: &str| stat.and_then(|(stat, is_v2)| stat.get(if *is_v2 { v2 } else { v1 }));
        if let Some(file) = line("total_cache", "file") {
            self.file.record(file);
        }
        let in_stat = stat.filter(|(_, is_v2)| !is_v2).and_then(|(stat, _)| stat.get("total_swap"));
        let in_file = || target.cgroup.and_then(|group| group.read_swap_usage().ok()).map(|bytes| bytes.0);
        if let Some(swap) = in_stat.or_else(in_file) {
            self.swap.record(swap);
        }
        let areas = self.root.read(paths::SWAPS).ok().and_then(|text| swap::parse(&text).ok());
        if let Some(areas) = areas {
            self.swap_used.record(areas.iter().map(|area| area.used.0).sum());
        }
    }

    fn sample_processes(&mut self, target: &ProbeTarget<'_>) -> Vec<ProcessSample> {
        let descendant_pids = || list_descendants(&self.root, u32::try_from(target.pid).unwrap_or(0));
        let mut pids =
            target.cgroup.and_then(|group| group.list_processes().ok()).unwrap_or_else(descendant_pids);
        self.is_truncated |= pids.len() > PROCESSES_MAX;
        pids.truncate(PROCESSES_MAX);
        pids.into_iter().filter_map(|pid| self.read_process(pid)).collect()
    }

    /// `None` for a process that has ended, or has no memory: a zombie.
    fn read_process(&self, pid: u32) -> Option<ProcessSample> {
        let text = self.root.read(&paths::process_file(pid, "status")).ok()?;
        let status = process_status::parse(&text).ok()?;
        let bytes = |name: &str| status.amount_bytes(name).map(|bytes| bytes.0);
        Some(ProcessSample {
            pid,
            page_tables: bytes("VmPTE")?,
            anonymous: bytes("RssAnon").unwrap_or(0),
            file: bytes("RssFile").unwrap_or(0),
            shmem: bytes("RssShmem").unwrap_or(0),
            hugetlb: bytes("HugetlbPages").unwrap_or(0),
        })
    }

    /// The highest charge of the group at any reading, for kernels that keep no peak.
    pub(super) fn sampled_peak(&self) -> Reading<u64> {
        self.memory_usage.peak_bytes().ok_or_else(too_short_absence)
    }

    pub(super) fn add_measures(&self, readings: &mut ProbeReadings) {
        let no_reading = || match self.scan_count {
            0 => too_short_absence(),
            _ => {
                let detail = "its cgroup does not report it, or the trial has no cgroup";
                Absence::new("memory.stat", AbsenceReason::NotThere, detail)
            }
        };
        let highest = |of: &str| format!("{of}, the highest of {} scans", self.scan_count);
        let mut push_peak = |name: &str, better, peak: PeakAndLast, of: &str| {
            readings.push_bytes(name, better, peak.peak_bytes().ok_or_else(no_reading), &highest(of));
        };
        let swap_source = "total_swap of memory.stat, or memory.swap.current, of its cgroup";
        push_peak("group.swap", BetterDirection::Lower, self.swap, swap_source);
        let file_source = "total_cache (v1) or file (v2) in its cgroup's memory.stat";
        push_peak("group.file", BetterDirection::Neither, self.file, file_source);
        let areas_source = format!("{}, whole machine", paths::SWAPS);
        push_peak("swap.used", BetterDirection::Lower, self.swap_used, &areas_source);
        if !self.has_page_tables {
            return;
        }
        let truncation = if self.is_truncated { ", of the first 4000 processes" } else { "" };
        let source =
            format!("{}, the highest of {} scans{truncation}", self.page_tables_source, self.scan_count);
        let peak = self.page_tables.peak_bytes().ok_or_else(too_short_absence);
        readings.push_bytes("page_tables", BetterDirection::Lower, peak, &source);
        let last = self.page_tables.last_bytes().ok_or_else(too_short_absence);
        readings.push_bytes("page_tables.last", BetterDirection::Lower, last, self.page_tables_source);
    }
}

/// The process and its descendants, as far as the kernel lists children (CONFIG_PROC_CHILDREN). Processes
/// whose parent has ended are not found.
fn list_descendants(root: &Root, first: u32) -> Vec<u32> {
    let mut found = vec![first];
    let mut at = 0;
    while let Some(&pid) = found.get(at).filter(|_| at < PROCESSES_MAX) {
        at += 1;
        for thread in root.list_dir(&paths::process_file(pid, "task")).unwrap_or_default() {
            let Ok(text) = root.read(&paths::process_file(pid, &format!("task/{thread}/children"))) else {
                continue;
            };
            let children = String::from_utf8_lossy(&text).into_owned();
            for child in children.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
                if !found.contains(&child) {
                    found.push(child);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_peak_keeps_the_highest_and_the_last() {
        let mut peak = PeakAndLast::default();
        assert_eq!((peak.peak_bytes(), peak.last_bytes()), (None, None));
        for value in [3, 9, 4] {
            peak.record(value);
        }
        assert_eq!((peak.peak_bytes(), peak.last_bytes()), (Some(9), Some(4)));
    }

    #[test]
    fn descendants_are_found_without_a_group() {
        let mut command = Command::new("sh");
        let script = "(read x <&3; :) & (sh -c 'read x <&3; :') & echo ready; wait";
        command.args(["-c", &format!("exec 3<&0; {script}")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        let root = Root::live();
        let listed = root.read(&paths::process_file(child.id(), &format!("task/{}/children", child.id())));
        let found = list_descendants(&root, child.id());
        let tree = ProcessTree::new(&root, &ProbeSelection::default());
        let process = tree.read_process(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(listed.is_err() || found.len() >= 3, "{found:?}");
        assert!(process.page_tables > 0 && process.file > 0, "{process:?}");
        assert_eq!(tree.read_process(child.id()), None, "it has ended");
    }
}
