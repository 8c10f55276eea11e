//! Misses that scans of accessed bits lack, because a cleared bit that is set again costs the program time
//! and hides further walks of its page.
//!
//! Between clearing and scanning, each page that is walked first has its bit set again, at the measured cost
//! of [`AccessedBitCost`](pagelab_model::profile::AccessedBitCost). In that time the program makes no
//! other access. A program with many walks may spend most of a sweep on it, so that the count follows from
//! the sweep and not from the program. How large the cost is just there is known too roughly to correct the
//! count: it is a lower bound.

use pagelab_model::profile::ScanSaturation;

/// The largest part of the time between clearing and scanning that is believed.
const RESET_SHARE_MAX: f64 = 0.95;

/// The time that a program spent on setting cleared bits again, over its sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResetTime {
    reset_ns: f64,
    lag_ns: f64,
}

impl ResetTime {
    /// Adds a sweep: pages found accessed, the cost of each in picoseconds, and the CPU time between clearing
    /// and scanning.
    pub fn add_sweep(&mut self, pages: u64, page_ps: u64, lag_ns: u64) {
        self.reset_ns += pages as f64 * page_ps as f64 / 1000.0;
        self.lag_ns += lag_ns as f64;
    }

    /// The part of the time between clearing and scanning.
    pub fn share(&self) -> f64 {
        if self.lag_ns > 0.0 { (self.reset_ns / self.lag_ns).min(RESET_SHARE_MAX) } else { 0.0 }
    }
}

/// The walks that sweeps of an image saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenWalks {
    /// All of them.
    pub walks: u64,
    /// Those of regions in which scans cannot tell how often a page was walked.
    pub saturated: u64,
    /// [`ResetTime::share`].
    pub reset_share: f64,
}

