//! Per-CPU page lists over a zone (`struct per_cpu_pages`; mm/page_alloc.c of Linux 6.1: `rmqueue_pcplist`,
//! `rmqueue_bulk`, `free_unref_page_commit`, `free_pcppages_bulk`).

use crate::injected_bugs::Bug;
use crate::policies::Policy;
use crate::types::{AllocationType, Error, Fallback, Frame};
use crate::zone::{AllocFlags, AllocatedBlock, Zone};

/// Blocks up to this order are kept (`PAGE_ALLOC_COSTLY_ORDER`), and those of a pageblock (huge pages).
pub(crate) const COSTLY_ORDER: u8 = 3;

/// Size of a processor's pcp lists.
///
/// With a batch and a `high` of 0 it keeps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcpConfig {
    /// Processors; at least 1.
    pub cpus: u16,
    /// Frames that are fetched or returned at once (`batch`: 63 on machines of some size).
    pub batch: u32,
    /// Frames at which a processor drains its lists (`high`; since Linux 6.7 the lowest value, `high_min`).
    pub high: u32,
    /// Batch sizes.
    pub batching: PcpBatching,
}

impl PcpConfig {
    /// No pcp lists: each request goes to the zone.
    pub const DISABLED: PcpConfig = PcpConfig::with_batch(1, 0, 0);

    /// Batches are fetched and returned: up to Linux 5.13.
    pub const fn with_batch(cpus: u16, batch: u32, high: u32) -> PcpConfig {
        PcpConfig { cpus, batch, high, batching: PcpBatching::FixedBatch }
    }
}

/// Zone with pcp lists.
#[derive(Clone, Debug)]
pub struct PcpZone<P> {
    zone: Zone<P>,
    config: PcpConfig,
    cpus: Vec<PerCpuPages>,
    flags: ZoneFlags,
}

/// Pcp lists of one processor.
#[derive(Clone, Debug)]
struct PerCpuPages {
    /// By order, and in it by list of the zone.
    lists: Vec<PcpList>,
    frames: u32,
    state: PcpState,
}

impl<P: Policy> PcpZone<P> {
    /// A zone with empty lists.
    pub fn new(zone: Zone<P>, pcp_config: PcpConfig) -> Result<PcpZone<P>, Error> {
        let invalid = |what: &str| Err(Error::InvalidConfig(what.to_owned()));
        if pcp_config.cpus == 0 {
            return invalid("a machine with 0 CPUs");
        }
        if (pcp_config.batch == 0) != (pcp_config.high == 0) || pcp_config.high < pcp_config.batch {
            return invalid("pcp lists with a batch of 0, or a batch above the high mark");
        }
        if pcp_config.batching != PcpBatching::FixedBatch && pcp_config.high < 2 * pcp_config.batch {
            return invalid("pcp lists of Linux 5.14 or later with a high mark below two batches");
        }
        let lists = (usize::from(COSTLY_ORDER) + 2) * usize::from(zone.policy().list_count());
        let empty_lists = PerCpuPages {
            lists: vec![PcpList::default(); lists],
            frames: 0,
            state: PcpState::new(&pcp_config),
        };
        Ok(PcpZone {
            zone,
            config: pcp_config,
            cpus: vec![empty_lists; usize::from(pcp_config.cpus)],
            flags: ZoneFlags::default(),
        })
    }

    /// The zone below.
    pub fn zone(&self) -> &Zone<P> {
        &self.zone
    }

    /// Whether processors keep anything, ever.
    #[inline]
    pub(crate) fn has_pcp_lists(&self) -> bool {
        self.config.high > 0
    }

    /// The zone without its pcp lists; for a zone that nothing was allocated from.
    pub(crate) fn into_zone(self) -> Zone<P> {
        self.zone
    }

    /// The zone, for callers that bypass the pcp lists.
    pub(crate) fn zone_mut(&mut self) -> &mut Zone<P> {
        &mut self.zone
    }

    /// Frames that all processors keep: free, and not counted by the zone.
    pub fn pcp_frames(&self) -> u32 {
        self.cpus.iter().map(|cpu| cpu.frames).sum()
    }

