//! JSON of the parts of an experiment that the simulator adds: configurations, exact values, series,
//! differences and sweeps.

use pagelab_metrics::effect::{DifferenceCount, DifferenceVerdict, PairedDifference, RankInterval};
use pagelab_metrics::sweep::{FactorInfluence, SweepPoint, judge_sweep};
use pagelab_model::experiment::{Experiment, Plan};
use pagelab_model::simulation::{GridPoint, SimulatedWorkload, TrialSeries};
use serde_json::Value;

use super::{variant_name, workload_name};
use crate::fields::fields;
use crate::json::object::{JsonObject, to_array};

fields! { fn configuration_fields(of: SimulatedWorkload);
    "machine": string, "the simulated machine" => of.machine.as_str();
    "kernelcore_bytes": integer (null: "the machine's default"), "memory outside ZONE_MOVABLE" =>
        of.kernelcore;
    "load": string, "the load" => of.load.as_str();
    "parameters": array, "parameters that differ from the default: `name`, `value`" =>
        to_array(&of.parameters, |(name, value)| {
            JsonObject::new().field("name", name.as_str()).field("value", *value)
        });
}

/// Builds the points and the seeds of a grid.
pub(super) fn grid_json(plan: &Plan) -> Option<JsonObject> {
    let grid = plan.schedule.grid()?;
    let point = |of: &GridPoint| {
        JsonObject::new()
            .field("workload", workload_name(plan, of.workload))
            .field("variant", variant_name(plan, of.variant))
            .field("varied", of.values.clone())
    };
    let object = JsonObject::new().field("seeds", grid.seeds.clone());
    Some(object.field("points", to_array(&grid.points, point)))
}

fields! { fn series_fields(of: TrialSeries);
    "name": string, "name of the series" => of.name.as_str();
    "over": string, "quantity on the x axis" => of.over.as_str();
    "points_ppm": array, "pairs of position and value, in millionths" =>
        of.points.iter().map(|&(at, value)| vec![at as i64, value]).collect::<Value>();
}

pub(super) fn interval_json(interval: RankInterval) -> Value {
    let RankInterval { low, high, level } = interval;
    JsonObject::new().field("low", low).field("high", high).field("level", level).into()
}

fields! { fn difference_fields(of: PairedDifference);
    "pairs": integer, "seeds with a value of both variants" => of.pairs;
    "middle": number, "Hodges–Lehmann estimate" => of.hodges_lehmann;
    "interval": object (null: "fewer than 6 pairs"),
        "interval of Wilcoxon's signed-rank test: `low`, `high`, `level`" =>
        of.interval.map(interval_json);
    "verdict": string, "`more`, `less`, `not_seen`, `same` (0 for every seed), `too_few`" =>
        difference_slug(of.verdict);
}

/// Returns the name of a difference's verdict.
fn difference_slug(verdict: DifferenceVerdict) -> &'static str {
    match verdict {
        DifferenceVerdict::TooFew => "too_few",
        DifferenceVerdict::Equal => "same",
        DifferenceVerdict::NoDifference => "not_seen",
        DifferenceVerdict::More => "more",
        DifferenceVerdict::Less => "less",
    }
}

pub(super) fn differences_json(count: &DifferenceCount) -> JsonObject {
    JsonObject::new()
        .optional("noise_floor", None::<f64>, "none: simulated trials with the same seed are bit-identical")
        .field("judged", count.judged)
        .field("wide", count.wide)
        .field("missed_by_chance", count.missed_by_chance)
}

pub(super) fn sweep_json(experiment: &Experiment) -> Option<JsonObject> {
    experiment.plan.sweep.as_ref()?;
    let judgement = judge_sweep(experiment).ok()?;
    let names: Vec<&str> = experiment.plan.varied().iter().map(|of| of.name.as_str()).collect();
    Some(
        JsonObject::new()
            .field("varied", names)
            .field("figure", judgement.figure.as_str())
            .field("unit", judgement.unit.as_str())
            .field("influences", influence_fields().array(&judgement.influences))
            .field("points", point_fields().array(&judgement.points)),
    )
}

fields! { fn influence_fields(of: FactorInfluence);
    "name": string, "name of the factor" => of.name.as_str();
    "levels": integer, "number of distinct values" => of.levels;
    "share": number, "share of the variance of the figure's ranks that the factor explains" =>
        of.variance_share;
    "rho": number (null: "the values are not numbers"), "Spearman's correlation" => of.spearman_rho;
    "chance": number, "p-value: how often a random order explains as much" => of.p_value;
    "chance_least": number,
        "smallest possible `chance` for this number of points; above 0.05, no influence can be detected" =>
        of.p_value_min;
}

fields! { fn point_fields(of: SweepPoint);
    "point": integer, "index of the point" => of.point;
    "median": number, "median of the figure over the seeds" => of.median;
    "seeds": integer, "number of seeds" => of.seeds;
}
