//! A sysfs setting that lists its options and brackets the chosen one: `always [madvise] never`.

/// The options of a setting and which one is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// All options in the kernel's order.
    pub options: Vec<String>,
    /// Index of the bracketed option in `options`; a file that brackets none is malformed.
    pub selected: usize,
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
