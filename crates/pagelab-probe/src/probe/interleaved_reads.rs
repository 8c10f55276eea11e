//! Latency of dependent random reads at several sizes, interleaved over all sizes.
//!
//! Other load on the machine, and on its host, takes a varying part of the shared caches. Sizes that are
//! measured one after the other therefore do not form a curve.

use std::hint::black_box;

use pagelab_model::probe::{AccessPair, AccessPoint};
use pagelab_model::random::SplitMix64;
use pagelab_model::{Bytes, Reading};
use pagelab_sys::clock;
use pagelab_sys::mapping::Mapping;
use pagelab_sys::scheduling::PinnedThread;

use super::ProbeState;
use super::access::{BufferPair, round_to_pages};

/// Reads of one turn: first the reads that warm the caches for this buffer, then the timed reads.
const WARM_READS: u64 = 1 << 14;
const TIMED_READS: u64 = 1 << 16;
/// Windows measure data that stays in the inner caches, which hold the whole span in the end.
const WARM_WINDOW_READS: u64 = 1 << 16;

/// Minimum number of turns, even without time.
const ROUNDS_MIN: usize = 3;

/// Part of a buffer that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSpan {
    /// Pages of the first bytes of this size.
    pub size: Bytes,
    /// In random windows of this size, of which each page is read once in random order; `None`: any page may
    /// be next.
    pub window: Option<Bytes>,
}

/// A pair for each of these spans that the budget allows. The time of `run` is used up.
pub fn measure_span_pairs(
    run: &mut ProbeState<'_>,
    budget: Bytes,
    spans: &[ReadSpan],
) -> Reading<Vec<(ReadSpan, AccessPair)>> {
    let _pinned = PinnedThread::to_current_cpu();
    let most = round_to_pages(run.options.region_max.0.min(budget.0 / 2), run);
    let buffers = BufferPair::new(run, most, run.deadline_ns)?;
    let most = most.min(buffers.populated_bytes);
    let spans: Vec<ReadSpan> = spans.iter().copied().filter(|span| span.size.0 <= most).collect();
    let (mut random, page) = (SplitMix64::new(run.options.seed), run.page_size.bytes());
    let mut base_ps = vec![Vec::new(); spans.len()];
    let mut huge_ps = vec![Vec::new(); spans.len()];
    let mut round = 0;
    while round < ROUNDS_MIN || run.remaining_ns() > 0 {
        for (at, &span) in spans.iter().enumerate() {
            if round % 2 == 0 {
                base_ps[at].push(time_reads(&buffers.base, span, page, &mut random));
            }
            if let Ok(huge) = &buffers.huge {
                huge_ps[at].push(time_reads(huge, span, page, &mut random));
            }
            if round % 2 == 1 {
                base_ps[at].push(time_reads(&buffers.base, span, page, &mut random));
            }
        }
        round += 1;
    }
    let point = |map: &Mapping, size: Bytes, ps_per_access: Vec<u64>| {
        let start = map.addresses().start;
        AccessPoint { size, ps_per_access, huge_backed: run.readback.count_huge_bytes(start..start + size.0) }
    };
    let timed = spans.iter().zip(base_ps.into_iter().zip(huge_ps));
    Ok(timed
        .map(|(&span, (base_ps, huge_ps))| {
            let base = point(&buffers.base, span.size, base_ps);
            let huge = buffers.huge.as_ref().map(|map| point(map, span.size, huge_ps)).map_err(Clone::clone);
            (span, AccessPair { base, huge })
        })
        .collect())
}

/// Returns the CPU time of a read of a random page that depends on the previous read, in picoseconds.
///
/// One line of each page is read, always the same one. The numbers of lines of data and of page tables
/// between two page walks are the same as if the entire page was read, but the data are a small part of the
/// buffer and stay in the inner caches. So their latency, which other guests on the host change by more than
/// the cost of a near walk, does not hide this cost.
fn time_reads(map: &Mapping, span: ReadSpan, page: u64, random: &mut SplitMix64) -> u64 {
    let words = map.words();
    let words_of_page = (page as usize / size_of::<u64>()).max(1);
    let mut order = PageSequence::new(span, page);
    let mut value = 0;
    let mut wander = |steps: u64| {
        for _ in 0..steps {
            let at = order.next_page_word(random, value);
            value = words.get(at * words_of_page + word_of_page(at, words_of_page)).copied().unwrap_or(0);
        }
    };
    wander(if span.window.is_some() { WARM_WINDOW_READS } else { WARM_READS });
    let before = clock::thread_cpu_ns();
    wander(TIMED_READS);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    black_box(value);
    spent_ns.saturating_mul(1000) / TIMED_READS
}

