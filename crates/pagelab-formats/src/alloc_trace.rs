//! Columnar blocks of an allocator trace: small when compressed, fast to read.
//!
//! A block has at most 65 536 events and needs no other. Numbers are varints; the trailing zeros of the first
//! byte are the number of bytes that follow, so that reading one takes no branch: `n` bytes hold `7 n` bits
//! up to eight bytes, and a first byte of 0 is followed by eight bytes. Pieces, in this order:
//!
//! | piece | what |
//! |---|---|
//! | shift | times are stored in units of 2^shift ns |
//! | events, first time | counts; the time in units |
//! | who | a list of pairs (thread, processor), each once |
//! | shapes | a list of what an event can be, without its frame and its counts, each once |
//! | who by event | an index of one byte, or of two where the list is longer than 256 |
//! | shape by event | likewise |
//! | times | a varint an event: units since the one before |
//! | frames | a zigzag varint an event that has one: from the last frame of the same thread and processor |
//! | counts | varints: pages moved and failed, pages freed |
//! | eight zero bytes | so that a varint is always read as one word |
//!
//! The caller that stores the blocks compresses them and adds checksums.

use std::collections::HashMap;
use std::hash::Hash;

use pagelab_model::alloc_trace::{FrameRun, FrameState, TraceEvent, TraceEventKind};

use crate::ParseError;

/// Events of a block at most.
pub const BLOCK_EVENTS_MAX: usize = 1 << 16;

/// Maximum size of a block in bytes, for any events.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;

/// Runs of frames that one piece of a snapshot has at most.
pub const RUNS_MAX: usize = 1 << 17;

/// Times are kept to 32 ns, an eighth of what the cheapest event takes. Each bit of a time that is kept more
/// costs an eighth of a byte, since these bits are chance and do not compress.
pub const DEFAULT_SHIFT: u8 = 5;

/// The coarsest unit of time: a millisecond.
const SHIFT_MAX: u8 = 20;

const FORMAT: &str = "allocator trace block";

fn block_error(byte: usize, problem: impl Into<String>) -> ParseError {
    ParseError::at_byte(FORMAT, byte as u64, problem)
}

/// Any bytes: if they are read as a block, it is the same block after writing and reading it again.
pub fn fuzz(data: &[u8]) {
    let mut events = Vec::new();
    if decode(data, &mut events).is_ok() {
        let (mut again, mut block) = (Vec::new(), Vec::new());
        Encoder::new(0).encode(&events, &mut block);
        assert!(decode(&block, &mut again).is_ok());
        assert_eq!(events, again);
    } else {
        assert!(events.is_empty());
    }
    let mut runs = Vec::new();
    if decode_runs(data, &mut runs).is_ok() {
        let (mut again, mut piece) = (Vec::new(), Vec::new());
        encode_runs(&runs, &mut piece);
        assert!(decode_runs(&piece, &mut again).is_ok());
        assert_eq!(runs, again);
    } else {
        assert!(runs.is_empty());
    }
}

/// Places of the table in front of a list; of a build, one block has some 40 threads and 60 shapes.
const CACHE_SLOTS: usize = 1 << 10;

/// List of distinct values, with the index of each value; cleared before its first use.
#[derive(Default)]
struct Interner<T> {
    items: Vec<T>,
    indices: HashMap<T, u32>,
    /// By hash: the last lookups, so that the map is rarely used.
    cache: Vec<Option<(T, u32)>>,
}

impl<T: Copy + Eq + Hash> Interner<T> {
    fn clear(&mut self) {
        self.items.clear();
        self.indices.clear();
        self.cache.clear();
        self.cache.resize(CACHE_SLOTS, None);
    }

    #[inline]
    fn intern(&mut self, item: T, hash: u64) -> u32 {
        let slot = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % CACHE_SLOTS;
        if let Some((known, place)) = self.cache[slot]
            && known == item
        {
            return place;
        }
        let next = self.items.len() as u32;
        let place = *self.indices.entry(item).or_insert(next);
        if place == next {
            self.items.push(item);
        }
        self.cache[slot] = Some((item, place));
        place
    }
}

