//! Ratios of two settings, one pair per round, and their intervals.
//!
//! All computations use logarithms: twice as fast and half as fast are equally far from no difference, and a
//! drift of the machine that affects both of a pair cancels.

use pagelab_model::random::SplitMix64;

use super::difference::{RankInterval, average_pairs, signed_rank_interval};
use super::student;
use crate::statistics::SampleStatistics;

/// The share of experiments in which an interval is to hold the true ratio.
pub const CONFIDENCE_LEVEL: f64 = 0.95;

/// Pairs below which no verdict is given: with five, even the exact test cannot reach 5 % (2 / 2^5).
pub const PAIRS_MIN: usize = 6;

/// Default number of pairs of an experiment. The intervals' coverage is tested at this number.
pub const PAIRS_DEFAULT: usize = 10;

/// Redrawn sets of pairs of a bootstrap.
const BOOTSTRAP_RESAMPLES: usize = 2000;

/// Pairs up to which all changes of sign are tried: 65 536.
const EXACT_SIGNS_PAIRS_MAX: usize = 16;

/// Random sign changes beyond that.
const RANDOM_SIGN_CHANGES: usize = 10_000;

/// Number of pairs beyond which ranks are not used: their averages are too many, and t is exact enough.
const RANK_PAIRS_MAX: usize = 1000;

/// Ratios beyond this, and below its inverse, are none: their inverse or square would not be a number.
pub(super) const RATIO_MAX: f64 = 1e150;

/// Interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioInterval {
    /// The lower end, above 0.
    pub low: f64,
    /// The upper end, finite.
    pub high: f64,
}

impl RatioInterval {
    fn from_logs(low: f64, high: f64) -> Option<RatioInterval> {
        let found = RatioInterval { low: low.exp(), high: high.exp() };
        (found.low >= 1.0 / RATIO_MAX && found.high <= RATIO_MAX).then_some(found)
    }

    /// Whether it contains a ratio, including its ends and the rounding errors of equal values.
    pub fn contains(&self, ratio: f64) -> bool {
        const ROUNDING: f64 = 1e-12;
        self.low * (1.0 - ROUNDING) <= ratio && ratio <= self.high * (1.0 + ROUNDING)
    }

    /// The interval of the ratio the other way around.
    pub fn inverse(&self) -> RatioInterval {
        RatioInterval { low: 1.0 / self.high, high: 1.0 / self.low }
    }
}

/// Log ratios of pairs, in the order of their rounds.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PairedRatios {
    logs: Vec<f64>,
    /// The round of each.
    rounds: Vec<u32>,
}

impl PairedRatios {
    /// Pairs from the logarithms of their ratios, a round each; those that are not finite are left out.
    pub fn from_logs(logs: impl IntoIterator<Item = f64>) -> PairedRatios {
        PairedRatios::from_rounds((0..).zip(logs))
    }

    /// The same from rounds in ascending order.
    pub fn from_rounds(pairs: impl IntoIterator<Item = (u32, f64)>) -> PairedRatios {
        let (rounds, logs) = pairs.into_iter().filter(|(_, log)| log.is_finite()).unzip();
        PairedRatios { logs, rounds }
    }

    /// The ratios of these to others that have the same baseline, of the rounds that both have.
    pub fn relative_to(&self, other: &PairedRatios) -> PairedRatios {
        let place = |round: &u32| other.rounds.binary_search(round).ok();
        let of_round = |(round, log): (&u32, &f64)| Some((*round, log - other.logs[place(round)?]));
        PairedRatios::from_rounds(self.rounds.iter().zip(&self.logs).filter_map(of_round))
    }

    /// How many pairs there are.
    pub fn pair_count(&self) -> usize {
        self.logs.len()
    }

