//! Tests: handmade experiments and their expected effects.

use pagelab_model::experiment::{
    Flag, Measure, Plan, PlannedVariant, PlannedWorkload, ScheduleSlot, Sequence, Trial, TrialEnd,
};
use pagelab_model::run::Unit;

use super::*;

/// An experiment of one workload: `trials` are variant, round, role, and its measures.
fn experiment(variants: &[(&str, &str)], trials: &[(usize, u32, TrialRole, f64)]) -> Experiment {
    let variant = |(name, thp): &(&str, &str)| PlannedVariant {
        name: (*name).to_owned(),
        settings: vec![("thp".to_owned(), (*thp).to_owned())],
        asks_for_huge_pages: *thp != "never",
        lists: Vec::new(),
    };
    let slot = |&(variant, round, role, _): &(usize, u32, TrialRole, f64)| ScheduleSlot {
        workload: 0,
        variant,
        round,
        role,
    };
    let plan = Plan {
        name: "thp".to_owned(),
        explanation: String::new(),
        simulator: None,
        sweep: None,
        pictures: 0,
        early_end: None,
        dropped_variants: Default::default(),
        question: "does it pay".to_owned(),
        origin: "built in".to_owned(),
        recipe: String::new(),
        place: "host".to_owned(),
        workloads: vec![PlannedWorkload {
            name: "chase".to_owned(),
            command: vec!["chase".to_owned()],
            generator: String::new(),
            merit: None,
            simulated: None,
        }],
        variants: variants.iter().map(variant).collect(),
        baseline: Some(0),
        sequence: Sequence::Abba,
        seed: 1,
        loss: pagelab_model::experiment::DEFAULT_LOSS,
        schedule: trials.iter().map(slot).collect(),
    };
    let trial = |(slot, &(variant, _, _, wall)): (usize, &(usize, u32, TrialRole, f64))| Trial {
        ended_ns: slot as u64 + 1,
        measures: vec![
            measure(measures::WALL, BetterDirection::Lower, wall),
            measure(measures::HUGE_BYTES, BetterDirection::Neither, if variant == 0 { 0.0 } else { 2e6 }),
        ],
        ..Trial::new(slot, slot as u64)
    };
    Experiment { plan, trials: trials.iter().enumerate().map(trial).collect() }
}

fn measure(name: &str, better: BetterDirection, value: f64) -> Measure {
    Measure::new(name, Unit::NANOSECONDS, better, Ok(value), "a test")
}

/// Rounds of a baseline of 100, of a twin, and of variants with the given `times` per round.
pub(crate) fn rounds(variants: &[(&str, &str)], count: u32, times: impl Fn(usize, u32) -> f64) -> Experiment {
    let mut trials = Vec::new();
    for round in 0..count {
        trials.push((0, round, TrialRole::WarmUp, 1e9));
        for (variant, _) in variants.iter().enumerate() {
            trials.push((variant, round, TrialRole::Measured, times(variant, round)));
        }
        trials.push((0, round, TrialRole::Twin, times(variants.len(), round)));
    }
    experiment(variants, &trials)
}

const THREE: [(&str, &str); 3] = [("never", "never"), ("madvise", "madvise"), ("always", "always")];

/// Noise of some 1 % that is the same in every test.
fn jitter(variant: usize, round: u32) -> f64 {
    let turn = (round as usize * 7 + variant * 3) % 10;
    1.0 + (turn as f64 - 4.5) / 450.0
}

fn verdict(effects: &ExperimentEffects, variant: usize) -> EffectVerdict {
    effects.workloads[0].primary_measure().unwrap().variants[variant].effect().unwrap().verdict
}

#[test]
fn faster_slower_and_no_difference_are_told_apart() {
    let times = |factors: [f64; 4]| {
        move |variant: usize, round: u32| 100.0 * factors[variant] * jitter(variant, round)
    };
    let check = |factors, expected: [EffectVerdict; 2], advice| {
        let effects = ExperimentEffects::from_experiment(&rounds(&THREE, 10, times(factors)));
        assert_eq!([verdict(&effects, 1), verdict(&effects, 2)], expected, "{factors:?}");
        assert_eq!(effects.workloads[0].advice, Some(advice), "{factors:?}");
    };
    check([1.0, 0.5, 0.4, 1.0], [EffectVerdict::Better; 2], ThpAdvice::Always);
    check([1.0, 0.5, 0.5, 1.0], [EffectVerdict::Better; 2], ThpAdvice::Madvise);
    check([1.0, 1.0, 0.5, 1.0], [EffectVerdict::NoDifference, EffectVerdict::Better], ThpAdvice::Always);
    check([1.0, 0.5, 1.5, 1.0], [EffectVerdict::Better, EffectVerdict::Worse], ThpAdvice::Madvise);
    check([1.0, 1.0, 1.0, 1.0], [EffectVerdict::NoDifference; 2], ThpAdvice::NoDifference);
    check([1.0, 1.0, 1.2, 1.0], [EffectVerdict::NoDifference, EffectVerdict::Worse], ThpAdvice::Never);
    let doubt = EffectVerdict::Undecided(DoubtReason::InsideFloor);
    check([1.0, 0.97, 0.97, 1.05], [doubt; 2], ThpAdvice::Undecided);
}

