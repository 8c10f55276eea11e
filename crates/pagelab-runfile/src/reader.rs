//! Reader of run files: everything at once, blobs on request.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use pagelab_model::experiment::{Experiment, Plan, Trial};
use pagelab_model::run::{
    Column, ColumnHeader, ColumnValues, Manifest, MapHeader, Run, RunEnd, RunEvent, SampleStream, Series,
    StreamHeader, Unit,
};
use pagelab_model::simulation::{MemoryPicture, TrialSeries};
use pagelab_model::{PageMap, Snapshot};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use serde::de::DeserializeOwned;

use crate::blob::BlobKind;
use crate::earlier::{HeadedTrial, StudyPlan, StudyTrial};
use crate::error::Error;
use crate::manifest::ManifestRows;
use crate::maps::MapDecoder;
use crate::open_file::OpenRunFile;
use crate::schema::SeriesTable;
use crate::trials::{Attachments, HeadTable, StoredTrial};
use crate::{blob, earlier, maps, open_file, trace, validate};

/// The schema version that brought the events.
const EVENTS_SCHEMA_VERSION: u32 = 2;

/// Entry of [`Run::unknown_content`] for a trace of the page allocator, which [`crate::TraceReader`] reads.
pub const TRACE_NOT_SHOWN: &str = "a page allocator trace: use `pagelab trace info`";

/// Whether the series of a trial are read, by the plan and its slot.
pub type SeriesFilter<'f> = &'f dyn Fn(&Plan, usize) -> bool;

/// A run file that was opened for reading, and checked.
pub struct RunReader {
    path: PathBuf,
    open_file: OpenRunFile,
}

/// Kind of a stored blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobHeader {
    /// Its number in the file.
    pub id: i64,
    /// Kind: `snapshot`, `map` …
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

/// Reads everything except maps and unknown kinds.
pub fn read_run_file(path: &Path) -> Result<Run, Error> {
    let reader = RunReader::open(path)?;
    let run = reader.read_run();
    // Only in the first milliseconds of a file can it get a writer that it did not have before.
    if reader.open_file.has_new_writer() { RunReader::open(path)?.read_run() } else { run }
}

impl RunReader {
    /// Opens and checks a file; nothing in its folder is changed.
    pub fn open(path: &Path) -> Result<RunReader, Error> {
        Ok(RunReader { path: path.to_owned(), open_file: open_file::open_run_file(path)? })
    }

    /// The schema version of the file.
    pub(crate) fn version(&self) -> u32 {
        self.open_file.version
    }

    /// Everything but maps, pictures of memory and unknown kinds.
    pub fn read_run(&self) -> Result<Run, Error> {
        self.read_run_with_series(&|_, _| true)
    }

    /// The same, but series only of the trials that `is_wanted` selects by the plan and their slot: others
    /// are not unpacked.
    pub fn read_run_with_series(&self, is_wanted: SeriesFilter<'_>) -> Result<Run, Error> {
        self.read_run_and_heads(is_wanted).map(|(run, _)| run)
    }

    /// The same, and the heads of measures, for a writer that continues the file.
    pub(crate) fn read_run_and_heads(&self, is_wanted: SeriesFilter<'_>) -> Result<(Run, HeadTable), Error> {
        self.open_file.watchdog.extend_deadline(self.open_file.bytes);
        let (manifest, ending, unknown_keys) = self.read_manifest()?;
        let log = self
            .open_file
            .write_ahead_log(&self.path)
            .filter(|log| log.is_present || ending == RunEnd::NotClosed);
        let mut not_shown: Vec<String> =
            unknown_keys.into_iter().map(|key| format!("`{key}` of the manifest")).collect();
        let blobs = self.read_blob_headers()?;
        let (snapshot, more) = self.read_snapshot(&blobs)?;
        not_shown.extend(more);
        let mut heads = HeadTable::default();
        let run = Run {
            name: self.path.display().to_string(),
            manifest,
            ending,
            series: self.read_series()?,
            streams: self.read_streams()?,
            events: self.read_events()?,
            snapshot,
            maps: blobs.iter().filter_map(map_header).collect(),
            stacks: self.read_last(&blobs, &blob::STACKS)?,
            profile: self.read_last(&blobs, &blob::PROFILE)?,
            tune: self.read_last(&blobs, &blob::TUNE)?,
            experiment: self.read_experiment(&blobs, &mut heads, is_wanted)?,
            write_ahead_log: log,
            unknown_content: not_shown,
        };
        Ok((run, heads))
    }

