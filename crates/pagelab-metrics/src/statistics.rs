//! Order statistics of samples, and the rates of a counter.

/// What is said of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
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

impl Statistics {
    /// The statistics of finite samples, in whatever order; `None` without any. Between two samples a
    /// quantile is interpolated: the quantile q of n sorted samples stands at place q × (n − 1), counted
    /// from 0, as in R's type 7 and NumPy's default.
    pub fn of(mut samples: Vec<f64>) -> Option<Statistics> {
        samples.retain(|sample| sample.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (samples.first()?, samples.last()?);
        let count = samples.len();
        // Each part is divided before it is added: the sum of finite samples may not be finite.
        let mean = samples.iter().map(|sample| sample / count as f64).sum::<f64>().clamp(min, max);
        Some(Statistics {
            count,
            min,
            percentile_5: quantile(&samples, 5),
            lower_quartile: quantile(&samples, 25),
            median: quantile(&samples, 50),
            mean,
            upper_quartile: quantile(&samples, 75),
            percentile_95: quantile(&samples, 95),
            max,
        })
    }

    /// The distance between the quartiles, in which the middle half of the samples lies.
    pub fn spread(&self) -> f64 {
        self.upper_quartile - self.lower_quartile
    }

    /// The same as a share of the median; `None` where the median is not above 0.
    pub fn relative_spread(&self) -> Option<f64> {
        let share = self.spread() / self.median;
        (self.median > 0.0 && share.is_finite()).then_some(share)
    }
}

/// The quantile in per cent of sorted samples, of which there is at least one.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let hundredths = (sorted.len() - 1) * percent;
    let (below, part) = (sorted[hundredths / 100], (hundredths % 100) as f64 / 100.0);
    let above = sorted.get(hundredths / 100 + 1).copied().unwrap_or(below);
    // Not `below + part × (above − below)`: that difference may not be finite.
    below * (1.0 - part) + above * part
}

/// How fast a counter grew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Per second, between each reading and the one before it, with the time of the later one in nanoseconds.
    /// A reading that failed is passed over: the rate after it is that of the longer time.
    pub per_second: Vec<(u64, f64)>,
    /// The mean over all of the time that `per_second` covers; `None` if it covers none.
    pub mean: Option<f64>,
    /// How many times the counter went back: it was reset, or it wrapped around. Such a step has no rate.
    pub went_back: usize,
}

impl Rates {
    /// The rates of a counter from its readings, ascending by time in nanoseconds.
    pub fn of(readings: impl Iterator<Item = (u64, Option<i64>)>) -> Rates {
        let mut rates = Rates::default();
        let (mut grown, mut took_ns) = (0u128, 0u128);
        let mut before: Option<(u64, i64)> = None;
        for (at_ns, value) in readings {
            let Some(value) = value else { continue };
            if let Some((then_ns, then)) = before.replace((at_ns, value)) {
                let step_ns = at_ns.saturating_sub(then_ns);
                if value < then {
                    rates.went_back += 1;
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
            let found = Statistics::of(samples.to_vec()).unwrap();
            let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b} of {samples:?}");
            near(found.percentile_5, low);
            near(found.lower_quartile, lower);
            near(found.median, median);
            near(found.upper_quartile, upper);
            near(found.percentile_95, high);
            near(found.mean, mean);
            assert_eq!(found.count, samples.len());
        }
        assert_eq!(Statistics::of(vec![]), None);
        assert_eq!(Statistics::of(vec![f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn extreme_samples_leave_every_number_finite() {
        let found = Statistics::of(vec![f64::MAX, f64::MIN, f64::MAX, f64::MAX]).unwrap();
        for value in [found.lower_quartile, found.median, found.mean, found.upper_quartile] {
            assert!(value.is_finite(), "{found:?}");
        }
        assert_eq!(Statistics::of(vec![0.0, 0.0]).unwrap().relative_spread(), None);
        assert_eq!(Statistics::of(vec![1.0, 2.0, 3.0]).unwrap().relative_spread(), Some(0.5));
    }

    #[test]
    fn rates_pass_over_failed_readings_and_name_what_went_back() {
        const S: u64 = 1_000_000_000;
        let check = |readings: &[(u64, Option<i64>)], rates: &[(u64, f64)], mean, went_back| {
            let found = Rates::of(readings.iter().copied());
            assert_eq!(found, Rates { per_second: rates.to_vec(), mean, went_back }, "{readings:?}");
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
}
