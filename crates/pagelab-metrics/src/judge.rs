//! Judgement of an experiment by one measure: whether its variants are worse than the baseline by more than
//! an accepted loss.
//!
//! The pairs and their intervals are those of [`crate::effect`]; nothing is estimated here. A variant is
//! worse if the whole interval lies beyond the accepted loss, and not worse if the whole interval lies within
//! it. A ratio that is no effect of the variant, or an effect that the report doubts, decides nothing.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use pagelab_model::experiment::{BetterDirection, Contrast, Experiment, MeasureHead, Plan, TrialEnd};
use pagelab_model::{Absence, names};

use crate::effect::{
    Effect, EffectVerdict, ExperimentEffects, MeasureEffects, NoiseFloor, PAIRS_MIN, RatioInterval,
    WorkloadEffects, baseline_column,
};

/// Judgement of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Key of the measure: its name, after the phase if it is of one.
    pub measure: String,
    /// Accepted loss as a share, above 0 and up to 1.
    pub loss: f64,
    /// Each other variant against the baseline, for each workload that has the measure or may have it. In the
    /// order of the plan; at least one.
    pub comparisons: Vec<JudgedComparison>,
    /// Trials that ended.
    pub ended_trials: usize,
    /// Of these, those that did not end well. Trials that were stopped with the experiment are in neither.
    pub failed_trials: usize,
}

/// One variant of one workload against the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedComparison {
    /// Index of the workload in the plan.
    pub workload: usize,
    /// Index of the variant in the plan.
    pub variant: usize,
    /// The measure; `None` if no trial of the workload has it.
    pub head: Option<Arc<MeasureHead>>,
    /// The ratio of variant to baseline; `None` without a pair.
    pub effect: Option<Effect>,
    /// Difference of two equal settings.
    pub noise_floor: Option<Result<NoiseFloor, Arc<Absence>>>,
    /// Verdict.
    pub verdict: ComparisonVerdict,
}

/// Verdict on one comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparisonVerdict {
    /// The whole interval lies within the accepted loss.
    NotWorse,
    /// The whole interval lies beyond it.
    Worse,
    /// All trials of the variant ran out of memory, so many, and none of the baseline: worse without a ratio.
    OutOfMemory {
        /// How many there are, at least [`PAIRS_MIN`].
        trials: usize,
    },
    /// Neither can be said.
    Undecided(UndecidedReason),
}

/// Why a comparison decides nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum UndecidedReason {
    /// Fewer than [`PAIRS_MIN`] complete pairs.
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// The interval contains the accepted loss.
    Interval,
    /// The ratio is no effect of the variant, or the report doubts the effect.
    NotAnEffect(EffectVerdict),
    /// A value is 0 or negative, so not all rounds have a ratio.
    ZeroValue,
    /// The measure is absent, or its ratio is.
    Absent(Absence),
    /// Trials ran out of memory, and more of the variant than of the baseline: those that completed do not
    /// show that it is not worse.
    OutOfMemory {
        /// Of the variant.
        variant: usize,
        /// Of the baseline.
        baseline: usize,
    },
}

/// Verdict on an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgeVerdict {
    /// No comparison is worse, and all are decided.
    NotWorse,
    /// A comparison is worse.
    Worse,
    /// None is worse, and not all are decided.
    Undecided,
}

impl Judgement {
    /// The verdict on all comparisons together.
    pub fn verdict(&self) -> JudgeVerdict {
        let decisive = [JudgeVerdict::Worse, JudgeVerdict::Undecided];
        decisive.into_iter().find(|&verdict| self.count(verdict) > 0).unwrap_or(JudgeVerdict::NotWorse)
    }

    /// Counts the comparisons with this verdict.
    pub fn count(&self, verdict: JudgeVerdict) -> usize {
        self.comparisons.iter().filter(|of| of.verdict.kind() == verdict).count()
    }
}

impl ComparisonVerdict {
    /// The verdict without its reason.
    pub fn kind(&self) -> JudgeVerdict {
        match self {
            ComparisonVerdict::NotWorse => JudgeVerdict::NotWorse,
            ComparisonVerdict::Worse | ComparisonVerdict::OutOfMemory { .. } => JudgeVerdict::Worse,
            ComparisonVerdict::Undecided(_) => JudgeVerdict::Undecided,
        }
    }
}

impl JudgedComparison {
    /// Complete pairs.
    pub fn pair_count(&self) -> usize {
        self.effect.as_ref().map_or(0, |effect| effect.pairs.pair_count())
    }
}

/// How many times as bad as the baseline a variant is, with the interval: the ratio, or its inverse where
/// more is better.
pub fn badness(effect: &Effect) -> (f64, Option<RatioInterval>) {
    match effect.better {
        BetterDirection::Higher => (1.0 / effect.ratio, effect.interval.map(|found| found.inverse())),
        BetterDirection::Lower | BetterDirection::Neither => (effect.ratio, effect.interval),
    }
}

