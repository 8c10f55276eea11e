//! Compaction and cache drops: journalled, with their duration, and repeated while each round gains huge
//! pages. Tracepoints report where the scanners ended in each zone.

use pagelab_formats::trace_format::NumberField;
use pagelab_formats::{buddyinfo, vmstat};
use pagelab_host::guard::{Guard, GuardError};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{Event, StackDepth, TracepointOptions, TracepointRequest, Tracepoints};
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::compaction::{KernelCompaction, ScannerRun, counter_deltas};
use pagelab_model::{Absence, AbsenceReason, NodeId, Order, Pfn, Reading};
use pagelab_sys::clock;

use crate::memory_snapshot::{SnapshotOptions, take_snapshot};
use crate::pcp_lists::drain_pcp_lists;

/// Which caches are dropped before memory is compacted. Only clean, unmapped pages are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheDrop {
    /// None.
    #[default]
    None,
    /// The page cache.
    PageCache,
    /// The page cache, and slab objects that can be reclaimed: dentries, inodes.
    All,
}

/// Compacts all zones of all nodes (`vm.compact_memory`), or of one node (`compact` of the node), both since
/// 2.6.35, and returns the nanoseconds that it took. The kernel answers when it is done, in each zone
/// either because both scanners have met or because it gave up. Neither is an error, so only
/// [`compact_traced`] and a census show the result.
pub fn compact(guard: &Guard, node: Option<NodeId>) -> Result<u64, GuardError> {
    time_action(|| node.map_or_else(|| guard.compact_memory(), |node| guard.compact_node(node)))
}

/// The same, and where the scanners of each zone stopped, where tracepoints can be read.
pub fn compact_traced(guard: &Guard, root: &Root, node: Option<NodeId>) -> Result<TimedRun, GuardError> {
    let tracer = CompactionTracer::start(root);
    let took_ns = compact(guard, node)?;
    Ok((took_ns, tracer.and_then(CompactionTracer::finish)))
}

/// Writes dirty pages back, which are not dropped otherwise, drops the caches, and returns the nanoseconds
/// that it took; `None` if none was to be dropped.
pub fn drop_caches(guard: &Guard, caches: CacheDrop) -> Result<Option<u64>, GuardError> {
    // Numbers of fs/drop_caches.c: bit 0 page cache, bit 1 slab.
    let what = match caches {
        CacheDrop::None => return Ok(None),
        CacheDrop::PageCache => 1,
        CacheDrop::All => 3,
    };
    time_action(|| {
        guard.perform_one_way("sync", rustix::fs::sync)?;
        guard.drop_caches(what)
    })
    .map(Some)
}

fn time_action(act: impl FnOnce() -> Result<(), GuardError>) -> Result<u64, GuardError> {
    let began_ns = clock::monotonic_ns();
    act()?;
    Ok(clock::monotonic_ns().saturating_sub(began_ns))
}

// Repeated compaction: more rounds where the kernel ended early, as long as each gains huge pages.
//
// A run ends the zone at a folio that has no free target and cannot be split
// (`pagelab_metrics::compaction`). Dirty page cache is such a folio: its buffers cannot be released, and a
// program that writes many files, such as a compiler, leaves many. So dirty pages are written back before
// each further run. A program may write meanwhile; then the next run ends at the next such folio.

/// A round that gains less counts as no gain: running programs move as much.
const GAIN_MIN: u64 = 8;
/// So many in a row are the end.
const FRUITLESS_RUNS_MAX: u32 = 2;
/// Never more runs than this: each may scan all memory.
const RUNS_MAX: u32 = 16;

/// Compacted zones, and the source of their end positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionRuns {
    /// Number of compaction requests to the kernel.
    pub count: u32,
    /// Nanoseconds of all of them.
    pub took_ns: u64,
    /// Where the scanners of the first stopped.
    pub first: Reading<Vec<ScannerRun>>,
    /// Where those of the last did.
    pub last: Reading<Vec<ScannerRun>>,
}

impl CompactionRuns {
    /// Whether some zone of the last one ended before its scanners met; false if that cannot be read.
    pub fn ended_early(&self, block: Order) -> bool {
        self.last.as_ref().is_ok_and(|runs| runs.iter().any(|run| run.early_cause(block).is_some()))
    }
}

/// Compacts until the scanners of each zone have met, or more runs gain nothing. Before each but the first,
/// dirty pages are written back.
pub fn compact_until_met(
    guard: &Guard,
    root: &Root,
    node: Option<NodeId>,
    pageblock_order: Order,
    deadline_ns: u64,
) -> Result<CompactionRuns, GuardError> {
    let mut run = |is_again: bool| {
        if is_again {
            guard.perform_one_way("sync", rustix::fs::sync)?;
        }
        compact_traced(guard, root, node)
    };
    let mut count = || count_free_blocks(root, pageblock_order);
    let has_time = || clock::monotonic_ns() < deadline_ns;
    repeat_until_met(&mut run, &mut count, &has_time, pageblock_order)
}

