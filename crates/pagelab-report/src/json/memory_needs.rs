//! JSON of how much memory a program needs: `docs/json.md` lists fields and units.

use pagelab_metrics::effect::{CONFIDENCE_LEVEL, ExperimentEffects};
use pagelab_metrics::memory_need::{LimitPoint, MemoryCurve, MemoryNeed, memory_curves};
use pagelab_model::experiment::{Experiment, Plan};
use pagelab_model::run::Manifest;
use serde_json::Value;

use super::experiment::{interval_json, settings_json, variant_name, workload_name};
use crate::fields::fields;
use crate::memory_needs::{NeedContext, describe_curve};

/// Builds an object for each workload and each set of variants that differ only in their limit.
pub(super) fn needs_document(
    experiment: &Experiment,
    effects: &ExperimentEffects,
    manifest: &Manifest,
) -> Value {
    let plan = &experiment.plan;
    let page_bytes = manifest.machine.page_size.bytes();
    let row = |curve: &MemoryCurve| {
        let ground = effects.workloads.iter().find(|of| of.workload == curve.workload);
        let ground =
            ground.map(|effects| NeedContext { plan, settings: &manifest.settings, effects, page_bytes });
        let sentences = ground.map(|ground| describe_curve(curve, ground)).unwrap_or_default();
        need_fields().object(&NeedRow { plan, curve, sentences })
    };
    memory_curves(experiment, effects).iter().map(row).collect()
}

/// The memory that a workload needs, beside its plan.
pub(crate) struct NeedRow<'a> {
    pub plan: &'a Plan,
    pub curve: &'a MemoryCurve,
    /// The result in words; the first is the reason if there is no number.
    pub sentences: Vec<String>,
}

impl NeedRow<'_> {
    fn need(&self) -> Option<&MemoryNeed> {
        self.curve.memory_need.as_ref().ok()
    }

    fn limit(&self, point: Option<usize>) -> Option<u64> {
        self.curve.points.get(point?)?.limit.map(|limit| limit.0)
    }

    fn known(&self, bytes: Option<u64>) -> Result<Value, String> {
        bytes.map(Value::from).ok_or_else(|| self.sentences.first().cloned().unwrap_or_default())
    }
}

const SURVIVED_REASON: &str = "it is killed under none of the limits";
const NO_RATIO_REASON: &str = "it was killed, was not measured, or is the largest limit";

fields! { fn need_fields<'a>(of: NeedRow<'a>);
    "workload": string, "its name" => workload_name(of.plan, of.curve.workload);
    "judged_by": string, "the measure by which it is judged" => of.curve.measure.as_str();
    "common": array, "settings that the variants share: `key`, `value`" => settings_json(&of.curve.common);
    "loss": number, "the requested loss: 0.05" => of.curve.loss;
    "rounds": integer, "rounds in which the largest limit was measured" => of.curve.rounds;
    "says": array, "the result in phrases, the answer first" => of.sentences.clone();
    "need_bytes": integer (reading), "where the monotone fit crosses the loss" =>
        of.known(of.need().and_then(|need| need.estimate).map(|bytes| bytes.round() as u64));
    "too_little_bytes": integer (reading), "the largest limit shown to be too little" =>
        of.known(of.limit(of.need().and_then(|need| need.largest_insufficient)));
    "enough_bytes": integer (reading), "the smallest limit shown to be enough" =>
        of.known(of.limit(of.need().map(|need| need.smallest_sufficient)));
    "knee_bytes": integer (null: "the curve has no knee, or the knee is unknown"),
        "the limit below which each step costs more than before" => of.limit(of.curve.knee.ok());
    "dies_at_bytes": integer (null: SURVIVED_REASON), "the largest limit under which it died" =>
        of.limit(of.curve.fatal_limits.map(|dies| dies.largest_fatal));
    "lives_at_bytes": integer (null: SURVIVED_REASON), "the next limit, under which it survived" =>
        of.limit(of.curve.fatal_limits.and_then(|dies| dies.next_survived));
    "limits": array, "ascending, below" =>
        limit_fields().array(of.curve.points.iter().map(|point| LimitRow { plan: of.plan, point }));
}

/// A memory limit, beside its plan.
#[derive(Clone, Copy)]
pub(crate) struct LimitRow<'a> {
    pub plan: &'a Plan,
    pub point: &'a LimitPoint,
}

fields! { fn limit_fields<'a>(of: LimitRow<'a>);
    "variant": string, "its name" => variant_name(of.plan, of.point.variant);
    "limit_bytes": integer (null: "this variant has no limit"), "the limit" => of.point.limit.map(|of| of.0);
    "done": integer, "trials that ended well" => of.point.completed;
    "dead": integer, "killed for lack of memory, or `timed_out`" => of.point.fatal;
    "timed_out": integer, "took longer than they may" => of.point.timed_out;
    "failed": integer, "ended for other reasons" => of.point.failed;
    "ratio": number (null: NO_RATIO_REASON), "of its time to that of the largest limit" => of.point.ratio();
    "ratio_interval": object (null: "fewer than two rounds have it"), "by t: `low`, `high`, `level` 0.95" =>
        interval_json(of.point.interval, CONFIDENCE_LEVEL);
    "fitted_ratio": number (null: "it was killed, or was not measured"), "by the monotone fit" =>
        of.point.fitted_ratio;
}
