//! The kernel as the guard sees it: a few calls on paths, under a base directory.
//!
//! [`Kernel`] is the seam: [`Tree`] is the real one; [`Pretend`] keeps writes in memory, so that a dry
//! run takes the same way as a real one; tests put kernels before it that lie, refuse, or stop between
//! two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pagelab_model::{Absence, AbsentWhy, Bytes};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::swap;
use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use crate::tracepoints::Tracefs;

/// A file that is larger than this is no setting; mountinfo of a machine with 10⁵ mounts still fits.
const TEXT_MAX_BYTES: u64 = 64 << 20;

/// What the guard needs of a kernel. Paths are absolute, as in [`crate::paths`].
pub trait Kernel: Send + Sync {
    /// The whole of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes a file that exists, in one write call, as the kernel's own files want it.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// Makes a directory.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory (to the kernel, a cgroup is empty when it has no process and no child).
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// The inode number of a directory.
    fn inode(&self, path: &str) -> io::Result<u64>;
    /// Mounts debugfs at a directory.
    fn mount_debugfs(&self, at: &str) -> io::Result<()>;
    /// Unmounts what is mounted at a directory; never by force, never lazily.
    fn unmount(&self, at: &str) -> io::Result<()>;
    /// What the file system of a directory has left.
    fn room(&self, dir: &str) -> io::Result<Room>;
    /// Makes a file that root alone may read and write, `size` long without a hole, which begins with
    /// `header`. It must not be there.
    fn make_swap_file(&self, path: &str, size: Bytes, header: &[u8]) -> io::Result<()>;
    /// Swaps to it, before all areas that have a lower priority.
    fn swap_on(&self, path: &str, priority: u16) -> io::Result<()>;
    /// Brings back what is in it, and swaps to it no more.
    fn swap_off(&self, path: &str) -> io::Result<()>;
    /// The inode number of a regular file.
    fn file_inode(&self, path: &str) -> io::Result<u64>;
    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;
}

/// A file system, as far as a swap file asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What it can hold.
    pub total: Bytes,
    /// What is free for everybody.
    pub free: Bytes,
    /// Its magic number (include/uapi/linux/magic.h).
    pub magic: u64,
}

/// The files under a base directory: `/` for this machine, another folder for tests and rescue.
#[derive(Debug)]
pub struct Tree {
    base: OwnedFd,
    is_live: bool,
}

impl Tree {
    /// This machine.
    pub fn live() -> io::Result<Tree> {
        Tree::under(Path::new("/"))
    }

    /// The files under `base`.
    pub fn under(base: &Path) -> io::Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base_fd = rustix::fs::open(base, flags, Mode::empty())?;
        Ok(Tree { base: base_fd, is_live: base == Path::new("/") })
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
        let relative = relative(path)?;
        match rustix::fs::openat2(&self.base, relative, flags, Mode::empty(), resolve) {
            // openat2 came with Linux 5.6, and a seccomp filter may answer EPERM for it. Paths come from the
            // guard's list, so the last component is the only one that is worth a check without it.
            Err(Errno::NOSYS | Errno::PERM) if self.is_live => {
                let no_follow = if is_write { OFlags::NOFOLLOW } else { OFlags::empty() };
                Ok(rustix::fs::openat(&self.base, relative, flags | no_follow, Mode::empty())?)
            }
            opened => Ok(opened?),
        }
    }

    /// A swap file of ours: a regular file, and no link to one.
    fn open_swap_file(&self, path: &str) -> io::Result<OwnedFd> {
        if !self.is_live {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a live machine can swap"));
        }
        let fd = self.open(path, OFlags::WRONLY | OFlags::NOFOLLOW)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => Ok(fd),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
        }
    }

    /// The directory that holds the last component of `path`, and that component.
    fn parent<'p>(&self, path: &'p str) -> io::Result<(OwnedFd, &'p str)> {
        let (parent, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        if self.is_live && parent == paths::TRACE_INSTANCES {
            // tracefs need not be mounted, or be mounted there.
            return Ok((trace_instances()?, name));
        }
        let parent = if parent.is_empty() { "/." } else { parent };
        Ok((self.open(parent, flags)?, name))
    }
}

/// The folder of trace instances of the running kernel.
fn trace_instances() -> io::Result<OwnedFd> {
    let root = Root::live();
    let refused = |absence: Absence| match absence.why {
        AbsentWhy::NotThere => io::Error::new(io::ErrorKind::NotFound, absence.reason()),
        AbsentWhy::NotPermitted => io::Error::new(io::ErrorKind::PermissionDenied, absence.reason()),
        _ => io::Error::other(absence.reason()),
    };
    let tracefs = Tracefs::find(&Reader::new(&root)).map_err(refused)?;
    tracefs.open(Tracefs::INSTANCES, OFlags::RDONLY | OFlags::DIRECTORY).map_err(refused)
}

fn relative(path: &str) -> io::Result<&str> {
    let inside = path.strip_prefix('/').filter(|rest| !rest.is_empty());
    Ok(inside.ok_or(Errno::INVAL)?)
}

