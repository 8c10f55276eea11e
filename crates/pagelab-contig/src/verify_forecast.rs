//! Verification of a forecast: huge pages are requested now, after compaction, and after dropping the page
//! cache, and released after each step.

use pagelab_host::guard::{Guard, GuardError, Knob, OWN_MEMORY};
use pagelab_host::page_reporting;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::settings::Settings;
use pagelab_model::{Absence, AbsenceReason, Bytes, Order, Reading};
use pagelab_sys::clock;
use pagelab_sys::scheduling::PinnedThread;

use crate::compaction::{CacheDrop, CompactionRuns, compact_until_met, count_free_blocks, drop_caches};
use crate::host_warming;
use crate::oom::OomScoreGuard;
use crate::thp_request::{
    FAILED_COLLAPSES_EARLY_END_MAX, FAILED_COLLAPSES_MAX, ThpAllocation, ThpRequest, ThpRequestResult,
};

/// Allocated pages at each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForecastVerification {
    /// By faults with `defrag` off: no compaction and no reclaim.
    pub now: Reading<ThpRequestResult>,
    /// After compacting, by faults, and by MADV_COLLAPSE for the rest.
    pub after_compaction: Reading<ThpRequestResult>,
    /// After dropping the page cache and compacting, in the same way.
    pub after_dropping_cache: Reading<ThpRequestResult>,
}

/// Asks for huge pages of PMD size. Error of the guard: a setting was not changed or an action failed; the
/// verification ends.
pub fn verify_forecast(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    request: ThpRequest,
) -> Result<ForecastVerification, GuardError> {
    let _oom_score = OomScoreGuard::new();
    // Freed huge pages stay on the pcp lists of the freeing CPU (5.13 and later).
    let _pinned = PinnedThread::to_current_cpu();
    configure_thp(guard, settings)?;
    // Where the host takes free memory back, the latencies would be the host's.
    let reporting = page_reporting::read(&Reader::new(root), request.page_size).is_some();
    let wanted = Bytes(request.count.saturating_mul(request.size.0));
    let warm = || {
        if reporting {
            host_warming::warm_host_memory(root, wanted, &|| false);
        }
    };
    warm();
    let now = request_huge_pages(guard, root, request, false)?;
    let after_compaction = compact_and_request(guard, root, request, &warm)?;
    let after_dropping_cache = match &after_compaction {
        Ok(asked) if asked.allocated >= request.count => Err(all_allocated_absence()),
        _ => {
            drop_caches(guard, CacheDrop::PageCache)?;
            compact_and_request(guard, root, request, &warm)?
        }
    };
    Ok(ForecastVerification { now, after_compaction, after_dropping_cache })
}

/// Rounds of compaction and requests: after an early end, requested pages are freed and the next round starts
/// with moved memory.
const COMPACTION_ROUNDS_MAX: u32 = 4;

/// Compacts and asks, again and again where the kernel's compaction ended early and the round before gained
/// something. The last round gives the result.
fn compact_and_request(
    guard: &Guard,
    root: &Root,
    request: ThpRequest,
    warm_host_memory: &dyn Fn(),
) -> Result<Reading<ThpRequestResult>, GuardError> {
    let order = request.page_size.order_for_size(request.size).unwrap_or(Order(0));
    let mut best: Option<ThpRequestResult> = None;
    for _ in 0..COMPACTION_ROUNDS_MAX {
        let ended_early =
            compact_until_met(guard, root, request.node, order, request.deadline_ns)?.ended_early(order);
        warm_host_memory();
        let misses_max = if ended_early { FAILED_COLLAPSES_EARLY_END_MAX } else { FAILED_COLLAPSES_MAX };
        let round = ThpRequest { failed_collapses_max: misses_max, ..request };
        let result = match request_huge_pages(guard, root, round, true)? {
            Ok(asked) => asked,
            Err(absence) => return Ok(best.ok_or(absence)),
        };
        let most = best.as_ref().map(|best| best.allocated);
        let gained = most.is_none_or(|most| result.allocated > most + most / GAIN_DIVISOR);
        let is_enough = result.allocated >= result.regions;
        if most.is_none_or(|most| result.allocated >= most) {
            best = Some(result);
        }
        if !ended_early || !gained || is_enough {
            break;
        }
    }
    Ok(best.ok_or_else(all_allocated_absence))
}

/// A round that gains less than this share is the last.
const GAIN_DIVISOR: u64 = 100;

