//! Huge pages that pay: regions ranked by their saving, and the saving of the first n together.
//!
//! A region saves the cost of its page walks, less the remaining cost of its huge page: a huge page needs a
//! TLB entry too, and is walked after an eviction (`residual`). So the curve is not the sum of the regions'
//! costs, and regions are ranked by what each of them saves alone.

use std::collections::{BTreeMap, HashMap};

use pagelab_model::huge_plan::{PlannedMapping, PlannedProgram, PlannedRegion, PredictedGain};
use pagelab_model::profile::{ImageProfile, MappingIdentity, MappingKind, Program, UnseenReason};
use pagelab_model::random::SplitMix64;
use pagelab_model::{Bytes, HugePlan, TlbProfile};

use crate::cost::CellCost;
use crate::{cost, grid};

use knee::{CountNoise, Knee, KneeAbsence, REGIONS_MIN, find_knee};

pub mod knee;
pub mod predict;
mod residual;

/// Criterion by which regions are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankBy {
    /// Predicted saving.
    #[default]
    Cost,
    /// Misses.
    Misses,
    /// Accesses; misses if the source counts no accesses.
    Accesses,
    /// Random, from a seed.
    Random(u64),
}

/// Options of a ranking.
#[derive(Clone, Copy, Debug)]
pub struct RankOptions {
    /// Size of the planned pages.
    pub page: Bytes,
    /// Criterion.
    pub by: RankBy,
    /// Whether mappings of files and stacks are planned too.
    pub include_files: bool,
}

/// One page-sized region of a mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Its mapping, by index in [`Ranking::mappings`].
    pub mapping: usize,
    /// Its first byte in the mapping.
    pub offset: u64,
    /// Picoseconds of its page walks; misses where a walk has no cost.
    pub cost: f64,
    /// The remaining cost if only this region is on a huge page, in the same unit.
    pub residual: f64,
    /// Misses, or an estimate of walks.
    pub misses: f64,
    /// Accesses, if the source counts them.
    pub accesses: Option<f64>,
    /// Bytes that were seen to be touched.
    pub touched: u64,
    /// Whether it was written, where the source knows.
    pub written: Option<bool>,
}

impl Region {
    /// The saving of a huge page here alone.
    pub fn saving(&self) -> f64 {
        (self.cost - self.residual).max(0.0)
    }
}

/// A mapping of a program, in all processes that ran it.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedMapping {
    /// The program.
    pub program: Program,
    /// The mapping.
    pub key: MappingIdentity,
    /// Its start in the first process.
    pub start: u64,
    /// Its largest length.
    pub bytes: Bytes,
    /// Costs by cell, by offset.
    pub cells: Vec<CellCost>,
    /// Memory that the source could not observe: (offset, bytes, why).
    pub unseen: Vec<(u64, Bytes, UnseenReason)>,
}

/// The cost that no huge page can save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UncoveredCost {
    /// At the ends of mappings, where no whole huge page fits.
    pub mapping_ends: f64,
    /// In files and stacks, which are planned on request only.
    pub files: f64,
    /// The part of the ends that huge pages cover if all memory is on them: the kernel merges adjacent
    /// private mappings, as those of an allocator of small arenas. A plan names one mapping at a time.
    pub merged: MergedCost,
}

/// Huge pages across several adjacent mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MergedCost {
    /// Cost, in the unit of the regions.
    pub cost: f64,
    /// Misses.
    pub misses: f64,
    /// Accesses, if the source counts them.
    pub accesses: f64,
    /// Bytes that were seen to be touched.
    pub touched: f64,
}

/// The ranked regions of a profile, and the saving of the first n of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The mappings.
    pub mappings: Vec<RankedMapping>,
    /// The regions that were touched, costliest first.
    pub regions: Vec<Region>,
    /// The curve: steps of rising n, the last with all regions.
    pub curve: Vec<SavingStep>,
    /// Whether costs are picoseconds; else they are misses.
    pub is_timed: bool,
    /// The whole cost, including that which cannot be planned.
    pub total: f64,
    /// The cost that cannot be planned.
    pub uncovered: UncoveredCost,
    /// The shape of the curve.
    pub shape: CurveShape,
    /// Where its slope breaks: the end of the hot regions.
    pub knee: Result<Knee, KneeAbsence>,
}

