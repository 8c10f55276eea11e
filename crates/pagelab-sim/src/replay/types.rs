//! Types of a replay: counts, mismatches, and zone numbers of a trace.

use std::fmt;

use pagelab_model::alloc_trace::{TraceHeader, TraceZone};

use crate::memory::ZoneConfig;
use crate::pcp::{PcpBatching, PcpConfig};
use crate::types::{AllocationType, Error, FRAMES_MAX, Frame, ZoneGeometry, invalid};
use crate::watermarks::Watermarks;

/// Number of events, and of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTally {
    /// Number of events.
    pub events: u64,
    /// Number of frames.
    pub frames: u64,
}

impl EventTally {
    /// Counts one event of an order.
    #[inline]
    pub(super) fn add_block(&mut self, order: u8) {
        self.add_frames(1 << order);
    }

    /// Counts one event of a number of frames.
    #[inline]
    pub(super) fn add_frames(&mut self, frames: u64) {
        self.events += 1;
        self.frames += frames;
    }
}

/// Counts of a replay. An allocation has a place or none; a free counts as exactly one of `matched`,
/// `partly`, `guessed`, `given_back`, `of_no_room`, `moved` and `unknown`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// Events that were replayed.
    pub events: u64,
    /// Events before the end of the snapshot's scan: they are part of the initial state.
    pub events_before_snapshot: u64,
    /// Events that are earlier than the event before them.
    pub out_of_order_events: u64,
    /// Allocations.
    pub allocs: EventTally,
    /// Allocations that the kernel could not serve.
    pub failed_in_trace: u64,
    /// Allocations that the simulated memory could not serve: the object is left out.
    pub unplaced_allocs: EventTally,
    /// Allocations of frames without a known owner in the snapshot: they were on per-CPU lists of the kernel.
    pub allocs_from_pcp: EventTally,
    /// Allocations of frames that were still allocated: their free was not seen. The old object is freed.
    pub reallocs: EventTally,
    /// Frees.
    pub frees: EventTally,
    /// Frees of a known object.
    pub matched_frees: EventTally,
    /// Frees of which only some frames are known; those are freed.
    pub partly_matched_frees: EventTally,
    /// Frees by compaction of a known object: it was moved, and its new frame is not in the trace.
    pub migrated_frees: EventTally,
    /// Frees of unknown frames that were attributed to the oldest moved object of their order.
    pub guessed_frees: EventTally,
    /// Frees by compaction of unknown frames: unused migration targets.
    pub returned_frees: EventTally,
    /// Frees of objects for which there was no room.
    pub unplaced_frees: EventTally,
    /// Frees of frames that neither the snapshot nor the trace knows as allocated. They change nothing.
    pub unknown_frees: EventTally,
    /// Objects that were split because a part of them was freed.
    pub splits: u64,
    /// Frees of several objects of lower orders.
    pub joins: u64,
    /// Moved objects that were not seen again.
    pub migrated_at_end: u64,
    /// Blocks taken from the list of another migratetype, according to the trace (`mm_page_alloc_extfrag`).
    pub fallbacks_traced: u64,
    /// Of them, those that changed the migratetype of the pageblock.
    pub claims_traced: u64,
    /// Blocks taken from the list of another migratetype in the simulated memory. Several blocks that refill
    /// a per-CPU list count as one.
    pub fallbacks: u64,
    /// Of them, those that changed the migratetype of the pageblock.
    pub claims: u64,
    /// Pages that compaction moved, according to the trace.
    pub migrated_traced: u64,
}

impl ReplayStats {
    /// Share of freed frames whose object was known, in thousandths, without unused migration targets;
    /// `None`: nothing was freed.
    pub fn matched_permille(&self) -> Option<u32> {
        let freed_frames =
            self.frees.frames.checked_sub(self.returned_frees.frames).filter(|&frames| frames > 0)?;
        let known_frames =
            self.matched_frees.frames + self.migrated_frees.frames + self.unplaced_frees.frames;
        Some((u128::from(known_frames) * 1000 / u128::from(freed_frames)) as u32)
    }
}

/// An impossible event and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError {
    /// Index of the event in the trace.
    pub event: u64,
    /// Its time in nanoseconds since the trace began.
    pub at_ns: u64,
    /// Reason.
    pub error: Error,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ns) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        write!(f, "event {} at {s}.{ns:09} s: {}", self.event, self.error)
    }
}

impl std::error::Error for ReplayError {}

/// Permitted zone of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZoneSelection {
    /// The zone that the kernel chose, and lower ones when that is full.
    #[default]
    Traced,
    /// The zones that `gfp_flags` permit, from the highest down, each to its watermarks.
    GfpAllowed,
}

/// Allocation types by the kernel's number of the migratetype.
#[derive(Clone, Debug)]
pub(super) struct MigratetypeMap([AllocationType; 256]);

impl MigratetypeMap {
    pub(super) fn from_head(head: &TraceHeader) -> MigratetypeMap {
        let mut types = [AllocationType::Unmovable; 256];
        // Since Linux 4.5 (include/linux/mmzone.h).
        [types[1], types[2]] = [AllocationType::Movable, AllocationType::Reclaimable];
        for (kind, name) in types.iter_mut().zip(&head.migratetypes) {
            *kind = match name.as_str() {
                "Movable" | "CMA" => AllocationType::Movable,
                "Reclaimable" => AllocationType::Reclaimable,
                _ => AllocationType::Unmovable,
            };
        }
        MigratetypeMap(types)
    }

