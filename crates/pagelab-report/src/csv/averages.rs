//! `pagelab usage --csv`: one table, a line for each run, amounts in bytes.

use pagelab_metrics::averages::Averages;
use pagelab_metrics::over_time::OverTime;

use super::{Cell, Table, number, option, real, text};
use crate::averages::{Line, Stat};
use crate::utc::utc;

/// The table of these lines.
pub fn usage(lines: &[Line]) -> Table<'_> {
    let names = |(name, unit): (&str, &str)| Stat::ALL.map(|stat| format!("{name}_{} [{unit}]", stat.word()));
    let row = |line: &Line| {
        let of = &line.averages;
        let lead = vec![
            text(&line.file),
            option(line.machine.as_deref(), text),
            text(&utc(line.started_realtime_ns)),
            number(of.readings),
            number(of.readings_left_out),
            number(of.span_ns),
            option(of.every_ns, number),
            option(of.gap_max_ns, number),
        ];
        let numbers = quantities(of)
            .into_iter()
            .flat_map(|over| Stat::ALL.map(|stat| over.map_or(Cell::Empty, |over| real(stat.of(&over)))));
        lead.into_iter().chain(numbers).collect::<Vec<Cell>>()
    };
    const LEAD: [&str; 8] = [
        "file",
        "machine",
        "started_utc",
        "readings",
        "readings_left_out",
        "span_ns",
        "every_ns",
        "gap_max_ns",
    ];
    let mut table = Table::new("usage", &LEAD, lines.iter().map(row));
    table.head.extend(QUANTITIES.into_iter().flat_map(names));
    table
}

const QUANTITIES: [(&str, &str); 7] = [
    ("total", "bytes"),
    ("free", "bytes"),
    ("used", "bytes"),
    ("page_cache", "bytes"),
    ("used_less_page_cache", "bytes"),
    ("minor_faults", "per s"),
    ("major_faults", "per s"),
];

/// In the order of [`QUANTITIES`].
fn quantities(of: &Averages) -> [Option<OverTime>; QUANTITIES.len()] {
    let faults = of.faults.as_ref().ok();
    [
        Some(of.total),
        Some(of.free),
        Some(of.used),
        of.page_cache.as_ref().ok().copied(),
        of.used_less_page_cache.as_ref().ok().copied(),
        faults.map(|faults| faults.minor),
        faults.map(|faults| faults.major),
    ]
}