#[test]
fn below_six_pairs_nothing_is_decided() {
    let effects = |count| {
        ExperimentEffects::from_experiment(&rounds(&THREE, count, |variant, _| {
            [100.0, 50.0, 50.0, 100.0][variant]
        }))
    };
    assert_eq!(verdict(&effects(5), 2), EffectVerdict::TooFew { pairs: 5 });
    assert_eq!(effects(5).workloads[0].advice, Some(ThpAdvice::TooFew));
    assert_eq!(verdict(&effects(6), 2), EffectVerdict::Better);
    assert!(effects(5).workloads[0].measures[0].noise_floor.is_err());
    assert_eq!(
        ExperimentEffects::from_experiment(&rounds(&THREE, 0, |_, _| 1.0)).workloads[0].primary_index,
        None
    );
}

#[test]
fn a_variant_without_the_huge_pages_that_it_asked_for_has_no_effect_of_them() {
    let mut experiment = rounds(&THREE, 10, |variant, _| [100.0, 50.0, 50.0, 100.0][variant]);
    let flag = Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "0 bytes".to_owned() };
    let of = |experiment: &Experiment, variant| {
        let mut slots = experiment.plan.schedule.iter();
        slots.position(|slot| slot.variant == variant && slot.role == TrialRole::Measured).unwrap()
    };
    let place = of(&experiment, 1);
    experiment.trials[place].flags.push(flag);
    let place = of(&experiment, 2);
    let flag = Flag { kind: Flag::HUGE_PAGES_UNKNOWN.to_owned(), text: "no look".to_owned() };
    experiment.trials[place].flags.push(flag);
    let effects = ExperimentEffects::from_experiment(&experiment);
    for (variant, unknown) in [(1, 0), (2, 1)] {
        assert_eq!(
            verdict(&effects, variant),
            EffectVerdict::WithoutHugePages { trials: 1, unknown, trials_counted: 10 }
        );
    }
    // A workload that refuses huge pages has none, and is not flagged: the control of an experiment.
    let mut control = rounds(&THREE, 10, |_, _| 100.0);
    for trial in &mut control.trials {
        trial.measures[1].value = Ok(0.0);
    }
    assert_eq!(verdict(&ExperimentEffects::from_experiment(&control), 2), EffectVerdict::NoDifference);
    assert_eq!(effects.workloads[0].advice, Some(ThpAdvice::NotAllocated));
    let not_applied = Flag { kind: Flag::NOT_APPLIED.to_owned(), text: "thp".to_owned() };
    let mut experiment = rounds(&THREE, 10, |_, _| 1.0);
    let place = of(&experiment, 1);
    experiment.trials[place].flags.push(not_applied);
    assert_eq!(
        verdict(&ExperimentEffects::from_experiment(&experiment), 1),
        EffectVerdict::NotApplied { trials: 1, trials_counted: 10 }
    );
}

#[test]
fn failed_trials_are_counted_and_their_rounds_have_no_pair() {
    let mut experiment = rounds(&THREE, 10, |variant, round| 100.0 * jitter(variant, round));
    let of_always = |slot: &&ScheduleSlot| slot.variant == 2;
    let slots: Vec<usize> = (0..experiment.plan.schedule.len())
        .filter(|&at| of_always(&&experiment.plan.schedule.get(at).unwrap()))
        .take(4)
        .collect();
    for (place, end) in slots.into_iter().zip([
        TrialEnd::OutOfMemory,
        TrialEnd::Failed(1),
        TrialEnd::TimedOut(9),
        TrialEnd::Rejected("cache dropped".to_owned()),
    ]) {
        experiment.trials[place].end = end;
    }
    experiment.trials.pop();
    let effects = ExperimentEffects::from_experiment(&experiment);
    let counts = effects.workloads[0].trials[2];
    assert_eq!((counts.planned, counts.completed, counts.failed, counts.out_of_memory), (10, 6, 4, 1));
    let judged = effects.workloads[0].primary_measure().unwrap();
    assert_eq!(judged.variants[2].effect().unwrap().pairs.pair_count(), 6);
    assert_eq!(judged.variants[2].values.len(), 6);
    assert_eq!(judged.noise_floor.as_ref().unwrap().pairs, 9);
}

