//! Order statistics of samples, statistics weighted by time, and the rates of a counter.

use pagelab_model::order_statistics::{median, quantile};

/// Statistics of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleStatistics {
    /// How many samples there are; at least one.
    pub count: usize,
    /// The smallest.
    pub min: f64,
    /// 5 of 100 samples are smaller.
    pub percentile_5: f64,
    /// A quarter of the samples is smaller.
    pub lower_quartile: f64,
    /// Half of the samples is smaller: the middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The sum over the count.
    pub mean: f64,
    /// Three quarters of the samples are smaller.
    pub upper_quartile: f64,
    /// 95 of 100 samples are smaller.
    pub percentile_95: f64,
    /// The largest.
    pub max: f64,
}

impl SampleStatistics {
    /// Computes the statistics of finite samples in any order; `None` without any.
    pub fn from_samples(mut samples: Vec<f64>) -> Option<SampleStatistics> {
        samples.retain(|sample| sample.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (samples.first()?, samples.last()?);
        let count = samples.len();
        // Each part is divided before it is added: the sum of finite samples may not be finite.
        let mean = samples.iter().map(|sample| sample / count as f64).sum::<f64>().clamp(min, max);
        Some(SampleStatistics {
            count,
            min,
            percentile_5: quantile(&samples, 50)?,
            lower_quartile: quantile(&samples, 250)?,
            median: quantile(&samples, 500)?,
            mean,
            upper_quartile: quantile(&samples, 750)?,
            percentile_95: quantile(&samples, 950)?,
            max,
        })
    }

    /// Distance between the quartiles, which contain the middle half of the samples, as a share of the
    /// median; `None` if the median is not above 0.
    pub fn relative_interquartile_range(&self) -> Option<f64> {
        let share = (self.upper_quartile - self.lower_quartile) / self.median;
        (self.median > 0.0 && share.is_finite()).then_some(share)
    }
}

/// Places of values in their order from 1 on; equal ones share the middle of theirs.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&one, &other| values[one].total_cmp(&values[other]));
    let mut ranks = vec![0.0; values.len()];
    let mut at = 0;
    for run in order.chunk_by(|&one, &other| values[one] == values[other]) {
        let rank = at as f64 + (run.len() as f64 + 1.0) / 2.0;
        run.iter().for_each(|&place| ranks[place] = rank);
        at += run.len();
    }
    ranks
}

/// Pearson's correlation, which of ranks is Spearman's; `None` if one of them does not vary.
pub(crate) fn correlation(first: &[f64], second: &[f64]) -> Option<f64> {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let (middle, other_middle) = (mean(first), mean(second));
    let (mut product_sum, mut first_squares, mut second_squares) = (0.0, 0.0, 0.0);
    for (a, b) in first.iter().zip(second) {
        let (a, b) = (a - middle, b - other_middle);
        (product_sum, first_squares, second_squares) =
            (product_sum + a * b, first_squares + a * a, second_squares + b * b);
    }
    let scale = f64::sqrt(first_squares * second_squares);
    (scale > 0.0).then(|| product_sum / scale)
}

/// How fast a counter grew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterRates {
    /// Per second, between each reading and the one before it, with the time of the later one in nanoseconds.
    /// A reading that failed is passed over: the rate after it is that of the longer time.
    pub per_second: Vec<(u64, f64)>,
    /// The mean over all of the time that `per_second` covers; `None` if it covers none.
    pub mean: Option<f64>,
    /// Number of decreases of the counter: it was reset, or it wrapped around. Such a step has no rate.
    pub resets: usize,
}

impl CounterRates {
    /// The rates of a counter from its readings, ascending by time in nanoseconds.
    pub fn from_readings(readings: impl Iterator<Item = (u64, Option<i64>)>) -> CounterRates {
        let mut rates = CounterRates::default();
        let (mut grown, mut took_ns) = (0u128, 0u128);
        let mut last_reading: Option<(u64, i64)> = None;
        for (at_ns, value) in readings {
            let Some(value) = value else { continue };
            if let Some((then_ns, then)) = last_reading.replace((at_ns, value)) {
                let step_ns = at_ns.saturating_sub(then_ns);
                if value < then {
                    rates.resets += 1;
                } else if step_ns > 0 {
                    let step = value.abs_diff(then);
                    grown += u128::from(step);
                    took_ns += u128::from(step_ns);
                    rates.per_second.push((at_ns, step as f64 / (step_ns as f64 / 1e9)));
                }
            }
        }
        rates.mean = (took_ns > 0).then(|| grown as f64 / (took_ns as f64 / 1e9));
        rates
    }
}

