//! Error of writing and reading run files: operation, reason and hint.

use std::fmt;
use std::path::Path;

use rusqlite::ffi;

/// Characters of a message beyond which it is cut: it may quote a name out of a hostile file.
const MESSAGE_MAX: usize = 600;

/// Why a run file could not be written or read.
#[derive(Clone)]
pub struct Error {
    details: Box<ErrorDetails>,
}

#[derive(Clone)]
struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    /// The file could not be written.
    is_write: bool,
    /// Bytes of the message before its hint, if it has one.
    problem_bytes: usize,
}

/// Kind of an error; it determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no such file, or no such folder to write into.
    NotFound,
    /// The file was not written by pagelab: text, another database, a folder, a device.
    NotARunFile,
    /// The file was written by a newer pagelab, in a schema that this one does not know.
    NewerVersion,
    /// The file is pagelab's, and cut off or damaged.
    Damaged,
    /// The file has objects that pagelab never writes, such as a trigger or a view: they were not executed.
    Malicious,
    /// The file already exists; nothing is overwritten.
    AlreadyExists,
    /// No room is left on the disk.
    NoSpace,
    /// The user may not read or write there.
    NotPermitted,
    /// The caller passed values that cannot be stored: not finite, or times that go back.
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
        let problem_bytes = message.len();
        Error { details: Box::new(ErrorDetails { kind, message, is_write: false, problem_bytes }) }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.details.kind
    }

    /// Whether the file could not be written; otherwise it could not be read.
    pub fn is_write(&self) -> bool {
        self.details.is_write
    }

    /// The message without its hint, for a caller with a better one.
    pub fn problem(&self) -> &str {
        self.details.message.get(..self.details.problem_bytes).unwrap_or(&self.details.message)
    }

    /// `cannot read FILE: PROBLEM; HINT`
    pub(crate) fn cannot_read(kind: ErrorKind, path: &Path, problem: impl fmt::Display) -> Error {
        let (head, problem) = (format!("cannot read {}: ", path.display()), problem.to_string());
        let mut error = Error::new(kind, format!("{head}{problem}"));
        error.details.problem_bytes = head.len() + problem.find("; ").unwrap_or(problem.len());
        error
    }

    /// `cannot write FILE: PROBLEM; HINT`
    pub(crate) fn cannot_write(kind: ErrorKind, path: &Path, problem: impl fmt::Display) -> Error {
        let mut error = Error::new(kind, format!("cannot write {}: {problem}", path.display()));
        error.details.is_write = true;
        error
    }

    /// A pagelab file whose contents were changed or damaged.
    pub(crate) fn damaged(path: &Path, problem: impl fmt::Display) -> Error {
        let hint = "use a copy of the file, or start a new run";
        Error::cannot_read(ErrorKind::Damaged, path, format_args!("it is damaged: {problem}; hint: {hint}"))
    }

    /// A file that holds what pagelab never writes.
    pub(crate) fn malicious(path: &Path, problem: impl fmt::Display) -> Error {
        let hint = "nothing in it was executed; hint: inspect it with `sqlite3 -readonly -safe`";
        Error::cannot_read(
            ErrorKind::Malicious,
            path,
            format_args!("{problem}, which pagelab never writes; {hint}"),
        )
    }

    /// Error of SQLite while reading the file.
    pub(crate) fn sqlite_read(path: &Path, error: &rusqlite::Error) -> Error {
        use ErrorKind::*;
        match extended_code(error).map(|code| (code & 0xff, code)) {
            Some((ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB, _)) => {
                Error::damaged(path, format_args!("its contents are inconsistent ({})", sqlite_text(error)))
            }
            Some((ffi::SQLITE_TOOBIG, _)) => Error::damaged(path, "it contains a value above the size limit"),
            Some((ffi::SQLITE_INTERRUPT, _)) => Error::damaged(path, "reading takes too long for its size"),
            Some((ffi::SQLITE_PERM | ffi::SQLITE_AUTH | ffi::SQLITE_CANTOPEN, _)) => Error::cannot_read(
                NotPermitted,
                path,
                format_args!("{}; hint: run as its owner or as root", sqlite_text(error)),
            ),
            _ => Error::cannot_read(Io, path, sqlite_text(error)),
        }
    }

    /// Error of SQLite while writing the file, and what is stored.
    pub(crate) fn sqlite_write(path: &Path, error: &rusqlite::Error, committed: &str) -> Error {
        use ErrorKind::*;
        let code = extended_code(error).unwrap_or(0);
        let no_space = matches!(code & 0xff, ffi::SQLITE_FULL) || code == ffi::SQLITE_IOERR_SHMSIZE;
        if no_space {
            let problem =
                format_args!("the disk is full; {committed}hint: free space, or write to another disk");
            return Error::cannot_write(NoSpace, path, problem);
        }
        let kind = match code & 0xff {
            ffi::SQLITE_PERM | ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN => NotPermitted,
            _ => Io,
        };
        Error::cannot_write(
            kind,
            path,
            format_args!("{}; {committed}hint: check the disk, or use another one", sqlite_text(error)),
        )
    }
}

/// SQLite's message, without the additions of rusqlite.
fn sqlite_text(error: &rusqlite::Error) -> String {
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
pub(crate) fn io_kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        std::io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::NotPermitted
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.details.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// The wording of each constructor, with its kind.
    #[test]
    fn constructors_have_one_grammar() {
        let path = Path::new("a.pagelab");
        let sqlite = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("refused".to_owned()));
        let errors = [
            Error::cannot_read(ErrorKind::NotFound, path, "no such file"),
            Error::cannot_write(ErrorKind::NotPermitted, path, "permission denied"),
            Error::damaged(path, "a part is missing"),
            Error::malicious(path, "it has a trigger"),
            Error::sqlite_read(path, &sqlite(ffi::SQLITE_CORRUPT)),
            Error::sqlite_read(path, &sqlite(ffi::SQLITE_CANTOPEN)),
            Error::sqlite_write(path, &sqlite(ffi::SQLITE_FULL), "3 trials are stored; "),
            Error::sqlite_write(path, &sqlite(ffi::SQLITE_READONLY), ""),
        ];
        let lines = errors.map(|error| format!("{error:?}\n").replace("; ", ";\n  "));
        expect![[r#"
            NotFound: cannot read a.pagelab: no such file
            NotPermitted: cannot write a.pagelab: permission denied
            Damaged: cannot read a.pagelab: it is damaged: a part is missing;
              hint: use a copy of the file, or start a new run
            Malicious: cannot read a.pagelab: it has a trigger, which pagelab never writes;
              nothing in it was executed;
              hint: inspect it with `sqlite3 -readonly -safe`
            Damaged: cannot read a.pagelab: it is damaged: its contents are inconsistent (refused);
              hint: use a copy of the file, or start a new run
            NotPermitted: cannot read a.pagelab: refused;
              hint: run as its owner or as root
            NoSpace: cannot write a.pagelab: the disk is full;
              3 trials are stored;
              hint: free space, or write to another disk
            NotPermitted: cannot write a.pagelab: refused;
              hint: check the disk, or use another one
        "#]]
        .assert_eq(&lines.concat());
    }
}
