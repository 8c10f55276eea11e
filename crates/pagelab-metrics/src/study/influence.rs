//! Which of the things that a sweep varies mattered for a figure: by ranks, so that neither the scale of a
//! parameter nor a single wild value decides.

use std::collections::BTreeMap;

use pagelab_model::seed::SplitMix64;
use pagelab_model::study::{Study, StudyTrial, Varied};

use super::leading;
use crate::statistics::Statistics;

/// Orders that are drawn to tell what chance alone does.
const DRAWN: u32 = 999;
/// Points of which all orders are looked at: 720 of them.
const ALL_UP_TO: usize = 6;
/// The seed of them: the same study says the same.
const SEED: u64 = 0x7377_6565_7021;

/// A sweep, judged by one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The figure, as `PHASE/NAME`.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// The points that have it, the largest value first.
    pub points: Vec<Point>,
    /// What was varied, what mattered most first.
    pub influences: Vec<Influence>,
}

/// A point of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The cell's place in the plan.
    pub cell: usize,
    /// The middle of its values over seeds.
    pub median: f64,
    /// How many seeds.
    pub seeds: usize,
}

/// How far a figure goes with something that was varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Influence {
    /// What was varied.
    pub name: String,
    /// How many different values it had.
    pub levels: usize,
    /// The share of the variance of the figure's ranks that goes with it, 0 to 1: by the means of its
    /// values (eta squared), or where nearly each point has its own value, by the square of `rho`.
    pub share: f64,
    /// Spearman's rank correlation, -1 to 1, where its values are numbers.
    pub rho: Option<f64>,
    /// How often an order drawn by chance has at least this share.
    pub chance: f64,
    /// How often it has the largest share that any order has: with so few points `chance` is never less.
    pub chance_least: f64,
}

/// All figures that a study has, as `PHASE/NAME`, in the order of its trials.
fn figures(study: &Study) -> Vec<(String, String)> {
    let mut keys: Vec<(String, String)> = Vec::new();
    for figure in study.trials.iter().flat_map(|trial| &trial.figures) {
        if !keys.iter().any(|(phase, name)| *phase == figure.phase && *name == figure.name) {
            keys.push((figure.phase.clone(), figure.name.clone()));
        }
    }
    keys
}

/// Of the figures that all points with trials have the one that leads a comparison, or the first; the first
/// of all where there is none.
fn usual(study: &Study, keys: &[(String, String)]) -> Option<usize> {
    let mut points: BTreeMap<usize, &StudyTrial> = BTreeMap::new();
    for trial in &study.trials {
        if let Some((cell, _)) = study.plan.slot(trial.slot) {
            points.entry(cell).or_insert(trial);
        }
    }
    let has = |trial: &StudyTrial, key: &(String, String)| {
        trial.figures.iter().any(|figure| figure.phase == key.0 && figure.name == key.1)
    };
    let of_all: Vec<usize> =
        (0..keys.len()).filter(|&at| points.values().all(|trial| has(trial, &keys[at]))).collect();
    let leads = leading(of_all.iter().map(|&at| keys[at].1.as_str())).unwrap_or(0);
    of_all.get(leads).copied().or((!keys.is_empty()).then_some(0))
}

/// Judges a sweep by this figure, or the plan's, or the one that leads of those that all points have. `Err`:
/// there is no such figure; those that there are.
pub fn sweep(study: &Study, judged: Option<&str>) -> Result<Sweep, Vec<String>> {
    let keys = figures(study);
    let wanted = judged.or(study.plan.judged.as_deref());
    let found = match wanted {
        Some(wanted) => keys.iter().position(|(phase, name)| wanted == format!("{phase}/{name}")),
        None => usual(study, &keys),
    };
    let Some((phase, name)) = found.map(|at| &keys[at]) else {
        return Err(keys.iter().map(|(phase, name)| format!("{phase}/{name}")).collect());
    };
    let mut unit = String::new();
    let mut values: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for trial in &study.trials {
        let Some((cell, _)) = study.plan.slot(trial.slot) else { continue };
        let figure = trial.figures.iter().find(|figure| figure.phase == *phase && figure.name == *name);
        if let Some(figure) = figure {
            unit.clone_from(&figure.unit);
            values.entry(cell).or_default().push(figure.number());
        }
    }
    let point = |(cell, values): (usize, Vec<f64>)| {
        let seeds = values.len();
        Some(Point { cell, median: Statistics::of(values)?.median, seeds })
    };
    let mut points: Vec<Point> = values.into_iter().filter_map(point).collect();
    let varied = study.plan.varied.iter().enumerate();
    let mut influences: Vec<Influence> =
        varied.filter_map(|(at, of)| influence(study, &points, at, of)).collect();
    influences.sort_by(|one, other| other.share.total_cmp(&one.share));
    points.sort_by(|one, other| other.median.total_cmp(&one.median).then(one.cell.cmp(&other.cell)));
    Ok(Sweep { figure: format!("{phase}/{name}"), unit, points, influences })
}

