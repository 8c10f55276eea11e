//! Writer of a run file during the run.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagelab_model::experiment::{Plan, Trial};
use pagelab_model::failure::EXISTS;
use pagelab_model::run::{ColumnHeader, Manifest, Run, RunEnd, RunEvent, StreamHeader};
use pagelab_model::simulation::MemoryPicture;
use pagelab_model::{FallbackStacks, Snapshot, TlbProfile, TuningRun};
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

use crate::blob::BlobKind;
use crate::committer::{Queue, QueuedRecord, StoredBlob, StoredSeries, StoredStream};
use crate::error::{Error, ErrorKind, io_kind};
use crate::header::file_identity;
use crate::maps::EncodedMap;
use crate::reader::RunReader;
use crate::schema::NAME_MAX;
use crate::trials::{HeadTable, StoredTrial};
use crate::{blob, committer, header, manifest, maps, schema, validate};

/// Files that SQLite creates beside the file while it is written.
pub(crate) const SQLITE_SIBLINGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// A series of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesId(u32);

/// A stream of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u32);

/// A run file that is being written.
///
/// A thread of its own writes the records, so that a measurement does not wait for the disk, unless it is
/// faster than the disk for long. Every record is committed within half a second, even if the
/// caller is idle or busy:
///
/// - **death of the process**, including `kill -9` at any moment: records older than one second are in the
///   file if the disk responds within half a second;
/// - **loss of power**: the file is consistent, and has all records older than six seconds, on a disk that
///   keeps acknowledged writes. [`RunWriter::flush`] makes it so at once.
///
/// A failure, such as a full disk, is final: that call and all later ones return it, and records committed
/// before stay readable. Dropped without [`RunWriter::close`], the file is marked as not closed.
pub struct RunWriter {
    path: PathBuf,
    /// Nanoseconds since boot at the start.
    started_ns: u64,
    queue: Arc<Queue>,
    committer_thread: Option<JoinHandle<Result<(), Error>>>,
    series: Vec<SeriesProgress>,
    /// Name and labels, and the number in the file.
    streams: BTreeMap<(String, String), u32>,
    /// Streams of an earlier session of the file that were not continued yet.
    resumed_streams: BTreeSet<u32>,
    table_names: Vec<String>,
    /// Heads of the measures that are in the file.
    heads: HeadTable,
}

struct SeriesProgress {
    name: String,
    columns: usize,
    last_ns: Option<i64>,
}

impl RunWriter {
    /// Same as [`RunWriter::create`], but replaces a run file that no process writes.
    pub fn replace(path: &Path, manifest: &Manifest) -> Result<RunWriter, Error> {
        if path.symlink_metadata().is_ok() {
            let (_, writer_lock) = lock_existing(path).map_err(|error| match error.kind() {
                ErrorKind::NotARunFile => {
                    let problem = "it is not a run file; hint: choose another name";
                    Error::cannot_write(ErrorKind::AlreadyExists, path, problem)
                }
                _ => error,
            })?;
            remove_run_file(path);
            drop(writer_lock);
        }
        RunWriter::create(path, manifest)
    }

    /// Makes the file and writes the manifest into it. What exists is never overwritten.
    pub fn create(path: &Path, manifest: &Manifest) -> Result<RunWriter, Error> {
        let rows = manifest::manifest_rows(manifest).map_err(|error| {
            Error::cannot_write(ErrorKind::NotStorable, path, format_args!("its manifest: {error}"))
        })?;
        let (canonical_path, writer_lock) = create_file(path)?;
        let begun = committer::initialize(&canonical_path, &rows)
            .and_then(|connection| RunWriter::start(path, manifest, connection, writer_lock));
        // The file is ours, holds nothing yet, and was made a moment ago.
        begun.inspect_err(|_| remove_run_file(&canonical_path))
    }

