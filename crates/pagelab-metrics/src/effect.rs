//! Effects of an experiment: the difference of each variant from the baseline, and its verdict.
//!
//! Trials of one round are a pair. A verdict needs [`PAIRS_MIN`] pairs, an interval without 1, an effect
//! larger than the difference of two equal settings on this host, and a variant whose settings were applied.

#[cfg(test)]
mod coverage;
mod difference;
mod gather;
mod looks;
mod paired;
mod student;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use difference::{median_interval, paired_difference, sort_values};
use gather::{GatheredWorkload, MeasureValues, TrialValue};
use pagelab_model::experiment::{
    BetterDirection, Contrast, Experiment, MeasureHead, Plan, PlannedVariant, TrialRole, measures,
};
use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::statistics::SampleStatistics;
use crate::sweep;

pub use difference::{DifferenceCount, DifferenceVerdict, PairedDifference, RankInterval};
pub use looks::{
    LOOK_ROUNDS, LookDecision, LookResult, decide_after_round, find_look_level, interval_level, judge_look,
};
pub use paired::{
    CONFIDENCE_LEVEL, PAIRS_DEFAULT, PAIRS_MIN, PairedRatios, RatioInterval, welch_difference, welch_ratio,
};

/// Results of all trials.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentEffects {
    /// In the order of the plan.
    pub workloads: Vec<WorkloadEffects>,
    /// The differences with an interval.
    pub differences: DifferenceCount,
}

/// Results of the trials of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadEffects {
    /// Its place in the plan.
    pub workload: usize,
    /// The variants of the measures and of `trials`: of a listed schedule all of the plan, in its order; of a
    /// grid those of the workload's points.
    pub columns: Vec<EffectColumn>,
    /// Index of the measure that judges: its own figure of merit, or else `wall`.
    pub primary_index: Option<usize>,
    /// Every measure that occurs in a trial, in order of occurrence.
    pub measures: Vec<MeasureEffects>,
    /// Confidence level of the intervals of ratios.
    pub level: f64,
    /// How the trials of each column ended.
    pub trials: Vec<TrialCounts>,
    /// Which mode of transparent huge pages is best for it; `None` if that was not varied.
    pub advice: Option<ThpAdvice>,
}

impl WorkloadEffects {
    /// The measure that judges.
    pub fn primary_measure(&self) -> Option<&MeasureEffects> {
        self.measures.get(self.primary_index?)
    }

    /// The measure with this key: its name, after the phase if it is of one.
    pub fn measure(&self, key: &str) -> Option<&MeasureEffects> {
        self.measures.iter().find(|measure| measure.has_key(key))
    }
}

/// A variant of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectColumn {
    /// Index of the variant in the plan.
    pub variant: usize,
    /// Index of the point, in a grid.
    pub point: Option<usize>,
}

/// How the trials of one variant ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialCounts {
    /// Planned and to be counted: no warm-ups, no twins.
    pub planned: usize,
    /// Ended as they should: their measures count.
    pub completed: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// Killed for want of memory; in `failed` too.
    pub out_of_memory: usize,
    /// Done, and huge pages were requested and not allocated, or it is unknown whether they were.
    pub without_huge_pages: usize,
    /// Of these, those of which it is not known.
    pub huge_pages_unknown: usize,
    /// Done, but not with the requested setting.
    pub not_applied: usize,
}

impl TrialCounts {
    /// The verdict on a ratio of trials that were not as requested, which no number of pairs makes an effect;
    /// `None` if all were.
    pub(crate) fn void_verdict(&self) -> Option<EffectVerdict> {
        let trials_counted = self.completed;
        if self.without_huge_pages > 0 {
            let (trials, unknown) = (self.without_huge_pages, self.huge_pages_unknown);
            return Some(EffectVerdict::WithoutHugePages { trials, unknown, trials_counted });
        }
        let trials = self.not_applied;
        (trials > 0).then_some(EffectVerdict::NotApplied { trials, trials_counted })
    }
}

/// One measure of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureEffects {
    /// Its head, whose fields can be read directly.
    pub head: Arc<MeasureHead>,
    /// Why it is absent, where no trial has it.
    pub absent: Option<Absence>,
    /// Difference of two equal settings on this host; absent if equal trials are equal bit by bit. The
    /// measures of a sweep share the reason.
    pub noise_floor: Result<NoiseFloor, Arc<Absence>>,
    /// One for each column of the workload.
    pub variants: Vec<VariantEffect>,
}

