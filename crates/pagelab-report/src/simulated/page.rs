//! A simulated experiment as a page of simulations: a column for each configuration.

use pagelab_metrics::effect::{ExperimentEffects, VariantEffect, WorkloadEffects};
use pagelab_metrics::sweep::{SweepJudgement, judge_sweep};
use pagelab_model::experiment::Experiment;
use pagelab_model::simulation::{MemoryPicture, PointView};

use super::sweep::{INFLUENCE_ALIGNMENTS, INFLUENCE_COLUMNS, influence_rows, point_rows};
use super::{
    column_point, common_configuration, configuration_name, difference_cell, format_number, format_seeds,
    found_column, headline, lay_out_table, median,
};
use crate::attachments::load_notes;
use crate::sim::{
    SimulationFigure, SimulationReport, SimulationScheme, SimulationSeries, SimulationTable, SimulationValue,
};
use crate::style::format_plural;

/// Columns of a page, at most: of a sweep, half of them from each end.
const COLUMNS_MAX: usize = 12;
/// Prefix of figures by zone, which follow the figure of the machine: `from HighMem`.
const ZONE_FIGURE_PREFIX: &str = "from ";

/// Results of a sweep, or the available figures if the requested one is missing.
type SweepOrFigures = Result<SweepJudgement, Vec<String>>;

/// Converts a simulated experiment into values for a page. Pictures come with the slots of their trials.
pub fn page_report(
    experiment: &Experiment,
    pictures: impl IntoIterator<Item = (usize, MemoryPicture)>,
) -> SimulationReport {
    let (comparison, sweep_result) =
        (ExperimentEffects::from_experiment(experiment), judge_sweep(experiment));
    let column_cells = shown_configurations(experiment, &sweep_result);
    let plan = &experiment.plan;
    let mut notes: Vec<String> = load_notes(experiment).into_iter().map(str::to_owned).collect();
    let points = plan.points().len();
    let left = points - column_cells.len();
    if left > 0 {
        let text = format!(
            "{} more configurations are in the file, between the best and the worst",
            format_number(left)
        );
        notes.push(text);
    }
    let first = plan.point(0).map_or(String::new(), common_configuration);
    let has_one_configuration = plan.workloads.len() <= 1;
    let title = match (plan.question.as_str(), has_one_configuration) {
        ("", _) if points == 1 => plan.point(0).map_or(String::new(), configuration_name),
        ("", _) if !plan.varied().is_empty() => {
            let names: Vec<&str> = plan.varied().iter().map(|of| of.name.as_str()).collect();
            format!("sweep over {}: {} configurations", names.join(", "), format_number(points))
        }
        ("", true) => format!("{first}, {} schemes", format_number(points)),
        ("", false) => format!("{} configurations", format_number(points)),
        (question, _) => question.to_owned(),
    };
    let planned = plan.schedule.len();
    let facts = vec![
        if has_one_configuration { first } else { String::new() },
        format_seeds(plan.seeds()),
        match experiment.trials.len() {
            done if done == planned => format_plural(planned, "run"),
            done => format!("{} of {} runs", format_number(done), format_number(planned)),
        },
        format!("simulator {}", plan.simulator.as_deref().unwrap_or_default()),
    ];
    let figures = figure_rows(experiment, &comparison, &column_cells);
    if figures.iter().any(|figure| !figure.paper_values.is_empty()) {
        notes.push(headline::PAPER_NOTE.to_owned());
    }
    SimulationReport {
        title,
        facts: facts.into_iter().filter(|fact| !fact.is_empty()).collect(),
        schemes: column_cells
            .iter()
            .filter_map(|&at| Some(scheme_column(experiment, plan.point(at)?, has_one_configuration)))
            .collect(),
        figures,
        series: series_lines(experiment, &column_cells),
        // The pictures of the first seed of a shown configuration.
        pictures: pictures
            .into_iter()
            .filter_map(|(slot, picture)| Some((column_cells.iter().position(|&at| at == slot)?, picture)))
            .collect(),
        tables: all_tables(experiment, &comparison, &sweep_result),
        notes,
        text: None,
    }
}

