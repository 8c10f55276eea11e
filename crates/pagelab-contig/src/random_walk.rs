//! Random fragmentation: memory is filled, then a random walk frees single pages.
//!
//! The walk is that of a course report on fragmentation: chunks of 24 MiB; from the start of each chunk in
//! random steps of 1 to 63 pages, and at each place with probability 1/2 one page is freed with
//! `MADV_DONTNEED`. So one page of 64 is freed. Choices that the report leaves open are options: see
//! [`FillOrder`].

use std::io;
use std::ops::RangeInclusive;

use pagelab_model::random::SplitMix64;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::mapping::{Advice, Mapping};

use crate::fragment::fragmenter::ignore_unsupported;

/// How a chunk is walked.
#[derive(Clone, Debug, PartialEq)]
pub struct WalkOptions {
    /// Bytes of a chunk: whole pages.
    pub chunk_size: Bytes,
    /// The least and the most pages of a step; at least 1.
    pub step_pages: RangeInclusive<u64>,
    /// Probability that a page at which the walk stops is freed, 0 to 1.
    pub free_probability: f64,
}

impl Default for WalkOptions {
    fn default() -> WalkOptions {
        WalkOptions { chunk_size: Bytes(24 << 20), step_pages: 1..=63, free_probability: 0.5 }
    }
}

impl WalkOptions {
    /// Freed pages of one chunk, ascending. The step is generated before the coin, as in the report's code.
    pub fn sample_holes(&self, chunk_pages: u64, random: &mut SplitMix64) -> Vec<u64> {
        let (least, most) = (*self.step_pages.start(), *self.step_pages.end());
        let choices = most.saturating_sub(least).saturating_add(1);
        // Number of 2^32 equally probable draws that free a page.
        let heads = (self.free_probability.clamp(0.0, 1.0) * (1u64 << 32) as f64) as u64;
        let (mut page, mut holes) = (0u64, Vec::new());
        while page < chunk_pages {
            let step_pages = least.saturating_add(random.next_below(choices)).max(1);
            if random.next_below(1 << 32) < heads {
                holes.push(page);
            }
            page = page.saturating_add(step_pages);
        }
        holes
    }
}

/// Time of freeing: the report's text covers one chunk only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOrder {
    /// Each chunk is filled and walked before the next one is filled, which allocates the freed pages again:
    /// few single pages stay free.
    ChunkByChunk,
    /// All chunks are filled before the first is walked: freed pages stay free.
    FillFirst,
}

/// Options of the random fragmenter.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomWalkPlan {
    /// How much memory in all; may be more than there is.
    pub total_size: Bytes,
    /// How it is walked.
    pub walk: WalkOptions,
    /// When.
    pub fill_order: FillOrder,
    /// Whether huge pages are advised (`MADV_HUGEPAGE`) or disabled (`MADV_NOHUGEPAGE`).
    pub thp: bool,
    /// Bytes of a huge page, at a multiple of which the memory starts.
    pub pmd_size: Bytes,
    /// Seed of the walk.
    pub seed: u64,
}

/// Called before each chunk with its size and the amount filled so far. An error ends the filling, and is its
/// reason.
pub type ChunkCheck<'a> = dyn FnMut(Bytes, Bytes) -> Result<(), String> + 'a;

/// Memory that is held, with its holes. All of it is released when this is dropped.
#[derive(Debug)]
pub struct FragmentedMemory {
    mapping: Mapping,
    chunk_bytes: u64,
    /// Filled bytes, including pages freed since.
    pub filled: Bytes,
    /// Pages freed by the walk.
    pub freed_pages: u64,
    /// Chunks that were walked.
    pub chunks_walked: u64,
    /// Reason for filling less than requested.
    pub stop_reason: Option<String>,
}

/// Fills memory and walks it. Nothing else is allocated that grows with the size, but one list of holes.
pub fn fragment(
    plan: &RandomWalkPlan,
    page_size: PageSize,
    check_chunk: &mut ChunkCheck<'_>,
) -> io::Result<FragmentedMemory> {
    let page = page_size.bytes();
    let chunk = plan.walk.chunk_size.0;
    if chunk == 0 || !chunk.is_multiple_of(page) || plan.total_size.0 == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mapping = Mapping::anonymous(plan.total_size, plan.pmd_size)?;
    let size = mapping.len().0;
    match plan.thp {
        true => mapping.advise(0..size, Advice::HugePage)?,
        false => ignore_unsupported(mapping.advise(0..size, Advice::NoHugePage))?,
    }
    let mut memory = FragmentedMemory {
        mapping,
        chunk_bytes: chunk,
        filled: Bytes(0),
        freed_pages: 0,
        chunks_walked: 0,
        stop_reason: None,
    };
    let mut random = SplitMix64::new(plan.seed);
    while memory.filled.0 < size {
        let filled_end = size.min(memory.filled.0 + chunk);
        let part = memory.filled.0..filled_end;
        if let Err(why) = check_chunk(Bytes(filled_end - part.start), memory.filled) {
            memory.stop_reason = Some(why);
            break;
        }
        memory.mapping.touch_for_writing(part.clone())?;
        memory.filled = Bytes(filled_end);
        if plan.fill_order == FillOrder::ChunkByChunk {
            memory.walk_chunk(part.start, &plan.walk, page, &mut random)?;
        }
    }
    if plan.fill_order == FillOrder::FillFirst {
        for start in (0..memory.filled.0).step_by(usize::try_from(chunk).unwrap_or(usize::MAX)) {
            memory.walk_chunk(start, &plan.walk, page, &mut random)?;
        }
    }
    Ok(memory)
}

