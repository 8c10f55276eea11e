//! Instruments that are files: page flags, debugfs, memory blocks, DAMON, slabs, pressure, the log.

use pagelab_model::instruments::Instrument;
use pagelab_model::settings::SwapArea;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::calls::unmounted;
use super::{Seen, file, instrument, not_built};
use crate::extfrag::mount_point;
use crate::kernel_log::is_extract;
use crate::paths;
use crate::reader::Reader;

/// Memory blocks whose state is read; a file each.
const BLOCKS_MAX: usize = 1024;

pub(super) fn all(reader: &Reader<'_>, seen: &Seen<'_>) -> Vec<Instrument> {
    let open = |path: &str| reader.root().stream(path).map(drop);
    let in_debugfs = |name: &str| match debugfs_path(reader, seen) {
        Ok(debugfs) => open(&format!("{debugfs}/{name}")),
        Err(absence) => Err(absence),
    };
    vec![
        instrument(
            "kpageflags",
            "what each page frame holds",
            file(first_bytes(reader, paths::KPAGEFLAGS), "readable", "CONFIG_PROC_PAGE_MONITOR"),
        ),
        instrument("debugfs", "the kernel's own tables", debugfs(reader, seen)),
        instrument(
            "extfrag",
            "the kernel's own fragmentation indices",
            file(in_debugfs("extfrag/unusable_index"), "readable", "CONFIG_COMPACTION"),
        ),
        instrument("page_owner", "who allocated each page", page_owner(in_debugfs("page_owner"))),
        instrument("memory_hotplug", "switching memory off", memory_hotplug(reader, seen)),
        instrument("damon", "which memory is in use, sampled", damon(reader)),
        instrument(
            "idle_page_tracking",
            "which pages were not touched",
            file(open(paths::PAGE_IDLE_BITMAP), "readable", "CONFIG_IDLE_PAGE_TRACKING"),
        ),
        instrument("allocinfo", "which code allocated kernel memory", allocinfo(reader)),
        instrument(
            "slabinfo",
            "which slab caches hold memory",
            file(open(paths::SLABINFO), "readable", "CONFIG_SLUB_DEBUG or CONFIG_SLABINFO"),
        ),
        instrument(
            "pagetypeinfo",
            "free blocks by migratetype; dear on a fragmented machine",
            file(open(paths::PAGETYPEINFO), "readable", "CONFIG_PROC_FS"),
        ),
        instrument("psi", "time that programs wait for memory", psi(seen)),
        instrument("cgroup_memory", "memory of a group of programs, and limits", cgroup_memory(seen)),
        instrument("kernel_log", "past allocation failures", kernel_log(reader, seen)),
        instrument("swap", "paging out memory of programs", swap(seen.swap)),
    ]
}

/// Opens a file and reads its first entry: some files open for everybody and refuse the read.
fn first_bytes(reader: &Reader<'_>, path: &str) -> Reading<()> {
    let mut entry = [0u8; 8];
    let mut stream = reader.root().stream(path)?;
    match std::io::Read::read(&mut stream, &mut entry) {
        Ok(_) => Ok(()),
        Err(error) => Err(reader.root().absence(path, &error)),
    }
}

/// Where debugfs is, or why nothing in it can be read.
fn debugfs_path(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    match mount_point(seen.mounts, "debugfs") {
        Some(debugfs) => Ok(debugfs.to_owned()),
        None if reader.root().is_live() => {
            Err(unmounted(reader, "debugfs", paths::DEBUGFS, "CONFIG_DEBUG_FS"))
        }
        None => Ok(paths::DEBUGFS.to_owned()),
    }
}

fn debugfs(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    let path = debugfs_path(reader, seen)?;
    reader.root().list(&path).map(|_| format!("mounted at {path}"))
}

/// The kernel makes the file only if it keeps track since boot (mm/page_owner.c, `pageowner_init`).
fn page_owner(state: Reading<()>) -> Reading<String> {
    match state {
        Ok(()) => Ok("readable".to_owned()),
        Err(absence) if absence.why == AbsentWhy::NotThere && absence.detail.is_empty() => {
            let detail = "this kernel does not keep track of who owns pages";
            Err(Absence::new(absence.source, AbsentWhy::NotThere, detail)
                .or("boot with page_owner=on, on a kernel with CONFIG_PAGE_OWNER=y"))
        }
        Err(absence) => Err(absence),
    }
}

