//! Tests of what remains after a `kill -9`: no process of pagelab, and after a restore no temporary file.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use support::running::wait_until;
use support::{Lab, binary};

/// The variable by whose value all descendants of a command are found.
const MARK: &str = "PAGELAB_TEST_MARK";
/// A program with a child, a child in a session of its own, and a child of that child, for ten minutes.
const FAMILY: &str = "sleep 600 & setsid sh -c 'sleep 601 & sleep 602' & wait";
/// A program that needs no file and starts another one.
const SMALL: [&str; 5] = ["workload", "hot-regions", "--size", "32M", "--first=write"];

/// A command of pagelab and all that it starts.
struct Marked {
    lab: Lab,
    mark: String,
    child: Child,
}

impl Marked {
    fn start(lab: Lab, args: &[&str]) -> Marked {
        let mark = lab.path().file_name().unwrap().to_str().unwrap().to_owned();
        fs::create_dir_all(lab.path().join("tmp")).unwrap();
        let mut command = command_here(&lab, args);
        command
            .env(MARK, &mark)
            .stdout(Stdio::null())
            .stderr(fs::File::create(lab.path().join("err")).unwrap());
        let child = command.spawn().unwrap();
        Marked { lab, mark, child }
    }

    fn pids(&self) -> Vec<Pid> {
        let wanted = format!("{MARK}={}", self.mark);
        let is_marked = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|word| word == wanted.as_bytes())
        };
        let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        let pids = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
        pids.filter(is_marked).collect()
    }

    /// The command lines of all processes that still run.
    fn processes(&self) -> Vec<String> {
        let line = |pid: Pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        };
        // One that is about to exit has no command line any more.
        self.pids().into_iter().map(line).filter(|line| !line.is_empty()).collect()
    }

    fn count(&self, word: &str) -> usize {
        self.processes().iter().filter(|line| line.contains(word)).count()
    }

    /// Whether `sleep SECONDS` runs, under QEMU or not. A script has the same words.
    fn has_sleep(&self, seconds: &str) -> bool {
        let (native, emulated) = (format!("sleep {seconds}"), format!("/sleep {seconds}"));
        self.processes().iter().any(|line| line.trim() == native || line.trim().ends_with(&emulated))
    }

    fn has_family(&self) -> bool {
        ["600", "601", "602"].iter().all(|seconds| self.has_sleep(seconds))
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.lab.path().join("err")).unwrap_or_default()
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it as soon as a state is reached; `false` if it ended before.
    fn kill_when(&mut self, what: &str, mut is_reached: impl FnMut(&Marked) -> bool) -> bool {
        let mut ended = false;
        wait_until(what, || {
            ended = self.has_ended();
            ended || is_reached(self)
        });
        let _ = self.child.kill();
        self.child.wait().unwrap();
        !ended
    }

    /// No process is left, and after a restore no temporary file.
    fn assert_gone(&self, when: &str) {
        let mut left = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            left = self.processes();
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(left.is_empty(), "killed {when}: {left:#?}");
        let tmp = self.lab.path().join("tmp");
        let names =
            || -> Vec<_> { fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
        let before = names();
        let planned = command_here(&self.lab, &["restore", "--dry-run"]).output().unwrap();
        let planned = String::from_utf8(planned.stdout).unwrap();
        assert_eq!(planned.matches("would remove").count(), before.len(), "{before:?}: {planned}");
        assert_eq!(names(), before);
        let restored = command_here(&self.lab, &["restore"]).output().unwrap();
        let said = String::from_utf8_lossy(&restored.stdout);
        assert!(matches!(restored.status.code(), Some(0 | 4)), "killed {when}: {said}");
        let removed = said.lines().filter(|line| line.starts_with("removed ")).count();
        assert_eq!(removed, before.len(), "{before:?}: {said}");
        assert!(names().is_empty(), "killed {when}: {:?}: {said}", names());
        let beside: Vec<_> = fs::read_dir(self.lab.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains("profile") || name.contains("recount"))
            .collect();
        assert!(beside.is_empty(), "killed {when}: {beside:?}");
    }
}

