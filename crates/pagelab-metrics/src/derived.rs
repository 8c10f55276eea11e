//! Series computed from recorded ones, in one place for the terminal, the page and the tables.
//!
//! | series | columns | unit | from |
//! |---|---|---|---|
//! | `unusable_index` | `NODE/ZONE/ORDER` | permille: F_u(order) as the kernel computes it; none if nothing is free | `buddyinfo` |
//! | `use` | `total`, `free`, `used`, `page_cache`, `used_less_page_cache` | bytes | `meminfo` |

use pagelab_model::Order;
use pagelab_model::run::{Column, ColumnHeader, ColumnValues, Run, Series, Unit};

use crate::averages::{self, MemoryReading};
use crate::fragmentation_index;
use crate::standard_series::{self, ZoneSeries};

/// Name of the series of F_u by zone and order.
pub const UNUSABLE_INDEX: &str = "unusable_index";
/// Name of the series of use.
pub const USE: &str = "use";

/// All derived series of a run, in the order of time for each name.
pub fn derive_series(run: &Run) -> Vec<Series> {
    let unusable = standard_series::series_named(run, standard_series::BUDDYINFO).filter_map(unusable_index);
    unusable
        .chain(standard_series::series_named(run, standard_series::MEMINFO).filter_map(derive_use))
        .collect()
}

/// F_u by zone and order over the readings of one buddyinfo series.
pub fn unusable_index(series: &Series) -> Option<Series> {
    let columns: Vec<Column> =
        standard_series::zone_series_of(series).iter().flat_map(zone_columns).collect();
    let source = format!("F_u(order) from {}", series.source);
    let derived = Series { name: UNUSABLE_INDEX.to_owned(), source, at_ns: series.at_ns.clone(), columns };
    (!derived.columns.is_empty()).then_some(derived)
}

fn zone_columns(zone: &ZoneSeries<'_>) -> Vec<Column> {
    let mut orders: Vec<Vec<Option<i64>>> = vec![Vec::with_capacity(zone.at_ns.len()); zone.orders()];
    for at in 0..zone.at_ns.len() {
        let areas = zone.free_areas(at).filter(|areas| areas.free_pages() > 0);
        for (order, values) in orders.iter_mut().enumerate() {
            // The index is at most 1000, and there are at most 64 orders.
            let index = |areas| fragmentation_index::unusable_permille(areas, Order(order as u8)) as i64;
            values.push(areas.as_ref().map(index));
        }
    }
    let head = |order| format!("{}/{}/{order}", zone.key.node.0, zone.key.zone);
    orders
        .into_iter()
        .enumerate()
        .map(|(order, values)| build_column(head(order), Unit::PERMILLE, values))
        .collect()
}

type UsePart = fn(&MemoryReading) -> Option<i64>;

/// The parts of the memory over the readings of one meminfo series.
pub fn derive_use(series: &Series) -> Option<Series> {
    let readings: Vec<Option<MemoryReading>> = averages::meminfo_readings(series).collect();
    if readings.is_empty() {
        return None;
    }
    let use_parts: [(&str, UsePart); 5] = [
        ("total", |used| Some(used.total)),
        ("free", |used| Some(used.free)),
        ("used", |used| Some(used.used)),
        ("page_cache", |used| used.page_cache),
        ("used_less_page_cache", |used| used.used_less_page_cache),
    ];
    let columns = use_parts.into_iter().filter_map(|(name, part)| {
        let values: Vec<Option<i64>> = readings.iter().map(|used| used.as_ref().and_then(part)).collect();
        values.iter().any(Option::is_some).then(|| build_column(name.to_owned(), Unit::BYTES, values))
    });
    let source = format!("use of memory from {}", series.source);
    Some(Series { name: USE.to_owned(), source, at_ns: series.at_ns.clone(), columns: columns.collect() })
}

fn build_column(name: String, unit: &str, values: Vec<Option<i64>>) -> Column {
    let first = values.first().copied().flatten();
    let values = match values.iter().all(|value| *value == first) {
        true => ColumnValues::Constant(first),
        false => ColumnValues::Varying(values),
    };
    Column { header: ColumnHeader { name, unit: unit.into(), is_counter: false }, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, columns: &[(&str, &str, [Option<i64>; 3])]) -> Series {
        let columns = columns
            .iter()
            .map(|(name, unit, values)| build_column((*name).to_owned(), unit, values.to_vec()));
        Series {
            name: name.into(),
            source: "a test".into(),
            at_ns: vec![1, 2, 3],
            columns: columns.collect(),
        }
    }

    #[test]
    fn indices_are_those_of_each_reading_and_undefined_without_free_memory() {
        let buddyinfo = series(
            "buddyinfo",
            &[
                ("0/Normal/0", "count", [Some(4), Some(0), Some(1)]),
                ("0/Normal/1", "count", [Some(2), Some(0), None]),
                ("0/Normal/2", "count", [Some(2), Some(0), Some(1)]),
            ],
        );
        let found = unusable_index(&buddyinfo).unwrap();
        // 4 + 2·2 + 2·4 = 16 free pages, of which 4 and 8 are in blocks that are too small.
        let of = |order: usize| (0..3).map(|at| found.columns[order].values.value_at(at)).collect::<Vec<_>>();
        assert_eq!(of(0), [Some(0), None, None]);
        assert_eq!(of(1), [Some(250), None, None]);
        assert_eq!(of(2), [Some(500), None, None]);
        assert_eq!(found.columns[2].header.name, "0/Normal/2");
        assert_eq!(unusable_index(&series("buddyinfo", &[("odd", "count", [None; 3])])), None);
    }

    #[test]
    fn parts_of_a_reading_that_failed_are_absent_together() {
        let meminfo = series(
            "meminfo",
            &[
                ("MemTotal", "bytes", [Some(100); 3]),
                ("MemFree", "bytes", [Some(40), Some(30), Some(20)]),
                ("Buffers", "bytes", [Some(1); 3]),
                ("Cached", "bytes", [Some(9), None, Some(19)]),
            ],
        );
        let found = derive_use(&meminfo).unwrap();
        let rows: Vec<_> = (0..3)
            .map(|at| found.columns.iter().map(|c| c.values.value_at(at)).collect::<Vec<_>>())
            .collect();
        assert_eq!(rows[0], [100, 40, 60, 10, 50].map(Some));
        assert_eq!(rows[1], [None; 5]);
        assert_eq!(rows[2], [100, 20, 80, 20, 60].map(Some));
    }
}
