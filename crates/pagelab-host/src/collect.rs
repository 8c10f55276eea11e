//! One look at a machine: everything that its files say, gathered into a snapshot.

use std::time::{Duration, Instant};

use pagelab_formats::{
    allocinfo, buddyinfo, meminfo, mountinfo, pagetypeinfo, pressure, size, slabinfo, vmstat, zoneinfo,
};
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::settings::Settings;
use pagelab_model::snapshot::Taken;
use pagelab_model::{
    Absence, AbsentWhy, BuddyInfo, Counters, Machine, Meminfo, Order, PageSize, Pages, Reading, Snapshot,
    Zoneinfo,
};
use pagelab_sys::clock;

use crate::machine::{self, Known};
use crate::reader::Reader;
use crate::{extfrag, instruments, kernel_log, paths, processes, settings};

/// What to gather besides the cheap files.
#[derive(Clone, Debug, Default)]
pub struct CollectOptions {
    /// Read pagetypeinfo: it walks every free list with interrupts off.
    pub pagetypeinfo: bool,
    /// How far to look into processes.
    pub processes: processes::Budget,
    /// What the caller knows about the machine.
    pub known: Known,
    /// When a saved tree was taken, in nanoseconds since 1970, where its manifest says so.
    pub taken_realtime_ns: Option<u64>,
}

/// Tries for a reading during which free memory did not move; one takes some 50 µs.
const TRIES: u32 = 5;

/// Gathers everything but the census, the TLBs and the probe, which the caller adds. The problems are
/// those that `reader` has met so far.
pub fn collect(reader: &Reader<'_>, options: &CollectOptions) -> Snapshot {
    let root = reader.root();
    let taken = Taken {
        from: root.name().to_owned(),
        realtime_ns: if root.is_live() { Some(clock::realtime_ns()) } else { options.taken_realtime_ns },
        boottime_ns: boottime_ns(reader),
        euid: root.is_live().then(|| rustix::process::geteuid().as_raw()),
    };
    let counts = counts(reader);
    let pressure = reader.parse(paths::PRESSURE_MEMORY, pressure::parse);
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let machine = machine::read(reader, &options.known, &mounts, &counts.meminfo, &counts.vmstat);
    let settings = settings::read(reader);
    let alloc_failures = kernel_log::read(reader);
    let seen = instruments::Seen {
        mounts: &mounts,
        swap: &settings.swap,
        kernel_log: &alloc_failures,
        cgroup: &machine.cgroup,
        pressure: &pressure,
        memory_block: &machine.memory_block,
    };
    let instruments = instruments::read(reader, &seen);
    let extfrag = extfrag::read(reader, &mounts);
    let slabs = reader.parse(paths::SLABINFO, slabinfo::parse);
    let alloc_sites = reader.parse(paths::ALLOCINFO, allocinfo::parse);
    let processes = processes::read(reader, machine.page_size, &options.processes);
    // Last of all, since it disturbs the machine the most.
    let pagetypeinfo = match options.pagetypeinfo {
        true => reader.parse(paths::PAGETYPEINFO, pagetypeinfo::parse),
        false => Err(not_asked(&root.show(paths::PAGETYPEINFO))
            .or("ask for it; on a fragmented machine it stops interrupts for up to 50 ms")),
    };
    let pmd_order = pmd_order(machine.page_size, &settings);
    let (pageblock_order, pageblock_order_source) =
        pageblock_order(&pagetypeinfo, pmd_order, counts.buddyinfo.as_ref().ok());
    Snapshot {
        taken,
        machine,
        settings,
        pmd_order,
        pageblock_order,
        pageblock_order_source,
        meminfo: counts.meminfo,
        vmstat: counts.vmstat,
        buddyinfo: counts.buddyinfo,
        free_moved: counts.free_moved,
        zoneinfo: counts.zoneinfo,
        pagetypeinfo,
        pressure,
        slabs,
        alloc_sites,
        extfrag,
        census: Err(not_asked(&root.show(paths::KPAGEFLAGS))),
        processes,
        alloc_failures,
        probe: None,
        instruments,
        problems: reader.problems(),
    }
}

/// The machine without its TLBs, and how its memory is set up: who the numbers to come are from. Reads no
/// more than that takes; problems go to `reader`.
pub fn identify(reader: &Reader<'_>, known: &Known) -> (Machine, Settings) {
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let vmstat = reader.parse(paths::VMSTAT, vmstat::parse);
    (machine::read(reader, known, &mounts, &meminfo, &vmstat), settings::read(reader))
}

fn not_asked(source: &str) -> Absence {
    Absence::new(source, AbsentWhy::NotAsked, "")
}

