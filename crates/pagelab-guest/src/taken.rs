//! Files that a guest sends, put below one folder of the host. The guest is not trusted: no name leads out,
//! nothing that is there is touched, sizes and numbers are bounded, and a file appears when it is whole.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::fs::{accessat, linkat, mkdirat, openat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::message::{FileHead, FileKind};

/// Files and folders at most.
const ENTRIES_MAX: usize = 100_000;
/// Bytes of a path and parts of it at most.
const PATH_MAX: usize = 1 << 10;
const DEPTH_MAX: usize = 64;

/// A file, a folder or a link that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Path below the folder.
    pub path: PathBuf,
    /// Its bytes; `None` for a folder and for a link.
    pub bytes: Option<u64>,
}

/// Why taking was given up.
#[derive(Debug)]
pub enum Problem {
    /// The guest sent what it may not.
    Guest(String),
    /// The host could not store it.
    Host(String),
}

/// Puts files below a folder.
#[derive(Debug)]
pub struct Taker {
    /// `None` until the first thing comes, if the folder was not there.
    folder: Option<OwnedFd>,
    shown: PathBuf,
    /// Folders that were made for it, the uppermost first.
    made: Vec<PathBuf>,
    /// The name of each wish: what its paths start with.
    names: Vec<String>,
    bytes_left: u64,
    current: Option<Current>,
    taken: Vec<Taken>,
}

#[derive(Debug)]
struct Current {
    file: File,
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
    bytes: u64,
    /// The file has its name already, for a file system without nameless files.
    is_named: bool,
}

/// The name that a wish has on the host: the last part of its path, if there is one.
pub fn name_of(take: &str) -> Option<String> {
    let name = Path::new(take).file_name()?.to_str()?;
    (!name.contains('\0')).then(|| name.to_owned())
}

/// Whether a link with this path may lead there: upwards at its beginning alone, and never above the first
/// part of its own path. Folders above it are real ones, so that this holds for what the kernel does too,
/// whatever other links of the same kind are on the way.
pub fn stays_below(path: &str, to: &str) -> bool {
    let folders_below_first = path.split('/').count().saturating_sub(2);
    let parts: Vec<&str> = to.split('/').collect();
    let up = parts.iter().take_while(|part| **part == "..").count();
    let is_good = |part: &&str| !part.is_empty() && !matches!(*part, "." | "..") && !part.contains('\0');
    to.len() <= PATH_MAX && up <= folders_below_first && path.contains('/') && parts[up..].iter().all(is_good)
}

impl Taker {
    /// Things go below `folder`, which is made when the first one comes if it is not there. What a wish would
    /// be named must not be there yet.
    pub fn new(folder: &Path, names: Vec<String>, bytes_max: u64) -> Result<Taker, String> {
        let fd = match opened(folder) {
            Ok(fd) => Some(fd),
            Err(Errno::NOENT) => {
                can_be_made(folder).map_err(|errno| unmade(folder, &errno.into()))?;
                None
            }
            Err(errno) => return Err(format!("cannot open {}: {errno}; another --to", folder.display())),
        };
        for name in fd.iter().flat_map(|fd| names.iter().map(move |name| (fd, name))) {
            if rustix::fs::statat(name.0, name.1.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                let there = folder.join(name.1);
                return Err(format!("{} is there already; another --to, or remove it", there.display()));
            }
        }
        let (shown, bytes_left, made) = (folder.to_owned(), bytes_max, Vec::new());
        Ok(Taker { folder: fd, shown, made, names, bytes_left, current: None, taken: Vec::new() })
    }

    /// The folder, which is there afterwards.
    fn folder(&mut self) -> Result<OwnedFd, Problem> {
        let failed = |error: io::Error| Problem::Host(unmade(&self.shown, &error));
        let fd = match self.folder.take() {
            Some(fd) => fd,
            None => {
                let missing = self.shown.ancestors().take_while(|path| !is_there(path));
                self.made = missing.map(Path::to_owned).collect();
                self.made.reverse();
                std::fs::create_dir_all(&self.shown).map_err(failed)?;
                opened(&self.shown).map_err(|errno| failed(errno.into()))?
            }
        };
        self.folder.insert(fd).try_clone().map_err(failed)
    }

    /// What came so far.
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Wishes for which nothing came.
    pub fn missing(&self) -> Vec<&str> {
        let came = |name: &str| self.taken.iter().any(|taken| taken.path.starts_with(name));
        self.names.iter().map(String::as_str).filter(|name| !came(name)).collect()
    }

