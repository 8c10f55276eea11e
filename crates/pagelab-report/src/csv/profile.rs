//! Table of the regions of a profile (`profile.csv`).

use pagelab_model::TlbProfile;

use super::{Columns, CsvTable};
use crate::json::plan::{RegionRow, region_fields};
use crate::profile::{display_mapping_name, shown_ranking};

/// Builds the table of regions, costliest first; with `by_cell`, a row is a cell instead of a region.
pub fn regions_table(profile: &TlbProfile, by_cell: bool) -> CsvTable<'static> {
    let ranking = &shown_ranking(profile, by_cell);
    let mapping_name = |row: &RegionRow<'_>| {
        row.mapping().map_or(String::new(), |mapping| display_mapping_name(ranking, mapping))
    };
    let rows = ranking.regions.iter().map(|region| RegionRow { ranking, region });
    Columns::<RegionRow<'_>>::new()
        .column("mapping", |row| mapping_name(row).into())
        .fields(
            region_fields,
            "nth offset address misses cost_ns saving_ns accesses written touched_bytes",
            |row| Some(*row),
        )
        .collect("profile", rows)
}
