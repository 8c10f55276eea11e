//! The memory that a trace begins with: every frame's state, read piece by piece while the trace goes on.
//!
//! A scan takes 60 ns a frame, and memory moves meanwhile. Each run of frames therefore has the time at
//! which it was read, and whoever replays the trace takes the events from then on as later.

use std::fs::File;

use pagelab_formats::kpageflags::{Classifier, ENTRY_BYTES, Shape};
use pagelab_model::alloc_trace::{TraceRun, Was};
use pagelab_model::{Absence, AbsentWhy, Order, PageClass, PageSize, Pfn, Reading, Zoneinfo};

use super::frames::{Segment, frames};
use super::scan::read_frames;
use crate::paths;
use crate::reader::Reader;

/// Frames that are read at once: half a millisecond, so that a time is that of its frames. No free block is
/// larger, so that none lies in two pieces.
const PIECE_FRAMES: u64 = 1 << 13;

/// A scan that goes on, piece by piece.
pub struct RunScan {
    file: File,
    segments: Vec<Segment>,
    /// Which segment, and the next frame of it.
    segment: usize,
    next: u64,
    piece_frames: u64,
    classifier: Classifier,
    buffer: Vec<u8>,
    /// Free blocks by order, for each zone of the zoneinfo.
    free: Vec<Vec<u64>>,
}

impl RunScan {
    /// A scan of the frames of all zones, not begun. `orders`: how many the allocator has.
    pub fn new(
        reader: &Reader<'_>,
        zoneinfo: &Zoneinfo,
        page_size: PageSize,
        orders: usize,
    ) -> Reading<RunScan> {
        let file = reader.root().file(paths::KPAGEFLAGS).map_err(|absence| match absence.why {
            AbsentWhy::NotPermitted => absence.or("run as root"),
            _ => absence,
        })?;
        let segments = frames(reader, zoneinfo, page_size)?.segments;
        if segments.last().is_some_and(|last| last.end > u64::from(u32::MAX)) {
            let detail = "memory reaches beyond frame 2^32, more than a trace can name";
            return Err(Absence::new(paths::KPAGEFLAGS, AbsentWhy::Failed, detail));
        }
        let top_order = u32::try_from(orders.saturating_sub(1)).unwrap_or(u32::MAX).min(30);
        let piece_frames = PIECE_FRAMES.max(1 << top_order);
        let shape = Shape { block_order: Order(top_order as u8), orders };
        let next = segments.first().map_or(0, |segment| segment.first);
        let zones = zoneinfo.zones.len();
        let mut scan = RunScan {
            file,
            segments,
            segment: 0,
            next,
            piece_frames,
            classifier: Classifier::new(shape, Pfn(next), PageClass::Unknown).keeping_classes(),
            buffer: vec![1; PIECE_FRAMES as usize * ENTRY_BYTES],
            free: vec![vec![0; orders.max(1)]; zones],
        };
        scan.enter()?;
        Ok(scan)
    }

    /// Frames that are not read yet.
    pub fn frames_left(&self) -> u64 {
        let segments = self.segments.get(self.segment..).unwrap_or_default();
        let all: u64 = segments.iter().map(|segment| segment.end - segment.first).sum();
        all - segments.first().map_or(0, |segment| self.next - segment.first)
    }

    /// Free blocks by order as they were found, for each zone of the zoneinfo.
    pub fn free_blocks(&self) -> &[Vec<u64>] {
        &self.free
    }

    /// Reads the next piece and appends its runs, as read at `read_ns`; `false` once there is no more.
    pub fn step(&mut self, read_ns: u64, runs: &mut Vec<TraceRun>) -> Reading<bool> {
        let Some(&segment) = self.segments.get(self.segment) else { return Ok(false) };
        let end = (self.next / self.piece_frames + 1).saturating_mul(self.piece_frames).min(segment.end);
        let (classifier, first) = (&mut self.classifier, self.next);
        let read = read_frames(&self.file, first, end, &mut self.buffer, |bytes| {
            classifier.feed(bytes, &mut |_| {});
        });
        let read =
            read.map_err(|error| Absence::new(paths::KPAGEFLAGS, AbsentWhy::Failed, error.to_string()))?;
        let mut from = runs.len();
        classifier.take_classes(|classes| {
            for (pfn, &class) in (first..).zip(classes) {
                let was = was(class);
                match runs.get_mut(from) {
                    Some(last) if last.was == was => last.frames += 1,
                    // That every frame's number fits was checked when the scan was made.
                    _ => {
                        from = runs.len();
                        runs.push(TraceRun { pfn: pfn as u32, frames: 1, was, read_ns });
                    }
                }
            }
        });
        self.next = end;
        if end == segment.end || read < end - first {
            self.segment += 1;
            self.next = self.segments.get(self.segment).map_or(end, |segment| segment.first);
        }
        self.enter_from(segment.zone)?;
        Ok(self.segment < self.segments.len())
    }