/// Returns the indices of the configurations with a column.
fn shown_configurations(experiment: &Experiment, sweep_result: &SweepOrFigures) -> Vec<usize> {
    let all = experiment.plan.points().len();
    if all <= COLUMNS_MAX {
        return (0..all).collect();
    }
    match sweep_result {
        Ok(found) if found.points.len() > COLUMNS_MAX => {
            let (half, points) = (COLUMNS_MAX / 2, &found.points);
            let ends = points[..half].iter().chain(&points[points.len() - half..]);
            ends.map(|point| point.point).collect()
        }
        Ok(found) => found.points.iter().map(|point| point.point).collect(),
        Err(_) => (0..COLUMNS_MAX).collect(),
    }
}

fn scheme_column(
    experiment: &Experiment,
    cell: PointView<'_>,
    has_one_configuration: bool,
) -> SimulationScheme {
    let varied = experiment.plan.varied();
    let name = match (varied.is_empty(), has_one_configuration) {
        (true, true) => cell.scheme.to_owned(),
        (true, false) => format!("{}: {}", common_configuration(cell), cell.scheme),
        (false, _) => {
            let each = varied.iter().zip(cell.values);
            each.map(|(of, value)| format!("{} {value}", of.name)).collect::<Vec<String>>().join(", ")
        }
    };
    SimulationScheme { name, free_lists: cell.lists.to_vec(), zones: cell.zones.to_vec() }
}

/// Returns the figures of all tables, those of a zone after that of the machine.
fn figure_rows(
    experiment: &Experiment,
    comparison: &ExperimentEffects,
    column_cells: &[usize],
) -> Vec<SimulationFigure> {
    let mut figures: Vec<SimulationFigure> = Vec::new();
    for group in &comparison.workloads {
        for row in &group.measures {
            let zone = row.name.strip_prefix(ZONE_FIGURE_PREFIX);
            let whole = figures.iter().find(|of| of.phase == row.phase && of.zone.is_none());
            let name = match (zone, whole) {
                (Some(_), Some(whole)) => whole.name.clone(),
                _ => row.name.clone(),
            };
            let zone = zone.map(str::to_owned);
            let is_it = |of: &SimulationFigure| of.phase == row.phase && of.name == name && of.zone == zone;
            let position = figures.iter().position(is_it).unwrap_or_else(|| {
                let behind = figures
                    .iter()
                    .rposition(|of| of.phase == row.phase && (zone.is_none() || of.name == name));
                let position = behind.map_or(figures.len(), |at| at + 1);
                let values = vec![None; column_cells.len()];
                let (phase, unit) = (row.phase.clone(), row.unit.0.clone());
                let said = |&cell: &usize| {
                    headline::paper_value(experiment.plan.point(cell)?, &row.phase, &row.name)
                };
                let mut paper: Vec<Option<f64>> = column_cells.iter().map(said).collect();
                if paper.iter().all(Option::is_none) {
                    paper.clear();
                }
                figures.insert(
                    position,
                    SimulationFigure { phase, name, zone, unit, values, paper_values: paper },
                );
                position
            });
            for (at, column) in group.columns.iter().enumerate() {
                let place = column_cells.iter().position(|of| Some(*of) == column.point);
                if let (Some(place), Some(column)) = (place, found_column(row, at)) {
                    figures[position].values[place] = Some(figure_value(column));
                }
            }
        }
    }
    figures
}

fn figure_value(cell: &VariantEffect) -> SimulationValue {
    let median = median(cell);
    let (low, high) = cell.median_interval().map_or((median, median), |between| (between.low, between.high));
    SimulationValue { median, low, high, seed_count: u32::try_from(cell.values.len()).unwrap_or(u32::MAX) }
}

