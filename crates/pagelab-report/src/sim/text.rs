//! Simulations on a terminal: a table for each phase, a column for each scheme.

use super::{SimFigure, SimReport, SimTable, SimValue, reclaim_share};
use crate::study::{spanned, value};
use crate::style::Style;
use crate::text::{Column, Page};

/// Orders of the paper's table of reclaim.
pub const RECLAIM_ORDERS: [u8; 8] = [1, 2, 3, 4, 5, 6, 10, 12];
/// Frames that the table is computed for: from 4 GiB on it is the same in all its digits.
pub const RECLAIM_FRAMES: u64 = 1 << 20;

/// The report as a terminal shows it.
pub fn render(report: &SimReport, style: Style) -> String {
    let mut page = Page::new(style);
    page.hanging_bold("", &report.title);
    page.facts("  ", &report.facts, "   ");
    for phase in phases(report) {
        table(&mut page, report, phase);
    }
    for (at, of) in report.tables.iter().enumerate() {
        let is_first = at == 0 || report.tables[at - 1].title != of.title;
        written(&mut page, of, is_first);
    }
    lines(&mut page, report);
    if report.schemes.iter().any(|scheme| scheme.name.contains("linear")) {
        reclaim(&mut page);
    }
    page.gap();
    for note in &report.notes {
        page.hanging("  ", note);
    }
    page.finish()
}

/// The phases in the order in which figures name them.
pub fn phases(report: &SimReport) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for figure in &report.figures {
        if !found.contains(&figure.phase.as_str()) {
            found.push(&figure.phase);
        }
    }
    found
}

/// What a figure is called, as on the terminal: that of a zone stands below the whole.
pub fn name_of(figure: &SimFigure) -> String {
    match &figure.zone {
        Some(zone) => format!("from {zone}"),
        None => figure.name.clone(),
    }
}

/// A value with its interval, as in the report of a study: `72 (64…80)`, `0.183`.
pub fn value_text(value: &SimValue, unit: &str) -> String {
    spanned(value.middle, value.interval(), unit)
}

/// A table that was written before.
fn written(page: &mut Page, of: &SimTable, is_first: bool) {
    if is_first {
        page.heading(&of.title);
    } else {
        page.gap();
    }
    if !of.of.is_empty() {
        page.hanging("  ", &of.of);
    }
    let column = |(at, name)| if at < of.names { Column::left(name) } else { Column::right(name) };
    let columns: Vec<Column> = of.columns.iter().map(String::as_str).enumerate().map(column).collect();
    if !of.rows.is_empty() {
        page.table(2, &columns, &of.rows);
    }
    if !of.words.is_empty() {
        page.hanging_dim("  ", &of.words);
    }
}

fn table(page: &mut Page, report: &SimReport, phase: &str) {
    page.heading(if phase.is_empty() { "The whole load" } else { phase });
    let mut rows = Vec::new();
    for figure in report.figures.iter().filter(|figure| figure.phase == phase) {
        let at = |at: usize| figure.values.get(at).and_then(Option::as_ref);
        let ours = (0..report.schemes.len())
            .map(|scheme| at(scheme).map_or("-".to_owned(), |value| value_text(value, &figure.unit)));
        rows.push([name_of(figure), figure.unit.clone()].into_iter().chain(ours).collect::<Vec<String>>());
        if figure.paper.iter().any(Option::is_some) {
            let said = (0..report.schemes.len()).map(|scheme| {
                let said = figure.paper.get(scheme).copied().flatten();
                said.map_or("-".to_owned(), |of| value(of, &figure.unit))
            });
            rows.push(["  in the paper".to_owned(), String::new()].into_iter().chain(said).collect());
        }
    }
    let mut columns = vec![Column::left(""), Column::left("unit")];
    columns.extend(report.schemes.iter().map(|scheme| Column::right(&scheme.name)));
    if !page.table_if_it_fits(2, &columns, &rows) {
        long_table(page, report, phase);
    }
}

