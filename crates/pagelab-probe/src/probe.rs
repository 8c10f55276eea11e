//! `checkup --probe`: huge-page requests and access times, within a budget of memory and time.
//!
//! All memory belongs to this process and is freed. The thread is pinned to one CPU, and while the process
//! holds the memory, the OOM killer prefers it.

use pagelab_contig::oom::OomScoreGuard;
use pagelab_contig::readback::HugeReadback;
use pagelab_model::probe::{AccessPair, HugePageProbe, ProbeResults};
use pagelab_model::run::{StreamHeader, Unit};
use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes, PageSize, Reading};
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::thp_disable::ThpDisable;
use pagelab_sys::{clock, thp_disable};

pub use interleaved_reads::ReadSpan;

mod access;
mod interleaved_reads;
mod memory_budget;

/// Measurements and their budget.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Seed of the random order of reads.
    pub seed: u64,
    /// Huge pages to request one by one.
    pub huge_pages: u64,
    /// Size of the largest buffer; two of them, with base and with huge pages, are held at once.
    pub region_max: Bytes,
    /// Repeats of each measurement, with base and huge pages interleaved.
    pub repeats: u32,
    /// Total wall time, in nanoseconds. Measurements that do not fit are omitted and listed in the notes.
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

/// Facts of the machine that are needed before memory is taken.
#[derive(Clone, Debug)]
pub struct ProbeFacts {
    /// Base page size.
    pub page_size: PageSize,
    /// Size of a huge page at PMD level (`hpage_pmd_size`), or why there are none.
    pub pmd_size: Reading<Bytes>,
    /// MemTotal.
    pub total: Bytes,
    /// MemFree.
    pub free: Bytes,
    /// MemAvailable (3.14 and later).
    pub available: Option<Bytes>,
    /// Sum of the high watermarks of all zones.
    pub high_watermarks: Option<Bytes>,
    /// The smallest memory limit of the control groups, and their remaining room, if known.
    pub cgroup: Option<(Bytes, Option<Bytes>)>,
    /// The mode of transparent huge pages: `always`, `madvise`, `never`.
    pub thp_mode: Option<String>,
    /// Whether this is a virtual machine.
    pub virtual_machine: Option<bool>,
}

/// Receiver of the raw samples of each measurement at its end: nanoseconds since boot, and value.
pub type SampleSink<'a> = &'a dyn Fn(&StreamHeader, &[(u64, f64)]);

/// Header of a stream of times in nanoseconds.
fn time_stream(name: &str, labels: &[(&str, &str)]) -> StreamHeader {
    let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    StreamHeader { name: name.to_owned(), unit: Unit::NANOSECONDS.into(), labels }
}

/// State that the parts of a probe share.
struct ProbeState<'a> {
    options: &'a ProbeOptions,
    samples: SampleSink<'a>,
    page_size: PageSize,
    /// Size of a huge page, or why this process cannot have any.
    pmd_size: Reading<Bytes>,
    readback: HugeReadback,
    /// Monotonic nanoseconds at which the probe should end.
    deadline_ns: u64,
    notes: Vec<String>,
}

impl<'a> ProbeState<'a> {
    fn new(
        options: &'a ProbeOptions,
        facts: &ProbeFacts,
        samples: SampleSink<'a>,
        started_ns: u64,
    ) -> ProbeState<'a> {
        ProbeState {
            options,
            samples,
            page_size: facts.page_size,
            pmd_size: pmd_size(facts),
            readback: HugeReadback::open(),
            deadline_ns: started_ns.saturating_add(options.time_ns),
            notes: Vec::new(),
        }
    }

    fn remaining_ns(&self) -> u64 {
        self.deadline_ns.saturating_sub(clock::monotonic_ns())
    }
}

/// Returns the maximum number of MADV_COLLAPSE requests of a probe, which cannot be undone: for the single
/// huge pages, and for those of the small and of the large buffer that faults did not allocate. 0: no
/// request.
pub fn collapses_max(options: &ProbeOptions, facts: &ProbeFacts) -> u64 {
    match (memory_budget::compute_budget(options, facts).insufficient_budget(), pmd_size(facts)) {
        (None, Ok(size)) => options.huge_pages.saturating_add(2 * (options.region_max.0 / size.0.max(1))),
        (Some(_), _) | (_, Err(_)) => 0,
    }
}

/// Returns the size of a huge page, or why this process cannot have any.
fn pmd_size(facts: &ProbeFacts) -> Reading<Bytes> {
    facts.pmd_size.clone().and_then(check_thp_prctl)
}

/// Requests huge pages, measures access times, and frees all memory.
pub fn probe(options: &ProbeOptions, facts: &ProbeFacts, samples: SampleSink<'_>) -> ProbeResults {
    let started_ns = clock::monotonic_ns();
    let budget = memory_budget::compute_budget(options, facts);
    let mut run = ProbeState::new(options, facts, samples, started_ns);
    let offered = OomScoreGuard::new();
    if let Err(absence) = &offered {
        run.notes.push(format!("cannot set the oom_score_adj of the probe: {}", absence.reason()));
    }
    let (huge, access) = match budget.insufficient_budget() {
        Some(absence) => (Err(absence.clone()), Err(absence)),
        None => {
            let huge = measure_collapses(&mut run, budget.amount);
            (huge, access::measure_access(&mut run, budget.amount))
        }
    };
    if facts.virtual_machine == Some(true) && access.is_ok() {
        run.notes.push(
            "this is a virtual machine: whether the host uses huge pages is unknown, and these times include \
            walks of the host's page tables"
                .to_owned(),
        );
    }
    if facts.thp_mode.as_deref() == Some("never") && huge.as_ref().is_ok_and(|huge| huge.allocated > 0) {
        run.notes.push(
            "THP is set to never: MADV_COLLAPSE still allocates huge pages, but page faults do not"
                .to_owned(),
        );
    }
    ProbeResults { budget: budget.amount, budget_limit: budget.bound, huge, access, notes: run.notes }
}

