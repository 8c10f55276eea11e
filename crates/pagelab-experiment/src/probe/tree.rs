//! The processes of a trial at each look: what their status files say, and what their group is charged for.
//!
//! A look reads two files of the group and one of each process. None of them makes the kernel walk a page
//! table.

use pagelab_formats::{status, swaps};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::experiment::Better;
use pagelab_model::{Absence, AbsentWhy, Counters, Reading};
use pagelab_sys::clock::thread_cpu_ns;

use super::allowance::{Allowance, Usual};
use super::{Found, Target, Wanted};

/// Beside their share of the trial's time looks may take a millisecond at its start.
const GRACE_NS: u64 = 1_000_000;
/// First guess of what a look at one process takes, ns.
const LOOK_NS: u64 = 100_000;
/// Processes looked at, at most. A tree of more is looked at in part, and that is said.
const PROCESSES_MAX: usize = 4000;

/// One process at one look. Amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    pub anonymous: u64,
    pub file: u64,
    pub shmem: u64,
    pub hugetlb: u64,
    pub page_tables: u64,
}

/// What one look saw.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub processes: Vec<Process>,
    /// `memory.stat` of the group, and whether it is that of version 2.
    pub stat: Option<(Counters, bool)>,
}

/// The processes over the time of the trial.
#[derive(Debug)]
pub(super) struct Tree {
    root: Root,
    is_wanted: bool,
    tells_page_tables: bool,
    allowance: Allowance,
    /// What a look takes.
    usual: Usual,
    /// When the next one may be, ns since the trial began.
    due_ns: u64,
    looks: u64,
    last: Look,
    page_tables: Peak,
    page_tables_source: &'static str,
    usage: Peak,
    /// What the group has in swap, what page cache it is charged for, and what is in all swap areas.
    swap: Peak,
    file: Peak,
    swap_used: Peak,
    keeps_peak: Option<bool>,
    is_cut: bool,
}

/// A value at its highest and at its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peak {
    /// Both; `None` before the first.
    pub seen: Option<(u64, u64)>,
}

impl Peak {
    pub(super) fn saw(&mut self, value: u64) {
        let highest = self.seen.map_or(value, |(highest, _)| highest.max(value));
        self.seen = Some((highest, value));
    }

    pub(super) fn highest(self) -> Option<u64> {
        self.seen.map(|(highest, _)| highest)
    }

    pub(super) fn last(self) -> Option<u64> {
        self.seen.map(|(_, last)| last)
    }
}

/// Why nothing that is looked at while the trial runs is known of a short one.
pub(super) fn too_short() -> Absence {
    Absence::new("looks at the running trial", AbsentWhy::Undefined, "it ended before the first look at it")
        .or("a workload that runs for a second or more")
}

impl Tree {
    pub(super) fn new(root: &Root, wanted: &Wanted) -> Tree {
        Tree {
            root: root.clone(),
            is_wanted: wanted.huge || wanted.page_tables,
            tells_page_tables: wanted.page_tables,
            allowance: Allowance::new(1000 * wanted.share_permille, GRACE_NS),
            usual: Usual(LOOK_NS),
            due_ns: 0,
            looks: 0,
            last: Look::default(),
            page_tables: Peak::default(),
            page_tables_source: "VmPTE of status, summed over its processes",
            usage: Peak::default(),
            swap: Peak::default(),
            file: Peak::default(),
            swap_used: Peak::default(),
            keeps_peak: None,
            is_cut: false,
        }
    }

    /// Looks, where the allowance permits it and the trial still has processes.
    pub(super) fn look(&mut self, target: &Target<'_>, elapsed_ns: u64) -> Option<&Look> {
        let may = elapsed_ns >= self.due_ns && self.allowance.permits(elapsed_ns, self.usual.0);
        if !self.is_wanted || !may {
            return None;
        }
        let cpu_ns = thread_cpu_ns();
        let processes = self.processes(target);
        let stat = target.group.and_then(|group| group.memory_stat().ok());
        // Where the kernel keeps the peak itself, the usage need not be looked at.
        let keeps_peak =
            *self.keeps_peak.get_or_insert_with(|| target.group.is_none_or(|group| group.peak().is_ok()));
        if let Some(usage) = target.group.filter(|_| !keeps_peak).and_then(|group| group.usage().ok()) {
            self.usage.saw(usage.0);
        }
        let has_any = !processes.is_empty();
        if has_any {
            self.see_swap(target, stat.as_ref());
            self.looks += 1;
            // Version 2 knows it of the group (5.11), with the tables of those who just ended.
            let charged = stat.as_ref().and_then(|(stat, is_v2)| stat.get("pagetables").filter(|_| *is_v2));
            if charged.is_some() {
                self.page_tables_source = "pagetables of memory.stat of its cgroup";
            }
            let summed = processes.iter().map(|process| process.page_tables).sum();
            self.page_tables.saw(charged.unwrap_or(summed));
            self.last = Look { processes, stat };
        }
        let took_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        self.allowance.spend(elapsed_ns, took_ns, self.usual.0);
        self.usual.saw(took_ns);
        // Without this the grace would go in a burst of looks at the start, where there is least to see.
        self.due_ns = elapsed_ns
            .saturating_add(self.usual.0.saturating_mul(500_000) / self.allowance.share_ppm().max(1));
        has_any.then_some(&self.last)
    }

