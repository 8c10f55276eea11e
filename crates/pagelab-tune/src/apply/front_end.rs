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

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::output;
use pagelab_experiment::gate::SUPERVISOR_KILLED;
use pagelab_formats::smaps;
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{format_bytes, format_plural};
use pagelab_sys::signals::BlockedSignals;
use pagelab_sys::spawn;
use pagelab_target::supervisor::Summary;
use rustix::process::{Pid, Signal, kill_process};

use super::ApplySubject;
use super::messages::{SupervisorJob, SupervisorMessage, read_messages};

/// Signals that are forwarded to the program if a process sends them to the front end. The signals of the
/// terminal reach the program directly.
const FORWARDED_SIGNALS: [i32; 7] = [1, 2, 3, 10, 12, 15, 28];
/// Exit code if the program is killed together with its supervisor.
const EXIT_SIGKILL: u8 = 137;

/// Blocks these signals, which are then read by a thread: they must not end the guard of a pool while the
/// program runs.
pub fn block_signals() -> Result<BlockedSignals, Failure> {
    let cannot = |error: io::Error| Failure::cannot(FailureKind::Partial, "wait for signals", error);
    BlockedSignals::block(&FORWARDED_SIGNALS).map_err(cannot)
}

/// Runs the job in a supervisor process, and returns its exit code. With a deadline for one region the job
/// is of a running process.
pub fn run_supervised(
    job: &SupervisorJob,
    region_deadline: Option<Duration>,
    signals: BlockedSignals,
) -> Result<u8, Failure> {
    let cannot = |error: io::Error| Failure::cannot(FailureKind::Partial, "start the supervisor", error);
    let process = match job.request.subject {
        ApplySubject::Process(pid) => Some((pid, read_anonymous_huge(pid))),
        ApplySubject::Launch(_) => None,
    };
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
            (Ok(Ok(SupervisorMessage::Started(pid))), _) => target.store(pid, Ordering::Relaxed),
            (Ok(Ok(SupervisorMessage::RegionStarted)), _) => {}
            (Ok(Ok(SupervisorMessage::Note(text))), _) => output::warn(&format!("note: {text}")),
            (Ok(Ok(SupervisorMessage::Failed { kind, message })), _) => {
                return Err(Failure::new(kind, message));
            }
            (Ok(Ok(SupervisorMessage::Ended { exit, summary })), _) => {
                match process {
                    Some((pid, before)) => print_collapse_result(pid, before, &summary)?,
                    None => print_summary(&summary),
                }
                return Ok(exit);
            }
            (Ok(Err(error)), _) => return Err(damaged_message(&error, process.is_some())),
            (Err(Timeout), Some(deadline)) => return Err(kill_stalled_worker(deadline, supervisor)),
            (Err(_), Some(_)) => {
                let reason = "the worker was killed; the process keeps its huge pages";
                return Err(Failure::cannot(FailureKind::Partial, COLLAPSE, reason));
            }
            (Err(_), None) => {
                output::warn(SUPERVISOR_KILLED);
                return Ok(EXIT_SIGKILL);
            }
        }
    }
}

const COLLAPSE: &str = "collapse the memory of the process";

fn spawn_message_reader(pipe: io::PipeReader) -> Receiver<io::Result<SupervisorMessage>> {
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = read_messages(pipe).try_for_each(|message| sender.send(message).ok());
    });
    messages
}

/// The error for a message that cannot be read: what was allocated is unknown, not zero.
fn damaged_message(error: &io::Error, is_process: bool) -> Failure {
    let result = if is_process {
        "the process keeps its huge pages; their number is unknown"
    } else {
        "the program continues; the number of its huge pages is unknown"
    };
    Failure::cannot(FailureKind::Bug, "read a message from the supervisor", format!("{error}; {result}"))
}