fn influence(study: &Study, points: &[Point], at: usize, of: &Varied) -> Option<Influence> {
    let texts: Vec<&str> = points
        .iter()
        .map(|point| study.plan.cells.get(point.cell)?.values.get(at).map(String::as_str))
        .collect::<Option<_>>()?;
    let mut names: Vec<&str> = texts.clone();
    names.sort_unstable();
    names.dedup();
    let levels: Vec<usize> = texts.iter().map(|text| names.partition_point(|name| name < text)).collect();
    let numbers = texts.iter().map(|text| text.parse().ok()).collect::<Option<Vec<f64>>>();
    let numbers = numbers.filter(|_| of.is_number).map(|numbers| ranks(&numbers));
    let figures = ranks(&points.iter().map(|point| point.median).collect::<Vec<f64>>());
    // Where nearly each point has its own value, the means of values are the points themselves.
    let by_order = numbers.as_ref().filter(|_| names.len() * 3 > points.len());
    let share = |figures: &[f64]| match by_order {
        Some(numbers) => correlation(figures, numbers).powi(2),
        None => between(figures, &levels, names.len()),
    };
    let found = share(&figures);
    let mut shares = Vec::new();
    each_order(&figures, |order| shares.push(share(order)));
    let largest = shares.iter().copied().fold(found, f64::max);
    // Sums in another order differ in their last bits.
    let as_far = |least: f64| shares.iter().filter(|&&share| share >= least * (1.0 - 1e-9)).count();
    let part = |times: usize| (times + 1) as f64 / (shares.len() + 1) as f64;
    Some(Influence {
        name: of.name.clone(),
        levels: names.len(),
        share: found,
        rho: numbers.map(|numbers| correlation(&figures, &numbers)),
        chance: part(as_far(found)),
        chance_least: part(as_far(largest).saturating_sub(usize::from(found < largest))),
    })
}

/// Orders of these values drawn by chance; of few values all but the one that is there, so that chances are
/// exact.
fn each_order(values: &[f64], mut each: impl FnMut(&[f64])) {
    let mut order = values.to_vec();
    if values.len() <= ALL_UP_TO {
        let mut is_first = true;
        return permuted(&mut order, 0, &mut |order| {
            if !std::mem::take(&mut is_first) {
                each(order);
            }
        });
    }
    let mut random = SplitMix64::new(SEED);
    for _ in 0..DRAWN {
        for last in (1..order.len()).rev() {
            order.swap(last, (random.draw() % (last as u64 + 1)) as usize);
        }
        each(&order);
    }
}

/// All orders of what stands behind `from`; the first of them is the one that is there.
fn permuted(order: &mut [f64], from: usize, each: &mut impl FnMut(&[f64])) {
    if from + 1 >= order.len() {
        return each(order);
    }
    for at in from..order.len() {
        order.swap(from, at);
        permuted(order, from + 1, each);
        order.swap(from, at);
    }
}

/// Places of values in their order from 1 on; equal ones share the middle of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&one, &other| values[one].total_cmp(&values[other]));
    let mut ranks = vec![0.0; values.len()];
    let mut at = 0;
    for run in order.chunk_by(|&one, &other| values[one] == values[other]) {
        let rank = at as f64 + (run.len() as f64 + 1.0) / 2.0;
        run.iter().for_each(|&place| ranks[place] = rank);
        at += run.len();
    }
    ranks
}

/// Pearson's correlation, which of ranks is Spearman's; 0 where one of both does not vary.
fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let (middle, other_middle) = (mean(one), mean(other));
    let (mut both, mut own, mut others) = (0.0, 0.0, 0.0);
    for (a, b) in one.iter().zip(other) {
        let (a, b) = (a - middle, b - other_middle);
        (both, own, others) = (both + a * b, own + a * a, others + b * b);
    }
    let scale = f64::sqrt(own * others);
    if scale > 0.0 { both / scale } else { 0.0 }
}

/// The share of the variance that lies between levels (eta squared); 0 where nothing varies.
fn between(values: &[f64], levels: &[usize], count: usize) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_correlations_are_those_of_the_textbook() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        // scipy.stats.spearmanr([106, 86, 100, 101, 99, 103, 97, 113, 112, 110],
        //   [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]) = -0.17575757…: the example of Wikipedia.
        let iq = [106.0, 86.0, 100.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
        let hours = [7.0, 0.0, 27.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
        let rho = correlation(&ranks(&iq), &ranks(&hours));
        assert!((rho + 29.0 / 165.0).abs() < 1e-12, "{rho}");
        assert_eq!(correlation(&[1.0, 2.0], &[5.0, 5.0]), 0.0);
    }

    #[test]
    fn of_few_values_all_orders_are_looked_at() {
        let orders = |values: &[f64]| {
            let mut all = Vec::new();
            each_order(values, |order| all.push(order.to_vec()));
            all
        };
        let mut all = orders(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(all.len(), 23, "all but the one that is there");
        all.sort_by(|one, other| one.partial_cmp(other).unwrap());
        all.dedup();
        assert_eq!(all.len(), 23);
        assert_eq!(orders(&[0.0; 7]).len(), DRAWN as usize);
        assert!(orders(&[1.0]).is_empty());
    }

    #[test]
    fn the_share_between_levels_is_that_of_the_analysis_of_variance() {
        // Two levels 1, 2, 3 and 4, 5, 6: between 13.5 of 17.5 in all.
        let found = between(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0, 0, 0, 1, 1, 1], 2);
        assert!((found - 13.5 / 17.5).abs() < 1e-12, "{found}");
        assert_eq!(between(&[2.0, 2.0], &[0, 1], 2), 0.0);
    }
}
