//! JSON of a judgement: `docs/json.md` lists fields and units.

use pagelab_metrics::judge::{JudgeVerdict, JudgedComparison, Judgement, badness};
use pagelab_model::experiment::Plan;
use serde_json::Value;

use super::experiment::{baseline_name, interval_json, variant_name, workload_name};
use crate::fields::fields;
use crate::run::judge::{describe_comparison, describe_judgement};

const NO_PAIR: &str = "there is no complete pair";

/// Builds the judgement of an experiment with this plan.
pub fn to_document(judgement: &Judgement, plan: &Plan) -> Value {
    judgement_fields().object(&JudgementRow { plan, judgement })
}

/// A judgement beside its plan.
#[derive(Clone, Copy)]
pub(crate) struct JudgementRow<'a> {
    plan: &'a Plan,
    judgement: &'a Judgement,
}

fields! { fn judgement_fields<'a>(of: JudgementRow<'a>);
    "measure": string, "name of the measure; after its phase and `/`, if it is of one" =>
        of.judgement.measure.as_str();
    "loss": number, "accepted loss as a share" => of.judgement.loss;
    "baseline": string (null: "there is no baseline"), "name of the baseline variant" =>
        baseline_name(of.plan);
    "verdict": string, "`not_worse`, `worse`, `undecided`" => verdict_slug(of.judgement.verdict());
    "sentence": string, "the verdict in words" => describe_judgement(of.judgement);
    "ended_trials": integer, "trials that ended" => of.judgement.ended_trials;
    "failed_trials": integer, "of these, trials that did not end well" => of.judgement.failed_trials;
    "comparisons": array, "each other variant of each workload that has the measure, below" => {
        let row = |comparison| ComparisonRow { of: *of, comparison };
        judged_comparison_fields().array(of.judgement.comparisons.iter().map(row))
    };
}

/// A comparison beside its judgement.
pub(crate) struct ComparisonRow<'a> {
    of: JudgementRow<'a>,
    comparison: &'a JudgedComparison,
}

fields! { fn judged_comparison_fields<'a>(of: ComparisonRow<'a>);
    "workload": string, "name of the workload" => workload_name(of.of.plan, of.comparison.workload);
    "variant": string, "name of the variant" => variant_name(of.of.plan, of.comparison.variant);
    "better": string (null: "no trial of the workload has the measure"), "`lower`, `higher`" =>
        of.comparison.head.as_ref().map(|head| head.better.slug());
    "pairs": integer, "complete pairs" => of.comparison.pair_count();
    "ratio": number (null: NO_PAIR), "geometric mean of variant / baseline over the pairs" =>
        of.comparison.effect.as_ref().map(|effect| effect.ratio);
    "times_as_bad": number (null: NO_PAIR),
        "the ratio, or its inverse where more is better: 1.1 is a loss of 10 %" =>
        of.comparison.effect.as_ref().map(|effect| badness(effect).0);
    "times_as_bad_interval": object (null: "fewer than two complete pairs"),
        "Student's t interval, which decides: `low`, `high`, `level`" =>
        of.comparison.effect.as_ref().and_then(|effect| interval_json(badness(effect).1, effect.level));
    "verdict": string, "`not_worse`, `worse`, `undecided`" => verdict_slug(of.comparison.verdict.kind());
    "sentence": string, "the comparison in words; if it is undecided, with the reason" =>
        describe_comparison(of.of.judgement, of.comparison, of.of.plan);
}

fn verdict_slug(verdict: JudgeVerdict) -> &'static str {
    match verdict {
        JudgeVerdict::NotWorse => "not_worse",
        JudgeVerdict::Worse => "worse",
        JudgeVerdict::Undecided => "undecided",
    }
}
