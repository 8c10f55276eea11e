//! What a simulated study says: figures over seeds, differences between schemes pair by pair, and in a sweep
//! which parameter mattered.
//!
//! Seeds are the only randomness there is, and all schemes of a table have the same ones. A figure may well
//! be 0, so differences are taken, and not ratios.

mod influence;
mod leading;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use pagelab_model::study::{Study, StudyCell};

use crate::effect::{LEVEL, PAIRS_MIN, rank_cut};
use crate::statistics::Statistics;

pub use influence::{Influence, Point, Sweep, sweep};
pub use leading::{MIXED, SUCCESS, UNUSABLE, leading};

/// The tables of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// One for each machine, load and parameters.
    pub groups: Vec<Group>,
    /// Differences for which there is an interval: one of twenty is seen where there is none.
    pub judged: usize,
    /// Those whose interval has ends that differ, and how many of them miss by chance, by their levels.
    pub by_chance: (usize, f64),
}

/// Cells that differ in their scheme alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Places of the cells in the plan; the first is what the others are compared with.
    pub cells: Vec<usize>,
    /// The figures, in the order of the trials.
    pub rows: Vec<Row>,
}

/// One figure of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The phase of the load.
    pub phase: String,
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// For each cell of the group what was found; `None`: it has no such figure.
    pub columns: Vec<Option<Column>>,
}

/// One figure of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Seeds and values, in the order of the plan's seeds.
    pub values: Vec<(u64, f64)>,
    /// The middle one.
    pub median: f64,
    /// Where the median of all seeds lies, by order statistics.
    pub interval: Option<Between>,
    /// Against the group's first cell, seed by seed; `None` for that one itself and where it has no pair.
    pub difference: Option<Difference>,
}

/// Between which values something lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// In what share of studies it does: at least [`LEVEL`], as ranks come in steps.
    pub level: f64,
}

/// By how much two cells differ with the same seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Seeds that both have.
    pub pairs: usize,
    /// The middle of all averages of two differences (Hodges and Lehmann 1963).
    pub middle: f64,
    /// The differences that Wilcoxon's signed-rank test does not refuse; `None` below [`PAIRS_MIN`] pairs.
    pub interval: Option<Between>,
    /// What it says.
    pub says: Says,
}

/// What a difference says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Fewer than [`PAIRS_MIN`] pairs.
    TooFew,
    /// It is 0 with every seed.
    Same,
    /// 0 lies in the interval: no difference is seen.
    NotSeen,
    /// It is more than of the first scheme.
    More,
    /// It is less.
    Less,
}

impl Compared {
    /// Compares a study as far as it was carried out.
    pub fn of(study: &Study) -> Compared {
        let found = Found::of(study);
        let groups: Vec<Group> = groups(&study.plan.cells).into_iter().map(|of| found.group(of)).collect();
        let columns =
            groups.iter().flat_map(|group| &group.rows).flat_map(|row| row.columns.iter().flatten());
        let judged: Vec<Between> = columns.filter_map(|column| column.difference?.interval).collect();
        let wide = judged.iter().filter(|of| of.low < of.high);
        let by_chance = wide.fold((0, 0.0), |(count, missed), of| (count + 1, missed + 1.0 - of.level));
        Compared { judged: judged.len(), by_chance, groups }
    }
}

/// Cells that differ in their scheme alone, in the order of the plan.
fn groups(cells: &[StudyCell]) -> Vec<Vec<usize>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let StudyCell { machine, kernelcore, load, parameters, .. } = cell;
        let place = *places.entry((machine, kernelcore, load, parameters)).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(at);
    }
    groups
}

/// A figure's name and unit.
struct Head {
    phase: String,
    name: String,
    unit: String,
}

/// All values of a study, by figure and cell.
struct Found {
    heads: Vec<Head>,
    /// Figures in the order to show them: one that some trials have alone stands behind the one that it
    /// stands behind there.
    order: Vec<usize>,
    /// By figure and cell; the place of a seed and the value, by seed.
    values: HashMap<(usize, usize), Vec<(usize, f64)>>,
    seeds: Vec<u64>,
}

