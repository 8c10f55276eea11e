//! How much memory a program needs: from its times under a falling limit to "it needs X for at most 5 %
//! loss", the knee, and the limit below which it dies.
//!
//! Trials of one round are compared with the one under the largest limit, on logarithms, as effects are
//! ([`crate::effect`]). The interval of the need holds whatever the curve does between the limits that were
//! tried, as long as less memory is never faster: its ends are limits of the experiment. They are found by
//! tests in a fixed order (Hsu and Berger 1999, "Stepwise confidence intervals without multiplicity
//! adjustment for dose-response and toxicity studies"): from the smallest limit up as long as the interval
//! of the loss lies above the one asked for, and from the largest limit down as long as it lies below. Each
//! of the two sequences errs in 2.5 % of experiments at most, however many limits there are, for it stops
//! at the first test that does not refuse; `need/coverage.rs` checks that by simulation. The number between
//! the ends is where the monotone fit crosses the loss, straight between two limits in logarithms.

mod axis;
#[cfg(test)]
mod coverage;
mod isotonic;
mod knee;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pagelab_model::Bytes;
use pagelab_model::experiment::{Better, Experiment, Flag, LOSS, Role, TrialEnd, measures};

use crate::effect::{Effects, Interval, PAIRS_MIN, Paired};

pub use axis::LIMIT;
pub use knee::NoKnee;

/// SIGKILL, which is how the kernel ends a process for want of memory.
const SIGKILL: i32 = 9;

/// One workload under limits of memory that differ in nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its place in the plan.
    pub workload: usize,
    /// The name of the measure that judges.
    pub measure: String,
    /// The settings that its variants have besides, by key.
    pub common: Vec<(String, String)>,
    /// The loss that is asked for: 0.05 is 1.05 times the time for the same work.
    pub loss: f64,
    /// Rounds in which the largest limit was measured.
    pub rounds: usize,
    /// The limits that were tried, ascending.
    pub places: Vec<Place>,
    /// How much is needed.
    pub need: Result<Need, NotKnown>,
    /// Place of the limit below which each step costs more than before.
    pub knee: Result<usize, NoKnee>,
    /// Where it dies.
    pub dies: Option<Dies>,
    /// Places of two limits of which the larger one is slower, beyond both intervals: the fit levels it out.
    pub bump: Option<(usize, usize)>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its variant.
    pub variant: usize,
    /// The limit; `None` is a variant without one, which stands above all.
    pub limit: Option<Bytes>,
    /// Trials that ended as they should.
    pub done: usize,
    /// Trials that were killed for want of memory, or took longer than they may: endless time.
    pub dead: usize,
    /// Those of the dead that took longer than they may.
    pub timed_out: usize,
    /// Trials that ended otherwise, which say nothing of memory.
    pub failed: usize,
    /// Time for the same work by that under the largest limit, round by round; of that itself none.
    pub pairs: Paired,
    /// The interval of their ratio, by t.
    pub interval: Option<Interval>,
    /// By the monotone fit, as a ratio; `None` where it died or was not measured.
    pub fitted: Option<f64>,
}

/// How much memory is needed for at most the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Where the fit crosses the loss, bytes; `None` where the smallest limit is enough, or only no limit is.
    pub estimate: Option<f64>,
    /// The largest limit that was shown to be too little; `None`: none was.
    pub too_little: Option<usize>,
    /// The smallest limit that was shown to be enough. The largest of all is by definition.
    pub enough: usize,
}

/// Why no need is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKnown {
    /// There is nothing to compare with.
    OneLimit,
    /// It dies under every limit.
    DiesEverywhere,
    /// It dies under the largest limit, though not under all.
    DiesAtTheLargest,
    /// Nothing was measured under the largest limit.
    NothingAtTheLargest,
    /// Fewer rounds than a verdict needs.
    TooFew {
        /// How many there are.
        rounds: usize,
    },
}

/// Where it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dies {
    /// The largest limit under which it did.
    pub at: usize,
    /// The next larger one, under which it lived each time.
    pub lives_at: Option<usize>,
    /// A smaller limit under which it lived each time all the same.
    pub lives_below: Option<usize>,
}

impl Place {
    /// The ratio to the largest limit: the geometric mean over rounds.
    pub fn ratio(&self) -> Option<f64> {
        self.pairs.ratio()
    }

    /// The interval, where a verdict may rest on it.
    fn tested(&self) -> Option<Interval> {
        self.interval.filter(|_| self.dead == 0 && self.pairs.count() >= PAIRS_MIN)
    }
}

