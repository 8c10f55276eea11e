//! A child that is traced from its exec on, under a filter: started so that no call of its program is missed.

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::seccomp::Filter;

/// What is done with transparent huge pages in the child, before its program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thp {
    /// Nothing.
    Leave,
    /// Off but where advised (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    OnlyAdvised,
    /// Wholly off (`PR_SET_THP_DISABLE`, Linux 3.15).
    Off,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub path: CString,
    /// Its arguments, its own name first.
    pub arguments: Vec<CString>,
    /// Its environment, as `NAME=value`.
    pub environment: Vec<CString>,
    /// Huge pages.
    pub thp: Thp,
    /// The calls that its tracer is shown; `None` starts it without a filter.
    pub filter: Option<Filter>,
    /// All signals are unblocked in it; else it has the mask of the thread that starts it.
    pub unblock: bool,
}

/// A child that waits to be let go.
#[derive(Debug)]
pub struct Waiting {
    /// Its process id.
    pub pid: u32,
    go: OwnedFd,
    told: OwnedFd,
}

/// A child that was let go.
#[derive(Debug)]
pub struct Begun {
    told: File,
}

/// What a child told before its program ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// no_new_privs had to be set for the filter: set-user-id programs get no rights.
    pub is_without_new_privileges: bool,
    /// The kernel refused what was to be done with huge pages.
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

/// Forks. The child waits until it is let go, so that it can be seized first.
pub fn start(program: &Program) -> io::Result<Waiting> {
    let (waits, go) = io::pipe()?;
    let (told, tells) = io::pipe()?;
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(&program.arguments), pointers(&program.environment));
    // SAFETY: the child makes only calls that are allowed after a fork of a process with threads: it
    // allocates nothing and takes no lock; what it reads was made before. JUSTIFICATION: std's Command waits
    // for the exec, at which a traced child stops, and it reaps a child whose end a tracer must see.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => child(program, &arguments, &environment, waits.as_raw_fd(), go.as_raw_fd(), tells.as_raw_fd()),
        pid => Ok(Waiting { pid: pid as u32, go: go.into(), told: told.into() }),
    }
}

impl Waiting {
    /// Lets the child go on to its program.
    pub fn go(self) -> io::Result<Begun> {
        File::from(self.go).write_all(b"g")?;
        Ok(Begun { told: File::from(self.told) })
    }
}

impl Begun {
    /// What it told. Waits until the program runs, or the child ended: ask when that is known.
    pub fn told(mut self) -> Told {
        let (mut text, mut told) = (Vec::new(), Told::default());
        if self.told.read_to_end(&mut text).is_err() {
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
fn child(
    program: &Program,
    arguments: &[*const c_char],
    environment: &[*const c_char],
    waits: RawFd,
    go: RawFd,
    tells: RawFd,
) -> ! {
    let tell = |what: u8, number: i32| {
        let n = number.to_ne_bytes();
        let word = [what, n[0], n[1], n[2], n[3]];
        // SAFETY: five bytes on the stack are read. JUSTIFICATION: after a fork only such calls are allowed.
        unsafe { libc::write(tells, word.as_ptr().cast(), word.len()) };
    };
    let last = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let mut byte = 0u8;
    // SAFETY: plain calls with numbers; one byte is written to a place of ours.
    // JUSTIFICATION: after a fork only such calls are allowed.
    let is_let_go = unsafe {
        libc::close(go);
        libc::read(waits, (&raw mut byte).cast(), 1) == 1
    };
    if !is_let_go {
        exit_now();
    }
    let thp = match program.thp {
        Thp::Leave => Ok(()),
        Thp::OnlyAdvised => crate::thp_disable::set_except_advised(),
        Thp::Off => crate::thp_disable::set(true),
    };
    if thp.is_err() {
        tell(THP_REFUSED, 0);
    }
    default_signals(program.unblock);
    match program.filter.as_ref().map(Filter::install) {
        Some(Ok(true)) => tell(NO_NEW_PRIVILEGES, 0),
        None | Some(Ok(false)) => {}
        Some(Err(error)) => {
            tell(FILTER_FAILED, error.raw_os_error().unwrap_or(0));
            exit_now();
        }
    }
    exec(&program.path, arguments, environment);
    tell(EXEC_FAILED, last());
    exit_now()
}

/// SIGPIPE, which the runtime of Rust ignores, has its usual effect in the program.
fn default_signals(unblock: bool) {
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `none` is initialised by sigemptyset before it is read. JUSTIFICATION: after a fork only such
    // calls are allowed.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if unblock {
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        }
    }
}

fn exec(path: &CStr, arguments: &[*const c_char], environment: &[*const c_char]) {
    // SAFETY: both lists end in a null pointer and point to texts that end in a zero byte.
    // JUSTIFICATION: after a fork only such calls are allowed.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
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

    fn of(path: &str) -> Program {
        Program {
            path: CString::new(path).unwrap(),
            arguments: vec![CString::new(path).unwrap()],
            environment: Vec::new(),
            thp: Thp::Leave,
            filter: None,
            unblock: true,
        }
    }

    #[test]
    fn a_child_waits_and_tells_why_it_could_not_start() {
        let waiting = start(&of("/bin/true")).unwrap();
        let pid = waiting.pid;
        assert_eq!(ptrace::wait(Some(pid), true).unwrap(), None);
        let begun = waiting.go().unwrap();
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(0))));
        assert_eq!(begun.told(), Told::default());
        let waiting = start(&of("/nowhere/none")).unwrap();
        let pid = waiting.pid;
        let begun = waiting.go().unwrap();
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(127))));
        assert_eq!(begun.told(), Told { exec_error: Some(libc::ENOENT), ..Told::default() });
        // Not let go, it ends without running anything.
        let waiting = start(&of("/bin/true")).unwrap();
        let pid = waiting.pid;
        drop(waiting);
        assert_eq!(ptrace::wait(Some(pid), false).unwrap(), Some((pid, Stop::Exited(127))));
    }
}
