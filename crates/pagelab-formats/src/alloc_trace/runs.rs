//! The memory that a trace began with: runs of frames in one state, in pieces.

use pagelab_model::alloc_trace::{TraceRun, Was};

use super::varint::{PADDING, put, take};
use super::{BLOCK_BYTES_MAX, RUNS_MAX, wrong};
use crate::ParseError;

/// Appends the piece with these runs to `out`: the first [`RUNS_MAX`] of them. They ascend and do not
/// overlap, and neither do their times go back; one that does is stored as the one before it.
///
/// A number of runs; for each its distance from the end of the one before, its frames and state as
/// `frames * 8 + state`, and the nanoseconds since the one before.
pub fn encode_runs(runs: &[TraceRun], out: &mut Vec<u8>) {
    let runs = &runs[..runs.len().min(RUNS_MAX)];
    put(out, runs.len() as u64);
    let (mut end, mut now) = (0, 0);
    for run in runs {
        let read_ns = run.read_ns.max(now);
        put(out, u64::from(run.pfn).saturating_sub(end));
        put(out, u64::from(run.frames) << 3 | run.was as u64);
        put(out, read_ns - now);
        (end, now) = (u64::from(run.pfn) + u64::from(run.frames), read_ns);
    }
    out.extend_from_slice(&[0; PADDING]);
}

/// Appends the runs of a piece to `runs`; after an error there are none at all.
pub fn decode_runs(piece: &[u8], runs: &mut Vec<TraceRun>) -> Result<(), ParseError> {
    let decoded = append(piece, runs);
    if decoded.is_err() {
        runs.clear();
    }
    decoded
}

fn append(piece: &[u8], runs: &mut Vec<TraceRun>) -> Result<(), ParseError> {
    if piece.len() > BLOCK_BYTES_MAX {
        return Err(wrong(0, format!("it has {} bytes, more than any piece", piece.len())));
    }
    let mut at = 0;
    let cut = |at: usize| wrong(at, "it is cut off");
    let count = take(piece, &mut at).ok_or_else(|| cut(0))?;
    if count > RUNS_MAX as u64 {
        return Err(wrong(0, format!("{count} runs, at most {RUNS_MAX} are possible")));
    }
    runs.reserve((count as usize).min(piece.len()));
    let (mut end, mut now) = (0u64, 0u64);
    for _ in 0..count {
        let began = at;
        let mut next = || take(piece, &mut at).ok_or_else(|| cut(began));
        let (gap, size, later) = (next()?, next()?, next()?);
        let pfn = end.checked_add(gap).and_then(|pfn| u32::try_from(pfn).ok());
        let (frames, was) = (u32::try_from(size >> 3).ok(), Was::ALL.get((size & 7) as usize));
        let read_ns = now.checked_add(later);
        let (Some(pfn), Some(frames), Some(&was), Some(read_ns)) = (pfn, frames, was, read_ns) else {
            return Err(wrong(began, "a run is none: its frames, state or time are impossible"));
        };
        runs.push(TraceRun { pfn, frames, was, read_ns });
        (end, now) = (u64::from(pfn) + u64::from(frames), read_ns);
    }
    match piece.len() == at + PADDING {
        true => Ok(()),
        false => Err(wrong(at, "it goes on behind its last run")),
    }
}
