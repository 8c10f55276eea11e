//! Experiments for the tests: the figures of a report on huge pages, modes, a factorial, a decreasing limit.

use pagelab_model::experiment::{
    BetterDirection, Experiment, Flag, Measure, Plan, PlannedVariant, PlannedWorkload, ScheduleSlot,
    Sequence, Trial, TrialEnd, TrialRole, measures,
};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason};

pub fn measure(name: &str, unit: &str, better: BetterDirection, value: f64) -> Measure {
    Measure::new(name, unit, better, Ok(value), "the test")
}

pub fn variant(name: &str, settings: &[(&str, &str)], asks_for_huge_pages: bool) -> PlannedVariant {
    let setting = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    PlannedVariant {
        name: name.to_owned(),
        settings: settings.iter().map(setting).collect(),
        asks_for_huge_pages,
        lists: Vec::new(),
    }
}

pub(super) fn workload(name: &str, merit: Option<&str>) -> PlannedWorkload {
    PlannedWorkload {
        name: name.to_owned(),
        command: ["pagelab", "workload", name, "--size", "1G"].map(str::to_owned).to_vec(),
        generator: "dependent loads, uniform, each byte written first".to_owned(),
        merit: merit.map(str::to_owned),
        simulated: None,
    }
}

pub(super) fn plan(
    name: &str,
    question: &str,
    workloads: Vec<PlannedWorkload>,
    variants: Vec<PlannedVariant>,
) -> Plan {
    Plan {
        name: name.to_owned(),
        question: question.to_owned(),
        explanation: String::new(),
        simulator: None,
        sweep: None,
        pictures: 0,
        early_end: None,
        dropped_variants: Default::default(),
        origin: "built in".to_owned(),
        recipe: "name = \"thp\"\n".to_owned(),
        place: "host".to_owned(),
        workloads,
        variants,
        baseline: Some(0),
        sequence: Sequence::Abba,
        seed: 7,
        loss: pagelab_model::experiment::DEFAULT_LOSS,
        schedule: Vec::new().into(),
    }
}

/// Rounds of every variant and, if `twin`, of the baseline again; `of` returns the result of a trial.
pub(super) fn completed_experiment(
    mut plan: Plan,
    rounds: u32,
    twin: bool,
    mut of: impl FnMut(&ScheduleSlot, &mut SplitMix64) -> (TrialEnd, Vec<Measure>),
) -> Experiment {
    let mut schedule = Vec::new();
    for workload in 0..plan.workloads.len() {
        for round in 0..rounds {
            let slot = |variant, role| ScheduleSlot { workload, variant, round, role };
            let mut slots: Vec<ScheduleSlot> =
                (0..plan.variants.len()).map(|variant| slot(variant, TrialRole::Measured)).collect();
            if twin {
                slots.extend(plan.baseline.map(|baseline| slot(baseline, TrialRole::Twin)));
            }
            if round % 2 == 1 {
                slots.reverse();
            }
            schedule.extend(slots);
        }
    }
    plan.schedule = schedule.into();
    let mut random = SplitMix64::new(plan.seed);
    let trial = |(place, slot): (usize, ScheduleSlot)| {
        let (end, measures) = of(&slot, &mut random);
        let last_output =
            if end == TrialEnd::Done { String::new() } else { "allocating …\nout of memory\n".to_owned() };
        Trial {
            ended_ns: place as u64 * 2_000_000_000 + 1_900_000_000,
            end,
            measures,
            last_output,
            ..Trial::new(place, place as u64 * 2_000_000_000)
        }
    };
    let trials = plan.schedule.iter().enumerate().map(trial).collect();
    Experiment { plan, trials }
}

/// A factor close to 1.
pub(super) fn noise(random: &mut SplitMix64, share: f64) -> f64 {
    1.0 + share * (random.next_below(2001) as f64 / 1000.0 - 1.0)
}

