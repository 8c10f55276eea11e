//! A block to events.

use pagelab_model::alloc_trace::{TraceEvent, TraceWhat};

use super::varint::{PADDING, take, unzigzag};
use super::write::kinds;
use super::{BLOCK_BYTES_MAX, BLOCK_EVENTS_MAX, SHIFT_MAX, wrong};
use crate::ParseError;

/// What a place has until its event is written over it.
const NOTHING: TraceEvent = TraceEvent { at_ns: 0, tid: 0, cpu: 0, what: TraceWhat::CompactionBegin };

/// What is in front of the columns, and where they lie.
struct Head<'b> {
    shift: u8,
    events: usize,
    first: u64,
    whos: Vec<(u32, u16)>,
    shapes: Vec<TraceWhat>,
    who: Column<'b>,
    shape: Column<'b>,
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
    fn at(&self, event: usize) -> usize {
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
/// Memory is taken for [`BLOCK_EVENTS_MAX`] events at most, whatever the block says.
pub fn decode(block: &[u8], events: &mut Vec<TraceEvent>) -> Result<(), ParseError> {
    let decoded = head(block).and_then(|head| fill(block, &head, events));
    if decoded.is_err() {
        events.clear();
    }
    decoded
}

/// A number that must be at most `most`.
fn number(block: &[u8], at: &mut usize, most: u64, what: &str) -> Result<u64, ParseError> {
    let began = *at;
    let value = take(block, at).ok_or_else(|| wrong(began, "it is cut off"))?;
    match value <= most {
        true => Ok(value),
        false => Err(wrong(began, format!("{what}: {value}, at most {most} is possible"))),
    }
}

fn head(block: &[u8]) -> Result<Head<'_>, ParseError> {
    if block.len() > BLOCK_BYTES_MAX {
        return Err(wrong(0, format!("it has {} bytes, more than any block", block.len())));
    }
    let mut at = 0;
    let shift = number(block, &mut at, u64::from(SHIFT_MAX), "unit of time")? as u8;
    let events = number(block, &mut at, BLOCK_EVENTS_MAX as u64, "events")?;
    let first = number(block, &mut at, u64::MAX >> shift, "first time")?;
    let count = number(block, &mut at, events, "threads")?;
    // Each takes two bytes at least, so a list is never longer than the block.
    let mut whos = Vec::with_capacity((count as usize).min(block.len()));
    for _ in 0..count {
        let tid = number(block, &mut at, u64::from(u32::MAX), "thread")?;
        whos.push((tid as u32, number(block, &mut at, u64::from(u16::MAX), "processor")? as u16));
    }
    let count = number(block, &mut at, events, "shapes of events")?;
    let mut shapes = Vec::with_capacity((count as usize).min(block.len()));
    for _ in 0..count {
        let began = at;
        let kind = number(block, &mut at, u64::from(u8::MAX), "kind of event")? as u8;
        let word = number(block, &mut at, u64::MAX, "shape")?;
        shapes.push(what(kind, word).ok_or_else(|| wrong(began, format!("{kind} is no kind of event")))?);
    }
    let events = events as usize;
    let mut indices = |of: usize| {
        let is_wide = of > 256;
        let bytes = events << u8::from(is_wide);
        let column = block.get(at..).and_then(|rest| rest.get(..bytes));
        let column = column.ok_or_else(|| wrong(at, "a column is cut off"))?;
        at += bytes;
        Ok(Column { bytes: column, is_wide })
    };
    let (who, shape) = (indices(whos.len())?, indices(shapes.len())?);
    let mut column = || {
        let bytes = number(block, &mut at, block.len() as u64, "bytes of a column")? as usize;
        let began = at;
        at += bytes;
        Ok((began, at))
    };
    let (times, frames, counts) = (column()?, column()?, column()?);
    if block.len() != at + PADDING {
        let problem = format!("it has {} bytes, and its columns end at {at}", block.len());
        return Err(wrong(at, problem));
    }
    Ok(Head { shift, events, first, whos, shapes, who, shape, times, frames, counts })
}

