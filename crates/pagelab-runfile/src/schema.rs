//! The tables of a run file, as SQL text: what is written, and the only text that is accepted back.

use pagelab_model::run::ColumnHead;

use crate::error::ErrorKind;

/// `PGLB`, at byte 68 of the file.
pub(crate) const APPLICATION_ID: u32 = u32::from_be_bytes(*b"PGLB");

/// The schema that is written, and the newest that is read. 2 brought the events.
pub(crate) const VERSION: u32 = 2;

/// One table, and the schema version that brought it.
pub(crate) struct Table {
    pub since: u32,
    pub name: &'static str,
    pub sql: &'static str,
}

/// All tables but those of the series. A text that has been written stands for ever: SQLite keeps it as it
/// is, and the reader compares it.
pub(crate) const TABLES: [Table; 7] = [
    Table {
        since: 1,
        name: "manifest",
        sql: "CREATE TABLE manifest(key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    },
    Table {
        since: 1,
        name: "series",
        sql: "CREATE TABLE series(id INTEGER PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL)",
    },
    Table {
        since: 1,
        name: "series_column",
        sql: "CREATE TABLE series_column(series INTEGER NOT NULL, ordinal INTEGER NOT NULL, \
              name TEXT NOT NULL, table_name TEXT NOT NULL, sql_name TEXT NOT NULL, unit TEXT NOT NULL, \
              is_counter INTEGER NOT NULL, first, PRIMARY KEY(series, ordinal)) WITHOUT ROWID",
    },
    Table {
        since: 1,
        name: "stream",
        sql: "CREATE TABLE stream(id INTEGER PRIMARY KEY, name TEXT NOT NULL, unit TEXT NOT NULL, \
              labels TEXT NOT NULL)",
    },
    Table {
        since: 1,
        name: "sample",
        sql: "CREATE TABLE sample(stream INTEGER NOT NULL, at_ns INTEGER NOT NULL, value REAL NOT NULL)",
    },
    Table {
        since: 1,
        name: "blob",
        sql: "CREATE TABLE blob(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, version INTEGER NOT NULL, \
              name TEXT NOT NULL, at_ns INTEGER NOT NULL, raw_bytes INTEGER NOT NULL, codec TEXT NOT NULL, \
              data BLOB NOT NULL)",
    },
    Table {
        since: 2,
        name: "event",
        sql: "CREATE TABLE event(at_ns INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL)",
    },
];

/// Columns of values in one table. SQLite's default bound is 2000 columns; tools that show tables, and
/// builds with a lower bound, get along with half of it.
pub(crate) const COLUMNS_MAX: usize = 999;

/// Bytes of a name of a series, a column, a stream or a label.
pub(crate) const NAME_MAX: usize = 1024;

/// The column of times in every table of a series.
const TIME: &str = "at_ns";

/// One table of a series, and the names of its columns of values in SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeriesTable {
    pub name: String,
    pub columns: Vec<String>,
}

impl SeriesTable {
    /// The table's text. The time is the key, so that it is stored once and rows stand in order.
    pub fn create(&self) -> String {
        let mut sql = format!("CREATE TABLE {}({TIME} INTEGER PRIMARY KEY", quoted(&self.name));
        for column in &self.columns {
            sql.extend([", ", &quoted(column), " INTEGER"]);
        }
        sql.push(')');
        sql
    }

    /// Text that inserts one row: the time, then the values.
    pub fn insert(&self) -> String {
        let places = ", ?".repeat(self.columns.len());
        format!("INSERT INTO {} VALUES(?{places})", quoted(&self.name))
    }

    /// Text that reads all rows in the order of their times.
    pub fn select(&self) -> String {
        format!("SELECT * FROM {} ORDER BY {TIME}", quoted(&self.name))
    }
}

/// The tables of a new series. `taken` are the names of all tables so far, in lower case; the new ones are
/// added to it. Names in SQL are the same whatever their case (ASCII), so a name that is taken gets a number.
pub(crate) fn series_tables(name: &str, heads: &[ColumnHead], taken: &mut Vec<String>) -> Vec<SeriesTable> {
    let table = |part: &[ColumnHead]| {
        let mut names = vec![TIME.to_owned()];
        let columns = part.iter().map(|head| free_name(&head.name, &mut names)).collect();
        SeriesTable { name: free_name(&format!("series_{name}"), taken), columns }
    };
    heads.chunks(COLUMNS_MAX).map(table).collect()
}

/// `wanted`, or `wanted_2` and so on: the first that is not taken.
fn free_name(wanted: &str, taken: &mut Vec<String>) -> String {
    let wanted = if wanted.is_empty() { "unnamed".to_owned() } else { wanted.replace('\0', "\u{fffd}") };
    let numbered = (2..).map(|number: u64| format!("{wanted}_{number}"));
    let is_free = |name: &String| !taken.contains(&name.to_ascii_lowercase());
    let name = std::iter::once(wanted.clone()).chain(numbered).find(is_free).unwrap_or_default();
    taken.push(name.to_ascii_lowercase());
    name
}

/// A name in double quotes, as SQL takes any.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Why a file of this schema version is not read, if it is not.
pub(crate) fn refusal(version: u32) -> Option<(ErrorKind, String)> {
    match version {
        0 => Some((ErrorKind::Damaged, "it is damaged: it has no schema version".to_owned())),
        1..=VERSION => None,
        _ => {
            let own = env!("CARGO_PKG_VERSION");
            let problem = format!(
                "a newer pagelab wrote it, in schema version {version}; this one ({own}) reads versions 1 to \
                 {VERSION}; get a newer pagelab"
            );
            Some((ErrorKind::Newer, problem))
        }
    }
}
