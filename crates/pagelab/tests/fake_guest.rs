//! Tests of the end of `pagelab guest run`, whichever process dies, with a stand-in for QEMU and without a
//! boot.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

#[path = "fake_guest/stand_in.rs"]
mod stand_in;

use std::fs;
use std::io::Read;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pagelab_guest::job::{GuestJob, JOB_MAGIC};
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::kernel_module::{ModuleRecord, SOURCES, source_checksum, write_record};
use pagelab_guest::message::{AgentMessage, EntryKind, FileHeader, StepExit};
use stand_in::{Stage, hello, is_gone_within, names, packets, started, step, texts};

/// A whole job whose one step ended so.
fn job(stdout: &str, stderr: &str, end: StepExit) -> Vec<u8> {
    packets(&[vec![hello()], step(stdout, stderr, end), vec![AgentMessage::JobDone]].concat())
}

#[test]
fn output_and_exit_code_are_those_of_the_command_in_the_guest() {
    for (end, code) in [
        (StepExit::Code(0), 0),
        (StepExit::Code(3), 3),
        (StepExit::Code(6), 6),
        (StepExit::Code(-1), 5),
        (StepExit::Signal(9), 137),
        (StepExit::Signal(i32::MAX), 5),
        (StepExit::NotRun("no".into()), 5),
    ] {
        let stage = Stage::new("cat said >&$line; exec sleep 600");
        stage.put("said", &job("out\x1b[1m\n", "err\n", end.clone()));
        let start = Instant::now();
        let (got, stdout, stderr) = texts(&stage.run(&[]));
        let streams = (stdout.as_str(), stderr.lines().next());
        assert_eq!((got, streams), (Some(code), ("out\x1b[1m\n", Some("err"))), "{end:?}");
        let is_said = matches!(end, StepExit::NotRun(_));
        assert_eq!(stderr.contains("error: cannot run the command in the guest: no"), is_said, "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(300), "a guest that is done is not waited for");
        stage.assert_nothing_is_left();
    }
}

#[test]
fn a_lost_guest_never_looks_like_a_failed_command() {
    const PANIC: &str = "printf '[ 1.0] Kernel panic - not syncing: \\033[2Jsysrq\\n' >&$console";
    const INIT: &str = "echo 'Kernel panic - not syncing: Attempted to kill init! exitcode=0x6' >&$console";
    const OOM: &str = "echo '[ 1.0] Kernel panic - not syncing: System is deadlocked on memory' >&$console";
    for (script, options, word, said) in [
        (
            "echo 'qemu: no such machine' >&2; exit 1",
            &[][..],
            "refused",
            "QEMU could not start it (exit code 1): qemu: no such machine",
        ),
        ("exit 2", &[], "refused", "no reason given"),
        ("cat hello >&$line; echo broken >&2; exit 1", &[], "qemu_failed", "QEMU exited with code 1: broken"),
        ("kill -9 $$", &[], "qemu_killed", "QEMU was killed by signal 9 (SIGKILL)"),
        ("cat said >&$line; kill -9 $$", &[], "qemu_killed", "signal 9"),
        ("exit 0", &[], "powered_off", "it powered off without a result"),
        ("cat said >&$line; exit 0", &[], "powered_off", "without a result"),
        (PANIC, &[], "panic", "its kernel panicked: ?[2Jsysrq"),
        (OOM, &[], "out_of_memory", "hint: use a larger --memory"),
        (INIT, &[], "agent", "its agent failed: PID 1 exited: Kernel panic"),
        (
            "echo half a boot >&$console; exec sleep 600",
            &["--boot-timeout", "3s"],
            "no_first_line",
            "last kernel message: half a boot",
        ),
        ("exec sleep 600", &["--boot-timeout", "1s"], "no_first_line", "no kernel messages"),
        (
            "cat said >&$line; exec sleep 600",
            &["--timeout", "3s"],
            "too_long",
            "hint: use a longer --timeout",
        ),
        ("echo printk >&$line; exec sleep 600", &[], "damaged", "corrupt data on its serial line: byte 0"),
        ("head -c 70 said >&$line; exit 0", &[], "damaged", "its last message is truncated"),
        ("cat hello hello >&$line; exec sleep 600", &[], "damaged", "packet 0 out of order; expected 1"),
        ("cat failed >&$line; exec sleep 600", &[], "agent", "its agent failed: no job"),
        ("exec yes >&$console", &["--timeout", "3s"], "no_first_line", "last kernel message: y"),
        ("cat hello >&$line; exec yes >&$line", &[], "damaged", "not the start of a packet"),
    ] {
        let stage = Stage::new(script);
        stage.put("hello", &packets(&[hello()]));
        let steps = step("out", "", StepExit::Code(0));
        stage.put("said", &packets(&[vec![hello()], steps[..3].to_vec()].concat()));
        stage.put("failed", &packets(&[AgentMessage::JobFailed("no job\n".into())]));
        let (code, _, stderr) = texts(&stage.run(options));
        assert_eq!(code, Some(6), "{script}: {stderr}");
        assert!(
            stderr.starts_with("error: the guest was lost: ") && stderr.contains(said),
            "{script}: {stderr}"
        );
        assert!(!stderr.contains('\x1b'), "{stderr:?}");
        stage.assert_nothing_is_left();
        let json: serde_json::Value =
            serde_json::from_slice(&stage.run(&[options, &["--json"]].concat()).stdout).unwrap();
        assert_eq!((&json["outcome"], &json["lost_word"]), (&"lost".into(), &word.into()), "{script}");
    }
}

#[test]
fn a_panic_that_does_not_end_the_guest_is_not_waited_for() {
    let stage = Stage::new("echo 'Kernel panic - not syncing: x' >&$console; exec sleep 600");
    let start = Instant::now();
    let (code, _, stderr) = texts(&stage.run(&[]));
    assert!(code == Some(6) && stderr.contains("its kernel panicked"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(300));
    stage.assert_nothing_is_left();
}

#[test]
fn a_kill_at_any_moment_ends_qemu_and_leaves_no_file() {
    let script = "touch step1; head -c 40 said >&$line; touch step2; tail -c +41 said >&$line; touch step3; \
                  exec sleep 600";
    for moment in 0..=4 {
        let stage = Stage::new(script);
        let steps = step("out", "", StepExit::Code(0));
        stage.put("said", &packets(&[vec![hello()], steps[..3].to_vec()].concat()));
        let mut child = started(&mut stage.command(&["--swap", "16M"]));
        // 0: at once; 1: QEMU runs; 2 to 4: after its steps.
        if moment > 0 {
            stage.qemu();
        }
        if moment > 1 {
            let step = format!("step{}", moment - 1);
            wait_until(&step, || stage.path(&step).exists());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if moment > 0 {
            assert!(is_gone_within(stage.qemu(), Duration::from_secs(60)), "at moment {moment}");
        }
        assert_eq!(names(&stage.path("tmp")), Vec::<String>::new(), "at moment {moment}");
    }
}

#[test]
fn a_signal_ends_the_guest_and_is_reported() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let code = 128 + number;
        let stage = Stage::new("cat said >&$line; exec sleep 600");
        stage.put("said", &packets(&[hello()]));
        let child = started(&mut stage.command(&[]));
        stage.qemu();
        wait_until("the handler of the signal", || catches_signal(child.id(), number));
        assert!(
            Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        let (got, _, stderr) = texts(&child.wait_with_output().unwrap());
        assert_eq!((got, stderr.contains("stopped")), (Some(code), true), "{signal}: {stderr}");
        stage.assert_nothing_is_left();
    }
}

/// Waits until something holds, however busy the machine is.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A full pipe may have this much room in its last pages.
const PIPE_REST_BYTES_MAX: u64 = 16 << 10;

/// Whether a process has a handler for a signal.
fn catches_signal(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0) >> (signal - 1) & 1 == 1)
}

