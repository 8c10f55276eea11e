//! Scans of kpageflags: complete with several threads, a random sample, or a saved stream.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagelab_formats::ParseError;
use pagelab_formats::kpageflags::{CountedPageblock, ENTRY_BYTES, PageClassifier, ScanGeometry};
use pagelab_model::random::SplitMix64;
use pagelab_model::{Order, PageClass, PageFlags, Pfn, Zoneinfo};

use super::SAMPLE_PMD_BLOCKS_MIN;
use super::frames::{FrameRange, FrameSegment, count_frames, merge_ranges};

/// Bytes read at a time: half of a small L2 cache. 64 KiB and 1 MiB were not faster.
const CHUNK_BYTES: usize = 256 << 10;

/// Frames of a unit of a thread, as an order: four chunks. Larger if free blocks are larger, so that no free
/// block crosses two units.
const WORK_UNIT_ORDER: u8 = 17;

/// A counted block in one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentBlock {
    /// Index of the segment.
    pub segment: usize,
    pub block: CountedPageblock,
}

#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// Ascending by segment and block.
    pub blocks: Vec<SegmentBlock>,
    /// Free blocks by order for each zone; empty for a sample.
    pub free_blocks: Vec<Vec<u64>>,
}

#[derive(Debug)]
pub(super) enum ScanError {
    Io(io::Error),
    Parse(ParseError),
    /// A saved stream that ends before the zones: at this byte.
    Truncated(u64),
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> ScanError {
        ScanError::Io(error)
    }
}

impl From<ParseError> for ScanError {
    fn from(error: ParseError) -> ScanError {
        ScanError::Parse(error)
    }
}

/// The end of a whole scan.
pub(super) enum FullScanOutcome {
    Complete(ScanResult),
    /// It would have taken too long: this is the time for this number of pages, summed over threads.
    TooSlow {
        pages: u64,
        thread_time: Duration,
    },
}

/// A part of one segment with the slots for its blocks. Units start and end at multiples of their size.
struct WorkUnit<'a> {
    segment: usize,
    first: u64,
    end: u64,
    block_slots: &'a mut [Option<SegmentBlock>],
    /// Room for the class of each frame; empty if not requested.
    class_slots: &'a mut [PageClass],
}

/// State shared by the threads of a whole scan.
struct ScanContext<'a> {
    file: &'a File,
    segments: &'a [FrameSegment],
    units: Mutex<std::vec::IntoIter<WorkUnit<'a>>>,
    free_blocks: Mutex<FreeBlocksByZone>,
    progress: ScanProgress,
}

/// Checks that the scan ends in time.
struct ScanProgress {
    start: Instant,
    budget: Duration,
    pages_total: u64,
    pages_done: AtomicU64,
    too_slow: AtomicBool,
}

