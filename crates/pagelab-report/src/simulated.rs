//! Report of an experiment whose measures are compared by differences, as in the simulator: tables in the
//! form of a kernel comparison report, measures by phase with a column for each scheme; or the results of a
//! sweep.

mod headline;
mod page;
mod sweep;
#[cfg(test)]
mod tests;

use pagelab_metrics::effect::{
    DifferenceVerdict, ExperimentEffects, MeasureEffects, PairedDifference, RankInterval, VariantEffect,
    WorkloadEffects,
};
use pagelab_model::Bytes;
use pagelab_model::experiment::{Experiment, Trial};
use pagelab_model::simulation::PointView;

use crate::attachments;
use crate::run::clip_name;
use crate::style::{TextStyle, format_bytes, format_count, format_plural, format_three_digits};
use crate::text_report::{TableColumn, TextReport};

pub use page::page_report;

/// Columns of a name and a unit, at most.
const NAME_MAX: usize = 30;
const UNIT_MAX: usize = 10;
/// Seeds that are listed individually if they are not consecutive, at most.
const SEEDS_LISTED: usize = 6;

/// Renders the report of an experiment.
pub fn render(experiment: &Experiment, verbose: bool, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_header(&mut output, experiment);
    if experiment.trials.is_empty() {
        output.add_text("no trial completed, so there are no figures");
        return output.into_text();
    }
    if experiment.plan.varied().is_empty() {
        write_comparison(&mut output, experiment, verbose);
    } else {
        sweep::write_sweep(&mut output, experiment, verbose);
    }
    if attachments::has_series_in_text(&experiment.plan, verbose) {
        let name = |trial: &Trial| {
            let (point, seed) = experiment.plan.point_and_seed(trial.slot)?;
            Some(format!("{}, seed {seed}", configuration_name(experiment.plan.point(point)?)))
        };
        attachments::write_series(&mut output, experiment, |trial| name(trial).unwrap_or_default());
    }
    attachments::write_notes(&mut output, experiment);
    output.into_text()
}

fn write_header(output: &mut TextReport, experiment: &Experiment) {
    let plan = &experiment.plan;
    if !plan.question.is_empty() {
        output.add_bold_text(&plan.question);
    }
    let planned = plan.schedule.len();
    let trials_done = experiment.trials.len();
    let of =
        if trials_done == planned { String::new() } else { format!("{} of ", format_number(trials_done)) };
    let facts = [
        match (plan.points().len(), plan.point(0)) {
            (1, Some(point)) => configuration_name(point),
            (points, _) => format!("{} configurations", format_number(points)),
        },
        format_seeds(plan.seeds()),
        format!("{of}{}", format_plural(planned, "run")),
    ];
    output.add_fact_line(&facts);
    if trials_done < planned {
        let are = format_plural(planned - trials_done, "run is|runs are");
        let text = format!("{are} missing: the experiment was stopped or is still running");
        output.add_paragraph(&format!("{}  ", output.style().paint_alert("INCOMPLETE")), &text);
    }
}

/// Names a configuration: `highalloc on x86 under zone+linear`.
fn configuration_name(point: PointView<'_>) -> String {
    format!("{} under {}", common_configuration(point), point.scheme)
}

/// Describes what all columns of a table have in common.
fn common_configuration(point: PointView<'_>) -> String {
    let cell = point.workload;
    let core =
        cell.kernelcore.map_or(String::new(), |size| format!(", kernelcore {}", format_bytes(Bytes(size))));
    let parameters: String = cell
        .parameters
        .iter()
        .map(|(name, value)| format!(", {name} {}", format_count((*value).into())))
        .collect();
    format!("{} on {}{core}{parameters}", cell.load, cell.machine)
}

/// Formats seeds: `seeds 1 to 20`.
fn format_seeds(seeds: &[u64]) -> String {
    let follow = seeds.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    match seeds {
        [] => "no seeds".to_owned(),
        [one] => format!("seed {one}"),
        [first, .., last] if follow => format!("seeds {first} to {last}"),
        seeds if seeds.len() <= SEEDS_LISTED => {
            let listed: Vec<String> = seeds.iter().map(u64::to_string).collect();
            format!("seeds {}", listed.join(", "))
        }
        seeds => format!("{} seeds", format_number(seeds.len())),
    }
}

fn format_number(count: usize) -> String {
    format_count(count as u128)
}

