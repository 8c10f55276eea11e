//! One sweep: accessed bits are cleared, and after a pause those that are set again are counted by mapping.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::smaps;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;
use pagelab_sys::clock;
use pagelab_sys::scheduling::RealtimePriority;

use crate::dontneed::TaskClock;

/// Clears the accessed bits of all pages of a process (`clear_refs`, Linux 2.6.22; 1: anonymous pages and
/// files alike). The TLB is not flushed: pages with a cached translation are not found accessed, so walks are
/// counted.
const CLEAR_ALL: &[u8] = b"1";

/// Interval at which a pause checks for a stop.
const PAUSE_SLICE: Duration = Duration::from_millis(20);

/// Waiting that matters at no pause.
const WAIT_NEGLIGIBLE: Duration = Duration::from_millis(1);

/// CPU time that the program runs between the end of clearing and the scan, at least. A program that does not
/// run is awaited for a limited time.
const CPU_TIME_MIN: Duration = Duration::from_millis(1);
const CPU_TIME_WAIT_MAX: Duration = Duration::from_millis(20);

/// In an idle program, the kernel may have accessed a page on its behalf.
const LAG_MIN: Duration = Duration::from_micros(100);

/// Bytes that are read at most at once.
const READ_BYTES_MAX: usize = 64 << 10;

/// A mapping, or a piece of one, after a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedPiece {
    pub addresses: Range<u64>,
    /// Bytes in memory.
    pub resident: u64,
    /// Of them, those found accessed.
    pub referenced: u64,
    /// Bytes on huge pages.
    pub huge_bytes: u64,
    /// CPU time of the program between clearing and scanning.
    pub lag_ns: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SweepResult {
    text: Vec<u8>,
    /// When all bits were cleared, by the program's CPU time since the first was: other programs may keep it
    /// from running, and it accesses nothing then.
    cleared: Duration,
    /// When the scan began, by the same.
    scan_start: Duration,
    /// Of each part of the text: where it ends, and when it was there, by the same.
    text_parts: Vec<(usize, Duration)>,
    /// The time of clearing, and of that the time in which it waited for a CPU.
    clear_times: (Duration, Duration),
}

impl SweepResult {
    /// Whether so much of the clearing was waiting that it is unknown which page was cleared when. Scanning
    /// records its times.
    pub fn is_torn(&self) -> bool {
        let (took, waited) = self.clear_times;
        waited * 4 > took && waited > WAIT_NEGLIGIBLE
    }

    /// Bytes in memory, and of them those found accessed.
    pub fn accessed_bytes(&self) -> (u64, u64) {
        sum_fields(&self.text)
    }

    /// In address order, without pieces that no longer exist; and their mappings as the kernel lists them.
    pub fn parse_pieces(&self) -> io::Result<(Vec<ScannedPiece>, Vec<Mapping>)> {
        let mappings = smaps::parse(&self.text).map_err(|_| not_found_error())?;
        Ok((build_pieces(&mappings, self.cleared, &self.scan_times()), mappings))
    }

    /// When each mapping was scanned. Fields begin with a capital letter, the first line of a mapping with
    /// an address.
    fn scan_times(&self) -> Vec<Duration> {
        let (mut times, mut from, mut begun) = (Vec::new(), 0, self.scan_start);
        for &(end, at) in &self.text_parts {
            let text = self.text.get(from..end).unwrap_or_default();
            let is_first = |&(place, byte): &(usize, &u8)| {
                !byte.is_ascii_uppercase() && (from + place == 0 || self.text[from + place - 1] == b'\n')
            };
            let count = text.iter().enumerate().filter(is_first).count() as u32;
            times.extend((0..count).map(|n| begun + (at - begun) * (2 * n + 1) / (2 * count)));
            (from, begun) = (end, at);
        }
        times
    }
}

/// All mappings of a process with their resident memory.
pub fn read_mappings(root: &Root, pid: u32) -> Result<Vec<Mapping>, pagelab_model::Absence> {
    Reader::new(root).parse(&paths::process_file(pid, "smaps"), smaps::parse)
}

/// Opens what clears accessed bits: the owner of the process and root may.
pub fn open_clear_refs(pid: u32) -> io::Result<File> {
    OpenOptions::new().write(true).open(paths::process_file(pid, "clear_refs"))
}

pub fn clear_accessed_bits(clear_refs: &mut File) -> io::Result<()> {
    clear_refs.write_all(CLEAR_ALL)
}

/// Bytes in memory of a process, and of them those that are found accessed.
pub fn read_accessed_bytes(root: &Root, pid: u32) -> Option<(u64, u64)> {
    Some(sum_fields(&root.read(&paths::process_file(pid, "smaps_rollup")).ok()?))
}

/// The sums of `Rss` and `Referenced` in a text of smaps, in bytes. Each sweep needs them before the next
/// one, with mappings split, so nothing else of the text is read here.
fn sum_fields(text: &[u8]) -> (u64, u64) {
    let kib = |line: &[u8], field: &[u8]| -> Option<u64> {
        let digits = line.strip_prefix(field)?.trim_ascii().strip_suffix(b"kB")?.trim_ascii();
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
    };
    let (mut resident, mut referenced) = (0u64, 0u64);
    for line in text.split(|&byte| byte == b'\n') {
        resident = resident.saturating_add(kib(line, b"Rss:").unwrap_or(0));
        referenced = referenced.saturating_add(kib(line, b"Referenced:").unwrap_or(0));
    }
    (resident.saturating_mul(1024), referenced.saturating_mul(1024))
}

