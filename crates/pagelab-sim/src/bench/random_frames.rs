//! Load that keeps no list of its allocations.
//!
//! A random number selects a frame: the block that contains it is freed, and one of the same order allocated.
//! If the frame is free, the next number is used. So each frame is as likely as any other, and large blocks
//! are hit more often than small ones, by their size. In steady state each order then has that share of all
//! memory in use which it has of the allocations: of the mix, 85 % of the frames lie in blocks of order 0.
//! Memory is filled so, pageblock by pageblock; a list of live blocks selects each block equally often, and
//! most frames lie in large ones.

use std::ops::Range;

use pagelab_model::random::SplitMix64;

use super::{BenchLoad, FILL_PERCENT, REQUEST_MULTIPLIER, RequestDistribution, scale_to_index};
use crate::compact_buddy::CompactBuddy;
use crate::types::{AllocationType, Error, Frame};

/// The sample after one that hit a free frame (a step of Knuth's linear congruential generator).
fn next_sample(sample: u64) -> u64 {
    sample.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// An engine at its steady state, and no list of live blocks.
#[derive(Clone, Debug)]
pub struct RandomFrames {
    engine: CompactBuddy,
    load: BenchLoad,
    distribution: RequestDistribution,
    random: SplitMix64,
    /// The block that was allocated last.
    last_block: Option<Frame>,
    /// Failed allocations.
    pub failed: u64,
    /// Blocks that were taken from another owner.
    pub fallbacks: u64,
}

impl RandomFrames {
    /// Fills free memory: a pageblock after the other, each with blocks of one order.
    pub fn new(engine: CompactBuddy, load: BenchLoad, seed: u64) -> Result<RandomFrames, Error> {
        let random = SplitMix64::new(seed);
        let mut bench = RandomFrames {
            engine,
            load,
            distribution: load.request_distribution(),
            random,
            last_block: None,
            failed: 0,
            fallbacks: 0,
        };
        let geometry = bench.engine.geometry();
        let target_free = u64::from(geometry.frames) - u64::from(geometry.frames) * FILL_PERCENT / 100;
        while u64::from(bench.engine.free_frames()) > target_free && bench.failed == 0 {
            let sample = bench.random.next_u64();
            let (order, kind) = bench.distribution.sample_request(sample);
            bench.allocate_block(geometry.pageblock_order.max(order), kind)?;
            if let Some(frame) = bench.last_block {
                bench.engine.split_block(frame, order)?;
            }
        }
        Ok(bench)
    }

    /// Frees and allocates this many times, without prefetching.
    pub fn run_pairs(&mut self, pairs: u64) -> Result<(), Error> {
        for _ in 0..pairs {
            let sample = self.random.next_u64();
            self.run_pair(sample)?;
        }
        Ok(())
    }

    /// The same, with the next 32 random numbers known: their blocks are prefetched. The engine ends as it
    /// does without.
    pub fn run_with_prefetch(&mut self, pairs: u64) -> Result<(), Error> {
        const PREFETCH_DISTANCE: usize = 32;
        let mut samples = [0; PREFETCH_DISTANCE];
        let mut prefetched_samples = [0; PREFETCH_DISTANCE];
        let known_samples = pairs.min(PREFETCH_DISTANCE as u64);
        samples[..known_samples as usize].fill_with(|| self.random.next_u64());
        for pair in 0..pairs {
            let slot = pair as usize % PREFETCH_DISTANCE;
            let sample = samples[slot];
            if pair + (PREFETCH_DISTANCE as u64) < pairs {
                samples[slot] = self.random.next_u64();
                prefetched_samples[slot] = samples[slot];
                self.engine.prefetch_block(self.frame_of_sample(samples[slot]));
            }
            // Twice, a sample whose frame seems to be free now is replaced by the next.
            for step in [PREFETCH_DISTANCE * 3 / 4, PREFETCH_DISTANCE / 2] {
                let at = (slot + step) % PREFETCH_DISTANCE;
                if self
                    .engine
                    .allocated_block_containing(self.frame_of_sample(prefetched_samples[at]))
                    .is_none()
                {
                    prefetched_samples[at] = next_sample(prefetched_samples[at]);
                    self.engine.prefetch_block(self.frame_of_sample(prefetched_samples[at]));
                }
            }
            self.engine.prefetch_neighbors(
                self.frame_of_sample(prefetched_samples[(slot + PREFETCH_DISTANCE / 4) % PREFETCH_DISTANCE]),
            );
            self.run_pair(sample)?;
        }
        Ok(())
    }

    /// The frame of a random number.
    #[inline]
    fn frame_of_sample(&self, sample: u64) -> Frame {
        let geometry = self.engine.geometry();
        geometry.first_frame + scale_to_index(sample, geometry.frames as usize) as u32
    }

    #[inline]
    fn run_pair(&mut self, sample: u64) -> Result<(), Error> {
        let (order, kind) = self.distribution.sample_request(sample.wrapping_mul(REQUEST_MULTIPLIER));
        if let (BenchLoad::MostRecent, Some(last)) = (self.load, self.last_block) {
            self.engine.free_block(last)?;
            return self.allocate_block(order, kind);
        }
        if self.engine.free_frames() == self.engine.geometry().frames {
            return self.allocate_block(order, kind);
        }
        let mut frame_sample = sample;
        let frame = loop {
            match self.engine.allocated_block_containing(self.frame_of_sample(frame_sample)) {
                Some(frame) => break frame,
                None => frame_sample = next_sample(frame_sample),
            }
        };
        let order = self.engine.free_block(frame)?;
        self.allocate_block(order, kind)
    }

    #[inline]
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> Result<(), Error> {
        let allocated = self.engine.allocate_block(order, alloc_type)?;
        self.failed += u64::from(allocated.is_none());
        self.last_block = allocated.map(|taken| taken.frame);
        self.fallbacks += u64::from(allocated.is_some_and(|taken| taken.fallback.is_some()));
        Ok(())
    }

    /// Address ranges that a pair reads and writes in this process.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.engine.memory_ranges()
    }

    /// The engine.
    pub fn engine(&self) -> &CompactBuddy {
        &self.engine
    }
}
