//! One workload: the answer in a line, then a line for each variant.

use pagelab_metrics::effect::{Advice, Effect, MeasureEffects, Verdict, WorkloadEffects};
use pagelab_model::experiment::{Plan, WorkloadHead, measures};
use pagelab_model::run::Run;
use pagelab_model::{Bytes, PageSize};

use super::super::clipped;
use super::NAME_MAX;
use crate::effects::{
    advice, fewer, floor, gain, interval_or_none, is_misses, measure_name, ratio, saved, undecided, value,
    verdict, why,
};
use crate::quantity::Scale;
use crate::style::{bytes, count};
use crate::text::{Column, Page};

/// The latency that stands for stalls.
const STALL: &str = "latency.p99.9";
/// Kinds of misses that are told of a variant.
const MISSES_MAX: usize = 4;
/// A run that takes more than so many times as long is named beside a merit that is better.
const LONGER: f64 = 1.1;
/// Columns that a variant's name may take in the table.
const VARIANT_MAX: usize = 30;

pub(super) fn show(page: &mut Page, run: &Run, plan: &Plan, head: &WorkloadHead, found: &WorkloadEffects) {
    let style = page.style();
    let name = style.bold(&style.one_line(&clipped(&head.name, NAME_MAX)));
    let Some(judged) = found.judged() else {
        page.hanging(&format!("{name}   "), "nothing was measured: no trial of it ended as it should");
        return;
    };
    page.hanging(&format!("{name}   "), &answer(plan, found, judged));
    rows(page, run, plan, found, judged);
    let mut facts = vec![format!("by {}", style.one_line(&clipped(&measure_name(&judged.name), NAME_MAX)))];
    facts.push(match &judged.floor {
        Ok(noise) => {
            let of = if noise.is_pooled { " of all workloads" } else { "" };
            format!("noise floor {} ({} pairs of equals{of})", floor(noise), noise.pairs)
        }
        Err(absence) => format!("noise floor unknown: {}", absence.reason()),
    });
    page.hanging_dim("  ", &facts.join("; "));
    misses(page, plan, found);
    modelled(page, plan, found);
}

/// Misses of a modelled TLB, the baseline's first: where counters cannot be read they stand for them.
fn modelled(page: &mut Page, plan: &Plan, found: &WorkloadEffects) {
    let name = format!("{}tlb-misses", measures::MODEL);
    let Some(measure) = found.measure(&name) else { return };
    let others = (0..plan.variants.len()).filter(|&variant| variant != plan.baseline);
    let fact = |variant: usize| {
        let misses = measure.variants.get(variant)?.statistics?.median;
        let name = page.style().one_line(&clipped(&plan.variants[variant].name, VARIANT_MAX));
        Some(format!("{name} {}", count(misses as u128)))
    };
    let facts: Vec<String> = std::iter::once(plan.baseline).chain(others).filter_map(fact).collect();
    if !facts.is_empty() {
        page.facts("  modelled TLB misses, one run each: ", &facts, " → ");
    }
}

/// How many misses fewer, which tells why a variant is faster.
fn misses(page: &mut Page, plan: &Plan, found: &WorkloadEffects) {
    for variant in (0..plan.variants.len()).filter(|&variant| variant != plan.baseline) {
        let counted = found.measures.iter().filter(|measure| is_misses(&measure.name));
        let facts = counted.filter_map(|measure| {
            let effect = effect(measure, variant).filter(|effect| !is_void(effect))?;
            let name = clipped(&measure_name(&measure.name), NAME_MAX);
            Some(format!("{name} {}", fewer(effect.ratio)))
        });
        let facts: Vec<String> = facts.take(MISSES_MAX).collect();
        if !facts.is_empty() {
            let name = page.style().one_line(&clipped(&plan.variants[variant].name, VARIANT_MAX));
            page.facts(&format!("  {name}: "), &facts, ", ");
        }
    }
}

/// Whether the ratio is no effect of the variant.
fn is_void(effect: &Effect) -> bool {
    matches!(effect.verdict, Verdict::NotHuge { .. } | Verdict::NotApplied { .. })
}

/// The effect of a variant on a measure, where there is one.
fn effect(measure: &MeasureEffects, variant: usize) -> Option<&Effect> {
    measure.variants.get(variant)?.effect.as_ref().ok()
}

