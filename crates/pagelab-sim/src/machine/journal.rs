//! Journal of the machine's decisions, for the comparison with its twin, and the bugs that tests inject.
//! Nothing is kept outside of tests.

use std::ops::Range;

use super::compaction::{CompactControl, CompactResult};
use super::lru::LruList;
use crate::injected_bugs::InjectedBug;
use crate::types::Frame;

/// Decision of reclaim about a scanned page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageVerdict {
    /// Its frame is freed.
    Reclaim,
    /// It is activated.
    Activate,
    /// It stays on its list, as the newest page.
    Keep,
    /// It is in a zone that the request does not permit.
    Skip,
    /// It is written first, and stays on its list meanwhile.
    Write,
    /// The flusher writes it; it is activated meanwhile (6.1).
    AwaitWriteback,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests keep and read them"))]
pub(super) enum Decision {
    /// Reclaim scanned the page at the end of an inactive list.
    InactivePageScanned { list: LruList, handle: u32, verdict: PageVerdict },
    /// Migratetypes were mixed `times` times in a zone; its watermarks are boosted by `boost` pages.
    WatermarksBoosted { zone: usize, times: u32, boost: u64 },
    /// `kswapd` of a node has finished.
    KswapdFinished { node: u16 },
    /// The boost that remains in a zone after `kswapd` has finished.
    BoostReduced { zone: usize, boost: u64 },
    /// A pass of `kswapd` of 6.1 begins. `is_balanced`: whether the watermarks hold for the order. `boost`:
    /// pages to free for boosted watermarks.
    KswapdPass { order: u8, zone_index: u8, is_balanced: bool, boost: u64 },
    /// A pass of reclaim begins, for an order and for zones up to `zone_index`.
    ReclaimPass { order: u8, zone_index: u8, is_direct: bool },
    /// Reclaim scanned the page at the end of an active list: whether anonymous pages may be deactivated, and
    /// whether this page stays active.
    ActivePageScanned { list: LruList, handle: u32, can_reclaim_mapped: bool, stays_active: bool },
    /// A page was scanned because it is adjacent to another scanned page.
    NeighborScanned { handle: u32, verdict: PageVerdict },
    /// A shrinker visited a page of the kernel's caches: objects that remain in it.
    SlabPageShrunk { handle: u32, objects: u8 },
    /// Linear reclaim assessed a region.
    RegionAssessed { from: Frame, order: u8, is_tried: bool },
    /// Compaction was requested; whether it is deferred.
    CompactionRequested { zone: usize, order: u8, is_deferred: bool },
    /// The skip bits of a zone are cleared if the zone was scanned completely.
    SkipBitsReset { zone: usize },
    /// A request was served after a compaction: the deferral of the zone is reset.
    DeferralReset { zone: usize, order: u8 },
    /// The unmovable region is to expand over `range`: whether all pages in it can be evacuated.
    RegionExpansion { zone: usize, range: Range<Frame>, can_evacuate: bool },
    /// A page was evacuated from the range.
    BlockLeftRange { handle: u32, from: Frame, to: Frame },
    /// The evacuation ended: all pages were evacuated, or there was no room for one.
    RegionExpansionEnded { zone: usize, has_room: bool },
    /// The boundary moved down over free pageblocks.
    PageblocksReturned { zone: usize, pageblocks: u32 },
    /// A compaction begins.
    CompactionBegan { zone: usize, control: CompactControl },
    /// A time slice of the disk begins, or a request waits for the disk. `pages`: the most that it writes in
    /// it.
    DiskSlice { pages: u64, is_congestion_wait: bool },
    /// Reclaim asked the flusher to write `pages` pages, beside those that it writes itself.
    WritebackRequested { pages: u64 },
    /// The disk has written a page.
    WriteCompleted { handle: u32 },
    /// The flusher (`pdflush`) begins a run.
    FlusherRun,
    /// The flusher queued a page for writing.
    FlusherWrite { handle: u32 },
    /// Compaction migrated a page.
    PageMigrated { handle: u32, from: Frame, to: Frame },
    /// The compaction ended.
    CompactionEnded { zone: usize, result: CompactResult },
}

/// Bugs that tests inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests inject them"))]
pub(super) enum MachineBug {
    /// A pinned page is moved.
    PinnedPageMigrated,
    /// Regions begin in the middle of blocks of their order.
    RegionUnaligned,
    /// A compaction that was deferred once is deferred for ever.
    DeferralNeverEnds,
    /// Reclaim scans the active list before the inactive one.
    ActiveListFirst,
    /// The free scanner continues below the migration scanner.
    ScannersCross,
    /// The metadata keep the old frame of a migrated page.
    HandleNotUpdated,
    /// Referenced pages are reclaimed like unreferenced ones.
    NoSecondChance,
    /// Swap is unlimited.
    SwapUnlimited,
    /// Linear reclaim tries regions that contain unreclaimable pages.
    RegionNotAssessed,
    /// Asynchronous compaction migrates pages into pageblocks of other migratetypes.
    AnyPageblockUsed,
    /// Watermark boosts are never removed.
    BoostNeverReduced,
    /// `kswapd` swaps for boosted watermarks.
    BoostSwaps,
    /// `kswapd` counts free memory outside whole pageblocks.
    SmallBlocksCounted,
    /// A pinned page is evacuated for the region boundary.
    PinnedPageLeavesRegion,
    /// A dirty page is reclaimed like a clean one.
    DirtyPageDropped,
    /// A page is freed during its writeback.
    FreedUnderWriteback,
    /// A written page that reclaim waits for is not moved to the end of its list.
    WrittenPageNotRotated,
    /// Linear reclaim tries regions that contain pages under writeback.
    RegionUnderWriteback,
}

/// The journal.
#[derive(Clone, Debug, Default)]
pub(super) struct DecisionJournal {
    #[cfg(test)]
    pub decisions: Vec<Decision>,
    pub bug: InjectedBug<MachineBug>,
}

impl DecisionJournal {
    #[inline]
    pub fn record(&mut self, _decision: Decision) {
        #[cfg(test)]
        self.decisions.push(_decision);
    }

    #[inline]
    pub fn has_bug(&self, bug: MachineBug) -> bool {
        self.bug.is_injected(&bug)
    }
}

#[cfg(test)]
impl MachineBug {
    /// All bugs.
    pub const ALL: [MachineBug; 18] = [
        MachineBug::PinnedPageMigrated,
        MachineBug::RegionUnaligned,
        MachineBug::DeferralNeverEnds,
        MachineBug::ActiveListFirst,
        MachineBug::ScannersCross,
        MachineBug::HandleNotUpdated,
        MachineBug::NoSecondChance,
        MachineBug::SwapUnlimited,
        MachineBug::RegionNotAssessed,
        MachineBug::AnyPageblockUsed,
        MachineBug::BoostNeverReduced,
        MachineBug::BoostSwaps,
        MachineBug::SmallBlocksCounted,
        MachineBug::PinnedPageLeavesRegion,
        MachineBug::DirtyPageDropped,
        MachineBug::FreedUnderWriteback,
        MachineBug::WrittenPageNotRotated,
        MachineBug::RegionUnderWriteback,
    ];
}
