//! Writing a run file while the run goes on.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use pagelab_model::experiment::{Plan, Trial};
use pagelab_model::run::{ColumnHead, Ending, Event, Manifest, Run, StreamHead};
use pagelab_model::study::{StudyPlan, StudyTrial};
use pagelab_model::{Profile, Snapshot, Stacks, Tune};
use rusqlite::Connection;
use serde::Serialize;

use crate::blob::{self, Kind};
use crate::committer;
use crate::error::{Error, ErrorKind, kind_of};
use crate::header;
use crate::live::{self, Live};
use crate::manifest;
use crate::maps::{self, EncodedMap};
use crate::plausible;
use crate::queue::{Item, Queue, StoredBlob, StoredSeries, StoredStream};
use crate::reader::Reader;
use crate::schema::{self, NAME_MAX};

/// What SQLite puts beside the file while it is written.
pub(crate) const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// A series of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesId(u32);

/// A stream of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u32);

/// A run file that is being written.
///
/// Records go to a thread of the file's own, so that who measures does not wait for a disk; only a caller
/// that is faster than the disk for long waits. Every record is committed within half a second, whatever the
/// caller does meanwhile:
///
/// - **death of the process**, `kill -9` at any moment included: what is older than one second is in the
///   file, as long as the disk answers within half a second;
/// - **loss of power**: the file is whole, and what is older than six seconds is in it, on a disk that keeps
///   what it has acknowledged. [`Writer::flush`] makes it so at once.
///
/// A failure, such as a full disk, is final: that call and all later ones return it, and what was committed
/// before stays readable. Dropped without [`Writer::close`], the file says that it was not closed.
pub struct Writer {
    path: PathBuf,
    /// Nanoseconds since boot at the start.
    started_ns: u64,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    series: Vec<SeriesState>,
    /// Name and labels, and the number in the file.
    streams: BTreeMap<(String, String), u32>,
    /// Streams of an earlier life of the file that nobody has begun again yet.
    earlier: BTreeSet<u32>,
    tables: Vec<String>,
}

struct SeriesState {
    name: String,
    columns: usize,
    last_ns: Option<i64>,
}

impl Writer {
    /// Makes the file and writes the manifest into it. What exists is never overwritten.
    pub fn create(path: &Path, manifest: &Manifest) -> Result<Writer, Error> {
        let rows = manifest::rows(manifest).map_err(|error| {
            Error::write(ErrorKind::NotStorable, path, format_args!("its manifest: {error}"))
        })?;
        let (whole, live) = make(path)?;
        let queue = Arc::new(Queue::default());
        let begun = committer::begin(&whole, &rows)
            .and_then(|connection| start(path, connection, live, queue.clone()));
        match begun {
            Ok(thread) => Ok(Writer {
                path: path.to_owned(),
                started_ns: manifest.started.boottime_ns,
                queue,
                thread: Some(thread),
                series: Vec::new(),
                streams: BTreeMap::new(),
                earlier: BTreeSet::new(),
                tables: schema::TABLES.iter().map(|table| table.name.to_owned()).collect(),
            }),
            Err(error) => {
                // The file is ours, holds nothing yet, and was made a moment ago.
                remove(&whole);
                Err(error)
            }
        }
    }

