//! Bytes in huge pages: anonymous, shared memory, files, hugetlb, and the huge page of zeros.
//!
//! What costs least comes first. The group's memory.stat tells the anonymous ones of the whole tree, status
//! the hugetlb ones, and where the machine's meminfo has none of a kind, the trial has none either. Only what
//! is left is asked of smaps_rollup, which makes the kernel walk all page tables of a process, and the page
//! of zeros, which neither file shows, of PAGEMAP_SCAN. Both wait for their allowance.

use pagelab_formats::smaps;
use pagelab_host::fast::{self, FastSnapshot};
use pagelab_host::machine::{live_page_size, pmd_size};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::experiment::{Better, measures};
use pagelab_model::{Absence, AbsentWhy, Bytes, PageSize, Reading};
use pagelab_sys::clock::{monotonic_ns, thread_cpu_ns};

use super::allowance::{Allowance, Pace};
use super::tree::{Look, Peak, Process, too_short};
use super::zero::Zero;
use super::{Found, Wanted};

/// Beside its share of the trial's time, half of that of the looks because the trial may wait for a walk,
/// each kind of walk may take a little at its start.
const GRACE_NS: u64 = 300_000;
/// First guesses, ns for each entry of a page table: smaps looks at the page behind it, PAGEMAP_SCAN does
/// not.
const SMAPS_NS: u64 = 120;
const SCAN_NS: u64 = 8;
/// Bytes of an entry of a page table on 64-bit machines.
const ENTRY_BYTES: u64 = 8;

/// The bytes of each kind.
#[derive(Debug)]
pub(super) struct Huge {
    root: Root,
    is_wanted: bool,
    page: PageSize,
    pmd: Bytes,
    meminfo: FastSnapshot,
    anon: Kind,
    anon_source: &'static str,
    shmem: Kind,
    file: Kind,
    hugetlb: Kind,
    zero_bytes: Kind,
    all: Peak,
    smaps: Walk,
    scan: Walk,
    zero: Zero,
}

/// The bytes of one kind over the looks.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    peak: Peak,
    /// Some look was answered by more than the machine having none of the kind.
    is_answered: bool,
    /// Some look had to leave open whether there are any.
    was_left_open: bool,
    /// The last look had to.
    is_open: bool,
}

impl Kind {
    fn saw(&mut self, bytes: u64) {
        (self.is_answered, self.is_open) = (true, false);
        self.peak.saw(bytes);
    }

    /// The machine has none of the kind, so the trial has none.
    fn none(&mut self) {
        self.is_open = false;
        self.peak.saw(0);
    }

    fn leave_open(&mut self) {
        (self.was_left_open, self.is_open) = (true, true);
    }

    /// What a look without an answer must not make of it: none.
    fn highest(self) -> Option<u64> {
        self.peak.highest().filter(|_| self.is_answered || !self.was_left_open)
    }

    fn last(self) -> Option<u64> {
        self.peak.last().filter(|_| !self.is_open)
    }
}

/// A kind of walk over page tables: what it may take, and what it does take.
#[derive(Debug)]
struct Walk {
    allowance: Allowance,
    pace: Pace,
    /// What the last walk that was not made would have taken, ns.
    refused_ns: u64,
    failed: Option<Absence>,
}

impl Walk {
    fn new(ns_per_entry: u64, share_permille: u64) -> Walk {
        let allowance = Allowance::new(1000 / 2 * share_permille, GRACE_NS);
        Walk { allowance, pace: Pace::guess(ns_per_entry), refused_ns: 0, failed: None }
    }

