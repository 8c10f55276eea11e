//! One simulated experiment: machine, scheme, load and seed, and its result.

use pagelab_model::simulation::{MemoryPicture, SimulatedWorkload, TrialSeries};

use crate::machine::reclaim_policies;
use crate::policies;
use crate::types::{Error, invalid};
use crate::zone_options::ZoneOptions;

pub use crate::loads::{check_spec, machine_zones, run_simulation};

/// Scheme of memory management: a placement policy and its additions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The placement policy, by its name.
    pub policy: String,
    /// Whether there is a zone for movable pages alone (`kernelcore=`, ZONE_EASYRCLM).
    pub movable_zone: bool,
    /// Reclaim policy for a large block.
    pub reclaim_policy: &'static reclaim_policies::ReclaimPolicyEntry,
    /// Whether pages that were referenced stay on (`PAGEREF_ACTIVATE`).
    pub activates_referenced: bool,
    /// Whether memory is compacted for large blocks.
    pub has_compaction: bool,
    /// Whether it is compacted ahead of need.
    pub is_proactive: bool,
    /// Features of zones beside their lists.
    pub zone_options: ZoneOptions,
}

impl Scheme {
    /// A scheme in words joined by `+`: a policy, `zone`, a reclaim policy, `compaction`, `proactive`,
    /// `noactivate`, what is [`crate::zone_options`]; `list` is `list2`, the paper's, `mobility` that of the
    /// newest kernel. `zone` alone has the standard
    /// policy in its zones.
    pub fn parse(text: &str) -> Result<Scheme, Error> {
        let mut scheme = Scheme {
            policy: String::new(),
            movable_zone: false,
            reclaim_policy: reclaim_policies::LRU_ONLY,
            activates_referenced: true,
            has_compaction: false,
            is_proactive: false,
            zone_options: ZoneOptions::default(),
        };
        for word in text.split('+') {
            match word {
                "zone" => scheme.movable_zone = true,
                "compaction" => scheme.has_compaction = true,
                "proactive" => (scheme.has_compaction, scheme.is_proactive) = (true, true),
                "noactivate" => scheme.activates_referenced = false,
                _ if let Some(reclaim_policy) =
                    reclaim_policies::selectable_policies().iter().find(|entry| entry.name == word) =>
                {
                    scheme.reclaim_policy = reclaim_policy;
                }
                _ if scheme.zone_options.parse_word(word)? => {}
                _ if scheme.policy.is_empty() => {
                    scheme.policy = policies::find_policy(word).map_or(word, |entry| entry.name).to_owned();
                }
                _ => {
                    let message =
                        format!("two placement policies, {} and {word}; expected one", scheme.policy);
                    return invalid(message);
                }
            }
        }
        if scheme.policy.is_empty() {
            scheme.policy = "standard".to_owned();
        }
        Ok(scheme)
    }
}

/// Simulated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationSpec {
    /// The load, and its machine: `x86` (1518 MiB) and `ppc64` (4019 MiB) of the paper, or a size such as
    /// `16G` of x86-64. `kernelcore` is for schemes with a movable zone; `None`: what the paper has, or half.
    pub workload: SimulatedWorkload,
    /// Scheme that manages its memory.
    pub scheme: Scheme,
    /// Seed.
    pub seed: u64,
    /// Pictures of memory to keep, spread evenly over the time of the load; 0: none.
    pub picture_count: u32,
}

impl SimulationSpec {
    /// A workload under a scheme in words.
    pub fn new(
        workload: SimulatedWorkload,
        scheme: &str,
        seed: u64,
        picture_count: u32,
    ) -> Result<SimulationSpec, Error> {
        Ok(SimulationSpec { workload, scheme: Scheme::parse(scheme)?, seed, picture_count })
    }
}

/// Result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulationOutcome {
    /// Figures, in the order to print them.
    pub figures: Vec<SimulatedFigure>,
    /// Series over time or attempts.
    pub series: Vec<TrialSeries>,
    /// Pictures of memory.
    pub pictures: Vec<MemoryPicture>,
    /// Notes beside the figures.
    pub notes: Vec<String>,
}

/// One figure. Fractions are kept as two whole numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedFigure {
    /// The phase of the load that it belongs to, as `under load, pass 1`.
    pub phase: String,
    /// Name, for example `huge pages`.
    pub name: String,
    /// Value, or numerator.
    pub value: u64,
    /// Denominator; 1 for a count.
    pub divisor: u64,
    /// Its unit, as `blocks`, `pages`, `share`.
    pub unit: &'static str,
}
