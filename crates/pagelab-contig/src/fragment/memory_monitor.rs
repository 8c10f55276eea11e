//! Monitor of the machine while memory is held: free lists, available memory and memory pressure.
//!
//! It decides when held memory must be released for other programs, and drains pcp lists.

use std::fmt;
use std::fs::File;
use std::time::{Duration, Instant};

use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_metrics::fragment_plan::KeepPattern;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::size::format_bytes;
use pagelab_model::zoneinfo::PerCpuPageset;
use pagelab_model::{Bytes, FreeAreas, Meminfo, Order, PageSize, Pages, Reading};
use pagelab_sys::scheduling::PinnedThread;

use super::fragmenter::Fragmenter;
use super::inputs::FillMethod;
use crate::pcp_lists::{DRAIN_TIME_MAX, refresh_vmstat};
use crate::reserve::Reserve;

/// Pressure is judged over at least this time.
const PRESSURE_WINDOW: Duration = Duration::from_millis(500);
/// Share of a window spent waiting for memory above which the window counts as stalled.
const STALL_SHARE_MAX: f64 = 0.4;
/// Consecutive stalled windows after which memory is released. A single one may be pagelab's own compaction.
const STALLED_WINDOWS_MAX: u32 = 3;
/// Pages per round below which the lists count as drained.
const DRAINED_PAGES_MIN: u64 = 1024;
/// Pages that are sent through a pcp list in addition to those on it.
const PCP_FLUSH_MARGIN: u64 = 5000;
/// Maximum number of pages sent through a list: more than any kernel keeps on a list permanently.
const PCP_FLUSH_MAX: u64 = 1 << 16;

/// Memory files of this machine, read repeatedly, and the state of the pressure windows.
#[derive(Debug)]
pub struct MemoryMonitor {
    fast: FastSnapshot,
    zone: ZoneKey,
    reserve: Reserve,
    /// Order of a huge page.
    unit_order: Order,
    page_size: PageSize,
    /// Absent without root.
    stat_refresh: Option<File>,
    window_start: Instant,
    stalled_us: Option<u64>,
    stalled_windows: u32,
    max_stall_share: f64,
}

/// Reason for releasing all memory.
#[derive(Clone, Debug, PartialEq)]
pub enum BackoffReason {
    /// Less memory is available than the reserve.
    LowMemory {
        /// `MemAvailable`.
        available: Bytes,
        /// The reserve.
        reserve: Bytes,
    },
    /// Tasks waited for memory for this share of several consecutive windows.
    Pressure(f64),
}

impl fmt::Display for BackoffReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackoffReason::LowMemory { available, reserve } => {
                let (available, reserve) = (format_bytes(*available), format_bytes(*reserve));
                write!(f, "only {available} was available, less than the reserve of {reserve}")
            }
            BackoffReason::Pressure(share) => {
                write!(f, "tasks waited for memory {:.0} % of the time", share * 100.0)
            }
        }
    }
}

impl MemoryMonitor {
    /// Opens the files of this machine and reads them once.
    pub fn open(
        zone: ZoneKey,
        reserve: Reserve,
        page_size: PageSize,
        unit_order: Order,
    ) -> Reading<MemoryMonitor> {
        let root = Root::live();
        let mut monitor = MemoryMonitor {
            fast: FastSnapshot::open(&root, FileSelection::ALL),
            zone,
            reserve,
            unit_order,
            page_size,
            stat_refresh: root.open_regular_file(paths::STAT_REFRESH).ok(),
            window_start: Instant::now(),
            stalled_us: None,
            stalled_windows: 0,
            max_stall_share: 0.0,
        };
        monitor.check_readings()?;
        monitor.stalled_us = monitor.read_stall_us();
        Ok(monitor)
    }

    /// Reads all files again.
    pub fn refresh(&mut self) -> Reading<()> {
        self.fast.sample();
        self.check_readings()
    }

    /// Fails if buddyinfo or meminfo, which every decision needs, could not be read.
    fn check_readings(&self) -> Reading<()> {
        let (buddyinfo, meminfo) = (self.fast.buddyinfo(), self.fast.meminfo());
        buddyinfo.map(drop).and(meminfo.map(drop)).map_err(Clone::clone)
    }

    /// The last readings.
    pub fn last_snapshot(&self) -> &FastSnapshot {
        &self.fast
    }

    /// The free lists of the zone at the last reading.
    pub fn free_areas(&self) -> FreeAreas {
        self.fast.buddyinfo().ok().and_then(|buddy| buddy.zone(&self.zone)).cloned().unwrap_or_default()
    }

    /// Memory that was available without swapping at the last reading.
    pub fn available_memory(&self) -> Bytes {
        self.fast.meminfo().ok().and_then(Meminfo::available_bytes).unwrap_or_default()
    }

    /// Base pages that may be allocated before the reserve is reached, by the last reading.
    pub fn headroom_pages(&self) -> u64 {
        self.reserve.headroom(self.available_memory()).to_pages(self.page_size).0
    }

