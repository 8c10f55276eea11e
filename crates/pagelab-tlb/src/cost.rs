//! Cost of TLB misses, by cell of a mapping.
//!
//! The cost of a page walk is that of fetching its page-table entries, which depends on the last use of their
//! cache line: the entries of hot memory stay in the caches, so that a miss there is cheap. The measure is
//! the reuse distance, the number of walks of other lines since the last walk of this one, and the cost is a
//! [`WalkCostCurve`], measured on the machine.
//!
//! A source without distances has counts only. If a line takes part in m of M walks, and walks are in
//! random order, then the mean distance of its walks is M / m, and the distances are geometric.

use pagelab_model::PageSize;
use pagelab_model::profile::{
    MappingProfile, MissScenario, ReuseHistograms, ScenarioPageSize, WalkCostCurve,
};

/// Entries of a page table in one cache line: 64 bytes of 8 each (x86-64, arm64, riscv64).
pub const ENTRIES_PER_LINE: u64 = 8;

/// One cell of a mapping, with the cost of its misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellCost {
    /// Its first offset in the mapping.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Misses, or an estimate of walks.
    pub misses: u64,
    /// Accesses, if the source counts them.
    pub accesses: Option<u64>,
    /// Whether it was written, if the source knows.
    pub written: Option<bool>,
    /// Picoseconds of all its misses; without a cost, the misses themselves.
    pub cost: f64,
}

/// Picoseconds of a walk at a distance, given by its log2: linear between the points, and level outside.
pub fn walk_cost_ps(curve: &WalkCostCurve, log2: f64) -> f64 {
    let upper_index = curve.points.partition_point(|&(at, _)| f64::from(at) <= log2);
    let point = |index: usize| curve.points.get(index).map(|&(at, ps)| (f64::from(at), ps as f64));
    match (upper_index.checked_sub(1).and_then(point), point(upper_index)) {
        (None, None) => 0.0,
        (Some((_, ps)), None) | (None, Some((_, ps))) => ps,
        (Some((left, low)), Some((right, high))) => low + (high - low) * (log2 - left) / (right - left),
    }
}

/// Mean picoseconds of a walk of a line with this histogram; `None` if it is empty. A bucket costs as much as
/// its middle; first walks cost as much as the farthest.
fn mean_walk_cost_ps(curve: &WalkCostCurve, histogram: &[(u32, u64)]) -> Option<f64> {
    let walks: f64 = histogram.iter().map(|&(_, count)| count as f64).sum();
    let bucket_cost_ps = |bucket: u32| match bucket {
        ReuseHistograms::FIRST_WALK_BUCKET => walk_cost_ps(curve, f64::INFINITY),
        bucket => walk_cost_ps(curve, f64::from(bucket) + 0.5),
    };
    let sum: f64 = histogram.iter().map(|&(bucket, count)| bucket_cost_ps(bucket) * count as f64).sum();
    (walks > 0.0).then_some(sum / walks)
}

/// Picoseconds of all misses of a what-if set; `None` without a cost.
pub fn compute_scenario_cost(scenario: &MissScenario, curve: Option<&WalkCostCurve>) -> Option<f64> {
    let curve = curve.filter(|curve| !curve.points.is_empty())?;
    let size_cost = |size: &ScenarioPageSize| {
        let walks: f64 = size.reuse.iter().map(|&(_, count)| count as f64).sum();
        mean_walk_cost_ps(curve, &size.reuse).unwrap_or(0.0) * walks
    };
    Some(scenario.sizes.iter().map(size_cost).sum())
}

/// The cells of a mapping. `walks` are all those of its process, `curve` is what a walk costs: without it, a
/// cell's cost is the number of its misses.
pub fn compute_cell_costs(
    mapping: &MappingProfile,
    walks: u64,
    curve: Option<&WalkCostCurve>,
    page_size: PageSize,
) -> Vec<CellCost> {
    let curve = curve.filter(|curve| !curve.points.is_empty());
    let mut cells = build_cells(mapping);
    let Some(curve) = curve else { return cells };
    let line = match mapping.reuse.line.0 {
        0 => page_size.bytes() * ENTRIES_PER_LINE,
        line => line,
    };
    let (mut from, mut random_cost) = (0, None);
    while from < cells.len() {
        let number = cells[from].offset / line;
        let to = from + cells[from..].iter().take_while(|cell| cell.offset / line == number).count();
        let line_index = mapping.reuse.at.binary_search(&number).ok();
        let histogram = line_index.and_then(|at| mapping.reuse.counts.get(at));
        let measured_ps = histogram.and_then(|counts| mean_walk_cost_ps(curve, counts));
        let misses: u64 = cells[from..to].iter().map(|cell| cell.misses).sum();
        // A cell that is larger than a line has the misses of several.
        let lines = cells[from].bytes.div_ceil(line).max(1);
        let share = misses as f64 / lines as f64 / (walks as f64).max(1.0);
        let ps = measured_ps.unwrap_or_else(|| {
            random_cost.get_or_insert_with(|| RandomWalkCost::from_curve(curve)).walk_cost_ps(share)
        });
        cells[from..to].iter_mut().for_each(|cell| cell.cost = cell.misses as f64 * ps);
        from = to;
    }
    cells
}

