//! Tests: handmade curves with the expected need, knee and kill limit, and uninformative shapes.

use Ends::{At, Dead, Failed, OneDead};
use pagelab_model::experiment::{
    DEFAULT_LOSS, Measure, Plan, PlannedVariant, PlannedWorkload, ScheduleSlot, Sequence, Trial,
};
use pagelab_model::random::SplitMix64;

use super::*;
use crate::effect::ExperimentEffects;

const M: u64 = 1 << 20;

/// Result of the trials under one limit, in each round.
#[derive(Clone, Copy)]
enum Ends {
    /// All take this long, and a little more or less.
    At(f64),
    /// All are killed.
    Dead,
    /// All fail otherwise.
    Failed,
    /// One is killed, the others take this long.
    OneDead(f64),
}

/// Noise of some 1 % that is the same in every test, and 0 on the mean.
fn jitter(variant: usize, round: u32) -> f64 {
    const TURNS: [f64; 6] = [-1.0, 0.6, 0.2, -0.4, 1.0, -0.4];
    (TURNS[(round as usize + variant) % 6] * 0.01).exp()
}

/// An experiment of limits in MiB.
fn experiment(rounds: u32, better: BetterDirection, limits: &[(u64, Ends)]) -> Experiment {
    let head = |(limit, _): &(u64, Ends)| PlannedVariant {
        name: format!("{limit}M"),
        settings: vec![(LIMIT_KEY.to_owned(), format!("{limit}M"))],
        asks_for_huge_pages: false,
        lists: Vec::new(),
    };
    let slots: Vec<ScheduleSlot> = (0..rounds)
        .flat_map(|round| (0..limits.len()).map(move |variant| (round, variant)))
        .map(|(round, variant)| ScheduleSlot { workload: 0, variant, round, role: TrialRole::Measured })
        .collect();
    let trial = |(slot, of): (usize, &ScheduleSlot)| {
        let (end, time) = match limits[of.variant].1 {
            At(time) => (TrialEnd::Done, time),
            Dead => (TrialEnd::OutOfMemory, 0.0),
            Failed => (TrialEnd::Failed(1), 0.0),
            OneDead(_) if of.round == 1 => (TrialEnd::TimedOut(1), 0.0),
            OneDead(time) => (TrialEnd::Done, time),
        };
        let time = time * jitter(of.variant, of.round);
        let value = if better == BetterDirection::Higher { 1.0 / time } else { time };
        let measure = Measure::new(measures::MERIT, "x", better, Ok(value), "");
        let measures = if end == TrialEnd::Done { vec![measure] } else { Vec::new() };
        Trial { ended_ns: 1, end, measures, ..Trial::new(slot, 0) }
    };
    let trials = slots.iter().enumerate().map(trial).collect();
    let plan = Plan {
        name: "memory-size".to_owned(),
        explanation: String::new(),
        simulator: None,
        sweep: None,
        pictures: 0,
        early_end: None,
        dropped_variants: Default::default(),
        question: String::new(),
        origin: String::new(),
        recipe: String::new(),
        place: "host".to_owned(),
        workloads: vec![PlannedWorkload {
            name: "sort".to_owned(),
            command: vec![],
            generator: String::new(),
            merit: Some(measures::MERIT.to_owned()),
            simulated: None,
        }],
        variants: limits.iter().map(head).collect(),
        baseline: Some(0),
        sequence: Sequence::Abba,
        seed: 1,
        loss: DEFAULT_LOSS,
        schedule: slots.into(),
    };
    Experiment { plan, trials }
}

fn curve(rounds: u32, limits: &[(u64, Ends)]) -> MemoryCurve {
    let experiment = experiment(rounds, BetterDirection::Lower, limits);
    let mut found = memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment));
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// Too little, estimate and enough in MiB.
fn need(curve: &MemoryCurve) -> (Option<u64>, Option<f64>, Option<u64>) {
    let found = curve.memory_need.unwrap_or_else(|why| panic!("{why:?}"));
    let limit = |place: usize| curve.points[place].limit.map(|limit| limit.0 / M);
    let estimate = found.estimate.map(|bytes| (bytes / M as f64).round());
    (found.largest_insufficient.and_then(limit), estimate, limit(found.smallest_sufficient))
}

