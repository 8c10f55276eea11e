//! `pagelab checkup --json`: the whole look, exact, under the contract of docs/json.md.

use pagelab_metrics::balance::FreeVerdict;
use pagelab_metrics::checkup::{Checkup, ZoneIndex};
use pagelab_metrics::findings::Finding;
use pagelab_metrics::history::History;
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::pressure::{Pressure, PressureLine};
use pagelab_model::process::ProcessCoverage;
use pagelab_model::snapshot::{AllocFailures, OomKill, OomScope, Problem};
use pagelab_model::{Bytes, Counters, Meminfo, Snapshot};
use serde_json::Value;

use super::object::{Object, array, reason};
use super::{NOTHING_FREE, machine, probe, supply, zones};
use crate::checkup::verdict;
use crate::findings::word;

const NOT_COUNTED: &str = "this kernel does not count it";
const NOT_SEPARATE: &str = "this kernel's meminfo does not have the fields";

/// The whole document.
pub fn document(snapshot: &Snapshot, checkup: &Checkup) -> Value {
    super::header("checkup")
        .put("taken", taken(snapshot))
        .put("machine", machine::machine(snapshot))
        .put("settings", machine::settings(&snapshot.settings))
        .put("fragmentation", fragmentation(snapshot, checkup))
        .reading("supply", &checkup.supply, |supply| supply::supply(supply, snapshot))
        .put("use", usage(snapshot, checkup))
        .reading("pressure", &snapshot.pressure, |pressure| pressure_of(pressure).into())
        .reading("since_boot", &snapshot.vmstat, |_| since_boot(&checkup.history.unwrap_or_default()).into())
        .reading("vmstat", &snapshot.vmstat, counters)
        .reading("processes", &snapshot.processes, |coverage| processes(coverage).into())
        .reading("allocation_failures", &snapshot.alloc_failures, |log| failures(log).into())
        .option("probe", snapshot.probe.as_ref().map(probe::probe), "not asked for; --probe")
        .put("instruments", instruments(snapshot))
        .put("findings", array(&checkup.findings, |finding| finding_of(finding, snapshot)))
        .option("verdict", verdict(snapshot, checkup), "there are findings")
        .put("problems", array(&snapshot.problems, problem))
        .into()
}

fn taken(snapshot: &Snapshot) -> Object {
    let taken = &snapshot.taken;
    Object::new()
        .put("from", taken.from.as_str())
        .option("realtime_ns", taken.realtime_ns, "the saved tree does not say")
        .option("boottime_ns", taken.boottime_ns, "the saved tree does not say")
        .option("euid", taken.euid, "a saved tree is read, not a live machine")
}

fn fragmentation(snapshot: &Snapshot, checkup: &Checkup) -> Object {
    let object = Object::new()
        .put("pmd_order", snapshot.pmd_order.0)
        .put("pageblock_order", snapshot.pageblock_order.0)
        .put("pageblock_order_source", snapshot.pageblock_order_source.as_str())
        .reading("zones", &snapshot.buddyinfo, |_| array(&checkup.zones, zone_index));
    let object = match (&checkup.comparison, &snapshot.extfrag) {
        (Some(comparison), _) => object.put(
            "kernel_comparison",
            Object::new()
                .put("cells", comparison.cells)
                .put("cells_differing", comparison.differ)
                .put("tries", comparison.tries),
        ),
        (None, Err(absence)) => object.option("kernel_comparison", None::<Value>, &reason(absence)),
        (None, Ok(_)) => object.option("kernel_comparison", None::<Value>, "not compared"),
    };
    let balance = checkup.balance.map(|balance| {
        let (verdict, deferred) = match balance.verdict {
            FreeVerdict::Agree => ("agree", 0),
            FreeVerdict::Deferred(pages) => ("deferred_initialisation", pages.0),
            FreeVerdict::Unaccepted(pages) => ("unaccepted", pages.0),
            FreeVerdict::Unexplained => ("unexplained", 0),
        };
        Object::new()
            .put("on_lists_pages", balance.on_lists)
            .put("counted_pages", balance.counted)
            .option("unmanaged_pages", balance.unmanaged, "zoneinfo does not say")
            .put("deferred_pages", deferred)
            .put("tolerance_pages", balance.tolerance)
            .put("moved_pages", snapshot.free_moved.0)
            .put("verdict", verdict)
    });
    object
        .option("free_balance", balance, "meminfo or buddyinfo could not be read")
        .reading("by_migratetype", &snapshot.pagetypeinfo, |types| zones::by_migratetype(types).into())
        .reading("zoneinfo", &snapshot.zoneinfo, zones::zoneinfo)
}

