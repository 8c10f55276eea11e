//! Tables of a run file, as SQL text: the written text, and the only text that the reader accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pagelab_model::run::{ColumnHeader, Unit};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use crate::error::{Error, ErrorKind};
use crate::reader::{column_integer, column_text, query_each_row};

/// `PGLB`, at byte 68 of the file.
pub(crate) const APPLICATION_ID: u32 = u32::from_be_bytes(*b"PGLB");

/// The schema that is written, and the newest that is read. 2 brought the events.
pub(crate) const VERSION: u32 = 2;

/// One table, and the schema version that brought it.
pub(crate) struct Table {
    pub since_version: u32,
    pub name: &'static str,
    pub sql: &'static str,
}

/// All tables but those of the series. A text that was released never changes: SQLite stores it unchanged,
/// and the reader compares it.
pub(crate) const SCHEMA_TABLES: [Table; 7] = [
    Table {
        since_version: 1,
        name: "manifest",
        sql: "CREATE TABLE manifest(key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    },
    Table {
        since_version: 1,
        name: "series",
        sql: "CREATE TABLE series(id INTEGER PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL)",
    },
    Table {
        since_version: 1,
        name: "series_column",
        sql: "CREATE TABLE series_column(series INTEGER NOT NULL, ordinal INTEGER NOT NULL, \
              name TEXT NOT NULL, table_name TEXT NOT NULL, sql_name TEXT NOT NULL, unit TEXT NOT NULL, \
              is_counter INTEGER NOT NULL, first, PRIMARY KEY(series, ordinal)) WITHOUT ROWID",
    },
    Table {
        since_version: 1,
        name: "stream",
        sql: "CREATE TABLE stream(id INTEGER PRIMARY KEY, name TEXT NOT NULL, unit TEXT NOT NULL, \
              labels TEXT NOT NULL)",
    },
    Table {
        since_version: 1,
        name: "sample",
        sql: "CREATE TABLE sample(stream INTEGER NOT NULL, at_ns INTEGER NOT NULL, value REAL NOT NULL)",
    },
    Table {
        since_version: 1,
        name: "blob",
        sql: "CREATE TABLE blob(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, version INTEGER NOT NULL, \
              name TEXT NOT NULL, at_ns INTEGER NOT NULL, raw_bytes INTEGER NOT NULL, codec TEXT NOT NULL, \
              data BLOB NOT NULL)",
    },
    Table {
        since_version: 2,
        name: "event",
        sql: "CREATE TABLE event(at_ns INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL)",
    },
];

/// Columns of values in one table. SQLite's default bound is 2000 columns; half of it suits tools that show
/// tables, and builds with a lower bound.
pub(crate) const COLUMNS_MAX: usize = 999;

/// Bytes of a name of a series, a column, a stream or a label.
pub(crate) const NAME_MAX: usize = 1024;

/// The column of times in every table of a series.
const TIME_COLUMN: &str = "at_ns";

/// One table of a series, and the names of its columns of values in SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeriesTable {
    pub name: String,
    pub columns: Vec<String>,
}

impl SeriesTable {
    /// The table's text. The time is the key, so that it is stored once and rows are in order.
    pub fn create_sql(&self) -> String {
        let mut sql = format!("CREATE TABLE {}({TIME_COLUMN} INTEGER PRIMARY KEY", quote_name(&self.name));
        for column in &self.columns {
            sql.extend([", ", &quote_name(column), " INTEGER"]);
        }
        sql.push(')');
        sql
    }

    /// Text that inserts one row: the time, then the values.
    pub fn insert_sql(&self) -> String {
        let places = ", ?".repeat(self.columns.len());
        format!("INSERT INTO {} VALUES(?{places})", quote_name(&self.name))
    }

    /// Text that reads all rows in the order of their times.
    pub fn select_sql(&self) -> String {
        format!("SELECT * FROM {} ORDER BY {TIME_COLUMN}", quote_name(&self.name))
    }
}

