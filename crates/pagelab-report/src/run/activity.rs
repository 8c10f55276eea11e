//! Activity of memory management: huge pages, compaction and reclaim by their counters, and pressure.

use std::collections::BTreeSet;

use pagelab_metrics::standard_series;
use pagelab_metrics::statistics::CounterRates;
use pagelab_model::PageSize;
use pagelab_model::run::{Run, Series, Unit};

use super::View;
use super::series::column_readings as series_column_readings;
use super::time_trend::{TrendRow, write_table};
use crate::quantity_format::format_quantity;
use crate::style::{TextStyle, format_percent};
use crate::text_report::{TableColumn, TextReport};

/// Counters of vmstat for huge pages, compaction, reclaim and failures (mm/vmstat.c, 6.18).
pub(super) const ACTIVITY_COUNTERS: [&str; 18] = [
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_split_page",
    "thp_swpout",
    "compact_stall",
    "compact_fail",
    "compact_success",
    "compact_daemon_wake",
    "compact_migrate_scanned",
    "compact_free_scanned",
    "pgmigrate_success",
    "pgmigrate_fail",
    "pgscan_kswapd",
    "pgscan_direct",
    "pswpin",
    "pswpout",
    "oom_kill",
];

/// Rows of the summary, at most.
const ROWS_MAX: usize = 5;

/// Readings of one column over all series of a name.
pub(super) fn column_readings<'a>(run: &'a Run, series: &'a str, name: &str) -> Vec<(u64, Option<i64>)> {
    let one = |series: &'a Series| {
        let column = series.columns.iter().find(|column| column.header.name == name);
        column.into_iter().flat_map(|column| series_column_readings(column, &series.at_ns))
    };
    standard_series::series_named(run, series).flat_map(one).collect()
}

/// Returns the growth of a counter, its rates and their mean; `None` if it did not grow.
fn counter_growth(readings: &[(u64, Option<i64>)]) -> Option<(f64, CounterRates)> {
    let rates = CounterRates::from_readings(readings.iter().copied());
    let mut growth = 0.0;
    let known: Vec<i64> = readings.iter().filter_map(|&(_, value)| value).collect();
    for pair in known.windows(2) {
        growth += pair[1].checked_sub(pair[0]).filter(|step| *step > 0).unwrap_or(0) as f64;
    }
    (growth > 0.0).then_some((growth, rates))
}

pub(super) fn has_vmstat(run: &Run) -> bool {
    standard_series::series_named(run, standard_series::VMSTAT).any(|series| series.at_ns.len() > 1)
}

pub(super) fn render_activity(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let (mut rows, mut unchanged_names) = (Vec::new(), Vec::new());
    for name in ACTIVITY_COUNTERS {
        let readings = column_readings(run, standard_series::VMSTAT, name);
        match counter_growth(&readings) {
            Some((grown, rates)) => rows.push(counter_row(name, grown, rates)),
            None if !readings.is_empty() => unchanged_names.push(name.to_owned()),
            None => {}
        }
    }
    let display_name = "increase of their vmstat counters";
    output.add_fact_line(&[style.paint_bold("huge pages, compaction, reclaim"), display_name.to_owned()]);
    let hidden = if view.verbose { 0 } else { rows.len().saturating_sub(ROWS_MAX) };
    rows.truncate(rows.len() - hidden);
    if !rows.is_empty() {
        write_table(&mut output, &[TableColumn::left("counter")], &["total", "mean/s", "max/s"], &[], &rows);
    }
    if hidden > 0 {
        output.add_dim_indented(&format!("not shown: {hidden} more that increased (-v)"));
    }
    if rows.is_empty() {
        output.add_dim_indented("none of them increased");
    } else if view.verbose && !unchanged_names.is_empty() {
        output.add_indented("did not increase");
        output.add_facts("    ", &unchanged_names, " · ");
    }
    output.into_text()
}

fn counter_row(name: &str, growth: f64, rates: CounterRates) -> TrendRow {
    let most = rates.per_second.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
    let count = |value: f64| format_quantity(value, &Unit::COUNT.into(), PageSize::DEFAULT);
    let numbers = vec![count(growth), rates.mean.map_or("–".to_owned(), count), count(most)];
    TrendRow::new(vec![name.to_owned()], numbers, rates.per_second)
}

pub(super) fn has_pressure(run: &Run) -> bool {
    standard_series::series_named(run, standard_series::PRESSURE).any(|series| series.at_ns.len() > 1)
}

/// Writes pressure: the share of time in which tasks waited, from the kernel's totals.
pub(super) fn render_pressure(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let columns =
        standard_series::series_named(run, standard_series::PRESSURE).flat_map(|series| &series.columns);
    let mut known = BTreeSet::new();
    let names = columns.filter_map(|column| column.header.name.strip_suffix(".total"));
    let names = names.filter(|line| known.insert(*line));
    let (mut rows, mut unchanged_names) = (Vec::new(), Vec::new());
    for line in names {
        let readings = column_readings(run, standard_series::PRESSURE, &format!("{line}.total"));
        let display_name = line.replace('.', " ");
        let Some((_, rates)) = counter_growth(&readings) else {
            unchanged_names.push(display_name);
            continue;
        };
        // Microseconds of waiting per second.
        let share = |us: f64| format_percent(us / 1e6);
        let most = rates.per_second.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let numbers = vec![rates.mean.map_or("–".to_owned(), share), share(most)];
        rows.push(TrendRow::new(vec![display_name], numbers, rates.per_second));
    }
    let display_name = "share of time in which some or all tasks waited";
    output.add_fact_line(&[style.paint_bold("pressure"), display_name.to_owned()]);
    let hidden = if view.verbose { 0 } else { rows.len().saturating_sub(ROWS_MAX) };
    rows.truncate(rows.len() - hidden);
    if !rows.is_empty() {
        write_table(&mut output, &[TableColumn::left("")], &["mean", "max"], &[], &rows);
    }
    if !unchanged_names.is_empty() {
        output.add_dim_indented(&format!("no waits: {}", unchanged_names.join(", ")));
    }
    output.into_text()
}
