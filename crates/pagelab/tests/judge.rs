//! Tests of `--judge`: exit codes and texts of `report` and `run`, and the script for `git bisect run`.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use expect_test::expect;
use pagelab_model::experiment::{
    BetterDirection, DEFAULT_LOSS, Measure, Plan, PlannedVariant, PlannedWorkload, ScheduleSlot, Sequence,
    Trial, TrialEnd, TrialRole,
};
use pagelab_model::run::{ClockReading, Manifest, RunEnd, Unit};
use pagelab_model::{PageSize, Snapshot};
use pagelab_runfile::{RunWriter, read_run_file};
use serde_json::Value;
use support::running::wait_until;
use support::{CommandOutput, Lab};

fn run_pagelab(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

/// The lines of a judgement.
fn judge_lines(ran: &CommandOutput) -> String {
    let lines = ran.out.lines().filter(|line| line.starts_with("judge: "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn plan(rounds: u32) -> Plan {
    let variant = |name: &str| PlannedVariant {
        name: name.to_owned(),
        settings: Vec::new(),
        asks_for_huge_pages: false,
        lists: Vec::new(),
    };
    let workload = |name: &str| PlannedWorkload {
        name: name.to_owned(),
        command: vec![name.to_owned()],
        generator: String::new(),
        merit: None,
        simulated: None,
    };
    let slots = (0..rounds).flat_map(|round| {
        let slot = move |at: usize| (at / 2, at % 2, round);
        (0..4).map(slot)
    });
    let role = TrialRole::Measured;
    Plan {
        name: "kernels".to_owned(),
        explanation: String::new(),
        simulator: None,
        sweep: None,
        pictures: 0,
        early_end: None,
        dropped_variants: Default::default(),
        question: "Is the new kernel slower?".to_owned(),
        origin: "kernels.toml".to_owned(),
        recipe: String::new(),
        place: Plan::HOST.to_owned(),
        workloads: ["chase", "gups"].map(workload).to_vec(),
        variants: ["6.1", "6.12"].map(variant).to_vec(),
        baseline: Some(0),
        sequence: Sequence::Abba,
        seed: 1,
        loss: DEFAULT_LOSS,
        schedule: slots
            .map(|(workload, variant, round)| ScheduleSlot { workload, variant, round, role })
            .collect(),
    }
}

/// Writes an experiment of two workloads under two kernels. The second kernel takes `factors` times as long
/// with them. Values are up to 2 % apart. `fails`: ends of trials, by slot.
fn write_experiment(lab: &Lab, name: &str, rounds: u32, factors: [f64; 2], fails: &[(usize, TrialEnd)]) {
    let known = Snapshot::new_unread("a test", PageSize::DEFAULT);
    let manifest = Manifest {
        kind: "run".to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: ["pagelab", "run", "kernels.toml"].map(str::to_owned).to_vec(),
        seed: Some(1),
        started: ClockReading { realtime_ns: 1_770_127_506_000_000_000, boottime_ns: 1000 },
        machine: known.machine,
        settings: known.settings,
    };
    let plan = plan(rounds);
    let mut writer = RunWriter::create(&lab.path().join(name), &manifest).unwrap();
    writer.add_plan(0, &plan).unwrap();
    for (at, slot) in plan.schedule.iter().enumerate() {
        let mut trial = Trial::new(at, at as u64);
        let noise = 0.99 + 0.02 * (at * 7 % 11) as f64 / 10.0;
        let wall = 1e9 * noise * if slot.variant == 1 { factors[slot.workload] } else { 1.0 };
        let measure =
            |name: &str, better, value| Measure::new(name, Unit::NANOSECONDS, better, Ok(value), "a test");
        trial.measures = vec![
            measure("wall", BetterDirection::Lower, wall),
            measure("probe.scans", BetterDirection::Neither, 7.0),
        ];
        trial.ended_ns += 1;
        if let Some((_, end)) = fails.iter().find(|(slot, _)| *slot == at) {
            trial.end = end.clone();
        }
        writer.add_trial(&trial).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 1_000_000 }).unwrap();
}

#[test]
fn a_file_is_judged_by_the_exit_code() {
    let lab = Lab::new();
    write_experiment(&lab, "a.pagelab", 10, [1.04, 1.25], &[]);
    let judge = |code, loss| {
        judge_lines(&run_pagelab(&lab, code, &["report", "a.pagelab", "--judge", "wall", "--loss", loss]))
    };
    expect![[r#"
        judge: wall of chase: 6.12 is 4.1 % slower than 6.1 (3.2 to 4.9 %): not worse than the accepted 10 %
        judge: wall of gups: 6.12 is 25 % slower than 6.1 (24 to 26 %): worse than the accepted 10 %
        judge: worse: 1 of 2 comparisons exceeds the accepted 10 %
    "#]]
    .assert_eq(&judge(1, "10%"));
    expect![[r#"
        judge: wall of chase: 6.12 is 4.1 % slower than 6.1 (3.2 to 4.9 %): not worse than the accepted 30 %
        judge: wall of gups: 6.12 is 25 % slower than 6.1 (24 to 26 %): not worse than the accepted 30 %
        judge: not worse: 2 comparisons are within the accepted 30 %
    "#]]
    .assert_eq(&judge(0, "0.3"));
    expect![[r#"
        judge: wall of chase: 6.12 is 4.1 % slower than 6.1 (3.2 to 4.9 %): not worse than the accepted 25 %
        judge: wall of gups: 6.12 is 25 % slower than 6.1 (24 to 26 %): undecided, since the interval contains the accepted 25 %
        judge: undecided: 1 of 2 comparisons is undecided, and none is worse
    "#]].assert_eq(&judge(7, "25%"));
    // The report is the same, and precedes the judgement.
    let shown = run_pagelab(&lab, 0, &["report", "a.pagelab"]).out;
    let judged = run_pagelab(&lab, 0, &["report", "a.pagelab", "--judge", "wall", "--loss", "30%"]).out;
    assert!(judged.starts_with(&(shown + "\njudge: ")), "{judged}");
    // Without --loss that of the plan: 5 %.
    let judged = run_pagelab(&lab, 1, &["report", "a.pagelab", "--judge", "wall", "--json"]).out;
    let judged: Value = serde_json::from_str(&judged).unwrap();
    let judgement = &judged["runs"][0]["judgement"];
    assert_eq!((&judgement["loss"], &judgement["verdict"]), (&0.05.into(), &"worse".into()));
    assert_eq!(judgement["comparisons"][1]["pairs"], 10);
    let plain: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["report", "a.pagelab", "--json"]).out).unwrap();
    assert_eq!(plain["runs"][0].get("judgement"), None);
}

#[test]
fn few_pairs_and_failed_trials_have_their_codes() {
    let lab = Lab::new();
    let judge = |code, name: &str| {
        judge_lines(&run_pagelab(&lab, code, &["report", name, "--judge", "wall", "--loss", "10%"]))
    };
    write_experiment(&lab, "few.pagelab", 5, [1.0, 1.5], &[]);
    expect![[r#"
        judge: wall of chase: 6.12 against 6.1: undecided: 5 complete pairs, 1 more is needed
        judge: wall of gups: 6.12 against 6.1: undecided: 5 complete pairs, 1 more is needed
        judge: undecided: 2 of 2 comparisons are undecided, and none is worse
    "#]]
    .assert_eq(&judge(7, "few.pagelab"));
    // A trial of the second kernel failed, and seven pairs remain.
    let fails = [(1, TrialEnd::Failed(1))];
    write_experiment(&lab, "good.pagelab", 8, [1.0, 1.0], &fails);
    expect![[r#"
        judge: wall of chase: 6.12 is 0.14 % slower than 6.1 (0.94 % faster to 1.2 % slower): not worse than the accepted 10 %
        judge: wall of gups: 6.12 is 0.02 % slower than 6.1 (0.92 % faster to 0.98 % slower): not worse than the accepted 10 %
        judge: not worse: 2 comparisons are within the accepted 10 %; 1 of 32 trials failed
    "#]].assert_eq(&judge(5, "good.pagelab"));
    write_experiment(&lab, "bad.pagelab", 8, [1.0, 1.5], &fails);
    expect![[r#"
        judge: wall of chase: 6.12 is 0.14 % slower than 6.1 (0.94 % faster to 1.2 % slower): not worse than the accepted 10 %
        judge: wall of gups: 6.12 is 50 % slower than 6.1 (49 to 51 %): worse than the accepted 10 %
        judge: worse: 1 of 2 comparisons exceeds the accepted 10 %; 1 of 32 trials failed
    "#]].assert_eq(&judge(1, "bad.pagelab"));
    // The second kernel never completes the first workload: the other workload alone decides nothing.
    let fails: Vec<_> = (0..8).map(|round| (round * 4 + 1, TrialEnd::Killed(9))).collect();
    write_experiment(&lab, "killed.pagelab", 8, [1.0, 1.0], &fails);
    expect![[r#"
        judge: wall of chase: 6.12 against 6.1: undecided: 0 complete pairs, 6 more are needed
        judge: wall of gups: 6.12 is 0.02 % slower than 6.1 (0.92 % faster to 0.98 % slower): not worse than the accepted 10 %
        judge: undecided: 1 of 2 comparisons is undecided, and none is worse; 8 of 32 trials failed
    "#]].assert_eq(&judge(7, "killed.pagelab"));
}

#[test]
fn what_cannot_be_judged_is_an_error() {
    let lab = Lab::new();
    write_experiment(&lab, "a.pagelab", 6, [1.0, 1.0], &[]);
    let judge = |measure| run_pagelab(&lab, 2, &["report", "a.pagelab", "--judge", measure]).err;
    expect![[r#"
        error: unknown measure `wal`; expected one of wall
        hint: did you mean `wall`?
    "#]]
    .assert_eq(&judge("wal"));
    expect![[r#"
        error: cannot judge by `probe.scans`: neither more nor less of it is better; expected one of wall
    "#]]
    .assert_eq(&judge("probe.scans"));
    for line in [
        "report a.pagelab a.pagelab --judge wall",
        "report a.pagelab --judge wall --html a.html",
        "report a.pagelab --judge wall --loss 10",
        "run thp --judge wall --dry-run",
        "run thp --loss 10%",
        "run --resume a.pagelab --judge wall --dry-run",
    ] {
        run_pagelab(&lab, 2, &line.split(' ').collect::<Vec<_>>());
    }
    lab.write("tree/proc/buddyinfo", "Node 0, zone   Normal  90000  60000  40000  10000   3000    800 \n");
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         2179200 kB\n");
    run_pagelab(&lab, 0, &["checkup", "--root", "tree", "-o", "checkup.pagelab"]);
    let ran = run_pagelab(&lab, 3, &["report", "checkup.pagelab", "--judge", "wall"]);
    assert!(ran.err.contains("cannot judge checkup.pagelab: it contains no experiment"), "{}", ran.err);
    // Figures of the simulator have no better direction, which is known before any trial.
    let simulated = "name = \"s\"\nplace = \"sim\"\nschemes = [\"standard\", \"list\"]\n[[machine]]\n\
                     name = \"512M\"\n[[load]]\nname = \"churn\"\n";
    lab.write("sim.toml", simulated);
    let ran = run_pagelab(&lab, 2, &["run", "sim.toml", "--judge", "wall"]);
    assert!(ran.err.contains("cannot judge a simulated experiment"), "{}", ran.err);
}

/// The second variant prints a lower rate; the third fails.
const RATES: &str = r#"
name = "rates"
question = "Which rate is higher?"
repeats = 6
warm_up = 0
twins = false
loss = 0.3
[[workload]]
name = "echo"
command = ["sh", "-c", "sleep 0.05; echo rate = $RATE 1/s; echo size = 5 B"]
metric = { pattern = "rate = {} 1/s", unit = "1/s", better = "higher" }
figures = [{ name = "size", pattern = "size = {} B", unit = "bytes", better = "neither" }]
[[variant]]
name = "fast"
environment = { RATE = "100" }
[[variant]]
name = "slow"
environment = { RATE = "80" }
"#;

fn run_recipe(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let mut command = lab.command(&[&["run"], arguments].concat());
    let output = command.env("PATH", "/usr/bin:/bin").output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}{err}");
    CommandOutput { code: output.status.code(), out, err }
}

#[test]
fn a_run_ends_with_its_judgement() {
    let lab = Lab::new();
    lab.write("rates.toml", RATES);
    let ran = run_recipe(&lab, 1, &["rates.toml", "--judge", "merit", "--loss", "10%"]);
    expect![[r#"
        judge: merit of echo: slow is 25 % slower than fast (25 to 25 %): worse than the accepted 10 %
        judge: worse: 1 of 1 comparison exceeds the accepted 10 %
    "#]]
    .assert_eq(&judge_lines(&ran));
    // The recipe accepts 30 %.
    expect![[r#"
        judge: merit of echo: slow is 25 % slower than fast (25 to 25 %): not worse than the accepted 30 %
        judge: not worse: 1 comparison is within the accepted 30 %
    "#]]
    .assert_eq(&judge_lines(&run_recipe(&lab, 0, &["rates.toml", "--judge", "merit"])));
    let ran = run_recipe(&lab, 7, &["rates.toml", "--judge", "merit", "--repeats", "2", "--json"]);
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    let comparison = &document["runs"][0]["judgement"]["comparisons"][0];
    let expected = "merit of echo: slow against fast: undecided: 2 complete pairs, 4 more are needed";
    assert_eq!((&comparison["sentence"], &comparison["pairs"]), (&expected.into(), &2.into()));
    assert!(ran.err.contains("note: --judge needs 6 rounds and this run has 2"), "{}", ran.err);
}

#[test]
fn an_unknown_measure_is_an_error_before_the_run_or_keeps_the_file() {
    let lab = Lab::new();
    lab.write("rates.toml", RATES);
    let judge = |measure| run_recipe(&lab, 2, &["rates.toml", "--judge", measure]).err;
    expect![[r#"
        error: unknown measure `merti`; expected one of wall, cpu, merit
        hint: did you mean `merit`?
    "#]]
    .assert_eq(&judge("merti"));
    expect![[r#"
        error: cannot judge by `size`: neither more nor less of it is better; expected one of wall, cpu, merit
    "#]]
    .assert_eq(&judge("size"));
    assert_eq!(std::fs::read_dir(lab.path()).unwrap().count(), 1, "nothing has run");
    // A measure of a probe: only a trial shows that it is none.
    let ran = run_recipe(&lab, 2, &["rates.toml", "--judge", "phase.wal", "--repeats", "1"]);
    assert!(ran.err.contains("error: unknown measure `phase.wal`; expected one of "), "{}", ran.err);
    assert!(ran.out.contains("Which rate is higher?"), "the report is printed: {}", ran.out);
    assert_eq!(
        read_run_file(&lab.path().join("rates-1.pagelab")).unwrap().experiment.unwrap().trials.len(),
        2
    );
}

#[test]
fn failed_trials_leave_a_run_undecided() {
    let lab = Lab::new();
    lab.write("rates.toml", RATES.replace("\"80\"", "\"none\""));
    let ran = run_recipe(&lab, 7, &["rates.toml", "--judge", "merit"]);
    expect![[r#"
        judge: merit of echo: slow against fast: undecided: 0 complete pairs, 6 more are needed
        judge: undecided: 1 of 1 comparison is undecided, and none is worse; 6 of 12 trials failed
    "#]]
    .assert_eq(&judge_lines(&ran));
}

#[test]
fn a_variant_that_runs_out_of_memory_in_all_rounds_is_worse() {
    let lab = Lab::new();
    // Trials of the second kernel with both workloads, or with the first one in a single round.
    let all: Vec<(usize, TrialEnd)> =
        (0..24).filter(|slot| slot % 2 == 1).map(|slot| (slot, TrialEnd::OutOfMemory)).collect();
    write_experiment(&lab, "all.pagelab", 6, [1.0, 1.0], &all);
    write_experiment(&lab, "one.pagelab", 6, [1.0, 1.0], &all[..1]);
    let judge = |code, file| judge_lines(&run_pagelab(&lab, code, &["report", file, "--judge", "wall"]));
    expect![[r#"
        judge: wall of chase: 6.12 against 6.1: worse: all 6 trials ran out of memory, and none of 6.1
        judge: wall of gups: 6.12 against 6.1: worse: all 6 trials ran out of memory, and none of 6.1
        judge: worse: 2 of 2 comparisons ran out of memory; 12 of 24 trials failed
    "#]]
    .assert_eq(&judge(1, "all.pagelab"));
    let one = judge(7, "one.pagelab");
    let said = "undecided: 1 trial ran out of memory, and 0 of the baseline\n";
    assert!(one.starts_with("judge: wall of chase: 6.12 against 6.1: ") && one.contains(said), "{one}");
}

/// Starts a run of the rates, and stops it by SIGINT when two of its twelve trials are stored.
fn stop_run(lab: &Lab, arguments: &[&str]) {
    lab.write("rates.toml", RATES);
    let mut command = lab.command(&[&["run", "rates.toml"], arguments].concat());
    let child = command.env("PATH", "/usr/bin:/bin").spawn().unwrap();
    let path = lab.path().join("rates-1.pagelab");
    wait_until("trials", || {
        read_run_file(&path).is_ok_and(|run| run.experiment.is_some_and(|of| of.trials.len() >= 2))
    });
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}

#[test]
fn a_stopped_run_ends_with_its_signal_and_is_judged_when_resumed() {
    let lab = Lab::new();
    stop_run(&lab, &["--judge", "merit", "--loss", "10%"]);
    let ran = run_recipe(&lab, 1, &["--resume", "rates-1.pagelab"]);
    assert!(ran.out.contains("worse than the accepted 10 %"), "{}", ran.out);
    // Now it is complete: it is judged again, as it was begun or as it is requested now.
    let again = run_recipe(&lab, 1, &["--resume", "rates-1.pagelab"]);
    assert_eq!(again.out, ran.out);
    let now = run_recipe(&lab, 0, &["--resume", "rates-1.pagelab", "--judge", "merit", "--loss", "30%"]);
    assert!(now.err.contains("rates-1.pagelab is complete; nothing left to run"), "{}", now.err);
    assert!(now.out.contains("judge: merit of echo"), "{}", now.out);
    assert!(now.out.contains("not worse than the accepted 30 %"), "{}", now.out);
}

#[test]
fn a_resumed_run_is_judged_as_it_is_requested_now() {
    let lab = Lab::new();
    stop_run(&lab, &[]);
    let unknown = run_recipe(&lab, 2, &["--resume", "rates-1.pagelab", "--judge", "wal"]);
    assert!(unknown.err.contains("unknown measure `wal`"), "{}", unknown.err);
    let ran = run_recipe(&lab, 1, &["--resume", "rates-1.pagelab", "--judge", "merit", "--loss", "10%"]);
    assert!(ran.out.contains("worse than the accepted 10 %"), "{}", ran.out);
}

/// The script of docs/guests.md, written to the lab beside fake programs: `make` copies `speed` to where a
/// kernel is built, and `pagelab` is this script.
fn write_script(lab: &Lab, pagelab: &str) {
    let document = include_str!("../../../docs/guests.md");
    let (_, rest) = document.split_once("<!-- script: judge-kernel.sh -->\n```sh\n").unwrap();
    let (script, _) = rest.split_once("```\n").unwrap();
    lab.write("judge-kernel.sh", script);
    let make =
        "#!/bin/sh\n[ ! -e no-build ] || exit 2\nmkdir -p arch/x86/boot\ncp speed arch/x86/boot/bzImage\n";
    let programs = [("make", make), ("nproc", "#!/bin/sh\necho 2\n"), ("pagelab", pagelab)];
    for (name, text) in programs {
        lab.write(&format!("bin/{name}"), text);
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(lab.path().join("bin").join(name), mode).unwrap();
    }
}

fn run_in(folder: &Path, bin: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).env_clear().stdin(Stdio::null());
    command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display())).env("HOME", folder);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "a test").env(format!("GIT_{who}_EMAIL"), "test@example.org");
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap()
}

const SCRIPT_WORDS: [&str; 6] = ["sh", "../judge-kernel.sh", "../good", "thp", "wall", "10%"];

#[test]
fn the_script_for_bisecting_converts_exit_codes() {
    let lab = Lab::new();
    let pagelab = "#!/bin/sh\necho \"$*\" > words\ncode=$(cat code)\n\
                   [ \"$code\" != TERM ] || kill -TERM $$\nexit \"$code\"\n";
    write_script(&lab, pagelab);
    lab.write("tree/speed", "100\n");
    let tree = lab.path().join("tree");
    let run = || run_in(&tree, &lab.path().join("bin"), &SCRIPT_WORDS).status.code();
    let codes = [
        ("0", 0),
        ("1", 1),
        ("2", 125),
        ("5", 125),
        ("6", 125),
        ("7", 125),
        ("125", 125),
        ("126", 125),
        ("127", 125),
        ("128", 128),
        ("130", 130),
        ("137", 137),
        ("TERM", 143),
    ];
    for (code, converted) in codes {
        lab.write("tree/code", code);
        assert_eq!(run(), Some(converted), "{code}");
    }
    let words = std::fs::read_to_string(tree.join("words")).unwrap();
    let expected = "run thp --place guest --kernel ../good --kernel arch/x86/boot/bzImage --judge wall \
                    --loss 10%\n";
    assert_eq!(words, expected);
    // A kernel that cannot be built is skipped, and nothing is judged.
    lab.write("tree/code", "0");
    lab.write("tree/no-build", "");
    assert_eq!(run(), Some(125));
}

#[test]
fn git_bisect_finds_the_first_slow_kernel() {
    let lab = Lab::new();
    // A kernel of more than 110 is slower than the good one; one of 0 decides nothing.
    let pagelab = "#!/bin/sh\ngood=$(cat \"$6\") new=$(cat \"$8\")\n[ \"$new\" -gt 0 ] || exit 7\n\
                   [ $((new * 10)) -le $((good * 11)) ]\n";
    write_script(&lab, pagelab);
    lab.write("good", "100\n");
    let (tree, bin) = (lab.path().join("tree"), lab.path().join("bin"));
    std::fs::create_dir(&tree).unwrap();
    let git = |words: &[&str]| {
        let output = run_in(&tree, &bin, &[&["git"], words].concat());
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: git-absent: there is no `git` to bisect with");
        return;
    }
    git(&["init", "-q"]);
    let speeds = ["100", "101", "99", "102", "0", "100", "130", "131", "129"];
    let mut commits = Vec::new();
    for (at, speed) in speeds.iter().enumerate() {
        lab.write("tree/speed", format!("{speed}\n"));
        lab.write("tree/number", format!("{at}\n"));
        git(&["add", "speed", "number"]);
        git(&["commit", "-q", "-m", &format!("kernel {at}")]);
        commits.push(git(&["rev-parse", "HEAD"]).trim().to_owned());
    }
    git(&["bisect", "start", &commits[8], &commits[0]]);
    let said = git(&[&["bisect", "run"], &SCRIPT_WORDS[..]].concat());
    assert!(said.contains(&format!("{} is the first bad commit", commits[6])), "{said}");
    assert_eq!(git(&["rev-parse", "refs/bisect/bad"]).trim(), commits[6]);
    let log = git(&["bisect", "log"]);
    assert!(log.contains(&format!("git bisect skip {}", commits[4])), "the undecided one is skipped: {log}");
}
