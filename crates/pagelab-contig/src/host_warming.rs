//! Warming of free memory: touched and released once, so that the host backs it again.
//!
//! If free pages are reported to a hypervisor (`pagelab_host::page_reporting`), the first touch of memory
//! that was free for some seconds includes the host's allocation. A measured program should not pay for this:
//! as much memory is allocated in huge pages, which come from the reported blocks, and is at the front of the
//! free lists after it is freed. It is reported anew about two seconds later.

use pagelab_formats::{buddyinfo, meminfo, mountinfo};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, machine, paths};
use pagelab_model::{Bytes, Order, PageSize};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::mapping::{Advice, Mapping};

use crate::oom::OomScoreGuard;
use crate::reserve::Reserve;

/// Chunk between two readings of available memory.
const BATCH_BYTES: u64 = 64 << 20;

/// Result of warming.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmingResult {
    /// The requested amount, in bytes.
    pub requested: Bytes,
    /// The amount that was touched and released, in bytes.
    pub warmed: Bytes,
    /// Free memory in blocks smaller than a huge page. Free memory in smaller blocks is neither reported nor
    /// warmed: parts of a reported block are cold, and their amount is unknown.
    pub in_small_blocks: Bytes,
    /// CPU time that it took, ns: nearly all of it in the kernel and the host.
    pub cpu_ns: u64,
    /// Reason for less than the requested amount, if memory stays cold.
    pub shortfall_reason: Option<String>,
}

/// Takes at most `requested`, never past the reserve, and gives it back before it returns.
pub fn warm_host_memory(root: &Root, requested: Bytes, stop: &dyn Fn() -> bool) -> WarmingResult {
    let before_ns = thread_cpu_ns();
    let small = count_small_block_bytes(root);
    let (warmed, shortfall_reason) = touch_free_memory(root, requested, stop);
    WarmingResult {
        requested,
        warmed,
        in_small_blocks: small,
        cpu_ns: thread_cpu_ns().saturating_sub(before_ns),
        shortfall_reason,
    }
}

fn touch_free_memory(root: &Root, requested: Bytes, stop: &dyn Fn() -> bool) -> (Bytes, Option<String>) {
    let none = |why: String| (Bytes(0), Some(why));
    let Some(page_size) = machine::live_page_size() else { return none("the page size is unknown".into()) };
    let pmd = machine::pmd_size(&Reader::new(root), page_size);
    let in_huge_blocks = count_huge_block_bytes(root, page_size, pmd);
    let first = requested.0.min(in_huge_blocks).next_multiple_of(pmd.0.max(1));
    let (bytes_max, limit_name) = free_memory_headroom(root);
    let size = first.min(bytes_max) / pmd.0.max(1) * pmd.0;
    let shortfall_reason = (size < first).then(|| limit_name.to_owned());
    if size == 0 {
        return (Bytes(0), shortfall_reason);
    }
    let _oom_score = OomScoreGuard::new();
    let mut memory = match Mapping::anonymous(Bytes(size), pmd) {
        Ok(memory) => memory,
        Err(error) => return none(format!("cannot map memory: {error}")),
    };
    // Where huge pages are off, base pages are cut from the same blocks once smaller ones are used up.
    let _ = memory.advise(0..size, Advice::HugePage);
    let mut offset = 0;
    while offset < size {
        let end = (offset + BATCH_BYTES).min(size);
        if stop() {
            return (Bytes(offset), Some("stopped".to_owned()));
        }
        // Other programs may allocate memory meanwhile.
        if free_memory_headroom(root).0 < end - offset {
            return (Bytes(offset), Some(limit_name.to_owned()));
        }
        if let Err(error) = memory.touch_for_writing(offset..end) {
            return (Bytes(offset), Some(format!("cannot allocate memory: {error}")));
        }
        offset = end;
    }
    (Bytes(size), shortfall_reason)
}

/// Bytes that are free in blocks of a huge page and more.
fn count_huge_block_bytes(root: &Root, page_size: PageSize, pmd: Bytes) -> u64 {
    let order = page_size.pmd_order(Some(pmd));
    count_free_pages_from(root, order).saturating_mul(page_size.bytes())
}

/// Bytes that are free in smaller blocks.
fn count_small_block_bytes(root: &Root) -> Bytes {
    let Some(page_size) = machine::live_page_size() else { return Bytes(0) };
    let whole = count_huge_block_bytes(root, page_size, machine::pmd_size(&Reader::new(root), page_size));
    Bytes(count_free_pages_from(root, Order(0)).saturating_mul(page_size.bytes()).saturating_sub(whole))
}

/// Base pages that are free in blocks of at least this order.
fn count_free_pages_from(root: &Root, order: Order) -> u64 {
    let info = root.read(paths::BUDDYINFO).ok().and_then(|text| buddyinfo::parse(&text).ok());
    let zones = info.map(|info| info.zones).unwrap_or_default();
    let pages = zones.iter().map(|zone| zone.areas.free_pages_from_order(order)).sum::<u128>();
    u64::try_from(pages).unwrap_or(u64::MAX)
}

/// Remaining amount and its bound: free memory less the reserve, so that nothing is reclaimed, and the limit
/// of this process's control group.
fn free_memory_headroom(root: &Root) -> (u64, &'static str) {
    let reader = Reader::new(root);
    let Ok(info) = reader.parse(paths::MEMINFO, meminfo::parse) else {
        return (0, "cannot read meminfo");
    };
    let bytes = |name: &str| info.bytes(name).unwrap_or(Bytes(0));
    let free = Reserve::from_total_memory(bytes("MemTotal")).headroom(bytes("MemFree")).0;
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let cgroup_headroom = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
    match cgroup_headroom {
        Some(Bytes(group)) if group < free => (group, "more would reach the cgroup limit"),
        _ => (free, "more would exceed the reserve"),
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
        assert_eq!(count_free_pages_from(&root, Order(9)), 2 * 512 + 1024);
        assert_eq!(
            count_free_pages_from(&root, Order(0)) - count_free_pages_from(&root, Order(9)),
            3 + 2 + 256
        );
        let page_bytes = 4 << 10;
        assert_eq!(
            count_huge_block_bytes(&root, PageSize::DEFAULT, Bytes(2 << 20)),
            (2 * 512 + 1024) * page_bytes
        );
    }

    #[test]
    fn what_is_warmed_is_given_back_and_what_cannot_be_is_told() {
        let root = Root::live();
        let wanted = Bytes(32 << 20);
        let found = warm_host_memory(&root, wanted, &|| false);
        assert_eq!(found.requested, wanted);
        assert!(found.warmed <= wanted, "{found:?}");
        assert!(found.warmed.0 == 0 || found.cpu_ns > 0, "{found:?}");
        let stopped = warm_host_memory(&root, wanted, &|| true);
        assert_eq!(stopped.warmed, Bytes(0), "{stopped:?}");
        // More than any machine has: the reserve is reported as the bound, or no whole block was free.
        let (most, _) = free_memory_headroom(&root);
        let all = touch_free_memory(&root, Bytes(u64::MAX / 4), &|| true);
        assert!(all.1.is_some() || most == 0, "{all:?}");
    }
}
