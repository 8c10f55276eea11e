//! Destination of a capture: `NAME.part` until it is complete, then NAME.
//!
//! A kill leaves at most a `.part`, which the next capture of that name replaces. An archive is synced to
//! disk before it gets its name; a directory is complete after a kill, but not after a power failure.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagelab_model::{Bytes, Failure, FailureKind};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{cannot_write, read_full};
use crate::manifest::MANIFEST_FILE;

/// Compression level of archives and of files of one word per page: fast, and near the best for them.
const ZSTD_LEVEL: i32 = 3;
/// Largest compressed data that the reader of an archive accepts; a larger file is left out.
const COMPRESSED_BYTES_MAX: Bytes = Bytes(512 << 20);
/// Marker in a directory while it is filled, to recognise leftovers of pagelab.
const PART_MARKER: &str = "pagelab-capture.part";
/// Suffixes of archives that are not supported.
const UNSUPPORTED_SUFFIXES: [&str; 8] =
    [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip", ".zst", ".tzst"];

pub(super) enum CompressionOutcome {
    Stored {
        bytes: u64,
        stored_bytes: u64,
    },
    /// The file could not be read to its end.
    Unreadable(io::Error),
    TooLarge,
}

pub(super) struct Sink {
    partial: PartialCapture,
    force: bool,
    format: CaptureFormat,
}

enum CaptureFormat {
    Folder { bytes: u64 },
    Archive(Option<Box<ArchiveWriter>>),
}

type ArchiveWriter = tar::Builder<zstd::Encoder<'static, BufWriter<File>>>;

/// The unfinished capture; removed when dropped, unless it was completed.
struct PartialCapture {
    path: PathBuf,
    target: PathBuf,
    /// Locked for the lifetime of the process, so that another pagelab does not treat it as a leftover.
    lock: File,
    is_renamed: bool,
}

impl Sink {
    pub(super) fn create(target: &Path, force: bool) -> Result<Sink, Failure> {
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let archive = name.ends_with(".tar.zst");
        let bad = |why: &str| Err(cannot_write(FailureKind::Usage, target, why));
        if name.is_empty() || name == ".tar.zst" {
            return bad("expected a file name");
        }
        if !archive && let Some(ending) = UNSUPPORTED_SUFFIXES.iter().find(|ending| name.ends_with(**ending))
        {
            let hint = "use a name that ends in .tar.zst, or a directory";
            return bad(&format!("{ending} is not supported; hint: {hint}"));
        }
        check_existing(target, archive, force)?;
        let failed = |error: io::Error| create_error(target, &error);
        let part = PartialCapture::create(target, archive).map_err(failed)?;
        let form = match archive {
            false => CaptureFormat::Folder { bytes: 0 },
            true => {
                let file = BufWriter::with_capacity(1 << 17, part.lock.try_clone().map_err(failed)?);
                let mut encoder = zstd::Encoder::new(file, ZSTD_LEVEL).map_err(failed)?;
                encoder.include_checksum(true).map_err(failed)?;
                CaptureFormat::Archive(Some(Box::new(tar::Builder::new(encoder))))
            }
        };
        Ok(Sink { partial: part, force, format: form })
    }

    /// Stores one text. `path` is the path on the machine.
    pub(super) fn write_file(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        let inside = path.trim_start_matches('/');
        match &mut self.format {
            CaptureFormat::Folder { bytes } => {
                create_file(&self.partial.create_parent_dirs(inside)?)?.write_all(data)?;
                *bytes += data.len() as u64;
                Ok(())
            }
            CaptureFormat::Archive(writer) => {
                writer_mut(writer)?.append_data(&mut tar_header(data.len() as u64), inside, data)
            }
        }
    }

    pub(super) fn write_link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let inside = path.trim_start_matches('/');
        match &mut self.format {
            CaptureFormat::Folder { .. } => {
                std::os::unix::fs::symlink(target, self.partial.create_parent_dirs(inside)?)
            }
            CaptureFormat::Archive(writer) => {
                let mut header = tar_header(0);
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                writer_mut(writer)?.append_link(&mut header, inside, target)
            }
        }
    }

    /// Stores a file of any length as `path.zst`. The error is one of writing.
    pub(super) fn write_compressed(
        &mut self,
        path: &str,
        reader: &mut dyn Read,
    ) -> io::Result<CompressionOutcome> {
        let archive_path = format!("{}.zst", path.trim_start_matches('/'));
        match &mut self.format {
            CaptureFormat::Folder { bytes } => {
                let place = self.partial.create_parent_dirs(&archive_path)?;
                let mut file = create_file(&place)?;
                let packed = compress(reader, &mut file, u64::MAX)?;
                match &packed {
                    CompressionOutcome::Stored { stored_bytes, .. } => *bytes += stored_bytes,
                    _ => fs::remove_file(&place)?,
                }
                Ok(packed)
            }
            CaptureFormat::Archive(writer) => {
                // The length precedes the data in an archive, so the data are collected in an unnamed file
                // first.
                let mut spool = self.partial.create_spool_file()?;
                let packed = compress(reader, &mut spool, COMPRESSED_BYTES_MAX.0)?;
                if let CompressionOutcome::Stored { stored_bytes, .. } = packed {
                    spool.rewind()?;
                    writer_mut(writer)?.append_data(&mut tar_header(stored_bytes), archive_path, spool)?;
                }
                Ok(packed)
            }
        }
    }

    /// Gives the capture its name. Returns its size.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        let bytes = match &mut self.format {
            CaptureFormat::Folder { bytes } => {
                fs::remove_file(self.partial.path.join(PART_MARKER))?;
                *bytes
            }
            CaptureFormat::Archive(writer) => {
                let writer = writer.take().ok_or_else(closed_error)?;
                let file = writer.into_inner()?.finish()?.into_inner().map_err(|error| error.into_error())?;
                file.sync_all()?;
                file.metadata()?.len()
            }
        };
        self.partial.rename_to_target(self.force)?;
        Ok(bytes)
    }
}

