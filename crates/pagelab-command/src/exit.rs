//! Exit codes.

pub use pagelab_model::failure::{Failure, FailureKind, absence_failure, process_failure, usage_error};
pub use pagelab_runfile::failure::{
    read_failure, read_failure_for, read_trace_failure, run_file_write_failure,
};

/// Result of a command.
pub type Outcome = Result<Exit, Failure>;

/// How a run of pagelab ended. The numbers are a contract: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or the answer is yes.
    Success = 0,
    /// The answer is no.
    NegativeAnswer = 1,
    /// Wrong command line.
    Usage = 2,
    /// Bad input.
    BadInput = 3,
    /// Not available or not permitted.
    NotAvailable = 4,
    /// The kernel rejected a change, or only a part was done.
    Partial = 5,
    /// A guest ended without a result; the result of its command is unknown.
    GuestLost = 6,
    /// The measurements decide neither yes nor no.
    Undecided = 7,
    /// Internal error of pagelab.
    Bug = 70,
}

/// Exit codes after a signal, once all changes are undone: 128 plus the signal number.
const AFTER_SIGNAL: [(u8, &str); 3] = [
    (129, "SIGHUP, after undoing all changes"),
    (130, "SIGINT, after undoing all changes"),
    (143, "SIGTERM, after undoing all changes"),
];

impl From<FailureKind> for Exit {
    fn from(kind: FailureKind) -> Exit {
        match kind {
            FailureKind::NegativeAnswer => Exit::NegativeAnswer,
            FailureKind::Usage => Exit::Usage,
            FailureKind::BadInput => Exit::BadInput,
            FailureKind::NotAvailable => Exit::NotAvailable,
            // After a signal the process has another code: `output::exit_if_stopped`.
            FailureKind::Partial | FailureKind::Output | FailureKind::Stopped(_) => Exit::Partial,
            FailureKind::GuestLost => Exit::GuestLost,
            FailureKind::Undecided => Exit::Undecided,
            FailureKind::Bug => Exit::Bug,
        }
    }
}

impl Exit {
    /// The kind of the failures with this code; `None` for success.
    pub fn failure_kind(self) -> Option<FailureKind> {
        match self {
            Exit::Success => None,
            Exit::NegativeAnswer => Some(FailureKind::NegativeAnswer),
            Exit::Usage => Some(FailureKind::Usage),
            Exit::BadInput => Some(FailureKind::BadInput),
            Exit::NotAvailable => Some(FailureKind::NotAvailable),
            Exit::Partial => Some(FailureKind::Partial),
            Exit::GuestLost => Some(FailureKind::GuestLost),
            Exit::Undecided => Some(FailureKind::Undecided),
            Exit::Bug => Some(FailureKind::Bug),
        }
    }

    /// All codes with their meaning, for the help text and the documentation.
    pub const TABLE: [(Exit, &str); 9] = [
        (Exit::Success, "done, or the answer is yes"),
        (Exit::NegativeAnswer, "the answer is no"),
        (Exit::Usage, "wrong command line"),
        (Exit::BadInput, "bad input"),
        (Exit::NotAvailable, "not available or not permitted"),
        (Exit::Partial, "the kernel rejected a change, or the result is partial"),
        (Exit::GuestLost, "the guest was lost"),
        (Exit::Undecided, "undecided: the measurements say neither yes nor no"),
        (Exit::Bug, "internal error in pagelab"),
    ];

    /// Returns the exit of this code, if it is in the table.
    pub fn from_code(code: i32) -> Option<Exit> {
        Exit::TABLE.iter().map(|(exit, _)| *exit).find(|exit| *exit as i32 == code)
    }

    /// The exit code after this signal, once all changes are undone.
    pub fn code_after_signal(signal: i32) -> u8 {
        u8::try_from(signal.saturating_add(128)).unwrap_or(Exit::Partial as u8)
    }

    /// The exit of a command after one more of its inputs was refused: bad input outweighs what another user
    /// could read.
    pub fn after_refusal(refused: Option<Exit>, next: Exit) -> Option<Exit> {
        if next == Exit::BadInput { Some(next) } else { refused.or(Some(next)) }
    }

    /// Formats the table as text.
    pub fn format_table() -> String {
        let ours = Exit::TABLE.iter().map(|&(exit, meaning)| (exit as u8, meaning));
        ours.chain(AFTER_SIGNAL).map(|(code, meaning)| format!("  {code:>3}  {meaning}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        for (exit, meaning) in Exit::TABLE {
            assert_eq!(exit.failure_kind().map_or(Exit::Success, Exit::from), exit, "{meaning}");
        }
    }

    #[test]
    fn exit_codes_are_documented_as_they_are() {
        let row = |line: &'static str| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let code: u8 = cells.next()?.parse().ok()?;
            Some(format!("  {code:>3}  {}\n", cells.next()?))
        };
        let documented = include_str!("../../../docs/exit-codes.md").lines().filter_map(row);
        assert_eq!(documented.collect::<String>(), Exit::format_table());
    }
}
