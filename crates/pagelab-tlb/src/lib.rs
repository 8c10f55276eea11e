//! What the TLBs of a processor hold, and where an access curve shows that they end.
//!
//! Pure: CPUID registers and measured times come in as data.

pub mod choose;
pub mod cpuid;
pub mod descriptors;
pub mod knee;
pub mod syntax;
pub mod table;

pub use choose::choose;