/// Options of the snapshots around a compaction: they drain the per-CPU lists, whose pages are in no free
/// block.
pub fn snapshot_options() -> SnapshotOptions {
    SnapshotOptions { drain_pcp: true, ..SnapshotOptions::default() }
}

/// The same, with the kernel's counters of it and the huge pages that are free after it.
pub fn compact_and_count(
    guard: &Guard,
    root: &Root,
    node: Option<NodeId>,
    block_order: Order,
    deadline_ns: u64,
) -> Result<KernelCompaction, GuardError> {
    let counters = || Reader::new(root).parse(paths::VMSTAT, vmstat::parse);
    let first = counters();
    let runs = compact_until_met(guard, root, node, block_order, deadline_ns)?;
    let counter_deltas = match (&first, &counters()) {
        (Ok(first), Ok(last)) => counter_deltas(first, last),
        _ => Vec::new(),
    };
    let after = take_snapshot(root, &snapshot_options());
    Ok(KernelCompaction {
        took_ns: runs.took_ns,
        run_count: runs.count,
        runs: runs.last,
        counter_deltas,
        huge_pages_after: Some(Checkup::from_snapshot(&after).free_huge_pages()),
    })
}

/// Nanoseconds that a run took, and where its scanners stopped.
pub type TimedRun = (u64, Reading<Vec<ScannerRun>>);

/// The same with a given compaction and count. The argument of `run` is true from the second round on.
fn repeat_until_met<E>(
    run: &mut dyn FnMut(bool) -> Result<TimedRun, E>,
    count: &mut dyn FnMut() -> Option<u64>,
    has_time: &dyn Fn() -> bool,
    pageblock_order: Order,
) -> Result<CompactionRuns, E> {
    let (took_ns, first) = run(false)?;
    let mut runs = CompactionRuns { count: 1, took_ns, last: first.clone(), first };
    let mut before = None;
    let mut fruitless_runs = 0;
    while runs.ended_early(pageblock_order) && runs.count < RUNS_MAX && has_time() {
        // An unknown gain is no reason for another run.
        let Some(now) = count() else { break };
        let is_miss = before.is_some_and(|before| now < before + GAIN_MIN);
        fruitless_runs = if is_miss { fruitless_runs + 1 } else { 0 };
        if fruitless_runs >= FRUITLESS_RUNS_MAX {
            break;
        }
        let (took_ns, last) = run(true)?;
        runs = CompactionRuns { count: runs.count + 1, took_ns: runs.took_ns + took_ns, last, ..runs };
        before = Some(now);
    }
    Ok(runs)
}

/// Free blocks of an order, once the per-CPU lists have shrunk; `None` if they cannot be read.
pub fn count_free_blocks(root: &Root, order: Order) -> Option<u64> {
    drain_pcp_lists(root);
    let buddy = Reader::new(root).parse(paths::BUDDYINFO, buddyinfo::parse).ok()?;
    let blocks = buddy.zones.iter().map(|zone| zone.areas.blocks_suitable(order)).sum::<u128>();
    Some(u64::try_from(blocks).unwrap_or(u64::MAX))
}

const TRACE_SYSTEM: &str = "compaction";
const END_EVENT: &str = "mm_compaction_end";
const MIGRATE_EVENT: &str = "mm_compaction_migratepages";

/// Both tracepoints, open and enabled.
#[derive(Debug)]
pub struct CompactionTracer {
    tracepoints: Tracepoints,
    fields: CompactionEventFields,
}

/// Offsets of the fields that are read.
#[derive(Clone, Copy, Debug)]
struct CompactionEventFields {
    end_event_id: usize,
    zone_start: NumberField,
    zone_end: NumberField,
    migrate: NumberField,
    free: NumberField,
    status: NumberField,
    failed_pages: Option<(usize, NumberField)>,
}

impl CompactionTracer {
    /// Opens and enables them. Batches that were moved whole are filtered out by the kernel.
    pub fn start(root: &Root) -> Reading<CompactionTracer> {
        let wanted = |name: &'static str, filter: &'static str| TracepointRequest {
            system: TRACE_SYSTEM,
            name,
            filter,
            stacks: StackDepth::None,
        };
        let wanted = [wanted(END_EVENT, ""), wanted(MIGRATE_EVENT, "nr_failed > 0")];
        // This thread compacts.
        let options = TracepointOptions { own_events: true, ..TracepointOptions::default() };
        let (tracepoints, _) = Tracepoints::open(&Reader::new(root), &wanted, &options)?;
        let fields = CompactionEventFields::resolve(&tracepoints)?;
        tracepoints.enable().map_err(io_absence)?;
        Ok(CompactionTracer { tracepoints, fields })
    }

