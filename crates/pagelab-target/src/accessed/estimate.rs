//! Estimate of page walks from accessed pages: a page that is walked at rate λ is found accessed after the
//! time t with probability 1 − exp(−λt). Of sweeps i with P_i pages, n_i found accessed after t_i, the rate
//! is the one under which that is likeliest: Σ n_i·t_i/(exp(λ·t_i) − 1) = Σ (P_i − n_i)·t_i. A
//! sweep that found all pages accessed has almost no weight.

use super::walk_total::block_shift;

/// Sweeps of similar duration are added up: buckets for each doubling of it.
const BUCKETS_PER_DOUBLING: f64 = 4.0;

/// Bisections of the interval that contains the rate.
const BISECTION_STEPS: u32 = 28;

/// A region is saturated if at most one in this many of its pages was not found accessed after the shortest
/// pauses: four walks of a page hide behind one bit there.
const SATURATED_REST_DIVISOR: u64 = 50;

/// Sweeps of similar duration in one block of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LagBucket {
    bucket: u16,
    block: u16,
    sweeps: u32,
    pages: u64,
    referenced: u64,
    lag_ns: u64,
}

impl LagBucket {
    /// (time in ns, pages accessed, pages not accessed).
    fn mean_counts(&self) -> (f64, f64, f64) {
        let lag = self.lag_ns as f64 / self.sweeps.max(1) as f64;
        (lag.max(1.0), self.referenced as f64, (self.pages - self.referenced) as f64)
    }
}

/// The sweeps of one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessSamples {
    buckets: Vec<LagBucket>,
    /// log2 of the turns in a block, as of the last sweep.
    block_shift: u32,
}

impl AccessSamples {
    /// Adds a sweep that belongs to no turn: it is in the first block.
    pub fn add_sweep(&mut self, pages: u64, referenced: u64, lag_ns: u64) {
        self.add_sweep_of_turn(0, pages, referenced, lag_ns);
    }

    /// Adds a sweep of a turn; turns do not descend.
    pub fn add_sweep_of_turn(&mut self, turn: u64, pages: u64, referenced: u64, lag_ns: u64) {
        self.join_blocks(block_shift(turn));
        let bucket = ((lag_ns.max(1) as f64).log2() * BUCKETS_PER_DOUBLING) as u16;
        let sweep = LagBucket {
            bucket,
            block: (turn >> self.block_shift) as u16,
            sweeps: 1,
            pages,
            referenced: referenced.min(pages),
            lag_ns,
        };
        add_to_buckets(&mut self.buckets, sweep, |bucket| (bucket.bucket, bucket.block));
    }

    /// Joins blocks until each has this many turns.
    fn join_blocks(&mut self, block_shift: u32) {
        let more = block_shift.saturating_sub(self.block_shift);
        if more == 0 {
            return;
        }
        self.block_shift = block_shift;
        for mut bucket in std::mem::take(&mut self.buckets) {
            bucket.block >>= more;
            add_to_buckets(&mut self.buckets, bucket, |bucket| (bucket.bucket, bucket.block));
        }
    }

    /// The sweeps by duration, without those of a block.
    fn by_lag(&self, left_out: Option<u16>) -> Vec<LagBucket> {
        let mut buckets = Vec::new();
        for bucket in self.buckets.iter().filter(|bucket| Some(bucket.block) != left_out) {
            add_to_buckets(&mut buckets, *bucket, |bucket| (bucket.bucket, 0));
        }
        buckets
    }

    /// The walks, or accesses, of all pages in a nanosecond, summed over the sweeps that saw the region:
    /// without each of `blocks` blocks of this many turns.
    pub fn rates_without_blocks(&self, shift: u32, blocks: u16) -> Vec<f64> {
        let mut samples = self.clone();
        samples.join_blocks(shift);
        let summed_rate = |left_out| {
            let buckets = samples.by_lag(left_out);
            page_rate(&buckets) * buckets.iter().map(|bucket| bucket.pages).sum::<u64>() as f64
        };
        let all = summed_rate(None);
        let is_there = |block: u16| samples.buckets.iter().any(|bucket| bucket.block == block);
        (0..blocks).map(|block| if is_there(block) { summed_rate(Some(block)) } else { all }).collect()
    }

    /// The same with all blocks.
    pub fn summed_rate(&self) -> f64 {
        self.page_rate() * self.buckets.iter().map(|bucket| bucket.pages).sum::<u64>() as f64
    }

    /// Whether nearly all of its pages were found accessed after the shortest pauses.
    pub fn is_saturated(&self) -> bool {
        let by_lag = self.by_lag(None);
        by_lag.iter().min_by_key(|bucket| bucket.bucket).is_some_and(|bucket| {
            bucket.referenced > 0
                && (bucket.pages - bucket.referenced) * SATURATED_REST_DIVISOR <= bucket.pages
        })
    }

    /// Sweeps that saw it with pages in memory.
    pub fn sweep_count(&self) -> u64 {
        self.buckets.iter().map(|bucket_sweeps| u64::from(bucket_sweeps.sweeps)).sum()
    }

