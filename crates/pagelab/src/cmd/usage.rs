//! `pagelab usage`: the averages of recordings in one table, a line for each.

use std::io::Write;
use std::path::PathBuf;

use pagelab_model::Absence;
use pagelab_report::averages::{Line, Stat, View, render};
use pagelab_report::{csv, json};

use super::report;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `usage` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run files, as `record`, `import` or `checkup --run` write them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Mean, least, most and 95th percentile of each, and how each was recorded
    #[arg(short, long, conflicts_with = "stat")]
    verbose: bool,
    /// Which number of each is shown
    #[arg(long, value_enum, default_value = "mean")]
    stat: WhichStat,
    /// All numbers as one JSON document, in bytes (docs/json.md)
    #[arg(long, conflicts_with_all = ["csv", "verbose", "stat"])]
    json: bool,
    /// All numbers as one table of comma-separated values, in bytes
    #[arg(long, conflicts_with_all = ["verbose", "stat"])]
    csv: bool,
}

/// Which number of each quantity.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WhichStat {
    /// The mean over time
    Mean,
    /// The smallest reading
    Min,
    /// The largest reading
    Max,
    /// The smallest reading such that readings up to it cover 95 % of the time
    P95,
    /// All four
    All,
}

impl WhichStat {
    fn stats(self) -> &'static [Stat] {
        match self {
            WhichStat::Mean => &[Stat::Mean],
            WhichStat::Min => &[Stat::Min],
            WhichStat::Max => &[Stat::Max],
            WhichStat::P95 => &[Stat::P95],
            WhichStat::All => &Stat::ALL,
        }
    }
}

const AFTER_HELP: &str = "\
Columns, of every reading of meminfo and vmstat:
  total, free   MemTotal, MemFree
  used          total - free
  cached        Buffers + Cached + SwapCached: the page cache
  used-cached   what programs and the kernel hold
  minor/s       page faults without a disk: growth of pgfault - pgmajfault
  major/s       page faults that waited for a disk: growth of pgmajfault

A mean is over time, not over readings: a reading stands for half the time to its neighbours, so that missed \
ticks do not bend it. Formulas and sources: docs/usage.md.

Examples:
  pagelab usage *.pagelab               one line for each machine
  pagelab usage -v day.pagelab          least, most and 95th percentile too
  pagelab usage --csv *.pagelab         for a spreadsheet

A file that cannot be read is named, and the others are shown; the exit code then is 3, or 4 where only \
permission was missing.";

/// Reads the files one after the other; only a line of each is kept.
pub fn run(args: &Args) -> Outcome {
    let mut lines = Vec::new();
    let mut refused: Option<Exit> = None;
    for file in &args.files {
        let run = pagelab_runfile::read(file).map_err(|error| report::refusal(&error));
        match run.and_then(|run| Line::of(&run).map_err(|absence| without(file, &absence))) {
            Ok(line) => lines.push(line),
            Err(failure) if args.files.len() == 1 => return Err(failure),
            Err(failure) => {
                out::complain(&format!("pagelab: {failure}"));
                // Bad input outweighs what another user could read.
                let exit = failure.exit();
                refused = if exit == Exit::BadInput { Some(exit) } else { refused.or(Some(exit)) };
            }
        }
    }
    let mut out = out::stdout();
    if args.json {
        let text = json::to_text(&json::averages::document(&lines));
        let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
        out.write_all(text.as_bytes())?;
    } else if args.csv {
        for line in csv::usage(&lines).lines() {
            out.write_all(line.as_bytes())?;
        }
    } else {
        let stats = if args.verbose { &Stat::ALL } else { args.stat.stats() };
        let view = View { stats, verbose: args.verbose };
        out.write_all(render(&lines, view, out::style()).as_bytes())?;
    }
    out.flush()?;
    Ok(refused.unwrap_or(Exit::Done))
}

/// A run that has nothing for the table.
fn without(file: &std::path::Path, absence: &Absence) -> Failure {
    let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
    let message = format!("{}: no line for it: {}{way_out}", file.display(), absence.reason());
    Failure::new(Exit::BadInput, message)
}
