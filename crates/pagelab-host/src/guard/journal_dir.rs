//! Directory of the journals: its choice, its checks and its lock.
//!
//! The lock is on the directory itself, not on a file in it. So the directory is removed with its last
//! journal, and its existence means that a setting is changed or was left changed; this can be reported to a
//! user who may not read root's directory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use pagelab_model::Bytes;
use pagelab_model::size::format_bytes;

use super::journal::{self, Record};
use super::owner::Owner;
use super::{GuardError, GuardErrorKind};
use crate::paths;
use crate::root::read_names;

const SUFFIX: &str = ".journal";

/// Directory of journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDir {
    path: PathBuf,
}

impl JournalDir {
    /// `/run/pagelab` for root if it can be written, else `$XDG_RUNTIME_DIR/pagelab`. Nothing is created
    /// before the first change.
    pub fn choose_default() -> Result<JournalDir, GuardError> {
        let system = Path::new(paths::JOURNAL_DIR);
        let (is_root, above) = (rustix::process::geteuid().is_root(), system.parent().unwrap_or(system));
        let can_write = rustix::fs::accessat(rustix::fs::CWD, above, Access::WRITE_OK, AtFlags::EACCESS);
        if is_root && can_write.is_ok() {
            return Ok(JournalDir::from_path(system));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        if let Some(runtime) = runtime.filter(|path| path.is_absolute()) {
            return Ok(JournalDir::from_path(&runtime.join("pagelab")));
        }
        let why = match is_root {
            true => format!("{} is not writable, and XDG_RUNTIME_DIR is not set", above.display()),
            false => format!("{} requires root, and XDG_RUNTIME_DIR is not set", system.display()),
        };
        let message =
            format!("cannot choose a journal directory: {why}; hint: run as root, or set XDG_RUNTIME_DIR");
        Err(GuardError::new(GuardErrorKind::NotAvailable, message))
    }

    /// A directory that the caller chooses; its parent must exist.
    pub fn from_path(path: &Path) -> JournalDir {
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

    /// Locks the directory, within `wait`. `None`: it does not exist and was not to be created.
    pub(super) fn lock(&self, create: bool, wait: Duration) -> Result<Option<LockedJournalDir>, GuardError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(locked) = self.try_lock(create)? {
                return Ok(locked);
            }
            if Instant::now() >= deadline {
                let message = format!(
                    "cannot lock {}: another pagelab process has held the lock for {} s; hint: try again",
                    self.path.display(),
                    wait.as_secs()
                );
                return Err(GuardError::new(GuardErrorKind::HeldByOther, message));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// `None`: another process has the lock. `Some(None)`: there is no such directory.
    pub(super) fn try_lock(&self, create: bool) -> Result<Option<Option<LockedJournalDir>>, GuardError> {
        // The directory can be removed between opening and locking; then it is created again.
        for _ in 0..100 {
            let fd = match self.open() {
                Ok(fd) => fd,
                Err(Errno::NOENT) if !create => return Ok(Some(None)),
                Err(Errno::NOENT) => {
                    self.create()?;
                    continue;
                }
                Err(error) => return Err(self.open_error(error)),
            };
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(self.open_error(error)),
            }
            let of_fd = self.check_permissions(rustix::fs::fstat(&fd).map_err(|e| self.open_error(e))?)?;
            let is_same = |stat: Stat| (stat.st_dev, stat.st_ino) == (of_fd.st_dev, of_fd.st_ino);
            if rustix::fs::lstat(&self.path).is_ok_and(is_same) {
                return Ok(Some(Some(LockedJournalDir { fd, path: self.path.clone() })));
            }
        }
        let message = format!("cannot lock {}: it was removed during every attempt", self.path.display());
        Err(GuardError::new(GuardErrorKind::KernelRefused, message))
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty())
    }

    fn create(&self) -> Result<(), GuardError> {
        match rustix::fs::mkdir(&self.path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(self.open_error(error)),
        }
    }

    /// A user with write access here can make pagelab change settings, so only the owner has it.
    fn check_permissions(&self, stat: Stat) -> Result<Stat, GuardError> {
        let (path, me) = (self.path.display(), rustix::process::geteuid().as_raw());
        if stat.st_uid != me {
            let message = format!(
                "cannot use {path}: it belongs to user {}, not to {me}; hint: remove it, or run as its owner",
                stat.st_uid
            );
            return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
        }
        if stat.st_mode & 0o022 != 0 {
            let message = format!("cannot use {path}: it is writable by other users; hint: chmod 700 {path}");
            return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
        }
        Ok(stat)
    }

    fn open_error(&self, error: Errno) -> GuardError {
        let path = self.path.display();
        let not_available = |message| GuardError::new(GuardErrorKind::NotAvailable, message);
        match error {
            Errno::LOOP | Errno::NOTDIR => {
                not_available(format!("cannot use {path}: it is not a directory; hint: remove it"))
            }
            Errno::ACCESS | Errno::PERM => {
                not_available(format!("cannot use {path}: {error}; hint: run as root"))
            }
            _ => not_available(format!("cannot use {path}")).with_cause(error),
        }
    }
}

/// The directory, while this process alone reads journals and begins new ones.
#[derive(Debug)]
pub(super) struct LockedJournalDir {
    fd: OwnedFd,
    path: PathBuf,
}

/// A journal that was read and not parsed.
#[derive(Debug)]
pub(super) struct RawJournal {
    pub(super) bytes: Vec<u8>,
    pub(super) file: JournalFile,
    /// A running owner holds the lock.
    pub(super) is_locked: bool,
}

impl LockedJournalDir {
    /// The names in it, sorted.
    pub(super) fn list_names(&self) -> Result<Vec<String>, GuardError> {
        let names = read_names(&self.fd, usize::MAX);
        names.map_err(|error| GuardError::from_io(self.path.display().to_string(), error))
    }

