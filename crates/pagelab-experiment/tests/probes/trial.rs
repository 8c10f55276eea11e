//! One observed trial of a program.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelab_experiment::cgroup::TrialCgroup;
use pagelab_experiment::probe::{
    ProbeReadings, ProbeSelection, ProbeTarget, Rusage, TargetExit, prepare_probes,
};
use pagelab_host::guard::{FileKernel, Guard, GuardOptions, GuardSite, JournalDir, SignalWatch};
use pagelab_model::Reading;
use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::wait::wait4;

use crate::child;

/// Result of a trial.
pub struct Outcome {
    pub found: ProbeReadings,
    pub status: ExitStatus,
    pub rusage: Rusage,
    /// Its standard error.
    pub said: String,
}

impl Outcome {
    pub fn reading(&self, name: &str) -> Reading<f64> {
        let mut of = self.found.measures.iter().filter(|measure| measure.name == name);
        let value = of.next().unwrap_or_else(|| panic!("no measure {name}")).value.clone();
        assert!(of.next().is_none(), "{name} is given twice");
        value
    }

    pub fn value(&self, name: &str) -> f64 {
        self.reading(name).unwrap_or_else(|absence| panic!("{name}: {absence:?}"))
    }

    /// The number after `child: NAME` in its output.
    pub fn child_value(&self, name: &str) -> f64 {
        let line = self.said.lines().find_map(|line| line.strip_prefix(&format!("child: {name} ")));
        line.unwrap_or_else(|| panic!("{}", self.said)).parse().unwrap()
    }
}

/// The task of `child.rs` as a command behind a gate: `sh` waits for a line and then becomes the program.
pub fn task(task: &str) -> Vec<String> {
    let own = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let words = ["env", &format!("{}={task}", child::TASK), &own, "--exact", "child::child", "--nocapture"];
    words.map(str::to_owned).to_vec()
}

pub fn run(program: &[String], wanted: &ProbeSelection, group: Option<&TrialCgroup>) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", r#"read line; exec "$0" "$@""#]).args(program);
    run_watched(command, wanted, group)
}

/// The same of a command that may have no gate; then counters of perf see nothing of it.
pub fn run_watched(mut command: Command, wanted: &ProbeSelection, group: Option<&TrialCgroup>) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(group) = group {
        group.join_before_exec(&mut command).unwrap();
    }
    // Scans at every tick: this machine may be busy with other tests, and what scans cost is not what is
    // tested.
    let wanted = &ProbeSelection { share_permille: 1000, ..wanted.clone() };
    let mut watching = prepare_probes(wanted);
    let mut child = command.spawn().unwrap();
    let target = ProbeTarget { cgroup: group, limited_cgroup: None, pid: child.id() as i32 };
    watching.arm(&target);
    let began_ns = monotonic_ns();
    let mut stdin = child.stdin.take();
    stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let is_ready = watch_ready(child.stdout.take().unwrap());
    // Looks until the program was ready; then there are three more, and it may end.
    let mut scans = None;
    let (status, rusage) = loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(ended) = wait4(child.id(), true).unwrap() {
            break ended;
        }
        watching.tick(&target);
        if scans.is_none() && is_ready.load(Ordering::Acquire) {
            scans = Some(watching.scan_count());
        }
        let is_late = monotonic_ns() - began_ns > LATE_NS;
        let is_scanned = wanted.huge || wanted.page_tables;
        let has_seen = |before| !is_scanned || watching.scan_count() >= before + 3;
        if is_late || scans.is_some_and(has_seen) {
            drop(stdin.take());
        }
    };
    let wall_ns = monotonic_ns() - began_ns;
    let found = watching.finish(&target, &TargetExit { wall_ns, rusage, orphan_count: 0 });
    let mut said = String::new();
    // A process that it left running may hold the other end.
    if status.success() || status.signal().is_some() {
        let mut stderr = child.stderr.take().unwrap();
        if let Some(group) = group {
            group.kill_all(Duration::from_secs(5)).unwrap();
        }
        stderr.read_to_string(&mut said).unwrap();
    }
    Outcome { found, status, rusage, said }
}

/// A trial that is not ready by then continues.
const LATE_NS: u64 = 20_000_000_000;

/// Whether the program has printed that it is ready.
fn watch_ready(stdout: ChildStdout) -> Arc<AtomicBool> {
    let is_ready = Arc::new(AtomicBool::new(false));
    let flag = is_ready.clone();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if lines.any(|line| line.contains(child::READY)) {
            flag.store(true, Ordering::Release);
        }
        lines.for_each(drop);
    });
    is_ready
}

/// A guard of this test's own, and a group under it; `None` if it is not available; the reason is printed.
pub struct OwnCgroup {
    pub group: TrialCgroup,
    pub guard: Guard,
    _journals: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Groups of one process have one name each, and trials at the same time would see each other.
static ALONE: Mutex<()> = Mutex::new(());

pub fn group(label: &str) -> Option<OwnCgroup> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not-root: control groups are made by root");
        return None;
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let journals = tempfile::tempdir().unwrap();
    let site = GuardSite::new(
        Arc::new(FileKernel::live().unwrap()),
        JournalDir::from_path(&journals.path().join("journals")),
    );
    let guard = Guard::new(&site.unwrap(), SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    match TrialCgroup::create(&guard, label) {
        Ok(group) if group.read_memory_usage().is_ok() && group.read_cpu_time().is_ok() => {
            Some(OwnCgroup { group, guard, _journals: journals, _alone: alone })
        }
        refused => {
            println!("skipped: no-memory-cgroup: {refused:?}");
            None
        }
    }
}
