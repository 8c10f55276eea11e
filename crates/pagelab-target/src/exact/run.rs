//! The run itself: the program, QEMU around it, and how it ended.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_packages::apt::Watcher;
use pagelab_sys::wait::{Rusage, wait4};

use super::account::Account;
use super::qemu::Qemu;
use crate::error::{Error, ErrorKind};

/// How often a program that runs is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// What the kernel reads of a program file (BINPRM_BUF_SIZE, 5.1 and later).
const HEAD: u64 = 256;
/// Scripts that are interpreted by scripts, at most.
const SCRIPTS_MOST: usize = 4;

/// A program file that QEMU can run, with its arguments.
#[derive(Debug)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Its own name, as the program sees it.
    pub name: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Ran {
    /// The program's end.
    pub status: ExitStatus,
    /// What QEMU and the program used, with all descendants that were waited for.
    pub used: Rusage,
    /// From start to end.
    pub wall_ns: u64,
    /// Its process.
    pub pid: u32,
}

impl Ran {
    /// The exit code, or 128 and the signal's number.
    pub fn exit(&self) -> u8 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        u8::try_from(self.status.code().or(signal).unwrap_or(0) & 0xff).unwrap_or(0)
    }
}

impl Program {
    /// The program of a command line, behind all `#!` lines.
    pub fn find(command: &[OsString]) -> Result<Program, Error> {
        let cannot = |message: String| Err(Error::new(ErrorKind::CannotStart, message));
        let Some((name, arguments)) = command.split_first() else {
            return cannot("no command was given: write it behind `--`".to_owned());
        };
        let mut path = crate::program::find(name)?;
        let (mut name, mut arguments) = (name.clone(), arguments.to_vec());
        for _ in 0..SCRIPTS_MOST {
            let start = match first_bytes(&path) {
                Ok(start) => start,
                Err(error) => return cannot(format!("cannot read {}: {error}", path.display())),
            };
            let Some(line) = start.strip_prefix(b"#!") else {
                check(&path, &start)?;
                return Ok(Program { path, name, arguments });
            };
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line).trim_ascii();
            let mut words = line.splitn(2, |&byte| byte == b' ' || byte == b'\t');
            let interpreter = OsString::from_vec(words.next().unwrap_or_default().to_vec());
            let mut with: Vec<OsString> =
                words.next().map(|word| OsString::from_vec(word.trim_ascii().to_vec())).into_iter().collect();
            with.push(path.into_os_string());
            with.extend(arguments);
            (path, name, arguments) = (PathBuf::from(&interpreter), interpreter, with);
        }
        cannot(format!("{} is a script of a script of a script", path.display()))
    }
}

fn first_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(HEAD).read_to_end(&mut start)?;
    Ok(start)
}

/// QEMU's user mode for x86-64 runs programs for x86-64.
fn check(path: &Path, start: &[u8]) -> Result<(), Error> {
    const X86_64: [u8; 2] = [0x3e, 0];
    let path = path.display();
    let what = match start {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] if start.get(18..20) == Some(&X86_64) => return Ok(()),
        [0x7f, b'E', b'L', b'F', 1, ..] => "a program of 32 bits",
        [0x7f, b'E', b'L', b'F', ..] => "a program for another processor",
        _ => "no program of Linux (ELF) and no script",
    };
    let message = format!(
        "{path} is {what}; the source `exact` models programs for x86-64: profile it with --source accessed"
    );
    Err(Error::new(ErrorKind::NotAvailable, message))
}

/// Runs the program to its end. A signal that asks us to stop is passed on to it.
pub fn run(
    program: &Program,
    qemu: &Qemu,
    account: &Account,
    watcher: &mut dyn Watcher,
) -> Result<Ran, Error> {
    let (launcher, prefix) = qemu.command(&account.path());
    let mut command = Command::new(launcher);
    command.args(&prefix).arg("-0").arg(&program.name).arg(&program.path).args(&program.arguments);
    // The first word is QEMU's own business; it is what stands in front of the prefix.
    command.arg0(launcher);
    pagelab_sys::spawn::die_with_parent(&mut command);
    let begun = Instant::now();
    let child = command.spawn().map_err(|error| {
        let message = format!("cannot start {}: {error}", launcher.display());
        Error::new(ErrorKind::CannotStart, message)
    })?;
    let pid = child.id();
    let mut told = None;
    loop {
        let ended = wait4(pid, true).map_err(|error| {
            Error::new(ErrorKind::Refused, format!("cannot wait for the program: {error}"))
        })?;
        if let Some((status, used)) = ended {
            let wall_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return Ok(Ran { status, used, wall_ns, pid });
        }
        if told.is_none() {
            told = watcher.stop();
            let signal = told.and_then(rustix::process::Signal::from_named_raw);
            let process = rustix::process::Pid::from_raw(pid as i32);
            if let (Some(process), Some(signal)) = (process, signal) {
                let _ = rustix::process::kill_process(process, signal);
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Why there is nothing in the account.
pub fn nothing_seen(program: &Program, ran: &Ran) -> Error {
    let message = format!(
        "QEMU ended before the program began ({}): what it said stands above; does `qemu-x86_64 {}` run it?",
        ran.status,
        program.path.display()
    );
    Error::new(ErrorKind::CannotStart, message)
}

/// A path out of the account.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
