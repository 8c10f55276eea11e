//! Machine under memory pressure: held blocks, background and direct reclaim, LRU lists, compaction.
//!
//! A load holds blocks by handles ([`BlockHandle`]), since a page may be reclaimed or moved while it is held:
//! the handle stays valid. Requests follow `__alloc_pages` and `__alloc_pages_slowpath` in mm/page_alloc.c,
//! reclaim follows mm/vmscan.c, and migration mm/compaction.c.

use crate::memory::{Memory, ZoneConfig};
use crate::policies::Policy;
use crate::types::{Error, Frame, corrupted, invalid};
use crate::zone::FrameContent;
use compaction::CompactState;
use journal::DecisionJournal;
use kswapd::{KswapdState, WatermarkBoost};
use lru::{LruKind, LruList, LruLists};
use writeback::{DiskModel, WritebackState};

pub use config::{
    AllocRequest, Effort, KernelTuning, MachineConfig, MachineStats, PageUse, Release, ZoneLimits,
};

mod compaction;
mod config;
mod journal;
mod kswapd;
#[cfg(test)]
mod lockstep_tests;
mod lru;
#[cfg(test)]
mod naive;
mod reclaim;
pub mod reclaim_policies;
mod region_resize;
mod request;
#[cfg(test)]
mod tests;
mod writeback;

/// A policy that is chosen at run time.
pub type AnyPolicy = &'static (dyn Policy + Sync);

/// A block that a load holds. It may have been reclaimed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHandle(u32);

/// Frame of a held block that was reclaimed.
const NO_FRAME: Frame = Frame::MAX;

const NO_HANDLE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockEntry {
    frame: Frame,
    /// Number of pages reclaimed before it, if it was reclaimed.
    eviction_stamp: u32,
    order: u8,
    page_use: PageUse,
    zone: u8,
    /// Objects in a page of the kernel's caches, and the number of used ones.
    slab_objects: u8,
    slab_objects_in_use: u8,
    is_active: bool,
    /// Whether it was accessed since the last scan (the accessed bit of page tables).
    is_accessed: bool,
    /// Whether a scan found it accessed (`PG_referenced`).
    is_referenced: bool,
    is_pinned: bool,
    is_live: bool,
    /// State of its writeback, and its position in the queue.
    writeback_state: WritebackState,
    queue_id: u32,
    /// Whether reclaim waits for its writeback (`PG_reclaim`).
    is_reclaim_pending: bool,
}

impl BlockEntry {
    fn pages(&self) -> u32 {
        1 << self.order
    }

    fn is_resident(&self) -> bool {
        self.is_live && self.frame != NO_FRAME
    }
}

/// Reclaim state of an area: a zone in 2.6.16, a node in 6.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lruvec {
    /// Pages to scan that were too few for a batch, inactive and active (`nr_scan_inactive`).
    scan_remainder: [u32; 2],
    /// Pages scanned since the last freed page (`pages_scanned`).
    pages_scanned: u64,
    /// Priority of the last successful reclaim (`prev_priority`).
    prev_priority: u8,
    /// Cost of reclaiming anonymous and file pages (`anon_cost`, `file_cost`).
    reclaim_costs: [u64; 2],
    /// Objects of the kernel's caches, and those to scan that were too few for a batch.
    slab_objects: u64,
    slab_scan_remainder: u64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    memory: Memory<AnyPolicy>,
    config: MachineConfig,
    tuning: KernelTuning,
    entries: Vec<BlockEntry>,
    free_handles: Vec<u32>,
    /// The handle of the block that begins at a frame, counted from the first one.
    handle_by_frame: Vec<u32>,
    first_frame: Frame,
    max_order: u8,
    lru: LruLists,
    lruvecs: Vec<Lruvec>,
    /// Area of each zone.
    lruvec_of_zone: Vec<u8>,
    compactors: Vec<CompactState>,
    /// Position at which linear reclaim continues, for each zone.
    linear_cursors: Vec<Frame>,
    /// Frames in swap.
    swapped_frames: u32,
    /// Resident anonymous pages: mapped ones (`nr_mapped`).
    mapped_pages: u32,
    /// Dirty pages, and those that are being written.
    disk: DiskModel,
    /// State of `kswapd` of each node.
    kswapd_states: Vec<KswapdState>,
    watermark_boosts: Vec<WatermarkBoost>,
    has_background_work: bool,
    stats: MachineStats,
    journal: DecisionJournal,
}

