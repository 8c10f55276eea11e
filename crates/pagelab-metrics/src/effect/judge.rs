//! When a ratio is an effect: the noise floor of the host, and the verdicts.

use pagelab_model::experiment::Better;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::Counts;
use super::paired::{Interval, PAIRS_MIN, Paired};

/// What two equal settings differ by on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// The largest ratio, above 1, that the interval of the pairs of equals reaches on either side: 1.03 says
    /// that equals look up to 3 % apart.
    pub ratio: f64,
    /// How many pairs of equals it is from.
    pub pairs: usize,
    /// Whether they are of all workloads together, since this one has too few.
    pub is_pooled: bool,
}

impl Floor {
    /// The floor from the pairs of equals of a workload, or else from those of all workloads.
    pub(super) fn of(own: &Paired, pooled: Option<&Paired>) -> Reading<Floor> {
        let floor = |pairs: &Paired, is_pooled: bool| {
            let interval = pairs.by_t().filter(|_| pairs.count() >= PAIRS_MIN)?;
            let ratio = interval.high.max(1.0 / interval.low);
            Some(Floor { ratio, pairs: pairs.count(), is_pooled })
        };
        let found = floor(own, false).or_else(|| floor(pooled?, true));
        found.ok_or_else(|| {
            let pairs = pooled.map_or(own.count(), Paired::count);
            let detail = match pairs {
                0 => "the baseline was not run twice in any round".to_owned(),
                1 => format!("1 pair of equals, and {PAIRS_MIN} are needed"),
                _ => format!("{pairs} pairs of equals, and {PAIRS_MIN} are needed"),
            };
            Absence::new("the noise floor", AbsentWhy::Undefined, detail).or("more rounds with a twin")
        })
    }

    /// Whether a ratio is no further from 1 than equals are.
    pub fn covers(&self, ratio: f64) -> bool {
        ratio.max(1.0 / ratio) <= self.ratio
    }
}

/// What the pairs of a variant and the baseline say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Fewer pairs than a verdict needs.
    TooFew {
        /// How many there are.
        pairs: usize,
    },
    /// Huge pages were asked for and did not come in all trials: the ratio is no effect of huge pages.
    NotHuge {
        /// Trials in which they did not come, or nobody saw whether they did.
        trials: usize,
        /// Of these, those of which it is not known.
        unseen: usize,
        /// Trials that count.
        of: usize,
    },
    /// A setting was not what was asked for: the ratio is no effect of the variant.
    NotApplied {
        /// Trials in which it was not.
        trials: usize,
        /// Trials that count.
        of: usize,
    },
    /// The interval contains 1.
    NoDifference,
    /// There may be a difference, and it is not known well enough.
    Undecided(Doubt),
    /// Less of what should be little, or more of what should be much.
    Better,
    /// The other way around.
    Worse,
    /// More or less of something that is neither good nor bad.
    Differs,
}

/// Why nothing is decided although the interval does not contain 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The effect is no larger than what equals show on this host.
    InsideFloor,
    /// The interval by ranks contains 1: a few pairs far from the others decide.
    Outliers,
}

/// Judges the ratio of a variant to the baseline. What was not as asked for comes first: no number of pairs
/// makes it an effect.
pub(super) fn verdict(
    pairs: &Paired,
    interval: Option<Interval>,
    better: Better,
    floor: Option<&Floor>,
    counts: &Counts,
) -> Verdict {
    let (of, count) = (counts.done, pairs.count());
    if counts.not_huge > 0 {
        return Verdict::NotHuge { trials: counts.not_huge, unseen: counts.unseen, of };
    }
    if counts.not_applied > 0 {
        return Verdict::NotApplied { trials: counts.not_applied, of };
    }
    let Some(interval) = interval.filter(|_| count >= PAIRS_MIN) else {
        return Verdict::TooFew { pairs: count };
    };
    if interval.contains(1.0) {
        return Verdict::NoDifference;
    }
    if pairs.by_ranks().is_some_and(|(ranks, _)| ranks.contains(1.0)) {
        return Verdict::Undecided(Doubt::Outliers);
    }
    if floor.is_some_and(|floor| pairs.ratio().is_some_and(|ratio| floor.covers(ratio))) {
        return Verdict::Undecided(Doubt::InsideFloor);
    }
    match (better, interval.low > 1.0) {
        (Better::Neither, _) => Verdict::Differs,
        (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
        (Better::Higher, false) | (Better::Lower, true) => Verdict::Worse,
    }
}
