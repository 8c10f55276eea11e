//! Data of `pagelab tune` besides its experiment: the selection of its arms, and their expected gain.

use serde::{Deserialize, Serialize};

use crate::HugePlan;
use crate::profile::TlbProfile;
use crate::time_saved::GainShares;

/// The plan and the arms of an experiment that measures what huge pages bring to one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningRun {
    /// The words that chose how much is planned: `--share 0.9`, `-n 8`.
    #[serde(alias = "asked")]
    pub plan_arguments: String,
    /// The plan's file.
    pub plan_file: String,
    /// The plan.
    pub plan: HugePlan,
    /// Bytes of a huge page of PMD size.
    pub huge: u64,
    /// The arms, in the order of the experiment's variants.
    pub arms: Vec<TuningArm>,
    /// Misses by region under the plan, recounted by the source of the profile; `None` if that cannot.
    #[serde(default)]
    pub after: Option<Box<TlbProfile>>,
    /// Prediction of the profile by number of huge pages, ascending; empty if it predicts nothing.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
    /// Where its slope breaks: the number of hot regions. In files without a range or a reason, the number
    /// beyond which further huge pages gain less than the mean.
    #[serde(default)]
    pub knee: Option<u64>,
    /// The range of the knee.
    #[serde(default)]
    pub knee_range: Option<KneeRange>,
    /// Why there is no knee, in words.
    #[serde(default)]
    pub knee_absence: Option<String>,
    /// The fewest huge pages with nine tenths of the gain.
    #[serde(default)]
    pub most_of_gain: Option<CurvePoint>,
    /// The process whose memory was changed to and fro, where none was started for each trial.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Notes, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The range of a knee, and the share of the gain at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KneeRange {
    /// Regions that are hot with at least 95 %.
    pub low: u64,
    /// Regions that are hot with more than 5 %.
    pub high: u64,
    /// The share of the attainable gain that the regions before the knee have, in thousandths.
    pub share_permille: u32,
}

/// A point of the prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Huge pages, costliest first.
    pub pages: u64,
    /// The share of the attainable gain that they have, in thousandths.
    pub share_permille: u32,
}

/// One arm: a variant of the experiment, by its place there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningArm {
    /// The variant's name.
    pub name: String,
    /// Its memory on huge pages.
    #[serde(alias = "on")]
    pub selection: HugePageSelection,
    /// Huge pages that are planned; `None` for all memory.
    pub planned: Option<u64>,
    /// Time of page walks that these save by the profile, ns; `None` if walks have no known cost.
    #[serde(default)]
    pub saved_ns: Option<u64>,
    /// The share of what all save that these save by the profile, in thousandths.
    #[serde(default)]
    pub share_permille: Option<u32>,
    /// The same of the number of page walks, in thousandths.
    #[serde(default)]
    pub walks_permille: Option<u32>,
    /// The same for accesses, in thousandths; `None` if the source counts none.
    #[serde(default)]
    pub accesses_permille: Option<u32>,
    /// Savings of all memory on huge pages by the cost of page walks, ns.
    #[serde(default)]
    pub all_walks_ns: Option<u64>,
    /// The share of the touched memory that could be on huge pages, in thousandths.
    #[serde(default)]
    pub touched_permille: Option<u32>,
    /// Whether it overrides the program's own advice against huge pages.
    #[serde(default)]
    pub overrides_advice: bool,
}

impl TuningArm {
    /// Its share of the gain of all; files of earlier versions contain the first share only.
    pub fn gain_shares(&self) -> Option<GainShares> {
        let permille_to_share = |permille: u32| f64::from(permille) / 1000.0;
        let cost = self.share_permille.map(permille_to_share)?;
        let permille_or_cost = |permille: Option<u32>| permille.map_or(cost, permille_to_share);
        Some(GainShares {
            cost,
            walk_count: permille_or_cost(self.walks_permille),
            accesses: self.accesses_permille.map(permille_to_share),
            touched_memory: permille_or_cost(self.touched_permille),
            all_walks_ns: self.all_walks_ns.map(|ns| ns as f64),
        })
    }
}

/// Memory of an arm on huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePageSelection {
    /// Nothing, also where the program itself requests huge pages.
    Never,
    /// Nothing but what the program itself requests.
    #[default]
    #[serde(alias = "Nothing")]
    None,
    /// Memory that the plan names.
    Plan,
    /// All anonymous memory.
    All,
    /// As many regions as the curve has at this point, costliest first.
    #[serde(alias = "Dearest")]
    Costliest,
    /// The same number, randomly selected from the seed: a control.
    Random,
    /// The same number, most often used first: a control.
    MostUsed,
}

impl TuningRun {
    /// The place of the arm that has this on huge pages, if there is one such arm.
    pub fn arm_index(&self, selection: HugePageSelection) -> Option<usize> {
        self.arms.iter().position(|arm| arm.selection == selection)
    }
}
