//! Where a program's memory is walked, at native speed, by the accessed bits of its page tables: cleared, and
//! looked at again after a while, over and over, for a bounded share of the time.
//!
//! The kernel counts accessed pages by mapping (`smaps`), so mappings are split at huge-page boundaries for
//! the time of a sweep, and merged again after it. A split mapping cannot grow by mremap; how long that was
//! so is told.

mod budget;
mod estimate;
mod going_on;
mod hands;
mod image;
mod instead;
mod names;
mod pieces;
pub mod price;
mod returns;
mod split;
mod splitter;
mod sweep;
mod turns;
mod watch;
mod words;
mod zeros;

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagelab_model::Profile;
use pagelab_model::profile::AccessedPrice;

pub use splitter::{Dropped, drop_zeros, serve};
pub use watch::profile;
pub use zeros::eligible::kept;
pub use zeros::standing::{droppable, living_threads};

/// What sweeps may take of a program's time by default, in permille: cleared pages that are accessed again ×
/// what one costs, and the time in which it is stopped.
pub const SLOW_DOWN_PERMILLE: u32 = 20;

/// The share of the time in which pagelab works on sweeps by default, in permille.
pub const DUTY_PERMILLE: u32 = 15;

/// What sweeps may take of a program's time where so much duty was asked for: in proportion. `None` where it
/// was all of the time: then they may take what they take.
pub fn slow_down_permille(duty_permille: u32) -> Option<u32> {
    let share = duty_permille.saturating_mul(SLOW_DOWN_PERMILLE).div_ceil(DUTY_PERMILLE);
    (duty_permille < 1000).then_some(share)
}

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
    /// What a cleared page costs that is accessed again, on this machine.
    pub price: AccessedPrice,
    /// The longest pause between clearing and looking.
    pub pause: Duration,
    /// Whether entries of the page of zeros may be dropped, to see memory that was never written. Nobody
    /// outside of the program and what it starts may write to its memory then.
    pub drops_zeros: bool,
    /// Entries of the TLB for base pages, where they are known: of accesses to never-written memory those
    /// that find their page in it are no walks.
    pub tlb_entries: Option<u64>,
    /// Whether a program that is started runs under the supervisor, which knows names of its memory that hold
    /// for the next run.
    pub is_supervised: bool,
    /// A program that calls [`serve`], to split mappings; `None`: they stay whole.
    pub splitter: Option<Command>,
    /// Why nothing can be written into the journal, so that no splitter may begin: what it split would
    /// outlive it untold. A program under the supervisor ends with it, and is split all the same.
    pub unjournalled: Option<String>,
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
