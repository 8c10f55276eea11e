//! The loads of the benchmark: pairs of a free and an allocation at a steady state.
//!
//! Memory is filled to three quarters; then one block is freed and one is allocated, over and over, as the
//! [`Load`] says. A tenth of the allocations is unmovable, a tenth reclaimable, the rest movable. All draws
//! are by splitmix64 from the seed.
//!
//! [`Pairs`] remembers which blocks are live, and draws one of them. That list is larger than the books of
//! the compact engine; [`Drawn`] keeps none, and asks the engine. [`Bulk`] has no steady state: half of
//! memory comes and goes.

mod bulk;
mod drawn;
mod engines;

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

pub use bulk::Bulk;
pub use drawn::Drawn;
pub use engines::Nothing;

use crate::prefetch;
use crate::words::{Frame, Kind, Wrong};

/// Of a hundred frames, those that are in use.
const FULL: u64 = 75;

/// The largest order that is asked for.
const LARGEST: u64 = 9;

/// What is asked for, and which block is freed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Any live block is freed. Of the allocations 85 % are of order 0, 15 % of orders 1 to 9, evenly.
    Mix,
    /// Any live block; all of order 0.
    Order0,
    /// Any live block; all of order 9, huge pages of 2 MiB.
    Order9,
    /// The block that was allocated last; orders as in the mix.
    Hot,
    /// Half of memory is allocated at order 0, then freed in a random order: [`Bulk`].
    Bulk,
}

impl Load {
    /// Those of pairs at a steady state.
    pub const PAIRS: [Load; 4] = [Load::Mix, Load::Order0, Load::Order9, Load::Hot];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Load::Mix => "mix",
            Load::Order0 => "order0",
            Load::Order9 => "order9",
            Load::Hot => "hot",
            Load::Bulk => "bulk",
        }
    }

    /// What its draws ask for.
    fn draws(self) -> Draws {
        let (small, large_from) = match self {
            Load::Order0 | Load::Bulk => (0, 100),
            Load::Order9 => (LARGEST as u8, 100),
            Load::Mix | Load::Hot => (0, 85),
        };
        Draws { small, large_from, last: if self == Load::Hot { u64::MAX } else { 0 } }
    }

    /// How many blocks are live at the steady state, about.
    pub fn live_blocks(self, frames: u32) -> u64 {
        let used = u64::from(frames) * FULL / 100;
        match self {
            Load::Order0 => used,
            Load::Bulk => u64::from(frames) / 2,
            Load::Order9 => used >> LARGEST,
            // On average a block has 0.85 + 0.15 / 9 · (2 + 4 + … + 512) frames, 17.9.
            Load::Mix | Load::Hot => used / 17,
        }
    }
}

/// What draws ask for, and which block they free. Nothing in it is a branch: nobody could tell ahead which
/// way it goes.
#[derive(Clone, Copy, Debug)]
struct Draws {
    /// The order of most.
    small: u8,
    /// Of a hundred draws, the first one that asks for any of the orders from 1 up.
    large_from: u64,
    /// All bits, if the block that was allocated last is freed; else none.
    last: u64,
}

impl Draws {
    /// What a draw asks for.
    #[inline]
    fn request(self, draw: u64) -> (u8, Kind) {
        let below = |bits: u64, bound: u64| ((bits & 0xffff) * bound) >> 16;
        let is_large = u8::from(below(draw, 100) >= self.large_from);
        let order = self.small + is_large * (1 + below(draw >> 16, LARGEST) as u8);
        (order, KINDS[below(draw >> 32, 10) as usize % KINDS.len()])
    }

    /// The place of the block that a draw frees, among so many live ones.
    #[inline]
    fn place(self, draw: u64, live: usize) -> usize {
        place(draw | self.last, live)
    }
}

/// Of so many allocations, what each is for; the last six of the table are never asked for.
const KINDS: [Kind; 16] = {
    let mut kinds = [Kind::Movable; 16];
    kinds[0] = Kind::Unmovable;
    kinds[1] = Kind::Reclaimable;
    kinds
};

/// One draw says which block is freed, by its upper bits, and times this what is allocated.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The place of a draw among so many.
#[inline]
fn place(draw: u64, of: usize) -> usize {
    ((u128::from(draw) * of as u128) >> 64) as usize
}

/// What is measured: an allocator of one piece of memory.
pub trait Engine {
    /// Whether four blocks are brought near at a time and not eight: a processor waits that has asked for
    /// more lines than it can keep track of, and some engines read several of a block.
    const FEW_AT_ONCE: bool = false;

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

    /// It will be freed soon, and its state is near.
    fn expect_buddy(&self, _frame: Frame) {}
}

/// An engine at its steady state.
#[derive(Clone, Debug)]
pub struct Pairs<E> {
    engine: E,
    live: Vec<Frame>,
    draws: Draws,
    random: SplitMix64,
    /// Allocations that were not to be had.
    pub failed: u64,
    /// Blocks that were taken from another list.
    pub stolen: u64,
}

