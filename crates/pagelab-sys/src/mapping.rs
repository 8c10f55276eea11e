//! Private anonymous memory: owned, aligned, and accessed as words.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use pagelab_model::Bytes;

use crate::wait::{check_zero, retry_interrupted};

/// Memory of this process between two inaccessible guards, so that the kernel never merges it with a
/// neighbour, and readings of its address range contain nothing else. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    _reservation: Reservation,
    /// First word of the accessible part; aligned as requested.
    start: NonNull<u64>,
    /// Bytes of the accessible part: a multiple of the page size.
    len: usize,
}

/// Inaccessible addresses of this process, guards included. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    start: NonNull<libc::c_void>,
    len: usize,
}

impl Reservation {
    /// Room for `len` bytes, rounded up to base pages, at a multiple of `align`, with a guard page at least
    /// on either side; with the first address for them, and their rounded number.
    pub(crate) fn new(len: Bytes, align: Bytes) -> io::Result<(Reservation, NonNull<libc::c_void>, usize)> {
        let page = rustix::param::page_size();
        let invalid_input = || io::Error::from(io::ErrorKind::InvalidInput);
        let align = usize::try_from(align.0).map_err(|_| invalid_input())?.max(page);
        let len = usize::try_from(len.0).ok().and_then(|len| len.checked_next_multiple_of(page));
        let len = len.filter(|&len| len > 0 && align.is_power_of_two()).ok_or_else(invalid_input)?;
        let reserved_len = len.checked_add(align).and_then(|sum| sum.checked_add(2 * page));
        let reserved_len = reserved_len.ok_or_else(invalid_input)?;
        let reservation = Reservation::map(std::ptr::null_mut(), reserved_len, 0)?;
        // At least one guard page stays below: the start is moved up from one page after the reservation.
        let first = reservation.start.addr().get() + page;
        let offset = first.next_multiple_of(align) - reservation.start.addr().get();
        // SAFETY: offset <= page + align - 1, so offset + len is inside the reservation (see reserved_len).
        // JUSTIFICATION: the pointer must keep the provenance of the mapping.
        let start = unsafe { reservation.start.byte_add(offset) };
        Ok((reservation, start, len))
    }

    /// Maps `len` bytes, at `start` if it is not null; `flags` must not let them replace a mapping.
    fn map(start: *mut libc::c_void, len: usize, flags: libc::c_int) -> io::Result<Reservation> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
        // SAFETY: a new anonymous mapping that replaces nothing changes no memory that exists.
        // JUSTIFICATION: memory whose page size is under test must not come from an allocator, and a list of
        // addresses of an earlier run means something only at the same addresses.
        let raw = unsafe { libc::mmap(start, len, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Reservation { start, len })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the reservation is owned by this value, and no view of it can outlive it.
        // JUSTIFICATION: the memory must go back to the system.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

// SAFETY: the mapping is owned by this value alone, and nothing about it is bound to a thread. JUSTIFICATION:
// a probe may run on a separate thread, and raw pointers are not `Send` by themselves.
unsafe impl Send for Mapping {}

/// `MADV_COLLAPSE` (6.1), of include/uapi/asm-generic/mman-common.h.
pub(crate) const MADV_COLLAPSE: libc::c_int = 25;

/// `MPOL_BIND` of include/uapi/linux/mempolicy.h.
const MPOL_BIND: libc::c_int = 2;
/// Nodes that a kernel can have at most (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;
/// `MLOCK_ONFAULT` of include/uapi/asm-generic/mman.h.
const MLOCK_ONFAULT: libc::c_uint = 1;

/// Advice of `madvise` for a part of a mapping, in the numbers of include/uapi/asm-generic/mman-common.h: the
/// same on all architectures that Rust's std supports on Linux, except parisc and alpha.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Huge pages where they fit (`MADV_HUGEPAGE`, 2.6.38); takes back `NoHugePage`.
    HugePage = libc::MADV_HUGEPAGE,
    /// Base pages only (`MADV_NOHUGEPAGE`, 2.6.38); also keeps khugepaged and COLLAPSE away.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// Put the pages that are there on huge pages now (`MADV_COLLAPSE`, 6.1). One way: it cannot be undone.
    Collapse = MADV_COLLAPSE,
    /// Give the memory back; it reads as zeros afterwards (`MADV_DONTNEED`).
    DontNeed = libc::MADV_DONTNEED,
    /// Deactivate the pages (`MADV_COLD`, 5.4). A huge page of which the part is not the whole is split.
    Cold = 20,
    /// Fault every page in for writing, and return an error instead of a signal (`MADV_POPULATE_WRITE`,
    /// 5.14).
    PopulateWrite = 23,
    /// Fault every page in for reading (`MADV_POPULATE_READ`, 5.14): where nothing was written it is the
    /// zero page, so that page tables are all that is allocated.
    PopulateRead = 22,
}

impl Mapping {
    /// Maps `len` bytes, rounded up to base pages, that start at a multiple of `align`. Nothing is touched
    /// yet.
    /// `align` is a power of two; the page size is used if it is smaller.
    pub fn anonymous(len: Bytes, align: Bytes) -> io::Result<Mapping> {
        let (reservation, start, len) = Reservation::new(len, align)?;
        Mapping::open(reservation, start, len)
    }

