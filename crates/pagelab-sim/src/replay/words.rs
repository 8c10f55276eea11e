//! The words of a replay: what was counted, what does not fit, how the zones of a trace are numbered.

use std::fmt;

use pagelab_model::alloc_trace::{TraceHead, TraceZone};

use crate::marks::Marks;
use crate::memory::Setup;
use crate::percpu::{Keep, Terms};
use crate::words::{FRAMES_MAX, Frame, Kind, Shape, Wrong};

/// Events, and the frames that they were about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many events.
    pub events: u64,
    /// How many frames.
    pub frames: u64,
}

impl Tally {
    /// Counts one more of an order.
    #[inline]
    pub(super) fn add(&mut self, order: u8) {
        self.add_frames(1 << order);
    }

    /// Counts one more of so many frames.
    #[inline]
    pub(super) fn add_frames(&mut self, frames: u64) {
        self.events += 1;
        self.frames += frames;
    }
}

/// What a replay counted. An allocation has a place or none; a free is `matched`, `partly`, `guessed`,
/// `given_back`, `of_no_room`, `moved` or `unknown`, and never two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Events that were replayed.
    pub events: u64,
    /// Events before the snapshot was complete: they are part of the state that the replay begins with.
    pub before: u64,
    /// Events whose time is before that of the one before them.
    pub backwards: u64,
    /// Allocations.
    pub allocs: Tally,
    /// Allocations that the kernel could not serve.
    pub failed_in_trace: u64,
    /// Allocations that the simulated memory could not serve: the object is left out.
    pub no_room: Tally,
    /// Allocations of frames that were nobody's in the snapshot: per-CPU lists of the kernel held them.
    pub from_lists: Tally,
    /// Allocations of frames that were still allocated: their free was not seen. The old object is freed.
    pub reallocs: Tally,
    /// Frees.
    pub frees: Tally,
    /// Frees of an object that is known.
    pub matched: Tally,
    /// Frees of which only some frames are known; those are freed.
    pub partly: Tally,
    /// Frees by compaction of an object that is known: it moved, and lives on where nobody saw.
    pub moved: Tally,
    /// Frees of unknown frames that were taken for the oldest moved object of their order.
    pub guessed: Tally,
    /// Frees by compaction of unknown frames: it gives back what it took to move to.
    pub given_back: Tally,
    /// Frees of objects that had no room.
    pub of_no_room: Tally,
    /// Frees of frames that neither the snapshot nor the trace knows as allocated. They change nothing.
    pub unknown: Tally,
    /// Objects that were cut because a part of them was freed.
    pub splits: u64,
    /// Frees that were put together from objects of lower orders.
    pub joins: u64,
    /// Objects that moved and were never seen again.
    pub moved_at_end: u64,
    /// Blocks taken from the list of another kind, as the trace says (`mm_page_alloc_extfrag`).
    pub fallbacks_traced: u64,
    /// The same, with the pageblock changing hands.
    pub claims_traced: u64,
    /// Blocks taken from the list of another kind in the simulated memory. Where per-CPU lists are filled up,
    /// several in one go count as one.
    pub fallbacks: u64,
    /// The same, with the pageblock changing hands.
    pub claims: u64,
    /// Pages that compaction says it moved.
    pub migrated_traced: u64,
}

impl Account {
    /// The share of freed frames whose object was known, in parts per thousand; `None`: nothing was freed.
    /// Frames that compaction gave back are left out: nobody had them.
    pub fn matched_permille(&self) -> Option<u32> {
        let all = self.frees.frames.checked_sub(self.given_back.frames).filter(|&frames| frames > 0)?;
        let known = self.matched.frames + self.moved.frames + self.of_no_room.frames;
        Some((u128::from(known) * 1000 / u128::from(all)) as u32)
    }
}

/// An event that cannot be, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The event, counted from 0 over the whole trace.
    pub event: u64,
    /// Its time, in nanoseconds since the trace began.
    pub at_ns: u64,
    /// What is wrong with it.
    pub wrong: Wrong,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ns) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        write!(f, "event {} at {s}.{ns:09} s: {}", self.event, self.wrong)
    }
}

impl std::error::Error for Misfit {}

/// Which zone an object may lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zones {
    /// The one that the kernel chose, and lower ones when that is full.
    #[default]
    Traced,
    /// Those that `gfp_flags` allow, from the highest down, each to its watermarks.
    Asked,
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which zone an object may lie in.
    pub zones: Zones,
}

/// Kinds by the kernel's number of a migratetype.
#[derive(Clone, Debug)]
pub(super) struct Kinds([Kind; 256]);

