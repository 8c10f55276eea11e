//! `cargo xtask`: what the repository does to itself. Run it without arguments for its commands.

mod bars;
mod bench;
mod built;
mod child;
mod edges;
mod facts;
mod fuzz;
mod guest;
mod libtest;
mod phases;
mod skips;
mod stacks;
mod tally;
mod test;
mod tidy;
mod tools;
mod tree;
mod web;

use std::process::ExitCode;

use tally::Failed;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--quick] [--only PHASE]   everything, phase by phase, against the CI budget
                                  phases: tools lint build unit corpus e2e web guests fuzz
                                  --quick: no installing, no rustdoc, no release build, one second of fuzzing
  tidy [--fix] [FOLDER]           the ratchets of CONTRIBUTING.md, all violations at once, here or in another
                                  tree; --fix breaks wide comments and strings
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
        Err(Failed::Usage(problem)) => {
            eprint!("{problem}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(Failed::Said) => ExitCode::FAILURE,
        Err(Failed::Because(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), Failed> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((&command, rest)) = words.split_first() else {
        print!("{USAGE}");
        return Ok(());
    };
    match command {
        "test" => test::run(&test::Asked::parse(rest)?),
        "ci" if rest.is_empty() => {
            print!("{}", phases::budget());
            test::run(&test::Asked::default())
        }
        "tidy" => tidy::run(rest),
        "corpus" if rest.is_empty() => test::corpus(),
        "bench" => bench::run(rest),
        "fuzz" => fuzz::run(rest),
        "guest" => guest::run(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(Failed::Usage(format!("cannot make sense of `{}`", words.join(" ")))),
    }
}
