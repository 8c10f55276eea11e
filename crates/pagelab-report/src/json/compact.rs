//! JSON of `pagelab compact`: `docs/json.md` lists fields and units.

use pagelab_metrics::checkup::{Checkup, ZoneFragmentation};
use pagelab_metrics::compaction::{
    CompactionReport, CompactionVerdict, CompactionWorker, CounterDelta, EarlyCause, EarlyEnd,
    KernelCompaction, RequestCompaction, ScannerRun,
};
use pagelab_model::Snapshot;
use serde_json::Value;

use super::document_header;
use super::huge_page_supply::supply_json;
use super::object::{JsonObject, to_array};

/// The document of a plan: its actions in order.
pub fn plan_document(actions: &[String]) -> Value {
    document_header("compact").field("dry_run", true).field("acts", actions.to_vec()).into()
}

/// Builds the document.
pub fn to_document(before: &Snapshot, after: &Snapshot, compaction: &CompactionReport) -> Value {
    let verdict = match compaction.verdict() {
        CompactionVerdict::Gained(_) => "gained",
        CompactionVerdict::NothingToDo => "nothing_to_do",
        CompactionVerdict::NothingChanged => "nothing_changed",
    };
    let activity = |activity: &CounterDelta| {
        let by = match activity.worker {
            CompactionWorker::All => "all",
            CompactionWorker::Direct => "direct",
            CompactionWorker::Kcompactd => "daemon",
        };
        JsonObject::new().field("name", activity.name).field("by", by).field("rose", activity.delta)
    };
    let kernel = compaction.actions.kernel.as_ref();
    let requests = compaction.actions.requests.as_ref();
    let requests = requests.map(|act| request_compaction_json(act, compaction));
    let freed = compaction.cache_shrinkage.zip(compaction.actions.drop_caches_ns).map(|(freed, _)| freed);
    let signed = |bytes: i128| i64::try_from(bytes).unwrap_or(i64::MAX);
    document_header("compact")
        .field("verdict", verdict)
        .field("page_size_bytes", after.machine.page_size.bytes())
        .field("huge_page_bytes", after.machine.page_size.block_bytes(after.pmd_order).0)
        .optional("compact_ns", kernel.map(|act| act.took_ns), NO_KERNEL_RUN_REASON)
        .optional(
            "kernel",
            kernel.map(|act| kernel_compaction_json(act, &compaction.early_ends)),
            NO_KERNEL_RUN_REASON,
        )
        .optional("thp_requests", requests, "no huge pages were requested")
        .optional("drop_caches_ns", compaction.actions.drop_caches_ns, NOT_DROPPED_REASON)
        .optional("page_cache_freed_bytes", freed.map(|freed| signed(freed.page_cache)), NOT_DROPPED_REASON)
        .optional("slab_freed_bytes", freed.map(|freed| signed(freed.slab)), NOT_DROPPED_REASON)
        .field("activity", to_array(&compaction.counter_deltas, activity))
        .field("before", snapshot_json(before, &compaction.before))
        .field("after", snapshot_json(after, &compaction.after))
        .into()
}

const NOT_DROPPED_REASON: &str = "no caches were dropped, or meminfo is unreadable";

const NO_KERNEL_RUN_REASON: &str = "compact_memory was not written";

fn kernel_compaction_json(action: &KernelCompaction, early_ends: &[EarlyEnd]) -> JsonObject {
    let run_json = |run: &ScannerRun| {
        JsonObject::new()
            .field("first_pfn", run.zone_start.0)
            .field("end_pfn", run.zone_end.0)
            .field("migrate_pfn", run.migrate_pfn.0)
            .field("free_pfn", run.free_pfn.0)
            .field("status", run.status)
            .field("failed_pages", run.failed_pages)
    };
    JsonObject::new()
        .field("times", action.run_count)
        .field("ended_early", to_array(early_ends, early_end_json))
        .with_reading("scanners", &action.runs, |runs| to_array(runs, run_json))
        .optional("huge_pages_after", action.huge_pages_after, "not measured after this step")
}

fn early_end_json(end: &EarlyEnd) -> JsonObject {
    let cause = match end.cause {
        EarlyCause::NoMigrationTarget => "no_place",
        EarlyCause::Interrupted => "interrupted",
        EarlyCause::Unknown => "unknown",
    };
    let zone = end.zone.as_ref();
    JsonObject::new()
        .optional("node", zone.map(|zone| zone.node.0), NO_ZONE_REASON)
        .optional("zone", zone.map(|zone| zone.zone.as_str()), NO_ZONE_REASON)
        .field("cause", cause)
        .optional("unscanned_share", end.unscanned_share, NO_ZONE_REASON)
}

const NO_ZONE_REASON: &str = "known only from counters that cover all zones";

fn request_compaction_json(action: &RequestCompaction, compaction: &CompactionReport) -> JsonObject {
    let early_ends = compaction.early_ends_last.as_ref().map(|early| to_array(early, early_end_json));
    JsonObject::new()
        .field("rounds", action.rounds)
        .field("elapsed_ns", action.took_ns)
        .field("allocated_bytes", action.allocated_bytes.0)
        .field("huge_pages", action.allocated)
        .field("by_collapse", action.allocated_by_collapse)
        .field("stopped", action.stop_reason)
        .optional("ended_early", early_ends, "no further compaction ran")
}

fn snapshot_json(snapshot: &Snapshot, checkup: &Checkup) -> JsonObject {
    let zone = |zone: &ZoneFragmentation| {
        JsonObject::for_zone(&zone.key)
            .field("free_bytes", zone.free.0)
            .field("huge_pages_now", zone.free_huge_pages)
            .field("free_blocks", zone.free_areas.counts().to_vec())
            .field("unusable_index", zone.unusable.clone())
            .field("fragmentation_index_permille", zone.fragmentation_permille.clone())
    };
    JsonObject::new()
        .field("huge_pages_now", checkup.free_huge_pages())
        .field("zones", to_array(&checkup.zones, zone))
        .with_reading("supply", &checkup.supply, |found| supply_json(found, snapshot))
}
