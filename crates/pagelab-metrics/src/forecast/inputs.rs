//! Inputs of a forecast from a snapshot: the usable zones of a request, their blocks, and their watermarks.

use pagelab_model::free_areas::{FreeAreas, ZoneKey};
use pagelab_model::pagetype::{CappedCount, Pagetypeinfo};
use pagelab_model::zoneinfo::{PerCpuPageset, ZoneEntry};
use pagelab_model::{
    Absence, Census, CensusZone, Coverage, Meminfo, NodeId, Order, PageClass, PageSize, Reading, Snapshot,
    Zoneinfo,
};

use super::{AllocationMethod, AllocationRequest, forecast_absence, undefined_absence};
use crate::grouping::value_of;
use crate::movable_request::MovableAccess;
use crate::supply::{SupplyUnit, UnknownTreatment, group_blocks};

/// The parts of a machine that a request may use.
#[derive(Debug)]
pub(super) struct ForecastInputs<'s> {
    pub zones: Vec<ZoneInputs>,
    pub census_zones: Vec<&'s CensusZone>,
    pub pageblock_order: Order,
    /// Order of the blocks in [`ZoneInputs::blocks`].
    pub unit_order: Order,
    pub census_absence: Option<Absence>,
    /// Pages of slab that are freed with page cache, according to slabinfo.
    pub page_cache_slab_pages: u64,
    pub notes: Vec<String>,
}

/// Caches whose objects describe page cache: the heads of its buffers, and the nodes of its trees, which
/// contain little else.
const PAGE_CACHE_SLABS: [&str; 2] = ["buffer_head", "radix_tree_node"];

/// Without slabinfo, all reclaimable slab: the count is for upper bounds alone.
fn count_page_cache_slab(snapshot: &Snapshot) -> u64 {
    let Ok(caches) = &snapshot.slabs else {
        let meminfo = snapshot.meminfo.as_ref().ok();
        let reclaimable = meminfo.and_then(|info| info.bytes("SReclaimable")).unwrap_or_default();
        return reclaimable.to_pages(snapshot.machine.page_size).0;
    };
    caches.iter().filter(|cache| PAGE_CACHE_SLABS.contains(&&*cache.name)).map(|cache| cache.pages().0).sum()
}

/// One zone; in base pages unless stated otherwise.
#[derive(Clone, Debug)]
pub(super) struct ZoneInputs {
    pub key: ZoneKey,
    /// Free blocks that the request may take, by order: highatomic and isolated ones are not among them.
    pub areas: FreeAreas,
    /// Free pages that count towards the watermark.
    pub free_pages: u64,
    /// Blocks that are free and not initialised yet.
    pub deferred_blocks: u64,
    /// The min watermark.
    pub min_watermark: u64,
    /// Pages that `lowmem_reserve` withholds from this request.
    pub lowmem_reserve: u64,
    /// Pages on per-CPU lists.
    pub pcp_pages: u64,
    /// The lists, by CPU.
    pub pagesets: Vec<PerCpuPageset>,
    /// Page cache that dropping drops.
    pub droppable_pages: u64,
    /// In the order of their frames.
    pub blocks: Vec<PageblockPages>,
    /// Blocks that are polluted, by the class that is named for it.
    pub polluted: Vec<(PageClass, u64)>,
    /// All other blocks with memory.
    pub clean_blocks: u64,
    /// Slab pages of each block that only slab pollutes.
    pub slab_pages_alone: Vec<u64>,
    /// All page cache, also the part that dropping leaves.
    pub cache_pages: u64,
}

/// A block as the scanners of compaction see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageblockPages {
    pub pages: u64,
    pub free: u64,
    /// Pages that can be moved, page cache among them.
    pub movable: u64,
    /// Page cache that can be dropped.
    pub droppable: u64,
    /// Pages without any flag.
    pub unknown: u64,
    /// Pages that are never moved.
    pub unmovable: u64,
    /// A huge page in use or in a pool: neither moved nor filled.
    pub is_huge: bool,
    /// One folio of page cache as large as a block: compaction leaves it, dropping frees it whole.
    pub is_file_folio: bool,
    /// Whether the free scanner takes room here: pageblocks of movable type.
    pub is_migration_target: bool,
}

