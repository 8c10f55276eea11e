//! The lock of the mappings: taken before a call that changes them, given back after it, so that what is
//! written down has the order in which the kernel did it. A fork holds it too, so that the child finds all
//! in order.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::arena::sched_yield;

static HELD: AtomicU32 = AtomicU32::new(0);

/// Waits for the lock.
pub fn take() {
    while HELD.swap(1, Ordering::Acquire) != 0 {
        // SAFETY: touches no memory. JUSTIFICATION: std's yield is the same, but need not be.
        unsafe { sched_yield() };
    }
}

/// Gives it back.
pub fn give() {
    HELD.store(0, Ordering::Release);
}