    /// The pcp list of blocks of an order and list; `None`: they are not kept.
    #[inline]
    fn list_index(&self, order: u8, list: u8) -> Option<usize> {
        let row = match order {
            0..=COSTLY_ORDER => order,
            _ if order == self.zone.geometry().pageblock_order => COSTLY_ORDER + 1,
            _ => return None,
        };
        Some(usize::from(row) * usize::from(self.zone.policy().list_count()) + usize::from(list))
    }

    fn order_of_list(&self, list_index: usize) -> u8 {
        match (list_index / usize::from(self.zone.policy().list_count())) as u8 {
            row if row > COSTLY_ORDER => self.zone.geometry().pageblock_order,
            row => row,
        }
    }

    /// Adds allocated frames to a processor's list in the initial state, at its end. Returns whether it does:
    /// blocks of such an order may not be kept.
    pub(crate) fn add_initial_block(
        &mut self,
        cpu: u16,
        frame: Frame,
        order: u8,
        alloc_type: AllocationType,
    ) -> bool {
        let Some(list_index) = self.list_index(order, self.zone.policy().allocation_list(alloc_type)) else {
            return false;
        };
        if order > 0 && !self.zone.join_blocks(frame, order) {
            return false;
        }
        self.zone.mark_on_pcp_list(frame, order);
        let pcp = self.pcp_of_cpu(cpu);
        pcp.lists[list_index].push_back(frame);
        pcp.frames += 1 << order;
        true
    }

    /// `high` values that change are where they must have been for what processors keep.
    pub(crate) fn init_pcp_high(&mut self) {
        for pcp in &mut self.cpus {
            pcp.state.init_high(&self.config, pcp.frames);
        }
    }

