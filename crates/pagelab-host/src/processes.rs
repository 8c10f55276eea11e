//! How much of the largest processes is backed by huge pages, within a time budget.
//!
//! `statm` is cheap and finds the largest; `smaps_rollup` walks the page tables of a process under its
//! mmap lock, so it is read for a few only, is timed, and is left out where by the process's size it would
//! take too long: a read that has begun cannot be stopped.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use pagelab_formats::{ParseError, smaps, status};
use pagelab_model::process::{ProcessCoverage, ProcessMemory, SmapsRollup};
use pagelab_model::{Absence, AbsentWhy, Bytes, PageSize, Pages, Reading};
use rustix::io::Errno;

use crate::paths;
use crate::reader::Reader;
use crate::root::TEXT_MAX;

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Processes looked into at most.
    pub processes_max: usize,
    /// Time for the page tables of one process.
    pub each: Duration,
    /// Time for all together.
    pub total: Duration,
    /// Whether to read whole smaps as well, for the memory that is eligible.
    pub deep: bool,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            processes_max: 10,
            each: Duration::from_millis(200),
            total: Duration::from_secs(2),
            deep: false,
        }
    }
}

/// Cost of walking one resident base page that is assumed as long as no slower walk was measured; some 10 to
/// 30 ns are usual, and much less where huge pages are.
const WALK_PAGE_PS: u64 = 30_000;
/// Resident pages from which a measured walk says more than the assumption.
const PAGES_TO_MEASURE: u64 = 10_000;

/// Reads the largest processes. Kernel threads and processes that end meanwhile are passed over.
pub fn read(reader: &Reader<'_>, page_size: PageSize, budget: &Budget) -> Reading<ProcessCoverage> {
    read_these(reader, page_size, budget, |_| true)
}

/// The same for the largest of those processes that are wanted.
pub fn read_these(
    reader: &Reader<'_>,
    page_size: PageSize,
    budget: &Budget,
    is_wanted: impl Fn(u32) -> bool,
) -> Reading<ProcessCoverage> {
    let started = Instant::now();
    let names = reader.root().list(paths::PROC)?;
    let pids: Vec<u32> =
        names.iter().filter_map(|name| name.parse().ok()).filter(|&p| is_wanted(p)).collect();
    if pids.is_empty() && !reader.root().is_live() {
        return Err(Absence::new(
            reader.root().show(paths::PROC),
            AbsentWhy::NotSaved,
            "no process in the saved tree",
        ));
    }
    if reader.root().is_live()
        && let Err(absence) = reader.root().stream(paths::SELF_SMAPS_ROLLUP)
    {
        let no_rollup = absence.why == AbsentWhy::NotThere;
        return Err(if no_rollup { absence.or("boot Linux 4.14 or later") } else { absence });
    }
    let mut look = Look { reader, page_size, budget, ps_per_page: WALK_PAGE_PS };
    let mut coverage = ProcessCoverage::default();
    let mut sizes: Vec<(Pages, u32)> = Vec::with_capacity(pids.len());
    for pid in pids {
        if started.elapsed() > budget.total {
            coverage.budget_spent = true;
            break;
        }
        if let Some(resident) = look.resident(pid).filter(|resident| resident.0 > 0) {
            sizes.push((resident, pid));
        }
    }
    // A capture holds the largest alone, and says how many there were.
    let seen = reader.root().manifest().and_then(|manifest| manifest.processes_seen);
    coverage.processes_total = seen.unwrap_or(sizes.len() as u64);
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut found = 0;
    for (resident, pid) in sizes {
        if found == budget.processes_max {
            break;
        }
        if started.elapsed() > budget.total {
            coverage.budget_spent = true;
            break;
        }
        match look.process(pid, resident) {
            Ok(Some(process)) => coverage.processes.push(process),
            Ok(None) => continue,
            Err(Skipped::OverBudget) => coverage.over_budget += 1,
            Err(Skipped::Unreadable(absence)) => {
                let count = coverage.unreadable.as_ref().map_or(1, |(count, _)| count + 1);
                let first = coverage.unreadable.take().map_or(absence, |(_, first)| first);
                coverage.unreadable = Some((count, first));
                continue;
            }
        }
        found += 1;
    }
    coverage.processes.sort_by_key(|process| std::cmp::Reverse(process.rss));
    Ok(coverage)
}

enum Skipped {
    OverBudget,
    Unreadable(Absence),
}

struct Look<'r, 'a> {
    reader: &'r Reader<'a>,
    page_size: PageSize,
    budget: &'r Budget,
    /// Picoseconds for each resident page: the assumption, or the slowest walk measured so far.
    ps_per_page: u64,
}