impl MeasureEffects {
    /// The median of a column's values.
    pub fn median(&self, column: usize) -> Option<f64> {
        Some(self.variants.get(column)?.statistics?.median)
    }

    /// The ratio of a column to the baseline.
    pub fn effect(&self, column: usize) -> Option<&Effect> {
        self.variants.get(column)?.effect()
    }
}

impl Deref for MeasureEffects {
    type Target = MeasureHead;

    fn deref(&self) -> &MeasureHead {
        &self.head
    }
}

/// One measure of one workload under one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantEffect {
    /// The values that count, by round.
    pub values: Vec<f64>,
    /// Their result; `None` without any.
    pub statistics: Option<SampleStatistics>,
    /// Against the baseline.
    pub contrast: VariantContrast,
}

/// A variant against the baseline, as its measure declares.
#[derive(Clone, Debug, PartialEq)]
pub enum VariantContrast {
    /// By ratios; `Err`: the reason for its absence.
    Ratio(Reading<Effect>),
    /// By differences.
    Difference {
        /// Interval of the median by order statistics; `None` for too few values.
        median: Option<RankInterval>,
        /// `None` for the baseline itself, and without a pair.
        difference: Option<PairedDifference>,
    },
}

impl VariantEffect {
    /// The ratio to the baseline; `None` if there is none, or differences are declared.
    pub fn effect(&self) -> Option<&Effect> {
        let VariantContrast::Ratio(effect) = &self.contrast else { return None };
        effect.as_ref().ok()
    }

    /// Why there is no ratio, where ratios are declared.
    pub fn effect_absence(&self) -> Option<&Absence> {
        let VariantContrast::Ratio(effect) = &self.contrast else { return None };
        effect.as_ref().err()
    }

    /// The difference from the baseline; `None` if there is none, or ratios are declared.
    pub fn difference(&self) -> Option<&PairedDifference> {
        let VariantContrast::Difference { difference, .. } = &self.contrast else { return None };
        difference.as_ref()
    }

    /// Interval of the median, where differences are declared.
    pub fn median_interval(&self) -> Option<RankInterval> {
        let VariantContrast::Difference { median, .. } = self.contrast else { return None };
        median
    }

    /// The geometric mean of the values and its interval by t, which needs two of them; `None` without values
    /// and where one is not above 0.
    pub fn geometric_mean(&self) -> Option<(f64, Option<RatioInterval>)> {
        let all = PairedRatios::from_logs(self.values.iter().map(|value| value.ln()));
        let is_whole = all.pair_count() == self.values.len();
        Some((all.ratio().filter(|mean| is_whole && mean.is_finite())?, all.t_interval()))
    }
}

/// A ratio of a variant to the baseline, with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// The pairs.
    pub pairs: PairedRatios,
    /// Geometric mean of the pairs' ratios, the variant's value by the baseline's.
    pub ratio: f64,
    /// By t; `None` with a single pair.
    pub interval: Option<RatioInterval>,
    /// Confidence level of the interval.
    pub level: f64,
    /// Verdict.
    pub verdict: EffectVerdict,
    /// Which direction is good.
    pub better: BetterDirection,
}

impl Effect {
    /// How many times as fast: the ratio turned so that more is better; with its interval.
    pub fn speed_up(&self) -> (f64, Option<RatioInterval>) {
        match self.better {
            BetterDirection::Higher => (self.ratio, self.interval),
            BetterDirection::Lower | BetterDirection::Neither => {
                (1.0 / self.ratio, self.interval.map(|found| found.inverse()))
            }
        }
    }

    /// The share of the baseline's time, misses or bytes that is saved, negative where more is needed:
    /// 1 − ratio, and for what counts work in a time, 1 − 1 / ratio. Times 100 it is what reports call per
    /// cent faster.
    pub fn saved_share(&self) -> f64 {
        1.0 - 1.0 / self.speed_up().0
    }
}

