//! Memory of any backing (anonymous or a file, private or shared, populated or not), as bytes that others may
//! change too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use pagelab_model::Bytes;

use crate::mapping::{Advice, Reservation};
use crate::wait::check_zero;

/// Backing of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct ByteMappingOptions<'a> {
    /// The file, open for reading and writing and at least `len` bytes long; `None`: anonymous memory.
    pub file: Option<BorrowedFd<'a>>,
    /// `MAP_SHARED`, else `MAP_PRIVATE`.
    pub is_shared: bool,
    /// `MAP_POPULATE` (2.5.46; for private mappings 2.6.23).
    pub populate: bool,
    /// Bytes, rounded up to base pages.
    pub len: Bytes,
    /// The start is a multiple of it; a power of two, and the page size if that is larger.
    pub align: Bytes,
}

/// Bytes rounded up to base pages, the size of their mapping. `None` if that is too many.
pub fn round_up_to_pages(len: Bytes) -> Option<Bytes> {
    len.0.checked_next_multiple_of(rustix::param::page_size() as u64).map(Bytes)
}

/// A mapping that is readable and writable, between inaccessible guards, so that the kernel does not merge it
/// with a neighbour. Unmapped on drop.
#[derive(Debug)]
pub struct ByteMapping {
    _reservation: Reservation,
    /// First byte of the mapping.
    start: NonNull<u8>,
    /// Bytes of the mapping: a multiple of the page size.
    len: usize,
}

impl ByteMapping {
    /// Maps it. A file that is shorter than the mapping is refused: an access past its end would be a signal.
    pub fn new(plan: &ByteMappingOptions<'_>) -> io::Result<ByteMapping> {
        let (reservation, start, len) = Reservation::new(plan.len, plan.align)?;
        if let Some(file) = plan.file {
            let file_len = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
            if file_len < len as u64 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let map = ByteMapping { _reservation: reservation, start: start.cast(), len };
        map.fill_reservation(plan)?;
        Ok(map)
    }

    /// Maps the memory over the middle of the reservation.
    fn fill_reservation(&self, plan: &ByteMappingOptions<'_>) -> io::Result<()> {
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
        // SAFETY: the range is in the reservation that `self` owns, and no pointer into it exists yet.
        // JUSTIFICATION: the measurement is about the flags of the mapping, and std maps no files.
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
        // initialised, AtomicU8 has the layout of u8, and other writers change the bytes atomically.
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
        check_zero(unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice as libc::c_int) })
    }

    /// Writes what changed to the file and waits for it (`msync` with `MS_SYNC`).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is owned by `self`; its content does not change.
        // JUSTIFICATION: rustix has msync for raw pointers only, which would be unsafe as well.
        check_zero(unsafe { libc::msync(self.start.as_ptr().cast(), self.len, libc::MS_SYNC) })
    }

    /// Bytes of base pages that are in memory, mapped by this process or not (`mincore`): of a shared file
    /// mapping, what the page cache has.
    pub fn resident_bytes(&self) -> io::Result<Bytes> {
        let page = rustix::param::page_size();
        let mut pages = vec![0u8; self.len / page];
        // SAFETY: the vector has a byte for each page of the range, and the range is owned by `self`.
        // JUSTIFICATION: neither std nor rustix wraps mincore(2).
        check_zero(unsafe { libc::mincore(self.start.as_ptr().cast(), self.len, pages.as_mut_ptr()) })?;
        Ok(Bytes((pages.iter().filter(|&&state| state & 1 != 0).count() * page) as u64))
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
            let plan = ByteMappingOptions {
                file: Some(file.as_fd()),
                is_shared,
                populate: is_shared,
                len: Bytes(1 << 16),
                align: Bytes(1 << 20),
            };
            let mut map = ByteMapping::new(&plan).unwrap();
            map.fill(7);
            map.bytes()[5].store(9, Relaxed);
            map.sync().unwrap();
            assert_eq!((map.bytes()[5].load(Relaxed), map.bytes()[6].load(Relaxed)), (9, 7));
            assert_eq!(map.bytes().as_ptr().addr() % (1 << 20), 0);
            let mut read = [0; 2];
            file.read_exact_at(&mut read, 5).unwrap();
            assert_eq!(read, if is_shared { [9, 7] } else { [0, 0] });
            assert!(map.resident_bytes().unwrap() == map.len());
        }
    }

    #[test]
    fn anonymous_memory_is_zero_and_comes_by_page() {
        let plan = ByteMappingOptions {
            file: None,
            is_shared: false,
            populate: false,
            len: Bytes(1 << 20),
            align: Bytes(1),
        };
        let mut map = ByteMapping::new(&plan).unwrap();
        assert_eq!(map.resident_bytes().unwrap(), Bytes(0), "nothing is touched yet");
        assert!(map.bytes().iter().all(|byte| byte.load(Relaxed) == 0));
        assert!(map.advise(Advice::DontNeed).is_err());
        let populated = ByteMapping::new(&ByteMappingOptions { populate: true, ..plan }).unwrap();
        assert_eq!(populated.resident_bytes().unwrap(), populated.len());
    }

    #[test]
    fn what_would_end_in_a_signal_is_refused() {
        let short = file("short", 100);
        let plan = ByteMappingOptions {
            file: Some(short.as_fd()),
            is_shared: true,
            populate: false,
            len: Bytes(1 << 16),
            align: Bytes(1),
        };
        assert_eq!(ByteMapping::new(&plan).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let none = ByteMappingOptions { file: None, len: Bytes(0), ..plan };
        assert!(ByteMapping::new(&none).is_err());
    }
}
