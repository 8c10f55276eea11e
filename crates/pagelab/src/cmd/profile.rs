//! `pagelab profile`: the cost of a program's TLB misses by memory region, written to a run file.

mod options;
mod setup;
mod show;

use pagelab_report::profile::SUMMARY_NOTES;
use pagelab_tune::profile::{record_profile, serve_reader, serve_splitter};

use crate::exit::{Exit, Failure};
use crate::output;
use options::ProfileArgs;
pub use options::SOURCES;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true,
          subcommand_value_name = "SUBCOMMAND")]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    ask: ProfileArgs,
}

/// Subcommands of `profile`.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the regions of a profile as a table and a picture
    Show(show::Args),
    /// Download QEMU for --source exact in advance
    Setup(setup::Args),
    /// Split mappings for a profile (internal)
    #[command(hide = true)]
    Splitter,
    /// Read its own memory, to measure the cost of a profile (internal)
    #[command(hide = true)]
    Reader,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab profile -- ./server --bench             accessed bits, at native speed
  pagelab profile --source exact -- xz -9k file   a modelled TLB, every access
  pagelab profile --pid 4121 --for 30s            a running process
  pagelab profile --source perf-data perf.data    a file of perf mem record
  pagelab profile show server.profile.pagelab     the regions";

/// Profiles, writes the run file and prints a summary.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.action {
        Some(Action::Show(args)) => return show::run(args).map(|exit| exit as u8),
        Some(Action::Setup(args)) => return setup::run(args).map(|exit| exit as u8),
        Some(Action::Splitter) => return serve_splitter().map(|exit| exit as u8),
        Some(Action::Reader) => return serve_reader().map(|exit| exit as u8),
        None => {}
    }
    let ask = &args.ask;
    let request = ask.to_request();
    let file = request.output_file()?;
    let profile = record_profile(&request, &file)?;
    // The summary has the first notes; of a profile that is passed on, the report of `tune` has all.
    for note in profile.notes.iter().skip(SUMMARY_NOTES).filter(|_| !ask.passing) {
        output::print_note(&format!("note: {note}"));
    }
    // Standard output belongs to the program, so with a command the summary goes to standard error.
    show::print_summary(&profile, &file.path, ask.json, ask.command.is_empty(), ask.passing)?;
    // The exit code of the program becomes ours, unless the caller wants only the profile, which records it.
    let exit = profile.exit.filter(|exit| !ask.passing && !ask.exit_codes.contains(exit));
    Ok(exit.unwrap_or(Exit::Success as u8))
}
