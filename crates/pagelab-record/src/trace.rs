//! Recorder of allocator traces.

pub mod backend;
pub mod info;
pub mod recording;
mod session;
