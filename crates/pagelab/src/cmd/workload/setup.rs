//! `pagelab workload setup`: external workloads are made ready, without installing anything.

use std::io::Write;
use std::time::Instant;

use clap::ArgMatches;
use pagelab_experiment::external::home::Home;
use pagelab_experiment::external::manifest::Manifest;
use pagelab_experiment::external::{self, named, setup};
use pagelab_report::json::header;
use pagelab_report::json::object::{Object, array};

use super::external::{setup_failure, unread_failure};
use crate::cmd::guest::setup::Told;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// The word behind `pagelab workload`.
pub const NAME: &str = "setup";
/// The word for all of them.
const ALL: &str = "all";

const AFTER_HELP: &str = "\
Programs are taken from PATH where they do, else fetched with apt-get and unpacked below \
$XDG_CACHE_HOME/pagelab or ~/.cache/pagelab; nothing is installed, and no root is needed. Data are made \
there too. What is half made is never used, and made anew by the next set-up.

Examples:
  pagelab workload setup redis
  pagelab workload setup all     those that cannot be are told, the others go on

docs/external.md tells what each takes.";

/// What `workload setup` was asked for.
#[derive(Debug)]
pub struct Args {
    names: Vec<String>,
    again: bool,
    json: bool,
}

/// Its command line.
pub fn command() -> clap::Command {
    let flag = |name: &'static str, help: &'static str| {
        clap::Arg::new(name).long(name).action(clap::ArgAction::SetTrue).help(help)
    };
    clap::Command::new(NAME)
        .about("Make external workloads ready: fetch their programs, make their data")
        .after_help(AFTER_HELP)
        .arg(
            clap::Arg::new("name")
                .value_name("NAME")
                .required(true)
                .num_args(1..)
                .help("External workloads, paths of manifests, or all"),
        )
        .arg(flag("again", "Fetch and make everything anew"))
        .arg(flag("json", "Print JSON"))
}

impl Args {
    /// What was typed.
    pub fn of(given: &ArgMatches) -> Result<Args, clap::Error> {
        let names = given.get_many::<String>("name").into_iter().flatten().cloned().collect();
        Ok(Args { names, again: given.get_flag("again"), json: given.get_flag("json") })
    }
}

/// A workload that was to be set up, and what became of it.
struct Made {
    manifest: &'static Manifest,
    home: Result<Home, Failure>,
    seconds: f64,
}

/// Sets up those that were asked for. Of several, those that cannot be are told, and the others go on.
pub fn run(args: &Args) -> Outcome {
    let mut manifests: Vec<&'static Manifest> = Vec::new();
    for name in &args.names {
        match name.as_str() {
            ALL => manifests.extend(external::all()),
            name => manifests.push(named(name).map_err(|unread| unread_failure(&unread))?),
        }
    }
    let mut told = Told::watch(true)?;
    let mut all: Vec<Made> = Vec::new();
    for manifest in manifests {
        let began = Instant::now();
        let home = setup::setup(manifest, args.again, &mut told).map_err(setup_failure);
        if let Err(failure) = &home {
            out::complain(&format!("{}: {failure}", manifest.name));
        }
        all.push(Made { manifest, home, seconds: began.elapsed().as_secs_f64() });
    }
    let mut out = out::stdout();
    if args.json {
        let document = header("workload_setup").put("workloads", array(&all, to_json));
        let document: serde_json::Value = document.into();
        let text = pagelab_report::json::to_text(&document);
        let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
        out.write_all(text.as_bytes())?;
    } else {
        for made in &all {
            let Ok(home) = &made.home else { continue };
            let (name, mib) = (&made.manifest.name, home.bytes >> 20);
            let from = match home.packages.len() {
                0 => "installed programs".to_owned(),
                count => format!("{count} packages, {mib} MiB"),
            };
            writeln!(out, "{name}: ready, {from}   {}", home.folder.display())?;
        }
    }
    out.flush()?;
    // One that was asked for alone has its own code; of several, a part was done.
    let failed = all.iter().filter_map(|made| made.home.as_ref().err().map(Failure::exit));
    let failed: Vec<Exit> = failed.collect();
    Ok(match &failed[..] {
        [] => Exit::Done,
        [exit] if all.len() == 1 => *exit,
        all_of_them if all_of_them.len() == all.len() => Exit::NotAvailable,
        _ => Exit::Partial,
    })
}

fn to_json(made: &Made) -> Object {
    let package = |(name, version): &(String, String)| {
        Object::new().put("name", name.as_str()).put("version", version.as_str())
    };
    let object = Object::new()
        .put("name", made.manifest.name.as_str())
        .put("ready", made.home.is_ok())
        .put("seconds", made.seconds);
    match &made.home {
        Ok(home) => object
            .put("home", home.folder.display().to_string())
            .put("bytes", home.bytes)
            .put("packages", array(&home.packages, package)),
        Err(failure) => object.put("missing", failure.to_string()),
    }
}
