//! One look at a machine, judged: indices by zone, use, balance, history, supply and findings.
//!
//! The same function judges a live host, a saved tree and a guest.

use pagelab_model::free_areas::{FreeAreas, ZoneKey};
use pagelab_model::{Bytes, Order, Reading, Snapshot};

use crate::balance::FreeBalance;
use crate::can::{Ask, Forecast, How, forecast};
use crate::findings::{Finding, Thresholds, ranked};
use crate::frag;
use crate::history::History;
use crate::rules;
use crate::supply::{Supply, supply};
use crate::usage::MemoryUse;

/// A judged snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkup {
    /// The zones that have pages, in the kernel's order.
    pub zones: Vec<ZoneIndex>,
    /// Where the memory went; `None` without meminfo.
    pub usage: Option<MemoryUse>,
    /// Free lists beside the free counter; `None` without both.
    pub balance: Option<FreeBalance>,
    /// Counters since boot; `None` without vmstat.
    pub history: Option<History>,
    /// Our indices beside the kernel's own; `None` where the kernel's files were not read.
    pub comparison: Option<Comparison>,
    /// What huge pages this memory could give, from the census; absent where there is none.
    pub supply: Reading<Supply>,
    /// What `can` predicts for huge pages of PMD size, whose bounds the supply has too; absent where not
    /// every page was seen.
    pub forecast: Reading<Forecast>,
    /// Free pages by the census beside free pages by buddyinfo; `None` without a whole census.
    pub census_balance: Option<CensusBalance>,
    /// What deserves attention, most important first.
    pub findings: Vec<Finding>,
}

/// Free pages by two files that were read one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusBalance {
    /// By kpageflags.
    pub by_census: u64,
    /// By buddyinfo.
    pub by_lists: u64,
}

impl CensusBalance {
    fn of(snapshot: &Snapshot) -> Option<CensusBalance> {
        let census = snapshot.census.as_ref().ok()?.free_blocks.as_ref()?;
        let lists = snapshot.buddyinfo.as_ref().ok()?;
        let pages = |pages: u128| u64::try_from(pages).unwrap_or(u64::MAX);
        Some(CensusBalance { by_census: pages(census.free_pages()), by_lists: pages(lists.free_pages()) })
    }

    /// Whether they differ by no more than a machine at work moves within a scan: a tenth, and 64 Ki pages.
    pub fn agrees(&self) -> bool {
        self.by_census.abs_diff(self.by_lists) <= self.by_lists / 10 + (1 << 16)
    }
}

/// One zone's fragmentation.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneIndex {
    /// The zone.
    pub key: ZoneKey,
    /// Its free blocks by order.
    pub areas: FreeAreas,
    /// Its free memory.
    pub free: Bytes,
    /// Huge pages of PMD size that its free blocks could give now.
    pub huge_now: u64,
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
pub struct Comparison {
    /// Cells compared, of both files.
    pub cells: u64,
    /// Cells that differ.
    pub differ: u64,
    /// How many tries it took until buddyinfo was equal before and after.
    pub tries: u32,
}

impl Checkup {
    /// Judges a snapshot.
    pub fn of(snapshot: &Snapshot) -> Checkup {
        let zones: Vec<ZoneIndex> = match &snapshot.buddyinfo {
            Ok(buddy) => buddy
                .zones
                .iter()
                .filter(|zone| zone.areas.free_pages() > 0 || is_populated(snapshot, &zone.key))
                .map(|zone| ZoneIndex::of(zone.key.clone(), zone.areas.clone(), snapshot))
                .collect(),
            Err(_) => Vec::new(),
        };
        let meminfo = snapshot.meminfo.as_ref().ok();
        let (supply, forecast) = supply_of(snapshot);
        let mut checkup = Checkup {
            zones,
            usage: meminfo.map(MemoryUse::of),
            balance: FreeBalance::of_snapshot(snapshot),
            history: snapshot.vmstat.as_ref().ok().map(History::of),
            comparison: snapshot.extfrag.as_ref().ok().map(Comparison::of),
            supply,
            forecast,
            census_balance: CensusBalance::of(snapshot),
            findings: Vec::new(),
        };
        checkup.findings = ranked(rules::all(snapshot, &checkup, &Thresholds::DEFAULT));
        checkup
    }

    /// Huge pages that all zones' free blocks could give now.
    pub fn huge_now(&self) -> u64 {
        self.zones.iter().map(|zone| zone.huge_now).fold(0, u64::saturating_add)
    }
}

