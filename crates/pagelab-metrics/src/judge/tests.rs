//! Tests: simulated trials, and whether their variants are worse.

use pagelab_model::AbsenceReason;
use pagelab_model::experiment::{DEFAULT_LOSS, Flag, Measure, ScheduleSlot, Trial};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::Unit;

use super::ComparisonVerdict::{NotWorse, Undecided, Worse};
use super::*;
use crate::effect::DoubtReason;
use crate::effect::tests::rounds;

const VARIANTS: [(&str, &str); 3] = [("6.1", "never"), ("6.12", "never"), ("6.18", "never")];

/// An experiment of `count` rounds: 100 ns for the baseline and its twin, `factors` of it for the two other
/// variants, each with up to `noise` more or less.
fn simulate(count: u32, factors: [f64; 2], noise: f64) -> Experiment {
    let mut random = SplitMix64::new(7);
    let times: Vec<f64> =
        (0..64).map(|_| 1.0 + noise * (random.next_below(2001) as f64 / 1000.0 - 1.0)).collect();
    let factors = [1.0, factors[0], factors[1], 1.0];
    rounds(&VARIANTS, count, |variant, round| {
        100.0 * factors[variant] * times[(round as usize * 4 + variant) % times.len()]
    })
}

/// The same with the measure `merit`, of which more is better, in the place of the time.
fn with_rates(mut experiment: Experiment) -> Experiment {
    for trial in &mut experiment.trials {
        let value = trial.measures[0].value.clone();
        trial.measures[0] = Measure::new("merit", "1/s", BetterDirection::Higher, value, "a test");
    }
    experiment
}

/// The same with a second workload, whose trials are those of `other`.
fn with_workload(mut experiment: Experiment, other: Experiment) -> Experiment {
    let mut workload = other.plan.workloads[0].clone();
    workload.name = "gups".to_owned();
    experiment.plan.workloads.push(workload);
    let first = experiment.plan.schedule.len();
    let moved = other.plan.schedule.iter().map(|slot| ScheduleSlot { workload: 1, ..slot });
    experiment.plan.schedule = experiment.plan.schedule.iter().chain(moved).collect();
    experiment
        .trials
        .extend(other.trials.into_iter().map(|trial| Trial { slot: trial.slot + first, ..trial }));
    experiment
}

fn judge(experiment: &Experiment, key: &str, loss: f64) -> Judgement {
    judge_experiment(experiment, key, Some(loss)).unwrap()
}

fn verdicts(judgement: &Judgement) -> Vec<ComparisonVerdict> {
    judgement.comparisons.iter().map(|of| of.verdict.clone()).collect()
}

#[test]
fn each_verdict_is_reached_in_both_directions() {
    let cases = [
        // Within the loss, also if it is faster or slower by a little.
        ([1.0, 0.5], 0.02, [NotWorse, NotWorse], JudgeVerdict::NotWorse),
        ([1.05, 1.06], 0.01, [NotWorse, NotWorse], JudgeVerdict::NotWorse),
        // Beyond it: one is enough.
        ([1.3, 1.0], 0.02, [Worse, NotWorse], JudgeVerdict::Worse),
        ([1.3, 1.1], 0.05, [Worse, Undecided(UndecidedReason::Interval)], JudgeVerdict::Worse),
        // The interval contains the loss.
        ([1.1, 1.0], 0.03, [Undecided(UndecidedReason::Interval), NotWorse], JudgeVerdict::Undecided),
    ];
    for (factors, noise, expected, together) in cases {
        let times = judge(&simulate(10, factors, noise), "wall", 0.1);
        assert_eq!((verdicts(&times), times.verdict()), (expected.to_vec(), together), "{factors:?}");
        // A rate that is lower by the same factor loses as much.
        let inverse = factors.map(|factor| 1.0 / factor);
        let rates = judge(&with_rates(simulate(10, inverse, noise)), "merit", 0.1);
        assert_eq!((verdicts(&rates), rates.verdict()), (expected.to_vec(), together), "{inverse:?}");
    }
}

