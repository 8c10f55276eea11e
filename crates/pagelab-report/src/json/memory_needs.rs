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

const SURVIVED_REASON: &str = "killed under none of the limits";
const NO_RATIO_REASON: &str = "killed, not measured, or the largest limit itself";

fields! { fn need_fields<'a>(of: NeedRow<'a>);
    "workload": string, "name of the workload" => workload_name(of.plan, of.curve.workload);
    "judged_by": string, "measure by which the workload is judged" => of.curve.measure.as_str();
    "common": array, "settings that the variants share: `key`, `value`" => settings_json(&of.curve.common);
    "loss": number, "acceptable loss, such as 0.05" => of.curve.loss;
    "rounds": integer, "rounds in which the largest limit was measured" => of.curve.rounds;
    "says": array, "the result in sentences, the answer first" => of.sentences.clone();
    "need_bytes": integer (reading), "limit at which the monotone fit crosses the acceptable loss" =>
        of.known(of.need().and_then(|need| need.estimate).map(|bytes| bytes.round() as u64));
    "too_little_bytes": integer (reading), "largest limit that is shown to be too small" =>
        of.known(of.limit(of.need().and_then(|need| need.largest_insufficient)));
    "enough_bytes": integer (reading), "smallest limit that is shown to be sufficient" =>
        of.known(of.limit(of.need().map(|need| need.smallest_sufficient)));
    "knee_bytes": integer (null: "the curve has no knee, or the knee is unknown"),
        "limit below which each further step costs more than the previous one" =>
        of.limit(of.curve.knee.ok());
    "dies_at_bytes": integer (null: SURVIVED_REASON), "largest limit that the workload did not survive" =>
        of.limit(of.curve.fatal_limits.map(|dies| dies.largest_fatal));
    "lives_at_bytes": integer (null: SURVIVED_REASON), "next larger limit, which the workload survived" =>
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
    "variant": string, "name of the variant" => variant_name(of.plan, of.point.variant);
    "limit_bytes": integer (null: "this variant has no limit"), "the limit" => of.point.limit.map(|of| of.0);
    "done": integer, "trials that completed" => of.point.completed;
    "dead": integer, "trials that were killed for lack of memory or timed out" => of.point.fatal;
    "timed_out": integer, "of these, trials that exceeded the time limit" => of.point.timed_out;
    "failed": integer, "trials that failed for other reasons" => of.point.failed;
    "ratio": number (null: NO_RATIO_REASON), "time relative to that under the largest limit" =>
        of.point.ratio();
    "ratio_interval": object (null: "fewer than two rounds have this ratio"),
        "Student's t interval: `low`, `high`, `level` 0.95" =>
        interval_json(of.point.interval, CONFIDENCE_LEVEL);
    "fitted_ratio": number (null: "killed, or not measured"), "ratio according to the monotone fit" =>
        of.point.fitted_ratio;
}
