//! Memory need of a program: from its times under a decreasing limit to its need for at most 5 % loss, the
//! knee, and the limit below which it is killed.
//!
//! Trials of one round are compared with the one under the largest limit, on logarithms, as effects are
//! ([`crate::effect`]). The interval of the need holds for any curve between the tested limits, as long as
//! less memory is never faster: its ends are limits of the experiment. They are found by tests in a fixed
//! order (Hsu and Berger 1999, "Stepwise confidence intervals without multiplicity adjustment for
//! dose-response and toxicity studies"): from the smallest limit up as long as the interval of the loss is
//! above the acceptable loss, and from the largest limit down as long as it is below. Each of the two
//! sequences errs in 2.5 % of experiments at most, for any number of limits, because it stops at the first
//! test that does not reject; `memory_need/coverage.rs` verifies that by simulation. The number between the
//! ends is where the monotone fit crosses the loss, interpolated linearly between two limits in logarithms.

#[cfg(test)]
mod coverage;

use std::collections::BTreeMap;

use pagelab_model::experiment::{
    BetterDirection, Experiment, Flag, PlannedVariant, TrialEnd, TrialRole, measures,
};
use pagelab_model::{Bytes, size};

use crate::effect::{ExperimentEffects, PAIRS_MIN, PairedRatios, RatioInterval};

/// SIGKILL, which is how the kernel ends a process for want of memory.
const SIGKILL: i32 = 9;

/// One workload under limits of memory that differ in nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryCurve {
    /// Its place in the plan.
    pub workload: usize,
    /// The name of the measure that judges.
    pub measure: String,
    /// The settings that its variants have besides, by key.
    pub common: Vec<(String, String)>,
    /// The requested loss: 0.05 is 1.05 times the time for the same work.
    pub loss: f64,
    /// Rounds in which the largest limit was measured.
    pub rounds: usize,
    /// The limits that were tried, ascending.
    pub points: Vec<LimitPoint>,
    /// How much is needed.
    pub memory_need: Result<MemoryNeed, NeedUnknown>,
    /// Place of the limit below which each step costs more than before.
    pub knee: Result<usize, KneeAbsence>,
    /// Where it dies.
    pub fatal_limits: Option<FatalLimits>,
    /// Places of two limits of which the larger one is slower, beyond both intervals: the fit levels it out.
    pub contradiction: Option<(usize, usize)>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitPoint {
    /// Its variant.
    pub variant: usize,
    /// Limit; `None`: a variant without one, which is above all.
    pub limit: Option<Bytes>,
    /// Trials that ended as they should.
    pub completed: usize,
    /// Trials that were killed by the OOM killer, or took longer than they may: endless time.
    pub fatal: usize,
    /// Those of the dead that took longer than they may.
    pub timed_out: usize,
    /// Trials that ended otherwise, which say nothing of memory.
    pub failed: usize,
    /// Time for the same work by that under the largest limit, round by round; of that itself none.
    pub pairs: PairedRatios,
    /// The interval of their ratio, by t.
    pub interval: Option<RatioInterval>,
    /// By the monotone fit, as a ratio; `None` if it died or was not measured.
    pub fitted_ratio: Option<f64>,
}

/// How much memory is needed for at most the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryNeed {
    /// Limit at which the fit crosses the loss, bytes; `None` if the smallest limit is enough, or only no
    /// limit is.
    pub estimate: Option<f64>,
    /// The largest limit that was shown to be too little; `None`: none was.
    pub largest_insufficient: Option<usize>,
    /// The smallest limit that was shown to be enough. The largest of all is by definition.
    pub smallest_sufficient: usize,
}

/// Why no need is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedUnknown {
    /// There is nothing to compare with.
    OneLimit,
    /// It dies under every limit.
    FatalEverywhere,
    /// It dies under the largest limit, though not under all.
    FatalAtLargest,
    /// Nothing was measured under the largest limit.
    NotMeasuredAtLargest,
    /// Fewer rounds than a verdict needs.
    TooFew {
        /// How many there are.
        rounds: usize,
    },
}

