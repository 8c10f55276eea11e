//! JSON of `pagelab compare`: `docs/json.md` lists fields and units.

use pagelab_metrics::compare::{ComparisonRow, RunCell, RunComparison, RunRatio};
use pagelab_metrics::effect::{CONFIDENCE_LEVEL, Effect};
use pagelab_model::run::Run;
use serde_json::Value;

use super::document_header;
use super::experiment::{interval_json, verdict_slug};
use super::object::{JsonObject, to_array};
use super::run::run_json;
use crate::compare::{MachineDifference, find_differences};
use crate::fields::fields;

/// Builds the document.
pub fn to_document(runs: &[Run], comparison: &RunComparison) -> Value {
    let run = |run: &Run| JsonObject::new().field("name", run.name.as_str()).field("run", run_json(run));
    let difference = |of: &MachineDifference| {
        let values: Vec<Value> = of.values.iter().map(|value| value.as_deref().into()).collect();
        JsonObject::new().field("name", of.name.as_str()).field("values", values)
    };
    document_header("compare")
        .field("runs", to_array(runs, run))
        .field("differences", to_array(&find_differences(runs), difference))
        .field("rows", row_fields().array(&comparison.rows))
        .field("not_compared", comparison.not_compared.clone())
        .into()
}

fields! { fn row_fields(of: ComparisonRow);
    "workload": string, "name of the workload" => of.workload.as_str();
    "variant": string, "name of the variant" => of.variant.as_str();
    "phase": string (left out), "phase of the trial" =>
        Some(of.head.phase.as_str()).filter(|phase| !phase.is_empty());
    "measure": string, "name of the measure" => of.head.name.as_str();
    "unit": string, "unit of the values" => of.head.unit.0.as_str();
    "better": string, "`lower`, `higher`, `neither`" => of.head.better.slug();
    "is_judged": boolean, "whether the workload is judged by this measure" => of.is_judging_measure;
    "cells": array, "one per run, below" => cell_fields().array(&of.cells);
}

const NO_RATIO: &str = "this is the first run, or it or the first run has fewer than two values above 0";

fields! { fn cell_fields(of: RunCell);
    "values": array, "values of the trials that count" => of.values.clone();
    "median": number (null: "no trial has a value"), "median of the values" => of.median;
    "against_first": object (null: NO_RATIO), "geometric mean relative to the first run, below" =>
        of.to_first_run.as_ref().map(|of| run_ratio_fields().object(of));
    "effect": object (null: "this is the baseline, or it has no ratio to the baseline"),
        "relative to the baseline of the same run: `speed_up`, `speed_up_interval`, `verdict`" =>
        of.effect.as_ref().map(effect_json);
    "effect_against_first": object (null: NO_RATIO), "this effect relative to that of the first run, below" =>
        of.effect_to_first_run.as_ref().map(|of| run_ratio_fields().object(of));
}

fields! { fn run_ratio_fields(of: RunRatio);
    "ratio": number, "this run divided by the first run" => of.ratio;
    "ratio_interval": object, "Welch's interval: `low`, `high`, `level` 0.95" =>
        interval_json(Some(of.interval), CONFIDENCE_LEVEL);
    "verdict": string, "as in `experiment`" => verdict_slug(of.verdict);
}

fn effect_json(effect: &Effect) -> JsonObject {
    let (speed_up, found) = effect.speed_up();
    let interval = interval_json(found, effect.level);
    JsonObject::new()
        .field("speed_up", speed_up)
        .optional("speed_up_interval", interval, "a single pair has no interval")
        .field("verdict", verdict_slug(effect.verdict))
}
