//! The one table of exit codes, and the error that carries one.

use std::error::Error;
use std::fmt;

/// How a run of pagelab ended. The numbers are a contract: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or the answer is yes.
    Done = 0,
    /// The answer is no.
    No = 1,
    /// The command line was wrong.
    Usage = 2,
    /// The input was bad.
    BadInput = 3,
    /// Not available or not permitted here.
    NotAvailable = 4,
    /// The machine refused, or only a part was done.
    Partial = 5,
    /// A guest ended without a result; nothing is said about the command in it.
    Lost = 6,
    /// A bug of ours.
    Bug = 70,
}

/// Exit codes after a signal, once everything is restored: 128 plus the signal's number.
pub const AFTER_SIGNAL: [(u8, &str); 3] =
    [(129, "SIGHUP, after restoring"), (130, "SIGINT, after restoring"), (143, "SIGTERM, after restoring")];

impl Exit {
    /// Every code with its meaning, for the help text and the documentation.
    pub const TABLE: [(Exit, &str); 8] = [
        (Exit::Done, "done, or the answer is yes"),
        (Exit::No, "the answer is no"),
        (Exit::Usage, "the command line was wrong"),
        (Exit::BadInput, "the input was bad"),
        (Exit::NotAvailable, "not available or not permitted here"),
        (Exit::Partial, "the machine refused, or only part was done"),
        (Exit::Lost, "the guest was lost"),
        (Exit::Bug, "a bug of pagelab's own"),
    ];

    /// The exit of this code, if it is one of the table.
    pub fn of(code: i32) -> Option<Exit> {
        Exit::TABLE.iter().map(|(exit, _)| *exit).find(|exit| *exit as i32 == code)
    }

    /// The table as text.
    pub fn table() -> String {
        let ours = Exit::TABLE.iter().map(|&(exit, meaning)| (exit as u8, meaning));
        ours.chain(AFTER_SIGNAL).map(|(code, meaning)| format!("  {code:>3}  {meaning}\n")).collect()
    }
}

/// Why a command failed, and the exit code that says so.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure with what was wanted, what stood in the way and the way out in its message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), cause: None }
    }

    /// The same with the error behind it.
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        self.cause = Some(cause.into());
        self
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether the reader of our output went away, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = self.cause.as_deref().map(|c| c as _);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                return io.kind() == std::io::ErrorKind::BrokenPipe;
            }
            cause = error.source();
        }
        false
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause: Option<&(dyn Error + 'static)> = self.cause.as_deref().map(|c| c as _);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Exit::Partial, "cannot write the output").because(error)
    }
}

/// What a command returns.
pub type Outcome = Result<Exit, Failure>;
