//! Access patterns: the loaded and stored bytes, and their order.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pagelab_model::random::SplitMix64;

use crate::mix_checksum;

/// Bytes of a cache line, as the laboratory has it.
pub const LINE_BYTES: usize = 64;
/// Value of a store.
pub const STORED_BYTE: u8 = 1;

/// Lines of a window of the pattern `lab`.
const WINDOW_LINES: u64 = 512;
/// One line in this number is a store.
const STORE_INTERVAL: usize = 8;
/// Lines of a block of the pattern `report`: 512 bytes.
const BLOCK_LINES: u64 = 8;
/// How often a window or a block is passed over.
const PASSES_PER_BLOCK: u64 = 16;

/// The two patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternKind {
    /// Lines of a window, every eighth a store.
    LabWindow,
    /// Bytes of a block, the first of each line a store.
    ReportBlock,
}

/// In which order windows and blocks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSequence {
    /// One after the other, and again from the start.
    Sequential,
    /// Anywhere.
    Random,
}

/// A pattern over a buffer.
#[derive(Clone, Copy, Debug)]
pub struct AccessPattern {
    /// Which.
    pub kind: PatternKind,
    /// In which order.
    pub order: BlockSequence,
    /// Lines of the buffer.
    pub line_count: u64,
    /// Seed of the random order.
    pub seed: u64,
}

/// Accesses performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessCounts {
    /// Bytes loaded, counted one by one.
    pub loads: u64,
    /// Bytes stored, counted one by one.
    pub stores: u64,
    /// Sum of the bytes loaded.
    pub value_sum: u64,
}

impl AccessCounts {
    /// All three as one number.
    pub fn checksum(&self) -> u64 {
        [self.loads, self.stores, self.value_sum].into_iter().fold(0, mix_checksum)
    }
}

/// Marsaglia's xorshift generator of 128 bits (2003), with the shifts 11, 8 and 19.
struct Xorshift128([u32; 4]);

impl Xorshift128 {
    fn new(seed: u64) -> Xorshift128 {
        let mut random = SplitMix64::new(seed);
        // All zeros would stay so; the last word is never 0.
        let mut state = [0; 4].map(|_| random.next_u64() as u32);
        state[3] |= 1;
        Xorshift128(state)
    }

    fn next_u32(&mut self) -> u32 {
        let [x, y, z, w] = self.0;
        let t = x ^ (x << 11);
        let next = w ^ (w >> 19) ^ t ^ (t >> 8);
        self.0 = [y, z, w, next];
        next
    }

    fn next_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u32()) * u128::from(bound)) >> 32) as u64
    }
}

impl AccessPattern {
    /// Lines of a window or block.
    pub fn block_lines(kind: PatternKind) -> u64 {
        match kind {
            PatternKind::LabWindow => WINDOW_LINES,
            PatternKind::ReportBlock => BLOCK_LINES,
        }
    }

    /// Loads and stores of this number of blocks.
    pub fn expected_counts(&self, blocks: u64) -> (u64, u64) {
        let width = AccessPattern::block_lines(self.kind);
        match self.kind {
            PatternKind::LabWindow => {
                let stores = PASSES_PER_BLOCK * width / STORE_INTERVAL as u64;
                (blocks * (PASSES_PER_BLOCK * width - stores), blocks * stores)
            }
            PatternKind::ReportBlock => (
                blocks * PASSES_PER_BLOCK * width * (LINE_BYTES as u64 - 1),
                blocks * PASSES_PER_BLOCK * width,
            ),
        }
    }

    /// First lines of this number of blocks.
    fn block_starts(self, blocks: u64) -> impl Iterator<Item = u64> {
        let width = AccessPattern::block_lines(self.kind);
        let mut random = Xorshift128::new(self.seed);
        (0..blocks).map(move |block| match (self.order, self.kind) {
            (BlockSequence::Sequential, _) => block % (self.line_count / width) * width,
            (BlockSequence::Random, PatternKind::LabWindow) => random.next_below(self.line_count - width + 1),
            (BlockSequence::Random, PatternKind::ReportBlock) => {
                random.next_below(self.line_count / width) * width
            }
        })
    }

    /// Performs the accesses of one block in other memory, so that the pages of their code are mapped before
    /// the faults of the accesses are counted.
    pub fn fault_in_code(&self) {
        let line_count = AccessPattern::block_lines(self.kind);
        let bytes: Vec<AtomicU8> = (0..line_count as usize * LINE_BYTES).map(|_| AtomicU8::new(0)).collect();
        std::hint::black_box(AccessPattern { line_count, ..*self }.run_blocks(&bytes, 1));
    }

    /// Performs the accesses of this number of blocks.
    pub fn run_blocks(&self, bytes: &[AtomicU8], blocks: u64) -> AccessCounts {
        let mut accesses = AccessCounts::default();
        let width = AccessPattern::block_lines(self.kind) as usize * LINE_BYTES;
        for start in self.block_starts(blocks) {
            let block = &bytes[start as usize * LINE_BYTES..][..width];
            match self.kind {
                PatternKind::LabWindow => access_lab_window(block, &mut accesses),
                PatternKind::ReportBlock => access_report_block(block, &mut accesses),
            }
        }
        accesses
    }

