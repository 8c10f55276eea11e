//! One observation of a machine: the contents of its files as a snapshot.

use std::time::{Duration, Instant};

use pagelab_formats::{
    allocinfo, buddyinfo, meminfo, mountinfo, pagetypeinfo, pressure, size, slabinfo, vmstat, zoneinfo,
};
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::settings::Settings;
use pagelab_model::snapshot::SnapshotOrigin;
use pagelab_model::{Absence, AbsenceReason, BuddyInfo, Machine, Order, Pages, Reading, Snapshot};
use pagelab_sys::clock;

use crate::machine::{self, MachineOverrides};
use crate::reader::Reader;
use crate::{cgroup, extfrag, instruments, kernel_log, paths, processes, settings};

/// Optional readings besides the cheap files.
#[derive(Clone, Debug, Default)]
pub struct CollectOptions {
    /// Read pagetypeinfo: it walks every free list with interrupts off.
    pub pagetypeinfo: bool,
    /// How far to look into processes.
    pub processes: processes::ScanBudget,
    /// Facts that the caller provides about the machine.
    pub overrides: MachineOverrides,
    /// Time of the capture of a saved tree, in nanoseconds since 1970, if its manifest has it.
    pub captured_realtime_ns: Option<u64>,
}

/// Tries for a reading during which free memory did not move; one takes some 50 µs.
const READ_ATTEMPTS_MAX: u32 = 5;

/// Gathers everything but the census, the TLBs and the probe, which the caller adds. The problems are
/// those that `reader` has met so far.
pub fn collect(reader: &Reader<'_>, options: &CollectOptions) -> Snapshot {
    let root = reader.root();
    let origin = SnapshotOrigin {
        source: root.name().to_owned(),
        realtime_ns: if root.is_live() { Some(clock::realtime_ns()) } else { options.captured_realtime_ns },
        boottime_ns: read_boottime_ns(reader),
        euid: root.is_live().then(|| rustix::process::geteuid().as_raw()),
    };
    let (texts, free_moved) = read_count_texts(reader);
    let buddyinfo = reader.parse_text(paths::BUDDYINFO, texts.buddy_before, buddyinfo::parse);
    let meminfo = reader.parse_text(paths::MEMINFO, texts.meminfo, meminfo::parse);
    let vmstat = reader.parse_text(paths::VMSTAT, texts.vmstat, vmstat::parse);
    let zoneinfo = reader.parse_text(paths::ZONEINFO, texts.zoneinfo, zoneinfo::parse);
    let pressure = reader.parse(paths::PRESSURE_MEMORY, pressure::parse);
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let machine = machine::read(reader, &options.overrides, &mounts, &meminfo, &vmstat);
    let settings = settings::read(reader);
    let mut alloc_failures = kernel_log::read(reader);
    if let Ok(log) = &mut alloc_failures {
        cgroup::find_limit_files(reader, &mounts, &mut log.kills);
    }
    let readings = instruments::InstrumentReadings {
        mounts: &mounts,
        swap: &settings.swap,
        kernel_log: &alloc_failures,
        cgroup: &machine.cgroup,
        pressure: &pressure,
        memory_block: &machine.memory_block,
    };
    let instruments = instruments::read(reader, &readings);
    let extfrag = extfrag::read(reader, &mounts);
    let slabs = reader.parse(paths::SLABINFO, slabinfo::parse);
    let alloc_sites = reader.parse(paths::ALLOCINFO, allocinfo::parse);
    let processes = processes::read_largest(reader, machine.page_size, &options.processes);
    // Last of all, since it disturbs the machine the most.
    let pagetypeinfo = match options.pagetypeinfo {
        true => reader.parse(paths::PAGETYPEINFO, pagetypeinfo::parse),
        false => Err(not_requested_absence(&root.display_path(paths::PAGETYPEINFO)).with_hint(
            "request it; on a fragmented machine, reading it disables interrupts for up to 50 ms",
        )),
    };
    let pmd_order = settings.pmd_order(machine.page_size);
    let (pageblock_order, pageblock_order_source) =
        pageblock_order(&pagetypeinfo, pmd_order, buddyinfo.as_ref().ok());
    Snapshot {
        taken: origin,
        machine,
        settings,
        pmd_order,
        pageblock_order,
        pageblock_order_source,
        meminfo,
        vmstat,
        buddyinfo,
        free_moved,
        zoneinfo,
        pagetypeinfo,
        pressure,
        slabs,
        alloc_sites,
        extfrag,
        census: Err(not_requested_absence(&root.display_path(paths::KPAGEFLAGS))),
        processes,
        alloc_failures,
        probe: None,
        instruments,
        problems: reader.problems(),
    }
}

/// The machine without its TLBs, and its memory settings. Reads no other files; problems go to `reader`.
pub fn identify(reader: &Reader<'_>, overrides: &MachineOverrides) -> (Machine, Settings) {
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let vmstat = reader.parse(paths::VMSTAT, vmstat::parse);
    (machine::read(reader, overrides, &mounts, &meminfo, &vmstat), settings::read(reader))
}

