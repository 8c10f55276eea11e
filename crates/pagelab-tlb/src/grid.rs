//! Counts by cell, combined by huge page; the start of a mapping within a huge page decides which cells share
//! one.

use pagelab_model::profile::{MappingIdentity, MappingKind};

/// A cell of more pages than this has no information on any of them.
pub const CELL_PAGES_MAX: u64 = 1 << 16;

/// The address of offset 0 of a mapping that begins at `start`: offsets of placed ones are addresses.
pub fn base_address(key: &MappingIdentity, start: u64) -> u64 {
    if key.kind == MappingKind::Placed { 0 } else { start }
}

/// The parts of `[offset, offset + bytes)` by page: (page's number, bytes in it).
pub fn split_by_page(base: u64, offset: u64, bytes: u64, page: u64) -> impl Iterator<Item = (u64, u64)> {
    let page = page.max(1);
    let start = base.saturating_add(offset);
    let end = start.saturating_add(bytes);
    let numbers = if start < end { start / page..(end - 1) / page + 1 } else { 0..0 };
    numbers.map(move |number| {
        let from = start.max(number * page);
        let to = end.min((number * page).saturating_add(page));
        (number, to - from)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn parts_are_those_of_a_count_byte_by_byte() {
        for base in 0..9 {
            for offset in 0..9 {
                for bytes in 0..30 {
                    let mut by_byte: BTreeMap<u64, u64> = BTreeMap::new();
                    (offset..offset + bytes).for_each(|at| *by_byte.entry((base + at) / 8).or_default() += 1);
                    let found: BTreeMap<_, _> = split_by_page(base, offset, bytes, 8).collect();
                    assert_eq!(found, by_byte);
                }
            }
        }
        assert_eq!(split_by_page(u64::MAX, 5, 9, 8).count(), 0);
    }
}
