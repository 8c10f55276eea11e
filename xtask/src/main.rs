//! `cargo xtask`: tasks of the repository. Run it without arguments for its commands.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use tally::TaskError;

mod bars;
mod bench;
mod cargo_build;
mod child;
mod conditions;
mod crate_graph;
mod fuzz;
mod libtest;
mod passed;
mod phases;
mod queue;
mod retry;
mod run_lock;
mod since;
mod skips;
mod stacks;
mod tally;
mod test;
mod test_programs;
mod tidy;
mod tools;
mod tree;
mod web;

const USAGE: &str = "\
cargo xtask COMMAND

  test [OPTIONS]                  everything, phase by phase, against the CI budget
                                  --only PHASE: tools lint build unit corpus e2e web guests fuzz
                                  --quick: no installing, no rustdoc, no release build, one second of fuzzing
                                  --since REV: only tests that the changes since a revision can affect
                                  --lanes N: run N test programs side by side (default: 2)
  passed [REV]                    whether a commit passed as a whole on this machine, or which last one did
  tidy [--fix] [FOLDER]           the ratchets of CONTRIBUTING.md, all violations at once, here or in another
                                  tree; --fix breaks wide comments and strings
  texts                           write the listing of all texts of the program, xtask/texts.txt
  bench [--check] [NAME…]         the measured bars, or those of some benches; --check fails when one is
                                  broken or not measured
  corpus                          the checks over ../shared/corpus (or PAGELAB_CORPUS) alone
  fuzz [SECONDS] [--seed N]       the parsers under a seeded mutator, and cargo-fuzz where it is installed
  guest [OPTIONS] -- COMMAND      a command line of the release binary in a guest: `pagelab guest run`
  ci                              what .ci/run does, after the budget
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(TaskError::Usage(problem)) => {
            eprint!("{problem}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(TaskError::Reported) => ExitCode::FAILURE,
        Err(TaskError::Message(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), TaskError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((&command, rest)) = words.split_first() else {
        print!("{USAGE}");
        return Ok(());
    };
    match command {
        "test" => test::run_phases(&test::TestArgs::parse(rest)?),
        "ci" if rest.is_empty() => {
            print!("{}", phases::format_budget());
            test::run_phases(&test::TestArgs::default())
        }
        "passed" => passed::run(rest),
        "tidy" => tidy::run(rest),
        "texts" => tidy::texts::run(rest),
        "corpus" if rest.is_empty() => test::run_corpus(),
        "bench" => bench::run(rest),
        "fuzz" => fuzz::run(rest),
        "guest" => run_guest(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(TaskError::Usage(format!("unexpected argument `{}`", words.join(" ")))),
    }
}

/// Builds the release binary and has it run the rest as `pagelab guest run --verbose`. The terminal is the
/// command's own, and so is the exit code.
fn run_guest(arguments: &[&str]) -> Result<(), TaskError> {
    let binary = cargo_build::build_pagelab(phases::total_budget())?;
    // In our place: a signal that is meant for it meets it, and nothing of it outlives us.
    Err(Command::new(&binary.file).args(["guest", "run", "--verbose"]).args(arguments).exec().into())
}
