//! HugeTLB-Capability, after the test of that name in Gorman and Whitcroft's comparison of kernels (OLS
//! 2006): how far the pool of huge pages grows if all of memory is requested, attempt after attempt.
//!
//! A write to `nr_hugepages` ends at the first huge page that the kernel does not find (mm/hugetlb.c,
//! `set_max_huge_pages`), so a further write may find more.

use pagelab_formats::meminfo;
use pagelab_host::guard::{AppliedChange, Guard, GuardOptions, GuardSite, Knob, SignalWatch, UndoOutcome};
use pagelab_host::hugetlb_zones::count_hugetlb_by_zone;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{machine, paths};
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{Absence, AbsenceReason, Bytes, Meminfo, PageSize, Reading, ZoneKey};
use pagelab_sys::clock;

use crate::guest_only::check_guest;
use crate::hot_remove::guard_error;
use crate::options::{WorkloadOptions, number_option};
use crate::phase::MeasuredPhase;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mix_checksum};

/// The test as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "hugetlb-capability",
    description: "Grows the pool of huge pages of a guest as far as possible, and shrinks it again",
    generator: "the number of huge pages is written to the default pool again and again, without a pause; no \
                page of the pool is touched by a program; at the end the pool has its former size",
    options: &[
        number_option("pages", 0, 1 << 32, "0", "Huge pages to request; 0: as many as memory could hold"),
        number_option(
            "attempts",
            1,
            ATTEMPTS_MAX as u64,
            "3",
            "Number of writes, each of which may find more",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_attempts,
};

/// Names of the figures of each attempt.
const ATTEMPT_FIGURES: [(&str, &str); ATTEMPTS_MAX] = [
    ("pages_1", "time_1"),
    ("pages_2", "time_2"),
    ("pages_3", "time_3"),
    ("pages_4", "time_4"),
    ("pages_5", "time_5"),
    ("pages_6", "time_6"),
    ("pages_7", "time_7"),
    ("pages_8", "time_8"),
];
const ATTEMPTS_MAX: usize = 8;
/// Zones, and the names of their figures.
const ZONE_FIGURES: [(&str, &str); 4] = [
    ("DMA", "pages_dma"),
    ("DMA32", "pages_dma32"),
    ("Normal", "pages_normal"),
    ("Movable", "pages_movable"),
];

/// Result of growing the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolResult {
    /// Size of a huge page of the pool.
    pub huge_page_size: Bytes,
    /// Huge pages that were requested.
    pub target_pages: u64,
    /// Pages of the pool before, and again now: read back.
    pub former_pages: u64,
    /// The attempts, in order.
    pub attempts: Vec<PoolAttempt>,
}

/// The pool after one write.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolAttempt {
    /// Pages of the pool by `nr_hugepages`, which `HugePages_Total` confirms.
    pub pages: u64,
    /// Pages that no program uses (`HugePages_Free`).
    pub free_pages: u64,
    /// Nanoseconds of the write, with what reads it back.
    pub elapsed_ns: u64,
    /// Pages of the pool in each zone. Absent if kpageflags cannot be read, or counts otherwise.
    pub zones: Reading<Vec<(ZoneKey, u64)>>,
}

/// Writes `target_pages` to the pool of the default size `attempts` times, and then brings the pool back to
/// its former size, also after an error or a panic. Without a target: as many as memory could hold. Only in
/// a guest of pagelab.
pub fn grow_pool(target_pages: Option<u64>, attempts: u32) -> Result<PoolResult, WorkloadError> {
    let root = Root::live();
    check_guest(&root, "takes all memory", WORKLOAD.name)?;
    let site = GuardSite::live().map_err(|error| guard_error(&error))?;
    let page_size = machine::live_page_size().unwrap_or(PageSize::DEFAULT);
    PoolGrower { root: &root, page_size }.grow(&site, target_pages, attempts)
}

/// The machine whose pool grows.
struct PoolGrower<'r> {
    root: &'r Root,
    page_size: PageSize,
}

