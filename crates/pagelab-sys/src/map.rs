//! Private anonymous memory that is owned, aligned, and seen as words.

mod placed;

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use pagelab_model::Bytes;

/// Memory of our own between two inaccessible guards, so that the kernel never merges it with a neighbour
/// and what is read back about its address range is about it alone. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    /// Start of the reservation, guards included.
    reserved: NonNull<libc::c_void>,
    /// Bytes of the reservation.
    reserved_len: usize,
    /// First word of the accessible part; aligned as asked.
    start: NonNull<u64>,
    /// Bytes of the accessible part: a multiple of the page size.
    len: usize,
}

// SAFETY: the mapping is owned by this value alone, and nothing about it is bound to a thread.
// JUSTIFICATION: a probe may run on a thread of its own, and raw pointers are not `Send` by themselves.
unsafe impl Send for Mapping {}

/// `MADV_COLLAPSE` (6.1), of include/uapi/asm-generic/mman-common.h.
pub(crate) const MADV_COLLAPSE: libc::c_int = 25;

/// `MPOL_BIND` of include/uapi/linux/mempolicy.h.
const MPOL_BIND: libc::c_int = 2;
/// Nodes that a kernel can have at most (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;
/// `MLOCK_ONFAULT` of include/uapi/asm-generic/mman.h.
const MLOCK_ONFAULT: libc::c_uint = 1;

/// What `madvise` can be asked for a part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Huge pages where they fit (`MADV_HUGEPAGE`, 2.6.38); takes back `NoHugePage`.
    HugePage,
    /// Base pages only (`MADV_NOHUGEPAGE`, 2.6.38); also keeps khugepaged and COLLAPSE away.
    NoHugePage,
    /// Put the pages that are there on huge pages now (`MADV_COLLAPSE`, 6.1). One way: it cannot be undone.
    Collapse,
    /// Give the memory back; it reads as zeros afterwards (`MADV_DONTNEED`).
    DontNeed,
    /// Deactivate the pages (`MADV_COLD`, 5.4). A huge page of which the part is not the whole is split.
    Cold,
    /// Fault every page in for writing, and return an error instead of a signal (`MADV_POPULATE_WRITE`,
    /// 5.14).
    PopulateWrite,
    /// Fault every page in for reading (`MADV_POPULATE_READ`, 5.14): where nothing was written it is the
    /// zero page, so that page tables are all that is allocated.
    PopulateRead,
}

impl Advice {
    /// Numbers of include/uapi/asm-generic/mman-common.h; the same on all architectures that Rust's std
    /// supports on Linux, except parisc and alpha.
    pub(crate) fn number(self) -> libc::c_int {
        match self {
            Advice::HugePage => libc::MADV_HUGEPAGE,
            Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
            Advice::Collapse => MADV_COLLAPSE,
            Advice::DontNeed => libc::MADV_DONTNEED,
            Advice::Cold => 20,
            Advice::PopulateWrite => 23,
            Advice::PopulateRead => 22,
        }
    }
}

