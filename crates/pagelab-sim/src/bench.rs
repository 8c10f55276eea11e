//! The loads of the benchmark: pairs of a free and an allocation at a steady state.
//!
//! Memory is filled to three quarters; then one block is freed and one is allocated, over and over, as the
//! [`BenchLoad`] says. A tenth of the allocations is unmovable, a tenth reclaimable, the rest movable. All
//! random numbers are splitmix64 from the seed.
//!
//! [`FreeAllocatePairs`] remembers which blocks are live, and selects one at random. That list is larger than
//! the metadata of the compact engine; [`RandomFrames`] keeps none, and asks the engine. [`BulkFill`] has no
//! steady state: half of memory comes and goes.

mod bulk;
mod engines;
mod random_frames;

use std::ops::Range;

use pagelab_model::random::SplitMix64;

pub use bulk::BulkFill;
pub use engines::NullAllocator;
pub use random_frames::RandomFrames;

use crate::prefetch;
use crate::types::{AllocationType, Error, Frame};

/// Percentage of frames in use.
const FILL_PERCENT: u64 = 75;

/// Largest requested order.
const MAX_REQUEST_ORDER: u64 = 9;

/// Load: requested orders, and the choice of the freed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchLoad {
    /// Any live block is freed. Of the allocations 85 % are of order 0, 15 % of orders 1 to 9, evenly.
    Mix,
    /// Any live block; all of order 0.
    Order0,
    /// Any live block; all of order 9, huge pages of 2 MiB.
    Order9,
    /// The most recently allocated block; orders as in the mix.
    MostRecent,
    /// Half of memory is allocated at order 0, then freed in a random order: [`BulkFill`].
    Bulk,
}

impl BenchLoad {
    /// Name.
    pub fn name(self) -> &'static str {
        match self {
            BenchLoad::Mix => "mix",
            BenchLoad::Order0 => "order0",
            BenchLoad::Order9 => "order9",
            BenchLoad::MostRecent => "hot",
            BenchLoad::Bulk => "bulk",
        }
    }

    fn request_distribution(self) -> RequestDistribution {
        let (small, large_from) = match self {
            BenchLoad::Order0 | BenchLoad::Bulk => (0, 100),
            BenchLoad::Order9 => (MAX_REQUEST_ORDER as u8, 100),
            BenchLoad::Mix | BenchLoad::MostRecent => (0, 85),
        };
        RequestDistribution {
            small_order: small,
            large_threshold: large_from,
            last_block_mask: if self == BenchLoad::MostRecent { u64::MAX } else { 0 },
        }
    }

    /// Approximate number of live blocks at the steady state.
    pub fn live_blocks(self, frames: u32) -> u64 {
        let used = u64::from(frames) * FILL_PERCENT / 100;
        match self {
            BenchLoad::Order0 => used,
            BenchLoad::Bulk => u64::from(frames) / 2,
            BenchLoad::Order9 => used >> MAX_REQUEST_ORDER,
            // On average a block has 0.85 + 0.15 / 9 · (2 + 4 + … + 512) frames, 17.9.
            BenchLoad::Mix | BenchLoad::MostRecent => used / 17,
        }
    }
}

/// Requests by random number, and the block freed for each. It has no branches, since no branch would be
/// predictable.
#[derive(Clone, Copy, Debug)]
struct RequestDistribution {
    /// Most common order.
    small_order: u8,
    /// Of a hundred random numbers, the first that requests an order above 0.
    large_threshold: u64,
    /// All bits set if the block that was allocated last is freed; else 0.
    last_block_mask: u64,
}

impl RequestDistribution {
    /// Request for a random number.
    #[inline]
    fn sample_request(self, random: u64) -> (u8, AllocationType) {
        let below = |bits: u64, bound: u64| ((bits & 0xffff) * bound) >> 16;
        let is_large = u8::from(below(random, 100) >= self.large_threshold);
        let order = self.small_order + is_large * (1 + below(random >> 16, MAX_REQUEST_ORDER) as u8);
        (order, ALLOCATION_TYPES[below(random >> 32, 10) as usize % ALLOCATION_TYPES.len()])
    }

    /// Index of the block that is freed for a random number, among a number of live ones.
    #[inline]
    fn sample_index(self, random: u64, live: usize) -> usize {
        scale_to_index(random | self.last_block_mask, live)
    }
}

/// Allocation types of 16 consecutive allocations; the last six types of the table are never requested.
const ALLOCATION_TYPES: [AllocationType; 16] = {
    let mut types = [AllocationType::Movable; 16];
    types[0] = AllocationType::Unmovable;
    types[1] = AllocationType::Reclaimable;
    types
};

/// The upper bits of a random number select the freed block; multiplied by this, it selects the request.
const REQUEST_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps a random number to an index below a bound.
#[inline]
fn scale_to_index(random: u64, count: usize) -> usize {
    ((u128::from(random) * count as u128) >> 64) as usize
}

