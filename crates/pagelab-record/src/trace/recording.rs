//! Recording of an allocator trace from its plan to its run file, its summary and its exit code.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Exit, Failure, FailureKind, absence_failure};
use pagelab_command::{manifest, output};
use pagelab_host::alloc_trace;
use pagelab_host::census::run_scan::RunScan;
use pagelab_host::guard::Guard;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::alloc_trace::{TraceBackend, TraceSummary};
use pagelab_model::run::RunEnd;
use pagelab_model::{Bytes, Reading};
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{TextStyle, format_bytes, format_count, format_percent, format_three_digits};
use pagelab_report::text_report::TextReport;
use pagelab_runfile::Error;
use pagelab_sys::{clock, spawn};

use super::backend::{self, BackendChoice};
use super::session::{KIND_NAMES, TraceSession, TraceTotals};
use crate::recording::{EXIT_SIGINT, raise_file_limit, stop_on_signals};
use crate::status::{file_size, update_interval_ns, whole_seconds};
use crate::tick::StopRequest;

/// Longest interval between ring drains, so that stop requests are answered and the status line is updated.
const DRAIN_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Options resolved before the recording starts.
#[derive(Clone, Debug)]
pub struct TracePlan {
    /// The new run file.
    pub output: NewRunFile,
    /// Duration after the snapshot.
    pub for_ns: Option<u64>,
    /// Interval of buddyinfo samples.
    pub every_ns: u64,
    /// Whether page states are read at the start.
    pub has_snapshot: bool,
    /// Source of the events.
    pub backend: BackendChoice,
    /// Buffer size per processor.
    pub ring: Bytes,
    /// The trace ends when this command exits; empty if there is none.
    pub command: Vec<OsString>,
}

/// Reason for the end of a recording.
enum TraceEndReason {
    TimeOver,
    Signal(i32),
    CommandExited(ExitStatus),
    FileFailed(Error),
}

/// Records until the time is over, the command exits, or a signal arrives.
pub fn run(plan: &TracePlan) -> Result<u8, Failure> {
    raise_file_limit();
    let root = Root::live();
    let reader = Reader::new(&root);
    let snapshot = manifest::read_this_machine(&root);
    let stop = StopRequest::new()
        .map_err(|errno| Failure::cannot(FailureKind::NotAvailable, "wait for signals", errno))?;
    // A trace instance may be created from here on, and must not outlive a signal.
    stop_on_signals(&plan.output.path, &stop);
    let (guard, mut source, fields) = backend::open_tracepoints(&reader, plan.backend, plan.ring)?;
    let page_size = snapshot.machine.page_size;
    let seconds = clock::realtime_ns() / 1_000_000_000;
    let (mut head, zoneinfo) =
        alloc_trace::read_trace_head(&reader, page_size, seconds).map_err(absence_failure)?;
    head.backend = source.mechanism();
    let orders = usize::from(head.max_order) + 1;
    let scan = match plan.has_snapshot {
        false => None,
        true => Some(RunScan::new(&reader, &zoneinfo, page_size, orders).map_err(absence_failure)?),
    };
    let started = manifest::current_moment();
    let manifest = manifest::build_for_process("trace", None, started, &snapshot);
    let mut writer = plan.output.create(&manifest)?;
    writer.add_trace_header(&head)?;
    // From here on no thread is started: the existing threads are excluded.
    let is_filtered = source.leave_out_threads(&reader).map_err(absence_failure)?;
    let session = TraceSession::begin(&reader, source, fields, is_filtered, writer, started.boottime_ns);
    let session = session?;
    let (backend, snapshot_ns) = (head.backend, (0, 0));
    let mut recording =
        TraceRecording { plan, stop, status_shown_ns: 0, snapshot_ns, session, backend, guard };
    let ended = recording.record_until_end(scan)?;
    recording.finish_recording(ended)
}

struct TraceRecording<'a> {
    plan: &'a TracePlan,
    stop: StopRequest,
    status_shown_ns: u64,
    /// Times at which tracing was enabled and at which the state of memory had been read.
    snapshot_ns: (u64, u64),
    session: TraceSession<'a>,
    backend: TraceBackend,
    /// Ends last, after every file of the trace instance is closed.
    guard: Option<Guard>,
}

