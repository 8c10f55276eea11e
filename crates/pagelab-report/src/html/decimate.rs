//! Many values by few: the smallest and the largest of each stretch, where they were.

/// Indices of at most `cap` of `values` that show the same picture: the first and the last, and of each
/// stretch of equal length the smallest, the largest and, where a value is absent, one gap; ascending.
///
/// `cap` below 5 counts as 5.
pub(super) fn extremes(values: &[Option<f64>], cap: usize) -> Vec<usize> {
    let length = values.len();
    let cap = cap.max(5);
    if length <= cap {
        return (0..length).collect();
    }
    let has_gap = values.iter().any(Option::is_none);
    // The first and the last may come on top of what their stretches give.
    let stretches = (cap - 2) / if has_gap { 3 } else { 2 };
    let mut kept = Vec::with_capacity(cap.min(length));
    kept.push(0);
    for stretch in 0..stretches {
        let (start, end) = (length * stretch / stretches, length * (stretch + 1) / stretches);
        let (mut low, mut high, mut gap) = (None::<(usize, f64)>, None::<(usize, f64)>, None);
        for (at, value) in (start..end).zip(&values[start..end]) {
            match *value {
                Some(value) => {
                    if low.is_none_or(|(_, least)| value < least) {
                        low = Some((at, value));
                    }
                    if high.is_none_or(|(_, most)| value > most) {
                        high = Some((at, value));
                    }
                }
                None => gap = gap.or(Some(at)),
            }
        }
        let mut found: Vec<usize> =
            [low.map(|(at, _)| at), high.map(|(at, _)| at), gap].into_iter().flatten().collect();
        found.sort_unstable();
        kept.extend(found);
    }
    kept.push(length - 1);
    kept.dedup();
    kept
}

/// How many values each of several columns may keep so that all together keep at most `budget`: the large
/// ones share what the small ones leave. `usize::MAX` where all fit.
pub(super) fn share(mut lengths: Vec<usize>, budget: usize) -> usize {
    lengths.sort_unstable();
    let mut left = budget;
    for (at, &length) in lengths.iter().enumerate() {
        let each = left / (lengths.len() - at);
        if length > each {
            return each;
        }
        left -= length;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that is good enough for test data.
    fn noise(seed: u64, count: usize) -> Vec<Option<f64>> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 33) as f64;
            (seed.is_multiple_of(2) || !(state >> 20).is_multiple_of(97)).then_some(value)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn few_values_stay_as_they_are() {
        assert_eq!(extremes(&[], 10), Vec::<usize>::new());
        assert_eq!(extremes(&[Some(1.0), None, Some(2.0)], 4), [0, 1, 2]);
        assert_eq!(extremes(&[Some(1.0); 5], 0).len(), 5);
        assert_eq!(extremes(&[Some(1.0); 6], 0), [0, 5]);
    }

    #[test]
    fn extremes_first_last_and_gaps_survive_within_the_cap() {
        for seed in 0..40 {
            let values = noise(seed, 1000 + seed as usize * 37);
            for cap in [4, 5, 10, 99, 500] {
                let kept = extremes(&values, cap);
                let context = format!("seed {seed} cap {cap}: {}", kept.len());
                assert!(kept.len() <= cap.max(5), "{context}");
                assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "{context}");
                assert_eq!((kept[0], *kept.last().unwrap()), (0, values.len() - 1), "{context}");
                let all = values.iter().copied().flatten();
                let shown = || kept.iter().filter_map(|&at| values[at]);
                assert_eq!(shown().fold(f64::MAX, f64::min), all.clone().fold(f64::MAX, f64::min));
                assert_eq!(shown().fold(f64::MIN, f64::max), all.fold(f64::MIN, f64::max), "{context}");
                let gaps = values.iter().any(Option::is_none);
                assert_eq!(kept.iter().any(|&at| values[at].is_none()), gaps, "{context}");
            }
        }
    }

    #[test]
    fn the_budget_is_shared_by_the_large() {
        assert_eq!(share(vec![], 10), usize::MAX);
        assert_eq!(share(vec![5, 5], 10), usize::MAX);
        assert_eq!(share(vec![5, 6], 10), 5);
        assert_eq!(share(vec![100, 2, 100], 10), 4);
        for lengths in [vec![1, 2, 3, 400, 500], vec![7; 30], vec![1000, 1]] {
            let cap = share(lengths.clone(), 100);
            assert!(lengths.iter().map(|&length| length.min(cap)).sum::<usize>() <= 100, "{lengths:?}");
        }
    }
}
