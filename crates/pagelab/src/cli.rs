//! The command line, typed and untouched: nothing is opened, asked or decided here.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd;
use crate::exit::Exit;

/// A laboratory and a control room for physical memory on Linux.
#[derive(Debug, Parser)]
#[command(version, after_help = after_help(), max_term_width = 80)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The state of this machine's physical memory, why it is so, and what to do
    Checkup(cmd::checkup::Args),
    /// Fragmentation indices of this machine, of a saved buddyinfo, or of an allocation-failure report
    Frag(cmd::frag::Args),
    /// Memory over time, from now on, into a run file
    Record(cmd::record::Args),
    /// Whether so many huge pages can be had: now, after compaction, after dropping cache
    Can(cmd::can::Args),
    /// Move what can be moved together; before and after, and what is in the way
    Compact(cmd::compact::Args),
    /// Fragment physical memory on purpose, to a target, and hold it
    Fragment(Box<cmd::fragment::Args>),
    /// What run files hold: on the terminal, as JSON, or as tables for other programs
    Report(cmd::report::Args),
    /// The same experiment in several runs, side by side: other machines, kernels, days
    Compare(cmd::compare::Args),
    /// A picture of physical memory: what each page is, where, and what changed
    Map(cmd::map::Args),
    /// How recorded machines used their memory over time: a line of averages for each
    Usage(cmd::usage::Args),
    /// Snapshots of buddyinfo and scrapes of node_exporter as a recording
    Import(cmd::import::Args),
    /// This machine's memory files in one folder or archive, readable again with --root
    Capture(cmd::capture::Args),
    /// Run a command line of pagelab in a disposable QEMU guest on a stock kernel
    Guest(cmd::guest::Args),
    /// A live view of free memory, huge pages, pressure, compaction and reclaim; or a recording
    Watch(cmd::watch::Args),
    /// An experiment: variants over workloads, trial by trial, into a run file; then its report
    Run(cmd::run::Args),
    /// The experiments that come with pagelab: list, explain, show
    Recipes(cmd::recipes::Args),
    /// What an experiment starts its trials with
    #[command(hide = true)]
    Gate(cmd::run::gate::Args),
    /// The page-allocator simulator: policies compared, swept over, measured
    Sim(Box<cmd::sim::Args>),
    /// Traces of the page allocator: record each allocation and free, say what a trace holds
    Trace(cmd::trace::Args),
    /// Where a program's TLB misses cost time, by 2 MiB region: with or without hardware counters
    Profile(Box<cmd::profile::Args>),
    /// Which huge pages pay, from a profile: the curve, the knee, and a plan
    Plan(Box<cmd::plan::Args>),
    /// Does this program gain from huge pages, and how many does it take: profile, plan, measure
    Tune(Box<cmd::tune::Args>),
    /// Run a program with huge pages where a plan says, or give them to one that runs
    Apply(Box<cmd::apply::Args>),
    /// What `apply` supervises programs with
    #[command(hide = true)]
    Supervise(Box<cmd::apply::supervise::Args>),
    /// Run one workload, which checks its own result, and print its figures as JSON
    Workload(cmd::workload::Args),
    /// Undo what a killed pagelab left changed
    Restore(cmd::restore::Args),
}

fn after_help() -> String {
    format!("Exit codes:\n{}", Exit::table())
}

/// Reads the command line. What begins like a number below zero is the value of the option before it, whose
/// own words then say what is wanted.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut command = with_negatives(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn with_negatives(command: clap::Command) -> clap::Command {
    let option = |arg: clap::Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    command.mut_args(option).mut_subcommands(with_negatives)
}

/// Says what is wrong with a command line. Help and version come this way too, and are no failure.
pub fn refused(error: &clap::Error) -> Exit {
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use pagelab_model::{PageSize, Snapshot};
    use pagelab_report::findings::NextCommand;

    use super::*;

    /// Help is wrapped at 80 columns: a line that is longer is one paragraph, and no line of ours follows it.
    fn check(command: &clap::Command) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines: Vec<&str> = text.lines().chain([""]).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].chars().count() > 80) {
            let is_paragraph = !pair[0].starts_with(' ') && pair[1].is_empty();
            assert!(is_paragraph, "{}: broken in mid-line: {}", command.get_name(), pair[0]);
        }
        command.get_subcommands().for_each(check);
    }

    /// As it is typed from a look at this machine, and from one at a saved tree.
    #[test]
    fn every_command_that_a_finding_may_print_is_one() {
        let mut live = Snapshot::unread("this machine", PageSize::USUAL);
        live.taken.euid = Some(0);
        let saved = Snapshot::unread("memory.tar.zst", PageSize::USUAL);
        for next in NextCommand::ALL {
            let lines = [next.line(&live), next.line(&saved)];
            assert!(lines[0].is_some(), "{next:?}");
            for line in lines.iter().flatten() {
                let read = with_negatives(Cli::command()).try_get_matches_from(line.split(' '));
                assert!(read.is_ok(), "{line}: {}", read.unwrap_err());
            }
        }
    }

    #[test]
    fn no_line_of_the_help_is_broken() {
        check(&Cli::command());
    }
}
