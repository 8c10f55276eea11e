//! Standard series of all recordings: their names and columns, and how they are read. One place for both
//! directions, so that a live sample, a run file and an import of other tools' files give the same records.
//!
//! | series | columns | unit |
//! |---|---|---|
//! | `meminfo` | the kernel's names (`MemFree`) | bytes, or count where the kernel prints no kB |
//! | `vmstat` | the kernel's names (`pgfault`) | pages for `nr_…` amounts, count for the rest |
//! | `buddyinfo` | `NODE/ZONE/ORDER` (`0/Normal/9`) | count: free blocks of exactly this order |
//! | `pressure` | `RESOURCE.LINE.VALUE` (`memory.some.avg10`, `memory.some.total`) | centipercent, us |
//! | `recorder` | the cost of each sample: `cpu_ns`, `wall_ns`, `late_ns`, `rss`, `missed` | ns, bytes, count
//! |
//!
//! A recording may have several series of one name: if the shape of a file changed (a zone was plugged in),
//! the first one ends and another one continues.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::pressure::Pressure;
use pagelab_model::run::{ColumnHeader, ColumnValues, Run, Series, Unit};
use pagelab_model::{BuddyInfo, Counters, FreeAreas, Meminfo, NodeId};

/// Name of the series of `/proc/meminfo`.
pub const MEMINFO: &str = "meminfo";
/// Name of the series of `/proc/vmstat`.
pub const VMSTAT: &str = "vmstat";
/// Name of the series of `/proc/buddyinfo`.
pub const BUDDYINFO: &str = "buddyinfo";
/// Name of the series of pressure stall information.
pub const PRESSURE: &str = "pressure";

/// Name of the series of events counted by tracepoints.
pub const TRACEPOINTS: &str = "tracepoints";

/// Name of the streams of F_u by order at moments that a procedure names by labels; one sample each.
pub const UNUSABLE_INDEX_STREAM: &str = "unusable index";
/// Their label that is the order.
pub const ORDER_LABEL: &str = "order";

/// Whether a column of that series counts fallbacks to another migratetype's memory that no other such column
/// counts: by types (`extfrag.unmovable_into_movable`), or those of all other types.
pub fn is_fallback_counter(column: &str) -> bool {
    column.strip_prefix("extfrag.").is_some_and(|kind| kind == "other" || kind.contains("_into_"))
}

/// Name of the series of what the recording itself costs.
pub const RECORDER: &str = "recorder";

/// Cost of one tick of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickCost {
    /// CPU time of all threads since the tick before, in nanoseconds: sample, writing, status line. Of the
    /// sampling thread alone in a recording that also scans maps, whose cost has a separate series.
    pub cpu_ns: u64,
    /// Wall time of the sample, in nanoseconds.
    pub wall_ns: u64,
    /// How long after its tick the sample began, in nanoseconds.
    pub late_ns: u64,
    /// Resident memory of the process in bytes; `None` if it is not readable.
    pub rss: Option<u64>,
    /// Ticks missed so far.
    pub missed: u64,
}

/// The columns of a recorder series.
pub fn recorder_columns() -> Vec<ColumnHeader> {
    vec![
        column_header("cpu_ns", Unit::NANOSECONDS, false),
        column_header("wall_ns", Unit::NANOSECONDS, false),
        column_header("late_ns", Unit::NANOSECONDS, false),
        column_header("rss", Unit::BYTES, false),
        column_header("missed", Unit::COUNT, true),
    ]
}

/// One row of a recorder series.
pub fn push_recorder_row(tick: &TickCost, row: &mut Vec<Option<i64>>) {
    row.extend([to_stored(tick.cpu_ns), to_stored(tick.wall_ns), to_stored(tick.late_ns)]);
    row.extend([tick.rss.and_then(to_stored), to_stored(tick.missed)]);
}

/// Counters of vmstat that begin with `nr_` and yet only grow (mm/vmstat.c, 6.18).
const GROWING_NR_COUNTERS: [&str; 8] = [
    "nr_dirtied",
    "nr_written",
    "nr_throttled_written",
    "nr_vmscan_write",
    "nr_vmscan_immediate_reclaim",
    "nr_foll_pin_acquired",
    "nr_foll_pin_released",
    "nr_iommu_pages_total",
];

/// Values of vmstat that are amounts although they do not begin with `nr_`.
const OTHER_AMOUNTS: [&str; 2] = ["workingset_nodes", "memmap_boot_pages"];

fn column_header(name: impl Into<String>, unit: &str, is_counter: bool) -> ColumnHeader {
    ColumnHeader { name: name.into(), unit: unit.into(), is_counter }
}

