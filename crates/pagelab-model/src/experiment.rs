//! Terms of an experiment: variants × workloads × repeats at a place, observed by probes.
//!
//! A `Trial` is one run of one workload under one variant: the unit in which an experiment is run, stored and
//! resumed.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Reading;
use crate::run::Unit;
use crate::simulation::{ScheduleGrid, SimulatedWorkload, Sweep, TrialSeries};

/// An experiment with its results so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The plan.
    pub plan: Plan,
    /// The trials, in order.
    pub trials: Vec<Trial>,
}

impl Experiment {
    /// Trials that a resumed session does not repeat.
    pub fn count_completed(&self) -> usize {
        self.trials.iter().filter(|trial| !trial.end.is_repeated()).count()
    }

    /// Trials that ran, and those that remain.
    pub fn count_planned(&self) -> usize {
        let ended: BTreeSet<usize> = self.trials.iter().map(|trial| trial.slot).collect();
        let slots = self.plan.schedule.iter().enumerate();
        slots.filter(|(at, slot)| self.plan.keeps(*slot) || ended.contains(at)).count()
    }

    /// Counted rounds from the first on of which every trial ended, well or not.
    pub fn count_completed_rounds(&self) -> usize {
        let ended = self.trials.iter().filter(|trial| trial.end != TrialEnd::Stopped);
        self.plan.count_completed_rounds(&ended.map(|trial| trial.slot).collect())
    }
}

/// The plan: resolved before anything runs, and written first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its short name, such as `thp`.
    pub name: String,
    /// Question that it answers, in one sentence; may be empty.
    pub question: String,
    /// Description, and how to read its numbers; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub explanation: String,
    /// The recipe's origin: `built in`, a path, or `command line`.
    pub origin: String,
    /// The recipe's text.
    pub recipe: String,
    /// Its place: `host`, `guest`, `simulator` or `imported`.
    pub place: String,
    /// Version of the simulator, if it is the place: another version may give other results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulator: Option<String>,
    /// The workloads.
    pub workloads: Vec<PlannedWorkload>,
    /// The compared settings.
    pub variants: Vec<PlannedVariant>,
    /// Index of the baseline variant; `None` for a sweep.
    pub baseline: Option<usize>,
    /// Order of the trials.
    pub sequence: Sequence,
    /// Seed of the order and of the workloads; in the simulator, the first seed.
    pub seed: u64,
    /// Acceptable loss of time for less memory: 0.05. Older files do not have it.
    #[serde(default = "loss")]
    pub loss: f64,
    /// All trials in their planned order.
    pub schedule: Schedule,
    /// The varied parameters, and the measure that ranks the points; `None` for a comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// Pictures of memory that each point of the simulator keeps with the first seed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pictures: u32,
    /// When it may end before its last planned round; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_end: Option<EarlyEnd>,
    /// Variants without further trials, by index: the first one got none of the huge pages that it requested.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped_variants: BTreeSet<usize>,
}

/// When an experiment on this machine may end before its last planned round. Its schedule is then cut after
/// the last completed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyEnd {
    /// Planned rounds, before a cut.
    pub rounds_max: u32,
    /// Whether it ends after a look at which every variant has an effect.
    pub has_looks: bool,
    /// Limit on the time of all trials, in nanoseconds.
    pub time_budget_ns: Option<u64>,
}

impl Plan {
    /// The place where simulated trials run.
    pub const SIMULATOR: &'static str = "simulator";
    /// The place where trials run on this machine.
    pub const HOST: &'static str = "host";
    /// The place where trials run in disposable guests.
    pub const GUEST: &'static str = "guest";

    /// Whether the trials are simulated: equal trials then have equal results, bit by bit.
    pub fn is_simulated(&self) -> bool {
        self.place == Plan::SIMULATOR
    }

    /// The accepted loss as a share: a file can say anything.
    pub fn accepted_loss(&self) -> f64 {
        if self.loss > 0.0 && self.loss <= 1.0 { self.loss } else { DEFAULT_LOSS }
    }

    /// Counted rounds from the first on of which every slot is among those that ended.
    pub fn count_completed_rounds(&self, ended_slots: &BTreeSet<usize>) -> usize {
        let mut rounds = 0;
        let is_counted = |(_, slot): &(usize, ScheduleSlot)| slot.is_from_round(0) && self.keeps(*slot);
        for (at, slot) in self.schedule.iter().enumerate().filter(is_counted) {
            if !ended_slots.contains(&at) {
                return slot.round as usize;
            }
            rounds = slot.round as usize + 1;
        }
        rounds
    }

