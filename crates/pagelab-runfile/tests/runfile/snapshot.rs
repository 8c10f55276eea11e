//! Snapshot of the test machine, for a file.

use std::time::Duration;

use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Snapshot;

/// One look, with a census where this user may make one.
pub fn take_snapshot() -> Snapshot {
    let root = Root::live();
    let reader = Reader::new(&root);
    let mut snapshot = collect(&reader, &CollectOptions::default());
    let size = snapshot.machine.page_size;
    if let (Ok(zones), Ok(buddy)) = (&snapshot.zoneinfo, &snapshot.buddyinfo) {
        let orders = buddy.zones.first().map_or(1, |zone| zone.areas.orders());
        let mut options = CensusOptions::new(size, snapshot.pageblock_order, snapshot.pmd_order, orders);
        options.time_budget = Duration::from_secs(60);
        snapshot.census = take_census(&root, &reader, zones, &options);
    }
    snapshot
}