    /// Allocates on a processor. Returns the last block stolen for the refill, if any.
    #[inline]
    pub fn allocate_block(
        &mut self,
        cpu: u16,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<AllocatedBlock>, Error> {
        self.allocate_with_flags(cpu, order, alloc_type, AllocFlags::DEFAULT)
    }

    /// The same with flags. The highatomic reserve serves a request that the pcp lists cannot.
    #[inline]
    pub fn allocate_with_flags(
        &mut self,
        cpu: u16,
        order: u8,
        alloc_type: AllocationType,
        mut alloc_flags: AllocFlags,
    ) -> Result<Option<AllocatedBlock>, Error> {
        match self.config.high {
            0 => self.zone.allocate_with_flags(order, alloc_type, &mut alloc_flags),
            _ => self.allocate_from_pcp(cpu, order, alloc_type, alloc_flags),
        }
    }

    /// Most requests, as in [`Zone::allocate_fast`]: the pcp list has such a block, or there are no pcp lists
    /// and the zone's own list has one.
    #[inline(always)]
    pub(crate) fn allocate_fast(&mut self, cpu: u16, order: u8, alloc_type: AllocationType) -> Option<Frame> {
        if self.config.high == 0 {
            return self.zone.allocate_fast(order, alloc_type);
        }
        if self.zone.has_reserves() {
            return None;
        }
        let Some(list_index) = self.list_index(order, self.zone.policy().allocation_list(alloc_type)) else {
            return self.zone.allocate_fast(order, alloc_type);
        };
        if self.pcp_of_cpu(cpu).lists[list_index].is_empty() {
            return None;
        }
        self.note_allocation(cpu);
        self.pop_block(cpu, list_index, order, alloc_type)
    }

    /// Removes the block at the front of a processor's list.
    #[inline(always)]
    fn pop_block(
        &mut self,
        cpu: u16,
        list_index: usize,
        order: u8,
        alloc_type: AllocationType,
    ) -> Option<Frame> {
        let pcp = self.pcp_of_cpu(cpu);
        let frame = pcp.lists[list_index].pop_front()?;
        pcp.frames -= 1 << order;
        self.zone.mark_allocated_from_pcp(frame, order, alloc_type);
        Some(frame)
    }

    /// Records a request to a processor's lists: later refills and drains depend on it.
    #[inline(always)]
    fn note_allocation(&mut self, cpu: u16) {
        if let PcpBatching::AutoTuned { high_watermark, .. } = self.config.batching {
            self.flags.is_below_high |= self.zone.free_frames() <= high_watermark;
        }
        if self.config.batching != PcpBatching::FixedBatch
            && !self.zone.bug.is_injected(&Bug::FreeFactorNeverHalved)
        {
            self.pcp_of_cpu(cpu).state.note_allocation();
        }
    }

    #[inline]
    fn allocate_from_pcp(
        &mut self,
        cpu: u16,
        order: u8,
        alloc_type: AllocationType,
        mut alloc_flags: AllocFlags,
    ) -> Result<Option<AllocatedBlock>, Error> {
        let alloc_list = self.zone.policy().allocation_list(alloc_type);
        let Some(list_index) = self.list_index(order, alloc_list) else {
            return self.zone.allocate_with_flags(order, alloc_type, &mut alloc_flags);
        };
        self.note_allocation(cpu);
        let mut fallback = None;
        if self.pcp_of_cpu(cpu).lists[list_index].is_empty() {
            fallback = self.refill_list(cpu, list_index, order, alloc_type, alloc_flags)?;
        }
        let Some(frame) = self.pop_block(cpu, list_index, order, alloc_type) else {
            return match alloc_flags.is_atomic {
                true => self.zone.allocate_with_flags(order, alloc_type, &mut alloc_flags),
                false => Ok(None),
            };
        };
        if alloc_flags.is_atomic && order > 0 {
            self.zone.reserve_highatomic(self.zone.geometry().offset_of(frame), order);
        }
        Ok(Some(AllocatedBlock { frame, fallback }))
    }

    /// Frees on a processor. Returns the block's order.
    #[inline(always)]
    pub fn free_block(&mut self, cpu: u16, frame: Frame) -> Result<u8, Error> {
        match self.config.high {
            0 => self.zone.free_block(frame),
            _ => self.free_to_pcp(cpu, frame),
        }
    }

    #[inline]
    fn free_to_pcp(&mut self, cpu: u16, frame: Frame) -> Result<u8, Error> {
        let (order, list) = self.zone.allocated_order_and_list(frame)?;
        let Some(list_index) = self.list_index(order, self.zone.pcp_list(list)) else {
            return self.zone.free_block(frame);
        };
        self.push_block(cpu, list_index, frame, order);
        Ok(order)
    }

    /// Frees on a processor, if a block of this order begins at the frame; whether one does.
    #[inline(always)]
    pub(crate) fn free_exact(&mut self, cpu: u16, frame: Frame, order: u8) -> Result<bool, Error> {
        let Ok((block_order, list)) = self.zone.allocated_order_and_list(frame) else { return Ok(false) };
        if block_order != order {
            return Ok(false);
        }
        match self.list_index(order, self.zone.pcp_list(list)).filter(|_| self.config.high > 0) {
            Some(place) => self.push_block(cpu, place, frame, order),
            None => _ = self.zone.free_block(frame)?,
        }
        Ok(true)
    }

    /// Adds an allocated block at the head of a processor's list, and drains lists that are too long.
    #[inline(always)]
    fn push_block(&mut self, cpu: u16, list_index: usize, frame: Frame, order: u8) {
        self.zone.mark_on_pcp_list(frame, order);
        let number = self.pcp_index(cpu);
        let pcp = &mut self.cpus[number];
        pcp.lists[list_index].push_front(frame);
        pcp.frames += 1 << order;
        if let Some(frames) = pcp.state.frames_to_drain(&self.config, self.flags, pcp.frames, order) {
            self.drain_excess(cpu, list_index, frames);
        }
    }

    /// Drains a processor's lists after a free.
    #[cold]
    #[inline(never)]
    fn drain_excess(&mut self, cpu: u16, place: usize, frames: u32) {
        self.free_bulk(cpu, place, frames);
        if let PcpBatching::AutoTuned { high_watermark, .. } = self.config.batching {
            self.flags.is_below_high &= self.zone.free_frames() <= high_watermark;
        }
    }

    /// `kswapd` begins or ends: meanwhile lists are kept short, since Linux 5.14.
    pub fn set_reclaiming(&mut self, is_reclaiming: bool) {
        self.flags.is_reclaiming = is_reclaiming;
    }

    /// A second has passed: since Linux 6.7 processors free pages that they have kept for a long time.
    /// Whether anything changed: if not, it will not in the next second either.
    pub fn decay_lists(&mut self) -> bool {
        let keep = self.config;
        if self.zone.bug.is_injected(&Bug::PcpNeverDecays) {
            return false;
        }
        let mut has_changed = false;
        for cpu in 0..keep.cpus {
            let pcp = self.pcp_of_cpu(cpu);
            let previous_state = pcp.state;
            let frames = pcp.state.decay_high(&keep, pcp.frames);
            has_changed |= frames > 0 || pcp.state != previous_state;
            self.free_bulk(cpu, 0, frames);
        }
        has_changed
    }

    /// Drains all pcp lists (`drain_all_pages`).
    pub fn drain_all_lists(&mut self) {
        for cpu in 0..self.config.cpus {
            self.free_bulk(cpu, 0, u32::MAX);
        }
    }

    #[inline]
    fn pcp_of_cpu(&mut self, cpu: u16) -> &mut PerCpuPages {
        let number = self.pcp_index(cpu);
        &mut self.cpus[number]
    }

    /// The index of a processor; processors that do not exist share the lists of others. A division each time
    /// would be noticeable.
    #[inline]
    fn pcp_index(&self, cpu: u16) -> usize {
        let cpu = usize::from(cpu);
        if cpu < self.cpus.len() { cpu } else { cpu % self.cpus.len() }
    }

    fn refill_list(
        &mut self,
        cpu: u16,
        list_index: usize,
        order: u8,
        alloc_type: AllocationType,
        alloc_flags: AllocFlags,
    ) -> Result<Option<Fallback>, Error> {
        let mut alloc_flags = AllocFlags { is_atomic: false, ..alloc_flags };
        let (keep, flags) = (self.config, self.flags);
        let pcp = self.pcp_of_cpu(cpu);
        let batch_blocks = pcp.state.refill_blocks(&keep, flags, pcp.frames, order);
        let mut fallback = None;
        for _ in 0..batch_blocks {
            let Some(allocated) = self.zone.allocate_with_flags(order, alloc_type, &mut alloc_flags)? else {
                break;
            };
            fallback = allocated.fallback.or(fallback);
            self.zone.mark_on_pcp_list(allocated.frame, order);
            let pcp = self.pcp_of_cpu(cpu);
            pcp.lists[list_index].push_back(allocated.frame);
            pcp.frames += 1 << order;
        }
        Ok(fallback)
    }

    /// Frees `frames` frames, or all: the oldest blocks of one list until it is empty, then those of the
    /// next.
    fn free_bulk(&mut self, cpu: u16, first_list: usize, frames: u32) {
        let lists = self.pcp_of_cpu(cpu).lists.len();
        let (mut remaining, mut list_index) = (frames.min(self.pcp_of_cpu(cpu).frames), first_list);
        while remaining > 0 {
            let order = self.order_of_list(list_index);
            while remaining > 0
                && let Some(frame) = self.pop_oldest(cpu, list_index)
            {
                self.pcp_of_cpu(cpu).frames -= 1 << order;
                remaining = remaining.saturating_sub(1 << order);
                let list = (list_index % usize::from(self.zone.policy().list_count())) as u8;
                let list = self.zone.list_after_pcp(frame, list);
                self.zone.free_and_merge(frame, order, list);
            }
            list_index = (list_index + 1) % lists;
        }
    }

    /// Removes the oldest block of a list. The blocks that follow are no longer cached: what their merge
    /// reads is prefetched in the order in which it is needed.
    fn pop_oldest(&mut self, cpu: u16, list_index: usize) -> Option<Frame> {
        let pcp_index = self.pcp_index(cpu);
        let list = &mut self.cpus[pcp_index].lists[list_index];
        let frame = list.pop_back()?;
        list.nth_from_back(16).into_iter().for_each(|frame| self.zone.prefetch_block(frame));
        list.nth_from_back(8).into_iter().for_each(|frame| self.zone.prefetch_buddy(frame));
        Some(frame)
    }

    /// Checks the metadata of the zone and of the pcp lists.
    pub fn validate(&self) -> Result<(), Error> {
        self.zone.validate()?;
        for pcp in &self.cpus {
            let blocks = pcp.lists.iter().enumerate();
            let counted_frames: u32 =
                blocks.map(|(place, list)| list.len() << self.order_of_list(place)).sum();
            if counted_frames != pcp.frames {
                let what = format!(
                    "pcp lists of a CPU hold {counted_frames} frames, the counter says {}",
                    pcp.frames
                );
                return Err(Error::Corrupted(what));
            }
        }
        Ok(())
    }
}

/// The least slots of a ring.
const MIN_RING_SLOTS: usize = 16;

/// Blocks of one order and list. Its ring has as many slots as a power of two, so that a place is found with
/// one mask; a deque of the library finds it with a comparison, each time.
#[derive(Clone, Debug, Default)]
struct PcpList {
    ring: Vec<Frame>,
    /// Positions only increase; the ring uses their lower bits. The front is the position after the first
    /// block.
    front: u32,
    back: u32,
}

impl PcpList {
    #[inline]
    fn len(&self) -> u32 {
        self.front.wrapping_sub(self.back)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.front == self.back
    }