    #[inline]
    pub(super) fn type_of(&self, migratetype: u8) -> AllocationType {
        self.0[usize::from(migratetype)]
    }
}

/// Zone index of a name (`enum zone_type`); a zone of another name ranks above `Movable`, as `Device` does.
fn zone_index_of_name(name: &str) -> u8 {
    let names = ["DMA", "DMA32", "Normal", "HighMem", "Movable"];
    names.iter().position(|known| *known == name).unwrap_or(names.len()) as u8
}

/// Highest zone index that `gfp_flags` permit; their lowest four bits are the same in all releases
/// (`GFP_ZONEMASK`, include/linux/gfp_types.h).
#[inline]
pub(super) fn highest_zone_index(gfp: u32) -> u8 {
    const DMA: u32 = 1;
    const HIGHMEM: u32 = 2;
    const DMA32: u32 = 4;
    const MOVABLE: u32 = 8;
    match gfp & (DMA | HIGHMEM | DMA32 | MOVABLE) {
        mask if mask & DMA != 0 => 0,
        mask if mask & DMA32 != 0 => 1,
        mask if mask & HIGHMEM == 0 => 2,
        mask if mask & MOVABLE == 0 => 3,
        _ => u8::MAX,
    }
}

/// A zone of the trace with present frames, as a zone of the simulator.
#[derive(Clone, Debug)]
pub(super) struct ReplayZone {
    /// Its index among the zones of the head.
    pub head_index: usize,
    pub config: ZoneConfig,
    pub pcp_config: PcpConfig,
}

/// The zones in order of address, extended to whole pageblocks.
pub(super) fn replay_zones(head: &TraceHeader) -> Result<Vec<ReplayZone>, Error> {
    if head.max_order > crate::types::ORDER_MAX || head.pageblock_order > head.max_order {
        return invalid(format!(
            "unsupported orders in the trace: blocks up to order {}, pageblocks of order {}",
            head.max_order, head.pageblock_order
        ));
    }
    let mut names: Vec<&str> = head.zones.iter().map(|zone| zone.key.zone.as_str()).collect();
    names.sort_by_key(|name| (zone_index_of_name(name), *name));
    names.dedup();
    let mut replay_zones = Vec::new();
    for (at, zone) in head.zones.iter().enumerate().filter(|(_, zone)| zone.spanned > 0 && zone.managed > 0) {
        let pageblock_frames = 1u64 << head.pageblock_order;
        let first = u64::from(zone.first) & !(pageblock_frames - 1);
        let end = (u64::from(zone.first) + u64::from(zone.spanned)).next_multiple_of(pageblock_frames);
        if end > FRAMES_MAX {
            return invalid(format!("zone {} ends above the highest supported frame", zone.key.zone));
        }
        let (first, frames) = (Frame::new(first as u32), (end - first) as u32);
        let [min, low, high] = zone.watermarks.map(u64::from);
        replay_zones.push(ReplayZone {
            head_index: at,
            config: ZoneConfig {
                name: zone.key.zone.clone(),
                node: u16::try_from(zone.key.node.0)
                    .map_err(|_| Error::InvalidConfig("a node number above 65 535".into()))?,
                zone_index: zone_index_of_name(&zone.key.zone),
                geometry: ZoneGeometry {
                    first_frame: first,
                    frames,
                    max_order: head.max_order,
                    pageblock_order: head.pageblock_order,
                },
                watermarks: Watermarks { min, low: low.max(min), high: high.max(low).max(min) },
                lowmem_reserve: lowmem_reserves(zone, &names),
                features: crate::zone::ZoneFeatures::default(),
            },
            pcp_config: pcp_config_of(head, zone),
        });
    }
    replay_zones.sort_by_key(|part| part.config.geometry.first_frame);
    Ok(replay_zones)
}

/// Per-CPU lists of a zone as in the traced kernel.
///
/// Since Linux 6.7 the `high` of a processor changes; the lowest is a share of the low watermark, and no
/// less than four batches (`zone_highsize`).
fn pcp_config_of(head: &TraceHeader, zone: &TraceZone) -> PcpConfig {
    let [batch, high_max] = zone.pcp_batch_high.map(|frames| frames.max(1));
    let cpus = head.cpus.max(1);
    let pcp_config = PcpConfig::with_batch(cpus, batch, high_max.max(batch));
    let min_high = (zone.watermarks[1] / u32::from(cpus)).max(batch.saturating_mul(4));
    let batching_of = |pcp_config: PcpConfig| {
        PcpBatching::for_release(&head.kernel, &pcp_config, zone.managed, zone.watermarks[2])
    };
    let high = match batching_of(pcp_config) {
        PcpBatching::FixedBatch => pcp_config.high,
        PcpBatching::FreeFactor { .. } => pcp_config.high.max(batch.saturating_mul(2)),
        PcpBatching::AutoTuned { .. } => min_high,
    };
    let keep = PcpConfig { high, ..pcp_config };
    PcpConfig { batching: batching_of(keep), ..keep }
}

/// Reserves of a zone against requests for each zone index.
fn lowmem_reserves(zone: &TraceZone, names: &[&str]) -> Vec<u64> {
    let mut by_zone_index = vec![0; usize::from(u8::MAX) + 1];
    for (index, name) in names.iter().enumerate() {
        let reserve = zone.lowmem_reserve.get(index).copied().unwrap_or(0);
        by_zone_index[usize::from(zone_index_of_name(name))..].fill(reserve);
    }
    by_zone_index
}