    /// A file or folder begins.
    pub fn begin(&mut self, head: &FileHead) -> Result<(), Problem> {
        let guest = |what: &str| Problem::Guest(format!("{what}: {}", crate::console::printable(&head.path)));
        if self.current.is_some() {
            return Err(guest("a file before the last one was whole"));
        }
        if self.taken.len() >= ENTRIES_MAX {
            return Err(guest("more files than anybody can want"));
        }
        let parts = parts(&head.path).ok_or_else(|| guest("a path that leads nowhere"))?;
        let name = usize::try_from(head.take).ok().and_then(|take| self.names.get(take));
        if name.map(String::as_str) != parts.first().copied() {
            return Err(guest("a path that nobody asked for"));
        }
        let path: PathBuf = parts.iter().collect();
        let (Some((last, above)), host) = (parts.split_last(), self.shown.join(&path)) else {
            return Err(guest("a path without a name"));
        };
        let failed = |errno: Errno| Problem::Host(refusal(&host, errno.into()));
        let name = CString::new(*last).map_err(|_| guest("a name with a zero byte"))?;
        let parent = parent(self.folder()?, above).map_err(failed)?;
        match &head.kind {
            FileKind::Plain => {}
            FileKind::Folder => {
                mkdirat(&parent, name.as_c_str(), Mode::from_raw_mode(0o755)).map_err(failed)?;
                self.taken.push(Taken { path, bytes: None });
                return Ok(());
            }
            FileKind::Link(to) => {
                if !stays_below(&head.path, to) {
                    return Err(guest("a link that leads out"));
                }
                symlinkat(to.as_str(), &parent, name.as_c_str()).map_err(failed)?;
                self.taken.push(Taken { path, bytes: None });
                return Ok(());
            }
        }
        let (file, is_named) = nameless(&parent, &name).map_err(failed)?;
        self.current = Some(Current { file: file.into(), parent, name, path, bytes: 0, is_named });
        Ok(())
    }

    /// Bytes of the file that was begun.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let Some(current) = &mut self.current else {
            return Err(Problem::Guest("bytes of no file".to_owned()));
        };
        let host = self.shown.join(&current.path);
        self.bytes_left = self.bytes_left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            Problem::Host(format!("{}: more than may be taken; --take-max raises it", host.display()))
        })?;
        current.file.write_all(bytes).map_err(|error| Problem::Host(refusal(&host, error)))?;
        current.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The file that was begun is whole and gets its name.
    pub fn done(&mut self) -> Result<(), Problem> {
        let Some(current) = self.current.take() else {
            return Err(Problem::Guest("the end of no file".to_owned()));
        };
        if !current.is_named {
            let fd = format!("/dev/fd/{}", current.file.as_raw_fd());
            let linked = linkat(CWD, fd, &current.parent, current.name.as_c_str(), AtFlags::SYMLINK_FOLLOW);
            linked.map_err(|errno| Problem::Host(refusal(&self.shown.join(&current.path), errno.into())))?;
        }
        self.taken.push(Taken { path: current.path.clone(), bytes: Some(current.bytes) });
        // Its name stays: `Drop` of what was not whole takes it away.
        Ok(())
    }

    /// The file that was begun will not be whole, so that there is none.
    pub fn give_up(&mut self) {
        if let Some(current) = self.current.take().filter(|current| current.is_named) {
            let _ = unlinkat(&current.parent, current.name.as_c_str(), AtFlags::empty());
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.give_up();
        if self.taken.is_empty() {
            // One that somebody else has put something into stays, and so do those above it.
            let _ = self.made.iter().rev().try_for_each(std::fs::remove_dir);
        }
    }
}

