//! Tracepoints as a series: counts of fallbacks, compaction and reclaim since the start, and what was lost.

use pagelab_model::extfrag::Stacks;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Bytes, Order, PageSize, Reading};

use super::metrics::Metric;
use super::source::Source;
use super::tables::{Columns, Tables};
use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use crate::tracepoints::{KernelSymbols, Options, StackCollector, StackDepth, Tally, Tracepoints, sets};

/// Room for records on all CPUs together, at most. The room on one CPU is a power of two.
const RINGS_BYTES_MAX: u64 = 64 << 20;
/// Room on one CPU, and with call chains, which are four times as long.
const RING_BYTES: u64 = 1 << 20;
/// Counters of the kernel that are read at each tick at most, one for each tracepoint and CPU. Where there
/// are more, what was lost is told by the rings alone, which know a little less.
const COUNTERS_MAX: usize = 256;

/// Tracepoints that are open and counted.
#[derive(Debug)]
pub(super) struct Traced {
    tracepoints: Tracepoints,
    tally: Tally,
    stacks: Option<StackCollector>,
    events: u64,
}

impl Traced {
    /// Opens what a recording has, and begins to count. What this kernel lacks of it is left out.
    pub fn open(root: &Root, page_size: PageSize, depth: StackDepth) -> Reading<Traced> {
        let reader = Reader::new(root);
        let cpus = reader.parse(paths::CPU_ONLINE, pagelab_formats::cpu_list::parse)?.len().max(1) as u64;
        let wanted = if depth == StackDepth::None { RING_BYTES } else { 4 * RING_BYTES };
        let ring_bytes = Bytes(wanted.min(1 << (RINGS_BYTES_MAX / cpus).max(1).ilog2()));
        let options = Options { ring_bytes, ..Options::default() };
        let (tracepoints, _) = Tracepoints::open(&reader, &sets::recording(depth), &options)?;
        let tally = Tally::new(&tracepoints);
        let stacks = (depth != StackDepth::None).then(|| {
            let symbols = KernelSymbols::read(&reader);
            StackCollector::new(Root::live(), symbols, pageblock_order(&reader, page_size))
        });
        tracepoints.enable().map_err(|error| failed(&error))?;
        Ok(Traced { tracepoints, tally, stacks, events: 0 })
    }

    fn drain(&mut self) -> Reading<()> {
        let Traced { tracepoints, tally, stacks, .. } = self;
        let drained = tracepoints.drain(|event| {
            if let (Some(extfrag), Some(stacks)) = (tally.add(event), stacks.as_mut()) {
                stacks.add(event, &extfrag);
            }
        });
        if let Some(stacks) = stacks {
            stacks.forget_programs();
        }
        self.events += drained.map_err(|error| failed(&error))?.events;
        Ok(())
    }

    /// Events that did not get into a ring.
    fn lost(&self) -> u64 {
        let told = self.tracepoints.losses().lost();
        if self.tracepoints.kinds().len() * self.tracepoints.cpus().len() > COUNTERS_MAX {
            return told;
        }
        let counts = self.tracepoints.counts().unwrap_or_default();
        told.max(counts.iter().filter_map(|count| count.lost).sum())
    }
}

impl Source for Traced {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        self.drain()?;
        let mut columns = Columns::default();
        for (name, &value) in self.tally.names().iter().zip(self.tally.values()) {
            columns.add(name.as_str(), Unit::COUNT, true, Some(value));
        }
        columns.add("events", Unit::COUNT, true, Some(self.events));
        columns.add("lost", Unit::COUNT, true, Some(self.lost()));
        columns.add("late", Unit::COUNT, true, Some(self.tracepoints.losses().late));
        columns.add("cpu_ns", Unit::NANOSECONDS, true, Some(self.tracepoints.cpu_ns()));
        tables.put(Metric::Tracepoints(StackDepth::None).name(), "perf_event_open", columns);
        Ok(())
    }

    fn between(&mut self) {
        // What fails here fails again at the tick, which tells it.
        let _ = self.drain();
    }

    fn stacks(&self) -> Option<Stacks> {
        Some(self.stacks.as_ref()?.stacks(self.lost()))
    }
}

fn failed(error: &std::io::Error) -> Absence {
    Absence::new("perf_event_open", AbsentWhy::Failed, error.to_string())
}

/// The order of a pageblock: as the kernel prints it, or that of a huge page.
fn pageblock_order(reader: &Reader<'_>, page_size: PageSize) -> Order {
    let printed = reader.parse(paths::PAGETYPEINFO, pagelab_formats::pagetypeinfo::parse);
    printed.ok().and_then(|info| info.pageblock_order).unwrap_or(page_size.usual_pmd_order())
}
