//! Reading a run file: everything at once, blobs on request.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use pagelab_model::experiment::{Experiment, Plan, Trial};
use pagelab_model::run::{
    Column, ColumnHead, Ending, Event, Manifest, MapHead, Run, Series, Stream, StreamHead, Unit, Values,
};
use pagelab_model::study::{Study, StudyPlan, StudyTrial};
use pagelab_model::{PageMap, Profile, Snapshot, Stacks, Tune};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use serde::de::DeserializeOwned;

use crate::blob::{self, Kind};
use crate::error::Error;
use crate::manifest::Rows;
use crate::maps::{self, MapReader};
use crate::open::{self, Opened};
use crate::plausible;
use crate::schema::SeriesTable;
use crate::trace;

/// The schema version that brought the events.
const EVENTS_SINCE: u32 = 2;

/// What [`Run::not_shown`] says of a trace of the page allocator, which [`crate::TraceReader`] reads.
pub const TRACE_NOT_SHOWN: &str = "a trace of the page allocator, which `pagelab trace info` shows";

/// A run file that was opened for reading, and checked.
pub struct Reader {
    path: PathBuf,
    opened: Opened,
}

/// What a stored blob is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobHead {
    /// Its number in the file.
    pub id: i64,
    /// What it is: `snapshot`, `map` …
    pub kind: String,
    /// The version of that kind.
    pub version: u32,
    /// Its name among those of its kind; may be empty.
    pub name: String,
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// Bytes once unpacked.
    pub raw_bytes: u64,
}

/// Reads everything but maps and what it does not know.
pub fn read(path: &Path) -> Result<Run, Error> {
    let reader = Reader::open(path)?;
    let run = reader.run();
    // Only in the milliseconds in which a file is begun can a writer come to one that had none.
    if reader.opened.was_overtaken() { Reader::open(path)?.run() } else { run }
}

