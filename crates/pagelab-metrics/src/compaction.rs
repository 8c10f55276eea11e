//! What a compaction came to: two looks at one machine, and the kernel's counters between them.

mod scanners;

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Absence, AbsentWhy, Bytes, Counters, Order, Reading, Snapshot};

use crate::checkup::{Checkup, ZoneIndex};

pub use scanners::{CONTENDED, EarlyCause, ScannerRun};

/// What was done between the looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acts {
    /// Nanoseconds that dropping caches took; `None` if none was dropped.
    pub drop_ns: Option<u64>,
    /// The kernel was told to compact.
    pub kernel: Option<KernelAct>,
    /// Huge pages were asked for until none came, and given back.
    pub asking: Option<AskingAct>,
}

/// A write to `compact_memory`, or to `compact` of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelAct {
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// How often it was told, since each run before had ended early and gained something.
    pub times: u32,
    /// Where the scanners of the last run stopped, zone by zone, by tracepoints.
    pub runs: Reading<Vec<ScannerRun>>,
    /// Counters of vmstat meanwhile.
    pub activity: Vec<Activity>,
    /// Huge pages to be had when it was done; `None` where nobody looked.
    pub huge_after: Option<u64>,
}

/// Asking for huge pages, each of which has the kernel compact until there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskingAct {
    /// How often it was asked; between two times everything goes back and the kernel compacts again.
    pub rounds: u32,
    /// Nanoseconds that it took, giving back and compacting in between included.
    pub took_ns: u64,
    /// The most that was taken at once; all of it was given back.
    pub taken: Bytes,
    /// Huge pages that came, and of those, for which the kernel had to compact.
    pub got: u64,
    /// See `got`.
    pub by_collapse: u64,
    /// Why it ended, in words.
    pub stopped: &'static str,
    /// Where the kernel's scanners stopped when it compacted last; `None` where it was not told again.
    pub runs: Option<Reading<Vec<ScannerRun>>>,
}

/// A zone in which the kernel ended early.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyEnd {
    /// The zone; `None` where only counters tell.
    pub zone: Option<ZoneKey>,
    /// Why.
    pub cause: EarlyCause,
    /// The share of the zone that was not scanned, 0 to 1; `None` where only counters tell.
    pub unscanned: Option<f64>,
}

/// Two looks, judged, and how long the acts between them took.
#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    /// The first look.
    pub before: Checkup,
    /// The second.
    pub after: Checkup,
    /// Counters of `/proc/vmstat`, as far as this kernel has them.
    pub activity: Vec<Activity>,
    /// What was done.
    pub acts: Acts,
    /// Zones in which the kernel ended early; empty as well where it was not told to compact.
    pub early: Vec<EarlyEnd>,
    /// Zones in which it still did when all was done; `None` where it was not told again.
    pub early_at_end: Option<Vec<EarlyEnd>>,
    /// Bytes by which the page cache (`Cached` and `Buffers`) shrank, and slab; `None` without meminfo.
    pub freed: Option<Freed>,
}

/// By how much caches shrank between the looks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// `Cached` and `Buffers`.
    pub page_cache: i128,
    /// `Slab`.
    pub slab: i128,
}

/// One counter between the looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Its name in `/proc/vmstat`.
    pub name: &'static str,
    /// Whose work it counts.
    pub by: Worker,
    /// By how much it rose.
    pub rose: u64,
}

/// Whose work a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Every compaction: this one, kcompactd's and that of programs that wait for a huge page.
    All,
    /// Only compaction that an allocation waited for: never this one.
    Direct,
    /// Only kcompactd.
    Daemon,
}

/// The counters, with whose work they count (mm/vmstat.c, `vmstat_text`; compaction since 2.6.35,
/// `thp_migration` since 4.14).
const COUNTERS: [(&str, Worker); 14] = [
    ("pgmigrate_success", Worker::All),
    ("pgmigrate_fail", Worker::All),
    ("compact_isolated", Worker::All),
    ("compact_migrate_scanned", Worker::All),
    ("compact_free_scanned", Worker::All),
    ("thp_migration_success", Worker::All),
    ("thp_migration_fail", Worker::All),
    ("thp_migration_split", Worker::All),
    ("compact_stall", Worker::Direct),
    ("compact_success", Worker::Direct),
    ("compact_fail", Worker::Direct),
    ("compact_daemon_wake", Worker::Daemon),
    ("compact_daemon_migrate_scanned", Worker::Daemon),
    ("compact_daemon_free_scanned", Worker::Daemon),
];

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// So many huge pages more can be had now.
    Gained(u64),
    /// No more, and none was missing: every block is free, huge, or spoiled.
    NothingToDo,
    /// No more, although there are blocks that are neither free nor huge pages.
    NothingChanged,
}

