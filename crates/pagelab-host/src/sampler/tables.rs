//! Values of the slower metrics: tables of named columns, one row per tick.

use std::collections::BTreeSet;

use pagelab_model::run::ColumnHeader;

/// Maximum number of tables of one sampler: each cgroup and each process has its own.
pub(super) const TABLES_MAX: usize = 1000;

/// The values of one series at the last sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name of the series.
    pub series: String,
    /// Source of the values.
    pub source: String,
    /// Changes when the columns do.
    pub layout_version: u64,
    /// The columns.
    pub heads: Vec<ColumnHeader>,
    /// The values, one for each column.
    pub row: Vec<Option<i64>>,
    /// Whether the last sample read it. A series that was not due has no row at that tick.
    pub is_fresh: bool,
}

/// Something that happened while sampling, in a phrase without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its kind: `unreadable`, `readable`, `cadence`, `began`, `ended`, `left out`.
    pub kind: &'static str,
    /// What happened.
    pub text: String,
}

/// The tables of one metric.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub tables: Vec<Table>,
    pub notices: Vec<Notice>,
    /// Number of started series, for the limit.
    known_series: BTreeSet<String>,
    is_full: bool,
    /// Number of layouts of all tables so far: a restarted table gets a new one.
    last_layout_version: u64,
}

/// Columns and values under construction.
#[derive(Debug, Default)]
pub(super) struct ColumnBuilder {
    pub heads: Vec<ColumnHeader>,
    pub row: Vec<Option<i64>>,
}

impl ColumnBuilder {
    pub fn add_column(&mut self, name: impl Into<String>, unit: &str, is_counter: bool, value: Option<u64>) {
        self.heads.push(ColumnHeader { name: name.into(), unit: unit.into(), is_counter });
        self.row.push(value.and_then(|value| i64::try_from(value).ok()));
    }

    pub fn add_amount(&mut self, name: impl Into<String>, unit: &str, value: Option<u64>) {
        self.add_column(name, unit, false, value);
    }
}

impl Tables {
    /// Marks all tables as not read; called before a read.
    pub fn mark_stale(&mut self) {
        self.tables.iter_mut().for_each(|table| table.is_fresh = false);
    }

    /// The row of one series.
    pub fn set_row(&mut self, series: &str, source: &str, columns: ColumnBuilder) {
        let ColumnBuilder { heads, row } = columns;
        self.last_layout_version += 1;
        if let Some(table) = self.tables.iter_mut().find(|table| table.series == series) {
            if table.heads != heads {
                table.heads = heads;
                table.layout_version = self.last_layout_version;
            }
            table.row = row;
            table.is_fresh = true;
            return;
        }
        if !self.known_series.contains(series) && self.known_series.len() >= TABLES_MAX {
            if !self.is_full {
                self.is_full = true;
                let text = format!(
                    "limit of {TABLES_MAX} series reached: no new series are recorded, for example {series}"
                );
                self.notices.push(Notice { kind: "left out", text });
            }
            return;
        }
        self.known_series.insert(series.to_owned());
        self.tables.push(Table {
            series: series.to_owned(),
            source: source.to_owned(),
            layout_version: self.last_layout_version,
            heads,
            row,
            is_fresh: true,
        });
    }

    /// No reading: every known series gets a row without values.
    pub fn clear_values(&mut self) {
        for table in &mut self.tables {
            table.row.fill(None);
            table.is_fresh = true;
        }
    }

    /// Ends the series that the last read did not find.
    pub fn drop_stale(&mut self) -> Vec<String> {
        let gone =
            self.tables.iter().filter(|table| !table.is_fresh).map(|table| table.series.clone()).collect();
        self.tables.retain(|table| table.is_fresh);
        gone
    }
}
