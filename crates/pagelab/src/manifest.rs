//! The manifest of a run of this process: who ran what where, and when.

use pagelab_model::Snapshot;
use pagelab_model::run::{Ending, Manifest, Moment, Run, Stream};
use pagelab_sys::clock;

/// This moment on both clocks.
pub fn now() -> Moment {
    Moment { realtime_ns: clock::realtime_ns(), boottime_ns: clock::boottime_ns() }
}

/// The manifest of what this process does, on the machine of `snapshot`.
pub fn of_this_process(kind: &str, seed: Option<u64>, started: Moment, snapshot: &Snapshot) -> Manifest {
    Manifest {
        kind: kind.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        seed,
        started,
        machine: snapshot.machine.clone(),
        settings: snapshot.settings.clone(),
    }
}

/// A run that is one look at a machine with the samples of its probe, as it would be read from a file.
pub fn run_of(name: &str, manifest: Manifest, snapshot: Snapshot, streams: Vec<Stream>) -> Run {
    let after_ns = now().boottime_ns.saturating_sub(manifest.started.boottime_ns);
    let run = Run::new(name, manifest, Ending::Complete { after_ns });
    Run { streams, snapshot: Some(Box::new(snapshot)), ..run }
}
