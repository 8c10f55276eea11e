//! The error of writing and reading run files: what was wanted, what stood in the way, and the way out.

use std::fmt;
use std::path::Path;

use rusqlite::ffi;

/// Characters of a message beyond which it is cut: it may quote a name out of a hostile file.
const MESSAGE_MAX: usize = 600;

/// Why a run file could not be written or read.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    /// Bytes of the message in front of its way out, if it has one.
    obstacle_bytes: usize,
}

/// What sort of obstacle it was, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no such file, or no such folder to write into.
    NotThere,
    /// The file was not written by pagelab: text, another database, a folder, a device.
    NotOurs,
    /// The file was written by a newer pagelab, in a schema that this one does not know.
    Newer,
    /// The file is pagelab's, and cut off or damaged.
    Damaged,
    /// The file holds what pagelab never writes, such as a trigger or a view: it was not executed.
    Hostile,
    /// What is to be written exists already; nothing is overwritten.
    Exists,
    /// No room is left on the disk.
    NoSpace,
    /// The user may not read or write there.
    NotPermitted,
    /// The caller gave what cannot be stored: a value that is not finite, times that go back.
    NotStorable,
    /// The machine failed in another way.
    Io,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let mut message: String = message.into();
        if let Some((cut, _)) = message.char_indices().nth(MESSAGE_MAX) {
            message.truncate(cut);
            message.push('…');
        }
        let obstacle_bytes = message.len();
        Error { inner: Box::new(Inner { kind, message, obstacle_bytes }) }
    }

    /// What sort of obstacle it was.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The message without the way out of one that stands behind it, for a caller that knows a better one.
    pub fn obstacle(&self) -> &str {
        self.inner.message.get(..self.inner.obstacle_bytes).unwrap_or(&self.inner.message)
    }

    /// `cannot read FILE: PROBLEM; WAY OUT`
    pub(crate) fn read(kind: ErrorKind, path: &Path, problem: impl fmt::Display) -> Error {
        let (head, problem) = (format!("cannot read {}: ", path.display()), problem.to_string());
        let mut error = Error::new(kind, format!("{head}{problem}"));
        error.inner.obstacle_bytes = head.len() + problem.find("; ").unwrap_or(problem.len());
        error
    }

    /// `cannot write FILE: PROBLEM; WAY OUT`
    pub(crate) fn write(kind: ErrorKind, path: &Path, problem: impl fmt::Display) -> Error {
        Error::new(kind, format!("cannot write {}: {problem}", path.display()))
    }

    /// A file that is ours and whose contents cannot be what was written.
    pub(crate) fn damaged(path: &Path, problem: impl fmt::Display) -> Error {
        let way_out = "a copy of the file or a new run is needed";
        Error::read(ErrorKind::Damaged, path, format_args!("it is damaged: {problem}; {way_out}"))
    }

    /// A file that holds what pagelab never writes.
    pub(crate) fn hostile(path: &Path, problem: impl fmt::Display) -> Error {
        let way_out = "nothing of it was executed, and `sqlite3 -readonly -safe` can look into it";
        Error::read(
            ErrorKind::Hostile,
            path,
            format_args!("{problem}, which pagelab never writes; {way_out}"),
        )
    }

    /// What SQLite said while the file was read.
    pub(crate) fn sqlite_read(path: &Path, error: &rusqlite::Error) -> Error {
        use ErrorKind::*;
        match extended_code(error).map(|code| (code & 0xff, code)) {
            Some((ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB, _)) => {
                Error::damaged(path, format_args!("its parts do not fit together ({})", plain(error)))
            }
            Some((ffi::SQLITE_TOOBIG, _)) => Error::damaged(path, "a value in it is larger than any can be"),
            Some((ffi::SQLITE_INTERRUPT, _)) => {
                Error::damaged(path, "reading it takes longer than a file of its size can take")
            }
            Some((ffi::SQLITE_PERM | ffi::SQLITE_AUTH | ffi::SQLITE_CANTOPEN, _)) => {
                Error::read(NotPermitted, path, format_args!("{}; ask its owner", plain(error)))
            }
            _ => Error::read(Io, path, plain(error)),
        }
    }

    /// What SQLite said while the file was written, and what of it is kept.
    pub(crate) fn sqlite_write(path: &Path, error: &rusqlite::Error, kept: &str) -> Error {
        use ErrorKind::*;
        let code = extended_code(error).unwrap_or(0);
        let no_space = matches!(code & 0xff, ffi::SQLITE_FULL) || code == ffi::SQLITE_IOERR_SHMSIZE;
        if no_space {
            let problem = format_args!("the disk is full; {kept}make room there, or write to another disk");
            return Error::write(NoSpace, path, problem);
        }
        let kind = match code & 0xff {
            ffi::SQLITE_PERM | ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN => NotPermitted,
            _ => Io,
        };
        Error::write(
            kind,
            path,
            format_args!("{}; {kept}look at that disk, or write to another", plain(error)),
        )
    }
}

/// SQLite's own words, without what rusqlite says around them.
fn plain(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}

/// SQLite's extended result code.
pub(crate) fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// The kind of an error of the operating system.
pub(crate) fn kind_of(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::NotThere,
        std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::NotPermitted
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {}
