//! What a plan is expected to bring in time.

use pagelab_model::gain::{Saved, Shares, TimePair};
use pagelab_model::huge_plan::PlanGain;

use super::{Ranking, Region};

/// How long the program runs natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// Without huge pages, and with all of its memory on huge pages: the model's shares are laid between.
    Pair {
        /// Nanoseconds without huge pages.
        base_ns: u64,
        /// Nanoseconds with all memory on huge pages.
        huge_ns: u64,
        /// Nanoseconds of CPU time in the kernel of both, where page faults are; `None`: not known.
        kernel_ns: Option<(u64, u64)>,
    },
    /// Without huge pages alone: what is saved is the price of the walks.
    Base(u64),
}

/// More of the time than this cannot be page walks: the price or the time is another program's.
const MOST: f64 = 0.95;

/// Time without huge pages over the time with the first `n` regions on huge pages; `None` if it cannot be
/// said: walks have no price, nothing is saved, or more than the time was.
pub fn speedup(ranking: &Ranking, n: usize, native: Native) -> Option<f64> {
    Some(speed_ups(ranking, n, native)?.0)
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

/// Pages that stay base pages find more entries free where others became huge: what a part of the regions
/// saves by the model, to what it may save.
const RELIEF: f64 = 1.5;

/// Around [`speedup`]. Between a pair of times, the share of the walks is that by their price and that by
/// their number, and all of it give or take the error of measured programs. From the time without huge pages
/// alone, it is not known whether walks overlap: the least is a tenth of the price, the most is the whole,
/// and what entries that become free save other pages.
pub fn interval(ranking: &Ranking, n: usize, native: Native) -> Option<Interval> {
    let (low, high) = speed_ups(ranking, n, native)?.1;
    Some(Interval { low, high })
}

fn speed_ups(ranking: &Ranking, n: usize, native: Native) -> Option<(f64, (f64, f64))> {
    match native {
        Native::Pair { base_ns, huge_ns, kernel_ns } => {
            let kernel_ns = kernel_ns.map(|(base, huge)| (base as f64, huge as f64));
            let pair = TimePair { base_ns: base_ns as f64, huge_ns: huge_ns as f64, kernel_ns };
            shares(ranking, n)?.saved(pair).speed_ups(pair.base_ns)
        }
        Native::Base(base_ns) => {
            let (base, saved) = (base_ns as f64, ranking.saved(n) / 1000.0);
            let most = (saved * RELIEF).min(ranking.attainable() / 1000.0).max(saved).min(MOST * base);
            let known = ranking.timed && saved <= MOST * base;
            known.then_some(Saved { likely_ns: saved, within_ns: (saved / OVERLAP, most) })?.speed_ups(base)
        }
    }
}

/// What the first `n` regions have of what all have; `None` where nothing can be saved.
pub fn shares(ranking: &Ranking, n: usize) -> Option<Shares> {
    let joined = &ranking.beyond.joined;
    let share = ranking.share(n)?.clamp(0.0, 1.0);
    if n >= ranking.regions.len() && joined.cost <= 0.0 {
        return Some(Shares::ALL);
    }
    let part = |value: fn(&Region) -> f64, joined: f64| {
        let of = |n: usize| ranking.regions.iter().take(n).map(value).sum::<f64>();
        let all = of(ranking.regions.len()) + joined;
        (all > 0.0).then(|| of(n) / all)
    };
    // What is joined saves of its cost as much as the regions do.
    let costs: f64 = ranking.regions.iter().map(|region| region.cost).sum();
    let attainable = ranking.attainable() * (1.0 + joined.cost / costs.max(f64::MIN_POSITIVE));
    let counts = ranking.regions.iter().any(|region| region.accesses.is_some());
    let cost = share * ranking.attainable() / attainable.max(f64::MIN_POSITIVE);
    Some(Shares {
        cost,
        walks: part(|region| region.misses, joined.misses).unwrap_or(cost),
        accesses: part(|region| region.accesses.unwrap_or(0.0), joined.accesses).filter(|_| counts),
        touched: part(|region| region.touched as f64, joined.touched).unwrap_or(cost),
        walks_ns: ranking.timed.then_some(attainable / 1000.0),
    })
}

/// Time without huge pages over the time with all memory on them: measured, where it is known.
pub fn all(ranking: &Ranking, native: Native) -> Option<f64> {
    match native {
        Native::Pair { base_ns, huge_ns, .. } => Some(base_ns as f64 / huge_ns as f64),
        Native::Base(_) => speedup(ranking, ranking.regions.len(), native),
    }
    .filter(|ratio| ratio.is_finite())
}

/// What a walk costs this program, to what it costs if the next read waits for it: learned from a pair of
/// times. `None` without one, without a price, or where huge pages do not make it faster.
pub fn walk_share(ranking: &Ranking, native: Native) -> Option<f64> {
    let Native::Pair { base_ns, huge_ns, kernel_ns } = native else { return None };
    let faults = kernel_ns.map_or(0, |(base, huge)| base.saturating_sub(huge));
    let saved = base_ns.checked_sub(huge_ns)?.saturating_sub(faults);
    let modelled = ranking.attainable() / 1000.0;
    (ranking.timed && saved > 0 && modelled > 0.0).then(|| saved as f64 / modelled)
}

/// The same as a plan holds it.
pub fn gain(ranking: &Ranking, n: usize, native: Native) -> Option<PlanGain> {
    let permille = |value: f64| (value * 1000.0).round() as u64;
    Some(PlanGain {
        speedup_permille: permille(speedup(ranking, n, native)?),
        all_speedup_permille: permille(all(ranking, native)?),
        share_permille: permille(ranking.share(n)?.min(1.0)) as u32,
    })
}
