//! Tests of `pagelab apply`: results and exits are those without it; which process dies with which; huge
//! pages of a running process.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![cfg(target_arch = "x86_64")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagelab_formats::plan_toml;
use pagelab_model::Bytes;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::process::Mapping as Part;
use pagelab_model::profile::{MappingIdentity, MappingKind, Program};
use rustix::fs::inotify;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::running::{children_of, stat_field};
use support::{Lab, binary};

/// No step takes longer on a machine that works.
const LONG: Duration = Duration::from_secs(120);

/// A process that is ended with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_there(program: &str, skip: &str) -> bool {
    let there = ["/usr/bin", "/bin"].iter().any(|folder| Path::new(folder).join(program).is_file());
    if !there {
        eprintln!("skipped: {skip}: no {program} here");
    }
    there
}

/// Waits until the question has an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn child_of(pid: u32) -> Option<u32> {
    children_of(pid).first().copied()
}

/// Waits until a process whose parent was killed has another one, and can still be stopped and continued: a
/// signal of the parent's death would be pending.
fn assert_outlives(parent: u32, pid: u32) {
    let is_adopted = || stat_field(pid, 1).is_some_and(|now| now != parent.to_string());
    until("another parent", || is_adopted().then_some(()));
    signal(pid, Signal::STOP);
    until("the stop", || (stat_field(pid, 0)? == "T").then_some(()));
    signal(pid, Signal::CONT);
    assert!(lives(pid));
}

/// Whether a process is there and has not ended.
fn lives(pid: u32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

fn runs(pid: u32, name: &str) -> Option<()> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (comm.trim() == name).then_some(())
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// `apply` of a program that sleeps: the front end, the supervisor (with a tracer), the program.
fn sleeper(lab: &Lab, more: &[&str]) -> (Ends, Option<u32>, u32) {
    let mut words = vec!["apply", "all"];
    words.extend(more);
    words.extend(["--", "sleep", "600"]);
    let mut command = lab.command(&words);
    command.env("PATH", "/usr/bin:/bin").stdout(Stdio::null()).stderr(Stdio::null());
    let front = Ends(command.spawn().unwrap());
    let first = until("a child", || child_of(front.0.id()));
    if more.contains(&"--no-tracer") {
        until("the program", || runs(first, "sleep"));
        return (front, None, first);
    }
    let program = until("the program", || child_of(first).filter(|pid| runs(*pid, "sleep").is_some()));
    (front, Some(first), program)
}

#[test]
fn the_program_dies_with_the_supervisor_and_not_with_the_front_end() {
    let lab = Lab::new();
    // The front end: nothing changes for the others.
    let (mut front, supervisor, program) = sleeper(&lab, &[]);
    let supervisor = supervisor.unwrap();
    front.0.kill().unwrap();
    front.0.wait().unwrap();
    assert_outlives(front.0.id(), supervisor);
    assert!(lives(program));
    // The supervisor: the program is killed with it.
    signal(supervisor, Signal::KILL);
    until("the program's end", || (!lives(program)).then_some(()));

    // The supervisor alone: the front end says so.
    let (mut front, supervisor, program) = sleeper(&lab, &[]);
    signal(supervisor.unwrap(), Signal::KILL);
    assert_eq!(front.0.wait().unwrap().code(), Some(137));
    until("the program's end", || (!lives(program)).then_some(()));

    // The program: both of ours end, and tell how.
    let (mut front, supervisor, program) = sleeper(&lab, &[]);
    signal(program, Signal::KILL);
    assert_eq!(front.0.wait().unwrap().code(), Some(137));
    until("the supervisor's end", || (!lives(supervisor.unwrap())).then_some(()));

    // A signal that a process sends to the front end is for the program.
    let (mut front, _, _) = sleeper(&lab, &[]);
    until("the passing on", || {
        let _ = kill_process(Pid::from_raw(front.0.id() as i32).unwrap(), Signal::TERM);
        front.0.try_wait().unwrap()
    });
    assert_eq!(front.0.wait().unwrap().code(), Some(143));

    // Without a tracer no process dies with another.
    let (mut front, _, program) = sleeper(&lab, &["--no-tracer"]);
    front.0.kill().unwrap();
    front.0.wait().unwrap();
    assert_outlives(front.0.id(), program);
    signal(program, Signal::KILL);
}

#[test]
fn the_output_of_programs_is_unchanged() {
    let lab = Lab::new();
    let mut text = String::new();
    let mut state = 1u64;
    while text.len() < 1 << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{} {}\n", state >> 44, state >> 60));
    }
    lab.write("text", &text);
    let python = "d = {}\nfor i in range(300000): d[i * 2654435761 % 2**32] = str(i)\n\
                  print(sum(k for k in d if len(d[k]) > 4), len(d))";
    let sql = "create table t(a integer primary key, b); with recursive n(i) as (select 1 union all select \
               i + 1 from n where i < 150000) insert into t select i, i * 7919 % 100003 from n; create index \
               x on t(b); select count(*), sum(b), max(a) from t where b between 1000 and 90000;";
    for (program, skip, words) in [
        ("xz", "sort-or-xz-absent", &["-9", "-T1", "-c", "text"][..]),
        ("sort", "sort-or-xz-absent", &["-k2", "text"]),
        ("python3", "python3-absent", &["-c", python]),
        ("sqlite3", "sqlite3-absent", &[":memory:", sql]),
    ] {
        if !is_there(program, skip) {
            continue;
        }
        let alone = Command::new(program).args(words).current_dir(lab.path()).output().unwrap();
        assert!(alone.status.success() && !alone.stdout.is_empty(), "{program}");
        for how in [&["none"][..], &["all"], &["all", "--no-tracer"], &["all", "--override"]] {
            let line = [&["apply"], how, &["--", program], words].concat();
            let got = lab.command(&line).env("PATH", "/usr/bin:/bin").output().unwrap();
            assert_eq!(got.status.code(), Some(0), "{program} {how:?}");
            assert!(got.stdout == alone.stdout, "{program} {how:?} put out something else");
        }
    }
}

