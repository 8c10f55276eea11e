//! Sampler: the cheap readings at every tick of a recording or a live view.
//!
//! Files are kept open and read back to back. An unreadable metric is absent at that tick, and the others
//! continue: a sampler never ends by itself. Expensive sources have their own cadence.

mod cgroups;
mod file_source;
mod metrics;
mod processes;
mod source;
mod tables;
#[cfg(test)]
mod tests;
mod thp;
mod tracepoint_source;

use pagelab_model::pressure::Pressure;
use pagelab_model::{
    Absence, AbsenceReason, BuddyInfo, Counters, FallbackStacks, Meminfo, PageSize, Reading,
};

use crate::fast_snapshot::{FastSnapshot, FileSelection, PRESSURE_RESOURCES, is_transient};
use crate::machine::live_page_size;
use crate::root::Root;
pub use metrics::{Metric, Metrics, ProcessFilter};
use source::{Cadence, CostBound, MetricSource, PacedSource};
pub use tables::{Notice, Table};

/// Open files of the requested metrics.
#[derive(Debug)]
pub struct Sampler {
    fast_metrics: Vec<Metric>,
    fast_snapshot: FastSnapshot,
    /// Sources that cannot be read at present, by index in `fast_now`.
    fast_absences: [Option<Absence>; 3 + PRESSURE_RESOURCES.len()],
    paced_sources: Vec<PacedSource>,
    absent: Vec<(Metric, Absence)>,
    notices: Vec<Notice>,
}

/// Value of one metric at the last sample.
#[derive(Debug)]
pub struct MetricSample<'a> {
    /// Which metric.
    pub metric: &'a Metric,
    /// Changes, if anything does, when the names of the values change.
    pub layout_version: u64,
    /// The values.
    pub values: MetricValues<'a>,
}

/// A value of the last sample, or the reason for its absence.
pub type LatestValue<'a, T> = Result<&'a T, &'a Absence>;