impl Kinds {
    pub(super) fn of(head: &TraceHead) -> Kinds {
        let mut kinds = [Kind::Unmovable; 256];
        // Since Linux 4.5 (include/linux/mmzone.h).
        [kinds[1], kinds[2]] = [Kind::Movable, Kind::Reclaimable];
        for (kind, name) in kinds.iter_mut().zip(&head.migratetypes) {
            *kind = match name.as_str() {
                "Movable" | "CMA" => Kind::Movable,
                "Reclaimable" => Kind::Reclaimable,
                _ => Kind::Unmovable,
            };
        }
        Kinds(kinds)
    }

    #[inline]
    pub(super) fn get(&self, migratetype: u8) -> Kind {
        self.0[usize::from(migratetype)]
    }
}

/// How high a zone is: those for all devices first.
fn height(name: &str) -> u8 {
    let names = ["DMA", "DMA32", "Normal", "HighMem", "Movable"];
    names.iter().position(|known| *known == name).unwrap_or(names.len()) as u8
}

/// The highest zone that `gfp_flags` allow; their lowest four bits are the same in all releases
/// (`GFP_ZONEMASK`, include/linux/gfp_types.h).
#[inline]
pub(super) fn height_asked(gfp: u32) -> u8 {
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

/// A zone of the trace with frames in it, as the simulator sees it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its place among the zones of the head.
    pub at: usize,
    pub setup: Setup,
    pub keep: Keep,
}

/// The zones by first frame, grown to whole pageblocks.
pub(super) fn parts(head: &TraceHead) -> Result<Vec<Part>, Wrong> {
    let wrong = |what: String| Err(Wrong::Shape(what));
    if head.max_order > crate::words::ORDER_MAX || head.block_order > head.max_order {
        return wrong(format!(
            "the trace says that blocks are of up to order {}, and pageblocks of order {}",
            head.max_order, head.block_order
        ));
    }
    let mut names: Vec<&str> = head.zones.iter().map(|zone| zone.key.zone.as_str()).collect();
    names.sort_by_key(|name| (height(name), *name));
    names.dedup();
    let mut parts = Vec::new();
    for (at, zone) in head.zones.iter().enumerate().filter(|(_, zone)| zone.spanned > 0 && zone.managed > 0) {
        let block = 1u64 << head.block_order;
        let first = u64::from(zone.first) & !(block - 1);
        let end = (u64::from(zone.first) + u64::from(zone.spanned)).next_multiple_of(block);
        if end > FRAMES_MAX {
            return wrong(format!("zone {} ends above the last frame that can be numbered", zone.key.zone));
        }
        let (first, frames) = (first as Frame, (end - first) as u32);
        let [min, low, high] = zone.marks.map(u64::from);
        parts.push(Part {
            at,
            setup: Setup {
                name: zone.key.zone.clone(),
                node: u16::try_from(zone.key.node.0)
                    .map_err(|_| Wrong::Shape("a node above 65 535".into()))?,
                height: height(&zone.key.zone),
                shape: Shape { first, frames, max_order: head.max_order, block_order: head.block_order },
                marks: Marks { min, low: low.max(min), high: high.max(low).max(min) },
                reserves: reserves(zone, &names),
                extras: crate::zone::Extras::default(),
            },
            keep: keep(head, zone),
        });
    }
    parts.sort_by_key(|part| part.setup.shape.first);
    Ok(parts)
}

/// What processors keep of a zone, as the kernel that was traced does it.
///
/// Since Linux 6.7 the high mark of a processor changes; the lowest is a share of the low watermark, and no
/// less than four batches (`zone_highsize`).
fn keep(head: &TraceHead, zone: &TraceZone) -> Keep {
    let [batch, most] = zone.per_cpu.map(|frames| frames.max(1));
    let cpus = head.cpus.max(1);
    let keep = Keep::batches(cpus, batch, most.max(batch));
    let lowest = (zone.marks[1] / u32::from(cpus)).max(batch.saturating_mul(4));
    let of = |keep: Keep| Terms::of_release(&head.kernel, &keep, zone.managed, zone.marks[2]);
    let high = match of(keep) {
        Terms::Batch => keep.high,
        Terms::Doubling { .. } => keep.high.max(batch.saturating_mul(2)),
        Terms::Tuned { .. } => lowest,
    };
    let keep = Keep { high, ..keep };
    Keep { terms: of(keep), ..keep }
}

/// What a zone keeps from requests up to each height.
fn reserves(zone: &TraceZone, names: &[&str]) -> Vec<u64> {
    let mut by_height = vec![0; usize::from(u8::MAX) + 1];
    for (index, name) in names.iter().enumerate() {
        let kept = zone.reserves.get(index).copied().unwrap_or(0);
        by_height[usize::from(height(name))..].fill(kept);
    }
    by_height
}