impl FragmentedMemory {
    fn walk_chunk(
        &mut self,
        start: u64,
        walk: &WalkOptions,
        page: u64,
        random: &mut SplitMix64,
    ) -> io::Result<()> {
        let end = self.filled.0.min(start + self.chunk_bytes);
        for hole in walk.sample_holes((end - start) / page, random) {
            let at = start + hole * page;
            self.mapping.advise(at..at + page, Advice::DontNeed)?;
            self.freed_pages += 1;
        }
        self.chunks_walked += 1;
        Ok(())
    }

    /// The virtual addresses that were filled.
    pub fn filled_addresses(&self) -> std::ops::Range<u64> {
        let start = self.mapping.addresses().start;
        start..start + self.filled.0
    }

    /// Frees the last chunks, at least `amount` or all; returns the freed amount. For a monitor that detects
    /// memory pressure.
    pub fn free_chunks(&mut self, amount: Bytes) -> io::Result<Bytes> {
        let kept = self.filled.0.saturating_sub(amount.0);
        let kept = kept - kept % self.chunk_bytes;
        let freed_bytes = self.filled.0 - kept;
        self.mapping.advise(kept..self.filled.0, Advice::DontNeed)?;
        self.filled = Bytes(kept);
        Ok(Bytes(freed_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_gives_back_one_page_of_64_and_is_the_same_for_a_seed() {
        let walk = WalkOptions::default();
        let pages = (walk.chunk_size.0 / PageSize::DEFAULT.bytes()) * 200;
        let holes = walk.sample_holes(pages, &mut SplitMix64::new(3));
        let share = holes.len() as f64 * 64.0 / pages as f64;
        assert!((0.97..1.03).contains(&share), "{share}");
        assert_eq!(holes, walk.sample_holes(pages, &mut SplitMix64::new(3)));
        assert!(holes.windows(2).all(|pair| pair[0] < pair[1]) && holes.last() < Some(&pages));
    }

    #[test]
    fn the_edges_of_steps_and_probability() {
        let mut random = SplitMix64::new(1);
        let walk = |step_pages, probability| WalkOptions {
            step_pages,
            free_probability: probability,
            ..WalkOptions::default()
        };
        assert_eq!(walk(1..=1, 1.0).sample_holes(5, &mut random), [0, 1, 2, 3, 4]);
        assert_eq!(walk(2..=2, 1.0).sample_holes(5, &mut random), [0, 2, 4]);
        assert!(walk(1..=63, 0.0).sample_holes(1000, &mut random).is_empty());
        assert_eq!(
            walk(0..=0, 1.0).sample_holes(2, &mut random),
            [0, 1],
            "a step of nothing would never end"
        );
        assert_eq!(walk(u64::MAX..=u64::MAX, 1.0).sample_holes(9, &mut random), [0]);
    }

    #[test]
    fn holes_are_made_and_the_watch_can_stop_it() {
        let page = PageSize::new(rustix::param::page_size() as u64).unwrap();
        for order in [FillOrder::ChunkByChunk, FillOrder::FillFirst] {
            let walk = WalkOptions { chunk_size: Bytes(1 << 20), ..WalkOptions::default() };
            let huge = Bytes(2 << 20);
            let plan = RandomWalkPlan {
                total_size: Bytes(5 << 20),
                walk,
                fill_order: order,
                thp: false,
                pmd_size: huge,
                seed: 9,
            };
            let mut asked = Vec::new();
            let mut watch = |next: Bytes, so_far: Bytes| {
                asked.push((next.0 >> 20, so_far.0 >> 20));
                if so_far.0 < 3 << 20 { Ok(()) } else { Err("enough".to_owned()) }
            };
            let mut held = fragment(&plan, page, &mut watch).unwrap();
            assert_eq!(asked, [(1, 0), (1, 1), (1, 2), (1, 3)]);
            assert_eq!(
                (held.filled, held.chunks_walked, held.stop_reason.as_deref()),
                (Bytes(3 << 20), 3, Some("enough"))
            );
            let mut random = SplitMix64::new(9);
            let holes: usize =
                (0..3).map(|_| plan.walk.sample_holes((1 << 20) / page.bytes(), &mut random).len()).sum();
            assert_eq!(held.freed_pages, holes as u64);
            assert_eq!(held.free_chunks(Bytes(1)).unwrap(), Bytes(1 << 20));
            assert_eq!(held.free_chunks(Bytes(u64::MAX)).unwrap(), Bytes(2 << 20));
            assert_eq!(held.filled, Bytes(0));
        }
    }
}
