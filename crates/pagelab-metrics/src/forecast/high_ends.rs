//! High ends of a forecast: several upper bounds are known, and the smallest of them is the high end.
//!
//! | bound | definition |
//! |---|---|
//! | scanners | what the scanners leave whole, or what is free now, with room for what changes until the last request |
//! | zones | Σ over the zones of their own high ends |
//! | clean blocks | pageblocks without a page that can be neither moved nor freed by the step |
//! | memory | ⌊(free pages + those on per-CPU lists + those that the step frees) / B⌋, with the same room |
//!
//! What can be freed is counted generously, since a bound that is too low is worse than a wide one: as many
//! pages without a flag are free as per-CPU lists hold, where they are fewest; dropping the page cache frees
//! all of it, and the slab pages that describe it, in the blocks that hold the fewest. Anonymous memory
//! stays: no step swaps it out.

use super::inputs::{ForecastInputs, ZoneInputs};
use super::{AllocationRequest, DRIFT_DIVISOR, ForecastBounds, ReclaimStep, StepBounds, ZoneForecast};
use crate::supply::count_fitting;

/// A bound that may be the high end of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperBound {
    /// What the scanners of compaction leave whole, or what is free now.
    Scanners,
    /// The sum of the zones' high ends.
    Zones,
    /// Pageblocks without a page that can be neither moved nor freed.
    CleanBlocks,
    /// Free memory.
    Memory,
}

/// The upper bounds at one step, in huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperBounds {
    /// [`UpperBound::Scanners`].
    pub scanners: u64,
    /// [`UpperBound::Zones`].
    pub zones: u64,
    /// [`UpperBound::CleanBlocks`]; `None` for sizes below that of a pageblock, which fit beside a page that
    /// pollutes it.
    pub clean_blocks: Option<u64>,
    /// [`UpperBound::Memory`].
    pub memory: u64,
}

impl UpperBounds {
    /// The smallest bound, and which it is. Of equal ones, the one that needs the fewest words.
    pub fn smallest(&self) -> (UpperBound, u64) {
        let clean_blocks = self.clean_blocks.map(|blocks| (UpperBound::CleanBlocks, blocks));
        let others = [
            (UpperBound::Memory, self.memory),
            (UpperBound::Scanners, self.scanners),
            (UpperBound::Zones, self.zones),
        ];
        let all = clean_blocks.into_iter().chain(others);
        all.min_by_key(|&(_, bound)| bound).unwrap_or((UpperBound::Scanners, self.scanners))
    }
}

/// Limits the intervals of all zones and of their total, which have room for changes already, and returns the
/// bounds of the total at each step.
pub(super) fn limit_high_ends(
    machine: &ForecastInputs<'_>,
    request: AllocationRequest,
    zones: &mut [ZoneForecast],
    total: &mut StepBounds,
) -> [UpperBounds; 3] {
    let limits = HighEndLimits { machine, request };
    for (inputs, zone) in machine.zones.iter().zip(zones.iter_mut()) {
        for step in ReclaimStep::ALL {
            let memory = limits.memory([inputs], step);
            let clean_blocks = limits.clean_blocks([inputs], step).unwrap_or(u64::MAX);
            zone.bounds.at_mut(step).limit_high(memory.min(clean_blocks));
        }
    }
    ReclaimStep::ALL.map(|step| {
        let ends = zones.iter().map(|zone| zone.bounds.at(step).high);
        let bounds = UpperBounds {
            scanners: total.at(step).high,
            zones: ends.fold(0, u64::saturating_add),
            clean_blocks: limits.clean_blocks(&machine.zones, step),
            memory: limits.memory(&machine.zones, step),
        };
        total.at_mut(step).limit_high(bounds.smallest().1);
        bounds
    })
}

/// Bounds that follow from the contents of zones alone.
struct HighEndLimits<'a> {
    machine: &'a ForecastInputs<'a>,
    request: AllocationRequest,
}

impl HighEndLimits<'_> {
    fn clean_blocks<'z>(
        &self,
        zones: impl IntoIterator<Item = &'z ZoneInputs>,
        step: ReclaimStep,
    ) -> Option<u64> {
        if self.request.order != self.machine.unit_order {
            return None;
        }
        let (mut clean, mut slab_pages) = (0u64, Vec::new());
        for zone in zones {
            // Free blocks of the lists are possible whatever the census saw a moment later.
            clean = clean.saturating_add(zone.clean_blocks.max(zone.free_runs(self.request.order)));
            slab_pages.extend_from_slice(&zone.slab_pages_alone);
        }
        Some(clean.saturating_add(count_fitting(slab_pages, self.freed_slab_pages(step))))
    }

    fn memory<'z>(&self, zones: impl IntoIterator<Item = &'z ZoneInputs>, step: ReclaimStep) -> u64 {
        let (mut pages, mut blocks) = (self.freed_slab_pages(step), 0u64);
        for zone in zones {
            // Pages that were taken off the lists during the census are in one of the two.
            let counted = zone.blocks.iter().map(|block| block.free).fold(0, u64::saturating_add);
            let cache = if step == ReclaimStep::DropCache { zone.cache_pages } else { 0 };
            let free = zone.free_pages.max(counted).saturating_add(zone.pcp_pages);
            pages = pages.saturating_add(free).saturating_add(cache);
            blocks = blocks.saturating_add((zone.blocks.len() as u64).div_ceil(DRIFT_DIVISOR));
        }
        let shift = u32::from(self.machine.unit_order.0.saturating_sub(self.request.order.0)).min(63);
        let room = blocks.saturating_mul(1 << shift);
        (pages / self.request.order.to_pages().0.max(1)).saturating_add(room)
    }

    fn freed_slab_pages(&self, step: ReclaimStep) -> u64 {
        if step == ReclaimStep::DropCache { self.machine.page_cache_slab_pages } else { 0 }
    }
}

impl ForecastBounds {
    /// At most this; the expected value was counted in memory of the same moment, and stays.
    fn limit_high(&mut self, bound: u64) {
        self.high = self.high.min(bound).max(self.expected);
    }
}