/// First frame of an allocation, and whether another list served it; `None`: out of memory.
pub type AllocateOutcome = Result<Option<(Frame, bool)>, Error>;

/// Engine under test: an allocator of one piece of memory.
pub trait Engine {
    /// Whether four blocks are prefetched at a time instead of eight: a processor stalls that has requested
    /// more cache lines than it can track, and some engines read several per block.
    const HAS_SMALL_PREFETCH_GROUP: bool = false;

    /// Number of frames.
    fn frame_count(&self) -> u32;

    /// Allocates a block.
    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome;

    /// Frees a block.
    fn free_block(&mut self, frame: Frame) -> Result<(), Error>;

    /// Address range of its metadata in this process, if contiguous.
    fn memory_ranges(&self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// The block at a frame will be freed soon.
    fn prefetch_block(&self, _frame: Frame) {}

    /// The block will be freed soon, and its state is cached.
    fn prefetch_buddy(&self, _frame: Frame) {}
}

/// An engine at its steady state.
#[derive(Clone, Debug)]
pub struct FreeAllocatePairs<E> {
    engine: E,
    live_blocks: Vec<Frame>,
    distribution: RequestDistribution,
    random: SplitMix64,
    /// Failed allocations.
    pub failed: u64,
    /// Blocks taken from another migratetype (fallbacks).
    pub fallbacks: u64,
}

impl<E: Engine> FreeAllocatePairs<E> {
    /// Fills free memory.
    pub fn new(engine: E, load: BenchLoad, seed: u64) -> Result<FreeAllocatePairs<E>, Error> {
        let live = Vec::with_capacity(load.live_blocks(engine.frame_count()) as usize);
        let mut bench = FreeAllocatePairs {
            engine,
            live_blocks: live,
            distribution: load.request_distribution(),
            random: SplitMix64::new(seed),
            failed: 0,
            fallbacks: 0,
        };
        let target_frames = u64::from(bench.engine.frame_count()) * FILL_PERCENT / 100;
        let mut allocated_frames = 0;
        while allocated_frames < target_frames && bench.failed == 0 {
            let (order, kind) = bench.distribution.sample_request(bench.random.next_u64());
            match bench.engine.allocate_block(order, kind)? {
                Some((frame, stolen)) => {
                    bench.fallbacks += u64::from(stolen);
                    bench.live_blocks.push(frame);
                    allocated_frames += 1 << order;
                }
                None => bench.failed += 1,
            }
        }
        Ok(bench)
    }

    /// Runs a number of pairs one by one: the engine has no look-ahead. The load selects eight pairs ahead
    /// and prefetches its own list of live blocks, which is larger than the second-level cache; without, the
    /// wait for that list would be measured.
    pub fn run_pairs(&mut self, pairs: u64) -> Result<(), Error> {
        const GROUP: usize = 8;
        let (mut samples, mut next_samples) = ([0; GROUP], [0; GROUP]);
        let groups = pairs / GROUP as u64;
        if groups > 0 {
            self.sample_group(&mut next_samples);
        }
        for group in 0..groups {
            samples = std::mem::replace(&mut next_samples, samples);
            if group + 1 < groups {
                self.sample_group(&mut next_samples);
            }
            self.run_samples(&samples)?;
        }
        for _ in 0..pairs % GROUP as u64 {
            let sample = self.random.next_u64();
            self.run_pair(sample)?;
        }
        Ok(())
    }

    /// Runs a number of pairs with the next 32 random numbers known: their blocks are prefetched. The final
    /// state of the engine is the same as without.
    pub fn run_with_prefetch(&mut self, pairs: u64) -> Result<(), Error> {
        if E::HAS_SMALL_PREFETCH_GROUP {
            self.run_pipelined::<4, 8>(pairs)
        } else {
            self.run_pipelined::<8, 4>(pairs)
        }
    }

    /// A group of pairs at a time passes through the steps, with several groups in flight. Each step has the
    /// time of eight pairs or more to prefetch what the next step reads.
    fn run_pipelined<const GROUP: usize, const GROUPS: usize>(&mut self, pairs: u64) -> Result<(), Error> {
        let (blocks_ahead, buddies_ahead) = (GROUPS * 3 / 4, GROUPS / 2 - 1);
        let groups = (pairs / GROUP as u64) as usize;
        let (mut samples, mut frames) = ([[0; GROUP]; GROUPS], [[Frame::default(); GROUP]; GROUPS]);
        for step in 0..groups + GROUPS {
            if step >= GROUPS {
                self.run_samples(&samples[step % GROUPS])?;
            }
            self.prefetch_buddies(&frames[(step + buddies_ahead) % GROUPS]);
            let prefetch_slot = (step + blocks_ahead) % GROUPS;
            self.prefetch_blocks(&samples[prefetch_slot], &mut frames[prefetch_slot]);
            if step < groups {
                self.sample_group(&mut samples[step % GROUPS]);
            }
        }
        self.run_pairs(pairs % GROUP as u64)
    }

