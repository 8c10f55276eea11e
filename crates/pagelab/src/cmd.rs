//! Commands: one module each, from parsed arguments to an exit code.

pub mod apply;
pub mod can;
pub mod capture;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod frag;
pub mod fragment;
pub mod guest;
pub mod import;
pub mod map;
pub mod plan;
pub mod profile;
pub mod recipes;
pub mod record;
pub mod report;
pub mod restore;
pub mod run;
pub mod sim;
pub mod trace;
pub mod tune;
pub mod usage;
pub mod watch;
pub mod workload;

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::cli::{Cli, Command};
pub use pagelab_command::arguments::open_root;
pub use pagelab_command::exit::usage_error;

pub use pagelab_target::program::find_program;

use crate::exit::Failure;

/// Runs the command, and returns its exit code: one of the table, or that of a command in a guest.
pub fn run(cli: Cli) -> Result<u8, Failure> {
    let ended = match cli.command {
        Command::Apply(args) => return apply::run(&args),
        Command::Supervise(args) => apply::supervise(&args),
        Command::Can(args) => can::run(&args),
        Command::Checkup(args) => checkup::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Frag(args) => frag::run(&args),
        Command::Fragment(args) => return fragment::run(&args),
        Command::Guest(args) => return guest::run(&args),
        Command::Record(args) => return record::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Map(args) => map::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Watch(args) => return watch::run(&args),
        Command::Run(args) => return run::run(&args),
        Command::Sim(args) => return sim::run(&args),
        Command::Trace(args) => return trace::run(&args),
        Command::Profile(args) => return profile::run(&args),
        Command::Tune(args) => return tune::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Recipes(args) => recipes::run(&args),
        Command::Gate(args) => return run::gate::run(args),
        Command::Trial(args) => run::trial::run(&args),
        Command::Workload(args) => workload::run(&args),
    };
    ended.map(|exit| exit as u8)
}

/// Error of a NUMA node that this machine does not have.
fn unknown_node(node: u32, known: &BTreeSet<u32>) -> Failure {
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    usage_error(&format!("unknown node `{node}`; expected one of {}", known.join(", ")))
}

/// The words of a command as text.
fn parse_command(words: &[OsString]) -> Result<Vec<String>, Failure> {
    let text = |word: &OsString| match word.to_str() {
        Some(word) => Ok(word.to_owned()),
        None => Err(usage_error(&format!("{}: expected UTF-8 text", word.to_string_lossy()))),
    };
    words.iter().map(text).collect()
}