/// Measures access times with base and with huge pages of each of these spans, interleaved over the entire
/// time; the largest permitted span determines the cost of memory.
pub fn measure_pairs(
    options: &ProbeOptions,
    facts: &ProbeFacts,
    spans: &[ReadSpan],
) -> Reading<Vec<(ReadSpan, AccessPair)>> {
    let budget = memory_budget::compute_budget(options, facts);
    if let Some(absence) = budget.insufficient_budget() {
        return Err(absence);
    }
    let discard = |_: &StreamHeader, _: &[(u64, f64)]| {};
    let mut run = ProbeState::new(options, facts, &discard, clock::monotonic_ns());
    let _offered = OomScoreGuard::new();
    interleaved_reads::measure_span_pairs(&mut run, budget.amount, spans)
}

/// A parent may have disabled huge pages for this process; then COLLAPSE fails with EINVAL, and the probe
/// states the reason.
fn check_thp_prctl(size: Bytes) -> Reading<Bytes> {
    match thp_disable::read_thp_disable() {
        ThpDisable::Off | ThpDisable::ExceptAdvised => Ok(size),
        ThpDisable::All => {
            let why = "disabled for this process by PR_SET_THP_DISABLE, inherited from a parent";
            Err(Absence::new("huge pages", AbsenceReason::NotPermitted, why)
                .with_hint("start pagelab from another shell"))
        }
    }
}

/// Share of the probe's time for requests: COLLAPSE can stall for seconds on a busy machine.
const TIME_SHARE: u64 = 5;

/// Maps aligned memory, touches it with base pages, requests MADV_COLLAPSE for each huge page, and reads back
/// the result. Frees all memory when it returns.
///
/// The memory is kept from khugepaged and from THP at page faults by MADV_NOHUGEPAGE, which is lifted for
/// each piece only when its turn comes, because it would refuse COLLAPSE as well. So each huge page that is
/// read back is the result of its request, in every THP mode, unless khugepaged is faster in the microsecond
/// between: such a request returns at once.
fn measure_collapses(run: &mut ProbeState<'_>, budget: Bytes) -> Reading<HugePageProbe> {
    let size = run.pmd_size.clone()?;
    // During a collapse its base pages and the huge page exist together: one more than is kept.
    let count = run.options.huge_pages.min((budget.0 / size.0.max(1)).saturating_sub(1));
    if count == 0 {
        let (one, may) = (format_bytes(size), format_bytes(budget));
        let detail =
            format!("a collapse needs twice the huge page size of {one}, which exceeds the limit of {may}");
        return Err(Absence::new("MADV_COLLAPSE", AbsenceReason::NotPermitted, detail));
    }
    let failed = |what: &str, error: std::io::Error| {
        Absence::new("MADV_COLLAPSE", AbsenceReason::Failed, format!("{what}: {error}"))
    };
    let len = count * size.0;
    let mut map = Mapping::anonymous(Bytes(len), size).map_err(|e| failed("cannot map memory", e))?;
    map.advise(0..len, Advice::NoHugePage).map_err(|e| failed("cannot request base pages", e))?;
    map.touch_for_writing(0..len).map_err(|e| failed("cannot touch the memory", e))?;

    let deadline_ns = clock::monotonic_ns() + run.remaining_ns() / TIME_SHARE;
    let mut probe = HugePageProbe {
        page_size: size,
        requested: 0,
        succeeded: 0,
        allocated: 0,
        read_back_by: run.readback.name().to_owned(),
        latency_ns: Vec::new(),
        first_error: None,
    };
    let mut samples = Vec::new();
    for index in 0..count {
        let huge_page_range = index * size.0..(index + 1) * size.0;
        let before_ns = clock::monotonic_ns();
        if before_ns >= deadline_ns {
            run.notes
                .push(format!("only {index} of {count} huge pages were requested within the time limit"));
            break;
        }
        map.advise(huge_page_range.clone(), Advice::HugePage)
            .map_err(|e| failed("cannot clear MADV_NOHUGEPAGE", e))?;
        let asked_ns = clock::monotonic_ns();
        let answer = map.advise(huge_page_range, Advice::Collapse);
        let latency_ns = clock::monotonic_ns().saturating_sub(asked_ns);
        probe.latency_ns.push(latency_ns);
        samples.push((clock::boottime_ns(), latency_ns as f64));
        probe.requested += 1;
        match answer {
            Ok(()) => probe.succeeded += 1,
            Err(error) if index == 0 && error.kind() == std::io::ErrorKind::InvalidInput => {
                let detail = format!("this kernel does not support it, or rejects it here: {error}");
                return Err(Absence::new("MADV_COLLAPSE", AbsenceReason::NotThere, detail)
                    .with_hint("use Linux 6.1 or later"));
            }
            Err(error) => probe.first_error = probe.first_error.or_else(|| Some(error.to_string())),
        }
    }
    (run.samples)(&time_stream("huge page latency", &[]), &samples);
    probe.allocated = run.readback.count_huge_bytes(map.addresses())?.0 / size.0;
    Ok(probe)
}

#[cfg(test)]
mod tests;
