//! Blocks of a trace, decoded ahead of those who take them in, on several threads. What comes of it does not
//! depend on how many there are.
//!
//! Whoever takes a trace in goes through it block by block; blocks can be decoded in any order. A thread that
//! is free takes a block in where one is ready, the earliest first, and else decodes the next one, up to a
//! few ahead: so no thread waits as long as there is something to do, and few blocks are in memory at once.

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pagelab_model::alloc_trace::TraceEvent;
use pagelab_runfile::{Error, TraceDecoder, TraceReader};
use pagelab_sys::clock;

use crate::cmd::trace::refusal;
use crate::exit::Failure;

/// Blocks that are decoded ahead, beside one for each thread: 2 MiB each.
const SPARE: usize = 2;
/// Threads beside one for each taker, at most: one decodes for two takers or more.
const DECODERS: usize = 2;

/// One that takes events in, from the first to the last.
pub trait Taker: Send {
    /// Takes in the events of the next block. After an error it is not asked again.
    fn take(&mut self, events: &[TraceEvent]) -> Result<(), Stumble>;
}

/// Why a taker goes no further.
#[derive(Debug)]
pub struct Stumble {
    /// After how many steps of its block. Of several takers that stumble over one block, the one that does so
    /// at the lowest step is told, and of these the first.
    pub step: usize,
    pub failure: Failure,
}

/// Hands the blocks at `places` of a trace to all takers. Returns them, and the CPU time of decoding, in ns.
///
/// The error is the one that a single thread would come to first: before each block, whether that can be
/// decoded; then what the takers say of it.
pub fn feed<T: Taker>(
    reader: &mut TraceReader,
    places: Range<usize>,
    threads: NonZero<usize>,
    takers: Vec<T>,
) -> Result<(Vec<T>, u64), Failure> {
    let threads = threads.get().min(takers.len() + DECODERS).min(places.len()).max(1);
    let state = State {
        next: vec![places.start; takers.len()],
        takers: takers.into_iter().map(Some).collect(),
        first: places.start,
        end: places.end,
        blocks: VecDeque::new(),
        depth: threads + SPARE,
        unused: Vec::new(),
        failed: None,
        is_broken: false,
        decode_cpu_ns: 0,
    };
    let table = Table { reader: Mutex::new(reader), state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| table.work());
        }
        table.work();
    });
    let state = table.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.failed {
        Some((_, failure)) => Err(failure),
        None => Ok((state.takers.into_iter().flatten().collect(), state.decode_cpu_ns)),
    }
}

/// Where an error lies: its block, the step in it, and the taker; that of decoding is in front of all steps.
type Where = (usize, usize, usize);

enum Block {
    /// A thread decodes it.
    Coming,
    Ready(Arc<Vec<TraceEvent>>),
}

/// What is to be done next.
enum Work<T> {
    Decode { place: usize, events: Vec<TraceEvent> },
    Take { number: usize, taker: T, events: Arc<Vec<TraceEvent>> },
}

struct State<T> {
    /// `None` while a thread works for it.
    takers: Vec<Option<T>>,
    /// By taker, the place of its next block; that of one that stumbled is above all.
    next: Vec<usize>,
    /// Blocks from `first` on that were begun and that somebody still needs.
    blocks: VecDeque<Block>,
    first: usize,
    /// The place behind the last block that is needed: an error brings it down.
    end: usize,
    /// Blocks in memory at most.
    depth: usize,
    unused: Vec<Vec<TraceEvent>>,
    failed: Option<(Where, Failure)>,
    /// A thread panicked.
    is_broken: bool,
    decode_cpu_ns: u64,
}

