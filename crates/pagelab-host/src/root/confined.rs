//! A directory that stands for `/`: no path and no symbolic link leads out of it.
//!
//! openat2 with RESOLVE_IN_ROOT (Linux 5.6) keeps links inside. Without it each path is walked name by
//! name, and links are refused rather than followed by rules of our own, which others could race.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How a directory is opened to be listed.
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Longest path of names that is walked; the kernel's own PATH_MAX allows no more than half of it.
const NAMES_MAX: usize = 4_000;

#[derive(Debug)]
pub(super) struct Confined {
    dir: OwnedFd,
    walk: bool,
}

impl Confined {
    pub(super) fn open_root(path: &Path, walk: bool) -> io::Result<Confined> {
        let dir = rustix::fs::open(path, DIR_FLAGS, Mode::empty())?;
        let mut confined = Confined { dir, walk };
        if !walk && let Err(error) = confined.resolve("/", OFlags::PATH | OFlags::CLOEXEC) {
            // Kernels before 5.6 do not know the call; a seccomp filter may answer EPERM for it, although
            // nothing can forbid to open a directory again that is open.
            match error {
                Errno::NOSYS | Errno::PERM | Errno::ACCESS => confined.walk = true,
                other => return Err(other.into()),
            }
        }
        Ok(confined)
    }

    /// Opens what `path` leads to, with links followed inside the root.
    pub(super) fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        if self.walk {
            return self.walk(path, flags);
        }
        Ok(self.resolve(path, flags)?)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        loop {
            match rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), inside) {
                // Something was renamed or mounted meanwhile, and the kernel could not be sure (openat2(2)).
                Err(Errno::AGAIN | Errno::INTR) if tries < 100 => tries += 1,
                opened => return opened,
            }
        }
    }

    fn walk(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        if names.len() > NAMES_MAX || names.contains(&"..") {
            return Err(Errno::INVAL.into());
        }
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some((last, before)) = names.split_last() else {
            return Ok(rustix::fs::openat(&self.dir, ".", flags, Mode::empty())?);
        };
        let mut at: Option<OwnedFd> = None;
        for name in before {
            let from = at.as_ref().map_or(self.dir.as_fd(), |fd| fd.as_fd());
            let next = rustix::fs::openat(from, *name, through, Mode::empty());
            at = Some(next.map_err(|error| refused_link(from, name, error))?);
        }
        let from = at.as_ref().map_or(self.dir.as_fd(), |fd| fd.as_fd());
        let opened = rustix::fs::openat(from, *last, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|error| refused_link(from, last, error))?;
        // O_PATH with O_NOFOLLOW opens the link itself, which is wanted only by those who say so.
        let is_link = flags.contains(OFlags::PATH)
            && !flags.contains(OFlags::NOFOLLOW)
            && FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) == FileType::Symlink;
        if is_link { Err(link_error()) } else { Ok(opened) }
    }

    /// Type and permissions of `path`, a link there not followed.
    pub(super) fn mode_nofollow(&self, path: &str) -> io::Result<u32> {
        let fd = self.open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        Ok(rustix::fs::fstat(&fd)?.st_mode)
    }

    /// What the link at `path` says.
    pub(super) fn link(&self, path: &str) -> io::Result<String> {
        let fd = self.open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        let target = rustix::fs::readlinkat(&fd, "", Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }
}

/// ELOOP and ENOTDIR at a symbolic link become words that say what would have followed it.
fn refused_link(from: impl AsFd, name: &str, error: Errno) -> io::Error {
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW);
    match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Symlink) => link_error(),
        _ => error.into(),
    }
}

fn link_error() -> io::Error {
    io::Error::other("a symbolic link, which cannot be followed safely without openat2 (Linux 5.6)")
}