impl Kernel for Tree {
    fn read(&self, path: &str) -> io::Result<String> {
        let fd = self.open(path, OFlags::RDONLY)?;
        let mode = rustix::fs::fstat(&fd)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
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
            false => Err(io::Error::new(io::ErrorKind::WriteZero, "only a part was written")),
        }
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        let (parent, name) = self.parent(path)?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(stat.st_ino),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn mount_debugfs(&self, at: &str) -> io::Result<()> {
        if !self.is_live {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a live machine can mount"));
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Ok(rustix::mount::mount("debugfs", at, "debugfs", flags, None)?)
    }

    fn unmount(&self, at: &str) -> io::Result<()> {
        if !self.is_live {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a live machine can unmount"));
        }
        Ok(rustix::mount::unmount(at, UnmountFlags::NOFOLLOW)?)
    }

    fn room(&self, dir: &str) -> io::Result<Room> {
        let fd = self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let (told, magic) = (rustix::fs::fstatvfs(&fd)?, rustix::fs::fstatfs(&fd)?.f_type);
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(told.f_frsize));
        Ok(Room { total: bytes(told.f_blocks), free: bytes(told.f_bavail), magic: magic as u64 })
    }

    fn make_swap_file(&self, path: &str, size: Bytes, header: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        swap::fill(&file, size, header)
    }

    fn swap_on(&self, path: &str, priority: u16) -> io::Result<()> {
        // The file that is open is the one that is used, whatever has its name by now.
        let file = self.open_swap_file(path)?;
        let open = CString::new(format!("{}/{}", paths::SELF_FD, file.as_raw_fd()))?;
        pagelab_sys::swap::on(&open, Some(priority))
    }

    fn swap_off(&self, path: &str) -> io::Result<()> {
        if !self.is_live {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a live machine can swap"));
        }
        pagelab_sys::swap::off(&CString::new(path)?)
    }

    fn file_inode(&self, path: &str) -> io::Result<u64> {
        let (parent, name) = self.parent(path)?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(stat.st_ino),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
        }
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }
}

/// A kernel that reads from another one and keeps all changes in memory: what a dry run talks to.
pub struct Pretend {
    below: Arc<dyn Kernel>,
    changed: Mutex<Changed>,
}

#[derive(Default)]
struct Changed {
    files: BTreeMap<String, String>,
    dirs_made: BTreeSet<String>,
    dirs_removed: BTreeSet<String>,
    unmounted: BTreeSet<String>,
    mounted: BTreeSet<String>,
    swap_off: BTreeSet<String>,
    files_removed: BTreeSet<String>,
}

impl Pretend {
    /// Nothing is changed yet.
    pub fn over(below: Arc<dyn Kernel>) -> Pretend {
        Pretend { below, changed: Mutex::default() }
    }

    fn changed(&self) -> std::sync::MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Pretend {
    fn read(&self, path: &str) -> io::Result<String> {
        let changed = self.changed();
        if let Some(text) = changed.files.get(path) {
            return Ok(text.clone());
        }
        let text = self.below.read(path)?;
        if path == paths::SWAPS {
            return Ok(swap::without(&text, &changed.swap_off));
        }
        if path != paths::SELF_MOUNTINFO {
            return Ok(text);
        }
        let is_there = |line: &&str| {
            let at = line.split(' ').nth(4).unwrap_or_default();
            !changed.unmounted.contains(at)
        };
        let mut lines: Vec<String> = text.lines().filter(is_there).map(str::to_owned).collect();
        lines.extend(changed.mounted.iter().map(|at| format!("0 0 0:0 / {at} rw - debugfs debugfs rw")));
        Ok(lines.join("\n"))
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut changed = self.changed();
        // What a write to a pool sets is its persistent pages, so the surplus counts as gone.
        if let Some(pool) = path.strip_suffix("/nr_hugepages") {
            changed.files.insert(format!("{pool}/surplus_hugepages"), "0".to_owned());
        }
        changed.files.insert(path.to_owned(), text.to_owned());
        Ok(())
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.changed().dirs_made.insert(path.to_owned());
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut changed = self.changed();
        changed.dirs_made.remove(path);
        changed.dirs_removed.insert(path.to_owned());
        Ok(())
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        let changed = self.changed();
        match (changed.dirs_made.contains(path), changed.dirs_removed.contains(path)) {
            (true, _) => Ok(0),
            (false, true) => Err(Errno::NOENT.into()),
            (false, false) => self.below.inode(path),
        }
    }

    fn mount_debugfs(&self, at: &str) -> io::Result<()> {
        self.changed().mounted.insert(at.to_owned());
        Ok(())
    }

    fn unmount(&self, at: &str) -> io::Result<()> {
        let mut changed = self.changed();
        if !changed.mounted.remove(at) {
            changed.unmounted.insert(at.to_owned());
        }
        Ok(())
    }

    fn room(&self, dir: &str) -> io::Result<Room> {
        self.below.room(dir)
    }

    fn make_swap_file(&self, _: &str, _: Bytes, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn swap_on(&self, _: &str, _: u16) -> io::Result<()> {
        Ok(())
    }

    fn swap_off(&self, path: &str) -> io::Result<()> {
        self.changed().swap_off.insert(path.to_owned());
        Ok(())
    }

    fn file_inode(&self, path: &str) -> io::Result<u64> {
        match self.changed().files_removed.contains(path) {
            true => Err(Errno::NOENT.into()),
            false => self.below.file_inode(path),
        }
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.changed().files_removed.insert(path.to_owned());
        Ok(())
    }
}