    // The steps are separate functions: one function for all needs more registers than there are.
    #[inline(never)]
    fn run_samples(&mut self, samples: &[u64]) -> Result<(), Error> {
        samples.iter().try_for_each(|&sample| self.run_pair(sample))
    }

    #[inline(never)]
    fn prefetch_buddies(&self, frames: &[Frame]) {
        frames.iter().for_each(|&frame| self.engine.prefetch_buddy(frame));
    }

    #[inline(never)]
    fn prefetch_blocks(&self, samples: &[u64], frames: &mut [Frame]) {
        for (frame, &sample) in frames.iter_mut().zip(samples) {
            let index = self.distribution.sample_index(sample, self.live_blocks.len());
            let Some(&live_block) = self.live_blocks.get(index) else { continue };
            *frame = live_block;
            self.engine.prefetch_block(live_block);
        }
    }

    #[inline(never)]
    fn sample_group(&mut self, samples: &mut [u64]) {
        for sample in samples {
            *sample = self.random.next_u64();
            prefetch::prefetch_line(
                &self.live_blocks,
                self.distribution.sample_index(*sample, self.live_blocks.len()),
            );
        }
    }

    /// Frees the block for a random number, and allocates another in its place.
    #[inline(always)]
    fn run_pair(&mut self, sample: u64) -> Result<(), Error> {
        let index = self.distribution.sample_index(sample, self.live_blocks.len());
        let Some(&frame) = self.live_blocks.get(index) else { return Err(no_live_block()) };
        self.engine.free_block(frame)?;
        let (order, kind) = self.distribution.sample_request(sample.wrapping_mul(REQUEST_MULTIPLIER));
        match self.engine.allocate_block(order, kind)? {
            Some((frame, stolen)) => {
                self.fallbacks += u64::from(stolen);
                self.live_blocks[index] = frame;
            }
            None => {
                self.failed += 1;
                self.live_blocks.swap_remove(index);
            }
        }
        Ok(())
    }

