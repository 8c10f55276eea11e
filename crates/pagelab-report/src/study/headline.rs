//! What a comparison comes to, in its first lines: one figure by scheme and phase, and a sentence.

use pagelab_metrics::study::{Column as Found, Compared, Group, Row, Says};
use pagelab_model::study::Study;

use super::{NAME_MAX, difference, figure, number, place_name, terms, value};
use crate::run::clipped;
use crate::text::{Column, Page};

/// Figures that are shown whole without being asked for.
const FIGURES_MAX: usize = 8;
/// Phases that are shown, the last ones.
const PHASES_MAX: usize = 3;

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

/// The figures to show: what came of huge pages, and how much of free memory was of no use at the end; of
/// other loads the first of each phase.
fn picked(group: &Group) -> Vec<Vec<&Row>> {
    let success: Vec<&Row> = group.rows.iter().filter(|row| row.name == "success").collect();
    let unusable: Vec<&Row> = group.rows.iter().filter(|row| row.name.starts_with("F_u(")).collect();
    let mut all = vec![last(success, PHASES_MAX), last(unusable, 1)];
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
    let ends = || columns().map(|(at, of)| (of.median, at));
    let most = ends().reduce(|best, next| if next.0 > best.0 { next } else { best });
    let is_seen = judged.iter().any(|(_, _, says)| matches!(says, Says::More | Says::Less));
    let end = match most {
        Some((_, at)) if is_seen => format!("; {} has the most", scheme(study, group, at)),
        _ if judged.iter().any(|(_, _, says)| *says == Says::TooFew) => {
            "; too few seeds for a verdict".to_owned()
        }
        _ => "; no difference is seen".to_owned(),
    };
    format!("{} against {}: {}{end}", row.phase, scheme(study, group, 0), said.join(", "))
}