    #[inline]
    fn slot_index(&self, position: u32) -> usize {
        position as usize & self.ring.len().wrapping_sub(1)
    }

    #[inline]
    fn frame_at(&self, position: u32) -> Option<Frame> {
        self.ring.get(self.slot_index(position)).copied()
    }

    #[inline]
    fn set_frame(&mut self, position: u32, frame: Frame) {
        let slot = self.slot_index(position);
        debug_assert!(slot < self.ring.len(), "write to an empty ring at {position}");
        if let Some(slot) = self.ring.get_mut(slot) {
            *slot = frame;
        }
    }

    #[inline(always)]
    fn push_front(&mut self, frame: Frame) {
        self.grow_if_full();
        self.set_frame(self.front, frame);
        self.front = self.front.wrapping_add(1);
    }

    #[inline(always)]
    fn push_back(&mut self, frame: Frame) {
        self.grow_if_full();
        self.back = self.back.wrapping_sub(1);
        self.set_frame(self.back, frame);
    }

    #[inline(always)]
    fn pop_front(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        self.front = self.front.wrapping_sub(1);
        self.frame_at(self.front)
    }

    #[inline(always)]
    fn pop_back(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        self.back = self.back.wrapping_add(1);
        self.frame_at(self.back.wrapping_sub(1))
    }