/// The curves of an experiment, by workload: one for each set of variants that differ in the limit alone.
pub fn curves(experiment: &Experiment, effects: &Effects) -> Vec<Curve> {
    let plan = &experiment.plan;
    // A file can say anything.
    let loss = if plan.loss > 0.0 && plan.loss <= 1.0 { plan.loss } else { LOSS };
    let axes = axis::axes(&plan.variants);
    let of_workload = |workload: usize| {
        let effects = effects.workloads.iter().find(|of| of.workload == workload);
        let judged = effects.and_then(|of| of.judged()).filter(|of| of.better != Better::Neither);
        let measure = judged.map_or(measures::WALL, |of| of.name.as_str());
        let better = judged.map_or(Better::Lower, |of| of.better);
        let has_slot = |variant: usize| {
            plan.schedule.iter().any(|slot| slot.workload == workload && slot.variant == variant)
        };
        axes.iter()
            .filter_map(move |axis| {
                let all = axis.places.iter().filter(|(variant, _)| has_slot(*variant));
                let trials: Vec<Trials> = all
                    .map(|&(variant, limit)| trials(experiment, workload, variant, limit, measure, better))
                    .collect();
                let is_any = trials.iter().any(|of| of.limit.is_some());
                is_any.then(|| Curve::of(workload, measure.to_owned(), axis.common.clone(), loss, trials))
            })
            .collect::<Vec<Curve>>()
    };
    (0..plan.workloads.len()).flat_map(of_workload).collect()
}

/// What was measured under one limit: logarithms of the time for the same work, by round.
#[derive(Clone, Debug, Default)]
struct Trials {
    variant: usize,
    limit: Option<Bytes>,
    logs: BTreeMap<u32, f64>,
    done: usize,
    dead: usize,
    timed_out: usize,
    failed: usize,
}

fn trials(
    experiment: &Experiment,
    workload: usize,
    variant: usize,
    limit: Option<Bytes>,
    name: &str,
    better: Better,
) -> Trials {
    let mut found = Trials { variant, limit, ..Trials::default() };
    for trial in &experiment.trials {
        let Some(slot) = experiment.plan.schedule.get(trial.slot) else { continue };
        if slot.role != Role::Measured || (slot.workload, slot.variant) != (workload, variant) {
            continue;
        }
        // Under another limit than the one that was asked for, it says nothing of this one.
        if trial.flags.iter().any(|flag| flag.kind == Flag::NOT_APPLIED) {
            found.failed += 1;
            continue;
        }
        match trial.end {
            TrialEnd::Done => {}
            TrialEnd::OutOfMemory | TrialEnd::TimedOut(_) | TrialEnd::Killed(SIGKILL) => {
                found.dead += 1;
                found.timed_out += usize::from(matches!(trial.end, TrialEnd::TimedOut(_)));
                continue;
            }
            TrialEnd::Stopped => continue,
            _ => {
                found.failed += 1;
                continue;
            }
        }
        let value = trial.measures.iter().find(|measure| measure.name == name);
        let log = value.and_then(|measure| measure.value.as_ref().ok()).map(|value| value.ln());
        match log.filter(|log| log.is_finite()) {
            Some(log) => {
                // Work in a time: its inverse is time for the same work.
                found.logs.insert(slot.round, if better == Better::Higher { -log } else { log });
                found.done += 1;
            }
            None => found.failed += 1,
        }
    }
    found
}

impl Curve {
    fn of(
        workload: usize,
        measure: String,
        common: Vec<(String, String)>,
        loss: f64,
        trials: Vec<Trials>,
    ) -> Curve {
        let base = trials.last().map(|of| of.logs.clone()).unwrap_or_default();
        let last = trials.len().saturating_sub(1);
        let place = |(at, of): (usize, Trials)| {
            let compared = of.logs.iter().filter(|_| at != last);
            let pairs = compared.filter_map(|(round, log)| Some((*round, log - base.get(round)?)));
            let pairs = Paired::of_rounds(pairs);
            Place {
                variant: of.variant,
                limit: of.limit,
                done: of.done,
                dead: of.dead,
                timed_out: of.timed_out,
                failed: of.failed,
                interval: pairs.by_t(),
                pairs,
                fitted: None,
            }
        };
        let places = trials.into_iter().enumerate().map(place).collect();
        Curve::judged(workload, measure, common, loss, base.len(), places)
    }

    fn judged(
        workload: usize,
        measure: String,
        common: Vec<(String, String)>,
        loss: f64,
        rounds: usize,
        mut places: Vec<Place>,
    ) -> Curve {
        fit(&mut places, rounds);
        let dies = dies(&places);
        let need = not_known(&places, rounds).map_or_else(|| Ok(need(&places, loss, dies)), Err);
        let knee = knee::of(&places, loss, rounds);
        let bump = bump(&places);
        Curve { workload, measure, common, loss, rounds, places, need, knee, dies, bump }
    }
}

