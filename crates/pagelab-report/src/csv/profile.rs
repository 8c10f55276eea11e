//! The regions of a profile as a table.

use pagelab_model::Profile;
use pagelab_tlb::grid;
use pagelab_tlb::plan::{Ranking, Region};

use super::{Cell, Table};
use crate::profile::{mapping_name, ranking};

const HEAD: [&str; 10] = [
    "mapping",
    "nth",
    "offset",
    "address",
    "misses",
    "cost_ns",
    "saving_ns",
    "accesses",
    "written",
    "touched_bytes",
];

/// The regions, dearest first.
pub fn profile(profile: &Profile, by_cell: bool) -> Table<'static> {
    let shown = ranking(profile, by_cell);
    let rows: Vec<Vec<Cell>> = shown.regions.iter().map(|region| row(&shown, region)).collect();
    Table::new("profile", &HEAD, rows.into_iter())
}

fn row(shown: &Ranking, region: &Region) -> Vec<Cell> {
    let of = shown.mappings.get(region.mapping);
    let base = of.map_or(0, |of| grid::base(&of.key, of.start));
    let plain = |number: u64| Cell::Plain(number.to_string());
    let option = |number: Option<u64>| number.map_or(Cell::Empty, plain);
    let ns = |cost: f64| shown.timed.then_some((cost / 1000.0) as u64);
    vec![
        Cell::Text(of.map_or(String::new(), |of| mapping_name(shown, of))),
        plain(of.map_or(0, |of| u64::from(of.key.nth))),
        plain(region.offset),
        plain(base.saturating_add(region.offset)),
        plain(region.misses.round() as u64),
        option(ns(region.cost)),
        option(ns(region.saving())),
        option(region.accesses.map(|of| of.round() as u64)),
        region.written.map_or(Cell::Empty, |written| Cell::Plain(written.to_string())),
        plain(region.touched),
    ]
}