/// Times and misses with and without huge pages, one run each: the figures of section 0 of the sources.
pub fn paper_figures_experiment() -> Experiment {
    // real, user and sys in ms, then misses of dTLB, iTLB and caches.
    const OFF: [[f64; 6]; 3] = [
        [249_881.0, 249_412.0, 468.0, 705_221.0, 319_231.0, 18_212_537.0],
        [102_412.0, 101_640.0, 773.0, 571_794.0, 422_157.0, 13_047_344.0],
        [474_771.0, 474_721.0, 48.0, 1_092_582.0, 528_868.0, 28_123_182.0],
    ];
    const ON: [[f64; 6]; 3] = [
        [239_511.0, 239_059.0, 452.0, 524_074.0, 243_742.0, 12_672_653.0],
        [98_981.0, 98_764.0, 218.0, 231_039.0, 110_001.0, 5_722_100.0],
        [429_417.0, 429_404.0, 8.0, 704_424.0, 373_907.0, 19_129_316.0],
    ];
    let names = ["canneal", "fmm", "streamcluster"];
    let variants =
        vec![variant("disabled", &[("thp", "never")], false), variant("enabled", &[("thp", "always")], true)];
    let workloads = names.map(|name| workload(name, None)).to_vec();
    let plan = plan("thp", "Is a program faster with huge pages?", workloads, variants);
    completed_experiment(plan, 1, false, |slot, _| {
        let row = if slot.variant == 0 { OFF } else { ON }[slot.workload];
        let time = |name, ms: f64| measure(name, Unit::NANOSECONDS, BetterDirection::Lower, ms * 1e6);
        let misses = |name: &str, count| {
            measure(
                &format!("{}{name}", measures::COUNTER_PREFIX),
                Unit::COUNT,
                BetterDirection::Lower,
                count,
            )
        };
        let measures = vec![
            time(measures::WALL, row[0]),
            time(measures::CPU_USER, row[1]),
            time(measures::CPU_SYSTEM, row[2]),
            measure("perf.running", Unit::NANOSECONDS, BetterDirection::Lower, 239_317_377_674.0),
            misses("dTLB-load-misses", row[3]),
            misses("iTLB-load-misses", row[4]),
            misses("cache-misses", row[5]),
        ];
        (TrialEnd::Done, measures)
    })
}

/// Three modes of huge pages for a program that gains, one without effect, and one without huge pages.
pub fn thp_modes_experiment() -> Experiment {
    let variants = vec![
        variant("never", &[("thp", "never-prctl")], false),
        variant("madvise", &[("thp", "madvise")], true),
        variant("always", &[("thp", "always")], true),
    ];
    let workloads =
        vec![workload("chase", Some(measures::MERIT)), workload("sort", None), workload("tiny", None)];
    let plan =
        plan("thp", "Is a program faster with huge pages, and what do they cost?", workloads, variants);
    let mut experiment = completed_experiment(plan, 10, true, |slot, random| {
        let is_asked = slot.variant > 0 && slot.role == TrialRole::Measured;
        let gain = match (slot.workload, is_asked) {
            (0, true) => 0.52,
            _ => 1.0,
        };
        let huge = if is_asked && slot.workload != 2 { f64::from(1 << 30) } else { 0.0 };
        let wall = 2.1e9 * gain * noise(random, 0.02);
        let mut found = vec![
            measure(measures::WALL, Unit::NANOSECONDS, BetterDirection::Lower, wall),
            measure(
                measures::PEAK_MEMORY,
                Unit::BYTES,
                BetterDirection::Lower,
                1.08e9 * if slot.variant == 2 { 1.12 } else { 1.0 },
            ),
            measure(measures::HUGE_BYTES, Unit::BYTES, BetterDirection::Neither, huge),
        ];
        if slot.workload == 0 {
            found.push(measure(
                measures::MERIT,
                Unit::NANOSECONDS,
                BetterDirection::Lower,
                94.0 * wall / 2.1e9,
            ));
            let stall = 420.0 * if slot.variant == 2 { 1.4 } else { 1.0 } * noise(random, 0.05);
            found.push(measure("latency.p99.9", Unit::NANOSECONDS, BetterDirection::Lower, stall));
        }
        let no_counter = Absence::new("perf_event_open", AbsenceReason::NotThere, "this VM has no PMU");
        for name in ["dTLB-load-misses", "cycles"] {
            let absent = measure(&format!("counter.{name}"), Unit::COUNT, BetterDirection::Lower, 0.0);
            found.push(Measure { value: Err(no_counter.clone()), ..absent });
        }
        (TrialEnd::Done, found)
    });
    let schedule = experiment.plan.schedule.clone();
    for trial in &mut experiment.trials {
        let slot = schedule.get(trial.slot).unwrap();
        let flag = |kind: &str, text: &str| Flag { kind: kind.to_owned(), text: text.to_owned() };
        if slot.workload == 2 && slot.variant > 0 {
            trial.flags.push(flag(Flag::NO_HUGE_PAGES, "0 B of 40 KiB came in huge pages"));
        }
        if trial.slot == 5 {
            trial.flags.push(flag(Flag::NOT_QUIET, "load 2.10 on 2 CPUs before it began"));
        }
        if slot.workload == 1 && slot.variant == 2 && slot.round == 4 {
            trial.end = TrialEnd::Failed(3);
            trial.last_output = "sort: reading: input/output error\n".to_owned();
        }
    }
    experiment
}