    /// Starts the thread that writes.
    fn start(
        path: &Path,
        manifest: &Manifest,
        connection: Connection,
        writer_lock: WriterLock,
    ) -> Result<RunWriter, Error> {
        let queue = Arc::new(Queue::default());
        let (shown, records) = (path.to_owned(), queue.clone());
        let write = move || {
            // The file counts as written here until SQLite has closed it.
            let _live = writer_lock;
            committer::run_committer(&shown, connection, &records)
        };
        let thread = thread::Builder::new().name("run file".to_owned()).spawn(write).map_err(|error| {
            Error::cannot_write(ErrorKind::Io, path, format_args!("cannot start its writer thread: {error}"))
        })?;
        Ok(RunWriter {
            path: path.to_owned(),
            started_ns: manifest.started.boottime_ns,
            queue,
            committer_thread: Some(thread),
            series: Vec::new(),
            streams: BTreeMap::new(),
            resumed_streams: BTreeSet::new(),
            table_names: schema::SCHEMA_TABLES.iter().map(|table| table.name.to_owned()).collect(),
            heads: HeadTable::default(),
        })
    }

    /// Continues a file that was not closed, or was stopped: its contents stay, its end record is removed,
    /// and new records are appended. The caller sees to it that times go forward. The file is believed as
    /// little as by a reader. A file with an active writer, a complete file, and a file with series, whose
    /// rows would have a gap, are rejected.
    pub fn resume(path: &Path) -> Result<(RunWriter, Run), Error> {
        let (canonical_path, writer_lock) = lock_existing(path)?;
        let reader = RunReader::open(path)?;
        let version = reader.version();
        let (run, heads) = reader.read_run_and_heads(&|_, _| true)?;
        drop(reader);
        let to_error = |problem: &str| Error::cannot_read(ErrorKind::NotStorable, path, problem);
        if version != schema::VERSION {
            return Err(to_error(
                "an older pagelab wrote it, so it cannot be resumed; hint: start a new run",
            ));
        }
        if matches!(run.ending, RunEnd::Complete { .. }) {
            return Err(to_error("its run is complete; hint: use `pagelab report`"));
        }
        if !run.series.is_empty() {
            return Err(to_error("it contains series, which cannot be resumed; hint: start a new run"));
        }
        let connection = committer::reopen_closed(&canonical_path)?;
        let mut writer = RunWriter::start(path, &run.manifest, connection, writer_lock)?;
        let keys = run.streams.iter().map(|stream| (stream.header.name.clone(), labels_json(&stream.header)));
        writer.streams = keys.zip(1..).collect();
        writer.resumed_streams = writer.streams.values().copied().collect();
        writer.heads = heads;
        Ok((writer, run))
    }

    /// Begins a series: values that are read together again and again.
    pub fn add_series(
        &mut self,
        name: &str,
        source: &str,
        headers: &[ColumnHeader],
    ) -> Result<SeriesId, Error> {
        self.check_name("a series", name)?;
        if headers.is_empty() {
            return Err(self.unstorable_error(format_args!("series {name} has no columns")));
        }
        let mut names = BTreeSet::new();
        for header in headers {
            self.check_name("a column", &header.name)?;
            if !names.insert(&header.name) {
                return Err(self.unstorable_error(format_args!(
                    "series {name} has two columns named {:?}",
                    header.name
                )));
            }
        }
        let id = self.series.len() as u32 + 1;
        let tables = schema::series_tables(name, headers, &mut self.table_names);
        let (name, source, column_headers) = (name.to_owned(), source.to_owned(), headers.to_vec());
        self.series.push(SeriesProgress { name: name.clone(), columns: headers.len(), last_ns: None });
        let stored = StoredSeries { id, name, source, column_headers, tables };
        self.queue.push(QueuedRecord::Series(Box::new(stored)))?;
        Ok(SeriesId(id))
    }

    /// Adds one reading to a series: a value for each column, `None` for one that could not be read. Times
    /// are nanoseconds since the start, and each is later than the one before.
    pub fn add_row(&mut self, series: SeriesId, at_ns: u64, values: &[Option<i64>]) -> Result<(), Error> {
        let at_ns = self.to_stored_time(at_ns)?;
        let Some(state) = self.series.get(series.0 as usize - 1) else {
            return Err(self.unstorable_error("no such series in this file"));
        };
        if state.columns != values.len() {
            let (name, columns, given) = (&state.name, state.columns, values.len());
            return Err(self.unstorable_error(format_args!(
                "series {name} has {columns} columns, but the row has {given}"
            )));
        }
        if state.last_ns.is_some_and(|last| last >= at_ns) {
            let name = &state.name;
            return Err(self.unstorable_error(format_args!(
                "the times of series {name} are not ascending at {at_ns} ns"
            )));
        }
        self.queue.push(QueuedRecord::Row { series: series.0, at_ns, values: values.into() })?;
        self.series[series.0 as usize - 1].last_ns = Some(at_ns);
        Ok(())
    }

