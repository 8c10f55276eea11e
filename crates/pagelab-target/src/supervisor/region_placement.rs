//! The addresses of a plan's regions in this run: a mapping may begin at another offset in a huge page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pagelab_formats::maps::MapsEntry;
use pagelab_model::huge_plan::PlannedMapping;
use pagelab_model::profile::MappingKind;

/// A region of a plan at an address of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedRegion {
    /// Its offset in the mapping.
    pub offset: u64,
    /// Its addresses.
    pub range: Range<u64>,
}

/// The regions of `planned` for a range of the mapping: `addresses`, whose first byte has this offset.
/// `huge` is the size of a huge page here; regions of a smaller page lie on the grid of their own size.
pub fn place_regions(
    planned: &PlannedMapping,
    addresses: &Range<u64>,
    offset: u64,
    huge: u64,
) -> Vec<PlacedRegion> {
    let sizes: BTreeSet<u64> = planned.regions.iter().map(|region| region.page.0.min(huge)).collect();
    let mut placed: Vec<PlacedRegion> = sizes
        .into_iter()
        .filter(|size| size.is_power_of_two())
        .flat_map(|size| place_regions_of_size(planned, addresses, offset, size, huge))
        .collect();
    placed.sort_by_key(|region| region.range.start);
    placed
}

fn place_regions_of_size(
    planned: &PlannedMapping,
    addresses: &Range<u64>,
    offset: u64,
    size: u64,
    huge: u64,
) -> Vec<PlacedRegion> {
    let planned_offsets: Vec<u64> = planned
        .regions
        .iter()
        .filter(|region| region.page.0.min(huge) == size)
        .map(|region| region.offset)
        .collect();
    // Offsets of a mapping that is known by its place are addresses.
    let (base, profiled) = match planned.key.kind {
        MappingKind::Placed => (0, 0),
        _ => (addresses.start.wrapping_sub(offset), planned.start),
    };
    let place = |at: u64| {
        let end = at.checked_add(size)?;
        let is_in = at >= addresses.start && end <= addresses.end && at.is_multiple_of(size);
        is_in.then(|| PlacedRegion { offset: at.wrapping_sub(base), range: at..end })
    };
    if base % size == profiled % size {
        return planned_offsets.into_iter().filter_map(|offset| place(base.checked_add(offset)?)).collect();
    }
    place_costliest_regions(planned, &planned_offsets, base, size, place)
}

/// The grid differs from that of the profiled run: the costliest regions here, as many as planned.
fn place_costliest_regions(
    planned: &PlannedMapping,
    planned_offsets: &[u64],
    base: u64,
    size: u64,
    place: impl Fn(u64) -> Option<PlacedRegion>,
) -> Vec<PlacedRegion> {
    let mut costs = BTreeMap::<u64, u128>::new();
    let mut add = |from: u64, bytes: u64, cost: u64| {
        // A cell across regions counts in each by its part there.
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
        true => planned_offsets.iter().for_each(|&offset| {
            let same = planned.regions.iter().find(|region| region.offset == offset);
            add(offset, size, same.and_then(|region| region.cost_ns).unwrap_or(1));
        }),
    }
    let mut regions: Vec<(u128, PlacedRegion)> =
        costs.into_iter().filter_map(|(at, cost)| Some((cost, place(at)?))).collect();
    regions.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.range.start.cmp(&b.1.range.start)));
    regions.truncate(planned_offsets.len());
    regions.into_iter().map(|(_, placed)| placed).collect()
}

