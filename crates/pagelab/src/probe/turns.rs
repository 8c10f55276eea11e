//! Times of dependent random reads at several sizes, in turns that go over all sizes again and again.
//!
//! What else runs on the machine, and beside it on its host, takes a part of the shared caches, and more in
//! one second than in another. Sizes that are measured one after the other are then no curve.

use std::hint::black_box;

use pagelab_model::probe::{AccessPair, AccessPoint};
use pagelab_model::seed::SplitMix64;
use pagelab_model::{Bytes, Reading};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::clock;
use pagelab_sys::map::Mapping;

use super::Run;
use super::access::{Buffers, whole};

/// Reads of one turn: first those that bring the caches to hold of this buffer what they will, then the
/// timed ones.
const WARM: u64 = 1 << 14;
const TIMED: u64 = 1 << 16;
/// Windows are for what stays in the inner caches, and these come to hold all of the span.
const WARM_WINDOWS: u64 = 1 << 16;

/// Turns, if there is no time for more.
const LEAST: usize = 3;

/// What is read of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Pages of the first so many bytes.
    pub size: Bytes,
    /// In windows of so many bytes, drawn by chance one after another, of which each page is read once in
    /// random order; `None`: any page may be next.
    pub window: Option<Bytes>,
}

/// A pair for each of these spans that the budget allows. The time of `run` is used up.
pub(super) fn pairs(run: &mut Run<'_>, budget: Bytes, spans: &[Span]) -> Reading<Vec<(Span, AccessPair)>> {
    let _pinned = Pinned::here();
    let most = whole(run.options.region_max.0.min(budget.0 / 2), run);
    let buffers = Buffers::new(run, most, run.deadline_ns)?;
    let most = most.min(buffers.filled);
    let spans: Vec<Span> = spans.iter().copied().filter(|span| span.size.0 <= most).collect();
    let (mut random, page) = (SplitMix64::new(run.options.seed), run.page_size.bytes());
    let mut base_ps = vec![Vec::new(); spans.len()];
    let mut huge_ps = vec![Vec::new(); spans.len()];
    let mut turn = 0;
    while turn < LEAST || run.left_ns() > 0 {
        for (at, &span) in spans.iter().enumerate() {
            if turn % 2 == 0 {
                base_ps[at].push(read(&buffers.base, span, page, &mut random));
            }
            if let Ok(huge) = &buffers.huge {
                huge_ps[at].push(read(huge, span, page, &mut random));
            }
            if turn % 2 == 1 {
                base_ps[at].push(read(&buffers.base, span, page, &mut random));
            }
        }
        turn += 1;
    }
    let point = |map: &Mapping, size: Bytes, ps_per_access: Vec<u64>| {
        let start = map.addresses().start;
        AccessPoint { size, ps_per_access, huge_backed: run.readback.huge_bytes(start..start + size.0) }
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

/// Picoseconds of CPU time of a read of a random page, which waits for the one before.
///
/// Of each page one line is read, always the same one. As many lines of data and of page tables lie between
/// two walks as if all of the page was read, but the data are a small part of the buffer and stay in the
/// inner caches: their own times, which others on the host move by more than a near walk costs, do not hide
/// it.
fn read(map: &Mapping, span: Span, page: u64, random: &mut SplitMix64) -> u64 {
    let words = map.words();
    let words_of_page = (page as usize / size_of::<u64>()).max(1);
    let mut order = Order::of(span, page);
    let mut found = 0;
    let mut wander = |steps: u64| {
        for _ in 0..steps {
            let at = order.next(random, found);
            found = words.get(at * words_of_page + word_of(at, words_of_page)).copied().unwrap_or(0);
        }
    };
    wander(if span.window.is_some() { WARM_WINDOWS } else { WARM });
    let before = clock::thread_cpu_ns();
    wander(TIMED);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    black_box(found);
    spent_ns.saturating_mul(1000) / TIMED
}

/// In which order pages are read.
struct Order {
    /// Pages of the whole span, and of a window: a power of two, or 0 without windows.
    pages: u64,
    window: u64,
    /// The window's first page, how many of its pages were read, and the two numbers of its order.
    from: u64,
    done: u64,
    mixer: (u64, u64),
    /// 0, which the compiler does not know.
    nothing: u64,
}

impl Order {
    fn of(span: Span, page: u64) -> Order {
        let pages = |size: Bytes| size.0 / page.max(1);
        let window = span.window.map_or(0, |size| (pages(size).max(2) / 2 + 1).next_power_of_two());
        Order { pages: pages(span.size), window, from: 0, done: window, mixer: (1, 0), nothing: black_box(0) }
    }

    /// The next page, which is not known before `found` is there.
    fn next(&mut self, random: &mut SplitMix64, found: u64) -> usize {
        let below = |drawn: u64, bound: u64| ((u128::from(drawn) * u128::from(bound)) >> 64) as u64;
        if self.window == 0 {
            // Whatever the word holds, the next page is random.
            return below(random.draw() ^ found, self.pages) as usize;
        }
        if self.done == self.window {
            self.from = below(random.draw(), (self.pages / self.window).max(1)) * self.window;
            self.mixer = (random.draw() | 1, random.draw());
            self.done = 0;
        }
        // A bijection of the numbers below a power of two: an odd factor, and the upper half on the lower.
        let mixed = self.done.wrapping_mul(self.mixer.0).wrapping_add(self.mixer.1) & (self.window - 1);
        let mixed = mixed ^ (mixed >> (self.window.ilog2().div_ceil(2)).max(1));
        self.done += 1;
        (self.from + mixed + (found & self.nothing)) as usize
    }
}

/// Which word of a page is read: by chance, so that the pages share out all sets of the caches.
fn word_of(page: usize, words_of_page: usize) -> usize {
    // Fibonacci hashing: the upper half of the product depends on all bits of the number.
    let mixed = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed as usize % words_of_page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a window each page is read once, then comes another, and none is outside of the span.
    #[test]
    fn a_window_is_read_once_and_whole() {
        let mut random = SplitMix64::new(5);
        for (size, window) in [(1 << 20, 16), (1 << 20, 128), (3 << 20, 512)] {
            let span = Span { size: Bytes(size), window: Some(Bytes(window << 12)) };
            let mut order = Order::of(span, 4096);
            let mut firsts = std::collections::BTreeSet::new();
            for _ in 0..40 {
                let mut seen: Vec<u64> =
                    (0..window).map(|at| order.next(&mut random, at * 7) as u64).collect();
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

    /// One word of each page, always the same, and the words lie in all lines of a page alike.
    #[test]
    fn a_page_is_read_at_one_place_and_pages_at_all() {
        let mut lines = [0u32; 64];
        for page in 0..6400 {
            let word = word_of(page, 512);
            assert_eq!(word, word_of(page, 512));
            lines[word / 8] += 1;
        }
        assert!(lines.iter().all(|&pages| (50..=200).contains(&pages)), "{lines:?}");
    }
}
