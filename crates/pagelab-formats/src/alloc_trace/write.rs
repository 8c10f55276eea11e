//! Events to a block.

use std::collections::HashMap;
use std::hash::Hash;

use pagelab_model::alloc_trace::{TraceEvent, TraceWhat};

use super::varint::{PADDING, put, zigzag};
use super::{BLOCK_EVENTS_MAX, SHIFT_MAX};

/// Places of the table in front of a list; of a build, one block has some 40 threads and 60 shapes.
const FRONT: usize = 1 << 10;

/// A list in which everything stands once, and where in it something stands.
struct Once<T> {
    items: Vec<T>,
    known: HashMap<T, u32>,
    /// By hash: what was looked up last, so that the map is seldom asked.
    front: Vec<Option<(T, u32)>>,
}

impl<T: Copy + Eq + Hash> Once<T> {
    fn new() -> Once<T> {
        Once { items: Vec::new(), known: HashMap::new(), front: vec![None; FRONT] }
    }

    fn clear(&mut self) {
        self.items.clear();
        self.known.clear();
        self.front.fill(None);
    }

    #[inline]
    fn place(&mut self, item: T, hash: u64) -> u32 {
        let slot = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % FRONT;
        if let Some((known, place)) = self.front[slot]
            && known == item
        {
            return place;
        }
        let next = self.items.len() as u32;
        let place = *self.known.entry(item).or_insert(next);
        if place == next {
            self.items.push(item);
        }
        self.front[slot] = Some((item, place));
        place
    }
}

/// An event without its frame and its counts: its kind and up to eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub kind: u8,
    pub word: u64,
}

/// Kinds of shapes, as they are stored.
pub(super) mod kinds {
    pub const ALLOC: u8 = 0;
    pub const ALLOC_FAILED: u8 = 1;
    pub const FREE: u8 = 2;
    pub const FALLBACK: u8 = 3;
    pub const COMPACTION_BEGIN: u8 = 4;
    pub const COMPACTION_END: u8 = 5;
    pub const MIGRATED: u8 = 6;
    pub const RECLAIM_BEGIN: u8 = 7;
    pub const RECLAIM_END: u8 = 8;
    pub const KSWAPD_WAKE: u8 = 9;
}

