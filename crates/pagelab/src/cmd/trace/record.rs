//! `pagelab trace record`: recording of each allocation and free of the machine to a run file.

use std::ffi::OsString;
use std::time::Duration;

use pagelab_model::{Bytes, size};
use pagelab_record::trace::backend::BackendChoice;
use pagelab_record::trace::recording::{self, TracePlan};

use crate::cmd::find_program;
use crate::cmd::record::parse_length;
use crate::exit::Failure;
use crate::output_args::OutputArgs;
use crate::value_parsers::{Choice, DAY, bounded_ns, choice, parse_bounded_duration};

const EXAMPLES: &str = "\
Examples:
  pagelab trace record -o t.pagelab --for 30s
  pagelab trace record -o t.pagelab -- make -j2
  pagelab trace record -o t.pagelab --no-snapshot --for 5s

Recording starts by reading the state of every page, which can take some\nseconds. --for and COMMAND start \
 after that; events in between are in the trace\ntoo. The exit code is 0 if the trace is complete, whatever \
 the exit code of\nCOMMAND. docs/trace.md";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("output", |arg| arg.required(true)))]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    /// Duration after the snapshot, for example 30s [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", conflicts_with = "command", value_parser = parse_length)]
    duration: Option<Duration>,
    /// Interval between buddyinfo samples, at least 10ms
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_interval)]
    every: Duration,
    /// Omit the snapshot of page states at the start
    #[arg(long)]
    no_snapshot: bool,
    /// Event source
    #[arg(long, alias = "through", default_value = "auto", value_parser = choice(&BACKENDS))]
    backend: BackendChoice,
    /// Buffer size per CPU
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_ring_size)]
    ring: Bytes,
    /// Record until this command exits; it is killed if the recorder is
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Sources of the events.
const BACKENDS: [Choice<BackendChoice>; 3] = [
    (&["auto"], "ftrace if available, else perf", BackendChoice::Auto),
    (&["ftrace"], "An ftrace instance: less overhead for the traced programs", BackendChoice::Ftrace),
    (&["perf"], "Perf ring buffers: changes no settings of the machine", BackendChoice::Perf),
];

/// Records until the time is over, the command exits, or a signal arrives.
pub fn run(args: &Args) -> Result<u8, Failure> {
    // Before the file exists: it would block the next attempt.
    args.command.first().map(|name| find_program(name)).transpose()?;
    recording::run(&TracePlan {
        output: args.output.required_run_file()?,
        for_ns: args.duration.map(bounded_ns),
        every_ns: bounded_ns(args.every),
        has_snapshot: !args.no_snapshot,
        backend: args.backend,
        ring: args.ring,
        command: args.command.clone(),
    })
}

/// Parses the interval of buddyinfo samples.
fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_bounded_duration(text, Duration::from_millis(10), DAY)
}

fn parse_ring_size(text: &str) -> Result<Bytes, String> {
    let size = size::parse(text)?;
    if (1..=1 << 30).contains(&size.0) { Ok(size) } else { Err("expected 4K to 1G".to_owned()) }
}
