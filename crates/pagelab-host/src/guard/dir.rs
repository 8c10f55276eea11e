//! The directory of the journals: chosen, checked, locked.
//!
//! The lock is on the directory itself, not on a file in it. So the directory can go when its last
//! journal goes, and that it is there means that something is changed or was left changed; a user who
//! may not read root's directory can be told so.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::error::{ErrorKind, GuardError};
use super::journal::{self, Record};
use super::owner::Owner;
use crate::paths;

/// What the name of every journal ends with.
const SUFFIX: &str = ".journal";

/// A directory in which journals are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDir {
    path: PathBuf,
}

impl JournalDir {
    /// `/run/pagelab` for root where it can be written, else `$XDG_RUNTIME_DIR/pagelab`. Nothing is
    /// made before the first change.
    pub fn choose() -> Result<JournalDir, GuardError> {
        let system = Path::new(paths::JOURNAL_DIR);
        let (is_root, above) = (rustix::process::geteuid().is_root(), system.parent().unwrap_or(system));
        let can_write = rustix::fs::accessat(rustix::fs::CWD, above, Access::WRITE_OK, AtFlags::EACCESS);
        if is_root && can_write.is_ok() {
            return Ok(JournalDir::at(system));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        if let Some(runtime) = runtime.filter(|path| path.is_absolute()) {
            return Ok(JournalDir::at(&runtime.join("pagelab")));
        }
        let why = match is_root {
            true => format!("{} cannot be written and XDG_RUNTIME_DIR is not set", above.display()),
            false => format!("only root may use {} and XDG_RUNTIME_DIR is not set", system.display()),
        };
        let message = format!(
            "no place for the journal that undoes changes after a kill: {why}; \
             run as root, or set XDG_RUNTIME_DIR to a directory of yours"
        );
        Err(GuardError::new(ErrorKind::NotAvailable, message))
    }

    /// A directory of the caller's choice; its parent must exist.
    pub fn at(path: &Path) -> JournalDir {
        JournalDir { path: path.to_owned() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether root has journals that this user may not read.
    pub fn hides_roots_journals(&self) -> bool {
        let system = Path::new(paths::JOURNAL_DIR);
        self.path != system && !rustix::process::geteuid().is_root() && system.exists()
    }

    /// Locks the directory, within `wait`. `None`: it is not there, and was not to be made.
    pub(super) fn lock(&self, make: bool, wait: Duration) -> Result<Option<Locked>, GuardError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(locked) = self.try_lock(make)? {
                return Ok(locked);
            }
            if Instant::now() >= deadline {
                let message = format!(
                    "another pagelab is at work on {} and was not done after {} s; try again",
                    self.path.display(),
                    wait.as_secs()
                );
                return Err(GuardError::new(ErrorKind::Held, message));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// `None`: somebody else has the lock. `Some(None)`: there is no such directory.
    pub(super) fn try_lock(&self, make: bool) -> Result<Option<Option<Locked>>, GuardError> {
        // The directory can be removed between opening and locking; then it is made anew.
        for _ in 0..100 {
            let fd = match self.open() {
                Ok(fd) => fd,
                Err(Errno::NOENT) if !make => return Ok(Some(None)),
                Err(Errno::NOENT) => {
                    self.make()?;
                    continue;
                }
                Err(error) => return Err(self.refused(error)),
            };
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(self.refused(error)),
            }
            let of_fd = self.checked(rustix::fs::fstat(&fd).map_err(|e| self.refused(e))?)?;
            let is_same = |stat: Stat| (stat.st_dev, stat.st_ino) == (of_fd.st_dev, of_fd.st_ino);
            if rustix::fs::lstat(&self.path).is_ok_and(is_same) {
                return Ok(Some(Some(Locked { fd, path: self.path.clone() })));
            }
        }
        Err(GuardError::new(ErrorKind::Refused, format!("{} keeps vanishing", self.path.display())))
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty())
    }

    fn make(&self) -> Result<(), GuardError> {
        match rustix::fs::mkdir(&self.path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Who else can write here could have us write to settings, so only the owner may.
    fn checked(&self, stat: Stat) -> Result<Stat, GuardError> {
        let (path, me) = (self.path.display(), rustix::process::geteuid().as_raw());
        if stat.st_uid != me {
            let message = format!(
                "{path} belongs to user {}, not to {me}; remove it, or run as its owner",
                stat.st_uid
            );
            return Err(GuardError::new(ErrorKind::NotAvailable, message));
        }
        if stat.st_mode & 0o022 != 0 {
            let message = format!("{path} can be written by others; a way out: chmod 700 {path}");
            return Err(GuardError::new(ErrorKind::NotAvailable, message));
        }
        Ok(stat)
    }

    fn refused(&self, error: Errno) -> GuardError {
        let path = self.path.display();
        let message = match error {
            Errno::LOOP | Errno::NOTDIR => {
                format!("{path} is no directory of its own but a link or a file; remove it")
            }
            Errno::ACCESS | Errno::PERM => {
                format!("the journals in {path} may not be read or written; run as root")
            }
            _ => format!("the journals in {path} cannot be used"),
        };
        GuardError::new(ErrorKind::NotAvailable, message).because(error)
    }
}

/// The directory, for as long as this process alone looks at journals and begins new ones.
#[derive(Debug)]
pub(super) struct Locked {
    fd: OwnedFd,
    path: PathBuf,
}

/// A journal as found, not yet understood.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    pub(super) file: JournalFile,
    /// Somebody holds the lock that an owner has for as long as it runs.
    pub(super) is_locked: bool,
}

impl Locked {
    /// The names in it, sorted.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// The path of a name, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a journal and reads it. The error is a reason to refuse it. `None`: it is gone; an owner
    /// that has undone everything removes its own without asking for the lock.
    pub(super) fn read(&self, name: &str) -> Result<Option<Found>, String> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err("is a symbolic link".to_owned()),
            Err(error) => return Err(format!("cannot be opened: {error}")),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| error.to_string())?;
        let me = rustix::process::geteuid().as_raw();
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("is not a regular file".to_owned());
        }
        if stat.st_uid != me || stat.st_mode & 0o022 != 0 || stat.st_nlink != 1 {
            return Err(format!("could be written by others than user {me}, or has a second name"));
        }
        if stat.st_size as u64 > journal::SIZE_MAX {
            return Err(format!("is larger than {} MiB", journal::SIZE_MAX >> 20));
        }
        // Given back at once: nobody else looks while the directory is locked.
        let is_locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err();
        if !is_locked {
            let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
        }
        let mut bytes = Vec::new();
        let mut file = File::from(fd);
        let read = (&mut file).take(journal::SIZE_MAX).read_to_end(&mut bytes);
        read.map_err(|error| format!("cannot be read: {error}"))?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Ok(Some(Found { bytes, file: JournalFile { file, bytes: whole as u64, is_torn: false }, is_locked }))
    }

