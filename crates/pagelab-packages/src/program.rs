//! Short-lived programs of the host: apt-get, dpkg-deb, mkfs.ext4, scripts of a set-up.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

/// What a program said and how it ended.
#[derive(Debug)]
pub struct CommandOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Why a program gave no answer.
#[derive(Debug)]
pub enum CommandError {
    /// There is no such program.
    NotFound,
    /// It could not be run or watched.
    RunFailed(io::Error),
    /// It took too long and was killed.
    TimedOut(Duration),
    /// Stopped by the signal of this number.
    Stopped(i32),
}

/// Bytes of each stream that are kept; a program that says more is not listened to any further.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Path of a program; directories of system programs are searched too.
pub fn find_program(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().to_string_lossy().contains('/') {
        return name.is_file().then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_executable(name, std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)))
}

/// The first executable file of this name in these directories.
pub fn find_executable(name: &Path, directories: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.into_iter().map(|directory| directory.join(name)).find(|file| is_executable(file))
}

/// Whether this is a file that this process may execute.
pub fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Runs a program in the language C, in a group of its own, until it ends, `limit` has passed or `stop` says
/// a signal. It dies with us.
pub fn run_command(
    command: &mut Command,
    limit: Duration,
    stop: &mut dyn FnMut() -> Option<i32>,
) -> Result<CommandOutput, CommandError> {
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LC_ALL", "C").process_group(0);
    pagelab_sys::spawn::die_with_parent(command);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CommandError::NotFound,
        _ => CommandError::RunFailed(error),
    })?;
    let listen = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            if let Some(stream) = stream {
                let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut said);
            }
            String::from_utf8_lossy(&said).into_owned()
        })
    };
    let stdout = listen(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = listen(child.stderr.take().map(|stream| Box::new(stream) as _));
    let exit = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => {}
            Err(error) => break Err(CommandError::RunFailed(error)),
        }
        if let Some(signal) = stop() {
            break Err(CommandError::Stopped(signal));
        }
        if start.elapsed() > limit {
            break Err(CommandError::TimedOut(limit));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Its own children are in its group, and hold its output open, whether it has ended or not.
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    exit.map(|status| CommandOutput { status, stdout, stderr })
}

/// Guest output for a message: without control characters, truncated.
pub fn printable(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    let text = text.trim();
    let shown: String =
        text.chars().take(CHARS_MAX).map(|c| if is_unsafe_char(c) { '?' } else { c }).collect();
    if text.chars().count() > CHARS_MAX { shown + "…" } else { shown }
}

/// Control characters, and marks that turn the direction of text.
fn is_unsafe_char(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_s: f64, stop: Option<i32>) -> Result<CommandOutput, CommandError> {
        run_command(Command::new("sh").args(["-c", script]), Duration::from_secs_f64(limit_s), &mut || stop)
    }

    #[test]
    fn answers_and_their_lack() {
        let ran = shell("echo a; echo b >&2; exit 3", 20.0, None).unwrap();
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.status.code()), ("a\n", "b\n", Some(3)));
        let folder = tempfile::tempdir().unwrap();
        let is_over = folder.path().join("over");
        let sleeper = format!("(sleep 60; touch '{}')", is_over.display());
        assert_eq!(shell(&format!("{sleeper} & echo a"), 50.0, None).unwrap().stdout, "a\n");
        assert!(!is_over.exists(), "who is left behind is not waited for");
        assert!(matches!(shell("sleep 60", 0.1, None), Err(CommandError::TimedOut(_))));
        let stopped = shell(&format!("{sleeper} & sleep 60"), 50.0, Some(2));
        assert!(matches!(stopped, Err(CommandError::Stopped(2))));
        assert!(!is_over.exists(), "its children are not waited for");
        let none =
            run_command(&mut Command::new("no-such-program-here"), Duration::from_secs(1), &mut || None);
        assert!(matches!(none, Err(CommandError::NotFound)));
        assert!(
            find_program(Path::new("sh")).is_some()
                && find_program(Path::new("no-such-program-here")).is_none()
        );
    }
}
