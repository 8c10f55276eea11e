//! Tests of memory limits: a swap file for the experiment, files charged to the trial, kills without swap,
//! and the memory need. The machine's own swap is left as it is.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagelab_model::experiment::{Experiment, Trial, TrialEnd};
use pagelab_model::run::Run;
use pagelab_runfile::read_run_file;
use support::Lab;

/// Two swap files at once would each have pages of the other's trials.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder on a disk, if this test may swap to a file in it.
fn disk() -> Option<tempfile::TempDir> {
    if !fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0") {
        eprintln!("skipped: not-root: root alone can swap to a file");
        return None;
    }
    Some(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
}

fn swaps_in(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap();
    text.lines().filter(|line| line.starts_with(dir.to_str().unwrap())).map(str::to_owned).collect()
}

/// Reads 48 MiB again and again in 24.
fn recipe(times: u32, variants: &[(&str, &str)]) -> String {
    let mut text = format!(
        "name = \"short\"\nquestion = \"Where does it go?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
         time_limit = \"5min\"\n[[workload]]\nbuilt_in = \"stream\"\n\
         options = {{ size = \"48M\", times = {times} }}\n"
    );
    for (name, settings) in variants {
        text += &format!("[[variant]]\nname = \"{name}\"\n{settings}\n");
    }
    text
}

fn trial<'e>(of: &'e Experiment, variant: &str) -> &'e Trial {
    let at = of.plan.variants.iter().position(|head| head.name == variant).unwrap();
    of.trials.iter().find(|trial| of.plan.schedule.get(trial.slot).unwrap().variant == at).unwrap()
}

fn value(trial: &Trial, name: &str) -> Option<f64> {
    trial.measures.iter().find(|measure| measure.name == name)?.value.as_ref().ok().copied()
}

/// Reason why no swap file is available here, if none is.
fn refused(run: &Run) -> Option<String> {
    let ends = run.experiment.as_ref()?.trials.iter().map(|trial| &trial.end);
    ends.filter_map(|end| match end {
        TrialEnd::NotStarted(why) => Some(why.clone()),
        _ => None,
    })
    .next()
}

#[test]
fn memory_above_the_limit_is_swapped_to_the_file_of_the_experiment_or_oom_killed() {
    let (_alone, Some(disk)) = (alone(), disk()) else { return };
    let lab = Lab::new();
    let variants = [
        ("large", "memory_limit = \"96M\"\nswap = \"128M\""),
        ("swaps", "memory_limit = \"24M\"\nswap = \"128M\""),
        ("none", "memory_limit = \"24M\"\nswap = \"none\""),
        ("silent", "memory_limit = \"24M\""),
    ];
    lab.write("short.toml", recipe(2, &variants));
    let dir = disk.path().to_str().unwrap();
    let ran = lab.run(&["run", "short.toml", "-o", "short.pagelab", "--swap-dir", dir]);
    let run = read_run_file(&lab.path().join("short.pagelab")).unwrap();
    if let Some(why) = refused(&run) {
        let id = if why.contains("memory_limit") { "no-memory-cgroup" } else { "no-swap-file" };
        return eprintln!("skipped: {id}: {why}");
    }
    assert_eq!(ran.code, Some(5), "two of four die: {}", ran.err);
    assert!(ran.err.contains(&format!("128 MiB of swap in {dir}")), "{}", ran.err);
    let of = run.experiment.as_ref().unwrap();
    let (large, swaps) = (trial(of, "large"), trial(of, "swaps"));
    assert_eq!((&large.end, &swaps.end), (&TrialEnd::Done, &TrialEnd::Done), "{}", swaps.last_output);
    // What the kernel counted: pages went out, and the time went with them.
    assert!(value(swaps, "vmstat.pswpout").unwrap() > 0.0, "{swaps:?}");
    assert!(value(swaps, "memory.peak").unwrap() <= f64::from(24 << 20), "{swaps:?}");
    // The group's own account of it, and the area's, where a look came in time.
    if let (Some(group), Some(areas)) = (value(swaps, "group.swap"), value(swaps, "swap.used")) {
        assert!(group > f64::from(8 << 20) && areas > f64::from(8 << 20), "{group} {areas}");
        assert!(group <= f64::from(128 << 20), "{group}");
    }
    // A file that is there for other variants is not for those that say nothing.
    for name in ["none", "silent"] {
        assert_eq!(trial(of, name).end, TrialEnd::OutOfMemory, "{name}");
    }
    assert!(
        run.events.iter().any(|event| event.kind == "swap" && event.text.contains(dir)),
        "{:?}",
        run.events
    );
    assert_eq!(swaps_in(disk.path()), Vec::<String>::new());
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the file is gone");
}

