//! Receiver of files from a guest, confined to one directory of the host. The guest is not trusted: no name
//! leads out, nothing that is there is touched, sizes and numbers are bounded, and a file appears when it is
//! whole.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::fs::{accessat, linkat, mkdirat, openat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::message::{EntryKind, FileHeader};

/// Files and folders at most.
const ENTRIES_MAX: usize = 100_000;
/// Bytes of a path and parts of it at most.
const PATH_MAX: usize = 1 << 10;
const DEPTH_MAX: usize = 64;

/// Received file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedFile {
    /// Path below the folder.
    pub path: PathBuf,
    /// Its bytes; `None` for a folder and for a link.
    pub bytes: Option<u64>,
}

/// Why taking was given up.
#[derive(Debug)]
pub enum ReceiveError {
    /// The guest violated the protocol.
    GuestFault(String),
    /// The host could not store it.
    HostFault(String),
}

/// Puts files below a folder.
#[derive(Debug)]
pub struct FileReceiver {
    /// `None` until the first entry arrives, if the directory did not exist.
    dir: Option<OwnedFd>,
    display_path: PathBuf,
    /// Folders that were made for it, the uppermost first.
    created_dirs: Vec<PathBuf>,
    /// The name of each wish: what its paths start with.
    output_names: Vec<String>,
    bytes_left: u64,
    current_file: Option<OpenFile>,
    received: Vec<ReceivedFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
    bytes: u64,
    /// The file has its name already, for a file system without nameless files.
    is_linked: bool,
}

/// The name that a wish has on the host: the last part of its path, if there is one.
pub fn output_name(take: &str) -> Option<String> {
    let name = Path::new(take).file_name()?.to_str()?;
    (!name.contains('\0')).then(|| name.to_owned())
}

/// Whether a link with this path may lead there: upwards at its beginning alone, and never above the first
/// part of its own path. Its parent directories are no links, so this also holds for the kernel's path
/// lookup.
pub fn is_link_contained(path: &str, to: &str) -> bool {
    let folders_below_first = path.split('/').count().saturating_sub(2);
    let parts: Vec<&str> = to.split('/').collect();
    let up = parts.iter().take_while(|part| **part == "..").count();
    let is_good = |part: &&str| !part.is_empty() && !matches!(*part, "." | "..") && !part.contains('\0');
    to.len() <= PATH_MAX && up <= folders_below_first && path.contains('/') && parts[up..].iter().all(is_good)
}