impl Mapping {
    /// Maps `len` bytes, rounded up to base pages, that start at a multiple of `align`. Nothing is touched
    /// yet.
    /// `align` is a power of two; the page size is used where it is smaller.
    pub fn anonymous(len: Bytes, align: Bytes) -> io::Result<Mapping> {
        let page = rustix::param::page_size();
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let align = usize::try_from(align.0).map_err(|_| wrong())?.max(page);
        let len = usize::try_from(len.0).ok().and_then(|len| len.checked_next_multiple_of(page));
        let len = len.filter(|&len| len > 0 && align.is_power_of_two()).ok_or_else(wrong)?;
        let reserved_len =
            len.checked_add(align).and_then(|sum| sum.checked_add(2 * page)).ok_or_else(wrong)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice changes no memory that exists.
        // JUSTIFICATION: memory whose page size is under test must not come from an allocator.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), reserved_len, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved = NonNull::new(raw).ok_or_else(wrong)?;
        // At least one guard page stays below: the start is moved up from one page after the reservation.
        let first = reserved.addr().get() + page;
        let offset = first.next_multiple_of(align) - reserved.addr().get();
        // SAFETY: offset <= page + align - 1 + …, so offset + len lies inside the reservation (see
        // reserved_len). JUSTIFICATION: the pointer must keep the provenance of the mapping.
        let start = unsafe { reserved.byte_add(offset) }.cast::<u64>();
        let mapping = Mapping { reserved, reserved_len, start, len };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range lies in the reservation that `mapping` owns and that nobody else has seen.
        // JUSTIFICATION: only the middle part may be accessible; the rest are guards.
        let opened = unsafe { libc::mprotect(mapping.start.as_ptr().cast(), len, access) };
        if opened == 0 { Ok(mapping) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes of the accessible part.
    pub fn len(&self) -> Bytes {
        Bytes(self.len as u64)
    }

    /// Whether there is nothing in it: never, but the question is usual.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The virtual addresses of the accessible part, for files that speak in addresses.
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
        let sane = part.start <= part.end && part.end <= self.len as u64;
        if !sane || !part.start.is_multiple_of(page) || !part.end.is_multiple_of(page) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            // SAFETY: start is at most len, so the pointer stays in the mapping or one past its end.
            // JUSTIFICATION: the address must be told to the kernel.
            let at = unsafe { self.start.byte_add(part.start as usize) };
            let len = (part.end - part.start) as usize;
            // SAFETY: the range lies in memory that `self` owns; `&mut self` excludes views of it, and each
            // advice leaves it mapped, readable and writable (DONTNEED turns it to zeros, which are valid
            // words). JUSTIFICATION: rustix names neither MADV_COLLAPSE nor all of the others.
            if unsafe { libc::madvise(at.as_ptr().cast(), len, advice.number()) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// The memory of this mapping comes from one node only (`mbind` with `MPOL_BIND`, 2.6.7). Where the node
    /// has none left, the out-of-memory killer is asked, so whoever binds leaves a reserve. Nothing may be
    /// touched yet: what is there stays where it is.
    pub fn bind_to_node(&mut self, node: u32) -> io::Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask: [libc::c_ulong; NODES_MAX / BITS] = [0; NODES_MAX / BITS];
        let word = mask.get_mut(node as usize / BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node as usize % BITS);
        // The kernel takes one bit less than it is told (mm/mempolicy.c, `get_nodes`).
        let bits = NODES_MAX + 1;
        // SAFETY: the range is owned by `self`, and `mask` has `NODES_MAX` bits that are only read.
        // JUSTIFICATION: neither libc nor rustix wraps mbind(2).
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.len,
                libc::c_long::from(MPOL_BIND),
                mask.as_ptr(),
                bits,
                0usize,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Keeps the pages that are there from being swapped out, and those that come later too (`mlock2` with
    /// `MLOCK_ONFAULT`, 4.4). It does not keep them where they are.
    pub fn lock_present(&mut self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; locking changes no content.
        // JUSTIFICATION: rustix has mlock2 for raw pointers only, which would be unsafe as well.
        let done = unsafe { libc::mlock2(self.start.as_ptr().cast(), self.len, MLOCK_ONFAULT) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes the lock back: memory that is locked cannot be given back in parts.
    pub fn unlock(&mut self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; unlocking changes no content.
        // JUSTIFICATION: as for `lock_present`.
        let done = unsafe { libc::munlock(self.start.as_ptr().cast(), self.len) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes one word in every base page of a part (in bytes from the start), so that each has memory.
    /// Returns an error where the kernel can say it (5.14); on older kernels the pages are touched one by
    /// one.
    pub fn touch(&mut self, part: Range<u64>) -> io::Result<()> {
        match self.advise(part.clone(), Advice::PopulateWrite) {
            // EINVAL for a part that is whole pages means that the kernel does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && part.end <= self.len as u64 => {}
            done => return done,
        }
        let step = rustix::param::page_size() / size_of::<u64>();
        let words = part.start as usize / size_of::<u64>()..part.end as usize / size_of::<u64>();
        for word in self.words_mut()[words].iter_mut().step_by(step) {
            let word: *mut u64 = word;
            // SAFETY: the pointer is made from a unique reference one line above.
            // JUSTIFICATION: a plain store of the value that is there would be optimised away.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        Ok(())
    }

    /// Reads one word in every base page of a part (in bytes from the start): what was never written is
    /// mapped to the zero page, and takes page tables only.
    pub fn touch_for_reading(&mut self, part: Range<u64>) -> io::Result<()> {
        match self.advise(part.clone(), Advice::PopulateRead) {
            // As in `touch`: the kernel does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && part.end <= self.len as u64 => {}
            done => return done,
        }
        let step = rustix::param::page_size() / size_of::<u64>();
        let words = part.start as usize / size_of::<u64>()..part.end as usize / size_of::<u64>();
        for word in self.words()[words].iter().step_by(step) {
            std::hint::black_box(*word);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation is owned by this value, and no view of it can outlive it.
        // JUSTIFICATION: the memory must go back to the system.
        unsafe { libc::munmap(self.reserved.as_ptr(), self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_zeroed_and_bounded() {
        for align in [1u64, 1 << 16, 1 << 21, 1 << 22] {
            let mut map = Mapping::anonymous(Bytes(3 << 20), Bytes(align)).unwrap();
            assert_eq!(map.addresses().start % align, 0);
            assert_eq!(map.words().len(), (3 << 20) / 8);
            assert!(map.words().iter().all(|&w| w == 0));
            *map.words_mut().last_mut().unwrap() = 7;
            assert_eq!(map.words().last(), Some(&7));
            map.touch(0..3 << 20).unwrap();
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
        map.touch(0..1 << 16).unwrap();
        if map.lock_present().is_ok() {
            assert!(map.advise(0..1 << 16, Advice::DontNeed).is_err(), "locked memory stays");
            map.unlock().unwrap();
        }
        map.advise(0..1 << 16, Advice::Cold).unwrap();
        map.advise(0..1 << 16, Advice::DontNeed).unwrap();
    }

    #[test]
    fn parts_outside_are_refused_before_the_kernel_sees_them() {
        let mut map = Mapping::anonymous(Bytes(1 << 20), Bytes(1)).unwrap();
        let wrong = [0..2 << 20, 1..1 << 20, 0..1000, (2 << 20)..(2 << 20), Range { start: 1 << 19, end: 0 }];
        for part in wrong {
            let error = map.advise(part.clone(), Advice::DontNeed).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{part:?}");
            assert!(map.touch(part.clone()).is_err(), "{part:?}");
        }
        assert!(Mapping::anonymous(Bytes(0), Bytes(1)).is_err());
        assert!(Mapping::anonymous(Bytes(u64::MAX - 100), Bytes(1)).is_err());
        assert!(Mapping::anonymous(Bytes(1 << 20), Bytes(3 << 20)).is_err());
    }
}
