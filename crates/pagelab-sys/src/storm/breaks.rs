//! The program break moved up and down, in a child of its own: the break of this process belongs to its
//! allocator, which must never see it moved by anybody else.

use std::io::{self, Read};
use std::os::fd::AsRawFd;

use super::children::wait_for;
use super::{Storm, Until};

/// Pages that are given back at once and taken again one by one, as AIM9 does.
const PAGES: usize = 16;
/// A byte is written in each so many bytes of a page that came, as AIM9 does.
const STRIDE: usize = 128;
/// Numbers that the child says: operations, nanoseconds, what went wrong.
const WORDS: usize = 3;
/// The word of a child whose new page was not zero.
const NOT_ZERO: u64 = u64::MAX;

/// Moves the break: up by `size` bytes (rounded up to pages, at least 16 of them), then, until it is enough,
/// down by 16 pages and up again page by page. An operation is one page that comes back. With `is_touched`,
/// every page that comes must be zero, and is written to.
pub fn breaks(size: u64, is_touched: bool, until: Until) -> io::Result<Storm> {
    let page = rustix::param::page_size();
    let size = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let size = size.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?.max(PAGES * page);
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: the child runs `child`, which makes only calls that are allowed after a fork of a program with
    // threads (brk, clock_gettime, write), touches only memory that the break gave it, and ends by _exit.
    // JUSTIFICATION: the allocator of this process must not see its break moved, so a copy of it does that.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            let said = match child(page, size, is_touched, until) {
                Ok(storm) => [storm.operations, storm.took_ns, 0],
                Err(what) => [0, 0, what],
            };
            // SAFETY: `said` is read whole, and _exit runs nothing of the parent's.
            // JUSTIFICATION: as above.
            unsafe {
                libc::write(writer.as_raw_fd(), said.as_ptr().cast(), size_of_val(&said));
                libc::_exit(0)
            }
        }
        _ => drop(writer),
    }
    let mut said = [0; WORDS * size_of::<u64>()];
    let read = reader.read_exact(&mut said);
    let status = wait_for(pid)?;
    read.map_err(|_| io::Error::other(format!("the child ended with status {status:#x}")))?;
    let word = |at: usize| {
        said.as_chunks::<{ size_of::<u64>() }>().0.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    match word(2) {
        0 => Ok(Storm { operations: word(0), took_ns: word(1) }),
        NOT_ZERO => Err(io::Error::other("a new page of the break was not zero")),
        errno => Err(io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EIO))),
    }
}

/// The child's part. The error is an errno or `NOT_ZERO`.
fn child(page: usize, size: usize, is_touched: bool, until: Until) -> Result<Storm, u64> {
    let first = break_at(0).checked_next_multiple_of(page).ok_or(libc::ENOMEM as u64)?;
    let top = first.checked_add(size).ok_or(libc::ENOMEM as u64)?;
    move_to(top)?;
    let began = crate::clock::monotonic_ns();
    let mut operations = 0u64;
    loop {
        let low = top - PAGES * page;
        move_to(low)?;
        for place in (low..top).step_by(page) {
            move_to(place + page)?;
            if is_touched {
                touch(place, page)?;
            }
        }
        operations += PAGES as u64;
        let took_ns = crate::clock::monotonic_ns().saturating_sub(began);
        if until.is_reached(operations, took_ns) {
            return Ok(Storm { operations, took_ns });
        }
    }
}

/// Asks for a break; where it is then. It stays where it was if the kernel refuses, and for 0.
fn break_at(wanted: usize) -> usize {
    // SAFETY: this child has no other user of its break: libc's own record of it is not used by anything that
    // runs before _exit. JUSTIFICATION: libc's sbrk would move libc's record too.
    unsafe { libc::syscall(libc::SYS_brk, wanted) as usize }
}

fn move_to(wanted: usize) -> Result<(), u64> {
    if break_at(wanted) == wanted { Ok(()) } else { Err(libc::ENOMEM as u64) }
}

/// Writes a byte every so often in the page that begins at `place`, which must be zero before.
fn touch(place: usize, page: usize) -> Result<(), u64> {
    for at in (place..place + page).step_by(STRIDE) {
        let byte = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: the byte lies below the break and above where it was, so it is memory that the kernel gave
        // and that nothing else uses. JUSTIFICATION: memory of the break has no other name than its address.
        let was = unsafe { byte.replace(b' ') };
        if was != 0 {
            return Err(NOT_ZERO);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_break_come_back_zeroed() {
        for is_touched in [false, true] {
            let storm = breaks(1 << 20, is_touched, Until::Count(100)).unwrap();
            assert_eq!(storm.operations, 112, "seven rounds of sixteen pages");
            assert!(storm.took_ns > 0);
        }
        assert!(breaks(u64::MAX, false, Until::Count(1)).is_err());
        let huge = breaks(1 << 62, false, Until::Count(1)).unwrap_err();
        assert_eq!(huge.raw_os_error(), Some(libc::ENOMEM));
    }
}
