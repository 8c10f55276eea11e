//! Page walks of a program at native speed, estimated from the accessed bits of its page tables: they are
//! cleared and scanned after a pause, repeatedly, for a bounded share of the time.
//!
//! The kernel counts accessed pages by mapping (`smaps`), so mappings are split at huge-page boundaries
//! during a sweep, and merged again after it. A split mapping cannot grow by mremap; the profile notes for
//! how long.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::TlbProfile;
use pagelab_model::profile::AccessedBitCost;

pub use profiler::profile_program;
pub use splitter::{DroppedRanges, drop_zero_pages, serve_split_requests};
pub use zero_pages::run_selection::ineligible_reason;
pub(crate) use zero_pages::run_selection::is_private_name;
pub use zero_pages::stop_check::find_droppable;

mod await_exit;
mod budget;
pub mod cost_calibration;
mod estimate;
mod image;
mod injector;
mod named_regions;
mod profiler;
mod rank_certainty;
mod report;
mod scan_saturation;
mod scan_scheduler;
mod split;
mod splitter;
mod sweep;
mod walk_total;
mod zero_pages;
mod zero_scan;

/// Share of a program's time that sweeps may cost by default, in permille: cleared pages that are accessed
/// again × what one costs, and the time in which it is stopped.
pub const SLOW_DOWN_PERMILLE: u32 = 20;

/// The share of the time in which pagelab works on sweeps by default, in permille.
pub const DUTY_PERMILLE: u32 = 15;

/// Share of a program's time that sweeps may cost at this duty, in proportion to it. `None` at a duty of all
/// of the time: then it is unlimited.
pub fn slow_down_permille(duty_permille: u32) -> Option<u32> {
    let slow_down = duty_permille.saturating_mul(SLOW_DOWN_PERMILLE).div_ceil(DUTY_PERMILLE);
    (duty_permille < 1000).then_some(slow_down)
}

/// The longest pause between clearing and scanning by default.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Program to profile.
#[derive(Clone, Debug)]
pub enum ProfileTarget {
    /// A program that is started, with all its descendants.
    Command(Vec<OsString>),
    /// A process that runs.
    Process(u32),
}

/// The options of a profile by accessed bits.
pub struct AccessedProfileRequest<'a> {
    /// Program to profile.
    pub target: ProfileTarget,
    /// The duration; else until it ends, or `stop` is set.
    pub time_limit: Option<Duration>,
    /// Share of the time during which sweeps may run, in permille.
    pub duty_permille: u32,
    /// The cost of a cleared page that is accessed again, on this machine.
    pub page_cost: AccessedBitCost,
    /// The longest pause between clearing and scanning.
    pub pause_max: Duration,
    /// Whether entries of the zero page may be dropped, to see memory that was never written. No process
    /// outside of the program and what it starts may write to its memory then.
    pub drop_zero_pages: bool,
    /// Entries of the TLB for base pages, where they are known: of accesses to never-written memory those
    /// that find their page in it are no walks.
    pub tlb_entries: Option<u64>,
    /// Whether a program that is started runs under the supervisor, which knows names of its memory that hold
    /// for the next run.
    pub is_supervised: bool,
    /// A program that calls [`serve_split_requests`], to split mappings; `None`: they stay whole.
    pub splitter: Option<Command>,
    /// Reason why the journal is not writable, so that no splitter may start: after a kill its splits would
    /// stay unrecorded. A supervised program is killed with pagelab, so it is split in any case.
    pub journal_error: Option<String>,
    /// Set when the user stops the profile.
    pub stop: &'a AtomicBool,
    /// The last signal that requested the stop, 0 for none; a reader resets it.
    pub last_signal: &'a AtomicUsize,
    /// Reports messages during the profile.
    pub report: &'a dyn Fn(&str),
    /// The reason if no sweep may run now: memory is short.
    pub memory_pressure: &'a dyn Fn() -> Option<String>,
}

/// The result of a profile.
#[derive(Debug)]
pub struct AccessedProfile {
    /// The profile.
    pub profile: TlbProfile,
    /// Exit of the started program, if it has ended.
    pub exit: Option<ExitStatus>,
}

/// One sentence for the reader of a profile.
fn describe_alternatives(root: &Root) -> String {
    let describe = |name: &str, path: &str, is_not_used: &str| match root.entry_kind(path).is_ok() {
        true => format!("{name}: not used, because {is_not_used}"),
        false => format!("{name}: not available in this kernel"),
    };
    let idle = describe(
        "idle page tracking (page_idle)",
        paths::PAGE_IDLE_BITMAP,
        "it works on page frames of the whole machine, requires root, and clears the accessed bits of all \
         processes",
    );
    let damon = describe(
        "DAMON",
        paths::DAMON_ADMIN,
        "it chooses the regions to sample itself, and has a single configuration for the whole machine",
    );
    format!("mappings are split and scanned; {idle}; {damon}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_is_there_is_told_with_a_reason_and_each_that_is_not_as_missing() {
        let tree = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = tree.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let told = || describe_alternatives(&Root::open(tree.path()).unwrap());
        let none = told();
        assert_eq!(none.matches("not available in this kernel").count(), 2, "{none}");
        put(paths::PAGE_IDLE_BITMAP);
        let idle = told();
        assert!(idle.contains("page_idle): not used, because"), "{idle}");
        assert!(idle.contains("DAMON: not available in this kernel"), "{idle}");
        put(paths::DAMON_KDAMONDS);
        assert!(told().contains("DAMON: not used, because"), "{}", told());
    }
}