/// The size of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlanSize {
    /// A number of pages.
    Pages(usize),
    /// The fewest with this share of the saving of all, from 0 to 1.
    Share(f64),
    /// Plan as many as fit into this much memory.
    Budget(Bytes),
}

impl Ranking {
    /// The number of regions of a size; at most all of them.
    pub fn region_count(&self, size: PlanSize, page: Bytes) -> usize {
        let count = match size {
            PlanSize::Pages(pages) => pages,
            PlanSize::Budget(bytes) => usize::try_from(bytes.0 / page.0.max(1)).unwrap_or(usize::MAX),
            PlanSize::Share(share) => count_for_share(&self.curve, share),
        };
        count.min(self.regions.len())
    }

    /// The saving of the first `n` regions, interpolated between the steps.
    pub fn saving_at(&self, n: usize) -> f64 {
        interpolate_saving(&self.curve, n)
    }

    /// Savings of all regions: the maximum gain.
    pub fn attainable_saving(&self) -> f64 {
        self.curve.last().map_or(0.0, |step| step.saved)
    }

    /// The share of the gain that the first `n` regions have, if there is any.
    pub fn saving_share(&self, n: usize) -> Option<f64> {
        (self.attainable_saving() > 0.0).then(|| self.saving_at(n) / self.attainable_saving())
    }

    /// The fewest regions with [`MOST_OF_GAIN`].
    pub fn most_of_gain(&self) -> usize {
        count_for_share(&self.curve, MOST_OF_GAIN)
    }

    /// Page faults that the first `n` regions save: one for each touched base page but the first of a region;
    /// `None` if the source counts by larger cells, and does not know which pages were touched.
    pub fn saved_faults(&self, n: usize, base_page: u64) -> Option<u64> {
        let cells = self.mappings.iter().flat_map(|mapping| &mapping.cells);
        let is_fine = cells.map(|cell| cell.bytes).max().unwrap_or(0) <= base_page;
        let faults = |region: &Region| (region.touched / base_page.max(1)).saturating_sub(1);
        is_fine.then(|| self.regions.iter().take(n).map(faults).sum())
    }
}

/// Ranks the regions of a profile.
pub fn rank_regions(profile: &TlbProfile, options: RankOptions) -> Ranking {
    let walk_cost = profile.walk_cost.as_ref().filter(|walk_cost| !walk_cost.points.is_empty());
    let mappings = gather_mappings(profile);
    let total: f64 = mappings.iter().flat_map(|mapping| &mapping.cells).map(|cell| cell.cost).sum();
    let mut uncovered = UncoveredCost::default();
    let private_spans = PrivateSpans::from_mappings(&mappings);
    let mut regions = Vec::new();
    for (number, mapping) in mappings.iter().enumerate() {
        if !options.include_files && matches!(mapping.key.kind, MappingKind::File(_) | MappingKind::Stack) {
            uncovered.files += mapping.cells.iter().map(|cell| cell.cost).sum::<f64>();
            continue;
        }
        regions.extend(build_regions(number, mapping, options.page, &private_spans, &mut uncovered));
    }
    let contention = residual::TlbContention::from_profile(profile, options.page, walk_cost);
    contention.fill_residuals(&mut regions, &mappings);
    sort_regions(&mut regions, options.by);
    let curve = build_curve(&regions, |n| contention.combined_saving(&regions, &mappings, n));
    let knee = find_region_knee(&regions, options.by, CountNoise::from_profile(profile));
    let shape = classify_curve(&curve, knee.is_ok());
    Ranking { mappings, regions, curve, is_timed: walk_cost.is_some(), total, uncovered, shape, knee }
}

/// The knee of a curve, from the values that rank its regions.
///
/// Costs are weighted misses. In the unit in which both have one sum, the variance of a region's cost is its
/// cost times that of a miss of it, so that the mean miss has more than one event's.
fn find_region_knee(regions: &[Region], by: RankBy, noise: CountNoise) -> Result<Knee, KneeAbsence> {
    match by {
        RankBy::Random(_) => return Err(KneeAbsence::NoKnee),
        RankBy::Misses | RankBy::Accesses => {
            let values: Vec<f64> = regions.iter().map(|region| rank_value(region, by)).collect();
            return find_knee(&values, noise);
        }
        RankBy::Cost => {}
    }
    let sum = |value: fn(&Region) -> f64| regions.iter().map(value).sum::<f64>();
    let (misses, savings) = (sum(|region| region.misses), sum(Region::saving));
    let squares = sum(|region| region.saving().powi(2) / region.misses.max(f64::MIN_POSITIVE));
    let unit = savings / misses;
    let values: Vec<f64> = regions.iter().map(|region| region.saving() / unit).collect();
    let weight = squares / (savings * unit);
    find_knee(&values, CountNoise { per_event: noise.per_event * weight.max(1.0), ..noise })
}