impl ExperimentEffects {
    /// Judges the completed part of an experiment.
    pub fn from_experiment(experiment: &Experiment) -> ExperimentEffects {
        let plan = &experiment.plan;
        let gathered = gather::gather_workloads(experiment);
        let level = interval_level(experiment);
        let floors = pool_twin_pairs(&gathered, plan.baseline);
        let no_floor = Arc::new(Absence::new(
            "the noise floor",
            AbsenceReason::Undefined,
            "trials are paired by seed, and repeated trials are bit-identical",
        ));
        let judge = |(workload, gathered): (usize, GatheredWorkload)| {
            judge_workload((plan, level), workload, gathered, &floors, &no_floor)
        };
        let workloads: Vec<WorkloadEffects> = gathered.into_iter().enumerate().map(judge).collect();
        let mut differences = DifferenceCount::default();
        let columns = workloads.iter().flat_map(|of| &of.measures).flat_map(|measure| &measure.variants);
        columns
            .filter_map(|variant| variant.difference()?.interval)
            .for_each(|interval| differences.add(interval));
        ExperimentEffects { workloads, differences }
    }
}

fn judge_workload(
    (plan, level): (&Plan, f64),
    workload: usize,
    gathered: GatheredWorkload,
    floors: &HashMap<String, PairedRatios>,
    no_floor: &Arc<Absence>,
) -> WorkloadEffects {
    let GatheredWorkload { columns, trials, measures } = gathered;
    let baseline = baseline_column(&columns, plan.baseline);
    let effects = |of: &MeasureValues| {
        let (variants, noise_floor) = match of.head.contrast {
            Contrast::Ratio => {
                let floor =
                    NoiseFloor::from_twins(&twin_pairs(&of.rows, baseline), floors.get(&of.head.name));
                (judge_ratios((of, level), baseline, &trials, floor.as_ref().ok()), floor.map_err(Arc::new))
            }
            Contrast::Difference => {
                (judge_differences(&of.rows, baseline, trials.len()), Err(no_floor.clone()))
            }
        };
        MeasureEffects { head: of.head.clone(), absent: of.absent.clone(), noise_floor, variants }
    };
    let measures: Vec<MeasureEffects> = measures.iter().map(effects).collect();
    let has_values = |of: &MeasureEffects| of.variants.iter().any(|variant| !variant.values.is_empty());
    let judging_index =
        |key: &str| measures.iter().position(|of| of.has_key(key) && of.absent.is_none() && has_values(of));
    let merit = plan.workloads[workload].merit.as_deref();
    let primary_index = match plan.is_simulated() {
        true => sweep::find_leading_figure(measures.iter().map(|measure| measure.name.as_str())),
        false => merit.and_then(judging_index).or_else(|| judging_index(measures::WALL)),
    };
    let advice = None;
    let mut effects = WorkloadEffects { workload, columns, primary_index, measures, level, trials, advice };
    effects.advice = advise(plan, &effects);
    effects
}

fn mean_logs_by_round<'a>(rows: impl Iterator<Item = &'a TrialValue>) -> BTreeMap<u32, f64> {
    let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(row.round).or_default();
        *sum = (sum.0 + row.value.ln(), sum.1 + 1.0);
    }
    sums.into_iter().map(|(round, (sum, count))| (round, sum / count)).collect()
}

/// Pairs of the rounds that both have, in the order of rounds. A value that is not above 0 has no logarithm,
/// so its round has no pair.
fn pair_rounds(variant_logs: &BTreeMap<u32, f64>, baseline_logs: &BTreeMap<u32, f64>) -> PairedRatios {
    PairedRatios::from_rounds(
        variant_logs.iter().filter_map(|(round, log)| Some((*round, log - baseline_logs.get(round)?))),
    )
}

fn measured_values(rows: &[TrialValue], column: usize) -> impl Iterator<Item = &TrialValue> {
    rows.iter().filter(move |row| row.role == TrialRole::Measured && row.column == column)
}

fn twin_pairs(rows: &[TrialValue], baseline: Option<usize>) -> PairedRatios {
    let twins = mean_logs_by_round(rows.iter().filter(|row| row.role == TrialRole::Twin));
    pair_rounds(&twins, &baseline_logs(rows, baseline))
}

fn baseline_logs(rows: &[TrialValue], baseline: Option<usize>) -> BTreeMap<u32, f64> {
    baseline.map_or(BTreeMap::new(), |baseline| mean_logs_by_round(measured_values(rows, baseline)))
}

/// The column of the baseline variant.
pub(crate) fn baseline_column(columns: &[EffectColumn], baseline: Option<usize>) -> Option<usize> {
    columns.iter().position(|column| Some(column.variant) == baseline)
}

