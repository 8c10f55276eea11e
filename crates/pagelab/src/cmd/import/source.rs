//! Which files there are, what they hold, and when they were taken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagelab_formats::node_exporter::{self, Scrape, Uname};
use pagelab_formats::{ParseError, buddyinfo};

use pagelab_model::BuddyInfo;

use super::table::Tables;
use super::times::{Named, TimesFrom, modified_ns};
use crate::exit::{Exit, Failure};
use crate::{input, out};

/// Files that are complained of one by one; the rest is counted.
const COMPLAINTS: usize = 5;
/// More files than this are refused.
const FILES_MAX: usize = 1 << 20;

/// What was found.
#[derive(Default)]
pub struct Gathered {
    /// The readings, by time.
    pub tables: Tables,
    /// What the machine is called, and what scrapes say of it.
    pub uname: Uname,
    /// Files that could not be read, and why.
    pub left_out: Vec<(String, String)>,
    /// How many of them only permission was missing for.
    pub denied: usize,
    boot_s: Option<f64>,
    /// The machine that the files' names say.
    named: Option<String>,
    /// Files of other machines, and files without a time where others have one, that were passed over.
    passed_over: usize,
    /// Readings by the source of their time.
    times: BTreeMap<&'static str, usize>,
}

const STAMPS: &str = "the scrapes' own time stamps";
const CLOCK: &str = "node_time_seconds of each scrape";
const NAMES: &str = "the files' names, NAME.SECONDS";
const CHANGED: &str = "when each file was last changed";

/// Reads all files of all sources.
pub fn gather(sources: &[PathBuf], machine: Option<&str>, times: TimesFrom) -> Result<Gathered, Failure> {
    let mut gathered = Gathered::default();
    let files = chosen(listed(sources)?, machine, times, &mut gathered)?;
    for file in files {
        let name = file.path.display().to_string();
        let why = match one(&mut gathered, &file, times) {
            Ok(()) => continue,
            Err(Refused::File(why)) => why,
            Err(Refused::Denied(why)) => {
                gathered.denied += 1;
                why
            }
            Err(Refused::All(failure)) => return Err(failure),
        };
        if gathered.left_out.len() < COMPLAINTS {
            out::complain(&format!("pagelab: {why}"));
        }
        // The name stands in front of what is wrong.
        let short = why.strip_prefix(&name).map_or(why.as_str(), |rest| rest.trim_start_matches([':', ' ']));
        gathered.left_out.push((name.clone(), short.to_owned()));
    }
    if let Some(more) = gathered.left_out.len().checked_sub(COMPLAINTS).filter(|&more| more > 0) {
        out::complain(&format!("pagelab: {more} more files could not be read; the run file names them"));
    }
    let scraped = gathered.uname.host_name.take();
    gathered.uname.host_name = machine.map(str::to_owned).or(scraped).or(gathered.named.take());
    gathered.tables.sort();
    Ok(gathered)
}

/// Why a file is not taken.
enum Refused {
    /// The others go on.
    File(String),
    /// The others go on, and this one is another user's.
    Denied(String),
    /// The whole import makes no sense.
    All(Failure),
}

/// All files, those of a folder sorted by name. Hidden ones are passed over.
fn listed(sources: &[PathBuf]) -> Result<Vec<Named>, Failure> {
    let mut files = Vec::new();
    for source in sources {
        if !source.is_dir() {
            files.push(Named::new(source.clone()));
            continue;
        }
        let failed = |error: std::io::Error| {
            Failure::new(Exit::NotAvailable, format!("cannot list {}", source.display())).because(error)
        };
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(source).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !is_hidden && !entry.path().is_dir() {
                inside.push(Named::new(entry.path()));
            }
            if files.len() + inside.len() > FILES_MAX {
                let message = format!("more than {FILES_MAX} files: import fewer at a time");
                return Err(Failure::new(Exit::BadInput, message));
            }
        }
        inside.sort_by(|one, other| one.path.cmp(&other.path));
        files.extend(inside);
    }
    Ok(files)
}

