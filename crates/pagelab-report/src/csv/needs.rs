//! How much memory is needed, as two tables: a row a curve, and a row a limit.

use pagelab_metrics::effect::Effects;
use pagelab_metrics::need::{Curve, curves};
use pagelab_model::experiment::Experiment;

use super::{Cell, Table, number, option, real, text};
use crate::needs::label;

const NEEDS: [&str; 11] = [
    "workload",
    "judged_by",
    "common",
    "loss",
    "rounds",
    "need_bytes",
    "too_little_bytes",
    "enough_bytes",
    "knee_bytes",
    "dies_at_bytes",
    "lives_at_bytes",
];
const LIMITS: [&str; 13] = [
    "workload",
    "common",
    "variant",
    "limit_bytes",
    "done",
    "dead",
    "timed_out",
    "failed",
    "pairs",
    "ratio",
    "ratio_low",
    "ratio_high",
    "fitted_ratio",
];

/// Without a limit that varies there are none.
pub(super) fn tables(experiment: &Experiment) -> Vec<Table<'static>> {
    let curves = curves(experiment, &Effects::of(experiment));
    if curves.is_empty() {
        return Vec::new();
    }
    let workload =
        |curve: &Curve| text(experiment.plan.workloads.get(curve.workload).map_or("", |of| &of.name));
    let needs: Vec<Vec<Cell>> = curves.iter().map(|curve| need(workload(curve), curve)).collect();
    let limits: Vec<Vec<Cell>> = curves
        .iter()
        .flat_map(|curve| curve.places.iter().map(move |place| (curve, place)))
        .map(|(curve, place)| {
            let variant = experiment.plan.variants.get(place.variant).map_or("", |of| &of.name);
            vec![
                workload(curve),
                text(&label(curve)),
                text(variant),
                option(place.limit, |limit| number(limit.0)),
                number(place.done),
                number(place.dead),
                number(place.timed_out),
                number(place.failed),
                number(place.pairs.count()),
                option(place.ratio(), real),
                option(place.interval, |found| real(found.low)),
                option(place.interval, |found| real(found.high)),
                option(place.fitted, real),
            ]
        })
        .collect();
    vec![Table::new("needs", &NEEDS, needs.into_iter()), Table::new("limits", &LIMITS, limits.into_iter())]
}

fn need(workload: Cell, curve: &Curve) -> Vec<Cell> {
    let limit = |place: Option<usize>| {
        let bytes = place.and_then(|place| curve.places.get(place)?.limit);
        option(bytes, |bytes| number(bytes.0))
    };
    let need = curve.need.as_ref().ok();
    vec![
        workload,
        text(&curve.measure),
        text(&label(curve)),
        real(curve.loss),
        number(curve.rounds),
        option(need.and_then(|need| need.estimate), |bytes| number(bytes.round() as u64)),
        limit(need.and_then(|need| need.too_little)),
        limit(need.map(|need| need.enough)),
        limit(curve.knee.ok()),
        limit(curve.dies.map(|dies| dies.at)),
        limit(curve.dies.and_then(|dies| dies.lives_at)),
    ]
}
