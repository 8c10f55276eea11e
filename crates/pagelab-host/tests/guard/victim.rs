//! Second process of the guard tests: it changes settings, and is stopped, killed or signalled.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::guard::{self, Guard, GuardOptions, JournalReport, Knob, RestoreReport, SignalWatch};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::machine::{CGROUPS, ENABLED, INSTANCES, Machine, POOL, SWAP_DIR, Stop, site_at};
use pagelab_model::Bytes;

/// What a victim does. Each is a name on its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Changes a setting, and then undoes it.
    Thp,
    /// The same with a pool of four pages more.
    Pool,
    /// The same with a cgroup, in which it puts itself.
    Cgroup,
    /// Mounts debugfs and unmounts it.
    Debugfs,
    /// Creates a swap file of 1 MiB and removes it.
    Swap,
    /// Creates a trace instance and removes it.
    Trace,
    /// Restores what another one left.
    Restore,
    /// Changes a setting, says that it is ready, and waits for a signal.
    Wait,
    /// Changes and undoes a setting again and again, alone each time.
    Contend,
}

/// Its name, the machine it works on, and where it stops itself.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub task: Task,
    /// The base of a fake machine; `None` is this machine.
    pub base: Option<&'a Path>,
    pub journals: &'a Path,
    pub stop: Stop,
}

const TASKS: [Task; 9] = [
    Task::Thp,
    Task::Pool,
    Task::Cgroup,
    Task::Debugfs,
    Task::Swap,
    Task::Trace,
    Task::Restore,
    Task::Wait,
    Task::Contend,
];
pub const DEBUGFS: &str = "/sys/kernel/debug";
const PATHS: [&str; 7] =
    [ENABLED, POOL, "/sys/fs/cgroup/memory", "/sys/fs/cgroup", DEBUGFS, SWAP_DIR, INSTANCES];

