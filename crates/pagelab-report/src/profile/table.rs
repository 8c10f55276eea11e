//! Tables of mappings and of regions.

use pagelab_tlb::grid;
use pagelab_tlb::plan::{Ranked, Ranking};

use super::{View, mapping_name};
use crate::misses::some;
use crate::plan::amount;
use crate::style::{bytes, count, percent};
use crate::text::{Column, Page};
use pagelab_model::{Bytes, Profile};

/// Rows of the summary.
const MAPPINGS: usize = 8;
const REGIONS: usize = 16;

/// The mappings with their costs, dearest first.
pub(super) fn by_cost(shown: &Ranking) -> Vec<(&Ranked, f64)> {
    let cost = |mapping: &Ranked| mapping.cells.iter().map(|cell| cell.cost).sum::<f64>();
    let mut mappings: Vec<_> = shown.mappings.iter().map(|mapping| (mapping, cost(mapping))).collect();
    mappings.sort_by(|a, b| b.1.total_cmp(&a.1));
    mappings
}

pub(super) fn mappings(page: &mut Page, profile: &Profile, shown: &Ranking) {
    let all: Vec<_> = by_cost(shown);
    let with: Vec<_> = all.iter().filter(|(_, cost)| *cost > 0.0).collect();
    if profile.misses().is_none() {
        return;
    }
    if with.is_empty() {
        page.hanging("", "no miss was seen that lies in a known mapping");
        return;
    }
    let row = |(mapping, cost): &&(&Ranked, f64)| {
        let misses: u128 = mapping.cells.iter().map(|cell| u128::from(cell.misses)).sum();
        let touched = mapping.cells.iter().fold(0u64, |sum, cell| sum.saturating_add(cell.bytes));
        let mut row = vec![mapping_name(shown, mapping), bytes(Bytes(touched)), some(profile, misses)];
        row.extend(shown.timed.then(|| amount(*cost, true)));
        row.push(percent(cost / shown.total));
        row
    };
    let rows: Vec<Vec<String>> = with.iter().take(MAPPINGS).map(row).collect();
    let mut columns = vec![Column::left("mapping"), Column::right("touched"), Column::right("misses")];
    columns.extend(shown.timed.then_some(Column::right("cost")));
    columns.push(Column::right("share"));
    page.table(1, &columns, &rows);
    if with.len() > MAPPINGS {
        page.hanging_dim(" ", &format!("and {} more", count((with.len() - MAPPINGS) as u128)));
    }
}

pub(super) fn regions(page: &mut Page, profile: &Profile, shown: &Ranking, view: View) {
    let most = if view.verbose { usize::MAX } else { REGIONS };
    let row = |region: &pagelab_tlb::plan::Region| {
        let of = shown.mappings.get(region.mapping);
        let base = of.map_or(0, |of| grid::base(&of.key, of.start));
        let mut row = vec![
            of.map_or(String::new(), |of| mapping_name(shown, of)),
            format!("{:#x}", region.offset),
            format!("{:#x}", base.saturating_add(region.offset)),
            some(profile, region.misses.round() as u128),
        ];
        row.extend(shown.timed.then(|| amount(region.cost, true)));
        row.push(percent(region.cost / shown.total));
        row.push(region.written.map_or("", |written| if written { "written" } else { "read" }).to_owned());
        row
    };
    let regions = shown.regions.iter().filter(|region| region.misses > 0.0);
    let rows: Vec<Vec<String>> = regions.clone().take(most).map(row).collect();
    if rows.is_empty() {
        return;
    }
    let mut columns = vec![
        Column::left("region of"),
        Column::right("offset"),
        Column::right("address"),
        Column::right("misses"),
    ];
    columns.extend(shown.timed.then_some(Column::right("cost")));
    columns.extend([Column::right("share"), Column::left("")]);
    page.table(1, &columns, &rows);
    let left = regions.count().saturating_sub(rows.len());
    if left > 0 {
        page.hanging_dim(" ", &format!("and {} more: -v", count(left as u128)));
    }
}
