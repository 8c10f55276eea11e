//! Lookup of recipes, and checks that their programs exist.

use std::path::Path;

use pagelab_experiment::recipe::SupervisedPlan;
use pagelab_experiment::resolve::{PAGELAB, ResolvedExperiment};
use pagelab_experiment::schedule::first_of_each_pair;
use pagelab_model::Bytes;
use pagelab_report::style::format_bytes;

use crate::cmd::recipes::find_built_in;
use crate::exit::{Failure, FailureKind};

/// Recipes are a few pages of text.
const RECIPE_BYTES_MAX: u64 = 1 << 20;

/// Reads the recipe of this name or file: its origin and its text.
pub fn read_text(name: &str) -> Result<(String, String), Failure> {
    let is_path = name.contains('/') || name.ends_with(".toml");
    let path = Path::new(name);
    if !is_path {
        match find_built_in(name) {
            Ok(built_in) => return Ok(("built in".to_owned(), built_in.text.to_owned())),
            Err(unknown) if !path.exists() => return Err(unknown),
            Err(_) => {}
        }
    }
    let unread = |error: std::io::Error| Failure::cannot_read(format_args!("the recipe {name}"), &error);
    let metadata = std::fs::metadata(path).map_err(unread)?;
    if !metadata.is_file() || metadata.len() > RECIPE_BYTES_MAX {
        let limit = format_bytes(Bytes(RECIPE_BYTES_MAX));
        let action = format_args!("read the recipe {name}");
        return Err(Failure::cannot(
            FailureKind::BadInput,
            action,
            format!("expected a file of at most {limit}"),
        ));
    }
    let text = String::from_utf8(std::fs::read(path).map_err(unread)?).map_err(|_| {
        Failure::expected(name, "a recipe in TOML", "binary data").hint("`pagelab recipes` lists recipes")
    })?;
    Ok((name.to_owned(), text))
}

/// Checks that all programs exist, before anything is changed.
pub fn check_programs(resolved: &ResolvedExperiment) -> Result<(), Failure> {
    for slot in first_of_each_pair(&resolved.plan.schedule) {
        let command = resolved.workload_command(slot.workload, slot.variant);
        if let Some(SupervisedPlan::Plan(path)) = &resolved.recipe.variants[slot.variant].supervised_plan
            && !Path::new(path).is_file()
        {
            let failure =
                Failure::cannot(FailureKind::BadInput, format_args!("read the plan {path}"), "no such file");
            let hint = format!("create it with `pagelab plan PROFILE -o {path}`, or use \"none\" or \"all\"");
            return Err(failure.hint(hint));
        }
        command.first().map_or(Ok(()), |program| check_program(program))?;
    }
    Ok(())
}

pub fn check_program(program: &str) -> Result<(), Failure> {
    if program == PAGELAB {
        return Ok(());
    }
    crate::cmd::find_program(program.as_ref()).map(drop)
}
