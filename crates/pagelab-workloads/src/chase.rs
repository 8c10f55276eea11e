//! Pointer chase: dependent random reads, one at a time, over a buffer of a given size.
//!
//! Pattern: one slot in every 128 bytes, which is two cache lines of 64 bytes, the pair that prefetchers
//! fetch together; all slots linked into a single random cycle (Sattolo's shuffle, from a seed). The address
//! of each read is the value of the read before it, so that reads cannot overlap or be prefetched. A lap
//! reads every slot once, hence each base page of 4 KiB 32 times at scattered times. Two buffers of one size
//! and seed are read in the same order of offsets; if one is on base pages and the other on huge pages, the
//! caches see the same lines, and the difference is address translation: TLB misses, page walks, the cache
//! lines of page tables. There is one other difference: base pages are scattered over the sets of a
//! physically indexed cache, so near the size of such a cache they conflict more.
//!
//! First touch: building the cycle writes every slot, so no page faults during the measurement.
//!
//! Time is the CPU time of the reading thread, so that other tasks on the CPU are not counted; interrupts and
//! a hypervisor's stolen time may be.

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;

use crate::access_regions::{self, AccessRegions};
use crate::options::{
    SEED_OPTION, WorkloadOptions, choice_option, number_option, size_option, thousandths_option,
};
use crate::phase::{MeasuredPhase, time_cpu};
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};

