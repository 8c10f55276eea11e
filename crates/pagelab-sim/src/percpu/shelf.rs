//! A list of what a processor keeps: a ring with two ends.

use crate::words::Frame;

/// The least slots of a ring.
const LEAST: usize = 16;

/// Blocks of one order and list. Its ring has as many slots as a power of two, so that a place is found with
/// one mask; a deque of the library finds it with a comparison, each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Shelf {
    ring: Vec<Frame>,
    /// Places are counted on and on; the ring has them by their lower bits. The front is the place behind
    /// the first block.
    front: u32,
    back: u32,
}

impl Shelf {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.front.wrapping_sub(self.back)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.front == self.back
    }

    #[inline]
    fn slot(&self, place: u32) -> usize {
        place as usize & self.ring.len().wrapping_sub(1)
    }

    #[inline]
    fn at(&self, place: u32) -> Option<Frame> {
        self.ring.get(self.slot(place)).copied()
    }

    #[inline]
    fn set(&mut self, place: u32, frame: Frame) {
        let slot = self.slot(place);
        if let Some(slot) = self.ring.get_mut(slot) {
            *slot = frame;
        }
    }

    #[inline(always)]
    pub(super) fn push_front(&mut self, frame: Frame) {
        self.make_room();
        self.set(self.front, frame);
        self.front = self.front.wrapping_add(1);
    }

    #[inline(always)]
    pub(super) fn push_back(&mut self, frame: Frame) {
        self.make_room();
        self.back = self.back.wrapping_sub(1);
        self.set(self.back, frame);
    }

    #[inline(always)]
    pub(super) fn pop_front(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        self.front = self.front.wrapping_sub(1);
        self.at(self.front)
    }

    #[inline(always)]
    pub(super) fn pop_back(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        self.back = self.back.wrapping_add(1);
        self.at(self.back.wrapping_sub(1))
    }

    /// The block that is so many steps in front of the back: 1 is the last one.
    #[inline]
    pub(super) fn at_back(&self, steps: u32) -> Option<Frame> {
        if !(1..=self.len()).contains(&steps) {
            return None;
        }
        self.at(self.back.wrapping_add(steps - 1))
    }

    #[inline(always)]
    fn make_room(&mut self) {
        if self.len() as usize >= self.ring.len() {
            self.grow();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut ring = vec![0; (self.ring.len() * 2).max(LEAST)];
        let frames = self.len();
        for (step, slot) in (0..frames).zip(&mut ring) {
            *slot = self.at(self.back.wrapping_add(step)).unwrap_or_default();
        }
        *self = Shelf { ring, front: frames, back: 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use pagelab_model::seed::SplitMix64;

    use super::*;

    #[test]
    fn a_shelf_holds_what_a_deque_holds() {
        let mut random = SplitMix64::new(5);
        let (mut shelf, mut deque) = (Shelf::default(), VecDeque::new());
        for step in 0..100_000u32 {
            // It grows, and shrinks again.
            let grows = step / 5_000 % 2 == 0;
            match random.below(8) {
                0 | 1 => (shelf.push_front(step), deque.push_front(step)).0,
                2 | 3 if grows => (shelf.push_back(step), deque.push_back(step)).0,
                2..=4 => assert_eq!(shelf.pop_front(), deque.pop_front(), "step {step}"),
                5 if grows => assert_eq!(shelf.pop_back(), deque.pop_back(), "step {step}"),
                6 | 7 if grows => {}
                _ => assert_eq!(shelf.pop_back(), deque.pop_back(), "step {step}"),
            }
            assert_eq!((shelf.len() as usize, shelf.is_empty()), (deque.len(), deque.is_empty()));
            let steps = random.below(20) as usize;
            let wanted = deque.len().checked_sub(steps).and_then(|at| deque.get(at)).copied();
            assert_eq!(shelf.at_back(steps as u32), wanted);
        }
    }
}