/// An event without its frame and its counts: its kind and up to eight bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct EventShape {
    pub kind: u8,
    pub word: u64,
}

/// Kinds of shapes, as they are stored.
mod kinds {
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

/// Taken apart: the shape, and the frame that is not in it.
#[inline]
fn split_event(what: &TraceEventKind) -> (EventShape, Option<u32>) {
    let (kind, word, pfn) = match *what {
        TraceEventKind::Alloc { pfn, order, migratetype, gfp_flags } => {
            let word = u64::from(order) | u64::from(migratetype) << 8 | u64::from(gfp_flags) << 16;
            (if pfn.is_some() { kinds::ALLOC } else { kinds::ALLOC_FAILED }, word, pfn)
        }
        TraceEventKind::Free { pfn, order } => (kinds::FREE, u64::from(order), Some(pfn)),
        TraceEventKind::Fallback {
            pfn,
            alloc_order,
            fallback_order,
            alloc_migratetype,
            fallback_migratetype,
            change_ownership,
        } => {
            let word = u64::from(alloc_order)
                | u64::from(fallback_order) << 8
                | u64::from(alloc_migratetype) << 16
                | u64::from(fallback_migratetype) << 24
                | u64::from(change_ownership) << 32;
            (kinds::FALLBACK, word, Some(pfn))
        }
        TraceEventKind::CompactionBegin => (kinds::COMPACTION_BEGIN, 0, None),
        TraceEventKind::CompactionEnd => (kinds::COMPACTION_END, 0, None),
        TraceEventKind::Migrated { .. } => (kinds::MIGRATED, 0, None),
        TraceEventKind::ReclaimBegin { order } => (kinds::RECLAIM_BEGIN, u64::from(order), None),
        TraceEventKind::ReclaimEnd { .. } => (kinds::RECLAIM_END, 0, None),
        TraceEventKind::KswapdWake { order } => (kinds::KSWAPD_WAKE, u64::from(order), None),
    };
    (EventShape { kind, word }, pfn)
}

/// Writes blocks, and keeps its memory from one to the next.
#[derive(Default)]
pub struct Encoder {
    shift: u8,
    tasks: Interner<(u32, u16)>,
    shapes: Interner<EventShape>,
    task_indices: Vec<u16>,
    shape_indices: Vec<u16>,
    times: Vec<u8>,
    frames: Vec<u8>,
    counts: Vec<u8>,
    /// The last frame by who.
    last_frames: Vec<u32>,
}

impl Encoder {
    /// The time as a reader of the block sees it.
    pub fn stored_ns(&self, at_ns: u64) -> u64 {
        at_ns >> self.shift << self.shift
    }

    /// Times are stored in units of 2^`shift` nanoseconds, at most 2^20.
    pub fn new(shift: u8) -> Encoder {
        Encoder { shift: shift.min(SHIFT_MAX), ..Encoder::default() }
    }

    /// Appends the block of these events to `out`: the first [`BLOCK_EVENTS_MAX`] of them. A time earlier
    /// than the previous one is stored as the previous one.
    pub fn encode(&mut self, events: &[TraceEvent], out: &mut Vec<u8>) {
        let events = &events[..events.len().min(BLOCK_EVENTS_MAX)];
        let first = events.first().map_or(0, |event| event.time_ns >> self.shift);
        self.split_events(events, first);
        for number in [u64::from(self.shift), events.len() as u64, first, self.tasks.items.len() as u64] {
            write_varint(out, number);
        }
        for &(tid, cpu) in &self.tasks.items {
            write_varint(out, u64::from(tid));
            write_varint(out, u64::from(cpu));
        }
        write_varint(out, self.shapes.items.len() as u64);
        for shape in &self.shapes.items {
            write_varint(out, u64::from(shape.kind));
            write_varint(out, shape.word);
        }
        write_column(&self.task_indices, self.tasks.items.len(), out);
        write_column(&self.shape_indices, self.shapes.items.len(), out);
        for column in [&self.times, &self.frames, &self.counts] {
            write_varint(out, column.len() as u64);
            out.extend_from_slice(column);
        }
        out.extend_from_slice(&[0; PADDING]);
    }

