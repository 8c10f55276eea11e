//! Memory of any backing (anonymous or a file, private or shared, populated or not), seen as bytes that
//! others may change too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use pagelab_model::Bytes;

use crate::map::Advice;

/// What is to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct BytesPlan<'a> {
    /// The file, open for reading and writing and at least `len` bytes long; `None`: anonymous memory.
    pub file: Option<BorrowedFd<'a>>,
    /// `MAP_SHARED`, else `MAP_PRIVATE`.
    pub is_shared: bool,
    /// `MAP_POPULATE` (2.5.46; for private mappings 2.6.23).
    pub populate: bool,
    /// Bytes, rounded up to base pages.
    pub len: Bytes,
    /// The start is a multiple of it; a power of two, and the page size where that is larger.
    pub align: Bytes,
}

/// Bytes rounded up to base pages: what a mapping of so many takes. `None` if that is too many.
pub fn whole_pages(len: Bytes) -> Option<Bytes> {
    len.0.checked_next_multiple_of(rustix::param::page_size() as u64).map(Bytes)
}

/// A mapping that is readable and writable, between inaccessible guards, so that the kernel does not merge it
/// with a neighbour. Unmapped on drop.
#[derive(Debug)]
pub struct BytesMap {
    /// Start of the reservation, guards included.
    reserved: NonNull<libc::c_void>,
    /// Bytes of the reservation.
    reserved_len: usize,
    /// First byte of the mapping.
    start: NonNull<u8>,
    /// Bytes of the mapping: a multiple of the page size.
    len: usize,
}

