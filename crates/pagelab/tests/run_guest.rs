//! Tests of `pagelab run --place guest`, whichever process dies, with a stand-in for QEMU and without a boot.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

#[path = "fake_guest/stand_in.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod stand_in;

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pagelab_experiment::trial_report;
use pagelab_guest::message::{AgentMessage, StepExit};
use pagelab_model::experiment::{BetterDirection, Flag, Measure, Trial, TrialEnd, measures};
use pagelab_model::run::{RunEnd, Unit};
use pagelab_runfile::read_run_file;
use serde_json::Value;
use stand_in::{Stage, hello, is_gone_within, packets, started, texts};

/// Four trials: two rounds of two variants, which need different guests.
const RECIPE: &str = "name = \"t\"\nquestion = \"?\"\nrepeats = 2\nwarm_up = 0\ntwins = false\n\
                      place = \"guest\"\n[[workload]]\nbuilt_in = \"chase\"\noptions = { size = \"8M\" }\n\
                      [[variant]]\nname = \"plain\"\n\
                      [[variant]]\nname = \"zone\"\nkernelcore = \"512M\"\n";

/// Counts the boots.
const COUNTS: &str = "echo x >> boots";
/// Sends the report of a trial, and stays until it is killed.
const ANSWERS: &str = "cat said >&$line; exec sleep 600";

/// What the agent says in a boot that carries out one trial: the step that writes the recipe, and the trial.
fn boot_of(step: Vec<AgentMessage>) -> Vec<u8> {
    let ended = AgentMessage::StepEnded(StepExit::Code(0));
    let written = vec![AgentMessage::StepStarted(0), ended];
    packets(&[vec![hello()], written, step, vec![AgentMessage::JobDone]].concat())
}

fn trial_step(report: Vec<u8>, end: StepExit) -> Vec<AgentMessage> {
    vec![AgentMessage::StepStarted(1), AgentMessage::Stdout(report), AgentMessage::StepEnded(end)]
}

/// A trial that ended well, as the step of this number.
fn done(step: u32) -> Vec<AgentMessage> {
    let end = AgentMessage::StepEnded(StepExit::Code(0));
    vec![AgentMessage::StepStarted(step), AgentMessage::Stdout(report()), end]
}

fn report() -> Vec<u8> {
    let wall = Measure::new(measures::WALL, Unit::NANOSECONDS, BetterDirection::Lower, Ok(1e9), "clock");
    trial_report::encode(&Trial { measures: vec![wall], ..Trial::new(0, 0) }.into())
}

fn stage(script: &str) -> Stage {
    let stage = Stage::new(&format!("{COUNTS}; {script}"));
    stage.put("said", &boot_of(done(1)));
    stage.put("t.toml", RECIPE.as_bytes());
    stage
}

/// `pagelab run` with the stand-in, one guest at a time.
fn command(stage: &Stage, words: &[&str]) -> Command {
    let mut command = Command::new(stand_in::binary());
    command.arg("run").args(words).current_dir(stage.folder.path());
    stage.isolate(&mut command);
    command
}

/// Another kernel, `vmlinuz-new`.
fn put_second_kernel(stage: &Stage) {
    let mut image = fs::read(stage.path("vmlinuz")).unwrap();
    image[0x300..0x306].copy_from_slice(b"6.2.0 ");
    stage.put("vmlinuz-new", &image);
}

const GUEST: [&str; 12] = [
    "t.toml",
    "--kernel",
    "./vmlinuz",
    "--modules",
    ".",
    "--qemu",
    "./qemu",
    "--lanes",
    "1",
    "-o",
    "t.pagelab",
    "--json",
];

fn run(stage: &Stage, words: &[&str]) -> Output {
    started(&mut command(stage, words)).wait_with_output().unwrap()
}

fn boots(stage: &Stage) -> usize {
    fs::read_to_string(stage.path("boots")).unwrap_or_default().lines().count()
}

fn ends(stage: &Stage) -> Vec<TrialEnd> {
    let run = read_run_file(&stage.path("t.pagelab")).unwrap();
    let mut trials = run.experiment.unwrap().trials;
    trials.sort_by_key(|trial| trial.slot);
    trials.iter().map(|trial| trial.end.clone()).collect()
}

