//! Free memory that is touched once and given back at once, so that a host that took it has given it again.
//!
//! Where free pages are reported to a hypervisor (`pagelab_host::page_reporting`) the first touch of memory
//! that lay free for some seconds pays for the host. Whoever is to be measured should not: as much memory is
//! taken in huge pages, which are cut from the very blocks that are reported, and lies in front of the free
//! lists when it is given back. It is reported anew about two seconds later.

use pagelab_formats::{buddyinfo, meminfo, mountinfo};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, machine, paths};
use pagelab_model::{Bytes, Order};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::map::{Advice, Mapping};

use crate::oom::OfferedFirst;
use crate::reserve::Reserve;

/// Taken between two looks at what is left.
const PIECE: u64 = 64 << 20;

/// What was touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// As much as was wanted.
    pub wanted: Bytes,
    /// As much as was taken and given back.
    pub warmed: Bytes,
    /// Free memory in blocks smaller than a huge page. It is never reported, and it is not warmed: what was
    /// cut from a block after that had been reported is cold, and nothing tells how much of it is.
    pub small: Bytes,
    /// CPU time that it took, ns: nearly all of it in the kernel and the host.
    pub cpu_ns: u64,
    /// Why it is less than what was wanted, where that leaves memory cold.
    pub short: Option<String>,
}

/// Takes at most `wanted`, never past the reserve, and gives it back before it returns.
pub fn warm(root: &Root, wanted: Bytes, stop: &dyn Fn() -> bool) -> Warmed {
    let before_ns = thread_cpu_ns();
    let small = small_blocks(root);
    let (warmed, short) = taken(root, wanted, stop);
    Warmed { wanted, warmed, small, cpu_ns: thread_cpu_ns().saturating_sub(before_ns), short }
}

fn taken(root: &Root, wanted: Bytes, stop: &dyn Fn() -> bool) -> (Bytes, Option<String>) {
    let none = |why: String| (Bytes(0), Some(why));
    let Some(page_size) = machine::live_page_size() else { return none("the page size is not known".into()) };
    let pmd = machine::pmd_size(&Reader::new(root), page_size);
    let whole = whole_blocks(root, pmd, page_size.bytes());
    let first = wanted.0.min(whole).next_multiple_of(pmd.0.max(1));
    let (most, bound) = room(root);
    let size = first.min(most) / pmd.0.max(1) * pmd.0;
    let short = (size < first).then(|| bound.to_owned());
    if size == 0 {
        return (Bytes(0), short);
    }
    let _offered = OfferedFirst::new();
    let mut memory = match Mapping::anonymous(Bytes(size), pmd) {
        Ok(memory) => memory,
        Err(error) => return none(format!("memory cannot be mapped: {error}")),
    };
    // Where huge pages are off, base pages are cut from the same blocks once smaller ones are used up.
    let _ = memory.advise(0..size, Advice::HugePage);
    let mut at = 0;
    while at < size {
        let end = (at + PIECE).min(size);
        if stop() {
            return (Bytes(at), Some("stopped".to_owned()));
        }
        // Somebody else may take memory meanwhile.
        if room(root).0 < end - at {
            return (Bytes(at), Some(bound.to_owned()));
        }
        if let Err(error) = memory.touch(at..end) {
            return (Bytes(at), Some(format!("memory cannot be taken: {error}")));
        }
        at = end;
    }
    (Bytes(size), short)
}

/// Bytes that are free in blocks of a huge page and more.
fn whole_blocks(root: &Root, pmd: Bytes, page_bytes: u64) -> u64 {
    let order = Order((pmd.0 / page_bytes.max(1)).max(1).ilog2() as u8);
    free_from(root, order).saturating_mul(page_bytes)
}

/// Bytes that are free in smaller blocks.
fn small_blocks(root: &Root) -> Bytes {
    let Some(page_size) = machine::live_page_size() else { return Bytes(0) };
    let whole = whole_blocks(root, machine::pmd_size(&Reader::new(root), page_size), page_size.bytes());
    Bytes(free_from(root, Order(0)).saturating_mul(page_size.bytes()).saturating_sub(whole))
}

/// Base pages that are free in blocks of at least this order.
fn free_from(root: &Root, order: Order) -> u64 {
    let info = root.read(paths::BUDDYINFO).ok().and_then(|text| buddyinfo::parse(&text).ok());
    let zones = info.map(|info| info.zones).unwrap_or_default();
    let pages = zones.iter().map(|zone| zone.areas.pages_from(order)).sum::<u128>();
    u64::try_from(pages).unwrap_or(u64::MAX)
}

/// What may still be taken, and what bounds it: free memory less the reserve, so that nothing is reclaimed,
/// and what this process's control group lets it take.
fn room(root: &Root) -> (u64, &'static str) {
    let reader = Reader::new(root);
    let Ok(info) = reader.parse(paths::MEMINFO, meminfo::parse) else {
        return (0, "meminfo could not be read");
    };
    let bytes = |name: &str| info.bytes(name).unwrap_or(Bytes(0));
    let free = Reserve::of(bytes("MemTotal")).room(bytes("MemFree")).0;
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let group = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
    match group {
        Some(Bytes(group)) if group < free => (group, "more would reach the limit of its control group"),
        _ => (free, "more would hurt the reserve"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_counted_from_an_order_on() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let counts = "Node 0, zone   Normal      3      1      0      0      0      0      0      0      1      2      1\n";
        std::fs::write(dir.path().join("proc/buddyinfo"), counts).unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(free_from(&root, Order(9)), 2 * 512 + 1024);
        assert_eq!(free_from(&root, Order(0)) - free_from(&root, Order(9)), 3 + 2 + 256);
        let page_bytes = 4 << 10;
        assert_eq!(whole_blocks(&root, Bytes(2 << 20), page_bytes), (2 * 512 + 1024) * page_bytes);
    }

    #[test]
    fn what_is_warmed_is_given_back_and_what_cannot_be_is_told() {
        let root = Root::live();
        let wanted = Bytes(32 << 20);
        let found = warm(&root, wanted, &|| false);
        assert_eq!(found.wanted, wanted);
        assert!(found.warmed <= wanted, "{found:?}");
        assert!(found.warmed.0 == 0 || found.cpu_ns > 0, "{found:?}");
        let stopped = warm(&root, wanted, &|| true);
        assert_eq!(stopped.warmed, Bytes(0), "{stopped:?}");
        // As much as nobody has: the reserve is told as the bound, or nothing whole was free.
        let (most, _) = room(&root);
        let all = taken(&root, Bytes(u64::MAX / 4), &|| true);
        assert!(all.1.is_some() || most == 0, "{all:?}");
    }
}
