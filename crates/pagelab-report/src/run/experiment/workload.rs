//! One workload: the answer in a line, then a line per variant.

use pagelab_metrics::effect::{Effect, EffectVerdict, MeasureEffects, ThpAdvice, WorkloadEffects};
use pagelab_model::experiment::{Plan, PlannedWorkload, measures};
use pagelab_model::run::Run;
use pagelab_model::{Bytes, PageSize};

use super::super::clip_name;
use super::NAME_MAX;
use crate::effect_text::{
    display_measure_name, explain_undecided, explain_verdict, format_advice, format_gain, format_level,
    format_noise_floor, format_optional_interval, format_ratio, format_reduction, format_time_saved,
    format_verdict, is_miss_count,
};
use crate::quantity_format::{UnitScale, format_quantity};
use crate::style::{format_bytes, format_count};
use crate::text_report::{RowTable, TextReport};

/// Latency that represents stalls.
const STALL_LATENCY: &str = "latency.p99.9";
/// Kinds of misses shown for a variant, at most.
const MISSES_MAX: usize = 4;
/// Ratio of total time above which a run is mentioned although its merit is better.
const LONGER_RUN_RATIO: f64 = 1.1;
/// Variants that are named together, at most; more are counted.
const ALIKE_MAX: usize = 4;
/// Columns of a variant's name in the table, at most.
const VARIANT_MAX: usize = 30;

pub(super) fn write_workload(
    output: &mut TextReport,
    run: &Run,
    plan: &Plan,
    workload: &PlannedWorkload,
    effects: &WorkloadEffects,
) {
    let style = output.style();
    let name = style.paint_bold(&style.clip_name(&workload.name, NAME_MAX));
    let Some(judging_measure) = effects.primary_measure() else {
        output.add_paragraph(&format!("{name}   "), "nothing was measured: no trial completed");
        return;
    };
    output.add_paragraph(&format!("{name}   "), &answer_sentence(run, plan, effects, judging_measure));
    write_rows(output, run, plan, effects, judging_measure);
    let mut facts =
        vec![format!("by {}", style.clip_name(&display_measure_name(&judging_measure.name), NAME_MAX))];
    facts.push(match &judging_measure.noise_floor {
        Ok(noise) => {
            let of = if noise.is_pooled { " across all workloads" } else { "" };
            format!("noise floor {} ({} pairs of equal runs{of})", format_noise_floor(noise), noise.pairs)
        }
        Err(absence) => format!("noise floor unknown: {}", absence.reason()),
    });
    output.add_dim_indented(&facts.join("; "));
    write_miss_reductions(output, plan, effects);
    write_modelled_misses(output, plan, effects);
}

/// Writes the misses of a modelled TLB, the baseline's first, which replace counters that cannot be read.
fn write_modelled_misses(output: &mut TextReport, plan: &Plan, effects: &WorkloadEffects) {
    let name = format!("{}tlb-misses", measures::MODEL_PREFIX);
    let Some(measure) = effects.measure(&name) else { return };
    let others = (0..plan.variants.len()).filter(|&variant| Some(variant) != plan.baseline);
    let fact = |variant: usize| {
        let misses = measure.median(variant)?;
        let name = output.style().clip_name(&plan.variants[variant].name, VARIANT_MAX);
        Some(format!("{name} {}", format_count(misses as u128)))
    };
    let facts: Vec<String> = plan.baseline.into_iter().chain(others).filter_map(fact).collect();
    if !facts.is_empty() {
        output.add_facts("  modelled TLB misses, one run each: ", &facts, " → ");
    }
}

/// Writes the reduction of misses, which explains why a variant is faster.
fn write_miss_reductions(output: &mut TextReport, plan: &Plan, effects: &WorkloadEffects) {
    for variant in (0..plan.variants.len()).filter(|&variant| Some(variant) != plan.baseline) {
        let counted = effects.measures.iter().filter(|measure| is_miss_count(&measure.name));
        let facts = counted.filter_map(|measure| {
            let effect = measure.effect(variant).filter(|effect| !effect.verdict.is_void())?;
            let name = clip_name(&display_measure_name(&measure.name), NAME_MAX);
            Some(format!("{name} {}", format_reduction(effect.ratio)))
        });
        let facts: Vec<String> = facts.take(MISSES_MAX).collect();
        if !facts.is_empty() {
            let name = output.style().clip_name(&plan.variants[variant].name, VARIANT_MAX);
            output.add_facts(&format!("  {name}: "), &facts, ", ");
        }
    }
}

