//! What follows from a study's figures: differences between its schemes, or what a sweep found.

use pagelab_metrics::study::{Compared, Group, Point, Sweep};
use pagelab_model::study::Study;

use super::super::sweep::{HOW_INFLUENCE, INFLUENCE, mattered};
use super::super::{difference, laid_out, number, place_name, value};
use super::Swept;
use crate::sim::SimTable;

/// Points of a sweep that are shown from each end where there are more than two times as many.
const ENDS: usize = 50;

/// All of them, in the order of the terminal.
pub(super) fn all(study: &Study, compared: &Compared, swept: &Swept) -> Vec<SimTable> {
    if study.plan.varied.is_empty() {
        return compared.groups.iter().filter_map(|group| differences(study, group)).collect();
    }
    match swept {
        Ok(found) => vec![influences(found), points(study, found)],
        Err(_) => Vec::new(),
    }
}

/// `None`: nothing is there to compare.
fn differences(study: &Study, group: &Group) -> Option<SimTable> {
    let first = study.plan.cells.get(*group.cells.first()?)?;
    if group.cells.len() < 2 || group.rows.is_empty() {
        return None;
    }
    let others: Vec<usize> = (1..group.cells.len()).collect();
    let shown = |row: &_, found: &pagelab_metrics::study::Column| difference(row, found.difference.as_ref());
    let (columns, rows) = laid_out(study, group, &others, &shown);
    Some(SimTable {
        title: format!("difference to {}, seed by seed", first.scheme),
        leads: false,
        of: place_name(first),
        words: words(study),
        columns,
        names: 2,
        rows,
    })
}

fn words(study: &Study) -> String {
    let seeds = study.plan.seeds.len();
    match seeds < pagelab_metrics::effect::PAIRS_MIN {
        true => format!("{seeds} seeds: for intervals and a verdict take 6 seeds or more"),
        false => "the middle of all averages of two, and its interval by Wilcoxon's signed ranks; \"none \
                  seen\" where 0 lies in it"
            .to_owned(),
    }
}

fn influences(found: &Sweep) -> SimTable {
    let title = format!("what mattered for {}", found.figure);
    match mattered(found) {
        Err(words) => SimTable { title, leads: true, words, ..SimTable::default() },
        Ok(rows) => SimTable {
            title,
            leads: true,
            words: HOW_INFLUENCE.to_owned(),
            columns: INFLUENCE.map(str::to_owned).to_vec(),
            names: 1,
            rows,
            ..SimTable::default()
        },
    }
}

fn points(study: &Study, found: &Sweep) -> SimTable {
    let names = study.plan.varied.iter().map(|of| of.name.clone());
    let unit = if found.unit.is_empty() { String::new() } else { format!(" ({})", found.unit) };
    let columns: Vec<String> = names.chain([format!("{}{unit}", found.figure)]).collect();
    let row = |point: &Point| -> Vec<String> {
        let values = study.plan.cells.get(point.cell).map(|cell| cell.values.clone()).unwrap_or_default();
        values.into_iter().chain([value(point.median, &found.unit)]).collect()
    };
    let all = &found.points;
    let rows = match all.len() {
        many if many > 2 * ENDS + 1 => {
            let gap = vec![format!("… {}", number(many - 2 * ENDS))];
            all[..ENDS].iter().map(row).chain([gap]).chain(all[many - ENDS..].iter().map(row)).collect()
        }
        _ => all.iter().map(row).collect(),
    };
    SimTable {
        title: "points, the most first".to_owned(),
        leads: true,
        words: if study.plan.seeds.len() > 1 { "the median over seeds".to_owned() } else { String::new() },
        columns,
        names: study.plan.varied.len(),
        rows,
        ..SimTable::default()
    }
}
