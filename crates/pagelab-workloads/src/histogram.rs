//! How long operations took: counts by logarithmic buckets of constant relative width, so that a percentile
//! of millions of operations costs a few kilobytes.

/// Buckets for each doubling: the upper end of a bucket is at most 1/64 above what is in it.
const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
const BUCKETS: usize = ((64 - SUB_BITS + 1) as usize) << SUB_BITS;

/// Times of operations in nanoseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Latencies of {} operations, at most {} ns", self.count, self.max_ns)
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: vec![0; BUCKETS], count: 0, max_ns: 0 }
    }
}

impl Latencies {
    /// Adds one operation.
    pub fn add(&mut self, took_ns: u64) {
        self.counts[bucket(took_ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(took_ns);
    }

    /// Adds so many operations of one length.
    pub fn add_many(&mut self, took_ns: u64, count: u64) {
        if count > 0 {
            self.counts[bucket(took_ns)] += count;
            self.count += count;
            self.max_ns = self.max_ns.max(took_ns);
        }
    }

    /// How many operations there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time that this many of 100 000 operations do not exceed: 50 000 for the median, 99 900 for p99.9.
    /// It is the upper end of its bucket, at most 1/64 above the operation itself; `None` without any.
    pub fn percentile_ns(&self, of_100_000: u64) -> Option<u64> {
        let wanted = u128::from(self.count) * u128::from(of_100_000.min(100_000));
        let rank = u64::try_from(wanted.div_ceil(100_000)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0;
        let place = self.counts.iter().position(|&count| {
            seen += count;
            seen >= rank
        })?;
        (self.count > 0).then(|| last_of(place).min(self.max_ns))
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Latencies) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// The bucket of a time: itself below 64, then 64 for each doubling.
fn bucket(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    (((u64::from(shift) + 1) << SUB_BITS) + ((ns >> shift) - SUB)) as usize
}

/// The longest time in a bucket.
fn last_of(bucket: usize) -> u64 {
    let (doubling, part) = ((bucket as u64) >> SUB_BITS, bucket as u64 & (SUB - 1));
    match doubling {
        0 => part,
        _ => {
            let shift = doubling - 1;
            (((SUB + part) << shift) - 1).saturating_add(1 << shift)
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::seed::SplitMix64;

    use super::*;

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_a_sixty_fourth() {
        let mut random = SplitMix64::new(3);
        let (mut latencies, mut all) = (Latencies::default(), Vec::new());
        for _ in 0..10_000 {
            let ns = random.draw() >> (random.below(64));
            latencies.add(ns);
            all.push(ns);
        }
        all.sort_unstable();
        for of in [1, 1000, 50_000, 90_000, 99_000, 99_900, 100_000] {
            let exact = all[(all.len() as u64 * of).div_ceil(100_000).max(1) as usize - 1];
            let found = latencies.percentile_ns(of).unwrap();
            assert!(found >= exact && found - exact <= exact / 64, "{of}: {found} for {exact}");
        }
        assert_eq!(latencies.max_ns(), *all.last().unwrap());
    }

    #[test]
    fn buckets_follow_each_other() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 129, 1 << 20, u64::MAX - 1, u64::MAX] {
            let place = bucket(ns);
            assert!(last_of(place) >= ns, "{ns}");
            assert!(place == 0 || last_of(place - 1) < ns, "{ns}");
        }
        assert_eq!(Latencies::default().percentile_ns(50_000), None);
    }
}