    /// Deferred free pages, from counters alone.
    pub fn deferred_pages(&self, zoneinfo: &pagelab_model::Zoneinfo) -> Pages {
        let (Ok(buddy), Ok(meminfo)) = (self.fast.buddyinfo(), self.fast.meminfo()) else { return Pages(0) };
        let balance =
            FreeBalance::from_counts(buddy, meminfo, Some(zoneinfo), self.page_size, Some(Pages(0)));
        balance.map_or(Pages(0), |balance| balance.deferred_pages())
    }

    /// Reason to release all memory for other programs, by the last reading; `None` if there is none.
    pub fn backoff_reason(&mut self) -> Option<BackoffReason> {
        let available = self.available_memory();
        if available < self.reserve.0 {
            return Some(BackoffReason::LowMemory { available, reserve: self.reserve.0 });
        }
        let elapsed = self.window_start.elapsed();
        if elapsed >= PRESSURE_WINDOW {
            let now = self.read_stall_us();
            let stalled_us = now.zip(self.stalled_us).map_or(0, |(now, then)| now.saturating_sub(then));
            let share = stalled_us as f64 / 1e6 / elapsed.as_secs_f64();
            self.max_stall_share = self.max_stall_share.max(share.min(1.0));
            self.stalled_windows = if share > STALL_SHARE_MAX { self.stalled_windows + 1 } else { 0 };
            (self.window_start, self.stalled_us) = (Instant::now(), now);
            if self.stalled_windows >= STALLED_WINDOWS_MAX {
                return Some(BackoffReason::Pressure(share.min(1.0)));
            }
        }
        None
    }

    /// Largest share of a window in which a task waited for memory.
    pub fn max_stall_share(&self) -> f64 {
        self.max_stall_share
    }

    /// Drains the pcp lists to the free lists, where buddyinfo counts their pages. Since 6.7 the lists of a
    /// zone grow to an eighth of it in total, and shrink by themselves within minutes (mm/page_alloc.c,
    /// `nr_pcp_high`, `decay_pcp_high`).
    pub fn drain_pcp_lists(&mut self) -> Reading<()> {
        let deadline = Instant::now() + DRAIN_TIME_MAX;
        self.refresh()?;
        while let Some(refresh) = &self.stat_refresh {
            let before = self.free_areas().free_pages();
            if refresh_vmstat(refresh).is_none() {
                self.stat_refresh = None;
                return Ok(());
            }
            self.refresh()?;
            let drained_pages = self.free_areas().free_pages().saturating_sub(before);
            if drained_pages < u128::from(DRAINED_PAGES_MIN) || Instant::now() > deadline {
                break;
            }
        }
        Ok(())
    }

    /// Frees memory by `free`, and moves it to the free lists, where it can merge with its buddies. Pages
    /// that are freed one by one would wait on the pcp lists, some thousand of them permanently, and each
    /// prevents a free block from merging. So as many pages of a few whole blocks are freed after them: the
    /// oldest leave a list first.
    pub fn free_and_drain<T>(&mut self, free: impl FnOnce() -> T) -> T {
        let result = free();
        let _ = self.drain_pcp_lists();
        // Each processor has its own list. If the thread cannot be pinned, some pages may stay on a list.
        for cpu in PinnedThread::allowed_cpus() {
            if let Ok(_pinned) = PinnedThread::to_cpu(cpu) {
                self.flush_pcp_list(cpu);
            }
        }
        let _ = self.drain_pcp_lists();
        result
    }

    /// Sends as many pages through a processor's pcp list as are on it and as it keeps. They come from split
    /// huge pages, so that those that stay on it belong to few blocks. Base pages would come from the
    /// smallest free blocks and prevent their buddies from merging. If the pages cannot be allocated, the
    /// list shrinks by itself in time.
    fn flush_pcp_list(&self, cpu: u32) {
        let pages = self.count_pcp_pages(cpu).saturating_add(PCP_FLUSH_MARGIN).min(PCP_FLUSH_MAX);
        let units = pages.min(self.headroom_pages()) / self.unit_order.to_pages().0;
        let keep_pattern = KeepPattern::for_aligned_units(self.unit_order, self.unit_order);
        let flush_units = |node| {
            Fragmenter::new(FillMethod::HugePages, keep_pattern, 0, self.page_size, node)
                .fragment_units(units)
        };
        // A kernel without CONFIG_NUMA rejects a node, and has only one.
        let _ = flush_units(Some(self.zone.node)).or_else(|_| flush_units(None));
    }

    /// Pages on a processor's pcp list of the zone, plus those that the list keeps.
    fn count_pcp_pages(&self, cpu: u32) -> u64 {
        let root = Root::live();
        let zoneinfo = Reader::new(&root).parse(paths::ZONEINFO, pagelab_formats::zoneinfo::parse);
        let Some(zone) = zoneinfo.as_ref().ok().and_then(|info| info.zone(&self.zone)) else { return 0 };
        let set = zone.pagesets.iter().find(|set| set.cpu == cpu);
        let high = |set: &PerCpuPageset| set.high_min.or(set.high).unwrap_or_default().0;
        set.map_or(0, |set| set.count.0.saturating_add(high(set)))
    }

    fn read_stall_us(&self) -> Option<u64> {
        self.fast.pressure().ok().map(|pressure| pressure.some.total_us)
    }
}
