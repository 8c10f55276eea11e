//! Evaluation of one snapshot: indices by zone, use, balance, history, supply and findings.
//!
//! The same function evaluates a live host, a saved tree and a guest.

use pagelab_model::free_areas::{FreeAreas, ZoneKey};
use pagelab_model::{Bytes, Order, Reading, Snapshot};

use crate::balance::FreeBalance;
use crate::findings::Finding;
use crate::forecast::{AllocationMethod, AllocationRequest, Forecast, predict};
use crate::fragmentation_index::{
    format_kernel_decimal, fragmentation_paper, fragmentation_permille, unusable_index, unusable_permille,
};
use crate::history::VmstatHistory;
use crate::rules;
use crate::supply::{HugePageSupply, compute_supply};
use crate::usage::MemoryUse;

/// A judged snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkup {
    /// The zones that have pages, in the kernel's order.
    pub zones: Vec<ZoneFragmentation>,
    /// Use of the memory; `None` without meminfo.
    pub usage: Option<MemoryUse>,
    /// Free lists beside the free counter; `None` without both.
    pub balance: Option<FreeBalance>,
    /// Counters since boot; `None` without vmstat.
    pub history: Option<VmstatHistory>,
    /// The computed indices beside the kernel's own; `None` if the kernel's files were not read.
    pub index_comparison: Option<IndexComparison>,
    /// Huge pages that this memory could give, from the census; absent without one.
    pub supply: Reading<HugePageSupply>,
    /// Prediction of `can` for huge pages of PMD size, whose bounds the supply has too; absent if not every
    /// page was seen.
    pub forecast: Reading<Forecast>,
    /// Free pages by the census beside free pages by buddyinfo; `None` without a whole census.
    pub census_balance: Option<CensusBalance>,
    /// Findings, most important first.
    pub findings: Vec<Finding>,
}

/// Free pages by two files that were read one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusBalance {
    /// By kpageflags.
    pub census_pages: u64,
    /// By buddyinfo.
    pub buddyinfo_pages: u64,
}

impl CensusBalance {
    fn from_snapshot(snapshot: &Snapshot) -> Option<CensusBalance> {
        let census = snapshot.census.as_ref().ok()?.free_blocks.as_ref()?;
        let lists = snapshot.buddyinfo.as_ref().ok()?;
        let pages = |pages: u128| u64::try_from(pages).unwrap_or(u64::MAX);
        Some(CensusBalance {
            census_pages: pages(census.free_pages()),
            buddyinfo_pages: pages(lists.free_pages()),
        })
    }

    /// Whether they differ by at most the changes of a busy machine within a scan: a tenth, and 64 Ki pages.
    pub fn agrees(&self) -> bool {
        self.census_pages.abs_diff(self.buddyinfo_pages) <= self.buddyinfo_pages / 10 + (1 << 16)
    }
}

/// One zone's fragmentation.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneFragmentation {
    /// The zone.
    pub key: ZoneKey,
    /// Its free blocks by order.
    pub free_areas: FreeAreas,
    /// Its free memory.
    pub free: Bytes,
    /// Huge pages of PMD size that its free blocks could give now.
    pub free_huge_pages: u64,
    /// F_u by order, exact.
    pub unusable: Vec<f64>,
    /// F_u by order in thousandths, as the kernel prints it.
    pub unusable_permille: Vec<u64>,
    /// F_i by order in thousandths, as the kernel prints it.
    pub fragmentation_permille: Vec<i64>,
    /// F_i by order as the paper defines it.
    pub fragmentation_paper: Vec<f64>,
}

/// Cell by cell, our indices against the kernel's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexComparison {
    /// Cells compared, of both files.
    pub cells: u64,
    /// Cells that differ.
    pub differing: u64,
    /// How many tries it took until buddyinfo was equal before and after.
    pub tries: u32,
}

