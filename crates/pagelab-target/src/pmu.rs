//! Precise samples of a hardware counter (PMU), with the data addresses of accesses that missed the TLB.
//!
//! [`find_hardware`] looks, by presence, which way this machine has: Intel's precise events of misses of the
//! second-level TLB, Intel's sampled loads with their data source, or AMD's instruction-based sampling. Arm's
//! statistical profiling is found and refused: its trace is not decoded here.
//! [`record::record_profile`] reads the kernel's records with the reader that files of perf
//! are read with.

pub mod intel;
pub mod probe;
pub mod record;
#[cfg(test)]
mod tests;

pub use probe::{SamplingHardware, find_hardware};
pub use record::{RecordOptions, RecordTarget, record_profile};
