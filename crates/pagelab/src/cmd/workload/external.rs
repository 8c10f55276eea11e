//! External workloads on the command line: requests, runs and the list.

use std::ffi::OsString;

use clap::ArgMatches;
use pagelab_command::setup_progress::SetupProgress;
use pagelab_experiment::external::install_dir::{InstallState, install_state};
use pagelab_experiment::external::manifest::Manifest;
use pagelab_experiment::external::run::{RunError, RunResult};
use pagelab_experiment::external::{self, ManifestError, is_path, load_manifest};
use pagelab_report::text_report::TextReport;
use pagelab_workloads::options::WorkloadOptions;

use super::{build_argument, parse_options, unknown_workload, value_error};
use crate::exit::{Failure, FailureKind};
use crate::output;

/// A requested run with its options, or the error of its manifest.
pub type ExternalRun = Result<(&'static Manifest, WorkloadOptions), ManifestError>;

/// Parses a built-in name or a path, with its arguments.
pub fn parse_run(name: &str, matches: &ArgMatches) -> Result<ExternalRun, clap::Error> {
    let manifest = match load_manifest(name) {
        Ok(manifest) => manifest,
        Err(ManifestError::Unknown { name, .. }) => {
            let text = unknown_workload(&name);
            return Err(clap::Error::raw(clap::error::ErrorKind::InvalidSubcommand, text));
        }
        Err(unread) => return Ok(Err(unread)),
    };
    if !is_path(name) {
        return Ok(Ok((manifest, parse_external_options(manifest, matches)?)));
    }
    let words = matches.get_many::<OsString>("").into_iter().flatten();
    let command = build_command(manifest).no_binary_name(true).bin_name(format!("pagelab workload {name}"));
    let given = command.try_get_matches_from(words)?;
    Ok(Ok((manifest, parse_external_options(manifest, &given)?)))
}

fn parse_external_options(
    manifest: &'static Manifest,
    matches: &ArgMatches,
) -> Result<WorkloadOptions, clap::Error> {
    let options = manifest.resolve_options(matches.get_flag("quick"), &[]).map_err(value_error)?;
    parse_options(manifest.options, options, matches)
}

pub fn build_command(manifest: &'static Manifest) -> clap::Command {
    let quick: Vec<String> =
        manifest.quick_options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let quick = clap::Arg::new("quick")
        .long("quick")
        .action(clap::ArgAction::SetTrue)
        .help(format!("Use a smaller input to check that it works: {}", quick.join(", ")));
    let more = format!(
        "{}\n\nDefault input: {}\n\nWorking set: {}\n\nMore: docs/external.md",
        manifest.explanation,
        manifest.describe_input(&WorkloadOptions::with_defaults(manifest.options)),
        manifest.working_set
    );
    clap::Command::new(manifest.name.as_str())
        .about(manifest.summary.as_str())
        .after_help(more)
        .args(manifest.options.iter().map(build_argument))
        .arg(quick)
}

/// Runs the workload once. Its output goes to standard error line by line.
pub fn run(request: &ExternalRun) -> Result<(&'static Manifest, RunResult, WorkloadOptions), Failure> {
    let &(manifest, ref options) = request.as_ref().map_err(manifest_failure)?;
    let mut told = SetupProgress::start(true)?;
    let done = external::run::run_workload(manifest, options, &mut told, &mut |line| output::warn(line));
    done.map(|done| (manifest, done, options.clone())).map_err(run_failure)
}

/// Converts an unreadable manifest to a failure with its exit code.
pub fn manifest_failure(unread: &ManifestError) -> Failure {
    let kind = match unread {
        ManifestError::Unknown { .. } => FailureKind::Usage,
        ManifestError::Io(_, error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            FailureKind::NotAvailable
        }
        ManifestError::Io(..) | ManifestError::Invalid(_) => FailureKind::BadInput,
    };
    Failure::new(kind, unread.to_string())
}

fn run_failure(failed: RunError) -> Failure {
    let kind = match failed {
        RunError::NotReady(error) => return output::exit_if_stopped(error),
        RunError::Stopped(signal) => output::exit_with_stopped(failed, signal),
        RunError::System(_) | RunError::BadExit(_) => FailureKind::Partial,
        RunError::WrongResult(_) => FailureKind::Bug,
    };
    Failure::new(kind, failed.to_string())
}

/// Describes whether a workload is ready, for the list.
pub fn readiness_text(state: &InstallState) -> &str {
    match state {
        InstallState::Ready(_) => "ready",
        InstallState::Available => "ready: its programs are installed",
        InstallState::Missing(why) => why,
    }
}

/// Writes the external part of the list.
pub fn write_list(page: &mut TextReport) {
    page.add_line("external programs:");
    let all = external::manifests();
    let widest = all.iter().map(|manifest| manifest.name.len()).max().unwrap_or(0);
    for manifest in all {
        let head = format!("{:widest$}  ", manifest.name);
        page.add_paragraph(&head, &manifest.summary);
        page.add_dim_paragraph(&" ".repeat(widest + 2), readiness_text(&install_state(manifest)));
    }
}
