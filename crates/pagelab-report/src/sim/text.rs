//! Simulations on a terminal: a table for each phase, a column for each scheme.

use std::collections::BTreeSet;

use super::{
    SimulationFigure, SimulationReport, SimulationSeries, SimulationTable, SimulationValue, reclaim_share,
};
use crate::simulated::{format_value, format_with_interval};
use crate::style::TextStyle;
use crate::text_report::{RowTable, TableColumn, TextReport};

/// Orders of the paper's table of reclaim.
pub const RECLAIM_ORDERS: [u8; 8] = [1, 2, 3, 4, 5, 6, 10, 12];
/// Frames for which the table is computed: from 4 GiB on, all its digits are the same.
pub const RECLAIM_FRAMES: u64 = 1 << 20;

/// Renders the report as on a terminal.
pub fn render(report: &SimulationReport, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_bold_text(&report.title);
    output.add_facts("  ", &report.facts, "   ");
    for phase in list_phases(report) {
        write_table(&mut output, report, phase);
    }
    for (at, table) in report.tables.iter().enumerate() {
        let is_first = at == 0 || report.tables[at - 1].title != table.title;
        write_prepared_table(&mut output, table, is_first);
    }
    write_series(&mut output, report);
    if report.schemes.iter().any(|scheme| scheme.name.contains("linear")) {
        write_reclaim_table(&mut output);
    }
    output.add_gap();
    for note in &report.notes {
        output.add_indented(note);
    }
    output.into_text()
}

/// Returns the phases in the order in which figures name them.
pub fn list_phases(report: &SimulationReport) -> Vec<&str> {
    let mut known = BTreeSet::new();
    let phases = report.figures.iter().map(|figure| figure.phase.as_str());
    phases.filter(|phase| known.insert(*phase)).collect()
}

/// Returns the display name of a figure: a figure of a zone is below that of the machine.
pub fn figure_name(figure: &SimulationFigure) -> String {
    match &figure.zone {
        Some(zone) => format!("from {zone}"),
        None => figure.name.clone(),
    }
}

/// Formats a value with its interval, as in the report of a study: `72 (64…80)`, `0.183`.
pub fn format_figure_value(value: &SimulationValue, unit: &str) -> String {
    format_with_interval(value.median, value.interval(), unit)
}

fn write_prepared_table(output: &mut TextReport, table: &SimulationTable, is_first: bool) {
    if is_first {
        output.add_heading(&table.title);
    } else {
        output.add_gap();
    }
    if !table.unit_noun.is_empty() {
        output.add_indented(&table.unit_noun);
    }
    if !table.rows.is_empty() {
        output.add_table(2, &TableColumn::list(&table.columns, table.name_columns), &table.rows);
    }
    if !table.explanation.is_empty() {
        output.add_dim_indented(&table.explanation);
    }
}

fn write_table(output: &mut TextReport, report: &SimulationReport, phase: &str) {
    output.add_heading(if phase.is_empty() { "Whole load" } else { phase });
    let mut rows = Vec::new();
    for figure in report.figures.iter().filter(|figure| figure.phase == phase) {
        let ours = (0..report.schemes.len()).map(|scheme| own_value_text(figure, scheme));
        rows.push(
            [figure_name(figure), figure.unit.clone()].into_iter().chain(ours).collect::<Vec<String>>(),
        );
        if figure.paper_values.iter().any(Option::is_some) {
            let said = (0..report.schemes.len())
                .map(|scheme| paper_value_text(figure, scheme).unwrap_or("-".to_owned()));
            rows.push(["  in the paper".to_owned(), String::new()].into_iter().chain(said).collect());
        }
    }
    let mut columns = vec![TableColumn::left(""), TableColumn::left("unit")];
    columns.extend(report.schemes.iter().map(|scheme| TableColumn::right(&scheme.name)));
    if !output.add_table_if_fits(2, &columns, &rows) {
        write_long_table(output, report, phase);
    }
}

fn own_value_text(figure: &SimulationFigure, scheme: usize) -> String {
    let value = figure.values.get(scheme).and_then(Option::as_ref);
    value.map_or("-".to_owned(), |value| format_figure_value(value, &figure.unit))
}

fn paper_value_text(figure: &SimulationFigure, scheme: usize) -> Option<String> {
    Some(format_value((*figure.paper_values.get(scheme)?)?, &figure.unit))
}

