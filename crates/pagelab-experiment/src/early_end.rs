//! Early end of an experiment on this machine: after a completed round, if every variant has an effect at a
//! look, or if the next round would exceed the time budget. The rest of the plan is then cut.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelab_metrics::effect::{
    ExperimentEffects, LOOK_ROUNDS, LookDecision, PairedRatios, WorkloadEffects, decide_after_round,
};
use pagelab_model::experiment::{Experiment, Flag, Plan, PlannedVariant, ScheduleSlot, Trial, TrialEnd};

/// Measured time of trials, by workload and variant.
#[derive(Clone, Debug, Default)]
pub struct TrialTimes {
    spent: BTreeMap<(usize, usize), (Duration, u32)>,
}

impl TrialTimes {
    /// Adds a trial of a slot.
    pub fn record(&mut self, slot: ScheduleSlot, trial: &Trial) {
        let time = Duration::from_nanos(trial.ended_ns.saturating_sub(trial.began_ns));
        let (sum, count) = self.spent.entry((slot.workload, slot.variant)).or_default();
        (*sum, *count) = (*sum + time, *count + 1);
    }

    /// Time of all trials so far.
    pub fn total(&self) -> Duration {
        self.spent.values().map(|(sum, _)| *sum).sum()
    }

    /// Expected time of a slot: the mean of the trials of the same workload and variant, else of the same
    /// workload; `None` before the first.
    pub fn expect(&self, slot: ScheduleSlot) -> Option<Duration> {
        let mean = |(sum, count): (Duration, u32)| (count > 0).then(|| sum / count);
        let known = self.spent.get(&(slot.workload, slot.variant)).copied();
        let of_workload = || {
            let times = self.spent.iter().filter(|((workload, _), _)| *workload == slot.workload);
            times.fold((Duration::ZERO, 0), |sum, (_, one)| (sum.0 + one.0, sum.1 + one.1))
        };
        known.and_then(mean).or_else(|| mean(of_workload()))
    }

    /// Expected time of a counted round, from 0.
    fn expect_round(&self, plan: &Plan, round: usize) -> Option<Duration> {
        let is_of_round = |slot: &ScheduleSlot| {
            slot.is_from_round(round) && !slot.is_from_round(round + 1) && plan.keeps(*slot)
        };
        plan.schedule.iter().filter(is_of_round).map(|slot| self.expect(slot)).sum()
    }
}

/// The cut plan of an experiment that ends early, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyEndDecision {
    /// The plan without the rounds that are left out.
    pub plan: Plan,
    /// When and why it ended, in a phrase.
    pub reason: String,
}

/// Decides after each completed round whether an experiment ends.
#[derive(Clone, Debug, Default)]
pub struct EarlyEndCheck {
    /// Completed rounds at the last decision.
    rounds_checked: usize,
}

impl EarlyEndCheck {
    /// Decides after a trial, from all trials and their times. `None`: the experiment continues.
    pub fn check_after_trial<'t>(
        &mut self,
        plan: &Plan,
        trials: impl Iterator<Item = &'t Trial> + Clone,
        times: &TrialTimes,
    ) -> Option<EarlyEndDecision> {
        let rule = plan.early_end?;
        let ended = trials.clone().filter(|trial| trial.end != TrialEnd::Stopped);
        let rounds = plan.count_completed_rounds(&ended.map(|trial| trial.slot).collect());
        // A resumed run may have trials of the next round already: then that round is completed first.
        let is_beyond =
            |trial: &Trial| plan.schedule.get(trial.slot).is_some_and(|slot| slot.is_from_round(rounds));
        if rounds <= self.rounds_checked
            || rounds >= rule.rounds_max as usize
            || trials.clone().any(is_beyond)
        {
            return None;
        }
        self.rounds_checked = rounds;
        let is_decided = || {
            let trials = trials.cloned().collect();
            is_decided(&Experiment { plan: plan.clone(), trials }, rounds)
        };
        let reason = if rule.has_looks && LOOK_ROUNDS.contains(&rounds) && is_decided() {
            "every variant differs from the baseline"
        } else if times.total() + times.expect_round(plan, rounds)?
            > Duration::from_nanos(rule.time_budget_ns?)
        {
            "another round would exceed the time budget"
        } else {
            return None;
        };
        let reason = format!("ended after round {rounds} of at most {}: {reason}", rule.rounds_max);
        Some(EarlyEndDecision { plan: plan.cut_after(rounds), reason })
    }
}

/// A plan without the variants that got none of the huge pages that they requested.
#[derive(Clone, Debug, PartialEq)]
pub struct DroppedVariants {
    /// The plan; if nothing that requests huge pages is left, without any further trial.
    pub plan: Plan,
    /// Each variant and the reason, in a phrase.
    pub reasons: Vec<String>,
    /// Whether nothing that requests huge pages is left.
    pub is_end: bool,
}

/// Drops variants whose first trial got none of the huge pages that they requested: all others would be like
/// it. `None`: there is no other such variant. Only experiments that may end early drop any.
pub fn drop_variants_without_huge_pages<'t>(
    plan: &Plan,
    trials: impl Iterator<Item = &'t Trial>,
) -> Option<DroppedVariants> {
    plan.early_end.filter(|_| plan.workloads.len() == 1)?;
    let mut first_trials: BTreeMap<usize, &Trial> = BTreeMap::new();
    let mut slots = 0;
    for trial in trials.filter(|trial| trial.end == TrialEnd::Done) {
        let Some(slot) = plan.schedule.get(trial.slot) else { continue };
        slots = slots.max(trial.slot + 1);
        let first = first_trials.entry(slot.variant).or_insert(trial);
        if trial.slot < first.slot {
            *first = trial;
        }
    }
    let (mut dropped_variants, mut reasons) = (plan.dropped_variants.clone(), Vec::new());
    for (variant, trial) in first_trials {
        let flag = trial.flags.iter().find(|flag| flag.kind == Flag::NO_HUGE_PAGES);
        if let (Some(flag), Some(planned)) = (flag, plan.variants.get(variant))
            && dropped_variants.insert(variant)
        {
            reasons.push(format!("{}: no further trials: {}", planned.name, flag.text));
        }
    }
    if reasons.is_empty() {
        return None;
    }
    let is_left = |(at, variant): (usize, &PlannedVariant)| {
        variant.asks_for_huge_pages && !dropped_variants.contains(&at)
    };
    let is_end = !plan.variants.iter().enumerate().any(is_left);
    let schedule = if is_end { plan.schedule.iter().take(slots).collect() } else { plan.schedule.clone() };
    Some(DroppedVariants { plan: Plan { schedule, dropped_variants, ..plan.clone() }, reasons, is_end })
}

/// Whether every variant of every workload has an effect at the look after this round.
fn is_decided(experiment: &Experiment, rounds: usize) -> bool {
    let is_workload_decided = |workload: &WorkloadEffects| {
        let Some(primary) = workload.primary_measure() else { return false };
        let kept: Vec<usize> =
            (0..workload.columns.len()).filter(|at| !experiment.plan.dropped_variants.contains(at)).collect();
        let arms: Vec<&PairedRatios> =
            kept.iter().filter_map(|&at| Some(&primary.effect(at)?.pairs)).collect();
        let floor = primary.noise_floor.as_ref().ok();
        // All but the baseline: a variant without a ratio has no effect.
        arms.len() + 1 == kept.len()
            && decide_after_round(&arms, floor, rounds, false) != LookDecision::Continue
    };
    ExperimentEffects::from_experiment(experiment).workloads.iter().all(is_workload_decided)
}
