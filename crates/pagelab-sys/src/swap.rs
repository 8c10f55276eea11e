//! Switching a swap area on and off.

use std::ffi::CStr;
use std::io;

/// `SWAP_FLAG_PREFER` of include/linux/swap.h: the lowest bits are a priority.
const PREFER: i32 = 0x8000;
/// `SWAP_FLAG_PRIO_MASK`: the highest priority.
pub const PRIORITY_MAX: u16 = 0x7fff;

/// Uses the area at `path`, which has a swap header: with this priority, at most [`PRIORITY_MAX`] (the area
/// with the highest is filled first), or with the kernel's own, below all others.
pub fn on(path: &CStr, priority: Option<u16>) -> io::Result<()> {
    let flags = priority.map_or(0, |priority| PREFER | i32::from(priority.min(PRIORITY_MAX)));
    // SAFETY: `path` ends in a zero byte and is only read.
    // JUSTIFICATION: neither std nor rustix wraps swapon(2).
    if unsafe { libc::swapon(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings back what is in the area at `path`, and uses it no more. It takes as long as reading it takes, and
/// a signal ends it with nothing lost: what came back stays, and the area is in use as before.
pub fn off(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` ends in a zero byte and is only read.
    // JUSTIFICATION: neither std nor rustix wraps swapoff(2).
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_area_is_refused() {
        assert!(on(c"/", None).is_err());
        assert!(on(c"/", Some(PRIORITY_MAX)).is_err());
        assert!(off(c"/").is_err());
    }
}
