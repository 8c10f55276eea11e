//! Distribution of the rates behind counts, and the probability of each count that its rate is hot.
//!
//! The mixture of rates on a grid with the greatest likelihood (Laird 1978, Lindsay 1983), by expectation and
//! maximization. A count of mean r has the variance r + (e·r)²: negative binomial. By Bayes' rule it then
//! has a probability for each rate (Robbins 1956).

use super::RateScale;
use super::valley::Valley;

/// Distance of the rates of the grid, in positions.
const GRID_STEP: f64 = 0.5;
/// Distance from the least and greatest count to the ends of the grid, in positions.
const GRID_MARGIN: f64 = 2.0;
/// The least rate.
const RATE_MIN: f64 = 0.02;
/// Counts that are equal, per position.
const GROUPS_PER_POSITION: f64 = 4.0;
/// Steps of the fit.
const STEPS: usize = 100;
/// The least relative error: rates closer than this are one.
const ERROR_MIN: f64 = 0.05;

/// Regions with about the same count.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountGroup {
    /// Their mean count.
    pub count: f64,
    /// Their number.
    pub regions: usize,
    /// The probabilities that the rate of such a count is above the greatest possible place of a valley, the
    /// likeliest, and the least.
    pub hot: [f64; 3],
}

/// The counts in groups, rising, with the probability that they are hot.
pub(super) fn compute_hot_probabilities(
    sorted: &[f64],
    valley: Valley,
    scale: RateScale,
    relative: f64,
) -> Vec<CountGroup> {
    let mut groups = group_counts(sorted, scale);
    let grid = build_grid(sorted, scale);
    let rows: Vec<Vec<f64>> =
        groups.iter().map(|group| compute_likelihoods(group.count, &grid, relative)).collect();
    let mut weights = vec![1.0 / grid.len() as f64; grid.len()];
    let regions = sorted.len() as f64;
    for _ in 0..STEPS {
        let mut sums = vec![0.0; grid.len()];
        for (group, row) in groups.iter().zip(&rows) {
            let all: f64 = row.iter().zip(&weights).map(|(likelihood, weight)| likelihood * weight).sum();
            let factor = group.regions as f64 / all.max(f64::MIN_POSITIVE);
            sums.iter_mut().zip(row).for_each(|(sum, likelihood)| *sum += likelihood * factor);
        }
        weights.iter_mut().zip(&sums).for_each(|(weight, sum)| *weight *= sum / regions);
    }
    let first = |valley: f64| grid.partition_point(|&rate| rate < valley);
    let bounds = [valley.range.1, valley.count, valley.range.0].map(first);
    for (group, row) in groups.iter_mut().zip(&rows) {
        let sum_from = |first: usize| {
            row[first..].iter().zip(&weights[first..]).map(|(likelihood, weight)| likelihood * weight).sum()
        };
        let all: f64 = sum_from(0);
        group.hot = bounds.map(|first| sum_from(first) / all.max(f64::MIN_POSITIVE));
    }
    groups
}

fn group_counts(sorted: &[f64], scale: RateScale) -> Vec<CountGroup> {
    let number = |count: &f64| (scale.position(*count) * GROUPS_PER_POSITION).floor() as i64;
    let group = |counts: &[f64]| {
        let regions = counts.len();
        CountGroup { count: counts.iter().sum::<f64>() / regions.max(1) as f64, regions, hot: [0.0; 3] }
    };
    sorted.chunk_by(|a, b| number(a) == number(b)).map(group).collect()
}

fn build_grid(sorted: &[f64], scale: RateScale) -> Vec<f64> {
    let end = |at: Option<&f64>| scale.position(at.copied().unwrap_or(0.0));
    let first = (end(sorted.first()) - GRID_MARGIN).max(scale.position(RATE_MIN));
    let steps = ((end(sorted.last()) + GRID_MARGIN - first) / GRID_STEP).ceil().max(1.0) as usize;
    (0..=steps).map(|step| scale.count_at(first + step as f64 * GRID_STEP)).collect()
}

/// The likelihoods of a count under each rate, relative to the greatest of them.
fn compute_likelihoods(count: f64, grid: &[f64], relative: f64) -> Vec<f64> {
    let shape = relative.max(ERROR_MIN).powi(2).recip();
    // Factors that are the same for all rates cancel out.
    let log = |rate: &f64| count * (rate / (shape + rate)).ln() - shape * (rate / shape).ln_1p();
    let mut row: Vec<f64> = grid.iter().map(log).collect();
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|likelihood| *likelihood = (*likelihood - most).exp());
    row
}
