//! `pagelab sim sweep`, end to end: killed and gone on with, drawn points, files that are not its own.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Lab, Ran};

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

fn good(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    &ran.out
}

/// The study of a run file, as the report's JSON has it.
fn study(lab: &Lab, file: &str) -> Value {
    let said: Value = serde_json::from_str(good(&lab.run(&["report", "--json", file]))).unwrap();
    said["runs"][0]["study"].clone()
}

/// How many runs are in a file that may still be written.
fn runs(lab: &Lab, file: &str) -> usize {
    let ran = lab.run(&["report", "--json", file]);
    let said: Option<Value> = serde_json::from_str(&ran.out).ok();
    said.and_then(|said| said["runs"][0]["study"]["runs_done"].as_u64()).unwrap_or(0) as usize
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

fn ended(mut child: Child) -> Ran {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn one_that_was_killed_goes_on_and_equals_one_that_was_not() {
    let (whole, killed) = (Lab::new(), Lab::new());
    let text = good(&whole.run(&SWEEP)).to_owned();
    let expected = study(&whole, "s.pagelab");
    assert_eq!(expected["runs_done"], 24);

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
    assert_eq!(study(&killed, "s.pagelab"), expected, "and what is kept, each run once");
    let sqlite = Command::new("sqlite3")
        .args([
            "-readonly",
            "s.pagelab",
            "SELECT count(*), count(DISTINCT name) FROM blob WHERE kind = 'study_trial'",
        ])
        .current_dir(killed.path())
        .output();
    if let Ok(output) = sqlite {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "24|24\n", "nothing was made twice");
    }
}

#[test]
fn one_that_was_stopped_keeps_what_is_done_and_says_how_to_go_on() {
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
    assert!(ran.err.contains("go on with: pagelab sim sweep --resume s.pagelab"), "{}", ran.err);
    assert!(ran.out.contains("NOT WHOLE"), "{}", ran.out);
    let report = lab.run(&["report", "s.pagelab"]);
    assert!(good(&report).contains("STOPPED"), "{}", report.out);
    let said = study(&lab, "s.pagelab");
    let slots: BTreeSet<u64> =
        said["runs"].as_array().unwrap().iter().map(|run| run["slot"].as_u64().unwrap()).collect();
    assert_eq!(slots.len() as u64, said["runs_done"].as_u64().unwrap());
    assert!(slots.len() < 24, "it was stopped in its middle");
}

#[test]
fn points_are_drawn_once_each_and_what_mattered_is_named() {
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
    assert!(text.contains("what mattered for"), "{text}");
    let said = study(&lab, "r.pagelab");
    assert_eq!(said["sweep"]["varied"], serde_json::json!(["scheme", "pairs", "full"]));
    let points: BTreeSet<String> =
        said["cells"].as_array().unwrap().iter().map(|cell| cell["varied"].to_string()).collect();
    assert_eq!(points.len(), 12);
    for influence in said["sweep"]["influences"].as_array().unwrap() {
        let share = influence["share"].as_f64().unwrap();
        assert!((0.0..=1.0 + 1e-9).contains(&share), "{influence}");
    }
}

#[test]
fn a_figure_to_judge_by_must_be_there() {
    let lab = Lab::new();
    let sweep =
        ["sim", "sweep", "--machine", "64M", "--load", "churn", "--grid", "pairs=100,200,300,400", "--by"];
    let ran = lab.run(&[&sweep[..], &["no/such"]].concat());
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    let there = ran.err.split_once("there are ").unwrap().1;
    let last = there.trim_end().rsplit(", ").next().unwrap().to_owned();
    let text = good(&lab.run(&[&sweep[..], &[&last]].concat())).to_owned();
    assert!(text.contains(&format!("what mattered for {last}")), "{text}");
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 1, "the refused one left no file");
}

