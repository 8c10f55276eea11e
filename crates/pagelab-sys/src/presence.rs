//! Whether the kernel knows a call, asked in a way that changes nothing.

use std::io;

use crate::map::MADV_COLLAPSE;

/// Whether madvise knows MADV_COLLAPSE: the kernel checks the advice before the length, and a length of
/// zero ends there (mm/madvise.c, `is_valid_madvise`).
pub fn madvise_collapse() -> io::Result<()> {
    // SAFETY: a range of length zero names no memory, so nothing can be changed.
    // JUSTIFICATION: rustix's madvise does not have this advice.
    let answer = unsafe { libc::madvise(std::ptr::null_mut(), 0, MADV_COLLAPSE) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether process_madvise is there (5.10 and later): asked of a descriptor that cannot be one. EBADF is
/// the yes, ENOSYS the no.
pub fn process_madvise() -> io::Result<()> {
    let (no_fd, no_ranges, advice, flags) = (-1 as libc::c_long, 0usize, MADV_COLLAPSE, 0u32);
    // SAFETY: the list of ranges has no entries, so its address is not read, and no process is named.
    // JUSTIFICATION: neither std nor rustix wraps process_madvise.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            no_fd,
            std::ptr::null::<libc::iovec>(),
            no_ranges,
            advice,
            flags,
        )
    };
    let error = io::Error::last_os_error();
    if answer == 0 || error.raw_os_error() == Some(libc::EBADF) { Ok(()) } else { Err(error) }
}

/// Whether there is a process of this number, whosever it is.
pub fn process(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // EPERM means that it is there and somebody else's.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// The kernel's log as text by the syslog call, for a machine without `/dev/kmsg`. Messages already
/// overwritten in the ring are gone; nothing is cleared by reading.
pub fn kernel_log() -> io::Result<Vec<u8>> {
    const READ_ALL: libc::c_int = 3;
    const SIZE_BUFFER: libc::c_int = 10;
    /// The largest buffer asked for; CONFIG_LOG_BUF_SHIFT ends at 25.
    const LARGEST: libc::c_int = 1 << 25;
    // SAFETY: SIZE_BUFFER takes no buffer.
    // JUSTIFICATION: neither std nor rustix wraps syslog(2).
    let size = unsafe { libc::klogctl(SIZE_BUFFER, std::ptr::null_mut(), 0) };
    if size < 0 {
        return Err(io::Error::last_os_error());
    }
    let size = size.min(LARGEST);
    let mut text = vec![0u8; size as usize];
    // SAFETY: `text` is writable for `size` bytes, and the kernel writes at most so many.
    // JUSTIFICATION: as above.
    let read = unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), size) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    text.truncate(read as usize);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_there_or_not() {
        assert!(process(std::process::id()) && process(1));
        assert!(!process(0) && !process(u32::MAX) && !process(i32::MAX as u32));
    }

    #[test]
    fn each_question_ends_in_yes_or_in_the_words_that_mean_no() {
        let cases = [
            ("collapse", madvise_collapse(), libc::EINVAL),
            ("process_madvise", process_madvise(), libc::ENOSYS),
        ];
        for (what, answer, no) in cases {
            let said = answer.err().map(|error| error.raw_os_error());
            assert!(said.is_none() || said == Some(Some(no)), "{what}: {said:?}");
        }
    }
}
