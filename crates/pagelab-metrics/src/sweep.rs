//! Influence of the varied factors of a sweep on a measure: by ranks, so that neither the scale of a
//! parameter nor a single outlier decides.

use std::collections::BTreeMap;

use pagelab_model::experiment::{Experiment, Trial};
use pagelab_model::random::SplitMix64;
use pagelab_model::simulation::SweepFactor;

use crate::statistics::{SampleStatistics, correlation, ranks};

/// Random orders for the distribution of pure chance.
const RANDOM_PERMUTATIONS: u32 = 999;
/// Number of points up to which all 720 orders are evaluated.
const EXACT_POINTS_MAX: usize = 6;
/// Their seed, so that the same study has the same result.
const PERMUTATION_SEED: u64 = 0x7377_6565_7021;

/// A sweep, judged by one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepJudgement {
    /// The figure, as `PHASE/NAME`.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// The points that have it, the largest value first.
    pub points: Vec<SweepPoint>,
    /// Varied parameters, the most influential first.
    pub influences: Vec<FactorInfluence>,
}

/// A point of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepPoint {
    /// Index of the point in the plan.
    pub point: usize,
    /// The middle of its values over seeds.
    pub median: f64,
    /// How many seeds.
    pub seeds: usize,
}

/// Influence of a varied factor on a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct FactorInfluence {
    /// Varied parameter.
    pub name: String,
    /// How many different values it had.
    pub levels: usize,
    /// Share of the variance of the figure's ranks that it explains, 0 to 1: by the means of its values (eta
    /// squared), or where nearly each point has its own value, by the square of `spearman_rho`.
    pub variance_share: f64,
    /// Spearman's rank correlation, -1 to 1, where its values are numbers.
    pub spearman_rho: Option<f64>,
    /// Share of random orders that have at least this share.
    pub p_value: f64,
    /// How often it has the largest share that any order has: with so few points `chance` is never less.
    pub p_value_min: f64,
}

/// All measures of an experiment, as `PHASE/NAME`, in the order of its trials.
fn figure_keys(experiment: &Experiment) -> Vec<(String, String)> {
    let mut keys: Vec<(String, String)> = Vec::new();
    for figure in experiment.trials.iter().flat_map(|trial| &trial.measures) {
        if !keys.iter().any(|(phase, name)| *phase == figure.phase && *name == figure.name) {
            keys.push((figure.phase.clone(), figure.name.clone()));
        }
    }
    keys
}

/// Of the figures that all points with trials have, the one that leads a comparison, or the first; without
/// any, the first of all.
fn default_figure(experiment: &Experiment, keys: &[(String, String)]) -> Option<usize> {
    let mut points: BTreeMap<usize, &Trial> = BTreeMap::new();
    for trial in &experiment.trials {
        if let Some((point, _)) = experiment.plan.point_and_seed(trial.slot) {
            points.entry(point).or_insert(trial);
        }
    }
    let has_figure = |trial: &Trial, key: &(String, String)| {
        trial.measures.iter().any(|figure| figure.phase == key.0 && figure.name == key.1)
    };
    let common_figures: Vec<usize> =
        (0..keys.len()).filter(|&at| points.values().all(|trial| has_figure(trial, &keys[at]))).collect();
    let leads = find_leading_figure(common_figures.iter().map(|&at| keys[at].1.as_str())).unwrap_or(0);
    common_figures.get(leads).copied().or((!keys.is_empty()).then_some(0))
}

/// Judges a sweep by the plan's figure, or the one that leads of those that all points have. `Err`: there is
/// no such figure; those that there are.
pub fn judge_sweep(experiment: &Experiment) -> Result<SweepJudgement, Vec<String>> {
    let keys = figure_keys(experiment);
    let wanted_figure = experiment.plan.sweep.as_ref().and_then(|sweep| sweep.judged.as_deref());
    let found = match wanted_figure {
        Some(wanted) => keys.iter().position(|(phase, name)| wanted == format!("{phase}/{name}")),
        None => default_figure(experiment, &keys),
    };
    let Some((phase, name)) = found.map(|at| &keys[at]) else {
        return Err(keys.iter().map(|(phase, name)| format!("{phase}/{name}")).collect());
    };
    let mut unit = String::new();
    let mut values: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for trial in &experiment.trials {
        let Some((point, _)) = experiment.plan.point_and_seed(trial.slot) else { continue };
        let figure = trial.measures.iter().find(|figure| figure.phase == *phase && figure.name == *name);
        if let Some((figure, value)) = figure.and_then(|figure| Some((figure, *figure.value.as_ref().ok()?)))
        {
            unit.clone_from(&figure.unit.0);
            values.entry(point).or_default().push(value);
        }
    }
    let point = |(point, values): (usize, Vec<f64>)| {
        let seeds = values.len();
        Some(SweepPoint { point, median: SampleStatistics::from_samples(values)?.median, seeds })
    };
    let mut points: Vec<SweepPoint> = values.into_iter().filter_map(point).collect();
    let varied = experiment.plan.varied().iter().enumerate();
    let mut influences: Vec<FactorInfluence> =
        varied.filter_map(|(at, of)| factor_influence(experiment, &points, at, of)).collect();
    influences.sort_by(|one, other| other.variance_share.total_cmp(&one.variance_share));
    points.sort_by(|one, other| other.median.total_cmp(&one.median).then(one.point.cmp(&other.point)));
    Ok(SweepJudgement { figure: format!("{phase}/{name}"), unit, points, influences })
}

