//! The command line, typed and untouched: nothing is opened, asked or decided here.

use clap::{Parser, Subcommand};

use crate::cmd;

/// A laboratory and a control room for physical memory on Linux.
#[derive(Debug, Parser)]
#[command(version, after_help = after_help(), max_term_width = 80)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The state of this machine's physical memory, why it is so, and what to do
    Checkup(cmd::checkup::Args),
    /// Fragmentation indices of this machine, of a saved buddyinfo, or of an allocation-failure report
    Frag(cmd::frag::Args),
    /// This machine's memory files in one folder or archive, readable again with --root
    Capture(cmd::capture::Args),
    /// Undo what a killed pagelab left changed
    Restore(cmd::restore::Args),
}

fn after_help() -> String {
    format!("Exit codes:\n{}", crate::exit::Exit::table())
}