impl Plan<'_> {
    /// A process that carries the plan out. It ends with its parent's pipe at the latest.
    pub fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "victim::victim", "--nocapture", "--test-threads=1"]);
        command.env("PAGELAB_VICTIM_TASK", format!("{:?}", self.task));
        command.env("PAGELAB_VICTIM_JOURNALS", self.journals);
        command.env("PAGELAB_VICTIM_BASE", self.base.unwrap_or(Path::new("")));
        let (when, path, nth) = match self.stop {
            Stop::Never => ("never", "", 0),
            Stop::Before(path, nth) => ("before", path, nth),
            Stop::After(path, nth) => ("after", path, nth),
        };
        command.env("PAGELAB_VICTIM_STOP", format!("{when} {nth} {path}"));
        command.stdout(Stdio::null()).stdin(Stdio::null());
        pagelab_sys::spawn::reset_signals(&mut command);
        command
    }

    pub fn spawn(&self) -> Victim {
        Victim { child: self.command().spawn().unwrap() }
    }

    /// Runs it until it stops itself.
    pub fn run_to_stop(&self) -> Victim {
        let victim = self.spawn();
        let (_, status) =
            rustix::process::waitpid(Some(victim.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the victim of {self:?} ended without stopping: {status:?}");
        victim
    }

    /// Runs it until it stops itself, and kills it there. Returns its process number.
    pub fn run_to_kill(&self) -> u32 {
        let mut victim = self.run_to_stop();
        let pid = victim.child.id();
        victim.kill();
        pid
    }
}

/// A running victim. It never outlives its test.
pub struct Victim {
    pub child: Child,
}

impl Victim {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a condition, at most ten seconds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// All outcomes of a restore.
pub fn outcomes(report: &RestoreReport) -> Vec<guard::ChangeOutcome> {
    report.journals.iter().flat_map(|journal: &JournalReport| journal.outcomes.clone()).collect()
}

/// The victim itself. Run as a test, without a task, it does nothing.
#[test]
fn victim() {
    let Ok(task) = std::env::var("PAGELAB_VICTIM_TASK") else { return };
    let task = TASKS.into_iter().find(|t| format!("{t:?}") == task).unwrap();
    let base = PathBuf::from(std::env::var_os("PAGELAB_VICTIM_BASE").unwrap());
    let journals = PathBuf::from(std::env::var_os("PAGELAB_VICTIM_JOURNALS").unwrap());
    let mut machine = match base.as_os_str().is_empty() {
        true => Machine::live(),
        false => Machine::fake(&base),
    };
    machine.stop = parse_stop(&std::env::var("PAGELAB_VICTIM_STOP").unwrap());
    let site = site_at(machine, &journals);
    if task == Task::Restore {
        guard::restore(&site, false).unwrap();
        return;
    }
    let watched = match task {
        Task::Wait => SignalWatch::install(Box::new(|code, _| end(code))).unwrap(),
        _ => SignalWatch::without_handler(),
    };
    let options = GuardOptions { wait_timeout: Duration::from_secs(60), dry_run: false };
    let begin = || Guard::new(&site, watched, options).unwrap();
    let enabled = Knob::thp_enabled();
    let guard = begin();
    match task {
        Task::Thp => drop(guard.set_knob(&enabled, thp_target(&base)).unwrap()),
        Task::Pool => {
            let pool = Knob::from_path(POOL).unwrap();
            let now: u64 = fs::read_to_string(base.join(&POOL[1..]))
                .or_else(|_| fs::read_to_string(POOL))
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            guard.set_knob(&pool, &(now + 4).to_string()).unwrap();
        }
        Task::Cgroup => {
            let parent = guard.cgroup_parent("memory").unwrap();
            let cgroup = guard.create_cgroup(&parent, "test").unwrap();
            let procs = format!("{cgroup}/cgroup.procs");
            if base.as_os_str().is_empty() {
                fs::write(procs, std::process::id().to_string()).unwrap();
            }
        }
        Task::Swap => {
            let made = guard.swap_file(SWAP_DIR, Bytes(1 << 20)).unwrap();
            assert_eq!(made.size, Bytes((1 << 20) - (4 << 10)), "all but the header's page: {made:?}");
        }
        Task::Trace => drop(guard.trace_instance().unwrap()),
        Task::Debugfs => assert!(guard.mount_debugfs().unwrap()),
        Task::Wait => {
            guard.set_knob(&enabled, "never").unwrap();
            fs::write(journals.with_extension("ready"), "").unwrap();
            // Until the test ends it.
            loop {
                thread::park();
            }
        }
        Task::Contend => {
            drop(guard);
            (0..20).for_each(|_| contend(begin(), &base, &journals));
            return;
        }
        Task::Restore => {}
    }
    drop(guard);
    assert!(!journals.exists(), "this victim was to be alone");
}

/// No other process may act between its change and its undoing.
fn contend(guard: Guard, base: &Path, journals: &Path) {
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    let alone = journals.with_extension("alone");
    fs::File::options().write(true).create_new(true).open(&alone).unwrap();
    let enabled = fs::read_to_string(base.join(&ENABLED[1..])).unwrap();
    assert!(enabled.contains("[never]"), "{enabled}");
    fs::remove_file(alone).unwrap();
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].original_value.as_deref(), Some("madvise"), "{outcomes:?}");
}

#[allow(clippy::exit, reason = "the victim is the binary here: it ends as one after a signal")]
fn end(code: i32) {
    std::process::exit(code)
}

/// A mode that is not the one in force.
pub fn thp_target(base: &Path) -> &'static str {
    let base = if base.as_os_str().is_empty() { Path::new("/") } else { base };
    let now = fs::read_to_string(base.join(&ENABLED[1..])).unwrap();
    if now.contains("[never]") { "madvise" } else { "never" }
}

fn parse_stop(text: &str) -> Stop {
    let mut words = text.splitn(3, ' ');
    let (when, nth) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let wanted = words.next().unwrap();
    let path = PATHS.into_iter().find(|path| *path == wanted).unwrap_or(CGROUPS);
    match when {
        "before" => Stop::Before(path, nth),
        "after" => Stop::After(path, nth),
        _ => Stop::Never,
    }
}