impl TraceRecording<'_> {
    fn record_until_end(&mut self, scan: Option<RunScan>) -> Result<TraceEndReason, Failure> {
        let began_ns = self.session.now_ns();
        self.session
            .enable_tracepoints(self.plan.every_ns)
            .map_err(|error| Failure::cannot(FailureKind::NotAvailable, "start tracing", error))?;
        if let Some(scan) = scan {
            match self.write_snapshot(scan) {
                Err(error) => return Ok(TraceEndReason::FileFailed(error)),
                Ok(Err(absence)) => {
                    let (source, reason) = (&absence.source, absence.reason());
                    output::warn(&format!(
                        "warning: the trace has no snapshot of memory: {source}: {reason}"
                    ));
                }
                Ok(Ok(())) => {}
            }
            self.snapshot_ns = (began_ns, self.session.now_ns());
        }
        let mut child = self.start_command()?;
        let until_ns = self.plan.for_ns.map(|for_ns| self.session.now_ns().saturating_add(for_ns));
        loop {
            let left_ns =
                until_ns.map_or(u64::MAX, |until_ns| until_ns.saturating_sub(self.session.now_ns()));
            let patience = DRAIN_INTERVAL_MAX.min(Duration::from_nanos(left_ns));
            if let Err(error) = self.session.drain_or_wait(patience) {
                return Ok(TraceEndReason::FileFailed(error));
            }
            if let Some(code) = self.stop.exit_code() {
                return Ok(TraceEndReason::Signal(code));
            }
            if until_ns.is_some_and(|until_ns| self.session.now_ns() >= until_ns) {
                return Ok(TraceEndReason::TimeOver);
            }
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Ok(TraceEndReason::CommandExited(status));
            }
            self.show_status("");
        }
    }

    fn write_snapshot(&mut self, scan: RunScan) -> Result<Reading<()>, Error> {
        let stop = self.stop.clone();
        let all = scan.frames_left().max(1);
        self.session.scan_snapshot(scan, |_, left| {
            let share = format_percent(1.0 - left as f64 / all as f64);
            output::show_status_line(&format!("reading page states: {share}"));
            stop.exit_code().is_none()
        })
    }

    fn start_command(&self) -> Result<Option<Child>, Failure> {
        let Some((program, arguments)) = self.plan.command.split_first() else { return Ok(None) };
        let mut command = Command::new(program);
        command.args(arguments);
        spawn::die_with_parent(&mut command);
        command.spawn().map(Some).map_err(|error| {
            let program = program.display();
            Failure::cannot_start(program, &error).hint("give a program in PATH, or its path")
        })
    }

    /// Writes the status line, at most twice a second on a terminal.
    fn show_status(&mut self, suffix: &str) {
        let now_ns = self.session.now_ns();
        if now_ns.saturating_sub(self.status_shown_ns) < update_interval_ns() {
            return;
        }
        self.status_shown_ns = now_ns;
        let totals = &self.session.totals;
        let rate = totals.events() as f64 / (now_ns as f64 / 1e9);
        output::show_status_line(&format!(
            "{}   {} events   {}/s   {:.2} bytes each   {}   {} lost{suffix}",
            whole_seconds(now_ns),
            format_count(totals.events().into()),
            format_rate(rate),
            totals.bytes_per_event(),
            format_bytes(file_size(&self.plan.output.path)),
            format_count(totals.lost_events.into()),
        ));
    }

    /// Closes the file, prints the summary, and determines the exit code.
    fn finish_recording(mut self, ended: TraceEndReason) -> Result<u8, Failure> {
        output::show_status_line("");
        // Without a time and a command, Ctrl-C is the intended end.
        let is_endless = self.plan.for_ns.is_none() && self.plan.command.is_empty();
        let is_intended_end = is_endless && matches!(ended, TraceEndReason::Signal(EXIT_SIGINT));
        let end_text = match &ended {
            TraceEndReason::FileFailed(_) => None,
            _ => Some(self.session.finish()),
        };
        let after_ns = self.session.now_ns();
        let (writer, totals) = self.session.into_parts();
        backend::close_instance(self.guard);
        let (ending, failed) = match (&ended, &end_text) {
            (TraceEndReason::FileFailed(error), _) | (_, Some(Err(error))) => {
                (RunEnd::Stopped { after_ns, reason: error.to_string() }, Some(error.clone()))
            }
            (TraceEndReason::Signal(code), _) if !is_intended_end => {
                (RunEnd::Stopped { after_ns, reason: output::signal_name(*code).to_owned() }, None)
            }
            _ => (RunEnd::Complete { after_ns }, None),
        };
        let closed = writer.close(ending);
        if let Some(error) = failed.or(closed.err()) {
            let failure = Failure::from(error);
            let action = format!("continue the trace after {} events", totals.events());
            return Err(Failure::cannot(failure.kind(), action, failure));
        }
        let end = end_text.and_then(Result::ok).unwrap_or_default();
        let recorded = RecordedTrace {
            path: &self.plan.output.path,
            totals: &totals,
            end: &end,
            backend: self.backend,
            snapshot_ns: self.snapshot_ns,
            elapsed_ns: after_ns,
        };
        output::print(&recorded.summarize(output::stdout_style()))?;
        Ok(match ended {
            TraceEndReason::Signal(code) if !is_intended_end => u8::try_from(code).unwrap_or(Exit::Bug as u8),
            TraceEndReason::CommandExited(status) if !status.success() => {
                output::warn(&format!("note: the command exited with {status}"));
                Exit::Success as u8
            }
            _ => Exit::Success as u8,
        })
    }
}