    /// Goes on with a file that was not closed, or was stopped: what is in it stays, how it ended is taken
    /// out, and what is written from now on comes behind. The caller sees to it that times go forward. The
    /// file is believed as little as by a reader. One that somebody writes, that is complete or that holds
    /// series, whose rows would have a gap, is refused.
    pub fn resume(path: &Path) -> Result<(Writer, Run), Error> {
        let (whole, live) = take_up(path)?;
        let reader = Reader::open(path)?;
        let version = reader.version();
        let run = reader.run()?;
        drop(reader);
        let refuse = |problem: &str| Error::read(ErrorKind::NotStorable, path, problem);
        if version != schema::VERSION {
            return Err(refuse(
                "an older pagelab wrote it, so this one cannot go on with it; begin a new run",
            ));
        }
        if matches!(run.ending, Ending::Complete { .. }) {
            return Err(refuse(
                "its run is complete: there is nothing to go on with; `pagelab report` shows it",
            ));
        }
        if !run.series.is_empty() {
            return Err(refuse("it holds series, which cannot be gone on with; begin a new run"));
        }
        let queue = Arc::new(Queue::default());
        let thread =
            committer::reopen(&whole).and_then(|connection| start(path, connection, live, queue.clone()))?;
        let keys = run.streams.iter().map(|stream| (stream.head.name.clone(), labels(&stream.head)));
        let streams: BTreeMap<(String, String), u32> = keys.zip(1..).collect();
        let writer = Writer {
            path: path.to_owned(),
            started_ns: run.manifest.started.boottime_ns,
            queue,
            thread: Some(thread),
            series: Vec::new(),
            earlier: streams.values().copied().collect(),
            streams,
            tables: schema::TABLES.iter().map(|table| table.name.to_owned()).collect(),
        };
        Ok((writer, run))
    }

    /// Begins a series: values that are read together again and again.
    pub fn series(&mut self, name: &str, source: &str, heads: &[ColumnHead]) -> Result<SeriesId, Error> {
        self.check_name("a series", name)?;
        if heads.is_empty() {
            return Err(self.refuse(format_args!("series {name} has no columns")));
        }
        let mut names = BTreeSet::new();
        for head in heads {
            self.check_name("a column", &head.name)?;
            if !names.insert(&head.name) {
                return Err(self.refuse(format_args!("series {name} has two columns called {:?}", head.name)));
            }
        }
        let id = self.series.len() as u32 + 1;
        let tables = schema::series_tables(name, heads, &mut self.tables);
        let (name, source, heads) = (name.to_owned(), source.to_owned(), heads.to_vec());
        self.series.push(SeriesState { name: name.clone(), columns: heads.len(), last_ns: None });
        self.queue.push(Item::Series(Box::new(StoredSeries { id, name, source, heads, tables })))?;
        Ok(SeriesId(id))
    }

    /// Adds one reading to a series: a value for each column, `None` for one that could not be read. Times
    /// are nanoseconds since the start, and each is later than the one before.
    pub fn row(&mut self, series: SeriesId, at_ns: u64, values: &[Option<i64>]) -> Result<(), Error> {
        let at_ns = self.time(at_ns)?;
        let Some(state) = self.series.get(series.0 as usize - 1) else {
            return Err(self.refuse("the series is not one of this file"));
        };
        if state.columns != values.len() {
            let (name, columns, given) = (&state.name, state.columns, values.len());
            return Err(self.refuse(format_args!("series {name} has {columns} columns, not {given}")));
        }
        if state.last_ns.is_some_and(|last| last >= at_ns) {
            let name = &state.name;
            return Err(
                self.refuse(format_args!("the times of series {name} do not go forward at {at_ns} ns"))
            );
        }
        self.queue.push(Item::Row { series: series.0, at_ns, values: values.into() })?;
        self.series[series.0 as usize - 1].last_ns = Some(at_ns);
        Ok(())
    }

    /// Begins a stream of raw samples, or goes on with the one of an earlier life of the file. Name and
    /// labels together are unique in a file.
    pub fn stream(&mut self, head: &StreamHead) -> Result<StreamId, Error> {
        self.check_name("a stream", &head.name)?;
        for (at, (key, _)) in head.labels.iter().enumerate() {
            self.check_name("a label", key)?;
            if head.labels[..at].iter().any(|(known, _)| known == key) {
                return Err(self.refuse(format_args!("stream {} has two labels called {key:?}", head.name)));
            }
        }
        let (name, labels) = (head.name.clone(), labels(head));
        let next = self.streams.len() as u32 + 1;
        match self.streams.entry((name.clone(), labels.clone())) {
            Entry::Occupied(known) if self.earlier.remove(known.get()) => return Ok(StreamId(*known.get())),
            Entry::Occupied(_) => {
                return Err(
                    self.refuse(format_args!("there are two streams {name} with the labels {labels}"))
                );
            }
            Entry::Vacant(place) => place.insert(next),
        };
        let unit = head.unit.0.clone();
        self.queue.push(Item::Stream(Box::new(StoredStream { id: next, name, unit, labels })))?;
        Ok(StreamId(next))
    }

