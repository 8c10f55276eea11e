//! `pagelab checkup --json`: the complete snapshot with exact values, as specified in docs/json.md.

use pagelab_metrics::balance::{FreeBalance, FreeVerdict};
use pagelab_metrics::checkup::{Checkup, IndexComparison, ZoneFragmentation};
use pagelab_metrics::findings::Finding;
use pagelab_metrics::history::VmstatHistory;
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::instruments::Instrument;
use pagelab_model::pressure::{Pressure, PressureLine};
use pagelab_model::process::{HugePageCoverage, ProcessMemory};
use pagelab_model::snapshot::{
    AllocFailure, AllocFailures, LimitFile, OomKill, OomScope, Problem, SnapshotOrigin,
};
use pagelab_model::{Bytes, Counters, Meminfo, Snapshot};
use serde_json::Value;

use super::object::JsonObject;
use super::{NO_FREE_REASON, huge_page_supply, machine, probe, zones};
use crate::checkup::no_finding_text;
use crate::fields::{fields, read};
use crate::findings::{FindingText, describe_finding};

const NO_CLOCK: &str = "not recorded in the saved tree";
const NO_TIME: &str = "the log has no timestamps";
const NOT_STATED: &str = "not in the log";
const NOT_COUNTED: &str = "this kernel has no such counter";
const NOT_SEPARATE: &str = "this kernel's meminfo has no such fields";

/// Builds the complete document.
pub fn to_document(snapshot: &Snapshot, checkup: &Checkup) -> Value {
    checkup_fields().add_to(super::document_header("checkup"), &(snapshot, checkup)).into()
}

/// A snapshot and its meaning.
type CheckupRow<'a> = (&'a Snapshot, &'a Checkup);

fields! { fn checkup_fields<'a>(of: CheckupRow<'a>);
    "taken": object, "time and source" => taken_fields().object(&of.0.taken);
    "machine": object, "hardware and kernel" => machine::machine_fields().object(of.0);
    "settings": object, "memory settings" => machine::settings_fields().object(&of.0.settings);
    "fragmentation": object, "fragmentation indices, free memory, zones" => fragmentation_fields().object(of);
    "supply": object (reading), "huge pages that could be allocated, from kpageflags" =>
        read(&of.1.supply, |supply| huge_page_supply::supply_json(supply, of.0));
    "use": object, "memory use" => {
        let usage = use_fields().add_to(JsonObject::new(), &of.1.usage.unwrap_or_default());
        usage.with_reading("meminfo", &of.0.meminfo, meminfo_json)
    };
    "pressure": object (reading), "system-wide memory pressure (PSI)" =>
        read(&of.0.pressure, |of| pressure_fields().object(of));
    "since_boot": object (reading), "vmstat counters of huge pages, compaction and reclaim" =>
        read(&of.0.vmstat, |_| history_fields().object(&of.1.history.unwrap_or_default()));
    "vmstat": object (reading), "all vmstat counters" => read(&of.0.vmstat, counters_json);
    "processes": object (reading), "the largest processes and their huge pages" =>
        read(&of.0.processes, |of| coverage_fields().object(of));
    "allocation_failures": object (reading), "allocation failures and OOM kills in the kernel log" =>
        read(&of.0.alloc_failures, |of| alloc_failure_fields().object(of));
    "probe": object (null: "not requested (--probe)"), "results of `--probe`" =>
        of.0.probe.as_ref().map(|of| probe::probe_fields().object(of));
    "instruments": array, "kernel interfaces: which work here, and why the others do not" =>
        instrument_fields().array(&of.0.instruments);
    "findings": array, "most important first" =>
        finding_fields().array(of.1.findings.iter().map(|finding| FindingRow::new(finding, of.0)));
    "verdict": string (null: "there are findings"),
        "conclusion if there are no findings: nothing to do, or what could not be checked" =>
        no_finding_text(of.0, of.1);
    "problems": array, "files that exist but could not be parsed" => problem_fields().array(&of.0.problems);
}

fields! { fn taken_fields(of: SnapshotOrigin);
    "source": string, "`this machine`, or the name of the saved tree" => of.source.as_str();
    "realtime_ns": integer (null: NO_CLOCK), "wall-clock time, in nanoseconds since 1970 (UTC)" =>
        of.realtime_ns;
    "boottime_ns": integer (null: NO_CLOCK), "nanoseconds since boot, including suspend" => of.boottime_ns;
    "euid": integer (null: "read from a saved tree, not from a live machine"),
        "effective user ID of pagelab" =>
        of.euid;
}

