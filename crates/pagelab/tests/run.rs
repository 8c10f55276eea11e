//! Tests of `pagelab run`: workloads that work, fail, hang, lie and fork away; Ctrl-C, kill -9, and resuming.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Stdio};

use pagelab_model::experiment::{Experiment, Flag, TrialEnd, TrialRole};
use pagelab_model::run::{Run, RunEnd, RunEvent};
use pagelab_runfile::{RunWriter, read_run_file};
use support::running::{KillOnDrop, children_of, wait_until};
use support::{Lab, binary};

const TINY: &str = r#"
name = "tiny"
question = "Does it work?"
repeats = 2
warm_up = 1
[[workload]]
built_in = "chase"
options = { size = "16M", steps = 100000 }
[[workload]]
name = "echo"
command = ["sh", "-c", "echo rate = 7.5 1/s; echo $PAGELAB_TEST >&2"]
metric = { pattern = "rate = {} 1/s", unit = "1/s", better = "higher" }
environment = { PAGELAB_TEST = "seen" }
[[variant]]
name = "never"
thp = "never-prctl"
[[variant]]
name = "as it is"
"#;

/// Commands as a user has them, with a PATH.
fn start(lab: &Lab, args: &[&str]) -> Child {
    let mut command = lab.command(args);
    command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).spawn().unwrap()
}

/// Runs to the end: exit code, standard output, standard error.
fn run_pagelab(lab: &Lab, args: &[&str]) -> (Option<i32>, String, String) {
    finish(start(lab, args))
}

/// Waits for the end: exit code, standard output, standard error.
fn finish(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

fn experiment(run: &Run) -> &Experiment {
    run.experiment.as_ref().unwrap()
}

/// How each workload ended, for recipes in which each has one trial.
fn ends(run: &Run) -> BTreeMap<String, (TrialEnd, String)> {
    let of = experiment(run);
    let name = |slot: usize| of.plan.workloads[of.plan.schedule.get(slot).unwrap().workload].name.clone();
    of.trials.iter().map(|trial| (name(trial.slot), (trial.end.clone(), trial.last_output.clone()))).collect()
}

/// Waits until the file has so many trials.
fn wait_for_trials(path: &Path, count: usize) {
    wait_until("trials", || {
        read_run_file(path).is_ok_and(|run| run.experiment.is_some_and(|of| of.trials.len() >= count))
    });
}

fn signal(pid: u32, signal: &str) {
    let killed = std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Processes whose command line has this word.
fn processes(word: &str) -> Vec<String> {
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let line = |pid: &String| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |pid: &String| line(pid).split(|&byte| byte == 0).any(|found| found == word.as_bytes());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())).filter(has).collect()
}

