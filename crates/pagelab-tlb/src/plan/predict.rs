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

/// Between which speed-ups the truth is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// Walks that wait for each other, to walks that overlap: so many times as dear.
const OVERLAP: f64 = 10.0;
/// How far the share of the gain was from its prediction in about four of five measurements of programs on an
/// AMD EPYC (25/17/1), most of one round: their noise is in it (docs/plan.md). Better ones may narrow it.
const SHARE_ERROR: f64 = 0.5;

/// Pages that stay base pages find more entries free where others became huge: what a part of the regions
/// saves by the model, to what it may save.
const RELIEF: f64 = 1.5;

/// Around [`speedup`]. Between a pair of times, the share of the gain lies between that by the price of walks
/// and that by their number, give or take the error of measured programs. From the time without huge pages
/// alone, it is not known whether walks overlap: the least is a tenth of the price, the most is the whole,
/// and what entries that become free save other pages.
pub fn interval(ranking: &Ranking, n: usize, native: Native) -> Option<Interval> {
    speedup(ranking, n, native)?;
    match native {
        Native::Pair { base_ns, huge_ns } => {
            let (base, huge) = (base_ns as f64, huge_ns as f64);
            let (cost, walks) = (ranking.share(n)?, share_of_walks(ranking, n)?);
            let error = if n < ranking.regions.len() { SHARE_ERROR * cost.max(walks) } else { 0.0 };
            let at = |share: f64| base / (base - share * (base - huge));
            // A program that huge pages slow down is slower with a larger share.
            let (some, more) =
                (at((cost.min(walks) - error).max(0.0)), at((cost.max(walks) + error).min(1.0)));
            Some(Interval { low: some.min(more), high: some.max(more) })
        }
        Native::Base(base_ns) => {
            let (base, saved) = (base_ns as f64, ranking.saved(n) / 1000.0);
            let most = (saved * RELIEF).min(ranking.attainable() / 1000.0).max(saved).min(MOST * base);
            Some(Interval { low: base / (base - saved / OVERLAP), high: base / (base - most) })
        }
    }
}

/// What a walk costs this program, to what it costs if the next read waits for it: learned from a pair of
/// times. `None` without one, without a price, or where huge pages do not make it faster.
pub fn walk_share(ranking: &Ranking, native: Native) -> Option<f64> {
    let Native::Pair { base_ns, huge_ns } = native else { return None };
    let (saved, modelled) = (base_ns.checked_sub(huge_ns)?, ranking.attainable() / 1000.0);
    (ranking.timed && saved > 0 && modelled > 0.0).then(|| saved as f64 / modelled)
}

/// The part of all walks that could be saved which the first `n` regions have.
fn share_of_walks(ranking: &Ranking, n: usize) -> Option<f64> {
    let walks = |n: usize| ranking.regions.iter().take(n).map(|region| region.misses).sum::<f64>();
    let all = walks(ranking.regions.len());
    (all > 0.0).then(|| walks(n) / all)
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