/// Where it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalLimits {
    /// The largest limit under which it did.
    pub largest_fatal: usize,
    /// The next larger one, under which it lived each time.
    pub next_survived: Option<usize>,
    /// A smaller limit under which it lived each time all the same.
    pub smaller_survived: Option<usize>,
}

impl LimitPoint {
    /// The ratio to the largest limit: the geometric mean over rounds.
    pub fn ratio(&self) -> Option<f64> {
        self.pairs.ratio()
    }

    /// The interval, where a verdict may rest on it.
    fn tested_interval(&self) -> Option<RatioInterval> {
        self.interval.filter(|_| self.fatal == 0 && self.pairs.pair_count() >= PAIRS_MIN)
    }
}

/// The curves of an experiment, by workload: one for each set of variants that differ in the limit alone.
pub fn memory_curves(experiment: &Experiment, effects: &ExperimentEffects) -> Vec<MemoryCurve> {
    let plan = &experiment.plan;
    let loss = plan.accepted_loss();
    let axes = find_axes(&plan.variants);
    let of_workload = |workload: usize| {
        let effects = effects.workloads.iter().find(|of| of.workload == workload);
        let judged =
            effects.and_then(|of| of.primary_measure()).filter(|of| of.better != BetterDirection::Neither);
        let measure = judged.map_or(measures::WALL, |of| of.name.as_str());
        let better = judged.map_or(BetterDirection::Lower, |of| of.better);
        let has_slot = |variant: usize| {
            plan.schedule.iter().any(|slot| slot.workload == workload && slot.variant == variant)
        };
        axes.iter()
            .filter_map(move |(common, limited_variants)| {
                let all = limited_variants.iter().filter(|(variant, _)| has_slot(*variant));
                let trials: Vec<LimitTrials> = all
                    .map(|&(variant, limit)| {
                        gather_trials(experiment, workload, variant, limit, measure, better)
                    })
                    .collect();
                let has_limit = trials.iter().any(|(point, _)| point.limit.is_some());
                has_limit.then(|| {
                    MemoryCurve::from_trials(workload, measure.to_owned(), common.clone(), loss, trials)
                })
            })
            .collect::<Vec<MemoryCurve>>()
    };
    (0..plan.workloads.len()).flat_map(of_workload).collect()
}

/// The trials under one limit, counted, and the logarithms of the time for the same work, by round.
type LimitTrials = (LimitPoint, BTreeMap<u32, f64>);

fn gather_trials(
    experiment: &Experiment,
    workload: usize,
    variant: usize,
    limit: Option<Bytes>,
    name: &str,
    better: BetterDirection,
) -> LimitTrials {
    let mut point = LimitPoint { variant, limit, ..LimitPoint::default() };
    let mut logs = BTreeMap::new();
    for trial in &experiment.trials {
        let Some(slot) = experiment.plan.schedule.get(trial.slot) else { continue };
        if slot.role != TrialRole::Measured || (slot.workload, slot.variant) != (workload, variant) {
            continue;
        }
        // A measurement under another limit than the requested one does not count for this one.
        if trial.flags.iter().any(|flag| flag.kind == Flag::NOT_APPLIED) {
            point.failed += 1;
            continue;
        }
        match trial.end {
            TrialEnd::Done => {}
            TrialEnd::OutOfMemory | TrialEnd::TimedOut(_) | TrialEnd::Killed(SIGKILL) => {
                point.fatal += 1;
                point.timed_out += usize::from(matches!(trial.end, TrialEnd::TimedOut(_)));
                continue;
            }
            TrialEnd::Stopped => continue,
            _ => {
                point.failed += 1;
                continue;
            }
        }
        let value = trial.measures.iter().find(|measure| measure.name == name);
        let log = value.and_then(|measure| measure.value.as_ref().ok()).map(|value| value.ln());
        match log.filter(|log| log.is_finite()) {
            Some(log) => {
                // Work in a time: its inverse is time for the same work.
                logs.insert(slot.round, if better == BetterDirection::Higher { -log } else { log });
                point.completed += 1;
            }
            None => point.failed += 1,
        }
    }
    (point, logs)
}

