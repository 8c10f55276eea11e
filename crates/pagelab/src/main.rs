//! pagelab: a command line laboratory for physical memory on Linux.
//!
//! Arguments are processed in two stages: [`cli`] parses them without side effects; each command in [`cmd`]
//! resolves them to a plan, executes it and prints the result. [`exit`] defines the exit codes. As PID 1 of a
//! guest, the same program is the guest's agent.

mod cli;
mod cmd;
mod help_topics;
mod output_args;
mod value_parsers;

use std::process::ExitCode;

use pagelab_command::{atomic_file, exit, manifest, output};
use pagelab_probe::walk_cost;
use pagelab_watch as watch;

use exit::Exit;

/// Answered without the parser of all commands: it is the small program that workloads start in a guest, and
/// the parser would be most of its time.
const VERSION_OPTION: &str = "--version";
const VERSION_LINE: &str = concat!("pagelab ", env!("CARGO_PKG_VERSION"), "\n");

fn main() -> ExitCode {
    if let Some(job) = pagelab_guest::agent::read_job() {
        pagelab_guest::agent::run_job(job);
    }
    let ended = std::panic::catch_unwind(|| {
        let topic = help_topics::requested_topic(std::env::args_os(), cli::is_command);
        let done = match topic {
            Some(topic) => help_topics::print_topic(&topic).map(|exit| exit as u8),
            None if std::env::args_os().skip(1).eq([VERSION_OPTION]) => {
                output::print(VERSION_LINE).map(|()| Exit::Success as u8)
            }
            None => match cli::parse() {
                Ok(arguments) => cmd::run(arguments),
                Err(error) => return cli::report_usage_error(&error) as u8,
            },
        };
        match done {
            Ok(code) => code,
            Err(failure) if failure.is_broken_pipe() => Exit::Success as u8,
            Err(failure) => {
                let failure = output::exit_if_stopped(failure);
                output::print_error(&failure.to_string());
                Exit::from(failure.kind()) as u8
            }
        }
    });
    let code = ended.unwrap_or_else(|_| {
        output::warn("error: internal error; please report the lines above");
        Exit::Bug as u8
    });
    ExitCode::from(code)
}