    /// Begins a stream of raw samples, or continues that of an earlier session of the file. Name and labels
    /// together are unique in a file.
    pub fn add_stream(&mut self, header: &StreamHeader) -> Result<StreamId, Error> {
        self.check_name("a stream", &header.name)?;
        for (at, (key, _)) in header.labels.iter().enumerate() {
            self.check_name("a label", key)?;
            if header.labels[..at].iter().any(|(known, _)| known == key) {
                return Err(self
                    .unstorable_error(format_args!("stream {} has two labels named {key:?}", header.name)));
            }
        }
        let (name, labels) = (header.name.clone(), labels_json(header));
        let next = self.streams.len() as u32 + 1;
        match self.streams.entry((name.clone(), labels.clone())) {
            Entry::Occupied(known) if self.resumed_streams.remove(known.get()) => {
                return Ok(StreamId(*known.get()));
            }
            Entry::Occupied(_) => {
                return Err(self.unstorable_error(format_args!(
                    "there are two streams {name} with the labels {labels}"
                )));
            }
            Entry::Vacant(place) => place.insert(next),
        };
        let unit = header.unit.0.clone();
        self.queue.push(QueuedRecord::Stream(Box::new(StoredStream { id: next, name, unit, labels })))?;
        Ok(StreamId(next))
    }

    /// Adds one raw sample, in nanoseconds since the start.
    pub fn add_sample(&mut self, stream: StreamId, at_ns: u64, value: f64) -> Result<(), Error> {
        if !value.is_finite() {
            return Err(self.unstorable_error(format_args!(
                "cannot store the sample {value}: expected a finite number"
            )));
        }
        if stream.0 as usize > self.streams.len() {
            return Err(self.unstorable_error("no such stream in this file"));
        }
        let at_ns = self.to_stored_time(at_ns)?;
        self.queue.push(QueuedRecord::Sample { stream: stream.0, at_ns, value })
    }

    /// Adds something that happened.
    pub fn add_event(&mut self, event: &RunEvent) -> Result<(), Error> {
        self.to_stored_time(event.at_ns)?;
        self.queue.push(QueuedRecord::Event(Box::new(event.clone())))
    }

