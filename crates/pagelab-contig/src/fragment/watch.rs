//! What everybody else has while memory is taken: available memory, and how much of the time somebody waits
//! for memory.

use std::fmt;
use std::fs::File;
use std::time::{Duration, Instant};

use pagelab_host::fast::{FastSnapshot, Wanted};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_metrics::fragment_plan::Shape;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::zoneinfo::Pageset;
use pagelab_model::{Bytes, FreeAreas, Meminfo, Order, PageSize, Pages, Reading};
use pagelab_sys::affinity::Pinned;

use super::facts::Way;
use super::spoiler::Spoiler;
use crate::reserve::Reserve;
use crate::settle::{LONGEST, refreshed};

/// Pressure is judged over at least this time.
const WINDOW: Duration = Duration::from_millis(500);
/// More of a window than this spent waiting for memory is too much.
const STALLED_MAX: f64 = 0.4;
/// Windows in a row with too much of it that mean danger. A single one may be our own compaction.
const WINDOWS_MAX: u32 = 3;
/// Pages that come in a round below which nothing more is to come.
const SETTLED: u64 = 1024;
/// Pages sent through a list beyond those that wait.
const RINSE_MARGIN: u64 = 5000;
/// The most of them: more than any kernel keeps on a list for ever.
const RINSE_MAX: u64 = 1 << 16;

/// The files that are looked at again and again.
#[derive(Debug)]
pub struct Watch {
    fast: FastSnapshot,
    zone: ZoneKey,
    reserve: Reserve,
    /// Order of a huge page.
    unit: Order,
    page_size: PageSize,
    /// Absent without root.
    refresh: Option<File>,
    window: Instant,
    stalled_us: Option<u64>,
    windows: u32,
    worst_stall: f64,
}

/// Why all is given back.
#[derive(Clone, Debug, PartialEq)]
pub enum Danger {
    /// So much is available, and that is less than the reserve.
    Low {
        /// `MemAvailable`.
        available: Bytes,
        /// The reserve.
        reserve: Bytes,
    },
    /// This share of the time somebody waited for memory, window after window.
    Pressure(f64),
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Danger::Low { available, reserve } => {
                let mib = |bytes: &Bytes| bytes.0 >> 20;
                write!(f, "only {} MiB were available, and {} are reserved", mib(available), mib(reserve))
            }
            Danger::Pressure(share) => {
                write!(f, "programs waited for memory {:.0} % of the time", share * 100.0)
            }
        }
    }
}

impl Watch {
    /// Opens the files of this machine and takes the first look.
    pub fn open(zone: ZoneKey, reserve: Reserve, page_size: PageSize, unit: Order) -> Reading<Watch> {
        let root = Root::live();
        let mut watch = Watch {
            fast: FastSnapshot::open(&root, Wanted::ALL),
            zone,
            reserve,
            unit,
            page_size,
            refresh: root.file(paths::STAT_REFRESH).ok(),
            window: Instant::now(),
            stalled_us: None,
            windows: 0,
            worst_stall: 0.0,
        };
        watch.seen()?;
        watch.stalled_us = watch.pressure_us();
        Ok(watch)
    }

    /// Reads all files again.
    pub fn look(&mut self) -> Reading<()> {
        self.fast.sample();
        self.seen()
    }

    /// Whether the last look saw what every decision needs.
    fn seen(&self) -> Reading<()> {
        let (buddyinfo, meminfo) = (self.fast.buddyinfo(), self.fast.meminfo());
        buddyinfo.map(drop).and(meminfo.map(drop)).map_err(Clone::clone)
    }

    /// The last look.
    pub fn fast(&self) -> &FastSnapshot {
        &self.fast
    }

    /// The free lists of the zone at the last look.
    pub fn areas(&self) -> FreeAreas {
        self.fast.buddyinfo().ok().and_then(|buddy| buddy.zone(&self.zone)).cloned().unwrap_or_default()
    }

    /// Memory that can be had without swapping, at the last look.
    pub fn available(&self) -> Bytes {
        self.fast.meminfo().ok().and_then(Meminfo::available).unwrap_or_default()
    }

    /// Base pages that may be taken before the reserve is reached, by the last look.
    pub fn room_pages(&self) -> u64 {
        self.reserve.room(self.available()).pages(self.page_size).0
    }

    /// Free pages that stand on no list because they are not initialised, by the counters alone.
    pub fn deferred(&self, zoneinfo: &pagelab_model::Zoneinfo) -> Pages {
        let (Ok(buddy), Ok(meminfo)) = (self.fast.buddyinfo(), self.fast.meminfo()) else { return Pages(0) };
        let balance = FreeBalance::of(buddy, meminfo, Some(zoneinfo), self.page_size, Pages(0));
        balance.map_or(Pages(0), |balance| balance.deferred())
    }

