//! Words of an experiment: variants × workloads × repeats at a place, watched by probes.
//!
//! A `Trial` is one run of one workload under one variant: the unit in which an experiment is carried out,
//! kept and resumed.

use serde::{Deserialize, Serialize};

use crate::Reading;
use crate::run::Unit;

/// An experiment as far as it was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// What was to be done.
    pub plan: Plan,
    /// What was done, in order.
    pub trials: Vec<Trial>,
}

impl Experiment {
    /// Trials that need not be made again. One that was stopped with the experiment is begun anew by whoever
    /// goes on with it.
    pub fn kept(&self) -> usize {
        self.trials.iter().filter(|trial| trial.end != TrialEnd::Stopped).count()
    }
}

/// What is to be done: resolved before anything runs, and written first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its short name, such as `thp`.
    pub name: String,
    /// The question that it answers, in one sentence.
    pub question: String,
    /// Where the recipe is from: `built in`, a path, or `command line`.
    pub origin: String,
    /// The recipe's text as it was read.
    pub recipe: String,
    /// Where it happens: `host`.
    pub place: String,
    /// What runs.
    pub workloads: Vec<WorkloadHead>,
    /// The settings under comparison.
    pub variants: Vec<VariantHead>,
    /// Index of the variant that the others are compared with.
    pub baseline: usize,
    /// How the trials follow each other.
    pub sequence: Sequence,
    /// Seed of the order and of the workloads.
    pub seed: u64,
    /// The share of time that less memory may cost before it is too little: 0.05. Older files do not say.
    #[serde(default = "loss")]
    pub loss: f64,
    /// All trials in the order in which they are to run.
    pub schedule: Vec<Slot>,
}

/// The share of time that less memory may cost where nobody says: five per cent.
pub const LOSS: f64 = 0.05;

fn loss() -> f64 {
    LOSS
}

/// How trials of different variants follow each other; never plainly A B A B, which a drift would tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sequence {
    /// There and back: A B B A, A B C C B A.
    Abba,
    /// Each round has all variants in an order that the seed decides.
    Blocks,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadHead {
    /// Its name, unique in the experiment.
    pub name: String,
    /// The command that is run, program first.
    pub command: Vec<String>,
    /// Pattern, share, seed, size, dependence and first touch of what generates its accesses, where it is
    /// one of ours; else what its manifest says of its input.
    pub generator: String,
    /// The measure that is the workload's own figure of merit, such as `merit`; else `wall` judges it.
    pub merit: Option<String>,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantHead {
    /// Its name, unique in the experiment.
    pub name: String,
    /// What is set, as `key` and value of the recipe.
    pub settings: Vec<(String, String)>,
    /// Whether it asks for huge pages: if none come, its ratio is no effect of huge pages.
    pub asks_for_huge_pages: bool,
}

/// A place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Index of the workload.
    pub workload: usize,
    /// Index of the variant.
    pub variant: usize,
    /// Trials of one workload and one round are compared with each other.
    pub round: u32,
    /// What it is for.
    pub role: Role,
}

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Not counted.
    WarmUp,
    /// Counted.
    Measured,
    /// The baseline again: with the baseline of its round, a pair of equals, which tells the noise floor.
    Twin,
}

/// One run of one workload under one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its index in the schedule.
    pub slot: usize,
    /// When it began, in nanoseconds since the start of the run.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// How it ended.
    pub end: TrialEnd,
    /// What the probes and the workload itself said.
    pub measures: Vec<Measure>,
    /// What must be known before its numbers are believed.
    pub flags: Vec<Flag>,
    /// The last lines of its output, where it did not end well; else empty.
    pub last_output: String,
}

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    /// As it should: its measures count.
    Done,
    /// It ended by itself with this exit code.
    Failed(i32),
    /// A signal ended it.
    Killed(i32),
    /// The kernel killed it for want of memory: a data point of its own where memory is limited.
    OutOfMemory,
    /// It took longer than it may, in nanoseconds, and was ended.
    TimedOut(u64),
    /// It ended well and said something that is no result.
    Nonsense(String),
    /// It left processes behind that outlived it; they were ended.
    LeftBehind(u64),
    /// It could not be begun, in words.
    NotBegun(String),
    /// It ran, and something from outside spoilt it.
    Rejected(String),
    /// Somebody ended the experiment meanwhile.
    Stopped,
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Better {
    /// Less is better: times, misses, faults.
    Lower,
    /// More is better: operations per second.
    Higher,
    /// It says something and is neither good nor bad.
    Neither,
}

