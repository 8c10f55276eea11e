//! How busy memory management was: huge pages, compaction and reclaim by their counters, and who waited.

use pagelab_metrics::recorded;
use pagelab_metrics::statistics::Rates;
use pagelab_model::PageSize;
use pagelab_model::run::{Column as Values, Run, Unit};

use super::View;
use super::course::{Course, Row, table};
use crate::quantity::{Scale, quantity};
use crate::style::{Style, percent};
use crate::text::{Column, Page};

/// Counters of vmstat that tell of huge pages, compaction, reclaim and failure (mm/vmstat.c, 6.18).
pub(super) const COUNTERS: [&str; 18] = [
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

/// Rows of the summary.
const ROWS: usize = 5;

/// Readings of one column over all series of a name.
fn readings<'a>(run: &'a Run, series: &'a str, name: &str) -> Vec<(u64, Option<i64>)> {
    let named = |column: &&Values| column.head.name == name;
    let one = |series: &'a pagelab_model::run::Series| {
        let column = series.columns.iter().find(named);
        column.into_iter().flat_map(|column| {
            series.at_ns.iter().enumerate().map(|(at, &at_ns)| (at_ns, column.values.at(at)))
        })
    };
    recorded::named(run, series).flat_map(one).collect()
}

/// How much a counter grew, its rates and the mean of these; `None` where it did not grow.
fn grown(readings: &[(u64, Option<i64>)]) -> Option<(f64, Rates)> {
    let rates = Rates::of(readings.iter().copied());
    let mut grown = 0.0;
    let known: Vec<i64> = readings.iter().filter_map(|&(_, value)| value).collect();
    for pair in known.windows(2) {
        grown += pair[1].checked_sub(pair[0]).filter(|step| *step > 0).unwrap_or(0) as f64;
    }
    (grown > 0.0).then_some((grown, rates))
}

/// Whether the run has counters of vmstat over time.
pub(super) fn applies(run: &Run) -> bool {
    recorded::named(run, recorded::VMSTAT).any(|series| series.at_ns.len() > 1)
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let page_size = run.manifest.machine.page_size;
    let (mut rows, mut never) = (Vec::new(), Vec::new());
    for name in COUNTERS {
        let readings = readings(run, recorded::VMSTAT, name);
        match grown(&readings) {
            Some((grown, rates)) => rows.push(row(name, grown, rates, page_size)),
            None if !readings.is_empty() => never.push(name.to_owned()),
            None => {}
        }
    }
    let words = "growth of their counters in vmstat";
    page.facts("", &[style.bold("huge pages, compaction, reclaim"), words.to_owned()], "   ");
    let hidden = if view.verbose { 0 } else { rows.len().saturating_sub(ROWS) };
    rows.truncate(rows.len() - hidden);
    if !rows.is_empty() {
        table(&mut page, &[Column::left("counter")], &["in all", "mean/s", "max/s"], &[], &rows);
    }
    if hidden > 0 {
        page.hanging_dim("  ", &format!("not in the table: {hidden} more that grew (-v)"));
    }
    if rows.is_empty() {
        page.hanging_dim("  ", "none of them grew");
    } else if view.verbose && !never.is_empty() {
        page.hanging("  ", "did not grow");
        page.facts("    ", &never, " · ");
    }
    page.finish()
}

fn row(name: &str, grown: f64, rates: Rates, page_size: PageSize) -> Row {
    let most = rates.per_second.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
    let count = |value: f64| quantity(value, &Unit::COUNT.into(), page_size);
    let rate = |value: f64| Scale::of(&Unit::COUNT.into(), page_size, false, value).text(value);
    let numbers = vec![count(grown), rates.mean.map_or("–".to_owned(), rate), rate(most)];
    Row {
        lead: vec![name.to_owned()],
        numbers,
        course: Course { points: rates.per_second },
        tail: Vec::new(),
    }
}

/// Whether the run has pressure over time.
pub(super) fn has_pressure(run: &Run) -> bool {
    recorded::named(run, recorded::PRESSURE).any(|series| series.at_ns.len() > 1)
}

/// Pressure: the share of the time in which tasks waited, from the kernel's totals.
pub(super) fn pressure(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let mut names: Vec<&str> = Vec::new();
    for column in recorded::named(run, recorded::PRESSURE).flat_map(|series| &series.columns) {
        if let Some(line) = column.head.name.strip_suffix(".total")
            && !names.contains(&line)
        {
            names.push(line);
        }
    }
    let (mut rows, mut never) = (Vec::new(), Vec::new());
    for line in names {
        let readings = readings(run, recorded::PRESSURE, &format!("{line}.total"));
        let words = line.replace('.', " ");
        let Some((_, rates)) = grown(&readings) else {
            never.push(words);
            continue;
        };
        // Microseconds of waiting in a second.
        let share = |us: f64| percent(us / 1e6);
        let most = rates.per_second.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let numbers = vec![rates.mean.map_or("–".to_owned(), share), share(most)];
        rows.push(Row {
            lead: vec![words],
            numbers,
            course: Course { points: rates.per_second },
            tail: Vec::new(),
        });
    }
    let words = "share of the time in which some tasks, or all, waited";
    page.facts("", &[style.bold("pressure"), words.to_owned()], "   ");
    let hidden = if view.verbose { 0 } else { rows.len().saturating_sub(ROWS) };
    rows.truncate(rows.len() - hidden);
    if !rows.is_empty() {
        table(&mut page, &[Column::left("")], &["mean", "max"], &[], &rows);
    }
    if !never.is_empty() {
        page.hanging_dim("  ", &format!("nobody waited: {}", never.join(", ")));
    }
    page.finish()
}
