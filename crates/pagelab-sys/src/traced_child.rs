//! Child that is traced from its exec on, under a filter, so that no call of its program is missed.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::seccomp::SyscallFilter;

/// Setting of transparent huge pages in the child, made before its program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    /// Nothing.
    Unchanged,
    /// Off but where advised (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    OnlyAdvised,
    /// Wholly off (`PR_SET_THP_DISABLE`, Linux 3.15).
    Off,
}

/// Program to start.
#[derive(Clone, Debug)]
pub struct ChildProgram {
    /// Its file.
    pub path: CString,
    /// Its arguments, its own name first.
    pub arguments: Vec<CString>,
    /// Its environment, as `NAME=value`.
    pub environment: Vec<CString>,
    /// Huge pages.
    pub thp: ThpMode,
    /// The calls that its tracer is shown; `None` starts it without a filter.
    pub filter: Option<SyscallFilter>,
}

/// A child that waits for its release.
#[derive(Debug)]
pub struct HeldChild {
    /// Its process id.
    pub pid: u32,
    release_pipe: OwnedFd,
    report_pipe: OwnedFd,
}

/// A released child.
#[derive(Debug)]
pub struct StartedChild {
    report_pipe: File,
}

/// Report of a child before its program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartReport {
    /// no_new_privs had to be set for the filter: set-user-id programs get no rights.
    pub is_without_new_privileges: bool,
    /// The kernel rejected the request about huge pages.
    pub thp_refused: bool,
    /// The number of the error for which the filter could not be installed.
    pub filter_error: Option<i32>,
    /// The number of the error for which the program could not be started.
    pub exec_error: Option<i32>,
}

const NO_NEW_PRIVILEGES: u8 = b'n';
const THP_REFUSED: u8 = b't';
const FILTER_FAILED: u8 = b'f';
const EXEC_FAILED: u8 = b'e';

/// Forks. The child waits for its release, so that it can be seized first.
pub fn fork_held(program: &ChildProgram) -> io::Result<HeldChild> {
    let (waits, go) = io::pipe()?;
    let (told, tells) = io::pipe()?;
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(&program.arguments), pointers(&program.environment));
    // SAFETY: the child makes only calls that are allowed after a fork of a process with threads: it
    // allocates nothing and takes no lock; the data it reads was created before. JUSTIFICATION: std's Command
    // waits for the exec, at which a traced child stops, and it reaps a child whose end a tracer must see.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            run_child(program, &arguments, &environment, waits.as_raw_fd(), go.as_raw_fd(), tells.as_raw_fd())
        }
        pid => Ok(HeldChild { pid: pid as u32, release_pipe: go.into(), report_pipe: told.into() }),
    }
}

impl HeldChild {
    /// Lets the child execute its program.
    pub fn release(self) -> io::Result<StartedChild> {
        File::from(self.release_pipe).write_all(b"g")?;
        Ok(StartedChild { report_pipe: File::from(self.report_pipe) })
    }
}

impl StartedChild {
    /// Its result. Waits until the program runs, or the child ended: ask when that is known.
    pub fn read_report(mut self) -> StartReport {
        let (mut text, mut told) = (Vec::new(), StartReport::default());
        if self.report_pipe.read_to_end(&mut text).is_err() {
            return told;
        }
        for word in text.chunks_exact(5) {
            let number = i32::from_ne_bytes([word[1], word[2], word[3], word[4]]);
            match word[0] {
                NO_NEW_PRIVILEGES => told.is_without_new_privileges = true,
                THP_REFUSED => told.thp_refused = true,
                FILTER_FAILED => told.filter_error = Some(number),
                _ => told.exec_error = Some(number),
            }
        }
        told
    }
}

/// The child's side. It ends here or becomes the program.
fn run_child(
    program: &ChildProgram,
    arguments: &[*const c_char],
    environment: &[*const c_char],
    parent_end: RawFd,
    release_fd: RawFd,
    report_fd: RawFd,
) -> ! {
    let send_report = |what: u8, number: i32| {
        let n = number.to_ne_bytes();
        let word = [what, n[0], n[1], n[2], n[3]];
        // SAFETY: five bytes on the stack are read. JUSTIFICATION: after a fork only such calls are allowed.
        unsafe { libc::write(report_fd, word.as_ptr().cast(), word.len()) };
    };
    let fd_max = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let mut byte = 0u8;
    // SAFETY: plain calls with numbers; one byte is written to a local variable.
    // JUSTIFICATION: after a fork only such calls are allowed.
    let is_released = unsafe {
        libc::close(release_fd);
        libc::read(parent_end, (&raw mut byte).cast(), 1) == 1
    };
    if !is_released {
        exit_now();
    }
    let thp = match program.thp {
        ThpMode::Unchanged => Ok(()),
        ThpMode::OnlyAdvised => crate::thp_disable::set_thp_except_advised(),
        ThpMode::Off => crate::thp_disable::set_thp_disable(true),
    };
    if thp.is_err() {
        send_report(THP_REFUSED, 0);
    }
    reset_signals();
    match program.filter.as_ref().map(SyscallFilter::install) {
        Some(Ok(true)) => send_report(NO_NEW_PRIVILEGES, 0),
        None | Some(Ok(false)) => {}
        Some(Err(error)) => {
            send_report(FILTER_FAILED, error.raw_os_error().unwrap_or(0));
            exit_now();
        }
    }
    // SAFETY: both lists end in a null pointer and point to texts that end in a zero byte.
    // JUSTIFICATION: after a fork only such calls are allowed.
    unsafe { libc::execve(program.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    send_report(EXEC_FAILED, fd_max());
    exit_now()
}

/// SIGPIPE, which the runtime of Rust ignores, has its usual effect in the program, and no signal is blocked.
fn reset_signals() {
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `none` is initialised by sigemptyset before it is read. JUSTIFICATION: after a fork only such
    // calls are allowed.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

fn exit_now() -> ! {
    // SAFETY: ends the child without running anything of the parent's. JUSTIFICATION: std's exit would flush
    // buffers that are the parent's.
    unsafe { libc::_exit(127) }
}

/// Blocks every signal for this thread: one that serves others must end by SIGKILL or of itself alone.
pub fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is initialised by sigfillset before it is read. JUSTIFICATION: rustix has no masks.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptrace::{self, Stop};

    fn program_at(path: &str) -> ChildProgram {
        ChildProgram {
            path: CString::new(path).unwrap(),
            arguments: vec![CString::new(path).unwrap()],
            environment: Vec::new(),
            thp: ThpMode::Unchanged,
            filter: None,
        }
    }

    #[test]
    fn a_child_waits_and_tells_why_it_could_not_start() {
        let waiting = fork_held(&program_at("/bin/true")).unwrap();
        let pid = waiting.pid;
        assert_eq!(ptrace::wait(Some(pid), true).unwrap(), None);
        let begun = waiting.release().unwrap();
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(0))));
        assert_eq!(begun.read_report(), StartReport::default());
        let waiting = fork_held(&program_at("/nowhere/none")).unwrap();
        let pid = waiting.pid;
        let begun = waiting.release().unwrap();
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(127))));
        assert_eq!(
            begun.read_report(),
            StartReport { exec_error: Some(libc::ENOENT), ..StartReport::default() }
        );
        // Without a release it exits without running anything.
        let waiting = fork_held(&program_at("/bin/true")).unwrap();
        let pid = waiting.pid;
        drop(waiting);
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(127))));
    }
}
