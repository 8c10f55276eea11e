//! Contents of a run file: manifest, series, samples, events, and one snapshot of the machine.

use serde::{Deserialize, Serialize};

use crate::experiment::{Experiment, Plan};
use crate::extfrag::FallbackStacks;
use crate::profile::TlbProfile;
use crate::settings::Settings;
use crate::{Machine, Snapshot, TuningRun};

/// Everything that was read from one run file.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The file's name, as it was given.
    pub name: String,
    /// User, command, machine and time.
    pub manifest: Manifest,
    /// How the run ended.
    pub ending: RunEnd,
    /// Series that were sampled together, in the order of their start.
    pub series: Vec<Series>,
    /// Raw samples, by stream.
    pub streams: Vec<SampleStream>,
    /// Events, by time.
    pub events: Vec<RunEvent>,
    /// Snapshot of the machine, in a run of `checkup`.
    pub snapshot: Option<Box<Snapshot>>,
    /// Maps of physical memory, by time; their contents are read one at a time.
    pub maps: Vec<MapHeader>,
    /// Callers of allocations that fell back into another migratetype's memory, if that was recorded.
    pub stacks: Option<Box<FallbackStacks>>,
    /// The experiment, in a run of `run` or `sim`.
    pub experiment: Option<Box<Experiment>>,
    /// Where TLB misses cost time, in a run of `profile`.
    pub profile: Option<Box<TlbProfile>>,
    /// How the arms of that experiment were chosen, in a run of `tune`.
    pub tune: Option<Box<TuningRun>>,
    /// The log that belongs to the file, if the last records are or may be there.
    pub write_ahead_log: Option<WriteAheadLog>,
    /// Content that this reader does not know and therefore does not show.
    pub unknown_content: Vec<String>,
}

impl Run {
    /// Kind of the event that describes a guest.
    pub const GUEST_EVENT: &'static str = "guest";
    /// End of that description if the processor of the host ran the guest.
    pub const KVM_GUEST: &'static str = ", with KVM";

    /// Whether its times are those of an emulated processor.
    pub fn has_emulated_times(&self) -> bool {
        let is_kvm =
            |event: &RunEvent| event.kind == Run::GUEST_EVENT && event.text.ends_with(Run::KVM_GUEST);
        let is_guest = |of: &Experiment| of.plan.place == Plan::GUEST;
        self.experiment.as_deref().is_some_and(is_guest) && !self.events.iter().any(is_kvm)
    }

    /// The experiment, if it is simulated.
    pub fn simulated_experiment(&self) -> Option<&Experiment> {
        self.experiment.as_deref().filter(|experiment| experiment.plan.is_simulated())
    }

    /// A run in which nothing was recorded.
    pub fn new(name: impl Into<String>, manifest: Manifest, ending: RunEnd) -> Run {
        Run {
            name: name.into(),
            manifest,
            ending,
            series: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            snapshot: None,
            maps: Vec::new(),
            stacks: None,
            experiment: None,
            profile: None,
            tune: None,
            write_ahead_log: None,
            unknown_content: Vec::new(),
        }
    }
}

/// A stored map of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHeader {
    /// When its scan began, in nanoseconds since the start.
    pub at_ns: u64,
    /// Whether it can be read without the one before.
    pub is_keyframe: bool,
}

/// The write-ahead log of a run file that is not one file yet, or was not copied with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAheadLog {
    /// Its path.
    pub path: String,
    /// Whether it is beside the file, and was read.
    pub is_present: bool,
}

/// User, command, machine and time: written first, before anything is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Kind of the run: `checkup`, `record` … An unknown kind is kept.
    pub kind: String,
    /// Version of the pagelab that wrote the file.
    pub tool_version: String,
    /// The command line, from the program's name on.
    pub command_line: Vec<String>,
    /// Seed; `None` if nothing was random.
    pub seed: Option<u64>,
    /// When the run began; the times of series, samples and events count from here.
    pub started: ClockReading,
    /// The machine.
    pub machine: Machine,
    /// How its memory was set up at the start.
    pub settings: Settings,
}

/// One moment on two clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Wall clock in nanoseconds since 1970, UTC.
    pub realtime_ns: u64,
    /// Nanoseconds since boot, sleep included (CLOCK_BOOTTIME).
    pub boottime_ns: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It ended as it should, this long after its start.
    Complete {
        /// Nanoseconds since the start.
        after_ns: u64,
    },
    /// It was ended early in good order: a signal, a full disk.
    Stopped {
        /// Nanoseconds since the start.
        after_ns: u64,
        /// Why, in one phrase without a trailing dot.
        reason: String,
    },
    /// The file was never closed: its writer was killed, power was lost, or it is still running.
    NotClosed,
}

/// A unit of a stored value. A name that this reader does not know is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unit(pub String);

impl Unit {
    /// Bytes.
    pub const BYTES: &'static str = "bytes";
    /// Base pages.
    pub const PAGES: &'static str = "pages";
    /// Nanoseconds.
    pub const NANOSECONDS: &'static str = "ns";
    /// Microseconds.
    pub const MICROSECONDS: &'static str = "us";
    /// A plain number of things.
    pub const COUNT: &'static str = "count";
    /// Thousandths.
    pub const PERMILLE: &'static str = "permille";
    /// Millionths: shares of which thousandths are compared.
    pub const PPM: &'static str = "ppm";

    /// Whether it is a unit of time.
    pub fn is_time(&self) -> bool {
        [Unit::NANOSECONDS, Unit::MICROSECONDS, "ms", "s", "min"].contains(&self.0.as_str())
    }
}

impl From<&str> for Unit {
    fn from(name: &str) -> Unit {
        Unit(name.to_owned())
    }
}

/// Values that were read together again and again, such as all of vmstat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name: `meminfo`, `vmstat`, `buddyinfo` …
    pub name: String,
    /// Where the values are from: the file or the call.
    pub source: String,
    /// Times of the readings in nanoseconds since the start, ascending.
    pub at_ns: Vec<u64>,
    /// The columns.
    pub columns: Vec<Column>,
}

/// Description of a column of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnHeader {
    /// Its name, unique in the series.
    pub name: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Whether the values only grow, so that their differences are what matters.
    pub is_counter: bool,
}

/// One column of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// What it is.
    pub header: ColumnHeader,
    /// Its values, one for each time of the series.
    pub values: ColumnValues,
}

/// The values of a column; `None` is a reading that failed, never a zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnValues {
    /// It never changed.
    Constant(Option<i64>),
    /// One for each time.
    Varying(Vec<Option<i64>>),
}

impl ColumnValues {
    /// The value at the reading with this index.
    pub fn value_at(&self, index: usize) -> Option<i64> {
        match self {
            ColumnValues::Constant(value) => *value,
            ColumnValues::Varying(values) => values.get(index).copied().flatten(),
        }
    }
}

/// Raw samples of one thing, each at its own time.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleStream {
    /// What it is.
    pub header: StreamHeader,
    /// Times in nanoseconds since the start, in the order of writing.
    pub at_ns: Vec<u64>,
    /// The values, one for each time; always finite.
    pub values: Vec<f64>,
}

/// Description of a stream of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// Its name, unique in the file: `access time`.
    pub name: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Labels that distinguish it from streams of the same measure: `variant` = `huge`, `bytes` = `67108864`.
    pub labels: Vec<(String, String)>,
}

/// Something that happened at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEvent {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// Its kind: `missed`, `warning` …
    pub kind: String,
    /// The event, in a phrase without a trailing dot.
    pub text: String,
}
