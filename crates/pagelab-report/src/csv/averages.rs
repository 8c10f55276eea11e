//! `pagelab usage --csv`: one table, a line per run, amounts in bytes.

use super::{Columns, CsvTable};
use crate::averages::{RunAverages, Stat};
use crate::json::averages::{average_fields, usage_fields};
use crate::utc::format_utc;

/// Amounts in bytes, and rates per second.
const QUANTITIES: [&str; 7] =
    ["total", "free", "used", "page_cache", "used_less_page_cache", "minor_faults", "major_faults"];

/// Builds the table of these lines.
pub fn averages_table(lines: &[RunAverages]) -> CsvTable<'_> {
    let columns = Columns::<&RunAverages>::new()
        .fields(usage_fields, "file=name machine", |of| Some(*of))
        .column("started_utc", |of| format_utc(of.started_realtime_ns).into())
        .fields(average_fields, "readings readings_left_out span_ns every_ns gap_max_ns", |of| {
            Some(&of.averages)
        });
    let stats = QUANTITIES.into_iter().flat_map(|name| Stat::ALL.map(|stat| (name, stat.name())));
    let columns = stats.fold(columns, |columns, (name, stat)| {
        let (suffix, unit) = if name.ends_with("faults") { ("per_s", "per s") } else { ("bytes", "bytes") };
        let get = average_fields().getter(&format!("{name}_{suffix}.{stat}"));
        columns.column(&format!("{name}_{stat} [{unit}]"), move |of| get(&of.averages))
    });
    columns.table("usage", lines.iter())
}