    fn split_events(&mut self, events: &[TraceEvent], first: u64) {
        self.tasks.clear();
        self.shapes.clear();
        self.last_frames.clear();
        self.task_indices.clear();
        self.shape_indices.clear();
        for column in [&mut self.times, &mut self.frames, &mut self.counts] {
            column.clear();
        }
        let mut now = first;
        for event in events {
            let at = (event.time_ns >> self.shift).max(now);
            write_varint(&mut self.times, at - now);
            now = at;
            let who =
                self.tasks.intern((event.tid, event.cpu), u64::from(event.tid) << 16 ^ u64::from(event.cpu));
            if who as usize == self.last_frames.len() {
                self.last_frames.push(0);
            }
            let (shape, pfn) = split_event(&event.kind);
            // At most as many of either as events, which are fewer than 2^16 + 1.
            self.task_indices.push(who as u16);
            self.shape_indices
                .push(self.shapes.intern(shape, shape.word ^ u64::from(shape.kind) << 56) as u16);
            if let Some(pfn) = pfn {
                let last = &mut self.last_frames[who as usize];
                write_varint(&mut self.frames, u64::from(zigzag(pfn.wrapping_sub(*last) as i32)));
                *last = pfn;
            }
            match event.kind {
                TraceEventKind::Migrated { moved, failed } => {
                    write_varint(&mut self.counts, u64::from(moved));
                    write_varint(&mut self.counts, u64::from(failed));
                }
                TraceEventKind::ReclaimEnd { freed } => write_varint(&mut self.counts, u64::from(freed)),
                _ => {}
            }
        }
    }
}

/// An index an event.
fn write_column(places: &[u16], of: usize, out: &mut Vec<u8>) {
    match of <= 256 {
        true => out.extend(places.iter().map(|&place| place as u8)),
        false => out.extend(places.iter().flat_map(|place| place.to_le_bytes())),
    }
}

/// Placeholder until the event is written.
const PLACEHOLDER_EVENT: TraceEvent =
    TraceEvent { time_ns: 0, tid: 0, cpu: 0, kind: TraceEventKind::CompactionBegin };

/// Header of a block, and the positions of its columns.
struct ChunkHeader<'b> {
    shift: u8,
    event_count: usize,
    first_ns: u64,
    tasks: Vec<(u32, u16)>,
    shapes: Vec<TraceEventKind>,
    task_column: Column<'b>,
    shape_column: Column<'b>,
    /// Where each begins and ends.
    times: (usize, usize),
    frames: (usize, usize),
    counts: (usize, usize),
}

/// Indices of one byte or of two.
struct Column<'b> {
    bytes: &'b [u8],
    is_wide: bool,
}

impl Column<'_> {
    #[inline(always)]
    fn index_of(&self, event: usize) -> usize {
        match self.is_wide {
            false => self.bytes.get(event).map_or(usize::MAX, |&byte| usize::from(byte)),
            true => {
                let pair = self.bytes.get(2 * event..).and_then(<[u8]>::first_chunk);
                pair.map_or(usize::MAX, |&pair| usize::from(u16::from_le_bytes(pair)))
            }
        }
    }
}

/// Reads a block into `events`, whose contents are replaced; after an error there are none.
///
/// Memory is allocated for at most [`BLOCK_EVENTS_MAX`] events, even if the block claims more.
pub fn decode(block: &[u8], events: &mut Vec<TraceEvent>) -> Result<(), ParseError> {
    let decoded = read_header(block).and_then(|head| fill_events(block, &head, events));
    if decoded.is_err() {
        events.clear();
    }
    decoded
}

