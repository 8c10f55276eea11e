//! `checkup --probe`: ask for huge pages and measure what they buy, inside a budget of memory and time.
//!
//! All memory is this process's own and is given back. The thread is kept on one CPU, and the process offers
//! itself first to the out-of-memory killer while it holds the memory.

mod access;
mod budget;
mod huge;
mod turns;

use pagelab_contig::oom::OfferedFirst;
use pagelab_contig::readback::ReadBack;
use pagelab_model::probe::{AccessPair, ProbeResults};
use pagelab_model::run::{StreamHead, Unit};
use pagelab_model::{Absence, AbsentWhy, Bytes, PageSize, Reading};
use pagelab_sys::clock;
use pagelab_sys::thp_disable::{self, ThpDisable};

pub use turns::Span;

/// What to measure, and how much it may cost.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Seed of the random order of reads.
    pub seed: u64,
    /// Huge pages to ask for one by one.
    pub huge_pages: u64,
    /// Largest buffer; two of them, one with base and one with huge pages, are held at once.
    pub region_max: Bytes,
    /// Repeats of each measurement, base and huge pages in turn.
    pub repeats: u32,
    /// Wall time for all of it, in nanoseconds. What does not fit is left out and named in the notes.
    pub time_ns: u64,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            seed: 1,
            huge_pages: 64,
            region_max: Bytes(1 << 30),
            repeats: 6,
            time_ns: 7_000_000_000,
        }
    }
}

/// What the probe must know of the machine before it takes memory.
#[derive(Clone, Debug)]
pub struct ProbeFacts {
    /// Base page size.
    pub page_size: PageSize,
    /// Size of a huge page at PMD level (`hpage_pmd_size`), or why there is none.
    pub pmd_size: Reading<Bytes>,
    /// MemTotal.
    pub total: Bytes,
    /// MemFree.
    pub free: Bytes,
    /// MemAvailable (3.14 and later).
    pub available: Option<Bytes>,
    /// Sum of the high watermarks of all zones.
    pub high_watermarks: Option<Bytes>,
    /// The smallest memory limit of the control groups, and what they let be charged yet, if that is known.
    pub cgroup: Option<(Bytes, Option<Bytes>)>,
    /// The mode of transparent huge pages: `always`, `madvise`, `never`.
    pub thp_mode: Option<String>,
    /// Whether this is a virtual machine.
    pub virtual_machine: Option<bool>,
}

/// Takes the raw samples of a probe, each measurement's when it is over.
pub trait Samples {
    /// Samples of one stream: nanoseconds since boot, and value.
    fn take(&self, head: &StreamHead, samples: &[(u64, f64)]);
}

/// A stream of times in nanoseconds.
fn stream(name: &str, labels: &[(&str, &str)]) -> StreamHead {
    let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    StreamHead { name: name.to_owned(), unit: Unit::NANOSECONDS.into(), labels }
}

/// The state that the parts of a probe share.
struct Run<'a> {
    options: &'a ProbeOptions,
    samples: &'a dyn Samples,
    page_size: PageSize,
    /// Size of a huge page, or why none can be had by this process.
    huge_size: Reading<Bytes>,
    readback: ReadBack,
    /// Monotonic nanoseconds at which the probe should be over.
    deadline_ns: u64,
    notes: Vec<String>,
}

impl Run<'_> {
    /// Wall time that is left.
    fn left_ns(&self) -> u64 {
        self.deadline_ns.saturating_sub(clock::monotonic_ns())
    }
}

/// How many times a probe asks for MADV_COLLAPSE at most, which cannot be undone: for the huge pages one by
/// one, and for those of the small and of the large buffer that faults did not give. 0: not at all.
pub fn collapses_at_most(options: &ProbeOptions, facts: &ProbeFacts) -> u64 {
    match (budget::budget(options, facts).too_little(), huge_size(facts)) {
        (None, Ok(size)) => options.huge_pages.saturating_add(2 * (options.region_max.0 / size.0.max(1))),
        (Some(_), _) | (_, Err(_)) => 0,
    }
}

/// Size of a huge page, or why none can be had by this process.
fn huge_size(facts: &ProbeFacts) -> Reading<Bytes> {
    facts.pmd_size.clone().and_then(allowed_by_prctl)
}

/// Asks for huge pages, measures access times, and gives everything back.
pub fn probe(options: &ProbeOptions, facts: &ProbeFacts, samples: &dyn Samples) -> ProbeResults {
    let started_ns = clock::monotonic_ns();
    let budget = budget::budget(options, facts);
    let mut run = Run {
        options,
        samples,
        page_size: facts.page_size,
        huge_size: huge_size(facts),
        readback: ReadBack::open(),
        deadline_ns: started_ns.saturating_add(options.time_ns),
        notes: Vec::new(),
    };
    let offered = OfferedFirst::new();
    if let Err(absence) = &offered {
        run.notes.push(format!("the probe could not offer itself to the OOM killer: {}", absence.reason()));
    }
    let (huge, access) = match budget.too_little() {
        Some(absence) => (Err(absence.clone()), Err(absence)),
        None => {
            let huge = huge::ask(&mut run, budget.amount);
            (huge, access::measure(&mut run, budget.amount))
        }
    };
    if facts.virtual_machine == Some(true) && access.is_ok() {
        run.notes.push(
            "this is a virtual machine: whether its host backs the memory by huge pages is unknown from \
             here, \
             and the walk through the host's tables is part of these times"
                .to_owned(),
        );
    }
    if facts.thp_mode.as_deref() == Some("never") && huge.as_ref().is_ok_and(|huge| huge.came > 0) {
        run.notes.push(
            "THP is set to never; MADV_COLLAPSE gives huge pages all the same, page faults do not".to_owned(),
        );
    }
    ProbeResults { budget: budget.amount, budget_bound: budget.bound, huge, access, notes: run.notes }
}

/// Access times with base and with huge pages of each of these spans, in turns for the whole of the time; the
/// largest that may be taken decides what memory is.
pub fn pairs(
    options: &ProbeOptions,
    facts: &ProbeFacts,
    samples: &dyn Samples,
    spans: &[Span],
) -> Reading<Vec<(Span, AccessPair)>> {
    let budget = budget::budget(options, facts);
    if let Some(absence) = budget.too_little() {
        return Err(absence);
    }
    let mut run = Run {
        options,
        samples,
        page_size: facts.page_size,
        huge_size: huge_size(facts),
        readback: ReadBack::open(),
        deadline_ns: clock::monotonic_ns().saturating_add(options.time_ns),
        notes: Vec::new(),
    };
    let _offered = OfferedFirst::new();
    turns::pairs(&mut run, budget.amount, spans)
}

/// A parent may have switched huge pages off for this process; then COLLAPSE answers EINVAL, and the probe
/// says why.
fn allowed_by_prctl(size: Bytes) -> Reading<Bytes> {
    match thp_disable::get() {
        ThpDisable::Off | ThpDisable::ExceptAdvised => Ok(size),
        ThpDisable::All => {
            let why = "switched off for this process by PR_SET_THP_DISABLE, which a parent handed down";
            Err(Absence::new("huge pages", AbsentWhy::NotPermitted, why)
                .or("start pagelab from another parent"))
        }
    }
}

#[cfg(test)]
mod tests;