// Statistics of a repeatedly read quantity over time, not over readings.
//
// A reading represents half the time to the previous reading and half the time to the next; the first and the
// last represent, on their open sides, half of the usual interval of two readings (the median of all
// intervals). Regular readings thus have equal weights, and their mean is the plain one; where ticks were
// missed, the two readings beside the gap share it.

/// A quantity over a length of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeStatistics {
    /// The sum of values times weights over the sum of weights.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The smallest value such that values up to it cover at least 95 % of the time.
    pub percentile_95: f64,
}

impl TimeStatistics {
    /// Computes the statistics of values weighted with their times, in any unit; `None` without any time.
    pub fn from_weighted(weighted: &[(f64, u64)]) -> Option<TimeStatistics> {
        let mut sorted: Vec<(f64, u64)> =
            weighted.iter().copied().filter(|(value, weight)| value.is_finite() && *weight > 0).collect();
        sorted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let (&(min, _), &(max, _)) = (sorted.first()?, sorted.last()?);
        let weight_sum: u128 = sorted.iter().map(|&(_, weight)| u128::from(weight)).sum();
        // Distances from the smallest are summed: what all values have in common costs no digits.
        let above: f64 = sorted.iter().map(|&(value, weight)| (value - min) * (weight as f64)).sum();
        let mean = (min + above / weight_sum as f64).clamp(min, max);
        let mut covered = 0u128;
        let enough = sorted.iter().find(|&&(_, weight)| {
            covered += u128::from(weight);
            covered * 100 >= weight_sum * 95
        });
        let percentile_95 = enough.map_or(max, |&(value, _)| value);
        Some(TimeStatistics { mean, min, max, percentile_95 })
    }
}

/// The typical interval between two readings: the median of all. `None` for fewer than two readings.
pub fn typical_interval_ns(at_ns: &[u64]) -> Option<u64> {
    let mut distances: Vec<u64> = at_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    median(&mut distances)
}

