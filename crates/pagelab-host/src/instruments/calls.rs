//! Instruments that are system calls: perf events, madvise, PAGEMAP_SCAN, hardware virtualisation.

use std::io;
use std::os::unix::fs::FileExt;

use pagelab_model::instruments::Instrument;
use pagelab_model::{Absence, AbsentWhy, Reading};
use pagelab_sys::perf::{Event, try_event};
use pagelab_sys::{pagemap_scan, presence};
use rustix::fs::Access;
use rustix::io::Errno;

use super::{Seen, instrument, live_only, not_built};
use crate::extfrag::mount_point;
use crate::paths;
use crate::reader::Reader;
use crate::tracepoints::Tracefs;

const PERF: &str = "perf_event_open";

pub(super) fn all(reader: &Reader<'_>, seen: &Seen<'_>) -> Vec<Instrument> {
    let live = reader.root().is_live();
    let asked = |source: &str, ask: &dyn Fn() -> Reading<String>| match live {
        true => ask(),
        false => Err(live_only(source)),
    };
    vec![
        instrument(
            "hardware_counters",
            "cycles and TLB misses of programs",
            asked(PERF, &|| hardware_counters(reader)),
        ),
        instrument(
            "software_events",
            "page faults and migrations of programs",
            asked(PERF, &|| software_events(reader)),
        ),
        instrument("tracepoints", "each allocation and each fallback", tracepoints(reader, seen)),
        instrument("kprobes", "any function of the kernel", kprobes(reader, seen)),
        instrument(
            "madvise_collapse",
            "asking for huge pages in place",
            asked("madvise", &|| known(presence::madvise_collapse(), "MADV_COLLAPSE", "6.1")),
        ),
        instrument(
            "process_madvise",
            "asking for huge pages in another program",
            asked("process_madvise", &|| known(presence::process_madvise(), "process_madvise", "5.10")),
        ),
        instrument(
            "pagemap_scan",
            "reading back huge pages of a mapping",
            asked(paths::SELF_PAGEMAP, &|| pagemap_scan_known(reader)),
        ),
        instrument(
            "pagemap_pfns",
            "which frames a program has",
            asked(paths::SELF_PAGEMAP, &|| pagemap_pfns(reader)),
        ),
        instrument("kvm", "guests at native speed", asked(paths::KVM, &kvm)),
    ]
}

fn hardware_counters(reader: &Reader<'_>) -> Reading<String> {
    match try_event(Event::Cycles) {
        Ok(0) => Err(Absence::new(PERF, AbsentWhy::NotThere, "the cycle counter opens and stays at 0")
            .or("use a machine or VM type whose hypervisor passes the counters on")),
        Ok(_) if try_event(Event::DtlbLoadMisses).is_ok() => Ok("cycles and data-TLB misses".to_owned()),
        Ok(_) => Ok("cycles; this processor has no generic event for data-TLB misses".to_owned()),
        Err(error) => Err(perf_refused(&error, paranoid(reader).as_deref())),
    }
}

fn software_events(reader: &Reader<'_>) -> Reading<String> {
    match try_event(Event::PageFaults) {
        Ok(_) => Ok("page faults".to_owned()),
        Err(error) => Err(perf_refused(&error, paranoid(reader).as_deref())),
    }
}

fn paranoid(reader: &Reader<'_>) -> Option<String> {
    reader.line(paths::PERF_EVENT_PARANOID).ok()
}

/// The kernel's refusal of a perf event in words.
fn perf_refused(error: &io::Error, paranoid: Option<&str>) -> Absence {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => Absence::new(
            PERF,
            AbsentWhy::NotThere,
            "no PMU: the processor's counters are not passed to this VM",
        )
        .or("use a bare-metal machine, or a VM with a virtual PMU"),
        Some(Errno::ACCESS | Errno::PERM) => {
            let level = paranoid.unwrap_or("unknown");
            let detail = format!("not permitted (kernel.perf_event_paranoid is {level})");
            Absence::new(PERF, AbsentWhy::NotPermitted, detail)
                .or("run as root, or sysctl kernel.perf_event_paranoid=2")
        }
        Some(Errno::NOSYS) => not_built(PERF, "CONFIG_PERF_EVENTS"),
        _ => Absence::new(PERF, AbsentWhy::Failed, error.to_string()),
    }
}

