//! What an experiment says: by how much each variant differs from the baseline, and whether that is known.
//!
//! Trials of one round are a pair. A verdict needs [`PAIRS_MIN`] of them, an interval without 1, an effect
//! larger than what two equal settings show on this host, and a variant that was what it says it is.

mod advice;
#[cfg(test)]
mod coverage;
mod judge;
mod paired;
mod student;

use std::collections::{BTreeMap, HashMap};

use pagelab_model::experiment::{Better, Experiment, Flag, Role, TrialEnd, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Reading};

use crate::hit_rates;
use crate::statistics::Statistics;

pub use advice::{Advice, thp_mode};
pub use judge::{Doubt, Floor, Verdict};
pub(crate) use paired::rank_cut;
pub use paired::{Interval, LEVEL, PAIRS_DEFAULT, PAIRS_MIN, Paired, difference, unpaired};

/// What all trials together say.
#[derive(Clone, Debug, PartialEq)]
pub struct Effects {
    /// In the order of the plan.
    pub workloads: Vec<WorkloadEffects>,
}

/// What the trials of one workload say.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadEffects {
    /// Its place in the plan.
    pub workload: usize,
    /// Place in `measures` of the one that judges: its own figure of merit, or else `wall`.
    pub judged: Option<usize>,
    /// Every measure that some trial of it names, in the order in which they came.
    pub measures: Vec<MeasureEffects>,
    /// How the trials of each variant ended, in the order of the plan.
    pub trials: Vec<Counts>,
    /// Which mode of transparent huge pages is best for it; `None` where that was not varied.
    pub advice: Option<Advice>,
}

impl WorkloadEffects {
    /// The measure that judges.
    pub fn judged(&self) -> Option<&MeasureEffects> {
        self.measures.get(self.judged?)
    }

    /// The measure of this name.
    pub fn measure(&self, name: &str) -> Option<&MeasureEffects> {
        self.measures.iter().find(|measure| measure.name == name)
    }
}

/// How the trials of one variant ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Planned and to be counted: no warm-ups, no twins.
    pub planned: usize,
    /// Ended as they should: their measures count.
    pub done: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// Killed for want of memory; in `failed` too.
    pub out_of_memory: usize,
    /// Done, and huge pages were asked for and did not come, or nobody saw whether they did.
    pub not_huge: usize,
    /// Of these, those of which it is not known.
    pub unseen: usize,
    /// Done, and a setting was not what was asked for.
    pub not_applied: usize,
}

/// One measure of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureEffects {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// Which direction is good.
    pub better: Better,
    /// Where it is from.
    pub source: String,
    /// Why it is absent, where no trial has it.
    pub absent: Option<Absence>,
    /// What two equal settings differ by on this host.
    pub floor: Reading<Floor>,
    /// One for each variant, in the order of the plan.
    pub variants: Vec<VariantEffect>,
}

/// One measure of one workload under one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantEffect {
    /// The values that count, by round.
    pub values: Vec<f64>,
    /// What they come to; `None` without any.
    pub statistics: Option<Statistics>,
    /// Against the baseline; `Err` says why there is no ratio.
    pub effect: Reading<Effect>,
}

impl VariantEffect {
    /// The geometric mean of the values and its interval by t, which needs two of them; `None` without values
    /// and where one is not above 0.
    pub fn mean(&self) -> Option<(f64, Option<Interval>)> {
        let all = Paired::of_logs(self.values.iter().map(|value| value.ln()));
        let is_whole = all.count() == self.values.len();
        Some((all.ratio().filter(|mean| is_whole && mean.is_finite())?, all.by_t()))
    }
}

/// A ratio of a variant to the baseline, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// The pairs.
    pub pairs: Paired,
    /// Geometric mean of the pairs' ratios, the variant's value by the baseline's.
    pub ratio: f64,
    /// By t; `None` with a single pair.
    pub interval: Option<Interval>,
    /// What it says.
    pub verdict: Verdict,
    /// Which direction is good.
    pub better: Better,
}

impl Effect {
    /// How many times as fast: the ratio turned so that more is better; with its interval.
    pub fn speed_up(&self) -> (f64, Option<Interval>) {
        match self.better {
            Better::Higher => (self.ratio, self.interval),
            Better::Lower | Better::Neither => (1.0 / self.ratio, self.interval.map(|found| found.inverse())),
        }
    }

