//! Random selection with unequal shares: weights by Zipf's law, and an alias table with one lookup per
//! selection.
//!
//! All computations use operations that IEEE 754 rounds exactly, or integers, so that the same options give
//! the same sequence on every machine; a library's `pow` does not guarantee that.

/// The weight of the first rank: enough that rounding to whole weights changes no share by more than 2^-30.
const FIRST_WEIGHT: f64 = (1u64 << 40) as f64;

/// Weights of `count` ranks, rank k (from 1) with 1 / k^exponent, the exponent in thousandths. None is 0.
pub fn zipf_weights(count: usize, exponent_thousandths: u64) -> Vec<u64> {
    let exponent = exponent_thousandths as f64 / 1000.0;
    (1..=count)
        .map(|rank| {
            (FIRST_WEIGHT * exponential(-exponent * natural_log(rank as f64))).round().max(1.0) as u64
        })
        .collect()
}

/// Weights of `count` ranks of which the first `hot` have this share (in thousandths) together, evenly, and
/// the others the rest.
pub fn hot_weights(count: usize, hot_count: usize, share_thousandths: u64) -> Vec<u64> {
    // Whole numbers whose ratio is that of the shares.
    let cold = count.saturating_sub(hot_count);
    let (of_hot, of_cold) = (share_thousandths * cold as u64, (1000 - share_thousandths) * hot_count as u64);
    (0..count).map(|rank| if rank < hot_count { of_hot } else { of_cold }).collect()
}

/// Natural logarithm of a number from 1 on: x = m 2^e with m in [1, 2), ln m by the series of atanh.
fn natural_log(x: f64) -> f64 {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let mantissa = f64::from_bits((x.to_bits() & !(0x7ff << 52)) | (1023 << 52));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    // ratio is at most 1/3, so 20 terms leave less than 2^-60.
    let series = (0..20).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    2.0 * ratio * series + exponent as f64 * std::f64::consts::LN_2
}

/// e^x for x from -60 to 0: halved until it is small, a polynomial, and squared again.
fn exponential(x: f64) -> f64 {
    let small = x / 256.0;
    let series = (1..=14).rev().fold(1.0, |sum, term| 1.0 + sum * small / f64::from(term));
    (0..8).fold(series, |power, _| power * power)
}

/// A table for draws by weight (A. J. Walker 1977; built after M. D. Vose 1991).
#[derive(Clone, Debug)]
pub struct AliasTable {
    columns: Vec<AliasColumn>,
}

/// A column has an even share of all draws; it is split between two outcomes.
#[derive(Clone, Copy, Debug)]
struct AliasColumn {
    /// The part of the column, of 2^64, that is `first_outcome`.
    threshold: u64,
    first_outcome: u32,
    second_outcome: u32,
}

