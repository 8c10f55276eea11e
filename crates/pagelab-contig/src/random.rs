//! Fragmenting by chance: memory is filled, and a random walk gives single pages of it back.
//!
//! The walk is that of a course report on fragmentation: chunks of 24 MiB; from the start of each chunk in
//! random steps of 1 to 63 pages, and at each place with probability 1/2 one page is given back with
//! `MADV_DONTNEED`. So one page of 64 is given back. What the report leaves open is an option here: see
//! [`Order`].

use std::io;
use std::ops::RangeInclusive;

use pagelab_model::seed::SplitMix64;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::map::{Advice, Mapping};

/// How a chunk is walked.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// Bytes of a chunk: whole pages.
    pub chunk: Bytes,
    /// The least and the most pages of a step; at least 1.
    pub step_pages: RangeInclusive<u64>,
    /// How probable it is that a page at which the walk stops is given back, 0 to 1.
    pub probability: f64,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { chunk: Bytes(24 << 20), step_pages: 1..=63, probability: 0.5 }
    }
}

impl Walk {
    /// The pages of one chunk that are given back, ascending. A step is drawn before the coin, as in the
    /// report's code.
    pub fn holes(&self, chunk_pages: u64, random: &mut SplitMix64) -> Vec<u64> {
        let (least, most) = (*self.step_pages.start(), *self.step_pages.end());
        let choices = most.saturating_sub(least).saturating_add(1);
        // Of 2^32 equally probable draws, so many give a page back.
        let heads = (self.probability.clamp(0.0, 1.0) * (1u64 << 32) as f64) as u64;
        let (mut at, mut holes) = (0u64, Vec::new());
        while at < chunk_pages {
            let step = least.saturating_add(random.below(choices)).max(1);
            if random.below(1 << 32) < heads {
                holes.push(at);
            }
            at = at.saturating_add(step);
        }
        holes
    }
}

/// When the pages are given back: the report's text shows the walk of one chunk alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each chunk is filled and walked before the next one is filled, which therefore takes the pages that
    /// were given back: few single pages stay free.
    ChunkByChunk,
    /// All chunks are filled, and then all are walked: the pages given back stay free.
    FillFirst,
}

/// Everything that the fragmenter is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How much memory in all; may be more than there is.
    pub size: Bytes,
    /// How it is walked.
    pub walk: Walk,
    /// When.
    pub order: Order,
    /// Whether huge pages are asked for (`MADV_HUGEPAGE`) or refused (`MADV_NOHUGEPAGE`).
    pub thp: bool,
    /// Bytes of a huge page, at a multiple of which the memory starts.
    pub huge: Bytes,
    /// Seed of the walk.
    pub seed: u64,
}

/// Asked before each chunk is filled, with its size and what is filled so far. An error ends the filling, and
/// is its reason.
pub type Watch<'a> = dyn FnMut(Bytes, Bytes) -> Result<(), String> + 'a;

/// Memory that is held, with its holes. All of it goes back when this is dropped.
#[derive(Debug)]
pub struct Held {
    mapping: Mapping,
    chunk: u64,
    /// Bytes that were filled, the pages given back since included.
    pub filled: Bytes,
    /// Pages that were given back by the walk.
    pub pages_given_back: u64,
    /// Chunks that were walked.
    pub chunks: u64,
    /// Why less was filled than was asked for, if so.
    pub stopped: Option<String>,
}

/// Fills memory and walks it. Nothing else is allocated that grows with the size, but one list of holes.
pub fn fragment(plan: &Plan, page_size: PageSize, watch: &mut Watch<'_>) -> io::Result<Held> {
    let page = page_size.bytes();
    let chunk = plan.walk.chunk.0;
    if chunk == 0 || !chunk.is_multiple_of(page) || plan.size.0 == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mapping = Mapping::anonymous(plan.size, plan.huge)?;
    let size = mapping.len().0;
    let advice = if plan.thp { Advice::HugePage } else { Advice::NoHugePage };
    match mapping.advise(0..size, advice) {
        // A kernel without transparent huge pages has none to refuse.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && !plan.thp => {}
        done => done?,
    }
    let mut held = Held { mapping, chunk, filled: Bytes(0), pages_given_back: 0, chunks: 0, stopped: None };
    let mut random = SplitMix64::new(plan.seed);
    while held.filled.0 < size {
        let end = size.min(held.filled.0 + chunk);
        let part = held.filled.0..end;
        if let Err(why) = watch(Bytes(end - part.start), held.filled) {
            held.stopped = Some(why);
            break;
        }
        held.mapping.touch(part.clone())?;
        held.filled = Bytes(end);
        if plan.order == Order::ChunkByChunk {
            held.walk(part.start, &plan.walk, page, &mut random)?;
        }
    }
    if plan.order == Order::FillFirst {
        for start in (0..held.filled.0).step_by(usize::try_from(chunk).unwrap_or(usize::MAX)) {
            held.walk(start, &plan.walk, page, &mut random)?;
        }
    }
    Ok(held)
}