/// The monotone fit: the non-increasing curve that is nearest to the mean logarithms, and no loss at the
/// largest limit.
fn fit(places: &mut [Place], rounds: usize) {
    let Some((largest, others)) = places.split_last_mut() else { return };
    let mut known: Vec<&mut Place> =
        others.iter_mut().filter(|place| place.dead == 0 && place.pairs.count() > 0).collect();
    let means: Vec<(f64, f64)> =
        known.iter().map(|place| (place.ratio().map_or(0.0, f64::ln), place.pairs.count() as f64)).collect();
    for (place, fitted) in known.iter_mut().zip(isotonic::falling(&means)) {
        place.fitted = Some(fitted.max(0.0).exp());
    }
    if rounds > 0 && largest.dead == 0 {
        largest.fitted = Some(1.0);
    }
}

fn dies(places: &[Place]) -> Option<Dies> {
    let at = places.iter().rposition(|place| place.dead > 0)?;
    let lives = |place: &Place| place.dead == 0 && place.done > 0;
    let lives_at = (at + 1..places.len()).find(|&place| lives(&places[place]));
    let lives_below = places[..at].iter().rposition(lives);
    Some(Dies { at, lives_at, lives_below })
}

fn not_known(places: &[Place], rounds: usize) -> Option<NotKnown> {
    let (largest, others) = places.split_last()?;
    let dies = |place: &Place| place.dead > 0;
    let tried = |place: &Place| place.done + place.dead > 0;
    if dies(largest) {
        let is_everywhere =
            others.iter().filter(|place| tried(place)).all(|place| dies(place) && place.done == 0);
        return Some(match is_everywhere && largest.done == 0 {
            true => NotKnown::DiesEverywhere,
            false => NotKnown::DiesAtTheLargest,
        });
    }
    if rounds == 0 {
        return Some(NotKnown::NothingAtTheLargest);
    }
    if !others.iter().any(tried) {
        return Some(NotKnown::OneLimit);
    }
    (rounds < PAIRS_MIN).then_some(NotKnown::TooFew { rounds })
}

/// The two sequences of tests, and where the fit crosses the loss.
fn need(places: &[Place], loss: f64, dies: Option<Dies>) -> Need {
    let most = 1.0 + loss;
    let last = places.len() - 1;
    // From the smallest limit up. Where it died, no test is needed: endless is more than any loss.
    let is_too_little =
        |place: &Place| place.dead > 0 || place.tested().is_some_and(|interval| interval.low > most);
    let up = places[..last].iter().take_while(|place| is_too_little(place)).count();
    let too_little = up.checked_sub(1).max(dies.map(|dies| dies.at));
    // From the largest one down.
    let is_enough = |place: &Place| place.tested().is_some_and(|interval| interval.high <= most);
    let enough = last - places[..last].iter().rev().take_while(|place| is_enough(place)).count();
    Need { estimate: estimate(places, most, dies), too_little, enough }
}

fn estimate(places: &[Place], most: f64, dies: Option<Dies>) -> Option<f64> {
    let from = dies.map_or(0, |dies| dies.at + 1);
    let known = |place: &usize| places[*place].fitted.is_some();
    let is_enough = |place: &usize| places[*place].fitted.is_some_and(|fitted| fitted <= most);
    let enough = (from..places.len()).find(is_enough)?;
    let limit = places[enough].limit?.0 as f64;
    let below = (from..enough).rev().find(known);
    let Some(below) = below else {
        // Nothing is known of what lies between it and where it dies; if it dies nowhere, less may do too.
        return dies.map(|_| limit);
    };
    let (less, fitted) = (places[below].limit?.0 as f64, [places[below].fitted?, places[enough].fitted?]);
    let [high, low] = fitted.map(f64::ln);
    let part = if high > low { (most.ln() - low) / (high - low) } else { 0.0 };
    Some((limit.ln() + (less.ln() - limit.ln()) * part).exp())
}

/// The first two limits that contradict that less memory is never faster.
fn bump(places: &[Place]) -> Option<(usize, usize)> {
    let no_loss = Interval { low: 1.0, high: 1.0 };
    let last = places.len().checked_sub(1)?;
    let tested = |at: usize| if at == last { Some(no_loss) } else { places[at].tested() };
    let larger = |less: usize| {
        let is_faster =
            |&more: &usize| tested(less).zip(tested(more)).is_some_and(|(less, more)| less.high < more.low);
        Some((less, (less + 1..=last).find(is_faster)?))
    };
    (0..last).find_map(larger)
}