impl Machine {
    /// A machine with free memory and the current kernel.
    pub fn new(config: MachineConfig, policy: AnyPolicy) -> Result<Machine, Error> {
        Machine::with_tuning(config, KernelTuning::default(), policy)
    }

    /// A machine with free memory and a given kernel.
    pub fn with_tuning(
        config: MachineConfig,
        tuning: KernelTuning,
        policy: AnyPolicy,
    ) -> Result<Machine, Error> {
        let mut memory = Memory::new(config.zones.clone(), &policy, config.pcp_config)?;
        let first = config.zones.iter().map(|zone| zone.geometry.first_frame).min().unwrap_or_default();
        let end = config.zones.iter().map(|zone| zone.geometry.end()).max().unwrap_or_default();
        let nodes = config.zones.iter().map(|zone| usize::from(zone.node) + 1).max().unwrap_or(0);
        if config.zones.len() > usize::from(u8::MAX) {
            return invalid(format!("a machine with {} zones; expected at most 255", config.zones.len()));
        }
        let is_2_6_16 = tuning.release == Release::V2_6_16;
        if is_2_6_16 {
            memory.halve_watermarks();
        }
        let lruvec_index = |(zone, (setup, _)): (usize, (&ZoneConfig, _))| {
            if is_2_6_16 { zone as u8 } else { setup.node as u8 }
        };
        let area_of: Vec<u8> = memory.zones().enumerate().map(lruvec_index).collect();
        let lruvec_count = area_of.iter().map(|&area| usize::from(area) + 1).max().unwrap_or(0);
        Ok(Machine {
            lru: LruLists::new(lruvec_count),
            lruvecs: vec![Lruvec { prev_priority: reclaim::DEF_PRIORITY, ..Lruvec::default() }; lruvec_count],
            lruvec_of_zone: area_of,
            compactors: memory.zones().map(|(setup, _)| CompactState::for_zone(setup.geometry)).collect(),
            linear_cursors: memory.zones().map(|(setup, _)| setup.geometry.first_frame).collect(),
            watermark_boosts: vec![WatermarkBoost::default(); memory.zone_count()],
            memory,
            tuning,
            entries: Vec::new(),
            free_handles: Vec::new(),
            handle_by_frame: vec![NO_HANDLE; (end - first) as usize],
            first_frame: first,
            max_order: config.zones.iter().map(|zone| zone.geometry.max_order).max().unwrap_or(0),
            swapped_frames: 0,
            mapped_pages: 0,
            disk: DiskModel::default(),
            kswapd_states: vec![KswapdState::default(); nodes],
            has_background_work: tuning.compaction_proactiveness > 0,
            stats: MachineStats::default(),
            config,
            journal: DecisionJournal::default(),
        })
    }

    /// Allocates a block. `None`: the request failed within its effort.
    pub fn allocate_block(&mut self, request: &AllocRequest) -> Result<Option<BlockHandle>, Error> {
        let Some((zone, frame)) = self.allocate_frame(request)? else { return Ok(None) };
        let entry = BlockEntry {
            frame,
            eviction_stamp: 0,
            order: request.order,
            page_use: request.page_use,
            zone,
            slab_objects: self.new_slab_objects(request.page_use),
            slab_objects_in_use: 0,
            is_active: self.is_initially_active(request.page_use),
            is_accessed: false,
            is_referenced: false,
            is_pinned: false,
            is_live: true,
            writeback_state: WritebackState::Clean,
            queue_id: 0,
            is_reclaim_pending: false,
        };
        let handle = match self.free_handles.pop() {
            Some(handle) => handle,
            None => {
                self.entries.push(entry);
                self.lru.grow_to(self.entries.len());
                self.entries.len() as u32 - 1
            }
        };
        self.entries[handle as usize] = entry;
        self.track_block(handle);
        self.mark_new_dirty(handle);
        Ok(Some(BlockHandle(handle)))
    }

    /// Frees a held block, whether it is resident or not.
    pub fn free_block(&mut self, block: BlockHandle) -> Result<(), Error> {
        let entry = *self.entry(block)?;
        if entry.frame == NO_FRAME {
            self.swapped_frames -= if entry.page_use == PageUse::Anonymous { entry.pages() } else { 0 };
        } else {
            self.cancel_writeback(block.0);
            self.untrack_block(block.0);
            self.memory.free_block(0, entry.frame)?;
        }
        self.entries[block.0 as usize].is_live = false;
        self.free_handles.push(block.0);
        Ok(())
    }

