//! Collapse after the first touch (MADV_COLLAPSE, Linux 6.1): for heaps, which grow by less than a huge page
//! at a time, and for regions that got no huge page at their first touch.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelab_formats::{kpageflags, pagemap};
use pagelab_host::paths;
use pagelab_model::PageFlags;
use pagelab_sys::signals::ThreadWaker;
use pagelab_sys::{clock, pagemap_scan};
use rustix::io::Errno;

use super::injection::{InjectedCall, errno_of};
use super::tracer_state::{AddressSpace, AddressSpaceId, HugePageTarget, TracerState, ranges_overlap};
use super::{HugePageChoice, SupervisorConfig, region_placement, requests, supervised_program};
use crate::advice::{self, MADV_COLLAPSE, RemoteAdvice, describe_collapse_error};

/// The shortest time between two scans.
const SCAN_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// The pause after a scan, in durations of the scan: a tenth of a percent of a processor.
const PAUSE_FACTOR: u32 = 1000;
/// Regions that are collapsed after one scan.
const COLLAPSES_PER_SCAN: usize = 64;

/// Regions by their space and first address.
type RegionSet = HashSet<(AddressSpaceId, u64)>;

#[derive(Default)]
struct ScannedRegions {
    /// Candidates of a scan.
    seen: RegionSet,
    /// Regions that were collapsed, or could not be.
    tried: RegionSet,
}

struct CollapseScan {
    space: AddressSpaceId,
    pid: u32,
    heap: u64,
    /// Ranges with requested regions, and whether a region needs to be half touched.
    ranges: Vec<(Range<u64>, bool)>,
}

/// Collapses requested regions that are touched and not huge, until the process ends.
pub(super) fn run_collapse_loop(spec: &SupervisorConfig, state: &Mutex<TracerState>, waker: ThreadWaker) {
    let mut regions = ScannedRegions::default();
    let mut pause = SCAN_INTERVAL_MIN;
    loop {
        std::thread::sleep(pause);
        let (began, mut collapses) = (clock::thread_cpu_ns(), 0);
        for scan in list_scans(spec, state) {
            collapses += scan_and_collapse(spec, state, waker, &scan, &mut regions);
        }
        state.lock().unwrap_or_else(PoisonError::into_inner).accounting.summary.collapse_cpu_ns += collapses;
        let own = Duration::from_nanos((clock::thread_cpu_ns() - began).saturating_sub(collapses));
        pause = SCAN_INTERVAL_MIN.max(own.saturating_mul(PAUSE_FACTOR)).min(Duration::from_secs(5));
    }
}

fn list_scans(spec: &SupervisorConfig, state: &Mutex<TracerState>) -> Vec<CollapseScan> {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pids = HashMap::new();
    for (&pid, process) in &state.processes {
        pids.entry(process.space).or_insert(pid);
    }
    let to_scan = |(&space, known): (&AddressSpaceId, &AddressSpace)| {
        let is_open =
            |target: &&HugePageTarget| !target.is_opted_out && (!target.is_region || target.allocated == 0);
        let open_targets = known.targets.iter().filter(is_open);
        let ranges = open_targets.map(|target| (target.range.clone(), !target.is_region)).collect();
        (!known.is_thp_disabled).then_some(CollapseScan {
            space,
            pid: *pids.get(&space)?,
            heap: known.heap_start,
            ranges,
        })
    };
    let is_planned = |space: &AddressSpace| spec.choice == HugePageChoice::All || space.plan_index.is_some();
    state.spaces.iter().filter(|(_, space)| is_planned(space)).filter_map(to_scan).collect()
}

