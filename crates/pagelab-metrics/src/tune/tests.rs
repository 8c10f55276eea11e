//! Tests: handmade tunings and their expected verdicts; cases are data.

use pagelab_model::HugePlan;
use pagelab_model::experiment::{Flag, Measure, TrialRole};
use pagelab_model::tune::TuningArm;

use super::*;
use crate::effect::tests::rounds;

const ARMS: [(&str, &str); 3] = [("none", "never"), ("plan", "madvise"), ("all", "always")];

fn tune(arms: &[(&str, HugePageSelection)]) -> TuningRun {
    let arm = |(name, selection): &(&str, HugePageSelection)| TuningArm {
        name: (*name).to_owned(),
        selection: *selection,
        planned: (*selection == HugePageSelection::Plan).then_some(1),
        saved_ns: (*selection == HugePageSelection::Plan).then_some(20),
        share_permille: (*selection == HugePageSelection::Plan).then_some(900),
        walks_permille: (*selection == HugePageSelection::Plan).then_some(950),
        accesses_permille: None,
        all_walks_ns: None,
        touched_permille: (*selection == HugePageSelection::Plan).then_some(500),
        overrides_advice: false,
    };
    let plan = HugePlan::default();
    TuningRun {
        plan_arguments: "-n 1".to_owned(),
        plan_file: "x".to_owned(),
        plan,
        huge: 1 << 20,
        arms: arms.iter().map(arm).collect(),
        after: None,
        curve: Vec::new(),
        knee: None,
        knee_range: None,
        knee_absence: None,
        most_of_gain: None,
        pid: None,
        notes: Vec::new(),
    }
}

const THREE: [(&str, HugePageSelection); 3] =
    [("none", HugePageSelection::None), ("plan", HugePageSelection::Plan), ("all", HugePageSelection::All)];

/// Noise in thousandths that differs from round to round.
fn noise(variant: usize, round: u32, permille: f64) -> f64 {
    let turn = (round as usize * 7 + variant * 3) % 10;
    1.0 + (turn as f64 - 4.5) / 4.5 * permille / 1000.0
}

fn judged(factors: [f64; 3], permille: f64, count: u32) -> TuningResult {
    let times = |variant: usize, round: u32| {
        let factor = factors.get(variant).copied().unwrap_or(factors[0]);
        100.0 * factor * noise(variant, round, permille)
    };
    TuningResult::from_experiment(&rounds(&ARMS, count, times), &tune(&THREE)).expect("one workload")
}

#[test]
fn each_outcome_has_its_verdict() {
    let cases = [
        // Times of none, plan and all, noise in thousandths, rounds; the verdict, and who is faster.
        ([1.0, 0.80, 0.79], 2.0, 10, TuningVerdict::PlanHelps, Some(HugePageSelection::All)),
        ([1.0, 0.80, 0.80], 10.0, 10, TuningVerdict::PlanHelps, None),
        ([1.0, 0.80, 0.60], 10.0, 10, TuningVerdict::PlanHelps, Some(HugePageSelection::All)),
        ([1.0, 0.70, 0.80], 10.0, 10, TuningVerdict::PlanHelps, Some(HugePageSelection::Plan)),
        ([1.0, 1.00, 0.60], 10.0, 10, TuningVerdict::OnlyAllHelps, Some(HugePageSelection::All)),
        ([1.0, 1.10, 0.60], 10.0, 10, TuningVerdict::OnlyAllHelps, Some(HugePageSelection::All)),
        ([1.0, 1.20, 1.30], 10.0, 10, TuningVerdict::Slower, Some(HugePageSelection::Plan)),
        ([1.0, 1.00, 1.00], 10.0, 10, TuningVerdict::NoHelp, None),
        ([1.0, 1.00, 1.00], 200.0, 10, TuningVerdict::NoDifference, None),
        ([1.0, 0.50, 0.50], 10.0, 5, TuningVerdict::TooFew, None),
        ([1.0, 0.99, 0.99], 20.0, 10, TuningVerdict::NoHelp, None),
    ];
    for (factors, permille, count, says, faster) in cases {
        let found = judged(factors, permille, count);
        assert_eq!(
            (found.verdict, found.faster_selection()),
            (says, faster),
            "{factors:?} {permille} {count}"
        );
    }
}