/// Why an experiment cannot be judged by a measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JudgeError {
    /// Its trials are simulated: no figure of the simulator has a better direction.
    Simulated,
    /// There is no baseline, or no other variant that has the measure.
    NothingToCompare,
    /// No trial has a measure of this name.
    UnknownMeasure {
        /// The requested name.
        name: String,
        /// Names of the measures by which the experiment can be judged.
        known: Vec<String>,
    },
    /// Neither more nor less of it is better.
    NoDirection {
        /// The requested name.
        name: String,
        /// Names of the measures by which the experiment can be judged.
        known: Vec<String>,
    },
}

impl fmt::Display for JudgeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JudgeError::Simulated => formatter.write_str(
                "cannot judge a simulated experiment: none of its figures has a better direction; hint: \
                 compare them with `pagelab report`",
            ),
            JudgeError::NothingToCompare => {
                formatter.write_str("cannot judge the experiment: no variant is compared with the baseline")
            }
            JudgeError::UnknownMeasure { name, known } => {
                formatter.write_str(&names::describe_unknown("measure", name, known))
            }
            JudgeError::NoDirection { name, known } => write!(
                formatter,
                "cannot judge by `{}`: neither more nor less of it is better; expected one of {}",
                name.escape_debug(),
                known.join(", ")
            ),
        }
    }
}

/// Checks what is known before the first trial: that there is a baseline, another variant, and a measure with
/// a direction.
pub fn check_plan(plan: &Plan) -> Result<(), JudgeError> {
    if plan.is_simulated() {
        return Err(JudgeError::Simulated);
    }
    let has_baseline = plan.baseline.is_some_and(|baseline| baseline < plan.variants.len());
    if has_baseline && plan.variants.len() > 1 { Ok(()) } else { Err(JudgeError::NothingToCompare) }
}

/// Judges the complete pairs of an experiment by the measure with this key. `loss`: accepted loss as a share;
/// `None` for that of the plan.
pub fn judge_experiment(
    experiment: &Experiment,
    key: &str,
    loss: Option<f64>,
) -> Result<Judgement, JudgeError> {
    let plan = &experiment.plan;
    check_plan(plan)?;
    let loss = loss.unwrap_or_else(|| plan.accepted_loss());
    let effects = ExperimentEffects::from_experiment(experiment);
    check_measure(plan, &effects, key)?;
    let mut comparisons = Vec::new();
    for workload in effects.workloads.iter().filter(|of| may_have_measure(plan, of, key)) {
        let baseline = baseline_column(&workload.columns, plan.baseline);
        // A recipe may run a variant for some workloads only.
        let is_compared = |column: &usize| Some(*column) != baseline && workload.trials[*column].planned > 0;
        let others = (0..workload.columns.len()).filter(is_compared);
        comparisons.extend(others.map(|column| {
            let judged = judge_column(workload, key, (column, baseline), loss);
            JudgedComparison {
                verdict: judge_memory(plan, workload, (column, baseline), judged.verdict),
                ..judged
            }
        }));
    }
    if comparisons.is_empty() {
        return Err(JudgeError::NothingToCompare);
    }
    let ended = experiment.trials.iter().filter(|trial| trial.end != TrialEnd::Stopped);
    let failed = ended.clone().filter(|trial| trial.end != TrialEnd::Done);
    let (ended_trials, failed_trials) = (ended.count(), failed.count());
    Ok(Judgement { measure: key.to_owned(), loss, comparisons, ended_trials, failed_trials })
}

/// Names of the measures by which some workload can be judged, in order of occurrence.
fn list_measures(effects: &ExperimentEffects) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for measure in effects.workloads.iter().flat_map(|of| &of.measures) {
        let key = measure.key();
        if has_direction(measure) && measure.absent.is_none() && !known.contains(&key) {
            known.push(key);
        }
    }
    known
}

fn has_direction(head: &MeasureHead) -> bool {
    head.better != BetterDirection::Neither && head.contrast == Contrast::Ratio
}

fn check_measure(plan: &Plan, effects: &ExperimentEffects, key: &str) -> Result<(), JudgeError> {
    let mut found = effects.workloads.iter().filter_map(|of| of.measure(key)).peekable();
    let (name, known) = (key.to_owned(), || list_measures(effects));
    // A workload whose baseline never completed may have any measure.
    if found.peek().is_none() && !effects.workloads.iter().any(|of| may_have_measure(plan, of, key)) {
        return Err(JudgeError::UnknownMeasure { name, known: known() });
    }
    match found.all(|measure| has_direction(measure)) {
        true => Ok(()),
        false => Err(JudgeError::NoDirection { name, known: known() }),
    }
}

