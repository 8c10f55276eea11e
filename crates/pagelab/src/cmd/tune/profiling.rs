//! The profile that a tuning begins with: made by this program started once more, or read.

use std::path::Path;
use std::process::{Command, Stdio};

use pagelab_host::paths;
use pagelab_model::profile::{Cells, Reuse};
use pagelab_model::{Bytes, Profile};

use super::Source;
use crate::cmd::plan::read;
use crate::exit::{Exit, Failure};
use crate::{out, walk_cost};

/// What is started for it.
pub fn in_words(source: Source, words: &[String]) -> String {
    format!("pagelab profile --source {} -- {}", source.word(), words.join(" "))
}

/// Profiles the program by `pagelab profile`, whose own output this is; what the program prints is dropped.
pub fn make(source: Source, words: &[String], at: &Path) -> Result<Profile, Failure> {
    out::note(&format!("profiling: {}", in_words(source, words)));
    let mut command = own(source, at);
    command.arg("--").args(words);
    finish(command, at)
}

/// Profiles a process that runs, for so long.
pub fn attach(source: Source, pid: u32, time: &str, at: &Path) -> Result<Profile, Failure> {
    out::note(&format!("profiling: pagelab profile --source {} --pid {pid} --for {time}", source.word()));
    let mut command = own(source, at);
    command.args(["--for", time, "--pid", &pid.to_string()]);
    finish(command, at)
}

/// Counts the misses again as if the plan's regions were on huge pages. `None` if there is no such count.
pub fn recount(words: &[String], plan: &Path, at: &Path) -> Option<Profile> {
    out::note("recounting misses with the plan: pagelab profile --source exact --what-if …");
    let mut command = own(Source::Exact, at);
    command.arg("--what-if").arg(plan).arg("--").args(words);
    under(finish(command, at).ok()?)
}

/// The profile as its last what-if has it: misses by region instead of by page.
fn under(mut profile: Profile) -> Option<Profile> {
    let what_if = profile.what_ifs.pop().filter(|_| !profile.what_ifs.is_empty())?;
    let page = profile.page_size.bytes().max(1);
    for image in &mut profile.images {
        image.misses = 0;
        for mapping in &mut image.mappings {
            (mapping.grain, mapping.cells, mapping.reuse) = (Bytes(page), Cells::default(), Reuse::default());
        }
    }
    for region in &what_if.regions {
        let image = profile.images.get_mut(usize::try_from(region.image).ok()?)?;
        image.misses = image.misses.saturating_add(region.misses);
        let mapping = image.mappings.get_mut(usize::try_from(region.mapping).ok()?)?;
        mapping.cells.at.push(region.offset / page);
        mapping.cells.misses.push(region.misses);
    }
    profile.what_ifs = vec![what_if];
    Some(profile)
}

fn own(source: Source, at: &Path) -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.args(["profile", "--source", source.word(), "--output"]).arg(at);
    command
}

fn finish(mut command: Command, at: &Path) -> Result<Profile, Failure> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.map_err(|error| {
        Failure::new(Exit::NotAvailable, "pagelab cannot be started once more for the profile").because(error)
    })?;
    if !status.success() {
        let _ = std::fs::remove_file(at);
        let exit = status.code().and_then(Exit::of).unwrap_or(Exit::Partial);
        let text = "without a profile there is nothing to plan; what stood in its way is said above. \
                    Another --source may do, and --profile takes one that is there";
        return Err(Failure::new(exit, text));
    }
    let profile = read(at);
    // It is in the run file of the tuning.
    let _ = std::fs::remove_file(at);
    profile
}

/// Reads a profile, and puts the price of a walk to it where it is of this machine and that is known.
pub fn read(path: &Path) -> Result<Profile, Failure> {
    let read::Source { mut profile, machine } = read::read(path)?;
    let look = read::look();
    if profile.walk_cost.is_none() && machine.is_none_or(|of| of == walk_cost::machine(&look.machine)) {
        profile.walk_cost = walk_cost::known(&look.machine);
    }
    Ok(profile)
}
