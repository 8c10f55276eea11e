//! What a forecast takes from a snapshot: the zones that a request may use, their blocks, and what they keep.

use pagelab_model::free_areas::{FreeAreas, ZoneFree, ZoneKey};
use pagelab_model::pagetype::{Pagetypeinfo, TypeCount};
use pagelab_model::zoneinfo::{Pageset, ZoneInfo};
use pagelab_model::{
    Absence, BuddyInfo, Census, CensusZone, Coverage, Meminfo, NodeId, Order, PageClass, PageSize, Reading,
    Snapshot, Zoneinfo,
};

use super::{Ask, How, missing, undefined};
use crate::supply::unit::{self, Unit, units};

/// The parts of a machine that a request may use.
#[derive(Debug)]
pub(super) struct Machine<'s> {
    pub zones: Vec<ZoneInputs>,
    pub census_zones: Vec<&'s CensusZone>,
    pub coverage: Coverage,
    pub block_order: Order,
    /// Order of the blocks in [`ZoneInputs::blocks`].
    pub unit_order: Order,
    pub unseen: Option<Absence>,
    /// Pages of slab that go with page cache, where slabinfo says so.
    pub cache_slab: u64,
    pub notes: Vec<String>,
}

/// Caches whose objects describe page cache: the heads of its buffers, and the nodes of its trees, in which
/// little else lies.
const OF_CACHE: [&str; 2] = ["buffer_head", "radix_tree_node"];

fn cache_slab(snapshot: &Snapshot) -> u64 {
    let caches = snapshot.slabs.as_ref().map_or(&[][..], |caches| caches);
    caches.iter().filter(|cache| OF_CACHE.contains(&&*cache.name)).map(|cache| cache.pages().0).sum()
}

/// One zone; everything in base pages unless it says otherwise.
#[derive(Clone, Debug)]
pub(super) struct ZoneInputs {
    pub key: ZoneKey,
    /// Free blocks that the request may take, by order: highatomic and isolated ones are not among them.
    pub areas: FreeAreas,
    /// Free pages that count towards the watermark.
    pub free: u64,
    /// Blocks that are free and not initialised yet.
    pub deferred_blocks: u64,
    /// The min watermark.
    pub watermark: u64,
    /// What `lowmem_reserve` keeps from this request.
    pub protection: u64,
    /// Pages on per-CPU lists.
    pub per_cpu: u64,
    /// The lists, by CPU.
    pub pagesets: Vec<Pageset>,
    /// Page cache that dropping drops.
    pub droppable: u64,
    /// In the order of their frames.
    pub blocks: Vec<Block>,
    /// Blocks that are spoiled, by the class that is named for it.
    pub spoiled: Vec<(PageClass, u64)>,
}

/// A block as the scanners of compaction see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub pages: u64,
    pub free: u64,
    /// Pages that can be moved, page cache among them.
    pub movable: u64,
    /// Page cache that can be dropped.
    pub droppable: u64,
    /// Pages without any flag.
    pub unknown: u64,
    /// Pages that are never moved.
    pub fixed: u64,
    /// A huge page in use or in a pool: neither moved nor filled.
    pub is_huge: bool,
    /// One folio of page cache as large as a block: compaction leaves it, dropping frees it whole.
    pub is_file_folio: bool,
    /// Whether the free scanner takes room here: pageblocks of movable type.
    pub takes_movable: bool,
}

impl ZoneInputs {
    /// What the zone keeps from this request.
    pub fn kept(&self) -> u64 {
        self.watermark.saturating_add(self.protection)
    }

    /// Blocks of pages without any flag, as far as they can be huge pages on per-CPU lists (5.13 and later:
    /// mm/page_alloc.c, `pcp_allowed_order`).
    pub fn huge_on_per_cpu_lists(&self) -> u64 {
        let blank = self.blocks.iter().filter(|block| block.pages > 0 && block.unknown == block.pages);
        let pages = self.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
        (blank.count() as u64).min(self.per_cpu.checked_div(pages).unwrap_or(0))
    }

