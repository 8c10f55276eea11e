//! The corpus of other people's data.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder of the corpus, or `None` after a message that it is absent.
pub fn corpus_folder(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let folder = std::env::var_os("PAGELAB_CORPUS").map_or(beside, PathBuf::from).join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    // Not `eprintln`, which the test harness keeps to itself when the test passes.
    let line = format!("skipped: corpus-absent: {} is not there\n", folder.display());
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}
