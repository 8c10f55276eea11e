//! Run of a program under QEMU, and its exit.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_model::failure::describe_io_error;
use pagelab_model::{Failure, FailureKind};
use pagelab_packages::apt::FetchObserver;
use pagelab_sys::wait::{Rusage, wait4};

use super::account::SharedAccount;
use super::qemu::Qemu;

/// Interval at which a running program is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of a program file that the kernel reads (BINPRM_BUF_SIZE, 5.1 and later).
const HEADER_BYTES: u64 = 256;
/// Scripts that are interpreted by scripts, at most.
const SCRIPT_DEPTH_MAX: usize = 4;

/// A program file that QEMU can run, with its arguments.
#[derive(Debug)]
pub struct EmulatedProgram {
    /// The file.
    pub path: PathBuf,
    /// Its own name, as the program sees it.
    pub name: OsString,
    pub arguments: Vec<OsString>,
}

/// End of a run.
#[derive(Debug)]
pub struct EmulationResult {
    /// The program's end.
    pub status: ExitStatus,
    /// Resource usage of QEMU and the program, with all descendants that were waited for.
    pub rusage: Rusage,
    /// From start to end.
    pub wall_ns: u64,
    /// Its process.
    pub pid: u32,
}

impl EmulationResult {
    /// The exit code, or 128 and the signal's number.
    pub fn exit_code(&self) -> u8 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        u8::try_from(self.status.code().or(signal).unwrap_or(0) & 0xff).unwrap_or(0)
    }
}

impl EmulatedProgram {
    /// The program of a command line, after all `#!` lines are resolved.
    pub fn resolve(command: &[OsString]) -> Result<EmulatedProgram, Failure> {
        let Some((name, arguments)) = command.split_first() else {
            return Err(Failure::bad_input("no command given: add `-- COMMAND`"));
        };
        let mut path = crate::program::find_program(name)?;
        let (mut name, mut arguments) = (name.clone(), arguments.to_vec());
        for _ in 0..SCRIPT_DEPTH_MAX {
            let start = read_header(&path).map_err(|error| {
                let action = format_args!("read {}", path.display());
                Failure::cannot(FailureKind::BadInput, action, describe_io_error(&error))
            })?;
            let Some(line) = start.strip_prefix(b"#!") else {
                check_format(&path, &start)?;
                return Ok(EmulatedProgram { path, name, arguments });
            };
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line).trim_ascii();
            let mut words = line.splitn(2, |&byte| byte == b' ' || byte == b'\t');
            let interpreter = OsString::from_vec(words.next().unwrap_or_default().to_vec());
            let mut script_arguments: Vec<OsString> =
                words.next().map(|word| OsString::from_vec(word.trim_ascii().to_vec())).into_iter().collect();
            script_arguments.push(path.into_os_string());
            script_arguments.extend(arguments);
            (path, name, arguments) = (PathBuf::from(&interpreter), interpreter, script_arguments);
        }
        Err(Failure::bad_input(format!("{}: too many nested script interpreters", path.display())))
    }
}

fn read_header(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(HEADER_BYTES).read_to_end(&mut start)?;
    Ok(start)
}

/// QEMU's user mode for x86-64 runs programs for x86-64.
fn check_format(path: &Path, start: &[u8]) -> Result<(), Failure> {
    const X86_64: [u8; 2] = [0x3e, 0];
    let path = path.display();
    let format_name = match start {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] if start.get(18..20) == Some(&X86_64) => return Ok(()),
        [0x7f, b'E', b'L', b'F', 1, ..] => "a 32-bit program",
        [0x7f, b'E', b'L', b'F', ..] => "a program for another architecture",
        _ => "neither an ELF file nor a script",
    };
    Err(Failure::not_available(format!(
        "cannot profile {path} with --source exact: expected an x86-64 program, found {format_name}; hint: \
         use --source accessed"
    )))
}

/// Runs the program to its end. A signal that stops pagelab is passed on to it.
pub fn run_program(
    program: &EmulatedProgram,
    qemu: &Qemu,
    account: &SharedAccount,
    observer: &mut dyn FetchObserver,
) -> Result<EmulationResult, Failure> {
    let (launcher, prefix) = qemu.command(&account.path());
    let mut command = Command::new(launcher);
    command.args(&prefix).arg("-0").arg(&program.name).arg(&program.path).args(&program.arguments);
    // The first word is the launcher itself, before the prefix.
    command.arg0(launcher);
    pagelab_sys::spawn::die_with_parent(&mut command);
    let start_time = Instant::now();
    let child = command
        .spawn()
        .map_err(|error| Failure::bad_input(format!("cannot start {}: {error}", launcher.display())))?;
    let pid = child.id();
    let mut sent_signal = None;
    loop {
        let exited = wait4(pid, true)
            .map_err(|error| Failure::refused(format!("cannot wait for the program: {error}")))?;
        if let Some((status, rusage)) = exited {
            let wall_ns = u64::try_from(start_time.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return Ok(EmulationResult { status, rusage, wall_ns, pid });
        }
        if sent_signal.is_none() {
            sent_signal = observer.stop_signal();
            let signal = sent_signal.and_then(rustix::process::Signal::from_named_raw);
            let process = rustix::process::Pid::from_raw(pid as i32);
            if let (Some(process), Some(signal)) = (process, signal) {
                let _ = rustix::process::kill_process(process, signal);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Reason for an empty account.
pub fn empty_account_error(program: &EmulatedProgram, result: &EmulationResult) -> Failure {
    Failure::bad_input(format!(
        "cannot start {path}: QEMU exited first ({}), see its messages above; hint: run `qemu-x86_64 {path}`",
        result.status,
        path = program.path.display()
    ))
}

/// A path out of the account.
pub fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
