//! Huge pages of shared memory and of a hugetlb pool, which the machine must be set up for.

use std::process::{Command, Stdio};

use pagelab_experiment::probe::Wanted;
use pagelab_host::guard::Knob;
use pagelab_model::Bytes;

use crate::child::pmd;
use crate::trial::{Own, group, run};

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
fn own(label: &str) -> Option<Own> {
    let own = group(label)?;
    let python3 = Command::new("python3").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !python3.is_ok_and(|status| status.success()) {
        println!("skipped: python3-absent: another program maps what is looked at");
        return None;
    }
    Some(own)
}

#[test]
fn shared_memory_in_huge_pages_is_what_the_program_has() {
    let Some(own) = own("shmem") else { return };
    if let Err(error) = own.guard.set(&Knob::thp_shmem_enabled(), "advise") {
        println!("skipped: not-writable: {error}");
        return;
    }
    let program = python(8, "mmap.MAP_SHARED | mmap.MAP_ANONYMOUS", true, "\"ShmemPmdMapped:\"");
    let outcome = run(&program, &Wanted::named(["huge"]).unwrap(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    let told = outcome.told("huge");
    if told == 0.0 {
        println!("skipped: thp-absent: no huge page came for shared memory");
        return;
    }
    // The last look may find a program that has given its memory back already.
    assert_eq!(outcome.value("huge.shmem"), told);
    assert_eq!((outcome.value("huge.anon"), outcome.value("huge.all")), (0.0, told));
}

#[test]
fn pages_of_a_pool_are_what_the_program_has() {
    let Some(own) = own("pool") else { return };
    let applied = own.guard.set(&Knob::hugetlb(Bytes(pmd()), None), "3");
    if !applied.as_ref().is_ok_and(|applied| applied.got == "3") {
        println!("skipped: not-writable: {applied:?}");
        return;
    }
    let flags = "mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000";
    let program = python(3, flags, false, "(\"Private_Hugetlb:\", \"Shared_Hugetlb:\")");
    let outcome = run(&program, &Wanted::named(["huge"]).unwrap(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    assert_eq!(outcome.told("huge"), (3 * pmd()) as f64);
    for name in ["huge.hugetlb", "huge.all"] {
        assert_eq!(outcome.value(name), outcome.told("huge"), "{name}");
    }
    assert_eq!(outcome.value("huge.zero"), 0.0, "a page of the pool is no page of zeros");
}