/// Floors by measure, of the pairs of twins of all workloads together: for workloads that have too few.
fn pool_twin_pairs(gathered: &[GatheredWorkload], baseline: Option<usize>) -> HashMap<String, PairedRatios> {
    let mut pooled: HashMap<String, Vec<f64>> = HashMap::new();
    for workload in gathered {
        let baseline = baseline_column(&workload.columns, baseline);
        for measure in workload.measures.iter().filter(|of| of.head.contrast == Contrast::Ratio) {
            let pairs = twin_pairs(&measure.rows, baseline);
            pooled.entry(measure.head.name.clone()).or_default().extend(pairs.ratios().map(f64::ln));
        }
    }
    pooled.into_iter().map(|(name, logs)| (name, PairedRatios::from_logs(logs))).collect()
}

fn judge_ratios(
    (measure_values, level): (&MeasureValues, f64),
    baseline: Option<usize>,
    trials: &[TrialCounts],
    floor: Option<&NoiseFloor>,
) -> Vec<VariantEffect> {
    let baseline_logs = baseline_logs(&measure_values.rows, baseline);
    let variant = |column: usize| {
        let mut rows: Vec<&TrialValue> = measured_values(&measure_values.rows, column).collect();
        rows.sort_by_key(|row| row.round);
        let values: Vec<f64> = rows.iter().map(|row| row.value).collect();
        let effect = match Some(column) == baseline {
            true => Err(no_ratio("this is the baseline")),
            false => {
                let pairs = pair_rounds(&mean_logs_by_round(rows.iter().copied()), &baseline_logs);
                judge_effect((pairs, level), measure_values.head.better, &values, floor, &trials[column])
            }
        };
        let statistics = SampleStatistics::from_samples(values.clone());
        VariantEffect { statistics, values, contrast: VariantContrast::Ratio(effect) }
    };
    (0..trials.len()).map(variant).collect()
}

fn judge_differences(rows: &[TrialValue], baseline: Option<usize>, columns: usize) -> Vec<VariantEffect> {
    let mut by_column: Vec<Vec<(u32, f64)>> = vec![Vec::new(); columns];
    for row in rows.iter().filter(|row| row.role == TrialRole::Measured) {
        by_column[row.column].push((row.round, row.value));
    }
    by_column.iter_mut().for_each(|values| values.sort_by_key(|(round, _)| *round));
    let baseline_values = baseline.map(|baseline| &by_column[baseline]);
    let variant = |(column, values): (usize, &Vec<(u32, f64)>)| {
        let sorted = sort_values(values.iter().map(|&(_, value)| value));
        let median = median_interval(&sorted);
        let difference = baseline_values
            .filter(|_| Some(column) != baseline)
            .and_then(|baseline| paired_difference(values, baseline));
        VariantEffect {
            values: values.iter().map(|&(_, value)| value).collect(),
            statistics: SampleStatistics::from_samples(sorted),
            contrast: VariantContrast::Difference { median, difference },
        }
    };
    by_column.iter().enumerate().map(variant).collect()
}

fn judge_effect(
    (pairs, level): (PairedRatios, f64),
    better: BetterDirection,
    values: &[f64],
    floor: Option<&NoiseFloor>,
    counts: &TrialCounts,
) -> Reading<Effect> {
    let Some(ratio) = pairs.ratio() else {
        return Err(no_ratio(match values {
            [] => "no trial of this variant has a value",
            values if values.iter().any(|&value| value <= 0.0) => "a value is 0 or negative",
            _ => "no pair of values above 0",
        }));
    };
    if !(1.0 / paired::RATIO_MAX..=paired::RATIO_MAX).contains(&ratio) {
        return Err(no_ratio("the ratio is out of range"));
    }
    let interval = pairs.t_interval_at(level);
    let verdict = judge_ratio(&pairs, interval, better, floor, counts);
    Ok(Effect { ratio, interval, level, verdict, better, pairs })
}

fn no_ratio(reason: &str) -> Absence {
    Absence::new("the ratio to the baseline", AbsenceReason::Undefined, reason)
}

/// Difference of two equal settings on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseFloor {
    /// The largest ratio, above 1, that the interval of the pairs of twins reaches on either side: 1.03 means
    /// that equals look up to 3 % apart.
    pub ratio: f64,
    /// How many pairs of twins it is from.
    pub pairs: usize,
    /// Whether they are of all workloads together, since this one has too few.
    pub is_pooled: bool,
}

