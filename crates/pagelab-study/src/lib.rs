//! Work with the simulator: what can be chosen by name ([`catalogue`]), plans of experiments
//! ([`simulation_plan`], [`sweep_plan`]), the simulator as their place ([`sim_place`]), their sessions
//! ([`session`]), replay of recorded traces ([`replay`]), the demonstration of an allocator ([`demo`]) and
//! the benchmark of the engines ([`mod@bench`]).

pub mod bench;
pub mod catalogue;
pub mod demo;
mod progress;
pub mod replay;
pub mod session;
pub mod sim_place;
pub mod simulation_plan;
pub mod sweep_plan;
