//! Tests of `pagelab tune` and `plan =` in recipes: from a profile to the verdict, on real programs.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagelab_model::experiment::{Trial, TrialEnd, measures};
use pagelab_model::profile::{
    CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingKind, MappingProfile, OwnAdvice,
    ProfileSource, ProfilingCost, Program, ReuseHistograms,
};
use pagelab_model::run::{ClockReading, Manifest, Run, RunEnd};
use pagelab_model::tune::HugePageSelection;
use pagelab_model::{Bytes, Machine, PageSize, Snapshot, TlbProfile};
use rustix::process::{Pid, Signal, kill_process};
use support::running::{process_field, wait_until};
use support::{Lab, binary};

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
/// A user without rights.
const NOBODY: u32 = 65534;

/// A profile with so many misses in each huge page of a mapping.
fn profile(key: MappingIdentity, start: u64, program: Program, misses: &[u64]) -> TlbProfile {
    let first = match key.kind {
        MappingKind::Placed => start / HUGE,
        _ => 0,
    };
    let at = (0..misses.len() as u64).map(|at| first + at).collect();
    let mapping = MappingProfile {
        bytes: Bytes(misses.len() as u64 * HUGE),
        key,
        start,
        grain: Bytes(HUGE),
        cells: CellCounts { at, misses: misses.to_vec(), ..CellCounts::default() },
        reuse: ReuseHistograms::default(),
        unseen: Vec::new(),
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: ImageStart::Launched,
        program,
        arguments: Vec::new(),
        accesses: None,
        instructions: None,
        misses: misses.iter().sum(),
        mappings: vec![mapping],
        advice: None,
    };
    TlbProfile {
        source: ProfileSource::Accessed,
        command: Vec::new(),
        page_size: PageSize::DEFAULT,
        huge: Bytes(HUGE),
        tlb: None,
        walk_cost: None,
        images: vec![image],
        wall_ns: 1,
        effort: ProfilingCost::default(),
        lost: 0,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

fn write(path: &Path, profile: &TlbProfile) {
    let manifest = Manifest {
        kind: "profile".to_owned(),
        tool_version: String::new(),
        command_line: Vec::new(),
        seed: None,
        started: ClockReading { realtime_ns: 1, boottime_ns: 1 },
        machine: Machine::new_unread(PageSize::DEFAULT),
        settings: Snapshot::new_unread("test", PageSize::DEFAULT).settings,
    };
    let mut writer = pagelab_runfile::RunWriter::create(path, &manifest).expect("a run file");
    writer.add_profile(1, profile).expect("written");
    writer.close(RunEnd::Complete { after_ns: 1 }).expect("closed");
}

fn read(path: &Path) -> Run {
    pagelab_runfile::read_run_file(path).expect("a run file that can be read")
}

fn value(trial: &Trial, name: &str) -> Option<f64> {
    trial.measures.iter().find(|measure| measure.name == name)?.value.as_ref().ok().copied()
}

/// The built-in hot-regions, whose buffer lies at a place of its own.
const BASE: u64 = 0x187_8000_0000;
const WORKLOAD: [&str; 7] = ["workload", "hot-regions", "--size", "32M", "--rounds", "1000", "--first=write"];

fn hot(lab: &Lab) {
    let key = MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 };
    let mut misses = [10; 16];
    (misses[3], misses[9]) = (5000, 4000);
    write(&lab.path().join("hot.pagelab"), &profile(key, BASE, Program::default(), &misses));
}

#[test]
fn a_program_is_tuned_from_a_profile_to_its_verdict() {
    let lab = Lab::new();
    hot(&lab);
    let own = binary();
    let mut words =
        vec!["tune", "--profile", "hot.pagelab", "-n", "2", "--quick", "-o", "t.pagelab", "--", own];
    words.extend(WORKLOAD);
    let ran = lab.run(&words);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("too few rounds to decide") || ran.out.contains("nothing is said"),
        "{}",
        ran.out
    );
    let run = read(&lab.path().join("t.pagelab"));
    let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
    assert!(run.profile.is_some(), "the profile is in it too");
    let selections: Vec<HugePageSelection> = tune.arms.iter().map(|arm| arm.selection).collect();
    assert_eq!(selections, [HugePageSelection::None, HugePageSelection::Plan, HugePageSelection::All]);
    let offsets: Vec<u64> = tune.plan.programs[0].mappings[0].regions.iter().map(|of| of.offset).collect();
    assert_eq!(offsets, [BASE + 3 * HUGE, BASE + 9 * HUGE], "the two costliest");
    assert!(experiment.trials.iter().all(|trial| trial.end == TrialEnd::Done), "{:?}", experiment.trials);
    for trial in &experiment.trials {
        let slot = experiment.plan.schedule.get(trial.slot).unwrap();
        let wanted = value(trial, measures::PLAN_REQUESTED);
        match tune.arms[slot.variant].selection {
            HugePageSelection::None => assert_eq!(wanted, None),
            HugePageSelection::Plan => assert_eq!(wanted, Some(2.0), "{trial:?}"),
            _ => {}
        }
        assert!(value(trial, measures::PLAN_CPU).is_some(), "each arm is supervised: {trial:?}");
    }
    let plan = fs::read_to_string(lab.path().join("t.plan.toml")).expect("the plan beside the run file");
    assert!(plan.contains("[[program"), "{plan}");
    // The report is the same on a second request, and its verdict is in the JSON.
    let again = lab.run(&["report", "t.pagelab"]);
    assert_eq!((again.code, again.out), (Some(0), ran.out.clone()));
    let json: serde_json::Value =
        serde_json::from_str(&lab.run(&["report", "--json", "t.pagelab"]).out).expect("JSON");
    assert_eq!(json["runs"][0]["tune"]["arms"][1]["selection"], "plan");
    assert!(json["runs"][0]["tune"]["verdict"].is_string());
    // It is whole, so there is nothing to go on with; and what is there is not overwritten.
    let resumed = lab.run(&["tune", "--resume", "t.pagelab"]);
    assert!(
        resumed.code == Some(0) && resumed.err.contains("is complete; nothing left to run"),
        "{}",
        resumed.err
    );
    assert_eq!(lab.run(&words).code, Some(2));
}

