//! Atomic output files: written to a temporary file in the target's directory, then renamed.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pagelab_model::run::Manifest;
use pagelab_runfile::RunWriter;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::exit::{Failure, FailureKind};

/// Output file that was checked before the work.
#[derive(Debug)]
pub struct OutputFile {
    /// Name as the user gave it.
    name: String,
    /// Path with symbolic links resolved.
    path: PathBuf,
    /// Whether an existing file is replaced.
    replaces: bool,
}

/// Checks the target before the work begins. It creates nothing. An existing file is refused unless it is
/// replaced, and a run file always.
pub fn check_output(path: &Path, replaces: bool) -> Result<OutputFile, Failure> {
    let name = path.display().to_string();
    refuse_dash(path, "file")?;
    match fs::metadata(path) {
        Ok(meta) => match unsuitable_reason(&meta) {
            Some(problem) => Err(cannot_write(&name, problem)),
            None if !replaces => Err(Failure::exists(&name)),
            None if is_run_file(path) => {
                Err(cannot_write(&name, "it is a run file").hint("choose another name"))
            }
            None => {
                let path =
                    fs::canonicalize(path).map_err(|error| Failure::cannot_write(&name, &error, "file"))?;
                Ok(OutputFile { name, path, replaces })
            }
        },
        // A link to a file that does not exist is replaced like a file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_folder(path)?;
            match fs::symlink_metadata(path) {
                Ok(_) if !replaces => Err(Failure::exists(&name)),
                _ => Ok(OutputFile { name, path: path.to_owned(), replaces }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Failure::no_directory(path)),
        Err(error) => Err(Failure::cannot_write(&name, &error, "file")),
    }
}

/// Checks that the directory of an output exists, and that the path names a file.
pub fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.file_name().is_none() {
        return Err(cannot_write(path.display(), "expected a file name"));
    }
    match folder.is_none_or(Path::is_dir) {
        true => Ok(()),
        false => Err(Failure::no_directory(path)),
    }
}

fn cannot_write(name: impl Display, reason: &str) -> Failure {
    Failure::cannot(FailureKind::Usage, format_args!("write {name}"), reason)
}

/// Returns why the existing file cannot be replaced. A FIFO would block the writer until a reader opens it.
fn unsuitable_reason(meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    if kind.is_dir() {
        Some("expected a file, found a directory")
    } else if is_standard_stream(meta) {
        Some("expected a file, found standard output")
    } else if kind.is_file() {
        None
    } else if kind.is_fifo() {
        Some("expected a file, found a FIFO")
    } else if kind.is_socket() {
        Some("expected a file, found a socket")
    } else {
        Some("expected a file, found a device")
    }
}

/// Whether this is standard output or standard error, under any name, for example /dev/stdout.
fn is_standard_stream(meta: &Metadata) -> bool {
    let is = |fd: rustix::fd::BorrowedFd<'_>| {
        rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (meta.dev(), meta.ino()))
    };
    is(io::stdout().as_fd()) || is(io::stderr().as_fd())
}

/// Rejects `-`: for many programs it means standard output, for the file system it is a file name. `what`:
/// `file` or `directory`.
pub fn refuse_dash(path: &Path, what: &str) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => {
            let reason = format!("expected a {what}, found standard output");
            Err(cannot_write("-", &reason).hint(format!("use ./- for a {what} of that name")))
        }
        false => Ok(()),
    }
}

/// Whether a file, not a pipe, begins as a run file, which is an SQLite database.
pub fn is_run_file(path: &Path) -> bool {
    let mut start = [0; 16];
    path.is_file()
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
        && start == *b"SQLite format 3\0"
}

impl OutputFile {
    /// Returns the name as the user gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the file. If that fails, an existing file remains unchanged.
    pub fn write(&self, content: &[u8]) -> Result<(), Failure> {
        if is_run_file(&self.path) {
            return Err(cannot_write(&self.name, "it has become a run file").hint("choose another name"));
        }
        let written = write_beside(&self.path, self.replaces, |part| write_new(part, content));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::exists(&self.name),
            _ => Failure::cannot_write(&self.name, &error, "file"),
        })
    }
}

/// The temporary file or directory beside a path, under which an output is written.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