impl ZoneInputs {
    /// The zone by its free lists alone; `index` is that of the highest zone of the request.
    fn from_free_lists(areas: FreeAreas, info: &ZoneEntry, index: Option<usize>) -> ZoneInputs {
        let protection = index.and_then(|index| info.protection.get(index)).or(info.protection.last());
        ZoneInputs {
            key: info.key.clone(),
            free_pages: u64::try_from(areas.free_pages()).unwrap_or(u64::MAX),
            areas,
            deferred_blocks: 0,
            min_watermark: info.min.unwrap_or_default().0,
            lowmem_reserve: protection.copied().unwrap_or(0),
            pcp_pages: info.count_pcp_pages().0,
            pagesets: info.pagesets.clone(),
            droppable_pages: 0,
            blocks: Vec::new(),
            polluted: Vec::new(),
            clean_blocks: 0,
            slab_pages_alone: Vec::new(),
            cache_pages: 0,
        }
    }

    /// Pages that the zone withholds from this request.
    pub fn reserved_pages(&self) -> u64 {
        self.min_watermark.saturating_add(self.lowmem_reserve)
    }

    /// Blocks of pages without flags that can be huge pages on pcp lists (5.13 and later: mm/page_alloc.c,
    /// `pcp_allowed_order`).
    pub fn pcp_huge_blocks(&self) -> u64 {
        let unknown_blocks =
            self.blocks.iter().filter(|block| block.pages > 0 && block.unknown == block.pages);
        let pages = self.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
        (unknown_blocks.count() as u64).min(self.pcp_pages.checked_div(pages).unwrap_or(0))
    }

    /// Those on the requesting CPU's own list: minimum and maximum by the counts of the lists, which do not
    /// distinguish huge pages from base pages.
    pub fn own_pcp_huge_blocks(&self, cpu: Option<u32>) -> (u64, u64) {
        let pages = self.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
        let Some(cpu) = cpu else { return (0, 0) };
        let blocks = |is_own: bool| {
            let pagesets_where = self.pagesets.iter().filter(|set| (set.cpu == cpu) == is_own);
            pagesets_where.map(|set| set.count.0.checked_div(pages).unwrap_or(0)).fold(0, u64::saturating_add)
        };
        let all = self.pcp_huge_blocks();
        (all.saturating_sub(blocks(false)), all.min(blocks(true)))
    }

    /// Free runs of an order.
    pub fn free_runs(&self, order: Order) -> u64 {
        u64::try_from(self.areas.blocks_suitable(order)).unwrap_or(u64::MAX)
    }
}

/// The zone names that a request for movable memory of user space may use, and one of the kernel's own. The
/// last is the highest, and its index is the one in `lowmem_reserve` (include/linux/gfp.h, `gfp_zone`).
fn is_zone_usable(method: AllocationMethod, zone: &str) -> bool {
    match method {
        AllocationMethod::Thp | AllocationMethod::Hugetlb => zone != "Device",
        AllocationMethod::Contig => !matches!(zone, "Movable" | "HighMem" | "Device"),
    }
}

/// Index of the highest zone of the request, by the zones that the node lists: the kernel prints all of them,
/// with pages or without (4.10 and later).
fn highest_zone_index(method: AllocationMethod, zoneinfo: &Zoneinfo, node: NodeId) -> Option<usize> {
    let names = zoneinfo.zones.iter().filter(|zone| zone.key.node == node).map(|zone| zone.key.zone.as_str());
    let highest_zone = if method == AllocationMethod::Contig { "Normal" } else { "Movable" };
    names.into_iter().position(|name| name == highest_zone)
}

