//! Maps of physical memory beside the samples. A separate thread scans and encodes them, so that no tick
//! waits.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::{meminfo, zoneinfo};
use pagelab_host::census::CensusOptions;
use pagelab_host::page_map::scan_page_map;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::run::{ColumnHeader, Unit};
use pagelab_model::{Absence, PageMap, Pages, Reading, UnlistedFree};
use pagelab_runfile::{EncodedMap, Error, MapEncoder, RunWriter};
use pagelab_sys::clock;

use super::rows::SeriesWriter;

/// Name of the series with the cost of maps.
const COST_SERIES: &str = "maps";

/// The scanning thread.
pub struct MapScanner {
    scanned: Receiver<Result<ScannedMap, String>>,
    /// When dropped, ends the thread: at once, or after the current scan.
    stop_sender: Option<Sender<()>>,
    /// Whether the last scan succeeded, so that a failure is reported once.
    last_scan_succeeded: bool,
}

/// A map, ready to be written, and its cost.
pub struct ScannedMap {
    map: EncodedMap,
    started_ns: u64,
    /// Wall time of the scan.
    pub scan_ns: u64,
    /// CPU time of the encoder.
    pub encode_ns: u64,
}

impl ScannedMap {
    /// Scans one map that is not written to a file; the error gives the reason.
    pub fn scan_once(root: &Root) -> Result<ScannedMap, String> {
        scan_and_encode(root, 0, &mut MapEncoder::default())
    }

    /// Returns the bytes in a file.
    pub fn bytes(&self) -> u64 {
        self.map.packed_bytes()
    }
}

/// Returns the reason why this user cannot record maps on this machine, if it is known beforehand.
pub fn absence(root: &Root) -> Option<Absence> {
    root.open_regular_file(paths::KPAGEFLAGS).err()
}

impl MapScanner {
    /// Scans at once and then at this interval, without drift; a scan that takes longer skips the next ones.
    /// Times count from `start_ns` on the boot clock.
    pub fn start(root: Root, start_ns: u64, every: Duration) -> std::io::Result<MapScanner> {
        let (ends, ended) = channel();
        // One map may wait to be written: a slow disk makes maps rarer, not memory fuller.
        let (give, scanned) = sync_channel(1);
        thread::Builder::new().name("maps".to_owned()).spawn(move || {
            let (mut encoder, mut due_ns) = (MapEncoder::default(), clock::boottime_ns());
            loop {
                if give.send(scan_and_encode(&root, start_ns, &mut encoder)).is_err() {
                    break;
                }
                let now_ns = clock::boottime_ns();
                due_ns = next_due_ns(due_ns, every, now_ns);
                match ended.recv_timeout(Duration::from_nanos(due_ns - now_ns)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        })?;
        Ok(MapScanner { scanned, stop_sender: Some(ends), last_scan_succeeded: true })
    }

    /// Writes the map that is ready, if any, with its cost. Returns the text of an event when scans begin to
    /// fail and when they succeed again.
    pub fn write(
        &mut self,
        writer: &mut RunWriter,
        rows: &mut SeriesWriter,
    ) -> Result<Option<String>, Error> {
        let Ok(scanned) = self.scanned.try_recv() else { return Ok(None) };
        self.write_scanned(scanned, writer, rows)
    }

    /// Ends the thread, and writes the current map if it is done in time: a short recording may have no
    /// other.
    pub fn write_last(
        mut self,
        writer: &mut RunWriter,
        rows: &mut SeriesWriter,
        patience: Duration,
    ) -> Result<Option<String>, Error> {
        self.stop_sender = None;
        let (until, mut note) = (Instant::now() + patience, None);
        while let Ok(last) = self.scanned.recv_timeout(until.saturating_duration_since(Instant::now())) {
            note = self.write_scanned(last, writer, rows)?.or(note);
        }
        Ok(note)
    }

    fn write_scanned(
        &mut self,
        scanned: Result<ScannedMap, String>,
        writer: &mut RunWriter,
        rows: &mut SeriesWriter,
    ) -> Result<Option<String>, Error> {
        let was_read = std::mem::replace(&mut self.last_scan_succeeded, scanned.is_ok());
        let ScannedMap { map, started_ns, scan_ns, encode_ns } = match scanned {
            Err(problem) => return Ok(was_read.then(|| format!("no map: {problem}"))),
            Ok(scanned) => scanned,
        };
        rows.clear_row()
            .extend([scan_ns, encode_ns, map.packed_bytes()].map(|value| i64::try_from(value).ok()));
        rows.write_row(writer, started_ns, COST_SERIES, "pagelab's own cost", 0, cost_columns)?;
        writer.add_map(map)?;
        Ok((!was_read).then(|| "maps are available again".to_owned()))
    }
}

/// Next due time: whole intervals after the last one, not in the past.
fn next_due_ns(due_ns: u64, every: Duration, now_ns: u64) -> u64 {
    let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    let passed = now_ns.saturating_sub(due_ns) / every_ns;
    due_ns.saturating_add(every_ns.saturating_mul(passed + 1)).max(now_ns)
}

fn cost_columns() -> Vec<ColumnHeader> {
    let head =
        |name: &str, unit: &str| ColumnHeader { name: name.into(), unit: unit.into(), is_counter: false };
    vec![
        head("scan_wall_ns", Unit::NANOSECONDS),
        head("encode_cpu_ns", Unit::NANOSECONDS),
        head("bytes", Unit::BYTES),
    ]
}

fn scan_and_encode(root: &Root, start_ns: u64, encoder: &mut MapEncoder) -> Result<ScannedMap, String> {
    let mut map =
        scan_live_pages(root).map_err(|absence| format!("{}: {}", absence.source, absence.reason()))?;
    for time in [&mut map.started_ns, &mut map.ended_ns] {
        *time = time.saturating_sub(start_ns);
    }
    let (started_ns, scan_ns) = (map.started_ns, map.ended_ns - map.started_ns);
    let before_ns = clock::thread_cpu_ns();
    let map = encoder.encode_map(&map).map_err(|error| error.to_string())?;
    let encode_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
    Ok(ScannedMap { map, started_ns, scan_ns, encode_ns })
}

/// Scans with one thread, which leaves the other CPUs to the recorded workload.
fn scan_live_pages(root: &Root) -> Reading<PageMap> {
    let reader = Reader::new(root);
    let (mut options, _) = CensusOptions::for_page_map(&reader, None);
    options.off_lists = read_off_lists(&reader, &options);
    options.threads = 1;
    scan_page_map(&reader, &options)
}

/// Memory that counts as free and is on no free list.
pub fn read_off_lists(reader: &Reader<'_>, options: &CensusOptions) -> UnlistedFree {
    let buddy = reader.parse(paths::BUDDYINFO, pagelab_formats::buddyinfo::parse);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse).ok();
    let (Ok(buddy), Ok(meminfo)) = (buddy, meminfo) else { return UnlistedFree::Unknown };
    let balance =
        FreeBalance::from_counts(&buddy, &meminfo, zoneinfo.as_ref(), options.page_size, Some(Pages(0)));
    balance.map_or(UnlistedFree::Unknown, |balance| balance.unlisted_free())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_keep_to_their_grid() {
        for (due_ns, now_ns, next) in
            [(100, 100, 110), (100, 103, 110), (100, 110, 120), (100, 137, 140), (100, 90, 110)]
        {
            assert_eq!(next_due_ns(due_ns, Duration::from_nanos(10), now_ns), next, "{due_ns} at {now_ns}");
        }
    }
}