impl Look<'_, '_> {
    /// Resident pages; `None` for a kernel thread and for a process that has ended.
    fn resident(&self, pid: u32) -> Option<Pages> {
        if let Ok(Some(text)) = self.file(pid, "statm") {
            return self.parsed(pid, "statm", &text, status::parse_statm).ok().map(|statm| statm.resident);
        }
        // A saved tree may hold the sums alone.
        if self.reader.root().is_live() {
            return None;
        }
        let rollup = self.reader.parse(&paths::process(pid, "smaps_rollup"), smaps::parse_rollup).ok()?;
        rollup.bytes("Rss").map(|rss| rss.pages(self.page_size))
    }

    fn process(&mut self, pid: u32, resident: Pages) -> Result<Option<ProcessMemory>, Skipped> {
        let expected = Duration::from_nanos(resident.0.saturating_mul(self.ps_per_page) / 1000);
        if self.reader.root().is_live() && expected > self.budget.each {
            return Err(Skipped::OverBudget);
        }
        let started = Instant::now();
        let Some(text) = self.file(pid, "smaps_rollup").map_err(Skipped::Unreadable)? else {
            return Ok(None);
        };
        let read_ns = started.elapsed().as_nanos().min(u128::from(u64::MAX)) as u64;
        if resident.0 >= PAGES_TO_MEASURE {
            self.ps_per_page = self.ps_per_page.max(read_ns.saturating_mul(1000) / resident.0);
        }
        // A kernel thread's file is empty, and so is that of a process that is about to end.
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let rollup =
            self.parsed(pid, "smaps_rollup", &text, smaps::parse_rollup).map_err(Skipped::Unreadable)?;
        let status = match self.file(pid, "status") {
            Ok(Some(text)) => self.parsed(pid, "status", &text, status::parse).ok(),
            Ok(None) | Err(_) => None,
        };
        let eligible = if self.budget.deep { self.eligible(pid) } else { None };
        let mut process = memory(&rollup, read_ns);
        process.pid = pid;
        process.thp_enabled = status.as_ref().and_then(|status| status.thp_enabled);
        // A capture without process names has an empty one.
        process.name = status.map(|status| status.name).filter(|name| !name.is_empty());
        process.eligible = eligible;
        Ok(Some(process))
    }

    /// Bytes in mappings that the kernel calls eligible for huge pages.
    fn eligible(&self, pid: u32) -> Option<Bytes> {
        let text = self.file(pid, "smaps").ok().flatten()?;
        let mappings = self.parsed(pid, "smaps", &text, smaps::parse).ok()?;
        mappings.iter().any(|mapping| mapping.thp_eligible.is_some()).then(|| {
            let eligible = mappings.iter().filter(|mapping| mapping.thp_eligible == Some(true));
            Bytes(eligible.map(|m| m.end.saturating_sub(m.start)).fold(0, u64::saturating_add))
        })
    }

    fn parsed<T>(
        &self,
        pid: u32,
        file: &str,
        text: &[u8],
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        let path = self.reader.root().show(&paths::process(pid, file));
        self.reader.noted(
            parse(text)
                .map_err(|error| Absence::new(path.clone(), AbsentWhy::Malformed, error.in_file(&path))),
        )
    }

    /// A file of a process; `None` if the process has ended meanwhile.
    fn file(&self, pid: u32, file: &str) -> Reading<Option<Vec<u8>>> {
        let root = self.reader.root();
        let path = paths::process(pid, file);
        let stream = match root.stream(&path) {
            Ok(stream) => stream,
            Err(absence) if ended(&absence) => return Ok(None),
            Err(absence) => return Err(refused(absence, rustix::process::geteuid().is_root())),
        };
        let mut text = Vec::new();
        match stream.take(TEXT_MAX.0 + 1).read_to_end(&mut text) {
            Ok(_) if text.len() as u64 > TEXT_MAX.0 => Err(root.bad(&path, "larger than 64 MiB")),
            Ok(_) => Ok(Some(text)),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(root.absence(&path, &error)),
        }
    }
}

/// The kernel lets a process's memory be read by whom it lets trace the process; where root is refused,
/// running as root is no way out.
fn refused(mut absence: Absence, root: bool) -> Absence {
    if absence.why == AbsentWhy::NotPermitted && root {
        absence.detail = "not even root may trace this process".to_owned();
        absence.way_out = None;
    }
    absence
}

/// Whether a file could not be opened because its process is gone.
fn ended(absence: &Absence) -> bool {
    matches!(absence.why, AbsentWhy::NotThere | AbsentWhy::NotSaved)
}

