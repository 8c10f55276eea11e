//! Command of a job, as an ordinary child: its output, its exit, and its orphans.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};

use super::host_link::HostLink;
use crate::initramfs::PROGRAM_PATH;
use crate::message::{AgentMessage, StepExit};
use crate::packet::PAYLOAD_MAX;

/// Children of a command that outlive it and hold its output open are not waited for longer.
const LATE_OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// Where a step runs.
#[derive(Clone, Copy, Debug)]
pub struct StepSite<'s> {
    /// The directory of its control group.
    pub cgroup_dir: Option<&'s Path>,
    /// The directory for temporary files, if there is a disk: the other file systems are in memory.
    pub temp_dir: Option<&'s str>,
}

/// Runs a command line of pagelab to its exit.
pub fn run_step(arguments: &[OsString], site: StepSite<'_>, link: &Arc<HostLink>) -> StepExit {
    spawn_and_wait(arguments, site, link)
        .unwrap_or_else(|error| StepExit::NotRun(format!("cannot run {PROGRAM_PATH}: {error}")))
}

fn spawn_and_wait(arguments: &[OsString], site: StepSite<'_>, link: &Arc<HostLink>) -> io::Result<StepExit> {
    let mut command = Command::new(PROGRAM_PATH);
    command.args(arguments).arg0("pagelab").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", "/bin").env("HOME", crate::job::WORK_DIR).env("LANG", "C.UTF-8");
    command.envs(site.temp_dir.map(|dir| ("TMPDIR", dir)));
    if let Some(cgroup_dir) = site.cgroup_dir {
        let procs = File::options().write(true).open(cgroup_dir.join("cgroup.procs"))?;
        pagelab_sys::spawn::join_cgroup(&mut command, procs.into());
    }
    let mut child = command.spawn()?;
    let (sender, progress) = mpsc::channel();
    forward_stream(child.stdout.take(), AgentMessage::Stdout, link, &sender);
    forward_stream(child.stderr.take(), AgentMessage::Stderr, link, &sender);
    drop(sender);
    let end = reap_until(Pid::from_child(&child))?;
    // Both streams end with the command, unless a descendant holds them. The line may be slower than the
    // command was: as long as something is passed on, it is waited for.
    while progress.recv_timeout(LATE_OUTPUT_WAIT).is_ok() {}
    Ok(end)
}

/// Commands that run beside the steps.
#[derive(Debug, Default)]
pub struct BackgroundCommands(Vec<Pid>);

impl BackgroundCommands {
    /// Starts a command line of pagelab, whose output is discarded.
    pub fn start(&mut self, arguments: &[OsString], site: StepSite<'_>) -> StepExit {
        let mut command = Command::new(PROGRAM_PATH);
        command.args(arguments).arg0("pagelab").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env_clear().env("PATH", "/bin").env("HOME", crate::job::WORK_DIR).env("LANG", "C.UTF-8");
        command.envs(site.temp_dir.map(|dir| ("TMPDIR", dir)));
        match command.spawn() {
            Ok(child) => {
                self.0.push(Pid::from_child(&child));
                StepExit::Code(0)
            }
            Err(error) => StepExit::NotRun(format!("cannot run {PROGRAM_PATH}: {error}")),
        }
    }

    /// Kills all that still run. One that has ended may have been reaped by a step: its number is not in use
    /// again so soon.
    pub fn kill(&mut self) -> StepExit {
        for pid in self.0.drain(..) {
            let _ = kill_process(pid, Signal::KILL);
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
        }
        StepExit::Code(0)
    }
}

/// Passes a stream on to the host, in a thread that ends with the stream. `progress` receives something for
/// each piece that was passed on.
fn forward_stream<R: Read + Send + 'static>(
    stream: Option<R>,
    message: fn(Vec<u8>) -> AgentMessage,
    link: &Arc<HostLink>,
    progress: &Sender<()>,
) {
    let (line, progress) = (Arc::clone(link), progress.clone());
    std::thread::spawn(move || {
        let mut bytes = vec![0; PAYLOAD_MAX];
        let Some(mut stream) = stream else { return };
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    line.send(&message(bytes[..count].to_vec()));
                    let _ = progress.send(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    });
}

/// Waits for `command`; other orphans that have exited meanwhile are reaped too.
fn reap_until(command: Pid) -> io::Result<StepExit> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(code) = status.exit_status() {
                    return Ok(StepExit::Code(code));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Ok(StepExit::Signal(signal));
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
