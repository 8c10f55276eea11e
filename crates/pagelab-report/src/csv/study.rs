//! A simulated study as tables: figures and series, exact, a line each.

use pagelab_model::study::{Study, StudyTrial};

use super::{Cell, Table, number, option, text};

/// The first columns of all of them.
const PLACE: [&str; 7] = ["slot", "machine", "kernelcore_bytes", "scheme", "load", "parameters", "seed"];

pub(super) fn tables(study: &Study) -> Vec<Table<'_>> {
    let head = |more: &[&'static str]| [&PLACE[..], more].concat();
    let figures = study.trials.iter().flat_map(move |trial| {
        trial.figures.iter().map(move |of| {
            let mut cells = place(study, trial);
            cells.extend([text(&of.phase), text(&of.name), number(of.value), number(of.per), text(&of.unit)]);
            cells
        })
    });
    let series = study.trials.iter().flat_map(move |trial| {
        trial.series.iter().flat_map(move |of| {
            of.points.iter().map(move |&(at, value)| {
                let mut cells = place(study, trial);
                cells.extend([text(&of.name), text(&of.over), number(at), number(value)]);
                cells
            })
        })
    });
    let mut tables =
        vec![Table::new("study_figures", &head(&["phase", "figure", "value", "per", "unit"]), figures)];
    if study.trials.iter().any(|trial| !trial.series.is_empty()) {
        tables.push(Table::new("study_series", &head(&["series", "over", "at", "value_ppm"]), series));
    }
    tables
}

fn place(study: &Study, trial: &StudyTrial) -> Vec<Cell> {
    let found = study.plan.slot(trial.slot);
    let cell = found.and_then(|(cell, _)| study.plan.cells.get(cell));
    let parameters = |of: &[(String, u64)]| {
        let each: Vec<String> = of.iter().map(|(name, value)| format!("{name}={value}")).collect();
        text(&each.join(" "))
    };
    vec![
        number(trial.slot),
        option(cell, |of| text(&of.machine)),
        option(cell.and_then(|of| of.kernelcore), number),
        option(cell, |of| text(&of.scheme)),
        option(cell, |of| text(&of.load)),
        option(cell, |of| parameters(&of.parameters)),
        option(found, |(_, seed)| number(seed)),
    ]
}
