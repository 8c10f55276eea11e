//! Transparent huge page requests, region by region, with readback.
//!
//! A region is an aligned range of the size of a huge page. Its first page is touched; at this fault the
//! kernel allocates a huge page if one is available, else a base page. For a base page MADV_COLLAPSE requests
//! again, with compaction. The page tables show the result, never success codes.

use std::fs::File;
use std::io;

use pagelab_formats::{meminfo, vmstat, zoneinfo};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes, NodeId, Order, PageSize, Reading};
use pagelab_sys::clock;
use pagelab_sys::mapping::{Advice, Mapping};
use rustix::io::Errno;

use crate::readback::{HugeReadback, read_pagemap_entry};
use crate::reserve::Reserve;

/// Requested memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThpRequest {
    /// Number of huge pages.
    pub count: u64,
    /// Their size.
    pub size: Bytes,
    /// The base page size.
    pub page_size: PageSize,
    /// The node that all of them come from.
    pub node: Option<NodeId>,
    /// Reserve for other programs.
    pub reserve: Reserve,
    /// Deadline of the requests, in monotonic nanoseconds.
    pub deadline_ns: u64,
    /// Maximum number of consecutive failures of MADV_COLLAPSE.
    pub failed_collapses_max: u64,
}

/// Result of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThpRequestResult {
    /// Requested regions.
    pub regions: u64,
    /// Regions of which a page was touched.
    pub touched: u64,
    /// Allocated huge pages, read back.
    pub allocated: u64,
    /// Of those, by MADV_COLLAPSE.
    pub by_collapse: u64,
    /// Method of the readback.
    pub read_back_method: String,
    /// Nanoseconds of each fault that allocated a huge page.
    pub fault_ns: Vec<u64>,
    /// Latency of each MADV_COLLAPSE in nanoseconds, successful or not.
    pub collapse_ns: Vec<u64>,
    /// Huge pages that were seen at their request, and were none any more when all were counted.
    pub lost: u64,
    /// Faults of any program that got a base page because a control group was at its limit.
    pub limited_faults: u64,
    /// Why the first failed MADV_COLLAPSE failed.
    pub first_refusal: Option<String>,
    /// Reason of the end.
    pub stop_reason: StopReason,
}

/// Reason why the requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All requested pages were allocated.
    AllAllocated,
    /// All pages were requested, and some of the requests got base pages.
    SomeFellBack,
    /// More would have used the reserve.
    ReserveReached,
    /// No more pages could be allocated.
    NoneLeft,
    /// The kernel would have reclaimed memory instead of compacting it.
    WouldReclaim,
    /// Time was up.
    Deadline,
}

impl StopReason {
    /// The reason once all pages are counted: of those requested, `allocated` are huge pages.
    fn judge_end(self, allocated: u64, requested: u64) -> StopReason {
        match (self, allocated >= requested) {
            (StopReason::ReserveReached, _) => self,
            (_, true) => StopReason::AllAllocated,
            (StopReason::AllAllocated, false) => StopReason::SomeFellBack,
            (_, false) => self,
        }
    }

    /// The reason in words.
    pub fn describe(self) -> &'static str {
        match self {
            StopReason::AllAllocated => "all requested pages were allocated",
            StopReason::SomeFellBack => "all pages were requested, but some requests fell back to base pages",
            StopReason::ReserveReached => "more would have exceeded the reserve",
            StopReason::NoneLeft => "no more huge pages could be allocated",
            StopReason::WouldReclaim => "free memory became so low that the kernel would reclaim",
            StopReason::Deadline => "the time limit was reached",
        }
    }
}