    /// Adds one raw sample, in nanoseconds since the start.
    pub fn sample(&mut self, stream: StreamId, at_ns: u64, value: f64) -> Result<(), Error> {
        if !value.is_finite() {
            return Err(self.refuse(format_args!("a sample is {value}, not a number that can be stored")));
        }
        if stream.0 as usize > self.streams.len() {
            return Err(self.refuse("the stream is not one of this file"));
        }
        let at_ns = self.time(at_ns)?;
        self.queue.push(Item::Sample { stream: stream.0, at_ns, value })
    }

    /// Adds something that happened.
    pub fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.time(event.at_ns)?;
        self.queue.push(Item::Event(Box::new(event.clone())))
    }

    /// Stores a look at the machine. Of several, the last is what a report shows.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.look("", snapshot)
    }

    /// The same for a look that is going to be added to and stored again: a report shows it if the run ends
    /// before that.
    pub fn snapshot_so_far(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.look(blob::SO_FAR, snapshot)
    }

    fn look(&mut self, name: &str, snapshot: &Snapshot) -> Result<(), Error> {
        let taken_ns = snapshot.taken.boottime_ns.unwrap_or(self.started_ns);
        let at_ns = taken_ns.saturating_sub(self.started_ns);
        let what = blob::SNAPSHOT.what;
        plausible::check(snapshot).map_err(|problem| self.refuse(format_args!("{what}: {problem}")))?;
        self.record(&blob::SNAPSHOT, name, at_ns, snapshot)
    }

    /// Stores a map of physical memory. All maps of a file come from one [`MapEncoder`](crate::MapEncoder),
    /// in its order.
    pub fn map(&mut self, map: EncodedMap) -> Result<(), Error> {
        let EncodedMap { started_ns, is_key, packed, raw_bytes } = map;
        let name = if is_key { maps::KEY } else { maps::DELTA };
        self.packed(maps::PAGE_MAP, maps::PAGE_MAP_VERSION, name, started_ns, packed, raw_bytes)
    }

    /// Stores a profile; a reader takes the last one that was stored.
    pub fn profile(&mut self, at_ns: u64, profile: &Profile) -> Result<(), Error> {
        self.record(&blob::PROFILE, "", at_ns, profile)
    }

    /// Stores how the arms of an experiment of `tune` were chosen; a reader takes the last that was stored.
    pub fn tune(&mut self, at_ns: u64, tune: &Tune) -> Result<(), Error> {
        self.record(&blob::TUNE, "", at_ns, tune)
    }

    /// Stores the call stacks of fallbacks, all since the start; a reader takes the last ones that were
    /// stored.
    pub fn stacks(&mut self, at_ns: u64, stacks: &Stacks) -> Result<(), Error> {
        self.record(&blob::STACKS, "", at_ns, stacks)
    }

    /// Stores what an experiment is to do: once, before its first trial.
    pub fn plan(&mut self, at_ns: u64, plan: &Plan) -> Result<(), Error> {
        self.record(&blob::EXPERIMENT, &plan.name, at_ns, plan)
    }

    /// Stores one trial of the experiment, as soon as it has ended.
    pub fn trial(&mut self, trial: &Trial) -> Result<(), Error> {
        if trial.measures.iter().any(|m| m.value.as_ref().is_ok_and(|value| !value.is_finite())) {
            return Err(self.refuse("a measure of a trial is not a number that can be stored"));
        }
        self.record(&blob::TRIAL, &trial.slot.to_string(), trial.ended_ns, trial)
    }

    /// Stores what a simulated study is to do: once, before its first trial.
    pub fn study(&mut self, at_ns: u64, plan: &StudyPlan) -> Result<(), Error> {
        self.record(&blob::STUDY, &plan.name, at_ns, plan)
    }

    /// Stores one trial of the study, as soon as it was made.
    pub fn study_trial(&mut self, at_ns: u64, trial: &StudyTrial) -> Result<(), Error> {
        self.record(&blob::STUDY_TRIAL, &trial.slot.to_string(), at_ns, trial)
    }

    pub(crate) fn record(
        &mut self,
        kind: &Kind,
        name: &str,
        at_ns: u64,
        value: &impl Serialize,
    ) -> Result<(), Error> {
        let what = kind.what;
        let (data, raw_bytes) =
            blob::pack_json(value).map_err(|error| self.refuse(format_args!("{what}: {error}")))?;
        if raw_bytes > kind.bytes_max {
            return Err(self.refuse(format_args!("{what}: {raw_bytes} bytes of JSON are too many")));
        }
        self.packed(kind.name, kind.version, name, at_ns, data, raw_bytes)
    }

    /// Stores a blob of a kind and version: a map, a profile, a trace. It is compressed here.
    pub fn blob(
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
            return Err(self.refuse(format_args!("a blob {kind} has {bytes} bytes, more than {most}")));
        }
        let (packed, raw_bytes) = blob::pack(|out| out.write_all(data))
            .map_err(|error| self.refuse(format_args!("a blob {kind}: {error}")))?;
        self.packed(kind, version, name, at_ns, packed, raw_bytes)
    }

    pub(crate) fn packed(
        &mut self,
        kind: &str,
        version: u32,
        name: &str,
        at_ns: u64,
        data: Vec<u8>,
        raw_bytes: u64,
    ) -> Result<(), Error> {
        let (at_ns, raw_bytes) = (self.time(at_ns)?, raw_bytes as i64);
        let (kind, name, codec) = (kind.to_owned(), name.to_owned(), blob::ZSTD);
        self.queue.push(Item::Blob(Box::new(StoredBlob {
            kind,
            version,
            name,
            at_ns,
            raw_bytes,
            codec,
            data,
        })))
    }

    /// Asks for a commit of everything so far at once, and does not wait for it: whoever writes seldom loses
    /// nothing that is older than the commit takes, a few milliseconds, if the process dies.
    pub fn hurry(&self) {
        self.queue.hurry();
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
    pub fn close(mut self, ending: Ending) -> Result<(), Error> {
        if let Ending::Complete { after_ns } | Ending::Stopped { after_ns, .. } = ending {
            self.time(after_ns)?;
        }
        // A record that could not be queued is a failure that the thread returns too.
        let _ = self.queue.push(Item::Ending(Box::new(ending)));
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.queue.close();
        match self.thread.take().map(JoinHandle::join) {
            None => self.queue.failure().map_or(Ok(()), Err),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::write(ErrorKind::Io, &self.path, FAILED)),
        }
    }

    fn time(&self, at_ns: u64) -> Result<i64, Error> {
        i64::try_from(at_ns).map_err(|_| self.refuse(format_args!("{at_ns} ns is no time since the start")))
    }

    fn check_name(&self, what: &str, name: &str) -> Result<(), Error> {
        match name.len() {
            0 => Err(self.refuse(format_args!("{what} has no name"))),
            bytes if bytes > NAME_MAX => {
                Err(self.refuse(format_args!("the name of {what} has {bytes} bytes, more than {NAME_MAX}")))
            }
            _ => Ok(()),
        }
    }

    /// What the caller gave cannot be stored; the file goes on without it.
    pub(crate) fn refuse(&self, problem: impl std::fmt::Display) -> Error {
        Error::write(ErrorKind::NotStorable, &self.path, problem)
    }
}

