//! From what a sampler saw to rows of a run file: one series for each metric, and another of the same name
//! when its shape changes.

use std::collections::BTreeSet;

use pagelab_host::sampler::{Part, Seen};
use pagelab_metrics::recorded;
use pagelab_model::pressure::Pressure;
use pagelab_model::run::ColumnHead;
use pagelab_runfile::{Error, SeriesId, Writer};

/// The series of a recording, as far as they have begun.
#[derive(Default)]
pub struct Rows {
    series: Vec<Open>,
    /// The row that is being made.
    row: Vec<Option<i64>>,
    /// A form of each resource that has been seen, for the columns of one that cannot be read.
    pressure: Vec<(&'static str, Pressure)>,
}

/// A series that goes on.
struct Open {
    name: String,
    id: SeriesId,
    /// The sampler's number of this shape.
    shape: u64,
    heads: Vec<ColumnHead>,
}

impl Rows {
    /// Writes what one metric said at a tick.
    pub fn write(&mut self, writer: &mut Writer, at_ns: u64, part: &Part<'_>) -> Result<(), Error> {
        self.row.clear();
        let (name, shape) = (part.metric.name(), part.shape);
        let source = part.metric.source();
        match &part.seen {
            Seen::Meminfo(Ok(meminfo)) => {
                recorded::meminfo_row(meminfo, &mut self.row);
                self.put(writer, at_ns, name, source, shape, || recorded::meminfo_heads(meminfo))
            }
            Seen::Vmstat(Ok(vmstat)) => {
                recorded::vmstat_row(vmstat, &mut self.row);
                self.put(writer, at_ns, name, source, shape, || recorded::vmstat_heads(vmstat))
            }
            Seen::Buddyinfo(Ok(buddyinfo)) => {
                recorded::buddyinfo_row(buddyinfo, &mut self.row);
                self.put(writer, at_ns, name, source, shape, || recorded::buddyinfo_heads(buddyinfo))
            }
            Seen::Tables(tables) => {
                for table in tables.iter().filter(|table| table.is_fresh) {
                    self.row.clear();
                    self.row.extend(&table.row);
                    let (name, heads) = (&table.series, || table.heads.clone());
                    self.put(writer, at_ns, name, &table.source, table.shape, heads)?;
                }
                Ok(())
            }
            Seen::Meminfo(Err(_)) | Seen::Vmstat(Err(_)) | Seen::Buddyinfo(Err(_)) => {
                self.missing(writer, at_ns, name)
            }
            Seen::Pressure(resources) => {
                for &(resource, now) in resources {
                    let known = self.pressure.iter().position(|(name, _)| *name == resource);
                    match (now, known) {
                        (Ok(pressure), Some(known)) => self.pressure[known].1 = *pressure,
                        (Ok(pressure), None) => self.pressure.push((resource, *pressure)),
                        (Err(_), _) => {}
                    }
                }
                for (resource, form) in &self.pressure {
                    let before = self.row.len();
                    recorded::pressure_row(form, &mut self.row);
                    if resources.iter().any(|(name, now)| name == resource && now.is_err()) {
                        self.row[before..].fill(None);
                    }
                }
                let forms = std::mem::take(&mut self.pressure);
                let heads = || forms.iter().flat_map(|(name, form)| recorded::pressure_heads(name, form));
                let written = self.put(writer, at_ns, name, source, shape, || heads().collect());
                self.pressure = forms;
                written
            }
        }
    }

    /// Writes the row of one series, which begins or begins again if its shape is another.
    pub fn put(
        &mut self,
        writer: &mut Writer,
        at_ns: u64,
        name: &str,
        source: &str,
        shape: u64,
        heads: impl FnOnce() -> Vec<ColumnHead>,
    ) -> Result<(), Error> {
        let name = &name[..name.floor_char_boundary(NAME_MAX)];
        let at = self.series.iter().position(|open| open.name == name);
        let fits =
            |at: &usize| self.series[*at].shape == shape && self.series[*at].heads.len() == self.row.len();
        let at = match at.filter(fits) {
            Some(at) => at,
            None => {
                let heads = storable(heads());
                if heads.is_empty() {
                    return Ok(());
                }
                match at {
                    Some(at) if self.series[at].heads == heads => {
                        self.series[at].shape = shape;
                        at
                    }
                    _ => {
                        let id = writer.series(name, source, &heads)?;
                        self.series.retain(|open| open.name != name);
                        self.series.push(Open { name: name.to_owned(), id, shape, heads });
                        self.series.len() - 1
                    }
                }
            }
        };
        writer.row(self.series[at].id, at_ns, &self.row)
    }

    /// A row without a value: the reading failed. Nothing where no reading has succeeded yet.
    fn missing(&mut self, writer: &mut Writer, at_ns: u64, name: &str) -> Result<(), Error> {
        let Some(open) = self.series.iter().find(|open| open.name == name) else { return Ok(()) };
        self.row.clear();
        self.row.resize(open.heads.len(), None);
        writer.row(open.id, at_ns, &self.row)
    }

    /// The row that the next [`Rows::put`] writes, empty.
    pub fn fresh(&mut self) -> &mut Vec<Option<i64>> {
        self.row.clear();
        &mut self.row
    }
}

/// Bytes of a column's name that a run file takes.
const NAME_MAX: usize = 1000;

/// The heads with names that can be stored: none empty, none too long, no two alike.
pub(super) fn storable(mut heads: Vec<ColumnHead>) -> Vec<ColumnHead> {
    let mut taken = BTreeSet::new();
    for head in &mut heads {
        if head.name.is_empty() {
            head.name.push_str("unnamed");
        }
        head.name.truncate(head.name.floor_char_boundary(NAME_MAX));
        let wanted = head.name.clone();
        for number in 2_u32.. {
            if taken.insert(head.name.clone()) {
                break;
            }
            head.name = format!("{wanted} ({number})");
        }
    }
    heads
}
