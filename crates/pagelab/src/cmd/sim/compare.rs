//! `pagelab sim compare`: comparison of schemes under one load, with the same seeds.

use super::options::SimulationArgs;
use crate::exit::Failure;
use crate::value_parsers::parse_bounded;
use pagelab_study::catalogue::reject_duplicates;
use pagelab_study::session::start;
use pagelab_study::simulation_plan::{DEFAULT_LOAD, build_plan, check_kernelcore, seed_range};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Schemes; the first is the baseline
    #[arg(
        long,
        alias = "policies",
        value_name = "SCHEME,…",
        value_delimiter = ',',
        default_value = "standard,list,zone,zone+linear"
    )]
    schemes: Vec<String>,
    /// Load
    #[arg(long, value_name = "NAME", default_value = DEFAULT_LOAD)]
    load: String,
    /// Number of seeds, the same for all schemes; 6 or more give intervals
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = parse_bounded::<u32, 1, 1000>)]
    seeds: u32,
    /// Number of memory pictures to keep, for the first seed of each scheme
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_bounded::<u32, 0, 1000>)]
    pictures: u32,
    #[command(flatten)]
    common: SimulationArgs,
}

const AFTER_HELP: &str = "\
A scheme is a policy and its options, joined by +: zone+linear is the standard policy with a movable zone \
 and linear reclaim.

Examples:
  pagelab sim list                               list all names
  pagelab sim compare --load highalloc --seeds 20
  pagelab sim compare --schemes list,zone --kernelcore 768M
  pagelab sim compare --machine ppc64 -o p.pagelab

For each seed, all schemes get the same requests. The output for a seed is the same on any machine and with \
 any number of threads. docs/sim.md";

pub fn run(args: &Args) -> Result<u8, Failure> {
    let schemes: Vec<&str> = args.schemes.iter().map(|name| name.trim()).collect();
    reject_duplicates("--schemes", &schemes)?;
    let choice = args.common.choice();
    let cells = schemes.iter().map(|scheme| choice.build_cell(scheme, &args.load));
    let cells: Vec<_> = cells.collect::<Result<_, _>>()?;
    check_kernelcore(&cells)?;
    let seeds = seed_range(choice.first_seed(), args.seeds)?;
    start(build_plan("compare", cells, seeds, args.pictures), &args.common.simulation_options())
}
