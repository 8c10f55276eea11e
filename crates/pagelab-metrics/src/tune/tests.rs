//! Tunings made by hand, and what is said of them: cases are data.

use pagelab_model::HugePlan;
use pagelab_model::experiment::{Flag, Measure, Role};
use pagelab_model::tune::Arm;

use super::*;
use crate::effect::tests::rounds;

const ARMS: [(&str, &str); 3] = [("none", "never"), ("plan", "madvise"), ("all", "always")];

fn tune(arms: &[(&str, On)]) -> Tune {
    let arm = |(name, on): &(&str, On)| Arm {
        name: (*name).to_owned(),
        on: *on,
        planned: (*on == On::Plan).then_some(1),
        saved_ns: (*on == On::Plan).then_some(20),
        share_permille: (*on == On::Plan).then_some(900),
        walks_permille: (*on == On::Plan).then_some(950),
        accesses_permille: None,
        all_walks_ns: None,
        touched_permille: (*on == On::Plan).then_some(500),
    };
    let plan = HugePlan { source: None, command: Vec::new(), predicted: None, programs: Vec::new() };
    Tune {
        asked: "-n 1".to_owned(),
        plan_file: "x".to_owned(),
        plan,
        huge: 1 << 20,
        arms: arms.iter().map(arm).collect(),
        after: None,
        curve: Vec::new(),
        knee: None,
        pid: None,
        notes: Vec::new(),
    }
}

const THREE: [(&str, On); 3] = [("none", On::Nothing), ("plan", On::Plan), ("all", On::All)];

/// Noise of so many thousandths that differs from round to round.
fn noise(variant: usize, round: u32, permille: f64) -> f64 {
    let turn = (round as usize * 7 + variant * 3) % 10;
    1.0 + (turn as f64 - 4.5) / 4.5 * permille / 1000.0
}

fn judged(factors: [f64; 3], permille: f64, count: u32) -> Tuned {
    let times = |variant: usize, round: u32| {
        let factor = factors.get(variant).copied().unwrap_or(factors[0]);
        100.0 * factor * noise(variant, round, permille)
    };
    Tuned::of(&rounds(&ARMS, count, times), &tune(&THREE)).expect("one workload")
}

#[test]
fn each_outcome_has_its_verdict() {
    let cases = [
        // Times of none, plan and all, noise in thousandths, rounds; the verdict, and who is faster.
        ([1.0, 0.80, 0.79], 2.0, 10, Says::Yes, Some(On::All)),
        ([1.0, 0.80, 0.80], 10.0, 10, Says::Yes, None),
        ([1.0, 0.80, 0.60], 10.0, 10, Says::Yes, Some(On::All)),
        ([1.0, 0.70, 0.80], 10.0, 10, Says::Yes, Some(On::Plan)),
        ([1.0, 1.00, 0.60], 10.0, 10, Says::AllOnly, Some(On::All)),
        ([1.0, 1.10, 0.60], 10.0, 10, Says::AllOnly, Some(On::All)),
        ([1.0, 1.20, 1.30], 10.0, 10, Says::Slower, Some(On::Plan)),
        ([1.0, 1.00, 1.00], 10.0, 10, Says::NoHelp, None),
        ([1.0, 1.00, 1.00], 200.0, 10, Says::NoDifference, None),
        ([1.0, 0.50, 0.50], 10.0, 5, Says::TooFew, None),
        ([1.0, 0.99, 0.99], 20.0, 10, Says::NoHelp, None),
    ];
    for (factors, permille, count, says, faster) in cases {
        let found = judged(factors, permille, count);
        assert_eq!((found.says, found.faster_of_both()), (says, faster), "{factors:?} {permille} {count}");
    }
}

/// A plan is worth its trouble where it saves something: huge pages for which memory is missing.
#[test]
fn all_is_the_answer_where_it_is_faster_and_takes_no_more_memory() {
    let says = |factors: [f64; 3], memory: [f64; 3]| {
        let times = |variant: usize, round: u32| {
            100.0 * factors.get(variant).unwrap_or(&factors[0]) * noise(variant, round, 10.0)
        };
        let mut experiment = rounds(&ARMS, 10, times);
        let schedule = experiment.plan.schedule.clone();
        for trial in &mut experiment.trials {
            let variant = schedule[trial.slot].variant;
            trial.measures.push(Measure {
                name: measures::PEAK.to_owned(),
                unit: Unit::from(Unit::BYTES),
                better: Better::Lower,
                value: Ok(memory[variant] * noise(variant, 0, 4.0)),
                source: String::new(),
            });
        }
        Tuned::of(&experiment, &tune(&THREE)).map(|found| found.says)
    };
    let same = [1e9; 3];
    assert_eq!(says([1.0, 0.80, 0.60], same), Some(Says::All));
    assert_eq!(says([1.0, 0.80, 0.60], [1e9, 1e9, 1.3e9]), Some(Says::Yes), "all take more");
    assert_eq!(says([1.0, 0.80, 0.80], same), Some(Says::Yes), "no difference between them");
    assert_eq!(says([1.0, 0.60, 0.80], same), Some(Says::Yes), "the plan is faster");
    assert_eq!(says([1.0, 1.00, 0.60], same), Some(Says::AllOnly));
}

