//! The lock of the mappings, held during a system call that changes them, so that events are recorded in the
//! order in which the kernel executed the calls. A fork holds it too, so that the child has a consistent
//! copy.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::shared_account::sched_yield;

static IS_HELD: AtomicU32 = AtomicU32::new(0);

/// Acquires the lock, or gives up after a timeout: if QEMU does not report the return of the holder's call,
/// the order of events may be wrong, and the program continues.
pub fn acquire() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let mut since = None;
    while IS_HELD.swap(1, Ordering::Acquire) != 0 {
        // SAFETY: touches no memory. JUSTIFICATION: std's yield is the same, but need not be.
        unsafe { sched_yield() };
        if since.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
            return;
        }
    }
}

pub fn release() {
    IS_HELD.store(0, Ordering::Release);
}
