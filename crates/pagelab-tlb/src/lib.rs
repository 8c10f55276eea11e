//! What the TLBs of a processor hold, and where an access curve shows that they end.
//!
//! Pure: CPUID registers and measured times come in as data.

pub mod choose;
pub mod cost;
pub mod cpuid;
pub mod descriptors;
pub mod engine;
pub mod grid;
pub mod knee;
pub mod modelled;
pub mod plan;
pub mod syntax;
pub mod table;
pub mod walk_fit;

pub use choose::choose;