fn answer_sentence(
    run: &Run,
    plan: &Plan,
    effects: &WorkloadEffects,
    judging_measure: &MeasureEffects,
) -> String {
    let variants = (0..plan.variants.len()).filter(|&variant| Some(variant) != plan.baseline);
    let variant_effects: Vec<(usize, &Effect)> =
        variants.filter_map(|at| Some((at, judging_measure.effect(at)?))).collect();
    let name = |variant: usize| clip_name(&plan.variants[variant].name, NAME_MAX);
    // Sort order: faster variants first, the fastest at the front; undecided ones last.
    let weight = |effect: &Effect| match effect.verdict {
        EffectVerdict::Better => 4,
        EffectVerdict::Worse | EffectVerdict::Differs => 3,
        EffectVerdict::Undecided(_) => 2,
        EffectVerdict::NoDifference => 1,
        _ => 0,
    };
    let best = variant_effects.iter().max_by(|(_, one), (_, other)| {
        let speedup = |effect: &Effect| effect.speed_up().0;
        weight(one).cmp(&weight(other)).then(speedup(one).total_cmp(&speedup(other)))
    });
    let advised = effects.advice.map(|of| (of, variant_for_advice(plan, &variant_effects, of)));
    let shown =
        advised.and_then(|(_, variant)| variant_effects.iter().find(|(at, _)| Some(*at) == variant)).or(best);
    let Some((variant, effect)) = shown else {
        return match plan.variants.len() {
            0 | 1 => plan.baseline.map_or(String::new(), |at| median_text(run, judging_measure, at)),
            _ => "no variant can be compared with the baseline".to_owned(),
        };
    };
    let is_decided = effect.verdict.is_difference();
    let (noise, measure_name) = (&judging_measure.noise_floor, judging_measure.name.as_str());
    let explained = || explain_verdict(effect, noise, measure_name);
    let (gain, saved) = (format_gain(effect), format_time_saved(effect, measure_name));
    let gain_text = match advised {
        Some((ThpAdvice::NoDifference, _)) => explained().replace("measured", "for this program"),
        Some((ThpAdvice::TooFew, _)) => explained(),
        Some((of, _)) if !is_decided => explain_undecided(of, effect, noise, measure_name),
        Some((of, _)) => format!("{}: {gain}, {saved}", format_advice(of)),
        None if !is_decided => {
            let alike = others_without_effect(plan, &variant_effects, (*variant, effect));
            format!("{}: {}{alike}", name(*variant), explained())
        }
        None if effect.verdict == EffectVerdict::Worse => {
            return all_slower_sentence(plan, effects, judging_measure, &variant_effects);
        }
        None => format!("{gain} with {}, {saved}", name(*variant)),
    };
    let mut costs = if is_decided { cost_texts(effects, *variant) } else { Vec::new() };
    costs.extend(contrary_time_text(effects, judging_measure, *variant, effect));
    std::iter::once(gain_text).chain(costs).collect::<Vec<_>>().join(", ")
}

/// Names the other variants whose ratio is no effect for the same reason.
fn others_without_effect(
    plan: &Plan,
    variant_effects: &[(usize, &Effect)],
    (shown, effect): (usize, &Effect),
) -> String {
    let is_alike = |(at, of): &&(usize, &Effect)| {
        *at != shown && of.verdict.is_void() && format_verdict(of.verdict) == format_verdict(effect.verdict)
    };
    let names: Vec<String> = variant_effects
        .iter()
        .filter(is_alike)
        .map(|(at, _)| clip_name(&plan.variants[*at].name, NAME_MAX))
        .collect();
    match names.len() {
        0 => String::new(),
        count if count > ALIKE_MAX => format!("; {count} more variants likewise"),
        _ => format!("; {} likewise", names.join(", ")),
    }
}

