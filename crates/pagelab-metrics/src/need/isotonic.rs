//! Isotonic regression by pooling adjacent violators (Ayer, Brunk, Ewing, Reid and Silverman 1955).

/// The non-increasing values that are nearest to these by weighted squares, for each of them. Each is a value
/// and its weight, which is above 0.
pub(super) fn falling(values: &[(f64, f64)]) -> Vec<f64> {
    // Blocks of mean, weight and how many values they hold.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len());
    for &(value, weight) in values {
        let mut block = (value, weight, 1);
        while let Some(&(mean, before, count)) = blocks.last().filter(|(mean, ..)| *mean < block.0) {
            blocks.pop();
            let sum = before + block.1;
            block = ((mean * before + block.0 * block.1) / sum, sum, count + block.2);
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|(mean, _, count)| std::iter::repeat_n(mean, count)).collect()
}

#[cfg(test)]
mod tests {
    use pagelab_model::seed::SplitMix64;

    use super::*;

    #[test]
    fn violators_are_pooled() {
        let equal = |values: &[f64]| falling(&values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>());
        assert_eq!(equal(&[]), [] as [f64; 0]);
        assert_eq!(equal(&[3.0, 2.0, 1.0]), [3.0, 2.0, 1.0]);
        assert_eq!(equal(&[1.0, 3.0]), [2.0, 2.0]);
        assert_eq!(equal(&[4.0, 1.0, 3.0, 2.0]), [4.0, 2.0, 2.0, 2.0]);
        assert_eq!(falling(&[(1.0, 3.0), (5.0, 1.0)]), [2.0, 2.0]);
    }

    /// The value at i is the least over all beginnings up to i of the greatest mean to any end from i on (the
    /// min-max formula of Robertson, Wright and Dykstra 1988, turned for falling values).
    #[test]
    fn it_is_what_the_formula_of_means_says() {
        let mut random = SplitMix64::new(5);
        for _ in 0..300 {
            let count = 1 + random.below(8) as usize;
            let values: Vec<(f64, f64)> =
                (0..count).map(|_| (random.below(10) as f64, 1.0 + random.below(3) as f64)).collect();
            let mean = |from: usize, to: usize| {
                let part = &values[from..=to];
                part.iter().map(|(value, weight)| value * weight).sum::<f64>()
                    / part.iter().map(|(_, weight)| weight).sum::<f64>()
            };
            for (at, found) in falling(&values).into_iter().enumerate() {
                let greatest = |from: usize| (at..count).map(|to| mean(from, to)).fold(f64::MIN, f64::max);
                let expected = (0..=at).map(greatest).fold(f64::MAX, f64::min);
                assert!((found - expected).abs() < 1e-9, "{values:?} at {at}: {found}, not {expected}");
            }
        }
    }
}
