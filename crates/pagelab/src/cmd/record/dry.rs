//! `--dry-run`: what would be recorded, what a sample costs here and now, and how large the file would be.

use std::io::Write as _;
use std::path::Path;

use pagelab_host::sampler::{Metric, Metrics, Part, Sampler, Seen};
use pagelab_metrics::recorded;
use pagelab_model::Bytes;
use pagelab_report::json::VERSION;
use pagelab_report::quantity::duration;
use pagelab_report::style::{bytes, count};
use pagelab_sys::clock;
use serde_json::json;

use super::Plan;
use super::maps::Scanned;
use super::status::Spread;
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// Samples of which the middle one's cost is told, and the pause before each.
const SAMPLES: usize = 11;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
/// What a recording without an end is reckoned for.
const DAY_NS: u64 = 86_400_000_000_000;

/// One metric's share.
struct Share {
    name: &'static str,
    columns: usize,
    /// From one read to the next.
    every_ns: u64,
    cpu_ns: u64,
    /// Bytes of one row in the file if nothing changes but what changed just now, and if all that is not
    /// zero does.
    bytes_low: u64,
    bytes_high: u64,
}

/// Measures and prints; makes nothing.
pub fn run(plan: &Plan, output: &Path, as_json: bool) -> Result<u8, Failure> {
    if output.symlink_metadata().is_ok() {
        let message = format!("{}: it exists already; give another name, or move it away", output.display());
        return Err(usage(&message));
    }
    let shares: Vec<Share> = plan.metrics.iter().map(|metric| measure(plan, metric)).collect();
    let for_ns = plan.for_ns.unwrap_or(DAY_NS);
    let ticks = for_ns / plan.every_ns + 1;
    // Beside the rows: the manifest, names, and what pages of the file leave empty.
    let whole = |of: fn(&Share) -> u64| {
        let rows = |share: &Share| (for_ns / share.every_ns + 1).saturating_mul(of(share) + of(share) / 20);
        Bytes(shares.iter().map(rows).fold(128 << 10, u64::saturating_add))
    };
    let (low, high) = (whole(|share| share.bytes_low), whole(|share| share.bytes_high));
    // In the mean: a metric that is read less often costs the less.
    let mean =
        |share: &Share| u128::from(share.cpu_ns) * u128::from(plan.every_ns) / u128::from(share.every_ns);
    let cpu_ns = u64::try_from(shares.iter().map(mean).sum::<u128>()).unwrap_or(u64::MAX);
    let map = plan.maps_every.map(|every| {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        (every_ns, Scanned::trial(&plan.root))
    });
    let mut out = out::stdout();
    if as_json {
        let metrics: Vec<_> = shares
            .iter()
            .map(|share| {
                let Share { name, columns, every_ns, cpu_ns, .. } = share;
                json!({"name": name, "columns": columns, "every_ns": every_ns, "read_cpu_ns": cpu_ns})
            })
            .collect();
        let value = json!({
            "pagelab_json": VERSION, "kind": "record_plan", "path": output.to_string_lossy(),
            "every_ns": plan.every_ns, "for_ns": plan.for_ns, "ticks": ticks, "metrics": metrics,
            "sample_cpu_ns": cpu_ns, "bytes_low": low.0, "bytes_high": high.0, "bytes_for_ns": for_ns,
            "maps": map.as_ref().map(|(every_ns, map)| json_of(*every_ns, map.as_ref().ok())),
        });
        writeln!(out, "{value:#}")?;
    } else {
        let length = match plan.for_ns {
            Some(for_ns) => format!("for {}", duration(for_ns)),
            None => "until Ctrl-C".to_owned(),
        };
        let every = duration(plan.every_ns);
        writeln!(out, "would record into {}, every {every}, {length}", output.display())?;
        writeln!(out, "  {:<13} {:>7}  {:>10}  CPU of a read", "metric", "columns", "read every")?;
        for share in &shares {
            let cost = if share.columns > 0 { duration(share.cpu_ns) } else { "not available".to_owned() };
            let (columns, every) = (count(share.columns as u128), duration(share.every_ns));
            writeln!(out, "  {:<13} {columns:>7}  {every:>10}  {cost}", share.name)?;
        }
        let reckoned = if plan.for_ns.is_some() { "" } else { " a day" };
        writeln!(
            out,
            "a sample costs {} of CPU in the mean; {} ticks{reckoned} are ~{}\n\
             if memory stays as busy as now, ~{} if all of it moves",
            duration(cpu_ns),
            count(ticks.into()),
            bytes(low),
            bytes(high),
        )?;
        if let Some((every_ns, map)) = &map {
            writeln!(out, "{}", said_of(*every_ns, map))?;
        }
    }
    out.flush()?;
    Ok(Exit::Done as u8)
}

