//! Which huge pages pay: regions in the order of what each saves, and what the first n of them save together.
//!
//! A region saves what its page walks cost, less what its huge page still costs: a huge page needs an entry
//! of the TLB too, and is walked for when the entry was lost (`residual`). The curve is therefore not a sum
//! of the regions' costs, and the order is that of what each region saves alone.

mod make;
pub mod predict;
mod residual;
mod shape;

use std::collections::BTreeMap;

use pagelab_model::profile::{ImageProfile, MappingKey, MappingKind, MappingProfile, Program, UnseenWhy};
use pagelab_model::seed::SplitMix64;
use pagelab_model::{Bytes, Profile};

use crate::cost::{self, CellCost};
use crate::grid;

pub use make::plan;
pub use shape::{Shape, Step};

/// By what regions are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// What each saves by the model.
    #[default]
    Cost,
    /// Misses.
    Misses,
    /// Accesses; misses where the source counts none.
    Accesses,
    /// By chance, from a seed.
    Random(u64),
}

/// What is to be ranked, and how.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The size of the pages that are planned.
    pub page: Bytes,
    /// The order.
    pub by: By,
    /// Whether mappings of files and stacks are planned too.
    pub files: bool,
}

/// One page-sized region of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Which mapping, in [`Ranking::mappings`].
    pub mapping: usize,
    /// Its first byte in the mapping.
    pub offset: u64,
    /// Picoseconds of its page walks; misses where a walk has no price.
    pub cost: f64,
    /// What is left of the cost when a huge page backs it and nothing else, in the same unit.
    pub residual: f64,
    /// Misses, or an estimate of walks.
    pub misses: f64,
    /// Accesses, where the source counts them.
    pub accesses: Option<f64>,
    /// Bytes that were seen to be touched.
    pub touched: u64,
    /// Whether it was written, where the source knows.
    pub written: Option<bool>,
}

impl Region {
    /// What a huge page here saves, alone.
    pub fn saving(&self) -> f64 {
        (self.cost - self.residual).max(0.0)
    }
}

/// A mapping of a program, in all processes that ran it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// The program.
    pub program: Program,
    /// Which mapping.
    pub key: MappingKey,
    /// Where it began in the first process.
    pub start: u64,
    /// Its length, the largest.
    pub bytes: Bytes,
    /// Costs by cell, by offset.
    pub cells: Vec<CellCost>,
    /// What the source could not see: (offset, bytes, why).
    pub unseen: Vec<(u64, Bytes, UnseenWhy)>,
}

/// What of the cost no huge page can save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beyond {
    /// At the ends of mappings, where no whole huge page fits.
    pub ends: f64,
    /// In files and stacks, which are planned on request only.
    pub files: f64,
    /// The part of the ends that a huge page covers when all memory is on them: private mappings lie side by
    /// side there, as those of an allocator of small arenas do, and the kernel joins them. A plan names one
    /// mapping at a time.
    pub joined: Joined,
}

/// What lies in huge pages that several mappings fill together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Joined {
    /// Cost, in the unit of the regions.
    pub cost: f64,
    /// Misses.
    pub misses: f64,
    /// Accesses, where the source counts them.
    pub accesses: f64,
    /// Bytes that were seen to be touched.
    pub touched: f64,
}

/// The regions of a profile in an order, and what the first n of them save.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The mappings.
    pub mappings: Vec<Ranked>,
    /// The regions that were touched, dearest first.
    pub regions: Vec<Region>,
    /// The curve: steps of rising n, the last with all regions.
    pub curve: Vec<Step>,
    /// Whether costs are picoseconds; else they are misses.
    pub timed: bool,
    /// All of the cost, also what cannot be planned.
    pub total: f64,
    /// What cannot be planned.
    pub beyond: Beyond,
    /// What the curve looks like.
    pub shape: Shape,
}

/// How many pages of the ranking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many.
    Pages(usize),
    /// As few as have this share of what all save, from 0 to 1.
    Share(f64),
    /// As many as fit into so much memory.
    Budget(Bytes),
}

impl Ranking {
    /// How many regions a size is; at most all of them.
    pub fn count(&self, size: Size, page: Bytes) -> usize {
        let count = match size {
            Size::Pages(pages) => pages,
            Size::Budget(bytes) => usize::try_from(bytes.0 / page.0.max(1)).unwrap_or(usize::MAX),
            Size::Share(share) => shape::count_for(&self.curve, share),
        };
        count.min(self.regions.len())
    }

    /// What the first `n` regions save, between the steps in a straight line.
    pub fn saved(&self, n: usize) -> f64 {
        shape::saved(&self.curve, n)
    }