/// For each reading twice the time that it represents, in nanoseconds; at least 1 for a single one.
pub fn time_weights(at_ns: &[u64]) -> Vec<u64> {
    let Some(typical_ns) = typical_interval_ns(at_ns) else { return vec![1; at_ns.len()] };
    let distance = |from: Option<usize>, to: usize| {
        let pair = from.and_then(|from| at_ns.get(from).zip(at_ns.get(to)));
        pair.map_or(typical_ns, |(before, after)| after.saturating_sub(*before))
    };
    let weight = |at: usize| distance(at.checked_sub(1), at).saturating_add(distance(Some(at), at + 1));
    (0..at_ns.len()).map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        // numpy.percentile(x, [5, 25, 50, 75, 95]), numpy.mean(x)
        let cases: [(&[f64], [f64; 6]); 4] = [
            (&[7.0], [7.0; 6]),
            (&[2.0, 1.0], [1.05, 1.25, 1.5, 1.75, 1.95, 1.5]),
            (&[5.0, 1.0, 4.0, 2.0, 3.0], [1.2, 2.0, 3.0, 4.0, 4.8, 3.0]),
            (&[-10.0, 0.0, 10.0, 20.0], [-8.5, -2.5, 5.0, 12.5, 18.5, 5.0]),
        ];
        for (samples, [low, lower, median, upper, high, mean]) in cases {
            let found = SampleStatistics::from_samples(samples.to_vec()).unwrap();
            let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b} of {samples:?}");
            near(found.percentile_5, low);
            near(found.lower_quartile, lower);
            near(found.median, median);
            near(found.upper_quartile, upper);
            near(found.percentile_95, high);
            near(found.mean, mean);
            assert_eq!(found.count, samples.len());
        }
        assert_eq!(SampleStatistics::from_samples(vec![]), None);
        assert_eq!(SampleStatistics::from_samples(vec![f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn extreme_samples_leave_every_number_finite() {
        let found = SampleStatistics::from_samples(vec![f64::MAX, f64::MIN, f64::MAX, f64::MAX]).unwrap();
        for value in [found.lower_quartile, found.median, found.mean, found.upper_quartile] {
            assert!(value.is_finite(), "{found:?}");
        }
        assert_eq!(
            SampleStatistics::from_samples(vec![0.0, 0.0]).unwrap().relative_interquartile_range(),
            None
        );
        assert_eq!(
            SampleStatistics::from_samples(vec![1.0, 2.0, 3.0]).unwrap().relative_interquartile_range(),
            Some(0.5)
        );
    }

    #[test]
    fn rates_pass_over_failed_readings_and_name_what_went_back() {
        const S: u64 = 1_000_000_000;
        let check = |readings: &[(u64, Option<i64>)], rates: &[(u64, f64)], mean, went_back| {
            let found = CounterRates::from_readings(readings.iter().copied());
            assert_eq!(
                found,
                CounterRates { per_second: rates.to_vec(), mean, resets: went_back },
                "{readings:?}"
            );
        };
        check(&[], &[], None, 0);
        check(&[(0, Some(5))], &[], None, 0);
        check(&[(0, Some(5)), (2 * S, Some(25))], &[(2 * S, 10.0)], Some(10.0), 0);
        check(&[(0, Some(0)), (S, None), (2 * S, Some(4))], &[(2 * S, 2.0)], Some(2.0), 0);
        check(&[(0, Some(9)), (S, Some(1)), (2 * S, Some(4))], &[(2 * S, 3.0)], Some(3.0), 1);
        check(&[(S, Some(1)), (S, Some(4))], &[], None, 0);
        let (least, most) = (Some(i64::MIN), Some(i64::MAX));
        check(&[(0, least), (S, most)], &[(S, u64::MAX as f64)], Some(u64::MAX as f64), 0);
    }

    fn over(at_ns: &[u64], values: &[f64]) -> TimeStatistics {
        let weighted: Vec<(f64, u64)> = values.iter().copied().zip(time_weights(at_ns)).collect();
        TimeStatistics::from_weighted(&weighted).unwrap()
    }

    #[test]
    fn regular_readings_weigh_alike_and_a_gap_is_shared_by_its_two_sides() {
        let regular = over(&[0, 5, 10, 15], &[1.0, 2.0, 3.0, 6.0]);
        assert_eq!((regular.mean, regular.min, regular.max, regular.percentile_95), (3.0, 1.0, 6.0, 6.0));
        assert_eq!(time_weights(&[0, 5, 10, 30, 35]), [10, 10, 25, 25, 10]);
        // 10, 10, 25, 25, 10 of 80.
        assert_eq!(over(&[0, 5, 10, 30, 35], &[0.0, 0.0, 8.0, 8.0, 0.0]).mean, 5.0);
        assert_eq!(over(&[7], &[4.0]).mean, 4.0);
        assert_eq!(TimeStatistics::from_weighted(&[]), None);
    }

    #[test]
    fn the_percentile_covers_time_and_not_readings() {
        // One peak of a hundred regular readings is above the 95th; a peak that lasts is not.
        let mut values = vec![1.0; 100];
        values[50] = 9.0;
        let times: Vec<u64> = (0..100).collect();
        assert_eq!(over(&times, &values).percentile_95, 1.0);
        let late: Vec<u64> = (0..100).map(|at| if at > 50 { at + 20 } else { at }).collect();
        assert_eq!(over(&late, &values).percentile_95, 9.0);
    }

    #[test]
    fn extreme_values_have_a_mean_within_them() {
        for values in [[i64::MAX as f64; 3], [i64::MIN as f64, 0.0, i64::MAX as f64], [-1.0, -1.0, -1.0]] {
            let found = over(&[0, u64::MAX / 2, u64::MAX], &values);
            assert!(found.min <= found.mean && found.mean <= found.max, "{values:?}: {found:?}");
        }
    }
}