impl PartialCapture {
    fn create(target: &Path, archive: bool) -> io::Result<PartialCapture> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        // Each round either creates the part or removes a leftover; a third one means that another pagelab
        // does the same concurrently.
        for _ in 0..3 {
            let created = match archive {
                true => create_file(&path),
                false => create_dir(&path),
            };
            match created {
                Ok(lock) => {
                    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                    // Another pagelab may have taken it for a leftover before it was locked.
                    if lock.metadata()?.nlink() > 0 {
                        return Ok(PartialCapture {
                            path,
                            target: target.to_owned(),
                            lock,
                            is_renamed: false,
                        });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale_part(&path)?,
                Err(error) => return Err(error),
            }
        }
        Err(busy_error())
    }

    /// The path of a file in the directory; parent directories are created.
    fn create_parent_dirs(&self, relative_path: &str) -> io::Result<PathBuf> {
        let place = self.path.join(relative_path);
        if let Some(above) = place.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        }
        Ok(place)
    }

    /// An unnamed file on the same file system.
    fn create_spool_file(&self) -> io::Result<File> {
        let folder = parent_dir(&self.path);
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

    fn rename_to_target(&mut self, force: bool) -> io::Result<()> {
        let cwd = rustix::fs::CWD;
        let is_folder = self.lock.metadata()?.is_dir();
        if !force {
            match rustix::fs::renameat_with(cwd, &self.path, cwd, &self.target, RenameFlags::NOREPLACE) {
                // The file system does not support RENAME_NOREPLACE: check whether the target exists by now.
                Err(Errno::INVAL) if !self.target.exists() => fs::rename(&self.path, &self.target)?,
                renamed => renamed?,
            }
        } else if is_folder && self.target.exists() {
            rustix::fs::renameat_with(cwd, &self.path, cwd, &self.target, RenameFlags::EXCHANGE)?;
            self.is_renamed = true;
            // The old capture has the name `.part` now.
            fs::remove_dir_all(&self.path)?;
        } else {
            fs::rename(&self.path, &self.target)?;
        }
        self.is_renamed = true;
        // Syncing the directory syncs the name.
        File::open(parent_dir(&self.target))?.sync_all().or_else(|error| match error.kind() {
            // Some file systems cannot sync a directory, which is ignored.
            io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(error),
        })
    }
}

impl Drop for PartialCapture {
    fn drop(&mut self) {
        if self.is_renamed {
            return;
        }
        // Nothing can be done about an error here; the next capture tries again.
        let _ = match self.lock.metadata() {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&self.path),
            _ => fs::remove_file(&self.path),
        };
    }
}

