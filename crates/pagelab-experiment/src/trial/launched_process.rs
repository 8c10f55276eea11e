//! Start of a trial's first process, its gate, and its supervision to the end.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pagelab_host::orphan_keeper::{OrphanKeeper, OrphanScope};
use pagelab_model::experiment::TrialEnd;
use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::spawn;
use pagelab_sys::wait::{wait4, wait4_group};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group};

use super::output::TrialOutput;
use super::settings::TrialSettings;
use super::supervisor_summary::{SummaryDir, SummaryError, SupervisorSummary};
use super::{TrialContext, TrialExit};
use crate::cgroup::TrialCgroup;
use crate::gate::{NOT_APPLIED, PAGELAB, READY};
use crate::probe::{ArmedProbes, ProbeReadings, ProbeTarget};
use crate::recipe::{HogKind, ThpMode};
use crate::trial::output;
use crate::{gate, probe};

/// Interval between two readings of a running trial.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
const GATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that processes may outlive the first one: the parts of a pipeline end in any order.
const GRACE_PERIOD: Duration = Duration::from_millis(100);
/// Time that a supervisor may take to exit after it has reported the program's end.
const SUPERVISOR_GRACE_PERIOD: Duration = Duration::from_secs(1);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval if the kernel cannot report an exit through a descriptor (before 5.3).
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(super) struct GatedProcess {
    child: Child,
    out: ChildStdout,
    err: ChildStderr,
    output: TrialOutput,
    supervised: Option<SummaryDir>,
    /// Settings that its own side could not apply.
    pub not_applied: Vec<String>,
    is_reaped: bool,
    /// Kills all processes of the trial if this process is killed; the last field, so that they end first.
    _keeper: Option<OrphanKeeper>,
}

pub(super) struct ProcessOutcome {
    pub exit: TrialExit,
    pub output: TrialOutput,
    pub readings: ProbeReadings,
    pub supervisor_summary: Option<Result<SupervisorSummary, SummaryError>>,
}

impl GatedProcess {
    /// Starts it and waits until it is at its gate, in its control group, with its settings.
    pub fn start_at_gate(
        context: &TrialContext<'_>,
        workload: usize,
        variant: usize,
        settings: &TrialSettings,
    ) -> Result<GatedProcess, String> {
        let recipe = &context.resolved.recipe;
        let (workload_recipe, variant_recipe) = (&recipe.workloads[workload], &recipe.variants[variant]);
        let mut command = gate::gate_command();
        if let Some(thp @ (ThpMode::NeverPrctl | ThpMode::AdvisedOnly)) = variant_recipe.thp_mode {
            command.args(["--thp", thp.name()]);
        }
        if let Some(cpu) = settings.cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        if variant_recipe.hog.is_some_and(|hog| hog.leaves_of_limit.is_some()) {
            // Its competitor shares its limit and is larger: without it memory would no longer be scarce.
            command.arg("--killed-first");
        }
        command.arg("--");
        let mut words = context.resolved.trial_command(workload, variant);
        let supervised = match variant_recipe.supervised_plan.is_some() {
            true => Some(SummaryDir::create(&mut words)?),
            false => None,
        };
        if let Some(hog) = variant_recipe.hog.filter(|hog| hog.kind == HogKind::Thread) {
            command.args([PAGELAB, "gate", "--hog-thread", &hog.size.0.to_string(), "--"]);
        }
        command.args(words);
        let environment = workload_recipe.environment.iter().chain(&variant_recipe.environment);
        command.envs(environment.map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // First, so that a kill of pagelab also ends a child that waits for the control group.
        spawn::die_with_parent(&mut command);
        if let Some(group) = &settings.cgroup {
            group
                .join_before_exec(&mut command)
                .map_err(|error| format!("cannot join its cgroup: {error}"))?;
        }
        let cannot_start = |error: std::io::Error| format!("cannot start a process: {error}");
        let mut keeper = gate::start_orphan_keeper().map_err(cannot_start)?;
        let mut child = command.spawn().map_err(cannot_start)?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("no output pipe from a process".to_owned());
        };
        let output = TrialOutput::new(output::output_metrics(&workload_recipe.command));
        let not_applied = Vec::new();
        let mut launched = GatedProcess {
            child,
            out,
            err,
            output,
            supervised,
            not_applied,
            is_reaped: false,
            _keeper: None,
        };
        launched.wait_for_gate(context.stop_signal)?;
        // Behind the gate it may start others, which do not die with us by themselves.
        keeper.watch(&OrphanScope::Group(launched.child.id())).map_err(cannot_start)?;
        if let Some(procs) = settings.cgroup.as_ref().and_then(TrialCgroup::procs_path) {
            keeper.watch(&OrphanScope::Cgroup(procs)).map_err(cannot_start)?;
        }
        launched._keeper = Some(keeper);
        Ok(launched)
    }

