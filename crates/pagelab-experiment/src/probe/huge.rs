//! Bytes in huge pages: anonymous, shared memory, files, hugetlb, and the huge zero page.
//!
//! The cheapest source comes first. memory.stat of the group reports the anonymous huge pages of the tree,
//! status the hugetlb pages; if meminfo shows that the machine has no huge pages of a type, the trial has
//! none either. Only the rest is read from smaps_rollup, for which the kernel walks all page tables of a
//! process, and, for the huge zero page, which neither file shows, from PAGEMAP_SCAN. Both wait for their
//! time budget.

use pagelab_formats::smaps;
use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection};
use pagelab_host::machine::{live_page_size, pmd_size};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::experiment::{BetterDirection, measures};
use pagelab_model::{Absence, AbsenceReason, Bytes, PageSize, Reading};
use pagelab_sys::clock::{monotonic_ns, thread_cpu_ns};

use super::huge_zero_page::ZeroPageProbe;
use super::process_tree::{PeakAndLast, ProcessSample, TreeSample, too_short_absence};
use super::time_budget::{TimeBudget, WalkRate};
use super::{ProbeReadings, ProbeSelection};

/// Initial time budget of each type of walk, in addition to its share of the trial's time.
const GRACE_NS: u64 = 300_000;
/// Initial estimates, ns per page-table entry: smaps reads the page behind it, PAGEMAP_SCAN does not.
const SMAPS_NS: u64 = 120;
const SCAN_NS: u64 = 8;
/// Size of a page-table entry on 64-bit machines.
const ENTRY_BYTES: u64 = 8;

#[derive(Debug)]
pub(super) struct HugeBytesProbe {
    root: Root,
    is_selected: bool,
    page_size: PageSize,
    pmd_size: Bytes,
    meminfo: FastSnapshot,
    anon: KindBytes,
    anon_source: &'static str,
    shmem: KindBytes,
    file: KindBytes,
    hugetlb: KindBytes,
    zero_bytes: KindBytes,
    total: PeakAndLast,
    smaps: PageTableWalk,
    scan: PageTableWalk,
    zero_page: ZeroPageProbe,
}

/// Bytes of one type over the readings.
#[derive(Clone, Copy, Debug, Default)]
struct KindBytes {
    peak: PeakAndLast,
    /// Some reading was answered by more than the machine having none of the type.
    has_answer: bool,
    /// Some reading had to leave open whether there are any.
    was_unknown: bool,
    /// The last reading had to.
    is_unknown: bool,
}

impl KindBytes {
    fn record(&mut self, bytes: u64) {
        (self.has_answer, self.is_unknown) = (true, false);
        self.peak.record(bytes);
    }

    /// The machine has no pages of the type, so the trial has none.
    fn record_none(&mut self) {
        self.is_unknown = false;
        self.peak.record(0);
    }

    fn record_unknown(&mut self) {
        (self.was_unknown, self.is_unknown) = (true, true);
    }

    /// A reading without an answer must not count as zero.
    fn peak_bytes(self) -> Option<u64> {
        self.peak.peak_bytes().filter(|_| self.has_answer || !self.was_unknown)
    }

    fn last_bytes(self) -> Option<u64> {
        self.peak.last_bytes().filter(|_| !self.is_unknown)
    }
}

/// A type of page-table walk: its time budget and its cost.
#[derive(Debug)]
struct PageTableWalk {
    time_budget: TimeBudget,
    walk_rate: WalkRate,
    /// Estimated time of the last skipped walk, ns.
    skipped_ns: u64,
    failure: Option<Absence>,
}

impl PageTableWalk {
    fn new(ns_per_entry: u64, share_permille: u64) -> PageTableWalk {
        PageTableWalk {
            time_budget: TimeBudget::new(1000 / 2 * share_permille, GRACE_NS),
            walk_rate: WalkRate::from_ns_per_entry(ns_per_entry),
            skipped_ns: 0,
            failure: None,
        }
    }