const FALLING: [(u64, Ends); 6] =
    [(1024, At(4.0)), (896, At(4.0)), (768, At(4.04)), (640, At(5.0)), (512, At(9.0)), (384, At(16.0))];

#[test]
fn a_falling_curve_has_a_need_between_two_limits_and_a_knee() {
    let curve = curve(6, &FALLING);
    let limits: Vec<u64> = curve.points.iter().map(|place| place.limit.unwrap().0 / M).collect();
    assert_eq!(limits, [384, 512, 640, 768, 896, 1024], "ascending");
    // 1.01 at 768 and 1.25 at 640: 1.05 is at 768 × (640 / 768)^(ln(1.05 / 1.01) / ln(1.25 / 1.01)).
    let expected = (768.0 * (640.0f64 / 768.0).powf((1.05f64 / 1.01).ln() / (1.25f64 / 1.01).ln())).round();
    assert_eq!(need(&curve), (Some(640), Some(expected), Some(768)));
    let knee = curve.knee.unwrap();
    assert_eq!(curve.points[knee].limit, Some(Bytes(640 * M)));
    assert_eq!((curve.fatal_limits, curve.contradiction), (None, None));
    let fitted: Vec<f64> = curve.points.iter().map(|place| place.fitted_ratio.unwrap()).collect();
    assert!(fitted.is_sorted_by(|less, more| less >= more), "{fitted:?}");
    assert_eq!(fitted[5], 1.0);
}

#[test]
fn work_in_a_time_is_turned_around() {
    let experiment = experiment(6, BetterDirection::Higher, &FALLING);
    let found = memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment));
    assert_eq!(need(&found[0]), need(&curve(6, &FALLING)));
}

#[test]
fn another_loss_asks_for_other_memory() {
    let mut experiment = experiment(6, BetterDirection::Lower, &FALLING);
    for (loss, expected) in [(0.5, (Some(512), Some(640))), (0.05, (Some(640), Some(768)))] {
        experiment.plan.loss = loss;
        let found = &memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment))[0];
        let (too_little, _, enough) = need(found);
        assert_eq!((too_little, enough), expected, "{loss}");
    }
    // The content of a file is not trusted.
    for hostile in [0.0, -1.0, 1e300, f64::NAN] {
        experiment.plan.loss = hostile;
        assert_eq!(
            memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment))[0].loss,
            DEFAULT_LOSS
        );
    }
}

#[test]
fn trials_that_die_are_endless() {
    let without_swap = [(1024, At(4.0)), (896, At(4.0)), (768, At(4.0)), (640, Dead), (512, Dead)];
    let found = curve(6, &without_swap);
    // The range between is unknown: the limit under which it survives is an upper bound.
    assert_eq!(need(&found), (Some(640), Some(768.0), Some(768)));
    assert_eq!(
        found.fatal_limits,
        Some(FatalLimits { largest_fatal: 1, next_survived: Some(2), smaller_survived: None })
    );
    assert_eq!(found.knee, Err(KneeAbsence::TooFewLimits));
    assert_eq!((found.points[0].fatal, found.points[0].fitted_ratio), (6, None));
    // One of six is enough: that limit is not reliable.
    let once = curve(6, &[(1024, At(4.0)), (768, OneDead(4.0)), (512, Dead)]);
    assert_eq!(need(&once), (Some(768), Some(1024.0), Some(1024)));
    assert_eq!((once.points[1].completed, once.points[1].fatal), (5, 1));
}

#[test]
fn dying_above_a_limit_under_which_it_lives_is_told() {
    let found = curve(6, &[(1024, At(4.0)), (768, Dead), (512, At(4.0))]);
    assert_eq!(
        found.fatal_limits,
        Some(FatalLimits { largest_fatal: 1, next_survived: Some(2), smaller_survived: Some(0) })
    );
    assert_eq!(need(&found), (Some(768), Some(1024.0), Some(1024)));
}

