//! The curve of a ranking: what n huge pages save, and what it looks like.

use super::Region;

/// One step of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How many regions are on huge pages.
    pub pages: usize,
    /// What they save, in picoseconds or misses.
    pub saved: f64,
}

/// What a curve looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing can be saved.
    Nothing,
    /// A few regions have most of it: behind so many pages each further one brings less than the mean.
    Knee(usize),
    /// Each region brings about as much as any other: few huge pages bring little.
    Flat,
    /// Nearly all touched regions are needed for nine tenths, though some bring more than others.
    AllNeeded,
}

/// Steps at which every count is one of the curve's.
const EVERY: usize = 64;
/// Steps to a doubling behind that.
const OF_DOUBLING: usize = 16;
/// A curve is flat if an eighth of the regions has less than this share: a straight line has an eighth.
const FLAT_SHARE: f64 = 0.2;
/// More than this part of all regions for nine tenths of the gain is "all".
const ALL_PART: f64 = 0.8;
/// Fewer regions than this have no shape.
const FEW: usize = 8;

/// The curve, at counts that lie close where they are small.
pub(super) fn curve(regions: &[Region], saved: impl Fn(usize) -> f64) -> Vec<Step> {
    let mut counts: Vec<usize> = (1..=EVERY.min(regions.len())).collect();
    while let Some(&last) = counts.last()
        && last < regions.len()
    {
        counts.push((last + (last / OF_DOUBLING).max(1)).min(regions.len()));
    }
    let mut steps = vec![Step { pages: 0, saved: 0.0 }];
    for pages in counts {
        // A page more never saves less: it need not be used.
        let before = steps.last().map_or(0.0, |step| step.saved);
        steps.push(Step { pages, saved: saved(pages).max(before) });
    }
    steps
}

pub(super) fn saved(curve: &[Step], n: usize) -> f64 {
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

/// The fewest pages that save `share` of what all do.
pub(super) fn count_for(curve: &[Step], share: f64) -> usize {
    let all = curve.last().map_or(0.0, |step| step.saved);
    let wanted = all * share.clamp(0.0, 1.0);
    // Sums of floating-point numbers differ in the last digits by their order.
    let reached = |n: usize| saved(curve, n) >= wanted * (1.0 - 1e-9);
    let (mut low, mut high) = (0, curve.last().map_or(0, |step| step.pages));
    while low < high {
        let middle = low.midpoint(high);
        if reached(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

pub(super) fn of(curve: &[Step]) -> Shape {
    let Some(last) = curve.last().filter(|step| step.saved > 0.0) else { return Shape::Nothing };
    let all = last.pages;
    let is_large = all >= FEW;
    if is_large && saved(curve, all.div_ceil(8)) < FLAT_SHARE * last.saved {
        return Shape::Flat;
    }
    if is_large && count_for(curve, 0.9) as f64 > ALL_PART * all as f64 {
        return Shape::AllNeeded;
    }
    // The knee is where the curve lies farthest above the straight line to its end (Satopää et al. 2011).
    let above = |step: &Step| step.saved / last.saved - step.pages as f64 / all as f64;
    let knee = curve.iter().max_by(|a, b| above(a).total_cmp(&above(b)).then(b.pages.cmp(&a.pages)));
    match knee.map(|step| step.pages) {
        Some(pages) if pages > 0 && pages < all => Shape::Knee(pages),
        _ => Shape::AllNeeded,
    }
}
