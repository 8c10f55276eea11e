//! Which instruments work here, and for each that does not, why and how to get it.
//!
//! Everything is asked in a way that changes nothing: nothing is mounted, no setting is written. A saved
//! tree can show the files that it holds; what only a running kernel can answer is absent there.

mod calls;
mod files;

use pagelab_formats::mountinfo::Mount;
use pagelab_model::instruments::Instrument;
use pagelab_model::machine::Cgroup;
use pagelab_model::pressure::Pressure;
use pagelab_model::settings::SwapArea;
use pagelab_model::snapshot::AllocFailures;
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};

use crate::reader::Reader;

/// Readings that were made anyway and answer for their instruments.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    /// Mounts of this process.
    pub mounts: &'s Reading<Vec<Mount>>,
    /// Swap areas.
    pub swap: &'s Reading<Vec<SwapArea>>,
    /// The kernel's log.
    pub kernel_log: &'s Reading<AllocFailures>,
    /// The control group.
    pub cgroup: &'s Reading<Cgroup>,
    /// Memory pressure.
    pub pressure: &'s Reading<Pressure>,
    /// Size of a memory block.
    pub memory_block: &'s Reading<Bytes>,
}

/// Asks every instrument.
pub fn read(reader: &Reader<'_>, seen: &Seen<'_>) -> Vec<Instrument> {
    let mut instruments = calls::all(reader, seen);
    instruments.extend(files::all(reader, seen));
    instruments
}

fn instrument(name: &'static str, purpose: &'static str, state: Reading<String>) -> Instrument {
    Instrument { name: name.into(), purpose: purpose.into(), state }
}

/// An instrument that the kernel was built without.
fn not_built(source: &str, config: &str) -> Absence {
    Absence::new(source, AbsentWhy::NotThere, format!("this kernel is built without {config}"))
        .or(format!("boot a kernel built with {config}=y"))
}

/// An instrument that only a running kernel can answer for, on a saved tree.
fn live_only(source: &str) -> Absence {
    Absence::new(source, AbsentWhy::NotSaved, "only the running machine can say")
        .or("run pagelab on the machine itself")
}

/// The state of an instrument that is a file. A file that is not there without a reason of its own (such
/// as a file system that is not mounted) is one that this kernel does not have.
fn file(state: Reading<()>, works: &str, config: &str) -> Reading<String> {
    match state {
        Ok(()) => Ok(works.to_owned()),
        Err(absence) if absence.why == AbsentWhy::NotThere && absence.detail.is_empty() => {
            Err(not_built(&absence.source, config))
        }
        Err(absence) => Err(absence),
    }
}
