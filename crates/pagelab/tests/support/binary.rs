//! The pagelab binary that end-to-end tests run.

use std::sync::LazyLock;

/// The absolute path in `PAGELAB_BIN`, else the debug binary that cargo built beside the tests.
///
/// `cargo xtask test` names the release binary there, which is several times faster. It names none for the
/// programs that test bad input: in the debug binary, integer overflow panics.
pub fn binary() -> &'static str {
    static BINARY: LazyLock<String> = LazyLock::new(|| {
        let named = std::env::var("PAGELAB_BIN").ok().filter(|named| !named.is_empty());
        named.unwrap_or_else(|| env!("CARGO_BIN_EXE_pagelab").to_owned())
    });
    &BINARY
}
