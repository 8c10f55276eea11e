//! Starting a trial's first process, holding it at its gate, and seeing it through to its end.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::spawn;
use pagelab_sys::wait::{wait4, wait4_group};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group};

use super::output::Output;
use super::settings::Settings;
use super::supervised::{Summary, Supervised};
use super::{Bench, Cut, Over, result};
use crate::gate::{NOTE, READY};
use crate::group::Group;
use crate::own;
use crate::probe::{self, Found, Target, Watching};
use crate::recipe::{HogKind, Thp};
use crate::resolve::PAGELAB;

/// Between two looks at a running trial.
const TICK: Duration = Duration::from_millis(100);
/// How long the way to the gate may take.
const GATE: Duration = Duration::from_secs(60);
/// How long processes may outlive the first one: a pipeline's ends come in any order.
const GRACE: Duration = Duration::from_millis(100);
/// How long a supervisor may take to end after it has told of the program's end.
const GRACE_OF_SUPERVISOR: Duration = Duration::from_secs(1);
/// How long killed processes may take to be gone.
const GONE: Duration = Duration::from_secs(10);
/// Where the kernel cannot tell of an end through a descriptor (before 5.3), it is looked for this often.
const LOOK: Duration = Duration::from_millis(2);

/// A process at its gate.
pub(super) struct Launched {
    child: Child,
    out: ChildStdout,
    err: ChildStderr,
    output: Output,
    supervised: Option<Supervised>,
    /// Settings that its own side could not make.
    pub not_applied: Vec<String>,
    is_gone: bool,
}

/// What is known once it is over.
pub(super) struct Watched {
    pub over: Over,
    pub output: Output,
    pub found: Found,
    /// What its supervisor said, where it has one.
    pub summary: Option<Result<Summary, String>>,
}

impl Launched {
    /// Starts it and waits until it stands at its gate, in its control group, with its settings.
    pub fn at_gate(
        bench: &Bench<'_>,
        workload: usize,
        variant: usize,
        settings: &Settings,
    ) -> Result<Launched, String> {
        let recipe = &bench.resolved.recipe;
        let (of, under) = (&recipe.workloads[workload], &recipe.variants[variant]);
        let mut command = own::gate();
        if let Some(thp @ (Thp::NeverPrctl | Thp::AdvisedOnly)) = under.thp {
            command.args(["--thp", thp.word()]);
        }
        if let Some(cpu) = settings.cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        if under.hog.is_some_and(|hog| hog.leaves.is_some()) {
            // Its competitor shares its limit and is larger: without it nothing would be scarce any more.
            command.arg("--killed-first");
        }
        command.arg("--");
        let mut words = bench.resolved.command(workload, variant);
        let supervised = match under.plan.is_some() {
            true => Some(Supervised::tell(&mut words)?),
            false => None,
        };
        if let Some(hog) = under.hog.filter(|hog| hog.how == HogKind::Thread) {
            command.args([PAGELAB, "gate", "--hog-thread", &hog.size.0.to_string(), "--"]);
        }
        command.args(words);
        let environment = of.environment.iter().chain(&under.environment);
        command.envs(environment.map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(group) = &settings.group {
            group
                .join(&mut command)
                .map_err(|error| format!("its control group cannot be joined: {error}"))?;
        }
        spawn::die_with_parent(&mut command);
        let mut child = command.spawn().map_err(|error| format!("a process cannot be started: {error}"))?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("a process has no output".to_owned());
        };
        let output = Output::new(result::metrics(&of.runs));
        let not_applied = Vec::new();
        let mut launched = Launched { child, out, err, output, supervised, not_applied, is_gone: false };
        launched.wait_for_gate(bench.stop)?;
        Ok(launched)
    }

