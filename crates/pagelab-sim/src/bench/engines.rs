//! The engines as the benchmark drives them.

use std::ops::Range;

use super::Engine;
use crate::compact::Compact;
use crate::lists::Lists;
use crate::memory::{Down, Memory, Request};
use crate::percpu::PerCpu;
use crate::policy::Policy;
use crate::words::{Frame, Kind, Wrong};
use crate::zone::Zone;

impl<P: Policy> Engine for Zone<P> {
    fn frames(&self) -> u32 {
        self.shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.lists().places()
    }

    #[inline(always)]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        if let Some(frame) = self.take_own(order, kind) {
            return Ok(Some((frame, false)));
        }
        let taken = Zone::take(self, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline(always)]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Zone::free(self, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        Zone::expect_free(self, frame);
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        if Lists::may_be_large(frame) {
            Zone::expect_buddy(self, frame);
        }
    }
}

/// All calls come from the first processor.
impl<P: Policy> Engine for PerCpu<P> {
    fn frames(&self) -> u32 {
        self.zone().shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.zone().lists().places()
    }

    #[inline(always)]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        if let Some(frame) = self.take_own(0, order, kind) {
            return Ok(Some((frame, false)));
        }
        let taken = PerCpu::take(self, 0, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline(always)]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        PerCpu::free(self, 0, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        self.zone().expect_free(frame);
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        if Lists::may_be_large(frame) {
            self.zone().expect_buddy(frame);
        }
    }
}

/// All requests come from node 0 and its first processor, may go to any zone, and down to the low mark.
impl<P: Policy + Clone> Engine for Memory<P> {
    fn frames(&self) -> u32 {
        self.zones().map(|(setup, _)| setup.shape.frames).sum()
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.zones().flat_map(|(_, zone)| zone.zone().lists().places()).collect()
    }

    #[inline(always)]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let request =
            || Request { order, kind, height: u8::MAX, node: 0, cpu: 0, down: Down::ToLow, may_mix: true };
        if let Some((_, frame)) = self.take_first(&request()) {
            return Ok(Some((frame, false)));
        }
        let taken = self.take_any(request())?;
        Ok(taken.map(|(_, taken)| (taken.frame, taken.stolen.is_some())))
    }

    #[inline(always)]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Memory::free(self, 0, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        self.zone_at(frame).into_iter().for_each(|zone| zone.expect_free(frame));
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        if Lists::may_be_large(frame)
            && let Some(zone) = self.zone_at(frame)
        {
            zone.expect_buddy(frame);
        }
    }
}

impl Engine for Compact {
    const FEW_AT_ONCE: bool = true;

    fn frames(&self) -> u32 {
        self.shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        Compact::places(self)
    }

    #[inline(always)]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = Compact::take(self, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline(always)]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Compact::free(self, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        Compact::expect_free(self, frame);
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        Compact::expect_merge(self, frame);
    }
}

/// No allocator: what it gives are frames one after the other, and nothing is kept of them. So it shows what
/// a load costs by itself.
#[derive(Clone, Debug)]
pub struct Nothing {
    frames: u32,
    next: Frame,
}

impl Nothing {
    /// Of so many frames.
    pub fn new(frames: u32) -> Nothing {
        Nothing { frames, next: 0 }
    }
}

impl Engine for Nothing {
    fn frames(&self) -> u32 {
        self.frames
    }

    #[inline(always)]
    fn take(&mut self, order: u8, _kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        // A block may go on behind the last frame: nobody looks.
        let frame = if self.next < self.frames { self.next } else { 0 };
        self.next = frame.saturating_add(1 << order);
        Ok(Some((frame, false)))
    }

    #[inline(always)]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        if frame < self.frames { Ok(()) } else { Err(Wrong::Outside(frame)) }
    }
}
