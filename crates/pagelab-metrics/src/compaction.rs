//! Result of a compaction: two snapshots of one machine, and the kernel's counters between them.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Bytes, Counters, Order, Pfn, Reading, Snapshot};

use crate::checkup::{Checkup, ZoneFragmentation};

/// Action between the two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionActions {
    /// Nanoseconds that dropping caches took; `None` if none was dropped.
    pub drop_caches_ns: Option<u64>,
    /// Compaction was requested from the kernel.
    pub kernel: Option<KernelCompaction>,
    /// Huge pages were requested until none was allocated, and then freed.
    pub requests: Option<RequestCompaction>,
}

/// A write to `compact_memory`, or to `compact` of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCompaction {
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// Number of requests; each earlier run had ended early and gained something.
    pub run_count: u32,
    /// Where the scanners of the last run stopped, zone by zone, by tracepoints.
    pub runs: Reading<Vec<ScannerRun>>,
    /// Counters of vmstat meanwhile.
    pub counter_deltas: Vec<CounterDelta>,
    /// Available huge pages at its end; `None` if it was not measured.
    pub huge_pages_after: Option<u64>,
}

/// Asking for huge pages, each of which has the kernel compact until there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCompaction {
    /// Number of rounds; between two rounds everything is freed and the kernel compacts again.
    pub rounds: u32,
    /// Nanoseconds that it took, giving back and compacting in between included.
    pub took_ns: u64,
    /// The maximum allocated at once; all of it was freed.
    pub allocated_bytes: Bytes,
    /// Allocated huge pages, and those of them for which the kernel had to compact.
    pub allocated: u64,
    /// See `got`.
    pub allocated_by_collapse: u64,
    /// Why it ended, in words.
    pub stop_reason: &'static str,
    /// Positions of the kernel's scanners after the last compaction; `None` without a further request.
    pub runs: Option<Reading<Vec<ScannerRun>>>,
}

/// A zone in which the kernel ended early.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyEnd {
    /// Zone; `None` if only counters are known.
    pub zone: Option<ZoneKey>,
    /// Why.
    pub cause: EarlyCause,
    /// Share of the zone that was not scanned, 0 to 1; `None` if only counters are known.
    pub unscanned_share: Option<f64>,
}

/// Two looks, judged, and how long the acts between them took.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionReport {
    /// The first look.
    pub before: Checkup,
    /// The second.
    pub after: Checkup,
    /// Counters of `/proc/vmstat` that this kernel has.
    pub counter_deltas: Vec<CounterDelta>,
    /// Steps.
    pub actions: CompactionActions,
    /// Zones in which the kernel ended early; also empty without a request to compact.
    pub early_ends: Vec<EarlyEnd>,
    /// Zones in which it still ended early at the end; `None` without a further request.
    pub early_ends_last: Option<Vec<EarlyEnd>>,
    /// Bytes by which the page cache (`Cached` and `Buffers`) shrank, and slab; `None` without meminfo.
    pub cache_shrinkage: Option<CacheShrinkage>,
}

/// By how much caches shrank between the looks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShrinkage {
    /// `Cached` and `Buffers`.
    pub page_cache: i128,
    /// `Slab`.
    pub slab: i128,
}

/// One counter between the looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterDelta {
    /// Its name in `/proc/vmstat`.
    pub name: &'static str,
    /// Whose work it counts.
    pub worker: CompactionWorker,
    /// By how much it rose.
    pub delta: u64,
}

/// Whose work a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionWorker {
    /// Every compaction: this one, kcompactd's and that of programs that wait for a huge page.
    All,
    /// Only compaction that an allocation waited for: never this one.
    Direct,
    /// Only kcompactd.
    Kcompactd,
}

/// The counters, with whose work they count (mm/vmstat.c, `vmstat_text`; compaction since 2.6.35,
/// `thp_migration` since 4.14).
const COUNTERS: [(&str, CompactionWorker); 14] = [
    ("pgmigrate_success", CompactionWorker::All),
    ("pgmigrate_fail", CompactionWorker::All),
    ("compact_isolated", CompactionWorker::All),
    ("compact_migrate_scanned", CompactionWorker::All),
    ("compact_free_scanned", CompactionWorker::All),
    ("thp_migration_success", CompactionWorker::All),
    ("thp_migration_fail", CompactionWorker::All),
    ("thp_migration_split", CompactionWorker::All),
    ("compact_stall", CompactionWorker::Direct),
    ("compact_success", CompactionWorker::Direct),
    ("compact_fail", CompactionWorker::Direct),
    ("compact_daemon_wake", CompactionWorker::Kcompactd),
    ("compact_daemon_migrate_scanned", CompactionWorker::Kcompactd),
    ("compact_daemon_free_scanned", CompactionWorker::Kcompactd),
];

