//! F_u by order at the moments of a procedure: a table for each zone, the moments below one another.

use std::collections::BTreeMap;

use pagelab_metrics::recorded;
use pagelab_model::run::{Run, Stream};

use super::{View, clipped, plural};
use crate::style::Style;
use crate::text::{Column, Page};

/// The label that names the moment.
const PHASE: &str = "phase";
/// Columns that a label may take.
const NAME_MAX: usize = 24;

/// The scores of one zone, with whatever else its labels say.
struct Table<'a> {
    /// Labels but for moment and order.
    labels: Vec<&'a (String, String)>,
    /// Moments as they came, each with its scores by order.
    moments: Vec<(&'a str, BTreeMap<u8, f64>)>,
}

pub(super) fn applies(run: &Run) -> bool {
    run.streams.iter().any(is_score)
}

/// Whether a stream is such a score.
pub(super) fn is_score(stream: &Stream) -> bool {
    stream.head.name == recorded::SCORES && order(stream).is_some() && label(stream, PHASE).is_some()
}

fn label<'a>(stream: &'a Stream, name: &str) -> Option<&'a str> {
    stream.head.labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn order(stream: &Stream) -> Option<u8> {
    label(stream, recorded::SCORES_ORDER)?.parse().ok()
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let title = [style.bold("scores"), "F_u by order, in thousandths".to_owned()];
    page.facts("", &title, "   ");
    let all = tables(&run.streams);
    let shown: Vec<&Table<'_>> = all.iter().filter(|table| view.verbose || table.moves()).collect();
    for table in &shown {
        one(&mut page, table);
    }
    let still = all.len() - shown.len();
    if still > 0 {
        page.hanging_dim("  ", &format!("not shown: {} in which nothing moves (-v)", plural(still, "table")));
    }
    page.finish()
}

fn tables(streams: &[Stream]) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    for stream in streams.iter().filter(|stream| is_score(stream)) {
        let (Some(order), Some(phase), Some(&value)) =
            (order(stream), label(stream, PHASE), stream.values.last())
        else {
            continue;
        };
        let told = |(key, _): &&(String, String)| key != PHASE && key != recorded::SCORES_ORDER;
        let labels: Vec<_> = stream.head.labels.iter().filter(told).collect();
        let place = tables.iter().position(|table| table.labels == labels).unwrap_or_else(|| {
            tables.push(Table { labels, moments: Vec::new() });
            tables.len() - 1
        });
        let Some(Table { moments, .. }) = tables.get_mut(place) else { continue };
        match moments.iter_mut().find(|(of, _)| *of == phase) {
            Some((_, scores)) => drop(scores.insert(order, value)),
            None => moments.push((phase, BTreeMap::from([(order, value)]))),
        }
    }
    tables
}

impl Table<'_> {
    /// Whether the moments differ.
    fn moves(&self) -> bool {
        self.moments.windows(2).any(|pair| pair[0].1 != pair[1].1)
    }
}

fn one(page: &mut Page, table: &Table<'_>) {
    let style = page.style();
    let name = |(key, value): &&(String, String)| {
        style.one_line(&format!("{} {}", clipped(key, NAME_MAX), clipped(value, NAME_MAX)))
    };
    page.facts("  ", &table.labels.iter().map(name).collect::<Vec<_>>(), ", ");
    let mut orders: Vec<u8> = table.moments.iter().flat_map(|(_, scores)| scores.keys().copied()).collect();
    orders.sort_unstable();
    orders.dedup();
    let titles: Vec<String> = orders.iter().map(u8::to_string).collect();
    let mut columns = vec![Column::left("order")];
    columns.extend(titles.iter().map(|title| Column::right(title)));
    let cell = |scores: &BTreeMap<u8, f64>, order: &u8| {
        scores.get(order).map_or("–".to_owned(), |value| format!("{value:.0}"))
    };
    let rows: Vec<Vec<String>> = table
        .moments
        .iter()
        .map(|(phase, scores)| {
            let cells = orders.iter().map(|order| cell(scores, order));
            [style.one_line(&clipped(phase, NAME_MAX))].into_iter().chain(cells).collect()
        })
        .collect();
    if !page.table_if_it_fits(4, &columns, &rows) {
        rows.iter().for_each(|row| page.facts("    ", row, " "));
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::run::{StreamHead, Unit};

    use super::*;

    fn score(zone: &str, phase: &str, order: &str, value: f64) -> Stream {
        let labels = [("phase", phase), ("zone", zone), ("order", order)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let head = StreamHead { name: recorded::SCORES.to_owned(), unit: Unit::PERMILLE.into(), labels };
        Stream { head, at_ns: vec![1], values: vec![value] }
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
        let tables = tables(&streams);
        assert_eq!(tables.iter().map(Table::moves).collect::<Vec<_>>(), [true, false]);
        let mut page = Page::new(Style::PLAIN);
        one(&mut page, &tables[0]);
        let text = page.finish();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["zone", "0/Normal"]);
        assert_eq!(lines[1], ["order", "0", "10"]);
        assert_eq!(lines[2], ["before", "0", "27"]);
        assert_eq!(lines[3], ["after", "–", "1000"]);
    }
}