/// The mappings of all processes, those of equal program and key as one.
fn gather_mappings(profile: &TlbProfile) -> Vec<RankedMapping> {
    let walk_cost = profile.walk_cost.as_ref();
    let mut mappings: Vec<RankedMapping> = Vec::new();
    let mut indices: HashMap<(&Program, &MappingIdentity), usize> = HashMap::new();
    for image in &profile.images {
        for mapping in &image.mappings {
            let cells = cost::compute_cell_costs(mapping, count_walks(image), walk_cost, profile.page_size);
            let unseen = mapping.unseen.iter().map(|unseen| (unseen.offset, unseen.bytes, unseen.why));
            let index = *indices.entry((&image.program, &mapping.key)).or_insert(mappings.len());
            if index == mappings.len() {
                let (program, key) = (image.program.clone(), mapping.key.clone());
                let (start, bytes) = (mapping.start, mapping.bytes);
                let (cells, unseen) = (Vec::new(), Vec::new());
                mappings.push(RankedMapping { program, key, start, bytes, cells, unseen });
            }
            let ranked = &mut mappings[index];
            ranked.bytes = ranked.bytes.max(mapping.bytes);
            ranked.unseen.extend(unseen);
            ranked.cells.extend(cells);
        }
    }
    mappings.iter_mut().for_each(|mapping| mapping.cells.sort_by_key(|cell| cell.offset));
    mappings
}

fn count_walks(image: &ImageProfile) -> u64 {
    let counted = image.mappings.iter().flat_map(|mapping| &mapping.cells.misses);
    image.misses.max(counted.fold(0, |sum, &misses| sum.saturating_add(misses)))
}

impl RankedMapping {
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
fn build_regions(
    number: usize,
    mapping: &RankedMapping,
    page: Bytes,
    private_spans: &PrivateSpans,
    uncovered: &mut UncoveredCost,
) -> Vec<Region> {
    let base = grid::base_address(&mapping.key, mapping.start);
    let mut by_page: BTreeMap<u64, Region> = BTreeMap::new();
    for cell in &mapping.cells {
        if cell.bytes / page.0.max(1) > grid::CELL_PAGES_MAX {
            uncovered.mapping_ends += cell.cost;
            continue;
        }
        for (page_index, bytes) in grid::split_by_page(base, cell.offset, cell.bytes, page.0) {
            let share = bytes as f64 / cell.bytes as f64;
            let new_region = Region { mapping: number, ..Region::default() };
            let region = by_page.entry(page_index).or_insert(new_region);
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
    for (page_index, region) in by_page {
        let address = page_index.checked_mul(page.0);
        let offset = address.and_then(|address| address.checked_sub(base)).filter(|&offset| offset >= first);
        match offset.filter(|offset| offset.checked_add(page.0).is_some_and(|end| end <= last)) {
            Some(offset) => regions.push(Region { offset, ..region }),
            None => {
                uncovered.mapping_ends += region.cost;
                if private_spans.covers_page(mapping, page_index.saturating_mul(page.0), page.0) {
                    uncovered.merged.cost += region.cost;
                    uncovered.merged.misses += region.misses;
                    uncovered.merged.accesses += region.accesses.unwrap_or(0.0);
                    uncovered.merged.touched += region.touched as f64;
                }
            }
        }
    }
    regions
}

/// Private memory of each program, adjacent mappings as one.
struct PrivateSpans<'m> {
    programs: HashMap<&'m Program, Vec<(u64, u64)>>,
}

impl<'m> PrivateSpans<'m> {
    fn from_mappings(mappings: &'m [RankedMapping]) -> PrivateSpans<'m> {
        let mut programs: HashMap<&Program, Vec<(u64, u64)>> = HashMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_private()) {
            let span = (mapping.start, mapping.start.saturating_add(mapping.bytes.0));
            programs.entry(&mapping.program).or_default().push(span);
        }
        for spans in programs.values_mut() {
            spans.sort_unstable();
            spans.dedup_by(|span, last| {
                let is_adjacent = span.0 <= last.1;
                last.1 = if is_adjacent { last.1.max(span.1) } else { last.1 };
                is_adjacent
            });
        }
        PrivateSpans { programs }
    }

    /// Whether a page at this address is memory of the mapping's program from end to end.
    fn covers_page(&self, mapping: &RankedMapping, address: u64, page: u64) -> bool {
        let program_spans = self.programs.get(&mapping.program);
        let Some(spans) = program_spans.filter(|_| mapping.is_private()) else { return false };
        let after = spans.partition_point(|&(from, _)| from <= address);
        let end = address.checked_add(page);
        after.checked_sub(1).zip(end).is_some_and(|(at, end)| end <= spans[at].1)
    }
}

/// The value by which a region is ranked.
fn rank_value(region: &Region, by: RankBy) -> f64 {
    match by {
        RankBy::Cost => region.saving(),
        RankBy::Misses => region.misses,
        RankBy::Accesses => region.accesses.unwrap_or(region.misses),
        RankBy::Random(_) => 0.0,
    }
}

fn sort_regions(regions: &mut [Region], by: RankBy) {
    let value = |region: &Region| rank_value(region, by);
    let position = |region: &Region| (region.mapping, region.offset);
    regions.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| position(a).cmp(&position(b))));
    if let RankBy::Random(seed) = by {
        SplitMix64::new(seed).shuffle(regions);
    }
}

