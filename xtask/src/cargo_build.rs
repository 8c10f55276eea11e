//! Cargo builds, and the programs that they produced, from cargo's JSON messages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::child::{self, OutputMode};
use crate::tally::TaskError;
use crate::tree;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltProgram {
    pub package: String,
    pub folder: PathBuf,
    /// `lib`, `bin`, `test` or `bench`.
    pub kind: String,
    pub target: String,
    /// Whether it is a test program (or a bench) and not the product itself.
    pub is_test: bool,
    pub file: PathBuf,
}

impl BuiltProgram {
    /// `pagelab-formats tests/corpus`: what people know it by.
    pub fn display_name(&self) -> String {
        match self.kind.as_str() {
            "test" => format!("{} tests/{}", self.package, self.target),
            "bench" => format!("{} benches/{}", self.package, self.target),
            kind => format!("{} {kind}", self.package),
        }
    }

    /// A command that runs it as cargo would: in its package's folder, with the products' files named.
    pub fn command(&self, all: &[BuiltProgram]) -> Command {
        // A shell's background job ignores SIGINT, and `nohup` SIGHUP: tests begin with the defaults.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(&self.file);
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        for product in all.iter().filter(|program| program.kind == "bin" && !program.is_test) {
            command.env(format!("CARGO_BIN_EXE_{}", product.target), &product.file);
        }
        if let Some(corpus) = tree::corpus_folder() {
            command.env("PAGELAB_CORPUS", corpus);
        }
        command
    }
}

/// Runs cargo with `arguments`, which select what to build, and returns the programs.
pub fn build(arguments: &[&str], limit: Duration) -> Result<Vec<BuiltProgram>, TaskError> {
    let mut cargo = cargo_command();
    cargo.args(arguments).arg("--message-format=json-render-diagnostics");
    let outcome = child::run(&mut cargo, OutputMode::Progress, limit)?;
    if !outcome.is_success {
        return Err(TaskError::Message(format!("cargo {}: {}", arguments.join(" "), outcome.failure)));
    }
    Ok(outcome.stdout.iter().filter_map(|line| parse_program(line)).collect())
}

/// Builds all tests, and returns their programs and the debug binary.
pub fn build_tests(limit: Duration) -> Result<Vec<BuiltProgram>, TaskError> {
    build(&["test", "--workspace", "--no-run"], limit)
}

/// Builds the release binary.
pub fn build_pagelab(limit: Duration) -> Result<BuiltProgram, TaskError> {
    let products = build(&["build", "--release"], limit)?;
    let binary = products.into_iter().find(|program| program.target == "pagelab");
    binary.ok_or_else(|| TaskError::Message("no pagelab binary".to_owned()))
}

/// The cargo that started us, in the repository's root.
pub fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree::root());
    command
}

fn parse_program(line: &str) -> Option<BuiltProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let kind = message["target"]["kind"][0].as_str()?;
    Some(BuiltProgram {
        package: folder.file_name()?.to_string_lossy().into_owned(),
        folder,
        kind: kind.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        file: message["executable"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages_and_libraries_passed_over() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml","target":{"kind":["test"],"name":"fuzz"},"profile":{"test":true},"executable":"/t/fuzz-1"}"#;
        let found = parse_program(line).unwrap();
        assert_eq!((found.display_name(), found.is_test), ("a tests/fuzz".to_owned(), true));
        assert_eq!(found.file, Path::new("/t/fuzz-1"));
        assert_eq!(parse_program(&line.replace("\"/t/fuzz-1\"", "null")), None);
        assert_eq!(parse_program("   Compiling a"), None);
        assert_eq!(parse_program(r#"{"reason":"build-finished"}"#), None);
    }
}
