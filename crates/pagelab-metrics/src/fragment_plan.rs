//! Planning fragmentation on purpose: how many huge pages to take, which of their pages to keep, and how
//! far that gets.
//!
//! A huge page is taken, split, and given back but for a few pages, one in each aligned group of 2^g pages. A
//! group with one page in use is free as one block of each order 0 to g − 1, wherever that page lies, so the
//! free lists afterwards are known before anything is taken. One page in each aligned block of the order in
//! question is also the least that makes the block unusable.

use pagelab_model::seed::SplitMix64;
use pagelab_model::{FreeAreas, Order};

use crate::frag::unusable;

/// What is wanted of a zone's free memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The order j of F_u(j).
    pub order: Order,
    /// F_u(j), 0 to 1.
    pub target: f64,
    /// How far off F_u may be.
    pub tolerance: f64,
}

impl Goal {
    /// How far off F_u may be, if nobody says otherwise.
    pub const TOLERANCE: f64 = 0.02;

    /// Whether a zone is where it shall be.
    pub fn is_met(&self, areas: &FreeAreas) -> bool {
        (unusable(areas, self.order) - self.target).abs() <= self.tolerance
    }
}

/// What is taken and kept: which units, and which groups of pages within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Order of what is taken at a time: a huge page.
    pub unit: Order,
    /// One page is kept in each aligned group of this order; at most `unit`.
    pub group: Order,
}

impl Shape {
    /// The fewest pages that make blocks of `order` unusable, in units that are physically contiguous and
    /// aligned.
    pub fn fewest(unit: Order, order: Order) -> Shape {
        Shape { unit, group: order.min(unit) }
    }

    /// For units of base pages, which are contiguous in memory by runs that are not aligned: each aligned
    /// block that lies in a run contains one whole group of half its size.
    pub fn unaligned(unit: Order, order: Order) -> Shape {
        let group = order.min(unit);
        Shape { unit, group: Order(if group.0 > 1 { group.0 - 1 } else { group.0 }) }
    }

    /// Pages that are kept of each unit.
    pub fn kept_per_unit(&self) -> u64 {
        1u64.checked_shl(u32::from(self.unit.0.saturating_sub(self.group.0))).unwrap_or(u64::MAX)
    }

    /// Which pages of a unit are kept, ascending. The same for the same seed, whatever was taken before.
    pub fn kept(&self, seed: u64, unit: u64) -> impl Iterator<Item = u64> + use<> {
        // Mixed by one draw, so that no unit's draws are another unit's.
        let mut random = SplitMix64::new(SplitMix64::new(seed).draw() ^ unit.wrapping_mul(UNIT_STEP));
        let group = self.group.pages().0;
        (0..self.kept_per_unit()).map(move |index| index * group + random.below(group))
    }

    /// A number that stands for the pages kept of the first units: equal numbers, equal decisions.
    pub fn digest(&self, seed: u64, units: u64) -> u64 {
        // FNV-1a over words instead of bytes.
        let fold = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        let start = fold(0xcbf2_9ce4_8422_2325, u64::from(self.unit.0) << 8 | u64::from(self.group.0));
        (0..units).flat_map(|unit| self.kept(seed, unit)).fold(start, fold)
    }
}

/// An odd number, so that all units differ.
const UNIT_STEP: u64 = 0xd6e8_feb8_6659_fd93;

/// What to do, and where it leads.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentPlan {
    /// Units to take.
    pub units: u64,
    /// F_u before.
    pub before: f64,
    /// F_u afterwards, if nothing else moves.
    pub reached: f64,
    /// The free lists afterwards, if nothing else moves.
    pub predicted: FreeAreas,
}

/// A target that cannot be reached from here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unreachable {
    /// With all the units that may be taken F_u is only this.
    Above {
        /// The most that can be reached.
        most: f64,
    },
    /// F_u is this without taking anything. Taking and splitting makes no memory whole.
    Below {
        /// The least that can be reached.
        least: f64,
    },
}