    /// Walks if the budget permits. Returns the result and the time that it took.
    fn run_within_budget<T>(
        &mut self,
        elapsed_ns: u64,
        processes: u64,
        entries: u64,
        walk: impl FnOnce() -> Reading<T>,
    ) -> Option<(T, u64)> {
        let expected_ns = self.walk_rate.expected_ns(processes, entries);
        if !self.time_budget.can_afford(elapsed_ns, expected_ns) {
            self.skipped_ns = expected_ns;
            return None;
        }
        let (began_ns, cpu_ns) = (monotonic_ns(), thread_cpu_ns());
        let walk_result = walk();
        let took_ns = monotonic_ns().saturating_sub(began_ns);
        let spent_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        self.time_budget.spend(elapsed_ns, spent_ns, expected_ns);
        self.walk_rate.record_walk(entries, spent_ns);
        match walk_result {
            Ok(found) => Some((found, took_ns)),
            Err(absence) => {
                self.failure.get_or_insert(absence);
                None
            }
        }
    }

    /// Why its result is unknown.
    fn walk_absence(&self, file: &str) -> Absence {
        if let Some(failed) = &self.failure {
            return failed.clone();
        }
        if self.skipped_ns == 0 {
            return too_short_absence();
        }
        let detail = format!(
            "a scan of its page tables would take about {} ms, more than {:.1} ‰ of its run time",
            self.skipped_ns.div_ceil(1_000_000),
            self.time_budget.share_ppm() as f64 / 1000.0
        );
        Absence::new(file, AbsenceReason::NotRequested, detail).with_hint("use a longer trial")
    }
}

/// Sums of smaps_rollup over all processes, bytes.
#[derive(Clone, Copy, Debug, Default)]
struct RollupSums {
    anon: u64,
    shmem: u64,
    file: u64,
}

impl HugeBytesProbe {
    pub(super) fn prepare(root: &Root, selection: &ProbeSelection) -> HugeBytesProbe {
        let page_size = live_page_size().unwrap_or(PageSize::DEFAULT);
        let pmd_size = pmd_size(&Reader::new(root), page_size);
        let files = FileSelection { meminfo: selection.huge, ..FileSelection::default() };
        HugeBytesProbe {
            root: root.clone(),
            is_selected: selection.huge,
            page_size,
            pmd_size,
            meminfo: FastSnapshot::open(root, files),
            anon: KindBytes::default(),
            anon_source: SMAPS,
            shmem: KindBytes::default(),
            file: KindBytes::default(),
            hugetlb: KindBytes::default(),
            zero_bytes: KindBytes::default(),
            total: PeakAndLast::default(),
            smaps: PageTableWalk::new(SMAPS_NS, selection.share_permille),
            scan: PageTableWalk::new(SCAN_NS, selection.share_permille),
            zero_page: match selection.huge {
                true => ZeroPageProbe::prepare(root, page_size, pmd_size),
                false => ZeroPageProbe::default(),
            },
        }
    }

    /// Adds one reading, and returns the time of the kernel's page-table walks, ns.
    pub(super) fn record_scan(&mut self, sample: &TreeSample, elapsed_ns: u64) -> u64 {
        if !self.is_selected {
            return 0;
        }
        self.hugetlb.record(sample.processes.iter().map(|process| process.hugetlb).sum());
        let charged_bytes = charged_anon_huge(sample);
        if let Some((bytes, source)) = charged_bytes {
            self.anon.record(bytes);
            self.anon_source = source;
        }
        let entries =
            estimate_entries(&sample.processes, charged_bytes.map_or(0, |(bytes, _)| bytes), self.page_size);
        // The cheaper walk first: if it finds no huge page of a file, the other need not search for them.
        let scan_ns = self.read_zero_page_bytes(sample, entries, elapsed_ns);
        let has_no_file_thp = scan_ns > 0 && self.zero_page.file_huge_bytes == Some(0);
        let rollup_ns =
            self.read_rollups(sample, charged_bytes.is_none(), has_no_file_thp, entries, elapsed_ns);
        let parts = [self.anon, self.shmem, self.file, self.hugetlb];
        if self.anon.peak_bytes().is_some() {
            // Types that this reading left open keep their values.
            self.total.record(parts.iter().filter_map(|part| part.peak.last_bytes()).sum());
        }
        scan_ns + rollup_ns
    }