    /// Begins the journal of `owner`, with its head, and takes the lock that says that it runs.
    pub(super) fn begin(&self, owner: &Owner) -> io::Result<JournalFile> {
        let name = journal_name(owner);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let began = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from);
        let mut file = JournalFile { file: File::from(fd), bytes: 0, is_torn: false };
        let began = began.and_then(|()| file.append(&journal::head(owner)));
        let synced = began.and_then(|()| Ok(rustix::fs::fsync(&self.fd)?));
        match synced {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = self.remove(&name);
                Err(error)
            }
        }
    }

    /// Removes a journal in which nothing is left to undo.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Gives a refused journal another name, under which nobody looks for journals. Nothing is lost.
    pub(super) fn set_aside(&self, name: &str) -> io::Result<PathBuf> {
        for count in 0..1000 {
            let aside = format!("{name}.refused-{count}");
            match rustix::fs::renameat_with(&self.fd, name, &self.fd, &aside, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(self.path_of(&aside)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Removes the directory if nothing is in it any more, and gives the lock back.
    pub(super) fn leave(self) {
        let _ = rustix::fs::rmdir(&self.path);
    }
}

impl Drop for Locked {
    /// Closing alone would not unlock while a child that was just forked still has its copy.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// A journal that is open for appending.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    /// Length of all whole records.
    bytes: u64,
    /// Behind the whole records is a rest that could not be cut off.
    is_torn: bool,
}

impl JournalFile {
    /// Appends a record and has it written through. On an error the journal is as it was before.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        self.cut()?;
        let line = journal::encode(record)?;
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_all());
        match written {
            Ok(()) => {
                self.bytes += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.is_torn = true;
                let _ = self.cut();
                Err(error)
            }
        }
    }

    /// Cuts off what an append left that did not get through: a kill in the middle of it, a full disk.
    fn cut(&mut self) -> io::Result<()> {
        if self.is_torn || self.file.metadata()?.len() != self.bytes {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// `4121-98765.journal`
pub(super) fn journal_name(owner: &Owner) -> String {
    format!("{}-{}{SUFFIX}", owner.pid, owner.start_ticks)
}

/// Whether a name is one that a journal could have.
pub(super) fn is_journal(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// Whether a name is one that a refused journal got.
pub(super) fn is_aside(name: &str) -> bool {
    name.contains(".journal.refused-")
}