fn answer(plan: &Plan, found: &WorkloadEffects, judged: &MeasureEffects) -> String {
    let variants = (0..plan.variants.len()).filter(|&variant| variant != plan.baseline);
    let known: Vec<(usize, &Effect)> = variants.filter_map(|at| Some((at, effect(judged, at)?))).collect();
    let name = |variant: usize| clipped(&plan.variants[variant].name, NAME_MAX);
    // What is faster comes first, and the fastest of it; what decides nothing comes last.
    let weight = |effect: &Effect| match effect.verdict {
        Verdict::Better => 4,
        Verdict::Worse | Verdict::Differs => 3,
        Verdict::Undecided(_) => 2,
        Verdict::NoDifference => 1,
        _ => 0,
    };
    let best = known.iter().max_by(|(_, one), (_, other)| {
        let speed = |effect: &Effect| effect.speed_up().0;
        weight(one).cmp(&weight(other)).then(speed(one).total_cmp(&speed(other)))
    });
    let advised = found.advice.map(|of| (of, advised_variant(plan, &known, of)));
    let shown = advised.and_then(|(_, variant)| known.iter().find(|(at, _)| Some(*at) == variant)).or(best);
    let Some((variant, effect)) = shown else {
        return match plan.variants.len() {
            0 | 1 => median_of(judged, plan.baseline),
            _ => "no variant can be compared with the baseline".to_owned(),
        };
    };
    let is_decided =
        |effect: &Effect| matches!(effect.verdict, Verdict::Better | Verdict::Worse | Verdict::Differs);
    let words = match advised {
        Some((Advice::NoDifference, _)) => {
            why(effect, &judged.floor, &judged.name).replace("measured", "for this program")
        }
        Some((Advice::TooFew, _)) => why(effect, &judged.floor, &judged.name),
        Some((of, _)) if !is_decided(effect) => undecided(of, effect, &judged.floor, &judged.name),
        Some((of, _)) => format!("{}: {}, {}", advice(of), gain(effect), saved(effect, &judged.name)),
        None if !is_decided(effect) => {
            format!("{}: {}", name(*variant), why(effect, &judged.floor, &judged.name))
        }
        None if effect.verdict == Verdict::Worse => return slower(plan, found, judged, &known),
        None => format!("{} with {}, {}", gain(effect), name(*variant), saved(effect, &judged.name)),
    };
    let mut costs = if is_decided(effect) { costs(found, *variant) } else { Vec::new() };
    costs.extend(against(found, judged, *variant, effect));
    std::iter::once(words).chain(costs).collect::<Vec<_>>().join(", ")
}

/// How long the run takes, where its merit says it is faster and its time that it takes longer.
fn against(
    found: &WorkloadEffects,
    judged: &MeasureEffects,
    variant: usize,
    by_merit: &Effect,
) -> Option<String> {
    let is_faster = judged.name == measures::MERIT && !is_void(by_merit) && by_merit.speed_up().0 > 1.0;
    let times = effect(found.measure(measures::WALL)?, variant)?.ratio;
    (is_faster && times > LONGER)
        .then(|| format!("while its whole run takes {}× as long", ratio(times, None)))
}

/// Nothing is faster than the baseline: from where to where it goes down.
fn slower(
    plan: &Plan,
    found: &WorkloadEffects,
    judged: &MeasureEffects,
    known: &[(usize, &Effect)],
) -> String {
    let name = |variant: usize| clipped(&plan.variants[variant].name, NAME_MAX);
    let mut worse: Vec<&(usize, &Effect)> =
        known.iter().filter(|(_, effect)| effect.verdict == Verdict::Worse).collect();
    worse.sort_by(|(_, one), (_, other)| other.speed_up().0.total_cmp(&one.speed_up().0));
    let dies = (0..plan.variants.len())
        .find(|&at| found.trials.get(at).is_some_and(|counts| counts.done == 0 && counts.out_of_memory > 0));
    let dies = dies.map_or(String::new(), |at| format!("; with {} it dies for want of memory", name(at)));
    match worse.as_slice() {
        [] => format!("nothing is slower or faster{dies}"),
        [(variant, effect)] => {
            format!("{} with {}, {}{dies}", gain(effect), name(*variant), saved(effect, &judged.name))
        }
        [(first, least), .., (last, most)] => {
            let times = |effect: &Effect| ratio(1.0 / effect.speed_up().0, None);
            let (least, most) = (times(least), times(most));
            format!("slower, from {least}× with {} to {most}× with {}{dies}", name(*first), name(*last))
        }
    }
}

/// The variant that an advice speaks of.
fn advised_variant(plan: &Plan, known: &[(usize, &Effect)], advice: Advice) -> Option<usize> {
    let mode = match advice {
        Advice::Always => "always",
        Advice::Madvise => "madvise",
        _ => return None,
    };
    let of_mode =
        |(at, _): &&(usize, &Effect)| pagelab_metrics::effect::thp_mode(&plan.variants[*at]) == Some(mode);
    known.iter().find(of_mode).map(|(at, _)| *at)
}

/// What the gain costs: memory at its peak, and the longest stalls.
fn costs(found: &WorkloadEffects, variant: usize) -> Vec<String> {
    let times = |name: &str, words: &str| {
        let effect = effect(found.measure(name)?, variant)?;
        Some(format!("{words} {}×", ratio(effect.ratio, effect.interval)))
    };
    [times(measures::PEAK, "memory"), times(STALL, "p99.9 latency")].into_iter().flatten().collect()
}

