//! Where a program's memory is walked, at native speed, by the accessed bits of its page tables: cleared, and
//! looked at again after a while, over and over, for a bounded share of the time.
//!
//! The kernel counts accessed pages by mapping (`smaps`), so mappings are split at huge-page boundaries for
//! the time of a sweep, and merged again after it. A split mapping cannot grow by mremap; how long that was
//! so is told.

mod estimate;
mod going_on;
mod hands;
mod image;
mod instead;
mod names;
mod pieces;
mod split;
mod splitter;
mod sweep;
mod watch;
mod words;

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagelab_model::Profile;

pub use splitter::serve;
pub use watch::profile;

/// Sweeps slow a program down by less than this while they go on, in permille: measured on workloads that do
/// nothing but walk (`cargo bench -p pagelab --bench accessed`).
pub const SLOW_DOWN_PERMILLE: u32 = 1300;

/// The share of the time in which sweeps go on by default, in permille: with [`SLOW_DOWN_PERMILLE`], 2 % of
/// slow-down.
pub const DUTY_PERMILLE: u32 = 15;

/// The longest pause between clearing and looking by default.
pub const PAUSE: Duration = Duration::from_millis(100);

/// What is profiled.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A program that is started, with all its descendants.
    Command(Vec<OsString>),
    /// A process that runs.
    Process(u32),
}

/// What is asked for.
pub struct Wanted<'a> {
    /// What is profiled.
    pub subject: Subject,
    /// For how long; else until it ends, or `stop` is set.
    pub time: Option<Duration>,
    /// The share of the time in which sweeps may go on, in permille.
    pub duty_permille: u32,
    /// The longest pause between clearing and looking.
    pub pause: Duration,
    /// Whether a program that is started runs under the supervisor, which knows names of its memory that hold
    /// for the next run.
    pub is_supervised: bool,
    /// A program that calls [`serve`], to split mappings; `None`: they stay whole.
    pub splitter: Option<Command>,
    /// Set when a person has seen enough.
    pub stop: &'a AtomicBool,
    /// The number of the last signal that came for that, 0 for none; who looks at it takes it.
    pub heard: &'a AtomicUsize,
    /// Says what cannot wait for the end.
    pub say: &'a dyn Fn(&str),
    /// Why there shall be no sweep now: memory is short.
    pub pressure: &'a dyn Fn() -> Option<String>,
}

/// What became of it.
#[derive(Debug)]
pub struct Done {
    /// The profile.
    pub profile: Profile,
    /// How the started program ended, if it has.
    pub exit: Option<ExitStatus>,
}
