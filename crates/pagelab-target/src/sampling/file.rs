//! Profile of a perf file, or of perf's text output.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagelab_formats::perf_data::{self, FileForm, FileInfo, Input};
use pagelab_formats::text::find_bytes;
use pagelab_formats::{ParseError, region_list};
use pagelab_model::failure::describe_io_error;
use pagelab_model::profile::ProfileSource;
use pagelab_model::size::format_bytes;
use pagelab_model::{Bytes, TlbProfile};
use pagelab_model::{Failure, FailureKind};
use zstd::stream::raw::{Decoder, Operation};

use super::tlb_info::{TlbInfo, UnusableReason, classify_by_name, is_spe_memory_event, is_stlb_miss_name};
use super::{SampleCollector, SampledAccess, SamplingOptions};

/// A text, or a file that comes by a pipe, at most.
const STREAM_BYTES_MAX: u64 = 512 << 20;
/// Bytes that identify the form.
const MAGIC_BYTES: usize = 16;

/// Reads the file at this path, or standard input for `-`.
pub fn read_profile(path: &Path, options: SamplingOptions) -> Result<TlbProfile, Failure> {
    if path == Path::new("-") {
        return profile_stream(Box::new(io::stdin()), "standard input", options);
    }
    let name = path.display().to_string();
    let cannot = |error: io::Error| read_error(&name, &error);
    let file = File::open(path).map_err(cannot)?;
    let kind = file.metadata().map_err(cannot)?.file_type();
    if kind.is_dir() {
        return Err(Failure::bad_input(format!(
            "cannot read {name}: expected a file, found a directory (perf record --threads); hint: record \
             without --threads"
        )));
    }
    if !kind.is_file() {
        return profile_stream(Box::new(file), &name, options);
    }
    let mut head = [0; MAGIC_BYTES];
    let count = read_until_full(|bytes, at| file.read_at(bytes, at), &mut head, 0).map_err(cannot)?;
    match perf_data::detect_form(&head[..count]) {
        FileForm::Unknown => profile_text(Box::new(file), &[], &name, options),
        _ => profile_perf_data(&mut SeekableInput(file), &name, options),
    }
}

/// Fills the buffer from all available data, over short reads.
fn read_until_full(
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

struct SeekableInput(File);

impl Input for SeekableInput {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String> {
        if offset > i64::MAX as u64 {
            return Ok(0);
        }
        read_until_full(|bytes, at| self.0.read_at(bytes, at), bytes, offset)
            .map_err(|error| error.to_string())
    }
}

/// A pipe, with the part that was already read.
struct PipeInput<'a> {
    head: &'a [u8],
    rest: Box<dyn Read>,
    position: u64,
}

impl Input for PipeInput<'_> {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String> {
        let from_head = usize::try_from(offset).ok().and_then(|at| self.head.get(at..)).unwrap_or_default();
        let first = from_head.len().min(bytes.len());
        bytes[..first].copy_from_slice(&from_head[..first]);
        let next = offset.saturating_add(first as u64);
        if first < bytes.len() && next != self.position {
            return Err("a pipe cannot seek".to_owned());
        }
        let more = read_until_full(|bytes, _| self.rest.read(bytes), &mut bytes[first..], 0);
        let more = more.map_err(|error| error.to_string())?;
        self.position += more as u64;
        Ok(first + more)
    }
}

fn profile_stream(
    mut stream: Box<dyn Read>,
    name: &str,
    options: SamplingOptions,
) -> Result<TlbProfile, Failure> {
    let mut head = [0; MAGIC_BYTES];
    let count = read_until_full(|bytes, _| stream.read(bytes), &mut head, 0)
        .map_err(|error| read_error(name, &error))?;
    let head = &head[..count];
    match perf_data::detect_form(head) {
        FileForm::Pipe(_) => {
            let mut input = PipeInput { head, rest: stream, position: MAGIC_BYTES as u64 };
            profile_perf_data(&mut input, name, options)
        }
        FileForm::Unknown => profile_text(stream, head, name, options),
        FileForm::File(_) | FileForm::Obsolete => {
            let whole = read_whole_stream(stream, head, name)?;
            profile_perf_data(&mut &whole[..], name, options)
        }
    }
}