/// Order in which pages are read.
struct PageSequence {
    /// Pages of the entire span, and of a window: a power of two, or 0 without windows.
    span_pages: u64,
    window_pages: u64,
    /// The window's first page, the number of its pages read so far, and the two parameters of its order.
    window_start: u64,
    pages_read: u64,
    mixer: (u64, u64),
    /// A 0 that the compiler cannot know.
    opaque_zero: u64,
}

impl PageSequence {
    fn new(span: ReadSpan, page: u64) -> PageSequence {
        let pages = |size: Bytes| size.0 / page.max(1);
        let window = span.window.map_or(0, |size| (pages(size).max(2) / 2 + 1).next_power_of_two());
        PageSequence {
            span_pages: pages(span.size),
            window_pages: window,
            window_start: 0,
            pages_read: window,
            mixer: (1, 0),
            opaque_zero: black_box(0),
        }
    }

    /// Returns the next page, which depends on `value`.
    fn next_page_word(&mut self, random: &mut SplitMix64, value: u64) -> usize {
        let below = |drawn: u64, bound: u64| ((u128::from(drawn) * u128::from(bound)) >> 64) as u64;
        if self.window_pages == 0 {
            // The next page is random, independent of the word's contents.
            return below(random.next_u64() ^ value, self.span_pages) as usize;
        }
        if self.pages_read == self.window_pages {
            self.window_start =
                below(random.next_u64(), (self.span_pages / self.window_pages).max(1)) * self.window_pages;
            self.mixer = (random.next_u64() | 1, random.next_u64());
            self.pages_read = 0;
        }
        // A bijection of the numbers below a power of two: an odd factor, and the upper half mixed into the
        // lower.
        let mixed =
            self.pages_read.wrapping_mul(self.mixer.0).wrapping_add(self.mixer.1) & (self.window_pages - 1);
        let mixed = mixed ^ (mixed >> (self.window_pages.ilog2().div_ceil(2)).max(1));
        self.pages_read += 1;
        (self.window_start + mixed + (value & self.opaque_zero)) as usize
    }
}

/// Returns the word of a page that is read: pseudo-random, so that the pages spread over all sets of the
/// caches.
fn word_of_page(page: usize, words_of_page: usize) -> usize {
    // Fibonacci hashing: the upper half of the product depends on all bits of the number.
    let mixed = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed as usize % words_of_page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each page of a window is read once, then another window follows, and no page is outside of the span.
    #[test]
    fn a_window_is_read_once_and_whole() {
        let mut random = SplitMix64::new(5);
        for (size, window) in [(1 << 20, 16), (1 << 20, 128), (3 << 20, 512)] {
            let span = ReadSpan { size: Bytes(size), window: Some(Bytes(window << 12)) };
            let mut order = PageSequence::new(span, 4096);
            let mut firsts = std::collections::BTreeSet::new();
            for _ in 0..40 {
                let mut seen: Vec<u64> =
                    (0..window).map(|at| order.next_page_word(&mut random, at * 7) as u64).collect();
                let was_sorted = seen.is_sorted();
                seen.sort_unstable();
                assert!(!was_sorted || window < 32, "{seen:?}");
                let whole: Vec<u64> = (seen[0]..seen[0] + window).collect();
                assert_eq!(seen, whole);
                assert!(seen[0] + window <= size >> 12);
                firsts.insert(seen[0]);
            }
            let windows = (size >> 12) / window;
            assert!(firsts.len() as u64 >= windows.min(2) && firsts.iter().all(|at| at % window == 0));
        }
    }

    /// One word of each page, always the same, and the words are spread evenly over all lines of a page.
    #[test]
    fn a_page_is_read_at_one_place_and_pages_at_all() {
        let mut lines = [0u32; 64];
        for page in 0..6400 {
            let word = word_of_page(page, 512);
            assert_eq!(word, word_of_page(page, 512));
            lines[word / 8] += 1;
        }
        assert!(lines.iter().all(|&pages| (50..=200).contains(&pages)), "{lines:?}");
    }
}
