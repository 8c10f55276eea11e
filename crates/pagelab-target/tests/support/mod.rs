//! Support of this crate's tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pagelab_target::supervisor::{ProgramExit, SupervisedProgram};

/// A program of the tests' folder, compiled with these options too; `None` after saying that there is no
/// compiler.
pub fn compile_program(name: &str, options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
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
pub fn compile_threaded(name: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile_program(name, &["-pthread"]));
    built.as_ref().map(|(_, program)| program.as_path())
}

/// The end of a supervised program, which is near.
#[allow(dead_code, reason = "not every test supervises a program")]
pub fn wait_for_exit(program: &SupervisedProgram) -> ProgramExit {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(exit) = program.program_exit() {
            return exit;
        }
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}
