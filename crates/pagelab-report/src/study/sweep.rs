//! What a sweep found: the best and the worst points, and which of the things varied mattered.

use pagelab_metrics::study::{Influence, Point, Sweep, sweep};
use pagelab_model::study::Study;

use super::{number, value};
use crate::text::{Column, Page};

/// Points that are shown from each end.
const ENDS: usize = 5;
/// Points below which ranks say nothing.
const RANKED_AT_LEAST: usize = 4;

pub(super) fn show(page: &mut Page, study: &Study, verbose: bool) {
    match sweep(study, None) {
        Ok(found) => {
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

fn influences(page: &mut Page, found: &Sweep) {
    page.gap();
    page.hanging_bold("", &format!("what mattered for {}", found.figure));
    if found.points.len() < RANKED_AT_LEAST {
        let text = format!("{} points are too few to tell", found.points.len());
        return page.hanging("", &text);
    }
    let columns = [
        Column::left("varied"),
        Column::right("values"),
        Column::right("share of ranks"),
        Column::right("correlation"),
        Column::left("by chance"),
    ];
    let rows: Vec<Vec<String>> = found.influences.iter().map(influence).collect();
    page.table(0, &columns, &rows);
    let text = "share of ranks: of the variance of the figure's ranks, what goes with it; correlation: \
                Spearman's, where values are numbers; by chance: how often a shuffled order has as much";
    page.hanging_dim("", text);
}

fn influence(of: &Influence) -> Vec<String> {
    let rho = of.rho.map_or("–".to_owned(), |rho| format!("{rho:+.2}").replace('-', "−"));
    let chance = match of.chance {
        chance if chance <= 0.001 => "less than 0.1 %".to_owned(),
        chance if chance > 0.05 => format!("{:.0} %: not seen", chance * 100.0),
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
