//! The supply of huge pages in JSON.

use pagelab_metrics::supply::{Culprit, Estimate, GiganticSupply, HugeSupply, Interval, Supply, ZoneSupply};
use pagelab_model::{Coverage, Snapshot};
use serde_json::Value;

use super::object::{Object, array};

const COUNTED: &str = "everything was counted";

/// The whole supply.
pub(super) fn supply(supply: &Supply, snapshot: &Snapshot) -> Value {
    let zone = |zone: &ZoneSupply| {
        let object = Object::new().put("node", zone.key.node.0).put("zone", zone.key.zone.as_str());
        huge(object, &zone.huge)
    };
    let sizes = snapshot.machine.page_size;
    let gigantic = |gigantic: &GiganticSupply| {
        Object::new()
            .put("order", gigantic.order.0)
            .put("page_size_bytes", sizes.block(gigantic.order).0)
            .reading("counts", &gigantic.counts, |counts| {
                Object::new()
                    .put("free_now", counts.free_now)
                    .put("deferred", counts.deferred)
                    .put("contiguous_low", counts.contiguous_low)
                    .put("contiguous_high", counts.contiguous_high)
                    .put("hugetlb", counts.hugetlb)
                    .into()
            })
    };
    Object::new()
        .put("unit_order", supply.unit_order.0)
        .reading("scan", &snapshot.census, |census| {
            let object = Object::new().put("scan_ns", census.scan_ns);
            let object = match census.coverage {
                Coverage::Whole => object.put("coverage", "whole"),
                Coverage::Sample(plan) => object
                    .put("coverage", "sample")
                    .put("seed", plan.seed)
                    .put("blocks", plan.blocks)
                    .put("blocks_total", plan.blocks_total),
            };
            object.into()
        })
        .put("total", huge(Object::new(), &supply.total))
        .put("zones", array(&supply.zones, zone))
        .put("gigantic", array(&supply.gigantic, gigantic))
        .into()
}

fn huge(object: Object, huge: &HugeSupply) -> Object {
    let culprit = |culprit: &Culprit| {
        Object::new()
            .put("class", culprit.class.name())
            .put("holding", estimate(culprit.holding))
            .put("alone", estimate(culprit.alone))
    };
    object
        .option("buddy_now", huge.buddy_now, "buddyinfo could not be read")
        .put("units", estimate(huge.units))
        .put("free_now", estimate(huge.free_now))
        .put("deferred", estimate(huge.deferred))
        .put("in_use", estimate(huge.in_use))
        .put("spoiled", interval(huge.spoiled))
        .option("spoiled_low_per_cpu", huge.spoiled_low_per_cpu, "a sample, or zoneinfo does not say")
        .option("per_cpu_pages", huge.per_cpu_pages, "zoneinfo does not say")
        .put("unknown_pages", estimate(huge.unknown_pages))
        .put("culprits", array(&huge.culprits, culprit))
        .put("after_compaction", interval(huge.after_compaction))
        .put("after_dropping_cache", interval(huge.after_dropping_cache))
}

fn estimate(estimate: Estimate) -> Object {
    Object::new().put("value", estimate.value).option("plus_minus", estimate.plus_minus, COUNTED)
}

fn interval(interval: Interval) -> Object {
    Object::new().put("low", estimate(interval.low)).put("high", estimate(interval.high))
}
