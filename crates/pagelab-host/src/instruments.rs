//! Instruments of this machine; for each that is not available, the reason and a hint.
//!
//! Checks change nothing: nothing is mounted, no setting is written. A saved tree has the files that it
//! contains; checks that need a running kernel are absent there.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use pagelab_formats::mountinfo::Mount;
use pagelab_formats::pagemap::PagemapEntry;
use pagelab_model::instruments::Instrument;
use pagelab_model::machine::Cgroup;
use pagelab_model::pressure::Pressure;
use pagelab_model::settings::SwapArea;
use pagelab_model::size::{format_bytes, format_exact};
use pagelab_model::snapshot::AllocFailures;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use pagelab_sys::perf_event::{CYCLES, DTLB_LOAD_MISSES, PAGE_FAULTS, try_event};
use pagelab_sys::{kernel_support, pagemap_scan};
use rustix::fs::Access;
use rustix::io::Errno;

use crate::extfrag::mount_point;
use crate::kernel_log::is_extract;
use crate::paths;
use crate::reader::Reader;
use crate::tracepoints::{Tracefs, find_mount};

/// Existing readings that determine the state of their instruments.
#[derive(Clone, Copy, Debug)]
pub struct InstrumentReadings<'s> {
    /// Mounts of this process.
    pub mounts: &'s Reading<Vec<Mount>>,
    /// Swap areas.
    pub swap: &'s Reading<Vec<SwapArea>>,
    /// The kernel's log.
    pub kernel_log: &'s Reading<AllocFailures>,
    /// The control group.
    pub cgroup: &'s Reading<Cgroup>,
    /// Memory pressure.
    pub pressure: &'s Reading<Pressure>,
    /// Size of a memory block.
    pub memory_block: &'s Reading<Bytes>,
}

