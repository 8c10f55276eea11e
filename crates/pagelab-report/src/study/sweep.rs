//! What a sweep found: the best and the worst points, and which of the things varied mattered.

use std::collections::BTreeSet;

use pagelab_metrics::study::{Influence, Point, Sweep, sweep};
use pagelab_model::study::{Study, StudyCell};

use super::{number, value};
use crate::text::{Column, Page};

/// Points that are shown from each end.
const ENDS: usize = 5;
/// Points below which ranks say nothing.
const RANKED_AT_LEAST: usize = 4;
/// What chance alone does more often is not seen.
const SEEN_BELOW: f64 = 0.05;

pub(super) fn show(page: &mut Page, study: &Study, verbose: bool) {
    match sweep(study, None) {
        Ok(found) => {
            left_out(page, study, &found);
            influences(page, &found);
            points(page, study, &found, verbose);
        }
        Err(there) => {
            let wanted = study.plan.judged.as_deref().unwrap_or("a figure");
            let text = format!("no trial has {wanted}; there are {}", there.join(", "));
            page.hanging("", &text);
        }
    }
}

/// Points that do not have the figure say nothing, and that is told.
fn left_out(page: &mut Page, study: &Study, found: &Sweep) {
    let made: BTreeSet<usize> =
        study.trials.iter().filter_map(|trial| Some(study.plan.slot(trial.slot)?.0)).collect();
    let has = |cell: &usize| found.points.iter().any(|point| point.cell == *cell);
    let lacking: Vec<&StudyCell> =
        made.iter().filter(|cell| !has(cell)).filter_map(|&cell| study.plan.cells.get(cell)).collect();
    if lacking.is_empty() {
        return;
    }
    let mut loads: Vec<&str> = lacking.iter().map(|cell| cell.load.as_str()).collect();
    loads.dedup();
    let text = format!(
        "{} of {} points have no figure {} and are left out (load {}); --by chooses another",
        number(lacking.len()),
        number(made.len()),
        found.figure,
        loads.join(", ")
    );
    page.gap();
    page.hanging("", &text);
}

fn influences(page: &mut Page, found: &Sweep) {
    page.gap();
    page.hanging_bold("", &format!("what mattered for {}", found.figure));
    match mattered(found) {
        Err(text) => page.hanging("", &text),
        Ok(rows) => {
            let [varied, values, share, rho, chance] = INFLUENCE;
            let columns = [
                Column::left(varied),
                Column::right(values),
                Column::right(share),
                Column::right(rho),
                Column::left(chance),
            ];
            page.table(0, &columns, &rows);
            page.hanging_dim("", HOW_INFLUENCE);
        }
    }
}

/// What a line of [`mattered`] holds.
pub(super) const INFLUENCE: [&str; 5] = ["varied", "values", "share of ranks", "correlation", "by chance"];

pub(super) const HOW_INFLUENCE: &str = "share of ranks: of the variance of the figure's ranks, what goes \
     with it; correlation: Spearman's, where values are numbers; by chance: how often a shuffled order has \
     as much";

/// A line for each thing that was varied, or why nothing can be said.
pub(super) fn mattered(found: &Sweep) -> Result<Vec<Vec<String>>, String> {
    match found.points.len() {
        few if few < RANKED_AT_LEAST => Err(format!("{few} points are too few to tell")),
        _ => Ok(found.influences.iter().map(influence).collect()),
    }
}

fn influence(of: &Influence) -> Vec<String> {
    let rho = of.rho.map_or("–".to_owned(), |rho| format!("{rho:+.2}").replace('-', "−"));
    let chance = match of.chance {
        _ if of.chance_least > SEEN_BELOW => "too few points to tell".to_owned(),
        chance if chance <= 0.001 => "less than 0.1 %".to_owned(),
        chance if chance > SEEN_BELOW => format!("{:.0} %: not seen", chance * 100.0),
        chance => format!("{:.1} %", chance * 100.0),
    };
    vec![of.name.clone(), number(of.levels), format!("{:.0} %", of.share * 100.0), rho, chance]
}

fn points(page: &mut Page, study: &Study, found: &Sweep, verbose: bool) {
    page.gap();
    let all = found.points.len();
    let is_cut = !verbose && all > 2 * ENDS + 1;
    let text = if is_cut { "points: the most and the least" } else { "points: the most first" };
    page.hanging_bold("", text);
    let names: Vec<&str> = study.plan.varied.iter().map(|of| of.name.as_str()).collect();
    let mut columns: Vec<Column> = names.into_iter().map(Column::right).collect();
    columns.push(Column::right(&found.figure));
    columns.push(Column::left(&found.unit));
    let row = |point: &Point| {
        let values = study.plan.cells.get(point.cell).map(|cell| cell.values.clone()).unwrap_or_default();
        values.into_iter().chain([value(point.median, &found.unit), String::new()]).collect()
    };
    let rows: Vec<Vec<String>> = match is_cut {
        false => found.points.iter().map(row).collect(),
        true => {
            let gap = vec![format!("… {}", number(all - 2 * ENDS))];
            let best = found.points[..ENDS].iter().map(row);
            best.chain([gap]).chain(found.points[all - ENDS..].iter().map(row)).collect()
        }
    };
    page.table(0, &columns, &rows);
    if study.plan.seeds.len() > 1 {
        page.hanging_dim("", "the median over seeds");
    }
}
