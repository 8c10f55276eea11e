//! A file of perf, or a text that perf printed, made into a profile.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagelab_formats::perf_data::{self, About, Form, Input};
use pagelab_formats::{ParseError, region_counts};
use pagelab_model::profile::ProfileSource;
use pagelab_model::{Bytes, Profile};
use zstd::stream::raw::{Decoder, Operation};

use super::meaning::{Meaning, Refused, by_column, counts_misses, tells_all};
use super::{Options, Sampled, Sight};
use crate::error::{Error, ErrorKind};

/// A text, or a file that comes by a pipe, at most.
const WHOLE_MAX: u64 = 512 << 20;
/// Bytes that tell which form it is.
const HEAD: usize = 16;

/// Reads the file at this path, or standard input for `-`.
pub fn profile(path: &Path, options: Options) -> Result<Profile, Error> {
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    let cannot = |error: io::Error| {
        Error::new(ErrorKind::BadInput, format!("cannot read {name}: {error}; give a file that perf wrote"))
    };
    if path == Path::new("-") {
        return of_stream(Box::new(io::stdin()), &name, options);
    }
    let file = File::open(path).map_err(cannot)?;
    let kind = file.metadata().map_err(cannot)?.file_type();
    if kind.is_dir() {
        let problem = format!(
            "{name} is a folder, as perf record --threads writes it, which is not read: record without \
             --threads"
        );
        return Err(Error::new(ErrorKind::BadInput, problem));
    }
    if !kind.is_file() {
        return of_stream(Box::new(file), &name, options);
    }
    let mut head = [0; HEAD];
    let count = read_some(|bytes, at| file.read_at(bytes, at), &mut head, 0).map_err(cannot)?;
    match perf_data::form(&head[..count]) {
        Form::Other => of_text(Box::new(file), &[], &name, options),
        _ => of_records(&mut Positional(file), &name, options),
    }
}

/// Fills as much as there is, over short reads.
fn read_some(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    bytes: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A regular file.
struct Positional(File);

impl Input for Positional {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String> {
        if offset > i64::MAX as u64 {
            return Ok(0);
        }
        read_some(|bytes, at| self.0.read_at(bytes, at), bytes, offset).map_err(|error| error.to_string())
    }
}

/// A pipe, with what was read of it already.
struct Sequential<'a> {
    head: &'a [u8],
    rest: Box<dyn Read>,
    at: u64,
}

impl Input for Sequential<'_> {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String> {
        let from_head = usize::try_from(offset).ok().and_then(|at| self.head.get(at..)).unwrap_or_default();
        let first = from_head.len().min(bytes.len());
        bytes[..first].copy_from_slice(&from_head[..first]);
        let next = offset.saturating_add(first as u64);
        if first < bytes.len() && next != self.at {
            return Err("a pipe cannot be read anywhere but onwards".to_owned());
        }
        let more = read_some(|bytes, _| self.rest.read(bytes), &mut bytes[first..], 0);
        let more = more.map_err(|error| error.to_string())?;
        self.at += more as u64;
        Ok(first + more)
    }
}

fn of_stream(mut stream: Box<dyn Read>, name: &str, options: Options) -> Result<Profile, Error> {
    let mut head = [0; HEAD];
    let count = read_some(|bytes, _| stream.read(bytes), &mut head, 0).map_err(|error| {
        Error::new(ErrorKind::BadInput, format!("cannot read {name}: {error}; give a file that perf wrote"))
    })?;
    let head = &head[..count];
    match perf_data::form(head) {
        Form::Pipe(_) => of_records(&mut Sequential { head, rest: stream, at: HEAD as u64 }, name, options),
        Form::Other => of_text(stream, head, name, options),
        Form::File(_) | Form::Ancient => {
            let whole = whole(stream, head, name)?;
            of_records(&mut &whole[..], name, options)
        }
    }
}

/// What comes by a pipe and must be there whole.
fn whole(stream: Box<dyn Read>, head: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = head.to_vec();
    let read = stream.take(WHOLE_MAX).read_to_end(&mut bytes);
    let problem = match read {
        Ok(_) if bytes.len() as u64 <= WHOLE_MAX => return Ok(bytes),
        Ok(_) => format!(
            "{name} has more than {} MiB, which is not read as text or through a pipe: give the file that \
             perf wrote itself",
            WHOLE_MAX >> 20
        ),
        Err(error) => format!("cannot read {name}: {error}; give a file that perf wrote"),
    };
    Err(Error::new(ErrorKind::BadInput, problem))
}

fn bad(name: &str, error: &ParseError) -> Error {
    Error::new(ErrorKind::BadInput, format!("{}; nothing was profiled", error.in_file(name)))
}