/// Plans for a zone whose free memory is `areas`. At most `units_max` units may be taken.
pub fn plan(
    areas: &FreeAreas,
    goal: &Goal,
    shape: Shape,
    units_max: u64,
) -> Result<FragmentPlan, Unreachable> {
    let most_units = units_max.min(u64::try_from(areas.blocks_suitable(shape.unit)).unwrap_or(u64::MAX));
    let after = |units: u64| spoiled(areas, shape, units);
    let index = |units: u64| unusable(&after(units), goal.order);
    let (before, most) = (index(0), index(most_units));
    if before > goal.target + goal.tolerance {
        return Err(Unreachable::Below { least: before });
    }
    if most < goal.target - goal.tolerance {
        return Err(Unreachable::Above { most });
    }
    // The first number of units with which the target is reached. F_u does not fall with more units, but for
    // the pages kept of blocks that were too small before, where the order is above the unit's.
    let (mut low, mut high) = (0, most_units);
    while low < high {
        let middle = low + (high - low) / 2;
        if index(middle) < goal.target { low = middle + 1 } else { high = middle }
    }
    let off = |units: u64| (index(units) - goal.target).abs();
    let units = if low > 0 && off(low - 1) <= off(low) { low - 1 } else { low };
    Ok(FragmentPlan { units, before, reached: index(units), predicted: after(units) })
}

/// The free lists once so many units were taken, split and given back but for the kept pages. Units come
/// from the smallest blocks that hold them, as the kernel's allocator takes them; more than there are is as
/// many as there are.
pub fn spoiled(areas: &FreeAreas, shape: Shape, units: u64) -> FreeAreas {
    let mut counts = areas.counts().to_vec();
    let unit = shape.unit.index();
    let mut left = units;
    for order in unit..counts.len() {
        // A block of more units than there are pages in 64 bits is in no machine.
        let each = 1u64.checked_shl((order - unit) as u32).unwrap_or(u64::MAX);
        let blocks = counts[order].min(left.div_ceil(each));
        if blocks == 0 {
            continue;
        }
        counts[order] -= blocks;
        let taken = left.min(blocks.saturating_mul(each));
        left -= taken;
        // What is not taken of the last block stays as one block of each order that its size has a bit for.
        let rest = blocks.saturating_mul(each) - taken;
        for (bit, count) in counts[unit..order].iter_mut().enumerate() {
            *count += rest >> bit & 1;
        }
    }
    let groups = (units - left).saturating_mul(shape.kept_per_unit());
    for count in counts.iter_mut().take(shape.group.index()) {
        *count = count.saturating_add(groups);
    }
    // As many orders as before: always few enough.
    FreeAreas::new(counts).unwrap_or_default()
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take so many units more.
    Spoil(u64),
    /// Give back so many units wholly.
    Release(u64),
    /// Nothing: F_u is as near as one unit more or less can bring it, or near enough.
    Stay,
}

/// The next step from the free lists as they are now. `held` units are taken at present.
pub fn step(areas: &FreeAreas, goal: &Goal, shape: Shape, held: u64) -> Step {
    let free = areas.free_pages() as f64;
    let off = unusable(areas, goal.order) - goal.target;
    // What one unit makes unusable, as a share of the free memory; at least a tenth of what is allowed.
    let unit = shape.unit.pages().0 as f64 / free.max(1.0);
    if off.abs() <= unit.max(goal.tolerance / NEAR_ENOUGH) {
        return Step::Stay;
    }
    if off > 0.0 {
        let units = (off / unit).round() as u64;
        return if held == 0 { Step::Stay } else { Step::Release(units.clamp(1, held)) };
    }
    match plan(areas, goal, shape, u64::MAX) {
        Ok(plan) => Step::Spoil(plan.units.max(1)),
        Err(_) => Step::Spoil(u64::try_from(areas.blocks_suitable(shape.unit)).unwrap_or(u64::MAX)),
    }
}

/// An eighth of the tolerance is near enough: what moves by itself is more.
const NEAR_ENOUGH: f64 = 8.0;

#[cfg(test)]
mod tests;
