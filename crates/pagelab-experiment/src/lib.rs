//! Experiments: what a recipe asks for, and the engine that carries it out.
//!
//! A recipe ([`recipe`]) is resolved to a plan in which nothing is left open ([`resolve`], [`schedule`]).
//! Each [`trial`] is one process tree: it is started at a gate ([`gate`]) in a control group of its own
//! ([`group`]) under the settings of its variant, watched by probes ([`probe`]), and written to the run file
//! as soon as it has ended ([`session`]).

mod aside;
pub mod changes;
pub mod external;
pub mod gate;
pub mod group;
mod own;
pub mod probe;
pub mod recipe;
pub mod resolve;
pub mod schedule;
pub mod session;
pub mod simulated;
pub mod swap;
pub mod trial;

pub use aside::keep_off;