    /// Walks, if it may. Gives what it found and how long it took.
    fn run<T>(
        &mut self,
        elapsed_ns: u64,
        processes: u64,
        entries: u64,
        walk: impl FnOnce() -> Reading<T>,
    ) -> Option<(T, u64)> {
        let expected_ns = self.pace.expected_ns(processes, entries);
        if !self.allowance.permits(elapsed_ns, expected_ns) {
            self.refused_ns = expected_ns;
            return None;
        }
        let (began_ns, cpu_ns) = (monotonic_ns(), thread_cpu_ns());
        let walked = walk();
        let took_ns = monotonic_ns().saturating_sub(began_ns);
        let spent_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        self.allowance.spend(elapsed_ns, spent_ns, expected_ns);
        self.pace.learn(entries, spent_ns);
        match walked {
            Ok(found) => Some((found, took_ns)),
            Err(absence) => {
                self.failed.get_or_insert(absence);
                None
            }
        }
    }

    /// Why nothing is known of what it would have told.
    fn absence(&self, file: &str) -> Absence {
        if let Some(failed) = &self.failed {
            return failed.clone();
        }
        if self.refused_ns == 0 {
            return too_short();
        }
        let detail = format!(
            "a walk over its page tables would have taken about {} ms, more than {:.1} ‰ of the time it ran",
            self.refused_ns.div_ceil(1_000_000),
            self.allowance.share_ppm() as f64 / 1000.0
        );
        Absence::new(file, AbsentWhy::NotAsked, detail).or("a longer trial")
    }
}

/// What smaps_rollup says of all processes, bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Rollup {
    anon: u64,
    shmem: u64,
    file: u64,
}

impl Huge {
    pub(super) fn prepare(root: &Root, wanted: &Wanted) -> Huge {
        let page = live_page_size().unwrap_or(PageSize::USUAL);
        let pmd = pmd_size(&Reader::new(root), page);
        let only_meminfo =
            fast::Wanted { meminfo: wanted.huge, vmstat: false, buddyinfo: false, pressure: false };
        Huge {
            root: root.clone(),
            is_wanted: wanted.huge,
            page,
            pmd,
            meminfo: FastSnapshot::open(root, only_meminfo),
            anon: Kind::default(),
            anon_source: SMAPS,
            shmem: Kind::default(),
            file: Kind::default(),
            hugetlb: Kind::default(),
            zero_bytes: Kind::default(),
            all: Peak::default(),
            smaps: Walk::new(SMAPS_NS, wanted.share_permille),
            scan: Walk::new(SCAN_NS, wanted.share_permille),
            zero: if wanted.huge { Zero::prepare(root, page, pmd) } else { Zero::default() },
        }
    }

    /// Takes in one look, and returns how long the kernel walked page tables for it, ns.
    pub(super) fn look(&mut self, look: &Look, elapsed_ns: u64) -> u64 {
        if !self.is_wanted {
            return 0;
        }
        self.hugetlb.saw(look.processes.iter().map(|process| process.hugetlb).sum());
        let charged = charged(look);
        if let Some((bytes, source)) = charged {
            self.anon.saw(bytes);
            self.anon_source = source;
        }
        let entries = entries(&look.processes, charged.map_or(0, |(bytes, _)| bytes), self.page);
        // The cheaper walk first: where it meets no huge page of a file, the other need not look for them.
        let scan_ns = self.zero_pages(look, entries, elapsed_ns);
        let has_no_files = scan_ns > 0 && self.zero.file_bytes == Some(0);
        let stop_ns = scan_ns + self.rollup(look, charged.is_none(), has_no_files, entries, elapsed_ns);
        let parts = [self.anon, self.shmem, self.file, self.hugetlb];
        if self.anon.highest().is_some() {
            // What this look left open is as it was.
            self.all.saw(parts.iter().filter_map(|part| part.peak.last()).sum());
        }
        stop_ns
    }