fields! { fn fragmentation_fields<'a>(of: CheckupRow<'a>);
    "pmd_order": integer, "order of a PMD-sized huge page" => of.0.pmd_order.0;
    "pageblock_order": integer, "order of a pageblock" => of.0.pageblock_order.0;
    "pageblock_order_source": string, "where this order comes from" => of.0.pageblock_order_source.as_str();
    "zones": array (reading), "one entry per zone with pages, below" =>
        read(&of.0.buddyinfo, |_| zone_index_fields().array(&of.1.zones));
    "kernel_comparison": object (reading), "pagelab's indices compared with the kernel's own, below" =>
        match (&of.1.index_comparison, &of.0.extfrag) {
            (Some(comparison), _) => Ok(comparison_fields().object(comparison)),
            (None, Err(absence)) => Err(absence.to_string()),
            (None, Ok(_)) => Err("not compared".to_owned()),
        };
    "free_balance": object (null: "meminfo or buddyinfo could not be read"),
        "free pages in buddyinfo compared with MemFree, below" =>
        of.1.balance.map(|balance| balance_fields().object(&(balance, of.0)));
    "by_migratetype": object (reading), "only with `--migratetypes`, below" =>
        read(&of.0.pagetypeinfo, |of| zones::pagetype_fields().object(of));
    "zoneinfo": array (reading), "one entry per zone, below" =>
        read(&of.0.zoneinfo, |of| zones::zone_fields().array(&of.zones));
}

fields! { fn comparison_fields(of: IndexComparison);
    "cells": integer, "number of values compared" => of.cells;
    "cells_differing": integer, "number of values that differ" => of.differing;
    "tries": integer, "number of times the files were read" => of.tries;
}

fields! { fn balance_fields<'a>(of: (FreeBalance, &'a Snapshot));
    "on_lists_pages": integer, "free pages according to buddyinfo" => of.0.pages_on_lists;
    "counted_pages": integer, "free pages according to MemFree" => of.0.nr_free_pages;
    "unmanaged_pages": integer (null: "not in zoneinfo"), "present minus managed pages" =>
        of.0.unmanaged;
    "deferred_pages": integer, "free pages that are not yet initialised or accepted" => match of.0.verdict {
        FreeVerdict::Deferred(pages) | FreeVerdict::Unaccepted(pages) => pages.0,
        FreeVerdict::Agree | FreeVerdict::Unexplained | FreeVerdict::Undetermined => 0,
    };
    "tolerance_pages": integer, "largest difference that counts as agreement" => of.0.tolerance;
    "moved_pages": integer (reading), "change of the free lists between two reads" =>
        read(&of.1.free_moved, |pages| pages.0.into());
    "verdict": string,
        "`agree`, `deferred_initialisation`, `unaccepted`, `unexplained`, `undetermined` (buddyinfo could \
         not be read twice)" => match of.0.verdict {
        FreeVerdict::Agree => "agree",
        FreeVerdict::Deferred(_) => "deferred_initialisation",
        FreeVerdict::Unaccepted(_) => "unaccepted",
        FreeVerdict::Unexplained => "unexplained",
        FreeVerdict::Undetermined => "undetermined",
    };
}

fields! { fn zone_index_fields(of: ZoneFragmentation);
    "node": integer, "NUMA node" => of.key.node.0;
    "zone": string, "the kernel's name for the zone" => of.key.zone.as_str();
    "free_bytes": integer, "memory on the zone's free lists" => of.free.0;
    "free_blocks": array, "free blocks of each order" => of.free_areas.counts().to_vec();
    "huge_pages_now": integer, "PMD-sized huge pages that fit into the free blocks" => of.free_huge_pages;
    "unusable_index": array (null: NO_FREE_REASON), "F_u, exact" =>
        (of.free_areas.free_pages() > 0).then(|| of.unusable.clone());
    "unusable_index_permille": array, "F_u as the kernel prints it" => of.unusable_permille.clone();
    "fragmentation_index_permille": array, "F_i as the kernel prints it; −1000 if a request would succeed" =>
        of.fragmentation_permille.clone();
    "fragmentation_index_paper": array, "F_i as Gorman and Whitcroft define it; 0 if nothing is free" =>
        of.fragmentation_paper.clone();
}

pub(super) fn bytes_json(bytes: Option<Bytes>) -> Value {
    bytes.map(|bytes| bytes.0).into()
}

