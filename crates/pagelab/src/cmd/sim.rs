//! `pagelab sim`: the page-allocator simulator.

mod bench;
mod catalogue;
mod compare;
mod demo;
mod list;
mod options;
mod pool;
mod progress;
mod replay;
pub mod run;
pub mod session;
mod sweep;

use crate::exit::Failure;

/// What `sim` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  pagelab sim list                               policies, machines, loads
  pagelab sim run highalloc --policy zone        one load under one scheme
  pagelab sim compare --policies standard,list,zone --seeds 20
  pagelab sim sweep --grid scheme=list,zone --grid machine=1G,4G
  pagelab sim run paper                          a paper's tests, on one boot
  pagelab sim run anti-fragmentation             the same under five schemes
  pagelab sim bench                              allocators of 16 GiB
  pagelab sim bench --memory 1T --engine memory --engine compact --load order0
  pagelab sim bench --load bulk                  what LLFree's own bench does
  pagelab sim demo                               how one works, step by step
  pagelab sim replay t.pagelab --policy mobility,standard

What is simulated, and after which kernel: docs/sim.md.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// One load under one scheme, or a recipe of the simulator
    Run(run::Args),
    /// Schemes side by side under one load, with the same seeds
    Compare(compare::Args),
    /// A grid over parameters, or points drawn from it; can be gone on with
    Sweep(sweep::Args),
    /// The policies, machines and loads that there are
    List(list::Args),
    /// How fast the simulated allocators are, side by side in one run
    Bench(bench::Args),
    /// A small memory step by step, for learners: in the terminal or as a page
    Demo(demo::Args),
    /// A recorded trace of the page allocator under simulated policies
    Replay(replay::Args),
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        What::Run(args) => run::run(args),
        What::Compare(args) => compare::run(args),
        What::Sweep(args) => sweep::run(args),
        What::List(args) => list::run(args),
        What::Bench(args) => bench::run(args).map(|exit| exit as u8),
        What::Demo(args) => demo::run(args).map(|exit| exit as u8),
        What::Replay(args) => replay::run(args).map(|exit| exit as u8),
    }
}
