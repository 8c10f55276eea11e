//! The JSON of a simulated study: fields and units stand in `docs/json.md`.

use pagelab_metrics::study::{
    Between, Column, Compared, Difference, Group, Influence, Point, Row, Says, sweep,
};
use pagelab_model::study::{Study, StudyCell, StudyFigure, StudySeries, StudyTrial};
use serde_json::Value;

use super::object::{Object, array};

const FEW: &str = "fewer than 6 seeds";

/// The fields of a study, behind those that are there.
pub fn put(object: Object, study: &Study) -> Object {
    let plan = &study.plan;
    let found = Compared::of(study);
    object
        .put("name", plan.name.as_str())
        .put("question", plan.question.as_str())
        .put("explanation", plan.explanation.trim())
        .put("simulator", plan.simulator.as_str())
        .put("seeds", plan.seeds.clone())
        .put("runs_planned", plan.slots().unwrap_or(usize::MAX))
        .put("runs_done", study.trials.len())
        .put("cells", array(&plan.cells, cell))
        .put("tables", array(&found.groups, group))
        .put("judged_differences", found.judged)
        .option("sweep", sweep_of(study), "nothing was varied, or no run has the figure")
        .put("runs", array(&study.trials, |trial| self::trial(study, trial)))
}

fn cell(cell: &StudyCell) -> Object {
    let parameter =
        |(name, value): &(String, u64)| Object::new().put("name", name.as_str()).put("value", *value);
    Object::new()
        .put("machine", cell.machine.as_str())
        .option("kernelcore_bytes", cell.kernelcore, "as the machine has it")
        .put("scheme", cell.scheme.as_str())
        .put("load", cell.load.as_str())
        .put("parameters", array(&cell.parameters, parameter))
        .put("varied", cell.values.clone())
}

fn group(of: &Group) -> Object {
    let row = |row: &Row| {
        let columns: Vec<(usize, &Column)> = of
            .cells
            .iter()
            .zip(&row.columns)
            .filter_map(|(&cell, column)| Some((cell, column.as_ref()?)))
            .collect();
        Object::new()
            .put("phase", row.phase.as_str())
            .put("name", row.name.as_str())
            .put("unit", row.unit.as_str())
            .put("columns", array(&columns, |&(cell, found)| column(cell, found)))
    };
    Object::new().put("cells", of.cells.clone()).put("figures", array(&of.rows, row))
}

fn column(cell: usize, found: &Column) -> Object {
    let value = |&(seed, value): &(u64, f64)| Object::new().put("seed", seed).put("value", value);
    Object::new()
        .put("cell", cell)
        .put("values", array(&found.values, value))
        .put("median", found.median)
        .option("interval", found.interval.map(between), FEW)
        .option(
            "difference",
            found.difference.as_ref().map(difference),
            "it is what the others are compared with, or no seed has both",
        )
}

fn between(of: Between) -> Object {
    Object::new().put("low", of.low).put("high", of.high).put("level", of.level)
}

fn difference(of: &Difference) -> Object {
    Object::new()
        .put("pairs", of.pairs)
        .put("middle", of.middle)
        .option("interval", of.interval.map(between), FEW)
        .put("says", says(of.says))
}

/// The word for what a difference says.
pub(crate) fn says(of: Says) -> &'static str {
    match of {
        Says::TooFew => "too_few",
        Says::Same => "same",
        Says::NotSeen => "not_seen",
        Says::More => "more",
        Says::Less => "less",
    }
}

fn sweep_of(study: &Study) -> Option<Object> {
    let varied = &study.plan.varied;
    let found = sweep(study, None).ok().filter(|_| !varied.is_empty())?;
    let point =
        |of: &Point| Object::new().put("cell", of.cell).put("median", of.median).put("seeds", of.seeds);
    let influence = |of: &Influence| {
        Object::new()
            .put("name", of.name.as_str())
            .put("levels", of.levels)
            .put("share", of.share)
            .option("rho", of.rho, "its values are no numbers")
            .put("chance", of.chance)
            .put("chance_least", of.chance_least)
    };
    let names: Vec<&str> = varied.iter().map(|of| of.name.as_str()).collect();
    Some(
        Object::new()
            .put("varied", names)
            .put("figure", found.figure.as_str())
            .put("unit", found.unit.as_str())
            .put("influences", array(&found.influences, influence))
            .put("points", array(&found.points, point)),
    )
}

fn trial(study: &Study, of: &StudyTrial) -> Object {
    let (cell, seed) = study.plan.slot(of.slot).unwrap_or_default();
    let figure = |of: &StudyFigure| {
        Object::new()
            .put("phase", of.phase.as_str())
            .put("name", of.name.as_str())
            .put("value", of.value)
            .put("per", of.per)
            .put("unit", of.unit.as_str())
    };
    let series = |of: &StudySeries| {
        let points: Vec<Value> = of.points.iter().map(|&(at, value)| vec![at as i64, value].into()).collect();
        Object::new().put("name", of.name.as_str()).put("over", of.over.as_str()).put("points_ppm", points)
    };
    Object::new()
        .put("slot", of.slot)
        .put("cell", cell)
        .put("seed", seed)
        .put("figures", array(&of.figures, figure))
        .put("series", array(&of.series, series))
        .put("pictures", of.pictures.len())
        .put("notes", of.notes.clone())
}
