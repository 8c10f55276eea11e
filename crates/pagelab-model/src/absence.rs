//! Absent values with their reasons: never a zero, never a silent gap.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A value, or the reason for its absence.
pub type Reading<T> = Result<T, Absence>;

/// Reason for the absence of a value, its source, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The requested source, by its usual name: `/proc/kpageflags`, `CPUID leaf 24`.
    pub source: String,
    /// The kind of reason.
    pub why: AbsenceReason,
    /// The reason in words, without a trailing dot; may be empty if `why` is sufficient.
    pub detail: String,
    /// How to make the value available, if possible.
    #[serde(alias = "way_out")]
    pub hint: Option<String>,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbsenceReason {
    /// This kernel or machine does not have it.
    NotThere,
    /// It exists, but the caller may not read it.
    NotPermitted,
    /// The saved tree does not have it.
    NotSaved,
    /// It was not requested; reading it has a cost.
    #[serde(alias = "NotAsked")]
    NotRequested,
    /// It exists and is malformed; a [`crate::Problem`] has the position.
    Malformed,
    /// It changed during each attempt to read it.
    #[serde(alias = "Moving")]
    Changing,
    /// The formula is undefined, for example a share of zero.
    Undefined,
    /// Reading it failed in another way; `detail` has the system's message.
    Failed,
}

impl Absence {
    /// An absence without a hint; add one by [`Absence::with_hint`].
    pub fn new(source: impl Into<String>, kind: AbsenceReason, detail: impl Into<String>) -> Absence {
        Absence { source: source.into(), why: kind, detail: detail.into(), hint: None }
    }

    /// The absence of a value that has not been read yet.
    pub fn not_read() -> Absence {
        Absence::new("the machine", AbsenceReason::NotRequested, "not read")
    }

    /// The same absence with a hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Absence {
        self.hint = Some(hint.into());
        self
    }

    /// The reason in one phrase: the detail, or the default text of its kind.
    pub fn reason(&self) -> &str {
        if !self.detail.is_empty() {
            return &self.detail;
        }
        match self.why {
            AbsenceReason::NotThere => "not supported by this kernel",
            AbsenceReason::NotPermitted => "permission denied",
            AbsenceReason::NotSaved => "not in the saved tree",
            AbsenceReason::NotRequested => "not requested",
            AbsenceReason::Malformed => "malformed",
            AbsenceReason::Changing => "changing, not compared",
            AbsenceReason::Undefined => "undefined",
            AbsenceReason::Failed => "failed",
        }
    }

    /// The reason, and the hint if there is one: `REASON; HINT`.
    pub fn reason_and_hint(&self) -> String {
        let reason = self.reason();
        self.hint.as_ref().map_or_else(|| reason.to_owned(), |hint| format!("{reason}; {hint}"))
    }
}

/// `SOURCE: REASON; HINT`
impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.reason_and_hint())
    }
}
