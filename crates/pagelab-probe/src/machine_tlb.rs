//! Snapshots of this machine with its TLBs, which no file of the kernel states.

use pagelab_command::manifest;
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::machine::MachineOverrides;
use pagelab_host::processes::ScanBudget;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::Tlb;
use pagelab_model::{Machine, Reading, Snapshot};
use pagelab_sys::cpuid;

/// Reads a snapshot of the machine, without its processes.
pub fn read_snapshot() -> Snapshot {
    let root = Root::live();
    let no_processes = ScanBudget { processes_max: 0, ..Default::default() };
    let options = CollectOptions {
        pagetypeinfo: false,
        processes: no_processes,
        overrides: MachineOverrides::default(),
        captured_realtime_ns: None,
    };
    collect(&Reader::new(&root), &options)
}

/// Returns the TLBs of the processor of a machine that was read here.
pub fn known_tlb(machine: &Machine) -> Reading<Tlb> {
    match &machine.cpu {
        Ok(cpu) => pagelab_tlb::select_geometry(cpu, &cpuid::read_leaves(), None),
        Err(_) => machine.tlb.clone(),
    }
}

/// Reads only the machine and its settings, with its TLBs.
pub fn read_machine() -> Snapshot {
    let mut snapshot = manifest::read_this_machine(&Root::live());
    snapshot.machine.tlb = known_tlb(&snapshot.machine);
    snapshot
}
