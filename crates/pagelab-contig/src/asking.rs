//! Really asking for transparent huge pages, region by region, and reading back what came.
//!
//! A region is an aligned range of the size of a huge page. Its first page is touched; if the kernel has a
//! huge page to give, it gives one at this fault, and else a base page. Where that was a base page,
//! MADV_COLLAPSE asks again, with compaction. What came is told by the page tables, never by success codes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagelab_formats::{meminfo, pagemap, vmstat, zoneinfo};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsentWhy, Bytes, NodeId, Order, PageSize, Reading};
use pagelab_sys::clock;
use pagelab_sys::map::{Advice, Mapping};

use crate::readback::ReadBack;
use crate::reserve::Reserve;

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many huge pages.
    pub count: u64,
    /// Their size.
    pub size: Bytes,
    /// The base page size.
    pub page_size: PageSize,
    /// What is left to everybody else.
    pub reserve: Reserve,
    /// Monotonic nanoseconds after which no more is asked for.
    pub deadline_ns: u64,
    /// MADV_COLLAPSE in a row that give none until asking by it ends.
    pub misses_max: u64,
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Regions that were asked for.
    pub asked: u64,
    /// Huge pages that came, read back.
    pub got: u64,
    /// Of those, by MADV_COLLAPSE.
    pub by_collapse: u64,
    /// How it was read back.
    pub read_back_by: String,
    /// Nanoseconds of each fault that gave a huge page.
    pub fault_ns: Vec<u64>,
    /// Nanoseconds of each MADV_COLLAPSE, whatever came of it.
    pub collapse_ns: Vec<u64>,
    /// What the kernel said when it first refused MADV_COLLAPSE.
    pub first_refusal: Option<String>,
    /// Why it ended.
    pub stopped: Stopped,
}

/// Why asking ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that was wanted came.
    GotAll,
    /// More would have hurt the reserve.
    Reserve,
    /// Nothing came any more.
    NoneLeft,
    /// The kernel would have begun to reclaim memory instead of compacting it.
    WouldReclaim,
    /// Time was up.
    Deadline,
}

impl Stopped {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Stopped::GotAll => "all that was wanted came",
            Stopped::Reserve => "more would have hurt the reserve",
            Stopped::NoneLeft => "nothing came any more",
            Stopped::WouldReclaim => "free memory became so short that the kernel reclaims",
            Stopped::Deadline => "the time was up",
        }
    }
}

/// Faults in a row that give no huge page until asking by faults ends.
const MISSED_FAULTS_MAX: u64 = 48;

/// MADV_COLLAPSE in a row that give none until asking by it ends: each may compact a whole zone.
pub const MISSED_COLLAPSES_MAX: u64 = 6;

/// The same where compaction ends early: each begins where the one before ended, behind the folio that had
/// no room (mm/compaction.c, `compact_cached_migrate_pfn`).
pub const MISSED_COLLAPSES_EARLY_MAX: u64 = 64;

/// Huge pages' worth of memory that the kernel may reclaim for those who wait, meanwhile.
const RECLAIMED_MAX: u64 = 1;

/// Regions between two looks at MemAvailable.
const REGIONS_A_LOOK: u64 = 8;

/// Memory that is being asked for. Everything goes back when it is dropped.
#[derive(Debug)]
pub struct Asking<'r> {
    root: &'r Root,
    wanted: Wanted,
    map: Mapping,
    readback: ReadBack,
    pagemap: File,
    /// Base pages that were reclaimed before, since boot.
    reclaimed_before: Reclaimed,
    /// Regions whose first page was touched.
    touched: u64,
    fault_ns: Vec<u64>,
    collapse_ns: Vec<u64>,
    /// The huge pages that came by faults.
    by_faults: u64,
    first_refusal: Option<String>,
    stopped: Stopped,
}

