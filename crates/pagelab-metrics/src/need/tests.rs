//! Curves made by hand: what is needed, where the knee is, where it dies, and shapes that say little.

use pagelab_model::experiment::{Measure, Plan, Sequence, Slot, Trial, VariantHead, WorkloadHead};

use super::*;
use crate::effect::Effects;

const M: u64 = 1 << 20;

/// What trials under one limit come to, in each round.
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
use Ends::{At, Dead, Failed, OneDead};

/// Noise of some 1 % that is the same in every test, and 0 on the mean.
fn jitter(variant: usize, round: u32) -> f64 {
    const TURNS: [f64; 6] = [-1.0, 0.6, 0.2, -0.4, 1.0, -0.4];
    (TURNS[(round as usize + variant) % 6] * 0.01).exp()
}

/// An experiment of limits in MiB.
fn experiment(rounds: u32, better: Better, limits: &[(u64, Ends)]) -> Experiment {
    let head = |(limit, _): &(u64, Ends)| VariantHead {
        name: format!("{limit}M"),
        settings: vec![(LIMIT.to_owned(), format!("{limit}M"))],
        asks_for_huge_pages: false,
    };
    let slots: Vec<Slot> = (0..rounds)
        .flat_map(|round| (0..limits.len()).map(move |variant| (round, variant)))
        .map(|(round, variant)| Slot { workload: 0, variant, round, role: Role::Measured })
        .collect();
    let trial = |(slot, of): (usize, &Slot)| {
        let (end, time) = match limits[of.variant].1 {
            At(time) => (TrialEnd::Done, time),
            Dead => (TrialEnd::OutOfMemory, 0.0),
            Failed => (TrialEnd::Failed(1), 0.0),
            OneDead(_) if of.round == 1 => (TrialEnd::TimedOut(1), 0.0),
            OneDead(time) => (TrialEnd::Done, time),
        };
        let time = time * jitter(of.variant, of.round);
        let value = if better == Better::Higher { 1.0 / time } else { time };
        let (name, unit) = (measures::MERIT.to_owned(), "x".into());
        let measure = Measure { name, unit, better, value: Ok(value), source: String::new() };
        let measures = if end == TrialEnd::Done { vec![measure] } else { Vec::new() };
        Trial { slot, began_ns: 0, ended_ns: 1, end, measures, flags: vec![], last_output: String::new() }
    };
    let trials = slots.iter().enumerate().map(trial).collect();
    let plan = Plan {
        name: "memory-size".to_owned(),
        question: String::new(),
        origin: String::new(),
        recipe: String::new(),
        place: "host".to_owned(),
        workloads: vec![WorkloadHead {
            name: "sort".to_owned(),
            command: vec![],
            generator: String::new(),
            merit: Some(measures::MERIT.to_owned()),
        }],
        variants: limits.iter().map(head).collect(),
        baseline: 0,
        sequence: Sequence::Abba,
        seed: 1,
        loss: LOSS,
        schedule: slots,
    };
    Experiment { plan, trials }
}