/// A guest that prints 30 MB, and a pagelab without a reader of its output.
fn nobody_reads(options: &[&str]) -> (Stage, Child) {
    let stage = Stage::new("cat said >&$line; exec sleep 600");
    let out = AgentMessage::Stdout(vec![b'x'; 60_000]);
    stage.put("said", &packets(&[vec![hello(), AgentMessage::StepStarted(0)], vec![out; 500]].concat()));
    let child = started(&mut stage.command(options));
    stage.qemu();
    // Nothing more is written once the pipe of its output is full.
    let output = child.stdout.as_ref().unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(output).unwrap() as u64;
    let is_full = || rustix::io::ioctl_fionread(output).unwrap() > capacity - PIPE_REST_BYTES_MAX;
    wait_until("output that is full", is_full);
    (stage, child)
}

#[test]
fn a_reader_that_does_not_read_delays_neither_a_signal_nor_the_deadline() {
    for (options, signal, code) in [(&[][..], Some("TERM"), 143), (&["--timeout", "1s"], None, 6)] {
        let (stage, mut child) = nobody_reads(options);
        let start = Instant::now();
        if let Some(signal) = signal {
            let kill = ["-s", signal, &child.id().to_string()];
            assert!(Command::new("kill").args(kill).status().unwrap().success());
        }
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > Duration::from_secs(300) {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("still waiting for a reader: {options:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(code), "{options:?}");
        stage.assert_nothing_is_left();
    }
    // A slow reader gets everything.
    let (stage, mut child) = nobody_reads(&["--timeout", "5s"]);
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert_eq!((said.len(), child.wait().unwrap().code()), (500 * 60_000, Some(6)));
    stage.assert_nothing_is_left();
}

#[test]
fn a_qemu_wrapper_script_is_ended_with_its_children() {
    let stage = Stage::new("sleep 600 & echo $! > child; cat said >&$line; yes >&$console; true");
    stage.put("said", &job("out", "", StepExit::Code(0)));
    let (code, ..) = texts(&stage.run(&[]));
    assert_eq!(code, Some(0));
    stage.assert_nothing_is_left();
    let child = fs::read_to_string(stage.path("child")).unwrap();
    assert!(is_gone_within(child.trim().parse().unwrap(), Duration::from_secs(60)), "its child is left");
}

#[test]
fn a_closed_output_ends_the_guest() {
    let stage = Stage::new(
        "cat said >&$line; while [ ! -e closed ]; do sleep 0.01; done; cat more >&$line; exec sleep 600",
    );
    let out = |text: &str| AgentMessage::Stdout(text.as_bytes().to_vec());
    stage.put("said", &packets(&[hello(), AgentMessage::StepStarted(0), out("first\n")]));
    let all = packets(&[hello(), AgentMessage::StepStarted(0), out("first\n"), out("second\n")]);
    let before = fs::read(stage.path("said")).unwrap().len();
    stage.put("more", &all[before..]);
    let mut child = started(&mut stage.command(&[]));
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 6];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    stage.put("closed", b"");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    stage.assert_nothing_is_left();
}

/// The messages of a job that ended with 0 and then sends these, over the line and over the bulk channel.
fn sending(stage: &Stage, files: &[AgentMessage]) {
    stage.put(
        "said",
        &packets(
            &[vec![hello()], step("", "", StepExit::Code(0)), vec![AgentMessage::SwitchToBulk]].concat(),
        ),
    );
    stage.put("files", &packets(&[files, &[AgentMessage::JobDone]].concat()));
}

fn file(path: &str) -> AgentMessage {
    AgentMessage::FileStart(FileHeader { take: 0, path: path.to_owned(), kind: EntryKind::Plain })
}

#[test]
fn files_are_copied_back_and_missing_ones_reported() {
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    let options = ["--take", "x", "--take", "/gone", "--to", to.to_str().unwrap()];
    let big = vec![7; 60_000];
    let data =
        [vec![file("x")], vec![AgentMessage::Data(big.clone()); 20], vec![AgentMessage::FileEnd]].concat();
    sending(&stage, &data);
    let start = Instant::now();
    let (code, _, stderr) = texts(&stage.run(&options));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("not copied: gone does not exist in the guest"), "{stderr}");
    assert_eq!(fs::read(to.join("x")).unwrap(), big.repeat(20));
    assert!(start.elapsed() < Duration::from_secs(300), "a megabyte is there at once");
    let (code, _, stderr) = texts(&stage.run(&options));
    assert!(code == Some(5) && stderr.contains("x: it already exists"), "{stderr}");
    // Of a file that could not be read to its end there is nothing.
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    let lost = AgentMessage::FileNotSent("x: it broke\x1b".into());
    sending(&stage, &[file("x"), AgentMessage::Data(vec![1; 9]), lost]);
    let (code, _, stderr) = texts(&stage.run(&["--take", "x", "--to", to.to_str().unwrap()]));
    assert_eq!((code, stderr.as_str()), (Some(5), "warning: not copied: x: it broke?\n"));
    assert!(!to.exists(), "nothing came, so there is no folder for it");
}

