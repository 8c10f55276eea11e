//! Support of end-to-end tests: the real binary in a fresh directory, and the corpus.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]

mod binary;
pub mod made_trace;
pub mod running;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use binary::binary;
use serde_json::Value;

/// Exit code and output of a run of pagelab.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A fresh directory to run pagelab in.
pub struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    /// An empty one.
    pub fn new() -> Lab {
        Lab { dir: tempfile::tempdir().unwrap() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file, and the directories above it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// The binary, to be run here, without an environment that could colour its output.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(self.path()).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        pagelab_sys::spawn::reset_signals(&mut command);
        command
    }

    /// Runs the binary to its end, `input` on its standard input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> CommandOutput {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // The other end may be closed early; that is the child's affair.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a shell script here, `$0` being the binary, with a disk of this size mounted at `disk` where only
    /// the script sees it; `None` after saying why that cannot be done.
    pub fn run_with_small_disk(&self, size: &str, script: &str) -> Option<CommandOutput> {
        std::fs::create_dir(self.path().join("disk")).unwrap();
        let script = format!("mount -t tmpfs -o size={size} none disk || exit 99\n{script}");
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", &script, binary()])
            .current_dir(self.path())
            .output()
            .unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.code() == Some(99) || err.contains("unshare:") {
            eprintln!("skipped: no-mount: {}", err.trim());
            return None;
        }
        Some(CommandOutput { code: output.status.code(), out, err })
    }

    /// Runs the binary to its end, nothing on its standard input.
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        self.run_with(args, b"")
    }
}

/// The corpus of real data, if it is on this machine; else the skip is printed.
pub fn corpus() -> Option<PathBuf> {
    let named = std::env::var_os("PAGELAB_CORPUS").map(PathBuf::from);
    let path = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"));
    if path.join("README.md").is_file() {
        return Some(path);
    }
    eprintln!("skipped: corpus-absent: {} is not there", path.display());
    None
}

/// Names of all fields of a document, at any depth.
pub fn collect_fields(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            into.insert(name.clone());
            collect_fields(value, into);
        }),
        Value::Array(items) => items.iter().for_each(|item| collect_fields(item, into)),
        _ => {}
    }
}