    fn wait_for_gate(&mut self, stop_signal: &dyn Fn() -> Option<i32>) -> Result<(), String> {
        for stream in [self.out.as_fd(), self.err.as_fd()] {
            gate::set_nonblocking(stream).map_err(|errno| format!("cannot poll its output: {errno}"))?;
        }
        let (deadline, mut gate_output) = (Instant::now() + GATE_TIMEOUT, Vec::new());
        let ready = format!("{READY}\n");
        while !gate_output.ends_with(ready.as_bytes()) {
            let mut buffer = [0; 1024];
            match self.out.read(&mut buffer) {
                Ok(0) => {
                    self.output.read_available(&mut self.out, &mut self.err);
                    return Err(format!(
                        "its first process exited before the gate: {}",
                        self.output.last_lines()
                    ));
                }
                Ok(count) => gate_output.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                    let _ = poll(&mut [PollFd::new(&self.out, PollFlags::IN)], Some(&wait));
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("cannot wait for its start: {error}")),
            }
            if stop_signal().is_some() {
                return Err("stopped before its start".to_owned());
            }
            if Instant::now() >= deadline {
                return Err(format!("it did not reach its gate within {} s", GATE_TIMEOUT.as_secs()));
            }
        }
        let text = String::from_utf8_lossy(&gate_output);
        self.not_applied =
            text.lines().filter_map(|line| line.strip_prefix(NOT_APPLIED)).map(str::to_owned).collect();
        Ok(())
    }

    /// Opens the gate and waits for the end.
    pub fn run_to_end(
        mut self,
        mut probes: ArmedProbes,
        settings: &mut TrialSettings,
        limit: Duration,
        stop_signal: &dyn Fn() -> Option<i32>,
    ) -> ProcessOutcome {
        let pid = self.child.id();
        let cgroup = settings.cgroup.clone();
        let shared_cgroup = settings.shared_cgroup.clone();
        let first = i32::try_from(pid).unwrap_or(0);
        let target =
            ProbeTarget { cgroup: cgroup.as_ref(), limited_cgroup: shared_cgroup.as_ref(), pid: first };
        let handle = Pid::from_raw(target.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let kills_before = oom_kill_count(cgroup.as_ref());
        probes.arm(&target);
        let began_ns = monotonic_ns();
        // If it cannot be signalled, it has ended, which the code below finds.
        let opened = self.child.stdin.take().map(|mut gate| gate.write_all(b"."));
        drop(opened);
        let (deadline, mut tick, mut cut) = (Instant::now() + limit, Instant::now() + TICK_INTERVAL, None);
        let (status, rusage) = loop {
            self.output.read_available(&mut self.out, &mut self.err);
            match wait4(pid, true) {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                // Another thread waited for the child: its exit status is unknown.
                Err(_) => break (ExitStatus::from_raw(0x7f00), probe::Rusage::default()),
            }
            let now = Instant::now();
            if cut.is_none() && (stop_signal().is_some() || now >= deadline) {
                let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                cut = Some(stop_signal().map_or(TrialEnd::TimedOut(limit_ns), |_| TrialEnd::Stopped));
                self.kill_processes(cgroup.as_ref());
            }
            if now >= tick {
                probes.tick(&target);
                settings.check_held();
                tick = Instant::now() + TICK_INTERVAL;
            }
            self.wait_for_event(handle.as_ref(), tick.saturating_duration_since(Instant::now()));
        };
        let wall_ns = monotonic_ns().saturating_sub(began_ns);
        self.is_reaped = true;
        let (left_behind, orphans) = self.end_left_processes(cgroup.as_ref(), cut.is_some());
        let rusage = orphans.iter().fold(rusage, |sum, one| sum.combine(one));
        let target_exit = probe::TargetExit { wall_ns, rusage, orphan_count: orphans.len() as u64 };
        self.output.read_available(&mut self.out, &mut self.err);
        let oom_kills = oom_kill_count(cgroup.as_ref()).saturating_sub(kills_before);
        let readings = probes.finish(&target, &target_exit);
        // The streams of remaining processes that could not be killed are no longer read.
        let output = std::mem::replace(&mut self.output, TrialOutput::new(Vec::new()));
        ProcessOutcome {
            supervisor_summary: self.supervised.as_ref().map(SummaryDir::read_summary),
            exit: TrialExit { status, cut, target_exit, left_processes: left_behind, oom_kills },
            output,
            readings,
        }
    }

    /// Waits until there is something to do.
    fn wait_for_event(&self, handle: Option<&OwnedFd>, timeout: Duration) {
        let mut fds = Vec::with_capacity(3);
        let most = if handle.is_some() { timeout } else { timeout.min(EXIT_POLL_INTERVAL) };
        fds.extend(handle.map(|handle| PollFd::new(handle, PollFlags::IN)));
        if !self.output.out.is_at_end {
            fds.push(PollFd::new(&self.out, PollFlags::IN));
        }
        if !self.output.err.is_at_end {
            fds.push(PollFd::new(&self.err, PollFlags::IN));
        }
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        // A signal ends it early; the caller checks for it.
        let _ = poll(&mut fds, Some(&wait));
    }

    fn kill_processes(&self, cgroup: Option<&TrialCgroup>) {
        if let Some(pid) = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if let Some(group) = cgroup {
            let _ = group.kill_all(Duration::ZERO);
        }
    }

    /// Kills processes that outlived the first one: returns their number, and the rusage of those that were
    /// reparented to us as the subreaper. A supervisor always outlives its front end by a short time.
    fn end_left_processes(&self, cgroup: Option<&TrialCgroup>, is_cut: bool) -> (u64, Vec<probe::Rusage>) {
        let grace = match &self.supervised {
            _ if is_cut => Duration::ZERO,
            Some(_) => SUPERVISOR_GRACE_PERIOD,
            None => GRACE_PERIOD,
        };
        let deadline = Instant::now() + grace;
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0));
        let mut orphans = Vec::new();
        let mut count = || {
            // A zombie of the process group would answer for it until it is waited for.
            let is_one_left = loop {
                match wait4_group(self.child.id()) {
                    Ok(Some((_, rusage))) => orphans.push(rusage),
                    other => break other.is_ok(),
                }
            };
            let listed = match cgroup.map(TrialCgroup::list_processes) {
                Some(Ok(processes)) => processes.len() as u64,
                // Without a control group only its process group can be checked, which a fork can leave.
                _ => u64::from(pid.is_some_and(|pid| test_kill_process_group(pid).is_ok())),
            };
            // A process that is about to exit is in no control group any more, and cannot be waited for yet.
            listed.max(u64::from(is_one_left))
        };
        let mut left_processes = count();
        while left_processes > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            left_processes = count();
        }
        if left_processes > 0 {
            self.kill_processes(cgroup);
            if let Some(group) = cgroup {
                let _ = group.kill_all(KILL_TIMEOUT);
            }
            count();
        }
        (left_processes, orphans)
    }
}

impl Drop for GatedProcess {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn oom_kill_count(cgroup: Option<&TrialCgroup>) -> u64 {
    cgroup.and_then(|group| group.read_limit_events().ok()?.kills).unwrap_or(0)
}
