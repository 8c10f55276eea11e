//! A simulated study on the terminal: tables in the shape of a kernel comparison report, figures by phase
//! and a column for each scheme; or what a sweep found.

mod headline;
mod page;
mod paper;
mod sweep;
mod terms;
#[cfg(test)]
mod tests;

use pagelab_metrics::statistics::Statistics;
use pagelab_metrics::study::{Between, Column as Found, Compared, Difference, Group, Row, Says};
use pagelab_model::Bytes;
use pagelab_model::study::{Study, StudyCell, StudySeries};

use crate::run::clipped;
use crate::style::{Style, bytes, count, three_digits};
use crate::text::{Column, Page};

pub use page::page;

/// Columns of a line of small bars.
const BARS: usize = 16;
/// Columns that a name and a unit take at most.
const NAME_MAX: usize = 30;
const UNIT_MAX: usize = 10;
/// Seeds that are listed one by one, where they do not follow each other.
const SEEDS_LISTED: usize = 6;

/// The report of a study.
pub fn render(study: &Study, verbose: bool, style: Style) -> String {
    let mut page = Page::new(style);
    head(&mut page, study);
    if study.trials.is_empty() {
        page.hanging("", "no trial was finished, so there are no figures");
        return page.finish();
    }
    if study.plan.varied.is_empty() {
        compared(&mut page, study, verbose);
    } else {
        sweep::show(&mut page, study, verbose);
    }
    let is_sweep = !study.plan.varied.is_empty();
    if verbose && !is_sweep || study.plan.cells.len() == 1 {
        series(&mut page, study);
    }
    notes(&mut page, study);
    page.finish()
}

fn head(page: &mut Page, study: &Study) {
    let plan = &study.plan;
    if !plan.question.is_empty() {
        page.hanging_bold("", &plan.question);
    }
    let planned = plan.slots().unwrap_or(usize::MAX);
    let done = study.trials.len();
    let of = if done == planned { String::new() } else { format!("{} of ", number(done)) };
    let trials = if planned == 1 { "run" } else { "runs" };
    let facts = [
        match plan.cells.len() {
            1 => cell_name(&plan.cells[0]),
            cells => format!("{} configurations", number(cells)),
        },
        seeds(&plan.seeds),
        format!("{of}{} {trials}", number(planned)),
    ];
    page.facts("", &facts, "   ");
    if done < planned {
        let left = planned - done;
        let are = if left == 1 { "run is" } else { "runs are" };
        let text = format!("{} {are} not there: it was stopped, or is still at work", number(left));
        page.hanging(&format!("{}  ", page.style().alert("NOT WHOLE")), &text);
    }
}

/// `highalloc on x86 under zone+linear`
fn cell_name(cell: &StudyCell) -> String {
    format!("{} under {}", place_name(cell), cell.scheme)
}

/// What all columns of a table have in common.
fn place_name(cell: &StudyCell) -> String {
    let core = cell.kernelcore.map_or(String::new(), |size| format!(", kernelcore {}", bytes(Bytes(size))));
    let parameters: String =
        cell.parameters.iter().map(|(name, value)| format!(", {name} {}", count((*value).into()))).collect();
    format!("{} on {}{core}{parameters}", cell.load, cell.machine)
}

/// `seeds 1 to 20`
fn seeds(seeds: &[u64]) -> String {
    let follow = seeds.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    match seeds {
        [] => "no seeds".to_owned(),
        [one] => format!("seed {one}"),
        [first, .., last] if follow => format!("seeds {first} to {last}"),
        seeds if seeds.len() <= SEEDS_LISTED => {
            let listed: Vec<String> = seeds.iter().map(u64::to_string).collect();
            format!("seeds {}", listed.join(", "))
        }
        seeds => format!("{} seeds", number(seeds.len())),
    }
}

fn number(of: usize) -> String {
    count(of as u128)
}

fn compared(page: &mut Page, study: &Study, verbose: bool) {
    let mut found = Compared::of(study);
    if !verbose && headline::is_long(study, &found) {
        headline::show(page, study, &found);
        // Of all differences, which are not shown.
        found.by_chance = (0, 0.0);
        return how_to_read(page, study, &found);
    }
    let same = terms::without_the_same(study, &mut found);
    let is_alone = study.plan.cells.len() == 1;
    for group in found.groups.iter().filter(|group| !group.rows.is_empty()) {
        page.gap();
        let first = group.cells.first().map(|&cell| &study.plan.cells[cell]);
        if let Some(cell) = first.filter(|_| !is_alone) {
            page.hanging_bold("", &place_name(cell));
        }
        table(page, study, group, &group.cells, figure);
        let others = group.cells.get(1..).unwrap_or_default();
        if let Some(cell) = first.filter(|_| !others.is_empty()) {
            page.gap();
            page.hanging_bold("", &format!("difference to {}, seed by seed", cell.scheme));
            table(page, study, group, others, |row, found| difference(row, found.difference.as_ref()));
        }
    }
    terms::same(page, &same);
    terms::explain(page, found.groups.iter().flat_map(|group| &group.rows));
    how_to_read(page, study, &found);
}

