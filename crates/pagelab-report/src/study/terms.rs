//! What the figures of a study mean, and figures that say nothing as they are the same in every run.

use pagelab_metrics::study::{Compared, Row};
use pagelab_model::study::Study;

use super::value;
use crate::text::Page;

/// How figures begin whose names do not say it all, and what they are.
const TERMS: [(&str, &str); 8] = [
    ("success", "share of the huge pages asked for that were got"),
    ("F_u(", "share of free memory that is of no use for a block of that order"),
    ("mixed pageblocks", "share of pageblocks in which a page cannot be moved"),
    ("F_i(", "why such a block was not had: 0 too little memory, 1 fragmentation"),
    ("taken from another list", "blocks that one kind took from the list of another"),
    ("read again", "pages that were reclaimed and then wanted again"),
    ("no room for", "pages that were asked for and not got"),
    ("compilations", "programs of the load that ended meanwhile"),
];

/// A line on those of these figures that are no plain words.
pub(super) fn explain<'r>(page: &mut Page, rows: impl Iterator<Item = &'r Row> + Clone) {
    let there = TERMS.iter().filter(|(begin, _)| rows.clone().any(|row| row.name.starts_with(begin)));
    let mut said: Vec<String> = there
        .map(|(begin, meaning)| match begin.strip_suffix('(') {
            Some(name) => format!("{name}: {meaning}"),
            None => format!("{begin}: {meaning}"),
        })
        .collect();
    if rows.clone().any(|row| row.name.starts_with("F_u(") && row.name.ends_with(" at the end")) {
        said.push("F_u at the end: after the attempts, with what they hold counted as free".to_owned());
    }
    if !said.is_empty() {
        page.gap();
        page.hanging_dim("", &said.join("; "));
    }
}

/// A figure that every run has alike: its name and what it is.
pub(super) struct Same {
    name: String,
    value: String,
}

/// Takes figures out that have one value in all runs of several; in a single run nothing varies.
pub(super) fn without_the_same(study: &Study, found: &mut Compared) -> Vec<Same> {
    let mut same: Vec<Same> = Vec::new();
    if study.trials.len() < 2 {
        return same;
    }
    for row in found.groups.iter_mut().flat_map(|group| group.rows.extract_if(.., |row| is_the_same(row))) {
        let first = row.columns.iter().flatten().find_map(|column| column.values.first());
        let value = first.map_or(String::new(), |(_, number)| value(*number, &row.unit));
        let name = format!("{}/{}", row.phase, row.name);
        if !same.iter().any(|known| known.name == name && known.value == value) {
            same.push(Same { name, value });
        }
    }
    same
}

fn is_the_same(row: &Row) -> bool {
    let all = || row.columns.iter().flatten().flat_map(|column| &column.values).map(|(_, value)| *value);
    let first = all().next();
    row.columns.iter().all(Option::is_some) && all().all(|value| Some(value) == first)
}

/// Those that were taken out, in a line.
pub(super) fn same(page: &mut Page, same: &[Same]) {
    if same.is_empty() {
        return;
    }
    let said: Vec<String> = same.iter().map(|of| format!("{} {}", of.name, of.value)).collect();
    page.gap();
    page.hanging_dim("the same in every run: ", &said.join(", "));
}
