//! A value that could not be had, and why: never a zero, never a silent gap.

use serde::{Deserialize, Serialize};

/// A value, or the reason that it is absent.
pub type Reading<T> = Result<T, Absence>;

/// Why a value is absent, what it was, and how to get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The source that was wanted, as a person would look it up: `/proc/kpageflags`, `CPUID leaf 24`.
    pub source: String,
    /// The kind of reason.
    pub why: AbsentWhy,
    /// The reason in words, without a trailing dot; may be empty where `why` says it all.
    pub detail: String,
    /// What would make the value available, where something would.
    pub way_out: Option<String>,
}

/// The kinds of reasons for which a value is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbsentWhy {
    /// This kernel or machine does not have it.
    NotThere,
    /// It is there, and the caller may not read it.
    NotPermitted,
    /// A saved tree that does not hold it.
    NotSaved,
    /// It was not asked for; reading it costs something.
    NotAsked,
    /// It was there and could not be understood; a [`crate::Problem`] says where.
    Malformed,
    /// It changed while it was read, each time that it was tried.
    Moving,
    /// The formula has no value here, such as a share of nothing.
    Undefined,
    /// Reading it failed in another way; `detail` has the system's words.
    Failed,
}

impl Absence {
    /// An absence without a way out; add one by [`Absence::or`].
    pub fn new(source: impl Into<String>, why: AbsentWhy, detail: impl Into<String>) -> Absence {
        Absence { source: source.into(), why, detail: detail.into(), way_out: None }
    }

    /// The absence of what nobody has tried to read yet.
    pub fn unread() -> Absence {
        Absence::new("the machine", AbsentWhy::NotAsked, "not read")
    }

    /// The same absence with a way out.
    pub fn or(mut self, way_out: impl Into<String>) -> Absence {
        self.way_out = Some(way_out.into());
        self
    }

    /// The reason in one phrase: the detail, or the general words for its kind.
    pub fn reason(&self) -> &str {
        if !self.detail.is_empty() {
            return &self.detail;
        }
        match self.why {
            AbsentWhy::NotThere => "this kernel does not have it",
            AbsentWhy::NotPermitted => "permission denied",
            AbsentWhy::NotSaved => "not in the saved tree",
            AbsentWhy::NotAsked => "not asked for",
            AbsentWhy::Malformed => "could not be understood",
            AbsentWhy::Moving => "moving, not compared",
            AbsentWhy::Undefined => "undefined",
            AbsentWhy::Failed => "failed",
        }
    }
}