    /// The share of the baseline's time, misses or bytes that is saved, negative where more is needed:
    /// 1 − ratio, and for what counts work in a time, 1 − 1 / ratio. Times 100 it is what reports call per
    /// cent faster.
    pub fn saved(&self) -> f64 {
        1.0 - 1.0 / self.speed_up().0
    }
}

/// Values of one measure of one workload: variant, round and role of their trial, and the value.
struct Row {
    variant: usize,
    round: u32,
    role: Role,
    value: f64,
}

/// A measure while its values are gathered.
struct Gathered {
    name: String,
    unit: Unit,
    better: Better,
    source: String,
    absent: Option<Absence>,
    rows: Vec<Row>,
}

impl Effects {
    /// Judges an experiment as far as it was carried out.
    pub fn of(experiment: &Experiment) -> Effects {
        let plan = &experiment.plan;
        let mut gathered: Vec<Vec<Gathered>> = plan.workloads.iter().map(|_| Vec::new()).collect();
        let mut trials = vec![vec![Counts::default(); plan.variants.len()]; plan.workloads.len()];
        for slot in plan.schedule.iter().filter(|slot| slot.role == Role::Measured) {
            if let Some(counts) = trials.get_mut(slot.workload).and_then(|row| row.get_mut(slot.variant)) {
                counts.planned += 1;
            }
        }
        gather(experiment, &mut gathered, &mut trials);
        let floors = pooled_floors(&gathered, plan.baseline);
        let judge = |(workload, (measures, trials)): (usize, (Vec<Gathered>, Vec<Counts>))| {
            let effects = |of: &Gathered| measure(of, plan.baseline, &trials, &floors);
            let measures: Vec<MeasureEffects> = measures.iter().map(effects).collect();
            let has = |name: &str| {
                measures.iter().position(|of| of.name == name && of.absent.is_none() && of.has_values())
            };
            let merit = plan.workloads[workload].merit.as_deref();
            let judged = merit.and_then(has).or_else(|| has(measures::WALL));
            let mut found = WorkloadEffects { workload, judged, measures, trials, advice: None };
            found.advice = advice::of(plan, &found);
            found
        };
        let all = gathered.into_iter().zip(trials).enumerate();
        Effects { workloads: all.map(judge).collect() }
    }
}

impl MeasureEffects {
    fn has_values(&self) -> bool {
        self.variants.iter().any(|variant| !variant.values.is_empty())
    }
}

/// Puts every value into its place, and counts how trials ended.
fn gather(experiment: &Experiment, gathered: &mut [Vec<Gathered>], trials: &mut [Vec<Counts>]) {
    let plan = &experiment.plan;
    let mut places: HashMap<(usize, String), usize> = HashMap::new();
    for trial in &experiment.trials {
        let Some(slot) = plan.schedule.get(trial.slot) else { continue };
        let Some(counts) = trials.get_mut(slot.workload).and_then(|row| row.get_mut(slot.variant)) else {
            continue;
        };
        let is_done = trial.end == TrialEnd::Done;
        if slot.role == Role::Measured {
            let has = |kind| trial.flags.iter().any(|flag| flag.kind == kind);
            counts.done += usize::from(is_done);
            counts.failed += usize::from(!is_done);
            counts.out_of_memory += usize::from(trial.end == TrialEnd::OutOfMemory);
            // What nobody could see is no proof that they came. Whether a workload asks at all under its
            // variant was settled when the trial was flagged.
            let unseen = has(Flag::HUGE_PAGES_UNSEEN);
            counts.not_huge += usize::from(is_done && (has(Flag::NO_HUGE_PAGES) || unseen));
            counts.unseen += usize::from(is_done && unseen);
            counts.not_applied += usize::from(is_done && has(Flag::NOT_APPLIED));
        }
        if slot.role == Role::WarmUp || !is_done {
            continue;
        }
        let of_workload = &mut gathered[slot.workload];
        let rates = hit_rates::of(&trial.measures);
        for measure in trial.measures.iter().chain(&rates) {
            let place = *places.entry((slot.workload, measure.name.clone())).or_insert(of_workload.len());
            if place == of_workload.len() {
                of_workload.push(Gathered {
                    name: measure.name.clone(),
                    unit: measure.unit.clone(),
                    better: measure.better,
                    source: measure.source.clone(),
                    absent: None,
                    rows: Vec::new(),
                });
            }
            let known = &mut of_workload[place];
            // A model was run once for each variant, and stands in whichever trial came first.
            let round = if measure.name.starts_with(measures::MODEL) { 0 } else { slot.round };
            let (variant, role) = (slot.variant, slot.role);
            match &measure.value {
                // A value in another unit is another thing.
                Ok(value) if value.is_finite() && measure.unit == known.unit => {
                    known.rows.push(Row { variant, round, role, value: *value });
                }
                Ok(_) => {}
                Err(absence) => {
                    known.absent.get_or_insert_with(|| absence.clone());
                }
            }
        }
    }
    for measure in gathered.iter_mut().flatten().filter(|measure| !measure.rows.is_empty()) {
        measure.absent = None;
    }
}