/// The values of one metric.
#[derive(Debug)]
pub enum MetricValues<'a> {
    /// `/proc/meminfo`.
    Meminfo(LatestValue<'a, Meminfo>),
    /// `/proc/vmstat`.
    Vmstat(LatestValue<'a, Counters>),
    /// `/proc/buddyinfo`.
    Buddyinfo(LatestValue<'a, BuddyInfo>),
    /// Pressure by resource.
    Pressure([(&'static str, LatestValue<'a, Pressure>); PRESSURE_RESOURCES.len()]),
    /// The other metrics; each table has its own shape and may not have been due.
    Tables(&'a [Table]),
}

impl Sampler {
    /// Opens the requested metrics. Unavailable ones are in [`Sampler::absences`]; the rest is read.
    pub fn open(root: &Root, metrics: &Metrics) -> Sampler {
        let selection = FileSelection {
            meminfo: metrics.contains(&Metric::Meminfo),
            vmstat: metrics.contains(&Metric::Vmstat),
            buddyinfo: metrics.contains(&Metric::Buddyinfo),
            pressure: metrics.contains(&Metric::Pressure),
        };
        let mut sampler = Sampler {
            fast_metrics: Vec::new(),
            fast_snapshot: FastSnapshot::open(root, selection),
            fast_absences: Default::default(),
            paced_sources: Vec::new(),
            absent: Vec::new(),
            notices: Vec::new(),
        };
        // Metrics that are absent from the start are listed by `absences`.
        sampler.update_fast_absences();
        sampler.notices.clear();
        let page_size = live_page_size().unwrap_or(PageSize::DEFAULT);
        for metric in metrics.iter() {
            match open_source(root, page_size, metric) {
                Some(Ok((cadence, source))) => {
                    sampler.paced_sources.push(PacedSource::new(metric.clone(), cadence, source));
                }
                Some(Err(absence)) => sampler.absent.push((metric.clone(), absence)),
                None => sampler.open_fast(metric),
            }
        }
        sampler
    }

    /// One of the fast metrics, if any of its files exists.
    fn open_fast(&mut self, metric: &Metric) {
        let files = Sampler::current_fast_absences(&self.fast_snapshot).into_iter();
        let files = files.filter(|(name, _)| *name == metric.name());
        let absent: Vec<Absence> = files.filter_map(|(_, absence)| absence.cloned()).collect();
        let parts = if *metric == Metric::Pressure { PRESSURE_RESOURCES.len() } else { 1 };
        if absent.len() < parts || absent.iter().any(is_transient) {
            self.fast_metrics.push(metric.clone());
        }
        let hint = "Linux 4.20 or later with CONFIG_PSI=y, booted with psi=1";
        for absence in absent {
            let has_hint = *metric != Metric::Pressure || absence.hint.is_some();
            let absence = if has_hint { absence } else { absence.with_hint(hint) };
            self.absent.push((metric.clone(), absence));
        }
    }

    /// Metrics, or parts of them, that are not available here.
    pub fn absences(&self) -> &[(Metric, Absence)] {
        &self.absent
    }

    /// Whether there is nothing to read at all.
    pub fn is_empty(&self) -> bool {
        self.fast_metrics.is_empty() && self.paced_sources.is_empty()
    }

    /// Reads the due metrics at `at_ns`, in nanoseconds of any monotonic clock, for the cadences.
    pub fn sample(&mut self, at_ns: u64) {
        if !self.fast_metrics.is_empty() {
            self.fast_snapshot.sample();
            self.update_fast_absences();
        }
        for paced in &mut self.paced_sources {
            paced.sample(at_ns);
            self.notices.append(&mut paced.tables.notices);
        }
    }

    /// Remembers which files can be read no longer, and which again.
    fn update_fast_absences(&mut self) {
        let Sampler { fast_snapshot: fast, fast_absences: failing, notices, .. } = self;
        for ((name, absence), failing) in Sampler::current_fast_absences(fast).into_iter().zip(failing) {
            let absence = absence.filter(|absence| absence.why != AbsenceReason::NotRequested);
            source::note_transition(failing, name, absence.cloned(), notices);
        }
    }

    /// Absent fast files, by index in `failing`, with the names of their metrics.
    fn current_fast_absences(
        fast: &FastSnapshot,
    ) -> [(&'static str, Option<&Absence>); 3 + PRESSURE_RESOURCES.len()] {
        let [memory, io, cpu] = fast.pressures();
        [
            ("meminfo", fast.meminfo().err()),
            ("vmstat", fast.vmstat().err()),
            ("buddyinfo", fast.buddyinfo().err()),
            ("pressure", memory.1.err()),
            ("pressure", io.1.err()),
            ("pressure", cpu.1.err()),
        ]
    }

    /// Does what cannot wait for the next tick; to be called about once a second where
    /// [`Sampler::needs_draining`] is true.
    pub fn drain_pending(&mut self) {
        self.paced_sources.iter_mut().for_each(|paced| paced.source.drain_pending());
    }

    /// Whether something fills up between ticks.
    pub fn needs_draining(&self) -> bool {
        self.paced_sources.iter().any(|paced| matches!(paced.metric, Metric::Tracepoints(_)))
    }

    /// Call stacks of fallbacks since the start, if requested.
    pub fn stacks(&self) -> Option<FallbackStacks> {
        self.paced_sources.iter().find_map(|paced| paced.source.stacks())
    }

    /// Events since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// meminfo, vmstat, buddyinfo and pressure of the last sample.
    pub fn fast_snapshot(&self) -> &FastSnapshot {
        &self.fast_snapshot
    }

    /// Everything of the last sample.
    pub fn metric_samples(&self) -> impl Iterator<Item = MetricSample<'_>> {
        let [meminfo, vmstat, buddyinfo, pressure] = self.fast_snapshot.layout_versions();
        let fast = self.fast_metrics.iter().map(move |metric| {
            let (shape, seen) = match metric {
                Metric::Meminfo => (meminfo, MetricValues::Meminfo(self.fast_snapshot.meminfo())),
                Metric::Vmstat => (vmstat, MetricValues::Vmstat(self.fast_snapshot.vmstat())),
                Metric::Buddyinfo => (buddyinfo, MetricValues::Buddyinfo(self.fast_snapshot.buddyinfo())),
                _ => (pressure, MetricValues::Pressure(self.fast_snapshot.pressures())),
            };
            MetricSample { metric, layout_version: shape, values: seen }
        });
        fast.chain(self.paced_sources.iter().map(|paced| MetricSample {
            metric: &paced.metric,
            layout_version: 0,
            values: MetricValues::Tables(&paced.tables.tables),
        }))
    }
}

/// The source of a metric that has a cadence; `None` for one of the fast ones.
fn open_source(
    root: &Root,
    page_size: PageSize,
    metric: &Metric,
) -> Option<Reading<(Cadence, Box<dyn MetricSource>)>> {
    const MILLISECOND: CostBound = CostBound::Nanoseconds(1_000_000);
    const PERMILLE: CostBound = CostBound::Permille(1);
    let (bound, source) = match metric {
        Metric::Meminfo | Metric::Vmstat | Metric::Buddyinfo | Metric::Pressure => return None,
        Metric::Thp => (MILLISECOND, boxed(thp::ThpSource::open(root))),
        Metric::Pagetypeinfo => (MILLISECOND, file_source::open_pagetypeinfo(root, page_size)),
        Metric::Zoneinfo => (PERMILLE, file_source::open_zoneinfo(root, page_size)),
        Metric::Slab => (PERMILLE, file_source::open_slabinfo(root, page_size)),
        Metric::Cgroups(pattern) => (PERMILLE, boxed(cgroups::CgroupSource::open(root, pattern.as_deref()))),
        Metric::Tracepoints(depth) => {
            let traced = tracepoint_source::TracepointSource::open(root, page_size, *depth);
            // Rings fill regardless of the cost of reading, so the cadence does not back off.
            (CostBound::Nanoseconds(u64::MAX), boxed(traced))
        }
        Metric::Processes(which) => (PERMILLE, boxed(processes::ProcessSource::open(root, page_size, which))),
    };
    Some(source.map(|source| (Cadence::new(metric.interval_ns(), bound), source)))
}

fn boxed<S: MetricSource + 'static>(source: Reading<S>) -> Reading<Box<dyn MetricSource>> {
    source.map(|source| Box::new(source) as Box<dyn MetricSource>)
}