impl Reader {
    /// Opens and checks a file; nothing in its folder is changed.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        Ok(Reader { path: path.to_owned(), opened: open::open(path)? })
    }

    /// The schema version of the file.
    pub(crate) fn version(&self) -> u32 {
        self.opened.version
    }

    /// Everything but the blobs that are no snapshot.
    pub fn run(&self) -> Result<Run, Error> {
        self.opened.watch.allow(self.opened.bytes);
        let mut rows = self.manifest()?;
        let manifest = rows.manifest().map_err(|problem| self.damaged(problem))?;
        let ending = rows.ending().map_err(|problem| self.damaged(problem))?;
        let log = self.opened.log(&self.path).filter(|log| log.is_there || ending == Ending::NotClosed);
        let mut not_shown: Vec<String> =
            rows.0.into_keys().map(|key| format!("`{key}` of the manifest")).collect();
        let blobs = self.blobs()?;
        let (snapshot, more) = self.snapshot(&blobs)?;
        not_shown.extend(more);
        Ok(Run {
            name: self.path.display().to_string(),
            manifest,
            ending,
            series: self.series()?,
            streams: self.streams()?,
            events: self.events()?,
            snapshot,
            maps: blobs.iter().filter_map(map_head).collect(),
            stacks: self.stacks(&blobs)?,
            profile: self.profile(&blobs)?,
            tune: self.tune(&blobs)?,
            experiment: self.experiment(&blobs)?,
            study: self.study(&blobs)?,
            log,
            not_shown,
        })
    }

    /// Who ran what, and how it ended: nothing else is read.
    pub(crate) fn told(&self) -> Result<(Manifest, Ending), Error> {
        let mut rows = self.manifest()?;
        let manifest = rows.manifest().map_err(|problem| self.damaged(problem))?;
        Ok((manifest, rows.ending().map_err(|problem| self.damaged(problem))?))
    }

    /// Bytes of the file's pages, those in its log included.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.opened.bytes
    }

    /// Bytes that the blobs of a kind take, in the order of writing.
    pub(crate) fn packed_bytes(&self, kind: &str) -> Result<Vec<u64>, Error> {
        let mut bytes = Vec::new();
        self.each("SELECT kind, length(data) FROM blob ORDER BY id", |row| {
            if text(row, 0)? == kind {
                bytes.push(time(row, 1)?);
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// The contents of one blob as they stand in the file, packed; what is wrong is said in words.
    pub(crate) fn with_packed<T>(
        &self,
        id: i64,
        take: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, String> {
        self.opened.watch.allow(self.opened.bytes);
        let statement = self.connection().prepare("SELECT data FROM blob WHERE id = ?");
        let mut statement = statement.map_err(|error| error.to_string())?;
        let mut rows = statement.query([id]).map_err(|error| error.to_string())?;
        let row = rows.next().map_err(|error| error.to_string())?;
        match row.and_then(|row| row.get_ref(0).ok()) {
            Some(ValueRef::Blob(data)) => take(data),
            _ => Err("it has no contents".to_owned()),
        }
    }

    /// The blobs of all kinds, in the order of writing.
    pub fn blobs(&self) -> Result<Vec<BlobHead>, Error> {
        let mut heads = Vec::new();
        self.each("SELECT id, kind, version, name, at_ns, raw_bytes, codec FROM blob ORDER BY id", |row| {
            let codec = text(row, 6)?;
            if codec != blob::ZSTD {
                return Err(format!("a blob is packed by {codec:?}"));
            }
            heads.push(BlobHead {
                id: integer(row, 0)?,
                kind: text(row, 1)?,
                version: u32::try_from(integer(row, 2)?).map_err(|_| "a blob has no version")?,
                name: text(row, 3)?,
                at_ns: time(row, 4)?,
                raw_bytes: time(row, 5)?,
            });
            Ok(())
        })?;
        Ok(heads)
    }

    /// The contents of one blob.
    pub fn blob(&self, head: &BlobHead) -> Result<Vec<u8>, Error> {
        self.opened.watch.allow(self.opened.bytes);
        if head.raw_bytes > blob::BLOB_BYTES_MAX {
            return Err(self.damaged(format!("blob {} says that it has {} bytes", head.id, head.raw_bytes)));
        }
        let mut contents = Vec::new();
        self.with_blob(head, |raw| raw.read_to_end(&mut contents).map_err(|error| error.to_string()))?;
        Ok(contents)
    }

    /// The map with this place among [`Run::maps`]; the ones from its key frame on are decoded for it.
    pub fn map(&self, place: usize) -> Result<PageMap, Error> {
        let mut found = None;
        self.each_map(&[place], |_, map| found = Some(map))?;
        found.ok_or_else(|| self.damaged("it has no map".to_owned()))
    }

    /// Hands out the maps with these places among [`Run::maps`], one at a time. Ascending places cost least:
    /// no map is then decoded twice, and a stretch up to a key frame is skipped. What was handed out before
    /// an error is good.
    pub fn each_map(&self, places: &[usize], mut each: impl FnMut(usize, PageMap)) -> Result<(), Error> {
        let heads: Vec<BlobHead> =
            self.blobs()?.into_iter().filter(|head| map_head(head).is_some()).collect();
        let mut reader = MapReader::default();
        // The map behind the one that was decoded last.
        let mut next = None;
        for &place in places {
            let Some(wanted) = heads.get(..=place) else {
                let asked = place.saturating_add(1);
                return Err(self.damaged(format!("it has {} maps, not {asked}", heads.len())));
            };
            let key = wanted.iter().rposition(|head| head.name == maps::KEY);
            let key = key.ok_or_else(|| self.damaged("its first map is no key frame".to_owned()))?;
            if place - key >= maps::KEY_EVERY as usize {
                let maps = place - key + 1;
                return Err(self.damaged(format!("it has {maps} maps without a key frame")));
            }
            let from = next.filter(|next| (key..=place).contains(next)).unwrap_or(key);
            let mut last = None;
            for head in &wanted[from..] {
                let data = self.blob(head)?;
                let map = reader.next(head.name == maps::KEY, &data);
                last =
                    Some(map.map_err(|problem| {
                        self.damaged(format!("the map at {} ns: {problem}", head.at_ns))
                    })?);
            }
            next = Some(place + 1);
            if let Some(map) = last {
                each(place, map);
            }
        }
        Ok(())
    }

    fn with_blob<T>(
        &self,
        head: &BlobHead,
        take: impl FnOnce(&mut dyn std::io::Read) -> Result<T, String>,
    ) -> Result<T, Error> {
        let id = head.id;
        let failed = |problem: String| self.damaged(format!("blob {id} ({}): {problem}", head.kind));
        let mut statement =
            self.connection().prepare("SELECT data FROM blob WHERE id = ?").map_err(|e| self.sqlite(&e))?;
        let mut rows = statement.query([id]).map_err(|error| self.sqlite(&error))?;
        let row = rows.next().map_err(|error| self.sqlite(&error))?;
        let Some(ValueRef::Blob(data)) = row.and_then(|row| row.get_ref(0).ok()) else {
            return Err(failed("it has no contents".to_owned()));
        };
        let mut raw = blob::unpack(data, head.raw_bytes).map_err(|error| failed(error.to_string()))?;
        take(&mut raw).map_err(failed)
    }

    fn snapshot(&self, blobs: &[BlobHead]) -> Result<(Option<Box<Snapshot>>, Vec<String>), Error> {
        let (mut last, mut not_shown, mut earlier) = (None, Vec::new(), 0u64);
        if blobs.iter().any(|head| trace::is_trace(&head.kind, head.version)) {
            not_shown.push(TRACE_NOT_SHOWN.to_owned());
        }
        for head in blobs.iter().filter(|head| map_head(head).is_none()).cloned() {
            match kind_of(&head) {
                Some(kind) if kind.name == blob::SNAPSHOT.name => {}
                Some(_) => continue,
                None if trace::is_trace(&head.kind, head.version) => continue,
                None => {
                    let BlobHead { kind, version, name, .. } = &head;
                    not_shown.push(format!("a blob of kind {kind}, version {version}: {name}"));
                    continue;
                }
            }
            let replaced: Option<BlobHead> = last.replace(head);
            earlier += u64::from(replaced.is_some_and(|head| head.name != blob::SO_FAR));
        }
        if earlier > 0 {
            let looks = if earlier == 1 { "look" } else { "looks" };
            not_shown.push(format!("{earlier} earlier {looks} at the machine"));
        }
        let Some(head) = last else { return Ok((None, not_shown)) };
        let snapshot: Snapshot = self.record(&head, &blob::SNAPSHOT)?;
        let problem = plausible::check(&snapshot);
        problem.map_err(|problem| self.damaged(format!("blob {} ({}): {problem}", head.id, head.kind)))?;
        Ok((Some(Box::new(snapshot)), not_shown))
    }

    /// The last profile that was stored.
    fn profile(&self, blobs: &[BlobHead]) -> Result<Option<Box<Profile>>, Error> {
        let Some(head) = of_kind(blobs, &blob::PROFILE).next_back() else { return Ok(None) };
        self.record(head, &blob::PROFILE).map(|profile| Some(Box::new(profile)))
    }

    /// The last arms that were stored.
    fn tune(&self, blobs: &[BlobHead]) -> Result<Option<Box<Tune>>, Error> {
        let Some(head) = of_kind(blobs, &blob::TUNE).next_back() else { return Ok(None) };
        self.record(head, &blob::TUNE).map(|tune| Some(Box::new(tune)))
    }

    /// The last call stacks that were stored.
    fn stacks(&self, blobs: &[BlobHead]) -> Result<Option<Box<Stacks>>, Error> {
        let Some(head) = of_kind(blobs, &blob::STACKS).next_back() else { return Ok(None) };
        self.record(head, &blob::STACKS).map(|stacks| Some(Box::new(stacks)))
    }

    /// The experiment: the first plan, and of each slot the last trial.
    fn experiment(&self, blobs: &[BlobHead]) -> Result<Option<Box<Experiment>>, Error> {
        let Some(head) = of_kind(blobs, &blob::EXPERIMENT).next() else { return Ok(None) };
        let plan: Plan = self.record(head, &blob::EXPERIMENT)?;
        let problem = plausible::check_plan(&plan);
        problem.map_err(|problem| self.damaged(format!("the plan of its experiment: {problem}")))?;
        let mut trials: BTreeMap<usize, (u64, Trial)> = BTreeMap::new();
        for (at, head) in (0u64..).zip(of_kind(blobs, &blob::TRIAL)) {
            let trial: Trial = self.record(head, &blob::TRIAL)?;
            if trial.slot >= plan.schedule.len() {
                return Err(self.damaged(format!("a trial of slot {}, which the plan has not", trial.slot)));
            }
            trials.insert(trial.slot, (at, trial));
        }
        let mut trials: Vec<(u64, Trial)> = trials.into_values().collect();
        trials.sort_by_key(|(at, _)| *at);
        let trials = trials.into_iter().map(|(_, trial)| trial).collect();
        Ok(Some(Box::new(Experiment { plan, trials })))
    }

    /// The study: the first plan, and of each slot the last trial, by slot.
    fn study(&self, blobs: &[BlobHead]) -> Result<Option<Box<Study>>, Error> {
        let Some(head) = of_kind(blobs, &blob::STUDY).next() else { return Ok(None) };
        let plan: StudyPlan = self.record(head, &blob::STUDY)?;
        let problem = plausible::check_study(&plan);
        let slots = problem.map_err(|problem| self.damaged(format!("the plan of its study: {problem}")))?;
        let mut trials: BTreeMap<usize, StudyTrial> = BTreeMap::new();
        for head in of_kind(blobs, &blob::STUDY_TRIAL) {
            let trial: StudyTrial = self.record(head, &blob::STUDY_TRIAL)?;
            let problem = plausible::check_study_trial(&trial, slots);
            problem.map_err(|problem| self.damaged(format!("blob {}: {problem}", head.id)))?;
            trials.insert(trial.slot, trial);
        }
        Ok(Some(Box::new(Study { plan, trials: trials.into_values().collect() })))
    }

    /// The record that a blob holds as JSON.
    pub(crate) fn record<T: DeserializeOwned>(&self, head: &BlobHead, kind: &Kind) -> Result<T, Error> {
        if head.raw_bytes > kind.bytes_max {
            let bytes = head.raw_bytes;
            return Err(self.damaged(format!("{} says that it has {bytes} bytes", kind.what)));
        }
        self.with_blob(head, |raw| {
            let raw = std::io::BufReader::with_capacity(64 << 10, blob::Bounded::new(raw));
            serde_json::from_reader(raw).map_err(|error| error.to_string())
        })
    }

    fn manifest(&self) -> Result<Rows, Error> {
        let mut rows = BTreeMap::new();
        self.each("SELECT key, value FROM manifest", |row| {
            rows.insert(text(row, 0)?, text(row, 1)?);
            Ok(())
        })?;
        Ok(Rows(rows))
    }

    fn series(&self) -> Result<Vec<Series>, Error> {
        let mut all = Vec::new();
        for head in &self.opened.series {
            let mut series = Series {
                name: head.name.clone(),
                source: head.source.clone(),
                at_ns: Vec::new(),
                columns: Vec::new(),
            };
            let mut columns = head.columns.iter();
            for (at, table) in head.tables.iter().enumerate() {
                let firsts: Vec<_> = columns.by_ref().take(table.columns.len()).cloned().collect();
                let (at_ns, mut part) = self.part(table, firsts)?;
                if at == 0 {
                    series.at_ns = at_ns;
                } else if series.at_ns != at_ns {
                    return Err(self.damaged(format!("the tables of series {} have other times", head.name)));
                }
                series.columns.append(&mut part);
            }
            all.push(series);
        }
        Ok(all)
    }

    /// One table of a series: its times, and its columns.
    fn part(
        &self,
        table: &SeriesTable,
        firsts: Vec<(ColumnHead, Option<i64>)>,
    ) -> Result<(Vec<u64>, Vec<Column>), Error> {
        let mut times = Vec::new();
        // A row that pagelab wrote has at least one byte for each of its columns.
        let rows_max = self.opened.bytes / (firsts.len() as u64 + 1);
        let mut varying: Vec<Option<Vec<Option<i64>>>> = vec![None; firsts.len()];
        self.each(&table.select(), |row| {
            if times.len() as u64 >= rows_max {
                return Err(format!("table {} has more rows than the file has room for", table.name));
            }
            for (at, ((_, first), varying)) in firsts.iter().zip(&mut varying).enumerate() {
                let value = match row.get_ref(at + 1) {
                    Ok(ValueRef::Null) if varying.is_none() => continue,
                    Ok(ValueRef::Null) => *first,
                    Ok(ValueRef::Integer(value)) => Some(value),
                    Ok(ValueRef::Blob([])) => None,
                    _ => return Err(format!("table {} holds something else than integers", table.name)),
                };
                varying.get_or_insert_with(|| vec![*first; times.len()]).push(value);
            }
            times.push(time(row, 0)?);
            Ok(())
        })?;
        let columns = firsts.into_iter().zip(varying).map(|((head, first), varying)| Column {
            head,
            values: varying.map_or(Values::Constant(first), Values::Varying),
        });
        Ok((times, columns.collect()))
    }

    fn streams(&self) -> Result<Vec<Stream>, Error> {
        let (mut streams, mut places) = (Vec::new(), HashMap::new());
        self.each("SELECT id, name, unit, labels FROM stream ORDER BY id", |row| {
            places.insert(integer(row, 0)?, streams.len());
            let labels = labels(&text(row, 3)?)?;
            let head = StreamHead { name: text(row, 1)?, unit: Unit(text(row, 2)?), labels };
            streams.push(Stream { head, at_ns: Vec::new(), values: Vec::new() });
            Ok(())
        })?;
        self.each("SELECT stream, at_ns, value FROM sample ORDER BY rowid", |row| {
            let id = integer(row, 0)?;
            let place =
                places.get(&id).ok_or_else(|| format!("a sample is of stream {id}, which is not there"))?;
            let value = match row.get_ref(2) {
                Ok(ValueRef::Real(value)) if value.is_finite() => value,
                _ => return Err("a sample is not a finite number".to_owned()),
            };
            streams[*place].at_ns.push(time(row, 1)?);
            streams[*place].values.push(value);
            Ok(())
        })?;
        Ok(streams)
    }

    fn events(&self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        if self.opened.version < EVENTS_SINCE {
            return Ok(events);
        }
        self.each("SELECT at_ns, kind, text FROM event ORDER BY at_ns, rowid", |row| {
            events.push(Event { at_ns: time(row, 0)?, kind: text(row, 1)?, text: text(row, 2)? });
            Ok(())
        })?;
        Ok(events)
    }

    fn connection(&self) -> &Connection {
        &self.opened.connection
    }

    fn each(&self, sql: &str, take: impl FnMut(&Row<'_>) -> Result<(), String>) -> Result<(), Error> {
        each(&self.path, self.connection(), sql, take)
    }

    fn sqlite(&self, error: &rusqlite::Error) -> Error {
        Error::sqlite_read(&self.path, error)
    }

    pub(crate) fn damaged(&self, problem: String) -> Error {
        Error::damaged(&self.path, problem)
    }
}

/// The labels of a stream, from a JSON object of strings.
fn labels(json: &str) -> Result<Vec<(String, String)>, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).map_err(|error| format!("the labels of a stream: {error}"))?;
    let label = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(value) => Ok((key, value)),
        _ => Err(format!("label {key} of a stream is not a text")),
    };
    object.into_iter().map(label).collect()
}

/// Calls `take` with each row of a query; what it says is wrong with the file at `path`.
pub(crate) fn each(
    path: &Path,
    connection: &Connection,
    sql: &str,
    mut take: impl FnMut(&Row<'_>) -> Result<(), String>,
) -> Result<(), Error> {
    let sqlite = |error: rusqlite::Error| Error::sqlite_read(path, &error);
    let mut statement = connection.prepare(sql).map_err(sqlite)?;
    let mut rows = statement.query([]).map_err(sqlite)?;
    while let Some(row) = rows.next().map_err(sqlite)? {
        take(row).map_err(|problem| Error::damaged(path, problem))?;
    }
    Ok(())
}

/// A text of a row.
pub(crate) fn text(row: &Row<'_>, at: usize) -> Result<String, String> {
    match row.get_ref(at) {
        Ok(ValueRef::Text(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err("a text in it is not UTF-8".to_owned()),
        },
        _ => Err("it holds something else where a text belongs".to_owned()),
    }
}

/// An integer of a row.
pub(crate) fn integer(row: &Row<'_>, at: usize) -> Result<i64, String> {
    match row.get_ref(at) {
        Ok(ValueRef::Integer(value)) => Ok(value),
        _ => Err("it holds something else where an integer belongs".to_owned()),
    }
}

/// An integer of a row that cannot be negative.
pub(crate) fn time(row: &Row<'_>, at: usize) -> Result<u64, String> {
    u64::try_from(integer(row, at)?).map_err(|_| "a time in it is negative".to_owned())
}

/// The kind of a blob, if it is one that is read here, in a version that is known; maps stand apart.
fn kind_of(head: &BlobHead) -> Option<&'static Kind> {
    blob::KINDS.into_iter().find(|kind| head.kind == kind.name && head.version <= kind.version)
}

/// The blobs of one kind.
fn of_kind<'a>(blobs: &'a [BlobHead], kind: &'a Kind) -> impl DoubleEndedIterator<Item = &'a BlobHead> {
    blobs.iter().filter(|head| kind_of(head).is_some_and(|known| known.name == kind.name))
}

/// The map that a blob holds, if it is one of a version that is known.
fn map_head(head: &BlobHead) -> Option<MapHead> {
    let is_map = head.kind == maps::PAGE_MAP && head.version <= maps::PAGE_MAP_VERSION;
    is_map.then(|| MapHead { at_ns: head.at_ns, is_key: head.name == maps::KEY })
}
