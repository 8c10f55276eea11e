//! One simulated experiment: a machine, a scheme, a load and a seed; what came of it.

use crate::besides::Besides;
use crate::machine::{Class, reclaims};
use crate::policies;
use crate::words::{Frame, Wrong};

/// How memory is managed: a placement policy, and what is added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The placement policy, by its name.
    pub policy: String,
    /// Whether there is a zone for movable pages alone (`kernelcore=`, ZONE_EASYRCLM).
    pub movable_zone: bool,
    /// What reclaim takes for a large block.
    pub reclaim: &'static reclaims::Entry,
    /// Whether pages that were referenced stay on (`PAGEREF_ACTIVATE`).
    pub keeps_referenced: bool,
    /// Whether memory is compacted for large blocks.
    pub compacts: bool,
    /// Whether it is compacted ahead of need.
    pub is_proactive: bool,
    /// What zones have beside their lists.
    pub besides: Besides,
}

impl Scheme {
    /// A scheme in words joined by `+`: a policy, `zone`, a way of reclaim, `compaction`, `proactive`,
    /// `noactivate`, what is [`crate::besides`]; `list` is `list2`, the paper's, `mobility` that of the
    /// newest kernel. `zone` alone has the standard
    /// policy in its zones.
    pub fn parse(text: &str) -> Result<Scheme, Wrong> {
        let mut scheme = Scheme {
            policy: String::new(),
            movable_zone: false,
            reclaim: reclaims::LRU,
            keeps_referenced: true,
            compacts: false,
            is_proactive: false,
            besides: Besides::default(),
        };
        for word in text.split('+') {
            match word {
                "zone" => scheme.movable_zone = true,
                "compaction" => scheme.compacts = true,
                "proactive" => (scheme.compacts, scheme.is_proactive) = (true, true),
                "noactivate" => scheme.keeps_referenced = false,
                _ if let Some(way) = reclaims::named().iter().find(|way| way.name == word) => {
                    scheme.reclaim = way;
                }
                _ if scheme.besides.word(word)? => {}
                _ if scheme.policy.is_empty() => {
                    scheme.policy = policies::find(word).map_or(word, |entry| entry.name).to_owned();
                }
                _ => {
                    let both =
                        format!("two placement policies, {} and {word}; a scheme has one", scheme.policy);
                    return Err(Wrong::Shape(both));
                }
            }
        }
        if scheme.policy.is_empty() {
            scheme.policy = "standard".to_owned();
        }
        Ok(scheme)
    }
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The machine: `x86` (1518 MiB) and `ppc64` (4019 MiB) of the paper, or a size such as `16G` of x86-64.
    pub machine: String,
    /// `kernelcore=` in bytes, for schemes with a movable zone; `None`: what the paper has, or half.
    pub kernelcore: Option<u64>,
    /// How its memory is managed.
    pub scheme: Scheme,
    /// The load, by its name.
    pub load: String,
    /// Parameters of the load that are not as usual, by name.
    pub parameters: Vec<(String, u64)>,
    /// Seed of everything random.
    pub seed: u64,
    /// Pictures of memory to keep, spread evenly over the time of the load; 0: none.
    pub pictures: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Figures, in the order to print them.
    pub figures: Vec<Figure>,
    /// Series over time or attempts.
    pub series: Vec<Series>,
    /// Pictures of memory.
    pub pictures: Vec<Picture>,
    /// What is to be said beside the figures.
    pub notes: Vec<String>,
}

/// One figure. Fractions are kept as two whole numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The phase of the load that it belongs to, as `under load, pass 1`.
    pub phase: String,
    /// What it is, as `huge pages`.
    pub name: String,
    /// Its value, or what is divided.
    pub value: u64,
    /// By what it is divided; 1 where it is a count.
    pub per: u64,
    /// Its unit, as `blocks`, `pages`, `share`.
    pub unit: &'static str,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// What it is, as `F_u(10) at rest`.
    pub name: String,
    /// What is counted along it, as `attempts`.
    pub over: &'static str,
    /// Places and values in millionths.
    pub points: Vec<(u64, i64)>,
}

/// Memory at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Steps of the load that were done.
    pub step: u64,
    /// The phase of the load.
    pub phase: String,
    /// Runs of frames of one use, by address: first frame, frames, use (`None`: free).
    pub runs: Vec<(Frame, u32, Option<Class>)>,
    /// The list that each pageblock belongs to, by address, over all zones.
    pub owners: Vec<u8>,
}

/// Whether an experiment can be run; nothing is allocated for it.
pub fn check(spec: &Spec) -> Result<(), Wrong> {
    crate::loads::check(spec)
}

/// The zones of its machine by address: name, first frame, frames.
pub fn zones(spec: &Spec) -> Result<Vec<(String, Frame, u32)>, Wrong> {
    crate::loads::zones(spec)
}

/// Runs one experiment. `progress` hears how much of a thousand is done, and says whether to go on.
pub fn run(spec: &Spec, progress: &mut dyn FnMut(u32) -> bool) -> Result<Outcome, Wrong> {
    crate::loads::run(spec, progress)
}
