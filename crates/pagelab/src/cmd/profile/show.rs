//! `pagelab profile show`: the regions of a profile.

use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_model::Profile;
use pagelab_report::json;
use pagelab_report::profile::{self, View, render};

use crate::cmd::plan::read::of_run_file;
use crate::exit::{Exit, Failure, Outcome};
use crate::{out, whole_file};

/// What `profile show` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run file
    file: PathBuf,
    /// What a row stands for
    #[arg(long, value_enum, default_value_t)]
    by: Unit,
    /// All regions, and every place that was not seen
    #[arg(short, long)]
    verbose: bool,
    /// Everything as one JSON document (docs/json.md)
    #[arg(long, conflicts_with_all = ["csv", "verbose"])]
    json: bool,
    /// The regions as one table, to standard output
    #[arg(long, conflicts_with = "verbose")]
    csv: bool,
    /// Text and heat map as one page of HTML that needs nothing else
    #[arg(long, value_name = "OUT", conflicts_with_all = ["json", "csv"])]
    html: Option<PathBuf>,
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Unit {
    /// A huge page
    #[default]
    Region,
    /// What the source counts by, a base page at best
    Page,
}

/// Shows a profile.
pub fn run(args: &Args) -> Outcome {
    let page = args.html.as_deref().map(|path| whole_file::target(path, "--html")).transpose()?;
    let profile = of_run_file(&args.file)?.profile;
    let view = View { verbose: args.verbose, by_cell: args.by == Unit::Page };
    let name = args.file.display().to_string();
    if let Some(page) = page {
        page.write(profile::html(&profile, &name, view).as_bytes())?;
        return Ok(Exit::Done);
    }
    let mut out = out::stdout();
    let text = match (args.json, args.csv) {
        (true, _) => json_text(&json::profile::document(&profile, view.by_cell))?,
        (_, true) => pagelab_report::csv::profile(&profile, view.by_cell).lines().collect(),
        _ => render(&profile, &name, view, out::style()),
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

/// What a fresh profile found, in a few lines. Without `hints` nothing is said of what to do with it: it is
/// passed on to whoever asked for it.
pub fn summary(
    profile: &Profile,
    output: &Path,
    json: bool,
    is_alone: bool,
    hints: bool,
) -> Result<(), Failure> {
    let mut text = match json {
        true => json_text(&json::profile::document(profile, false))?,
        false => profile::summary(profile, &output.display().to_string(), out::style()),
    };
    let hint = out::style().signs("→");
    if let Some(at) = text.find(&format!("\n{hint} ")).filter(|_| !hints && !json) {
        text.truncate(at + 1);
    }
    if !json && !is_alone {
        out::complain(text.trim_end());
        return Ok(());
    }
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn json_text(document: &impl serde::Serialize) -> Result<String, Failure> {
    json::to_text(document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