    /// What all regions save: the gain that can be had.
    pub fn attainable(&self) -> f64 {
        self.curve.last().map_or(0.0, |step| step.saved)
    }

    /// The share of the gain that the first `n` regions have, if there is any.
    pub fn share(&self, n: usize) -> Option<f64> {
        (self.attainable() > 0.0).then(|| self.saved(n) / self.attainable())
    }

    /// Page faults that the first `n` regions save: one for each touched base page but the first of a region;
    /// `None` if the source counts by larger cells, and does not know which pages were touched.
    pub fn faults_saved(&self, n: usize, base_page: u64) -> Option<u64> {
        let cells = self.mappings.iter().flat_map(|mapping| &mapping.cells);
        let is_fine = cells.map(|cell| cell.bytes).max().unwrap_or(0) <= base_page;
        let faults = |region: &Region| (region.touched / base_page.max(1)).saturating_sub(1);
        is_fine.then(|| self.regions.iter().take(n).map(faults).sum())
    }
}

/// Ranks the regions of a profile.
pub fn rank(profile: &Profile, ask: Ask) -> Ranking {
    let price = profile.walk_cost.as_ref().filter(|price| !price.points.is_empty());
    let mappings = gathered(profile);
    let total: f64 = mappings.iter().flat_map(|mapping| &mapping.cells).map(|cell| cell.cost).sum();
    let mut beyond = Beyond::default();
    let neighbours = Neighbours::of(&mappings);
    let mut regions = Vec::new();
    for (number, mapping) in mappings.iter().enumerate() {
        if !ask.files && matches!(mapping.key.kind, MappingKind::File(_) | MappingKind::Stack) {
            beyond.files += mapping.cells.iter().map(|cell| cell.cost).sum::<f64>();
            continue;
        }
        regions.extend(regions_of(number, mapping, ask.page, &neighbours, &mut beyond));
    }
    let tlb = residual::Tlb::of(profile, ask.page, price);
    tlb.alone(&mut regions, &mappings);
    order(&mut regions, ask.by);
    let curve = shape::curve(&regions, |n| tlb.saved(&regions, &mappings, n));
    let shape = shape::of(&curve);
    Ranking { mappings, regions, curve, timed: price.is_some(), total, beyond, shape }
}

/// The mappings of all processes, those of equal program and key as one.
fn gathered(profile: &Profile) -> Vec<Ranked> {
    let price = profile.walk_cost.as_ref();
    let mut mappings: Vec<Ranked> = Vec::new();
    let mut places: BTreeMap<(usize, MappingKey), usize> = BTreeMap::new();
    let mut programs: Vec<&Program> = Vec::new();
    for image in &profile.images {
        let known = programs.iter().position(|program| **program == image.program);
        let program = known.unwrap_or_else(|| {
            programs.push(&image.program);
            programs.len() - 1
        });
        for mapping in &image.mappings {
            let cells = cost::of_mapping(mapping, walks(image), price, profile.page_size);
            let unseen = mapping.unseen.iter().map(|unseen| (unseen.offset, unseen.bytes, unseen.why));
            let place = *places.entry((program, mapping.key.clone())).or_insert(mappings.len());
            if place == mappings.len() {
                mappings.push(ranked(image, mapping));
            }
            let ranked = &mut mappings[place];
            ranked.bytes = ranked.bytes.max(mapping.bytes);
            ranked.unseen.extend(unseen);
            ranked.cells.extend(cells);
        }
    }
    mappings.iter_mut().for_each(|mapping| mapping.cells.sort_by_key(|cell| cell.offset));
    mappings
}

fn walks(image: &ImageProfile) -> u64 {
    let counted = image.mappings.iter().flat_map(|mapping| &mapping.cells.misses);
    image.misses.max(counted.fold(0, |sum, &misses| sum.saturating_add(misses)))
}

fn ranked(image: &ImageProfile, mapping: &MappingProfile) -> Ranked {
    let (program, key) = (image.program.clone(), mapping.key.clone());
    let (start, bytes) = (mapping.start, mapping.bytes);
    Ranked { program, key, start, bytes, cells: Vec::new(), unseen: Vec::new() }
}

impl Ranked {
    /// Whether the kernel joins it with its neighbours of the same kind.
    fn is_private(&self) -> bool {
        matches!(self.key.kind, MappingKind::Anonymous | MappingKind::Heap)
    }

