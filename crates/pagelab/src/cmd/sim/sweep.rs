//! `pagelab sim sweep`: a grid over parameters, or random points of it; one run file is its journal.

use std::path::PathBuf;

use super::options::SimulationArgs;
use crate::exit::Failure;
use crate::output;
use crate::value_parsers::parse_bounded;
use pagelab_study::session::{resume, start};
use pagelab_study::sweep_plan::{SweepAxis, SweepRequest, parse_grid, parse_range};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Values of a factor: scheme, machine, load, kernelcore, or a parameter of the load
    #[arg(long, value_name = "NAME=VALUE,…", value_parser = parse_grid)]
    grid: Vec<SweepAxis>,
    /// With --random, range of an integer parameter of the load; without LOW..HIGH, 0.5 to 2 × its default.
    /// NAME all: every parameter
    #[arg(long, value_name = "NAME[=LOW..HIGH]", value_parser = parse_range, requires = "random")]
    range: Vec<SweepAxis>,
    /// Number of random points to run instead of the whole grid
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 1, 65_536>)]
    random: Option<u32>,
    /// Load, unless it is varied [default: highalloc]
    #[arg(long, value_name = "NAME")]
    load: Option<String>,
    /// Number of seeds, the same for all points; 6 or more give intervals [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 1, 1000>)]
    seeds: Option<u32>,
    /// Figure to judge by, as PHASE/NAME [default: the last success, else the last F_u]
    #[arg(long, value_name = "FIGURE")]
    by: Option<String>,
    /// Scheme, unless it is varied [default: standard]
    #[arg(long, alias = "policy", value_name = "SCHEME")]
    scheme: Option<String>,
    /// Resume an interrupted sweep; also a run file of compare or run
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grid", "range", "random", "seeds", "by",
        "scheme", "load", "machine", "kernelcore", "set", "seed", "output"])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    common: SimulationArgs,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab sim sweep --grid scheme=list,zone --grid machine=1G,4G,16G
  pagelab sim sweep --grid kernelcore=512M,768M,1G --scheme zone --seeds 6
  pagelab sim sweep --random 200 --grid scheme=list,mobility-6.1 \\
      --range builds=2..40 -o big.pagelab
  pagelab sim sweep --random 200 --range all   all parameters, 0.5 to 2 ×
  pagelab sim sweep --resume big.pagelab       resume after Ctrl-C or a kill

Each run is written as soon as it ends; without -o, to sweep-1.pagelab or the next free name. The report \
 ranks the parameters by influence and shows the best and worst points. docs/sim.md";

pub fn run(args: &Args) -> Result<u8, Failure> {
    let common = &args.common;
    if let Some(path) = &args.resume {
        return resume(path, &common.simulation_options());
    }
    let request = SweepRequest {
        grid: args.grid.clone(),
        ranges: args.range.clone(),
        random: args.random,
        scheme: args.scheme.clone(),
        load: args.load.clone(),
        choice: args.common.choice(),
        seeds: args.seeds,
        judged: args.by.clone(),
    };
    let (plan, ranges) = request.plan()?;
    let points = plan.points().len();
    if args.random.is_some_and(|count| points < count as usize) {
        output::warn(&format!("note: there are only {points} distinct points"));
    }
    if !ranges.is_empty() {
        output::print_note(&format!("random: {}; other parameters have their defaults", ranges.join(", ")));
    }
    // A sweep is long: its results are always kept.
    start(plan, &common.simulation_options().with_run_file("sweep"))
}