/// The cost of walks of lines that are walked at random, by log2 of the mean distance.
///
/// A line that is walked more often has its entries nearer, so that each of its walks is cheaper; but with
/// all of its walks it never costs less than a line with fewer. If the cost more than doubles from one
/// distance to twice of it, the mean alone would imply that: in a program that reads all of its memory
/// equally, the lines with randomly larger counts would rank last.
#[derive(Debug)]
struct RandomWalkCost {
    /// Picoseconds of a walk at each [`STEPS_PER_DOUBLING`]th of a doubling.
    ps: Vec<f64>,
}

const STEPS_PER_DOUBLING: u32 = 4;
/// The farthest mean distance, as log2: as many walks as a day has nanoseconds.
const LOG2_DISTANCE_MAX: u32 = 47;

impl RandomWalkCost {
    fn from_curve(curve: &WalkCostCurve) -> RandomWalkCost {
        let mean = |step: u32| (f64::from(step) / f64::from(STEPS_PER_DOUBLING)).exp2();
        let mut ps: Vec<f64> = (0..=LOG2_DISTANCE_MAX * STEPS_PER_DOUBLING)
            .map(|step| geometric_mean_cost_ps(curve, mean(step)))
            .collect();
        // From the farthest on, a line at half the distance has twice the walks, and costs no less.
        let walk_ratio = mean(1).recip();
        for step in (0..ps.len().saturating_sub(1)).rev() {
            ps[step] = ps[step].max(ps[step + 1] * walk_ratio);
        }
        RandomWalkCost { ps }
    }

    /// Picoseconds of a walk of a line that takes part in this share of all walks.
    fn walk_cost_ps(&self, share: f64) -> f64 {
        let last = self.ps.len().saturating_sub(1);
        let at = share.clamp(f64::MIN_POSITIVE, 1.0).recip().log2() * f64::from(STEPS_PER_DOUBLING);
        let (step, part) = ((at as usize).min(last), at.fract());
        let (near, far) = (self.ps[step], self.ps[(step + 1).min(last)]);
        near + (far - near) * part
    }
}

/// Mean picoseconds of walks at geometric distances of this mean: exact for a cost that is linear in the
/// log2 of the distance over the eighths of a doubling.
fn geometric_mean_cost_ps(curve: &WalkCostCurve, mean: f64) -> f64 {
    let tail_probability = |log2: f64| (-log2.exp2() / mean.max(1.0)).exp();
    let center = mean.max(1.0).log2();
    let (mut sum, mut before) = (0.0, 1.0);
    // 0.4 % of the distances are below 2^-8 of the mean, none above 2^4 of it.
    for part in -8 * 8..=4 * 8 {
        let to = center + f64::from(part) / 8.0;
        let after = tail_probability(to);
        sum += (before - after) * walk_cost_ps(curve, to - 1.0 / 16.0);
        before = after;
    }
    sum + before * walk_cost_ps(curve, center + 4.0)
}

