//! Writer thread, the only user of the SQLite connection, and its bounded queue: one transaction per batch.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagelab_model::run::{ColumnHeader, RunEnd, RunEvent};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, ToSql, params};

use crate::blob::CODEC_ZSTD;
use crate::error::{Error, ErrorKind};
use crate::schema::{self, SeriesTable};
use crate::writer::{SQLITE_SIBLINGS, sibling_path};

/// A record waits at most this long for its commit, besides what the commit itself takes.
const COMMIT_INTERVAL: Duration = Duration::from_millis(400);

/// After this interval, the next commit is forced to the disk.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which a close waits for readers of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the empty file that was just made, and writes the tables and the manifest into it.
pub(crate) fn initialize(path: &Path, manifest: &[(&str, String)]) -> Result<Connection, Error> {
    let to_error = |error: rusqlite::Error| Error::sqlite_write(path, &error, "");
    let connection = open_to_write(path).map_err(to_error)?;
    write_schema(&connection, manifest).map_err(to_error)?;
    enable_wal(path, connection)
}

fn open_to_write(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Opens a file that has all its tables, as a reader found, and takes out how its run ended.
pub(crate) fn reopen_closed(path: &Path) -> Result<Connection, Error> {
    let to_error = |error: rusqlite::Error| Error::sqlite_write(path, &error, "its contents are kept; ");
    let connection = open_to_write(path).map_err(to_error)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(to_error)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map_err(to_error)?;
    let connection = enable_wal(path, connection)?;
    for key in crate::manifest::ENDING_KEYS {
        connection.execute("DELETE FROM manifest WHERE key = ?", [key]).map_err(to_error)?;
    }
    Ok(connection)
}

/// From now on changes go to a log first.
fn enable_wal(path: &Path, connection: Connection) -> Result<Connection, Error> {
    let to_error = |error: rusqlite::Error| Error::sqlite_write(path, &error, "");
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(to_error)?;
    if mode != "wal" {
        let problem = "the file system does not support a write-ahead log; hint: write to a local disk";
        return Err(Error::cannot_write(ErrorKind::Io, path, problem));
    }
    connection.pragma_update(None, "synchronous", "normal").map_err(to_error)?;
    // The log is created with the first access to the file, and shows readers that a writer is active.
    connection.query_row("SELECT count(*) FROM manifest", [], |_| Ok(())).map_err(to_error)?;
    Ok(connection)
}

fn write_schema(connection: &Connection, manifest: &[(&str, String)]) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", schema::VERSION)?;
    for table in &schema::SCHEMA_TABLES {
        connection.execute_batch(table.sql)?;
    }
    let mut insert = connection.prepare(INSERT_MANIFEST)?;
    for (key, value) in manifest {
        insert.execute(params![key, value])?;
    }
    connection.execute_batch("COMMIT")
}

const INSERT_MANIFEST: &str = "INSERT INTO manifest VALUES(?, ?)";

/// Writes until the queue is closed, then leaves one plain file.
pub(crate) fn run_committer(path: &Path, connection: Connection, queue: &Queue) -> Result<(), Error> {
    let _end = ExitGuard { path, queue };
    let mut committed = CommittedRange::default();
    let written =
        Committer::new(&connection).and_then(|mut committer| committer.serve_batch(queue, &mut committed));
    // Everything is in the log once it is written; what can fail then is to make one file of both.
    let is_written = written.is_ok();
    let closed = written.and_then(|()| checkpoint_wal(&connection));
    // After any error, SQLite's own close tries to leave the file consistent; the first error is returned.
    let closed = connection.close().map_err(|(_, error)| error).and(closed);
    closed.map_err(|error| {
        let committed = if is_written { committed_hint(path) } else { committed.describe() };
        let error = Error::sqlite_write(path, &error, &committed);
        queue.set_failure(error.clone());
        error
    })
}

