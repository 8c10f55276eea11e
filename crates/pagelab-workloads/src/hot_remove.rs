//! HotRemove-Capability, after the test of that name in Gorman and Whitcroft's comparison of kernels (OLS
//! 2006): how many memory blocks can be taken offline, one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelab_host::guard::{Guard, GuardError, GuardErrorKind, GuardOptions, GuardSite, SignalWatch};
use pagelab_host::memory_blocks::{
    BlockError, BlockSite, BlockState, MemoryBlockEntry, MemoryBlockTable, OfflineEnd, OnlineEnd,
    read_memory_blocks,
};
use pagelab_host::reader::Reader;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{Absence, AbsenceReason, Bytes, order_statistics};
use pagelab_sys::page_cache;

use crate::guest_only::check_guest;
use crate::options::{DurationSpec, OptionSpec, ValueKind, WorkloadOptions};
use crate::phase::MeasuredPhase;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mix_checksum};

/// The test as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "hot-remove",
    description: "Takes each memory block of a guest offline, and puts it online again",
    generator: "every memory block is tried, one after the other, from the highest number to the lowest, \
                each by a child process with a deadline; a block that went offline is put online again \
                before the next is tried, unless it is to be kept",
    options: &[
        OptionSpec {
            name: "deadline",
            kind: ValueKind::Duration(DurationSpec {
                least: Duration::from_millis(1),
                most: Duration::from_secs(3600),
                bare_unit: Duration::from_millis(1),
                former_name: None,
            }),
            default: "10s",
            help: "Time for each block; then the child that tries is killed",
        },
        OptionSpec {
            name: "keep",
            kind: ValueKind::Switch,
            default: "no",
            help: "Keep blocks offline, so that each further one has less memory to move its pages to",
        },
        OptionSpec {
            name: "drop",
            kind: ValueKind::Switch,
            default: "no",
            help: "Drop the page cache and slab objects before the first block (vm.drop_caches=3)",
        },
    ],
    forks_processes: true,
    guest_parts: &[],
    run: run_blocks,
};

/// Blocks that the text of a result lists.
const LISTED_BLOCKS_MAX: usize = 64;

/// Result of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotRemoveResult {
    /// Size of each block.
    pub block_size: Bytes,
    /// Why blocks with holes are not known as such before they are tried.
    pub holes_absence: Option<Absence>,
    /// Why blocks with reserved frames are not known as such before they are tried.
    pub reserved_absence: Option<Absence>,
    /// All blocks, in the order in which they were tried.
    pub records: Vec<BlockRecord>,
}

/// One block of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The block before it was tried: number, zones, and why it can never go.
    pub block: MemoryBlockEntry,
    /// How it ended; `None` if it was not tried: it can never go, or was offline before.
    pub end: Option<OfflineEnd>,
    /// How it came online again; `None` if it was not taken offline, or was to stay.
    pub online: Option<OnlineEnd>,
}

impl BlockRecord {
    /// Whether it went offline.
    pub fn went_offline(&self) -> bool {
        self.end.as_ref().is_some_and(OfflineEnd::is_offline)
    }

    /// Whether it is in another zone than before: the kernel chooses among its zones for the kernel.
    pub fn changed_zone(&self) -> bool {
        matches!(&self.online, Some(OnlineEnd::Online { zones, .. }) if *zones != self.block.zones)
    }

    /// Whether it was to come online again, and did not.
    pub fn stayed_offline(&self) -> bool {
        matches!(self.online, Some(OnlineEnd::Offline { .. }))
    }

    /// Number, zone and end, in a few words.
    pub fn describe(&self) -> String {
        let block = &self.block;
        let end = match &self.end {
            Some(OfflineEnd::Contradiction { detail, .. }) => detail.clone(),
            Some(end) => end.kind_name().to_owned(),
            None if block.can_go_offline() => block.state.to_string(),
            None => {
                let reasons: Vec<String> = block.fixed_reasons.iter().map(ToString::to_string).collect();
                format!("never ({})", reasons.join("; "))
            }
        };
        let online = match &self.online {
            Some(OnlineEnd::Offline { detail }) => format!(", not online again: {detail}"),
            Some(OnlineEnd::Online { zones, .. }) if self.changed_zone() => {
                format!(", now in {}", zones.join(" and "))
            }
            _ => String::new(),
        };
        format!("{} {} {end}{online}", block.number, block.zones.join("+"))
    }
}

