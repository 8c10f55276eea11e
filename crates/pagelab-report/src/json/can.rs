//! The JSON of `pagelab can`: fields and units stand in `docs/json.md`.

use pagelab_metrics::can::{Bounds, Forecast, How, Step, Steps, ZoneForecast};
use pagelab_model::{PageClass, Snapshot};
use serde_json::Value;

use super::header;
use super::object::{Object, array};
use crate::can::Got;

/// The document.
pub fn document(snapshot: &Snapshot, forecast: &Forecast, got: &[Got], step: Step) -> Value {
    let ask = forecast.ask;
    let how = match ask.how {
        How::Thp => "thp",
        How::Hugetlb => "hugetlb",
        How::Contig => "contig",
    };
    let unseen = forecast.unseen.as_ref().map(super::object::reason);
    let reason = unseen.as_deref().unwrap_or_default();
    let zone = |zone: &ZoneForecast| {
        let object = Object::new()
            .put("node", zone.key.node.0)
            .put("zone", zone.key.zone.as_str())
            .put("blocks", zone.blocks)
            .put("in_use_blocks", zone.in_use)
            .put("kept_by_watermark", zone.kept_by_watermark)
            .put("spoiled_blocks", spoiled(&zone.spoiled));
        steps(object, &zone.steps, forecast.unseen.is_none(), reason)
    };
    let object = header("can")
        .option("answer", forecast.is_yes(step).map(|yes| if yes { "yes" } else { "no" }), reason)
        .put("after", step_name(step))
        .put("count", ask.count)
        .put("size_bytes", snapshot.machine.page_size.block(ask.order).0)
        .put("order", ask.order.0)
        .put("how", how)
        .option("node", ask.node.map(|node| node.0), "all nodes");
    steps(object, &forecast.total, forecast.unseen.is_none(), reason)
        .put("spoiled_blocks", spoiled(&forecast.spoiled()))
        .put("zones", array(&forecast.zones, zone))
        .put("notes", forecast.notes.clone())
        .put("really", array(got, |got| really(forecast, got)))
        .into()
}

fn step_name(step: Step) -> &'static str {
    match step {
        Step::Nothing => "nothing",
        Step::Compaction => "compaction",
        Step::Cache => "cache",
    }
}

fn steps(object: Object, steps: &Steps, is_seen: bool, reason: &str) -> Object {
    object
        .put("now", bounds(steps.now))
        .option("after_compaction", is_seen.then(|| bounds(steps.after_compaction)), reason)
        .option("after_dropping_cache", is_seen.then(|| bounds(steps.after_dropping_cache)), reason)
}

fn bounds(bounds: Bounds) -> Value {
    Object::new().put("low", bounds.low).put("expected", bounds.expected).put("high", bounds.high).into()
}

fn spoiled(spoiled: &[(PageClass, u64)]) -> Value {
    let mut object = Object::new();
    for (class, blocks) in spoiled {
        object = object.put(class.name(), *blocks);
    }
    object.into()
}

fn really(forecast: &Forecast, got: &Got) -> Object {
    let object = Object::new().put("after", step_name(got.step));
    match &got.came {
        Ok(came) => object
            .put("asked", came.asked)
            .put("predicted", came.predicted(forecast.after(got.step)))
            .put("got", came.got)
            .put("error_allowed", forecast.allowed_error(came.got))
            .option("by_collapse", came.by_collapse, "not by MADV_COLLAPSE")
            .put("latency_ns", came.latency_ns.clone())
            .put("read_back_by", came.read_back_by.as_str())
            .put("stopped", came.stopped.as_str()),
        Err(absence) => object.option("got", None::<u64>, &super::object::reason(absence)),
    }
}
