//! Verdict on huge pages for a program, from the trials without, with a plan's, and with all of them.
//!
//! This module computes no intervals: the ratios, floors and verdicts are those of [`crate::effect`]. It adds
//! the order of their reliability, and the comparison of the plan with all: a plan is never called faster
//! than all unless their own pairs show it.

use std::collections::{BTreeMap, BTreeSet};

use pagelab_model::TlbProfile;
use pagelab_model::experiment::{BetterDirection, Experiment, measures};
use pagelab_model::profile::{MappingIdentity, MappingKind, MappingProfile};
use pagelab_model::run::Unit;
use pagelab_model::time_saved::{GainShares, TimePair};
use pagelab_model::tune::{HugePageSelection, TuningRun};

use crate::effect::{
    Effect, EffectVerdict, ExperimentEffects, NoiseFloor, PAIRS_MIN, RatioInterval, WorkloadEffects,
};

/// Huge pages with a smaller gain are reported as not helping, if the whole interval is below: three per
/// cent, about the noise floor of a quiet machine.
pub const HELPFUL_SPEED_UP_MIN: f64 = 1.03;

/// Peaks of memory that differ by no more than this are one: a page of huge size more or less, what the
/// program itself allocates now so, now so.
const SAME_MEMORY_RATIO: f64 = 1.01;

/// Results of the trials of a tuning.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningResult {
    /// The verdict.
    pub verdict: TuningVerdict,
    /// The measure that the verdict is by: the program's figure, `wall`, or else `cpu`.
    pub measure: String,
    /// The unit of that measure.
    pub unit: Unit,
    /// Confidence level of the intervals.
    pub level: f64,
    /// Difference of two equal arms in that measure, if known.
    pub floor: Option<NoiseFloor>,
    /// The arms, in the order of the experiment's variants.
    pub arms: Vec<ArmResult>,
    /// The plan's value by that of all, from their own pairs: below 1 the plan takes less time.
    pub plan_to_all: Option<(f64, RatioInterval)>,
    /// The share of the gain of all that the plan has; only where all gain.
    pub gain_share: Option<f64>,
    /// Huge pages of the plan by those of all, as they were seen.
    pub huge_pages_share: Option<f64>,
}

/// Result of one arm; numbers are medians.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ArmResult {
    /// Of the measure that the verdict is by.
    pub value: Option<f64>,
    /// The smallest and the largest value of that measure, and their number.
    pub range: Option<(f64, f64, usize)>,
    /// Speed-up and its interval, against nothing on huge pages.
    pub speed_up: Option<(f64, Option<RatioInterval>)>,
    /// The verdict behind it.
    pub verdict: Option<EffectVerdict>,
    /// The same of CPU time.
    pub cpu_speed_up: Option<(f64, Option<RatioInterval>)>,
    /// CPU time, ns.
    pub cpu_ns: Option<f64>,
    /// Time, ns.
    pub wall_ns: Option<f64>,
    /// CPU time in user mode, where page walks are, ns.
    pub user_ns: Option<f64>,
    /// CPU time in the kernel, where page faults are, ns.
    pub system_ns: Option<f64>,
    /// Minor page faults.
    pub faults: Option<f64>,
    /// Huge pages at the most.
    pub huge_pages: Option<f64>,
    /// Peak memory, bytes.
    pub peak_memory: Option<f64>,
    /// Planned regions, and those on huge pages.
    pub planned_and_allocated: Option<(f64, f64)>,
    /// Speed-up that the profile predicts: the cost of walks subtracted from the time without huge pages,
    /// which is that of `never` where the program requests some itself.
    pub predicted_speed_up: Option<f64>,
    /// The same laid between the measured times of nothing and of all on huge pages, walks and page faults
    /// apart.
    pub scaled_speed_up: Option<f64>,
    /// Interval of that prediction.
    pub scaled_interval: Option<RatioInterval>,
    /// Speed-up and its interval against no huge pages at all; `None` where the program requests none itself.
    pub speed_up_from_never: Option<(f64, Option<RatioInterval>)>,
}

