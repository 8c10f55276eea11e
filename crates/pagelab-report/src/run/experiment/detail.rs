//! With `-v`: the measures of every variant by their source, absent measures once each with the reason, and
//! the command that ran. Measures that no variant changes are counted, and shown with `-vv`.

use pagelab_metrics::effect::{EffectVerdict, ExperimentEffects, MeasureEffects, WorkloadEffects};
use pagelab_metrics::grouping::value_of;
use pagelab_model::PageSize;
use pagelab_model::experiment::{Experiment, Plan, measures};
use pagelab_model::run::{Run, Unit};

use super::super::clip_name;
use super::{NAME_MAX, TEXT_MAX};
use crate::checkup::cache_and_tlb_facts;
use crate::effect_text::{
    display_measure_key, format_level, format_measure_verdict, format_optional_interval, format_ratio,
};
use crate::quantity_format::format_quantity;
use crate::style::format_percent;
use crate::text_report::{TableColumn, TextReport};

pub(super) fn write_detail(
    output: &mut TextReport,
    run: &Run,
    experiment: &Experiment,
    effects: &ExperimentEffects,
    shows_all: bool,
) {
    let page_size = run.manifest.machine.page_size;
    let plan = &experiment.plan;
    for workload_effects in &effects.workloads {
        let Some(head) = plan.workloads.get(workload_effects.workload) else { continue };
        output.add_heading(&format!("{}: all measures", clip_name(&head.name, NAME_MAX)));
        let shown_measures = ShownMeasures::from_effects(plan, workload_effects, shows_all);
        write_baseline(output, plan, &shown_measures, page_size);
        for variant in (0..plan.variants.len()).filter(|&variant| Some(variant) != plan.baseline) {
            write_variant(output, plan, &shown_measures, variant, page_size);
        }
        if shown_measures.unchanged_count > 0 {
            let text = match shown_measures.unchanged_count {
                1 => "not shown: 1 measure that no variant changes (-vv)".to_owned(),
                same => format!("not shown: {same} measures that no variant changes (-vv)"),
            };
            output.add_dim_indented(&text);
        }
        write_absent_measures(output, workload_effects);
    }
    write_commands(output, plan);
}

/// Number of measures up to which the table has no group names.
const UNGROUPED_MEASURES_MAX: usize = 12;

/// Measures to show, sorted by group.
struct ShownMeasures<'a> {
    groups: Vec<(&'static str, Vec<&'a MeasureEffects>)>,
    /// Confidence level of the intervals.
    level: f64,
    /// Counts measures that are left out because no variant changes them.
    unchanged_count: usize,
}

impl<'a> ShownMeasures<'a> {
    fn from_effects(
        plan: &Plan,
        workload_effects: &'a WorkloadEffects,
        shows_all: bool,
    ) -> ShownMeasures<'a> {
        let mut shown_measures =
            ShownMeasures { groups: Vec::new(), level: workload_effects.level, unchanged_count: 0 };
        let judged = workload_effects.primary_measure().map(|judged| judged.key());
        for measure in workload_effects.measures.iter().filter(|measure| measure.absent.is_none()) {
            let is_judged = judged.as_ref() == Some(&measure.key());
            if !shows_all && !is_judged && is_unchanged(measure, plan.baseline) {
                shown_measures.unchanged_count += 1;
                continue;
            }
            value_of(&mut shown_measures.groups, group_of_measure(&measure.name)).push(measure);
        }
        shown_measures
    }

    /// Builds a row for each measure that has values, below the name of its group.
    fn grouped_rows(&self, row: impl Fn(&MeasureEffects) -> Option<Vec<String>>) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (group, members) in &self.groups {
            let told: Vec<Vec<String>> = members.iter().filter_map(|measure| row(measure)).collect();
            let Some(cells) = told.first().map(Vec::len) else { continue };
            let mut head = vec![String::new(); cells];
            head[0] = format!("— {group}");
            if self.groups.iter().map(|(_, members)| members.len()).sum::<usize>() > UNGROUPED_MEASURES_MAX {
                rows.push(head);
            }
            rows.extend(told);
        }
        rows
    }
}