impl<'s> ForecastInputs<'s> {
    pub fn from_snapshot(snapshot: &'s Snapshot, ask: AllocationRequest) -> Reading<ForecastInputs<'s>> {
        let buddy = snapshot.buddyinfo.as_ref().map_err(forecast_absence)?;
        let zoneinfo = snapshot.zoneinfo.as_ref().map_err(forecast_absence)?;
        let (census, unseen) = match &snapshot.census {
            Ok(census) if matches!(census.coverage, Coverage::Whole) => (Some(census), None),
            Ok(_) => (None, Some(undefined_absence("too much memory to scan every page in time"))),
            Err(absence) => (None, Some(forecast_absence(absence))),
        };
        let mut notes = Vec::new();
        let pagetypeinfo = match &snapshot.pagetypeinfo {
            Ok(types) => Some(types),
            Err(absence) if census.is_some() => {
                let reason = absence.reason();
                notes.push(format!(
                    "pageblock migratetypes are inferred from the pages in each block: pagetypeinfo: {reason}"
                ));
                None
            }
            Err(_) => None,
        };
        let usable = |areas: &'s FreeAreas, key: &ZoneKey| {
            let info = zoneinfo.zone(key)?;
            let is_requested = ask.node.is_none_or(|node| node == key.node);
            (is_requested && is_zone_usable(ask.method, &key.zone))
                .then(|| (areas, info, highest_zone_index(ask.method, zoneinfo, key.node)))
        };
        let pageblock_order = census.map_or(snapshot.pageblock_order, |census| census.pageblock_order);
        let unit_order = snapshot.pmd_order.max(pageblock_order);
        let mut machine = ForecastInputs {
            zones: Vec::new(),
            census_zones: Vec::new(),
            pageblock_order,
            unit_order,
            census_absence: unseen,
            page_cache_slab_pages: count_page_cache_slab(snapshot),
            notes,
        };
        let Some(census) = census else {
            // Their free lists alone.
            let listed = buddy.zones.iter().filter_map(|zone| usable(&zone.areas, &zone.key));
            let inputs =
                listed.map(|(areas, info, index)| ZoneInputs::from_free_lists(areas.clone(), info, index));
            machine.zones = inputs.collect();
            return Ok(machine);
        };
        let undroppable_share =
            undroppable_cache_share(snapshot.meminfo.as_ref().ok(), census, snapshot.machine.page_size);
        for zone in &census.zones {
            let found = buddy.zone(&zone.key).and_then(|areas| usable(areas, &zone.key));
            let Some((areas, info, index)) = found else { continue };
            machine.zones.push(build_zone_inputs(
                census,
                zone,
                areas,
                info,
                index,
                pagetypeinfo,
                (unit_order, undroppable_share),
            ));
            machine.census_zones.push(zone);
        }
        if machine.zones.is_empty() {
            return Err(undefined_absence("no zone can serve this request"));
        }
        Ok(machine)
    }
}

/// Share of the page cache that is not dropped: mapped, dirty, under writeback, and locked.
fn undroppable_cache_share(meminfo: Option<&Meminfo>, census: &Census, page_size: PageSize) -> f64 {
    let Some(meminfo) = meminfo else { return 0.0 };
    let pages = |name: &str| meminfo.bytes(name).unwrap_or_default().to_pages(page_size).0;
    let counted = census.zones.iter().flat_map(|zone| &zone.blocks);
    let file: u64 = counted.map(|(_, counts)| u64::from(counts.pages_of_class(PageClass::File))).sum();
    // Dirty pages are written back first; the amount that is dirty again by then is unknown.
    let undroppable_pages = pages("Mapped").saturating_add(pages("Writeback"));
    if file == 0 { 0.0 } else { (undroppable_pages as f64 / file as f64).min(1.0) }
}