    /// A bit for each line whose first byte this number of blocks stores to.
    pub fn stored_lines(&self, blocks: u64) -> Vec<u64> {
        let mut stored = vec![0u64; self.line_count.div_ceil(64) as usize];
        let step = if self.kind == PatternKind::LabWindow { STORE_INTERVAL } else { 1 };
        for start in self.block_starts(blocks) {
            for line in (start..start + AccessPattern::block_lines(self.kind)).step_by(step) {
                stored[line as usize / 64] |= 1 << (line % 64);
            }
        }
        stored
    }
}

/// A window of the pattern `access_lab_window`.
fn access_lab_window(window: &[AtomicU8], accesses: &mut AccessCounts) {
    let AccessCounts { mut loads, mut stores, value_sum: mut sum } = *accesses;
    for _ in 0..PASSES_PER_BLOCK {
        for lines in window.chunks_exact(STORE_INTERVAL * LINE_BYTES) {
            lines[0].store(STORED_BYTE, Relaxed);
            stores += 1;
            for line in 1..STORE_INTERVAL {
                sum += u64::from(lines[line * LINE_BYTES].load(Relaxed));
                loads += 1;
            }
        }
    }
    *accesses = AccessCounts { loads, stores, value_sum: sum };
}

/// A block of the pattern `access_report_block`.
fn access_report_block(block: &[AtomicU8], accesses: &mut AccessCounts) {
    let AccessCounts { mut loads, mut stores, value_sum: mut sum } = *accesses;
    for _ in 0..PASSES_PER_BLOCK {
        for line in block.chunks_exact(LINE_BYTES) {
            line[0].store(STORED_BYTE, Relaxed);
            stores += 1;
            for byte in &line[1..] {
                sum += u64::from(byte.load(Relaxed));
                loads += 1;
            }
        }
    }
    *accesses = AccessCounts { loads, stores, value_sum: sum };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_marsaglias() {
        // First outputs of the program in his paper, from its own starting state.
        let mut random = Xorshift128([123_456_789, 362_436_069, 521_288_629, 88_675_123]);
        let drawn: Vec<u32> = (0..3).map(|_| random.next_u32()).collect();
        assert_eq!(drawn, [3_701_687_786, 458_299_110, 2_500_872_618]);
    }

    #[test]
    fn counts_and_sums_are_those_of_a_plain_loop() {
        for kind in [PatternKind::LabWindow, PatternKind::ReportBlock] {
            for order in [BlockSequence::Sequential, BlockSequence::Random] {
                let pattern = AccessPattern { kind, order, line_count: 1100, seed: 9 };
                let bytes: Vec<AtomicU8> =
                    (0..1100 * LINE_BYTES).map(|at| AtomicU8::new((at % 251) as u8)).collect();
                let mut plain: Vec<u8> = (0..1100 * LINE_BYTES).map(|at| (at % 251) as u8).collect();
                let before = plain.clone();
                let (mut loads, mut stores, mut sum) = (0, 0, 0);
                for start in pattern.block_starts(20) {
                    for _ in 0..16 {
                        for line in 0..AccessPattern::block_lines(kind) as usize {
                            let first = (start as usize + line) * LINE_BYTES;
                            let ends = if kind == PatternKind::LabWindow { 1 } else { LINE_BYTES };
                            for (at, byte) in plain[first..first + ends].iter_mut().enumerate() {
                                let is_store = at == 0 && (kind == PatternKind::ReportBlock || line % 8 == 0);
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
                assert_eq!(pattern.run_blocks(&bytes, 20), AccessCounts { loads, stores, value_sum: sum });
                assert_eq!(pattern.expected_counts(20), (loads, stores));
                assert!(bytes.iter().zip(&plain).all(|(byte, plain)| byte.load(Relaxed) == *plain));
                let stored = pattern.stored_lines(20);
                for line in 0..1100 {
                    let is_stored = stored[line / 64] >> (line % 64) & 1 == 1;
                    assert_eq!(
                        is_stored,
                        plain[line * LINE_BYTES] == 1 && before[line * LINE_BYTES] != 1 || is_stored
                    );
                    assert!(is_stored || plain[line * LINE_BYTES] == before[line * LINE_BYTES]);
                }
            }
        }
    }

    #[test]
    fn a_store_to_eight_loads_or_so() {
        let pattern =
            |kind| AccessPattern { kind, order: BlockSequence::Sequential, line_count: 1 << 24, seed: 1 };
        // The report's own expectation over 2^21 windows: 2 G stores and 16 G accesses.
        assert_eq!(pattern(PatternKind::LabWindow).expected_counts(1 << 21), (15_032_385_536, 2_147_483_648));
        // Its text over 1 GiB: its table shows 16 906 612 066 loads.
        assert_eq!(pattern(PatternKind::ReportBlock).expected_counts(1 << 21), (16_911_433_728, 268_435_456));
    }
}