    /// Whether trials of the slot's variant still run.
    pub fn keeps(&self, slot: ScheduleSlot) -> bool {
        !self.dropped_variants.contains(&slot.variant)
    }

    /// The plan without the counted rounds from this one on.
    pub fn cut_after(&self, rounds: usize) -> Plan {
        let kept = self.schedule.iter().take_while(|slot| !slot.is_from_round(rounds));
        Plan { schedule: kept.collect(), ..self.clone() }
    }

    /// Whether this is a plan or a cut of it.
    pub fn is_cut_of(&self, whole: &Plan) -> bool {
        let is_prefix = self.schedule.iter().eq(whole.schedule.iter().take(self.schedule.len()));
        let is_cut = self.early_end.is_some() && is_prefix;
        let (schedule, dropped_variants) = (self.schedule.clone(), self.dropped_variants.clone());
        self == whole || is_cut && *self == Plan { schedule, dropped_variants, ..whole.clone() }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The default acceptable loss: five per cent.
pub const DEFAULT_LOSS: f64 = 0.05;

fn loss() -> f64 {
    DEFAULT_LOSS
}

/// Order of trials of different variants; never simply A B A B, in which a drift would appear as a
/// difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sequence {
    /// Reversed in turn: A B B A, A B C C B A.
    Abba,
    /// Each round has all variants in a random order from the seed.
    Blocks,
    /// All points of a seed before the next seed; in the simulator no order makes a difference.
    BySeed,
}

impl Sequence {
    /// Its word in JSON.
    pub fn slug(self) -> &'static str {
        match self {
            Sequence::Abba => "abba",
            Sequence::Blocks => "blocks",
            Sequence::BySeed => "by_seed",
        }
    }
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorkload {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Its command, program first.
    pub command: Vec<String>,
    /// Pattern, share, seed, size, dependence and first touch of its accesses for a built-in workload;
    /// otherwise the input in its manifest.
    pub generator: String,
    /// The measure that is the workload's figure of merit, such as `merit`; otherwise `wall`.
    pub merit: Option<String>,
    /// Its configuration, if it is simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedWorkload>,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedVariant {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Its settings, as `key` and value of the recipe.
    pub settings: Vec<(String, String)>,
    /// Whether it requests huge pages: if none are allocated, its ratio is not an effect of huge pages.
    pub asks_for_huge_pages: bool,
    /// Contents of the free lists of a simulated scheme, by number; empty on a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<String>,
}

/// All trials in their planned order: a list, or a grid that computes its slots. Four million listed slots
/// would exceed the size of a plan in a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Every slot.
    List(Vec<ScheduleSlot>),
    /// Points times seeds.
    Grid(ScheduleGrid),
}

impl Schedule {
    /// Number of slots. A grid with more slots than can be represented is rejected before it is used.
    pub fn len(&self) -> usize {
        match self {
            Schedule::List(slots) => slots.len(),
            Schedule::Grid(grid) => grid.count_slots().unwrap_or(usize::MAX),
        }
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot with this index.
    pub fn get(&self, slot: usize) -> Option<ScheduleSlot> {
        match self {
            Schedule::List(slots) => slots.get(slot).copied(),
            Schedule::Grid(grid) => grid.slot(slot),
        }
    }

    /// All slots in order.
    pub fn iter(&self) -> impl Iterator<Item = ScheduleSlot> {
        (0..self.len()).map_while(|slot| self.get(slot))
    }

    /// The grid, if it is one.
    pub fn grid(&self) -> Option<&ScheduleGrid> {
        match self {
            Schedule::List(_) => None,
            Schedule::Grid(grid) => Some(grid),
        }
    }
}

impl From<Vec<ScheduleSlot>> for Schedule {
    fn from(slots: Vec<ScheduleSlot>) -> Schedule {
        Schedule::List(slots)
    }
}

impl FromIterator<ScheduleSlot> for Schedule {
    fn from_iter<I: IntoIterator<Item = ScheduleSlot>>(slots: I) -> Schedule {
        Schedule::List(slots.into_iter().collect())
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Schedule::List(slots) => slots.serialize(serializer),
            Schedule::Grid(grid) => grid.serialize(serializer),
        }
    }
}

/// A list is an array, a grid an object: `untagged` would keep a copy of everything until it decides.
impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Schedule, D::Error> {
        struct ScheduleVisitor;
        impl<'de> Visitor<'de> for ScheduleVisitor {
            type Value = Schedule;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an array of slots, or a grid")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, slots: A) -> Result<Schedule, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(slots)).map(Schedule::List)
            }

            fn visit_map<A: MapAccess<'de>>(self, grid: A) -> Result<Schedule, A::Error> {
                ScheduleGrid::deserialize(MapAccessDeserializer::new(grid)).map(Schedule::Grid)
            }
        }
        deserializer.deserialize_any(ScheduleVisitor)
    }
}