/// The same where the columns of all schemes do not stand side by side: a line for each scheme.
fn long_table(page: &mut Page, report: &SimReport, phase: &str) {
    let mut rows = Vec::new();
    for figure in report.figures.iter().filter(|figure| figure.phase == phase) {
        for (at, scheme) in report.schemes.iter().enumerate() {
            let name = if at == 0 { name_of(figure) } else { String::new() };
            let ours = figure.values.get(at).and_then(Option::as_ref);
            let paper = figure.paper.get(at).copied().flatten();
            rows.push(vec![
                name,
                scheme.name.clone(),
                ours.map_or("-".to_owned(), |value| value_text(value, &figure.unit)),
                figure.unit.clone(),
                paper.map_or(String::new(), |of| value(of, &figure.unit)),
            ]);
        }
    }
    let has_paper = rows.iter().any(|row| row.last().is_some_and(|cell| !cell.is_empty()));
    let paper = if has_paper { "in the paper" } else { "" };
    let columns = [
        Column::left(""),
        Column::left("scheme"),
        Column::right(""),
        Column::left("unit"),
        Column::right(paper),
    ];
    page.table(2, &columns, &rows);
}

/// The first and the last value of each line.
fn lines(page: &mut Page, report: &SimReport) {
    if report.series.is_empty() {
        return;
    }
    page.heading("Over time");
    let columns = [
        Column::left("line"),
        Column::left("scheme"),
        Column::left("over"),
        Column::right("first"),
        Column::right("lowest"),
        Column::right("highest"),
        Column::right("last"),
        Column::left(""),
    ];
    let rows: Vec<Vec<String>> = report
        .series
        .iter()
        .filter_map(|series| {
            let values: Vec<f64> = series.points.iter().map(|&(_, value)| value).collect();
            let (first, last) = (values.first()?, values.last()?);
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let scheme = report.schemes.get(series.scheme).map_or("", |scheme| &scheme.name);
            let shown = |value: f64| format!("{value:.3}");
            Some(vec![
                series.name.clone(),
                scheme.to_owned(),
                format!("{} {}", series.points.len(), series.over),
                shown(*first),
                shown(low),
                shown(high),
                shown(*last),
                spark(page.style(), &values),
            ])
        })
        .collect();
    page.table(2, &columns, &rows);
}

/// Columns of a line drawn in signs.
const SPARKS: usize = 12;

fn spark(style: Style, values: &[f64]) -> String {
    let count = values.len().min(SPARKS);
    (0..count).map(|at| style.spark(values[at * values.len() / count])).collect()
}

fn reclaim(page: &mut Page) {
    page.heading("Pages to release before a block is sure to be free, if their order is random");
    let rows: Vec<Vec<String>> = RECLAIM_ORDERS
        .iter()
        .filter_map(|&order| {
            let share = reclaim_share(RECLAIM_FRAMES, order)?;
            Some(vec![order.to_string(), format!("{:.2} %", share * 100.0)])
        })
        .collect();
    page.table(2, &[Column::right("order"), Column::right("of a zone")], &rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimScheme, SimSeries};

    #[test]
    fn a_table_for_each_phase_with_the_papers_figures_below_ours() {
        let scheme = |name: &str| SimScheme { name: name.to_owned(), ..SimScheme::default() };
        let value = |middle: f64, low: f64, high: f64| Some(SimValue { middle, low, high, seeds: 3 });
        let figure = |phase: &str, zone: Option<&str>| SimFigure {
            phase: phase.to_owned(),
            name: "huge pages".to_owned(),
            zone: zone.map(str::to_owned),
            unit: "blocks".to_owned(),
            values: vec![value(70.0, 64.0, 81.0), None],
            paper: if zone.is_none() { vec![Some(72.0), Some(82.0)] } else { Vec::new() },
        };
        let report = SimReport {
            title: "highalloc on x86".to_owned(),
            schemes: vec![scheme("standard"), scheme("zone+linear")],
            figures: vec![figure("pass 1", None), figure("pass 1", Some("Normal")), figure("at rest", None)],
            series: vec![SimSeries {
                name: "F_u(10)".to_owned(),
                over: "attempts".to_owned(),
                scheme: 1,
                points: vec![(0, 1.0), (1, 0.25), (2, 0.5)],
            }],
            ..SimReport::default()
        };
        let text = render(&report, Style::PLAIN);
        for part in [
            "huge pages      blocks  70 (64…81)            -\n",
            "in the paper                  72           82\n",
            "from Normal     blocks  70 (64…81)            -\n",
            "at rest\n",
            "F_u(10)",
            "3 attempts  1.000   0.250    1.000  0.500  █▃▅",
            "99.98 %",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let narrow = render(&report, Style { width: 46, ..Style::PLAIN });
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let row = narrow.lines().find(|line| line.contains("huge pages ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["huge", "pages", "standard", "70", "(64…81)", "blocks", "72"]);
    }
}