    /// The ratios themselves.
    pub fn ratios(&self) -> impl Iterator<Item = f64> + '_ {
        self.logs.iter().map(|log| log.exp())
    }

    /// Geometric mean of the ratios, the centre of the interval by t; `None` without pairs.
    pub fn ratio(&self) -> Option<f64> {
        (!self.logs.is_empty()).then(|| mean(&self.logs).exp())
    }

    /// Median, quartiles and ends of the ratios.
    pub fn ratio_statistics(&self) -> Option<SampleStatistics> {
        SampleStatistics::from_samples(self.ratios().collect())
    }

    /// The mean of the logarithms and the variance of that mean.
    pub(super) fn moments(&self) -> Option<(f64, f64)> {
        let count = self.logs.len();
        if count < 2 {
            return None;
        }
        let mean = mean(&self.logs);
        let squares: f64 = self.logs.iter().map(|log| (log - mean).powi(2)).sum();
        Some((mean, squares / (count - 1) as f64 / count as f64))
    }

    /// The interval of Student's t on the logarithms at [`CONFIDENCE_LEVEL`]; `None` below two pairs.
    pub fn t_interval(&self) -> Option<RatioInterval> {
        self.t_interval_at(CONFIDENCE_LEVEL)
    }

    /// The same at another level, such as that of a look of an experiment that may end early; `None` also
    /// where the level is not between 0 and 1.
    pub fn t_interval_at(&self, level: f64) -> Option<RatioInterval> {
        let (mean, variance) = self.moments()?;
        let half_width = student::quantile(level, (self.logs.len() - 1) as f64)? * variance.sqrt();
        RatioInterval::from_logs(mean - half_width, mean + half_width)
    }

    /// The interval of all ratios that Wilcoxon's signed-rank test does not refuse (Hodges and Lehmann 1963),
    /// and its true level, which is at least [`CONFIDENCE_LEVEL`]: ranks come in steps. One outlier moves it
    /// little.
    /// `None` below [`PAIRS_MIN`], where no interval reaches the level, and beyond 1000 pairs.
    pub fn rank_interval(&self) -> Option<(RatioInterval, f64)> {
        let count = self.logs.len();
        if !(PAIRS_MIN..=RANK_PAIRS_MAX).contains(&count) {
            return None;
        }
        let RankInterval { low, high, level } = signed_rank_interval(&average_pairs(&self.logs), count)?;
        Some((RatioInterval::from_logs(low, high)?, level))
    }

    /// The interval of a percentile bootstrap of the geometric mean, from this seed. With few pairs it is too
    /// narrow, so it is only shown beside the others.
    pub fn bootstrap_interval(&self, seed: u64) -> Option<RatioInterval> {
        let count = self.logs.len();
        if count < 2 {
            return None;
        }
        let mut random = SplitMix64::new(seed);
        let mut draw = || self.logs[random.next_below(count as u64) as usize];
        let mut means: Vec<f64> = (0..BOOTSTRAP_RESAMPLES)
            .map(|_| (0..count).map(|_| draw()).sum::<f64>() / count as f64)
            .collect();
        means.sort_unstable_by(f64::total_cmp);
        let cut = (BOOTSTRAP_RESAMPLES as f64 * (1.0 - CONFIDENCE_LEVEL) / 2.0) as usize;
        RatioInterval::from_logs(means[cut], means[BOOTSTRAP_RESAMPLES - 1 - cut])
    }

    /// How often a mean as far from no difference comes about if the two of a pair change places by chance:
    /// exact up to 16 pairs, beyond by draws from this seed. `None` without pairs.
    pub fn permutation_p(&self, seed: u64) -> Option<f64> {
        let count = self.logs.len();
        if count == 0 {
            return None;
        }
        let observed_sum = self.logs.iter().sum::<f64>().abs();
        // Sums in another order differ in their last bits.
        let is_as_far = |sum: f64| sum.abs() >= observed_sum * (1.0 - 1e-9);
        if count <= EXACT_SIGNS_PAIRS_MAX {
            // In the order of Gray's code each set differs from the one before in one sign.
            let mut signs = vec![1.0; count];
            let (mut sum, mut extreme) = (self.logs.iter().sum::<f64>(), 1u32);
            for gray_step in 1..1u32 << count {
                let at = gray_step.trailing_zeros() as usize;
                signs[at] = -signs[at];
                sum += 2.0 * signs[at] * self.logs[at];
                extreme += u32::from(is_as_far(sum));
            }
            return Some(f64::from(extreme) / (count as f64).exp2());
        }
        let mut random = SplitMix64::new(seed);
        let mut sum = || {
            let mut bits = 0;
            let signed = self.logs.iter().enumerate().map(|(at, log)| {
                bits = if at % 64 == 0 { random.next_u64() } else { bits >> 1 };
                if bits & 1 == 1 { -log } else { *log }
            });
            signed.sum::<f64>()
        };
        let extreme_count = (0..RANDOM_SIGN_CHANGES).filter(|_| is_as_far(sum())).count();
        // The order that was found is one of them.
        Some((extreme_count + 1) as f64 / (RANDOM_SIGN_CHANGES + 1) as f64)
    }
}

/// The ratio of two independent sets of values and its interval by Welch's t on their logarithms: for values
/// of different machines or days, which have no pairs. `None` below two values above 0 in each.
pub fn welch_ratio(values: &[f64], baseline: &[f64]) -> Option<(f64, RatioInterval)> {
    let logs = |values: &[f64]| PairedRatios::from_logs(values.iter().map(|value| value.ln()));
    welch_difference(&logs(values), &logs(baseline))
}

