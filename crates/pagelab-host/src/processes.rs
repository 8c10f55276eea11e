//! Huge-page coverage of the largest processes, within a time budget.
//!
//! `statm` is cheap and finds the largest; `smaps_rollup` walks the page tables of a process under its mmap
//! lock, so it is read for a few only, is timed, and is omitted if it would take too long by the process's
//! size: a read that has begun cannot be stopped.

use std::io::Read;
use std::time::{Duration, Instant};

use pagelab_formats::{ParseError, process_status, smaps};
use pagelab_model::process::{HugePageCoverage, ProcessMemory};
use pagelab_model::{Absence, AbsenceReason, Bytes, PageSize, Pages, Reading};
use rustix::io::Errno;

use crate::paths;
use crate::reader::Reader;
use crate::root::TEXT_BYTES_MAX;

/// Limits of the search.
#[derive(Clone, Copy, Debug)]
pub struct ScanBudget {
    /// Maximum number of processes.
    pub processes_max: usize,
    /// Time for the page tables of one process.
    pub per_process: Duration,
    /// Time for all together.
    pub total: Duration,
    /// Whether to read whole smaps as well, for the memory that is eligible.
    pub with_smaps: bool,
}

impl Default for ScanBudget {
    fn default() -> ScanBudget {
        ScanBudget {
            processes_max: 10,
            per_process: Duration::from_millis(200),
            total: Duration::from_secs(2),
            with_smaps: false,
        }
    }
}

/// Assumed cost of walking one resident base page, until a slower walk is measured; 10 to 30 ns are usual,
/// and much less with huge pages.
const WALK_PAGE_PS: u64 = 30_000;
/// Resident pages from which a measured walk is more accurate than the assumption.
const PAGES_TO_MEASURE: u64 = 10_000;

/// Reads the largest processes. Kernel threads and processes that exit meanwhile are skipped.
pub fn read_largest(
    reader: &Reader<'_>,
    page_size: PageSize,
    budget: &ScanBudget,
) -> Reading<HugePageCoverage> {
    read_matching(reader, page_size, budget, |_| true)
}

/// The same for the largest of the selected processes.
pub fn read_matching(
    reader: &Reader<'_>,
    page_size: PageSize,
    budget: &ScanBudget,
    is_selected: impl Fn(u32) -> bool,
) -> Reading<HugePageCoverage> {
    let start = Instant::now();
    let mut pids = reader.root().list_processes()?;
    pids.retain(|&pid| is_selected(pid));
    if pids.is_empty() && !reader.root().is_live() {
        let source = reader.root().display_path(paths::PROC);
        return Err(Absence::new(source, AbsenceReason::NotSaved, "no processes in the saved tree"));
    }
    if reader.root().is_live()
        && let Err(absence) = reader.root().open_reader(paths::SELF_SMAPS_ROLLUP)
    {
        let no_rollup = absence.why == AbsenceReason::NotThere;
        return Err(if no_rollup { absence.with_hint("boot Linux 4.14 or later") } else { absence });
    }
    let mut scanner = ProcessScanner { reader, page_size, budget, ps_per_page: WALK_PAGE_PS };
    let mut coverage = HugePageCoverage::default();
    let mut sizes: Vec<(Pages, u32)> = Vec::with_capacity(pids.len());
    for pid in pids {
        if start.elapsed() > budget.total {
            coverage.is_budget_spent = true;
            break;
        }
        if let Some(resident) = scanner.resident_pages(pid).filter(|resident| resident.0 > 0) {
            sizes.push((resident, pid));
        }
    }
    // A capture contains only the largest, and the number of all.
    let process_count = reader.root().manifest().and_then(|manifest| manifest.processes_seen);
    coverage.processes_total = process_count.unwrap_or(sizes.len() as u64);
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut processes_found = 0;
    for (resident, pid) in sizes {
        if processes_found == budget.processes_max {
            break;
        }
        if start.elapsed() > budget.total {
            coverage.is_budget_spent = true;
            break;
        }
        match scanner.read_process(pid, resident) {
            Ok(Some(process)) => coverage.processes.push(process),
            Ok(None) => continue,
            Err(SkipReason::OverBudget) => coverage.skipped_over_budget += 1,
            Err(SkipReason::Unreadable(absence)) => {
                let count = coverage.unreadable.as_ref().map_or(1, |(count, _)| count + 1);
                let first = coverage.unreadable.take().map_or(absence, |(_, first)| first);
                coverage.unreadable = Some((count, first));
                continue;
            }
        }
        processes_found += 1;
    }
    coverage.processes.sort_by_key(|process| std::cmp::Reverse(process.rss));
    Ok(coverage)
}

enum SkipReason {
    OverBudget,
    Unreadable(Absence),
}

struct ProcessScanner<'r, 'a> {
    reader: &'r Reader<'a>,
    page_size: PageSize,
    budget: &'r ScanBudget,
    /// Picoseconds for each resident page: the assumption, or the slowest walk measured so far.
    ps_per_page: u64,
}

