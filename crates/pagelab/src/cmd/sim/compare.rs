//! `pagelab sim compare`: schemes side by side under one load, with the same seeds.

use super::options::{Common, Repeated, check_kernelcore, once, plan, seeds};
use super::session::begin;
use crate::bounds;
use crate::exit::Failure;

/// Seeds, where nobody says how many: enough for intervals.
const SEEDS: u32 = 20;

/// What `sim compare` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Schemes, the first of which the others are compared with
    #[arg(
        long,
        value_name = "SCHEME,…",
        value_delimiter = ',',
        default_value = "standard,list,zone,zone+linear"
    )]
    policies: Vec<String>,
    #[command(flatten)]
    repeated: Repeated,
    /// Pictures of memory to keep, of each scheme's first seed
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = bounds::small::<0, 1000>
    )]
    pictures: u32,
    #[command(flatten)]
    common: Common,
}

const AFTER_HELP: &str = "\
A scheme is a policy and what is added to it, joined by +: zone+linear is the \
standard policy with a zone for movable pages and linear reclaim.

Examples:
  pagelab sim list                               what there is
  pagelab sim compare --load highalloc --seeds 20
  pagelab sim compare --policies list,zone --kernelcore 768M
  pagelab sim compare --machine ppc64 -o p.pagelab

Seed by seed, all schemes get the same requests, so that a difference is \
theirs. The same seeds give the same bytes on any machine and number of \
threads. docs/sim.md";

/// Compares.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let schemes: Vec<&str> = args.policies.iter().map(|name| name.trim()).collect();
    once("--policies", &schemes)?;
    let cells = schemes.iter().map(|scheme| args.common.cell(scheme, args.repeated.load()));
    let cells: Vec<_> = cells.collect::<Result<_, _>>()?;
    check_kernelcore(&cells)?;
    let seeds = seeds(args.common.first_seed(), args.repeated.seeds.unwrap_or(SEEDS))?;
    begin(plan("compare", cells, seeds, args.pictures), &args.common.shown.how())
}