/// The tables of a new series. `used_names` are the names of all tables so far, in lower case; the new ones
/// are added to it. Names in SQL are case-insensitive (ASCII), so a name in use gets a number.
pub(crate) fn series_tables(
    name: &str,
    headers: &[ColumnHeader],
    used_names: &mut Vec<String>,
) -> Vec<SeriesTable> {
    let table = |part: &[ColumnHeader]| {
        let mut names = vec![TIME_COLUMN.to_owned()];
        let columns = part.iter().map(|head| unique_table_name(&head.name, &mut names)).collect();
        SeriesTable { name: unique_table_name(&format!("series_{name}"), used_names), columns }
    };
    headers.chunks(COLUMNS_MAX).map(table).collect()
}

/// `base_name`, or `wanted_2` and so on: the first that is not taken.
fn unique_table_name(base_name: &str, used_names: &mut Vec<String>) -> String {
    let base_name =
        if base_name.is_empty() { "unnamed".to_owned() } else { base_name.replace('\0', "\u{fffd}") };
    let numbered = (2..).map(|number: u64| format!("{base_name}_{number}"));
    let is_free = |name: &String| !used_names.contains(&name.to_ascii_lowercase());
    let name = std::iter::once(base_name.clone()).chain(numbered).find(is_free).unwrap_or_default();
    used_names.push(name.to_ascii_lowercase());
    name
}

/// A name in double quotes, as SQL takes any.
fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Why a file of this schema version is not read, if it is not.
pub(crate) fn check_version(version: u32) -> Option<(ErrorKind, String)> {
    match version {
        0 => Some((ErrorKind::Damaged, "it is damaged: it has no schema version".to_owned())),
        1..=VERSION => None,
        _ => {
            let own = env!("CARGO_PKG_VERSION");
            let problem = format!(
                "a newer pagelab wrote it with schema version {version}; this one ({own}) reads versions 1 \
                 to {VERSION}; hint: use a newer pagelab"
            );
            Some((ErrorKind::NewerVersion, problem))
        }
    }
}

/// A series without its rows.
pub(crate) struct StoredSeriesHeader {
    pub name: String,
    pub source: String,
    /// The columns, each with its first value.
    pub columns: Vec<(ColumnHeader, Option<i64>)>,
    pub tables: Vec<SeriesTable>,
}

/// Checks the schema, text by text, and the structure of every page; returns what the series are.
pub(crate) fn check_schema(
    path: &Path,
    connection: &Connection,
    version: u32,
) -> Result<Vec<StoredSeriesHeader>, Error> {
    let mut stored_objects = read_schema_objects(path, connection)?;
    let mut check_table = |name: &str, shown: String, sql: &str| match stored_objects.remove(name) {
        Some(stored) if stored == sql => Ok(()),
        Some(_) => Err(Error::malicious(path, format_args!("its table {shown} has a wrong definition"))),
        None => Err(Error::damaged(path, format_args!("its table {shown} is missing"))),
    };
    for table in SCHEMA_TABLES.iter().filter(|table| table.since_version <= version) {
        check_table(table.name, format!("`{}`", table.name), table.sql)?;
    }
    let series = read_series_headers(path, connection)?;
    for table in series.iter().flat_map(|series| &series.tables) {
        check_table(&table.name, format!("{:?}", table.name), &table.create_sql())?;
    }
    if let Some(name) = stored_objects.keys().next() {
        return Err(Error::malicious(path, format_args!("it contains a table {name:?}")));
    }
    check_integrity(path, connection).map(|()| series)
}

/// Checks every page. It evaluates the definitions of columns, so their texts are checked first.
fn check_integrity(path: &Path, connection: &Connection) -> Result<(), Error> {
    let mut verdict = String::new();
    query_each_row(path, connection, "PRAGMA quick_check(1)", |row| {
        verdict = column_text(row, 0)?;
        Ok(())
    })?;
    match &*verdict {
        "ok" => Ok(()),
        problem => {
            Err(Error::damaged(path, format_args!("{INTEGRITY_PROBLEM} ({})", sqlite_detail(problem))))
        }
    }
}

/// Result of a check of all pages: the problem, in a sentence.
const INTEGRITY_PROBLEM: &str = "its contents are inconsistent";