impl ScanProgress {
    /// Counts pages and decides. A scan is stopped in the first half of the budget if its speed so far would
    /// exceed the budget, and later only if it takes twice as long: restarting costs more.
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

fn count_blocks(first: u64, end: u64, pageblock_order: u8) -> u64 {
    if first >= end { 0 } else { ((end - 1) >> pageblock_order) - (first >> pageblock_order) + 1 }
}

/// Reads everything. `classes` gets the class of each frame of the segments, one after the other; frames that
/// the kernel does not know stay as they are. If it is empty, no class is kept.
pub(super) fn scan_all(
    file: &File,
    segments: &[FrameSegment],
    geometry: ScanGeometry,
    threads: usize,
    budget: Duration,
    classes: &mut [PageClass],
) -> Result<FullScanOutcome, ScanError> {
    let spans = split_units(segments, geometry);
    let blocks: u64 =
        spans.iter().map(|&(_, first, end)| count_blocks(first, end, geometry.pageblock_order.0)).sum();
    // All memory is allocated and touched before the first page is read: later allocations of the scan would
    // not be in the result.
    let mut block_slots = vec![None; usize::try_from(blocks).unwrap_or(usize::MAX)];
    let units = assign_units(&spans, &mut block_slots, classes, geometry.pageblock_order.0);
    let threads = threads.clamp(1, units.len().max(1));
    let mut buffers = vec![vec![1u8; CHUNK_BYTES]; threads];
    let shared = ScanContext {
        file,
        segments,
        units: Mutex::new(units.into_iter()),
        free_blocks: Mutex::new(no_free_blocks(segments, geometry)),
        progress: ScanProgress {
            start: Instant::now(),
            budget,
            pages_total: count_frames(segments),
            pages_done: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
        },
    };
    run_workers(&shared, geometry, &mut buffers)?;
    let ScanContext { progress, free_blocks, .. } = shared;
    if progress.too_slow.into_inner() {
        let thread_time = progress.start.elapsed() * threads as u32;
        return Ok(FullScanOutcome::TooSlow { pages: progress.pages_done.into_inner(), thread_time });
    }
    let blocks = block_slots.into_iter().flatten().collect();
    let free_blocks = free_blocks.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(FullScanOutcome::Complete(ScanResult { blocks, free_blocks }))
}

/// Segments cut at multiples of the unit size: segment, first frame, end.
fn split_units(segments: &[FrameSegment], geometry: ScanGeometry) -> Vec<(usize, u64, u64)> {
    let top_order = u8::try_from(geometry.orders.saturating_sub(1)).unwrap_or(u8::MAX);
    let unit = 1u64 << WORK_UNIT_ORDER.max(top_order.min(40)).max(geometry.pageblock_order.0);
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

fn assign_units<'a>(
    spans: &[(usize, u64, u64)],
    mut block_slots: &'a mut [Option<SegmentBlock>],
    mut class_slots: &'a mut [PageClass],
    pageblock_order: u8,
) -> Vec<WorkUnit<'a>> {
    let mut units = Vec::with_capacity(spans.len());
    for &(segment, first, end) in spans {
        let blocks = count_blocks(first, end, pageblock_order) as usize;
        let (own, rest) = block_slots.split_at_mut(blocks.min(block_slots.len()));
        block_slots = rest;
        let pages = usize::try_from(end - first).unwrap_or(usize::MAX);
        let (own_classes, rest) = class_slots.split_at_mut(pages.min(class_slots.len()));
        class_slots = rest;
        units.push(WorkUnit { segment, first, end, block_slots: own, class_slots: own_classes });
    }
    units
}

type FreeBlocksByZone = Vec<Vec<u64>>;

fn no_free_blocks(segments: &[FrameSegment], geometry: ScanGeometry) -> FreeBlocksByZone {
    let zones = segments.iter().map(|segment| segment.zone + 1).max().unwrap_or(0);
    vec![vec![0; geometry.orders.max(1)]; zones]
}

/// Runs one worker for each buffer, the last in this thread.
fn run_workers(
    shared: &ScanContext,
    geometry: ScanGeometry,
    buffers: &mut [Vec<u8>],
) -> Result<(), ScanError> {
    let Some((own_buffer, other_buffers)) = buffers.split_last_mut() else { return Ok(()) };
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(other_buffers.len());
        for buffer in other_buffers {
            let worker = move || run_worker(shared, geometry, buffer);
            // If a thread cannot be started, this thread scans its units.
            let spawned = std::thread::Builder::new().name("census".to_owned()).spawn_scoped(scope, worker);
            handles.extend(spawned.ok());
        }
        run_worker(shared, geometry, own_buffer)?;
        for handle in handles {
            handle.join().map_err(|_| io::Error::other("a scan thread exited early"))??;
        }
        Ok(())
    })
}

fn run_worker(shared: &ScanContext, geometry: ScanGeometry, buffer: &mut [u8]) -> Result<(), ScanError> {
    let mut classifier = PageClassifier::new(geometry, Pfn(0), PageClass::Unknown);
    loop {
        let unit = shared.units.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(unit) = unit else { return Ok(()) };
        let segment = shared.segments[unit.segment];
        if !unit.class_slots.is_empty() {
            classifier = classifier.with_page_classes();
        }
        let mut slots = unit.block_slots.iter_mut();
        let mut sink = |block| {
            if let Some(place) = slots.next() {
                *place = Some(SegmentBlock { segment: unit.segment, block });
            }
        };
        classifier.end_segment(Pfn(unit.first), segment.unflagged_class, &mut |_| {})?;
        let mut slot = unit.first;
        while slot < unit.end {
            let end = unit.end.min(slot + (CHUNK_BYTES / ENTRY_BYTES) as u64);
            let read =
                read_frames(shared.file, slot, end, buffer, |bytes| classifier.feed(bytes, &mut sink))?;
            let from = usize::try_from(slot - unit.first).unwrap_or(usize::MAX);
            classifier.drain_classes(|classes| store_classes(unit.class_slots, from, classes));
            if shared.progress.is_too_slow(end - slot) {
                return Ok(());
            }
            if read < end - slot {
                break;
            }
            slot = end;
        }
        classifier.end_segment(Pfn(unit.end), segment.unflagged_class, &mut sink)?;
        let mut free_blocks = shared.free_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        add_counts(&mut free_blocks[segment.zone], classifier.drain_free_blocks());
    }
}

