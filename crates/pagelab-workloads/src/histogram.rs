//! Histogram of operation times: counts by logarithmic buckets of constant relative width, so that a
//! percentile of millions of operations costs a few kilobytes.

/// Buckets for each doubling: the upper end of a bucket is at most 1/64 above its values.
const SUB_BUCKET_BITS: u32 = 6;
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;
const BUCKET_COUNT: usize = ((64 - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS;

/// Times of operations in nanoseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl std::fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Latencies of {} operations, at most {} ns", self.count, self.max_ns)
    }
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram { counts: vec![0; BUCKET_COUNT], count: 0, max_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Adds one operation.
    pub fn record(&mut self, latency_ns: u64) {
        self.record_many(latency_ns, 1);
    }

    /// Adds a number of operations of one length.
    pub fn record_many(&mut self, latency_ns: u64, count: u64) {
        if count > 0 {
            self.counts[bucket_of(latency_ns)] += count;
            self.count += count;
            self.max_ns = self.max_ns.max(latency_ns);
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
    pub fn percentile_ns(&self, per_100_000: u64) -> Option<u64> {
        let wanted = u128::from(self.count) * u128::from(per_100_000.min(100_000));
        let rank = u64::try_from(wanted.div_ceil(100_000)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0;
        let place = self.counts.iter().position(|&count| {
            seen += count;
            seen >= rank
        })?;
        (self.count > 0).then(|| bucket_upper_ns(place).min(self.max_ns))
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// The bucket of a time: itself below 64, then 64 for each doubling.
fn bucket_of(ns: u64) -> usize {
    if ns < SUB_BUCKETS {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BUCKET_BITS;
    (((u64::from(shift) + 1) << SUB_BUCKET_BITS) + ((ns >> shift) - SUB_BUCKETS)) as usize
}

/// The longest time in a bucket.
fn bucket_upper_ns(bucket: usize) -> u64 {
    let (doubling, part) = ((bucket as u64) >> SUB_BUCKET_BITS, bucket as u64 & (SUB_BUCKETS - 1));
    match doubling {
        0 => part,
        _ => {
            let shift = doubling - 1;
            (((SUB_BUCKETS + part) << shift) - 1).saturating_add(1 << shift)
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::random::SplitMix64;

    use super::*;

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_a_sixty_fourth() {
        let mut random = SplitMix64::new(3);
        let (mut latencies, mut all) = (LatencyHistogram::default(), Vec::new());
        for _ in 0..10_000 {
            let ns = random.next_u64() >> (random.next_below(64));
            latencies.record(ns);
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
            let place = bucket_of(ns);
            assert!(bucket_upper_ns(place) >= ns, "{ns}");
            assert!(place == 0 || bucket_upper_ns(place - 1) < ns, "{ns}");
        }
        assert_eq!(LatencyHistogram::default().percentile_ns(50_000), None);
    }
}
