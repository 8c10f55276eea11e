//! Tests of `pagelab sim sweep`: killed and resumed, random points, foreign files.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{CommandOutput, Lab};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// A sweep of 24 runs that takes long enough to be killed in its middle.
const SWEEP: [&str; 16] = [
    "sim",
    "sweep",
    "--machine",
    "64M",
    "--load",
    "churn",
    "--grid",
    "scheme=standard,list,mobility",
    "--grid",
    "pairs=100000,150000",
    "--seeds",
    "4",
    "--threads",
    "2",
    "-o",
    "s.pagelab",
];

fn good(ran: &CommandOutput) -> &str {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    &ran.out
}

/// The experiment of a run file, as the report's JSON has it.
fn experiment(lab: &Lab, file: &str) -> Value {
    let said: Value = serde_json::from_str(good(&lab.run(&["report", "--json", file]))).unwrap();
    said["runs"][0]["experiment"].clone()
}

/// How many runs are in a file that may still be written.
fn runs(lab: &Lab, file: &str) -> usize {
    let ran = lab.run(&["report", "--json", file]);
    let said: Option<Value> = serde_json::from_str(&ran.out).ok();
    said.and_then(|said| said["runs"][0]["experiment"]["trials"].as_array().map(Vec::len)).unwrap_or(0)
}