fn how_to_read(page: &mut Page, study: &Study, found: &Compared) {
    page.gap();
    let seeds = study.plan.seeds.len();
    if seeds > 1 && seeds < pagelab_metrics::effect::PAIRS_MIN {
        let text = format!(
            "{seeds} seeds: the middle one of each figure; for intervals and a verdict take 6 seeds or more"
        );
        page.hanging_dim("", &text);
    } else if seeds > 1 {
        let columns =
            found.groups.iter().flat_map(|of| &of.rows).flat_map(|row| row.columns.iter().flatten());
        let level = columns.filter_map(|column| Some(column.interval?.level)).fold(1.0, f64::min);
        let text = format!("median over seeds ({} interval of it, by order statistics)", per_cent(level));
        page.hanging_dim("", &text);
    }
    if found.judged > 0 {
        let (wide, missed) = found.by_chance;
        let by_chance = match wide {
            0..20 => String::new(),
            wide => format!(". Of {} intervals about {missed:.0} miss by chance", number(wide)),
        };
        let columns =
            found.groups.iter().flat_map(|of| &of.rows).flat_map(|row| row.columns.iter().flatten());
        let level = columns.filter_map(|column| Some(column.difference?.interval?.level)).fold(1.0, f64::min);
        let text = format!(
            "differences: the middle of all averages of two ({} interval by Wilcoxon's signed ranks); \
             \"none seen\" where 0 lies in it{by_chance}",
            per_cent(level)
        );
        page.hanging_dim("", &text);
    }
}

/// The level of an interval, with its decimal, which `style::percent` leaves out: `96.9 %`.
fn per_cent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Figures by phase, a column for each of these cells; as many tables as are needed to fit.
fn table(
    page: &mut Page,
    study: &Study,
    group: &Group,
    cells: &[usize],
    show: impl Fn(&Row, &Found) -> String,
) {
    let places: Vec<usize> =
        cells.iter().filter_map(|cell| group.cells.iter().position(|of| of == cell)).collect();
    let mut left = &places[..];
    while !left.is_empty() {
        let mut taken = left.len();
        while taken > 1 && width(page, study, group, &left[..taken], &show) > page.style().width {
            taken -= 1;
        }
        let (columns, rows) = laid_out(study, group, &left[..taken], &show);
        let columns: Vec<Column> = heads(&columns);
        page.table(0, &columns, &rows);
        left = &left[taken..];
        if !left.is_empty() {
            page.gap();
        }
    }
}

fn heads(names: &[String]) -> Vec<Column<'_>> {
    let columns = names.iter().enumerate();
    columns.map(|(at, name)| if at < 2 { Column::left(name) } else { Column::right(name) }).collect()
}

fn width(
    page: &Page,
    study: &Study,
    group: &Group,
    places: &[usize],
    show: &impl Fn(&Row, &Found) -> String,
) -> usize {
    let (columns, rows) = laid_out(study, group, places, show);
    page.table_width(0, &heads(&columns), &rows)
}

fn laid_out(
    study: &Study,
    group: &Group,
    places: &[usize],
    show: &impl Fn(&Row, &Found) -> String,
) -> (Vec<String>, Vec<Vec<String>>) {
    let scheme = |&place: &usize| clipped(&study.plan.cells[group.cells[place]].scheme, NAME_MAX);
    let columns: Vec<String> =
        [String::new(), "unit".to_owned()].into_iter().chain(places.iter().map(scheme)).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut phase = None;
    for row in &group.rows {
        if phase != Some(&row.phase) {
            rows.push(vec![clipped(&row.phase, NAME_MAX)]);
            phase = Some(&row.phase);
        }
        let cell = |&place: &usize| {
            row.columns.get(place).and_then(Option::as_ref).map_or("–".to_owned(), |found| show(row, found))
        };
        let head = [format!("  {}", clipped(&row.name, NAME_MAX)), clipped(&row.unit, UNIT_MAX)];
        rows.push(head.into_iter().chain(places.iter().map(cell)).collect());
    }
    (columns, rows)
}

/// A value of a figure, on the terminal and in pages alike: shares with three decimals, counts as they are
/// up to 100 000, and three digits of larger ones. The median of an even number of seeds may lie half way
/// between two counts, which is shown.
pub(crate) fn value(value: f64, unit: &str) -> String {
    let is_share = unit == "share";
    let is_half = value.abs().fract() == 0.5;
    match value.abs() {
        _ if is_share => format!("{value:.3}"),
        size if size >= 999_500.0 => format!("{} M", three_digits(value / 1e6)),
        size if size >= 99_950.0 => format!("{} k", three_digits(value / 1e3)),
        size if size == size.trunc() || size >= 100.0 || is_half => {
            let sign = if value < 0.0 { "-" } else { "" };
            match is_half {
                true => format!("{sign}{}.5", count(size.trunc() as u128)),
                false => format!("{sign}{}", count(size.round() as u128)),
            }
        }
        _ => three_digits(value),
    }
}

