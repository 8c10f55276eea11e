//! Predicted time saving of a plan.

use pagelab_model::huge_plan::PredictedGain;
use pagelab_model::time_saved::{GainShares, TimePair, TimeSaved};

use super::{Ranking, Region};

/// The native run time of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeTime {
    /// Without huge pages, and with all of its memory on huge pages: the model's shares interpolate between
    /// them.
    Pair {
        /// Nanoseconds without huge pages.
        base_ns: u64,
        /// Nanoseconds with all memory on huge pages.
        huge_ns: u64,
        /// Nanoseconds of CPU time in the kernel of both, where page faults are; `None`: not known.
        kernel_ns: Option<(u64, u64)>,
    },
    /// Without huge pages alone: the cost of the walks is saved.
    Base(u64),
}

/// Page walks take no larger part of the time than this: else the cost or the time is another program's.
const WALK_SHARE_MAX: f64 = 0.95;

/// Time without huge pages over the time with the first `n` regions on huge pages; `None` if it is unknown:
/// walks have no cost, nothing is saved, or the saving is more than the time.
pub fn predict_speedup(ranking: &Ranking, n: usize, native: NativeTime) -> Option<f64> {
    Some(predict_with_interval(ranking, n, native)?.0)
}

/// The expected interval of the speed-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedupInterval {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// The cost of dependent walks, over that of walks that overlap.
const OVERLAP_FACTOR: f64 = 10.0;

/// Remaining base pages have more TLB entries if others become huge: the saving of a part of the regions by
/// the model, over what it may save.
const RELIEF_FACTOR: f64 = 1.5;

/// Around [`predict_speedup`]. With a pair of times, the bounds are the shares of the walks by cost and by
/// number, widened by the error of measured programs. From the time without huge pages alone, it is unknown
/// whether walks overlap: the lower bound is a tenth of the cost; the upper bound is the whole cost, and the
/// misses of other pages that freed entries save.
pub fn predict_interval(ranking: &Ranking, n: usize, native: NativeTime) -> Option<SpeedupInterval> {
    let (low, high) = predict_with_interval(ranking, n, native)?.1;
    Some(SpeedupInterval { low, high })
}

fn predict_with_interval(ranking: &Ranking, n: usize, native: NativeTime) -> Option<(f64, (f64, f64))> {
    match native {
        NativeTime::Pair { base_ns, huge_ns, kernel_ns } => {
            let kernel_ns = kernel_ns.map(|(base, huge)| (base as f64, huge as f64));
            let pair = TimePair { base_ns: base_ns as f64, huge_ns: huge_ns as f64, kernel_ns };
            compute_gain_shares(ranking, n)?.predict_time_saved(pair).to_speed_ups(pair.base_ns)
        }
        NativeTime::Base(base_ns) => {
            let (base, saved) = (base_ns as f64, ranking.saving_at(n) / 1000.0);
            let saving_max = (saved * RELIEF_FACTOR)
                .min(ranking.attainable_saving() / 1000.0)
                .max(saved)
                .min(WALK_SHARE_MAX * base);
            let is_plausible = ranking.is_timed && saved <= WALK_SHARE_MAX * base;
            is_plausible
                .then_some(TimeSaved { likely_ns: saved, interval_ns: (saved / OVERLAP_FACTOR, saving_max) })?
                .to_speed_ups(base)
        }
    }
}

/// The share of the first `n` regions in the saving of all; `None` if nothing can be saved.
pub fn compute_gain_shares(ranking: &Ranking, n: usize) -> Option<GainShares> {
    let joined = &ranking.uncovered.merged;
    let share = ranking.saving_share(n)?.clamp(0.0, 1.0);
    if n >= ranking.regions.len() && joined.cost <= 0.0 {
        return Some(GainShares::ALL);
    }
    let share_of = |value: fn(&Region) -> f64, joined: f64| {
        let sum_of_first = |n: usize| ranking.regions.iter().take(n).map(value).sum::<f64>();
        let all = sum_of_first(ranking.regions.len()) + joined;
        (all > 0.0).then(|| sum_of_first(n) / all)
    };
    // Merged mappings save the same share of their cost as the regions.
    let costs: f64 = ranking.regions.iter().map(|region| region.cost).sum();
    let attainable = ranking.attainable_saving() * (1.0 + joined.cost / costs.max(f64::MIN_POSITIVE));
    let counts = ranking.regions.iter().any(|region| region.accesses.is_some());
    let cost = share * ranking.attainable_saving() / attainable.max(f64::MIN_POSITIVE);
    Some(GainShares {
        cost,
        walk_count: share_of(|region| region.misses, joined.misses).unwrap_or(cost),
        accesses: share_of(|region| region.accesses.unwrap_or(0.0), joined.accesses).filter(|_| counts),
        touched_memory: share_of(|region| region.touched as f64, joined.touched).unwrap_or(cost),
        all_walks_ns: ranking.is_timed.then_some(attainable / 1000.0),
    })
}

/// Time without huge pages over the time with all memory on them: measured, where it is known.
pub fn predict_full_speedup(ranking: &Ranking, native: NativeTime) -> Option<f64> {
    match native {
        NativeTime::Pair { base_ns, huge_ns, .. } => Some(base_ns as f64 / huge_ns as f64),
        NativeTime::Base(_) => predict_speedup(ranking, ranking.regions.len(), native),
    }
    .filter(|ratio| ratio.is_finite())
}

/// Ratio of the cost of a walk in this program to its cost if the next read waits for it, from a pair of
/// times. `None` without one, without a cost, or where huge pages do not make it faster.
pub fn compute_walk_cost_ratio(ranking: &Ranking, native: NativeTime) -> Option<f64> {
    let NativeTime::Pair { base_ns, huge_ns, kernel_ns } = native else { return None };
    let faults = kernel_ns.map_or(0, |(base, huge)| base.saturating_sub(huge));
    let saved = base_ns.checked_sub(huge_ns)?.saturating_sub(faults);
    let modelled = ranking.attainable_saving() / 1000.0;
    (ranking.is_timed && saved > 0 && modelled > 0.0).then(|| saved as f64 / modelled)
}

/// The same as a plan holds it.
pub fn predict_gain(ranking: &Ranking, n: usize, native: NativeTime) -> Option<PredictedGain> {
    let permille = |value: f64| (value * 1000.0).round() as u64;
    Some(PredictedGain {
        speedup_permille: permille(predict_speedup(ranking, n, native)?),
        all_speedup_permille: permille(predict_full_speedup(ranking, native)?),
        share_permille: permille(ranking.saving_share(n)?.min(1.0)) as u32,
    })
}
