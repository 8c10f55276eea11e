//! Engines of the benchmark, behind one interface.

use std::ops::Range;

use super::{AllocateOutcome, Engine};
use crate::compact_buddy::CompactBuddy;
use crate::free_lists::FreeLists;
use crate::memory::{Memory, Request, Watermark};
use crate::pcp::PcpZone;
use crate::policies::Policy;
use crate::types::{AllocationType, Error, Frame};
use crate::zone::Zone;

impl<P: Policy> Engine for Zone<P> {
    fn frame_count(&self) -> u32 {
        self.geometry().frames
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.free_lists().memory_ranges()
    }

    #[inline(always)]
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        if let Some(frame) = self.allocate_fast(order, alloc_type) {
            return Ok(Some((frame, false)));
        }
        let allocated = Zone::allocate_block(self, order, alloc_type)?;
        Ok(allocated.map(|taken| (taken.frame, taken.fallback.is_some())))
    }

    #[inline(always)]
    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        Zone::free_block(self, frame).map(drop)
    }

    #[inline]
    fn prefetch_block(&self, frame: Frame) {
        Zone::prefetch_block(self, frame);
    }

    #[inline]
    fn prefetch_buddy(&self, frame: Frame) {
        if FreeLists::can_cross_group(frame) {
            Zone::prefetch_buddy(self, frame);
        }
    }
}

/// All calls are made on the first processor.
impl<P: Policy> Engine for PcpZone<P> {
    fn frame_count(&self) -> u32 {
        self.zone().geometry().frames
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.zone().free_lists().memory_ranges()
    }

    #[inline(always)]
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        if let Some(frame) = self.allocate_fast(0, order, alloc_type) {
            return Ok(Some((frame, false)));
        }
        let allocated = PcpZone::allocate_block(self, 0, order, alloc_type)?;
        Ok(allocated.map(|taken| (taken.frame, taken.fallback.is_some())))
    }

    #[inline(always)]
    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        PcpZone::free_block(self, 0, frame).map(drop)
    }

    #[inline]
    fn prefetch_block(&self, frame: Frame) {
        self.zone().prefetch_block(frame);
    }

    #[inline]
    fn prefetch_buddy(&self, frame: Frame) {
        if FreeLists::can_cross_group(frame) {
            self.zone().prefetch_buddy(frame);
        }
    }
}

/// All requests come from node 0 and its first processor, may use any zone, and are limited by the low
/// watermark.
impl<P: Policy + Clone> Engine for Memory<P> {
    fn frame_count(&self) -> u32 {
        self.zones().map(|(config, _)| config.geometry.frames).sum()
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.zones().flat_map(|(_, zone)| zone.zone().free_lists().memory_ranges()).collect()
    }

    #[inline(always)]
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        let request = || Request {
            order,
            alloc_type,
            zone_index: u8::MAX,
            node: 0,
            cpu: 0,
            watermark: Watermark::Low,
            can_fragment: true,
        };
        if let Some((_, frame)) = self.allocate_fast(&request()) {
            return Ok(Some((frame, false)));
        }
        let allocated = self.allocate_slow(request())?;
        Ok(allocated.map(|(_, taken)| (taken.frame, taken.fallback.is_some())))
    }

    #[inline(always)]
    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        Memory::free_block(self, 0, frame).map(drop)
    }

    #[inline]
    fn prefetch_block(&self, frame: Frame) {
        self.zone_containing(frame).into_iter().for_each(|zone| zone.prefetch_block(frame));
    }

    #[inline]
    fn prefetch_buddy(&self, frame: Frame) {
        if FreeLists::can_cross_group(frame)
            && let Some(zone) = self.zone_containing(frame)
        {
            zone.prefetch_buddy(frame);
        }
    }
}

impl Engine for CompactBuddy {
    const HAS_SMALL_PREFETCH_GROUP: bool = true;

    fn frame_count(&self) -> u32 {
        self.geometry().frames
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        CompactBuddy::memory_ranges(self)
    }

    #[inline(always)]
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        let allocated = CompactBuddy::allocate_block(self, order, alloc_type)?;
        Ok(allocated.map(|taken| (taken.frame, taken.fallback.is_some())))
    }

    #[inline(always)]
    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        CompactBuddy::free_block(self, frame).map(drop)
    }

    #[inline]
    fn prefetch_block(&self, frame: Frame) {
        CompactBuddy::prefetch_block(self, frame);
    }

    #[inline]
    fn prefetch_buddy(&self, frame: Frame) {
        CompactBuddy::prefetch_neighbors(self, frame);
    }
}

/// No allocator: returns consecutive frames and stores nothing. It shows the cost of the load itself.
#[derive(Clone, Debug)]
pub struct NullAllocator {
    frames: u32,
    next_frame: u32,
}

impl NullAllocator {
    /// An allocator of this number of frames.
    pub fn new(frames: u32) -> NullAllocator {
        NullAllocator { frames, next_frame: 0 }
    }
}

impl Engine for NullAllocator {
    fn frame_count(&self) -> u32 {
        self.frames
    }

    #[inline(always)]
    fn allocate_block(&mut self, order: u8, _alloc_type: AllocationType) -> AllocateOutcome {
        // A block may extend beyond the last frame: nothing checks it.
        let frame = if self.next_frame < self.frames { self.next_frame } else { 0 };
        self.next_frame = frame.saturating_add(1 << order);
        Ok(Some((Frame::new(frame), false)))
    }

    #[inline(always)]
    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        if frame.number() < self.frames { Ok(()) } else { Err(Error::OutsideZone(frame)) }
    }
}
