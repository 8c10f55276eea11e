//! Advice on memory of another process (process_madvise), and the meaning of its errors.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

pub use pagelab_sys::advice::RemoteAdvice;
use pagelab_sys::advice::process_madvise;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `MADV_COLLAPSE` of include/uapi/asm-generic/mman-common.h (Linux 6.1), for a call by the process itself.
pub const MADV_COLLAPSE: u64 = 25;

/// A handle of a process: advice never reaches another one that has its number now.
pub fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Advises one range. An error is the kernel's number; a success is no proof of a huge page.
pub fn advise_range(process: BorrowedFd<'_>, range: &Range<u64>, advice: RemoteAdvice) -> Result<(), i32> {
    let result = process_madvise(process, range, advice);
    result.map(drop).map_err(|error| error.raw_os_error().unwrap_or(0))
}

/// Meaning of an error of MADV_COLLAPSE (mm/khugepaged.c, `madvise_collapse_errno`).
pub fn describe_collapse_error(number: i32) -> String {
    match number {
        libc::ENOMEM => {
            "no free huge page: memory is fragmented; hint: `pagelab compact`, `pagelab can`".to_owned()
        }
        libc::EAGAIN | libc::EBUSY => {
            "some of its pages were pinned or in use by a device or another process; hint: try again"
                .to_owned()
        }
        libc::EINVAL => {
            "never written, mapped or advised in smaller parts, or huge pages are disabled for it (EINVAL)"
                .to_owned()
        }
        libc::EPERM => {
            "not permitted from another process: requires CAP_SYS_NICE; hint: run as root".to_owned()
        }
        libc::ESRCH => "the program exited".to_owned(),
        number => format!("advice: {}", std::io::Error::from_raw_os_error(number)),
    }
}