    /// Shared memory and files, and anonymous memory where the group does not tell it.
    fn rollup(
        &mut self,
        look: &Look,
        needs_anon: bool,
        has_no_files: bool,
        entries: u64,
        elapsed_ns: u64,
    ) -> u64 {
        let sum = |of: fn(&Process) -> u64| look.processes.iter().map(of).sum::<u64>();
        let fits = |bytes: u64| bytes >= self.pmd.0;
        let [may_shmem, may_file] =
            [sum(|p| p.shmem), sum(|p| p.file)].map(|bytes| fits(bytes) && !has_no_files);
        let may_anon = needs_anon && fits(sum(|p| p.anonymous));
        let mut machine = [0; 3];
        if may_anon || may_shmem || may_file {
            self.meminfo.sample();
            // A kernel without the line has no such pages: shared memory got them with 4.8, files with 5.4.
            machine = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].map(|name| {
                self.meminfo.meminfo().map_or(u64::MAX, |of| of.bytes(name).map_or(0, |bytes| bytes.0))
            });
        }
        let [anon, shmem, file] = [(may_anon, machine[0]), (may_shmem, machine[1]), (may_file, machine[2])]
            .map(|(may, machine)| may && machine > 0);
        let kinds = [
            (&mut self.shmem, shmem, true),
            (&mut self.file, file, true),
            (&mut self.anon, anon, needs_anon),
        ];
        for (kind, asks, is_ours) in kinds {
            match asks {
                true => kind.leave_open(),
                false if is_ours => kind.none(),
                false => {}
            }
        }
        if !(anon || shmem || file) {
            return 0;
        }
        let root = &self.root;
        let walk = || rollups(root, &look.processes);
        let processes = look.processes.len() as u64;
        let Some((of, took_ns)) = self.smaps.run(elapsed_ns, processes, entries, walk) else { return 0 };
        let kinds = [
            (&mut self.shmem, shmem, of.shmem),
            (&mut self.file, file, of.file),
            (&mut self.anon, anon, of.anon),
        ];
        for (kind, _, bytes) in kinds.into_iter().filter(|(_, asks, _)| *asks) {
            kind.saw(bytes);
        }
        took_ns
    }

    fn zero_pages(&mut self, look: &Look, entries: u64, elapsed_ns: u64) -> u64 {
        let (root, zero) = (&self.root, &mut self.zero);
        let walk = || zero.bytes(root, &look.processes);
        let Some((bytes, took_ns)) = self.scan.run(elapsed_ns, look.processes.len() as u64, entries, walk)
        else {
            return 0;
        };
        self.zero_bytes.saw(bytes);
        took_ns
    }

    pub(super) fn measures(&self, found: &mut Found) {
        if !self.is_wanted {
            return;
        }
        let (smaps, scan) = (self.smaps.absence("smaps_rollup"), self.scan.absence("PAGEMAP_SCAN"));
        let kinds = [
            ("huge.anon", self.anon, &smaps, self.anon_source),
            ("huge.shmem", self.shmem, &smaps, "ShmemPmdMapped of smaps_rollup, summed over its processes"),
            ("huge.file", self.file, &smaps, "FilePmdMapped of smaps_rollup, summed over its processes"),
            ("huge.hugetlb", self.hugetlb, &too_short(), "HugetlbPages of status, summed over its processes"),
            ("huge.zero", self.zero_bytes, &scan, self.zero.source()),
        ];
        for (name, kind, absence, source) in kinds {
            let at = |value: Option<u64>| value.ok_or_else(|| absence.clone());
            let better = if name == "huge.zero" { Better::Neither } else { Better::Higher };
            found.bytes(name, better, at(kind.highest()), source);
            found.bytes(format!("{name}.last"), better, at(kind.last()), source);
        }
        let unknown: Vec<&str> = [("shared memory", self.shmem), ("files", self.file)]
            .iter()
            .filter(|(_, kind)| kind.highest().is_none())
            .map(|(name, _)| *name)
            .collect();
        let mut source = "the highest sum at one look, the page of zeros left out".to_owned();
        if !unknown.is_empty() {
            source.push_str(&format!("; {} not looked at", unknown.join(" and ")));
        }
        let all = self.all.highest().ok_or_else(|| smaps.clone());
        found.bytes(measures::HUGE, Better::Higher, all, &source);
    }
}

const SMAPS: &str = "AnonHugePages of smaps_rollup, summed over its processes";

