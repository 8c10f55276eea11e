//! Reading kpageflags: all of it with some threads, a random sample of it, or a saved stream of it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagelab_formats::ParseError;
use pagelab_formats::kpageflags::{Block, Classifier, ENTRY_BYTES, Shape};
use pagelab_model::{PageClass, PageFlags, Pfn};

use super::frames::Segment;

/// Bytes read at a time: half of a small L2 cache. 64 KiB and 1 MiB were not faster.
const CHUNK_BYTES: usize = 256 << 10;

/// Frames that a thread takes at a time, as an order: four chunks. Larger where free blocks are larger,
/// so that no free block lies in two units.
const UNIT_ORDER: u8 = 17;

/// A block as it was counted, in one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Index of the segment.
    pub segment: usize,
    pub block: Block,
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// Ascending by segment and block.
    pub tallies: Vec<Tally>,
    /// Free blocks by order for each zone; empty for a sample.
    pub free_blocks: Vec<Vec<u64>>,
}

/// Why a scan failed.
#[derive(Debug)]
pub(super) enum Failure {
    Io(io::Error),
    Parse(ParseError),
    /// A saved stream that ends before the zones do: at this byte.
    CutOff(u64),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<ParseError> for Failure {
    fn from(error: ParseError) -> Failure {
        Failure::Parse(error)
    }
}

/// The end of a whole scan.
pub(super) enum Whole {
    Done(Scanned),
    /// It would have taken too long; so much time went by for so many pages, threads together.
    TooSlow {
        pages: u64,
        threads_time: Duration,
    },
}

/// A part of one segment with the places for its blocks. Units start and end at multiples of their size.
struct Unit<'a> {
    segment: usize,
    first: u64,
    end: u64,
    tallies: &'a mut [Option<Tally>],
    /// Places for the class of each frame; empty where they are not wanted.
    classes: &'a mut [PageClass],
}

/// What the threads of a whole scan share.
struct Shared<'a> {
    file: &'a File,
    segments: &'a [Segment],
    units: Mutex<std::vec::IntoIter<Unit<'a>>>,
    pace: Pace,
}

/// Whether the scan will end in time.
struct Pace {
    start: Instant,
    budget: Duration,
    pages_total: u64,
    pages_done: AtomicU64,
    too_slow: AtomicBool,
}

impl Pace {
    /// Counts pages and decides. A scan is given up in the first half of the budget if its speed so far
    /// would break the budget, and later only if it takes twice as long: to begin again costs more.
    fn is_too_slow(&self, pages: u64) -> bool {
        let done = self.pages_done.fetch_add(pages, Ordering::Relaxed) + pages;
        let spent = self.start.elapsed();
        let whole = spent.as_secs_f64() / done.max(1) as f64 * self.pages_total as f64;
        let early = self.budget / 16 <= spent && spent <= self.budget / 2;
        if early && whole > self.budget.as_secs_f64() || spent > self.budget * 2 {
            self.too_slow.store(true, Ordering::Relaxed);
        }
        self.too_slow.load(Ordering::Relaxed)
    }
}

fn blocks_of(first: u64, end: u64, block_order: u8) -> u64 {
    if first >= end { 0 } else { ((end - 1) >> block_order) - (first >> block_order) + 1 }
}