/// Scans one address space and collapses. Returns the CPU time of the collapses.
fn scan_and_collapse(
    spec: &SupervisorConfig,
    state: &Mutex<TracerState>,
    waker: ThreadWaker,
    scan: &CollapseScan,
    ScannedRegions { seen, tried }: &mut ScannedRegions,
) -> u64 {
    let Ok(pagemap) = File::open(paths::process_file(scan.pid, "pagemap")) else { return 0 };
    let heap = supervised_program::read_heap_range(scan.pid).filter(|heap| heap.start == scan.heap);
    let heap = heap.map_or(Vec::new(), |heap| update_heap_targets(spec, state, scan.space, &heap));
    let half_touched = spec.choice == HugePageChoice::All;
    let ranges = scan.ranges.iter().cloned().chain(heap.into_iter().map(|at| (at, half_touched)));
    let mut found: Vec<Range<u64>> = ranges
        .flat_map(|(range, half_touched)| find_collapse_candidates(&pagemap, &range, spec.huge, half_touched))
        .collect();
    // A heap is scanned as a whole and by its targets.
    found.sort_unstable_by_key(|region| region.start);
    found.dedup();
    found.retain(|region| !tried.contains(&(scan.space, region.start)));
    // Memory that is still being filled, or unmapped soon, waits for the next scan.
    found.retain(|region| !seen.insert((scan.space, region.start)));
    found.truncate(COLLAPSES_PER_SCAN);
    let began = clock::thread_cpu_ns();
    for region in found {
        tried.insert((scan.space, region.start));
        let result = collapse_region(state, waker, scan.pid, &region);
        record_result(state, scan.space, &region, &pagemap, result);
    }
    clock::thread_cpu_ns() - began
}

/// The requested regions of the heap: added to the targets, and returned.
fn update_heap_targets(
    spec: &SupervisorConfig,
    state: &Mutex<TracerState>,
    space: AddressSpaceId,
    heap: &Range<u64>,
) -> Vec<Range<u64>> {
    let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    let state = &mut *guard;
    let Some(known) = state.spaces.get_mut(&space) else { return Vec::new() };
    known.mapping_table_mut().record_brk(heap.end);
    let Some(mapping) = known.find_heap_mapping() else { return Vec::new() };
    let placed: Vec<region_placement::PlacedRegion> = match &spec.choice {
        HugePageChoice::Nothing => Vec::new(),
        HugePageChoice::All => {
            huge_page_ranges(&region_placement::shrink_to_pages(heap, spec.huge), spec.huge)
                .map(|at| region_placement::PlacedRegion { offset: at.start - heap.start, range: at })
                .collect()
        }
        HugePageChoice::Plan(plan) => {
            let placed = known.place_heap_regions(plan, spec.huge).into_iter();
            placed.filter(|region| region.range.end <= heap.end).collect()
        }
    };
    if !placed.is_empty() {
        super::heap::record_planned_heap(spec, known, &mut state.accounting);
    }
    // With `all`, touched regions are targets: they are added when they are collapsed.
    for placed in placed.iter().filter(|_| spec.choice != HugePageChoice::All) {
        if !known.targets.iter().any(|target| target.mapping == mapping && target.range == placed.range) {
            let (offset, at) = (placed.offset, placed.range.clone());
            known.targets.push(HugePageTarget::new_region(mapping, offset, at));
        }
    }
    placed.into_iter().map(|placed| placed.range).collect()
}

fn huge_page_ranges(range: &Range<u64>, huge: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(huge as usize).map(move |at| at..at + huge)
}

/// Whole huge pages in `range` that are touched, half of them or more with `half_touched`, and not huge.
pub(crate) fn find_collapse_candidates(
    pagemap: &File,
    range: &Range<u64>,
    huge: u64,
    half_touched: bool,
) -> Vec<Range<u64>> {
    let whole = region_placement::shrink_to_pages(range, huge);
    let mut touched_bytes: BTreeMap<u64, u64> = BTreeMap::new();
    let populated_scan = pagemap_scan::for_each_populated(pagemap, whole.clone(), |part| {
        let mut at = part.start;
        while at < part.end && touched_bytes.len() < (1 << 20) {
            let region = at - at % huge;
            let end = part.end.min(region + huge);
            *touched_bytes.entry(region).or_default() += end - at;
            at = end;
        }
    });
    let huge_scan = pagemap_scan::for_each_huge_range(pagemap, whole, |part| {
        for region in huge_page_ranges(&region_placement::shrink_to_pages(&part.addresses, huge), huge) {
            touched_bytes.remove(&region.start);
        }
    });
    if populated_scan.is_err() || huge_scan.is_err() {
        return Vec::new();
    }
    let touched_min = if half_touched { huge / 2 } else { 1 };
    let found = touched_bytes.into_iter().filter(|(_, held)| *held >= touched_min);
    found.map(|(at, _)| at..at + huge).collect()
}