fn check_existing(target: &Path, archive: bool, force: bool) -> Result<(), Failure> {
    let shown = target.display();
    let refuse = |what: String| Err(Failure::new(FailureKind::Usage, what));
    let Ok(target_metadata) = fs::symlink_metadata(target) else { return Ok(()) };
    if !force {
        return refuse(format!(
            "cannot write {shown}: it already exists; hint: choose another name, or use --force"
        ));
    }
    if archive && !target_metadata.is_file() {
        return refuse(format!("cannot replace {shown}: it is not a file; hint: choose another name"));
    }
    let replaceable = archive || (target_metadata.is_dir() && is_capture_or_empty(target));
    if !replaceable {
        return refuse(format!(
            "cannot replace {shown}: it is not a directory written by capture; hint: choose another name"
        ));
    }
    Ok(())
}

fn is_capture_or_empty(folder: &Path) -> bool {
    folder.join(MANIFEST_FILE).is_file() || fs::read_dir(folder).is_ok_and(|mut names| names.next().is_none())
}

/// Removes the `.part` of a killed capture. Other files, and those in use, stay.
fn remove_stale_part(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let stale = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let metadata = stale.metadata()?;
    if rustix::fs::flock(&stale, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(busy_error());
    }
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    match metadata.is_dir() {
        false if is_own && metadata.is_file() => fs::remove_file(path),
        true if is_own && (path.join(PART_MARKER).is_file() || is_capture_or_empty(path)) => {
            fs::remove_dir_all(path)
        }
        _ => {
            let message = format!("{} already exists; hint: remove it first", path.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
        }
    }
}

fn busy_error() -> io::Error {
    io::Error::other("another pagelab process is writing it")
}

fn closed_error() -> io::Error {
    io::Error::other("the archive is already complete")
}

fn writer_mut(writer: &mut Option<Box<ArchiveWriter>>) -> io::Result<&mut ArchiveWriter> {
    writer.as_deref_mut().ok_or_else(closed_error)
}

fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a file that only its owner may read, because many captured files are readable by root only.
fn create_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn create_dir(path: &Path) -> io::Result<File> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    create_file(&path.join(PART_MARKER))?;
    File::open(path)
}

fn tar_header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

/// Compresses all of `reader`. An error of the reader is distinguished from one of the writer, which is the
/// function's own.
fn compress(reader: &mut dyn Read, writer: &mut File, stored_max: u64) -> io::Result<CompressionOutcome> {
    let counter = CountingWriter { inner: BufWriter::with_capacity(1 << 17, writer), bytes: 0 };
    let mut encoder = zstd::Encoder::new(counter, ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0u64;
    loop {
        let count = match read_full(reader, &mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return Ok(CompressionOutcome::Unreadable(error)),
        };
        encoder.write_all(&buffer[..count])?;
        bytes += count as u64;
        if encoder.get_ref().bytes > stored_max {
            return Ok(CompressionOutcome::TooLarge);
        }
    }
    let mut counted = encoder.finish()?;
    counted.flush()?;
    match counted.bytes > stored_max {
        true => Ok(CompressionOutcome::TooLarge),
        false => Ok(CompressionOutcome::Stored { bytes, stored_bytes: counted.bytes }),
    }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(data)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn create_error(target: &Path, error: &io::Error) -> Failure {
    let folder = parent_dir(target);
    let (kind, why) = match error.kind() {
        // A target such as /proc exists and accepts no files.
        io::ErrorKind::NotFound if folder.is_dir() => {
            let why = "the directory is not writable; hint: choose another directory";
            (FailureKind::NotAvailable, why.to_owned())
        }
        io::ErrorKind::NotFound => {
            let why = format!("no directory {}; hint: create it first", folder.display());
            (FailureKind::BadInput, why)
        }
        _ => return write_error(target, error),
    };
    cannot_write(kind, target, &why)
}

/// Error of a failed write: then no file has the name of the target.
pub(super) fn write_error(target: &Path, error: &io::Error) -> Failure {
    let nothing = "nothing was kept under that name";
    let (kind, why) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            let hint = "choose a location with more space, or use --without-kpageflags";
            (FailureKind::Partial, format!("no space ({error}); {nothing}; hint: {hint}"))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (FailureKind::NotAvailable, format!("{error}; hint: choose a writable location"))
        }
        _ => (FailureKind::Partial, format!("{error}; {nothing}")),
    };
    cannot_write(kind, target, &why)
}