    /// The offsets at which a page may begin and end.
    fn bounds(&self) -> (u64, u64) {
        match (&self.key.kind, self.bytes.0) {
            (MappingKind::Placed, 0) => (0, u64::MAX),
            (MappingKind::Placed, bytes) => (self.start, self.start.saturating_add(bytes)),
            (_, bytes) => (0, bytes),
        }
    }
}

/// The regions of a mapping that have cells, on the grid of pages where it lay.
fn regions_of(
    number: usize,
    mapping: &Ranked,
    page: Bytes,
    neighbours: &Neighbours,
    beyond: &mut Beyond,
) -> Vec<Region> {
    let base = grid::base(&mapping.key, mapping.start);
    let mut by_page: BTreeMap<u64, Region> = BTreeMap::new();
    for cell in &mapping.cells {
        if cell.bytes / page.0.max(1) > grid::PAGES_OF_CELL {
            beyond.ends += cell.cost;
            continue;
        }
        for (at, bytes) in grid::parts(base, cell.offset, cell.bytes, page.0) {
            let share = bytes as f64 / cell.bytes as f64;
            let region = by_page.entry(at).or_insert_with(|| Region {
                mapping: number,
                offset: 0,
                cost: 0.0,
                residual: 0.0,
                misses: 0.0,
                accesses: None,
                touched: 0,
                written: None,
            });
            region.cost += cell.cost * share;
            region.misses += cell.misses as f64 * share;
            if let Some(accesses) = cell.accesses {
                *region.accesses.get_or_insert(0.0) += accesses as f64 * share;
            }
            region.touched = region.touched.saturating_add(bytes).min(page.0);
            region.written = region.written.max(cell.written);
        }
    }
    let (first, last) = mapping.bounds();
    let mut regions = Vec::with_capacity(by_page.len());
    for (at, region) in by_page {
        let offset = grid::page_offset(base, at, page.0).filter(|&offset| offset >= first);
        match offset.filter(|offset| offset.checked_add(page.0).is_some_and(|end| end <= last)) {
            Some(offset) => regions.push(Region { offset, ..region }),
            None => {
                beyond.ends += region.cost;
                if neighbours.fill(mapping, at.saturating_mul(page.0), page.0) {
                    beyond.joined.cost += region.cost;
                    beyond.joined.misses += region.misses;
                    beyond.joined.accesses += region.accesses.unwrap_or(0.0);
                    beyond.joined.touched += region.touched as f64;
                }
            }
        }
    }
    regions
}

/// Private memory of each program, mappings that lie side by side as one.
struct Neighbours<'m> {
    programs: Vec<(&'m Program, Vec<(u64, u64)>)>,
}

impl<'m> Neighbours<'m> {
    fn of(mappings: &'m [Ranked]) -> Neighbours<'m> {
        let mut programs: Vec<(&Program, Vec<(u64, u64)>)> = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_private()) {
            let span = (mapping.start, mapping.start.saturating_add(mapping.bytes.0));
            match programs.iter_mut().find(|(program, _)| **program == mapping.program) {
                Some((_, spans)) => spans.push(span),
                None => programs.push((&mapping.program, vec![span])),
            }
        }
        for (_, spans) in &mut programs {
            spans.sort_unstable();
            let mut joined: Vec<(u64, u64)> = Vec::new();
            for &(from, to) in spans.iter() {
                match joined.last_mut().filter(|last| from <= last.1) {
                    Some(last) => last.1 = last.1.max(to),
                    None => joined.push((from, to)),
                }
            }
            *spans = joined;
        }
        Neighbours { programs }
    }

    /// Whether a page at this address is memory of the mapping's program from end to end.
    fn fill(&self, mapping: &Ranked, address: u64, page: u64) -> bool {
        let of_program = self.programs.iter().find(|(program, _)| **program == mapping.program);
        let Some((_, spans)) = of_program.filter(|_| mapping.is_private()) else { return false };
        let after = spans.partition_point(|&(from, _)| from <= address);
        let end = address.checked_add(page);
        after.checked_sub(1).zip(end).is_some_and(|(at, end)| end <= spans[at].1)
    }
}

fn order(regions: &mut [Region], by: By) {
    let value = |region: &Region| match by {
        By::Cost => region.saving(),
        By::Misses => region.misses,
        By::Accesses => region.accesses.unwrap_or(region.misses),
        By::Random(_) => 0.0,
    };
    let place = |region: &Region| (region.mapping, region.offset);
    regions.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| place(a).cmp(&place(b))));
    if let By::Random(seed) = by {
        let mut random = SplitMix64::new(seed);
        for last in (1..regions.len()).rev() {
            regions.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests;
