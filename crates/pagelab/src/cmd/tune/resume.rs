//! Before a tuning is gone on with: the plans of its arms are what they were.

use std::path::{Path, PathBuf};

use clap::Parser;
use pagelab_model::run::{Ending, Run};
use pagelab_model::tune::{Arm, On};
use pagelab_runfile::Reader;

use super::arms;
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

/// Writes the plans again where they are gone or were changed meanwhile: they follow from the profile, which
/// the run file has. What cannot be gone on with for another reason is refused by whoever does so.
pub fn plans(path: &Path) -> Result<(), Failure> {
    let Ok(run) = Reader::open(path).and_then(|reader| reader.run()) else { return Ok(()) };
    let is_whole = matches!(run.ending, Ending::Complete { .. });
    if run.manifest.kind != "tune" || is_whole {
        return Ok(());
    }
    let bad =
        |text: &str| Failure::new(Exit::BadInput, format!("cannot go on with {}: {text}", path.display()));
    let (Some(tune), Some(profile)) = (&run.tune, &run.profile) else {
        return Err(bad(&format!(
            "it ended before its first trial; its profile is whole: pagelab tune --profile {} -- COMMAND \
             takes that",
            path.display()
        )));
    };
    let Some(args) = asked(&run).filter(|_| tune.pid.is_none() && !tune.plan_file.is_empty()) else {
        return Ok(());
    };
    let plan_file = Path::new(&tune.plan_file);
    if args.plan.is_none() && folder(plan_file) != folder(path) {
        let at = match (plan_file.parent(), folder(path)) {
            (Some(within), Some(folder)) if within.as_os_str().is_empty() => folder.display().to_string(),
            _ => "the folder in which it was begun".to_owned(),
        };
        return Err(bad(&format!(
            "its plan {} and its program are found from another folder: run this in {at}",
            tune.plan_file
        )));
    }
    let chosen = arms::choose(&args, profile, plan_file)?.tune;
    let heads = |arms: &[Arm]| -> Vec<(String, On, Option<u64>)> {
        arms.iter().map(|arm| (arm.name.clone(), arm.on, arm.planned)).collect()
    };
    if heads(&chosen.arms) != heads(&tune.arms) {
        let text =
            "this pagelab makes other plans of its profile; take the version that began it, or a new run";
        return Err(bad(text));
    }
    arms::write(&tune.plan, plan_file)
}

/// The folder that a file lies in, or would.
fn folder(of: &Path) -> Option<PathBuf> {
    let parent = of.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()
}

/// What its command line asked for.
fn asked(run: &Run) -> Option<Box<super::Args>> {
    match Cli::try_parse_from(&run.manifest.command_line).ok()?.command {
        Command::Tune(args) => Some(args),
        _ => None,
    }
}