    /// Whether any page was ever found accessed.
    pub fn was_accessed(&self) -> bool {
        self.buckets.iter().any(|bucket_sweeps| bucket_sweeps.referenced > 0)
    }

    /// Walks, or accesses, of one page in a nanosecond. If all pages were accessed, half a page counts as not
    /// accessed, so that a region that is always accessed everywhere is as hot as its sweeps can resolve and
    /// no hotter.
    pub fn page_rate(&self) -> f64 {
        page_rate(&self.by_lag(None))
    }

    /// Pages that a sweep saw, on average.
    pub fn mean_pages(&self) -> u64 {
        self.buckets.iter().map(|bucket_sweeps| bucket_sweeps.pages).sum::<u64>() / self.sweep_count().max(1)
    }

    /// Expected walks in this time at the observed rate.
    pub fn estimate_walks(&self, time_ns: u64) -> u64 {
        (self.summed_rate() / self.sweep_count().max(1) as f64 * time_ns as f64) as u64
    }

    /// Relative standard error of the rate, from Fisher's information Σ P_i·x_i²/(exp(x_i) − 1) with x_i =
    /// λ·t_i. Infinite without observations.
    pub fn relative_error(&self) -> f64 {
        let buckets = self.by_lag(None);
        let rate = page_rate(&buckets);
        let bucket_information = |bucket_sweeps: &LagBucket| {
            let x = rate * bucket_sweeps.mean_counts().0;
            bucket_sweeps.pages as f64 * x * x / x.exp_m1()
        };
        let information: f64 = buckets.iter().map(bucket_information).filter(|part| part.is_finite()).sum();
        information.sqrt().recip()
    }
}

/// Adds sweeps to those with the same key.
fn add_to_buckets(buckets: &mut Vec<LagBucket>, more: LagBucket, key: impl Fn(&LagBucket) -> (u16, u16)) {
    match buckets.iter_mut().find(|known| key(known) == key(&more)) {
        Some(known) => {
            known.sweeps += more.sweeps;
            known.pages += more.pages;
            known.referenced += more.referenced;
            known.lag_ns += more.lag_ns;
        }
        None => buckets.push(more),
    }
}

/// [`AccessSamples::page_rate`] of sweeps by duration.
fn page_rate(buckets: &[LagBucket]) -> f64 {
    let mut samples: Vec<(f64, f64, f64)> = buckets.iter().map(LagBucket::mean_counts).collect();
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let accessed: f64 = samples.iter().map(|sample| sample.1).sum();
    if accessed == 0.0 {
        return 0.0;
    }
    if let Some(shortest) = samples.first_mut().filter(|sample| sample.2 < 0.5 && sample.1 >= 0.5) {
        shortest.1 -= 0.5 - shortest.2;
        shortest.2 = 0.5;
    }
    let at_rest: f64 = samples.iter().map(|(lag, _, rest)| lag * rest).sum();
    let all: f64 = samples.iter().map(|(lag, hit, rest)| lag * (hit + rest)).sum();
    if at_rest <= 0.0 {
        return accessed / all;
    }
    // exp(x) − 1 is between x and x·exp(x), so the rate is between these.
    let (mut low, mut high) = (accessed * 0.5 / all, accessed / at_rest);
    for _ in 0..BISECTION_STEPS {
        let middle = (low * high).sqrt();
        let expected: f64 = samples.iter().map(|(lag, hit, _)| hit * lag / (middle * lag).exp_m1()).sum();
        if expected > at_rest { low = middle } else { high = middle }
    }
    (low * high).sqrt()
}

/// More than this part of itself no region adds to the error: of a saturated one all that is known is that
/// it is hot.
pub const ERROR_MAX: f64 = 2.0;

/// A relative error, at most [`ERROR_MAX`], also if it is infinite or unknown.
pub fn bound_error(error: f64) -> f64 {
    if error.is_finite() { error.min(ERROR_MAX) } else { ERROR_MAX }
}

/// Relative standard error of the walks of all regions together. `swept` and `scanned` are walks and
/// [`AccessSamples::relative_error`] of each region.
///
/// Regions of one sweep are off together, since they share its moment and its length, so their errors do not
/// cancel out. Runs of dropped entries are selected at random in each region, so theirs do. And sweeps
/// and scans are moments of a program that does now this, now that: each alone may be off by as much as it
/// says. `None` without any of these `scan_count`.
pub fn combined_error(
    scan_count: u64,
    swept: impl Iterator<Item = (u64, f64)>,
    scanned: impl Iterator<Item = (u64, f64)>,
) -> Option<f64> {
    let (mut walks, mut sweep_error, mut scan_variance) = (0.0, 0.0, 0.0);
    for (region_walks, error) in swept {
        walks += region_walks as f64;
        sweep_error += region_walks as f64 * bound_error(error);
    }
    for (region_walks, error) in scanned {
        walks += region_walks as f64;
        scan_variance += (region_walks as f64 * bound_error(error)).powi(2);
    }
    let by_regions = if walks > 0.0 { sweep_error.hypot(scan_variance.sqrt()) / walks } else { 0.0 };
    let by_moments = (scan_count.max(1) as f64).sqrt().recip();
    (scan_count > 0).then(|| by_regions.hypot(by_moments))
}

