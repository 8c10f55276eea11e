//! Readers of profiles: run files, and misses by region as text.

use std::path::Path;

use pagelab_command::atomic_file::is_run_file;
use pagelab_command::exit::{Failure, FailureKind, read_failure_for};
use pagelab_command::input;
use pagelab_formats::region_list;
use pagelab_model::{PageSize, TlbProfile};
use pagelab_probe::walk_cost;
use pagelab_runfile::RunReader;
use pagelab_target::sampling;

/// The command that makes a profile.
const PROFILE_COMMAND: &str = "`pagelab profile -o FILE -- COMMAND`";

/// A profile, and the machine on which it was made.
#[derive(Debug)]
pub struct ProfileSource {
    /// The profile.
    pub profile: TlbProfile,
    /// The machine, as [`walk_cost::machine_key`] writes it; `None` if the file does not name it.
    pub machine: Option<String>,
}

/// Reads a profile in either format.
pub fn read_profile(path: &Path) -> Result<ProfileSource, Failure> {
    if is_run_file(path) {
        return read_run_file(path);
    }
    let (name, text) = input::read_bounded_input(path, input::InputConsumer::RunFileFrom(PROFILE_COMMAND))?;
    if region_list::is_region_counts(&text) {
        let options = sampling::SamplingOptions::new(PageSize::DEFAULT, None);
        let profile = sampling::file::profile_region_counts(&text, &name, options)?;
        return Ok(ProfileSource { profile, machine: None });
    }
    let message = format!(
        "{name}: expected a run file of `pagelab profile` or misses by region (`Region (Hex): 0x…`); hint: \
        for files of perf, use `pagelab profile --source perf-data FILE`"
    );
    Err(Failure::new(FailureKind::BadInput, message))
}

/// Reads the profile of a run file.
pub fn read_run_file(path: &Path) -> Result<ProfileSource, Failure> {
    let read = RunReader::open(path).and_then(|reader| reader.read_run());
    let run = read.map_err(|error| read_failure_for(&error, PROFILE_COMMAND))?;
    let machine = Some(walk_cost::machine_key(&run.manifest.machine));
    let Some(profile) = run.profile else {
        let found = format_args!("a run file of kind {} without one", run.manifest.kind);
        return Err(Failure::expected(&run.name, "a profile", found)
            .hint("create a profile with `pagelab profile -- COMMAND`"));
    };
    Ok(ProfileSource { profile: *profile, machine })
}