fn zone_index(zone: &ZoneIndex) -> Object {
    let is_defined = zone.areas.free_pages() > 0;
    Object::new()
        .put("node", zone.key.node.0)
        .put("zone", zone.key.zone.as_str())
        .put("free_bytes", zone.free.0)
        .put("free_blocks", zone.areas.counts().to_vec())
        .put("huge_pages_now", zone.huge_now)
        .option("unusable_index", is_defined.then(|| zone.unusable.clone()), NOTHING_FREE)
        .put("unusable_index_permille", zone.unusable_permille.clone())
        .put("fragmentation_index_permille", zone.fragmentation_permille.clone())
        .put("fragmentation_index_paper", zone.fragmentation_paper.clone())
}

fn usage(snapshot: &Snapshot, checkup: &Checkup) -> Object {
    let usage = checkup.usage.unwrap_or_default();
    let parts = |object: Object, usage: MemoryUse| {
        let fields: [(&str, Option<Bytes>); 15] = [
            ("total_bytes", usage.total),
            ("free_bytes", usage.free),
            ("available_bytes", usage.available),
            ("programs_bytes", usage.programs),
            ("programs_huge_bytes", usage.programs_huge),
            ("page_cache_bytes", usage.page_cache),
            ("dirty_bytes", usage.dirty),
            ("slab_bytes", usage.slab),
            ("slab_reclaimable_bytes", usage.slab_reclaimable),
            ("page_tables_bytes", usage.page_tables),
            ("kernel_stacks_bytes", usage.kernel_stacks),
            ("hugetlb_bytes", usage.hugetlb),
            ("not_accounted_bytes", usage.not_accounted),
            ("swap_total_bytes", usage.swap_total),
            ("swap_used_bytes", usage.swap_used),
        ];
        fields
            .iter()
            .fold(object, |object, (name, part)| object.option(name, part.map(|b| b.0), NOT_SEPARATE))
    };
    parts(Object::new(), usage).reading("meminfo", &snapshot.meminfo, meminfo)
}

fn meminfo(info: &Meminfo) -> Value {
    let field = |object: Object, ((name, value), kib): ((&str, u64), &bool)| {
        let unit = if *kib { "_kib" } else { "" };
        object.put(&format!("{name}{unit}"), value)
    };
    info.fields.iter().zip(&info.in_kib).fold(Object::new(), field).into()
}

pub(super) fn counters(counters: &Counters) -> Value {
    counters.iter().fold(Object::new(), |object, (name, value)| object.put(name, value)).into()
}

fn pressure_of(pressure: &Pressure) -> Object {
    let line = |line: &PressureLine| {
        Object::new()
            .put("avg10_centipercent", line.avg10_centipercent)
            .put("avg60_centipercent", line.avg60_centipercent)
            .put("avg300_centipercent", line.avg300_centipercent)
            .put("total_us", line.total_us)
    };
    Object::new().put("some", line(&pressure.some)).option(
        "full",
        pressure.full.as_ref().map(line),
        "this kernel does not print it",
    )
}