fields! { fn use_fields(of: MemoryUse);
    "total_bytes": integer (null: NOT_SEPARATE), "MemTotal" => bytes_json(of.total);
    "free_bytes": integer (null: NOT_SEPARATE), "MemFree" => bytes_json(of.free);
    "available_bytes": integer (null: NOT_SEPARATE), "MemAvailable" => bytes_json(of.available);
    "programs_bytes": integer (null: NOT_SEPARATE), "AnonPages + Shmem" => bytes_json(of.anonymous_and_shmem);
    "programs_huge_bytes": integer (null: NOT_SEPARATE), "AnonHugePages" => bytes_json(of.thp_mapped);
    "page_cache_bytes": integer (null: NOT_SEPARATE), "Buffers + Cached + SwapCached − Shmem" =>
        bytes_json(of.page_cache);
    "dirty_bytes": integer (null: NOT_SEPARATE), "page cache that is dirty or under writeback" =>
        bytes_json(of.dirty);
    "slab_bytes": integer (null: NOT_SEPARATE), "all slab memory" => bytes_json(of.slab);
    "slab_reclaimable_bytes": integer (null: NOT_SEPARATE), "the reclaimable part of `slab_bytes`" =>
        bytes_json(of.slab_reclaimable);
    "page_tables_bytes": integer (null: NOT_SEPARATE), "page tables" => bytes_json(of.page_tables);
    "kernel_stacks_bytes": integer (null: NOT_SEPARATE), "kernel stacks" => bytes_json(of.kernel_stacks);
    "hugetlb_bytes": integer (null: NOT_SEPARATE), "hugetlb pools of all sizes" => bytes_json(of.hugetlb);
    "not_accounted_bytes": integer (null: NOT_SEPARATE), "total minus the parts above" =>
        bytes_json(of.unaccounted);
    "swap_total_bytes": integer (null: NOT_SEPARATE), "total swap space" => bytes_json(of.swap_total);
    "swap_used_bytes": integer (null: NOT_SEPARATE), "swap in use" => bytes_json(of.swap_used);
}

fn meminfo_json(info: &Meminfo) -> Value {
    let field = |object: JsonObject, ((name, value), kib): ((&str, u64), &bool)| {
        let unit = if *kib { "_kib" } else { "" };
        object.field(&format!("{name}{unit}"), value)
    };
    info.fields.iter().zip(&info.in_kib).fold(JsonObject::new(), field).into()
}

pub(super) fn counters_json(counters: &Counters) -> Value {
    counters.iter().fold(JsonObject::new(), |object, (name, value)| object.field(name, value)).into()
}

fields! { fn pressure_fields(of: Pressure);
    "some": object, "time in which at least one task waited, below" =>
        pressure_line_fields().object(&of.some);
    "full": object (null: "this kernel does not report it"), "time in which all tasks waited, below" =>
        of.full.as_ref().map(|of| pressure_line_fields().object(of));
}

fields! { fn pressure_line_fields(of: PressureLine);
    "avg10_centipercent": integer, "average over 10 s, in hundredths of a percent" => of.avg10_centipercent;
    "avg60_centipercent": integer, "the same over 60 s" => of.avg60_centipercent;
    "avg300_centipercent": integer, "the same over 300 s" => of.avg300_centipercent;
    "total_us": integer, "total since boot, in microseconds" => of.total_us;
}

fields! { fn history_fields(of: VmstatHistory);
    "thp_fault_allocated": integer (null: NOT_COUNTED), "page faults that allocated a huge page" =>
        of.thp_fault_alloc;
    "thp_fault_fell_back": integer (null: NOT_COUNTED), "page faults that fell back to base pages" =>
        of.thp_fault_fallback;
    "thp_collapsed": integer (null: NOT_COUNTED), "huge pages allocated for a collapse" =>
        of.thp_collapse_alloc;
    "thp_collapse_failed": integer (null: NOT_COUNTED), "collapses that failed to allocate a huge page" =>
        of.thp_collapse_alloc_failed;
    "thp_split": integer (null: NOT_COUNTED), "huge pages that were split" => of.thp_split;
    "compact_stalls": integer (null: NOT_COUNTED), "stalls in direct compaction" => of.compact_stalls;
    "compact_success": integer (null: NOT_COUNTED), "direct compactions that succeeded" => of.compact_success;
    "compact_fail": integer (null: NOT_COUNTED), "direct compactions that failed" => of.compact_fail;
    "compact_migrate_scanned_pages": integer (null: NOT_COUNTED), "pages scanned by the migration scanner" =>
        of.compact_migrate_scanned;
    "reclaim_stalls": integer (null: NOT_COUNTED), "stalls in direct reclaim" => of.reclaim_stalls;
    "refaults": integer (null: NOT_COUNTED), "reclaimed pages that were soon faulted in again" => of.refaults;
    "swapped_pages": integer (null: NOT_COUNTED), "pages swapped in and out" => of.swapped;
    "oom_kills": integer (null: NOT_COUNTED), "processes killed by the OOM killer" => of.oom_kills;
}