/// Where tracefs is. Kernels before 4.1 have it inside debugfs; a later one would mount it there on the
/// first look (kernel/trace/trace.c, `trace_automount`), so it is not looked for.
fn tracefs(reader: &Reader<'_>, seen: &Seen<'_>) -> Option<String> {
    if let Some(tracefs) = mount_point(seen.mounts, "tracefs") {
        return Some(tracefs.to_owned());
    }
    let debugfs = mount_point(seen.mounts, "debugfs")?;
    let inside = !has_filesystem(reader, "tracefs").ok()?;
    inside.then(|| format!("{debugfs}/tracing"))
}

/// Whether this kernel has a type of file system.
fn has_filesystem(reader: &Reader<'_>, fs_type: &str) -> Reading<bool> {
    let list = reader.line(paths::FILESYSTEMS)?;
    Ok(list.split_whitespace().any(|word| word == fs_type))
}

/// A tracepoint that every kernel has which has any of memory management.
const EXTFRAG_ID: &str = "events/kmem/mm_page_alloc_extfrag/id";

fn tracepoints(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    let Some(tracefs) = tracefs(reader, seen) else {
        if !reader.root().is_live() {
            return Err(live_only(paths::TRACEFS));
        }
        // It is read without being mounted.
        return Tracefs::find(reader)?
            .read(EXTFRAG_ID)
            .map(|_| "kmem events; tracefs is not mounted, and need not be".to_owned());
    };
    let event = format!("{tracefs}/{EXTFRAG_ID}");
    match reader.root().read(&event) {
        Ok(_) => Ok(format!("kmem events in {tracefs}")),
        Err(absence) if absence.why == AbsentWhy::NotThere => Err(not_built(&event, "CONFIG_EVENT_TRACING")),
        Err(absence) => Err(absence),
    }
}

/// Why a file system of the kernel is not to be seen: not mounted, or not built.
pub(super) fn unmounted(reader: &Reader<'_>, fs_type: &str, usual: &str, config: &str) -> Absence {
    match has_filesystem(reader, fs_type) {
        Ok(false) => not_built(usual, config),
        _ => Absence::new(usual, AbsentWhy::NotThere, format!("{fs_type} is not mounted"))
            .or(format!("mount -t {fs_type} none {usual}, as root")),
    }
}

fn kprobes(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    let root = reader.root();
    if let Some(tracefs) = tracefs(reader, seen)
        && root.stream(&format!("{tracefs}/kprobe_events")).is_ok()
    {
        return Ok(format!("{tracefs}/kprobe_events"));
    }
    if !root.is_live() {
        return Err(live_only(paths::KPROBES_PMU));
    }
    kprobes_by_perf(reader, rustix::process::geteuid().is_root())
}

/// Without tracefs the kernel shows kprobes as a source of perf events (4.17 and later).
fn kprobes_by_perf(reader: &Reader<'_>, privileged: bool) -> Reading<String> {
    let there = |path: &str| reader.root().read(path).is_ok();
    if !there(paths::KPROBES_PMU) && !there(paths::KPROBES_SYSCTL) {
        return Err(not_built(paths::KPROBES_PMU, "CONFIG_KPROBES"));
    }
    match privileged {
        true => Ok("through perf events".to_owned()),
        false => {
            let detail = "setting a probe takes CAP_SYS_ADMIN or CAP_PERFMON";
            Err(Absence::new(paths::KPROBES_PMU, AbsentWhy::NotPermitted, detail).or("run as root"))
        }
    }
}

/// A call that this kernel either knows or does not.
fn known(answer: io::Result<()>, call: &str, since: &str) -> Reading<String> {
    let error = match answer {
        Ok(()) => return Ok(format!("{call} is known")),
        Err(error) => error,
    };
    Err(match Errno::from_io_error(&error) {
        Some(Errno::INVAL | Errno::NOSYS | Errno::NOTTY) => {
            Absence::new(call, AbsentWhy::NotThere, format!("this kernel does not know {call}"))
                .or(format!("boot Linux {since} or later with CONFIG_TRANSPARENT_HUGEPAGE=y"))
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            Absence::new(call, AbsentWhy::NotPermitted, "a seccomp filter refuses the call")
                .or("run outside the sandbox or container that filters it")
        }
        _ => Absence::new(call, AbsentWhy::Failed, error.to_string()),
    })
}

