//! A sysfs setting that lists its options and brackets the chosen one: `always [madvise] never`.

use serde::{Deserialize, Serialize};

/// The options of a setting and which one is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredChoice")]
pub struct Choice {
    /// All options in the kernel's order.
    pub options: Vec<String>,
    /// Index of the bracketed option in `options`; a file that brackets none is malformed.
    pub selected: usize,
}

/// A choice as it was stored, not yet believed.
#[derive(Deserialize)]
struct StoredChoice {
    options: Vec<String>,
    selected: usize,
}

impl TryFrom<StoredChoice> for Choice {
    type Error = &'static str;

    fn try_from(stored: StoredChoice) -> Result<Choice, Self::Error> {
        let StoredChoice { options, selected } = stored;
        let is_offered = selected < options.len();
        is_offered.then_some(Choice { options, selected }).ok_or("the option in force is not in the list")
    }
}

impl Choice {
    /// The option in force.
    pub fn selected(&self) -> &str {
        &self.options[self.selected]
    }

    /// Whether the kernel offers `option` at all: the presence of a word, not a version, is the probe.
    pub fn offers(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}