    /// Shared memory and files, and anonymous memory if the group does not report it.
    fn read_rollups(
        &mut self,
        sample: &TreeSample,
        needs_anon: bool,
        has_no_file_thp: bool,
        entries: u64,
        elapsed_ns: u64,
    ) -> u64 {
        let sum_of = |of: fn(&ProcessSample) -> u64| sample.processes.iter().map(of).sum::<u64>();
        let can_hold_huge_page = |bytes: u64| bytes >= self.pmd_size.0;
        let [has_shmem, has_file] = [sum_of(|p| p.shmem), sum_of(|p| p.file)]
            .map(|bytes| can_hold_huge_page(bytes) && !has_no_file_thp);
        let has_anon = needs_anon && can_hold_huge_page(sum_of(|p| p.anonymous));
        let mut machine = [0; 3];
        if has_anon || has_shmem || has_file {
            self.meminfo.sample();
            // A kernel without the line has no such pages: shared memory got them in 4.8, files in 5.4.
            machine = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].map(|name| {
                self.meminfo.meminfo().map_or(u64::MAX, |of| of.bytes(name).map_or(0, |bytes| bytes.0))
            });
        }
        let [anon, shmem, file] = [(has_anon, machine[0]), (has_shmem, machine[1]), (has_file, machine[2])]
            .map(|(may, machine)| may && machine > 0);
        for (kind, needs_rollup, is_ours) in
            [(&mut self.shmem, shmem, true), (&mut self.file, file, true), (&mut self.anon, anon, needs_anon)]
        {
            match needs_rollup {
                true => kind.record_unknown(),
                false if is_ours => kind.record_none(),
                false => {}
            }
        }
        if !(anon || shmem || file) {
            return 0;
        }
        let root = &self.root;
        let walk = || sum_rollups(root, &sample.processes);
        let processes = sample.processes.len() as u64;
        let Some((sums, took_ns)) = self.smaps.run_within_budget(elapsed_ns, processes, entries, walk) else {
            return 0;
        };
        for (kind, needs_rollup, bytes) in [
            (&mut self.shmem, shmem, sums.shmem),
            (&mut self.file, file, sums.file),
            (&mut self.anon, anon, sums.anon),
        ] {
            if needs_rollup {
                kind.record(bytes);
            }
        }
        took_ns
    }

    fn read_zero_page_bytes(&mut self, sample: &TreeSample, entries: u64, elapsed_ns: u64) -> u64 {
        let (root, zero) = (&self.root, &mut self.zero_page);
        let walk = || zero.count_zero_bytes(root, &sample.processes);
        let processes = sample.processes.len() as u64;
        self.scan.run_within_budget(elapsed_ns, processes, entries, walk).map_or(0, |(bytes, took_ns)| {
            self.zero_bytes.record(bytes);
            took_ns
        })
    }

    pub(super) fn add_measures(&self, readings: &mut ProbeReadings) {
        if !self.is_selected {
            return;
        }
        let (smaps, scan) = (self.smaps.walk_absence("smaps_rollup"), self.scan.walk_absence("PAGEMAP_SCAN"));
        let too_short = too_short_absence();
        let kinds = [
            ("huge.anon", self.anon, &smaps, self.anon_source),
            ("huge.shmem", self.shmem, &smaps, "ShmemPmdMapped of smaps_rollup, summed over its processes"),
            ("huge.file", self.file, &smaps, "FilePmdMapped of smaps_rollup, summed over its processes"),
            ("huge.hugetlb", self.hugetlb, &too_short, "HugetlbPages of status, summed over its processes"),
            ("huge.zero", self.zero_bytes, &scan, self.zero_page.source()),
        ];
        for (name, kind, absence, source) in kinds {
            let or_absent = |value: Option<u64>| value.ok_or_else(|| absence.clone());
            let better = if name == "huge.zero" { BetterDirection::Neither } else { BetterDirection::Higher };
            readings.push_bytes(name, better, or_absent(kind.peak_bytes()), source);
            readings.push_bytes(&format!("{name}.last"), better, or_absent(kind.last_bytes()), source);
        }
        let unknown: Vec<&str> = [("shared memory", self.shmem), ("files", self.file)]
            .iter()
            .filter(|(_, kind)| kind.peak_bytes().is_none())
            .map(|(name, _)| *name)
            .collect();
        let mut source = "the highest total of any scan, without the huge zero page".to_owned();
        if !unknown.is_empty() {
            source.push_str(&format!("; {} not scanned", unknown.join(" and ")));
        }
        let total = self.total.peak_bytes().ok_or_else(|| smaps.clone());
        readings.push_bytes(measures::HUGE_BYTES, BetterDirection::Higher, total, &source);
    }
}

const SMAPS: &str = "AnonHugePages of smaps_rollup, summed over its processes";

