//! The JSON of `pagelab compact`: fields and units stand in `docs/json.md`.

use pagelab_metrics::checkup::{Checkup, ZoneIndex};
use pagelab_metrics::compaction::{
    Activity, AskingAct, Compaction, EarlyCause, EarlyEnd, KernelAct, ScannerRun, Verdict, Worker,
};
use pagelab_model::Snapshot;
use serde_json::Value;

use super::header;
use super::object::{Object, array};
use super::supply::supply;

/// The document.
pub fn document(before: &Snapshot, after: &Snapshot, compaction: &Compaction) -> Value {
    let verdict = match compaction.verdict() {
        Verdict::Gained(_) => "gained",
        Verdict::NothingToDo => "nothing_to_do",
        Verdict::NothingChanged => "nothing_changed",
    };
    let activity = |activity: &Activity| {
        let by = match activity.by {
            Worker::All => "all",
            Worker::Direct => "direct",
            Worker::Daemon => "daemon",
        };
        Object::new().put("name", activity.name).put("by", by).put("rose", activity.rose)
    };
    let freed = compaction.freed.zip(compaction.acts.drop_ns).map(|(freed, _)| freed);
    let signed = |bytes: i128| i64::try_from(bytes).unwrap_or(i64::MAX);
    header("compact")
        .put("verdict", verdict)
        .put("page_size_bytes", after.machine.page_size.bytes())
        .put("huge_page_bytes", after.machine.page_size.block(after.pmd_order).0)
        .option("compact_ns", compaction.acts.kernel.as_ref().map(|act| act.took_ns), NOT_BY_KERNEL)
        .option(
            "kernel",
            compaction.acts.kernel.as_ref().map(|act| kernel(act, &compaction.early)),
            NOT_BY_KERNEL,
        )
        .option("asking", compaction.acts.asking.as_ref().map(|act| asking(act, compaction)), NOT_ASKED)
        .option("drop_caches_ns", compaction.acts.drop_ns, NOT_DROPPED)
        .option("page_cache_freed_bytes", freed.map(|freed| signed(freed.page_cache)), NOT_DROPPED)
        .option("slab_freed_bytes", freed.map(|freed| signed(freed.slab)), NOT_DROPPED)
        .put("activity", array(&compaction.activity, activity))
        .put("before", look(before, &compaction.before))
        .put("after", look(after, &compaction.after))
        .into()
}

const NOT_DROPPED: &str = "no cache was dropped, or meminfo could not be read";

const NOT_BY_KERNEL: &str = "the kernel was not told to compact";
const NOT_ASKED: &str = "no huge page was asked for";

fn kernel(act: &KernelAct, early: &[EarlyEnd]) -> Object {
    let run = |run: &ScannerRun| {
        Object::new()
            .put("first_pfn", run.first.0)
            .put("end_pfn", run.end.0)
            .put("migrate_pfn", run.migrate.0)
            .put("free_pfn", run.free.0)
            .put("status", run.status)
            .put("failed_pages", run.failed)
    };
    Object::new()
        .put("times", act.times)
        .put("ended_early", array(early, early_end))
        .reading("scanners", &act.runs, |runs| array(runs, run))
        .option("huge_pages_after", act.huge_after, "nobody looked in between")
}

fn early_end(end: &EarlyEnd) -> Object {
    let cause = match end.cause {
        EarlyCause::NoPlace => "no_place",
        EarlyCause::Interrupted => "interrupted",
        EarlyCause::Unknown => "unknown",
    };
    let zone = end.zone.as_ref();
    Object::new()
        .option("node", zone.map(|zone| zone.node.0), NO_ZONE)
        .option("zone", zone.map(|zone| zone.zone.as_str()), NO_ZONE)
        .put("cause", cause)
        .option("unscanned_share", end.unscanned, NO_ZONE)
}

const NO_ZONE: &str = "told by counters alone, which are those of all zones";

fn asking(act: &AskingAct, compaction: &Compaction) -> Object {
    let early = compaction.early_at_end.as_ref().map(|early| array(early, early_end));
    Object::new()
        .put("rounds", act.rounds)
        .put("took_ns", act.took_ns)
        .put("taken_bytes", act.taken.0)
        .put("huge_pages", act.got)
        .put("by_collapse", act.by_collapse)
        .put("stopped", act.stopped)
        .option("ended_early", early, "the kernel was not told to compact again")
}

fn look(snapshot: &Snapshot, checkup: &Checkup) -> Object {
    let zone = |zone: &ZoneIndex| {
        Object::new()
            .put("node", zone.key.node.0)
            .put("zone", zone.key.zone.as_str())
            .put("free_bytes", zone.free.0)
            .put("huge_pages_now", zone.huge_now)
            .put("free_blocks", zone.areas.counts().to_vec())
            .put("unusable_index", zone.unusable.clone())
            .put("fragmentation_index_permille", zone.fragmentation_permille.clone())
    };
    Object::new().put("huge_pages_now", checkup.huge_now()).put("zones", array(&checkup.zones, zone)).reading(
        "supply",
        &checkup.supply,
        |found| supply(found, snapshot),
    )
}