#[test]
fn the_accepted_loss_itself_is_accepted() {
    let exact = simulate(6, [1.1, 1.1], 0.0);
    assert_eq!(judge(&exact, "wall", 0.1).verdict(), JudgeVerdict::NotWorse);
    assert_eq!(judge(&exact, "wall", 0.0999).verdict(), JudgeVerdict::Worse);
    // That of the plan, if none is given; an impossible one is the default.
    let judged = |loss| {
        let mut experiment = exact.clone();
        experiment.plan.loss = loss;
        judge_experiment(&experiment, "wall", None).unwrap()
    };
    assert_eq!((judged(0.2).loss, judged(0.2).verdict()), (0.2, JudgeVerdict::NotWorse));
    assert_eq!((judged(0.0).loss, judged(0.0).verdict()), (DEFAULT_LOSS, JudgeVerdict::Worse));
}

#[test]
fn fewer_than_six_pairs_decide_nothing() {
    let few = judge(&simulate(5, [3.0, 1.0], 0.01), "wall", 0.1);
    assert_eq!(verdicts(&few), vec![Undecided(UndecidedReason::TooFewPairs { pairs: 5 }); 2]);
    assert_eq!(few.verdict(), JudgeVerdict::Undecided);
    assert_eq!(judge(&simulate(6, [3.0, 1.0], 0.01), "wall", 0.1).verdict(), JudgeVerdict::Worse);

    // Ten rounds in which five trials of a variant were lost: five complete pairs.
    let mut lost = simulate(10, [3.0, 1.0], 0.01);
    let slots: Vec<usize> = lost
        .plan
        .schedule
        .iter()
        .enumerate()
        .filter(|(_, of)| of.variant == 1)
        .map(|(at, _)| at)
        .take(5)
        .collect();
    for trial in lost.trials.iter_mut().filter(|trial| slots.contains(&trial.slot)) {
        trial.end = TrialEnd::Lost("its guest is gone".to_owned());
    }
    let judged = judge(&lost, "wall", 0.1);
    assert_eq!(verdicts(&judged), [Undecided(UndecidedReason::TooFewPairs { pairs: 5 }), NotWorse]);
    assert_eq!((judged.failed_trials, judged.ended_trials), (5, 50));
    // A stopped experiment has fewer trials, and those of its complete rounds count.
    let mut stopped = simulate(10, [3.0, 1.0], 0.01);
    stopped.trials.truncate(7 * 5 + 2);
    stopped.trials[36].end = TrialEnd::Stopped;
    let judged = judge(&stopped, "wall", 0.1);
    assert_eq!((verdicts(&judged), judged.failed_trials), (vec![Worse, NotWorse], 0));
}

#[test]
fn all_workloads_that_have_the_measure_are_judged() {
    let (good, bad) = (|| simulate(8, [1.0, 1.0], 0.01), simulate(8, [1.0, 1.5], 0.01));
    let both = with_workload(good(), bad);
    let judged = judge(&both, "wall", 0.1);
    assert_eq!(verdicts(&judged), [NotWorse, NotWorse, NotWorse, Worse]);
    let places: Vec<_> = judged.comparisons.iter().map(|of| (of.workload, of.variant)).collect();
    assert_eq!(places, [(0, 1), (0, 2), (1, 1), (1, 2)]);
    // One has no rate.
    let one = judge(&with_workload(good(), with_rates(good())), "merit", 0.1);
    assert_eq!(one.comparisons.iter().map(|of| of.workload).collect::<Vec<_>>(), [1, 1]);
    // A variant that a recipe runs for one workload only is compared there.
    let mut part = with_workload(good(), simulate(8, [1.0, 1.5], 0.01));
    let schedule = part.plan.schedule.clone();
    let is_kept = |slot: &ScheduleSlot| (slot.workload, slot.variant) != (1, 2);
    part.trials.retain(|trial| is_kept(&schedule.get(trial.slot).unwrap()));
    part.plan.schedule = schedule.iter().filter(is_kept).collect();
    (0..).zip(&mut part.trials).for_each(|(slot, trial)| trial.slot = slot);
    let places: Vec<_> =
        judge(&part, "wall", 0.1).comparisons.iter().map(|of| (of.workload, of.variant)).collect();
    assert_eq!(places, [(0, 1), (0, 2), (1, 1)]);
    // What never completed may have had one: it is not passed over.
    let mut failed = with_rates(good());
    failed.trials.iter_mut().for_each(|trial| trial.end = TrialEnd::Failed(1));
    let judged = judge(&with_workload(with_rates(good()), failed.clone()), "merit", 0.1);
    let none = Undecided(UndecidedReason::TooFewPairs { pairs: 0 });
    assert_eq!(verdicts(&judged), [NotWorse, NotWorse, none.clone(), none]);
    assert_eq!(judge(&failed, "anything", 0.1).verdict(), JudgeVerdict::Undecided);
}

