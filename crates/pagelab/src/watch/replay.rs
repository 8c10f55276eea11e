//! A recording as a source of samples: the same moments that a live view would have shown.

use std::collections::HashMap;
use std::sync::Arc;

use pagelab_metrics::recorded::{self, ZoneSeries};
use pagelab_metrics::usage::MemoryUse;
use pagelab_model::run::{Run, Series, Unit, Values};
use pagelab_model::settings::ThpSettings;
use pagelab_model::{Choice, Counters, Meminfo, Reading};

use super::counter::Counter;
use super::sample::Sample;
use super::view::{About, Modes};

/// The moments of a recording.
pub struct Recording<'a> {
    run: &'a Run,
    /// Times of the readings in nanoseconds since the start, ascending.
    ticks: Vec<u64>,
    meminfo: Vec<MeminfoPart<'a>>,
    vmstat: Vec<Part<'a>>,
    pressure: Vec<Part<'a>>,
    zones: Vec<ZonePart<'a>>,
    tracepoints: Vec<Part<'a>>,
}

/// One series with its columns by name.
struct Part<'a> {
    at_ns: &'a [u64],
    columns: HashMap<&'a str, &'a Values>,
}

impl<'a> Part<'a> {
    fn of(series: &'a Series) -> Part<'a> {
        let columns = series.columns.iter().map(|column| (column.head.name.as_str(), &column.values));
        Part { at_ns: &series.at_ns, columns: columns.collect() }
    }

    /// All allocations that fell back to another migratetype's memory; `None` where they were not counted.
    fn fallbacks(&self, row: usize) -> Option<u64> {
        let counted = self.columns.iter().filter(|(name, _)| recorded::counts_fallbacks(name));
        let values: Option<Vec<u64>> = counted.map(|(_, values)| natural(values, row)).collect();
        values?.into_iter().reduce(u64::saturating_add)
    }

    /// A value that is there and not negative: nothing that is shown is ever less than nothing.
    fn value(&self, name: &str, row: usize) -> Option<u64> {
        natural(self.columns.get(name)?, row)
    }
}

struct MeminfoPart<'a> {
    at_ns: &'a [u64],
    names: Arc<[Box<str>]>,
    in_kib: Vec<bool>,
    values: Vec<&'a Values>,
}

struct ZonePart<'a> {
    at_ns: &'a [u64],
    zones: Vec<ZoneSeries<'a>>,
}

fn natural(values: &Values, row: usize) -> Option<u64> {
    values.at(row).and_then(|value| u64::try_from(value).ok())
}

impl<'a> MeminfoPart<'a> {
    fn of(series: &'a Series) -> MeminfoPart<'a> {
        let columns = &series.columns;
        MeminfoPart {
            at_ns: &series.at_ns,
            names: columns.iter().map(|column| Box::from(column.head.name.as_str())).collect(),
            in_kib: columns.iter().map(|column| column.head.unit.0 == Unit::BYTES).collect(),
            values: columns.iter().map(|column| &column.values).collect(),
        }
    }

    fn memory(&self, row: usize) -> MemoryUse {
        let factor = |in_kib: bool| if in_kib { 1024 } else { 1 };
        let printed = |(values, &in_kib): (&&Values, &bool)| Some(natural(values, row)? / factor(in_kib));
        let printed: Vec<Option<u64>> = self.values.iter().zip(&self.in_kib).map(printed).collect();
        let there = || printed.iter().zip(&self.names[..]).zip(&self.in_kib);
        let meminfo = match printed.iter().copied().collect::<Option<Vec<u64>>>() {
            Some(values) => {
                Meminfo { fields: Counters::new(self.names.clone(), values), in_kib: self.in_kib.clone() }
            }
            None => Meminfo {
                fields: there().filter_map(|((value, name), _)| Some((&**name, (*value)?))).collect(),
                in_kib: there().filter(|((value, _), _)| value.is_some()).map(|(_, kib)| *kib).collect(),
            },
        };
        MemoryUse::of(&meminfo)
    }
}

impl<'a> Recording<'a> {
    /// The moments of a run; `None` if it has no series that could be shown.
    pub fn of(run: &'a Run) -> Option<Recording<'a>> {
        let all = |name: &'a str| recorded::named(run, name);
        // The times of the series with the most readings; those of another belong to the nearest of them.
        let times = |name| {
            let mut times: Vec<u64> = all(name).flat_map(|series| series.at_ns.iter().copied()).collect();
            times.sort_unstable();
            times.dedup();
            times
        };
        let names = [recorded::BUDDYINFO, recorded::VMSTAT, recorded::MEMINFO, recorded::PRESSURE];
        let ticks = names.into_iter().rev().map(times).max_by_key(Vec::len)?;
        if ticks.is_empty() {
            return None;
        }
        let zone_part =
            |series: &'a Series| ZonePart { at_ns: &series.at_ns, zones: recorded::zones_of(series) };
        Some(Recording {
            run,
            ticks,
            meminfo: all(recorded::MEMINFO).map(MeminfoPart::of).collect(),
            vmstat: all(recorded::VMSTAT).map(Part::of).collect(),
            pressure: all(recorded::PRESSURE).map(Part::of).collect(),
            zones: all(recorded::BUDDYINFO).map(zone_part).collect(),
            tracepoints: all(recorded::TRACEPOINTS).map(Part::of).collect(),
        })
    }

    /// Whether fallbacks to another migratetype's memory were counted.
    pub fn has_fallbacks(&self) -> bool {
        let mut columns = self.tracepoints.iter().flat_map(|part| part.columns.keys());
        columns.any(|name| recorded::counts_fallbacks(name))
    }

    /// Times of the readings.
    pub fn ticks(&self) -> &[u64] {
        &self.ticks
    }

    /// The run that it is of.
    pub fn run(&self) -> &'a Run {
        self.run
    }

