//! Which bytes are loaded and stored, in which order.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pagelab_model::seed::SplitMix64;

/// Bytes of a cache line, as the laboratory has it.
pub const LINE: usize = 64;
/// What a store writes.
pub const STORED: u8 = 1;

/// Lines of a window of the pattern `lab`.
const WINDOW: u64 = 512;
/// Every so many lines one is a store.
const STORE_EVERY: usize = 8;
/// Lines of a block of the pattern `report`: 512 bytes.
const BLOCK: u64 = 8;
/// How often a window or a block is passed over.
const PASSES: u64 = 16;

/// The two patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines of a window, every eighth a store.
    Lab,
    /// Bytes of a block, the first of each line a store.
    Report,
}

/// In which order windows and blocks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other, and again from the start.
    Sequential,
    /// Anywhere.
    Random,
}

/// A pattern over a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Which.
    pub kind: Kind,
    /// In which order.
    pub order: Order,
    /// Lines of the buffer.
    pub lines: u64,
    /// Seed of the random order.
    pub seed: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Bytes loaded, counted one by one.
    pub loads: u64,
    /// Bytes stored, counted one by one.
    pub stores: u64,
    /// Sum of the bytes loaded.
    pub sum: u64,
}

impl Accesses {
    /// All three as one number.
    pub fn checksum(&self) -> u64 {
        [self.loads, self.stores, self.sum]
            .iter()
            .fold(0, |sum, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

/// Marsaglia's xorshift generator of 128 bits (2003), with the shifts 11, 8 and 19.
struct Xorshift([u32; 4]);

impl Xorshift {
    fn new(seed: u64) -> Xorshift {
        let mut random = SplitMix64::new(seed);
        // All zeros would stay so; the last word is never 0.
        let mut state = [0; 4].map(|_| random.draw() as u32);
        state[3] |= 1;
        Xorshift(state)
    }

    fn draw(&mut self) -> u32 {
        let [x, y, z, w] = self.0;
        let t = x ^ (x << 11);
        let next = w ^ (w >> 19) ^ t ^ (t >> 8);
        self.0 = [y, z, w, next];
        next
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 32) as u64
    }
}

impl Pattern {
    /// Lines of a window or block.
    pub fn width(kind: Kind) -> u64 {
        match kind {
            Kind::Lab => WINDOW,
            Kind::Report => BLOCK,
        }
    }

    /// Loads and stores of so many blocks.
    pub fn expected(&self, blocks: u64) -> (u64, u64) {
        let width = Pattern::width(self.kind);
        match self.kind {
            Kind::Lab => {
                let stores = PASSES * width / STORE_EVERY as u64;
                (blocks * (PASSES * width - stores), blocks * stores)
            }
            Kind::Report => (blocks * PASSES * width * (LINE as u64 - 1), blocks * PASSES * width),
        }
    }

    /// The first lines of so many blocks.
    fn starts(self, blocks: u64) -> impl Iterator<Item = u64> {
        let width = Pattern::width(self.kind);
        let mut random = Xorshift::new(self.seed);
        (0..blocks).map(move |block| match (self.order, self.kind) {
            (Order::Sequential, _) => block % (self.lines / width) * width,
            (Order::Random, Kind::Lab) => random.below(self.lines - width + 1),
            (Order::Random, Kind::Report) => random.below(self.lines / width) * width,
        })
    }

    /// Does the accesses of so many blocks.
    pub fn run(&self, bytes: &[AtomicU8], blocks: u64) -> Accesses {
        let mut accesses = Accesses::default();
        let width = Pattern::width(self.kind) as usize * LINE;
        for start in self.starts(blocks) {
            let block = &bytes[start as usize * LINE..][..width];
            match self.kind {
                Kind::Lab => lab(block, &mut accesses),
                Kind::Report => report(block, &mut accesses),
            }
        }
        accesses
    }

    /// A bit for each line whose first byte so many blocks store to.
    pub fn stored_lines(&self, blocks: u64) -> Vec<u64> {
        let mut stored = vec![0u64; self.lines.div_ceil(64) as usize];
        let step = if self.kind == Kind::Lab { STORE_EVERY } else { 1 };
        for start in self.starts(blocks) {
            for line in (start..start + Pattern::width(self.kind)).step_by(step) {
                stored[line as usize / 64] |= 1 << (line % 64);
            }
        }
        stored
    }
}

/// A window of the pattern `lab`.
fn lab(window: &[AtomicU8], accesses: &mut Accesses) {
    let Accesses { mut loads, mut stores, mut sum } = *accesses;
    for _ in 0..PASSES {
        for lines in window.chunks_exact(STORE_EVERY * LINE) {
            lines[0].store(STORED, Relaxed);
            stores += 1;
            for line in 1..STORE_EVERY {
                sum += u64::from(lines[line * LINE].load(Relaxed));
                loads += 1;
            }
        }
    }
    *accesses = Accesses { loads, stores, sum };
}

/// A block of the pattern `report`.
fn report(block: &[AtomicU8], accesses: &mut Accesses) {
    let Accesses { mut loads, mut stores, mut sum } = *accesses;
    for _ in 0..PASSES {
        for line in block.chunks_exact(LINE) {
            line[0].store(STORED, Relaxed);
            stores += 1;
            for byte in &line[1..] {
                sum += u64::from(byte.load(Relaxed));
                loads += 1;
            }
        }
    }
    *accesses = Accesses { loads, stores, sum };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_marsaglias() {
        // First outputs of the program in his paper, from its own starting state.
        let mut random = Xorshift([123_456_789, 362_436_069, 521_288_629, 88_675_123]);
        let drawn: Vec<u32> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(drawn, [3_701_687_786, 458_299_110, 2_500_872_618]);
    }

    #[test]
    fn counts_and_sums_are_those_of_a_plain_loop() {
        for kind in [Kind::Lab, Kind::Report] {
            for order in [Order::Sequential, Order::Random] {
                let pattern = Pattern { kind, order, lines: 1100, seed: 9 };
                let bytes: Vec<AtomicU8> =
                    (0..1100 * LINE).map(|at| AtomicU8::new((at % 251) as u8)).collect();
                let mut plain: Vec<u8> = (0..1100 * LINE).map(|at| (at % 251) as u8).collect();
                let before = plain.clone();
                let (mut loads, mut stores, mut sum) = (0, 0, 0);
                for start in pattern.starts(20) {
                    for _ in 0..16 {
                        for line in 0..Pattern::width(kind) as usize {
                            let first = (start as usize + line) * LINE;
                            let ends = if kind == Kind::Lab { 1 } else { LINE };
                            for (at, byte) in plain[first..first + ends].iter_mut().enumerate() {
                                let is_store = at == 0 && (kind == Kind::Report || line % 8 == 0);
                                if is_store {
                                    *byte = 1;
                                    stores += 1;
                                } else {
                                    sum += u64::from(*byte);
                                    loads += 1;
                                }
                            }
                        }
                    }
                }
                assert_eq!(pattern.run(&bytes, 20), Accesses { loads, stores, sum });
                assert_eq!(pattern.expected(20), (loads, stores));
                assert!(bytes.iter().zip(&plain).all(|(byte, plain)| byte.load(Relaxed) == *plain));
                let stored = pattern.stored_lines(20);
                for line in 0..1100 {
                    let is_stored = stored[line / 64] >> (line % 64) & 1 == 1;
                    assert_eq!(is_stored, plain[line * LINE] == 1 && before[line * LINE] != 1 || is_stored);
                    assert!(is_stored || plain[line * LINE] == before[line * LINE]);
                }
            }
        }
    }

    #[test]
    fn a_store_to_eight_loads_or_so() {
        let pattern = |kind| Pattern { kind, order: Order::Sequential, lines: 1 << 24, seed: 1 };
        // The report's own expectation over 2^21 windows: 2 G stores and 16 G accesses.
        assert_eq!(pattern(Kind::Lab).expected(1 << 21), (15_032_385_536, 2_147_483_648));
        // Its text over 1 GiB: its table shows 16 906 612 066 loads.
        assert_eq!(pattern(Kind::Report).expected(1 << 21), (16_911_433_728, 268_435_456));
    }
}