impl FileReceiver {
    /// Entries are stored below `dir`, which is created for the first one. What a wish would be named must
    /// not be there yet.
    pub fn new(dir: &Path, names: Vec<String>, bytes_max: u64) -> Result<FileReceiver, String> {
        let fd = match open_dir(dir) {
            Ok(fd) => Some(fd),
            Err(Errno::NOENT) => {
                check_creatable(dir).map_err(|errno| create_error(dir, &errno.into()))?;
                None
            }
            Err(errno) => {
                return Err(format!("cannot open {}: {errno}; hint: use another --to", dir.display()));
            }
        };
        let is_there = |name: &&String| {
            let stat = |fd: &OwnedFd| rustix::fs::statat(fd, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            fd.as_ref().is_some_and(|fd| stat(fd).is_ok())
        };
        if let Some(name) = names.iter().find(is_there) {
            return Err(format!(
                "cannot write {}: it already exists; hint: use another --to, or remove it",
                dir.join(name).display()
            ));
        }
        Ok(FileReceiver {
            dir: fd,
            display_path: dir.to_owned(),
            created_dirs: Vec::new(),
            output_names: names,
            bytes_left: bytes_max,
            current_file: None,
            received: Vec::new(),
        })
    }

    /// The folder, which is there afterwards.
    fn ensure_dir(&mut self) -> Result<OwnedFd, ReceiveError> {
        let host_error = |error: io::Error| ReceiveError::HostFault(create_error(&self.display_path, &error));
        let fd = match self.dir.take() {
            Some(fd) => fd,
            None => {
                let missing = self.display_path.ancestors().take_while(|path| !path_exists(path));
                self.created_dirs = missing.map(Path::to_owned).collect();
                self.created_dirs.reverse();
                std::fs::create_dir_all(&self.display_path).map_err(host_error)?;
                open_dir(&self.display_path).map_err(|errno| host_error(errno.into()))?
            }
        };
        self.dir.insert(fd).try_clone().map_err(host_error)
    }

    /// Entries received so far.
    pub fn received_files(&self) -> &[ReceivedFile] {
        &self.received
    }

    /// Requested files that did not arrive.
    pub fn missing_outputs(&self) -> Vec<&str> {
        let came = |name: &str| self.received.iter().any(|taken| taken.path.starts_with(name));
        self.output_names.iter().map(String::as_str).filter(|name| !came(name)).collect()
    }

    /// A file or folder begins.
    pub fn begin_entry(&mut self, header: &FileHeader) -> Result<(), ReceiveError> {
        let guest_error = |what: &str| {
            ReceiveError::GuestFault(format!("{what}: {}", crate::console::printable(&header.path)))
        };
        if self.current_file.is_some() {
            return Err(guest_error("a file before the previous one was complete"));
        }
        if self.received.len() >= ENTRIES_MAX {
            return Err(guest_error("more files than the limit"));
        }
        let parts = split_path(&header.path).ok_or_else(|| guest_error("an invalid path"))?;
        let name = usize::try_from(header.take).ok().and_then(|take| self.output_names.get(take));
        if name.map(String::as_str) != parts.first().copied() {
            return Err(guest_error("a path that was not requested"));
        }
        let path: PathBuf = parts.iter().collect();
        let (Some((last, above)), host) = (parts.split_last(), self.display_path.join(&path)) else {
            return Err(guest_error("a path without a name"));
        };
        let host_error = |errno: Errno| ReceiveError::HostFault(format_refusal(&host, errno.into()));
        let name = CString::new(*last).map_err(|_| guest_error("a name with a zero byte"))?;
        let parent = open_parent(self.ensure_dir()?, above).map_err(host_error)?;
        match &header.kind {
            EntryKind::Plain => {
                let (file, is_linked) = open_tmpfile(&parent, &name).map_err(host_error)?;
                self.current_file =
                    Some(OpenFile { file: file.into(), parent, name, path, bytes: 0, is_linked });
                return Ok(());
            }
            EntryKind::Folder => mkdirat(&parent, name.as_c_str(), Mode::from_raw_mode(0o755)),
            EntryKind::Link(to) if is_link_contained(&header.path, to) => {
                symlinkat(to.as_str(), &parent, name.as_c_str())
            }
            EntryKind::Link(_) => return Err(guest_error("a link that leads outside the copied tree")),
        }
        .map_err(host_error)?;
        self.received.push(ReceivedFile { path, bytes: None });
        Ok(())
    }

    /// Contents of the current file.
    pub fn write_data(&mut self, bytes: &[u8]) -> Result<(), ReceiveError> {
        let Some(current) = &mut self.current_file else {
            return Err(ReceiveError::GuestFault("contents without a file".to_owned()));
        };
        let host = self.display_path.join(&current.path);
        self.bytes_left = self.bytes_left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            ReceiveError::HostFault(format!(
                "{}: exceeds the size limit; hint: use a larger --take-max",
                host.display()
            ))
        })?;
        current
            .file
            .write_all(bytes)
            .map_err(|error| ReceiveError::HostFault(format_refusal(&host, error)))?;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The current file is complete and gets its name.
    pub fn finish_file(&mut self) -> Result<(), ReceiveError> {
        let Some(current) = self.current_file.take() else {
            return Err(ReceiveError::GuestFault("the end of a file that was not started".to_owned()));
        };
        if !current.is_linked {
            let fd = format!("/dev/fd/{}", current.file.as_raw_fd());
            let linked = linkat(CWD, fd, &current.parent, current.name.as_c_str(), AtFlags::SYMLINK_FOLLOW);
            linked.map_err(|errno| {
                ReceiveError::HostFault(format_refusal(&self.display_path.join(&current.path), errno.into()))
            })?;
        }
        self.received.push(ReceivedFile { path: current.path.clone(), bytes: Some(current.bytes) });
        // Its name stays: `Drop` removes an incomplete file.
        Ok(())
    }

    /// The current file stays incomplete and is removed.
    pub fn discard_file(&mut self) {
        if let Some(current) = self.current_file.take().filter(|current| current.is_linked) {
            let _ = unlinkat(&current.parent, current.name.as_c_str(), AtFlags::empty());
        }
    }
}

