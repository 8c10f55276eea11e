//! Bounds of the fragmentation indices of free blocks of which the kernel capped some counts.

use pagelab_model::Order;
use pagelab_model::pagetype::CappedAreas;

use crate::fragmentation_index::{
    WOULD_SUCCEED, format_kernel_decimal, fragmentation_permille, unusable_permille,
};

/// Bounds of an index in thousandths; equal where every count is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexBounds {
    /// Lower bound.
    pub permille_min: i64,
    /// Upper bound.
    pub permille_max: i64,
}

impl IndexBounds {
    fn exact(permille: i64) -> IndexBounds {
        IndexBounds { permille_min: permille, permille_max: permille }
    }

    /// The index, unless only bounds of it are known.
    pub fn exact_permille(self) -> Option<i64> {
        (self.permille_min == self.permille_max).then_some(self.permille_min)
    }
}

/// Formats an index as the kernel prints it, or its bounds: `0.611`, `≥0.611`, `≤0.400`, `0 to 1`.
pub fn format_bounds(bounds: IndexBounds) -> String {
    let IndexBounds { permille_min, permille_max } = bounds;
    let [min, max] = [permille_min, permille_max].map(format_kernel_decimal);
    match (permille_min, permille_max) {
        _ if permille_min == permille_max => min,
        (..=0, 1000..) => "0 to 1".to_owned(),
        (_, 1000..) => format!("≥{min}"),
        (..=0, _) => format!("≤{max}"),
        _ => format!("{min} to {max}"),
    }
}

/// Bounds of F_u(j). More blocks below order j raise it towards 1, more blocks from order j on lower it
/// towards 0.
pub fn unusable_bounds(areas: &CappedAreas, order: Order) -> IndexBounds {
    let permille = i64::try_from(unusable_permille(&areas.counts_min, order)).unwrap_or(i64::MAX);
    IndexBounds {
        permille_min: if areas.is_exact_from(order) { permille } else { 0 },
        permille_max: if areas.is_exact_below(order) { permille } else { 1000 },
    }
}

/// Bounds of F_i(j). The quotient that is subtracted from 1 is a mean over the blocks, of 2^i / 2^j each:
/// more blocks of order i draw F_i towards 1 − 2^i / 2^j.
pub fn fragmentation_bounds(areas: &CappedAreas, order: Order) -> IndexBounds {
    let permille = fragmentation_permille(&areas.counts_min, order);
    if permille == WOULD_SUCCEED {
        // A block is free already; more cannot change that.
        return IndexBounds::exact(permille);
    }
    let capped = areas.is_capped.iter().take(order.index()).enumerate().filter(|&(_, &capped)| capped);
    capped.fold(IndexBounds::exact(permille), |bounds, (at, _)| {
        let limit = 1000 - 1000i64.checked_shr((order.index() - at) as u32).unwrap_or(0);
        IndexBounds {
            permille_min: bounds.permille_min.min(limit),
            permille_max: bounds.permille_max.max(limit),
        }
    })
}

#[cfg(test)]
mod tests {
    use pagelab_model::FreeAreas;
    use pagelab_model::random::SplitMix64;

    use super::*;

    fn areas(counts: &[u64], capped: &[usize]) -> CappedAreas {
        let is_capped = (0..counts.len()).map(|order| capped.contains(&order)).collect();
        CappedAreas { counts_min: FreeAreas::new(counts.to_vec()).unwrap(), is_capped }
    }

    #[test]
    fn a_capped_count_bounds_the_indices_from_its_side() {
        // 100 000 + 2 × 10 pages below order 2, and 4 × 100 from it on.
        let at = |capped: &[usize]| areas(&[100_000, 10, 100, 0], capped);
        for (capped, order, unusable, fragmentation) in [
            (&[][..], 2, "0.996", "-1.000"),
            (&[0], 2, "≥0.996", "-1.000"),
            (&[2], 2, "≤0.996", "-1.000"),
            (&[0, 2], 2, "0 to 1", "-1.000"),
            (&[0], 0, "0.000", "-1.000"),
            (&[], 3, "1.000", "0.875"),
            (&[0], 3, "1.000", "0.875"),
            (&[2], 3, "1.000", "0.500 to 0.875"),
        ] {
            let (areas, order) = (at(capped), Order(order));
            assert_eq!(format_bounds(unusable_bounds(&areas, order)), unusable, "{capped:?}");
            assert_eq!(format_bounds(fragmentation_bounds(&areas, order)), fragmentation, "{capped:?}");
        }
    }

    #[test]
    fn every_machine_with_at_least_these_counts_is_within_the_bounds() {
        let mut random = SplitMix64::new(7);
        for _ in 0..20_000 {
            let size = 1 + random.next_below(300);
            let counts: Vec<u64> = (0..7).map(|_| random.next_below(3) * random.next_below(size)).collect();
            let capped: Vec<usize> = (0..7).filter(|_| random.next_below(3) == 0).collect();
            let more = |(order, &count): (usize, &u64), random: &mut SplitMix64| {
                if capped.contains(&order) { count + 1 + random.next_below(10 * size) } else { count }
            };
            let actual: Vec<u64> = counts.iter().enumerate().map(|count| more(count, &mut random)).collect();
            let bounded = areas(&counts, &capped);
            let actual = FreeAreas::new(actual).unwrap();
            for order in (0..7).map(Order) {
                let unusable = unusable_permille(&actual, order) as i64;
                let bounds = unusable_bounds(&bounded, order);
                assert!(
                    (bounds.permille_min..=bounds.permille_max).contains(&unusable),
                    "{bounded:?} {order:?}"
                );
                let actual = fragmentation_permille(&actual, order);
                let bounds = fragmentation_bounds(&bounded, order);
                // A cap of 0 blocks, which no kernel prints, may hide the first block.
                if bounded.counts_min.blocks_total() > 0 && actual != WOULD_SUCCEED {
                    assert!(
                        (bounds.permille_min..=bounds.permille_max).contains(&actual),
                        "{bounded:?} {order:?}"
                    );
                }
            }
        }
    }
}
