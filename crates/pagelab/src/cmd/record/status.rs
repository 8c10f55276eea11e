//! What is said while a recording goes on, and at its end.

use std::io::Write as _;
use std::path::Path;

use pagelab_formats::zoneinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_metrics::frag::{kernel_decimal, unusable_permille};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Bytes, Order};
use pagelab_report::json::VERSION;
use pagelab_report::quantity::duration;
use pagelab_report::style::{bytes, count};
use serde_json::json;

use super::session::{Session, Totals};
use crate::exit::Failure;
use crate::out;

/// Between two status lines; faster ones nobody reads.
const LINE_EVERY_NS: u64 = 500_000_000;

/// The line on the terminal.
pub struct Status {
    /// Whether anybody watches.
    is_shown: bool,
    order: Order,
    /// The zone with the most memory.
    largest: Option<ZoneKey>,
    shown_ns: u64,
}

impl Status {
    /// For a machine whose huge pages have this order.
    pub fn new(reader: &Reader<'_>, order: Order) -> Status {
        let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse).map(|info| info.zones);
        let largest = zones.ok().and_then(|zones| {
            zones.into_iter().max_by_key(|zone| zone.managed.or(zone.present)).map(|zone| zone.key)
        });
        Status { is_shown: out::is_watched(), order, largest, shown_ns: 0 }
    }

    /// Shows how things stand, at most twice a second.
    pub fn show(&mut self, session: &Session) {
        let now_ns = pagelab_sys::clock::boottime_ns();
        if !self.is_shown || now_ns.saturating_sub(self.shown_ns) < LINE_EVERY_NS && self.shown_ns > 0 {
            return;
        }
        self.shown_ns = now_ns;
        out::status(&self.line(session, now_ns));
    }

    /// Takes the line away, before anything else is printed.
    pub fn clear(&self) {
        if self.is_shown && self.shown_ns > 0 {
            out::status("");
        }
    }

    fn line(&self, session: &Session, now_ns: u64) -> String {
        let Totals { samples, missed, .. } = session.totals;
        let elapsed_ns = now_ns.saturating_sub(session.grid.start_ns);
        let mut parts = vec![whole_seconds(elapsed_ns), format!("{} samples", count(samples.into()))];
        let fast = session.sampler.fast();
        let areas = fast.buddyinfo().ok().zip(self.largest.as_ref()).and_then(|(info, key)| info.zone(key));
        if let (Some(areas), Some(key)) = (areas, &self.largest) {
            let index = kernel_decimal(unusable_permille(areas, self.order) as i64);
            parts.push(format!("F_u({}) {index} in {}", self.order.0, key.zone));
        }
        if let Some(available) = fast.meminfo().ok().and_then(|info| info.bytes("MemAvailable")) {
            parts.push(format!("{} available", bytes(available)));
        }
        parts.push(bytes(size(&session.path)));
        if missed > 0 {
            parts.push(format!("{} missed", count(missed.into())));
        }
        parts.join("   ")
    }
}

pub fn whole_seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        _ => duration(ns),
    }
}

/// The size of a run file with its log.
pub fn size(path: &Path) -> Bytes {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    Bytes(length(path) + length(Path::new(&log)))
}

/// What a recording came to.
pub struct Summary<'a> {
    pub path: &'a Path,
    pub every_ns: u64,
    pub after_ns: u64,
    pub totals: &'a Totals,
    /// `complete`, or why it ended early.
    pub ending: &'a str,
}

impl Summary<'_> {
    /// On standard output, for a person or as JSON.
    pub fn print(&self, as_json: bool) -> Result<(), Failure> {
        let mut out = out::stdout();
        if as_json {
            writeln!(out, "{:#}", self.json())?;
        } else {
            write!(out, "{}", self.text())?;
        }
        Ok(out.flush()?)
    }

    fn text(&self) -> String {
        let Totals { samples, missed, .. } = *self.totals;
        let file = self.path.display();
        let noun = if samples == 1 { "sample" } else { "samples" };
        let (samples, missed) = (count(samples.into()), count(missed.into()));
        let (took, every) = (duration(self.after_ns), duration(self.every_ns));
        let size = bytes(size(self.path));
        let taken = format!("{samples} {noun} in {took}, one every {every}");
        let mut text = format!("{file}   {size}   {taken}   {missed} missed\n");
        if let (Some(cpu), Some(late)) = (Spread::of(&self.totals.cpu_ns), Spread::of(&self.totals.late_ns)) {
            let [cpu_middle, cpu_most, late_middle, late_most] =
                [cpu.middle_ns, cpu.most_ns, late.middle_ns, late.most_ns].map(duration);
            text += &format!(
                "a sample cost {cpu_middle} of CPU (most: {cpu_most}) and began {late_middle} late \
                 (most: {late_most})\n"
            );
        }
        text + &format!("→ pagelab report {file}        → pagelab usage {file}\n")
    }

    fn json(&self) -> serde_json::Value {
        let spread = |values: &[u64]| {
            Spread::of(values).map(|spread| json!({"median": spread.middle_ns, "max": spread.most_ns}))
        };
        json!({
            "pagelab_json": VERSION,
            "kind": "record",
            "path": self.path.to_string_lossy(),
            "ending": self.ending,
            "bytes": size(self.path).0,
            "samples": self.totals.samples,
            "missed": self.totals.missed,
            "every_ns": self.every_ns,
            "duration_ns": self.after_ns,
            "sample_cpu_ns": spread(&self.totals.cpu_ns),
            "late_ns": spread(&self.totals.late_ns),
        })
    }
}

/// The middle and the largest of some values.
pub struct Spread {
    pub middle_ns: u64,
    pub most_ns: u64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: &[u64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        Some(Spread { middle_ns: *sorted.get(sorted.len() / 2)?, most_ns: *sorted.last()? })
    }
}