#[test]
fn exit_codes_and_pipes_are_those_of_the_program() {
    let lab = Lab::new();
    for (script, code) in [("exit 0", 0), ("exit 5", 5), ("kill -SEGV $$", 139)] {
        for more in [&[][..], &["--no-tracer"]] {
            let line = [&["apply", "none"], more, &["--", "/bin/sh", "-c", script]].concat();
            assert_eq!(lab.run(&line).code, Some(code), "{script} {more:?}");
        }
    }
    // What it closes is closed, though ours still run.
    let mut command = lab.command(&["apply", "none", "--", "/bin/sh", "-c", "exec >&-; exec sleep 600"]);
    let mut front = Ends(command.env("PATH", "/usr/bin:/bin").spawn().unwrap());
    let mut all = Vec::new();
    front.0.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert!(front.0.try_wait().unwrap().is_none());
    until("the passing on", || {
        signal(front.0.id(), Signal::TERM);
        front.0.try_wait().unwrap()
    });
    // Processes that it leaves running continue under the supervisor.
    let ran = lab.run(&["apply", "none", "--", "/bin/sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]);
    assert_eq!(ran.code, Some(0));
    let left: u32 = ran.out.trim().parse().unwrap();
    assert!(lives(left));
    signal(left, Signal::KILL);
    // What cannot be started, or makes no sense.
    for (line, code) in [
        (&["apply", "none", "--", "/nowhere/program"][..], 3),
        (&["apply", "none"], 2),
        (&["apply", "no-such-plan.toml", "--", "true"], 3),
        (&["apply", "all", "--pid", "4194304"], 3),
    ] {
        let ran = lab.run(line);
        assert_eq!(ran.code, Some(code), "{line:?} {}", ran.err);
        assert!(ran.err.starts_with("error: "), "{line:?} {}", ran.err);
    }
    let ran = lab.run(&["apply", "none", "--", "no-such-program"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    let said = "cannot start no-such-program: no such executable in PATH (";
    assert!(ran.err.contains(said) && ran.err.contains("hint: give its full path"), "{}", ran.err);
}

fn plan_for(program: Program) -> String {
    let key = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(8 << 20), nth: 0 };
    let regions = vec![PlannedRegion { offset: 0, page: Bytes(2 << 20), cost_ns: None }];
    let (start, bytes, cells) = (1 << 30, Bytes(8 << 20), Vec::new());
    let mappings = vec![PlannedMapping { key, start, bytes, regions, cells }];
    let programs = vec![PlannedProgram { program, mappings }];
    let plan = HugePlan { programs, ..HugePlan::default() };
    plan_toml::write_plan(&plan, &[])
}

#[test]
fn a_plan_for_another_build_is_refused_before_the_start() {
    let lab = Lab::new();
    let identity = Some("00112233445566778899aabbccddeeff00112233".to_owned());
    let other = Program { path: "/bin/sh".to_owned(), bytes: Some(Bytes(1)), identity };
    // A shell is started by its name here, whatever file it is.
    lab.write("plan.toml", plan_for(Program { path: "/elsewhere/sh".to_owned(), ..other }));
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let link = lab.path().join("sh");
    fs::copy(shell, &link).unwrap();
    let line = ["apply", "plan.toml", "--", "./sh", "-c", "echo ran"];
    let ran = lab.run(&line);
    assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{}", ran.err);
    assert!(ran.err.contains("--stale"), "{}", ran.err);
    // No mapping of that length appears in a shell, which is said.
    let anyway = lab.run(&["apply", "plan.toml", "--stale", "--", "./sh", "-c", "echo ran"]);
    assert_eq!((anyway.code, anyway.out.as_str()), (Some(0), "ran\n"), "{}", anyway.err);
    assert!(anyway.err.contains("never appeared"), "{}", anyway.err);
}

/// A plan whose mapping of 8 MiB no shell makes, which is said.
fn shell_plan() -> String {
    plan_for(Program::default())
}

#[test]
fn a_plan_on_standard_input_is_applied() {
    let lab = Lab::new();
    for more in [&[][..], &["--no-tracer"]] {
        let line = [&["apply", "-"], more, &["--", "/bin/sh", "-c", "cat; echo ran"]].concat();
        let mut command = lab.command(&line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut front = command.spawn().unwrap();
        front.stdin.take().unwrap().write_all(shell_plan().as_bytes()).unwrap();
        let ran = front.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        // The plan is pagelab's: the program finds its standard input at the end.
        assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(0), &b"ran\n"[..]), "{said}");
        assert!(said.contains("never appeared") || !more.is_empty(), "{said}");
    }
    let mut command = lab.command(&["apply", "-", "--", "true"]);
    let ran = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(3), "an empty text is no plan");
}

/// How often a file of this name was opened since the last call.
fn count_opens(watch: &OwnedFd, name: &str) -> usize {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut count = 0;
    while let Ok(event) = reader.next() {
        count += usize::from(event.file_name().is_some_and(|of| of.to_bytes() == name.as_bytes()));
    }
    count
}

#[test]
fn a_plan_that_is_replaced_meanwhile_is_not_read_twice() {
    let lab = Lab::new();
    lab.write("plan.toml", shell_plan());
    lab.write("other.toml", "no plan");
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, lab.path(), inotify::WatchFlags::OPEN).unwrap();
    let mut command = lab.command(&["apply", "plan.toml", "--", "/bin/sh", "-c", "echo ran"]);
    let front = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let first =
        until("the reading of the plan", || Some(count_opens(&watch, "plan.toml")).filter(|n| *n > 0));
    fs::rename(lab.path().join("other.toml"), lab.path().join("plan.toml")).unwrap();
    let ran = front.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(0), &b"ran\n"[..]), "{said}");
    assert!(said.contains("never appeared"), "{said}");
    assert_eq!(first + count_opens(&watch, "plan.toml"), 1);
}

