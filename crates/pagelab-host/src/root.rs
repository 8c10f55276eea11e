//! Where kernel files are read from: this machine, or a saved tree, with the same calls.
//!
//! A saved tree is a folder, a `.tar` or a `.tar.zst`. Nothing outside of it can be reached, nothing
//! blocks (FIFOs and devices are not opened), and no text is larger than [`TEXT_MAX`].

mod archive;
mod confined;
mod unzstd;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::manifest::{MANIFEST_FILE, Manifest};
use crate::paths;
use archive::Archive;
use confined::Confined;

/// A text file under a root that is larger than this is refused: no kernel prints one.
pub const TEXT_MAX: Bytes = Bytes(64 << 20);

/// Names in one directory of a saved tree, and entries of an archive, at most.
pub const ENTRIES_MAX: usize = 200_000;

/// What a saved tree is, for messages about one that cannot be opened.
const WANTED: &str = "a saved tree is a folder, a .tar or a .tar.zst, such as `pagelab capture` writes";

/// This machine or a saved tree of its files. A clone reads the same tree.
#[derive(Clone, Debug)]
pub struct Root {
    place: Arc<Place>,
    /// The saved tree's name as it was given; `this machine` for the live one.
    name: String,
    /// A plain folder of files from the process file system: `buddyinfo` directly in it.
    flat: bool,
    notes: Vec<String>,
    manifest: Option<Reading<Manifest>>,
}

#[derive(Debug)]
enum Place {
    /// `/` of this machine.
    Live,
    /// A directory that stands for `/`.
    Dir(Confined),
    /// An archive, indexed in memory.
    Archive(Archive),
}

