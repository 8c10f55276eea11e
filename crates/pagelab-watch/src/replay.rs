//! A recording as a source of samples, as in a live view.

use std::collections::HashMap;

use pagelab_metrics::standard_series::{self, ZoneSeries};
use pagelab_metrics::statistics::typical_interval_ns;
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::run::{ColumnValues, Run, Series, Unit};
use pagelab_model::settings::ThpSettings;
use pagelab_model::{Meminfo, Reading, SysfsChoice};

use super::sample::{Counter, Sample};
use super::view::{ThpModes, ViewInfo};

/// The samples of a recording.
pub struct Recording<'a> {
    /// The recorded run.
    pub run: &'a Run,
    /// Times of the readings in nanoseconds since the start, ascending.
    pub ticks: Vec<u64>,
    meminfo: Vec<&'a Series>,
    vmstat: Vec<SeriesPart<'a>>,
    pressure: Vec<SeriesPart<'a>>,
    zones: Vec<(&'a Series, Vec<ZoneSeries<'a>>)>,
    tracepoints: Vec<SeriesPart<'a>>,
}

/// One series with its columns by name.
struct SeriesPart<'a> {
    at_ns: &'a [u64],
    columns: HashMap<&'a str, &'a ColumnValues>,
}

impl<'a> SeriesPart<'a> {
    fn from_series(series: &'a Series) -> SeriesPart<'a> {
        let columns = series.columns.iter().map(|column| (column.header.name.as_str(), &column.values));
        SeriesPart { at_ns: &series.at_ns, columns: columns.collect() }
    }

    /// Returns all allocations that fell back to another migratetype; `None` if they were not counted.
    fn fallbacks(&self, row: usize) -> Option<u64> {
        let counted = self.columns.iter().filter(|(name, _)| standard_series::is_fallback_counter(name));
        let values: Option<Vec<u64>> = counted.map(|(_, values)| non_negative(values, row)).collect();
        values?.into_iter().reduce(u64::saturating_add)
    }

    /// Returns a value that exists and is not negative.
    fn value(&self, name: &str, row: usize) -> Option<u64> {
        non_negative(self.columns.get(name)?, row)
    }
}

fn non_negative(values: &ColumnValues, row: usize) -> Option<u64> {
    values.value_at(row).and_then(|value| u64::try_from(value).ok())
}

/// Returns the use of memory from a row of meminfo; values that are absent are left out.
fn memory_use(meminfo: &Series, row: usize) -> MemoryUse {
    let (mut fields, mut in_kib) = (Vec::new(), Vec::new());
    for column in &meminfo.columns {
        let Some(value) = non_negative(&column.values, row) else { continue };
        let is_in_kib = column.header.unit.0 == Unit::BYTES;
        fields.push((column.header.name.as_str(), if is_in_kib { value / 1024 } else { value }));
        in_kib.push(is_in_kib);
    }
    MemoryUse::from_meminfo(&Meminfo { fields: fields.into_iter().collect(), in_kib })
}

impl<'a> Recording<'a> {
    /// Builds the samples of a run; `None` if it has no suitable series.
    pub fn from_run(run: &'a Run) -> Option<Recording<'a>> {
        let series_named = |name: &'a str| standard_series::series_named(run, name);
        // The times are those of the series with the most readings; those of another series match the nearest
        // time.
        let times = |name| {
            let mut times: Vec<u64> =
                series_named(name).flat_map(|series| series.at_ns.iter().copied()).collect();
            times.sort_unstable();
            times.dedup();
            times
        };
        let names = [
            standard_series::BUDDYINFO,
            standard_series::VMSTAT,
            standard_series::MEMINFO,
            standard_series::PRESSURE,
        ];
        let ticks = names.into_iter().rev().map(times).max_by_key(Vec::len)?;
        if ticks.is_empty() {
            return None;
        }
        let with_zones = |series: &'a Series| (series, standard_series::zone_series_of(series));
        Some(Recording {
            run,
            ticks,
            meminfo: series_named(standard_series::MEMINFO).collect(),
            vmstat: series_named(standard_series::VMSTAT).map(SeriesPart::from_series).collect(),
            pressure: series_named(standard_series::PRESSURE).map(SeriesPart::from_series).collect(),
            zones: series_named(standard_series::BUDDYINFO).map(with_zones).collect(),
            tracepoints: series_named(standard_series::TRACEPOINTS).map(SeriesPart::from_series).collect(),
        })
    }

    /// Returns whether fallbacks to another migratetype were counted.
    pub fn has_fallbacks(&self) -> bool {
        let mut columns = self.tracepoints.iter().flat_map(|part| part.columns.keys());
        columns.any(|name| standard_series::is_fallback_counter(name))
    }

    /// Returns the sample with this index.
    pub fn sample(&self, index: usize) -> Sample {
        let Some(&at_ns) = self.ticks.get(index) else { return Sample::default() };
        let reach = self.match_distance(index);
        let vmstat = nearest_row(&self.vmstat, |part| part.at_ns, at_ns, reach);
        let pressure = nearest_row(&self.pressure, |part| part.at_ns, at_ns, reach);
        let share = |line: &str| {
            let (part, row) = pressure.as_ref()?;
            u32::try_from(part.value(&format!("memory.{line}.avg10"), *row)?).ok()
        };
        let memory = nearest_row(&self.meminfo, |series| &series.at_ns[..], at_ns, reach);
        let zones = nearest_row(&self.zones, |(series, _)| &series.at_ns[..], at_ns, reach);
        let zones = zones.into_iter().flat_map(|((_, zones), row)| {
            zones.iter().map(move |zone| (zone.key.clone(), zone.free_areas(row)))
        });
        let mut counters =
            Counter::read_all(|name| vmstat.as_ref().and_then(|(part, row)| part.value(name, *row)));
        counters[Counter::Extfrag as usize] = nearest_row(&self.tracepoints, |part| part.at_ns, at_ns, reach)
            .and_then(|(part, row)| part.fallbacks(row));
        Sample {
            at_ns,
            memory: memory.map(|(series, row)| memory_use(series, row)).unwrap_or_default(),
            counters,
            zones: zones.collect(),
            some_centipercent: share("some"),
            full_centipercent: share("full"),
        }
    }

    /// Returns the maximum distance of a reading from its tick: half the distance to the nearer neighbour.
    fn match_distance(&self, index: usize) -> u64 {
        let here = self.ticks[index];
        let before = index.checked_sub(1).map(|before| here - self.ticks[before]);
        let after = self.ticks.get(index + 1).map(|after| after - here);
        before.into_iter().chain(after).min().unwrap_or(u64::MAX) / 2
    }

    /// Returns the typical time between readings: the median.
    pub fn every_ns(&self) -> u64 {
        typical_interval_ns(&self.ticks).unwrap_or(0)
    }

    /// Returns the fixed facts of the view.
    pub fn view_info(&self) -> ViewInfo {
        let manifest = &self.run.manifest;
        let zoneinfo = self.run.snapshot.as_ref().and_then(|snapshot| snapshot.zoneinfo.as_ref().ok());
        let zones = zoneinfo.into_iter().flat_map(|zoneinfo| &zoneinfo.zones);
        let page_size = manifest.machine.page_size;
        ViewInfo {
            host: manifest.machine.host_name.clone().unwrap_or_default(),
            kernel: manifest.machine.kernel_release.clone().unwrap_or_default(),
            page_size,
            pmd_order: manifest.settings.pmd_order(page_size),
            started: manifest.started,
            zone_sizes: zones.filter_map(|zone| Some((zone.key.clone(), zone.managed?))).collect(),
        }
    }

    /// Returns the modes of huge pages when the recording began.
    pub fn modes(&self) -> ThpModes {
        let thp = self.run.manifest.settings.thp.as_ref();
        let word = |of: fn(&ThpSettings) -> &Reading<SysfsChoice>| match thp.map(of) {
            Ok(Ok(choice)) => Ok(choice.selected().to_owned()),
            Ok(Err(absence)) | Err(absence) => Err(absence.clone()),
        };
        ThpModes { enabled: word(|thp| &thp.enabled), defrag: word(|thp| &thp.defrag) }
    }

    /// Returns the last event at or before a tick, and after the one `ticks_back` ticks before.
    pub fn remark(&self, index: usize, ticks_back: usize) -> Option<(u64, String)> {
        let until = *self.ticks.get(index)?;
        let after = index.checked_sub(ticks_back).map(|at| self.ticks[at]);
        let is_near = |at_ns: u64| at_ns <= until && after.is_none_or(|after| at_ns > after);
        let event = self.run.events.iter().rev().find(|event| is_near(event.at_ns))?;
        Some((event.at_ns, format!("{}: {}", event.kind, event.text)))
    }
}

/// Returns the part with the reading that is nearest to a time, and the row of that reading.
fn nearest_row<'p, P>(
    parts: &'p [P],
    times: impl Fn(&'p P) -> &'p [u64],
    at_ns: u64,
    distance_max: u64,
) -> Option<(&'p P, usize)> {
    let candidates = parts.iter().flat_map(|part| {
        let times = times(part);
        let after = times.partition_point(|&time| time < at_ns);
        [Some(after), after.checked_sub(1)]
            .into_iter()
            .flatten()
            .filter_map(|row| Some((times.get(row)?.abs_diff(at_ns), part, row)))
            .collect::<Vec<_>>()
    });
    let found = candidates.min_by_key(|(distance, ..)| *distance)?;
    (found.0 <= distance_max).then_some((found.1, found.2))
}
