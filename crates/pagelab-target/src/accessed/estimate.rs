//! From pages that were found accessed to walks: a page that is walked at rate λ is found accessed after the
//! time t with probability 1 − exp(−λt). Of sweeps i with P_i pages, n_i found accessed after t_i, the rate
//! is the one under which that is likeliest: Σ n_i·t_i/(exp(λ·t_i) − 1) = Σ (P_i − n_i)·t_i. A
//! sweep that found all pages accessed says next to nothing in it, and spoils nothing.

/// Sweeps of like duration are added up: so many kinds for each doubling of it.
const KINDS_OF_A_DOUBLING: f64 = 4.0;

/// Halvings of the interval in which the rate lies.
const STEPS: u32 = 48;

/// Sweeps of like duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Looks {
    kind: u32,
    sweeps: u64,
    pages: u64,
    referenced: u64,
    lag_ns: u64,
}

impl Looks {
    /// (time in ns, pages accessed, pages at rest).
    fn figures(&self) -> (f64, f64, f64) {
        let lag = self.lag_ns as f64 / self.sweeps.max(1) as f64;
        (lag.max(1.0), self.referenced as f64, (self.pages - self.referenced) as f64)
    }
}

/// What sweeps found in one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    looks: Vec<Looks>,
}

impl Seen {
    /// One more sweep.
    pub fn add(&mut self, pages: u64, referenced: u64, lag_ns: u64) {
        let kind = ((lag_ns.max(1) as f64).log2() * KINDS_OF_A_DOUBLING) as u32;
        let known = self.looks.iter().position(|looks| looks.kind == kind);
        let at = known.unwrap_or_else(|| {
            self.looks.push(Looks { kind, ..Looks::default() });
            self.looks.len() - 1
        });
        if let Some(looks) = self.looks.get_mut(at) {
            looks.sweeps += 1;
            looks.pages += pages;
            looks.referenced += referenced.min(pages);
            looks.lag_ns += lag_ns;
        }
    }

    /// Sweeps that saw it with pages in memory.
    pub fn sweeps(&self) -> u64 {
        self.looks.iter().map(|looks| looks.sweeps).sum()
    }

    /// Whether any page was ever found accessed.
    pub fn is_touched(&self) -> bool {
        self.looks.iter().any(|looks| looks.referenced > 0)
    }

    /// Walks of one page in a nanosecond. Half a page is counted as at rest where none was, so that a region
    /// that is always accessed everywhere is as hot as its sweeps can tell and no hotter.
    fn rate(&self) -> f64 {
        let mut seen: Vec<(f64, f64, f64)> = self.looks.iter().map(Looks::figures).collect();
        seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        let accessed: f64 = seen.iter().map(|look| look.1).sum();
        if accessed == 0.0 {
            return 0.0;
        }
        if let Some(shortest) = seen.first_mut().filter(|look| look.2 < 0.5 && look.1 >= 0.5) {
            shortest.1 -= 0.5 - shortest.2;
            shortest.2 = 0.5;
        }
        let at_rest: f64 = seen.iter().map(|(lag, _, rest)| lag * rest).sum();
        let all: f64 = seen.iter().map(|(lag, hit, rest)| lag * (hit + rest)).sum();
        if at_rest <= 0.0 {
            return accessed / all;
        }
        // exp(x) − 1 lies between x and x·exp(x): so the rate lies between these.
        let (mut low, mut high) = (accessed * 0.5 / all, accessed / at_rest);
        for _ in 0..STEPS {
            let middle = (low * high).sqrt();
            let expected: f64 = seen.iter().map(|(lag, hit, _)| hit * lag / (middle * lag).exp_m1()).sum();
            if expected > at_rest { low = middle } else { high = middle }
        }
        (low * high).sqrt()
    }

    /// Walks, or accesses, of one page in a nanosecond.
    pub fn page_rate(&self) -> f64 {
        self.rate()
    }

    /// Pages that a sweep saw, on average.
    pub fn pages(&self) -> u64 {
        self.looks.iter().map(|looks| looks.pages).sum::<u64>() / self.sweeps().max(1)
    }

    /// Walks in so much time, if it went on as it was seen.
    pub fn walks(&self, time_ns: u64) -> u64 {
        let pages: u64 = self.looks.iter().map(|looks| looks.pages).sum();
        (self.rate() * pages as f64 / self.sweeps().max(1) as f64 * time_ns as f64) as u64
    }

    /// How far the rate may be off, as a part of itself: one standard error, from Fisher's information
    /// Σ P_i·x_i²/(exp(x_i) − 1) with x_i = λ·t_i. Infinite where nothing was seen.
    pub fn error(&self) -> f64 {
        let rate = self.rate();
        let of = |looks: &Looks| {
            let x = rate * looks.figures().0;
            looks.pages as f64 * x * x / x.exp_m1()
        };
        let information: f64 = self.looks.iter().map(of).filter(|part| part.is_finite()).sum();
        information.sqrt().recip()
    }
}

/// More than this part of itself no region adds to the error: of a saturated one all that is known is that
/// it is hot.
const ERROR_MAX: f64 = 2.0;