/// A number that must be at most `limit`.
fn read_bounded(block: &[u8], offset: &mut usize, limit: u64, what: &str) -> Result<u64, ParseError> {
    let began = *offset;
    let value = read_varint(block, offset).ok_or_else(|| block_error(began, "unexpected end of data"))?;
    match value <= limit {
        true => Ok(value),
        false => Err(block_error(began, format!("{what}: {value} exceeds the limit of {limit}"))),
    }
}

fn read_header(block: &[u8]) -> Result<ChunkHeader<'_>, ParseError> {
    if block.len() > BLOCK_BYTES_MAX {
        return Err(block_error(0, format!("{} bytes are too many for a block", block.len())));
    }
    let mut offset = 0;
    let shift = read_bounded(block, &mut offset, u64::from(SHIFT_MAX), "time unit")? as u8;
    let event_count = read_bounded(block, &mut offset, BLOCK_EVENTS_MAX as u64, "events")?;
    let first_ns = read_bounded(block, &mut offset, u64::MAX >> shift, "start time")?;
    let count = read_bounded(block, &mut offset, event_count, "threads")?;
    // Each takes two bytes at least, so a list is never longer than the block.
    let mut tasks = Vec::with_capacity((count as usize).min(block.len()));
    for _ in 0..count {
        let tid = read_bounded(block, &mut offset, u64::from(u32::MAX), "thread")?;
        tasks.push((tid as u32, read_bounded(block, &mut offset, u64::from(u16::MAX), "CPU")? as u16));
    }
    let count = read_bounded(block, &mut offset, event_count, "event shapes")?;
    let mut shapes = Vec::with_capacity((count as usize).min(block.len()));
    for _ in 0..count {
        let began = offset;
        let kind = read_bounded(block, &mut offset, u64::from(u8::MAX), "event kind")? as u8;
        let word = read_bounded(block, &mut offset, u64::MAX, "shape")?;
        let unknown = || block_error(began, format!("unknown event kind {kind}"));
        shapes.push(decode_shape(kind, word).ok_or_else(unknown)?);
    }
    let events = event_count as usize;
    let mut read_column = |of: usize| {
        let is_wide = of > 256;
        let bytes = events << u8::from(is_wide);
        let column = block.get(offset..).and_then(|rest| rest.get(..bytes));
        let column = column.ok_or_else(|| block_error(offset, "truncated column"))?;
        offset += bytes;
        Ok(Column { bytes: column, is_wide })
    };
    let (task_column, shape_column) = (read_column(tasks.len())?, read_column(shapes.len())?);
    let mut column = || {
        let bytes = read_bounded(block, &mut offset, block.len() as u64, "column size")? as usize;
        let began = offset;
        offset += bytes;
        Ok((began, offset))
    };
    let (times, frames, counts) = (column()?, column()?, column()?);
    if block.len() != offset + PADDING {
        let problem = format!("the block has {} bytes, but its columns end at byte {offset}", block.len());
        return Err(block_error(offset, problem));
    }
    Ok(ChunkHeader {
        shift,
        event_count: events,
        first_ns,
        tasks,
        shapes,
        task_column,
        shape_column,
        times,
        frames,
        counts,
    })
}

/// The event of a shape, its frame and its counts 0.
fn decode_shape(kind: u8, word: u64) -> Option<TraceEventKind> {
    let [order, b, c, d, owns, ..] = word.to_le_bytes();
    let fits = |bytes: u32| word.checked_shr(8 * bytes).unwrap_or(0) == 0;
    let (event_kind, fits) = match kind {
        kinds::ALLOC | kinds::ALLOC_FAILED => {
            let pfn = (kind == kinds::ALLOC).then_some(0);
            (TraceEventKind::Alloc { pfn, order, migratetype: b, gfp_flags: (word >> 16) as u32 }, fits(6))
        }
        kinds::FREE => (TraceEventKind::Free { pfn: 0, order }, fits(1)),
        kinds::FALLBACK => {
            let event_kind = TraceEventKind::Fallback {
                pfn: 0,
                alloc_order: order,
                fallback_order: b,
                alloc_migratetype: c,
                fallback_migratetype: d,
                change_ownership: owns == 1,
            };
            (event_kind, fits(5) && owns <= 1)
        }
        kinds::COMPACTION_BEGIN => (TraceEventKind::CompactionBegin, word == 0),
        kinds::COMPACTION_END => (TraceEventKind::CompactionEnd, word == 0),
        kinds::MIGRATED => (TraceEventKind::Migrated { moved: 0, failed: 0 }, word == 0),
        kinds::RECLAIM_BEGIN => (TraceEventKind::ReclaimBegin { order }, fits(1)),
        kinds::RECLAIM_END => (TraceEventKind::ReclaimEnd { freed: 0 }, word == 0),
        kinds::KSWAPD_WAKE => (TraceEventKind::KswapdWake { order }, fits(1)),
        _ => return None,
    };
    fits.then_some(event_kind)
}

