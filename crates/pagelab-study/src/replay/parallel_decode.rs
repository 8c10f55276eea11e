//! Parallel decoding of trace blocks ahead of the sinks. The result does not depend on the number of threads.
//!
//! Each sink receives the blocks in order; blocks can be decoded in any order. A free thread delivers a block
//! if one is ready, the earliest first, and otherwise decodes the next one, up to a few ahead. So no thread
//! waits while there is work, and few blocks are in memory at once.

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pagelab_model::alloc_trace::TraceEvent;
use pagelab_runfile::{Error, TraceDecoder, TraceReader};
use pagelab_sys::clock;

use pagelab_command::exit::Failure;
use pagelab_command::exit::read_trace_failure as read_failure;

/// Blocks decoded ahead, besides one per thread: 2 MiB each.
const SPARE_BLOCKS: usize = 2;
/// Maximum of threads besides one per sink: one decodes for two sinks or more.
const DECODERS_MAX: usize = 2;

/// Receiver of all events in order.
pub trait EventSink: Send {
    /// Accepts the events of the next block. It is not called again after an error.
    fn accept(&mut self, events: &[TraceEvent]) -> Result<(), SinkError>;
}

#[derive(Debug)]
pub struct SinkError {
    /// Step within the block. Of several sinks that fail in one block, the error with the lowest step is
    /// reported, and of these the first.
    pub step: usize,
    pub failure: Failure,
}

/// Delivers the blocks at `block_indices` of a trace to all sinks. Returns the sinks, and the CPU time of
/// decoding, in ns.
///
/// The error is the one that a single thread would meet first: before each block a decoding error, then the
/// errors of the sinks.
pub fn feed_sinks<T: EventSink>(
    reader: &mut TraceReader,
    block_indices: Range<usize>,
    threads: NonZero<usize>,
    sinks: Vec<T>,
) -> Result<(Vec<T>, u64), Failure> {
    let threads = threads.get().min(sinks.len() + DECODERS_MAX).min(block_indices.len()).max(1);
    let state = DecodeState {
        next_blocks: vec![block_indices.start; sinks.len()],
        sinks: sinks.into_iter().map(Some).collect(),
        first_block: block_indices.start,
        end_block: block_indices.end,
        blocks: VecDeque::new(),
        blocks_max: threads + SPARE_BLOCKS,
        spare_buffers: Vec::new(),
        failed: None,
        has_panicked: false,
        decode_cpu_ns: 0,
    };
    let table = SharedState { reader: Mutex::new(reader), state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| table.run_tasks());
        }
        table.run_tasks();
    });
    let state = table.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.failed {
        Some((_, failure)) => Err(failure),
        None => Ok((state.sinks.into_iter().flatten().collect(), state.decode_cpu_ns)),
    }
}

/// Position of an error: block, step in it, sink; a decoding error precedes all steps.
type ErrorPosition = (usize, usize, usize);

enum DecodedBlock {
    /// A thread decodes this block.
    Decoding,
    Ready(Arc<Vec<TraceEvent>>),
}

enum Task<T> {
    Decode { block_index: usize, events: Vec<TraceEvent> },
    Deliver { number: usize, sink: T, events: Arc<Vec<TraceEvent>> },
}

struct DecodeState<T> {
    /// `None` while a thread runs the sink.
    sinks: Vec<Option<T>>,
    /// Index of the next block by sink; the maximum for a sink that failed.
    next_blocks: Vec<usize>,
    /// Blocks from `first_block` on that are started and still needed.
    blocks: VecDeque<DecodedBlock>,
    first_block: usize,
    /// Index after the last needed block; an error lowers it.
    end_block: usize,
    /// Maximum of blocks in memory.
    blocks_max: usize,
    spare_buffers: Vec<Vec<TraceEvent>>,
    failed: Option<(ErrorPosition, Failure)>,
    has_panicked: bool,
    decode_cpu_ns: u64,
}