    /// The path of a name, for messages.
    pub(super) fn path_for(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a journal and reads it. The error is a reason to refuse it. `None`: it no longer exists; an
    /// owner that has undone everything removes its own without taking the lock.
    pub(super) fn read_journal(&self, name: &str) -> Result<Option<RawJournal>, String> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err("is a symbolic link".to_owned()),
            Err(error) => return Err(format!("cannot open it: {error}")),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| error.to_string())?;
        let own_uid = rustix::process::geteuid().as_raw();
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("is not a regular file".to_owned());
        }
        if stat.st_uid != own_uid || stat.st_mode & 0o022 != 0 || stat.st_nlink != 1 {
            return Err(format!("is writable by users other than {own_uid}, or has a second hard link"));
        }
        if stat.st_size as u64 > journal::SIZE_MAX {
            return Err(format!("is larger than {}", format_bytes(Bytes(journal::SIZE_MAX))));
        }
        // Released at once: no other process reads while the directory is locked.
        let is_locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err();
        if !is_locked {
            let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
        }
        let mut bytes = Vec::new();
        let mut file = File::from(fd);
        let read = (&mut file).take(journal::SIZE_MAX).read_to_end(&mut bytes);
        read.map_err(|error| format!("cannot read it: {error}"))?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Ok(Some(RawJournal {
            bytes,
            file: JournalFile { file, bytes: whole as u64, is_torn: false },
            is_locked,
        }))
    }

    /// Begins the journal of `owner`, with its head, and takes the lock, which shows that it runs.
    pub(super) fn create_journal(&self, owner: &Owner) -> io::Result<JournalFile> {
        let name = journal_name(owner);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let began = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from);
        let mut file = JournalFile { file: File::from(fd), bytes: 0, is_torn: false };
        let began = began
            .and_then(|()| file.append(&Record::Head { version: journal::VERSION, owner: owner.clone() }));
        let synced = began.and_then(|()| Ok(rustix::fs::fsync(&self.fd)?));
        match synced {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = self.remove_journal(&name);
                Err(error)
            }
        }
    }

    /// Removes a journal in which nothing is left to undo.
    pub(super) fn remove_journal(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames a refused journal, so that it is no longer found as a journal. Nothing is lost.
    pub(super) fn quarantine(&self, name: &str) -> io::Result<PathBuf> {
        for count in 0..1000 {
            let aside = format!("{name}.refused-{count}");
            match rustix::fs::renameat_with(&self.fd, name, &self.fd, &aside, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(self.path_for(&aside)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Removes the directory if it is empty, and releases the lock.
    pub(super) fn release(self) {
        let _ = rustix::fs::rmdir(&self.path);
    }
}

impl Drop for LockedJournalDir {
    /// Closing alone would not unlock while a child that was just forked has a copy.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// A journal that is open for appending.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    /// Length of all complete records.
    bytes: u64,
    /// Whether a rest follows the complete records that could not be truncated.
    is_torn: bool,
}

impl JournalFile {
    /// Appends a record and syncs it to disk. On an error the journal is as before.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        self.truncate_torn()?;
        let line = journal::encode(record)?;
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_all());
        match written {
            Ok(()) => {
                self.bytes += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.is_torn = true;
                let _ = self.truncate_torn();
                Err(error)
            }
        }
    }

    /// Truncates the rest of an incomplete append: after a kill, or on a full disk.
    fn truncate_torn(&mut self) -> io::Result<()> {
        if self.is_torn || self.file.metadata()?.len() != self.bytes {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Appends a record that says how far a change or its undo is. An error is ignored: without the record, the
/// next restore only checks again.
pub(super) fn note(file: Option<&mut JournalFile>, record: &Record) {
    if let Some(file) = file {
        let _ = file.append(record);
    }
}

/// `4121-98765.journal`
pub(super) fn journal_name(owner: &Owner) -> String {
    format!("{}-{}{SUFFIX}", owner.pid, owner.start_ticks)
}

pub(super) fn is_journal(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

pub(super) fn is_quarantined(name: &str) -> bool {
    name.contains(".journal.refused-")
}
