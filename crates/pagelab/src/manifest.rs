//! The manifest of a run of this process: who ran what where, and when.

use pagelab_host::collect::identify;
use pagelab_host::machine::Known;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::run::{Ending, Manifest, Moment, Run, Stream};
use pagelab_model::{Order, Snapshot};
use pagelab_sys::clock;

/// This moment on both clocks.
pub fn now() -> Moment {
    Moment { realtime_ns: clock::realtime_ns(), boottime_ns: clock::boottime_ns() }
}

/// A look in which only the machine (but for its TLBs) and its settings were read, for a manifest.
pub fn this_machine(root: &Root) -> Snapshot {
    let (machine, settings) = identify(&Reader::new(root), &Known::default());
    let mut look = Snapshot::unread(root.name(), machine.page_size);
    (look.machine, look.settings) = (machine, settings);
    look.pmd_order = pmd_order(&look);
    look
}

fn pmd_order(look: &Snapshot) -> Order {
    let page_size = look.machine.page_size;
    let size = look.settings.thp.as_ref().ok().and_then(|thp| thp.pmd_size.as_ref().ok());
    let pages = size.map(|size| size.0 / page_size.bytes()).filter(|pages| pages.is_power_of_two());
    pages.map_or(page_size.usual_pmd_order(), |pages| Order(pages.trailing_zeros() as u8))
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