fn build_zone_inputs(
    census: &Census,
    zone: &CensusZone,
    areas: &FreeAreas,
    info: &ZoneEntry,
    index: Option<usize>,
    pagetypeinfo: Option<&Pagetypeinfo>,
    (unit_order, stuck): (Order, f64),
) -> ZoneInputs {
    let units = group_blocks(census.pageblock_order, zone, unit_order);
    let mut blocks: Vec<PageblockPages> = units.iter().map(|unit| block_pages(unit, stuck)).collect();
    let type_counts =
        pagetypeinfo.map(|types| ZoneTypeCounts::from_pagetypeinfo(types, &zone.key, unit_order));
    let wholly_free_blocks = blocks.iter().filter(|block| block.free == block.pages).count() as u64;
    guess_migration_targets(&mut blocks, type_counts.as_ref(), wholly_free_blocks);
    let mut areas = areas.clone();
    if let Some(lists) = &type_counts {
        areas
            .counts_mut()
            .iter_mut()
            .zip(&lists.unavailable_blocks)
            .for_each(|(all, kept)| *all -= (*all).min(*kept));
    }
    let lists = ZoneInputs::from_free_lists(areas, info, index);
    let deferred: u64 = units.iter().map(|unit| unit.pages_of_class(PageClass::Deferred)).sum();
    let with_memory = units.iter().filter(|unit| unit.has_memory()).count() as u64;
    let polluted = polluted_by_class(&units, zone.per_cpu.unwrap_or_default().0);
    let polluted_blocks = polluted.iter().map(|(_, blocks)| blocks).sum();
    ZoneInputs {
        clean_blocks: with_memory.saturating_sub(polluted_blocks),
        slab_pages_alone: units.iter().filter_map(slab_pages_alone).collect(),
        cache_pages: units.iter().map(|unit| unit.pages_of_class(PageClass::File)).sum(),
        free_pages: lists.free_pages.saturating_add(deferred),
        deferred_blocks: units.iter().filter(|unit| unit.is_deferred()).count() as u64,
        pcp_pages: zone.per_cpu.unwrap_or_default().0,
        droppable_pages: blocks.iter().map(|block| block.droppable).sum(),
        polluted,
        blocks,
        ..lists
    }
}

/// The slab pages of a block that nothing else pollutes. Pages without a flag beside them may be free.
fn slab_pages_alone(unit: &SupplyUnit) -> Option<u64> {
    let is_other =
        |class: PageClass| !matches!(class, PageClass::Slab | PageClass::Unknown) && class.pollutes();
    let is_alone = PageClass::ALL.iter().all(|&class| !is_other(class) || unit.pages_of_class(class) == 0);
    let pages = unit.pages_of_class(PageClass::Slab);
    (is_alone && unit.is_obtainable() && pages > 0).then_some(pages)
}

fn block_pages(unit: &SupplyUnit, undroppable_share: f64) -> PageblockPages {
    let file = unit.pages_of_class(PageClass::File);
    let is_huge = !unit.is_obtainable();
    let unknown = unit.pages_of_class(PageClass::Unknown);
    let (free, movable) = (unit.free_pages(UnknownTreatment::Unmovable), unit.movable_pages());
    let is_file_folio = unit.is_file_folio();
    // A folio moves as a whole, or not at all.
    let stuck = if is_file_folio { undroppable_share.round() } else { undroppable_share };
    PageblockPages {
        is_file_folio,
        pages: unit.total_pages(),
        free,
        movable,
        droppable: file - ((file as f64 * stuck).round() as u64).min(file),
        unknown,
        unmovable: unit.total_pages() - free - movable - unknown,
        is_huge,
        is_migration_target: true,
    }
}

