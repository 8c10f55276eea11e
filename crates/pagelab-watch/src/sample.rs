//! Sample of a machine's memory for the view, live or recorded, and the history of samples.

use std::collections::VecDeque;

use pagelab_metrics::usage::MemoryUse;
use pagelab_model::FreeAreas;
use pagelab_model::free_areas::ZoneKey;

/// One sample. A value that could not be read is `None`, never 0.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Nanoseconds since the start of the watch or of the recording.
    pub at_ns: u64,
    pub memory: MemoryUse,
    /// Counters by their index.
    pub counters: [Option<u64>; Counter::COUNT],
    /// Free blocks by zone, in the kernel's order.
    pub zones: Vec<(ZoneKey, Option<FreeAreas>)>,
    /// Share of the last 10 s in which some task waited for memory, in hundredths of a percent.
    pub some_centipercent: Option<u32>,
    /// Share in which all tasks that had work waited.
    pub full_centipercent: Option<u32>,
}

impl Sample {
    pub fn zone(&self, key: &ZoneKey) -> Option<&FreeAreas> {
        self.zones.iter().find(|(known, _)| known == key).and_then(|(_, areas)| areas.as_ref())
    }

    pub fn counter(&self, counter: Counter) -> Option<u64> {
        self.counters[counter as usize]
    }

    /// Returns the growth of a counter since `earlier`; `None` if it decreased or a reading is missing.
    pub fn increase(&self, earlier: &Sample, counter: Counter) -> Option<u64> {
        self.counter(counter)?.checked_sub(earlier.counter(counter)?)
    }

    /// Returns the growth per second of the actual time; `None` if no time passed.
    pub fn rate(&self, earlier: &Sample, counter: Counter) -> Option<f64> {
        let passed_ns = self.at_ns.checked_sub(earlier.at_ns).filter(|&ns| ns > 0)?;
        Some(self.increase(earlier, counter)? as f64 / (passed_ns as f64 / 1e9))
    }

    fn memory_size(&self) -> usize {
        let zone = |(key, areas): &(ZoneKey, Option<FreeAreas>)| {
            size_of_val(key) + key.zone.len() + 8 * areas.as_ref().map_or(0, FreeAreas::orders) + 32
        };
        size_of_val(self) + self.zones.iter().map(zone).sum::<usize>()
    }
}

/// The latest samples, oldest first, bounded in number and in memory.
#[derive(Clone, Debug, Default)]
pub struct SampleHistory {
    samples: VecDeque<Sample>,
    /// Size of all samples.
    bytes: usize,
    /// Number of samples ever added.
    pushed: usize,
}

impl SampleHistory {
    /// Maximum number of samples: over an hour at one a second.
    pub const SAMPLES_MAX: usize = 4000;
    /// Approximate maximum of memory, on any machine.
    const BYTES_MAX: usize = 16 << 20;

    /// Adds the latest sample; the oldest ones are removed if there is no room.
    pub fn push(&mut self, sample: Sample) {
        self.bytes += sample.memory_size();
        self.pushed += 1;
        self.samples.push_back(sample);
        while self.samples.len() > 2
            && (self.samples.len() > SampleHistory::SAMPLES_MAX || self.bytes > SampleHistory::BYTES_MAX)
        {
            self.bytes -= self.samples.pop_front().map_or(0, |oldest| oldest.memory_size());
        }
    }

    /// Steps back by one sample: removes the latest, and adds an older one before the oldest if there is
    /// room.
    pub fn step_back(&mut self, older: Option<Sample>) {
        if let Some(latest) = self.samples.pop_back() {
            self.bytes -= latest.memory_size();
            self.pushed -= 1;
        }
        if let Some(older) =
            older.filter(|older| self.bytes + older.memory_size() <= SampleHistory::BYTES_MAX)
        {
            self.bytes += older.memory_size();
            self.samples.push_front(older);
        }
    }

    /// Clears the history, as if `forgotten` samples had been added and removed.
    pub fn reset(&mut self, forgotten: usize) {
        *self = SampleHistory { pushed: forgotten, ..SampleHistory::default() };
    }

    pub fn latest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Returns the sample that is followed by this many others.
    pub fn nth_latest(&self, index: usize) -> Option<&Sample> {
        self.samples.get(self.samples.len().checked_sub(index + 1)?)
    }

    /// The moments, oldest first.
    pub fn into_samples(self) -> impl Iterator<Item = Sample> {
        self.samples.into_iter()
    }

    /// Returns the number of samples ever added, kept or not.
    pub fn total_pushed(&self) -> usize {
        self.pushed
    }

    /// Returns the number of samples that are kept.
    pub fn kept_count(&self) -> usize {
        self.samples.len()
    }
}