/// Cells of a plan in each of its pages: a run whose mapping begins elsewhere shares out the cost by them.
const CELLS_PER_PAGE: u64 = 16;

/// The plan of the first `n` regions of a ranking.
pub fn build_plan(
    profile: &TlbProfile,
    ranking: &Ranking,
    n: usize,
    page: Bytes,
    predicted: Option<PredictedGain>,
) -> HugePlan {
    let mut programs: Vec<PlannedProgram> = Vec::new();
    let mut positions: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let unit = if ranking.is_timed { 1000.0 } else { 1.0 };
    for region in ranking.regions.iter().take(n) {
        let ranked = &ranking.mappings[region.mapping];
        let (program, mapping) = *positions.entry(region.mapping).or_insert_with(|| {
            let known = programs.iter().position(|known| known.program == ranked.program);
            let program = known.unwrap_or_else(|| {
                programs.push(PlannedProgram { program: ranked.program.clone(), mappings: Vec::new() });
                programs.len() - 1
            });
            programs[program].mappings.push(PlannedMapping {
                key: ranked.key.clone(),
                start: grid::base_address(&ranked.key, ranked.start),
                bytes: ranked.bytes,
                regions: Vec::new(),
                cells: Vec::new(),
            });
            (program, programs[program].mappings.len() - 1)
        });
        let cost_ns = ranking.is_timed.then_some((region.cost / unit) as u64);
        let planned = PlannedRegion { offset: region.offset, page, cost_ns };
        programs[program].mappings[mapping].regions.push(planned);
    }
    for (&number, &(program, mapping)) in &positions {
        let chosen: Vec<&Region> =
            ranking.regions.iter().take(n).filter(|region| region.mapping == number).collect();
        programs[program].mappings[mapping].cells =
            collect_cells(&ranking.mappings[number], &chosen, page, unit);
    }
    HugePlan {
        source: Some(profile.source),
        command: profile.command.clone(),
        predicted,
        overrides_advice: false,
        programs,
    }
}

/// The cost around the chosen regions, in cells of a sixteenth of a page.
fn collect_cells(ranked: &RankedMapping, chosen: &[&Region], page: Bytes, unit: f64) -> Vec<(u64, u64, u64)> {
    let grain = (page.0 / CELLS_PER_PAGE).max(1);
    let mut costs: BTreeMap<u64, f64> = BTreeMap::new();
    let mut windows: Vec<(u64, u64)> = chosen
        .iter()
        .map(|region| (region.offset.saturating_sub(page.0), region.offset.saturating_add(2 * page.0)))
        .collect();
    windows.sort_unstable();
    let is_near = |at: u64| {
        let after = windows.partition_point(|&(from, _)| from <= at);
        // Windows are equally long, so the last one that began is the last one to end.
        after.checked_sub(1).is_some_and(|last| at < windows[last].1)
    };
    for cell in ranked.cells.iter().filter(|cell| cell.bytes / page.0.max(1) <= grid::CELL_PAGES_MAX) {
        for (number, bytes) in grid::split_by_page(0, cell.offset, cell.bytes, grain) {
            if is_near(number * grain) {
                *costs.entry(number).or_default() += cell.cost * bytes as f64 / cell.bytes as f64;
            }
        }
    }
    let cell = |(number, cost): (u64, f64)| (number * grain, grain, (cost / unit) as u64);
    costs.into_iter().map(cell).filter(|cell| cell.2 > 0).collect()
}

