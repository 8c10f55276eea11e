//! The JSON of how much memory is needed: fields and units stand in `docs/json.md`.

use pagelab_metrics::effect::{Effects, LEVEL};
use pagelab_metrics::need::{Curve, Place, curves};
use pagelab_model::experiment::{Experiment, Plan};
use pagelab_model::run::Manifest;
use serde_json::Value;

use super::experiment::interval;
use super::object::{Object, array};
use crate::needs::{Ground, sentences};

/// One object for each workload and each set of variants that differ in their limit alone.
pub(super) fn needs(experiment: &Experiment, effects: &Effects, manifest: &Manifest) -> Value {
    let plan = &experiment.plan;
    let page_bytes = manifest.machine.page_size.bytes();
    let curve = |curve: &Curve| {
        let ground = effects.workloads.iter().find(|of| of.workload == curve.workload);
        let ground = ground.map(|effects| Ground { plan, settings: &manifest.settings, effects, page_bytes });
        let says = ground.map(|ground| sentences(curve, ground)).unwrap_or_default();
        self::curve(plan, curve, says)
    };
    array(&curves(experiment, effects), curve)
}

fn curve(plan: &Plan, curve: &Curve, says: Vec<String>) -> Object {
    let none = says.first().cloned().unwrap_or_default();
    let limit = |place: usize| curve.places.get(place).and_then(|place| place.limit).map(|limit| limit.0);
    let need = curve.need.as_ref().ok();
    let dies = curve.dies;
    let lives = "it dies under no limit that was tried";
    let setting =
        |(key, value): &(String, String)| Object::new().put("key", key.as_str()).put("value", value.as_str());
    Object::new()
        .put("workload", plan.workloads.get(curve.workload).map_or("", |of| of.name.as_str()))
        .put("judged_by", curve.measure.as_str())
        .put("common", array(&curve.common, setting))
        .put("loss", curve.loss)
        .put("rounds", curve.rounds)
        .put("says", says)
        .option("need_bytes", need.and_then(|need| need.estimate).map(|bytes| bytes.round() as u64), &none)
        .option("too_little_bytes", need.and_then(|need| limit(need.too_little?)), &none)
        .option("enough_bytes", need.and_then(|need| limit(need.enough)), &none)
        .option("knee_bytes", curve.knee.ok().and_then(limit), "the curve has no knee, or it is not known")
        .option("dies_at_bytes", dies.and_then(|dies| limit(dies.at)), lives)
        .option("lives_at_bytes", dies.and_then(|dies| limit(dies.lives_at?)), lives)
        .put("limits", array(&curve.places, |of| place(plan, of)))
}

fn place(plan: &Plan, place: &Place) -> Object {
    let none = "it died, was not measured, or is the largest limit itself";
    Object::new()
        .put("variant", plan.variants.get(place.variant).map_or("", |of| of.name.as_str()))
        .option("limit_bytes", place.limit.map(|limit| limit.0), "this variant has no limit")
        .put("done", place.done)
        .put("dead", place.dead)
        .put("timed_out", place.timed_out)
        .put("failed", place.failed)
        .option("ratio", place.ratio(), none)
        .option("ratio_interval", interval(place.interval, LEVEL), "fewer than two rounds have it")
        .option("fitted_ratio", place.fitted, "it died, or was not measured")
}