impl MemoryCurve {
    fn from_trials(
        workload: usize,
        measure: String,
        common: Vec<(String, String)>,
        loss: f64,
        trials: Vec<LimitTrials>,
    ) -> MemoryCurve {
        let largest_logs = trials.last().map(|(_, logs)| logs.clone()).unwrap_or_default();
        let last = trials.len().saturating_sub(1);
        let place = |(at, (point, logs)): (usize, LimitTrials)| {
            let compared_logs = logs.iter().filter(|_| at != last);
            let pairs =
                compared_logs.filter_map(|(round, log)| Some((*round, log - largest_logs.get(round)?)));
            let pairs = PairedRatios::from_rounds(pairs);
            LimitPoint { interval: pairs.t_interval(), pairs, ..point }
        };
        let places = trials.into_iter().enumerate().map(place).collect();
        MemoryCurve::from_points(workload, measure, common, loss, largest_logs.len(), places)
    }

    fn from_points(
        workload: usize,
        measure: String,
        common: Vec<(String, String)>,
        loss: f64,
        rounds: usize,
        mut places: Vec<LimitPoint>,
    ) -> MemoryCurve {
        fit_points(&mut places, rounds);
        let dies = find_fatal_limits(&places);
        MemoryCurve {
            workload,
            measure,
            common,
            loss,
            rounds,
            memory_need: why_unknown(&places, rounds).map_or_else(|| Ok(find_need(&places, loss, dies)), Err),
            knee: find_knee(&places, loss, rounds),
            fatal_limits: dies,
            contradiction: find_contradiction(&places),
            points: places,
        }
    }
}

/// The monotone fit: the non-increasing curve that is nearest to the mean logarithms, and no loss at the
/// largest limit.
fn fit_points(places: &mut [LimitPoint], rounds: usize) {
    let Some((largest, others)) = places.split_last_mut() else { return };
    let mut known: Vec<&mut LimitPoint> =
        others.iter_mut().filter(|place| place.fatal == 0 && place.pairs.pair_count() > 0).collect();
    let means: Vec<(f64, f64)> = known
        .iter()
        .map(|place| (place.ratio().map_or(0.0, f64::ln), place.pairs.pair_count() as f64))
        .collect();
    for (place, fitted) in known.iter_mut().zip(fit_non_increasing(&means)) {
        place.fitted_ratio = Some(fitted.max(0.0).exp());
    }
    if rounds > 0 && largest.fatal == 0 {
        largest.fitted_ratio = Some(1.0);
    }
}

fn find_fatal_limits(places: &[LimitPoint]) -> Option<FatalLimits> {
    let at = places.iter().rposition(|place| place.fatal > 0)?;
    let lives = |place: &LimitPoint| place.fatal == 0 && place.completed > 0;
    let lives_at = (at + 1..places.len()).find(|&place| lives(&places[place]));
    let lives_below = places[..at].iter().rposition(lives);
    Some(FatalLimits { largest_fatal: at, next_survived: lives_at, smaller_survived: lives_below })
}

fn why_unknown(places: &[LimitPoint], rounds: usize) -> Option<NeedUnknown> {
    let (largest, others) = places.split_last()?;
    let dies = |place: &LimitPoint| place.fatal > 0;
    let was_tried = |place: &LimitPoint| place.completed + place.fatal > 0;
    if dies(largest) {
        let is_everywhere =
            others.iter().filter(|place| was_tried(place)).all(|place| dies(place) && place.completed == 0);
        return Some(match is_everywhere && largest.completed == 0 {
            true => NeedUnknown::FatalEverywhere,
            false => NeedUnknown::FatalAtLargest,
        });
    }
    if rounds == 0 {
        return Some(NeedUnknown::NotMeasuredAtLargest);
    }
    if !others.iter().any(was_tried) {
        return Some(NeedUnknown::OneLimit);
    }
    (rounds < PAIRS_MIN).then_some(NeedUnknown::TooFew { rounds })
}

