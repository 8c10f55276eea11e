//! Tracepoints as a series: counts of fallbacks, compaction and reclaim since the start, and losses.

use pagelab_model::extfrag::FallbackStacks;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Bytes, Order, PageSize, Reading};

use super::metrics::Metric;
use super::source::MetricSource;
use super::tables::{ColumnBuilder, Tables};
use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use crate::tracepoints::{
    self, EventTally, KernelSymbols, StackCollector, StackDepth, TracepointOptions, Tracepoints,
};

/// Maximum room for records on all CPUs together. The room on one CPU is a power of two.
const RING_BYTES_TOTAL_MAX: u64 = 64 << 20;
/// Room on one CPU, and with call chains, which are four times as long.
const RING_BYTES: u64 = 1 << 20;
/// Maximum number of kernel counters read at each tick, one for each tracepoint and CPU. If there are more,
/// losses are reported by the rings alone, which know slightly less.
const COUNTERS_MAX: usize = 256;

/// Tracepoints that are open and counted.
#[derive(Debug)]
pub(super) struct TracepointSource {
    tracepoints: Tracepoints,
    tally: EventTally,
    stacks: Option<StackCollector>,
    events: u64,
}

impl TracepointSource {
    /// Opens the tracepoints of a recording and begins to count. Those that this kernel lacks are left out.
    pub fn open(root: &Root, page_size: PageSize, depth: StackDepth) -> Reading<TracepointSource> {
        let reader = Reader::new(root);
        let cpus = reader.parse(paths::CPU_ONLINE, pagelab_formats::cpu_list::parse)?.len().max(1) as u64;
        let wanted = if depth == StackDepth::None { RING_BYTES } else { 4 * RING_BYTES };
        let ring_bytes = Bytes(wanted.min(1 << (RING_BYTES_TOTAL_MAX / cpus).max(1).ilog2()));
        let options = TracepointOptions { ring_bytes, ..TracepointOptions::default() };
        let (tracepoints, _) = Tracepoints::open(&reader, &tracepoints::recording_set(depth), &options)?;
        let tally = EventTally::new(&tracepoints);
        let stacks = (depth != StackDepth::None).then(|| {
            let symbols = KernelSymbols::read(&reader);
            StackCollector::new(Root::live(), symbols, read_pageblock_order(&reader, page_size))
        });
        tracepoints
            .enable()
            .map_err(|error| Absence::new("perf_event_open", AbsenceReason::Failed, error.to_string()))?;
        Ok(TracepointSource { tracepoints, tally, stacks, events: 0 })
    }

    fn drain(&mut self) {
        let TracepointSource { tracepoints, tally, stacks, events } = self;
        *events += tracepoints.drain(|event| {
            if let (Some(extfrag), Some(stacks)) = (tally.add_event(event), stacks.as_mut()) {
                stacks.add_fallback(event, &extfrag);
            }
        });
        if let Some(stacks) = stacks {
            stacks.forget_programs();
        }
    }

    /// Events that did not get into a ring.
    fn lost_events(&self) -> u64 {
        let told = self.tracepoints.losses().lost_events();
        if self.tracepoints.kinds().len() * self.tracepoints.cpus().len() > COUNTERS_MAX {
            return told;
        }
        let counts = self.tracepoints.counts().unwrap_or_default();
        told.max(counts.iter().filter_map(|count| count.lost).sum())
    }
}

impl MetricSource for TracepointSource {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        self.drain();
        let mut columns = ColumnBuilder::default();
        for (name, &value) in self.tally.names().iter().zip(self.tally.values()) {
            columns.add_column(name.as_str(), Unit::COUNT, true, Some(value));
        }
        columns.add_column("events", Unit::COUNT, true, Some(self.events));
        columns.add_column("lost", Unit::COUNT, true, Some(self.lost_events()));
        columns.add_column("out_of_order", Unit::COUNT, true, Some(self.tracepoints.losses().out_of_order));
        columns.add_column("cpu_ns", Unit::NANOSECONDS, true, Some(self.tracepoints.cpu_ns()));
        tables.set_row(Metric::Tracepoints(StackDepth::None).name(), "perf_event_open", columns);
        Ok(())
    }

    fn drain_pending(&mut self) {
        self.drain();
    }

    fn stacks(&self) -> Option<FallbackStacks> {
        Some(self.stacks.as_ref()?.stacks(self.lost_events()))
    }
}

/// The order of a pageblock: as the kernel prints it, or that of a huge page.
fn read_pageblock_order(reader: &Reader<'_>, page_size: PageSize) -> Order {
    let printed = reader.parse(paths::PAGETYPEINFO, pagelab_formats::pagetypeinfo::parse);
    printed.ok().and_then(|info| info.pageblock_order).unwrap_or(page_size.default_pmd_order())
}
