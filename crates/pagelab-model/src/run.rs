//! What a run file holds: who ran what where, series, samples, events, one look at a machine.

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::extfrag::Stacks;
use crate::profile::Profile;
use crate::settings::Settings;
use crate::study::Study;
use crate::{Machine, Snapshot, Tune};

/// Everything that was read from one run file.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The file's name, as it was given.
    pub name: String,
    /// Who ran what, where and when.
    pub manifest: Manifest,
    /// How the run ended.
    pub ending: Ending,
    /// Series that were sampled together, in the order in which they were begun.
    pub series: Vec<Series>,
    /// Raw samples, by stream.
    pub streams: Vec<Stream>,
    /// What happened meanwhile, by time.
    pub events: Vec<Event>,
    /// A look at the machine, in a run of `checkup`.
    pub snapshot: Option<Box<Snapshot>>,
    /// Maps of physical memory, by time; what is in them is read one at a time.
    pub maps: Vec<MapHead>,
    /// Who asked for allocations that fell back into another migratetype's memory, where that was recorded.
    pub stacks: Option<Box<Stacks>>,
    /// The experiment, in a run of `run`.
    pub experiment: Option<Box<Experiment>>,
    /// Where TLB misses cost time, in a run of `profile`.
    pub profile: Option<Box<Profile>>,
    /// How the arms of that experiment were chosen, in a run of `tune`.
    pub tune: Option<Box<Tune>>,
    /// The simulated study, in a run of `sim`.
    pub study: Option<Box<Study>>,
    /// The log that belongs to the file, if the last records are or may be there.
    pub log: Option<Log>,
    /// What this reader does not know and therefore does not show, in words.
    pub not_shown: Vec<String>,
}

impl Run {
    /// A run in which nothing was recorded.
    pub fn new(name: impl Into<String>, manifest: Manifest, ending: Ending) -> Run {
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
            study: None,
            log: None,
            not_shown: Vec::new(),
        }
    }
}

/// A stored map of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHead {
    /// When its scan began, in nanoseconds since the start.
    pub at_ns: u64,
    /// Whether it can be read without the one before.
    pub is_key: bool,
}

/// The write-ahead log of a run file that is not one file yet, or was not copied with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Its path.
    pub path: String,
    /// Whether it is beside the file, and was read.
    pub is_there: bool,
}

/// Who ran what, where and when: written first, before anything is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What was done: `checkup`, `record` … A kind that this reader does not know is kept.
    pub kind: String,
    /// Version of the pagelab that wrote the file.
    pub tool_version: String,
    /// The command line, from the program's name on.
    pub command_line: Vec<String>,
    /// Seed of everything random; `None` where nothing was.
    pub seed: Option<u64>,
    /// When the run began; the times of series, samples and events count from here.
    pub started: Moment,
    /// The machine.
    pub machine: Machine,
    /// How its memory was set up at the start.
    pub settings: Settings,
}

/// One moment on two clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Wall clock in nanoseconds since 1970, UTC.
    pub realtime_ns: u64,
    /// Nanoseconds since boot, sleep included (CLOCK_BOOTTIME).
    pub boottime_ns: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
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
        why: String,
    },
    /// The file was never closed: its writer was killed, the power went, or it is still at work.
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

/// What a column of a series is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnHead {
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
    pub head: ColumnHead,
    /// Its values, one for each time of the series.
    pub values: Values,
}

/// The values of a column; `None` is a reading that failed, never a zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// It never changed.
    Constant(Option<i64>),
    /// One for each time.
    Varying(Vec<Option<i64>>),
}

impl Values {
    /// The value at the reading with this index.
    pub fn at(&self, index: usize) -> Option<i64> {
        match self {
            Values::Constant(value) => *value,
            Values::Varying(values) => values.get(index).copied().flatten(),
        }
    }
}

/// Raw samples of one thing, each at its own time.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// What it is.
    pub head: StreamHead,
    /// Times in nanoseconds since the start, in the order of writing.
    pub at_ns: Vec<u64>,
    /// The values, one for each time; always finite.
    pub values: Vec<f64>,
}

/// What a stream of samples is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// Its name, unique in the file: `access time`.
    pub name: String,
    /// The unit of its values.
    pub unit: Unit,
    /// What tells it from streams of the same measure: `variant` = `huge`, `bytes` = `67108864`.
    pub labels: Vec<(String, String)>,
}

/// Something that happened at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// A word for its kind: `missed`, `warning` …
    pub kind: String,
    /// What happened, in a phrase without a trailing dot.
    pub text: String,
}
