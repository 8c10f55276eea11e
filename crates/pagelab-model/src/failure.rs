//! Failure of an operation: kind, message, hint and cause.

use std::error::Error;
use std::path::Path;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::{Absence, AbsenceReason, names};

/// Kind of a failure. Each kind has one exit code, in the table of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// The answer is no.
    NegativeAnswer,
    /// The request is wrong.
    Usage,
    /// A file or another input is bad: it does not exist, or it has another content than expected.
    BadInput,
    /// The kernel, the privileges of the user, this machine or the network does not have it.
    NotAvailable,
    /// The machine rejected a change, or only a part was done.
    Partial,
    /// A guest ended without a result.
    GuestLost,
    /// The measurements decide neither yes nor no.
    Undecided,
    /// A defect of pagelab.
    Bug,
    /// The output could not be written.
    Output,
    /// A signal of this number stopped the operation.
    Stopped(i32),
}

impl FailureKind {
    /// The kind of a file that cannot be read: it does not exist, or it is not available.
    pub fn of_read_error(error: io::ErrorKind) -> FailureKind {
        match error {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                FailureKind::BadInput
            }
            _ => FailureKind::NotAvailable,
        }
    }
}

/// Why a file is not written over: it exists.
pub const EXISTS: &str = "it already exists; hint: choose another name, or use --force";

/// Failure of an operation: kind, message, hint and cause.
///
/// Messages have one grammar: `cannot VERB OBJECT: reason`, or `expected X, found Y` behind its place. The
/// constructors are named after the operation that failed.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    hint: Option<String>,
    cause: Option<io::Error>,
}

