//! Other programs: profiled by QEMU's user mode, by their accessed bits or by hardware samples; supervised,
//! and given huge pages where a plan says. What they compute is never changed.

pub mod accessed;
mod advice;
mod drops;
pub mod error;
pub mod exact;
pub mod identity;
pub mod inject;
pub mod outside;
pub mod pmu;
mod priority;
pub mod program;
pub mod sampled;
pub mod steer;
pub mod supervise;