/// The files of one machine.
fn chosen(
    mut files: Vec<Named>,
    machine: Option<&str>,
    times: TimesFrom,
    gathered: &mut Gathered,
) -> Result<Vec<Named>, Failure> {
    let has_names = files.iter().any(|file| file.named.is_some());
    if times == TimesFrom::Modified || !has_names {
        if times == TimesFrom::Name {
            let message = "--times name: no file is called NAME.SECONDS, with seconds since 1970";
            return Err(Failure::new(Exit::BadInput, message));
        }
        files.iter_mut().for_each(|file| file.named = None);
        return Ok(files);
    }
    let mut machines: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in files.iter().filter_map(|file| file.named.as_ref()) {
        *machines.entry(name.clone()).or_default() += 1;
    }
    let wanted = match machine {
        Some(machine) if machines.contains_key(machine) => machine.to_owned(),
        // One machine, under a better name than its files have.
        _ if machines.len() == 1 => machines.keys().next().cloned().unwrap_or_default(),
        _ => return Err(several(&machines, machine)),
    };
    let all = files.len();
    // Beside files that say when they were taken, one that does not is a note or a log.
    files.retain(|file| file.named.as_ref().is_some_and(|(name, _)| *name == wanted));
    gathered.passed_over = all - files.len();
    gathered.named = Some(wanted);
    Ok(files)
}

fn several(machines: &BTreeMap<String, usize>, wanted: Option<&str>) -> Failure {
    const SHOWN: usize = 8;
    let mut names: Vec<String> =
        machines.iter().take(SHOWN).map(|(name, files)| format!("{name} ({files})")).collect();
    if machines.len() > SHOWN {
        names.push(format!("{} more", machines.len() - SHOWN));
    }
    let why = wanted.map_or("they are of several machines".to_owned(), |name| format!("none is of {name}"));
    let message = format!(
        "the files' names say that {why}: {}; a run file is of one machine: choose it by --machine NAME, and \
         import the others into files of their own",
        names.join(", ")
    );
    Failure::new(Exit::BadInput, message)
}

/// Takes one file in.
fn one(gathered: &mut Gathered, file: &Named, times: TimesFrom) -> Result<(), Refused> {
    let (name, text) =
        input::read(&file.path, input::Reader::Import).map_err(|failure| match failure.exit() {
            Exit::NotAvailable => Refused::Denied(failure.to_string()),
            _ => Refused::File(failure.to_string()),
        })?;
    let bad = |error: ParseError| Refused::File(error.in_file(&name));
    let too_many = |_| {
        let message = format!("{name}: more values than are held at once: import fewer files at a time");
        Refused::All(Failure::new(Exit::BadInput, message))
    };
    if is_buddyinfo(&text) {
        let found = buddyinfo::parse(&text).map_err(|error| match buddyinfo::find(&text).len() {
            0 | 1 => bad(error),
            readings => {
                let why = "and nothing says when each was taken: one file for each is wanted";
                Refused::File(format!("{name}: {readings} readings of buddyinfo, {why}"))
            }
        })?;
        if is_cut_off(&text, &found) {
            return Err(Refused::File(format!("{name}: its last line is cut off")));
        }
        let (at_ns, from) = when(file, &name)?;
        *gathered.times.entry(from).or_default() += 1;
        return gathered.tables.buddyinfo(at_ns, SNAPSHOTS, &found).map_err(too_many);
    }
    let is_text = text.iter().take(1 << 10).all(|byte| !matches!(byte, 0..9 | 14..32));
    if !is_text || text.trim_ascii().is_empty() {
        let what = if text.trim_ascii().is_empty() { "is empty" } else { "is not a text" };
        return Err(Refused::File(format!("{name}: {what}: a buddyinfo snapshot or a scrape was wanted")));
    }
    let scrapes = node_exporter::parse(&text).map_err(bad)?;
    if scrapes.is_empty() {
        let message = format!(
            "{name}: neither a snapshot of buddyinfo nor a scrape with metrics of memory (node_memory_…, \
             node_buddyinfo_blocks)"
        );
        return Err(Refused::File(message));
    }
    for scrape in &scrapes {
        let (at_ns, from) = time_of(scrape, file, &name, times)?;
        *gathered.times.entry(from).or_default() += 1;
        same_machine(gathered, scrape, &name)?;
        take(&mut gathered.tables, at_ns, scrape).map_err(too_many)?;
    }
    Ok(())
}

/// Seconds since 1970 as nanoseconds. A double has room for microseconds of this century, and no more.
fn clock_ns(time_s: f64) -> u64 {
    ((time_s * 1e6).round() as u64).saturating_mul(1000)
}

/// Whether the last line of a snapshot lacks its end. The kernel puts a blank behind each count and ends each
/// line; a copy that lost the last line's end alone has as many counts in it as in the others.
fn is_cut_off(text: &[u8], found: &BuddyInfo) -> bool {
    if text.ends_with(b"\n") {
        return false;
    }
    let orders: Vec<usize> = found.zones.iter().map(|zone| zone.areas.orders()).collect();
    let is_whole = matches!(orders[..], [.., before, last] if before == last);
    !text.ends_with(b" ") || !is_whole
}

