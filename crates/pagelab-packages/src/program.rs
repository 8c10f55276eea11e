//! Programs of the host that do something and end: apt-get, dpkg-deb, mkfs.ext4, a script of a set-up.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Why a program gave no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// There is no such program.
    NotThere,
    /// It could not be run or watched.
    Failed(io::Error),
    /// It took too long and was killed.
    TooLong(Duration),
    /// A signal of this number asked us to stop.
    Stopped(i32),
}

/// Bytes of each stream that are kept; a program that says more is not listened to any further.
const SAID_MAX: u64 = 1 << 20;

/// Where a program of this name lies; the folders of the system's own programs count too.
pub fn find(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().to_string_lossy().contains('/') {
        return name.is_file().then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Runs a program in the language C, in a group of its own, until it ends, `limit` has passed or `stop` says
/// a signal. It dies with us.
pub fn run(
    command: &mut Command,
    limit: Duration,
    stop: &mut dyn FnMut() -> Option<i32>,
) -> Result<Ran, NoAnswer> {
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LC_ALL", "C").process_group(0);
    pagelab_sys::spawn::die_with_parent(command);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NoAnswer::NotThere,
        _ => NoAnswer::Failed(error),
    })?;
    let listen = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            if let Some(stream) = stream {
                let _ = stream.take(SAID_MAX).read_to_end(&mut said);
            }
            String::from_utf8_lossy(&said).into_owned()
        })
    };
    let stdout = listen(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = listen(child.stderr.take().map(|stream| Box::new(stream) as _));
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => {}
            Err(error) => break Err(NoAnswer::Failed(error)),
        }
        if let Some(signal) = stop() {
            break Err(NoAnswer::Stopped(signal));
        }
        if start.elapsed() > limit {
            break Err(NoAnswer::TooLong(limit));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Its own children are in its group, and hold its output open, whether it has ended or not.
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    ended.map(|status| Ran { status, stdout, stderr })
}

/// What a guest said, for a message: without control characters, and not too long.
pub fn printable(text: &str) -> String {
    const LONGEST: usize = 200;
    let text = text.trim();
    let shown: String = text.chars().take(LONGEST).map(|c| if is_odd(c) { '?' } else { c }).collect();
    if text.chars().count() > LONGEST { shown + "…" } else { shown }
}

/// Control characters, and marks that turn the direction of text.
fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_s: f64, stop: Option<i32>) -> Result<Ran, NoAnswer> {
        run(Command::new("sh").args(["-c", script]), Duration::from_secs_f64(limit_s), &mut || stop)
    }

    #[test]
    fn answers_and_their_lack() {
        let ran = shell("echo a; echo b >&2; exit 3", 20.0, None).unwrap();
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.status.code()), ("a\n", "b\n", Some(3)));
        let start = Instant::now();
        assert_eq!(shell("sleep 60 & echo a", 50.0, None).unwrap().stdout, "a\n");
        assert!(start.elapsed() < Duration::from_secs(5), "who is left behind is not waited for");
        assert!(matches!(shell("sleep 60", 0.1, None), Err(NoAnswer::TooLong(_))));
        let start = Instant::now();
        assert!(matches!(shell("sleep 60 & sleep 60", 50.0, Some(2)), Err(NoAnswer::Stopped(2))));
        assert!(start.elapsed() < Duration::from_secs(5), "its children are not waited for");
        let none = run(&mut Command::new("no-such-program-here"), Duration::from_secs(1), &mut || None);
        assert!(matches!(none, Err(NoAnswer::NotThere)));
        assert!(find(Path::new("sh")).is_some() && find(Path::new("no-such-program-here")).is_none());
    }
}
