//! The front end of `apply`: starts the supervisor, passes signals on, says what came of it. Its own end
//! changes nothing for the program.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
use std::sync::mpsc::{self, Receiver};

use pagelab_host::paths;
use pagelab_sys::signal_wait::Signals;
use pagelab_sys::spawn;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Args;
use crate::exit::{Exit, Failure};
use crate::out;

/// Signals that are passed on to the program when a process sends them to the front end. What a person types
/// on a terminal reaches the program by itself.
const PASSED_ON: [i32; 7] = [1, 2, 3, 10, 12, 15, 28];
/// The exit code after the signal that ends a program with its supervisor.
const KILLED: u8 = 137;

/// From now on these signals are waited for alone; the guard of a pool must not end with one of them, as long
/// as the program runs.
pub fn signals() -> Result<Signals, Failure> {
    let cannot = |error: io::Error| Failure::new(Exit::Partial, "cannot wait for signals").because(error);
    Signals::block(&PASSED_ON).map_err(cannot)
}

/// Runs the program under its supervisor, and returns its exit code.
pub fn run(args: &Args, signals: Signals) -> Result<u8, Failure> {
    let cannot = |error: io::Error| Failure::new(Exit::Partial, "cannot start the supervisor").because(error);
    let (hears, tells) = io::pipe().map_err(cannot)?;
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").arg("supervise").arg("--tell").arg(tells.as_raw_fd().to_string());
    command.args(args.words());
    if !args.command.is_empty() {
        command.arg("--").args(&args.command);
    }
    spawn::keep_open(&mut command, &[tells.as_fd()]);
    // It is never waited for: what the program leaves running keeps it.
    let supervisor = command.spawn().map_err(cannot)?;
    drop(tells);
    if args.how.pid.is_none() {
        leave_stdio(false).map_err(cannot)?;
    }
    let target = Arc::new(AtomicU32::new(0));
    pass_on(signals, target.clone());
    let deadline = args.how.pid.map(|_| args.how.deadline);
    let lines = lines(hears);
    loop {
        let line = match deadline
            .map_or_else(|| lines.recv().map_err(|_| Disconnected), |d| lines.recv_timeout(d))
        {
            Ok(line) => line,
            Err(Timeout) => return Err(too_long(args, supervisor)),
            Err(Disconnected) => break,
        };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "started" => target.store(rest.parse().unwrap_or(0), Ordering::Relaxed),
            "note" => out::complain(&format!("pagelab: {rest}")),
            "failed" => return Err(failed(rest)),
            "ended" => return Ok(ended(rest)),
            _ => {}
        }
    }
    if args.how.pid.is_some() {
        let message = "the worker was killed: the process keeps what it has";
        return Err(Failure::new(Exit::Partial, message));
    }
    out::complain("pagelab: the supervisor was killed, and the program with it");
    Ok(KILLED)
}

fn lines(hears: io::PipeReader) -> Receiver<String> {
    let (says, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(hears).lines().map_while(Result::ok) {
            if says.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A region took too long: the worker is killed and left to the kernel, which lets it end once it can.
fn too_long(args: &Args, mut worker: Child) -> Failure {
    let _ = worker.kill();
    let message = format!(
        "one region took longer than {}: the worker was told to end, and the process keeps what it has; the \
         machine is busy, or its memory fragmented (`pagelab can`); --deadline gives more time",
        pagelab_report::quantity::duration(args.how.deadline.as_nanos() as u64)
    );
    Failure::new(Exit::Partial, message)
}

fn failed(rest: &str) -> Failure {
    let (code, message) = rest.split_once(' ').unwrap_or(("", rest));
    let known = Exit::TABLE.iter().map(|(exit, _)| *exit);
    let exit = known.into_iter().find(|exit| (*exit as u8).to_string() == code).unwrap_or(Exit::Partial);
    Failure::new(exit, message)
}

fn ended(rest: &str) -> u8 {
    let (code, document) = rest.split_once(' ').unwrap_or((rest, ""));
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    say(&document);
    code.parse().unwrap_or(KILLED)
}

/// What a person should know: notes always, figures where something is missing or somebody watches.
pub fn say(document: &Value) {
    for note in document["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out::complain(&format!("pagelab: {note}"));
    }
    let regions = &document["regions"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (wanted, got) = (number(&regions["wanted"]), number(&regions["got"]));
    if wanted == 0 || (got == wanted && !out::is_watched()) {
        return;
    }
    out::complain(&format!("pagelab: {got} of {wanted} wanted huge pages came"));
    let mut reasons: Vec<(String, u64)> = Vec::new();
    for refused in regions["refused"].as_array().into_iter().flatten() {
        let (why, count) = (refused["why"].as_str().unwrap_or_default(), number(&refused["regions"]));
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, sum)) => *sum += count,
            None => reasons.push((why.to_owned(), count)),
        }
    }
    for (why, count) in reasons {
        out::complain(&format!("pagelab: {count} not: {why}"));
    }
}

/// Passes signals on to the program, once it is known, for as long as this process lives.
pub fn pass_on(signals: Signals, target: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        while let Ok(came) = signals.wait() {
            let pid = Pid::from_raw(target.load(Ordering::Relaxed).cast_signed());
            let signal = Signal::from_named_raw(came.signal);
            if let (true, Some(pid), Some(signal)) = (came.is_from_process, pid, signal) {
                let _ = kill_process(pid, signal);
            }
        }
    });
}

/// Gives up standard input and output, and standard error with `all`: a pipe that the program closes is to be
/// closed.
pub fn leave_stdio(all: bool) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open(paths::DEV_NULL)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if all {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}

impl Args {
    /// The words that say the same to the supervisor.
    fn words(&self) -> Vec<OsString> {
        let mut words = vec![self.plan.clone().into_os_string()];
        let flags = [(self.how.overrides, "--override"), (self.how.stale, "--stale")];
        words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| OsString::from(flag)));
        if self.how.backing == super::Backing::Hugetlb {
            words.extend(["--backing".into(), "hugetlb".into()]);
        }
        if let Some(pid) = self.how.pid {
            words.extend(["--pid".into(), pid.to_string().into()]);
        }
        if let Some(path) = &self.how.summary {
            words.extend(["--summary".into(), path.clone().into_os_string()]);
        }
        words
    }
}
