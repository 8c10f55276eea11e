//! Where the regions of a plan lie in this run: a mapping may begin elsewhere between two huge pages.

use std::ops::Range;

use pagelab_model::huge_plan::PlannedMapping;
use pagelab_model::profile::MappingKind;

/// A region of a plan at an address of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its offset in the mapping.
    pub offset: u64,
    /// Its addresses.
    pub at: Range<u64>,
}

/// The regions of `planned` for a stretch of the mapping: `addresses`, whose first byte has this offset.
/// `huge` is the size of a huge page here; regions of a smaller page lie on the grid of their own size.
pub fn regions(planned: &PlannedMapping, addresses: &Range<u64>, offset: u64, huge: u64) -> Vec<Placed> {
    let mut sizes: Vec<u64> = planned.regions.iter().map(|region| region.page.0.min(huge)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut placed: Vec<Placed> = sizes
        .into_iter()
        .filter(|size| size.is_power_of_two())
        .flat_map(|size| of_size(planned, addresses, offset, size, huge))
        .collect();
    placed.sort_by_key(|region| region.at.start);
    placed
}

fn of_size(
    planned: &PlannedMapping,
    addresses: &Range<u64>,
    offset: u64,
    size: u64,
    huge: u64,
) -> Vec<Placed> {
    let wanted: Vec<u64> = planned
        .regions
        .iter()
        .filter(|region| region.page.0.min(huge) == size)
        .map(|region| region.offset)
        .collect();
    // Offsets of a mapping that is known by its place are addresses.
    let base = match planned.key.kind {
        MappingKind::Placed => 0,
        _ => addresses.start.wrapping_sub(offset),
    };
    let profiled = if planned.key.kind == MappingKind::Placed { 0 } else { planned.start };
    let place = |at: u64| {
        let end = at.checked_add(size)?;
        let is_in = at >= addresses.start && end <= addresses.end && at.is_multiple_of(size);
        is_in.then(|| Placed { offset: at.wrapping_sub(base), at: at..end })
    };
    if base % size == profiled % size {
        return wanted.into_iter().filter_map(|offset| place(base.checked_add(offset)?)).collect();
    }
    dearest(planned, &wanted, base, size, place)
}

/// The grid lies elsewhere: of the real regions that hold any of the cost, the dearest, as many as planned.
fn dearest(
    planned: &PlannedMapping,
    wanted: &[u64],
    base: u64,
    size: u64,
    place: impl Fn(u64) -> Option<Placed>,
) -> Vec<Placed> {
    let mut costs = std::collections::BTreeMap::<u64, u128>::new();
    let mut add = |from: u64, bytes: u64, cost: u64| {
        // A cell that lies across regions counts in each by what of it lies there.
        let (mut at, end) = (base.wrapping_add(from), base.wrapping_add(from).saturating_add(bytes));
        while at < end {
            let region = at - at % size;
            let part = end.min(region.saturating_add(size)) - at;
            let share = u128::from(cost.max(1)) * u128::from(part) * 1024 / u128::from(bytes.max(1));
            *costs.entry(region).or_default() += share;
            at += part;
        }
    };
    match planned.cells.is_empty() {
        false => planned.cells.iter().for_each(|&(from, bytes, cost)| add(from, bytes, cost)),
        true => wanted.iter().for_each(|&offset| {
            let same = planned.regions.iter().find(|region| region.offset == offset);
            add(offset, size, same.and_then(|region| region.cost_ns).unwrap_or(1));
        }),
    }
    let mut regions: Vec<(u128, Placed)> =
        costs.into_iter().filter_map(|(at, cost)| Some((cost, place(at)?))).collect();
    regions.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.at.start.cmp(&b.1.at.start)));
    regions.truncate(wanted.len());
    regions.into_iter().map(|(_, placed)| placed).collect()
}

/// Ranges that touch, as one; they must be sorted.
pub fn merged(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// What of `range` are whole pages of this size.
pub fn inside(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = range.end - range.end % size;
    match range.start.checked_next_multiple_of(size) {
        Some(start) if start < end => start..end,
        _ => range.start..range.start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use pagelab_model::huge_plan::PlannedRegion;
    use pagelab_model::profile::MappingKey;

    const HUGE: u64 = 2 << 20;

    fn planned(start: u64, offsets: &[u64], cells: &[(u64, u64, u64)]) -> PlannedMapping {
        let region = |&offset: &u64| PlannedRegion { offset, page: Bytes(HUGE), cost_ns: Some(9) };
        PlannedMapping {
            key: MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(16 * HUGE), nth: 0 },
            start,
            bytes: Bytes(16 * HUGE),
            regions: offsets.iter().map(region).collect(),
            cells: cells.to_vec(),
        }
    }

    #[test]
    fn on_the_same_grid_a_region_is_where_its_offset_is() {
        let plan = planned(10 * HUGE + 0x1000, &[HUGE - 0x1000, 40 * HUGE - 0x1000], &[]);
        let at = 70 * HUGE + 0x1000..86 * HUGE + 0x1000;
        let placed = regions(&plan, &at, 0, HUGE);
        assert_eq!(placed, [Placed { offset: HUGE - 0x1000, at: 71 * HUGE..72 * HUGE }]);
    }

    #[test]
    fn on_another_grid_as_many_regions_take_the_most_of_the_cost() {
        // All cost lies in the second half of the planned region; the grid moved by half a page, so that one
        // real region holds it.
        let half = HUGE / 2;
        let plan = planned(8 * HUGE, &[2 * HUGE], &[(2 * HUGE + half, half, 100), (5 * HUGE, HUGE, 10)]);
        let at = 32 * HUGE + half..48 * HUGE + half;
        let placed = regions(&plan, &at, 0, HUGE);
        assert_eq!(placed, [Placed { offset: 2 * HUGE + half, at: 35 * HUGE..36 * HUGE }]);
        // Without cells the regions themselves are the cost.
        let plan = planned(8 * HUGE, &[2 * HUGE, 3 * HUGE], &[]);
        let placed = regions(&plan, &at, 0, HUGE);
        assert_eq!(placed.len(), 2);
        assert!(placed.iter().any(|region| region.at == (35 * HUGE..36 * HUGE)));
    }

    #[test]
    fn a_mapping_that_is_known_by_its_place_has_addresses() {
        let mut plan = planned(0, &[64 * HUGE], &[]);
        plan.key.kind = MappingKind::Placed;
        assert_eq!(regions(&plan, &(60 * HUGE..70 * HUGE), 0, HUGE)[0].at, 64 * HUGE..65 * HUGE);
        assert_eq!(regions(&plan, &(65 * HUGE..70 * HUGE), 0, HUGE), []);
    }

    #[test]
    fn ranges_merge_and_shrink() {
        assert_eq!(merged([0..4, 4..6, 8..9]), [0..6, 8..9]);
        assert_eq!(inside(&(1..10), 4), 4..8);
        assert_eq!(inside(&(5..7), 4), 5..5);
    }
}
