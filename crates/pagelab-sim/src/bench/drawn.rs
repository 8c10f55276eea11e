//! A load that remembers nothing of what it allocated.
//!
//! A draw says a frame: the block that it lies in is freed, and one of the same order allocated. If the frame
//! is free, the next one is drawn. So each frame is as likely as any other, and large blocks are hit more
//! often than small ones, by their size. In steady state each order then has that share of all memory in use
//! which it has of the allocations: of the mix, 85 % of the frames lie in blocks of order 0. Memory is filled
//! so, pageblock by pageblock; a list of live blocks draws each block equally often, and most frames lie in
//! large ones.

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

use super::{Draws, FULL, Load, MIX, place};
use crate::compact::Compact;
use crate::words::{Frame, Kind, Wrong};

/// A draw follows on another that hit a free frame (a step of Knuth's linear congruential generator).
fn after(draw: u64) -> u64 {
    draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// An engine at its steady state, and no list of live blocks.
#[derive(Clone, Debug)]
pub struct Drawn {
    engine: Compact,
    load: Load,
    draws: Draws,
    random: SplitMix64,
    /// The block that was allocated last.
    last: Option<Frame>,
    /// Allocations that were not to be had.
    pub failed: u64,
    /// Blocks that were taken from another owner.
    pub stolen: u64,
}

impl Drawn {
    /// Fills free memory: a pageblock after the other, each with blocks of one order.
    pub fn new(engine: Compact, load: Load, seed: u64) -> Result<Drawn, Wrong> {
        let random = SplitMix64::new(seed);
        let mut drawn = Drawn { engine, load, draws: load.draws(), random, last: None, failed: 0, stolen: 0 };
        let shape = drawn.engine.shape();
        let kept = u64::from(shape.frames) - u64::from(shape.frames) * FULL / 100;
        while u64::from(drawn.engine.free_frames()) > kept && drawn.failed == 0 {
            let draw = drawn.random.draw();
            let (order, kind) = drawn.draws.request(draw);
            drawn.take(shape.block_order.max(order), kind)?;
            if let Some(frame) = drawn.last {
                drawn.engine.split(frame, order)?;
            }
        }
        Ok(drawn)
    }

    /// Frees and allocates so many times, each as it comes.
    pub fn run(&mut self, pairs: u64) -> Result<(), Wrong> {
        for _ in 0..pairs {
            let draw = self.random.draw();
            self.pair(draw)?;
        }
        Ok(())
    }

    /// The same, with the next 32 draws known: what they will free is brought near. The engine ends as it
    /// does without.
    pub fn run_ahead(&mut self, pairs: u64) -> Result<(), Wrong> {
        const AHEAD: usize = 32;
        let mut draws = [0; AHEAD];
        let mut soon = [0; AHEAD];
        let known = pairs.min(AHEAD as u64);
        draws[..known as usize].fill_with(|| self.random.draw());
        for pair in 0..pairs {
            let at = pair as usize % AHEAD;
            let draw = draws[at];
            if pair + (AHEAD as u64) < pairs {
                draws[at] = self.random.draw();
                soon[at] = draws[at];
                self.engine.expect_free(self.frame(draws[at]));
            }
            // Twice, what seems to be free now is drawn again.
            for step in [AHEAD * 3 / 4, AHEAD / 2] {
                let at = (at + step) % AHEAD;
                if self.engine.used_at(self.frame(soon[at])).is_none() {
                    soon[at] = after(soon[at]);
                    self.engine.expect_free(self.frame(soon[at]));
                }
            }
            self.engine.expect_merge(self.frame(soon[(at + AHEAD / 4) % AHEAD]));
            self.pair(draw)?;
        }
        Ok(())
    }

    /// The frame of a draw.
    #[inline]
    fn frame(&self, draw: u64) -> Frame {
        let shape = self.engine.shape();
        shape.first + place(draw, shape.frames as usize) as u32
    }

    #[inline]
    fn pair(&mut self, draw: u64) -> Result<(), Wrong> {
        let (order, kind) = self.draws.request(draw.wrapping_mul(MIX));
        if let (Load::Hot, Some(last)) = (self.load, self.last) {
            self.engine.free(last)?;
            return self.take(order, kind);
        }
        if self.engine.free_frames() == self.engine.shape().frames {
            return self.take(order, kind);
        }
        let mut draw = draw;
        let frame = loop {
            match self.engine.used_at(self.frame(draw)) {
                Some(frame) => break frame,
                None => draw = after(draw),
            }
        };
        let order = self.engine.free(frame)?;
        self.take(order, kind)
    }

    #[inline]
    fn take(&mut self, order: u8, kind: Kind) -> Result<(), Wrong> {
        let taken = self.engine.take(order, kind)?;
        self.failed += u64::from(taken.is_none());
        self.last = taken.map(|taken| taken.frame);
        self.stolen += u64::from(taken.is_some_and(|taken| taken.stolen.is_some()));
        Ok(())
    }

    /// Where all that a pair reads and writes lies in this process's memory.
    pub fn places(&self) -> Vec<Range<usize>> {
        self.engine.places()
    }

    /// The engine.
    pub fn engine(&self) -> &Compact {
        &self.engine
    }
}