/// Reads everything. `classes` gets the class of each frame of the segments, one after the other; frames that
/// the kernel does not know stay as they are. Where it is empty, no class is kept.
pub(super) fn whole(
    file: &File,
    segments: &[Segment],
    shape: Shape,
    threads: usize,
    budget: Duration,
    classes: &mut [PageClass],
) -> Result<Whole, Failure> {
    let zones = segments.iter().map(|segment| segment.zone + 1).max().unwrap_or(0);
    let spans = unit_spans(segments, shape);
    let blocks: u64 = spans.iter().map(|&(_, first, end)| blocks_of(first, end, shape.block_order.0)).sum();
    // All memory is taken and touched before the first page is read: what the scan allocates while it
    // reads is not in the picture.
    let mut tallies: Vec<Option<Tally>> = vec![None; usize::try_from(blocks).unwrap_or(usize::MAX)];
    let units = units_of(&spans, &mut tallies, classes, shape.block_order.0);
    let threads = threads.clamp(1, units.len().max(1));
    let mut buffers = vec![vec![1u8; CHUNK_BYTES]; threads];
    let shared = Shared {
        file,
        segments,
        units: Mutex::new(units.into_iter()),
        pace: Pace {
            start: Instant::now(),
            budget,
            pages_total: segments.iter().map(|segment| segment.end - segment.first).sum(),
            pages_done: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
        },
    };
    let free_blocks = work_in_threads(&shared, shape, zones, &mut buffers)?;
    let Shared { pace, .. } = shared;
    if pace.too_slow.into_inner() {
        let threads_time = pace.start.elapsed() * threads as u32;
        return Ok(Whole::TooSlow { pages: pace.pages_done.into_inner(), threads_time });
    }
    let tallies = tallies.into_iter().flatten().collect();
    Ok(Whole::Done(Scanned { tallies, free_blocks }))
}

/// Segments cut at multiples of the unit size: segment, first frame, end.
fn unit_spans(segments: &[Segment], shape: Shape) -> Vec<(usize, u64, u64)> {
    let top_order = u8::try_from(shape.orders.saturating_sub(1)).unwrap_or(u8::MAX);
    let unit = 1u64 << UNIT_ORDER.max(top_order.min(40)).max(shape.block_order.0);
    let mut spans = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let mut at = segment.first;
        while at < segment.end {
            let end = (at / unit + 1).saturating_mul(unit).min(segment.end);
            spans.push((index, at, end));
            at = end;
        }
    }
    spans
}

fn units_of<'a>(
    spans: &[(usize, u64, u64)],
    mut tallies: &'a mut [Option<Tally>],
    mut classes: &'a mut [PageClass],
    block_order: u8,
) -> Vec<Unit<'a>> {
    let mut units = Vec::with_capacity(spans.len());
    for &(segment, first, end) in spans {
        let blocks = blocks_of(first, end, block_order) as usize;
        let (own, rest) = tallies.split_at_mut(blocks.min(tallies.len()));
        tallies = rest;
        let pages = usize::try_from(end - first).unwrap_or(usize::MAX);
        let (own_classes, rest) = classes.split_at_mut(pages.min(classes.len()));
        classes = rest;
        units.push(Unit { segment, first, end, tallies: own, classes: own_classes });
    }
    units
}

type FreeByZone = Vec<Vec<u64>>;

/// Runs one worker for each buffer, the last in this thread; gives the free blocks of all.
fn work_in_threads(
    shared: &Shared,
    shape: Shape,
    zones: usize,
    buffers: &mut [Vec<u8>],
) -> Result<FreeByZone, Failure> {
    let mut sum = vec![vec![0u64; shape.orders.max(1)]; zones];
    let mut add = |free: FreeByZone| {
        for (sum, free) in sum.iter_mut().zip(free) {
            for (sum, count) in sum.iter_mut().zip(free) {
                *sum += count;
            }
        }
    };
    let Some((own, others)) = buffers.split_last_mut() else { return Ok(sum) };
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(others.len());
        for buffer in others {
            let worker = move || work(shared, shape, zones, buffer);
            // A thread that cannot be had is done without: this thread takes its units.
            let spawned = std::thread::Builder::new().name("census".to_owned()).spawn_scoped(scope, worker);
            handles.extend(spawned.ok());
        }
        add(work(shared, shape, zones, own)?);
        for handle in handles {
            let failed = |_| Failure::Io(io::Error::other("a thread of the scan ended early"));
            add(handle.join().map_err(failed)??);
        }
        Ok(())
    })
    .map(|()| sum)
}