/// Result of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionVerdict {
    /// This number of additional huge pages is available now.
    Gained(u64),
    /// No more, and none was missing: every block is free, huge, or polluted.
    NothingToDo,
    /// No more, although there are blocks that are neither free nor huge pages.
    NothingChanged,
}

impl CompactionReport {
    /// Judges two looks.
    pub fn compare_snapshots(
        before: &Snapshot,
        after: &Snapshot,
        actions: CompactionActions,
    ) -> CompactionReport {
        let counter_deltas = match (&before.vmstat, &after.vmstat) {
            (Ok(before), Ok(after)) => counter_deltas(before, after),
            _ => Vec::new(),
        };
        let meminfo_bytes = |snapshot: &Snapshot, names: &[&str]| {
            let meminfo = snapshot.meminfo.as_ref().ok()?;
            names.iter().map(|name| Some(i128::from(meminfo.bytes(name)?.0))).sum::<Option<i128>>()
        };
        let shrinkage_of =
            |names: &[&str]| Some(meminfo_bytes(before, names)? - meminfo_bytes(after, names)?);
        let shrinkage = shrinkage_of(&["Cached", "Buffers"]).zip(shrinkage_of(&["Slab"]));
        let cache_shrinkage = shrinkage.map(|(page_cache, slab)| CacheShrinkage { page_cache, slab });
        let early_ends = actions.kernel.as_ref().map_or_else(Vec::new, |act| find_early_ends(before, act));
        let last_runs = actions.requests.as_ref().and_then(|act| act.runs.as_ref()?.as_ref().ok());
        let early_ends_last = last_runs.map(|runs| early_ends_of_runs(before, runs));
        let (before, after) = (Checkup::from_snapshot(before), Checkup::from_snapshot(after));
        CompactionReport {
            before,
            after,
            counter_deltas,
            actions,
            early_ends,
            early_ends_last,
            cache_shrinkage,
        }
    }

    /// The zones of both looks, by the first.
    pub fn zones(&self) -> impl Iterator<Item = (&ZoneFragmentation, &ZoneFragmentation)> {
        let after = |key: &ZoneKey| self.after.zones.iter().find(|zone| &zone.key == key);
        self.before.zones.iter().filter_map(move |zone| Some((zone, after(&zone.key)?)))
    }

    /// Result according to the free lists, which also contain what other programs allocated and freed
    /// meanwhile.
    pub fn verdict(&self) -> CompactionVerdict {
        let (before, after) = (self.before.free_huge_pages(), self.after.free_huge_pages());
        if after > before {
            return CompactionVerdict::Gained(after - before);
        }
        let missing = self.after.supply.as_ref().ok().map(|supply| {
            let total = &supply.total;
            let huge_or_free = [total.free, total.deferred, total.in_use, total.polluted.high];
            total.units.value
                > huge_or_free.iter().map(|estimate| estimate.value).fold(0, u64::saturating_add)
        });
        if missing == Some(false) {
            CompactionVerdict::NothingToDo
        } else {
            CompactionVerdict::NothingChanged
        }
    }
}

/// The zones in which the kernel ended before its scanners met: by the tracepoints, else by the counters.
pub fn find_early_ends(before: &Snapshot, compaction: &KernelCompaction) -> Vec<EarlyEnd> {
    match &compaction.runs {
        Ok(runs) => early_ends_of_runs(before, runs),
        Err(_) => early_end_from_counters(compaction, before.pageblock_order).into_iter().collect(),
    }
}

fn early_ends_of_runs(before: &Snapshot, runs: &[ScannerRun]) -> Vec<EarlyEnd> {
    let block = before.pageblock_order;
    let zones = before.zoneinfo.as_ref().map_or(&[][..], |zoneinfo| &zoneinfo.zones);
    let of_run = |run: &ScannerRun| {
        let zone = zones.iter().find(|zone| zone.start == Some(run.zone_start)).map(|zone| zone.key.clone());
        Some(EarlyEnd { zone, cause: run.early_cause(block)?, unscanned_share: Some(run.unscanned_share()) })
    };
    runs.iter().filter_map(of_run).collect()
}

/// Pages could not be moved, and less than a block was moved and scanned for free pages: the scanners cannot
/// have met in a zone with movable pages.
fn early_end_from_counters(compaction: &KernelCompaction, block: Order) -> Option<EarlyEnd> {
    let rose = |name: &str| find_delta(&compaction.counter_deltas, name);
    let less = |name: &str| Some(rose(name)? < block.to_pages().0);
    let is_early = rose("pgmigrate_fail")? > 0 && less("pgmigrate_success")? && less("compact_free_scanned")?;
    is_early.then_some(EarlyEnd { zone: None, cause: EarlyCause::NoMigrationTarget, unscanned_share: None })
}