/// Takes every memory block that can go offline, from the highest number to the lowest, each within
/// `deadline`, and puts it online again at once unless `keeps_offline`. Only in a guest of pagelab.
pub fn try_all_blocks(deadline: Duration, keeps_offline: bool) -> Result<HotRemoveResult, WorkloadError> {
    let site = BlockSite::live();
    check_guest(site.root(), "takes memory offline", WORKLOAD.name)?;
    let reader = Reader::new(site.root());
    let mut table = read_memory_blocks(&reader, site.page_size()).map_err(unread_error)?;
    let reserved_absence = table.find_reserved_frames(&reader).err();
    let mut records = Vec::with_capacity(table.blocks.len());
    for block in std::mem::take(&mut table.blocks).into_iter().rev() {
        let mut record = BlockRecord { block, end: None, online: None };
        if record.block.can_go_offline() && record.block.state == BlockState::Online {
            let end = site.offline_block(&record.block, deadline).map_err(block_error)?;
            if end.is_offline() && !keeps_offline {
                // Its own pages are free: only a writer that hangs takes as long.
                record.online = Some(site.online_block(&record.block, ONLINE_DEADLINE).map_err(block_error)?);
            }
            record.end = Some(end);
        }
        records.push(record);
    }
    let MemoryBlockTable { block_size, holes_absence, .. } = table;
    Ok(HotRemoveResult { block_size, holes_absence, reserved_absence, records })
}

/// Time for putting a block online: 10 to 40 ms were measured in a guest without KVM.
const ONLINE_DEADLINE: Duration = Duration::from_secs(60);

/// Writes dirty pages back, and drops the page cache and slab objects that can be reclaimed. Only in a guest.
pub fn drop_caches() -> Result<(), WorkloadError> {
    check_guest(BlockSite::live().root(), "drops caches", WORKLOAD.name)?;
    page_cache::write_back_all();
    let site = GuardSite::live().map_err(|error| guard_error(&error))?;
    let guard = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default());
    guard.and_then(|guard| guard.drop_caches(3)).map_err(|error| guard_error(&error))
}

fn unread_error(absence: Absence) -> WorkloadError {
    let text = format!("cannot read the memory blocks: {absence}");
    match absence.why {
        AbsenceReason::Malformed => WorkloadError::InvalidInput(text),
        _ => WorkloadError::NotAvailable(text),
    }
}

fn block_error(error: BlockError) -> WorkloadError {
    match error.is_not_permitted() {
        true => WorkloadError::NotAvailable(error.to_string()),
        false => WorkloadError::SystemError(error.to_string()),
    }
}

pub(crate) fn guard_error(error: &GuardError) -> WorkloadError {
    match error.kind() {
        GuardErrorKind::NotAvailable => WorkloadError::NotAvailable(error.to_string()),
        _ => WorkloadError::SystemError(error.to_string()),
    }
}

fn run_blocks(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (deadline, keeps_offline) = (options.get_duration("deadline"), options.get_switch("keep"));
    let drops_caches = options.get_switch("drop");
    if drops_caches {
        drop_caches()?;
    }
    let result = phase.measure(|| try_all_blocks(deadline, keeps_offline))?;
    // What was requested; what the blocks did is the machine's.
    let requested = [deadline.as_millis() as u64, keeps_offline.into(), drops_caches.into()];
    summarize(&result, requested.into_iter().fold(0, mix_checksum))
}

/// Blocks of a result, and those of them that went offline.
struct BlockGroup<'r> {
    records: Vec<&'r BlockRecord>,
}

impl BlockGroup<'_> {
    fn count(&self, is_counted: impl Fn(&BlockRecord) -> bool) -> f64 {
        self.records.iter().filter(|record| is_counted(record)).count() as f64
    }

    /// Times of the blocks that went offline, ns.
    fn times(&self) -> Vec<f64> {
        let ended = self.records.iter().filter(|record| record.went_offline());
        let times = ended.filter_map(|record| record.end.as_ref()?.elapsed());
        times.map(|time| time.as_nanos() as f64).collect()
    }
}

fn can_go(record: &BlockRecord) -> bool {
    record.block.can_go_offline() && record.block.state == BlockState::Online
}