struct RecordedTrace<'t> {
    path: &'t Path,
    totals: &'t TraceTotals,
    end: &'t TraceSummary,
    backend: TraceBackend,
    /// Times at which tracing was enabled and at which the state of memory had been read.
    snapshot_ns: (u64, u64),
    /// Time of the whole recording.
    elapsed_ns: u64,
}

impl RecordedTrace<'_> {
    fn summarize(&self, style: TextStyle) -> String {
        let RecordedTrace { path, totals, end, backend, snapshot_ns, elapsed_ns } = *self;
        let (scan_start_ns, scan_end_ns) = snapshot_ns;
        let mut output = TextReport::new(style);
        let events = totals.events();
        // From the first event to the last, as in `trace info`.
        let (first_ns, last_ns) = totals.span_ns.unwrap_or((0, elapsed_ns));
        let span_ns = last_ns.saturating_sub(first_ns);
        let per_second = events as f64 / (span_ns as f64 / 1e9).max(1e-9);
        output.add_text(&format!(
            "{}   {}   {} events in {}: {}/s, {:.2} bytes each   {} lost",
            path.display(),
            format_bytes(file_size(path)),
            format_count(events.into()),
            format_duration(span_ns),
            format_rate(per_second),
            totals.bytes_per_event(),
            format_count(totals.lost_events.into()),
        ));
        let snapshot_ns = scan_end_ns.saturating_sub(scan_start_ns);
        if snapshot_ns > 0 {
            let rest = format_duration(elapsed_ns.saturating_sub(scan_end_ns));
            let text = format!("{} for the initial snapshot + {rest}", format_duration(snapshot_ns));
            output.add_text(&text);
        }
        let kinds = totals.kinds.iter().zip(KIND_NAMES).filter(|(times, _)| **times > 0);
        let kinds: Vec<String> =
            kinds.map(|(times, (_, what))| format!("{} {what}", format_count((*times).into()))).collect();
        output.add_facts("  ", &kinds, " · ");
        output.add_text(&format!("backend {}; {}", backend.name(), format_recorder_cost(end, events)));
        if let Some(check) = &end.free_list_check {
            let (agreeing, orders) = check.count_agreeing_orders();
            let (off, free) = check.count_differing_pages();
            output.add_text(&format!(
                "free lists at the start: {agreeing} of {orders} orders above 0 match buddyinfo before \
                     and after; {} of {} free pages differ",
                format_count(off.into()),
                format_count(free.into()),
            ));
        }
        if totals.lost_events > 0 {
            let lost = format_percent(totals.lost_events as f64 / (totals.lost_events + events) as f64);
            output.add_text(&format!(
                "{lost} of all events were lost: the ring buffers were full; hint: use a larger --ring, \
                     or trace less"
            ));
        }
        output.add_text(&format!("→ pagelab trace info {}", path.display()));
        output.into_text()
    }
}

/// Formats events per second.
pub fn format_rate(events_per_s: f64) -> String {
    if events_per_s < 1000.0 {
        format_three_digits(events_per_s)
    } else {
        format_count(events_per_s.round() as u128)
    }
}

/// Minimum of events for a cost per event: with fewer, the CPU time is mainly the recorder's start and
/// wake-ups.
const COSTED_EVENTS_MIN: u64 = 10_000;

/// Formats the CPU cost of recording, without the initial scan: per event if there are enough of them.
pub fn format_recorder_cost(end: &TraceSummary, events: u64) -> String {
    let cpu_ns = end.cpu_ns.saturating_sub(end.scan_cpu_ns);
    if events >= COSTED_EVENTS_MIN {
        return format!("the recorder used {} ns of CPU time per event", cpu_ns / events);
    }
    format!("the recorder used {} of CPU time; too few events for a cost per event", format_duration(cpu_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_trace_has_no_cost_by_event() {
        let end = TraceSummary { cpu_ns: 9_000_000, scan_cpu_ns: 3_000_000, ..TraceSummary::default() };
        let few = format_recorder_cost(&end, 1);
        assert!(few.contains("6 ms of CPU time; too few events"), "{few}");
        assert_eq!(format_recorder_cost(&end, 0), few);
        let many = format_recorder_cost(&end, 30_000);
        assert_eq!(many, "the recorder used 200 ns of CPU time per event");
    }
}
