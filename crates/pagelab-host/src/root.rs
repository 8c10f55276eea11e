//! Root of kernel files: this machine, or a saved tree, with the same calls.
//!
//! A saved tree is a directory, a `.tar` or a `.tar.zst`. Nothing outside of it can be reached, nothing
//! blocks (FIFOs and devices are not opened), and no text is larger than [`TEXT_BYTES_MAX`].

mod archive;
#[cfg(test)]
mod walk_tests;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use archive::Archive;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::manifest::{MANIFEST_FILE, Manifest};
use crate::paths;

/// Maximum size of a text file under a root: no kernel prints a larger one.
pub const TEXT_BYTES_MAX: Bytes = Bytes(64 << 20);

/// Maximum number of names in one directory of a saved tree, and of entries of an archive.
pub const ENTRIES_MAX: usize = 200_000;

/// Description of a saved tree, for messages about one that cannot be opened.
const EXPECTED_TREE: &str = "expected a directory, a .tar or a .tar.zst, as written by `pagelab capture`";

/// This machine or a saved tree of its files. A clone reads the same tree.
#[derive(Clone, Debug)]
pub struct Root {
    backend: Arc<RootBackend>,
    /// The given name of the saved tree; `this machine` for the live one.
    name: String,
    /// A plain directory of files of /proc: `buddyinfo` directly in it.
    is_flat: bool,
    notes: Vec<String>,
    manifest: Option<Reading<Manifest>>,
}

#[derive(Debug)]
enum RootBackend {
    /// `/` of this machine.
    Live,
    /// A directory read as `/`.
    Dir(ConfinedDir),
    /// An archive, indexed in memory.
    Archive(Archive),
}

/// Type of a directory entry; symbolic links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket, a device.
    Other,
}

impl Root {
    /// This machine.
    pub fn live() -> Root {
        let name = "this machine".to_owned();
        Root { backend: Arc::new(RootBackend::Live), name, is_flat: false, notes: Vec::new(), manifest: None }
    }

    /// A saved tree: a directory, or an archive recognised by its content, not by its name. The error's text
    /// is complete: name, reason and hint. A directory that contains the files directly is taken as one of
    /// /proc, and a note says so.
    pub fn open(path: &Path) -> io::Result<Root> {
        Root::open_with(path, false)
    }