fn boottime_ns(reader: &Reader<'_>) -> Option<u64> {
    if !reader.root().is_live() {
        return reader.parse(paths::UPTIME, size::parse_uptime).ok();
    }
    Some(clock::boottime_ns())
}

/// The counts that belong together.
struct Counts {
    buddyinfo: Reading<BuddyInfo>,
    meminfo: Reading<Meminfo>,
    vmstat: Reading<Counters>,
    zoneinfo: Reading<Zoneinfo>,
    free_moved: Pages,
}

/// Texts of one moment, unparsed: parsing between the reads would spread them.
struct Texts {
    buddy_before: Reading<Vec<u8>>,
    meminfo: Reading<Vec<u8>>,
    vmstat: Reading<Vec<u8>>,
    zoneinfo: Reading<Vec<u8>>,
    buddy_after: Reading<Vec<u8>>,
}

impl Texts {
    fn read(reader: &Reader<'_>) -> Texts {
        let root = reader.root();
        Texts {
            buddy_before: root.read(paths::BUDDYINFO),
            meminfo: root.read(paths::MEMINFO),
            vmstat: root.read(paths::VMSTAT),
            zoneinfo: root.read(paths::ZONEINFO),
            buddy_after: root.read(paths::BUDDYINFO),
        }
    }

    /// How much the free lists changed in sum; 0 where buddyinfo cannot be read at all.
    fn moved(&self) -> Pages {
        let pages = |text: &Reading<Vec<u8>>| {
            let info = buddyinfo::parse(text.as_ref().ok()?).ok()?;
            u64::try_from(info.free_pages()).ok()
        };
        match (pages(&self.buddy_before), pages(&self.buddy_after)) {
            (Some(before), Some(after)) => Pages(before.abs_diff(after)),
            _ => Pages(0),
        }
    }
}

/// Reads the four files close together between two readings of buddyinfo, several times until free memory
/// did not move, and keeps the calmest try.
fn counts(reader: &Reader<'_>) -> Counts {
    let deadline = Instant::now() + Duration::from_millis(200);
    let mut texts = Texts::read(reader);
    let mut free_moved = texts.moved();
    for _ in 1..TRIES {
        if free_moved == Pages(0) || !reader.root().is_live() || Instant::now() > deadline {
            break;
        }
        let again = Texts::read(reader);
        let moved = again.moved();
        if moved < free_moved {
            (texts, free_moved) = (again, moved);
        }
    }
    Counts {
        buddyinfo: reader.parse_text(paths::BUDDYINFO, texts.buddy_before, buddyinfo::parse),
        meminfo: reader.parse_text(paths::MEMINFO, texts.meminfo, meminfo::parse),
        vmstat: reader.parse_text(paths::VMSTAT, texts.vmstat, vmstat::parse),
        zoneinfo: reader.parse_text(paths::ZONEINFO, texts.zoneinfo, zoneinfo::parse),
        free_moved,
    }
}

/// What the kernel says, else what follows from the page size.
pub fn pmd_order(page_size: PageSize, settings: &Settings) -> Order {
    let said = settings.thp.as_ref().ok().and_then(|thp| thp.pmd_size.as_ref().ok());
    said.and_then(|&size| page_size.order_of(size)).unwrap_or_else(|| page_size.usual_pmd_order())
}

/// pagetypeinfo says it. Its header cannot be had alone: the kernel prints a node's whole table, walking
/// every free list, before the first byte is returned (mm/vmstat.c, `pagetypeinfo_show`). Without it, the
/// kernel's rule: the order of a huge page, but at most the largest order
/// (include/linux/pageblock-flags.h; a kernel without hugetlb before 6.8 takes the largest order, and
/// CONFIG_PAGE_BLOCK_MAX_ORDER of 6.16 may lower it).
pub(crate) fn pageblock_order(
    pagetypeinfo: &Reading<Pagetypeinfo>,
    pmd_order: Order,
    buddyinfo: Option<&BuddyInfo>,
) -> (Order, String) {
    if let Some(order) = pagetypeinfo.as_ref().ok().and_then(|info| info.pageblock_order) {
        return (order, "pagetypeinfo".to_owned());
    }
    let orders = buddyinfo.and_then(|info| info.zones.first()).map(|zone| zone.areas.orders());
    let largest = orders.and_then(|orders| u8::try_from(orders.saturating_sub(1)).ok()).map(Order);
    match largest {
        Some(largest) if largest < pmd_order => (largest, "assumed: the largest order".to_owned()),
        _ => (pmd_order, "assumed: the order of a huge page".to_owned()),
    }
}
