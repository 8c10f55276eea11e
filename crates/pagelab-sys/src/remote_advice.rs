//! Advice on memory of another process (`process_madvise`, Linux 5.10), through its descriptor.
//!
//! A success code is no proof: the kernel says over how many bytes it went, not what it did there. Whoever
//! needs to know reads the mapping back.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::map::MADV_COLLAPSE;

/// What another process's memory can be advised, in the kernel's numbers
/// (include/uapi/asm-generic/mman-common.h; `process_madvise_remote_valid` of mm/madvise.c has the list: no
/// advice that frees or changes contents).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteAdvice {
    /// On huge pages now (`MADV_COLLAPSE`; remote since 6.1). EINVAL where nothing was ever touched or the
    /// program has huge pages switched off wholly, ENOMEM where no huge page is free, EAGAIN where a page is
    /// held.
    Collapse,
    /// Not needed soon (`MADV_COLD`; remote since 5.10). Over a part of a huge page it splits the page into
    /// base pages first, if nobody else maps it; contents stay.
    Cold,
    /// Not needed: to be written to swap (`MADV_PAGEOUT`; remote since 5.10). It splits as `Cold` does.
    PageOut,
    /// Needed soon: to be read in (`MADV_WILLNEED`; remote since 5.10).
    WillNeed,
}

impl RemoteAdvice {
    fn number(self) -> libc::c_int {
        match self {
            RemoteAdvice::Collapse => MADV_COLLAPSE,
            RemoteAdvice::Cold => libc::MADV_COLD,
            RemoteAdvice::PageOut => libc::MADV_PAGEOUT,
            RemoteAdvice::WillNeed => libc::MADV_WILLNEED,
        }
    }
}

/// The most ranges of one call: `UIO_MAXIOV` of include/uapi/linux/uio.h.
pub const RANGES_MAX: usize = 1024;

/// Advises ranges of the memory of the process behind `pidfd`, in their order, and gives over how many bytes
/// the kernel went before it stopped: all of them, or fewer where a range failed after others had not. An
/// error means that the first range failed already.
///
/// EPERM: CAP_SYS_NICE is missing, and for an own process too. EACCES: it may not be read by us (ptrace's
/// rule). ESRCH: it is gone. Ranges begin and end at pages. More than [`RANGES_MAX`] ranges are EINVAL.
pub fn process_madvise(
    pidfd: BorrowedFd<'_>,
    ranges: &[Range<u64>],
    advice: RemoteAdvice,
) -> io::Result<u64> {
    let vectors: Option<Vec<libc::iovec>> = ranges.iter().map(vector).collect();
    let vectors = vectors.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (fd, count) = (libc::c_long::from(pidfd.as_raw_fd()), vectors.len());
    let (advice, no_flags) = (libc::c_long::from(advice.number()), 0 as libc::c_ulong);
    // SAFETY: `vectors` is `count` iovecs that live through the call, and the kernel only reads them; the
    // addresses in them are of the other process and are never followed here. Every advice of the enum keeps
    // contents, also where the other process is this one.
    // JUSTIFICATION: neither rustix nor libc has a function for process_madvise.
    let done =
        unsafe { libc::syscall(libc::SYS_process_madvise, fd, vectors.as_ptr(), count, advice, no_flags) };
    u64::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn vector(range: &Range<u64>) -> Option<libc::iovec> {
    let len = range.end.checked_sub(range.start)?;
    let base = usize::try_from(range.start).ok()?;
    Some(libc::iovec {
        iov_base: std::ptr::without_provenance_mut(base),
        iov_len: usize::try_from(len).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use pagelab_model::Bytes;
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::map::{Advice, Mapping};
    use crate::pagemap_scan::huge_bytes;

    const HUGE: u64 = 2 << 20;

    /// The whole way there and back, on memory of this process, which needs no privilege: huge, split by one
    /// cold page, huge again, and what was written is there all the time.
    #[test]
    fn a_huge_page_comes_and_is_split_by_one_cold_page_and_keeps_what_is_in_it() {
        let mut mapping = Mapping::anonymous(Bytes(4 * HUGE), Bytes(HUGE)).expect("16 pages of memory");
        let all = 0..mapping.len().0;
        mapping.advise(all, Advice::NoHugePage).expect("advice");
        for (at, word) in mapping.words_mut().iter_mut().enumerate() {
            *word = at as u64 ^ 0x5eed;
        }
        let all = 0..mapping.len().0;
        mapping.advise(all.clone(), Advice::HugePage).expect("advice");
        let range = mapping.addresses();
        let start = range.start;
        let me = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
        let pagemap = File::open("/proc/self/pagemap").expect("pagemap");
        let huge = || huge_bytes(&pagemap, range.clone());
        let advise = |range: Range<u64>, advice| process_madvise(me.as_fd(), &[range], advice);
        match advise(range.clone(), RemoteAdvice::Collapse) {
            Ok(done) => assert_eq!(done, all.end),
            // No huge page is free here, or the kernel is older than 6.1.
            Err(_) => return,
        }
        // Before 6.7 nobody can read it back page by page.
        let Ok(bytes) = huge() else { return };
        assert_eq!(bytes.0, all.end, "read back");
        let page = rustix::param::page_size() as u64;
        assert_eq!(advise(start + page..start + 2 * page, RemoteAdvice::Cold).expect("cold"), page);
        let bytes = huge().expect("read back");
        assert_eq!(bytes.0, all.end - HUGE, "one page is split, and only that");
        advise(start..start + HUGE, RemoteAdvice::Collapse).expect("huge again");
        let is_whole = |(at, word): (usize, &mut u64)| *word == at as u64 ^ 0x5eed;
        assert!(mapping.words_mut().iter_mut().enumerate().all(is_whole), "contents stay");
    }

    #[test]
    fn a_refusal_is_an_error() {
        let me = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
        let odd = std::slice::from_ref(&(1..2));
        assert!(process_madvise(me.as_fd(), odd, RemoteAdvice::Cold).is_err(), "no page begins there");
        let backwards = Range { start: 5, end: 1 };
        assert!(process_madvise(me.as_fd(), &[backwards], RemoteAdvice::Cold).is_err());
        assert!(Pid::from_raw(i32::MAX).is_some_and(|pid| pidfd_open(pid, PidfdFlags::empty()).is_err()));
    }
}