    /// With `walk`, the same as on a kernel without openat2 (before 5.6, or forbidden by seccomp): every path
    /// is walked name by name, and symbolic links are refused. [`Root::open`] does so if necessary.
    fn open_with(path: &Path, walk: bool) -> io::Result<Root> {
        let name = escape(&path.to_string_lossy()).into_owned();
        let name = if name.len() > 1 { name.trim_end_matches('/').to_owned() } else { name };
        let mut backend = open_backend(path, walk).map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::NotFound => format!("no such file or directory; {EXPECTED_TREE}"),
                io::ErrorKind::PermissionDenied => {
                    "permission denied; hint: run as a user who can read it".to_owned()
                }
                _ => format!("{error}; {EXPECTED_TREE}"),
            };
            io::Error::new(error.kind(), format!("{name}: {problem}"))
        })?;
        let mut notes = Vec::new();
        if let RootBackend::Archive(archive) = &mut backend
            && let Some(folder) = archive.enter_single_folder()
        {
            notes.push(format!("{name}: all its files are in the directory {folder}"));
        }
        let mut root = Root { backend: Arc::new(backend), name, is_flat: false, notes, manifest: None };
        if root.has_flat_markers() {
            root.is_flat = true;
            root.notes.push(format!("{}: a flat directory of files from {}", root.name, paths::PROC));
        }
        root.manifest = match root.read(&format!("/{MANIFEST_FILE}")) {
            Err(absence) if absence.why == AbsenceReason::NotSaved => None,
            text => Some(text.and_then(|text| {
                Manifest::from_json(&text)
                    .map_err(|problem| root.malformed_absence(&format!("/{MANIFEST_FILE}"), &problem))
            })),
        };
        Ok(root)
    }

    fn has_flat_markers(&self) -> bool {
        let is = |path: &str, kind| self.entry_kind(path).is_ok_and(|found| found == kind);
        let plain =
            paths::capture_table::FLAT_MARKERS.iter().any(|name| is(&format!("/{name}"), EntryKind::File));
        plain && !is(paths::PROC, EntryKind::Dir)
    }

    /// Whether this is the running machine itself.
    pub fn is_live(&self) -> bool {
        matches!(*self.backend, RootBackend::Live)
    }

    /// `this machine`, or the saved tree's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes on how the tree is read; one sentence each, without a trailing dot.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Manifest that `pagelab capture` wrote for a saved tree; `None` on a live machine, in another tree, and
    /// if it is malformed ([`Root::manifest_absence`] has the reason).
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()?.as_ref().ok()
    }

    /// Why an existing manifest could not be used.
    pub fn manifest_absence(&self) -> Option<&Absence> {
        self.manifest.as_ref()?.as_ref().err()
    }

    /// The file's name for a message: the path itself on a live machine, else after the tree's name. Control
    /// characters are escaped, so that no name can forge a line.
    pub fn display_path(&self, path: &str) -> String {
        if self.is_live() {
            return escape(path).into_owned();
        }
        let inside = self.map_path(path);
        let between = if inside.starts_with('/') { "" } else { "/" };
        format!("{}{between}{}", self.name, escape(&inside))
    }

    /// Location of `path` in the tree.
    fn map_path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        if !self.is_flat {
            return Cow::Borrowed(path);
        }
        // `osrelease` and similar files are saved without their directory.
        if let Some(kernel) = path.strip_prefix(paths::capture_table::SYSCTL_KERNEL) {
            return Cow::Borrowed(kernel);
        }
        match path.strip_prefix(paths::PROC) {
            Some("") => Cow::Borrowed("/"),
            Some(inside) if inside.starts_with('/') => Cow::Borrowed(inside),
            _ => Cow::Borrowed(path),
        }
    }

    /// A complete text file, up to [`TEXT_BYTES_MAX`], counted after decompression.
    pub fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let (mut stream, length) = self.open_reader_sized(path)?;
        let too_large_absence =
            || self.malformed_absence(path, "larger than 64 MiB: no kernel prints that much");
        if length.is_some_and(|length| length > TEXT_BYTES_MAX.0) {
            return Err(too_large_absence());
        }
        // A first buffer large enough for most files, so that the kernel prints them at once.
        let mut text = vec![0; 1 << 16];
        let mut filled = 0;
        loop {
            match stream.read(&mut text[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.absence(path, &error)),
            }
            if filled as u64 > TEXT_BYTES_MAX.0 {
                return Err(too_large_absence());
            }
            if filled == text.len() {
                text.resize(text.len() * 2, 0);
            }
        }
        text.truncate(filled);
        text.shrink_to_fit();
        Ok(text)
    }

    /// A file opened for reading from its start; never a FIFO, a device or a directory. In a saved tree a
    /// file that exists only as `path.zst` is decompressed while it is read; the caller limits its length.
    /// Errors while reading become absences by [`Root::absence`].
    pub fn open_reader(&self, path: &str) -> Reading<Box<dyn Read + Send>> {
        Ok(self.open_reader_sized(path)?.0)
    }

    /// The stream, and its length if a file system or an archive knows it.
    fn open_reader_sized(&self, path: &str) -> Reading<(Box<dyn Read + Send>, Option<u64>)> {
        let plain = self.open_plain_reader(path);
        if self.is_live() || !matches!(&plain, Err(absence) if absence.why == AbsenceReason::NotSaved) {
            return plain;
        }
        let packed = format!("{path}.zst");
        match self.open_plain_reader(&packed) {
            Err(absence) if absence.why == AbsenceReason::NotSaved => plain,
            Err(absence) => Err(absence),
            Ok((stream, _)) => {
                let stream =
                    archive::ZstdReader::new(stream).map_err(|error| self.absence(&packed, &error))?;
                Ok((Box::new(stream), None))
            }
        }
    }

    fn open_plain_reader(&self, path: &str) -> Reading<(Box<dyn Read + Send>, Option<u64>)> {
        if let RootBackend::Archive(archive) = &*self.backend {
            let data = archive.read_file(&self.map_path(path)).map_err(|error| self.absence(path, &error))?;
            let length = data.len() as u64;
            return Ok((Box::new(io::Cursor::new(data)), Some(length)));
        }
        let (file, length) = self.open_regular_file_sized(path)?;
        Ok((Box::new(file), Some(length)))
    }

    /// The names in a directory, sorted. Names that are not UTF-8 are left out: no kernel makes one.
    pub fn list_dir(&self, path: &str) -> Reading<Vec<String>> {
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR) => self.malformed_absence(path, "is not a directory"),
            _ => self.absence(path, &error),
        };
        let mapped_path = self.map_path(path);
        let dir = match &*self.backend {
            RootBackend::Archive(archive) => return archive.list_dir(&mapped_path).map_err(failed),
            RootBackend::Live => {
                rustix::fs::open(&*mapped_path, OPEN_DIR_FLAGS, Mode::empty()).map_err(io::Error::from)
            }
            RootBackend::Dir(dir) => dir.open(&mapped_path, OPEN_DIR_FLAGS),
        }
        .map_err(failed)?;
        let count_max = if self.is_live() { usize::MAX } else { ENTRIES_MAX };
        let names = read_names(&dir, count_max).map_err(|errno| failed(errno.into()))?;
        if names.len() > count_max {
            return Err(self.malformed_absence(path, &format!("has more than {ENTRIES_MAX} entries")));
        }
        Ok(names)
    }

    /// The processes: the names in `/proc` that are numbers.
    pub fn list_processes(&self) -> Reading<Vec<u32>> {
        Ok(self.list_dir(paths::PROC)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Type of the file at `path`; a symbolic link is not followed.
    pub fn entry_kind(&self, path: &str) -> Reading<EntryKind> {
        let inside = self.map_path(path);
        let kind = match &*self.backend {
            RootBackend::Live => {
                let nofollow = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::statat(rustix::fs::CWD, &*inside, nofollow)
                    .map(|stat| EntryKind::from_mode(stat.st_mode))
                    .map_err(io::Error::from)
            }
            RootBackend::Dir(dir) => dir.mode_nofollow(&inside).map(EntryKind::from_mode),
            RootBackend::Archive(archive) => archive.entry_kind(&inside),
        };
        kind.map_err(|error| self.absence(path, &error))
    }

    /// Target of the symbolic link at `path`, as stored.
    pub fn read_link(&self, path: &str) -> Reading<String> {
        let inside = self.map_path(path);
        let target = match &*self.backend {
            RootBackend::Live => rustix::fs::readlink(&*inside, Vec::new())
                .map(|target| target.to_string_lossy().into_owned())
                .map_err(io::Error::from),
            RootBackend::Dir(dir) => dir.read_link(&inside),
            RootBackend::Archive(archive) => archive.read_link(&inside),
        };
        target.map_err(|error| self.absence(path, &error))
    }

    /// A regular file, exactly as stored. A file of an archive is a copy in memory.
    pub fn open_regular_file(&self, path: &str) -> Reading<File> {
        if let RootBackend::Archive(archive) = &*self.backend {
            let copy =
                archive.read_file(&self.map_path(path)).and_then(|data| archive::create_memory_file(&data));
            return copy.map_err(|error| self.absence(path, &error));
        }
        Ok(self.open_regular_file_sized(path)?.0)
    }

    fn open_regular_file_sized(&self, path: &str) -> Reading<(File, u64)> {
        let failed = |error: io::Error| self.absence(path, &error);
        let inside = self.map_path(path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        if let RootBackend::Dir(dir) = &*self.backend {
            // Opening a device or a socket may act on it or fail oddly, so its type is checked first.
            let there = dir.open(&inside, OFlags::PATH | OFlags::CLOEXEC).map_err(failed)?;
            self.check_regular(path, &rustix::fs::fstat(&there).map_err(|e| failed(e.into()))?)?;
        }
        let fd = match &*self.backend {
            RootBackend::Dir(dir) => dir.open(&inside, flags),
            _ => rustix::fs::open(&*inside, flags, Mode::empty()).map_err(io::Error::from),
        }
        .map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
        self.check_regular(path, &stat)?;
        Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn check_regular(&self, path: &str, stat: &rustix::fs::Stat) -> Reading<()> {
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => "is a directory; expected a file",
            FileType::Fifo => "is a FIFO; expected a file",
            FileType::Socket => "is a socket; expected a file",
            FileType::CharacterDevice | FileType::BlockDevice => "is a device; expected a file",
            _ => "is not a regular file",
        };
        Err(self.malformed_absence(path, what))
    }

    /// Reason in the manifest for a file that is not in the tree; empty if there is none.
    fn missing_reason(&self, path: &str) -> String {
        let is_it = |absence: &&Absence| match absence.source.strip_suffix('*') {
            Some(folder) => path.strip_prefix(folder).is_some_and(|name| !name.contains('/')),
            None => absence.source == path,
        };
        let known = self.manifest().and_then(|manifest| manifest.absences.iter().find(is_it));
        known.map_or(String::new(), |absence| format!("not in the saved tree: {}", absence.reason()))
    }

    /// Why `path` could not be opened or read. In a saved tree what only a hostile or damaged one can
    /// have (links in a circle, broken compression) is the input's fault.
    pub fn absence(&self, path: &str, error: &io::Error) -> Absence {
        let shown = self.display_path(path);
        if !self.is_live() {
            let bad = match (Errno::from_io_error(error), error.kind()) {
                (Some(Errno::LOOP), _) => "a symbolic link loop, or more than 40 symbolic links",
                (Some(Errno::NOTDIR), _) => "a component of its path is not a directory",
                (Some(Errno::NAMETOOLONG | Errno::INVAL), _) => "invalid file name",
                (Some(Errno::ISDIR), _) => "is a directory; expected a file",
                (None, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => &error.to_string(),
                _ => "",
            };
            if !bad.is_empty() {
                return Absence::new(shown, AbsenceReason::Malformed, bad);
            }
        }
        match error.kind() {
            io::ErrorKind::NotFound if self.is_live() => Absence::new(shown, AbsenceReason::NotThere, ""),
            io::ErrorKind::NotFound => {
                Absence::new(shown, AbsenceReason::NotSaved, self.missing_reason(path))
            }
            io::ErrorKind::PermissionDenied if self.is_live() && rustix::process::geteuid().is_root() => {
                let detail = "permission denied even to root, by a container, a security module or lockdown";
                Absence::new(shown, AbsenceReason::NotPermitted, detail)
            }
            io::ErrorKind::PermissionDenied if self.is_live() => {
                Absence::new(shown, AbsenceReason::NotPermitted, "").with_hint("run as root")
            }
            io::ErrorKind::PermissionDenied => Absence::new(shown, AbsenceReason::NotPermitted, "")
                .with_hint("make the saved file readable, or run as its owner"),
            _ => Absence::new(shown, AbsenceReason::Failed, error.to_string()),
        }
    }

    /// An absence that is the input's fault.
    pub fn malformed_absence(&self, path: &str, detail: &str) -> Absence {
        Absence::new(self.display_path(path), AbsenceReason::Malformed, detail)
    }
}

impl EntryKind {
    fn from_mode(mode: u32) -> EntryKind {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Dir,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        }
    }
}

fn open_backend(path: &Path, walk: bool) -> io::Result<RootBackend> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Ok(RootBackend::Dir(ConfinedDir::open_root(path, walk)?));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "neither a directory nor a file"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    Ok(RootBackend::Archive(Archive::read(file)?))
}

/// Text with its control characters escaped.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() })
        .collect::<String>()
        .into()
}