#[test]
fn with_few_rounds_the_points_are_there_and_nothing_is_decided() {
    let found = curve(5, &FALLING);
    assert_eq!(found.memory_need, Err(NeedUnknown::TooFew { rounds: 5 }));
    assert_eq!(found.knee, Err(KneeAbsence::TooFewRounds));
    assert!((found.points[0].ratio().unwrap() - 4.0).abs() < 0.1);
    // That it dies needs no statistics.
    let dead = curve(1, &[(1024, At(4.0)), (768, At(4.0)), (512, Dead)]);
    assert_eq!(
        dead.fatal_limits,
        Some(FatalLimits { largest_fatal: 0, next_survived: Some(1), smaller_survived: None })
    );
}

#[test]
fn shapes_that_say_little_have_a_word_each() {
    assert_eq!(curve(6, &[(1024, At(4.0))]).memory_need, Err(NeedUnknown::OneLimit));
    assert_eq!(curve(6, &[(1024, At(4.0)), (512, Failed)]).memory_need, Err(NeedUnknown::OneLimit));
    assert_eq!(curve(6, &[(1024, Dead), (512, Dead)]).memory_need, Err(NeedUnknown::FatalEverywhere));
    assert_eq!(curve(6, &[(1024, Dead), (512, At(4.0))]).memory_need, Err(NeedUnknown::FatalAtLargest));
    assert_eq!(curve(6, &[(1024, OneDead(4.0)), (512, Dead)]).memory_need, Err(NeedUnknown::FatalAtLargest));
    assert_eq!(
        curve(6, &[(1024, Failed), (512, At(4.0))]).memory_need,
        Err(NeedUnknown::NotMeasuredAtLargest)
    );
    // All alike: the smallest is enough, and less may be too.
    let flat = curve(6, &[(1024, At(4.0)), (768, At(4.0)), (640, At(4.0)), (512, At(4.0))]);
    assert_eq!((need(&flat), flat.knee), ((None, None, Some(512)), Err(KneeAbsence::NoLoss)));
    // Slower with each step from the start: the largest may itself be too little.
    let steep = curve(6, &[(1024, At(4.0)), (512, At(8.0)), (256, At(16.0)), (128, At(32.0))]);
    assert_eq!((need(&steep).0, need(&steep).2), (Some(512), Some(1024)));
    assert_eq!(steep.knee, Err(KneeAbsence::Straight));
}

#[test]
fn more_memory_that_is_slower_is_levelled_out_and_told() {
    let found = curve(6, &[(1024, At(4.0)), (768, At(6.0)), (640, At(5.0)), (512, At(9.0))]);
    assert_eq!(found.contradiction, Some((1, 2)), "768M is slower than 640M");
    assert_eq!(found.points[1].fitted_ratio, found.points[2].fitted_ratio);
    assert_eq!(need(&found).0, Some(768));
    let faster = curve(6, &[(1024, At(4.0)), (768, At(3.0)), (512, At(9.0))]);
    assert_eq!(faster.contradiction, Some((1, 2)), "the largest is slower than 768M");
    assert_eq!(faster.points[1].fitted_ratio, Some(1.0), "no memory is a gain");
}

#[test]
fn an_unlimited_variant_stands_above_all_limits() {
    let mut experiment =
        experiment(6, BetterDirection::Lower, &[(9999, At(4.0)), (768, At(4.0)), (512, At(9.0))]);
    experiment.plan.variants[0].settings = vec![("nothing".to_owned(), "no changes".to_owned())];
    let found = &memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment))[0];
    assert_eq!(found.points.last().unwrap().limit, None);
    let (too_little, estimate, enough) = need(found);
    assert!(too_little == Some(512) && enough == Some(768) && estimate.is_some_and(|of| of < 768.0));
}

#[test]
fn a_limit_that_was_not_applied_says_nothing() {
    let mut experiment = experiment(6, BetterDirection::Lower, &FALLING);
    for trial in &mut experiment.trials {
        if experiment.plan.schedule.get(trial.slot).unwrap().variant == 3 {
            trial.flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text: String::new() });
        }
    }
    let found = &memory_curves(&experiment, &ExperimentEffects::from_experiment(&experiment))[0];
    assert_eq!(
        (found.points[2].failed, found.points[2].completed, found.points[2].fitted_ratio),
        (6, 0, None)
    );
    let (too_little, _, enough) = need(found);
    assert_eq!((too_little, enough), (Some(512), Some(768)));
}

