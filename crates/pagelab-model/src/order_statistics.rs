//! Order statistics: the median, and quantiles by linear interpolation.

use std::cmp::Ordering;

/// A number whose samples have order statistics.
pub trait Sample: Copy {
    /// Total order of the samples.
    fn compare(&self, other: &Self) -> Ordering;
    /// Point between `self` and `above`, `permille` of the way.
    fn interpolate(self, above: Self, permille: u32) -> Self;
}

impl Sample for f64 {
    fn compare(&self, other: &f64) -> Ordering {
        self.total_cmp(other)
    }

    fn interpolate(self, above: f64, permille: u32) -> f64 {
        let fraction = f64::from(permille) / 1000.0;
        // Not `self + fraction × (above − self)`: the difference of two finite samples may not be finite.
        self * (1.0 - fraction) + above * fraction
    }
}

impl Sample for u64 {
    fn compare(&self, other: &u64) -> Ordering {
        self.cmp(other)
    }

    fn interpolate(self, above: u64, permille: u32) -> u64 {
        let step = u128::from(above - self) * u128::from(permille) / 1000;
        self + step as u64
    }
}

impl Sample for i64 {
    fn compare(&self, other: &i64) -> Ordering {
        self.cmp(other)
    }

    fn interpolate(self, above: i64, permille: u32) -> i64 {
        let step = u128::from(above.abs_diff(self)) * u128::from(permille) / 1000;
        self.saturating_add_unsigned(step as u64)
    }
}

/// Sorts the samples and returns their median: the sample in the middle, or the midpoint of the two in the
/// middle. `None` without samples.
pub fn median<T: Sample>(samples: &mut [T]) -> Option<T> {
    samples.sort_unstable_by(T::compare);
    quantile(samples, 500)
}

/// The quantile of sorted samples, in thousandths: the quantile q of n samples is at index q × (n − 1),
/// counted from 0, and is interpolated between two samples (type 7 of Hyndman and Fan 1996, the default of R
/// and NumPy). Whole numbers are rounded down. `None` without samples.
pub fn quantile<T: Sample>(sorted: &[T], permille: u32) -> Option<T> {
    debug_assert!(permille <= 1000 && sorted.is_sorted_by(|a, b| a.compare(b).is_le()));
    let place = sorted.len().checked_sub(1)? * permille as usize;
    let below = *sorted.get(place / 1000)?;
    match (place % 1000, sorted.get(place / 1000 + 1)) {
        (fraction @ 1.., Some(&above)) => Some(below.interpolate(above, fraction as u32)),
        _ => Some(below),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_midpoint() {
        assert_eq!(median(&mut [3u64, 1, 2]), Some(2));
        assert_eq!(median(&mut [4u64, 1, 2, u64::MAX]), Some(3));
        assert_eq!(median(&mut [-4i64, -1]), Some(-3), "rounded down");
        assert_eq!(median(&mut [i64::MIN, i64::MAX]), Some(-1));
        assert_eq!(median(&mut [0u64, u64::MAX]), Some(u64::MAX / 2));
        assert_eq!(median(&mut [f64::MAX, f64::MAX]), Some(f64::MAX));
        assert_eq!(median::<f64>(&mut []), None);
    }

    #[test]
    fn quantiles_are_those_of_numpy() {
        // numpy.percentile([10, 20, 30, 40], [0, 10, 50, 99, 100])
        let sorted = [10.0, 20.0, 30.0, 40.0];
        for (permille, expected) in [(0, 10.0), (100, 13.0), (500, 25.0), (990, 39.7), (1000, 40.0)] {
            let actual: f64 = quantile(&sorted, permille).unwrap();
            assert!((actual - expected).abs() < 1e-12, "{permille}: {actual}");
        }
        assert_eq!(quantile(&[10u64, 20, 30, 40], 990), Some(39));
        assert_eq!(quantile(&[7u64], 990), Some(7));
    }
}