fn pagemap_scan_known(reader: &Reader<'_>) -> Reading<String> {
    let pagemap = reader.root().file(paths::SELF_PAGEMAP)?;
    known(pagemap_scan::is_known(&pagemap), "PAGEMAP_SCAN", "6.7")
}

/// Reads the entry of a page that is certainly there: one of our own stack. Without CAP_SYS_ADMIN the
/// kernel shows the frame number 0 (4.2 and later).
fn pagemap_pfns(reader: &Reader<'_>) -> Reading<String> {
    /// Bits 0 to 54 are the frame number, bit 63 says that the page is present.
    const FRAME: u64 = (1 << 55) - 1;
    const PRESENT: u64 = 1 << 63;
    let pagemap = reader.root().file(paths::SELF_PAGEMAP)?;
    let on_stack = std::hint::black_box(1u64);
    let page = std::ptr::from_ref(&on_stack).addr() as u64 / rustix::param::page_size() as u64;
    let mut entry = [0u8; 8];
    pagemap
        .read_exact_at(&mut entry, page * 8)
        .map_err(|error| reader.root().absence(paths::SELF_PAGEMAP, &error))?;
    let entry = u64::from_ne_bytes(entry);
    if entry & PRESENT != 0 && entry & FRAME != 0 {
        return Ok("frame numbers are shown".to_owned());
    }
    let detail = "frame numbers are hidden without CAP_SYS_ADMIN";
    Err(Absence::new(paths::SELF_PAGEMAP, AbsentWhy::NotPermitted, detail).or("run as root"))
}

fn kvm() -> Reading<String> {
    kvm_state(rustix::fs::access(paths::KVM, Access::READ_OK | Access::WRITE_OK))
}