/// Mappings of anonymous memory and files, private and shared, populated or not, read in two orders.
pub fn mapping_experiment() -> Experiment {
    let mut variants = Vec::new();
    for mapping in ["anon", "file"] {
        for sharing in ["private", "shared"] {
            for populate in ["none", "populate"] {
                for access in ["sequential", "random"] {
                    let settings = [
                        ("options.mapping", mapping),
                        ("options.sharing", sharing),
                        ("options.populate", populate),
                        ("options.access", access),
                    ];
                    let name = format!("{mapping} {sharing} {populate} {access}");
                    variants.push(variant(&name, &settings, false));
                }
            }
        }
    }
    let workloads = vec![workload("mmap-access", None)];
    let plan = plan("mmap-lab", "What does each way of mapping memory cost?", workloads, variants);
    let settings: Vec<PlannedVariant> = plan.variants.clone();
    completed_experiment(plan, 7, true, |slot, random| {
        let has = |value: &str| settings[slot.variant].settings.iter().any(|(_, of)| of == value);
        let factor = [("file", 1.3), ("shared", 1.1), ("populate", 0.8), ("random", 2.4)];
        let cost: f64 = factor.iter().map(|&(word, times)| if has(word) { times } else { 1.0 }).product();
        let faults = if has("populate") { 12.0 } else { 262_250.0 };
        let measures = vec![
            measure(
                measures::WALL,
                Unit::NANOSECONDS,
                BetterDirection::Lower,
                8e8 * cost * noise(random, 0.02),
            ),
            measure("rusage.minflt", Unit::COUNT, BetterDirection::Lower, faults),
            measure(
                measures::PEAK_MEMORY,
                Unit::BYTES,
                BetterDirection::Lower,
                1.07e9 * noise(random, 0.001),
            ),
        ];
        (TrialEnd::Done, measures)
    })
}

/// A sort under a decreasing memory limit, down to the limit at which it is killed.
pub fn falling_limit_experiment() -> Experiment {
    let limits = ["none", "1G", "768M", "512M", "384M", "256M"];
    let variant = |limit: &&str| match *limit {
        "none" => variant("unlimited", &[], false),
        limit => variant(limit, &[("memory_limit", limit)], false),
    };
    let variants = limits.iter().map(variant).collect();
    let workloads = vec![workload("quicksort", None)];
    let plan = plan("memory-size", "How much memory does a program need?", workloads, variants);
    completed_experiment(plan, 6, true, |slot, random| {
        let cost = [1.0, 1.0, 1.04, 1.6, 3.2, 0.0][slot.variant];
        if cost == 0.0 {
            return (TrialEnd::OutOfMemory, Vec::new());
        }
        let faults = [0.0, 0.0, 2100.0, 41_000.0, 160_000.0][slot.variant];
        let count = |name: &str, value| measure(name, Unit::COUNT, BetterDirection::Lower, value);
        let measures = vec![
            measure(
                measures::WALL,
                Unit::NANOSECONDS,
                BetterDirection::Lower,
                4e9 * cost * noise(random, 0.01),
            ),
            count("rusage.majflt", faults),
            count("vmstat.workingset_refault_anon", faults * 1.1),
        ];
        (TrialEnd::Done, measures)
    })
}

/// Hostile text in every name from a file.
#[allow(dead_code, reason = "the pages have one of their own")]
pub fn hostile_experiment() -> Experiment {
    let mut experiment = paper_figures_experiment();
    let evil = |at: usize| format!("../{at}\u{1b}[2J\u{202e}<img src=x>,\"\nFORGED");
    let plan = &mut experiment.plan;
    (plan.name, plan.question, plan.place) = (evil(1), evil(2), evil(3));
    plan.workloads.iter_mut().enumerate().for_each(|(at, of)| {
        (of.name, of.generator) = (evil(at), evil(9));
        of.command = vec![evil(4); 3];
    });
    plan.variants.iter_mut().enumerate().for_each(|(at, of)| {
        of.name = evil(at);
        of.settings = vec![(evil(5), evil(6))];
    });
    for trial in &mut experiment.trials {
        trial.flags.push(Flag { kind: evil(7), text: evil(8) });
        trial.measures.iter_mut().filter(|of| of.name != measures::WALL).for_each(|of| {
            let head = std::sync::Arc::make_mut(&mut of.head);
            head.name = format!("{}{}{}", measures::COUNTER_PREFIX, evil(4), head.name);
            (head.unit, head.source) = (evil(1).as_str().into(), evil(2));
        });
    }
    experiment.trials[2].end = TrialEnd::InvalidResult(evil(3));
    experiment.trials[2].last_output = evil(3);
    experiment
}
