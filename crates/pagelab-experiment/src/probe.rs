//! What is watched while a trial runs, and what it costs to watch.
//!
//! A trial goes through three moments: its process waits at a gate ([`Watching::begin`]), it runs
//! ([`Watching::tick`], again and again), and it has been waited for ([`Watching::end`]). Readings that make
//! the kernel walk the page tables of the process are made as seldom as an allowance permits
//! (`allowance.rs`), and what all of it took is a measure itself: `probe.cpu`, `probe.stop`.
//!
//! docs/run.md lists every measure.

mod allowance;
mod counters;
mod events;
mod first_touch;
mod flags;
mod group;
mod huge;
mod machine;
mod phase;
mod raw;
mod time;
mod tree;
mod wanted;
mod zero;

use pagelab_host::root::Root;
use pagelab_model::Reading;
use pagelab_model::experiment::{Better, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_sys::clock::{monotonic_ns, thread_cpu_ns};
use pagelab_sys::perf_count::Start;

use crate::group::Group;

pub use flags::{Asked, huge_pages_missing};
pub use pagelab_sys::wait::Rusage;
pub use phase::PhaseProbe;
pub use wanted::{PROBES, Wanted};

/// What a trial runs in, as far as probes need it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its control group, where it has one of its own.
    pub group: Option<&'a Group>,
    /// The group whose memory limit holds for it, where that is another one: it shares it with others.
    pub limited: Option<&'a Group>,
    /// Its first process, a child of this one.
    pub pid: i32,
}

/// How the trial's first process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// From its start to its end, ns.
    pub wall_ns: u64,
    /// All fields of `wait4`.
    pub rusage: Rusage,
    /// Processes that outlived the first one and were waited for, as a supervisor; they are in `rusage`.
    pub orphans: u64,
}

/// What the probes found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Measures, each with a name of its own.
    pub measures: Vec<Measure>,
    /// What must be known before they are believed.
    pub flags: Vec<Flag>,
}

/// Probes that are armed.
#[derive(Debug)]
pub struct Watching {
    counters: counters::Counters,
    tree: tree::Tree,
    huge: huge::Huge,
    machine: machine::Machine,
    group: group::Before,
    first_touch: first_touch::FirstTouch,
    cost: Cost,
}

/// What the probes themselves took since the trial began.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// CPU time of the thread that calls them, ns.
    cpu_ns: u64,
    /// Time in which the kernel held the target's memory map for them, ns.
    stop_ns: u64,
    /// When the trial began.
    began_ns: u64,
    /// When the last tick ended.
    last_ns: u64,
    /// Ticks.
    ticks: u64,
}

/// Makes ready what can be made ready before the child exists.
pub fn prepare(wanted: &Wanted, _group: Option<&Group>) -> Watching {
    let root = Root::live();
    Watching {
        counters: counters::Counters::prepare(&root, wanted),
        tree: tree::Tree::new(&root, wanted),
        huge: huge::Huge::prepare(&root, wanted),
        machine: machine::Machine::prepare(&root, wanted),
        group: group::Before::default(),
        first_touch: first_touch::FirstTouch::default(),
        cost: Cost::default(),
    }
}

impl Watching {
    /// Arms everything: the child waits at its gate, before it runs its program.
    pub fn begin(&mut self, target: &Target<'_>) {
        let cpu_ns = thread_cpu_ns();
        self.counters.open(target.pid, Start::AtExec);
        self.machine.before();
        self.group = group::Before::of(target.group);
        self.first_touch.begin(target);
        self.cost.began_ns = monotonic_ns();
        self.cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
    }

    /// Looks at the running trial; called about every 100 ms.
    pub fn tick(&mut self, target: &Target<'_>) {
        let (cpu_ns, at_ns) = (thread_cpu_ns(), monotonic_ns());
        let elapsed_ns = at_ns.saturating_sub(self.cost.began_ns);
        if let Some(look) = self.tree.look(target, elapsed_ns) {
            self.first_touch.look(target, look, elapsed_ns);
            self.cost.stop_ns += self.huge.look(look, elapsed_ns);
            self.cost.last_ns = monotonic_ns();
            self.cost.ticks += 1;
        }
        self.cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
    }

    /// How often it was looked at the running trial so far.
    pub fn looks(&self) -> u64 {
        self.cost.ticks
    }

    /// Reads what is left to read, and gives all measures. The child has been waited for; its group is still
    /// there.
    pub fn end(self, target: &Target<'_>, ended: &Ended) -> Found {
        let (cpu_ns, at_ns) = (thread_cpu_ns(), monotonic_ns());
        let Watching { counters, tree, huge, mut machine, group, first_touch, mut cost } = self;
        let mut found = Found::default();
        machine.after();
        time::measures(target.group, &group, &tree, ended, &mut found);
        first_touch.measures(&mut found);
        counters.measures(measures::COUNTER, &mut found);
        tree.measures(&mut found);
        huge.measures(&mut found);
        machine.measures(&mut found);
        group.measures(target, &mut found);
        cost.cpu_ns += thread_cpu_ns().saturating_sub(cpu_ns);
        cost.measures(at_ns, &mut found);
        found
    }
}

impl Cost {
    fn measures(&self, ended_ns: u64, found: &mut Found) {
        let own = "pagelab itself";
        found.ns("probe.cpu", Better::Neither, Ok(self.cpu_ns), own);
        found.ns("probe.stop", Better::Neither, Ok(self.stop_ns), own);
        found.count("probe.looks", Better::Neither, Ok(self.ticks), own);
        let last = match self.ticks {
            0 => Err(tree::too_short()),
            _ => Ok(ended_ns.saturating_sub(self.last_ns)),
        };
        found.ns("probe.last_look", Better::Neither, last, own);
    }
}

impl Found {
    fn put(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        better: Better,
        value: Reading<f64>,
        source: &str,
    ) {
        let (name, source) = (name.into(), source.to_owned());
        self.measures.push(Measure { name, unit: Unit::from(unit), better, value, source });
    }

    fn ns(&mut self, name: impl Into<String>, better: Better, value: Reading<u64>, source: &str) {
        self.put(name, Unit::NANOSECONDS, better, value.map(|value| value as f64), source);
    }

    fn bytes(&mut self, name: impl Into<String>, better: Better, value: Reading<u64>, source: &str) {
        self.put(name, Unit::BYTES, better, value.map(|value| value as f64), source);
    }

    fn count(&mut self, name: impl Into<String>, better: Better, value: Reading<u64>, source: &str) {
        self.put(name, Unit::COUNT, better, value.map(|value| value as f64), source);
    }
}
