//! The map of physical memory: the class of every page frame, from the same scan and by the same judgement
//! as the census.
//!
//! The scan gives each frame the class that its flags say. What only the census can tell of frames without
//! flags, deferred memory and holes, it tells for whole pageblocks; that is carried over to their frames.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pagelab_formats::{buddyinfo, vmstat, zoneinfo};
use pagelab_model::page_map::{Frames as Run, MapZone};
use pagelab_model::{
    Absence, AbsentWhy, BlockCounts, BuddyInfo, Census, Counters, MapLayout, OffLists, Order, PageClass,
    PageMap, PageSize, Pages, Pfn, Reading, Zoneinfo,
};
use pagelab_sys::clock;

use super::assemble::Assembly;
use super::frames::{self, Frames};
use super::scan::{self, Scanned, Whole};
use super::{BLOCKS_MAX, CensusOptions, STREAM_FRAMES_MAX, absence, nanos, with_way_out};
use crate::machine::Known;
use crate::reader::Reader;
use crate::{collect, machine, paths};

/// A scan that takes longer than twice this is given up: it is hung rather than slow.
const SCAN_ENDS: Duration = Duration::from_secs(3600);

/// How a map is made.
#[derive(Clone, Debug)]
pub struct MapOptions {
    /// The base page size.
    pub page_size: PageSize,
    /// How the page size was learnt.
    pub page_size_source: String,
    /// Order of a pageblock.
    pub pageblock_order: Order,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// How many orders the buddy allocator has: as many as buddyinfo has counts.
    pub orders: usize,
    /// Memory that counts as free and stands on no free list, as the caller judged by meminfo and buddyinfo.
    pub off_lists: OffLists,
    /// Threads that read a live machine.
    pub threads: usize,
}

impl MapOptions {
    /// What the machine's own files say; two threads, and nothing known of deferred memory, which the caller
    /// may judge. `page_size` comes first where it is given.
    pub fn of(reader: &Reader<'_>, page_size: Option<PageSize>) -> MapOptions {
        let said = reader.root().manifest().and_then(|manifest| manifest.page_size);
        let (page_size, page_size_source) = match (page_size, said) {
            (Some(size), _) => (size, "--page-size".to_owned()),
            (None, Some(size)) => (size, "manifest".to_owned()),
            (None, None) => machine::page_size(reader, &Known::default()),
        };
        let pmd_order = machine::told_pmd_size(reader).and_then(|size| page_size.order_of(size));
        let pmd_order = pmd_order.unwrap_or_else(|| page_size.usual_pmd_order());
        let buddy = reader.parse(paths::BUDDYINFO, buddyinfo::parse);
        let not_asked = Err(Absence::unread());
        let (pageblock_order, _) = collect::pageblock_order(&not_asked, pmd_order, buddy.as_ref().ok());
        let zones = buddy.as_ref().map_or(&[][..], |buddy| &buddy.zones);
        let orders = zones.iter().map(|zone| zone.areas.orders()).max();
        MapOptions {
            page_size,
            page_size_source,
            pageblock_order,
            pmd_order,
            // Without buddyinfo the largest order is not known; one above the pageblock's is usual.
            orders: orders.unwrap_or(pageblock_order.index() + 2),
            off_lists: OffLists::CannotTell,
            threads: 2,
        }
    }

    fn census(&self) -> CensusOptions {
        let options = CensusOptions::new(self.page_size, self.pageblock_order, self.pmd_order, self.orders);
        let (off_lists, threads) = (self.off_lists, self.threads);
        CensusOptions { off_lists, threads, time_budget: SCAN_ENDS, ..options }
    }
}

/// A map, the census of the same scan, and what the kernel's own counts were around it.
#[derive(Clone, Debug)]
pub struct MapScan {
    /// The map.
    pub map: PageMap,
    /// The counts by pageblock, and the free blocks rebuilt.
    pub census: Census,
    /// Counts read right before the first frame.
    pub before: Around,
    /// Counts read right after the last frame; `None` for a saved tree, which has them once.
    pub after: Option<Around>,
}

/// Counts of one moment, beside a scan.
#[derive(Clone, Debug)]
pub struct Around {
    /// Free blocks by zone and order.
    pub buddyinfo: Reading<BuddyInfo>,
    /// Per-CPU lists and sizes of zones.
    pub zoneinfo: Zoneinfo,
    /// Event counters: pages allocated and freed.
    pub vmstat: Reading<Counters>,
}

