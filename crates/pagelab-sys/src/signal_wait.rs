//! Signals waited for by a thread, with who sent them: what a person typed on a terminal reaches all of its
//! foreground processes, what another process sent reaches one.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Its number.
    pub signal: i32,
    /// Another process sent it, to this one: not the kernel (SI_KERNEL) for all of a terminal.
    pub is_from_process: bool,
}

/// Signals that are blocked for the calling thread and the threads that it starts.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks these. One that is ignored stays so, and never comes.
    pub fn block(signals: &[i32]) -> io::Result<Signals> {
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
                0 => Ok(Signals(set)),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for the next one.
    pub fn wait(&self) -> io::Result<Came> {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the set is initialised; the kernel fills `info`, all of whose bit patterns are valid.
            // JUSTIFICATION: rustix has no sigwaitinfo.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: filled by the call that has just succeeded. JUSTIFICATION: as above.
                let info = unsafe { info.assume_init() };
                return Ok(Came { signal, is_from_process: info.si_code <= 0 });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_says_that_a_process_sent_it() {
        std::thread::spawn(|| {
            let signals = Signals::block(&[libc::SIGUSR2]).unwrap();
            // SAFETY: sends a signal that this thread has blocked to this thread.
            // JUSTIFICATION: std sends no signals.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(signals.wait().unwrap(), Came { signal: libc::SIGUSR2, is_from_process: true });
        })
        .join()
        .unwrap();
    }
}
