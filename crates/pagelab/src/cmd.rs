//! The commands: one module each, from typed arguments to an exit code.

pub mod apply;
pub mod can;
pub mod capture;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod frag;
pub mod fragment;
pub mod guest;
pub mod import;
pub mod map;
pub mod plan;
pub mod profile;
pub mod recipes;
pub mod record;
pub mod report;
pub mod restore;
pub mod run;
pub mod sim;
pub mod trace;
pub mod tune;
pub mod usage;
pub mod watch;
pub mod workload;

use std::path::Path;

use pagelab_formats::size;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsentWhy, Bytes, PageSize};
use pagelab_runfile::ErrorKind;
use pagelab_target::error::ErrorKind as TargetErrorKind;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::out;

/// Runs the command that was asked for, and returns the exit code: one of the table, or that of a command in
/// a guest.
pub fn run(cli: Cli) -> Result<u8, Failure> {
    let ended = match cli.command {
        Command::Apply(args) => return apply::run(&args),
        Command::Supervise(args) => return apply::supervise::run(&args),
        Command::Can(args) => can::run(&args),
        Command::Checkup(args) => checkup::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Frag(args) => frag::run(&args),
        Command::Fragment(args) => return fragment::run(&args),
        Command::Guest(args) => return guest::run(&args),
        Command::Record(args) => return record::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Map(args) => map::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Watch(args) => return watch::run(&args),
        Command::Run(args) => return run::run(&args),
        Command::Sim(args) => return sim::run(&args),
        Command::Trace(args) => return trace::run(&args),
        Command::Profile(args) => return profile::run(&args),
        Command::Tune(args) => return tune::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Recipes(args) => recipes::run(&args),
        Command::Gate(args) => return run::gate::run(args),
        Command::Workload(args) => workload::run(&args),
    };
    ended.map(|exit| exit as u8)
}

/// The exit code of an error with another program.
pub fn target_exit(kind: TargetErrorKind) -> Exit {
    match kind {
        TargetErrorKind::NotAvailable => Exit::NotAvailable,
        TargetErrorKind::BadInput | TargetErrorKind::CannotStart => Exit::BadInput,
        TargetErrorKind::Refused | TargetErrorKind::Stopped(_) => Exit::Partial,
    }
}

/// An error with another program as a failure; after a signal it ends this process.
pub fn target_failure(error: pagelab_target::error::Error) -> Failure {
    if let TargetErrorKind::Stopped(signal) = error.kind() {
        out::complain(&format!("pagelab: {error}"));
        out::ended_by(128 + signal)
    }
    Failure::new(target_exit(error.kind()), error.to_string())
}

/// The file of the program that a command line begins with, looked for before anything is begun for it.
pub fn program(name: &std::ffi::OsStr) -> Result<std::path::PathBuf, Failure> {
    pagelab_target::program::find(name).map_err(target_failure)
}

/// The saved tree that `--root` names, or this machine.
pub fn root(path: Option<&Path>) -> Result<Root, Failure> {
    let Some(path) = path else { return Ok(Root::live()) };
    // The error is a whole sentence with file, reason and way out.
    Root::open(path).map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::NotAvailable,
            _ => Exit::BadInput,
        };
        Failure::new(exit, error.to_string())
    })
}

/// A page size such as `4K`, `64KiB`, `16384`.
pub fn page_size(text: &str) -> Result<PageSize, Failure> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    bytes.and_then(PageSize::new).ok_or_else(|| {
        let message =
            format!("--page-size {text}: a power of two from 1K to 1G was wanted, such as 4K, 16K, 64K");
        usage(&message)
    })
}

/// A command line that was wrong.
pub fn usage(message: &str) -> Failure {
    Failure::new(Exit::Usage, message)
}

/// A run file that could not be written.
pub fn run_file(error: &pagelab_runfile::Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::Exists | ErrorKind::NotThere => Exit::Usage,
        ErrorKind::NotPermitted => Exit::NotAvailable,
        ErrorKind::NotStorable => Exit::Bug,
        _ => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}

/// What a command says that cannot do without what could not be read.
pub fn unread(absence: Absence) -> Failure {
    let exit = match absence.why {
        AbsentWhy::Malformed | AbsentWhy::NotSaved => Exit::BadInput,
        _ => Exit::NotAvailable,
    };
    // A parser's message has the file's name and line in it already.
    let mut message = match absence.reason() {
        reason if reason.starts_with(&absence.source) => reason.to_owned(),
        reason => format!("{}: {reason}", absence.source),
    };
    match &absence.way_out {
        Some(way_out) => message.push_str(&format!(": {way_out}")),
        None if absence.why == AbsentWhy::NotSaved => message.push_str(": give a tree that has it"),
        None => {}
    }
    Failure::new(exit, message)
}

/// A size above zero, as options take it.
fn bytes_of(text: &str) -> Result<Bytes, String> {
    let size = size::parse_suffixed(text.as_bytes()).ok().filter(|size| size.0 > 0);
    size.ok_or_else(|| "a size such as 64M was wanted".to_owned())
}
