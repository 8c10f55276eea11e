//! A zone that begins in the middle of things: some frames are free, the others allocated.

use std::ops::Range;

use super::Zone;
use crate::lists::State;
use crate::policy::{Policy, Short};
use crate::words::{Frame, Kind, Wrong};

/// Frames of a zone that lie side by side and are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which, by their numbers in the memory.
    pub frames: Range<Frame>,
    /// What they are allocated for; `None`: they are free.
    pub used: Option<Kind>,
}

impl<P: Policy> Zone<P> {
    /// Gives a zone nobody has taken from the state it begins with. `owners` say for each pageblock which
    /// kind it belongs to, and `stretches` go through all of its frames, from the first to the last.
    ///
    /// Free stretches lie in the largest blocks that fit, as in the kernel, the lowest first on each list.
    /// Two of them side by side are refused.
    /// Allocated frames are blocks of order 0; [`Zone::join`] makes larger ones of them.
    pub fn begin(
        &mut self,
        owners: &[Kind],
        stretches: impl IntoIterator<Item = Stretch>,
    ) -> Result<(), Wrong> {
        let shape = self.shape;
        if owners.len() != self.owners.len() {
            let what = format!("{} owners for {} pageblocks", owners.len(), self.owners.len());
            return Err(Wrong::Shape(what));
        }
        if self.free != shape.frames {
            return Err(Wrong::Shape("a zone that somebody has taken from does not begin".to_owned()));
        }
        self.empty();
        // Regions lie where the policy has them, whatever lies in them so far.
        if self.policy.short() != Short::Border {
            for (block, &kind) in owners.iter().enumerate() {
                self.own(block..block + 1, self.policy.wanted(kind));
            }
        }
        let (mut at, mut was_free) = (shape.first, false);
        for Stretch { frames, used } in stretches {
            if frames.start != at || frames.end < at || frames.end > shape.end() {
                let (from, to) = (frames.start, frames.end);
                let what = format!("frames {from:#x} to {to:#x} do not follow {at:#x} in the zone");
                return Err(Wrong::Shape(what));
            }
            if used.is_none() && was_free {
                let what = format!("free frames before and behind {at:#x}: one stretch is wanted");
                return Err(Wrong::Shape(what));
            }
            (at, was_free) = (frames.end, used.is_none());
            match used {
                Some(kind) => {
                    for frame in frames {
                        self.lists.set(frame - shape.first, State::used(0, kind));
                    }
                }
                None => self.begin_free(frames, owners),
            }
        }
        if at != shape.end() {
            return Err(Wrong::Shape(format!("the state of a zone ends at {at:#x}, not at its last frame")));
        }
        Ok(())
    }

    /// Takes all blocks off their lists.
    fn empty(&mut self) {
        for list in 0..self.policy.lists() {
            for order in 0..=self.shape.max_order {
                while let Some(at) = self.lists.first(list, order) {
                    self.remove(at, order);
                    self.lists.set(at, State::INSIDE);
                }
            }
        }
        self.filled.fill(0);
        self.free = 0;
    }

    fn begin_free(&mut self, frames: Range<Frame>, owners: &[Kind]) {
        let mut from = frames.start;
        while from < frames.end {
            let fits = (frames.end - from).ilog2().min(u32::from(self.shape.max_order));
            let mut order = from.trailing_zeros().min(fits) as u8;
            let at = from - self.shape.first;
            let block = (at >> self.shape.block_order) as usize;
            let blocks = |order: u8| block..block + (1 << order.saturating_sub(self.shape.block_order));
            let owner = self.owners[block];
            match self.policy.short() {
                Short::Moves => {}
                // Nothing free reaches over the border.
                Short::Border => {
                    while self.owners[blocks(order)].iter().any(|&other| other != owner) {
                        order -= 1;
                    }
                }
                // The pageblocks of a free block are of one owner.
                Short::Cuts | Short::Claims => {
                    let blocks = blocks(order);
                    self.own(blocks, owner);
                }
            }
            let list = self.policy.home(owners[block], self.owners[block]);
            self.add(list, order, at, true);
            self.free += 1 << order;
            from += 1 << order;
        }
    }

    /// Order and kind of the allocated block that begins at a frame, if one does.
    #[inline]
    pub fn used_at(&self, frame: Frame) -> Option<(u8, Kind)> {
        let at = frame.wrapping_sub(self.shape.first);
        if at < self.shape.frames { self.lists.state(at).used_order() } else { None }
    }

    /// Says that the block at a frame will be freed soon: its state and its links are brought near.
    #[inline]
    pub fn expect_used(&self, frame: Frame) {
        let at = frame.wrapping_sub(self.shape.first);
        self.lists.prefetch(at);
    }