/// The resources of a supervised program count for its trial, and its supervisor does not count as a leftover
/// process: with a cgroup, and without root.
#[test]
fn a_supervised_program_is_waited_for_with_its_supervisor() {
    let lab = Lab::new();
    hot(&lab);
    fs::set_permissions(lab.path(), fs::Permissions::from_mode(0o777)).expect("a folder for all");
    let words = tells(&lab);
    let mut ways = vec!["own.pagelab"];
    match rustix::process::geteuid().is_root() {
        true => ways.push("unprivileged.pagelab"),
        false => eprintln!("skipped: not-root: cannot run as another user"),
    }
    for way in ways {
        let mut command = lab.command(&tune_words(&["-n", "2", "--quick", "-o", way], &words));
        if way == "unprivileged.pagelab" {
            fs::remove_file(lab.path().join("out")).expect("the first way's");
            command.uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR");
        }
        let ran = command.output().expect("started");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{way}: {said}");
        let experiment = read(&lab.path().join(way)).experiment.expect("the trials");
        for trial in &experiment.trials {
            assert_eq!(trial.end, TrialEnd::Done, "{way}: {trial:?}");
            let program_faults = value(trial, "rusage.minflt").expect("waited for");
            let arm = experiment.plan.schedule.get(trial.slot).unwrap().variant;
            assert!(arm != 0 || program_faults > 8192.0, "32 MiB were touched: {program_faults}");
            assert!(value(trial, measures::CPU) > Some(0.0), "{way}: {trial:?}");
        }
    }
}

