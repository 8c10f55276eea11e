//! Sessions that change the contiguity of physical memory. They fragment it on purpose, to a target index, at
//! random, by a published procedure, or with unmovable pages, hold it, run a command and release it; they
//! compact it ([`compaction`]), and allocate what a forecast predicts ([`forecast_verification`]).

mod bounded_allocation;
pub mod compaction;
pub mod forecast_verification;
mod holding;
mod machine_changes;
pub mod options;
mod phase_output;
pub mod plan;
pub mod procedure;
pub mod random;
mod recording;
pub mod session;
pub mod show;
pub mod unmovable;