/// Anonymous bytes in huge pages that the group is charged for: each page once, for any number of processes
/// that map it.
fn charged_anon_huge(sample: &TreeSample) -> Option<(u64, &'static str)> {
    let (stat, is_v2) = sample.memory_stat.as_ref()?;
    match is_v2 {
        true => Some((stat.get("anon_thp")?, "anon_thp of memory.stat of its cgroup")),
        false => Some((stat.get("total_rss_huge")?, "total_rss_huge of memory.stat of its cgroup")),
    }
}

/// Estimated page-table entries of a walk: those of resident base pages, at most the capacity of the page
/// tables. A huge anonymous page keeps an empty table in reserve (`pgtable_trans_huge_deposit`).
fn estimate_entries(processes: &[ProcessSample], anon_huge: u64, page_size: PageSize) -> u64 {
    let resident: u64 =
        processes.iter().map(|p| p.anonymous.saturating_add(p.file).saturating_add(p.shmem)).sum();
    let page_table_bytes: u64 = processes.iter().map(|process| process.page_tables).sum();
    let huge = anon_huge / page_size.bytes();
    (resident / page_size.bytes())
        .saturating_sub(huge)
        .min((page_table_bytes / ENTRY_BYTES).saturating_sub(huge))
}

/// The sums of smaps_rollup. A process that has ended counts as 0; a process without read permission is an
/// absence.
fn sum_rollups(root: &Root, processes: &[ProcessSample]) -> Reading<RollupSums> {
    let mut sum = RollupSums::default();
    for process in processes {
        let path = paths::process_file(process.pid, "smaps_rollup");
        let text = match root.read(&path) {
            Ok(text) => text,
            Err(absence) if absence.why == AbsenceReason::NotPermitted => return Err(absence),
            Err(_) => continue,
        };
        // Empty for a process that has ended and was not yet waited for.
        let Ok(rollup) = smaps::parse_rollup(&text) else { continue };
        let bytes = |name: &str| rollup.bytes(name).map_or(0, |bytes| bytes.0);
        sum.anon += bytes("AnonHugePages");
        sum.shmem += bytes("ShmemPmdMapped");
        sum.file += bytes("FilePmdMapped");
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_huge_pages_is_expected_to_be_short() {
        let page = PageSize::DEFAULT;
        let gib = 1u64 << 30;
        let process = |anonymous: u64, page_tables: u64| ProcessSample {
            anonymous,
            page_tables,
            ..ProcessSample::default()
        };
        let tables = gib / page.bytes() * ENTRY_BYTES;
        assert_eq!(estimate_entries(&[process(gib, tables)], 0, page), gib / page.bytes());
        assert_eq!(estimate_entries(&[process(gib, tables)], gib, page), 0, "all of it in huge pages");
        // Shared memory in huge pages has no tables at all.
        let shared = ProcessSample { shmem: gib, page_tables: 2 * page.bytes(), ..ProcessSample::default() };
        assert!(estimate_entries(&[shared], 0, page) <= 2 * page.bytes() / ENTRY_BYTES);
    }

    #[test]
    fn what_was_left_open_is_not_none() {
        let mut kind = KindBytes::default();
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (None, None));
        kind.record_none();
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (Some(0), Some(0)));
        kind.record_unknown();
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (None, None), "there may be some now");
        kind.record_none();
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (None, Some(0)), "there may have been some");
        kind.record_unknown();
        kind.record(7);
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (Some(7), Some(7)));
        kind.record_unknown();
        assert_eq!((kind.peak_bytes(), kind.last_bytes()), (Some(7), None));
    }

    #[test]
    fn a_walk_that_was_not_made_says_why() {
        let mut walk = PageTableWalk::new(SMAPS_NS, 1);
        assert_eq!(
            walk.walk_absence("smaps_rollup").why,
            AbsenceReason::Undefined,
            "the trial was too short"
        );
        assert!(walk.run_within_budget(100_000_000, 1, 1 << 20, || Ok(())).is_none());
        let absence = walk.walk_absence("smaps_rollup");
        assert_eq!(absence.why, AbsenceReason::NotRequested);
        assert!(absence.detail.contains("about 126 ms, more than 0.5 ‰"), "{}", absence.detail);
        assert!(walk.run_within_budget(1_000_000_000_000, 1, 1 << 20, || Ok(())).is_some());
        let refused = Absence::new("x", AbsenceReason::NotPermitted, "");
        assert!(walk.run_within_budget(1_000_000_000_000, 1, 0, || Err::<(), _>(refused.clone())).is_none());
        assert_eq!(walk.walk_absence("smaps_rollup"), refused);
    }
}
