//! A failed allocation request and the zones' watermarks, as a report of the kernel states them.

use crate::Pages;

/// The request of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Its gfp flags (`mode:0x40dc0`, `gfp_mask=0xcc0`).
    pub gfp_mask: u64,
}

impl FailedRequest {
    // include/linux/gfp_types.h; the same values since 2.6.32.
    const DMA: u64 = 1 << 0;
    const HIGHMEM: u64 = 1 << 1;
    const DMA32: u64 = 1 << 2;
    const MOVABLE: u64 = 1 << 3;
    const HIGH: u64 = 1 << 5;

    /// The highest zone that the request may use (include/linux/gfp.h, `gfp_zone`), if the machine has it.
    pub fn highest_zone(self) -> &'static str {
        let has = |bits: u64| self.gfp_mask & bits == bits;
        match () {
            () if has(Self::DMA) => "DMA",
            () if has(Self::DMA32) => "DMA32",
            () if has(Self::HIGHMEM | Self::MOVABLE) => "Movable",
            () if has(Self::HIGHMEM) => "HighMem",
            () => "Normal",
        }
    }

    /// Whether the request is for movable pages, which may come from CMA areas.
    pub fn is_movable(self) -> bool {
        self.gfp_mask & Self::MOVABLE != 0
    }

    /// Whether the request may use a part of the pages below the watermark (`__GFP_HIGH`, as in GFP_ATOMIC).
    pub fn may_use_reserves(self) -> bool {
        self.gfp_mask & Self::HIGH != 0
    }
}

/// Free pages, watermark and reserves of one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneWatermark {
    /// The counter of free pages.
    pub free: Pages,
    /// The watermark min, boost included.
    pub min: Pages,
    /// The highatomic reserve, which requests without access to reserves are not given.
    pub highatomic: Option<Pages>,
    /// Free pages of CMA areas, which only movable requests are given.
    pub free_cma: Option<Pages>,
    /// Pages kept from requests that may use a higher zone, by the index of the highest such zone.
    pub lowmem_reserve: Option<Vec<Pages>>,
}
