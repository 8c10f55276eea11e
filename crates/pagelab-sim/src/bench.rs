//! The load of the benchmark: pairs of a free and an allocation at a steady state.
//!
//! Memory is filled to three quarters; then a block drawn at random from all live ones is freed and one is
//! allocated, over and over. Of the allocations 85 % are of order 0 and 15 % of orders 1 to 9, evenly; a
//! tenth is unmovable, a tenth reclaimable, the rest movable. All draws are by splitmix64 from the seed.

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

use crate::percpu::PerCpu;
use crate::policy::Policy;
use crate::prefetch;
use crate::words::{Frame, Kind, Wrong};
use crate::zone::Zone;

/// Of a hundred frames, those that are in use.
const FULL: u64 = 75;

/// The largest order that is asked for.
const LARGEST: u64 = 9;

/// Draws that are known ahead.
const AHEAD: usize = 32;

/// One draw says which block is freed, by its upper bits, and times this what is allocated.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The place of a draw among so many.
fn place(draw: u64, of: usize) -> usize {
    ((u128::from(draw) * of as u128) >> 64) as usize
}

/// What is measured: an allocator of one piece of memory.
pub trait Engine {
    /// Frames.
    fn frames(&self) -> u32;

    /// Allocates; also says whether it took from another list.
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong>;

    /// Frees.
    fn free(&mut self, frame: Frame) -> Result<(), Wrong>;

    /// Where its books lie in this process's memory, if they lie in one place.
    fn places(&self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// The block at a frame will be freed soon.
    fn expect_free(&self, _frame: Frame) {}

    /// It will be freed very soon.
    fn expect_merge(&self, _frame: Frame) {}
}

impl<P: Policy> Engine for Zone<P> {
    fn frames(&self) -> u32 {
        self.shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.lists().places().to_vec()
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = Zone::take(self, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Zone::free(self, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        Zone::expect_free(self, frame);
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        Zone::expect_merge(self, frame);
    }
}

/// All calls come from the first processor.
impl<P: Policy> Engine for PerCpu<P> {
    fn frames(&self) -> u32 {
        self.zone().shape().frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.zone().lists().places().to_vec()
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let taken = PerCpu::take(self, 0, order, kind)?;
        Ok(taken.map(|taken| (taken.frame, taken.stolen.is_some())))
    }

    #[inline]
    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        PerCpu::free(self, 0, frame).map(drop)
    }

    #[inline]
    fn expect_free(&self, frame: Frame) {
        self.zone().expect_free(frame);
    }

    #[inline]
    fn expect_merge(&self, frame: Frame) {
        self.zone().expect_merge(frame);
    }
}

/// An engine at its steady state.
#[derive(Clone, Debug)]
pub struct Pairs<E> {
    engine: E,
    live: Vec<Frame>,
    random: SplitMix64,
    /// Allocations that were not to be had.
    pub failed: u64,
    /// Blocks that were taken from another list.
    pub stolen: u64,
}

impl<E: Engine> Pairs<E> {
    /// Fills free memory.
    pub fn new(engine: E, seed: u64) -> Result<Pairs<E>, Wrong> {
        let mut pairs =
            Pairs { engine, live: Vec::new(), random: SplitMix64::new(seed), failed: 0, stolen: 0 };
        let most = u64::from(pairs.engine.frames()) * FULL / 100;
        let mut used = 0;
        while used < most && pairs.failed == 0 {
            let (order, kind) = request(pairs.random.draw());
            match pairs.engine.take(order, kind)? {
                Some((frame, stolen)) => {
                    pairs.stolen += u64::from(stolen);
                    pairs.live.push(frame);
                    used += 1 << order;
                }
                None => pairs.failed += 1,
            }
        }
        Ok(pairs)
    }

    /// Frees and allocates so many times, each as it comes.
    pub fn run(&mut self, pairs: u64) -> Result<(), Wrong> {
        for _ in 0..pairs {
            let draw = self.random.draw();
            self.pair(draw)?;
        }
        Ok(())
    }

    /// The same, with the next 32 draws known: what they will free is brought near. The engine ends as
    /// it does without.
    pub fn run_ahead(&mut self, pairs: u64) -> Result<(), Wrong> {
        let mut draws = [0; AHEAD];
        let known = pairs.min(AHEAD as u64);
        draws[..known as usize].fill_with(|| self.random.draw());
        for pair in 0..pairs {
            let at = pair as usize % AHEAD;
            let draw = draws[at];
            if pair + (AHEAD as u64) < pairs {
                draws[at] = self.random.draw();
                prefetch::near(&self.live, place(draws[at], self.live.len()));
            }
            let later = |steps: usize| self.live.get(place(draws[(at + steps) % AHEAD], self.live.len()));
            later(AHEAD / 2).into_iter().for_each(|&frame| self.engine.expect_free(frame));
            later(AHEAD / 4).into_iter().for_each(|&frame| self.engine.expect_merge(frame));
            self.pair(draw)?;
        }
        Ok(())
    }

