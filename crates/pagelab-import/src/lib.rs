//! Import of files that others wrote: copies of buddyinfo and scrapes of node_exporter as a recording,
//! outputs of perf stat as an experiment.

mod file_labels;
pub mod perf_stat;
pub mod reading_tables;
pub mod source;

use pagelab_command::exit::{Failure, FailureKind, run_file_write_failure};
use pagelab_formats::node_exporter::Uname;
use pagelab_model::run::{ClockReading, Manifest, RunEvent};
use pagelab_model::{Absence, AbsenceReason, Machine, PageSize, Snapshot};
use pagelab_runfile::{Error, ErrorKind, RunWriter};

use source::ImportedReadings;

/// Writes the readings and the omissions.
pub fn write_recording(
    writer: &mut RunWriter,
    gathered: &ImportedReadings,
    first_ns: u64,
) -> Result<(), Error> {
    for text in gathered.notes() {
        writer.add_event(&RunEvent { at_ns: 0, kind: "import".to_owned(), text })?;
    }
    for (file, why) in &gathered.unreadable {
        let text = format!("{file} was skipped: {why}");
        writer.add_event(&RunEvent { at_ns: 0, kind: "left out".to_owned(), text })?;
    }
    gathered.tables.write(writer, first_ns)
}

/// The manifest of a machine of which little is known.
pub fn unknown_machine_manifest(
    started: ClockReading,
    page_size: Option<PageSize>,
    uname: &Uname,
) -> Manifest {
    let absent = || Absence::new("the imported files", AbsenceReason::NotSaved, "not stated in the files");
    let known = Snapshot::new_unread("the imported files", page_size.unwrap_or(PageSize::DEFAULT));
    let said = |text: &Option<String>| text.clone().ok_or_else(absent);
    let machine = Machine {
        host_name: uname.host_name.clone(),
        kernel_release: said(&uname.release),
        kernel_version: Err(absent()),
        kernel_cmdline: Err(absent()),
        architecture: said(&uname.machine),
        page_size_source: if page_size.is_some() { "--page-size" } else { "assumed" }.to_owned(),
        cpu: Err(absent()),
        caches: Err(absent()),
        tlb: Err(absent()),
        nodes: Err(absent()),
        hypervisor: Err(absent()),
        direct_map: Err(absent()),
        cgroup: Err(absent()),
        memory_block: Err(absent()),
        ram: Err(absent()),
        page_reporting: None,
        ..known.machine
    };
    let mut settings = known.settings;
    (settings.thp, settings.hugetlb, settings.swap) = (Err(absent()), Err(absent()), Err(absent()));
    settings.vm_absent = vec![absent()];
    Manifest {
        kind: "import".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        seed: None,
        started,
        machine,
        settings,
    }
}

/// Nothing could be read: only for lack of permission, or because no file contains the requested data.
pub fn nothing_to_import(is_denied: bool, expected: &str) -> Failure {
    match is_denied {
        true => Failure::cannot(FailureKind::NotAvailable, "import", "no permission to read the files"),
        false => {
            let reason = format_args!("no readable file contains {expected}");
            Failure::cannot(FailureKind::BadInput, "import", reason).hint("see --help for the formats")
        }
    }
}

/// A run file that cannot be written.
pub fn write_failure(error: &Error) -> Failure {
    match error.kind() {
        // The values come from the imported files.
        ErrorKind::NotStorable => Failure::new(FailureKind::BadInput, error.to_string()),
        _ => run_file_write_failure(error),
    }
}
