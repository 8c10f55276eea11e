//! Advice on memory: of another process (`process_madvise`, Linux 5.10), through its descriptor, and of this
//! process, where another owner holds it.
//!
//! A success code is no proof: the kernel returns the number of bytes it processed, not what it did there. A
//! caller that needs the result reads the mapping back.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::mapping::MADV_COLLAPSE;
use crate::wait::check_zero;

/// Advice for another process's memory, in the kernel's numbers (include/uapi/asm-generic/mman-common.h;
/// `process_madvise_remote_valid` of mm/madvise.c has the list: no advice that frees or changes contents).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum RemoteAdvice {
    /// On huge pages now (`MADV_COLLAPSE`; remote since 6.1). EINVAL where nothing was ever touched or the
    /// program has huge pages switched off wholly, ENOMEM where no huge page is free, EAGAIN where a page is
    /// held.
    Collapse = MADV_COLLAPSE,
    /// Not needed soon (`MADV_COLD`; remote since 5.10). For part of a huge page it splits the page into base
    /// pages first, if no other process maps it; contents stay.
    Cold = libc::MADV_COLD,
}

/// Advises a range of the memory of the process behind `pidfd`, and returns the number of bytes the kernel
/// processed. An error means that its first page failed already.
///
/// EPERM: CAP_SYS_NICE is missing, and for an own process too. EACCES: it may not be read by us (ptrace's
/// rule). ESRCH: it has exited. A range begins and ends at pages.
pub fn process_madvise(pidfd: BorrowedFd<'_>, range: &Range<u64>, advice: RemoteAdvice) -> io::Result<u64> {
    let vector = to_iovec(range).ok_or(io::ErrorKind::InvalidInput)?;
    let (fd, count) = (libc::c_long::from(pidfd.as_raw_fd()), 1usize);
    let (advice, no_flags) = (libc::c_long::from(advice as libc::c_int), 0 as libc::c_ulong);
    // SAFETY: `vector` is one iovec that lives through the call, and the kernel only reads it; the addresses
    // in it are of the other process and are never followed here. Every advice of the enum keeps contents,
    // also where the other process is this one.
    // JUSTIFICATION: neither rustix nor libc has a function for process_madvise.
    let done =
        unsafe { libc::syscall(libc::SYS_process_madvise, fd, &raw const vector, count, advice, no_flags) };
    u64::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn to_iovec(range: &Range<u64>) -> Option<libc::iovec> {
    let len = range.end.checked_sub(range.start)?;
    let base = usize::try_from(range.start).ok()?;
    Some(libc::iovec {
        iov_base: std::ptr::without_provenance_mut(base),
        iov_len: usize::try_from(len).ok()?,
    })
}

/// Collapses the whole huge pages in these addresses of this process (`MADV_COLLAPSE`, Linux 6.1). Contents
/// stay. Addresses with nothing mapped at them are an error.
pub fn collapse_range(addresses: Range<usize>, huge: usize) -> io::Result<()> {
    let start = addresses.start.checked_next_multiple_of(huge.max(1)).unwrap_or(addresses.end);
    let end = addresses.end / huge.max(1) * huge.max(1);
    if start >= end {
        return Ok(());
    }
    // SAFETY: the kernel moves pages and changes no contents; wrong addresses are refused.
    // JUSTIFICATION: rustix does not know this advice.
    check_zero(unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use pagelab_model::Bytes;
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::mapping::{Advice, Mapping};
    use crate::pagemap_scan::huge_bytes;

    const HUGE: u64 = 2 << 20;

    /// Round trip on this process's memory, which needs no privilege: huge, split by one cold page, huge
    /// again, with unchanged contents.
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
        let advise = |range: Range<u64>, advice| process_madvise(me.as_fd(), &range, advice);
        match advise(range.clone(), RemoteAdvice::Collapse) {
            Ok(done) => assert_eq!(done, all.end),
            // No huge page is free here, or the kernel is older than 6.1.
            Err(_) => return,
        }
        // Before 6.7 it cannot be read back page by page.
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
        assert!(process_madvise(me.as_fd(), &(1..2), RemoteAdvice::Cold).is_err(), "no page begins there");
        let backwards = Range { start: 5, end: 1 };
        assert!(process_madvise(me.as_fd(), &backwards, RemoteAdvice::Cold).is_err());
        assert!(Pid::from_raw(i32::MAX).is_some_and(|pid| pidfd_open(pid, PidfdFlags::empty()).is_err()));
    }

    #[test]
    fn contents_stay_and_too_little_is_left_alone() {
        let huge = 2 << 20;
        let words: Vec<u64> = (0..1 << 20).collect();
        let start = words.as_ptr() as usize;
        // Without huge pages in the kernel, or without room, it is refused; the words are the same.
        let _ = collapse_range(start..start + size_of_val(&words[..]), huge);
        assert!(words.iter().enumerate().all(|(at, &word)| word == at as u64));
        assert!(collapse_range(start..start + 8, huge).is_ok());
        assert!(collapse_range(0..huge, huge).is_err());
    }
}