impl Drop for Marked {
    /// A test that fails leaves nothing either.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The command with the tester's programs and cache, and temporary files of its own.
fn command_here(lab: &Lab, args: &[&str]) -> std::process::Command {
    let mut command = lab.command(args);
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("TMPDIR", lab.path().join("tmp"));
    command
}

/// Whether QEMU's user mode is available; else says why not.
fn has_qemu() -> bool {
    let lab = Lab::new();
    fs::create_dir(lab.path().join("tmp")).unwrap();
    let ran =
        command_here(&lab, &["profile", "--source", "exact", "-o", "p", "--", "/bin/true"]).output().unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    if err.contains("cannot profile with --source exact: QEMU") {
        eprintln!("skipped: qemu-user-not-to-be-had: {}", err.trim());
        return false;
    }
    assert!(ran.status.success(), "{err}");
    true
}

/// Every QEMU has the account of its profile in its command line.
const ACCOUNT: &str = ",account=";

#[test]
fn a_killed_profile_by_exact_takes_every_qemu_with_it() {
    if !has_qemu() {
        return;
    }
    // With the shell, its child in a session of its own, and that one's children.
    let words = ["profile", "--source", "exact", "-o", "p.pagelab", "--", "/bin/sh", "-c", FAMILY];
    let mut marked = Marked::start(Lab::new(), &words);
    let is_killed =
        marked.kill_when("the family", |marked| marked.has_family() && marked.count(ACCOUNT) >= 4);
    assert!(is_killed, "{}", marked.errors());
    marked.assert_gone("with four programs under QEMU");
}

#[test]
fn a_killed_tuning_takes_its_profile_with_it() {
    for source in ["exact", "accessed"] {
        if source == "exact" && !has_qemu() {
            continue;
        }
        let words = ["tune", "--source", source, "-o", "k.pagelab", "--", "/bin/sh", "-c", FAMILY];
        let mut marked = Marked::start(Lab::new(), &words);
        let is_killed = marked.kill_when("the profiled program", Marked::has_family);
        assert!(is_killed, "{source}: {}", marked.errors());
        marked.assert_gone(source);
    }
}

#[test]
fn a_killed_tuning_takes_the_supervisor_of_its_trial_with_it() {
    let mut words =
        vec!["tune", "--source", "accessed", "-n", "2", "--quick", "-o", "k.pagelab", "--", binary()];
    words.extend(SMALL);
    words.extend(["--rounds", "100000"]);
    let mut marked = Marked::start(Lab::new(), &words);
    let is_killed = marked.kill_when("a trial", |marked| marked.count("pagelab supervise") > 0);
    assert!(is_killed, "{}", marked.errors());
    marked.assert_gone("in a trial");
}

#[test]
fn a_killed_run_takes_all_processes_of_its_trial_with_it() {
    let lab = Lab::new();
    // Without a control group no program finds a process that has left its group.
    let is_root = rustix::process::geteuid().is_root();
    let script = if is_root { FAMILY } else { "sleep 600 & sh -c 'sleep 601 & sleep 602' & wait" };
    lab.write(
        "family.toml",
        format!(
            "name = \"family\"\nquestion = \"Are they gone?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
             [[workload]]\nname = \"family\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\n\
             [[variant]]\nname = \"a\"\nthp = \"never-prctl\"\n[[variant]]\nname = \"b\"\nenvironment = {{ B = 1 }}\n"
        ),
    );
    let mut marked = Marked::start(lab, &["run", "family.toml", "-o", "k.pagelab"]);
    let is_killed = marked.kill_when("the family", Marked::has_family);
    assert!(is_killed, "{}", marked.errors());
    marked.assert_gone("in a trial");
}

/// The program continues without its front end, as the documents say, and nothing is left when it ends.
#[test]
fn a_killed_front_end_of_apply_leaves_the_program_alone() {
    let script = "while [ ! -e end ]; do sleep 0.05; done; echo done >>end";
    let mut marked =
        Marked::start(Lab::new(), &["apply", "all", "--summary", "s.json", "--", "/bin/sh", "-c", script]);
    let is_killed = marked.kill_when("the program", |marked| marked.has_sleep("0.05"));
    assert!(is_killed, "{}", marked.errors());
    assert!(marked.count("pagelab supervise") > 0 && marked.count("/bin/sh") > 0);
    fs::write(marked.lab.path().join("end"), "").unwrap();
    marked.assert_gone("while its program runs");
    assert_eq!(fs::read_to_string(marked.lab.path().join("end")).unwrap(), "done\n");
    assert!(marked.lab.path().join("s.json").exists());
}

/// At moments that differ between runs; `PAGELAB_KILLS` sets their number.
#[test]
fn a_kill_at_any_moment_of_a_tuning_leaves_nothing() {
    let kills = std::env::var("PAGELAB_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let mut words =
        vec!["tune", "--source", "accessed", "-n", "2", "--repeats", "2", "-o", "k.pagelab", "--"];
    words.push(binary());
    words.extend(SMALL);
    words.extend(["--rounds", "20000"]);
    for kill in 0..kills {
        let moment = Duration::from_millis(u64::from((clock / 1000 + kill * 1237) % 5000));
        let mut marked = Marked::start(Lab::new(), &words);
        let start = Instant::now();
        // It may have ended by then.
        marked.kill_when("the moment", |_| start.elapsed() >= moment);
        marked.assert_gone(&format!("after {moment:?}"));
    }
}