#[test]
fn a_hostile_guest_writes_only_to_requested_paths() {
    for path in ["../x", "/etc/x", "y", "x/../../y", "", "x\0"] {
        let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
        let to = stage.path("to");
        sending(&stage, &[file(path), AgentMessage::Data(vec![1]), AgentMessage::FileEnd]);
        let (code, _, stderr) = texts(&stage.run(&["--take", "x", "--to", to.to_str().unwrap()]));
        assert!(code == Some(6) && stderr.contains("corrupt data on its serial line"), "{path:?}: {stderr}");
        assert_eq!(names(&to), Vec::<String>::new(), "{path:?}");
        assert!(!stage.path("x").exists() && !stage.path("y").exists(), "{path:?}");
    }
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    sending(&stage, &[file("x"), AgentMessage::Data(vec![1; 2000]), AgentMessage::FileEnd]);
    let options = ["--take", "x", "--take-max", "1K", "--to", to.to_str().unwrap()];
    let (code, _, stderr) = texts(&stage.run(&options));
    assert!(code == Some(5) && stderr.contains("hint: use a larger --take-max"), "{stderr}");
    assert_eq!(names(&to), Vec::<String>::new());
}

#[test]
fn a_full_disk_is_reported_and_leaves_no_partial_file() {
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    fs::create_dir(stage.path("to")).unwrap();
    let data = [vec![file("x")], vec![AgentMessage::Data(vec![7; 60_000]); 40], vec![AgentMessage::FileEnd]]
        .concat();
    sending(&stage, &data);
    let inner = stage.command(&["--take", "x", "--to", "to"]);
    let script = "mount -t tmpfs -o size=1m none to || exit 99; \"$@\"; code=$?; ls -A to; exit $code";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(stage.folder.path())
        .output()
        .unwrap();
    let (code, stdout, stderr) = texts(&output);
    if code == Some(99) || stderr.contains("unshare:") {
        eprintln!("skipped: no-mount: {}", stderr.trim());
        return;
    }
    assert_eq!((code, stdout.as_str()), (Some(5), ""), "{stderr}");
    assert!(stderr.contains("cannot store to/x: No space left on device"), "{stderr}");
    assert!(stderr.contains("hint: free space, or choose another --to"), "{stderr}");
    stage.assert_nothing_is_left();
}

