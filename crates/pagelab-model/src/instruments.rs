//! Instruments that work on this machine, and for each other one the reason and a hint.

use std::borrow::Cow;

use crate::{Absence, Reading};

use serde::{Deserialize, Serialize};

/// One instrument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instrument {
    /// A short name, the same in text and JSON: `hardware_counters`, `kpageflags` …
    pub name: Cow<'static, str>,
    /// Its purpose, in a phrase.
    pub purpose: Cow<'static, str>,
    /// The result of the check, or the reason why it does not work.
    pub state: Reading<String>,
}

impl Instrument {
    /// Reason why it does not work, if it does not.
    pub fn absence(&self) -> Option<&Absence> {
        self.state.as_ref().err()
    }
}
