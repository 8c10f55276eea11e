//! `pagelab sim`: the page-allocator simulator.

mod bench;
mod compare;
mod demo;
mod list;
mod options;
mod replay;
pub mod run;
mod sweep;

use crate::exit::Failure;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: SimAction,
}

const EXAMPLES: &str = "\
Examples:
  pagelab sim list                           policies, machines, loads
  pagelab sim run highalloc --scheme zone    one load under one scheme
  pagelab sim compare --schemes standard,list,zone --seeds 20
  pagelab sim sweep --grid scheme=list,zone --grid machine=1G,4G
  pagelab sim run paper                      tests of Gorman and Whitcroft 2006
  pagelab sim run anti-fragmentation         the same under five schemes
  pagelab sim bench                          speed of the engines with 16 GiB
  pagelab sim bench --memory 1T --engine memory --engine compact --load order0
  pagelab sim bench --load bulk              the load of LLFree's benchmark
  pagelab sim demo                           an allocator step by step
  pagelab sim replay t.pagelab --policy mobility,standard

docs/sim.md describes what is simulated, and which kernel versions it models.";

#[derive(Debug, clap::Subcommand)]
enum SimAction {
    /// Run one load under one scheme, or a simulator recipe
    Run(run::Args),
    /// Compare schemes under one load, with the same seeds
    Compare(compare::Args),
    /// Sweep a parameter grid, or random points of it; can be resumed
    Sweep(sweep::Args),
    /// List policies, machines and loads
    List(list::Args),
    /// Measure the speed of the simulated allocators, interleaved in one run
    Bench(bench::Args),
    /// Step through a small memory, on the terminal or as an HTML page
    Demo(demo::Args),
    /// Replay a recorded trace of the page allocator under simulated policies
    Replay(replay::Args),
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        SimAction::Run(args) => run::run(args),
        SimAction::Compare(args) => compare::run(args),
        SimAction::Sweep(args) => sweep::run(args),
        SimAction::List(args) => list::run(args),
        SimAction::Bench(args) => bench::run(args).map(|exit| exit as u8),
        SimAction::Demo(args) => demo::run(args).map(|exit| exit as u8),
        SimAction::Replay(args) => replay::run(args).map(|exit| exit as u8),
    }
}