#[test]
fn hardware_virtualisation_is_not_touched_by_default() {
    let stage = Stage::new("cat said >&$line; exec sleep 600");
    stage.put("said", &job("", "", StepExit::Code(0)));
    stage.run(&["--nodes", "2", "--swap", "16M"]);
    let arguments = fs::read_to_string(stage.path("arguments")).unwrap();
    assert!(arguments.contains("-accel\ntcg,thread=single\n"), "{arguments}");
    assert!(!arguments.contains("kvm"), "{arguments}");
    let ours = |line: &&str| line.contains('/') && !line.ends_with("vmlinuz");
    let named: Vec<&str> = arguments.lines().filter(ours).collect();
    assert_eq!(named.len(), 2, "initramfs and disk have no name: {named:?}");
    assert!(named.iter().all(|line| line.contains("/dev/fd")), "{named:?}");
}

/// A stand-in that runs `probe` at its first start, and carries out the job at the second. The arguments of
/// each start are in the files `start1` and `start2`.
fn probed(probe: &str) -> Stage {
    let stage = Stage::new(&format!(
        "if [ ! -e start1 ]; then mv arguments start1; {probe}; fi; mv arguments start2; cat said >&$line; \
         exec sleep 600"
    ));
    stage.put("probe", &packets(&[hello(), AgentMessage::JobDone]));
    stage.put("hello", &packets(&[hello()]));
    stage.put("said", &job("out\n", "", StepExit::Code(3)));
    stage
}

/// Time for everything but the deadline of a probe, on a busy machine.
const PROBE_SLACK: Duration = Duration::from_secs(60);

