//! An experiment as tables: trials, their measures, their flags, and the effects.

use pagelab_metrics::effect::ExperimentEffects;
use pagelab_metrics::sweep::{FactorInfluence, SweepJudgement, SweepPoint, judge_sweep};
use pagelab_model::experiment::{Experiment, Flag, Measure, PlannedVariant, PlannedWorkload};
use pagelab_model::simulation::{SimulatedWorkload, TrialSeries};
use serde_json::Value;

use super::{Columns, CsvTable, needs};
use crate::json::experiment::simulated::{
    configuration_fields, difference_fields as paired_difference_fields, influence_fields, point_fields,
    series_fields,
};
use crate::json::experiment::{
    EffectRow, TrialRow, baseline_name, column_fields, difference_fields, effect_fields, exact_fields,
    flag_fields, measure_effect_fields, measure_fields, median_fields, ratio_measure_fields, slot_fields,
    trial_fields, value_fields, variant_effect_fields, variant_fields, workload_effect_fields,
    workload_fields,
};

pub(super) fn experiment_tables(experiment: &Experiment) -> Vec<CsvTable<'_>> {
    let trials = move || trial_rows(experiment);
    let mut tables = vec![
        variants_table(experiment),
        trial_columns(|row: &TrialRow<'_>| Some(*row))
            .fields(trial_fields, "began_ns ended_ns end end_number end_detail last_output", |row| Some(*row))
            .table("trials", trials()),
        measures_table(experiment),
    ];
    if experiment.trials.iter().any(|trial| !trial.flags.is_empty()) {
        let rows = trials().flat_map(|of| of.trial.flags.iter().map(move |flag| (of, flag)));
        tables.push(
            Columns::<(TrialRow<'_>, &Flag)>::new()
                .fields(trial_fields, "slot", |(of, _)| Some(*of))
                .fields(flag_fields, "kind text", |(_, flag)| Some(*flag))
                .table("flags", rows),
        );
    }
    if experiment.plan.is_simulated() {
        tables.push(workloads_table(experiment));
    }
    if experiment.trials.iter().any(|trial| !trial.series.is_empty()) {
        tables.push(series_table(experiment));
    }
    tables.push(effects_table(experiment));
    if let Some(judgement) = judge_sweep(experiment).ok().filter(|_| experiment.plan.sweep.is_some()) {
        tables.extend(sweep_tables(experiment, judgement));
    }
    tables.extend(needs::need_tables(experiment));
    tables
}

fn trial_rows(experiment: &Experiment) -> impl Iterator<Item = TrialRow<'_>> {
    let plan = &experiment.plan;
    experiment.trials.iter().map(move |trial| TrialRow { plan, trial, measures: &[] })
}

/// The first columns of tables of trials.
fn trial_columns<'a, R: 'a>(trial: fn(&R) -> Option<TrialRow<'a>>) -> Columns<'a, R> {
    let slot = move |row: &R| trial(row)?.slot();
    Columns::new()
        .fields(trial_fields, "slot", trial)
        .fields(slot_fields, "workload variant round", slot)
        .fields(trial_fields, "seed", trial)
        .fields(slot_fields, "role", slot)
}

fn workloads_table(experiment: &Experiment) -> CsvTable<'_> {
    let simulated = experiment.plan.workloads.iter().filter_map(|of| Some((of, of.simulated.as_ref()?)));
    let parameters = |of: &(&PlannedWorkload, &SimulatedWorkload)| {
        let each: Vec<String> =
            of.1.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        each.join(" ").into()
    };
    Columns::<(&PlannedWorkload, &SimulatedWorkload)>::new()
        .fields(workload_fields, "workload=name", |(workload, _)| Some(*workload))
        .fields(configuration_fields, "machine kernelcore_bytes load", |(_, of)| Some(*of))
        .column("parameters", parameters)
        .table("workloads", simulated)
}

fn series_table(experiment: &Experiment) -> CsvTable<'_> {
    type SeriesRow<'a> = (TrialRow<'a>, &'a TrialSeries, (u64, i64));
    let rows = trial_rows(experiment).flat_map(|of| {
        let series = of.trial.series.iter();
        series.flat_map(move |series| series.points.iter().map(move |&point| (of, series, point)))
    });
    trial_columns(|(trial, ..): &SeriesRow<'_>| Some(*trial))
        .fields(series_fields, "series=name over", |(_, series, _)| Some(*series))
        .column("at", |(.., (at, _))| (*at).into())
        .column("value_ppm", |(.., (_, value))| (*value).into())
        .table("trial_series", rows)
}

