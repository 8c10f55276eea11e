//! What a comparison comes to, in its first lines: one figure by scheme and phase, and a sentence.

use pagelab_metrics::study::{Column as Found, Compared, Group, MIXED, Row, SUCCESS, Says, UNUSABLE};
use pagelab_model::study::{Study, StudyFigure};

use super::{NAME_MAX, difference, figure, number, place_name, terms, value};
use crate::run::clipped;
use crate::text::{Column, Page};

/// Figures that are shown whole without being asked for.
const FIGURES_MAX: usize = 8;
/// Phases that are shown, the last ones.
const PHASES_MAX: usize = 3;

/// Phases of which F_u is shown, the last ones.
const UNUSABLE_MAX: usize = 2;
/// A difference of shares below this does not matter: one huge page of two gigabytes.
const MATTERS: f64 = 0.001;
/// Where less than this share of memory is free, or less than so many huge pages, F_u says little.
const LITTLE: f64 = 0.05;
const LITTLE_BLOCKS: u64 = 32;
/// The figure that says how much is free, of all frames.
const FREE: &str = "pages: free";

/// Whether there is more than fits on a screen.
pub(super) fn is_long(study: &Study, found: &Compared) -> bool {
    let figures: usize = found.groups.iter().map(|group| group.rows.len()).sum();
    study.plan.cells.len() > 1 && figures > FIGURES_MAX
}

/// The headline of each table.
pub(super) fn show(page: &mut Page, study: &Study, found: &Compared) {
    let mut shown: Vec<&Row> = Vec::new();
    for group in found.groups.iter().filter(|group| !group.rows.is_empty()) {
        page.gap();
        if let Some(cell) = group.cells.first().and_then(|&cell| study.plan.cells.get(cell)) {
            page.hanging_bold("", &place_name(cell));
        }
        for (at, rows) in picked(group).into_iter().enumerate() {
            if at > 0 {
                page.gap();
            }
            table(page, study, group, &rows);
            if let Some(last) = rows.last() {
                let little = rows.iter().filter_map(|row| little_free(study, group, row));
                little.for_each(|text| page.hanging("", &text));
                page.hanging("", &sentence(study, group, last));
            }
            shown.extend(rows);
        }
    }
    terms::explain(page, shown.iter().copied());
    let all: usize = found.groups.iter().map(|group| group.rows.len()).sum();
    page.gap();
    page.line(format!("→ -v   all {} figures and the differences of each", number(all)));
}

/// The figures to show: what came of huge pages, how much of free memory was of no use at the end, and where
/// what cannot be moved lies; of other loads the first of each phase.
fn picked(group: &Group) -> Vec<Vec<&Row>> {
    let named = |is_it: &dyn Fn(&str) -> bool| -> Vec<&Row> {
        group.rows.iter().filter(|row| is_it(&row.name)).collect()
    };
    let unusable = named(&|name| name.starts_with(UNUSABLE)).pop().map_or("", |row| &row.name);
    let mut all = vec![
        last(named(&|name| name == SUCCESS), PHASES_MAX),
        last(named(&|name| name == unusable), UNUSABLE_MAX),
        last(named(&|name| name == MIXED), 1),
    ];
    all.retain(|rows| !rows.is_empty());
    if all.is_empty() {
        let firsts = group.rows.chunk_by(|one, other| one.phase == other.phase);
        all = firsts.filter_map(|rows| rows.first().map(|row| vec![row])).collect();
        all = last(all, PHASES_MAX);
    }
    all
}

fn last<T>(mut all: Vec<T>, most: usize) -> Vec<T> {
    all.drain(..all.len().saturating_sub(most));
    all
}

/// A line for each scheme and a column for each phase; without intervals where they do not fit.
fn table(page: &mut Page, study: &Study, group: &Group, rows: &[&Row]) {
    let lead = common_words(rows);
    let heads: Vec<String> = rows
        .iter()
        .map(|row| {
            let phase = row.phase.get(lead..).unwrap_or(&row.phase);
            let name = if rows.len() == 1 { format!("{}: {phase}", row.name) } else { phase.to_owned() };
            clipped(&name, NAME_MAX)
        })
        .collect();
    let title = rows.first().filter(|_| rows.len() > 1).map_or("", |row| row.name.as_str());
    let columns: Vec<Column> =
        [Column::left(title)].into_iter().chain(heads.iter().map(|head| Column::right(head))).collect();
    let lines = |show: &dyn Fn(&Row, &Found) -> String| -> Vec<Vec<String>> {
        let line = |place: usize| {
            let cell = |row: &&Row| {
                let found = row.columns.get(place).and_then(Option::as_ref);
                found.map_or("–".to_owned(), |found| show(row, found))
            };
            [scheme(study, group, place)].into_iter().chain(rows.iter().map(cell)).collect()
        };
        (0..group.cells.len()).map(line).collect()
    };
    let bare = |row: &Row, found: &Found| value(found.median, &row.unit);
    if !page.table_if_it_fits(2, &columns, &lines(&figure)) {
        page.table(2, &columns, &lines(&bare));
    }
}

