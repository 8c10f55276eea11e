//! Built-in workloads, one module each, listed in [`table`]. Each is deterministic from its seed, checks what
//! it computed, and says what it did: a figure of merit, the memory that it used, a checksum, latencies.
//!
//! A new workload is a module with a [`Workload`] and a line in [`table::WORKLOADS`].

pub mod alloc_storm;
pub mod bfs;
pub mod btree;
pub mod canneal;
pub mod chase;
pub mod desktop;
pub mod fmm;
pub mod folder;
pub mod gc;
pub mod gups;
pub mod hash;
pub mod histogram;
pub mod hot_regions;
pub mod lfsr;
pub mod memory;
pub mod mmap_access;
pub mod options;
pub mod phase;
pub mod program;
pub mod quicksort;
pub mod regions;
pub mod skew;
pub mod stream;
pub mod streamcluster;
pub mod table;

use std::fmt;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;

use histogram::Latencies;
use options::{OptionHead, Options};
use phase::Phase;

/// A built-in workload: what it is, and how it runs.
#[derive(Debug)]
pub struct Workload {
    /// Its name on the command line and in recipes.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// What generates its accesses: pattern, shares, dependence, first touch, as sentences.
    pub generator: &'static str,
    /// What one may choose; `size` and `seed` are the first two of each.
    pub options: &'static [OptionHead],
    /// Whether it starts processes of its own.
    pub forks: bool,
    /// Runs it to its end, with values that were checked against `options`, and says when its measured phase
    /// begins and ends.
    pub run: fn(&Options, &mut Phase<'_>) -> Result<Done, Failed>,
}

/// What a run of a workload says.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Its figure of merit.
    pub merit: Merit,
    /// Bytes that it laid out and used, without the program itself.
    pub working_set: Bytes,
    /// The same for the same options, whatever the machine, the huge pages and the clock.
    pub checksum: u64,
    /// How long its operations took, where it has operations worth telling apart.
    pub latencies: Option<Latencies>,
    /// Further figures, in the order in which they are to be shown.
    pub figures: Vec<Figure>,
    /// The regions of its memory that its accesses prefer, the most accessed first: the truth that a profile
    /// is held against. Empty where it prefers none.
    pub hot_regions: Vec<HotRegion>,
    /// What `generator` leaves to the options: size, seed and shares of this run, in one phrase.
    pub generated: String,
}

/// The figure by which a workload is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merit {
    /// `read time`, `rate` …
    pub name: &'static str,
    /// `ns`, `1/s`, `bytes/s` …
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// Finite and not negative.
    pub value: f64,
}

/// A further figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its name, of the letters of a measure's name: `first_touch`.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// Finite.
    pub value: f64,
}

impl Figure {
    /// A figure of which one direction is good.
    pub const fn new(name: &'static str, unit: &'static str, better: Better, value: f64) -> Figure {
        Figure { name, unit, better, value }
    }

    /// A figure that tells what was done, and is neither good nor bad.
    pub const fn neutral(name: &'static str, unit: &'static str, value: f64) -> Figure {
        Figure::new(name, unit, Better::Neither, value)
    }
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
pub enum Failed {
    /// An option, or options together, make no sense.
    Options(String),
    /// A file that it was given holds something else than it should: file, line, and what was wanted.
    Input(String),
    /// The system refused something, such as memory: what was wanted, and its words.
    System(String),
    /// Something that it needs is not installed or not there.
    Missing(String),
    /// It computed something else than it should have: a fault of the workload or of the machine.
    Wrong(String),
}

impl Failed {
    /// What the system refused.
    pub fn system(wanted: impl fmt::Display, error: impl fmt::Display) -> Failed {
        Failed::System(format!("{wanted}: {error}"))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Options(text) | Failed::Input(text) | Failed::System(text) | Failed::Missing(text) => {
                f.write_str(text)
            }
            Failed::Wrong(text) => write!(f, "the result is wrong: {text}"),
        }
    }
}