/// The names in a directory, sorted; reading ends when there are more than `count_max`. Names that are not
/// UTF-8 are left out: no kernel makes one.
pub(crate) fn read_names(dir: &OwnedFd, count_max: usize) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        match entry?.file_name().to_str() {
            Ok(name) if name != "." && name != ".." => names.push(name.to_owned()),
            _ => {}
        }
        if names.len() > count_max {
            break;
        }
    }
    names.sort();
    Ok(names)
}

// Directory that acts as `/`: no path and no symbolic link leads out of it.
//
// openat2 with RESOLVE_IN_ROOT (Linux 5.6) keeps links inside. Without it each path is walked name by
// name, and links are refused rather than followed by rules of our own, which others could race.

/// How a directory is opened to be listed.
const OPEN_DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Longest path of names that is walked; the kernel's own PATH_MAX allows no more than half of it.
const NAMES_MAX: usize = 4_000;

#[derive(Debug)]
struct ConfinedDir {
    dir: OwnedFd,
    uses_walk: bool,
}

impl ConfinedDir {
    fn open_root(path: &Path, uses_walk: bool) -> io::Result<ConfinedDir> {
        let dir = rustix::fs::open(path, OPEN_DIR_FLAGS, Mode::empty())?;
        let mut confined = ConfinedDir { dir, uses_walk };
        if !uses_walk && let Err(error) = confined.resolve("/", OFlags::PATH | OFlags::CLOEXEC) {
            // Kernels before 5.6 do not know the call; a seccomp filter may answer EPERM for it, although
            // nothing can forbid to open a directory again that is open.
            match error {
                Errno::NOSYS | Errno::PERM | Errno::ACCESS => confined.uses_walk = true,
                other => return Err(other.into()),
            }
        }
        Ok(confined)
    }