impl AliasTable {
    /// A table that draws `outcomes[i]` with the share `weights[i]` of all weights; the two are equally long,
    /// and not all weights are 0.
    pub fn new(weights: &[u64], outcomes: &[u32]) -> AliasTable {
        let wide = |&weight: &u64| u128::from(weight);
        let total: u128 = weights.iter().map(wide).sum();
        let count = weights.len().min(outcomes.len());
        // In units of which a column holds `total`.
        let mut outcome_weights: Vec<u128> =
            weights.iter().map(|weight| wide(weight) * count as u128).collect();
        let mut columns: Vec<AliasColumn> = outcomes
            .iter()
            .map(|&outcome| AliasColumn {
                threshold: u64::MAX,
                first_outcome: outcome,
                second_outcome: outcome,
            })
            .collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&column| outcome_weights[column] < total);
        while let (Some(&small_column), Some(&large_column)) = (small.last(), large.last()) {
            small.pop();
            // Below total, so the quotient is below 2^64.
            columns[small_column].threshold = ((outcome_weights[small_column] << 64) / total) as u64;
            columns[small_column].second_outcome = outcomes[large_column];
            outcome_weights[large_column] -= total - outcome_weights[small_column];
            if outcome_weights[large_column] < total {
                large.pop();
                small.push(large_column);
            }
        }
        AliasTable { columns }
    }

    /// The outcome for 64 random bits.
    #[inline]
    pub fn sample(&self, bits: u64) -> u32 {
        let product = u128::from(bits) * self.columns.len() as u128;
        let column = &self.columns[(product >> 64) as usize];
        if (product as u64) < column.threshold { column.first_outcome } else { column.second_outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    #[test]
    fn logarithm_and_power_are_those_of_the_library() {
        for x in [1.0f64, 1.5, 2.0, 3.0, 7.0, 10.0, 511.0, 512.0, 65_535.0, 1e6, 1e9] {
            assert!(
                (natural_log(x) - x.ln()).abs() <= 4e-16 * x.ln().max(1.0),
                "ln {x}: {} and {}",
                natural_log(x),
                x.ln()
            );
            let power = -1.5 * x.ln();
            let relative = (exponential(power) - power.exp()).abs() / power.exp();
            assert!(relative < 1e-12, "exp {power}: {relative}");
        }
    }

    #[test]
    fn weights_are_those_of_the_law() {
        let weights = zipf_weights(512, 1000);
        for rank in [1usize, 2, 3, 8, 64, 512] {
            let ratio = weights[0] as f64 / weights[rank - 1] as f64;
            assert!((ratio / rank as f64 - 1.0).abs() < 1e-8, "rank {rank}: {ratio}");
        }
        assert!(zipf_weights(100, 0).iter().all(|&weight| weight == 1 << 40), "an exponent of 0 is even");
        assert!(zipf_weights(100_000, 4000).iter().all(|&weight| weight > 0));
        let weights = hot_weights(512, 32, 900);
        let total: u64 = weights.iter().sum();
        assert_eq!(weights[..32].iter().sum::<u64>() * 10, total * 9);
        assert!(weights[32..].iter().all(|&weight| weight == weights[511]));
        assert!(hot_weights(8, 2, 1000)[2..].iter().all(|&weight| weight == 0));
    }

    /// The exact share of each outcome, from the table itself.
    fn shares(alias: &AliasTable, outcomes: usize) -> Vec<f64> {
        let mut shares = vec![0.0; outcomes];
        for column in &alias.columns {
            let here = (column.threshold as f64) / 2f64.powi(64);
            shares[column.first_outcome as usize] += here / alias.columns.len() as f64;
            shares[column.second_outcome as usize] += (1.0 - here) / alias.columns.len() as f64;
        }
        shares
    }

    #[test]
    fn the_table_has_the_shares_of_the_weights() {
        for weights in
            [vec![1], vec![1, 3], vec![5, 0, 0, 5, 1], zipf_weights(512, 1500), hot_weights(512, 32, 900)]
        {
            let count = weights.len();
            // Outcomes in another order than weights; no count is a multiple of 3.
            let outcomes: Vec<u32> = (0..count).map(|at| ((at * 3 + 1) % count) as u32).collect();
            let found = shares(&AliasTable::new(&weights, &outcomes), count);
            let total: u64 = weights.iter().sum();
            for (weight, &outcome) in weights.iter().zip(&outcomes) {
                let wanted = *weight as f64 / total as f64;
                assert!((found[outcome as usize] - wanted).abs() < 1e-15, "{outcome} of {count}: {wanted}");
            }
        }
    }

    #[test]
    fn draws_follow_the_shares() {
        let alias = AliasTable::new(&[1, 2, 4, 8], &[0, 1, 2, 3]);
        let mut random = SplitMix64::new(3);
        let mut seen = [0f64; 4];
        (0..150_000).for_each(|_| seen[alias.sample(random.next_u64()) as usize] += 1.0);
        for (outcome, count) in seen.iter().enumerate() {
            let ratio = count / (10_000.0 * 2f64.powi(outcome as i32));
            assert!((0.95..1.05).contains(&ratio), "{outcome}: {count}");
        }
    }
}
