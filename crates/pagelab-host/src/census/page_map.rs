//! Map of physical memory: the class of every page frame, by the scan and the classifier of the census.
//!
//! The scan assigns each frame the class of its flags. Only the census distinguishes frames without flags,
//! deferred memory and holes, for whole pageblocks; its result is applied to their frames.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pagelab_formats::{buddyinfo, vmstat, zoneinfo};
use pagelab_model::page_map::{FrameSpan as Run, PageMapZone};
use pagelab_model::{
    Absence, AbsenceReason, BuddyInfo, Census, Counters, PageClass, PageMap, PageMapLayout, PageSize,
    PageblockCounts, Pages, Pfn, Reading, Zoneinfo,
};
use pagelab_sys::clock;

use super::assembly::CensusAssembly;
use super::frames::{self, FrameMap};
use super::scan::{self, FullScanOutcome, ScanResult};
use super::{CensusOptions, PAGEBLOCKS_MAX, STREAM_FRAMES_MAX, duration_ns, scan_absence, with_hint};
use crate::machine::MachineOverrides;
use crate::reader::Reader;
use crate::{collect, machine, paths};

/// A scan that takes longer than twice this is stopped: it is hung rather than slow.
const SCAN_TIMEOUT: Duration = Duration::from_secs(3600);

impl CensusOptions {
    /// Options of a map, from the machine's files, and the source of the page size: two threads, and deferred
    /// memory unknown, which the caller may set. `page_size` comes first if it is given.
    pub fn for_page_map(reader: &Reader<'_>, page_size: Option<PageSize>) -> (CensusOptions, String) {
        let manifest_page_size = reader.root().manifest().and_then(|manifest| manifest.page_size);
        let (page_size, page_size_source) = match (page_size, manifest_page_size) {
            (Some(size), _) => (size, "--page-size".to_owned()),
            (None, Some(size)) => (size, "manifest".to_owned()),
            (None, None) => machine::page_size(reader, &MachineOverrides::default()),
        };
        let pmd_order = page_size.pmd_order(machine::reported_pmd_size(reader));
        let buddy = reader.parse(paths::BUDDYINFO, buddyinfo::parse);
        let not_asked = Err(Absence::not_read());
        let (pageblock_order, _) = collect::pageblock_order(&not_asked, pmd_order, buddy.as_ref().ok());
        let zones = buddy.as_ref().map_or(&[][..], |buddy| &buddy.zones);
        let orders = zones.iter().map(|zone| zone.areas.orders()).max();
        // Without buddyinfo the largest order is not known; one above the pageblock's is usual.
        let orders = orders.unwrap_or(pageblock_order.index() + 2);
        let options = CensusOptions::new(page_size, pageblock_order, pmd_order, orders);
        (CensusOptions { time_budget: SCAN_TIMEOUT, ..options }, page_size_source)
    }
}

/// A map, the census of the same scan, and the kernel's counts before and after it.
#[derive(Clone, Debug)]
pub struct PageMapScan {
    /// The map.
    pub map: PageMap,
    /// The counts by pageblock, and the free blocks rebuilt.
    pub census: Census,
    /// Counts read right before the first frame.
    pub counts_before: KernelCounts,
    /// Counts read right after the last frame; `None` for a saved tree, which has them once.
    pub counts_after: Option<KernelCounts>,
}

/// Counts of one moment, beside a scan.
#[derive(Clone, Debug)]
pub struct KernelCounts {
    /// Free blocks by zone and order.
    pub buddyinfo: Reading<BuddyInfo>,
    /// Per-CPU lists and sizes of zones.
    pub zoneinfo: Zoneinfo,
    /// Event counters: pages allocated and freed.
    pub vmstat: Reading<Counters>,
}

/// Reads the class of every page frame. The clock of the map is CLOCK_BOOTTIME on a live machine; in a saved
/// tree the scan began at 0.
pub fn scan_page_map(reader: &Reader<'_>, options: &CensusOptions) -> Reading<PageMap> {
    Ok(scan_with_counts(reader, options)?.map)
}