/// Waits until a sweep has kept some runs.
fn until_some(lab: &Lab, child: &mut Child, file: &str) {
    let end = Instant::now() + PATIENCE;
    while runs(lab, file) < 2 {
        assert!(Instant::now() < end, "no run was kept");
        assert!(child.try_wait().unwrap().is_none_or(|status| status.success()));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ended(mut child: Child) -> CommandOutput {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    CommandOutput {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_killed_sweep_is_resumed_to_the_same_result() {
    let (whole, killed) = (Lab::new(), Lab::new());
    let text = good(&whole.run(&SWEEP)).to_owned();
    let expected = experiment(&whole, "s.pagelab");
    assert_eq!(expected["trials"].as_array().unwrap().len(), 24);

    let mut child = killed.command(&SWEEP).spawn().unwrap();
    until_some(&killed, &mut child, "s.pagelab");
    child.kill().unwrap();
    child.wait().unwrap();
    let left = runs(&killed, "s.pagelab");
    let ran = killed.run(&["sim", "sweep", "--resume", "s.pagelab", "--threads", "3"]);
    // On a machine that is fast enough it was complete before it was killed.
    if left < 24 || ran.code == Some(0) {
        assert_eq!(good(&ran), text, "what is printed is the same");
    }
    assert_eq!(experiment(&killed, "s.pagelab"), expected, "and what is kept, each run once");
    let sqlite = Command::new("sqlite3")
        .args(["-readonly", "s.pagelab", "SELECT count(*) FROM blob WHERE kind = 'measures'"])
        .current_dir(killed.path())
        .output();
    if let Ok(output) = sqlite {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "heads of measures stand once");
    }
}

#[test]
fn a_stopped_sweep_keeps_finished_runs_and_hints_at_resume() {
    let lab = Lab::new();
    let slow: Vec<&str> = SWEEP
        .iter()
        .map(|&word| if word.starts_with("pairs=") { "pairs=300000,400000" } else { word })
        .collect();
    let mut child = lab.command(&slow).stdout(Stdio::piped()).spawn().unwrap();
    until_some(&lab, &mut child, "s.pagelab");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = ended(child);
    assert_eq!(ran.code, Some(130), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("resume with: pagelab sim sweep --resume s.pagelab"), "{}", ran.err);
    assert!(ran.out.contains("INCOMPLETE"), "{}", ran.out);
    let report = lab.run(&["report", "s.pagelab"]);
    assert!(good(&report).contains("STOPPED"), "{}", report.out);
    let said = experiment(&lab, "s.pagelab");
    let slots: BTreeSet<u64> =
        said["trials"].as_array().unwrap().iter().map(|run| run["slot"].as_u64().unwrap()).collect();
    assert_eq!(slots.len(), said["trials"].as_array().unwrap().len());
    assert!(slots.len() < 24, "it was stopped in its middle");
}

#[test]
fn random_points_are_distinct_and_influential_parameters_named() {
    let lab = Lab::new();
    let ran = lab.run(&[
        "sim",
        "sweep",
        "--machine",
        "64M",
        "--load",
        "churn",
        "--grid",
        "scheme=standard,mobility",
        "--range",
        "pairs=100..3000",
        "--range",
        "full=20..90",
        "--random",
        "12",
        "-o",
        "r.pagelab",
    ]);
    let text = good(&ran);
    assert!(text.contains("12 configurations   seed 1   12 runs"), "{text}");
    assert!(text.contains("influence on"), "{text}");
    let said = experiment(&lab, "r.pagelab");
    assert_eq!(said["sweep"]["varied"], serde_json::json!(["scheme", "pairs", "full"]));
    let points: BTreeSet<String> = said["plan"]["grid"]["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["varied"].to_string())
        .collect();
    assert_eq!(points.len(), 12);
    for influence in said["sweep"]["influences"].as_array().unwrap() {
        let share = influence["share"].as_f64().unwrap();
        assert!((0.0..=1.0 + 1e-9).contains(&share), "{influence}");
    }
}

#[test]
fn an_unknown_figure_is_refused() {
    let lab = Lab::new();
    let sweep =
        ["sim", "sweep", "--machine", "64M", "--load", "churn", "--grid", "pairs=100,200,300,400", "--by"];
    let ran = lab.run(&[&sweep[..], &["no/such"]].concat());
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    let there = ran.err.split_once("expected one of ").unwrap().1;
    let last = there.trim_end().rsplit(", ").next().unwrap().to_owned();
    let text = good(&lab.run(&[&sweep[..], &[&last]].concat())).to_owned();
    assert!(text.contains(&format!("influence on {last}")), "{text}");
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 1, "the refused one left no file");
}

#[test]
fn a_file_that_cannot_be_resumed_is_refused_unchanged() {
    let lab = Lab::new();
    good(&lab.run(&["checkup", "-o", "foreign.pagelab"]));
    let small =
        ["sim", "compare", "--machine", "64M", "--load", "churn", "--set", "pairs=500", "--seeds", "2"];
    good(&lab.run(&[&small[..], &["-o", "whole.pagelab"]].concat()));
    let whole = std::fs::read(lab.path().join("whole.pagelab")).unwrap();
    lab.write("cut.pagelab", &whole[..whole.len() / 2]);
    lab.write("text.pagelab", "this is none");
    for (file, said) in [
        (
            "foreign.pagelab",
            "it contains no simulated experiment\nhint: create one with `pagelab sim sweep -o FILE`",
        ),
        ("cut.pagelab", "cut.pagelab"),
        ("text.pagelab", "text.pagelab"),
        ("none.pagelab", "no such file\nhint: create one with `pagelab sim sweep -o FILE`"),
    ] {
        let before = std::fs::read(lab.path().join(file)).ok();
        let ran = lab.run(&["sim", "sweep", "--resume", file]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{file}: {}", ran.err);
        assert!(ran.err.contains(said), "{file}: {}", ran.err);
        assert_eq!(std::fs::read(lab.path().join(file)).ok(), before, "{file}");
    }
    // One that is complete is shown as it is.
    let ran = lab.run(&["sim", "sweep", "--resume", "whole.pagelab"]);
    assert!(ran.err.contains("whole.pagelab is complete; nothing left to run"), "{}", ran.err);
    let report = lab.run(&["report", "whole.pagelab"]);
    assert!(good(&report).ends_with(good(&ran)), "{}{}", report.out, ran.out);
    assert_eq!(std::fs::read(lab.path().join("whole.pagelab")).unwrap(), whole);
}

#[test]
fn a_file_of_another_version_or_with_other_figures_is_refused() {
    use pagelab_model::run::{Manifest, RunEnd};
    use pagelab_runfile::RunWriter;
    let lab = Lab::new();
    let small =
        ["sim", "compare", "--machine", "64M", "--load", "churn", "--set", "pairs=500", "--seeds", "2"];
    good(&lab.run(&[&small[..], &["-o", "whole.pagelab"]].concat()));
    let run = pagelab_runfile::read_run_file(&lab.path().join("whole.pagelab")).unwrap();
    let experiment = *run.experiment.unwrap();
    let manifest: &Manifest = &run.manifest;
    let write = |name: &str, change: &dyn Fn(&mut pagelab_model::experiment::Experiment)| {
        let mut experiment = experiment.clone();
        experiment.trials.truncate(1);
        change(&mut experiment);
        let mut writer = RunWriter::create(&lab.path().join(name), manifest).unwrap();
        writer.add_plan(0, &experiment.plan).unwrap();
        writer.add_trials(1, &experiment.trials).unwrap();
        writer.close(RunEnd::Stopped { after_ns: 2, reason: "a test".to_owned() }).unwrap();
    };
    write("version.pagelab", &|of| of.plan.simulator = Some("0.0.9".to_owned()));
    write("figures.pagelab", &|of| {
        of.trials[0].measures[0].exact.as_mut().unwrap().numerator += 1;
    });
    write("policy.pagelab", &|of| of.plan.variants[0].name = "gone".to_owned());
    write("good.pagelab", &|_| {});
    write("run.pagelab", &|_| {});
    for (file, said) in [
        ("version.pagelab", "started by simulator 0.0.9"),
        ("figures.pagelab", "has a different result here"),
        ("policy.pagelab", "unknown policy or option `gone`"),
    ] {
        for command in [&["sim", "sweep"][..], &["run"]] {
            let ran = lab.run(&[command, &["--resume", file]].concat());
            assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{file}: {}", ran.err);
            assert!(ran.err.contains(said), "{file}: {}", ran.err);
        }
    }
    for (command, file) in [(&["sim", "sweep"][..], "good.pagelab"), (&["run"], "run.pagelab")] {
        let ran = lab.run(&[command, &["--resume", file]].concat());
        good(&ran);
        assert!(ran.err.contains("resumed with 1 of 8 trials done"), "{}", ran.err);
        let run = pagelab_runfile::read_run_file(&lab.path().join(file)).unwrap();
        assert_eq!(run.experiment.unwrap().trials.len(), 8);
        assert!(run.events.iter().any(|event| event.kind == "resumed"));
        let ran = lab.run(&[command, &["--resume", file]].concat());
        good(&ran);
        assert!(ran.err.contains("is complete; nothing left to run"), "{}", ran.err);
    }
}

#[test]
fn invalid_sweeps_are_refused() {
    let lab = Lab::new();
    for (words, said) in [
        (&[][..], "nothing to vary"),
        (&["--grid", "scheme=list,foo"], "unknown policy or option `foo`"),
        (&["--grid", "builds=1,x"], "expected a non-negative integer"),
        (&["--grid", "scheme=list", "--grid", "policy=zone"], "varied twice"),
        (&["--grid", "builds=1,2", "--set", "builds=3"], "both set and varied"),
        (&["--range", "builds=1..4"], "--random"),
        (&["--random", "3"], "--range all"),
        (&["--random", "3", "--range", "builds"], "from the default 0"),
        (
            &["--random", "3", "--range", "nothing"],
            "load highalloc: unknown parameter `nothing`; expected one of daemons",
        ),
        (
            &["--random", "3", "--range", "all", "--grid", "load=churn,kbuild"],
            "is not possible if the load varies",
        ),
        (&["--random", "3", "--range", "builds=4..1"], "must be below"),
        (&["--grid", "kernelcore=3K,1G", "--scheme", "zone"], "aligned to 4 MiB"),
        (&["--grid", "nothing=1,2"], "load highalloc: unknown parameter `nothing`"),
        (&["--grid", "scheme=list", "--scheme", "zone"], "scheme is varied, but --scheme fixes it"),
        (&["--grid", "load=churn,server", "--load", "churn"], "--load fixes it"),
        (&["--grid", "machine=1G,2G", "--machine", "1G"], "--machine fixes it"),
        (&["--grid", "builds=1,2", "--random", "-1"], "expected an integer from 1 to 65536"),
        (&["--resume", "a.pagelab", "--grid", "builds=1,2"], "cannot be used with"),
    ] {
        let ran = lab.run(&[&["sim", "sweep"], words].concat());
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 0);
}
