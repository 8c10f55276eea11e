//! Lumpy reclaim (mm/vmscan.c of 2.6.23 to 3.4, `isolate_lru_pages`): with the page at the end of the list go
//! its neighbours, up to the order that is short.

use super::{Ground, Reclaim, Tried};
use crate::machine::reclaim::{COSTLY, PRIORITY};
use crate::words::{Frame, Wrong};

/// The neighbours of the oldest page.
#[derive(Clone, Copy, Debug)]
pub struct Lumpy;

impl Reclaim for Lumpy {
    /// Tries the pages around a frame, in the block of the order that is short in which it lies.
    fn beside(&self, ground: &mut Ground<'_>, frame: Frame) -> Result<Tried, Wrong> {
        let (shape, order) = (ground.shape(), ground.order());
        let from = (frame >> order << order).max(shape.first);
        let end = ((frame >> order << order) + (1 << order)).min(shape.end());
        // Active pages go along where the order is costly, or it has become hard.
        let takes_active = order > COSTLY || ground.priority() < PRIORITY - 2;
        let (mut at, mut all) = (from, Tried::default());
        while at < end {
            let (here, page) = (at, ground.page(at));
            at += ground.step(at);
            let Some(page) = page.filter(|_| here != frame) else { continue };
            if !page.fits_swap {
                break;
            }
            if !page.is_listed || page.is_active && !takes_active {
                continue;
            }
            let tried = ground.reclaim(here)?;
            all = Tried { freed: all.freed + tried.freed, looked: all.looked + tried.looked };
        }
        Ok(all)
    }

    /// Where the order is costly, it does not ask whether a page is used.
    fn spares_used(&self, order: u8) -> bool {
        order <= COSTLY
    }
}