/// Stored data if the file and its log could not be joined.
fn committed_hint(path: &Path) -> String {
    let log = sibling_path(path, SQLITE_SIBLINGS[0]);
    format!("all data is in this file and in {}; keep the two together; ", log.display())
}

/// After any end of the thread, no caller waits for it.
struct ExitGuard<'q> {
    path: &'q Path,
    queue: &'q Queue,
}

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        self.queue.set_failure(Error::cannot_write(ErrorKind::Io, self.path, "its writer thread has ended"));
    }
}

/// One plain file: everything out of the log, and no log any more. A concurrent reader may keep the log in
/// place, which is harmless.
fn checkpoint_wal(connection: &Connection) -> rusqlite::Result<()> {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    connection.pragma_update(None, "synchronous", "full")?;
    let truncated = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let plain = truncated
        .and_then(|()| connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())));
    match plain {
        Err(error) if matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked)) => Ok(()),
        other => other,
    }
}

/// Times of committed records, for the message after a failure.
#[derive(Default)]
struct CommittedRange {
    records: u64,
    until_ns: i64,
}

impl CommittedRange {
    fn describe(&self) -> String {
        let until = format!("{:.1} s after the start", self.until_ns as f64 / 1e9);
        match self.records {
            0 => "the file is readable, but contains only the manifest of the run; ".to_owned(),
            1 => format!("the first record, {until}, is saved and readable; "),
            records => format!("the first {records} records, up to {until}, are saved and readable; "),
        }
    }
}

struct Committer<'c> {
    connection: &'c Connection,
    insert_sample: Statement<'c>,
    series: Vec<SeriesInserter<'c>>,
    synced_at: Instant,
    /// Whether something is committed that has not been forced to the disk.
    is_unsynced: bool,
    is_full: bool,
}

