//! Fragmentation indices of a zone, as computed by the kernel and as defined by the paper.
//!
//! | index | form | definition |
//! |---|---|---|
//! | F_u(j) | kernel | `(free − (suitable << j)) · 1000 / free` in integers; 1000 if nothing is free (mm/vmstat.c, `unusable_free_index`, since 2.6.35) |
//! | F_u(j) | exact | `(free − Σ_{i≥j} 2^i k_i) / free`, the same quotient not rounded (Gorman & Whitcroft, OLS 2006, section 2) |
//! | F_i(j) | kernel | −1000 if a block of order j is free; 0 if no block is; else `1000 − (1000 + free · 1000 / 2^j) / blocks` (mm/vmstat.c, `__fragmentation_index`, since 2.6.35) |
//! | F_i(j) | paper | `1 − (free / 2^j) / blocks`, 0 if no block is free; below 0 only if the request can be met (OLS 2006, section 2) |

use pagelab_model::{FreeAreas, Order};

/// F_u(j) in thousandths, as the kernel prints it in `extfrag/unusable_index`.
pub fn unusable_permille(areas: &FreeAreas, order: Order) -> u64 {
    let free = areas.free_pages();
    if free == 0 {
        return 1000;
    }
    permille_of(free - areas.free_pages_from_order(order), free) as u64
}

/// `part * 1000 / whole` in integers. The kernel computes in 64 bits; counts that no machine has, but a
/// file may claim, are brought into range first, which costs the last of more than 30 digits.
fn permille_of(part: u128, total: u128) -> u128 {
    const ROOM: u32 = 10;
    if part.leading_zeros() >= ROOM {
        part * 1000 / total
    } else {
        (part >> ROOM) * 1000 / (total >> ROOM).max(1)
    }
}

/// F_u(j) as an exact ratio, rounded once to the nearest double; 1 if nothing is free.
pub fn unusable_index(areas: &FreeAreas, order: Order) -> f64 {
    let free = areas.free_pages();
    if free == 0 {
        return 1.0;
    }
    (free - areas.free_pages_from_order(order)) as f64 / free as f64
}

/// F_u(j) as the kernel prints it: three digits, the rest cut off.
pub fn format_unusable(areas: &FreeAreas, order: Order) -> String {
    format_kernel_decimal(i64::try_from(unusable_permille(areas, order)).unwrap_or(i64::MAX))
}

/// A share with three digits, the rest cut off as the kernel does; what a division made too small by less
/// than a millionth is not cut off.
pub fn format_share(share: f64) -> String {
    format_kernel_decimal((share.clamp(0.0, 1.0) * 1000.0 + 1e-6).floor() as i64)
}

/// F_i in thousandths of a request that would succeed.
pub(crate) const WOULD_SUCCEED: i64 = -1000;

/// Whether all requests with these F_i, in thousandths, would succeed, so that the values say nothing; false
/// without any.
pub fn all_would_succeed(permilles: impl IntoIterator<Item = i64>) -> bool {
    let mut permilles = permilles.into_iter().peekable();
    permilles.peek().is_some() && permilles.all(|permille| permille == WOULD_SUCCEED)
}

/// F_i(j) in thousandths, as the kernel prints it in `extfrag/extfrag_index`.
///
/// Below zero without being −1000 is possible for a single free block: −500 is such a value.
pub fn fragmentation_permille(areas: &FreeAreas, order: Order) -> i64 {
    let blocks = areas.blocks_total();
    if blocks == 0 {
        return 0;
    }
    if areas.blocks_suitable(order) > 0 {
        return WOULD_SUCCEED;
    }
    let requested = u128::from(order.to_pages().0);
    let spread = (1000 + permille_of(areas.free_pages(), requested)) / blocks;
    1000 - i64::try_from(spread).unwrap_or(i64::MAX)
}

