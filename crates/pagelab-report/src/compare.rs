//! `pagelab compare`: the same experiment in several runs, one column a run, one row a measure.

mod differences;

use pagelab_metrics::compare::{Against, Cell, Comparison, Row};
use pagelab_metrics::effect::Verdict;
use pagelab_model::PageSize;
use pagelab_model::experiment::measures;
use pagelab_model::run::Run;

use crate::effects::{measure_name, narrow_interval as interval, ratio, value, verdict_of};
use crate::grid::width;
use crate::style::Style;
use crate::text::{Column, Page};

pub use differences::{Difference, differences};

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Every measure and every difference.
    pub verbose: bool,
}

/// Runs that stand beside each other as columns with their intervals; more get signs in place of words.
const IN_WORDS_MAX: usize = 2;
/// Differences of machines that the summary shows.
const DIFFERENCES_MAX: usize = 12;
/// Characters of a name or value from a file.
const NAME_MAX: usize = 24;
/// Measures of the summary besides the one that judges, as far as they are there.
const SUMMARY: [&str; 6] = [
    measures::PEAK,
    "latency.p99.9",
    measures::HUGE,
    "counter.dTLB-load-misses",
    "counter.iTLB-load-misses",
    "counter.cache-misses",
];

/// `A`, `B` … as runs are called in the columns.
pub fn letter(run: usize) -> String {
    let letters = ('A'..='Z').nth(run % 26).unwrap_or('?');
    if run < 26 { letters.to_string() } else { format!("{letters}{}", run / 26) }
}

/// The comparison as text.
pub fn render(runs: &[Run], found: &Comparison, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    heads(&mut page, runs);
    page.gap();
    machines(&mut page, runs, view);
    let shown = |row: &&Row| view.verbose || row.is_judged || SUMMARY.contains(&row.measure.as_str());
    let rows: Vec<&Row> = found.rows.iter().filter(shown).collect();
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.dedup();
    for workload in workloads {
        page.heading(&clipped(workload));
        let of: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).copied().collect();
        match runs.len() <= IN_WORDS_MAX {
            true => in_words(&mut page, &of),
            false => in_signs(&mut page, &of, runs.len()),
        }
    }
    if runs.len() > IN_WORDS_MAX {
        let key = "+ faster or less of what should be little   - the other way   = no difference   \
                   ? not decided   ~ neither good nor bad   ! not what was asked for";
        page.gap();
        page.hanging_dim("  ", key);
    }
    let hidden = found.rows.len() - rows.len();
    page.gap();
    for refused in &found.refused {
        let first = format!("{}  ", style.alert("NOT COMPARED"));
        page.hanging(&first, &style.one_line(&refused.chars().take(400).collect::<String>()));
    }
    if hidden > 0 {
        page.hanging_dim("", &format!("{hidden} more measures are compared with -v"));
    }
    let words = "ratio: geometric means, each run by run A; interval: Welch's t, 95 %; speed-up: against the \
                 baseline of the same run, by pairs";
    page.hanging_dim("", words);
    page.finish()
}

fn clipped(name: &str) -> String {
    crate::run::clipped(name, NAME_MAX)
}

fn heads(page: &mut Page, runs: &[Run]) {
    let style = page.style();
    for (at, run) in runs.iter().enumerate() {
        let plan = run.experiment.as_ref().map_or("", |experiment| experiment.plan.name.as_str());
        let host = run.manifest.machine.host_name.as_deref().unwrap_or("machine unknown");
        let facts = [
            style.bold(&letter(at)),
            style.one_line(&crate::run::clipped(&run.name, 48)),
            clipped(plan),
            clipped(host),
            crate::utc::utc(run.manifest.started.realtime_ns),
        ];
        page.facts("", &facts, "  ");
    }
}

/// What differs between the machines and their settings comes first: it may be the whole answer.
fn machines(page: &mut Page, runs: &[Run], view: View) {
    let found = differences(runs);
    if found.is_empty() {
        page.hanging("", "machines, kernels and settings are the same, as far as the runs say");
        return;
    }
    let most = if view.verbose { usize::MAX } else { DIFFERENCES_MAX };
    let letters: Vec<String> = (0..runs.len()).map(letter).collect();
    let mut columns = vec![Column::left("differs")];
    columns.extend(letters.iter().map(|letter| Column::left(letter)));
    let cells = |difference: &Difference| -> Vec<String> {
        let values = difference.values.iter().map(|value| value.as_deref().map_or("–".to_owned(), clipped));
        std::iter::once(difference.name.clone()).chain(values).collect()
    };
    let rows: Vec<Vec<String>> = found.iter().take(most).map(cells).collect();
    if !page.table_if_it_fits(2, &columns, &rows) {
        for row in &rows {
            page.facts("  ", row, "  ");
        }
    }
    if found.len() > most {
        page.hanging_dim("  ", &format!("{} more settings differ (-v)", found.len() - most));
    }
}

fn name(row: &Row) -> String {
    clipped(&measure_name(&row.measure))
}

fn median(row: &Row, cell: &Cell) -> String {
    cell.median.map_or("–".to_owned(), |median| value(median, &row.unit, PageSize::USUAL))
}