/// Few rounds that decide make all undecided; that the plan is told apart from nothing is then not said.
#[test]
fn all_that_are_undecided_are_not_called_no_difference() {
    // The baseline differs from itself by more than all from it.
    let times =
        |variant: usize, round: u32| 100.0 * [1.0, 1.0, 0.9, 1.15][variant] * noise(variant, round, 2.0);
    let found = Tuned::of(&rounds(&ARMS, 10, times), &tune(&THREE)).expect("one workload");
    let verdicts: Vec<_> = found.arms.iter().skip(1).map(|arm| arm.verdict).collect();
    assert!(
        matches!(verdicts[..], [Some(Verdict::NoDifference), Some(Verdict::Undecided(_))]),
        "{verdicts:?}"
    );
    assert_eq!(found.says, Says::Undecided);
}

/// The same program under each arm: what is told apart then is noise. `effect/coverage.rs` has the intervals
/// at their level; here are the number of rounds that is usual, the arms, and the verdict.
#[test]
fn arms_of_a_program_that_gains_nothing_are_not_told_apart() {
    const TUNINGS: u32 = 400;
    let random = std::cell::RefCell::new(pagelab_model::seed::SplitMix64::new(20_261_122));
    let uniform = || (random.borrow_mut().draw() >> 11) as f64 / (1u64 << 53) as f64;
    // Twelve uniform numbers less six are nearly normal, of deviation 1.
    let times = |_: usize, _: u32| 100.0 * (0.02 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).exp();
    let (mut held, mut told) = ([0; 2], 0);
    for _ in 0..TUNINGS {
        let found = Tuned::of(&rounds(&ARMS, 7, times), &tune(&THREE)).expect("one workload");
        for (held, arm) in held.iter_mut().zip(&found.arms[1..]) {
            let interval = arm.speed_up.and_then(|(_, interval)| interval).expect("seven pairs have one");
            *held += u32::from(interval.contains(1.0));
        }
        told += u32::from(matches!(found.says, Says::Yes | Says::All | Says::AllOnly | Says::Slower));
    }
    for held in held {
        let share = f64::from(held) / f64::from(TUNINGS);
        assert!((0.91..=0.99).contains(&share), "{share} of the intervals contain 1");
    }
    let share = f64::from(told) / f64::from(TUNINGS);
    assert!(share <= 0.1, "{share} of the verdicts tell a difference");
}

#[test]
fn a_share_is_of_what_all_gain_and_only_where_they_do() {
    let found = judged([1.0, 0.8, 0.6], 1.0, 10);
    assert!(found.share.is_some_and(|share| (share - 0.5).abs() < 0.01), "{:?}", found.share);
    assert_eq!(judged([1.0, 1.0, 1.0], 10.0, 10).share, None);
    assert_eq!(judged([1.0, 1.0, 1.3], 10.0, 10).share, None, "a share of a loss says nothing");
}

#[test]
fn predictions_are_of_the_measured_base_and_of_the_measured_pair() {
    let found = judged([1.0, 0.8, 0.6], 0.0, 10);
    assert_eq!(found.arms[1].predicted, Some(1.25), "20 of 100 saved");
    let scaled = found.arms[1].scaled.expect("all were measured");
    assert!((scaled - 100.0 / 64.0).abs() < 1e-9, "{scaled}: nine tenths of the way from 100 to 60");
    // Without kernel times it may be all page faults, which half of the memory has half of.
    let within = found.arms[1].scaled_within.expect("as well");
    assert!(within.low < 100.0 / 80.0 && within.contains(scaled) && within.high <= 100.0 / 60.0 + 1e-9);
    assert_eq!((found.arms[0].predicted, found.arms[2].scaled), (None, None));
}

