//! Raw samples: the number and the distribution of each stream.

use std::collections::HashMap;

use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::run::{Run, SampleStream};
use pagelab_model::{Bytes, PageSize};

use super::{View, clip_name, format_plural, scores};
use crate::quantity_format::UnitScale;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{TableColumn, TextReport};

/// Rows of all tables together in the summary, at most, so that it fits one screen.
const ROWS_MAX: usize = 6;
/// Rows of one table, at least.
const ROWS_MIN: usize = 2;
/// Columns of a name, a label or its value, at most.
const NAME_MAX: usize = 40;
/// Label whose value is an amount of memory.
const BYTES_LABEL: &str = "bytes";
/// Statistics of each stream.
const NUMBER_TITLES: [&str; 8] = ["n", "min", "median", "mean", "p95", "max", "spread", "unit"];

/// Streams in one table: with the same name and the same labels.
struct StreamGroup<'a> {
    title: String,
    /// Titles of the columns that distinguish the streams.
    leading_titles: Vec<String>,
    streams: Vec<&'a SampleStream>,
}

pub(super) fn render_samples(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let is_probe = run.snapshot.as_ref().is_some_and(|look| look.probe.is_some());
    if (is_probe || run.experiment.is_some()) && !view.verbose {
        let samples: usize = run.streams.iter().map(|stream| stream.values.len()).sum();
        let count = format!(
            "{} in {}, from the {} above: -v",
            format_plural(samples, "sample"),
            format_plural(run.streams.len(), "stream"),
            if is_probe { "probe" } else { "experiment" }
        );
        output.add_fact_line(&[style.paint_bold("samples"), count]);
        return output.into_text();
    }
    let groups = group_streams(&run.streams);
    let rows = if view.verbose { usize::MAX } else { (ROWS_MAX / groups.len().max(1)).max(ROWS_MIN) };
    for group in &groups {
        write_table(&mut output, group, run.manifest.machine.page_size, rows);
    }
    output.add_dim_indented("spread: interquartile range as a share of the median");
    output.into_text()
}

/// Returns groups in the order of their first streams.
fn group_streams(streams: &[SampleStream]) -> Vec<StreamGroup<'_>> {
    let mut places: HashMap<(Vec<&str>, &str), usize> = HashMap::new();
    let mut groups: Vec<StreamGroup<'_>> = Vec::new();
    for stream in streams.iter().filter(|stream| !scores::is_score(stream)) {
        let keys: Vec<&str> = stream.header.labels.iter().map(|(key, _)| key.as_str()).collect();
        let name = if keys.is_empty() { "" } else { stream.header.name.as_str() };
        let place = *places.entry((keys.clone(), name)).or_insert(groups.len());
        if let Some(group) = groups.get_mut(place) {
            group.streams.push(stream);
            continue;
        }
        let (title, lead) = match keys.is_empty() {
            true => ("samples".to_owned(), vec!["stream".to_owned()]),
            false => (clip_name(name, NAME_MAX), keys.iter().map(|key| clip_name(key, NAME_MAX)).collect()),
        };
        groups.push(StreamGroup { title, leading_titles: lead, streams: vec![stream] });
    }
    groups
}

fn write_table(output: &mut TextReport, group: &StreamGroup<'_>, page_size: PageSize, rows: usize) {
    output.add_heading(&group.title);
    let shown_streams = group.streams.iter().take(rows);
    let shown_streams: Vec<_> =
        shown_streams.map(|stream| (leading_cells(stream), number_cells(stream, page_size))).collect();
    let titles = group.leading_titles.iter().map(|title| TableColumn::left(title));
    let numbers = NUMBER_TITLES.iter().enumerate();
    let numbers = numbers.map(|(at, title)| {
        if at + 1 < NUMBER_TITLES.len() { TableColumn::right(title) } else { TableColumn::left(title) }
    });
    let columns: Vec<TableColumn<'_>> = titles.chain(numbers).collect();
    let cells: Vec<Vec<String>> =
        shown_streams.iter().map(|(lead, numbers)| [&lead[..], &numbers[..]].concat()).collect();
    if !output.add_table_if_fits(2, &columns, &cells) {
        shown_streams.iter().for_each(|(lead, numbers)| write_stream_lines(output, lead, numbers));
    }
    let more = group.streams.len().saturating_sub(rows);
    if more > 0 {
        output.add_dim_indented(&format!("not shown: {} more (-v)", format_count(more as u128)));
    }
}

/// Returns the labels that distinguish a stream in its group.
fn leading_cells(stream: &SampleStream) -> Vec<String> {
    if stream.header.labels.is_empty() {
        return vec![clip_name(&stream.header.name, NAME_MAX)];
    }
    let value = |(key, value): &(String, String)| match value.parse() {
        Ok(amount) if key == BYTES_LABEL => format_bytes(Bytes(amount)),
        _ => clip_name(value, NAME_MAX),
    };
    stream.header.labels.iter().map(value).collect()
}

fn number_cells(stream: &SampleStream, page_size: PageSize) -> [String; 8] {
    let samples = format_count(stream.values.len() as u128);
    let Some(statistics) = SampleStatistics::from_samples(stream.values.clone()) else {
        let none = || "–".to_owned();
        return [samples, none(), none(), none(), none(), none(), none(), none()];
    };
    let scale = UnitScale::for_values(
        &stream.header.unit,
        page_size,
        false,
        f64::max(statistics.min.abs(), statistics.max.abs()),
    );
    let number = |value: f64| scale.format_number(value);
    let spread = statistics.relative_interquartile_range().map_or("–".to_owned(), format_percent);
    let [min, median, mean] = [statistics.min, statistics.median, statistics.mean].map(number);
    [
        samples,
        min,
        median,
        mean,
        number(statistics.percentile_95),
        number(statistics.max),
        spread,
        scale.unit.clone(),
    ]
}

/// Writes a stream in two lines if a table is too wide.
fn write_stream_lines(output: &mut TextReport, lead: &[String], numbers: &[String; 8]) {
    output.add_facts("  ", lead, ", ");
    let unit = numbers.last().map_or("", String::as_str);
    let pairs = NUMBER_TITLES.iter().zip(numbers).take(NUMBER_TITLES.len() - 1);
    let facts: Vec<String> = pairs
        .map(|(title, number)| match *title {
            "n" | "spread" => format!("{title} {number}"),
            _ => format!("{title} {number} {unit}").trim_end().to_owned(),
        })
        .collect();
    output.add_facts("    ", &facts, "   ");
}
