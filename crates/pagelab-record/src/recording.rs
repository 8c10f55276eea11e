//! Recording of samples from its plan to its run file, its summary and its exit code.

use std::path::Path;
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_command::{manifest, output};
use pagelab_host::guard::SignalWatch;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::sampler::{Metric, MetricSample, MetricValues, Metrics, Sampler};
use pagelab_metrics::standard_series;
use pagelab_model::order_statistics::median;
use pagelab_model::run::RunEnd;
use pagelab_model::{Absence, Bytes, Snapshot};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{format_bytes, format_count};
use pagelab_sys::clock;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::maps::{self, MapScanner, ScannedMap};
use crate::session::{RecordSession, RecordingEnd};
use crate::status::{RecordSummary, StatusLine};
use crate::tick::{BoottimeAlarm, StopRequest, TickGrid};

/// Time that a signal waits for the file to be closed. A slower disk leaves it unclosed but readable.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The exit code after Ctrl-C.
pub(crate) const EXIT_SIGINT: i32 = 130;

/// Time that a requested end waits for the map that is being scanned.
const LAST_MAP_TIMEOUT: Duration = Duration::from_secs(30);

/// The plan, resolved before anything is created.
pub struct RecordPlan {
    /// The new run file.
    pub output: NewRunFile,
    /// Root of the files.
    pub root: Root,
    /// Sampling interval.
    pub every_ns: u64,
    /// Duration; `None`: until a signal.
    pub for_ns: Option<u64>,
    /// Metrics.
    pub metrics: Metrics,
    /// Interval of maps of physical memory, if they are recorded.
    pub maps_every: Option<Duration>,
    /// The machine and its settings.
    pub snapshot: Snapshot,
}

/// Records until the time is over or a signal arrives, and returns the exit code. A dry run only measures
/// the cost.
pub fn run_plan(plan: &RecordPlan, is_dry_run: bool, json: bool) -> Result<u8, Failure> {
    raise_file_limit();
    let sampler = Sampler::open(&plan.root, &plan.metrics);
    let text = |(metric, absence): &(Metric, Absence)| not_recorded_text(metric.name(), absence);
    let absent: Vec<String> = sampler.absences().iter().map(text).collect();
    for text in &absent {
        output::warn(&format!("warning: {text}"));
    }
    if let Some(absence) = plan.maps_every.and_then(|_| maps::absence(&plan.root)) {
        output::warn(&format!("warning: {}", not_recorded_text("maps", &absence)));
    }
    if sampler.is_empty() {
        let reason = "none of them is available on this machine";
        return Err(Failure::cannot(FailureKind::NotAvailable, "record these metrics", reason)
            .hint("choose other --metrics"));
    }
    if is_dry_run {
        return print_dry_run(plan, json);
    }
    record_samples(plan, sampler, absent, json)
}