/// The chase as a separate workload.
pub const WORKLOAD: Workload = Workload {
    name: "chase",
    description: "Dependent random reads over a buffer: each read returns the address of the next",
    generator: "one slot in every 128 bytes, each written before the first read; dependent reads. Pattern \
                uniform: all slots linked into one random cycle (Sattolo's shuffle from the seed), the value \
                read is the next address, and a lap reads every slot once. Patterns zipf and hot: the value \
                read, combined with a splitmix64 value, selects the next region by its share and a slot in \
                it uniformly; the order of regions in the buffer is random",
    options: &[
        size_option("1G", "Bytes of the buffer"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        number_option(STEPS_NAME, 1, 1 << 40, "20000000", "Number of reads"),
        choice_option(
            "pattern",
            &["uniform", "zipf", "hot"],
            "uniform",
            "Access pattern: uniform, or regions by Zipf's law, or a few hot regions preferred",
        ),
        access_regions::REGION_OPTION,
        thousandths_option(
            "zipf",
            4000,
            "1.0",
            "Pattern zipf: the share of the k-th region is proportional to 1 / k to this power",
        ),
        number_option("hot", 1, 1 << 16, "32", "Pattern hot: number of hot regions"),
        thousandths_option(
            "share",
            1000,
            "0.9",
            "Pattern hot: share of all reads that go to the hot regions",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_chase,
};

const STEPS_NAME: &str = "steps";

fn run_chase(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    match options.get_text("pattern") {
        "uniform" => run_uniform(options, phase),
        _ => run_skewed(options, phase),
    }
}

fn run_uniform(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let buffer = options.get_size("size");
    let (seed, steps) = (options.get_number("seed"), options.get_number(STEPS_NAME));
    let mut mapping = mapping::map_anonymous(options, buffer)?;
    let (_, link_ns) = time_cpu(|| link_cycle(mapping.words_mut(), seed, || true));
    let mut chase = PointerChase::new(mapping.words());
    if chase.slot_count() < 2 {
        return Err(WorkloadError::InvalidOptions(
            "size: a chase needs at least two slots of 128 bytes".to_owned(),
        ));
    }
    let ((), elapsed_ns) = phase.measure_cpu(|| chase.walk(steps));
    let checksum = chase.position as u64;
    // A lap ends where it began, so the place after all steps is that after the part of a lap.
    let mut again = PointerChase::new(mapping.words());
    again.walk(steps % again.slot_count());
    if again.position as u64 != checksum {
        return Err(WorkloadError::WrongResult(format!(
            "after {steps} steps at word {checksum}; expected {} from the number of laps",
            again.position
        )));
    }
    let generated_input = format!("uniform over {} slots, {steps} steps, seed {seed}", chase.slot_count());
    Ok(build_result(chase.span_bytes(), steps, elapsed_ns, link_ns, checksum, generated_input))
}

fn build_result(
    size: Bytes,
    steps: u64,
    elapsed_ns: u64,
    link_ns: u64,
    checksum: u64,
    generated_input: String,
) -> WorkloadResult {
    let value = elapsed_ns as f64 / steps as f64;
    let lay_out = Figure::time("lay_out_cpu", link_ns as f64);
    WorkloadResult {
        figure_of_merit: Figure::time("read time", value),
        working_set: size,
        checksum,
        latencies: None,
        figures: vec![lay_out],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input,
    }
}

/// Words from one slot to the next: 128 bytes.
pub const WORDS_BETWEEN_SLOTS: usize = 16;

/// A buffer whose slots form one cycle, and where the next read starts.
pub struct PointerChase<'a> {
    words: &'a [u64],
    position: usize,
}

/// Slots that are linked between two checks for a stop: about a millisecond.
const SLOTS_PER_CHECK: usize = 1 << 15;

/// Links the slots of `words` into one random cycle that `seed` decides. Every slot is written. Asks
/// `should_continue` now and then; if it returns false, the words are not one cycle and the result is
/// `false`.
///
/// Sattolo's shuffle runs in place: slot i holds the index of the word that follows it. It needs no memory
/// beside the buffer, and its writes are independent of each other, hence much faster than the chase.
pub fn link_cycle(words: &mut [u64], seed: u64, mut should_continue: impl FnMut() -> bool) -> bool {
    let slots = words.len() / WORDS_BETWEEN_SLOTS;
    for slot in 0..slots {
        words[slot * WORDS_BETWEEN_SLOTS] = (slot * WORDS_BETWEEN_SLOTS) as u64;
    }
    let mut random = SplitMix64::new(seed);
    for slot in (1..slots).rev() {
        let other = random.next_below(slot as u64) as usize;
        words.swap(slot * WORDS_BETWEEN_SLOTS, other * WORDS_BETWEEN_SLOTS);
        if slot.is_multiple_of(SLOTS_PER_CHECK) && !should_continue() {
            return false;
        }
    }
    true
}

impl<'a> PointerChase<'a> {
    /// A chase over words that [`link_cycle`] linked. It starts at the first slot.
    pub fn new(words: &'a [u64]) -> PointerChase<'a> {
        PointerChase { words, position: 0 }
    }

    /// Slots on the cycle: the steps of one lap.
    pub fn slot_count(&self) -> u64 {
        (self.words.len() / WORDS_BETWEEN_SLOTS) as u64
    }

    /// Bytes from the first to the last slot, with its lines.
    pub fn span_bytes(&self) -> Bytes {
        Bytes((self.words.len() / WORDS_BETWEEN_SLOTS * WORDS_BETWEEN_SLOTS * size_of::<u64>()) as u64)
    }

    /// Reads `steps` slots, each found by the one before.
    pub fn walk(&mut self, steps: u64) {
        let mut at = self.position;
        for _ in 0..steps {
            // The check of the bound depends on the loaded value but is predicted, so it does not delay the
            // next load.
            at = self.words[at] as usize;
        }
        self.position = std::hint::black_box(at);
    }

    /// Walks `steps` slots and returns the picoseconds of CPU time that one took; 0 steps take 0.
    pub fn measure(&mut self, steps: u64) -> u64 {
        let ((), elapsed_ns) = time_cpu(|| self.walk(steps));
        elapsed_ns.saturating_mul(1000).checked_div(steps).unwrap_or(0)
    }
}

// Dependent reads that prefer some regions: the address of each is computed from the value of the read
// before it.
//
// A cycle cannot prefer regions, since it has each slot once. Here each slot holds a random word; that word,
// combined with the next value of a generator, selects the next region by its share and a slot in it. The
// generator does not wait for the read and is ready before it; the work after the read, some twenty cycles
// of arithmetic and a table in the inner caches, is part of every time.

const SLOT_BYTES: u64 = (WORDS_BETWEEN_SLOTS * size_of::<u64>()) as u64;

#[inline]
fn slot_word(seed: u64, slot: u64) -> u64 {
    SplitMix64::new(seed ^ slot.rotate_left(32)).next_u64()
}

/// A walk: where it is, and the draws to come.
#[derive(Clone)]
struct RandomWalk<'a> {
    regions: &'a AccessRegions,
    random: SplitMix64,
    position: u64,
}

impl RandomWalk<'_> {
    /// Walks `steps` slots, whose words `read` returns.
    #[inline(always)]
    fn advance(&mut self, steps: u64, read: impl Fn(u64) -> u64) {
        let mut at = self.position;
        for _ in 0..steps {
            at = self.regions.draw_slot(read(at) ^ self.random.next_u64());
        }
        self.position = std::hint::black_box(at);
    }
}

/// Of the steps, this part is walked a second time without memory, to check the result.
const CHECK_DIVISOR: u64 = 16;

/// Runs the patterns `zipf` and `hot`.
fn run_skewed(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (seed, steps) = (options.get_number("seed"), options.get_number(STEPS_NAME));
    let size = Bytes(options.get_size("size").0 / SLOT_BYTES * SLOT_BYTES);
    let regions = AccessRegions::from_options(options, size, SLOT_BYTES)?;
    let mut mapping = mapping::map_anonymous(options, size)?;
    let ((), fill_ns) = time_cpu(|| {
        for (slot, words) in (0..).zip(mapping.words_mut().chunks_mut(WORDS_BETWEEN_SLOTS)) {
            words[0] = slot_word(seed, slot);
        }
    });
    let words = mapping.words();
    let start = RandomWalk { regions: &regions, random: SplitMix64::new(seed), position: 0 };
    let mut walk = start.clone();
    let first = steps.div_ceil(CHECK_DIVISOR);
    let (checkpoint, elapsed_ns) = phase.measure_cpu(|| {
        let read = |slot| words[slot as usize * WORDS_BETWEEN_SLOTS];
        walk.advance(first, read);
        let checkpoint = walk.position;
        walk.advance(steps - first, read);
        checkpoint
    });
    let mut again = start.clone();
    again.advance(first, |slot| slot_word(seed, slot));
    if again.position != checkpoint {
        let text = format!("after {first} steps at slot {checkpoint}; expected {}", again.position);
        return Err(WorkloadError::WrongResult(text));
    }
    let generated_input = match options.get_text("pattern") {
        "zipf" => format!("zipf {}", options.get_thousandths("zipf") as f64 / 1000.0),
        _ => format!(
            "{} of the reads in {} regions",
            options.get_thousandths("share") as f64 / 1000.0,
            options.get_number("hot")
        ),
    };
    let generated_input = format!(
        "{generated_input} over regions of {} bytes, {} slots, {steps} steps, seed {seed}",
        options.get_size("region").0,
        size.0 / SLOT_BYTES
    );
    let hot_regions = regions.hot_regions(mapping.addresses().start);
    Ok(WorkloadResult {
        hot_regions,
        ..build_result(size, steps, elapsed_ns, fill_ns, walk.position, generated_input)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_on_the_one_cycle() {
        for slots in [1usize, 2, 3, 64, 1000] {
            for seed in [0, 1, 99] {
                let mut words = vec![0u64; slots * WORDS_BETWEEN_SLOTS];
                assert!(link_cycle(&mut words, seed, || true));
                let mut seen = vec![false; slots];
                let mut chase = PointerChase::new(&words);
                for _ in 0..slots {
                    chase.walk(1);
                    let slot = chase.position / WORDS_BETWEEN_SLOTS;
                    assert_eq!(chase.position % WORDS_BETWEEN_SLOTS, 0);
                    assert!(
                        !std::mem::replace(&mut seen[slot], true),
                        "slot {slot} of {slots} was visited \
                                                                        twice"
                    );
                }
                assert_eq!(chase.position, 0, "a lap ends where it began");
            }
        }
    }

    #[test]
    fn laying_out_stops_when_told() {
        let mut words = vec![0u64; (SLOTS_PER_CHECK + 2) * WORDS_BETWEEN_SLOTS];
        assert!(!link_cycle(&mut words, 1, || false));
    }

    #[test]
    fn orders_follow_the_seed() {
        let order = |seed| {
            let mut words = vec![0u64; 512 * WORDS_BETWEEN_SLOTS];
            assert!(link_cycle(&mut words, seed, || true));
            words
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn no_two_following_reads_are_neighbours_more_often_than_chance() {
        let mut words = vec![0u64; 4096 * WORDS_BETWEEN_SLOTS];
        assert!(link_cycle(&mut words, 5, || true));
        let near = words
            .iter()
            .step_by(WORDS_BETWEEN_SLOTS)
            .enumerate()
            .filter(|&(slot, &next)| (next as usize / WORDS_BETWEEN_SLOTS).abs_diff(slot) <= 1);
        assert!(near.count() < 12, "of 4096 random links about 2 lead to a neighbour");
    }
}
