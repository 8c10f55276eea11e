//! Whether huge pages help a program, from the trials without, with a plan's, and with all of them.
//!
//! Nothing here makes an interval: the ratios, floors and verdicts are those of [`crate::effect`]. What it
//! adds is the order in which they are to be believed, and the plan beside all: a plan is never called faster
//! than all unless their own pairs say so.

pub mod regions;

use pagelab_model::experiment::{Better, Experiment, measures};
use pagelab_model::gain::{Shares, TimePair};
use pagelab_model::run::Unit;
use pagelab_model::tune::{On, Tune};

use crate::effect::{Effect, Effects, Floor, Interval, PAIRS_MIN, Verdict, WorkloadEffects};

/// Huge pages that bring less than this to a program are said not to help it, where the whole interval lies
/// below: three per cent, about the noise floor of a quiet machine.
pub const HELP_MIN: f64 = 1.03;

/// Peaks of memory that differ by no more than this are one: a page of huge size more or less, what the
/// program itself allocates now so, now so.
const SAME_MEMORY: f64 = 1.01;

/// What the trials of a tuning say.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The verdict.
    pub says: Says,
    /// The measure that the verdict is by: the program's own figure, `wall`, or else `cpu`.
    pub by: String,
    /// The unit of that measure.
    pub unit: Unit,
    /// What two equal arms differ by in that measure, where that is known.
    pub floor: Option<Floor>,
    /// The arms, in the order of the experiment's variants.
    pub arms: Vec<ArmFound>,
    /// The plan's value by that of all, from their own pairs: below 1 the plan takes less time.
    pub plan_to_all: Option<(f64, Interval)>,
    /// The share of the gain of all that the plan has; only where all gain.
    pub share: Option<f64>,
    /// Huge pages of the plan by those of all, as they were seen.
    pub pages_share: Option<f64>,
}

/// What one arm came to; numbers are medians.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ArmFound {
    /// Of the measure that the verdict is by.
    pub value: Option<f64>,
    /// Speed-up and its interval, against nothing on huge pages.
    pub speed_up: Option<(f64, Option<Interval>)>,
    /// The verdict behind it.
    pub verdict: Option<Verdict>,
    /// The same of CPU time.
    pub cpu: Option<(f64, Option<Interval>)>,
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
    pub memory: Option<f64>,
    /// Planned regions, and those that came.
    pub regions: Option<(f64, f64)>,
    /// The speed-up that the profile predicts: what it says that walks cost, off the time without huge pages.
    pub predicted: Option<f64>,
    /// The same laid between the measured times of nothing and of all on huge pages, walks and page faults
    /// apart.
    pub scaled: Option<f64>,
    /// Between which speed-ups that prediction says the truth lies.
    pub scaled_within: Option<Interval>,
}

/// The verdict in one word; `report::tune` has the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// With the plan it is faster.
    Yes,
    /// With the plan it is faster, with all it is faster still, and all take no more memory.
    All,
    /// With all it is faster; with the plan no difference was measured, or it is slower.
    AllOnly,
    /// With huge pages it is slower.
    Slower,
    /// They do not help: even all bring less than [`HELP_MIN`], and that is known.
    NoHelp,
    /// No difference was measured, and the interval is too wide to say that there is none.
    NoDifference,
    /// The plan's huge pages did not come.
    NotObtained,
    /// The profile found no cost, so nothing is planned.
    NothingPlanned,
    /// Too few rounds.
    TooFew,
    /// Something that is not known well enough.
    Undecided,
    /// No trial of some arm ended well.
    NothingMeasured,
}

