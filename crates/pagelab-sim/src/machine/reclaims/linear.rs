//! Linear reclaim (Gorman and Whitcroft 2006, section 10; their patches of September 2006 against 2.6.18):
//! memory is a row of regions of the order that is short, and whole regions are reclaimed.

use super::{Ground, Reclaim};
use crate::machine::journal::Flaw;
use crate::words::Wrong;

/// The orders that it is for begin here.
const LEAST: u8 = 3;

/// Whole regions, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Linear;

impl Reclaim for Linear {
    fn empties(&self, order: u8) -> bool {
        order >= LEAST
    }

    /// Assesses regions, from where it ended last: the share of them that the priority says, as for lists.
    /// All pages of a region that holds only free and reclaimable ones are tried.
    fn empty(&self, ground: &mut Ground<'_>) -> Result<u32, Wrong> {
        let (shape, frames) = (ground.shape(), 1u32 << ground.order());
        let first = match ground.has(Flaw::RegionUnaligned) {
            true => shape.first + frames / 2,
            false => shape.first.next_multiple_of(frames),
        };
        let regions = shape.end().saturating_sub(first) / frames;
        if regions == 0 {
            return Ok(0);
        }
        let looks = ((regions >> ground.priority()) + 1).min(regions);
        let mut freed = 0;
        for _ in 0..looks {
            // Where it ended last may not be the beginning of a region of this order.
            let number = ground.mark().saturating_sub(first).div_ceil(frames) % regions;
            let from = first + number * frames;
            ground.set_mark(from + frames);
            let pages = ground.reclaimable(from, ground.order()).unwrap_or_default();
            ground.assessed(from, !pages.is_empty());
            for page in pages {
                freed += ground.reclaim(page)?.freed;
            }
        }
        Ok(freed)
    }
}
