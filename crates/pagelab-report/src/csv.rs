//! `pagelab report --csv`: a run file as tables, one file each.
//!
//! Cells are separated by commas and quoted as RFC 4180 says, lines end in a line feed, and the first line
//! has the names. What is absent is an empty cell. Texts are spelt out as on the terminal, so a record is a
//! line; a text that a spreadsheet would take for a formula has an apostrophe in front.

mod averages;
mod experiment;
mod look;
mod measured;
mod needs;
mod profile;
mod study;

use std::collections::BTreeSet;

use pagelab_model::run::Run;

pub use averages::usage;
pub use profile::profile;

use crate::style::spelt;

/// One table.
pub struct Table<'a> {
    /// The name of its file; letters, digits and `.-_` only, and unlike all others of the run.
    pub file: String,
    head: Vec<String>,
    rows: Box<dyn Iterator<Item = Vec<Cell>> + 'a>,
}

/// One value.
enum Cell {
    /// Absent.
    Empty,
    Text(String),
    /// A number or a truth value, as it stands in the file.
    Plain(String),
}

impl<'a> Table<'a> {
    fn new(file: &str, head: &[&str], rows: impl Iterator<Item = Vec<Cell>> + 'a) -> Table<'a> {
        let head = head.iter().map(|&name| name.to_owned()).collect();
        Table { file: format!("{file}.csv"), head, rows: Box::new(rows) }
    }

    /// A table of what is written already; in an empty cell nothing is.
    pub fn of_texts(file: &str, head: &[&str], rows: Vec<Vec<String>>) -> Table<'a> {
        let cell = |of: String| if of.is_empty() { Cell::Empty } else { Cell::Text(of) };
        Table::new(file, head, rows.into_iter().map(move |row| row.into_iter().map(cell).collect()))
    }

    /// The lines of the file, each with its end.
    pub fn lines(self) -> impl Iterator<Item = String> + 'a {
        let head = self.head.into_iter().map(Cell::Text).collect();
        std::iter::once(head).chain(self.rows).map(|cells| line(&cells))
    }
}

/// All tables of a run that have something in them.
pub fn tables(run: &Run) -> Vec<Table<'_>> {
    let mut tables = measured::tables(run);
    if let Some(snapshot) = &run.snapshot {
        tables.extend(look::tables(snapshot));
    }
    if let Some(experiment) = &run.experiment {
        tables.extend(experiment::tables(experiment));
    }
    tables.extend(run.profile.as_deref().map(|of| profile(of, false)));
    tables.extend(run.study.as_deref().map(study::tables).unwrap_or_default());
    let mut taken = BTreeSet::new();
    for table in &mut tables {
        let stem = table.file.trim_end_matches(".csv");
        table.file = format!("{}.csv", free_name(stem, &mut taken));
    }
    tables
}

/// A name for a file or folder out of a name that somebody else chose: letters, digits and `.-_`, no dot in
/// front, and none that is taken, whatever the case of its letters.
pub fn free_name(wanted: &str, taken: &mut BTreeSet<String>) -> String {
    const LONGEST: usize = 80;
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let plain = wanted.chars().take(LONGEST).map(|sign| if is_plain(sign) { sign } else { '_' });
    let plain: String = plain.collect();
    let name = match plain.trim_start_matches('.') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    };
    // Past some tries a number that can hardly be taken, so that many equal names cost no more than few.
    let numbers = (2..20).chain(taken.len().max(20)..usize::MAX);
    let numbered = numbers.map(|number| format!("{name}-{number}"));
    let free =
        std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(&name.to_lowercase()));
    let free = free.unwrap_or(name);
    taken.insert(free.to_lowercase());
    free
}

fn line(cells: &[Cell]) -> String {
    let mut line = String::new();
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        match cell {
            Cell::Empty => {}
            Cell::Plain(text) => line.push_str(text),
            Cell::Text(text) => push_text(&mut line, text),
        }
    }
    line.push('\n');
    line
}

fn push_text(line: &mut String, text: &str) {
    let text = spelt(text);
    // `=`, `+`, `-` and `@` begin a formula; a number with a sign is none.
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
    let mark = if is_formula { "'" } else { "" };
    // An empty text is not an absent one, and blanks at the ends stay what they are.
    let is_bare = !text.is_empty() && !text.contains([',', '"']) && text.trim() == text;
    if is_bare {
        line.extend([mark, &text]);
    } else {
        line.extend(["\"", mark, &text.replace('"', "\"\""), "\""]);
    }
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn number(number: impl std::fmt::Display) -> Cell {
    Cell::Plain(number.to_string())
}

/// The shortest digits that are this very number.
fn real(number: f64) -> Cell {
    Cell::Plain(format!("{number:?}"))
}

fn truth(is_so: bool) -> Cell {
    Cell::Plain(is_so.to_string())
}

fn option<T>(value: Option<T>, show: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or(Cell::Empty, show)
}

#[cfg(test)]
mod tests;