    /// Accesses a held block; returns whether it is resident. A reclaimed one must be refaulted first.
    /// Programs write to the blocks that they access.
    pub fn touch_block(&mut self, block: BlockHandle) -> Result<bool, Error> {
        let entry = self.entry(block)?;
        let is_resident = entry.frame != NO_FRAME;
        let entry = &mut self.entries[block.0 as usize];
        entry.is_accessed |= is_resident;
        if is_resident && entry.page_use == PageUse::Anonymous {
            self.mark_dirty(block.0);
        }
        Ok(is_resident)
    }

    /// Refaults a reclaimed block: a read from the disk, or from swap. Returns whether there was memory for
    /// it.
    pub fn refault_block(&mut self, block: BlockHandle, cpu: u16) -> Result<bool, Error> {
        let entry = *self.entry(block)?;
        if entry.frame != NO_FRAME {
            return Ok(true);
        }
        let node = self.memory.zone(usize::from(entry.zone)).0.node;
        let request =
            AllocRequest { page_use: entry.page_use, order: entry.order, effort: Effort::Normal, node, cpu };
        let Some((zone, frame)) = self.allocate_frame(&request)? else { return Ok(false) };
        self.swapped_frames -= if entry.page_use == PageUse::Anonymous { entry.pages() } else { 0 };
        self.stats.refaults += u64::from(entry.pages());
        if entry.page_use != PageUse::Slab {
            self.account_refault_read(entry.pages());
        }
        let is_active = self.is_initially_active(entry.page_use) || self.is_workingset_refault(&entry);
        let objects = self.new_slab_objects(entry.page_use);
        let entry = &mut self.entries[block.0 as usize];
        (entry.frame, entry.zone, entry.is_active, entry.slab_objects) = (frame, zone, is_active, objects);
        (entry.is_accessed, entry.is_referenced) = (false, false);
        self.track_block(block.0);
        self.mark_new_dirty(block.0);
        Ok(true)
    }

    /// Pins or unpins a block: a pinned one is neither reclaimed nor moved (locked memory, pages under I/O).
    pub fn set_pinned(&mut self, block: BlockHandle, pinned: bool) -> Result<(), Error> {
        self.entry(block)?;
        self.entries[block.0 as usize].is_pinned = pinned;
        Ok(())
    }

    /// Sets the number of used objects in a page of the kernel's caches, which keep the page. Ignored for any
    /// other block.
    #[cfg(test)]
    fn set_objects_in_use(&mut self, block: BlockHandle, in_use: u8) -> Result<(), Error> {
        self.entry(block)?;
        let entry = &mut self.entries[block.0 as usize];
        entry.slab_objects_in_use = in_use.min(entry.slab_objects);
        Ok(())
    }

    /// The first frame of a held block; `None`: it was reclaimed.
    pub fn frame_of_block(&self, block: BlockHandle) -> Result<Option<Frame>, Error> {
        let frame = self.entry(block)?.frame;
        Ok((frame != NO_FRAME).then_some(frame))
    }

    /// Use of the block that begins at a frame, and its order.
    pub fn use_of_frame(&self, frame: Frame) -> Option<(PageUse, u8)> {
        let handle = *self.handle_by_frame.get(frame.wrapping_distance(self.first_frame) as usize)?;
        let entry = self.entries.get(handle as usize)?;
        Some((entry.page_use, entry.order))
    }

    /// The zones by address.
    pub fn memory(&self) -> &Memory<AnyPolicy> {
        &self.memory
    }

    /// Configuration.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Tunables.
    pub fn tuning(&self) -> &KernelTuning {
        &self.tuning
    }

    /// Counters so far.
    pub fn stats(&self) -> &MachineStats {
        &self.stats
    }

    /// Unusable free memory for an order, F_u(j) of the whole machine: (frames in smaller free blocks, all
    /// free frames).
    pub fn unusable_free_frames(&self, order: u8) -> (u64, u64) {
        let zones = (0..self.memory.zone_count()).map(|zone| self.unusable_free_frames_in_zone(zone, order));
        zones.fold((0, 0), |sums, zone| (sums.0 + zone.0, sums.1 + zone.1))
    }