/// Kills the worker after a region took too long. The kernel lets it exit once its current call returns.
fn kill_stalled_worker(deadline: Duration, mut worker: Child) -> Failure {
    let _ = worker.kill();
    let limit = format_duration(deadline.as_nanos() as u64);
    let reason = format!("one region took longer than {limit}; the process keeps its huge pages");
    let hint = "raise --deadline; the machine may be busy, or its memory fragmented (`pagelab can`)";
    Failure::cannot(FailureKind::Partial, COLLAPSE, reason).hint(hint)
}

/// Bytes of anonymous memory on huge pages in a process; `None`: they cannot be read.
fn read_anonymous_huge(pid: u32) -> Option<Bytes> {
    let text = std::fs::read(paths::process_file(pid, "smaps_rollup")).ok()?;
    smaps::parse_rollup(&text).ok()?.bytes("AnonHugePages")
}

/// Prints the result for a running process on standard output: what was requested, and what was read back.
/// Nothing else shows it, since the process prints nothing.
fn print_collapse_result(pid: u32, before: Option<Bytes>, summary: &Summary) -> Result<(), Failure> {
    print_notes(summary);
    output::print(&collapse_result_text(pid, (before, read_anonymous_huge(pid)), summary))?;
    print_failed_regions(summary);
    Ok(())
}

fn collapse_result_text(pid: u32, huge: (Option<Bytes>, Option<Bytes>), summary: &Summary) -> String {
    let (requested, allocated) = (summary.requested, summary.allocated);
    let result = match requested {
        0 => format!(
            "process {pid}: no region was requested: none is mostly resident and still on base \
            pages"
        ),
        _ => format!(
            "process {pid}: {allocated} of {} on huge pages, {}, read back from its page tables",
            format_plural(requested, "requested region"),
            format_bytes(Bytes(summary.huge_bytes))
        ),
    };
    let now = match huge {
        (Some(before), Some(now)) => format!(
            "AnonHugePages (smaps_rollup): {} before, {} now",
            format_bytes(before),
            format_bytes(now)
        ),
        _ => "AnonHugePages: unknown, its smaps_rollup cannot be read".to_owned(),
    };
    format!("{result}\n{now}\n")
}

/// Prints the notes, and the number of huge pages if some failed or standard error is a terminal.
pub fn print_summary(summary: &Summary) {
    print_notes(summary);
    let (requested, allocated) = (summary.requested, summary.allocated);
    match allocated == requested {
        true if requested > 0 => {
            output::print_note(&format!("note: all {requested} requested huge pages were allocated"));
        }
        true => {}
        false => {
            output::warn(&format!("warning: {allocated} of {requested} requested huge pages were allocated"));
        }
    }
    print_failed_regions(summary);
}

fn print_notes(summary: &Summary) {
    for note in &summary.notes {
        output::warn(&format!("note: {note}"));
    }
}

/// Prints how many regions failed for each reason.
fn print_failed_regions(summary: &Summary) {
    let mut reasons: Vec<(&str, u64)> = Vec::new();
    for failed in &summary.failed {
        match reasons.iter_mut().find(|(known, _)| *known == failed.reason) {
            Some((_, sum)) => *sum += failed.regions,
            None => reasons.push((&failed.reason, failed.regions)),
        }
    }
    for (why, count) in reasons {
        output::warn(&format!("warning: {count} not allocated: {why}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collapse_is_told_as_it_was_read_back() {
        let text = |requested, allocated, huge| {
            let huge_bytes = allocated * (2 << 20);
            collapse_result_text(7, huge, &Summary { requested, allocated, huge_bytes, ..Summary::default() })
        };
        let mib = |mib: u64| Some(Bytes(mib << 20));
        assert_eq!(
            text(16, 15, (mib(2), mib(32))),
            "process 7: 15 of 16 requested regions on huge pages, 30 MiB, read back from its page tables\n\
             AnonHugePages (smaps_rollup): 2 MiB before, 32 MiB now\n"
        );
        assert_eq!(
            text(0, 0, (None, mib(32))),
            "process 7: no region was requested: none is mostly resident and still on base pages\n\
             AnonHugePages: unknown, its smaps_rollup cannot be read\n"
        );
    }
}
