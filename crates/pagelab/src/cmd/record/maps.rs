//! Maps of physical memory beside the samples: a thread of their own scans and encodes them, so that no tick
//! waits for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::page_map::{MapOptions, scan};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::run::{ColumnHead, Unit};
use pagelab_model::{Absence, PageMap, Reading};
use pagelab_runfile::{EncodedMap, Error, MapEncoder, Writer};
use pagelab_sys::clock;

use super::rows::Rows;
use crate::cmd::map::off_lists;

/// Name of the series of what maps cost.
const COST: &str = "maps";

/// The thread that scans.
pub struct Maps {
    scanned: Receiver<Result<Scanned, String>>,
    /// Dropped, it ends the thread: at once, or after the scan that it is at.
    ends: Option<Sender<()>>,
    /// Whether the last scan succeeded, so that a failure is told once.
    was_read: bool,
}

/// A map, ready to be written, and what it cost.
pub struct Scanned {
    map: EncodedMap,
    started_ns: u64,
    /// Wall time of the scan, and CPU time of encoding it.
    pub scan_ns: u64,
    pub encode_ns: u64,
}

impl Scanned {
    /// One map, which goes into no file; the error says why there is none.
    pub fn trial(root: &Root) -> Result<Scanned, String> {
        one(root, 0, &mut MapEncoder::default())
    }

    /// Bytes in a file.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }
}

/// Why this user gets no maps here, as far as that is known beforehand.
pub fn absence(root: &Root) -> Option<Absence> {
    root.file(paths::KPAGEFLAGS).err()
}

impl Maps {
    /// Scans at once and then every so often, without drift; a scan that takes longer than that leaves the
    /// next ones out. Times count from `start_ns` on the boot clock.
    pub fn start(root: Root, start_ns: u64, every: Duration) -> std::io::Result<Maps> {
        let (ends, ended) = channel();
        // One map may wait to be written: a slow disk makes maps rarer, not memory fuller.
        let (give, scanned) = sync_channel(1);
        thread::Builder::new().name("maps".to_owned()).spawn(move || {
            let (mut encoder, mut due_ns) = (MapEncoder::default(), clock::boottime_ns());
            loop {
                if give.send(one(&root, start_ns, &mut encoder)).is_err() {
                    break;
                }
                let now_ns = clock::boottime_ns();
                due_ns = next_ns(due_ns, every, now_ns);
                match ended.recv_timeout(Duration::from_nanos(due_ns - now_ns)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        })?;
        Ok(Maps { scanned, ends: Some(ends), was_read: true })
    }

    /// Writes the map that is ready, if one is, with its cost beside it. A map that could not be had is told
    /// when the trouble begins and when it ends: the text of that event.
    pub fn write(&mut self, writer: &mut Writer, rows: &mut Rows) -> Result<Option<String>, Error> {
        let Ok(scanned) = self.scanned.try_recv() else { return Ok(None) };
        self.put(scanned, writer, rows)
    }

    /// Ends the thread, and writes the map that it is at, if that comes in time: of a short recording it may
    /// be the only one.
    pub fn write_last(
        mut self,
        writer: &mut Writer,
        rows: &mut Rows,
        patience: Duration,
    ) -> Result<Option<String>, Error> {
        self.ends = None;
        let (until, mut told) = (Instant::now() + patience, None);
        while let Ok(last) = self.scanned.recv_timeout(until.saturating_duration_since(Instant::now())) {
            told = self.put(last, writer, rows)?.or(told);
        }
        Ok(told)
    }

    fn put(
        &mut self,
        scanned: Result<Scanned, String>,
        writer: &mut Writer,
        rows: &mut Rows,
    ) -> Result<Option<String>, Error> {
        let was_read = std::mem::replace(&mut self.was_read, scanned.is_ok());
        let Scanned { map, started_ns, scan_ns, encode_ns } = match scanned {
            Err(problem) => return Ok(was_read.then(|| format!("no map: {problem}"))),
            Ok(scanned) => scanned,
        };
        rows.fresh().extend([scan_ns, encode_ns, map.bytes()].map(|value| i64::try_from(value).ok()));
        rows.put(writer, started_ns, COST, "pagelab's own cost", 0, heads)?;
        writer.map(map)?;
        Ok((!was_read).then(|| "maps can be had again".to_owned()))
    }
}

/// When the next map is due: so many whole intervals after the last one that it is not past yet.
fn next_ns(due_ns: u64, every: Duration, now_ns: u64) -> u64 {
    let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    let passed = now_ns.saturating_sub(due_ns) / every_ns;
    due_ns.saturating_add(every_ns.saturating_mul(passed + 1)).max(now_ns)
}

fn heads() -> Vec<ColumnHead> {
    let head =
        |name: &str, unit: &str| ColumnHead { name: name.into(), unit: unit.into(), is_counter: false };
    vec![
        head("scan_wall_ns", Unit::NANOSECONDS),
        head("encode_cpu_ns", Unit::NANOSECONDS),
        head("bytes", Unit::BYTES),
    ]
}

fn one(root: &Root, start_ns: u64, encoder: &mut MapEncoder) -> Result<Scanned, String> {
    let mut map = take(root).map_err(|absence| format!("{}: {}", absence.source, absence.reason()))?;
    for time in [&mut map.started_ns, &mut map.ended_ns] {
        *time = time.saturating_sub(start_ns);
    }
    let before_ns = clock::thread_cpu_ns();
    let encoded = encoder.encode(&map).map_err(|error| error.to_string())?;
    let encode_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
    Ok(Scanned {
        map: encoded,
        started_ns: map.started_ns,
        scan_ns: map.ended_ns - map.started_ns,
        encode_ns,
    })
}

/// Scans by one thread, which leaves the other CPUs to those that are recorded.
fn take(root: &Root) -> Reading<PageMap> {
    let reader = Reader::new(root);
    let mut options = MapOptions::of(&reader, None);
    options.off_lists = off_lists(&reader, &options);
    options.threads = 1;
    scan(&reader, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_keep_to_their_grid() {
        for (due_ns, now_ns, next) in
            [(100, 100, 110), (100, 103, 110), (100, 110, 120), (100, 137, 140), (100, 90, 110)]
        {
            assert_eq!(next_ns(due_ns, Duration::from_nanos(10), now_ns), next, "{due_ns} at {now_ns}");
        }
    }
}
