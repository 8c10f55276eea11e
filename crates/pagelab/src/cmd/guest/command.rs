//! The command line for a guest, read here with the same parser: what is wrong with it, or needs no guest, is
//! said at once.

use std::ffi::OsString;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

/// `Some` is the exit code of a command line that was answered here: it was wrong, or asked for help.
pub fn answered_here(words: &[OsString]) -> Result<Option<Exit>, Failure> {
    let line = [OsString::from("pagelab")].into_iter().chain(words.iter().cloned());
    let command = match Cli::try_parse_from(line) {
        Ok(cli) => cli.command,
        Err(error) => return Ok(Some(crate::cli::refused(&error))),
    };
    refusal(&command).map_or(Ok(None), |why| Err(super::super::usage(&why)))
}

/// Why a command that makes sense here makes none in a guest.
fn refusal(command: &Command) -> Option<String> {
    let reads_stdin = match command {
        Command::Guest(_) => {
            let why = "a guest boots no guests of its own: it has no QEMU and no kernels in it";
            return Some(format!("{why}; run the inner command line alone"));
        }
        Command::Frag(args) => args.reads_stdin(),
        Command::Map(_) => false,
        Command::Checkup(_) | Command::Report(_) | Command::Capture(_) | Command::Restore(_) => false,
        Command::Record(_) | Command::Fragment(_) | Command::Compact(_) | Command::Can(_) => false,
        Command::Usage(_) | Command::Import(_) | Command::Workload(_) | Command::Compare(_) => false,
        // One that waits for keys says itself that there are none.
        Command::Watch(_) => false,
        Command::Run(_) | Command::Recipes(_) | Command::Gate(_) | Command::Profile(_) => false,
        Command::Plan(args) => args.reads_stdin(),
        Command::Apply(_) | Command::Supervise(_) => false,
        Command::Tune(_) | Command::Sim(_) | Command::Trace(_) => false,
    };
    reads_stdin.then(|| {
        "standard input is not passed to a guest: put it into a file, and \
         `pagelab guest run --give FILE -- … --from FILE`"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_in_a_guest_is_refused_in_words() {
        for (line, said) in [
            ("checkup -v", None),
            ("frag --from a.txt", None),
            ("capture -", None),
            ("frag --from -", Some("--give FILE")),
            ("frag --from=-", Some("--give FILE")),
            ("frag --from /dev/stdin", Some("--give FILE")),
            ("guest setup", Some("boots no guests of its own")),
            ("guest run -- frag", Some("boots no guests of its own")),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            match (answered_here(&words), said) {
                (Ok(None), None) => {}
                (Err(failure), Some(said)) => {
                    let told = (failure.exit(), failure.to_string());
                    assert!(told.0 == Exit::Usage && told.1.contains(said), "{line}: {told:?}");
                }
                (other, _) => panic!("{line}: {other:?}"),
            }
        }
    }
}