/// Existence and permission only: in some nested VMs the device is there and a guest hangs.
fn kvm_state(access: rustix::io::Result<()>) -> Reading<String> {
    match access {
        Ok(()) => Ok(format!("{} is there, not tried", paths::KVM)),
        Err(Errno::NOENT) => {
            let detail = "no hardware virtualisation here: switched off, or a VM without nesting";
            Err(Absence::new(paths::KVM, AbsentWhy::NotThere, detail)
                .or("guests run by emulation instead, more slowly"))
        }
        Err(Errno::ACCESS | Errno::PERM) => {
            Err(Absence::new(paths::KVM, AbsentWhy::NotPermitted, "permission denied")
                .or("run as root, or join the group kvm"))
        }
        Err(error) => Err(Absence::new(paths::KVM, AbsentWhy::Failed, io::Error::from(error).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    fn words(absence: Absence) -> (AbsentWhy, String, String) {
        (absence.why, absence.reason().to_owned(), absence.way_out.unwrap_or_default())
    }

    fn check(absence: Absence, why: AbsentWhy, reason: &str, way_out: &str) {
        assert_eq!(words(absence), (why, reason.to_owned(), way_out.to_owned()));
    }

    #[test]
    fn no_hardware_pmu_is_normal_in_a_vm() {
        for errno in [Errno::NOENT, Errno::OPNOTSUPP] {
            check(
                perf_refused(&errno.into(), Some("2")),
                AbsentWhy::NotThere,
                "no PMU: the processor's counters are not passed to this VM",
                "use a bare-metal machine, or a VM with a virtual PMU",
            );
        }
    }

    #[test]
    fn perf_that_is_forbidden_names_the_setting() {
        check(
            perf_refused(&Errno::ACCESS.into(), Some("4")),
            AbsentWhy::NotPermitted,
            "not permitted (kernel.perf_event_paranoid is 4)",
            "run as root, or sysctl kernel.perf_event_paranoid=2",
        );
    }

    #[test]
    fn perf_that_is_not_built_names_the_option() {
        check(
            perf_refused(&Errno::NOSYS.into(), None),
            AbsentWhy::NotThere,
            "this kernel is built without CONFIG_PERF_EVENTS",
            "boot a kernel built with CONFIG_PERF_EVENTS=y",
        );
    }

    #[test]
    fn no_kprobes_names_the_option() {
        let tree = Tree::new(&[("/x", "")]);
        let root = tree.root();
        check(
            kprobes_by_perf(&Reader::new(&root), true).unwrap_err(),
            AbsentWhy::NotThere,
            "this kernel is built without CONFIG_KPROBES",
            "boot a kernel built with CONFIG_KPROBES=y",
        );
    }

    #[test]
    fn kprobes_that_are_there_take_privilege() {
        let tree = Tree::new(&[(paths::KPROBES_PMU, "8\n")]);
        let root = tree.root();
        let reader = Reader::new(&root);
        assert_eq!(kprobes_by_perf(&reader, true).unwrap(), "through perf events");
        check(
            kprobes_by_perf(&reader, false).unwrap_err(),
            AbsentWhy::NotPermitted,
            "setting a probe takes CAP_SYS_ADMIN or CAP_PERFMON",
            "run as root",
        );
    }

    #[test]
    fn debugfs_not_mounted_or_not_built() {
        let with = |list: &str| {
            let tree = Tree::new(&[("/proc/filesystems", list)]);
            let root = tree.root();
            unmounted(&Reader::new(&root), "debugfs", paths::DEBUGFS, "CONFIG_DEBUG_FS")
        };
        check(
            with("nodev\tdebugfs\n\text4\n"),
            AbsentWhy::NotThere,
            "debugfs is not mounted",
            "mount -t debugfs none /sys/kernel/debug, as root",
        );
        check(
            with("\text4\n"),
            AbsentWhy::NotThere,
            "this kernel is built without CONFIG_DEBUG_FS",
            "boot a kernel built with CONFIG_DEBUG_FS=y",
        );
    }

    #[test]
    fn a_look_into_debugfs_must_not_mount_tracefs_there() {
        let place = |filesystems: &str, mounts: &str| {
            let tree = Tree::new(&[("/proc/filesystems", filesystems)]);
            let root = tree.root();
            let gone = || Absence::new("x", AbsentWhy::NotThere, "");
            let seen = Seen {
                mounts: &Ok(pagelab_formats::mountinfo::parse(mounts.as_bytes()).unwrap()),
                swap: &Err(gone()),
                kernel_log: &Err(gone()),
                cgroup: &Err(gone()),
                pressure: &Err(gone()),
                memory_block: &Err(gone()),
            };
            tracefs(&Reader::new(&root), &seen)
        };
        let debugfs = "1 1 0:7 / /d rw - debugfs none rw\n";
        let both = format!("{debugfs}2 1 0:8 / /t rw - tracefs none rw\n");
        assert_eq!(place("nodev\ttracefs\n", debugfs), None);
        assert_eq!(place("nodev\tdebugfs\n", debugfs).as_deref(), Some("/d/tracing"));
        assert_eq!(place("nodev\ttracefs\n", &both).as_deref(), Some("/t"));
    }

    #[test]
    fn calls_of_later_kernels_name_the_release() {
        check(
            known(Err(Errno::INVAL.into()), "MADV_COLLAPSE", "6.1").unwrap_err(),
            AbsentWhy::NotThere,
            "this kernel does not know MADV_COLLAPSE",
            "boot Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE=y",
        );
        check(
            known(Err(Errno::PERM.into()), "process_madvise", "5.10").unwrap_err(),
            AbsentWhy::NotPermitted,
            "a seccomp filter refuses the call",
            "run outside the sandbox or container that filters it",
        );
    }

    #[test]
    fn kvm_is_looked_at_and_never_opened() {
        check(
            kvm_state(Err(Errno::NOENT)).unwrap_err(),
            AbsentWhy::NotThere,
            "no hardware virtualisation here: switched off, or a VM without nesting",
            "guests run by emulation instead, more slowly",
        );
        check(
            kvm_state(Err(Errno::ACCESS)).unwrap_err(),
            AbsentWhy::NotPermitted,
            "permission denied",
            "run as root, or join the group kvm",
        );
        assert_eq!(kvm_state(Ok(())).unwrap(), "/dev/kvm is there, not tried");
    }
}
