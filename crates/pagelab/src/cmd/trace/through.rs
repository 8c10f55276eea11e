//! Whose buffers events come through: an instance of ftrace's, or rings of perf events where there is none.

use pagelab_host::guard::{Fate, Guard, Options as GuardOptions, Site, Watched};
use pagelab_host::reader::Reader;
use pagelab_host::tracepoints::{AllocatorFields, Options, Possible, Source, Tracepoints, sets};
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};

use crate::cmd::{unread, usage};
use crate::exit::Failure;
use crate::out;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// ftrace where it can be had, else perf
    Auto,
    /// An instance of ftrace: it costs the traced programs less
    Ftrace,
    /// Rings of perf events: nothing is made on the machine
    Perf,
}

/// Tracepoints that are open and record nothing yet.
pub struct Opened {
    /// What takes the trace instance away. It must end after the tracepoints.
    pub guard: Option<Guard>,
    pub source: Source,
    pub fields: AllocatorFields,
}

type Found = (Option<Guard>, Source, Vec<Absence>);

/// Opens the allocator's tracepoints the way that was asked for.
pub fn open(reader: &Reader<'_>, way: Way, ring: Bytes) -> Result<Opened, Failure> {
    let (guard, source, absent) = match way {
        Way::Perf => perf(reader, ring).map_err(refused)?,
        Way::Ftrace => ftrace(reader, ring).map_err(|absence| refused(or_perf(absence)))?,
        Way::Auto => match ftrace(reader, ring) {
            Ok(found) => found,
            Err(absence) => {
                let found = perf(reader, ring).map_err(refused)?;
                let (source, reason) = (&absence.source, absence.reason());
                out::complain(&format!(
                    "pagelab: through perf, which costs the traced programs more: {source}: {reason}"
                ));
                found
            }
        },
    };
    let fields = AllocatorFields::new(source.kinds()).map_err(refused)?;
    for needed in [("kmem", "mm_page_alloc"), ("kmem", "mm_page_free")] {
        if source.kind(needed.0, needed.1).is_none() {
            let absence = absent.into_iter().find(|absence| absence.source.contains(needed.1));
            return Err(absence.map_or_else(|| usage("no tracepoint of the allocator"), refused));
        }
    }
    for absence in &absent {
        out::complain(&format!("pagelab: not in the trace: {}: {}", absence.source, absence.reason()));
    }
    Ok(Opened { guard, source, fields })
}

fn perf(reader: &Reader<'_>, ring: Bytes) -> Reading<Found> {
    let options = Options { ring_bytes: ring, own_threads_later: true, ..Options::default() };
    let (tracepoints, absent) = Tracepoints::open(reader, &sets::ALLOCATOR, &options)?;
    Ok((None, Source::Perf(Box::new(tracepoints)), absent))
}

fn ftrace(reader: &Reader<'_>, ring: Bytes) -> Reading<Found> {
    let possible = Possible::look(reader)?;
    let failed = |error: pagelab_host::guard::GuardError| {
        Absence::new("a trace instance", AbsentWhy::Failed, error.to_string())
    };
    let site = Site::live().map_err(failed)?;
    // The recording watches signals, and ends before it: its files must be closed first.
    let guard = Guard::begin(&site, Watched::left_to_restore(), GuardOptions::default()).map_err(failed)?;
    let instance = guard.trace_instance().map_err(failed)?;
    for report in guard.left_behind() {
        for outcome in report.outcomes {
            let (what, path) = (&outcome.what, &outcome.path);
            let owner = report.owner.name();
            out::complain(&format!("pagelab: removed what {owner} had left: {what} {path}"));
        }
    }
    let (ftrace, absent) = possible.open(&instance, &sets::ALLOCATOR, ring)?;
    Ok((Some(guard), Source::Ftrace(Box::new(ftrace)), absent))
}

fn or_perf(absence: Absence) -> Absence {
    let way_out = absence.way_out.as_ref().map(|way| format!("{way}; or ")).unwrap_or_default();
    absence.or(format!("{way_out}--through perf, which makes nothing on the machine"))
}

/// Takes the trace instance away, and complains if it stays.
pub fn close(guard: Option<Guard>) {
    let Some(guard) = guard else { return };
    for outcome in guard.finish().iter().filter(|outcome| outcome.fate == Fate::Failed) {
        let (what, path, detail) = (&outcome.what, &outcome.path, &outcome.detail);
        out::complain(&format!("pagelab: the {what} {path} is still there: {detail}"));
    }
}

/// Why there can be no trace here.
fn refused(absence: Absence) -> Failure {
    let failure = unread(absence);
    Failure::new(failure.exit(), format!("cannot trace the page allocator: {failure}"))
}