/// A place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleSlot {
    /// Index of the workload.
    pub workload: usize,
    /// Index of the variant.
    pub variant: usize,
    /// Trials of one workload and one round are compared with each other.
    pub round: u32,
    /// Its role.
    pub role: TrialRole,
}

impl ScheduleSlot {
    /// Whether it is of this counted round, from 0, or of a later one.
    pub fn is_from_round(&self, round: usize) -> bool {
        self.role != TrialRole::WarmUp && self.round as usize >= round
    }
}

/// Role of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialRole {
    /// Not measured.
    WarmUp,
    /// Measured.
    Measured,
    /// The baseline again: with the baseline of its round, a pair of twins, which gives the noise floor.
    Twin,
}

impl TrialRole {
    /// Its word in JSON and CSV.
    pub fn slug(self) -> &'static str {
        match self {
            TrialRole::WarmUp => "warm_up",
            TrialRole::Measured => "measured",
            TrialRole::Twin => "twin",
        }
    }
}

/// One run of one workload under one variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// Its index in the schedule.
    pub slot: usize,
    /// When it began, in nanoseconds since the start of the run; in the simulator, when it was stored.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// Its end.
    pub end: TrialEnd,
    /// Measures of the probes and of the workload.
    pub measures: Vec<Measure>,
    /// Caveats of its numbers.
    pub flags: Vec<Flag>,
    /// The last lines of its output, if it did not end well; otherwise empty.
    pub last_output: String,
    /// Notes of the load.
    pub notes: Vec<String>,
    /// Values along the trial, unless the reader of its file left them out.
    pub series: Vec<TrialSeries>,
    /// Number of its pictures of memory, which are read from the file one at a time.
    pub pictures: usize,
}

impl Trial {
    /// A trial that began, without results so far.
    pub fn new(slot: usize, began_ns: u64) -> Trial {
        Trial { slot, began_ns, ended_ns: began_ns, ..Trial::default() }
    }
}

/// End of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    /// Success: its measures count.
    #[default]
    Done,
    /// It exited with this exit code.
    Failed(i32),
    /// A signal killed it.
    Killed(i32),
    /// The kernel killed it for lack of memory: a separate data point under a memory limit.
    OutOfMemory,
    /// It exceeded its time limit, in nanoseconds, and was killed.
    TimedOut(u64),
    /// It ended well, but its output is not a result.
    #[serde(alias = "Nonsense")]
    InvalidResult(String),
    /// It left processes running that outlived it; they were killed.
    #[serde(alias = "LeftBehind")]
    LeftProcesses(u64),
    /// It could not begin, with the reason.
    #[serde(alias = "NotBegun")]
    NotStarted(String),
    /// It ran, but an outside event invalidated it.
    Rejected(String),
    /// What carried it out is gone, with the reason: its supervisor, or its guest. It says nothing about the
    /// workload, and is repeated.
    Lost(String),
    /// The experiment was stopped during it.
    Stopped,
}

impl TrialEnd {
    /// Whether a resumed session repeats the trial: it says nothing about its workload.
    pub fn is_repeated(&self) -> bool {
        matches!(self, TrialEnd::Lost(_) | TrialEnd::Stopped)
    }
}

/// Direction that is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BetterDirection {
    /// Less is better: times, misses, faults.
    Lower,
    /// More is better: operations per second.
    Higher,
    /// Neither is better.
    Neither,
}

impl BetterDirection {
    /// Its word in JSON and CSV.
    pub fn slug(self) -> &'static str {
        match self {
            BetterDirection::Lower => "lower",
            BetterDirection::Higher => "higher",
            BetterDirection::Neither => "neither",
        }
    }
}

/// How two variants are compared: declared by the measure, never chosen from its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Contrast {
    /// The ratio of paired values, by its logarithm: times, counts of events, bytes.
    #[default]
    Ratio,
    /// The difference of paired values: indices, shares, and counts that may be 0.
    Difference,
}

/// Head of a measure: what its values in all trials have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeasureHead {
    /// The phase of the trial, as `under load, pass 1`; empty for the complete trial.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Its name, unique in its phase of a trial; docs/run.md lists those of the probes.
    pub name: String,
    /// Unit of the value.
    pub unit: Unit,
    /// Direction that is better.
    pub better: BetterDirection,
    /// Its source: the file, the call, or the workload itself.
    pub source: String,
    /// How two variants are compared.
    #[serde(default)]
    pub contrast: Contrast,
}