pub(super) fn add_counts(sums: &mut [u64], counts: Vec<u64>) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// Copies `classes` to `slots` from `from` on.
fn store_classes(slots: &mut [PageClass], from: usize, classes: &[PageClass]) {
    let places = slots.get_mut(from..).unwrap_or_default();
    places.iter_mut().zip(classes).for_each(|(place, class)| *place = *class);
}

/// Reads the entries of frames `first` to `end` into `sink`, and returns their number. Fewer than requested
/// means that the kernel knows no later frame.
pub(super) fn read_frames(
    file: &File,
    first: u64,
    end: u64,
    buffer: &mut [u8],
    mut sink: impl FnMut(&[u8]),
) -> io::Result<u64> {
    let mut bytes_read = first;
    while bytes_read < end {
        let want = usize::try_from(end - bytes_read).map_or(buffer.len(), |n| n.saturating_mul(ENTRY_BYTES));
        let want = want.min(buffer.len());
        let offset = bytes_read.checked_mul(ENTRY_BYTES as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let got = match file.read_at(&mut buffer[..want], offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got? / ENTRY_BYTES * ENTRY_BYTES,
        };
        if got == 0 {
            break;
        }
        sink(&buffer[..got]);
        bytes_read += (got / ENTRY_BYTES) as u64;
    }
    Ok(bytes_read - first)
}

/// Reads the clusters of `2^cluster_order` frames in `order`, in that order, until `deadline` but at least
/// [`SAMPLE_PMD_BLOCKS_MIN`] of them; the clusters must be in a random order, so that a beginning of them is
/// a sample too.
pub(super) fn scan_sample(
    file: &File,
    segments: &[FrameSegment],
    geometry: ScanGeometry,
    clusters: &[PageblockCluster],
    deadline: Instant,
) -> Result<(ScanResult, usize), ScanError> {
    let largest_blocks = clusters.len().saturating_mul(2);
    let mut tallies = vec![SegmentBlock::default(); largest_blocks];
    tallies.clear();
    let mut buffer = vec![1u8; CHUNK_BYTES];
    let mut classifier = PageClassifier::new(geometry, Pfn(0), PageClass::Unknown);
    let mut read = 0;
    for (done, cluster) in clusters.iter().enumerate() {
        if done >= SAMPLE_PMD_BLOCKS_MIN && Instant::now() > deadline {
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
            let mut sink = |block| tallies.push(SegmentBlock { segment: index, block });
            find_compound_head(file, segment, part.0, geometry, (&mut classifier, &mut buffer))?;
            read_frames(file, part.0, part.1, &mut buffer, |bytes| classifier.feed(bytes, &mut sink))?;
            classifier.end_segment(Pfn(part.1), segment.unflagged_class, &mut sink)?;
        }
        read = done + 1;
    }
    tallies.sort_unstable_by_key(|tally| (tally.segment, tally.block.number));
    Ok((ScanResult { blocks: tallies, free_blocks: Vec::new() }, read))
}

/// A run of blocks that is sampled as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageblockCluster {
    pub zone: usize,
    pub first: u64,
    pub end: u64,
}

/// Moves the classifier to `first`. If the page there is the tail of a compound page of the buddy allocator,
/// the pages from its head on are read first, and not counted.
fn find_compound_head(
    file: &File,
    segment: &FrameSegment,
    first: u64,
    geometry: ScanGeometry,
    (classifier, buffer): (&mut PageClassifier, &mut [u8]),
) -> Result<(), ScanError> {
    classifier.end_segment(Pfn(first), segment.unflagged_class, &mut |_| {})?;
    let mut flags = PageFlags(0);
    let mut entry = [0; ENTRY_BYTES];
    let keep = |bytes: &[u8]| {
        if let Ok(word) = bytes.try_into() {
            flags = PageFlags(u64::from_ne_bytes(word));
        }
    };
    read_frames(file, first, first + 1, &mut entry, keep)?;
    let largest = 1u64 << geometry.orders.clamp(1, 20).saturating_sub(1);
    let head = (first / largest * largest).max(segment.first);
    if !flags.has_any(PageFlags::COMPOUND_TAIL) || head == first {
        return Ok(());
    }
    classifier.end_segment(Pfn(head), segment.unflagged_class, &mut |_| {})?;
    let read = read_frames(file, head, first, buffer, |bytes| classifier.feed(bytes, &mut |_| {}))?;
    if read < first - head {
        classifier.end_segment(Pfn(first), segment.unflagged_class, &mut |_| {})?;
    }
    Ok(())
}