/// The columns of a meminfo series.
pub fn meminfo_columns(meminfo: &Meminfo) -> Vec<ColumnHeader> {
    let unit = |in_kib: &bool| if *in_kib { Unit::BYTES } else { Unit::COUNT };
    let named = meminfo.fields.names().iter().zip(&meminfo.in_kib);
    named.map(|(name, in_kib)| column_header(&**name, unit(in_kib), false)).collect()
}

/// One row of a meminfo series. A value that does not fit into 63 bits is `None`.
pub fn push_meminfo_row(meminfo: &Meminfo, row: &mut Vec<Option<i64>>) {
    let factor = |in_kib: bool| if in_kib { 1024 } else { 1 };
    let values = meminfo.fields.values().iter().zip(&meminfo.in_kib);
    row.extend(values.map(|(value, &in_kib)| to_stored(value.checked_mul(factor(in_kib))?)));
}

/// The columns of a vmstat series.
pub fn vmstat_columns(vmstat: &Counters) -> Vec<ColumnHeader> {
    let one = |name: &str| {
        let is_amount =
            name.starts_with("nr_") && !GROWING_NR_COUNTERS.contains(&name) || OTHER_AMOUNTS.contains(&name);
        column_header(name, if name.starts_with("nr_") { Unit::PAGES } else { Unit::COUNT }, !is_amount)
    };
    vmstat.names().iter().map(|name| one(name)).collect()
}

/// One row of a vmstat series. Some amounts may be printed as negative numbers of 64 bits for a moment; they
/// are stored as such.
pub fn push_vmstat_row(vmstat: &Counters, row: &mut Vec<Option<i64>>) {
    row.extend(vmstat.values().iter().map(|&value| Some(value as i64)));
}

/// The columns of a buddyinfo series.
pub fn buddyinfo_columns(buddyinfo: &BuddyInfo) -> Vec<ColumnHeader> {
    let zones = buddyinfo.zones.iter();
    let one = |key: &ZoneKey, order| format!("{}/{}/{order}", key.node.0, key.zone);
    zones
        .flat_map(|zone| {
            (0..zone.areas.orders()).map(|order| column_header(one(&zone.key, order), Unit::COUNT, false))
        })
        .collect()
}

/// One row of a buddyinfo series.
pub fn push_buddyinfo_row(buddyinfo: &BuddyInfo, row: &mut Vec<Option<i64>>) {
    row.extend(buddyinfo.zones.iter().flat_map(|zone| zone.areas.counts()).map(|&blocks| to_stored(blocks)));
}

/// The columns of one resource (`memory`, `io`, `cpu`) in a pressure series.
pub fn pressure_columns(resource: &str, pressure: &Pressure) -> Vec<ColumnHeader> {
    let lines = ["some", "full"].into_iter().take(1 + usize::from(pressure.full.is_some()));
    let of = |line: &str| {
        let name = |value: &str| format!("{resource}.{line}.{value}");
        [
            column_header(name("avg10"), CENTIPERCENT, false),
            column_header(name("avg60"), CENTIPERCENT, false),
            column_header(name("avg300"), CENTIPERCENT, false),
            column_header(name("total"), Unit::MICROSECONDS, true),
        ]
    };
    lines.flat_map(of).collect()
}

/// Hundredths of a percent, as the kernel prints averages of pressure.
pub const CENTIPERCENT: &str = "centipercent";

/// One row's part of one resource in a pressure series.
pub fn push_pressure_row(pressure: &Pressure, row: &mut Vec<Option<i64>>) {
    for line in [Some(&pressure.some), pressure.full.as_ref()].into_iter().flatten() {
        let averages = [line.avg10_centipercent, line.avg60_centipercent, line.avg300_centipercent];
        row.extend(averages.map(|average| Some(i64::from(average))));
        row.push(to_stored(line.total_us));
    }
}

fn to_stored(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// The free blocks of one zone over the readings of one series.
#[derive(Clone, Debug)]
pub struct ZoneSeries<'a> {
    /// The zone.
    pub key: ZoneKey,
    /// Times of the readings in nanoseconds since the start.
    pub at_ns: &'a [u64],
    /// Blocks by order; the index is the order.
    orders: Vec<&'a ColumnValues>,
}

impl ZoneSeries<'_> {
    /// How many orders there are.
    pub fn orders(&self) -> usize {
        self.orders.len()
    }

    /// The free areas at the reading with this index; `None` if a count is missing or negative.
    pub fn free_areas(&self, index: usize) -> Option<FreeAreas> {
        let count =
            |values: &&ColumnValues| values.value_at(index).and_then(|blocks| u64::try_from(blocks).ok());
        FreeAreas::new(self.orders.iter().map(count).collect::<Option<Vec<u64>>>()?)
    }
}

