//! `pagelab workload setup`: preparation of external workloads, without installing anything.

use std::time::Instant;

use clap::Args as _;
use pagelab_command::setup_progress::SetupProgress;
use pagelab_experiment::external;
use pagelab_experiment::external::install_dir::Installation;
use pagelab_experiment::external::manifest::Manifest;
use pagelab_experiment::external::{install_dir, load_manifest};
use pagelab_model::Bytes;
use pagelab_model::size::format_bytes;
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};

use super::external::manifest_failure;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

pub const NAME: &str = "setup";
const ALL_WORKLOADS: &str = "all";

const AFTER_HELP: &str = "\
Uses programs from PATH if they are suitable; otherwise downloads packages with apt-get and unpacks them \
 below $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab. Nothing is installed, and no root is needed. Data is \
 created there too. An incomplete set-up is never used; the next one recreates it.

Examples:
  pagelab workload setup redis
  pagelab workload setup all     failures are reported, the others continue

docs/external.md lists the time and disk space that each needs.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// External workloads, manifest paths, or all
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Download and recreate everything
    #[arg(long)]
    again: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn build_command() -> clap::Command {
    Args::augment_args(clap::Command::new(NAME))
        .about("Set up external workloads: download programs, create data")
}

/// Outcome of setting up one workload.
struct SetupOutcome {
    manifest: &'static Manifest,
    install_dir: Result<Installation, Failure>,
    seconds: f64,
}

/// Sets up the requested workloads. With several, failures are reported and the others continue.
pub fn run(args: &Args) -> Outcome {
    let mut manifests: Vec<&'static Manifest> = Vec::new();
    for name in &args.names {
        match name.as_str() {
            ALL_WORKLOADS => manifests.extend(external::manifests()),
            name => manifests.push(load_manifest(name).map_err(|unread| manifest_failure(&unread))?),
        }
    }
    let mut told = SetupProgress::start(true)?;
    let mut all: Vec<SetupOutcome> = Vec::new();
    for manifest in manifests {
        let began = Instant::now();
        let home = install_dir::set_up(manifest, args.again, &mut told).map_err(output::exit_if_stopped);
        if let Err(failure) = &home {
            output::warn(&format!("{}: {failure}", manifest.name));
        }
        all.push(SetupOutcome { manifest, install_dir: home, seconds: began.elapsed().as_secs_f64() });
    }
    if args.json {
        let document = document_header("workload_setup").field("workloads", to_array(&all, outcome_json));
        output::print_json(&document)?;
    } else {
        for made in &all {
            let Ok(home) = &made.install_dir else { continue };
            let (name, size) = (&made.manifest.name, format_bytes(Bytes(home.bytes)));
            let from = match home.packages.len() {
                0 => "installed programs".to_owned(),
                count => format!("{count} packages, {size}"),
            };
            output::print(&format!("{name}: ready, {from}   {}\n", home.dir.display()))?;
        }
    }
    // A single request keeps its own exit code; with several, the result is partial.
    let failed = all
        .iter()
        .filter_map(|made| made.install_dir.as_ref().err().map(|failure| Exit::from(failure.kind())));
    let failed: Vec<Exit> = failed.collect();
    Ok(match &failed[..] {
        [] => Exit::Success,
        [exit] if all.len() == 1 => *exit,
        all_of_them if all_of_them.len() == all.len() => Exit::NotAvailable,
        _ => Exit::Partial,
    })
}

fn outcome_json(outcome: &SetupOutcome) -> JsonObject {
    let package = |(name, version): &(String, String)| {
        JsonObject::new().field("name", name.as_str()).field("version", version.as_str())
    };
    let object = JsonObject::new()
        .field("name", outcome.manifest.name.as_str())
        .field("ready", outcome.install_dir.is_ok())
        .field("seconds", outcome.seconds);
    match &outcome.install_dir {
        Ok(home) => object
            .field("home", home.dir.display().to_string())
            .field("bytes", home.bytes)
            .field("packages", to_array(&home.packages, package)),
        Err(failure) => object.field("missing", failure.to_string()),
    }
}