    /// Reads only the manifest, the end, and the keys that this reader does not know.
    pub(crate) fn read_manifest(&self) -> Result<(Manifest, RunEnd, Vec<String>), Error> {
        let mut rows = ManifestRows(BTreeMap::new());
        self.for_each_row("SELECT key, value FROM manifest", |row| {
            rows.0.insert(column_text(row, 0)?, column_text(row, 1)?);
            Ok(())
        })?;
        let manifest = rows.take_manifest().map_err(|problem| self.damaged_error(problem))?;
        let ending = rows.take_ending().map_err(|problem| self.damaged_error(problem))?;
        Ok((manifest, ending, rows.0.into_keys().collect()))
    }

    /// Bytes of the file's pages, those in its log included.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.open_file.bytes
    }

    /// Bytes that the blobs of a kind take, in the order of writing.
    pub(crate) fn blob_sizes(&self, kind: &str) -> Result<Vec<u64>, Error> {
        let mut bytes = Vec::new();
        self.for_each_row("SELECT kind, length(data) FROM blob ORDER BY id", |row| {
            if column_text(row, 0)? == kind {
                bytes.push(column_time(row, 1)?);
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Contents of one blob as stored in the file, compressed; an error is a sentence.
    pub(crate) fn read_packed<T>(
        &self,
        id: i64,
        visit: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, String> {
        self.open_file.watchdog.extend_deadline(self.open_file.bytes);
        self.visit_data(id, visit).unwrap_or_else(|error| Err(error.to_string()))
    }

    fn visit_data<T>(
        &self,
        id: i64,
        visit: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> rusqlite::Result<Result<T, String>> {
        let mut statement = self.open_file.connection.prepare("SELECT data FROM blob WHERE id = ?")?;
        let mut rows = statement.query([id])?;
        let row = rows.next()?;
        match row.and_then(|row| row.get_ref(0).ok()) {
            Some(ValueRef::Blob(data)) => Ok(visit(data)),
            _ => Ok(Err("it is empty".to_owned())),
        }
    }

    /// The blobs of all kinds, in the order of writing.
    pub fn read_blob_headers(&self) -> Result<Vec<BlobHeader>, Error> {
        let mut headers = Vec::new();
        self.for_each_row(
            "SELECT id, kind, version, name, at_ns, raw_bytes, codec FROM blob ORDER BY id",
            |row| {
                let codec = column_text(row, 6)?;
                if codec != blob::CODEC_ZSTD {
                    return Err(format!("a blob has the unknown codec {codec:?}"));
                }
                headers.push(BlobHeader {
                    id: column_integer(row, 0)?,
                    kind: column_text(row, 1)?,
                    version: u32::try_from(column_integer(row, 2)?)
                        .map_err(|_| "a blob has an invalid version")?,
                    name: column_text(row, 3)?,
                    at_ns: column_time(row, 4)?,
                    raw_bytes: column_time(row, 5)?,
                });
                Ok(())
            },
        )?;
        Ok(headers)
    }

    /// The contents of one blob.
    pub fn read_blob(&self, header: &BlobHeader) -> Result<Vec<u8>, Error> {
        self.open_file.watchdog.extend_deadline(self.open_file.bytes);
        if header.raw_bytes > blob::BLOB_BYTES_MAX {
            return Err(self.damaged_error(format!(
                "blob {} has an invalid size of {} bytes",
                header.id, header.raw_bytes
            )));
        }
        let mut contents = Vec::new();
        self.read_unpacked(header, |raw| raw.read_to_end(&mut contents).map_err(|error| error.to_string()))?;
        Ok(contents)
    }

    /// The map with this place among [`Run::maps`]; the ones from its key frame on are decoded for it.
    pub fn read_map(&self, map_index: usize) -> Result<PageMap, Error> {
        let mut found = None;
        self.for_each_map(&[map_index], |_, map| found = Some(map))?;
        found.ok_or_else(|| self.damaged_error("it has no map".to_owned()))
    }

    /// Hands out the maps with these places among [`Run::maps`], one at a time. Ascending places cost least:
    /// no map is then decoded twice, and a stretch up to a key frame is skipped. Values returned before an
    /// error are valid.
    pub fn for_each_map(
        &self,
        map_indices: &[usize],
        mut visit: impl FnMut(usize, PageMap),
    ) -> Result<(), Error> {
        let headers: Vec<BlobHeader> =
            self.read_blob_headers()?.into_iter().filter(|head| map_header(head).is_some()).collect();
        let mut reader = MapDecoder::default();
        // The map after the one that was decoded last.
        let mut next = None;
        for &map_index in map_indices {
            let Some(needed_headers) = headers.get(..=map_index) else {
                let map_count = map_index.saturating_add(1);
                return Err(self
                    .damaged_error(format!("it has {} maps; expected at least {map_count}", headers.len())));
            };
            let key = needed_headers.iter().rposition(|head| head.name == maps::KEY_FRAME_NAME);
            let key = key.ok_or_else(|| self.damaged_error("its first map is not a key frame".to_owned()))?;
            if map_index - key >= maps::KEY_FRAME_INTERVAL as usize {
                let maps = map_index - key + 1;
                return Err(self.damaged_error(format!("it has {maps} maps in a row without a key frame")));
            }
            let from = next.filter(|next| (key..=map_index).contains(next)).unwrap_or(key);
            let mut last = None;
            for header in &needed_headers[from..] {
                let data = self.read_blob(header)?;
                let map = reader.decode_next(header.name == maps::KEY_FRAME_NAME, &data);
                last = Some(map.map_err(|problem| {
                    self.damaged_error(format!("the map at {} ns: {problem}", header.at_ns))
                })?);
            }
            next = Some(map_index + 1);
            if let Some(map) = last {
                visit(map_index, map);
            }
        }
        Ok(())
    }

    /// Hands out the pictures of memory of these trials, one at a time and each with its slot.
    pub fn for_each_picture(
        &self,
        trials: &[Trial],
        mut visit: impl FnMut(usize, MemoryPicture),
    ) -> Result<(), Error> {
        let blobs = self.read_blob_headers()?;
        let mut check_and_visit = |slot: usize, picture: MemoryPicture| -> Result<(), Error> {
            let problem = validate::check_picture(&picture);
            problem.map_err(|problem| self.damaged_error(format!("a picture of slot {slot} {problem}")))?;
            visit(slot, picture);
            Ok(())
        };
        // Both kinds are named by their slots. The last ones are of the trial, earlier ones of a trial that
        // was repeated.
        let mut of_slots: BTreeMap<&str, Vec<&BlobHeader>> = BTreeMap::new();
        for header in blobs_of_kind(&blobs, &blob::TRIAL_PICTURE) {
            of_slots.entry(&header.name).or_default().push(header);
        }
        let of_studies: BTreeMap<&str, &BlobHeader> =
            blobs_of_kind(&blobs, &blob::STUDY_TRIAL).map(|header| (&*header.name, header)).collect();
        for trial in trials.iter().filter(|trial| trial.pictures > 0) {
            let name = trial.slot.to_string();
            let of_slot = of_slots.get(&*name).map_or(&[][..], Vec::as_slice);
            for header in &of_slot[of_slot.len().saturating_sub(trial.pictures)..] {
                check_and_visit(trial.slot, self.read_json_record(header, &blob::TRIAL_PICTURE)?)?;
            }
            if let Some(header) = of_studies.get(&*name) {
                let study: StudyTrial = self.read_json_record(header, &blob::STUDY_TRIAL)?;
                let (slot, pictures) = study.into_pictures();
                // The name of the blob and its contents must be of one trial.
                if slot == trial.slot {
                    pictures.into_iter().try_for_each(|picture| check_and_visit(slot, picture))?;
                }
            }
        }
        Ok(())
    }

    fn read_unpacked<T>(
        &self,
        header: &BlobHeader,
        visit: impl FnOnce(&mut dyn std::io::Read) -> Result<T, String>,
    ) -> Result<T, Error> {
        let visited = self.visit_data(header.id, |data| {
            visit(&mut blob::unpack_blob(data, header.raw_bytes).map_err(|error| error.to_string())?)
        });
        let visited = visited.map_err(|error| Error::sqlite_read(&self.path, &error))?;
        visited.map_err(|problem| self.damaged_blob_error(header, &problem))
    }

    fn read_snapshot(&self, blobs: &[BlobHeader]) -> Result<(Option<Box<Snapshot>>, Vec<String>), Error> {
        let (mut last, mut not_shown, mut earlier) = (None, Vec::new(), 0u64);
        if blobs.iter().any(|head| trace::is_trace_blob(&head.kind, head.version)) {
            not_shown.push(TRACE_NOT_SHOWN.to_owned());
        }
        for header in blobs.iter().filter(|head| map_header(head).is_none()).cloned() {
            match json_kind(&header) {
                Some(kind) if kind.name == blob::SNAPSHOT.name => {}
                Some(_) => continue,
                None if trace::is_trace_blob(&header.kind, header.version) => continue,
                None => {
                    let BlobHeader { kind, version, name, .. } = &header;
                    not_shown.push(format!("a blob of kind {kind}, version {version}: {name}"));
                    continue;
                }
            }
            let replaced: Option<BlobHeader> = last.replace(header);
            earlier += u64::from(replaced.is_some_and(|head| head.name != blob::PARTIAL_NAME));
        }
        if earlier > 0 {
            let looks = if earlier == 1 { "snapshot" } else { "snapshots" };
            not_shown.push(format!("{earlier} earlier {looks}"));
        }
        let Some(header) = last else { return Ok((None, not_shown)) };
        let snapshot: Snapshot = self.read_json_record(&header, &blob::SNAPSHOT)?;
        let checked = validate::check_snapshot(&snapshot);
        checked.map_err(|problem| self.damaged_blob_error(&header, &problem))?;
        Ok((Some(Box::new(snapshot)), not_shown))
    }

    /// The last stored record of a kind.
    fn read_last<T: DeserializeOwned>(
        &self,
        blobs: &[BlobHeader],
        kind: &BlobKind,
    ) -> Result<Option<Box<T>>, Error> {
        let Some(header) = blobs_of_kind(blobs, kind).next_back() else { return Ok(None) };
        self.read_json_record(header, kind).map(|record| Some(Box::new(record)))
    }

    /// The experiment: the first plan, and of each slot the last trial; those of a list in the order of
    /// writing, those of a grid by slot.
    fn read_experiment(
        &self,
        blobs: &[BlobHeader],
        heads: &mut HeadTable,
        is_wanted: SeriesFilter<'_>,
    ) -> Result<Option<Box<Experiment>>, Error> {
        let Some(plan) = self.read_plan(blobs)? else { return Ok(None) };
        let problem = validate::check_plan(&plan);
        problem.map_err(|problem| self.damaged_error(format!("the plan of its experiment: {problem}")))?;
        let mut trials: BTreeMap<usize, (i64, Trial)> = BTreeMap::new();
        let mut attachments = Attachments::default();
        for header in blobs {
            for trial in self.read_trials(header, heads, &mut attachments, &|slot| is_wanted(&plan, slot))? {
                let problem = validate::check_trial(&trial, plan.schedule.len());
                problem.map_err(|problem| self.damaged_error(format!("blob {}: {problem}", header.id)))?;
                trials.insert(trial.slot, (header.id, trial));
            }
        }
        let mut trials: Vec<(i64, Trial)> = trials.into_values().collect();
        if plan.schedule.grid().is_none() {
            trials.sort_by_key(|(at, _)| *at);
        }
        let trials = trials.into_iter().map(|(_, trial)| trial).collect();
        Ok(Some(Box::new(Experiment { plan, trials })))
    }

    fn read_plan(&self, blobs: &[BlobHeader]) -> Result<Option<Plan>, Error> {
        // A plan that was cut follows the whole one.
        if let Some(header) = blobs_of_kind(blobs, &blob::EXPERIMENT).next_back() {
            let mut plan: Plan = self.read_json_record(header, &blob::EXPERIMENT)?;
            let judged = plan.sweep.as_mut().and_then(|sweep| sweep.judged.as_mut());
            judged.into_iter().for_each(earlier::rename_measure_key);
            return Ok(Some(plan));
        }
        let Some(header) = blobs_of_kind(blobs, &blob::STUDY).next() else { return Ok(None) };
        self.read_json_record::<StudyPlan>(header, &blob::STUDY).map(|study| Some(study.into_plan()))
    }

    /// The trials that a blob holds; heads and attachments are kept for later blobs.
    fn read_trials(
        &self,
        header: &BlobHeader,
        heads: &mut HeadTable,
        attachments: &mut Attachments,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Trial>, Error> {
        let Some(kind) = json_kind(header) else { return Ok(Vec::new()) };
        let slot = || {
            let slot = header.name.parse::<usize>();
            slot.map_err(|_| {
                self.damaged_error(format!("the name of blob {} is not a slot number", header.id))
            })
        };
        let is = |of: &BlobKind| kind.name == of.name;
        if is(&blob::MEASURES) {
            heads.extend(self.read_json_record(header, kind)?);
        } else if is(&blob::TRIAL_SERIES) {
            let slot = slot()?;
            let mut series: Vec<TrialSeries> = Vec::new();
            if is_wanted(slot) {
                series = self.read_json_record(header, kind)?;
                series.iter_mut().for_each(|one| earlier::rename_measure(&mut one.name));
            }
            if !is_wanted(slot) || !series.is_empty() {
                attachments.series.insert(slot, series);
            }
        } else if is(&blob::TRIAL_PICTURE) {
            *attachments.pictures.entry(slot()?).or_default() += 1;
        } else if is(&blob::TRIALS) {
            let stored: Vec<StoredTrial> = self.read_json_record(header, kind)?;
            let restored = stored.into_iter().map(|trial| trial.restore(heads, attachments));
            return restored
                .collect::<Result<_, String>>()
                .map_err(|problem| self.damaged_error(format!("blob {}: {problem}", header.id)));
        } else if is(&blob::TRIAL) {
            return Ok(vec![self.read_json_record::<HeadedTrial>(header, kind)?.into_trial(heads)]);
        } else if is(&blob::STUDY_TRIAL) {
            let mut trial =
                self.read_json_record::<StudyTrial>(header, kind)?.into_trial(header.at_ns, heads);
            if !is_wanted(trial.slot) {
                trial.series = Vec::new();
            }
            return Ok(vec![trial]);
        }
        Ok(Vec::new())
    }

    /// The record that a blob holds as JSON.
    pub(crate) fn read_json_record<T: DeserializeOwned>(
        &self,
        header: &BlobHeader,
        kind: &BlobKind,
    ) -> Result<T, Error> {
        if header.raw_bytes > kind.bytes_max {
            let bytes = header.raw_bytes;
            return Err(self.damaged_error(format!("{}: invalid size of {bytes} bytes", kind.description)));
        }
        self.read_unpacked(header, |raw| {
            let raw = std::io::BufReader::with_capacity(64 << 10, blob::BoundedJsonReader::new(raw));
            serde_json::from_reader(raw).map_err(|error| error.to_string())
        })
    }

    fn read_series(&self) -> Result<Vec<Series>, Error> {
        let mut all = Vec::new();
        for header in &self.open_file.series {
            let (name, source) = (header.name.clone(), header.source.clone());
            let mut series = Series { name, source, at_ns: Vec::new(), columns: Vec::new() };
            let mut columns = header.columns.iter();
            for (column_index, table) in header.tables.iter().enumerate() {
                let first_values: Vec<_> = columns.by_ref().take(table.columns.len()).cloned().collect();
                let (at_ns, mut part) = self.read_series_table(table, first_values)?;
                if column_index == 0 {
                    series.at_ns = at_ns;
                } else if series.at_ns != at_ns {
                    return Err(self.damaged_error(format!(
                        "the tables of series {} have different times",
                        header.name
                    )));
                }
                series.columns.append(&mut part);
            }
            earlier::rename_columns(&mut series);
            all.push(series);
        }
        Ok(all)
    }

    /// One table of a series: its times, and its columns.
    fn read_series_table(
        &self,
        table: &SeriesTable,
        first_values: Vec<(ColumnHeader, Option<i64>)>,
    ) -> Result<(Vec<u64>, Vec<Column>), Error> {
        let mut times = Vec::new();
        // A row that pagelab wrote has at least one byte for each of its columns.
        let rows_max = self.open_file.bytes / (first_values.len() as u64 + 1);
        let mut varying: Vec<Option<Vec<Option<i64>>>> = vec![None; first_values.len()];
        self.for_each_row(&table.select_sql(), |row| {
            if times.len() as u64 >= rows_max {
                return Err(format!("table {} has more rows than the file can hold", table.name));
            }
            for (column_index, ((_, first), varying)) in first_values.iter().zip(&mut varying).enumerate() {
                let value = match row.get_ref(column_index + 1) {
                    Ok(ValueRef::Null) if varying.is_none() => continue,
                    Ok(ValueRef::Null) => *first,
                    Ok(ValueRef::Integer(value)) => Some(value),
                    Ok(ValueRef::Blob([])) => None,
                    _ => return Err(format!("table {} contains a value that is not an integer", table.name)),
                };
                varying.get_or_insert_with(|| vec![*first; times.len()]).push(value);
            }
            times.push(column_time(row, 0)?);
            Ok(())
        })?;
        let columns = first_values.into_iter().zip(varying).map(|((head, first), varying)| Column {
            header: head,
            values: varying.map_or(ColumnValues::Constant(first), ColumnValues::Varying),
        });
        Ok((times, columns.collect()))
    }

    fn read_streams(&self) -> Result<Vec<SampleStream>, Error> {
        let (mut streams, mut map_indices) = (Vec::new(), HashMap::new());
        self.for_each_row("SELECT id, name, unit, labels FROM stream ORDER BY id", |row| {
            map_indices.insert(column_integer(row, 0)?, streams.len());
            let labels = parse_labels(&column_text(row, 3)?)?;
            let header =
                StreamHeader { name: column_text(row, 1)?, unit: Unit(column_text(row, 2)?), labels };
            streams.push(SampleStream { header, at_ns: Vec::new(), values: Vec::new() });
            Ok(())
        })?;
        self.for_each_row("SELECT stream, at_ns, value FROM sample ORDER BY rowid", |row| {
            let id = column_integer(row, 0)?;
            let map_index = map_indices
                .get(&id)
                .ok_or_else(|| format!("a sample refers to stream {id}, which does not exist"))?;
            let value = match row.get_ref(2) {
                Ok(ValueRef::Real(value)) if value.is_finite() => value,
                _ => return Err("a sample is not a finite number".to_owned()),
            };
            streams[*map_index].at_ns.push(column_time(row, 1)?);
            streams[*map_index].values.push(value);
            Ok(())
        })?;
        Ok(streams)
    }

    fn read_events(&self) -> Result<Vec<RunEvent>, Error> {
        let mut events = Vec::new();
        if self.open_file.version < EVENTS_SCHEMA_VERSION {
            return Ok(events);
        }
        self.for_each_row("SELECT at_ns, kind, text FROM event ORDER BY at_ns, rowid", |row| {
            let (at_ns, mut kind, text) = (column_time(row, 0)?, column_text(row, 1)?, column_text(row, 2)?);
            earlier::rename_event_kind(&mut kind);
            events.push(RunEvent { at_ns, kind, text });
            Ok(())
        })?;
        Ok(events)
    }

    fn for_each_row(
        &self,
        sql: &str,
        visit: impl FnMut(&Row<'_>) -> Result<(), String>,
    ) -> Result<(), Error> {
        query_each_row(&self.path, &self.open_file.connection, sql, visit)
    }

    pub(crate) fn damaged_error(&self, problem: String) -> Error {
        Error::damaged(&self.path, problem)
    }

    pub(crate) fn damaged_blob_error(&self, header: &BlobHeader, problem: &str) -> Error {
        self.damaged_error(format!("blob {} ({}): {problem}", header.id, header.kind))
    }
}

/// The labels of a stream, from a JSON object of strings.
fn parse_labels(json: &str) -> Result<Vec<(String, String)>, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).map_err(|error| format!("invalid labels of a stream: {error}"))?;
    let label = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(value) => Ok((key, value)),
        _ => Err(format!("label {key} of a stream is not a string")),
    };
    object.into_iter().map(label).collect()
}

/// Calls `visit` with each row of a query; its error is reported for the file at `path`.
pub(crate) fn query_each_row(
    path: &Path,
    connection: &Connection,
    sql: &str,
    mut visit: impl FnMut(&Row<'_>) -> Result<(), String>,
) -> Result<(), Error> {
    let sqlite = |error: rusqlite::Error| Error::sqlite_read(path, &error);
    let mut statement = connection.prepare(sql).map_err(sqlite)?;
    let mut rows = statement.query([]).map_err(sqlite)?;
    while let Some(row) = rows.next().map_err(sqlite)? {
        visit(row).map_err(|problem| Error::damaged(path, problem))?;
    }
    Ok(())
}

/// A text of a row.
pub(crate) fn column_text(row: &Row<'_>, column_index: usize) -> Result<String, String> {
    match row.get_ref(column_index) {
        Ok(ValueRef::Text(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err("it contains text that is not valid UTF-8".to_owned()),
        },
        _ => Err("expected text, found a value of another type".to_owned()),
    }
}

/// An integer of a row.
pub(crate) fn column_integer(row: &Row<'_>, column_index: usize) -> Result<i64, String> {
    match row.get_ref(column_index) {
        Ok(ValueRef::Integer(value)) => Ok(value),
        _ => Err("expected an integer, found a value of another type".to_owned()),
    }
}

/// An integer of a row that cannot be negative.
pub(crate) fn column_time(row: &Row<'_>, column_index: usize) -> Result<u64, String> {
    u64::try_from(column_integer(row, column_index)?).map_err(|_| "it contains a negative time".to_owned())
}

/// Kind of a blob, if it is read here in a known version; maps are separate.
fn json_kind(header: &BlobHeader) -> Option<&'static BlobKind> {
    blob::JSON_KINDS.into_iter().find(|kind| header.kind == kind.name && header.version <= kind.version)
}

fn blobs_of_kind<'a>(
    blobs: &'a [BlobHeader],
    kind: &'a BlobKind,
) -> impl DoubleEndedIterator<Item = &'a BlobHeader> {
    blobs.iter().filter(|head| json_kind(head).is_some_and(|known| known.name == kind.name))
}

/// The map that a blob holds, if it is one of a version that is known.
fn map_header(header: &BlobHeader) -> Option<MapHeader> {
    let is_map = header.kind == maps::MAP_KIND && header.version <= maps::MAP_VERSION;
    is_map.then(|| MapHeader { at_ns: header.at_ns, is_keyframe: header.name == maps::KEY_FRAME_NAME })
}
