//! Whether a file holds our tables and nothing else. Nothing but them is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pagelab_model::run::{ColumnHead, Unit};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use crate::error::Error;
use crate::reader::{each, integer, text};
use crate::schema::{SeriesTable, TABLES};

/// A series without its rows.
pub(crate) struct SeriesHead {
    pub name: String,
    pub source: String,
    /// The columns, each with its first value.
    pub columns: Vec<(ColumnHead, Option<i64>)>,
    pub tables: Vec<SeriesTable>,
}

/// Checks the schema, text by text, and the structure of every page; returns what the series are.
pub(crate) fn check(path: &Path, connection: &Connection, version: u32) -> Result<Vec<SeriesHead>, Error> {
    let mut found = objects(path, connection)?;
    for table in TABLES.iter().filter(|table| table.since <= version) {
        match found.remove(table.name) {
            Some(sql) if sql == table.sql => {}
            Some(_) => {
                let problem = format_args!("its table `{}` is not as pagelab makes it", table.name);
                return Err(Error::hostile(path, problem));
            }
            None => return Err(Error::damaged(path, format_args!("its table `{}` is missing", table.name))),
        }
    }
    let series = series(path, connection)?;
    let tables: Vec<&SeriesTable> = series.iter().flat_map(|series| &series.tables).collect();
    for table in &tables {
        match found.remove(&table.name) {
            Some(sql) if sql == table.create() => {}
            Some(_) => {
                let problem = format_args!("its table {:?} is not as pagelab makes it", table.name);
                return Err(Error::hostile(path, problem));
            }
            None => return Err(Error::damaged(path, format_args!("its table {:?} is missing", table.name))),
        }
    }
    if let Some(name) = found.keys().next() {
        return Err(Error::hostile(path, format_args!("it holds a table {name:?}")));
    }
    structure(path, connection).map(|()| series)
}

/// Checks every page. It evaluates what tables say about their columns, so it comes after their texts.
fn structure(path: &Path, connection: &Connection) -> Result<(), Error> {
    let mut verdict = String::new();
    each(path, connection, "PRAGMA quick_check(1)", |row| {
        verdict = text(row, 0)?;
        Ok(())
    })?;
    match &*verdict {
        "ok" => Ok(()),
        problem => Err(Error::damaged(path, format_args!("{PAGES} ({})", detail(problem)))),
    }
}

/// What a check of all pages finds wrong, in a sentence.
const PAGES: &str = "its parts do not fit together";

/// Characters of SQLite's own words that are quoted: they help whoever repairs files, and nobody else.
const DETAIL_MAX: usize = 80;

/// SQLite's words in one line, without the name that it has for every file.
fn detail(problem: &str) -> String {
    let lines = problem.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("***"));
    let words = lines.collect::<Vec<_>>().join(", ");
    match words.char_indices().nth(DETAIL_MAX) {
        Some((cut, _)) => format!("{}…", &words[..cut]),
        None => words,
    }
}

/// The text of every table by name; anything else than a table is refused.
fn objects(path: &Path, connection: &Connection) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    let mut wrong = None;
    each(path, connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema", |row| {
        let (kind, name) = (text(row, 0)?, text(row, 1)?);
        let sql = match row.get_ref(3) {
            Ok(ValueRef::Text(sql)) => String::from_utf8_lossy(sql).into_owned(),
            _ => String::new(),
        };
        let is_plain = kind == "table" && text(row, 2)? == name && sql.starts_with("CREATE TABLE ");
        if !is_plain || found.insert(name.clone(), sql).is_some() {
            let kind = if is_plain { "second table" } else { &*kind };
            let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            wrong.get_or_insert(format!("it holds {article} {kind} {name:?}"));
        }
        Ok(())
    })?;
    match wrong {
        Some(problem) => Err(Error::hostile(path, problem)),
        None => Ok(found),
    }
}

fn series(path: &Path, connection: &Connection) -> Result<Vec<SeriesHead>, Error> {
    let mut heads: BTreeMap<i64, SeriesHead> = BTreeMap::new();
    each(path, connection, "SELECT id, name, source FROM series", |row| {
        let (name, source) = (text(row, 1)?, text(row, 2)?);
        heads.insert(integer(row, 0)?, SeriesHead { name, source, columns: Vec::new(), tables: Vec::new() });
        Ok(())
    })?;
    let mut names = BTreeSet::new();
    let columns = "SELECT series, ordinal, name, table_name, sql_name, unit, is_counter, first \
                   FROM series_column ORDER BY series, ordinal";
    each(path, connection, columns, |row| {
        let id = integer(row, 0)?;
        let series =
            heads.get_mut(&id).ok_or_else(|| format!("a column is of series {id}, which is not there"))?;
        if usize::try_from(integer(row, 1)?) != Ok(series.columns.len()) {
            return Err(format!("the columns of series {} are not counted from 0 on", series.name));
        }
        let table = text(row, 3)?;
        if series.tables.last().is_none_or(|last| last.name != table) {
            if !names.insert(table.clone()) {
                return Err(format!("two series have the table {table:?}"));
            }
            series.tables.push(SeriesTable { name: table, columns: Vec::new() });
        }
        if let Some(last) = series.tables.last_mut() {
            last.columns.push(text(row, 4)?);
        }
        series.columns.push(column(row)?);
        Ok(())
    })?;
    if let Some(empty) = heads.values().find(|series| series.columns.is_empty()) {
        return Err(Error::damaged(path, format_args!("series {} has no columns", empty.name)));
    }
    Ok(heads.into_values().collect())
}

fn column(row: &Row<'_>) -> Result<(ColumnHead, Option<i64>), String> {
    let name = text(row, 2)?;
    let is_counter = match integer(row, 6)? {
        0 => false,
        1 => true,
        other => return Err(format!("`is_counter` of column {name} is {other}")),
    };
    let first = match row.get_ref(7) {
        Ok(ValueRef::Integer(value)) => Some(value),
        Ok(ValueRef::Null | ValueRef::Blob([])) => None,
        _ => return Err(format!("the first value of column {name} is not an integer")),
    };
    Ok((ColumnHead { name, unit: Unit(text(row, 5)?), is_counter }, first))
}