#[test]
fn an_unknown_measure_names_those_that_exist() {
    let experiment = simulate(6, [1.0, 1.0], 0.01);
    let error = |key: &str| judge_experiment(&experiment, key, None).unwrap_err().to_string();
    assert_eq!(error("wal"), "unknown measure `wal`; expected one of wall; hint: did you mean `wall`?");
    assert_eq!(
        error("huge.all"),
        "cannot judge by `huge.all`: neither more nor less of it is better; expected one of wall"
    );
    let mut alone = experiment.clone();
    alone.plan.variants.truncate(1);
    assert_eq!(check_plan(&alone.plan), Err(JudgeError::NothingToCompare));
    alone.plan.place = Plan::SIMULATOR.to_owned();
    assert_eq!(check_plan(&alone.plan), Err(JudgeError::Simulated));
}

#[test]
fn a_measure_of_a_phase_is_named_after_it() {
    let mut experiment = simulate(6, [1.0, 1.5], 0.01);
    for trial in &mut experiment.trials {
        let head = MeasureHead { phase: "pass 1".to_owned(), ..(*trial.measures[0].head).clone() };
        trial.measures[0].head = Arc::new(head);
    }
    assert_eq!(verdicts(&judge(&experiment, "pass 1/wall", 0.1)), [NotWorse, Worse]);
    assert!(judge_experiment(&experiment, "wall", None).is_err());
}

#[test]
fn what_is_no_effect_decides_nothing() {
    // A setting that was not applied in one trial.
    let mut experiment = simulate(8, [1.5, 1.0], 0.01);
    let slot = experiment.plan.schedule.iter().position(|of| of.variant == 1).unwrap();
    let flag = Flag { kind: Flag::NOT_APPLIED.to_owned(), text: "thp".to_owned() };
    experiment.trials[slot].flags.push(flag);
    let void = EffectVerdict::NotApplied { trials: 1, trials_counted: 8 };
    let expected = [Undecided(UndecidedReason::NotAnEffect(void)), NotWorse];
    assert_eq!(verdicts(&judge(&experiment, "wall", 0.1)), expected);

    // Equal settings differ by more than the loss, and by more than the variant does.
    let noisy = rounds(&VARIANTS, 8, |variant, _| [100.0, 115.0, 140.0, 120.0][variant]);
    let doubt = EffectVerdict::Undecided(DoubtReason::InsideFloor);
    let expected = [Undecided(UndecidedReason::NotAnEffect(doubt)), Worse];
    assert_eq!(verdicts(&judge(&noisy, "wall", 0.1)), expected);

    // A count of 0 has no ratio, and the other rounds alone are a biased choice.
    let mut zero = simulate(10, [1.0, 1.0], 0.01);
    let slot = zero.plan.schedule.iter().position(|of| of.variant == 2).unwrap();
    zero.trials[slot].measures[0].value = Ok(0.0);
    assert_eq!(verdicts(&judge(&zero, "wall", 0.1)), [NotWorse, Undecided(UndecidedReason::ZeroValue)]);

    // A counter that this machine does not have.
    let mut absent = simulate(8, [1.0, 1.0], 0.01);
    let absence = Absence::new("cycles", AbsenceReason::NotPermitted, "");
    for trial in &mut absent.trials {
        let (lower, value) = (BetterDirection::Lower, Err(absence.clone()));
        trial.measures.push(Measure::new("counter.walks.data", Unit::COUNT, lower, value, "perf"));
    }
    let expected = vec![Undecided(UndecidedReason::Absent(absence)); 2];
    assert_eq!(verdicts(&judge(&absent, "counter.walks.data", 0.1)), expected);
}