/// The same with the census and the kernel's counts around it.
pub fn scan_with_counts(reader: &Reader<'_>, options: &CensusOptions) -> Reading<PageMapScan> {
    let geometry = options.geometry();
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let frames = frames::read_frame_map(reader, &zoneinfo, options.page_size)?;
    let assembly =
        CensusAssembly { zoneinfo: &zoneinfo, frames: &frames, geometry, off_lists: options.off_lists };
    let is_live = reader.root().is_live();
    let (vmstat, buddy) = (reader.root().read(paths::VMSTAT), reader.root().read(paths::BUDDYINFO));
    let start = Instant::now();
    let started_ns = if is_live { clock::boottime_ns() } else { 0 };
    let (scanned, mut classes) = match is_live {
        true => scan_live(reader, &frames, options)?,
        false => {
            // It grows with the content of the stream, not with the spans of the zones.
            let mut classes = Vec::new();
            let too_large = |end| too_large_absence(reader, end);
            (super::scan_saved(reader, &frames, options, Some(&mut classes), too_large)?, classes)
        }
    };
    let scan_ns = duration_ns(start.elapsed());
    let read_counts = |buddy, vmstat, zoneinfo| KernelCounts {
        buddyinfo: reader.parse_text(paths::BUDDYINFO, buddy, buddyinfo::parse),
        vmstat: reader.parse_text(paths::VMSTAT, vmstat, vmstat::parse),
        zoneinfo,
    };
    let after = is_live.then(|| {
        let (buddy, vmstat) = (reader.root().read(paths::BUDDYINFO), reader.root().read(paths::VMSTAT));
        let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse);
        read_counts(buddy, vmstat, zones.unwrap_or_else(|_| zoneinfo.clone()))
    });
    let zoneinfo_after = after.as_ref().map_or(&zoneinfo, |after| &after.zoneinfo);
    let census = assembly.assemble_census(scanned, None, zoneinfo_after, scan_ns);
    resolve_unflagged(&census, &zoneinfo, &frames, &mut classes);
    let layout = build_layout(&zoneinfo, &frames, options);
    let ended_ns = started_ns.saturating_add(scan_ns);
    let map = PageMap { started_ns, ended_ns, layout, classes };
    Ok(PageMapScan { map, census, counts_before: read_counts(buddy, vmstat, zoneinfo), counts_after: after })
}

type ClassifiedScan = (ScanResult, Vec<PageClass>);

fn scan_live(reader: &Reader<'_>, frames: &FrameMap, options: &CensusOptions) -> Reading<ClassifiedScan> {
    let root = reader.root();
    let geometry = options.geometry();
    let pages = frames::count_frames(&frames.segments);
    if pages > STREAM_FRAMES_MAX || pages >> geometry.pageblock_order.0 > PAGEBLOCKS_MAX {
        return Err(too_large_absence(reader, pages));
    }
    let file = root.open_regular_file(paths::KPAGEFLAGS).map_err(|absence| with_hint(root, absence))?;
    let mut classes = Vec::new();
    let reserved = usize::try_from(pages).ok().and_then(|pages| classes.try_reserve_exact(pages).ok());
    reserved.ok_or_else(|| {
        let detail = format!("not enough memory for a map of {pages} page frames, one byte each");
        Absence::new(root.display_path(paths::KPAGEFLAGS), AbsenceReason::Failed, detail)
    })?;
    // Frames without an entry in the file have no memory. Filling also touches the memory before the scan
    // reads it.
    classes.resize(usize::try_from(pages).unwrap_or(0), PageClass::Hole);
    let budget = options.time_budget;
    let whole = scan::scan_all(&file, &frames.segments, geometry, options.threads, budget, &mut classes);
    match whole.map_err(|failure| scan_absence(reader, failure))? {
        FullScanOutcome::Complete(scanned) => Ok((scanned, classes)),
        FullScanOutcome::TooSlow { .. } => {
            let source = root.display_path(paths::KPAGEFLAGS);
            Err(Absence::new(source, AbsenceReason::Failed, "took longer than an hour"))
        }
    }
}

