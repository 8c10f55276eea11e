//! Plan of the parts of a program's memory that are to be on huge pages.

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::profile::{MappingIdentity, ProfileSource, Program};

/// A plan, as in `plan.toml`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HugePlan {
    /// Profile source of the misses; `None` for a handwritten plan.
    pub source: Option<ProfileSource>,
    /// The profiled command line.
    pub command: Vec<String>,
    /// The expected gain of the plan.
    pub predicted: Option<PredictedGain>,
    /// Whether it is for memory for which the program refuses huge pages: it takes effect only if that advice
    /// is overridden.
    #[serde(default)]
    pub overrides_advice: bool,
    /// The planned regions, by program.
    pub programs: Vec<PlannedProgram>,
}

/// Expected gain of a plan; ratios in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedGain {
    /// Time without huge pages over time with the plan, in thousandths: 1240 is 1.24 times as fast.
    pub speedup_permille: u64,
    /// The same with all memory on huge pages.
    pub all_speedup_permille: u64,
    /// The plan's share of the attainable gain, in thousandths.
    pub share_permille: u32,
}

/// Plan for one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedProgram {
    /// The program; a plan for another program is stale.
    pub program: Program,
    /// Its mappings.
    pub mappings: Vec<PlannedMapping>,
}

/// Plan for one mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedMapping {
    /// Which mapping.
    pub key: MappingIdentity,
    /// Its address in the profiled run: the regions are on this run's grid of huge pages.
    pub start: u64,
    /// Its length.
    pub bytes: Bytes,
    /// The regions, costliest first.
    pub regions: Vec<PlannedRegion>,
    /// Cost by small cell around the regions, for a run in which the mapping begins elsewhere between two
    /// huge pages: (offset, length, cost in nanoseconds), ascending and disjoint.
    pub cells: Vec<(u64, u64, u64)>,
}

/// One region for one huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRegion {
    /// Offset of its first byte in the mapping; huge pages that begin before the mapping are not possible.
    pub offset: u64,
    /// The size of the page: PMD size, or that of a smaller folio (mTHP).
    pub page: Bytes,
    /// Cost of its misses in the profiled run, in nanoseconds; `None` in a handwritten plan.
    pub cost_ns: Option<u64>,
}