impl Checkup {
    /// Judges a snapshot.
    pub fn from_snapshot(snapshot: &Snapshot) -> Checkup {
        let zones: Vec<ZoneFragmentation> = match &snapshot.buddyinfo {
            Ok(buddy) => buddy
                .zones
                .iter()
                .filter(|zone| zone.areas.free_pages() > 0 || is_populated(snapshot, &zone.key))
                .map(|zone| ZoneFragmentation::from_areas(zone.key.clone(), zone.areas.clone(), snapshot))
                .collect(),
            Err(_) => Vec::new(),
        };
        let meminfo = snapshot.meminfo.as_ref().ok();
        let (supply, forecast) = predict_supply(snapshot);
        let mut checkup = Checkup {
            zones,
            usage: meminfo.map(MemoryUse::from_meminfo),
            balance: FreeBalance::from_snapshot(snapshot),
            history: snapshot.vmstat.as_ref().ok().map(VmstatHistory::from_vmstat),
            index_comparison: snapshot.extfrag.as_ref().ok().map(IndexComparison::compare_files),
            supply,
            forecast,
            census_balance: CensusBalance::from_snapshot(snapshot),
            findings: Vec::new(),
        };
        checkup.findings = rules::apply_rules(snapshot, &checkup);
        checkup
    }

    /// Huge pages that all zones' free blocks could give now.
    pub fn free_huge_pages(&self) -> u64 {
        self.zones.iter().map(|zone| zone.free_huge_pages).fold(0, u64::saturating_add)
    }
}

/// Result of the census, and prediction of `can` from it: if every page was scanned, the supply contains the
/// prediction for compaction and dropping cache, so both commands show one number.
fn predict_supply(snapshot: &Snapshot) -> (Reading<HugePageSupply>, Reading<Forecast>) {
    let order = snapshot.pmd_order;
    let request = AllocationRequest { count: 1, order, method: AllocationMethod::Thp, node: None, cpu: None };
    let forecast = predict(snapshot, request).and_then(|found| match found.census_absence.clone() {
        Some(unseen) => Err(unseen),
        None => Ok(found),
    });
    let counted = snapshot.census.as_ref().map_err(Clone::clone).map(|census| {
        let buddy = snapshot.buddyinfo.as_ref().ok();
        let mut supply = compute_supply(census, buddy, order, &gigantic_orders(snapshot));
        // A block may be larger than a huge page: it counts blocks then, and the forecast huge pages.
        if let Some(forecast) = forecast.as_ref().ok().filter(|_| supply.unit_order == order) {
            supply.apply_forecast(forecast);
        }
        supply
    });
    (counted, forecast)
}

/// Orders of the huge pages larger than PMD size that this kernel has pools for; where it does not say, what
/// a PUD entry maps: a page-table page holds as many PMD entries as base pages fit under one of them.
fn gigantic_orders(snapshot: &Snapshot) -> Vec<Order> {
    let size = snapshot.machine.page_size;
    let pools = snapshot.settings.hugetlb.as_ref().map_or(&[][..], |pools| pools);
    let pool_orders: Vec<Order> = pools
        .iter()
        .filter_map(|pool| size.order_for_size(pool.page_size))
        .filter(|&order| order > snapshot.pmd_order)
        .collect();
    if pool_orders.is_empty() {
        vec![Order(size.default_pmd_order().0.saturating_mul(2))]
    } else {
        pool_orders
    }
}

/// Whether the zone has pages according to zoneinfo; without zoneinfo it may have.
fn is_populated(snapshot: &Snapshot, key: &ZoneKey) -> bool {
    let zone = snapshot.zoneinfo.as_ref().ok().and_then(|info| info.zone(key));
    zone.and_then(|zone| zone.present).is_none_or(|present| present.0 > 0)
}

impl ZoneFragmentation {
    fn from_areas(key: ZoneKey, areas: FreeAreas, snapshot: &Snapshot) -> ZoneFragmentation {
        let pages = u64::try_from(areas.free_pages()).unwrap_or(u64::MAX);
        let page_size = snapshot.machine.page_size.bytes();
        ZoneFragmentation {
            free: Bytes(pages.saturating_mul(page_size)),
            free_huge_pages: u64::try_from(areas.blocks_suitable(snapshot.pmd_order)).unwrap_or(u64::MAX),
            unusable: by_order(&areas, unusable_index),
            unusable_permille: by_order(&areas, unusable_permille),
            fragmentation_permille: by_order(&areas, fragmentation_permille),
            fragmentation_paper: by_order(&areas, fragmentation_paper),
            key,
            free_areas: areas,
        }
    }
}

