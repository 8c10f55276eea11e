//! Sources of a recording: the files, their content and their times.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::{input, output};
use pagelab_formats::node_exporter::{self, Scrape, Uname};
use pagelab_formats::{ParseError, buddyinfo};
use pagelab_model::BuddyInfo;
use pagelab_report::style::format_plural;

use super::reading_tables::ReadingTables;

/// Files with a warning each; the rest is counted.
const WARNINGS_MAX: usize = 5;
const FILES_MAX: usize = 1 << 20;

/// Content of all files.
#[derive(Default)]
pub struct ImportedReadings {
    /// Readings, by time.
    pub tables: ReadingTables,
    /// Name of the machine, and its description in scrapes.
    pub uname: Uname,
    /// Unreadable files, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// Number of them for which only permission is missing.
    pub denied_count: usize,
    boot_s: Option<f64>,
    /// Machine in the file names.
    file_machine: Option<String>,
    /// Skipped files: those of other machines, and those without a time in the name if others have it.
    skipped_count: usize,
    /// Readings by the source of their time.
    times: BTreeMap<&'static str, usize>,
}

const SCRAPE_TIMESTAMPS: &str = "the timestamps in the scrapes";
const SCRAPE_CLOCK: &str = "node_time_seconds of each scrape";
const FILE_NAMES: &str = "the file names (NAME.SECONDS)";
const FILE_MTIMES: &str = "modification time of each file";

/// Reads all files of all sources.
pub fn import_files(
    sources: &[PathBuf],
    machine: Option<&str>,
    times: TimeSource,
) -> Result<ImportedReadings, Failure> {
    let mut gathered = ImportedReadings::default();
    let files = select_machine(list_files(sources)?, machine, times, &mut gathered)?;
    for file in files {
        let name = file.path.display().to_string();
        let Err(rejection) = import_file(&mut gathered, &file, times) else { continue };
        let why = rejection.into_reason(&mut gathered.denied_count)?;
        if gathered.unreadable.len() < WARNINGS_MAX {
            output::warn(&format!("warning: {why}"));
        }
        // The message begins with the name.
        let short = why.strip_prefix(&name).map_or(why.as_str(), |rest| rest.trim_start_matches([':', ' ']));
        gathered.unreadable.push((name.clone(), short.to_owned()));
    }
    if let Some(more) = gathered.unreadable.len().checked_sub(WARNINGS_MAX).filter(|&more| more > 0) {
        output::warn(&format!("warning: cannot read {more} more files; the run file lists them"));
    }
    let scraped = gathered.uname.host_name.take();
    gathered.uname.host_name = machine.map(str::to_owned).or(scraped).or(gathered.file_machine.take());
    gathered.tables.sort_by_time();
    Ok(gathered)
}

/// Reason why a file is rejected.
pub(crate) enum FileRejection {
    /// The file is skipped.
    Unusable(String),
    /// The file is skipped, because permission is missing.
    PermissionDenied(String),
    /// The import fails.
    Fatal(Failure),
}

impl FileRejection {
    /// A file that cannot be read.
    pub(crate) fn unreadable(failure: Failure) -> FileRejection {
        match failure.kind() {
            FailureKind::NotAvailable => FileRejection::PermissionDenied(failure.to_string()),
            _ => FileRejection::Unusable(failure.to_string()),
        }
    }

    /// The reason, with missing permission counted; an error if the import fails.
    pub(crate) fn into_reason(self, denied_count: &mut usize) -> Result<String, Failure> {
        match self {
            FileRejection::Unusable(why) => Ok(why),
            FileRejection::PermissionDenied(why) => {
                *denied_count += 1;
                Ok(why)
            }
            FileRejection::Fatal(failure) => Err(failure),
        }
    }
}

/// Lists all files, those of a directory sorted by name. Hidden files are skipped.
fn list_files(sources: &[PathBuf]) -> Result<Vec<NamedFile>, Failure> {
    let mut files = Vec::new();
    for source in sources {
        if !source.is_dir() {
            files.push(NamedFile::new(source.clone()));
            continue;
        }
        let inside = list_folder(source, files.len(), FILES_MAX, |entry| !entry.path().is_dir())?;
        files.extend(inside.into_iter().map(NamedFile::new));
    }
    Ok(files)
}

