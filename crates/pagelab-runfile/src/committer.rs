//! The writing thread: it alone talks to SQLite, one transaction for each batch of records.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagelab_model::run::{Ending, Event};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, ToSql, params};

use crate::error::{Error, ErrorKind};
use crate::queue::{Item, Queue, StoredBlob, StoredSeries, StoredStream};
use crate::schema::{self, SeriesTable};
use crate::writer::{BESIDE, beside};

/// A record waits at most this long for its commit, besides what the commit itself takes.
const COMMIT_AFTER: Duration = Duration::from_millis(400);

/// What is committed is forced to the disk at the next commit after this long.
const SYNC_AFTER: Duration = Duration::from_secs(5);

/// How long a close waits for somebody who reads the file.
const BUSY: Duration = Duration::from_secs(5);

/// Opens the empty file that was just made, and writes the tables and the manifest into it.
pub(crate) fn begin(path: &Path, manifest: &[(&str, String)]) -> Result<Connection, Error> {
    let refused = |error: rusqlite::Error| Error::sqlite_write(path, &error, "");
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(refused)?;
    connection.busy_timeout(BUSY).map_err(refused)?;
    fill(&connection, manifest).map_err(refused)?;
    log_first(path, connection)
}

/// Opens a file that has all its tables, as a reader found, and takes out how its run ended.
pub(crate) fn reopen(path: &Path) -> Result<Connection, Error> {
    let refused = |error: rusqlite::Error| Error::sqlite_write(path, &error, "what is in it stays; ");
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(refused)?;
    connection.busy_timeout(BUSY).map_err(refused)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(refused)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map_err(refused)?;
    let connection = log_first(path, connection)?;
    for key in crate::manifest::ENDING_KEYS {
        connection.execute("DELETE FROM manifest WHERE key = ?", [key]).map_err(refused)?;
    }
    Ok(connection)
}

/// From now on changes go to a log first.
fn log_first(path: &Path, connection: Connection) -> Result<Connection, Error> {
    let refused = |error: rusqlite::Error| Error::sqlite_write(path, &error, "");
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(refused)?;
    if mode != "wal" {
        let problem = "this file system cannot keep a write-ahead log; write to a local disk";
        return Err(Error::write(ErrorKind::Io, path, problem));
    }
    connection.pragma_update(None, "synchronous", "normal").map_err(refused)?;
    // The log comes into being with the first look at the file, and tells readers that somebody is at work.
    connection.query_row("SELECT count(*) FROM manifest", [], |_| Ok(())).map_err(refused)?;
    Ok(connection)
}

fn fill(connection: &Connection, manifest: &[(&str, String)]) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", schema::VERSION)?;
    for table in &schema::TABLES {
        connection.execute_batch(table.sql)?;
    }
    let mut insert = connection.prepare(MANIFEST)?;
    for (key, value) in manifest {
        insert.execute(params![key, value])?;
    }
    connection.execute_batch("COMMIT")
}

const MANIFEST: &str = "INSERT INTO manifest VALUES(?, ?)";

/// Writes until the queue is closed, then leaves one plain file behind.
pub(crate) fn run(path: PathBuf, connection: Connection, queue: &Queue) -> Result<(), Error> {
    let _end = End { path: &path, queue };
    let mut kept = Kept::default();
    let written = Committer::new(&connection).and_then(|mut committer| committer.serve(queue, &mut kept));
    // Everything is in the log once it is written; what can fail then is to make one file of both.
    let is_written = written.is_ok();
    let closed = written.and_then(|()| settle(&connection));
    // Whatever went wrong, SQLite's own close tries to leave the file tidy; the result is the first error's.
    let closed = connection.close().map_err(|(_, error)| error).and(closed);
    closed.map_err(|error| {
        let kept = if is_written { all_kept(&path) } else { kept.text() };
        let error = Error::sqlite_write(&path, &error, &kept);
        queue.fail(error.clone());
        error
    })
}

/// What is kept where the file and its log could not be joined.
fn all_kept(path: &Path) -> String {
    let log = beside(path, BESIDE[0]);
    format!("everything is kept, in this file and in {}, which must stay beside it; ", log.display())
}

/// However the thread ends, nobody waits for it any more.
struct End<'q> {
    path: &'q Path,
    queue: &'q Queue,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.queue.fail(Error::write(ErrorKind::Io, self.path, "the thread that writes it has ended"));
    }
}

