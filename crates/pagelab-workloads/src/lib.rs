//! Built-in workloads, one module each, listed in [`WORKLOADS`]. Each is deterministic from its seed, checks
//! its result, and reports a figure of merit, its memory, a checksum and latencies.
//!
//! A new workload is a module with a [`Workload`] and a line in [`WORKLOADS`].

pub mod access_regions;
pub mod aim9;
pub mod alias_table;
pub mod alloc_pages;
pub mod bfs;
pub mod btree;
pub mod canneal;
pub mod chase;
pub mod desktop;
pub mod fmm;
pub mod gc;
mod guest_only;
pub mod gups;
pub mod hash;
pub mod histogram;
pub mod hot_regions;
pub mod hot_remove;
pub mod hugetlb_pool;
pub mod kbuild;
pub mod kernel_builds;
pub mod lfsr;
pub mod mapping;
pub mod mmap_access;
mod module_attempts;
pub mod options;
pub mod phase;
pub mod private_dir;
pub mod quicksort;
pub mod small_program;
pub mod stream;
pub mod streamcluster;

use std::fmt;

use histogram::LatencyHistogram;
use options::{OptionSpec, WorkloadOptions};
use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::simulation::TrialSeries;
use phase::MeasuredPhase;

/// A built-in workload: its description, and how it runs.
#[derive(Debug)]
pub struct Workload {
    /// Its name on the command line and in recipes.
    pub name: &'static str,
    /// Description, in one line.
    pub description: &'static str,
    /// Generation of its accesses: pattern, shares, dependence, first touch, as sentences.
    pub generator: &'static str,
    /// Its options; `size` and `seed` are the first two of each that uses memory of its own.
    pub options: &'static [OptionSpec],
    /// Whether it starts further processes.
    pub forks_processes: bool,
    /// What a guest must have for it.
    pub guest_parts: &'static [GuestPart],
    /// Runs it to its end, with values that were checked against `options`, and reports the begin and end of
    /// its measured phase.
    pub run: fn(&WorkloadOptions, &mut MeasuredPhase<'_>) -> WorkloadOutcome,
}

/// A part of a guest that not every guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuestPart {
    /// pagelab's kernel module.
    Module,
    /// The tool disk: a shell, a compiler, `make`.
    Tools,
    /// Sources of a kernel, to be built with the tools.
    SourceTree,
}

impl Workload {
    /// Whether it has no memory of its own, and tests the memory of a whole guest.
    #[cfg(test)]
    fn requests_machine_memory(&self) -> bool {
        [&alloc_pages::WORKLOAD, &hugetlb_pool::WORKLOAD, &hot_remove::WORKLOAD, &kbuild::WORKLOAD]
            .iter()
            .any(|workload| workload.name == self.name)
    }
}

/// The result of a run, or why there is none.
pub type WorkloadOutcome = Result<WorkloadResult, WorkloadError>;

/// Result of a run of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadResult {
    /// Its figure of merit.
    pub figure_of_merit: Figure,
    /// Bytes that it laid out and used, without the program itself.
    pub working_set: Bytes,
    /// Equal for equal options, independent of the machine, huge pages and the clock.
    pub checksum: u64,
    /// How long its operations took, if it has operations worth telling apart.
    pub latencies: Option<LatencyHistogram>,
    /// Further figures, in the order in which they are to be shown.
    pub figures: Vec<Figure>,
    /// The regions of its memory that its accesses prefer, the most accessed first: the truth that a profile
    /// is held against. Empty where it prefers none.
    pub hot_regions: Vec<HotRegion>,
    /// Figures and series of its phases, where it has several.
    pub phases: PhaseResults,
    /// Options that complete `generator`: size, seed and shares of this run, in one phrase.
    pub generated_input: String,
}

/// Figure of a result, with the direction that is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its name: `read time`; of a further figure of the letters of a measure's name: `first_touch`.
    pub name: &'static str,
    /// Its unit: `ns`, `1/s`, `bytes/s` …
    pub unit: &'static str,
    /// The direction that is good.
    pub direction: BetterDirection,
    /// Finite.
    pub value: f64,
}

impl Figure {
    /// A figure of which one direction is good.
    pub const fn new(name: &'static str, unit: &'static str, better: BetterDirection, value: f64) -> Figure {
        Figure { name, unit, direction: better, value }
    }

    /// A time in nanoseconds.
    pub const fn time(name: &'static str, ns: f64) -> Figure {
        Figure::new(name, "ns", BetterDirection::Lower, ns)
    }

    /// A rate per second.
    pub const fn rate(name: &'static str, per_second: f64) -> Figure {
        Figure::new(name, "1/s", BetterDirection::Higher, per_second)
    }

    /// A figure that describes the work, and is neither good nor bad.
    pub const fn neutral(name: &'static str, unit: &'static str, value: f64) -> Figure {
        Figure::new(name, unit, BetterDirection::Neither, value)
    }
}

/// What the phases of a workload give. Their names are those of the simulator's loads where both have one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseResults {
    /// Figures, in the order in which they are to be shown.
    pub figures: Vec<PhaseFigure>,
    /// Series of values along the workload.
    pub series: Vec<TrialSeries>,
}