fn work(shared: &Shared, shape: Shape, zones: usize, buffer: &mut [u8]) -> Result<FreeByZone, Failure> {
    let mut free = vec![vec![0u64; shape.orders.max(1)]; zones];
    let mut classifier = Classifier::new(shape, Pfn(0), PageClass::Unknown);
    loop {
        let unit = match shared.units.lock() {
            Ok(mut units) => units.next(),
            Err(poisoned) => poisoned.into_inner().next(),
        };
        let Some(unit) = unit else { return Ok(free) };
        let segment = shared.segments[unit.segment];
        if !unit.classes.is_empty() {
            classifier = classifier.keeping_classes();
        }
        let mut places = unit.tallies.iter_mut();
        let mut sink = |block| {
            if let Some(place) = places.next() {
                *place = Some(Tally { segment: unit.segment, block });
            }
        };
        classifier.cut(Pfn(unit.first), segment.zero, &mut |_| {})?;
        let mut at = unit.first;
        while at < unit.end {
            let end = unit.end.min(at + (CHUNK_BYTES / ENTRY_BYTES) as u64);
            let read = read_frames(shared.file, at, end, buffer, |bytes| classifier.feed(bytes, &mut sink))?;
            let from = usize::try_from(at - unit.first).unwrap_or(usize::MAX);
            classifier.take_classes(|classes| put(unit.classes, from, classes));
            if shared.pace.is_too_slow(end - at) {
                return Ok(free);
            }
            if read < end - at {
                break;
            }
            at = end;
        }
        classifier.cut(Pfn(unit.end), segment.zero, &mut sink)?;
        for (sum, count) in free[segment.zone].iter_mut().zip(classifier.take_free_blocks()) {
            *sum += count;
        }
    }
}

/// Puts `classes` into their places from `from` on.
fn put(places: &mut [PageClass], from: usize, classes: &[PageClass]) {
    let places = places.get_mut(from..).unwrap_or_default();
    places.iter_mut().zip(classes).for_each(|(place, class)| *place = *class);
}

/// Reads the entries of frames `first` to `end` and gives them to `take`; how many there were. Fewer than
/// asked for means that the kernel knows no later frame.
pub(super) fn read_frames(
    file: &File,
    first: u64,
    end: u64,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<u64> {
    let mut at = first;
    while at < end {
        let want = usize::try_from(end - at).map_or(buffer.len(), |n| n.saturating_mul(ENTRY_BYTES));
        let want = want.min(buffer.len());
        let offset = at.checked_mul(ENTRY_BYTES as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let got = match file.read_at(&mut buffer[..want], offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got? / ENTRY_BYTES * ENTRY_BYTES,
        };
        if got == 0 {
            break;
        }
        take(&buffer[..got]);
        at += (got / ENTRY_BYTES) as u64;
    }
    Ok(at - first)
}

/// Reads the clusters of `2^cluster_order` frames in `order`, in that order, until `deadline` but at least
/// `at_least` of them; the clusters must be in a random order, so that a beginning of them is a sample too.
pub(super) fn sample(
    file: &File,
    segments: &[Segment],
    shape: Shape,
    clusters: &[Cluster],
    limit: Limit,
) -> Result<(Scanned, usize), Failure> {
    let places = clusters.len().saturating_mul(2);
    let mut tallies = vec![Tally::default(); places];
    tallies.clear();
    let mut buffer = vec![1u8; CHUNK_BYTES];
    let mut classifier = Classifier::new(shape, Pfn(0), PageClass::Unknown);
    let mut read = 0;
    for (done, cluster) in clusters.iter().enumerate() {
        if done >= limit.at_least && Instant::now() > limit.deadline {
            break;
        }
        let from = segments.partition_point(|segment| segment.end <= cluster.first);
        for (index, segment) in segments.iter().enumerate().skip(from) {
            if segment.first >= cluster.end {
                break;
            }
            if segment.zone != cluster.zone {
                continue;
            }
            let part = (segment.first.max(cluster.first), segment.end.min(cluster.end));
            let mut sink = |block| tallies.push(Tally { segment: index, block });
            see_head(file, segment, part.0, shape, (&mut classifier, &mut buffer))?;
            read_frames(file, part.0, part.1, &mut buffer, |bytes| classifier.feed(bytes, &mut sink))?;
            classifier.cut(Pfn(part.1), segment.zero, &mut sink)?;
        }
        read = done + 1;
    }
    tallies.sort_unstable_by_key(|tally| (tally.segment, tally.block.number));
    Ok((Scanned { tallies, free_blocks: Vec::new() }, read))
}

/// A run of blocks that is drawn or not drawn as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cluster {
    pub zone: usize,
    pub first: u64,
    pub end: u64,
}

/// How long a sample may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub deadline: Instant,
    /// Clusters that are read in any case.
    pub at_least: usize,
}

