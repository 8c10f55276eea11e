//! Advice for another process's memory from outside of it (process_madvise), and what its refusals mean.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

pub use pagelab_sys::remote_advice::RemoteAdvice;
use pagelab_sys::remote_advice::process_madvise;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `MADV_COLLAPSE` of include/uapi/asm-generic/mman-common.h (Linux 6.1), for a call by the process itself.
pub const COLLAPSE: u64 = 25;

/// A hold on a process: advice never reaches another one that has got its number meanwhile.
pub fn hold(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Advises one range. An error is the kernel's number; a success is no proof that anything came of it.
pub fn advise(process: BorrowedFd<'_>, range: &Range<u64>, advice: RemoteAdvice) -> Result<(), i32> {
    let done = process_madvise(process, std::slice::from_ref(range), advice);
    done.map(drop).map_err(|error| error.raw_os_error().unwrap_or(0))
}

/// What an error of MADV_COLLAPSE means (mm/khugepaged.c, `madvise_collapse_errno`).
pub fn refusal(number: i32) -> String {
    match number {
        libc::ENOMEM => "no free huge page and none could be made: memory is fragmented; `pagelab compact` \
                         makes room, `pagelab can` says how many there are"
            .to_owned(),
        libc::EAGAIN | libc::EBUSY => {
            "pages of it were held or busy (a device, another process); try again".to_owned()
        }
        libc::EINVAL => {
            "never written, mapped or allowed by the program in smaller parts, or huge pages are \
                         switched off for it (EINVAL)"
                .to_owned()
        }
        libc::EPERM => "not permitted from outside: CAP_SYS_NICE is missing, run as root".to_owned(),
        libc::ESRCH => "the program ended".to_owned(),
        number => format!("advice: {}", std::io::Error::from_raw_os_error(number)),
    }
}
