//! JSON of an experiment: `docs/json.md` lists fields and units.

pub(crate) mod simulated;

use std::rc::Rc;

use pagelab_metrics::effect::{
    CONFIDENCE_LEVEL, Effect, EffectColumn, EffectVerdict, ExperimentEffects, MeasureEffects, NoiseFloor,
    PairedRatios, RatioInterval, ThpAdvice, TrialCounts, VariantEffect, WorkloadEffects,
};
use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::experiment::{
    Contrast, EarlyEnd, Experiment, Flag, Measure, MeasureHead, Plan, PlannedVariant, PlannedWorkload,
    Schedule, ScheduleSlot, Trial, TrialEnd,
};
use pagelab_model::run::Manifest;
use serde_json::Value;

use super::memory_needs;
use super::object::{JsonObject, to_array};
use crate::fields::{fields, read};

const UNTIMED: &str = "simulated trials have no times";
const NO_VALUE: &str = "no trial of this variant has a value";
const ONE_PAIR: &str = "a single pair has no interval";
const NO_PAIRS: &str = "there are no pairs";

/// Builds the plan, the trials and the results.
pub fn to_document(experiment: &Experiment, manifest: &Manifest) -> Value {
    build_document(JsonObject::new(), experiment, Some(manifest), true).into()
}

/// Adds the same fields for an experiment that has no run file.
pub fn with_experiment(object: JsonObject, experiment: &Experiment) -> JsonObject {
    build_document(object, experiment, None, true)
}

/// Builds the same for a page, which would otherwise be many times as large and slow: without the measures of
/// each trial, whose values are in the effects too, and without random draws.
pub fn to_page_document(experiment: &Experiment, manifest: &Manifest) -> Value {
    build_document(JsonObject::new(), experiment, Some(manifest), false).into()
}

fn build_document(
    object: JsonObject,
    experiment: &Experiment,
    manifest: Option<&Manifest>,
    with_measures: bool,
) -> JsonObject {
    let Experiment { plan, trials } = experiment;
    let effects = ExperimentEffects::from_experiment(experiment);
    let needs = manifest.map(|manifest| memory_needs::needs_document(experiment, &effects, manifest));
    let ExperimentEffects { workloads, differences } = effects;
    let workloads = workloads.into_iter().map(|of| EffectRow::new(plan, of, with_measures));
    let trials = trials.iter().map(|trial| {
        let measures = if with_measures { &trial.measures[..] } else { &[] };
        TrialRow { plan, trial, measures }
    });
    object
        .field("plan", plan_fields().object(plan))
        .field("trials", trial_fields().array(trials))
        .field("effects", workload_effect_fields().array(workloads))
        .optional("needs", needs, "the machine is simulated; no memory limit was varied")
        .field("differences", simulated::differences_json(&differences))
        .optional("sweep", simulated::sweep_json(experiment), "not a sweep, or no trial has the measure")
}

fields! { fn plan_fields(of: Plan);
    "name": string, "short name" => of.name.as_str();
    "question": string, "the question that the experiment answers" => of.question.as_str();
    "explanation": string, "description, and how to interpret the numbers" => of.explanation.trim();
    "origin": string, "`built in`, a path, `command line`, `perf stat -x`" => of.origin.as_str();
    "recipe": string, "text of the recipe" => of.recipe.as_str();
    "place": string, "`host`, `guest`, `simulator`, `imported`" => of.place.as_str();
    "simulator": string (null: "the trials are not simulated"),
        "version of the simulator; only results of the same version are comparable" =>
        of.simulator.as_deref();
    "workloads": array, "below" => workload_fields().array(&of.workloads);
    "variants": array, "below" => variant_fields().array(&of.variants);
    "baseline": string (null: "a sweep has no baseline"), "name of the baseline variant" => baseline_name(of);
    "sequence": string, "`abba`, `blocks`, `by_seed` (all points, then the next seed)" => of.sequence.slug();
    "seed": integer, "seed of the trial order and of the workloads; in a grid, the first seed" => of.seed;
    "loss": number, "acceptable slow-down with less memory, as a share of the time" => of.loss;
    "early_end": object (null: "all rounds are run"), "when the run may end before its last round, below" =>
        of.early_end.map(|of| early_end_fields().object(&of));
    "slots": integer, "number of planned trials" => of.schedule.len();
    "schedule": array (null: "the schedule is a grid"), "slots of the schedule, below" => schedule_json(of);
    "grid": object (null: "the schedule is a list"), "points and seeds of the grid, below" =>
        simulated::grid_json(of);
}