impl NoiseFloor {
    /// The floor from the pairs of twins of a workload, or else from those of all workloads.
    fn from_twins(twin_pairs: &PairedRatios, pooled: Option<&PairedRatios>) -> Reading<NoiseFloor> {
        let floor = |pairs: &PairedRatios, is_pooled: bool| {
            let interval = pairs.t_interval().filter(|_| pairs.pair_count() >= PAIRS_MIN)?;
            let ratio = interval.high.max(1.0 / interval.low);
            Some(NoiseFloor { ratio, pairs: pairs.pair_count(), is_pooled })
        };
        let noise_floor = floor(twin_pairs, false).or_else(|| floor(pooled?, true));
        noise_floor.ok_or_else(|| {
            let pairs = pooled.map_or(twin_pairs.pair_count(), PairedRatios::pair_count);
            let detail = match pairs {
                0 => "the baseline was not run twice in any round".to_owned(),
                1 => format!("1 pair of equal runs, {PAIRS_MIN} needed"),
                _ => format!("{pairs} pairs of equal runs, {PAIRS_MIN} needed"),
            };
            Absence::new("the noise floor", AbsenceReason::Undefined, detail)
                .with_hint("run more rounds with a second baseline trial")
        })
    }

    /// Whether a ratio is no further from 1 than equals are.
    pub fn covers(&self, ratio: f64) -> bool {
        ratio.max(1.0 / ratio) <= self.ratio
    }
}

/// Result of the pairs of a variant and the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectVerdict {
    /// Fewer pairs than a verdict needs.
    TooFew {
        /// How many there are.
        pairs: usize,
    },
    /// Huge pages were requested and not allocated in all trials: the ratio is no effect of huge pages.
    WithoutHugePages {
        /// Trials in which they were not allocated, or not observed.
        trials: usize,
        /// Of these, those of which it is not known.
        unknown: usize,
        /// Trials that count.
        trials_counted: usize,
    },
    /// A setting was not the requested one: the ratio is no effect of the variant.
    NotApplied {
        /// Trials in which it was not.
        trials: usize,
        /// Trials that count.
        trials_counted: usize,
    },
    /// The interval contains 1.
    NoDifference,
    /// There may be a difference, and it is not known well enough.
    Undecided(DoubtReason),
    /// Less of what should be little, or more of what should be much.
    Better,
    /// The other way around.
    Worse,
    /// More or less of something that is neither good nor bad.
    Differs,
}

impl EffectVerdict {
    /// Whether trials were not as requested, so that the ratio is no effect of the variant.
    pub fn is_void(self) -> bool {
        matches!(self, EffectVerdict::WithoutHugePages { .. } | EffectVerdict::NotApplied { .. })
    }

    /// Whether a difference was found.
    pub fn is_difference(self) -> bool {
        matches!(self, EffectVerdict::Better | EffectVerdict::Worse | EffectVerdict::Differs)
    }

    /// The verdict on a ratio whose interval does not contain 1.
    pub(crate) fn from_interval(better: BetterDirection, interval: RatioInterval) -> EffectVerdict {
        match (better, interval.low > 1.0) {
            (BetterDirection::Neither, _) => EffectVerdict::Differs,
            (BetterDirection::Higher, true) | (BetterDirection::Lower, false) => EffectVerdict::Better,
            (BetterDirection::Higher, false) | (BetterDirection::Lower, true) => EffectVerdict::Worse,
        }
    }
}

/// Why nothing is decided although the interval does not contain 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoubtReason {
    /// The effect is no larger than what equals show on this host.
    InsideFloor,
    /// The interval by ranks contains 1: a few pairs far from the others decide.
    Outliers,
}

fn judge_ratio(
    pairs: &PairedRatios,
    interval: Option<RatioInterval>,
    better: BetterDirection,
    floor: Option<&NoiseFloor>,
    counts: &TrialCounts,
) -> EffectVerdict {
    if let Some(verdict) = counts.void_verdict() {
        return verdict;
    }
    let count = pairs.pair_count();
    let Some(interval) = interval.filter(|_| count >= PAIRS_MIN) else {
        return EffectVerdict::TooFew { pairs: count };
    };
    if interval.contains(1.0) {
        return EffectVerdict::NoDifference;
    }
    if pairs.rank_interval().is_some_and(|(ranks, _)| ranks.contains(1.0)) {
        return EffectVerdict::Undecided(DoubtReason::Outliers);
    }
    if floor.is_some_and(|floor| pairs.ratio().is_some_and(|ratio| floor.covers(ratio))) {
        return EffectVerdict::Undecided(DoubtReason::InsideFloor);
    }
    EffectVerdict::from_interval(better, interval)
}