impl Tuned {
    /// Judges a tuning, whole or not.
    pub fn of(experiment: &Experiment, tune: &Tune) -> Option<Tuned> {
        let effects = Effects::of(experiment);
        let found = effects.workloads.first()?;
        let own = found.judged().map(|judged| judged.name.clone());
        let own = own.unwrap_or_else(|| measures::WALL.to_owned());
        let mut says = says(found, tune, &own);
        let mut by = own;
        // Another program beside it moves the clock, and CPU time much less.
        let is_open = matches!(says, Says::NoDifference | Says::Undecided);
        if is_open && by == measures::WALL {
            let by_cpu = self::says(found, tune, measures::CPU);
            if matches!(by_cpu, Says::Yes | Says::AllOnly | Says::Slower | Says::NoHelp) {
                (says, by) = (by_cpu, measures::CPU.to_owned());
            }
        }
        let mut arms: Vec<ArmFound> = (0..tune.arms.len()).map(|at| arm(found, tune, at, &by)).collect();
        predict(tune, &by, &mut arms);
        let pair = |on: On| effect(found, &by, tune.arm(on)?);
        let judged = found.measure(&by);
        let unit = judged.map_or_else(|| Unit::from(Unit::COUNT), |judged| judged.unit.clone());
        let floor = judged.and_then(|judged| judged.floor.as_ref().ok().cloned());
        let plan_to_all = pair(On::Plan).zip(pair(On::All)).and_then(|(plan, all)| {
            let between = plan.pairs.to(&all.pairs);
            (between.count() >= PAIRS_MIN).then_some(())?;
            let (ratio, interval) = (between.ratio()?, between.by_t()?);
            // Of a figure where more is better, the other way around: time it is that is compared.
            match plan.better {
                Better::Higher => Some((1.0 / ratio, interval.inverse())),
                _ => Some((ratio, interval)),
            }
        });
        let gained = |effect: &Effect| 1.0 - 1.0 / effect.speed_up().0;
        let share = pair(On::Plan)
            .zip(pair(On::All))
            .and_then(|(plan, all)| (all.verdict == Verdict::Better).then(|| gained(plan) / gained(all)));
        let pages = |on: On| arms.get(tune.arm(on)?)?.huge_pages;
        let pages_share = pages(On::Plan).zip(pages(On::All)).filter(|(_, all)| *all > 0.0);
        let pages_share = pages_share.map(|(plan, all)| plan / all);
        let mut tuned = Tuned { says, by, unit, floor, arms, plan_to_all, share, pages_share };
        if says == Says::Yes && tuned.all_is_better(tune) {
            tuned.says = Says::All;
        }
        Some(tuned)
    }

    /// Whether all memory on huge pages is known to be faster than the plan, and takes no more memory.
    fn all_is_better(&self, tune: &Tune) -> bool {
        let found = |on: On| self.arms.get(tune.arm(on)?);
        let (Some(plan), Some(all)) = (found(On::Plan), found(On::All)) else { return false };
        let memory = plan.memory.zip(all.memory);
        self.faster_of_both() == Some(On::All)
            && all.verdict == Some(Verdict::Better)
            && memory.is_some_and(|(plan, all)| all <= plan * SAME_MEMORY)
    }

    /// Whether plan and all are known to differ: which of them is faster.
    pub fn faster_of_both(&self) -> Option<On> {
        let (_, interval) = self.plan_to_all?;
        match () {
            () if interval.high < 1.0 => Some(On::Plan),
            () if interval.low > 1.0 => Some(On::All),
            () => None,
        }
    }
}

fn effect<'f>(found: &'f WorkloadEffects, measure: &str, arm: usize) -> Option<&'f Effect> {
    found.measure(measure)?.variants.get(arm)?.effect.as_ref().ok()
}

fn says(found: &WorkloadEffects, tune: &Tune, measure: &str) -> Says {
    let verdict = |on: On| effect(found, measure, tune.arm(on)?).map(|effect| effect.verdict);
    let (plan, all) = (verdict(On::Plan), verdict(On::All));
    let is_unplanned = tune.arm(On::Plan).is_none();
    match (plan, all) {
        (Some(Verdict::Better), _) => Says::Yes,
        (Some(Verdict::NotHuge { .. } | Verdict::NotApplied { .. }), _) => Says::NotObtained,
        (_, Some(Verdict::Better)) => Says::AllOnly,
        (None, None) => {
            if is_unplanned {
                Says::NothingPlanned
            } else {
                Says::NothingMeasured
            }
        }
        (None, Some(_)) if !is_unplanned => Says::NothingMeasured,
        (Some(Verdict::TooFew { .. }), _) | (_, Some(Verdict::TooFew { .. })) => Says::TooFew,
        (Some(Verdict::Worse), _) | (None, Some(Verdict::Worse)) => Says::Slower,
        (Some(Verdict::Undecided(_)), _) | (_, Some(Verdict::Undecided(_))) => Says::Undecided,
        _ => no_gain(found, tune, measure),
    }
}

