//! Initial memory of a trace: the state of every frame, read piece by piece while the trace runs.
//!
//! A scan takes 60 ns a frame, and memory moves meanwhile. Each run of frames therefore has the time of its
//! reading, and a replay applies only later events to it.

use std::fs::File;

use pagelab_formats::kpageflags::{ENTRY_BYTES, PageClassifier, ScanGeometry};
use pagelab_model::alloc_trace::{FrameRun, FrameState};
use pagelab_model::{Absence, AbsenceReason, Order, PageClass, PageSize, Pfn, Reading, Zoneinfo};

use super::frames::{FrameSegment, count_frames, read_frame_map};
use super::scan::{add_counts, read_frames};
use crate::paths;
use crate::reader::Reader;

/// Frames read at once: half a millisecond, so that one time is accurate for all of them. No free block is
/// larger, so none crosses two pieces.
const CHUNK_FRAMES: u64 = 1 << 13;

/// Incremental scan.
pub struct RunScan {
    file: File,
    segments: Vec<FrameSegment>,
    /// Current segment, and its next frame.
    segment_index: usize,
    next_frame: u64,
    chunk_frames: u64,
    classifier: PageClassifier,
    buffer: Vec<u8>,
    /// Free blocks by order, for each zone of the zoneinfo.
    free_blocks: Vec<Vec<u64>>,
}

impl RunScan {
    /// A scan of the frames of all zones that has not begun. `orders`: number of orders of the allocator.
    pub fn new(
        reader: &Reader<'_>,
        zoneinfo: &Zoneinfo,
        page_size: PageSize,
        orders: usize,
    ) -> Reading<RunScan> {
        let file =
            reader.root().open_regular_file(paths::KPAGEFLAGS).map_err(|absence| match absence.why {
                AbsenceReason::NotPermitted => absence.with_hint("run as root"),
                _ => absence,
            })?;
        let segments = read_frame_map(reader, zoneinfo, page_size)?.segments;
        if segments.last().is_some_and(|last| last.end > u64::from(u32::MAX)) {
            let detail = "memory extends beyond frame 2^32, the limit for traces";
            return Err(Absence::new(paths::KPAGEFLAGS, AbsenceReason::Failed, detail));
        }
        let top_order = u32::try_from(orders.saturating_sub(1)).unwrap_or(u32::MAX).min(30);
        let chunk_frames = CHUNK_FRAMES.max(1 << top_order);
        let shape = ScanGeometry { pageblock_order: Order(top_order as u8), orders };
        let next_frame = segments.first().map_or(0, |segment| segment.first);
        let mut scan = RunScan {
            file,
            segments,
            segment_index: 0,
            next_frame,
            chunk_frames,
            classifier: PageClassifier::new(shape, Pfn(next_frame), PageClass::Unknown).with_page_classes(),
            buffer: vec![1; CHUNK_FRAMES as usize * ENTRY_BYTES],
            free_blocks: vec![vec![0; orders.max(1)]; zoneinfo.zones.len()],
        };
        scan.start_segment()?;
        Ok(scan)
    }

    /// Number of frames not read yet.
    pub fn frames_left(&self) -> u64 {
        let segments = self.segments.get(self.segment_index..).unwrap_or_default();
        count_frames(segments) - segments.first().map_or(0, |segment| self.next_frame - segment.first)
    }

    /// Free blocks by order, for each zone of the zoneinfo.
    pub fn free_blocks(&self) -> &[Vec<u64>] {
        &self.free_blocks
    }