fn word(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// Taken apart: the shape, and the frame that is not in it.
#[inline]
fn shape(what: &TraceWhat) -> (Shape, Option<u32>) {
    let small = |bytes: [u8; 3]| word([bytes[0], bytes[1], bytes[2], 0, 0, 0, 0, 0]);
    let (kind, word, pfn) = match *what {
        TraceWhat::Alloc { pfn, order, migratetype, gfp } => {
            let word = small([order, migratetype, 0]) | u64::from(gfp) << 16;
            (if pfn.is_some() { kinds::ALLOC } else { kinds::ALLOC_FAILED }, word, pfn)
        }
        TraceWhat::Free { pfn, order } => (kinds::FREE, u64::from(order), Some(pfn)),
        TraceWhat::Fallback { pfn, order, taken_order, wanted, from, owns } => {
            let word = word([order, taken_order, wanted, from, u8::from(owns), 0, 0, 0]);
            (kinds::FALLBACK, word, Some(pfn))
        }
        TraceWhat::CompactionBegin => (kinds::COMPACTION_BEGIN, 0, None),
        TraceWhat::CompactionEnd => (kinds::COMPACTION_END, 0, None),
        TraceWhat::Migrated { .. } => (kinds::MIGRATED, 0, None),
        TraceWhat::ReclaimBegin { order } => (kinds::RECLAIM_BEGIN, u64::from(order), None),
        TraceWhat::ReclaimEnd { .. } => (kinds::RECLAIM_END, 0, None),
        TraceWhat::KswapdWake { order } => (kinds::KSWAPD_WAKE, u64::from(order), None),
    };
    (Shape { kind, word }, pfn)
}

/// Writes blocks, and keeps its memory from one to the next.
pub struct Encoder {
    shift: u8,
    whos: Once<(u32, u16)>,
    shapes: Once<Shape>,
    who: Vec<u16>,
    shape: Vec<u16>,
    times: Vec<u8>,
    frames: Vec<u8>,
    counts: Vec<u8>,
    /// The last frame by who.
    last: Vec<u32>,
}

impl Encoder {
    /// The time as a reader of the block sees it.
    pub fn stored_ns(&self, at_ns: u64) -> u64 {
        at_ns >> self.shift << self.shift
    }

    /// Times are stored in units of 2^`shift` nanoseconds, at most 2^20.
    pub fn new(shift: u8) -> Encoder {
        Encoder {
            shift: shift.min(SHIFT_MAX),
            whos: Once::new(),
            shapes: Once::new(),
            who: Vec::new(),
            shape: Vec::new(),
            times: Vec::new(),
            frames: Vec::new(),
            counts: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Appends the block of these events to `out`: the first [`BLOCK_EVENTS_MAX`] of them. A time that goes
    /// back is stored as the one before it.
    pub fn encode(&mut self, events: &[TraceEvent], out: &mut Vec<u8>) {
        let events = &events[..events.len().min(BLOCK_EVENTS_MAX)];
        let first = events.first().map_or(0, |event| event.at_ns >> self.shift);
        self.take_apart(events, first);
        for number in [u64::from(self.shift), events.len() as u64, first, self.whos.items.len() as u64] {
            put(out, number);
        }
        for &(tid, cpu) in &self.whos.items {
            put(out, u64::from(tid));
            put(out, u64::from(cpu));
        }
        put(out, self.shapes.items.len() as u64);
        for shape in &self.shapes.items {
            put(out, u64::from(shape.kind));
            put(out, shape.word);
        }
        column(&self.who, self.whos.items.len(), out);
        column(&self.shape, self.shapes.items.len(), out);
        for column in [&self.times, &self.frames, &self.counts] {
            put(out, column.len() as u64);
            out.extend_from_slice(column);
        }
        out.extend_from_slice(&[0; PADDING]);
    }

    fn take_apart(&mut self, events: &[TraceEvent], first: u64) {
        self.whos.clear();
        self.shapes.clear();
        self.last.clear();
        self.who.clear();
        self.shape.clear();
        for column in [&mut self.times, &mut self.frames, &mut self.counts] {
            column.clear();
        }
        let mut now = first;
        for event in events {
            let at = (event.at_ns >> self.shift).max(now);
            put(&mut self.times, at - now);
            now = at;
            let who =
                self.whos.place((event.tid, event.cpu), u64::from(event.tid) << 16 ^ u64::from(event.cpu));
            if who as usize == self.last.len() {
                self.last.push(0);
            }
            let (shape, pfn) = shape(&event.what);
            // At most as many of either as events, which are fewer than 2^16 + 1.
            self.who.push(who as u16);
            self.shape.push(self.shapes.place(shape, shape.word ^ u64::from(shape.kind) << 56) as u16);
            if let Some(pfn) = pfn {
                let last = &mut self.last[who as usize];
                put(&mut self.frames, u64::from(zigzag(pfn.wrapping_sub(*last) as i32)));
                *last = pfn;
            }
            match event.what {
                TraceWhat::Migrated { moved, failed } => {
                    put(&mut self.counts, u64::from(moved));
                    put(&mut self.counts, u64::from(failed));
                }
                TraceWhat::ReclaimEnd { freed } => put(&mut self.counts, u64::from(freed)),
                _ => {}
            }
        }
    }
}

/// An index an event.
fn column(places: &[u16], of: usize, out: &mut Vec<u8>) {
    match of <= 256 {
        true => out.extend(places.iter().map(|&place| place as u8)),
        false => out.extend(places.iter().flat_map(|place| place.to_le_bytes())),
    }
}