fn series_lines(experiment: &Experiment, column_cells: &[usize]) -> Vec<SimulationSeries> {
    let mut all = Vec::new();
    for trial in experiment.trials.iter().filter(|trial| trial.slot < experiment.plan.points().len()) {
        let Some(scheme) = column_cells.iter().position(|&cell| cell == trial.slot) else { continue };
        all.extend(trial.series.iter().map(|of| SimulationSeries {
            name: of.name.clone(),
            axis: of.over.clone(),
            scheme,
            points: of.points.iter().map(|&(at, value)| (at, value as f64 / 1e6)).collect(),
        }));
    }
    all
}

/// Points of a sweep shown from each end, if there are more than twice as many.
const POINTS_PER_END: usize = 50;

/// Returns all tables, in the order of the terminal.
fn all_tables(
    experiment: &Experiment,
    comparison: &ExperimentEffects,
    sweep_result: &SweepOrFigures,
) -> Vec<SimulationTable> {
    if experiment.plan.varied().is_empty() {
        return comparison
            .workloads
            .iter()
            .filter_map(|group| differences_table(experiment, group))
            .collect();
    }
    match sweep_result {
        Ok(found) => vec![influences_table(found), points_table(experiment, found)],
        Err(_) => Vec::new(),
    }
}

/// `None`: there is no second scheme.
fn differences_table(experiment: &Experiment, group: &WorkloadEffects) -> Option<SimulationTable> {
    let first = column_point(experiment, group, 0)?;
    if group.columns.len() < 2 || group.measures.is_empty() {
        return None;
    }
    let others: Vec<usize> = (1..group.columns.len()).collect();
    let shown = |row: &_, found: &VariantEffect| difference_cell(row, found.difference());
    let (columns, rows) = lay_out_table(experiment, group, &others, &shown);
    Some(SimulationTable {
        title: format!("difference from {}, paired by seed", first.scheme),
        is_leading: false,
        unit_noun: common_configuration(first),
        explanation: verdict_explanation(experiment),
        columns,
        name_columns: 2,
        rows,
    })
}

fn verdict_explanation(experiment: &Experiment) -> String {
    let seeds = experiment.plan.seeds().len();
    match seeds < pagelab_metrics::effect::PAIRS_MIN {
        true => format!("{seeds} seeds: use 6 or more seeds for intervals and a verdict"),
        false => "Hodges–Lehmann estimate and its interval from Wilcoxon's signed-rank test; \"none seen\" \
                  if it contains 0"
            .to_owned(),
    }
}

fn influences_table(judgement: &SweepJudgement) -> SimulationTable {
    let title = format!("influence on {}", judgement.figure);
    let table = SimulationTable { title, is_leading: true, ..SimulationTable::default() };
    match influence_rows(judgement) {
        Err(words) => SimulationTable { explanation: words, ..table },
        Ok(rows) => SimulationTable {
            explanation: INFLUENCE_ALIGNMENTS.to_owned(),
            columns: INFLUENCE_COLUMNS.map(str::to_owned).to_vec(),
            name_columns: 1,
            rows,
            ..table
        },
    }
}

fn points_table(experiment: &Experiment, judgement: &SweepJudgement) -> SimulationTable {
    let names = experiment.plan.varied().iter().map(|of| of.name.clone());
    let unit = if judgement.unit.is_empty() { String::new() } else { format!(" ({})", judgement.unit) };
    let is_median = experiment.plan.seeds().len() > 1;
    SimulationTable {
        title: "points, highest first".to_owned(),
        is_leading: true,
        explanation: if is_median { "median over seeds" } else { "" }.to_owned(),
        columns: names.chain([format!("{}{unit}", judgement.figure)]).collect(),
        name_columns: experiment.plan.varied().len(),
        rows: point_rows(experiment, judgement, POINTS_PER_END),
        ..SimulationTable::default()
    }
}
