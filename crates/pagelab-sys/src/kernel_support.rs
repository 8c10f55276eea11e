//! Detection of a system call in the kernel, without side effects.

use std::io;

use crate::mapping::MADV_COLLAPSE;
use crate::wait::check_zero;

/// Whether madvise knows MADV_COLLAPSE: the kernel checks the advice before the length, and a length of
/// zero ends there (mm/madvise.c, `is_valid_madvise`).
pub fn probe_madvise_collapse() -> io::Result<()> {
    // SAFETY: a range of length zero names no memory, so nothing can be changed.
    // JUSTIFICATION: rustix's madvise does not have this advice.
    check_zero(unsafe { libc::madvise(std::ptr::null_mut(), 0, MADV_COLLAPSE) })
}

/// Whether process_madvise exists (5.10 and later): tested with an invalid descriptor. EBADF is the yes,
/// ENOSYS the no.
pub fn probe_process_madvise() -> io::Result<()> {
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
pub fn process_exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // EPERM means that it exists and belongs to another user.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// The user whose rights this process has.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The kernel's log as text by the syslog call, for a machine without `/dev/kmsg`. Messages already
/// overwritten in the ring are lost; reading clears nothing.
pub fn read_kernel_log() -> io::Result<Vec<u8>> {
    const ACTION_READ_ALL: libc::c_int = 3;
    const ACTION_SIZE_BUFFER: libc::c_int = 10;
    /// Largest buffer requested; CONFIG_LOG_BUF_SHIFT ends at 25.
    const BUFFER_BYTES_MAX: libc::c_int = 1 << 25;
    // SAFETY: SIZE_BUFFER takes no buffer.
    // JUSTIFICATION: neither std nor rustix wraps syslog(2).
    let size = unsafe { libc::klogctl(ACTION_SIZE_BUFFER, std::ptr::null_mut(), 0) };
    if size < 0 {
        return Err(io::Error::last_os_error());
    }
    let size = size.min(BUFFER_BYTES_MAX);
    let mut text = vec![0u8; size as usize];
    // SAFETY: `text` is writable for `size` bytes, and the kernel writes at most that number. JUSTIFICATION:
    // as above.
    let read = unsafe { libc::klogctl(ACTION_READ_ALL, text.as_mut_ptr().cast(), size) };
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
        assert!(process_exists(std::process::id()) && process_exists(1));
        assert!(!process_exists(0) && !process_exists(u32::MAX) && !process_exists(i32::MAX as u32));
    }

    #[test]
    fn each_question_ends_in_yes_or_in_the_words_that_mean_no() {
        let cases = [
            ("collapse", probe_madvise_collapse(), libc::EINVAL),
            ("process_madvise", probe_process_madvise(), libc::ENOSYS),
        ];
        for (what, answer, no) in cases {
            let said = answer.err().map(|error| error.raw_os_error());
            assert!(said.is_none() || said == Some(Some(no)), "{what}: {said:?}");
        }
    }
}