fn not_requested_absence(source: &str) -> Absence {
    Absence::new(source, AbsenceReason::NotRequested, "")
}

fn read_boottime_ns(reader: &Reader<'_>) -> Option<u64> {
    if !reader.root().is_live() {
        return reader.parse(paths::UPTIME, size::parse_uptime).ok();
    }
    Some(clock::boottime_ns())
}

/// Texts of one moment, unparsed: parsing between the reads would spread them.
struct CountTexts {
    buddy_before: Reading<Vec<u8>>,
    meminfo: Reading<Vec<u8>>,
    vmstat: Reading<Vec<u8>>,
    zoneinfo: Reading<Vec<u8>>,
    buddy_after: Reading<Vec<u8>>,
}

impl CountTexts {
    fn read(reader: &Reader<'_>) -> CountTexts {
        let root = reader.root();
        CountTexts {
            buddy_before: root.read(paths::BUDDYINFO),
            meminfo: root.read(paths::MEMINFO),
            vmstat: root.read(paths::VMSTAT),
            zoneinfo: root.read(paths::ZONEINFO),
            buddy_after: root.read(paths::BUDDYINFO),
        }
    }

    /// Total change of the free lists between the two readings of buddyinfo.
    fn free_pages_moved(&self, source: &str) -> Reading<Pages> {
        let pages = |text: &Reading<Vec<u8>>| {
            let text = text.as_ref().map_err(Absence::clone)?;
            let malformed = |detail: String| Absence::new(source, AbsenceReason::Malformed, detail);
            let info = buddyinfo::parse(text).map_err(|error| malformed(error.message_in_file(source)))?;
            u64::try_from(info.free_pages()).map_err(|_| malformed("more than 2^64 free pages".to_owned()))
        };
        Ok(Pages(pages(&self.buddy_before)?.abs_diff(pages(&self.buddy_after)?)))
    }
}

/// Reads the four files close together between two readings of buddyinfo, several times until free memory
/// did not move. Keeps the attempt with the smallest change; an attempt whose change is unknown is kept only
/// if there is no other.
fn read_count_texts(reader: &Reader<'_>) -> (CountTexts, Reading<Pages>) {
    let deadline = Instant::now() + Duration::from_millis(200);
    let mut texts = CountTexts::read(reader);
    let source = reader.root().display_path(paths::BUDDYINFO);
    let mut free_pages_moved = texts.free_pages_moved(&source);
    for _ in 1..READ_ATTEMPTS_MAX {
        if free_pages_moved == Ok(Pages(0)) || !reader.root().is_live() || Instant::now() > deadline {
            break;
        }
        let again = CountTexts::read(reader);
        let moved = again.free_pages_moved(&source);
        let is_calmer = match (&moved, &free_pages_moved) {
            (Ok(moved), Ok(least)) => moved < least,
            (moved, least) => moved.is_ok() && least.is_err(),
        };
        if is_calmer {
            (texts, free_pages_moved) = (again, moved);
        }
    }
    (texts, free_pages_moved)
}

/// Pageblock order from pagetypeinfo. Its header cannot be read alone: the kernel prints a node's whole
/// table, walking every free list, before the first byte is returned (mm/vmstat.c, `pagetypeinfo_show`).
/// Without it, the kernel's rule: the order of a huge page, but at most the largest order
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
        _ => (pmd_order, "assumed: the huge-page order".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_PAGE: &[u8] = b"Node 0, zone Normal 1 0 0 0 0 0 0 0 0 0 0\n";
    const FOUR_PAGES: &[u8] = b"Node 0, zone Normal 0 0 1 0 0 0 0 0 0 0 0\n";

    fn moved(before: Reading<&[u8]>, after: Reading<&[u8]>) -> Reading<Pages> {
        let unread = || Err(Absence::not_read());
        let texts = CountTexts {
            buddy_before: before.map(<[u8]>::to_vec),
            meminfo: unread(),
            vmstat: unread(),
            zoneinfo: unread(),
            buddy_after: after.map(<[u8]>::to_vec),
        };
        texts.free_pages_moved("buddyinfo")
    }

    #[test]
    fn an_unreadable_buddyinfo_is_not_a_change_of_zero() {
        assert_eq!(moved(Ok(ONE_PAGE), Ok(FOUR_PAGES)), Ok(Pages(3)));
        let denied = || Err(Absence::new("buddyinfo", AbsenceReason::NotPermitted, ""));
        assert_eq!(moved(Ok(ONE_PAGE), denied()).unwrap_err().why, AbsenceReason::NotPermitted);
        assert_eq!(moved(denied(), Ok(ONE_PAGE)).unwrap_err().why, AbsenceReason::NotPermitted);
        assert_eq!(moved(Ok(b"Node x\n"), Ok(ONE_PAGE)).unwrap_err().why, AbsenceReason::Malformed);
    }
}