#[test]
fn a_plan_that_did_not_come_is_no_effect() {
    let mut experiment = rounds(&ARMS, 10, |variant, _| [100.0, 50.0, 50.0, 100.0][variant]);
    let is_plan = |slot: usize| {
        let slot = experiment.plan.schedule[slot];
        slot.variant == 1 && slot.role == Role::Measured
    };
    let at = (0..experiment.trials.len()).find(|at| is_plan(*at)).expect("a trial of the plan");
    let flag = Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "none of 8".to_owned() };
    experiment.trials[at].flags.push(flag);
    assert_eq!(Tuned::of(&experiment, &tune(&THREE)).map(|found| found.says), Some(Says::NotObtained));
}

#[test]
fn without_a_plan_all_alone_are_judged() {
    let arms = [ARMS[0], ARMS[2]];
    let tune = tune(&[THREE[0], THREE[2]]);
    let says = |all: f64| {
        let times = |variant: usize, round: u32| {
            100.0 * if variant == 1 { all } else { 1.0 } * noise(variant, round, 5.0)
        };
        Tuned::of(&rounds(&arms, 10, times), &tune).map(|found| found.says)
    };
    assert_eq!(says(0.5), Some(Says::AllOnly));
    assert_eq!(says(1.0), Some(Says::NoHelp));
    assert_eq!(says(1.5), Some(Says::Slower));
    let nothing = Tuned::of(&rounds(&arms, 0, |_, _| 1.0), &tune).map(|found| found.says);
    assert_eq!(nothing, Some(Says::NothingPlanned));
}

mod misses {
    use pagelab_model::huge_plan::{PlannedMapping, PlannedProgram, PlannedRegion};
    use pagelab_model::profile::{
        Begun, Cells, ImageProfile, MappingKey, MappingKind, MappingProfile, Profile, ProfileSource, Program,
        Reuse,
    };
    use pagelab_model::{Bytes, PageSize};

    use super::*;
    use crate::tune::regions::regions;

    const MIB: u64 = 1 << 20;

    fn profile(misses: &[(u64, u64)]) -> Profile {
        let key = MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(8 * MIB), nth: 0 };
        let (at, misses): (Vec<u64>, Vec<u64>) = misses.iter().copied().unzip();
        let mapping = MappingProfile {
            key,
            start: 7 * MIB + MIB / 2,
            bytes: Bytes(8 * MIB),
            grain: Bytes(MIB / 2),
            cells: Cells { at, misses, ..Cells::default() },
            reuse: Reuse::default(),
            unseen: Vec::new(),
        };
        let image = ImageProfile {
            pid: 1,
            parent: None,
            begun: Begun::Launched,
            program: Program { path: "x".to_owned(), bytes: None, identity: None },
            arguments: Vec::new(),
            accesses: None,
            instructions: None,
            misses: 0,
            mappings: vec![mapping],
        };
        Profile {
            source: ProfileSource::Exact,
            command: Vec::new(),
            page_size: PageSize::USUAL,
            huge: Bytes(MIB),
            tlb: None,
            walk_cost: None,
            images: vec![image],
            wall_ns: 0,
            effort: Default::default(),
            lost: 0,
            notes: Vec::new(),
            what_ifs: Vec::new(),
            exit: None,
        }
    }

    #[test]
    fn cells_add_up_on_the_grid_of_addresses_and_both_counts_meet() {
        // The mapping begins half a huge page behind a border: its first region begins before it.
        let before = profile(&[(0, 5), (1, 7), (2, 8), (5, 1)]);
        let mut tune = tune(&THREE);
        tune.after = Some(Box::new(profile(&[(0, 5), (1, 1)])));
        let mapping = &before.images[0].mappings[0];
        let planned = PlannedMapping {
            key: mapping.key.clone(),
            start: mapping.start,
            bytes: mapping.bytes,
            regions: vec![PlannedRegion { offset: MIB / 2, page: Bytes(MIB), cost_ns: None }],
            cells: Vec::new(),
        };
        let program = before.images[0].program.clone();
        tune.plan.programs = vec![PlannedProgram { program, mappings: vec![planned] }];
        let found: Vec<_> = regions(&tune, &before)
            .iter()
            .map(|of| (of.offset, of.before, of.after, of.is_planned))
            .collect();
        let half = (MIB / 2) as i64;
        assert_eq!(
            found,
            [
                (half, 15, Some(1), true),
                (-half, 5, Some(5), false),
                (half + 2 * MIB as i64, 1, Some(0), false)
            ]
        );
        tune.after = None;
        assert!(regions(&tune, &before).iter().all(|of| of.after.is_none()));
    }
}