    /// Whether others are in danger at the last look.
    pub fn danger(&mut self) -> Option<Danger> {
        let available = self.available();
        if available < self.reserve.0 {
            return Some(Danger::Low { available, reserve: self.reserve.0 });
        }
        let elapsed = self.window.elapsed();
        if elapsed >= WINDOW {
            let now = self.pressure_us();
            let stalled = now.zip(self.stalled_us).map_or(0, |(now, then)| now.saturating_sub(then));
            let share = stalled as f64 / 1e6 / elapsed.as_secs_f64();
            self.worst_stall = self.worst_stall.max(share.min(1.0));
            self.windows = if share > STALLED_MAX { self.windows + 1 } else { 0 };
            (self.window, self.stalled_us) = (Instant::now(), now);
            if self.windows >= WINDOWS_MAX {
                return Some(Danger::Pressure(share.min(1.0)));
            }
        }
        None
    }

    /// The largest share of a window in which somebody waited for memory.
    pub fn worst_stall(&self) -> f64 {
        self.worst_stall
    }

    /// Whether pages on the processors' lists can be made to come back.
    pub fn can_settle(&self) -> bool {
        self.refresh.is_some()
    }

    /// Makes free pages that wait on the processors' lists come back to the free lists, where buddyinfo
    /// counts them. Since 6.7 such a list grows to an eighth of its zone shared by the processors, and
    /// shrinks by itself within minutes (mm/page_alloc.c, `nr_pcp_high`, `decay_pcp_high`).
    pub fn settle(&mut self) -> Reading<()> {
        let until = Instant::now() + LONGEST;
        self.look()?;
        while let Some(refresh) = &self.refresh {
            let before = self.areas().free_pages();
            if refreshed(refresh).is_none() {
                self.refresh = None;
                return Ok(());
            }
            self.look()?;
            let came = self.areas().free_pages().saturating_sub(before);
            if came < u128::from(SETTLED) || Instant::now() > until {
                break;
            }
        }
        Ok(())
    }

    /// Gives memory back by `act`, and sees to it that it comes to the free lists, where it can merge with
    /// its neighbours. Pages that are given back one by one would wait on the processors' lists, some
    /// thousand of them for ever, and each keeps a block of free memory apart. So as many pages of a few
    /// whole blocks are sent after them: the oldest leave first.
    pub fn give_back<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let done = act();
        let _ = self.settle();
        // Each processor has a list of its own. Where a thread may not be pinned, a part may stay.
        for cpu in Pinned::allowed() {
            if let Ok(_pinned) = Pinned::on(cpu) {
                self.rinse(cpu);
            }
        }
        let _ = self.settle();
        done
    }

    /// Sends as many pages through a processor's list as wait on it and as it keeps. They come from huge
    /// pages that are split, so that those which stay on it are of few blocks; base pages would come from the
    /// smallest blocks there are, and keep apart what is to merge. What cannot be taken cannot be helped: in
    /// time it goes to the lists by itself.
    fn rinse(&self, cpu: u32) {
        let pages = self.waiting(cpu).saturating_add(RINSE_MARGIN).min(RINSE_MAX);
        let units = pages.min(self.room_pages()) / self.unit.pages().0;
        let shape = Shape::fewest(self.unit, self.unit);
        let rinse = |node| Spoiler::new(Way::HugePages, shape, 0, self.page_size, node).spoil(units);
        // A kernel without CONFIG_NUMA binds nothing, and has one node.
        let _ = rinse(Some(self.zone.node)).or_else(|_| rinse(None));
    }

    /// Pages that wait on a processor's list of the zone, and those that the list keeps.
    fn waiting(&self, cpu: u32) -> u64 {
        let root = Root::live();
        let zoneinfo = Reader::new(&root).parse(paths::ZONEINFO, pagelab_formats::zoneinfo::parse);
        let Some(zone) = zoneinfo.as_ref().ok().and_then(|info| info.zone(&self.zone)) else { return 0 };
        let set = zone.pagesets.iter().find(|set| set.cpu == cpu);
        let keeps = |set: &Pageset| set.high_min.or(set.high).unwrap_or_default().0;
        set.map_or(0, |set| set.count.0.saturating_add(keeps(set)))
    }

    fn pressure_us(&self) -> Option<u64> {
        self.fast.pressure().ok().map(|pressure| pressure.some.total_us)
    }
}