fn row_label(measure: &MeasureEffects) -> String {
    clip_name(&display_measure_key(measure), NAME_MAX)
}

fn write_baseline(
    output: &mut TextReport,
    plan: &Plan,
    shown_measures: &ShownMeasures<'_>,
    page_size: PageSize,
) {
    let Some(of) = plan.baseline else { return };
    let head = &plan.variants[of].name;
    output.add_indented(&format!("{} (baseline)", output.style().clip_name(head, NAME_MAX)));
    let rows = shown_measures.grouped_rows(|measure| {
        let statistics = measure.variants.get(of)?.statistics?;
        let spread = statistics.relative_interquartile_range().map_or("–".to_owned(), format_percent);
        let number = |number: f64| format_quantity(number, &measure.unit, page_size);
        let numbers = [statistics.median, statistics.min, statistics.max].map(number);
        Some([&[row_label(measure), statistics.count.to_string()][..], &numbers, &[spread]].concat())
    });
    let columns = TableColumn::list(&["measure", "n", "median", "min", "max", "spread"], 1);
    write_table(output, &columns, &rows, &[3, 4]);
}

fn write_variant(
    output: &mut TextReport,
    plan: &Plan,
    shown_measures: &ShownMeasures<'_>,
    variant_index: usize,
    page_size: PageSize,
) {
    let Some(baseline) = plan.baseline else { return };
    let names =
        [variant_index, baseline].map(|at| output.style().clip_name(&plan.variants[at].name, NAME_MAX));
    output.add_indented(&format!("{} against {}", names[0], names[1]));
    let rows = shown_measures.grouped_rows(|measure| {
        let variant = measure.variants.get(variant_index)?;
        let median = variant.statistics.map(|found| format_quantity(found.median, &measure.unit, page_size));
        let [ratio_text, interval_text, verdict_text] = match (variant.effect(), variant.effect_absence()) {
            (Some(effect), _) => [
                format_ratio(effect.ratio, effect.interval),
                format_optional_interval(effect.interval),
                match measure.name.starts_with(measures::MODEL_PREFIX) {
                    true => "modelled once, no interval".to_owned(),
                    false => format_measure_verdict(effect.verdict, effect.ratio).to_owned(),
                },
            ],
            (None, absence) => {
                let reason = absence.map_or("", |absence| absence.reason());
                ["–".to_owned(), "–".to_owned(), clip_name(reason, NAME_MAX)]
            }
        };
        Some(vec![
            row_label(measure),
            median.unwrap_or("–".to_owned()),
            ratio_text,
            interval_text,
            verdict_text,
        ])
    });
    let interval_title = format!("{} interval", format_level(shown_measures.level));
    let columns = [
        TableColumn::left("measure"),
        TableColumn::right("median"),
        TableColumn::right("ratio"),
        TableColumn::right(&interval_title),
        TableColumn::left("verdict"),
    ];
    write_table(output, &columns, &rows, &[3]);
}

