//! Looks at a running experiment: after which rounds it may end, and at which confidence level.
//!
//! An experiment that ends as soon as a 95 % interval excludes 1 finds an effect of equal settings far more
//! often than in 5 % (Armitage, McPherson and Rowe 1969). So there are few looks, and each has a level of its
//! own, so that all looks together err in 5 %.
//!
//! Each early look has the same strict level, and the last one has the rest (Haybittle 1971, Peto et al.
//! 1976). A look's share of the error depends on its round alone, so the number of rounds may remain open
//! (Lan and DeMets 1983). The looks at 6, 9 and 13 rounds spend 1, 1.7 and 2.4 % together. At 98 % each they
//! would spend 2, 3.4 and 4.6 %, close to equal levels at all looks (Pocock 1977). An effect of twice
//! the deviation of a pair then ends after 6.4 rounds, not 6.8. But the last look at 30 rounds has a level of
//! 99.3 % instead of 97.0 %, and finds an effect of half a deviation in 52 % instead of 69 %.
//!
//! The levels are exact for Student's t of few pairs, not only for normal values (Jennison and Turnbull
//! 1991). Under no effect the sum of the pairs by the root of their squares is a Markov chain, free of the
//! unknown deviation; `looks/exact.rs` has the recursion, which verifies the stored levels.
//!
//! The intervals at these levels are repeated confidence intervals (Jennison and Turnbull 1989): in 95 % of
//! experiments those of all looks hold the true ratio. So the one at which an experiment ends holds it as
//! often, whatever the reason to end. Only the last look must not depend on the measured effect: its round is
//! the planned maximum, or the one at which the time ends.
//!
//! The levels hold for independent pairs with disturbances that affect both arms alike. Pairs are
//! independent in this sense if each round has a random order ([`Sequence::Blocks`]). In the order A B B A a
//! disturbance that lasts two trials is in two pairs with the same sign. The error is then 7 to 8 %, with any
//! number of looks. If one arm alone has rare disturbances, no interval by t of few pairs holds the mean of
//! all.
//!
//! [`Sequence::Blocks`]: pagelab_model::experiment::Sequence::Blocks

#[cfg(test)]
mod exact;
#[cfg(test)]
mod simulation;

use pagelab_model::experiment::{BetterDirection, Experiment};

use super::paired::{CONFIDENCE_LEVEL, PAIRS_MIN, PairedRatios, RatioInterval};
use super::{NoiseFloor, TrialCounts, judge_ratio};

/// The numbers of completed rounds after which an experiment may end early.
pub const LOOK_ROUNDS: [usize; 3] = [PAIRS_MIN, 9, 13];

/// Level of an early look.
const EARLY_LEVEL: f64 = 0.99;

/// Levels of a last look after [`PAIRS_MIN`] rounds and more, rounded up: with the looks before it, it errs
/// in 5 %.
const LAST_LEVELS: [f64; 25] = [
    CONFIDENCE_LEVEL,
    0.9527,
    0.9542,
    0.9552,
    0.9571,
    0.9586,
    0.9598,
    0.9606,
    0.9621,
    0.9633,
    0.9643,
    0.9652,
    0.9659,
    0.9665,
    0.9670,
    0.9674,
    0.9678,
    0.9682,
    0.9685,
    0.9687,
    0.9690,
    0.9692,
    0.9694,
    0.9696,
    0.9697,
];

/// The level of a last look beyond these: as if it were independent of those before it, which is the most
/// that any number of rounds needs.
const LAST_LEVEL_LIMIT: f64 = 0.9733;

/// Result of one arm at a look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookResult {
    /// The confidence level of the look, two-sided.
    pub level: f64,
    /// The interval by t at this level.
    pub interval: RatioInterval,
    /// Whether the interval does not contain 1.
    pub excludes_one: bool,
}

/// What follows a completed round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LookDecision {
    /// Another round follows.
    Continue,
    /// The experiment ends, and its intervals are those at this level.
    Stop {
        /// The confidence level of the look.
        level: f64,
    },
}

/// The level of the look after this number of completed rounds; `None` if there is no look. A last look has
/// all the error that the looks before it left. It may follow an early look at the same round, if the time
/// ends there: the early look accepts what the last one accepts.
pub fn find_look_level(completed_rounds: usize, is_last: bool) -> Option<f64> {
    if !is_last {
        return LOOK_ROUNDS.contains(&completed_rounds).then_some(EARLY_LEVEL);
    }
    let at = completed_rounds.saturating_sub(PAIRS_MIN);
    Some(LAST_LEVELS.get(at).copied().unwrap_or(LAST_LEVEL_LIMIT))
}

/// Level of the intervals of an experiment, complete or not: that of the look at which it ended.
pub fn interval_level(experiment: &Experiment) -> f64 {
    let rule = experiment.plan.early_end.filter(|rule| rule.has_looks);
    let Some(rule) = rule else { return CONFIDENCE_LEVEL };
    let rounds = experiment.count_completed_rounds();
    // If the time ended at the round of an early look, its level is wider than the last look would need.
    let is_early = LOOK_ROUNDS.contains(&rounds) && rounds < rule.rounds_max as usize;
    find_look_level(rounds, !is_early).unwrap_or(CONFIDENCE_LEVEL)
}

