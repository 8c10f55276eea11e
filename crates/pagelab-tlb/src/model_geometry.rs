//! Geometry of the modelled TLBs, derived from that of a processor.

use std::collections::BTreeSet;

use pagelab_model::PageSize;
use pagelab_model::machine::{Tlb, TlbContent, TlbLevel};

use crate::engine::geometry::{ArrayShape, Geometry, PAGE_SIZES, UPPER_LEVELS};

/// Ways where they are unknown; unknown ways of a small TLB are taken as fully associative.
const ASSUMED_WAYS: u32 = 8;
/// Fully associative TLBs are no larger than this.
const FULLY_ASSOCIATIVE_MAX: u32 = 96;

/// The caches of page walks that are assumed of every processor, as (sets, ways): 32 PDEs of 4 ways, 4
/// PDPTEs, 4 PML4Es. No CPUID leaf has them, and no source lists them for all processors: they are a
/// choice of this model, and not measured.
pub const WALK_CACHES: [(u32, u32); UPPER_LEVELS] = [(8, 4), (1, 4), (1, 4)];

/// The modelled geometry of these TLBs. Page sizes that the model does not have (4 MiB, which
/// no 64-bit program has) are left out, and TLBs of instructions too. `None`: no TLB holds base pages.
pub fn build_geometry(tlb: &Tlb, base: PageSize) -> Option<Geometry> {
    let base_shift = base.bytes().trailing_zeros();
    let mut shifts = vec![base_shift];
    shifts.extend([14, 16, 21, 30].into_iter().filter(|&shift| shift > base_shift));
    shifts.truncate(PAGE_SIZES);
    let level_numbers: BTreeSet<u32> =
        tlb.levels.iter().filter(|level| is_data(level)).map(|level| level.level).collect();
    let arrays_of_level = |number: u32| -> Vec<ArrayShape> {
        let is_in_level = |level: &&TlbLevel| level.level == number && is_data(level);
        let has_store_tlb = tlb.levels.iter().any(|l| l.level == number && l.holds == TlbContent::Stores);
        let to_shape = |level: &TlbLevel| array_shape(level, &shifts, has_store_tlb);
        tlb.levels.iter().filter(is_in_level).filter_map(to_shape).collect()
    };
    let levels: Vec<Vec<ArrayShape>> =
        level_numbers.into_iter().map(arrays_of_level).filter(|l| !l.is_empty()).collect();
    let holds_base = levels.iter().flatten().any(|array| array.holds & 1 != 0);
    holds_base.then_some(Geometry { shifts, levels, walk_caches: WALK_CACHES })
}

fn is_data(level: &TlbLevel) -> bool {
    level.holds != TlbContent::Instruction && level.entries > 0
}

fn array_shape(level: &TlbLevel, shifts: &[u32], has_store_tlb: bool) -> Option<ArrayShape> {
    let is_held = |shift: &u32| level.page_sizes.iter().any(|size| size.0 == 1 << shift);
    let held_sizes = shifts.iter().enumerate().filter(|(_, shift)| is_held(shift));
    let size_mask = held_sizes.fold(0u8, |bits, (code, _)| bits | 1 << code);
    let assumed_ways = if level.entries <= FULLY_ASSOCIATIVE_MAX { level.entries } else { ASSUMED_WAYS };
    let ways = level.ways.unwrap_or(assumed_ways).clamp(1, level.entries);
    let sets = (level.entries / ways).max(1);
    let stores = level.holds == TlbContent::Stores;
    let loads = !stores;
    let shape = ArrayShape { sets, ways, holds: size_mask, loads, stores: stores || !has_store_tlb };
    (size_mask != 0).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax;

    #[test]
    fn golden_cove_is_four_first_levels_and_two_second() {
        let row = crate::table::ROWS.iter().find(|row| row.name.starts_with("Sapphire")).unwrap();
        let geometry = build_geometry(&row.to_tlb().unwrap(), PageSize::DEFAULT).unwrap();
        assert_eq!((geometry.levels[0].len(), geometry.levels[1].len()), (4, 2));
        assert!(geometry.splits_stores());
        assert_eq!(
            geometry.levels[0][0],
            ArrayShape { sets: 16, ways: 6, holds: 1, loads: true, stores: false }
        );
        let stores = geometry.levels[0][3];
        assert_eq!((stores.sets, stores.ways, stores.loads, stores.stores), (1, 16, false, true));
        assert_eq!((geometry.code_for(21), geometry.code_for(16), geometry.code_for(30)), (3, 0, 4));
        assert_eq!(Geometry::decode(&geometry.encode()), Some((geometry.clone(), geometry.encode().len())));
    }

    #[test]
    fn unknown_ways_and_sizes_without_a_tlb() {
        let parse_geometry = |text: &str| build_geometry(&syntax::parse(text).unwrap(), PageSize::DEFAULT);
        let plain = parse_geometry("l1=64:4K,l2=1024:4K").unwrap();
        assert_eq!((plain.levels[0][0].sets, plain.levels[0][0].ways), (1, 64));
        assert_eq!((plain.levels[1][0].sets, plain.levels[1][0].ways), (128, 8));
        assert_eq!(plain.code_for(21), 0, "a huge page that no TLB holds is seen as base pages");
        assert_eq!(parse_geometry("l1=64:2M"), None);
        assert!(!plain.splits_stores());
    }
}
