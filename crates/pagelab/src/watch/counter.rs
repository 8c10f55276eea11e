//! The counters that a sample keeps, and what vmstat calls them.

/// A number that only grows. Its index in a sample is its place in this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Page faults that got a huge page.
    ThpFaults,
    /// Page faults that wanted one and got base pages.
    ThpFallbacks,
    /// Huge pages that khugepaged or MADV_COLLAPSE got to collapse into.
    Collapses,
    /// Such attempts that got none.
    CollapseFailures,
    /// Huge pages split into base pages.
    SplitPages,
    /// PMD mappings of huge pages split into PTEs; the page may stay whole.
    SplitPmds,
    /// Allocations that stalled in direct compaction.
    CompactStalls,
    /// Stalls after which the allocation succeeded.
    CompactSuccess,
    /// Stalls after which it did not.
    CompactFail,
    /// Pages that compaction looked at to move away.
    ScannedMigrate,
    /// Pages that compaction looked at to move to.
    ScannedFree,
    /// Pages moved, by compaction and others.
    Migrated,
    /// Pages that could not be moved.
    MigrateFailures,
    /// Times that kcompactd woke to work.
    KcompactdWakes,
    /// Pages that kswapd looked at.
    KswapdScanned,
    /// Pages that kswapd took back.
    KswapdStolen,
    /// Pages that allocating tasks looked at themselves.
    DirectScanned,
    /// Pages that they took back.
    DirectStolen,
    /// Allocations that stalled in direct reclaim, of all zones.
    AllocStalls,
    /// Pages read from swap.
    SwapIn,
    /// Pages written to swap.
    SwapOut,
    /// Processes killed for lack of memory.
    OomKills,
    /// Allocations that took pages of another migratetype's pageblock: events of a tracepoint.
    Extfrag,
    /// Nanoseconds of CPU time that pagelab itself used; not of vmstat.
    OwnCpu,
}

impl Counter {
    /// How many there are.
    pub const COUNT: usize = Counter::ALL.len();

    /// All, by index, with their names in vmstat (include/linux/vm_event_item.h): those that are there are
    /// added up. The stalls are counted by zone since 4.10, splits of pages under another name since 4.5.
    pub const ALL: [(Counter, &[&str]); 24] = [
        (Counter::ThpFaults, &["thp_fault_alloc"]),
        (Counter::ThpFallbacks, &["thp_fault_fallback"]),
        (Counter::Collapses, &["thp_collapse_alloc"]),
        (Counter::CollapseFailures, &["thp_collapse_alloc_failed"]),
        (Counter::SplitPages, &["thp_split_page", "thp_split"]),
        (Counter::SplitPmds, &["thp_split_pmd"]),
        (Counter::CompactStalls, &["compact_stall"]),
        (Counter::CompactSuccess, &["compact_success"]),
        (Counter::CompactFail, &["compact_fail"]),
        (Counter::ScannedMigrate, &["compact_migrate_scanned"]),
        (Counter::ScannedFree, &["compact_free_scanned"]),
        (Counter::Migrated, &["pgmigrate_success"]),
        (Counter::MigrateFailures, &["pgmigrate_fail"]),
        (Counter::KcompactdWakes, &["compact_daemon_wake"]),
        (Counter::KswapdScanned, &["pgscan_kswapd"]),
        (Counter::KswapdStolen, &["pgsteal_kswapd"]),
        (Counter::DirectScanned, &["pgscan_direct"]),
        (Counter::DirectStolen, &["pgsteal_direct"]),
        (
            Counter::AllocStalls,
            &[
                "allocstall",
                "allocstall_dma",
                "allocstall_dma32",
                "allocstall_normal",
                "allocstall_high",
                "allocstall_movable",
                "allocstall_device",
            ],
        ),
        (Counter::SwapIn, &["pswpin"]),
        (Counter::SwapOut, &["pswpout"]),
        (Counter::OomKills, &["oom_kill"]),
        (Counter::Extfrag, &[]),
        (Counter::OwnCpu, &[]),
    ];

    /// All of them, picked out of a vmstat by its lookup.
    pub fn pick(get: impl Fn(&str) -> Option<u64>) -> [Option<u64>; Counter::COUNT] {
        Counter::ALL.map(|(_, names)| names.iter().filter_map(|name| get(name)).reduce(u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counters_index_is_its_place() {
        for (at, (counter, _)) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, at);
        }
    }

    #[test]
    fn parts_that_are_there_are_added_up_and_nothing_is_made_up() {
        let get = |name: &str| match name {
            "allocstall_normal" => Some(3),
            "allocstall_movable" => Some(u64::MAX),
            "pswpin" => Some(7),
            _ => None,
        };
        let picked = Counter::pick(get);
        assert_eq!(picked[Counter::AllocStalls as usize], Some(u64::MAX));
        assert_eq!(picked[Counter::SwapIn as usize], Some(7));
        assert_eq!(picked.iter().flatten().count(), 2);
    }
}
