//! Tests of probes and version 2 control groups on real kernels in small guests, in which this binary is the
//! observer and the observed.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)] // a test may fail where it stands
#![allow(clippy::zombie_processes, reason = "children are waited for by wait4, which is what is tested")]

#[path = "../../pagelab-experiment/tests/probes/child.rs"]
mod child;
#[path = "guest/trial.rs"]
#[allow(dead_code)] // some of it is for other tests
mod guest;
#[path = "../../pagelab-experiment/tests/probes/trial.rs"]
#[allow(dead_code)] // some of it is for other tests
mod trial;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use child::pmd;
use pagelab_experiment::probe::ProbeSelection;
use pagelab_guest::message::StepExit;
use pagelab_model::Bytes;
use pagelab_model::size;
use trial::{Outcome, OwnCgroup};

/// Directory in which the agent stores its files.
const TRIAL: &str = "/data/trial";

#[test]
fn version_2_limits_counts_and_ends_on_6_12() {
    in_a_guest("6.12");
}

#[test]
fn version_2_limits_counts_and_ends_on_6_1() {
    in_a_guest("6.1");
}

fn in_a_guest(series: &str) {
    // The guest starts programs as children of pagelab's commands; this one holds next to nothing.
    let words = format!(
        "fragment random --size 1M --chunk 1M --reserve 32M -- {TRIAL} in_the_guest --exact --ignored --nocapture"
    );
    let Some(mut plan) = guest::plan(series, vec![guest::pagelab(&words)]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("trial");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    plan.input_files = vec![copy];
    // Below 512 MiB of free memory at boot the kernel switches huge pages off (mm/huge_memory.c,
    // `hugepage_init`).
    plan.config.memory = size::parse("768M").unwrap();
    let turn = guest::lock_guests();
    let ended = guest::finished(&plan);
    drop(turn);
    let step = &ended.steps[0];
    let (stdout, stderr) = (String::from_utf8_lossy(&step.stdout), String::from_utf8_lossy(&step.stderr));
    assert_eq!(step.end, StepExit::Code(0), "{stdout}\n{stderr}");
    stdout
        .lines()
        .filter(|line| line.starts_with("seen: "))
        .for_each(|line| eprintln!("guest: {series} {line}"));
    assert!(stdout.contains("seen: all"), "{stdout}");
}

#[test]
#[ignore = "runs-in-a-guest: called in the guest of the tests above"]
fn in_the_guest() {
    if std::process::id() == 1 || !fs::exists("/job").unwrap() {
        return;
    }
    // `fragment` has huge pages switched off, which its children inherit.
    pagelab_sys::thp_disable::set_thp_disable(false).unwrap();
    let own = trial::group("probes").expect("root in a guest has a group");
    let folders: Vec<&str> = own.group.dir_paths().collect();
    assert_eq!(folders.len(), 1, "version 2 has one folder for all: {folders:?}");
    faults_are_counted(&own);
    huge_pages_are_reported(&own);
    everybody_is_ended(&own);
    the_limit_kills(&own);
    println!("seen: all");
}

/// A task of `child.rs`, without a gate: there is no shell in the guest.
fn run(task: &str, own: &OwnCgroup) -> Outcome {
    trial::run_watched(
        command(task),
        &ProbeSelection { hardware: false, ..ProbeSelection::default() },
        Some(&own.group),
    )
}

fn command(task: &str) -> Command {
    let mut command = Command::new(TRIAL);
    command.args(["--exact", "child::child", "--nocapture"]).env(child::TASK, task);
    command
}

fn faults_are_counted(own: &OwnCgroup) {
    let outcome = run("fault 5000", own);
    assert!(outcome.status.success(), "{}", outcome.said);
    let page = rustix::param::page_size() as f64;
    for (name, least) in [
        ("group.pgfault", 5000.0),
        ("rusage.minflt", 5000.0),
        ("memory.peak", 5000.0 * page),
        ("page_tables", 5000.0 * 8.0),
        ("cpu", 1e6),
        ("cpu.user", 0.0),
    ] {
        assert!(outcome.value(name) >= least, "{name}: {}", outcome.value(name));
    }
    let source = |name: &str| {
        let measure = outcome.found.measures.iter().find(|measure| measure.name == name);
        measure.unwrap().source.clone()
    };
    assert!(source("page_tables").starts_with("pagetables of memory.stat"), "{}", source("page_tables"));
    assert_eq!(
        (source("cpu"), source("memory.peak")),
        ("cpu.stat of its cgroup".into(), "memory.peak of its cgroup".into())
    );
    println!("seen: peak {} bytes, cpu {} ns", outcome.value("memory.peak"), outcome.value("cpu"));
    // A kernel may be built with pressure and boot without it.
    println!("seen: pressure of the group {:?}", outcome.reading("pressure.group.memory.some"));
}

fn huge_pages_are_reported(own: &OwnCgroup) {
    let outcome = run("huge 6", own);
    assert!(outcome.status.success(), "{}", outcome.said);
    assert_eq!(outcome.child_value("anon"), (6 * pmd()) as f64);
    assert_eq!(outcome.value("huge.anon"), outcome.child_value("anon"));
    let outcome = run("zero 5", own);
    assert!(outcome.status.success(), "{}", outcome.said);
    // Before 6.17 its frames are looked up in kpageflags, before 6.7 those of all places for huge pages.
    assert_eq!(outcome.value("huge.zero"), (5 * pmd()) as f64);
    assert_eq!(outcome.value("huge.all"), 0.0);
    println!("seen: huge zero page {:?}", outcome.reading("huge.zero"));
}

fn everybody_is_ended(own: &OwnCgroup) {
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut command = command("fault 10");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        own.group.join_before_exec(&mut command).unwrap();
        held.push(command.spawn().unwrap());
    }
    assert_eq!(own.group.list_processes().unwrap().len(), 3);
    let ended = own.group.kill_all(Duration::from_secs(20)).unwrap();
    assert_eq!((ended.killed, ended.remaining), (3, 0));
    for mut child in held {
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

fn the_limit_kills(own: &OwnCgroup) {
    let limit = Bytes(24 << 20);
    assert_eq!(own.group.limit_memory(limit), Ok(limit));
    let swap = own.group.limit_swap(Bytes(0));
    assert!(swap.as_ref().is_ok_and(|swap| swap.0 == 0) || swap.is_err(), "{swap:?}");
    let outcome = run(&format!("fault {}", (96 << 20) / rustix::param::page_size()), own);
    assert_eq!(outcome.status.signal(), Some(9), "{}", outcome.said);
    assert_eq!(outcome.value("group.oom_kill"), 1.0);
    assert!(outcome.value("group.limit_hits") > 0.0);
    println!("seen: killed at its limit, hit {} times", outcome.value("group.limit_hits"));
}