/// F_i(j) as the paper defines it; 0 if no block is free. A value below 0 means that the request can be met;
/// if it can, the value may also be above 0, and has no meaning for fragmentation.
pub fn fragmentation_paper(areas: &FreeAreas, order: Order) -> f64 {
    let blocks = areas.blocks_total();
    if blocks == 0 {
        return 0.0;
    }
    1.0 - (areas.free_pages() as f64 / order.to_pages().0 as f64) / blocks as f64
}

/// A value in thousandths as the kernel prints it: `%d.%03d` of quotient and remainder, so that −500
/// becomes `0.-500` and −1000 becomes `-1.000`.
pub fn format_kernel_decimal(permille: i64) -> String {
    // As in C's `%03d`, the sign of the remainder counts as one of the three places.
    format!("{}.{:03}", permille / 1000, permille % 1000)
}

#[cfg(test)]
mod tests {
    use pagelab_model::random::SplitMix64;

    use super::*;

    fn areas(counts: &[u64]) -> FreeAreas {
        FreeAreas::new(counts.to_vec()).unwrap()
    }

    #[test]
    fn an_empty_zone_has_the_kernels_edge_values() {
        let none = areas(&[0; 11]);
        assert_eq!(unusable_permille(&none, Order(3)), 1000);
        assert_eq!(fragmentation_permille(&none, Order(3)), 0);
        assert_eq!(fragmentation_paper(&none, Order(3)), 0.0);
    }

    #[test]
    fn the_kernels_odd_negatives_are_printed_as_it_prints_them() {
        for (permille, text) in [
            (-500, "0.-500"),
            (-1000, "-1.000"),
            (0, "0.000"),
            (992, "0.992"),
            (-5, "0.-05"),
            (1000, "1.000"),
        ] {
            assert_eq!(format_kernel_decimal(permille), text);
        }
        assert!(all_would_succeed([-1000, -1000]));
        assert!(!all_would_succeed([-1000, -500]) && !all_would_succeed([]), "no value is no success");
        // One free block of order 8 and a request of order 9: 1000 - (1000 + 500) / 1.
        let mut counts = [0; 11];
        counts[8] = 1;
        assert_eq!(fragmentation_permille(&areas(&counts), Order(9)), -500);
    }

    #[test]
    fn the_papers_form_is_negative_where_the_request_can_be_met() {
        let mut counts = [0; 11];
        counts[10] = 4;
        assert!(fragmentation_paper(&areas(&counts), Order(9)) < 0.0);
        assert_eq!(fragmentation_permille(&areas(&counts), Order(9)), -1000);
    }

    #[test]
    fn counts_up_to_two_to_the_63_keep_their_meaning() {
        let mut counts = vec![1u64 << 63; 21];
        assert!(unusable_permille(&areas(&counts), Order(20)) < 1000);
        counts[20] = 0;
        assert_eq!(unusable_permille(&areas(&counts), Order(20)), 1000);
        // 20 orders of 2^63 blocks: 1000 - (1000 + (2^20 - 1) 2^63 1000 / 2^20) / (20 2^63), in integers.
        assert_eq!(fragmentation_permille(&areas(&counts), Order(20)), 951);
        let all = vec![u64::MAX; FreeAreas::ORDERS_MAX];
        assert_eq!(unusable_permille(&areas(&all), Order(63)), 499);
    }

    #[test]
    fn the_exact_share_and_the_thousandths_are_one_text() {
        let mut random = SplitMix64::new(5);
        for _ in 0..20_000 {
            let all = areas(&std::array::from_fn::<u64, 11, _>(|_| random.next_below(1 << 20)));
            let order = Order(random.next_below(11) as u8);
            let text = format_unusable(&all, order);
            assert_eq!(format_share(unusable_index(&all, order)), text, "{all:?}");
            assert_eq!(format_share(unusable_permille(&all, order) as f64 / 1000.0), text, "{all:?}");
        }
    }

    #[test]
    fn shares_are_cut_off_as_the_kernel_cuts_them() {
        for (share, text) in
            [(0.0669, "0.066"), (0.067, "0.067"), (1.0, "1.000"), (0.0, "0.000"), (f64::NAN, "0.000")]
        {
            assert_eq!(format_share(share), text, "{share}");
        }
    }
}
