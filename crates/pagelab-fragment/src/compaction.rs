//! Compaction session: caches are dropped, the kernel compacts, and huge pages are requested where it stopped
//! early; with the state of memory before and after.

use std::time::Duration;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::machine_guard::{finish_guard, open_guard};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::compaction::{CacheDrop, compact, compact_and_count, drop_caches, snapshot_options};
use pagelab_contig::memory_snapshot::take_snapshot;
use pagelab_contig::reserve::Reserve;
use pagelab_contig::thp_request::{FAILED_COLLAPSES_EARLY_END_MAX, ThpRequest, read_available_memory};
use pagelab_contig::verify_forecast::{RequestRounds, compact_by_requests, request_and_compact};
use pagelab_host::guard::{Guard, GuardOptions};
use pagelab_host::root::Root;
use pagelab_metrics::compaction::{CompactionActions, CompactionReport, RequestCompaction, find_early_ends};
use pagelab_model::{Bytes, NodeId, Snapshot};
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::format_bytes;
use pagelab_sys::clock;

/// How memory is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionMethod {
    /// By the kernel, and by requests if it stops early.
    KernelThenRequests,
    /// By the kernel, through vm.compact_memory.
    Kernel,
    /// By requests of huge pages: direct compaction.
    Requests,
    /// By both, in this order.
    Both,
}

/// Extent and method of the compaction.
#[derive(Clone, Copy, Debug)]
pub struct CompactionRequest {
    /// One NUMA node instead of all.
    pub node: Option<NodeId>,
    /// The method.
    pub method: CompactionMethod,
    /// Caches that are dropped first.
    pub caches: CacheDrop,
    /// Maximum time of requests, nanoseconds.
    pub time_limit_ns: u64,
}

impl CompactionRequest {
    /// The actions of the request, in order, as journal entries; nothing is changed.
    pub fn plan(&self, root: &Root) -> Result<Vec<String>, Failure> {
        let guard = open_guard(GuardOptions { dry_run: true, ..GuardOptions::default() });
        let guard = guard?;
        drop_caches(&guard, self.caches)?;
        if self.method != CompactionMethod::Requests {
            compact(&guard, self.node)?;
        }
        let mut actions: Vec<String> =
            guard.planned_changes().into_iter().map(|planned| planned.label).collect();
        let condition = match self.method {
            CompactionMethod::Kernel => return Ok(actions),
            CompactionMethod::KernelThenRequests => "if the kernel stops early: ",
            CompactionMethod::Requests | CompactionMethod::Both => "",
        };
        actions.push(format!(
            "{condition}allocate huge pages by page faults and MADV_COLLAPSE (at most {}, for at most {}, \
             leaving {} available), then release them all; THP settings are changed during the run",
            format_bytes(available_room(root)),
            format_duration(self.time_limit_ns),
            format_bytes(Reserve::read(root).0)
        ));
        Ok(actions)
    }

    /// Compacts: memory before, memory after, and the effect.
    pub fn run(&self, root: &Root) -> Result<(Snapshot, Snapshot, CompactionReport), Failure> {
        let guard = open_guard(GuardOptions::default())?;
        let end = StatusEnd::AtMost(Duration::from_nanos(self.time_limit_ns));
        let _status = CommandStatus::start("compacting memory", end);
        let before = take_snapshot(root, &snapshot_options());
        let mut actions = CompactionActions {
            drop_caches_ns: drop_caches(&guard, self.caches)?,
            ..CompactionActions::default()
        };
        // The caches have been dropped, so a part is done.
        let partly = |failure: Failure| match actions.drop_caches_ns {
            Some(_) => Failure::new(FailureKind::Partial, failure.to_string()),
            None => failure,
        };
        let by_kernel = self.method != CompactionMethod::Requests;
        if by_kernel {
            let until_ns = clock::monotonic_ns().saturating_add(self.time_limit_ns);
            let block = before.pageblock_order;
            let kernel = compact_and_count(&guard, root, self.node, block, until_ns);
            actions.kernel = Some(kernel.map_err(|error| partly(error.into()))?);
        }
        let stopped_early =
            actions.kernel.as_ref().is_some_and(|act| !find_early_ends(&before, act).is_empty());
        let by_requests = match self.method {
            CompactionMethod::Kernel => false,
            CompactionMethod::KernelThenRequests => stopped_early,
            CompactionMethod::Requests | CompactionMethod::Both => true,
        };
        if by_requests {
            match self.compact_by_requests(&guard, root, &before, by_kernel) {
                Ok(act) => actions.requests = Some(act),
                // The kernel's own compaction is done and is reported.
                Err(failure) if actions.kernel.is_some() => output::warn(&failure.to_string()),
                Err(failure) => return Err(partly(failure)),
            }
        }
        let after = take_snapshot(root, &snapshot_options());
        let report = CompactionReport::compare_snapshots(&before, &after, actions);
        finish_guard(guard);
        Ok((before, after, report))
    }

    /// Allocates as many huge pages as the reserve allows, and releases them.
    fn compact_by_requests(
        &self,
        guard: &Guard,
        root: &Root,
        before: &Snapshot,
        is_after_kernel: bool,
    ) -> Result<RequestCompaction, Failure> {
        let size = before.machine.page_size.block_bytes(before.pmd_order);
        let began_ns = clock::monotonic_ns();
        let request = ThpRequest {
            count: available_room(root).0 / size.0.max(1),
            size,
            page_size: before.machine.page_size,
            node: self.node,
            reserve: Reserve::read(root),
            deadline_ns: began_ns.saturating_add(self.time_limit_ns),
            failed_collapses_max: FAILED_COLLAPSES_EARLY_END_MAX,
        };
        let rounds = match is_after_kernel {
            true => request_and_compact(guard, root, &before.settings, request),
            false => compact_by_requests(guard, root, &before.settings, request)
                .map(|result| RequestRounds { count: 1, result, kernel_runs: None }),
        };
        let rounds = rounds?;
        let allocation = rounds
            .result
            .map_err(|absence| Failure::absent(FailureKind::NotAvailable, "allocate huge pages", &absence))?;
        Ok(RequestCompaction {
            rounds: rounds.count,
            took_ns: clock::monotonic_ns().saturating_sub(began_ns),
            allocated_bytes: Bytes(allocation.allocated.saturating_mul(size.0)),
            allocated: allocation.allocated,
            allocated_by_collapse: allocation.by_collapse,
            stop_reason: allocation.stop_reason.describe(),
            runs: rounds.kernel_runs.map(|runs| runs.last),
        })
    }
}

/// The memory that may be allocated temporarily.
fn available_room(root: &Root) -> Bytes {
    read_available_memory(root).map_or(Bytes(0), |available| Reserve::read(root).headroom(available))
}
