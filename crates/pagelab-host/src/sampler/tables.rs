//! Values that the slower metrics give: tables of named columns, each with one row for a tick.

use std::collections::BTreeSet;

use pagelab_model::run::ColumnHead;

/// Tables that one sampler begins at most: each control group and each process has its own.
pub(super) const TABLES_MAX: usize = 1000;

/// The values of one series at the last sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name of the series.
    pub series: String,
    /// Where the values are from.
    pub source: String,
    /// Changes when the columns do.
    pub shape: u64,
    /// The columns.
    pub heads: Vec<ColumnHead>,
    /// The values, one for each column.
    pub row: Vec<Option<i64>>,
    /// Whether the last sample read it. One that was not due has no row at that tick.
    pub is_fresh: bool,
}

/// Something that happened while sampling, in a phrase without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// A word for its kind: `unreadable`, `readable`, `cadence`, `began`, `ended`, `left out`.
    pub kind: &'static str,
    /// What happened.
    pub text: String,
}

/// The tables of one metric.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub all: Vec<Table>,
    pub notices: Vec<Notice>,
    /// Series that have begun, for the bound.
    begun: BTreeSet<String>,
    is_full: bool,
    /// Shapes so far, of all tables: one that is begun again has another than before.
    shapes: u64,
}

/// Columns and values that are being put together.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub heads: Vec<ColumnHead>,
    pub row: Vec<Option<i64>>,
}

impl Columns {
    pub fn add(&mut self, name: impl Into<String>, unit: &str, grows: bool, value: Option<u64>) {
        self.heads.push(ColumnHead { name: name.into(), unit: unit.into(), is_counter: grows });
        self.row.push(value.and_then(|value| i64::try_from(value).ok()));
    }

    pub fn amount(&mut self, name: impl Into<String>, unit: &str, value: Option<u64>) {
        self.add(name, unit, false, value);
    }
}

impl Tables {
    /// Before a read: nothing has been read yet.
    pub fn stale(&mut self) {
        self.all.iter_mut().for_each(|table| table.is_fresh = false);
    }

    /// The row of one series.
    pub fn put(&mut self, series: &str, source: &str, columns: Columns) {
        let Columns { heads, row } = columns;
        self.shapes += 1;
        if let Some(table) = self.all.iter_mut().find(|table| table.series == series) {
            if table.heads != heads {
                table.heads = heads;
                table.shape = self.shapes;
            }
            table.row = row;
            table.is_fresh = true;
            return;
        }
        if !self.begun.contains(series) && self.begun.len() >= TABLES_MAX {
            if !self.is_full {
                self.is_full = true;
                let text = format!("after {TABLES_MAX} series no further ones are begun, such as {series}");
                self.notices.push(Notice { kind: "left out", text });
            }
            return;
        }
        self.begun.insert(series.to_owned());
        let (series, source) = (series.to_owned(), source.to_owned());
        self.all.push(Table { series, source, shape: self.shapes, heads, row, is_fresh: true });
    }

    /// No reading: every known series gets a row without values.
    pub fn missing(&mut self) {
        for table in &mut self.all {
            table.row.fill(None);
            table.is_fresh = true;
        }
    }

    /// Ends the series that the last read did not find any more.
    pub fn drop_stale(&mut self) -> Vec<String> {
        let gone =
            self.all.iter().filter(|table| !table.is_fresh).map(|table| table.series.clone()).collect();
        self.all.retain(|table| table.is_fresh);
        gone
    }
}