fn opened(folder: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether something is there; no name at all is this folder.
fn is_there(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.symlink_metadata().is_ok()
}

/// Asks whether the first folder above that is there can be written to, so that it is known before a guest
/// has done its work in vain. It is made only when something comes.
fn can_be_made(folder: &Path) -> Result<(), Errno> {
    let above = folder.ancestors().find(|path| is_there(path)).unwrap_or(Path::new("/"));
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    opened(above)?;
    accessat(CWD, above, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
}

fn unmade(folder: &Path, error: &io::Error) -> String {
    format!("cannot make {}: {error}; another --to", folder.display())
}

/// The folder in which something with these parts above it goes; made where the guest said so.
fn parent(folder: OwnedFd, above: &[&str]) -> Result<OwnedFd, Errno> {
    let mut at = folder;
    for part in above {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = openat(&at, *part, flags, Mode::empty())?;
    }
    Ok(at)
}

/// A file without a name in `parent`; where the file system has no such thing, a new one with its name.
fn nameless(parent: &OwnedFd, name: &CString) -> Result<(OwnedFd, bool), Errno> {
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
fn parts(path: &str) -> Option<Vec<&str>> {
    let is_good = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains('\0');
    let parts: Vec<&str> = path.split('/').collect();
    (path.len() <= PATH_MAX && parts.len() <= DEPTH_MAX && parts.iter().all(is_good)).then_some(parts)
}

fn refusal(host: &Path, error: io::Error) -> String {
    let way_out = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "; make room, or choose another --to",
        Some(Errno::EXIST) => "; another --to, or remove it",
        _ => "",
    };
    let shown = String::from_utf8_lossy(host.as_os_str().as_bytes()).into_owned();
    format!("cannot store {}: {error}{way_out}", crate::console::printable(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn head(take: u32, path: &str, is_folder: bool) -> FileHead {
        let kind = if is_folder { FileKind::Folder } else { FileKind::Plain };
        FileHead { take, path: path.to_owned(), kind }
    }

    fn taker(folder: &Path) -> Taker {
        Taker::new(folder, vec!["a".to_owned(), "b".to_owned()], 1000).unwrap()
    }

    #[test]
    fn files_and_folders_come_below_the_folder_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut taker = taker(&folder.path().join("new"));
        taker.begin(&head(0, "a", true)).unwrap();
        taker.begin(&head(0, "a/x", false)).unwrap();
        taker.data(b"he").unwrap();
        assert!(!folder.path().join("new/a/x").exists(), "not before it is whole");
        taker.data(b"llo").unwrap();
        taker.done().unwrap();
        assert_eq!(fs::read(folder.path().join("new/a/x")).unwrap(), b"hello");
        assert_eq!(taker.missing(), ["b"]);
        taker.begin(&head(1, "b", false)).unwrap();
        taker.give_up();
        assert_eq!(taker.missing(), ["b"]);
        taker.begin(&head(1, "b", false)).unwrap();
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
            let refused = taker(&inside).begin(&head(0, path, false));
            assert!(matches!(refused, Err(Problem::Guest(_))), "{path:?}: {refused:?}");
        }
        let deep = format!("a/{}", "d/".repeat(100) + "x");
        assert!(matches!(taker(&inside).begin(&head(0, &deep, false)), Err(Problem::Guest(_))));
        assert!(matches!(taker(&inside).begin(&head(9, "a", false)), Err(Problem::Guest(_))));
        assert!(matches!(taker(&inside).data(b"x"), Err(Problem::Guest(_))));
        assert!(matches!(taker(&inside).done(), Err(Problem::Guest(_))));

        // A link that somebody puts in the way is not followed.
        let mut sly = taker(&inside);
        std::os::unix::fs::symlink(&outside, inside.join("a")).unwrap();
        assert!(matches!(sly.begin(&head(0, "a/x", false)), Err(Problem::Host(_))));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let there = Taker::new(&inside, vec!["a".to_owned()], 1).unwrap_err();
        assert!(there.contains("is there already"), "{there}");
        fs::remove_file(inside.join("a")).unwrap();

        let mut large = taker(&inside);
        large.begin(&head(0, "a", false)).unwrap();
        large.data(&[0; 1000]).unwrap();
        let refused = large.data(b"x");
        assert!(matches!(&refused, Err(Problem::Host(said)) if said.contains("--take-max")), "{refused:?}");
        drop(large);
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_is_there_only_if_something_came() {
        let root = tempfile::tempdir().unwrap();
        let (upper, folder) = (root.path().join("new"), root.path().join("new/er"));
        drop(taker(&folder));
        let mut nothing = taker(&folder);
        assert!(matches!(nothing.begin(&head(0, "c", false)), Err(Problem::Guest(_))) && !upper.exists());
        nothing.begin(&head(0, "a", false)).unwrap();
        assert!(folder.exists());
        drop(nothing);
        assert!(!upper.exists(), "half a file is nothing");
        let mut something = taker(&folder);
        something.begin(&head(0, "a", true)).unwrap();
        drop(something);
        assert!(folder.join("a").exists());
        // What we did not make stays, empty as it is.
        fs::remove_dir(folder.join("a")).unwrap();
        let mut nothing = taker(&folder);
        nothing.begin(&head(0, "a", false)).unwrap();
        drop(nothing);
        assert!(folder.exists());
        // It is said before there is a guest that it cannot be made.
        fs::write(upper.join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", upper.join("link")).unwrap();
        for (there, said) in [("file", "cannot open"), ("file/x", "cannot open"), ("link/x", "cannot make")] {
            let refused = Taker::new(&upper.join(there), vec!["a".to_owned()], 1).unwrap_err();
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
            assert_eq!(stays_below(path, to), stays, "{path} -> {to}");
        }
        let folder = tempfile::tempdir().unwrap();
        let mut taker = taker(folder.path());
        taker.begin(&head(0, "a", true)).unwrap();
        let link = |to: &str| FileHead { kind: FileKind::Link(to.to_owned()), ..head(0, "a/l", false) };
        assert!(matches!(taker.begin(&link("../x")), Err(Problem::Guest(_))));
        taker.begin(&link("x")).unwrap();
        assert_eq!(fs::read_link(folder.path().join("a/l")).unwrap(), Path::new("x"));
        // Nothing is written through a link, even through one of ours.
        assert!(matches!(taker.begin(&head(0, "a/l/y", false)), Err(Problem::Host(_))));
    }

    #[test]
    fn names_of_wishes() {
        let names = ["saved.tar.zst", "/a/b/", "/", "..", "a/.."].map(name_of);
        let expected = [Some("saved.tar.zst"), Some("b"), None, None, None];
        assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
    }
}