#[test]
fn kvm_runs_the_guest_only_if_a_probe_boot_has_worked() {
    const KVM: &str = "-accel\nkvm\n-cpu\nhost\n";
    const TCG: &str = "-accel\ntcg,thread=single\n";
    let refused = "echo 'qemu: failed to initialize kvm: Permission denied' >&2; exit 1";
    let deadline = "boot was lost: its agent did not answer within 10 s; no kernel messages";
    for (choice, probe, second, said) in [
        ("tcg", "cat said >&$line; exec sleep 600", None, ""),
        ("auto", "cat probe >&$line; exec sleep 600", Some(KVM), ""),
        ("kvm", "cat probe >&$line; exec sleep 600", Some(KVM), ""),
        ("auto", "kill -9 $$", Some(TCG), "QEMU was killed by signal 9 (SIGKILL)"),
        ("auto", refused, Some(TCG), "QEMU could not start it (exit code 1): qemu: failed to initialize kvm"),
        ("auto", "exec sleep 600", Some(TCG), deadline),
        ("auto", "cat hello >&$line; exec sleep 600", Some(TCG), "did not end its empty job within 10 s"),
    ] {
        let stage = probed(probe);
        let start = Instant::now();
        let options = ["--accel", choice, "--cpus", "2", "--swap", "16M", "--append", "a=1", "--json"];
        let (code, stdout, stderr) = texts(&stage.run(&options));
        assert_eq!(code, Some(3), "{choice}, {probe}: {stderr}");
        assert!(start.elapsed() < Duration::from_secs(10) + PROBE_SLACK, "{:?}", start.elapsed());
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let accelerator = if second == Some(KVM) { "kvm" } else { "tcg" };
        assert_eq!(json["accelerator"], accelerator, "{choice}, {probe}");
        let starts = ["start1", "start2"].map(|name| fs::read_to_string(stage.path(name)).ok());
        let [Some(first), last] = &starts else { panic!("never started") };
        assert_eq!(last.as_deref().map(|last| last.contains(second.unwrap())), second.map(|_| true));
        if choice == "tcg" {
            assert!(first.contains(TCG) && !first.contains("kvm"), "{first}");
        } else {
            assert!(first.contains(KVM) && !first.contains("tcg"), "{first}");
            let others = ["swap", "a=1"].map(|word| first.contains(word));
            assert_eq!((others, first.contains("-smp\n1\n")), ([false; 2], true), "the smallest: {first}");
        }
        let note = "note: the guest is emulated (TCG), because KVM does not work with kernel 6.1.0: the guest of \
                    a probe boot";
        // A probe of ten seconds may also have a line of progress.
        let notes: Vec<&str> = stderr.lines().filter(|line| line.contains("KVM does not")).collect();
        assert_eq!(notes.len(), usize::from(!said.is_empty()), "{choice}, {probe}: {stderr}");
        assert!(notes.iter().all(|line| line.starts_with(note) && line.contains(said)), "{stderr}");
        let reason = json["kvm_failure"].as_str().unwrap_or_default();
        assert!(reason.contains(said) && reason.is_empty() == said.is_empty(), "{json}");
        stage.assert_nothing_is_left();
    }
}

#[test]
fn kvm_that_does_not_work_is_an_error_with_its_reason_and_the_way_out() {
    for (probe, said, hint) in [
        (
            "echo 'qemu: failed to initialize kvm: Permission denied' >&2; exit 1",
            "QEMU could not start it (exit code 1): qemu: failed to initialize kvm: Permission denied",
            "hint: use --accel tcg, run as root, or join the kvm group\n",
        ),
        ("kill -9 $$", "QEMU was killed by signal 9", "hint: use --accel tcg\n"),
    ] {
        let stage = probed(probe);
        let (code, stdout, stderr) = texts(&stage.run(&["--accel", "kvm"]));
        assert_eq!((code, stdout.as_str()), (Some(4), ""), "{probe}: {stderr}");
        let error = "error: cannot use KVM with kernel 6.1.0: the guest of a probe boot was lost: ";
        assert!(stderr.starts_with(error) && stderr.contains(said), "{stderr}");
        assert!(stderr.ends_with(hint), "{stderr}");
        assert!(!stage.path("start2").exists(), "{probe}: there is no guest");
        stage.assert_nothing_is_left();
    }
}