impl Compaction {
    /// Judges two looks.
    pub fn of(before: &Snapshot, after: &Snapshot, acts: Acts) -> Compaction {
        let activity = match (&before.vmstat, &after.vmstat) {
            (Ok(before), Ok(after)) => activity(before, after),
            _ => Vec::new(),
        };
        let amount = |snapshot: &Snapshot, names: &[&str]| {
            let meminfo = snapshot.meminfo.as_ref().ok()?;
            names.iter().map(|name| Some(i128::from(meminfo.bytes(name)?.0))).sum::<Option<i128>>()
        };
        let shrank = |names: &[&str]| Some(amount(before, names)? - amount(after, names)?);
        let freed = shrank(&["Cached", "Buffers"]).zip(shrank(&["Slab"]));
        let freed = freed.map(|(page_cache, slab)| Freed { page_cache, slab });
        let early = acts.kernel.as_ref().map_or_else(Vec::new, |act| ended_early(before, act));
        let again = acts.asking.as_ref().and_then(|act| act.runs.as_ref()?.as_ref().ok());
        let early_at_end = again.map(|runs| ends_of(before, runs));
        let (before, after) = (Checkup::of(before), Checkup::of(after));
        Compaction { before, after, activity, acts, early, early_at_end, freed }
    }

    /// The zones of both looks, by the first.
    pub fn zones(&self) -> impl Iterator<Item = (&ZoneIndex, &ZoneIndex)> {
        let after = |key: &ZoneKey| self.after.zones.iter().find(|zone| &zone.key == key);
        self.before.zones.iter().filter_map(move |zone| Some((zone, after(&zone.key)?)))
    }

    /// What came of it, by the free lists; on a machine at work also what others freed and took meanwhile.
    pub fn verdict(&self) -> Verdict {
        let (before, after) = (self.before.huge_now(), self.after.huge_now());
        if after > before {
            return Verdict::Gained(after - before);
        }
        let missing = self.after.supply.as_ref().ok().map(|supply| {
            let total = &supply.total;
            let settled = [total.free_now, total.deferred, total.in_use, total.spoiled.high];
            total.units.value > settled.iter().map(|estimate| estimate.value).fold(0, u64::saturating_add)
        });
        if missing == Some(false) { Verdict::NothingToDo } else { Verdict::NothingChanged }
    }

    /// One counter.
    pub fn rose(&self, name: &str) -> Option<u64> {
        self.activity.iter().find(|activity| activity.name == name).map(|activity| activity.rose)
    }
}

/// The zones in which the kernel ended before its scanners met: by the tracepoints, else by the counters.
pub fn ended_early(before: &Snapshot, act: &KernelAct) -> Vec<EarlyEnd> {
    let block = before.pageblock_order;
    match &act.runs {
        Ok(runs) => ends_of(before, runs),
        Err(_) => early_by_counters(act, block).into_iter().collect(),
    }
}

/// The runs that ended early, with their zones.
fn ends_of(before: &Snapshot, runs: &[ScannerRun]) -> Vec<EarlyEnd> {
    let block = before.pageblock_order;
    let zones = before.zoneinfo.as_ref().map_or(&[][..], |zoneinfo| &zoneinfo.zones);
    let of_run = |run: &ScannerRun| {
        let zone = zones.iter().find(|zone| zone.start == Some(run.first)).map(|zone| zone.key.clone());
        Some(EarlyEnd { zone, cause: run.early(block)?, unscanned: Some(run.unscanned()) })
    };
    runs.iter().filter_map(of_run).collect()
}

/// Pages could not be moved, and less than a block was moved and looked at for room: the scanners cannot have
/// met in a zone that has anything to move.
fn early_by_counters(act: &KernelAct, block: Order) -> Option<EarlyEnd> {
    let rose = |name: &str| act.activity.iter().find(|activity| activity.name == name).map(|a| a.rose);
    let less = |name: &str| Some(rose(name)? < block.pages().0);
    let is_early = rose("pgmigrate_fail")? > 0 && less("pgmigrate_success")? && less("compact_free_scanned")?;
    is_early.then_some(EarlyEnd { zone: None, cause: EarlyCause::NoPlace, unscanned: None })
}

