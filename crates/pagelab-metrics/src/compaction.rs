//! What a compaction came to: two looks at one machine, and the kernel's counters between them.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Counters, Snapshot};

use crate::checkup::{Checkup, ZoneIndex};

/// Two looks, judged, and how long the acts between them took.
#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    /// The first look.
    pub before: Checkup,
    /// The second.
    pub after: Checkup,
    /// Counters of `/proc/vmstat`, as far as this kernel has them.
    pub activity: Vec<Activity>,
    /// Nanoseconds that dropping caches took; `None` if none was dropped.
    pub drop_ns: Option<u64>,
    /// Nanoseconds that compacting took.
    pub compact_ns: u64,
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
    pub fn of(before: &Snapshot, after: &Snapshot, drop_ns: Option<u64>, compact_ns: u64) -> Compaction {
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
        Compaction {
            before: Checkup::of(before),
            after: Checkup::of(after),
            activity,
            drop_ns,
            compact_ns,
            freed,
        }
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
            let compaction = Compaction::of(&snapshot(&before, 10), &snapshot(&after, 52), None, 7);
            assert_eq!(compaction.verdict(), verdict, "{before:?} {after:?}");
            assert_eq!(compaction.rose("pgmigrate_success"), Some(42));
            assert_eq!(compaction.rose("compact_stall"), Some(0));
            assert_eq!(compaction.rose("compact_isolated"), None, "this kernel does not count it");
            assert_eq!(compaction.zones().count(), 1);
        }
    }
}