/// One plain file: everything out of the log, and no log any more. Somebody who reads meanwhile may keep the
/// log in place, which does no harm.
fn settle(connection: &Connection) -> rusqlite::Result<()> {
    let is_busy = |error: &rusqlite::Error| {
        matches!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
        )
    };
    connection.pragma_update(None, "synchronous", "full")?;
    let truncated = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let plain = truncated
        .and_then(|()| connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())));
    match plain {
        Err(error) if is_busy(&error) => Ok(()),
        other => other,
    }
}

/// The times of what is committed, for the message after a failure.
#[derive(Default)]
struct Kept {
    records: u64,
    until_ns: i64,
}

impl Kept {
    fn text(&self) -> String {
        if self.records == 0 {
            return "the file can be read, and holds nothing but who began the run; ".to_owned();
        }
        let seconds = self.until_ns as f64 / 1e9;
        match self.records {
            1 => format!("the first record, {seconds:.1} s after the start, is kept and can be read; "),
            records => {
                format!(
                    "the {records} records until {seconds:.1} s after the start are kept and can be read; "
                )
            }
        }
    }
}

struct Committer<'c> {
    connection: &'c Connection,
    sample: Statement<'c>,
    series: Vec<SeriesWriter<'c>>,
    synced: Instant,
    /// Whether something is committed that has not been forced to the disk.
    is_unsynced: bool,
    is_full: bool,
}

