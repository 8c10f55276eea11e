//! Series: range, median, end and trend of each column that varies.

use pagelab_metrics::standard_series;
use pagelab_metrics::statistics::{CounterRates, SampleStatistics, typical_interval_ns};
use pagelab_model::PageSize;
use pagelab_model::run::{Column as Values, ColumnValues as Stored, Run, Series};

use super::time_trend::{SPARK_WIDTHS, sparkline};
use super::{View, activity, clip_name, format_plural, memory_used};
use crate::quantity_format::{UnitScale, format_duration, format_quantity};
use crate::style::TextStyle;
use crate::text_report::{TableColumn, TextReport};

/// Rows of all tables together in the summary, at most, so that it fits one screen.
const ROWS_MAX: usize = 8;
/// Rows of one table, at least.
const ROWS_MIN: usize = 2;
/// Columns of a name, at most.
const NAME_MAX: usize = 40;

pub(super) fn render_series(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let is_shown = |series: &&Series| view.verbose || !is_shown_elsewhere(run, series);
    let shown: Vec<&Series> = run.series.iter().filter(is_shown).collect();
    let rows = if view.verbose { usize::MAX } else { (ROWS_MAX / shown.len().max(1)).max(ROWS_MIN) };
    for series in &shown {
        output.add_gap();
        write_series(&mut output, series, run.manifest.machine.page_size, view, rows);
    }
    let summary: Vec<&Series> = run.series.iter().filter(|series| !is_shown(series)).collect();
    if !summary.is_empty() {
        let columns: usize = summary.iter().map(|series| series.columns.len()).sum();
        let counts = |series: &&Series| {
            series.columns.iter().map(|column| count_failed(column, series.at_ns.len())).sum::<usize>()
        };
        let failed_count: usize = summary.iter().map(counts).sum();
        output.add_gap();
        let mut text = format!("all {} as recorded: -v", format_plural(columns, "column"));
        if failed_count > 0 {
            text.push_str(&format!("; {} could not be read", format_plural(failed_count, "value")));
        }
        output.add_dim_text(&text);
    }
    output.into_text()
}

/// Returns whether the sections above present a series.
fn is_shown_elsewhere(run: &Run, series: &Series) -> bool {
    match series.name.as_str() {
        standard_series::BUDDYINFO => !standard_series::zone_series_of(series).is_empty(),
        standard_series::MEMINFO => memory_used::has_averages(run),
        standard_series::VMSTAT => activity::has_vmstat(run),
        standard_series::PRESSURE => activity::has_pressure(run),
        standard_series::RECORDER => true,
        _ => false,
    }
}

fn count_failed(column: &Values, readings: usize) -> usize {
    match &column.values {
        Stored::Constant(None) => readings,
        Stored::Constant(Some(_)) => 0,
        Stored::Varying(values) => values.iter().filter(|value| value.is_none()).count(),
    }
}

struct ColumnRow<'a> {
    name: String,
    scale: UnitScale,
    /// Smallest, median, mean, largest, last; `None` if no rate is defined.
    numbers: Option<[f64; 5]>,
    column: &'a Values,
}

/// Columns of a series by state.
#[derive(Default)]
struct ColumnSummary<'a> {
    /// Columns shown.
    rows: Vec<ColumnRow<'a>>,
    varying: usize,
    constant: Vec<String>,
    /// Names and numbers of failed readings.
    failed_readings: Vec<(String, usize)>,
    decreasing_counters: Vec<(String, usize)>,
}

fn write_series(output: &mut TextReport, series: &Series, page_size: PageSize, view: View, rows: usize) {
    let style = output.style();
    let mut facts = vec![style.paint_bold(&style.clip_name(&series.name, NAME_MAX))];
    facts.push(format_plural(series.at_ns.len(), "reading"));
    if let (Some(first), Some(last)) = (series.at_ns.first(), series.at_ns.last())
        && last > first
    {
        facts.push(format!(
            "over {}, one every {}",
            format_duration(last - first),
            format_duration(typical_interval_ns(&series.at_ns).unwrap_or_default())
        ));
    }
    facts.push(clip_name(&series.source, NAME_MAX));
    output.add_fact_line(&facts);
    let summary = summarize_columns(series, page_size, rows);
    write_table(output, &summary.rows, &series.at_ns);
    write_remaining_columns(output, &summary, view);
}

fn summarize_columns(series: &Series, page_size: PageSize, rows: usize) -> ColumnSummary<'_> {
    let mut summary = ColumnSummary::default();
    for column in &series.columns {
        let name = clip_name(&column.header.name, NAME_MAX);
        let failed_count = count_failed(column, series.at_ns.len());
        let (first, varies) = match &column.values {
            Stored::Constant(value) => (*value, false),
            Stored::Varying(values) => {
                let mut known = values.iter().flatten();
                let first = known.next().copied();
                (first, known.any(|&value| Some(value) != first))
            }
        };
        if failed_count > 0 {
            summary.failed_readings.push((name.clone(), failed_count));
        }
        match first {
            Some(_) if varies => {
                summary.varying += 1;
                if column.header.is_counter {
                    let went_back =
                        CounterRates::from_readings(column_readings(column, &series.at_ns)).resets;
                    summary.decreasing_counters.extend((went_back > 0).then(|| (name.clone(), went_back)));
                }
                if summary.rows.len() < rows {
                    summary.rows.push(column_row(name, column, &series.at_ns, page_size));
                }
            }
            Some(value) => {
                let value = format_quantity(value as f64, &column.header.unit, page_size);
                summary.constant.push(format!("{name} {value}"));
            }
            None => {}
        }
    }
    summary
}

