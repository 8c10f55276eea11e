//! What reads cost that miss all caches: the floor under what the engines do.

use pagelab_metrics::statistics::Statistics;
use pagelab_model::Bytes;
use pagelab_model::seed::SplitMix64;
use pagelab_sim::words::Shape;
use pagelab_sys::clock;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_workloads::chase::{Chase, lay_out};

use super::Args;
use super::engines::HUGE;

/// Reads of a turn.
const READS: u64 = 1 << 20;
/// The largest buffer that is read, in bytes.
const MAX: u64 = 1 << 30;

/// One size.
pub struct Floor {
    /// The buffer, on huge pages: nine bytes a frame, at most 1 GiB.
    pub buffer: Bytes,
    /// Picoseconds of a read that waits for the one before.
    pub waiting_ps: f64,
    /// Picoseconds of a read that waits for none.
    pub free_ps: f64,
}

/// Measures it; `None`: no memory was to be had.
pub fn floor(shape: Shape, args: &Args) -> Option<Floor> {
    let buffer = Bytes((u64::from(shape.frames) * 9).clamp(1 << 20, MAX));
    let mut map = Mapping::anonymous(buffer, Bytes(HUGE as u64)).ok()?;
    map.advise(0..map.len().0, Advice::HugePage).ok()?;
    lay_out(map.words_mut(), args.seed, || true);
    let mut chase = Chase::new(map.words());
    chase.walk(READS);
    let waiting = (0..args.turns).map(|_| chase.measure(READS) as f64).collect();
    let mut random = SplitMix64::new(args.seed);
    let free = (0..args.turns).map(|_| independent(map.words(), &mut random)).collect();
    let median = |turns: Vec<f64>| Statistics::of(turns).map(|found| found.median);
    Some(Floor { buffer, waiting_ps: median(waiting)?, free_ps: median(free)? })
}

/// Reads at places that are known ahead.
fn independent(words: &[u64], random: &mut SplitMix64) -> f64 {
    let before = clock::thread_cpu_ns();
    let mut sum = 0u64;
    for _ in 0..READS {
        sum = sum.wrapping_add(words[random.below(words.len() as u64) as usize]);
    }
    std::hint::black_box(sum);
    (clock::thread_cpu_ns().saturating_sub(before) * 1000) as f64 / READS as f64
}