    /// Of those, blocks that the CPU that asks has on its own list: the least and the most that the counts of
    /// the lists allow, which do not tell huge pages from base pages.
    pub fn huge_on_own_list(&self, cpu: Option<u32>) -> (u64, u64) {
        let pages = self.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
        let Some(cpu) = cpu else { return (0, 0) };
        let blocks = |is_own: bool| {
            let sets = self.pagesets.iter().filter(|set| (set.cpu == cpu) == is_own);
            sets.map(|set| set.count.0.checked_div(pages).unwrap_or(0)).fold(0, u64::saturating_add)
        };
        let all = self.huge_on_per_cpu_lists();
        (all.saturating_sub(blocks(false)), all.min(blocks(true)))
    }

    /// Free runs of an order.
    pub fn runs_of(&self, order: Order) -> u64 {
        u64::try_from(self.areas.blocks_suitable(order)).unwrap_or(u64::MAX)
    }
}

/// The zone names that a request for movable memory of user space may use, and one of the kernel's own. The
/// last is the highest, and its index is the one in `lowmem_reserve` (include/linux/gfp.h, `gfp_zone`).
fn may_use(how: How, zone: &str) -> bool {
    match how {
        How::Thp | How::Hugetlb => zone != "Device",
        How::Contig => !matches!(zone, "Movable" | "HighMem" | "Device"),
    }
}

/// Index of the highest zone of the request, by the zones that the node lists: the kernel prints all of them,
/// with pages or without (4.10 and later).
fn highest_index(how: How, zoneinfo: &Zoneinfo, node: NodeId) -> Option<usize> {
    let names = zoneinfo.zones.iter().filter(|zone| zone.key.node == node).map(|zone| zone.key.zone.as_str());
    let wanted = if how == How::Contig { "Normal" } else { "Movable" };
    names.into_iter().position(|name| name == wanted)
}

impl<'s> Machine<'s> {
    pub fn of(snapshot: &'s Snapshot, ask: Ask) -> Reading<Machine<'s>> {
        let buddy = snapshot.buddyinfo.as_ref().map_err(missing)?;
        let zoneinfo = snapshot.zoneinfo.as_ref().map_err(missing)?;
        let (census, unseen) = match &snapshot.census {
            Ok(census) if matches!(census.coverage, Coverage::Whole) => (Some(census), None),
            Ok(_) => (None, Some(undefined("memory is too large for all its pages to be read in time"))),
            Err(absence) => (None, Some(missing(absence))),
        };
        let mut notes = Vec::new();
        let types = match &snapshot.pagetypeinfo {
            Ok(types) => Some(types),
            Err(absence) if census.is_some() => {
                let reason = absence.reason();
                notes.push(format!(
                    "pageblock types are guessed by what is in the blocks: pagetypeinfo: {reason}"
                ));
                None
            }
            Err(_) => None,
        };
        let Some(census) = census else {
            return Machine::by_lists(snapshot, buddy, zoneinfo, ask, unseen);
        };
        let unit_order = snapshot.pmd_order.max(census.block_order);
        let stuck = stuck_share(snapshot.meminfo.as_ref().ok(), census, snapshot.machine.page_size);
        let mut machine = Machine {
            zones: Vec::new(),
            census_zones: Vec::new(),
            coverage: census.coverage,
            block_order: census.block_order,
            unit_order,
            unseen,
            cache_slab: cache_slab(snapshot),
            notes,
        };
        for zone in &census.zones {
            let is_asked = ask.node.is_none_or(|node| node == zone.key.node);
            let (Some(areas), Some(info)) = (buddy.zone(&zone.key), zoneinfo.zone(&zone.key)) else {
                continue;
            };
            if !is_asked || !may_use(ask.how, &zone.key.zone) {
                continue;
            }
            let index = highest_index(ask.how, zoneinfo, zone.key.node);
            machine.zones.push(zone_inputs(census, zone, areas, info, index, types, (unit_order, stuck)));
            machine.census_zones.push(zone);
        }
        if machine.zones.is_empty() {
            return Err(undefined("there is no zone that this request may use"));
        }
        Ok(machine)
    }

    /// The zones by their free lists alone.
    fn by_lists(
        snapshot: &Snapshot,
        buddy: &BuddyInfo,
        zoneinfo: &Zoneinfo,
        ask: Ask,
        unseen: Option<Absence>,
    ) -> Reading<Machine<'s>> {
        let of_zone = |zone: &ZoneFree| {
            let info = zoneinfo.zone(&zone.key)?;
            let is_asked = ask.node.is_none_or(|node| node == zone.key.node);
            (is_asked && may_use(ask.how, &zone.key.zone)).then(|| {
                let index = highest_index(ask.how, zoneinfo, zone.key.node);
                let protection = index.and_then(|index| info.protection.get(index));
                ZoneInputs {
                    key: zone.key.clone(),
                    areas: zone.areas.clone(),
                    free: u64::try_from(zone.areas.free_pages()).unwrap_or(u64::MAX),
                    deferred_blocks: 0,
                    watermark: info.min.unwrap_or_default().0,
                    protection: protection.or(info.protection.last()).copied().unwrap_or(0),
                    per_cpu: info.pages_per_cpu().0,
                    pagesets: info.pagesets.clone(),
                    droppable: 0,
                    blocks: Vec::new(),
                    spoiled: Vec::new(),
                }
            })
        };
        Ok(Machine {
            zones: buddy.zones.iter().filter_map(of_zone).collect(),
            census_zones: Vec::new(),
            coverage: Coverage::Whole,
            block_order: snapshot.pageblock_order,
            unit_order: snapshot.pmd_order.max(snapshot.pageblock_order),
            unseen,
            cache_slab: 0,
            notes: Vec::new(),
        })
    }
}

