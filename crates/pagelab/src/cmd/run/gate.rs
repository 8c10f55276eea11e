//! `pagelab gate`, internal: the first process of a trial, and the processes beside a trial.

use std::ffi::OsString;

use clap::Parser;
use pagelab_experiment::{gate, run_keeper};
use pagelab_host::orphan_keeper;
use pagelab_model::Bytes;

use crate::cli::{self, Cli};
use crate::cmd;
use crate::exit::Failure;

/// Arguments of a trial's process.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Disable THP for this process: never-prctl, advised-only
    #[arg(long, value_name = "MODE")]
    thp: Option<String>,

    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,

    /// Be a competitor that uses this many bytes
    #[arg(long, value_name = "BYTES")]
    hog: Option<u64>,

    /// Be the first process that the OOM killer kills
    #[arg(long)]
    killed_first: bool,

    /// Start a thread that competes for this many bytes
    #[arg(long, value_name = "BYTES")]
    hog_thread: Option<u64>,

    /// Keep other tasks off this CPU until standard input ends
    #[arg(long, value_name = "N")]
    keep_off: Option<u32>,

    /// Kill the processes that standard input names when it ends
    #[arg(long)]
    keep_orphans: bool,

    /// Execute this program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs it. The exit code is the program's, or that of a shell that cannot start it.
pub fn run(args: Args) -> Result<u8, Failure> {
    if args.keep_orphans {
        orphan_keeper::keep_orphans(std::io::stdin().lock());
        return Ok(0);
    }
    if let Some(cpu) = args.keep_off {
        return Ok(run_keeper(cpu));
    }
    if let Some(bytes) = args.hog {
        return Ok(gate::run_hog(Bytes(bytes)));
    }
    let Some(bytes) = args.hog_thread else {
        return Ok(gate::run_gate(args.thp.as_deref(), args.cpu, args.killed_first, &args.command));
    };
    if gate::start_hog_thread(Bytes(bytes)).is_err() {
        return Ok(gate::EXIT_CANNOT_START);
    }
    // The workload runs in this process, next to the thread.
    match Cli::try_parse_from(args.command) {
        Ok(arguments) => cmd::run(arguments),
        Err(error) => Ok(cli::report_usage_error(&error) as u8),
    }
}
