//! The memory that a program needs, as two tables: a row per curve, and a row per limit.

use pagelab_metrics::effect::ExperimentEffects;
use pagelab_metrics::memory_need::memory_curves;
use pagelab_model::experiment::Experiment;

use super::{Columns, CsvTable};
use crate::json::memory_needs::{LimitRow, NeedRow, limit_fields, need_fields};
use crate::memory_needs::curve_label;

/// Returns the tables; there are none unless a memory limit varies.
pub(super) fn need_tables(experiment: &Experiment) -> Vec<CsvTable<'static>> {
    let plan = &experiment.plan;
    let curves = memory_curves(experiment, &ExperimentEffects::from_experiment(experiment));
    if curves.is_empty() {
        return Vec::new();
    }
    let needs = curves.iter().map(|curve| NeedRow { plan, curve, sentences: Vec::new() });
    let needs: Vec<NeedRow<'_>> = needs.collect();
    let limits = needs
        .iter()
        .flat_map(|need| need.curve.points.iter().map(move |point| (need, LimitRow { plan, point })));
    vec![
        Columns::<&NeedRow<'_>>::new()
            .fields(need_fields, "workload judged_by", |of| Some(*of))
            .column("common", |of| curve_label(of.curve).into())
            .fields(
                need_fields,
                "loss rounds need_bytes too_little_bytes enough_bytes knee_bytes dies_at_bytes \
                 lives_at_bytes",
                |of| Some(*of),
            )
            .collect("needs", needs.iter()),
        Columns::<(&NeedRow<'_>, LimitRow<'_>)>::new()
            .fields(need_fields, "workload", |(need, _)| Some(*need))
            .column("common", |(need, _)| curve_label(need.curve).into())
            .fields(limit_fields, "variant limit_bytes done dead timed_out failed", |(_, of)| Some(*of))
            .column("pairs", |(_, of)| of.point.pairs.pair_count().into())
            .fields(
                limit_fields,
                "ratio ratio_low=ratio_interval.low ratio_high=ratio_interval.high fitted_ratio",
                |(_, of)| Some(*of),
            )
            .collect("limits", limits),
    ]
}