/// By how much a counter rose; `None` if this kernel does not have it.
pub fn find_delta(deltas: &[CounterDelta], name: &str) -> Option<u64> {
    deltas.iter().find(|of| of.name == name).map(|of| of.delta)
}

/// Increase of the counters; those that this kernel lacks are not listed.
pub fn counter_deltas(before: &Counters, after: &Counters) -> Vec<CounterDelta> {
    let delta_of = |&(name, by): &(&'static str, CompactionWorker)| {
        Some(CounterDelta { name, worker: by, delta: after.get(name)?.wrapping_sub(before.get(name)?) })
    };
    COUNTERS.iter().filter_map(delta_of).collect()
}

// Scanners of compaction, zone by zone: where they stopped, and whether that was before they met.
//
// A write to `compact_memory` always succeeds, independent of the result. The tracepoint `mm_compaction_end`
// reports where a zone ended; the `mm_compaction_migratepages` before it shows why.

/// `COMPACT_CONTENDED` (include/linux/compaction.h; 7 since Linux 4.8, and the tracepoint's format names it).
pub const COMPACT_CONTENDED: i64 = 7;

/// One zone, from `mm_compaction_begin` to `mm_compaction_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannerRun {
    /// First frame of the zone.
    pub zone_start: Pfn,
    /// The frame after its last.
    pub zone_end: Pfn,
    /// End position of the migration scanner, which moves up.
    pub migrate_pfn: Pfn,
    /// End position of the free scanner, which moves down.
    pub free_pfn: Pfn,
    /// The kernel's `enum compact_result`.
    pub status: i64,
    /// Pages that could not be moved, in all its batches.
    pub failed_pages: u64,
}

/// Why scanners stopped before they met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCause {
    /// Pages were to be moved and none of the pieces that had been found for them was large enough. Folios
    /// are moved whole; one whose split fails as well ends the zone (mm/compaction.c, `compact_zone`: -ENOMEM
    /// from `migrate_pages`, 6.9 and later for large folios).
    NoMigrationTarget,
    /// A signal, or a lock that another task held for too long.
    Interrupted,
    /// The kernel does not say.
    Unknown,
}

impl ScannerRun {
    /// Whether the scanners have met, by blocks of `block` (mm/compaction.c, `compact_scanners_met`).
    pub fn has_met(&self, block: Order) -> bool {
        let block_of = |pfn: Pfn| pfn.0.checked_shr(block.0.into()).unwrap_or(0);
        block_of(self.free_pfn) <= block_of(self.migrate_pfn)
    }

    /// Why it ended early; `None` if the scanners have met.
    pub fn early_cause(&self, block: Order) -> Option<EarlyCause> {
        match (self.has_met(block), self.status, self.failed_pages) {
            (true, ..) => None,
            (false, COMPACT_CONTENDED, 0) => Some(EarlyCause::Interrupted),
            (false, COMPACT_CONTENDED, _) => Some(EarlyCause::NoMigrationTarget),
            (false, ..) => Some(EarlyCause::Unknown),
        }
    }