#[test]
fn after_a_kill_a_restore_takes_the_swap_file_away() {
    let (_alone, Some(disk)) = (alone(), disk()) else { return };
    let lab = Lab::new();
    // Long enough to be killed in whatever this machine is busy with.
    lab.write("long.toml", recipe(1_000_000, &[("swaps", "memory_limit = \"24M\"\nswap = \"128M\"")]));
    let dir = disk.path().to_str().unwrap();
    let mut command = lab.command(&["run", "long.toml", "-o", "long.pagelab", "--swap-dir", dir]);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut wait = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    };
    let used = |line: &String| line.split_ascii_whitespace().nth(3).is_some_and(|used| used != "0");
    if !wait("pages in the swap file", &mut || swaps_in(disk.path()).iter().any(used)) {
        child.wait().unwrap();
        let why = read_run_file(&lab.path().join("long.pagelab")).ok().and_then(|run| refused(&run));
        let id = if why.iter().any(|why| why.contains("memory_limit")) {
            "no-memory-cgroup"
        } else {
            "no-swap-file"
        };
        return eprintln!("skipped: {id}: {}", why.unwrap_or_default());
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The trial is killed with it; its swap is freed, and swapoff has less to do.
    let deadline = Instant::now() + Duration::from_secs(120);
    while !swaps_in(disk.path()).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", swaps_in(disk.path()));
        let ran = lab.run(&["restore"]);
        assert!(matches!(ran.code, Some(0 | 5)), "{}{}", ran.out, ran.err);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the file is gone");
}

#[test]
fn a_file_system_without_swap_support_is_reported_and_the_other_trials_run() {
    let (_alone, Some(_)) = (alone(), disk()) else { return };
    let lab = Lab::new();
    let variants =
        [("free", "environment = { A = 1 }"), ("swaps", "memory_limit = \"24M\"\nswap = \"4000000G\"")];
    lab.write("short.toml", recipe(2, &variants));
    let cases: [(PathBuf, &str); 3] = [
        (PathBuf::from("/dev/shm"), "tmpfs"),
        (PathBuf::from("/none"), "cannot use /none for a swap file"),
        (PathBuf::from(env!("CARGO_TARGET_TMPDIR")), "is reserved by the file system"),
    ];
    for (number, (dir, said)) in cases.iter().enumerate() {
        let name = format!("short{number}.pagelab");
        let ran = lab.run(&["run", "short.toml", "-o", &name, "--swap-dir", dir.to_str().unwrap()]);
        assert_eq!(ran.code, Some(5), "{}", ran.err);
        let run = read_run_file(&lab.path().join(&name)).unwrap();
        let of = run.experiment.as_ref().unwrap();
        assert_eq!(trial(of, "free").end, TrialEnd::Done);
        let TrialEnd::NotStarted(why) = &trial(of, "swaps").end else { panic!("{dir:?}: {of:?}") };
        // A machine without a memory controller says that first.
        if !why.contains("memory_limit") {
            assert!(why.contains(said) && why.contains("--swap-dir"), "{dir:?}: {why}");
        }
        assert!(swaps_in(dir).is_empty());
    }
}

#[test]
fn a_file_that_is_dropped_before_is_charged_to_the_trial() {
    let Some(disk) = disk() else { return };
    let lab = Lab::new();
    let file = disk.path().join("numbers");
    fs::write(&file, vec![7; 64 << 20]).unwrap();
    let name = file.display();
    lab.write(
        "files.toml",
        format!(
            "name = \"files\"\nquestion = \"Whose are they?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\n\
             [[workload]]\nname = \"reads\"\nfiles = [\"{name}\"]\n\
             command = [\"sh\", \"-c\", \"cat {name} > /dev/null; sleep 2\"]\n\
             [[variant]]\nname = \"warm\"\npage_cache = \"warm\"\n\
             [[variant]]\nname = \"cold\"\npage_cache = \"cold\"\n"
        ),
    );
    let mut command = lab.command(&["run", "files.toml", "-o", "files.pagelab"]);
    let output = command.env("PATH", "/usr/bin:/bin").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let run = read_run_file(&lab.path().join("files.pagelab")).unwrap();
    let of = run.experiment.as_ref().unwrap();
    let (warm, cold) = (trial(of, "warm"), trial(of, "cold"));
    let Some(peak) = value(cold, "memory.peak") else {
        return eprintln!("skipped: no-memory-cgroup: {cold:?}");
    };
    if cold.flags.iter().any(|flag| flag.kind == "not applied") {
        return eprintln!("skipped: no-cold-file: {:?}", cold.flags);
    }
    let whole = f64::from(64 << 20);
    assert!(peak >= whole, "its group was charged for all of it: {peak}");
    assert!(value(warm, "memory.peak").unwrap() < whole, "somebody else was: {warm:?}");
    if let (Some(cold), Some(warm)) = (value(cold, "group.file"), value(warm, "group.file")) {
        assert!(cold > whole * 0.9 && warm < whole * 0.5, "memory.stat says so: {cold} {warm}");
    }
}

#[test]
fn plans_name_the_swap_and_reports_accept_another_loss() {
    let lab = Lab::new();
    let plan = lab.run(&["run", "memory-size", "--dry-run"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    let words = plan.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("may swap up to 3G to a file created for the experiment"), "{}", plan.out);
    assert!(words.contains("swap is disabled for the trial's cgroup"), "{}", plan.out);
    for bad in ["0", "-5", "101", "much"] {
        let ran = lab.run(&["report", "--loss", bad, "x.pagelab"]);
        assert_eq!(ran.code, Some(2), "{bad}: {}", ran.err);
        assert!(ran.err.contains("expected a share") || bad == "-5", "{}", ran.err);
    }
    let resumed = lab.run(&["run", "--resume", "x.pagelab", "--swap-dir", "/tmp"]);
    assert_eq!(resumed.code, Some(2), "where it swaps to stands in the file: {}", resumed.err);
}