fields! { fn early_end_fields(of: EarlyEnd);
    "rounds_max": integer, "planned rounds; the schedule has fewer if the run ended early" => of.rounds_max;
    "looks": boolean, "whether it ends after a look at which every variant has an effect" => of.has_looks;
    "time_budget_ns": integer (null: "the time is not limited"), "limit on the time of all trials" =>
        of.time_budget_ns;
}

pub(crate) fn baseline_name(plan: &Plan) -> Option<&str> {
    plan.variants.get(plan.baseline?).map(|of| of.name.as_str())
}

fields! { fn workload_fields(of: PlannedWorkload);
    "name": string, "unique within the experiment" => of.name.as_str();
    "command": array, "command line, one word per element" => of.command.clone();
    "generator": string, "what generates its memory accesses or its input" => of.generator.as_str();
    "merit": string (null: "judged by its run time"), "measure by which the workload is judged" =>
        of.merit.as_deref();
    "simulated": object (left out), "simulator configuration, below" =>
        of.simulated.as_ref().map(|of| simulated::configuration_fields().object(of));
}

fields! { fn variant_fields(of: PlannedVariant);
    "name": string, "unique within the experiment; in the simulator, the scheme" => of.name.as_str();
    "settings": array, "settings, each with `key` and `value`" => settings_json(&of.settings);
    "asks_for_huge_pages": boolean, "whether it requests huge pages" => of.asks_for_huge_pages;
}

pub(super) fn settings_json(settings: &[(String, String)]) -> Value {
    to_array(settings, |(key, value)| {
        JsonObject::new().field("key", key.as_str()).field("value", value.as_str())
    })
}

/// Builds the slots of a list.
fn schedule_json(plan: &Plan) -> Value {
    match &plan.schedule {
        Schedule::List(slots) => slot_fields().array(slots.iter().map(|&slot| SlotRow { plan, slot })),
        Schedule::Grid(_) => Value::Null,
    }
}

/// A slot of a plan's schedule.
#[derive(Clone, Copy)]
pub(crate) struct SlotRow<'a> {
    pub plan: &'a Plan,
    pub slot: ScheduleSlot,
}

fields! { fn slot_fields<'a>(of: SlotRow<'a>);
    "workload": string, "name of the workload" => workload_name(of.plan, of.slot.workload);
    "variant": string, "name of the variant" => variant_name(of.plan, of.slot.variant);
    "round": integer, "trials of the same workload and round are compared" => of.slot.round;
    "role": string, "`warm_up`, `measured`, `twin` (a second trial of the baseline)" => of.slot.role.slug();
}

pub(crate) fn workload_name(plan: &Plan, workload: usize) -> &str {
    plan.workloads.get(workload).map_or("", |of| of.name.as_str())
}

pub(crate) fn variant_name(plan: &Plan, variant: usize) -> &str {
    plan.variants.get(variant).map_or("", |of| of.name.as_str())
}

/// A trial beside its plan.
#[derive(Clone, Copy)]
pub(crate) struct TrialRow<'a> {
    pub plan: &'a Plan,
    pub trial: &'a Trial,
    /// The shown measures.
    pub measures: &'a [Measure],
}

impl<'a> TrialRow<'a> {
    pub fn slot(&self) -> Option<SlotRow<'a>> {
        Some(SlotRow { plan: self.plan, slot: self.plan.schedule.get(self.trial.slot)? })
    }

    fn point_and_seed(&self) -> Option<(usize, u64)> {
        self.plan.point_and_seed(self.trial.slot)
    }

    /// A simulated trial has the same document on any machine.
    fn time(&self, at_ns: u64) -> Option<u64> {
        Some(at_ns).filter(|_| !self.plan.is_simulated())
    }

    /// An empty list is shown in a grid only.
    fn shown<T>(&self, list: &'a [T]) -> Option<&'a [T]> {
        Some(list).filter(|of| !of.is_empty() || self.plan.schedule.grid().is_some())
    }
}

