//! The scanners of compaction, zone by zone: where they stopped, and whether that was before they met.
//!
//! The kernel answers a write to `compact_memory` with success whatever became of it. Where a zone ended is
//! in the tracepoint `mm_compaction_end`; why, in the `mm_compaction_migratepages` before it.

use pagelab_model::{Order, Pfn};

/// `COMPACT_CONTENDED` (include/linux/compaction.h; 7 since Linux 4.8, and the tracepoint's format names it).
pub const CONTENDED: i64 = 7;

/// One zone, from `mm_compaction_begin` to `mm_compaction_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannerRun {
    /// First frame of the zone.
    pub first: Pfn,
    /// The frame after its last.
    pub end: Pfn,
    /// Where the scanner for pages to move stopped; it goes up.
    pub migrate: Pfn,
    /// Where the scanner for room stopped; it goes down.
    pub free: Pfn,
    /// The kernel's `enum compact_result`.
    pub status: i64,
    /// Pages that could not be moved, in all its batches.
    pub failed: u64,
}

/// Why scanners stopped before they met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCause {
    /// Pages were to be moved and none of the pieces that had been found for them was large enough. Folios
    /// are moved whole; one whose split fails as well ends the zone (mm/compaction.c, `compact_zone`: -ENOMEM
    /// from `migrate_pages`, 6.9 and later for large folios).
    NoPlace,
    /// A signal, or somebody else who held a lock for too long.
    Interrupted,
    /// The kernel does not say.
    Unknown,
}

impl ScannerRun {
    /// Whether the scanners have met, by blocks of `block` (mm/compaction.c, `compact_scanners_met`).
    pub fn has_met(&self, block: Order) -> bool {
        let block_of = |pfn: Pfn| pfn.0.checked_shr(block.0.into()).unwrap_or(0);
        block_of(self.free) <= block_of(self.migrate)
    }

    /// Why it ended early; `None` where the scanners have met.
    pub fn early(&self, block: Order) -> Option<EarlyCause> {
        match (self.has_met(block), self.status, self.failed) {
            (true, ..) => None,
            (false, CONTENDED, 0) => Some(EarlyCause::Interrupted),
            (false, CONTENDED, _) => Some(EarlyCause::NoPlace),
            (false, ..) => Some(EarlyCause::Unknown),
        }
    }

    /// The share of the zone's frames that neither scanner has come to, 0 to 1.
    pub fn unscanned(&self) -> f64 {
        let span = self.end.0.saturating_sub(self.first.0).max(1);
        (self.free.0.saturating_sub(self.migrate.0) as f64 / span as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(migrate: u64, free: u64, status: i64, failed: u64) -> ScannerRun {
        let (first, end) = (Pfn(0x1000), Pfn(0x9000));
        ScannerRun { first, end, migrate: Pfn(migrate), free: Pfn(free), status, failed }
    }

    #[test]
    fn scanners_that_have_not_met_ended_early_and_the_last_batch_says_why() {
        for (run, early) in [
            // Seen on Linux 6.18: both in the same block, 0x60be00 and 0x60bf00 there.
            (run(0x5e00, 0x5f00, 5, 0), None),
            (run(0x8e00, 0x8e00, 5, 0), None),
            (run(0x6000, 0x5e00, 6, 3), None),
            (run(0x1020, 0x8e00, CONTENDED, 31), Some(EarlyCause::NoPlace)),
            (run(0x1020, 0x8e00, CONTENDED, 0), Some(EarlyCause::Interrupted)),
            (run(0x1020, 0x8e00, 8, 0), Some(EarlyCause::Unknown)),
        ] {
            assert_eq!(run.early(Order(9)), early, "{run:?}");
        }
        assert!((run(0x1000, 0x9000, 7, 1).unscanned() - 1.0).abs() < 1e-9);
        assert!(run(0x5e00, 0x5d00, 5, 0).unscanned() < 1e-9);
        let hostile = ScannerRun { end: Pfn(0), ..run(u64::MAX, 0, i64::MIN, u64::MAX) };
        assert_eq!((hostile.early(Order(255)), hostile.unscanned() < 1e-9), (None, true));
    }
}