impl<'c> Committer<'c> {
    fn new(connection: &'c Connection) -> rusqlite::Result<Committer<'c>> {
        Ok(Committer {
            connection,
            insert_sample: connection.prepare("INSERT INTO sample VALUES(?, ?, ?)")?,
            series: Vec::new(),
            synced_at: Instant::now(),
            is_unsynced: false,
            is_full: false,
        })
    }

    fn serve_batch(&mut self, queue: &Queue, committed: &mut CommittedRange) -> rusqlite::Result<()> {
        let mut items = Vec::new();
        loop {
            let batch = queue.take_batch(&mut items, COMMIT_INTERVAL);
            let is_full =
                batch.flush_requests.is_some() || batch.is_last || self.synced_at.elapsed() >= SYNC_INTERVAL;
            // A caller that pauses adds nothing, and its earlier records must still be written to the disk.
            if !items.is_empty() || (is_full && self.is_unsynced) {
                self.commit_batch(&mut items, is_full, committed)?;
            }
            if let Some(flush_requests) = batch.flush_requests {
                queue.mark_flushed(flush_requests);
            }
            if batch.is_last {
                return Ok(());
            }
        }
    }

    fn commit_batch(
        &mut self,
        items: &mut Vec<QueuedRecord>,
        is_full: bool,
        committed: &mut CommittedRange,
    ) -> rusqlite::Result<()> {
        if is_full != self.is_full {
            let level = if is_full { "full" } else { "normal" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.is_full = is_full;
        }
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        if is_full && self.is_unsynced {
            // SQLite forces nothing to the disk for a transaction that changes nothing. This one writes the
            // first page as it is.
            self.connection.pragma_update(None, "user_version", schema::VERSION)?;
        }
        let (mut records, mut until_ns) = (0, committed.until_ns);
        for item in items.drain(..) {
            if let Some(at_ns) = self.write_record(item)? {
                records += 1;
                until_ns = until_ns.max(at_ns);
            }
        }
        self.connection.execute_batch("COMMIT")?;
        (committed.records, committed.until_ns) = (committed.records + records, until_ns);
        self.is_unsynced = !is_full;
        if is_full {
            self.synced_at = Instant::now();
        }
        Ok(())
    }

    /// Writes one record; the time is that of a record that counts as data.
    fn write_record(&mut self, item: QueuedRecord) -> rusqlite::Result<Option<i64>> {
        match item {
            QueuedRecord::Sample { stream, at_ns, value } => {
                self.insert_sample.execute(params![stream, at_ns, value])?;
                Ok(Some(at_ns))
            }
            QueuedRecord::Row { series, at_ns, values } => {
                if let Some(series) = self.series.get_mut(series as usize - 1) {
                    series.write_row(self.connection, at_ns, &values)?;
                }
                Ok(Some(at_ns))
            }
            QueuedRecord::Series(series) => {
                self.series.push(SeriesInserter::new(self.connection, &series)?);
                Ok(None)
            }
            QueuedRecord::Stream(stream) => write_stream(self.connection, &stream).map(|()| None),
            QueuedRecord::Event(event) => write_event(self.connection, &event).map(Some),
            QueuedRecord::Blob(blob) => write_blob(self.connection, &blob).map(Some),
            QueuedRecord::Ending(ending) => write_ending(self.connection, &ending).map(|()| None),
        }
    }
}

fn write_stream(connection: &Connection, stream: &StoredStream) -> rusqlite::Result<()> {
    let StoredStream { id, name, unit, labels } = stream;
    connection.execute("INSERT INTO stream VALUES(?, ?, ?, ?)", params![id, name, unit, labels])?;
    Ok(())
}

fn write_event(connection: &Connection, event: &RunEvent) -> rusqlite::Result<i64> {
    let RunEvent { at_ns, kind, text } = event;
    // That the time can be stored was checked before the event was queued.
    let at_ns = i64::try_from(*at_ns).unwrap_or(i64::MAX);
    connection.execute("INSERT INTO event VALUES(?, ?, ?)", params![at_ns, kind, text])?;
    Ok(at_ns)
}

fn write_blob(connection: &Connection, blob: &StoredBlob) -> rusqlite::Result<i64> {
    let StoredBlob { kind, version, name, at_ns, raw_bytes, data } = blob;
    connection.execute(
        "INSERT INTO blob(kind, version, name, at_ns, raw_bytes, codec, data) VALUES(?, ?, ?, ?, ?, ?, ?)",
        params![kind, version, name, at_ns, raw_bytes, CODEC_ZSTD, data],
    )?;
    Ok(*at_ns)
}

fn write_ending(connection: &Connection, ending: &RunEnd) -> rusqlite::Result<()> {
    let mut insert = connection.prepare(INSERT_MANIFEST)?;
    for (key, value) in crate::manifest::ending_rows(ending) {
        insert.execute(params![key, value])?;
    }
    Ok(())
}

/// One series: its tables, and which of its columns have changed.
struct SeriesInserter<'c> {
    id: u32,
    tables: Vec<TableInserter<'c>>,
    /// The values of the first row; none before it.
    first_values: Option<Box<[Option<i64>]>>,
    /// Columns that have had another value than their first.
    column_changed: Vec<bool>,
}

struct TableInserter<'c> {
    insert: Statement<'c>,
    columns: usize,
}