impl ProcessScanner<'_, '_> {
    /// Resident pages; `None` for a kernel thread and for an exited process.
    fn resident_pages(&self, pid: u32) -> Option<Pages> {
        if let Ok(Some(text)) = self.read_file(pid, "statm") {
            return self
                .parse_file(pid, "statm", &text, process_status::parse_statm)
                .ok()
                .map(|statm| statm.resident);
        }
        // A saved tree may have only the sums.
        if self.reader.root().is_live() {
            return None;
        }
        let rollup =
            self.reader.parse(&paths::process_file(pid, "smaps_rollup"), smaps::parse_rollup).ok()?;
        rollup.bytes("Rss").map(|rss| rss.to_pages(self.page_size))
    }

    fn read_process(&mut self, pid: u32, resident: Pages) -> Result<Option<ProcessMemory>, SkipReason> {
        let expected = Duration::from_nanos(resident.0.saturating_mul(self.ps_per_page) / 1000);
        if self.reader.root().is_live() && expected > self.budget.per_process {
            return Err(SkipReason::OverBudget);
        }
        let walk_start = Instant::now();
        let Some(text) = self.read_file(pid, "smaps_rollup").map_err(SkipReason::Unreadable)? else {
            return Ok(None);
        };
        let read_ns = walk_start.elapsed().as_nanos().min(u128::from(u64::MAX)) as u64;
        if resident.0 >= PAGES_TO_MEASURE {
            self.ps_per_page = self.ps_per_page.max(read_ns.saturating_mul(1000) / resident.0);
        }
        // The file of a kernel thread is empty, as is that of an exiting process.
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let rollup = self
            .parse_file(pid, "smaps_rollup", &text, smaps::parse_rollup)
            .map_err(SkipReason::Unreadable)?;
        let status = match self.read_file(pid, "status") {
            Ok(Some(text)) => self.parse_file(pid, "status", &text, process_status::parse).ok(),
            Ok(None) | Err(_) => None,
        };
        let eligible = if self.budget.with_smaps { self.eligible_bytes(pid) } else { None };
        let Some(rss) = rollup.bytes("Rss") else {
            let path = paths::process_file(pid, "smaps_rollup");
            let reason = self.reader.root().malformed_absence(&path, "it has no `Rss:` line");
            return Err(SkipReason::Unreadable(reason));
        };
        // A line is missing where the kernel has no such pages: of files since 5.4, of shmem since 4.8.
        let bytes = |name: &str| rollup.bytes(name).unwrap_or_default();
        let (private, shared) = (bytes("Private_Hugetlb"), bytes("Shared_Hugetlb"));
        Ok(Some(ProcessMemory {
            pid,
            thp_enabled: status.as_ref().and_then(|status| status.thp_enabled),
            // A capture without process names has an empty one.
            name: status.map(|status| status.name).filter(|name| !name.is_empty()),
            rss,
            anonymous: bytes("Anonymous"),
            anon_huge: bytes("AnonHugePages"),
            shmem_huge: bytes("ShmemPmdMapped"),
            file_huge: bytes("FilePmdMapped"),
            hugetlb: Bytes(private.0.saturating_add(shared.0)),
            eligible,
            read_ns,
        }))
    }

    /// Bytes in mappings that the kernel calls eligible for huge pages.
    fn eligible_bytes(&self, pid: u32) -> Option<Bytes> {
        let text = self.read_file(pid, "smaps").ok().flatten()?;
        let mappings = self.parse_file(pid, "smaps", &text, smaps::parse).ok()?;
        mappings.iter().any(|mapping| mapping.thp_eligible.is_some()).then(|| {
            let eligible = mappings.iter().filter(|mapping| mapping.thp_eligible == Some(true));
            Bytes(eligible.map(|m| m.end.saturating_sub(m.start)).fold(0, u64::saturating_add))
        })
    }

    fn parse_file<T>(
        &self,
        pid: u32,
        file: &str,
        text: &[u8],
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        self.reader.parse_bytes(&paths::process_file(pid, file), text, parse)
    }

    /// A file of a process; `None` if the process has exited meanwhile.
    fn read_file(&self, pid: u32, file: &str) -> Reading<Option<Vec<u8>>> {
        let root = self.reader.root();
        let path = paths::process_file(pid, file);
        let stream = match root.open_reader(&path) {
            Ok(stream) => stream,
            Err(absence) if has_ended(&absence) => return Ok(None),
            Err(absence) => return Err(explain_refusal(absence, rustix::process::geteuid().is_root())),
        };
        let mut text = Vec::new();
        match stream.take(TEXT_BYTES_MAX.0 + 1).read_to_end(&mut text) {
            Ok(_) if text.len() as u64 > TEXT_BYTES_MAX.0 => {
                Err(root.malformed_absence(&path, "larger than 64 MiB"))
            }
            Ok(_) => Ok(Some(text)),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::SRCH | Errno::NOENT)) => {
                Ok(None)
            }
            Err(error) => Err(root.absence(&path, &error)),
        }
    }
}

