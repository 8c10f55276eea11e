//! Source of the events: an instance of ftrace, or perf events if ftrace is not available.

use pagelab_host::guard::{Guard, UndoOutcome};
use pagelab_host::reader::Reader;
use pagelab_host::tracepoints::{
    self, AllocatorEventFields, FtraceSupport, TraceSource, TracepointOptions, Tracepoints,
};
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};

use pagelab_command::exit::{Failure, FailureKind, absence_failure};
use pagelab_command::machine_guard::open_unwatched_guard;
use pagelab_command::output;

/// Choice of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// ftrace if available, else perf.
    Auto,
    /// An ftrace instance: less overhead for the traced programs.
    Ftrace,
    /// Perf ring buffers: changes nothing on the machine.
    Perf,
}

type OpenBackend = (Option<Guard>, TraceSource, Vec<Absence>);

/// Opens the allocator's tracepoints through the selected source, with the fields of their events. Nothing
/// is recorded yet. The guard removes the trace instance, and must end after the tracepoints.
pub fn open_tracepoints(
    reader: &Reader<'_>,
    backend: BackendChoice,
    ring: Bytes,
) -> Result<(Option<Guard>, TraceSource, AllocatorEventFields), Failure> {
    let (guard, source, absent) = match backend {
        BackendChoice::Perf => open_perf(reader, ring).map_err(tracing_failure)?,
        BackendChoice::Ftrace => {
            open_ftrace(reader, ring).map_err(|absence| tracing_failure(suggest_perf(absence)))?
        }
        BackendChoice::Auto => match open_ftrace(reader, ring) {
            Ok(found) => found,
            Err(absence) => {
                let found = open_perf(reader, ring).map_err(tracing_failure)?;
                let (source, reason) = (&absence.source, absence.reason());
                output::warn(&format!(
                    "note: falling back to perf, which slows traced programs more: {source}: {reason}"
                ));
                found
            }
        },
    };
    let fields = AllocatorEventFields::new(source.kinds()).map_err(tracing_failure)?;
    for needed in ["mm_page_alloc", "mm_page_free"] {
        if !source.kinds().iter().any(|kind| kind.format.name == needed) {
            let absence = absent.into_iter().find(|absence| absence.source.contains(needed));
            return Err(absence.map_or_else(no_tracepoint, tracing_failure));
        }
    }
    for absence in &absent {
        output::warn(&format!("warning: not in the trace: {}: {}", absence.source, absence.reason()));
    }
    Ok((guard, source, fields))
}

fn open_perf(reader: &Reader<'_>, ring: Bytes) -> Reading<OpenBackend> {
    let options =
        TracepointOptions { ring_bytes: ring, excludes_threads_later: true, ..TracepointOptions::default() };
    let (tracepoints, absent) = Tracepoints::open(reader, &tracepoints::ALLOCATOR, &options)?;
    Ok((None, TraceSource::Perf(Box::new(tracepoints)), absent))
}

fn open_ftrace(reader: &Reader<'_>, ring: Bytes) -> Reading<OpenBackend> {
    let possible = FtraceSupport::probe(reader)?;
    let failed = |error: pagelab_host::guard::GuardError| {
        Absence::new("a trace instance", AbsenceReason::Failed, error.to_string())
    };
    // The recording watches signals and ends before the guard: its files must be closed first.
    let guard = open_unwatched_guard().map_err(failed)?;
    let instance = guard.trace_instance().map_err(failed)?;
    for report in guard.recovered_journals() {
        for outcome in report.outcomes {
            let (what, path) = (&outcome.label, &outcome.path);
            let owner = report.owner.display_name();
            output::warn(&format!("note: removed a leftover of {owner}: {what} {path}"));
        }
    }
    let (ftrace, absent) = possible.open(&instance, &tracepoints::ALLOCATOR, ring)?;
    Ok((Some(guard), TraceSource::Ftrace(Box::new(ftrace)), absent))
}

fn suggest_perf(absence: Absence) -> Absence {
    let hint = absence.hint.as_ref().map(|way| format!("{way}; or ")).unwrap_or_default();
    absence.with_hint(format!("{hint}use --backend perf, which changes no settings of the machine"))
}

/// Removes the trace instance, and warns if it remains.
pub fn close_instance(guard: Option<Guard>) {
    let Some(guard) = guard else { return };
    for outcome in guard.finish().iter().filter(|outcome| outcome.undo == UndoOutcome::Failed) {
        let (what, path, detail) = (&outcome.label, &outcome.path, &outcome.detail);
        output::warn(&format!("warning: cannot remove the {what} {path}: {detail}"));
    }
}

const TRACE_ALLOCATOR: &str = "trace the page allocator";

/// The kernel does not have a tracepoint, and no reason is known.
fn no_tracepoint() -> Failure {
    Failure::cannot(FailureKind::NotAvailable, TRACE_ALLOCATOR, "the kernel has no such tracepoint")
}

/// Converts an absence to the error that tracing is not possible.
fn tracing_failure(absence: Absence) -> Failure {
    let failure = absence_failure(absence);
    Failure::cannot(failure.kind(), TRACE_ALLOCATOR, failure)
}