    /// Makes the part of a reservation that begins at `start` accessible.
    fn open(reservation: Reservation, start: NonNull<libc::c_void>, len: usize) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is in the reservation that is owned here, and no other pointer into it exists.
        // JUSTIFICATION: only the middle part may be accessible; the rest are guards.
        check_zero(unsafe { libc::mprotect(start.as_ptr(), len, access) })?;
        Ok(Mapping { _reservation: reservation, start: start.cast(), len })
    }

    /// Bytes of the accessible part.
    pub fn len(&self) -> Bytes {
        Bytes(self.len as u64)
    }

    /// Whether there is nothing in it: never, but the question is usual.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The virtual addresses of the accessible part, for files that use addresses.
    pub fn addresses(&self) -> Range<u64> {
        let start = self.start.addr().get() as u64;
        start..start + self.len as u64
    }

    /// The memory as words. Fresh memory reads as zeros.
    pub fn words(&self) -> &[u64] {
        // SAFETY: start is aligned to a page, the `len` bytes are mapped readable until drop, anonymous
        // memory is always initialised, and every call that changes it takes `&mut self`.
        // JUSTIFICATION: a slice lets workloads be safe code, with bounds checks where they matter.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len / size_of::<u64>()) }
    }

    /// The memory as words to be changed.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and `&mut self` makes this the only view.
        // JUSTIFICATION: as in `words`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len / size_of::<u64>()) }
    }

    /// Advises the kernel about a part, given in bytes from the start; both ends are multiples of the page
    /// size.
    pub fn advise(&mut self, part: Range<u64>, advice: Advice) -> io::Result<()> {
        let page = rustix::param::page_size() as u64;
        let is_valid = part.start <= part.end && part.end <= self.len as u64;
        if !is_valid || !part.start.is_multiple_of(page) || !part.end.is_multiple_of(page) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: start is at most len, so the pointer stays in the mapping or one past its end.
        // JUSTIFICATION: the kernel needs the address.
        let at = unsafe { self.start.byte_add(part.start as usize) };
        let len = (part.end - part.start) as usize;
        // SAFETY: the range is in memory that `self` owns; `&mut self` excludes views of it, and each
        // advice leaves it mapped, readable and writable (DONTNEED turns it to zeros, which are valid
        // words). JUSTIFICATION: rustix names neither MADV_COLLAPSE nor all of the others.
        retry_interrupted(|| unsafe { libc::madvise(at.as_ptr().cast(), len, advice as libc::c_int) })
            .map(drop)
    }

    /// The memory of this mapping comes from one node only (`mbind` with `MPOL_BIND`, 2.6.7). If the node has
    /// no memory left, the OOM killer runs, so a caller that binds leaves a reserve. Nothing may be touched
    /// yet: present pages stay where they are.
    pub fn bind_to_node(&mut self, node: u32) -> io::Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask: [libc::c_ulong; NODES_MAX / BITS] = [0; NODES_MAX / BITS];
        let word = mask.get_mut(node as usize / BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node as usize % BITS);
        // The kernel reads one bit less than the given number (mm/mempolicy.c, `get_nodes`).
        let bits = NODES_MAX + 1;
        // SAFETY: the range is owned by `self`, and `mask` has `NODES_MAX` bits that are only read.
        // JUSTIFICATION: neither libc nor rustix wraps mbind(2).
        check_zero(unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.len,
                libc::c_long::from(MPOL_BIND),
                mask.as_ptr(),
                bits,
                0usize,
            )
        })
    }

    /// Keeps the pages that are there from being swapped out, and those that come later too (`mlock2` with
    /// `MLOCK_ONFAULT`, 4.4). It does not keep them where they are.
    pub fn lock_present(&mut self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; locking changes no content.
        // JUSTIFICATION: rustix has mlock2 for raw pointers only, which would be unsafe as well.
        check_zero(unsafe { libc::mlock2(self.start.as_ptr().cast(), self.len, MLOCK_ONFAULT) })
    }

    /// Unlocks: locked memory cannot be freed in parts.
    pub fn unlock(&mut self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; unlocking changes no content.
        // JUSTIFICATION: as for `lock_present`.
        check_zero(unsafe { libc::munlock(self.start.as_ptr().cast(), self.len) })
    }

    /// Faults a part in; the words to be touched one by one if the kernel does not know the advice.
    fn populate(&mut self, part: Range<u64>, advice: Advice) -> io::Result<Option<Range<usize>>> {
        match self.advise(part.clone(), advice) {
            // EINVAL for a part that is whole pages means that the kernel does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && part.end <= self.len as u64 => {
                Ok(Some(part.start as usize / size_of::<u64>()..part.end as usize / size_of::<u64>()))
            }
            done => done.map(|()| None),
        }
    }

    /// Writes one word in every base page of a part (in bytes from the start), so that each has memory.
    /// Returns an error where the kernel can say it (5.14); on older kernels the pages are touched one by
    /// one.
    pub fn touch_for_writing(&mut self, part: Range<u64>) -> io::Result<()> {
        let Some(words) = self.populate(part, Advice::PopulateWrite)? else { return Ok(()) };
        let step = rustix::param::page_size() / size_of::<u64>();
        for word in self.words_mut()[words].iter_mut().step_by(step) {
            let word: *mut u64 = word;
            // SAFETY: the pointer is made from a unique reference one line above.
            // JUSTIFICATION: a plain store of the value that is there would be optimised away.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        Ok(())
    }

    /// Reads one word in every base page of a part (in bytes from the start): pages never written are mapped
    /// to the zero page, and need page tables only.
    pub fn touch_for_reading(&mut self, part: Range<u64>) -> io::Result<()> {
        let Some(words) = self.populate(part, Advice::PopulateRead)? else { return Ok(()) };
        let step = rustix::param::page_size() / size_of::<u64>();
        for word in self.words()[words].iter().step_by(step) {
            std::hint::black_box(*word);
        }
        Ok(())
    }

    /// Maps `len` bytes, rounded up to base pages, from the address `start` on, with a guard page on either
    /// side. Nothing is touched yet. `EEXIST` where something is mapped there already: it is never replaced.
    pub fn anonymous_at(start: u64, len: Bytes) -> io::Result<Mapping> {
        let page = rustix::param::page_size();
        let invalid_input = || io::Error::from(io::ErrorKind::InvalidInput);
        let start = usize::try_from(start).ok().filter(|start| start.is_multiple_of(page));
        let first = start.and_then(|start| start.checked_sub(page)).filter(|&first| first > 0);
        let first = first.ok_or_else(invalid_input)?;
        let len = usize::try_from(len.0).ok().and_then(|len| len.checked_next_multiple_of(page));
        let len = len.filter(|&len| len > 0).ok_or_else(invalid_input)?;
        let reserved_len = len.checked_add(2 * page).ok_or_else(invalid_input)?;
        let first_address = std::ptr::without_provenance_mut::<libc::c_void>(first);
        // Before 4.17 the kernel does not know the flag, and takes the address as a wish.
        let reservation = Reservation::map(first_address, reserved_len, libc::MAP_FIXED_NOREPLACE)?;
        if reservation.start.addr().get() != first {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // SAFETY: the reservation has two pages more than `len`, so the pointer stays inside.
        // JUSTIFICATION: the pointer must keep the provenance of the mapping.
        let begin = unsafe { reservation.start.byte_add(page) };
        Mapping::open(reservation, begin, len)
    }

    /// Puts pages of `huge` bytes from the pool of huge pages (hugetlb) in the place of a part, given in
    /// bytes from the start; both ends are multiples of `huge`. The old contents are lost: the part reads as
    /// zeros. `ENOMEM` where the pool has too few, `EINVAL` where the kernel has no pages of this size.
    ///
    /// On an error the mapping is abandoned, and its addresses stay reserved until the process exits: kernels
    /// before 6.12 unmap the old part before they ask the pool (mm/mmap.c, `mmap_region`), and another thread
    /// may have mapped something into the gap since.
    pub fn with_hugetlb(self, part: Range<u64>, huge: Bytes) -> io::Result<Mapping> {
        let is_valid = part.start < part.end && part.end <= self.len as u64 && huge.0.is_power_of_two();
        let first = self.start.addr().get() as u64 + part.start;
        let len = part.end.saturating_sub(part.start);
        if !is_valid || !first.is_multiple_of(huge.0) || !len.is_multiple_of(huge.0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let size = (huge.0.ilog2() as libc::c_int) << libc::MAP_HUGE_SHIFT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_HUGETLB | size;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: part.start < len, so the pointer stays in the mapping. JUSTIFICATION: the kernel needs the
        // address.
        let at = unsafe { self.start.byte_add(part.start as usize) };
        // SAFETY: the range is in memory that `self` owns by value, so there is no view of it. The new pages
        // are readable, writable and zeros. If the kernel refuses, `self` is forgotten below. JUSTIFICATION:
        // the part must have the same addresses as before.
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
    use crate::mapping::Advice;

    #[test]
    fn mappings_are_aligned_zeroed_and_bounded() {
        for align in [1u64, 1 << 16, 1 << 21, 1 << 22] {
            let mut map = Mapping::anonymous(Bytes(3 << 20), Bytes(align)).unwrap();
            assert_eq!(map.addresses().start % align, 0);
            assert_eq!(map.words().len(), (3 << 20) / 8);
            assert!(map.words().iter().all(|&w| w == 0));
            *map.words_mut().last_mut().unwrap() = 7;
            assert_eq!(map.words().last(), Some(&7));
            map.touch_for_writing(0..3 << 20).unwrap();
            assert_eq!(map.words().last(), Some(&7), "touching keeps what is there");
            map.advise(0..3 << 20, Advice::DontNeed).unwrap();
            map.touch_for_reading(0..3 << 20).unwrap();
            assert_eq!(map.words().last(), Some(&0));
        }
    }

    #[test]
    fn memory_is_bound_and_locked_and_let_go() {
        let mut map = Mapping::anonymous(Bytes(1 << 20), Bytes(1)).unwrap();
        // A kernel without CONFIG_NUMA does not know the call.
        let bound = map.bind_to_node(0).map_err(|error| error.raw_os_error());
        assert!(matches!(bound, Ok(()) | Err(Some(libc::ENOSYS | libc::EPERM))), "{bound:?}");
        assert!(map.bind_to_node(1023).is_err() && map.bind_to_node(5000).is_err());
        map.touch_for_writing(0..1 << 16).unwrap();
        map.advise(0..1 << 16, Advice::Cold).unwrap();
        map.advise(0..1 << 16, Advice::DontNeed).unwrap();
        if map.lock_present().is_ok() {
            assert!(map.advise(0..1 << 16, Advice::DontNeed).is_err(), "locked memory stays");
            map.unlock().unwrap();
            map.advise(0..1 << 16, Advice::DontNeed).unwrap();
        }
    }

    #[test]
    fn parts_outside_are_refused_before_the_kernel_sees_them() {
        let mut map = Mapping::anonymous(Bytes(1 << 20), Bytes(1)).unwrap();
        let wrong = [0..2 << 20, 1..1 << 20, 0..1000, (2 << 20)..(2 << 20), Range { start: 1 << 19, end: 0 }];
        for part in wrong {
            let error = map.advise(part.clone(), Advice::DontNeed).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{part:?}");
            assert!(map.touch_for_writing(part.clone()).is_err(), "{part:?}");
        }
        assert!(Mapping::anonymous(Bytes(0), Bytes(1)).is_err());
        assert!(Mapping::anonymous(Bytes(u64::MAX - 100), Bytes(1)).is_err());
        assert!(Mapping::anonymous(Bytes(1 << 20), Bytes(3 << 20)).is_err());
    }

    const LEN: u64 = 4 << 20;

    /// Far from the addresses that the kernel chooses; only the test below uses it.
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
            // Errors of a machine without such pages, or with an empty pool.
            Err(error) => {
                let code = error.raw_os_error();
                assert!(matches!(code, Some(libc::ENOMEM | libc::EINVAL | libc::ENOSYS)), "{error}");
            }
        }
    }
}