/// Bytes of whole words with which all phases begin: the load's name.
fn common_words(rows: &[&Row]) -> usize {
    let Some(first) = rows.first().filter(|_| rows.len() > 1) else { return 0 };
    let ends = first.phase.match_indices(' ').map(|(at, _)| at + 1);
    let is_common = |end: &usize| rows.iter().all(|row| row.phase.starts_with(&first.phase[..*end]));
    ends.take_while(is_common).last().unwrap_or(0)
}

fn scheme(study: &Study, group: &Group, place: usize) -> String {
    let cell = group.cells.get(place).and_then(|&cell| study.plan.cells.get(cell));
    cell.map_or(String::new(), |cell| clipped(&cell.scheme, NAME_MAX))
}

/// `success, at rest, against standard: list +0.092 (+0.077…+0.100), zone none seen.`
fn sentence(study: &Study, group: &Group, row: &Row) -> String {
    let columns = || row.columns.iter().enumerate().filter_map(|(at, of)| Some((at, of.as_ref()?)));
    let judged: Vec<(usize, &Found, Says)> =
        columns().filter_map(|(at, of)| Some((at, of, of.difference?.says))).collect();
    if judged.is_empty() {
        return String::new();
    }
    let said: Vec<String> = judged
        .iter()
        .map(|(at, of, _)| {
            format!("{} {}", scheme(study, group, *at), difference(row, of.difference.as_ref()))
        })
        .collect();
    let is_seen = judged.iter().any(|(_, _, says)| matches!(says, Says::More | Says::Less));
    let least = if row.unit == "share" { MATTERS } else { 0.0 };
    let matters = |of: &Found| of.difference.is_some_and(|found| found.middle.abs() >= least);
    let end = if little_free(study, group, row).is_some() {
        String::new()
    } else if judged.iter().any(|(_, of, says)| matches!(says, Says::More | Says::Less) && matters(of)) {
        first_of(study, group, row, least)
    } else if is_seen {
        format!("; differences below {MATTERS} do not matter")
    } else if judged.iter().any(|(_, _, says)| *says == Says::TooFew) {
        "; too few seeds for a verdict".to_owned()
    } else {
        "; no difference is seen".to_owned()
    };
    format!("{} against {}: {}{end}", row.phase, scheme(study, group, 0), said.join(", "))
}

/// `; list2 has the most`, with all that are as near to it as does not matter; of what is bad, the least.
fn first_of(study: &Study, group: &Group, row: &Row, least: f64) -> String {
    let is_bad = row.name.starts_with(UNUSABLE) || row.name == MIXED;
    let ends = || row.columns.iter().enumerate().filter_map(|(at, of)| Some((at, of.as_ref()?.median)));
    let better = |one: f64, other: f64| if is_bad { one < other } else { one > other };
    let Some(best) =
        ends().map(|(_, end)| end).reduce(|one, next| if better(next, one) { next } else { one })
    else {
        return String::new();
    };
    let near = ends().filter(|(_, end)| *end == best || (end - best).abs() < least);
    let names: Vec<String> = near.map(|(at, _)| scheme(study, group, at)).collect();
    let have = if names.len() == 1 { "has" } else { "have" };
    format!("; {} {have} the {}", names.join(" and "), if is_bad { "least" } else { "most" })
}

/// Where so little memory was free that F_u says little, and how little.
fn little_free(study: &Study, group: &Group, row: &Row) -> Option<String> {
    let order: u32 = row.name.strip_prefix(UNUSABLE)?.split_once(')')?.0.parse().ok()?;
    let is_in = |slot: usize| study.plan.slot(slot).is_some_and(|(cell, _)| group.cells.contains(&cell));
    let trials = study.trials.iter().filter(|trial| is_in(trial.slot));
    let is_it = |of: &&StudyFigure| of.phase == row.phase && of.name == FREE;
    let mut free: Vec<&StudyFigure> = trials.flat_map(|trial| trial.figures.iter().filter(is_it)).collect();
    free.sort_by(|one, other| one.number().total_cmp(&other.number()));
    let blocks = |of: &StudyFigure| of.value.checked_shr(order).unwrap_or(0);
    let (least, most, middle) = (free.first()?, free.last()?, free.get(free.len() / 2)?);
    let is_little = middle.number() < LITTLE || blocks(middle) < LITTLE_BLOCKS;
    is_little.then(|| {
        let percent = |of: &StudyFigure| format!("{:.1}", of.number() * 100.0);
        let span = |low: String, high: String| if low == high { low } else { format!("{low} to {high}") };
        format!(
            "{}: little memory is free, {} %, as much as {} huge pages: F_u says little of it",
            row.phase,
            span(percent(least), percent(most)),
            span(super::count(blocks(least).into()), super::count(blocks(most).into()))
        )
    })
}