/// Describes the run time if the merit is better but the run takes longer.
fn contrary_time_text(
    effects: &WorkloadEffects,
    judging_measure: &MeasureEffects,
    variant: usize,
    by_merit: &Effect,
) -> Option<String> {
    let is_faster =
        judging_measure.name == measures::MERIT && !by_merit.verdict.is_void() && by_merit.speed_up().0 > 1.0;
    let ratio = effects.measure(measures::WALL)?.effect(variant)?.ratio;
    (is_faster && ratio > LONGER_RUN_RATIO)
        .then(|| format!("but its whole run takes {}× as long", format_ratio(ratio, None)))
}

/// Describes a workload that no variant makes faster: the range of slow-downs.
fn all_slower_sentence(
    plan: &Plan,
    effects: &WorkloadEffects,
    judging_measure: &MeasureEffects,
    variant_effects: &[(usize, &Effect)],
) -> String {
    let name = |variant: usize| clip_name(&plan.variants[variant].name, NAME_MAX);
    let mut worse: Vec<&(usize, &Effect)> =
        variant_effects.iter().filter(|(_, effect)| effect.verdict == EffectVerdict::Worse).collect();
    worse.sort_by(|(_, one), (_, other)| other.speed_up().0.total_cmp(&one.speed_up().0));
    let dies = (0..plan.variants.len()).find(|&at| {
        effects.trials.get(at).is_some_and(|counts| counts.completed == 0 && counts.out_of_memory > 0)
    });
    // In a guest, its kernel may be what ends.
    let how = if plan.place == Plan::GUEST { "runs out of memory" } else { "is killed by the OOM killer" };
    let dies = dies.map_or(String::new(), |at| format!("; with {} it {how}", name(at)));
    match worse.as_slice() {
        [] => format!("nothing is slower or faster{dies}"),
        [(variant, effect)] => {
            format!(
                "{} with {}, {}{dies}",
                format_gain(effect),
                name(*variant),
                format_time_saved(effect, &judging_measure.name)
            )
        }
        [(first, least), .., (last, most)] => {
            let ratio = |effect: &Effect| format_ratio(1.0 / effect.speed_up().0, None);
            let (least, most) = (ratio(least), ratio(most));
            format!("slower, from {least}× with {} to {most}× with {}{dies}", name(*first), name(*last))
        }
    }
}

fn variant_for_advice(plan: &Plan, variant_effects: &[(usize, &Effect)], advice: ThpAdvice) -> Option<usize> {
    let mode = match advice {
        ThpAdvice::Always => "always",
        ThpAdvice::Madvise => "madvise",
        _ => return None,
    };
    let of_mode =
        |(at, _): &&(usize, &Effect)| pagelab_metrics::effect::thp_mode(&plan.variants[*at]) == Some(mode);
    variant_effects.iter().find(of_mode).map(|(at, _)| *at)
}

/// Describes the cost of the gain: peak memory and the longest stalls.
fn cost_texts(effects: &WorkloadEffects, variant: usize) -> Vec<String> {
    let ratio = |name: &str, words: &str| {
        let effect = effects.measure(name)?.effect(variant)?;
        Some(format!("{words} {}×", format_ratio(effect.ratio, effect.interval)))
    };
    [ratio(measures::PEAK_MEMORY, "memory"), ratio(STALL_LATENCY, "p99.9 latency")]
        .into_iter()
        .flatten()
        .collect()
}

fn median_text(run: &Run, judging_measure: &MeasureEffects, variant: usize) -> String {
    let statistics = judging_measure.variants.get(variant).and_then(|variant| variant.statistics);
    let is_emulated = run.has_emulated_times() && judging_measure.unit.is_time();
    let emulated = if is_emulated { ", TCG" } else { "" };
    statistics.map_or("nothing was measured".to_owned(), |found| {
        let name = display_measure_name(&judging_measure.name);
        format!(
            "{name} {} (median of {}{emulated})",
            format_quantity(found.median, &judging_measure.unit, PageSize::DEFAULT),
            found.count
        )
    })
}