/// Raises the limit of open files to the hard limit. Tracepoints need a dozen descriptors on each CPU, and
/// huge pages by size one for each counter: on a large machine that exceeds the usual soft limit.
pub(crate) fn raise_file_limit() {
    let now = getrlimit(Resource::Nofile);
    // If it cannot be raised, the metric without descriptors reports it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

fn not_recorded_text(what: &str, absence: &Absence) -> String {
    let verb = if what == "maps" { "are" } else { "is" };
    format!("{what} {verb} not recorded: {absence}")
}

fn record_samples(
    plan: &RecordPlan,
    sampler: Sampler,
    absent: Vec<String>,
    json: bool,
) -> Result<u8, Failure> {
    let system = |errno: Errno| Failure::cannot(FailureKind::NotAvailable, "create a timer", errno);
    let stop = StopRequest::new().map_err(system)?;
    let alarm = BoottimeAlarm::new(stop.clone()).map_err(system)?;
    let mut status = StatusLine::new(&Reader::new(&plan.root), plan.snapshot.pmd_order, plan.for_ns);
    let started = manifest::current_moment();
    let manifest = manifest::build_for_process("record", None, started, &plan.snapshot);
    let writer = plan.output.create(&manifest)?;
    stop_on_signals(&plan.output.path, &stop);
    let first_ns = clock::boottime_ns().saturating_sub(started.boottime_ns);
    let grid =
        TickGrid { start_ns: started.boottime_ns, first_tick_offset_ns: first_ns, every_ns: plan.every_ns };
    let (path, page_size) = (plan.output.path.clone(), plan.snapshot.machine.page_size);
    let mut session = RecordSession::new(&plan.root, path, writer, sampler, grid, page_size);
    if let Some(every) = plan.maps_every {
        let maps = MapScanner::start(plan.root.clone(), grid.start_ns, every)
            .map_err(|error| Failure::cannot(FailureKind::NotAvailable, "start a thread for maps", error))?;
        session.maps = Some(maps);
    }
    for text in absent {
        session.record_event(0, "absent", text)?;
    }
    let ended = session.run(&alarm, plan.for_ns, &mut |session| status.show(session));
    status.clear();
    let patience = match &ended {
        Ok(RecordingEnd::TimeOver) => LAST_MAP_TIMEOUT,
        Ok(RecordingEnd::Signal(_)) => CLOSE_TIMEOUT / 2,
        _ => Duration::ZERO,
    };
    if let Err(error) = session.write_last_map(patience) {
        return finish_recording(plan, session, RecordingEnd::FileFailed(error), json);
    }
    finish_recording(plan, session, ended?, json)
}

/// Stops the recording on a signal; the process ends a little later in any case.
pub(crate) fn stop_on_signals(path: &Path, stop: &StopRequest) {
    let (stop, file) = (stop.clone(), path.display().to_string());
    let watched = SignalWatch::install(Box::new(move |code, outcomes| {
        stop.request(code);
        std::thread::sleep(CLOSE_TIMEOUT);
        let kept = format!("cannot close {file} in time; it is readable up to the last commit");
        output::exit_after_signal(code, &kept, outcomes)
    }));
    if let Err(error) = watched {
        output::warn(&format!("warning: a signal will leave {} open: {error}", path.display()));
    }
}

/// Closes the file, prints the summary and returns the exit code.
fn finish_recording(
    plan: &RecordPlan,
    session: RecordSession,
    ended: RecordingEnd,
    json: bool,
) -> Result<u8, Failure> {
    let after_ns = clock::boottime_ns().saturating_sub(session.grid.start_ns);
    let (ending, said) = match (&ended, plan.for_ns) {
        (RecordingEnd::TimeOver, _) | (RecordingEnd::Signal(_), None) => {
            (RunEnd::Complete { after_ns }, "complete")
        }
        (RecordingEnd::Signal(code), Some(_)) => {
            let why = output::signal_name(*code);
            (RunEnd::Stopped { after_ns, reason: why.to_owned() }, why)
        }
        (RecordingEnd::FileFailed(error), _) => {
            let why = "writing to the file failed";
            (RunEnd::Stopped { after_ns, reason: error.to_string() }, why)
        }
    };
    let (closed, totals) = session.close(ending);
    let summary = RecordSummary {
        path: &plan.output.path,
        every_ns: plan.every_ns,
        elapsed_ns: after_ns,
        totals: &totals,
        ending: said,
    };
    let (failed, code) = match ended {
        RecordingEnd::FileFailed(error) => (Some(error), Exit::Partial as u8),
        // Without --for this is the documented end.
        RecordingEnd::Signal(EXIT_SIGINT) if plan.for_ns.is_none() => (closed.err(), Exit::Success as u8),
        RecordingEnd::Signal(code) => (closed.err(), u8::try_from(code).unwrap_or(Exit::Bug as u8)),
        RecordingEnd::TimeOver => (closed.err(), Exit::Success as u8),
    };
    if let Some(error) = failed {
        let failure = Failure::from(error);
        let action = format!("continue the recording after {} samples", totals.samples);
        return Err(Failure::cannot(failure.kind(), action, failure));
    }
    summary.print(json)?;
    Ok(code)
}

/// Samples, of which the median cost is reported, and the pause before each.
const SAMPLES: usize = 11;
const SAMPLE_PAUSE: Duration = Duration::from_millis(50);
/// Assumed length of a recording without an end.
const REFERENCE_SPAN_NS: u64 = 86_400_000_000_000;

struct MetricCost {
    name: &'static str,
    columns: usize,
    /// Time between reads.
    every_ns: u64,
    cpu_ns: u64,
    /// Bytes of one row in the file if only what changed just now changes, and if everything that is not zero
    /// changes.
    bytes_low: u64,
    bytes_high: u64,
}

/// Measures and prints; creates nothing.
fn print_dry_run(plan: &RecordPlan, as_json: bool) -> Result<u8, Failure> {
    let path = plan.output.path.display();
    plan.output.check()?;
    let shares: Vec<MetricCost> = plan.metrics.iter().map(|metric| measure_metric(plan, metric)).collect();
    let for_ns = plan.for_ns.unwrap_or(REFERENCE_SPAN_NS);
    let ticks = for_ns / plan.every_ns + 1;
    // In addition to the rows: the manifest, names, and unused space in pages of the file.
    let whole = |of: fn(&MetricCost) -> u64| {
        let rows =
            |share: &MetricCost| (for_ns / share.every_ns + 1).saturating_mul(of(share) + of(share) / 20);
        Bytes(shares.iter().map(rows).fold(128 << 10, u64::saturating_add))
    };
    let (low, high) = (whole(|share| share.bytes_low), whole(|share| share.bytes_high));
    // On average: a metric that is read less often costs less.
    let mean = |share: &MetricCost| {
        u128::from(share.cpu_ns) * u128::from(plan.every_ns) / u128::from(share.every_ns)
    };
    let cpu_ns = u64::try_from(shares.iter().map(mean).sum::<u128>()).unwrap_or(u64::MAX);
    let map = plan.maps_every.map(|every| {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        (every_ns, ScannedMap::scan_once(&plan.root))
    });
    let mut out = output::stdout();
    if as_json {
        let metrics: Vec<_> = shares
            .iter()
            .map(|share| {
                let MetricCost { name, columns, every_ns, cpu_ns, .. } = share;
                json!({"name": name, "columns": columns, "every_ns": every_ns, "read_cpu_ns": cpu_ns})
            })
            .collect();
        let value = json!({
            "pagelab_json": CONTRACT_VERSION, "kind": "record_plan", "path": path.to_string(),
            "every_ns": plan.every_ns, "for_ns": plan.for_ns, "ticks": ticks, "metrics": metrics,
            "sample_cpu_ns": cpu_ns, "bytes_low": low.0, "bytes_high": high.0, "bytes_for_ns": for_ns,
            "maps": map.as_ref().map(|(every_ns, map)| map_cost_json(*every_ns, map.as_ref().ok())),
        });
        writeln!(out, "{value:#}")?;
    } else {
        let length = match plan.for_ns {
            Some(for_ns) => format!("for {}", format_duration(for_ns)),
            None => "until Ctrl-C".to_owned(),
        };
        writeln!(out, "would record into {path}, every {}, {length}", format_duration(plan.every_ns))?;
        writeln!(out, "  {:<13} {:>7}  {:>10}  CPU per read", "metric", "columns", "read every")?;
        for share in &shares {
            let cost =
                if share.columns > 0 { format_duration(share.cpu_ns) } else { "not available".to_owned() };
            let (columns, every) = (format_count(share.columns as u128), format_duration(share.every_ns));
            writeln!(out, "  {:<13} {columns:>7}  {every:>10}  {cost}", share.name)?;
        }
        let per_day = if plan.for_ns.is_some() { "" } else { " a day" };
        writeln!(
            out,
            "a sample takes {} of CPU time on average; {} ticks{per_day} need ~{}\n\
             at the present rate of change, or ~{} if every value changes",
            format_duration(cpu_ns),
            format_count(ticks.into()),
            format_bytes(low),
            format_bytes(high),
        )?;
        if let Some((every_ns, map)) = &map {
            writeln!(out, "{}", map_cost_text(*every_ns, map))?;
        }
    }
    out.flush()?;
    Ok(Exit::Success as u8)
}

fn map_cost_json(every_ns: u64, map: Option<&ScannedMap>) -> serde_json::Value {
    json!({
        "every_ns": every_ns,
        "scan_wall_ns": map.map(|map| map.scan_ns),
        "encode_cpu_ns": map.map(|map| map.encode_ns),
        "key_bytes": map.map(ScannedMap::bytes),
    })
}

/// Cost of maps in addition to the samples.
fn map_cost_text(every_ns: u64, map: &Result<ScannedMap, String>) -> String {
    let interval = format_duration(every_ns);
    match map {
        Ok(map) => format!(
            "and a map every {interval}: {} to scan, {} of CPU time to encode, {} now,\n\
             less for a delta from the previous map",
            format_duration(map.scan_ns),
            format_duration(map.encode_ns),
            format_bytes(Bytes(map.bytes())),
        ),
        Err(problem) => format!("and no map every {interval}: {problem}"),
    }
}

fn measure_metric(plan: &RecordPlan, metric: &Metric) -> MetricCost {
    let mut sampler = Sampler::open(&plan.root, &Metrics::from(vec![metric.clone()]));
    let (mut costs, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for sample in 0..SAMPLES {
        std::thread::sleep(SAMPLE_PAUSE);
        let before_ns = clock::thread_cpu_ns();
        // A metric with its own interval is read once; its cost is that of one read.
        sampler.sample(sample as u64);
        let row = last_row(&sampler);
        if !row.is_empty() {
            costs.push(clock::thread_cpu_ns().saturating_sub(before_ns));
            if first.is_empty() {
                first.clone_from(&row);
            }
            last = row;
        }
    }
    let cpu_ns = median(&mut costs).unwrap_or(0);
    // One byte for each column holds the length of its value; 12 for the row, its time and its length.
    let base = last.len() as u64 + 12;
    let low = last.iter().zip(&first).filter(|(now, then)| now != then).map(|(now, _)| stored_bytes(*now));
    let high = last.iter().map(|value| stored_bytes(*value));
    let (bytes_low, bytes_high) = (base + low.sum::<u64>(), base + high.sum::<u64>());
    let of_row = |bytes: u64| if last.is_empty() { 0 } else { bytes };
    MetricCost {
        name: metric.name(),
        columns: last.len(),
        every_ns: plan.every_ns.max(metric.interval_ns()),
        cpu_ns,
        bytes_low: of_row(bytes_low),
        bytes_high: of_row(bytes_high),
    }
}

/// Bytes of an integer in an SQLite record (<https://www.sqlite.org/fileformat2.html>, section 2.1).
fn stored_bytes(value: Option<i64>) -> u64 {
    match value {
        None | Some(0 | 1) => 0,
        Some(value) => match 65 - value.unsigned_abs().leading_zeros() {
            0..=8 => 1,
            9..=16 => 2,
            17..=24 => 3,
            25..=32 => 4,
            33..=48 => 6,
            _ => 8,
        },
    }
}

/// Returns all values that were read at the last sample.
fn last_row(sampler: &Sampler) -> Vec<Option<i64>> {
    let mut row = Vec::new();
    for MetricSample { values, .. } in sampler.metric_samples() {
        match values {
            MetricValues::Meminfo(Ok(meminfo)) => standard_series::push_meminfo_row(meminfo, &mut row),
            MetricValues::Vmstat(Ok(vmstat)) => standard_series::push_vmstat_row(vmstat, &mut row),
            MetricValues::Buddyinfo(Ok(buddyinfo)) => {
                standard_series::push_buddyinfo_row(buddyinfo, &mut row)
            }
            MetricValues::Pressure(resources) => {
                let known = resources.iter().filter_map(|(_, now)| now.ok());
                known.for_each(|pressure| standard_series::push_pressure_row(pressure, &mut row));
            }
            MetricValues::Tables(tables) => {
                row.extend(tables.iter().filter(|table| table.is_fresh).flat_map(|table| table.row.clone()));
            }
            MetricValues::Meminfo(Err(_))
            | MetricValues::Vmstat(Err(_))
            | MetricValues::Buddyinfo(Err(_)) => {}
        }
    }
    row
}