fields! { fn trial_fields<'a>(of: TrialRow<'a>);
    "slot": integer, "index in the schedule" => of.trial.slot;
    "of": object (null: "the plan has no such slot"), "the slot, as in `schedule`" =>
        of.slot().map(|slot| slot_fields().object(&slot));
    "point": integer (left out), "index of the point, in a grid" => of.point_and_seed().map(|(of, _)| of);
    "seed": integer (left out), "the seed, in a grid" => of.point_and_seed().map(|(_, of)| of);
    "began_ns": integer (null: UNTIMED), "start, relative to the start of the run" =>
        of.time(of.trial.began_ns);
    "ended_ns": integer (null: UNTIMED), "end, relative to the start of the run" =>
        of.time(of.trial.ended_ns);
    "end": string,
        "`done`, `failed`, `killed`, `out_of_memory`, `timed_out`, `invalid_result`, `left_processes`, \
         `not_started`, `rejected`, `lost`, `stopped`" => trial_end_fields(&of.trial.end).0;
    "end_number": integer (null: "this kind of end has no number"),
        "exit code, signal, time limit in nanoseconds, or number of processes left behind" =>
            trial_end_fields(&of.trial.end).1;
    "end_detail": string (null: "this kind of end has no details"),
        "the invalid output, or why the trial was not started, was rejected or was lost" =>
            trial_end_fields(&of.trial.end).2;
    "measures": array, "below" => measures_json(of.measures);
    "flags": array, "caveats about the numbers, below" => flag_fields().array(&of.trial.flags);
    "last_output": string, "last lines of output, if the trial failed" => of.trial.last_output.as_str();
    "notes": array (left out), "notes of the load, if any" =>
        Some(&of.trial.notes).filter(|of| !of.is_empty()).cloned();
    "series": array (left out),
        "values over the course of the trial, below; always present in a grid, otherwise if any" =>
        of.shown(&of.trial.series).map(|series| simulated::series_fields().array(series));
    "pictures": integer (left out),
        "number of memory pictures in the file; always present in a grid, otherwise if any" =>
        Some(of.trial.pictures).filter(|&count| count > 0 || of.plan.schedule.grid().is_some());
}

fields! { fn flag_fields(of: Flag);
    "kind": string, "such as `not quiet`" => of.kind.as_str();
    "text": string, "a phrase" => of.text.as_str();
}

/// Builds measures; exact ones by their integers, without what all measures of the simulator have in common.
fn measures_json(measures: &[Measure]) -> Value {
    let [on_host, simulated] = [value_fields(), exact_fields()].map(|more| measure_fields().and(more));
    let fields = |of: &Measure| if of.exact.is_some() { &simulated } else { &on_host };
    measures.iter().map(|of| fields(of).object(of)).collect()
}

fields! { fn measure_fields(of: Measure);
    "phase": string (left out), "phase of the trial" => phase_name(of);
    "name": string, "unique within its phase" => of.name.as_str();
    "unit": string, "unit of the value" => of.unit.0.as_str();
}

// Fields of a measure on a host.
fields! { fn value_fields(of: Measure);
    "better": string, "on a host: `lower`, `higher`, `neither`" => of.better.slug();
    "value": number (reading), "on a host" => read(&of.value, |value| (*value).into());
    "source": string, "on a host: file, call or workload" => of.source.as_str();
}

// Fields of a measure in the simulator.
fields! { fn exact_fields(of: Measure);
    "numerator": integer (left out), "in the simulator: numerator of the exact value" =>
        of.exact.map(|exact| exact.numerator);
    "denominator": integer (left out), "in the simulator: denominator of the exact value, 1 for a count" =>
        of.exact.map(|of| of.denominator);
}

/// Returns the name of an end, its number (exit code, signal, nanoseconds, processes), and its text.
pub(crate) fn trial_end_fields(end: &TrialEnd) -> (&'static str, Option<i64>, Option<&str>) {
    match end {
        TrialEnd::Done => ("done", None, None),
        TrialEnd::Failed(code) => ("failed", Some(i64::from(*code)), None),
        TrialEnd::Killed(signal) => ("killed", Some(i64::from(*signal)), None),
        TrialEnd::OutOfMemory => ("out_of_memory", None, None),
        TrialEnd::TimedOut(ns) => ("timed_out", i64::try_from(*ns).ok(), None),
        TrialEnd::InvalidResult(said) => ("invalid_result", None, Some(said)),
        TrialEnd::LeftProcesses(processes) => ("left_processes", i64::try_from(*processes).ok(), None),
        TrialEnd::NotStarted(why) => ("not_started", None, Some(why)),
        TrialEnd::Rejected(why) => ("rejected", None, Some(why)),
        TrialEnd::Lost(why) => ("lost", None, Some(why)),
        TrialEnd::Stopped => ("stopped", None, None),
    }
}

