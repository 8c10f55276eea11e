//! Hold phase: until Ctrl-C or while a command runs.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_command::output;
use pagelab_host::capture::StopSignal;
use pagelab_host::paths::SELF_OOM_SCORE_ADJ;
use pagelab_sys::spawn;
use rustix::process::{Pid, Signal, kill_process};

/// Interval of checks for a signal or the end of the command.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// What runs while memory is held, and how often memory is checked.
pub struct HoldPhase<'h> {
    /// The command; empty if there is none.
    pub command: &'h [OsString],
    pub cgroup: Option<&'h str>,
    pub oom_score: &'h str,
    pub stop: &'h StopSignal,
    pub check_interval: Duration,
}

impl HoldPhase<'_> {
    /// Waits for the end of the command, for a signal, or until `check` returns false. Returns the exit code
    /// of the command, which a signal ends.
    pub fn run(&self, mut check: impl FnMut() -> Result<bool, Failure>) -> Result<Option<u8>, Failure> {
        let mut child = self.start_command()?;
        let mut checked_at = Instant::now();
        loop {
            if let Some(child) = &mut child
                && let Some(status) = child.try_wait().map_err(cannot_wait)?
            {
                return Ok(Some(exit_code(status)));
            }
            let is_checked = checked_at.elapsed() >= self.check_interval;
            if is_checked {
                checked_at = Instant::now();
            }
            if self.stop.signal().is_some() || is_checked && !check()? {
                let status = child.map(|child| end_command(child, self.stop.signal())).transpose()?;
                return Ok(status.map(exit_code));
            }
            std::thread::sleep(WAIT_INTERVAL);
        }
    }

    /// Starts the command, if there is one, with the previous cgroup and OOM score of this process.
    fn start_command(&self) -> Result<Option<Child>, Failure> {
        let Some((program, arguments)) = self.command.split_first() else {
            output::warn("holding the memory; Ctrl-C releases it");
            return Ok(None);
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let open = |home: &str| OpenOptions::new().write(true).open(format!("{home}/cgroup.procs")).ok();
        if let Some(procs) = self.cgroup.and_then(open) {
            spawn::join_cgroup(&mut command, procs.into());
        }
        if let Ok(path) = std::ffi::CString::new(SELF_OOM_SCORE_ADJ) {
            spawn::write_own_file(&mut command, path, self.oom_score.as_bytes().to_vec());
        }
        command.spawn().map(Some).map_err(|error| Failure::cannot_start(program.to_string_lossy(), &error))
    }
}

/// Maximum wait for the end of the command after a signal, before it is killed.
const COMMAND_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwards the signal and waits; kills the command if it does not end.
fn end_command(mut child: Child, signal: Option<i32>) -> Result<ExitStatus, Failure> {
    let pid = Pid::from_child(&child);
    // The terminal also sends Ctrl-C to the command; a second signal is harmless.
    let signal = signal.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM);
    let _ = kill_process(pid, signal);
    let began = Instant::now();
    while began.elapsed() < COMMAND_EXIT_TIMEOUT {
        if let Some(status) = child.try_wait().map_err(cannot_wait)? {
            return Ok(status);
        }
        std::thread::sleep(WAIT_INTERVAL);
    }
    child.kill().and_then(|()| child.wait()).map_err(cannot_wait)
}

fn cannot_wait(error: io::Error) -> Failure {
    Failure::cannot(FailureKind::Partial, "wait for the command", error)
}

/// The exit code of a command: its own, or 128 plus the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Partial as u8)
}
