//! `pagelab sim`: the page-allocator simulator.

mod bench;

use crate::exit::Outcome;

/// What `sim` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  pagelab sim bench                              allocators of 16 GiB
  pagelab sim bench --memory 1G --memory 256G --json
  pagelab sim bench --memory 1T --engine memory --engine compact --load order0
  pagelab sim bench --memory 16T --engine drawn

What is simulated, and after which kernel: docs/sim.md.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// How fast the simulated allocators are, side by side in one run
    Bench(bench::Args),
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Bench(args) => bench::run(args),
    }
}
