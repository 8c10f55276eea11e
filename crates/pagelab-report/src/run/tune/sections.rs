//! Sections of a tuning: speed-up by the number of huge pages, regions, counters.

use pagelab_metrics::effect::{ExperimentEffects, MeasureEffects};
use pagelab_metrics::tune::{MissRegion, TuningResult, compare_regions};
use pagelab_model::TlbProfile;
use pagelab_model::experiment::{Experiment, measures};
use pagelab_model::profile::{MappingIdentity, MappingKind, ProfileSource};
use pagelab_model::run::Run;
use pagelab_model::tune::{HugePageSelection, TuningRun};

use super::{NAME_MAX, PredictionBasis, format_times, speedup_cells};
use crate::effect_text::{format_level, format_narrow_interval, format_reduction};
use crate::miss_counts::format_share_of_misses;
use crate::quantity_format::format_quantity;
use crate::run::{View, clip_name};
use crate::style::{format_bytes, format_count};
use crate::text_report::{RowTable, TextReport};

/// Characters of the longest bar.
const BAR_SIGNS: usize = 10;

/// One number of huge pages, with its arms by selection.
struct CurveStep {
    pages: Option<u64>,
    costliest: Option<usize>,
    random: Option<usize>,
    most_accessed: Option<usize>,
}

pub(super) fn write_curve(
    output: &mut TextReport,
    tune: &TuningRun,
    tuned: &TuningResult,
    prediction: PredictionBasis,
) {
    let steps = curve_steps(tune);
    if tune.arm_index(HugePageSelection::Costliest).is_none() {
        return;
    }
    let value = |at: Option<usize>| tuned.arms.get(at?)?.speed_up;
    let value_max = steps.iter().filter_map(|step| value(step.costliest)).map(|(value, _)| value - 1.0);
    let value_max = value_max.fold(0.0, f64::max);
    let alone = |at: Option<usize>| value(at).map_or(String::new(), |found| speedup_cells(Some(found)).0);
    output.add_gap();
    output.add_text("huge pages → speed-up, costliest regions first");
    // The arms of the costliest regions are the reference of all others.
    RowTable::<&CurveStep>::new()
        .right("huge pages", |step| step.pages.map_or("all".to_owned(), |pages| format_count(pages.into())))
        .right("speed-up", |step| match step.pages {
            Some(0) => "1".to_owned(),
            _ => speedup_cells(value(step.costliest)).0,
        })
        .left(format_level(tuned.level), |step| match (step.pages, value(step.costliest)) {
            (Some(0), _) => String::new(),
            (_, Some((_, Some(within)))) => format_narrow_interval(within),
            _ => "–".to_owned(),
        })
        .right(prediction.column_title(), |step| {
            let predicted = step.costliest.and_then(|at| tuned.arms.get(at)?.predicted_speed_up);
            predicted.map_or(String::new(), format_times)
        })
        .right("random", |step| alone(step.random))
        .right("most used", |step| alone(step.most_accessed))
        .left("gain", |step| {
            let gain = value(step.costliest).map_or(0.0, |(value, _)| (value - 1.0).max(0.0));
            let signs = if value_max > 0.0 { gain / value_max * BAR_SIGNS as f64 } else { 0.0 };
            "█".repeat(signs.round() as usize)
        })
        .add_narrowed_to(output, 2, &steps, &[&[0, 1, 2, 3, 4, 5, 6], &[0, 1, 2, 3]]);
}

/// By number, `all` last.
fn curve_steps(tune: &TuningRun) -> Vec<CurveStep> {
    let mut steps: Vec<CurveStep> = Vec::new();
    for (arm_index, arm) in tune.arms.iter().enumerate() {
        let pages = arm.planned.filter(|_| arm.selection != HugePageSelection::All);
        let place = steps.iter().position(|step| step.pages == pages).unwrap_or_else(|| {
            steps.push(CurveStep { pages, costliest: None, random: None, most_accessed: None });
            steps.len() - 1
        });
        let step = &mut steps[place];
        match arm.selection {
            HugePageSelection::Random => step.random = Some(arm_index),
            HugePageSelection::MostUsed => step.most_accessed = Some(arm_index),
            _ => step.costliest = step.costliest.or(Some(arm_index)),
        }
    }
    steps.sort_by_key(|step| step.pages.unwrap_or(u64::MAX));
    steps
}

/// Counters in the summary, at most.
const COUNTERS_MAX: usize = 8;

pub(super) fn write_counters(
    output: &mut TextReport,
    run: &Run,
    experiment: &Experiment,
    tune: &TuningRun,
    view: View,
) {
    let (Some(none), Some(plan)) =
        (tune.arm_index(HugePageSelection::None), tune.arm_index(HugePageSelection::Plan))
    else {
        return;
    };
    let effects = ExperimentEffects::from_experiment(experiment);
    let Some(workload_effects) = effects.workloads.first() else { return };
    let counters = workload_effects.measures.iter().filter_map(|of| {
        let name = of.name.strip_prefix(measures::COUNTER_PREFIX)?;
        let values = (of.median(none)?, of.median(plan)?);
        (values != (0.0, 0.0)).then_some((name, of, values))
    });
    let counters: Vec<(&str, &MeasureEffects, (f64, f64))> = counters.collect();
    if counters.is_empty() {
        return;
    }
    let left_out = if view.verbose { 0 } else { counters.len().saturating_sub(COUNTERS_MAX) };
    let told =
        |of: &MeasureEffects, number: f64| format_quantity(number, &of.unit, run.manifest.machine.page_size);
    output.add_gap();
    RowTable::<&(&str, &MeasureEffects, (f64, f64))>::new()
        .left("counter", |(name, ..)| clip_name(name, 2 * NAME_MAX))
        .right("before", |(_, of, (before, _))| told(of, *before))
        .right("with the plan", |(_, of, (_, after))| told(of, *after))
        .left("", |(.., (before, after))| match *before > 0.0 {
            true => format_reduction(after / before),
            false => String::new(),
        })
        .add_narrowed_to(output, 2, &counters[..counters.len() - left_out], &[&[0, 1, 2, 3], &[0, 1, 2]]);
    if left_out > 0 {
        output.add_dim_indented(&format!("not shown: {left_out} more (-v)"));
    }
}

