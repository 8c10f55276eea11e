//! pagelab: a laboratory and a control room for physical memory on Linux.
//!
//! Arguments are read in two stages: [`cli`] types them and touches nothing; each command in [`cmd`]
//! resolves them to a plan, carries it out and prints. Exit codes stand in [`exit`].

mod cli;
mod cmd;
mod exit;
mod input;
#[expect(dead_code, reason = "until a command writes its run")]
mod manifest;
mod out;
mod probe;

use std::process::ExitCode;

use clap::Parser;
use exit::Exit;

fn main() -> ExitCode {
    let ended = std::panic::catch_unwind(|| {
        let arguments = match cli::Cli::try_parse() {
            Ok(arguments) => arguments,
            Err(error) => {
                // Help and version come this way too, and are no failure.
                let _ = error.print();
                return if error.use_stderr() { Exit::Usage } else { Exit::Done };
            }
        };
        match cmd::run(arguments) {
            Ok(exit) => exit,
            Err(failure) if failure.is_broken_pipe() => Exit::Done,
            Err(failure) => {
                out::complain(&format!("pagelab: {failure}"));
                failure.exit()
            }
        }
    });
    let exit = ended.unwrap_or_else(|_| {
        out::complain("pagelab: this is a bug of pagelab's own; please report the lines above");
        Exit::Bug
    });
    ExitCode::from(exit as u8)
}