impl<E: Engine> Pairs<E> {
    /// Fills free memory.
    pub fn new(engine: E, load: Load, seed: u64) -> Result<Pairs<E>, Wrong> {
        let live = Vec::with_capacity(load.live_blocks(engine.frames()) as usize);
        let mut pairs =
            Pairs { engine, live, draws: load.draws(), random: SplitMix64::new(seed), failed: 0, stolen: 0 };
        let most = u64::from(pairs.engine.frames()) * FULL / 100;
        let mut used = 0;
        while used < most && pairs.failed == 0 {
            let (order, kind) = pairs.draws.request(pairs.random.draw());
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

    /// Frees and allocates so many times, each as it comes: the engine is told nothing ahead. The load draws
    /// eight pairs ahead and brings its own list near, so that it is not the wait for that list, larger than
    /// the second cache, that is measured.
    pub fn run(&mut self, pairs: u64) -> Result<(), Wrong> {
        const GROUP: usize = 8;
        let (mut draws, mut soon) = ([0; GROUP], [0; GROUP]);
        let groups = pairs / GROUP as u64;
        if groups > 0 {
            self.draw_group(&mut soon);
        }
        for group in 0..groups {
            draws = std::mem::replace(&mut soon, draws);
            if group + 1 < groups {
                self.draw_group(&mut soon);
            }
            self.pairs_of(&draws)?;
        }
        for _ in 0..pairs % GROUP as u64 {
            let draw = self.random.draw();
            self.pair(draw)?;
        }
        Ok(())
    }

    /// The same, with the next 32 draws known: what they will free is brought near. The engine ends as
    /// it does without.
    pub fn run_ahead(&mut self, pairs: u64) -> Result<(), Wrong> {
        if E::FEW_AT_ONCE { self.ahead::<4, 8>(pairs) } else { self.ahead::<8, 4>(pairs) }
    }

    /// So many pairs at a time go through the steps, of so many groups that are known. Each step has the time
    /// of eight pairs or more to bring near what the next one reads.
    fn ahead<const GROUP: usize, const GROUPS: usize>(&mut self, pairs: u64) -> Result<(), Wrong> {
        let (blocks_ahead, buddies_ahead) = (GROUPS * 3 / 4, GROUPS / 2 - 1);
        let groups = (pairs / GROUP as u64) as usize;
        let (mut draws, mut frames) = ([[0; GROUP]; GROUPS], [[0; GROUP]; GROUPS]);
        for step in 0..groups + GROUPS {
            if step >= GROUPS {
                self.pairs_of(&draws[step % GROUPS])?;
            }
            self.expect_buddies(&frames[(step + buddies_ahead) % GROUPS]);
            let soon = (step + blocks_ahead) % GROUPS;
            self.expect_blocks(&draws[soon], &mut frames[soon]);
            if step < groups {
                self.draw_group(&mut draws[step % GROUPS]);
            }
        }
        self.run(pairs % GROUP as u64)
    }

    // The steps are functions of their own: in one there are not enough registers for all of them.
    #[inline(never)]
    fn pairs_of(&mut self, draws: &[u64]) -> Result<(), Wrong> {
        draws.iter().try_for_each(|&draw| self.pair(draw))
    }

    #[inline(never)]
    fn expect_buddies(&self, frames: &[Frame]) {
        frames.iter().for_each(|&frame| self.engine.expect_buddy(frame));
    }

    #[inline(never)]
    fn expect_blocks(&self, draws: &[u64], frames: &mut [Frame]) {
        for (frame, &draw) in frames.iter_mut().zip(draws) {
            *frame = self.live.get(self.draws.place(draw, self.live.len())).copied().unwrap_or(0);
            self.engine.expect_free(*frame);
        }
    }

    #[inline(never)]
    fn draw_group(&mut self, draws: &mut [u64]) {
        for draw in draws {
            *draw = self.random.draw();
            prefetch::near(&self.live, self.draws.place(*draw, self.live.len()));
        }
    }

    /// Frees the block of a draw, and allocates another in its place.
    #[inline(always)]
    fn pair(&mut self, draw: u64) -> Result<(), Wrong> {
        let at = self.draws.place(draw, self.live.len());
        let Some(&frame) = self.live.get(at) else { return Ok(()) };
        self.engine.free(frame)?;
        let (order, kind) = self.draws.request(draw.wrapping_mul(MIX));
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
        places_with(&self.engine, &self.live)
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

/// Where an engine's books and the list of live blocks lie.
fn places_with<E: Engine>(engine: &E, live: &Vec<Frame>) -> Vec<Range<usize>> {
    let start = live.as_ptr() as usize;
    let mut places = engine.places();
    places.push(start..start + live.capacity() * size_of::<Frame>());
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Compact;
    use crate::marks::Marks;
    use crate::memory::{Memory, Setup};
    use crate::percpu::{Keep, PerCpu};
    use crate::plain::Plain;
    use crate::policy::Mobility;
    use crate::words::Shape;
    use crate::zone::{Extras, Zone};

    const SHAPE: Shape = Shape { first: 0, frames: 1 << 16, max_order: 10, block_order: 9 };

    #[test]
    fn looking_ahead_changes_nothing_but_the_time() {
        let zone = Zone::new(SHAPE, Mobility).unwrap();
        let mut plain = Pairs::new(zone.clone(), Load::Mix, 7).unwrap();
        let mut ahead = Pairs::new(zone, Load::Mix, 7).unwrap();
        plain.run(50_000).unwrap();
        ahead.run_ahead(50_000).unwrap();
        assert_eq!(plain.live, ahead.live);
        assert_eq!(plain.engine().free_blocks(), ahead.engine().free_blocks());
        assert_eq!((plain.failed, plain.stolen), (ahead.failed, ahead.stolen));
        plain.engine().validate().unwrap();
    }

    #[test]
    fn the_steady_state_is_three_quarters_full_of_the_mix_that_is_said() {
        let keep = Keep::batches(1, 63, 378);
        let mut pairs =
            Pairs::new(PerCpu::new(Zone::new(SHAPE, Mobility).unwrap(), keep).unwrap(), Load::Mix, 3)
                .unwrap();
        pairs.run(100_000).unwrap();
        let engine = pairs.engine();
        engine.validate().unwrap();
        let used = SHAPE.frames - engine.zone().free_frames() - engine.kept_frames();
        let share = f64::from(used) / f64::from(SHAPE.frames);
        assert!((0.65..0.85).contains(&share), "{share}");
        let mut random = SplitMix64::new(1);
        let drawn: Vec<(u8, Kind)> = (0..100_000).map(|_| Load::Mix.draws().request(random.draw())).collect();
        let share = |is: &dyn Fn(&(u8, Kind)) -> bool| drawn.iter().filter(|one| is(one)).count() / 1000;
        assert!((84..=86).contains(&share(&|one| one.0 == 0)));
        assert!((1..=2).contains(&share(&|one| one.0 == 9)) && share(&|one| one.0 > 9) == 0);
        assert!((79..=81).contains(&share(&|one| one.1 == Kind::Movable)));
    }

    /// The compact engine, with a list of live blocks and without.
    #[test]
    fn the_compact_engine_serves_each_load_and_keeps_its_shares() {
        for load in Load::PAIRS {
            let mut pairs = Pairs::new(Compact::new(SHAPE).unwrap(), load, 3).unwrap();
            pairs.run(20_000).unwrap();
            pairs.engine().validate().unwrap();
            assert!(pairs.failed < 200, "{load:?}: {}", pairs.failed);
            let drawn = Drawn::new(Compact::new(SHAPE).unwrap(), load, 3).unwrap();
            let free = drawn.engine().free_frames();
            let (mut plain, mut ahead) = (drawn.clone(), drawn);
            plain.run(20_000).unwrap();
            ahead.run_ahead(20_000).unwrap();
            for drawn in [&plain, &ahead] {
                drawn.engine().validate().unwrap();
            }
            let blocks = plain.engine().free_blocks();
            assert_eq!((blocks, plain.stolen), (ahead.engine().free_blocks(), ahead.stolen));
            if load != Load::Hot && plain.failed == 0 {
                assert_eq!(plain.engine().free_frames(), free, "{load:?}");
            }
        }
        // By the mix, 85 % of the frames in use lie in blocks of order 0.
        let mut drawn = Drawn::new(Compact::new(SHAPE).unwrap(), Load::Mix, 5).unwrap();
        drawn.run(50_000).unwrap();
        let engine = drawn.engine();
        let singles = (0..SHAPE.frames).filter(|&frame| engine.order(frame) == Ok(0)).count() as f64;
        let share = singles / f64::from(SHAPE.frames - engine.free_frames());
        assert!((0.7..0.95).contains(&share), "{share}");
    }

    /// A memory of one zone without marks whose processors keep nothing is that zone.
    #[test]
    fn zones_and_lists_that_hold_nothing_back_change_nothing() {
        let name = "Normal".to_owned();
        let marks = Marks::default();
        let setup = Setup {
            name,
            node: 0,
            height: 0,
            shape: SHAPE,
            marks,
            reserves: Vec::new(),
            extras: Extras::default(),
        };
        let memory = Memory::new(vec![setup], &Mobility, Keep::NOTHING).unwrap();
        let mut memory = Pairs::new(memory, Load::Mix, 11).unwrap();
        let mut zone = Pairs::new(Zone::new(SHAPE, Mobility).unwrap(), Load::Mix, 11).unwrap();
        memory.run_ahead(20_000).unwrap();
        zone.run(20_000).unwrap();
        assert_eq!((&memory.live, memory.failed, memory.stolen), (&zone.live, zone.failed, zone.stolen));
        memory.engine().validate().unwrap();
    }

    #[test]
    fn the_plain_allocator_serves_the_same_load() {
        let mut pairs = Pairs::new(Plain::new(SHAPE).unwrap(), Load::Mix, 3).unwrap();
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
