//! Where a capture goes: `NAME.part` first, and NAME only when everything is in it.
//!
//! A kill at any moment leaves at most a `.part`, which the next capture of that name replaces. An archive
//! is on the disk before it gets its name; a folder is whole after a kill, but not after a power failure.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagelab_model::Bytes;
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{CaptureError, Refusal, fill};
use crate::manifest::MANIFEST_FILE;

/// Compression of archives and of files of one word for each page: fast, and near the best for them.
const LEVEL: i32 = 3;
/// What the reader of an archive accepts of compressed data; a larger file is left out.
const PACKED_MAX: Bytes = Bytes(512 << 20);
/// Stands in a folder while it is filled, so that a left one is known for ours.
const IN_PROGRESS: &str = "pagelab-capture.part";
/// Endings of archives that are not written.
const OTHER_ARCHIVES: [&str; 8] = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip", ".zst", ".tzst"];

/// The result of compressing one file.
pub(super) enum Packed {
    Stored {
        bytes: u64,
        stored_bytes: u64,
    },
    /// The file could not be read to its end.
    Unreadable(io::Error),
    TooLarge,
}

pub(super) struct Sink {
    part: Part,
    force: bool,
    form: Form,
}

enum Form {
    Folder { bytes: u64 },
    Archive(Option<Box<Writer>>),
}

type Writer = tar::Builder<zstd::Encoder<'static, BufWriter<File>>>;

/// The unfinished capture; removed when dropped, unless it got its name.
struct Part {
    path: PathBuf,
    target: PathBuf,
    /// Locked while we live, so that another pagelab knows that it is not left over.
    lock: File,
    named: bool,
}

impl Sink {
    pub(super) fn create(target: &Path, force: bool) -> Result<Sink, CaptureError> {
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let archive = name.ends_with(".tar.zst");
        if name.is_empty() || name == ".tar.zst" {
            return Err(CaptureError::new(Refusal::Target, format!("{}: not a name", target.display())));
        }
        if !archive && let Some(ending) = OTHER_ARCHIVES.iter().find(|ending| name.ends_with(**ending)) {
            let message = format!(
                "{}: {ending} is not written; use a name that ends in .tar.zst, or a folder",
                target.display()
            );
            return Err(CaptureError::new(Refusal::Target, message));
        }
        check_existing(target, archive, force)?;
        let failed = |error: io::Error| create_failed(target, &error);
        let part = Part::create(target, archive).map_err(failed)?;
        let form = match archive {
            false => Form::Folder { bytes: 0 },
            true => {
                let file = BufWriter::with_capacity(1 << 17, part.lock.try_clone().map_err(failed)?);
                let mut encoder = zstd::Encoder::new(file, LEVEL).map_err(failed)?;
                encoder.include_checksum(true).map_err(failed)?;
                Form::Archive(Some(Box::new(tar::Builder::new(encoder))))
            }
        };
        Ok(Sink { part, force, form })
    }

    /// Stores one text. `path` is the path on the machine.
    pub(super) fn file(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        let inside = path.trim_start_matches('/');
        match &mut self.form {
            Form::Folder { bytes } => {
                create_file(&self.part.place(inside)?)?.write_all(data)?;
                *bytes += data.len() as u64;
                Ok(())
            }
            Form::Archive(writer) => {
                writer_of(writer)?.append_data(&mut header(data.len() as u64), inside, data)
            }
        }
    }