/// The figures; an error if no block can ever go.
fn summarize(result: &HotRemoveResult, checksum: u64) -> WorkloadOutcome {
    let all = BlockGroup { records: result.records.iter().collect() };
    let movable = BlockGroup { records: result.records.iter().filter(|of| of.block.is_movable()).collect() };
    let count = |name, value| Figure::neutral(name, "count", value);
    let gone = |name, value| Figure::new(name, "count", BetterDirection::Higher, value);
    let could_go = all.count(can_go);
    if could_go == 0.0 {
        let text = format!("no memory block can be taken offline: {}", describe(result));
        return Err(WorkloadError::NotAvailable(format!("{text}; hint: more --memory, or --dimms 2x128M")));
    }
    let reasons = count_reasons(result);
    let reason = |name, kinds: &[&str]| {
        let counts = kinds.iter().filter_map(|kind| reasons.get(kind));
        count(name, counts.sum::<usize>() as f64)
    };
    let offlined = all.count(BlockRecord::went_offline);
    let refused = all.count(|of| matches!(of.end, Some(OfflineEnd::Refused { .. })));
    let (mut times, mut movable_times) = (all.times(), movable.times());
    let figures = [
        Some(count("blocks", all.records.len() as f64)),
        Some(count("never", all.count(|of| !of.block.can_go_offline()))),
        Some(gone("offlined", offlined)),
        longest(&times).map(|ns| Figure::time("longest_time", ns)),
        order_statistics::median(&mut times).map(|ns| Figure::time("median_time", ns)),
        Some(count("movable_blocks", movable.records.len() as f64)),
        Some(count("movable_never", movable.count(|of| !of.block.can_go_offline()))),
        Some(gone("movable_offlined", movable.count(BlockRecord::went_offline))),
        longest(&movable_times).map(|ns| Figure::time("movable_longest_time", ns)),
        order_statistics::median(&mut movable_times).map(|ns| Figure::time("movable_median_time", ns)),
        Some(reason("never_by_holes", &["holes"])),
        Some(reason("never_by_zones", &["several zones", "several nodes"])),
        Some(reason("never_by_reserved", &["reserved frames"])),
        Some(reason("refused_ebusy", &["EBUSY"])),
        Some(reason("refused_einval", &["EINVAL"])),
        Some(count("refused", refused)),
        Some(reason("timed_out", &["timed out"])),
        Some(reason("contradictions", &["contradiction"])),
        Some(count("stayed_offline", all.count(BlockRecord::stayed_offline))),
        Some(count("zone_changed", all.count(BlockRecord::changed_zone))),
    ];
    Ok(WorkloadResult {
        figure_of_merit: Figure::new("share offlined", "1", BetterDirection::Higher, offlined / could_go),
        working_set: Bytes(result.block_size.0.saturating_mul(offlined as u64)),
        checksum,
        latencies: None,
        figures: figures.into_iter().flatten().collect(),
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: describe(result),
    })
}

fn longest(times: &[f64]) -> Option<f64> {
    times.iter().copied().reduce(f64::max)
}

/// Number of blocks for each reason: each that keeps a block for ever, and each end but success.
fn count_reasons(result: &HotRemoveResult) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for record in &result.records {
        let fixed = record.block.fixed_reasons.iter().map(|reason| reason.kind_name());
        let end = record.end.iter().map(OfflineEnd::kind_name);
        for kind in fixed.chain(end) {
            *counts.entry(kind).or_insert(0) += 1;
        }
    }
    counts
}