/// What the census says, and what `can` predicts from it: where every page was seen, that is what stands in
/// the supply for what compaction and dropping cache bring, so that both commands say one number.
fn supply_of(snapshot: &Snapshot) -> (Reading<Supply>, Reading<Forecast>) {
    let ask = Ask { count: 1, order: snapshot.pmd_order, how: How::Thp, node: None, cpu: None };
    let forecast = forecast(snapshot, ask).and_then(|found| match found.unseen.clone() {
        Some(unseen) => Err(unseen),
        None => Ok(found),
    });
    let counted = snapshot.census.as_ref().map_err(Clone::clone).map(|census| {
        let buddy = snapshot.buddyinfo.as_ref().ok();
        let mut supply = supply(census, buddy, snapshot.pmd_order, &gigantic_orders(snapshot));
        // A block may be larger than a huge page: it counts blocks then, and the forecast huge pages.
        if let Some(forecast) = forecast.as_ref().ok().filter(|_| supply.unit_order == snapshot.pmd_order) {
            supply.plan(forecast);
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
    let said: Vec<Order> = pools
        .iter()
        .filter_map(|pool| size.order_of(pool.page_size))
        .filter(|&order| order > snapshot.pmd_order)
        .collect();
    if said.is_empty() { vec![Order(size.usual_pmd_order().0.saturating_mul(2))] } else { said }
}

/// Whether zoneinfo says that the zone has pages at all; without zoneinfo it may have.
fn is_populated(snapshot: &Snapshot, key: &ZoneKey) -> bool {
    let zone = snapshot.zoneinfo.as_ref().ok().and_then(|info| info.zone(key));
    zone.and_then(|zone| zone.present).is_none_or(|present| present.0 > 0)
}

impl ZoneIndex {
    fn of(key: ZoneKey, areas: FreeAreas, snapshot: &Snapshot) -> ZoneIndex {
        let orders: Vec<Order> = (0..areas.orders()).map(|j| Order(j as u8)).collect();
        let pages = u64::try_from(areas.free_pages()).unwrap_or(u64::MAX);
        let page_size = snapshot.machine.page_size.bytes();
        ZoneIndex {
            free: Bytes(pages.saturating_mul(page_size)),
            huge_now: u64::try_from(areas.blocks_suitable(snapshot.pmd_order)).unwrap_or(u64::MAX),
            unusable: orders.iter().map(|&j| frag::unusable(&areas, j)).collect(),
            unusable_permille: orders.iter().map(|&j| frag::unusable_permille(&areas, j)).collect(),
            fragmentation_permille: orders.iter().map(|&j| frag::fragmentation_permille(&areas, j)).collect(),
            fragmentation_paper: orders.iter().map(|&j| frag::fragmentation_paper(&areas, j)).collect(),
            key,
            areas,
        }
    }
}

impl Comparison {
    fn of(files: &pagelab_model::snapshot::ExtfragFiles) -> Comparison {
        let (mut cells, mut differ) = (0, 0);
        for (text, index) in [(&files.unusable, Index::Unusable), (&files.extfrag, Index::Fragmentation)] {
            let mut lines = text.lines();
            for zone in &files.buddyinfo.zones {
                let ours = index.cells(&zone.areas);
                let theirs: Vec<&str> = lines.next().map_or(Vec::new(), |line| cells_of(line, ours.len()));
                cells += ours.len() as u64;
                differ +=
                    ours.iter().enumerate().filter(|&(at, cell)| theirs.get(at) != Some(&&**cell)).count()
                        as u64;
            }
        }
        Comparison { cells, differ, tries: files.tries }
    }
}

/// Which of the kernel's two files.
#[derive(Clone, Copy)]
enum Index {
    Unusable,
    Fragmentation,
}

impl Index {
    fn cells(self, areas: &FreeAreas) -> Vec<String> {
        (0..areas.orders())
            .map(|j| Order(j as u8))
            .map(|order| match self {
                Index::Unusable => frag::unusable_permille(areas, order) as i64,
                Index::Fragmentation => frag::fragmentation_permille(areas, order),
            })
            .map(frag::kernel_decimal)
            .collect()
    }
}

/// The last `count` words of a line: the cells behind `Node 0, zone Normal`.
fn cells_of(line: &str, count: usize) -> Vec<&str> {
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
    // What C prints for the kernel's own expressions with these numbers.
    const UNUSABLE: &str = "\
Node 0, zone     zone0 0.000 0.000 0.000 0.000 0.000 0.000 0.000 0.000 0.000 1.000 1.000
Node 0, zone     zone1 0.000 0.026 0.564 0.983 0.983 0.984 0.985 0.987 0.991 1.000 1.000
";
    // As kernels since 5.16 print it: a blank before what is not negative.
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
        let comparison = Comparison::of(&files);
        assert_eq!((comparison.cells, comparison.tries), (44, 3));
        comparison.differ
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
        snapshot.settings.hugetlb = Err(pagelab_model::Absence::unread());
        assert_eq!(gigantic_orders(&snapshot), [Order(18)]);
    }
}
