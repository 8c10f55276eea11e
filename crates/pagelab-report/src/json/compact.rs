//! The JSON of `pagelab compact`: fields and units stand in `docs/json.md`.

use pagelab_metrics::checkup::{Checkup, ZoneIndex};
use pagelab_metrics::compaction::{Activity, Compaction, Verdict, Worker};
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
    let freed = compaction.freed.zip(compaction.drop_ns).map(|(freed, _)| freed);
    let signed = |bytes: i128| i64::try_from(bytes).unwrap_or(i64::MAX);
    header("compact")
        .put("verdict", verdict)
        .put("page_size_bytes", after.machine.page_size.bytes())
        .put("huge_page_bytes", after.machine.page_size.block(after.pmd_order).0)
        .put("compact_ns", compaction.compact_ns)
        .option("drop_caches_ns", compaction.drop_ns, NOT_DROPPED)
        .option("page_cache_freed_bytes", freed.map(|freed| signed(freed.page_cache)), NOT_DROPPED)
        .option("slab_freed_bytes", freed.map(|freed| signed(freed.slab)), NOT_DROPPED)
        .put("activity", array(&compaction.activity, activity))
        .put("before", look(before, &compaction.before))
        .put("after", look(after, &compaction.after))
        .into()
}

const NOT_DROPPED: &str = "no cache was dropped, or meminfo could not be read";

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