impl PoolGrower<'_> {
    fn grow(
        &self,
        site: &GuardSite,
        target_pages: Option<u64>,
        attempts: u32,
    ) -> Result<PoolResult, WorkloadError> {
        let before = self.read_meminfo()?;
        let huge_page_size = before.bytes("Hugepagesize").filter(|size| size.0 > 0).ok_or_else(|| {
            let reason = "this kernel has no huge pages (CONFIG_HUGETLBFS is not set)";
            WorkloadError::NotAvailable(format!("{}: {reason}", paths::MEMINFO))
        })?;
        let total = self.field(&before, "MemTotal", Meminfo::bytes)?;
        let target_pages = target_pages.unwrap_or(total.0 / huge_page_size.0);
        let former_pages = self.field(&before, "HugePages_Total", Meminfo::count)?;
        let knob = Knob::hugetlb(huge_page_size, None);
        // It restores the pool when it is dropped, and its journal survives a kill.
        let guard = Guard::new(site, SignalWatch::without_handler(), GuardOptions::default())
            .map_err(|error| guard_error(&error))?;
        let attempts: Vec<PoolAttempt> = (0..attempts)
            .map(|_| self.attempt(&guard, &knob, target_pages, huge_page_size))
            .collect::<Result<_, _>>()?;
        self.restore(guard, &knob, former_pages)?;
        Ok(PoolResult { huge_page_size, target_pages, former_pages, attempts })
    }

    fn attempt(
        &self,
        guard: &Guard,
        knob: &Knob,
        target_pages: u64,
        huge_page_size: Bytes,
    ) -> Result<PoolAttempt, WorkloadError> {
        let began_ns = clock::monotonic_ns();
        let applied = guard.set_knob(knob, &target_pages.to_string()).map_err(|error| guard_error(&error))?;
        let elapsed_ns = clock::monotonic_ns().saturating_sub(began_ns);
        let meminfo = self.read_meminfo()?;
        let pages = self.field(&meminfo, "HugePages_Total", Meminfo::count)?;
        check_agreement(&applied, pages, knob)?;
        Ok(PoolAttempt {
            pages,
            free_pages: self.field(&meminfo, "HugePages_Free", Meminfo::count)?,
            elapsed_ns,
            zones: self.count_by_zone(huge_page_size, pages),
        })
    }

    /// Pages of the pool by zone, if all of them are found.
    fn count_by_zone(&self, huge_page_size: Bytes, pages: u64) -> Reading<Vec<(ZoneKey, u64)>> {
        let zones = count_hugetlb_by_zone(&Reader::new(self.root), self.page_size, huge_page_size)?;
        let sum: u64 = zones.iter().map(|(_, count)| count).sum();
        if sum != pages {
            let detail = format!("it has {sum} huge pages, and the pool {pages}");
            return Err(Absence::new(paths::KPAGEFLAGS, AbsenceReason::Changing, detail));
        }
        Ok(zones)
    }

    /// Ends the guard, which shrinks the pool, and reads back that it did.
    fn restore(&self, guard: Guard, knob: &Knob, former_pages: u64) -> Result<(), WorkloadError> {
        let undone = guard.finish();
        let failed = undone.iter().find(|change| {
            change.path == knob.path()
                && !matches!(change.undo, UndoOutcome::Restored | UndoOutcome::AlreadyRestored)
        });
        if let Some(change) = failed {
            let text =
                format!("cannot shrink the {} to {former_pages} pages: {}", change.label, change.detail);
            return Err(WorkloadError::SystemError(text));
        }
        let pages = self.field(&self.read_meminfo()?, "HugePages_Total", Meminfo::count)?;
        if pages != former_pages {
            let text = format!(
                "the pool was to shrink to {former_pages} pages again, and HugePages_Total in {} is {pages}",
                paths::MEMINFO
            );
            return Err(WorkloadError::SystemError(text));
        }
        Ok(())
    }

    fn read_meminfo(&self) -> Result<Meminfo, WorkloadError> {
        let meminfo = Reader::new(self.root).parse(paths::MEMINFO, meminfo::parse);
        meminfo.map_err(|absence| WorkloadError::system_error("cannot read the size of memory", absence))
    }

    fn field<T>(
        &self,
        meminfo: &Meminfo,
        name: &str,
        get: impl Fn(&Meminfo, &str) -> Option<T>,
    ) -> Result<T, WorkloadError> {
        get(meminfo, name).ok_or_else(|| {
            let path = self.root.display_path(paths::MEMINFO);
            WorkloadError::InvalidInput(format!("{path}: expected a field {name}, found none"))
        })
    }
}

