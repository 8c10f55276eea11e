//! A mapping at an address of the caller's choice, and pages of the huge-page pool in parts of it.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use pagelab_model::Bytes;

use super::Mapping;

impl Mapping {
    /// Maps `len` bytes, rounded up to base pages, from the address `start` on, with a guard page on either
    /// side. Nothing is touched yet. `EEXIST` where something is mapped there already: it is never replaced.
    pub fn anonymous_at(start: u64, len: Bytes) -> io::Result<Mapping> {
        let page = rustix::param::page_size();
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let start = usize::try_from(start).ok().filter(|start| start.is_multiple_of(page));
        let first = start.and_then(|start| start.checked_sub(page)).filter(|&first| first > 0);
        let first = first.ok_or_else(wrong)?;
        let len = usize::try_from(len.0).ok().and_then(|len| len.checked_next_multiple_of(page));
        let len = len.filter(|&len| len > 0).ok_or_else(wrong)?;
        let reserved_len = len.checked_add(2 * page).ok_or_else(wrong)?;
        // Before 4.17 the kernel does not know the flag, and takes the address as a wish.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let wanted = std::ptr::without_provenance_mut::<libc::c_void>(first);
        // SAFETY: a new anonymous mapping that replaces nothing changes no memory that exists.
        // JUSTIFICATION: a list of addresses of an earlier run means something only at the same addresses.
        let raw = unsafe { libc::mmap(wanted, reserved_len, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved = NonNull::new(raw).ok_or_else(wrong)?;
        // SAFETY: the reservation has two pages more than `len`, so the pointer stays inside.
        // JUSTIFICATION: the pointer must keep the provenance of the mapping.
        let begin = unsafe { reserved.byte_add(page) }.cast::<u64>();
        let mapping = Mapping { reserved, reserved_len, start: begin, len };
        if reserved.addr().get() != first {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range lies in the reservation that `mapping` owns and that nobody else has seen.
        // JUSTIFICATION: only the middle part may be accessible; the rest are guards.
        let opened = unsafe { libc::mprotect(mapping.start.as_ptr().cast(), len, access) };
        if opened == 0 { Ok(mapping) } else { Err(io::Error::last_os_error()) }
    }

    /// Puts pages of `huge` bytes from the pool of huge pages (hugetlb) in the place of a part, given in
    /// bytes from the start; both ends are multiples of `huge`. What was there is gone: it reads as zeros.
    /// `ENOMEM` where the pool has too few, `EINVAL` where the kernel has no pages of this size.
    ///
    /// On an error the mapping is given up, and its addresses stay taken until the process ends: kernels
    /// before 6.12 take the old part away before they ask the pool (mm/mmap.c, `mmap_region`), and whether
    /// another thread has mapped something into the gap since cannot be told.
    pub fn with_hugetlb(self, part: Range<u64>, huge: Bytes) -> io::Result<Mapping> {
        let sane = part.start < part.end && part.end <= self.len as u64 && huge.0.is_power_of_two();
        let first = self.start.addr().get() as u64 + part.start;
        let len = part.end.saturating_sub(part.start);
        if !sane || !first.is_multiple_of(huge.0) || !len.is_multiple_of(huge.0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let size = (huge.0.ilog2() as libc::c_int) << libc::MAP_HUGE_SHIFT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_HUGETLB | size;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: part.start < len, so the pointer stays in the mapping.
        // JUSTIFICATION: the address must be told to the kernel.
        let at = unsafe { self.start.byte_add(part.start as usize) };
        // SAFETY: the range lies in memory that `self` owns by value, so there is no view of it. The new
        // pages are readable, writable and zeros. If the kernel refuses, `self` is forgotten below.
        // JUSTIFICATION: the part must have the same addresses as before.
        let raw = unsafe { libc::mmap(at.as_ptr().cast(), len as usize, access, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            std::mem::forget(self);
            return Err(error);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Advice;

    const LEN: u64 = 4 << 20;

    /// Far from where the kernel puts mappings whose place it chooses; only the test below lies there.
    const PLACE: u64 = 0x2000_0000_0000;

    #[test]
    fn a_mapping_lies_where_it_is_wanted_and_replaces_nothing() {
        let mut map = Mapping::anonymous_at(PLACE, Bytes(LEN)).unwrap();
        assert_eq!(map.addresses(), PLACE..PLACE + LEN);
        assert!(map.words().iter().all(|&word| word == 0));
        *map.words_mut().last_mut().unwrap() = 7;
        let taken = Mapping::anonymous_at(PLACE + LEN / 2, Bytes(LEN)).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EEXIST));
        assert_eq!(map.words().last(), Some(&7));
        for wrong in [0, 1, PLACE + 1, !0xffff] {
            assert!(Mapping::anonymous_at(wrong, Bytes(LEN)).is_err(), "{wrong:#x}");
        }
        assert!(Mapping::anonymous_at(PLACE, Bytes(0)).is_err());
        drop(map);
        drop(Mapping::anonymous_at(PLACE, Bytes(LEN)).unwrap());
    }

    #[test]
    fn pages_of_the_pool_come_whole_or_not_at_all() {
        let huge = 2 << 20;
        let map = || Mapping::anonymous(Bytes(LEN), Bytes(LEN)).unwrap();
        for part in [1..huge, 0..huge + 1, 0..0, LEN..LEN + huge] {
            let error = map().with_hugetlb(part.clone(), Bytes(huge)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{part:?}");
        }
        let mut before = map();
        before.words_mut()[0] = 7;
        match before.with_hugetlb(0..huge, Bytes(huge)) {
            Ok(mut map) => {
                map.advise(0..huge, Advice::PopulateWrite).unwrap();
                assert!(map.words().iter().all(|&word| word == 0));
            }
            // What a machine without such pages, or with an empty pool, says.
            Err(error) => {
                let code = error.raw_os_error();
                assert!(matches!(code, Some(libc::ENOMEM | libc::EINVAL | libc::ENOSYS)), "{error}");
            }
        }
    }
}
