//! Child programs: their output line by line, and a time limit.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::stacks;

/// Forwarding of a program's output, which is also kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Nothing.
    Quiet,
    /// Standard error is the terminal's: a build that shows its progress.
    Progress,
}

#[derive(Debug)]
pub struct ProcessOutcome {
    /// It ended by itself, with success.
    pub is_success: bool,
    pub failure: String,
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
    pub wall_time: Duration,
}

/// Runs `command` until it ends or `limit` has passed; then it is killed with all that it started, and the
/// stacks of them are the last lines of `stderr`. Children of the program that
/// outlive it and hold its output open are not waited for.
pub fn run(command: &mut Command, show: OutputMode, limit: Duration) -> io::Result<ProcessOutcome> {
    let start = Instant::now();
    let progress = if show == OutputMode::Progress { Stdio::inherit() } else { Stdio::piped() };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(progress)
        .spawn()
        .map_err(|error| io::Error::other(format!("cannot run {:?}: {error}", command.get_program())))?;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward_lines(stdout, false, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward_lines(stderr, true, sender.clone());
    }
    drop(sender);

    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut ended = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok((true, line)) => stderr.push(line),
            Ok((false, line)) => stdout.push(line),
            Err(_) if ended.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {}
            // The output is closed: the program is still waited for.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(2)),
        }
        if ended.is_none() {
            ended = child.try_wait()?;
            if ended.is_none() && start.elapsed() > limit {
                let hung = stacks::descendants(child.id());
                stderr.extend(stacks::report_processes(&hung));
                stacks::kill_all(&hung);
                child.wait()?;
                break;
            }
        }
    }
    let (is_success, failure) = match ended {
        Some(status) => (status.success(), status.to_string()),
        None => (false, format!("killed after {:.0} s", limit.as_secs_f64())),
    };
    Ok(ProcessOutcome { is_success, failure, stdout, stderr, wall_time: start.elapsed() })
}

fn forward_lines(stream: impl Read + Send + 'static, is_stderr: bool, sender: Sender<(bool, String)>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            if sender.send((is_stderr, text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: f64) -> ProcessOutcome {
        run(Command::new("sh").args(["-c", script]), OutputMode::Quiet, Duration::from_secs_f64(limit))
            .unwrap()
    }

    #[test]
    fn both_streams_are_kept_and_the_end_is_told() {
        let outcome = shell("echo a; echo b >&2; echo c; exit 3", 20.0);
        assert_eq!(
            (outcome.is_success, outcome.stdout.join(" "), outcome.stderr.join(" ")),
            (false, "a c".into(), "b".into())
        );
        assert!(outcome.failure.contains('3'), "{}", outcome.failure);
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_its_children_are_not_waited_for() {
        let hung = shell("echo said; exec sleep 30", 0.3);
        assert_eq!((hung.is_success, hung.stdout.join(" ")), (false, "said".into()));
        assert!(hung.failure.starts_with("killed after"), "{}", hung.failure);
        let left = shell("sleep 3 & echo done", 20.0);
        assert!(left.is_success && left.wall_time < Duration::from_secs(2), "{:?}", left.wall_time);
    }
}
