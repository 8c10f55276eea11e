//! How many pageblocks are spoiled now, and by what: a census of the whole machine.

use std::time::{Duration, Instant};

use pagelab_formats::{buddyinfo, zoneinfo};
use pagelab_host::census::{CensusOptions, census};
use pagelab_host::paths::{BUDDYINFO, STAT_REFRESH, ZONEINFO};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::supply::{CULPRITS, HugeSupply, supply};
use pagelab_model::{BlockCounts, Census, Order, PageClass, PageSize, Reading};

/// Blocks that hold something that cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoiledBlocks {
    /// Blocks that hold memory.
    pub blocks: u64,
    /// Spoiled ones, as `pagelab can` counts them: pages without any flag spoil where per-CPU lists cannot
    /// explain them. Those of pipes have none, and neither have free pages on the lists.
    pub spoiled: u64,
    /// Blocks at least half of which is unmovable or has no flags: whole blocks that the kernel took over for
    /// unmovable pages.
    pub crammed: u64,
    /// Blocks that hold at least one page of the class, for each class that spoils.
    pub holding: Vec<(PageClass, u64)>,
    /// Whether every block was looked at.
    pub is_whole: bool,
}

/// A census takes this long at most before it becomes a sample.
const TIME_BUDGET: Duration = Duration::from_secs(20);

/// How often the per-CPU lists are asked to shrink; each time they keep 7/8 at least.
const SHRINKS: u32 = 48;
/// How long that may take: each refresh waits for every processor, which takes long on a busy machine.
const SHRINK_MAX: Duration = Duration::from_millis(500);

/// Asks the per-CPU lists of free pages to shrink to their least size: since 6.7 they may hold an eighth of
/// the memory, and their pages look like unmovable ones. Each refresh of the counters decays them
/// (mm/vmstat.c, `refresh_cpu_vm_stats`). Root only, and without harm: what is refused changes the noise.
pub fn shrink_per_cpu_lists(root: &Root) {
    let until = Instant::now() + SHRINK_MAX;
    for _ in 0..SHRINKS {
        if Instant::now() > until || root.read(STAT_REFRESH).is_err() {
            return;
        }
    }
}

/// Counts the machine's pageblocks.
pub fn count(root: &Root, page_size: PageSize, block: Order) -> Reading<SpoiledBlocks> {
    shrink_per_cpu_lists(root);
    let reader = Reader::new(root);
    let zones = reader.parse(ZONEINFO, zoneinfo::parse)?;
    let buddy = reader.parse(BUDDYINFO, buddyinfo::parse)?;
    let orders = buddy.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let options =
        CensusOptions { time_budget: TIME_BUDGET, ..CensusOptions::new(page_size, block, block, orders) };
    let census = census(root, &reader, &zones, &options)?;
    let is_whole = matches!(census.coverage, pagelab_model::Coverage::Whole);
    let total: HugeSupply = supply(&census, Some(&buddy), block, &[]).total;
    let holding = CULPRITS.into_iter().zip(&total.culprits);
    Ok(SpoiledBlocks {
        blocks: total.units.value,
        spoiled: total.spoiled_low_per_cpu.unwrap_or(total.spoiled.high.value),
        crammed: crammed(&census),
        holding: holding.map(|(class, culprit)| (class, culprit.holding.value)).collect(),
        is_whole,
    })
}

/// Classes whose pages come from the system's own unmovable and reclaimable allocations.
const UNMOVABLE: [PageClass; 4] =
    [PageClass::Slab, PageClass::PageTable, PageClass::Kernel, PageClass::Unknown];

fn crammed(census: &Census) -> u64 {
    let blocks = census.zones.iter().flat_map(|zone| &zone.blocks);
    let is_crammed = |(_, counts): &&(u64, BlockCounts)| {
        2 * UNMOVABLE.iter().map(|&class| counts.of(class)).sum::<u32>() >= counts.total()
    };
    blocks.filter(is_crammed).count() as u64
}

impl SpoiledBlocks {
    /// Blocks that hold at least one page of this class.
    pub fn holding(&self, class: PageClass) -> u64 {
        self.holding.iter().find(|(of, _)| *of == class).map_or(0, |(_, blocks)| *blocks)
    }
}