#[test]
fn programs_that_cannot_be_tuned_are_refused_before_anything_runs() {
    let lab = Lab::new();
    for (words, code, said) in [
        (&["tune"][..], 2, "no command given"),
        (&["tune", "--higher", "--", "true"], 2, "--figure"),
        (&["tune", "--pid", "1"], 2, "--metric"),
        (&["tune", "-n", "3", "--share", "0.5", "--", "true"], 2, "cannot be used with"),
        (&["tune", "--share", "2", "--", "true"], 2, "expected a share"),
        (&["tune", "--", "/none/such"], 3, "cannot start /none/such: no such file"),
        (&["tune", "--profile", "none.pagelab", "--", "true"], 3, "none.pagelab"),
        (&["tune", "--resume", "none.pagelab"], 3, "none.pagelab"),
        (&["tune", "-o", "no/x.pagelab", "--", "true"], 3, "cannot write no/x.pagelab: no directory no"),
    ] {
        let ran = lab.run(words);
        assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let dry = lab.run(&["tune", "--dry-run", "--", "true"]);
    assert!(dry.code == Some(0) && dry.out.contains("at most 83 runs of the"), "{}{}", dry.out, dry.err);
    // There is no folder for what is kept, so nothing of that is known.
    let cost_measurement = "measures the cost of page walks";
    assert!(dry.out.contains(cost_measurement), "{}", dry.out);
    let quick = lab.run(&["tune", "--quick", "--dry-run", "--", "true"]);
    assert!(quick.code == Some(0) && !quick.out.contains(cost_measurement), "{}", quick.out);
    assert_eq!(fs::read_dir(lab.path()).expect("a folder").count(), 0, "nothing is written");
}

/// The time of all is stated before the first trial and kept, and a budget that is too small names one that
/// holds a verdict.
#[test]
fn a_tuning_keeps_its_time_budget() {
    let lab = Lab::new();
    // It has memory for a huge page: an arm that gets none has no second trial.
    let script = format!("{} workload hot-regions --size 16M --rounds 9 --first write; sleep 0.6", binary());
    let line = ["tune", "--source", "accessed", "--time-budget", "4s", "-o", "b.pagelab", "--", "sh", "-c"];
    let ran = lab.run(&[&line[..], &[&script]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let err = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(err.contains("measuring at most 20 rounds, 60 runs of about"), "{err}");
    assert!(err.contains("not measured for lack of time: the warm-up round"), "{err}");
    assert!(
        err.contains("6 rounds do not fit into the time budget; a verdict needs --time-budget 1m"),
        "{err}"
    );
    assert!(err.contains("of at most 20: another round would exceed the time budget"), "{err}");
    let out = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.contains("of at most 20 rounds"), "{out}");
    // The run is complete: nothing of it is left.
    let resumed = lab.run(&["tune", "--resume", "b.pagelab"]);
    assert!(
        resumed.code == Some(0) && resumed.err.contains("is complete; nothing left to run"),
        "{}",
        resumed.err
    );
    let report = lab.run(&["report", "b.pagelab", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&report.out).expect("JSON");
    let plan = &json["runs"][0]["experiment"]["plan"];
    assert_eq!((&plan["early_end"]["rounds_max"], &plan["early_end"]["looks"]), (&20.into(), &true.into()));
    assert!(plan["early_end"]["time_budget_ns"].as_u64().is_some_and(|left| left < 4_000_000_000), "{plan}");
    assert!(plan["slots"].as_u64().is_some_and(|slots| slots < 60 && slots % 3 == 0), "{plan}");
}

#[test]
fn a_recipe_takes_a_plan() {
    let lab = Lab::new();
    lab.write(
        "r.toml",
        "name = \"r\"\nquestion = \"?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nbuilt_in = \"hot-regions\"\noptions = { size = \"32M\", rounds = 1000 }\n\
         [[variant]]\nname = \"none\"\nplan = \"none\"\n[[variant]]\nname = \"all\"\nplan = \"all\"\n\
         [[variant]]\nname = \"plan\"\nplan = \"list.txt\"\n",
    );
    let refused = lab.run(&["run", "r.toml", "-o", "r.pagelab"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(refused.err.contains("cannot read the plan list.txt: no such file"), "{}", refused.err);
    lab.write("list.txt", format!("{BASE}\n{}\n", BASE + 4 * HUGE));
    let ran = lab.run(&["run", "r.toml", "-o", "r.pagelab"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let experiment = read(&lab.path().join("r.pagelab")).experiment.expect("an experiment");
    let of = |variant: usize| {
        let is = |trial: &&Trial| experiment.plan.schedule.get(trial.slot).unwrap().variant == variant;
        experiment.trials.iter().find(is).expect("a trial")
    };
    assert_eq!(value(of(2), measures::PLAN_REQUESTED), Some(2.0));
    assert!(value(of(0), measures::MERIT).is_some(), "its own figure comes through the supervisor");
    if value(of(1), measures::HUGE_BYTES) > Some(0.0) {
        assert!(
            value(of(2), measures::HUGE_BYTES) < value(of(1), measures::HUGE_BYTES),
            "a plan is less than all"
        );
    }
}

/// Each run of the built-in workload adds its line to a file, whatever arm it is of.
fn tells(lab: &Lab) -> Vec<String> {
    let words = WORKLOAD.join(" ");
    let script = format!("{} {words} >> {}/out", binary(), lab.path().display());
    ["/bin/sh", "-c", &script].map(str::to_owned).to_vec()
}

/// A program that refuses huge pages: plan and all override that and say so, `--respect` leaves it.
#[test]
fn advice_against_huge_pages_is_overridden_or_left() {
    let lab = Lab::new();
    let key = MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 };
    let mut refusing = profile(key, BASE, Program::default(), &[5000; 16]);
    refusing.images[0].advice =
        Some(OwnAdvice { refused: Bytes(32 << 20), requested: Bytes(32 << 20), ..OwnAdvice::default() });
    write(&lab.path().join("hot.pagelab"), &refusing);
    let command: Vec<String> = [&[binary()][..], &WORKLOAD, &["--advise", "nohuge"]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let tune = |options: &[&str]| {
        let ran = lab.run(&tune_words(&[&["-n", "2", "--quick"], options].concat(), &command));
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        ran
    };
    // Most huge pages of the arm in its trials.
    let allocated = |run: &Run, selection: HugePageSelection| {
        let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { panic!("{run:?}") };
        let is_of = |trial: &&Trial| {
            let slot = experiment.plan.schedule.get(trial.slot).expect("a slot");
            tune.arms[slot.variant].selection == selection
        };
        let found = experiment.trials.iter().filter(is_of);
        found.filter_map(|trial| value(trial, measures::PLAN_ALLOCATED)).fold(0.0, f64::max)
    };
    let ran = tune(&["-o", "auto.pagelab"]);
    let first = ran.err.lines().find(|line| line.contains("refuses huge pages")).unwrap_or_default();
    assert!(first.contains("32 MiB (MADV_NOHUGEPAGE); the arms plan and all override"), "{}", ran.err);
    let run = read(&lab.path().join("auto.pagelab"));
    let overrides: Vec<(HugePageSelection, bool)> = run
        .tune
        .iter()
        .flat_map(|tune| &tune.arms)
        .map(|arm| (arm.selection, arm.overrides_advice))
        .collect();
    assert_eq!(
        overrides,
        [
            (HugePageSelection::None, false),
            (HugePageSelection::Plan, true),
            (HugePageSelection::All, true),
            (HugePageSelection::Never, false),
        ]
    );
    // A machine may have no free huge page, and then it says so.
    let is_short = ran.out.contains("no free huge page");
    assert!(is_short || allocated(&run, HugePageSelection::Plan) == 2.0, "{}", ran.out);
    // The plan's file says it, and is not applied by itself.
    let plan = fs::read_to_string(lab.path().join("auto.plan.toml")).expect("a plan");
    assert!(plan.contains("\noverrides-advice = true\n"), "{plan}");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let refused = lab.run(&[&["apply", "auto.plan.toml", "--"][..], &words].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("hint: use --override"), "{}", refused.err);
    let applied = lab.run(&[&["apply", "auto.plan.toml", "--override", "--"][..], &words].concat());
    assert_eq!(applied.code, Some(0), "{}", applied.err);
    let respected = tune(&["--respect", "-o", "respect.pagelab"]);
    assert!(respected.err.contains("no arm overrides that (--respect)"), "{}", respected.err);
    let run = read(&lab.path().join("respect.pagelab"));
    assert_eq!(allocated(&run, HugePageSelection::Plan), 0.0);
    assert!(respected.out.contains("were not allocated"), "{}", respected.out);
}

/// The reported checksums, one per run.
fn checksums(lab: &Lab) -> Vec<String> {
    let text = fs::read_to_string(lab.path().join("out")).unwrap_or_default();
    let of = |line: &str| {
        let json: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        json["checksum"].to_string()
    };
    text.lines().map(of).collect()
}

fn tune_words<'w>(options: &[&'w str], command: &'w [String]) -> Vec<&'w str> {
    let mut words = vec!["tune", "--profile", "hot.pagelab"];
    words.extend(options);
    words.push("--");
    words.extend(command.iter().map(String::as_str));
    words
}

/// What a run has in common with another of the same command line.
#[derive(Debug, PartialEq)]
struct Form {
    arms: Vec<(String, HugePageSelection, Option<u64>)>,
    /// Arms in the order of their trials.
    order: Vec<usize>,
    /// Measured values, one list per trial.
    measured: Vec<Vec<String>>,
}

fn form(run: &Run) -> Form {
    let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { panic!("{run:?}") };
    let arms = tune.arms.iter().map(|arm| (arm.name.clone(), arm.selection, arm.planned)).collect();
    let mut trials: Vec<&Trial> = experiment.trials.iter().collect();
    trials.sort_by_key(|trial| trial.slot);
    let order = trials
        .iter()
        .map(|trial| experiment.plan.schedule.get(trial.slot).expect("a trial stands in its slot").variant)
        .collect();
    let always = [measures::WALL, measures::CPU, measures::PLAN_CPU, measures::PLAN_REQUESTED];
    let known = |trial: &&Trial| {
        always.iter().filter(|name| value(trial, name).is_some()).map(|name| (*name).to_owned()).collect()
    };
    Form { arms, order, measured: trials.iter().map(known).collect() }
}

#[test]
fn a_curve_has_its_controls_and_no_arm_changes_the_results() {
    let lab = Lab::new();
    hot(&lab);
    let command = tells(&lab);
    let ran = lab.run(&tune_words(&["-n", "2", "--curve", "--quick", "-o", "t.pagelab"], &command));
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let run = read(&lab.path().join("t.pagelab"));
    let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
    let arms: Vec<(HugePageSelection, Option<u64>)> =
        tune.arms.iter().map(|arm| (arm.selection, arm.planned)).collect();
    let eight = Some(8);
    assert_eq!(
        arms,
        [
            (HugePageSelection::None, Some(0)),
            (HugePageSelection::Plan, Some(2)),
            (HugePageSelection::All, None),
            (HugePageSelection::Costliest, eight),
            (HugePageSelection::Random, eight),
            (HugePageSelection::MostUsed, eight),
        ]
    );
    for trial in &experiment.trials {
        assert_eq!(trial.end, TrialEnd::Done, "{trial:?}");
        let planned =
            arms[experiment.plan.schedule.get(trial.slot).unwrap().variant].1.filter(|pages| *pages > 0);
        let wanted = value(trial, measures::PLAN_REQUESTED);
        assert!(planned.is_none() || wanted == planned.map(|pages| pages as f64), "{trial:?}");
    }
    let sums = checksums(&lab);
    assert_eq!(sums.len(), experiment.plan.schedule.len(), "a run a trial");
    assert!(sums.iter().all(|sum| sum == &sums[0]), "{sums:?}");
    for said in ["random", "most used", "  0 ", "  8 ", "all "] {
        assert!(ran.out.contains(said), "{said}: {}", ran.out);
    }
}

/// Trials in a file that may be written just now.
fn trials(path: &Path) -> usize {
    let run = pagelab_runfile::read_run_file(path).ok();
    run.and_then(|run| run.experiment).map_or(0, |experiment| experiment.trials.len())
}

/// Whether a process has the file open.
fn is_open(path: &Path) -> bool {
    let path = fs::canonicalize(path).expect("a file");
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    let mut fds =
        processes.filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok()).flatten().flatten();
    fds.any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path))
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("a signal to a child");
}

#[test]
fn a_resumed_tuning_has_the_same_trials_as_an_uninterrupted_one() {
    let lab = Lab::new();
    hot(&lab);
    let command = tells(&lab);
    let (kept, whole) = (lab.path().join("k.pagelab"), lab.path().join("w.pagelab"));
    let options = ["-n", "2", "--repeats", "2", "-o"];
    let ran = lab.run(&tune_words(&[&options[..], &["w.pagelab"]].concat(), &command));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // Ctrl-C in the middle: what was measured is kept, and the way on is said.
    let words = tune_words(&[&options[..], &["k.pagelab"]].concat(), &command);
    let child = lab.command(&words).spawn().expect("started");
    wait_until("the first trial", || trials(&kept) > 0);
    signal(&child, Signal::TERM);
    let ended = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(143), "{said}");
    assert!(said.contains("pagelab tune --resume k.pagelab"), "{said}");
    let before = trials(&kept);
    assert!(before < form(&read(&whole)).order.len(), "{before}");
    // In another folder neither its plan nor its program is found by the same words.
    let beside = lab.path().join("beside");
    fs::create_dir(&beside).expect("a folder");
    let elsewhere =
        lab.command(&["tune", "--resume", "../k.pagelab"]).current_dir(&beside).output().expect("ran");
    let said = String::from_utf8_lossy(&elsewhere.stderr);
    assert_eq!(elsewhere.status.code(), Some(3), "{said}");
    assert!(said.contains("relative to another directory\nhint: run this in "), "{said}");
    assert_eq!(fs::read_dir(&beside).expect("a folder").count(), 0, "nothing to collapse");
    // A kill, which nothing can be done about; and the plan is lost with it.
    let mut child = lab.command(&["tune", "--resume", "k.pagelab"]).spawn().expect("started");
    wait_until("one more trial", || trials(&kept) > before);
    child.kill().expect("killed");
    child.wait().expect("its end");
    // A child that was forked for the next trial has the file open until it dies.
    wait_until("the end of its children", || !is_open(&kept));
    fs::write(lab.path().join("k.plan.toml"), "# somebody wrote over it\n").expect("written");
    let resumed = lab.run(&["tune", "--resume", "k.pagelab"]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    let (one, other) = (read(&kept), read(&whole));
    assert_eq!(form(&one), form(&other));
    assert!(matches!(one.ending, RunEnd::Complete { .. }));
    let is_done = |trial: &Trial| trial.end == TrialEnd::Done;
    assert!(one.experiment.expect("trials").trials.iter().all(is_done));
    assert_eq!(one.tune.expect("arms").plan, other.tune.expect("arms").plan);
    let sums = checksums(&lab);
    assert!(sums.iter().all(|sum| sum == &sums[0]), "{sums:?}");
    // What the killed one had made for its trial.
    let restored = lab.run(&["restore"]);
    assert!(matches!(restored.code, Some(0 | 4)), "{}", restored.err);
}

#[test]
fn a_signal_during_the_profile_ends_all_processes_and_leaves_nothing() {
    // Its program may be about to be started: then it never is.
    for waits_for_program in [false, true] {
        check_signal_during_the_profile(waits_for_program);
    }
}

fn check_signal_during_the_profile(waits_for_program: bool) {
    let lab = Lab::new();
    let sleeps = "sleep 4242";
    let words = ["tune", "--source", "accessed", "--quick", "--", "/bin/sh", "-c", sleeps];
    let mut command = lab.command(&words);
    // The directory of the profile is there.
    let child = command.env("PATH", "/usr/bin:/bin").env("TMPDIR", lab.path()).spawn().expect("started");
    let profile = || {
        let names = fs::read_dir(lab.path()).expect("a folder").flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    // The working directory of all of them is the folder.
    let here = fs::canonicalize(lab.path()).expect("a folder");
    let is_ours = |entry: &fs::DirEntry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == here);
    let is_program = |entry: fs::DirEntry| {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        ["sh", "sleep"].contains(&comm.trim()) && is_ours(&entry)
    };
    wait_until("the profile's file", || !profile().is_empty());
    if waits_for_program {
        wait_until("the program", || fs::read_dir("/proc").expect("proc").flatten().any(is_program));
    }
    signal(&child, Signal::TERM);
    let ended = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(143), "{said}");
    assert!(said.contains("nothing was measured"), "{said}");
    assert_eq!(profile(), Vec::<String>::new());
    wait_until("the end of all", || {
        !fs::read_dir("/proc").expect("proc").flatten().any(|entry| is_ours(&entry))
    });
}

/// Installed programs, with pipes and a shell: all arms succeed and have the same output.
#[test]
fn real_programs_are_tuned() {
    let lab = Lab::new();
    let mut state = 1u64;
    let mut text = String::new();
    while text.len() < 300_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{} {}\n", state >> 44, state >> 60));
    }
    lab.write("text", &text);
    let python = "d = {i * 2654435761 % 2**32: i for i in range(200000)}\nprint(sum(d), len(d))";
    lab.write("dict.py", python);
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000) select \
               count(*), sum(i * 7919 % 100003) from n;";
    for (program, skip, words) in [
        ("xz", "sort-or-xz-absent", "xz -9 -T1 -k -c text".to_owned()),
        ("sort", "sort-or-xz-absent", "sort -k2 text".to_owned()),
        ("python3", "python3-absent", "/usr/bin/python3 dict.py".to_owned()),
        ("sqlite3", "sqlite3-absent", format!("sqlite3 :memory: '{sql}'")),
    ] {
        if !Path::new("/usr/bin").join(program).is_file() {
            eprintln!("skipped: {skip}: no {program} here");
            continue;
        }
        let sums = format!("{program}.sums");
        let script = format!("{words} | sha1sum >> {sums}");
        let file = format!("{program}.pagelab");
        let line = ["tune", "--quick", "--source", "accessed", "-o", &file, "--", "/bin/sh", "-c", &script];
        let ran = lab.command(&line).env("PATH", "/usr/bin:/bin").output().expect("started");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{program}: {said}");
        let run = read(&lab.path().join(&file));
        let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
        assert_eq!(experiment.trials.len(), experiment.plan.schedule.len());
        assert!(experiment.trials.iter().all(|trial| trial.end == TrialEnd::Done), "{program}: {said}");
        assert!(
            tune.arm_index(HugePageSelection::None).is_some()
                && tune.arm_index(HugePageSelection::All).is_some()
        );
        // The next run has other addresses. Python's arenas may be known by address alone (docs/profile.md).
        let mut mappings = tune.plan.programs.iter().flat_map(|of| &of.mappings);
        let placed = mappings.find(|mapping| mapping.key.kind == MappingKind::Placed);
        assert!(placed.is_none() || program == "python3", "{program}: {placed:?}");
        // One of the profile, and one a trial.
        let sums = fs::read_to_string(lab.path().join(sums)).expect("what it put out");
        let sums: Vec<&str> = sums.lines().collect();
        assert_eq!(sums.len(), 1 + experiment.trials.len(), "{program}");
        assert!(sums.iter().all(|sum| sum == &sums[0]), "{program}: {sums:?}");
    }
}

