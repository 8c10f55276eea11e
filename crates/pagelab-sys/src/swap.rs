//! Switching a swap area on.

use std::ffi::CStr;
use std::io;

/// Uses the area at `path`, which has a swap header, with the kernel's own priority.
pub fn on(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` ends in a zero byte and is only read.
    // JUSTIFICATION: neither std nor rustix wraps swapon(2).
    if unsafe { libc::swapon(path.as_ptr(), 0) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_area_is_refused() {
        assert!(on(c"/").is_err());
    }
}
