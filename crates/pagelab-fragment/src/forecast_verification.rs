//! Verification of a forecast: allocates the predicted pages, under the guard, and releases all of them.

use std::time::Duration;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::machine_guard::{finish_guard, open_guard};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::compaction::{CacheDrop, compact, drop_caches};
use pagelab_contig::host_warming::warm_host_memory;
use pagelab_contig::reserve::Reserve;
use pagelab_contig::thp_request::{
    FAILED_COLLAPSES_MAX, StopReason, ThpRequest, ThpRequestResult, read_available_memory,
};
use pagelab_contig::verify_forecast::{all_allocated_absence, verify_forecast};
use pagelab_host::guard::{Guard, GuardOptions, Knob};
use pagelab_host::page_reporting;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::forecast::{AllocationMethod, Forecast, ReclaimStep};
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading, Snapshot};
use pagelab_report::forecast::{AllocatedPages, StepResult};
use pagelab_report::style::format_bytes;
use pagelab_sys::clock;

/// Time limit of all allocations, in nanoseconds.
const TIME_LIMIT_NS: u64 = 600_000_000_000;

fn cannot_verify(why: &str) -> Failure {
    Failure::cannot(FailureKind::NotAvailable, "verify the prediction", why)
}

/// Allocates at each step.
pub fn allocate_at_each_step(snapshot: &Snapshot, forecast: &Forecast) -> Result<Vec<StepResult>, Failure> {
    let predicted = forecast.request;
    let size = snapshot.machine.page_size.block_bytes(predicted.order);
    match predicted.method {
        AllocationMethod::Contig => {
            let why = "contiguous memory can be allocated only inside the kernel (drivers, CMA)";
            return Err(cannot_verify(why).hint("use --how thp or hugetlb"));
        }
        AllocationMethod::Thp if predicted.order != snapshot.pmd_order => {
            return Err(cannot_verify("--really supports only huge pages of PMD size"));
        }
        AllocationMethod::Thp | AllocationMethod::Hugetlb => {}
    }
    if !rustix::process::geteuid().is_root() {
        let why = "--really requires root, because it changes THP settings, compacts memory and drops page \
                   cache";
        return Err(cannot_verify(why).hint("use sudo, or omit --really"));
    }
    let root = Root::live();
    let request = ThpRequest {
        count: predicted.count,
        size,
        page_size: snapshot.machine.page_size,
        node: predicted.node,
        reserve: Reserve::read(&root),
        deadline_ns: clock::monotonic_ns().saturating_add(TIME_LIMIT_NS),
        failed_collapses_max: FAILED_COLLAPSES_MAX,
    };
    let guard = open_guard(GuardOptions::default())?;
    let text = format!("allocating {} now, after compaction, after dropping the page cache", predicted.count);
    let _status = CommandStatus::start(text, StatusEnd::AtMost(Duration::from_nanos(TIME_LIMIT_NS)));
    if page_reporting::read(&Reader::new(&root), request.page_size).is_some() {
        let wanted = format_bytes(Bytes(request.count.saturating_mul(request.size.0)));
        output::print_note(&format!(
            "the host reclaims free memory: up to {wanted} is touched and released before each step, so \
             that latencies are those of the guest kernel"
        ));
    }
    let got = match predicted.method {
        AllocationMethod::Thp => {
            let found = verify_forecast(&guard, &root, &snapshot.settings, request)?;
            let steps = [found.now, found.after_compaction, found.after_dropping_cache];
            ReclaimStep::ALL
                .into_iter()
                .zip(steps)
                .map(|(step, result)| StepResult { step, outcome: result.map(measured_outcome) })
                .collect()
        }
        AllocationMethod::Hugetlb | AllocationMethod::Contig => {
            allocate_hugetlb(&guard, &root, forecast, request)?
        }
    };
    finish_guard(guard);
    Ok(got)
}

fn measured_outcome(allocation: ThpRequestResult) -> AllocatedPages {
    let stop_reason = allocation.describe_end();
    let latency_ns = allocation.fault_ns.iter().chain(&allocation.collapse_ns).copied().collect();
    AllocatedPages {
        requested: allocation.regions,
        allocated: allocation.allocated,
        collapsed: Some(allocation.by_collapse),
        latency_ns,
        verified_by: allocation.read_back_method,
        stop_reason,
    }
}