impl Failure {
    /// Creates a failure from a whole message; a hint may stand behind `; hint: `.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        let mut message: String = message.into();
        let hint = message.find(HINT_MARK).map(|at| {
            let hint = message[at + HINT_MARK.len()..].to_owned();
            message.truncate(at);
            hint
        });
        Failure { kind, message, hint, cause: None }
    }

    /// What the kernel, the privileges of the user, this machine or the network does not have.
    pub fn not_available(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::NotAvailable, message)
    }

    /// Bad input: a plan, a file, a process id.
    pub fn bad_input(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::BadInput, message)
    }

    /// What the machine refused, or did in part only.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Partial, message)
    }

    /// A call that the machine refused.
    pub fn system_error(message: impl Into<String>, cause: impl Into<io::Error>) -> Failure {
        Failure::refused(message).with_cause(cause.into())
    }

    /// Standard output that could not be written.
    pub fn output_error(cause: io::Error) -> Failure {
        Failure::new(FailureKind::Output, "cannot write the output").with_cause(cause)
    }

    /// The end by a signal.
    pub fn stopped(signal: i32) -> Failure {
        Failure::new(FailureKind::Stopped(signal), "stopped by a signal; nothing was kept")
    }

    /// `cannot ACTION: REASON`. The action is a verb with its object.
    pub fn cannot(kind: FailureKind, action: impl fmt::Display, reason: impl fmt::Display) -> Failure {
        Failure::new(kind, format!("cannot {action}: {reason}"))
    }

    /// `cannot ACTION: REASON`, with the hint of the absence that prevents it.
    pub fn absent(kind: FailureKind, action: impl fmt::Display, absence: &Absence) -> Failure {
        let failure = Failure::cannot(kind, action, absence.reason());
        Failure { hint: absence.hint.clone().or(failure.hint), ..failure }
    }

    /// A file that cannot be read. The error decides the kind.
    pub fn cannot_read(name: impl fmt::Display, error: &io::Error) -> Failure {
        let failure = Failure::cannot(
            FailureKind::of_read_error(error.kind()),
            format_args!("read {name}"),
            describe_io_error(error),
        );
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.hint("run as a user who can read it"),
            _ => failure,
        }
    }

    /// A directory that cannot be listed. The error decides the kind.
    pub fn cannot_list(name: impl fmt::Display, error: &io::Error) -> Failure {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "no such directory".to_owned(),
            _ => describe_io_error(error),
        };
        Failure::cannot(FailureKind::of_read_error(error.kind()), format_args!("list {name}"), reason)
    }

    /// A file or directory that cannot be written. The error decides the kind and the hint. `what`:
    /// `file` or `directory`.
    pub fn cannot_write(name: impl fmt::Display, error: &io::Error, what: &str) -> Failure {
        let action = format_args!("write {name}");
        match error.kind() {
            // The directory exists, as checked before, but accepts no files: /proc, for example.
            io::ErrorKind::NotFound => {
                Failure::cannot(FailureKind::NotAvailable, action, "its directory accepts no files")
                    .hint("choose a writable directory")
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Failure::cannot(FailureKind::Partial, action, describe_io_error(error))
                    .hint(format!("free space, or choose a {what} on another disk"))
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Failure::cannot(FailureKind::NotAvailable, action, describe_io_error(error))
                    .hint(format!("choose a {what} in a writable place"))
            }
            _ => Failure::cannot(FailureKind::Partial, action, describe_io_error(error)),
        }
    }

    /// An output that exists and is not replaced.
    pub fn exists(name: impl fmt::Display) -> Failure {
        Failure::cannot(FailureKind::Usage, format_args!("write {name}"), EXISTS)
    }

    /// An output whose directory does not exist.
    pub fn no_directory(path: &Path) -> Failure {
        let folder = path.parent().unwrap_or(path).display();
        let action = format_args!("write {}", path.display());
        Failure::cannot(FailureKind::BadInput, action, format_args!("no directory {folder}"))
            .hint("create it first")
    }

    /// A program that cannot be started. The error decides the kind.
    pub fn cannot_start(program: impl fmt::Display, error: &io::Error) -> Failure {
        Failure::cannot(
            FailureKind::of_read_error(error.kind()),
            format_args!("start {program}"),
            describe_io_error(error),
        )
    }

    /// `PLACE: expected X, found Y`: an input of another kind.
    pub fn expected(
        place: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Failure {
        Failure::new(FailureKind::BadInput, format!("{place}: expected {expected}, found {found}"))
    }

    /// A command line without a program to run. `options`: what can be added.
    pub fn no_command(options: &str) -> Failure {
        Failure::new(FailureKind::Usage, format!("no command given: add {options}"))
    }

    /// A name that is none of the known ones; the nearest one is the hint.
    pub fn unknown<S: AsRef<str>>(kind: &str, name: &str, known: &[S]) -> Failure {
        Failure::new(FailureKind::Usage, names::describe_unknown(kind, name, known))
    }

    /// A run file that cannot be resumed.
    pub fn cannot_resume(path: &Path, reason: impl fmt::Display) -> Failure {
        Failure::cannot(FailureKind::BadInput, format_args!("resume {}", path.display()), reason)
    }

    /// Signal handlers that cannot be installed.
    pub fn no_signal_handlers(error: impl fmt::Display) -> Failure {
        Failure::cannot(FailureKind::NotAvailable, "install signal handlers", error)
    }

    /// A document that cannot be built: a defect of pagelab. `what`: `JSON`, `the page`.
    pub fn not_serialized(what: &str, error: impl fmt::Display) -> Failure {
        Failure::cannot(FailureKind::Bug, format_args!("write {what}"), error)
            .hint("please report this error")
    }

    /// Adds a hint: what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the error of the system that caused the failure, if there is one.
    pub fn with_cause(self, cause: impl Into<Option<io::Error>>) -> Failure {
        Failure { cause: cause.into(), ..self }
    }

    /// Returns its kind, which determines the exit code.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether the reader of the output closed the pipe, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        self.kind == FailureKind::Output
            && self.cause.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Separates the hint from the message.
const HINT_MARK: &str = "; hint: ";

/// The reason of an error of the operating system, as a phrase.
pub fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause = self.cause.as_ref().map(|error| error as &(dyn Error + 'static));
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "{HINT_MARK}{hint}"))
    }
}

/// A command line that was wrong.
pub fn usage_error(message: &str) -> Failure {
    Failure::new(FailureKind::Usage, message)
}

/// A source that a command needs and that could not be read.
pub fn absence_failure(absence: Absence) -> Failure {
    let reason = match absence.reason() {
        // A parser's message has the file's name and line in it already.
        reason if reason.starts_with(&absence.source) => reason.to_owned(),
        reason => format!("cannot read {}: {reason}", absence.source),
    };
    let failure = Failure::new(absence_kind(absence.why), reason);
    match absence.hint {
        Some(hint) => failure.hint(hint),
        None if absence.why == AbsenceReason::NotSaved => failure.hint("use a tree that contains it"),
        None => failure,
    }
}