/// A program that requests huge pages itself: each arm also has its gain against none at all.
#[test]
fn a_gain_beyond_a_programs_own_huge_pages_has_both_bases() {
    const FOUR: [(&str, &str); 4] =
        [("none", "never"), ("plan", "madvise"), ("all", "always"), ("never", "never")];
    let arms = [&THREE[..], &[("never", HugePageSelection::Never)]].concat();
    let factors = [1.0, 0.8, 0.75, 1.25];
    let times = |variant: usize, round: u32| {
        100.0 * factors.get(variant).unwrap_or(&factors[0]) * noise(variant, round, 10.0)
    };
    let mut tuned = tune(&arms);
    tuned.arms[1].saved_ns = Some(25);
    let found = TuningResult::from_experiment(&rounds(&FOUR, 10, times), &tuned).expect("one workload");
    assert_eq!(found.verdict, TuningVerdict::PlanHelps);
    // 25 of the 125 that it takes without any huge page, and not of the 100 with its own.
    let predicted = found.arms[1].predicted_speed_up.expect("a cost");
    assert!((predicted - 1.25).abs() < 0.01, "{predicted}");
    for (arm, expected) in found.arms.iter().zip([Some(1.25), Some(1.25 / 0.8), Some(1.25 / 0.75), None]) {
        let within = arm.speed_up_from_never.map(|(_, interval)| interval.expect("enough rounds"));
        assert_eq!(within.is_some(), expected.is_some());
        assert!(
            within.is_none_or(|within| within.contains(expected.unwrap_or(0.0))),
            "{within:?} {expected:?}"
        );
    }
    let three = judged([1.0, 0.8, 0.75], 10.0, 10);
    assert!(three.arms.iter().all(|arm| arm.speed_up_from_never.is_none()), "no arm without any");
}

/// An arm that got no huge page in its first trial has no others, and gives no verdict.
#[test]
fn a_dropped_plan_gives_no_verdict() {
    let times = |variant: usize, round: u32| {
        let factor = [1.0, 0.5, 0.5, 1.0][variant];
        100.0 * factor * noise(variant, round, 10.0)
    };
    let mut experiment = rounds(&ARMS, 10, times);
    let judge = |experiment: &Experiment| TuningResult::from_experiment(experiment, &tune(&THREE)).unwrap();
    assert_eq!(judge(&experiment).verdict, TuningVerdict::PlanHelps);
    experiment.plan.dropped_variants.insert(1);
    assert_eq!(judge(&experiment).verdict, TuningVerdict::NotAllocated);
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
            let variant = schedule.get(trial.slot).unwrap().variant;
            let value = Ok(memory[variant] * noise(variant, 0, 4.0));
            let (name, better) = (measures::PEAK_MEMORY, BetterDirection::Lower);
            trial.measures.push(Measure::new(name, Unit::BYTES, better, value, ""));
        }
        TuningResult::from_experiment(&experiment, &tune(&THREE)).map(|found| found.verdict)
    };
    let same = [1e9; 3];
    assert_eq!(says([1.0, 0.80, 0.60], same), Some(TuningVerdict::AllHelpsMore));
    assert_eq!(says([1.0, 0.80, 0.60], [1e9, 1e9, 1.3e9]), Some(TuningVerdict::PlanHelps), "all take more");
    assert_eq!(says([1.0, 0.80, 0.80], same), Some(TuningVerdict::PlanHelps), "no difference between them");
    assert_eq!(says([1.0, 0.60, 0.80], same), Some(TuningVerdict::PlanHelps), "the plan is faster");
    assert_eq!(says([1.0, 1.00, 0.60], same), Some(TuningVerdict::OnlyAllHelps));
}

/// Too few rounds leave all undecided; then no difference between the plan and nothing is reported.
#[test]
fn all_that_are_undecided_are_not_called_no_difference() {
    // The baseline differs from itself by more than all from it.
    let times =
        |variant: usize, round: u32| 100.0 * [1.0, 1.0, 0.9, 1.15][variant] * noise(variant, round, 2.0);
    let found =
        TuningResult::from_experiment(&rounds(&ARMS, 10, times), &tune(&THREE)).expect("one workload");
    let verdicts: Vec<_> = found.arms.iter().skip(1).map(|arm| arm.verdict).collect();
    assert!(
        matches!(verdicts[..], [Some(EffectVerdict::NoDifference), Some(EffectVerdict::Undecided(_))]),
        "{verdicts:?}"
    );
    assert_eq!(found.verdict, TuningVerdict::Undecided);
}

