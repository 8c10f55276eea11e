//! `pagelab compare`: compares runs of one experiment.

use std::path::PathBuf;

use pagelab_metrics::compare::compare_runs;
use pagelab_model::experiment::Experiment;
use pagelab_model::run::Run;
use pagelab_report::compare::{render, run_letter};
use pagelab_report::json;
use pagelab_runfile::RunReader;

use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files of one experiment; the first is the reference
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print every measure and every difference
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON (docs/json.md)
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab compare before.pagelab after.pagelab
  pagelab compare -v linux-6.12.pagelab linux-6.18.pagelab vm.pagelab

Differences between machines, kernels and settings are listed first, followed by a table with one row per \
 measure and one column per run: the ratio to the first run, its interval and a verdict.

Only matching parts are compared: workloads with the same name, command and input, and variants with the \
 same name and settings. Everything else is listed with the reason. The exit code is 3 if nothing can be \
 compared.

docs/compare.md describes the intervals and the verdicts.";

/// Reads all files, and compares their common parts.
pub fn run(args: &Args) -> Outcome {
    let mut runs = Vec::new();
    for file in &args.files {
        runs.push(RunReader::open(file)?.read_run()?);
    }
    let letters: Vec<String> = (0..runs.len()).map(run_letter).collect();
    let mut experiments: Vec<(&str, &Experiment)> = Vec::new();
    for (run, letter) in runs.iter().zip(&letters) {
        let Some(experiment) = run.experiment.as_deref() else {
            let failure = Failure::expected(&run.name, "an experiment", &run.manifest.kind);
            return Err(failure.hint("`pagelab compare` reads run files of `pagelab run`"));
        };
        // Its measures are differences paired by seed, in several phases, and its sweeps are sparse.
        if experiment.plan.is_simulated() {
            let failure = Failure::expected(&run.name, "an experiment on a real machine", "simulations");
            return Err(failure.hint("`pagelab sim compare` compares schemes"));
        }
        experiments.push((letter.as_str(), experiment));
    }
    let comparison = compare_runs(&experiments).map_err(|refused| nothing_in_common(&runs, &refused))?;
    if args.json {
        output::print_json(&json::compare::to_document(&runs, &comparison))?;
    } else {
        output::print(&render(&runs, &comparison, args.verbose, output::stdout_style()))?;
    }
    Ok(Exit::Success)
}

/// Returns the failure for runs without a common part.
fn nothing_in_common(runs: &[Run], refused: &[String]) -> Failure {
    const SHOWN_MAX: usize = 8;
    let mut reasons: Vec<&str> = refused.iter().take(SHOWN_MAX).map(String::as_str).collect();
    if reasons.is_empty() {
        reasons.push("the runs have no successful trial in common");
    }
    let names: Vec<String> =
        runs.iter().enumerate().map(|(at, run)| format!("{} ({})", run.name, run_letter(at))).collect();
    let action = format_args!("compare {}", names.join(" with "));
    Failure::cannot(FailureKind::BadInput, action, reasons.join("; ")).hint("compare runs of the same recipe")
}
