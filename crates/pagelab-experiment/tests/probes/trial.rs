//! One trial of a program, watched.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelab_experiment::group::{Group, Made};
use pagelab_experiment::probe::{Ended, Found, Rusage, Target, Wanted, prepare};
use pagelab_host::guard::{Guard, JournalDir, Options, Site, Tree, Watched};
use pagelab_model::Reading;
use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::wait::wait4;

use crate::child;

/// What a trial came to.
pub struct Outcome {
    pub found: Found,
    pub status: ExitStatus,
    pub rusage: Rusage,
    /// Its standard error.
    pub said: String,
}

impl Outcome {
    pub fn reading(&self, name: &str) -> Reading<f64> {
        let mut of = self.found.measures.iter().filter(|measure| measure.name == name);
        let value = of.next().unwrap_or_else(|| panic!("no measure {name}")).value.clone();
        assert!(of.next().is_none(), "{name} stands twice");
        value
    }

    pub fn value(&self, name: &str) -> f64 {
        self.reading(name).unwrap_or_else(|absence| panic!("{name}: {absence:?}"))
    }

    /// The number behind `child: NAME` in what it said.
    pub fn told(&self, name: &str) -> f64 {
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

pub fn run(program: &[String], wanted: &Wanted, group: Option<&Group>) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", r#"read line; exec "$0" "$@""#]).args(program);
    watched(command, wanted, group)
}

/// The same of a command that may have no gate; then counters of perf see nothing of it.
pub fn watched(mut command: Command, wanted: &Wanted, group: Option<&Group>) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(group) = group {
        group.join(&mut command).unwrap();
    }
    // Looks at every tick: this machine may be busy with other tests, and what looks cost is not what is
    // tested.
    let wanted = &Wanted { share_permille: 1000, ..wanted.clone() };
    let mut watching = prepare(wanted, group);
    let mut child = command.spawn().unwrap();
    let target = Target { group, limited: None, pid: child.id() as i32 };
    watching.begin(&target);
    let began_ns = monotonic_ns();
    let mut stdin = child.stdin.take();
    stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let is_ready = ready(child.stdout.take().unwrap());
    // Looks until the program was ready; then there are three more, and it may end.
    let mut looks = None;
    let (status, rusage) = loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(ended) = wait4(child.id(), true).unwrap() {
            break ended;
        }
        watching.tick(&target);
        if looks.is_none() && is_ready.load(Ordering::Acquire) {
            looks = Some(watching.looks());
        }
        let is_late = monotonic_ns() - began_ns > LATE_NS;
        let is_looked_at = wanted.huge || wanted.page_tables;
        let has_seen = |before| !is_looked_at || watching.looks() >= before + 3;
        if is_late || looks.is_some_and(has_seen) {
            drop(stdin.take());
        }
    };
    let wall_ns = monotonic_ns() - began_ns;
    let found = watching.end(&target, &Ended { wall_ns, rusage, orphans: 0 });
    let mut said = String::new();
    // Whoever it left behind may hold the other end.
    if status.success() || status.signal().is_some() {
        let mut stderr = child.stderr.take().unwrap();
        if let Some(group) = group {
            group.kill_all(Duration::from_secs(5)).unwrap();
        }
        stderr.read_to_string(&mut said).unwrap();
    }
    Outcome { found, status, rusage, said }
}

/// A trial that is not ready by then goes on all the same.
const LATE_NS: u64 = 20_000_000_000;

/// Whether the program has said so.
fn ready(stdout: ChildStdout) -> Arc<AtomicBool> {
    let is_ready = Arc::new(AtomicBool::new(false));
    let told = is_ready.clone();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if lines.any(|line| line.contains(child::READY)) {
            told.store(true, Ordering::Release);
        }
        lines.for_each(drop);
    });
    is_ready
}

/// A guard of this test's own, and a group under it; `None` where that cannot be had, which is said.
pub struct Own {
    pub group: Group,
    pub guard: Guard,
    _journals: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Groups of one process have one name each, and trials at the same time would see each other.
static ALONE: Mutex<()> = Mutex::new(());

pub fn group(label: &str) -> Option<Own> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not-root: control groups are made by root");
        return None;
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let journals = tempfile::tempdir().unwrap();
    let site = Site::new(Arc::new(Tree::live().unwrap()), JournalDir::at(&journals.path().join("journals")));
    let guard = Guard::begin(&site.unwrap(), Watched::left_to_restore(), Options::default()).unwrap();
    match Group::make(&guard, label) {
        Ok(Made { group, .. }) if group.usage().is_ok() && group.cpu().is_ok() => {
            Some(Own { group, guard, _journals: journals, _alone: alone })
        }
        refused => {
            println!("skipped: no-memory-cgroup: {refused:?}");
            None
        }
    }
}