    /// Stores a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let inside = path.trim_start_matches('/');
        match &mut self.form {
            Form::Folder { .. } => std::os::unix::fs::symlink(target, self.part.place(inside)?),
            Form::Archive(writer) => {
                let mut header = header(0);
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                writer_of(writer)?.append_link(&mut header, inside, target)
            }
        }
    }

    /// Stores a file of any length as `path.zst`. An error is one of writing.
    pub(super) fn packed(&mut self, path: &str, reader: &mut dyn Read) -> io::Result<Packed> {
        let inside = format!("{}.zst", path.trim_start_matches('/'));
        match &mut self.form {
            Form::Folder { bytes } => {
                let place = self.part.place(&inside)?;
                let mut file = create_file(&place)?;
                let packed = pack(reader, &mut file, u64::MAX)?;
                match &packed {
                    Packed::Stored { stored_bytes, .. } => *bytes += stored_bytes,
                    _ => fs::remove_file(&place)?,
                }
                Ok(packed)
            }
            Form::Archive(writer) => {
                // The length stands before the data in an archive, so the data wait in a file without a name.
                let mut spool = self.part.spool()?;
                let packed = pack(reader, &mut spool, PACKED_MAX.0)?;
                if let Packed::Stored { stored_bytes, .. } = packed {
                    spool.rewind()?;
                    writer_of(writer)?.append_data(&mut header(stored_bytes), inside, spool)?;
                }
                Ok(packed)
            }
        }
    }

    /// Gives the capture its name. Returns its size.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        let bytes = match &mut self.form {
            Form::Folder { bytes } => {
                fs::remove_file(self.part.path.join(IN_PROGRESS))?;
                *bytes
            }
            Form::Archive(writer) => {
                let writer = writer.take().ok_or_else(closed)?;
                let file = writer.into_inner()?.finish()?.into_inner().map_err(|error| error.into_error())?;
                file.sync_all()?;
                file.metadata()?.len()
            }
        };
        self.part.give_name(self.force)?;
        Ok(bytes)
    }
}

impl Part {
    fn create(target: &Path, archive: bool) -> io::Result<Part> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        // Each round either creates the part or removes one that was left; a third means that another
        // pagelab does the same at this moment.
        for _ in 0..3 {
            let created = match archive {
                true => create_file(&path),
                false => new_folder(&path),
            };
            match created {
                Ok(lock) => {
                    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                    // Another pagelab may have taken it for a left one before it was locked.
                    if lock.metadata()?.nlink() > 0 {
                        return Ok(Part { path, target: target.to_owned(), lock, named: false });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_left(&path)?,
                Err(error) => return Err(error),
            }
        }
        Err(busy())
    }

    /// The place of a file in the folder, with the folders above it made.
    fn place(&self, inside: &str) -> io::Result<PathBuf> {
        let place = self.path.join(inside);
        if let Some(above) = place.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        }
        Ok(place)
    }

