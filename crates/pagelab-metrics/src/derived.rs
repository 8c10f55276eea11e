//! Series that are computed from recorded ones, once and here, for the terminal, the page and the tables.
//!
//! | series | columns | unit | from |
//! |---|---|---|---|
//! | `unusable_index` | `NODE/ZONE/ORDER` | permille: F_u(order) as the kernel computes it; none where nothing is free | `buddyinfo` |
//! | `use` | `total`, `free`, `used`, `page_cache`, `used_less_page_cache` | bytes | `meminfo` |

use pagelab_model::Order;
use pagelab_model::run::{Column, ColumnHead, Run, Series, Unit, Values};

use crate::averages::{self, Used};
use crate::frag;
use crate::recorded::{self, ZoneSeries};

/// Name of the series of F_u by zone and order.
pub const UNUSABLE_INDEX: &str = "unusable_index";
/// Name of the series of use.
pub const USE: &str = "use";

/// All derived series of a run, in the order of time for each name.
pub fn series(run: &Run) -> Vec<Series> {
    let unusable = recorded::named(run, recorded::BUDDYINFO).filter_map(unusable_index);
    unusable.chain(recorded::named(run, recorded::MEMINFO).filter_map(used)).collect()
}

/// F_u by zone and order over the readings of one buddyinfo series.
pub fn unusable_index(series: &Series) -> Option<Series> {
    let columns: Vec<Column> = recorded::zones_of(series).iter().flat_map(zone).collect();
    let source = format!("F_u(order) from {}", series.source);
    let derived = Series { name: UNUSABLE_INDEX.to_owned(), source, at_ns: series.at_ns.clone(), columns };
    (!derived.columns.is_empty()).then_some(derived)
}

fn zone(zone: &ZoneSeries<'_>) -> Vec<Column> {
    let mut orders: Vec<Vec<Option<i64>>> = vec![Vec::with_capacity(zone.at_ns.len()); zone.orders()];
    for at in 0..zone.at_ns.len() {
        let areas = zone.areas(at).filter(|areas| areas.free_pages() > 0);
        for (order, values) in orders.iter_mut().enumerate() {
            // The index is at most 1000, and there are at most 64 orders.
            let index = |areas| frag::unusable_permille(areas, Order(order as u8)) as i64;
            values.push(areas.as_ref().map(index));
        }
    }
    let head = |order| format!("{}/{}/{order}", zone.key.node.0, zone.key.zone);
    orders
        .into_iter()
        .enumerate()
        .map(|(order, values)| column(head(order), Unit::PERMILLE, values))
        .collect()
}

/// One part of a reading.
type Part = fn(&Used) -> Option<i64>;

/// The parts of the memory over the readings of one meminfo series.
pub fn used(series: &Series) -> Option<Series> {
    let readings: Vec<Option<Used>> = averages::used(series).collect();
    if readings.is_empty() {
        return None;
    }
    let parts: [(&str, Part); 5] = [
        ("total", |used| Some(used.total)),
        ("free", |used| Some(used.free)),
        ("used", |used| Some(used.used)),
        ("page_cache", |used| used.page_cache),
        ("used_less_page_cache", |used| used.used_less_page_cache),
    ];
    let columns = parts.into_iter().filter_map(|(name, part)| {
        let values: Vec<Option<i64>> = readings.iter().map(|used| used.as_ref().and_then(part)).collect();
        values.iter().any(Option::is_some).then(|| column(name.to_owned(), Unit::BYTES, values))
    });
    let source = format!("use of memory from {}", series.source);
    Some(Series { name: USE.to_owned(), source, at_ns: series.at_ns.clone(), columns: columns.collect() })
}

fn column(name: String, unit: &str, values: Vec<Option<i64>>) -> Column {
    let first = values.first().copied().flatten();
    let values = match values.iter().all(|value| *value == first) {
        true => Values::Constant(first),
        false => Values::Varying(values),
    };
    Column { head: ColumnHead { name, unit: unit.into(), is_counter: false }, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, columns: &[(&str, &str, [Option<i64>; 3])]) -> Series {
        let columns =
            columns.iter().map(|(name, unit, values)| column((*name).to_owned(), unit, values.to_vec()));
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
        let of = |order: usize| (0..3).map(|at| found.columns[order].values.at(at)).collect::<Vec<_>>();
        assert_eq!(of(0), [Some(0), None, None]);
        assert_eq!(of(1), [Some(250), None, None]);
        assert_eq!(of(2), [Some(500), None, None]);
        assert_eq!(found.columns[2].head.name, "0/Normal/2");
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
        let found = used(&meminfo).unwrap();
        let rows: Vec<_> =
            (0..3).map(|at| found.columns.iter().map(|c| c.values.at(at)).collect::<Vec<_>>()).collect();
        assert_eq!(rows[0], [100, 40, 60, 10, 50].map(Some));
        assert_eq!(rows[1], [None; 5]);
        assert_eq!(rows[2], [100, 20, 80, 20, 60].map(Some));
    }
}