/// Returns the phase of a measure; `None` for the complete trial.
fn phase_name(head: &MeasureHead) -> Option<&str> {
    Some(head.phase.as_str()).filter(|phase| !phase.is_empty())
}

/// Returns the name of a contrast.
pub(crate) fn contrast_slug(contrast: Contrast) -> &'static str {
    match contrast {
        Contrast::Ratio => "ratio",
        Contrast::Difference => "difference",
    }
}

/// Returns the name of a verdict.
pub(crate) fn verdict_slug(verdict: EffectVerdict) -> &'static str {
    match verdict {
        EffectVerdict::TooFew { .. } => "too_few",
        EffectVerdict::WithoutHugePages { .. } => "not_huge",
        EffectVerdict::NotApplied { .. } => "not_applied",
        EffectVerdict::NoDifference => "no_difference",
        EffectVerdict::Undecided(_) => "undecided",
        EffectVerdict::Better => "better",
        EffectVerdict::Worse => "worse",
        EffectVerdict::Differs => "differs",
    }
}

fn advice_slug(advice: ThpAdvice) -> &'static str {
    match advice {
        ThpAdvice::Always => "always",
        ThpAdvice::Madvise => "madvise",
        ThpAdvice::Never => "never",
        ThpAdvice::NoDifference => "no_difference",
        ThpAdvice::TooFew => "too_few",
        ThpAdvice::NotAllocated => "not_huge",
        ThpAdvice::Undecided => "undecided",
    }
}

/// A variant of a workload, or one of its measures under a variant. Effects are shared, so that rows of a
/// table can be made one by one.
#[derive(Clone)]
pub(crate) struct EffectRow<'a> {
    pub plan: &'a Plan,
    workload: Rc<WorkloadEffects>,
    /// Index of the measure.
    measure: usize,
    /// Index of the variant.
    column: usize,
    /// Whether random draws are shown.
    with_draws: bool,
}

impl<'a> EffectRow<'a> {
    pub fn new(plan: &'a Plan, workload: WorkloadEffects, with_draws: bool) -> EffectRow<'a> {
        EffectRow { plan, workload: Rc::new(workload), measure: 0, column: 0, with_draws }
    }

    pub fn measure(&self) -> &MeasureEffects {
        &self.workload.measures[self.measure]
    }

    pub fn variant(&self) -> &VariantEffect {
        &self.measure().variants[self.column]
    }

    fn counts(&self) -> &TrialCounts {
        &self.workload.trials[self.column]
    }

    fn column(&self) -> Option<&EffectColumn> {
        self.workload.columns.get(self.column)
    }

    fn statistics(&self, statistic: fn(SampleStatistics) -> f64) -> Option<f64> {
        self.variant().statistics.map(statistic)
    }

    fn ratios(&self, statistic: fn(SampleStatistics) -> f64) -> Option<f64> {
        self.effect().and_then(|of| of.pairs.ratio_statistics()).map(statistic)
    }

    fn effect(&self) -> Option<&Effect> {
        self.variant().effect()
    }

    /// A number from random draws.
    fn draw<V: Into<Value>>(&self, number: fn(&PairedRatios, u64) -> Option<V>) -> Result<Value, String> {
        let reason = if self.with_draws { ONE_PAIR } else { "not in a page; see pagelab report --json" };
        let effect = self.effect().filter(|_| self.with_draws);
        effect.and_then(|of| number(&of.pairs, self.plan.seed)).map(V::into).ok_or(reason.to_owned())
    }

    pub fn with_measure(&self, measure: usize) -> EffectRow<'a> {
        EffectRow { measure, ..self.clone() }
    }

    pub fn rows(self) -> impl Iterator<Item = EffectRow<'a>> {
        (0..self.measure().variants.len()).map(move |column| EffectRow { column, ..self.clone() })
    }
}

