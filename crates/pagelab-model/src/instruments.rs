//! Which instruments work on this machine, and for each that does not, why and how to get it.

use std::borrow::Cow;

use crate::{Absence, Reading};

use serde::{Deserialize, Serialize};

/// One instrument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instrument {
    /// A short name, the same in text and JSON: `hardware_counters`, `kpageflags` …
    pub name: Cow<'static, str>,
    /// What it is good for, in a phrase.
    pub purpose: Cow<'static, str>,
    /// What was found, or why it does not work.
    pub state: Reading<String>,
}

impl Instrument {
    /// Why it does not work, if it does not.
    pub fn absence(&self) -> Option<&Absence> {
        self.state.as_ref().err()
    }
}
