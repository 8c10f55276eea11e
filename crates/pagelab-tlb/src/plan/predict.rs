//! What a plan is expected to bring in time.

use pagelab_model::huge_plan::PlanGain;

use super::Ranking;

/// How long the program runs natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// Without huge pages, and with all of its memory on huge pages: the model's shares are laid between.
    Pair {
        /// Nanoseconds without huge pages.
        base_ns: u64,
        /// Nanoseconds with all memory on huge pages.
        huge_ns: u64,
    },
    /// Without huge pages alone: what is saved is the price of the walks.
    Base(u64),
}

/// More of the time than this cannot be page walks: the price or the time is another program's.
const MOST: f64 = 0.95;

/// Time without huge pages over the time with the first `n` regions on huge pages; `None` if it cannot be
/// said: walks have no price, nothing is saved, or more than the time was.
pub fn speedup(ranking: &Ranking, n: usize, native: Native) -> Option<f64> {
    match native {
        Native::Pair { base_ns, huge_ns } => {
            let (base, huge) = (base_ns as f64, huge_ns as f64);
            let with = base - ranking.share(n)? * (base - huge);
            (base > 0.0 && with > 0.0).then(|| base / with)
        }
        Native::Base(base_ns) => {
            let (base, saved) = (base_ns as f64, ranking.saved(n) / 1000.0);
            (ranking.timed && base > 0.0 && saved <= MOST * base).then(|| base / (base - saved))
        }
    }
}

/// The same as a plan holds it.
pub fn gain(ranking: &Ranking, n: usize, native: Native) -> Option<PlanGain> {
    let permille = |value: f64| (value * 1000.0).round() as u64;
    Some(PlanGain {
        speedup_permille: permille(speedup(ranking, n, native)?),
        all_speedup_permille: permille(speedup(ranking, ranking.regions.len(), native)?),
        share_permille: permille(ranking.share(n)?.min(1.0)) as u32,
    })
}
