//! The JSON of `pagelab compare`: fields and units stand in `docs/json.md`.

use pagelab_metrics::compare::{Against, Cell, Comparison, Row};
use pagelab_metrics::effect::{Interval, LEVEL};
use pagelab_model::run::Run;
use serde_json::Value;

use super::experiment::{better, verdict};
use super::header;
use super::object::{Object, array};
use super::run::run_object;
use crate::compare::{Difference, differences};

/// The document.
pub fn document(runs: &[Run], found: &Comparison) -> Value {
    let run = |run: &Run| Object::new().put("name", run.name.as_str()).put("run", run_object(run));
    let difference = |of: &Difference| {
        let values: Vec<Value> = of.values.iter().map(|value| value.as_deref().into()).collect();
        Object::new().put("name", of.name.as_str()).put("values", values)
    };
    header("compare")
        .put("runs", array(runs, run))
        .put("differences", array(&differences(runs), difference))
        .put("rows", array(&found.rows, row))
        .put("refused", found.refused.clone())
        .into()
}

fn row(row: &Row) -> Object {
    Object::new()
        .put("workload", row.workload.as_str())
        .put("variant", row.variant.as_str())
        .put("measure", row.measure.as_str())
        .put("unit", row.unit.0.as_str())
        .put("better", better(row.better))
        .put("is_judged", row.is_judged)
        .put("cells", array(&row.cells, cell))
}

fn interval(found: Interval) -> Value {
    Object::new().put("low", found.low).put("high", found.high).put("level", LEVEL).into()
}

fn against(of: &Against) -> Value {
    Object::new()
        .put("ratio", of.ratio)
        .put("ratio_interval", interval(of.interval))
        .put("verdict", verdict(of.verdict))
        .into()
}

fn cell(cell: &Cell) -> Object {
    let no_ratio =
        "it is the first run, or there are fewer than two values above 0 in it or in the first run";
    let effect = cell.effect.as_ref().map(|effect| -> Value {
        let (speed_up, found) = effect.speed_up();
        Object::new()
            .put("speed_up", speed_up)
            .option("speed_up_interval", found.map(interval), "one pair has no interval")
            .put("verdict", verdict(effect.verdict))
            .into()
    });
    Object::new()
        .put("values", cell.values.clone())
        .option("median", cell.median, "no trial has it")
        .option("against_first", cell.against.as_ref().map(against), no_ratio)
        .option("effect", effect, "it is the baseline, or it has no ratio to it")
        .option("effect_against_first", cell.effect_against.as_ref().map(against), no_ratio)
}
