//! The sampler: what a recording, a live view or a daemon reads at every tick, cheaply.
//!
//! Files are kept open and read back to back. What cannot be read is absent at that tick, and the rest goes
//! on: a sampler never ends by itself. What costs much is read at a cadence of its own.

mod cadence;
mod groups;
mod metrics;
mod processes;
mod source;
mod tables;
#[cfg(test)]
mod tests;
mod thp;
mod traced;
mod whole;

use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsentWhy, BuddyInfo, Counters, Meminfo, PageSize, Reading, Stacks};

use crate::fast::{FastSnapshot, RESOURCES, Wanted, may_pass};
use crate::machine::live_page_size;
use crate::root::Root;
use cadence::{Bound, Cadence};
pub use metrics::{Metric, Metrics, Which};
use source::{Paced, Source};
pub use tables::{Notice, Table};

/// Kept-open files of the metrics that were asked for.
#[derive(Debug)]
pub struct Sampler {
    fast_metrics: Vec<Metric>,
    fast: FastSnapshot,
    /// What cannot be read at the moment, by place in `fast_now`.
    failing: [Option<Absence>; 3 + RESOURCES.len()],
    paced: Vec<Paced>,
    absent: Vec<(Metric, Absence)>,
    notices: Vec<Notice>,
}

/// What one metric said at the last sample.
#[derive(Debug)]
pub struct Part<'a> {
    /// Which metric.
    pub metric: &'a Metric,
    /// Changes, if anything does, when the names of the values change.
    pub shape: u64,
    /// The values.
    pub seen: Seen<'a>,
}

/// A value of the last sample, or why there is none.
pub type Now<'a, T> = Result<&'a T, &'a Absence>;

