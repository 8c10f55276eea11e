//! Bulk load: half of memory is allocated at order 0, then freed in random order, as in LLFree's own
//! benchmark `rand`.
//!
//! All frames are movable: LLFree has no migratetypes. The frees, in order, are a list that is read
//! sequentially, so the load itself costs next to nothing.

use std::ops::Range;

use pagelab_model::random::SplitMix64;

use super::{Engine, ranges_with_live_blocks};
use crate::types::{AllocationType, Error, Frame};

/// Look-ahead of frees, in blocks.
const PREFETCH_DISTANCE: usize = 32;

/// Rounds of the load on an engine; between two rounds all memory is free.
#[derive(Clone, Debug)]
pub struct BulkFill<E> {
    engine: E,
    live_blocks: Vec<Frame>,
    /// Frames allocated in a round.
    half_frames: usize,
    random: SplitMix64,
    /// Failed allocations.
    pub failed: u64,
    /// Blocks taken from another migratetype (fallbacks).
    pub fallbacks: u64,
}

impl<E: Engine> BulkFill<E> {
    /// Rounds on an engine with all memory free.
    pub fn new(engine: E, seed: u64) -> BulkFill<E> {
        let half = engine.frame_count() as usize / 2;
        let (live, random) = (Vec::with_capacity(half), SplitMix64::new(seed));
        BulkFill { engine, live_blocks: live, half_frames: half, random, failed: 0, fallbacks: 0 }
    }

    /// Frames that a round allocates and frees.
    pub fn frames_per_round(&self) -> u64 {
        self.half_frames as u64
    }

    /// First half of a round: half of memory is allocated.
    pub fn fill_half(&mut self) -> Result<(), Error> {
        for _ in self.live_blocks.len()..self.half_frames {
            match self.engine.allocate_block(0, AllocationType::Movable)? {
                Some((frame, stolen)) => {
                    self.fallbacks += u64::from(stolen);
                    self.live_blocks.push(frame);
                }
                None => self.failed += 1,
            }
        }
        Ok(())
    }

    /// Between the halves, outside the measured time: the order of the frees is shuffled.
    pub fn shuffle_frees(&mut self) {
        self.random.shuffle(&mut self.live_blocks);
    }

    /// Second half of a round: all of it is freed.
    pub fn free_all(&mut self) -> Result<(), Error> {
        for &frame in &self.live_blocks {
            self.engine.free_block(frame)?;
        }
        self.live_blocks.clear();
        Ok(())
    }

    /// Second half with the next 32 frees known to the engine, whose final state is the same as without.
    pub fn free_all_with_prefetch(&mut self) -> Result<(), Error> {
        for (at, &frame) in self.live_blocks.iter().enumerate() {
            if let Some(&block_ahead) = self.live_blocks.get(at + PREFETCH_DISTANCE) {
                self.engine.prefetch_block(block_ahead);
            }
            if let Some(&next) = self.live_blocks.get(at + PREFETCH_DISTANCE / 2) {
                self.engine.prefetch_buddy(next);
            }
            self.engine.free_block(frame)?;
        }
        self.live_blocks.clear();
        Ok(())
    }

    /// Address ranges that a round reads and writes in this process.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        ranges_with_live_blocks(&self.engine, &self.live_blocks)
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact_buddy::CompactBuddy;
    use crate::policies::GroupByMobility;
    use crate::types::ZoneGeometry;
    use crate::zone::Zone;

    const SHAPE: ZoneGeometry =
        ZoneGeometry { first_frame: Frame::new(0), frames: 1 << 16, max_order: 10, pageblock_order: 9 };

    #[test]
    fn a_round_takes_half_of_memory_and_gives_all_of_it_back_with_look_ahead_or_without() {
        let whole = CompactBuddy::new(SHAPE).unwrap().free_blocks().to_vec();
        let mut plain = BulkFill::new(CompactBuddy::new(SHAPE).unwrap(), 5);
        let mut ahead = plain.clone();
        for _ in 0..2 {
            plain.fill_half().unwrap();
            ahead.fill_half().unwrap();
            assert_eq!(plain.engine().free_frames(), SHAPE.frames / 2);
            let in_turn = plain.live_blocks.clone();
            plain.shuffle_frees();
            ahead.shuffle_frees();
            assert_eq!(plain.live_blocks, ahead.live_blocks);
            let moved = plain.live_blocks.iter().zip(&in_turn).filter(|(one, other)| one != other).count();
            assert!(moved > in_turn.len() * 9 / 10, "{moved} of {} are elsewhere", in_turn.len());
            plain.engine().validate().unwrap();
            plain.free_all().unwrap();
            ahead.free_all_with_prefetch().unwrap();
            plain.engine().validate().unwrap();
            assert_eq!(plain.engine().free_blocks(), whole);
            assert_eq!(ahead.engine().free_blocks(), whole);
        }
        assert_eq!(
            (plain.failed, plain.fallbacks, plain.frames_per_round()),
            (0, 0, u64::from(SHAPE.frames / 2))
        );
        let mut zone = BulkFill::new(Zone::new(SHAPE, GroupByMobility).unwrap(), 5);
        zone.fill_half().unwrap();
        zone.shuffle_frees();
        zone.free_all_with_prefetch().unwrap();
        zone.engine().validate().unwrap();
        assert_eq!(zone.engine().free_blocks(), whole);
    }
}
