//! A command of the job, as an ordinary child: its output, its end, and orphans of it.

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
use rustix::process::{Pid, WaitOptions, wait};

use super::line::Line;
use crate::frame::PAYLOAD_MAX;
use crate::initramfs::PROGRAM;
use crate::message::{End, Message};

/// Children of a command that outlive it and hold its output open are not waited for longer.
const LATE_OUTPUT: Duration = Duration::from_secs(1);

/// Runs a command line of pagelab to its end, in the group whose folder this is.
pub fn run(words: &[OsString], group: Option<&Path>, line: &Arc<Line>) -> End {
    match start_and_wait(words, group, line) {
        Ok(end) => end,
        Err(error) => End::NotRun(format!("cannot run {PROGRAM}: {error}")),
    }
}

fn start_and_wait(words: &[OsString], group: Option<&Path>, line: &Arc<Line>) -> io::Result<End> {
    let mut command = Command::new(PROGRAM);
    command.args(words).arg0("pagelab").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", "/bin").env("HOME", crate::job::FOLDER).env("LANG", "C.UTF-8");
    if let Some(group) = group {
        let procs = File::options().write(true).open(group.join("cgroup.procs"))?;
        pagelab_sys::spawn::join_cgroup(&mut command, procs.into());
    }
    let mut child = command.spawn()?;
    let (ended, ends) = mpsc::channel();
    pass_on(child.stdout.take(), Message::Stdout, line, &ended);
    pass_on(child.stderr.take(), Message::Stderr, line, &ended);
    drop(ended);
    let end = reap(Pid::from_child(&child))?;
    // Both streams end with the command, unless it left somebody behind.
    let _ = ends.recv_timeout(LATE_OUTPUT).and_then(|()| ends.recv_timeout(LATE_OUTPUT));
    Ok(end)
}

/// Passes a stream on to the host, in a thread that ends with the stream.
fn pass_on<R: Read + Send + 'static>(
    stream: Option<R>,
    message: fn(Vec<u8>) -> Message,
    line: &Arc<Line>,
    ended: &Sender<()>,
) {
    let (line, ended) = (Arc::clone(line), ended.clone());
    std::thread::spawn(move || {
        let mut bytes = vec![0; PAYLOAD_MAX];
        let Some(mut stream) = stream else { return };
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => line.say(&message(bytes[..count].to_vec())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = ended.send(());
    });
}

/// Waits for `command`; whoever else has ended meanwhile and has no parent any more is reaped too.
fn reap(command: Pid) -> io::Result<End> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(code) = status.exit_status() {
                    return Ok(End::Code(code));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Ok(End::Signal(signal));
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
