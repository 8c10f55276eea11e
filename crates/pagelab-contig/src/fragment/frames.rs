//! Where the kept pages lie in physical memory, from our own page table.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use pagelab_formats::pagemap::{ENTRY_BYTES, PagemapEntry};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_metrics::fragment_plan::Shape;
use pagelab_model::{Absence, AbsentWhy, Order, PageSize, Pfn, Reading, ZoneInfo};

use super::spoiler::Spoiler;

/// Units looked at, at most; of more an even sample is taken.
const UNITS_MAX: u64 = 16 << 10;

/// What the page table says of the kept pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Kept pages that were looked at.
    pub looked_at: u64,
    /// Of these, pages that are there.
    pub present: u64,
    /// Of these, pages in the zone in question.
    pub in_zone: u64,
    /// Blocks of the order in question, in that zone, that hold at least one of them.
    pub blocks: u64,
    /// Blocks that the pages in the zone hold at least while they lie where they were kept.
    pub planned: u64,
}

/// Blocks that may be missing before the kept pages count as moved together: one of so many.
const MISSING_MAX: u64 = 20;

impl Verified {
    /// Whether kept pages lie together in fewer blocks than they were kept in, because compaction moved them.
    /// Free memory that is broken up then is so by chance, and whoever holds these pages does not hold it.
    pub fn is_moved(&self) -> bool {
        self.blocks.saturating_add(self.planned / MISSING_MAX) < self.planned
    }
}

/// One page is kept in each group, so that a block of `order` holds at most as many as it has groups.
fn planned_blocks(kept: u64, shape: Shape, order: Order) -> u64 {
    kept.div_ceil(1u64.checked_shl(u32::from(order.0.saturating_sub(shape.group.0))).unwrap_or(u64::MAX))
}

/// Looks the kept pages up. Frame numbers need CAP_SYS_ADMIN (4.2).
pub fn verify(spoiler: &Spoiler, zone: &ZoneInfo, order: Order, page_size: PageSize) -> Reading<Verified> {
    let pagemap = Root::live().file(paths::SELF_PAGEMAP)?;
    let failed =
        |error: std::io::Error| Absence::new(paths::SELF_PAGEMAP, AbsentWhy::Failed, error.to_string());
    let span = zone.start.zip(zone.end());
    let mut verified = Verified::default();
    let mut blocks = BTreeSet::new();
    let units = spoiler.units();
    let stride = units.div_ceil(UNITS_MAX).max(1);
    for unit in (0..units).step_by(usize::try_from(stride).unwrap_or(usize::MAX)) {
        let Some((address, kept)) = spoiler.kept_of(unit) else { continue };
        for page in kept {
            let index = (address >> page_size.shift()) + page;
            let mut entry = [0; ENTRY_BYTES];
            pagemap.read_exact_at(&mut entry, index * ENTRY_BYTES as u64).map_err(failed)?;
            let entry = PagemapEntry(u64::from_ne_bytes(entry));
            verified.looked_at += 1;
            verified.present += u64::from(entry.is_present());
            if entry.is_present() && entry.frame().is_none() {
                let why = Absence::new(paths::SELF_PAGEMAP, AbsentWhy::NotPermitted, "");
                return Err(why.or("run as root, or with CAP_SYS_ADMIN"));
            }
            let in_zone = |frame: &Pfn| span.is_none_or(|(start, end)| (start..end).contains(frame));
            if let Some(frame) = entry.frame().filter(in_zone) {
                verified.in_zone += 1;
                blocks.insert(frame.0 >> order.0.min(63));
            }
        }
    }
    verified.blocks = blocks.len() as u64;
    verified.planned = planned_blocks(verified.in_zone, spoiler.shape(), order);
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_pages_that_lie_together_do_not_count_as_held() {
        let huge = Order(9);
        // Kept pages, order of what is taken, order in question, blocks seen; blocks planned, moved.
        let cases = [
            (647, Shape::fewest(huge, huge), huge, 20, 647, true),
            (647, Shape::fewest(huge, huge), huge, 647, 647, false),
            (1000, Shape::fewest(huge, huge), huge, 950, 1000, false),
            (1000, Shape::fewest(huge, huge), huge, 949, 1000, true),
            // Two huge pages may share a block of the order above.
            (1000, Shape::fewest(huge, Order(10)), Order(10), 500, 500, false),
            // 32 pages of each huge page for blocks of 16 pages.
            (3200, Shape::fewest(huge, Order(4)), Order(4), 3200, 3200, false),
            // Of base pages, two in each block.
            (1000, Shape::unaligned(huge, huge), huge, 500, 500, false),
            (1000, Shape::unaligned(huge, huge), huge, 100, 500, true),
            (0, Shape::fewest(huge, huge), huge, 0, 0, false),
            (7, Shape::fewest(huge, huge), huge, 7, 7, false),
        ];
        for (kept, shape, order, blocks, planned, moved) in cases {
            let verified =
                Verified { blocks, planned: planned_blocks(kept, shape, order), ..Verified::default() };
            assert_eq!(
                (verified.planned, verified.is_moved()),
                (planned, moved),
                "{kept} {shape:?} {order:?}"
            );
        }
    }
}