/// How far the walks of all regions together may be off, as a part of themselves: one standard error. `swept`
/// and `scanned` are walks and [`Seen::error`] of each region.
///
/// Regions of one sweep are off together, since they share its moment and its length, so their errors do not
/// cancel out. Runs of entries that are dropped are drawn of each region by itself, so theirs do. And sweeps
/// and scans are moments of a program that does now this, now that: each alone may be off by as much as it
/// says. `None` without any of these `looks`.
pub fn error_of_all(
    looks: u64,
    swept: impl Iterator<Item = (u64, f64)>,
    scanned: impl Iterator<Item = (u64, f64)>,
) -> Option<f64> {
    let off = |error: f64| if error.is_finite() { error.min(ERROR_MAX) } else { ERROR_MAX };
    let (mut walks, mut together, mut alone) = (0.0, 0.0, 0.0);
    for (of, error) in swept {
        walks += of as f64;
        together += of as f64 * off(error);
    }
    for (of, error) in scanned {
        walks += of as f64;
        alone += (of as f64 * off(error)).powi(2);
    }
    let by_regions = if walks > 0.0 { together.hypot(alone.sqrt()) / walks } else { 0.0 };
    let by_moments = (looks.max(1) as f64).sqrt().recip();
    (looks > 0).then(|| by_regions.hypot(by_moments))
}

/// The pause between clearing and looking for the next sweep, by the share of pages that was found accessed
/// in the hottest regions, in permille. What a page tells of its rate is most where 80 % are; so hot regions
/// differ from each other, and from warm ones.
pub fn next_pause_ns(pause_ns: u64, hottest_permille: u64, most_ns: u64) -> u64 {
    const LEAST: u64 = 1_000_000;
    match hottest_permille {
        851.. if pause_ns <= LEAST => 0,
        851.. => pause_ns / 2,
        0..400 => (pause_ns * 2).clamp(LEAST, most_ns.max(LEAST)).min(most_ns),
        _ => pause_ns.min(most_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;

    fn touched(draws: &mut SplitMix64, walks: u64) -> u64 {
        let mut touched = [false; 512];
        (0..walks).for_each(|_| touched[(draws.below(512)) as usize] = true);
        touched.iter().filter(|&&touched| touched).count() as u64
    }

    #[test]
    fn a_rate_is_found_again_whatever_part_of_the_pages_it_touches() {
        let mut draws = SplitMix64::new(7);
        for walks in [20u64, 100, 512, 1500] {
            let mut seen = Seen::default();
            (0..200).for_each(|_| seen.add(512, touched(&mut draws, walks), 1_000_000));
            let found = seen.walks(1_000_000);
            assert!(found.abs_diff(walks) * 20 <= walks, "{found} of {walks}");
            assert!(seen.error() < 0.05, "{}", seen.error());
        }
    }

    #[test]
    fn sweeps_that_found_all_accessed_do_not_dilute_those_that_tell() {
        let mut draws = SplitMix64::new(9);
        let (mut seen, mut short) = (Seen::default(), Seen::default());
        for _ in 0..20 {
            let found = touched(&mut draws, 300);
            seen.add(512, found, 1_000_000);
            short.add(512, found, 1_000_000);
            (0..5).for_each(|_| seen.add(512, 512, 80_000_000));
        }
        let (found, alone) = (seen.walks(1_000_000), short.walks(1_000_000));
        assert!(found.abs_diff(alone) * 100 <= alone, "{found} is not {alone}");
    }

    #[test]
    fn nothing_is_nothing_and_saturation_is_finite_ordered_and_unsure() {
        assert_eq!(Seen::default().walks(1_000_000), 0);
        assert!(!Seen::default().error().is_finite());
        let mut hot = Seen::default();
        hot.add(512, 512, 1000);
        let mut warm = Seen::default();
        warm.add(512, 511, 1000);
        assert!(hot.walks(1000) > warm.walks(1000) && hot.walks(1000) < 512 * 10);
        assert!(hot.error() > 0.1, "{}", hot.error());
    }

    #[test]
    fn the_error_of_all_is_that_of_the_hot_and_of_few_moments() {
        let none = std::iter::empty;
        let of = |sweeps, regions: &[(u64, f64)]| error_of_all(sweeps, regions.iter().copied(), none());
        assert_eq!(of(0, &[(5, 0.1)]), None, "nothing is known of what nobody looked at");
        let few = of(4, &[(100, 0.0)]).unwrap();
        assert!((few - 0.5).abs() < 1e-9, "{few}");
        let many = of(10_000, &[(100, 0.05), (100, 0.15)]).unwrap();
        assert!((0.10..0.11).contains(&many), "errors do not cancel out: {many}");
        assert!(of(10_000, &[(1000, 0.01), (1, 0.9)]).unwrap() < 0.02, "cold regions weigh little");
        assert!(of(10_000, &[(1, f64::INFINITY)]).unwrap() < 2.1, "a saturated region is bounded");
        let drawn = error_of_all(10_000, none(), (0..100).map(|_| (10, 0.5))).unwrap();
        assert!((0.05..0.06).contains(&drawn), "errors of regions that are drawn by themselves do: {drawn}");
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
