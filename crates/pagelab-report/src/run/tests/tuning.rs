//! A tuning for the tests: what it takes without huge pages, with a plan's, and with all.

use pagelab_model::experiment::{Better, Experiment, Role, TrialEnd, measures};
use pagelab_model::huge_plan::{HugePlan, PlanGain, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::profile::{
    Begun, Cells, ImageProfile, MappingKey, MappingKind, MappingProfile, ProfileSource, Program, Reuse,
};
use pagelab_model::run::{Run, Unit};
use pagelab_model::tune::{Arm, CurvePoint, On, Tune};
use pagelab_model::{Bytes, PageSize, Profile};

use super::example::record;
use super::experiment::{carried_out, measure, noise, plan, variant, workload};

const MIB: u64 = 1 << 20;
const KEY: MappingKey = MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(64 * MIB), nth: 0 };

/// A run of tune: seconds of none, plan, all, and of a curve's further arms.
pub fn tuned(arms: &[(&str, On, Option<u64>)], seconds: &[f64], rounds: u32) -> Run {
    let mut run = record();
    run.manifest.kind = "tune".to_owned();
    (run.series, run.streams, run.events, run.maps) = (vec![], vec![], vec![], vec![]);
    (run.stacks, run.not_shown) = (None, vec![]);
    run.experiment = Some(Box::new(experiment(arms, seconds, rounds)));
    let program = Program { path: "/usr/bin/server".to_owned(), bytes: None, identity: None };
    run.profile = Some(Box::new(profile(&program, &[900, 20, 700, 10])));
    let arm = |(name, on, planned): &(&str, On, Option<u64>)| Arm {
        name: (*name).to_owned(),
        on: *on,
        planned: *planned,
        saved_ns: planned.filter(|pages| *pages > 0).map(|pages| 150_000_000 * pages),
        share_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 500),
        walks_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 600),
        accesses_permille: None,
        all_walks_ns: None,
        touched_permille: planned.filter(|pages| *pages > 0).map(|pages| 10 * pages as u32 + 100),
    };
    let region = |offset| PlannedRegion { offset, page: Bytes(2 * MIB), cost_ns: Some(5) };
    let planned = PlannedMapping {
        key: KEY,
        start: 1 << 32,
        bytes: Bytes(64 * MIB),
        regions: vec![region(0), region(4 * MIB)],
        cells: Vec::new(),
    };
    let gain = PlanGain { speedup_permille: 1220, all_speedup_permille: 1300, share_permille: 860 };
    let programs = vec![PlannedProgram { program: program.clone(), mappings: vec![planned] }];
    let point = |pages, share_permille| CurvePoint { pages, share_permille };
    run.tune = Some(Box::new(Tune {
        asked: "-n 2".to_owned(),
        plan_file: "server.plan.toml".to_owned(),
        plan: HugePlan {
            source: Some(ProfileSource::Exact),
            command: vec!["server".to_owned(), "--bench".to_owned()],
            predicted: Some(gain),
            programs,
        },
        huge: 2 * MIB,
        arms: arms.iter().map(arm).collect(),
        after: Some(Box::new(profile(&program, &[1, 20, 2, 10]))),
        curve: vec![point(1, 500), point(2, 860), point(32, 1000)],
        knee: Some(2),
        pid: None,
        notes: Vec::new(),
    }));
    run
}

fn profile(program: &Program, misses: &[u64]) -> Profile {
    let mapping = MappingProfile {
        key: KEY,
        start: 1 << 32,
        bytes: Bytes(64 * MIB),
        grain: Bytes(2 * MIB),
        cells: Cells { at: (0..misses.len() as u64).collect(), misses: misses.to_vec(), ..Cells::default() },
        reuse: Reuse::default(),
        unseen: Vec::new(),
    };
    let image = ImageProfile {
        pid: 7,
        parent: None,
        begun: Begun::Launched,
        program: program.clone(),
        arguments: vec!["server".to_owned()],
        accesses: None,
        instructions: None,
        misses: misses.iter().sum(),
        mappings: vec![mapping],
    };
    Profile {
        source: ProfileSource::Exact,
        command: vec!["server".to_owned()],
        page_size: PageSize::USUAL,
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

fn experiment(arms: &[(&str, On, Option<u64>)], seconds: &[f64], rounds: u32) -> Experiment {
    let variants = arms
        .iter()
        .map(|(name, on, _)| variant(name, &[("plan", name)], *on != On::Nothing))
        .collect::<Vec<_>>();
    let plan = plan("tune", "Do huge pages help?", vec![workload("server", None)], variants);
    carried_out(plan, rounds, true, |slot, random| {
        let at = if slot.role == Role::Twin { 0 } else { slot.variant };
        let (wall, on) = (seconds[at] * 1e9 * noise(random, 0.01), arms[at].1);
        let time = |name, ns: f64| measure(name, Unit::NANOSECONDS, Better::Lower, ns);
        let pages = match on {
            On::Nothing => 0.0,
            On::All => 32.0,
            _ => arms[at].2.unwrap_or(0) as f64,
        };
        let faults = if on == On::Nothing { 16_900.0 } else { 16_900.0 - 511.0 * pages };
        let counter = format!("{}dTLB-load-misses", measures::COUNTER);
        let mut found = vec![
            time(measures::WALL, wall),
            time(measures::CPU, wall * 0.95),
            time(measures::CPU_USER, wall * 0.9),
            time(measures::CPU_SYSTEM, wall * 0.05),
            measure("counter.minor-faults", Unit::COUNT, Better::Lower, faults),
            measure(measures::PEAK, Unit::BYTES, Better::Lower, 80e6 + pages * 1e6),
            measure(measures::HUGE, Unit::BYTES, Better::Neither, pages * (2 * MIB) as f64),
            measure(&counter, Unit::COUNT, Better::Lower, 1_600_000.0 - 40_000.0 * pages),
        ];
        if on != On::Nothing && on != On::All {
            found.push(measure(measures::PLAN_WANTED, Unit::COUNT, Better::Neither, pages));
            found.push(measure(measures::PLAN_GOT, Unit::COUNT, Better::Neither, pages));
        }
        (TrialEnd::Done, found)
    })
}
