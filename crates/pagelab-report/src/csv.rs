//! `pagelab report --tables`: a run file as tables, one file per table.
//!
//! Cells are separated by commas and quoted according to RFC 4180, lines end in a line feed, and the first
//! line has the names. An absent value is an empty cell. Control characters in texts are escaped as on the
//! terminal, so a record is a line; a text that a spreadsheet would interpret as a formula begins with an
//! apostrophe.

mod averages;
mod experiment;
mod needs;
mod profile;
mod recording;
mod snapshot;

use std::borrow::Borrow;
use std::collections::BTreeSet;

use pagelab_model::run::Run;
use serde_json::Value;

pub use averages::averages_table;
pub use profile::regions_table;

use crate::fields::Fields;
use crate::style::escape_invisible;

/// One table.
pub struct CsvTable<'a> {
    /// File name; letters, digits and `.-_` only, and unique in the run.
    pub file: String,
    column_names: Vec<String>,
    rows: Box<dyn Iterator<Item = Vec<Value>> + 'a>,
}

type CellFn<'a, R> = Box<dyn Fn(&R) -> Value + 'a>;

/// Columns of a table whose rows are made from an `R`.
struct Columns<'a, R> {
    names: Vec<String>,
    cells: Vec<CellFn<'a, R>>,
}

impl<'a, R: 'a> Columns<'a, R> {
    fn new() -> Columns<'a, R> {
        Columns { names: Vec::new(), cells: Vec::new() }
    }

    /// Adds fields of a part of the row, named as the last word of their path, or as in `column=path`. Of
    /// `path|path`, the first is taken that the row has.
    fn fields<T: 'a, P: Borrow<T> + 'a>(
        self,
        fields: fn() -> Fields<T>,
        paths: &str,
        part: impl Fn(&R) -> Option<P> + Copy + 'a,
    ) -> Self {
        paths.split_whitespace().fold(self, |columns, path| {
            let last = || (path.rsplit('.').next().unwrap_or(path), path);
            let (name, path) = path.split_once('=').unwrap_or_else(last);
            let getters: Vec<_> = path.split('|').map(|path| fields().getter(path)).collect();
            columns.column(name, move |row| {
                let value = part(row).and_then(|of| {
                    let of: &T = of.borrow();
                    getters.iter().map(|get| get(of)).find(|value| !value.is_null())
                });
                value.unwrap_or_default()
            })
        })
    }

    /// Adds a column that no field has.
    fn column(mut self, name: &str, cell: impl Fn(&R) -> Value + 'a) -> Self {
        self.names.push(name.to_owned());
        self.cells.push(Box::new(cell));
        self
    }

    /// Makes a table of rows that are not kept.
    fn collect(self, file: &str, rows: impl Iterator<Item = R> + 'a) -> CsvTable<'static> {
        let CsvTable { file, column_names, rows } = self.table(file, rows);
        CsvTable { file, column_names, rows: Box::new(rows.collect::<Vec<_>>().into_iter()) }
    }

    /// Makes a table whose rows are made one by one.
    fn table(self, file: &str, rows: impl Iterator<Item = R> + 'a) -> CsvTable<'a> {
        let Columns { names, cells } = self;
        let rows = rows.map(move |row| cells.iter().map(|cell| cell(&row)).collect());
        CsvTable { file: format!("{file}.csv"), column_names: names, rows: Box::new(rows) }
    }
}

impl<'a> CsvTable<'a> {
    fn new(file: &str, column_names: &[&str], rows: impl Iterator<Item = Vec<Value>> + 'a) -> CsvTable<'a> {
        let column_names = column_names.iter().map(|&name| name.to_owned()).collect();
        CsvTable { file: format!("{file}.csv"), column_names, rows: Box::new(rows) }
    }

    /// Builds a table of cells that are already formatted; an empty cell has no text.
    pub fn from_texts(file: &str, column_names: &[&str], rows: Vec<Vec<String>>) -> CsvTable<'a> {
        let cell = |of: String| if of.is_empty() { Value::Null } else { of.into() };
        let rows = rows.into_iter().map(move |row| row.into_iter().map(cell).collect());
        CsvTable::new(file, column_names, rows)
    }

    /// Returns the lines of the file with their line ends.
    pub fn into_lines(self) -> impl Iterator<Item = String> + 'a {
        let column_names = self.column_names.into_iter().map(Value::String).collect();
        std::iter::once(column_names).chain(self.rows).map(|cells| format_line(&cells))
    }
}

/// Returns all tables of a run that are not empty.
pub fn list_tables(run: &Run) -> Vec<CsvTable<'_>> {
    let mut tables = recording::recording_tables(run);
    if let Some(snapshot) = &run.snapshot {
        tables.extend(snapshot::snapshot_tables(snapshot));
    }
    if let Some(experiment) = &run.experiment {
        tables.extend(experiment::experiment_tables(experiment));
    }
    tables.extend(run.profile.as_deref().map(|of| regions_table(of, false)));
    let mut used_names = BTreeSet::new();
    for table in &mut tables {
        let stem = table.file.trim_end_matches(".csv");
        table.file = format!("{}.csv", unique_name(stem, &mut used_names));
    }
    tables
}

/// Makes a safe file or directory name from an untrusted name: letters, digits and `.-_`, no leading dot, and
/// different from all names in use, regardless of case.
pub fn unique_name(requested: &str, used_names: &mut BTreeSet<String>) -> String {
    const NAME_CHARS_MAX: usize = 80;
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let plain = requested.chars().take(NAME_CHARS_MAX).map(|sign| if is_plain(sign) { sign } else { '_' });
    let plain: String = plain.collect();
    let name = match plain.trim_start_matches('.') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    };
    // After several tries, a number that is unlikely to be in use, so that many equal names cost as little as
    // a few.
    let numbers = (2..20).chain(used_names.len().max(20)..usize::MAX);
    let numbered = numbers.map(|number| format!("{name}-{number}"));
    let free =
        std::iter::once(name.clone()).chain(numbered).find(|name| !used_names.contains(&name.to_lowercase()));
    let free = free.unwrap_or(name);
    used_names.insert(free.to_lowercase());
    free
}

fn format_line(cells: &[Value]) -> String {
    let mut line = String::new();
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        match cell {
            Value::Null => {}
            Value::String(text) => push_quoted(&mut line, text),
            // The shortest digits that represent exactly this number.
            Value::Number(number) if number.is_f64() => {
                line.push_str(&number.as_f64().map_or(String::new(), |number| format!("{number:?}")));
            }
            literal => line.push_str(&literal.to_string()),
        }
    }
    line.push('\n');
    line
}

fn push_quoted(line: &mut String, text: &str) {
    let text = escape_invisible(text);
    // `=`, `+`, `-` and `@` begin a formula; a number with a sign does not.
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
    let mark = if is_formula { "'" } else { "" };
    // An empty text differs from an absent one, and leading and trailing blanks are kept.
    let is_bare = !text.is_empty() && !text.contains([',', '"']) && text.trim() == text;
    if is_bare {
        line.extend([mark, &text]);
    } else {
        line.extend(["\"", mark, &text.replace('"', "\"\""), "\""]);
    }
}

#[cfg(test)]
mod tests;