impl Found {
    fn of(study: &Study) -> Found {
        let seeds = study.plan.seeds.clone();
        let mut found = Found { heads: Vec::new(), order: Vec::new(), values: HashMap::new(), seeds };
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        let cells = study.plan.cells.len().max(1);
        for trial in &study.trials {
            let Some((cell, _)) = study.plan.slot(trial.slot) else { continue };
            let mut before = None;
            for figure in &trial.figures {
                let place = *places.entry((&figure.phase, &figure.name)).or_insert(found.heads.len());
                if place == found.heads.len() {
                    let (phase, name, unit) = (&figure.phase, &figure.name, &figure.unit);
                    let head = Head { phase: phase.clone(), name: name.clone(), unit: unit.clone() };
                    found.heads.push(head);
                    let behind = found.order.iter().position(|&at| Some(at) == before);
                    found.order.insert(behind.map_or(0, |at| at + 1), place);
                }
                before = Some(place);
                // A value in another unit is another thing.
                if found.heads[place].unit == figure.unit {
                    let values = found.values.entry((place, cell)).or_default();
                    values.push((trial.slot / cells, figure.number()));
                }
            }
        }
        found
    }

    fn group(&self, cells: Vec<usize>) -> Group {
        let has = |figure: usize| cells.iter().any(|&cell| self.values.contains_key(&(figure, cell)));
        let shown = self.order.iter().copied().filter(|&figure| has(figure));
        let rows = shown.map(|figure| self.row(figure, &cells)).collect();
        Group { rows, cells }
    }

    fn row(&self, figure: usize, cells: &[usize]) -> Row {
        let first = cells.first().and_then(|&cell| self.values.get(&(figure, cell)));
        let column = |(at, &cell): (usize, &usize)| {
            let values = self.values.get(&(figure, cell))?;
            let sorted = sorted(values.iter().map(|&(_, value)| value));
            let difference = first.filter(|_| at > 0).and_then(|first| difference(values, first));
            Some(Column {
                median: Statistics::of(sorted.clone())?.median,
                interval: median_between(&sorted),
                values: values.iter().filter_map(|&(at, v)| Some((*self.seeds.get(at)?, v))).collect(),
                difference,
            })
        };
        let Head { phase, name, unit } = &self.heads[figure];
        let columns = cells.iter().enumerate().map(column).collect();
        Row { phase: phase.clone(), name: name.clone(), unit: unit.clone(), columns }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Where the median of what sorted values were drawn from lies, whatever its distribution: between two of
/// them, by the binomial distribution of how many lie below it. `None` below [`PAIRS_MIN`] values.
fn median_between(sorted: &[f64]) -> Option<Between> {
    let count = sorted.len();
    if count < PAIRS_MIN {
        return None;
    }
    // In logarithms: 2^-1000 and less is no number.
    let half = count as f64 * 0.5f64.ln();
    let (mut ways, mut below, mut outside) = (0.0f64, 0.0f64, 0);
    loop {
        let next = below + (ways + half).exp();
        if 2.0 * next > 1.0 - LEVEL {
            break;
        }
        below = next;
        ways += ((count - outside) as f64 / (outside + 1) as f64).ln();
        outside += 1;
    }
    let place = outside.checked_sub(1)?;
    Some(Between { low: sorted[place], high: sorted[count - 1 - place], level: 1.0 - 2.0 * below })
}

fn difference(of: &[(usize, f64)], to: &[(usize, f64)]) -> Option<Difference> {
    let to: HashMap<usize, f64> = to.iter().copied().collect();
    let differences: Vec<f64> = of.iter().filter_map(|(seed, value)| Some(value - to.get(seed)?)).collect();
    let pairs = differences.len();
    let averages = differences
        .iter()
        .enumerate()
        .flat_map(|(at, one)| differences[at..].iter().map(move |other| one / 2.0 + other / 2.0));
    let averages = sorted(averages);
    let middle = Statistics::of(averages.clone())?.median;
    let interval = (pairs >= PAIRS_MIN).then(|| rank_cut(pairs)).flatten().and_then(|(cut, level)| {
        let high = *averages.get(averages.len().checked_sub(1 + cut)?)?;
        Some(Between { low: averages[cut], high, level })
    });
    let says = match interval {
        _ if differences.iter().all(|&difference| difference == 0.0) => Says::Same,
        None => Says::TooFew,
        Some(interval) if interval.low > 0.0 => Says::More,
        Some(interval) if interval.high < 0.0 => Says::Less,
        Some(_) => Says::NotSeen,
    };
    Some(Difference { pairs, middle, interval, says })
}