fn memory_hotplug(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    let names = match reader.root().list(paths::MEMORY_BLOCKS) {
        Ok(names) => names,
        Err(absence) if absence.why == AbsentWhy::NotThere => {
            return Err(not_built(paths::MEMORY_BLOCKS, "CONFIG_MEMORY_HOTPLUG"));
        }
        Err(absence) => return Err(absence),
    };
    let is_block = |name: &&String| {
        name.strip_prefix("memory").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let blocks: Vec<&String> = names.iter().filter(is_block).collect();
    let looked_at = &blocks[..blocks.len().min(BLOCKS_MAX)];
    let count = |file: &str, wanted: &str| {
        let path = |name: &str| format!("{}/{name}/{file}", paths::MEMORY_BLOCKS);
        looked_at.iter().filter(|name| reader.line(&path(name)).is_ok_and(|text| text == wanted)).count()
    };
    if blocks.is_empty() {
        return Err(Absence::new(paths::MEMORY_BLOCKS, AbsentWhy::NotThere, "no memory block is listed"));
    }
    if count("removable", "1") == 0 && reader.root().is_live() {
        let detail = "memory can be added but not taken away: CONFIG_MEMORY_HOTREMOVE is not set";
        return Err(Absence::new(paths::MEMORY_BLOCKS, AbsentWhy::NotThere, detail)
            .or("boot a kernel built with CONFIG_MEMORY_HOTREMOVE=y"));
    }
    let size = match seen.memory_block {
        Ok(bytes) => format!(" of {} MiB", bytes.0 >> 20),
        Err(_) => String::new(),
    };
    let first =
        if looked_at.len() < blocks.len() { format!("the first {BLOCKS_MAX}: ") } else { String::new() };
    let online = count("state", "online");
    Ok(format!("{} memory blocks{size}; {first}{online} online", blocks.len()))
}

fn damon(reader: &Reader<'_>) -> Reading<String> {
    let listed = reader.root().list(paths::DAMON_ADMIN).map(drop);
    file(listed, "", "CONFIG_DAMON_SYSFS")?;
    let operations = format!("{}/0/contexts/0/avail_operations", paths::DAMON_KDAMONDS);
    if let Ok(operations) = reader.line(&operations) {
        return Ok(operations.split_whitespace().collect::<Vec<_>>().join(", "));
    }
    // The number of workers is for root alone; without it nothing can be set up.
    match reader.root().read(&format!("{}/nr_kdamonds", paths::DAMON_KDAMONDS)) {
        Err(absence) if absence.why == AbsentWhy::NotPermitted => Err(absence),
        _ => Ok("in sysfs; it names its operations (vaddr, paddr) once a worker is set up".to_owned()),
    }
}

fn allocinfo(reader: &Reader<'_>) -> Reading<String> {
    let state = reader.root().stream(paths::ALLOCINFO).map(drop);
    file(state, "readable", "CONFIG_MEM_ALLOC_PROFILING")?;
    match reader.line(paths::MEM_PROFILING) {
        Ok(value) if value == "0" => {
            let detail = "allocation profiling is built in and switched off";
            Err(Absence::new(paths::ALLOCINFO, AbsentWhy::NotThere, detail)
                .or("boot with sysctl.vm.mem_profiling=1, or sysctl vm.mem_profiling=1"))
        }
        _ => Ok("readable".to_owned()),
    }
}

fn psi(seen: &Seen<'_>) -> Reading<String> {
    match seen.pressure {
        Ok(_) => Ok("readable".to_owned()),
        // EOPNOTSUPP is what a kernel booted with psi=0 answers to a read.
        Err(absence) if matches!(absence.why, AbsentWhy::NotThere | AbsentWhy::Failed) => {
            let detail = "this kernel does not measure pressure stalls";
            Err(Absence::new(&absence.source, AbsentWhy::NotThere, detail)
                .or("boot with psi=1, on a kernel with CONFIG_PSI=y"))
        }
        Err(absence) => Err(absence.clone()),
    }
}

fn cgroup_memory(seen: &Seen<'_>) -> Reading<String> {
    use pagelab_model::machine::CgroupVersion;
    let group = seen.cgroup.as_ref().map_err(Clone::clone)?;
    let version = match group.version {
        CgroupVersion::V1 => "version 1",
        CgroupVersion::V2 => "version 2",
        CgroupVersion::Hybrid => "version 1 beside version 2",
    };
    Ok(match group.memory_limit {
        Some(limit) => format!("{version}, limit {} MiB", limit.0 >> 20),
        None => format!("{version}, no limit"),
    })
}

fn kernel_log(reader: &Reader<'_>, seen: &Seen<'_>) -> Reading<String> {
    let log = seen.kernel_log.as_ref().map_err(Clone::clone)?;
    let said = match (log.log_overwritten, reader.root().is_live()) {
        _ if is_extract(reader) => "readable; an extract, the reports of failed allocations",
        (false, _) => "readable from boot",
        (true, true) => "readable; its beginning is already overwritten",
        // Somebody may have saved the end alone.
        (true, false) => "readable; not from the beginning",
    };
    Ok(said.to_owned())
}

fn swap(areas: &Reading<Vec<SwapArea>>) -> Reading<String> {
    let areas = areas.as_ref().map_err(Clone::clone)?;
    if areas.is_empty() {
        let detail = "no swap area is in use: idle memory of programs stays where it is";
        return Err(Absence::new(paths::SWAPS, AbsentWhy::NotThere, detail)
            .or("swapon a swap file, a partition or a zram device, if that is wanted"));
    }
    let size = areas.iter().fold(0u64, |sum, area| sum.saturating_add(area.size.0));
    Ok(format!("{} swap areas, {} MiB", areas.len(), size >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use pagelab_model::snapshot::AllocFailures;

    fn check(absence: Absence, why: AbsentWhy, reason: &str, way_out: &str) {
        let said = (absence.why, absence.reason(), absence.way_out.as_deref().unwrap_or_default());
        assert_eq!(said, (why, reason, way_out));
    }

    fn not_there(source: &str) -> Absence {
        Absence::new(source, AbsentWhy::NotThere, "")
    }

    /// All instruments of a saved tree that holds `files`.
    fn of(files: &[(&str, &str)]) -> Vec<Instrument> {
        let tree = Tree::new(files);
        let root = tree.root();
        let reader = Reader::new(&root);
        let gone = || not_there("x");
        let seen = Seen {
            mounts: &Err(gone()),
            swap: &Ok(Vec::new()),
            kernel_log: &Ok(AllocFailures { log_overwritten: true, ..AllocFailures::default() }),
            cgroup: &Err(gone()),
            pressure: &Err(gone()),
            memory_block: &Ok(pagelab_model::Bytes(128 << 20)),
        };
        super::super::read(&reader, &seen)
    }

    fn state(instruments: &[Instrument], name: &str) -> Reading<String> {
        instruments.iter().find(|i| i.name == name).map(|i| i.state.clone()).unwrap()
    }

    #[test]
    fn no_swap_is_a_state_and_not_a_fault() {
        check(
            swap(&Ok(Vec::new())).unwrap_err(),
            AbsentWhy::NotThere,
            "no swap area is in use: idle memory of programs stays where it is",
            "swapon a swap file, a partition or a zram device, if that is wanted",
        );
    }

    #[test]
    fn page_owner_that_is_off_names_the_boot_parameter() {
        check(
            page_owner(Err(not_there("/debug/page_owner"))).unwrap_err(),
            AbsentWhy::NotThere,
            "this kernel does not keep track of who owns pages",
            "boot with page_owner=on, on a kernel with CONFIG_PAGE_OWNER=y",
        );
        let unmounted = Absence::new("/d", AbsentWhy::NotThere, "debugfs is not mounted");
        assert_eq!(page_owner(Err(unmounted)).unwrap_err().reason(), "debugfs is not mounted");
    }

    #[test]
    fn files_that_this_kernel_lacks_name_their_option() {
        let state = |config: &str| file(Err(not_there("/f")), "", config).unwrap_err();
        check(
            state("CONFIG_IDLE_PAGE_TRACKING"),
            AbsentWhy::NotThere,
            "this kernel is built without CONFIG_IDLE_PAGE_TRACKING",
            "boot a kernel built with CONFIG_IDLE_PAGE_TRACKING=y",
        );
        let unmounted = Absence::new("/f", AbsentWhy::NotThere, "debugfs is not mounted").or("mount it");
        check(
            file(Err(unmounted), "", "CONFIG_COMPACTION").unwrap_err(),
            AbsentWhy::NotThere,
            "debugfs is not mounted",
            "mount it",
        );
        let refused = Absence::new("/f", AbsentWhy::NotPermitted, "").or("run as root");
        check(
            file(Err(refused), "", "CONFIG_X").unwrap_err(),
            AbsentWhy::NotPermitted,
            "permission denied",
            "run as root",
        );
    }

    #[test]
    fn no_psi_names_the_boot_parameter() {
        check(
            state(&of(&[]), "psi").unwrap_err(),
            AbsentWhy::NotThere,
            "this kernel does not measure pressure stalls",
            "boot with psi=1, on a kernel with CONFIG_PSI=y",
        );
    }

    #[test]
    fn allocation_profiling_that_is_off_names_the_setting() {
        let off = [("/proc/allocinfo", ""), ("/proc/sys/vm/mem_profiling", "0\n")];
        check(
            state(&of(&off), "allocinfo").unwrap_err(),
            AbsentWhy::NotThere,
            "allocation profiling is built in and switched off",
            "boot with sysctl.vm.mem_profiling=1, or sysctl vm.mem_profiling=1",
        );
        assert_eq!(state(&of(&off[..1]), "allocinfo").unwrap(), "readable");
    }

    #[test]
    fn a_saved_tree_shows_what_it_holds_and_owns_up_to_the_rest() {
        let instruments = of(&[
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
        assert_eq!(works("kernel_log"), "readable; not from the beginning");
        for name in ["hardware_counters", "madvise_collapse", "pagemap_pfns", "kvm", "kprobes", "tracepoints"]
        {
            check(
                state(&instruments, name).unwrap_err(),
                AbsentWhy::NotSaved,
                "only the running machine can say",
                "run pagelab on the machine itself",
            );
        }
        assert_eq!(state(&instruments, "slabinfo").unwrap_err().why, AbsentWhy::NotSaved);
    }
}