    /// Address ranges that a pair reads and writes in this process.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        ranges_with_live_blocks(&self.engine, &self.live_blocks)
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

/// Without a live block nothing is freed: there is nothing to measure.
#[cold]
fn no_live_block() -> Error {
    Error::InvalidConfig("no live blocks: memory is too small for this load".to_owned())
}

/// Address ranges of an engine's metadata and of the list of live blocks.
fn ranges_with_live_blocks<E: Engine>(engine: &E, live_blocks: &Vec<Frame>) -> Vec<Range<usize>> {
    let start = live_blocks.as_ptr() as usize;
    let mut ranges = engine.memory_ranges();
    ranges.push(start..start + live_blocks.capacity() * size_of::<Frame>());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree_buddy::BTreeBuddy;
    use crate::compact_buddy::CompactBuddy;
    use crate::memory::{Memory, ZoneConfig};
    use crate::pcp::{PcpConfig, PcpZone};
    use crate::policies::GroupByMobility;
    use crate::types::ZoneGeometry;
    use crate::watermarks::Watermarks;
    use crate::zone::{Zone, ZoneFeatures};

    const SHAPE: ZoneGeometry =
        ZoneGeometry { first_frame: Frame::new(0), frames: 1 << 16, max_order: 10, pageblock_order: 9 };

    #[test]
    fn looking_ahead_changes_nothing_but_the_time() {
        let zone = Zone::new(SHAPE, GroupByMobility).unwrap();
        let mut plain = FreeAllocatePairs::new(zone.clone(), BenchLoad::Mix, 7).unwrap();
        let mut ahead = FreeAllocatePairs::new(zone, BenchLoad::Mix, 7).unwrap();
        plain.run_pairs(50_000).unwrap();
        ahead.run_with_prefetch(50_000).unwrap();
        assert_eq!(plain.live_blocks, ahead.live_blocks);
        assert_eq!(plain.engine().free_blocks(), ahead.engine().free_blocks());
        assert_eq!((plain.failed, plain.fallbacks), (ahead.failed, ahead.fallbacks));
        plain.engine().validate().unwrap();
    }

    #[test]
    fn the_steady_state_is_three_quarters_full_of_the_mix_that_is_said() {
        let keep = PcpConfig::with_batch(1, 63, 378);
        let mut pairs = FreeAllocatePairs::new(
            PcpZone::new(Zone::new(SHAPE, GroupByMobility).unwrap(), keep).unwrap(),
            BenchLoad::Mix,
            3,
        )
        .unwrap();
        pairs.run_pairs(100_000).unwrap();
        let engine = pairs.engine();
        engine.validate().unwrap();
        let used = SHAPE.frames - engine.zone().free_frames() - engine.pcp_frames();
        let share = f64::from(used) / f64::from(SHAPE.frames);
        assert!((0.65..0.85).contains(&share), "{share}");
        let mut random = SplitMix64::new(1);
        let requests: Vec<(u8, AllocationType)> = (0..100_000)
            .map(|_| BenchLoad::Mix.request_distribution().sample_request(random.next_u64()))
            .collect();
        let share =
            |is: &dyn Fn(&(u8, AllocationType)) -> bool| requests.iter().filter(|one| is(one)).count() / 1000;
        assert!((84..=86).contains(&share(&|one| one.0 == 0)));
        assert!((1..=2).contains(&share(&|one| one.0 == 9)) && share(&|one| one.0 > 9) == 0);
        assert!((79..=81).contains(&share(&|one| one.1 == AllocationType::Movable)));
    }

    /// The compact engine, with a list of live blocks and without.
    #[test]
    fn the_compact_engine_serves_each_load_and_keeps_its_shares() {
        for load in [BenchLoad::Mix, BenchLoad::Order0, BenchLoad::Order9, BenchLoad::MostRecent] {
            let mut pairs = FreeAllocatePairs::new(CompactBuddy::new(SHAPE).unwrap(), load, 3).unwrap();
            pairs.run_pairs(20_000).unwrap();
            pairs.engine().validate().unwrap();
            assert!(pairs.failed < 200, "{load:?}: {}", pairs.failed);
            let bench = RandomFrames::new(CompactBuddy::new(SHAPE).unwrap(), load, 3).unwrap();
            let free = bench.engine().free_frames();
            let (mut plain, mut ahead) = (bench.clone(), bench);
            plain.run_pairs(20_000).unwrap();
            ahead.run_with_prefetch(20_000).unwrap();
            for bench in [&plain, &ahead] {
                bench.engine().validate().unwrap();
            }
            let blocks = plain.engine().free_blocks();
            assert_eq!((blocks, plain.fallbacks), (ahead.engine().free_blocks(), ahead.fallbacks));
            if load != BenchLoad::MostRecent && plain.failed == 0 {
                assert_eq!(plain.engine().free_frames(), free, "{load:?}");
            }
        }
        // In this mix, 85 % of the allocated frames are in blocks of order 0.
        let mut bench = RandomFrames::new(CompactBuddy::new(SHAPE).unwrap(), BenchLoad::Mix, 5).unwrap();
        bench.run_pairs(50_000).unwrap();
        let (engine, frames) = (bench.engine(), Frame::range(SHAPE.first_frame..SHAPE.end()));
        let singles = frames.filter(|&frame| engine.allocated_order(frame) == Ok(0)).count() as f64;
        let share = singles / f64::from(SHAPE.frames - engine.free_frames());
        assert!((0.7..0.95).contains(&share), "{share}");
    }

    /// A memory of one zone without watermarks and per-CPU lists behaves as that zone.
    #[test]
    fn zones_and_lists_that_hold_nothing_back_change_nothing() {
        let name = "Normal".to_owned();
        let watermarks = Watermarks::default();
        let setup = ZoneConfig {
            name,
            node: 0,
            zone_index: 0,
            geometry: SHAPE,
            watermarks,
            lowmem_reserve: Vec::new(),
            features: ZoneFeatures::default(),
        };
        let memory = Memory::new(vec![setup], &GroupByMobility, PcpConfig::DISABLED).unwrap();
        let mut memory = FreeAllocatePairs::new(memory, BenchLoad::Mix, 11).unwrap();
        let mut zone =
            FreeAllocatePairs::new(Zone::new(SHAPE, GroupByMobility).unwrap(), BenchLoad::Mix, 11).unwrap();
        memory.run_with_prefetch(20_000).unwrap();
        zone.run_pairs(20_000).unwrap();
        assert_eq!(
            (&memory.live_blocks, memory.failed, memory.fallbacks),
            (&zone.live_blocks, zone.failed, zone.fallbacks)
        );
        memory.engine().validate().unwrap();
    }

    #[test]
    fn the_plain_allocator_serves_the_same_load() {
        let mut pairs = FreeAllocatePairs::new(BTreeBuddy::new(SHAPE).unwrap(), BenchLoad::Mix, 3).unwrap();
        pairs.run_pairs(20_000).unwrap();
        let live: Vec<Frame> = pairs.live_blocks.clone();
        let mut plain = pairs.engine().clone();
        for frame in live {
            plain.free_block(frame).unwrap();
        }
        assert_eq!(plain.free_blocks(), Zone::new(SHAPE, GroupByMobility).unwrap().free_blocks());
        assert!(plain.free_block(Frame::new(0)).is_err());
    }
}
