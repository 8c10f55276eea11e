//! Series: for each column that varies its range, its middle, its end and its course.

use pagelab_metrics::recorded;
use pagelab_metrics::statistics::{Rates, Statistics};
use pagelab_model::PageSize;
use pagelab_model::run::{Column as Values, Run, Series, Values as Stored};

use super::{View, activity, clipped, plural, spark, used};
use crate::quantity::{Scale, duration, quantity};
use crate::style::Style;
use crate::text::{Column, Page};

/// Rows of all tables together in the summary, so that it keeps to one screen.
const ROWS: usize = 8;
/// Rows of one table at least.
const ROWS_MIN: usize = 2;
/// Columns that a name may take.
const NAME_MAX: usize = 40;
/// Bars of a course, at least and at most.
const SPARK: (usize, usize) = (6, 16);

/// Whether there is a series that is shown at all; the summary has tables of its own for what it understands.
pub(super) fn applies(run: &Run) -> bool {
    !run.series.is_empty()
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let is_shown = |series: &&Series| view.verbose || !is_told(run, series);
    let shown: Vec<&Series> = run.series.iter().filter(is_shown).collect();
    let rows = if view.verbose { usize::MAX } else { (ROWS / shown.len().max(1)).max(ROWS_MIN) };
    for series in &shown {
        page.gap();
        one(&mut page, series, run.manifest.machine.page_size, view, rows);
    }
    let told: Vec<&Series> = run.series.iter().filter(|series| !is_shown(series)).collect();
    if !told.is_empty() {
        let columns: usize = told.iter().map(|series| series.columns.len()).sum();
        let failed: usize = told.iter().map(|series| failed(series)).sum();
        page.gap();
        let mut text = format!("all {} as recorded: -v", plural(columns, "column"));
        if failed > 0 {
            text.push_str(&format!("; {} that failed", plural(failed, "value")));
        }
        page.hanging_dim("", &text);
    }
    page.finish()
}

/// Whether the sections above tell what is in a series.
fn is_told(run: &Run, series: &Series) -> bool {
    match series.name.as_str() {
        recorded::BUDDYINFO => !recorded::zones_of(series).is_empty(),
        recorded::MEMINFO => used::applies(run),
        recorded::VMSTAT => activity::applies(run),
        recorded::PRESSURE => activity::has_pressure(run),
        recorded::RECORDER => true,
        _ => false,
    }
}

/// How many values of a series could not be read.
fn failed(series: &Series) -> usize {
    let one = |column: &Values| match &column.values {
        Stored::Constant(None) => series.at_ns.len(),
        Stored::Constant(Some(_)) => 0,
        Stored::Varying(values) => values.iter().filter(|value| value.is_none()).count(),
    };
    series.columns.iter().map(one).sum()
}

/// What is said of one column.
struct Row<'a> {
    name: String,
    scale: Scale,
    /// Smallest, median, mean, largest, last; `None` where no rate is defined.
    numbers: Option<[f64; 5]>,
    column: &'a Values,
}

/// The columns of a series, told apart.
#[derive(Default)]
struct Told<'a> {
    /// As many as are shown.
    rows: Vec<Row<'a>>,
    varying: usize,
    constant: Vec<String>,
    /// Names and numbers of readings that failed.
    failed: Vec<(String, usize)>,
    went_back: Vec<(String, usize)>,
}

fn one(page: &mut Page, series: &Series, page_size: PageSize, view: View, rows: usize) {
    let style = page.style();
    let mut facts = vec![style.bold(&style.one_line(&clipped(&series.name, NAME_MAX)))];
    facts.push(plural(series.at_ns.len(), "reading"));
    if let (Some(first), Some(last)) = (series.at_ns.first(), series.at_ns.last())
        && last > first
    {
        facts.push(format!("in {}, one every {}", duration(last - first), duration(every_ns(&series.at_ns))));
    }
    facts.push(clipped(&series.source, NAME_MAX));
    page.facts("", &facts, "   ");
    let told = tell(series, page_size, rows);
    table(page, &told.rows, &series.at_ns);
    rest(page, &told, view);
}

/// The usual distance of two readings.
fn every_ns(at_ns: &[u64]) -> u64 {
    let mut steps: Vec<u64> = at_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or_default()
}

fn tell(series: &Series, page_size: PageSize, rows: usize) -> Told<'_> {
    let mut told = Told::default();
    for column in &series.columns {
        let name = clipped(&column.head.name, NAME_MAX);
        let (first, varies, failed) = match &column.values {
            Stored::Constant(value) => (*value, false, if value.is_none() { series.at_ns.len() } else { 0 }),
            Stored::Varying(values) => {
                let mut known = values.iter().flatten();
                let first = known.next().copied();
                let failed = values.iter().filter(|value| value.is_none()).count();
                (first, known.any(|&value| Some(value) != first), failed)
            }
        };
        if failed > 0 {
            told.failed.push((name.clone(), failed));
        }
        match first {
            Some(_) if varies => {
                told.varying += 1;
                if column.head.is_counter {
                    let went_back = Rates::of(readings(column, &series.at_ns)).went_back;
                    told.went_back.extend((went_back > 0).then(|| (name.clone(), went_back)));
                }
                if told.rows.len() < rows {
                    told.rows.push(row(name, column, &series.at_ns, page_size));
                }
            }
            Some(value) => {
                let value = quantity(value as f64, &column.head.unit, page_size);
                told.constant.push(format!("{name} {value}"));
            }
            None => {}
        }
    }
    told
}

