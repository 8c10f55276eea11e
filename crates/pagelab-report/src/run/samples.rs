//! Raw samples: for each stream how many there are and where they lie.

use std::collections::HashMap;

use pagelab_metrics::statistics::Statistics;
use pagelab_model::run::{Run, Stream};
use pagelab_model::{Bytes, PageSize};

use super::{View, clipped, plural, scores};
use crate::quantity::Scale;
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// Rows of all tables together in the summary, so that it keeps to one screen.
const ROWS: usize = 6;
/// Rows of one table at least.
const ROWS_MIN: usize = 2;
/// Columns that a name, a label or its value may take.
const NAME_MAX: usize = 40;
/// The label whose value is an amount of memory.
const BYTES: &str = "bytes";
/// What is said of each stream.
const NUMBERS: [&str; 8] = ["n", "min", "median", "mean", "p95", "max", "spread", "unit"];

/// Streams that stand in one table: of one name and with the same labels, or without any labels.
struct Group<'a> {
    title: String,
    /// Titles of the columns that tell the streams apart.
    lead: Vec<String>,
    streams: Vec<&'a Stream>,
}

/// Whether there are any that have no section of their own.
pub(super) fn applies(run: &Run) -> bool {
    run.streams.iter().any(|stream| !scores::is_score(stream))
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let is_probe = run.snapshot.as_ref().is_some_and(|look| look.probe.is_some());
    if (is_probe || run.experiment.is_some()) && !view.verbose {
        let samples: usize = run.streams.iter().map(|stream| stream.values.len()).sum();
        let count = format!(
            "{} in {}, of the {} above: -v",
            plural(samples, "sample"),
            plural(run.streams.len(), "stream"),
            if is_probe { "probe" } else { "experiment" }
        );
        page.facts("", &[style.bold("samples"), count], "   ");
        return page.finish();
    }
    let groups = groups(&run.streams);
    let rows = if view.verbose { usize::MAX } else { (ROWS / groups.len().max(1)).max(ROWS_MIN) };
    for group in &groups {
        table(&mut page, group, run.manifest.machine.page_size, rows);
    }
    page.hanging_dim("  ", "spread: where the middle half of the samples lies, as a share of the median");
    page.finish()
}

/// Groups in the order of their first streams.
fn groups(streams: &[Stream]) -> Vec<Group<'_>> {
    let mut places: HashMap<(Vec<&str>, &str), usize> = HashMap::new();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for stream in streams.iter().filter(|stream| !scores::is_score(stream)) {
        let keys: Vec<&str> = stream.head.labels.iter().map(|(key, _)| key.as_str()).collect();
        let name = if keys.is_empty() { "" } else { stream.head.name.as_str() };
        let place = *places.entry((keys.clone(), name)).or_insert(groups.len());
        if let Some(group) = groups.get_mut(place) {
            group.streams.push(stream);
            continue;
        }
        let (title, lead) = match keys.is_empty() {
            true => ("samples".to_owned(), vec!["stream".to_owned()]),
            false => (clipped(name, NAME_MAX), keys.iter().map(|key| clipped(key, NAME_MAX)).collect()),
        };
        groups.push(Group { title, lead, streams: vec![stream] });
    }
    groups
}

fn table(page: &mut Page, group: &Group<'_>, page_size: PageSize, rows: usize) {
    page.heading(&group.title);
    let shown = group.streams.iter().take(rows);
    let shown: Vec<_> = shown.map(|stream| (lead(stream), numbers(stream, page_size))).collect();
    let titles = group.lead.iter().map(|title| Column::left(title));
    let numbers = NUMBERS.iter().enumerate();
    let numbers = numbers
        .map(|(at, title)| if at + 1 < NUMBERS.len() { Column::right(title) } else { Column::left(title) });
    let columns: Vec<Column<'_>> = titles.chain(numbers).collect();
    let cells: Vec<Vec<String>> =
        shown.iter().map(|(lead, numbers)| [&lead[..], &numbers[..]].concat()).collect();
    if !page.table_if_it_fits(2, &columns, &cells) {
        shown.iter().for_each(|(lead, numbers)| in_words(page, lead, numbers));
    }
    let more = group.streams.len().saturating_sub(rows);
    if more > 0 {
        page.hanging_dim("  ", &format!("not in the table: {} more (-v)", count(more as u128)));
    }
}

/// What tells a stream from the others of its group.
fn lead(stream: &Stream) -> Vec<String> {
    if stream.head.labels.is_empty() {
        return vec![clipped(&stream.head.name, NAME_MAX)];
    }
    let value = |(key, value): &(String, String)| match value.parse() {
        Ok(amount) if key == BYTES => bytes(Bytes(amount)),
        _ => clipped(value, NAME_MAX),
    };
    stream.head.labels.iter().map(value).collect()
}

fn numbers(stream: &Stream, page_size: PageSize) -> [String; 8] {
    let samples = count(stream.values.len() as u128);
    let Some(found) = Statistics::of(stream.values.clone()) else {
        let none = || "–".to_owned();
        return [samples, none(), none(), none(), none(), none(), none(), none()];
    };
    let scale = Scale::of(&stream.head.unit, page_size, false, f64::max(found.min.abs(), found.max.abs()));
    let number = |value: f64| scale.number(value);
    let spread = found.relative_spread().map_or("–".to_owned(), percent);
    let [min, median, mean] = [found.min, found.median, found.mean].map(number);
    [samples, min, median, mean, number(found.percentile_95), number(found.max), spread, scale.unit.clone()]
}

/// A stream in two lines, where a table is too wide.
fn in_words(page: &mut Page, lead: &[String], numbers: &[String; 8]) {
    page.facts("  ", lead, ", ");
    let unit = numbers.last().map_or("", String::as_str);
    let pairs = NUMBERS.iter().zip(numbers).take(NUMBERS.len() - 1);
    let facts: Vec<String> = pairs
        .map(|(title, number)| match *title {
            "n" | "spread" => format!("{title} {number}"),
            _ => format!("{title} {number} {unit}").trim_end().to_owned(),
        })
        .collect();
    page.facts("    ", &facts, "   ");
}