/// All blocks with their ends, in the order in which they were tried.
fn describe(result: &HotRemoveResult) -> String {
    let size = pagelab_model::size::format_exact(result.block_size);
    let listed: Vec<String> =
        result.records.iter().take(LISTED_BLOCKS_MAX).map(BlockRecord::describe).collect();
    let more = result.records.len().saturating_sub(LISTED_BLOCKS_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let mut text = format!("{} blocks of {size}: {}{more}", result.records.len(), listed.join(", "));
    for (what, absence) in [("holes", &result.holes_absence), ("reserved frames", &result.reserved_absence)] {
        if let Some(absence) = absence {
            text.push_str(&format!("; {what} are not known: {absence}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use pagelab_host::memory_blocks::FixedReason;
    use pagelab_model::page_map::FrameSpan;
    use pagelab_model::{NodeId, Pages, Pfn};

    use super::*;

    const BLOCK: Bytes = Bytes(128 << 20);

    fn record(number: u64, zones: &[&str], end: Option<OfflineEnd>) -> BlockRecord {
        let frames = FrameSpan { first: Pfn(number << 15), count: Pages(1 << 15) };
        let block = MemoryBlockEntry {
            number,
            frames,
            state: BlockState::Online,
            zones: zones.iter().map(|&zone| zone.to_owned()).collect(),
            nodes: vec![NodeId(0)],
            fixed_reasons: Vec::new(),
        };
        BlockRecord { block, end, online: None }
    }

    fn offline(ms: u64) -> Option<OfflineEnd> {
        Some(OfflineEnd::Offline { elapsed: Duration::from_millis(ms), removed: BLOCK })
    }

    /// A guest of 768 MiB with two DIMMs.
    fn example() -> HotRemoveResult {
        let refused = OfflineEnd::Refused { errno: "EBUSY".to_owned(), elapsed: Duration::from_millis(9) };
        let timed_out = OfflineEnd::TimedOut { deadline: Duration::from_secs(10) };
        let mut records = vec![
            record(33, &["Movable"], offline(20)),
            record(32, &["Movable"], offline(40)),
            record(5, &["Movable"], None),
            record(4, &["Movable"], Some(timed_out)),
            record(2, &["DMA32"], Some(refused)),
            record(1, &["DMA32"], offline(300)),
            record(0, &["DMA", "DMA32"], None),
        ];
        let holes = |frames| FixedReason::Holes { frames: Pages(frames) };
        records[2].block.fixed_reasons = vec![holes(32)];
        records[6].block.fixed_reasons =
            vec![holes(98), FixedReason::SeveralZones(vec!["DMA".to_owned(), "DMA32".to_owned()])];
        let online = |zone: &str| OnlineEnd::Online { zones: vec![zone.to_owned()], elapsed: Duration::ZERO };
        records[0].online = Some(online("Movable"));
        records[1].online = Some(OnlineEnd::Offline { detail: "the write failed".to_owned() });
        records[5].online = Some(online("Normal"));
        HotRemoveResult { block_size: BLOCK, holes_absence: None, reserved_absence: None, records }
    }

    #[test]
    fn figures_are_those_of_the_blocks() {
        let done = summarize(&example(), 7).unwrap();
        assert_eq!((done.figure_of_merit.value, done.checksum), (0.6, 7));
        assert_eq!(done.working_set, Bytes(3 * BLOCK.0));
        let expected = [
            ("blocks", 7.0),
            ("never", 2.0),
            ("offlined", 3.0),
            ("longest_time", 300e6),
            ("median_time", 40e6),
            ("movable_blocks", 4.0),
            ("movable_never", 1.0),
            ("movable_offlined", 2.0),
            ("movable_longest_time", 40e6),
            ("movable_median_time", 30e6),
            ("never_by_holes", 2.0),
            ("never_by_zones", 1.0),
            ("never_by_reserved", 0.0),
            ("refused_ebusy", 1.0),
            ("refused_einval", 0.0),
            ("refused", 1.0),
            ("timed_out", 1.0),
            ("contradictions", 0.0),
            ("stayed_offline", 1.0),
            ("zone_changed", 1.0),
        ];
        let found: Vec<_> = done.figures.iter().map(|figure| (figure.name, figure.value)).collect();
        assert_eq!(found, expected);
        assert_eq!(
            done.generated_input,
            "7 blocks of 128 MiB: 33 Movable offline, \
             32 Movable offline, not online again: the write failed, \
             5 Movable never (holes of 32 frames), 4 Movable timed out, 2 DMA32 EBUSY, \
             1 DMA32 offline, now in Normal, \
             0 DMA+DMA32 never (holes of 98 frames; several zones: DMA, DMA32)"
        );
    }

    #[test]
    fn without_a_block_that_can_go_there_is_no_share() {
        let mut result = example();
        result.records.drain(..6);
        let error = summarize(&result, 0).unwrap_err();
        assert!(matches!(&error, WorkloadError::NotAvailable(text) if text.contains("--dimms")), "{error:?}");
        // One that is offline already was not tried.
        result.records.insert(0, record(3, &["DMA32", "Movable"], None));
        result.records[0].block.state = BlockState::Offline;
        let text = summarize(&result, 0).unwrap_err().to_string();
        assert!(text.contains("3 DMA32+Movable offline, 0 DMA+DMA32 never"), "{text}");
    }

    #[test]
    fn no_block_of_a_host_is_tried() {
        for refused in [try_all_blocks(Duration::ZERO, true).map(drop), drop_caches()] {
            assert!(matches!(&refused, Err(WorkloadError::NotAvailable(text)) if text.contains("guest run")));
        }
    }

    #[test]
    fn a_long_list_is_cut_and_absences_are_stated() {
        let mut result = example();
        let absence = Absence::new("/proc/iomem", AbsenceReason::NotPermitted, "");
        result.holes_absence = Some(absence);
        assert!(describe(&result).ends_with("; holes are not known: /proc/iomem: permission denied"));
        result.holes_absence = None;
        result.records = (0..70).rev().map(|number| record(number, &["Normal"], offline(1))).collect();
        let text = describe(&result);
        assert!(text.contains(" 6 Normal offline, and 6 more"), "{text}");
    }
}