/// What a name in a directory stands for; symbolic links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
        Root { place: Arc::new(Place::Live), name, flat: false, notes: Vec::new(), manifest: None }
    }

    /// A saved tree: a folder, or an archive told by its content, not by its name. The error's text is
    /// whole: name, reason and way out. A folder of files that lie directly in it is one of
    /// files from the process file system, and a note says so.
    pub fn open(path: &Path) -> io::Result<Root> {
        Root::open_with(path, false)
    }

    /// The same as on a kernel without openat2 (before 5.6, or forbidden by seccomp): every path is
    /// walked name by name, and symbolic links are refused. [`Root::open`] does so where it must.
    pub fn open_by_walk(path: &Path) -> io::Result<Root> {
        Root::open_with(path, true)
    }

    fn open_with(path: &Path, walk: bool) -> io::Result<Root> {
        let name = escape(&path.to_string_lossy()).into_owned();
        let name = if name.len() > 1 { name.trim_end_matches('/').to_owned() } else { name };
        let mut place = open_place(path, walk).map_err(|error| {
            let problem = match error.kind() {
                io::ErrorKind::NotFound => format!("no such file or directory; {WANTED}"),
                io::ErrorKind::PermissionDenied => {
                    "permission denied: run as a user who may read it".to_owned()
                }
                _ => format!("{error}; {WANTED}"),
            };
            io::Error::new(error.kind(), format!("{name}: {problem}"))
        })?;
        let mut notes = Vec::new();
        if let Place::Archive(archive) = &mut place
            && let Some(folder) = archive.enter_single_folder()
        {
            notes.push(format!("{name}: everything in it lies in the folder {folder}"));
        }
        let mut root = Root { place: Arc::new(place), name, flat: false, notes, manifest: None };
        if root.looks_flat() {
            root.flat = true;
            root.notes.push(format!("{}: a plain folder of files from {}", root.name, paths::PROC));
        }
        root.manifest = match root.read(&format!("/{MANIFEST_FILE}")) {
            Err(absence) if absence.why == AbsentWhy::NotSaved => None,
            text => Some(text.and_then(|text| {
                Manifest::from_json(&text).map_err(|problem| root.bad(&format!("/{MANIFEST_FILE}"), &problem))
            })),
        };
        Ok(root)
    }

    fn looks_flat(&self) -> bool {
        let is = |path: &str, kind| self.kind(path).is_ok_and(|found| found == kind);
        let plain = paths::captured::FLAT_SIGNS.iter().any(|name| is(&format!("/{name}"), Kind::File));
        plain && !is(paths::PROC, Kind::Dir)
    }

    /// Whether this is the running machine itself.
    pub fn is_live(&self) -> bool {
        matches!(*self.place, Place::Live)
    }

    /// `this machine`, or the saved tree's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the tree is read, where that is not plain; one sentence each, without a trailing dot.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What `pagelab capture` wrote about a saved tree; `None` on a live machine, in a tree from
    /// elsewhere, and where it could not be understood ([`Root::manifest_absence`] says why).
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()?.as_ref().ok()
    }

    /// Why a manifest that is there could not be used.
    pub fn manifest_absence(&self) -> Option<&Absence> {
        self.manifest.as_ref()?.as_ref().err()
    }

    /// The file's name for a message: the path itself on a live machine, else behind the tree's name.
    /// Control characters are escaped, so that no name can forge a line.
    pub fn show(&self, path: &str) -> String {
        if self.is_live() {
            return escape(path).into_owned();
        }
        let inside = self.locate(path);
        let between = if inside.starts_with('/') { "" } else { "/" };
        format!("{}{between}{}", self.name, escape(&inside))
    }

    /// Where `path` lies in the tree.
    fn locate<'p>(&self, path: &'p str) -> Cow<'p, str> {
        if !self.flat {
            return Cow::Borrowed(path);
        }
        // `osrelease` and its like are saved without the folder they come from.
        if let Some(kernel) = path.strip_prefix(paths::captured::SYSCTL_KERNEL) {
            return Cow::Borrowed(kernel);
        }
        match path.strip_prefix(paths::PROC) {
            Some("") => Cow::Borrowed("/"),
            Some(inside) if inside.starts_with('/') => Cow::Borrowed(inside),
            _ => Cow::Borrowed(path),
        }
    }

    /// The whole of a text file, up to [`TEXT_MAX`], counted after decompression.
    pub fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let (mut stream, length) = self.open_stream(path)?;
        let too_large = || self.bad(path, "larger than 64 MiB, which no kernel prints");
        if length.is_some_and(|length| length > TEXT_MAX.0) {
            return Err(too_large());
        }
        // A first buffer that holds most files whole, so that the kernel prints them in one go.
        let mut text = vec![0; 1 << 16];
        let mut filled = 0;
        loop {
            match stream.read(&mut text[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.absence(path, &error)),
            }
            if filled as u64 > TEXT_MAX.0 {
                return Err(too_large());
            }
            if filled == text.len() {
                text.resize(text.len() * 2, 0);
            }
        }
        text.truncate(filled);
        text.shrink_to_fit();
        Ok(text)
    }

    /// A file opened for reading from its start; never a FIFO, a device or a directory. In a saved tree
    /// a file that is only there as `path.zst` is decompressed on the way, however long it gets: the
    /// caller sets the limit. Errors while reading are told by [`Root::absence`].
    pub fn stream(&self, path: &str) -> Reading<Box<dyn Read + Send>> {
        Ok(self.open_stream(path)?.0)
    }

    /// The stream, and its length where a file system or an archive knows it.
    fn open_stream(&self, path: &str) -> Reading<(Box<dyn Read + Send>, Option<u64>)> {
        let plain = self.plain_stream(path);
        if self.is_live() || !matches!(&plain, Err(absence) if absence.why == AbsentWhy::NotSaved) {
            return plain;
        }
        let packed = format!("{path}.zst");
        match self.plain_stream(&packed) {
            Err(absence) if absence.why == AbsentWhy::NotSaved => plain,
            Err(absence) => Err(absence),
            Ok((stream, _)) => {
                let stream = unzstd::Unzstd::new(stream).map_err(|error| self.absence(&packed, &error))?;
                Ok((Box::new(stream), None))
            }
        }
    }

    fn plain_stream(&self, path: &str) -> Reading<(Box<dyn Read + Send>, Option<u64>)> {
        if let Place::Archive(archive) = &*self.place {
            let data = archive.file(&self.locate(path)).map_err(|error| self.absence(path, &error))?;
            let length = data.len() as u64;
            return Ok((Box::new(io::Cursor::new(data)), Some(length)));
        }
        let (file, length) = self.open_file(path)?;
        Ok((Box::new(file), Some(length)))
    }

    /// The names in a directory, sorted. Names that are not UTF-8 are left out: no kernel makes one.
    pub fn list(&self, path: &str) -> Reading<Vec<String>> {
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR) => self.bad(path, "is not a directory"),
            _ => self.absence(path, &error),
        };
        let inside = self.locate(path);
        let dir = match &*self.place {
            Place::Archive(archive) => return archive.list(&inside).map_err(failed),
            Place::Live => {
                rustix::fs::open(&*inside, confined::DIR_FLAGS, Mode::empty()).map_err(io::Error::from)
            }
            Place::Dir(dir) => dir.open(&inside, confined::DIR_FLAGS),
        }
        .map_err(failed)?;
        let entries = rustix::fs::Dir::read_from(&dir).map_err(|error| failed(error.into()))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
            if names.len() > ENTRIES_MAX && !self.is_live() {
                return Err(self.bad(path, &format!("has more than {ENTRIES_MAX} names in it")));
            }
        }
        names.sort();
        Ok(names)
    }

    /// What stands at `path`; a symbolic link there is not followed.
    pub fn kind(&self, path: &str) -> Reading<Kind> {
        let inside = self.locate(path);
        let kind = match &*self.place {
            Place::Live => {
                let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::statat(rustix::fs::CWD, &*inside, nofollow)
                    .map(|stat| Kind::of(stat.st_mode))
                    .map_err(io::Error::from)
            }
            Place::Dir(dir) => dir.mode_nofollow(&inside).map(Kind::of),
            Place::Archive(archive) => archive.kind(&inside),
        };
        kind.map_err(|error| self.absence(path, &error))
    }

    /// Where the symbolic link at `path` points to, as it is written.
    pub fn link(&self, path: &str) -> Reading<String> {
        let inside = self.locate(path);
        let target = match &*self.place {
            Place::Live => rustix::fs::readlink(&*inside, Vec::new())
                .map(|target| target.to_string_lossy().into_owned())
                .map_err(io::Error::from),
            Place::Dir(dir) => dir.link(&inside),
            Place::Archive(archive) => archive.link(&inside),
        };
        target.map_err(|error| self.absence(path, &error))
    }

    /// A regular file, exactly as it is stored. A file of an archive is given as a copy in memory.
    pub fn file(&self, path: &str) -> Reading<File> {
        if let Place::Archive(archive) = &*self.place {
            let copy = archive.file(&self.locate(path)).and_then(|data| archive::memory_file(&data));
            return copy.map_err(|error| self.absence(path, &error));
        }
        Ok(self.open_file(path)?.0)
    }

    fn open_file(&self, path: &str) -> Reading<(File, u64)> {
        let failed = |error: io::Error| self.absence(path, &error);
        let inside = self.locate(path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        if let Place::Dir(dir) = &*self.place {
            // Opening a device or a socket may act on it or fail oddly, so its kind is looked at first.
            let there = dir.open(&inside, OFlags::PATH | OFlags::CLOEXEC).map_err(failed)?;
            self.expect_regular(path, &rustix::fs::fstat(&there).map_err(|e| failed(e.into()))?)?;
        }
        let fd = match &*self.place {
            Place::Dir(dir) => dir.open(&inside, flags),
            _ => rustix::fs::open(&*inside, flags, Mode::empty()).map_err(io::Error::from),
        }
        .map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
        self.expect_regular(path, &stat)?;
        Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn expect_regular(&self, path: &str, stat: &rustix::fs::Stat) -> Reading<()> {
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => "is a directory where a file is expected",
            FileType::Fifo => "is a FIFO where a file is expected",
            FileType::Socket => "is a socket where a file is expected",
            FileType::CharacterDevice | FileType::BlockDevice => "is a device where a file is expected",
            _ => "is not a regular file",
        };
        Err(self.bad(path, what))
    }

    /// What the manifest says of a file that is not in the tree; empty where it says nothing.
    fn why_not_saved(&self, path: &str) -> String {
        let is_it = |absence: &&Absence| match absence.source.strip_suffix('*') {
            Some(folder) => path.strip_prefix(folder).is_some_and(|name| !name.contains('/')),
            None => absence.source == path,
        };
        let known = self.manifest().and_then(|manifest| manifest.absent.iter().find(is_it));
        known.map_or(String::new(), |absence| format!("not in the saved tree: {}", absence.reason()))
    }

    /// Why `path` could not be opened or read. In a saved tree what only a hostile or damaged one can
    /// have (links in a circle, broken compression) is the input's fault.
    pub fn absence(&self, path: &str, error: &io::Error) -> Absence {
        let shown = self.show(path);
        if !self.is_live() {
            let bad = match (Errno::from_io_error(error), error.kind()) {
                (Some(Errno::LOOP), _) => "symbolic links that go in a circle, or more than 40 of them",
                (Some(Errno::NOTDIR), _) => "a part of its path is not a directory",
                (Some(Errno::NAMETOOLONG | Errno::INVAL), _) => "no file can have this name",
                (Some(Errno::ISDIR), _) => "is a directory where a file is expected",
                (None, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => &error.to_string(),
                _ => "",
            };
            if !bad.is_empty() {
                return Absence::new(shown, AbsentWhy::Malformed, bad);
            }
        }
        match error.kind() {
            io::ErrorKind::NotFound if self.is_live() => Absence::new(shown, AbsentWhy::NotThere, ""),
            io::ErrorKind::NotFound => Absence::new(shown, AbsentWhy::NotSaved, self.why_not_saved(path)),
            io::ErrorKind::PermissionDenied if self.is_live() && rustix::process::geteuid().is_root() => {
                let detail = "permission denied even to root, by a container, a security module or lockdown";
                Absence::new(shown, AbsentWhy::NotPermitted, detail)
            }
            io::ErrorKind::PermissionDenied if self.is_live() => {
                Absence::new(shown, AbsentWhy::NotPermitted, "").or("run as root")
            }
            io::ErrorKind::PermissionDenied => Absence::new(shown, AbsentWhy::NotPermitted, "")
                .or("make the saved file readable for you, or run as its owner"),
            _ => Absence::new(shown, AbsentWhy::Failed, error.to_string()),
        }
    }

    /// An absence that is the input's fault.
    pub fn bad(&self, path: &str, detail: &str) -> Absence {
        Absence::new(self.show(path), AbsentWhy::Malformed, detail)
    }
}

impl Kind {
    fn of(mode: u32) -> Kind {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        }
    }
}

fn open_place(path: &Path, walk: bool) -> io::Result<Place> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Ok(Place::Dir(Confined::open_root(path, walk)?));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "neither a folder nor a file"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    Ok(Place::Archive(Archive::read(file)?))
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
