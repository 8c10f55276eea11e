//! Where a profile comes from: a run file, or the text of misses by region.

use std::path::Path;

use pagelab_formats::region_counts;
use pagelab_host::root::Root;
use pagelab_model::{PageSize, Profile, Snapshot};
use pagelab_runfile::Reader;
use pagelab_sys::cpuid;

use crate::cmd::report::refusal_by;
use crate::cmd::target_failure;
use crate::exit::{Exit, Failure};
use crate::{input, manifest, walk_cost};
use pagelab_target::sampled;

/// What SQLite files, and so run files, begin with.
const RUN_FILE: &[u8] = b"SQLite format 3\0";

/// What makes a profile.
const MAKER: &str = "`pagelab profile -o FILE -- COMMAND`";

/// A profile, and the machine that it is of.
#[derive(Debug)]
pub struct Source {
    /// The profile.
    pub profile: Profile,
    /// The machine, in the words of [`walk_cost::machine`]; `None` if the file does not say.
    pub machine: Option<String>,
}

/// This machine, its TLBs too.
pub fn look() -> Snapshot {
    let mut look = manifest::this_machine(&Root::live());
    if let Ok(cpu) = &look.machine.cpu {
        look.machine.tlb = pagelab_tlb::choose(cpu, &cpuid::leaves(), None);
    }
    look
}

/// Reads a profile of either form.
pub fn read(path: &Path) -> Result<Source, Failure> {
    if begins_as_run_file(path) {
        return of_run_file(path);
    }
    let (name, text) = input::read(path, input::Reader::Made(MAKER))?;
    if region_counts::is_one(&text) {
        let options = sampled::Options::new(PageSize::USUAL, None);
        let profile = sampled::file::of_regions(&text, &name, options).map_err(target_failure)?;
        return Ok(Source { profile, machine: None });
    }
    let message = format!(
        "{name}: neither a run file of `pagelab profile` nor misses by region (`Region (Hex): 0x…`): \
         `pagelab profile --source perf-data FILE` reads what perf wrote"
    );
    Err(Failure::new(Exit::BadInput, message))
}

fn begins_as_run_file(path: &Path) -> bool {
    // Only a regular file is looked into: a pipe would lose what is read of it.
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    let mut head = [0; RUN_FILE.len()];
    let mut read = |file: &mut std::fs::File| std::io::Read::read_exact(file, &mut head);
    is_file && std::fs::File::open(path).is_ok_and(|mut file| read(&mut file).is_ok()) && head == RUN_FILE
}

/// The profile of a run file.
pub fn of_run_file(path: &Path) -> Result<Source, Failure> {
    let read = Reader::open(path).and_then(|reader| reader.run());
    let run = read.map_err(|error| refusal_by(&error, MAKER))?;
    let machine = Some(walk_cost::machine(&run.manifest.machine));
    let Some(profile) = run.profile else {
        let message = format!(
            "{}: the run holds no profile, it is one of {}: `pagelab profile -- COMMAND` makes one",
            run.name, run.manifest.kind
        );
        return Err(Failure::new(Exit::BadInput, message));
    };
    Ok(Source { profile: *profile, machine })
}
