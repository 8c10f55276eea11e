//! A tuning for the tests: the time without huge pages, with those of a plan, and with all.

use pagelab_model::experiment::{BetterDirection, Experiment, TrialEnd, TrialRole, measures};
use pagelab_model::huge_plan::{HugePlan, PlannedMapping, PlannedProgram, PlannedRegion, PredictedGain};
use pagelab_model::profile::{
    CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingKind, MappingProfile, ProfileSource,
    Program, ReuseHistograms,
};
use pagelab_model::run::{Run, Unit};
use pagelab_model::tune::{CurvePoint, HugePageSelection, KneeRange, TuningArm, TuningRun};
use pagelab_model::{Bytes, PageSize, TlbProfile};

use super::example::record;
use super::experiment::{completed_experiment, measure, noise, plan, variant, workload};

const MIB: u64 = 1 << 20;
const KEY: MappingIdentity = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(64 * MIB), nth: 0 };

/// A run of tune: seconds of none, plan, all, and of a curve's further arms.
pub fn tuning_run(arms: &[(&str, HugePageSelection, Option<u64>)], seconds: &[f64], rounds: u32) -> Run {
    let mut run = record();
    run.manifest.kind = "tune".to_owned();
    (run.series, run.streams, run.events, run.maps) = (vec![], vec![], vec![], vec![]);
    (run.stacks, run.unknown_content) = (None, vec![]);
    run.experiment = Some(Box::new(experiment(arms, seconds, rounds)));
    let program = Program { path: "/usr/bin/server".to_owned(), bytes: None, identity: None };
    run.profile = Some(Box::new(profile(&program, &[900, 20, 700, 10])));
    let arm = |(name, selection, planned): &(&str, HugePageSelection, Option<u64>)| TuningArm {
        name: (*name).to_owned(),
        selection: *selection,
        planned: *planned,
        saved_ns: planned.filter(|pages| *pages > 0).map(|pages| 150_000_000 * pages),
        share_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 500),
        walks_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 600),
        accesses_permille: None,
        all_walks_ns: None,
        touched_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 100),
        overrides_advice: false,
    };
    let region = |offset| PlannedRegion { offset, page: Bytes(2 * MIB), cost_ns: Some(5) };
    let planned = PlannedMapping {
        key: KEY,
        start: 1 << 32,
        bytes: Bytes(64 * MIB),
        regions: vec![region(0), region(4 * MIB)],
        cells: Vec::new(),
    };
    let gain = PredictedGain { speedup_permille: 1220, all_speedup_permille: 1300, share_permille: 860 };
    let programs = vec![PlannedProgram { program: program.clone(), mappings: vec![planned] }];
    let point = |pages, share_permille| CurvePoint { pages, share_permille };
    run.tune = Some(Box::new(TuningRun {
        plan_arguments: "-n 2".to_owned(),
        plan_file: "server.plan.toml".to_owned(),
        plan: HugePlan {
            source: Some(ProfileSource::Exact),
            command: vec!["server".to_owned(), "--bench".to_owned()],
            predicted: Some(gain),
            overrides_advice: false,
            programs,
        },
        huge: 2 * MIB,
        arms: arms.iter().map(arm).collect(),
        after: Some(Box::new(profile(&program, &[1, 20, 2, 10]))),
        curve: vec![point(1, 500), point(2, 860), point(32, 1000)],
        knee: Some(2),
        knee_range: Some(KneeRange { low: 2, high: 3, share_permille: 860 }),
        knee_absence: None,
        most_of_gain: Some(point(5, 905)),
        pid: None,
        notes: Vec::new(),
    }));
    run
}

fn profile(program: &Program, misses: &[u64]) -> TlbProfile {
    let mapping = MappingProfile {
        key: KEY,
        start: 1 << 32,
        bytes: Bytes(64 * MIB),
        grain: Bytes(2 * MIB),
        cells: CellCounts {
            at: (0..misses.len() as u64).collect(),
            misses: misses.to_vec(),
            ..CellCounts::default()
        },
        reuse: ReuseHistograms::default(),
        unseen: Vec::new(),
    };
    let image = ImageProfile {
        pid: 7,
        parent: None,
        begun: ImageStart::Launched,
        program: program.clone(),
        arguments: vec!["server".to_owned()],
        accesses: None,
        instructions: None,
        misses: misses.iter().sum(),
        mappings: vec![mapping],
        advice: None,
    };
    TlbProfile {
        source: ProfileSource::Exact,
        command: vec!["server".to_owned()],
        page_size: PageSize::DEFAULT,
        huge: Bytes(2 * MIB),
        tlb: None,
        walk_cost: None,
        images: vec![image],
        wall_ns: 20_000_000_000,
        effort: Default::default(),
        lost: 0,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

fn experiment(arms: &[(&str, HugePageSelection, Option<u64>)], seconds: &[f64], rounds: u32) -> Experiment {
    let variants = arms
        .iter()
        .map(|(name, selection, _)| variant(name, &[("plan", name)], *selection != HugePageSelection::None))
        .collect::<Vec<_>>();
    let plan = plan("tune", "Do huge pages help?", vec![workload("server", None)], variants);
    completed_experiment(plan, rounds, true, |slot, random| {
        let at = if slot.role == TrialRole::Twin { 0 } else { slot.variant };
        let (wall, selection) = (seconds[at] * 1e9 * noise(random, 0.01), arms[at].1);
        let time = |name, ns: f64| measure(name, Unit::NANOSECONDS, BetterDirection::Lower, ns);
        let pages = match selection {
            HugePageSelection::None => 0.0,
            HugePageSelection::All => 32.0,
            _ => arms[at].2.unwrap_or(0) as f64,
        };
        let faults = if selection == HugePageSelection::None { 16_900.0 } else { 16_900.0 - 511.0 * pages };
        let counter = format!("{}dTLB-load-misses", measures::COUNTER_PREFIX);
        let mut found = vec![
            time(measures::WALL, wall),
            time(measures::CPU, wall * 0.95),
            time(measures::CPU_USER, wall * 0.9),
            time(measures::CPU_SYSTEM, wall * 0.05),
            measure("counter.minor-faults", Unit::COUNT, BetterDirection::Lower, faults),
            measure(measures::PEAK_MEMORY, Unit::BYTES, BetterDirection::Lower, 80e6 + pages * 1e6),
            measure(measures::HUGE_BYTES, Unit::BYTES, BetterDirection::Neither, pages * (2 * MIB) as f64),
            measure(&counter, Unit::COUNT, BetterDirection::Lower, 1_600_000.0 - 40_000.0 * pages),
        ];
        if selection != HugePageSelection::None && selection != HugePageSelection::All {
            found.push(measure(measures::PLAN_REQUESTED, Unit::COUNT, BetterDirection::Neither, pages));
            found.push(measure(measures::PLAN_ALLOCATED, Unit::COUNT, BetterDirection::Neither, pages));
        }
        (TrialEnd::Done, found)
    })
}
