//! The census of physical memory: `/proc/kpageflags` counted by class for each pageblock.
//!
//! A live machine is scanned by some threads. If that would take longer than the time budget, whole
//! pageblocks are drawn at random without replacement from each zone, and the census says so. A saved tree
//! is read as a stream, once, by one thread, no further than its zones reach.

mod assemble;
mod draw;
mod frames;
pub mod page_map;
pub mod runs;
mod scan;

use std::time::{Duration, Instant};

use pagelab_formats::kpageflags::Shape;
use pagelab_formats::zoneinfo;
use pagelab_model::{Absence, AbsentWhy, Census, OffLists, Order, PageSize, Reading, Zoneinfo};

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use assemble::Assembly;
use draw::Draw;
use frames::Frames;
use scan::{Failure, Limit, Scanned, Whole};

/// Frames that a saved stream is read up to: 4 TiB of memory at 4 KiB.
const STREAM_FRAMES_MAX: u64 = 1 << 30;

/// Blocks that are counted at most, which bounds the memory that a census takes: 4 TiB in blocks of 2 MiB.
const BLOCKS_MAX: u64 = 1 << 21;

/// Nanoseconds that no kernel is faster than for one page; above it a whole scan is not even begun.
const PAGE_NS_MIN: u128 = 8;

/// Nanoseconds for a page that are assumed where none were measured (40 to 90 were, on 6.18).
const PAGE_NS_USUAL: u64 = 60;

/// Huge pages' worth of blocks that a sample has at least, whatever the time.
const SAMPLE_MIN: usize = 400;

/// How a census is made.
#[derive(Clone, Copy, Debug)]
pub struct CensusOptions {
    /// The base page size.
    pub page_size: PageSize,
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
    /// Wall time above which a live machine is sampled. A scan that slows down late may take twice as long.
    pub time_budget: Duration,
    /// Seed of the sample.
    pub seed: u64,
}

impl CensusOptions {
    /// Two threads and two seconds; nothing known of deferred memory.
    pub fn new(
        page_size: PageSize,
        pageblock_order: Order,
        pmd_order: Order,
        orders: usize,
    ) -> CensusOptions {
        CensusOptions {
            page_size,
            pageblock_order,
            pmd_order,
            orders,
            off_lists: OffLists::CannotTell,
            threads: 2,
            time_budget: Duration::from_secs(2),
            seed: 1,
        }
    }

    fn shape(&self) -> Shape {
        let block_order = self.pageblock_order.min(self.pmd_order).min(Shape::BLOCK_ORDER_MAX);
        Shape { block_order, orders: self.orders }
    }
}

