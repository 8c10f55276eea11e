//! Kernel interface of the guard: a few calls on paths, under a base directory.
//!
//! [`Kernel`] is the seam: [`FileKernel`] is the real one; [`DryRunKernel`] keeps writes in memory, so that a
//! dry run takes the same path as a real one; tests use kernels that return wrong values, refuse, or stop
//! between two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use pagelab_formats::swap;
use pagelab_model::{Absence, AbsenceReason, Bytes};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use crate::tracepoints::Tracefs;

/// Maximum size of a file; mountinfo of a machine with 10⁵ mounts fits.
const TEXT_MAX_BYTES: u64 = 64 << 20;

const ZERO_CHUNK_BYTES: usize = 1 << 20;

/// Operations that the guard needs of a kernel. Paths are absolute, as in [`crate::paths`].
pub trait Kernel: fmt::Debug + Send + Sync {
    /// Content of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes an existing file in one call, as the kernel's own files require.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// Creates a directory.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory (to the kernel, a cgroup is empty when it has no process and no child).
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// The inode number of a directory.
    fn inode(&self, path: &str) -> io::Result<u64>;
    /// Mounts debugfs at a directory.
    fn mount_debugfs(&self, dir: &str) -> io::Result<()>;
    /// Unmounts the file system at a directory; never by force, never lazily.
    fn unmount(&self, dir: &str) -> io::Result<()>;
    /// Space on the file system of a directory.
    fn fs_space(&self, dir: &str) -> io::Result<FsSpace>;
    /// Creates a file that only root may read and write, `size` long without a hole, which begins with
    /// `header`. It must not exist.
    fn make_swap_file(&self, path: &str, size: Bytes, header: &[u8]) -> io::Result<()>;
    /// Enables it as swap, before all areas of a lower priority.
    fn swap_on(&self, path: &str, priority: u16) -> io::Result<()>;
    /// Swaps its contents in, and disables it.
    fn swap_off(&self, path: &str) -> io::Result<()>;
    /// The inode number of a regular file.
    fn file_inode(&self, path: &str) -> io::Result<u64>;
    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;
}

/// File system facts for a swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsSpace {
    /// Capacity in bytes.
    pub total: Bytes,
    /// Free bytes for unprivileged users.
    pub free: Bytes,
    /// Its magic number (include/uapi/linux/magic.h).
    pub magic: u64,
}

/// The files under a base directory: `/` for this machine, another directory for tests and rescue.
#[derive(Debug)]
pub struct FileKernel {
    base: OwnedFd,
    is_live: bool,
}

impl FileKernel {
    /// This machine.
    pub fn live() -> io::Result<FileKernel> {
        FileKernel::with_base(Path::new("/"))
    }

    /// The files under `base`.
    pub fn with_base(base: &Path) -> io::Result<FileKernel> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base_fd = rustix::fs::open(base, flags, Mode::empty())?;
        Ok(FileKernel { base: base_fd, is_live: base == Path::new("/") })
    }

    /// Opens a path that stays below the base. Links are followed when reading (`/proc/self` is one)
    /// and refused when writing: no setting of the kernel is reached through a link.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let is_write = flags.contains(OFlags::WRONLY);
        let resolve = match is_write {
            true => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
            false => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        };
        let relative = to_relative(path)?;
        match rustix::fs::openat2(&self.base, relative, flags, Mode::empty(), resolve) {
            // openat2 exists since Linux 5.6, and a seccomp filter may return EPERM for it. Paths come from
            // the guard's list, so without it only the last component is checked.
            Err(Errno::NOSYS | Errno::PERM) if self.is_live => {
                let no_follow = if is_write { OFlags::NOFOLLOW } else { OFlags::empty() };
                Ok(rustix::fs::openat(&self.base, relative, flags | no_follow, Mode::empty())?)
            }
            opened => Ok(opened?),
        }
    }

    fn require_live(&self, operation: &str) -> io::Result<()> {
        match self.is_live {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{operation} requires a live machine"),
            )),
        }
    }

    /// Type and inode number of `path`; a link there is not followed.
    fn stat(&self, path: &str) -> io::Result<(FileType, u64)> {
        let (parent, name) = self.open_parent(path)?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((FileType::from_raw_mode(stat.st_mode), stat.st_ino))
    }

    /// A swap file of pagelab: a regular file, and no link to one.
    fn open_swap_file(&self, path: &str) -> io::Result<OwnedFd> {
        self.require_live("swapping")?;
        let fd = self.open(path, OFlags::WRONLY | OFlags::NOFOLLOW)?;
        check_regular(FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode))?;
        Ok(fd)
    }

    /// The directory that holds the last component of `path`, and that component.
    fn open_parent<'p>(&self, path: &'p str) -> io::Result<(OwnedFd, &'p str)> {
        let (parent, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        if self.is_live && parent == paths::TRACE_INSTANCES {
            // tracefs may be unmounted, or mounted elsewhere.
            return Ok((open_trace_instances()?, name));
        }
        let parent = if parent.is_empty() { "/." } else { parent };
        Ok((self.open(parent, flags)?, name))
    }
}