/// Reads the class of every page frame. The clock of the map is CLOCK_BOOTTIME on a live machine; in a saved
/// tree the scan began at 0.
pub fn scan(reader: &Reader<'_>, options: &MapOptions) -> Reading<PageMap> {
    Ok(scan_counted(reader, options)?.map)
}

/// The same with the census and the kernel's counts around it.
pub fn scan_counted(reader: &Reader<'_>, options: &MapOptions) -> Reading<MapScan> {
    let census_options = options.census();
    let shape = census_options.shape();
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let frames = frames::frames(reader, &zoneinfo, options.page_size)?;
    let assembly = Assembly { zoneinfo: &zoneinfo, frames: &frames, shape, off_lists: options.off_lists };
    let is_live = reader.root().is_live();
    let (vmstat, buddy) = (reader.root().read(paths::VMSTAT), reader.root().read(paths::BUDDYINFO));
    let start = Instant::now();
    let started_ns = if is_live { clock::boottime_ns() } else { 0 };
    let (scanned, mut classes) = match is_live {
        true => live(reader, &frames, &census_options)?,
        false => saved(reader, &frames, &census_options)?,
    };
    let scan_ns = nanos(start.elapsed());
    let around = |buddy, vmstat, zoneinfo| Around {
        buddyinfo: reader.parse_text(paths::BUDDYINFO, buddy, buddyinfo::parse),
        vmstat: reader.parse_text(paths::VMSTAT, vmstat, vmstat::parse),
        zoneinfo,
    };
    let after = is_live.then(|| {
        let (buddy, vmstat) = (reader.root().read(paths::BUDDYINFO), reader.root().read(paths::VMSTAT));
        let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse);
        around(buddy, vmstat, zones.unwrap_or_else(|_| zoneinfo.clone()))
    });
    let zoneinfo_after = after.as_ref().map_or(&zoneinfo, |after| &after.zoneinfo);
    let census = assembly.census(scanned, None, zoneinfo_after, scan_ns);
    judge(&census, &zoneinfo, &frames, &mut classes);
    let layout = layout(&zoneinfo, &frames, options);
    let ended_ns = started_ns.saturating_add(scan_ns);
    let map = PageMap { started_ns, ended_ns, layout, classes };
    Ok(MapScan { map, census, before: around(buddy, vmstat, zoneinfo), after })
}

type Classed = (Scanned, Vec<PageClass>);

fn pages(frames: &Frames) -> u64 {
    frames.segments.iter().map(|segment| segment.end - segment.first).sum()
}

fn live(reader: &Reader<'_>, frames: &Frames, options: &CensusOptions) -> Reading<Classed> {
    let root = reader.root();
    let shape = options.shape();
    let pages = pages(frames);
    if pages > STREAM_FRAMES_MAX || pages >> shape.block_order.0 > BLOCKS_MAX {
        return Err(too_large(reader, pages));
    }
    let file = root.file(paths::KPAGEFLAGS).map_err(|absence| with_way_out(root, absence))?;
    let mut classes = Vec::new();
    room(reader, &mut classes, pages)?;
    // Frames that the kernel says nothing about have no memory. Filling also touches the memory now, not
    // while the scan looks at it.
    classes.resize(usize::try_from(pages).unwrap_or(0), PageClass::Hole);
    let budget = options.time_budget;
    let whole = scan::whole(&file, &frames.segments, shape, options.threads, budget, &mut classes);
    match whole.map_err(|failure| absence(root, reader, failure))? {
        Whole::Done(scanned) => Ok((scanned, classes)),
        Whole::TooSlow { .. } => {
            Err(Absence::new(root.show(paths::KPAGEFLAGS), AbsentWhy::Failed, "took longer than an hour"))
        }
    }
}

fn saved(reader: &Reader<'_>, frames: &Frames, options: &CensusOptions) -> Reading<Classed> {
    let root = reader.root();
    let end = frames.segments.last().map_or(0, |segment| segment.end);
    if end > STREAM_FRAMES_MAX || end >> options.shape().block_order.0 > BLOCKS_MAX {
        return Err(too_large(reader, end));
    }
    let stream = root.stream(paths::KPAGEFLAGS).map_err(|absence| with_way_out(root, absence))?;
    // It grows with what the stream really has, whatever the zones claim.
    let mut classes = Vec::new();
    let scanned = scan::stream(stream, &frames.segments, options.shape(), Some(&mut classes));
    scanned.map(|scanned| (scanned, classes)).map_err(|failure| absence(root, reader, failure))
}

