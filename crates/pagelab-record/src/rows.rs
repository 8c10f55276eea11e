//! Rows of a run file from a sampler's readings: one series for each metric, and another of the same name
//! when its shape changes.

use std::collections::BTreeSet;

use pagelab_host::sampler::{MetricSample, MetricValues};
use pagelab_metrics::standard_series;
use pagelab_model::pressure::Pressure;
use pagelab_model::run::ColumnHeader;
use pagelab_runfile::{Error, RunWriter, SeriesId};

/// The started series of a recording.
#[derive(Default)]
pub struct SeriesWriter {
    series: Vec<OpenSeries>,
    /// The row under construction.
    row: Vec<Option<i64>>,
    /// A reading of each resource, for the columns of one that cannot be read.
    pressure: Vec<(&'static str, Pressure)>,
}

struct OpenSeries {
    name: String,
    id: SeriesId,
    /// The sampler's number of this shape.
    shape_number: u64,
    heads: Vec<ColumnHeader>,
}

impl SeriesWriter {
    /// Writes the readings of one metric at a tick.
    pub fn write(
        &mut self,
        writer: &mut RunWriter,
        at_ns: u64,
        part: &MetricSample<'_>,
    ) -> Result<(), Error> {
        self.row.clear();
        let (name, shape) = (part.metric.name(), part.layout_version);
        let source = part.metric.source();
        match &part.values {
            MetricValues::Meminfo(Ok(meminfo)) => {
                standard_series::push_meminfo_row(meminfo, &mut self.row);
                self.write_row(writer, at_ns, name, source, shape, || {
                    standard_series::meminfo_columns(meminfo)
                })
            }
            MetricValues::Vmstat(Ok(vmstat)) => {
                standard_series::push_vmstat_row(vmstat, &mut self.row);
                self.write_row(writer, at_ns, name, source, shape, || standard_series::vmstat_columns(vmstat))
            }
            MetricValues::Buddyinfo(Ok(buddyinfo)) => {
                standard_series::push_buddyinfo_row(buddyinfo, &mut self.row);
                self.write_row(writer, at_ns, name, source, shape, || {
                    standard_series::buddyinfo_columns(buddyinfo)
                })
            }
            MetricValues::Tables(tables) => {
                for table in tables.iter().filter(|table| table.is_fresh) {
                    self.row.clear();
                    self.row.extend(&table.row);
                    let (name, heads) = (&table.series, || table.heads.clone());
                    self.write_row(writer, at_ns, name, &table.source, table.layout_version, heads)?;
                }
                Ok(())
            }
            MetricValues::Meminfo(Err(_))
            | MetricValues::Vmstat(Err(_))
            | MetricValues::Buddyinfo(Err(_)) => self.write_missing(writer, at_ns, name),
            MetricValues::Pressure(resources) => {
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
                    standard_series::push_pressure_row(form, &mut self.row);
                    if resources.iter().any(|(name, now)| name == resource && now.is_err()) {
                        self.row[before..].fill(None);
                    }
                }
                let forms = std::mem::take(&mut self.pressure);
                let heads =
                    || forms.iter().flat_map(|(name, form)| standard_series::pressure_columns(name, form));
                let written = self.write_row(writer, at_ns, name, source, shape, || heads().collect());
                self.pressure = forms;
                written
            }
        }
    }

    /// Writes the row of one series; a new shape begins a new series.
    pub fn write_row(
        &mut self,
        writer: &mut RunWriter,
        at_ns: u64,
        name: &str,
        source: &str,
        shape: u64,
        heads: impl FnOnce() -> Vec<ColumnHeader>,
    ) -> Result<(), Error> {
        let name = &name[..name.floor_char_boundary(NAME_MAX)];
        let index = self.series.iter().position(|open| open.name == name);
        let fits = |at: &usize| {
            self.series[*at].shape_number == shape && self.series[*at].heads.len() == self.row.len()
        };
        let index = match index.filter(fits) {
            Some(at) => at,
            None => {
                let heads = sanitize_heads(heads());
                if heads.is_empty() {
                    return Ok(());
                }
                match index {
                    Some(at) if self.series[at].heads == heads => {
                        self.series[at].shape_number = shape;
                        at
                    }
                    _ => {
                        let id = writer.add_series(name, source, &heads)?;
                        self.series.retain(|open| open.name != name);
                        let name = name.to_owned();
                        self.series.push(OpenSeries { name, id, shape_number: shape, heads });
                        self.series.len() - 1
                    }
                }
            }
        };
        writer.add_row(self.series[index].id, at_ns, &self.row)
    }

    /// Writes a row without values: the reading failed. Writes nothing before the first successful reading.
    fn write_missing(&mut self, writer: &mut RunWriter, at_ns: u64, name: &str) -> Result<(), Error> {
        let Some(open) = self.series.iter().find(|open| open.name == name) else { return Ok(()) };
        self.row.clear();
        self.row.resize(open.heads.len(), None);
        writer.add_row(open.id, at_ns, &self.row)
    }

    /// Clears and returns the row that the next [`SeriesWriter::write_row`] writes.
    pub fn clear_row(&mut self) -> &mut Vec<Option<i64>> {
        self.row.clear();
        &mut self.row
    }
}

/// Maximum length of a column's name in a run file, in bytes.
const NAME_MAX: usize = 1000;

/// Makes the names storable: not empty, not too long, unique.
pub(super) fn sanitize_heads(mut heads: Vec<ColumnHeader>) -> Vec<ColumnHeader> {
    let mut used_names = BTreeSet::new();
    for head in &mut heads {
        if head.name.is_empty() {
            head.name.push_str("unnamed");
        }
        head.name.truncate(head.name.floor_char_boundary(NAME_MAX));
        let wanted = head.name.clone();
        for number in 2_u32.. {
            if used_names.insert(head.name.clone()) {
                break;
            }
            head.name = format!("{wanted} ({number})");
        }
    }
    heads
}

#[cfg(test)]
mod tests;
