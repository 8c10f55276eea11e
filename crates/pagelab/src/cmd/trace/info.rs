//! `pagelab trace info`: contents of a trace.

use std::path::PathBuf;

use pagelab_record::trace::info::{json, read_info, text};

use crate::exit::{Exit, Outcome};
use crate::output;
use crate::value_parsers::parse_count;

const EXAMPLES: &str = "\
Examples:
  pagelab trace info t.pagelab                   events by kind, order, thread
  pagelab trace info t.pagelab --threads 20
  pagelab trace info t.pagelab --json            docs/json.md
  pagelab sim replay t.pagelab                   under simulated policies";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Trace
    #[arg(value_name = "FILE.pagelab")]
    file: PathBuf,
    /// Number of threads to show, the busiest first
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse_count)]
    threads: usize,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Reads all of it, and shows it.
pub fn run(args: &Args) -> Outcome {
    let info = read_info(&args.file, args.threads)?;
    let shown = if args.json {
        json::to_document(&info)?
    } else {
        text::render(&info, output::stdout_style(), args.threads)
    };
    output::print(&shown)?;
    Ok(Exit::Success)
}