/// Of experiments whose variant loses exactly what is accepted, at most one in forty is called worse, and at
/// most one in forty not worse: the interval misses on each side in 2.5 % of cases.
#[test]
fn a_verdict_errs_as_rarely_as_its_interval() {
    const EXPERIMENTS: u32 = 2000;
    let mut random = SplitMix64::new(11);
    let (mut worse, mut not_worse) = (0, 0);
    for _ in 0..EXPERIMENTS {
        // Sums of twelve are nearly normal.
        let noise: Vec<f64> = (0..40)
            .map(|_| (0..12).map(|_| random.next_below(1001) as f64 / 1000.0).sum::<f64>() / 6.0 - 1.0)
            .collect();
        let variants = [("a", "never"), ("b", "never")];
        let times = rounds(&variants, 10, |variant, round| {
            [100.0, 110.0, 100.0][variant] * (0.1 * noise[(round as usize * 3 + variant) % 40]).exp()
        });
        match judge(&times, "wall", 0.1).verdict() {
            JudgeVerdict::Worse => worse += 1,
            JudgeVerdict::NotWorse => not_worse += 1,
            JudgeVerdict::Undecided => {}
        }
    }
    // 50 are expected of each; three standard deviations are 21.
    assert!([worse, not_worse].iter().all(|count| (29..=71).contains(count)), "{worse} {not_worse}");
}

/// Ends trials of the second variant, and of the baseline, for lack of memory.
fn with_ends(mut experiment: Experiment, [variant, baseline]: [usize; 2]) -> Experiment {
    for (of, count) in [(1, variant), (0, baseline)] {
        let plan = &experiment.plan;
        let is_of = |trial: &&mut Trial| {
            let slot = plan.schedule.get(trial.slot).unwrap();
            slot.variant == of && slot.role == pagelab_model::experiment::TrialRole::Measured
        };
        for trial in experiment.trials.iter_mut().filter(is_of).take(count) {
            (trial.end, trial.measures) = (TrialEnd::OutOfMemory, Vec::new());
        }
    }
    experiment
}

#[test]
fn a_variant_that_always_runs_out_of_memory_is_worse_unless_memory_is_what_is_compared() {
    let undecided = |variant, baseline| Undecided(UndecidedReason::OutOfMemory { variant, baseline });
    let first = |experiment: &Experiment| judge(experiment, "wall", 0.1).comparisons[0].verdict.clone();
    for (rounds, ends, expected) in [
        (8, [8, 0], ComparisonVerdict::OutOfMemory { trials: 8 }),
        (8, [0, 0], NotWorse),
        (16, [3, 0], undecided(3, 0)),
        (16, [8, 2], undecided(8, 2)),
        (5, [5, 0], undecided(5, 0)),
        // The baseline has less memory to spare.
        (16, [0, 3], NotWorse),
    ] {
        let experiment = with_ends(simulate(rounds, [1.0, 1.0], 0.01), ends);
        assert_eq!(first(&experiment), expected, "{ends:?}");
        let mut limited = experiment;
        limited.plan.variants[1].settings.push(("memory_limit".to_owned(), "1G".to_owned()));
        let verdict = first(&limited);
        assert!(!matches!(verdict, ComparisonVerdict::OutOfMemory { .. }), "{verdict:?}");
        let is_by_memory = matches!(verdict, Undecided(UndecidedReason::OutOfMemory { .. }));
        assert!(!is_by_memory, "{ends:?}: {verdict:?}");
    }
}
