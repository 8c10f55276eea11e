//! A thread that waits in the kernel is woken by another: a signal whose handler does nothing.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// A thread that can be woken.
#[derive(Clone, Copy, Debug)]
pub struct Nudge {
    process: libc::pid_t,
    thread: libc::c_long,
}

extern "C" fn nothing(_signal: libc::c_int) {}

fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 2
}

impl Nudge {
    /// From now on this thread can be woken: the call that it waits in ends with EINTR.
    pub fn of_this_thread() -> io::Result<Nudge> {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both structures are initialised before they are read; the handler touches nothing.
        // JUSTIFICATION: neither std nor rustix sets handlers.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = nothing as *const () as usize;
            if libc::sigaction(signal(), action.as_ptr(), ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
            Ok(Nudge { process: libc::getpid(), thread: libc::syscall(libc::SYS_gettid) })
        }
    }

    /// Wakes it, if it waits right now. It may be about to wait: ask again until it has answered.
    pub fn wake(&self) {
        // SAFETY: numbers alone; the handler touches nothing. JUSTIFICATION: rustix sends no signal to a
        // thread of a number.
        unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.thread, signal()) };
    }
}