#[test]
fn the_figures_of_the_thp_report_come_out() {
    // Time with and without huge pages, dTLB and iTLB misses: what the report derives of them, in per cent.
    let cases = [
        (239.511, 249.881, 4.15),
        (98.981, 102.412, 3.35),
        (429.417, 474.771, 9.55),
        (524_074.0, 705_221.0, 25.7),
        (243_742.0, 319_231.0, 23.6),
        (231_039.0, 571_794.0, 59.6),
        (110_001.0, 422_157.0, 73.9),
        (704_424.0, 1_092_582.0, 35.5),
        (373_907.0, 528_868.0, 29.3),
    ];
    for (with, without, percent) in cases {
        let trials = [(0, 0, TrialRole::Measured, without), (1, 0, TrialRole::Measured, with)];
        let effects =
            ExperimentEffects::from_experiment(&experiment(&[("off", "never"), ("on", "always")], &trials));
        let effect = effects.workloads[0].primary_measure().unwrap().variants[1].effect().cloned().unwrap();
        assert!((effect.saved_share() * 100.0 - percent).abs() < 0.051, "{} {percent}", effect.saved_share());
        assert_eq!((effect.verdict, effect.interval), (EffectVerdict::TooFew { pairs: 1 }, None));
        assert!((effect.speed_up().0 - without / with).abs() < 1e-12);
    }
}

#[test]
fn a_figure_of_merit_judges_and_more_of_it_is_faster() {
    let mut experiment = rounds(&THREE, 8, |variant, round| 100.0 * jitter(variant, round));
    experiment.plan.workloads[0].merit = Some("updates".to_owned());
    for (trial, slot) in experiment.trials.iter_mut().zip(experiment.plan.schedule.iter()) {
        let rate = if slot.variant == 2 { 2.0 } else { 1.0 } * jitter(slot.variant, slot.round);
        trial.measures.push(measure("updates", BetterDirection::Higher, rate));
    }
    let effects = ExperimentEffects::from_experiment(&experiment);
    let judged = effects.workloads[0].primary_measure().unwrap();
    assert_eq!(judged.name, "updates");
    let effect = judged.variants[2].effect().unwrap();
    assert_eq!(effect.verdict, EffectVerdict::Better);
    assert!(
        (effect.speed_up().0 - 2.0).abs() < 0.05 && (effect.saved_share() - 0.5).abs() < 0.02,
        "{effect:?}"
    );
    assert!(effect.speed_up().1.unwrap().contains(2.0));
}

#[test]
fn what_has_no_logarithm_has_no_ratio_and_what_is_absent_says_why() {
    let mut experiment = rounds(&THREE, 8, |variant, _| if variant == 2 { 0.0 } else { 5.0 });
    let absence = Absence::new("perf_event_open", AbsenceReason::NotThere, "no PMU");
    for trial in &mut experiment.trials {
        let value = Err(absence.clone());
        trial.measures.push(Measure { value, ..measure("counter.cycles", BetterDirection::Lower, 0.0) });
    }
    let effects = ExperimentEffects::from_experiment(&experiment);
    let found = &effects.workloads[0];
    let zero = found.measure(measures::WALL).unwrap().variants[2].effect_absence().unwrap();
    assert_eq!(zero.reason(), "a value is 0 or negative");
    let cycles = found.measure("counter.cycles").unwrap();
    assert_eq!(cycles.absent.as_ref(), Some(&absence));
    assert!(cycles.variants.iter().all(|variant| variant.values.is_empty() && variant.effect().is_none()));
}

#[test]
fn rounds_with_several_trials_of_a_variant_are_one_pair() {
    let trials: Vec<(usize, u32, TrialRole, f64)> = (0..6)
        .flat_map(|round| {
            [(0, 100.0), (1, 50.0), (1, 80.0), (0, 160.0)].map(|(v, t)| (v, round, TrialRole::Measured, t))
        })
        .collect();
    let effects =
        ExperimentEffects::from_experiment(&experiment(&[("off", "never"), ("on", "always")], &trials));
    let effect = effects.workloads[0].primary_measure().unwrap().variants[1].effect().cloned().unwrap();
    assert_eq!(effect.pairs.pair_count(), 6);
    assert!((effect.ratio - 0.5).abs() < 1e-12, "{effect:?}");
    assert_eq!(effects.workloads[0].trials[1].planned, 12);
}
