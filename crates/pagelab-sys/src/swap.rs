//! Enabling and disabling of a swap area.

use std::ffi::CStr;
use std::io;

use crate::wait::check_zero;

/// `SWAP_FLAG_PREFER` of include/linux/swap.h: the lowest bits are a priority.
const SWAP_FLAG_PREFER: i32 = 0x8000;
/// `SWAP_FLAG_PRIO_MASK`: the highest priority.
pub const PRIORITY_MAX: u16 = 0x7fff;

/// Uses the area at `path`, which has a swap header: with this priority, at most [`PRIORITY_MAX`] (the area
/// with the highest is filled first), or with the kernel's own, below all others.
pub fn swap_on(path: &CStr, priority: Option<u16>) -> io::Result<()> {
    let flags = priority.map_or(0, |priority| SWAP_FLAG_PREFER | i32::from(priority.min(PRIORITY_MAX)));
    // SAFETY: `path` ends in a zero byte and is only read.
    // JUSTIFICATION: neither std nor rustix wraps swapon(2).
    check_zero(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Reads all pages of the area at `path` back, and disables it. It takes as long as reading the area, and a
/// signal ends it without loss: pages read so far stay in memory, and the area stays in use.
pub fn swap_off(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` ends in a zero byte and is only read.
    // JUSTIFICATION: neither std nor rustix wraps swapoff(2).
    check_zero(unsafe { libc::swapoff(path.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_area_is_refused() {
        assert!(swap_on(c"/", None).is_err());
        assert!(swap_on(c"/", Some(PRIORITY_MAX)).is_err());
        assert!(swap_off(c"/").is_err());
    }
}
