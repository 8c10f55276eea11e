//! What the tests of this crate share.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A program of the tests' folder, compiled with these options too; `None` after saying that there is no
/// compiler.
pub fn built(name: &str, options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().expect("a folder for the program");
    let program = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-o"]).arg(&program).arg(source).args(options);
    match cc.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some((folder, program))
        }
        Err(error) => {
            eprintln!("skipped: no-cc: {error}");
            None
        }
    }
}

/// A test's program with threads, compiled once; `None` after saying that there is no compiler.
#[allow(dead_code, reason = "not every test has such a program")]
pub fn threaded(name: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| built(name, &["-pthread"]));
    built.as_ref().map(|(_, program)| program.as_path())
}