    /// Opens what `path` leads to, with links followed inside the root.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        if self.uses_walk {
            return self.walk_path(path, flags);
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

    fn walk_path(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        if names.len() > NAMES_MAX || names.contains(&"..") {
            return Err(Errno::INVAL.into());
        }
        let open_component = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some((last, parent_names)) = names.split_last() else {
            return Ok(rustix::fs::openat(&self.dir, ".", flags, Mode::empty())?);
        };
        let mut at: Option<OwnedFd> = None;
        for name in parent_names {
            let from = at.as_ref().map_or(self.dir.as_fd(), |fd| fd.as_fd());
            let next = rustix::fs::openat(from, *name, open_component, Mode::empty());
            at = Some(next.map_err(|error| explain_link_error(from, name, error))?);
        }
        let from = at.as_ref().map_or(self.dir.as_fd(), |fd| fd.as_fd());
        let opened = rustix::fs::openat(from, *last, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|error| explain_link_error(from, last, error))?;
        // O_PATH with O_NOFOLLOW opens the link itself, which only some callers request.
        let is_link = flags.contains(OFlags::PATH)
            && !flags.contains(OFlags::NOFOLLOW)
            && FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) == FileType::Symlink;
        if is_link { Err(link_error()) } else { Ok(opened) }
    }

    /// Type and permissions of `path`, a link there not followed.
    fn mode_nofollow(&self, path: &str) -> io::Result<u32> {
        let fd = self.open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        Ok(rustix::fs::fstat(&fd)?.st_mode)
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        let fd = self.open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        let target = rustix::fs::readlinkat(&fd, "", Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }
}

/// ELOOP and ENOTDIR at a symbolic link become words that say what would have followed it.
fn explain_link_error(from: impl AsFd, name: &str, error: Errno) -> io::Error {
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW);
    match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Symlink) => link_error(),
        _ => error.into(),
    }
}

fn link_error() -> io::Error {
    io::Error::other("a symbolic link; following it safely needs openat2 (Linux 5.6)")
}
