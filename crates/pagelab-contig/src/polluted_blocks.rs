//! Count of polluted pageblocks by cause, from a census of the whole machine.

use std::time::{Duration, Instant};

use pagelab_formats::{buddyinfo, zoneinfo};
use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::paths::{BUDDYINFO, STAT_REFRESH, ZONEINFO};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::supply::{POLLUTING_CLASSES, UnitCounts, compute_supply};
use pagelab_model::{Census, Order, PageClass, PageSize, PageblockCounts, Reading};

/// Blocks that hold something that cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollutedBlocks {
    /// Blocks that hold memory.
    pub blocks_total: u64,
    /// Polluted pageblocks as `pagelab can` counts them: pages without flags pollute if the pcp lists cannot
    /// explain them. Those of pipes have none, and neither have free pages on the lists.
    pub polluted: u64,
    /// Blocks at least half of which is unmovable or has no flags: whole blocks that the kernel took over for
    /// unmovable pages.
    pub mostly_unmovable: u64,
    /// Blocks with at least one page of the class, for each polluting class.
    pub blocks_by_class: Vec<(PageClass, u64)>,
    /// Whether every block was scanned.
    pub is_complete: bool,
}

/// A census takes this long at most before it becomes a sample.
const CENSUS_TIME_BUDGET: Duration = Duration::from_secs(20);

/// Number of requests to shrink the pcp lists; each leaves at least 7/8.
const SHRINK_ROUNDS: u32 = 48;
/// How long that may take: each refresh waits for every processor, which takes long on a busy machine.
const SHRINK_TIME_MAX: Duration = Duration::from_millis(500);

/// Asks the per-CPU lists of free pages to shrink to their least size: since 6.7 they may hold an eighth of
/// the memory, and their pages look like unmovable ones. Each refresh of the counters decays them
/// (mm/vmstat.c, `refresh_cpu_vm_stats`). Requires root; a failure only adds noise.
pub fn shrink_pcp_lists(root: &Root) {
    let deadline = Instant::now() + SHRINK_TIME_MAX;
    for _ in 0..SHRINK_ROUNDS {
        if Instant::now() > deadline || root.read(STAT_REFRESH).is_err() {
            return;
        }
    }
}

/// Counts the machine's pageblocks.
pub fn count_polluted_blocks(
    root: &Root,
    page_size: PageSize,
    pageblock_order: Order,
) -> Reading<PollutedBlocks> {
    shrink_pcp_lists(root);
    let reader = Reader::new(root);
    let zones = reader.parse(ZONEINFO, zoneinfo::parse)?;
    let buddy = reader.parse(BUDDYINFO, buddyinfo::parse)?;
    let orders = buddy.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let options = CensusOptions {
        time_budget: CENSUS_TIME_BUDGET,
        ..CensusOptions::new(page_size, pageblock_order, pageblock_order, orders)
    };
    let census = take_census(root, &reader, &zones, &options)?;
    let is_whole = matches!(census.coverage, pagelab_model::Coverage::Whole);
    let total: UnitCounts = compute_supply(&census, Some(&buddy), pageblock_order, &[]).total;
    let holding = POLLUTING_CLASSES.into_iter().zip(&total.polluting_classes);
    Ok(PollutedBlocks {
        blocks_total: total.units.value,
        polluted: total.polluted_low_per_cpu.unwrap_or(total.polluted.high.value),
        mostly_unmovable: count_mostly_unmovable(&census),
        blocks_by_class: holding.map(|(class, culprit)| (class, culprit.units_with.value)).collect(),
        is_complete: is_whole,
    })
}

/// Classes whose pages come from the system's own unmovable and reclaimable allocations.
const UNMOVABLE_CLASSES: [PageClass; 4] =
    [PageClass::Slab, PageClass::PageTable, PageClass::Kernel, PageClass::Unknown];

fn count_mostly_unmovable(census: &Census) -> u64 {
    let blocks = census.zones.iter().flat_map(|zone| &zone.blocks);
    let is_mostly_unmovable = |(_, counts): &&(u64, PageblockCounts)| {
        2 * UNMOVABLE_CLASSES.iter().map(|&class| counts.pages_of_class(class)).sum::<u32>() >= counts.total()
    };
    blocks.filter(is_mostly_unmovable).count() as u64
}