/// Collapses by process_madvise where that is permitted, else by a thread of the program.
fn collapse_region(
    state: &Mutex<TracerState>,
    waker: ThreadWaker,
    pid: u32,
    region: &Range<u64>,
) -> Result<(), i32> {
    let process = advice::open_pidfd(pid).map_err(Errno::raw_os_error)?;
    match advice::advise_range(process.as_fd(), region, RemoteAdvice::Collapse) {
        Err(libc::EPERM | libc::ENOSYS) => {
            let call = InjectedCall::madvise(region, MADV_COLLAPSE, 0);
            let answer = requests::send_request(state, waker, pid, requests::RequestKind::Calls(vec![call]));
            match answer.as_ref().map(|answer| &answer.results[..]) {
                Ok(&[result]) => errno_of(result).map_or(Ok(()), Err),
                Ok(_) | Err(_) => Err(libc::EPERM),
            }
        }
        result => result,
    }
}

/// Reads the region back, and records why it is not huge.
fn record_result(
    state: &Mutex<TracerState>,
    space: AddressSpaceId,
    region: &Range<u64>,
    pagemap: &File,
    result: Result<(), i32>,
) {
    let huge = pagemap_scan::huge_bytes(pagemap, region.clone()).map_or(0, |bytes| bytes.0);
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(known) = state.spaces.get_mut(&space) else { return };
    if let Some(heap) = known.find_heap_mapping()
        && known.mapping_table.find(region.start).is_some_and(|(mapping, _)| mapping == heap)
        && !known.targets.iter().any(|target| ranges_overlap(&target.range, region))
    {
        known.targets.push(HugePageTarget::new_region(heap, region.start - known.heap_start, region.clone()));
    }
    for target in known.targets.iter_mut().filter(|target| target.range == *region) {
        (target.allocated, target.touched) = (target.allocated.max(huge), 1);
        if let Err(number) = result {
            target.reason.get_or_insert_with(|| describe_collapse_error(number));
        }
    }
    let whole =
        known.targets.iter_mut().find(|target| !target.is_region && ranges_overlap(&target.range, region));
    if let (Some(target), Err(number)) = (whole, result) {
        target.reason.get_or_insert_with(|| describe_collapse_error(number));
    }
}

/// The reason if it is unknown.
pub(super) const FOLIO_UNREADABLE: &str =
    "smaller than a huge page: only root can see its folio (pagemap, kpageflags)";
/// The reason if it is not.
pub(super) const FOLIO_NOT_ALLOCATED: &str = "no folio of this size was allocated: hugepages-…kB/enabled is \
                                              `never` (Linux 6.8), or none was free at first touch";