/// Writes the same, a line per scheme, if the columns of all schemes do not fit side by side.
fn write_long_table(output: &mut TextReport, report: &SimulationReport, phase: &str) {
    let figures = report.figures.iter().filter(|figure| figure.phase == phase);
    let has_paper = figures.clone().any(|figure| figure.paper_values.iter().any(Option::is_some));
    let rows = figures.flat_map(|figure| (0..report.schemes.len()).map(move |scheme| (figure, scheme)));
    RowTable::<(&SimulationFigure, usize)>::new()
        .left("", |&(figure, scheme)| if scheme == 0 { figure_name(figure) } else { String::new() })
        .left("scheme", |&(_, scheme)| report.schemes[scheme].name.clone())
        .right("", |&(figure, scheme)| own_value_text(figure, scheme))
        .left("unit", |(figure, _)| figure.unit.clone())
        .right_if(has_paper, "in the paper", |&(figure, scheme)| {
            paper_value_text(figure, scheme).unwrap_or_default()
        })
        .add_to(output, 2, rows);
}

/// Writes the first and the last value of each line.
fn write_series(output: &mut TextReport, report: &SimulationReport) {
    if report.series.is_empty() {
        return;
    }
    output.add_heading("Over time");
    let style = output.style();
    fn values(series: &SimulationSeries) -> impl Iterator<Item = f64> {
        series.points.iter().map(|&(_, value)| value)
    }
    let decimals = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    RowTable::<&SimulationSeries>::new()
        .left("line", |series| series.name.clone())
        .left("scheme", |series| {
            report.schemes.get(series.scheme).map_or(String::new(), |scheme| scheme.name.clone())
        })
        .left("over", |series| format!("{} {}", series.points.len(), series.axis))
        .right("first", |series| decimals(values(series).next()))
        .right("lowest", |series| decimals(values(series).reduce(f64::min)))
        .right("highest", |series| decimals(values(series).reduce(f64::max)))
        .right("last", |series| decimals(values(series).last()))
        .left("", |series| sparkline(style, &values(series).collect::<Vec<_>>()))
        .add_to(output, 2, report.series.iter().filter(|series| !series.points.is_empty()));
}

/// Characters of a line in text.
const SPARK_COLUMNS: usize = 12;

fn sparkline(style: TextStyle, values: &[f64]) -> String {
    let count = values.len().min(SPARK_COLUMNS);
    (0..count).map(|at| style.spark_char(values[at * values.len() / count])).collect()
}

fn write_reclaim_table(output: &mut TextReport) {
    output.add_heading("Pages to free, in random order, before a block is certain to be free");
    let row = |&order: &u8| Some((order, reclaim_share(RECLAIM_FRAMES, order)?));
    RowTable::<(u8, f64)>::new()
        .right("order", |(order, _)| order.to_string())
        .right("of a zone", |(_, share)| format!("{:.2} %", share * 100.0))
        .add_to(output, 2, RECLAIM_ORDERS.iter().filter_map(row));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimulationScheme;

    #[test]
    fn a_table_for_each_phase_with_the_papers_figures_below_ours() {
        let scheme = |name: &str| SimulationScheme { name: name.to_owned(), ..SimulationScheme::default() };
        let value = |middle: f64, low: f64, high: f64| {
            Some(SimulationValue { median: middle, low, high, seed_count: 3 })
        };
        let figure = |phase: &str, zone: Option<&str>| SimulationFigure {
            phase: phase.to_owned(),
            name: "huge pages".to_owned(),
            zone: zone.map(str::to_owned),
            unit: "blocks".to_owned(),
            values: vec![value(70.0, 64.0, 81.0), None],
            paper_values: if zone.is_none() { vec![Some(72.0), Some(82.0)] } else { Vec::new() },
        };
        let report = SimulationReport {
            title: "highalloc on x86".to_owned(),
            schemes: vec![scheme("standard"), scheme("zone+linear")],
            figures: vec![figure("pass 1", None), figure("pass 1", Some("Normal")), figure("at rest", None)],
            series: vec![SimulationSeries {
                name: "F_u(10)".to_owned(),
                axis: "attempts".to_owned(),
                scheme: 1,
                points: vec![(0, 1.0), (1, 0.25), (2, 0.5)],
            }],
            ..SimulationReport::default()
        };
        let text = render(&report, TextStyle::PLAIN);
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
        let narrow = render(&report, TextStyle { width: 46, ..TextStyle::PLAIN });
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let row = narrow.lines().find(|line| line.contains("huge pages ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["huge", "pages", "standard", "70", "(64…81)", "blocks", "72"]);
    }
}