/// Lists the wanted entries of a directory that are not hidden, sorted by name. Fails if with the `listed`
/// files they are more than one import accepts.
pub(crate) fn list_folder(
    folder: &Path,
    listed: usize,
    files_max: usize,
    is_wanted: impl Fn(&DirEntry) -> bool,
) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::cannot_list(folder.display(), &error);
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") && is_wanted(&entry) {
            inside.push(entry.path());
        }
        if listed + inside.len() > files_max {
            let action = format_args!("import {}", folder.display());
            let reason = format_args!("expected at most {files_max} files, found more");
            return Err(
                Failure::cannot(FailureKind::BadInput, action, reason).hint("import fewer files at a time")
            );
        }
    }
    inside.sort();
    Ok(inside)
}

fn select_machine(
    mut files: Vec<NamedFile>,
    machine: Option<&str>,
    times: TimeSource,
    gathered: &mut ImportedReadings,
) -> Result<Vec<NamedFile>, Failure> {
    let has_names = files.iter().any(|file| file.machine_and_time.is_some());
    if times == TimeSource::Modified || !has_names {
        if times == TimeSource::Name {
            let reason = "no file name has the form NAME.SECONDS (seconds since 1970)";
            return Err(Failure::cannot(FailureKind::BadInput, "read times from the file names", reason));
        }
        files.iter_mut().for_each(|file| file.machine_and_time = None);
        return Ok(files);
    }
    let mut machines: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in files.iter().filter_map(|file| file.machine_and_time.as_ref()) {
        *machines.entry(name.clone()).or_default() += 1;
    }
    let wanted = match machine {
        Some(machine) if machines.contains_key(machine) => machine.to_owned(),
        // One machine: `--machine` then only replaces the name in the file names.
        _ if machines.len() == 1 => machines.keys().next().cloned().unwrap_or_default(),
        _ => return Err(several_machines(&machines, machine)),
    };
    let all = files.len();
    // If other files have a time in the name, a file without one is a note or a log.
    files.retain(|file| file.machine_and_time.as_ref().is_some_and(|(name, _)| *name == wanted));
    gathered.skipped_count = all - files.len();
    gathered.file_machine = Some(wanted);
    Ok(files)
}

fn several_machines(machines: &BTreeMap<String, usize>, requested: Option<&str>) -> Failure {
    const SHOWN_MAX: usize = 8;
    let mut names: Vec<String> =
        machines.iter().take(SHOWN_MAX).map(|(name, files)| format!("{name} ({files})")).collect();
    if machines.len() > SHOWN_MAX {
        names.push(format!("{} more", machines.len() - SHOWN_MAX));
    }
    let why =
        requested.map_or("they are from several machines".to_owned(), |name| format!("none is from {name}"));
    let reason =
        format!("judging by the file names, {why}: {}; a run file holds one machine", names.join(", "));
    Failure::cannot(FailureKind::BadInput, "import these files", reason)
        .hint("select one with --machine NAME, and import the others separately")
}

fn import_file(
    gathered: &mut ImportedReadings,
    file: &NamedFile,
    times: TimeSource,
) -> Result<(), FileRejection> {
    let (name, text) = input::read_bounded_input(&file.path, input::InputConsumer::Import)
        .map_err(FileRejection::unreadable)?;
    let bad = |error: ParseError| FileRejection::Unusable(error.message_in_file(&name));
    let too_many = |_| {
        let failure =
            Failure::cannot(FailureKind::BadInput, format_args!("import {name}"), "too many values");
        FileRejection::Fatal(failure.hint("import fewer files at a time"))
    };
    if text.trim_ascii_start().starts_with(b"Node ") {
        let found =
            buddyinfo::parse(&text).map_err(|error| match buddyinfo::find_readings(&text, &[]).len() {
                0 | 1 => bad(error),
                readings => {
                    let why = "whose times are unknown; expected one snapshot per file";
                    FileRejection::Unusable(format!("{name}: {readings} buddyinfo readings {why}"))
                }
            })?;
        if is_truncated(&text, &found) {
            return Err(FileRejection::Unusable(format!("{name}: the last line is truncated")));
        }
        let (at_ns, from) = file_time(file, &name)?;
        *gathered.times.entry(from).or_default() += 1;
        return gathered.tables.add_buddyinfo(at_ns, SNAPSHOTS, &found).map_err(too_many);
    }
    let is_text = text.iter().take(1 << 10).all(|byte| !matches!(byte, 0..9 | 14..32));
    if !is_text || text.trim_ascii().is_empty() {
        let what = if text.trim_ascii().is_empty() { "empty file" } else { "not a text file" };
        return Err(FileRejection::Unusable(format!(
            "{name}: {what}; expected a buddyinfo snapshot or a scrape"
        )));
    }
    let scrapes = node_exporter::parse(&text).map_err(bad)?;
    if scrapes.is_empty() {
        let message = format!(
            "{name}: expected a buddyinfo snapshot or a scrape with memory metrics (node_memory_…, \
             node_buddyinfo_blocks)"
        );
        return Err(FileRejection::Unusable(message));
    }
    for scrape in &scrapes {
        let (at_ns, from) = scrape_time(scrape, file, &name, times)?;
        *gathered.times.entry(from).or_default() += 1;
        check_same_machine(gathered, scrape, &name)?;
        add_scrape(&mut gathered.tables, at_ns, scrape).map_err(too_many)?;
    }
    Ok(())
}