/// The zones of a recording's buddyinfo, series by series, in the kernel's order. Columns that are not called
/// as [`buddyinfo_columns`] calls them are passed over.
pub fn zone_series(run: &Run) -> Vec<ZoneSeries<'_>> {
    series_named(run, BUDDYINFO).flat_map(zone_series_of).collect()
}

/// The zones of one buddyinfo series.
pub fn zone_series_of(series: &Series) -> Vec<ZoneSeries<'_>> {
    let mut zones: Vec<ZoneSeries<'_>> = Vec::new();
    for column in &series.columns {
        let Some((key, order)) = parse_zone_and_order(&column.header.name) else { continue };
        let at = zones.iter().position(|zone| zone.key == key).unwrap_or_else(|| {
            zones.push(ZoneSeries { key, at_ns: &series.at_ns, orders: Vec::new() });
            zones.len() - 1
        });
        if zones[at].orders.len() == order && order < FreeAreas::ORDERS_MAX {
            zones[at].orders.push(&column.values);
        }
    }
    zones.retain(|zone| !zone.orders.is_empty());
    zones
}

/// All series of one name, in the order of time.
pub fn series_named<'a>(run: &'a Run, name: &'a str) -> impl Iterator<Item = &'a Series> {
    run.series.iter().filter(move |series| series.name == name)
}

fn parse_zone_and_order(name: &str) -> Option<(ZoneKey, usize)> {
    let (node, rest) = name.split_once('/')?;
    let (zone, order) = rest.rsplit_once('/')?;
    Some((ZoneKey { node: NodeId(node.parse().ok()?), zone: zone.to_owned() }, order.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::ZoneFreeAreas;
    use pagelab_model::run::Column;

    fn buddyinfo() -> BuddyInfo {
        let zone = |node, zone: &str, counts: &[u64]| ZoneFreeAreas {
            key: ZoneKey { node: NodeId(node), zone: zone.into() },
            areas: FreeAreas::new(counts.to_vec()).unwrap(),
        };
        BuddyInfo { zones: vec![zone(0, "DMA32", &[1, 2, 3]), zone(1, "Normal", &[4, 0, 7])] }
    }

    #[test]
    fn free_blocks_come_back_as_they_went_in() {
        let buddyinfo = buddyinfo();
        let mut row = Vec::new();
        push_buddyinfo_row(&buddyinfo, &mut row);
        let heads = buddyinfo_columns(&buddyinfo);
        assert_eq!(heads[5].name, "1/Normal/2");
        let column = |(head, value): (ColumnHeader, &Option<i64>)| Column {
            header: head,
            values: ColumnValues::Varying(vec![*value, None]),
        };
        let series = Series {
            name: BUDDYINFO.into(),
            source: "a test".into(),
            at_ns: vec![10, 20],
            columns: heads.into_iter().zip(&row).map(column).collect(),
        };
        let zones = zone_series_of(&series);
        assert_eq!(zones.len(), 2);
        for (zone, was) in zones.iter().zip(&buddyinfo.zones) {
            assert_eq!((&zone.key, zone.free_areas(0).as_ref()), (&was.key, Some(&was.areas)));
            assert_eq!(zone.free_areas(1), None, "a reading that failed is no zero");
        }
    }

    #[test]
    fn rows_have_a_value_for_each_head() {
        let fields = Counters::new(
            vec!["MemFree".into(), "HugePages_Total".into(), "Odd".into()],
            vec![7, 3, u64::MAX],
        );
        let meminfo = Meminfo { fields, in_kib: vec![true, false, true] };
        let mut row = Vec::new();
        push_meminfo_row(&meminfo, &mut row);
        assert_eq!(row, [Some(7 << 10), Some(3), None]);
        let units: Vec<_> = meminfo_columns(&meminfo).into_iter().map(|head| head.unit.0).collect();
        assert_eq!(units, ["bytes", "count", "bytes"]);
        let vmstat =
            Counters::new(vec!["nr_free_pages".into(), "nr_dirtied".into(), "pgfault".into()], vec![1, 2, 3]);
        let counters: Vec<_> =
            vmstat_columns(&vmstat).into_iter().map(|head| (head.unit.0, head.is_counter)).collect();
        let wanted = [("pages", false), ("pages", true), ("count", true)];
        assert_eq!(counters, wanted.map(|(unit, grows)| (unit.to_owned(), grows)));
    }
}