/// How far the total of all images is too small, of which these `scanned_walks` are not from sweeps. `None`
/// without a walk in a sweep.
pub fn estimate_saturation(
    images: impl Iterator<Item = SeenWalks>,
    scanned_walks: u64,
) -> Option<ScanSaturation> {
    let (mut seen, mut expected, mut saturated) = (0.0, 0.0, 0.0);
    for image in images {
        seen += image.walks as f64;
        expected += image.walks as f64 / (1.0 - image.reset_share.clamp(0.0, RESET_SHARE_MAX));
        saturated += image.saturated as f64;
    }
    let beside = scanned_walks as f64;
    let permille = |part: f64| (part * 1000.0).round() as u32;
    (seen > 0.0).then(|| ScanSaturation {
        reset_permille: permille(1.0 - (seen + beside) / (expected + beside)),
        saturated_permille: permille(saturated / (seen + beside)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accessed::estimate::AccessSamples;
    use crate::accessed::walk_total::{SweptTotal, TurnCounts, total_error};
    use pagelab_model::profile::{ProfileSource, ProfilingCost};
    use pagelab_model::random::SplitMix64;

    const PAGE_PS: u64 = 300_000;
    const PAGES: u64 = 4 * 512;

    /// A program that walks a random page each `walk_ns`, and takes `PAGE_PS` more for each whose bit was
    /// cleared: what sweeps see of it that take this CPU time.
    fn simulate(walk_ns: u64, lag_ns: u64) -> (SweptTotal, ResetTime) {
        let mut random = SplitMix64::new(5);
        let (mut counts, mut reset) = (TurnCounts::default(), ResetTime::default());
        let mut samples = vec![AccessSamples::default(); 4];
        for turn in 0..40 {
            let (mut accessed, mut now_ns) = (vec![false; PAGES as usize], 0);
            while now_ns < lag_ns {
                let page = random.next_below(PAGES) as usize;
                let is_cleared = !std::mem::replace(&mut accessed[page], true);
                now_ns += walk_ns + if is_cleared { PAGE_PS / 1000 } else { 0 };
            }
            let found: Vec<u64> =
                accessed.chunks(512).map(|region| region.iter().filter(|is| **is).count() as u64).collect();
            counts.add_sweep(turn);
            reset.add_sweep(found.iter().sum(), PAGE_PS, now_ns);
            for (region, found) in samples.iter_mut().zip(found) {
                region.add_sweep_of_turn(turn, 512, found, now_ns);
            }
        }
        (SweptTotal::from_samples(samples.iter(), &counts, 1_000_000_000), reset)
    }

    /// The profile of one image with these sweeps.
    fn profile(total: &SweptTotal, reset: ResetTime) -> pagelab_model::TlbProfile {
        let error = total_error(std::slice::from_ref(total), 0, std::iter::empty()).unwrap();
        let seen =
            SeenWalks { walks: total.walks(), saturated: total.saturated_walks, reset_share: reset.share() };
        pagelab_model::TlbProfile {
            source: ProfileSource::Accessed,
            command: Vec::new(),
            page_size: pagelab_model::PageSize::DEFAULT,
            huge: pagelab_model::Bytes(2 << 20),
            tlb: None,
            walk_cost: None,
            images: vec![pagelab_model::profile::ImageProfile {
                misses: total.walks(),
                ..Default::default()
            }],
            wall_ns: 0,
            effort: ProfilingCost {
                sweeps: Some(40),
                misses_error_permille: Some((error.relative * 1000.0).round() as u32),
                misses_error_blocks: error.blocks,
                saturation: estimate_saturation(std::iter::once(seen), 0),
                ..ProfilingCost::default()
            },
            lost: 0,
            notes: Vec::new(),
            what_ifs: Vec::new(),
            exit: None,
        }
    }

    #[test]
    fn a_saturated_program_has_a_lower_bound_below_the_truth_whatever_the_sweeps_take() {
        // A walk takes 100 ns, and 400 with its bit cleared.
        let truth = 10_000_000;
        for lag_ns in [50_000, 400_000, 1_500_000] {
            let (total, reset) = simulate(100, lag_ns);
            let found = profile(&total, reset);
            let least = found.misses_at_least().unwrap_or_else(|| panic!("{:?}", found.effort));
            assert!(least < truth && least > truth / 10, "{least} after {lag_ns} ns");
            assert_eq!((found.total_misses(), found.misses_interval()), (None, None));
        }
    }

    #[test]
    fn a_program_with_few_walks_has_a_total_whose_interval_holds_the_truth() {
        for (walk_ns, lag_ns) in [(10_000, 1_000_000), (4_000, 4_000_000)] {
            let (total, reset) = simulate(walk_ns, lag_ns);
            let found = profile(&total, reset);
            let (low, high) = found.misses_interval().unwrap_or_else(|| panic!("{:?}", found.effort));
            // Up to a tenth may be lacking.
            let truth = 1_000_000_000 / walk_ns;
            assert!(low <= truth && truth * 9 / 10 <= high, "{truth}: {low} to {high}");
        }
    }

    #[test]
    fn walks_hidden_behind_one_bit_are_noticed_without_a_cost() {
        let mut samples = AccessSamples::default();
        let mut counts = TurnCounts::default();
        for turn in 0..40 {
            counts.add_sweep(turn);
            samples.add_sweep_of_turn(turn, 512, 512, 1_000_000);
        }
        let total = SweptTotal::from_samples(std::iter::once(&samples), &counts, 1_000_000_000);
        let found = profile(&total, ResetTime::default()).effort.saturation;
        assert_eq!(found, Some(ScanSaturation { reset_permille: 0, saturated_permille: 1000 }));
    }

    #[test]
    fn walks_of_several_images_and_of_scans_weigh_by_their_number() {
        let image = |walks, reset_share| SeenWalks { walks, saturated: 0, reset_share };
        let of = |images: &[SeenWalks], scanned| {
            estimate_saturation(images.iter().copied(), scanned).map(|found| found.reset_permille)
        };
        assert_eq!(of(&[image(100, 0.5)], 0), Some(500));
        // 200 of 300 are seen.
        assert_eq!(of(&[image(100, 0.5), image(100, 0.0)], 0), Some(333));
        assert_eq!(of(&[image(100, 0.5)], 1800), Some(50));
        assert_eq!(of(&[image(0, 0.9)], 1000), None);
        assert_eq!(ResetTime { reset_ns: 5.0, lag_ns: 1.0 }.share(), RESET_SHARE_MAX);
    }
}