#[test]
fn a_small_experiment_is_carried_out_and_written() {
    let lab = Lab::new();
    lab.write("tiny.toml", TINY);
    let (code, out, err) = run_pagelab(&lab, &["run", "tiny.toml"]);
    assert_eq!(code, Some(0), "{err}");
    let path = lab.path().join("tiny-1.pagelab");
    let run = read_run_file(&path).unwrap();
    assert!(matches!(run.ending, RunEnd::Complete { .. }), "{:?}", run.ending);
    assert_eq!(run.manifest.kind, "run");
    let of = experiment(&run);
    assert_eq!((of.plan.name.as_str(), of.plan.recipe.as_str()), ("tiny", TINY));
    // Two workloads × (a warm-up and two rounds of two variants, with the baseline's twin).
    assert_eq!((of.plan.schedule.len(), of.trials.len()), (16, 16));
    let mut merits = 0;
    for trial in &of.trials {
        assert_eq!(trial.end, TrialEnd::Done, "{trial:?}");
        assert!(trial.began_ns < trial.ended_ns);
        let value = |name: &str| {
            let measure = trial.measures.iter().find(|measure| measure.name == name);
            *measure.unwrap_or_else(|| panic!("no {name}: {trial:?}")).value.as_ref().unwrap()
        };
        assert!(value("wall") > 0.0 && value("wall") < (trial.ended_ns - trial.began_ns) as f64);
        let is_echo = of.plan.schedule.get(trial.slot).unwrap().workload == 1;
        assert!(!is_echo || value("merit") == 7.5);
        merits += usize::from(value("merit") > 0.0);
        // Sixteen mebibytes and something, not those of pagelab.
        assert!(is_echo || value("working_set") == 16.0 * 1024.0 * 1024.0);
    }
    assert_eq!(merits, 16);
    let checksums: Vec<&RunEvent> = run.events.iter().filter(|event| event.kind == "checksum").collect();
    assert_eq!(checksums.len(), 1, "one workload, the same options: {checksums:?}");
    let labels = |stream: &pagelab_model::run::SampleStream| {
        stream.header.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let walls = run.streams.iter().filter(|stream| stream.header.name == "wall");
    let walls: BTreeMap<String, usize> = walls.map(|stream| (labels(stream), stream.values.len())).collect();
    assert_eq!(walls.len(), 6, "{walls:?}");
    assert!(walls.values().all(|&count| count == 2), "warm-up is no sample: {walls:?}");
    let twins =
        of.trials.iter().filter(|trial| of.plan.schedule.get(trial.slot).unwrap().role == TrialRole::Twin);
    assert_eq!(twins.count(), 4);
    let (_, report, _) = run_pagelab(&lab, &["report", "tiny-1.pagelab"]);
    assert_eq!(out, report, "at its end stands what the report says");
    let (code, again, err) = run_pagelab(&lab, &["run", "--resume", "tiny-1.pagelab"]);
    assert_eq!((code, again), (Some(0), report));
    assert!(err.contains("note: tiny-1.pagelab is complete; nothing left to run"), "{err}");
}

const BAD: &str = r#"
name = "bad"
question = "What becomes of workloads that fail?"
repeats = 1
warm_up = 0
twins = false
[[workload]]
name = "fails"
command = ["sh", "-c", "echo some words; echo oh no >&2; exit 3"]
[[workload]]
name = "killed"
command = ["sh", "-c", "kill -SEGV $$"]
[[workload]]
name = "hangs"
command = ["sh", "-c", "echo waiting; sleep 71.5"]
time_limit = "700ms"
[[workload]]
name = "floods"
command = ["yes"]
time_limit = "700ms"
[[workload]]
name = "lies"
command = ["echo", "rate = fast"]
metric = { pattern = "rate = {}", unit = "1/s", better = "higher" }
[[workload]]
name = "is silent"
command = ["true"]
metric = { pattern = "rate = {}", unit = "1/s", better = "higher" }
[[workload]]
name = "forks away"
command = ["sh", "-c", "setsid sleep 72.5 & setsid sleep 72.5 & echo done"]
[[workload]]
name = "is no program"
command = ["./text"]
[[workload]]
name = "says no"
command = ["sh", "-c", "exit 1"]
exit_codes = [0, 1]
[[workload]]
name = "is good"
command = ["true"]
[[variant]]
name = "as it is"
"#;

#[test]
fn failing_workloads_are_distinguished_and_the_others_continue() {
    let lab = Lab::new();
    lab.write("bad.toml", BAD);
    // It is executable by its mode, but its interpreter is absent.
    lab.write("text", "#!/none/such\n");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.path().join("text"), mode).unwrap();
    let (code, _, err) = run_pagelab(&lab, &["run", "bad.toml", "-o", "bad.pagelab"]);
    assert_eq!(code, Some(5), "{err}");
    let run = read_run_file(&lab.path().join("bad.pagelab")).unwrap();
    let ends = ends(&run);
    let end = |name: &str| ends[name].0.clone();
    assert_eq!(ends["fails"], (TrialEnd::Failed(3), "some words\noh no".to_owned()));
    assert_eq!(end("killed"), TrialEnd::Killed(11));
    assert_eq!(ends["hangs"], (TrialEnd::TimedOut(700_000_000), "waiting".to_owned()));
    assert_eq!(end("floods"), TrialEnd::TimedOut(700_000_000));
    assert!(ends["floods"].1.len() < 5000, "the last of it is kept, and no more");
    let TrialEnd::InvalidResult(why) = end("lies") else { panic!("{:?}", end("lies")) };
    assert!(why.contains("expected a number, found \"fast\""), "{why}");
    let TrialEnd::InvalidResult(why) = end("is silent") else { panic!("{:?}", end("is silent")) };
    assert!(why.contains("no line of its output"), "{why}");
    // Without a control group, processes that left the process group are unknown.
    let is_root = rustix_is_root();
    match end("forks away") {
        TrialEnd::LeftProcesses(count) => assert_eq!(count, 2),
        other => assert!(!is_root && other == TrialEnd::Done, "{other:?}"),
    }
    let TrialEnd::NotStarted(why) = end("is no program") else { panic!("{:?}", end("is no program")) };
    assert!(why.contains("./text: "), "{why}");
    assert_eq!((end("says no"), end("is good")), (TrialEnd::Done, TrialEnd::Done));
    assert!(err.contains("fails, as it is: failed with exit code 3\n  | some words\n  | oh no"), "{err}");
    if is_root {
        let left: Vec<String> = ["71.5", "72.5"].into_iter().flat_map(processes).collect();
        assert_eq!(left, Vec::<String>::new(), "nothing of it is left");
    }
}