fn build_cells(mapping: &MappingProfile) -> Vec<CellCost> {
    let (counts, grain) = (&mapping.cells, mapping.grain.0.max(1));
    let mut cells = Vec::with_capacity(counts.at.len());
    for (index, &at) in counts.at.iter().enumerate() {
        let Some(offset) = at.checked_mul(grain).filter(|offset| offset.checked_add(grain).is_some()) else {
            continue;
        };
        let misses = counts.misses.get(index).copied().unwrap_or(0);
        let accesses = counts.accesses.get(index).copied();
        let written = counts.written.get(index).map(|&written| written != 0);
        cells.push(CellCost { offset, bytes: grain, misses, accesses, written, cost: misses as f64 });
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use pagelab_model::profile::{CellCounts, MappingIdentity, MappingKind};

    fn cost_curve() -> WalkCostCurve {
        WalkCostCurve { points: vec![(4, 10_000), (8, 20_000), (12, 100_000)], origin: "made".to_owned() }
    }

    #[test]
    fn a_walk_costs_what_lies_between_the_points() {
        let curve = cost_curve();
        for (log2, ps) in
            [(0.0, 10_000.0), (4.0, 10_000.0), (6.0, 15_000.0), (10.0, 60_000.0), (40.0, 100_000.0)]
        {
            assert_eq!(walk_cost_ps(&curve, log2), ps);
        }
        assert_eq!(walk_cost_ps(&WalkCostCurve { points: vec![], origin: String::new() }, 3.0), 0.0);
    }

    fn mapping(reuse: ReuseHistograms) -> MappingProfile {
        let key = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(1 << 20), nth: 0 };
        let cells = CellCounts { at: vec![0, 1, 8, 100], misses: vec![3, 1, 4, 0], ..CellCounts::default() };
        let (bytes, grain) = (Bytes(1 << 20), Bytes(PageSize::DEFAULT.bytes()));
        MappingProfile { key, start: 0, bytes, grain, cells, reuse, unseen: Vec::new() }
    }

    #[test]
    fn a_hot_line_is_cheaper_than_its_share_of_misses() {
        let line = Bytes(PageSize::DEFAULT.bytes() * ENTRIES_PER_LINE);
        let counts = vec![vec![(3, 4)], vec![(ReuseHistograms::FIRST_WALK_BUCKET, 1), (12, 3)]];
        let reuse = ReuseHistograms { line, at: vec![0, 1], counts };
        let cells = compute_cell_costs(&mapping(reuse), 8, Some(&cost_curve()), PageSize::DEFAULT);
        let costs: Vec<f64> = cells.iter().map(|cell| cell.cost).collect();
        assert_eq!(costs, [30_000.0, 10_000.0, 400_000.0, 0.0]);
    }

    #[test]
    fn without_histograms_the_distance_is_that_of_the_rates() {
        // 4 misses of each line in 1024 walks: 256 walks are between them on average.
        let level = WalkCostCurve { points: vec![(0, 20_000)], origin: String::new() };
        let cells =
            compute_cell_costs(&mapping(ReuseHistograms::default()), 1024, Some(&level), PageSize::DEFAULT);
        let costs: Vec<f64> = cells.iter().map(|cell| cell.cost.round()).collect();
        assert_eq!(costs, [60_000.0, 20_000.0, 80_000.0, 0.0]);
        // By 1e5 quantiles of the geometric distribution.
        let curve = cost_curve();
        let at = |k: u32| -256.0 * (1.0 - (f64::from(k) + 0.5) / 1e5).ln();
        let truth = (0..100_000).map(|k| walk_cost_ps(&curve, at(k).max(1.0).log2())).sum::<f64>() / 1e5;
        let found = geometric_mean_cost_ps(&curve, 256.0);
        assert!((found / truth - 1.0).abs() < 0.01, "{found} for {truth}");
        let cells = compute_cell_costs(&mapping(ReuseHistograms::default()), 1024, None, PageSize::DEFAULT);
        assert_eq!(cells.iter().map(|cell| cell.cost).collect::<Vec<_>>(), [3.0, 1.0, 4.0, 0.0]);
    }

    /// Costs as they were fitted on an AMD EPYC (25/17/1): from one distance to twice of it they rise
    /// threefold and more, where a randomly larger count of walks made a line cheaper.
    #[test]
    fn lines_with_more_walks_never_cost_less() {
        let steep = [
            vec![(11, 3_332), (12, 23_280), (13, 71_256), (14, 119_073), (15, 159_165), (16, 204_187)],
            vec![(7, 0), (9, 0), (10, 27_063), (11, 56_284), (14, 56_284), (15, 131_901), (16, 266_034)],
            vec![(12, 0), (13, 120_000)],
        ];
        for points in steep {
            let curve = WalkCostCurve { points, origin: String::new() };
            let walks = 1u64 << 22;
            let at = (0..2000).map(|line| line * ENTRIES_PER_LINE).collect();
            let misses = (0..2000).map(|line| 2 * line + 1).collect();
            let cells = CellCounts { at, misses, ..CellCounts::default() };
            let all = MappingProfile { cells, ..mapping(ReuseHistograms::default()) };
            let costs = compute_cell_costs(&all, walks, Some(&curve), PageSize::DEFAULT);
            for two in costs.windows(2) {
                assert!(two[1].cost >= two[0].cost * 0.999, "{two:?}, {curve:?}");
            }
        }
    }

    #[test]
    fn a_what_if_costs_what_its_histograms_say() {
        let size = |reuse| ScenarioPageSize { page: Bytes(1 << 21), misses: 4, reuse };
        let sizes = vec![
            size(vec![(12, 3), (ReuseHistograms::FIRST_WALK_BUCKET, 1)]),
            size(vec![(3, 2)]),
            size(vec![]),
        ];
        let what_if = MissScenario {
            name: "all".to_owned(),
            misses: 6,
            sizes,
            upper_reads: [0; 3],
            regions: Vec::new(),
        };
        assert_eq!(compute_scenario_cost(&what_if, Some(&cost_curve())), Some(420_000.0));
        assert_eq!(compute_scenario_cost(&what_if, None), None);
    }

    #[test]
    fn a_cell_of_many_lines_shares_its_misses_among_them() {
        let mut coarse = mapping(ReuseHistograms::default());
        coarse.grain = Bytes(PageSize::DEFAULT.bytes() * ENTRIES_PER_LINE * 64);
        coarse.cells = CellCounts { at: vec![0], misses: vec![256], ..CellCounts::default() };
        let cells = compute_cell_costs(&coarse, 1024, Some(&cost_curve()), PageSize::DEFAULT);
        assert_eq!(
            cells[0].cost,
            256.0 * RandomWalkCost::from_curve(&cost_curve()).walk_cost_ps(1.0 / 256.0)
        );
    }
}