/// The same program under each arm: a difference is noise. `effect/coverage.rs` has the intervals at their
/// level; here are the number of rounds that is usual, the arms, and the verdict.
#[test]
fn arms_of_a_program_that_gains_nothing_are_not_told_apart() {
    const TUNINGS: u32 = 400;
    let random = std::cell::RefCell::new(pagelab_model::random::SplitMix64::new(20_261_122));
    let uniform = || (random.borrow_mut().next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    // Twelve uniform numbers less six are nearly normal, of deviation 1.
    let times = |_: usize, _: u32| 100.0 * (0.02 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).exp();
    let (mut held, mut told) = ([0; 2], 0);
    for _ in 0..TUNINGS {
        let found =
            TuningResult::from_experiment(&rounds(&ARMS, 7, times), &tune(&THREE)).expect("one workload");
        for (held, arm) in held.iter_mut().zip(&found.arms[1..]) {
            let interval = arm.speed_up.and_then(|(_, interval)| interval).expect("seven pairs have one");
            *held += u32::from(interval.contains(1.0));
        }
        told += u32::from(matches!(
            found.verdict,
            TuningVerdict::PlanHelps
                | TuningVerdict::AllHelpsMore
                | TuningVerdict::OnlyAllHelps
                | TuningVerdict::Slower
        ));
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
    assert!(found.gain_share.is_some_and(|share| (share - 0.5).abs() < 0.01), "{:?}", found.gain_share);
    assert_eq!(judged([1.0, 1.0, 1.0], 10.0, 10).gain_share, None);
    assert_eq!(judged([1.0, 1.0, 1.3], 10.0, 10).gain_share, None, "a share of a loss says nothing");
}

#[test]
fn predictions_are_of_the_measured_base_and_of_the_measured_pair() {
    let found = judged([1.0, 0.8, 0.6], 0.0, 10);
    assert_eq!(found.arms[1].predicted_speed_up, Some(1.25), "20 of 100 saved");
    let scaled = found.arms[1].scaled_speed_up.expect("all were measured");
    assert!((scaled - 100.0 / 64.0).abs() < 1e-9, "{scaled}: nine tenths of the way from 100 to 60");
    // Without kernel times it may be all page faults, which half of the memory has half of.
    let within = found.arms[1].scaled_interval.expect("as well");
    assert!(within.low < 100.0 / 80.0 && within.contains(scaled) && within.high <= 100.0 / 60.0 + 1e-9);
    assert_eq!((found.arms[0].predicted_speed_up, found.arms[2].scaled_speed_up), (None, None));
}

#[test]
fn a_plan_that_did_not_come_is_no_effect() {
    let mut experiment = rounds(&ARMS, 10, |variant, _| [100.0, 50.0, 50.0, 100.0][variant]);
    let is_plan = |slot: usize| {
        let slot = experiment.plan.schedule.get(slot).unwrap();
        slot.variant == 1 && slot.role == TrialRole::Measured
    };
    let at = (0..experiment.trials.len()).find(|at| is_plan(*at)).expect("a trial of the plan");
    let flag = Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "none of 8".to_owned() };
    experiment.trials[at].flags.push(flag);
    assert_eq!(
        TuningResult::from_experiment(&experiment, &tune(&THREE)).map(|found| found.verdict),
        Some(TuningVerdict::NotAllocated)
    );
}

#[test]
fn without_a_plan_all_alone_are_judged() {
    let arms = [ARMS[0], ARMS[2]];
    let tune = tune(&[THREE[0], THREE[2]]);
    let says = |all: f64| {
        let times = |variant: usize, round: u32| {
            100.0 * if variant == 1 { all } else { 1.0 } * noise(variant, round, 5.0)
        };
        TuningResult::from_experiment(&rounds(&arms, 10, times), &tune).map(|found| found.verdict)
    };
    assert_eq!(says(0.5), Some(TuningVerdict::OnlyAllHelps));
    assert_eq!(says(1.0), Some(TuningVerdict::NoHelp));
    assert_eq!(says(1.5), Some(TuningVerdict::Slower));
    let nothing =
        TuningResult::from_experiment(&rounds(&arms, 0, |_, _| 1.0), &tune).map(|found| found.verdict);
    assert_eq!(nothing, Some(TuningVerdict::NothingPlanned));
}

mod misses {
    use pagelab_model::huge_plan::{PlannedMapping, PlannedProgram, PlannedRegion};
    use pagelab_model::profile::{
        CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingKind, MappingProfile, ProfileSource,
        Program, ReuseHistograms, TlbProfile,
    };
    use pagelab_model::{Bytes, PageSize};

    use super::*;
    use crate::tune::compare_regions;

    const MIB: u64 = 1 << 20;

    fn profile(misses: &[(u64, u64)]) -> TlbProfile {
        let key = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(8 * MIB), nth: 0 };
        let (at, misses): (Vec<u64>, Vec<u64>) = misses.iter().copied().unzip();
        let mapping = MappingProfile {
            key,
            start: 7 * MIB + MIB / 2,
            bytes: Bytes(8 * MIB),
            grain: Bytes(MIB / 2),
            cells: CellCounts { at, misses, ..CellCounts::default() },
            reuse: ReuseHistograms::default(),
            unseen: Vec::new(),
        };
        let image = ImageProfile {
            pid: 1,
            parent: None,
            begun: ImageStart::Launched,
            program: Program { path: "x".to_owned(), bytes: None, identity: None },
            arguments: Vec::new(),
            accesses: None,
            instructions: None,
            misses: 0,
            mappings: vec![mapping],
            advice: None,
        };
        TlbProfile {
            source: ProfileSource::Exact,
            command: Vec::new(),
            page_size: PageSize::DEFAULT,
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
        let found: Vec<_> = compare_regions(&tune, &before)
            .iter()
            .map(|of| (of.offset, of.misses_before, of.misses_after, of.is_planned))
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
        assert!(compare_regions(&tune, &before).iter().all(|of| of.misses_after.is_none()));
    }
}