fn of_records(input: &mut dyn Input, name: &str, options: Options) -> Result<Profile, Error> {
    let mut unpacker: Option<Decoder<'static>> = None;
    let mut unpack = |packed: &[u8], room: &mut [u8]| {
        let decoder = match &mut unpacker {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new().map_err(|error| error.to_string())?),
        };
        let done = decoder.run_on_buffers(packed, room);
        let done = done.map_err(|error| format!("a packed record that zstd cannot unpack: {error}"))?;
        Ok((done.bytes_read, done.bytes_written))
    };
    let mut sampled = Sampled::new(options);
    let read = perf_data::read(input, &mut unpack, &mut |about, event| sampled.take(about, event));
    let (about, tally) = read.map_err(|error| bad(name, &error))?;
    if let Some(why) = sampled.refusal() {
        let traces = tally.undecoded.join(", ");
        let events: Vec<&str> = about.events.iter().map(|event| event.name.as_str()).take(4).collect();
        let events = events.join(", ");
        let problem = match traces.is_empty() {
            true => format!("{name} (events: {events}) says nothing about TLB misses: {why}"),
            false => format!(
                "{name} has its samples in a trace of {traces}, which is not decoded here: give the text of \
                 `perf script --itrace=M -F +addr,+data_src` ({why})"
            ),
        };
        return Err(Error::new(ErrorKind::BadInput, problem));
    }
    let mut profile = sampled.finish(ProfileSource::PerfData, &about);
    told(&mut profile, &about, &tally);
    Ok(profile)
}

/// What the reader of a profile must know about the file.
fn told(profile: &mut Profile, about: &About, tally: &perf_data::Tally) {
    let from = |what: &str| if what.is_empty() { "not told" } else { what }.to_owned();
    profile.notes.push(format!(
        "recorded on {}, Linux {}, {}, by `{}`",
        from(&about.hostname),
        from(&about.release),
        from(&about.processor),
        about.command.join(" ")
    ));
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            profile.notes.push(format!("{count} {what}"));
        }
    };
    say(tally.strange, "samples belong to no event of the file");
    say(tally.late, "records were out of the order of time");
    if tally.unfinished {
        profile.notes.push("perf was killed before it finished the file: its end may be missing".to_owned());
    }
}

/// A text: of `perf script`, of `perf mem report`, or of regions.
fn of_text(stream: Box<dyn Read>, head: &[u8], name: &str, options: Options) -> Result<Profile, Error> {
    let bytes = whole(stream, head, name)?;
    let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    if bytes.iter().take(WHOLE_MAX as usize).any(|&byte| byte == 0) {
        let problem = format!(
            "{name} is neither a file of perf record (it does not begin with PERFILE2) nor text; nothing was \
             profiled; give what perf mem record wrote"
        );
        return Err(Error::new(ErrorKind::BadInput, problem));
    }
    if bytes.starts_with(b"Region (Hex)") {
        return of_regions(&bytes, name, options);
    }
    let mut sampled = Sampled::new(options);
    if has(b"|OP ") {
        of_script(&mut sampled, &perf_data::script(&bytes).map_err(|error| bad(name, &error))?);
    } else if has(b"# Overhead") {
        of_report(&mut sampled, &perf_data::report(&bytes).map_err(|error| bad(name, &error))?);
    } else {
        let problem = format!(
            "{name} is no text of perf that says what the TLB did: print it with perf script -F \
             +addr,+data_src or perf mem report --stdio, or give the perf.data itself"
        );
        return Err(Error::new(ErrorKind::BadInput, problem));
    }
    match sampled.refusal() {
        Some(why) => {
            let problem = format!("{name} says nothing about TLB misses: {why}");
            Err(Error::new(ErrorKind::BadInput, problem))
        }
        None => Ok(sampled.finish(ProfileSource::PerfData, &About::default())),
    }
}

fn of_script(sampled: &mut Sampled, script: &perf_data::Script) {
    sampled.add_lost(script.lost);
    let all_told = script.samples.iter().any(|sample| tells_all(&sample.event));
    for sample in &script.samples {
        let answer = match by_column(&sample.event, false, all_told) {
            Meaning::No(why) => {
                sampled.text_useless(why, 1);
                continue;
            }
            _ if counts_misses(&sample.event) => perf_data::Answer::Walked,
            Meaning::ByColumn { spe } => sample.tlb.answer(spe),
            _ => sample.tlb.answer(false),
        };
        let Some(address) = sample.address else {
            sampled.text_useless(Refused::NoAddress, 1);
            continue;
        };
        let (pid, stands_for) = (sample.pid.unwrap_or(0), sample.period.unwrap_or(1));
        sampled.text_sample(&sample.name, &Sight { pid, address, answer, stands_for, node: None });
    }
}

fn of_report(sampled: &mut Sampled, report: &perf_data::Report) {
    sampled.add_lost(report.lost);
    let is_spe = |event: &String| by_column(event, false, false) != Meaning::ByColumn { spe: false };
    let spe = report.events.iter().any(is_spe);
    for row in &report.rows {
        let Some(address) = row.address else {
            sampled.text_useless(Refused::NoAddress, row.samples);
            continue;
        };
        let sight =
            Sight { pid: 0, address, answer: row.tlb.answer(spe), stands_for: row.samples, node: None };
        sampled.text_sample("", &sight);
    }
}

/// A list of misses by region: each is a huge page long.
pub fn of_regions(bytes: &[u8], name: &str, options: Options) -> Result<Profile, Error> {
    let regions = region_counts::parse(bytes).map_err(|error| bad(name, &error))?;
    let region = options.page_size.block(options.page_size.usual_pmd_order());
    let mut sampled = Sampled::new(Options { grain: Bytes(region.0), ..options });
    for (address, stands_for) in regions {
        let answer = perf_data::Answer::Walked;
        sampled.text_sample("", &Sight { pid: 0, address, answer, stands_for, node: None });
    }
    let mut profile = sampled.finish(ProfileSource::PerfData, &About::default());
    profile.notes.push("counts are known by region of a huge page, not by base page".to_owned());
    Ok(profile)
}