/// Regions in the summary, at most.
const REGIONS_MAX: usize = 12;
/// Regions in the full report, at most.
const REGIONS_MAX_VERBOSE: usize = 512;
/// Characters of the longest bar.
const REGION_BAR_SIGNS: u64 = 15;

fn recount_absence_reason(source: ProfileSource, tune: &TuningRun) -> &'static str {
    match (source, tune.plan_file.is_empty()) {
        (_, true) => "nothing is planned",
        (ProfileSource::Exact, _) => "not recounted with the plan: omitted by --quick, stopped or failed",
        _ => "not recounted with the plan (only --source exact recounts)",
    }
}

pub(super) fn write_regions(output: &mut TextReport, run: &Run, tune: &TuningRun, view: View) {
    let Some(profile) = &run.profile else { return };
    let regions_found = compare_regions(tune, profile);
    let regions_shown = if view.verbose { REGIONS_MAX_VERBOSE } else { REGIONS_MAX };
    let has_after = regions_found.first().is_some_and(|region| region.misses_after.is_some());
    let Some(most) = regions_found.first().map(|region| region.misses_before).filter(|misses| *misses > 0)
    else {
        return;
    };
    // Both counts on one scale: remaining misses in full, removed ones light.
    let signs = |misses: u64| {
        let of = u128::from(misses) * u128::from(REGION_BAR_SIGNS);
        usize::try_from(of.div_ceil(u128::from(most))).unwrap_or(0)
    };
    let bar = |region: &MissRegion| {
        let stays = region.misses_after.unwrap_or(region.misses_before);
        let went = signs(region.misses_before).saturating_sub(signs(stays));
        format!("{}{}", "█".repeat(signs(stays)), "░".repeat(went))
    };
    output.add_gap();
    output.add_text(&miss_totals_text(profile, tune, &regions_found, has_after));
    let share = |misses: u64| format_share_of_misses(profile, misses.into());
    let table = RowTable::<&MissRegion>::new()
        .left("mapping", |region| clip_name(&mapping_name(&region.key), 28))
        .right("offset", |region| format_offset(region.offset))
        .left("", |region| if region.is_planned { "planned" } else { "" }.to_owned())
        .right("before", |region| share(region.misses_before))
        .right("plan", |region| region.misses_after.map_or(String::new(), share))
        .left(if has_after { "█ left ░ saved" } else { "" }, |region| bar(region));
    let rows = table.rows(regions_found.iter().take(regions_shown));
    let kept: &[&[usize]] = match has_after {
        true => &[&[0, 1, 2, 3, 4, 5], &[0, 1, 3, 4], &[0, 3]],
        false => &[&[0, 1, 2, 3, 5], &[0, 1, 3], &[0, 3]],
    };
    output.add_fitting_table(2, &table.columns(), &rows, kept);
    if regions_found.len() > regions_shown {
        let rest: u128 =
            regions_found[regions_shown..].iter().map(|region| u128::from(region.misses_before)).sum();
        let (regions, rest) = (
            format_count((regions_found.len() - regions_shown) as u128),
            format_share_of_misses(profile, rest),
        );
        output.add_dim_indented(&format!("{regions} more regions have {rest} misses"));
    }
}

fn miss_totals_text(
    profile: &TlbProfile,
    tune: &TuningRun,
    regions_found: &[MissRegion],
    has_after: bool,
) -> String {
    let sum = |of: fn(&MissRegion) -> u64| regions_found.iter().map(of).map(u128::from).sum::<u128>();
    let before = format_share_of_misses(profile, sum(|region| region.misses_before));
    if has_after {
        let after = format_share_of_misses(profile, sum(|region| region.misses_after.unwrap_or(0)));
        return format!("misses by region: {before} before, {after} recounted with the plan");
    }
    let has_range = profile.misses_interval().is_some() || profile.lower_bound_reason().is_some();
    let before = if has_range { crate::miss_counts::format_misses(profile) } else { before };
    format!("misses by region: {before}; {}", recount_absence_reason(profile.source, tune))
}

/// Names a mapping: `anonymous 1 GiB`, `anonymous 1 GiB #2`, `heap`, a file's path.
pub(crate) fn mapping_name(key: &MappingIdentity) -> String {
    let nth = if key.nth > 0 { format!(" #{}", u64::from(key.nth) + 1) } else { String::new() };
    match &key.kind {
        MappingKind::Anonymous => format!("anonymous {}{nth}", format_bytes(key.bytes)),
        MappingKind::Shared => format!("shared {}{nth}", format_bytes(key.bytes)),
        MappingKind::Heap => "heap".to_owned(),
        MappingKind::Stack => "stack".to_owned(),
        MappingKind::File(path) => format!("{path}{nth}"),
        MappingKind::Placed => "address".to_owned(),
    }
}

fn format_offset(offset: i64) -> String {
    let sign = if offset < 0 { "-" } else { "+" };
    format!("{sign}{:#x}", offset.unsigned_abs())
}