    /// Unusable free memory of one zone.
    pub fn unusable_free_frames_in_zone(&self, zone: usize, order: u8) -> (u64, u64) {
        let (_, zone) = self.memory.zone(zone);
        // Pages on per-CPU lists are free, and single.
        let pcp_frames = u64::from(zone.pcp_frames());
        let mut sums = (pcp_frames, pcp_frames);
        for (size, &blocks) in (0u8..).zip(zone.zone().free_blocks()) {
            let frames = u64::from(blocks) << size;
            sums.0 += if size < order { frames } else { 0 };
            sums.1 += frames;
        }
        sums
    }

    /// Free frames, with those on per-CPU lists.
    fn free_frames(&self) -> u64 {
        let zones = self.memory.zones().map(|(_, zone)| zone);
        zones.map(|zone| u64::from(zone.zone().free_frames()) + u64::from(zone.pcp_frames())).sum()
    }

    fn entry(&self, held: BlockHandle) -> Result<&BlockEntry, Error> {
        let entry = self.entries.get(held.0 as usize).filter(|entry| entry.is_live);
        entry.ok_or_else(|| Error::Corrupted(format!("block {} was already released", held.0)))
    }

    /// Whether new pages of a use begin on the active list: anonymous ones, up to 5.8.
    fn is_initially_active(&self, class: PageUse) -> bool {
        class == PageUse::Anonymous && self.tuning.release == Release::V2_6_16
    }

    /// Objects in a new page of a use.
    fn new_slab_objects(&self, class: PageUse) -> u8 {
        if class == PageUse::Slab { self.tuning.objects_per_page.max(1) } else { 0 }
    }

    /// LRU list of a block; `None`: it cannot be reclaimed.
    fn lru_list_of(&self, entry: &BlockEntry) -> Option<LruList> {
        let lru_kind = match entry.page_use {
            PageUse::Slab => LruKind::Slab,
            PageUse::File | PageUse::BlockDevice if self.tuning.release == Release::V6_1 => LruKind::File,
            PageUse::File | PageUse::BlockDevice | PageUse::Anonymous => LruKind::Anonymous,
            PageUse::Kernel | PageUse::PageTable | PageUse::Hugetlb => return None,
        };
        Some(LruList {
            lruvec: usize::from(self.lruvec_of_zone[usize::from(entry.zone)]),
            kind: lru_kind,
            is_active: entry.is_active,
        })
    }

    /// Records a newly allocated block.
    fn track_block(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.handle_by_frame[(entry.frame - self.first_frame) as usize] = handle;
        self.mapped_pages += if entry.page_use == PageUse::Anonymous { entry.pages() } else { 0 };
        if let Some(list) = self.lru_list_of(&entry) {
            self.lruvecs[list.lruvec].slab_objects += u64::from(entry.slab_objects);
            self.lru.add_newest(list, handle, entry.pages());
        }
    }

    /// Moves a block to an allocated target in its zone; returns the frame that it has left.
    fn relocate_block(&mut self, handle: u32, to: Frame) -> Result<Frame, Error> {
        let BlockEntry { frame: from, zone, .. } = self.entries[handle as usize];
        self.untrack_block(handle);
        self.memory.zone_mut(usize::from(zone)).free_block(from)?;
        self.entries[handle as usize].frame = to;
        self.track_block(handle);
        Ok(from)
    }

    /// The zones of a node up to a zone index, with their numbers.
    fn zones_of_node(&self, node: u16, max_index: u8) -> impl Iterator<Item = (usize, &ZoneConfig)> {
        let configs = self.memory.zones().map(|(config, _)| config).enumerate();
        configs.filter(move |(_, config)| config.node == node && config.zone_index <= max_index)
    }

    /// Removes the record of a block that is about to be freed.
    fn untrack_block(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.handle_by_frame[(entry.frame - self.first_frame) as usize] = NO_HANDLE;
        self.mapped_pages -= if entry.page_use == PageUse::Anonymous { entry.pages() } else { 0 };
        if let Some(list) = self.lru_list_of(&entry) {
            self.lruvecs[list.lruvec].slab_objects -= u64::from(entry.slab_objects);
            self.lruvecs[list.lruvec].pages_scanned = 0;
            self.lru.remove_handle(list, handle, entry.pages());
        }
    }
}

