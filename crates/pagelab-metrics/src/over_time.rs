//! What is said of a quantity that was read again and again, over a length of time and not over readings.
//!
//! A reading stands for half the time to the reading before it and half the time to the one after it; the
//! first and the last stand, on their open sides, for half of the usual distance of two readings (the median
//! of all distances). Regular readings thus weigh alike, and their mean is the plain one; where ticks were
//! missed, the two readings beside the gap share it.

/// A quantity over a length of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverTime {
    /// The sum of values times weights over the sum of weights.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The smallest value such that values up to it cover at least 95 % of the time.
    pub percentile_95: f64,
}

impl OverTime {
    /// Of values with the time that each stands for, in whatever unit; `None` without any time.
    pub fn of(weighted: &[(f64, u64)]) -> Option<OverTime> {
        let mut sorted: Vec<(f64, u64)> =
            weighted.iter().copied().filter(|(value, weight)| value.is_finite() && *weight > 0).collect();
        sorted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let (&(min, _), &(max, _)) = (sorted.first()?, sorted.last()?);
        let whole: u128 = sorted.iter().map(|&(_, weight)| u128::from(weight)).sum();
        // Distances from the smallest are summed: what all values have in common costs no digits.
        let above: f64 = sorted.iter().map(|&(value, weight)| (value - min) * (weight as f64)).sum();
        let mean = (min + above / whole as f64).clamp(min, max);
        let mut covered = 0u128;
        let enough = sorted.iter().find(|&&(_, weight)| {
            covered += u128::from(weight);
            covered * 100 >= whole * 95
        });
        let percentile_95 = enough.map_or(max, |&(value, _)| value);
        Some(OverTime { mean, min, max, percentile_95 })
    }
}

/// The usual distance of two readings: the median of all distances, the larger of two in the middle. `None`
/// for fewer than two readings.
pub fn usual_distance_ns(at_ns: &[u64]) -> Option<u64> {
    let mut distances: Vec<u64> = at_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    distances.sort_unstable();
    distances.get(distances.len() / 2).copied()
}

/// For each reading twice the time that it stands for, in nanoseconds; at least 1 for a single one.
pub fn weights(at_ns: &[u64]) -> Vec<u64> {
    let Some(usual) = usual_distance_ns(at_ns) else { return vec![1; at_ns.len()] };
    let distance = |from: Option<usize>, to: usize| {
        let pair = from.and_then(|from| at_ns.get(from).zip(at_ns.get(to)));
        pair.map_or(usual, |(before, after)| after.saturating_sub(*before))
    };
    let weight = |at: usize| distance(at.checked_sub(1), at).saturating_add(distance(Some(at), at + 1));
    (0..at_ns.len()).map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(at_ns: &[u64], values: &[f64]) -> OverTime {
        let weighted: Vec<(f64, u64)> = values.iter().copied().zip(weights(at_ns)).collect();
        OverTime::of(&weighted).unwrap()
    }

    #[test]
    fn regular_readings_weigh_alike_and_a_gap_is_shared_by_its_two_sides() {
        let regular = over(&[0, 5, 10, 15], &[1.0, 2.0, 3.0, 6.0]);
        assert_eq!((regular.mean, regular.min, regular.max, regular.percentile_95), (3.0, 1.0, 6.0, 6.0));
        assert_eq!(weights(&[0, 5, 10, 30, 35]), [10, 10, 25, 25, 10]);
        // 10, 10, 25, 25, 10 of 80.
        assert_eq!(over(&[0, 5, 10, 30, 35], &[0.0, 0.0, 8.0, 8.0, 0.0]).mean, 5.0);
        assert_eq!(over(&[7], &[4.0]).mean, 4.0);
        assert_eq!(OverTime::of(&[]), None);
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