/// The verdict in one word; `report::tune` has the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuningVerdict {
    /// With the plan it is faster.
    PlanHelps,
    /// With the plan it is faster, with all it is faster still, and all take no more memory.
    AllHelpsMore,
    /// With all it is faster; with the plan no difference was measured, or it is slower.
    OnlyAllHelps,
    /// With huge pages it is slower.
    Slower,
    /// They do not help: even all bring less than [`HELPFUL_SPEED_UP_MIN`], and that is known.
    NoHelp,
    /// No difference was measured, and the interval is too wide to exclude one.
    NoDifference,
    /// The plan's huge pages did not come.
    NotAllocated,
    /// The profile found no cost, so nothing is planned.
    NothingPlanned,
    /// Too few rounds.
    TooFew,
    /// Something that is not known well enough.
    Undecided,
    /// No trial of some arm ended well.
    NothingMeasured,
}

impl TuningResult {
    /// Judges a tuning, whole or not.
    pub fn from_experiment(experiment: &Experiment, tune: &TuningRun) -> Option<TuningResult> {
        let effects = ExperimentEffects::from_experiment(experiment);
        let workload_effects = effects.workloads.first()?;
        let own_measure = workload_effects.primary_measure().map(|judged| judged.name.clone());
        let own = own_measure.unwrap_or_else(|| measures::WALL.to_owned());
        let mut verdict = match is_unserved(experiment, tune) {
            true => TuningVerdict::NotAllocated,
            false => judge_arms(workload_effects, tune, &own),
        };
        let mut measure = own;
        // Another program beside it moves the clock, and CPU time much less.
        let is_undecided = matches!(verdict, TuningVerdict::NoDifference | TuningVerdict::Undecided);
        if is_undecided && measure == measures::WALL {
            let by_cpu = judge_arms(workload_effects, tune, measures::CPU);
            if matches!(
                by_cpu,
                TuningVerdict::PlanHelps
                    | TuningVerdict::OnlyAllHelps
                    | TuningVerdict::Slower
                    | TuningVerdict::NoHelp
            ) {
                (verdict, measure) = (by_cpu, measures::CPU.to_owned());
            }
        }
        let mut arms: Vec<ArmResult> =
            (0..tune.arms.len()).map(|at| arm_result(workload_effects, tune, at, &measure)).collect();
        predict_arms(tune, &measure, &mut arms);
        compare_with_never(workload_effects, tune, &measure, &mut arms);
        let effect_of = |selection: HugePageSelection| {
            find_effect(workload_effects, &measure, tune.arm_index(selection)?)
        };
        let judged = workload_effects.measure(&measure);
        let unit = judged.map_or_else(|| Unit::from(Unit::COUNT), |judged| judged.unit.clone());
        let floor = judged.and_then(|judged| judged.noise_floor.as_ref().ok().cloned());
        let plan_and_all = effect_of(HugePageSelection::Plan).zip(effect_of(HugePageSelection::All));
        let level = workload_effects.level;
        let plan_to_all = plan_and_all.and_then(|(plan, all)| {
            let pairs = plan.pairs.relative_to(&all.pairs);
            let interval = pairs.t_interval_at(level).filter(|_| pairs.pair_count() >= PAIRS_MIN)?;
            // Of a figure where more is better, the other way around: time it is that is compared.
            match plan.better {
                BetterDirection::Higher => Some((1.0 / pairs.ratio()?, interval.inverse())),
                _ => Some((pairs.ratio()?, interval)),
            }
        });
        let gain_share = plan_and_all
            .filter(|(_, all)| all.verdict == EffectVerdict::Better)
            .map(|(plan, all)| plan.saved_share() / all.saved_share());
        let pages = |selection: HugePageSelection| arms.get(tune.arm_index(selection)?)?.huge_pages;
        let pages_of_both = pages(HugePageSelection::Plan).zip(pages(HugePageSelection::All));
        let huge_pages_share = pages_of_both.filter(|(_, all)| *all > 0.0).map(|(plan, all)| plan / all);
        let mut tuned = TuningResult {
            verdict,
            measure,
            unit,
            level,
            floor,
            arms,
            plan_to_all,
            gain_share,
            huge_pages_share,
        };
        if verdict == TuningVerdict::PlanHelps && tuned.is_all_better(tune) {
            tuned.verdict = TuningVerdict::AllHelpsMore;
        }
        Some(tuned)
    }

    /// Whether all memory on huge pages is known to be faster than the plan, and takes no more memory.
    fn is_all_better(&self, tune: &TuningRun) -> bool {
        let arm_result_of = |selection: HugePageSelection| self.arms.get(tune.arm_index(selection)?);
        let (Some(plan), Some(all)) =
            (arm_result_of(HugePageSelection::Plan), arm_result_of(HugePageSelection::All))
        else {
            return false;
        };
        let memory = plan.peak_memory.zip(all.peak_memory);
        self.faster_selection() == Some(HugePageSelection::All)
            && all.verdict == Some(EffectVerdict::Better)
            && memory.is_some_and(|(plan, all)| all <= plan * SAME_MEMORY_RATIO)
    }

