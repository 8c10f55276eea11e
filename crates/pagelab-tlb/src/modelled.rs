//! From what is known of a processor's TLBs to what the model of them has.

use pagelab_model::PageSize;
use pagelab_model::machine::{Tlb, TlbHolds, TlbLevel};

use crate::engine::geometry::{ArrayShape, Geometry, SIZES, UPPER};

/// Ways where they are unknown; unknown ways of a small TLB are taken as fully associative.
const WAYS: u32 = 8;
/// Fully associative TLBs are no larger than this.
const FULL_MOST: u32 = 96;

/// The caches of page walks that are assumed of every processor, as (sets, ways): 32 PDEs of 4 ways, 4
/// PDPTEs, 4 PML4Es. No CPUID leaf tells of them, and no source says them for all processors: they are a
/// choice of this model, and not measured.
pub const WALK_CACHES: [(u32, u32); UPPER] = [(8, 4), (1, 4), (1, 4)];

/// What the model has of these TLBs. Sizes of pages that do not stand in the list of the model (4 MiB, which
/// no 64-bit program has) are left out, and TLBs of instructions too. `None`: no TLB holds base pages.
pub fn geometry(tlb: &Tlb, base: PageSize) -> Option<Geometry> {
    let base_shift = base.bytes().trailing_zeros();
    let mut shifts = vec![base_shift];
    shifts.extend([14, 16, 21, 30].into_iter().filter(|&shift| shift > base_shift));
    shifts.truncate(SIZES);
    let numbers = |level: &TlbLevel| level.level;
    let mut order: Vec<u32> = tlb.levels.iter().filter(|level| is_data(level)).map(numbers).collect();
    order.sort_unstable();
    order.dedup();
    let of_level = |number: u32| -> Vec<ArrayShape> {
        let here = |level: &&TlbLevel| level.level == number && is_data(level);
        let stores_apart = tlb.levels.iter().any(|l| l.level == number && l.holds == TlbHolds::Stores);
        let shape = |level: &TlbLevel| shape(level, &shifts, stores_apart);
        tlb.levels.iter().filter(here).filter_map(shape).collect()
    };
    let levels: Vec<Vec<ArrayShape>> = order.into_iter().map(of_level).filter(|l| !l.is_empty()).collect();
    let holds_base = levels.iter().flatten().any(|array| array.holds & 1 != 0);
    holds_base.then_some(Geometry { shifts, levels, walk_caches: WALK_CACHES })
}

fn is_data(level: &TlbLevel) -> bool {
    level.holds != TlbHolds::Instruction && level.entries > 0
}

fn shape(level: &TlbLevel, shifts: &[u32], stores_apart: bool) -> Option<ArrayShape> {
    let held = |shift: &u32| level.page_sizes.iter().any(|size| size.0 == 1 << shift);
    let bits = shifts.iter().enumerate().filter(|(_, shift)| held(shift));
    let holds = bits.fold(0u8, |bits, (code, _)| bits | 1 << code);
    let guessed = if level.entries <= FULL_MOST { level.entries } else { WAYS };
    let ways = level.ways.unwrap_or(guessed).clamp(1, level.entries);
    let sets = (level.entries / ways).max(1);
    let stores = level.holds == TlbHolds::Stores;
    let loads = !stores;
    let shape = ArrayShape { sets, ways, holds, loads, stores: stores || !stores_apart };
    (holds != 0).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax;

    #[test]
    fn golden_cove_is_four_first_levels_and_two_second() {
        let row = crate::table::ROWS.iter().find(|row| row.name.starts_with("Sapphire")).unwrap();
        let geometry = geometry(&row.tlb().unwrap(), PageSize::USUAL).unwrap();
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
        let given = |text: &str| geometry(&syntax::parse(text).unwrap(), PageSize::USUAL);
        let plain = given("l1=64:4K,l2=1024:4K").unwrap();
        assert_eq!((plain.levels[0][0].sets, plain.levels[0][0].ways), (1, 64));
        assert_eq!((plain.levels[1][0].sets, plain.levels[1][0].ways), (128, 8));
        assert_eq!(plain.code_for(21), 0, "a huge page that no TLB holds is seen as base pages");
        assert_eq!(given("l1=64:2M"), None);
        assert!(!plain.splits_stores());
    }
}