    /// Results of this thread's compactions since the start, in order.
    pub fn finish(mut self) -> Reading<Vec<ScannerRun>> {
        self.tracepoints.disable().map_err(io_absence)?;
        let own_tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let CompactionTracer { tracepoints, fields } = &mut self;
        let mut join = RunJoiner::default();
        let mut drain = || tracepoints.drain(|event| join.add_event(event, fields, own_tid));
        while drain() > 0 {}
        match self.tracepoints.losses().lost_events() {
            0 => Ok(join.runs),
            lost => Err(Absence::new(END_EVENT, AbsenceReason::Failed, format!("{lost} events were lost"))),
        }
    }
}

impl CompactionEventFields {
    fn resolve(tracepoints: &Tracepoints) -> Reading<CompactionEventFields> {
        let absent =
            |name: &str| Absence::new(END_EVENT, AbsenceReason::NotThere, format!("it has no {name}"));
        let end = tracepoints.kind(TRACE_SYSTEM, END_EVENT).ok_or_else(|| absent("place in this kernel"))?;
        let format = &tracepoints.kinds()[end].format;
        let field = |name: &str| format.field(name).ok_or_else(|| absent(name));
        let failed = tracepoints.kind(TRACE_SYSTEM, MIGRATE_EVENT);
        Ok(CompactionEventFields {
            end_event_id: end,
            zone_start: field("zone_start")?,
            zone_end: field("zone_end")?,
            migrate: field("migrate_pfn")?,
            free: field("free_pfn")?,
            status: field("status")?,
            failed_pages: failed
                .and_then(|kind| Some((kind, tracepoints.kinds()[kind].format.field("nr_failed")?))),
        })
    }
}

/// Events of one thread on their way to runs.
#[derive(Debug, Default)]
struct RunJoiner {
    runs: Vec<ScannerRun>,
    failed_pages: u64,
}

impl RunJoiner {
    fn add_event(&mut self, event: &Event<'_>, fields: &CompactionEventFields, own_tid: u32) {
        if event.tid != own_tid {
            return;
        }
        if let Some((_, field)) = fields.failed_pages.filter(|(kind, _)| *kind == event.kind) {
            self.failed_pages = self.failed_pages.saturating_add(event.u64(field).unwrap_or(0));
        } else if event.kind == fields.end_event_id {
            let pfn = |field| Pfn(event.u64(field).unwrap_or(0));
            self.runs.push(ScannerRun {
                zone_start: pfn(fields.zone_start),
                zone_end: pfn(fields.zone_end),
                migrate_pfn: pfn(fields.migrate),
                free_pfn: pfn(fields.free),
                status: event.i64(fields.status).unwrap_or(-1),
                failed_pages: std::mem::take(&mut self.failed_pages),
            });
        }
    }
}

fn io_absence(error: std::io::Error) -> Absence {
    Absence::new("tracepoints of compaction", AbsenceReason::Failed, error.to_string())
}

#[cfg(test)]
mod tests {
    use pagelab_metrics::compaction::COMPACT_CONTENDED;
    use pagelab_model::{Absence, AbsenceReason, Pfn};

    use super::*;

    const BLOCK: Order = Order(9);

    /// Runs that end early or not, with as many huge pages as there are before each run but the first.
    fn check(early: &[Option<bool>], counts: &[u64], expected: u32) {
        let (mut at, mut counted) = (0, 0);
        let mut run = |is_again: bool| {
            assert_eq!(is_again, at > 0);
            let found = early.get(at).copied().unwrap_or(Some(true));
            at += 1;
            let (migrate, status) =
                if found == Some(true) { (0x600, COMPACT_CONTENDED) } else { (0x8000, 5) };
            let run = ScannerRun {
                zone_start: Pfn(0),
                zone_end: Pfn(0x9000),
                migrate_pfn: Pfn(migrate),
                free_pfn: Pfn(0x8000),
                status,
                failed_pages: 3,
            };
            let absent = || Absence::new("tracefs", AbsenceReason::NotPermitted, "");
            Ok::<_, ()>((5, found.map(|_| vec![run]).ok_or_else(absent)))
        };
        let mut count = || {
            counted += 1;
            counts.get(counted - 1).copied()
        };
        let runs = repeat_until_met(&mut run, &mut count, &|| true, BLOCK).unwrap();
        assert_eq!((runs.count, runs.took_ns), (expected, 5 * u64::from(expected)), "{early:?} {counts:?}");
    }

    #[test]
    fn the_kernel_is_told_again_while_that_gains_something() {
        check(&[Some(false)], &[], 1);
        check(&[None], &[], 1);
        check(&[Some(true), Some(false)], &[100], 2);
        check(&[Some(true), Some(true), Some(false)], &[100, 300], 3);
        // Rounds two and three gain nothing, so there is no fourth.
        check(&[Some(true); 3], &[100, 103, 105], 3);
        // A count that cannot be read is no gain.
        check(&[Some(true); 3], &[100], 2);
        check(&[Some(true), Some(true), Some(true), Some(false)], &[100, 103, 300], 4);
        check(&[], &(0..16).map(|run| run * 100).collect::<Vec<_>>(), RUNS_MAX);
    }
}