impl<'c> Committer<'c> {
    fn new(connection: &'c Connection) -> rusqlite::Result<Committer<'c>> {
        let sample = connection.prepare("INSERT INTO sample VALUES(?, ?, ?)")?;
        let (series, synced) = (Vec::new(), Instant::now());
        Ok(Committer { connection, sample, series, synced, is_unsynced: false, is_full: false })
    }

    fn serve(&mut self, queue: &Queue, kept: &mut Kept) -> rusqlite::Result<()> {
        let mut items = Vec::new();
        loop {
            let batch = queue.take(&mut items, COMMIT_AFTER);
            let is_full = batch.is_flush || batch.is_last || self.synced.elapsed() >= SYNC_AFTER;
            // A caller that pauses adds nothing, and what it wrote before must get to the disk all the same.
            if !items.is_empty() || (is_full && self.is_unsynced) {
                self.commit(&mut items, is_full, kept)?;
            }
            if batch.is_flush {
                queue.answer(&batch);
            }
            if batch.is_last {
                return Ok(());
            }
        }
    }

    fn commit(&mut self, items: &mut Vec<Item>, is_full: bool, kept: &mut Kept) -> rusqlite::Result<()> {
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
        let (mut records, mut until_ns) = (0, kept.until_ns);
        for item in items.drain(..) {
            if let Some(at_ns) = self.write(item)? {
                records += 1;
                until_ns = until_ns.max(at_ns);
            }
        }
        self.connection.execute_batch("COMMIT")?;
        (kept.records, kept.until_ns) = (kept.records + records, until_ns);
        self.is_unsynced = !is_full;
        if is_full {
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Writes one record; the time is that of a record that counts as data.
    fn write(&mut self, item: Item) -> rusqlite::Result<Option<i64>> {
        match item {
            Item::Sample { stream, at_ns, value } => {
                self.sample.execute(params![stream, at_ns, value])?;
                Ok(Some(at_ns))
            }
            Item::Row { series, at_ns, values } => {
                if let Some(series) = self.series.get_mut(series as usize - 1) {
                    series.write(self.connection, at_ns, &values)?;
                }
                Ok(Some(at_ns))
            }
            Item::Series(series) => {
                self.series.push(SeriesWriter::begin(self.connection, &series)?);
                Ok(None)
            }
            Item::Stream(stream) => stream_head(self.connection, &stream).map(|()| None),
            Item::Event(event) => write_event(self.connection, &event).map(Some),
            Item::Blob(blob) => write_blob(self.connection, &blob).map(Some),
            Item::Ending(ending) => write_ending(self.connection, &ending).map(|()| None),
        }
    }
}

fn stream_head(connection: &Connection, stream: &StoredStream) -> rusqlite::Result<()> {
    let StoredStream { id, name, unit, labels } = stream;
    connection.execute("INSERT INTO stream VALUES(?, ?, ?, ?)", params![id, name, unit, labels])?;
    Ok(())
}

fn write_event(connection: &Connection, event: &Event) -> rusqlite::Result<i64> {
    let Event { at_ns, kind, text } = event;
    // That the time can be stored was checked before the event was queued.
    let at_ns = i64::try_from(*at_ns).unwrap_or(i64::MAX);
    connection.execute("INSERT INTO event VALUES(?, ?, ?)", params![at_ns, kind, text])?;
    Ok(at_ns)
}

fn write_blob(connection: &Connection, blob: &StoredBlob) -> rusqlite::Result<i64> {
    let StoredBlob { kind, version, name, at_ns, raw_bytes, codec, data } = blob;
    connection.execute(
        "INSERT INTO blob(kind, version, name, at_ns, raw_bytes, codec, data) VALUES(?, ?, ?, ?, ?, ?, ?)",
        params![kind, version, name, at_ns, raw_bytes, codec, data],
    )?;
    Ok(*at_ns)
}

fn write_ending(connection: &Connection, ending: &Ending) -> rusqlite::Result<()> {
    let mut insert = connection.prepare(MANIFEST)?;
    for (key, value) in crate::manifest::of_ending(ending) {
        insert.execute(params![key, value])?;
    }
    Ok(())
}

/// One series: its tables, and which of its columns have changed.
struct SeriesWriter<'c> {
    id: u32,
    parts: Vec<Part<'c>>,
    /// The values of the first row; none before it.
    first: Option<Box<[Option<i64>]>>,
    /// Columns that have had another value than their first.
    changed: Vec<bool>,
}

struct Part<'c> {
    insert: Statement<'c>,
    columns: usize,
}

impl<'c> SeriesWriter<'c> {
    fn begin(connection: &'c Connection, series: &StoredSeries) -> rusqlite::Result<SeriesWriter<'c>> {
        let StoredSeries { id, name, source, heads, tables } = series;
        connection.execute("INSERT INTO series VALUES(?, ?, ?)", params![id, name, source])?;
        let mut column = connection.prepare("INSERT INTO series_column VALUES(?, ?, ?, ?, ?, ?, ?, NULL)")?;
        let places = tables.iter().flat_map(|table| table.columns.iter().map(move |sql| (&table.name, sql)));
        for (ordinal, (head, (table, sql_name))) in heads.iter().zip(places).enumerate() {
            let (name, unit) = (&head.name, &head.unit.0);
            column.execute(params![id, ordinal as i64, name, table, sql_name, unit, head.is_counter])?;
        }
        let part = |table: &SeriesTable| {
            connection.execute_batch(&table.create())?;
            Ok(Part { insert: connection.prepare(&table.insert())?, columns: table.columns.len() })
        };
        let parts = tables.iter().map(part).collect::<rusqlite::Result<_>>()?;
        Ok(SeriesWriter { id: *id, parts, first: None, changed: vec![false; heads.len()] })
    }

    fn write(&mut self, connection: &Connection, at_ns: i64, values: &[Option<i64>]) -> rusqlite::Result<()> {
        if self.first.is_none() {
            self.store_first(connection, values)?;
        }
        let first = self.first.get_or_insert_with(|| values.into());
        for (changed, (value, first)) in self.changed.iter_mut().zip(values.iter().zip(first)) {
            *changed |= value != first;
        }
        let mut cells = values.iter().zip(&self.changed);
        for part in &mut self.parts {
            part.insert.raw_bind_parameter(1, at_ns)?;
            for (place, (value, changed)) in (2..).zip(cells.by_ref().take(part.columns)) {
                match (changed, value) {
                    (false, _) => part.insert.raw_bind_parameter(place, rusqlite::types::Null)?,
                    (true, value) => part.insert.raw_bind_parameter(place, Cell(*value))?,
                }
            }
            part.insert.raw_execute()?;
        }
        Ok(())
    }

    fn store_first(&self, connection: &Connection, values: &[Option<i64>]) -> rusqlite::Result<()> {
        let mut update =
            connection.prepare("UPDATE series_column SET first = ? WHERE series = ? AND ordinal = ?")?;
        for (ordinal, value) in values.iter().enumerate() {
            update.execute(params![Cell(*value), self.id, ordinal as i64])?;
        }
        Ok(())
    }
}

/// A value as it is stored: an integer, or an empty blob for a reading that failed.
struct Cell(Option<i64>);

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Some(value) => ToSqlOutput::from(value),
            None => ToSqlOutput::Borrowed(ValueRef::Blob(&[])),
        })
    }
}