/// Whether all of `range` is in one folio. An error if the kernel does not show that.
fn is_single_folio(
    pagemap: &File,
    frame_flags: &LazyCell<io::Result<File>>,
    range: &Range<u64>,
    page: u64,
) -> io::Result<bool> {
    let pages = usize::try_from((range.end - range.start) / page).unwrap_or(0);
    let mut bytes = vec![0; pages * pagemap::ENTRY_BYTES];
    pagemap.read_exact_at(&mut bytes, range.start / page * pagemap::ENTRY_BYTES as u64)?;
    let entries = pagemap::entries(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let mut first = None;
    for (at, entry) in (0..).zip(entries) {
        if !entry.is_present() {
            return Ok(false);
        }
        let frame = entry.pfn().ok_or(io::ErrorKind::PermissionDenied)?.0;
        if frame != *first.get_or_insert(frame) + at {
            return Ok(false);
        }
    }
    let Some(first) = first else { return Ok(false) };
    let mut flags = vec![0; pages * kpageflags::ENTRY_BYTES];
    let frame_flags = frame_flags.as_ref().map_err(io::Error::kind)?;
    frame_flags.read_exact_at(&mut flags, first * kpageflags::ENTRY_BYTES as u64)?;
    let (words, _) = flags.as_chunks::<{ kpageflags::ENTRY_BYTES }>();
    Ok(are_flags_of_single_folio(words.iter().map(|word| PageFlags(u64::from_ne_bytes(*word)))))
}

/// Whether consecutive page frames are one folio: all but the first are tails.
fn are_flags_of_single_folio(mut flags: impl Iterator<Item = PageFlags>) -> bool {
    let is_tail = |flags: PageFlags| flags.has_any(PageFlags::COMPOUND_TAIL);
    let is_begin = |flags: PageFlags| is_tail(flags) || flags.has_any(PageFlags::COMPOUND_HEAD);
    flags.next().is_some_and(is_begin) && flags.next().is_some_and(is_tail) && flags.all(is_tail)
}

/// Updates the coverage of all targets in `range` of the process: the most that was seen. Returns the bytes
/// of them that are on huge pages.
pub(super) fn update_coverage(
    pid: u32,
    targets: &mut [HugePageTarget],
    range: &Range<u64>,
    huge: u64,
) -> io::Result<u64> {
    if !targets.iter().any(|target| ranges_overlap(&target.range, range)) {
        return Ok(0);
    }
    let pagemap = File::open(paths::process_file(pid, "pagemap"))?;
    // Opened when they are first read.
    let frame_flags: LazyCell<io::Result<File>> = LazyCell::new(|| File::open(paths::KPAGEFLAGS));
    let mut sum = 0;
    let page = rustix::param::page_size() as u64;
    for target in targets.iter_mut().filter(|target| ranges_overlap(&target.range, range)) {
        let bytes = pagemap_scan::huge_bytes(&pagemap, target.range.clone())?.0;
        sum += bytes;
        let size = target.range.end - target.range.start;
        let folio = (target.is_region && size < huge)
            .then(|| is_single_folio(&pagemap, &frame_flags, &target.range, page));
        let allocated = match &folio {
            Some(Ok(true)) => size,
            _ if target.is_region => bytes,
            _ => bytes / huge,
        };
        target.allocated = target.allocated.max(allocated);
        // What was read so far counts even if the process ends here.
        target.touched = target.touched.max(count_touched_huge_pages(&pagemap, &target.range, huge)?);
        if let Some(folio) = folio
            && target.touched > 0
            && !target.is_opted_out
        {
            let why = if folio.is_err() { FOLIO_UNREADABLE } else { FOLIO_NOT_ALLOCATED };
            target.reason.get_or_insert_with(|| why.to_owned());
        }
    }
    Ok(sum)
}

/// The number of aligned huge-page ranges in `range` that have populated pages.
fn count_touched_huge_pages(pagemap: &File, range: &Range<u64>, huge: u64) -> io::Result<u64> {
    let whole = region_placement::shrink_to_pages(range, huge);
    let range = if whole.is_empty() { range.clone() } else { whole };
    let (mut count, mut next) = (0u64, 0u64);
    pagemap_scan::for_each_populated(pagemap, range, |part| {
        let (first, last) = ((part.start / huge).max(next), part.end.saturating_sub(1) / huge);
        if first <= last {
            count += last - first + 1;
            next = last + 1;
        }
    })?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folio_has_tails_after_its_first_page_frame() {
        let (head, tail, none) = (1u64 << 15, 1u64 << 16, 0);
        for (words, wanted) in [
            (&[head, tail, tail, tail][..], true),
            (&[tail, tail], true),
            (&[head, tail, head, tail], false),
            (&[none, none], false),
            (&[head], false),
            (&[], false),
        ] {
            assert_eq!(
                are_flags_of_single_folio(words.iter().map(|word| PageFlags(*word))),
                wanted,
                "{words:?}"
            );
        }
    }
}