    /// The block at a distance from the back: 1 is the last one.
    #[inline]
    fn nth_from_back(&self, steps: u32) -> Option<Frame> {
        if !(1..=self.len()).contains(&steps) {
            return None;
        }
        self.frame_at(self.back.wrapping_add(steps - 1))
    }

    #[inline(always)]
    fn grow_if_full(&mut self) {
        if self.len() as usize >= self.ring.len() {
            self.grow_ring();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_ring(&mut self) {
        let mut new_ring = vec![Frame::default(); (self.ring.len() * 2).max(MIN_RING_SLOTS)];
        let frames = self.len();
        for (step, slot) in (0..frames).zip(&mut new_ring) {
            *slot = self.ring[self.slot_index(self.back.wrapping_add(step))];
        }
        *self = PcpList { ring: new_ring, front: frames, back: 0 };
    }
}

/// Largest number of doublings of a batch (`CONFIG_PCP_BATCH_SCALE_MAX`, its default).
const BATCH_SCALE_MAX: u32 = 5;

/// Batch sizes of pcp lists, by release (`nr_pcp_alloc`, `nr_pcp_free`, `nr_pcp_high`, `decay_pcp_high`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcpBatching {
    /// Up to Linux 5.13: a batch is returned at the `high`.
    FixedBatch,
    /// Linux 5.14 to 6.6: the returned number doubles each time, until the next allocation (`free_factor`).
    FreeFactor {
        /// Since 5.18: a block of order 1 to 3 that is freed after others were returned empties the lists.
        drains_high_order: bool,
    },
    /// Since Linux 6.7: the `high` follows what is fetched and freed (`high_min`, `high_max`), and the number
    /// returned is the number freed consecutively (`free_count`).
    AutoTuned {
        /// Frames up to which the `high` may rise (`high_max`).
        high_max: u32,
        /// The high watermark of the zone: below it lists are kept short (`ZONE_BELOW_HIGH`).
        high_watermark: u32,
        /// Frames freed in a row from which on blocks of order 1 to 3 empty the lists: a batch; since 6.16
        /// half of the lowest `high` more.
        free_count_limit: u32,
    },
}

impl PcpBatching {
    /// The terms of a kernel, by its release (`uname -r`; one that cannot be read counts as new), for lists
    /// with a batch and a lowest `high`, in a zone with this number of managed frames and this high
    /// watermark.
    pub fn for_release(
        release: &str,
        pcp_config: &PcpConfig,
        managed_frames: u32,
        high_watermark: u32,
    ) -> PcpBatching {
        // `zone_highsize` with a fraction of 8 (MIN_PERCPU_PAGELIST_HIGH_FRACTION).
        let high_max = (managed_frames / 8 / u32::from(pcp_config.cpus.max(1))).max(pcp_config.high);
        match crate::policies::parse_release(release) {
            release if release < (5, 14, 0) => PcpBatching::FixedBatch,
            release if release < (6, 7, 0) => {
                PcpBatching::FreeFactor { drains_high_order: release >= (5, 18, 0) }
            }
            release if release < (6, 16, 0) => {
                PcpBatching::AutoTuned { high_max, high_watermark, free_count_limit: pcp_config.batch }
            }
            _ => PcpBatching::AutoTuned {
                high_max,
                high_watermark,
                free_count_limit: pcp_config.batch + pcp_config.high / 2,
            },
        }
    }
}

/// State of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ZoneFlags {
    /// `kswapd` is at work (`ZONE_RECLAIM_ACTIVE`).
    pub is_reclaiming: bool,
    /// A request has found less free than the high watermark (`ZONE_BELOW_HIGH`).
    pub is_below_high: bool,
}

/// State of one processor that determines its next batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PcpState {
    /// Doublings of the next batch to free (`free_factor`).
    free_factor: u8,
    /// The same of the next batch to fetch (`alloc_factor`).
    alloc_factor: u8,
    /// Whether the block that was freed last was of order 1 to 3.
    was_high_order: bool,
    /// Frames freed in a row; halved with each allocation (`free_count`).
    free_count: u32,
    high: u32,
}