fn write_comparison(output: &mut TextReport, experiment: &Experiment, verbose: bool) {
    let mut comparison = ExperimentEffects::from_experiment(experiment);
    if !verbose && headline::is_long(experiment, &comparison) {
        headline::write_headlines(output, experiment, &comparison);
        // Of all differences, including those not shown.
        comparison.differences.wide = 0;
        return write_reading_guide(output, experiment, &comparison);
    }
    let unchanged = headline::take_unchanged(experiment, &mut comparison);
    let is_alone = experiment.plan.points().len() == 1;
    for group in comparison.workloads.iter().filter(|group| !group.measures.is_empty()) {
        output.add_gap();
        let first = column_point(experiment, group, 0);
        if let Some(cell) = first.filter(|_| !is_alone) {
            output.add_bold_text(&common_configuration(cell));
        }
        let columns: Vec<usize> = (0..group.columns.len()).collect();
        write_tables(output, experiment, group, &columns, figure_cell);
        let others = columns.get(1..).unwrap_or_default();
        if let Some(cell) = first.filter(|_| !others.is_empty()) {
            output.add_gap();
            output.add_bold_text(&format!("difference from {}, paired by seed", cell.scheme));
            write_tables(output, experiment, group, others, |row, found| {
                difference_cell(row, found.difference())
            });
        }
    }
    headline::write_unchanged(output, &unchanged);
    headline::write_glossary(output, comparison.workloads.iter().flat_map(|group| &group.measures));
    write_reading_guide(output, experiment, &comparison);
}

fn write_reading_guide(output: &mut TextReport, experiment: &Experiment, comparison: &ExperimentEffects) {
    output.add_gap();
    let seeds = experiment.plan.seeds().len();
    let columns = || comparison.workloads.iter().flat_map(|of| &of.measures).flat_map(|row| &row.variants);
    if seeds > 1 && seeds < pagelab_metrics::effect::PAIRS_MIN {
        let text = format!("{seeds} seeds: medians only; use 6 or more seeds for intervals and a verdict");
        output.add_dim_text(&text);
    } else if seeds > 1 {
        let level = columns().filter_map(|column| Some(column.median_interval()?.level)).fold(1.0, f64::min);
        let text = format!("median over seeds ({} interval from order statistics)", format_level(level));
        output.add_dim_text(&text);
    }
    if comparison.differences.judged > 0 {
        let missed = comparison.differences.missed_by_chance;
        let by_chance = match comparison.differences.wide {
            0..20 => String::new(),
            wide => format!(
                ". About {missed:.0} of {} intervals are expected to miss by chance",
                format_number(wide)
            ),
        };
        let levels = columns().filter_map(|column| Some(column.difference()?.interval?.level));
        let level = levels.fold(1.0, f64::min);
        let text = format!(
            "differences: Hodges–Lehmann estimate ({} interval from Wilcoxon's signed-rank test); \"none \
             seen\" if it contains 0{by_chance}",
            format_level(level)
        );
        output.add_dim_text(&text);
    }
}

/// Formats the level of an interval with its decimal, which `style::format_percent` omits: `96.9 %`.
fn format_level(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The point of a column, if it is of a grid.
fn column_point<'e>(
    experiment: &'e Experiment,
    group: &WorkloadEffects,
    column: usize,
) -> Option<PointView<'e>> {
    experiment.plan.point(group.columns.get(column)?.point?)
}

/// Writes measures by phase, these columns, in as many tables as necessary.
fn write_tables(
    output: &mut TextReport,
    experiment: &Experiment,
    group: &WorkloadEffects,
    column_indices: &[usize],
    format_cell: impl Fn(&MeasureEffects, &VariantEffect) -> String,
) {
    let mut remaining = column_indices;
    while !remaining.is_empty() {
        let mut taken = remaining.len();
        let (columns, rows) = loop {
            let (columns, rows) = lay_out_table(experiment, group, &remaining[..taken], &format_cell);
            let width = output.table_width(0, &TableColumn::list(&columns, 2), &rows);
            if taken <= 1 || width <= output.style().width {
                break (columns, rows);
            }
            taken -= 1;
        };
        output.add_table(0, &TableColumn::list(&columns, 2), &rows);
        remaining = &remaining[taken..];
        if !remaining.is_empty() {
            output.add_gap();
        }
    }
}

