//! `pagelab map --pid P --explain`: every mapping of a process in plain words. `pagelab workload mmap-access
//! --explain` says the same of its own process.

use std::ops::Range;

use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{address_space, settings};
use pagelab_metrics::address_space::HugeSettings;
use pagelab_model::{Choice, Reading};
use pagelab_report::json;
use pagelab_report::map::explain::AddressSpace;

use super::{print, print_json};
use crate::cmd::unread;
use crate::exit::{Failure, Outcome};
use crate::out;

/// Looks at a process and prints.
pub fn run(pid: u32, as_json: bool) -> Outcome {
    show(&look(pid, None)?, as_json)
}

/// Prints an address space.
pub fn show(space: &AddressSpace, as_json: bool) -> Outcome {
    match as_json {
        true => print_json(&json::map::address_space(space)),
        false => print(&space.text(&out::style())),
    }
}

/// The mappings of a process as they are now, and the modes on which huge pages depend.
pub fn look(pid: u32, under_test: Option<Range<u64>>) -> Result<AddressSpace, Failure> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let found = address_space::read(&reader, pid).map_err(unread)?;
    let thp = settings::read(&reader).thp;
    let mode = |mode: &Reading<Choice>| mode.as_ref().ok().map(|choice| choice.selected().to_owned());
    let thp = thp.as_ref().ok();
    Ok(AddressSpace {
        pid,
        name: found.name,
        mappings: found.mappings,
        under_test,
        settings: HugeSettings {
            size: thp.and_then(|thp| thp.pmd_size.as_ref().ok().copied()),
            enabled: thp.and_then(|thp| mode(&thp.enabled)),
            shmem: thp.and_then(|thp| mode(&thp.shmem_enabled)),
            process: found.thp_enabled,
        },
    })
}