impl ThpRequestResult {
    /// Why not all of the wanted pages were allocated, or that they were.
    pub fn describe_end(&self) -> String {
        let missed = self.touched.saturating_sub(self.allocated).saturating_sub(self.lost);
        let why = match &self.first_refusal {
            _ if missed == 0 || self.stop_reason == StopReason::AllAllocated => None,
            Some(refusal) => Some(format!("MADV_COLLAPSE failed: {refusal}")),
            None if self.limited_faults > 0 => {
                Some("a control group was at its limit (thp_fault_fallback_charge)".to_owned())
            }
            None if self.stop_reason == StopReason::SomeFellBack => {
                Some("no huge page was free when they faulted".to_owned())
            }
            None => None,
        };
        let reason = match self.stop_reason {
            StopReason::SomeFellBack => {
                (missed > 0).then(|| format!("{missed} requests fell back to base pages"))
            }
            reason => Some(reason.describe().to_owned()),
        };
        let lost = (self.lost > 0)
            .then(|| format!("{} were split or reclaimed before they were counted", self.lost));
        [reason, why, lost].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Why MADV_COLLAPSE failed (mm/khugepaged.c, `madvise_collapse_errno`).
fn describe_collapse_error(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::NOMEM) => "the kernel found no free huge page (ENOMEM)".to_owned(),
        Some(Errno::BUSY) => "the control group was at its limit (EBUSY)".to_owned(),
        Some(Errno::AGAIN) => "a page of the region was temporarily in use (EAGAIN)".to_owned(),
        _ => error.to_string(),
    }
}

/// Maximum number of consecutive faults without a huge page.
const FALLBACK_FAULTS_MAX: u64 = 48;

/// Maximum number of consecutive failures of MADV_COLLAPSE: each may compact a whole zone.
pub const FAILED_COLLAPSES_MAX: u64 = 6;

/// The same if compaction ends early: each begins where the previous one ended, after the folio without a
/// target (mm/compaction.c, `compact_cached_migrate_pfn`).
pub const FAILED_COLLAPSES_EARLY_END_MAX: u64 = 64;

/// Memory, in huge pages, that the kernel may reclaim meanwhile for waiting tasks.
const RECLAIMED_HUGE_PAGES_MAX: u64 = 1;

/// Regions between two readings of MemAvailable.
const REGIONS_PER_CHECK: u64 = 8;

/// Memory of the running requests. Everything is released when it is dropped.
#[derive(Debug)]
pub struct ThpAllocation<'r> {
    root: &'r Root,
    request: ThpRequest,
    map: Mapping,
    readback: HugeReadback,
    pagemap: File,
    /// Base pages that were reclaimed before, since boot.
    reclaimed_before: ReclaimCounters,
    /// Faults that a limit of a control group made fall back before, since boot.
    limited_faults_before: u64,
    /// Regions whose first page was touched.
    touched: u64,
    fault_ns: Vec<u64>,
    collapse_ns: Vec<u64>,
    /// Huge pages allocated by faults.
    allocated_by_faults: u64,
    /// Regions that were huge pages when they were last checked.
    seen_huge: u64,
    first_refusal: Option<String>,
    stop_reason: StopReason,
}

