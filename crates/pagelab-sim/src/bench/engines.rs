//! The engines as the benchmark drives them.

use std::ops::Range;

use super::Engine;
use crate::compact::Compact;
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
        self.lists().places().to_vec()
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = Zone::take(self, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Zone::free(self, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        Zone::expect_free(self, frame);
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        Zone::expect_buddy(self, frame);
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        Zone::expect_merge(self, frame);
    }
}

/// All calls come from the first processor.
impl<P: Policy> Engine for PerCpu<P> {
    fn frames(&self) -> u32 {
        self.zone().shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.zone().lists().places().to_vec()
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = PerCpu::take(self, 0, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        PerCpu::free(self, 0, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        self.zone().expect_free(frame);
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        self.zone().expect_buddy(frame);
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        self.zone().expect_merge(frame);
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

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let request =
            Request { order, kind, height: u8::MAX, node: 0, cpu: 0, down: Down::ToLow, may_mix: true };
        let taken = Memory::take(self, &request)?;
        Ok(taken.map(|(_, taken)| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Memory::free(self, 0, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        self.zone_at(frame).into_iter().for_each(|zone| zone.expect_free(frame));
    }

    #[inline]
    fn expect_buddy(&self, frame: Frame) {
        self.zone_at(frame).into_iter().for_each(|zone| zone.expect_buddy(frame));
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        self.zone_at(frame).into_iter().for_each(|zone| zone.expect_merge(frame));
    }
}

impl Engine for Compact {
    fn frames(&self) -> u32 {
        self.shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        Compact::places(self)
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = Compact::take(self, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Compact::free(self, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        Compact::expect_free(self, frame);
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        Compact::expect_merge(self, frame);
    }
}