fn too_large_absence(reader: &Reader<'_>, frames: u64) -> Absence {
    let detail = format!(
        "{frames} page frames; a map is limited to {STREAM_FRAMES_MAX}, and {PAGEBLOCKS_MAX} pageblocks"
    );
    Absence::new(reader.root().display_path(paths::KPAGEFLAGS), AbsenceReason::Failed, detail)
}

/// Applies the results of the census for blocks to single frames without a flag: they are deferred memory,
/// reserved, or holes.
fn resolve_unflagged(census: &Census, zoneinfo: &Zoneinfo, frames: &FrameMap, classes: &mut [PageClass]) {
    let block_pages = census.pageblock_order.to_pages().0;
    let blocks: HashMap<_, _> = census.zones.iter().map(|zone| (&zone.key, zone)).collect();
    let mut remaining = classes;
    for segment in &frames.segments {
        let length = usize::try_from(segment.end - segment.first).unwrap_or(usize::MAX);
        let (segment_classes, later_classes) = remaining.split_at_mut(length.min(remaining.len()));
        remaining = later_classes;
        let zone = zoneinfo.zones.get(segment.zone).and_then(|zone| blocks.get(&zone.key));
        let Some(zone) = zone else { continue };
        let mut counted = zone.blocks.iter().peekable();
        let mut own = segment_classes;
        let mut at = segment.first;
        while at < segment.end && !own.is_empty() {
            let end = ((at / block_pages + 1) * block_pages).min(segment.end);
            let (block, later) = own.split_at_mut(usize::try_from(end - at).unwrap_or(0).min(own.len()));
            let number = (at - zone.first.0.min(at)) / block_pages;
            while counted.next_if(|(index, _)| *index < number).is_some() {}
            let counts = counted.peek().filter(|(index, _)| *index == number).map(|(_, counts)| counts);
            if let Some(class) = unflagged_class(counts) {
                replace_class(block, PageClass::Unknown, class);
            }
            (own, at) = (later, end);
        }
    }
}

/// Class of frames without flags in a block with these counts; `None`: unknown. A block that the census does
/// not list has no memory.
fn unflagged_class(counts: Option<&PageblockCounts>) -> Option<PageClass> {
    let Some(counts) = counts else { return Some(PageClass::Hole) };
    if counts.pages_of_class(PageClass::Unknown) > 0 {
        return None;
    }
    let is = |class: &PageClass| counts.pages_of_class(*class) > 0;
    [PageClass::Deferred, PageClass::Reserved].into_iter().find(is)
}

fn replace_class(classes: &mut [PageClass], from: PageClass, to: PageClass) {
    classes.iter_mut().filter(|class| **class == from).for_each(|class| *class = to);
}

fn build_layout(zoneinfo: &Zoneinfo, frames: &FrameMap, options: &CensusOptions) -> PageMapLayout {
    let run = |first: u64, end: u64| Run { first: Pfn(first), count: Pages(end - first) };
    let spans =
        frames::merge_ranges(frames.segments.iter().map(|segment| (segment.first, segment.end)).collect());
    let mut zones: Vec<PageMapZone> = Vec::new();
    for segment in &frames.segments {
        let Some(zone) = zoneinfo.zones.get(segment.zone) else { continue };
        match zones.last_mut() {
            Some(last) if last.key == zone.key => last.frames.count.0 = segment.end - last.frames.first.0,
            _ => zones.push(PageMapZone { key: zone.key.clone(), frames: run(segment.first, segment.end) }),
        }
    }
    PageMapLayout {
        page_size: options.page_size,
        pageblock_order: options.pageblock_order,
        pmd_order: options.pmd_order,
        spans: spans.into_iter().map(|(first, end)| run(first, end)).collect(),
        zones,
        blocks: frames.memory_blocks.clone(),
    }
}

#[cfg(test)]
#[path = "page_map_tests.rs"]
mod tests;