    /// Whether plan and all are known to differ: which of them is faster.
    pub fn faster_selection(&self) -> Option<HugePageSelection> {
        let (_, interval) = self.plan_to_all?;
        match () {
            () if interval.high < 1.0 => Some(HugePageSelection::Plan),
            () if interval.low > 1.0 => Some(HugePageSelection::All),
            () => None,
        }
    }
}

/// Whether the plan, or else all, got none of its huge pages in its first trial, and so had no others.
fn is_unserved(experiment: &Experiment, tune: &TuningRun) -> bool {
    let arm = tune.arm_index(HugePageSelection::Plan).or(tune.arm_index(HugePageSelection::All));
    arm.is_some_and(|arm| experiment.plan.dropped_variants.contains(&arm))
}

fn find_effect<'f>(effects: &'f WorkloadEffects, measure: &str, arm: usize) -> Option<&'f Effect> {
    effects.measure(measure)?.effect(arm)
}

fn judge_arms(effects: &WorkloadEffects, tune: &TuningRun, measure: &str) -> TuningVerdict {
    let verdict = |selection: HugePageSelection| {
        find_effect(effects, measure, tune.arm_index(selection)?).map(|effect| effect.verdict)
    };
    let (plan, all) = (verdict(HugePageSelection::Plan), verdict(HugePageSelection::All));
    let is_unplanned = tune.arm_index(HugePageSelection::Plan).is_none();
    match (plan, all) {
        (Some(EffectVerdict::Better), _) => TuningVerdict::PlanHelps,
        (Some(plan), _) if plan.is_void() => TuningVerdict::NotAllocated,
        (_, Some(EffectVerdict::Better)) => TuningVerdict::OnlyAllHelps,
        (None, None) if is_unplanned => TuningVerdict::NothingPlanned,
        (None, _) if !is_unplanned => TuningVerdict::NothingMeasured,
        (Some(EffectVerdict::TooFew { .. }), _) | (_, Some(EffectVerdict::TooFew { .. })) => {
            TuningVerdict::TooFew
        }
        (Some(EffectVerdict::Worse), _) | (None, Some(EffectVerdict::Worse)) => TuningVerdict::Slower,
        (Some(EffectVerdict::Undecided(_)), _) | (_, Some(EffectVerdict::Undecided(_))) => {
            TuningVerdict::Undecided
        }
        _ => judge_no_gain(effects, tune, measure),
    }
}

/// Nothing gains: whether that is known.
fn judge_no_gain(effects: &WorkloadEffects, tune: &TuningRun, measure: &str) -> TuningVerdict {
    let most = |selection: HugePageSelection| {
        let effect = find_effect(effects, measure, tune.arm_index(selection)?)?;
        Some(effect.speed_up().1.map_or(f64::INFINITY, |interval| interval.high))
    };
    let ends: Vec<f64> =
        [HugePageSelection::Plan, HugePageSelection::All].into_iter().filter_map(most).collect();
    // Without the arm of all on huge pages, more of them may help more.
    let is_known =
        most(HugePageSelection::All).is_some() && ends.iter().all(|high| *high < HELPFUL_SPEED_UP_MIN);
    if is_known { TuningVerdict::NoHelp } else { TuningVerdict::NoDifference }
}

fn arm_result(
    effects: &WorkloadEffects,
    tune: &TuningRun,
    arm_index: usize,
    judging_measure: &str,
) -> ArmResult {
    let median = |name: &str| effects.measure(name)?.median(arm_index);
    let judged = find_effect(effects, judging_measure, arm_index);
    let huge = tune.huge.max(1) as f64;
    ArmResult {
        value: median(judging_measure),
        range: effects
            .measure(judging_measure)
            .and_then(|measure| measure.variants.get(arm_index)?.statistics)
            .map(|found| (found.min, found.max, found.count)),
        speed_up: judged.map(Effect::speed_up),
        verdict: judged.map(|effect| effect.verdict),
        cpu_speed_up: find_effect(effects, measures::CPU, arm_index).map(Effect::speed_up),
        cpu_ns: median(measures::CPU),
        wall_ns: median(measures::WALL),
        user_ns: median(measures::CPU_USER),
        system_ns: median(measures::CPU_SYSTEM),
        // A supervisor waits for the program, so rusage has nothing of it.
        faults: median(&format!("{}minor-faults", measures::COUNTER_PREFIX)),
        huge_pages: median(measures::HUGE_BYTES).map(|bytes| bytes / huge),
        peak_memory: median(measures::PEAK_MEMORY),
        planned_and_allocated: median(measures::PLAN_REQUESTED).zip(median(measures::PLAN_ALLOCATED)),
        predicted_speed_up: None,
        scaled_speed_up: None,
        scaled_interval: None,
        speed_up_from_never: None,
    }
}

