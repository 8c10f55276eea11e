//! The twin's border: who must leave for it to move, and where it may go.

use std::ops::Range;

use super::{Check, Naive, same};
use crate::words::{Frame, Kind};

impl Naive {
    /// The first frame above the border of a zone.
    pub(super) fn border(&self, zone: usize) -> Frame {
        let shape = self.config.zones[zone].shape;
        let below = self.owners[zone].iter().filter(|&&owner| owner == 0).count() as u32;
        shape.first + (below << shape.block_order)
    }

    /// What lies beside the border is looked at.
    pub(super) fn way(&mut self, zone: usize, range: &Range<Frame>, is_open: bool) -> Check {
        let shape = self.config.zones[zone].shape;
        same("a way begins at", range.start, self.border(zone))?;
        let is_whole = |frame: Frame| frame.is_multiple_of(1 << shape.block_order);
        same("a way of whole pageblocks", is_whole(range.end) && range.end <= shape.end(), true)?;
        let holders = self.holders(zone);
        let mut leaving: Vec<u32> =
            range.clone().filter_map(|frame| holders[(frame - shape.first) as usize]).collect();
        leaving.dedup();
        let may_leave = |handle: &u32| {
            self.pages[*handle as usize].as_ref().is_some_and(|page| {
                let is_inside =
                    page.frame.is_some_and(|at| range.contains(&at) && at + (1 << page.order) <= range.end);
                page.class.kind() == Kind::Movable && !page.is_pinned && is_inside
            })
        };
        same("all may leave", is_open, leaving.iter().all(may_leave))?;
        leaving.reverse();
        (self.leaving, self.way) = (leaving, range.clone());
        Ok(())
    }

    /// A page left.
    pub(super) fn left(&mut self, handle: u32, from: Frame, to: Frame) -> Check {
        same("the next page that leaves", Some(handle), self.leaving.pop())?;
        let page = *self.page(handle)?;
        same("where it was", Some(from), page.frame)?;
        let flat = self.flat(page.zone);
        let is_room =
            (to..to + (1 << page.order)).all(|frame| flat.is_free(frame) && !self.way.contains(&frame));
        same("there is room beyond the way", is_room && to >= self.border(page.zone), true)?;
        let age = self.now();
        let page = self.page(handle)?;
        (page.frame, page.age) = (Some(to), age);
        Ok(())
    }

    /// All have left, or there was no room for all.
    pub(super) fn way_ended(&mut self, zone: usize, fits: bool) -> Check {
        if fits {
            return same("pages that have not left", self.leaving.len(), 0);
        }
        // There must be less room than they need: none of the size of the largest.
        let flat = self.flat(zone);
        let (border, shape) = (self.border(zone), flat.shape);
        let room = (border..shape.end()).filter(|at| flat.is_free(*at) && !self.way.contains(at)).count();
        let needed: usize = self
            .leaving
            .iter()
            .map(|&handle| self.pages[handle as usize].as_ref().map_or(0, |page| 1usize << page.order))
            .sum();
        let is_large = self
            .leaving
            .iter()
            .any(|&handle| self.pages[handle as usize].as_ref().is_some_and(|page| page.order > 0));
        same("there was room", room >= needed && !is_large, false)
    }

    /// Free pageblocks below the border go back: at least one more stays.
    pub(super) fn gave_back(&mut self, zone: usize, pageblocks: u32) -> Check {
        let shape = self.config.zones[zone].shape;
        let (border, size) = (self.border(zone), 1 << shape.block_order);
        let flat = self.flat(zone);
        let below = (border - (pageblocks + 1) * size)..border;
        same("pageblocks below the border are free", below.clone().all(|frame| flat.is_free(frame)), true)?;
        let least = (self.owners[zone].len() / 8).max(1) as u32;
        same("the border is above its start", (border - shape.first) / size - pageblocks >= least, true)
    }
}