    /// Stores a snapshot of the machine. Of several, the last is what a report shows.
    pub fn add_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.add_named_snapshot("", snapshot)
    }

    /// The same for an intermediate snapshot that will be extended and stored again: a report shows it if the
    /// run ends before that.
    pub fn add_partial_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.add_named_snapshot(blob::PARTIAL_NAME, snapshot)
    }

    fn add_named_snapshot(&mut self, name: &str, snapshot: &Snapshot) -> Result<(), Error> {
        let taken_ns = snapshot.taken.boottime_ns.unwrap_or(self.started_ns);
        let at_ns = taken_ns.saturating_sub(self.started_ns);
        let role = blob::SNAPSHOT.description;
        validate::check_snapshot(snapshot)
            .map_err(|problem| self.unstorable_error(format_args!("{role}: {problem}")))?;
        self.add_json_record(&blob::SNAPSHOT, name, at_ns, snapshot)
    }

    /// Stores a map of physical memory. All maps of a file come from one [`MapEncoder`](crate::MapEncoder),
    /// in its order.
    pub fn add_map(&mut self, map: EncodedMap) -> Result<(), Error> {
        let EncodedMap { started_ns, is_key_frame: is_key, packed, raw_bytes } = map;
        let name = if is_key { maps::KEY_FRAME_NAME } else { maps::DELTA_NAME };
        self.add_packed_blob(maps::MAP_KIND, maps::MAP_VERSION, name, started_ns, packed, raw_bytes)
    }

    /// Stores a profile; a reader takes the last one that was stored.
    pub fn add_profile(&mut self, at_ns: u64, profile: &TlbProfile) -> Result<(), Error> {
        self.add_json_record(&blob::PROFILE, "", at_ns, profile)
    }

    /// Stores how the arms of an experiment of `tune` were chosen; a reader takes the last that was stored.
    pub fn add_tuning_run(&mut self, at_ns: u64, tune: &TuningRun) -> Result<(), Error> {
        self.add_json_record(&blob::TUNE, "", at_ns, tune)
    }

    /// Stores the call stacks of fallbacks, all since the start; a reader takes the last ones that were
    /// stored.
    pub fn add_stacks(&mut self, at_ns: u64, stacks: &FallbackStacks) -> Result<(), Error> {
        self.add_json_record(&blob::STACKS, "", at_ns, stacks)
    }

    /// Stores the plan of an experiment: once, before its first trial.
    pub fn add_plan(&mut self, at_ns: u64, plan: &Plan) -> Result<(), Error> {
        self.add_json_record(&blob::EXPERIMENT, &plan.name, at_ns, plan)
    }

    /// Stores one trial of the experiment, as soon as it has ended.
    pub fn add_trial(&mut self, trial: &Trial) -> Result<(), Error> {
        self.add_trials(trial.ended_ns, std::slice::from_ref(trial))
    }

    /// Stores a picture of memory of a trial, which is stored after its pictures.
    pub fn add_picture(&mut self, at_ns: u64, slot: usize, picture: &MemoryPicture) -> Result<(), Error> {
        self.add_json_record(&blob::TRIAL_PICTURE, &slot.to_string(), at_ns, picture)
    }

    /// Stores trials of the experiment, each after its series. Heads of measures are stored once.
    pub fn add_trials(&mut self, at_ns: u64, trials: &[Trial]) -> Result<(), Error> {
        let mut values = trials.iter().flat_map(|trial| &trial.measures).map(|measure| &measure.value);
        if values.any(|value| value.as_ref().is_ok_and(|value| !value.is_finite())) {
            return Err(self.unstorable_error("a measure of a trial is not a finite number"));
        }
        let known = self.heads.len();
        let stored: Vec<StoredTrial> = trials.iter().map(|trial| self.heads.store(trial)).collect();
        if self.heads.len() > known {
            let heads = self.heads.heads_from(known);
            self.add_json_record(&blob::MEASURES, "", at_ns, &heads)?;
        }
        for trial in trials {
            let slot = trial.slot.to_string();
            if !trial.series.is_empty() {
                self.add_json_record(&blob::TRIAL_SERIES, &slot, at_ns, &trial.series)?;
            }
        }
        let name = match trials {
            [] => return Ok(()),
            [one] => one.slot.to_string(),
            several => format!("{} trials", several.len()),
        };
        self.add_json_record(&blob::TRIALS, &name, at_ns, &stored)
    }

    pub(crate) fn add_json_record(
        &mut self,
        kind: &BlobKind,
        name: &str,
        at_ns: u64,
        value: &impl Serialize,
    ) -> Result<(), Error> {
        let role = kind.description;
        let (data, raw_bytes) =
            blob::pack_json(value).map_err(|error| self.unstorable_error(format_args!("{role}: {error}")))?;
        if raw_bytes > kind.bytes_max {
            return Err(
                self.unstorable_error(format_args!("{role}: {raw_bytes} bytes of JSON exceed the limit"))
            );
        }
        self.add_packed_blob(kind.name, kind.version, name, at_ns, data, raw_bytes)
    }

    /// Stores a blob of a kind and version: a map, a profile, a trace. It is compressed here.
    pub fn add_blob(
        &mut self,
        kind: &str,
        version: u32,
        name: &str,
        at_ns: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        self.check_name("a kind of blob", kind)?;
        if data.len() as u64 > blob::BLOB_BYTES_MAX {
            let (bytes, most) = (data.len(), blob::BLOB_BYTES_MAX);
            return Err(
                self.unstorable_error(format_args!("a blob {kind} has {bytes} bytes, more than {most}"))
            );
        }
        let (packed, raw_bytes) = blob::pack_blob(|out| out.write_all(data))
            .map_err(|error| self.unstorable_error(format_args!("a blob {kind}: {error}")))?;
        self.add_packed_blob(kind, version, name, at_ns, packed, raw_bytes)
    }

    pub(crate) fn add_packed_blob(
        &mut self,
        kind: &str,
        version: u32,
        name: &str,
        at_ns: u64,
        data: Vec<u8>,
        raw_bytes: u64,
    ) -> Result<(), Error> {
        let (at_ns, raw_bytes) = (self.to_stored_time(at_ns)?, raw_bytes as i64);
        let (kind, name) = (kind.to_owned(), name.to_owned());
        let blob = StoredBlob { kind, version, name, at_ns, raw_bytes, data };
        self.queue.push(QueuedRecord::Blob(Box::new(blob)))
    }

    /// Requests a commit of everything so far, and does not wait for it: if the process dies, a writer that
    /// writes rarely loses only the last few milliseconds.
    pub fn request_commit(&self) {
        self.queue.request_commit();
    }

    /// Why nothing can be written any more, if that is so. It may be known before the next record is.
    pub fn failure(&self) -> Option<Error> {
        self.queue.failure()
    }

    /// Waits until everything so far is committed and forced to the disk.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.queue.flush()
    }

    /// Writes how the run ended, and leaves one plain file that any SQLite tool reads from any folder.
    pub fn close(mut self, ending: RunEnd) -> Result<(), Error> {
        if let RunEnd::Complete { after_ns } | RunEnd::Stopped { after_ns, .. } = ending {
            self.to_stored_time(after_ns)?;
        }
        // A record that could not be queued is a failure that the thread returns too.
        let _ = self.queue.push(QueuedRecord::Ending(Box::new(ending)));
        self.join_committer()
    }

    fn join_committer(&mut self) -> Result<(), Error> {
        self.queue.close();
        match self.committer_thread.take().map(JoinHandle::join) {
            None => self.queue.failure().map_or(Ok(()), Err),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::cannot_write(ErrorKind::Io, &self.path, "its writer thread failed")),
        }
    }

    fn to_stored_time(&self, at_ns: u64) -> Result<i64, Error> {
        i64::try_from(at_ns)
            .map_err(|_| self.unstorable_error(format_args!("{at_ns} ns is out of range for a time")))
    }

    fn check_name(&self, role: &str, name: &str) -> Result<(), Error> {
        match name.len() {
            0 => Err(self.unstorable_error(format_args!("{role} has no name"))),
            bytes if bytes > NAME_MAX => Err(self.unstorable_error(format_args!(
                "the name of {role} has {bytes} bytes, more than {NAME_MAX}"
            ))),
            _ => Ok(()),
        }
    }

    /// The caller's value cannot be stored; the file continues without it.
    pub(crate) fn unstorable_error(&self, problem: impl std::fmt::Display) -> Error {
        Error::cannot_write(ErrorKind::NotStorable, &self.path, problem)
    }
}