/// Reason for omitting a step: its cost for other programs is not justified.
pub fn all_allocated_absence() -> Absence {
    let why = "all requested pages were already allocated, so no page cache was dropped";
    Absence::new("huge pages", AbsenceReason::NotRequested, why)
}

/// Requests all huge pages that the reserve permits, by faults and by MADV_COLLAPSE, and frees them: the
/// kernel compacts for each missing one, also where its own compaction gave up.
pub fn compact_by_requests(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    request: ThpRequest,
) -> Result<Reading<ThpRequestResult>, GuardError> {
    let _offered = OomScoreGuard::new();
    let _pinned = PinnedThread::to_current_cpu();
    configure_thp(guard, settings)?;
    request_huge_pages(guard, root, request, true)
}

/// Result of the rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRounds {
    /// How many there were.
    pub count: u32,
    /// Result of the last round, with the compaction of all rounds.
    pub result: Reading<ThpRequestResult>,
    /// Positions of the scanners after the last compaction request; `None` without a further request.
    pub kernel_runs: Option<CompactionRuns>,
}

/// Requests, frees and compacts again until the scanners meet, a round gains nothing, or the time is up.
pub fn request_and_compact(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    request: ThpRequest,
) -> Result<RequestRounds, GuardError> {
    let order = request.page_size.order_for_size(request.size).unwrap_or(Order(0));
    let mut rounds = RequestRounds { count: 0, result: Err(all_allocated_absence()), kernel_runs: None };
    let mut allocated_by_collapse = 0;
    let mut before = count_free_blocks(root, order);
    loop {
        rounds.result = compact_by_requests(guard, root, settings, request)?;
        rounds.count += 1;
        let Ok(asked) = &mut rounds.result else { return Ok(rounds) };
        allocated_by_collapse += asked.by_collapse;
        asked.by_collapse = allocated_by_collapse;
        let runs = compact_until_met(guard, root, request.node, order, request.deadline_ns)?;
        let (ended_early, now) = (runs.ended_early(order), count_free_blocks(root, order));
        rounds.kernel_runs = Some(runs);
        let gained = before.zip(now).is_some_and(|(before, now)| now > before + before / GAIN_DIVISOR);
        if !ended_early || !gained || clock::monotonic_ns() >= request.deadline_ns {
            return Ok(rounds);
        }
        before = now;
    }
}

/// Sets THP so that faults use available huge pages only.
fn configure_thp(guard: &Guard, settings: &Settings) -> Result<(), GuardError> {
    if let Ok(thp) = &settings.thp {
        if thp.enabled.as_ref().is_ok_and(|mode| mode.selected() == "never") {
            guard.set_knob(&Knob::thp_enabled(), "madvise")?;
        }
        let pmd_size = thp.pmd_size.as_ref().ok();
        let size_mode = thp.sizes.iter().find(|size| Some(&size.size) == pmd_size);
        if size_mode.is_some_and(|own| own.enabled.as_ref().is_ok_and(|mode| mode.selected() == "never")) {
            guard.set_knob(&Knob::thp_size_enabled(pmd_size.copied().unwrap_or(Bytes(0))), "inherit")?;
        }
    }
    // Where F_u is high the kernel compacts by itself, and `now` would not be now (mm/compaction.c,
    // `should_proactive_compact_node`).
    if settings.vm.get("compaction_proactiveness").is_some_and(|value| value > 0) {
        guard.set_knob(&Knob::vm("compaction_proactiveness")?, "0")?;
    }
    // khugepaged would make huge pages of regions that have one base page, in the middle of asking.
    guard.set_knob(&Knob::khugepaged("max_ptes_none")?, "0")?;
    guard.set_knob(&Knob::thp_defrag(), "never").map(drop)
}

fn request_huge_pages(
    guard: &Guard,
    root: &Root,
    request: ThpRequest,
    use_collapse: bool,
) -> Result<Reading<ThpRequestResult>, GuardError> {
    let run_request = || {
        let mut asking = ThpAllocation::map_regions(root, request)?;
        asking.fault_in_regions()?;
        if use_collapse {
            asking.collapse_regions()?;
        }
        asking.finish()
    };
    if !use_collapse {
        return Ok(run_request());
    }
    let act = format!("MADV_COLLAPSE, at most {} times, {OWN_MEMORY}", request.count);
    Ok(guard.perform_one_way(&act, run_request)?.unwrap_or_else(|| {
        Err(Absence::new("huge pages", AbsenceReason::NotRequested, "a dry run allocates nothing"))
    }))
}
