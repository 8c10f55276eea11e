//! What `pagelab tune` did besides its experiment: how its arms were chosen, and what was expected of them.

use serde::{Deserialize, Serialize};

use crate::HugePlan;
use crate::gain::Shares;
use crate::profile::Profile;

/// The plan and the arms of an experiment that measures what huge pages bring to one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tune {
    /// The words that chose how much is planned: `--share 0.9`, `-n 8`.
    pub asked: String,
    /// The plan's file.
    pub plan_file: String,
    /// The plan.
    pub plan: HugePlan,
    /// Bytes of a huge page of PMD size.
    pub huge: u64,
    /// The arms, in the order of the experiment's variants.
    pub arms: Vec<Arm>,
    /// Misses by region under the plan, recounted by the source of the profile; `None` where that cannot.
    #[serde(default)]
    pub after: Option<Box<Profile>>,
    /// What the profile predicts for so many huge pages, rising; empty where it predicts nothing.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
    /// Where on that curve further huge pages bring little more.
    #[serde(default)]
    pub knee: Option<u64>,
    /// The process whose memory was changed to and fro, where none was started for each trial.
    #[serde(default)]
    pub pid: Option<u32>,
    /// What a reader must know, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A point of what is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Huge pages, dearest first.
    pub pages: u64,
    /// The share of the attainable gain that they have, in thousandths.
    pub share_permille: u32,
}

/// One arm: a variant of the experiment, by its place there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    /// The variant's name.
    pub name: String,
    /// What it has on huge pages.
    pub on: On,
    /// Huge pages that are planned; `None` for all memory.
    pub planned: Option<u64>,
    /// Time of page walks that these save by the profile, ns; `None` where walks have no price.
    #[serde(default)]
    pub saved_ns: Option<u64>,
    /// The share of what all save that these save by the profile, in thousandths.
    #[serde(default)]
    pub share_permille: Option<u32>,
    /// The same of the number of page walks, in thousandths.
    #[serde(default)]
    pub walks_permille: Option<u32>,
    /// The same of the accesses, in thousandths; `None` where the source counts none.
    #[serde(default)]
    pub accesses_permille: Option<u32>,
    /// What all memory on huge pages saves by the price of page walks, ns.
    #[serde(default)]
    pub all_walks_ns: Option<u64>,
    /// The share of the touched memory that could be on huge pages, in thousandths.
    #[serde(default)]
    pub touched_permille: Option<u32>,
}

impl Arm {
    /// What it has of what all have; files of earlier versions tell the first share alone.
    pub fn shares(&self) -> Option<Shares> {
        let part = |permille: u32| f64::from(permille) / 1000.0;
        let cost = self.share_permille.map(part)?;
        let of = |permille: Option<u32>| permille.map_or(cost, part);
        Some(Shares {
            cost,
            walks: of(self.walks_permille),
            accesses: self.accesses_permille.map(part),
            touched: of(self.touched_permille),
            walks_ns: self.all_walks_ns.map(|ns| ns as f64),
        })
    }
}

/// What an arm has on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum On {
    /// Nothing.
    Nothing,
    /// What the plan names.
    Plan,
    /// All anonymous memory.
    All,
    /// As many regions as the curve has at this point, dearest first.
    Dearest,
    /// The same number, drawn from the seed: a control.
    Random,
    /// The same number, most often used first: a control.
    MostUsed,
}

impl Tune {
    /// The place of the arm that has this on huge pages, where there is one such arm.
    pub fn arm(&self, on: On) -> Option<usize> {
        self.arms.iter().position(|arm| arm.on == on)
    }
}
