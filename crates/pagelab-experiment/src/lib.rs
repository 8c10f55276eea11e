//! Experiments: recipes and the engine that runs them.
//!
//! A recipe ([`recipe`]) is resolved to a complete plan ([`resolve`], [`schedule`]). Each [`trial`] is one
//! process tree: it is started at a gate ([`gate`]) in its own control group ([`cgroup`]) under the settings
//! of its variant, and observed by probes ([`probe`]). The [`engine`] carries out the due trials of any
//! [`place`], and a [`session`] has its run file; [`host_place`] is this machine. A trial of a guest comes
//! back as a [`trial_report`]. Where counters cannot be
//! read, a model of the TLBs counts ([`processor_model`]).

pub mod cgroup;
pub mod checksum;
mod cpu_isolation;
pub mod early_end;
pub mod engine;
pub mod external;
pub mod gate;
pub mod guest_settings;
pub mod host_place;
pub mod place;
pub mod probe;
pub mod processor_model;
pub mod recipe;
pub mod resolve;
pub mod schedule;
pub mod session;
pub mod simulation_recipe;
pub mod swap_file;
pub mod trial;
pub mod trial_report;

pub use cpu_isolation::run_keeper;
