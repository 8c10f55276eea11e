//! What stands between the thread that measures and the thread that writes: a bounded queue of records.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelab_model::run::{ColumnHead, Ending, Event};

use crate::error::Error;
use crate::schema::SeriesTable;

/// Bytes of queued records at which the writing thread is woken at once.
const WAKE_BYTES: usize = 1 << 17;

/// Bytes of queued records beyond which the caller waits for the disk.
const FULL_BYTES: usize = 1 << 19;

/// A record on its way to the disk. Small, since there may be a great many samples.
pub(crate) enum Item {
    Sample { stream: u32, at_ns: i64, value: f64 },
    Row { series: u32, at_ns: i64, values: Box<[Option<i64>]> },
    Series(Box<StoredSeries>),
    Stream(Box<StoredStream>),
    Event(Box<Event>),
    Blob(Box<StoredBlob>),
    Ending(Box<Ending>),
}

/// A new series as it is stored.
pub(crate) struct StoredSeries {
    pub id: u32,
    pub name: String,
    pub source: String,
    pub heads: Vec<ColumnHead>,
    pub tables: Vec<SeriesTable>,
}

/// A new stream as it is stored.
pub(crate) struct StoredStream {
    pub id: u32,
    pub name: String,
    pub unit: String,
    /// A JSON object.
    pub labels: String,
}

/// A blob as it is stored.
pub(crate) struct StoredBlob {
    pub kind: String,
    pub version: u32,
    pub name: String,
    pub at_ns: i64,
    pub raw_bytes: i64,
    pub codec: &'static str,
    pub data: Vec<u8>,
}

impl Item {
    /// Bytes that the record holds, roughly.
    fn bytes(&self) -> usize {
        let behind = match self {
            Item::Row { values, .. } => size_of_val(&**values),
            Item::Blob(blob) => blob.data.len(),
            Item::Event(event) => event.kind.len() + event.text.len(),
            _ => 0,
        };
        size_of::<Item>() + behind
    }
}

/// The queue, shared by both threads.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Rung for the writing thread.
    work: Condvar,
    /// Rung for callers that wait for room or for a flush.
    done: Condvar,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    bytes: usize,
    /// Flushes asked for, and flushes done.
    asked: u64,
    answered: u64,
    /// The records so far are to be committed without waiting for more.
    is_hurried: bool,
    /// No record comes any more.
    is_closing: bool,
    /// Why nothing can be written any more.
    failed: Option<Error>,
}

/// What the writing thread found when it woke.
pub(crate) struct Batch {
    /// The flushes asked for until now: to be answered once the records are safe.
    pub asked: u64,
    /// Whether somebody waits for them.
    pub is_flush: bool,
    /// Whether these are the last records.
    pub is_last: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record; waits while the queue is full.
    pub fn push(&self, item: Item) -> Result<(), Error> {
        let bytes = item.bytes();
        let mut state = self.lock();
        while state.bytes > FULL_BYTES && state.failed.is_none() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let before = state.bytes;
        state.bytes += bytes;
        state.items.push(item);
        if before < WAKE_BYTES && state.bytes >= WAKE_BYTES {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Wakes the writing thread for what was pushed so far; waits for nothing.
    pub fn hurry(&self) {
        self.lock().is_hurried = true;
        self.work.notify_one();
    }

    /// Waits until every record pushed so far is on the disk.
    pub fn flush(&self) -> Result<(), Error> {
        let mut state = self.lock();
        state.asked += 1;
        let ticket = state.asked;
        self.work.notify_one();
        while state.answered < ticket && state.failed.is_none() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Why nothing can be written any more, if that is so.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failed.clone()
    }

    /// Says that no record comes any more.
    pub fn close(&self) {
        self.lock().is_closing = true;
        self.work.notify_one();
    }

    /// For the writing thread: sleeps until there is something to hurry for or `patience` is over, then
    /// takes all records into `items`, which must be empty.
    pub fn take(&self, items: &mut Vec<Item>, patience: Duration) -> Batch {
        let calm = |state: &mut State| {
            let is_waited_for = state.asked != state.answered || state.is_closing || state.is_hurried;
            state.bytes < WAKE_BYTES && !is_waited_for
        };
        let (mut state, _) =
            self.work.wait_timeout_while(self.lock(), patience, calm).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.items, items);
        state.bytes = 0;
        state.is_hurried = false;
        self.done.notify_all();
        Batch { asked: state.asked, is_flush: state.asked > state.answered, is_last: state.is_closing }
    }

    /// For the writing thread: the records of a batch are where they were asked to be.
    pub fn answer(&self, batch: &Batch) {
        self.lock().answered = batch.asked;
        self.done.notify_all();
    }

    /// For the writing thread: nothing can be written any more.
    pub fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.items = Vec::new();
        state.bytes = 0;
        state.failed.get_or_insert(error);
        self.done.notify_all();
    }
}
