//! Naive twin of the pcp lists: one flat list of blocks, searched for every query.

use std::collections::HashMap;

use crate::types::{AllocationType, Fallback, Frame};

use super::{NaiveAllocFlags, NaiveFrameState, NaiveZone};

/// Batch sizes, in the twin's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NaiveBatching {
    /// Always a batch.
    FixedBatch,
    /// More and more, as in Linux 5.18 to 6.6.
    FreeFactor,
    /// As in Linux 6.7 and later.
    AutoTuned {
        /// The highest `high`.
        high_max: u32,
        /// Pages freed in a row before a block of order 1 to 3 flushes.
        free_count_limit: u32,
    },
}

/// State of a processor.
#[derive(Clone, Copy, Debug, Default)]
struct NaiveCpuState {
    /// Number of doublings of the pages to free, and of those to fetch.
    free_factor: u32,
    alloc_factor: u32,
    /// Pages freed in a row.
    free_count: i64,
    /// The `high` of its lists now.
    high: i64,
    /// Whether the last block that was freed was of order 1 to 3.
    was_high_order: bool,
}

/// A block on a per-CPU list.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NaivePcpBlock {
    cpu: u16,
    list_index: u8,
    order: u8,
    frame: Frame,
    /// The block with the highest is in front.
    age: i64,
}

impl NaivePcpBlock {
    fn is_on(&self, cpu: u16, list_index: u8) -> bool {
        self.cpu == cpu && self.list_index == list_index
    }
}

/// The twin with pcp lists: one flat list of blocks, searched for each query.
#[derive(Clone, Debug)]
pub struct NaivePcpZone {
    /// The zone below.
    pub zone: NaiveZone,
    batch: u32,
    high: u32,
    batching: NaiveBatching,
    /// Whether reclaim is at work, and whether the zone was found below its high watermark.
    pub is_reclaiming: bool,
    is_below_high: bool,
    /// The zone's high watermark.
    pub high_watermark: i64,
    cpu_states: HashMap<u16, NaiveCpuState>,
    pcp_blocks: Vec<NaivePcpBlock>,
    next_age: i64,
}

impl NaivePcpZone {
    /// Empty lists.
    pub fn new(zone: NaiveZone, batch: u32, high: u32, batching: NaiveBatching) -> NaivePcpZone {
        NaivePcpZone {
            zone,
            batch,
            high,
            batching,
            is_reclaiming: false,
            is_below_high: false,
            high_watermark: 0,
            cpu_states: HashMap::new(),
            pcp_blocks: Vec::new(),
            next_age: 0,
        }
    }

    fn cpu_state_mut(&mut self, cpu: u16) -> &mut NaiveCpuState {
        let high = i64::from(self.high);
        self.cpu_states.entry(cpu).or_insert(NaiveCpuState { high, ..NaiveCpuState::default() })
    }

    fn pcp_pages(&self, cpu: u16) -> i64 {
        self.pcp_blocks.iter().filter(|block| block.cpu == cpu).map(|block| 1i64 << block.order).sum()
    }

    fn free_pages(&self) -> i64 {
        self.zone.free_blocks().iter().enumerate().map(|(order, &blocks)| i64::from(blocks) << order).sum()
    }

    /// Number of blocks to fetch.
    fn refill_blocks(&mut self, cpu: u16, order: u8) -> u32 {
        let (batch, least) = (i64::from(self.batch), i64::from(self.high));
        let NaiveBatching::AutoTuned { high_max: most, .. } = self.batching else {
            return match (order, self.batch, self.batching) {
                (0, batch, _) => batch,
                (_, 1, NaiveBatching::FreeFactor) => 1,
                (order, batch, _) => (batch / (1 << order)).max(2),
            };
        };
        let (count, low) = (self.pcp_pages(cpu), self.is_below_high);
        let state = self.cpu_state_mut(cpu);
        let wanted = if order == 0 { batch * (1 << state.alloc_factor) } else { batch };
        if !low && i64::from(most) != least {
            state.high = (state.high + wanted).min(most.into());
        }
        if order > 0 {
            return if batch == 1 { 1 } else { (batch >> order).max(2) as u32 };
        }
        let limit = (state.high - count - batch).max(batch);
        if wanted <= limit && state.alloc_factor < 5 {
            state.alloc_factor += 1;
        }
        wanted.min(limit) as u32
    }

    /// Number of pages to return after a block was freed.
    fn pages_to_drain(&mut self, cpu: u16, order: u8) -> i64 {
        let (batch, least) = (i64::from(self.batch), i64::from(self.high));
        let (count, low, reclaims, how_much) =
            (self.pcp_pages(cpu), self.is_below_high, self.is_reclaiming, self.batching);
        let state = self.cpu_state_mut(cpu);
        match how_much {
            NaiveBatching::FixedBatch => batch * i64::from(count >= least),
            NaiveBatching::FreeFactor => {
                if state.free_factor > 0 && (1..=3).contains(&order) {
                    return count;
                }
                let effective_high = if reclaims { least.min(batch * 4) } else { least };
                if count < effective_high {
                    return 0;
                }
                let drain_pages = batch << state.free_factor;
                state.free_factor += u32::from(drain_pages < effective_high - batch);
                drain_pages.min(effective_high - batch)
            }
            NaiveBatching::AutoTuned { high_max: most, free_count_limit: in_a_row } => {
                state.alloc_factor /= 2;
                let is_high_order = (1..=3).contains(&order);
                let drains_all = is_high_order
                    && state.was_high_order
                    && state.free_count >= i64::from(in_a_row)
                    && count >= batch;
                state.was_high_order = is_high_order;
                if state.free_count < batch * 32 {
                    state.free_count += 1 << order;
                }
                if drains_all {
                    state.high = (state.high - batch * 32).max(least);
                    return count.min(batch * 32);
                }
                let before = state.high;
                let lowered_high = (before - state.free_count.max(batch)).max(least);
                let high = if reclaims {
                    state.high = lowered_high;
                    lowered_high.min(batch * 4)
                } else if i64::from(most) == least {
                    before
                } else if low {
                    state.high = lowered_high;
                    count.max(least)
                } else {
                    if count >= before {
                        state.high = before.max((state.free_count + batch).min(most.into()));
                    }
                    before
                };
                if count >= high { state.free_count.max(batch).min(high - batch) } else { 0 }
            }
        }
    }

