//! One sweep: accessed bits are cleared, and after a while it is counted by mapping how many are set again.

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
use pagelab_sys::realtime::Realtime;

/// Clears the accessed bits of all pages of a process (`clear_refs`, Linux 2.6.22; 1: anonymous pages and
/// files alike). The TLB is not flushed: what stays in it is not found accessed, so that walks are counted.
const CLEAR_ALL: &[u8] = b"1";

/// How often a pause looks whether it is cut short.
const SLICE: Duration = Duration::from_millis(50);

/// Waiting that matters at no pause.
const SOON: Duration = Duration::from_millis(1);

/// When all bits are cleared, the program has run for so long, by its CPU time, before it is looked. One that
/// does not run is waited for a while.
const RUNS: Duration = Duration::from_millis(1);
const RUNS_WITHIN: Duration = Duration::from_millis(20);

/// Of a program that rests, a page may be found accessed that it had not touched: by the kernel, for it.
const LAG_LEAST: Duration = Duration::from_micros(100);

/// Bytes that are read at most at once.
const SOME: usize = 64 << 10;

/// A mapping, or a piece of one, after a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Bytes in memory.
    pub resident: u64,
    /// Of them, those found accessed.
    pub referenced: u64,
    /// Bytes on huge pages.
    pub huge: u64,
    /// CPU time that the program had between clearing and looking.
    pub lag_ns: u64,
}

/// What a sweep found.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    text: Vec<u8>,
    /// When all bits were cleared, by the program's CPU time since the first was: beside others it may not
    /// run for a while, and accesses nothing then.
    cleared: Duration,
    /// When the look began, by the same.
    looking: Duration,
    /// Of each part of the text: where it ends, and when it was there, by the same.
    parts: Vec<(usize, Duration)>,
    /// How long clearing took, and of that the time in which it wanted to clear, and waited.
    clearing: (Duration, Duration),
}

impl Swept {
    /// Whether so much of the clearing was waiting that nobody knows which page was cleared when. Looking
    /// tells its times as it goes.
    pub fn is_torn(&self) -> bool {
        let (took, waited) = self.clearing;
        waited * 4 > took && waited > SOON
    }

    /// Bytes in memory, and of them those found accessed.
    pub fn young(&self) -> (u64, u64) {
        sums(&self.text)
    }

    /// By address; nothing of what is no longer there.
    pub fn pieces(&self) -> io::Result<Vec<Piece>> {
        let mappings = smaps::parse(&self.text).map_err(|_| gone())?;
        Ok(pieces(&mappings, self.cleared, &self.looks()))
    }

    /// When each mapping was looked at. Fields begin with a capital letter, the first line of a mapping with
    /// an address.
    fn looks(&self) -> Vec<Duration> {
        let (mut looks, mut from, mut begun) = (Vec::new(), 0, self.looking);
        for &(end, at) in &self.parts {
            let text = self.text.get(from..end).unwrap_or_default();
            let is_first = |&(place, byte): &(usize, &u8)| {
                !byte.is_ascii_uppercase() && (from + place == 0 || self.text[from + place - 1] == b'\n')
            };
            let count = text.iter().enumerate().filter(is_first).count() as u32;
            looks.extend((0..count).map(|n| begun + (at - begun) * (2 * n + 1) / (2 * count)));
            (from, begun) = (end, at);
        }
        looks
    }
}

/// All mappings of a process, with what is in memory of them.
pub fn mappings(root: &Root, pid: u32) -> Result<Vec<Mapping>, pagelab_model::Absence> {
    Reader::new(root).parse(&paths::process(pid, "smaps"), smaps::parse)
}

/// Opens what clears accessed bits: the owner of the process and root may.
pub fn clearer(pid: u32) -> io::Result<File> {
    OpenOptions::new().write(true).open(paths::process(pid, "clear_refs"))
}

/// Clears all accessed bits.
pub fn clear(clearer: &mut File) -> io::Result<()> {
    clearer.write_all(CLEAR_ALL)
}