/// Maximum of quoted characters of SQLite's message, which helps only to repair a file.
const SQLITE_DETAIL_MAX: usize = 80;

/// SQLite's words in one line, without the name that it has for every file.
fn sqlite_detail(problem: &str) -> String {
    let lines = problem.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("***"));
    let words = lines.collect::<Vec<_>>().join(", ");
    match words.char_indices().nth(SQLITE_DETAIL_MAX) {
        Some((cut, _)) => format!("{}…", &words[..cut]),
        None => words,
    }
}

/// The text of every table by name; anything else than a table is refused.
fn read_schema_objects(path: &Path, connection: &Connection) -> Result<BTreeMap<String, String>, Error> {
    let mut stored_objects = BTreeMap::new();
    let mut reject = None;
    query_each_row(path, connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema", |row| {
        let (kind, name) = (column_text(row, 0)?, column_text(row, 1)?);
        let sql = match row.get_ref(3) {
            Ok(ValueRef::Text(sql)) => String::from_utf8_lossy(sql).into_owned(),
            _ => String::new(),
        };
        let is_plain = kind == "table" && column_text(row, 2)? == name && sql.starts_with("CREATE TABLE ");
        if !is_plain || stored_objects.insert(name.clone(), sql).is_some() {
            let kind = if is_plain { "second table" } else { &*kind };
            let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            reject.get_or_insert(format!("it contains {article} {kind} {name:?}"));
        }
        Ok(())
    })?;
    match reject {
        Some(problem) => Err(Error::malicious(path, problem)),
        None => Ok(stored_objects),
    }
}

fn read_series_headers(path: &Path, connection: &Connection) -> Result<Vec<StoredSeriesHeader>, Error> {
    let mut headers: BTreeMap<i64, StoredSeriesHeader> = BTreeMap::new();
    query_each_row(path, connection, "SELECT id, name, source FROM series", |row| {
        let (name, source) = (column_text(row, 1)?, column_text(row, 2)?);
        headers.insert(
            column_integer(row, 0)?,
            StoredSeriesHeader { name, source, columns: Vec::new(), tables: Vec::new() },
        );
        Ok(())
    })?;
    let mut names = BTreeSet::new();
    let columns = "SELECT series, ordinal, name, table_name, sql_name, unit, is_counter, first \
                   FROM series_column ORDER BY series, ordinal";
    query_each_row(path, connection, columns, |row| {
        let id = column_integer(row, 0)?;
        let series = headers
            .get_mut(&id)
            .ok_or_else(|| format!("a column refers to series {id}, which does not exist"))?;
        if usize::try_from(column_integer(row, 1)?) != Ok(series.columns.len()) {
            return Err(format!("the columns of series {} are not numbered from 0", series.name));
        }
        let table = column_text(row, 3)?;
        if series.tables.last().is_none_or(|last| last.name != table) {
            if !names.insert(table.clone()) {
                return Err(format!("two series share the table {table:?}"));
            }
            series.tables.push(SeriesTable { name: table, columns: Vec::new() });
        }
        if let Some(last) = series.tables.last_mut() {
            last.columns.push(column_text(row, 4)?);
        }
        series.columns.push(read_column_header(row)?);
        Ok(())
    })?;
    if let Some(empty) = headers.values().find(|series| series.columns.is_empty()) {
        return Err(Error::damaged(path, format_args!("series {} has no columns", empty.name)));
    }
    Ok(headers.into_values().collect())
}

fn read_column_header(row: &Row<'_>) -> Result<(ColumnHeader, Option<i64>), String> {
    let name = column_text(row, 2)?;
    let is_counter = match column_integer(row, 6)? {
        0 => false,
        1 => true,
        other => return Err(format!("`is_counter` of column {name} is {other}")),
    };
    let first = match row.get_ref(7) {
        Ok(ValueRef::Integer(value)) => Some(value),
        Ok(ValueRef::Null | ValueRef::Blob([])) => None,
        _ => return Err(format!("the first value of column {name} is not an integer")),
    };
    Ok((ColumnHeader { name, unit: Unit(column_text(row, 5)?), is_counter }, first))
}
