//! The pointer chase: dependent random reads, one at a time, over a buffer of a given size.
//!
//! Pattern: one slot in every 128 bytes, which is two cache lines of 64 bytes, the pair that prefetchers
//! fetch together; all slots linked into a single random cycle (Sattolo's shuffle, from a seed). The address
//! of each read is the value of the read before it, so that nothing overlaps or can be prefetched. A lap
//! reads every slot once, hence each base page of 4 KiB 32 times at scattered moments. Two buffers of one
//! size and seed are read in the same order of offsets; if one lies on base pages and the other on huge
//! pages, the caches see the same lines, and what differs is address translation: TLB misses, page walks, the
//! cache lines that page tables take. One thing differs besides: base pages are scattered over the sets of a
//! physically indexed cache, so near the size of such a cache they conflict more.
//! Patterns that prefer some regions are in `skewed`.
//!
//! First touch: laying out writes every slot, so no page is left to fault while time is taken.
//!
//! Time is the CPU time of the reading thread, so that other tasks on the CPU are not counted; interrupts and
//! a hypervisor's stolen time may be.

mod skewed;

use std::fmt;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory, regions};

/// The chase as a workload of its own.
pub const WORKLOAD: Workload = Workload {
    name: "chase",
    about: "Dependent random reads over a buffer: each address comes from the value that was read before it",
    generator: "one slot in every 128 bytes, each written before the first read; dependent reads. Pattern \
                uniform: all slots linked into one random cycle (Sattolo's shuffle from the seed), the \
                value read is the next address, and a lap reads every slot once. Patterns zipf and hot: \
                the value read, joined with a draw of splitmix64, picks the next region by its share and \
                a slot in it evenly; the order of regions in the buffer is by chance",
    options: &[
        size("1G", "Bytes of the buffer"),
        SEED,
        memory::ADVISE,
        STEPS,
        PATTERN,
        regions::REGION,
        ZIPF,
        HOT,
        SHARE,
    ],
    forks: false,
    run,
};

const STEPS_NAME: &str = "steps";
const STEPS: OptionHead = OptionHead {
    name: STEPS_NAME,
    kind: Kind::Number(1, 1 << 40),
    default: "20000000",
    help: "How many reads",
};
const PATTERN: OptionHead = OptionHead {
    name: "pattern",
    kind: Kind::Word(&["uniform", "zipf", "hot"]),
    default: "uniform",
    help: "Which slots are preferred: none, those of regions by Zipf's law, those of a few hot regions",
};
const ZIPF: OptionHead = OptionHead {
    name: "zipf",
    kind: Kind::Thousandths(4000),
    default: "1.0",
    help: "Pattern zipf: region k of the order has a share that goes with 1 / k to this power",
};
const HOT: OptionHead = OptionHead {
    name: "hot",
    kind: Kind::Number(1, 1 << 16),
    default: "32",
    help: "Pattern hot: how many regions are hot",
};
const SHARE: OptionHead = OptionHead {
    name: "share",
    kind: Kind::Thousandths(1000),
    default: "0.9",
    help: "Pattern hot: the share of all reads that goes to the hot regions",
};

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    match options.text("pattern") {
        "uniform" => uniform(options, phase),
        _ => skewed::run(options, phase),
    }
}

fn uniform(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let buffer = options.size("size");
    let (seed, steps) = (options.number("seed"), options.number(STEPS_NAME));
    let mut mapping = memory::map(options, buffer)?;
    let before = clock::thread_cpu_ns();
    lay_out(mapping.words_mut(), seed, || true);
    let laid_out_ns = clock::thread_cpu_ns().saturating_sub(before);
    let mut chase = Chase::new(mapping.words());
    if chase.slots() < 2 {
        return Err(Failed::Options("size: a chase needs two slots of 128 bytes or more".to_owned()));
    }
    phase.begin();
    let before = clock::thread_cpu_ns();
    chase.walk(steps);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();
    let checksum = chase.at as u64;
    // A lap ends where it began, so the place after all steps is that after the part of a lap.
    let mut again = Chase::new(mapping.words());
    again.walk(steps % again.slots());
    if again.at as u64 != checksum {
        return Err(Failed::Wrong(format!("after {steps} steps at word {checksum}, by laps {}", again.at)));
    }
    let generated = format!("uniform over {} slots, {steps} steps, seed {seed}", chase.slots());
    Ok(done(chase.size(), steps, spent_ns, laid_out_ns, checksum, generated))
}

/// What all patterns say.
fn done(size: Bytes, steps: u64, spent_ns: u64, laid_out_ns: u64, checksum: u64, generated: String) -> Done {
    let value = spent_ns as f64 / steps as f64;
    let lay_out = Figure::new("lay_out_cpu", "ns", Better::Lower, laid_out_ns as f64);
    Done {
        merit: Merit { name: "read time", unit: "ns", better: Better::Lower, value },
        working_set: size,
        checksum,
        latencies: None,
        figures: vec![lay_out],
        hot_regions: Vec::new(),
        generated,
    }
}

