//! Advice on memory of this process that something else owns.

use std::io;
use std::ops::Range;

use crate::map::MADV_COLLAPSE;

/// Puts what is there of these addresses of our own on huge pages now (`MADV_COLLAPSE`, Linux 6.1), as far as
/// whole ones fit. Contents stay. Addresses with nothing mapped at them are an error.
pub fn collapse(addresses: Range<usize>, huge: usize) -> io::Result<()> {
    let start = addresses.start.checked_next_multiple_of(huge.max(1)).unwrap_or(addresses.end);
    let end = addresses.end / huge.max(1) * huge.max(1);
    if start >= end {
        return Ok(());
    }
    // SAFETY: the kernel moves pages and changes no contents; wrong addresses are refused.
    // JUSTIFICATION: rustix does not know this advice.
    let done = unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay_and_too_little_is_left_alone() {
        let huge = 2 << 20;
        let words: Vec<u64> = (0..1 << 20).collect();
        let start = words.as_ptr() as usize;
        // Without huge pages in the kernel, or without room, it is refused; the words are the same.
        let _ = collapse(start..start + size_of_val(&words[..]), huge);
        assert!(words.iter().enumerate().all(|(at, &word)| word == at as u64));
        assert!(collapse(start..start + 8, huge).is_ok());
        assert!(collapse(0..huge, huge).is_err());
    }
}