#[test]
fn a_file_that_cannot_be_gone_on_with_is_refused_and_unchanged() {
    let lab = Lab::new();
    good(&lab.run(&["checkup", "--run", "foreign.pagelab"]));
    let small =
        ["sim", "compare", "--machine", "64M", "--load", "churn", "--set", "pairs=500", "--seeds", "2"];
    good(&lab.run(&[&small[..], &["-o", "whole.pagelab"]].concat()));
    let whole = std::fs::read(lab.path().join("whole.pagelab")).unwrap();
    lab.write("cut.pagelab", &whole[..whole.len() / 2]);
    lab.write("text.pagelab", "this is none");
    for (file, said) in [
        ("foreign.pagelab", "it holds no simulated study; `pagelab sim sweep -o FILE` makes one"),
        ("cut.pagelab", "cut.pagelab"),
        ("text.pagelab", "text.pagelab"),
        ("none.pagelab", "there is no such file; `pagelab sim sweep -o FILE` makes one"),
    ] {
        let before = std::fs::read(lab.path().join(file)).ok();
        let ran = lab.run(&["sim", "sweep", "--resume", file]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{file}: {}", ran.err);
        assert!(ran.err.contains(said), "{file}: {}", ran.err);
        assert_eq!(std::fs::read(lab.path().join(file)).ok(), before, "{file}");
    }
    // One that is complete is shown as it is.
    let ran = lab.run(&["sim", "sweep", "--resume", "whole.pagelab"]);
    assert!(ran.err.contains("whole.pagelab is complete: nothing is left to make"), "{}", ran.err);
    let report = lab.run(&["report", "whole.pagelab"]);
    assert!(good(&report).ends_with(good(&ran)), "{}{}", report.out, ran.out);
    assert_eq!(std::fs::read(lab.path().join("whole.pagelab")).unwrap(), whole);
}

#[test]
fn a_file_of_another_version_or_with_other_figures_is_refused() {
    use pagelab_model::run::{Ending, Manifest};
    use pagelab_runfile::Writer;
    let lab = Lab::new();
    let small =
        ["sim", "compare", "--machine", "64M", "--load", "churn", "--set", "pairs=500", "--seeds", "2"];
    good(&lab.run(&[&small[..], &["-o", "whole.pagelab"]].concat()));
    let run = pagelab_runfile::read(&lab.path().join("whole.pagelab")).unwrap();
    let study = *run.study.unwrap();
    let manifest: &Manifest = &run.manifest;
    let write = |name: &str, change: &dyn Fn(&mut pagelab_model::study::Study)| {
        let mut study = study.clone();
        study.trials.truncate(1);
        change(&mut study);
        let mut writer = Writer::create(&lab.path().join(name), manifest).unwrap();
        writer.study(0, &study.plan).unwrap();
        study.trials.iter().for_each(|trial| writer.study_trial(1, trial).unwrap());
        writer.close(Ending::Stopped { after_ns: 2, why: "a test".to_owned() }).unwrap();
    };
    write("version.pagelab", &|study| study.plan.simulator = "0.0.9".to_owned());
    write("figures.pagelab", &|study| study.trials[0].figures[0].value += 1);
    write("policy.pagelab", &|study| study.plan.cells[0].scheme = "gone".to_owned());
    write("good.pagelab", &|_| {});
    for (file, said) in [
        ("version.pagelab", "begun by simulator 0.0.9"),
        ("figures.pagelab", "comes to something else here"),
        ("policy.pagelab", "no policy is called \"gone\""),
    ] {
        let ran = lab.run(&["sim", "sweep", "--resume", file]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{file}: {}", ran.err);
        assert!(ran.err.contains(said), "{file}: {}", ran.err);
    }
    let ran = lab.run(&["sim", "sweep", "--resume", "good.pagelab"]);
    good(&ran);
    assert!(ran.err.contains("1 of 8 runs kept, 7 to make"), "{}", ran.err);
    assert_eq!(
        pagelab_runfile::read(&lab.path().join("good.pagelab")).unwrap().study.unwrap().trials.len(),
        8
    );
}

#[test]
fn what_makes_no_sweep_is_refused() {
    let lab = Lab::new();
    for (words, said) in [
        (&[][..], "nothing is varied"),
        (&["--grid", "scheme=list,foo"], "no policy is called \"foo\""),
        (&["--grid", "builds=1,x"], "a whole number"),
        (&["--grid", "scheme=list", "--grid", "policy=zone"], "varied twice"),
        (&["--grid", "builds=1,2", "--set", "builds=3"], "both set and varied"),
        (&["--range", "builds=1..4"], "--random"),
        (&["--random", "3"], "--range all"),
        (&["--random", "3", "--range", "builds"], "it is 0 as usual"),
        (&["--random", "3", "--range", "nothing"], "the load highalloc has daemons"),
        (&["--random", "3", "--range", "all", "--grid", "load=churn,kbuild"], "each has its own"),
        (&["--random", "3", "--range", "builds=4..1"], "must be below"),
        (&["--grid", "kernelcore=3K,1G", "--policy", "zone"], "cut at multiples"),
        (&["--grid", "nothing=1,2"], "has no parameter nothing"),
        (&["--grid", "scheme=list", "--policy", "zone"], "scheme is varied, and --policy gives it one value"),
        (&["--grid", "load=churn,server", "--load", "churn"], "--load gives it one value"),
        (&["--grid", "machine=1G,2G", "--machine", "1G"], "--machine gives it one value"),
        (&["--grid", "builds=1,2", "--random", "-1"], "from 1 to 65 536 is wanted"),
        (&["--resume", "a.pagelab", "--grid", "builds=1,2"], "cannot be used with"),
    ] {
        let ran = lab.run(&[&["sim", "sweep"], words].concat());
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 0);
}
