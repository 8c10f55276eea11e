//! Knee of a ranking: the end of its hot regions, as a range, or the reason for which there is none.
//!
//! A ranking has a knee if its regions are of two groups, hot and cold: the density of their rates then has a
//! valley between two modes. Rates of one size, and rates after Zipf's law, which become rarer as they rise,
//! have no valley (`valley`). Counts scatter: how many regions are hot follows from the distribution of the
//! rates behind them (`rates`), and regions that belong to either group in less than 95 % are the range.

use pagelab_model::TlbProfile;
use pagelab_model::profile::ProfileSource;

mod rates;
mod valley;

use valley::Valley;

/// The end of the hot regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knee {
    /// The expected number of hot regions.
    pub pages: usize,
    /// The number of regions that are hot with at least 95 %.
    pub low: usize,
    /// The number of regions that are hot with more than 5 %.
    pub high: usize,
}

/// Why a ranking has no knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KneeAbsence {
    /// There are fewer than [`REGIONS_MIN`] regions.
    TooFewRegions,
    /// There are no two groups of regions.
    NoKnee,
    /// The counts are too small or too inexact to tell two groups apart.
    TooFewSamples,
}

/// The scatter of the counts of regions: the variance of a count c is `per_event` · c + (`relative` · c)².
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CountNoise {
    /// What one observed event counts for: 1 if every miss is counted, the period of samples.
    pub per_event: f64,
    /// Relative standard error of each region besides, independent of other regions.
    pub relative: f64,
}

impl CountNoise {
    /// Every event is counted.
    pub const EXACT: CountNoise = CountNoise { per_event: 1.0, relative: 0.0 };

    /// The scatter of the misses of regions of a profile.
    ///
    /// Samples count for their period, which a page with few of them shows. A rate from accessed bits is as
    /// exact as the pages that a sweep saw accessed, if it saw some everywhere. The error that a profile
    /// states is of all misses; regions share most of it, and a shared error moves none past another.
    pub fn from_profile(profile: &TlbProfile) -> CountNoise {
        let error = profile.misses_error();
        match profile.source {
            ProfileSource::Exact => {
                let counted = profile.effort.stretches.map_or(1.0, |stretches| stretches.counted_share());
                CountNoise { per_event: counted.clamp(1e-9, 1.0).recip(), relative: error.unwrap_or(0.0) }
            }
            ProfileSource::Pmu | ProfileSource::PerfData => {
                CountNoise { per_event: small_count(profile), relative: 0.0 }
            }
            ProfileSource::Accessed => {
                let cells = || profile.images.iter().flat_map(|image| &image.mappings).map(|of| &of.cells);
                let has_idle = cells().flat_map(|of| &of.misses).any(|&misses| misses == 0);
                let per_event = if has_idle { small_count(profile) } else { 1.0 };
                // The error of all may be that of an even program, whose regions are not known better.
                let sweeps = profile.effort.count_sweeps().unwrap_or(0).max(1) as f64;
                let relative = error.map_or(RELATIVE_MAX, |error| error.max(sweeps.sqrt().recip()));
                CountNoise { per_event, relative: relative.min(RELATIVE_MAX) }
            }
        }
    }
}

/// The count that a tenth of the cells with any do not exceed.
fn small_count(profile: &TlbProfile) -> f64 {
    let mappings = profile.images.iter().flat_map(|image| &image.mappings);
    let mut counts: Vec<u64> = mappings.flat_map(|mapping| &mapping.cells.misses).copied().collect();
    counts.retain(|&count| count > 0);
    counts.sort_unstable();
    counts.get(counts.len() / 10).map_or(1.0, |&count| count as f64)
}

/// Fewer regions than this have no shape.
pub const REGIONS_MIN: usize = 8;
/// The least ratio of the median of the hot regions to that of the others.
const RATIO_MIN: f64 = 3.0;
/// Regions whose rates differ by less than this part are alike. So positions of rates are logarithmic above
/// its inverse square, 25 events, and in standard deviations of a Poisson count below it.
const RESOLUTION: f64 = 0.2;
/// Log-likelihood that a valley gains over none: less, and 1 to 2 % of log-normal rates have a knee.
const GAIN_MIN: f64 = 5.0;
/// With rates as exact as those of this many events, groups would have been separate.
const EVENTS_MIN: f64 = 26.0;
/// Standard errors of the index of dispersion from which on rates differ.
const DISPERSION_MIN: f64 = 3.0;
/// The least index of dispersion: the model of the scatter is not more exact.
const DISPERSION_SHARE_MIN: f64 = 1.25;
/// The greatest ratio of the mean square of rates to the square of their mean that two groups of which one is
/// about 5 times as hot can have: it is 1.8 if a sixth is hot. Zipf's law has more.
const SQUARES_MAX: f64 = 2.2;
/// Standard deviations between a mean rate and [`BLIND_RATIO`] times it with which groups are distinguished.
const DISTANCE_MIN: f64 = 4.0;
/// The ratio of two groups that must be visible.
const BLIND_RATIO: f64 = 4.0;
/// The greatest relative error of a region that is assumed of accessed bits.
const RELATIVE_MAX: f64 = 0.2;
/// Counts above this are equal.
const COUNT_MAX: f64 = 1e18;
/// The probability with which a region is hot, or is not, if it is outside of the range.
const SURE: f64 = 0.95;