impl<'r> ThpAllocation<'r> {
    /// Maps the regions and touches none of them. Fewer are mapped if all of them would use the reserve.
    pub fn map_regions(root: &'r Root, request: ThpRequest) -> Reading<ThpAllocation<'r>> {
        let available = read_available_memory(root)?;
        let fitting_regions = request.reserve.headroom(available).0 / request.size.0.max(1);
        if fitting_regions == 0 {
            let (available, reserve) = (format_bytes(available), format_bytes(request.reserve.0));
            let detail = format!("{available} is available, but {reserve} is reserved");
            return Err(Absence::new("huge pages", AbsenceReason::NotPermitted, detail)
                .with_hint("free memory first"));
        }
        let count = request.count.min(fitting_regions);
        let map = Mapping::anonymous(Bytes(count.saturating_mul(request.size.0)), request.size);
        let mut map = map.map_err(|error| io_absence("cannot map memory", &error))?;
        if let Some(node) = request.node {
            map.bind_to_node(node.0).map_err(|error| io_absence("cannot bind to one node", &error))?;
        }
        let whole = 0..map.len().0;
        map.advise(whole, Advice::HugePage).map_err(|e| io_absence("cannot request huge pages", &e))?;
        let pagemap = root.open_regular_file(paths::SELF_PAGEMAP)?;
        let stop_reason =
            if count < request.count { StopReason::ReserveReached } else { StopReason::AllAllocated };
        Ok(ThpAllocation {
            root,
            request: ThpRequest { count, ..request },
            map,
            readback: HugeReadback::open(),
            pagemap,
            reclaimed_before: read_reclaim_counters(root)?,
            limited_faults_before: read_limited_faults(root)?,
            touched: 0,
            fault_ns: Vec::new(),
            collapse_ns: Vec::new(),
            allocated_by_faults: 0,
            seen_huge: 0,
            first_refusal: None,
            stop_reason,
        })
    }

    /// Touches the first page of a region.
    fn touch_region(&mut self, region: u64) -> Reading<()> {
        let first = region * self.request.size.0;
        let touched = self.map.touch_for_writing(first..first + self.request.page_size.bytes());
        touched.map_err(|error| io_absence("cannot touch memory", &error))?;
        self.touched = region + 1;
        Ok(())
    }

    /// Touches one region after the other until all are touched or allocation fails.
    pub fn fault_in_regions(&mut self) -> Reading<()> {
        let mut missed = 0;
        while self.touched < self.request.count && self.can_continue(self.touched)? {
            let began_ns = clock::monotonic_ns();
            self.touch_region(self.touched)?;
            let took_ns = clock::monotonic_ns().saturating_sub(began_ns);
            if self.is_huge(self.touched - 1)? {
                missed = 0;
                self.allocated_by_faults += 1;
                self.seen_huge += 1;
                self.fault_ns.push(took_ns);
            } else {
                missed += 1;
                if missed >= FALLBACK_FAULTS_MAX {
                    self.stop_reason = StopReason::NoneLeft;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Requests again, with compaction, the regions without a huge page; ends when none is allocated, or when
    /// the kernel would reclaim memory.
    pub fn collapse_regions(&mut self) -> Reading<()> {
        let size = self.request.size.0;
        let mut missed = 0;
        for region in 0..self.request.count {
            if region < self.touched && self.is_huge(region)? {
                continue;
            }
            if !self.can_continue(region)? {
                break;
            }
            if !self.can_compact()? {
                self.stop_reason = StopReason::WouldReclaim;
                break;
            }
            if region >= self.touched {
                self.touch_region(region)?;
            }
            let began_ns = clock::monotonic_ns();
            // The result is read from the page table.
            let answer = self.map.advise(region * size..(region + 1) * size, Advice::Collapse);
            self.collapse_ns.push(clock::monotonic_ns().saturating_sub(began_ns));
            if let Err(error) = answer {
                self.first_refusal.get_or_insert_with(|| describe_collapse_error(&error));
            }
            if self.is_huge(region)? {
                missed = 0;
                self.seen_huge += 1;
            } else {
                missed += 1;
            }
            if missed >= self.request.failed_collapses_max {
                self.stop_reason = StopReason::NoneLeft;
                break;
            }
        }
        Ok(())
    }

    /// Counts allocated pages, releases everything, and returns the result.
    pub fn finish(self) -> Reading<ThpRequestResult> {
        let got = self.readback.count_huge_bytes(self.map.addresses())?.0 / self.request.size.0.max(1);
        let limited_faults = read_limited_faults(self.root)?.saturating_sub(self.limited_faults_before);
        Ok(ThpRequestResult {
            regions: self.request.count,
            touched: self.touched,
            allocated: got,
            by_collapse: got.saturating_sub(self.allocated_by_faults),
            read_back_method: self.readback.name().to_owned(),
            fault_ns: self.fault_ns,
            collapse_ns: self.collapse_ns,
            lost: self.seen_huge.saturating_sub(got),
            limited_faults,
            first_refusal: self.first_refusal,
            stop_reason: self.stop_reason.judge_end(got, self.request.count),
        })
    }

    /// Whether a huge page backs a region: its last page was never touched.
    fn is_huge(&self, region: u64) -> Reading<bool> {
        let page = self.request.page_size.bytes();
        let last = self.map.addresses().start + (region + 1) * self.request.size.0 - page;
        Ok(read_pagemap_entry(&self.pagemap, last / page)?.is_present())
    }

    /// Whether the reserve and the deadline permit further regions.
    fn can_continue(&mut self, region: u64) -> Reading<bool> {
        if clock::monotonic_ns() >= self.request.deadline_ns {
            self.stop_reason = StopReason::Deadline;
            return Ok(false);
        }
        if self.has_reclaimed()? {
            self.stop_reason = StopReason::WouldReclaim;
            return Ok(false);
        }
        if !region.is_multiple_of(REGIONS_PER_CHECK) {
            return Ok(true);
        }
        let room = self.request.reserve.headroom(read_available_memory(self.root)?);
        let has_room = room.0 >= REGIONS_PER_CHECK.saturating_mul(self.request.size.0);
        if !has_room {
            self.stop_reason = StopReason::ReserveReached;
        }
        Ok(has_room)
    }

    /// Whether the kernel has reclaimed memory since the beginning, for these requests or others. kswapd
    /// wakes at the low watermark, which base pages for page tables may reach. It also reclaims with most
    /// memory free after a fallback of another process (`watermark_boost_factor`); that is no evidence.
    fn has_reclaimed(&self) -> Reading<bool> {
        let pages_per_huge = self.request.size.0 / self.request.page_size.bytes();
        let (now, before) = (read_reclaim_counters(self.root)?, self.reclaimed_before);
        let exceeds_limit =
            |now: u64, before: u64| now.saturating_sub(before) > RECLAIMED_HUGE_PAGES_MAX * pages_per_huge;
        Ok(exceeds_limit(now.direct, before.direct)
            || exceeds_limit(now.kswapd, before.kswapd) && !self.can_compact()?)
    }

    /// Whether a zone has enough free memory for compaction; with less, the kernel reclaims cache for a huge
    /// page (mm/compaction.c, `compaction_suitable`; mm/vmscan.c, `compaction_ready`: the high watermark, the
    /// lowmem reserve, and twice the size of the huge page).
    fn can_compact(&self) -> Reading<bool> {
        let zoneinfo = Reader::new(self.root).parse(paths::ZONEINFO, zoneinfo::parse)?;
        let order = self.request.page_size.order_for_size(self.request.size).unwrap_or(Order(0));
        let gap = order.to_pages().0.saturating_mul(2);
        Ok(zoneinfo.zones.iter().any(|zone| {
            let free = zone.free.unwrap_or_default().0;
            let kept =
                zone.high.unwrap_or_default().0.saturating_add(zone.protection.last().copied().unwrap_or(0));
            free > kept.saturating_add(gap)
        }))
    }
}

/// Base pages that were reclaimed since boot.
#[derive(Clone, Copy, Debug, Default)]
struct ReclaimCounters {
    /// By the waiting task.
    direct: u64,
    kswapd: u64,
}

fn read_reclaim_counters(root: &Root) -> Reading<ReclaimCounters> {
    let vmstat = Reader::new(root).parse(paths::VMSTAT, vmstat::parse)?;
    // Without them no request would ever seem to reclaim memory.
    let counter = |name: &str| {
        let missing = || Absence::new(paths::VMSTAT, AbsenceReason::NotThere, format!("it has no {name}"));
        vmstat.get(name).ok_or_else(missing)
    };
    Ok(ReclaimCounters { direct: counter("pgsteal_direct")?, kswapd: counter("pgsteal_kswapd")? })
}

/// Faults since boot that got a base page because a control group was at its limit (5.8).
fn read_limited_faults(root: &Root) -> Reading<u64> {
    let vmstat = Reader::new(root).parse(paths::VMSTAT, vmstat::parse)?;
    Ok(vmstat.get("thp_fault_fallback_charge").unwrap_or(0))
}

/// MemAvailable.
pub fn read_available_memory(root: &Root) -> Reading<Bytes> {
    let meminfo = Reader::new(root).parse(paths::MEMINFO, meminfo::parse)?;
    meminfo.bytes("MemAvailable").ok_or_else(|| {
        Absence::new(root.display_path(paths::MEMINFO), AbsenceReason::NotThere, "it has no MemAvailable")
            .with_hint("use Linux 3.14 or later")
    })
}

fn io_absence(action: &str, error: &io::Error) -> Absence {
    Absence::new("huge pages", AbsenceReason::Failed, format!("{action}: {error}"))
}

/// Consecutive failed huge pages after which requests end; a single failure may be accidental.
const FALLBACKS_MAX: u64 = 4;

/// Result of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThpFaultCount {
    /// Allocated huge pages.
    pub allocated: u64,
    /// Whether the requests ended at their limit, so that more may be available.
    pub hit_limit: bool,
}

/// Faults in huge pages of `size`, at most `count_max`; `stop` is called before each. The `defrag` mode
/// decides whether the kernel compacts for them; set it to `never` or `defer` before to count the pages
/// available *now*.
pub fn fault_in_huge_pages(
    size: Bytes,
    count_max: u64,
    stop: &mut dyn FnMut() -> bool,
) -> Reading<ThpFaultCount> {
    let readback = HugeReadback::open();
    let (mut pages, mut misses) = (Vec::new(), 0);
    while (pages.len() as u64) < count_max && misses < FALLBACKS_MAX {
        if stop() {
            return Err(Absence::new(
                "huge pages",
                AbsenceReason::NotRequested,
                "stopped before it completed",
            ));
        }
        let mut map = Mapping::anonymous(size, size).map_err(|e| io_absence("cannot map memory", &e))?;
        map.advise(0..size.0, Advice::HugePage).map_err(|e| io_absence("cannot request huge pages", &e))?;
        if let Some(word) = map.words_mut().first_mut() {
            *word = 1;
        }
        if readback.count_huge_bytes(map.addresses())? == size {
            misses = 0;
            pages.push(map);
        } else {
            misses += 1;
        }
    }
    Ok(ThpFaultCount { allocated: pages.len() as u64, hit_limit: pages.len() as u64 >= count_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(allocated: u64, lost: u64, refusal: Option<&str>, last: StopReason) -> ThpRequestResult {
        ThpRequestResult {
            regions: 300,
            touched: 300,
            allocated,
            by_collapse: 0,
            read_back_method: String::new(),
            fault_ns: Vec::new(),
            collapse_ns: Vec::new(),
            lost,
            limited_faults: 0,
            first_refusal: refusal.map(str::to_owned),
            stop_reason: last.judge_end(allocated, 300),
        }
    }

    #[test]
    fn requests_that_all_ended_with_base_pages_among_them_are_not_all_allocated() {
        use StopReason::{AllAllocated, Deadline, NoneLeft, ReserveReached, SomeFellBack};
        let all = result(300, 0, None, AllAllocated);
        assert_eq!(all.describe_end(), "all requested pages were allocated");
        assert_eq!(result(300, 0, None, NoneLeft).stop_reason, AllAllocated);
        // Nothing ended the requests, and some of them failed.
        let some = result(293, 0, None, AllAllocated);
        assert_eq!(some.stop_reason, SomeFellBack);
        assert_eq!(
            some.describe_end(),
            "7 requests fell back to base pages; no huge page was free when they faulted"
        );
        let refusal = describe_collapse_error(&Errno::NOMEM.into());
        assert_eq!(
            result(293, 0, Some(&refusal), AllAllocated).describe_end(),
            "7 requests fell back to base pages; MADV_COLLAPSE failed: the kernel found no free huge page \
             (ENOMEM)"
        );
        let limited = ThpRequestResult { limited_faults: 7, ..some };
        assert!(limited.describe_end().ends_with("at its limit (thp_fault_fallback_charge)"), "{limited:?}");
        let lost = "were split or reclaimed before they were counted";
        assert_eq!(result(293, 7, None, AllAllocated).describe_end(), format!("7 {lost}"));
        assert_eq!(
            result(293, 2, None, AllAllocated).describe_end(),
            format!("5 requests fell back to base pages; no huge page was free when they faulted; 2 {lost}")
        );
        let late = ThpRequestResult { touched: 100, ..result(100, 0, None, Deadline) };
        assert_eq!(late.describe_end(), "the time limit was reached");
        let reserve = result(300, 0, None, ReserveReached);
        assert_eq!(reserve.describe_end(), "more would have exceeded the reserve");
    }
}