    /// What the group says, and beside it what the areas themselves say.
    fn see_swap(&mut self, target: &Target<'_>, stat: Option<&(Counters, bool)>) {
        let line = |v1: &str, v2: &str| stat.and_then(|(stat, is_v2)| stat.get(if *is_v2 { v2 } else { v1 }));
        if let Some(file) = line("total_cache", "file") {
            self.file.saw(file);
        }
        let in_stat = stat.filter(|(_, is_v2)| !is_v2).and_then(|(stat, _)| stat.get("total_swap"));
        let in_file = || target.group.and_then(|group| group.swap_usage().ok()).map(|bytes| bytes.0);
        if let Some(swap) = in_stat.or_else(in_file) {
            self.swap.saw(swap);
        }
        let areas = self.root.read(paths::SWAPS).ok().and_then(|text| swaps::parse(&text).ok());
        if let Some(areas) = areas {
            self.swap_used.saw(areas.iter().map(|area| area.used.0).sum());
        }
    }

    fn processes(&mut self, target: &Target<'_>) -> Vec<Process> {
        let own = || descendants(&self.root, u32::try_from(target.pid).unwrap_or(0));
        let mut pids = target.group.and_then(|group| group.processes().ok()).unwrap_or_else(own);
        self.is_cut |= pids.len() > PROCESSES_MAX;
        pids.truncate(PROCESSES_MAX);
        pids.into_iter().filter_map(|pid| self.process(pid)).collect()
    }

    /// `None` for one that has ended meanwhile, or has no memory: a zombie.
    fn process(&self, pid: u32) -> Option<Process> {
        let text = self.root.read(&paths::process(pid, "status")).ok()?;
        let status = status::parse(&text).ok()?;
        let bytes = |name: &str| status.bytes(name).map(|bytes| bytes.0);
        Some(Process {
            pid,
            page_tables: bytes("VmPTE")?,
            anonymous: bytes("RssAnon").unwrap_or(0),
            file: bytes("RssFile").unwrap_or(0),
            shmem: bytes("RssShmem").unwrap_or(0),
            hugetlb: bytes("HugetlbPages").unwrap_or(0),
        })
    }

    /// The most that the group was charged for at any look: where the kernel keeps no peak.
    pub(super) fn sampled_usage(&self) -> Reading<u64> {
        self.usage.highest().ok_or_else(too_short)
    }

    pub(super) fn measures(&self, found: &mut Found) {
        let no_file = || match self.swap.seen.or(self.file.seen).is_some() || self.looks > 0 {
            true => {
                Absence::new("memory.stat", AbsentWhy::NotThere, "its cgroup does not tell, or it has none")
            }
            false => too_short(),
        };
        let highest = |of: &str| format!("{of}, the highest of {} looks", self.looks);
        let mut put = |name: &str, better, peak: Peak, of: &str| {
            found.bytes(name, better, peak.highest().ok_or_else(no_file), &highest(of));
        };
        put(
            "group.swap",
            Better::Lower,
            self.swap,
            "total_swap of memory.stat, or memory.swap.current, of its cgroup",
        );
        put("group.file", Better::Neither, self.file, "total_cache or file of memory.stat of its cgroup");
        put("swap.used", Better::Lower, self.swap_used, &format!("{}, of the whole machine", paths::SWAPS));
        if !self.tells_page_tables {
            return;
        }
        let cut = if self.is_cut { ", of the first 4000 processes" } else { "" };
        let source = format!("{}, the highest of {} looks{cut}", self.page_tables_source, self.looks);
        let peak = self.page_tables.highest().ok_or_else(too_short);
        found.bytes("page_tables", Better::Lower, peak, &source);
        let last = self.page_tables.last().ok_or_else(too_short);
        found.bytes("page_tables.last", Better::Lower, last, self.page_tables_source);
    }
}

/// The process and those that it started, as far as the kernel lists children (CONFIG_PROC_CHILDREN). Those
/// whose parent has ended are not found.
fn descendants(root: &Root, first: u32) -> Vec<u32> {
    let mut found = vec![first];
    let mut at = 0;
    while let Some(&pid) = found.get(at).filter(|_| at < PROCESSES_MAX) {
        at += 1;
        for thread in root.list(&paths::process(pid, "task")).unwrap_or_default() {
            let Ok(text) = root.read(&paths::process(pid, &format!("task/{thread}/children"))) else {
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
        let mut peak = Peak::default();
        assert_eq!((peak.highest(), peak.last()), (None, None));
        for value in [3, 9, 4] {
            peak.saw(value);
        }
        assert_eq!((peak.highest(), peak.last()), (Some(9), Some(4)));
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
        let listed = root.read(&paths::process(child.id(), &format!("task/{}/children", child.id())));
        let found = descendants(&root, child.id());
        let tree = Tree::new(&root, &Wanted::default());
        let process = tree.process(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(listed.is_err() || found.len() >= 3, "{found:?}");
        assert!(process.page_tables > 0 && process.file > 0, "{process:?}");
        assert_eq!(tree.process(child.id()), None, "it has ended");
    }
}