fn open_trace_instances() -> io::Result<OwnedFd> {
    let root = Root::live();
    let refused = |absence: Absence| match absence.why {
        AbsenceReason::NotThere => io::Error::new(io::ErrorKind::NotFound, absence.reason()),
        AbsenceReason::NotPermitted => io::Error::new(io::ErrorKind::PermissionDenied, absence.reason()),
        _ => io::Error::other(absence.reason()),
    };
    let tracefs = Tracefs::find(&Reader::new(&root)).map_err(refused)?;
    tracefs.open(Tracefs::INSTANCES, OFlags::RDONLY | OFlags::DIRECTORY).map_err(refused)
}

fn check_regular(file_type: FileType) -> io::Result<()> {
    match file_type {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

fn to_relative(path: &str) -> io::Result<&str> {
    let inside = path.strip_prefix('/').filter(|rest| !rest.is_empty());
    Ok(inside.ok_or(Errno::INVAL)?)
}

impl Kernel for FileKernel {
    fn read(&self, path: &str) -> io::Result<String> {
        let fd = self.open(path, OFlags::RDONLY)?;
        check_regular(FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode))?;
        let mut text = String::new();
        File::from(fd).take(TEXT_MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        // The kernel's files ignore O_TRUNC; a plain file in a test's tree needs it.
        let fd = self.open(path, OFlags::WRONLY | OFlags::TRUNC)?;
        let written = rustix::io::write(&fd, text.as_bytes())?;
        match written == text.len() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::WriteZero, "short write")),
        }
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.open_parent(path)?;
        Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.open_parent(path)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        match self.stat(path)? {
            (FileType::Directory, inode) => Ok(inode),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn mount_debugfs(&self, at: &str) -> io::Result<()> {
        self.require_live("mounting")?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Ok(rustix::mount::mount("debugfs", at, "debugfs", flags, None)?)
    }

    fn unmount(&self, at: &str) -> io::Result<()> {
        self.require_live("unmounting")?;
        Ok(rustix::mount::unmount(at, UnmountFlags::NOFOLLOW)?)
    }

    fn fs_space(&self, dir: &str) -> io::Result<FsSpace> {
        let fd = self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let (told, magic) = (rustix::fs::fstatvfs(&fd)?, rustix::fs::fstatfs(&fd)?.f_type);
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(told.f_frsize));
        Ok(FsSpace { total: bytes(told.f_blocks), free: bytes(told.f_bavail), magic: magic as u64 })
    }

    fn make_swap_file(&self, path: &str, size: Bytes, header: &[u8]) -> io::Result<()> {
        let (parent, name) = self.open_parent(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        allocate_file(&file, size, header)
    }

    fn swap_on(&self, path: &str, priority: u16) -> io::Result<()> {
        // The open file is used, even if its name refers to another file by now.
        let file = self.open_swap_file(path)?;
        let open = CString::new(format!("{}/{}", paths::SELF_FD, file.as_raw_fd()))?;
        pagelab_sys::swap::swap_on(&open, Some(priority))
    }

    fn swap_off(&self, path: &str) -> io::Result<()> {
        self.require_live("swapping")?;
        pagelab_sys::swap::swap_off(&CString::new(path)?)
    }

    fn file_inode(&self, path: &str) -> io::Result<u64> {
        let (file_type, inode) = self.stat(path)?;
        check_regular(file_type)?;
        Ok(inode)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.open_parent(path)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }
}

/// Sets size and header of an empty file. Blocks are reserved if the file system can do that, else zeros are
/// written: a hole has no block to swap to.
fn allocate_file(file: &File, size: Bytes, header: &[u8]) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size.0) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; ZERO_CHUNK_BYTES];
            for at in (0..size.0).step_by(ZERO_CHUNK_BYTES) {
                let left = usize::try_from(size.0 - at).unwrap_or(ZERO_CHUNK_BYTES).min(ZERO_CHUNK_BYTES);
                file.write_all_at(&zeros[..left], at)?;
            }
        }
        Err(errno) => return Err(errno.into()),
    }
    file.write_all_at(header, 0)?;
    file.sync_all()
}