/// The labels of a stream as they are stored.
fn labels(head: &StreamHead) -> String {
    let labels = head.labels.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    serde_json::Value::Object(labels.collect()).to_string()
}

/// Starts the thread that writes.
fn start(
    path: &Path,
    connection: Connection,
    live: Live,
    queue: Arc<Queue>,
) -> Result<JoinHandle<Result<(), Error>>, Error> {
    let shown = path.to_owned();
    let write = move || {
        // The file counts as written here until SQLite has closed it.
        let _live = live;
        // Should it panic, nobody must wait for it.
        let _end = End { path: &shown, queue: &queue };
        committer::run(shown.clone(), connection, &queue)
    };
    std::thread::Builder::new()
        .name("run file".to_owned())
        .spawn(write)
        .map_err(|error| Error::write(ErrorKind::Io, path, format_args!("no thread for it: {error}")))
}

/// Takes the file for this process alone, and returns its path from the root on, without links.
fn take_up(path: &Path) -> Result<(PathBuf, Live), Error> {
    let whole = path.canonicalize().map_err(|error| header::cannot_open(path, &error))?;
    let metadata = std::fs::metadata(&whole).map_err(|error| header::cannot_open(path, &error))?;
    let at_work = || {
        let problem = "a process is writing it; wait for it, or end it";
        Error::write(ErrorKind::NotPermitted, path, problem)
    };
    // Before it is opened: closing a second descriptor would give up our own locks.
    if live::is_written_here(&metadata) {
        return Err(at_work());
    }
    // A reader does not look at the beginning of a file that this process writes, which it will be.
    let is_alone = beside(&whole, BESIDE[0]).symlink_metadata().is_err();
    header::check(path, &whole, is_alone)?;
    let journal = beside(&whole, "-journal");
    if journal.symlink_metadata().is_ok() {
        let problem = format_args!(
            "{} is beside it, which is played back when the file is written; move it away if the file is \
             from somebody else, or begin a new run",
            journal.display()
        );
        return Err(Error::write(ErrorKind::Hostile, path, problem));
    }
    let live = header::open_to_write(&whole).and_then(Live::new).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => at_work(),
        _ => header::cannot_open(path, &error),
    })?;
    Ok((whole, live))
}