/// The share of the page cache that dropping leaves: mapped, dirty, under writeback, and what is locked.
fn stuck_share(meminfo: Option<&Meminfo>, census: &Census, page_size: PageSize) -> f64 {
    let Some(meminfo) = meminfo else { return 0.0 };
    let pages = |name: &str| meminfo.bytes(name).unwrap_or_default().pages(page_size).0;
    let counted = census.zones.iter().flat_map(|zone| &zone.blocks);
    let file: u64 = counted.map(|(_, counts)| u64::from(counts.of(PageClass::File))).sum();
    // Dirty pages are written back first; what is dirty again by then is not known.
    let stuck = pages("Mapped").saturating_add(pages("Writeback"));
    if file == 0 { 0.0 } else { (stuck as f64 / file as f64).min(1.0) }
}

fn zone_inputs(
    census: &Census,
    zone: &CensusZone,
    areas: &FreeAreas,
    info: &ZoneInfo,
    index: Option<usize>,
    types: Option<&Pagetypeinfo>,
    (unit_order, stuck): (Order, f64),
) -> ZoneInputs {
    let units = units(census.block_order, zone, unit_order);
    let mut blocks: Vec<Block> = units.iter().map(|unit| block(unit, stuck)).collect();
    let lists = types.map(|types| Lists::of(types, &zone.key, unit_order));
    let whole_free = blocks.iter().filter(|block| block.free == block.pages).count() as u64;
    mark_types(&mut blocks, lists.as_ref(), whole_free);
    let mut areas = areas.clone();
    if let Some(lists) = &lists {
        areas.counts_mut().iter_mut().zip(&lists.not_given).for_each(|(all, kept)| *all -= (*all).min(*kept));
    }
    let protection = index.and_then(|index| info.protection.get(index)).or(info.protection.last());
    let given = u64::try_from(areas.free_pages()).unwrap_or(u64::MAX);
    let deferred: u64 = units.iter().map(|unit| unit.of(PageClass::Deferred)).sum();
    ZoneInputs {
        key: zone.key.clone(),
        free: given.saturating_add(deferred),
        areas,
        deferred_blocks: units.iter().filter(|unit| unit.is_deferred()).count() as u64,
        watermark: info.min.unwrap_or_default().0,
        protection: protection.copied().unwrap_or(0),
        per_cpu: zone.per_cpu.unwrap_or_default().0,
        pagesets: info.pagesets.clone(),
        droppable: blocks.iter().map(|block| block.droppable).sum(),
        spoiled: spoiled(&units, zone.per_cpu.unwrap_or_default().0),
        blocks,
    }
}

fn block(unit: &Unit, stuck: f64) -> Block {
    let file = unit.of(PageClass::File);
    let is_huge = !unit.is_obtainable();
    let unknown = unit.of(PageClass::Unknown);
    let (free, movable) = (unit.free(unit::Unknown::Unmovable), unit.movable());
    let is_file_folio = unit.is_file_folio();
    // A folio goes whole, or not at all.
    let stuck = if is_file_folio { stuck.round() } else { stuck };
    Block {
        is_file_folio,
        pages: unit.pages(),
        free,
        movable,
        droppable: file - ((file as f64 * stuck).round() as u64).min(file),
        unknown,
        fixed: unit.pages() - free - movable - unknown,
        is_huge,
        takes_movable: true,
    }
}