    /// The moment with this index.
    pub fn sample(&self, at: usize) -> Sample {
        let Some(&at_ns) = self.ticks.get(at) else { return Sample::default() };
        let reach = self.reach(at);
        let vmstat = nearest(&self.vmstat, |part| part.at_ns, at_ns, reach);
        let pressure = nearest(&self.pressure, |part| part.at_ns, at_ns, reach);
        let share = |line: &str| {
            let (part, row) = pressure.as_ref()?;
            u32::try_from(part.value(&format!("memory.{line}.avg10"), *row)?).ok()
        };
        let memory = nearest(&self.meminfo, |part| part.at_ns, at_ns, reach);
        let zones = nearest(&self.zones, |part| part.at_ns, at_ns, reach);
        let zones = zones
            .into_iter()
            .flat_map(|(part, row)| part.zones.iter().map(move |zone| (zone.key.clone(), zone.areas(row))));
        let mut counters =
            Counter::pick(|name| vmstat.as_ref().and_then(|(part, row)| part.value(name, *row)));
        counters[Counter::Extfrag as usize] = nearest(&self.tracepoints, |part| part.at_ns, at_ns, reach)
            .and_then(|(part, row)| part.fallbacks(row));
        Sample {
            at_ns,
            memory: memory.map(|(part, row)| part.memory(row)).unwrap_or_default(),
            counters,
            zones: zones.collect(),
            some_centipercent: share("some"),
            full_centipercent: share("full"),
        }
    }

    /// How far from a tick a reading may be to belong to it: half the way to the nearer of its neighbours.
    fn reach(&self, at: usize) -> u64 {
        let here = self.ticks[at];
        let before = at.checked_sub(1).map(|before| here - self.ticks[before]);
        let after = self.ticks.get(at + 1).map(|after| after - here);
        before.into_iter().chain(after).min().unwrap_or(u64::MAX) / 2
    }

    /// The typical time between readings: the median.
    pub fn every_ns(&self) -> u64 {
        let mut steps: Vec<u64> = self.ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        steps.get(steps.len() / 2).copied().unwrap_or(0)
    }

    /// What the view knows from the start.
    pub fn about(&self) -> About {
        let manifest = &self.run.manifest;
        let zoneinfo = self.run.snapshot.as_ref().and_then(|snapshot| snapshot.zoneinfo.as_ref().ok());
        let zones = zoneinfo.into_iter().flat_map(|zoneinfo| &zoneinfo.zones);
        let page_size = manifest.machine.page_size;
        About {
            host: manifest.machine.host_name.clone().unwrap_or_default(),
            kernel: manifest.machine.kernel_release.clone().unwrap_or_default(),
            page_size,
            pmd_order: pagelab_host::collect::pmd_order(page_size, &manifest.settings),
            started: manifest.started,
            zone_sizes: zones.filter_map(|zone| Some((zone.key.clone(), zone.managed?))).collect(),
        }
    }

    /// The modes of huge pages when the recording began.
    pub fn modes(&self) -> Modes {
        let thp = self.run.manifest.settings.thp.as_ref();
        let word = |of: fn(&ThpSettings) -> &Reading<Choice>| match thp.map(of) {
            Ok(Ok(choice)) => Ok(choice.selected().to_owned()),
            Ok(Err(absence)) | Err(absence) => Err(absence.clone()),
        };
        Modes { enabled: word(|thp| &thp.enabled), defrag: word(|thp| &thp.defrag) }
    }

    /// The last thing that happened at or before a tick, and after the one `back` ticks before.
    pub fn remark(&self, at: usize, back: usize) -> Option<(u64, String)> {
        let until = *self.ticks.get(at)?;
        let after = at.checked_sub(back).map(|at| self.ticks[at]);
        let is_near = |at_ns: u64| at_ns <= until && after.is_none_or(|after| at_ns > after);
        let event = self.run.events.iter().rev().find(|event| is_near(event.at_ns))?;
        Some((event.at_ns, format!("{}: {}", event.kind, event.text)))
    }
}

/// Of all parts, the one with the reading that is nearest to a time, and that reading's row.
fn nearest<'p, P>(
    parts: &'p [P],
    times: impl Fn(&'p P) -> &'p [u64],
    at_ns: u64,
    reach: u64,
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
    (found.0 <= reach).then_some((found.1, found.2))
}