/// The two sequences of tests, and where the fit crosses the loss.
fn find_need(places: &[LimitPoint], loss: f64, dies: Option<FatalLimits>) -> MemoryNeed {
    let ratio_max = 1.0 + loss;
    let last = places.len() - 1;
    // From the smallest limit up. Where it died, no test is needed: endless is more than any loss.
    let is_too_little = |place: &LimitPoint| {
        place.fatal > 0 || place.tested_interval().is_some_and(|interval| interval.low > ratio_max)
    };
    let up = places[..last].iter().take_while(|place| is_too_little(place)).count();
    let largest_insufficient = up.checked_sub(1).max(dies.map(|dies| dies.largest_fatal));
    // From the largest one down.
    let is_enough =
        |place: &LimitPoint| place.tested_interval().is_some_and(|interval| interval.high <= ratio_max);
    let smallest_sufficient = last - places[..last].iter().rev().take_while(|place| is_enough(place)).count();
    let estimate = estimate_need(places, ratio_max, dies);
    MemoryNeed { estimate, largest_insufficient, smallest_sufficient }
}

fn estimate_need(places: &[LimitPoint], ratio_max: f64, dies: Option<FatalLimits>) -> Option<f64> {
    let from = dies.map_or(0, |dies| dies.largest_fatal + 1);
    let known = |place: &usize| places[*place].fitted_ratio.is_some();
    let is_enough = |place: &usize| places[*place].fitted_ratio.is_some_and(|fitted| fitted <= ratio_max);
    let enough = (from..places.len()).find(is_enough)?;
    let limit = places[enough].limit?.0 as f64;
    let below = (from..enough).rev().find(known);
    let Some(below) = below else {
        // The range between it and the limit at which the program dies is unknown; if it dies nowhere, less
        // memory may also suffice.
        return dies.map(|_| limit);
    };
    let (less, fitted) =
        (places[below].limit?.0 as f64, [places[below].fitted_ratio?, places[enough].fitted_ratio?]);
    let [high, low] = fitted.map(f64::ln);
    let fraction = if high > low { (ratio_max.ln() - low) / (high - low) } else { 0.0 };
    Some((limit.ln() + (less.ln() - limit.ln()) * fraction).exp())
}

/// The first two limits that contradict that less memory is never faster.
fn find_contradiction(places: &[LimitPoint]) -> Option<(usize, usize)> {
    let no_loss = RatioInterval { low: 1.0, high: 1.0 };
    let last = places.len().checked_sub(1)?;
    let tested = |at: usize| if at == last { Some(no_loss) } else { places[at].tested_interval() };
    let larger = |less: usize| {
        let is_faster =
            |&more: &usize| tested(less).zip(tested(more)).is_some_and(|(less, more)| less.high < more.low);
        Some((less, (less + 1..=last).find(is_faster)?))
    };
    (0..last).find_map(larger)
}

/// The key of the limit.
pub const LIMIT_KEY: &str = "memory_limit";
/// The key of a variant in which nothing is set.
const NO_SETTINGS_KEY: &str = "nothing";

/// Variants with the same other settings: these by key, and variant and limit, ascending; without a limit is
/// the most.
type LimitAxis = (Vec<(String, String)>, LimitedVariants);

type LimitedVariants = Vec<(usize, Option<Bytes>)>;