/// The influence of each varied factor, and the points of a sweep, highest first.
fn sweep_tables(experiment: &Experiment, judgement: SweepJudgement) -> [CsvTable<'_>; 2] {
    let SweepJudgement { figure, unit, points, influences } = judgement;
    let judged = figure.clone();
    let of_influence = Columns::<FactorInfluence>::new()
        .column("figure", move |_| judged.as_str().into())
        .fields(influence_fields, "varied=name values=levels", |of| Some(of.clone()))
        .column("share_of_ranks", |of| of.variance_share.to_string().into())
        .column("rho", |of| of.spearman_rho.map(|rho| rho.to_string()).into())
        .column("chance", |of| of.p_value.to_string().into());
    let of_point = Columns::<SweepPoint>::new().fields(point_fields, "point", |of| Some(*of));
    let plan = &experiment.plan;
    let of_point = plan.varied().iter().enumerate().fold(of_point, |columns, (at, of)| {
        let value = move |of: &SweepPoint| -> Option<Value> {
            Some(plan.point(of.point)?.values.get(at)?.as_str().into())
        };
        columns.column(&of.name, move |of| value(of).unwrap_or_default())
    });
    let of_point = of_point
        .column("figure", move |_| figure.as_str().into())
        .column("median", |of| of.median.to_string().into())
        .column("unit", move |_| unit.as_str().into())
        .fields(point_fields, "seeds", |of| Some(*of));
    [of_influence.table("influences", influences.into_iter()), of_point.table("points", points.into_iter())]
}

fn variants_table(experiment: &Experiment) -> CsvTable<'_> {
    let variants = experiment.plan.variants.iter();
    let rows =
        variants.flat_map(|variant| variant.settings.iter().map(move |(key, value)| (variant, key, value)));
    Columns::<(&PlannedVariant, &String, &String)>::new()
        .fields(variant_fields, "variant=name", |(variant, ..)| Some(*variant))
        .column("key", |(_, key, _)| key.as_str().into())
        .column("value", |(.., value)| value.as_str().into())
        .table("variants", rows)
}

fn measures_table(experiment: &Experiment) -> CsvTable<'_> {
    let rows =
        trial_rows(experiment).flat_map(|of| of.trial.measures.iter().map(move |measure| (of, measure)));
    let all = || measure_fields().and(value_fields()).and(exact_fields());
    trial_columns(|(trial, _): &(TrialRow<'_>, &Measure)| Some(*trial))
        .column("phase", |(_, of)| of.phase.as_str().into())
        .fields(all, "measure=name unit better value numerator denominator", |(_, of)| Some(*of))
        .column("absent_reason", |(_, of)| of.value.as_ref().err().map(ToString::to_string).into())
        .fields(all, "source", |(_, of)| Some(*of))
        .table("measures", rows)
}

fn effects_table(experiment: &Experiment) -> CsvTable<'_> {
    let plan = &experiment.plan;
    let workloads = ExperimentEffects::from_experiment(experiment).workloads.into_iter();
    let rows = workloads.flat_map(move |of| {
        let (measures, row) = (0..of.measures.len(), EffectRow::new(plan, of, true));
        measures.flat_map(move |measure| row.with_measure(measure).rows())
    });
    fn all<'a>(row: &EffectRow<'a>) -> Option<EffectRow<'a>> {
        Some(row.clone())
    }
    let measure = || measure_effect_fields().and(ratio_measure_fields()).and(column_fields());
    let variant =
        || effect_fields().and(variant_effect_fields()).and(median_fields()).and(difference_fields());
    Columns::<EffectRow<'_>>::new()
        .fields(workload_effect_fields, "workload", all)
        .column("phase", |row| row.measure().phase.as_str().into())
        .fields(measure, "measure=name unit better contrast variant point", all)
        .column("baseline", |row| baseline_name(row.plan).into())
        .column("values", |row| row.variant().values.len().into())
        .fields(
            variant,
            "median pairs=pairs|difference.pairs ratio ratio_low=ratio_interval.low \
             ratio_high=ratio_interval.high ratio_median speed_up saved_percent permutation_p \
             verdict=verdict|difference.verdict",
            all,
        )
        .fields(measure, "noise_floor=noise_floor.ratio", all)
        .fields(
            variant,
            "median_low=median_interval.low median_high=median_interval.high \
             median_level=median_interval.level",
            all,
        )
        .fields(
            paired_difference_fields,
            "difference=middle difference_low=interval.low difference_high=interval.high \
             difference_level=interval.level",
            |row| row.variant().difference().copied(),
        )
        .fields(measure, "source", all)
        .column("absent_reason", |row| {
            let absent = row.measure().absent.as_ref().or(row.variant().effect_absence());
            absent.map(ToString::to_string).into()
        })
        .table("effects", rows)
}