/// Part of a pipe that must be read completely.
fn read_whole_stream(stream: Box<dyn Read>, head: &[u8], name: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = head.to_vec();
    let read = stream.take(STREAM_BYTES_MAX).read_to_end(&mut bytes);
    Err(Failure::bad_input(match read {
        Ok(_) if bytes.len() as u64 <= STREAM_BYTES_MAX => return Ok(bytes),
        Ok(_) => format!(
            "cannot read {name}: larger than {}, the limit for text and pipes; hint: pass the perf.data file \
             itself",
            format_bytes(Bytes(STREAM_BYTES_MAX))
        ),
        Err(error) => format!("cannot read {name}: {}; expected a perf.data file", describe_io_error(&error)),
    }))
}

fn read_error(name: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => FailureKind::NotAvailable,
        _ => FailureKind::BadInput,
    };
    Failure::cannot(kind, format_args!("read {name}"), describe_io_error(error))
        .hint("use a file written by perf record")
}

fn parse_error(name: &str, error: &ParseError) -> Failure {
    Failure::bad_input(format!("{}; nothing was profiled", error.message_in_file(name)))
}

fn profile_perf_data(
    input: &mut dyn Input,
    name: &str,
    options: SamplingOptions,
) -> Result<TlbProfile, Failure> {
    let mut decompressor: Option<Decoder<'static>> = None;
    let mut decompress = |packed: &[u8], room: &mut [u8]| {
        let decoder = match &mut decompressor {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new().map_err(|error| error.to_string())?),
        };
        let done = decoder.run_on_buffers(packed, room);
        let done = done.map_err(|error| format!("corrupt record: zstd decompression failed: {error}"))?;
        Ok((done.bytes_read, done.bytes_written))
    };
    let mut collector = SampleCollector::new(options);
    let read = perf_data::read_perf_data(input, &mut decompress, &mut |about, event| {
        collector.add_event(about, event)
    });
    let (file_info, summary) = read.map_err(|error| parse_error(name, &error))?;
    if let Some(why) = collector.explain_unusable() {
        let traces = summary.undecoded.join(", ");
        let events: Vec<&str> = file_info.events.iter().map(|event| event.name.as_str()).take(4).collect();
        let events = events.join(", ");
        return Err(Failure::bad_input(match traces.is_empty() {
            true => format!("cannot profile from {name} (events: {events}): no data on TLB misses: {why}"),
            false => format!(
                "cannot profile from {name}: samples in {traces} traces are not supported ({why}); hint: use \
                 the output of `perf script --itrace=M -F +addr,+data_src`"
            ),
        }));
    }
    let mut profile = collector.finish(ProfileSource::PerfData, &file_info);
    add_file_notes(&mut profile, &file_info, &summary);
    Ok(profile)
}

/// Notes about the file for the reader of a profile.
fn add_file_notes(profile: &mut TlbProfile, file_info: &FileInfo, summary: &perf_data::ReadSummary) {
    let from = |what: &str| if what.is_empty() { "unknown" } else { what }.to_owned();
    profile.notes.push(format!(
        "recorded on {}, Linux {}, {}, by `{}`",
        from(&file_info.hostname),
        from(&file_info.release),
        from(&file_info.processor),
        file_info.command.join(" ")
    ));
    let mut note_count = |count: u64, what: &str| {
        if count > 0 {
            profile.notes.push(format!("{count} {what}"));
        }
    };
    note_count(summary.unknown_samples, "samples belong to no event in the file");
    note_count(summary.late_events, "records were out of order");
    if summary.is_unfinished {
        profile
            .notes
            .push("perf was killed before it finished the file: the last samples may be missing".to_owned());
    }
}

