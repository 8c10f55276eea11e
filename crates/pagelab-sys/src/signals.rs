//! Signals: a wait for a signal and its sender, and the wake-up of a thread that waits in the kernel.
//!
//! A signal typed on a terminal reaches all foreground processes, one from another process reaches one.

use std::mem::MaybeUninit;
use std::{io, ptr};

use crate::wait::{check_zero, retry_interrupted};

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number.
    pub signal: i32,
    /// Another process sent it, to this one: not the kernel (SI_KERNEL) for all of a terminal.
    pub is_from_process: bool,
}

/// Signals that are blocked for the calling thread and the threads that it starts.
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks these. One that is ignored stays so, and never comes.
    pub fn block(signals: &[i32]) -> io::Result<BlockedSignals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is initialised by sigemptyset before it is used; `action` is written by the kernel
        // before it is read. JUSTIFICATION: rustix has neither masks nor actions.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed();
                let asked = libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                if asked == 0 && action.assume_init().sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
            }
            let set = set.assume_init();
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) {
                0 => Ok(BlockedSignals(set)),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for the next one.
    pub fn wait_next(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialised; the kernel fills `info`, all of whose bit patterns are valid.
        // JUSTIFICATION: rustix has no sigwaitinfo.
        let signal =
            retry_interrupted(|| unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) })?;
        // SAFETY: filled by the call that has just succeeded. JUSTIFICATION: as above.
        let info = unsafe { info.assume_init() };
        Ok(ReceivedSignal { signal, is_from_process: info.si_code <= 0 })
    }
}

/// A thread that can be woken.
#[derive(Clone, Copy, Debug)]
pub struct ThreadWaker {
    process: libc::pid_t,
    thread: libc::c_long,
}

extern "C" fn ignore_signal(_signal: libc::c_int) {}

fn wake_signal() -> libc::c_int {
    libc::SIGRTMAX() - 2
}

impl ThreadWaker {
    /// From now on this thread can be woken: the call that it waits in ends with EINTR.
    pub fn for_this_thread() -> io::Result<ThreadWaker> {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both structures are initialised before they are read; the handler touches nothing.
        // JUSTIFICATION: neither std nor rustix sets handlers.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = ignore_signal as *const () as usize;
            check_zero(libc::sigaction(wake_signal(), action.as_ptr(), ptr::null_mut()))?;
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), wake_signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
            Ok(ThreadWaker { process: libc::getpid(), thread: libc::syscall(libc::SYS_gettid) })
        }
    }

    /// Wakes it, if it waits right now. It may be about to wait: ask again until it has answered.
    pub fn wake(&self) {
        // SAFETY: numbers alone; the handler touches nothing. JUSTIFICATION: rustix sends no signal to a
        // thread of a number.
        unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.thread, wake_signal()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_says_that_a_process_sent_it() {
        std::thread::spawn(|| {
            let signals = BlockedSignals::block(&[libc::SIGUSR2]).unwrap();
            // SAFETY: sends a signal that this thread has blocked to this thread.
            // JUSTIFICATION: std sends no signals.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(
                signals.wait_next().unwrap(),
                ReceivedSignal { signal: libc::SIGUSR2, is_from_process: true }
            );
        })
        .join()
        .unwrap();
    }
}