/// By how much two ratios that were measured apart differ, as a ratio of them, and its interval by Welch's t.
pub fn welch_difference(first: &PairedRatios, other: &PairedRatios) -> Option<(f64, RatioInterval)> {
    let ((mean, variance), (other_mean, other_variance)) = (first.moments()?, other.moments()?);
    let sum = variance + other_variance;
    let between = mean - other_mean;
    let parts = variance.powi(2) / (first.pair_count() - 1) as f64
        + other_variance.powi(2) / (other.pair_count() - 1) as f64;
    let half_width = match sum > 0.0 && parts > 0.0 {
        true => student::quantile(CONFIDENCE_LEVEL, sum.powi(2) / parts)? * sum.sqrt(),
        // Values that were all the same.
        false => 0.0,
    };
    Some((between.exp(), RatioInterval::from_logs(between - half_width, between + half_width)?))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().map(|value| value / values.len() as f64).sum()
}

/// Number of sorted averages outside on each side (the test's critical value), and the remaining level. The
/// distribution of the rank sum is exact up to 50 pairs; beyond, it is as good as normal.
pub(crate) fn signed_rank_critical_value(count: usize) -> Option<(usize, f64)> {
    const EXACT_MAX: usize = 50;
    let sums = count * (count + 1) / 2;
    if count > EXACT_MAX {
        let n = count as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        let reach = student::quantile(CONFIDENCE_LEVEL, 1e9)? * deviation;
        return Some(((sums as f64 / 2.0 - reach).floor().max(0.0) as usize, CONFIDENCE_LEVEL));
    }
    // Of the 2^n sets of signs, how many give each sum of the ranks with a plus.
    let mut sum_counts = vec![0.0f64; sums + 1];
    sum_counts[0] = 1.0;
    for rank in 1..=count {
        for sum in (rank..=sums).rev() {
            sum_counts[sum] += sum_counts[sum - rank];
        }
    }
    let all = (count as f64).exp2();
    let side = (1.0 - CONFIDENCE_LEVEL) / 2.0;
    let (mut rejected, mut next) = (0.0, 0);
    while rejected + sum_counts[next] / all <= side {
        rejected += sum_counts[next] / all;
        next += 1;
    }
    // A ratio below the average at place `critical` has a sum of at most `critical` on the other side.
    let critical = next.checked_sub(1)?;
    Some((critical, 1.0 - 2.0 * rejected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found}, not {expected}");
    }

    /// Ten differences that are used as logarithms.
    const LOGS: [f64; 10] = [0.12, 0.05, -0.02, 0.08, 0.21, 0.03, 0.10, -0.06, 0.15, 0.07];

    #[test]
    fn the_interval_by_t_is_that_of_the_formula() {
        let interval = PairedRatios::from_logs(LOGS).t_interval().unwrap();
        // mean 0.073, deviation 0.07874007 (n - 1), t 2.262157: 0.073 ± 0.056327, by hand.
        let deviation = (LOGS.iter().map(|log| (log - 0.073f64).powi(2)).sum::<f64>() / 9.0).sqrt();
        let reach = 2.262_157_162_854_099 * deviation / 10f64.sqrt();
        near(interval.low.ln(), 0.073 - reach);
        near(interval.high.ln(), 0.073 + reach);
        near(PairedRatios::from_logs(LOGS).ratio().unwrap().ln(), 0.073);
        let wide = PairedRatios::from_logs(LOGS).t_interval_at(0.99).unwrap();
        near(wide.high.ln(), 0.073 + 3.249_835_541_592_126_2 * deviation / 10f64.sqrt());
        assert_eq!(PairedRatios::from_logs([0.5]).t_interval(), None);
        assert_eq!(PairedRatios::from_logs(LOGS).t_interval_at(1.0), None);
        assert_eq!(PairedRatios::from_logs([f64::NAN, f64::INFINITY]).ratio(), None);
    }

    #[test]
    fn ranks_are_cut_as_in_the_tables_of_wilcoxon() {
        // Critical values of the two-sided test at 5 % (T at most this), n = 6 to 25.
        let table = [0, 2, 3, 5, 8, 10, 13, 17, 21, 25, 29, 34, 40, 46, 52, 58, 65, 73, 81, 89];
        for (count, critical) in (6..).zip(table) {
            assert_eq!(signed_rank_critical_value(count).unwrap().0, critical, "n = {count}");
        }
        // 2 × 1/64 and 2 × 25/1024 of the sets of signs.
        near(signed_rank_critical_value(6).unwrap().1, 1.0 - 2.0 / 64.0);
        near(signed_rank_critical_value(10).unwrap().1, 1.0 - 50.0 / 1024.0);
        let (exact, normal) =
            (signed_rank_critical_value(50).unwrap().0, signed_rank_critical_value(51).unwrap().0);
        // Where the exact values end and the normal ones begin: 434 and 453 in larger tables.
        assert_eq!((exact, normal), (434, 453));
    }

    /// Each ratio of a fine grid is tested by brute force over all signs; the interval consists of the
    /// accepted ones.
    #[test]
    fn the_interval_by_ranks_is_what_the_test_does_not_refuse() {
        let logs = [0.11, 0.053, -0.022, 0.087, 0.213, 0.031, 0.104];
        let is_kept = |shift: f64| {
            let moved: Vec<f64> = logs.iter().map(|log| log - shift).collect();
            let mut order: Vec<usize> = (0..moved.len()).collect();
            order.sort_by(|&a, &b| moved[a].abs().total_cmp(&moved[b].abs()));
            let rank = |at: usize| order.iter().position(|&place| place == at).unwrap() + 1;
            let plus: usize = (0..moved.len()).filter(|&at| moved[at] > 0.0).map(rank).sum();
            let all = 1u32 << moved.len();
            let sum = |set: u32| (0..moved.len()).filter(|at| set >> at & 1 == 1).map(|at| at + 1).sum();
            let sums: Vec<usize> = (0..all).map(sum).collect();
            let least = sums.iter().filter(|&&sum| sum <= plus).count();
            let most = sums.iter().filter(|&&sum| sum >= plus).count();
            2.0 * least.min(most) as f64 / f64::from(all) > 0.05
        };
        let (interval, level) = PairedRatios::from_logs(logs).rank_interval().unwrap();
        near(level, 1.0 - 6.0 / 128.0);
        for step in -200..500 {
            let shift = f64::from(step) / 1000.0 + 0.000_137;
            assert_eq!(interval.contains(shift.exp()), is_kept(shift), "{shift} in {interval:?}");
        }
        assert_eq!(PairedRatios::from_logs(logs[..5].to_vec()).rank_interval(), None);
    }

    #[test]
    fn the_exact_permutation_test_counts_all_signs() {
        near(PairedRatios::from_logs([0.1; 6]).permutation_p(1).unwrap(), 2.0 / 64.0);
        near(PairedRatios::from_logs([0.1, -0.1]).permutation_p(1).unwrap(), 1.0);
        near(PairedRatios::from_logs([3.0, 2.0, -1.0]).permutation_p(1).unwrap(), 4.0 / 8.0);
        let many = PairedRatios::from_logs((0..40).map(|at| if at % 2 == 0 { 0.1 } else { -0.1 }));
        near(many.permutation_p(1).unwrap(), 1.0);
        assert!(PairedRatios::from_logs([0.1; 40]).permutation_p(1).unwrap() < 2e-4);
        assert_eq!(PairedRatios::default().permutation_p(1), None);
    }

    #[test]
    fn a_bootstrap_is_the_same_for_the_same_seed_and_narrower_than_t() {
        let pairs = PairedRatios::from_logs(LOGS);
        let (one, again) = (pairs.bootstrap_interval(7).unwrap(), pairs.bootstrap_interval(7).unwrap());
        assert_eq!(one, again);
        assert_ne!(Some(one), pairs.bootstrap_interval(8));
        let t = pairs.t_interval().unwrap();
        assert!(t.low < one.low && one.high < t.high, "{one:?} in {t:?}");
    }

    #[test]
    fn two_sets_without_pairs_are_compared_by_welch() {
        // scipy.stats.ttest_ind of logarithms, equal_var=False, confidence_interval(0.95), by its formula.
        let (one, other) = ([100.0, 104.0, 98.0, 101.0], [50.0, 51.0, 49.5]);
        let (ratio, interval) = welch_ratio(&one, &other).unwrap();
        assert!((ratio - 2.007).abs() < 0.005, "{ratio}");
        assert!(interval.contains(2.0) && !interval.contains(1.9) && !interval.contains(2.1), "{interval:?}");
        assert_eq!(welch_ratio(&[1.0], &other), None);
        assert_eq!(welch_ratio(&[2.0, 2.0], &[1.0, 1.0]).unwrap().1, RatioInterval { low: 2.0, high: 2.0 });
    }
}