/// Compares all arms with that of no huge pages at all, if there is one, from their own pairs.
fn compare_with_never(effects: &WorkloadEffects, tune: &TuningRun, measure: &str, arms: &mut [ArmResult]) {
    let never = tune.arm_index(HugePageSelection::Never);
    let Some(never) = never.and_then(|at| find_effect(effects, measure, at)) else { return };
    for (at, (arm, result)) in tune.arms.iter().zip(arms).enumerate() {
        let (speed_up, interval) = never.speed_up();
        result.speed_up_from_never = match arm.selection {
            HugePageSelection::Never => None,
            HugePageSelection::None => Some((1.0 / speed_up, interval.map(|found| found.inverse()))),
            _ => find_effect(effects, measure, at).and_then(|effect| {
                let pairs = effect.pairs.relative_to(&never.pairs);
                let ratio = pairs.ratio()?;
                let interval = pairs.t_interval_at(effects.level).filter(|_| pairs.pair_count() >= PAIRS_MIN);
                Some(match effect.better {
                    BetterDirection::Higher => (ratio, interval),
                    _ => (1.0 / ratio, interval.map(|found| found.inverse())),
                })
            }),
        };
    }
}

/// More of the time than this is not page walks: then the walk cost or the profile is of something else.
const WALK_SHARE_MAX: f64 = 0.95;

fn predict_arms(tune: &TuningRun, judging_measure: &str, arms: &mut [ArmResult]) {
    // A program's own figure need not be a time: then the cost of walks is subtracted from its CPU time.
    let time = |arm: &ArmResult| {
        if judging_measure == measures::WALL { arm.wall_ns } else { arm.cpu_ns.or(arm.wall_ns) }
    };
    let base =
        tune.arm_index(HugePageSelection::None).and_then(|at| time(arms.get(at)?)).filter(|base| *base > 0.0);
    let Some(base) = base else { return };
    let never = tune.arm_index(HugePageSelection::Never).and_then(|at| time(arms.get(at)?));
    let without = never.filter(|time| *time > 0.0).unwrap_or(base);
    let pair = MeasuredTimes::from_arms(tune, judging_measure, arms, base);
    for (arm, found) in tune.arms.iter().zip(arms).filter(|(arm, _)| arm.selection != HugePageSelection::None)
    {
        let saved = arm.saved_ns.map(|saved| saved as f64);
        let saved = saved.filter(|saved| *saved <= WALK_SHARE_MAX * without);
        found.predicted_speed_up = saved.map(|saved| without / (without - saved));
        let shares = arm.gain_shares().filter(|_| arm.selection != HugePageSelection::All);
        let scaled = shares.zip(pair.as_ref()).and_then(|(shares, pair)| pair.predict_speed_up(shares));
        (found.scaled_speed_up, found.scaled_interval) = (scaled.map(|of| of.0), scaled.map(|of| of.1));
    }
}

/// The measured pair between which shares are laid, at the likely time of all and at both its bounds.
struct MeasuredTimes {
    likely: TimePair,
    low: TimePair,
    high: TimePair,
}

impl MeasuredTimes {
    fn from_arms(
        tune: &TuningRun,
        judging_measure: &str,
        arms: &[ArmResult],
        base_ns: f64,
    ) -> Option<MeasuredTimes> {
        let none = arms.get(tune.arm_index(HugePageSelection::None)?)?;
        let all = arms.get(tune.arm_index(HugePageSelection::All)?)?;
        let (speed, speed_interval) = all.speed_up?;
        // The page faults that a program's own figure covers are unknown.
        let is_time = judging_measure == measures::WALL || judging_measure == measures::CPU;
        let kernel_ns = none.system_ns.zip(all.system_ns).filter(|_| is_time);
        let pair = |speed: f64| TimePair { base_ns, huge_ns: base_ns / speed, kernel_ns };
        let bound = |of: fn(&RatioInterval) -> f64| pair(speed_interval.as_ref().map_or(speed, of));
        Some(MeasuredTimes { likely: pair(speed), low: bound(|of| of.low), high: bound(|of| of.high) })
    }