#[test]
fn a_workload_without_its_figure_is_dropped_after_two_trials() {
    let lab = Lab::new();
    let recipe = "name = \"mute\"\nquestion = \"Is it heard?\"\nrepeats = 3\nwarm_up = 0\ntwins = false\n\
                  [[workload]]\nname = \"mute\"\ncommand = [\"echo\", \"done\"]\n\
                  metric = { pattern = \"took {} s\", unit = \"s\" }\n\
                  [[workload]]\nname = \"talks\"\ncommand = [\"echo\", \"took 1 s\"]\n\
                  metric = { pattern = \"took {} s\", unit = \"s\" }\n\
                  [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nenvironment = { B = 1 }\n";
    lab.write("mute.toml", recipe);
    let (code, _, err) = run_pagelab(&lab, &["run", "mute.toml", "-o", "mute.pagelab"]);
    assert_eq!(code, Some(5), "{err}");
    let told = "mute: no result from its first 2 trials: no line of its output matches \"took {} s\"; skipping \
                the other 4";
    assert!(err.replace("\n", " ").contains(told), "{err}");
    let experiment = read_run_file(&lab.path().join("mute.pagelab")).unwrap().experiment.unwrap();
    let of = |workload: usize| {
        experiment
            .trials
            .iter()
            .filter(|trial| experiment.plan.schedule.get(trial.slot).unwrap().workload == workload)
            .count()
    };
    assert_eq!((of(0), of(1)), (2, 6));
}

/// The command asks a server, which is no child of pagelab, and waits for its answers.
#[test]
fn a_command_whose_work_another_process_does_is_flagged() {
    let lab = Lab::new();
    lab.write(
        "server.py",
        "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('s')\ns.listen()\n\
         while True:\n  c = s.accept()[0]\n  while c.recv(1):\n    \
         end = time.process_time() + 0.05\n    while time.process_time() < end: pass\n    c.send(b'y')\n",
    );
    lab.write(
        "client.py",
        "import socket\nc = socket.socket(socket.AF_UNIX)\nc.connect('s')\n\
         for _ in range(20):\n  c.send(b'x')\n  c.recv(1)\n",
    );
    let server = std::process::Command::new("python3").arg("server.py").current_dir(lab.path()).spawn();
    let Ok(server) = server.map(|server| KillOnDrop(server, None)) else {
        eprintln!("skipped: python3-absent: no server for a client");
        return;
    };
    wait_until("the server's socket", || lab.path().join("s").exists());
    let recipe = "name = \"client\"\nquestion = \"?\"\nrepeats = 2\nwarm_up = 0\ntwins = false\n\
                  [[workload]]\nname = \"client\"\ncommand = [\"python3\", \"client.py\"]\n\
                  [[variant]]\nname = \"a\"\n";
    lab.write("client.toml", recipe);
    let (code, out, err) = run_pagelab(&lab, &["run", "client.toml", "-o", "client.pagelab"]);
    assert_eq!(code, Some(0), "{err}");
    let run = read_run_file(&lab.path().join("client.pagelab")).unwrap();
    for trial in &experiment(&run).trials {
        let flag = trial.flags.iter().find(|flag| flag.kind == Flag::OTHERS_BUSY);
        let text = &flag.unwrap_or_else(|| panic!("{trial:?}")).text;
        assert!(text.starts_with("the command used "), "{text}");
        // Another test may use more CPU time than the server.
        let is_named = text.contains(&format!("(pid {})", server.0.id()));
        assert!(text.contains("pagelab tune --pid") && (is_named || text.contains("pid")), "{text}");
    }
    assert_eq!(err.matches("others busy: the command used").count(), 1, "once, when it is known: {err}");
    assert!(out.contains("OTHERS BUSY"), "{out}");
}