fn json_of(every_ns: u64, map: Option<&Scanned>) -> serde_json::Value {
    json!({
        "every_ns": every_ns,
        "scan_wall_ns": map.map(|map| map.scan_ns),
        "encode_cpu_ns": map.map(|map| map.encode_ns),
        "key_bytes": map.map(Scanned::bytes),
    })
}

/// What maps would cost beside the samples.
fn said_of(every_ns: u64, map: &Result<Scanned, String>) -> String {
    let every = duration(every_ns);
    match map {
        Ok(map) => format!(
            "and a map every {every}: a scan of {}, {} of CPU to encode it, {} now,\n\
             less for one that is told from the map before",
            duration(map.scan_ns),
            duration(map.encode_ns),
            bytes(Bytes(map.bytes())),
        ),
        Err(problem) => format!("and no map every {every}: {problem}"),
    }
}

fn measure(plan: &Plan, metric: &Metric) -> Share {
    let mut sampler = Sampler::open(&plan.root, &Metrics::from(vec![metric.clone()]));
    let (mut costs, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for sample in 0..SAMPLES {
        std::thread::sleep(PAUSE);
        let before_ns = clock::thread_cpu_ns();
        // A metric with a cadence of its own is read once; its cost is that of the one read.
        sampler.sample(sample as u64);
        let row = row(&sampler);
        if !row.is_empty() {
            costs.push(clock::thread_cpu_ns().saturating_sub(before_ns));
            if first.is_empty() {
                first.clone_from(&row);
            }
            last = row;
        }
    }
    let cpu_ns = Spread::of(&costs).map_or(0, |spread| spread.middle_ns);
    // One byte for each column says how long its value is; 12 for the row, its time and its length.
    let base = last.len() as u64 + 12;
    let low = last.iter().zip(&first).filter(|(now, then)| now != then).map(|(now, _)| stored_bytes(*now));
    let high = last.iter().map(|value| stored_bytes(*value));
    let (bytes_low, bytes_high) = (base + low.sum::<u64>(), base + high.sum::<u64>());
    let is_there = !last.is_empty();
    let of_row = |bytes: u64| if is_there { bytes } else { 0 };
    Share {
        name: metric.name(),
        columns: last.len(),
        every_ns: plan.every_ns.max(metric.interval_ns()),
        cpu_ns,
        bytes_low: of_row(bytes_low),
        bytes_high: of_row(bytes_high),
    }
}

/// Bytes of an integer in an SQLite record (<https://www.sqlite.org/fileformat2.html>, section 2.1).
fn stored_bytes(value: Option<i64>) -> u64 {
    match value {
        None | Some(0 | 1) => 0,
        Some(value) => match 65 - value.unsigned_abs().leading_zeros() {
            0..=8 => 1,
            9..=16 => 2,
            17..=24 => 3,
            25..=32 => 4,
            33..=48 => 6,
            _ => 8,
        },
    }
}

/// All values of the last sample that were read at it.
fn row(sampler: &Sampler) -> Vec<Option<i64>> {
    let mut row = Vec::new();
    for Part { seen, .. } in sampler.parts() {
        match seen {
            Seen::Meminfo(Ok(meminfo)) => recorded::meminfo_row(meminfo, &mut row),
            Seen::Vmstat(Ok(vmstat)) => recorded::vmstat_row(vmstat, &mut row),
            Seen::Buddyinfo(Ok(buddyinfo)) => recorded::buddyinfo_row(buddyinfo, &mut row),
            Seen::Pressure(resources) => {
                let known = resources.iter().filter_map(|(_, now)| now.ok());
                known.for_each(|pressure| recorded::pressure_row(pressure, &mut row));
            }
            Seen::Tables(tables) => {
                row.extend(tables.iter().filter(|table| table.is_fresh).flat_map(|table| table.row.clone()));
            }
            Seen::Meminfo(Err(_)) | Seen::Vmstat(Err(_)) | Seen::Buddyinfo(Err(_)) => {}
        }
    }
    row
}