/// One step of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavingStep {
    /// Number of regions on huge pages.
    pub pages: usize,
    /// Their saving, in picoseconds or misses.
    pub saved: f64,
}

/// The shape of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveShape {
    /// Nothing can be saved.
    NoGain,
    /// Some regions are hot, and the others are not: see [`Ranking::knee`].
    Knee,
    /// Each region saves about as much as any other: few huge pages save little.
    Flat,
    /// Nearly all touched regions are needed for nine tenths, though some save more than others.
    AllNeeded,
    /// Each further huge page saves less than the one before, nowhere much less.
    Gradual,
}

/// Steps at which every count is one of the curve's.
const EXACT_COUNTS: usize = 64;
/// Steps per doubling after that.
const STEPS_PER_DOUBLING: usize = 16;
/// A curve is flat if an eighth of the regions has less than this share: a straight line has an eighth.
const FLAT_SHARE: f64 = 0.2;
/// More than this part of all regions for nine tenths of the gain is "all".
const ALL_NEEDED_SHARE: f64 = 0.8;
/// The share of the gain that is stated beside the knee, and that a plan takes by default.
pub const MOST_OF_GAIN: f64 = 0.9;

/// The curve, at counts that are dense where they are small.
fn build_curve(regions: &[Region], compute_saving: impl Fn(usize) -> f64) -> Vec<SavingStep> {
    let mut counts: Vec<usize> = (1..=EXACT_COUNTS.min(regions.len())).collect();
    while let Some(&last) = counts.last()
        && last < regions.len()
    {
        counts.push((last + (last / STEPS_PER_DOUBLING).max(1)).min(regions.len()));
    }
    let mut steps = vec![SavingStep { pages: 0, saved: 0.0 }];
    for pages in counts {
        // A page more never saves less: it need not be used.
        let previous = steps.last().map_or(0.0, |step| step.saved);
        steps.push(SavingStep { pages, saved: compute_saving(pages).max(previous) });
    }
    steps
}

fn interpolate_saving(curve: &[SavingStep], n: usize) -> f64 {
    let above = curve.partition_point(|step| step.pages <= n);
    match (above.checked_sub(1).and_then(|at| curve.get(at)), curve.get(above)) {
        (Some(low), Some(high)) => {
            let part = (n - low.pages) as f64 / (high.pages - low.pages) as f64;
            low.saved + (high.saved - low.saved) * part
        }
        (Some(step), None) => step.saved,
        (None, _) => 0.0,
    }
}

/// The fewest pages that save `share` of the saving of all.
fn count_for_share(curve: &[SavingStep], share: f64) -> usize {
    let all = curve.last().map_or(0.0, |step| step.saved);
    let target = all * share.clamp(0.0, 1.0);
    // Sums of floating-point numbers differ in the last digits by their order.
    let is_reached = |n: usize| interpolate_saving(curve, n) >= target * (1.0 - 1e-9);
    let (mut low, mut high) = (0, curve.last().map_or(0, |step| step.pages));
    while low < high {
        let middle = low.midpoint(high);
        if is_reached(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

fn classify_curve(curve: &[SavingStep], has_knee: bool) -> CurveShape {
    let Some(last) = curve.last().filter(|step| step.saved > 0.0) else { return CurveShape::NoGain };
    let all = last.pages;
    let is_large = all >= REGIONS_MIN;
    if has_knee {
        return CurveShape::Knee;
    }
    if is_large && interpolate_saving(curve, all.div_ceil(8)) < FLAT_SHARE * last.saved {
        return CurveShape::Flat;
    }
    if count_for_share(curve, MOST_OF_GAIN) as f64 > ALL_NEEDED_SHARE * all as f64 {
        return CurveShape::AllNeeded;
    }
    CurveShape::Gradual
}

#[cfg(test)]
mod tests;