fields! { fn coverage_fields(of: HugePageCoverage);
    "largest": array, "below" => process_fields().array(&of.processes);
    "total": integer, "number of processes" => of.processes_total;
    "unreadable": integer, "processes that could not be read" =>
        of.unreadable.as_ref().map_or(0, |(of, _)| *of);
    "unreadable_reason": string (null: "all were readable"), "why" =>
        of.unreadable.as_ref().map(|(_, absence)| absence.to_string());
    "skipped_over_budget": integer, "processes skipped because reading them would take too long" =>
        of.skipped_over_budget;
    "is_budget_spent": boolean, "whether the time limit was reached" => of.is_budget_spent;
}

fields! { fn process_fields(of: ProcessMemory);
    "pid": integer, "process ID" => of.pid;
    "name": string (null: "not in the saved tree"), "command name" => of.name.as_deref();
    "rss_bytes": integer, "resident memory" => of.rss.0;
    "anonymous_bytes": integer, "anonymous memory" => of.anonymous.0;
    "anon_huge_bytes": integer, "anonymous memory on huge pages" => of.anon_huge.0;
    "shmem_huge_bytes": integer, "shared memory on huge pages" => of.shmem_huge.0;
    "file_huge_bytes": integer, "file-backed memory on huge pages" => of.file_huge.0;
    "hugetlb_bytes": integer, "hugetlb pages" => of.hugetlb.0;
    "thp_enabled": boolean (null: "not in this kernel's status file"),
        "whether the process may use THP" => of.thp_enabled;
    "eligible_bytes": integer (null: "not requested (--deep)"),
        "memory in mappings that are eligible for THP" =>
        of.eligible.map(|bytes| bytes.0);
    "read_ns": integer, "how long the read held the process's mmap lock" => of.read_ns;
}

fields! { fn alloc_failure_fields(of: AllocFailures);
    "reports": array, "allocations that failed or stalled, below" => report_fields().array(&of.reports);
    "kills": array, "processes killed by the OOM killer, below" => kill_fields().array(&of.kills);
    "log_overwritten": boolean, "whether the start of the log was overwritten" => of.log_overwritten;
}

fields! { fn report_fields(of: AllocFailure);
    "at_us": integer (null: NO_TIME), "time since boot" => of.at_us;
    "process": string, "command name" => of.process.as_str();
    "order": integer (null: "not in the report"), "requested order" => of.order;
    "detail": string, "the kernel's message" => of.detail.as_str();
}

fields! { fn kill_fields(of: OomKill);
    "at_us": integer (null: NO_TIME), "time since boot" => of.at_us;
    "scope": string, "what ran out of memory: `machine`, `control_group`" => match of.scope {
        OomScope::Machine => "machine",
        OomScope::ControlGroup => "control_group",
    };
    "pid": integer (null: NOT_STATED), "PID of the killed process" => of.pid;
    "process": string, "command name" => of.process.as_str();
    "group": string (null: NOT_STATED), "the control group whose limit was reached" => of.group.as_deref();
    "limit_bytes": integer (null: NOT_STATED), "the limit that was reached" => bytes_json(of.limit);
    "limit_file": string (null: "the control group no longer exists, or is not visible"),
        "file that holds the limit" => match &of.limit_file {
        Some(LimitFile::Present { path, .. }) => Some(path.as_str()),
        Some(LimitFile::GroupGone | LimitFile::Unseen(_)) | None => None,
    };
}

fields! { fn instrument_fields(of: Instrument);
    "name": string, "name of the interface" => &*of.name;
    "purpose": string, "what pagelab uses it for" => &*of.purpose;
    "works": boolean, "whether it works here" => of.state.is_ok();
    "found": string (reading), "what was found" => read(&of.state, |found| found.as_str().into());
}

fields! { fn problem_fields(of: Problem);
    "message": string, "a sentence" => of.message.as_str();
    "is_bad_input": boolean, "whether the file is malformed" => of.is_bad_input;
}

/// A finding and its wording.
pub(crate) struct FindingRow<'a> {
    pub finding: &'a Finding,
    pub worded: FindingText,
    pub next: Vec<String>,
}

impl<'a> FindingRow<'a> {
    pub fn new(finding: &'a Finding, snapshot: &Snapshot) -> FindingRow<'a> {
        let worded = describe_finding(finding, snapshot);
        let next = worded.command_lines(snapshot);
        FindingRow { finding, worded, next }
    }
}

fields! { fn finding_fields<'a>(of: FindingRow<'a>);
    "id": string, "identifier of the finding" => of.finding.kind.id();
    "weight": string, "`notice`, `cost`, `failure`" => of.finding.weight.name();
    "sentence": string, "the finding in one sentence" => of.worded.sentence.as_str();
    "evidence": array, "phrases" => vec![of.worded.evidence.clone()];
    "next": array, "commands for a closer look, followed by the command that fixes it" => of.next.clone();
}
