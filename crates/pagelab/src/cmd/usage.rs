//! `pagelab usage`: table of the averages of recordings, one line each.

use std::path::{Path, PathBuf};

use pagelab_report::averages::{RunAverages, Stat, View, render};
use pagelab_report::{csv, json};

use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;
use crate::value_parsers::{Choice, choice};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files of `record`, `import` or `checkup`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print mean, minimum, maximum and 95th percentile, and how each was recorded
    #[arg(short, long, conflicts_with = "stat")]
    verbose: bool,
    /// Statistic to show
    #[arg(long, default_value = "mean", value_parser = choice(&STATISTICS))]
    stat: &'static [Stat],
    /// Print JSON, in bytes (docs/json.md)
    #[arg(long, conflicts_with_all = ["csv", "verbose", "stat"])]
    json: bool,
    /// Print CSV, in bytes
    #[arg(long, conflicts_with_all = ["verbose", "stat"])]
    csv: bool,
}

/// Statistics of each quantity.
const STATISTICS: [Choice<&'static [Stat]>; 5] = [
    (&["mean"], "The mean over time", &[Stat::Mean]),
    (&["min"], "The smallest reading", &[Stat::Min]),
    (&["max"], "The largest reading", &[Stat::Max]),
    (&["p95"], "The 95th percentile over time", &[Stat::P95]),
    (&["all"], "All four statistics", &Stat::ALL),
];

const AFTER_HELP: &str = "\
Columns, from each reading of meminfo and vmstat:
  total, free   MemTotal, MemFree
  used          total - free
  cached        Buffers + Cached + SwapCached: the page cache
  used-cached   memory of programs and the kernel
  minor/s       minor page faults: growth of pgfault - pgmajfault
  major/s       major page faults: growth of pgmajfault

Means are weighted by time: each sample counts for half the time to each neighbour, so missed ticks do not \
 bias them. Formulas and sources: docs/usage.md.

Examples:
  pagelab usage *.pagelab               one line per machine
  pagelab usage -v day.pagelab          minimum, maximum and 95th percentile
  pagelab usage --csv *.pagelab         for a spreadsheet

Unreadable files are listed and skipped; the exit code is then 3, or 4 if permission is denied for all of \
 them.";

/// Reads the files one after the other; keeps only a line of each.
pub fn run(args: &Args) -> Outcome {
    let mut lines = Vec::new();
    let mut refused: Option<Exit> = None;
    for file in &args.files {
        match read_averages(file) {
            Ok(line) => lines.push(line),
            Err(failure) if args.files.len() == 1 => return Err(failure),
            Err(failure) => {
                output::warn(&format!("warning: {failure}"));
                refused = Exit::after_refusal(refused, failure.kind().into());
            }
        }
    }
    if args.json {
        output::print_json(&json::averages::to_document(&lines))?;
    } else if args.csv {
        output::print(&csv::averages_table(&lines).into_lines().collect::<String>())?;
    } else {
        let stats = if args.verbose { &Stat::ALL } else { args.stat };
        let view = View { stats, verbose: args.verbose };
        output::print(&render(&lines, view, output::stdout_style()))?;
    }
    Ok(refused.unwrap_or(Exit::Success))
}

/// Reads a run file; it may have no data for the table.
fn read_averages(file: &Path) -> Result<RunAverages, Failure> {
    RunAverages::from_run(&pagelab_runfile::read_run_file(file)?).map_err(|absence| {
        Failure::absent(FailureKind::BadInput, format_args!("summarize {}", file.display()), &absence)
    })
}