fn readings<'a>(column: &'a Values, at_ns: &'a [u64]) -> impl Iterator<Item = (u64, Option<i64>)> + 'a {
    at_ns.iter().enumerate().map(|(index, &at)| (at, column.values.at(index)))
}

/// What is shown of a column over time, and the mean of it: its values, or a counter's rates. Not kept: the
/// columns of a series together may be larger than what was read of it.
fn points(column: &Values, at_ns: &[u64]) -> (Vec<(u64, f64)>, Option<f64>) {
    if column.head.is_counter {
        let rates = Rates::of(readings(column, at_ns));
        return (rates.per_second, rates.mean);
    }
    (readings(column, at_ns).filter_map(|(at, value)| Some((at, value? as f64))).collect(), None)
}

fn row<'a>(name: String, column: &'a Values, at_ns: &[u64], page_size: PageSize) -> Row<'a> {
    let (points, mean) = points(column, at_ns);
    let statistics = Statistics::of(points.iter().map(|&(_, value)| value).collect());
    let numbers = statistics
        .zip(points.last())
        .map(|(found, &(_, last))| [found.min, found.median, mean.unwrap_or(found.mean), found.max, last]);
    let largest = numbers.map_or(0.0, |[min, _, _, max, _]| f64::max(min.abs(), max.abs()));
    let scale = Scale::of(&column.head.unit, page_size, column.head.is_counter, largest);
    Row { name, scale, numbers, column }
}

/// The table with bars, without them, or without the middle where the terminal is too narrow for it.
fn table(page: &mut Page, rows: &[Row<'_>], at_ns: &[u64]) {
    if rows.is_empty() {
        return;
    }
    let numbers = ["min", "median", "mean", "max", "last"].map(Column::right);
    let mut columns = vec![Column::left("column")];
    columns.extend(numbers);
    columns.extend([Column::left("unit"), Column::left("over time")]);
    let style = page.style();
    let without: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let bare = &columns[..columns.len() - 1];
    let taken = page.table_width(2, bare, &without) + 2;
    let bars = style.width.saturating_sub(taken).min(SPARK.1);
    if bars >= SPARK.0 {
        let course = |row: &Row<'_>| vec![spark::line(&points(row.column, at_ns).0, bars, style)];
        let with_bars = rows.iter().zip(&without).map(|(row, cells)| [&cells[..], &course(row)].concat());
        page.table(2, &columns, &with_bars.collect::<Vec<_>>());
    } else if !page.table_if_it_fits(2, bare, &without) {
        // Without median and mean, and with names cut to what is left beside four short numbers.
        const SHORT: [usize; 5] = [0, 1, 4, 5, 6];
        let name_max = style.width.saturating_sub(34).max(8);
        let short = |mut row: Vec<String>| {
            row[0] = clipped(&row[0], name_max);
            SHORT.iter().filter_map(|&at| row.get(at).cloned()).collect()
        };
        page.table(2, &SHORT.map(|at| columns[at]), &without.into_iter().map(short).collect::<Vec<_>>());
    }
}

fn cells(row: &Row<'_>) -> Vec<String> {
    let mut cells = vec![row.name.clone()];
    match row.numbers {
        Some(numbers) => cells.extend(numbers.map(|number| row.scale.number(number))),
        None => cells.extend(["–"; 5].map(str::to_owned)),
    }
    cells.push(row.scale.unit.clone());
    cells
}

/// What is not in the table: counted, and with `-v` named.
fn rest(page: &mut Page, told: &Told<'_>, view: View) {
    let more = told.varying.saturating_sub(told.rows.len());
    let listed = |(name, count): &(String, usize)| format!("{name} {count}");
    if view.verbose {
        for (what, facts) in [
            ("never changed", told.constant.clone()),
            ("readings that failed", told.failed.iter().map(listed).collect()),
            ("went back, and have no rate there", told.went_back.iter().map(listed).collect()),
        ] {
            if !facts.is_empty() {
                page.hanging("  ", what);
                page.facts("    ", &facts, " · ");
            }
        }
        return;
    }
    let mut facts = Vec::new();
    if more > 0 {
        facts.push(format!("{more} more that vary"));
    }
    if !told.constant.is_empty() {
        facts.push(format!("{} that never changed", told.constant.len()));
    }
    let sum = |of: &[(String, usize)]| of.iter().map(|(_, count)| count).sum::<usize>();
    if !told.failed.is_empty() {
        facts.push(format!("{} that failed", plural(sum(&told.failed), "value")));
    }
    if !told.went_back.is_empty() {
        facts.push(format!("{} of a counter that went back", plural(sum(&told.went_back), "step")));
    }
    if !facts.is_empty() {
        page.hanging_dim("  ", &format!("not in the table: {} (-v)", facts.join(", ")));
    }
}