fn lay_out_table(
    experiment: &Experiment,
    group: &WorkloadEffects,
    column_indices: &[usize],
    format_cell: &impl Fn(&MeasureEffects, &VariantEffect) -> String,
) -> (Vec<String>, Vec<Vec<String>>) {
    let scheme = |&place: &usize| {
        let point = column_point(experiment, group, place);
        clip_name(point.map_or("", |point| point.scheme), NAME_MAX)
    };
    let columns: Vec<String> =
        [String::new(), "unit".to_owned()].into_iter().chain(column_indices.iter().map(scheme)).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut phase = None;
    for row in &group.measures {
        if phase != Some(&row.phase) {
            rows.push(vec![clip_name(&row.phase, NAME_MAX)]);
            phase = Some(&row.phase);
        }
        let cell = |&place: &usize| {
            found_column(row, place).map_or("–".to_owned(), |found| format_cell(row, found))
        };
        let head = [format!("  {}", clip_name(&row.name, NAME_MAX)), clip_name(&row.unit.0, UNIT_MAX)];
        rows.push(head.into_iter().chain(column_indices.iter().map(cell)).collect());
    }
    (columns, rows)
}

/// The values of a column; `None` if no trial of it has the measure.
fn found_column(row: &MeasureEffects, column: usize) -> Option<&VariantEffect> {
    row.variants.get(column).filter(|found| !found.values.is_empty())
}

/// The median; not a number without values.
fn median(found: &VariantEffect) -> f64 {
    found.statistics.map_or(f64::NAN, |statistics| statistics.median)
}

/// Formats a value of a figure, for terminal and pages: shares with three decimals, counts exactly up to 100
/// 000, and three digits of larger ones. The median of an even number of seeds may be halfway between two
/// counts, which is shown.
pub(crate) fn format_value(value: f64, unit: &str) -> String {
    let is_share = unit == "share";
    let is_half = value.abs().fract() == 0.5;
    match value.abs() {
        _ if is_share => format!("{value:.3}"),
        size if size >= 999_500.0 => format!("{} M", format_three_digits(value / 1e6)),
        size if size >= 99_950.0 => format!("{} k", format_three_digits(value / 1e3)),
        size if size == size.trunc() || size >= 100.0 || is_half => {
            let sign = if value < 0.0 { "-" } else { "" };
            match is_half {
                true => format!("{sign}{}.5", format_count(size.trunc() as u128)),
                false => format!("{sign}{}", format_count(size.round() as u128)),
            }
        }
        _ => format_three_digits(value),
    }
}

fn figure_cell(row: &MeasureEffects, found: &VariantEffect) -> String {
    let interval = found.median_interval().map(|of| (of.low, of.high));
    format_with_interval(median(found), interval, &row.unit.0)
}

/// Formats a value with its interval: `120.5 (118…122)`.
pub(crate) fn format_with_interval(middle: f64, interval: Option<(f64, f64)>, unit: &str) -> String {
    let between = |(low, high)| format_interval(format_value(low, unit), format_value(high, unit));
    format!("{}{}", format_value(middle, unit), interval.map_or(String::new(), between))
}

/// Formats the ends of an interval, if they differ as displayed.
fn format_interval(low: String, high: String) -> String {
    if low == high { String::new() } else { format!(" ({low}…{high})") }
}

fn format_signed(number: f64, unit: &str) -> String {
    // Non-zero values that three decimals would display as 0.
    if unit == "share" && number != 0.0 && number.abs() < 0.0005 {
        let sign = if number > 0.0 { '+' } else { '−' };
        let decimals = if number.abs() < 0.000_05 { 6 } else { 4 };
        return format!("{sign}{:.decimals$}", number.abs());
    }
    match number {
        0.0 => format_value(0.0, unit),
        number if number > 0.0 => format!("+{}", format_value(number, unit)),
        number => format!("−{}", format_value(-number, unit)),
    }
}

fn difference_cell(row: &MeasureEffects, paired_difference: Option<&PairedDifference>) -> String {
    let Some(paired_difference) = paired_difference else { return "no pairs".to_owned() };
    let unit = row.unit.0.as_str();
    let between =
        |of: RankInterval| format_interval(format_signed(of.low, unit), format_signed(of.high, unit));
    let within = paired_difference.interval.map_or(String::new(), between);
    match paired_difference.verdict {
        DifferenceVerdict::Equal => "the same".to_owned(),
        DifferenceVerdict::TooFew => format_signed(paired_difference.hodges_lehmann, unit),
        DifferenceVerdict::NoDifference => format!("none seen{within}"),
        DifferenceVerdict::More | DifferenceVerdict::Less => {
            format!("{}{within}", format_signed(paired_difference.hodges_lehmann, unit))
        }
    }
}