/// A kernel for dry runs: it reads from another one and keeps all changes in memory.
#[derive(Debug)]
pub struct DryRunKernel {
    inner: Arc<dyn Kernel>,
    overlay: Mutex<Overlay>,
}

#[derive(Debug, Default)]
struct Overlay {
    files: BTreeMap<String, String>,
    /// Directories that were made (true) or removed.
    dirs: BTreeMap<String, bool>,
    unmounted: BTreeSet<String>,
    mounted: BTreeSet<String>,
    swap_off: BTreeSet<String>,
    files_removed: BTreeSet<String>,
}

impl DryRunKernel {
    /// A kernel without changes.
    pub fn new(inner: Arc<dyn Kernel>) -> DryRunKernel {
        DryRunKernel { inner, overlay: Mutex::default() }
    }

    fn lock_overlay(&self) -> MutexGuard<'_, Overlay> {
        super::lock_ignoring_poison(&self.overlay)
    }
}

impl Kernel for DryRunKernel {
    fn read(&self, path: &str) -> io::Result<String> {
        let overlay = self.lock_overlay();
        if let Some(text) = overlay.files.get(path) {
            return Ok(text.clone());
        }
        let text = self.inner.read(path)?;
        if path == paths::SWAPS {
            return Ok(without_areas(&text, &overlay.swap_off));
        }
        if path != paths::SELF_MOUNTINFO {
            return Ok(text);
        }
        let is_there = |line: &&str| {
            let at = line.split(' ').nth(4).unwrap_or_default();
            !overlay.unmounted.contains(at)
        };
        let mut lines: Vec<String> = text.lines().filter(is_there).map(str::to_owned).collect();
        lines.extend(overlay.mounted.iter().map(|at| format!("0 0 0:0 / {at} rw - debugfs debugfs rw")));
        Ok(lines.join("\n"))
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut changed = self.lock_overlay();
        // A write to a pool sets its persistent pages, so the surplus counts as freed.
        if let Some(pool) = path.strip_suffix("/nr_hugepages") {
            changed.files.insert(format!("{pool}/surplus_hugepages"), "0".to_owned());
        }
        changed.files.insert(path.to_owned(), text.to_owned());
        Ok(())
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.lock_overlay().dirs.insert(path.to_owned(), true);
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.lock_overlay().dirs.insert(path.to_owned(), false);
        Ok(())
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        match self.lock_overlay().dirs.get(path) {
            Some(true) => Ok(0),
            Some(false) => Err(Errno::NOENT.into()),
            None => self.inner.inode(path),
        }
    }

    fn mount_debugfs(&self, at: &str) -> io::Result<()> {
        self.lock_overlay().mounted.insert(at.to_owned());
        Ok(())
    }

    fn unmount(&self, at: &str) -> io::Result<()> {
        let mut changed = self.lock_overlay();
        if !changed.mounted.remove(at) {
            changed.unmounted.insert(at.to_owned());
        }
        Ok(())
    }

    fn fs_space(&self, dir: &str) -> io::Result<FsSpace> {
        self.inner.fs_space(dir)
    }

    fn make_swap_file(&self, _: &str, _: Bytes, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn swap_on(&self, _: &str, _: u16) -> io::Result<()> {
        Ok(())
    }

    fn swap_off(&self, path: &str) -> io::Result<()> {
        self.lock_overlay().swap_off.insert(path.to_owned());
        Ok(())
    }

    fn file_inode(&self, path: &str) -> io::Result<u64> {
        match self.lock_overlay().files_removed.contains(path) {
            true => Err(Errno::NOENT.into()),
            false => self.inner.file_inode(path),
        }
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.lock_overlay().files_removed.insert(path.to_owned());
        Ok(())
    }
}

/// A text of `/proc/swaps` without these areas.
fn without_areas(text: &str, removed_paths: &BTreeSet<String>) -> String {
    let Ok(areas) = swap::parse(text.as_bytes()) else { return text.to_owned() };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head: String = lines.next().map(|line| format!("{line}\n")).unwrap_or_default();
    let on = lines.zip(&areas).filter(|(_, area)| !removed_paths.contains(&area.name));
    head + &on.map(|(line, _)| format!("{line}\n")).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_that_are_off_are_not_in_the_text() {
        let text = "Filename Type Size Used Priority\n/a\\040b file 8 0 1\n/c file 8 0 1\n";
        let off = BTreeSet::from(["/a b".to_owned()]);
        assert_eq!(without_areas(text, &off), "Filename Type Size Used Priority\n/c file 8 0 1\n");
    }
}