fn since_boot(history: &History) -> Object {
    let fields: [(&str, Option<u64>); 13] = [
        ("thp_fault_given", history.thp_given),
        ("thp_fault_refused", history.thp_refused),
        ("thp_collapsed", history.thp_collapsed),
        ("thp_collapse_refused", history.thp_collapse_refused),
        ("thp_split", history.thp_split),
        ("compact_stalls", history.compact_stalls),
        ("compact_success", history.compact_success),
        ("compact_fail", history.compact_fail),
        ("compact_migrate_scanned_pages", history.compact_migrate_scanned),
        ("reclaim_stalls", history.reclaim_stalls),
        ("refaults", history.refaults),
        ("swapped_pages", history.swapped),
        ("oom_kills", history.oom_kills),
    ];
    fields.iter().fold(Object::new(), |object, (name, value)| object.option(name, *value, NOT_COUNTED))
}

fn processes(coverage: &ProcessCoverage) -> Object {
    let process = |process: &pagelab_model::process::ProcessMemory| {
        Object::new()
            .put("pid", process.pid)
            .option("name", process.name.clone(), "not saved with the tree")
            .put("rss_bytes", process.rss.0)
            .put("anonymous_bytes", process.anonymous.0)
            .put("anon_huge_bytes", process.anon_huge.0)
            .put("shmem_huge_bytes", process.shmem_huge.0)
            .put("file_huge_bytes", process.file_huge.0)
            .put("hugetlb_bytes", process.hugetlb.0)
            .option("thp_enabled", process.thp_enabled, "this kernel's status file does not say")
            .option("eligible_bytes", process.eligible.map(|b| b.0), "not asked for; --deep")
            .put("read_ns", process.read_ns)
    };
    let unreadable = coverage.unreadable.as_ref();
    Object::new()
        .put("largest", array(&coverage.processes, process))
        .put("total", coverage.processes_total)
        .put("unreadable", unreadable.map_or(0, |(count, _)| *count))
        .option("unreadable_reason", unreadable.map(|(_, absence)| reason(absence)), "none was unreadable")
        .put("over_budget", coverage.over_budget)
        .put("budget_spent", coverage.budget_spent)
}

fn failures(log: &AllocFailures) -> Object {
    let report = |report: &pagelab_model::snapshot::AllocFailure| {
        Object::new()
            .option("at_us", report.at_us, "the log was written without times")
            .put("process", report.process.as_str())
            .option("order", report.order, "the report does not name it")
            .put("detail", report.detail.as_str())
    };
    let kill = |kill: &OomKill| {
        let scope = match kill.scope {
            OomScope::Machine => "machine",
            OomScope::ControlGroup => "control_group",
        };
        Object::new()
            .option("at_us", kill.at_us, "the log was written without times")
            .put("scope", scope)
            .option("pid", kill.pid, "the log does not name it")
            .put("process", kill.process.as_str())
            .option("group", kill.group.as_deref(), "the log does not name it")
            .option("limit_bytes", kill.limit.map(|limit| limit.0), "the log does not name it")
    };
    Object::new()
        .put("reports", array(&log.reports, report))
        .put("kills", array(&log.kills, kill))
        .put("log_overwritten", log.log_overwritten)
}

fn instruments(snapshot: &Snapshot) -> Value {
    array(&snapshot.instruments, |instrument| {
        Object::new()
            .put("name", &*instrument.name)
            .put("purpose", &*instrument.purpose)
            .put("works", instrument.state.is_ok())
            .reading("found", &instrument.state, |found| found.as_str().into())
    })
}

fn finding_of(finding: &Finding, snapshot: &Snapshot) -> Object {
    let worded = word(finding, snapshot);
    let next = worded.commands(snapshot);
    Object::new()
        .put("id", finding.kind.id())
        .put("weight", finding.weight.name())
        .put("sentence", worded.sentence)
        .put("evidence", worded.evidence)
        .put("next", next)
}

fn problem(problem: &Problem) -> Object {
    Object::new().put("message", problem.message.as_str()).put("bad_input", problem.bad_input)
}
