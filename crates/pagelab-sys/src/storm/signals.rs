//! Signals that a thread sends to itself and catches.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Storm, Until, repeat};

/// Signals that the handler saw.
static CAUGHT: AtomicU64 = AtomicU64::new(0);
/// One storm at a time: the handler and its count are the process's own.
static ONE: Mutex<()> = Mutex::new(());

extern "C" fn count(signal: libc::c_int) {
    if signal == libc::SIGUSR2 {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends SIGUSR2 to this thread until it is enough; each must have been caught before the next is sent. The
/// handler that was there before is put back.
pub fn signals(until: Until) -> io::Result<Storm> {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut before = empty();
    let mut mine = empty();
    mine.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
    // SAFETY: both structs are whole, and the handler touches one atomic only.
    // JUSTIFICATION: neither std nor rustix installs handlers.
    if unsafe { libc::sigaction(libc::SIGUSR2, &mine, &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    CAUGHT.store(0, Ordering::Relaxed);
    let mut sent = 0;
    let storm = repeat(until, || {
        sent += 1;
        // SAFETY: raise touches no memory; the signal has a handler.
        // JUSTIFICATION: neither std nor rustix sends a signal to the calling thread.
        if unsafe { libc::raise(libc::SIGUSR2) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match CAUGHT.load(Ordering::Relaxed) {
            caught if caught == sent => Ok(1),
            caught => Err(io::Error::other(format!("{sent} signals were sent and {caught} caught"))),
        }
    });
    // SAFETY: `before` is what the kernel gave. JUSTIFICATION: as above.
    let restored = unsafe { libc::sigaction(libc::SIGUSR2, &before, std::ptr::null_mut()) };
    if restored == 0 { storm } else { Err(io::Error::last_os_error()) }
}

fn empty() -> libc::sigaction {
    // SAFETY: all zeros is a value of this plain struct: the default action, no flags, an empty mask.
    // JUSTIFICATION: its fields differ by architecture.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_is_caught() {
        assert_eq!(signals(Until::Count(1000)).unwrap().operations, 1000);
        let mut now = empty();
        // SAFETY: `now` is writable. JUSTIFICATION: the handler is read back.
        unsafe { libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut now) };
        assert_eq!(now.sa_sigaction, libc::SIG_DFL, "the handler from before is back");
    }
}