/// A text: of `perf script`, of `perf mem report`, or of regions.
fn profile_text(
    stream: Box<dyn Read>,
    head: &[u8],
    name: &str,
    options: SamplingOptions,
) -> Result<TlbProfile, Failure> {
    let bytes = read_whole_stream(stream, head, name)?;
    let has = |what: &[u8]| find_bytes(&bytes, what).is_some();
    if bytes.iter().take(STREAM_BYTES_MAX as usize).any(|&byte| byte == 0) {
        return Err(Failure::bad_input(format!(
            "cannot read {name}: expected a perf.data file (PERFILE2) or text; hint: use a file written by \
             perf mem record"
        )));
    }
    if bytes.starts_with(b"Region (Hex)") {
        return profile_region_counts(&bytes, name, options);
    }
    let mut collector = SampleCollector::new(options);
    if has(b"|OP ") {
        let script = perf_data::parse_script(&bytes).map_err(|error| parse_error(name, &error))?;
        add_script_samples(&mut collector, &script);
    } else if has(b"# Overhead") {
        let report = perf_data::parse_report(&bytes).map_err(|error| parse_error(name, &error))?;
        add_report_rows(&mut collector, &report);
    } else {
        return Err(Failure::bad_input(format!(
            "cannot profile from {name}: expected perf output with TLB data; hint: use perf script -F \
             +addr,+data_src, perf mem report --stdio, or the perf.data file"
        )));
    }
    match collector.explain_unusable() {
        Some(why) => {
            Err(Failure::bad_input(format!("cannot profile from {name}: no data on TLB misses: {why}")))
        }
        None => Ok(collector.finish(ProfileSource::PerfData, &FileInfo::default())),
    }
}

fn add_script_samples(collector: &mut SampleCollector, script: &perf_data::Script) {
    collector.add_lost(script.lost_records);
    let has_memory_event = script.samples.iter().any(|sample| is_spe_memory_event(&sample.event));
    for sample in &script.samples {
        let outcome = match classify_by_name(&sample.event, false, has_memory_event) {
            TlbInfo::Unusable(why) => {
                collector.add_unusable_text_samples(why, 1);
                continue;
            }
            _ if is_stlb_miss_name(&sample.event) => perf_data::TlbOutcome::PageWalk,
            TlbInfo::DataSource { spe } => sample.tlb.tlb_outcome(spe),
            _ => sample.tlb.tlb_outcome(false),
        };
        let Some(address) = sample.address else {
            collector.add_unusable_text_samples(UnusableReason::NoAddress, 1);
            continue;
        };
        let (pid, weight) = (sample.pid.unwrap_or(0), sample.period.unwrap_or(1));
        collector.add_text_sample(&sample.comm, &SampledAccess { pid, address, outcome, weight, node: None });
    }
}

fn add_report_rows(collector: &mut SampleCollector, report: &perf_data::Report) {
    collector.add_lost(report.lost_samples);
    let is_spe = |event: &String| classify_by_name(event, false, false) != TlbInfo::DataSource { spe: false };
    let spe = report.events.iter().any(is_spe);
    for row in &report.rows {
        let Some(address) = row.address else {
            collector.add_unusable_text_samples(UnusableReason::NoAddress, row.samples);
            continue;
        };
        let (outcome, weight) = (row.tlb.tlb_outcome(spe), row.samples);
        collector.add_text_sample("", &SampledAccess { pid: 0, address, outcome, weight, node: None });
    }
}

/// A list of misses by region: each is a huge page long.
pub fn profile_region_counts(
    bytes: &[u8],
    name: &str,
    options: SamplingOptions,
) -> Result<TlbProfile, Failure> {
    let regions = region_list::parse_counts(bytes).map_err(|error| parse_error(name, &error))?;
    let region = options.page_size.block_bytes(options.page_size.default_pmd_order());
    let mut collector = SampleCollector::new(SamplingOptions { grain: Bytes(region.0), ..options });
    for (address, weight) in regions {
        let outcome = perf_data::TlbOutcome::PageWalk;
        collector.add_text_sample("", &SampledAccess { pid: 0, address, outcome, weight, node: None });
    }
    let mut profile = collector.finish(ProfileSource::PerfData, &FileInfo::default());
    profile.notes.push("counts are per huge-page region, not per base page".to_owned());
    Ok(profile)
}