/// Nothing gains: whether that is known.
fn no_gain(found: &WorkloadEffects, tune: &Tune, measure: &str) -> Says {
    let most = |on: On| {
        let effect = effect(found, measure, tune.arm(on)?)?;
        Some(effect.speed_up().1.map_or(f64::INFINITY, |interval| interval.high))
    };
    let ends: Vec<f64> = [On::Plan, On::All].into_iter().filter_map(most).collect();
    // Without the arm of all on huge pages, more of them may help more.
    let is_known = most(On::All).is_some() && ends.iter().all(|high| *high < HELP_MIN);
    if is_known { Says::NoHelp } else { Says::NoDifference }
}

fn arm(found: &WorkloadEffects, tune: &Tune, at: usize, by: &str) -> ArmFound {
    let median = |name: &str| Some(found.measure(name)?.variants.get(at)?.statistics?.median);
    let judged = effect(found, by, at);
    let huge = tune.huge.max(1) as f64;
    ArmFound {
        value: median(by),
        speed_up: judged.map(Effect::speed_up),
        verdict: judged.map(|effect| effect.verdict),
        cpu: effect(found, measures::CPU, at).map(Effect::speed_up),
        cpu_ns: median(measures::CPU),
        wall_ns: median(measures::WALL),
        user_ns: median(measures::CPU_USER),
        system_ns: median(measures::CPU_SYSTEM),
        // A supervisor waits for the program, so rusage has nothing of it.
        faults: median(&format!("{}minor-faults", measures::COUNTER)),
        huge_pages: median(measures::HUGE).map(|bytes| bytes / huge),
        memory: median(measures::PEAK),
        regions: median(measures::PLAN_WANTED).zip(median(measures::PLAN_GOT)),
        predicted: None,
        scaled: None,
        scaled_within: None,
    }
}

/// More of the time than this is not page walks: then the price or the profile is of something else.
const WALKS_MAX: f64 = 0.95;

fn predict(tune: &Tune, by: &str, arms: &mut [ArmFound]) {
    // A figure of the program's own need be no time: then what walks cost is taken off what it works.
    let time = |arm: &ArmFound| if by == measures::WALL { arm.wall_ns } else { arm.cpu_ns.or(arm.wall_ns) };
    let base = tune.arm(On::Nothing).and_then(|at| time(arms.get(at)?)).filter(|base| *base > 0.0);
    let Some(base) = base else { return };
    let pair = Measured::of(tune, by, arms, base);
    for (arm, found) in tune.arms.iter().zip(arms).filter(|(arm, _)| arm.on != On::Nothing) {
        let saved = arm.saved_ns.map(|saved| saved as f64).filter(|saved| *saved <= WALKS_MAX * base);
        found.predicted = saved.map(|saved| base / (base - saved));
        let shares = arm.shares().filter(|_| arm.on != On::All);
        let scaled = shares.zip(pair.as_ref()).and_then(|(shares, pair)| pair.predict(shares));
        (found.scaled, found.scaled_within) = (scaled.map(|of| of.0), scaled.map(|of| of.1));
    }
}

/// The measured pair between which shares are laid, at the likely time of all and at both its bounds.
struct Measured {
    likely: TimePair,
    least: TimePair,
    most: TimePair,
}

impl Measured {
    fn of(tune: &Tune, by: &str, arms: &[ArmFound], base_ns: f64) -> Option<Measured> {
        let none = arms.get(tune.arm(On::Nothing)?)?;
        let all = arms.get(tune.arm(On::All)?)?;
        let (speed, within) = all.speed_up?;
        // A figure of the program's own covers what it covers: which page faults are in it is not known.
        let is_time = by == measures::WALL || by == measures::CPU;
        let kernel_ns = none.system_ns.zip(all.system_ns).filter(|_| is_time);
        let pair = |speed: f64| TimePair { base_ns, huge_ns: base_ns / speed, kernel_ns };
        let bound = |of: fn(&Interval) -> f64| pair(within.as_ref().map_or(speed, of));
        Some(Measured { likely: pair(speed), least: bound(|of| of.low), most: bound(|of| of.high) })
    }

    fn predict(&self, shares: Shares) -> Option<(f64, Interval)> {
        let of = |pair: TimePair| shares.saved(pair).speed_ups(pair.base_ns);
        let (likely, (mut low, mut high)) = of(self.likely)?;
        for (_, within) in [of(self.least)?, of(self.most)?] {
            (low, high) = (low.min(within.0), high.max(within.1));
        }
        Some((likely, Interval { low, high }))
    }
}

#[cfg(test)]
mod tests;
