//! `pagelab guest setup`: a kernel of the distribution in the cache, without installing it.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use pagelab_guest::kernel::Kernel;
use pagelab_guest::setup::setup;
use pagelab_host::capture::Stop;
use pagelab_packages::apt::Watcher;
use pagelab_report::json::VERSION;
use serde_json::json;

use super::answer::put;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `guest setup` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The newest cloud kernel of a series, such as 6.1 or 6.12, or a package by its name
    #[arg(long, value_name = "SERIES|PACKAGE", default_value = super::run::KERNEL)]
    kernel: Vec<String>,
    /// Keep kernels here [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Tells how far it is, and knows whether a signal asked to stop.
pub struct Told {
    /// Signals that are only noted.
    pub stop: Stop,
    /// Whether to tell how far it is.
    pub tell: bool,
}

impl Told {
    /// From now on signals are only noted.
    pub fn watch(tell: bool) -> Result<Told, Failure> {
        let stop = Stop::watch();
        let stop = stop.map_err(|e| Failure::new(Exit::Partial, "cannot watch for signals").because(e))?;
        Ok(Told { stop, tell: tell || std::io::stderr().is_terminal() })
    }

    /// A line of progress.
    pub fn say(&self, line: &str) {
        if self.tell {
            out::complain(line);
        }
    }
}

impl Watcher for Told {
    fn progress(&mut self, line: &str) {
        self.say(line);
    }

    fn stop(&mut self) -> Option<i32> {
        self.stop.signal()
    }
}

/// Fetches every kernel that was asked for and says where it is.
pub fn run(args: &Args) -> Outcome {
    let cache = super::cache(args.cache.as_ref())?;
    let mut told = Told::watch(false)?;
    let mut kernels = Vec::new();
    for wanted in &args.kernel {
        if wanted.contains('/') {
            let message = format!("--kernel {wanted}: a series such as 6.1 or a package was wanted");
            return Err(super::super::usage(&message));
        }
        kernels.push(setup(&cache, wanted, &mut told).map_err(super::failure)?);
    }
    let mut out = out::stdout();
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(to_json).collect();
        writeln!(out, "{:#}", json!({"pagelab_json": VERSION, "kind": "guest_setup", "kernels": kernels}))?;
    } else {
        for kernel in &kernels {
            let version = kernel.package.as_ref().map_or("", |package| package.version.as_str());
            writeln!(out, "{}   {version}   {}", kernel.release, kernel.image.display())?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}

/// A kernel for programs.
pub fn to_json(kernel: &Kernel) -> serde_json::Value {
    let package = kernel.package.as_ref();
    let mut value = json!({ "release": kernel.release, "image": kernel.image.to_string_lossy() });
    let fields = [
        ("package", package.map(|package| &package.name)),
        ("version", package.map(|package| &package.version)),
        ("sha256", package.map(|package| &package.sha256)),
    ];
    for (name, field) in fields {
        put(&mut value, name, field, "not from a package that was fetched");
    }
    value
}