/// A monotonic counter. Its index in a sample is its index in this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Page faults for which a huge page was allocated.
    ThpFaults,
    /// Page faults that fell back to base pages.
    ThpFallbacks,
    /// Huge pages allocated for a collapse by khugepaged or MADV_COLLAPSE.
    Collapses,
    /// Failed allocations for a collapse.
    CollapseFailures,
    /// Huge pages split into base pages.
    SplitPages,
    /// PMD mappings of THPs split into PTEs; the page may stay whole.
    SplitPmds,
    /// Allocations that stalled in direct compaction.
    CompactStalls,
    /// Stalls after which the allocation succeeded.
    CompactSuccess,
    /// Stalls after which the allocation failed.
    CompactFail,
    /// Pages that compaction scanned for migration.
    ScannedMigrate,
    /// Pages that compaction scanned for free targets.
    ScannedFree,
    /// Pages migrated, by compaction and others.
    Migrated,
    /// Pages whose migration failed.
    MigrateFailures,
    /// Wake-ups of kcompactd.
    KcompactdWakes,
    /// Pages that kswapd scanned.
    KswapdScanned,
    /// Pages that kswapd reclaimed.
    KswapdStolen,
    /// Pages that direct reclaim scanned.
    DirectScanned,
    /// Pages that direct reclaim reclaimed.
    DirectStolen,
    /// Allocations that stalled in direct reclaim, of all zones.
    AllocStalls,
    /// Pages read from swap.
    SwapIn,
    /// Pages written to swap.
    SwapOut,
    /// Processes killed for lack of memory.
    OomKills,
    /// Allocations that fell back to a pageblock of another migratetype: events of a tracepoint.
    Extfrag,
    /// Nanoseconds of CPU time of pagelab itself; not from vmstat.
    OwnCpu,
}

impl Counter {
    pub const COUNT: usize = Counter::ALL.len();

    /// All counters by index, with their names in vmstat (include/linux/vm_event_item.h); those that exist
    /// are summed. Stalls are counted by zone since 4.10, splits of pages under another name since 4.5.
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

    /// Reads all counters from a vmstat by its lookup function.
    pub fn read_all(get: impl Fn(&str) -> Option<u64>) -> [Option<u64>; Counter::COUNT] {
        Counter::ALL.map(|(_, names)| names.iter().filter_map(|name| get(name)).reduce(u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;

    fn sample_at(at_ns: u64, swapped: Option<u64>) -> Sample {
        let mut sample = Sample { at_ns, ..Sample::default() };
        sample.counters[Counter::SwapIn as usize] = swapped;
        sample
    }

    #[test]
    fn rates_are_of_the_time_that_passed_and_never_made_up() {
        let cases = [
            ((0, Some(5)), (2_000_000_000, Some(9)), Some(2.0)),
            ((0, Some(5)), (1_000_000_000, Some(5)), Some(0.0)),
            ((0, Some(5)), (1_000_000_000, Some(4)), None),
            ((0, None), (1_000_000_000, Some(4)), None),
            ((0, Some(4)), (1_000_000_000, None), None),
            ((7, Some(4)), (7, Some(9)), None),
            ((8, Some(4)), (7, Some(9)), None),
        ];
        for ((then, before), (now, after), rate) in cases {
            assert_eq!(sample_at(now, after).rate(&sample_at(then, before), Counter::SwapIn), rate);
        }
    }

    #[test]
    fn the_history_is_bounded_in_number_and_in_memory() {
        let mut history = SampleHistory::default();
        for at_ns in 0..=SampleHistory::SAMPLES_MAX as u64 {
            history.push(sample_at(at_ns, None));
        }
        assert_eq!((history.kept_count(), history.nth_latest(0).unwrap().at_ns), (4000, 4000));
        assert_eq!(history.nth_latest(3999).unwrap().at_ns, 1);
        assert!(history.nth_latest(4000).is_none() && history.nth_latest(usize::MAX - 1).is_none());
        let zone = |node| {
            let key = ZoneKey { node: NodeId(node), zone: "x".repeat(32) };
            (key, FreeAreas::new(vec![1; 64]))
        };
        for at_ns in 0..100 {
            history.push(Sample { at_ns, zones: (0..6144).map(zone).collect(), ..Sample::default() });
        }
        assert!((2..6).contains(&history.kept_count()), "{}", history.kept_count());
        let (kept, newest) = (history.kept_count(), history.latest().unwrap().at_ns);
        history.step_back(Some(sample_at(0, None)));
        assert_eq!((history.kept_count(), history.latest().unwrap().at_ns), (kept, newest - 1));
        let heavy = Sample { zones: (0..6144).map(zone).collect(), ..Sample::default() };
        (0..kept).for_each(|_| history.push(heavy.clone()));
        history.step_back(Some(heavy.clone()));
        history.step_back(Some(Sample { zones: [heavy.zones.clone(), heavy.zones].concat(), ..heavy }));
        assert!(history.kept_count() <= kept, "what has no room is not kept");
        let weights: usize = history.samples.iter().map(Sample::memory_size).sum();
        assert_eq!(history.bytes, weights);
    }

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
        let picked = Counter::read_all(get);
        assert_eq!(picked[Counter::AllocStalls as usize], Some(u64::MAX));
        assert_eq!(picked[Counter::SwapIn as usize], Some(7));
        assert_eq!(picked.iter().flatten().count(), 2);
    }
}
