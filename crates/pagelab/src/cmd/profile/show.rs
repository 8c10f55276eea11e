//! `pagelab profile show`: the regions of a profile.

use std::path::{Path, PathBuf};

use clap::ArgAction;
use pagelab_model::TlbProfile;
use pagelab_report::json;
use pagelab_report::profile::{self, View, render};
use pagelab_tune::profile_source::read_run_file;

use crate::atomic_file::check_output;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::output_args::ForceArgs;
use crate::value_parsers::{Choice, choice};

const EXAMPLES: &str = "\
Examples:
  pagelab profile show server.profile.pagelab           a row for each region
  pagelab profile show -v server.profile.pagelab        all regions
  pagelab profile show --html a.html server.profile.pagelab
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run file with the profile
    file: PathBuf,
    /// Unit of the rows
    #[arg(long = "by", value_name = "BY", default_value = "region",
        action = ArgAction::Set, value_parser = choice(&ROWS))]
    by_cell: bool,
    /// Print all regions and all unobserved ranges
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON (docs/json.md)
    #[arg(long, conflicts_with_all = ["csv", "verbose"])]
    json: bool,
    /// Print the regions as CSV
    #[arg(long, conflicts_with = "verbose")]
    csv: bool,
    /// Write text and heat map as one self-contained HTML page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    html: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
}

/// Groupings of rows: whether a row is the unit of the source.
const ROWS: [Choice<bool>; 2] = [
    (&["region"], "A huge page", false),
    (&["page"], "The finest unit of the source, at best a base page", true),
];

pub fn run(args: &Args) -> Outcome {
    let page = args.html.as_deref().map(|path| check_output(path, args.replacement.force)).transpose()?;
    let profile = read_run_file(&args.file)?.profile;
    let view = View { verbose: args.verbose, by_cell: args.by_cell };
    let name = args.file.display().to_string();
    if let Some(page) = page {
        page.write(profile::render_html(&profile, &name, view).as_bytes())?;
        return Ok(Exit::Success);
    }
    let text = match (args.json, args.csv) {
        (true, _) => output::json_text(&json::profile::to_document(&profile, view.by_cell))?,
        (_, true) => pagelab_report::csv::regions_table(&profile, view.by_cell).into_lines().collect(),
        _ => render(&profile, &name, view, output::stdout_style()),
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

/// Prints the summary of a new profile in a few lines. If it `is_passing` the profile to its caller, that
/// prints the notes and the next steps.
pub fn print_summary(
    profile: &TlbProfile,
    output: &Path,
    json: bool,
    is_alone: bool,
    is_passing: bool,
) -> Result<(), Failure> {
    let style = output::stdout_style();
    let text = match (json, is_passing) {
        (true, _) => output::json_text(&json::profile::to_document(profile, false))?,
        (false, false) => profile::render_summary(profile, &output.display().to_string(), style),
        (false, true) => profile::render_passed_summary(profile, style),
    };
    if !json && !is_alone {
        output::warn(text.trim_end());
        return Ok(());
    }
    output::print(&text)
}