fn too_large(reader: &Reader<'_>, frames: u64) -> Absence {
    let detail = format!(
        "{frames} page frames; a map has {STREAM_FRAMES_MAX} at most, and {BLOCKS_MAX} pageblocks: \
         it takes one byte for each frame"
    );
    Absence::new(reader.root().show(paths::KPAGEFLAGS), AbsentWhy::Failed, detail)
}

fn room(reader: &Reader<'_>, classes: &mut Vec<PageClass>, pages: u64) -> Reading<()> {
    let reserved = usize::try_from(pages).ok().and_then(|pages| classes.try_reserve_exact(pages).ok());
    reserved.ok_or_else(|| {
        let detail = format!("no memory for a map of {pages} page frames, which takes one byte for each");
        Absence::new(reader.root().show(paths::KPAGEFLAGS), AbsentWhy::Failed, detail)
    })
}

/// Carries over to single frames what the census found out about blocks: frames without a flag that are
/// deferred memory, reserved or holes, and reserved frames outside of memory.
fn judge(census: &Census, zoneinfo: &Zoneinfo, frames: &Frames, classes: &mut [PageClass]) {
    let block_pages = census.block_order.pages().0;
    let blocks: HashMap<_, _> = census.zones.iter().map(|zone| (&zone.key, zone)).collect();
    let mut rest = classes;
    for segment in &frames.segments {
        let length = usize::try_from(segment.end - segment.first).unwrap_or(usize::MAX);
        let (own, others) = rest.split_at_mut(length.min(rest.len()));
        rest = others;
        if segment.zero == PageClass::Hole {
            replace(own, PageClass::Reserved, PageClass::Hole);
        }
        let zone = zoneinfo.zones.get(segment.zone).and_then(|zone| blocks.get(&zone.key));
        let Some(zone) = zone else { continue };
        let mut counted = zone.blocks.iter().peekable();
        let mut own = own;
        let mut at = segment.first;
        while at < segment.end && !own.is_empty() {
            let end = ((at / block_pages + 1) * block_pages).min(segment.end);
            let (block, later) = own.split_at_mut(usize::try_from(end - at).unwrap_or(0).min(own.len()));
            let number = (at - zone.first.0.min(at)) / block_pages;
            while counted.next_if(|(index, _)| *index < number).is_some() {}
            let counts = counted.peek().filter(|(index, _)| *index == number).map(|(_, counts)| counts);
            if let Some(class) = unflagged(counts) {
                replace(block, PageClass::Unknown, class);
            }
            (own, at) = (later, end);
        }
    }
}

/// What frames without flags are in a block with these counts; `None`: unknown. A block that the census does
/// not list has no memory.
fn unflagged(counts: Option<&BlockCounts>) -> Option<PageClass> {
    let Some(counts) = counts else { return Some(PageClass::Hole) };
    if counts.of(PageClass::Unknown) > 0 {
        return None;
    }
    let is = |class: &PageClass| counts.of(*class) > 0;
    [PageClass::Deferred, PageClass::Reserved].into_iter().find(is)
}

fn replace(classes: &mut [PageClass], from: PageClass, to: PageClass) {
    classes.iter_mut().filter(|class| **class == from).for_each(|class| *class = to);
}

fn layout(zoneinfo: &Zoneinfo, frames: &Frames, options: &MapOptions) -> MapLayout {
    let run = |first: u64, end: u64| Run { first: Pfn(first), count: Pages(end - first) };
    let spans = frames::joined(frames.segments.iter().map(|segment| (segment.first, segment.end)).collect());
    let mut zones: Vec<MapZone> = Vec::new();
    for segment in &frames.segments {
        let Some(zone) = zoneinfo.zones.get(segment.zone) else { continue };
        match zones.last_mut() {
            Some(last) if last.key == zone.key => last.frames.count.0 = segment.end - last.frames.first.0,
            _ => zones.push(MapZone { key: zone.key.clone(), frames: run(segment.first, segment.end) }),
        }
    }
    MapLayout {
        page_size: options.page_size,
        pageblock_order: options.pageblock_order,
        pmd_order: options.pmd_order,
        spans: spans.into_iter().map(|(first, end)| run(first, end)).collect(),
        zones,
        blocks: frames.blocks.clone(),
    }
}

#[cfg(test)]
#[path = "page_map_tests.rs"]
mod tests;
