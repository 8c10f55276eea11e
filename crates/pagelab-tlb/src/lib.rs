//! TLB geometry of a processor, and the end of the TLB's reach in an access curve.
//!
//! Pure: CPUID registers and measured times come in as data.

pub mod cost;
pub mod cpuid;
pub mod descriptors;
pub mod engine;
pub mod grid;
pub mod knee;
pub mod model_geometry;
pub mod plan;
pub mod selection;
pub mod syntax;
pub mod table;
pub mod walk_fit;

pub use selection::select_geometry;