const SNAPSHOTS: &str = "snapshots of buddyinfo";

fn is_buddyinfo(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"Node ")
}

fn take(tables: &mut Tables, at_ns: u64, scrape: &Scrape) -> Result<(), super::table::TooMany> {
    const FROM: &str = "scrapes of node_exporter";
    if let Some(found) = &scrape.buddyinfo {
        tables.buddyinfo(at_ns, FROM, found)?;
    }
    if let Some(found) = &scrape.meminfo {
        tables.meminfo(at_ns, FROM, found)?;
    }
    if let Some(found) = &scrape.vmstat {
        tables.vmstat(at_ns, FROM, found)?;
    }
    let totals = [scrape.pressure_some_us, scrape.pressure_full_us];
    if totals.iter().any(Option::is_some) { tables.pressure(at_ns, FROM, totals) } else { Ok(()) }
}

/// What a scrape says of its machine must be what the others said.
fn same_machine(gathered: &mut Gathered, scrape: &Scrape, name: &str) -> Result<(), Refused> {
    let known = &mut gathered.uname;
    if let (Some(known), Some(found)) = (&known.host_name, &scrape.uname.host_name)
        && known != found
    {
        let message = format!(
            "{name}: a scrape of {found}, the others are of {known}; a run file is of one machine: import \
             each into a file of its own"
        );
        return Err(Refused::All(Failure::new(Exit::BadInput, message)));
    }
    if scrape.uname != Uname::default() {
        *known = scrape.uname.clone();
    }
    gathered.boot_s = scrape.boot_s.or(gathered.boot_s);
    Ok(())
}

/// When a scrape was taken, and who says so.
fn time_of(
    scrape: &Scrape,
    file: &Named,
    name: &str,
    times: TimesFrom,
) -> Result<(u64, &'static str), Refused> {
    if times == TimesFrom::Auto {
        let stamp = scrape.stamp_ms.and_then(|ms| u64::try_from(ms).ok()?.checked_mul(1_000_000));
        let clock = scrape.time_s.filter(|time_s| (0.0..1e10).contains(time_s)).map(clock_ns);
        if let Some(found) = stamp.map(|at_ns| (at_ns, STAMPS)).or(clock.map(|at_ns| (at_ns, CLOCK))) {
            return Ok(found);
        }
    }
    when(file, name)
}

/// When a file was taken: what its name says, else when it was changed.
fn when(file: &Named, name: &str) -> Result<(u64, &'static str), Refused> {
    if let Some((_, at_ns)) = file.named {
        return Ok((at_ns, NAMES));
    }
    let modified = if file.path == Path::new("-") { None } else { modified_ns(&file.path) };
    modified.map(|at_ns| (at_ns, CHANGED)).ok_or_else(|| {
        Refused::File(format!(
            "{name}: nothing says when it was taken: put it into a file called NAME.SECONDS"
        ))
    })
}

/// `1 file`, `2 files`.
fn files(count: usize) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

impl Gathered {
    /// The first time and the last, in nanoseconds since 1970.
    pub fn span(&self) -> Option<(u64, u64)> {
        self.tables.span()
    }

    /// Nanoseconds from the machine's boot to this moment; 0 where the files do not say.
    pub fn boottime_ns(&self, at_ns: u64) -> u64 {
        let boot_ns = self.boot_s.filter(|boot_s| (0.0..1e10).contains(boot_s)).map(clock_ns);
        boot_ns.map_or(0, |boot_ns| at_ns.saturating_sub(boot_ns))
    }

    /// What must be known about the times, and what was passed over.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = match self.times.len() {
            1 => self.times.keys().map(|from| format!("times: {from}")).collect(),
            _ => self.times.iter().map(|(from, readings)| format!("times of {readings}: {from}")).collect(),
        };
        if self.passed_over > 0 {
            notes.push(format!(
                "passed over: {} whose names do not end in .SECONDS, or are another machine's",
                files(self.passed_over)
            ));
        }
        if self.tables.doubles() > 0 {
            let doubles = self.tables.doubles();
            notes.push(format!("left out, since another has the same time: {doubles}"));
        }
        if !self.left_out.is_empty() {
            notes.push(format!("left out, since they could not be read: {}", files(self.left_out.len())));
        }
        notes
    }
}