    /// A file without a name on the same file system.
    fn spool(&self) -> io::Result<File> {
        let folder = folder_of(&self.path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => Ok(File::from(fd)),
            // Some file systems cannot make one (O_TMPFILE, open(2)).
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::ISDIR) => {
                let mut name = self.path.as_os_str().to_owned();
                name.push("-spool");
                let path = PathBuf::from(name);
                let file = create_file(&path)?;
                fs::remove_file(&path)?;
                Ok(file)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn give_name(&mut self, force: bool) -> io::Result<()> {
        let cwd = rustix::fs::CWD;
        let is_folder = self.lock.metadata()?.is_dir();
        if !force {
            match rustix::fs::renameat_with(cwd, &self.path, cwd, &self.target, RenameFlags::NOREPLACE) {
                // A file system without this way of renaming: a target that came up meanwhile is checked for.
                Err(Errno::INVAL) if !self.target.exists() => fs::rename(&self.path, &self.target)?,
                renamed => renamed?,
            }
        } else if is_folder && self.target.exists() {
            rustix::fs::renameat_with(cwd, &self.path, cwd, &self.target, RenameFlags::EXCHANGE)?;
            self.named = true;
            // What has the name `.part` now is the old capture.
            fs::remove_dir_all(&self.path)?;
        } else {
            fs::rename(&self.path, &self.target)?;
        }
        self.named = true;
        // The name itself is on the disk when its folder is.
        File::open(folder_of(&self.target))?.sync_all().or_else(|error| match error.kind() {
            // Some file systems cannot sync a folder, which is no failure of ours.
            io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(error),
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.named {
            return;
        }
        // Nothing can be done about an error here; the next capture tries again.
        let _ = match self.lock.metadata() {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&self.path),
            _ => fs::remove_file(&self.path),
        };
    }
}

fn check_existing(target: &Path, archive: bool, force: bool) -> Result<(), CaptureError> {
    let shown = target.display();
    let refuse = |what: String| Err(CaptureError::new(Refusal::Target, what));
    let Ok(there) = fs::symlink_metadata(target) else { return Ok(()) };
    if !force {
        return refuse(format!("{shown}: exists; choose another name, or --force to replace a capture"));
    }
    if archive && !there.is_file() {
        return refuse(format!(
            "{shown}: is not a file, so --force does not replace it; choose another name"
        ));
    }
    let replaceable = archive || (there.is_dir() && is_capture_or_empty(target));
    if !replaceable {
        return refuse(format!(
            "{shown}: is not a folder that capture wrote, so --force does not replace it; choose another name"
        ));
    }
    Ok(())
}

fn is_capture_or_empty(folder: &Path) -> bool {
    folder.join(MANIFEST_FILE).is_file() || fs::read_dir(folder).is_ok_and(|mut names| names.next().is_none())
}

/// Removes a `.part` that a killed capture left. What is not ours, or in use, stays.
fn remove_left(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let left = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let metadata = left.metadata()?;
    if rustix::fs::flock(&left, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(busy());
    }
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    match metadata.is_dir() {
        false if ours && metadata.is_file() => fs::remove_file(path),
        true if ours && (path.join(IN_PROGRESS).is_file() || is_capture_or_empty(path)) => {
            fs::remove_dir_all(path)
        }
        _ => {
            let message = format!("{} is in the way; remove it first", path.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
        }
    }
}

fn busy() -> io::Error {
    io::Error::other("another pagelab is writing it at this moment")
}

fn closed() -> io::Error {
    io::Error::other("the archive was already finished")
}

fn writer_of(writer: &mut Option<Box<Writer>>) -> io::Result<&mut Writer> {
    writer.as_deref_mut().ok_or_else(closed)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file for its owner alone: much of what is captured only root may read.
fn create_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn new_folder(path: &Path) -> io::Result<File> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    create_file(&path.join(IN_PROGRESS))?;
    File::open(path)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

/// Compresses all of `reader`. An error of the reader is told apart from one of the writer, which is the
/// function's own.
fn pack(reader: &mut dyn Read, writer: &mut File, stored_max: u64) -> io::Result<Packed> {
    let counted = Counted { inner: BufWriter::with_capacity(1 << 17, writer), bytes: 0 };
    let mut encoder = zstd::Encoder::new(counted, LEVEL)?;
    encoder.include_checksum(true)?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0u64;
    loop {
        let count = match fill(reader, &mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return Ok(Packed::Unreadable(error)),
        };
        encoder.write_all(&buffer[..count])?;
        bytes += count as u64;
        if encoder.get_ref().bytes > stored_max {
            return Ok(Packed::TooLarge);
        }
    }
    let mut counted = encoder.finish()?;
    counted.flush()?;
    match counted.bytes > stored_max {
        true => Ok(Packed::TooLarge),
        false => Ok(Packed::Stored { bytes, stored_bytes: counted.bytes }),
    }
}

struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(data)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn create_failed(target: &Path, error: &io::Error) -> CaptureError {
    let shown = target.display();
    let folder = folder_of(target);
    match error.kind() {
        // Such a one as /proc is there, and takes no files.
        io::ErrorKind::NotFound if folder.is_dir() => CaptureError::new(
            Refusal::NotPermitted,
            format!(
                "{shown}: cannot be written: nothing can be made in that folder; give a name in a folder \
                 where you may write"
            ),
        ),
        io::ErrorKind::NotFound => CaptureError::new(
            Refusal::Target,
            format!("{shown}: there is no folder {}; make it first", folder.display()),
        ),
        _ => write_failed(target, error),
    }
}

/// What is said when writing fails: nothing stands under the target's name then.
pub(super) fn write_failed(target: &Path, error: &io::Error) -> CaptureError {
    let shown = target.display();
    let nothing = "nothing was kept under that name";
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            let way_out = "choose a place with more room, or --without-kpageflags";
            CaptureError::new(
                Refusal::Machine,
                format!("{shown}: no room to write it ({error}); {nothing}; {way_out}"),
            )
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => CaptureError::new(
            Refusal::NotPermitted,
            format!("{shown}: cannot be written ({error}); choose a place that you may write to"),
        ),
        _ => CaptureError::new(Refusal::Machine, format!("{shown}: cannot be written: {error}; {nothing}")),
    }
}
