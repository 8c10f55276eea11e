//! An experiment as tables: trials, their measures, their flags, and the effects.

use pagelab_metrics::effect::{Effects, MeasureEffects, VariantEffect};
use pagelab_model::experiment::{Experiment, Role, Trial};

use super::{Cell, Table, needs, number, option, real, text};
use crate::json::experiment::{better, end, verdict};

/// The first columns of the tables of trials and of measures.
const PLACE: [&str; 5] = ["slot", "workload", "variant", "round", "role"];

pub(super) fn tables(experiment: &Experiment) -> Vec<Table<'_>> {
    let mut tables = vec![variants(experiment), trials(experiment), measures(experiment)];
    if experiment.trials.iter().any(|trial| !trial.flags.is_empty()) {
        let row = |trial: &Trial, flag: &pagelab_model::experiment::Flag| {
            vec![number(trial.slot), text(&flag.kind), text(&flag.text)]
        };
        let rows =
            experiment.trials.iter().flat_map(move |of| of.flags.iter().map(move |flag| row(of, flag)));
        tables.push(Table::new("flags", &["slot", "kind", "text"], rows));
    }
    tables.push(effects(experiment));
    tables.extend(needs::tables(experiment));
    tables
}

fn variants(experiment: &Experiment) -> Table<'_> {
    let rows = experiment.plan.variants.iter().flat_map(|variant| {
        variant.settings.iter().map(|(key, value)| vec![text(&variant.name), text(key), text(value)])
    });
    Table::new("variants", &["variant", "key", "value"], rows)
}

/// The cells of `PLACE`.
fn place(experiment: &Experiment, trial: &Trial) -> Vec<Cell> {
    let plan = &experiment.plan;
    let slot = plan.schedule.get(trial.slot);
    let role = |role| match role {
        Role::WarmUp => "warm_up",
        Role::Measured => "measured",
        Role::Twin => "twin",
    };
    let workload = slot.and_then(|slot| plan.workloads.get(slot.workload));
    let variant = slot.and_then(|slot| plan.variants.get(slot.variant));
    vec![
        number(trial.slot),
        option(workload, |of| text(&of.name)),
        option(variant, |of| text(&of.name)),
        option(slot, |slot| number(slot.round)),
        option(slot, |slot| text(role(slot.role))),
    ]
}

fn trials(experiment: &Experiment) -> Table<'_> {
    const HEAD: [&str; 6] = ["began_ns", "ended_ns", "end", "end_number", "end_detail", "last_output"];
    let row = |trial: &Trial| {
        let (word, code, detail) = end(&trial.end);
        let mut cells = place(experiment, trial);
        cells.extend([
            number(trial.began_ns),
            number(trial.ended_ns),
            text(word),
            option(code, number),
            option(detail, text),
            text(&trial.last_output),
        ]);
        cells
    };
    Table::new("trials", &[&PLACE[..], &HEAD].concat(), experiment.trials.iter().map(row))
}

fn measures(experiment: &Experiment) -> Table<'_> {
    const HEAD: [&str; 6] = ["measure", "unit", "better", "value", "absent_reason", "source"];
    let rows = experiment.trials.iter().flat_map(|trial| {
        trial.measures.iter().map(|of| {
            let mut cells = place(experiment, trial);
            cells.extend([
                text(&of.name),
                text(&of.unit.0),
                text(better(of.better)),
                option(of.value.as_ref().ok(), |value| real(*value)),
                option(of.value.as_ref().err(), |absence| text(&crate::json::object::reason(absence))),
                text(&of.source),
            ]);
            cells
        })
    });
    Table::new("measures", &[&PLACE[..], &HEAD].concat(), rows)
}

fn effects(experiment: &Experiment) -> Table<'_> {
    const HEAD: [&str; 20] = [
        "workload",
        "measure",
        "unit",
        "better",
        "variant",
        "baseline",
        "values",
        "median",
        "pairs",
        "ratio",
        "ratio_low",
        "ratio_high",
        "ratio_median",
        "speed_up",
        "saved_percent",
        "permutation_p",
        "verdict",
        "noise_floor",
        "source",
        "absent_reason",
    ];
    let plan = &experiment.plan;
    let baseline = plan.variants.get(plan.baseline).map_or("", |of| of.name.as_str());
    let rows = Effects::of(experiment).workloads.into_iter().flat_map(move |found| {
        let workload = plan.workloads.get(found.workload).map_or("", |of| of.name.as_str());
        found.measures.into_iter().flat_map(move |measure| {
            let measure = std::rc::Rc::new(measure);
            (0..measure.variants.len()).map(move |at| {
                let name = plan.variants.get(at).map_or("", |of| of.name.as_str());
                let mut cells = vec![
                    text(workload),
                    text(&measure.name),
                    text(&measure.unit.0),
                    text(better(measure.better)),
                    text(name),
                    text(baseline),
                ];
                cells.extend(numbers(&measure, &measure.variants[at], plan.seed));
                cells
            })
        })
    });
    Table::new("effects", &HEAD, rows)
}

fn numbers(measure: &MeasureEffects, variant: &VariantEffect, seed: u64) -> Vec<Cell> {
    let effect = variant.effect.as_ref().ok();
    let interval = effect.and_then(|effect| effect.interval);
    let absent = measure.absent.as_ref().or(variant.effect.as_ref().err());
    vec![
        number(variant.values.len()),
        option(variant.statistics, |found| real(found.median)),
        option(effect, |found| number(found.pairs.count())),
        option(effect, |found| real(found.ratio)),
        option(interval, |found| real(found.low)),
        option(interval, |found| real(found.high)),
        option(effect.and_then(|found| found.pairs.spread()), |found| real(found.median)),
        option(effect, |found| real(found.speed_up().0)),
        option(effect, |found| real(found.saved() * 100.0)),
        option(effect.and_then(|found| found.pairs.permutation_p(seed)), real),
        option(effect, |found| text(verdict(found.verdict))),
        option(measure.floor.as_ref().ok(), |floor| real(floor.ratio)),
        text(&measure.source),
        option(absent, |absence| text(&crate::json::object::reason(absence))),
    ]
}