fn memory(rollup: &SmapsRollup, read_ns: u64) -> ProcessMemory {
    let bytes = |name: &str| rollup.bytes(name).unwrap_or_default();
    let (private, shared) = (bytes("Private_Hugetlb"), bytes("Shared_Hugetlb"));
    ProcessMemory {
        pid: 0,
        name: None,
        rss: bytes("Rss"),
        anonymous: bytes("Anonymous"),
        anon_huge: bytes("AnonHugePages"),
        shmem_huge: bytes("ShmemPmdMapped"),
        file_huge: bytes("FilePmdMapped"),
        hugetlb: Bytes(private.0.saturating_add(shared.0)),
        thp_enabled: None,
        eligible: None,
        read_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use crate::root::Root;

    const HEAD: &str = "00400000-7fff0000 ---p 00000000 00:00 0                          [rollup]\n";

    fn rollup(rss: u64, huge: u64) -> String {
        format!("{HEAD}Rss: {rss} kB\nAnonymous: {rss} kB\nAnonHugePages: {huge} kB\nPrivate_Hugetlb: 4 kB\n")
    }

    fn read_tree(tree: &Tree, budget: &Budget) -> ProcessCoverage {
        let root = tree.root();
        let reader = Reader::new(&root);
        let coverage = read(&reader, PageSize::USUAL, budget).unwrap();
        assert_eq!(reader.problems(), []);
        coverage
    }

    #[test]
    fn the_largest_come_first_and_kernel_threads_are_passed_over() {
        let tree = Tree::new(&[
            ("/proc/2/statm", "0 0 0 0 0 0 0\n"),
            ("/proc/10/statm", "900 100 5 0 0 0 0\n"),
            ("/proc/10/smaps_rollup", &rollup(400, 0)),
            ("/proc/11/statm", "900 800 5 0 0 0 0\n"),
            ("/proc/11/smaps_rollup", &rollup(3200, 2048)),
            ("/proc/11/status", "Name:\tbig\nTHP_enabled:\t1\n"),
            ("/proc/12/smaps_rollup", &rollup(800, 0)),
            ("/proc/12/status", "Name:\t\n"),
            ("/proc/13/statm", "900 50 5 0 0 0 0\n"),
            ("/proc/meminfo", ""),
        ]);
        let coverage = read_tree(&tree, &Budget::default());
        assert_eq!(coverage.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [11, 12, 10]);
        assert_eq!((coverage.processes_total, coverage.unreadable, coverage.over_budget), (4, None, 0));
        let big = &coverage.processes[0];
        assert_eq!((big.name.as_deref(), big.thp_enabled), (Some("big"), Some(true)));
        assert_eq!((big.anon_huge, big.hugetlb), (Bytes(2 << 20), Bytes(4 << 10)));
        assert_eq!(coverage.processes[1].name, None);

        tree.add(
            "/pagelab-capture.json",
            br#"{"format": "pagelab-capture", "format_version": 1, "processes_seen": 90}"#,
        );
        assert_eq!(read_tree(&tree, &Budget::default()).processes_total, 90);

        let one = read_tree(&tree, &Budget { processes_max: 1, ..Budget::default() });
        assert_eq!(one.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [11]);
    }

    #[test]
    fn a_deep_look_sums_what_is_eligible() {
        let smaps = "00400000-00600000 rw-p 00000000 00:00 0 \nRss: 4 kB\nTHPeligible:    1\n\
                     00700000-00701000 rw-p 00000000 00:00 0 \nRss: 4 kB\nTHPeligible:    0\n";
        let tree = Tree::new(&[
            ("/proc/5/statm", "9 9 9 0 0 0 0\n"),
            ("/proc/5/smaps_rollup", &rollup(8, 0)),
            ("/proc/5/smaps", smaps),
        ]);
        let deep = read_tree(&tree, &Budget { deep: true, ..Budget::default() });
        assert_eq!(deep.processes[0].eligible, Some(Bytes(2 << 20)));
        assert_eq!(read_tree(&tree, &Budget::default()).processes[0].eligible, None);
    }

    #[test]
    fn root_that_is_refused_is_not_told_to_run_as_root() {
        let denied = || Absence::new("f", AbsentWhy::NotPermitted, "").or("run as root");
        assert_eq!(refused(denied(), false), denied());
        let said = refused(denied(), true);
        assert_eq!(said.reason(), "not even root may trace this process");
        assert_eq!(said.way_out, None);
    }

    #[test]
    fn a_tree_without_processes_says_so() {
        let tree = Tree::new(&[("/proc/meminfo", "")]);
        let root = tree.root();
        let absence = read(&Reader::new(&root), PageSize::USUAL, &Budget::default()).unwrap_err();
        assert_eq!(absence.reason(), "no process in the saved tree");
    }

    #[test]
    fn a_spent_budget_is_said_and_a_large_process_is_not_begun() {
        let root = Root::live();
        let reader = Reader::new(&root);
        let no_time = Budget { total: Duration::ZERO, ..Budget::default() };
        assert!(read(&reader, PageSize::USUAL, &no_time).unwrap().budget_spent);
        let nothing_each = Budget { each: Duration::ZERO, ..Budget::default() };
        let coverage = read(&reader, PageSize::USUAL, &nothing_each).unwrap();
        assert!(coverage.processes.is_empty() && coverage.over_budget > 0);
    }
}
