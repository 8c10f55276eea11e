//! `pagelab gate`, which is not for people: what an experiment starts as its trials' first processes, and the
//! processes beside them.

use std::ffi::OsString;

use clap::Parser;
use pagelab_experiment::{gate, keep_off};
use pagelab_model::Bytes;

use crate::cli::{self, Cli};
use crate::cmd;
use crate::exit::Failure;

/// What a trial's process is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Switch huge pages off for this process: never-prctl, advised-only
    #[arg(long, value_name = "MODE")]
    thp: Option<String>,

    /// Stay on this CPU
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,

    /// Be a competitor for so many bytes
    #[arg(long, value_name = "BYTES")]
    hog: Option<u64>,

    /// Have the kernel kill this process before all others
    #[arg(long)]
    killed_first: bool,

    /// Have a thread that is a competitor for so many bytes
    #[arg(long, value_name = "BYTES")]
    hog_thread: Option<u64>,

    /// Keep everybody off this CPU until standard input ends
    #[arg(long, value_name = "N")]
    keep_off: Option<u32>,

    /// Become this program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Does it. The exit code is the program's, or that of a shell that cannot start one.
pub fn run(args: Args) -> Result<u8, Failure> {
    if let Some(cpu) = args.keep_off {
        return Ok(keep_off(cpu));
    }
    if let Some(bytes) = args.hog {
        return Ok(gate::hog(Bytes(bytes)));
    }
    let Some(bytes) = args.hog_thread else {
        return Ok(gate::pass(args.thp.as_deref(), args.cpu, args.killed_first, &args.command));
    };
    if gate::hog_thread(Bytes(bytes)).is_err() {
        return Ok(gate::CODE_CANNOT_START);
    }
    // The workload runs in this process, beside the thread.
    match Cli::try_parse_from(args.command) {
        Ok(arguments) => cmd::run(arguments),
        Err(error) => Ok(cli::refused(&error) as u8),
    }
}
