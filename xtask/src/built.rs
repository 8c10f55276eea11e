//! Asking cargo to build, and learning from its JSON messages which programs came out of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::child::{self, Show};
use crate::tally::Failed;
use crate::tree;

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The package it belongs to.
    pub package: String,
    /// The folder of that package.
    pub folder: PathBuf,
    /// `lib`, `bin`, `test` or `bench`.
    pub kind: String,
    /// The target's name.
    pub target: String,
    /// Whether it is a test program (or a bench) and not the product itself.
    pub is_test: bool,
    /// The file to run.
    pub file: PathBuf,
}

impl Program {
    /// `pagelab-formats tests/corpus`: what people know it by.
    pub fn name(&self) -> String {
        match self.kind.as_str() {
            "test" => format!("{} tests/{}", self.package, self.target),
            "bench" => format!("{} benches/{}", self.package, self.target),
            kind => format!("{} {kind}", self.package),
        }
    }

    /// A command that runs it as cargo would: in its package's folder, with the products' files named.
    pub fn command(&self, all: &[Program]) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        for product in all.iter().filter(|program| program.kind == "bin" && !program.is_test) {
            command.env(format!("CARGO_BIN_EXE_{}", product.target), &product.file);
        }
        if let Some(corpus) = tree::corpus() {
            command.env("PAGELAB_CORPUS", corpus);
        }
        command
    }
}

/// Runs cargo with `arguments`, which say what to build, and returns the programs.
pub fn build(arguments: &[&str], limit: Duration) -> Result<Vec<Program>, Failed> {
    let mut cargo = cargo();
    cargo.args(arguments).arg("--message-format=json-render-diagnostics");
    let ran = child::run(&mut cargo, Show::Progress, limit)?;
    if !ran.ok {
        return Err(Failed::Because(format!("cargo {}: {}", arguments.join(" "), ran.ending)));
    }
    Ok(ran.stdout.iter().filter_map(|line| program(line)).collect())
}

/// The cargo that started us, in the repository's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree::root());
    command
}

fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let kind = message["target"]["kind"][0].as_str()?;
    Some(Program {
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
        let found = program(line).unwrap();
        assert_eq!((found.name(), found.is_test), ("a tests/fuzz".to_owned(), true));
        assert_eq!(found.file, Path::new("/t/fuzz-1"));
        assert_eq!(program(&line.replace("\"/t/fuzz-1\"", "null")), None);
        assert_eq!(program("   Compiling a"), None);
        assert_eq!(program(r#"{"reason":"build-finished"}"#), None);
    }
}
