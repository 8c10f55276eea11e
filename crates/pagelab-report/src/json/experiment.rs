//! The JSON of an experiment: fields and units stand in `docs/json.md`.

use pagelab_metrics::effect::{
    Advice, Counts, Effect, Effects, Interval, LEVEL, MeasureEffects, VariantEffect, Verdict, WorkloadEffects,
};
use pagelab_model::experiment::{
    Better, Experiment, Flag, Measure, Plan, Role, Sequence, Slot, Trial, TrialEnd, VariantHead, WorkloadHead,
};
use pagelab_model::run::Manifest;
use serde_json::Value;

use super::needs;
use super::object::{Object, array, reason};

/// What was planned, what was done, and what it comes to.
pub fn document(experiment: &Experiment, manifest: &Manifest) -> Value {
    document_with(experiment, manifest, true)
}

/// The same for a page: without what each trial measured, since its values stand in the effects too, and
/// without what is drawn by chance. It would be many times as large and slow to make.
pub fn document_for_page(experiment: &Experiment, manifest: &Manifest) -> Value {
    document_with(experiment, manifest, false)
}

fn document_with(experiment: &Experiment, manifest: &Manifest, whole: bool) -> Value {
    let Experiment { plan, trials } = experiment;
    let effects = Effects::of(experiment);
    Object::new()
        .put("plan", self::plan(plan))
        .put("trials", array(trials, |of| trial(plan, of, whole)))
        .put("effects", array(&effects.workloads, |of| workload_effects(plan, of, whole)))
        .put("needs", needs::needs(experiment, &effects, manifest))
        .into()
}

fn plan(plan: &Plan) -> Object {
    let workload = |of: &WorkloadHead| {
        Object::new()
            .put("name", of.name.as_str())
            .put("command", of.command.clone())
            .put("generator", of.generator.as_str())
            .option("merit", of.merit.as_deref(), "the time judges it")
    };
    let variant = |of: &VariantHead| {
        let setting = |(key, value): &(String, String)| {
            Object::new().put("key", key.as_str()).put("value", value.as_str())
        };
        Object::new()
            .put("name", of.name.as_str())
            .put("settings", array(&of.settings, setting))
            .put("asks_for_huge_pages", of.asks_for_huge_pages)
    };
    Object::new()
        .put("name", plan.name.as_str())
        .put("question", plan.question.as_str())
        .put("origin", plan.origin.as_str())
        .put("recipe", plan.recipe.as_str())
        .put("place", plan.place.as_str())
        .put("workloads", array(&plan.workloads, workload))
        .put("variants", array(&plan.variants, variant))
        .put("baseline", plan.variants.get(plan.baseline).map_or("", |of| of.name.as_str()))
        .put(
            "sequence",
            match plan.sequence {
                Sequence::Abba => "abba",
                Sequence::Blocks => "blocks",
            },
        )
        .put("seed", plan.seed)
        .put("loss", plan.loss)
        .put("schedule", array(&plan.schedule, |of| slot(plan, of)))
}

fn slot(plan: &Plan, slot: &Slot) -> Object {
    let role = match slot.role {
        Role::WarmUp => "warm_up",
        Role::Measured => "measured",
        Role::Twin => "twin",
    };
    Object::new()
        .put("workload", plan.workloads.get(slot.workload).map_or("", |of| of.name.as_str()))
        .put("variant", plan.variants.get(slot.variant).map_or("", |of| of.name.as_str()))
        .put("round", slot.round)
        .put("role", role)
}

fn trial(plan: &Plan, trial: &Trial, whole: bool) -> Object {
    let place = plan.schedule.get(trial.slot).map(|of| Value::from(slot(plan, of)));
    let (end, code, detail) = end(&trial.end);
    let measure = |of: &Measure| {
        Object::new()
            .put("name", of.name.as_str())
            .put("unit", of.unit.0.as_str())
            .put("better", better(of.better))
            .reading("value", &of.value, |value| (*value).into())
            .put("source", of.source.as_str())
    };
    let flag = |of: &Flag| Object::new().put("kind", of.kind.as_str()).put("text", of.text.as_str());
    Object::new()
        .put("slot", trial.slot)
        .option("of", place, "the plan has no such slot")
        .put("began_ns", trial.began_ns)
        .put("ended_ns", trial.ended_ns)
        .put("end", end)
        .option("end_number", code, "this end has no number")
        .option("end_detail", detail, "this end says nothing else")
        .put("measures", array(if whole { &trial.measures } else { &[] }, measure))
        .put("flags", array(&trial.flags, flag))
        .put("last_output", trial.last_output.as_str())
}

/// The word for an end, its number (exit code, signal, nanoseconds, processes), and its words.
pub(crate) fn end(end: &TrialEnd) -> (&'static str, Option<i64>, Option<&str>) {
    match end {
        TrialEnd::Done => ("done", None, None),
        TrialEnd::Failed(code) => ("failed", Some(i64::from(*code)), None),
        TrialEnd::Killed(signal) => ("killed", Some(i64::from(*signal)), None),
        TrialEnd::OutOfMemory => ("out_of_memory", None, None),
        TrialEnd::TimedOut(ns) => ("timed_out", i64::try_from(*ns).ok(), None),
        TrialEnd::Nonsense(said) => ("nonsense", None, Some(said)),
        TrialEnd::LeftBehind(processes) => ("left_behind", i64::try_from(*processes).ok(), None),
        TrialEnd::NotBegun(why) => ("not_begun", None, Some(why)),
        TrialEnd::Rejected(why) => ("rejected", None, Some(why)),
        TrialEnd::Stopped => ("stopped", None, None),
    }
}