/// Judges the primary comparison of one arm with the baseline after a completed round. `None` if there is no
/// look, or if the arm has fewer than [`PAIRS_MIN`] pairs. A round without a pair counts as a round.
pub fn judge_look(pairs: &PairedRatios, completed_rounds: usize, is_last: bool) -> Option<LookResult> {
    let level = find_look_level(completed_rounds, is_last)?;
    let interval = pairs.t_interval_at(level).filter(|_| pairs.pair_count() >= PAIRS_MIN)?;
    Some(LookResult { level, interval, excludes_one: !interval.contains(1.0) })
}

/// Decides after a completed round whether an experiment ends: at the last look, or if each arm has an effect
/// at this look. An effect is that of [`super::EffectVerdict`]: the interval and the ranks exclude 1, and the
/// ratio is beyond the floor. Both only refuse effects, so they add no error.
pub fn decide_after_round(
    arms: &[&PairedRatios],
    floor: Option<&NoiseFloor>,
    completed_rounds: usize,
    is_last: bool,
) -> LookDecision {
    let Some(level) = find_look_level(completed_rounds, is_last) else { return LookDecision::Continue };
    let has_effect = |pairs: &&PairedRatios| {
        let interval = judge_look(pairs, completed_rounds, is_last).map(|look| look.interval);
        let counts = TrialCounts::default();
        judge_ratio(pairs, interval, BetterDirection::Neither, floor, &counts).is_difference()
    };
    let is_decided = !arms.is_empty() && arms.iter().all(has_effect);
    if is_last || is_decided { LookDecision::Stop { level } } else { LookDecision::Continue }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ratio with pairs that differ by a little.
    fn pairs(ratio: f64, count: usize) -> PairedRatios {
        PairedRatios::from_logs((0..count).map(|at| ratio.ln() + [0.01, -0.012, 0.004, -0.002][at % 4]))
    }

    #[test]
    fn early_looks_are_few_and_the_last_one_is_anywhere() {
        let early: Vec<usize> = (0..100).filter(|&rounds| find_look_level(rounds, false).is_some()).collect();
        assert_eq!(early, LOOK_ROUNDS);
        let last = |rounds| find_look_level(rounds, true).unwrap();
        // Without a look before it, nothing of the error is spent.
        assert_eq!([0, 5, 6].map(last), [CONFIDENCE_LEVEL; 3]);
        assert_eq!([31, 1000].map(last), [LAST_LEVEL_LIMIT; 2]);
        assert!((6..40).all(|rounds| last(rounds) <= last(rounds + 1)));
        assert!(LOOK_ROUNDS.iter().all(|&rounds| last(rounds) < EARLY_LEVEL));
    }

    #[test]
    fn a_look_has_the_interval_at_its_level() {
        let arm = pairs(0.97, 9);
        let look = judge_look(&arm, 9, false).unwrap();
        assert_eq!((look.level, look.excludes_one), (EARLY_LEVEL, true));
        assert_eq!(Some(look.interval), arm.t_interval_at(EARLY_LEVEL));
        assert_eq!(judge_look(&arm, 10, false), None);
        assert_eq!(judge_look(&arm, 10, true).unwrap().level, 0.9571);
        assert!(!judge_look(&pairs(1.0, 9), 9, true).unwrap().excludes_one);
        // Nine rounds of which four have no pair.
        assert_eq!(judge_look(&pairs(0.97, 5), 9, true), None);
    }

    #[test]
    fn an_experiment_ends_when_each_arm_has_an_effect() {
        let (fast, faster, equal) = (pairs(0.9, 6), pairs(0.8, 6), pairs(1.0, 6));
        let stop = |level| LookDecision::Stop { level };
        assert_eq!(decide_after_round(&[&fast, &faster], None, 6, false), stop(EARLY_LEVEL));
        assert_eq!(decide_after_round(&[&fast, &equal], None, 6, false), LookDecision::Continue);
        assert_eq!(decide_after_round(&[&fast, &faster], None, 7, false), LookDecision::Continue);
        assert_eq!(decide_after_round(&[&fast, &equal], None, 6, true), stop(CONFIDENCE_LEVEL));
        assert_eq!(decide_after_round(&[], None, 6, false), LookDecision::Continue);
        // Equals differ as much on this host.
        let floor = NoiseFloor { ratio: 1.15, pairs: 6, is_pooled: false };
        assert_eq!(decide_after_round(&[&fast], Some(&floor), 6, false), LookDecision::Continue);
        assert_eq!(decide_after_round(&[&faster], Some(&floor), 6, false), stop(EARLY_LEVEL));
        // The time ends before a verdict is possible.
        assert_eq!(decide_after_round(&[&pairs(0.5, 4)], None, 4, true), stop(CONFIDENCE_LEVEL));
    }
}