/// The end of the thread, in whatever way: what is still asked of it fails.
struct End<'a> {
    path: &'a Path,
    queue: &'a Queue,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.queue.fail(Error::write(ErrorKind::Io, self.path, FAILED));
        }
    }
}

const FAILED: &str = "the thread that writes it failed";

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Makes the empty file, and returns its path from the root on, without links.
fn make(path: &Path) -> Result<(PathBuf, Live), Error> {
    let failed = |error: &std::io::Error| {
        let kind = kind_of(error);
        let problem = match kind {
            ErrorKind::Exists => "it exists already; give another name, or move it away".to_owned(),
            ErrorKind::NotThere => "there is no such folder; make it first".to_owned(),
            ErrorKind::NoSpace => format!("{error}; make room there, or write to another disk"),
            _ => format!("{error}; give a name in a folder where you may write"),
        };
        Error::write(kind, path, problem)
    };
    let Some(name) = path.file_name() else {
        return Err(Error::write(ErrorKind::NotThere, path, "that is no name of a file; give one"));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = folder.canonicalize().map_err(|error| failed(&error))?.join(name);
    if whole.is_dir() {
        let problem = "it is a folder; give the name of a file in it";
        return Err(Error::write(ErrorKind::Exists, path, problem));
    }
    if whole.symlink_metadata().is_ok() {
        return Err(failed(&std::io::ErrorKind::AlreadyExists.into()));
    }
    for end in BESIDE {
        let left_over = beside(&whole, end);
        if left_over.symlink_metadata().is_ok() {
            let problem = format_args!(
                "{} is left over from an earlier run; give another name, or move it away",
                left_over.display()
            );
            return Err(Error::write(ErrorKind::Exists, path, problem));
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).open(&whole);
    // The folder is there: such a one, as /proc, takes no files.
    let live = file.and_then(Live::new).map_err(|error| match kind_of(&error) {
        ErrorKind::NotThere => {
            let problem = "no file can be made in that folder; give a name in a folder where you may write";
            Error::write(ErrorKind::NotPermitted, path, problem)
        }
        _ => failed(&error),
    })?;
    Ok((whole, live))
}

/// Takes a run file away with all that SQLite put beside it, as it stays where a writer was killed. What is
/// not there or cannot be removed is left.
pub fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    for end in BESIDE {
        let _ = std::fs::remove_file(beside(path, end));
    }
}

/// The path of a file that SQLite puts beside the one at `path`.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}