fields! { fn workload_effect_fields<'a>(of: EffectRow<'a>);
    "workload": string, "name of the workload" => workload_name(of.plan, of.workload.workload);
    "judged_by": string (null: "nothing was measured"), "measure by which the workload is judged" =>
        of.workload.primary_measure().map(|of| of.name.as_str());
    "advice": string (null: "no THP modes were compared"),
        "`always`, `madvise`, `never`, `no_difference`, `too_few`, `not_huge`, `undecided`" =>
        of.workload.advice.map(advice_slug);
    "trials": array, "one entry per variant, below" => {
        let columns = 0..of.workload.trials.len();
        let rows = columns.map(|column| EffectRow { column, ..of.clone() });
        column_fields().and(count_fields()).array(rows)
    };
    "measures": array, "below" => {
        let measures = 0..of.workload.measures.len();
        measures.map(|measure| measure_effect_json(&of.with_measure(measure))).collect::<Value>()
    };
}

// Fields of a variant, and of its point in a grid.
fields! { fn column_fields<'a>(of: EffectRow<'a>);
    "variant": string, "name of the variant" =>
        of.column().map_or("", |column| variant_name(of.plan, column.variant));
    "point": integer (left out), "index of the point, in a grid" => of.column().and_then(|of| of.point);
}

fields! { fn count_fields<'a>(of: EffectRow<'a>);
    "planned": integer, "planned trials, without warm-ups and twins" => of.counts().planned;
    "done": integer, "completed trials, whose measures count" => of.counts().completed;
    "failed": integer, "trials that ended in any other way" => of.counts().failed;
    "out_of_memory": integer, "trials in `failed` that ran out of memory" => of.counts().out_of_memory;
    "not_huge": integer, "completed, but without the requested huge pages" => of.counts().without_huge_pages;
    "huge_unseen": integer, "trials in `not_huge` for which this is unknown" =>
        of.counts().huge_pages_unknown;
    "not_applied": integer, "completed, but without the requested setting" => of.counts().not_applied;
}

fn measure_effect_json(row: &EffectRow<'_>) -> Value {
    let (of_measure, of_variant) = (measure_effect_fields(), column_fields().and(variant_effect_fields()));
    let (of_measure, of_variant) = match (row.measure().contrast, row.plan.baseline) {
        (Contrast::Ratio, _) => (of_measure.and(ratio_measure_fields()), of_variant.and(ratio_fields())),
        (Contrast::Difference, None) => (of_measure, of_variant.and(median_fields())),
        (Contrast::Difference, Some(_)) => {
            (of_measure, of_variant.and(median_fields()).and(difference_fields()))
        }
    };
    let object = of_measure.add_to(JsonObject::new(), row);
    match &row.measure().absent {
        Some(absence) => object.optional("variants", None::<Value>, &absence.to_string()),
        None => object.field("variants", of_variant.array(row.clone().rows())),
    }
    .into()
}

fields! { fn measure_effect_fields<'a>(of: EffectRow<'a>);
    "phase": string (left out), "phase of the trial" => phase_name(of.measure());
    "name": string, "unique within its phase" => of.measure().name.as_str();
    "unit": string, "unit of the values" => of.measure().unit.0.as_str();
    "contrast": string, "how variants are compared: `ratio`, `difference`" =>
        contrast_slug(of.measure().contrast);
}

// Fields of a measure that is compared by ratios.
fields! { fn ratio_measure_fields<'a>(of: EffectRow<'a>);
    "better": string, "with ratios: `lower`, `higher`, `neither`" => of.measure().better.slug();
    "source": string, "with ratios: the file, call or workload that supplied it" =>
        of.measure().source.as_str();
    "noise_floor": object (reading), "with ratios: difference between equal settings, below" =>
        read(&of.measure().noise_floor, |floor| noise_floor_fields().object(floor));
}

fields! { fn noise_floor_fields(of: NoiseFloor);
    "ratio": number, "above 1" => of.ratio;
    "pairs": integer, "pairs of equal settings" => of.pairs;
    "is_of_all_workloads": boolean,
        "whether the pairs of all workloads were pooled because this one has too few" => of.is_pooled;
}

fields! { fn variant_effect_fields<'a>(of: EffectRow<'a>);
    "values": array, "values of the trials that count, by round" => of.variant().values.clone();
    "median": number (null: NO_VALUE), "median of the values" => of.statistics(|of| of.median);
}

