//! Plan of deliberate fragmentation: the number of huge pages to allocate, the pages of each to keep, and the
//! resulting F_u.
//!
//! A huge page is allocated, split, and freed except for a few pages, one in each aligned group of 2^g pages.
//! A group with one page in use is free as one block of each order 0 to g − 1, wherever that page is, so the
//! free lists afterwards are known in advance. One page in each aligned block of the order in question is
//! also the minimum that makes the block unusable.

use pagelab_model::random::SplitMix64;
use pagelab_model::{FreeAreas, Order};

use crate::fragmentation_index::unusable_index;

/// Target for a zone's free memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FragmentationGoal {
    /// The order j of F_u(j).
    pub order: Order,
    /// F_u(j), 0 to 1.
    pub target: f64,
    /// How far off F_u may be.
    pub tolerance: f64,
}

impl FragmentationGoal {
    /// Default tolerance of F_u.
    pub const TOLERANCE: f64 = 0.02;

    /// Whether a zone is at its target.
    pub fn is_met(&self, areas: &FreeAreas) -> bool {
        (unusable_index(areas, self.order) - self.target).abs() <= self.tolerance
    }
}

/// Allocated and kept memory: units, and groups of pages within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepPattern {
    /// Order of one allocation: a huge page.
    pub unit_order: Order,
    /// One page is kept in each aligned group of this order; at most `unit`.
    pub group_order: Order,
}

impl KeepPattern {
    /// The fewest pages that make blocks of `order` unusable, in units that are physically contiguous and
    /// aligned.
    pub fn for_aligned_units(unit: Order, order: Order) -> KeepPattern {
        KeepPattern { unit_order: unit, group_order: order.min(unit) }
    }

    /// For units of base pages, which are contiguous in memory by runs that are not aligned: each aligned
    /// block within a run contains one whole group of half its size.
    pub fn for_unaligned_units(unit: Order, order: Order) -> KeepPattern {
        let group = order.min(unit);
        KeepPattern { unit_order: unit, group_order: Order(if group.0 > 1 { group.0 - 1 } else { group.0 }) }
    }

    /// Pages that are kept of each unit.
    pub fn kept_pages_per_unit(&self) -> u64 {
        1u64.checked_shl(u32::from(self.unit_order.0.saturating_sub(self.group_order.0))).unwrap_or(u64::MAX)
    }

    /// Which pages of a unit are kept, ascending. Equal for equal seeds, independent of earlier allocations.
    pub fn kept_pages(&self, seed: u64, unit: u64) -> impl Iterator<Item = u64> + use<> {
        // Mixed by one draw, so that no unit's draws are another unit's.
        let mut random = SplitMix64::new(SplitMix64::new(seed).next_u64() ^ unit.wrapping_mul(UNIT_STEP));
        let group = self.group_order.to_pages().0;
        (0..self.kept_pages_per_unit()).map(move |index| index * group + random.next_below(group))
    }

    /// Fingerprint of the pages kept of the first units: equal numbers mean equal decisions.
    pub fn digest(&self, seed: u64, units: u64) -> u64 {
        // FNV-1a over words instead of bytes.
        let fold = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        let start =
            fold(0xcbf2_9ce4_8422_2325, u64::from(self.unit_order.0) << 8 | u64::from(self.group_order.0));
        (0..units).flat_map(|unit| self.kept_pages(seed, unit)).fold(start, fold)
    }
}

/// An odd number, so that all units differ.
const UNIT_STEP: u64 = 0xd6e8_feb8_6659_fd93;

/// Steps, and their result.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentationPlan {
    /// Units to take.
    pub units: u64,
    /// F_u before.
    pub unusable_before: f64,
    /// F_u afterwards, if nothing else moves.
    pub unusable_after: f64,
    /// The free lists afterwards, if nothing else moves.
    pub predicted_areas: FreeAreas,
}

