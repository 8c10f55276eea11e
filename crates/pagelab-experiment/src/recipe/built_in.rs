//! The recipes that come with pagelab.

/// A recipe that comes with pagelab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name, which is that of its file.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! recipes {
    ($($name:literal),* $(,)?) => {
        /// In the order in which they are listed.
        pub const BUILT_IN: &[BuiltIn] = &[
            $(BuiltIn { name: $name, text: include_str!(concat!("../../../../recipes/", $name, ".toml")) }),*
        ];
    };
}

recipes![
    "thp",
    "mmap-lab",
    "memory-size",
    "memory-size-programs",
    "fragmentation-cost",
    "fragment-compact",
    "external"
];

/// The recipe of this name.
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|recipe| recipe.name == name)
}