/// The event of a shape, its frame and its counts 0.
fn what(kind: u8, word: u64) -> Option<TraceWhat> {
    let [a, b, c, d, owns, ..] = word.to_le_bytes();
    let fits = |bytes: u32| word.checked_shr(8 * bytes).unwrap_or(0) == 0;
    let order = a;
    let (what, fits) = match kind {
        kinds::ALLOC | kinds::ALLOC_FAILED => {
            let pfn = (kind == kinds::ALLOC).then_some(0);
            (TraceWhat::Alloc { pfn, order, migratetype: b, gfp: (word >> 16) as u32 }, fits(6))
        }
        kinds::FREE => (TraceWhat::Free { pfn: 0, order }, fits(1)),
        kinds::FALLBACK => {
            let (taken_order, wanted, from) = (b, c, d);
            let what = TraceWhat::Fallback { pfn: 0, order, taken_order, wanted, from, owns: owns == 1 };
            (what, fits(5) && owns <= 1)
        }
        kinds::COMPACTION_BEGIN => (TraceWhat::CompactionBegin, word == 0),
        kinds::COMPACTION_END => (TraceWhat::CompactionEnd, word == 0),
        kinds::MIGRATED => (TraceWhat::Migrated { moved: 0, failed: 0 }, word == 0),
        kinds::RECLAIM_BEGIN => (TraceWhat::ReclaimBegin { order }, fits(1)),
        kinds::RECLAIM_END => (TraceWhat::ReclaimEnd { freed: 0 }, word == 0),
        kinds::KSWAPD_WAKE => (TraceWhat::KswapdWake { order }, fits(1)),
        _ => return None,
    };
    fits.then_some(what)
}

fn fill(block: &[u8], head: &Head<'_>, events: &mut Vec<TraceEvent>) -> Result<(), ParseError> {
    // Longer than before: filled up. Shorter: cut. What was there is written over, not cleared first.
    events.resize(head.events, NOTHING);
    let mut last = vec![0u32; head.whos.len()];
    let (mut time, mut frame, mut count) = (head.times.0, head.frames.0, head.counts.0);
    let (mut now, mut wide) = (head.first, 0u64);
    for (place, event) in events.iter_mut().enumerate() {
        let cut = || wrong(block.len(), format!("event {place} is cut off"));
        let (who, shape) = (head.who.at(place), head.shape.at(place));
        let (Some(&(tid, cpu)), Some(&shape)) = (head.whos.get(who), head.shapes.get(shape)) else {
            return Err(wrong(0, format!("event {place} is of a thread or shape that is not listed")));
        };
        now = now.saturating_add(take(block, &mut time).ok_or_else(cut)?);
        let mut what = shape;
        match &mut what {
            TraceWhat::Alloc { pfn: Some(pfn), .. }
            | TraceWhat::Free { pfn, .. }
            | TraceWhat::Fallback { pfn, .. } => {
                let step = take(block, &mut frame).ok_or_else(cut)?;
                wide |= step;
                last[who] = last[who].wrapping_add(unzigzag(step as u32) as u32);
                *pfn = last[who];
            }
            TraceWhat::Migrated { moved, failed } => {
                for number in [moved, failed] {
                    let value = take(block, &mut count).ok_or_else(cut)?;
                    wide |= value;
                    *number = value as u32;
                }
            }
            TraceWhat::ReclaimEnd { freed } => {
                let value = take(block, &mut count).ok_or_else(cut)?;
                wide |= value;
                *freed = value as u32;
            }
            _ => {}
        }
        *event = TraceEvent { at_ns: now << head.shift, tid, cpu, what };
    }
    let is_used = (time, frame, count) == (head.times.1, head.frames.1, head.counts.1);
    if !is_used || wide > u64::from(u32::MAX) || now > u64::MAX >> head.shift {
        return Err(wrong(head.times.0, "its columns do not hold what its shapes ask for"));
    }
    Ok(())
}