fn curve(rounds: u32, limits: &[(u64, Ends)]) -> Curve {
    let experiment = experiment(rounds, Better::Lower, limits);
    let mut found = curves(&experiment, &Effects::of(&experiment));
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// Too little, estimate and enough in MiB.
fn need(curve: &Curve) -> (Option<u64>, Option<f64>, Option<u64>) {
    let found = curve.need.unwrap_or_else(|why| panic!("{why:?}"));
    let limit = |place: usize| curve.places[place].limit.map(|limit| limit.0 / M);
    let estimate = found.estimate.map(|bytes| (bytes / M as f64).round());
    (found.too_little.and_then(limit), estimate, limit(found.enough))
}

const FALLING: [(u64, Ends); 6] =
    [(1024, At(4.0)), (896, At(4.0)), (768, At(4.04)), (640, At(5.0)), (512, At(9.0)), (384, At(16.0))];

#[test]
fn a_falling_curve_has_a_need_between_two_limits_and_a_knee() {
    let curve = curve(6, &FALLING);
    let limits: Vec<u64> = curve.places.iter().map(|place| place.limit.unwrap().0 / M).collect();
    assert_eq!(limits, [384, 512, 640, 768, 896, 1024], "ascending");
    // 1.01 at 768 and 1.25 at 640: 1.05 lies at 768 × (640 / 768)^(ln(1.05 / 1.01) / ln(1.25 / 1.01)).
    let expected = (768.0 * (640.0f64 / 768.0).powf((1.05f64 / 1.01).ln() / (1.25f64 / 1.01).ln())).round();
    assert_eq!(need(&curve), (Some(640), Some(expected), Some(768)));
    let knee = curve.knee.unwrap();
    assert_eq!(curve.places[knee].limit, Some(Bytes(640 * M)));
    assert_eq!((curve.dies, curve.bump), (None, None));
    let fitted: Vec<f64> = curve.places.iter().map(|place| place.fitted.unwrap()).collect();
    assert!(fitted.is_sorted_by(|less, more| less >= more), "{fitted:?}");
    assert_eq!(fitted[5], 1.0);
}

#[test]
fn work_in_a_time_is_turned_around() {
    let experiment = experiment(6, Better::Higher, &FALLING);
    let found = curves(&experiment, &Effects::of(&experiment));
    assert_eq!(need(&found[0]), need(&curve(6, &FALLING)));
}

#[test]
fn another_loss_asks_for_other_memory() {
    let mut experiment = experiment(6, Better::Lower, &FALLING);
    for (loss, expected) in [(0.5, (Some(512), Some(640))), (0.05, (Some(640), Some(768)))] {
        experiment.plan.loss = loss;
        let found = &curves(&experiment, &Effects::of(&experiment))[0];
        let (too_little, _, enough) = need(found);
        assert_eq!((too_little, enough), expected, "{loss}");
    }
    // What a file says is not believed.
    for hostile in [0.0, -1.0, 1e300, f64::NAN] {
        experiment.plan.loss = hostile;
        assert_eq!(curves(&experiment, &Effects::of(&experiment))[0].loss, LOSS);
    }
}

#[test]
fn trials_that_die_are_endless() {
    let without_swap = [(1024, At(4.0)), (896, At(4.0)), (768, At(4.0)), (640, Dead), (512, Dead)];
    let found = curve(6, &without_swap);
    // What lies between is not known: the limit under which it lives is the most that can be said.
    assert_eq!(need(&found), (Some(640), Some(768.0), Some(768)));
    assert_eq!(found.dies, Some(Dies { at: 1, lives_at: Some(2), lives_below: None }));
    assert_eq!(found.knee, Err(NoKnee::TooFewLimits));
    assert_eq!((found.places[0].dead, found.places[0].fitted), (6, None));
    // One of six is enough: nobody can rely on that limit.
    let once = curve(6, &[(1024, At(4.0)), (768, OneDead(4.0)), (512, Dead)]);
    assert_eq!(need(&once), (Some(768), Some(1024.0), Some(1024)));
    assert_eq!((once.places[1].done, once.places[1].dead), (5, 1));
}

#[test]
fn dying_above_a_limit_under_which_it_lives_is_told() {
    let found = curve(6, &[(1024, At(4.0)), (768, Dead), (512, At(4.0))]);
    assert_eq!(found.dies, Some(Dies { at: 1, lives_at: Some(2), lives_below: Some(0) }));
    assert_eq!(need(&found), (Some(768), Some(1024.0), Some(1024)));
}

#[test]
fn with_few_rounds_the_points_are_there_and_nothing_is_decided() {
    let found = curve(5, &FALLING);
    assert_eq!(found.need, Err(NotKnown::TooFew { rounds: 5 }));
    assert_eq!(found.knee, Err(NoKnee::TooFewRounds));
    assert!((found.places[0].ratio().unwrap() - 4.0).abs() < 0.1);
    // That it dies needs no statistics.
    let dead = curve(1, &[(1024, At(4.0)), (768, At(4.0)), (512, Dead)]);
    assert_eq!(dead.dies, Some(Dies { at: 0, lives_at: Some(1), lives_below: None }));
}

#[test]
fn shapes_that_say_little_have_a_word_each() {
    assert_eq!(curve(6, &[(1024, At(4.0))]).need, Err(NotKnown::OneLimit));
    assert_eq!(curve(6, &[(1024, At(4.0)), (512, Failed)]).need, Err(NotKnown::OneLimit));
    assert_eq!(curve(6, &[(1024, Dead), (512, Dead)]).need, Err(NotKnown::DiesEverywhere));
    assert_eq!(curve(6, &[(1024, Dead), (512, At(4.0))]).need, Err(NotKnown::DiesAtTheLargest));
    assert_eq!(curve(6, &[(1024, OneDead(4.0)), (512, Dead)]).need, Err(NotKnown::DiesAtTheLargest));
    assert_eq!(curve(6, &[(1024, Failed), (512, At(4.0))]).need, Err(NotKnown::NothingAtTheLargest));
    // All alike: the smallest is enough, and less may be too.
    let flat = curve(6, &[(1024, At(4.0)), (768, At(4.0)), (640, At(4.0)), (512, At(4.0))]);
    assert_eq!((need(&flat), flat.knee), ((None, None, Some(512)), Err(NoKnee::NoLoss)));
    // Slower with each step from the start: the largest may itself be too little.
    let steep = curve(6, &[(1024, At(4.0)), (512, At(8.0)), (256, At(16.0)), (128, At(32.0))]);
    assert_eq!((need(&steep).0, need(&steep).2), (Some(512), Some(1024)));
    assert_eq!(steep.knee, Err(NoKnee::Straight));
}

#[test]
fn more_memory_that_is_slower_is_levelled_out_and_told() {
    let found = curve(6, &[(1024, At(4.0)), (768, At(6.0)), (640, At(5.0)), (512, At(9.0))]);
    assert_eq!(found.bump, Some((1, 2)), "768M is slower than 640M");
    assert_eq!(found.places[1].fitted, found.places[2].fitted);
    assert_eq!(need(&found).0, Some(768));
    let faster = curve(6, &[(1024, At(4.0)), (768, At(3.0)), (512, At(9.0))]);
    assert_eq!(faster.bump, Some((1, 2)), "the largest is slower than 768M");
    assert_eq!(faster.places[1].fitted, Some(1.0), "no memory is a gain");
}

#[test]
fn an_unlimited_variant_stands_above_all_limits() {
    let mut experiment = experiment(6, Better::Lower, &[(9999, At(4.0)), (768, At(4.0)), (512, At(9.0))]);
    experiment.plan.variants[0].settings = vec![("nothing".to_owned(), "the machine as it is".to_owned())];
    let found = &curves(&experiment, &Effects::of(&experiment))[0];
    assert_eq!(found.places.last().unwrap().limit, None);
    let (too_little, estimate, enough) = need(found);
    assert!(too_little == Some(512) && enough == Some(768) && estimate.is_some_and(|of| of < 768.0));
}

#[test]
fn a_limit_that_was_not_applied_says_nothing() {
    let mut experiment = experiment(6, Better::Lower, &FALLING);
    for trial in &mut experiment.trials {
        if experiment.plan.schedule[trial.slot].variant == 3 {
            trial.flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text: String::new() });
        }
    }
    let found = &curves(&experiment, &Effects::of(&experiment))[0];
    assert_eq!((found.places[2].failed, found.places[2].done, found.places[2].fitted), (6, 0, None));
    let (too_little, _, enough) = need(found);
    assert_eq!((too_little, enough), (Some(512), Some(768)));
}
