//! Valley in the density of rates: a likelihood-ratio test of two unimodal densities against one.
//!
//! Of all unimodal densities over bins the likeliest is found by isotonic regression on both sides of each
//! mode (Grenander 1956; Barlow, Bartholomew, Bremner and Brunk 1972). With a valley, each side of it is
//! unimodal for itself. The scatter of counts is log-concave on this scale, so it adds no mode (Ibragimov
//! 1956).
//!
//! The density of log(rate) falls as rate^(-1/a) if rates follow a power law of exponent a (Zipf: 1). So it
//! is measured relative to rate^(-1/2): what is unimodal then includes all power laws up to an exponent of 2,
//! and what falls more slowly before a mode is a valley. Relative to a constant, 8 hot regions gain 1 to 3
//! units of log-likelihood less.

use super::RateScale;

/// Width of a bin, in positions.
const BIN_WIDTH: f64 = 1.0;
/// Below this, bins end between whole counts.
const WHOLE_COUNTS: f64 = 64.0;
/// Power of the rate in the density that counts as flat.
const FLAT_POWER: f64 = -0.5;
/// A valley has at most this part of the density of the mode above it.
const DEPTH_MAX: f64 = 0.5;
/// Valleys whose gains differ by less are one: the bins between them are empty.
const GAIN_TIE: f64 = 1e-6;
/// Valleys are possible if they gain at most so much less than the likeliest: half of the 95 % quantile of
/// chi-squared with one degree of freedom (Wilks 1938).
const GAIN_LOSS_MAX: f64 = 1.92;

/// A place between two modes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Valley {
    /// Rates from this count on are above it.
    pub count: f64,
    /// The least and the greatest such count that is possible.
    pub range: (f64, f64),
    /// Its gain in log-likelihood over a unimodal density.
    pub gain: f64,
    /// Whether the density is much lower than above it.
    pub is_deep: bool,
}

/// A range of counts.
#[derive(Clone, Copy, Debug)]
struct RateBin {
    end: f64,
    /// In positions.
    width: f64,
    /// Width times the density that counts as flat.
    measure: f64,
    regions: f64,
}

/// The likeliest valley. Its gain is 0 if one mode is as likely.
pub(super) fn find_valley(sorted: &[f64], scale: RateScale) -> Valley {
    let bins = fill_bins(sorted, scale);
    let gains = compute_gains(&bins);
    let all = bins.len();
    let best = (0..=all).rev().max_by(|&a, &b| gains[a].total_cmp(&gains[b])).unwrap_or(0);
    let run = |at: usize, loss_max: f64| {
        let is_within = |other: &usize| gains[*other] >= gains[at] - loss_max;
        let first = (0..=at).rev().take_while(is_within).last().unwrap_or(at);
        (first, (at..=all).take_while(is_within).last().unwrap_or(at))
    };
    let position = |at: usize| at.checked_sub(1).map_or(0.0, |bin| scale.position(bins[bin].end));
    let count = |at: usize| {
        let (first, last) = run(at, GAIN_TIE);
        scale.count_at(position(first).midpoint(position(last)))
    };
    let (first_possible, last_possible) = run(best, GAIN_LOSS_MAX);
    let density = |bin: &RateBin| bin.regions / bin.width;
    let (first, last) = run(best, GAIN_TIE);
    let near = &bins[first.saturating_sub(1)..(last + 1).min(all)];
    let lowest = near.iter().map(density).fold(f64::INFINITY, f64::min);
    let peak = bins[last..].iter().map(density).fold(0.0, f64::max);
    Valley {
        count: count(best),
        range: (count(first_possible), count(last_possible)),
        gain: gains[best],
        is_deep: lowest <= DEPTH_MAX * peak,
    }
}

/// The gain of a valley before each bin, and after the last.
fn compute_gains(bins: &[RateBin]) -> Vec<f64> {
    let all = bins.len();
    let (up, down) = (fit_rising(bins.iter()), fit_rising(bins.iter().rev()));
    let fit_unimodal = |rising: &[f64], falling: &[f64]| {
        let sums = rising.iter().zip(falling.iter().rev()).map(|(rise, fall)| rise + fall);
        sums.fold(f64::NEG_INFINITY, f64::max)
    };
    let single = fit_unimodal(&up, &down);
    let gain_at = |at: usize| {
        let (below, above) = bins.split_at(at);
        let lower = fit_unimodal(&up[..=at], &fit_rising(below.iter().rev()));
        lower + fit_unimodal(&fit_rising(above.iter()), &down[..=all - at]) - single
    };
    (0..=all).map(gain_at).collect()
}

/// Bins of equal width in positions. Whole counts have no densities between them, so bins of small ones
/// contain whole ones, each from half below it to half above it.
fn fill_bins(sorted: &[f64], scale: RateScale) -> Vec<RateBin> {
    let greatest = sorted.last().copied().unwrap_or(0.0);
    let (mut bins, mut start, mut end, mut from) = (Vec::new(), 0.0f64, 0.5, 0);
    loop {
        let to = from + sorted[from..].partition_point(|&count| count < end);
        let width = scale.position(end) - scale.position(start);
        let measure = width * (1.0 + start.midpoint(end)).powf(FLAT_POWER);
        bins.push(RateBin { end, width, measure, regions: (to - from) as f64 });
        if end > greatest {
            return bins;
        }
        (start, from) = (end, to);
        end = scale.count_at(scale.position(start) + BIN_WIDTH);
        if end < WHOLE_COUNTS {
            end = (end - 0.5).round().max(start + 0.5) + 0.5;
        }
    }
}

/// Log-likelihoods of the likeliest rising density of the first n bins, for each n from 0 on, by pooling
/// adjacent violators.
fn fit_rising<'b>(bins: impl Iterator<Item = &'b RateBin>) -> Vec<f64> {
    // Regions, measure, and the log-likelihood up to the end of each block.
    let mut blocks: Vec<(f64, f64, f64)> = Vec::new();
    let mut fits = vec![0.0];
    for bin in bins {
        let (mut regions, mut measure) = (bin.regions, bin.measure);
        while let Some(&(before, measure_before, _)) = blocks.last()
            && before * measure >= regions * measure_before
        {
            regions += before;
            measure += measure_before;
            blocks.pop();
        }
        let own = if regions > 0.0 { regions * (regions / measure).ln() } else { 0.0 };
        let sum = blocks.last().map_or(0.0, |block| block.2) + own;
        blocks.push((regions, measure, sum));
        fits.push(sum);
    }
    fits
}