/// Moves the classifier to `first`. If the page there is the tail of a compound page that the buddy
/// allocator made, the pages from its head on are looked at first, and not counted.
fn see_head(
    file: &File,
    segment: &Segment,
    first: u64,
    shape: Shape,
    (classifier, buffer): (&mut Classifier, &mut [u8]),
) -> Result<(), Failure> {
    classifier.cut(Pfn(first), segment.zero, &mut |_| {})?;
    let mut flags = PageFlags(0);
    let mut entry = [0; ENTRY_BYTES];
    let keep = |bytes: &[u8]| {
        if let Ok(word) = bytes.try_into() {
            flags = PageFlags(u64::from_ne_bytes(word));
        }
    };
    read_frames(file, first, first + 1, &mut entry, keep)?;
    let largest = 1u64 << shape.orders.clamp(1, 20).saturating_sub(1);
    let head = (first / largest * largest).max(segment.first);
    if !flags.has(PageFlags::COMPOUND_TAIL) || head == first {
        return Ok(());
    }
    classifier.cut(Pfn(head), segment.zero, &mut |_| {})?;
    let read = read_frames(file, head, first, buffer, |bytes| classifier.feed(bytes, &mut |_| {}))?;
    if read < first - head {
        classifier.cut(Pfn(first), segment.zero, &mut |_| {})?;
    }
    Ok(())
}

/// Reads a saved stream from its first frame to the end of the last segment, and not further. `classes` gets
/// the class of each frame of the segments, if they are wanted.
pub(super) fn stream(
    mut from: Box<dyn Read + Send>,
    segments: &[Segment],
    shape: Shape,
    mut classes: Option<&mut Vec<PageClass>>,
) -> Result<Scanned, Failure> {
    let zones = segments.iter().map(|segment| segment.zone + 1).max().unwrap_or(0);
    let mut scanned =
        Scanned { tallies: Vec::new(), free_blocks: vec![vec![0u64; shape.orders.max(1)]; zones] };
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let mut classifier = Classifier::new(shape, Pfn(0), PageClass::Unknown);
    if classes.is_some() {
        classifier = classifier.keeping_classes();
    }
    let mut at_byte = 0u64;
    for (index, segment) in segments.iter().enumerate() {
        let (first, end) = (bytes_before(segment.first)?, bytes_before(segment.end)?);
        take_bytes(&mut from, &mut at_byte, first, &mut buffer, |_| {})?;
        let mut sink = |block: Block| {
            if block.counts.of(PageClass::Hole) < block.counts.total() {
                scanned.tallies.push(Tally { segment: index, block });
            }
        };
        classifier.cut(Pfn(segment.first), segment.zero, &mut sink)?;
        take_bytes(&mut from, &mut at_byte, end, &mut buffer, |bytes| {
            classifier.feed(bytes, &mut sink);
            if let Some(kept) = &mut classes {
                classifier.take_classes(|classes| kept.extend_from_slice(classes));
            }
        })?;
        classifier.cut(Pfn(segment.end), segment.zero, &mut sink)?;
        let free = classifier.take_free_blocks();
        for (sum, count) in scanned.free_blocks[segment.zone].iter_mut().zip(free) {
            *sum += count;
        }
    }
    Ok(scanned)
}

fn bytes_before(frame: u64) -> Result<u64, Failure> {
    frame.checked_mul(ENTRY_BYTES as u64).ok_or(Failure::Io(io::ErrorKind::InvalidInput.into()))
}

/// Gives the bytes from `at` to `until` to `take`.
fn take_bytes(
    from: &mut impl Read,
    at: &mut u64,
    until: u64,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> Result<(), Failure> {
    while *at < until {
        let want = usize::try_from(until - *at).unwrap_or(usize::MAX).min(buffer.len());
        let got = match from.read(&mut buffer[..want]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            return Err(Failure::CutOff(*at));
        }
        take(&buffer[..got]);
        *at += got as u64;
    }
    Ok(())
}