/// Blocks that no compaction makes whole, each under one class. Unknown pages spoil where per-CPU lists
/// cannot explain them: the blocks with the fewest are explained first.
fn spoiled(units: &[Unit], mut per_cpu: u64) -> Vec<(PageClass, u64)> {
    let mut by_class: Vec<(PageClass, u64)> = Vec::new();
    let mut add = |class: PageClass| match by_class.iter_mut().find(|(known, _)| *known == class) {
        Some((_, blocks)) => *blocks += 1,
        None => by_class.push((class, 1)),
    };
    let mut unknown = Vec::new();
    for unit in units.iter().filter(|unit| unit.has_memory() && unit.is_obtainable()) {
        let spoils = |&class: &PageClass| class.spoils() && unit.of(class) > 0;
        match PageClass::ALL.into_iter().find(spoils) {
            Some(class) => add(class),
            None if unit.of(PageClass::Unknown) > 0 => unknown.push(unit.of(PageClass::Unknown)),
            None => {}
        }
    }
    unknown.sort_unstable();
    for pages in unknown {
        match per_cpu.checked_sub(pages) {
            Some(left) => per_cpu = left,
            None => {
                per_cpu = 0;
                add(PageClass::Unknown);
            }
        }
    }
    by_class.sort_by_key(|&(_, blocks)| std::cmp::Reverse(blocks));
    by_class
}

/// What pagetypeinfo says of one zone.
#[derive(Debug)]
struct Lists {
    /// Free blocks by order that requests of user space are not given: highatomic, isolated.
    not_given: Vec<u64>,
    /// Blocks of which the free scanner takes nothing: not movable, not CMA.
    other_blocks: u64,
    /// Of those, blocks that are wholly free.
    other_whole: u64,
}

impl Lists {
    fn of(types: &Pagetypeinfo, key: &ZoneKey, unit_order: Order) -> Lists {
        let is_movable = |name: &str| matches!(name, "Movable" | "CMA");
        let mut not_given = Vec::new();
        let mut other_whole = 0u64;
        for row in types.free.iter().filter(|row| &row.key == key) {
            let counts = || row.counts.iter().map(|&count: &TypeCount| count.at_least());
            if matches!(row.migratetype.as_str(), "HighAtomic" | "Isolate") {
                not_given.resize(not_given.len().max(row.counts.len()), 0);
                not_given.iter_mut().zip(counts()).for_each(|(sum, count): (&mut u64, u64)| *sum += count);
            }
            if !is_movable(&row.migratetype) {
                let whole = counts().enumerate().skip(unit_order.index());
                let blocks = |(order, count): (usize, u64)| count << (order - unit_order.index()).min(63);
                other_whole += whole.map(blocks).sum::<u64>();
            }
        }
        let rows = types.blocks.iter().filter(|row| &row.key == key).flat_map(|row| &row.counts);
        let other_blocks = rows.filter(|(name, _)| !is_movable(name)).map(|&(_, blocks)| blocks).sum();
        Lists { not_given, other_blocks, other_whole }
    }
}

/// Guesses which blocks are not of movable type: as many as pagetypeinfo counts, those with the most kernel
/// pages against movable ones first. Without it, those with more kernel pages than movable ones: a block
/// changes its type when half of it or more is of the other kind (mm/page_alloc.c, `try_to_claim_block`).
fn mark_types(blocks: &mut [Block], lists: Option<&Lists>, whole_free: u64) {
    let score = |block: &Block| (block.fixed + block.unknown) as i64 - block.movable as i64;
    let is_candidate = |block: &Block| !block.is_huge && block.fixed + block.unknown > 0;
    let Some(lists) = lists else {
        for block in blocks.iter_mut().filter(|block| is_candidate(block)) {
            block.takes_movable = score(block) <= 0;
        }
        return;
    };
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&at| is_candidate(&blocks[at])).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(score(&blocks[at])));
    let others = lists.other_blocks.saturating_sub(lists.other_whole.min(whole_free));
    for at in order.into_iter().take(usize::try_from(others).unwrap_or(usize::MAX)) {
        blocks[at].takes_movable = false;
    }
}
