//! Readings of several kinds, collected in whatever order and written by time.

use pagelab_metrics::recorded;
use pagelab_model::run::{ColumnHead, Unit};
use pagelab_model::{BuddyInfo, Counters, Meminfo};
use pagelab_runfile::{Error, Writer};

/// More values than this are refused: they are held in memory until they are sorted.
const VALUES_MAX: usize = 1 << 25;

/// The kinds of readings, in the order of print.
pub const KINDS: [&str; 4] = [recorded::BUDDYINFO, recorded::MEMINFO, recorded::VMSTAT, recorded::PRESSURE];

/// All readings.
#[derive(Default)]
pub struct Tables {
    kinds: [Kind; KINDS.len()],
    values: usize,
}

/// Readings of one kind.
#[derive(Default)]
struct Kind {
    /// Columns that occur, each list once.
    shapes: Vec<Vec<ColumnHead>>,
    rows: Vec<Row>,
    /// Readings of a time that another one has.
    doubles: usize,
    source: String,
}

/// One reading.
struct Row {
    /// Nanoseconds since 1970.
    at_ns: u64,
    /// Index of its columns.
    shape: usize,
    values: Vec<Option<i64>>,
}

/// There are more values than are held in memory.
#[derive(Debug)]
pub struct TooMany;

impl Tables {
    /// Adds a reading of buddyinfo.
    pub fn buddyinfo(&mut self, at_ns: u64, from: &str, buddyinfo: &BuddyInfo) -> Result<(), TooMany> {
        let mut row = Vec::new();
        recorded::buddyinfo_row(buddyinfo, &mut row);
        self.push(0, at_ns, from, recorded::buddyinfo_heads(buddyinfo), row)
    }

    /// Adds a reading of meminfo.
    pub fn meminfo(&mut self, at_ns: u64, from: &str, meminfo: &Meminfo) -> Result<(), TooMany> {
        let mut row = Vec::new();
        recorded::meminfo_row(meminfo, &mut row);
        self.push(1, at_ns, from, recorded::meminfo_heads(meminfo), row)
    }

    /// Adds a reading of vmstat.
    pub fn vmstat(&mut self, at_ns: u64, from: &str, vmstat: &Counters) -> Result<(), TooMany> {
        let mut row = Vec::new();
        recorded::vmstat_row(vmstat, &mut row);
        self.push(2, at_ns, from, recorded::vmstat_heads(vmstat), row)
    }

    /// Adds the totals of pressure in microseconds: some task, and all tasks, waited.
    pub fn pressure(&mut self, at_ns: u64, from: &str, totals: [Option<u64>; 2]) -> Result<(), TooMany> {
        let named = ["memory.some.total", "memory.full.total"].into_iter().zip(totals);
        let known: Vec<(&str, u64)> = named.filter_map(|(name, total)| Some((name, total?))).collect();
        let head = |&(name, _): &(&str, u64)| ColumnHead {
            name: name.to_owned(),
            unit: Unit::MICROSECONDS.into(),
            is_counter: true,
        };
        let row = known.iter().map(|&(_, total)| i64::try_from(total).ok()).collect();
        self.push(3, at_ns, from, known.iter().map(head).collect(), row)
    }

    fn push(
        &mut self,
        kind: usize,
        at_ns: u64,
        from: &str,
        heads: Vec<ColumnHead>,
        values: Vec<Option<i64>>,
    ) -> Result<(), TooMany> {
        self.values += values.len();
        if self.values > VALUES_MAX {
            return Err(TooMany);
        }
        let Some(kind) = self.kinds.get_mut(kind) else { return Ok(()) };
        let shape = kind.shapes.iter().position(|known| *known == heads).unwrap_or_else(|| {
            kind.shapes.push(heads);
            kind.shapes.len() - 1
        });
        kind.source = from.to_owned();
        kind.rows.push(Row { at_ns, shape, values });
        Ok(())
    }

    /// Sorts by time; of two readings of one time the first stays.
    pub fn sort(&mut self) {
        for kind in &mut self.kinds {
            let all = kind.rows.len();
            kind.rows.sort_by_key(|row| row.at_ns);
            kind.rows.dedup_by_key(|row| row.at_ns);
            kind.doubles = all - kind.rows.len();
        }
    }

    /// The first time and the last.
    pub fn span(&self) -> Option<(u64, u64)> {
        let ends = |kind: &Kind| Some((kind.rows.first()?.at_ns, kind.rows.last()?.at_ns));
        self.kinds.iter().filter_map(ends).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
    }

    /// How many readings there are, of the kind that has most.
    pub fn readings(&self) -> usize {
        self.kinds.iter().map(|kind| kind.rows.len()).max().unwrap_or(0)
    }

    /// Readings whose time another one has, of the kind that has most.
    pub fn doubles(&self) -> usize {
        self.kinds.iter().map(|kind| kind.doubles).max().unwrap_or(0)
    }

    /// `buddyinfo (33 columns), meminfo (52)`.
    pub fn summary(&self) -> String {
        let known = KINDS.iter().zip(&self.kinds).filter(|(_, kind)| !kind.rows.is_empty());
        let one = |(name, kind): (&&str, &Kind)| {
            let columns = kind.shapes.iter().map(Vec::len).max().unwrap_or(0);
            let shapes = match kind.shapes.len() {
                1 => String::new(),
                shapes => format!(" of {shapes} shapes"),
            };
            format!("{name} ({columns} columns{shapes})")
        };
        known.map(one).collect::<Vec<_>>().join(", ")
    }

    /// The kinds of which there is nothing.
    pub fn absent(&self) -> Vec<&'static str> {
        let missing = KINDS.iter().zip(&self.kinds).filter(|(_, kind)| kind.rows.is_empty());
        missing.map(|(name, _)| *name).collect()
    }

    /// Writes all series; where the columns change, another series of the same name begins.
    pub fn write(&self, writer: &mut Writer, first_ns: u64) -> Result<(), Error> {
        for (name, kind) in KINDS.iter().zip(&self.kinds) {
            let mut current = None;
            for row in &kind.rows {
                let series = match current {
                    Some((shape, series)) if shape == row.shape => series,
                    _ => writer.series(name, &kind.source, &kind.shapes[row.shape])?,
                };
                current = Some((row.shape, series));
                writer.row(series, row.at_ns.saturating_sub(first_ns), &row.values)?;
            }
        }
        Ok(())
    }
}