/// Counts physical memory. `zoneinfo` was read before, and is read again after.
pub fn census(root: &Root, reader: &Reader, zoneinfo: &Zoneinfo, options: &CensusOptions) -> Reading<Census> {
    let frames = frames::frames(reader, zoneinfo, options.page_size)?;
    let assembly =
        Assembly { zoneinfo, frames: &frames, shape: options.shape(), off_lists: options.off_lists };
    let start = Instant::now();
    if !root.is_live() {
        let scanned = saved(root, reader, &frames, options)?;
        let scan_ns = nanos(start.elapsed());
        return Ok(assembly.census(scanned, None, zoneinfo, scan_ns));
    }
    let (scanned, draw) = live(root, reader, &frames, zoneinfo, options)?;
    let scan_ns = nanos(start.elapsed());
    let after = reader.parse(paths::ZONEINFO, zoneinfo::parse);
    Ok(assembly.census(scanned, draw, after.as_ref().unwrap_or(zoneinfo), scan_ns))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn saved(root: &Root, reader: &Reader, frames: &Frames, options: &CensusOptions) -> Reading<Scanned> {
    let end = frames.segments.last().map_or(0, |segment| segment.end);
    if end > STREAM_FRAMES_MAX || end >> options.shape().block_order.0 > BLOCKS_MAX {
        let detail = format!(
            "the zones reach to frame {end:#x}; a saved kpageflags is read to frame \
             {STREAM_FRAMES_MAX:#x} and {BLOCKS_MAX} pageblocks"
        );
        return Err(Absence::new(root.show(paths::KPAGEFLAGS), AbsentWhy::Failed, detail));
    }
    let stream = root.stream(paths::KPAGEFLAGS).map_err(|absence| with_way_out(root, absence))?;
    let scanned = scan::stream(stream, &frames.segments, options.shape(), None);
    scanned.map_err(|failure| absence(root, reader, failure))
}

fn live(
    root: &Root,
    reader: &Reader,
    frames: &Frames,
    zoneinfo: &Zoneinfo,
    options: &CensusOptions,
) -> Reading<(Scanned, Option<Draw>)> {
    let file = root.file(paths::KPAGEFLAGS).map_err(|absence| with_way_out(root, absence))?;
    let failed = |failure| absence(root, reader, failure);
    let (segments, shape) = (&frames.segments, options.shape());
    let pages: u64 = segments.iter().map(|segment| segment.end - segment.first).sum();
    let fastest = u128::from(pages) * PAGE_NS_MIN / options.threads.max(1) as u128;
    let is_large = pages >> shape.block_order.0 > BLOCKS_MAX;
    let page_ns = if is_large || fastest > options.time_budget.as_nanos() {
        PAGE_NS_USUAL
    } else {
        let (threads, budget) = (options.threads, options.time_budget);
        match scan::whole(&file, segments, shape, threads, budget, &mut []).map_err(failed)? {
            Whole::Done(scanned) => return Ok((scanned, None)),
            Whole::TooSlow { pages, threads_time } => nanos(threads_time) / pages.max(1),
        }
    };
    let cluster_order = shape.block_order.max(options.pmd_order);
    let cluster_ns = (page_ns.max(1)).saturating_mul(cluster_order.pages().0).saturating_add(2_000);
    let wanted = nanos(options.time_budget / 2) / cluster_ns;
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let wanted = wanted.clamp(SAMPLE_MIN, BLOCKS_MAX as usize);
    let mut draw = Draw::new(segments, zoneinfo, cluster_order, options.seed);
    let clusters = draw.clusters(wanted);
    let limit = Limit { deadline: Instant::now() + options.time_budget, at_least: SAMPLE_MIN };
    let (scanned, read) = scan::sample(&file, segments, shape, &clusters, limit).map_err(failed)?;
    draw.keep(&clusters[..read]);
    Ok((scanned, Some(draw)))
}

/// What would make kpageflags readable.
fn with_way_out(root: &Root, absence: Absence) -> Absence {
    match absence.why {
        AbsentWhy::NotThere => absence.or("a kernel with CONFIG_PROC_PAGE_MONITOR=y"),
        AbsentWhy::NotPermitted if root.is_live() => {
            absence.or("run as root with CAP_SYS_ADMIN, outside of a user namespace")
        }
        AbsentWhy::NotSaved => absence.or("capture as root: kpageflags is readable by root only"),
        _ => absence,
    }
}

fn absence(root: &Root, reader: &Reader, failure: Failure) -> Absence {
    let shown = root.show(paths::KPAGEFLAGS);
    let malformed = |detail: String| {
        let reading: Reading<()> = Err(root.bad(paths::KPAGEFLAGS, &detail));
        reader.noted(reading).err().unwrap_or_else(|| root.bad(paths::KPAGEFLAGS, &detail))
    };
    match failure {
        Failure::Io(error) if root.is_live() => with_way_out(root, root.absence(paths::KPAGEFLAGS, &error)),
        Failure::Io(error) => malformed(error.to_string()),
        Failure::Parse(error) => malformed(error.in_file(&shown)),
        Failure::CutOff(byte) => {
            let part = byte % 8;
            let cut = if part > 0 { format!(" ({part} bytes of an entry of 8)") } else { String::new() };
            malformed(format!("cut off at byte {byte}{cut}, before the end of the zones in zoneinfo"))
        }
    }
}