impl<'c> SeriesInserter<'c> {
    fn new(connection: &'c Connection, series: &StoredSeries) -> rusqlite::Result<SeriesInserter<'c>> {
        let StoredSeries { id, name, source, column_headers: headers, tables } = series;
        connection.execute("INSERT INTO series VALUES(?, ?, ?)", params![id, name, source])?;
        let mut column = connection.prepare("INSERT INTO series_column VALUES(?, ?, ?, ?, ?, ?, ?, NULL)")?;
        let places = tables.iter().flat_map(|table| table.columns.iter().map(move |sql| (&table.name, sql)));
        for (ordinal, (head, (table, sql_name))) in headers.iter().zip(places).enumerate() {
            let (name, unit) = (&head.name, &head.unit.0);
            column.execute(params![id, ordinal as i64, name, table, sql_name, unit, head.is_counter])?;
        }
        let inserter = |table: &SeriesTable| {
            connection.execute_batch(&table.create_sql())?;
            Ok(TableInserter {
                insert: connection.prepare(&table.insert_sql())?,
                columns: table.columns.len(),
            })
        };
        let tables = tables.iter().map(inserter).collect::<rusqlite::Result<_>>()?;
        let column_changed = vec![false; headers.len()];
        Ok(SeriesInserter { id: *id, tables, first_values: None, column_changed })
    }

    fn write_row(
        &mut self,
        connection: &Connection,
        at_ns: i64,
        values: &[Option<i64>],
    ) -> rusqlite::Result<()> {
        if self.first_values.is_none() {
            self.store_first_values(connection, values)?;
        }
        let first = self.first_values.get_or_insert_with(|| values.into());
        for (changed, (value, first)) in self.column_changed.iter_mut().zip(values.iter().zip(first)) {
            *changed |= value != first;
        }
        let mut cells = values.iter().zip(&self.column_changed);
        for inserter in &mut self.tables {
            inserter.insert.raw_bind_parameter(1, at_ns)?;
            for (place, (value, changed)) in (2..).zip(cells.by_ref().take(inserter.columns)) {
                match (changed, value) {
                    (false, _) => inserter.insert.raw_bind_parameter(place, rusqlite::types::Null)?,
                    (true, value) => inserter.insert.raw_bind_parameter(place, StoredValue(*value))?,
                }
            }
            inserter.insert.raw_execute()?;
        }
        Ok(())
    }

    fn store_first_values(&self, connection: &Connection, values: &[Option<i64>]) -> rusqlite::Result<()> {
        let mut update =
            connection.prepare("UPDATE series_column SET first = ? WHERE series = ? AND ordinal = ?")?;
        for (ordinal, value) in values.iter().enumerate() {
            update.execute(params![StoredValue(*value), self.id, ordinal as i64])?;
        }
        Ok(())
    }
}

/// A value as it is stored: an integer, or an empty blob for a reading that failed.
struct StoredValue(Option<i64>);

impl ToSql for StoredValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Some(value) => ToSqlOutput::from(value),
            None => ToSqlOutput::Borrowed(ValueRef::Blob(&[])),
        })
    }
}

/// Bytes of queued records at which the writing thread is woken at once.
const WAKE_THRESHOLD_BYTES: usize = 1 << 17;

/// Bytes of queued records beyond which the caller waits for the disk.
const QUEUE_LIMIT_BYTES: usize = 1 << 19;

/// A record on its way to the disk. Small, since there may be a great many samples.
pub(crate) enum QueuedRecord {
    Sample { stream: u32, at_ns: i64, value: f64 },
    Row { series: u32, at_ns: i64, values: Box<[Option<i64>]> },
    Series(Box<StoredSeries>),
    Stream(Box<StoredStream>),
    Event(Box<RunEvent>),
    Blob(Box<StoredBlob>),
    Ending(Box<RunEnd>),
}

pub(crate) struct StoredSeries {
    pub id: u32,
    pub name: String,
    pub source: String,
    pub column_headers: Vec<ColumnHeader>,
    pub tables: Vec<SeriesTable>,
}

pub(crate) struct StoredStream {
    pub id: u32,
    pub name: String,
    pub unit: String,
    /// A JSON object.
    pub labels: String,
}

pub(crate) struct StoredBlob {
    pub kind: String,
    pub version: u32,
    pub name: String,
    pub at_ns: i64,
    pub raw_bytes: i64,
    pub data: Vec<u8>,
}

