//! A look at physical memory: the cheap files and the census, without processes.

use std::time::Duration;

use pagelab_host::census::{CensusOptions, census};
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::machine::Known;
use pagelab_host::processes;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::{OffLists, Snapshot};

use crate::lists::take_off;
use crate::settle::settle;

/// How to look.
#[derive(Clone, Debug)]
pub struct LookOptions {
    /// Read pagetypeinfo: free memory by migratetype. It walks every free list with interrupts off.
    pub pagetypeinfo: bool,
    /// Seed of the sample, where the census is one.
    pub seed: u64,
    /// What the caller knows about the machine.
    pub known: Known,
    /// Wall time above which the census is a sample.
    pub census_time: Duration,
    /// Let free pages that wait on the processors' lists go to the free lists before, and take off what stays
    /// there, so that it is seen as free.
    pub settle: bool,
}

impl Default for LookOptions {
    fn default() -> LookOptions {
        LookOptions {
            pagetypeinfo: false,
            seed: 1,
            known: Known::default(),
            census_time: Duration::from_secs(2),
            settle: false,
        }
    }
}

/// Looks. Processes are not asked, since walking their page tables takes long and says nothing here.
pub fn look(root: &Root, options: &LookOptions) -> Snapshot {
    let mut taken_off = None;
    if options.settle && root.is_live() {
        settle(root);
        taken_off = Some(take_off(root));
    }
    let reader = Reader::new(root);
    let nobody = processes::Budget {
        processes_max: 0,
        each: Duration::ZERO,
        total: Duration::ZERO,
        ..processes::Budget::default()
    };
    let collected = CollectOptions {
        pagetypeinfo: options.pagetypeinfo,
        processes: nobody,
        known: options.known.clone(),
        taken_realtime_ns: root.manifest().and_then(|manifest| manifest.realtime_ns),
    };
    let mut snapshot = collect(&reader, &collected);
    snapshot.census = match &snapshot.zoneinfo {
        Ok(zoneinfo) => {
            let time_budget = options.census_time;
            let options = CensusOptions { time_budget, ..census_options(&snapshot, options.seed) };
            let mut found = reader.noted(census(root, &reader, zoneinfo, &options));
            if let (Some(taken), Ok(census)) = (&taken_off, &mut found) {
                taken.credit(census);
            }
            found
        }
        Err(absence) => Err(absence.clone()),
    };
    if let Some(absence) = root.manifest_absence() {
        let _ = reader.noted::<()>(Err(absence.clone()));
    }
    snapshot.problems = reader.into_problems();
    snapshot
}

/// How the census of a snapshot's machine is made.
pub fn census_options(snapshot: &Snapshot, seed: u64) -> CensusOptions {
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let orders = zones.iter().map(|zone| zone.areas.orders()).max();
    // Without buddyinfo the largest order is not known; one above the pageblock's is what most kernels have.
    let orders = orders.unwrap_or(snapshot.pageblock_order.index() + 2);
    let page_size = snapshot.machine.page_size;
    let options = CensusOptions::new(page_size, snapshot.pageblock_order, snapshot.pmd_order, orders);
    let balance = FreeBalance::of_snapshot(snapshot);
    let off_lists = balance.map_or(OffLists::CannotTell, |balance| balance.off_lists());
    CensusOptions { seed, off_lists, ..options }
}