impl<T> State<T> {
    fn work(&mut self) -> Option<Work<T>> {
        let due = |number: &usize| {
            let place = self.next[*number];
            place < self.end
                && self.takers[*number].is_some()
                && matches!(self.blocks.get(place - self.first), Some(Block::Ready(_)))
        };
        let earliest = (0..self.takers.len()).filter(due).min_by_key(|&number| self.next[number]);
        if let Some(number) = earliest
            && let Some(Block::Ready(events)) = self.blocks.get(self.next[number] - self.first)
            && let Some(taker) = self.takers[number].take()
        {
            return Some(Work::Take { number, taker, events: Arc::clone(events) });
        }
        let place = self.first + self.blocks.len();
        if place < self.end && self.blocks.len() < self.depth {
            self.blocks.push_back(Block::Coming);
            return Some(Work::Decode { place, events: self.unused.pop().unwrap_or_default() });
        }
        None
    }

    fn is_done(&self) -> bool {
        self.is_broken || self.next.iter().all(|&next| next >= self.end)
    }

    fn fail(&mut self, at: Where, end: usize, failure: Failure) {
        self.end = self.end.min(end);
        if self.failed.as_ref().is_none_or(|(before, _)| at < *before) {
            self.failed = Some((at, failure));
        }
    }

    /// Blocks that all takers have behind them are written over by others.
    fn let_go(&mut self) {
        let needed = self.next.iter().copied().min().unwrap_or(self.end);
        while self.first < needed
            && let Some(Block::Ready(events)) = self.blocks.front_mut()
        {
            self.unused.extend(Arc::get_mut(events).map(std::mem::take));
            self.blocks.pop_front();
            self.first += 1;
        }
    }
}

/// What the threads share.
struct Table<'r, T> {
    reader: Mutex<&'r mut TraceReader>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// A thread that panics lets the others end.
struct Alarm<'t, 'r, T>(&'t Table<'r, T>);

impl<T> Drop for Alarm<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}

impl<T> Table<'_, T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing to do, once there is one; `None`: all is done.
    fn next(&self) -> Option<Work<T>> {
        let mut state = self.state();
        loop {
            if state.is_done() {
                return None;
            }
            match state.work() {
                Some(work) => return Some(work),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<T: Taker> Table<'_, T> {
    fn work(&self) {
        let _alarm = Alarm(self);
        let mut unpacker = Unpacker::default();
        while let Some(work) = self.next() {
            match work {
                Work::Decode { place, mut events } => {
                    let before = clock::thread_cpu_ns();
                    let decoded = unpacker.block(&self.reader, place, &mut events);
                    let cpu_ns = clock::thread_cpu_ns().saturating_sub(before);
                    let mut state = self.state();
                    state.decode_cpu_ns += cpu_ns;
                    let at = place - state.first;
                    match (decoded, state.blocks.get_mut(at)) {
                        (Ok(()), Some(block)) => *block = Block::Ready(Arc::new(events)),
                        (Ok(()), None) => {}
                        (Err(error), _) => state.fail((place, 0, 0), place, refusal(&error)),
                    }
                }
                Work::Take { number, mut taker, events } => {
                    let taken = taker.take(&events);
                    drop(events);
                    let mut state = self.state();
                    let place = state.next[number];
                    state.takers[number] = Some(taker);
                    state.next[number] = place + 1;
                    if let Err(Stumble { step, failure }) = taken {
                        state.next[number] = usize::MAX;
                        state.fail((place, step + 1, number), place + 1, failure);
                    }
                    state.let_go();
                }
            }
            // Whoever had nothing to do looks again.
            self.changed.notify_all();
        }
    }
}

/// What a thread decodes with.
#[derive(Default)]
struct Unpacker {
    decoder: Option<TraceDecoder>,
    packed: Vec<u8>,
}

impl Unpacker {
    fn block(
        &mut self,
        reader: &Mutex<&mut TraceReader>,
        place: usize,
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), Error> {
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(reader.decoder()?),
        };
        let block = reader.packed(place, &mut self.packed)?;
        drop(reader);
        decoder.decode(place, &block, &self.packed, events)
    }
}

#[cfg(test)]
mod tests;