/// A program of ours that holds memory until it is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process whose buffer of 32 MiB is written, and works until it is dropped; `None` after saying why.
fn held() -> Option<KilledOnDrop> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: huge pages of another process need CAP_SYS_NICE");
        return None;
    }
    let words = ["workload", "hot-regions", "--size", "32M", "--rounds", "4000000000", "--first=write"];
    let mut command = Command::new(binary());
    let child = command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    let held = KilledOnDrop(child);
    let pid = held.0.id();
    wait_until("its buffer", || {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let rss = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default();
        rss.trim().trim_end_matches(" kB").parse::<u64>().is_ok_and(|kib| kib > 32 << 10)
    });
    Some(held)
}

#[test]
fn a_running_process_is_measured_and_restored() {
    let Some(held) = held() else { return };
    let lab = Lab::new();
    let pid = held.0.id();
    hot(&lab);
    let pid_word = pid.to_string();
    let mut tune = vec!["tune", "--pid", &pid_word, "--metric", "sleep 0.05; echo 5", "--higher"];
    tune.extend(["--profile", "hot.pagelab", "-n", "2", "--quick", "-o", "p.pagelab"]);
    let ran = lab.run(&tune);
    if ran.err.contains("PAGEMAP_SCAN") {
        eprintln!("skipped: no-pagemap-scan: {}", ran.err);
        return;
    }
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let run = read(&lab.path().join("p.pagelab"));
    let last = run.events.iter().rfind(|event| event.kind == "restored").expect("it is told");
    assert!(last.text.ends_with("was restored"), "{}", last.text);
    let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
    assert_eq!(tune.pid, Some(pid));
    let whole = experiment.plan.schedule.len();
    assert_eq!(experiment.trials.len(), whole, "{}", ran.err);
    for trial in &experiment.trials {
        let on = tune.arms[experiment.plan.schedule.get(trial.slot).unwrap().variant].selection;
        let huge = value(trial, measures::HUGE_BYTES).expect("read back") / HUGE as f64;
        let got = value(trial, measures::PLAN_ALLOCATED);
        match on {
            HugePageSelection::None => assert_eq!(huge, 0.0, "one cold page splits: {trial:?}"),
            HugePageSelection::Plan => assert!(huge <= 2.0 && got == Some(huge), "{trial:?}"),
            _ => assert!(Some(huge) >= got, "{trial:?}"),
        }
        assert_eq!(value(trial, measures::MERIT), Some(5.0));
        assert!(value(trial, measures::CPU) > Some(0.0), "the process works meanwhile");
    }
    let resumed = lab.run(&["tune", "--resume", "p.pagelab"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.err.contains("p.pagelab is complete"), "{}", resumed.err);
    let gone = lab.run(&["tune", "--pid", "4194304", "--metric", "true"]);
    assert_eq!(gone.code, Some(3), "{}", gone.err);
}

#[test]
fn a_dry_run_of_a_process_prints_its_plan_and_changes_nothing() {
    let lab = Lab::new();
    let gone = lab.run(&["tune", "--pid", "4194304", "--metric", "touch ran", "--dry-run"]);
    assert_eq!(gone.code, Some(3), "{}{}", gone.out, gone.err);
    assert!(gone.err.contains("process 4194304: no such process\nhint: "), "{}", gone.err);
    let Some(held) = held() else { return };
    let pid = held.0.id().to_string();
    let line = ["tune", "--pid", &pid, "--metric", "touch ran", "--for", "3s", "--dry-run"];
    let dry = lab.run(&line);
    if dry.err.contains("PAGEMAP_SCAN") {
        eprintln!("skipped: no-pagemap-scan: {}", dry.err);
        return;
    }
    assert_eq!((dry.code, dry.err.as_str()), (Some(0), ""), "{}", dry.out);
    for said in [
        format!("process  {pid} (pagelab): "),
        format!("--pid {pid} --for 3s, without huge pages, while `touch ran` runs"),
        "at most 83 runs".to_owned(),
        "3 s and at most 84 runs of `touch ran`, each at most 1 h 0 min; at most 15 min 0 s in total"
            .to_owned(),
        format!("write    tune-{pid}-1.pagelab"),
        "change   collapses (MADV_COLLAPSE) and splits".to_owned(),
    ] {
        let text = dry.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&said.split_whitespace().collect::<Vec<_>>().join(" ")), "{said}: {}", dry.out);
    }
    assert_eq!(fs::read_dir(lab.path()).expect("a folder").count(), 0, "nothing ran, nothing is written");
    let exact = lab.run(&[&line[..], &["--source", "exact"]].concat());
    assert!(exact.code == Some(2) && exact.err.contains("cannot attach"), "{}", exact.err);
}