/// The values of one metric.
#[derive(Debug)]
pub enum Seen<'a> {
    /// `/proc/meminfo`.
    Meminfo(Now<'a, Meminfo>),
    /// `/proc/vmstat`.
    Vmstat(Now<'a, Counters>),
    /// `/proc/buddyinfo`.
    Buddyinfo(Now<'a, BuddyInfo>),
    /// Pressure by resource.
    Pressure([(&'static str, Now<'a, Pressure>); RESOURCES.len()]),
    /// The other metrics; each table has its own shape and may not have been due.
    Tables(&'a [Table]),
}

impl Sampler {
    /// Opens what is asked for. What is not available here is told by [`Sampler::absent`]; the rest goes on.
    pub fn open(root: &Root, metrics: &Metrics) -> Sampler {
        let wanted = Wanted {
            meminfo: metrics.has(&Metric::Meminfo),
            vmstat: metrics.has(&Metric::Vmstat),
            buddyinfo: metrics.has(&Metric::Buddyinfo),
            pressure: metrics.has(&Metric::Pressure),
        };
        let mut sampler = Sampler {
            fast_metrics: Vec::new(),
            fast: FastSnapshot::open(root, wanted),
            failing: Default::default(),
            paced: Vec::new(),
            absent: Vec::new(),
            notices: Vec::new(),
        };
        // What is absent from the start is told by `absent`.
        for ((_, absence), failing) in Sampler::fast_now(&sampler.fast).into_iter().zip(&mut sampler.failing)
        {
            *failing = asked(absence).cloned();
        }
        let page_size = live_page_size().unwrap_or(PageSize::USUAL);
        for metric in metrics.iter() {
            match open(root, page_size, metric) {
                Some(Ok((cadence, source))) => {
                    sampler.paced.push(Paced::new(metric.clone(), cadence, source));
                }
                Some(Err(absence)) => sampler.absent.push((metric.clone(), absence)),
                None => sampler.open_fast(metric),
            }
        }
        sampler
    }

    /// One of the fast metrics, if anything of it is there.
    fn open_fast(&mut self, metric: &Metric) {
        let absent: Vec<Absence> = match metric {
            Metric::Meminfo => self.fast.meminfo().err().cloned().into_iter().collect(),
            Metric::Vmstat => self.fast.vmstat().err().cloned().into_iter().collect(),
            Metric::Buddyinfo => self.fast.buddyinfo().err().cloned().into_iter().collect(),
            _ => self.fast.pressures().iter().filter_map(|(_, now)| now.err().cloned()).collect(),
        };
        let parts = if *metric == Metric::Pressure { RESOURCES.len() } else { 1 };
        if absent.len() < parts || absent.iter().any(may_pass) {
            self.fast_metrics.push(metric.clone());
        }
        let way_out = "Linux 4.20 or later with CONFIG_PSI=y, booted with psi=1";
        for absence in absent {
            let has_way_out = *metric != Metric::Pressure || absence.way_out.is_some();
            let absence = if has_way_out { absence } else { absence.or(way_out) };
            self.absent.push((metric.clone(), absence));
        }
    }

    /// Metrics, or parts of them, that are not available here.
    pub fn absent(&self) -> &[(Metric, Absence)] {
        &self.absent
    }

    /// Whether there is nothing to read at all.
    pub fn is_empty(&self) -> bool {
        self.fast_metrics.is_empty() && self.paced.is_empty()
    }

    /// Reads what is due at `at_ns`: nanoseconds on any clock that goes forward, for the cadences.
    pub fn sample(&mut self, at_ns: u64) {
        if !self.fast_metrics.is_empty() {
            self.fast.sample();
            self.note_fast();
        }
        for paced in &mut self.paced {
            paced.sample(at_ns);
            self.notices.append(&mut paced.tables.notices);
        }
    }

    /// Remembers which files can be read no longer, and which again.
    fn note_fast(&mut self) {
        let Sampler { fast, failing, notices, .. } = self;
        for ((name, absence), failing) in Sampler::fast_now(fast).into_iter().zip(failing) {
            source::note(failing, name, asked(absence).cloned(), notices);
        }
    }

    /// What the fast files lack now, by place in `failing`, with the name of its metric.
    fn fast_now(fast: &FastSnapshot) -> [(&'static str, Option<&Absence>); 3 + RESOURCES.len()] {
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
    /// [`Sampler::cannot_wait`] says so.
    pub fn between(&mut self) {
        self.paced.iter_mut().for_each(Paced::between);
    }

    /// Whether something fills up between ticks.
    pub fn cannot_wait(&self) -> bool {
        self.paced.iter().any(|paced| matches!(paced.metric, Metric::Tracepoints(_)))
    }

    /// Call stacks of fallbacks since the start, where they were asked for.
    pub fn stacks(&self) -> Option<Stacks> {
        self.paced.iter().find_map(Paced::stacks)
    }

    /// What has happened since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// meminfo, vmstat, buddyinfo and pressure of the last sample.
    pub fn fast(&self) -> &FastSnapshot {
        &self.fast
    }

    /// Everything of the last sample.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let [meminfo, vmstat, buddyinfo, pressure] = self.fast.shapes();
        let fast = self.fast_metrics.iter().map(move |metric| {
            let (shape, seen) = match metric {
                Metric::Meminfo => (meminfo, Seen::Meminfo(self.fast.meminfo())),
                Metric::Vmstat => (vmstat, Seen::Vmstat(self.fast.vmstat())),
                Metric::Buddyinfo => (buddyinfo, Seen::Buddyinfo(self.fast.buddyinfo())),
                _ => (pressure, Seen::Pressure(self.fast.pressures())),
            };
            Part { metric, shape, seen }
        });
        fast.chain(self.paced.iter().map(Paced::part))
    }
}

fn asked(absence: Option<&Absence>) -> Option<&Absence> {
    absence.filter(|absence| absence.why != AbsentWhy::NotAsked)
}

/// The source of a metric that has a cadence; `None` for one of the fast ones.
fn open(root: &Root, page_size: PageSize, metric: &Metric) -> Option<Reading<(Cadence, Box<dyn Source>)>> {
    const MILLISECOND: u64 = 1_000_000;
    let (bound, source): (Bound, Reading<Box<dyn Source>>) = match metric {
        Metric::Meminfo | Metric::Vmstat | Metric::Buddyinfo | Metric::Pressure => return None,
        Metric::Thp => {
            let thp = thp::Thp::open(root).map(|thp| Box::new(thp) as Box<dyn Source>);
            (Bound::Nanoseconds(MILLISECOND), thp)
        }
        Metric::Pagetypeinfo => (Bound::Nanoseconds(MILLISECOND), whole::pagetype(root, page_size)),
        Metric::Zoneinfo => (Bound::Permille(1), whole::zones(root, page_size)),
        Metric::Slab => (Bound::Permille(1), whole::slab(root, page_size)),
        Metric::Cgroups(pattern) => {
            let groups = groups::Groups::open(root, pattern.as_deref());
            (Bound::Permille(1), groups.map(|groups| Box::new(groups) as Box<dyn Source>))
        }
        Metric::Tracepoints(depth) => {
            let traced = traced::Traced::open(root, page_size, *depth);
            // Rings fill up whatever reading them costs, so that the cadence does not back off.
            (Bound::Nanoseconds(u64::MAX), traced.map(|traced| Box::new(traced) as Box<dyn Source>))
        }
        Metric::Processes(which) => {
            let processes = processes::Processes::open(root, page_size, which);
            (Bound::Permille(1), processes.map(|processes| Box::new(processes) as Box<dyn Source>))
        }
    };
    Some(source.map(|source| (Cadence::new(metric.interval_ns(), bound), source)))
}