/// The pause between clearing and scanning of the next sweep, by the share of pages that was found accessed
/// in the hottest regions, in permille. A page has most information on its rate if 80 % are accessed; so hot
/// regions differ from each other, and from warm ones.
pub fn next_pause_ns(pause_ns: u64, hottest_permille: u64, pause_max_ns: u64) -> u64 {
    const PAUSE_MIN_NS: u64 = 1_000_000;
    match hottest_permille {
        851.. if pause_ns <= PAUSE_MIN_NS => 0,
        851.. => pause_ns / 2,
        0..400 => (pause_ns * 2).clamp(PAUSE_MIN_NS, pause_max_ns.max(PAUSE_MIN_NS)).min(pause_max_ns),
        _ => pause_ns.min(pause_max_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    fn count_touched(random: &mut SplitMix64, walks: u64) -> u64 {
        let mut touched = [false; 512];
        (0..walks).for_each(|_| touched[(random.next_below(512)) as usize] = true);
        touched.iter().filter(|&&touched| touched).count() as u64
    }

    #[test]
    fn a_rate_is_found_again_whatever_part_of_the_pages_it_touches() {
        let mut random = SplitMix64::new(7);
        for walks in [20u64, 100, 512, 1500] {
            let mut seen = AccessSamples::default();
            (0..200).for_each(|_| seen.add_sweep(512, count_touched(&mut random, walks), 1_000_000));
            let found = seen.estimate_walks(1_000_000);
            assert!(found.abs_diff(walks) * 20 <= walks, "{found} of {walks}");
            assert!(seen.relative_error() < 0.05, "{}", seen.relative_error());
        }
    }

    #[test]
    fn sweeps_that_found_all_accessed_do_not_dilute_those_that_tell() {
        let mut random = SplitMix64::new(9);
        let (mut seen, mut short) = (AccessSamples::default(), AccessSamples::default());
        for _ in 0..20 {
            let found = count_touched(&mut random, 300);
            seen.add_sweep(512, found, 1_000_000);
            short.add_sweep(512, found, 1_000_000);
            (0..5).for_each(|_| seen.add_sweep(512, 512, 80_000_000));
        }
        let (found, alone) = (seen.estimate_walks(1_000_000), short.estimate_walks(1_000_000));
        assert!(found.abs_diff(alone) * 100 <= alone, "{found} is not {alone}");
    }

    #[test]
    fn nothing_is_nothing_and_saturation_is_finite_ordered_and_unsure() {
        assert_eq!(AccessSamples::default().estimate_walks(1_000_000), 0);
        assert!(!AccessSamples::default().relative_error().is_finite());
        let mut hot = AccessSamples::default();
        hot.add_sweep(512, 512, 1000);
        let mut warm = AccessSamples::default();
        warm.add_sweep(512, 511, 1000);
        assert!(hot.estimate_walks(1000) > warm.estimate_walks(1000) && hot.estimate_walks(1000) < 512 * 10);
        assert!(hot.relative_error() > 0.1, "{}", hot.relative_error());
    }

    #[test]
    fn the_error_of_all_is_that_of_the_hot_and_of_few_moments() {
        let none = std::iter::empty;
        let of = |sweeps, regions: &[(u64, f64)]| combined_error(sweeps, regions.iter().copied(), none());
        assert_eq!(of(0, &[(5, 0.1)]), None, "unknown without a sweep");
        let few = of(4, &[(100, 0.0)]).unwrap();
        assert!((few - 0.5).abs() < 1e-9, "{few}");
        let many = of(10_000, &[(100, 0.05), (100, 0.15)]).unwrap();
        assert!((0.10..0.11).contains(&many), "errors do not cancel out: {many}");
        assert!(of(10_000, &[(1000, 0.01), (1, 0.9)]).unwrap() < 0.02, "cold regions weigh little");
        assert!(of(10_000, &[(1, f64::INFINITY)]).unwrap() < 2.1, "a saturated region is bounded");
        let scanned = combined_error(10_000, none(), (0..100).map(|_| (10, 0.5))).unwrap();
        assert!(
            (0.05..0.06).contains(&scanned),
            "errors of regions that are scanned by themselves do: {scanned}"
        );
    }

    #[test]
    fn the_pause_follows_what_is_found() {
        let most = 100_000_000;
        assert_eq!(next_pause_ns(0, 10, most), 1_000_000);
        assert_eq!(next_pause_ns(80_000_000, 10, most), most);
        assert_eq!(next_pause_ns(80_000_000, 900, most), 40_000_000);
        assert_eq!(next_pause_ns(1_000_000, 900, most), 0);
        assert_eq!(next_pause_ns(5_000_000, 600, most), 5_000_000);
        assert_eq!(next_pause_ns(0, 10, 0), 0);
    }
}