/// The number that was read back after the write must be that of meminfo.
fn check_agreement(applied: &AppliedChange, total: u64, knob: &Knob) -> Result<(), WorkloadError> {
    if applied.actual.parse() == Ok(total) {
        return Ok(());
    }
    let (file, read_back) = (knob.path(), &applied.actual);
    Err(WorkloadError::SystemError(format!(
        "{file} reads {read_back:?}, but HugePages_Total in {} is {total}",
        paths::MEMINFO
    )))
}

fn run_attempts(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (pages, attempts) = (options.get_number("pages"), options.get_number("attempts"));
    let count = u32::try_from(attempts).unwrap_or(u32::MAX);
    let result = phase.measure(|| grow_pool(Some(pages).filter(|&pages| pages > 0), count))?;
    // What was requested; what the kernel found is the machine's.
    summarize(&result, [pages, attempts].into_iter().fold(0, mix_checksum))
}

/// The figures of at least one attempt.
fn summarize(result: &PoolResult, checksum: u64) -> WorkloadOutcome {
    let Some(last) = result.attempts.last() else {
        return Err(WorkloadError::InvalidOptions("attempts: expected at least 1".to_owned()));
    };
    let pages = |name, count: u64| Figure::new(name, "pages", BetterDirection::Higher, count as f64);
    let mut figures = vec![Figure::neutral("requested", "pages", result.target_pages as f64)];
    for ((pages_name, time_name), attempt) in ATTEMPT_FIGURES.iter().zip(&result.attempts) {
        figures.push(pages(pages_name, attempt.pages));
        figures.push(Figure::time(time_name, attempt.elapsed_ns as f64));
    }
    for (zone, name) in ZONE_FIGURES {
        let Ok(zones) = &last.zones else { break };
        let mut counts = zones.iter().filter(|(key, _)| key.zone == zone).map(|(_, count)| count).peekable();
        if counts.peek().is_some() {
            figures.push(Figure::neutral(name, "pages", counts.sum::<u64>() as f64));
        }
    }
    let times = result.attempts.iter().map(|attempt| attempt.elapsed_ns as f64);
    figures.push(Figure::time("time", times.sum()));
    let size = pagelab_model::size::format_exact(result.huge_page_size);
    let zones = match &last.zones {
        Ok(_) => String::new(),
        Err(absence) => format!("; not split by zone: {absence}"),
    };
    let share = if result.target_pages == 0 { 1.0 } else { last.pages as f64 / result.target_pages as f64 };
    Ok(WorkloadResult {
        figure_of_merit: Figure::new("share of requested", "1", BetterDirection::Higher, share),
        working_set: Bytes(last.pages.saturating_mul(result.huge_page_size.0)),
        checksum,
        latencies: None,
        figures,
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{} writes of {} huge pages of {size} to a pool of {}{zones}",
            result.attempts.len(),
            result.target_pages,
            result.former_pages
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};

    use pagelab_model::NodeId;

    use super::*;

    const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    /// A machine of 768 MiB with a pool of this many pages, which its meminfo says it has.
    fn tree(pool: u64, meminfo_pages: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let add = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        add(POOL, &format!("{pool}\n"));
        add("sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "0\n");
        add(
            "proc/meminfo",
            &format!(
                "MemTotal:         786432 kB\nHugePages_Total:  {meminfo_pages}\n\
                 HugePages_Free:   3\nHugepagesize:       2048 kB\n"
            ),
        );
        fs::create_dir_all(folder.path().join("run")).unwrap();
        folder
    }

    fn grow(base: &Path, target: Option<u64>, attempts: u32) -> Result<PoolResult, WorkloadError> {
        let root = Root::open(base).unwrap();
        let site = GuardSite::with_base(base).unwrap();
        PoolGrower { root: &root, page_size: PageSize::DEFAULT }.grow(&site, target, attempts)
    }

    fn pool_text(base: &Path) -> String {
        fs::read_to_string(base.join(POOL)).unwrap().trim().to_owned()
    }

    /// In a tree of files meminfo does not follow the pool: it says what it said.
    #[test]
    fn the_pool_is_as_before_after_success_and_after_an_error() {
        let folder = tree(5, "5");
        let done = grow(folder.path(), Some(5), 2).unwrap();
        assert_eq!((done.target_pages, done.former_pages, done.attempts.len()), (5, 5, 2));
        assert_eq!((done.attempts[1].pages, done.attempts[1].free_pages), (5, 3));
        assert!(done.attempts[0].zones.as_ref().is_err_and(|absence| absence.source.contains("zoneinfo")));
        assert_eq!(pool_text(folder.path()), "5");

        // The target is what memory could hold, 384 pages, and meminfo does not confirm it.
        let folder = tree(0, "0");
        let error = grow(folder.path(), None, 3).unwrap_err().to_string();
        assert!(error.contains("384") && error.contains("HugePages_Total"), "{error}");
        assert_eq!(pool_text(folder.path()), "0");
    }

    #[test]
    fn the_pool_is_as_before_after_a_panic() {
        let folder = tree(2, "7");
        let base: PathBuf = folder.path().to_owned();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let site = GuardSite::with_base(&base).unwrap();
            let guard = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
            let applied = guard.set_knob(&Knob::hugetlb(Bytes(2 << 20), None), "7").unwrap();
            assert_eq!((applied.actual.as_str(), pool_text(&base).as_str()), ("7", "7"));
            panic!("in the midst of it");
        }));
        assert!(panicked.is_err());
        assert_eq!(pool_text(&base), "2");
    }

    #[test]
    fn a_meminfo_without_huge_pages_is_an_error_with_its_reason() {
        for (meminfo, says, is_available) in [
            ("MemTotal: 786432 kB\n", "CONFIG_HUGETLBFS", false),
            ("MemTotal: 786432 kB\nHugepagesize: 0 kB\n", "CONFIG_HUGETLBFS", false),
            ("MemFree: 5 kB\nHugepagesize: 2048 kB\n", "expected a field MemTotal", true),
            ("MemTotal: 786432 kB\nHugepagesize: 2048 kB\n", "expected a field HugePages_Total", true),
            ("rubbish", "proc/meminfo", true),
        ] {
            let folder = tree(0, "0");
            fs::write(folder.path().join("proc/meminfo"), meminfo).unwrap();
            let error = grow(folder.path(), None, 3).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(!matches!(error, WorkloadError::NotAvailable(_)), is_available, "{error}");
            assert_eq!(pool_text(folder.path()), "0");
        }
    }

    #[test]
    fn figures_are_those_of_the_attempts() {
        let zone = |zone: &str, count| (ZoneKey { node: NodeId(0), zone: zone.to_owned() }, count);
        let attempt = |pages, elapsed_ns, zones| PoolAttempt { pages, free_pages: pages, elapsed_ns, zones };
        let zones = vec![zone("DMA", 0), zone("DMA32", 200), zone("Movable", 80)];
        let absent = || Err(Absence::new("/proc/kpageflags", AbsenceReason::NotPermitted, ""));
        let mut result = PoolResult {
            huge_page_size: Bytes(2 << 20),
            target_pages: 350,
            former_pages: 0,
            attempts: vec![attempt(100, 7, absent()), attempt(280, 9, Ok(zones))],
        };
        let done = summarize(&result, 3).unwrap();
        assert_eq!((done.figure_of_merit.value, done.checksum, done.working_set), (0.8, 3, Bytes(560 << 20)));
        let found: Vec<_> = done.figures.iter().map(|figure| (figure.name, figure.value)).collect();
        let expected = [
            ("requested", 350.0),
            ("pages_1", 100.0),
            ("time_1", 7.0),
            ("pages_2", 280.0),
            ("time_2", 9.0),
            ("pages_dma", 0.0),
            ("pages_dma32", 200.0),
            ("pages_movable", 80.0),
            ("time", 16.0),
        ];
        assert_eq!(found, expected);
        assert_eq!(done.generated_input, "2 writes of 350 huge pages of 2 MiB to a pool of 0");
        result.attempts.pop();
        let done = summarize(&result, 3).unwrap();
        assert!(
            done.generated_input.contains("not split by zone: /proc/kpageflags"),
            "{}",
            done.generated_input
        );
        result.attempts.clear();
        assert!(matches!(summarize(&result, 3), Err(WorkloadError::InvalidOptions(_))));
    }

    #[test]
    fn the_pool_of_a_host_is_left_alone() {
        let refused = grow_pool(Some(0), 1).unwrap_err();
        assert!(
            matches!(&refused, WorkloadError::NotAvailable(text) if text.contains("guest run")),
            "{refused}"
        );
    }
}