pub(super) fn column_readings<'a>(
    column: &'a Values,
    at_ns: &'a [u64],
) -> impl Iterator<Item = (u64, Option<i64>)> + 'a {
    at_ns.iter().enumerate().map(|(index, &at)| (at, column.values.value_at(index)))
}

/// Returns the displayed values of a column over time, and their mean: its values, or a counter's rates. Not
/// cached: the columns of a series together may be larger than the series as read.
fn column_points(column: &Values, at_ns: &[u64]) -> (Vec<(u64, f64)>, Option<f64>) {
    if column.header.is_counter {
        let rates = CounterRates::from_readings(column_readings(column, at_ns));
        return (rates.per_second, rates.mean);
    }
    (column_readings(column, at_ns).filter_map(|(at, value)| Some((at, value? as f64))).collect(), None)
}

fn column_row<'a>(name: String, column: &'a Values, at_ns: &[u64], page_size: PageSize) -> ColumnRow<'a> {
    let (points, mean) = column_points(column, at_ns);
    let statistics = SampleStatistics::from_samples(points.iter().map(|&(_, value)| value).collect());
    let numbers = statistics
        .zip(points.last())
        .map(|(found, &(_, last))| [found.min, found.median, mean.unwrap_or(found.mean), found.max, last]);
    let largest = numbers.map_or(0.0, |[min, _, _, max, _]| f64::max(min.abs(), max.abs()));
    let scale = UnitScale::for_values(&column.header.unit, page_size, column.header.is_counter, largest);
    ColumnRow { name, scale, numbers, column }
}

/// Writes the table with bars, without them, or without the middle if the terminal is too narrow.
fn write_table(output: &mut TextReport, rows: &[ColumnRow<'_>], at_ns: &[u64]) {
    if rows.is_empty() {
        return;
    }
    let numbers = ["min", "median", "mean", "max", "last"].map(TableColumn::right);
    let mut columns = vec![TableColumn::left("column")];
    columns.extend(numbers);
    columns.extend([TableColumn::left("unit"), TableColumn::left("over time")]);
    let style = output.style();
    let mut without_bars: Vec<Vec<String>> = rows.iter().map(row_cells).collect();
    let bare = &columns[..columns.len() - 1];
    let taken = output.table_width(2, bare, &without_bars) + 2;
    let bars = style.width.saturating_sub(taken).min(SPARK_WIDTHS.1);
    if bars >= SPARK_WIDTHS.0 {
        let course = |row: &ColumnRow<'_>| vec![sparkline(&column_points(row.column, at_ns).0, bars, style)];
        let with_bars =
            rows.iter().zip(&without_bars).map(|(row, cells)| [&cells[..], &course(row)].concat());
        output.add_table(2, &columns, &with_bars.collect::<Vec<_>>());
    } else if !output.add_table_if_fits(2, bare, &without_bars) {
        // Without median and mean, and with names shortened to the width left by four short numbers.
        let name_max = style.width.saturating_sub(34).max(8);
        without_bars.iter_mut().for_each(|row| row[0] = clip_name(&row[0], name_max));
        output.add_narrowed_table(2, bare, &without_bars, &[&[0, 1, 4, 5, 6]]);
    }
}

fn row_cells(row: &ColumnRow<'_>) -> Vec<String> {
    let mut cells = vec![row.name.clone()];
    match row.numbers {
        Some(numbers) => cells.extend(numbers.map(|number| row.scale.format_number(number))),
        None => cells.extend(["–"; 5].map(str::to_owned)),
    }
    cells.push(row.scale.unit.clone());
    cells
}

/// Writes the number of series that are not in the table, and their names with `-v`.
fn write_remaining_columns(output: &mut TextReport, summary: &ColumnSummary<'_>, view: View) {
    let more_hint = summary.varying.saturating_sub(summary.rows.len());
    let listed = |(name, count): &(String, usize)| format!("{name} {count}");
    if view.verbose {
        for (what, facts) in [
            ("never changed", summary.constant.clone()),
            ("failed readings", summary.failed_readings.iter().map(listed).collect()),
            ("decreased, no rate at these steps", summary.decreasing_counters.iter().map(listed).collect()),
        ] {
            if !facts.is_empty() {
                output.add_indented(what);
                output.add_facts("    ", &facts, " · ");
            }
        }
        return;
    }
    let constant = summary.constant.len();
    let [failed, decreased] = [&summary.failed_readings, &summary.decreasing_counters]
        .map(|of| of.iter().map(|(_, count)| count).sum::<usize>());
    let facts = [
        (more_hint > 0).then(|| format!("{more_hint} more that vary")),
        (constant > 0).then(|| format!("{constant} that never changed")),
        (failed > 0).then(|| format!("{} that could not be read", format_plural(failed, "value"))),
        (decreased > 0).then(|| format!("{} of a counter", format_plural(decreased, "decrease"))),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if !facts.is_empty() {
        output.add_dim_indented(&format!("not shown: {} (-v)", facts.join(", ")));
    }
}
