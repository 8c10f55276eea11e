//! Probes of a running trial, and their cost.
//!
//! A trial has three stages: its process waits at a gate ([`ArmedProbes::arm`]), it runs
//! ([`ArmedProbes::tick`], repeatedly), and it has been waited for ([`ArmedProbes::finish`]). Readings that
//! make the kernel walk the page tables of the process are limited by a time budget (`time_budget.rs`), and
//! the total cost is itself a measure: `probe.cpu`, `probe.stop`.
//!
//! docs/run.md lists every measure.

mod cgroup_counters;
mod counters;
mod first_touch;
mod flags;
mod huge;
mod huge_zero_page;
mod machine;
mod module_counters;
mod page_walk_events;
mod phase;
mod process_tree;
mod selection;
mod time_and_peak;
mod time_budget;

use pagelab_host::root::Root;
use pagelab_model::Reading;
use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_sys::clock::{monotonic_ns, thread_cpu_ns};
use pagelab_sys::perf_event::CounterStart;

use crate::cgroup::TrialCgroup;

pub use flags::missing_huge_pages_flag;
pub use pagelab_sys::wait::Rusage;
pub use phase::PhaseProbe;
pub use selection::{PROBE_NAMES, ProbeSelection};

/// Properties of the trial that probes need.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTarget<'a> {
    /// Its control group, if it has one.
    pub cgroup: Option<&'a TrialCgroup>,
    /// The group whose memory limit applies to it, if it shares one with others.
    pub limited_cgroup: Option<&'a TrialCgroup>,
    /// Its first process, a child of this one.
    pub pid: i32,
}

/// End of the trial's first process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetExit {
    /// From its start to its end, ns.
    pub wall_ns: u64,
    /// All fields of `wait4`.
    pub rusage: Rusage,
    /// Processes that outlived the first one and were waited for, such as a supervisor; they are in `rusage`.
    pub orphan_count: u64,
}

/// Results of the probes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReadings {
    /// Measures, with unique names.
    pub measures: Vec<Measure>,
    /// Caveats of their numbers.
    pub flags: Vec<Flag>,
}

/// Armed probes.
#[derive(Debug)]
pub struct ArmedProbes {
    counters: counters::PerfCounters,
    tree: process_tree::ProcessTree,
    huge: huge::HugeBytesProbe,
    machine: machine::MachineCounters,
    module: module_counters::ModuleCounters,
    cgroup: cgroup_counters::CgroupBaseline,
    first_touch: first_touch::FirstTouch,
    cost: ProbeCost,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProbeCost {
    /// CPU time of the thread that calls them, ns.
    cpu_ns: u64,
    /// Time in which the kernel held the target's mmap lock for them, ns.
    mmap_lock_ns: u64,
    began_ns: u64,
    last_tick_ns: u64,
    ticks: u64,
}

/// Prepares what does not need the child.
pub fn prepare_probes(selection: &ProbeSelection) -> ArmedProbes {
    let root = Root::live();
    ArmedProbes {
        counters: counters::PerfCounters::prepare(&root, selection),
        tree: process_tree::ProcessTree::new(&root, selection),
        huge: huge::HugeBytesProbe::prepare(&root, selection),
        machine: machine::MachineCounters::prepare(&root, selection),
        module: module_counters::ModuleCounters::default(),
        cgroup: cgroup_counters::CgroupBaseline::default(),
        first_touch: first_touch::FirstTouch::default(),
        cost: ProbeCost::default(),
    }
}

impl ArmedProbes {
    /// Arms all probes: the child waits at its gate, before it runs its program.
    pub fn arm(&mut self, target: &ProbeTarget<'_>) {
        let cpu_ns = thread_cpu_ns();
        self.counters.open(target.pid, CounterStart::OnExec);
        self.machine.read_before();
        self.module = module_counters::ModuleCounters::read(&Root::live());
        self.cgroup = cgroup_counters::CgroupBaseline::read_baseline(target.cgroup);
        self.first_touch.begin(target);
        self.cost.began_ns = monotonic_ns();
        self.cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
    }

    /// Reads the running trial; called about every 100 ms.
    pub fn tick(&mut self, target: &ProbeTarget<'_>) {
        let (cpu_ns, at_ns) = (thread_cpu_ns(), monotonic_ns());
        let elapsed_ns = at_ns.saturating_sub(self.cost.began_ns);
        if let Some(sample) = self.tree.sample(target, elapsed_ns) {
            self.first_touch.record_scan(target, sample, elapsed_ns);
            self.cost.mmap_lock_ns += self.huge.record_scan(sample, elapsed_ns);
            self.cost.last_tick_ns = monotonic_ns();
            self.cost.ticks += 1;
        }
        self.cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
    }

    /// Number of scans of the running trial so far.
    pub fn scan_count(&self) -> u64 {
        self.cost.ticks
    }

    /// Takes the last readings, and returns all measures. The child has been waited for; its group still
    /// exists.
    pub fn finish(self, target: &ProbeTarget<'_>, exit: &TargetExit) -> ProbeReadings {
        let (cpu_ns, at_ns) = (thread_cpu_ns(), monotonic_ns());
        let ArmedProbes { counters, tree, huge, mut machine, module, cgroup: group, first_touch, mut cost } =
            self;
        let mut readings = ProbeReadings::default();
        machine.read_after();
        time_and_peak::add_measures(target.cgroup, &group, &tree, exit, &mut readings);
        first_touch.add_measures(&mut readings);
        counters.add_measures(measures::COUNTER_PREFIX, &mut readings);
        tree.add_measures(&mut readings);
        huge.add_measures(&mut readings);
        machine.add_measures(&mut readings);
        module.add_measures(&Root::live(), &mut readings);
        group.add_measures(target, &mut readings);
        cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
        cost.add_measures(at_ns, &mut readings);
        readings
    }
}

impl ProbeCost {
    fn add_measures(&self, ended_ns: u64, readings: &mut ProbeReadings) {
        let probe_source = "pagelab itself";
        readings.push_ns("probe.cpu", BetterDirection::Neither, Ok(self.cpu_ns), probe_source);
        readings.push_ns("probe.stop", BetterDirection::Neither, Ok(self.mmap_lock_ns), probe_source);
        readings.push_count("probe.scans", BetterDirection::Neither, Ok(self.ticks), probe_source);
        let last_scan = match self.ticks {
            0 => Err(process_tree::too_short_absence()),
            _ => Ok(ended_ns.saturating_sub(self.last_tick_ns)),
        };
        readings.push_ns("probe.last_scan", BetterDirection::Neither, last_scan, probe_source);
    }
}

impl ProbeReadings {
    fn push(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        better: BetterDirection,
        value: Reading<f64>,
        source: &str,
    ) {
        self.measures.push(Measure::new(name, unit, better, value, source));
    }

    fn push_ns(&mut self, name: &str, better: BetterDirection, value: Reading<u64>, source: &str) {
        self.push(name, Unit::NANOSECONDS, better, value.map(|value| value as f64), source);
    }

    fn push_bytes(&mut self, name: &str, better: BetterDirection, value: Reading<u64>, source: &str) {
        self.push(name, Unit::BYTES, better, value.map(|value| value as f64), source);
    }

    fn push_count(&mut self, name: &str, better: BetterDirection, value: Reading<u64>, source: &str) {
        self.push(name, Unit::COUNT, better, value.map(|value| value as f64), source);
    }
}