/// A number that is judged must not become a time without a word.
#[test]
fn a_metric_that_prints_no_number_is_refused_at_once() {
    let Some(held) = held() else { return };
    let lab = Lab::new();
    let pid = held.0.id().to_string();
    for (metric, options, said) in [
        (
            "echo hello",
            &[][..],
            "cannot measure `echo hello`: expected a number in the last line of its output",
        ),
        ("echo hello", &["--figure", "took {} s"], "an output line matching \"took {} s\", with a number"),
        ("echo no >&2; exit 3", &[], "it ended with exit status: 3: no"),
    ] {
        let line = ["tune", "--pid", &pid, "--metric", metric, "--quick", "-o", "t.pagelab"];
        let ran = lab.run(&[&line[..], options].concat());
        if ran.err.contains("PAGEMAP_SCAN") {
            eprintln!("skipped: no-pagemap-scan: {}", ran.err);
            return;
        }
        assert_eq!(ran.code, Some(3), "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(said) && ran.err.contains("\nhint: "), "{}", ran.err);
        assert_eq!(fs::read_dir(lab.path()).expect("a folder").count(), 0);
    }
}

/// A user without CAP_SYS_NICE learns it before a load or a profile runs.
#[test]
fn privileges_are_checked_before_anything_runs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: cannot run as another user");
        return;
    }
    let lab = Lab::new();
    fs::set_permissions(lab.path(), fs::Permissions::from_mode(0o777)).expect("a folder for all");
    let mut sleeper = Command::new("sleep");
    let sleeper = KilledOnDrop(sleeper.arg("600").uid(NOBODY).gid(NOBODY).spawn().expect("started"));
    let pid = sleeper.0.id().to_string();
    wait_until("its exec", || {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"))
    });
    for options in [&[][..], &["--dry-run"]] {
        let line = [&["tune", "--pid", &pid, "--metric", "touch ran"][..], options].concat();
        let ran = lab.command(&line).uid(NOBODY).gid(NOBODY).output().expect("started");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(4), "{said}");
        assert!(said.contains("CAP_SYS_NICE is missing") && said.contains("\nhint: run as root"), "{said}");
        assert_eq!(fs::read_dir(lab.path()).expect("a folder").count(), 0, "nothing ran");
    }
}