impl BytesMap {
    /// Maps it. A file that is shorter than the mapping is refused: an access past its end would be a signal.
    pub fn new(plan: &BytesPlan<'_>) -> io::Result<BytesMap> {
        let page = rustix::param::page_size();
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let align = usize::try_from(plan.align.0).map_err(|_| wrong())?.max(page);
        let len = usize::try_from(plan.len.0).ok().and_then(|len| len.checked_next_multiple_of(page));
        let len = len.filter(|&len| len > 0 && align.is_power_of_two()).ok_or_else(wrong)?;
        if let Some(file) = plan.file {
            let file_len = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
            if file_len < len as u64 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let reserved_len = len.checked_add(align).and_then(|sum| sum.checked_add(2 * page));
        let reserved_len = reserved_len.ok_or_else(wrong)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice changes no memory that exists.
        // JUSTIFICATION: addresses must be reserved before a file can be mapped at an aligned one.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), reserved_len, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved = NonNull::new(raw).ok_or_else(wrong)?;
        // At least one guard page stays below: the start is moved up from one page after the reservation.
        let offset = (reserved.addr().get() + page).next_multiple_of(align) - reserved.addr().get();
        // SAFETY: offset <= page + align - 1, so offset + len lies inside the reservation (see reserved_len).
        // JUSTIFICATION: the pointer must keep the provenance of the mapping.
        let start = unsafe { reserved.byte_add(offset) }.cast::<u8>();
        let map = BytesMap { reserved, reserved_len, start, len };
        map.fill_reservation(plan)?;
        Ok(map)
    }

    /// Maps what is wanted over the middle of the reservation.
    fn fill_reservation(&self, plan: &BytesPlan<'_>) -> io::Result<()> {
        let mut flags = libc::MAP_FIXED;
        flags |= if plan.is_shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        flags |= if plan.populate { libc::MAP_POPULATE } else { 0 };
        let fd = match plan.file {
            Some(file) => file.as_raw_fd(),
            None => {
                flags |= libc::MAP_ANONYMOUS;
                -1
            }
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range lies in the reservation that `self` owns and of which nobody has seen anything.
        // JUSTIFICATION: the flags of the mapping are what is measured, and std maps no files.
        let raw = unsafe { libc::mmap(self.start.as_ptr().cast(), self.len, access, flags, fd, 0) };
        if raw == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> Bytes {
        Bytes(self.len as u64)
    }

    /// Whether there is nothing in it: never, but the question is usual.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The mapping as bytes. They are atomic because a shared mapping may change under its reader; a relaxed
    /// load or store of a byte is one instruction, the plain one.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the `len` bytes are mapped readable and writable until drop, memory of the kernel is always
        // initialised, AtomicU8 has the layout of u8, and whoever else changes the bytes does it atomically.
        // JUSTIFICATION: a slice lets workloads be safe code, with bounds checks where they matter.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU8>(), self.len) }
    }

    /// Writes the same value to every byte, as memset does.
    pub fn fill(&mut self, value: u8) {
        // SAFETY: the `len` bytes are mapped writable, and `&mut self` excludes views of them here.
        // JUSTIFICATION: memset itself is a phase that is measured.
        unsafe { self.start.as_ptr().write_bytes(value, self.len) };
    }

    /// Advises the kernel about the whole. Advice that changes what the bytes are (`DontNeed`) is refused.
    pub fn advise(&mut self, advice: Advice) -> io::Result<()> {
        if advice == Advice::DontNeed {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range is owned by `self`; the advice that is let through keeps it mapped and unchanged.
        // JUSTIFICATION: rustix names neither MADV_POPULATE_WRITE nor all of the others.
        let done = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice.number()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes what changed to the file and waits for it (`msync` with `MS_SYNC`).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; its content does not change.
        // JUSTIFICATION: rustix has msync for raw pointers only, which would be unsafe as well.
        let done = unsafe { libc::msync(self.start.as_ptr().cast(), self.len, libc::MS_SYNC) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes of base pages that are in memory, mapped by this process or not (`mincore`): of a shared file
    /// mapping, what the page cache has.
    pub fn in_memory(&self) -> io::Result<Bytes> {
        let page = rustix::param::page_size();
        let mut pages = vec![0u8; self.len / page];
        // SAFETY: the vector has a byte for each page of the range, and the range is owned by `self`.
        // JUSTIFICATION: neither std nor rustix wraps mincore(2).
        let done = unsafe { libc::mincore(self.start.as_ptr().cast(), self.len, pages.as_mut_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Bytes((pages.iter().filter(|&&state| state & 1 != 0).count() * page) as u64))
    }
}

impl Drop for BytesMap {
    fn drop(&mut self) {
        // SAFETY: the reservation is owned by this value, and no view of it can outlive it.
        // JUSTIFICATION: the memory must go back to the system.
        unsafe { libc::munmap(self.reserved.as_ptr(), self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn file(name: &str, len: u64) -> File {
        let path = std::env::temp_dir().join(format!("pagelab-sys-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn stores_reach_a_shared_file_and_not_a_private_one() {
        for is_shared in [true, false] {
            let file = file(if is_shared { "shared" } else { "private" }, 1 << 16);
            let plan = BytesPlan {
                file: Some(file.as_fd()),
                is_shared,
                populate: is_shared,
                len: Bytes(1 << 16),
                align: Bytes(1 << 20),
            };
            let mut map = BytesMap::new(&plan).unwrap();
            map.fill(7);
            map.bytes()[5].store(9, Relaxed);
            map.sync().unwrap();
            assert_eq!((map.bytes()[5].load(Relaxed), map.bytes()[6].load(Relaxed)), (9, 7));
            assert_eq!(map.bytes().as_ptr().addr() % (1 << 20), 0);
            let mut read = [0; 2];
            file.read_exact_at(&mut read, 5).unwrap();
            assert_eq!(read, if is_shared { [9, 7] } else { [0, 0] });
            assert!(map.in_memory().unwrap() == map.len());
        }
    }

    #[test]
    fn anonymous_memory_is_zero_and_comes_by_page() {
        let plan =
            BytesPlan { file: None, is_shared: false, populate: false, len: Bytes(1 << 20), align: Bytes(1) };
        let mut map = BytesMap::new(&plan).unwrap();
        assert_eq!(map.in_memory().unwrap(), Bytes(0), "nothing is touched yet");
        assert!(map.bytes().iter().all(|byte| byte.load(Relaxed) == 0));
        assert!(map.advise(Advice::DontNeed).is_err());
        let populated = BytesMap::new(&BytesPlan { populate: true, ..plan }).unwrap();
        assert_eq!(populated.in_memory().unwrap(), populated.len());
    }

    #[test]
    fn what_would_end_in_a_signal_is_refused() {
        let short = file("short", 100);
        let plan = BytesPlan {
            file: Some(short.as_fd()),
            is_shared: true,
            populate: false,
            len: Bytes(1 << 16),
            align: Bytes(1),
        };
        assert_eq!(BytesMap::new(&plan).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let none = BytesPlan { file: None, len: Bytes(0), ..plan };
        assert!(BytesMap::new(&none).is_err());
    }
}