impl<T> DecodeState<T> {
    fn next_task(&mut self) -> Option<Task<T>> {
        let due = |number: &usize| {
            let place = self.next_blocks[*number];
            place < self.end_block
                && self.sinks[*number].is_some()
                && matches!(self.blocks.get(place - self.first_block), Some(DecodedBlock::Ready(_)))
        };
        let earliest = (0..self.sinks.len()).filter(due).min_by_key(|&number| self.next_blocks[number]);
        if let Some(number) = earliest
            && let Some(DecodedBlock::Ready(events)) =
                self.blocks.get(self.next_blocks[number] - self.first_block)
            && let Some(taker) = self.sinks[number].take()
        {
            return Some(Task::Deliver { number, sink: taker, events: Arc::clone(events) });
        }
        let place = self.first_block + self.blocks.len();
        if place < self.end_block && self.blocks.len() < self.blocks_max {
            self.blocks.push_back(DecodedBlock::Decoding);
            return Some(Task::Decode {
                block_index: place,
                events: self.spare_buffers.pop().unwrap_or_default(),
            });
        }
        None
    }

    fn is_done(&self) -> bool {
        self.has_panicked || self.next_blocks.iter().all(|&next| next >= self.end_block)
    }

    fn fail(&mut self, position: ErrorPosition, end: usize, failure: Failure) {
        self.end_block = self.end_block.min(end);
        if self.failed.as_ref().is_none_or(|(before, _)| position < *before) {
            self.failed = Some((position, failure));
        }
    }

    /// Reuses the buffers of blocks that all sinks have received.
    fn recycle_blocks(&mut self) {
        let needed = self.next_blocks.iter().copied().min().unwrap_or(self.end_block);
        while self.first_block < needed
            && let Some(DecodedBlock::Ready(events)) = self.blocks.front_mut()
        {
            self.spare_buffers.extend(Arc::get_mut(events).map(std::mem::take));
            self.blocks.pop_front();
            self.first_block += 1;
        }
    }
}

struct SharedState<'r, T> {
    reader: Mutex<&'r mut TraceReader>,
    state: Mutex<DecodeState<T>>,
    changed: Condvar,
}

/// Lets the other threads end after a panic.
struct PanicGuard<'t, 'r, T>(&'t SharedState<'r, T>);

impl<T> Drop for PanicGuard<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock_state().has_panicked = true;
            self.0.changed.notify_all();
        }
    }
}

impl<T> SharedState<'_, T> {
    fn lock_state(&self) -> MutexGuard<'_, DecodeState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task; `None` at the end.
    fn wait_for_task(&self) -> Option<Task<T>> {
        let mut state = self.lock_state();
        loop {
            if state.is_done() {
                return None;
            }
            match state.next_task() {
                Some(work) => return Some(work),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<T: EventSink> SharedState<'_, T> {
    fn run_tasks(&self) {
        let _alarm = PanicGuard(self);
        let mut unpacker = BlockDecoder::default();
        while let Some(work) = self.wait_for_task() {
            match work {
                Task::Decode { block_index: place, mut events } => {
                    let before = clock::thread_cpu_ns();
                    let decoded = unpacker.decode_block(&self.reader, place, &mut events);
                    let cpu_ns = clock::thread_cpu_ns().saturating_sub(before);
                    let mut state = self.lock_state();
                    state.decode_cpu_ns += cpu_ns;
                    let at = place - state.first_block;
                    match (decoded, state.blocks.get_mut(at)) {
                        (Ok(()), Some(block)) => *block = DecodedBlock::Ready(Arc::new(events)),
                        (Ok(()), None) => {}
                        (Err(error), _) => state.fail((place, 0, 0), place, read_failure(&error)),
                    }
                }
                Task::Deliver { number, sink: mut taker, events } => {
                    let accepted = taker.accept(&events);
                    drop(events);
                    let mut state = self.lock_state();
                    let place = state.next_blocks[number];
                    state.sinks[number] = Some(taker);
                    state.next_blocks[number] = place + 1;
                    if let Err(SinkError { step, failure }) = accepted {
                        state.next_blocks[number] = usize::MAX;
                        state.fail((place, step + 1, number), place + 1, failure);
                    }
                    state.recycle_blocks();
                }
            }
            // Idle threads check again.
            self.changed.notify_all();
        }
    }
}

/// Decoder of a thread.
#[derive(Default)]
struct BlockDecoder {
    decoder: Option<TraceDecoder>,
    packed: Vec<u8>,
}

impl BlockDecoder {
    fn decode_block(
        &mut self,
        reader: &Mutex<&mut TraceReader>,
        block_index: usize,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), Error> {
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(reader.new_decoder()?),
        };
        let block = reader.copy_packed_block(block_index, &mut self.packed)?;
        drop(reader);
        decoder.decode_block(block_index, &block, &self.packed, events)
    }
}

#[cfg(test)]
mod tests;