    /// Reads the next piece and appends its runs, as read at `read_ns`; `false` at the end.
    pub fn scan_chunk(&mut self, read_ns: u64, runs: &mut Vec<FrameRun>) -> Reading<bool> {
        let Some(&segment) = self.segments.get(self.segment_index) else { return Ok(false) };
        let end =
            (self.next_frame / self.chunk_frames + 1).saturating_mul(self.chunk_frames).min(segment.end);
        let (classifier, first) = (&mut self.classifier, self.next_frame);
        let read = read_frames(&self.file, first, end, &mut self.buffer, |bytes| {
            classifier.feed(bytes, &mut |_| {});
        })
        .map_err(|error| Absence::new(paths::KPAGEFLAGS, AbsenceReason::Failed, error.to_string()))?;
        let mut from = runs.len();
        classifier.drain_classes(|classes| {
            for (pfn, &class) in (first..).zip(classes) {
                let was = frame_state(class);
                match runs.get_mut(from) {
                    Some(last) if last.state == was => last.frames += 1,
                    // All frame numbers fit: that was checked when the scan was created.
                    _ => {
                        from = runs.len();
                        runs.push(FrameRun { pfn: pfn as u32, frames: 1, state: was, read_ns });
                    }
                }
            }
        });
        self.next_frame = end;
        if end == segment.end || read < end - first {
            self.segment_index += 1;
            self.next_frame = self.segments.get(self.segment_index).map_or(end, |segment| segment.first);
        }
        self.start_segment()?;
        if let Some(sums) = self.free_blocks.get_mut(segment.zone) {
            add_counts(sums, self.classifier.drain_free_blocks());
        }
        Ok(self.segment_index < self.segments.len())
    }

    fn start_segment(&mut self) -> Reading<()> {
        let segment = self.segments.get(self.segment_index);
        let unflagged = segment.map_or(PageClass::Unknown, |segment| segment.unflagged_class);
        let ended = self.classifier.end_segment(Pfn(self.next_frame), unflagged, &mut |_| {});
        ended.map_err(|error| {
            let detail = error.message_in_file(paths::KPAGEFLAGS);
            Absence::new(paths::KPAGEFLAGS, AbsenceReason::Malformed, detail)
        })
    }
}

/// State of a frame, of the five of a trace.
fn frame_state(class: PageClass) -> FrameState {
    match class {
        PageClass::Free => FrameState::Free,
        PageClass::Anon
        | PageClass::AnonHuge
        | PageClass::File
        | PageClass::MovableOther
        | PageClass::Hugetlb => FrameState::User,
        PageClass::Slab | PageClass::PageTable | PageClass::Kernel => FrameState::Kernel,
        PageClass::Unknown | PageClass::Deferred | PageClass::Reserved => FrameState::Unknown,
        PageClass::Hole | PageClass::Offline | PageClass::Poisoned => FrameState::Hole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;
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

    fn scan(root: &Root) -> (RunScan, Vec<FrameRun>) {
        let reader = Reader::new(root);
        let zones = zoneinfo::parse(ZONEINFO).unwrap();
        let mut scan = RunScan::new(&reader, &zones, PageSize::DEFAULT, 11).unwrap();
        let (mut runs, mut pieces) = (Vec::new(), 0);
        assert_eq!(scan.frames_left(), 20_063);
        while scan.scan_chunk(pieces, &mut runs).unwrap() {
            pieces += 1;
        }
        assert_eq!(scan.frames_left(), 0);
        (scan, runs)
    }

    #[test]
    fn each_frame_is_in_one_run_and_free_blocks_are_those_of_the_zone() {
        let tree = FakeTree::new(&[]);
        let bytes: Vec<u8> = (0..20_064).flat_map(|pfn| flags(pfn).to_ne_bytes()).collect();
        tree.add_file("/proc/kpageflags", &bytes);
        let (scan, runs) = scan(&tree.root());
        let mut next = 1;
        for run in &runs {
            assert_eq!(u64::from(run.pfn), next, "{run:?}");
            for pfn in next..next + u64::from(run.frames) {
                let expected = match pfn {
                    30..8200 => FrameState::Free,
                    8200..9000 => FrameState::User,
                    // No flag: a frame of memory if the memory ranges are known, else a hole.
                    9000 => run.state,
                    _ => FrameState::Kernel,
                };
                assert_eq!(run.state, expected, "{pfn}");
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
        let tree = FakeTree::new(&[]);
        let bytes: Vec<u8> = (0..5000).flat_map(|pfn| flags(pfn).to_ne_bytes()).collect();
        tree.add_file("/proc/kpageflags", &bytes);
        let (_, runs) = scan(&tree.root());
        assert_eq!(runs.iter().map(|run| u64::from(run.frames)).sum::<u64>(), 4999);
    }
}
