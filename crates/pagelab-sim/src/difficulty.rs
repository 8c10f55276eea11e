//! How much must be released until a block of an order is free, at worst.

/// F_r(j): pages to release in a zone of so many, in an order that does not care where they lie, until a
/// block of 2^order is sure to be free: (N / 2^j)(2^j − 1) + 1 (Gorman and Whitcroft 2006, section 10).
/// `None`: the zone has no such block.
pub fn released(frames: u64, order: u8) -> Option<u64> {
    let block = 1u64.checked_shl(u32::from(order))?;
    let blocks = frames / block;
    (blocks > 0).then(|| blocks * (block - 1) + 1)
}

/// The same as a share of a zone that is very large, in hundredths of a percent, rounded half up: Figure 9.
pub fn share(order: u8) -> u32 {
    let block = 1u64 << order.min(32);
    ((20_000 * (block - 1) + block) / (2 * block)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_papers_figure_9() {
        let paper =
            [(1, 5000), (2, 7500), (3, 8750), (4, 9375), (5, 9688), (6, 9844), (10, 9990), (12, 9998)];
        for (order, hundredths) in paper {
            assert_eq!(share(order), hundredths, "order {order}");
            // Of a zone of 4 GiB, whatever the `+ 1` adds.
            let frames = 1 << 20;
            let exact = released(frames, order).unwrap() * 10_000 / frames;
            assert!(exact.abs_diff(u64::from(hundredths)) <= 7, "order {order}: {exact}");
        }
        assert_eq!(released(256, 4), Some(16 * 15 + 1));
        assert_eq!((released(8, 4), released(8, 3), released(8, 0)), (None, Some(8), Some(1)));
    }
}