/// Which direction is good, in a word.
pub(crate) fn better(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::Neither => "neither",
    }
}

/// A verdict in a word.
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::TooFew { .. } => "too_few",
        Verdict::NotHuge { .. } => "not_huge",
        Verdict::NotApplied { .. } => "not_applied",
        Verdict::NoDifference => "no_difference",
        Verdict::Undecided(_) => "undecided",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Differs => "differs",
    }
}

fn advice(advice: Advice) -> &'static str {
    match advice {
        Advice::Always => "always",
        Advice::Madvise => "madvise",
        Advice::Never => "never",
        Advice::NoDifference => "no_difference",
        Advice::TooFew => "too_few",
        Advice::NotHuge => "not_huge",
        Advice::Undecided => "undecided",
    }
}

fn workload_effects(plan: &Plan, found: &WorkloadEffects, whole: bool) -> Object {
    let name = |variant: usize| plan.variants.get(variant).map_or("", |of| of.name.as_str());
    let counts = |(variant, of): (usize, &Counts)| -> Value {
        Object::new()
            .put("variant", name(variant))
            .put("planned", of.planned)
            .put("done", of.done)
            .put("failed", of.failed)
            .put("out_of_memory", of.out_of_memory)
            .put("not_huge", of.not_huge)
            .put("huge_unseen", of.unseen)
            .put("not_applied", of.not_applied)
            .into()
    };
    Object::new()
        .put("workload", plan.workloads.get(found.workload).map_or("", |of| of.name.as_str()))
        .option("judged_by", found.judged().map(|of| of.name.as_str()), "nothing was measured")
        .option("advice", found.advice.map(advice), "no modes of transparent huge pages were compared")
        .put("trials", found.trials.iter().enumerate().map(counts).collect::<Vec<_>>())
        .put("measures", array(&found.measures, |of| measure_effects(plan, of, whole)))
}

fn measure_effects(plan: &Plan, found: &MeasureEffects, whole: bool) -> Object {
    let floor = |floor: &pagelab_metrics::effect::Floor| -> Value {
        Object::new()
            .put("ratio", floor.ratio)
            .put("pairs", floor.pairs)
            .put("is_of_all_workloads", floor.is_pooled)
            .into()
    };
    let object = Object::new()
        .put("name", found.name.as_str())
        .put("unit", found.unit.0.as_str())
        .put("better", better(found.better))
        .put("source", found.source.as_str())
        .reading("noise_floor", &found.floor, floor);
    if let Some(absence) = &found.absent {
        return object.option("variants", None::<Value>, &reason(absence));
    }
    let variants = found.variants.iter().enumerate().map(|(at, variant)| -> Value {
        let known = variant.statistics;
        let no_value = "no trial of this variant has it";
        Object::new()
            .put("variant", plan.variants.get(at).map_or("", |of| of.name.as_str()))
            .put("values", variant.values.clone())
            .option("median", known.map(|of| of.median), no_value)
            .option("lower_quartile", known.map(|of| of.lower_quartile), no_value)
            .option("upper_quartile", known.map(|of| of.upper_quartile), no_value)
            .option("mean", mean(variant), "there are no values, or one is not above 0")
            .reading("effect", &variant.effect, |effect| {
                self::effect(effect, whole.then_some(plan.seed)).into()
            })
            .into()
    });
    object.put("variants", variants.collect::<Vec<_>>())
}

/// The geometric mean with its interval.
fn mean(variant: &VariantEffect) -> Option<Value> {
    let (mean, found) = variant.mean()?;
    let one = "one value has no interval";
    let end = |of: fn(Interval) -> f64| found.map(of);
    Some(
        Object::new()
            .put("value", mean)
            .option("low", end(|found| found.low), one)
            .option("high", end(|found| found.high), one)
            .into(),
    )
}

pub(super) fn interval(found: Option<Interval>, level: f64) -> Option<Value> {
    let found = found?;
    Some(Object::new().put("low", found.low).put("high", found.high).put("level", level).into())
}

/// Without a seed nothing is drawn.
fn effect(effect: &Effect, seed: Option<u64>) -> Object {
    let pairs = &effect.pairs;
    let spread = pairs.spread();
    let (ranks, level) = pairs.by_ranks().map_or((None, LEVEL), |(found, level)| (Some(found), level));
    let (speed_up, speed_interval) = effect.speed_up();
    let one = "one pair has no interval";
    let none = "there are no pairs";
    let not_drawn = if seed.is_some() { one } else { "not in a page: pagelab report --json" };
    Object::new()
        .put("pairs", pairs.count())
        .put("ratio", effect.ratio)
        .option("ratio_interval", interval(effect.interval, LEVEL), one)
        .option("ratio_by_ranks", interval(ranks, level), "with so many pairs there is no such interval")
        .option(
            "ratio_by_bootstrap",
            interval(seed.and_then(|seed| pairs.by_bootstrap(seed)), LEVEL),
            not_drawn,
        )
        .option("ratio_median", spread.map(|of| of.median), none)
        .option("ratio_lower_quartile", spread.map(|of| of.lower_quartile), none)
        .option("ratio_upper_quartile", spread.map(|of| of.upper_quartile), none)
        .option("permutation_p", seed.and_then(|seed| pairs.permutation_p(seed)), not_drawn)
        .put("speed_up", speed_up)
        .option("speed_up_interval", interval(speed_interval, LEVEL), one)
        .put("saved_percent", effect.saved() * 100.0)
        .put("verdict", verdict(effect.verdict))
}