/// The mean of the logarithms of what was measured in each round.
fn by_round<'a>(rows: impl Iterator<Item = &'a Row>) -> BTreeMap<u32, f64> {
    let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(row.round).or_default();
        *sum = (sum.0 + row.value.ln(), sum.1 + 1.0);
    }
    sums.into_iter().map(|(round, (sum, count))| (round, sum / count)).collect()
}

/// Pairs of the rounds that both have, in the order of rounds. A value that is not above 0 has no logarithm,
/// so its round has no pair.
fn pairs(of: &BTreeMap<u32, f64>, to: &BTreeMap<u32, f64>) -> Paired {
    Paired::of_rounds(of.iter().filter_map(|(round, log)| Some((*round, log - to.get(round)?))))
}

fn measured(rows: &[Row], variant: usize) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.role == Role::Measured && row.variant == variant)
}

/// The pairs of equals of a workload.
fn twins(rows: &[Row], baseline: usize) -> Paired {
    let twins = by_round(rows.iter().filter(|row| row.role == Role::Twin));
    pairs(&twins, &by_round(measured(rows, baseline)))
}

/// Floors by measure, of the pairs of equals of all workloads together: for workloads that have too few.
fn pooled_floors(gathered: &[Vec<Gathered>], baseline: usize) -> HashMap<String, Paired> {
    let mut pooled: HashMap<String, Vec<f64>> = HashMap::new();
    for measure in gathered.iter().flatten() {
        let pairs = twins(&measure.rows, baseline);
        pooled.entry(measure.name.clone()).or_default().extend(pairs.ratios().map(f64::ln));
    }
    pooled.into_iter().map(|(name, logs)| (name, Paired::of_logs(logs))).collect()
}

fn measure(
    of: &Gathered,
    baseline: usize,
    trials: &[Counts],
    pooled: &HashMap<String, Paired>,
) -> MeasureEffects {
    let floor = Floor::of(&twins(&of.rows, baseline), pooled.get(&of.name));
    let base = by_round(measured(&of.rows, baseline));
    let variant = |variant: usize| {
        let mut rows: Vec<&Row> = measured(&of.rows, variant).collect();
        rows.sort_by_key(|row| row.round);
        let values: Vec<f64> = rows.iter().map(|row| row.value).collect();
        let effect = match variant == baseline {
            true => Err(no_ratio("it is the baseline")),
            false => {
                let pairs = pairs(&by_round(rows.iter().copied()), &base);
                effect(pairs, of.better, &values, floor.as_ref().ok(), &trials[variant])
            }
        };
        VariantEffect { statistics: Statistics::of(values.clone()), values, effect }
    };
    MeasureEffects {
        name: of.name.clone(),
        unit: of.unit.clone(),
        better: of.better,
        source: of.source.clone(),
        absent: of.absent.clone(),
        variants: (0..trials.len()).map(variant).collect(),
        floor,
    }
}

fn effect(
    pairs: Paired,
    better: Better,
    values: &[f64],
    floor: Option<&Floor>,
    counts: &Counts,
) -> Reading<Effect> {
    let Some(ratio) = pairs.ratio() else {
        return Err(no_ratio(match values {
            [] => "no trial of this variant has it",
            values if values.iter().any(|&value| value <= 0.0) => "a value is not above 0",
            _ => "no round has it of this variant and above 0 of the baseline",
        }));
    };
    if !(1.0 / paired::RATIO_MAX..=paired::RATIO_MAX).contains(&ratio) {
        return Err(no_ratio("it is beyond all reason"));
    }
    let interval = pairs.by_t();
    let verdict = judge::verdict(&pairs, interval, better, floor, counts);
    Ok(Effect { ratio, interval, verdict, better, pairs })
}

fn no_ratio(why: &str) -> Absence {
    Absence::new("the ratio to the baseline", AbsentWhy::Undefined, why)
}

#[cfg(test)]
pub(crate) mod tests;