fn rustix_is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0")
}

/// A recipe of trials that take a moment each.
fn slow(name: &str, word: &str) -> String {
    format!(
        "name = \"{name}\"\nquestion = \"Can it be gone on with?\"\nrepeats = 3\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nname = \"sleep\"\ncommand = [\"sleep\", \"{word}\"]\n\
         [[workload]]\nbuilt_in = \"chase\"\noptions = {{ size = \"16M\", steps = 1000 }}\n\
         [[variant]]\nname = \"a\"\nthp = \"never-prctl\"\n[[variant]]\nname = \"b\"\npage_cache = \"cold\"\n"
    )
    .replace("page_cache = \"cold\"", "environment = { B = 1 }")
}

#[test]
fn ctrl_c_keeps_finished_trials_and_resume_continues() {
    let lab = Lab::new();
    lab.write("slow.toml", slow("slow", "0.71"));
    let path = lab.path().join("slow-1.pagelab");
    let child = start(&lab, &["run", "slow.toml"]);
    wait_for_trials(&path, 2);
    signal(child.id(), "-INT");
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("resume with: pagelab run --resume slow-1.pagelab"), "{err}");
    assert_eq!(processes("0.71"), Vec::<String>::new());
    let stopped = read_run_file(&path).unwrap();
    assert!(matches!(&stopped.ending, RunEnd::Stopped { reason, .. } if reason == "SIGINT"));
    let done = experiment(&stopped).trials.iter().filter(|trial| trial.end == TrialEnd::Done).count();
    assert!((2..12).contains(&done), "{done}");
    // What is in the recipe's file by now is another matter.
    lab.write("slow.toml", "nothing");
    let (code, _, err) = run_pagelab(&lab, &["run", "--resume", "slow-1.pagelab"]);
    assert_eq!(code, Some(0), "{err}");
    let run = read_run_file(&path).unwrap();
    assert!(matches!(run.ending, RunEnd::Complete { .. }));
    let of = experiment(&run);
    assert_eq!(of.plan, experiment(&stopped).plan);
    assert_eq!(of.trials.len(), 12);
    assert!(of.trials.iter().all(|trial| trial.end == TrialEnd::Done));
    let kept =
        |run: &Run| experiment(run).trials.iter().map(|t| (t.slot, t.began_ns)).collect::<BTreeMap<_, _>>();
    let (before, after) = (kept(&stopped), kept(&run));
    let same = before.iter().filter(|(slot, began)| after[slot] == **began).count();
    assert_eq!(same, done, "what was done is not done again");
    assert!(run.events.iter().any(|event| event.kind == "resumed"));
    assert!(run.events.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
    let walls = run.streams.iter().filter(|stream| stream.header.name == "wall");
    assert_eq!(walls.map(|stream| stream.values.len()).sum::<usize>(), 12);
}

#[test]
fn a_killed_run_leaves_no_process_and_is_resumed() {
    let lab = Lab::new();
    lab.write("slow.toml", slow("killed", "0.73"));
    let path = lab.path().join("killed.pagelab");
    let mut child = start(&lab, &["run", "slow.toml", "-o", "killed.pagelab"]);
    wait_for_trials(&path, 1);
    // Into the middle of a trial.
    wait_until("a trial", || !processes("0.73").is_empty());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until("the end of the trial", || processes("0.73").is_empty());
    let killed = read_run_file(&path).unwrap();
    assert_eq!(killed.ending, RunEnd::NotClosed);
    let (code, _, err) = run_pagelab(&lab, &["run", "--resume", "killed.pagelab"]);
    assert_eq!(code, Some(0), "{err}");
    let run = read_run_file(&path).unwrap();
    assert!(matches!(run.ending, RunEnd::Complete { .. }));
    assert_eq!(experiment(&run).trials.len(), 12);
    // What the killed one had made for its trial is gone: by the run after it, or by a restore.
    let (code, _, err) = run_pagelab(&lab, &["restore"]);
    assert!(matches!(code, Some(0 | 4)), "{err}");
    let groups = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &format!("pagelab-trial-{}-*", child.id())])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&groups.stdout), "");
}