/// Converts seconds since 1970 to nanoseconds. A double can represent microseconds of this century, no finer.
fn seconds_to_ns(time_s: f64) -> u64 {
    ((time_s * 1e6).round() as u64).saturating_mul(1000)
}

/// Whether the last line of a snapshot is truncated. The kernel writes a blank after each count and a newline
/// after each line; if only the last newline is missing, the line has as many counts as the others.
fn is_truncated(text: &[u8], snapshot: &BuddyInfo) -> bool {
    if text.ends_with(b"\n") {
        return false;
    }
    let orders: Vec<usize> = snapshot.zones.iter().map(|zone| zone.areas.orders()).collect();
    let is_whole = matches!(orders[..], [.., before, last] if before == last);
    !text.ends_with(b" ") || !is_whole
}

const SNAPSHOTS: &str = "snapshots of buddyinfo";

fn add_scrape(
    tables: &mut ReadingTables,
    at_ns: u64,
    scrape: &Scrape,
) -> Result<(), super::reading_tables::TooManyValues> {
    const SCRAPE_SOURCE: &str = "scrapes of node_exporter";
    if let Some(found) = &scrape.buddyinfo {
        tables.add_buddyinfo(at_ns, SCRAPE_SOURCE, found)?;
    }
    if let Some(found) = &scrape.meminfo {
        tables.add_meminfo(at_ns, SCRAPE_SOURCE, found)?;
    }
    if let Some(found) = &scrape.vmstat {
        tables.add_vmstat(at_ns, SCRAPE_SOURCE, found)?;
    }
    let totals = [scrape.pressure_some_us, scrape.pressure_full_us];
    if totals.iter().any(Option::is_some) {
        tables.add_pressure(at_ns, SCRAPE_SOURCE, totals)
    } else {
        Ok(())
    }
}

/// Checks that a scrape is of the same machine as the others.
fn check_same_machine(
    gathered: &mut ImportedReadings,
    scrape: &Scrape,
    name: &str,
) -> Result<(), FileRejection> {
    let known = &mut gathered.uname;
    if let (Some(known), Some(found)) = (&known.host_name, &scrape.uname.host_name)
        && known != found
    {
        let reason =
            format!("it is a scrape of {found}, but the others are of {known}; a run file holds one machine");
        let failure = Failure::cannot(FailureKind::BadInput, format_args!("import {name}"), reason);
        return Err(FileRejection::Fatal(failure.hint("import each machine separately")));
    }
    if scrape.uname != Uname::default() {
        *known = scrape.uname.clone();
    }
    gathered.boot_s = scrape.boot_s.or(gathered.boot_s);
    Ok(())
}

/// Returns the time of a scrape, and the source of the time.
fn scrape_time(
    scrape: &Scrape,
    file: &NamedFile,
    name: &str,
    times: TimeSource,
) -> Result<(u64, &'static str), FileRejection> {
    if times == TimeSource::Auto {
        let stamp = scrape.stamp_ms.and_then(|ms| u64::try_from(ms).ok()?.checked_mul(1_000_000));
        let clock = scrape.time_s.filter(|time_s| (0.0..1e10).contains(time_s)).map(seconds_to_ns);
        if let Some(found) =
            stamp.map(|at_ns| (at_ns, SCRAPE_TIMESTAMPS)).or(clock.map(|at_ns| (at_ns, SCRAPE_CLOCK)))
        {
            return Ok(found);
        }
    }
    file_time(file, name)
}