/// Ranges that touch, as one; they must be sorted.
pub fn merge_ranges(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The whole pages of this size in `range`.
pub fn shrink_to_pages(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = range.end - range.end % size;
    match range.start.checked_next_multiple_of(size) {
        Some(start) if start < end => start..end,
        _ => range.start..range.start,
    }
}

/// Mappings with these flags get no hint: the kernel has rules of its own for stacks, for the low 4 GiB, for
/// mappings that grow down and for hugetlb pages; and a fixed address is fixed.
pub const UNHINTED_FLAGS: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_STACK
    | libc::MAP_32BIT
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB;

/// Offsets in a mapping are kept for programs that align to this or less: glibc's arenas take 64 MiB, page
/// tables of x86-64 end at it. The address bits above it stay random.
const HINT_MODULUS: u64 = 1 << 30;

/// The highest free address for a mapping of this size, below the highest mapping under the stack, where the
/// kernel maps by itself, that equals `profiled` modulo 1 GiB. `maps` is sorted by address. It is a hint: the
/// kernel may choose another one.
pub fn find_hint_address(maps: &[MapsEntry], bytes: u64, profiled: u64, huge: u64) -> Option<u64> {
    let is_stack = |map: &MapsEntry| map.name == "[stack]";
    let below = maps.iter().position(is_stack).unwrap_or(maps.len());
    // The kernel takes a hint only with room for one huge page more (mm/huge_memory.c,
    // `__thp_get_unmapped_area`, 6.7), and keeps a gap under what grows down.
    let room = bytes.checked_add(huge)?;
    maps[..below].windows(2).rev().find_map(|pair| {
        let (low, high) = (pair[0].end.checked_add(huge)?, pair[1].start);
        let last = high.checked_sub(room)?;
        let start = last.checked_sub(last.wrapping_sub(profiled) % HINT_MODULUS)?;
        (start >= low).then_some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::maps;
    use pagelab_model::Bytes;
    use pagelab_model::huge_plan::PlannedRegion;
    use pagelab_model::profile::MappingIdentity;

    const HUGE: u64 = 2 << 20;

    fn planned(start: u64, offsets: &[u64], cells: &[(u64, u64, u64)]) -> PlannedMapping {
        let region = |&offset: &u64| PlannedRegion { offset, page: Bytes(HUGE), cost_ns: Some(9) };
        PlannedMapping {
            key: MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(16 * HUGE), nth: 0 },
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
        let placed = place_regions(&plan, &at, 0, HUGE);
        assert_eq!(placed, [PlacedRegion { offset: HUGE - 0x1000, range: 71 * HUGE..72 * HUGE }]);
    }

    #[test]
    fn on_another_grid_as_many_regions_take_the_most_of_the_cost() {
        // All cost is in the second half of the planned region; the grid moved by half a page, so that one
        // real region has it.
        let half = HUGE / 2;
        let plan = planned(8 * HUGE, &[2 * HUGE], &[(2 * HUGE + half, half, 100), (5 * HUGE, HUGE, 10)]);
        let at = 32 * HUGE + half..48 * HUGE + half;
        let placed = place_regions(&plan, &at, 0, HUGE);
        assert_eq!(placed, [PlacedRegion { offset: 2 * HUGE + half, range: 35 * HUGE..36 * HUGE }]);
        // Without cells the regions themselves are the cost.
        let plan = planned(8 * HUGE, &[2 * HUGE, 3 * HUGE], &[]);
        let placed = place_regions(&plan, &at, 0, HUGE);
        assert_eq!(placed.len(), 2);
        assert!(placed.iter().any(|region| region.range == (35 * HUGE..36 * HUGE)));
        // A region that would begin before the mapping is not available.
        assert_eq!(place_regions(&planned(8 * HUGE, &[0], &[(0, half, 5)]), &at, 0, HUGE), []);
    }

    #[test]
    fn a_mapping_that_is_known_by_its_place_has_addresses() {
        let mut plan = planned(0, &[64 * HUGE], &[]);
        plan.key.kind = MappingKind::Placed;
        assert_eq!(place_regions(&plan, &(60 * HUGE..70 * HUGE), 0, HUGE)[0].range, 64 * HUGE..65 * HUGE);
        assert_eq!(place_regions(&plan, &(65 * HUGE..70 * HUGE), 0, HUGE), []);
    }

    #[test]
    fn ranges_merge_and_shrink() {
        assert_eq!(merge_ranges([0..4, 4..6, 8..9]), [0..6, 8..9]);
        assert_eq!(shrink_to_pages(&(1..10), 4), 4..8);
        assert_eq!(shrink_to_pages(&(5..7), 4), 5..5);
    }

    #[test]
    fn the_highest_free_address_of_equal_alignment_is_chosen() {
        let text = b"400000-500000 r-xp 00000000 08:01 7 /bin/x\n\
                     1000000-2000000 rw-p 00000000 00:00 0 [heap]\n\
                     7f0000000000-7f0000100000 r--p 00000000 08:01 7 /lib/x\n\
                     7f0080000000-7f0080001000 rw-p 00000000 00:00 0 \n\
                     7ffe00000000-7ffe00020000 rw-p 00000000 00:00 0 [stack]\n";
        let maps = maps::parse(text).unwrap();
        let profiled = 0x2a_1234_5000;
        // Between the library and the next mapping above it; then below the library.
        assert_eq!(find_hint_address(&maps, 64 << 20, profiled, HUGE), Some(0x7f00_5234_5000));
        let start = find_hint_address(&maps, 1 << 30, profiled, HUGE).unwrap();
        assert_eq!(start, 0x7f00_1234_5000);
        let start = find_hint_address(&maps, 3 << 30, profiled, HUGE).unwrap();
        assert!(start + (3 << 30) + HUGE <= 0x7f00_0000_0000 && start > 0x7efe_0000_0000, "{start:x}");
        assert_eq!(start % HINT_MODULUS, profiled % HINT_MODULUS);
        // More than there is.
        assert_eq!(
            find_hint_address(&maps, 1 << 46, profiled, HUGE).map(|at| at % HINT_MODULUS),
            Some(profiled % HINT_MODULUS)
        );
        assert_eq!(find_hint_address(&maps, 1 << 47, profiled, HUGE), None);
        assert_eq!(find_hint_address(&maps, u64::MAX, profiled, HUGE), None);
    }
}
