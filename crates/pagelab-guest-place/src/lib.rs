//! Disposable guests as the place of an experiment: each trial, or the trials of a round, in a guest of its
//! own.
//!
//! The host knows the plan and writes the run file; in the guest the same binary carries out one trial at a
//! time and prints its report ([`pagelab_experiment::trial_report`]). A guest that is gone is a lost trial
//! with its reason, never a failed one. Nothing of the host is changed.

mod boot_observer;
mod host_activity;
mod place;
mod trial_end;

pub use place::{BOOT_TIME, GuestPlace, GuestRunner, TrialGuests, VariantGuest, config_of};
