//! `pagelab trace`: traces of the page allocator, recorded and read.

pub mod info;
mod names;
mod record;
mod session;
mod through;
mod words;

use pagelab_runfile::Error;

use crate::cmd::report;
use crate::exit::Failure;

/// What `trace` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  pagelab trace record -o t.pagelab --for 30s    each allocation and free (root)
  pagelab trace record -o t.pagelab -- make -j2
  pagelab trace info t.pagelab                   what is in it

What is recorded, what it costs and what it cannot see: docs/trace.md.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Each allocation and free of the whole machine, into a run file
    Record(record::Args),
    /// What a trace holds
    Info(info::Args),
}

/// A trace that cannot be read, and what makes one.
pub fn refusal(error: &Error) -> Failure {
    report::refusal_by(error, "`pagelab trace record -o FILE`")
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        What::Record(args) => record::run(args),
        What::Info(args) => info::run(args).map(|exit| exit as u8),
    }
}