/// The scale on which the scatter of a count is at most 1, whatever its size.
#[derive(Clone, Copy, Debug)]
struct RateScale {
    resolution: f64,
}

impl RateScale {
    fn position(self, count: f64) -> f64 {
        2.0 / self.resolution * (self.resolution * count.max(0.0).sqrt()).asinh()
    }

    fn count_at(self, position: f64) -> f64 {
        ((position * self.resolution / 2.0).sinh() / self.resolution).powi(2)
    }
}

/// Finds the end of the hot regions from a value of each region, in any order.
///
/// If there are several groups, the knee is the break that explains the values best: of 8 regions that are 50
/// times and 24 that are 8 times as hot as the others it is 32, since more regions prove that break.
pub fn find_knee(values: &[f64], noise: CountNoise) -> Result<Knee, KneeAbsence> {
    if values.len() < REGIONS_MIN {
        return Err(KneeAbsence::TooFewRegions);
    }
    let per_event = if noise.per_event.is_finite() && noise.per_event > 0.0 { noise.per_event } else { 1.0 };
    let relative = if noise.relative.is_finite() { noise.relative.clamp(0.0, 2.0) } else { 2.0 };
    let event_count = |value: &f64| match value / per_event {
        count if count > 0.0 => count.min(COUNT_MAX),
        _ => 0.0,
    };
    let mut counts: Vec<f64> = values.iter().map(event_count).collect();
    counts.sort_by(f64::total_cmp);
    let scale = RateScale { resolution: RESOLUTION.max(relative) };
    let valley = valley::find_valley(&counts, scale);
    let (cold, hot) = counts.split_at(counts.partition_point(|&count| count < valley.count));
    if valley.gain < GAIN_MIN || !valley.is_deep || median(hot) < RATIO_MIN * median(cold) {
        let is_undecided = is_blind(&counts, relative) || may_hide_groups(&counts, relative);
        return Err(if is_undecided { KneeAbsence::TooFewSamples } else { KneeAbsence::NoKnee });
    }
    Ok(count_hot(&counts, valley, scale, relative))
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn mean(counts: &[f64]) -> f64 {
    counts.iter().sum::<f64>() / counts.len().max(1) as f64
}

/// Whether counts [`BLIND_RATIO`] times as large as the mean are too close to it to be distinguished.
fn is_blind(counts: &[f64], relative: f64) -> bool {
    let (mean, scale) = (mean(counts), RateScale { resolution: relative.max(1e-3) });
    scale.position(BLIND_RATIO * mean) - scale.position(mean) < DISTANCE_MIN
}

/// Whether rates differ (index of dispersion, Cochran 1954), by no more than those of two groups, and are too
/// inexact where most events are.
fn may_hide_groups(counts: &[f64], relative: f64) -> bool {
    let (mean, regions) = (mean(counts), counts.len() as f64);
    let variance = mean + (relative * mean).powi(2);
    let sum: f64 = counts.iter().map(|count| (count - mean).powi(2) / variance).sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    let least = (regions + DISPERSION_MIN * (2.0 * regions).sqrt()).max(DISPERSION_SHARE_MIN * regions);
    let events = (mean * regions / squares + relative.powi(2)).recip();
    sum > least && squares < SQUARES_MAX * mean.powi(2) * regions && events < EVENTS_MIN
}

/// Counts the regions above the valley, by the probability that their rates are.
fn count_hot(sorted: &[f64], valley: Valley, scale: RateScale, relative: f64) -> Knee {
    let groups = rates::compute_hot_probabilities(sorted, valley, scale, relative);
    let count_if = |place: usize, limit: f64| {
        groups.iter().filter(|group| group.hot[place] >= limit).map(|group| group.regions).sum::<usize>()
    };
    let (low, high) = (count_if(0, SURE), count_if(2, 1.0 - SURE));
    let expected: f64 = groups.iter().map(|group| group.hot[1] * group.regions as f64).sum();
    Knee { pages: (expected.round() as usize).clamp(low, high), low, high }
}

#[cfg(test)]
mod tests;
