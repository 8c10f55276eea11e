//! Tests of huge pages in shared memory and in a hugetlb pool, for which the machine must be set up.

use std::process::{Command, Stdio};

use pagelab_experiment::probe::ProbeSelection;
use pagelab_host::guard::Knob;
use pagelab_host::paths;
use pagelab_model::Bytes;

use crate::child::pmd;
use crate::trial::{OwnCgroup, group, run};

/// A program that is not ours maps `count` huge pages with these flags of mmap, advises, writes, holds, and
/// sums up a field of its own smaps.
fn python(count: u64, flags: &str, advise: bool, fields: &str) -> Vec<String> {
    let bytes = count * pmd();
    let advise = if advise { "m.madvise(mmap.MADV_HUGEPAGE)" } else { "pass" };
    let script = format!(
        r#"
import mmap, sys
m = mmap.mmap(-1, {bytes}, flags={flags})
{advise}
for at in range(0, {bytes}, mmap.PAGESIZE):
    m[at] = 1
print("child: ready", flush=True)
sys.stdin.read()
kib = sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith({fields}))
print("child: huge", kib << 10, file=sys.stderr)
"#
    );
    ["python3", "-c", &script].map(str::to_owned).to_vec()
}

/// A group on a machine that is ours, and a program to run in it.
fn own_cgroup(label: &str) -> Option<OwnCgroup> {
    let own = group(label)?;
    let python3 = Command::new("python3").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !python3.is_ok_and(|status| status.success()) {
        println!("skipped: python3-absent: another program maps the memory");
        return None;
    }
    Some(own)
}

#[test]
fn probes_count_shared_memory_on_huge_pages() {
    let Some(own) = own_cgroup("shmem") else { return };
    let shmem_enabled = Knob::from_path(&format!("{}/shmem_enabled", paths::THP)).unwrap();
    if let Err(error) = own.guard.set_knob(&shmem_enabled, "advise") {
        println!("skipped: not-writable: {error}");
        return;
    }
    let program = python(8, "mmap.MAP_SHARED | mmap.MAP_ANONYMOUS", true, "\"ShmemPmdMapped:\"");
    let outcome = run(&program, &ProbeSelection::from_names(["huge"]).unwrap(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    let child_bytes = outcome.child_value("huge");
    if child_bytes == 0.0 {
        println!("skipped: thp-absent: no huge page was allocated for shared memory");
        return;
    }
    // The last scan may find a program that has already freed its memory.
    assert_eq!(outcome.value("huge.shmem"), child_bytes);
    assert_eq!((outcome.value("huge.anon"), outcome.value("huge.all")), (0.0, child_bytes));
}

#[test]
fn probes_count_hugetlb_pages() {
    let Some(own) = own_cgroup("pool") else { return };
    let applied = own.guard.set_knob(&Knob::hugetlb(Bytes(pmd()), None), "3");
    if !applied.as_ref().is_ok_and(|applied| applied.actual == "3") {
        println!("skipped: not-writable: {applied:?}");
        return;
    }
    let flags = "mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000";
    let program = python(3, flags, false, "(\"Private_Hugetlb:\", \"Shared_Hugetlb:\")");
    let outcome = run(&program, &ProbeSelection::from_names(["huge"]).unwrap(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    assert_eq!(outcome.child_value("huge"), (3 * pmd()) as f64);
    for name in ["huge.hugetlb", "huge.all"] {
        assert_eq!(outcome.value(name), outcome.child_value("huge"), "{name}");
    }
    assert_eq!(outcome.value("huge.zero"), 0.0, "a page of the pool is not the zero page");
}