/// Writes the table, with fewer columns if it is too wide, or facts in a row.
fn write_table(
    output: &mut TextReport,
    columns: &[TableColumn<'_>],
    rows: &[Vec<String>],
    droppable_columns: &[usize],
) {
    if rows.is_empty() {
        output.add_dim_paragraph("    ", "nothing was measured");
        return;
    }
    let choices = (0..=droppable_columns.len()).map(|drop| {
        let is_kept = |at: &usize| !droppable_columns[..drop].contains(at);
        (0..columns.len()).filter(is_kept).collect::<Vec<usize>>()
    });
    if output.add_fitting_table(4, columns, rows, choices) {
        return;
    }
    rows.iter().for_each(|row| output.add_facts("    ", row, "  "));
}

/// Writes measures that no trial has, grouped by reason.
fn write_absent_measures(output: &mut TextReport, workload_effects: &WorkloadEffects) {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for measure in &workload_effects.measures {
        let Some(absence) = &measure.absent else { continue };
        value_of(&mut reasons, absence.to_string()).push(row_label(measure));
    }
    for (why, names) in reasons {
        let text = format!("{} ({})", names.join(", "), clip_name(&why, TEXT_MAX));
        output.add_paragraph("  not available: ", &output.style().to_one_line(&text));
    }
}

fn write_commands(output: &mut TextReport, plan: &Plan) {
    output.add_heading("commands and settings");
    for head in &plan.workloads {
        let command = head.command.join(" ");
        let first = format!("  {}  ", output.style().clip_name(&head.name, NAME_MAX));
        output.add_paragraph(&first, &output.style().clip_name(&command, TEXT_MAX));
        if !head.generator.is_empty() {
            output.add_dim_paragraph("    ", &output.style().clip_name(&head.generator, TEXT_MAX));
        }
    }
    for variant in &plan.variants {
        let settings: Vec<String> =
            variant.settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let text = if settings.is_empty() { "no settings".to_owned() } else { settings.join(", ") };
        let first = format!("  {}  ", output.style().clip_name(&variant.name, NAME_MAX));
        output.add_paragraph(&first, &output.style().clip_name(&text, TEXT_MAX));
    }
}

/// Assumed noise of a measure whose noise is unknown.
const DEFAULT_NOISE: f64 = 1.05;

/// Measures that are shown even if no variant changes them.
const ALWAYS_SHOWN: [&str; 4] = [measures::WALL, measures::CPU, measures::PEAK_MEMORY, measures::HUGE_BYTES];

/// Prefixes of names, and the group of such measures.
const MEASURE_GROUPS: [(&str, &str); 17] = [
    (measures::MODEL_PREFIX, "modelled, one run each"),
    ("hits.", "hits and misses"),
    ("miss_rate.", "hits and misses"),
    (measures::PHASE_PREFIX, "measured phase"),
    (measures::COUNTER_PREFIX, "perf"),
    ("rusage.", "rusage"),
    ("group.", "cgroup"),
    ("vmstat.", "vmstat"),
    ("thp.", "THP by size"),
    ("huge.", "huge pages"),
    ("page_tables", "page tables"),
    ("memory.", "memory"),
    ("pressure.", "pressure"),
    ("unusable.", "fragmentation"),
    ("probe.", "watching"),
    (measures::LATENCY_PREFIX, "latency"),
    ("cpu", "time"),
];

fn group_of_measure(name: &str) -> &'static str {
    if [measures::WALL, measures::CPU].contains(&name) {
        return "time";
    }
    let known = MEASURE_GROUPS.iter().find(|(start, _)| name.starts_with(start));
    known.map_or("figures", |(_, group)| group)
}

/// Returns whether the measure has the same value, within its noise, under all variants.
fn is_unchanged(measure: &MeasureEffects, baseline: Option<usize>) -> bool {
    if ALWAYS_SHOWN.contains(&measure.name.as_str()) {
        return false;
    }
    let noise = measure.noise_floor.as_ref().map_or(DEFAULT_NOISE, |floor| floor.ratio.max(1.0));
    let base = baseline.and_then(|baseline| measure.variants.get(baseline)?.statistics);
    measure.variants.iter().all(|variant| {
        let (Some(base), Some(of)) = (base, variant.statistics) else { return variant.statistics.is_none() };
        let verdict = variant.effect().map(|effect| effect.verdict);
        let is_near = match (of.median, base.median) {
            (of, base) if of == base => true,
            (of, base) if of > 0.0 && base > 0.0 => (of / base).max(base / of) <= noise,
            _ => false,
        };
        !verdict.is_some_and(EffectVerdict::is_difference)
            && (is_near || verdict == Some(EffectVerdict::NoDifference))
    })
}