    /// Ends what is counted, for a zone, and goes on at the next frame.
    fn enter_from(&mut self, zone: usize) -> Reading<()> {
        self.enter()?;
        let found = self.classifier.take_free_blocks();
        if let Some(sums) = self.free.get_mut(zone) {
            sums.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
        Ok(())
    }

    fn enter(&mut self) -> Reading<()> {
        let zero = self.segments.get(self.segment).map_or(PageClass::Unknown, |segment| segment.zero);
        let cut = self.classifier.cut(Pfn(self.next), zero, &mut |_| {});
        cut.map_err(|error| {
            Absence::new(paths::KPAGEFLAGS, AbsentWhy::Malformed, error.in_file(paths::KPAGEFLAGS))
        })
    }
}

/// What a frame was, in the five states of a trace.
fn was(class: PageClass) -> Was {
    match class {
        PageClass::Free => Was::Free,
        PageClass::Anon
        | PageClass::AnonHuge
        | PageClass::File
        | PageClass::MovableOther
        | PageClass::Hugetlb => Was::User,
        PageClass::Slab | PageClass::PageTable | PageClass::Kernel => Was::Kernel,
        PageClass::Unknown | PageClass::Deferred | PageClass::Reserved => Was::Unknown,
        PageClass::Hole | PageClass::Offline | PageClass::Poisoned => Was::Hole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use crate::root::Root;
    use pagelab_formats::zoneinfo;
    use pagelab_model::PageFlags;

    const ZONEINFO: &[u8] =
        b"Node 0, zone  DMA\n  pages free     1\n        spanned  40\n        present  40\n        \
        managed  40\n  start_pfn:           1\nNode 0, zone Normal\n  pages free     1\n        \
        spanned  20023\n        present  20023\n        managed  20023\n  start_pfn:           41\n";

    /// Flags of the frames below 20 064: a free run over the border of the zones, anonymous pages, slab.
    fn flags(pfn: u64) -> u64 {
        let flag = match pfn {
            0..30 => PageFlags::SLAB,
            30..8200 => PageFlags::BUDDY,
            8200..9000 => PageFlags(PageFlags::ANON.0 | PageFlags::LRU.0),
            9000..9001 => PageFlags(0),
            _ => PageFlags::PGTABLE,
        };
        flag.0
    }

    fn scan(root: &Root) -> (RunScan, Vec<TraceRun>) {
        let reader = Reader::new(root);
        let zones = zoneinfo::parse(ZONEINFO).unwrap();
        let mut scan = RunScan::new(&reader, &zones, PageSize::USUAL, 11).unwrap();
        let (mut runs, mut pieces) = (Vec::new(), 0);
        assert_eq!(scan.frames_left(), 20_063);
        while scan.step(pieces, &mut runs).unwrap() {
            pieces += 1;
        }
        assert_eq!(scan.frames_left(), 0);
        (scan, runs)
    }

    #[test]
    fn each_frame_is_in_one_run_and_free_blocks_are_those_of_the_zone() {
        let tree = Tree::new(&[]);
        let bytes: Vec<u8> = (0..20_064).flat_map(|pfn| flags(pfn).to_ne_bytes()).collect();
        tree.add("/proc/kpageflags", &bytes);
        let (scan, runs) = scan(&tree.root());
        let mut next = 1;
        for run in &runs {
            assert_eq!(u64::from(run.pfn), next, "{run:?}");
            for pfn in next..next + u64::from(run.frames) {
                let expected = match pfn {
                    30..8200 => Was::Free,
                    8200..9000 => Was::User,
                    // No flag: a frame of memory where the machine says what is memory, else a hole.
                    9000 => run.was,
                    _ => Was::Kernel,
                };
                assert_eq!(run.was, expected, "{pfn}");
            }
            next += u64::from(run.frames);
        }
        assert_eq!(next, 20_064);
        // Runs end where a piece does, and times ascend with the pieces.
        assert!(runs.is_sorted_by_key(|run| run.read_ns) && runs.iter().any(|run| run.pfn == 8192));
        // 30..41 are 2 + 8 + 1 pages, 41..8200 begin again behind the border.
        assert_eq!(scan.free_blocks()[0][..4], [1, 1, 0, 1]);
        let pages: u64 = (0..).zip(&scan.free_blocks()[1]).map(|(order, count)| count << order).sum();
        assert_eq!((pages, scan.free_blocks()[1][10]), (8200 - 41, 7));
    }

    #[test]
    fn a_file_that_ends_early_ends_the_scan_of_its_zone() {
        let tree = Tree::new(&[]);
        let bytes: Vec<u8> = (0..5000).flat_map(|pfn| flags(pfn).to_ne_bytes()).collect();
        tree.add("/proc/kpageflags", &bytes);
        let (_, runs) = scan(&tree.root());
        assert_eq!(runs.iter().map(|run| u64::from(run.frames)).sum::<u64>(), 4999);
    }
}