impl Held {
    fn walk(&mut self, start: u64, walk: &Walk, page: u64, random: &mut SplitMix64) -> io::Result<()> {
        let end = self.filled.0.min(start + self.chunk);
        for hole in walk.holes((end - start) / page, random) {
            let at = start + hole * page;
            self.mapping.advise(at..at + page, Advice::DontNeed)?;
            self.pages_given_back += 1;
        }
        self.chunks += 1;
        Ok(())
    }

    /// The virtual addresses that were filled.
    pub fn addresses(&self) -> std::ops::Range<u64> {
        let start = self.mapping.addresses().start;
        start..start + self.filled.0
    }

    /// Gives back the last chunks, at least `amount` of them, or all; returns how much. For whoever sees that
    /// somebody else needs the memory.
    pub fn give_back(&mut self, amount: Bytes) -> io::Result<Bytes> {
        let kept = self.filled.0.saturating_sub(amount.0);
        let kept = kept - kept % self.chunk;
        let back = self.filled.0 - kept;
        self.mapping.advise(kept..self.filled.0, Advice::DontNeed)?;
        self.filled = Bytes(kept);
        Ok(Bytes(back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_gives_back_one_page_of_64_and_is_the_same_for_a_seed() {
        let walk = Walk::default();
        let pages = (walk.chunk.0 / PageSize::USUAL.bytes()) * 200;
        let holes = walk.holes(pages, &mut SplitMix64::new(3));
        let share = holes.len() as f64 * 64.0 / pages as f64;
        assert!((0.97..1.03).contains(&share), "{share}");
        assert_eq!(holes, walk.holes(pages, &mut SplitMix64::new(3)));
        assert!(holes.windows(2).all(|pair| pair[0] < pair[1]) && holes.last() < Some(&pages));
    }

    #[test]
    fn the_edges_of_steps_and_probability() {
        let mut random = SplitMix64::new(1);
        let walk = |step_pages, probability| Walk { step_pages, probability, ..Walk::default() };
        assert_eq!(walk(1..=1, 1.0).holes(5, &mut random), [0, 1, 2, 3, 4]);
        assert_eq!(walk(2..=2, 1.0).holes(5, &mut random), [0, 2, 4]);
        assert!(walk(1..=63, 0.0).holes(1000, &mut random).is_empty());
        assert_eq!(walk(0..=0, 1.0).holes(2, &mut random), [0, 1], "a step of nothing would never end");
        assert_eq!(walk(u64::MAX..=u64::MAX, 1.0).holes(9, &mut random), [0]);
    }

    #[test]
    fn holes_are_made_and_the_watch_can_stop_it() {
        let page = PageSize::new(rustix::param::page_size() as u64).unwrap();
        for order in [Order::ChunkByChunk, Order::FillFirst] {
            let walk = Walk { chunk: Bytes(1 << 20), ..Walk::default() };
            let huge = Bytes(2 << 20);
            let plan = Plan { size: Bytes(5 << 20), walk, order, thp: false, huge, seed: 9 };
            let mut asked = Vec::new();
            let mut watch = |next: Bytes, so_far: Bytes| {
                asked.push((next.0 >> 20, so_far.0 >> 20));
                if so_far.0 < 3 << 20 { Ok(()) } else { Err("enough".to_owned()) }
            };
            let mut held = fragment(&plan, page, &mut watch).unwrap();
            assert_eq!(asked, [(1, 0), (1, 1), (1, 2), (1, 3)]);
            assert_eq!(
                (held.filled, held.chunks, held.stopped.as_deref()),
                (Bytes(3 << 20), 3, Some("enough"))
            );
            let mut random = SplitMix64::new(9);
            let holes: usize =
                (0..3).map(|_| plan.walk.holes((1 << 20) / page.bytes(), &mut random).len()).sum();
            assert_eq!(held.pages_given_back, holes as u64);
            assert_eq!(held.give_back(Bytes(1)).unwrap(), Bytes(1 << 20));
            assert_eq!(held.give_back(Bytes(u64::MAX)).unwrap(), Bytes(2 << 20));
            assert_eq!(held.filled, Bytes(0));
        }
    }
}
