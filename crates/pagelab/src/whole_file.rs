//! Files that appear whole or not at all: written under another name beside the target, then renamed.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// A place where a file is going to be written.
#[derive(Debug)]
pub struct Target {
    /// As the user named it.
    name: String,
    /// Where symbolic links lead.
    path: PathBuf,
}

/// Looks at the place before any work is done for it. Nothing is created.
pub fn target(path: &Path, option: &str) -> Result<Target, Failure> {
    let name = path.display().to_string();
    let refuse = |problem: &str| Err(Failure::new(Exit::Usage, format!("{option} {name}: {problem}")));
    refuse_dash(path, option, "file")?;
    match fs::metadata(path) {
        Ok(meta) => match unsuitable(&meta) {
            Some(problem) => refuse(problem),
            None if is_run_file(path) => refuse("is a run file, and none is overwritten: give another name"),
            None => {
                let path = fs::canonicalize(path).map_err(|error| not_written(&name, &error, "file"))?;
                Ok(Target { name, path })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.file_name().is_none() || !folder.is_none_or(Path::is_dir) {
                return refuse("there is no such folder: name a file in a folder that is there");
            }
            Ok(Target { name, path: path.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(not_written(&name, &error, "file"))
        }
        Err(error) => refuse(&format!("{error}: name a file in a folder that is there")),
    }
}

/// The same for what takes the place of nothing: a file that is there already stays.
pub fn new_target(path: &Path, option: &str) -> Result<Target, Failure> {
    let target = target(path, option)?;
    match fs::symlink_metadata(path) {
        Err(_) => Ok(target),
        Ok(_) => {
            let problem = "is there already, and nothing is overwritten: give another name, or move it away";
            Err(Failure::new(Exit::Usage, format!("{option} {}: {problem}", target.name)))
        }
    }
}

/// Why nothing can be put in the place of what is there. A FIFO would make the writer wait for a reader.
fn unsuitable(meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    if kind.is_dir() {
        Some("is a folder: name a file in a folder that is there")
    } else if is_our_output(meta) {
        Some("is where the output goes: give the page a file of its own")
    } else if kind.is_file() {
        None
    } else if kind.is_fifo() {
        Some("is a FIFO, and a page is written into a plain file: give the name of one")
    } else if kind.is_socket() {
        Some("is a socket, and a page is written into a plain file: give the name of one")
    } else {
        Some("is a device, and a page is written into a plain file: give the name of one")
    }
}

/// Whether this is standard output or standard error, under whatever name, such as /dev/stdout.
fn is_our_output(meta: &Metadata) -> bool {
    let is = |fd: rustix::fd::BorrowedFd<'_>| {
        rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (meta.dev(), meta.ino()))
    };
    is(io::stdout().as_fd()) || is(io::stderr().as_fd())
}

/// `-` is standard output to many programs, and only a name to the file system: nobody means that.
pub fn refuse_dash(path: &Path, option: &str, what: &str) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => {
            let message =
                format!("{option} -: a {what} is wanted, not standard output: give its name, or ./-");
            Err(Failure::new(Exit::Usage, message))
        }
        false => Ok(()),
    }
}

/// What could not be written, why, and the way out. `what`: `file` or `folder`.
pub fn not_written(name: impl Display, error: &io::Error, what: &str) -> Failure {
    // That its folder is there was seen before: such a one, as /proc, takes no files.
    if error.kind() == io::ErrorKind::NotFound {
        let problem =
            format!("no {what} can be made in that folder; give a name in a folder where you may write");
        return Failure::new(Exit::NotAvailable, format!("cannot write {name}: {problem}"));
    }
    let (exit, way_out) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Exit::Partial, format!(": make room there, or name a {what} on another disk"))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (Exit::NotAvailable, format!(": name a {what} where you may write"))
        }
        _ => (Exit::Partial, String::new()),
    };
    Failure::new(exit, format!("cannot write {name}: {error}{way_out}"))
}

/// Whether a measurement lies there, under a name that was given for another by mistake.
fn is_run_file(path: &Path) -> bool {
    let mut start = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"SQLite format 3\0"
}

impl Target {
    /// As the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the whole file; a file that was there before stays as it was if that fails.
    pub fn write(&self, content: &[u8]) -> Result<(), Failure> {
        let written = if self.path.is_file() && is_run_file(&self.path) {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "it has become a run file: give another name"))
        } else {
            self.replace(content)
        };
        written.map_err(|error| not_written(&self.name, &error, "file"))
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!(".{}.part", std::process::id()));
        let beside = self.path.with_file_name(name);
        let written = write_new(&beside, content).and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            // What cannot be written can usually be removed; if not, its name says what it is.
            let _ = fs::remove_file(&beside);
        }
        written
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_through_links_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("page.html"), folder.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        target(&file, "--html").unwrap().write(b"first").unwrap();
        target(&link, "--html").unwrap().write(b"second").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| target(path, "--html").unwrap_err().to_string();
        assert!(refused(folder.path()).contains("is a folder"));
        assert!(refused(&folder.path().join("none/page.html")).contains("no such folder"));
        for device in ["/dev/null", "/dev/full"] {
            assert!(refused(Path::new(device)).contains("is a device, and a page"));
        }
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for fifo in [&fifo, &link] {
            assert!(refused(fifo).contains("is a FIFO, and a page"));
        }
        assert!(refused(Path::new("-")).ends_with("give its name, or ./-"));
        assert_eq!(target(Path::new("./-"), "--html").unwrap().name(), "./-");
        let run = folder.path().join("run.pagelab");
        let place = target(&run, "--html").unwrap();
        fs::write(&run, b"SQLite format 3\0 and more").unwrap();
        assert!(refused(&run).contains("is a run file"));
        assert!(place.write(b"page").unwrap_err().to_string().contains("has become a run file"));
        assert!(fs::read(&run).unwrap().starts_with(b"SQLite"));
    }

    #[test]
    fn what_stands_in_the_way_decides_the_exit_code_and_the_way_out() {
        let check = |kind: io::ErrorKind, exit: Exit, way_out: &str| {
            let failure = not_written("there", &kind.into(), "file");
            assert_eq!(failure.exit(), exit, "{failure}");
            assert!(failure.to_string().starts_with("cannot write there: "), "{failure}");
            assert!(failure.to_string().ends_with(way_out), "{failure}");
        };
        check(io::ErrorKind::StorageFull, Exit::Partial, "make room there, or name a file on another disk");
        check(io::ErrorKind::PermissionDenied, Exit::NotAvailable, "name a file where you may write");
        check(io::ErrorKind::ReadOnlyFilesystem, Exit::NotAvailable, "name a file where you may write");
        check(io::ErrorKind::TimedOut, Exit::Partial, "");
    }

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.html");
        fs::write(&file, "old").unwrap();
        let place = target(&file, "--html").unwrap();
        // A folder under the temporary name stands in the way of it, as a full disk would.
        let part = folder.path().join(format!(".page.html.{}.part", std::process::id()));
        fs::create_dir(&part).unwrap();
        assert!(place.write(b"new").unwrap_err().to_string().contains("cannot write"));
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
}
