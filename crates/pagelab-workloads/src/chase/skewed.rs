//! Dependent reads that prefer some regions: the address of each is computed from the value that was read
//! before it.
//!
//! A cycle cannot prefer regions, since each slot is on it once. Here each slot holds a random word; that
//! word, joined with the next draw of a generator, draws the next region by its share and a slot in it. The
//! draw does not wait for the read and is ready before it; what comes after the read, some twenty cycles of
//! arithmetic and a table in the inner caches, is part of every time.

use pagelab_model::Bytes;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use super::{STEPS_NAME, WORDS_BETWEEN_SLOTS, done};
use crate::options::Options;
use crate::phase::Phase;
use crate::regions::Regions;
use crate::{Done, Failed, memory};

const SLOT_BYTES: u64 = (WORDS_BETWEEN_SLOTS * size_of::<u64>()) as u64;

/// The word of a slot.
#[inline]
fn content(seed: u64, slot: u64) -> u64 {
    SplitMix64::new(seed ^ slot.rotate_left(32)).draw()
}

/// A walk: where it is, and the draws to come.
#[derive(Clone)]
struct Walk<'a> {
    regions: &'a Regions,
    random: SplitMix64,
    at: u64,
}

impl Walk<'_> {
    /// Walks `steps` slots, of which `read` says the words.
    #[inline(always)]
    fn go(&mut self, steps: u64, read: impl Fn(u64) -> u64) {
        let mut at = self.at;
        for _ in 0..steps {
            at = self.regions.slot(read(at) ^ self.random.draw());
        }
        self.at = std::hint::black_box(at);
    }
}

/// Of the steps, this part is walked a second time without memory, to check the result.
const CHECKED_PART: u64 = 16;

/// Runs the patterns `zipf` and `hot`.
pub fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let (seed, steps) = (options.number("seed"), options.number(STEPS_NAME));
    let size = Bytes(options.size("size").0 / SLOT_BYTES * SLOT_BYTES);
    let regions = Regions::of(options, size, SLOT_BYTES)?;
    let mut mapping = memory::map(options, size)?;
    let before = clock::thread_cpu_ns();
    for (slot, words) in (0..).zip(mapping.words_mut().chunks_mut(WORDS_BETWEEN_SLOTS)) {
        words[0] = content(seed, slot);
    }
    let laid_out_ns = clock::thread_cpu_ns().saturating_sub(before);
    let words = mapping.words();
    let start = Walk { regions: &regions, random: SplitMix64::new(seed), at: 0 };
    let mut walk = start.clone();
    let first = steps.div_ceil(CHECKED_PART);
    phase.begin();
    let before = clock::thread_cpu_ns();
    let read = |slot| words[slot as usize * WORDS_BETWEEN_SLOTS];
    walk.go(first, read);
    let checkpoint = walk.at;
    walk.go(steps - first, read);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();
    let mut again = start.clone();
    again.go(first, |slot| content(seed, slot));
    if again.at != checkpoint {
        let text = format!("after {first} steps at slot {checkpoint}, computed {}", again.at);
        return Err(Failed::Wrong(text));
    }
    let generated = match options.text("pattern") {
        "zipf" => format!("zipf {}", options.thousandths("zipf") as f64 / 1000.0),
        _ => format!(
            "{} of the reads in {} regions",
            options.thousandths("share") as f64 / 1000.0,
            options.number("hot")
        ),
    };
    let generated = format!(
        "{generated} over regions of {} bytes, {} slots, {steps} steps, seed {seed}",
        options.size("region").0,
        size.0 / SLOT_BYTES
    );
    let hot_regions = regions.hot(mapping.addresses().start);
    Ok(Done { hot_regions, ..done(size, steps, spent_ns, laid_out_ns, walk.at, generated) })
}
