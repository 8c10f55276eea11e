//! F_u by order in the phases of a procedure: a table for each zone, a row for each phase.

use std::collections::BTreeMap;

use pagelab_metrics::grouping::value_of;
use pagelab_metrics::standard_series;
use pagelab_model::run::{Run, SampleStream};

use super::{View, clip_name, format_plural};
use crate::style::TextStyle;
use crate::text_report::{RowTable, TextReport};

/// Label with the name of the phase.
const PHASE_LABEL: &str = "phase";
/// Columns of a label, at most.
const NAME_MAX: usize = 24;

/// Scores of one zone, with its other labels.
struct ScoreTable<'a> {
    /// Labels except phase and order.
    labels: Vec<&'a (String, String)>,
    /// Phases in their order, each with its scores by order.
    moments: Vec<(&'a str, BTreeMap<u8, f64>)>,
}

pub(super) fn is_score(stream: &SampleStream) -> bool {
    stream.header.name == standard_series::UNUSABLE_INDEX_STREAM
        && order_label(stream).is_some()
        && find_label(stream, PHASE_LABEL).is_some()
}

fn find_label<'a>(stream: &'a SampleStream, name: &str) -> Option<&'a str> {
    stream.header.labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn order_label(stream: &SampleStream) -> Option<u8> {
    find_label(stream, standard_series::ORDER_LABEL)?.parse().ok()
}

pub(super) fn render_scores(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let title = [style.paint_bold("scores"), "F_u by order, in thousandths".to_owned()];
    output.add_fact_line(&title);
    let all = score_tables(&run.streams);
    let shown: Vec<&ScoreTable<'_>> =
        all.iter().filter(|table| view.verbose || table.has_changes()).collect();
    for table in &shown {
        write_table(&mut output, table);
    }
    let still = all.len() - shown.len();
    if still > 0 {
        output
            .add_dim_indented(&format!("not shown: {} without changes (-v)", format_plural(still, "table")));
    }
    output.into_text()
}

fn score_tables(streams: &[SampleStream]) -> Vec<ScoreTable<'_>> {
    let mut tables: Vec<ScoreTable<'_>> = Vec::new();
    for stream in streams.iter().filter(|stream| is_score(stream)) {
        let (Some(order), Some(phase), Some(&value)) =
            (order_label(stream), find_label(stream, PHASE_LABEL), stream.values.last())
        else {
            continue;
        };
        let told = |(key, _): &&(String, String)| key != PHASE_LABEL && key != standard_series::ORDER_LABEL;
        let labels: Vec<_> = stream.header.labels.iter().filter(told).collect();
        let place = tables.iter().position(|table| table.labels == labels).unwrap_or_else(|| {
            tables.push(ScoreTable { labels, moments: Vec::new() });
            tables.len() - 1
        });
        value_of(&mut tables[place].moments, phase).insert(order, value);
    }
    tables
}

impl ScoreTable<'_> {
    fn has_changes(&self) -> bool {
        self.moments.windows(2).any(|pair| pair[0].1 != pair[1].1)
    }
}

fn write_table(output: &mut TextReport, table: &ScoreTable<'_>) {
    let style = output.style();
    let name = |(key, value): &&(String, String)| {
        style.to_one_line(&format!("{} {}", clip_name(key, NAME_MAX), clip_name(value, NAME_MAX)))
    };
    output.add_facts("  ", &table.labels.iter().map(name).collect::<Vec<_>>(), ", ");
    let mut orders: Vec<u8> = table.moments.iter().flat_map(|(_, scores)| scores.keys().copied()).collect();
    orders.sort_unstable();
    orders.dedup();
    let mut by_order = RowTable::<&(&str, BTreeMap<u8, f64>)>::new()
        .left("order", |(phase, _)| style.clip_name(phase, NAME_MAX));
    for order in orders {
        by_order = by_order.right(order.to_string(), move |(_, scores)| {
            scores.get(&order).map_or("–".to_owned(), |value| format!("{value:.0}"))
        });
    }
    let rows = by_order.rows(&table.moments);
    if !output.add_table_if_fits(4, &by_order.columns(), &rows) {
        rows.iter().for_each(|row| output.add_facts("    ", row, " "));
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::run::{StreamHeader, Unit};

    use super::*;

    fn score(zone: &str, phase: &str, order: &str, value: f64) -> SampleStream {
        let labels = [("phase", phase), ("zone", zone), ("order", order)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let head = StreamHeader {
            name: standard_series::UNUSABLE_INDEX_STREAM.to_owned(),
            unit: Unit::PERMILLE.into(),
            labels,
        };
        SampleStream { header: head, at_ns: vec![1], values: vec![value] }
    }

    #[test]
    fn moments_stand_below_one_another_and_what_is_malformed_is_left_to_the_samples() {
        let streams = [
            score("0/Normal", "before", "0", 0.0),
            score("0/Normal", "before", "10", 27.0),
            score("0/Normal", "after", "10", 1000.0),
            score("0/DMA", "before", "0", 0.0),
            score("0/DMA", "before", "x", 0.0),
        ];
        assert_eq!(streams.iter().filter(|stream| is_score(stream)).count(), 4);
        let tables = score_tables(&streams);
        assert_eq!(tables.iter().map(ScoreTable::has_changes).collect::<Vec<_>>(), [true, false]);
        let mut output = TextReport::new(TextStyle::PLAIN);
        write_table(&mut output, &tables[0]);
        let text = output.into_text();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["zone", "0/Normal"]);
        assert_eq!(lines[1], ["order", "0", "10"]);
        assert_eq!(lines[2], ["before", "0", "27"]);
        assert_eq!(lines[3], ["after", "–", "1000"]);
    }
}