/// The labels of a stream as they are stored.
fn labels_json(header: &StreamHeader) -> String {
    let labels = header.labels.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    serde_json::Value::Object(labels.collect()).to_string()
}

/// Takes the file for this process alone, and returns its path from the root on, without links.
fn lock_existing(path: &Path) -> Result<(PathBuf, WriterLock), Error> {
    let canonical_path = path.canonicalize().map_err(|error| header::cannot_open(path, &error))?;
    let metadata = std::fs::metadata(&canonical_path).map_err(|error| header::cannot_open(path, &error))?;
    let busy_error = || {
        let problem = "another process is writing it; hint: wait for it, or end it";
        Error::cannot_write(ErrorKind::NotPermitted, path, problem)
    };
    // Before it is opened: closing a second descriptor would give up our own locks.
    if is_written_by_this_process(&metadata) {
        return Err(busy_error());
    }
    // A reader does not read the beginning of a file that this process writes, as it will be.
    let is_alone = sibling_path(&canonical_path, SQLITE_SIBLINGS[0]).symlink_metadata().is_err();
    header::check_file(path, &canonical_path, is_alone)?;
    let journal = sibling_path(&canonical_path, "-journal");
    if journal.symlink_metadata().is_ok() {
        let problem = format_args!(
            "{} exists beside it and a write would replay it; hint: move it away if the file is not \
             yours, or start a new run",
            journal.display()
        );
        return Err(Error::cannot_write(ErrorKind::Malicious, path, problem));
    }
    let writer_lock =
        header::open_regular(&canonical_path, true).and_then(WriterLock::new).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::WouldBlock => busy_error(),
            _ => header::cannot_open(path, &error),
        })?;
    Ok((canonical_path, writer_lock))
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        let _ = self.join_committer();
    }
}

