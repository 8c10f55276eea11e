//! Finding a recipe, and looking whether its programs are there.

use std::path::Path;

use pagelab_experiment::recipe::{self, Recipe, Supervised};
use pagelab_experiment::resolve::{PAGELAB, Resolved};
use pagelab_experiment::schedule::first_of_each;
use pagelab_experiment::simulated;

use crate::cmd::usage;
use crate::exit::{Exit, Failure};

/// Recipes are some pages of text.
const BYTES_MAX: u64 = 1 << 20;

/// The recipe of this name, or of this file: where it is from, and its text.
pub fn text(name: &str) -> Result<(String, String), Failure> {
    let is_path = name.contains('/') || name.ends_with(".toml");
    let built_in = recipe::find(name).or_else(|| simulated::find(name));
    if let Some(built_in) = built_in.filter(|_| !is_path) {
        return Ok(("built in".to_owned(), built_in.text.to_owned()));
    }
    let path = Path::new(name);
    if !is_path && !path.exists() {
        let all = recipe::BUILT_IN.iter().chain(simulated::BUILT_IN);
        let names: Vec<&str> = all.map(|recipe| recipe.name).collect();
        return Err(usage(&format!(
            "{name}: no recipe of this name comes with pagelab, and there is no such file; there are {}",
            names.join(", ")
        )));
    }
    let unread = |error: std::io::Error| {
        let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::Usage } else { Exit::BadInput };
        Failure::new(exit, format!("cannot read the recipe {name}")).because(error)
    };
    let metadata = std::fs::metadata(path).map_err(unread)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        let text = format!("{name}: a recipe is a text file of at most {BYTES_MAX} bytes; this is none");
        return Err(Failure::new(Exit::BadInput, text));
    }
    let text = String::from_utf8(std::fs::read(path).map_err(unread)?).map_err(|_| {
        let text =
            format!("{name}: is not a text: a recipe in TOML was wanted; `pagelab recipes` lists some");
        Failure::new(Exit::BadInput, text)
    })?;
    Ok((name.to_owned(), text))
}

/// The recipe that a text is.
pub fn parse(origin: &str, text: &str) -> Result<Recipe, Failure> {
    // All that is wrong, a line each, with file and line.
    Recipe::parse(origin, text)
        .map_err(|bad| Failure::new(Exit::BadInput, format!("{bad}\n  nothing was run")))
}

/// An error if a program that is to run is not there, before anything is changed for it.
pub fn check_programs(resolved: &Resolved) -> Result<(), Failure> {
    for slot in first_of_each(&resolved.plan.schedule) {
        let command = resolved.program(slot.workload, slot.variant);
        check_plan(resolved.recipe.variants[slot.variant].plan.as_ref())?;
        let Some(program) = command.first().filter(|program| *program != PAGELAB) else { continue };
        check_program(program)?;
    }
    Ok(())
}

/// An error if there is no such program.
pub fn check_program(program: &str) -> Result<(), Failure> {
    if program == PAGELAB {
        return Ok(());
    }
    crate::cmd::program(program.as_ref()).map(drop)
}

fn check_plan(plan: Option<&Supervised>) -> Result<(), Failure> {
    let Some(Supervised::Plan(path)) = plan else { return Ok(()) };
    if Path::new(path).is_file() {
        return Ok(());
    }
    let text = format!(
        "plan = {path:?}: there is no such file, so nothing was run; `pagelab plan PROFILE -o {path}` makes \
         one, and \"none\" and \"all\" need none"
    );
    Err(Failure::new(Exit::NotAvailable, text))
}