fn fill_events(block: &[u8], head: &ChunkHeader<'_>, events: &mut Vec<TraceEvent>) -> Result<(), ParseError> {
    // Longer than before: filled up. Shorter: cut. Old contents are overwritten, not cleared first.
    events.resize(head.event_count, PLACEHOLDER_EVENT);
    let mut last_frames = vec![0u32; head.tasks.len()];
    let (mut time, mut frame, mut count) = (head.times.0, head.frames.0, head.counts.0);
    let (mut now_ns, mut wide) = (head.first_ns, 0u64);
    for (place, event) in events.iter_mut().enumerate() {
        let cut = || block_error(block.len(), format!("event {place} is truncated"));
        let (task_index, shape) = (head.task_column.index_of(place), head.shape_column.index_of(place));
        let (Some(&(tid, cpu)), Some(&shape)) = (head.tasks.get(task_index), head.shapes.get(shape)) else {
            return Err(block_error(0, format!("event {place} refers to an unknown thread or shape")));
        };
        now_ns = now_ns.saturating_add(read_varint(block, &mut time).ok_or_else(cut)?);
        let mut event_kind = shape;
        match &mut event_kind {
            TraceEventKind::Alloc { pfn: Some(pfn), .. }
            | TraceEventKind::Free { pfn, .. }
            | TraceEventKind::Fallback { pfn, .. } => {
                let step = read_varint(block, &mut frame).ok_or_else(cut)?;
                wide |= step;
                last_frames[task_index] = last_frames[task_index].wrapping_add(unzigzag(step as u32) as u32);
                *pfn = last_frames[task_index];
            }
            TraceEventKind::Migrated { moved, failed } => {
                for number in [moved, failed] {
                    let value = read_varint(block, &mut count).ok_or_else(cut)?;
                    wide |= value;
                    *number = value as u32;
                }
            }
            TraceEventKind::ReclaimEnd { freed } => {
                let value = read_varint(block, &mut count).ok_or_else(cut)?;
                wide |= value;
                *freed = value as u32;
            }
            _ => {}
        }
        *event = TraceEvent { time_ns: now_ns << head.shift, tid, cpu, kind: event_kind };
    }
    let is_used = (time, frame, count) == (head.times.1, head.frames.1, head.counts.1);
    if !is_used || wide > u64::from(u32::MAX) || now_ns > u64::MAX >> head.shift {
        return Err(block_error(head.times.0, "the columns do not match the event shapes"));
    }
    Ok(())
}

/// Appends the piece with these runs to `out`: the first [`RUNS_MAX`] of them. They ascend and do not
/// overlap, and neither do their times go back; one that does is stored as the one before it.
///
/// A number of runs; for each its distance from the end of the one before, its frames and state as
/// `frames * 8 + state`, and the nanoseconds since the one before.
pub fn encode_runs(runs: &[FrameRun], out: &mut Vec<u8>) {
    let runs = &runs[..runs.len().min(RUNS_MAX)];
    write_varint(out, runs.len() as u64);
    let (mut end, mut now) = (0, 0);
    for run in runs {
        let read_ns = run.read_ns.max(now);
        write_varint(out, u64::from(run.pfn).saturating_sub(end));
        write_varint(out, u64::from(run.frames) << 3 | run.state as u64);
        write_varint(out, read_ns - now);
        (end, now) = (u64::from(run.pfn) + u64::from(run.frames), read_ns);
    }
    out.extend_from_slice(&[0; PADDING]);
}