/// The axes of an experiment: sets of two limits or more, and a single one if there is nothing else.
fn find_axes(variants: &[PlannedVariant]) -> Vec<LimitAxis> {
    let mut found: BTreeMap<Vec<(String, String)>, LimitedVariants> = BTreeMap::new();
    for (variant, head) in variants.iter().enumerate() {
        let text = head.settings.iter().find(|(key, _)| key == LIMIT_KEY).map(|(_, value)| value);
        let limit = match text.map(|text| size::parse_nonzero(text)) {
            None => None,
            Some(Ok(limit)) => Some(limit),
            // An unreadable limit has no position on an axis.
            Some(Err(_)) => continue,
        };
        let others = head.settings.iter().filter(|(key, _)| key != LIMIT_KEY && key != NO_SETTINGS_KEY);
        let mut common: Vec<(String, String)> = others.cloned().collect();
        common.sort();
        let places = found.entry(common).or_default();
        // Of two variants that say the same, the first one counts.
        if !places.iter().any(|(_, known)| *known == limit) {
            places.push((variant, limit));
        }
    }
    let has_limit = |places: &LimitedVariants| places.iter().any(|(_, limit)| limit.is_some());
    let mut all: Vec<LimitAxis> = found.into_iter().filter(|(_, places)| has_limit(places)).collect();
    if all.iter().any(|(_, places)| places.len() > 1) || variants.len() > 1 {
        all.retain(|(_, places)| places.len() > 1);
    }
    for (_, places) in &mut all {
        places.sort_by_key(|(_, limit)| limit.map_or(u64::MAX, |limit| limit.0));
    }
    // As in the recipe.
    all.sort_by_key(|(_, places)| places.iter().map(|(variant, _)| *variant).min());
    all
}
/// The non-increasing values that are nearest to these by weighted squares, for each of them. Each is a value
/// and its weight, which is above 0.
fn fit_non_increasing(values: &[(f64, f64)]) -> Vec<f64> {
    // Blocks of mean, weight and how many values they hold.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len());
    for &(value, weight) in values {
        let mut block = (value, weight, 1);
        while let Some(&(mean, before, count)) = blocks.last().filter(|(mean, ..)| *mean < block.0) {
            blocks.pop();
            let sum = before + block.1;
            block = ((mean * before + block.0 * block.1) / sum, sum, count + block.2);
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|(mean, _, count)| std::iter::repeat_n(mean, count)).collect()
}

// Knee of a curve over a decreasing limit: Kneedle (Satopaa, Albrecht, Irwin and Raghavan 2011, "Finding a
// 'Kneedle' in a Haystack") over few points that are already smooth, by the monotone fit.

/// Limits under which it lived that a knee needs: two ends, and two to choose from.
const POINTS_MIN: usize = 4;
/// The least distance from the straight line, as a part of the picture: less is a line with noise.
const DISTANCE_MIN: f64 = 0.1;

/// Why there is no knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KneeAbsence {
    /// Fewer rounds than a verdict needs.
    TooFewRounds,
    /// Fewer than four limits under which it lived.
    TooFewLimits,
    /// It never loses more than the requested loss.
    NoLoss,
    /// It loses evenly: each step as much as the one before, or less.
    Straight,
}

/// The point furthest below the straight line from the smallest limit under which it lives to the largest, in
/// a picture in which both logarithms, of the limit and of the time, go from 0 to 1.
fn find_knee(places: &[LimitPoint], loss: f64, rounds: usize) -> Result<usize, KneeAbsence> {
    if rounds < PAIRS_MIN {
        return Err(KneeAbsence::TooFewRounds);
    }
    let to_point = |(at, place): (usize, &LimitPoint)| {
        Some((at, (place.limit?.0 as f64).ln(), place.fitted_ratio?.ln()))
    };
    // Below a limit under which it was killed, times are not part of the curve.
    let from = places.iter().rposition(|place| place.fatal > 0).map_or(0, |at| at + 1);
    let points: Vec<(usize, f64, f64)> = places.iter().enumerate().skip(from).filter_map(to_point).collect();
    let (&[(_, left, top), .., (_, right, bottom)], true) = (&points[..], points.len() >= POINTS_MIN) else {
        return Err(KneeAbsence::TooFewLimits);
    };
    if top - bottom <= loss.ln_1p() {
        return Err(KneeAbsence::NoLoss);
    }
    let distance_to_line = |&(_, x, y): &(usize, f64, f64)| {
        let (across, up) = ((x - left) / (right - left), (y - bottom) / (top - bottom));
        1.0 - across - up
    };
    let furthest =
        points.iter().max_by(|one, other| distance_to_line(one).total_cmp(&distance_to_line(other)));
    furthest
        .filter(|point| distance_to_line(point) >= DISTANCE_MIN)
        .map(|point| point.0)
        .ok_or(KneeAbsence::Straight)
}

#[cfg(test)]
mod tests;