/// A target that cannot be reached from here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetError {
    /// With all the units that may be taken F_u is only this.
    AboveReach {
        /// The most that can be reached.
        unusable_max: f64,
    },
    /// F_u is this without taking anything. Taking and splitting makes no memory whole.
    BelowCurrent {
        /// The least that can be reached.
        unusable_min: f64,
    },
}

/// Plans for a zone whose free memory is `areas`. At most `units_max` units may be taken.
pub fn plan_fragmentation(
    areas: &FreeAreas,
    goal: &FragmentationGoal,
    shape: KeepPattern,
    units_max: u64,
) -> Result<FragmentationPlan, TargetError> {
    let most_units =
        units_max.min(u64::try_from(areas.blocks_suitable(shape.unit_order)).unwrap_or(u64::MAX));
    let areas_after = |units: u64| predict_free_areas(areas, shape, units);
    let index = |units: u64| unusable_index(&areas_after(units), goal.order);
    let (unusable_before, most) = (index(0), index(most_units));
    if unusable_before > goal.target + goal.tolerance {
        return Err(TargetError::BelowCurrent { unusable_min: unusable_before });
    }
    if most < goal.target - goal.tolerance {
        return Err(TargetError::AboveReach { unusable_max: most });
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
    let (unusable_after, predicted_areas) = (index(units), areas_after(units));
    Ok(FragmentationPlan { units, unusable_before, unusable_after, predicted_areas })
}

/// Free lists after this many units were allocated, split and freed except for the kept pages. Units come
/// from the smallest blocks that hold them, as the kernel's allocator takes them; more than there are is as
/// many as there are.
pub fn predict_free_areas(areas: &FreeAreas, shape: KeepPattern, units: u64) -> FreeAreas {
    let mut counts = areas.counts().to_vec();
    let unit = shape.unit_order.index();
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
        // The rest of the last block stays as one block of each order whose bit is set in its size.
        let rest = blocks.saturating_mul(each) - taken;
        for (bit, count) in counts[unit..order].iter_mut().enumerate() {
            *count += rest >> bit & 1;
        }
    }
    let groups_per_unit = (units - left).saturating_mul(shape.kept_pages_per_unit());
    for count in counts.iter_mut().take(shape.group_order.index()) {
        *count = count.saturating_add(groups_per_unit);
    }
    // As many orders as before: always few enough.
    FreeAreas::new(counts).unwrap_or_default()
}

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentationStep {
    /// Take this number of units more.
    Fragment(u64),
    /// Free this many units completely.
    Release(u64),
    /// Nothing: F_u is as near as one unit more or less can bring it, or near enough.
    Done,
}

/// The next step from the free lists as they are now. `held_units` units are taken at present.
pub fn next_step(
    areas: &FreeAreas,
    goal: &FragmentationGoal,
    shape: KeepPattern,
    held_units: u64,
) -> FragmentationStep {
    let free = areas.free_pages() as f64;
    let index_error = unusable_index(areas, goal.order) - goal.target;
    // Share of the free memory that one unit makes unusable; at least a tenth of the tolerance.
    let unit = shape.unit_order.to_pages().0 as f64 / free.max(1.0);
    if index_error.abs() <= unit.max(goal.tolerance / TOLERANCE_DIVISOR) {
        return FragmentationStep::Done;
    }
    if index_error > 0.0 {
        let units = (index_error / unit).round() as u64;
        return if held_units == 0 {
            FragmentationStep::Done
        } else {
            FragmentationStep::Release(units.clamp(1, held_units))
        };
    }
    match plan_fragmentation(areas, goal, shape, u64::MAX) {
        Ok(plan) => FragmentationStep::Fragment(plan.units.max(1)),
        Err(_) => FragmentationStep::Fragment(
            u64::try_from(areas.blocks_suitable(shape.unit_order)).unwrap_or(u64::MAX),
        ),
    }
}

/// An eighth of the tolerance is near enough: what moves by itself is more.
const TOLERANCE_DIVISOR: f64 = 8.0;

#[cfg(test)]
mod tests;
