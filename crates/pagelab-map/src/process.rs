//! `pagelab map --pid`: the physical memory of one process, and with `--explain` the purpose of each of its
//! mappings.

use std::ops::Range;

use pagelab_command::exit::{Exit, Failure, Outcome, process_failure};
use pagelab_command::output;
use pagelab_host::census::CensusOptions;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{address_space, process_map, settings};
use pagelab_metrics::address_space::ThpEligibilitySettings;
use pagelab_model::{Reading, SysfsChoice};
use pagelab_report::json;
use pagelab_report::map::explain::AddressSpaceReport;
use pagelab_report::map::process::ProcessReport;

use super::plan::MapPlan;
use super::{print, print_json};

/// Reads and prints. The result is partial if the process exits during the scan.
pub fn run(plan: &MapPlan, pid: u32) -> Outcome {
    let root = Root::live();
    let reader = Reader::new(&root);
    let (options, _) = CensusOptions::for_page_map(&reader, None);
    let map =
        process_map::read(&reader, pid, options.page_size, options.pmd_order).map_err(process_failure)?;
    let report = ProcessReport { map, shows_all: plan.all_mappings };
    match plan.json {
        true => print_json(&json::map::process_document(&report))?,
        false => print(&report.to_text(&output::stdout_style()))?,
    };
    Ok(if report.map.inconsistency.has_ended { Exit::Partial } else { Exit::Success })
}

/// Reads a process and prints its mappings.
pub fn explain(pid: u32, as_json: bool) -> Outcome {
    print_space(&read_address_space(pid, None)?, as_json)
}

/// Prints an address space.
pub fn print_space(space: &AddressSpaceReport, as_json: bool) -> Outcome {
    match as_json {
        true => print_json(&json::map::address_space_document(space)),
        false => print(&space.to_text(&output::stdout_style())),
    }
}

/// Reads the mappings of a process and the modes that control huge pages.
pub fn read_address_space(pid: u32, under_test: Option<Range<u64>>) -> Result<AddressSpaceReport, Failure> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let space = address_space::read(&reader, pid).map_err(process_failure)?;
    let thp = settings::read(&reader).thp;
    let mode = |mode: &Reading<SysfsChoice>| mode.as_ref().ok().map(|choice| choice.selected().to_owned());
    let thp = thp.as_ref().ok();
    Ok(AddressSpaceReport {
        pid,
        name: space.name,
        mappings: space.mappings,
        test_region: under_test,
        settings: ThpEligibilitySettings {
            pmd_size: thp.and_then(|thp| thp.pmd_size.as_ref().ok().copied()),
            enabled: thp.and_then(|thp| mode(&thp.enabled)),
            shmem_enabled: thp.and_then(|thp| mode(&thp.shmem_enabled)),
            process_enabled: space.thp_enabled,
        },
    })
}
