//! How `pagelab guest run` ends, whoever dies: with a stand-in for QEMU, without booting anything.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

#[path = "fake_guest/stand_in.rs"]
mod stand_in;

use std::fs;
use std::io::Read;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pagelab_guest::job::{Job, MAGIC};
use pagelab_guest::message::{End, FileHead, FileKind, Message};
use stand_in::{Stage, frames, hello, is_gone_within, names, started, step, texts};

/// A whole job whose one step ended so.
fn job(stdout: &str, stderr: &str, end: End) -> Vec<u8> {
    frames(&[vec![hello()], step(stdout, stderr, end), vec![Message::Done]].concat())
}

#[test]
fn a_command_in_a_guest_looks_like_one_here() {
    for (end, code) in [
        (End::Code(0), 0),
        (End::Code(3), 3),
        (End::Code(6), 6),
        (End::Code(-1), 5),
        (End::Signal(9), 137),
        (End::Signal(i32::MAX), 5),
        (End::NotRun("no".into()), 5),
    ] {
        let stage = Stage::new("cat said >&$line; exec sleep 600");
        stage.put("said", &job("out\x1b[1m\n", "err\n", end.clone()));
        let start = Instant::now();
        let (got, stdout, stderr) = texts(&stage.run(&[]));
        let streams = (stdout.as_str(), stderr.lines().next());
        assert_eq!((got, streams), (Some(code), ("out\x1b[1m\n", Some("err"))), "{end:?}");
        let is_said = matches!(end, End::NotRun(_));
        assert_eq!(stderr.contains("could not run the command: no"), is_said, "{stderr}");
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
            "QEMU did not start it (exit code 1): qemu: no such machine",
        ),
        ("exit 2", &[], "refused", "it gave no reason"),
        (
            "cat hello >&$line; echo broken >&2; exit 1",
            &[],
            "qemu_failed",
            "QEMU gave up with exit code 1: broken",
        ),
        ("kill -9 $$", &[], "qemu_killed", "QEMU was killed by signal 9 (SIGKILL)"),
        ("cat said >&$line; kill -9 $$", &[], "qemu_killed", "signal 9"),
        ("exit 0", &[], "powered_off", "it went off without a result"),
        ("cat said >&$line; exit 0", &[], "powered_off", "without a result"),
        (PANIC, &[], "panic", "its kernel panicked: Kernel panic - not syncing: ?[2Jsysrq"),
        (OOM, &[], "out_of_memory", "--memory gives it more"),
        (INIT, &[], "agent", "its agent gave up: PID 1 is gone: Kernel panic"),
        (
            "echo half a boot >&$console; exec sleep 600",
            &["--boot-timeout", "1"],
            "no_first_line",
            "no first line from it in 1 s; the last that its kernel said: half a boot",
        ),
        ("exec sleep 600", &["--boot-timeout", "1"], "no_first_line", "its kernel said nothing"),
        ("cat said >&$line; exec sleep 600", &["--timeout", "1"], "too_long", "--timeout gives it longer"),
        ("echo printk >&$line; exec sleep 600", &[], "damaged", "its line was damaged, byte 0"),
        ("head -c 70 said >&$line; exit 0", &[], "damaged", "its last message is cut off"),
        ("cat hello hello >&$line; exec sleep 600", &[], "damaged", "frame 0 where 1 was due"),
        ("cat failed >&$line; exec sleep 600", &[], "agent", "its agent gave up: no job"),
        ("exec yes >&$console", &["--timeout", "1"], "no_first_line", "the last that its kernel said: y"),
        ("cat hello >&$line; exec yes >&$line", &[], "damaged", "this is not the beginning of a frame"),
    ] {
        let stage = Stage::new(script);
        stage.put("hello", &frames(&[hello()]));
        let steps = step("out", "", End::Code(0));
        stage.put("said", &frames(&[vec![hello()], steps[..3].to_vec()].concat()));
        stage.put("failed", &frames(&[Message::Failed("no job\n".into())]));
        let (code, _, stderr) = texts(&stage.run(options));
        assert_eq!(code, Some(6), "{script}: {stderr}");
        assert!(
            stderr.starts_with("pagelab: the guest was lost: ") && stderr.contains(said),
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
fn killed_at_any_moment_pagelab_takes_qemu_with_it_and_leaves_no_file() {
    let script = "sleep 0.02; head -c 40 said >&$line; sleep 0.05; tail -c +41 said >&$line; exec sleep 600";
    for moment_ms in [0, 5, 20, 35, 50, 80, 120, 200] {
        let stage = Stage::new(script);
        let steps = step("out", "", End::Code(0));
        stage.put("said", &frames(&[vec![hello()], steps[..3].to_vec()].concat()));
        let mut child = started(&mut stage.command(&["--swap", "16M"]));
        if moment_ms > 0 {
            stage.qemu();
            std::thread::sleep(Duration::from_millis(moment_ms));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if moment_ms > 0 {
            assert!(is_gone_within(stage.qemu(), Duration::from_secs(60)), "at {moment_ms} ms");
        }
        assert_eq!(names(&stage.path("tmp")), Vec::<String>::new(), "at {moment_ms} ms");
    }
}

#[test]
fn a_signal_ends_the_guest_and_is_told() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let stage = Stage::new("cat said >&$line; exec sleep 600");
        stage.put("said", &frames(&[hello()]));
        let child = started(&mut stage.command(&[]));
        stage.qemu();
        std::thread::sleep(Duration::from_millis(100));
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

/// A guest that says 30 MB, and the pagelab whose output nobody reads.
fn nobody_reads(options: &[&str]) -> (Stage, Child) {
    let stage = Stage::new("cat said >&$line; exec sleep 600");
    let out = Message::Stdout(vec![b'x'; 60_000]);
    stage.put("said", &frames(&[vec![hello(), Message::Begins(0)], vec![out; 500]].concat()));
    let child = started(&mut stage.command(options));
    stage.qemu();
    std::thread::sleep(Duration::from_millis(300));
    (stage, child)
}

#[test]
fn who_does_not_read_holds_up_neither_a_signal_nor_the_deadline() {
    for (options, signal, code) in [(&[][..], Some("TERM"), 143), (&["--timeout", "1"], None, 6)] {
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
    // Whoever reads at last gets everything.
    let (stage, mut child) = nobody_reads(&["--timeout", "5"]);
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert_eq!((said.len(), child.wait().unwrap().code()), (500 * 60_000, Some(6)));
    stage.assert_nothing_is_left();
}

#[test]
fn a_script_in_qemus_place_is_ended_with_what_it_started() {
    let stage = Stage::new("sleep 600 & echo $! > child; cat said >&$line; yes >&$console; true");
    stage.put("said", &job("out", "", End::Code(0)));
    let (code, ..) = texts(&stage.run(&[]));
    assert_eq!(code, Some(0));
    stage.assert_nothing_is_left();
    let child = fs::read_to_string(stage.path("child")).unwrap();
    assert!(is_gone_within(child.trim().parse().unwrap(), Duration::from_secs(1)), "its child is left");
}

#[test]
fn a_reader_who_goes_away_ends_the_guest() {
    let stage = Stage::new("cat said >&$line; sleep 0.2; cat more >&$line; exec sleep 600");
    let out = |text: &str| Message::Stdout(text.as_bytes().to_vec());
    stage.put("said", &frames(&[hello(), Message::Begins(0), out("first\n")]));
    let all = frames(&[hello(), Message::Begins(0), out("first\n"), out("second\n")]);
    let before = fs::read(stage.path("said")).unwrap().len();
    stage.put("more", &all[before..]);
    let mut child = started(&mut stage.command(&[]));
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 6];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    stage.assert_nothing_is_left();
}

/// The messages of a job that ended with 0 and then sends these, over the line and over the bulk channel.
fn sending(stage: &Stage, files: &[Message]) {
    stage.put("said", &frames(&[vec![hello()], step("", "", End::Code(0)), vec![Message::Switch]].concat()));
    stage.put("files", &frames(&[files, &[Message::Done]].concat()));
}

fn file(path: &str) -> Message {
    Message::File(FileHead { take: 0, path: path.to_owned(), kind: FileKind::Plain })
}

#[test]
fn files_come_back_and_what_is_missing_is_told() {
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    let options = ["--take", "x", "--take", "/gone", "--to", to.to_str().unwrap()];
    let big = vec![7; 60_000];
    let data = [vec![file("x")], vec![Message::Data(big.clone()); 20], vec![Message::FileDone]].concat();
    sending(&stage, &data);
    let start = Instant::now();
    let (code, _, stderr) = texts(&stage.run(&options));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("not taken: gone was not in the guest"), "{stderr}");
    assert_eq!(fs::read(to.join("x")).unwrap(), big.repeat(20));
    assert!(start.elapsed() < Duration::from_secs(300), "a megabyte is there at once");
    let (code, _, stderr) = texts(&stage.run(&options));
    assert!(code == Some(5) && stderr.contains("x is there already"), "{stderr}");
    // Of a file that could not be read to its end there is nothing.
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    let lost = Message::NotTaken("x: it broke\x1b".into());
    sending(&stage, &[file("x"), Message::Data(vec![1; 9]), lost]);
    let (code, _, stderr) = texts(&stage.run(&["--take", "x", "--to", to.to_str().unwrap()]));
    assert_eq!((code, stderr.as_str()), (Some(5), "pagelab: not taken: x: it broke?\n"));
    assert!(!to.exists(), "nothing came, so there is no folder for it");
}

#[test]
fn a_hostile_guest_puts_nothing_where_it_was_not_asked_to() {
    for path in ["../x", "/etc/x", "y", "x/../../y", "", "x\0"] {
        let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
        let to = stage.path("to");
        sending(&stage, &[file(path), Message::Data(vec![1]), Message::FileDone]);
        let (code, _, stderr) = texts(&stage.run(&["--take", "x", "--to", to.to_str().unwrap()]));
        assert!(code == Some(6) && stderr.contains("its line was damaged"), "{path:?}: {stderr}");
        assert_eq!(names(&to), Vec::<String>::new(), "{path:?}");
        assert!(!stage.path("x").exists() && !stage.path("y").exists(), "{path:?}");
    }
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    let to = stage.path("to");
    sending(&stage, &[file("x"), Message::Data(vec![1; 2000]), Message::FileDone]);
    let options = ["--take", "x", "--take-max", "1K", "--to", to.to_str().unwrap()];
    let (code, _, stderr) = texts(&stage.run(&options));
    assert!(code == Some(5) && stderr.contains("--take-max raises it"), "{stderr}");
    assert_eq!(names(&to), Vec::<String>::new());
}

#[test]
fn a_disk_that_is_full_is_told_and_nothing_half_is_left() {
    let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
    fs::create_dir(stage.path("to")).unwrap();
    let data = [vec![file("x")], vec![Message::Data(vec![7; 60_000]); 40], vec![Message::FileDone]].concat();
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
    assert!(stderr.contains("make room, or choose another --to"), "{stderr}");
    stage.assert_nothing_is_left();
}

#[test]
fn hardware_virtualisation_is_never_touched() {
    let stage = Stage::new("cat said >&$line; exec sleep 600");
    stage.put("said", &job("", "", End::Code(0)));
    stage.run(&["--nodes", "2", "--swap", "16M"]);
    let arguments = fs::read_to_string(stage.path("arguments")).unwrap();
    assert!(arguments.contains("-accel\ntcg,thread=multi\n"), "{arguments}");
    assert!(!arguments.contains("kvm"), "{arguments}");
    let ours = |line: &&str| line.contains('/') && !line.ends_with("vmlinuz");
    let named: Vec<&str> = arguments.lines().filter(ours).collect();
    assert_eq!(named.len(), 2, "initramfs and disk have no name: {named:?}");
    assert!(named.iter().all(|line| line.contains("/dev/fd")), "{named:?}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_started() {
    let stage = Stage::new("exit 0");
    for (options, code, said) in [
        (&["--memory", "64M"][..], 2, "a guest has 96 MiB to"),
        (&["--memory", "1000G"], 4, "stay for others: --memory up to"),
        (&["--memory", "much"], 2, "`much` is no size"),
        (&["--cpus", "0"], 2, "1 to 64 CPUs"),
        (&["--qemu", "no-such-qemu"], 4, "apt-get install qemu-system-x86"),
        (&["--kernel", "/no/such/kernel"], 3, "/no/such/kernel: No such file"),
        (&["--kernel", "/no/such/kernel"], 3, "name a vmlinuz that is there, or a series such as 6.1"),
        (&["--take", "/", "--to", "."], 2, "has no name to put it under"),
        (&["--take", "a/x", "--take", "b/x", "--to", "."], 2, "two of the name x"),
        (&["--give", "/dev/null"], 3, "a plain file was wanted"),
        (&["--give", "/a/x", "--give", "/b/x"], 2, "two of that name"),
        (&["--give", "/no/such/file"], 3, "--give /no/such/file: No such file"),
        (&["--give", "/no/such/file", "--dry-run"], 3, "give an existing file"),
        (&["--give", "/proc/meminfo"], 3, "or one of the kernel's own: copy it, and give the copy"),
        (&["--give", "/sys/kernel/mm/transparent_hugepage/enabled"], 3, "copy it, and give the copy"),
        (&["--cgroup", "none", "--cgroup-limit", "64M"], 2, "wants control groups"),
        (&["--disk", "5"], 2, "--disk wants at least 8 MiB"),
        (&["--console", "/no/such/folder/x"], 5, "cannot write /no/such/folder/x"),
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
        (&["guest", "run", "--", "frag"], "a guest boots no guests of its own"),
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
    let job =
        format!("{{\"magic\":\"{MAGIC}\",{fields},\"steps\":[{step}],\"takes\":[],\"take_bytes_max\":0}}");
    assert!(matches!(Job::from_bytes(job.as_bytes()), Some(Ok(_))), "it is a job");
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
    for end in [End::Code(0), End::NotRun("no".into())] {
        let stage = Stage::new("cat said >&$line; cat files >&$bulk; exec sleep 600");
        stage.put("said", &frames(&[vec![hello()], step("o", "e", end), vec![Message::Switch]].concat()));
        stage.put("files", &frames(&[file("x"), Message::FileDone, Message::Done]));
        let to = stage.path("to");
        let output = stage.run(&["--json", "--take", "x", "--to", to.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        check(&[&json, &json["kernel"], &json["steps"][0], &json["files"][0]]);
    }
    let stage = Stage::new("exit 0");
    let cache = stage.path("cache");
    for (options, fetches) in [
        (&["--dry-run", "--json", "--swap", "16M"][..], false),
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
        "guest     6.1.0, 128 MiB, 2 CPUs, 2 nodes, swap 16 MiB\n",
        "emulated  QEMU's TCG: works without /dev/kvm",
        "modules   virtio_pci.ko virtio_blk.ko\n",
        "fd=BULK",
        "runs      pagelab frag",
        "-numa",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!stage.path("pid").exists());
}