impl PcpState {
    fn new(pcp_config: &PcpConfig) -> PcpState {
        PcpState {
            free_factor: 0,
            alloc_factor: 0,
            was_high_order: false,
            free_count: 0,
            high: pcp_config.high,
        }
    }

    /// Initial `high` for the frames on the lists: these stay below it (`free_frozen_page_commit`), so a
    /// longer list has a `high` that has risen.
    fn init_high(&mut self, pcp_config: &PcpConfig, frames: u32) {
        if let PcpBatching::AutoTuned { high_max: most, .. } = pcp_config.batching {
            self.high = pcp_config.high.max(frames.saturating_add(1).min(most));
        }
    }

    /// A block is requested.
    #[inline]
    fn note_allocation(&mut self) {
        self.free_factor >>= 1;
        self.free_count >>= 1;
    }

    /// Blocks of an order that a refill allocates, for a processor with `frames` frames on its lists.
    fn refill_blocks(&mut self, pcp_config: &PcpConfig, flags: ZoneFlags, frames: u32, order: u8) -> u32 {
        let mut batch = pcp_config.batch;
        if let PcpBatching::AutoTuned { high_max: most, .. } = pcp_config.batching {
            if order == 0 {
                batch <<= self.alloc_factor;
            }
            if most > pcp_config.high && !flags.is_below_high {
                self.high = (self.high + batch).min(most);
            }
            if order == 0 {
                let room =
                    self.high.saturating_sub(frames).saturating_sub(pcp_config.batch).max(pcp_config.batch);
                if batch <= room && u32::from(self.alloc_factor) < BATCH_SCALE_MAX {
                    self.alloc_factor += 1;
                }
                batch = batch.min(room);
            }
        }
        match order {
            0 => batch,
            _ if batch == 1 && pcp_config.batching != PcpBatching::FixedBatch => 1,
            order => (batch >> order).max(2),
        }
    }

    /// Frames that are freed after a block of an order was added; `frames` are on the lists with it.
    #[inline(always)]
    fn frames_to_drain(
        &mut self,
        pcp_config: &PcpConfig,
        flags: ZoneFlags,
        frames: u32,
        order: u8,
    ) -> Option<u32> {
        match pcp_config.batching {
            PcpBatching::FixedBatch => (frames >= pcp_config.high).then_some(pcp_config.batch),
            PcpBatching::FreeFactor { drains_high_order: empties } => {
                self.drain_by_free_factor(pcp_config, flags, frames, empties && is_high_order(order))
            }
            PcpBatching::AutoTuned { .. } => self.drain_auto_tuned(pcp_config, flags, frames, order),
        }
    }