/// Appends the runs of a piece to `runs`; after an error there are none at all.
pub fn decode_runs(piece: &[u8], runs: &mut Vec<FrameRun>) -> Result<(), ParseError> {
    let decoded = append_runs(piece, runs);
    if decoded.is_err() {
        runs.clear();
    }
    decoded
}

fn append_runs(piece: &[u8], runs: &mut Vec<FrameRun>) -> Result<(), ParseError> {
    if piece.len() > BLOCK_BYTES_MAX {
        return Err(block_error(
            0,
            format!("{} bytes are too many for a piece of the snapshot", piece.len()),
        ));
    }
    let mut offset = 0;
    let cut = |at: usize| block_error(at, "unexpected end of data");
    let count = read_varint(piece, &mut offset).ok_or_else(|| cut(0))?;
    if count > RUNS_MAX as u64 {
        return Err(block_error(0, format!("{count} runs exceed the limit of {RUNS_MAX}")));
    }
    runs.reserve((count as usize).min(piece.len()));
    let (mut end, mut now_ns) = (0u64, 0u64);
    for _ in 0..count {
        let began = offset;
        let mut next = || read_varint(piece, &mut offset).ok_or_else(|| cut(began));
        let (gap, size, later) = (next()?, next()?, next()?);
        let pfn = end.checked_add(gap).and_then(|pfn| u32::try_from(pfn).ok());
        let (frames, was) = (u32::try_from(size >> 3).ok(), FrameState::ALL.get((size & 7) as usize));
        let read_ns = now_ns.checked_add(later);
        let (Some(pfn), Some(frames), Some(&was), Some(read_ns)) = (pfn, frames, was, read_ns) else {
            return Err(block_error(began, "invalid run: frame number, state or time out of range"));
        };
        runs.push(FrameRun { pfn, frames, state: was, read_ns });
        (end, now_ns) = (u64::from(pfn) + u64::from(frames), read_ns);
    }
    match piece.len() == offset + PADDING {
        true => Ok(()),
        false => Err(block_error(offset, "trailing data after the last run")),
    }
}
/// Bytes after the last number, so that a whole word can be read at each start.
const PADDING: usize = 8;

#[inline]
fn write_varint(out: &mut Vec<u8>, value: u64) {
    let bits = (u64::BITS - (value | 1).leading_zeros()) as usize;
    let bytes = bits.div_ceil(7);
    if bytes <= 8 {
        let word = value << bytes | 1 << (bytes - 1);
        out.extend_from_slice(&word.to_le_bytes()[..bytes]);
    } else {
        out.push(0);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// The number at `offset`, which is moved behind it; `None` beyond the end.
#[inline(always)]
fn read_varint(bytes: &[u8], offset: &mut usize) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.get(*offset..)?.first_chunk()?);
    let count = word.trailing_zeros() + 1;
    if count <= 8 {
        *offset += count as usize;
        return Some(word << (64 - 8 * count) >> (64 - 7 * count));
    }
    read_long(bytes, offset)
}

#[cold]
fn read_long(bytes: &[u8], offset: &mut usize) -> Option<u64> {
    // The first byte is 0; which bytes follow does not matter.
    if *bytes.get(*offset)? != 0 {
        return None;
    }
    let value = u64::from_le_bytes(*bytes.get(*offset + 1..)?.first_chunk()?);
    *offset += 9;
    Some(value)
}

/// A difference as a number that is small where the difference is.
#[inline]
fn zigzag(difference: i32) -> u32 {
    (difference << 1 ^ difference >> 31) as u32
}

/// The other way round.
#[inline]
fn unzigzag(value: u32) -> i32 {
    (value >> 1) as i32 ^ -((value & 1) as i32)
}

#[cfg(test)]
mod tests;
