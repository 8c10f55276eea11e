//! The census of physical memory: `/proc/kpageflags` counted by class for each pageblock.
//!
//! A live machine is scanned by some threads. If that would take longer than the time budget, whole
//! pageblocks are sampled at random without replacement from each zone, and the census says so. A saved tree
//! is read as a stream, once, by one thread, no further than its zones reach.

mod assembly;
mod frames;
pub mod page_map;
pub mod run_scan;
mod scan;

use std::time::{Duration, Instant};

use pagelab_formats::kpageflags::ScanGeometry;
use pagelab_formats::zoneinfo;
use pagelab_model::{
    Absence, AbsenceReason, Census, Order, PageClass, PageSize, Reading, UnlistedFree, Zoneinfo,
};

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;
use assembly::CensusAssembly;
use frames::FrameMap;
use scan::{ClusterSample, FullScanOutcome, ScanError, ScanResult};

/// Maximum number of frames of a saved stream: 4 TiB of memory at 4 KiB.
const STREAM_FRAMES_MAX: u64 = 1 << 30;

/// Maximum number of counted blocks, which bounds the memory of a census: 4 TiB in blocks of 2 MiB.
const PAGEBLOCKS_MAX: u64 = 1 << 21;

/// Minimum nanoseconds per page of any kernel; if a complete scan would exceed the limit at this speed, it is
/// not started.
const PAGE_NS_MIN: u128 = 8;

/// Assumed nanoseconds per page without a measurement (40 to 90 were measured on 6.18).
const PAGE_NS_DEFAULT: u64 = 60;

/// Minimum size of a sample in huge pages, regardless of the time budget.
const SAMPLE_PMD_BLOCKS_MIN: usize = 400;

/// Options of a census.
#[derive(Clone, Copy, Debug)]
pub struct CensusOptions {
    /// The base page size.
    pub page_size: PageSize,
    /// Order of a pageblock.
    pub pageblock_order: Order,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// Number of orders of the buddy allocator: the number of counts in buddyinfo.
    pub orders: usize,
    /// Free memory that is on no free list, as computed from meminfo and buddyinfo.
    pub off_lists: UnlistedFree,
    /// Threads that read a live machine.
    pub threads: usize,
    /// Wall time above which a live machine is sampled. A scan that slows down late may take twice as long.
    pub time_budget: Duration,
    /// Seed of the sample.
    pub seed: u64,
}

impl CensusOptions {
    /// Two threads, two seconds, no known deferred memory.
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
            off_lists: UnlistedFree::Unknown,
            threads: 2,
            time_budget: Duration::from_secs(2),
            seed: 1,
        }
    }

    fn geometry(&self) -> ScanGeometry {
        let pageblock_order = self.pageblock_order.min(self.pmd_order).min(ScanGeometry::BLOCK_ORDER_MAX);
        ScanGeometry { pageblock_order, orders: self.orders }
    }
}

/// Counts physical memory. `zoneinfo` was read before, and is read again after.
pub fn take_census(
    root: &Root,
    reader: &Reader,
    zoneinfo: &Zoneinfo,
    options: &CensusOptions,
) -> Reading<Census> {
    let frames = frames::read_frame_map(reader, zoneinfo, options.page_size)?;
    let assembly = CensusAssembly {
        zoneinfo,
        frames: &frames,
        geometry: options.geometry(),
        off_lists: options.off_lists,
    };
    let start = Instant::now();
    if !root.is_live() {
        let too_large = |end: u64| {
            let detail = format!(
                "the zones end at frame {end:#x}; a saved kpageflags may have at most {STREAM_FRAMES_MAX:#x} \
                 frames and {PAGEBLOCKS_MAX} pageblocks"
            );
            Absence::new(root.display_path(paths::KPAGEFLAGS), AbsenceReason::Failed, detail)
        };
        let scanned = scan_saved(reader, &frames, options, None, too_large)?;
        let scan_ns = duration_ns(start.elapsed());
        return Ok(assembly.assemble_census(scanned, None, zoneinfo, scan_ns));
    }
    let (scanned, draw) = scan_live(reader, &frames, zoneinfo, options)?;
    let scan_ns = duration_ns(start.elapsed());
    let after = reader.parse(paths::ZONEINFO, zoneinfo::parse);
    Ok(assembly.assemble_census(scanned, draw, after.as_ref().unwrap_or(zoneinfo), scan_ns))
}

