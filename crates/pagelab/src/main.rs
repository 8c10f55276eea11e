//! pagelab: a laboratory and a control room for physical memory on Linux.
//!
//! Arguments are read in two stages: [`cli`] types them and touches nothing; each command in [`cmd`]
//! resolves them to a plan, carries it out and prints. Exit codes stand in [`exit`]. As PID 1 of a guest the
//! same program is the guest's agent.

mod accessed_price;
mod bounds;
mod cli;
mod cmd;
mod exit;
mod input;
mod kept_price;
mod manifest;
mod out;
mod probe;
mod walk_cost;
mod watch;
mod whole_file;

use std::process::ExitCode;

use exit::Exit;

fn main() -> ExitCode {
    if let Some(job) = pagelab_guest::agent::job() {
        pagelab_guest::agent::run(job);
    }
    let ended = std::panic::catch_unwind(|| {
        let arguments = match cli::parse() {
            Ok(arguments) => arguments,
            Err(error) => return cli::refused(&error) as u8,
        };
        match cmd::run(arguments) {
            Ok(code) => code,
            Err(failure) if failure.is_broken_pipe() => Exit::Done as u8,
            Err(failure) => {
                out::complain(&format!("pagelab: {failure}"));
                failure.exit() as u8
            }
        }
    });
    let code = ended.unwrap_or_else(|_| {
        out::complain("pagelab: this is a bug of pagelab's own; please report the lines above");
        Exit::Bug as u8
    });
    ExitCode::from(code)
}
