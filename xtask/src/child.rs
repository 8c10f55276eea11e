//! Running other programs: their output line by line, and an end to their time.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::stacks;

/// What becomes of a program's output besides being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nothing.
    Nothing,
    /// Standard error is the terminal's: a build that shows its progress.
    Progress,
}

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Ran {
    /// It ended by itself, with success.
    pub ok: bool,
    /// How it ended, when it did not end well.
    pub ending: String,
    /// What it wrote to standard output, line by line.
    pub stdout: Vec<String>,
    /// The same of standard error.
    pub stderr: Vec<String>,
    /// Wall time.
    pub took: Duration,
}

/// Runs `command` until it ends or `limit` has passed; then it is killed with all that it started, and the
/// stacks of them are the last lines of `stderr`. Children of the program that
/// outlive it and hold its output open are not waited for.
pub fn run(command: &mut Command, show: Show, limit: Duration) -> io::Result<Ran> {
    let start = Instant::now();
    let progress = if show == Show::Progress { Stdio::inherit() } else { Stdio::piped() };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(progress)
        .spawn()
        .map_err(|error| io::Error::other(format!("cannot run {:?}: {error}", command.get_program())))?;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        follow(stdout, false, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        follow(stderr, true, sender.clone());
    }
    drop(sender);

    let mut ran = Ran { ok: false, ending: String::new(), stdout: vec![], stderr: vec![], took: limit };
    let mut ended = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok((true, line)) => ran.stderr.push(line),
            Ok((false, line)) => ran.stdout.push(line),
            Err(RecvTimeoutError::Timeout) if ended.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {}
            // The output is closed: a program that says no more is waited for like any other.
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(2)),
        }
        if ended.is_none() {
            ended = child.try_wait()?;
            if ended.is_none() && start.elapsed() > limit {
                let hung = stacks::descendants(child.id());
                ran.stderr.extend(stacks::report(&hung));
                stacks::kill(&hung);
                child.wait()?;
                ran.ending = format!("killed after {:.0} s", limit.as_secs_f64());
                break;
            }
        }
    }
    if let Some(status) = ended {
        ran.ok = status.success();
        ran.ending = status.to_string();
    }
    ran.took = start.elapsed();
    Ok(ran)
}

fn follow(stream: impl Read + Send + 'static, is_stderr: bool, sender: Sender<(bool, String)>) {
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

    fn shell(script: &str, limit: f64) -> Ran {
        run(Command::new("sh").args(["-c", script]), Show::Nothing, Duration::from_secs_f64(limit)).unwrap()
    }

    #[test]
    fn both_streams_are_kept_and_the_end_is_told() {
        let ran = shell("echo a; echo b >&2; echo c; exit 3", 20.0);
        assert_eq!((ran.ok, ran.stdout.join(" "), ran.stderr.join(" ")), (false, "a c".into(), "b".into()));
        assert!(ran.ending.contains('3'), "{}", ran.ending);
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_its_children_are_not_waited_for() {
        let hung = shell("echo said; exec sleep 30", 0.3);
        assert_eq!((hung.ok, hung.stdout.join(" ")), (false, "said".into()));
        assert!(hung.ending.starts_with("killed after"), "{}", hung.ending);
        let left = shell("sleep 3 & echo done", 20.0);
        assert!(left.ok && left.took < Duration::from_secs(2), "{:?}", left.took);
    }
}
