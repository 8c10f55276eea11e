//! Tables of readings, collected in any order and written in order of time.

use pagelab_metrics::standard_series;
use pagelab_model::run::{ColumnHeader, Unit};
use pagelab_model::{BuddyInfo, Counters, Meminfo};
use pagelab_runfile::{Error, RunWriter};

/// Maximum number of values: they are in memory until they are sorted.
const VALUES_MAX: usize = 1 << 25;

/// Kinds of readings, in printing order.
pub const READING_KINDS: [&str; 4] = [
    standard_series::BUDDYINFO,
    standard_series::MEMINFO,
    standard_series::VMSTAT,
    standard_series::PRESSURE,
];

/// All readings.
#[derive(Default)]
pub struct ReadingTables {
    tables: [ReadingTable; READING_KINDS.len()],
    value_count: usize,
}

#[derive(Default)]
struct ReadingTable {
    /// Distinct lists of columns.
    column_sets: Vec<Vec<ColumnHeader>>,
    rows: Vec<Row>,
    /// Readings with the same time as another.
    duplicates: usize,
    source: String,
}

struct Row {
    /// Nanoseconds since 1970.
    at_ns: u64,
    /// Index of its list of columns.
    column_set: usize,
    values: Vec<Option<i64>>,
}

/// Error: more values than the maximum.
#[derive(Debug)]
pub struct TooManyValues;

impl ReadingTables {
    /// Adds a reading of buddyinfo.
    pub fn add_buddyinfo(
        &mut self,
        at_ns: u64,
        source: &str,
        buddyinfo: &BuddyInfo,
    ) -> Result<(), TooManyValues> {
        let mut row = Vec::new();
        standard_series::push_buddyinfo_row(buddyinfo, &mut row);
        self.push(0, at_ns, source, standard_series::buddyinfo_columns(buddyinfo), row)
    }

    /// Adds a reading of meminfo.
    pub fn add_meminfo(&mut self, at_ns: u64, source: &str, meminfo: &Meminfo) -> Result<(), TooManyValues> {
        let mut row = Vec::new();
        standard_series::push_meminfo_row(meminfo, &mut row);
        self.push(1, at_ns, source, standard_series::meminfo_columns(meminfo), row)
    }

    /// Adds a reading of vmstat.
    pub fn add_vmstat(&mut self, at_ns: u64, source: &str, vmstat: &Counters) -> Result<(), TooManyValues> {
        let mut row = Vec::new();
        standard_series::push_vmstat_row(vmstat, &mut row);
        self.push(2, at_ns, source, standard_series::vmstat_columns(vmstat), row)
    }

    /// Adds the totals of pressure in microseconds: some task, and all tasks, waited.
    pub fn add_pressure(
        &mut self,
        at_ns: u64,
        source: &str,
        totals: [Option<u64>; 2],
    ) -> Result<(), TooManyValues> {
        let named = ["memory.some.total", "memory.full.total"].into_iter().zip(totals);
        let known: Vec<(&str, u64)> = named.filter_map(|(name, total)| Some((name, total?))).collect();
        let head = |&(name, _): &(&str, u64)| ColumnHeader {
            name: name.to_owned(),
            unit: Unit::MICROSECONDS.into(),
            is_counter: true,
        };
        let row = known.iter().map(|&(_, total)| i64::try_from(total).ok()).collect();
        self.push(3, at_ns, source, known.iter().map(head).collect(), row)
    }

    fn push(
        &mut self,
        kind: usize,
        at_ns: u64,
        source: &str,
        heads: Vec<ColumnHeader>,
        values: Vec<Option<i64>>,
    ) -> Result<(), TooManyValues> {
        self.value_count += values.len();
        if self.value_count > VALUES_MAX {
            return Err(TooManyValues);
        }
        let Some(kind) = self.tables.get_mut(kind) else { return Ok(()) };
        let shape = kind.column_sets.iter().position(|known| *known == heads).unwrap_or_else(|| {
            kind.column_sets.push(heads);
            kind.column_sets.len() - 1
        });
        kind.source = source.to_owned();
        kind.rows.push(Row { at_ns, column_set: shape, values });
        Ok(())
    }

    /// Sorts by time; of two readings with the same time it keeps the first.
    pub fn sort_by_time(&mut self) {
        for kind in &mut self.tables {
            let all = kind.rows.len();
            kind.rows.sort_by_key(|row| row.at_ns);
            kind.rows.dedup_by_key(|row| row.at_ns);
            kind.duplicates = all - kind.rows.len();
        }
    }

    /// Returns the first and the last time, in nanoseconds since 1970.
    pub fn time_span(&self) -> Option<(u64, u64)> {
        let ends = |kind: &ReadingTable| Some((kind.rows.first()?.at_ns, kind.rows.last()?.at_ns));
        self.tables.iter().filter_map(ends).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
    }

    /// Returns the number of readings of the kind with the most.
    pub fn reading_count(&self) -> usize {
        self.tables.iter().map(|kind| kind.rows.len()).max().unwrap_or(0)
    }

    /// Returns the number of duplicate readings of the kind with the most.
    pub fn duplicate_count(&self) -> usize {
        self.tables.iter().map(|kind| kind.duplicates).max().unwrap_or(0)
    }

    /// Formats a summary: `buddyinfo (33 columns), meminfo (52)`.
    pub fn summary(&self) -> String {
        let known = READING_KINDS.iter().zip(&self.tables).filter(|(_, kind)| !kind.rows.is_empty());
        let one = |(name, kind): (&&str, &ReadingTable)| {
            let columns = kind.column_sets.iter().map(Vec::len).max().unwrap_or(0);
            let shapes = match kind.column_sets.len() {
                1 => String::new(),
                shapes => format!(", {shapes} layouts"),
            };
            format!("{name} ({columns} columns{shapes})")
        };
        known.map(one).collect::<Vec<_>>().join(", ")
    }

    /// Returns the kinds without readings.
    pub fn absent_kinds(&self) -> Vec<&'static str> {
        let missing = READING_KINDS.iter().zip(&self.tables).filter(|(_, kind)| kind.rows.is_empty());
        missing.map(|(name, _)| *name).collect()
    }

    /// Writes all series; when the columns change, another series with the same name begins.
    pub fn write(&self, writer: &mut RunWriter, first_ns: u64) -> Result<(), Error> {
        for (name, kind) in READING_KINDS.iter().zip(&self.tables) {
            let mut current = None;
            for row in &kind.rows {
                let series = match current {
                    Some((shape, series)) if shape == row.column_set => series,
                    _ => writer.add_series(name, &kind.source, &kind.column_sets[row.column_set])?,
                };
                current = Some((row.column_set, series));
                writer.add_row(series, row.at_ns.saturating_sub(first_ns), &row.values)?;
            }
        }
        Ok(())
    }
}