#[test]
fn a_signal_ends_a_probe_boot() {
    let stage = probed("exec sleep 600");
    let child = started(&mut stage.command(&["--accel", "auto"]));
    wait_until("the probe", || stage.path("start1").exists());
    let kill = ["-s", "TERM", &child.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    let (code, _, stderr) = texts(&child.wait_with_output().unwrap());
    assert!(code == Some(143) && stderr.contains("stopped"), "{code:?}: {stderr}");
    assert!(!stage.path("start2").exists(), "there is no guest");
    stage.assert_nothing_is_left();
}

#[test]
fn invalid_arguments_are_refused_before_the_start() {
    let stage = Stage::new("exit 0");
    for (options, code, said) in [
        (&["--memory", "64M"][..], 2, "--memory: expected 96 MiB to"),
        (&["--memory", "1000G"], 4, "is reserved\nhint: use --memory up to"),
        (&["--memory", "much"], 2, "expected a size"),
        (&["--cpus", "0"], 2, "expected an integer from 1 to 64"),
        (&["--icount", "11"], 2, "expected an integer from 0 to 10"),
        (&["--icount", "1", "--cpus", "2"], 2, "the instructions of one CPU: expected --cpus 1, found 2"),
        (&["--icount", "1", "--accel", "kvm"], 2, "and KVM emulates none\nhint: use --accel tcg"),
        (&["--icount", "1", "--accel", "auto", "--dry-run"], 2, "and KVM emulates none"),
        (&["--qemu", "no-such-qemu"], 4, "apt-get install qemu-system-x86"),
        (&["--kernel", "/no/such/kernel"], 3, "/no/such/kernel: no such file"),
        (&["--kernel", "/no/such/kernel"], 3, "use an existing vmlinuz, or a series such as 6.1"),
        (&["--take", "/", "--to", "."], 2, "no file name to store it under"),
        (&["--take", "a/x", "--take", "b/x", "--to", "."], 2, "two files named x"),
        (&["--give", "/dev/null"], 3, "expected a regular file"),
        (&["--give", "/a/x", "--give", "/b/x"], 2, "two files have this name"),
        (&["--give", "/no/such/file"], 3, "cannot read /no/such/file: no such file"),
        (&["--give", "/no/such/file", "--dry-run"], 3, "give an existing file"),
        (
            &["--give", "/proc/meminfo"],
            3,
            "or belongs to a virtual file system\nhint: copy it and give the copy",
        ),
        (&["--give", "/sys/kernel/mm/transparent_hugepage/enabled"], 3, "copy it and give the copy"),
        (&["--cgroup", "none", "--cgroup-limit", "64M"], 2, "requires --cgroup v2 or v1"),
        (&["--disk", "5"], 2, "--disk: expected 8 MiB to 1 TiB"),
        (&["--accel", "hvf"], 2, "possible values: tcg, kvm, auto"),
        (&["--dimms", "2"], 2, "expected COUNTxSIZE, for example 8x128M"),
        (&["--dimms", "257x128M"], 2, "--dimms: expected 1 to 256 DIMMs, found 257"),
        (&["--dimms", "2x100M"], 2, "a multiple of 128 MiB, the size of a memory block, found 100 MiB"),
        (&["--dimms", "64x128M"], 2, "for 8 GiB of DIMMs\nhint: use 256M of memory or more"),
        (&["--memory", "16G", "--dimms", "2x200G"], 4, "hint: use --memory and --dimms together up to"),
        (&["--console", "/no/such/folder/x"], 3, "cannot write /no/such/folder/x: no directory"),
    ] {
        let (got, stdout, stderr) = texts(&stage.run(options));
        assert_eq!((got, stdout.as_str()), (Some(code), ""), "{options:?}: {stderr}");
        assert!(stderr.contains(said), "{options:?}: {stderr}");
        assert!(!stage.path("pid").exists(), "{options:?}: QEMU was started");
    }
}

#[test]
fn a_command_line_that_needs_no_guest_is_answered_without_one() {
    for (words, code) in [
        (&["checkup", "--rnu"][..], 2),
        (&["nosuch"], 2),
        (&["frag", "--order", "many"], 2),
        (&["frag", "--help"], 0),
        (&["--version"], 0),
        (&["guest", "run", "--help"], 0),
    ] {
        let stage = Stage::new("exit 0");
        let there = texts(&started(&mut stage.command_for(&[], words)).wait_with_output().unwrap());
        let here = texts(&Command::new(stand_in::binary()).args(words).output().unwrap());
        assert_eq!(there.0, Some(code), "{words:?}: {there:?}");
        assert_eq!(there, here, "{words:?}: word for word as without a guest");
        assert!(!stage.path("pid").exists(), "{words:?}: QEMU was started");
    }
    for (words, said) in [
        (&["frag", "--from", "-"][..], "standard input is not passed to a guest"),
        (&["guest", "run", "--", "frag"], "a guest cannot boot guests"),
    ] {
        for options in [&[][..], &["--dry-run"], &["--json"]] {
            let stage = Stage::new("exit 0");
            let run = started(&mut stage.command_for(options, words)).wait_with_output().unwrap();
            let (code, stdout, stderr) = texts(&run);
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{words:?}: {stderr}");
            assert!(stderr.contains(said), "{words:?}: {stderr}");
            assert!(!stage.path("pid").exists(), "{words:?}: QEMU was started");
        }
    }
}

#[test]
fn as_pid_1_of_a_container_it_is_an_ordinary_program() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for name in ["dev", "data"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::copy(stand_in::binary(), root.join("init")).unwrap();
    let step = "{\"Write\":{\"path\":\"/data/written\",\"text\":\"x\"}}";
    let fields = "\"modules\":[],\"cgroup\":null,\"swap\":false,\"disk\":false,\"bulk\":null";
    let job = format!(
        "{{\"magic\":\"{JOB_MAGIC}\",{fields},\"steps\":[{step}],\"output_paths\":[],\"output_bytes_max\":0}}"
    );
    assert!(matches!(GuestJob::from_bytes(job.as_bytes()), Some(Ok(_))), "it is a job");
    fs::write(root.join("job"), job).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "chroot"]).arg(root);
    let (code, stdout, stderr) =
        texts(&command.args(["/init", "--version"]).env("pagelab_guest", "1").output().unwrap());
    if stderr.contains("unshare:") || stderr.contains("chroot:") {
        eprintln!("skipped: no-mount: {}", stderr.trim());
        return;
    }
    assert!(code == Some(0) && stdout.starts_with("pagelab "), "{code:?} {stdout}{stderr}");
    assert_eq!(names(&root.join("dev")), Vec::<String>::new(), "nothing is mounted");
    assert_eq!(names(&root.join("data")), Vec::<String>::new(), "no step was carried out");
}

