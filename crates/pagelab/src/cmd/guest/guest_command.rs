//! Command line for a guest, parsed before the boot with the same parser, so that errors and help need no
//! guest.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure, usage_error};

/// Handles a command line that needs no guest, because it is wrong or requests help; returns its exit code.
pub fn handle_without_guest(arguments: &[OsString]) -> Result<Option<Exit>, Failure> {
    let line = [OsString::from("pagelab")].into_iter().chain(arguments.iter().cloned());
    let command = match Cli::try_parse_from(line) {
        Ok(cli) => cli.command,
        Err(error) => return Ok(Some(crate::cli::report_usage_error(&error))),
    };
    let input = match &command {
        Command::Guest(_) => {
            let why = "a guest cannot boot guests: it has no QEMU and no kernels";
            return Err(usage_error(&format!("{why}; hint: run the inner command directly")));
        }
        Command::Frag(args) => args.from.as_deref(),
        Command::Plan(args) => args.file.as_deref(),
        Command::Apply(args) => Some(args.plan.as_path()),
        // In a guest, `watch` itself reports that there is no terminal.
        _ => None,
    };
    let is_stdin = |file: &Path| ["-", "/dev/stdin", "/dev/fd/0"].iter().any(|name| file == Path::new(name));
    match input.is_some_and(is_stdin) {
        true => Err(usage_error(
            "standard input is not passed to a guest; hint: `pagelab guest run --give FILE -- … --from FILE`",
        )),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::FailureKind;

    #[test]
    fn what_makes_no_sense_in_a_guest_is_refused_in_words() {
        for (line, said) in [
            ("checkup -v", None),
            ("frag --from a.txt", None),
            ("capture -", None),
            ("frag --from -", Some("--give FILE")),
            ("frag --from=-", Some("--give FILE")),
            ("frag --from /dev/stdin", Some("--give FILE")),
            ("guest setup", Some("cannot boot guests")),
            ("guest run -- frag", Some("cannot boot guests")),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            match (handle_without_guest(&words), said) {
                (Ok(None), None) => {}
                (Err(failure), Some(said)) => {
                    let told = (failure.kind(), failure.to_string());
                    assert!(told.0 == FailureKind::Usage && told.1.contains(said), "{line}: {told:?}");
                }
                (other, _) => panic!("{line}: {other:?}"),
            }
        }
    }
}
