//! `cargo xtask guest`: a command line of the release binary in a guest, for people.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::built;
use crate::phases;
use crate::tally::Failed;

/// Builds the release binary and has it run the rest as `pagelab guest run --verbose`. The terminal is the
/// command's own, and so is the exit code.
pub fn run(words: &[&str]) -> Result<(), Failed> {
    let products = built::build(&["build", "--release"], phases::whole())?;
    let binary = products.into_iter().find(|program| program.target == "pagelab");
    let Some(binary) = binary else { return Err(Failed::Because("there is no pagelab".to_owned())) };
    // In our place: a signal that is meant for it meets it, and nothing of it outlives us.
    Err(Command::new(&binary.file).args(["guest", "run", "--verbose"]).args(words).exec().into())
}
