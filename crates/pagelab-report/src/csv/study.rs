//! A simulated study as tables: figures and series of each run, and what follows from them, exact.

use pagelab_metrics::study::{Between, Column, Compared, Group, Sweep, sweep};
use pagelab_model::study::{Study, StudyCell, StudyTrial};

use super::{Cell, Table, number, option, text};
use crate::json::study::says;

/// The columns that say which configuration a line is of.
const PLACE: [&str; 5] = ["machine", "kernelcore_bytes", "scheme", "load", "parameters"];

pub(super) fn tables(study: &Study) -> Vec<Table<'_>> {
    let mut tables = vec![figures(study)];
    if study.trials.iter().any(|trial| !trial.series.is_empty()) {
        tables.push(series(study));
    }
    let found = Compared::of(study);
    let is_compared = found.groups.iter().any(|group| group.cells.len() > 1);
    if study.plan.varied.is_empty() && is_compared {
        tables.push(differences(study, &found.groups));
    }
    tables.push(medians(study, found.groups));
    if let Some(found) = sweep(study, None).ok().filter(|_| !study.plan.varied.is_empty()) {
        tables.extend(swept(study, found));
    }
    tables
}

fn figures(study: &Study) -> Table<'_> {
    let rows = study.trials.iter().flat_map(move |trial| {
        trial.figures.iter().map(move |of| {
            let mut cells = of_trial(study, trial);
            cells.extend([text(&of.phase), text(&of.name), number(of.number()), text(&of.unit)]);
            cells.extend([number(of.value), number(of.per)]);
            cells
        })
    });
    let head = ["phase", "figure", "value", "unit", "numerator", "denominator"];
    Table::new("study_figures", &[&["slot"], &PLACE[..], &["seed"], &head].concat(), rows)
}

fn series(study: &Study) -> Table<'_> {
    let rows = study.trials.iter().flat_map(move |trial| {
        trial.series.iter().flat_map(move |of| {
            of.points.iter().map(move |&(at, value)| {
                let mut cells = of_trial(study, trial);
                cells.extend([text(&of.name), text(&of.over), number(at), number(value)]);
                cells
            })
        })
    });
    let head = ["series", "over", "at", "value_ppm"];
    Table::new("study_series", &[&["slot"], &PLACE[..], &["seed"], &head].concat(), rows)
}

/// The figures of a configuration over its seeds.
fn medians(study: &Study, groups: Vec<Group>) -> Table<'_> {
    let show = move |phase: &str, figure: &str, unit: &str, cell: usize, of: &Column| {
        let mut cells = vec![number(cell)];
        cells.extend(place(study.plan.cells.get(cell)));
        cells.extend([text(phase), text(figure), number(of.median)]);
        cells.extend(ends(of.interval));
        cells.extend([text(unit), number(of.values.len())]);
        cells
    };
    let rows = groups.into_iter().flat_map(move |group| {
        let mut lines = Vec::new();
        for row in &group.rows {
            let columns = group.cells.iter().zip(&row.columns);
            let known = columns.filter_map(|(&cell, column)| Some((cell, column.as_ref()?)));
            lines.extend(known.map(|(cell, of)| show(&row.phase, &row.name, &row.unit, cell, of)));
        }
        lines
    });
    let head = ["phase", "figure", "median", "low", "high", "level", "unit", "seeds"];
    Table::new("study_medians", &[&["cell"], &PLACE[..], &head].concat(), rows)
}

/// What configurations that differ in their scheme alone have more than the first of them.
fn differences<'a>(study: &'a Study, groups: &[Group]) -> Table<'a> {
    let mut rows = Vec::new();
    for group in groups {
        let Some(first) = group.cells.first().and_then(|&cell| study.plan.cells.get(cell)) else { continue };
        for row in &group.rows {
            for (&cell, column) in group.cells.iter().zip(&row.columns) {
                let Some(of) = column.as_ref().and_then(|column| column.difference) else { continue };
                let mut cells = vec![number(cell)];
                cells.extend(place(study.plan.cells.get(cell)));
                cells.extend([text(&first.scheme), text(&row.phase), text(&row.name), number(of.middle)]);
                cells.extend(ends(of.interval));
                cells.extend([text(&row.unit), number(of.pairs), text(says(of.says))]);
                rows.push(cells);
            }
        }
    }
    let head = ["than", "phase", "figure", "difference", "low", "high", "level", "unit", "pairs", "says"];
    Table::new("study_differences", &[&["cell"], &PLACE[..], &head].concat(), rows.into_iter())
}

/// What mattered in a sweep, and its points, the most first.
fn swept(study: &Study, found: Sweep) -> [Table<'_>; 2] {
    let Sweep { figure, unit, points, influences } = found;
    let judged = figure.clone();
    let influences = influences.into_iter().map(move |of| {
        let numbers = [number(of.share), option(of.rho, number), number(of.chance)];
        let mut cells = vec![text(&judged), text(&of.name), number(of.levels)];
        cells.extend(numbers);
        cells
    });
    let varied: Vec<&str> = study.plan.varied.iter().map(|of| of.name.as_str()).collect();
    let points = points.into_iter().map(move |point| {
        let cell = study.plan.cells.get(point.cell);
        let mut cells = vec![number(point.cell)];
        cells.extend(
            (0..study.plan.varied.len())
                .map(|at| option(cell.and_then(|cell| cell.values.get(at)), |value| text(value))),
        );
        cells.extend([text(&figure), number(point.median), text(&unit), number(point.seeds)]);
        cells
    });
    let head = ["figure", "varied", "values", "share_of_ranks", "rho", "chance"];
    let of_point = [&["cell"], &varied[..], &["figure", "median", "unit", "seeds"]].concat();
    [Table::new("study_influences", &head, influences), Table::new("study_points", &of_point, points)]
}

fn ends(of: Option<Between>) -> [Cell; 3] {
    [option(of, |of| number(of.low)), option(of, |of| number(of.high)), option(of, |of| number(of.level))]
}

fn of_trial(study: &Study, trial: &StudyTrial) -> Vec<Cell> {
    let found = study.plan.slot(trial.slot);
    let mut cells = vec![number(trial.slot)];
    cells.extend(place(found.and_then(|(cell, _)| study.plan.cells.get(cell))));
    cells.push(option(found, |(_, seed)| number(seed)));
    cells
}

fn place(cell: Option<&StudyCell>) -> [Cell; 5] {
    let parameters = |of: &[(String, u64)]| {
        let each: Vec<String> = of.iter().map(|(name, value)| format!("{name}={value}")).collect();
        text(&each.join(" "))
    };
    [
        option(cell, |of| text(&of.machine)),
        option(cell.and_then(|of| of.kernelcore), number),
        option(cell, |of| text(&of.scheme)),
        option(cell, |of| text(&of.load)),
        option(cell, |of| parameters(&of.parameters)),
    ]
}