/// The absence of runs where nobody watched.
pub fn not_watched() -> Absence {
    Absence::new("mm_compaction_end", AbsentWhy::NotAsked, "nobody watched")
}

/// What the counters rose by; those that this kernel lacks are not listed.
pub fn activity(before: &Counters, after: &Counters) -> Vec<Activity> {
    let rose = |&(name, by): &(&'static str, Worker)| {
        Some(Activity { name, by, rose: after.get(name)?.wrapping_sub(before.get(name)?) })
    };
    COUNTERS.iter().filter_map(rose).collect()
}

#[cfg(test)]
mod tests {
    use pagelab_model::free_areas::ZoneFree;
    use pagelab_model::{BuddyInfo, FreeAreas, NodeId, PageSize};

    use super::*;

    fn snapshot(counts: &[u64], moved: u64) -> Snapshot {
        let mut snapshot = Snapshot::unread("a test", PageSize::USUAL);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let areas = FreeAreas::new(counts.to_vec()).unwrap();
        snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFree { key, areas }] });
        snapshot.vmstat = Ok([("pgmigrate_success", moved), ("compact_stall", 5)].into_iter().collect());
        snapshot
    }

    #[test]
    fn what_came_of_it_is_told_by_the_free_lists_and_the_counters() {
        let whole = [0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
        let broken = [1536, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let cases = [
            (broken, whole, Verdict::Gained(3)),
            (whole, whole, Verdict::NothingChanged),
            (whole, broken, Verdict::NothingChanged),
        ];
        for (before, after, verdict) in cases {
            let compaction = Compaction::of(&snapshot(&before, 10), &snapshot(&after, 52), Acts::default());
            assert_eq!(compaction.verdict(), verdict, "{before:?} {after:?}");
            assert_eq!(compaction.rose("pgmigrate_success"), Some(42));
            assert_eq!(compaction.rose("compact_stall"), Some(0));
            assert_eq!(compaction.rose("compact_isolated"), None, "this kernel does not count it");
            assert_eq!(compaction.zones().count(), 1);
        }
    }

    #[test]
    fn without_tracepoints_the_counters_tell_an_early_end() {
        let act = |moved, failed, looked| KernelAct {
            took_ns: 1,
            times: 1,
            runs: Err(not_watched()),
            activity: [
                ("pgmigrate_success", moved),
                ("pgmigrate_fail", failed),
                ("compact_free_scanned", looked),
            ]
            .map(|(name, rose)| Activity { name, by: Worker::All, rose })
            .to_vec(),
            huge_after: None,
        };
        let block = |blocks: u64| blocks * 512;
        // Seen on Linux 6.18: 9 pages moved, 256 looked at for room; and one that went through.
        for (act, early) in [
            (act(9, 32, 256), true),
            (act(9, 0, 256), false),
            (act(89_760, 33, 102_407), false),
            (act(9, 32, block(1)), false),
            (act(0, 0, 0), false),
        ] {
            let found = ended_early(&snapshot(&[0; 10], 0), &act);
            assert_eq!(!found.is_empty(), early, "{act:?}");
        }
        let nothing = KernelAct { activity: Vec::new(), ..act(0, 0, 0) };
        assert!(ended_early(&snapshot(&[0; 10], 0), &nothing).is_empty(), "an old kernel counts none of it");
    }

    #[test]
    fn an_early_end_is_told_by_its_zone() {
        let mut before = snapshot(&[0; 10], 0);
        let mut zone =
            pagelab_model::zoneinfo::ZoneInfo::empty(ZoneKey { node: NodeId(0), zone: "Normal".into() });
        zone.start = Some(pagelab_model::Pfn(0x1000));
        before.zoneinfo = Ok(pagelab_model::Zoneinfo { nodes: Vec::new(), zones: vec![zone] });
        let run = ScannerRun {
            first: pagelab_model::Pfn(0x1000),
            end: pagelab_model::Pfn(0x9000),
            migrate: pagelab_model::Pfn(0x1040),
            free: pagelab_model::Pfn(0x8e00),
            status: CONTENDED,
            failed: 31,
        };
        let met = ScannerRun { migrate: run.free, status: 5, ..run };
        let act = KernelAct {
            took_ns: 1,
            times: 1,
            runs: Ok(vec![met, run]),
            activity: Vec::new(),
            huge_after: None,
        };
        let early = ended_early(&before, &act);
        assert_eq!(early.len(), 1);
        assert_eq!(early[0].zone.as_ref().unwrap().zone, "Normal");
        assert_eq!(early[0].cause, EarlyCause::NoPlace);
    }
}