/// Whether a workload has the measure, or its baseline never completed, so that this is unknown. Such a
/// workload is undecided: if it were left out, a failing workload would count as not worse.
fn may_have_measure(plan: &Plan, workload: &WorkloadEffects, key: &str) -> bool {
    let baseline = baseline_column(&workload.columns, plan.baseline);
    let counts = baseline.and_then(|column| workload.trials.get(column));
    counts.map_or(0, |counts| counts.completed) == 0 || workload.measure(key).is_some()
}

fn judge_column(
    workload: &WorkloadEffects,
    key: &str,
    (column, baseline): (usize, Option<usize>),
    loss: f64,
) -> JudgedComparison {
    let measure = workload.measure(key);
    let effect = measure.and_then(|of| of.effect(column));
    let reason = measure.and_then(|of| find_missing(of, column, baseline));
    let verdict = match (reason, effect) {
        (Some(reason), _) => ComparisonVerdict::Undecided(reason),
        (None, Some(effect)) => judge_effect(effect, loss),
        (None, None) => ComparisonVerdict::Undecided(UndecidedReason::TooFewPairs { pairs: 0 }),
    };
    JudgedComparison {
        workload: workload.workload,
        variant: workload.columns[column].variant,
        head: measure.map(|of| of.head.clone()),
        effect: effect.cloned(),
        noise_floor: measure.map(|of| of.noise_floor.clone()),
        verdict,
    }
}

/// The verdict of a comparison, with the trials that ran out of memory: of a kernel, for example, that needs
/// more of it. Where the memory itself is compared, they say nothing about the measure.
fn judge_memory(
    plan: &Plan,
    workload: &WorkloadEffects,
    (column, baseline): (usize, Option<usize>),
    verdict: ComparisonVerdict,
) -> ComparisonVerdict {
    let Some(baseline) = baseline else { return verdict };
    let counts = |column: usize| workload.trials.get(column).copied().unwrap_or_default();
    let memory = |column: usize| {
        let settings = plan.variants.get(workload.columns[column].variant).map(|of| &of.settings);
        let is_memory = |(key, _): &&(String, String)| MEMORY_SETTINGS.contains(&key.as_str());
        settings.into_iter().flatten().filter(is_memory).collect::<Vec<_>>()
    };
    let (own, other) = (counts(column), counts(baseline));
    let (trials, of_baseline) = (own.out_of_memory, other.out_of_memory);
    if trials <= of_baseline || memory(column) != memory(baseline) || verdict == ComparisonVerdict::Worse {
        return verdict;
    }
    let is_total = own.completed == 0 && own.failed == trials && of_baseline == 0;
    match is_total && trials.min(other.completed) >= PAIRS_MIN {
        true => ComparisonVerdict::OutOfMemory { trials },
        false => {
            let reason = UndecidedReason::OutOfMemory { variant: trials, baseline: of_baseline };
            ComparisonVerdict::Undecided(reason)
        }
    }
}

/// Settings of a variant that limit its memory.
const MEMORY_SETTINGS: [&str; 4] = ["memory", "memory_limit", "swap", "hog"];

/// Why the pairs of a measure would mislead, or why there are none although both variants have values.
fn find_missing(measure: &MeasureEffects, column: usize, baseline: Option<usize>) -> Option<UndecidedReason> {
    if let Some(absence) = &measure.absent {
        return Some(UndecidedReason::Absent(absence.clone()));
    }
    let (variant, baseline) = (&measure.variants[column], &measure.variants[baseline?]);
    // A round with a 0 has no pair: the others alone are a biased choice.
    if variant.values.iter().chain(&baseline.values).any(|&value| value <= 0.0) {
        return Some(UndecidedReason::ZeroValue);
    }
    let has_enough = variant.values.len().min(baseline.values.len()) >= PAIRS_MIN;
    variant.effect_absence().filter(|_| has_enough).map(|of| UndecidedReason::Absent(of.clone()))
}

/// Judges one effect.
pub fn judge_effect(effect: &Effect, loss: f64) -> ComparisonVerdict {
    /// Rounding errors of equal values.
    const ROUNDING: f64 = 1e-12;
    let limit = (1.0 + loss) * (1.0 + ROUNDING);
    let pairs = effect.pairs.pair_count();
    let reason = match badness(effect).1.filter(|_| pairs >= PAIRS_MIN) {
        _ if effect.verdict.is_void() => UndecidedReason::NotAnEffect(effect.verdict),
        None => UndecidedReason::TooFewPairs { pairs },
        Some(interval) if interval.high <= limit => return ComparisonVerdict::NotWorse,
        Some(interval) if interval.low <= limit => UndecidedReason::Interval,
        Some(_) if !effect.verdict.is_difference() => UndecidedReason::NotAnEffect(effect.verdict),
        Some(_) => return ComparisonVerdict::Worse,
    };
    ComparisonVerdict::Undecided(reason)
}
