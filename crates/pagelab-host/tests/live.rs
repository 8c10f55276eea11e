//! Tests of the parsers on the kernel files of this machine.

use pagelab_formats as formats;
use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;

#[test]
fn the_files_of_the_running_kernel_are_parsed() {
    let root = Root::live();
    let reader = Reader::new(&root);
    let meminfo = reader.parse("/proc/meminfo", formats::meminfo::parse);
    assert!(meminfo.is_ok_and(|info| info.bytes("MemTotal").is_some_and(|bytes| bytes.0 > 0)));
    let vmstat = reader.parse("/proc/vmstat", formats::vmstat::parse);
    assert!(vmstat.is_ok_and(|counters| counters.get("pgfault").is_some_and(|faults| faults > 0)));
    let mappings = reader.parse("/proc/self/smaps", formats::smaps::parse);
    let here = the_files_of_the_running_kernel_are_parsed as fn() as usize as u64;
    if let Ok(mappings) = mappings {
        let code = mappings.iter().find(|of| (of.start..of.end).contains(&here));
        assert!(code.is_some_and(|of| of.permissions.contains('x') && of.inode != 0), "{code:?}");
    }
    // These may be absent or forbidden; a malformed one is a problem below.
    let _ = reader.parse("/proc/self/smaps_rollup", formats::smaps::parse_rollup);
    let _ = reader.parse("/proc/buddyinfo", formats::buddyinfo::parse);
    let _ = reader.parse("/proc/zoneinfo", formats::zoneinfo::parse);
    let _ = reader.parse("/proc/pagetypeinfo", formats::pagetypeinfo::parse);
    let _ = reader.parse("/proc/slabinfo", formats::slabinfo::parse);
    let _ = reader.parse("/proc/allocinfo", formats::allocinfo::parse);
    let _ = reader.parse("/proc/pressure/memory", formats::pressure::parse);
    let _ = reader.parse("/proc/sys/vm/nr_hugepages", formats::setting::parse_u64);
    for file in ["enabled", "defrag", "shmem_enabled"] {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{file}");
        let _ = reader.parse(&path, formats::setting::parse);
    }
    assert_eq!(reader.problems(), []);
}

#[test]
fn the_fast_snapshot_reads_increasing_counters() {
    let mut fast = FastSnapshot::open(&Root::live(), FileSelection::ALL);
    if fast.vmstat().is_err() {
        return;
    }
    let faults = |fast: &FastSnapshot| fast.vmstat().ok().and_then(|all| all.get("pgfault")).unwrap_or(0);
    let before = faults(&fast);
    // Touching fresh memory faults; the kernel folds its per-CPU counters when vmstat is read.
    let touched = std::hint::black_box(vec![1u8; 64 << 20]);
    fast.sample();
    assert!(faults(&fast) > before, "{before}");
    drop(touched);
}
