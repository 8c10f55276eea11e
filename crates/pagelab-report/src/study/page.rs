//! A study as the page of simulations has it: a column for each configuration.

mod tables;

use pagelab_metrics::study::{Column, Compared, Sweep, sweep};
use pagelab_model::study::{Study, StudyCell, StudyZone};

use super::{cell_name, number, paper, place_name, seeds};
use crate::sim::{SimFigure, SimPicture, SimReport, SimScheme, SimSeries, SimValue, SimZone};

/// Columns that a page has at most: of a sweep, half of them from each end.
const COLUMNS_MAX: usize = 12;
/// What figures by zone begin with, behind the figure that they are parts of: `from HighMem`.
const OF_ZONE: &str = "from ";

/// What a sweep found, or the figures that there are instead of the one that was asked for.
type Swept = Result<Sweep, Vec<String>>;

/// A study as values for a page.
pub fn page(study: &Study) -> SimReport {
    let (compared, swept) = (Compared::of(study), sweep(study, None));
    let shown = shown(study, &swept);
    let plan = &study.plan;
    let mut notes: Vec<String> = Vec::new();
    for note in study.trials.iter().flat_map(|trial| &trial.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let left = plan.cells.len() - shown.len();
    if left > 0 {
        let text =
            format!("{} more configurations are in the file, between the most and the least", number(left));
        notes.push(text);
    }
    let first = plan.cells.first().map_or(String::new(), place_name);
    let is_one_place = plan.cells.iter().all(|cell| place_name(cell) == first);
    let title = match (plan.question.as_str(), is_one_place) {
        ("", _) if plan.cells.len() == 1 => cell_name(&plan.cells[0]),
        ("", _) if !plan.varied.is_empty() => {
            let names: Vec<&str> = plan.varied.iter().map(|of| of.name.as_str()).collect();
            format!("sweep over {}: {} configurations", names.join(", "), number(plan.cells.len()))
        }
        ("", true) => format!("{first}, {} schemes", number(plan.cells.len())),
        ("", false) => format!("{} configurations", number(plan.cells.len())),
        (question, _) => question.to_owned(),
    };
    let planned = plan.slots().unwrap_or(usize::MAX);
    let facts = vec![
        if is_one_place { first } else { String::new() },
        seeds(&plan.seeds),
        match (study.trials.len(), planned) {
            (1, 1) => "1 run".to_owned(),
            (done, planned) if done == planned => format!("{} runs", number(done)),
            (done, planned) => format!("{} of {} runs", number(done), number(planned)),
        },
        format!("simulator {}", plan.simulator),
    ];
    let figures = figures(study, &compared, &shown);
    if figures.iter().any(|figure| !figure.paper.is_empty()) {
        notes.push(paper::NOTE.to_owned());
    }
    SimReport {
        title,
        facts: facts.into_iter().filter(|fact| !fact.is_empty()).collect(),
        schemes: shown.iter().map(|&at| scheme(study, &plan.cells[at], is_one_place)).collect(),
        figures,
        series: series(study, &shown),
        pictures: pictures(study, &shown),
        tables: tables::all(study, &compared, &swept),
        notes,
        text: None,
    }
}

/// Places of the configurations that have a column.
fn shown(study: &Study, swept: &Swept) -> Vec<usize> {
    let all = study.plan.cells.len();
    if all <= COLUMNS_MAX {
        return (0..all).collect();
    }
    match swept {
        Ok(found) if found.points.len() > COLUMNS_MAX => {
            let (half, points) = (COLUMNS_MAX / 2, &found.points);
            let ends = points[..half].iter().chain(&points[points.len() - half..]);
            ends.map(|point| point.cell).collect()
        }
        Ok(found) => found.points.iter().map(|point| point.cell).collect(),
        Err(_) => (0..COLUMNS_MAX).collect(),
    }
}

fn scheme(study: &Study, cell: &StudyCell, is_one_place: bool) -> SimScheme {
    let varied = &study.plan.varied;
    let name = match (varied.is_empty(), is_one_place) {
        (true, true) => cell.scheme.clone(),
        (true, false) => format!("{}: {}", place_name(cell), cell.scheme),
        (false, _) => {
            let each = varied.iter().zip(&cell.values);
            each.map(|(of, value)| format!("{} {value}", of.name)).collect::<Vec<String>>().join(", ")
        }
    };
    let zone = |of: &StudyZone| SimZone { name: of.name.clone(), first: of.first, frames: of.frames };
    SimScheme { name, lists: cell.lists.clone(), zones: cell.zones.iter().map(zone).collect() }
}

/// Figures of all tables, those of a zone behind the figure that they are parts of.
fn figures(study: &Study, found: &Compared, shown: &[usize]) -> Vec<SimFigure> {
    let mut figures: Vec<SimFigure> = Vec::new();
    for group in &found.groups {
        for row in &group.rows {
            let zone = row.name.strip_prefix(OF_ZONE);
            let whole = figures.iter().find(|of| of.phase == row.phase && of.zone.is_none());
            let name = match (zone, whole) {
                (Some(_), Some(whole)) => whole.name.clone(),
                _ => row.name.clone(),
            };
            let zone = zone.map(str::to_owned);
            let is_it = |of: &SimFigure| of.phase == row.phase && of.name == name && of.zone == zone;
            let at = figures.iter().position(is_it).unwrap_or_else(|| {
                let behind = figures
                    .iter()
                    .rposition(|of| of.phase == row.phase && (zone.is_none() || of.name == name));
                let at = behind.map_or(figures.len(), |at| at + 1);
                let values = vec![None; shown.len()];
                let (phase, unit) = (row.phase.clone(), row.unit.clone());
                let said = |&cell: &usize| paper::said(&study.plan.cells[cell], &row.phase, &row.name);
                let mut paper: Vec<Option<f64>> = shown.iter().map(said).collect();
                if paper.iter().all(Option::is_none) {
                    paper.clear();
                }
                figures.insert(at, SimFigure { phase, name, zone, unit, values, paper });
                at
            });
            for (cell, column) in group.cells.iter().zip(&row.columns) {
                let place = shown.iter().position(|of| of == cell);
                if let (Some(place), Some(column)) = (place, column) {
                    figures[at].values[place] = Some(value(column));
                }
            }
        }
    }
    figures
}

fn value(of: &Column) -> SimValue {
    let (low, high) = of.interval.map_or((of.median, of.median), |between| (between.low, between.high));
    SimValue { middle: of.median, low, high, seeds: u32::try_from(of.values.len()).unwrap_or(u32::MAX) }
}

/// Lines of the first seed.
fn series(study: &Study, shown: &[usize]) -> Vec<SimSeries> {
    let mut all = Vec::new();
    for trial in study.trials.iter().filter(|trial| trial.slot < study.plan.cells.len()) {
        let Some(scheme) = shown.iter().position(|&cell| cell == trial.slot) else { continue };
        all.extend(trial.series.iter().map(|of| SimSeries {
            name: of.name.clone(),
            over: of.over.clone(),
            scheme,
            points: of.points.iter().map(|&(at, value)| (at, value as f64 / 1e6)).collect(),
        }));
    }
    all
}

fn pictures(study: &Study, shown: &[usize]) -> Vec<SimPicture> {
    let mut all = Vec::new();
    for trial in study.trials.iter().filter(|trial| trial.slot < study.plan.cells.len()) {
        let Some(scheme) = shown.iter().position(|&cell| cell == trial.slot) else { continue };
        all.extend(trial.pictures.iter().map(|of| SimPicture {
            step: of.step,
            phase: of.phase.clone(),
            scheme,
            runs: of.runs.clone(),
            owners: of.owners.clone(),
        }));
    }
    all
}
