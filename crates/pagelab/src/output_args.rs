//! `-o/--output` and `--force` of the commands that write files.

use std::path::{Path, PathBuf};

use crate::atomic_file::NewRunFile;
use crate::cmd::usage_error;
use crate::exit::Failure;

/// Output of a command.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// Run file to create
    #[arg(short, long, value_name = "FILE", alias = "run")]
    output: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
}

/// Whether existing files are replaced.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct ForceArgs {
    /// Replace existing output files
    #[arg(long)]
    pub force: bool,
}

impl OutputArgs {
    /// The path of `--output`.
    pub fn path(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Whether existing files are replaced.
    pub fn replaces(&self) -> bool {
        self.replacement.force
    }

    /// The run file, if one is given.
    pub fn run_file(&self) -> Option<NewRunFile> {
        let new = |path: &PathBuf| NewRunFile { path: path.clone(), replaces: self.replaces() };
        self.output.as_ref().map(new)
    }

    /// The run file of a command that requires one.
    pub fn required_run_file(&self) -> Result<NewRunFile, Failure> {
        self.run_file().ok_or_else(|| usage_error("no output file given: add --output FILE"))
    }
}