/// Checks every instrument.
pub fn read(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Vec<Instrument> {
    let mut instruments = read_syscall_instruments(reader, readings);
    instruments.extend(read_file_instruments(reader, readings));
    instruments
}

fn new_instrument(name: &'static str, purpose: &'static str, state: Reading<String>) -> Instrument {
    Instrument { name: name.into(), purpose: purpose.into(), state }
}

/// An instrument that the kernel was built without.
fn not_built_absence(source: &str, config: &str) -> Absence {
    Absence::new(source, AbsenceReason::NotThere, format!("this kernel is built without {config}"))
        .with_hint(format!("boot a kernel built with {config}=y"))
}

/// An instrument that requires a running kernel, on a saved tree.
fn live_only_absence(source: &str) -> Absence {
    Absence::new(source, AbsenceReason::NotSaved, "only available on the running machine")
        .with_hint("run pagelab on the machine itself")
}

/// The state of an instrument that is a file. A missing file without another reason, such as a file system
/// that is not mounted, means that the kernel does not have it, for the reason that `explain` gives.
fn readable_state(state: Reading<()>, explain: impl FnOnce(&str) -> Absence) -> Reading<String> {
    state.map(|()| "readable".to_owned()).map_err(|absence| {
        let is_unexplained = absence.why == AbsenceReason::NotThere && absence.detail.is_empty();
        if is_unexplained { explain(&absence.source) } else { absence }
    })
}

/// The same of a file that the kernel has if it is built with this option.
fn file_state(state: Reading<()>, config: &str) -> Reading<String> {
    readable_state(state, |source| not_built_absence(source, config))
}

const PERF: &str = "perf_event_open";

fn read_syscall_instruments(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Vec<Instrument> {
    let live = reader.root().is_live();
    let is_known = |source: &str, ask: &dyn Fn() -> Reading<String>| match live {
        true => ask(),
        false => Err(live_only_absence(source)),
    };
    vec![
        new_instrument(
            "hardware_counters",
            "cycles and TLB misses of processes",
            is_known(PERF, &|| hardware_counters(reader)),
        ),
        new_instrument(
            "software_events",
            "page faults and migrations of processes",
            is_known(PERF, &|| software_events(reader)),
        ),
        new_instrument("tracepoints", "each allocation and each fallback", tracepoints(reader, readings)),
        new_instrument("kprobes", "any kernel function", kprobes(reader, readings)),
        new_instrument(
            "madvise_collapse",
            "collapse into huge pages (MADV_COLLAPSE)",
            is_known("madvise", &|| {
                support_state(kernel_support::probe_madvise_collapse(), "MADV_COLLAPSE", "6.1")
            }),
        ),
        new_instrument(
            "process_madvise",
            "collapse in another process (process_madvise)",
            is_known("process_madvise", &|| {
                support_state(kernel_support::probe_process_madvise(), "process_madvise", "5.10")
            }),
        ),
        new_instrument(
            "pagemap_scan",
            "verifying the huge pages of a mapping",
            is_known(paths::SELF_PAGEMAP, &|| probe_pagemap_scan(reader)),
        ),
        new_instrument(
            "pagemap_pfns",
            "physical page frames of a process",
            is_known(paths::SELF_PAGEMAP, &|| pagemap_pfns(reader)),
        ),
        new_instrument("kvm", "guests at native speed", is_known(paths::KVM, &kvm)),
    ]
}

fn hardware_counters(reader: &Reader<'_>) -> Reading<String> {
    match try_event(CYCLES) {
        Ok(0) => Err(Absence::new(PERF, AbsenceReason::NotThere, "the cycle counter opens but stays at 0")
            .with_hint("use a bare-metal machine, or a VM with a virtual PMU")),
        Ok(_) if try_event(DTLB_LOAD_MISSES).is_ok() => Ok("cycles and data-TLB misses".to_owned()),
        Ok(_) => Ok("cycles; this processor has no generic event for data-TLB misses".to_owned()),
        Err(error) => Err(perf_absence(&error, read_paranoid(reader).as_deref())),
    }
}

fn software_events(reader: &Reader<'_>) -> Reading<String> {
    match try_event(PAGE_FAULTS) {
        Ok(_) => Ok("page faults".to_owned()),
        Err(error) => Err(perf_absence(&error, read_paranoid(reader).as_deref())),
    }
}

fn read_paranoid(reader: &Reader<'_>) -> Option<String> {
    reader.read_line(paths::PERF_EVENT_PARANOID).ok()
}

/// The kernel's refusal of a perf event in words.
fn perf_absence(error: &io::Error, paranoid: Option<&str>) -> Absence {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => Absence::new(
            PERF,
            AbsenceReason::NotThere,
            "no PMU: hardware counters are not available in this VM",
        )
        .with_hint("use a bare-metal machine, or a VM with a virtual PMU"),
        Some(Errno::ACCESS | Errno::PERM) => {
            let level = paranoid.unwrap_or("unknown");
            let detail = format!("not permitted (kernel.perf_event_paranoid is {level})");
            Absence::new(PERF, AbsenceReason::NotPermitted, detail)
                .with_hint("run as root, or sysctl kernel.perf_event_paranoid=2")
        }
        Some(Errno::NOSYS) => not_built_absence(PERF, "CONFIG_PERF_EVENTS"),
        _ => Absence::new(PERF, AbsenceReason::Failed, error.to_string()),
    }
}

/// A tracepoint of every kernel with tracepoints of memory management.
const EXTFRAG_ID: &str = "events/kmem/mm_page_alloc_extfrag/id";

fn tracepoints(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    let Some(tracefs) = find_mount(reader, readings.mounts) else {
        if !reader.root().is_live() {
            return Err(live_only_absence(paths::TRACEFS));
        }
        // It is read without a mount.
        return Tracefs::find(reader)?
            .read(EXTFRAG_ID)
            .map(|_| "kmem events; tracefs need not be mounted".to_owned());
    };
    let event = format!("{tracefs}/{EXTFRAG_ID}");
    match reader.root().read(&event) {
        Ok(_) => Ok(format!("kmem events in {tracefs}")),
        Err(absence) if absence.why == AbsenceReason::NotThere => {
            Err(not_built_absence(&event, "CONFIG_EVENT_TRACING"))
        }
        Err(absence) => Err(absence),
    }
}

/// Why debugfs is not available: not mounted, or not built.
fn debugfs_absence(reader: &Reader<'_>) -> Absence {
    let types = reader.read_line(paths::FILESYSTEMS);
    match types.is_ok_and(|types| types.split_whitespace().all(|word| word != "debugfs")) {
        true => not_built_absence(paths::DEBUGFS, "CONFIG_DEBUG_FS"),
        false => Absence::new(paths::DEBUGFS, AbsenceReason::NotThere, "debugfs is not mounted")
            .with_hint(format!("mount -t debugfs none {}, as root", paths::DEBUGFS)),
    }
}

fn kprobes(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    let root = reader.root();
    if let Some(tracefs) = find_mount(reader, readings.mounts)
        && root.open_reader(&format!("{tracefs}/kprobe_events")).is_ok()
    {
        return Ok(format!("{tracefs}/kprobe_events"));
    }
    if !root.is_live() {
        return Err(live_only_absence(paths::KPROBES_PMU));
    }
    kprobes_by_perf(reader, rustix::process::geteuid().is_root())
}

/// Without tracefs the kernel shows kprobes as a source of perf events (4.17 and later).
fn kprobes_by_perf(reader: &Reader<'_>, privileged: bool) -> Reading<String> {
    let there = |path: &str| reader.root().read(path).is_ok();
    if !there(paths::KPROBES_PMU) && !there(paths::KPROBES_SYSCTL) {
        return Err(not_built_absence(paths::KPROBES_PMU, "CONFIG_KPROBES"));
    }
    match privileged {
        true => Ok("through perf events".to_owned()),
        false => {
            let detail = "a probe requires CAP_SYS_ADMIN or CAP_PERFMON";
            Err(Absence::new(paths::KPROBES_PMU, AbsenceReason::NotPermitted, detail)
                .with_hint("run as root"))
        }
    }
}

/// State of a system call that this kernel knows or not.
fn support_state(answer: io::Result<()>, call: &str, since: &str) -> Reading<String> {
    let error = match answer {
        Ok(()) => return Ok(format!("{call} is supported")),
        Err(error) => error,
    };
    Err(match Errno::from_io_error(&error) {
        Some(Errno::INVAL | Errno::NOSYS | Errno::NOTTY) => {
            Absence::new(call, AbsenceReason::NotThere, format!("this kernel does not support {call}"))
                .with_hint(format!("boot Linux {since} or later with CONFIG_TRANSPARENT_HUGEPAGE=y"))
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            Absence::new(call, AbsenceReason::NotPermitted, "a seccomp filter denies the call")
                .with_hint("run outside the sandbox or container")
        }
        _ => Absence::new(call, AbsenceReason::Failed, error.to_string()),
    })
}

fn probe_pagemap_scan(reader: &Reader<'_>) -> Reading<String> {
    let pagemap = reader.root().open_regular_file(paths::SELF_PAGEMAP)?;
    support_state(pagemap_scan::probe_support(&pagemap), "PAGEMAP_SCAN", "6.7")
}

/// Reads the entry of a page that is certainly present: one of the process's stack. Without CAP_SYS_ADMIN the
/// kernel shows the frame number 0 (4.2 and later).
fn pagemap_pfns(reader: &Reader<'_>) -> Reading<String> {
    let pagemap = reader.root().open_regular_file(paths::SELF_PAGEMAP)?;
    let on_stack = std::hint::black_box(1u64);
    let page = std::ptr::from_ref(&on_stack).addr() as u64 / rustix::param::page_size() as u64;
    let mut entry = [0u8; 8];
    pagemap
        .read_exact_at(&mut entry, page * 8)
        .map_err(|error| reader.root().absence(paths::SELF_PAGEMAP, &error))?;
    if PagemapEntry(u64::from_ne_bytes(entry)).pfn().is_some() {
        return Ok("frame numbers are visible".to_owned());
    }
    let detail = "frame numbers are hidden without CAP_SYS_ADMIN";
    Err(Absence::new(paths::SELF_PAGEMAP, AbsenceReason::NotPermitted, detail).with_hint("run as root"))
}

fn kvm() -> Reading<String> {
    kvm_state(rustix::fs::access(paths::KVM, Access::READ_OK | Access::WRITE_OK))
}

/// Existence and permission only: in some nested VMs the device exists and a guest hangs.
fn kvm_state(access: rustix::io::Result<()>) -> Reading<String> {
    match access {
        Ok(()) => Ok(format!("{} exists; no guest was started", paths::KVM)),
        Err(Errno::NOENT) => {
            let detail = "no hardware virtualisation: disabled, or a VM without nesting";
            Err(Absence::new(paths::KVM, AbsenceReason::NotThere, detail)
                .with_hint("expect slower guests: they run under emulation"))
        }
        Err(Errno::ACCESS | Errno::PERM) => {
            Err(Absence::new(paths::KVM, AbsenceReason::NotPermitted, "permission denied")
                .with_hint("run as root, or join the kvm group"))
        }
        Err(error) => {
            Err(Absence::new(paths::KVM, AbsenceReason::Failed, io::Error::from(error).to_string()))
        }
    }
}

/// Memory blocks whose state is read; a file each.
const MEMORY_BLOCKS_MAX: usize = 1024;

fn read_file_instruments(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Vec<Instrument> {
    let open = |path: &str| reader.root().open_reader(path).map(drop);
    let in_debugfs = |name: &str| open(&format!("{}/{name}", debugfs_path(reader, readings)?));
    vec![
        new_instrument(
            "kpageflags",
            "content of each page frame",
            file_state(read_first_entry(reader, paths::KPAGEFLAGS), "CONFIG_PROC_PAGE_MONITOR"),
        ),
        new_instrument("debugfs", "the kernel's own tables", debugfs(reader, readings)),
        new_instrument(
            "extfrag",
            "the kernel's own fragmentation indices",
            file_state(in_debugfs("extfrag/unusable_index"), "CONFIG_COMPACTION"),
        ),
        new_instrument("page_owner", "allocation site of each page", page_owner(in_debugfs("page_owner"))),
        new_instrument("memory_hotplug", "taking memory offline", memory_hotplug(reader, readings)),
        new_instrument("damon", "sampled memory accesses", damon(reader)),
        new_instrument(
            "idle_page_tracking",
            "idle pages",
            file_state(open(paths::PAGE_IDLE_BITMAP), "CONFIG_IDLE_PAGE_TRACKING"),
        ),
        new_instrument("allocinfo", "allocation sites of kernel memory", allocinfo(reader)),
        new_instrument(
            "slabinfo",
            "memory of slab caches",
            file_state(open(paths::SLABINFO), "CONFIG_SLUB_DEBUG or CONFIG_SLABINFO"),
        ),
        new_instrument(
            "pagetypeinfo",
            "free blocks by migratetype; expensive on a fragmented machine",
            file_state(open(paths::PAGETYPEINFO), "CONFIG_PROC_FS"),
        ),
        new_instrument("psi", "time tasks stall for memory", psi(readings)),
        new_instrument("cgroup_memory", "memory and limits of cgroups", cgroup_memory(readings)),
        new_instrument("kernel_log", "past allocation failures", kernel_log(reader, readings)),
        new_instrument("swap", "reclaim of anonymous memory", swap(readings.swap)),
    ]
}

/// Opens a file and reads its first entry: any user can open some files, but not read them.
fn read_first_entry(reader: &Reader<'_>, path: &str) -> Reading<()> {
    let mut entry = [0u8; 8];
    let mut stream = reader.root().open_reader(path)?;
    Read::read(&mut stream, &mut entry).map(drop).map_err(|error| reader.root().absence(path, &error))
}

fn debugfs_path(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    match mount_point(readings.mounts, "debugfs") {
        Some(debugfs) => Ok(debugfs.to_owned()),
        None if reader.root().is_live() => Err(debugfs_absence(reader)),
        None => Ok(paths::DEBUGFS.to_owned()),
    }
}

fn debugfs(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    let path = debugfs_path(reader, readings)?;
    reader.root().list_dir(&path).map(|_| format!("mounted at {path}"))
}

/// The kernel makes the file only if it keeps track since boot (mm/page_owner.c, `pageowner_init`).
fn page_owner(state: Reading<()>) -> Reading<String> {
    readable_state(state, |source| {
        Absence::new(source, AbsenceReason::NotThere, "page_owner is not enabled")
            .with_hint("boot with page_owner=on, on a kernel with CONFIG_PAGE_OWNER=y")
    })
}

fn memory_hotplug(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    let names = reader.root().list_dir(paths::MEMORY_BLOCKS).map_err(|absence| match absence.why {
        AbsenceReason::NotThere => not_built_absence(paths::MEMORY_BLOCKS, "CONFIG_MEMORY_HOTPLUG"),
        _ => absence,
    })?;
    let is_block = |name: &&String| {
        name.strip_prefix("memory").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let blocks: Vec<&String> = names.iter().filter(is_block).collect();
    let checked = &blocks[..blocks.len().min(MEMORY_BLOCKS_MAX)];
    let read_block_file =
        |name: &str, file: &str| reader.read_line(&format!("{}/{name}/{file}", paths::MEMORY_BLOCKS));
    if blocks.is_empty() {
        return Err(Absence::new(paths::MEMORY_BLOCKS, AbsenceReason::NotThere, "no memory block is listed"));
    }
    let is_removable = |name: &&String| read_block_file(name, "removable").is_ok_and(|text| text == "1");
    if reader.root().is_live() && !checked.iter().any(is_removable) {
        let detail = "memory can be added but not removed: CONFIG_MEMORY_HOTREMOVE is not set";
        return Err(Absence::new(paths::MEMORY_BLOCKS, AbsenceReason::NotThere, detail)
            .with_hint("boot a kernel built with CONFIG_MEMORY_HOTREMOVE=y"));
    }
    let size = match readings.memory_block {
        Ok(bytes) => format!(" of {}", format_exact(*bytes)),
        Err(_) => String::new(),
    };
    let first = match checked.len() < blocks.len() {
        true => format!("the first {MEMORY_BLOCKS_MAX}: "),
        false => String::new(),
    };
    let states: Vec<Reading<String>> = checked.iter().map(|name| read_block_file(name, "state")).collect();
    let online = states.iter().filter(|state| state.as_ref().is_ok_and(|state| state == "online")).count();
    let unknown = match states.iter().filter(|state| !is_block_state(state)).count() {
        0 => String::new(),
        unknown => format!(", {unknown} in an unknown state"),
    };
    Ok(format!("{} memory blocks{size}; {first}{online} online{unknown}", blocks.len()))
}

/// Whether a file was read, and has one of the states of a block (drivers/base/memory.c, `state_show`).
fn is_block_state(state: &Reading<String>) -> bool {
    state.as_ref().is_ok_and(|state| ["online", "offline", "going-offline"].contains(&state.as_str()))
}

fn damon(reader: &Reader<'_>) -> Reading<String> {
    let listed = reader.root().list_dir(paths::DAMON_ADMIN).map(drop);
    file_state(listed, "CONFIG_DAMON_SYSFS")?;
    let operations = format!("{}/0/contexts/0/avail_operations", paths::DAMON_KDAMONDS);
    if let Ok(operations) = reader.read_line(&operations) {
        return Ok(operations.split_whitespace().collect::<Vec<_>>().join(", "));
    }
    // Only root may read the number of workers, which every setup needs.
    match reader.root().read(&format!("{}/nr_kdamonds", paths::DAMON_KDAMONDS)) {
        Err(absence) if absence.why == AbsenceReason::NotPermitted => Err(absence),
        _ => Ok("in sysfs; it lists its operations (vaddr, paddr) once a kdamond is set up".to_owned()),
    }
}

fn allocinfo(reader: &Reader<'_>) -> Reading<String> {
    let state = reader.root().open_reader(paths::ALLOCINFO).map(drop);
    let readable = file_state(state, "CONFIG_MEM_ALLOC_PROFILING")?;
    match reader.read_line(paths::MEM_PROFILING) {
        Ok(value) if value == "0" => {
            let detail = "allocation profiling is built in but disabled";
            Err(Absence::new(paths::ALLOCINFO, AbsenceReason::NotThere, detail)
                .with_hint("boot with sysctl.vm.mem_profiling=1, or sysctl vm.mem_profiling=1"))
        }
        _ => Ok(readable),
    }
}

fn psi(readings: &InstrumentReadings<'_>) -> Reading<String> {
    match readings.pressure {
        Ok(_) => Ok("readable".to_owned()),
        // A kernel booted with psi=0 returns EOPNOTSUPP to a read.
        Err(absence) if matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::Failed) => {
            let detail = "this kernel does not measure pressure stalls";
            Err(Absence::new(&absence.source, AbsenceReason::NotThere, detail)
                .with_hint("boot with psi=1, on a kernel with CONFIG_PSI=y"))
        }
        Err(absence) => Err(absence.clone()),
    }
}

fn cgroup_memory(readings: &InstrumentReadings<'_>) -> Reading<String> {
    use pagelab_model::machine::CgroupVersion;
    let group = readings.cgroup.as_ref().map_err(Clone::clone)?;
    let version = match group.version {
        CgroupVersion::V1 => "version 1",
        CgroupVersion::V2 => "version 2",
        CgroupVersion::Hybrid => "version 1 alongside version 2",
    };
    Ok(match group.memory_limit {
        Some(limit) => format!("{version}, limit {}", format_bytes(limit)),
        None => format!("{version}, no limit"),
    })
}

fn kernel_log(reader: &Reader<'_>, readings: &InstrumentReadings<'_>) -> Reading<String> {
    let log = readings.kernel_log.as_ref().map_err(Clone::clone)?;
    let said = match (log.log_overwritten, reader.root().is_live()) {
        _ if is_extract(reader) => "readable; only an extract with allocation failures",
        (false, _) => "readable since boot",
        (true, true) => "readable; its oldest messages are overwritten",
        // Only the end may have been saved.
        (true, false) => "readable; its oldest messages are missing",
    };
    Ok(said.to_owned())
}

fn swap(areas: &Reading<Vec<SwapArea>>) -> Reading<String> {
    let areas = areas.as_ref().map_err(Clone::clone)?;
    if areas.is_empty() {
        let detail = "no swap area: anonymous memory cannot be reclaimed";
        return Err(Absence::new(paths::SWAPS, AbsenceReason::NotThere, detail)
            .with_hint("enable a swap file, a partition or a zram device with swapon, if desired"));
    }
    let size = areas.iter().fold(0u64, |sum, area| sum.saturating_add(area.size.0));
    Ok(format!("{} swap areas, {}", areas.len(), format_bytes(Bytes(size))))
}

#[cfg(test)]
mod tests {
    use pagelab_model::snapshot::AllocFailures;

    use super::*;
    use crate::fake_tree::FakeTree;

    fn words(absence: Absence) -> (AbsenceReason, String, String) {
        (absence.why, absence.reason().to_owned(), absence.hint.unwrap_or_default())
    }

    fn check(absence: Absence, why: AbsenceReason, reason: &str, hint: &str) {
        assert_eq!(words(absence), (why, reason.to_owned(), hint.to_owned()));
    }

    #[test]
    fn no_hardware_pmu_is_normal_in_a_vm() {
        for errno in [Errno::NOENT, Errno::OPNOTSUPP] {
            check(
                perf_absence(&errno.into(), Some("2")),
                AbsenceReason::NotThere,
                "no PMU: hardware counters are not available in this VM",
                "use a bare-metal machine, or a VM with a virtual PMU",
            );
        }
    }

    #[test]
    fn perf_that_is_forbidden_names_the_setting() {
        check(
            perf_absence(&Errno::ACCESS.into(), Some("4")),
            AbsenceReason::NotPermitted,
            "not permitted (kernel.perf_event_paranoid is 4)",
            "run as root, or sysctl kernel.perf_event_paranoid=2",
        );
    }

    #[test]
    fn perf_that_is_not_built_names_the_option() {
        check(
            perf_absence(&Errno::NOSYS.into(), None),
            AbsenceReason::NotThere,
            "this kernel is built without CONFIG_PERF_EVENTS",
            "boot a kernel built with CONFIG_PERF_EVENTS=y",
        );
    }

    #[test]
    fn no_kprobes_names_the_option() {
        let tree = FakeTree::new(&[("/x", "")]);
        let root = tree.root();
        check(
            kprobes_by_perf(&Reader::new(&root), true).unwrap_err(),
            AbsenceReason::NotThere,
            "this kernel is built without CONFIG_KPROBES",
            "boot a kernel built with CONFIG_KPROBES=y",
        );
    }

    #[test]
    fn kprobes_that_are_there_take_privilege() {
        let tree = FakeTree::new(&[(paths::KPROBES_PMU, "8\n")]);
        let root = tree.root();
        let reader = Reader::new(&root);
        assert_eq!(kprobes_by_perf(&reader, true).unwrap(), "through perf events");
        check(
            kprobes_by_perf(&reader, false).unwrap_err(),
            AbsenceReason::NotPermitted,
            "a probe requires CAP_SYS_ADMIN or CAP_PERFMON",
            "run as root",
        );
    }

    #[test]
    fn debugfs_not_mounted_or_not_built() {
        let with = |list: &str| {
            let tree = FakeTree::new(&[("/proc/filesystems", list)]);
            let root = tree.root();
            debugfs_absence(&Reader::new(&root))
        };
        check(
            with("nodev\tdebugfs\n\text4\n"),
            AbsenceReason::NotThere,
            "debugfs is not mounted",
            "mount -t debugfs none /sys/kernel/debug, as root",
        );
        check(
            with("\text4\n"),
            AbsenceReason::NotThere,
            "this kernel is built without CONFIG_DEBUG_FS",
            "boot a kernel built with CONFIG_DEBUG_FS=y",
        );
    }

    #[test]
    fn a_look_into_debugfs_must_not_mount_tracefs_there() {
        let place = |filesystems: &str, mounts: &str| {
            let tree = FakeTree::new(&[("/proc/filesystems", filesystems)]);
            let root = tree.root();
            let mounts = Ok(pagelab_formats::mountinfo::parse(mounts.as_bytes()).unwrap());
            find_mount(&Reader::new(&root), &mounts)
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
            support_state(Err(Errno::INVAL.into()), "MADV_COLLAPSE", "6.1").unwrap_err(),
            AbsenceReason::NotThere,
            "this kernel does not support MADV_COLLAPSE",
            "boot Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE=y",
        );
        check(
            support_state(Err(Errno::PERM.into()), "process_madvise", "5.10").unwrap_err(),
            AbsenceReason::NotPermitted,
            "a seccomp filter denies the call",
            "run outside the sandbox or container",
        );
    }

    #[test]
    fn kvm_is_looked_at_and_never_opened() {
        check(
            kvm_state(Err(Errno::NOENT)).unwrap_err(),
            AbsenceReason::NotThere,
            "no hardware virtualisation: disabled, or a VM without nesting",
            "expect slower guests: they run under emulation",
        );
        check(
            kvm_state(Err(Errno::ACCESS)).unwrap_err(),
            AbsenceReason::NotPermitted,
            "permission denied",
            "run as root, or join the kvm group",
        );
        assert_eq!(kvm_state(Ok(())).unwrap(), "/dev/kvm exists; no guest was started");
    }

    fn not_there(source: &str) -> Absence {
        Absence::new(source, AbsenceReason::NotThere, "")
    }

    /// All instruments of a saved tree that holds `files`.
    fn read_fake(files: &[(&str, &str)]) -> Vec<Instrument> {
        let tree = FakeTree::new(files);
        let root = tree.root();
        let reader = Reader::new(&root);
        let gone = || not_there("x");
        let seen = InstrumentReadings {
            mounts: &Err(gone()),
            swap: &Ok(Vec::new()),
            kernel_log: &Ok(AllocFailures { log_overwritten: true, ..AllocFailures::default() }),
            cgroup: &Err(gone()),
            pressure: &Err(gone()),
            memory_block: &Ok(Bytes(128 << 20)),
        };
        read(&reader, &seen)
    }

    fn state(instruments: &[Instrument], name: &str) -> Reading<String> {
        instruments.iter().find(|i| i.name == name).map(|i| i.state.clone()).unwrap()
    }

    #[test]
    fn no_swap_is_a_state_and_not_a_fault() {
        check(
            swap(&Ok(Vec::new())).unwrap_err(),
            AbsenceReason::NotThere,
            "no swap area: anonymous memory cannot be reclaimed",
            "enable a swap file, a partition or a zram device with swapon, if desired",
        );
    }

    #[test]
    fn page_owner_that_is_off_names_the_boot_parameter() {
        check(
            page_owner(Err(not_there("/debug/page_owner"))).unwrap_err(),
            AbsenceReason::NotThere,
            "page_owner is not enabled",
            "boot with page_owner=on, on a kernel with CONFIG_PAGE_OWNER=y",
        );
        let unmounted = Absence::new("/d", AbsenceReason::NotThere, "debugfs is not mounted");
        assert_eq!(page_owner(Err(unmounted)).unwrap_err().reason(), "debugfs is not mounted");
    }

    #[test]
    fn files_that_this_kernel_lacks_name_their_option() {
        let state = |config: &str| file_state(Err(not_there("/f")), config).unwrap_err();
        check(
            state("CONFIG_IDLE_PAGE_TRACKING"),
            AbsenceReason::NotThere,
            "this kernel is built without CONFIG_IDLE_PAGE_TRACKING",
            "boot a kernel built with CONFIG_IDLE_PAGE_TRACKING=y",
        );
        let unmounted =
            Absence::new("/f", AbsenceReason::NotThere, "debugfs is not mounted").with_hint("mount it");
        check(
            file_state(Err(unmounted), "CONFIG_COMPACTION").unwrap_err(),
            AbsenceReason::NotThere,
            "debugfs is not mounted",
            "mount it",
        );
        let refused = Absence::new("/f", AbsenceReason::NotPermitted, "").with_hint("run as root");
        check(
            file_state(Err(refused), "CONFIG_X").unwrap_err(),
            AbsenceReason::NotPermitted,
            "permission denied",
            "run as root",
        );
    }

    #[test]
    fn no_psi_names_the_boot_parameter() {
        check(
            state(&read_fake(&[]), "psi").unwrap_err(),
            AbsenceReason::NotThere,
            "this kernel does not measure pressure stalls",
            "boot with psi=1, on a kernel with CONFIG_PSI=y",
        );
    }

    #[test]
    fn allocation_profiling_that_is_off_names_the_setting() {
        let off = [("/proc/allocinfo", ""), ("/proc/sys/vm/mem_profiling", "0\n")];
        check(
            state(&read_fake(&off), "allocinfo").unwrap_err(),
            AbsenceReason::NotThere,
            "allocation profiling is built in but disabled",
            "boot with sysctl.vm.mem_profiling=1, or sysctl vm.mem_profiling=1",
        );
        assert_eq!(state(&read_fake(&off[..1]), "allocinfo").unwrap(), "readable");
    }

    #[test]
    fn a_saved_tree_shows_what_it_holds_and_owns_up_to_the_rest() {
        let instruments = read_fake(&[
            ("/proc/kpageflags", "12345678"),
            ("/sys/devices/system/memory/memory0/state", "online\n"),
            ("/sys/devices/system/memory/memory1/state", "offline\n"),
            ("/sys/kernel/debug/extfrag/unusable_index", "x"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/avail_operations", "vaddr\nfvaddr\npaddr\n"),
        ]);
        let works = |name: &str| state(&instruments, name).unwrap();
        assert_eq!(works("kpageflags"), "readable");
        assert_eq!(works("memory_hotplug"), "2 memory blocks of 128 MiB; 1 online");
        assert_eq!(works("extfrag"), "readable");
        assert_eq!(works("damon"), "vaddr, fvaddr, paddr");
        assert_eq!(works("kernel_log"), "readable; its oldest messages are missing");
        for name in ["hardware_counters", "madvise_collapse", "pagemap_pfns", "kvm", "kprobes", "tracepoints"]
        {
            check(
                state(&instruments, name).unwrap_err(),
                AbsenceReason::NotSaved,
                "only available on the running machine",
                "run pagelab on the machine itself",
            );
        }
        assert_eq!(state(&instruments, "slabinfo").unwrap_err().why, AbsenceReason::NotSaved);
    }
}
