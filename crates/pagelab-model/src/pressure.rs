//! Pressure stall information: the share of time in which tasks waited for a resource.

use serde::{Deserialize, Serialize};

/// One PSI file (`/proc/pressure/memory` or a cgroup's `memory.pressure`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Time in which at least one task waited.
    pub some: PressureLine,
    /// Time in which all non-idle tasks waited; absent for the CPU on older kernels.
    pub full: Option<PressureLine>,
}

/// One line of a PSI file. The kernel prints percentages with two decimals; they are kept as integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureLine {
    /// Average over 10 s in hundredths of a percent: 0 to 10 000.
    pub avg10_centipercent: u32,
    /// Average over 60 s in hundredths of a percent.
    pub avg60_centipercent: u32,
    /// Average over 300 s in hundredths of a percent.
    pub avg300_centipercent: u32,
    /// Stall time since boot in microseconds.
    pub total_us: u64,
}
