//! Snapshot of physical memory: the cheap files and the census, without processes.

use std::time::Duration;

use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::machine::MachineOverrides;
use pagelab_host::processes;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::{Snapshot, UnlistedFree};

use crate::pcp_lists::{drain_pcp_lists, isolate_pcp_pages};

/// How to look.
#[derive(Clone, Debug)]
pub struct SnapshotOptions {
    /// Read pagetypeinfo: free memory by migratetype. It walks every free list with interrupts off.
    pub pagetypeinfo: bool,
    /// Seed of the sample, where the census is one.
    pub seed: u64,
    /// Properties of the machine known to the caller.
    pub known_machine: MachineOverrides,
    /// Wall time above which the census is a sample.
    pub census_time_budget: Duration,
    /// Drains the pcp lists first, and isolates the rest of their pages, so that they are counted as free.
    pub drain_pcp: bool,
}

impl Default for SnapshotOptions {
    fn default() -> SnapshotOptions {
        SnapshotOptions {
            pagetypeinfo: false,
            seed: 1,
            known_machine: MachineOverrides::default(),
            census_time_budget: Duration::from_secs(2),
            drain_pcp: false,
        }
    }
}

/// Looks. Processes are not read, since walking their page tables is slow and not needed here.
pub fn take_snapshot(root: &Root, options: &SnapshotOptions) -> Snapshot {
    let mut isolated = None;
    if options.drain_pcp && root.is_live() {
        drain_pcp_lists(root);
        isolated = Some(isolate_pcp_pages(root));
    }
    let reader = Reader::new(root);
    let no_processes = processes::ScanBudget {
        processes_max: 0,
        per_process: Duration::ZERO,
        total: Duration::ZERO,
        ..processes::ScanBudget::default()
    };
    let collect_options = CollectOptions {
        pagetypeinfo: options.pagetypeinfo,
        processes: no_processes,
        overrides: options.known_machine.clone(),
        captured_realtime_ns: root.manifest().and_then(|manifest| manifest.realtime_ns),
    };
    let mut snapshot = collect(&reader, &collect_options);
    snapshot.census = match &snapshot.zoneinfo {
        Ok(zoneinfo) => {
            let time_budget = options.census_time_budget;
            let options = CensusOptions { time_budget, ..census_options(&snapshot, options.seed) };
            let mut scanned_census = reader.note_malformed(take_census(root, &reader, zoneinfo, &options));
            if let (Some(taken), Ok(census)) = (&isolated, &mut scanned_census) {
                taken.count_as_free(census);
            }
            scanned_census
        }
        Err(absence) => Err(absence.clone()),
    };
    if let Some(absence) = root.manifest_absence() {
        let _ = reader.note_malformed::<()>(Err(absence.clone()));
    }
    snapshot.problems = reader.problems();
    snapshot
}

/// Options of the census for a snapshot's machine.
pub fn census_options(snapshot: &Snapshot, seed: u64) -> CensusOptions {
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let orders = zones.iter().map(|zone| zone.areas.orders()).max();
    // Without buddyinfo the largest order is not known; one above the pageblock's is what most kernels have.
    let orders = orders.unwrap_or(snapshot.pageblock_order.index() + 2);
    let page_size = snapshot.machine.page_size;
    let options = CensusOptions::new(page_size, snapshot.pageblock_order, snapshot.pmd_order, orders);
    let balance = FreeBalance::from_snapshot(snapshot);
    let off_lists = balance.map_or(UnlistedFree::Unknown, |balance| balance.unlisted_free());
    CensusOptions { seed, off_lists, ..options }
}