pub(super) fn write_hardware(output: &mut TextReport, run: &Run, effects: &ExperimentEffects) {
    let machine = &run.manifest.machine;
    // The caches of this machine are not those that an emulated processor has.
    let is_guest = run.experiment.as_ref().is_some_and(|experiment| experiment.plan.place == Plan::GUEST);
    let is_known = [machine.caches.is_ok(), machine.tlb.is_ok()].map(|is_known| is_known && !is_guest);
    for ((name, text), _) in
        cache_and_tlb_facts(machine).into_iter().zip(is_known).filter(|(_, is_known)| *is_known)
    {
        output.add_dim_paragraph(&format!("{name:<10}"), &clip_name(&text, TEXT_MAX));
    }
    let (mut available, mut unavailable) = (0, Vec::<(String, usize)>::new());
    for measure in effects.workloads.iter().take(1).flat_map(|workload| &workload.measures) {
        if !measure.name.starts_with(measures::COUNTER_PREFIX) {
            continue;
        }
        match &measure.absent {
            Some(absence) => *value_of(&mut unavailable, absence.reason_and_hint()) += 1,
            None => available += 1,
        }
    }
    if available + unavailable.len() == 0 {
        return;
    }
    let of = available + unavailable.iter().map(|(_, count)| count).sum::<usize>();
    let reasons: Vec<String> = unavailable
        .iter()
        .map(|(why, count)| format!("; {count} not available: {}", clip_name(why, TEXT_MAX)))
        .collect();
    let text = match run.has_emulated_times() {
        // The remedies of a machine do not apply.
        true => format!("{available} of {of} available: an emulated processor has no hardware counters"),
        false => format!("{available} of {of} available{}", reasons.concat()),
    };
    output.add_dim_paragraph("counters  ", &output.style().to_one_line(&text));
}

// System time of the first touch of memory, separate from the rest.
//
/// Columns of a variant's name, at most.
const VARIANT_MAX: usize = 30;
/// Variants listed, at most.
const VARIANTS_SHOWN_MAX: usize = 6;

/// Writes a line with the first-touch time of each variant and the rest of its system time.
pub(super) fn write_first_touch(output: &mut TextReport, run: &Run, plan: &Plan, effects: &WorkloadEffects) {
    let middle = |name: &str, variant: usize| effects.measure(name)?.median(variant);
    let time = |ns: f64| format_quantity(ns, &Unit::from(Unit::NANOSECONDS), PageSize::DEFAULT);
    let fact = |variant: usize| {
        let touch = middle(measures::FIRST_TOUCH, variant)?;
        let rest = (middle(measures::CPU_SYSTEM, variant)? - touch).max(0.0);
        let name = clip_name(&plan.variants[variant].name, VARIANT_MAX);
        let name = output.style().to_one_line(&name);
        Some(format!("{name} {} in first touch, {} elsewhere", time(touch), time(rest)))
    };
    let facts: Vec<String> = (0..plan.variants.len()).filter_map(fact).take(VARIANTS_SHOWN_MAX).collect();
    if !facts.is_empty() {
        let emulated = if run.has_emulated_times() { " (TCG)" } else { "" };
        output.add_facts(&format!("  system time{emulated}: "), &facts, "; ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_measure_has_its_group() {
        for (name, group) in [
            ("wall", "time"),
            ("cpu.user", "time"),
            ("merit", "figures"),
            ("access_minor_faults", "figures"),
            ("counter.dTLB-loads", "perf"),
            ("phase.counter.dTLB-loads", "measured phase"),
            ("model.tlb-misses", "modelled, one run each"),
            ("miss_rate.dTLB-loads", "hits and misses"),
            ("huge.anon.last", "huge pages"),
            ("pressure.group.memory.some", "pressure"),
        ] {
            assert_eq!(group_of_measure(name), group, "{name}");
        }
    }
}
