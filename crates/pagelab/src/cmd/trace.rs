//! `pagelab trace`: recording and reading of page allocator traces.

pub mod info;
mod record;

use crate::exit::Failure;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: TraceAction,
}

const EXAMPLES: &str = "\
Examples:
  pagelab trace record -o t.pagelab --for 30s    each allocation and free (root)
  pagelab trace record -o t.pagelab -- make -j2
  pagelab trace info t.pagelab                   summarize it

docs/trace.md describes what is recorded, its overhead and its limits.";

#[derive(Debug, clap::Subcommand)]
enum TraceAction {
    /// Record every page allocation and free to a run file
    Record(record::Args),
    /// Show the contents of a trace
    Info(info::Args),
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        TraceAction::Record(args) => record::run(args),
        TraceAction::Info(args) => info::run(args).map(|exit| exit as u8),
    }
}
