//! Front end of `apply`: starts the supervisor, forwards signals, and reports the result. If the front end is
//! killed, the program continues.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use pagelab_command::exit::{Exit, Failure};
use pagelab_command::output;
use pagelab_host::paths;
use pagelab_report::quantity_format::format_duration;
use pagelab_sys::signals::BlockedSignals;
use pagelab_sys::spawn;
use pagelab_target::supervisor::Summary;
use rustix::process::{Pid, Signal, kill_process};

use super::messages::{SupervisorJob, SupervisorMessage, read_messages};

/// Signals that are forwarded to the program if a process sends them to the front end. The signals of the
/// terminal reach the program directly.
const FORWARDED_SIGNALS: [i32; 7] = [1, 2, 3, 10, 12, 15, 28];
/// Exit code if the program is killed together with its supervisor.
const EXIT_SIGKILL: u8 = 137;

/// Blocks these signals, which are then read by a thread: they must not end the guard of a pool while the
/// program runs.
pub fn block_signals() -> Result<BlockedSignals, Failure> {
    let cannot = |error: io::Error| Failure::cannot(Exit::Partial, "wait for signals", error);
    BlockedSignals::block(&FORWARDED_SIGNALS).map_err(cannot)
}

/// Runs the job in a supervisor process, and returns its exit code. With a deadline for one region the job
/// is of a running process.
pub fn run_supervised(
    job: &SupervisorJob,
    region_deadline: Option<Duration>,
    signals: BlockedSignals,
) -> Result<u8, Failure> {
    let cannot = |error: io::Error| Failure::cannot(Exit::Partial, "start the supervisor", error);
    let (reports, report_end) = io::pipe().map_err(cannot)?;
    let job = job.to_memfd().map_err(cannot)?;
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").arg("supervise");
    command.arg("--job").arg(job.as_raw_fd().to_string());
    command.arg("--tell").arg(report_end.as_raw_fd().to_string());
    spawn::keep_fds_open(&mut command, &[job.as_fd(), report_end.as_fd()]);
    // No wait for its exit: it runs until the last process of the program has ended.
    let supervisor = command.spawn().map_err(cannot)?;
    drop((job, report_end));
    if region_deadline.is_none() {
        detach_stdio(false).map_err(cannot)?;
    }
    let target = Arc::new(AtomicU32::new(0));
    forward_signals(signals, target.clone());
    let messages = spawn_message_reader(reports);
    loop {
        let received = match region_deadline {
            Some(deadline) => messages.recv_timeout(deadline),
            None => messages.recv().map_err(|_| Disconnected),
        };
        match (received, region_deadline) {
            (Ok(SupervisorMessage::Started(pid)), _) => target.store(pid, Ordering::Relaxed),
            (Ok(SupervisorMessage::RegionStarted), _) => {}
            (Ok(SupervisorMessage::Note(text)), _) => output::warn(&format!("note: {text}")),
            (Ok(SupervisorMessage::Failed { exit, message }), _) => {
                let exit = Exit::from_code(exit.into()).unwrap_or(Exit::Partial);
                return Err(Failure::new(exit, message));
            }
            (Ok(SupervisorMessage::Ended { exit, summary }), _) => {
                print_summary(&summary);
                return Ok(exit);
            }
            (Err(Timeout), Some(deadline)) => return Err(kill_stalled_worker(deadline, supervisor)),
            (Err(_), Some(_)) => {
                let reason = "the worker was killed; the process keeps its huge pages";
                return Err(Failure::cannot(Exit::Partial, COLLAPSE, reason));
            }
            (Err(_), None) => {
                output::warn("warning: the supervisor was killed, and the program with it");
                return Ok(EXIT_SIGKILL);
            }
        }
    }
}

const COLLAPSE: &str = "collapse the memory of the process";

fn spawn_message_reader(pipe: io::PipeReader) -> Receiver<SupervisorMessage> {
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = read_messages(pipe).try_for_each(|message| sender.send(message).ok());
    });
    messages
}

/// Kills the worker after a region took too long. The kernel lets it exit once its current call returns.
fn kill_stalled_worker(deadline: Duration, mut worker: Child) -> Failure {
    let _ = worker.kill();
    let limit = format_duration(deadline.as_nanos() as u64);
    let reason = format!("one region took longer than {limit}; the process keeps its huge pages");
    let hint = "raise --deadline; the machine is busy, or its memory is fragmented (`pagelab can`)";
    Failure::cannot(Exit::Partial, COLLAPSE, reason).hint(hint)
}

/// Prints the notes, and the number of huge pages if some failed or standard error is a terminal.
pub fn print_summary(summary: &Summary) {
    for note in &summary.notes {
        output::warn(&format!("note: {note}"));
    }
    let (requested, allocated) = (summary.requested, summary.allocated);
    if requested == 0 || (allocated == requested && !output::is_interactive()) {
        return;
    }
    output::warn(&format!("warning: {allocated} of {requested} requested huge pages were allocated"));
    let mut reasons: Vec<(&str, u64)> = Vec::new();
    for failed in &summary.failed {
        match reasons.iter_mut().find(|(known, _)| *known == failed.reason) {
            Some((_, sum)) => *sum += failed.regions,
            None => reasons.push((&failed.reason, failed.regions)),
        }
    }
    for (why, count) in reasons {
        output::warn(&format!("warning: {count} not: {why}"));
    }
}

/// Forwards signals to the program, once its PID is known, until this process exits.
pub fn forward_signals(signals: BlockedSignals, target: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        while let Ok(received) = signals.wait_next() {
            let pid = Pid::from_raw(target.load(Ordering::Relaxed).cast_signed());
            let signal = Signal::from_named_raw(received.signal);
            if let (true, Some(pid), Some(signal)) = (received.is_from_process, pid, signal) {
                let _ = kill_process(pid, signal);
            }
        }
    });
}

/// Redirects standard input and output, and standard error with `with_stderr`, to /dev/null, so that a pipe
/// is closed once the program closes it.
pub fn detach_stdio(with_stderr: bool) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open(paths::DEV_NULL)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if with_stderr {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}