/// Bytes in memory of a process, and of them those that are found accessed.
pub fn young(root: &Root, pid: u32) -> Option<(u64, u64)> {
    Some(sums(&root.read(&paths::process(pid, "smaps_rollup")).ok()?))
}

/// The sums of `Rss` and `Referenced` in a text of smaps, in bytes. Each sweep asks for them before the next
/// one, with mappings split, so nothing else of the text is read here.
fn sums(text: &[u8]) -> (u64, u64) {
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

/// Sweeps once; a person who has seen enough cuts the pause short. One that is short is not put off by other
/// programs, if it may be so: of one that is, nobody knows which page was cleared when.
pub fn sweep(
    root: &Root,
    pid: u32,
    is_short: bool,
    clearer: &mut File,
    pause: Duration,
    stop: &AtomicBool,
) -> io::Result<Swept> {
    let mut smaps = root.file(&paths::process(pid, "smaps")).map_err(|_| gone())?;
    let _soon = is_short.then(Realtime::enter);
    let ran_ns = || clock::process_cpu_ns(pid).map_err(|_| gone());
    let began_ns = ran_ns()?;
    let ran = || ran_ns().map(|now| Duration::from_nanos(now.saturating_sub(began_ns)));
    let (began, began_cpu) = (Instant::now(), clock::thread_cpu_ns());
    clear(clearer)?;
    let (took, cleared) = (began.elapsed(), ran()?);
    let waited = took.saturating_sub(Duration::from_nanos(clock::thread_cpu_ns() - began_cpu));
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(end.saturating_duration_since(Instant::now()).min(SLICE));
    }
    let late = Instant::now() + RUNS_WITHIN;
    while ran()? < cleared + RUNS && Instant::now() < late && !stop.load(Ordering::Relaxed) {
        thread::sleep(RUNS / 4);
    }
    let looking = ran()?;
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let mut some = vec![0; SOME];
    loop {
        // The kernel gives a few mappings at a time.
        match smaps.read(&mut some)? {
            0 => break,
            read => text.extend_from_slice(&some[..read]),
        }
        parts.push((text.len(), ran()?));
    }
    Ok(Swept { text, cleared, looking, parts, clearing: (took, waited) })
}

fn gone() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

/// Clearing goes up through the pages in memory, so a page's part of them tells when it was cleared.
fn pieces(mappings: &[Mapping], cleared: Duration, looks: &[Duration]) -> Vec<Piece> {
    let bytes =
        |mapping: &Mapping, field: &str| mapping.fields_kib.get(field).unwrap_or(0).saturating_mul(1024);
    let all = mappings.iter().map(|mapping| bytes(mapping, "Rss")).sum::<u64>().max(1) as f64;
    let mut before = 0f64;
    let of = |(mapping, look): (&Mapping, &Duration)| {
        let resident = bytes(mapping, "Rss");
        let part = (before + resident as f64 / 2.0) / all;
        before += resident as f64;
        let lag = look.saturating_sub(cleared.mul_f64(part.min(1.0)));
        Piece {
            addresses: mapping.start..mapping.end,
            resident,
            referenced: bytes(mapping, "Referenced"),
            huge: ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"]
                .iter()
                .map(|f| bytes(mapping, f))
                .sum(),
            lag_ns: u64::try_from(lag.max(LAG_LEAST).as_nanos()).unwrap_or(u64::MAX),
        }
    };
    mappings.iter().zip(looks).map(of).collect()
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
        let swept = Swept {
            parts: vec![(first.len(), ms(14)), (first.len() + rest.len(), ms(30))],
            text: (first + &rest).into_bytes(),
            cleared: ms(6),
            looking: ms(10),
            clearing: (ms(6), ms(1)),
        };
        let lags: Vec<u64> = swept.pieces().unwrap().iter().map(|piece| piece.lag_ns).collect();
        // Looked at after 12, 18 and 26 ms; cleared after 1, 3 and 5 ms.
        assert_eq!(lags, [11_000_000, 15_000_000, 21_000_000]);
        assert_eq!(swept.young(), (3 * 4096, 3 * 4096));
        assert!(!swept.is_torn() && Swept { clearing: (ms(6), ms(3)), ..swept }.is_torn());
    }
}