/// Words from one slot to the next: 128 bytes.
pub const WORDS_BETWEEN_SLOTS: usize = 16;

/// A buffer whose slots form one cycle, and where the next read starts.
pub struct Chase<'a> {
    words: &'a [u64],
    at: usize,
}

impl fmt::Debug for Chase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chase over {} slots at word {}", self.words.len() / WORDS_BETWEEN_SLOTS, self.at)
    }
}

/// Slots that are linked between two questions whether to go on: about a millisecond.
const SLOTS_BETWEEN_QUESTIONS: usize = 1 << 15;

/// Links the slots of `words` into one random cycle that `seed` decides. Every slot is written. Asks `go_on`
/// now and then; if it says no, the words are not one cycle and the answer is `false`.
///
/// Sattolo's shuffle runs in place: slot i holds the index of the word that follows it. It needs no memory
/// beside the buffer, and its writes are independent of each other, hence much faster than the chase.
pub fn lay_out(words: &mut [u64], seed: u64, mut go_on: impl FnMut() -> bool) -> bool {
    let slots = words.len() / WORDS_BETWEEN_SLOTS;
    for slot in 0..slots {
        words[slot * WORDS_BETWEEN_SLOTS] = (slot * WORDS_BETWEEN_SLOTS) as u64;
    }
    let mut random = SplitMix64::new(seed);
    for slot in (1..slots).rev() {
        let other = random.below(slot as u64) as usize;
        words.swap(slot * WORDS_BETWEEN_SLOTS, other * WORDS_BETWEEN_SLOTS);
        if slot.is_multiple_of(SLOTS_BETWEEN_QUESTIONS) && !go_on() {
            return false;
        }
    }
    true
}

impl<'a> Chase<'a> {
    /// A chase over words that [`lay_out`] linked. It starts at the first slot.
    pub fn new(words: &'a [u64]) -> Chase<'a> {
        Chase { words, at: 0 }
    }

    /// Slots on the cycle: the steps of one lap.
    pub fn slots(&self) -> u64 {
        (self.words.len() / WORDS_BETWEEN_SLOTS) as u64
    }

    /// Bytes from the first to the last slot, with its lines.
    pub fn size(&self) -> Bytes {
        Bytes((self.words.len() / WORDS_BETWEEN_SLOTS * WORDS_BETWEEN_SLOTS * size_of::<u64>()) as u64)
    }

    /// Reads `steps` slots, each found by the one before.
    pub fn walk(&mut self, steps: u64) {
        let mut at = self.at;
        for _ in 0..steps {
            // The check of the bound depends on the loaded value but is predicted, so it does not delay the
            // next load.
            at = self.words[at] as usize;
        }
        self.at = std::hint::black_box(at);
    }

    /// Walks `steps` slots and returns the picoseconds of CPU time that one took; 0 steps take 0.
    pub fn measure(&mut self, steps: u64) -> u64 {
        let before = clock::thread_cpu_ns();
        self.walk(steps);
        let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
        spent_ns.saturating_mul(1000).checked_div(steps).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_on_the_one_cycle() {
        for slots in [1usize, 2, 3, 64, 1000] {
            for seed in [0, 1, 99] {
                let mut words = vec![0u64; slots * WORDS_BETWEEN_SLOTS];
                assert!(lay_out(&mut words, seed, || true));
                let mut seen = vec![false; slots];
                let mut chase = Chase::new(&words);
                for _ in 0..slots {
                    chase.walk(1);
                    let slot = chase.at / WORDS_BETWEEN_SLOTS;
                    assert_eq!(chase.at % WORDS_BETWEEN_SLOTS, 0);
                    assert!(!std::mem::replace(&mut seen[slot], true), "slot {slot} of {slots} came twice");
                }
                assert_eq!(chase.at, 0, "a lap ends where it began");
            }
        }
    }

    #[test]
    fn laying_out_stops_when_told() {
        let mut words = vec![0u64; (SLOTS_BETWEEN_QUESTIONS + 2) * WORDS_BETWEEN_SLOTS];
        assert!(!lay_out(&mut words, 1, || false));
    }

    #[test]
    fn orders_follow_the_seed() {
        let order = |seed| {
            let mut words = vec![0u64; 512 * WORDS_BETWEEN_SLOTS];
            assert!(lay_out(&mut words, seed, || true));
            words
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn no_two_following_reads_are_neighbours_more_often_than_chance() {
        let mut words = vec![0u64; 4096 * WORDS_BETWEEN_SLOTS];
        assert!(lay_out(&mut words, 5, || true));
        let near = words
            .iter()
            .step_by(WORDS_BETWEEN_SLOTS)
            .enumerate()
            .filter(|&(slot, &next)| (next as usize / WORDS_BETWEEN_SLOTS).abs_diff(slot) <= 1);
        assert!(near.count() < 12, "of 4096 random links about 2 lead to a neighbour");
    }
}