impl MeasureHead {
    /// Phase and name, unique among the measures of a trial.
    pub fn key(&self) -> String {
        if self.phase.is_empty() { self.name.clone() } else { format!("{}/{}", self.phase, self.name) }
    }

    /// Whether this is its key.
    pub fn has_key(&self, key: &str) -> bool {
        let name = match self.phase.as_str() {
            "" => Some(key),
            phase => key.strip_prefix(phase).and_then(|rest| rest.strip_prefix('/')),
        };
        name == Some(self.name.as_str())
    }
}

/// A quotient of two integers: an exact value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fraction {
    /// The count, or the numerator.
    pub numerator: u64,
    /// The denominator, above 0; 1 for a count.
    pub denominator: u64,
}

impl Fraction {
    /// The value.
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator.max(1) as f64
    }
}

/// One number of one trial, or the reason for its absence. Its head is shared with the same measure of other
/// trials, and its fields can be read directly.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The head.
    pub head: Arc<MeasureHead>,
    /// Finite.
    pub value: Reading<f64>,
    /// The same value exactly, if it is a quotient of integers.
    pub exact: Option<Fraction>,
}

impl Deref for Measure {
    type Target = MeasureHead;

    fn deref(&self) -> &MeasureHead {
        &self.head
    }
}

impl Measure {
    /// A measure of a complete trial on a host, compared by ratios.
    pub fn new(
        name: impl Into<String>,
        unit: impl Into<Unit>,
        better: BetterDirection,
        value: Reading<f64>,
        source: impl Into<String>,
    ) -> Measure {
        let head = MeasureHead {
            phase: String::new(),
            name: name.into(),
            unit: unit.into(),
            better,
            source: source.into(),
            contrast: Contrast::Ratio,
        };
        Measure { head: Arc::new(head), value, exact: None }
    }

    /// The measure as one of a phase.
    #[must_use]
    pub fn of_phase(self, phase: &str) -> Measure {
        let head = MeasureHead { phase: phase.to_owned(), ..MeasureHead::clone(&self.head) };
        Measure { head: Arc::new(head), ..self }
    }

    /// A measure with an exact value.
    pub fn from_fraction(head: Arc<MeasureHead>, exact: Fraction) -> Measure {
        Measure { head, value: Ok(exact.to_f64()), exact: Some(exact) }
    }
}

/// Caveats of a trial's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// One of the words below; one that this reader does not know is kept.
    pub kind: String,
    /// Finding, as a phrase without a trailing dot.
    pub text: String,
}

impl Flag {
    /// Huge pages were requested and not allocated.
    pub const NO_HUGE_PAGES: &'static str = "no huge pages";
    /// Huge pages were requested, and it is unknown whether they were allocated.
    pub const HUGE_PAGES_UNKNOWN: &'static str = "huge pages unseen";
    /// The machine was busy with something else.
    pub const NOT_QUIET: &'static str = "not quiet";
    /// The command waited while other processes used more CPU time than it.
    pub const OTHERS_BUSY: &'static str = "others busy";
    /// Counters shared the hardware: their values are scaled up.
    pub const MULTIPLEXED: &'static str = "multiplexed";
    /// A requested setting differs from what the kernel reported afterwards.
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
    pub const PEAK_MEMORY: &str = "memory.peak";
    /// The workload's own figure of merit.
    pub const MERIT: &str = "merit";
    /// Bytes in huge pages at the most, of all kinds, the huge zero page left out.
    pub const HUGE_BYTES: &str = "huge.all";
    /// The prefix of the workload's own latencies: `latency.p50`, `latency.p99.9`.
    pub const LATENCY_PREFIX: &str = "latency.";
    /// Regions that a plan names, where a trial ran under one.
    pub const PLAN_REQUESTED: &str = "plan.requested";
    /// Those on huge pages at the time of the scan.
    pub const PLAN_ALLOCATED: &str = "plan.allocated";
    /// CPU time of the supervisor that a trial ran under, ns; it is in that of the tree too.
    pub const PLAN_CPU: &str = "plan.supervisor_cpu";
    /// Time for which the program was stopped by its supervisor, ns.
    pub const PLAN_STOPPED: &str = "plan.stopped";
    /// The prefix of hardware and software counters, named as `perf` names them.
    pub const COUNTER_PREFIX: &str = "counter.";
    /// Prefix of measures that cover only a workload's measured phase: `phase.wall`,
    /// `phase.counter.page-faults`. The same names without it are of the whole process.
    pub const PHASE_PREFIX: &str = "phase.";
    /// The prefix of what a model of the TLBs counted in one run of the program under QEMU, for one trial of
    /// each workload and variant: no counter has ever seen it.
    pub const MODEL_PREFIX: &str = "model.";
}