impl Drop for FileReceiver {
    fn drop(&mut self) {
        self.discard_file();
        if self.received.is_empty() {
            // A directory with files of another process stays, and so do its parents.
            let _ = self.created_dirs.iter().rev().try_for_each(std::fs::remove_dir);
        }
    }
}

fn open_dir(dir: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether something is there; no name at all is this folder.
fn path_exists(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.symlink_metadata().is_ok()
}

/// Asks whether the first folder above that is there can be written to, so that it is known before a guest
/// has done its work in vain. It is made only when something comes.
fn check_creatable(dir: &Path) -> Result<(), Errno> {
    let above = dir.ancestors().find(|path| path_exists(path)).unwrap_or(Path::new("/"));
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    open_dir(above)?;
    accessat(CWD, above, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
}

fn create_error(dir: &Path, error: &io::Error) -> String {
    format!("cannot create {}: {error}; hint: use another --to", dir.display())
}

/// Directory of an entry with these parent parts; created if the guest requested it.
fn open_parent(dir: OwnedFd, above: &[&str]) -> Result<OwnedFd, Errno> {
    let mut at = dir;
    for part in above {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = openat(&at, *part, flags, Mode::empty())?;
    }
    Ok(at)
}

/// A file without a name in `parent`; where the file system has no such thing, a new one with its name.
fn open_tmpfile(parent: &OwnedFd, name: &CString) -> Result<(OwnedFd, bool), Errno> {
    let mode = Mode::from_raw_mode(0o644);
    match openat(parent, c".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok((file, false)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok((openat(parent.as_fd(), name.as_c_str(), flags, mode)?, true))
        }
        Err(errno) => Err(errno),
    }
}

/// The parts of a relative path that stays where it is; `None` for any other.
fn split_path(path: &str) -> Option<Vec<&str>> {
    let is_good = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains('\0');
    let parts: Vec<&str> = path.split('/').collect();
    (path.len() <= PATH_MAX && parts.len() <= DEPTH_MAX && parts.iter().all(is_good)).then_some(parts)
}

fn format_refusal(host: &Path, error: io::Error) -> String {
    let hint = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "; hint: free space, or choose another --to",
        Some(Errno::EXIST) => "; hint: use another --to, or remove it",
        _ => "",
    };
    let shown = String::from_utf8_lossy(host.as_os_str().as_bytes()).into_owned();
    format!("cannot store {}: {error}{hint}", crate::console::printable(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn head(take: u32, path: &str, is_folder: bool) -> FileHeader {
        let kind = if is_folder { EntryKind::Folder } else { EntryKind::Plain };
        FileHeader { take, path: path.to_owned(), kind }
    }

    fn receiver(dir: &Path) -> FileReceiver {
        FileReceiver::new(dir, vec!["a".to_owned(), "b".to_owned()], 1000).unwrap()
    }

    #[test]
    fn files_and_folders_come_below_the_folder_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut taker = receiver(&folder.path().join("new"));
        taker.begin_entry(&head(0, "a", true)).unwrap();
        taker.begin_entry(&head(0, "a/x", false)).unwrap();
        taker.write_data(b"he").unwrap();
        assert!(!folder.path().join("new/a/x").exists(), "not before it is whole");
        taker.write_data(b"llo").unwrap();
        taker.finish_file().unwrap();
        assert_eq!(fs::read(folder.path().join("new/a/x")).unwrap(), b"hello");
        assert_eq!(taker.missing_outputs(), ["b"]);
        taker.begin_entry(&head(1, "b", false)).unwrap();
        taker.discard_file();
        assert_eq!(taker.missing_outputs(), ["b"]);
        taker.begin_entry(&head(1, "b", false)).unwrap();
        drop(taker);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "half of b is not there");
    }

    #[test]
    fn a_hostile_guest_gets_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        for path in
            ["", "/", "/etc/x", "..", "a/../../x", "a//x", "a/./x", "a/", "c", "a\0", "../inside/a", "b"]
        {
            let refused = receiver(&inside).begin_entry(&head(0, path, false));
            assert!(matches!(refused, Err(ReceiveError::GuestFault(_))), "{path:?}: {refused:?}");
        }
        let deep = format!("a/{}", "d/".repeat(100) + "x");
        assert!(matches!(
            receiver(&inside).begin_entry(&head(0, &deep, false)),
            Err(ReceiveError::GuestFault(_))
        ));
        assert!(matches!(
            receiver(&inside).begin_entry(&head(9, "a", false)),
            Err(ReceiveError::GuestFault(_))
        ));
        assert!(matches!(receiver(&inside).write_data(b"x"), Err(ReceiveError::GuestFault(_))));
        assert!(matches!(receiver(&inside).finish_file(), Err(ReceiveError::GuestFault(_))));

        // A link that another process creates at the path is not followed.
        let mut sly = receiver(&inside);
        std::os::unix::fs::symlink(&outside, inside.join("a")).unwrap();
        assert!(matches!(sly.begin_entry(&head(0, "a/x", false)), Err(ReceiveError::HostFault(_))));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let there = FileReceiver::new(&inside, vec!["a".to_owned()], 1).unwrap_err();
        assert!(there.contains("it already exists"), "{there}");
        fs::remove_file(inside.join("a")).unwrap();

        let mut large = receiver(&inside);
        large.begin_entry(&head(0, "a", false)).unwrap();
        large.write_data(&[0; 1000]).unwrap();
        let refused = large.write_data(b"x");
        assert!(
            matches!(&refused, Err(ReceiveError::HostFault(said)) if said.contains("--take-max")),
            "{refused:?}"
        );
        drop(large);
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_is_there_only_if_something_came() {
        let root = tempfile::tempdir().unwrap();
        let (upper, folder) = (root.path().join("new"), root.path().join("new/er"));
        drop(receiver(&folder));
        let mut nothing = receiver(&folder);
        assert!(
            matches!(nothing.begin_entry(&head(0, "c", false)), Err(ReceiveError::GuestFault(_)))
                && !upper.exists()
        );
        nothing.begin_entry(&head(0, "a", false)).unwrap();
        assert!(folder.exists());
        drop(nothing);
        assert!(!upper.exists(), "half a file is nothing");
        let mut something = receiver(&folder);
        something.begin_entry(&head(0, "a", true)).unwrap();
        drop(something);
        assert!(folder.join("a").exists());
        // Directories of others stay, even if empty.
        fs::remove_dir(folder.join("a")).unwrap();
        let mut nothing = receiver(&folder);
        nothing.begin_entry(&head(0, "a", false)).unwrap();
        drop(nothing);
        assert!(folder.exists());
        // The error is reported before a guest is started.
        fs::write(upper.join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", upper.join("link")).unwrap();
        for (there, said) in [("file", "cannot open"), ("file/x", "cannot open"), ("link/x", "cannot create")]
        {
            let refused = FileReceiver::new(&upper.join(there), vec!["a".to_owned()], 1).unwrap_err();
            assert!(refused.contains(said) && refused.contains("another --to"), "{there}: {refused}");
        }
    }

    #[test]
    fn links_stay_below_what_is_taken() {
        for (path, to, stays) in [
            ("c/a/node0", "../../c", false),
            ("c/a/b/node0", "../../node/node0", true),
            ("c/node0", "b", true),
            ("c/node0", "../c/b", false),
            ("c/a/node0", "..", true),
            ("c", "b", false),
            ("c/a/x", "/etc/passwd", false),
            ("c/a/x", "b/../../..", false),
            ("c/a/x", "", false),
            ("c/a/x", "./b", false),
        ] {
            assert_eq!(is_link_contained(path, to), stays, "{path} -> {to}");
        }
        let folder = tempfile::tempdir().unwrap();
        let mut taker = receiver(folder.path());
        taker.begin_entry(&head(0, "a", true)).unwrap();
        let link = |to: &str| FileHeader { kind: EntryKind::Link(to.to_owned()), ..head(0, "a/l", false) };
        assert!(matches!(taker.begin_entry(&link("../x")), Err(ReceiveError::GuestFault(_))));
        taker.begin_entry(&link("x")).unwrap();
        assert_eq!(fs::read_link(folder.path().join("a/l")).unwrap(), Path::new("x"));
        // Nothing is written through a link, even through one of ours.
        assert!(matches!(taker.begin_entry(&head(0, "a/l/y", false)), Err(ReceiveError::HostFault(_))));
    }

    #[test]
    fn names_of_wishes() {
        let names = ["saved.tar.zst", "/a/b/", "/", "..", "a/.."].map(output_name);
        let expected = [Some("saved.tar.zst"), Some("b"), None, None, None];
        assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
    }
}
