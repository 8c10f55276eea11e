//! The lock of the mappings: taken before a call that changes them, given back after it, so that what is
//! written down has the order in which the kernel did it. A fork holds it too, so that the child finds all
//! in order.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::arena::sched_yield;

static HELD: AtomicU32 = AtomicU32::new(0);

/// Waits for the lock, but not for ever: if the one that holds it were never told that its call has
/// returned, the order of events may be wrong, and the program goes on.
pub fn take() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let mut since = None;
    while HELD.swap(1, Ordering::Acquire) != 0 {
        // SAFETY: touches no memory. JUSTIFICATION: std's yield is the same, but need not be.
        unsafe { sched_yield() };
        if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return;
        }
    }
}

/// Gives it back.
pub fn give() {
    HELD.store(0, Ordering::Release);
}