    /// A second has passed.
    pub fn decay_lists(&mut self) {
        let least = i64::from(self.high);
        if !matches!(self.batching, NaiveBatching::AutoTuned { .. }) {
            return;
        }
        let mut cpus: Vec<u16> = self.pcp_blocks.iter().map(|block| block.cpu).collect();
        cpus.extend(self.cpu_states.keys());
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            let (count, batch) = (self.pcp_pages(cpu), i64::from(self.batch));
            let state = self.cpu_state_mut(cpu);
            if state.high > least {
                state.high = (count - batch * 32).max(state.high - state.high / 8).max(least);
            }
            let above = count - state.high;
            self.free_bulk(cpu, 0, above);
        }
    }

    /// The oldest of a list go back until it is empty, then those of the next.
    fn free_bulk(&mut self, cpu: u16, mut first_list: u8, pages: i64) {
        let mut left = pages.min(self.pcp_pages(cpu));
        while left > 0 {
            let own = self.pcp_blocks.iter().filter(|block| block.is_on(cpu, first_list));
            match own.min_by_key(|block| block.age).copied() {
                Some(oldest) => {
                    self.pcp_blocks.retain(|block| *block != oldest);
                    left -= 1 << oldest.order;
                    let owner = self.zone.pageblock_owner(oldest.frame - self.zone.geometry.first_frame);
                    let is_owners = self.zone.is_strict() || owner >= self.zone.lists;
                    let list = if is_owners { owner } else { first_list % self.zone.lists };
                    self.zone.merge_and_list(oldest.frame, oldest.order, list);
                }
                None => first_list = (first_list + 1) % (5 * self.zone.lists),
            }
        }
    }

    fn list_index(&self, order: u8, list: u8) -> Option<u8> {
        let row = match order {
            0..=3 => order,
            _ if order == self.zone.geometry.pageblock_order => 4,
            _ => return None,
        };
        Some(row * self.zone.lists + list)
    }

    fn add_to_pcp(&mut self, block: NaivePcpBlock) {
        self.zone.frames[(block.frame - self.zone.geometry.first_frame) as usize] =
            NaiveFrameState::OnPcpList;
        self.pcp_blocks.push(block);
    }

    fn take_age(&mut self) -> i64 {
        self.next_age += 1;
        self.next_age
    }

    /// Allocates.
    pub fn allocate_block(
        &mut self,
        cpu: u16,
        order: u8,
        alloc_type: AllocationType,
        mut flags: NaiveAllocFlags,
    ) -> Option<(Frame, Option<Fallback>)> {
        let wanted = self.zone.allocation_list(alloc_type);
        let Some(list_index) = self.list_index(order, wanted) else {
            return self.zone.allocate_with_flags(order, alloc_type, &mut flags);
        };
        if self.free_pages() <= self.high_watermark {
            self.is_below_high = true;
        }
        let state = self.cpu_state_mut(cpu);
        (state.free_factor, state.free_count) = (state.free_factor / 2, state.free_count / 2);
        let mut last = None;
        if !self.pcp_blocks.iter().any(|block| block.is_on(cpu, list_index)) {
            let mut refill_flags = NaiveAllocFlags { is_atomic: false, ..flags };
            for _ in 0..self.refill_blocks(cpu, order) {
                let Some((frame, stolen)) =
                    self.zone.allocate_with_flags(order, alloc_type, &mut refill_flags)
                else {
                    break;
                };
                last = stolen.or(last);
                // Behind all others.
                let age = -self.take_age();
                self.add_to_pcp(NaivePcpBlock { cpu, list_index, order, frame, age });
            }
        }
        let own = self.pcp_blocks.iter().filter(|block| block.is_on(cpu, list_index));
        let Some(front) = own.max_by_key(|block| block.age).copied() else {
            return if flags.is_atomic {
                self.zone.allocate_with_flags(order, alloc_type, &mut flags)
            } else {
                None
            };
        };
        self.pcp_blocks.retain(|block| *block != front);
        let at = front.frame - self.zone.geometry.first_frame;
        self.zone.frames[at as usize] = NaiveFrameState::Allocated { order, alloc_type };
        self.zone.reserve_highatomic(at, order, &flags);
        Some((front.frame, last))
    }

    /// Frees.
    pub fn free_block(&mut self, cpu: u16, frame: Frame) -> Option<u8> {
        let (order, list) = self.zone.allocated_order_and_list(frame)?;
        // Blocks of a reserve are on the list of movable blocks.
        let list =
            if list >= self.zone.lists { self.zone.allocation_list(AllocationType::Movable) } else { list };
        let Some(list_index) = self.list_index(order, list) else { return self.zone.free_block(frame) };
        let age = self.take_age();
        self.add_to_pcp(NaivePcpBlock { cpu, list_index, order, frame, age });
        let drained_pages = self.pages_to_drain(cpu, order);
        if drained_pages > 0 {
            self.free_bulk(cpu, list_index, drained_pages);
            if self.free_pages() > self.high_watermark {
                self.is_below_high = false;
            }
        }
        Some(order)
    }
}