    #[inline(always)]
    fn drain_by_free_factor(
        &mut self,
        pcp_config: &PcpConfig,
        flags: ZoneFlags,
        frames: u32,
        can_drain_all: bool,
    ) -> Option<u32> {
        if can_drain_all && self.free_factor > 0 {
            return Some(frames);
        }
        let high =
            if flags.is_reclaiming { pcp_config.high.min(4 * pcp_config.batch) } else { pcp_config.high };
        if frames < high {
            return None;
        }
        let max_drain = high - pcp_config.batch;
        let drain_frames = u64::from(pcp_config.batch) << self.free_factor;
        if drain_frames < u64::from(max_drain) {
            self.free_factor += 1;
        }
        Some(drain_frames.min(max_drain.into()) as u32)
    }

    #[inline(always)]
    fn drain_auto_tuned(
        &mut self,
        pcp_config: &PcpConfig,
        flags: ZoneFlags,
        frames: u32,
        order: u8,
    ) -> Option<u32> {
        let PcpBatching::AutoTuned { high_max, free_count_limit, .. } = pcp_config.batching else {
            return None;
        };
        self.alloc_factor >>= 1;
        let drains_all = is_high_order(order)
            && self.was_high_order
            && self.free_count >= free_count_limit
            && frames >= pcp_config.batch;
        self.was_high_order = is_high_order(order);
        if self.free_count < pcp_config.batch << BATCH_SCALE_MAX {
            self.free_count += 1 << order;
        }
        if drains_all {
            self.high = self.high.saturating_sub(pcp_config.batch << BATCH_SCALE_MAX).max(pcp_config.high);
            return Some(frames.min(pcp_config.batch << BATCH_SCALE_MAX));
        }
        let lowered =
            |high: u32| high.saturating_sub(self.free_count.max(pcp_config.batch)).max(pcp_config.high);
        let mut high = self.high;
        if flags.is_reclaiming {
            self.high = lowered(high);
            high = self.high.min(4 * pcp_config.batch);
        } else if high_max > pcp_config.high && flags.is_below_high {
            self.high = lowered(high);
            high = frames.max(pcp_config.high);
        } else if high_max > pcp_config.high && frames >= high {
            self.high = high.max((self.free_count + pcp_config.batch).min(high_max));
        }
        (frames >= high).then(|| self.free_count.max(pcp_config.batch).min(high - pcp_config.batch))
    }

    /// A second passes: `high` decreases, and the frames above it are freed (`vmstat_update`). Returns their
    /// number.
    fn decay_high(&mut self, pcp_config: &PcpConfig, frames: u32) -> u32 {
        if !matches!(pcp_config.batching, PcpBatching::AutoTuned { .. }) {
            return 0;
        }
        let min_high = frames.saturating_sub(pcp_config.batch << BATCH_SCALE_MAX).max(pcp_config.high);
        if self.high > pcp_config.high {
            self.high = (self.high - (self.high >> 3)).max(min_high);
        }
        frames.saturating_sub(self.high)
    }
}

/// Whether blocks of an order are kept and larger than a frame, but not of a pageblock.
#[inline]
fn is_high_order(order: u8) -> bool {
    (1..=COSTLY_ORDER).contains(&order)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use pagelab_model::random::SplitMix64;

    use super::*;

    #[test]
    fn a_list_behaves_like_a_deque() {
        let mut random = SplitMix64::new(5);
        let (mut list, mut deque) = (PcpList::default(), VecDeque::new());
        for step in 0..100_000 {
            let frame = Frame::new(step);
            // It grows, and shrinks again.
            let grows = step / 5_000 % 2 == 0;
            match random.next_below(8) {
                0 | 1 => (list.push_front(frame), deque.push_front(frame)).0,
                2 | 3 if grows => (list.push_back(frame), deque.push_back(frame)).0,
                2..=4 => assert_eq!(list.pop_front(), deque.pop_front(), "step {step}"),
                5 if grows => assert_eq!(list.pop_back(), deque.pop_back(), "step {step}"),
                6 | 7 if grows => {}
                _ => assert_eq!(list.pop_back(), deque.pop_back(), "step {step}"),
            }
            assert_eq!((list.len() as usize, list.is_empty()), (deque.len(), deque.is_empty()));
            let steps = random.next_below(20) as usize;
            let expected = deque.len().checked_sub(steps).and_then(|at| deque.get(at)).copied();
            assert_eq!(list.nth_from_back(steps as u32), expected);
        }
    }
}