    /// Frees the block of a draw, and allocates another in its place.
    #[inline]
    fn pair(&mut self, draw: u64) -> Result<(), Wrong> {
        let at = place(draw, self.live.len());
        let Some(&frame) = self.live.get(at) else { return Ok(()) };
        self.engine.free(frame)?;
        let (order, kind) = request(draw.wrapping_mul(MIX));
        match self.engine.take(order, kind)? {
            Some((frame, stolen)) => {
                self.stolen += u64::from(stolen);
                self.live[at] = frame;
            }
            None => {
                self.failed += 1;
                self.live.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Where all that a pair reads and writes lies in this process's memory.
    pub fn places(&self) -> Vec<Range<usize>> {
        let start = self.live.as_ptr() as usize;
        let mut places = self.engine.places();
        places.push(start..start + size_of_val(&self.live[..]));
        places
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

/// What a draw asks for.
fn request(draw: u64) -> (u8, Kind) {
    let below = |bits: u64, bound: u64| ((bits & 0xffff) * bound) >> 16;
    let order = match below(draw, 100) {
        0..85 => 0,
        _ => 1 + below(draw >> 16, LARGEST) as u8,
    };
    let kind = match below(draw >> 32, 10) {
        0 => Kind::Unmovable,
        1 => Kind::Reclaimable,
        _ => Kind::Movable,
    };
    (order, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percpu::Keep;
    use crate::plain::Plain;
    use crate::policy::Mobility;
    use crate::words::Shape;

    const SHAPE: Shape = Shape { first: 0, frames: 1 << 16, max_order: 10, block_order: 9 };

    #[test]
    fn looking_ahead_changes_nothing_but_the_time() {
        let zone = Zone::new(SHAPE, Mobility).unwrap();
        let mut plain = Pairs::new(zone.clone(), 7).unwrap();
        let mut ahead = Pairs::new(zone, 7).unwrap();
        plain.run(50_000).unwrap();
        ahead.run_ahead(50_000).unwrap();
        assert_eq!(plain.live, ahead.live);
        assert_eq!(plain.engine().free_blocks(), ahead.engine().free_blocks());
        assert_eq!((plain.failed, plain.stolen), (ahead.failed, ahead.stolen));
        plain.engine().validate().unwrap();
    }

    #[test]
    fn the_steady_state_is_three_quarters_full_of_the_mix_that_is_said() {
        let keep = Keep { cpus: 1, batch: 63, high: 378 };
        let mut pairs =
            Pairs::new(PerCpu::new(Zone::new(SHAPE, Mobility).unwrap(), keep).unwrap(), 3).unwrap();
        pairs.run(100_000).unwrap();
        let engine = pairs.engine();
        engine.validate().unwrap();
        let used = SHAPE.frames - engine.zone().free_frames() - engine.kept_frames();
        let share = f64::from(used) / f64::from(SHAPE.frames);
        assert!((0.65..0.85).contains(&share), "{share}");
        let mut random = SplitMix64::new(1);
        let drawn: Vec<(u8, Kind)> = (0..100_000).map(|_| request(random.draw())).collect();
        let share = |is: &dyn Fn(&(u8, Kind)) -> bool| drawn.iter().filter(|one| is(one)).count() / 1000;
        assert!((84..=86).contains(&share(&|one| one.0 == 0)));
        assert!((1..=2).contains(&share(&|one| one.0 == 9)) && share(&|one| one.0 > 9) == 0);
        assert!((79..=81).contains(&share(&|one| one.1 == Kind::Movable)));
    }

    #[test]
    fn the_plain_allocator_serves_the_same_load() {
        let mut pairs = Pairs::new(Plain::new(SHAPE).unwrap(), 3).unwrap();
        pairs.run(20_000).unwrap();
        let live: Vec<Frame> = pairs.live.clone();
        let mut plain = pairs.engine().clone();
        for frame in live {
            plain.free(frame).unwrap();
        }
        assert_eq!(plain.free_blocks(), Zone::new(SHAPE, Mobility).unwrap().free_blocks());
        assert!(plain.free(0).is_err());
    }
}