#[test]
fn a_failure_is_in_the_summary_too() {
    let lab = Lab::new();
    lab.write("plan.toml", "no plan");
    let ran = lab.run(&["apply", "plan.toml", "--summary", "s.json", "--force", "--", "true"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
    let (failure, kind) = (&summary["failure"], &summary["kind"]);
    assert_eq!((kind, &failure["code"]), (&"apply".into(), &3.into()), "{summary}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.contains("plan.toml") && ran.err.contains(message.split("; ").next().unwrap()),
        "{message}"
    );
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap();
    assert!(page.contains("| `failure` |"));
}

/// Offsets of huge pages in the mapping of `bytes` bytes, according to `smaps`: of parts that are completely
/// huge. `None`: there is no such mapping.
fn huge_offsets(pid: u32, bytes: u64) -> Option<Vec<u64>> {
    let text = fs::read(format!("/proc/{pid}/smaps")).ok()?;
    let parts = pagelab_formats::smaps::parse(&text).ok()?;
    // Advice and access split it: its parts touch.
    let joined = |pair: &[Part]| pair[0].end == pair[1].start;
    let whole = (0..parts.len()).find_map(|first| {
        let last = (first..parts.len()).find(|&last| parts[last].end - parts[first].start == bytes)?;
        let parts = &parts[first..=last];
        parts.windows(2).all(joined).then_some(parts)
    })?;
    let is_huge = |part: &&Part| part.fields_kib.get("AnonHugePages") == Some((part.end - part.start) >> 10);
    let of = |part: &Part| (part.start..part.end).step_by(2 << 20).map(|at| at - whole[0].start);
    Some(whole.iter().filter(is_huge).flat_map(of).collect())
}

#[test]
fn planned_offsets_hold_at_other_addresses() {
    const HUGE: u64 = 2 << 20;
    const BUFFER: u64 = 64 << 20;
    // The program reserves more than it uses: its buffer begins at the first multiple of its own length.
    let lab = Lab::new();
    let bytes = 2 * BUFFER + 2 * rustix::param::page_size() as u64;
    let start = 0x40_04b0_9000_u64;
    let first = start.next_multiple_of(BUFFER) - start;
    let offsets = [0, 3, 4, 9, 17, 22, 30, 31].map(|region| first + region * HUGE);
    let region = |&offset: &u64| PlannedRegion { offset, page: Bytes(HUGE), cost_ns: None };
    let key = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(bytes), nth: 0 };
    let (regions, cells) = (offsets.iter().map(region).collect(), Vec::new());
    let mappings = vec![PlannedMapping { key, start, bytes: Bytes(bytes), regions, cells }];
    let programs = vec![PlannedProgram { program: Program::default(), mappings }];
    let plan = HugePlan { programs, ..HugePlan::default() };
    lab.write("plan.toml", plan_toml::write_plan(&plan, &[]));
    for _ in 0..5 {
        let mut line = vec!["apply", "plan.toml", "--summary", "s.json", "--force", "--"];
        line.extend([binary(), "workload", "chase", "--size", "64M"]);
        line.extend(["--steps", "2000000000"]);
        let mut front = Ends(lab.command(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let supervisor = until("the supervisor", || child_of(front.0.id()));
        let program = until("the program", || child_of(supervisor));
        let seen = until("eight huge pages", || {
            assert_eq!(front.0.try_wait().unwrap(), None);
            huge_offsets(program, bytes).filter(|seen| seen.len() >= offsets.len())
        });
        assert_eq!(seen, offsets);
        signal(program, Signal::TERM);
        assert_eq!(front.0.wait().unwrap().code(), Some(143));
        let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
        assert_eq!(
            (&summary["regions"]["requested"], &summary["regions"]["allocated"]),
            (&8.into(), &8.into())
        );
    }
}

fn anonymous_huge(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_running_process_gets_huge_pages_remotely_and_by_ptrace() {
    if !is_there("python3", "python3-absent") {
        return;
    }
    let lab = Lab::new();
    // Without CAP_SYS_NICE, where a program can take it away, the same is done by attaching.
    let ways: &[&[&str]] = &[&[], &["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]];
    for way in ways.iter().filter(|way| way.is_empty() || is_there("setpriv", "no-setpriv")) {
        let (mut python, mut out) = counter(64);
        let pid = last_child(python.0.id());
        let before = anonymous_huge(pid);
        let mut command = match way {
            [] => Command::new(binary()),
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(binary());
                command
            }
        };
        command.current_dir(lab.path()).args([
            "apply",
            "all",
            "--deadline",
            "60s",
            "--summary",
            "s.json",
            "--force",
        ]);
        let ran = command.args(["--pid", &pid.to_string()]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if !rustix::process::getuid().is_root() {
            eprintln!("skipped: not-root: {said}");
            return;
        }
        assert!(matches!(ran.status.code(), Some(0 | 5)), "{said}");
        let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
        let got = summary["regions"]["allocated"].as_u64().unwrap();
        assert!(got >= 16, "{summary}");
        assert!(anonymous_huge(pid) >= before + (16 << 21), "{summary}");
        // The process prints nothing: the result is on standard output.
        let told = String::from_utf8_lossy(&ran.stdout);
        let requested = summary["regions"]["requested"].as_u64().unwrap();
        let result = format!("process {pid}: {got} of {requested} requested regions on huge pages, ");
        assert!(told.starts_with(&result) && told.contains("AnonHugePages (smaps_rollup): "), "{told}");
        assert_eq!(summary["stopped_ns"].as_u64().unwrap() > 0, !way.is_empty(), "{summary}");
        // Its contents are unchanged.
        drop(python.0.stdin.take());
        let mut counted = String::new();
        out.read_to_string(&mut counted).unwrap();
        assert_eq!(counted.trim(), (64 << 20).to_string());
    }
}

/// A Python that has so many MiB of one byte, and counts them once its input ends.
fn counter(mib: usize) -> (Ends, std::process::ChildStdout) {
    let code = format!(
        "import sys\nb = bytearray(b'x') * ({mib} << 20)\nprint('ready', flush=True)\nsys.stdin.read()\n\
         print(b.count(b'x'))"
    );
    let mut python = Command::new("python3");
    python.args(["-c", &code]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = Ends(python.spawn().unwrap());
    let mut out = python.0.stdout.take().unwrap();
    let mut ready = [0; 6];
    out.read_exact(&mut ready).unwrap();
    (python, out)
}

/// The process owner of the memory: a shim may have started it.
fn last_child(mut pid: u32) -> u32 {
    while let Some(child) = child_of(pid) {
        pid = child;
    }
    pid
}

#[test]
fn a_worker_that_hangs_is_killed_and_the_process_goes_on() {
    if !is_there("python3", "python3-absent") {
        return;
    }
    let lab = Lab::new();
    let (mut python, mut out) = counter(256);
    let pid = last_child(python.0.id()).to_string();
    let mut hung = None;
    // The worker is stopped while it works; where it was done before that, it works again.
    for _ in 0..50 {
        let line = ["apply", "all", "--pid", &pid, "--deadline", "500ms"];
        let mut front = Ends(lab.command(&line).spawn().unwrap());
        // Only once it is the worker: the front end waits for its exec.
        let is_worker = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|&byte| byte == 0).any(|word| word == b"supervise")
        };
        let worker = until("a worker or its end", || {
            let worker = child_of(front.0.id()).filter(is_worker).map(Some);
            worker.or_else(|| front.0.try_wait().unwrap().map(|_| None))
        });
        if let Some(worker) = worker {
            let _ = kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::STOP);
            let status = until("the end of the front end", || front.0.try_wait().unwrap());
            let mut said = String::new();
            front.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            if said.contains("one region took longer") {
                assert_eq!(status.code(), Some(5), "{said}");
                assert!(said.contains("--deadline"), "{said}");
                hung = Some(worker);
                break;
            }
        }
    }
    let worker = hung.expect("a worker that was stopped in time");
    until("the worker's end", || (!lives(worker)).then_some(()));
    drop(python.0.stdin.take());
    let mut counted = String::new();
    out.read_to_string(&mut counted).unwrap();
    assert_eq!(counted.trim(), (256 << 20).to_string());
}

#[test]
fn a_stopped_process_is_given_huge_pages_and_stays_stopped() {
    if !is_there("python3", "python3-absent") {
        return;
    }
    let lab = Lab::new();
    let ways: &[&[&str]] = &[&[], &["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]];
    for way in ways.iter().filter(|way| way.is_empty() || is_there("setpriv", "no-setpriv")) {
        let (mut python, mut out) = counter(32);
        let pid = last_child(python.0.id());
        signal(pid, Signal::STOP);
        until("its stop", || (stat_field(pid, 0)? == "T").then_some(()));
        let pid_word = pid.to_string();
        let own = binary();
        let words =
            [way, &[own, "apply", "all", "--summary", "s.json", "--force", "--pid", &pid_word][..]].concat();
        let ran = Command::new(words[0]).args(&words[1..]).current_dir(lab.path()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if !rustix::process::getuid().is_root() {
            eprintln!("skipped: not-root: {said}");
            return;
        }
        // From outside, its state is not queried; by attaching, it is collapsed or refused within seconds.
        assert!(matches!(ran.status.code(), Some(0 | 5)), "{way:?} {said}");
        let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
        let number = |name: &str| summary["regions"][name].as_u64().unwrap();
        assert!(number("allocated") >= 8 || !way.is_empty(), "{summary}");
        assert!(
            number("allocated") == number("requested") || said.contains(" not allocated: "),
            "{summary} {said}"
        );
        until("its stop", || (stat_field(pid, 0)? == "T").then_some(()));
        signal(pid, Signal::CONT);
        drop(python.0.stdin.take());
        let mut counted = String::new();
        out.read_to_string(&mut counted).unwrap();
        assert_eq!(counted.trim(), (32 << 20).to_string());
    }
}

#[test]
fn a_plan_is_backed_by_a_pool_that_is_given_back() {
    if !is_there("python3", "python3-absent") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: only root can enlarge a pool");
        return;
    }
    let lab = Lab::new();
    lab.write("plan.toml", plan_for(Program::default()));
    // Its mapping of 8 MiB is the one of the plan; it is cut nowhere.
    let code = "import mmap\nm = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                m.write(b'y' * (8 << 20))\nm.seek(0)\nprint(m.read().count(b'y'))\n\
                print([l for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Hugetlb')])";
    let line = ["apply", "plan.toml", "--backing", "hugetlb", "--", "/usr/bin/python3", "-c", code];
    let ran = lab.run(&line);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("8388608\n"), "{}", ran.out);
    // The kernel may have had no whole block: then it ran on small pages, and says so.
    let is_backed = ran.out.contains(" 2048 kB") || ran.out.contains(" 4096 kB");
    assert!(is_backed || ran.err.contains("not:"), "{} {}", ran.out, ran.err);
    let all = lab.run(&["apply", "all", "--backing", "hugetlb", "--", "true"]);
    assert_eq!(all.code, Some(2), "{}", all.err);
}

#[test]
fn a_brk_heap_is_allocated_on_huge_pages() {
    if !is_there("sqlite3", "sqlite3-absent") {
        return;
    }
    let lab = Lab::new();
    // Some 12 MiB by steps of 132 KiB.
    let sql = "create table t(a integer primary key, b); with recursive n(i) as (select 1 union all select i + 1 \
               from n where i < 500000) insert into t select i, i * 7919 from n; select sum(b) from t;";
    let line = ["apply", "all", "--summary", "s.json", "--force", "--", "/usr/bin/sqlite3", ":memory:", sql];
    let ran = lab.run(&line);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "989876979750000\n"), "{}", ran.err);
    let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    assert!(number(&summary["regions"]["requested"]) >= 2, "{summary}");
    assert!(number(&summary["heap_beyond_bytes"]) < 2 << 20, "{summary}");
    // The machine may have had no free huge page.
    let refused = summary["regions"]["failed"].as_array().unwrap();
    let is_told =
        refused.iter().any(|refused| refused["reason"].as_str().unwrap().contains("no free huge page"));
    assert!(number(&summary["regions"]["allocated"]) >= 2 || is_told, "{summary}");
}

#[test]
fn every_field_of_the_summary_is_documented() {
    let lab = Lab::new();
    let ran = lab.run(&["apply", "all", "--summary", "s.json", "--force", "--", "/bin/sh", "-c", "exit 3"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    let summary: Value = serde_json::from_slice(&fs::read(lab.path().join("s.json")).unwrap()).unwrap();
    assert_eq!((&summary["kind"], &summary["exit"]["code"]), (&"apply".into(), &3.into()));
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("`apply")).unwrap();
    let general = [&"pagelab_json".to_owned(), &"kind".to_owned()];
    for (name, value) in summary.as_object().unwrap().iter().filter(|(name, _)| !general.contains(name)) {
        assert!(section.contains(&format!("`{name}`")), "{name} is not in docs/json.md");
        for inner in value.as_object().into_iter().flat_map(|object| object.keys()) {
            assert!(section.contains(&format!("`{inner}`")), "{name}.{inner} is not in docs/json.md");
        }
    }
}