fn median_of(judged: &MeasureEffects, variant: usize) -> String {
    let statistics = judged.variants.get(variant).and_then(|variant| variant.statistics);
    statistics.map_or("nothing was measured".to_owned(), |found| {
        let name = measure_name(&judged.name);
        format!("{name} {} (median of {})", value(found.median, &judged.unit, PageSize::USUAL), found.count)
    })
}

/// A line for each variant; columns that hold nothing are left out, and others where the width is too small.
fn rows(page: &mut Page, run: &Run, plan: &Plan, found: &WorkloadEffects, judged: &MeasureEffects) {
    let medians = judged.variants.iter().filter_map(|variant| Some(variant.statistics?.median.abs()));
    let page_size = run.manifest.machine.page_size;
    let scale = Scale::of(&judged.unit, page_size, false, medians.fold(0.0, f64::max));
    let title = match scale.unit.is_empty() {
        true => "median".to_owned(),
        false => format!("median [{}]", scale.unit),
    };
    let cells: Vec<[String; 8]> =
        (0..plan.variants.len()).map(|variant| row(plan, found, judged, variant, &scale)).collect();
    let titles = ["variant", &title, "speed-up", "95 % interval", "memory", "p99.9", "huge", "verdict"]
        .map(str::to_owned);
    let is_filled = |column: usize| cells.iter().any(|row| !matches!(row[column].as_str(), "" | "–"));
    let column = |at: usize| match at {
        0 | 7 => Column::left(&titles[at]),
        _ => Column::right(&titles[at]),
    };
    // Least needed first.
    for dropped in [&[][..], &[6], &[6, 5], &[6, 5, 4], &[6, 5, 4, 3]] {
        let kept: Vec<usize> = (0..8)
            .filter(|at| !dropped.contains(at) && (matches!(at, 0 | 1 | 7) || is_filled(*at)))
            .collect();
        let columns: Vec<Column<'_>> = kept.iter().map(|&at| column(at)).collect();
        let table: Vec<Vec<String>> =
            cells.iter().map(|row| kept.iter().map(|&at| row[at].clone()).collect()).collect();
        if page.table_if_it_fits(2, &columns, &table) {
            return;
        }
    }
    for row in &cells {
        page.facts("  ", &[row[0].clone(), row[1].clone(), row[2].clone(), row[7].clone()], "  ");
    }
}

fn row(
    plan: &Plan,
    found: &WorkloadEffects,
    judged: &MeasureEffects,
    variant: usize,
    scale: &Scale,
) -> [String; 8] {
    let none = || "–".to_owned();
    let counts = found.trials.get(variant).copied().unwrap_or_default();
    let statistics = judged.variants.get(variant).and_then(|of| of.statistics);
    let times = |name: &str| {
        let found = found.measure(name).and_then(|measure| effect(measure, variant));
        found.map_or(none(), |effect| format!("{}×", ratio(effect.ratio, effect.interval)))
    };
    let huge = found.measure(measures::HUGE).and_then(|measure| measure.variants.get(variant)?.statistics);
    let huge = huge.map_or(none(), |found| bytes(Bytes(found.median as u64)));
    let name = clipped(&plan.variants[variant].name, VARIANT_MAX);
    let median = statistics.map_or(none(), |found| scale.number(found.median));
    let is_baseline = variant == plan.baseline;
    let says = match effect(judged, variant) {
        _ if is_baseline => "baseline".to_owned(),
        Some(effect) => verdict(effect.verdict),
        None if counts.out_of_memory > 0 => "dies: out of memory".to_owned(),
        None if counts.failed > 0 => "failed".to_owned(),
        None => "no ratio".to_owned(),
    };
    // A ratio that is no effect of the variant is not shown as one.
    let shown = effect(judged, variant)
        .filter(|effect| !matches!(effect.verdict, Verdict::NotHuge { .. } | Verdict::NotApplied { .. }));
    let [speed, within, memory, stall] = match shown {
        Some(effect) => {
            let (times_as_fast, found) = effect.speed_up();
            let speed = format!("{}×", ratio(times_as_fast, found));
            [speed, interval_or_none(found), times(measures::PEAK), times(STALL)]
        }
        None => [none(), none(), none(), none()],
    };
    let died = match (counts.failed, counts.out_of_memory) {
        (0, _) => String::new(),
        _ if counts.done == 0 => String::new(),
        (failed, killed) if failed == killed => format!(", {failed} out of memory"),
        (failed, _) => format!(", {failed} failed"),
    };
    [name, median, speed, within, memory, stall, huge, format!("{says}{died}")]
}