fn duration_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a saved stream. `classes` receives the class of each frame, if requested; `to_absence`: why zones
/// that reach to a frame beyond the limits are not read.
fn scan_saved(
    reader: &Reader,
    frames: &FrameMap,
    options: &CensusOptions,
    classes: Option<&mut Vec<PageClass>>,
    to_absence: impl FnOnce(u64) -> Absence,
) -> Reading<ScanResult> {
    let root = reader.root();
    let end = frames.segments.last().map_or(0, |segment| segment.end);
    if end > STREAM_FRAMES_MAX || end >> options.geometry().pageblock_order.0 > PAGEBLOCKS_MAX {
        return Err(to_absence(end));
    }
    let stream = root.open_reader(paths::KPAGEFLAGS).map_err(|absence| with_hint(root, absence))?;
    let scanned = scan::scan_stream(stream, &frames.segments, options.geometry(), classes);
    scanned.map_err(|failure| scan_absence(reader, failure))
}

fn scan_live(
    reader: &Reader,
    frames: &FrameMap,
    zoneinfo: &Zoneinfo,
    options: &CensusOptions,
) -> Reading<(ScanResult, Option<ClusterSample>)> {
    let root = reader.root();
    let file = root.open_regular_file(paths::KPAGEFLAGS).map_err(|absence| with_hint(root, absence))?;
    let to_absence = |failure| scan_absence(reader, failure);
    let (segments, shape) = (&frames.segments, options.geometry());
    let pages = frames::count_frames(segments);
    let fastest_ns = u128::from(pages) * PAGE_NS_MIN / options.threads.max(1) as u128;
    let is_large = pages >> shape.pageblock_order.0 > PAGEBLOCKS_MAX;
    let page_ns = if is_large || fastest_ns > options.time_budget.as_nanos() {
        PAGE_NS_DEFAULT
    } else {
        let (threads, budget) = (options.threads, options.time_budget);
        match scan::scan_all(&file, segments, shape, threads, budget, &mut []).map_err(to_absence)? {
            FullScanOutcome::Complete(scanned) => return Ok((scanned, None)),
            FullScanOutcome::TooSlow { pages, thread_time } => duration_ns(thread_time) / pages.max(1),
        }
    };
    let cluster_order = shape.pageblock_order.max(options.pmd_order);
    let cluster_ns = (page_ns.max(1)).saturating_mul(cluster_order.to_pages().0).saturating_add(2_000);
    let wanted = duration_ns(options.time_budget / 2) / cluster_ns;
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let wanted = wanted.clamp(SAMPLE_PMD_BLOCKS_MIN, PAGEBLOCKS_MAX as usize);
    let mut draw = ClusterSample::new(segments, zoneinfo, cluster_order, options.seed);
    let clusters = draw.choose_clusters(wanted);
    let deadline = Instant::now() + options.time_budget;
    let (scanned, read) =
        scan::scan_sample(&file, segments, shape, &clusters, deadline).map_err(to_absence)?;
    draw.record_read(&clusters[..read]);
    Ok((scanned, Some(draw)))
}

/// Hint that makes kpageflags readable.
fn with_hint(root: &Root, absence: Absence) -> Absence {
    match absence.why {
        AbsenceReason::NotThere => absence.with_hint("boot a kernel built with CONFIG_PROC_PAGE_MONITOR=y"),
        AbsenceReason::NotPermitted if root.is_live() => {
            absence.with_hint("run as root with CAP_SYS_ADMIN, outside a user namespace")
        }
        AbsenceReason::NotSaved => absence.with_hint("capture as root: only root can read kpageflags"),
        _ => absence,
    }
}

fn scan_absence(reader: &Reader, failure: ScanError) -> Absence {
    let root = reader.root();
    let shown = root.display_path(paths::KPAGEFLAGS);
    let malformed = |detail: String| {
        let absence = root.malformed_absence(paths::KPAGEFLAGS, &detail);
        let _ = reader.note_malformed::<()>(Err(absence.clone()));
        absence
    };
    match failure {
        ScanError::Io(error) if root.is_live() => with_hint(root, root.absence(paths::KPAGEFLAGS, &error)),
        ScanError::Io(error) => malformed(error.to_string()),
        ScanError::Parse(error) => malformed(error.message_in_file(&shown)),
        ScanError::Truncated(byte) => {
            let part = byte % 8;
            let cut = if part > 0 { format!(" ({part} bytes of an 8-byte entry)") } else { String::new() };
            malformed(format!("truncated at byte {byte}{cut}, before the end of the zones in zoneinfo"))
        }
    }
}