    /// The share of the zone's frames that neither scanner has come to, 0 to 1.
    pub fn unscanned_share(&self) -> f64 {
        let span = self.zone_end.0.saturating_sub(self.zone_start.0).max(1);
        (self.free_pfn.0.saturating_sub(self.migrate_pfn.0) as f64 / span as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::free_areas::ZoneFreeAreas;
    use pagelab_model::{Absence, AbsenceReason, BuddyInfo, FreeAreas, NodeId, PageSize};

    use super::*;

    fn snapshot(counts: &[u64], moved: u64) -> Snapshot {
        let mut snapshot = Snapshot::new_unread("a test", PageSize::DEFAULT);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let areas = FreeAreas::new(counts.to_vec()).unwrap();
        snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFreeAreas { key, areas }] });
        snapshot.vmstat = Ok([("pgmigrate_success", moved), ("compact_stall", 5)].into_iter().collect());
        snapshot
    }

    #[test]
    fn what_came_of_it_is_told_by_the_free_lists_and_the_counters() {
        let whole = [0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
        let broken = [1536, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let cases = [
            (broken, whole, CompactionVerdict::Gained(3)),
            (whole, whole, CompactionVerdict::NothingChanged),
            (whole, broken, CompactionVerdict::NothingChanged),
        ];
        for (before, after, verdict) in cases {
            let compaction = CompactionReport::compare_snapshots(
                &snapshot(&before, 10),
                &snapshot(&after, 52),
                CompactionActions::default(),
            );
            assert_eq!(compaction.verdict(), verdict, "{before:?} {after:?}");
            let rose = |name: &str| find_delta(&compaction.counter_deltas, name);
            assert_eq!(rose("pgmigrate_success"), Some(42));
            assert_eq!(rose("compact_stall"), Some(0));
            assert_eq!(rose("compact_isolated"), None, "this kernel does not count it");
            assert_eq!(compaction.zones().count(), 1);
        }
    }

    #[test]
    fn without_tracepoints_the_counters_tell_an_early_end() {
        let act = |moved, failed, looked| KernelCompaction {
            took_ns: 1,
            run_count: 1,
            runs: Err(Absence::new("mm_compaction_end", AbsenceReason::NotRequested, "not traced")),
            counter_deltas: [
                ("pgmigrate_success", moved),
                ("pgmigrate_fail", failed),
                ("compact_free_scanned", looked),
            ]
            .map(|(name, rose)| CounterDelta { name, worker: CompactionWorker::All, delta: rose })
            .to_vec(),
            huge_pages_after: None,
        };
        let block = |blocks: u64| blocks * 512;
        // Observed on Linux 6.18: 9 pages moved, 256 scanned for free pages; and one complete compaction.
        for (act, early) in [
            (act(9, 32, 256), true),
            (act(9, 0, 256), false),
            (act(89_760, 33, 102_407), false),
            (act(9, 32, block(1)), false),
            (act(0, 0, 0), false),
        ] {
            let found = find_early_ends(&snapshot(&[0; 10], 0), &act);
            assert_eq!(!found.is_empty(), early, "{act:?}");
        }
        let nothing = KernelCompaction { counter_deltas: Vec::new(), ..act(0, 0, 0) };
        assert!(
            find_early_ends(&snapshot(&[0; 10], 0), &nothing).is_empty(),
            "an old kernel counts none of it"
        );
    }

    #[test]
    fn an_early_end_is_told_by_its_zone() {
        let mut before = snapshot(&[0; 10], 0);
        let mut zone =
            pagelab_model::zoneinfo::ZoneEntry::empty(ZoneKey { node: NodeId(0), zone: "Normal".into() });
        zone.start = Some(Pfn(0x1000));
        before.zoneinfo = Ok(pagelab_model::Zoneinfo { nodes: Vec::new(), zones: vec![zone] });
        let run = ScannerRun {
            zone_start: Pfn(0x1000),
            zone_end: Pfn(0x9000),
            migrate_pfn: Pfn(0x1040),
            free_pfn: Pfn(0x8e00),
            status: COMPACT_CONTENDED,
            failed_pages: 31,
        };
        let met = ScannerRun { migrate_pfn: run.free_pfn, status: 5, ..run };
        let act = KernelCompaction {
            took_ns: 1,
            run_count: 1,
            runs: Ok(vec![met, run]),
            counter_deltas: Vec::new(),
            huge_pages_after: None,
        };
        let early = find_early_ends(&before, &act);
        assert_eq!(early.len(), 1);
        assert_eq!(early[0].zone.as_ref().unwrap().zone, "Normal");
        assert_eq!(early[0].cause, EarlyCause::NoMigrationTarget);
    }

    fn run(migrate: u64, free: u64, status: i64, failed: u64) -> ScannerRun {
        let (first, end) = (Pfn(0x1000), Pfn(0x9000));
        ScannerRun {
            zone_start: first,
            zone_end: end,
            migrate_pfn: Pfn(migrate),
            free_pfn: Pfn(free),
            status,
            failed_pages: failed,
        }
    }

    #[test]
    fn scanners_that_have_not_met_ended_early_and_the_last_batch_says_why() {
        for (run, early) in [
            // Seen on Linux 6.18: both in the same block, 0x60be00 and 0x60bf00 there.
            (run(0x5e00, 0x5f00, 5, 0), None),
            (run(0x8e00, 0x8e00, 5, 0), None),
            (run(0x6000, 0x5e00, 6, 3), None),
            (run(0x1020, 0x8e00, COMPACT_CONTENDED, 31), Some(EarlyCause::NoMigrationTarget)),
            (run(0x1020, 0x8e00, COMPACT_CONTENDED, 0), Some(EarlyCause::Interrupted)),
            (run(0x1020, 0x8e00, 8, 0), Some(EarlyCause::Unknown)),
        ] {
            assert_eq!(run.early_cause(Order(9)), early, "{run:?}");
        }
        assert!((run(0x1000, 0x9000, 7, 1).unscanned_share() - 1.0).abs() < 1e-9);
        assert!(run(0x5e00, 0x5d00, 5, 0).unscanned_share() < 1e-9);
        let hostile = ScannerRun { zone_end: Pfn(0), ..run(u64::MAX, 0, i64::MIN, u64::MAX) };
        assert_eq!((hostile.early_cause(Order(255)), hostile.unscanned_share() < 1e-9), (None, true));
    }
}