/// Blocks that no compaction makes whole, each under one class. Unknown pages pollute where per-CPU lists
/// cannot explain them: the blocks with the fewest are explained first.
fn polluted_by_class(units: &[SupplyUnit], mut per_cpu: u64) -> Vec<(PageClass, u64)> {
    let mut by_class: Vec<(PageClass, u64)> = Vec::new();
    let mut add_block = |class: PageClass| *value_of(&mut by_class, class) += 1;
    let mut unknown = Vec::new();
    for unit in units.iter().filter(|unit| unit.has_memory() && unit.is_obtainable()) {
        let is_polluting = |&class: &PageClass| class.pollutes() && unit.pages_of_class(class) > 0;
        match PageClass::ALL.into_iter().find(is_polluting) {
            Some(class) => add_block(class),
            None if unit.pages_of_class(PageClass::Unknown) > 0 => {
                unknown.push(unit.pages_of_class(PageClass::Unknown))
            }
            None => {}
        }
    }
    unknown.sort_unstable();
    for pages in unknown {
        match per_cpu.checked_sub(pages) {
            Some(left) => per_cpu = left,
            None => {
                per_cpu = 0;
                add_block(PageClass::Unknown);
            }
        }
    }
    by_class.sort_by_key(|&(_, blocks)| std::cmp::Reverse(blocks));
    by_class
}

/// Content of pagetypeinfo for one zone.
#[derive(Debug)]
struct ZoneTypeCounts {
    /// Free blocks by order that requests of user space are not given: highatomic, isolated.
    unavailable_blocks: Vec<u64>,
    /// Blocks of which the free scanner takes nothing: not movable, not CMA.
    non_movable_blocks: u64,
    /// Of those, blocks that are wholly free.
    non_movable_free: u64,
}

impl ZoneTypeCounts {
    fn from_pagetypeinfo(pagetypeinfo: &Pagetypeinfo, key: &ZoneKey, unit_order: Order) -> ZoneTypeCounts {
        let is_movable = |name: &str| matches!(name, "Movable" | "CMA");
        let (mut unavailable_blocks, mut non_movable_free) = (Vec::new(), 0u64);
        for row in pagetypeinfo.free.iter().filter(|row| &row.key == key) {
            let counts = || row.counts.iter().map(|&count: &CappedCount| count.at_least());
            if MovableAccess::of_migratetype(&row.migratetype) == MovableAccess::Refused {
                unavailable_blocks.resize(unavailable_blocks.len().max(row.counts.len()), 0);
                let sums = unavailable_blocks.iter_mut().zip(counts());
                sums.for_each(|(sum, count): (&mut u64, u64)| *sum += count);
            }
            if !is_movable(&row.migratetype) {
                let suitable_counts = counts().enumerate().skip(unit_order.index());
                let blocks = |(order, count): (usize, u64)| count << (order - unit_order.index()).min(63);
                non_movable_free += suitable_counts.map(blocks).sum::<u64>();
            }
        }
        let rows = pagetypeinfo.blocks.iter().filter(|row| &row.key == key).flat_map(|row| &row.counts);
        let non_movable_blocks = rows.filter(|(name, _)| !is_movable(name)).map(|&(_, blocks)| blocks).sum();
        ZoneTypeCounts { unavailable_blocks, non_movable_blocks, non_movable_free }
    }
}

/// Guesses which blocks are not of movable type: as many as pagetypeinfo counts, those with the most kernel
/// pages against movable ones first. Without it, those with more kernel pages than movable ones: a block
/// changes its type when half of it or more is of the other kind (mm/page_alloc.c, `try_to_claim_block`).
fn guess_migration_targets(
    blocks: &mut [PageblockPages],
    type_counts: Option<&ZoneTypeCounts>,
    whole_free: u64,
) {
    let score = |block: &PageblockPages| (block.unmovable + block.unknown) as i64 - block.movable as i64;
    let is_candidate = |block: &PageblockPages| !block.is_huge && block.unmovable + block.unknown > 0;
    let Some(lists) = type_counts else {
        for block in blocks.iter_mut().filter(|block| is_candidate(block)) {
            block.is_migration_target = score(block) <= 0;
        }
        return;
    };
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&at| is_candidate(&blocks[at])).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(score(&blocks[at])));
    let non_movable_left = lists.non_movable_blocks.saturating_sub(lists.non_movable_free.min(whole_free));
    for at in order.into_iter().take(usize::try_from(non_movable_left).unwrap_or(usize::MAX)) {
        blocks[at].is_migration_target = false;
    }
}