    /// Makes allocated blocks of order 0 that lie side by side one block. `false`, and nothing is changed:
    /// they are not, or are of several kinds.
    pub fn join(&mut self, frame: Frame, order: u8) -> bool {
        let size = 1u32.checked_shl(u32::from(order)).unwrap_or(0);
        let at = frame.wrapping_sub(self.shape.first);
        if order > self.shape.max_order
            || at >= self.shape.frames
            || size > self.shape.frames - at
            || !frame.is_multiple_of(size)
        {
            return false;
        }
        let Some((0, kind)) = self.lists.state(at).used_order() else { return false };
        if !(at..at + size).all(|at| self.lists.state(at) == State::used(0, kind)) {
            return false;
        }
        for inside in at + 1..at + size {
            self.lists.set(inside, State::INSIDE);
        }
        self.lists.set(at, State::used(order, kind));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Lists, Mobility};
    use crate::words::Shape;

    const SHAPE: Shape = Shape { first: 48, frames: 208, max_order: 6, block_order: 4 };

    fn stretch(frames: Range<Frame>, used: Option<Kind>) -> Stretch {
        Stretch { frames, used }
    }

    #[test]
    fn a_zone_begins_as_it_is_told() {
        let mut zone = Zone::new(SHAPE, Mobility).unwrap();
        let mut owners = vec![Kind::Movable; 13];
        owners[1] = Kind::Reclaimable;
        let stretches = [
            stretch(48..51, Some(Kind::Unmovable)),
            stretch(51..128, None),
            stretch(128..132, Some(Kind::Movable)),
            stretch(132..256, None),
        ];
        zone.begin(&owners, stretches).unwrap();
        zone.validate().unwrap();
        assert_eq!(zone.free_frames(), 77 + 124);
        // 51, 52..56, 56..64, 64..128; 132..136, 136..144, 144..160, 160..192, 192..256.
        assert_eq!(zone.free_blocks(), [1, 0, 2, 2, 1, 1, 2]);
        // The block at 64 lies in the pageblock of reclaimable memory.
        assert_eq!(zone.take(3, Kind::Reclaimable).unwrap().unwrap().frame, 64);
        assert_eq!(zone.used_at(49), Some((0, Kind::Unmovable)));
        for frame in [128, 129, 130, 131] {
            zone.free(frame).unwrap();
        }
        zone.validate().unwrap();
        assert_eq!(zone.free_blocks()[6], 2, "64 to 128 is broken up, 128 to 256 whole");
    }

    #[test]
    fn every_policy_begins_in_the_middle_of_things() {
        for entry in crate::policies::TABLE {
            let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
            let owners: Vec<Kind> = (0..13).map(|block| Kind::ALL[block % 3]).collect();
            let stretches = [
                stretch(48..70, None),
                stretch(70..128, Some(Kind::Unmovable)),
                stretch(128..192, Some(Kind::Movable)),
                stretch(192..256, None),
            ];
            zone.begin(&owners, stretches).unwrap();
            assert!(zone.join(128, 6), "{}", entry.name);
            zone.validate().unwrap();
            let taken = zone.take(2, Kind::Unmovable).unwrap();
            for frame in (70..129).chain(taken.map(|taken| taken.frame)) {
                zone.free(frame).unwrap();
                zone.validate().unwrap();
            }
            assert_eq!(zone.free_frames(), 208, "{}", entry.name);
        }
    }

    #[test]
    fn a_state_that_is_not_that_of_the_zone_is_refused() {
        let owners = [Kind::Movable; 13];
        let refused = |owners: &[Kind], stretches: &[Stretch]| {
            Zone::new(SHAPE, Mobility).unwrap().begin(owners, stretches.to_vec()).unwrap_err().to_string()
        };
        assert!(refused(&owners[1..], &[]).contains("12 owners for 13"));
        assert!(refused(&owners, &[stretch(48..250, None)]).contains("ends at 0xfa"));
        assert!(refused(&owners, &[stretch(48..257, None)]).contains("do not follow"));
        assert!(refused(&owners, &[stretch(48..60, None), stretch(61..256, None)]).contains("do not follow"));
        assert!(refused(&owners, &[stretch(48..51, None), stretch(51..256, None)]).contains("behind 0x33"));
        let mut zone = Zone::new(SHAPE, Mobility).unwrap();
        zone.take(0, Kind::Movable).unwrap();
        assert!(zone.begin(&owners, [stretch(48..256, None)]).is_err());
    }

    #[test]
    fn blocks_of_one_frame_are_joined_where_they_can_be() {
        let mut zone = Zone::new(SHAPE, Lists::Two).unwrap();
        let all = [stretch(48..80, Some(Kind::Movable)), stretch(80..256, Some(Kind::Unmovable))];
        zone.begin(&[Kind::Movable; 13], all).unwrap();
        assert!(zone.join(64, 4) && zone.join(96, 5));
        assert_eq!(zone.used_at(64), Some((4, Kind::Movable)));
        // Not aligned; of two kinds; joined already; beyond the zone; above the largest order.
        for (frame, order) in [(50, 2), (64, 5), (64, 1), (252, 3), (32, 1), (128, 7), (128, 40)] {
            assert!(!zone.join(frame, order), "{frame} at order {order}");
        }
        zone.validate().unwrap();
        assert_eq!((zone.free(64), zone.free(96)), (Ok(4), Ok(5)));
        zone.validate().unwrap();
    }
}