/// Reads a saved stream from its first frame to the end of the last segment, and not further. `classes`
/// receives the class of each frame of the segments, if requested.
pub(super) fn scan_stream(
    mut stream: Box<dyn Read + Send>,
    segments: &[FrameSegment],
    geometry: ScanGeometry,
    mut classes: Option<&mut Vec<PageClass>>,
) -> Result<ScanResult, ScanError> {
    let mut scanned = ScanResult { blocks: Vec::new(), free_blocks: no_free_blocks(segments, geometry) };
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let mut classifier = PageClassifier::new(geometry, Pfn(0), PageClass::Unknown);
    if classes.is_some() {
        classifier = classifier.with_page_classes();
    }
    let mut offset = 0u64;
    for (index, segment) in segments.iter().enumerate() {
        let (first, end) = (frame_offset(segment.first)?, frame_offset(segment.end)?);
        read_bytes(&mut stream, &mut offset, first, &mut buffer, |_| {})?;
        let mut sink = |block: CountedPageblock| {
            if block.counts.pages_of_class(PageClass::Hole) < block.counts.total() {
                scanned.blocks.push(SegmentBlock { segment: index, block });
            }
        };
        classifier.end_segment(Pfn(segment.first), segment.unflagged_class, &mut sink)?;
        read_bytes(&mut stream, &mut offset, end, &mut buffer, |bytes| {
            classifier.feed(bytes, &mut sink);
            if let Some(kept) = &mut classes {
                classifier.drain_classes(|classes| kept.extend_from_slice(classes));
            }
        })?;
        classifier.end_segment(Pfn(segment.end), segment.unflagged_class, &mut sink)?;
        add_counts(&mut scanned.free_blocks[segment.zone], classifier.drain_free_blocks());
    }
    Ok(scanned)
}

fn frame_offset(frame: u64) -> Result<u64, ScanError> {
    frame.checked_mul(ENTRY_BYTES as u64).ok_or(ScanError::Io(io::ErrorKind::InvalidInput.into()))
}

/// Passes the bytes from `offset` to `until` to `sink`.
fn read_bytes(
    stream: &mut impl Read,
    offset: &mut u64,
    until: u64,
    buffer: &mut [u8],
    mut sink: impl FnMut(&[u8]),
) -> Result<(), ScanError> {
    while *offset < until {
        let want = usize::try_from(until - *offset).unwrap_or(usize::MAX).min(buffer.len());
        let got = match stream.read(&mut buffer[..want]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            return Err(ScanError::Truncated(*offset));
        }
        sink(&buffer[..got]);
        *offset += got as u64;
    }
    Ok(())
}

/// Minimum of sampled clusters per zone, so that no small zone is missed.
const ZONE_CLUSTERS_MIN: u64 = 32;

/// A population of clusters by zone, and the sample of it. A cluster is an aligned range of the size of
/// a huge page, or of a pageblock if that is larger.
#[derive(Debug)]
pub(super) struct ClusterSample {
    pub seed: u64,
    cluster_order: Order,
    /// For each zone the ranges of cluster numbers that touch memory.
    zone_ranges: Vec<Vec<FrameRange>>,
    /// Number of clusters read in each zone.
    zone_clusters_read: Vec<u64>,
}

impl ClusterSample {
    pub fn new(
        segments: &[FrameSegment],
        zoneinfo: &Zoneinfo,
        cluster_order: Order,
        seed: u64,
    ) -> ClusterSample {
        let numbers = |segment: &FrameSegment| {
            (segment.first >> cluster_order.0, ((segment.end - 1) >> cluster_order.0) + 1)
        };
        let memory = |zone: usize| {
            let own = segments.iter().filter(|s| s.zone == zone && s.unflagged_class == PageClass::Unknown);
            merge_ranges(own.map(numbers).collect())
        };
        let zones: Vec<Vec<FrameRange>> = (0..zoneinfo.zones.len()).map(memory).collect();
        ClusterSample { seed, cluster_order, zone_clusters_read: vec![0; zones.len()], zone_ranges: zones }
    }

