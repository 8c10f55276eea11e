//! Recorders: samples of the machine, tick by tick, and traces of the page allocator, written to a run file.

pub mod maps;
pub mod recording;
pub mod rows;
mod session;
mod status;
mod tick;
pub mod trace;
