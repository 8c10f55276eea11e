//! `pagelab compare`: the same experiment in several runs, side by side.

use std::io::Write;
use std::path::PathBuf;

use pagelab_metrics::compare::compare;
use pagelab_model::experiment::Experiment;
use pagelab_model::run::Run;
use pagelab_report::compare::{View, letter, render};
use pagelab_report::json;
use pagelab_runfile::Reader;

use super::report::refusal;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `compare` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files of the same experiment; the others are compared with the first
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Every measure and every difference, not the summary alone
    #[arg(short, long)]
    verbose: bool,
    /// Everything as one JSON document (docs/json.md)
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab compare before.pagelab after.pagelab
  pagelab compare -v linux-6.12.pagelab linux-6.18.pagelab vm.pagelab

What differs between machines, kernels and settings comes first. Then a row for each measure and a column \
for each run, with the ratio to the first run, its interval and a verdict.

Only what is the same in all runs is compared: workloads of one name with one command and one input, \
variants of one name with one set of settings. What is not is named with its reason. The exit code is 3 if \
nothing can be compared.

docs/compare.md says how the intervals are made and what each verdict means.";

/// Reads all files, and compares what they have in common.
pub fn run(args: &Args) -> Outcome {
    let mut runs = Vec::new();
    for file in &args.files {
        let read = Reader::open(file).and_then(|reader| reader.run());
        runs.push(read.map_err(|error| refusal(&error))?);
    }
    let mut experiments: Vec<(String, &Experiment)> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let Some(experiment) = run.experiment.as_deref() else {
            let message = format!(
                "{}: the run is no experiment but {}: `pagelab compare` takes what `pagelab run` writes",
                run.name, run.manifest.kind
            );
            return Err(Failure::new(Exit::BadInput, message));
        };
        experiments.push((letter(at), experiment));
    }
    let named: Vec<(&str, &Experiment)> = experiments.iter().map(|(name, of)| (name.as_str(), *of)).collect();
    let found = compare(&named).map_err(|refused| nothing(&runs, &refused))?;
    let mut out = out::stdout();
    if args.json {
        let text = json::to_text(&json::compare::document(&runs, &found));
        let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
        out.write_all(text.as_bytes())?;
    } else {
        let view = View { verbose: args.verbose };
        out.write_all(render(&runs, &found, view, out::style()).as_bytes())?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

/// Nothing is the same in all runs.
fn nothing(runs: &[Run], refused: &[String]) -> Failure {
    const SHOWN: usize = 8;
    let mut reasons: Vec<&str> = refused.iter().take(SHOWN).map(String::as_str).collect();
    if reasons.is_empty() {
        reasons.push("no trial of what they have in common ended as it should");
    }
    let names: Vec<String> =
        runs.iter().enumerate().map(|(at, run)| format!("{} is {}", letter(at), run.name)).collect();
    let message = format!(
        "nothing can be compared: {}; {}: give runs of one recipe",
        reasons.join("; "),
        names.join(", ")
    );
    Failure::new(Exit::BadInput, message)
}
