//! Commands of a job, as ordinary children: their output, their exit, and their orphans.

use std::ffi::{CString, OsStr, OsString};
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
use rustix::termios::{Winsize, tcsetwinsize};

use super::devices;
use super::host_link::HostLink;
use crate::initramfs::PROGRAM_PATH;
use crate::job::{TOOLS_MOUNT, TerminalSize, WORK_DIR};
use crate::message::{AgentMessage, StepExit};
use crate::packet::PAYLOAD_MAX;
use crate::tool_disk;

/// Children of a command that outlive it and hold its output open are not waited for longer.
const LATE_OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// The shell of the tool disk.
const SHELL: &str = "/bin/sh";
const SHELL_PROMPT: &str = "guest# ";
const TOOLS_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a step runs.
#[derive(Clone, Copy, Debug)]
pub struct StepSite<'s> {
    /// The directory of its control group.
    pub cgroup_dir: Option<&'s Path>,
    /// The directory for temporary files, if there is a disk: the other file systems are in memory.
    pub temp_dir: Option<&'s str>,
    /// Whether there is a tool disk, whose root is that of pagelab's commands, too.
    pub has_tools: bool,
}

/// Runs a command line of pagelab to its exit.
pub fn run_pagelab(arguments: &[OsString], site: StepSite<'_>, link: &Arc<HostLink>) -> StepExit {
    let command = pagelab_command(arguments, site);
    or_not_run(PROGRAM_PATH, command.and_then(|command| spawn_and_wait(command, site, link)))
}

/// Runs a command of the shell of the tool disk to its exit.
pub fn run_script(text: &OsString, site: StepSite<'_>, link: &Arc<HostLink>) -> StepExit {
    let command = shell_command(&["-c".as_ref(), text]);
    or_not_run(SHELL, command.and_then(|command| spawn_and_wait(command, site, link)))
}

/// Runs a shell on the terminal channel to its exit.
pub fn run_shell(size: &TerminalSize, site: StepSite<'_>) -> StepExit {
    or_not_run(SHELL, run_on_terminal(size, site))
}

fn or_not_run(program: &str, ended: io::Result<StepExit>) -> StepExit {
    ended.unwrap_or_else(|error| StepExit::NotRun(format!("cannot run {program}: {error}")))
}

fn pagelab_command(arguments: &[OsString], site: StepSite<'_>) -> io::Result<Command> {
    let program = if site.has_tools { tool_disk::PAGELAB_PATH } else { PROGRAM_PATH };
    let mut command = Command::new(program);
    command.args(arguments).arg0("pagelab").stdin(Stdio::null());
    command.env_clear().env("PATH", "/bin").env("HOME", WORK_DIR).env("LANG", "C.UTF-8");
    if site.has_tools {
        enter_tools(&mut command)?;
    }
    Ok(command)
}

/// The root of the tool disk, and where its programs are.
fn enter_tools(command: &mut Command) -> io::Result<()> {
    command.env("PATH", TOOLS_PATH);
    pagelab_sys::spawn::enter_root(command, CString::new(TOOLS_MOUNT)?, CString::new(WORK_DIR)?);
    Ok(())
}

/// The shell in the root of the tool disk.
fn shell_command(arguments: &[&OsStr]) -> io::Result<Command> {
    let mut command = Command::new(SHELL);
    command.args(arguments).stdin(Stdio::null());
    command.env_clear().env("HOME", WORK_DIR).env("LANG", "C.UTF-8");
    enter_tools(&mut command)?;
    Ok(command)
}

/// Everything of a step that is not its own: temporary files, its control group.
fn apply_site(command: &mut Command, site: StepSite<'_>) -> io::Result<()> {
    command.envs(site.temp_dir.map(|dir| ("TMPDIR", dir)));
    if let Some(cgroup_dir) = site.cgroup_dir {
        let procs = File::options().write(true).open(cgroup_dir.join("cgroup.procs"))?;
        pagelab_sys::spawn::join_cgroup(command, procs.into());
    }
    Ok(())
}

fn spawn_and_wait(mut command: Command, site: StepSite<'_>, link: &Arc<HostLink>) -> io::Result<StepExit> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    apply_site(&mut command, site)?;
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

fn run_on_terminal(size: &TerminalSize, site: StepSite<'_>) -> io::Result<StepExit> {
    let terminal = devices::open_terminal()?;
    let window = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, window)?;
    let mut command = shell_command(&["-i".as_ref()])?;
    command.env("TERM", &size.term).env("PS1", SHELL_PROMPT);
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    apply_site(&mut command, site)?;
    pagelab_sys::spawn::lead_session(&mut command);
    let child = command.spawn()?;
    reap_until(Pid::from_child(&child))
}

/// Commands that run beside the steps.
#[derive(Debug, Default)]
pub struct BackgroundCommands(Vec<Pid>);

impl BackgroundCommands {
    /// Starts a command line of pagelab, whose output is discarded.
    pub fn start(&mut self, arguments: &[OsString], site: StepSite<'_>) -> StepExit {
        let started = pagelab_command(arguments, site).and_then(|mut command| {
            command.stdout(Stdio::null()).stderr(Stdio::null());
            apply_site(&mut command, site)?;
            command.spawn()
        });
        or_not_run(
            PROGRAM_PATH,
            started.map(|child| {
                self.0.push(Pid::from_child(&child));
                StepExit::Code(0)
            }),
        )
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