/// Anonymous bytes in huge pages as the group is charged for them: each page once, however many processes map
/// it.
fn charged(look: &Look) -> Option<(u64, &'static str)> {
    let (stat, is_v2) = look.stat.as_ref()?;
    match is_v2 {
        true => Some((stat.get("anon_thp")?, "anon_thp of memory.stat of its cgroup")),
        false => Some((stat.get("total_rss_huge")?, "total_rss_huge of memory.stat of its cgroup")),
    }
}

/// Entries of page tables that a walk will look at, about: those of base pages that are there, and not more
/// than the page tables have room for. A huge anonymous page keeps an empty table in reserve
/// (`pgtable_trans_huge_deposit`).
fn entries(processes: &[Process], anon_huge: u64, page: PageSize) -> u64 {
    let resident: u64 =
        processes.iter().map(|p| p.anonymous.saturating_add(p.file).saturating_add(p.shmem)).sum();
    let tables: u64 = processes.iter().map(|process| process.page_tables).sum();
    let huge = anon_huge / page.bytes();
    (resident / page.bytes()).saturating_sub(huge).min((tables / ENTRY_BYTES).saturating_sub(huge))
}

/// The sums of smaps_rollup. A process that has ended meanwhile has nothing; one that may not be looked at is
/// an absence.
fn rollups(root: &Root, processes: &[Process]) -> Reading<Rollup> {
    let mut sum = Rollup::default();
    for process in processes {
        let path = paths::process(process.pid, "smaps_rollup");
        let text = match root.read(&path) {
            Ok(text) => text,
            Err(absence) if absence.why == AbsentWhy::NotPermitted => return Err(absence),
            Err(_) => continue,
        };
        // Empty of a process that has ended and is not yet waited for.
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
        let page = PageSize::USUAL;
        let gib = 1u64 << 30;
        let process =
            |anonymous: u64, page_tables: u64| Process { anonymous, page_tables, ..Process::default() };
        let tables = gib / page.bytes() * ENTRY_BYTES;
        assert_eq!(entries(&[process(gib, tables)], 0, page), gib / page.bytes());
        assert_eq!(entries(&[process(gib, tables)], gib, page), 0, "all of it in huge pages");
        // Shared memory in huge pages has no tables at all.
        let shared = Process { shmem: gib, page_tables: 2 * page.bytes(), ..Process::default() };
        assert!(entries(&[shared], 0, page) <= 2 * page.bytes() / ENTRY_BYTES);
    }

    #[test]
    fn what_was_left_open_is_not_none() {
        let mut kind = Kind::default();
        assert_eq!((kind.highest(), kind.last()), (None, None));
        kind.none();
        assert_eq!((kind.highest(), kind.last()), (Some(0), Some(0)));
        kind.leave_open();
        assert_eq!((kind.highest(), kind.last()), (None, None), "there may be some now");
        kind.none();
        assert_eq!((kind.highest(), kind.last()), (None, Some(0)), "there may have been some");
        kind.leave_open();
        kind.saw(7);
        assert_eq!((kind.highest(), kind.last()), (Some(7), Some(7)));
        kind.leave_open();
        assert_eq!((kind.highest(), kind.last()), (Some(7), None));
    }

    #[test]
    fn a_walk_that_was_not_made_says_why() {
        let mut walk = Walk::new(SMAPS_NS, 1);
        assert_eq!(walk.absence("smaps_rollup").why, AbsentWhy::Undefined, "the trial was too short");
        assert!(walk.run(100_000_000, 1, 1 << 20, || Ok(())).is_none());
        let absence = walk.absence("smaps_rollup");
        assert_eq!(absence.why, AbsentWhy::NotAsked);
        assert!(absence.detail.contains("about 126 ms, more than 0.5 ‰"), "{}", absence.detail);
        assert!(walk.run(1_000_000_000_000, 1, 1 << 20, || Ok(())).is_some());
        let refused = Absence::new("x", AbsentWhy::NotPermitted, "");
        assert!(walk.run(1_000_000_000_000, 1, 0, || Err::<(), _>(refused.clone())).is_none());
        assert_eq!(walk.absence("smaps_rollup"), refused);
    }
}