    fn predict_speed_up(&self, shares: GainShares) -> Option<(f64, RatioInterval)> {
        let predict_for = |pair: TimePair| shares.predict_time_saved(pair).to_speed_ups(pair.base_ns);
        let (likely, (mut low, mut high)) = predict_for(self.likely)?;
        for (_, within) in [predict_for(self.low)?, predict_for(self.high)?] {
            (low, high) = (low.min(within.0), high.max(within.1));
        }
        Some((likely, RatioInterval { low, high }))
    }
}

/// Misses of one region of the size of a huge page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissRegion {
    /// The process image that it belongs to, by its place in the profile.
    pub image: usize,
    /// Its mapping.
    pub key: MappingIdentity,
    /// Its first byte, counted from the mapping's first; below 0 where a huge page there begins before it.
    pub offset: i64,
    /// Misses without huge pages.
    pub misses_before: u64,
    /// Misses under the plan; `None` if they were not recounted.
    pub misses_after: Option<u64>,
    /// Whether it is planned.
    pub is_planned: bool,
}

/// Where a region is: image, mapping, offset.
type RegionKey = (usize, MappingIdentity, i64);

/// The regions of a profile on the grid of the profiled run, most misses first.
pub fn compare_regions(tune: &TuningRun, before: &TlbProfile) -> Vec<MissRegion> {
    let huge = i64::try_from(tune.huge).unwrap_or(i64::MAX).max(1);
    let planned = planned_regions(tune, before);
    let recounted = tune.after.as_deref().map(|after| count_misses(after, huge));
    let region = |((image, key, offset), before): (RegionKey, u64)| {
        let place = (image, key.clone(), offset);
        let after = recounted.as_ref().map(|found| found.get(&place).copied().unwrap_or(0));
        let is_planned = planned.contains(&place);
        MissRegion { image, key, offset, misses_before: before, misses_after: after, is_planned }
    };
    let mut found: Vec<MissRegion> = count_misses(before, huge).into_iter().map(region).collect();
    found.sort_by(|a, b| b.misses_before.cmp(&a.misses_before).then(a.offset.cmp(&b.offset)));
    found
}

/// The address that offset 0 of a mapping has.
fn mapping_base(key: &MappingIdentity, start: u64) -> i64 {
    match key.kind {
        MappingKind::Placed => 0,
        _ => i64::try_from(start).unwrap_or(0),
    }
}

fn count_misses(profile: &TlbProfile, huge: i64) -> BTreeMap<RegionKey, u64> {
    let mut found = BTreeMap::new();
    for (image, image_profile) in profile.images.iter().enumerate() {
        for mapping in &image_profile.mappings {
            let base = mapping_base(&mapping.key, mapping.start);
            for (at, misses) in mapping.cells.at.iter().zip(&mapping.cells.misses) {
                let offset = cell_offset(mapping, *at);
                let region = (base.saturating_add(offset)).div_euclid(huge).saturating_mul(huge) - base;
                let sum: &mut u64 = found.entry((image, mapping.key.clone(), region)).or_default();
                *sum = sum.saturating_add(*misses);
            }
        }
    }
    found
}

fn cell_offset(mapping: &MappingProfile, cell: u64) -> i64 {
    i64::try_from(cell.saturating_mul(mapping.grain.0)).unwrap_or(i64::MAX)
}

/// Planned regions are on the grid of the same run, in the image of their program.
fn planned_regions(tune: &TuningRun, profile: &TlbProfile) -> BTreeSet<RegionKey> {
    let mut planned = BTreeSet::new();
    for program in &tune.plan.programs {
        let same_program = |image: &usize| profile.images[*image].program == program.program;
        for image in (0..profile.images.len()).filter(same_program) {
            for mapping in &program.mappings {
                let offsets = mapping.regions.iter().map(|region| region.offset);
                let offset = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
                planned.extend(offsets.map(|at| (image, mapping.key.clone(), offset(at))));
            }
        }
    }
    planned
}

#[cfg(test)]
mod tests;