#[test]
fn a_signal_at_any_step_leaves_the_tuned_process_unchanged() {
    let Some(held) = held() else { return };
    let lab = Lab::new();
    let pid = held.0.id().to_string();
    let left_out = || {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it lives");
        maps.matches(" dd ").count()
    };
    let switches = || process_field(held.0.id(), "status", "voluntary_ctxt_switches").expect("it lives");
    let before = left_out();
    let base = ["tune", "--pid", &pid, "--quick", "--source", "accessed", "--metric"];
    let whole = lab.run(&[&base[..], &["sleep 0.05", "--for", "1s", "-n", "4", "-o", "p.pagelab"]].concat());
    if whole.err.contains("PAGEMAP_SCAN") {
        eprintln!("skipped: no-pagemap-scan: {}", whole.err);
        return;
    }
    assert_eq!(whole.code, Some(0), "{}{}", whole.out, whole.err);
    let run = read(&lab.path().join("p.pagelab"));
    let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
    assert!(
        run.profile.is_some()
            && tune.arm_index(HugePageSelection::None).is_some()
            && tune.arm_index(HugePageSelection::All).is_some()
    );
    assert_eq!(experiment.trials.len(), experiment.plan.schedule.len());
    // A signal at each step: as the load is tried, as it is profiled, and as it is measured.
    let slow = "[ -e second ] && touch third && exec sleep 4242; touch second";
    for (name, load, wait) in [
        ("load", "touch begun; sleep 4242", "begun"),
        ("profile", "sleep 0.05", "pagelab-workload-tune"),
        ("measure", slow, "third"),
    ] {
        let file = format!("{name}.pagelab");
        let time = if name == "profile" { "600s" } else { "1s" };
        // The load of the last one runs once as it is tried, and for the first sample for ever.
        let source = if name == "measure" { ["--profile", "p.pagelab"] } else { ["--source", "accessed"] };
        let line = ["tune", "--pid", &pid, "--quick", "--metric", load, "--for", time, "-o", &file];
        let line = [&line[..], &source].concat();
        let mut command = lab.command(&line);
        // The directory of the profile is there.
        let child = command.env("PATH", "/usr/bin:/bin").env("TMPDIR", lab.path()).spawn().expect("started");
        let begins = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(wait);
        wait_until(wait, || fs::read_dir(lab.path()).expect("a folder").flatten().any(begins));
        if name == "profile" {
            // It never sleeps: each stop for a split is a voluntary switch.
            let first = switches();
            wait_until("a split", || switches() > first);
        }
        signal(&child, Signal::TERM);
        let ended = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(143), "{name}: {said}");
        assert!(said.contains("stopped by SIGTERM"), "{name}: {said}");
        assert!(!said.contains("not completely restored"), "{name}: {said}");
        assert_eq!(lab.path().join(&file).exists(), name == "measure", "{name}");
    }
    let names = fs::read_dir(lab.path()).expect("a folder").flatten();
    let left: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with("pagelab-workload-")), "{left:?}");
    assert_eq!(left_out(), before, "pieces that are left out of core dumps");
}