/// One number of one trial, or why it is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name, unique in the trial; docs/run.md lists those of the probes.
    pub name: String,
    /// Unit of the value.
    pub unit: Unit,
    /// Which direction is good.
    pub better: Better,
    /// Finite.
    pub value: Reading<f64>,
    /// Where it is from: the file, the call, or the workload itself.
    pub source: String,
}

/// What must be known before the numbers of a trial are believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// One of the words below; one that this reader does not know is kept.
    pub kind: String,
    /// What was found, in a phrase without a trailing dot.
    pub text: String,
}

impl Flag {
    /// Huge pages were asked for and did not come.
    pub const NO_HUGE_PAGES: &'static str = "no huge pages";
    /// Huge pages were asked for, and nobody could see whether they came.
    pub const HUGE_PAGES_UNSEEN: &'static str = "huge pages unseen";
    /// The machine was busy with something else.
    pub const NOT_QUIET: &'static str = "not quiet";
    /// Counters shared the hardware: their values are scaled up.
    pub const MULTIPLEXED: &'static str = "multiplexed";
    /// A setting that was asked for was not what the kernel said afterwards.
    pub const NOT_APPLIED: &'static str = "not applied";
    /// Less than all of a plan's regions were on huge pages.
    pub const PLAN_PARTLY: &'static str = "plan partly";
    /// The host takes free memory back, and not all that the trial took was touched before it.
    pub const NOT_WARMED: &'static str = "not warmed";
}

/// Names of measures that more than one crate must know.
pub mod measures {
    /// Time from start to end, ns.
    pub const WALL: &str = "wall";
    /// CPU time of the whole tree in user mode, ns.
    pub const CPU_USER: &str = "cpu.user";
    /// CPU time of the whole tree in the kernel, ns.
    pub const CPU_SYSTEM: &str = "cpu.system";
    /// The part of it in which memory was touched for the first time, ns.
    pub const FIRST_TOUCH: &str = "cpu.system.first_touch";
    /// User and system.
    pub const CPU: &str = "cpu";
    /// The most that the group was charged for, bytes.
    pub const PEAK: &str = "memory.peak";
    /// The workload's own figure of merit.
    pub const MERIT: &str = "merit";
    /// Bytes in huge pages at the most, of all kinds, the huge zero page left out.
    pub const HUGE: &str = "huge.all";
    /// The prefix of the workload's own latencies: `latency.p50`, `latency.p99.9`.
    pub const LATENCY: &str = "latency.";
    /// Regions that a plan names, where a trial ran under one.
    pub const PLAN_WANTED: &str = "plan.wanted";
    /// Those of them that were on huge pages when they were looked at.
    pub const PLAN_GOT: &str = "plan.got";
    /// CPU time of the supervisor that a trial ran under, ns; it is in that of the tree too.
    pub const PLAN_CPU: &str = "plan.supervisor_cpu";
    /// For how long the program stood still for its supervisor, ns.
    pub const PLAN_STOPPED: &str = "plan.stopped";
    /// The prefix of hardware and software counters, named as `perf` names them.
    pub const COUNTER: &str = "counter.";
    /// The prefix of what was measured from the begin to the end of a workload's measured phase alone:
    /// `phase.wall`, `phase.counter.page-faults`. The same names without it are of the whole process.
    pub const PHASE: &str = "phase.";
    /// The prefix of what a model of the TLBs counted in one run of the program under QEMU, for one trial of
    /// each workload and variant: no counter has ever seen it.
    pub const MODEL: &str = "model.";
}