/// Writes a temporary file beside the path, and renames it to the path.
pub(crate) fn write_beside<T>(
    path: &Path,
    replaces: bool,
    write: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let part = part_path(path);
    let written = write(&part).and_then(|value| {
        let renamed = if replaces { fs::rename(&part, path) } else { rename_new(&part, path) };
        renamed.map(|()| value)
    });
    if written.is_err() {
        // If the removal fails too, the name of the temporary file shows its purpose.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Renames without replacing.
pub(crate) fn rename_new(part: &Path, path: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, part, CWD, path, RenameFlags::NOREPLACE) {
        // The file system cannot rename without replacing: check for a new file instead.
        Err(Errno::INVAL) if path.symlink_metadata().is_err() => fs::rename(part, path),
        renamed => Ok(renamed?),
    }
}

/// Run file that a command creates.
#[derive(Clone, Debug)]
pub struct NewRunFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether an existing run file is replaced.
    pub replaces: bool,
}

impl NewRunFile {
    /// A run file that must not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> NewRunFile {
        NewRunFile { path: path.into(), replaces: false }
    }

    /// Checks the path before the work begins.
    pub fn check(&self) -> Result<(), Failure> {
        refuse_dash(&self.path, "file")?;
        check_folder(&self.path)?;
        match self.path.symlink_metadata().is_ok() && !self.replaces {
            true => Err(Failure::exists(self.path.display())),
            false => Ok(()),
        }
    }

    /// Creates the file, with its manifest.
    pub fn create(&self, manifest: &Manifest) -> Result<RunWriter, Failure> {
        refuse_dash(&self.path, "file")?;
        match self.replaces {
            true => Ok(RunWriter::replace(&self.path, manifest)?),
            false => Ok(RunWriter::create(&self.path, manifest)?),
        }
    }
}

/// `thp-1.pagelab`, or the first number of which there is none here.
pub fn free_run_file_name(recipe: &str) -> PathBuf {
    let name = |number: u32| PathBuf::from(format!("{recipe}-{number}.pagelab"));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..10_000).map(name).find(is_free).unwrap_or_else(|| name(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_through_links_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("page.html"), folder.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check_output(&file, true).unwrap().write(b"first").unwrap();
        check_output(&link, true).unwrap().write(b"second").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let kept = check_output(&file, false).unwrap_err().to_string();
        assert!(kept.contains("it already exists; hint: choose another name, or use --force"), "{kept}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let late = check_output(&folder.path().join("late"), false).unwrap();
        fs::write(folder.path().join("late"), "of another process").unwrap();
        assert!(late.write(b"page").unwrap_err().to_string().contains("it already exists"));
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| check_output(path, true).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("expected a file, found a directory"));
        assert!(refused(&folder.path().join("none/page.html")).contains("no directory"));
        for device in ["/dev/null", "/dev/full"] {
            assert!(refused(Path::new(device)).contains("expected a file, found a device"));
        }
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for fifo in [&fifo, &link] {
            assert!(refused(fifo).contains("expected a file, found a FIFO"));
        }
        assert!(refused(Path::new("-")).ends_with("use ./- for a file of that name"));
        assert_eq!(check_output(Path::new("./-"), true).unwrap().name(), "./-");
        let run = folder.path().join("run.pagelab");
        let place = check_output(&run, true).unwrap();
        fs::write(&run, b"SQLite format 3\0 and more").unwrap();
        assert!(refused(&run).contains("is a run file"));
        assert!(place.write(b"page").unwrap_err().to_string().contains("has become a run file"));
        assert!(fs::read(&run).unwrap().starts_with(b"SQLite"));
    }

    #[test]
    fn what_stands_in_the_way_decides_the_kind_and_the_way_out() {
        let check = |kind: io::ErrorKind, expected: FailureKind, hint: &str| {
            let failure = Failure::cannot_write("there", &kind.into(), "file");
            assert_eq!(failure.kind(), expected, "{failure}");
            assert!(failure.to_string().starts_with("cannot write there: "), "{failure}");
            assert!(failure.to_string().ends_with(hint), "{failure}");
        };
        check(
            io::ErrorKind::StorageFull,
            FailureKind::Partial,
            "free space, or choose a file on another disk",
        );
        check(
            io::ErrorKind::PermissionDenied,
            FailureKind::NotAvailable,
            "choose a file in a writable place",
        );
        check(
            io::ErrorKind::ReadOnlyFilesystem,
            FailureKind::NotAvailable,
            "choose a file in a writable place",
        );
        check(io::ErrorKind::TimedOut, FailureKind::Partial, "");
    }

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.html");
        fs::write(&file, "old").unwrap();
        let place = check_output(&file, true).unwrap();
        // A directory with the temporary name makes the write fail, as a full disk would.
        let part = folder.path().join(format!(".page.html.{}.part", std::process::id()));
        fs::create_dir(&part).unwrap();
        assert!(place.write(b"new").unwrap_err().to_string().contains("cannot write"));
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
}