impl Machine {
    /// Checks all metadata: the allocator's; each held block is at the position in its handle, and no other
    /// is; each LRU list has exactly its blocks; and the totals of swap and objects.
    pub fn validate(&self) -> Result<(), Error> {
        self.memory.validate()?;
        let resident = || (0u32..).zip(&self.entries).filter(|(_, entry)| entry.is_resident());
        let held: u64 = resident().map(|(_, entry)| u64::from(entry.pages())).sum();
        let all: u64 = self.memory.zones().map(|(config, _)| u64::from(config.geometry.frames)).sum();
        let free = self.free_frames();
        if held + free != all {
            return corrupted(format!("{held} held and {free} free frames do not add up to {all}"));
        }
        for (handle, entry) in resident() {
            if self.handle_by_frame[(entry.frame - self.first_frame) as usize] != handle {
                return corrupted(format!("frame {:#x} is tracked to another holder", entry.frame));
            }
            let (config, zone) = self.memory.zone(usize::from(entry.zone));
            if !config.geometry.contains(entry.frame) {
                return corrupted(format!("frame {:#x} is outside its holder's zone", entry.frame));
            }
            if zone.zone().frame_content(entry.frame) != FrameContent::Allocated(entry.order) {
                return corrupted(format!("frame {:#x} is not allocated at its holder's order", entry.frame));
            }
        }
        let tracked_frames = self.handle_by_frame.iter().filter(|&&handle| handle != NO_HANDLE).count();
        if tracked_frames != resident().count() {
            return corrupted(format!("{tracked_frames} tracked frames do not match the resident blocks"));
        }
        self.validate_lru_lists()?;
        self.validate_writeback()?;
        self.validate_totals()
    }

    fn validate_lru_lists(&self) -> Result<(), Error> {
        let mut is_listed = vec![false; self.entries.len()];
        for area in 0..self.lruvecs.len() {
            for list in LruList::all_of_area(area) {
                let mut pages = 0;
                for handle in self.lru.handles(list) {
                    let entry = &self.entries[handle as usize];
                    if !entry.is_resident() || self.lru_list_of(entry) != Some(list) {
                        return corrupted(format!("block {handle} is on the wrong LRU list"));
                    }
                    if std::mem::replace(&mut is_listed[handle as usize], true) {
                        return corrupted(format!("block {handle} is on LRU lists twice"));
                    }
                    pages += entry.pages();
                }
                let recorded = self.lru.page_count(list);
                if pages != recorded {
                    return corrupted(format!(
                        "an LRU list holds {pages} pages, its counter says {recorded}"
                    ));
                }
            }
        }
        let is_missing = |(handle, entry): &(usize, &BlockEntry)| {
            entry.is_resident() && self.lru_list_of(entry).is_some() && !is_listed[*handle]
        };
        match self.entries.iter().enumerate().find(is_missing) {
            Some((handle, _)) => corrupted(format!("block {handle} is on no LRU list")),
            None => Ok(()),
        }
    }

    fn validate_totals(&self) -> Result<(), Error> {
        let is_anonymous = |entry: &&BlockEntry| entry.is_live && entry.page_use == PageUse::Anonymous;
        let (resident, swapped): (Vec<&BlockEntry>, Vec<&BlockEntry>) =
            self.entries.iter().filter(is_anonymous).partition(|entry| entry.frame != NO_FRAME);
        let sum = |entries: &[&BlockEntry]| -> u32 { entries.iter().map(|entry| entry.pages()).sum() };
        let (resident, swapped) = (sum(&resident), sum(&swapped));
        let (mapped_pages, swapped_frames) = (self.mapped_pages, self.swapped_frames);
        if (resident, swapped) != (mapped_pages, swapped_frames) {
            return corrupted(format!(
                "{resident} pages of programs in memory and {swapped} in swap, the counters say \
                 {mapped_pages} and {swapped_frames}"
            ));
        }
        let swap_frames = self.config.swap_frames;
        if swapped_frames > swap_frames {
            return corrupted(format!(
                "{swapped_frames} frames are in swap, which has room for {swap_frames}"
            ));
        }
        let resident = self.entries.iter().filter(|entry| entry.is_resident());
        let objects: u64 = resident.map(|entry| u64::from(entry.slab_objects)).sum();
        let recorded: u64 = self.lruvecs.iter().map(|area| area.slab_objects).sum();
        if objects != recorded {
            return corrupted(format!("{objects} slab objects, the counter says {recorded}"));
        }
        Ok(())
    }
}