/// The kernel permits reading a process's memory to those who may trace it; if root is refused, running as
/// root does not help.
fn explain_refusal(mut absence: Absence, root: bool) -> Absence {
    if absence.why == AbsenceReason::NotPermitted && root {
        absence.detail = "not even root may trace this process".to_owned();
        absence.hint = None;
    }
    absence
}

/// Whether a file could not be opened because its process has exited.
fn has_ended(absence: &Absence) -> bool {
    matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::NotSaved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;
    use crate::root::Root;

    const HEAD: &str = "00400000-7fff0000 ---p 00000000 00:00 0                          [rollup]\n";

    fn rollup(rss: u64, huge: u64) -> String {
        format!("{HEAD}Rss: {rss} kB\nAnonymous: {rss} kB\nAnonHugePages: {huge} kB\nPrivate_Hugetlb: 4 kB\n")
    }

    fn read_tree(tree: &FakeTree, budget: &ScanBudget) -> HugePageCoverage {
        let root = tree.root();
        let reader = Reader::new(&root);
        let coverage = read_largest(&reader, PageSize::DEFAULT, budget).unwrap();
        assert_eq!(reader.problems(), []);
        coverage
    }

    #[test]
    fn the_largest_come_first_and_kernel_threads_are_passed_over() {
        let tree = FakeTree::new(&[
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
        let coverage = read_tree(&tree, &ScanBudget::default());
        assert_eq!(coverage.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [11, 12, 10]);
        assert_eq!(
            (coverage.processes_total, coverage.unreadable, coverage.skipped_over_budget),
            (4, None, 0)
        );
        let big = &coverage.processes[0];
        assert_eq!((big.name.as_deref(), big.thp_enabled), (Some("big"), Some(true)));
        assert_eq!((big.anon_huge, big.hugetlb), (Bytes(2 << 20), Bytes(4 << 10)));
        assert_eq!(coverage.processes[1].name, None);

        tree.add_file(
            "/pagelab-capture.json",
            br#"{"format": "pagelab-capture", "format_version": 1, "processes_seen": 90}"#,
        );
        assert_eq!(read_tree(&tree, &ScanBudget::default()).processes_total, 90);

        let one = read_tree(&tree, &ScanBudget { processes_max: 1, ..ScanBudget::default() });
        assert_eq!(one.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [11]);
    }

    #[test]
    fn a_deep_look_sums_what_is_eligible() {
        let smaps = "00400000-00600000 rw-p 00000000 00:00 0 \nRss: 4 kB\nTHPeligible:    1\n\
                     00700000-00701000 rw-p 00000000 00:00 0 \nRss: 4 kB\nTHPeligible:    0\n";
        let tree = FakeTree::new(&[
            ("/proc/5/statm", "9 9 9 0 0 0 0\n"),
            ("/proc/5/smaps_rollup", &rollup(8, 0)),
            ("/proc/5/smaps", smaps),
        ]);
        let deep = read_tree(&tree, &ScanBudget { with_smaps: true, ..ScanBudget::default() });
        assert_eq!(deep.processes[0].eligible, Some(Bytes(2 << 20)));
        assert_eq!(read_tree(&tree, &ScanBudget::default()).processes[0].eligible, None);
    }

    #[test]
    fn root_that_is_refused_is_not_told_to_run_as_root() {
        let denied = || Absence::new("f", AbsenceReason::NotPermitted, "").with_hint("run as root");
        assert_eq!(explain_refusal(denied(), false), denied());
        let said = explain_refusal(denied(), true);
        assert_eq!(said.reason(), "not even root may trace this process");
        assert_eq!(said.hint, None);
    }

    #[test]
    fn a_tree_without_processes_says_so() {
        let tree = FakeTree::new(&[("/proc/meminfo", "")]);
        let root = tree.root();
        let absence =
            read_largest(&Reader::new(&root), PageSize::DEFAULT, &ScanBudget::default()).unwrap_err();
        assert_eq!(absence.reason(), "no processes in the saved tree");
    }

    #[test]
    fn a_spent_budget_is_said_and_a_large_process_is_not_begun() {
        let root = Root::live();
        let reader = Reader::new(&root);
        let no_time = ScanBudget { total: Duration::ZERO, ..ScanBudget::default() };
        assert!(read_largest(&reader, PageSize::DEFAULT, &no_time).unwrap().is_budget_spent);
        let nothing_each = ScanBudget { per_process: Duration::ZERO, ..ScanBudget::default() };
        let coverage = read_largest(&reader, PageSize::DEFAULT, &nothing_each).unwrap();
        assert!(coverage.processes.is_empty() && coverage.skipped_over_budget > 0);
    }
}
