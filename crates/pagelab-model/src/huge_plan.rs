//! Which parts of a program's memory are to be on huge pages.

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::profile::{MappingKey, ProfileSource, Program};

/// A plan, as `plan.toml` holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HugePlan {
    /// How the misses were found that it rests on; `None` for a plan that a person wrote.
    pub source: Option<ProfileSource>,
    /// The command line that was profiled.
    pub command: Vec<String>,
    /// What the plan is expected to bring.
    pub predicted: Option<PlanGain>,
    /// What is to be on huge pages, by program.
    pub programs: Vec<PlannedProgram>,
}

/// What a plan is expected to bring, in thousandths where it is a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanGain {
    /// Time without huge pages over time with the plan, in thousandths: 1240 is 1.24 times as fast.
    pub speedup_permille: u64,
    /// The same with all memory on huge pages.
    pub all_speedup_permille: u64,
    /// The share of the attainable gain that the plan has, in thousandths.
    pub share_permille: u32,
}

/// What is planned for one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedProgram {
    /// The program; a plan for another one is stale.
    pub program: Program,
    /// Its mappings.
    pub mappings: Vec<PlannedMapping>,
}

/// What is planned for one mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedMapping {
    /// Which mapping.
    pub key: MappingKey,
    /// Where it began in the profiled run: the regions lie on this run's grid of huge pages.
    pub start: u64,
    /// How long it was.
    pub bytes: Bytes,
    /// The regions, dearest first.
    pub regions: Vec<PlannedRegion>,
    /// Cost by small cell around the regions, for a run in which the mapping begins elsewhere between two
    /// huge pages: (offset, length, cost in nanoseconds), rising and apart.
    pub cells: Vec<(u64, u64, u64)>,
}

/// One region that is to be one huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRegion {
    /// Its first byte, counted from the mapping's; huge pages that begin before it cannot be had.
    pub offset: u64,
    /// The size of the page: PMD size, or that of a smaller folio (mTHP).
    pub page: Bytes,
    /// What its misses cost in the profiled run, in nanoseconds; `None` in a plan that a person wrote.
    pub cost_ns: Option<u64>,
}