/// Kills the supervisor of the next trial that is not in `seen`, once it has started its program.
fn kill_next_supervisor(run: &Child, seen: &mut Vec<u32>) {
    let mut next = None;
    wait_until("the next supervisor", || {
        let mut supervisors = children_of(run.id()).into_iter().flat_map(children_of);
        next = supervisors.find(|pid| !seen.contains(pid) && !children_of(*pid).is_empty());
        next.is_some()
    });
    let pid = next.unwrap();
    signal(pid, "-KILL");
    seen.push(pid);
}

/// The death of a supervisor says nothing about the program: neither that it failed nor that memory was
/// short.
#[test]
fn a_trial_whose_supervisor_is_killed_is_lost_and_repeated() {
    let lab = Lab::new();
    lab.write(
        "s.toml",
        "name = \"s\"\nquestion = \"?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nname = \"sleep\"\ncommand = [\"sleep\", \"1.31\"]\n\
         [[variant]]\nname = \"none\"\nplan = \"none\"\n[[variant]]\nname = \"all\"\nplan = \"all\"\n",
    );
    let path = lab.path().join("s.pagelab");
    let child = start(&lab, &["run", "s.toml", "-o", "s.pagelab"]);
    let mut seen = Vec::new();
    kill_next_supervisor(&child, &mut seen);
    wait_for_trials(&path, 2);
    kill_next_supervisor(&child, &mut seen);
    let (code, out, err) = finish(child);
    assert_eq!(code, Some(5), "{err}");
    assert!(out.contains("1 of 2 trials are missing"), "{out}");
    assert!(err.contains("lost: its supervisor was killed"), "{err}");
    assert!(err.contains("repeat with: pagelab run --resume s.pagelab"), "{err}");
    let run = read_run_file(&path).unwrap();
    assert!(matches!(&run.ending, RunEnd::Stopped { reason, .. } if reason == "one trial was lost"));
    let ends: Vec<_> = experiment(&run).trials.iter().map(|trial| trial.end.clone()).collect();
    // In the order in which they ended.
    assert!(matches!(&ends[..], [TrialEnd::Done, TrialEnd::Lost(_)]), "{ends:?}");
    // Resumed, it repeats the lost trial alone.
    let (code, out, err) = run_pagelab(&lab, &["run", "--resume", "s.pagelab"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let run = read_run_file(&path).unwrap();
    assert!(matches!(run.ending, RunEnd::Complete { .. }), "{:?}", run.ending);
    assert!(experiment(&run).trials.iter().all(|trial| trial.end == TrialEnd::Done));
}

/// So does the death of the front end of a trial.
#[test]
fn a_trial_whose_front_end_is_killed_is_lost_and_repeated() {
    let lab = Lab::new();
    lab.write(
        "f.toml",
        "name = \"f\"\nquestion = \"?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nname = \"sleep\"\ncommand = [\"sleep\", \"1.33\"]\n\
         [[variant]]\nname = \"none\"\nplan = \"none\"\n[[variant]]\nname = \"all\"\nplan = \"all\"\n",
    );
    let child = start(&lab, &["run", "f.toml", "-o", "f.pagelab"]);
    let is_supervising =
        |front_end: &u32| children_of(*front_end).into_iter().any(|pid| !children_of(pid).is_empty());
    let mut front_end = None;
    wait_until("the first trial", || {
        front_end = children_of(child.id()).into_iter().find(is_supervising);
        front_end.is_some()
    });
    let killed = processes("1.33");
    signal(front_end.unwrap(), "-KILL");
    wait_until("the end of the program", || processes("1.33").iter().all(|pid| !killed.contains(pid)));
    let (code, out, err) = finish(child);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(err.contains("lost: its `pagelab apply` was killed"), "{err}");
    let run = read_run_file(&lab.path().join("f.pagelab")).unwrap();
    assert!(experiment(&run).trials.iter().all(|trial| trial.end == TrialEnd::Done));
}

/// A workload that computes something else under the same options is a bug of it, or of the machine.
#[test]
fn a_trial_with_another_checksum_is_rejected() {
    let lab = Lab::new();
    lab.write("slow.toml", slow("sums", "0.01"));
    let path = lab.path().join("sums-1.pagelab");
    let child = start(&lab, &["run", "slow.toml"]);
    wait_for_trials(&path, 1);
    signal(child.id(), "-TERM");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    let (mut writer, run) = RunWriter::resume(&path).unwrap();
    let at_ns = run.events.iter().map(|event| event.at_ns).max().unwrap() + 1;
    let text = "chase --size 16M --steps 1000: dead".to_owned();
    writer.add_event(&RunEvent { at_ns, kind: "checksum".to_owned(), text }).unwrap();
    writer.close(RunEnd::Stopped { after_ns: at_ns, reason: "a test".to_owned() }).unwrap();
    let (code, _, err) = run_pagelab(&lab, &["run", "--resume", "sums-1.pagelab"]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("but other trials with the same options have dead"), "{err}");
}

#[test]
fn a_memory_limit_kills_and_is_a_result() {
    let lab = Lab::new();
    let text =
        TINY.replace("thp = \"never-prctl\"", "memory_limit = \"8M\"").replace("repeats = 2", "repeats = 1");
    lab.write("limit.toml", text);
    let (code, _, err) = run_pagelab(&lab, &["run", "limit.toml", "-o", "limit.pagelab"]);
    let run = read_run_file(&lab.path().join("limit.pagelab")).unwrap();
    let ends = ends(&run);
    if let TrialEnd::NotStarted(why) = &experiment(&run).trials[0].end {
        assert!(why.contains("memory_limit"), "{why}");
        eprintln!("skipped: no-memory-cgroup: {why}");
        return;
    }
    assert_eq!(code, Some(5), "{err}");
    let of = experiment(&run);
    for trial in &of.trials {
        let slot = of.plan.schedule.get(trial.slot).unwrap();
        let expected =
            if (slot.workload, slot.variant) == (0, 0) { TrialEnd::OutOfMemory } else { TrialEnd::Done };
        assert_eq!(trial.end, expected, "{slot:?} {ends:?}");
    }
    assert!(err.contains("killed by the OOM killer"), "{err}");
}

#[test]
fn settings_are_applied_and_impossible_ones_reported() {
    let lab = Lab::new();
    lab.write(
        "sets.toml",
        "name = \"sets\"\nquestion = \"q\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
         [[workload]]\nbuilt_in = \"chase\"\noptions = { size = \"16M\", steps = 1000000 }\n\
         [[variant]]\nname = \"alone\"\n\
         [[variant]]\nname = \"process\"\nhog = { size = \"32M\" }\n\
         [[variant]]\nname = \"thread\"\nhog = { size = \"32M\", how = \"thread\" }\n\
         [[variant]]\nname = \"evicted\"\nevict = true\n\
         [[variant]]\nname = \"advised\"\nthp = \"advised-only\"\n\
         [[variant]]\nname = \"too much\"\nhog = { size = \"9000G\" }\n",
    );
    let (code, _, err) = run_pagelab(&lab, &["run", "sets.toml", "-o", "sets.pagelab"]);
    assert_eq!(code, Some(5), "{err}");
    let run = read_run_file(&lab.path().join("sets.pagelab")).unwrap();
    let of = experiment(&run);
    let trial = |name: &str| {
        let variant = of.plan.variants.iter().position(|variant| variant.name == name).unwrap();
        of.trials.iter().find(|trial| of.plan.schedule.get(trial.slot).unwrap().variant == variant).unwrap()
    };
    let value = |name: &str, measure: &str| {
        let found = trial(name).measures.iter().find(|found| found.name == measure);
        found.and_then(|found| found.value.as_ref().ok()).copied().unwrap_or_default()
    };
    for name in ["alone", "process", "thread", "evicted"] {
        assert_eq!(trial(name).end, TrialEnd::Done, "{name}: {:?}", trial(name));
    }
    // As a thread its time is the workload's, as a process it is not: cpu is that of the trial alone.
    let walls = ["alone", "process", "thread"].map(|name| value(name, "wall"));
    assert!(value("thread", "cpu") > 1.2 * value("alone", "cpu"), "{walls:?}");
    assert!(value("process", "cpu") < 1.1 * walls[1], "one thread has one CPU at the most");
    let TrialEnd::NotStarted(why) = &trial("too much").end else { panic!("{:?}", trial("too much")) };
    assert!(why.contains("is available above the reserve"), "{why}");
    assert!(run.events.iter().any(|event| event.text.contains("evicted by reading")), "{:?}", run.events);
    // Linux 6.18 has it; before that the trial says that it has not.
    let is_flagged = trial("advised").flags.iter().any(|flag| flag.kind == Flag::NOT_APPLIED);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    assert_eq!(is_flagged, version < (6, 18), "{version:?}: {:?}", trial("advised").flags);
}

/// A process that was moved off the CPU returns to it, also if the engine is killed.
#[test]
fn an_isolated_cpu_is_released_after_a_kill() {
    let lab = Lab::new();
    let text = slow("pin", "1.77").replace("environment = { B = 1 }", "pin = true");
    lab.write("pin.toml", text.replace("thp = \"never-prctl\"", "pin = true\nevict = true"));
    let mut bystander = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mask = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(line.trim().to_owned())
    };
    let before = mask(bystander.id()).unwrap();
    if !rustix_is_root() || before.parse::<u32>().is_ok() {
        eprintln!("skipped: no-cpu-to-spare: not root, or one CPU alone ({before})");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
        return;
    }
    let mut child = start(&lab, &["run", "pin.toml", "-o", "pin.pagelab"]);
    wait_until("the move of all tasks by the helper process", || {
        mask(bystander.id()).is_some_and(|now| now != before)
    });
    // It is there before it has its CPU: its gate, which takes it, has the same words.
    let has_one_cpu =
        |pid: &String| mask(pid.parse().unwrap()).is_some_and(|mask| mask.parse::<u32>().is_ok());
    wait_until("a CPU of the trial", || processes("1.77").iter().any(has_one_cpu));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the former CPUs", || mask(bystander.id()).as_ref() == Some(&before));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

const MODEST: &str = r#"
name = "modest"
question = "What can be measured without root?"
repeats = 1
warm_up = 0
twins = false
[[workload]]
name = "nap"
command = ["sleep", "0.1"]
[[variant]]
name = "as it is"
[[variant]]
name = "without huge pages"
thp = "never-prctl"
[[variant]]
name = "limited"
memory_limit = "100M"
[[variant]]
name = "always"
thp = "always"
"#;

/// Variants that need root are reported by trial; the others are measured.
#[test]
fn without_root_privileged_parts_are_reported_and_the_rest_measured() {
    if !rustix_is_root() {
        eprintln!("skipped: not-root: this test becomes another user");
        return;
    }
    let lab = Lab::new();
    lab.write("modest.toml", MODEST);
    let copy = lab.path().join("pagelab");
    std::fs::copy(binary(), &copy).unwrap();
    chown(lab.path(), Some(65534), Some(65534)).unwrap();
    let mut command = std::process::Command::new(&copy);
    command.args(["run", "modest.toml", "-o", "modest.pagelab"]).current_dir(lab.path()).env_clear();
    let output = command.env("PATH", "/usr/bin:/bin").uid(65534).gid(65534).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{err}");
    let run = read_run_file(&lab.path().join("modest.pagelab")).unwrap();
    let of = experiment(&run);
    let end = |name: &str| {
        let variant = of.plan.variants.iter().position(|variant| variant.name == name).unwrap();
        of.trials
            .iter()
            .find(|trial| of.plan.schedule.get(trial.slot).unwrap().variant == variant)
            .unwrap()
            .end
            .clone()
    };
    assert_eq!((end("as it is"), end("without huge pages")), (TrialEnd::Done, TrialEnd::Done), "{err}");
    for (name, said) in [("limited", "memory_limit requires a cgroup"), ("always", "THP enabled")] {
        let TrialEnd::NotStarted(why) = end(name) else { panic!("{name}: {:?}", end(name)) };
        assert!(why.contains(said) && why.contains("run as root"), "{why}");
    }
    let has = |name: &str| of.trials[0].measures.iter().any(|of| of.name == name && of.value.is_ok());
    assert!(has("wall") && has("rusage.minflt") && !has("memory.peak"), "{:?}", of.trials[0]);
}

#[test]
fn invalid_runs_are_refused_before_anything_runs() {
    let lab = Lab::new();
    lab.write("bad.toml", "name = \"x\"\nquestion = \"y\"\nplaice = \"host\"\n");
    lab.write("none.toml", TINY.replace("\"sh\"", "\"/none/such\""));
    lab.write("text.pagelab", "no run file");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "bad.toml"], 2, "bad.toml:3: unknown key `plaice`"),
        (&["run", "bad.toml", "--dry-run"], 2, "bad.toml:3: unknown key `plaice`"),
        (&["run", "thb"], 2, "unknown recipe `thb`; expected one of thp"),
        (&["run", "none/thp.toml"], 3, "cannot read the recipe none/thp.toml: no such file"),
        (&["run", "."], 3, "cannot read the recipe .: expected a file of at most 1 MiB"),
        (&["run", "none.toml"], 3, "cannot start /none/such: no such file"),
        (&["run", "thp", "--repeats", "0"], 2, "expected an integer from 1 to 10000"),
        (&["run"], 2, "required arguments were not provided"),
        (&["run", "--resume", "a.pagelab", "--quick"], 2, "cannot be used with"),
        (&["run", "--resume", "a.pagelab"], 3, "no such file"),
        (
            &["run", "--resume", "a.pagelab", "--dry-run"],
            2,
            "hint: `pagelab report a.pagelab` shows its trials",
        ),
        (
            &["run", "--resume", "text.pagelab"],
            3,
            "cannot read text.pagelab: expected a run file, found text",
        ),
        (&["recipes", "show", "thb"], 2, "unknown recipe `thb`; expected one of thp"),
    ];
    for (args, code, said) in cases {
        let (ended, out, err) = run_pagelab(&lab, args);
        assert_eq!(ended, Some(*code), "{args:?}: {out}{err}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
    let left = std::fs::read_dir(lab.path()).unwrap().count();
    assert_eq!(left, 3, "no run file was begun");
}

#[test]
fn plans_and_recipes_are_shown_and_every_field_of_their_json_is_documented() {
    let lab = Lab::new();
    let docs = include_str!("../../../docs/json.md");
    for args in [
        &["run", "thp", "--dry-run", "--json"][..],
        &["run", "fragmentation-cost", "--quick", "--dry-run", "--json", "--", "true"],
        &["recipes", "--json"],
    ] {
        let (code, out, err) = run_pagelab(&lab, args);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        let mut names = Vec::new();
        fields(&document, &mut names);
        let undocumented: Vec<&String> = names
            .iter()
            .filter(|name| !name.ends_with("_absent_reason") && !docs.contains(&format!("`{name}`")))
            .collect();
        assert!(undocumented.is_empty(), "not in docs/json.md: {undocumented:?}");
    }
    let (_, list, _) = run_pagelab(&lab, &["recipes"]);
    let recipes = [
        "thp",
        "mmap-lab",
        "memory-size",
        "memory-size-programs",
        "fragmentation-cost",
        "fragment-compact",
        "external",
        "reclaim-references",
        "anti-fragmentation",
        "long-use",
    ];
    for name in recipes {
        assert!(list.contains(name));
        let (code, shown, _) = run_pagelab(&lab, &["recipes", "show", name]);
        assert_eq!(code, Some(0));
        lab.write("own.toml", &shown);
        let (code, plan, err) = run_pagelab(&lab, &["run", "own.toml", "--dry-run"]);
        assert_eq!(code, Some(0), "{name}: {err}");
        assert!(plan.contains("would change") || plan.contains("variant"), "{plan}");
        let (code, told, _) = run_pagelab(&lab, &["recipes", "explain", name]);
        assert!(code == Some(0) && told.lines().count() > 10, "{told}");
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    }
    let (_, plan, _) = run_pagelab(&lab, &["run", "thp", "--dry-run", "--", "true", "it", "is"]);
    assert!(plan.contains("workload true  true it is") && !plan.contains("26 times"), "{plan}");
    let (_, plan, _) = run_pagelab(&lab, &["run", "thp", "--dry-run", "--model", "--", "true", "it", "is"]);
    let model = "model 3 more runs: each workload once per variant in QEMU user mode, about 26";
    assert!(plan.contains(model), "{plan}");
}

#[test]
fn a_dry_run_lists_what_needs_root_and_only_real_changes() {
    let lab = Lab::new();
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = lab.command(&["run", "thp", "--dry-run"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534).env_remove("XDG_RUNTIME_DIR");
    }
    let ran = command.output().expect("started");
    let plan = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{plan}");
    let mut changes = plan.lines().filter(|line| line.contains("would change  THP enabled"));
    let is_told = |line: &str| line.contains("requires root") || line.contains("(not possible");
    assert!(changes.all(is_told) && !plan.contains(" stays "), "{plan}");
}

/// Names of all fields but those that a recipe chose.
fn fields(value: &serde_json::Value, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, inner) in object {
                names.push(name.clone());
                if name != "settings" {
                    fields(inner, names);
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| fields(item, names)),
        _ => {}
    }
}