    fn wait_for_gate(&mut self, stop: &dyn Fn() -> Option<i32>) -> Result<(), String> {
        for stream in [self.out.as_fd(), self.err.as_fd()] {
            own::do_not_block(stream).map_err(|errno| format!("its output cannot be watched: {errno}"))?;
        }
        let (until, mut said) = (Instant::now() + GATE, Vec::new());
        let ready = format!("{READY}\n");
        while !said.ends_with(ready.as_bytes()) {
            let mut piece = [0; 1024];
            match self.out.read(&mut piece) {
                Ok(0) => {
                    self.output.take(&mut self.out, &mut self.err);
                    return Err(format!("its first process ended before its gate: {}", self.output.last()));
                }
                Ok(count) => said.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                    let _ = poll(&mut [PollFd::new(&self.out, PollFlags::IN)], Some(&wait));
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("its gate cannot be watched: {error}")),
            }
            if stop().is_some() {
                return Err("stopped before it began".to_owned());
            }
            if Instant::now() >= until {
                return Err(format!("it did not come to its gate within {} s", GATE.as_secs()));
            }
        }
        let text = String::from_utf8_lossy(&said);
        self.not_applied =
            text.lines().filter_map(|line| line.strip_prefix(NOTE)).map(str::to_owned).collect();
        Ok(())
    }

    /// Opens the gate and sees it through.
    pub fn run(
        mut self,
        mut watching: Watching,
        settings: &mut Settings,
        limit: Duration,
        stop: &dyn Fn() -> Option<i32>,
    ) -> Watched {
        let pid = self.child.id();
        let group = settings.group.clone();
        let shared = settings.shared.clone();
        let first = i32::try_from(pid).unwrap_or(0);
        let target = Target { group: group.as_ref(), limited: shared.as_ref(), pid: first };
        let handle = Pid::from_raw(target.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let kills_before = kills(group.as_ref());
        watching.begin(&target);
        let began_ns = monotonic_ns();
        // One that cannot be told has ended, which is found below.
        let opened = self.child.stdin.take().map(|mut gate| gate.write_all(b"."));
        drop(opened);
        let (until, mut tick, mut cut) = (Instant::now() + limit, Instant::now() + TICK, None);
        let (status, rusage) = loop {
            self.output.take(&mut self.out, &mut self.err);
            match wait4(pid, true) {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                // Somebody else waited for our child: nothing is known of its end.
                Err(_) => break (ExitStatus::from_raw(0x7f00), probe::Rusage::default()),
            }
            let now = Instant::now();
            if cut.is_none() && (stop().is_some() || now >= until) {
                cut = Some(if stop().is_some() { Cut::Stopped } else { Cut::TooLong });
                self.kill(group.as_ref());
            }
            if now >= tick {
                watching.tick(&target);
                settings.tick();
                tick = Instant::now() + TICK;
            }
            self.rest(handle.as_ref(), tick.saturating_duration_since(Instant::now()));
        };
        let wall_ns = monotonic_ns().saturating_sub(began_ns);
        self.is_gone = true;
        let (left_behind, orphans) = self.left_behind(group.as_ref(), cut);
        let rusage = orphans.iter().fold(rusage, |sum, one| sum.and(one));
        let ended = probe::Ended { wall_ns, rusage, orphans: orphans.len() as u64 };
        self.output.take(&mut self.out, &mut self.err);
        let oom_kills = kills(group.as_ref()).saturating_sub(kills_before);
        let found = watching.end(&target, &ended);
        // The streams of processes that were left and could not be ended are nobody's any more.
        let output = std::mem::replace(&mut self.output, Output::new(Vec::new()));
        let summary = self.supervised.take().map(|supervised| supervised.read());
        Watched { summary, over: Over { status, cut, ended, left_behind, oom_kills }, output, found }
    }

    /// Waits until there is something to do.
    fn rest(&self, handle: Option<&OwnedFd>, most: Duration) {
        let mut fds = Vec::with_capacity(3);
        let most = if handle.is_some() { most } else { most.min(LOOK) };
        fds.extend(handle.map(|handle| PollFd::new(handle, PollFlags::IN)));
        if !self.output.out.is_over {
            fds.push(PollFd::new(&self.out, PollFlags::IN));
        }
        if !self.output.err.is_over {
            fds.push(PollFd::new(&self.err, PollFlags::IN));
        }
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        // A signal ends it early, and is looked for by the caller.
        let _ = poll(&mut fds, Some(&wait));
    }

    fn kill(&self, group: Option<&Group>) {
        if let Some(pid) = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if let Some(group) = group {
            let _ = group.kill_all(Duration::ZERO);
        }
    }

    /// Ends what outlived the first process: how many they were, and what those of them used that came to us
    /// as the subreaper. A supervisor outlives its front end by a moment, always.
    fn left_behind(&self, group: Option<&Group>, cut: Option<Cut>) -> (u64, Vec<probe::Rusage>) {
        let grace = match (cut, &self.supervised) {
            (Some(_), _) => Duration::ZERO,
            (None, Some(_)) => GRACE_OF_SUPERVISOR,
            (None, None) => GRACE,
        };
        let until = Instant::now() + grace;
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0));
        let mut orphans = Vec::new();
        let mut count = || {
            // A zombie of the process group would answer for it as long as nobody waits for it.
            let is_one_left = loop {
                match wait4_group(self.child.id()) {
                    Ok(Some((_, rusage))) => orphans.push(rusage),
                    other => break other.is_ok(),
                }
            };
            let listed = match group.map(Group::processes) {
                Some(Ok(processes)) => processes.len() as u64,
                // Without a group only its own process group can be asked, which who forks away may leave.
                _ => u64::from(pid.is_some_and(|pid| test_kill_process_group(pid).is_ok())),
            };
            // Who is about to end is in no control group any more, and cannot be waited for yet.
            listed.max(u64::from(is_one_left))
        };
        let mut left = count();
        while left > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            left = count();
        }
        if left > 0 {
            self.kill(group);
            if let Some(group) = group {
                let _ = group.kill_all(GONE);
            }
            count();
        }
        (left, orphans)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !self.is_gone {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn kills(group: Option<&Group>) -> u64 {
    group.and_then(|group| group.limit_events().ok()?.kills).unwrap_or(0)
}
