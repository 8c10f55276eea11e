//! JSON of `pagelab can`: `docs/json.md` lists fields and units.

use pagelab_metrics::forecast::{
    AllocationMethod, Forecast, ForecastBounds, ReclaimStep, StepBounds, UpperBound, ZoneForecast,
};
use pagelab_model::{Absence, PageClass, Snapshot};
use serde_json::Value;

use super::document_header;
use super::object::{JsonObject, to_array};
use crate::forecast::StepResult;

/// Builds the document.
pub fn to_document(
    snapshot: &Snapshot,
    forecast: &Forecast,
    results: &[StepResult],
    step: ReclaimStep,
) -> Value {
    let request = forecast.request;
    let method = match request.method {
        AllocationMethod::Thp => "thp",
        AllocationMethod::Hugetlb => "hugetlb",
        AllocationMethod::Contig => "contig",
    };
    let seen = forecast.census_absence.as_ref().map_or(Ok(()), Err);
    let reason = forecast.census_absence.as_ref().map(ToString::to_string).unwrap_or_default();
    let zone = |zone: &ZoneForecast| {
        let object = JsonObject::for_zone(&zone.key)
            .field("blocks", zone.blocks)
            .field("in_use_blocks", zone.in_use)
            .field("kept_by_watermark", zone.held_by_watermark)
            .field("polluted_pageblocks", pollution_json(&zone.polluted));
        with_steps(object, &zone.bounds, &seen)
    };
    let object = document_header("can")
        .optional("answer", forecast.is_met_after(step).map(|yes| if yes { "yes" } else { "no" }), &reason)
        .field("after", step_slug(step))
        .field("count", request.count)
        .field("size_bytes", snapshot.machine.page_size.block_bytes(request.order).0)
        .field("order", request.order.0)
        .field("how", method)
        .optional("node", request.node.map(|node| node.0), "all nodes");
    with_steps(object, &forecast.total_bounds, &seen)
        .optional("upper_bounds", upper_bounds_json(forecast), "known only for sizes up to a pageblock")
        .field("polluted_pageblocks", pollution_json(&forecast.polluted_by_class()))
        .field("zones", to_array(&forecast.zone_forecasts, zone))
        .field("notes", forecast.notes.clone())
        .field("really", to_array(results, |result| step_result_json(forecast, result)))
        .into()
}

fn step_slug(step: ReclaimStep) -> &'static str {
    match step {
        ReclaimStep::Nothing => "nothing",
        ReclaimStep::Compaction => "compaction",
        ReclaimStep::DropCache => "cache",
    }
}

/// Adds the bounds of each step; only the first is known if the pageblocks were not `seen`.
fn with_steps(object: JsonObject, steps: &StepBounds, seen: &Result<(), &Absence>) -> JsonObject {
    object
        .field("now", bounds_json(steps.now))
        .with_reading("after_compaction", seen, |()| bounds_json(steps.after_compaction))
        .with_reading("after_dropping_cache", seen, |()| bounds_json(steps.after_dropping_cache))
}

fn bounds_json(bounds: ForecastBounds) -> Value {
    JsonObject::new()
        .field("low", bounds.low)
        .field("expected", bounds.expected)
        .field("high", bounds.high)
        .into()
}

/// The upper bounds at each step, and the name of the smallest.
fn upper_bounds_json(forecast: &Forecast) -> Option<Value> {
    let steps = ReclaimStep::ALL.map(|step| Some((step, forecast.upper_bounds_after(step)?)));
    let object = steps.into_iter().try_fold(JsonObject::new(), |object, step| {
        let (step, bounds) = step?;
        let smallest = match bounds.smallest().0 {
            UpperBound::Scanners => "scanners",
            UpperBound::Zones => "zones",
            UpperBound::CleanBlocks => "clean_blocks",
            UpperBound::Memory => "memory",
        };
        let of_step = JsonObject::new()
            .field("scanners", bounds.scanners)
            .field("zones", bounds.zones)
            .optional("clean_blocks", bounds.clean_blocks, "smaller pages fit into polluted pageblocks")
            .field("memory", bounds.memory)
            .field("smallest", smallest);
        Some(object.field(step_slug(step), of_step))
    })?;
    Some(object.into())
}

fn pollution_json(polluted: &[(PageClass, u64)]) -> Value {
    let put = |object: JsonObject, (class, blocks): &(PageClass, u64)| object.field(class.name(), *blocks);
    polluted.iter().fold(JsonObject::new(), put).into()
}

fn step_result_json(forecast: &Forecast, results: &StepResult) -> JsonObject {
    let object = JsonObject::new().field("after", step_slug(results.step));
    match &results.outcome {
        Ok(outcome) => object
            .field("requested", outcome.requested)
            .field("predicted", outcome.predicted_pages(forecast.bounds_after(results.step)))
            .field("allocated", outcome.allocated)
            .field("error_allowed", forecast.error_scale(outcome.allocated))
            .optional("by_collapse", outcome.collapsed, "not allocated by MADV_COLLAPSE")
            .field("latency_ns", outcome.latency_ns.clone())
            .field("read_back_by", outcome.verified_by.as_str())
            .field("stopped", outcome.stop_reason.as_str()),
        Err(absence) => object.optional("allocated", None::<u64>, &absence.to_string()),
    }
}