#[test]
fn every_field_of_the_json_is_documented() {
    let docs = include_str!("../../../docs/json.md");
    let (_, docs) = docs.split_once("## `guest`").unwrap();
    let check = |objects: &[&serde_json::Value]| {
        for (name, value) in objects.iter().flat_map(|object| object.as_object().unwrap()) {
            let general = ["pagelab_json", "kind"].contains(&name.as_str());
            match name.strip_suffix("_absent_reason") {
                Some(_) => assert!(value.is_string(), "{name}: {value}"),
                None => {
                    assert!(general || docs.contains(&format!("`{name}`")), "{name} is not in docs/json.md")
                }
            }
        }
    };
    for end in [StepExit::Code(0), StepExit::NotRun("no".into())] {
        let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
        stage.put(
            "said",
            &packets(&[vec![hello()], step("o", "e", end), vec![AgentMessage::SwitchToBulk]].concat()),
        );
        stage.put("files", &packets(&[file("x"), AgentMessage::FileEnd, AgentMessage::JobDone]));
        let to = stage.path("to");
        let output = stage.run(&["--json", "--take", "x", "--to", to.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        check(&[&json, &json["kernel"], &json["steps"][0], &json["files"][0]]);
    }
    let stage = Stage::new("exit 0");
    let cache = stage.path("cache");
    for (options, fetches) in [
        (&["--dry-run", "--json", "--swap", "16M", "--accel", "kvm", "--dimms", "1x128M"][..], false),
        (&["--dry-run", "--json", "--kernel", "6.1", "--cache", cache.to_str().unwrap()], true),
    ] {
        let (code, stdout, stderr) = texts(&stage.run(options));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{options:?}");
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        check(&[&json]);
        assert_eq!((&json["kind"], &json["command"][0]), (&"guest_plan".into(), &"frag".into()), "{json}");
        let is_null = ["kernel", "modules", "fetches"].map(|name| json[name].is_null());
        assert_eq!(is_null, [fetches, fetches, !fetches], "{json}");
        assert!(!cache.exists() && !stage.path("pid").exists());
    }
}

#[test]
fn the_plan_is_shown_and_nothing_is_started() {
    let stage = Stage::new("exit 0");
    let (code, stdout, stderr) = texts(&stage.run(&["--dry-run", "--nodes", "2", "--swap", "16M"]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for part in [
        "guest     6.1.0, 128 MiB, 1 CPU, 2 nodes, swap 16 MiB\n",
        "accel     tcg: emulated by QEMU",
        "modules   virtio_pci.ko virtio_blk.ko\n",
        "fd=BULK",
        "runs      pagelab frag",
        "-numa",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!stage.path("pid").exists());
}

#[test]
fn a_module_that_was_never_built_is_an_error_before_the_boot() {
    let stage = Stage::new("exit 0");
    let cache = stage.path("cache");
    let cache = cache.to_str().unwrap();
    let never = "cannot load the module in 6.1.0: it was never built for this kernel\n\
                 hint: pagelab guest setup --module --kernel ";
    let (code, _, stderr) = texts(&stage.run(&["--module", "--cache", cache]));
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains(never) && stderr.contains("vmlinuz --headers DIR"), "{stderr}");
    let (code, _, stderr) = texts(&stage.run(&["--module", "--cache", cache, "--kernel", "6.12"]));
    assert!(code == Some(4) && stderr.contains("--module --kernel 6.12\n"), "{stderr}");
    assert!(!stage.path("pid").exists() && !stage.path("cache").exists());

    // One that was built is loaded last.
    let kernel = GuestKernel::open(&stage.path("vmlinuz"), None).unwrap();
    let record = ModuleRecord {
        release: kernel.release.clone(),
        kernel_version: kernel.version().unwrap(),
        vermagic: "6.1.0 SMP".into(),
        source_checksum: source_checksum(&SOURCES),
        module_bytes: 3,
    };
    let partial = stage.path("partial");
    fs::create_dir(&partial).unwrap();
    let entry = write_record(&partial, &record).unwrap();
    fs::write(partial.join("pagelab.ko"), "elf").unwrap();
    fs::create_dir_all(stage.path("cache/modules")).unwrap();
    fs::rename(&partial, stage.path("cache/modules").join(entry)).unwrap();
    let (code, stdout, stderr) =
        texts(&stage.run(&["--module", "--cache", cache, "--dry-run", "--swap", "16M"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("modules   virtio_pci.ko virtio_blk.ko pagelab.ko\n"), "{stdout}");
    for (switch, reason) in [
        (&["--switch", "grouping=off"][..], "--module"),
        (&["--module", "--switch", "grouping"], "expected NAME=STATE"),
        (&["--module", "--switch", "groping=off"], "unknown feature `groping`"),
        (&["--module", "--switch", "grouping=of"], "unknown state of grouping `of`"),
    ] {
        let (code, _, stderr) = texts(&stage.run(switch));
        assert!(code == Some(2) && stderr.contains(reason), "{stderr}");
    }
}

#[test]
fn the_plan_names_the_accelerator_and_the_dimms_and_nothing_is_started() {
    let stage = Stage::new("exit 0");
    for (choice, title, arguments) in [
        ("tcg", "tcg: emulated by QEMU, about ten times slower", "-accel tcg,thread=single"),
        ("kvm", "kvm: the processor of this machine, after a probe boot of at most 10 s", "-accel kvm \\\n"),
        ("auto", "auto: kvm as shown below if a probe boot of at most 10 s works", "-accel kvm \\\n"),
    ] {
        let options = ["--dry-run", "--accel", choice, "--dimms", "2x128M"];
        let (code, stdout, stderr) = texts(&stage.run(&options));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{choice}");
        for part in [title, arguments, "128 MiB, 2 DIMMs of 128 MiB, 1 CPU\n", "-m 128M,slots=2,maxmem=384M"]
        {
            assert!(stdout.contains(part), "{part}: {stdout}");
        }
        let (_, stdout, _) = texts(&stage.run(&[&options[..], &["--json"]].concat()));
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(
            (&json["accelerator"], json["emulator"].as_str()),
            (&choice.into(), (choice == "tcg").then_some("tcg"))
        );
        assert_eq!((&json["dimms"], &json["dimm_bytes"]), (&2.into(), &(128 << 20).into()));
        assert!(json["icount_shift"].is_null(), "{json}");
    }
    let options = ["--dry-run", "--icount", "1"];
    let (code, stdout, stderr) = texts(&stage.run(&options));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("which counts instructions: 2 ns of guest time each\n"), "{stdout}");
    assert!(stdout.contains("-accel tcg,thread=single \\\n  -icount shift=1,sleep=off"), "{stdout}");
    let (_, stdout, _) = texts(&stage.run(&[&options[..], &["--json"]].concat()));
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["icount_shift"], 1, "{json}");
    assert!(!stage.path("pid").exists());
}