/// Sweeps once; a stop ends the pause early. A short one runs at a real-time priority, if permitted: if it
/// were preempted, it would be unknown which page was cleared when.
pub fn sweep_process(
    root: &Root,
    pid: u32,
    is_short: bool,
    clear_refs: &mut File,
    pause: Duration,
    stop: &AtomicBool,
) -> io::Result<SweepResult> {
    let mut smaps =
        root.open_regular_file(&paths::process_file(pid, "smaps")).map_err(|_| not_found_error())?;
    let _priority = is_short.then(RealtimePriority::enter);
    let program_clock = ProgramClock::open(root, pid);
    let began_ns = program_clock.read_ns()?;
    let cpu_time = || program_clock.read_ns().map(|now| Duration::from_nanos(now.saturating_sub(began_ns)));
    let (began, began_cpu) = (Instant::now(), clock::thread_cpu_ns());
    clear_accessed_bits(clear_refs)?;
    let (took, cleared) = (began.elapsed(), cpu_time()?);
    let waited = took.saturating_sub(Duration::from_nanos(clock::thread_cpu_ns() - began_cpu));
    wait_unless_stopped(pause, stop);
    let deadline = Instant::now() + CPU_TIME_WAIT_MAX;
    while cpu_time()? < cleared + CPU_TIME_MIN && Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
        thread::sleep(CPU_TIME_MIN / 4);
    }
    let scan_start = cpu_time()?;
    let (mut text, mut text_parts) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; READ_BYTES_MAX];
    loop {
        // The kernel returns a few mappings at a time.
        match smaps.read(&mut buffer)? {
            0 => break,
            read => text.extend_from_slice(&buffer[..read]),
        }
        text_parts.push((text.len(), cpu_time()?));
    }
    Ok(SweepResult { text, cleared, scan_start, text_parts, clear_times: (took, waited) })
}

/// The CPU time of the swept program.
enum ProgramClock {
    /// By perf events: as of now, also on another CPU. Most sweeps take less than a tick.
    Task(TaskClock),
    /// By the clock of the process, as of the last tick; where perf events are not permitted.
    Process(u32),
}

impl ProgramClock {
    fn open(root: &Root, pid: u32) -> ProgramClock {
        TaskClock::open(root, pid).map_or(ProgramClock::Process(pid), ProgramClock::Task)
    }

    fn read_ns(&self) -> io::Result<u64> {
        match self {
            ProgramClock::Task(clock) => clock.read_ns().ok_or_else(not_found_error),
            ProgramClock::Process(pid) => clock::process_cpu_ns(*pid).map_err(|_| not_found_error()),
        }
    }
}

/// Waits for a pause, which a stop ends early.
pub fn wait_unless_stopped(pause: Duration, stop: &AtomicBool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(end.saturating_duration_since(Instant::now()).min(PAUSE_SLICE));
    }
}

fn not_found_error() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

/// Clearing goes up through the pages in memory, so a page's position among them gives the time at which it
/// was cleared.
fn build_pieces(mappings: &[Mapping], cleared: Duration, scan_times: &[Duration]) -> Vec<ScannedPiece> {
    let bytes =
        |mapping: &Mapping, field: &str| mapping.fields_kib.get(field).unwrap_or(0).saturating_mul(1024);
    let all = mappings.iter().map(|mapping| bytes(mapping, "Rss")).sum::<u64>().max(1) as f64;
    let mut before = 0f64;
    let to_piece = |(mapping, scan_time): (&Mapping, &Duration)| {
        let resident = bytes(mapping, "Rss");
        let part = (before + resident as f64 / 2.0) / all;
        before += resident as f64;
        let lag = scan_time.saturating_sub(cleared.mul_f64(part.min(1.0)));
        ScannedPiece {
            addresses: mapping.start..mapping.end,
            resident,
            referenced: bytes(mapping, "Referenced"),
            huge_bytes: ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"]
                .iter()
                .map(|f| bytes(mapping, f))
                .sum(),
            lag_ns: u64::try_from(lag.max(LAG_MIN).as_nanos()).unwrap_or(u64::MAX),
        }
    };
    mappings.iter().zip(scan_times).map(to_piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_has_the_time_at_which_its_part_of_the_text_was_read() {
        let one = |at: u64| {
            format!("{at:x}000-{:x}000 rw-p 00000000 00:00 0 \nRss: 4 kB\nReferenced: 4 kB\n", at + 1)
        };
        let (first, rest) = (one(10), [one(11), one(12)].concat());
        let ms = Duration::from_millis;
        let swept = SweepResult {
            text_parts: vec![(first.len(), ms(14)), (first.len() + rest.len(), ms(30))],
            text: (first + &rest).into_bytes(),
            cleared: ms(6),
            scan_start: ms(10),
            clear_times: (ms(6), ms(1)),
        };
        let lags: Vec<u64> = swept.parse_pieces().unwrap().0.iter().map(|piece| piece.lag_ns).collect();
        // Scanned after 12, 18 and 26 ms; cleared after 1, 3 and 5 ms.
        assert_eq!(lags, [11_000_000, 15_000_000, 21_000_000]);
        assert_eq!(swept.accessed_bytes(), (3 * 4096, 3 * 4096));
        assert!(!swept.is_torn() && SweepResult { clear_times: (ms(6), ms(3)), ..swept }.is_torn());
    }
}
