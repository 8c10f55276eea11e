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

/// Turns, if there is no time for more.
const LEAST: usize = 3;

/// A pair at each of these sizes that the budget allows. The time of `run` is used up.
pub(super) fn pairs(run: &mut Run<'_>, budget: Bytes, sizes: &[Bytes]) -> Reading<Vec<AccessPair>> {
    let _pinned = Pinned::here();
    let most = whole(run.options.region_max.0.min(budget.0 / 2), run);
    let buffers = Buffers::new(run, most, run.deadline_ns)?;
    let most = most.min(buffers.filled);
    let sizes: Vec<u64> = sizes.iter().map(|size| size.0).filter(|&size| size <= most).collect();
    let (mut random, page) = (SplitMix64::new(run.options.seed), run.page_size.bytes());
    let mut base_ps = vec![Vec::new(); sizes.len()];
    let mut huge_ps = vec![Vec::new(); sizes.len()];
    let mut turn = 0;
    while turn < LEAST || run.left_ns() > 0 {
        for (at, &size) in sizes.iter().enumerate() {
            if turn % 2 == 0 {
                base_ps[at].push(read(&buffers.base, size, page, &mut random));
            }
            if let Ok(huge) = &buffers.huge {
                huge_ps[at].push(read(huge, size, page, &mut random));
            }
            if turn % 2 == 1 {
                base_ps[at].push(read(&buffers.base, size, page, &mut random));
            }
        }
        turn += 1;
    }
    let point = |map: &Mapping, size: u64, ps_per_access: Vec<u64>| {
        let start = map.addresses().start;
        AccessPoint {
            size: Bytes(size),
            ps_per_access,
            huge_backed: run.readback.huge_bytes(start..start + size),
        }
    };
    let timed = sizes.iter().zip(base_ps.into_iter().zip(huge_ps));
    Ok(timed
        .map(|(&size, (base_ps, huge_ps))| AccessPair {
            base: point(&buffers.base, size, base_ps),
            huge: buffers.huge.as_ref().map(|map| point(map, size, huge_ps)).map_err(Clone::clone),
        })
        .collect())
}

/// Picoseconds of CPU time of a read of a random page of the first `size` bytes, which waits for the one
/// before.
///
/// Of each page one line is read, always the same one. As many lines of data and of page tables lie between
/// two walks as if all of the page was read, but the data are a small part of the buffer and stay in the
/// inner caches: their own times, which others on the host move by more than a near walk costs, do not hide
/// it.
fn read(map: &Mapping, size: u64, page: u64, random: &mut SplitMix64) -> u64 {
    let words = map.words();
    let words_of_page = (page as usize / size_of::<u64>()).max(1);
    let pages = u128::from(size / page.max(1));
    let mut found = 0;
    let mut wander = |steps: u64| {
        for _ in 0..steps {
            // Whatever the word holds, the next page is random, and not known before it is there.
            let at = ((u128::from(random.draw() ^ found) * pages) >> 64) as usize;
            found = words.get(at * words_of_page + word_of(at, words_of_page)).copied().unwrap_or(0);
        }
    };
    wander(WARM);
    let before = clock::thread_cpu_ns();
    wander(TIMED);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    black_box(found);
    spent_ns.saturating_mul(1000) / TIMED
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