/// Writes a line per variant, without empty columns, and with fewer columns if the width is too small.
fn write_rows(
    output: &mut TextReport,
    run: &Run,
    plan: &Plan,
    effects: &WorkloadEffects,
    judging_measure: &MeasureEffects,
) {
    let medians =
        judging_measure.variants.iter().filter_map(|variant| Some(variant.statistics?.median.abs()));
    let page_size = run.manifest.machine.page_size;
    let scale = UnitScale::for_values(&judging_measure.unit, page_size, false, medians.fold(0.0, f64::max));
    let title = match scale.unit.as_str() {
        "" => "median".to_owned(),
        unit if run.has_emulated_times() && judging_measure.unit.is_time() => format!("median [{unit}, TCG]"),
        unit => format!("median [{unit}]"),
    };
    let none = || "–".to_owned();
    // A ratio that is not an effect of the variant is not shown as one.
    let judged = |at: usize| judging_measure.effect(at).filter(|effect| !effect.verdict.is_void());
    let ratio = |at: usize, name: &str| {
        let effect = judged(at).and(effects.measure(name)).and_then(|measure| measure.effect(at));
        effect.map_or(none(), |effect| format!("{}×", format_ratio(effect.ratio, effect.interval)))
    };
    let huge = |at: usize| effects.measure(measures::HUGE_BYTES)?.median(at);
    let table = RowTable::<usize>::new()
        .left("variant", |&at| clip_name(&plan.variants[at].name, VARIANT_MAX))
        .right(title, |&at| judging_measure.median(at).map_or(none(), |median| scale.format_number(median)))
        .right("speed-up", |&at| {
            let speed_up = judged(at).map(|effect| effect.speed_up());
            speed_up.map_or(none(), |(times, interval)| format!("{}×", format_ratio(times, interval)))
        })
        .right(format!("{} interval", format_level(effects.level)), |&at| {
            format_optional_interval(judged(at).and_then(|effect| effect.speed_up().1))
        })
        .right("memory", |&at| ratio(at, measures::PEAK_MEMORY))
        .right("p99.9", |&at| ratio(at, STALL_LATENCY))
        .right("huge", |&at| huge(at).map_or(none(), |median| format_bytes(Bytes(median as u64))))
        .left("verdict", |&at| variant_verdict(plan, effects, judging_measure, at));
    let (columns, cells) = (table.columns(), table.rows(0..plan.variants.len()));
    let is_filled = |column: usize| cells.iter().any(|row| !matches!(row[column].as_str(), "" | "–"));
    // Least necessary columns first.
    let choices = [&[][..], &[6], &[6, 5], &[6, 5, 4], &[6, 5, 4, 3]].map(|dropped: &[usize]| {
        let is_kept = |at: &usize| !dropped.contains(at) && (matches!(at, 0 | 1 | 7) || is_filled(*at));
        (0..8).filter(is_kept).collect::<Vec<usize>>()
    });
    if output.add_fitting_table(2, &columns, &cells, choices) {
        return;
    }
    for row in &cells {
        output.add_facts("  ", &[row[0].clone(), row[1].clone(), row[2].clone(), row[7].clone()], "  ");
    }
}

fn variant_verdict(
    plan: &Plan,
    effects: &WorkloadEffects,
    judging_measure: &MeasureEffects,
    variant: usize,
) -> String {
    let counts = effects.trials.get(variant).copied().unwrap_or_default();
    let says = match judging_measure.effect(variant) {
        _ if Some(variant) == plan.baseline => "baseline",
        Some(effect) => format_verdict(effect.verdict),
        None if counts.out_of_memory > 0 => "out of memory",
        None if counts.failed > 0 => "failed",
        None => "no ratio",
    };
    match (counts.failed, counts.out_of_memory) {
        (0, _) => says.to_owned(),
        _ if counts.completed == 0 => says.to_owned(),
        (failed, killed) if failed == killed => format!("{says}, {failed} out of memory"),
        (failed, _) => format!("{says}, {failed} failed"),
    }
}