/// The folder that holds the file.
fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the empty file, and returns its path from the root on, without links.
fn create_file(path: &Path) -> Result<(PathBuf, WriterLock), Error> {
    let to_error = |error: &io::Error| {
        let kind = io_kind(error);
        let problem = match kind {
            ErrorKind::AlreadyExists => EXISTS.to_owned(),
            ErrorKind::NotFound => {
                format!("no directory {}; hint: create it first", parent_folder(path).display())
            }
            ErrorKind::NoSpace => format!("{error}; hint: free space, or write to another disk"),
            _ => format!("{error}; hint: choose a writable directory"),
        };
        Error::cannot_write(kind, path, problem)
    };
    let Some(name) = path.file_name() else {
        return Err(Error::cannot_write(ErrorKind::NotFound, path, "expected a file name"));
    };
    let canonical_path = parent_folder(path).canonicalize().map_err(|error| to_error(&error))?.join(name);
    if canonical_path.is_dir() {
        let problem = "expected a file, found a directory";
        return Err(Error::cannot_write(ErrorKind::AlreadyExists, path, problem));
    }
    if canonical_path.symlink_metadata().is_ok() {
        return Err(to_error(&io::ErrorKind::AlreadyExists.into()));
    }
    for suffix in SQLITE_SIBLINGS {
        let left_over = sibling_path(&canonical_path, suffix);
        if left_over.symlink_metadata().is_ok() {
            let problem = format_args!(
                "{} is left over from an earlier run; hint: choose another name, or move it away",
                left_over.display()
            );
            return Err(Error::cannot_write(ErrorKind::AlreadyExists, path, problem));
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).open(&canonical_path);
    // The directory exists but accepts no files, as /proc.
    let writer_lock = file.and_then(WriterLock::new).map_err(|error| match io_kind(&error) {
        ErrorKind::NotFound => {
            let problem = "its directory accepts no files; hint: choose a writable directory";
            Error::cannot_write(ErrorKind::NotPermitted, path, problem)
        }
        _ => to_error(&error),
    })?;
    Ok((canonical_path, writer_lock))
}

/// Removes a run file and the files that SQLite created beside it, which remain after a writer was killed.
/// Files that are absent or cannot be removed are ignored.
pub fn remove_run_file(path: &Path) {
    let _ = std::fs::remove_file(path);
    for suffix in SQLITE_SIBLINGS {
        let _ = std::fs::remove_file(sibling_path(path, suffix));
    }
}

/// The path of a file that SQLite creates beside the one at `path`.
pub(crate) fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

// SQLite's locks are POSIX record locks, which are released when their process closes any descriptor of the
// file (<https://www.sqlite.org/howtocorrupt.html>, section 2.2): only SQLite, which takes this into
// account, opens such a file a second time.

static WRITTEN_FILES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn lock_written_files() -> MutexGuard<'static, Vec<(u64, u64)>> {
    WRITTEN_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time that a lock is waited for. A child of a writer holds the lock from its fork to its exec, also after a
/// kill of the writer: when it joins a control group in between, that takes up to a tenth of a second on an
/// idle machine.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// Marks a file as being written by this process while it exists, also for other processes: it holds the
/// flock(2) lock, which SQLite does not use and which is released when the process exits.
///
/// It must outlive SQLite's own descriptors of the file, since closing its descriptor gives up their locks.
pub(crate) struct WriterLock {
    identity: (u64, u64),
    locked: File,
}

impl WriterLock {
    /// An error is that of the file, or WouldBlock where another process writes it.
    pub fn new(file: File) -> io::Result<WriterLock> {
        let identity = file_identity(&file.metadata()?);
        // A file system without this lock has no write-ahead log either, and that error is reported instead.
        let end = Instant::now() + LOCK_WAIT;
        while let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if Instant::now() >= end {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            thread::sleep(LOCK_INTERVAL);
        }
        lock_written_files().push(identity);
        Ok(WriterLock { identity, locked: file })
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        let mut written = lock_written_files();
        if let Some(at) = written.iter().position(|file| *file == self.identity) {
            written.swap_remove(at);
        }
        // A child has all that is open here until its exec: to close the file would not end the lock.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }
}

/// Whether this process is writing the file.
pub(crate) fn is_written_by_this_process(metadata: &Metadata) -> bool {
    lock_written_files().contains(&file_identity(metadata))
}