/// A figure of one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseFigure {
    /// The phase, as `highalloc at rest`.
    pub phase: String,
    /// Its name, unique in the phase, as `from Movable`.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The direction that is good.
    pub direction: BetterDirection,
    /// Finite.
    pub value: f64,
}

/// A region that is accessed more often than it would be by an even share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotRegion {
    /// Bytes from the start of the workload's memory.
    pub offset: u64,
    /// The address of its first byte in the workload's process.
    pub address: u64,
    /// The expected share of all accesses, from 0 to 1.
    pub share: f64,
}

/// Why a workload has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadError {
    /// An option, or options together, make no sense.
    InvalidOptions(String),
    /// An input file is malformed: file, line, and the expected contents.
    InvalidInput(String),
    /// The system rejected a request, for example for memory: the request, and the error.
    SystemError(String),
    /// A program is not installed, or a file is not readable.
    NotAvailable(String),
    /// It computed something else than it should have: a fault of the workload or of the machine.
    WrongResult(String),
}

impl WorkloadError {
    /// Operation that the system refused.
    pub fn system_error(operation: impl fmt::Display, error: impl fmt::Display) -> WorkloadError {
        WorkloadError::SystemError(format!("{operation}: {error}"))
    }
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadError::InvalidOptions(text)
            | WorkloadError::InvalidInput(text)
            | WorkloadError::SystemError(text)
            | WorkloadError::NotAvailable(text) => f.write_str(text),
            WorkloadError::WrongResult(text) => write!(f, "wrong result: {text}"),
        }
    }
}

/// In the order in which they are listed.
pub const WORKLOADS: &[&Workload] = &[
    &chase::WORKLOAD,
    &hot_regions::WORKLOAD,
    &gups::WORKLOAD,
    &stream::WORKLOAD,
    &quicksort::WORKLOAD,
    &btree::WORKLOAD,
    &hash::WORKLOAD,
    &bfs::WORKLOAD,
    &canneal::WORKLOAD,
    &streamcluster::WORKLOAD,
    &fmm::WORKLOAD,
    &gc::WORKLOAD,
    &mmap_access::WORKLOAD,
    &aim9::WORKLOAD,
    &kbuild::WORKLOAD,
    &alloc_pages::WORKLOAD,
    &hugetlb_pool::WORKLOAD,
    &hot_remove::WORKLOAD,
    &desktop::WORKLOAD,
];

/// Former names of workloads, which are still read, with the present ones.
const FORMER_NAMES: &[(&str, &str)] = &[("alloc-storm", "aim9")];

/// The workload of this name, or of this former name.
pub fn find_workload(name: &str) -> Option<&'static Workload> {
    let present =
        FORMER_NAMES.iter().find(|(former, _)| *former == name).map_or(name, |(_, present)| present);
    WORKLOADS.iter().find(|workload| workload.name == present).copied()
}

/// Former names of a workload.
pub fn former_names(workload: &Workload) -> impl Iterator<Item = &'static str> {
    FORMER_NAMES.iter().filter(|(_, present)| *present == workload.name).map(|(former, _)| *former)
}

/// A checksum with one word more.
pub(crate) fn mix_checksum(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::options::{ValueKind, WorkloadOptions};

    #[test]
    fn every_workload_has_a_name_of_its_own_and_good_defaults() {
        for (at, workload) in WORKLOADS.iter().enumerate() {
            assert_eq!(WORKLOADS.iter().position(|other| other.name == workload.name), Some(at));
            WorkloadOptions::with_defaults(workload.options);
            let names: Vec<&str> = workload.options.iter().map(|spec| spec.name).collect();
            if workload.requests_machine_memory() {
                assert!(!names.contains(&"size"), "its memory is that of its requests or programs");
            } else {
                assert_eq!(&names[..2], ["size", "seed"], "{}", workload.name);
                assert_eq!(workload.options[0].kind, ValueKind::Size, "{}", workload.name);
            }
            for text in [workload.description, workload.generator] {
                assert!(!text.is_empty() && text.is_ascii(), "{}: {text}", workload.name);
            }
        }
    }

    #[test]
    fn a_former_name_finds_its_workload() {
        for (former, present) in FORMER_NAMES {
            assert_eq!(find_workload(former).unwrap().name, *present);
            assert!(former_names(find_workload(present).unwrap()).any(|name| name == *former));
            assert!(WORKLOADS.iter().all(|workload| workload.name != *former));
        }
        assert!(find_workload("no-such").is_none());
    }

    /// The wording of each kind of error.
    #[test]
    fn errors_state_operation_and_reason() {
        let text = || "size: expected at least 1M".to_owned();
        let errors = [
            WorkloadError::InvalidOptions(text()),
            WorkloadError::InvalidInput("cannot read list.txt: no such file".to_owned()),
            WorkloadError::system_error("cannot map 1 GiB", "out of memory"),
            WorkloadError::NotAvailable("no java on PATH".to_owned()),
            WorkloadError::WrongResult("the checksum differs".to_owned()),
        ];
        expect![[r#"
            size: expected at least 1M
            cannot read list.txt: no such file
            cannot map 1 GiB: out of memory
            no java on PATH
            wrong result: the checksum differs
        "#]]
        .assert_eq(&errors.map(|error| format!("{error}\n")).concat());
    }
}
