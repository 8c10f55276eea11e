//! Half of memory allocated at order 0, then freed in a random order: what LLFree's own benchmark does under
//! the name of `rand`, so that both can be measured side by side.
//!
//! All frames are movable: LLFree has no kinds. What is freed, in its order, is a list that is read from its
//! begin to its end, so that the load by itself takes next to nothing.

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

use super::{Engine, places_with};
use crate::words::{Frame, Kind, Wrong};

/// How far ahead frees are told to an engine that looks ahead.
const AHEAD: usize = 32;

/// An engine all of whose memory is free between two rounds.
#[derive(Clone, Debug)]
pub struct Bulk<E> {
    engine: E,
    live: Vec<Frame>,
    /// Frames that a round allocates.
    half: usize,
    random: SplitMix64,
    /// Allocations that were not to be had.
    pub failed: u64,
    /// Blocks that were taken from another list.
    pub stolen: u64,
}

impl<E: Engine> Bulk<E> {
    /// Of an engine with all memory free.
    pub fn new(engine: E, seed: u64) -> Bulk<E> {
        let half = engine.frames() as usize / 2;
        let (live, random) = (Vec::with_capacity(half), SplitMix64::new(seed));
        Bulk { engine, live, half, random, failed: 0, stolen: 0 }
    }

    /// Frames that a round allocates and frees.
    pub fn frames(&self) -> u64 {
        self.half as u64
    }

    /// The first half of a round: half of memory is allocated.
    pub fn fill(&mut self) -> Result<(), Wrong> {
        for _ in self.live.len()..self.half {
            match self.engine.take(0, Kind::Movable)? {
                Some((frame, stolen)) => {
                    self.stolen += u64::from(stolen);
                    self.live.push(frame);
                }
                None => self.failed += 1,
            }
        }
        Ok(())
    }

    /// Between the halves, which nobody times: the order of the frees is drawn (Fisher and Yates).
    pub fn shuffle(&mut self) {
        for last in (1..self.live.len()).rev() {
            self.live.swap(last, self.random.below(last as u64 + 1) as usize);
        }
    }

    /// The second half: all of it is freed.
    pub fn empty(&mut self) -> Result<(), Wrong> {
        for &frame in &self.live {
            self.engine.free(frame)?;
        }
        self.live.clear();
        Ok(())
    }

    /// The same, with the next 32 frees known to the engine, which ends as it does without.
    pub fn empty_ahead(&mut self) -> Result<(), Wrong> {
        for (at, &frame) in self.live.iter().enumerate() {
            if let Some(&soon) = self.live.get(at + AHEAD) {
                self.engine.expect_free(soon);
            }
            if let Some(&next) = self.live.get(at + AHEAD / 2) {
                self.engine.expect_buddy(next);
            }
            self.engine.free(frame)?;
        }
        self.live.clear();
        Ok(())
    }

    /// Where all that a round reads and writes lies in this process's memory.
    pub fn places(&self) -> Vec<Range<usize>> {
        places_with(&self.engine, &self.live)
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Compact;
    use crate::policy::Mobility;
    use crate::words::Shape;
    use crate::zone::Zone;

    const SHAPE: Shape = Shape { first: 0, frames: 1 << 16, max_order: 10, block_order: 9 };

    #[test]
    fn a_round_takes_half_of_memory_and_gives_all_of_it_back_with_look_ahead_or_without() {
        let whole = Compact::new(SHAPE).unwrap().free_blocks().to_vec();
        let mut plain = Bulk::new(Compact::new(SHAPE).unwrap(), 5);
        let mut ahead = plain.clone();
        for _ in 0..2 {
            plain.fill().unwrap();
            ahead.fill().unwrap();
            assert_eq!(plain.engine().free_frames(), SHAPE.frames / 2);
            let in_turn = plain.live.clone();
            plain.shuffle();
            ahead.shuffle();
            assert_eq!(plain.live, ahead.live);
            let moved = plain.live.iter().zip(&in_turn).filter(|(one, other)| one != other).count();
            assert!(moved > in_turn.len() * 9 / 10, "{moved} of {} are elsewhere", in_turn.len());
            plain.engine().validate().unwrap();
            plain.empty().unwrap();
            ahead.empty_ahead().unwrap();
            plain.engine().validate().unwrap();
            assert_eq!(plain.engine().free_blocks(), whole);
            assert_eq!(ahead.engine().free_blocks(), whole);
        }
        assert_eq!((plain.failed, plain.stolen, plain.frames()), (0, 0, u64::from(SHAPE.frames / 2)));
        let mut zone = Bulk::new(Zone::new(SHAPE, Mobility).unwrap(), 5);
        zone.fill().unwrap();
        zone.shuffle();
        zone.empty_ahead().unwrap();
        zone.engine().validate().unwrap();
        assert_eq!(zone.engine().free_blocks(), whole);
    }
}
