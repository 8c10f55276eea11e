//! File, and its pages in the page cache.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use pagelab_model::Bytes;
use rustix::fs::{Advice, fadvise, fstatfs, fstatvfs};

/// Asks the kernel to drop the file's pages from the cache (`POSIX_FADV_DONTNEED`, 2.5.60). Pages that are
/// dirty, mapped or locked stay, so sync the file before, and check the remaining pages after.
pub fn drop_cached_pages(file: impl AsFd) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Writes the dirty pages of all file systems back (sync(2)): `drop_caches` leaves dirty pages as they are.
pub fn write_back_all() {
    rustix::fs::sync();
}

/// `cachestat` of the generic system call table (6.5), which all architectures that Rust supports on Linux
/// use for it.
const SYS_CACHESTAT: libc::c_long = 451;

/// Share of the first `len` bytes of a file in the page cache, in base pages. Nothing is read, and nothing
/// comes into the cache by asking: `cachestat` (6.5), and `mincore` before.
pub fn cached_share(file: impl AsFd, len: Bytes) -> io::Result<f64> {
    let page = rustix::param::page_size() as u64;
    let pages = len.0.div_ceil(page);
    if pages == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = file.as_fd();
    // `struct cachestat_range`: offset and length; `struct cachestat`: cached, dirty, under writeback,
    // evicted, recently evicted, in pages.
    let (range, mut found) = ([0u64, len.0], [0u64; 5]);
    // SAFETY: both structures are five and two 64-bit numbers of our own, as the call wants them.
    // JUSTIFICATION: neither libc nor rustix has this call.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0 as libc::c_uint)
    };
    if done == 0 {
        return Ok(found[0] as f64 / pages as f64);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::ENOSYS) {
        return Err(error);
    }
    mincore_share(file.as_raw_fd(), pages, page)
}

/// The same by a mapping that is never touched.
fn mincore_share(file: libc::c_int, pages: u64, page: u64) -> io::Result<f64> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let len = usize::try_from(pages.saturating_mul(page)).map_err(too_large)?;
    let mut residency = vec![0u8; usize::try_from(pages).map_err(too_large)?];
    // SAFETY: a new mapping at an address of the kernel's choice; it is never read or written here.
    // JUSTIFICATION: mincore speaks of mappings only.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file, 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping above, and `residency` has a byte for each of its pages.
    // JUSTIFICATION: rustix has no mincore.
    let done = unsafe { libc::mincore(map, len, residency.as_mut_ptr().cast()) };
    let error = io::Error::last_os_error();
    // SAFETY: this function owns the mapping, and no pointer into it exists. JUSTIFICATION: it would stay for
    // ever.
    unsafe { libc::munmap(map, len) };
    if done != 0 {
        return Err(error);
    }
    Ok(residency.iter().filter(|&&byte| byte & 1 != 0).count() as f64 / pages as f64)
}

/// Bytes that an ordinary user may still write to the file system of this file.
pub fn free_space(file: impl AsFd) -> io::Result<Bytes> {
    let stat = fstatvfs(file)?;
    Ok(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// The magic number of the file's file system (include/uapi/linux/magic.h), such as 0xef53 for ext4.
pub fn file_system_magic(file: impl AsFd) -> io::Result<u64> {
    let magic = fstatfs(file)?.f_type;
    #[allow(clippy::unnecessary_cast, reason = "the width of the field differs by architecture")]
    Ok(magic as u64)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn both_ways_see_the_same_and_asking_brings_nothing() {
        let len = 1u64 << 20;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, &vec![1; len as usize]).unwrap();
        let page = rustix::param::page_size() as u64;
        let both = || {
            let by_mincore = mincore_share(file.as_file().as_raw_fd(), len / page, page).unwrap();
            (cached_share(file.as_file(), Bytes(len)).unwrap(), by_mincore)
        };
        assert_eq!(both(), (1.0, 1.0));
        // In a file system in memory the pages stay.
        file.as_file().sync_all().unwrap();
        drop_cached_pages(file.as_file()).unwrap();
        let after = both();
        assert_eq!(after.0, after.1);
        assert_eq!(both(), after);
        assert!(cached_share(file.as_file(), Bytes(0)).is_err());
    }

    #[test]
    fn a_file_system_says_what_it_is() {
        let here = File::open(std::env::temp_dir()).unwrap();
        assert!(free_space(&here).unwrap().0 > 0);
        assert_eq!(file_system_magic(File::open("/proc").unwrap()).unwrap(), 0x9fa0);
        drop_cached_pages(File::open("/etc/passwd").unwrap()).unwrap();
    }
}
