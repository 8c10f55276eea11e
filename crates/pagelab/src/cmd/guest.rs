//! `pagelab guest`: disposable QEMU guests on stock kernels.

mod answer;
mod command;
mod memory;
mod run;
pub mod setup;

use std::path::PathBuf;

use pagelab_guest::cache::Cache;
use pagelab_guest::error::{Error, Kind};
use pagelab_packages::store;

use crate::exit::{Exit, Failure};
use crate::out;

/// What `guest` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  pagelab guest setup --kernel 6.12
  pagelab guest run -- checkup -v
  pagelab guest run --nodes 2 --append kernelcore=256M -- checkup
  pagelab guest run --take saved.tar.zst -- capture saved.tar.zst

A guest is a machine of its own with this pagelab as its only program. Nothing of it is left. It is \
emulated, and needs no /dev/kvm.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Fetch a distribution's kernel into the cache, without installing it
    Setup(setup::Args),
    /// Run a command line of pagelab in a guest; its output and exit code become ours
    Run(Box<run::Args>),
}

/// Runs it; the exit code may be that of the command in the guest.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.what {
        What::Setup(args) => setup::run(args).map(|exit| exit as u8),
        What::Run(args) => run::run(args),
    }
}

/// The cache in `folder`, or where this user's programs keep what can be fetched again.
fn cache(folder: Option<&PathBuf>) -> Result<Cache, Failure> {
    let none = || {
        let message =
            "no place to keep kernels: neither XDG_CACHE_HOME nor HOME is set; --cache DIR names one";
        Failure::new(Exit::NotAvailable, message)
    };
    let folder = folder.cloned().or_else(store::usual_folder).ok_or_else(none)?;
    Ok(Cache::below(&folder))
}

/// An error of the guest crate with its exit code. A signal that asked to stop ends the process here.
fn failure(error: Error) -> Failure {
    let exit = match error.kind() {
        Kind::Usage => Exit::Usage,
        Kind::Input => Exit::BadInput,
        Kind::NotAvailable => Exit::NotAvailable,
        Kind::Refused | Kind::Output => Exit::Partial,
        Kind::Stopped(signal) => {
            out::complain(&format!("pagelab: {error}"));
            out::ended_by(128 + signal)
        }
    };
    let message = error.to_string();
    match error.into_cause() {
        Some(cause) => Failure::new(exit, message).because(cause),
        None => Failure::new(exit, message),
    }
}