fn word(row: &Row, against: &Against) -> String {
    match row.is_judged {
        true => crate::effects::verdict(against.verdict),
        false => verdict_of(against.verdict, row.better, against.ratio),
    }
}

/// Two runs: values, ratio, interval and verdict.
fn in_words(page: &mut Page, rows: &[&Row]) {
    let none = || "–".to_owned();
    let mut cells: Vec<Vec<String>> = Vec::new();
    let mut last = "";
    for row in rows {
        let variant = if row.variant == last { String::new() } else { clipped(&row.variant) };
        last = &row.variant;
        let [first, second] = &row.cells[..] else { continue };
        let [times, within, says] = match &second.against {
            Some(against) => {
                [ratio(against.ratio, Some(against.interval)), interval(against.interval), word(row, against)]
            }
            None => [none(), none(), "no ratio".to_owned()],
        };
        cells.push(vec![variant, name(row), median(row, first), median(row, second), times, within, says]);
        if let (true, Some(one), Some(other)) = (row.is_judged, &first.effect, &second.effect) {
            let [times, within, says] = match &second.effect_against {
                Some(against) => gains(one.better, against),
                None => [none(), none(), "too few".to_owned()],
            };
            let speed = |effect: &pagelab_metrics::effect::Effect| {
                let is_void = matches!(effect.verdict, Verdict::NotHuge { .. } | Verdict::NotApplied { .. });
                let (speed, within) = effect.speed_up();
                if is_void { none() } else { format!("{}×", ratio(speed, within)) }
            };
            cells.push(vec![
                String::new(),
                "speed-up".to_owned(),
                speed(one),
                speed(other),
                times,
                within,
                says,
            ]);
        }
    }
    let columns = [
        Column::left("variant"),
        Column::left("measure"),
        Column::right("A"),
        Column::right("B"),
        Column::right("ratio"),
        Column::right("interval"),
        Column::left("verdict"),
    ];
    if !page.table_if_it_fits(2, &columns, &cells) {
        // Without the interval, and with names cut to what is left.
        let short: Vec<Vec<String>> = cells
            .into_iter()
            .map(|mut row| {
                row.remove(5);
                row[0] = crate::run::clipped(&row[0], 12);
                row[1] = crate::run::clipped(&row[1], 18);
                row
            })
            .collect();
        let columns: Vec<Column<'_>> =
            columns.iter().enumerate().filter(|(at, _)| *at != 5).map(|(_, column)| *column).collect();
        if !page.table_if_it_fits(2, &columns, &short) {
            short.iter().for_each(|row| page.facts("  ", row, "  "));
        }
    }
}

/// How a gain differs from another: the ratio of two speed-ups.
fn gains(better: pagelab_model::experiment::Better, against: &Against) -> [String; 3] {
    let is_rate = better == pagelab_model::experiment::Better::Higher;
    let (times, within) = match is_rate {
        true => (against.ratio, against.interval),
        false => (1.0 / against.ratio, against.interval.inverse()),
    };
    let says = match against.verdict {
        Verdict::Better => "gains more".to_owned(),
        Verdict::Worse => "gains less".to_owned(),
        other => crate::effects::verdict(other),
    };
    [ratio(times, Some(within)), interval(within), says]
}

/// More runs: a value and a ratio with a sign for each.
fn in_signs(page: &mut Page, rows: &[&Row], runs: usize) {
    let letters: Vec<String> = (0..runs).map(letter).collect();
    let mut columns = vec![Column::left("variant"), Column::left("measure")];
    for (at, letter) in letters.iter().enumerate() {
        columns.push(Column::right(letter));
        if at > 0 {
            columns.push(Column::right(""));
        }
    }
    let mut last = "";
    let mut table = Vec::new();
    for row in rows {
        let variant = if row.variant == last { String::new() } else { clipped(&row.variant) };
        last = &row.variant;
        let mut cells = vec![variant, name(row)];
        for (at, cell) in row.cells.iter().enumerate() {
            cells.push(median(row, cell));
            if at > 0 {
                let shown = cell.against.map(|against| {
                    format!("{} {}", ratio(against.ratio, Some(against.interval)), sign(against.verdict))
                });
                cells.push(shown.unwrap_or("–".to_owned()));
            }
        }
        table.push(cells);
    }
    if page.table_if_it_fits(2, &columns, &table) {
        return;
    }
    for row in &table {
        let lead = format!("  {}", row[..2].join(" ").trim());
        page.facts(
            &format!("{lead}{}", " ".repeat(28usize.saturating_sub(width(&lead)).max(2))),
            &row[2..],
            "  ",
        );
    }
}

/// A verdict in a sign.
fn sign(verdict: Verdict) -> char {
    match verdict {
        Verdict::Better => '+',
        Verdict::Worse => '-',
        Verdict::NoDifference => '=',
        Verdict::Differs => '~',
        Verdict::TooFew { .. } | Verdict::Undecided(_) => '?',
        Verdict::NotHuge { .. } | Verdict::NotApplied { .. } => '!',
    }
}

#[cfg(test)]
mod tests;
