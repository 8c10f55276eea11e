//! `pagelab tune` and `plan =` in recipes: from a profile to the verdict, on real programs.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagelab_model::experiment::{Trial, TrialEnd, measures};
use pagelab_model::profile::{
    Begun, Cells, Effort, ImageProfile, MappingKey, MappingKind, MappingProfile, ProfileSource, Program,
    Reuse,
};
use pagelab_model::run::{Ending, Manifest, Moment, Run};
use pagelab_model::tune::On;
use pagelab_model::{Bytes, Machine, PageSize, Profile, Snapshot};
use support::Lab;

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;

/// A profile with so many misses in each huge page of a mapping.
fn profile(key: MappingKey, start: u64, program: Program, misses: &[u64]) -> Profile {
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
        cells: Cells { at, misses: misses.to_vec(), ..Cells::default() },
        reuse: Reuse::default(),
        unseen: Vec::new(),
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: Begun::Launched,
        program,
        arguments: Vec::new(),
        accesses: None,
        instructions: None,
        misses: misses.iter().sum(),
        mappings: vec![mapping],
    };
    Profile {
        source: ProfileSource::Accessed,
        command: Vec::new(),
        page_size: PageSize::USUAL,
        huge: Bytes(HUGE),
        tlb: None,
        walk_cost: None,
        images: vec![image],
        wall_ns: 1,
        effort: Effort::default(),
        lost: 0,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

fn write(path: &Path, profile: &Profile) {
    let manifest = Manifest {
        kind: "profile".to_owned(),
        tool_version: String::new(),
        command_line: Vec::new(),
        seed: None,
        started: Moment { realtime_ns: 1, boottime_ns: 1 },
        machine: Machine::unread(PageSize::USUAL),
        settings: Snapshot::unread("test", PageSize::USUAL).settings,
    };
    let mut writer = pagelab_runfile::Writer::create(path, &manifest).expect("a run file");
    writer.profile(1, profile).expect("written");
    writer.close(Ending::Complete { after_ns: 1 }).expect("closed");
}

fn read(path: &Path) -> Run {
    pagelab_runfile::read(path).expect("a run file that can be read")
}

fn value(trial: &Trial, name: &str) -> Option<f64> {
    trial.measures.iter().find(|measure| measure.name == name)?.value.as_ref().ok().copied()
}

/// The built-in hot-regions, whose buffer lies at a place of its own.
const BASE: u64 = 0x187_8000_0000;
const WORKLOAD: [&str; 7] = ["workload", "hot-regions", "--size", "32M", "--rounds", "1000", "--first=write"];

fn hot(lab: &Lab) {
    let key = MappingKey { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 };
    let mut misses = [10; 16];
    (misses[3], misses[9]) = (5000, 4000);
    write(&lab.path().join("hot.pagelab"), &profile(key, BASE, Program::default(), &misses));
}

#[test]
fn a_program_is_tuned_from_a_profile_to_its_verdict() {
    let lab = Lab::new();
    hot(&lab);
    let own = env!("CARGO_BIN_EXE_pagelab");
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
    let ons: Vec<On> = tune.arms.iter().map(|arm| arm.on).collect();
    assert_eq!(ons, [On::Nothing, On::Plan, On::All]);
    let offsets: Vec<u64> = tune.plan.programs[0].mappings[0].regions.iter().map(|of| of.offset).collect();
    assert_eq!(offsets, [BASE + 3 * HUGE, BASE + 9 * HUGE], "the two dearest");
    assert!(experiment.trials.iter().all(|trial| trial.end == TrialEnd::Done), "{:?}", experiment.trials);
    for trial in &experiment.trials {
        let slot = experiment.plan.schedule[trial.slot];
        let wanted = value(trial, measures::PLAN_WANTED);
        match tune.arms[slot.variant].on {
            On::Nothing => assert_eq!(wanted, None),
            On::Plan => assert_eq!(wanted, Some(2.0), "{trial:?}"),
            _ => {}
        }
        assert!(value(trial, measures::PLAN_CPU).is_some(), "each arm is supervised: {trial:?}");
    }
    let plan = fs::read_to_string(lab.path().join("t.plan.toml")).expect("the plan beside the run file");
    assert!(plan.contains("[[program"), "{plan}");
    // The report is the same when it is asked for again, and its verdict is in the JSON.
    let again = lab.run(&["report", "t.pagelab"]);
    assert_eq!((again.code, again.out), (Some(0), ran.out.clone()));
    let json: serde_json::Value =
        serde_json::from_str(&lab.run(&["report", "--json", "t.pagelab"]).out).expect("JSON");
    assert_eq!(json["runs"][0]["tune"]["arms"][1]["on"], "plan");
    assert!(json["runs"][0]["tune"]["verdict"].is_string());
    // It is whole, so there is nothing to go on with; and what is there is not overwritten.
    let resumed = lab.run(&["tune", "--resume", "t.pagelab"]);
    assert!(resumed.code == Some(3) && resumed.err.contains("nothing to go on with"), "{}", resumed.err);
    assert_eq!(lab.run(&words).code, Some(2));
}

#[test]
fn what_cannot_be_tuned_is_refused_before_anything_runs() {
    let lab = Lab::new();
    for (words, code, said) in [
        (&["tune"][..], 2, "what is to be tuned?"),
        (&["tune", "--higher", "--", "true"], 2, "--figure"),
        (&["tune", "--pid", "1"], 2, "--metric"),
        (&["tune", "-n", "3", "--share", "0.5", "--", "true"], 2, "cannot be used with"),
        (&["tune", "--share", "2", "--", "true"], 2, "a share above 0"),
        (&["tune", "--", "/none/such"], 4, "no such program"),
        (&["tune", "--profile", "none.pagelab", "--", "true"], 3, "none.pagelab"),
        (&["tune", "--resume", "none.pagelab"], 3, "none.pagelab"),
    ] {
        let ran = lab.run(words);
        assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let dry = lab.run(&["tune", "--dry-run", "--", "true"]);
    assert!(dry.code == Some(0) && dry.out.contains("31 runs of the program"), "{}{}", dry.out, dry.err);
    assert_eq!(fs::read_dir(lab.path()).expect("a folder").count(), 0, "nothing is written");
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
    assert_eq!(refused.code, Some(4), "{}", refused.err);
    assert!(refused.err.contains("plan = \"list.txt\": there is no such file"), "{}", refused.err);
    lab.write("list.txt", format!("{BASE}\n{}\n", BASE + 4 * HUGE));
    let ran = lab.run(&["run", "r.toml", "-o", "r.pagelab"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let experiment = read(&lab.path().join("r.pagelab")).experiment.expect("an experiment");
    let of = |variant: usize| {
        let is = |trial: &&Trial| experiment.plan.schedule[trial.slot].variant == variant;
        experiment.trials.iter().find(is).expect("a trial")
    };
    assert_eq!(value(of(2), measures::PLAN_WANTED), Some(2.0));
    assert!(value(of(0), measures::MERIT).is_some(), "its own figure comes through the supervisor");
    if value(of(1), measures::HUGE) > Some(0.0) {
        assert!(value(of(2), measures::HUGE) < value(of(1), measures::HUGE), "a plan is less than all");
    }
}

/// A program of ours that holds memory until it is dropped.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_running_process_is_measured_and_put_back() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: huge pages of another process need CAP_SYS_NICE");
        return;
    }
    let lab = Lab::new();
    let words = ["workload", "hot-regions", "--size", "32M", "--rounds", "4000000000"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
    let child = command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    let held = Held(child);
    let pid = held.0.id();
    // Until its buffer is written.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let is_there = || {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let rss = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default();
        rss.trim().trim_end_matches(" kB").parse::<u64>().is_ok_and(|kib| kib > 32 << 10)
    };
    while !is_there() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    hot(&lab);
    let pid_word = pid.to_string();
    let mut tune = vec!["tune", "--pid", &pid_word, "--metric", "sleep 0.05; echo 5", "--higher"];
    tune.extend(["--profile", "hot.pagelab", "-n", "2", "--quick", "-o", "p.pagelab"]);
    let ran = lab.run(&tune);
    if ran.err.contains("PAGEMAP_SCAN") {
        eprintln!("skipped: this kernel cannot say which memory is on huge pages (6.7 and later can)");
        return;
    }
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let run = read(&lab.path().join("p.pagelab"));
    let last = run.events.iter().rfind(|event| event.kind == "put back").expect("it is told");
    assert!(last.text.ends_with("is as it was found"), "{}", last.text);
    let (tune, experiment) = (run.tune.expect("the arms"), run.experiment.expect("the trials"));
    assert_eq!(tune.pid, Some(pid));
    let whole = experiment.plan.schedule.len();
    assert_eq!(experiment.trials.len(), whole, "{}", ran.err);
    for trial in &experiment.trials {
        let on = tune.arms[experiment.plan.schedule[trial.slot].variant].on;
        let huge = value(trial, measures::HUGE).expect("read back") / HUGE as f64;
        let got = value(trial, measures::PLAN_GOT);
        match on {
            On::Nothing => assert_eq!(huge, 0.0, "one cold page splits: {trial:?}"),
            On::Plan => assert!(huge <= 2.0 && got == Some(huge), "{trial:?}"),
            _ => assert!(Some(huge) >= got, "{trial:?}"),
        }
        assert_eq!(value(trial, measures::MERIT), Some(5.0));
        assert!(value(trial, measures::CPU) > Some(0.0), "the process works meanwhile");
    }
    let resumed = lab.run(&["tune", "--resume", "p.pagelab"]);
    assert_eq!(resumed.code, Some(3), "{}", resumed.err);
    let gone = lab.run(&["tune", "--pid", "4194304", "--metric", "true"]);
    assert_eq!(gone.code, Some(3), "{}", gone.err);
}