// Fields of a variant that is compared by ratios.
fields! { fn ratio_fields<'a>(of: EffectRow<'a>);
    "lower_quartile": number (null: NO_VALUE), "with ratios: lower quartile of the values" =>
        of.statistics(|of| of.lower_quartile);
    "upper_quartile": number (null: NO_VALUE), "with ratios: upper quartile of the values" =>
        of.statistics(|of| of.upper_quartile);
    "mean": object (null: "there are no values, or not all are above 0"),
        "with ratios: geometric mean `value`, with its interval `low`, `high`" => mean_json(of.variant());
    "effect": object (reading), "with ratios: effect relative to the baseline, below" =>
        match of.variant().effect_absence() {
            Some(absence) => Err(absence.to_string()),
            None => Ok(effect_fields().object(of)),
        };
}

// Fields of a variant that is compared by differences.
fields! { fn median_fields<'a>(of: EffectRow<'a>);
    "median_interval": object (null: "fewer than 6 values"),
        "with differences: interval of the median from order statistics: `low`, `high`, `level`" =>
        of.variant().median_interval().map(simulated::interval_json);
}

// Fields of a variant that is compared by differences from a baseline.
fields! { fn difference_fields<'a>(of: EffectRow<'a>);
    "difference": object (null: "this is the baseline, or no round has a value of both"),
        "with differences and a baseline: difference from the baseline, below" =>
        of.variant().difference().map(|of| simulated::difference_fields().object(of));
}

/// Builds the geometric mean with its interval.
fn mean_json(variant: &VariantEffect) -> Option<Value> {
    let (mean, found) = variant.geometric_mean()?;
    let reason = "a single value has no interval";
    let object = JsonObject::new()
        .field("value", mean)
        .optional("low", found.map(|found| found.low), reason)
        .optional("high", found.map(|found| found.high), reason);
    Some(object.into())
}

pub(super) fn interval_json(interval: Option<RatioInterval>, level: f64) -> Option<Value> {
    let found = interval?;
    Some(JsonObject::new().field("low", found.low).field("high", found.high).field("level", level).into())
}

fields! { fn effect_fields<'a>(of: EffectRow<'a>);
    "pairs": integer, "rounds with a value of both variants" => of.effect().map(|of| of.pairs.pair_count());
    "ratio": number, "geometric mean of variant / baseline over the pairs" => of.effect().map(|of| of.ratio);
    "ratio_interval": object (null: ONE_PAIR),
        "Student's t interval: `low`, `high`, `level` (0.95; of a run with looks, that of its last one)" =>
        of.effect().and_then(|of| interval_json(of.interval, of.level));
    "ratio_by_ranks": object (null: "too few or too many pairs for this interval"),
        "interval of Wilcoxon's signed-rank test, with its exact `level`" =>
        of.effect().and_then(|of| of.pairs.rank_interval()).map(|(of, level)| interval_json(Some(of), level));
    "ratio_by_bootstrap": object (reading),
        "percentile bootstrap interval (seeded); too narrow with few pairs" =>
        of.draw(|pairs, seed| interval_json(pairs.bootstrap_interval(seed), CONFIDENCE_LEVEL));
    "ratio_median": number (null: NO_PAIRS), "median of the ratios" => of.ratios(|of| of.median);
    "ratio_lower_quartile": number (null: NO_PAIRS), "lower quartile of the ratios" =>
        of.ratios(|of| of.lower_quartile);
    "ratio_upper_quartile": number (null: NO_PAIRS), "upper quartile of the ratios" =>
        of.ratios(|of| of.upper_quartile);
    "permutation_p": number (reading),
        "p-value: share of the within-pair permutations whose ratio is at least as far from 1" =>
        of.draw(PairedRatios::permutation_p);
    "speed_up": number, "the ratio or its inverse, so that higher is better" =>
        of.effect().map(|of| of.speed_up().0);
    "speed_up_interval": object (null: ONE_PAIR),
        "Student's t interval: `low`, `high`, `level` (0.95; of a run with looks, that of its last one)" =>
        of.effect().and_then(|of| interval_json(of.speed_up().1, of.level));
    "saved_percent": number,
        "100 × (1 − ratio), for rates 100 × (1 − 1 / ratio); negative if the variant needs more" =>
        of.effect().map(|of| of.saved_share() * 100.0);
    "verdict": string,
        "`better`, `worse`, `differs`, `no_difference`, `undecided`, `too_few`, `not_huge`, `not_applied`" =>
        of.effect().map(|of| verdict_slug(of.verdict));
}
