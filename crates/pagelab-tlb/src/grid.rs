//! Counts by cell, put together by huge page: where a mapping begins between two huge pages decides what
//! shares one.

use std::collections::BTreeMap;

use pagelab_model::huge_plan::{PlannedMapping, PlannedRegion};
use pagelab_model::profile::{MappingKey, MappingKind};

/// A cell of more pages than this tells nothing about any of them.
pub const PAGES_OF_CELL: u64 = 1 << 16;

/// The address of offset 0 of a mapping that begins at `start`: offsets of placed ones are addresses.
pub fn base(key: &MappingKey, start: u64) -> u64 {
    if key.kind == MappingKind::Placed { 0 } else { start }
}

/// The number of the page of `page` bytes in which an offset lies, counted from address 0.
pub fn page_number(base: u64, offset: u64, page: u64) -> u64 {
    base.saturating_add(offset) / page.max(1)
}

/// The offset at which a page begins; `None` if it begins before the mapping.
pub fn page_offset(base: u64, number: u64, page: u64) -> Option<u64> {
    number.checked_mul(page)?.checked_sub(base)
}

/// The parts of `[offset, offset + bytes)` by page: (page's number, bytes in it).
pub fn parts(base: u64, offset: u64, bytes: u64, page: u64) -> impl Iterator<Item = (u64, u64)> {
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

/// The regions of a plan on the grid of a run in which the mapping begins at `start` and is `bytes` long.
///
/// Where it begins as far behind a huge page as it did when it was profiled, these are the planned ones that
/// still fit. Else the cells say what each huge page of this run would save; as many are taken as were
/// planned, dearest first, and none without cost. Without cells, a region becomes the page with most of it.
pub fn placed(planned: &PlannedMapping, start: u64, bytes: u64) -> Vec<PlannedRegion> {
    let (then, now) = (base(&planned.key, planned.start), base(&planned.key, start));
    let end = if planned.key.kind == MappingKind::Placed { u64::MAX } else { bytes };
    let fits = |region: &PlannedRegion| region.offset.checked_add(region.page.0).is_some_and(|to| to <= end);
    let moved = |region: &&PlannedRegion| !then.abs_diff(now).is_multiple_of(region.page.0.max(1));
    if !planned.regions.iter().any(|region| moved(&region)) {
        return planned.regions.iter().copied().filter(fits).collect();
    }
    let mut regions = Vec::new();
    let mut sizes: Vec<_> = planned.regions.iter().map(|region| region.page).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for &page in sizes.iter().rev() {
        let wanted: Vec<_> = planned.regions.iter().filter(|region| region.page == page).collect();
        let mut costs: BTreeMap<u64, u128> = BTreeMap::new();
        let cells = planned.cells.iter().filter(|_| Some(&page) == sizes.last());
        let cells = cells.filter(|&&(_, bytes, _)| bytes / page.0.max(1) <= PAGES_OF_CELL);
        for &(offset, bytes, cost) in cells {
            for (number, part) in parts(now, offset, bytes, page.0) {
                let share = u128::from(cost) * u128::from(part) / u128::from(bytes.max(1));
                *costs.entry(number).or_default() += share;
            }
        }
        if costs.is_empty() {
            for region in &wanted {
                let middle = region.offset.saturating_add(page.0 / 2);
                *costs.entry(page_number(now, middle, page.0)).or_default() +=
                    u128::from(region.cost_ns.unwrap_or(1).max(1));
            }
        }
        let region = |(number, cost): (u64, u128)| {
            let offset = page_offset(now, number, page.0)?;
            let cost_ns = Some(u64::try_from(cost).unwrap_or(u64::MAX)).filter(|_| !planned.cells.is_empty());
            Some(PlannedRegion { offset, page, cost_ns }).filter(fits).filter(|_| cost > 0)
        };
        let mut found: Vec<_> = costs.into_iter().filter_map(region).collect();
        found.sort_by_key(|region| (std::cmp::Reverse(region.cost_ns), region.offset));
        found.truncate(wanted.len());
        regions.extend(found);
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;

    const PAGE: u64 = 64;

    fn planned(start: u64, offsets: &[u64], cells: Vec<(u64, u64, u64)>) -> PlannedMapping {
        let key = MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(512), nth: 0 };
        let region = |&offset: &u64| PlannedRegion { offset, page: Bytes(PAGE), cost_ns: Some(1) };
        let regions = offsets.iter().map(region).collect();
        PlannedMapping { key, start, bytes: Bytes(512), regions, cells }
    }

    #[test]
    fn parts_are_those_of_a_count_byte_by_byte() {
        for base in 0..9 {
            for offset in 0..9 {
                for bytes in 0..30 {
                    let mut by_byte: BTreeMap<u64, u64> = BTreeMap::new();
                    (offset..offset + bytes).for_each(|at| *by_byte.entry((base + at) / 8).or_default() += 1);
                    let found: BTreeMap<_, _> = parts(base, offset, bytes, 8).collect();
                    assert_eq!(found, by_byte);
                }
            }
        }
        assert_eq!(parts(u64::MAX, 5, 9, 8).count(), 0);
    }

    #[test]
    fn the_same_grid_keeps_the_regions_that_fit() {
        let plan = planned(1024 + 16, &[48, 112, 432], vec![]);
        let offsets = |start, bytes| -> Vec<u64> {
            placed(&plan, start, bytes).iter().map(|region| region.offset).collect()
        };
        assert_eq!(offsets(4096 + 16, 512), [48, 112, 432]);
        assert_eq!(offsets(4096 + 16, 300), [48, 112]);
    }

    #[test]
    fn another_grid_is_filled_from_the_cells() {
        // Two planned regions; the cost lies in bytes 100 to 180 and a little in 60 to 64.
        let cells = vec![(60, 4, 8), (100, 40, 400), (140, 40, 400)];
        let plan = planned(0, &[64, 128], cells);
        let found = placed(&plan, 32, 512);
        let shown: Vec<_> = found.iter().map(|region| (region.offset, region.cost_ns)).collect();
        // Pages begin at 32, 96, 160 …: 96 to 160 has most.
        assert_eq!(shown, [(96, Some(600)), (160, Some(200))]);
        // Without cells, the page that has the middle of a region.
        let plain = planned(0, &[64], vec![]);
        let found: Vec<_> = placed(&plain, 32, 512).iter().map(|region| region.offset).collect();
        assert_eq!(found, [96]);
        // What begins before the mapping cannot be had.
        assert!(placed(&planned(0, &[0], vec![(0, 16, 5)]), 32, 512).is_empty());
    }
}