/// Allocates by enlarging a hugetlb pool. The kernel compacts and reclaims for it, so there is no `now`.
fn allocate_hugetlb(
    guard: &Guard,
    root: &Root,
    forecast: &Forecast,
    request: ThpRequest,
) -> Result<Vec<StepResult>, Failure> {
    let node = forecast.request.node;
    let why = "to grow a pool, the kernel always compacts and reclaims";
    let absence = Absence::new("hugetlb", AbsenceReason::Undefined, why);
    let mut outcomes = vec![StepResult { step: ReclaimStep::Nothing, outcome: Err(absence) }];
    for step in [ReclaimStep::Compaction, ReclaimStep::DropCache] {
        if step == ReclaimStep::DropCache {
            let enough =
                |got: &StepResult| got.outcome.as_ref().is_ok_and(|pages| pages.allocated >= request.count);
            if outcomes.last().is_some_and(enough) {
                outcomes.push(StepResult { step, outcome: Err(all_allocated_absence()) });
                break;
            }
            drop_caches(guard, CacheDrop::PageCache)?;
        }
        compact(guard, node)?;
        outcomes.push(StepResult {
            step,
            outcome: grow_pool(root, request, &Knob::hugetlb(request.size, node))?,
        });
    }
    Ok(outcomes)
}

fn grow_pool(root: &Root, request: ThpRequest, pool: &Knob) -> Result<Reading<AllocatedPages>, Failure> {
    let room = match read_available_memory(root) {
        Ok(available) => request.reserve.headroom(available),
        Err(absence) => return Ok(Err(absence)),
    };
    let count = request.count.min(room.0 / request.size.0.max(1));
    if count == 0 {
        let kept = format_bytes(request.reserve.0);
        let detail = format!("it would exceed the reserve of {kept}");
        return Ok(Err(Absence::new("hugetlb", AbsenceReason::NotPermitted, detail)));
    }
    // A separate guard, so that the pool shrinks before the next step.
    let guard = open_guard(GuardOptions::default())?;
    // If the host reclaims free memory, the latency would include the host's.
    if page_reporting::read(&Reader::new(root), request.page_size).is_some() {
        drop(warm_host_memory(root, Bytes(count.saturating_mul(request.size.0)), &|| false));
    }
    let pages_before: u64 = root
        .read(pool.path())
        .ok()
        .and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok())
        .unwrap_or(0);
    let began_ns = clock::monotonic_ns();
    let applied = guard.set_knob(pool, &pages_before.saturating_add(count).to_string())?;
    let took_ns = clock::monotonic_ns().saturating_sub(began_ns);
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let allocated = number(&applied.actual).saturating_sub(number(&applied.old));
    let each_ns = took_ns / allocated.max(1);
    drop(guard);
    Ok(Ok(AllocatedPages {
        requested: count,
        allocated,
        collapsed: None,
        latency_ns: vec![each_ns],
        verified_by: pool.path().to_owned(),
        stop_reason: describe_pool_growth(allocated, count, request.count).to_owned(),
    }))
}

/// Why a pool did not grow by all wanted pages, or that it did. `requested`: as many as the reserve permits.
fn describe_pool_growth(allocated: u64, requested: u64, wanted: u64) -> &'static str {
    match (allocated >= requested, requested >= wanted) {
        (true, true) => StopReason::AllAllocated.describe(),
        (true, false) => StopReason::ReserveReached.describe(),
        (false, _) => "the kernel could not free more by compaction and reclaim",
    }
}

#[cfg(test)]
mod tests {
    use super::describe_pool_growth;

    #[test]
    fn a_pool_that_grew_by_less_says_why() {
        assert_eq!(describe_pool_growth(300, 300, 300), "all requested pages were allocated");
        assert_eq!(describe_pool_growth(250, 250, 300), "more would have exceeded the reserve");
        assert!(describe_pool_growth(240, 250, 300).starts_with("the kernel could not free more"));
    }
}
