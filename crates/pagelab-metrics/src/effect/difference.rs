//! Differences of paired values: the contrast of measures that may be 0, indices and shares.
//!
//! In the simulator the seed is the only randomness, and all variants have the same seeds. A value may be 0,
//! so differences are computed, not ratios.

use std::collections::HashMap;

use super::paired::{CONFIDENCE_LEVEL, PAIRS_MIN, signed_rank_critical_value};
use crate::statistics::SampleStatistics;

/// Number of differences with an interval, and the expected number of those that miss by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DifferenceCount {
    /// Differences with an interval.
    pub judged: usize,
    /// Those of them whose interval has two ends that differ.
    pub wide: usize,
    /// How many of these miss the true difference by chance, from their levels.
    pub missed_by_chance: f64,
}

impl DifferenceCount {
    pub(super) fn add(&mut self, interval: RankInterval) {
        self.judged += 1;
        if interval.low < interval.high {
            self.wide += 1;
            self.missed_by_chance += 1.0 - interval.level;
        }
    }
}

/// Interval from the ranks of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankInterval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Its confidence level: at least [`CONFIDENCE_LEVEL`], since ranks come in steps.
    pub level: f64,
}

/// Difference of a variant from the baseline, paired by round: in the simulator, by seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// Rounds that both have.
    pub pairs: usize,
    /// The middle of all averages of two differences (Hodges and Lehmann 1963).
    pub hodges_lehmann: f64,
    /// The differences that Wilcoxon's signed-rank test does not refuse; `None` below [`PAIRS_MIN`] pairs.
    pub interval: Option<RankInterval>,
    /// Verdict.
    pub verdict: DifferenceVerdict,
}

/// Judgement of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceVerdict {
    /// Fewer than [`PAIRS_MIN`] pairs.
    TooFew,
    /// It is 0 in every round.
    Equal,
    /// The interval contains 0: no difference is seen.
    NoDifference,
    /// It is more than that of the baseline.
    More,
    /// It is less.
    Less,
}

pub(super) fn sort_values(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Interval of the median of the population of the sorted values, for any distribution: between two of them,
/// by the binomial distribution of the number of values below it. `None` below [`PAIRS_MIN`] values.
pub(super) fn median_interval(sorted: &[f64]) -> Option<RankInterval> {
    let count = sorted.len();
    if count < PAIRS_MIN {
        return None;
    }
    // In logarithms: 2^-1000 and less is no number.
    let half = count as f64 * 0.5f64.ln();
    let (mut binomial, mut below, mut outside) = (0.0f64, 0.0f64, 0);
    loop {
        let next = below + (binomial + half).exp();
        if 2.0 * next > 1.0 - CONFIDENCE_LEVEL {
            break;
        }
        below = next;
        binomial += ((count - outside) as f64 / (outside + 1) as f64).ln();
        outside += 1;
    }
    let place = outside.checked_sub(1)?;
    Some(RankInterval { low: sorted[place], high: sorted[count - 1 - place], level: 1.0 - 2.0 * below })
}

/// The averages of any two of these values, and of each with itself, sorted.
pub(super) fn average_pairs(values: &[f64]) -> Vec<f64> {
    let averages = values
        .iter()
        .enumerate()
        .flat_map(|(at, one)| values[at..].iter().map(move |other| one / 2.0 + other / 2.0));
    sort_values(averages)
}

/// The averages of `count` values that Wilcoxon's signed-rank test does not refuse.
pub(super) fn signed_rank_interval(averages: &[f64], count: usize) -> Option<RankInterval> {
    let (cut, level) = signed_rank_critical_value(count)?;
    let high = *averages.get(averages.len().checked_sub(1 + cut)?)?;
    Some(RankInterval { low: averages[cut], high, level })
}

pub(super) fn paired_difference(
    variant_values: &[(u32, f64)],
    baseline_values: &[(u32, f64)],
) -> Option<PairedDifference> {
    let to: HashMap<u32, f64> = baseline_values.iter().copied().collect();
    let differences: Vec<f64> =
        variant_values.iter().filter_map(|(round, value)| Some(value - to.get(round)?)).collect();
    let pairs = differences.len();
    let averages = average_pairs(&differences);
    let middle = SampleStatistics::from_samples(averages.clone())?.median;
    let interval = (pairs >= PAIRS_MIN).then(|| signed_rank_interval(&averages, pairs)).flatten();
    let verdict = match interval {
        _ if differences.iter().all(|&difference| difference == 0.0) => DifferenceVerdict::Equal,
        None => DifferenceVerdict::TooFew,
        Some(interval) if interval.low > 0.0 => DifferenceVerdict::More,
        Some(interval) if interval.high < 0.0 => DifferenceVerdict::Less,
        Some(_) => DifferenceVerdict::NoDifference,
    };
    Some(PairedDifference { pairs, hodges_lehmann: middle, interval, verdict })
}

#[cfg(test)]
mod tests {
    use pagelab_model::random::SplitMix64;

    use super::*;

    #[test]
    fn medians_lie_where_the_tables_of_the_sign_test_say() {
        // Places of the lower end, from 1, of the 95 % interval of the median (Conover, table A3 halves):
        // n = 6: 1, 9: 2, 12: 3, 15: 4, 17: 5, 20: 6, 25: 8, 30: 10, 50: 18, 100: 40.
        for (count, place) in [
            (6, 1),
            (8, 1),
            (9, 2),
            (12, 3),
            (15, 4),
            (17, 5),
            (20, 6),
            (25, 8),
            (30, 10),
            (50, 18),
            (100, 40),
        ] {
            let values: Vec<f64> = (1..=count).map(f64::from).collect();
            let found = median_interval(&values).unwrap();
            assert_eq!(found.low, f64::from(place), "n = {count}");
            assert_eq!(found.low + found.high, f64::from(count + 1));
            assert!(found.level >= CONFIDENCE_LEVEL && found.level < 1.0, "{found:?}");
        }
        assert_eq!(median_interval(&[1.0; 5]), None);
        assert!(median_interval(&vec![2.0; 5000]).is_some());
    }

    /// How often the interval of the difference contains the true one, with values that are often 0: at least
    /// as often as its level says, since ranks come in steps and ties are many.
    #[test]
    fn the_interval_contains_the_true_difference_as_often_as_it_says() {
        const EXPERIMENTS: usize = 2000;
        let mut random = SplitMix64::new(5);
        for (pairs, shift) in [(6u32, 0.0), (12, 3.0), (20, 0.0)] {
            let mut missed = 0usize;
            let mut level = 1.0f64;
            for _ in 0..EXPERIMENTS {
                let seeds: Vec<f64> = (0..pairs).map(|_| random.next_below(9) as f64).collect();
                let mut noisy = |base: f64| base + random.next_below(41) as f64 / 10.0 - 2.0;
                let values = |of: Vec<f64>| (0..).zip(of).collect::<Vec<(u32, f64)>>();
                let baseline = values(seeds.iter().map(|seed| noisy(*seed)).collect());
                let variant = values(seeds.iter().map(|seed| noisy(seed + shift)).collect());
                let interval = paired_difference(&variant, &baseline).unwrap().interval.unwrap();
                level = level.min(interval.level);
                missed += usize::from(!(interval.low..=interval.high).contains(&shift));
            }
            let covered = 1.0 - missed as f64 / EXPERIMENTS as f64;
            assert!(level >= CONFIDENCE_LEVEL && covered >= level - 0.015, "{pairs}: {covered} of {level}");
        }
    }
}
