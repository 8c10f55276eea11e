//! Status line and summary of a recording.

use std::path::Path;

use pagelab_formats::zoneinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_metrics::fragmentation_index::{format_kernel_decimal, unusable_permille};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::order_statistics::median;
use pagelab_model::{Bytes, Order};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{format_bytes, format_count};
use serde_json::json;

use super::session::{RecordSession, RecordTotals};
use pagelab_command::exit::Failure;
use pagelab_command::output;

/// Interval of updates on a terminal, and in a log, which prints every other one.
const LINE_INTERVAL_NS: u64 = 500_000_000;
const LOG_INTERVAL_NS: u64 = 5_000_000_000;

pub struct StatusLine {
    /// Time between two updates.
    interval_ns: u64,
    /// Duration of the recording.
    for_ns: Option<u64>,
    huge_page_order: Order,
    largest_zone: Option<ZoneKey>,
    last_shown_ns: u64,
}

impl StatusLine {
    /// Creates the line for a machine whose huge pages have this order, and for a recording of this length.
    pub fn new(reader: &Reader<'_>, order: Order, for_ns: Option<u64>) -> StatusLine {
        let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse).map(|info| info.zones);
        let largest = zones.ok().and_then(|zones| {
            zones.into_iter().max_by_key(|zone| zone.managed.or(zone.present)).map(|zone| zone.key)
        });
        StatusLine {
            interval_ns: update_interval_ns(),
            for_ns,
            huge_page_order: order,
            largest_zone: largest,
            last_shown_ns: 0,
        }
    }

    /// Shows the current state, at most twice a second on a terminal.
    pub fn show(&mut self, session: &RecordSession) {
        let now_ns = pagelab_sys::clock::boottime_ns();
        if now_ns.saturating_sub(self.last_shown_ns) < self.interval_ns && self.last_shown_ns > 0 {
            return;
        }
        self.last_shown_ns = now_ns;
        output::show_status_line(&self.format_line(session, now_ns));
    }

    /// Clears the line, before anything else is printed.
    pub fn clear(&self) {
        if self.last_shown_ns > 0 {
            output::show_status_line("");
        }
    }

    fn format_line(&self, session: &RecordSession, now_ns: u64) -> String {
        let RecordTotals { samples, missed_ticks: missed, .. } = session.totals;
        let elapsed_ns = now_ns.saturating_sub(session.grid.start_ns);
        let time = match self.for_ns {
            Some(for_ns) => format!("{} of {}", whole_seconds(elapsed_ns), whole_seconds(for_ns)),
            None => whole_seconds(elapsed_ns),
        };
        let mut parts = vec![time, format!("{} samples", format_count(samples.into()))];
        let fast = session.sampler.fast_snapshot();
        let areas =
            fast.buddyinfo().ok().zip(self.largest_zone.as_ref()).and_then(|(info, key)| info.zone(key));
        if let (Some(areas), Some(key)) = (areas, &self.largest_zone) {
            let index = format_kernel_decimal(unusable_permille(areas, self.huge_page_order) as i64);
            parts.push(format!("F_u({}) {index} in {}", self.huge_page_order.0, key.zone));
        }
        if let Some(available) = fast.meminfo().ok().and_then(|info| info.bytes("MemAvailable")) {
            parts.push(format!("{} available", format_bytes(available)));
        }
        parts.push(format_bytes(file_size(&session.path)));
        if missed > 0 {
            parts.push(format!("{} missed", format_count(missed.into())));
        }
        parts.join("   ")
    }
}

/// Time between two updates of a status line: a log needs fewer.
pub fn update_interval_ns() -> u64 {
    if output::is_interactive() { LINE_INTERVAL_NS } else { LOG_INTERVAL_NS }
}

/// A duration in whole seconds below one minute.
pub fn whole_seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        _ => format_duration(ns),
    }
}

/// The size of a run file with its log.
pub fn file_size(path: &Path) -> Bytes {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    Bytes(length(path) + length(Path::new(&log)))
}

pub struct RecordSummary<'a> {
    pub path: &'a Path,
    pub every_ns: u64,
    pub elapsed_ns: u64,
    pub totals: &'a RecordTotals,
    /// `complete`, or the reason for an early end.
    pub ending: &'a str,
}

impl RecordSummary<'_> {
    /// Prints to standard output, as text or as JSON.
    pub fn print(&self, as_json: bool) -> Result<(), Failure> {
        match as_json {
            true => output::print_json(&self.to_json()),
            false => output::print(&self.to_text()),
        }
    }

    fn to_text(&self) -> String {
        let RecordTotals { samples, missed_ticks: missed, .. } = *self.totals;
        let file = self.path.display();
        let noun = if samples == 1 { "sample" } else { "samples" };
        let (samples, missed) = (format_count(samples.into()), format_count(missed.into()));
        let (took, every) = (format_duration(self.elapsed_ns), format_duration(self.every_ns));
        let size = format_bytes(file_size(self.path));
        let taken = format!("{samples} {noun} in {took}, one every {every}");
        let mut text = format!("{file}   {size}   {taken}   {missed} missed\n");
        if let (Some(cpu), Some(late)) =
            (median_and_max(&self.totals.cpu_ns), median_and_max(&self.totals.late_ns))
        {
            let ([cpu_middle, cpu_most], [late_middle, late_most]) =
                (cpu.map(format_duration), late.map(format_duration));
            text += &format!(
                "a sample took {cpu_middle} of CPU time (max: {cpu_most}) and started {late_middle} late \
                 (max: {late_most})\n"
            );
        }
        text + &format!("→ pagelab report {file}        → pagelab usage {file}\n")
    }

    fn to_json(&self) -> serde_json::Value {
        let spread = |values: &[u64]| {
            median_and_max(values).map(|[median, max]| json!({"median": median, "max": max}))
        };
        json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "record",
            "path": self.path.to_string_lossy(),
            "ending": self.ending,
            "bytes": file_size(self.path).0,
            "samples": self.totals.samples,
            "missed": self.totals.missed_ticks,
            "every_ns": self.every_ns,
            "duration_ns": self.elapsed_ns,
            "sample_cpu_ns": spread(&self.totals.cpu_ns),
            "late_ns": spread(&self.totals.late_ns),
        })
    }
}

/// Median and maximum; `None` if there are no values.
fn median_and_max(values: &[u64]) -> Option<[u64; 2]> {
    Some([median(&mut values.to_vec())?, *values.iter().max()?])
}