    /// Clusters of a zone, sampled or not.
    pub fn clusters_total(&self, zone: usize) -> u64 {
        self.zone_ranges.get(zone).map_or(0, |ranges| ranges.iter().map(|(first, end)| end - first).sum())
    }

    /// Blocks of `pageblock_order` in a cluster.
    pub fn blocks_per_cluster(&self, pageblock_order: Order) -> u64 {
        self.cluster_order.to_pages().0 / pageblock_order.to_pages().0
    }

    /// Clusters of a zone that were read.
    pub fn clusters_read(&self, zone: usize) -> u64 {
        self.zone_clusters_read.get(zone).copied().unwrap_or(0)
    }

    /// About `count` clusters, from each zone in proportion to its size and at least some, in random order.
    pub fn choose_clusters(&self, count: usize) -> Vec<PageblockCluster> {
        let mut random = SplitMix64::new(self.seed);
        let total: u64 = (0..self.zone_ranges.len()).map(|zone| self.clusters_total(zone)).sum();
        let mut chosen = Vec::new();
        for (zone, ranges) in self.zone_ranges.iter().enumerate() {
            let size = self.clusters_total(zone);
            let share = u128::from(size) * count as u128 / u128::from(total.max(1));
            let take = u64::try_from(share).unwrap_or(u64::MAX).max(ZONE_CLUSTERS_MIN).min(size);
            chosen.extend(choose_distinct(&mut random, take, size).into_iter().filter_map(|index| {
                let number = nth_in_ranges(ranges, index)?;
                let first = number << self.cluster_order.0;
                let end = first.saturating_add(self.cluster_order.to_pages().0);
                Some(PageblockCluster { zone, first, end })
            }));
        }
        random.shuffle(&mut chosen);
        chosen
    }

    /// Records the clusters read.
    pub fn record_read(&mut self, read: &[PageblockCluster]) {
        for cluster in read {
            self.zone_clusters_read[cluster.zone] += 1;
        }
    }
}

/// `count` different numbers below `size`, by Floyd's algorithm: each set is equally likely.
fn choose_distinct(random: &mut SplitMix64, count: u64, size: u64) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for top in size.saturating_sub(count)..size {
        let random_number = random.next_below(top + 1);
        let number = if seen.insert(random_number) { random_number } else { top };
        seen.insert(number);
        out.push(number);
    }
    out
}

/// The number at `index` of ascending ranges.
fn nth_in_ranges(ranges: &[FrameRange], mut index: u64) -> Option<u64> {
    for (first, end) in ranges {
        if index < end - first {
            return Some(first + index);
        }
        index -= end - first;
    }
    None
}

#[cfg(test)]
mod tests {
    use pagelab_model::{NodeId, ZoneEntry, ZoneKey};

    use super::*;

    #[test]
    fn draws_are_distinct_and_even() {
        let mut random = SplitMix64::new(7);
        let mut hits = [0u32; 20];
        for _ in 0..4000 {
            let set = choose_distinct(&mut random, 5, 20);
            assert_eq!(set.iter().collect::<HashSet<_>>().len(), 5);
            set.iter().for_each(|&at| hits[at as usize] += 1);
        }
        // 1000 expected each, with a standard deviation of 27.
        assert!(hits.iter().all(|&n| (880..=1120).contains(&n)), "{hits:?}");
        let mut all = choose_distinct(&mut random, 20, 20);
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn clusters_come_from_memory_only_and_small_zones_are_not_missed() {
        let segment =
            |first: u64, end: u64, zone, zero| FrameSegment { first, end, zone, unflagged_class: zero };
        let segments = [
            segment(1, 4096, 0, PageClass::Unknown),
            segment(4096, 8192, 1, PageClass::Hole),
            segment(8192, 1 << 22, 1, PageClass::Unknown),
        ];
        let zoneinfo = Zoneinfo {
            nodes: Vec::new(),
            zones: vec![ZoneEntry::empty(ZoneKey { node: NodeId(0), zone: String::new() }); 2],
        };
        let draw = ClusterSample::new(&segments, &zoneinfo, Order(9), 3);
        let clusters = draw.choose_clusters(100);
        assert_eq!(clusters.iter().filter(|c| c.zone == 0).count(), 8);
        assert!(clusters.iter().all(|c| c.zone == 0 && c.end <= 4096 || c.first >= 8192));
        assert_eq!(clusters, draw.choose_clusters(100));
    }
}