fn heads(settings: &[&[(&str, &str)]]) -> Vec<PlannedVariant> {
    let head = |(at, of): (usize, &&[(&str, &str)])| PlannedVariant {
        name: at.to_string(),
        settings: of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        asks_for_huge_pages: false,
        lists: Vec::new(),
    };
    settings.iter().enumerate().map(head).collect()
}

fn limits(settings: &[&[(&str, &str)]]) -> Vec<Vec<(usize, Option<u64>)>> {
    let of = |(_, limited_variants): LimitAxis| {
        limited_variants.iter().map(|(at, limit)| (*at, limit.map(|of| of.0))).collect()
    };
    find_axes(&heads(settings)).into_iter().map(of).collect()
}

#[test]
fn variants_that_differ_in_the_limit_alone_are_an_axis_each() {
    let found = limits(&[
        &[("nothing", "no changes")],
        &[(LIMIT_KEY, "1G")],
        &[(LIMIT_KEY, "512M")],
        &[(LIMIT_KEY, "512M"), ("swap", "2G")],
        &[("swap", "2G"), (LIMIT_KEY, "256M")],
        &[(LIMIT_KEY, "1G"), ("thp", "always")],
    ]);
    let (half, quarter) = (512 << 20, 256 << 20);
    assert_eq!(
        found,
        [vec![(2, Some(half)), (1, Some(1 << 30)), (0, None)], vec![(4, Some(quarter)), (3, Some(half))]]
    );
}

#[test]
fn without_two_limits_there_is_no_axis_unless_it_is_all_there_is() {
    assert!(limits(&[&[("thp", "always")], &[("thp", "never")]]).is_empty());
    assert!(limits(&[&[(LIMIT_KEY, "1G"), ("thp", "always")], &[(LIMIT_KEY, "1G")]]).is_empty());
    assert_eq!(limits(&[&[(LIMIT_KEY, "1G")]]), [[(0, Some(1 << 30))]]);
    assert!(
        limits(&[&[(LIMIT_KEY, "much")], &[(LIMIT_KEY, "0")], &[(LIMIT_KEY, "99999999999G")]]).is_empty()
    );
}

#[test]
fn violators_are_pooled() {
    let equal =
        |values: &[f64]| fit_non_increasing(&values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>());
    assert_eq!(equal(&[]), [] as [f64; 0]);
    assert_eq!(equal(&[3.0, 2.0, 1.0]), [3.0, 2.0, 1.0]);
    assert_eq!(equal(&[1.0, 3.0]), [2.0, 2.0]);
    assert_eq!(equal(&[4.0, 1.0, 3.0, 2.0]), [4.0, 2.0, 2.0, 2.0]);
    assert_eq!(fit_non_increasing(&[(1.0, 3.0), (5.0, 1.0)]), [2.0, 2.0]);
}

/// The value at i is the least over all beginnings up to i of the greatest mean to any end from i on (the
/// min-max formula of Robertson, Wright and Dykstra 1988, turned for falling values).
#[test]
fn it_is_what_the_formula_of_means_says() {
    let mut random = SplitMix64::new(5);
    for _ in 0..300 {
        let count = 1 + random.next_below(8) as usize;
        let values: Vec<(f64, f64)> =
            (0..count).map(|_| (random.next_below(10) as f64, 1.0 + random.next_below(3) as f64)).collect();
        let mean = |from: usize, to: usize| {
            let part = &values[from..=to];
            part.iter().map(|(value, weight)| value * weight).sum::<f64>()
                / part.iter().map(|(_, weight)| weight).sum::<f64>()
        };
        for (at, found) in fit_non_increasing(&values).into_iter().enumerate() {
            let greatest = |from: usize| (at..count).map(|to| mean(from, to)).fold(f64::MIN, f64::max);
            let expected = (0..=at).map(greatest).fold(f64::MAX, f64::min);
            assert!((found - expected).abs() < 1e-9, "{values:?} at {at}: {found}, not {expected}");
        }
    }
}