/// Returns the time of a file: that in its name, else its modification time.
fn file_time(file: &NamedFile, name: &str) -> Result<(u64, &'static str), FileRejection> {
    if let Some((_, at_ns)) = file.machine_and_time {
        return Ok((at_ns, FILE_NAMES));
    }
    let modified = if file.path == Path::new("-") { None } else { modified_ns(&file.path) };
    modified.map(|at_ns| (at_ns, FILE_MTIMES)).ok_or_else(|| {
        FileRejection::Unusable(format!("{name}: its time is unknown; hint: name the file NAME.SECONDS"))
    })
}

impl ImportedReadings {
    /// Returns the nanoseconds from the machine's boot to this time; 0 if the boot time is unknown.
    pub fn boottime_ns(&self, at_ns: u64) -> u64 {
        let boot_ns = self.boot_s.filter(|boot_s| (0.0..1e10).contains(boot_s)).map(seconds_to_ns);
        boot_ns.map_or(0, |boot_ns| at_ns.saturating_sub(boot_ns))
    }

    /// Returns notes about the source of the times and about skipped files.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = match self.times.len() {
            1 => self.times.keys().map(|from| format!("times: {from}")).collect(),
            _ => self.times.iter().map(|(from, readings)| format!("times of {readings}: {from}")).collect(),
        };
        if self.skipped_count > 0 {
            notes.push(format!(
                "skipped: {} without .SECONDS in the name, or from another machine",
                format_plural(self.skipped_count, "file")
            ));
        }
        let duplicates = self.tables.duplicate_count();
        if duplicates > 0 {
            notes.push(format!("skipped duplicates with the same time: {duplicates}"));
        }
        if !self.unreadable.is_empty() {
            notes.push(format!("skipped, unreadable: {}", format_plural(self.unreadable.len(), "file")));
        }
        notes
    }
}

/// Source of times that files do not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// From names if a file is called NAME.SECONDS, else modification times
    Auto,
    /// From names NAME.SECONDS, in seconds since 1970
    Name,
    /// Modification time of each file
    Modified,
}

/// Digits of seconds since 1970, for times since 2001; shorter numbers at the end of a name are log numbers.
const TIMESTAMP_DIGITS: std::ops::RangeInclusive<usize> = 9..=10;

/// A file, with the machine and time in its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Path.
    pub path: PathBuf,
    /// Machine, and time in nanoseconds since 1970, from `NAME.SECONDS`.
    pub machine_and_time: Option<(String, u64)>,
}

impl NamedFile {
    /// Parses the name of a file.
    pub fn new(path: PathBuf) -> NamedFile {
        let machine_and_time = path.file_name().and_then(|name| split_timestamp(name.to_str()?));
        NamedFile { path, machine_and_time }
    }
}

/// Splits `vm-17.1770127506` into `vm-17` and nanoseconds since 1970.
fn split_timestamp(name: &str) -> Option<(String, u64)> {
    let (machine, seconds) = name.rsplit_once('.')?;
    let is_time =
        TIMESTAMP_DIGITS.contains(&seconds.len()) && seconds.bytes().all(|digit| digit.is_ascii_digit());
    let seconds: u64 = seconds.parse().ok().filter(|_| is_time && !machine.is_empty())?;
    Some((machine.to_owned(), seconds * 1_000_000_000))
}

/// Returns the modification time of a file, in nanoseconds since 1970.
pub fn modified_ns(path: &Path) -> Option<u64> {
    let modified = path.metadata().ok()?.modified().ok()?;
    u64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_in_seconds_since_1970_or_say_nothing() {
        let machine =
            |name: &str| split_timestamp(name).map(|(machine, at_ns)| (machine, at_ns / 1_000_000_000));
        let known = |machine: &str, seconds| Some((machine.to_owned(), seconds));
        assert_eq!(machine("vm-17.1770127506"), known("vm-17", 1_770_127_506));
        assert_eq!(machine("a.b.example.999999999"), known("a.b.example", 999_999_999));
        for name in
            ["buddyinfo", "buddyinfo.1", "x.1770127506000", ".1770127506", "x.17701275o6", "x.-770127506"]
        {
            assert_eq!(split_timestamp(name), None, "{name}");
        }
    }
}
