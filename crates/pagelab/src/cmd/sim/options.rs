//! Shared options of `run`, `compare` and `sweep`.

use std::num::NonZero;

use pagelab_model::{Bytes, size};

use crate::output_args::OutputArgs;
use crate::value_parsers;
use pagelab_study::session::SimulationOptions;
use pagelab_study::simulation_plan::{SimulationChoice, parse_number};

/// Options of the simulation.
#[derive(Debug, clap::Args)]
#[command(mut_arg("output", |arg| arg.help("Write all results to this run file, for `pagelab report`")))]
pub struct SimulationArgs {
    /// Machine: x86 or ppc64 of Gorman and Whitcroft 2006, or a memory size for x86-64, for example 16G
    /// [default: x86]
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Size of kernelcore, for schemes with a movable zone [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_nonzero)]
    pub kernelcore: Option<Bytes>,
    /// Parameter of the load; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, u64)>,
    /// First seed; the others follow [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parsers::parse_seed)]
    pub seed: Option<u64>,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = value_parsers::parse_thread_count)]
    pub threads: Option<NonZero<usize>>,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Print all figures and differences
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,
}

/// `builds=7`, `cache=64M`
fn parse_setting(text: &str) -> Result<(String, u64), String> {
    let wanted = || "expected NAME=VALUE with an integer, for example builds=7".to_owned();
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wanted)?;
    Ok((name.to_owned(), parse_number(value).ok_or_else(wanted)?))
}

impl SimulationArgs {
    pub fn choice(&self) -> SimulationChoice {
        SimulationChoice {
            machine: self.machine.clone(),
            kernelcore: self.kernelcore,
            parameters: self.set.clone(),
            seed: self.seed,
        }
    }

    pub fn simulation_options(&self) -> SimulationOptions {
        SimulationOptions {
            output: self.output.run_file(),
            is_name_generated: false,
            threads: self.threads,
            json: self.json,
            verbose: self.verbose,
        }
    }
}