/// A file of a process that could not be read: without the process it is bad input.
pub fn process_failure(absence: Absence) -> Failure {
    let kind = match absence.why {
        AbsenceReason::NotThere => FailureKind::BadInput,
        why => absence_kind(why),
    };
    Failure { kind, ..absence_failure(absence) }
}

/// The kind of a source that could not be read.
pub fn absence_kind(why: AbsenceReason) -> FailureKind {
    match why {
        AbsenceReason::Malformed | AbsenceReason::NotSaved => FailureKind::BadInput,
        _ => FailureKind::NotAvailable,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// The wording of each constructor, with its exit code.
    #[test]
    fn constructors_have_one_grammar() {
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        let absence = |why| Absence::new("/proc/zoneinfo", why, "it is empty");
        let failures = [
            Failure::cannot(FailureKind::Partial, "fragment memory", "stopped by SIGINT"),
            Failure::absent(
                FailureKind::NotAvailable,
                "count",
                &absence(AbsenceReason::Failed).with_hint("wait"),
            ),
            Failure::cannot_read("a.txt", &io(io::ErrorKind::NotFound)),
            Failure::cannot_read("a.txt", &io(io::ErrorKind::PermissionDenied)),
            Failure::cannot_list("day", &io(io::ErrorKind::NotFound)),
            Failure::cannot_write("a.html", &io(io::ErrorKind::NotFound), "file"),
            Failure::cannot_write("a.html", &io(io::ErrorKind::PermissionDenied), "file"),
            Failure::exists("a.html"),
            Failure::no_directory(Path::new("none/a.html")),
            Failure::cannot_start("./x", &io(io::ErrorKind::NotFound)),
            Failure::no_signal_handlers("no memory"),
            Failure::expected("a.txt", "text", "compressed data"),
            Failure::unknown("recipe", "thpp", &["thp", "swap"]),
            Failure::cannot_resume(Path::new("a.pagelab"), "it has no experiment"),
            Failure::not_serialized("JSON", "a key is not text"),
            Failure::no_command("`-- COMMAND`"),
            Failure::system_error("cannot start qemu-system-x86_64", io(io::ErrorKind::NotFound)),
            Failure::output_error(io(io::ErrorKind::StorageFull)),
            Failure::stopped(2),
            Failure::new(FailureKind::Partial, "cannot write a; hint: free space")
                .with_cause(io::Error::other("full")),
            absence_failure(absence(AbsenceReason::NotThere)),
            absence_failure(absence(AbsenceReason::NotSaved)),
            process_failure(absence(AbsenceReason::NotThere)),
        ];
        let lines = failures.map(|failure| format!("{:?}: {failure}\n", failure.kind()));
        expect![[r#"
            Partial: cannot fragment memory: stopped by SIGINT
            NotAvailable: cannot count: it is empty; hint: wait
            BadInput: cannot read a.txt: no such file
            NotAvailable: cannot read a.txt: permission denied; hint: run as a user who can read it
            BadInput: cannot list day: no such directory
            NotAvailable: cannot write a.html: its directory accepts no files; hint: choose a writable directory
            NotAvailable: cannot write a.html: permission denied; hint: choose a file in a writable place
            Usage: cannot write a.html: it already exists; hint: choose another name, or use --force
            BadInput: cannot write none/a.html: no directory none; hint: create it first
            BadInput: cannot start ./x: no such file
            NotAvailable: cannot install signal handlers: no memory
            BadInput: a.txt: expected text, found compressed data
            Usage: unknown recipe `thpp`; expected one of thp, swap; hint: did you mean `thp`?
            BadInput: cannot resume a.pagelab: it has no experiment
            Bug: cannot write JSON: a key is not text; hint: please report this error
            Usage: no command given: add `-- COMMAND`
            Partial: cannot start qemu-system-x86_64: entity not found
            Output: cannot write the output: no storage space
            Stopped(2): stopped by a signal; nothing was kept
            Partial: cannot write a: full; hint: free space
            NotAvailable: cannot read /proc/zoneinfo: it is empty
            BadInput: cannot read /proc/zoneinfo: it is empty; hint: use a tree that contains it
            BadInput: cannot read /proc/zoneinfo: it is empty
        "#]]
        .assert_eq(&lines.concat());
    }
}
