//! External workloads on the command line: what is asked for, the run, the list, and the JSON of both.

use std::ffi::OsString;

use clap::ArgMatches;
use pagelab_experiment::external::home::{State, state};
use pagelab_experiment::external::manifest::Manifest;
use pagelab_experiment::external::read::is_path;
use pagelab_experiment::external::run::{Done, Failed, Figure};
use pagelab_experiment::external::{self, Unread, named};
use pagelab_packages::error::Kind;
use pagelab_report::json::header;
use pagelab_report::json::object::{Object, array};
use pagelab_report::text::Page;
use pagelab_workloads::options::Options;
use serde_json::Value;

use super::{argument_of, given_options, json, not_one, wrong};
use crate::cmd::guest::setup::Told;
use crate::exit::{Exit, Failure};
use crate::out;

/// A run that is asked for.
#[derive(Debug)]
pub enum Asked {
    /// With its options.
    Run(&'static Manifest, Options),
    /// A manifest that cannot be had.
    Unread(Unread),
}

impl Asked {
    /// From a name that comes with pagelab, or a path with the words behind it.
    pub fn of(name: &str, given: &ArgMatches) -> Result<Asked, clap::Error> {
        let manifest = match named(name) {
            Ok(manifest) => manifest,
            Err(Unread::Unknown(name)) => {
                let text = not_one(&name);
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidSubcommand, text));
            }
            Err(unread) => return Ok(Asked::Unread(unread)),
        };
        if !is_path(name) {
            return Ok(Asked::Run(manifest, chosen(manifest, given)?));
        }
        let words = given.get_many::<OsString>("").into_iter().flatten();
        let command = command_of(manifest).no_binary_name(true).bin_name(format!("pagelab workload {name}"));
        let given = command.try_get_matches_from(words)?;
        Ok(Asked::Run(manifest, chosen(manifest, &given)?))
    }
}

fn chosen(manifest: &'static Manifest, given: &ArgMatches) -> Result<Options, clap::Error> {
    let options = manifest.options(given.get_flag("quick"), &[]).map_err(wrong)?;
    given_options(manifest.options, options, given)
}

/// The command line of one.
pub fn command_of(manifest: &'static Manifest) -> clap::Command {
    let quick: Vec<String> = manifest.quick.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let quick = clap::Arg::new("quick")
        .long("quick")
        .action(clap::ArgAction::SetTrue)
        .help(format!("Smaller, to see whether it works: {}", quick.join(", ")));
    let more = format!(
        "{}\n\nInput: {}\n\nWorking set: {}\n\ndocs/external.md",
        manifest.explanation, manifest.input, manifest.working_set
    );
    clap::Command::new(manifest.name.as_str())
        .about(manifest.about.as_str())
        .after_help(more)
        .args(manifest.options.iter().map(argument_of))
        .arg(quick)
}

/// Runs it once. Its output goes to standard error line by line.
pub fn run(asked: &Asked) -> Result<(&'static Manifest, Done, Options), Failure> {
    let (manifest, options) = match asked {
        Asked::Run(manifest, options) => (*manifest, options.clone()),
        Asked::Unread(unread) => return Err(unread_failure(unread)),
    };
    let mut told = Told::watch(true)?;
    let done = external::run::run(manifest, &options, &mut told, &mut |line| out::complain(line));
    done.map(|done| (manifest, done, options)).map_err(failure)
}

/// The exit code of a manifest that cannot be had.
pub fn unread_failure(unread: &Unread) -> Failure {
    let exit = match unread {
        Unread::Unknown(_) => Exit::Usage,
        Unread::Io(_, error) if error.kind() == std::io::ErrorKind::NotFound => Exit::Usage,
        Unread::Io(..) | Unread::Bad(_) => Exit::BadInput,
    };
    Failure::new(exit, unread.to_string())
}

fn failure(failed: Failed) -> Failure {
    let exit = match failed {
        Failed::NotReady(error) => return setup_failure(error),
        Failed::Stopped(signal) => {
            out::complain(&format!("pagelab: {failed}"));
            out::ended_by(128 + signal)
        }
        Failed::System(_) | Failed::Ended(_) => Exit::Partial,
        Failed::Wrong(_) => Exit::Bug,
    };
    Failure::new(exit, failed.to_string())
}

/// The exit code of a set-up that failed. A signal that asked to stop ends the process here.
pub fn setup_failure(error: pagelab_packages::error::Error) -> Failure {
    let exit = match error.kind() {
        Kind::NotAvailable => Exit::NotAvailable,
        Kind::Refused => Exit::Partial,
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

/// Whether it can run, for a list.
pub fn readiness(state: &State) -> &str {
    match state {
        State::Ready(_) => "ready",
        State::AtHand => "ready: its programs are installed",
        State::Missing(why) => why,
    }
}

/// The part of the list that is theirs.
pub fn list(page: &mut Page) {
    page.line("external, programs that are not ours:");
    let all = external::all();
    let widest = all.iter().map(|manifest| manifest.name.len()).max().unwrap_or(0);
    for manifest in all {
        let head = format!("{:widest$}  ", manifest.name);
        page.hanging(&head, &manifest.about);
        page.hanging_dim(&" ".repeat(widest + 2), readiness(&state(manifest)));
    }
}

/// One of the list for programs.
pub fn listed(manifest: &Manifest) -> Object {
    let state = state(manifest);
    let (home, missing) = match &state {
        State::Ready(home) => (Some(home.folder.display().to_string()), None),
        State::AtHand => (None, None),
        State::Missing(why) => (None, Some(why.clone())),
    };
    Object::new()
        .put("name", manifest.name.as_str())
        .put("about", manifest.about.as_str())
        .put("explanation", manifest.explanation.as_str())
        .put("input", manifest.input.as_str())
        .put("working_set", manifest.working_set.as_str())
        .put("ready", missing.is_none())
        .option("missing", missing, "nothing: it can run")
        .option("home", home, "it is not set up yet")
        .put("options", array(manifest.options, json::option))
}

/// What a run said: the document of a built-in workload, and where its programs are from.
pub fn done(manifest: &Manifest, options: &Options, done: &Done) -> Value {
    let put = |object: Object, (head, value): (&pagelab_workloads::options::OptionHead, &_)| {
        object.put(head.name, json::typed(value))
    };
    let package = |(name, version): &(String, String)| {
        Object::new().put("name", name.as_str()).put("version", version.as_str())
    };
    let program = |(name, path): &(String, std::path::PathBuf)| {
        Object::new().put("name", name.as_str()).put("path", path.display().to_string())
    };
    header("workload")
        .put("name", manifest.name.as_str())
        .put("version", env!("CARGO_PKG_VERSION"))
        .put("options", options.all().fold(Object::new(), put))
        .put("merit", figure(&done.merit))
        .option("working_set_bytes", None::<u64>, "an external program does not tell it")
        .option("checksum", done.checksum.clone(), "this workload has none")
        .option("latency", None::<u64>, "an external program tells its own, in figures")
        .put("figures", array(&done.figures, figure))
        .put("hot_regions", Vec::<Value>::new())
        .put("generator", manifest.about.as_str())
        .put("generated", done.input.as_str())
        .put("manifest", manifest.fingerprint.as_str())
        .put("packages", array(&done.home.packages, package))
        .put("programs", array(&done.home.programs(manifest), program))
        .into()
}

fn figure(figure: &Figure) -> Object {
    Object::new()
        .put("name", figure.name.as_str())
        .put("unit", figure.unit.as_str())
        .put("better", json::better(figure.better))
        .put("value", figure.value)
}