impl QueuedRecord {
    /// Bytes that the record holds, roughly.
    fn queued_bytes(&self) -> usize {
        let behind = match self {
            QueuedRecord::Row { values, .. } => size_of_val(&**values),
            QueuedRecord::Blob(blob) => blob.data.len(),
            QueuedRecord::Event(event) => event.kind.len() + event.text.len(),
            _ => 0,
        };
        size_of::<QueuedRecord>() + behind
    }
}

/// The queue, shared by both threads.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    /// Rung for the writing thread.
    work_available: Condvar,
    /// Rung for callers that wait for room or for a flush.
    progress_made: Condvar,
}

#[derive(Default)]
struct QueueState {
    records: Vec<QueuedRecord>,
    bytes: usize,
    /// Requested and completed flushes.
    flush_requests: u64,
    flushes_done: u64,
    /// The records so far are to be committed without waiting for more.
    commit_requested: bool,
    /// No record comes any more.
    is_closing: bool,
    /// Why nothing can be written any more.
    failure: Option<Error>,
}

/// State of the queue when the writing thread woke.
pub(crate) struct DrainedBatch {
    /// Flushes requested so far, if a caller waits for the records to be on the disk.
    pub flush_requests: Option<u64>,
    /// Whether these are the last records.
    pub is_last: bool,
}

impl Queue {
    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record; waits while the queue is full.
    pub fn push(&self, item: QueuedRecord) -> Result<(), Error> {
        let bytes = item.queued_bytes();
        let mut state = self.lock_state();
        while state.bytes > QUEUE_LIMIT_BYTES && state.failure.is_none() {
            state = self.progress_made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        let before = state.bytes;
        state.bytes += bytes;
        state.records.push(item);
        if before < WAKE_THRESHOLD_BYTES && state.bytes >= WAKE_THRESHOLD_BYTES {
            self.work_available.notify_one();
        }
        Ok(())
    }

    /// Wakes the writing thread for the records pushed so far, without waiting.
    pub fn request_commit(&self) {
        self.lock_state().commit_requested = true;
        self.work_available.notify_one();
    }

    /// Waits until every record pushed so far is on the disk.
    pub fn flush(&self) -> Result<(), Error> {
        let mut state = self.lock_state();
        state.flush_requests += 1;
        let ticket = state.flush_requests;
        self.work_available.notify_one();
        while state.flushes_done < ticket && state.failure.is_none() {
            state = self.progress_made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// Why nothing can be written any more, if that is so.
    pub fn failure(&self) -> Option<Error> {
        self.lock_state().failure.clone()
    }

    /// Says that no record comes any more.
    pub fn close(&self) {
        self.lock_state().is_closing = true;
        self.work_available.notify_one();
    }

    /// For the writing thread: sleeps until there is something to hurry for or `timeout` is over, then
    /// takes all records into `items`, which must be empty.
    pub fn take_batch(&self, items: &mut Vec<QueuedRecord>, timeout: Duration) -> DrainedBatch {
        let calm = |state: &mut QueueState| {
            let is_waited_for =
                state.flush_requests != state.flushes_done || state.is_closing || state.commit_requested;
            state.bytes < WAKE_THRESHOLD_BYTES && !is_waited_for
        };
        let (mut state, _) = self
            .work_available
            .wait_timeout_while(self.lock_state(), timeout, calm)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.records, items);
        state.bytes = 0;
        state.commit_requested = false;
        self.progress_made.notify_all();
        DrainedBatch {
            flush_requests: Some(state.flush_requests).filter(|&requested| requested > state.flushes_done),
            is_last: state.is_closing,
        }
    }

    /// For the writing thread: the records of a batch are stored as requested.
    pub fn mark_flushed(&self, flush_requests: u64) {
        self.lock_state().flushes_done = flush_requests;
        self.progress_made.notify_all();
    }

    /// For the writing thread: nothing can be written any more.
    pub fn set_failure(&self, error: Error) {
        let mut state = self.lock_state();
        state.records = Vec::new();
        state.bytes = 0;
        state.failure.get_or_insert(error);
        self.progress_made.notify_all();
    }
}