#[test]
fn each_trial_has_a_guest_and_comes_back_whole() {
    let stage = stage(ANSWERS);
    let (code, stdout, stderr) = texts(&run(&stage, &GUEST));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(serde_json::from_str::<Value>(&stdout).is_ok() && stdout.contains("\"place\": \"guest\""));
    assert_eq!(ends(&stage), vec![TrialEnd::Done; 4]);
    assert_eq!(boots(&stage), 4);
    let run = read_run_file(&stage.path("t.pagelab")).unwrap();
    let experiment = run.experiment.unwrap();
    let settings = &experiment.plan.variants[1].settings;
    assert!(settings.contains(&("kernelcore".to_owned(), "512M".to_owned())), "{settings:?}");
    for trial in &experiment.trials {
        assert_eq!(trial.measures[0].value, Ok(1e9));
        assert!(trial.ended_ns > trial.began_ns);
    }
    let guests: Vec<&str> =
        run.events.iter().filter(|of| of.kind == "guest").map(|of| of.text.as_str()).collect();
    let image = fs::canonicalize(stage.path("vmlinuz")).unwrap();
    let guest = |append: &str| format!("guest with Linux 6.1.0, 1 GiB, 1 CPU{append}, {}", image.display());
    assert_eq!(guests, [guest(""), guest(", kernelcore=512M")]);
    // The report is one of the guests, not of the machine on which they ran.
    let report = |options: &[&str]| {
        let mut command = Command::new(stand_in::binary());
        command.args(["report", "t.pagelab"]).args(options).current_dir(stage.folder.path());
        stage.isolate(&mut command);
        texts(&started(&mut command).wait_with_output().unwrap()).1
    };
    let head = report(&[]);
    for said in ["run in guests", "Linux 6.1.0, 1 GiB, 1 CPU, ", ", emulated, and 1 other guest"] {
        assert!(head.split("\n\n").next().unwrap().contains(said), "{head}");
    }
    let verbose = report(&["-v"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(verbose.contains("guest Linux 6.1.0, 1 GiB, 1 CPU, kernelcore=512M"), "{verbose}");
    let words = fs::read_to_string(stage.path("arguments")).unwrap();
    assert!(words.contains("-m\n1024M\n") && words.contains("pagelab_guest=1"), "{words}");
    stage.assert_nothing_is_left();
}

#[test]
fn a_quick_run_boots_once_for_the_trials_of_a_round_that_need_the_same_guest() {
    let stage = stage(ANSWERS);
    stage
        .put("t.toml", RECIPE.replace("kernelcore = \"512M\"\n", "options = { size = \"4M\" }\n").as_bytes());
    stage.put("said", &boot_of([done(1), done(2)].concat()));
    let (code, _, stderr) = texts(&run(&stage, &[&GUEST[..], &["--quick"]].concat()));
    assert_eq!((code, boots(&stage)), (Some(0), 2), "{stderr}");
    assert_eq!(ends(&stage), vec![TrialEnd::Done; 4]);
}

#[test]
fn a_lost_guest_costs_one_trial_which_is_repeated_once_and_by_a_resumed_run() {
    const PANIC: &str =
        "printf '[ 1.0] oops\\n[ 1.1] Kernel panic - not syncing: x' >&$console; exec sleep 600";
    for (ending, said) in [
        (PANIC, "its guest was lost: its kernel panicked: x\n"),
        ("kill -9 $$", "its guest was lost: QEMU was killed by signal 9 (SIGKILL)"),
        ("echo garbage >&$line; exec sleep 600", "its guest was lost: corrupt data on its serial line"),
        ("exit 0", "its guest was lost: it powered off without a result"),
        (
            "echo no memory >&2; exit 1",
            "its guest was lost: QEMU could not start it (exit code 1): no memory",
        ),
        ("cat bad >&$line; exec sleep 600", "its report is damaged"),
        ("cat failed >&$line; exec sleep 600", "it ended with exit code 2 in the guest: error: no"),
    ] {
        // The second and the last boot are lost: the trial of slot 1, and its repetition.
        let stage = stage(&format!("case $(wc -l < boots) in 2|5) {ending};; esac; {ANSWERS}"));
        stage.put("bad", &boot_of(trial_step(b"{\"form\":1}".to_vec(), StepExit::Code(0))));
        let failed = AgentMessage::Stderr(b"error: no\n".to_vec());
        let ended = AgentMessage::StepEnded(StepExit::Code(2));
        stage.put("failed", &boot_of(vec![AgentMessage::StepStarted(1), failed, ended]));
        let (code, _, stderr) = texts(&run(&stage, &GUEST));
        assert_eq!((code, boots(&stage)), (Some(5), 5), "{ending}: {stderr}");
        assert!(stderr.contains(said) && !stderr.contains('\x1b'), "{ending}: {stderr}");
        assert!(stderr.contains("1 trial lost, also when repeated"), "{stderr}");
        let ended = ends(&stage);
        let lost: Vec<usize> = (0..4).filter(|&at| matches!(ended[at], TrialEnd::Lost(_))).collect();
        assert_eq!((lost, ended[0].clone()), (vec![1], TrialEnd::Done), "{ending}");
        let (code, _, stderr) = texts(&run(&stage, &["--resume", "t.pagelab"]));
        assert_eq!((code, boots(&stage)), (Some(0), 6), "{ending}: {stderr}");
        assert_eq!(ends(&stage), vec![TrialEnd::Done; 4], "{ending}");
        stage.assert_nothing_is_left();
    }
}

#[test]
fn a_qemu_that_does_not_work_is_tried_once() {
    for (script, said) in [
        (
            "echo no machine >&2; exit 1",
            "no guest has booted: QEMU could not start it (exit code 1): no machine",
        ),
        ("exit 0", "no guest has booted: it powered off without a result"),
    ] {
        let stage = stage(script);
        let (code, _, stderr) = texts(&run(&stage, &GUEST));
        assert_eq!((code, boots(&stage)), (Some(4), 1), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn trials_after_a_lost_one_get_another_guest() {
    // Three trials share a boot; the first guest dies in its second trial, the next has two trials left.
    let dies = "case $(wc -l < boots) in 1) cat dies >&$line; kill -9 $$;; 2) cat two >&$line;; *) cat one >&$line;; \
                esac; exec sleep 600";
    let stage = stage(dies);
    let third = "[[variant]]\nname = \"third\"\n";
    let recipe = RECIPE.replace("kernelcore = \"512M\"\n", third).replace("repeats = 2", "repeats = 1");
    stage.put("t.toml", recipe.as_bytes());
    let whole = boot_of([done(1), vec![AgentMessage::StepStarted(2)]].concat());
    // Without the message that ends the job.
    let last = packets(&[AgentMessage::JobDone]).len();
    stage.put("dies", &whole[..whole.len() - last]);
    stage.put("two", &boot_of(done(1)));
    stage.put("one", &boot_of(done(1)));
    let (code, _, stderr) = texts(&run(&stage, &[&GUEST[..], &["--quick"]].concat()));
    // Slot 1 is lost once, slot 2 gets the second guest, and slot 1 is repeated in the third.
    assert_eq!((code, boots(&stage)), (Some(0), 3), "{stderr}");
    assert!(stderr.contains("its guest was lost: QEMU was killed by signal 9"), "{stderr}");
    assert_eq!(ends(&stage), vec![TrialEnd::Done; 3]);
}

#[test]
fn several_kernels_are_judged_with_the_baseline_variant() {
    let stage = stage(ANSWERS);
    put_second_kernel(&stage);
    let more = ["--kernel", "./vmlinuz-new", "--repeats", "6", "--judge", "wall", "--loss", "10%"];
    let (code, _, stderr) = texts(&run(&stage, &[&GUEST[..], &more].concat()));
    assert_eq!((code, boots(&stage)), (Some(0), 12), "{stderr}");
    assert!(stderr.contains("--judge compares the kernels with the variant \"plain\" alone"), "{stderr}");
    let file = read_run_file(&stage.path("t.pagelab")).unwrap();
    let names: Vec<String> = file.experiment.unwrap().plan.variants.into_iter().map(|of| of.name).collect();
    assert_eq!(names, ["./vmlinuz", "./vmlinuz-new"]);
    // Too few rounds are undecided.
    let more = [&GUEST[..], &["--kernel", "./vmlinuz-new", "--judge", "wall", "--force"]].concat();
    assert_eq!(run(&stage, &more).status.code(), Some(7));
}

#[test]
fn a_killed_run_leaves_no_guest_and_is_resumed_without_its_finished_trials() {
    let script = "[ $(wc -l < boots) = 3 ] && exec sleep 600; cat said >&$line; exec sleep 600";
    for signal in ["KILL", "TERM"] {
        let stage = stage(script);
        let mut child = started(&mut command(&stage, &GUEST));
        let start = Instant::now();
        while boots(&stage) < 3 {
            assert!(start.elapsed() < Duration::from_secs(120), "the third guest was not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (signal == "TERM").then_some(143));
        assert!(is_gone_within(stage.qemu(), Duration::from_secs(60)), "{signal}");
        assert_eq!(fs::read_dir(stage.path("tmp")).unwrap().count(), 0);
        assert_eq!(ends(&stage), vec![TrialEnd::Done; 2], "{signal}");
        let (code, _, stderr) = texts(&run(&stage, &["--resume", "t.pagelab"]));
        assert_eq!((code, boots(&stage)), (Some(0), 5), "{signal}: {stderr}");
        assert!(stderr.contains("resumed with 2 of 4 trials done"), "{stderr}");
        let file = read_run_file(&stage.path("t.pagelab")).unwrap();
        assert!(matches!(file.ending, RunEnd::Complete { .. }), "{:?}", file.ending);
        assert_eq!(ends(&stage), vec![TrialEnd::Done; 4], "{signal}");
    }
}

#[test]
fn a_guest_out_of_memory_is_a_result_where_memory_is_varied() {
    let oom = "grep -qx 512M arguments && exec >&$console && \
               printf 'Kernel panic - not syncing: System is deadlocked on memory' && exec sleep 600; ";
    let stage = stage(&format!("{oom}{ANSWERS}"));
    stage.put("t.toml", RECIPE.replace("kernelcore = \"512M\"", "memory = \"512M\"").as_bytes());
    let (code, _, stderr) = texts(&run(&stage, &GUEST));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(
        stderr.contains("guests below 608 MiB have no transparent huge pages (docs/guests.md): zone"),
        "{stderr}"
    );
    assert!(stderr.contains("chase, zone: the guest's kernel panicked: out of memory\n"), "{stderr}");
    let ended = ends(&stage);
    let count = |end: &TrialEnd| ended.iter().filter(|of| *of == end).count();
    assert_eq!((count(&TrialEnd::OutOfMemory), count(&TrialEnd::Done)), (2, 2), "{ended:?}");
}

#[test]
fn probe_boots_decide_whether_all_guests_have_kvm() {
    const KVM: &str = "if grep -q '^kvm' arguments; then echo x >> kvm; fi";
    for (probe, kvm_boots, note) in [
        ("echo no kvm >&2; exit 1", 1, Some("because KVM does not work with kernel 6.1.0: ")),
        ("cat empty >&$line; exec sleep 600", 5, None),
    ] {
        let stage = stage(&format!("{KVM}; [ $(wc -l < boots) = 1 ] && {{ {probe}; }}; {ANSWERS}"));
        stage.put("empty", &packets(&[hello(), AgentMessage::JobDone]));
        let (code, _, stderr) = texts(&run(&stage, &[&GUEST[..], &["--accel", "auto"]].concat()));
        assert_eq!((code, boots(&stage)), (Some(0), 5), "{stderr}");
        let counted = fs::read_to_string(stage.path("kvm")).unwrap().lines().count();
        assert_eq!(counted, kvm_boots, "{stderr}");
        assert!(note.is_none_or(|note| stderr.contains(note)), "{stderr}");
        let file = read_run_file(&stage.path("t.pagelab")).unwrap();
        assert_eq!(file.has_emulated_times(), note.is_some(), "{:?}", file.events);
    }
}

#[test]
fn a_kernel_that_does_not_boot_with_kvm_keeps_all_guests_from_it() {
    let probe = "if grep -q '^kvm' arguments; then echo x >> kvm; grep -q vmlinuz-new arguments && \
                 { echo no >&2; exit 1; }; cat empty >&$line; exec sleep 600; fi";
    for (accel, code) in [("auto", 0), ("kvm", 4)] {
        let stage = stage(&format!("{probe}; {ANSWERS}"));
        put_second_kernel(&stage);
        stage.put("empty", &packets(&[hello(), AgentMessage::JobDone]));
        let more = ["--kernel", "./vmlinuz-new", "--accel", accel];
        let (got, _, stderr) = texts(&run(&stage, &[&GUEST[..], &more].concat()));
        assert_eq!(got, Some(code), "{stderr}");
        // Each kernel is probed once, and no trial has KVM.
        assert_eq!(fs::read_to_string(stage.path("kvm")).unwrap().lines().count(), 2, "{stderr}");
        assert!(stderr.contains("KVM") && stderr.contains("with kernel 6.2.0: "), "{stderr}");
    }
}

#[test]
fn two_guests_run_side_by_side() {
    // Each waits for the other: one lane alone would wait for ever.
    let script = "n=$(wc -l < boots); until [ $(wc -l < boots) -ge $(( (n + 1) / 2 * 2 )) ]; do sleep 0.05; \
                  done; cat said >&$line; exec sleep 600";
    let stage = stage(script);
    let words: Vec<&str> = GUEST.iter().map(|word| if *word == "1" { "2" } else { word }).collect();
    let (code, _, stderr) = texts(&run(&stage, &words));
    assert_eq!((code, boots(&stage)), (Some(0), 4), "{stderr}");
    assert_eq!(ends(&stage), vec![TrialEnd::Done; 4]);
}

/// Runs a script where a small disk is mounted at `disk`, which only the script sees; `None` after saying why
/// that cannot be done. `$0` is the binary.
fn run_on_small_disk(stage: &Stage, script: &str, words: &[&str]) -> Option<Output> {
    fs::create_dir(stage.path("disk")).unwrap();
    let script = format!("mount -t tmpfs -o size=8m none disk || exit 99\n{script}");
    let mut command = Command::new("unshare");
    // Another user is root of a namespace of its own.
    command.args(if rustix::process::geteuid().is_root() { &["-m"][..] } else { &["-r", "-m"] });
    command.args(["sh", "-c", &script, stand_in::binary()]).args(words).current_dir(stage.folder.path());
    stage.isolate(&mut command);
    let output = started(&mut command).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(99) || stderr.contains("unshare:") {
        eprintln!("skipped: no-mount: {}", stderr.trim());
        return None;
    }
    Some(output)
}

/// The disk of the host is full from one boot on: where the run file is, where guests have their disks, and
/// under a disk that a guest writes to.
#[test]
fn a_full_disk_ends_a_run_that_is_resumed_when_there_is_space() {
    const FILL: &str = "cat /dev/zero > disk/filler 2> /dev/null";
    const RUN: &str = "\"$0\" run \"$@\"; echo \"first: $?\" >&2; rm -f disk/filler\n\
                       \"$0\" run --resume $FILE; code=$?; cp $FILE t.pagelab; exit $code";
    let has_mkfs = pagelab_guest::disk::check_mkfs().is_ok();
    let no_space = "/disk: no space left on device\nhint: free space, or set TMPDIR";
    for (at, answer, done, file, said) in [
        (3, "cat large >&$line", 2, "disk/t.pagelab", "cannot write disk/t.pagelab: the disk is full; "),
        // From the start: the disk of the first guest cannot be formatted.
        (0, ":", 0, "t2.pagelab", no_space),
        (3, "cat failed >&$line", 2, "t2.pagelab", no_space),
    ] {
        let has_disk = file != "disk/t.pagelab";
        if has_disk && !has_mkfs {
            eprintln!("skipped: mkfs-ext4-absent: guests have no disk");
            continue;
        }
        let full = format!("[ $(wc -l < boots) = {at} ] && {{ {FILL}; {answer}; exec sleep 600; }}");
        let fills_first = if at == 0 { FILL } else { "" };
        let stage = stage(&format!("{full}; {ANSWERS}"));
        let flag = Flag { kind: "x".to_owned(), text: "y".repeat(1000) };
        let large = Trial { flags: vec![flag; 50], ..Trial::new(0, 0) };
        let failed = Trial { end: TrialEnd::Failed(5), ..Trial::new(0, 0) };
        for (name, trial) in [("large", large), ("failed", failed)] {
            let report = trial_report::encode(&trial.into());
            stage.put(name, &boot_of(trial_step(report, StepExit::Code(0))));
        }
        if has_disk {
            stage.put("t.toml", format!("{RECIPE}[guest]\ndisk = \"8M\"\n").as_bytes());
            stage.put("modules.dep", b"virtio_pci.ko:\nvirtio_console.ko:\nvirtio_blk.ko:\next4.ko:\n");
            stage.put("ext4.ko", b"");
        }
        let words: Vec<&str> =
            GUEST.iter().map(|word| if *word == "t.pagelab" { file } else { word }).collect();
        let tmpdir = if has_disk { "TMPDIR=$PWD/disk\n" } else { "" };
        let script = format!("FILE={file}\n{tmpdir}{fills_first}\n{RUN}");
        let Some(output) = run_on_small_disk(&stage, &script, &words) else { return };
        let (code, _, stderr) = texts(&output);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains(said) && stderr.contains("first: 5\n"), "{stderr}");
        let resume = format!("--resume {file}\nerror: cannot write ");
        assert!(stderr.contains(&format!("{done} trials; remaining: {}\n", 4 - done)), "{stderr}");
        assert!(stderr.contains(&resume), "{stderr}");
        assert!(stderr.contains(&format!("resumed with {done} of 4 trials done")), "{stderr}");
        assert_eq!(ends(&stage), vec![TrialEnd::Done; 4], "{stderr}");
        stage.assert_nothing_is_left();
    }
}

#[test]
fn trials_on_a_busy_host_are_flagged() {
    let stage = stage("sleep 1; cat said >&$line; exec sleep 600");
    // The stand-in only sleeps: all of this is the work of others.
    let mut busy = Command::new("sh");
    busy.args(["-c", "while :; do :; done"]);
    pagelab_sys::spawn::die_with_parent(&mut busy);
    let mut busy = busy.spawn().unwrap();
    let (code, _, stderr) = texts(&run(&stage, &GUEST));
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert_eq!(code, Some(0), "{stderr}");
    for trial in read_run_file(&stage.path("t.pagelab")).unwrap().experiment.unwrap().trials {
        let text =
            trial.flags.iter().find(|flag| flag.kind == Flag::NOT_QUIET).map(|flag| flag.text.as_str());
        assert!(text.is_some_and(|text| text.starts_with("other processes of the host used")), "{trial:?}");
    }
}

#[test]
fn impossible_guests_are_refused_before_a_boot() {
    let stage = stage(ANSWERS);
    stage.put("vmlinuz-text", b"no kernel");
    stage.put("host.toml", RECIPE.replace("place = \"guest\"\n", "").as_bytes());
    let varied = RECIPE.replace("kernelcore = \"512M\"", "kernelcore = \"2G\"");
    stage.put("bad.toml", varied.replace("chase\"\n", "chase\"\nfiles = [\"x\"]\n").as_bytes());
    let with = |more: &[&str]| -> Vec<String> {
        let base = GUEST.iter().map(|word| (*word).to_owned());
        base.chain(more.iter().map(|word| (*word).to_owned())).collect()
    };
    let instead = |at: usize, word: &str| -> Vec<String> {
        let mut words = with(&[]);
        word.clone_into(&mut words[at]);
        words
    };
    for (words, code, said) in [
        (instead(2, "./vmlinuz-text"), 3, "expected a Linux kernel image for x86"),
        (instead(2, "./absent"), 3, "cannot use the kernel ./absent: "),
        (instead(6, "./no-qemu"), 4, "cannot find ./no-qemu"),
        (with(&["--kernel", "./vmlinuz"]), 2, "kernel ./vmlinuz is given twice"),
        (with(&["--kernel", "vmlinuz"]), 2, "kernels ./vmlinuz and vmlinuz are the same: 6.1.0"),
        (with(&["--memory", "64M", "--repeats", "0"]), 2, "--memory: expected 96 MiB to 1 TiB, found 64 MiB"),
        (with(&["--memory", "2T"]), 2, "--memory: expected 96 MiB to 1 TiB, found 2 TiB"),
        (with(&["--memory", "900G"]), 4, "a guest with 900 GiB needs"),
        (with(&["--memory", "900G"]), 4, "is reserved\nhint: use --memory up to"),
        (with(&["--repeats", "0"]), 2, "--repeats"),
        (with(&["--model"]), 2, "--model does not apply to guests"),
        (with(&["--", "/bin/true"]), 2, "workload \"true\": /bin/true is not in the guest"),
        (instead(0, "bad.toml"), 2, "kernelcore: expected less than the guest's memory (1G), found 2G"),
        (instead(0, "bad.toml"), 2, "files: x is not in the guest"),
        (vec!["host.toml".to_owned()], 2, "kernelcore is a property of a guest"),
        (
            vec!["thp".to_owned(), "--kernel".to_owned(), "6.1".to_owned()],
            2,
            "--kernel requires --place guest",
        ),
        (
            ["external", "--place", "guest"].map(str::to_owned).to_vec(),
            2,
            "its program is not in the guest: a guest contains pagelab",
        ),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (got, _, stderr) = texts(&run(&stage, &words));
        assert_eq!(got, Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
        assert!(!stage.path("t.pagelab").exists(), "{words:?}");
    }
    assert_eq!(boots(&stage), 0);
}

#[test]
fn all_that_keeps_a_run_from_its_start_is_told_at_once() {
    let stage = stage(ANSWERS);
    let bad = RECIPE.replace("repeats = 2", "repeats = 2\nbaseline = \"plane\"").replace("512M", "2G");
    stage.put("t.toml", format!("{bad}[guest]\nswap = \"4M\"\n").as_bytes());
    let kernels = ["--kernel", "./absent", "--kernel", "vmlinuz", "--kernel", "./vmlinuz"];
    let words = [&GUEST[..], &kernels, &["--repeats", "0"]].concat();
    let (code, _, stderr) = texts(&run(&stage, &words));
    expect_test::expect![[r#"
        error: --repeats: expected an integer from 1 to 10000, found 0
        guest: kernel ./vmlinuz is given twice
        t.toml:4: baseline: unknown variant `plane`; expected one of plain, zone
        t.toml:13: variant "zone": kernelcore: expected less than the guest's memory (1G), found 2G
        t.toml:17: guest: swap: expected 8 MiB to 1 TiB and a multiple of 512 bytes, found 4 MiB
        cannot use the kernel ./absent: no such file
        hint: use an existing vmlinuz, or a series such as 6.1, which is downloaded
        kernels ./vmlinuz and vmlinuz are the same: 6.1.0
    "#]]
    .assert_eq(&stderr);
    assert_eq!((code, boots(&stage)), (Some(2), 0));
    // Without a wrong request: what this machine lacks.
    stage.put("t.toml", RECIPE.as_bytes());
    let words: Vec<&str> =
        GUEST.iter().map(|word| if *word == "./qemu" { "./no-qemu" } else { word }).collect();
    let (code, _, stderr) = texts(&run(&stage, &[&words[..], &["--kernel", "./absent"]].concat()));
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("cannot find ./no-qemu") && stderr.contains("kernel ./absent"), "{stderr}");
    let (code, _, stderr) = texts(&run(&stage, &[&words[..], &["--model", "--swap-dir", "."]].concat()));
    assert_eq!(code, Some(2), "{stderr}");
    for said in ["--swap-dir does not apply", "--model does not apply", "cannot find ./no-qemu"] {
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn a_plan_says_which_guests_it_needs() {
    let stage = stage(ANSWERS);
    let (code, stdout, stderr) =
        texts(&run(&stage, &["t.toml", "--dry-run", "--kernel", "6.1", "--kernel", "6.12"]));
    assert_eq!(code, Some(0), "{stderr}");
    for line in [
        "place: guest",
        "guests 8 boots, duration unknown; ",
        "; run file: t-1.pagelab",
        "variant plain 6.1, the baseline",
        "variant zone 6.12",
        "a guest with kernel 6.12, 1 GiB, 1 CPU, kernelcore=512M",
    ] {
        let text = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(line), "{line}\n{stdout}");
    }
    // 4 trials of 2 s are 80 s when emulated, and two boots take 5 s each.
    let takes =
        RECIPE.replace("kernelcore = \"512M\"\n", "").replace("\"chase\"\n", "\"chase\"\ntakes = \"2s\"\n");
    let takes = takes.replace("[[workload]]", "[guest]\nboot = \"round\"\nmemory = \"128M\"\n[[workload]]");
    stage.put(
        "takes.toml",
        takes.replace("name = \"zone\"\n", "name = \"zone\"\nadvise = \"huge\"\n").as_bytes(),
    );
    let (code, stdout, stderr) = texts(&run(&stage, &["takes.toml", "--dry-run", "--lanes", "1"]));
    assert_eq!(code, Some(0), "{stderr}");
    let text = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let said =
        "guests 2 boots, about 1 min 30 s if emulated; one guest at a time with 384 MiB including QEMU";
    assert!(text.contains(said), "{stdout}");
    let (_, stdout, _) = texts(&run(&stage, &["takes.toml", "--dry-run", "--lanes", "1", "--json"]));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["guests"]["memory_bytes"].as_u64(), Some(384 << 20), "{stdout}");
    assert_eq!(boots(&stage), 0);
}