fn factor_influence(
    experiment: &Experiment,
    points: &[SweepPoint],
    factor_index: usize,
    factor: &SweepFactor,
) -> Option<FactorInfluence> {
    let texts: Vec<&str> = points
        .iter()
        .map(|point| experiment.plan.points().get(point.point)?.values.get(factor_index).map(String::as_str))
        .collect::<Option<_>>()?;
    let mut names: Vec<&str> = texts.clone();
    names.sort_unstable();
    names.dedup();
    let levels: Vec<usize> = texts.iter().map(|text| names.partition_point(|name| name < text)).collect();
    let numbers = texts.iter().map(|text| text.parse().ok()).collect::<Option<Vec<f64>>>();
    let numbers = numbers.filter(|_| factor.is_number).map(|numbers| ranks(&numbers));
    let figures = ranks(&points.iter().map(|point| point.median).collect::<Vec<f64>>());
    // Where nearly each point has its own value, the means of values are the points themselves.
    let by_order = numbers.as_ref().filter(|_| names.len() * 3 > points.len());
    let share = |figures: &[f64]| match by_order {
        Some(numbers) => correlation(figures, numbers).unwrap_or(0.0).powi(2),
        None => eta_squared(figures, &levels, names.len()),
    };
    let observed_share = share(&figures);
    let mut shares = Vec::new();
    for_each_permutation(&figures, |order| shares.push(share(order)));
    let largest = shares.iter().copied().fold(observed_share, f64::max);
    // Sums in another order differ in their last bits.
    let count_at_least = |least: f64| shares.iter().filter(|&&share| share >= least * (1.0 - 1e-9)).count();
    let part = |times: usize| (times + 1) as f64 / (shares.len() + 1) as f64;
    Some(FactorInfluence {
        name: factor.name.clone(),
        levels: names.len(),
        variance_share: observed_share,
        spearman_rho: numbers.map(|numbers| correlation(&figures, &numbers).unwrap_or(0.0)),
        p_value: part(count_at_least(observed_share)),
        p_value_min: part(count_at_least(largest).saturating_sub(usize::from(observed_share < largest))),
    })
}

/// Random orders of these values; of few values all orders except the observed one, so that probabilities are
/// exact.
fn for_each_permutation(values: &[f64], mut visit: impl FnMut(&[f64])) {
    let mut order = values.to_vec();
    if values.len() <= EXACT_POINTS_MAX {
        let mut is_first = true;
        return for_each_permutation_from(&mut order, 0, &mut |order| {
            if !std::mem::take(&mut is_first) {
                visit(order);
            }
        });
    }
    let mut random = SplitMix64::new(PERMUTATION_SEED);
    for _ in 0..RANDOM_PERMUTATIONS {
        for last in (1..order.len()).rev() {
            order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
        visit(&order);
    }
}

/// All orders of the values after `from`; the first of them is the present one.
fn for_each_permutation_from(order: &mut [f64], from: usize, visit: &mut impl FnMut(&[f64])) {
    if from + 1 >= order.len() {
        return visit(order);
    }
    for at in from..order.len() {
        order.swap(from, at);
        for_each_permutation_from(order, from + 1, visit);
        order.swap(from, at);
    }
}

/// Share of the variance between levels (eta squared); 0 if nothing varies.
fn eta_squared(values: &[f64], levels: &[usize], count: usize) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let mut sums = vec![(0.0, 0.0); count];
    let mut all = 0.0;
    for (value, &level) in values.iter().zip(levels) {
        all += (value - mean).powi(2);
        sums[level] = (sums[level].0 + value - mean, sums[level].1 + 1.0);
    }
    let of_levels: f64 = sums.iter().filter(|(_, n)| *n > 0.0).map(|(sum, n)| sum * sum / n).sum();
    if all > 0.0 { of_levels / all } else { 0.0 }
}

/// Result of huge page requests: allocated, and requested. A share.
pub const SUCCESS_FIGURE: &str = "success";
/// How F_u of an order begins: `F_u(9)`. A share of free memory.
pub const UNUSABLE_PREFIX: &str = "F_u(";
/// Pageblocks in which a page cannot be moved. A share of all pageblocks.
pub const POLLUTED_PAGEBLOCKS: &str = "polluted pageblocks";

/// The place of the name by which a study is judged, of figures in the order of its phases: the last success,
/// else the last F_u; `None` without both.
pub fn find_leading_figure<'n>(
    names: impl DoubleEndedIterator<Item = &'n str> + ExactSizeIterator + Clone,
) -> Option<usize> {
    let success = names.clone().rposition(|name| name == SUCCESS_FIGURE);
    success.or_else(|| names.clone().rposition(|name| name.starts_with(UNUSABLE_PREFIX)))
}

#[cfg(test)]
mod tests;