/// The mode that serves a program best, by its own figure of merit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpAdvice {
    /// Huge pages everywhere: faster than where the program asks for them.
    Always,
    /// Huge pages where the program asks for them: no slower than everywhere.
    Madvise,
    /// Huge pages cost more than they give.
    Never,
    /// It runs alike with and without.
    NoDifference,
    /// Too few pairs to decide.
    TooFew,
    /// No variant had the huge pages that it requested.
    NotAllocated,
    /// There may be a difference, and it is not known well enough.
    Undecided,
}

/// The mode that a variant sets: `never`, `madvise` or `always`; `None` if it sets none.
pub fn thp_mode(variant: &PlannedVariant) -> Option<&'static str> {
    let (_, value) = variant.settings.iter().find(|(key, _)| key == "thp")?;
    // `never-prctl` is never by another way, `advised-only` is madvise by another way.
    let words = [("never", "never"), ("advise", "madvise"), ("always", "always")];
    words.into_iter().find(|(word, _)| value.contains(word)).map(|(_, mode)| mode)
}

/// The advice where the baseline is without huge pages and others are with them.
fn advise(plan: &Plan, workload: &WorkloadEffects) -> Option<ThpAdvice> {
    let modes: Vec<Option<&str>> = plan.variants.iter().map(thp_mode).collect();
    if plan.baseline.and_then(|baseline| modes.get(baseline).copied().flatten()) != Some("never") {
        return None;
    }
    let others = |wanted: &'static str| modes.iter().position(move |mode| *mode == Some(wanted));
    let (always, madvise) = (others("always"), others("madvise"));
    if always.is_none() && madvise.is_none() {
        return None;
    }
    let judged = workload.primary_measure()?;
    let [always, madvise] = [always, madvise].map(|variant| judged.effect(variant?));
    let verdicts = [always, madvise].map(|effect| Some(effect?.verdict));
    Some(match verdicts {
        [Some(EffectVerdict::Better), Some(EffectVerdict::Better)] => match always.zip(madvise) {
            Some((one, other)) if is_better(&one.pairs, &other.pairs, one.ratio < 1.0) => ThpAdvice::Always,
            _ => ThpAdvice::Madvise,
        },
        [Some(EffectVerdict::Better), _] => ThpAdvice::Always,
        [_, Some(EffectVerdict::Better)] => ThpAdvice::Madvise,
        _ => advise_without_gain(&verdicts),
    })
}

/// Whether the first of two ratios to the same baseline is better by more than its interval.
fn is_better(first: &PairedRatios, other: &PairedRatios, lower_is_better: bool) -> bool {
    let between = first.relative_to(other);
    let is_better = |found: RatioInterval| if lower_is_better { found.high < 1.0 } else { found.low > 1.0 };
    between.pair_count() >= PAIRS_MIN && between.t_interval().is_some_and(is_better)
}

fn advise_without_gain(verdicts: &[Option<EffectVerdict>]) -> ThpAdvice {
    let known: Vec<EffectVerdict> = verdicts.iter().flatten().copied().collect();
    // An arm without huge pages proves nothing; the other one may.
    let is_without = |verdict: &EffectVerdict| matches!(verdict, EffectVerdict::WithoutHugePages { .. });
    let said: Vec<EffectVerdict> = known.iter().copied().filter(|verdict| !is_without(verdict)).collect();
    match said.as_slice() {
        [] if !known.is_empty() => ThpAdvice::NotAllocated,
        [] => ThpAdvice::Undecided,
        all if all.contains(&EffectVerdict::Worse) => ThpAdvice::Never,
        all if all.iter().any(|verdict| matches!(verdict, EffectVerdict::TooFew { .. })) => ThpAdvice::TooFew,
        all if all.iter().all(|verdict| *verdict == EffectVerdict::NoDifference) => ThpAdvice::NoDifference,
        _ => ThpAdvice::Undecided,
    }
}