impl<'r> Asking<'r> {
    /// Maps the regions and touches none of them. Less is mapped where all would hurt the reserve.
    pub fn begin(root: &'r Root, wanted: Wanted, node: Option<NodeId>) -> Reading<Asking<'r>> {
        let available = available(root)?;
        let fit = wanted.reserve.room(available).0 / wanted.size.0.max(1);
        if fit == 0 {
            let (have, kept) = (available.0 >> 20, wanted.reserve.0.0 >> 20);
            let detail = format!("{have} MiB are available, of which {kept} MiB are never taken");
            return Err(Absence::new("huge pages", AbsentWhy::NotPermitted, detail).or("free memory first"));
        }
        let count = wanted.count.min(fit);
        let map = Mapping::anonymous(Bytes(count.saturating_mul(wanted.size.0)), wanted.size);
        let mut map = map.map_err(|error| failed("cannot map memory", &error))?;
        if let Some(node) = node {
            map.bind_to_node(node.0).map_err(|error| failed("cannot ask one node alone", &error))?;
        }
        let whole = 0..map.len().0;
        map.advise(whole, Advice::HugePage).map_err(|error| failed("cannot ask for huge pages", &error))?;
        let pagemap = root.file(paths::SELF_PAGEMAP)?;
        let stopped = if count < wanted.count { Stopped::Reserve } else { Stopped::GotAll };
        Ok(Asking {
            root,
            wanted: Wanted { count, ..wanted },
            map,
            readback: ReadBack::open(),
            pagemap,
            reclaimed_before: reclaimed(root),
            touched: 0,
            fault_ns: Vec::new(),
            collapse_ns: Vec::new(),
            by_faults: 0,
            first_refusal: None,
            stopped,
        })
    }

    /// Touches one region after the other, until all are touched or nothing comes.
    pub fn by_faults(&mut self) -> Reading<()> {
        let (size, page) = (self.wanted.size.0, self.wanted.page_size.bytes());
        let mut missed = 0;
        while self.touched < self.wanted.count && self.may_go_on(self.touched)? {
            let first = self.touched * size;
            let began_ns = clock::monotonic_ns();
            let touched = self.map.touch(first..first + page);
            let took_ns = clock::monotonic_ns().saturating_sub(began_ns);
            touched.map_err(|error| failed("cannot touch memory", &error))?;
            self.touched += 1;
            if self.is_huge(self.touched - 1)? {
                missed = 0;
                self.by_faults += 1;
                self.fault_ns.push(took_ns);
            } else {
                missed += 1;
                if missed >= MISSED_FAULTS_MAX {
                    self.stopped = Stopped::NoneLeft;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Asks again, with compaction, for the regions that have a base page or nothing yet; ends when nothing
    /// comes, and where the kernel would reclaim memory for it.
    pub fn by_collapse(&mut self) -> Reading<()> {
        let (size, page) = (self.wanted.size.0, self.wanted.page_size.bytes());
        let mut missed = 0;
        for region in 0..self.wanted.count {
            if region < self.touched && self.is_huge(region)? {
                continue;
            }
            if !self.may_go_on(region)? {
                break;
            }
            if !self.can_compact()? {
                self.stopped = Stopped::WouldReclaim;
                break;
            }
            let first = region * size;
            if region >= self.touched {
                let touched = self.map.touch(first..first + page);
                touched.map_err(|error| failed("cannot touch memory", &error))?;
                self.touched = region + 1;
            }
            let began_ns = clock::monotonic_ns();
            // Whether it came is read from the page table.
            let answer = self.map.advise(first..first + size, Advice::Collapse);
            self.collapse_ns.push(clock::monotonic_ns().saturating_sub(began_ns));
            if let Err(error) = answer {
                self.first_refusal.get_or_insert_with(|| error.to_string());
            }
            missed = if self.is_huge(region)? { 0 } else { missed + 1 };
            if missed >= self.wanted.misses_max {
                self.stopped = Stopped::NoneLeft;
                break;
            }
        }
        Ok(())
    }

    /// Counts what came, gives everything back, and says how it went.
    pub fn end(self) -> Reading<Asked> {
        let got = self.readback.huge_bytes(self.map.addresses())?.0 / self.wanted.size.0.max(1);
        let stopped = if got >= self.wanted.count && self.stopped != Stopped::Reserve {
            Stopped::GotAll
        } else {
            self.stopped
        };
        Ok(Asked {
            asked: self.wanted.count,
            got,
            by_collapse: got.saturating_sub(self.by_faults),
            read_back_by: self.readback.name().to_owned(),
            fault_ns: self.fault_ns,
            collapse_ns: self.collapse_ns,
            first_refusal: self.first_refusal,
            stopped,
        })
    }

    /// Whether a region is backed by a huge page: nobody has touched its last page.
    fn is_huge(&self, region: u64) -> Reading<bool> {
        let page = self.wanted.page_size.bytes();
        let last = self.map.addresses().start + (region + 1) * self.wanted.size.0 - page;
        let mut entry = [0u8; size_of::<u64>()];
        let offset = last / page * entry.len() as u64;
        let read = self.pagemap.read_exact_at(&mut entry, offset);
        read.map_err(|error| Absence::new(paths::SELF_PAGEMAP, AbsentWhy::Failed, error.to_string()))?;
        let malformed = |error: pagelab_formats::ParseError| {
            Absence::new(paths::SELF_PAGEMAP, AbsentWhy::Malformed, error.in_file(paths::SELF_PAGEMAP))
        };
        Ok(pagemap::entries(&entry).map_err(malformed)?.any(|entry| entry.is_present()))
    }

    /// Whether the reserve and the deadline leave room for some regions more.
    fn may_go_on(&mut self, region: u64) -> Reading<bool> {
        if clock::monotonic_ns() >= self.wanted.deadline_ns {
            self.stopped = Stopped::Deadline;
            return Ok(false);
        }
        if self.reclaims()? {
            self.stopped = Stopped::WouldReclaim;
            return Ok(false);
        }
        if !region.is_multiple_of(REGIONS_A_LOOK) {
            return Ok(true);
        }
        let room = self.wanted.reserve.room(available(self.root)?);
        if room.0 < REGIONS_A_LOOK.saturating_mul(self.wanted.size.0) {
            self.stopped = Stopped::Reserve;
        }
        Ok(self.stopped != Stopped::Reserve || room.0 >= REGIONS_A_LOOK.saturating_mul(self.wanted.size.0))
    }

    /// Whether the kernel has reclaimed memory since the beginning, for us or beside us. kswapd wakes at the
    /// low watermark, which base pages for page tables may reach; it also reclaims with most memory free,
    /// where somebody else's pages were put among others (`watermark_boost_factor`), and that says nothing.
    fn reclaims(&self) -> Reading<bool> {
        let pages_per_huge = self.wanted.size.0 / self.wanted.page_size.bytes();
        let (now, before) = (reclaimed(self.root), self.reclaimed_before);
        let rose = |now: u64, before: u64| now.saturating_sub(before) > RECLAIMED_MAX * pages_per_huge;
        Ok(rose(now.direct, before.direct) || rose(now.kswapd, before.kswapd) && !self.can_compact()?)
    }

    /// Whether some zone has as much free memory as compaction wants; with less, the kernel reclaims cache
    /// for a huge page (mm/compaction.c, `compaction_suitable`; mm/vmscan.c, `compaction_ready`: the high
    /// watermark, what is reserved for lower requests, and twice the size of the huge page).
    fn can_compact(&self) -> Reading<bool> {
        let zoneinfo = Reader::new(self.root).parse(paths::ZONEINFO, zoneinfo::parse)?;
        let order = self.wanted.page_size.order_of(self.wanted.size).unwrap_or(Order(0));
        let gap = order.pages().0.saturating_mul(2);
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
struct Reclaimed {
    /// By whoever waited for memory.
    direct: u64,
    /// By kswapd.
    kswapd: u64,
}

fn reclaimed(root: &Root) -> Reclaimed {
    let vmstat = Reader::new(root).parse(paths::VMSTAT, vmstat::parse);
    let counter = |name: &str| vmstat.as_ref().ok().and_then(|counters| counters.get(name)).unwrap_or(0);
    Reclaimed { direct: counter("pgsteal_direct"), kswapd: counter("pgsteal_kswapd") }
}

/// MemAvailable.
pub fn available(root: &Root) -> Reading<Bytes> {
    let meminfo = Reader::new(root).parse(paths::MEMINFO, meminfo::parse)?;
    meminfo.bytes("MemAvailable").ok_or_else(|| {
        Absence::new(root.show(paths::MEMINFO), AbsentWhy::NotThere, "it has no MemAvailable")
            .or("Linux 3.14 or later has it")
    })
}

fn failed(what: &str, error: &std::io::Error) -> Absence {
    Absence::new("huge pages", AbsentWhy::Failed, format!("{what}: {error}"))
}