fn figure(row: &Row, found: &Found) -> String {
    spanned(found.median, found.interval.map(|of| (of.low, of.high)), &row.unit)
}

/// A value with its interval: `120.5 (118…122)`.
pub(crate) fn spanned(middle: f64, interval: Option<(f64, f64)>, unit: &str) -> String {
    let between = |(low, high)| within(value(low, unit), value(high, unit));
    format!("{}{}", value(middle, unit), interval.map_or(String::new(), between))
}

/// The ends of an interval, where they look different.
fn within(low: String, high: String) -> String {
    if low == high { String::new() } else { format!(" ({low}…{high})") }
}

fn signed(number: f64, unit: &str) -> String {
    // What three decimals would show as 0 and is none.
    if unit == "share" && number != 0.0 && number.abs() < 0.0005 {
        let sign = if number > 0.0 { '+' } else { '−' };
        let decimals = if number.abs() < 0.000_05 { 6 } else { 4 };
        return format!("{sign}{:.decimals$}", number.abs());
    }
    match number {
        0.0 => value(0.0, unit),
        number if number > 0.0 => format!("+{}", value(number, unit)),
        number => format!("−{}", value(-number, unit)),
    }
}

fn difference(row: &Row, found: Option<&Difference>) -> String {
    let Some(found) = found else { return "no pair".to_owned() };
    let unit = row.unit.as_str();
    let between = |of: Between| within(signed(of.low, unit), signed(of.high, unit));
    let within = found.interval.map_or(String::new(), between);
    match found.says {
        Says::Same => "the same".to_owned(),
        Says::TooFew => signed(found.middle, unit),
        Says::NotSeen => format!("none seen{within}"),
        Says::More | Says::Less => format!("{}{within}", signed(found.middle, unit)),
    }
}

/// Lines of the first seed of each cell.
fn series(page: &mut Page, study: &Study) {
    let cells = study.plan.cells.len().max(1);
    let firsts = study.trials.iter().filter(|trial| trial.slot < cells && !trial.series.is_empty());
    for trial in firsts {
        page.gap();
        let seed = study.plan.seeds.first().copied().unwrap_or_default();
        let name = cell_name(&study.plan.cells[trial.slot % cells]);
        page.hanging_bold("", &format!("{name}, seed {seed}"));
        let overs = trial.series.iter().map(|of| of.over.as_str());
        let over = overs.clone().next().filter(|first| overs.clone().all(|over| over == *first));
        let rows: Vec<Vec<String>> =
            trial.series.iter().map(|of| line(of, over.is_none(), page.style())).collect();
        let title = over.map_or(String::new(), |over| format!("over {over}"));
        let columns = [
            Column::left(""),
            Column::left(&title),
            Column::right("least"),
            Column::right("median"),
            Column::right("most"),
            Column::right("last"),
        ];
        page.table(0, &columns, &rows);
    }
}

fn line(of: &StudySeries, with_over: bool, style: Style) -> Vec<String> {
    let points: Vec<(u64, f64)> = of.points.iter().map(|&(at, value)| (at, value as f64 / 1e6)).collect();
    let name = if with_over { format!("{} over {}", of.name, of.over) } else { of.name.clone() };
    let name = clipped(&name, NAME_MAX);
    let bars = crate::run::spark::line(&points, BARS, style);
    let Some(found) = Statistics::of(points.iter().map(|point| point.1).collect()) else {
        return vec![name, "nothing".to_owned()];
    };
    let last = points.last().map_or(0.0, |point| point.1);
    let numbers = [found.min, found.median, found.max, last].map(|value| format!("{value:.3}"));
    [name, bars].into_iter().chain(numbers).collect()
}

/// What loads say beside their figures, each sentence once, and what else is in the file.
fn notes(page: &mut Page, study: &Study) {
    let mut said: Vec<&str> = Vec::new();
    for note in study.trials.iter().flat_map(|trial| &trial.notes) {
        if !said.contains(&note.as_str()) {
            said.push(note);
        }
    }
    let pictures: usize = study.trials.iter().map(|trial| trial.pictures.len()).sum();
    if !said.is_empty() || pictures > 0 {
        page.gap();
    }
    said.iter().for_each(|note| page.hanging("note: ", note));
    if pictures > 0 {
        let s = if pictures == 1 { "" } else { "s" };
        let text = format!("{} picture{s} of memory, of the first seed: in the file", number(pictures));
        page.hanging("", &text);
    }
}
