//! Manifest of a run of this process: user, command line, machine and time.

use pagelab_host::collect::identify;
use pagelab_host::machine::MachineOverrides;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Snapshot;
use pagelab_model::run::{ClockReading, Manifest, Run, RunEnd, SampleStream};
pub use pagelab_sys::clock::current_moment;

/// Reads only the machine, without its TLBs, and its settings, for a manifest.
pub fn read_this_machine(root: &Root) -> Snapshot {
    let (machine, settings) = identify(&Reader::new(root), &MachineOverrides::default());
    let mut snapshot = Snapshot::new_unread(root.name(), machine.page_size);
    snapshot.pmd_order = settings.pmd_order(machine.page_size);
    (snapshot.machine, snapshot.settings) = (machine, settings);
    snapshot
}

/// Builds the manifest of this process, with the machine of `snapshot`.
pub fn build_for_process(
    kind: &str,
    seed: Option<u64>,
    started: ClockReading,
    snapshot: &Snapshot,
) -> Manifest {
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

/// Builds a run of one snapshot and the samples of its probe, as if read from a run file.
pub fn run_from_snapshot(
    name: &str,
    manifest: Manifest,
    snapshot: Snapshot,
    streams: Vec<SampleStream>,
) -> Run {
    let after_ns = current_moment().boottime_ns.saturating_sub(manifest.started.boottime_ns);
    let run = Run::new(name, manifest, RunEnd::Complete { after_ns });
    Run { streams, snapshot: Some(Box::new(snapshot)), ..run }
}