/// An index of each order, from 0.
fn by_order<T>(areas: &FreeAreas, index: impl Fn(&FreeAreas, Order) -> T) -> Vec<T> {
    (0..areas.orders()).map(|order| index(areas, Order(order as u8))).collect()
}

impl IndexComparison {
    fn compare_files(files: &pagelab_model::snapshot::ExtfragFiles) -> IndexComparison {
        type OrderIndex = fn(&FreeAreas, Order) -> i64;
        let (mut cells, mut differ) = (0, 0);
        let indices: [(&str, OrderIndex); 2] = [
            (&files.unusable, |areas, order| unusable_permille(areas, order) as i64),
            (&files.extfrag, fragmentation_permille),
        ];
        for (text, index) in indices {
            let mut lines = text.lines();
            for zone in &files.buddyinfo.zones {
                let computed =
                    by_order(&zone.areas, |areas, order| format_kernel_decimal(index(areas, order)));
                let printed: Vec<&str> =
                    lines.next().map_or(Vec::new(), |line| last_cells(line, computed.len()));
                cells += computed.len() as u64;
                differ += computed
                    .iter()
                    .enumerate()
                    .filter(|&(at, cell)| printed.get(at) != Some(&&**cell))
                    .count() as u64;
            }
        }
        IndexComparison { cells, differing: differ, tries: files.tries }
    }
}

/// The last `count` words of a line: the cells behind `Node 0, zone Normal`.
fn last_cells(line: &str, count: usize) -> Vec<&str> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    words[words.len().saturating_sub(count)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healthy::{buddyinfo, healthy};
    use pagelab_model::snapshot::ExtfragFiles;

    /// Two zones: one free block of order 8, and one zone with all orders.
    const ZONES: [&[u64]; 2] =
        [&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[812, 8228, 3201, 1, 1, 1, 1, 1, 1, 0, 0]];
    // Output of C for the kernel's own expressions with these numbers.
    const UNUSABLE: &str = "\
Node 0, zone     zone0 0.000 0.000 0.000 0.000 0.000 0.000 0.000 0.000 0.000 1.000 1.000
Node 0, zone     zone1 0.000 0.026 0.564 0.983 0.983 0.984 0.985 0.987 0.991 1.000 1.000
";
    // As kernels since 5.16 print it: a blank before non-negative numbers.
    const EXTFRAG: &str = "\
Node 0, zone     zone0 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000  0.-500  0.-250
Node 0, zone     zone1 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000 -1.000  0.996  0.998
";

    fn differ(unusable: &str, extfrag: &str) -> u64 {
        let files = ExtfragFiles {
            unusable: unusable.to_owned(),
            extfrag: extfrag.to_owned(),
            buddyinfo: buddyinfo(&ZONES),
            tries: 3,
        };
        let comparison = IndexComparison::compare_files(&files);
        assert_eq!((comparison.cells, comparison.tries), (44, 3));
        comparison.differing
    }

    #[test]
    fn our_cells_are_compared_with_the_kernels_text() {
        assert_eq!(differ(UNUSABLE, EXTFRAG), 0);
        assert_eq!(differ(UNUSABLE, &EXTFRAG.replace("  0.", " 0.")), 0, "as printed before 5.16");
        assert_eq!(differ(&UNUSABLE.replace("0.564", "0.565"), EXTFRAG), 1);
        assert_eq!(differ(UNUSABLE, &EXTFRAG.replace("0.-500", "-0.500")), 1);
        let (first_line, _) = EXTFRAG.split_once('\n').unwrap();
        assert_eq!(differ(UNUSABLE, first_line), 11);
        assert_eq!(differ("", ""), 44);
    }

    #[test]
    fn gigantic_pages_are_what_the_pools_say_or_what_a_pud_maps() {
        let mut snapshot = healthy();
        assert_eq!(gigantic_orders(&snapshot), [Order(18)]);
        snapshot.settings.hugetlb = Err(pagelab_model::Absence::not_read());
        assert_eq!(gigantic_orders(&snapshot), [Order(18)]);
    }
}
