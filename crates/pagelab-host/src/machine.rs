//! Description of the machine: processor, caches, kernel, virtualisation, containers, limits.

use pagelab_formats::mountinfo::Mount;
use pagelab_formats::{cpu_list, cpuinfo, iomem, setting, size, smaps};
use pagelab_model::machine::{Cache, Cpu, CpuidLeaf, DirectMap, Hypervisor, RamRange};
use pagelab_model::{Absence, AbsenceReason, Bytes, Counters, Machine, Meminfo, NodeId, PageSize, Reading};

use crate::reader::Reader;
use crate::{cgroup, page_reporting, paths};

/// Facts that the caller provides instead of the files.
#[derive(Clone, Debug, Default)]
pub struct MachineOverrides {
    /// The base page size and how it was learnt, from a manifest or an argument.
    pub page_size: Option<(PageSize, String)>,
    /// The hypervisor and where its name is from, such as CPUID.
    pub hypervisor: Option<Hypervisor>,
}

/// Maximum number of processes searched for the page size of a saved tree.
const PROCESSES_FOR_PAGE_SIZE: usize = 16;
/// Maximum of caches read per processor.
const CACHES_MAX: usize = 32;

/// Reads everything but the TLBs, which take more than files.
pub fn read(
    reader: &Reader<'_>,
    overrides: &MachineOverrides,
    mounts: &Reading<Vec<Mount>>,
    meminfo: &Reading<Meminfo>,
    vmstat: &Reading<Counters>,
) -> Machine {
    let cpu = reader.parse(paths::CPUINFO, cpuinfo::parse);
    let kernel_version = reader.read_line(paths::KERNEL_VERSION);
    let kernel_release = read_release(reader).or_else(|absence| {
        let release = kernel_version.as_ref().ok().and_then(|line| line.split(' ').nth(2));
        release.map(str::to_owned).ok_or(absence)
    });
    let (page_size, page_size_source) = page_size(reader, overrides);
    Machine {
        host_name: reader.read_line(paths::HOSTNAME).ok().filter(|name| !name.is_empty()),
        kernel_release,
        kernel_version,
        kernel_cmdline: reader.read_line(paths::KERNEL_CMDLINE),
        architecture: read_architecture(reader),
        page_size,
        page_size_source,
        caches: read_caches(reader),
        tlb: Err(Absence::new("CPUID", AbsenceReason::NotRequested, "")),
        nodes: read_nodes(reader),
        hypervisor: detect_hypervisor(reader, overrides, &cpu),
        direct_map: read_direct_map(reader, meminfo, vmstat),
        cgroup: cgroup::read(reader, mounts),
        container_signs: detect_container_signs(reader, mounts),
        memory_block: reader
            .parse(&format!("{}/block_size_bytes", paths::MEMORY_BLOCKS), size::parse_hexadecimal),
        ram: read_ram_ranges(reader),
        page_reporting: page_reporting::read(reader, page_size),
        cpu,
    }
}

/// The kernel's release, which is never empty.
fn read_release(reader: &Reader<'_>) -> Reading<String> {
    let release = reader.read_line(paths::OSRELEASE)?;
    if release.is_empty() {
        let empty = reader.root().malformed_absence(paths::OSRELEASE, "it is empty");
        return reader.note_malformed(Err(empty));
    }
    Ok(release)
}

fn read_architecture(reader: &Reader<'_>) -> Reading<String> {
    reader.read_line(paths::ARCH).or_else(|absence| match reader.root().is_live() {
        true => Ok(rustix::system::uname().machine().to_string_lossy().into_owned()),
        false => Err(absence),
    })
}

/// The size of a huge page of PMD size (`hpage_pmd_size`, 4.10); `None` if the setting is absent or odd.
pub fn reported_pmd_size(reader: &Reader<'_>) -> Option<Bytes> {
    reader.read_line(paths::THP_PMD_SIZE).ok().and_then(|line| line.parse().ok()).map(Bytes)
}

/// The same; if the kernel does not report it, the size that the architecture has with this base page.
pub fn pmd_size(reader: &Reader<'_>, page_size: PageSize) -> Bytes {
    page_size.block_bytes(page_size.pmd_order(reported_pmd_size(reader)))
}

/// The base page size of the running kernel.
pub fn live_page_size() -> Option<PageSize> {
    PageSize::new(rustix::param::page_size() as u64)
}

/// The base page size: that of a live kernel; for a saved tree the given one, else the smallest page of any
/// saved mapping, else a guess.
pub(crate) fn page_size(reader: &Reader<'_>, overrides: &MachineOverrides) -> (PageSize, String) {
    if let Some((page_size, source)) = &overrides.page_size {
        return (*page_size, source.clone());
    }
    let (page_size, source) = match reader.root().is_live() {
        true => live_page_size().map_or((PageSize::DEFAULT, "assumed"), |size| (size, "sysconf")),
        false => saved_page_size(reader).unwrap_or_else(|| guess_page_size(reader)),
    };
    (page_size, source.to_owned())
}

/// Base page size according to the mappings of a saved tree, with the name of the source.
pub fn saved_page_size(reader: &Reader<'_>) -> Option<(PageSize, &'static str)> {
    let pids = reader.root().list_processes().unwrap_or_default().into_iter().take(PROCESSES_FOR_PAGE_SIZE);
    let mut files = std::iter::once(paths::SELF_SMAPS.to_owned())
        .chain(pids.map(|pid| paths::process_file(pid, "smaps")));
    files.find_map(|file| {
        let mappings = reader.parse(&file, smaps::parse).ok()?;
        let pages = mappings.iter().filter_map(|mapping| mapping.fields_kib.get("KernelPageSize"));
        let size = pages.min().and_then(|kib| PageSize::new(Bytes::from_kib(kib).0))?;
        Some((size, "smaps KernelPageSize"))
    })
}

/// The base page size of a saved tree that does not say: that with which a PMD entry maps what the tree
/// calls a huge page, else the usual one. Only a guess, since powerpc has other PMD sizes.
pub fn guess_page_size(reader: &Reader<'_>) -> (PageSize, &'static str) {
    let sizes = (10..=30).filter_map(|shift| PageSize::new(1 << shift));
    let pmd_size = reported_pmd_size(reader);
    let maps = |pmd_size| {
        sizes.into_iter().find(|size| size.order_for_size(pmd_size) == Some(size.default_pmd_order()))
    };
    match pmd_size.and_then(maps) {
        Some(size) => (size, "assumed from hpage_pmd_size; see --page-size"),
        None => (PageSize::DEFAULT, "assumed"),
    }
}

fn read_nodes(reader: &Reader<'_>) -> Reading<Vec<NodeId>> {
    let nodes = reader.parse(paths::NODE_ONLINE, cpu_list::parse)?;
    Ok(nodes.into_iter().map(NodeId).collect())
}

/// Caches of the first processor that is online, the data cache of a level before its instruction cache.
fn read_caches(reader: &Reader<'_>) -> Reading<Vec<Cache>> {
    let online = reader.parse(paths::CPU_ONLINE, cpu_list::parse).unwrap_or_default();
    let dir = format!("{}/cpu{}/cache", paths::CPUS, online.first().copied().unwrap_or(0));
    let names = reader.root().list_dir(&dir)?;
    let mut caches: Vec<Cache> = names
        .iter()
        .filter(|name| name.starts_with("index"))
        .take(CACHES_MAX)
        .filter_map(|name| read_cache(reader, &format!("{dir}/{name}")))
        .collect();
    caches.sort_by_key(|cache| (cache.level, cache.kind == "Instruction"));
    if caches.is_empty() {
        let source = reader.root().display_path(&dir);
        return Err(Absence::new(source, AbsenceReason::NotThere, "it lists no caches"));
    }
    Ok(caches)
}

/// One cache; a cache without level or size is skipped, as some VMs have them.
fn read_cache(reader: &Reader<'_>, dir: &str) -> Option<Cache> {
    let number = |file: &str| {
        let value = reader.parse(&format!("{dir}/{file}"), setting::parse_u64).ok()?;
        u32::try_from(value).ok().filter(|&value| value > 0)
    };
    let line = |file: &str| reader.read_line(&format!("{dir}/{file}")).ok();
    Some(Cache {
        level: number("level")?,
        kind: line("type")?,
        size: reader.parse(&format!("{dir}/size"), size::parse_cache_size).ok().filter(|size| size.0 > 0)?,
        ways: number("ways_of_associativity"),
        line: number("coherency_line_size").map(|bytes| Bytes(u64::from(bytes))),
        shared_cpus: line("shared_cpu_list").unwrap_or_default(),
    })
}

/// Words in the maker's or product's name that only a virtual machine has.
const VIRTUAL_PRODUCTS: [(&str, &str); 12] = [
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("innotek", "VirtualBox"),
    ("Xen", "Xen"),
    ("HVM domU", "Xen"),
    ("Bochs", "Bochs"),
    ("Parallels", "Parallels"),
    ("Virtual Machine", "Hyper-V"),
    ("OpenStack", "OpenStack"),
    ("Apple Virtualization", "Apple Virtualization"),
];

/// Whether the machine is virtual. The caller passes a name from CPUID; without one, files are read.
fn detect_hypervisor(
    reader: &Reader<'_>,
    overrides: &MachineOverrides,
    cpu: &Reading<Cpu>,
) -> Reading<Hypervisor> {
    if let Some(known) = &overrides.hypervisor {
        return Ok(known.clone());
    }
    let present = |name: &str, source: &str| {
        Ok(Hypervisor::Present { name: name.to_owned(), source: source.to_owned() })
    };
    if let Ok(name) = reader.read_line(paths::HYPERVISOR_TYPE) {
        return present(&name, paths::HYPERVISOR_TYPE);
    }
    if let Ok(names) = reader.root().read(paths::DT_HYPERVISOR) {
        // A device tree lists names from the most to the least specific, each with a zero byte behind it.
        let name = names.split(|&byte| byte == 0).next().unwrap_or_default();
        return present(&String::from_utf8_lossy(name), paths::DT_HYPERVISOR);
    }
    let has_flag = cpu.as_ref().is_ok_and(|cpu| cpu.flags.iter().any(|flag| flag == "hypervisor"));
    for path in [paths::DMI_PRODUCT, paths::DMI_VENDOR] {
        let Ok(text) = reader.read_line(path) else { continue };
        if let Some((_, name)) = VIRTUAL_PRODUCTS.iter().find(|(word, _)| text.contains(word)) {
            return present(name, path);
        }
        // Cloud providers sell the same product with and without a hypervisor.
        if has_flag && (text.contains("Amazon EC2") || text.contains("Google")) {
            return present(&text, path);
        }
    }
    match cpu {
        _ if has_flag => present("", "the flag `hypervisor` of cpuinfo"),
        Ok(_) => Ok(Hypervisor::None),
        Err(absence) => Err(absence.clone()),
    }
}

/// x86 alone counts its direct map in these sizes (arch/x86/mm/pat/set_memory.c); splits since 5.13.
fn read_direct_map(
    reader: &Reader<'_>,
    meminfo: &Reading<Meminfo>,
    vmstat: &Reading<Counters>,
) -> Reading<DirectMap> {
    let meminfo = meminfo.as_ref().map_err(Clone::clone)?;
    let Some(base) = meminfo.bytes("DirectMap4k") else {
        let source = format!("{}, DirectMap4k", reader.root().display_path(paths::MEMINFO));
        return Err(Absence::new(source, AbsenceReason::NotThere, "not reported on this architecture"));
    };
    let sum = |names: [&str; 2]| {
        Bytes(names.iter().filter_map(|name| meminfo.bytes(name)).fold(0, |sum, b| sum.saturating_add(b.0)))
    };
    let splits = |name: &str| vmstat.as_ref().ok().and_then(|vmstat| vmstat.get(name));
    Ok(DirectMap {
        base,
        pmd: sum(["DirectMap2M", "DirectMap4M"]),
        pud: sum(["DirectMap1G", "DirectMap2G"]),
        pmd_splits: splits("direct_map_level2_splits"),
        pud_splits: splits("direct_map_level3_splits"),
    })
}

fn read_ram_ranges(reader: &Reader<'_>) -> Reading<Vec<RamRange>> {
    let iomem = reader.parse(paths::IOMEM, iomem::parse)?;
    let source = reader.root().display_path(paths::IOMEM);
    if iomem.is_hidden() {
        let detail = "the kernel hides physical addresses from unprivileged users";
        return Err(Absence::new(source, AbsenceReason::NotPermitted, detail).with_hint("run as root"));
    }
    let ranges: Vec<RamRange> = iomem.system_ram().map(|(start, last)| RamRange { start, last }).collect();
    match ranges.is_empty() {
        true => Err(Absence::new(source, AbsenceReason::NotThere, "it lists no `System RAM`")),
        false => Ok(ranges),
    }
}

/// Signs that this process is in a container. Each may have another cause; none is proof.
fn detect_container_signs(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>) -> Vec<String> {
    let mut signs = Vec::new();
    for marker in [paths::DOCKERENV, paths::CONTAINERENV] {
        if reader.root().read(marker).is_ok() {
            signs.push(format!("{marker} exists"));
        }
    }
    if let Ok(name) = reader.read_line(paths::SYSTEMD_CONTAINER) {
        signs.push(format!("{} contains {name}", paths::SYSTEMD_CONTAINER));
    }
    if let Ok(groups) = reader.read_line(paths::SELF_CGROUP) {
        let words = ["docker", "kubepods", "libpod", "lxc", "containerd", "crio"];
        if let Some(word) = words.iter().find(|word| groups.contains(*word)) {
            signs.push(format!("the cgroup path contains {word}"));
        }
    }
    let root_mount = mounts.iter().flatten().rfind(|mount| mount.mount_point == "/");
    if root_mount.is_some_and(|mount| mount.fs_type == "overlay") {
        signs.push("the root file system is an overlay".to_owned());
    }
    // The first namespace maps all 2^32 − 1 ids to themselves.
    if let Ok(map) = reader.read_line(paths::SELF_UID_MAP)
        && map.split_whitespace().ne(["0", "0", "4294967295"])
    {
        signs.push("user ids are mapped by a user namespace".to_owned());
    }
    signs
}

/// First leaf of the hypervisor range; its registers contain a signature of 12 characters.
const SIGNATURE_LEAF: u32 = 0x4000_0000;

/// Signatures and common names; other signatures are shown unchanged.
const SIGNATURE_NAMES: [(&str, &str); 6] = [
    ("KVMKVMKVM", "KVM"),
    ("Microsoft Hv", "Hyper-V"),
    ("VMwareVMware", "VMware"),
    ("XenVMMXenVMM", "Xen"),
    ("TCGTCGTCGTCG", "QEMU TCG"),
    ("bhyve bhyve ", "bhyve"),
];

/// Returns the hypervisor, if CPUID has a signature.
pub fn from_cpuid(leaves: &[CpuidLeaf]) -> Option<Hypervisor> {
    let leaf = leaves.iter().find(|leaf| leaf.leaf == SIGNATURE_LEAF)?;
    let letters = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat();
    let signature: String = String::from_utf8_lossy(&letters).trim_end_matches('\0').to_owned();
    if signature.trim().is_empty() {
        return None;
    }
    let known = SIGNATURE_NAMES.iter().find(|(letters, _)| *letters == signature);
    let name = known.map_or(signature, |(_, name)| (*name).to_owned());
    Some(Hypervisor::Present { name, source: "CPUID leaf 0x40000000".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    fn read_fake(files: &[(&str, &str)], known: &MachineOverrides) -> Machine {
        FakeTree::read_with(files, |reader, mounts| {
            let meminfo = reader.parse(paths::MEMINFO, pagelab_formats::meminfo::parse);
            let vmstat = reader.parse(paths::VMSTAT, pagelab_formats::vmstat::parse);
            let machine = read(reader, known, mounts, &meminfo, &vmstat);
            assert_eq!(reader.problems(), []);
            machine
        })
    }

    fn plain(files: &[(&str, &str)]) -> Machine {
        read_fake(files, &MachineOverrides::default())
    }

    #[test]
    fn a_whole_machine() {
        let cache = "/sys/devices/system/cpu/cpu2/cache/index1";
        let code = "/sys/devices/system/cpu/cpu2/cache/index0";
        let machine = plain(&[
            ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: X\nflags\t\t: pse\n"),
            ("/proc/version", "Linux version 6.1.0-x (a@b) #1\n"),
            ("/proc/meminfo", "MemTotal: 8 kB\nDirectMap4k: 4 kB\nDirectMap2M: 2048 kB\n"),
            ("/proc/vmstat", "nr_free_pages 1\ndirect_map_level2_splits 3\n"),
            ("/proc/iomem", "00001000-00001fff : System RAM\n"),
            ("/sys/devices/system/node/online", "0,2-3\n"),
            ("/sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("/sys/devices/system/cpu/online", "2-3\n"),
            (&format!("{cache}/level"), "1\n"),
            (&format!("{cache}/type"), "Data\n"),
            (&format!("{cache}/size"), "48K\n"),
            (&format!("{code}/level"), "1\n"),
            (&format!("{code}/type"), "Instruction\n"),
            (&format!("{code}/size"), "32K\n"),
            (&format!("{cache}/shared_cpu_list"), "2\n"),
            ("/sys/devices/system/cpu/cpu2/cache/index0/level", "1\n"),
        ]);
        assert_eq!(machine.kernel_release.unwrap(), "6.1.0-x");
        assert_eq!(machine.nodes.unwrap(), [NodeId(0), NodeId(2), NodeId(3)]);
        assert_eq!(machine.memory_block, Ok(Bytes(128 << 20)));
        let map = machine.direct_map.unwrap();
        assert_eq!((map.base, map.pmd, map.pud), (Bytes(4 << 10), Bytes(2 << 20), Bytes(0)));
        assert_eq!((map.pmd_splits, map.pud_splits), (Some(3), None));
        assert_eq!(machine.ram.unwrap(), [RamRange { start: 0x1000, last: 0x1fff }]);
        let caches = machine.caches.unwrap();
        let seen: Vec<_> = caches.iter().map(|cache| (cache.kind.as_str(), cache.size)).collect();
        assert_eq!(seen, [("Data", Bytes(48 << 10)), ("Instruction", Bytes(32 << 10))]);
        assert_eq!(caches[0].ways, None);
        assert_eq!(machine.hypervisor, Ok(Hypervisor::None));
        assert_eq!(machine.tlb.unwrap_err().why, AbsenceReason::NotRequested);
        assert_eq!(machine.container_signs, [""; 0]);
    }

    #[test]
    fn the_page_size_is_known_or_read_or_assumed_aloud() {
        let smaps = "00400000-00410000 r-xp 00000000 00:00 0 \nSize: 64 kB\nKernelPageSize: 64 kB\n";
        let known = MachineOverrides {
            page_size: PageSize::new(16 << 10).map(|s| (s, "manifest".to_owned())),
            ..MachineOverrides::default()
        };
        let pmd = ("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "536870912\n");
        let odd = ("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "12345\n");
        let cases: [(Machine, u64, &str); 5] = [
            (plain(&[]), 4 << 10, "assumed"),
            (plain(&[pmd]), 64 << 10, "assumed from hpage_pmd_size; see --page-size"),
            (plain(&[odd]), 4 << 10, "assumed"),
            (plain(&[("/proc/7/smaps", smaps)]), 64 << 10, "smaps KernelPageSize"),
            (read_fake(&[("/proc/7/smaps", smaps)], &known), 16 << 10, "manifest"),
        ];
        for (machine, bytes, source) in cases {
            assert_eq!((machine.page_size.bytes(), machine.page_size_source.as_str()), (bytes, source));
        }
    }

    #[test]
    fn hypervisors_are_named_by_the_best_source() {
        let cpu = ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: X\nflags\t\t: hypervisor\n");
        let bare = ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: X\nflags\t\t: pse\n");
        let vendor = |name: &'static str| ("/sys/class/dmi/id/sys_vendor", name);
        let name = |files: &[(&str, &str)]| match plain(files).hypervisor {
            Ok(Hypervisor::Present { name, .. }) => Some(name),
            Ok(Hypervisor::None) => None,
            Err(absence) => Some(absence.reason().to_owned()),
        };
        assert_eq!(name(&[cpu]).as_deref(), Some(""));
        assert_eq!(name(&[cpu, vendor("QEMU\n")]).as_deref(), Some("QEMU"));
        assert_eq!(name(&[cpu, vendor("Amazon EC2\n")]).as_deref(), Some("Amazon EC2"));
        assert_eq!(name(&[bare, vendor("Amazon EC2\n")]), None);
        assert_eq!(name(&[bare, ("/sys/hypervisor/type", "xen\n")]).as_deref(), Some("xen"));
        let tree = ("/proc/device-tree/hypervisor/compatible", "linux,kvm\0simple\0");
        assert_eq!(name(&[bare, tree]).as_deref(), Some("linux,kvm"));
        assert_eq!(name(&[]).as_deref(), Some("not in the saved tree"));
    }

    #[test]
    fn hidden_addresses_are_a_matter_of_permission() {
        let absence = plain(&[("/proc/iomem", "00000000-00000000 : System RAM\n")]).ram.unwrap_err();
        assert_eq!(absence.why, AbsenceReason::NotPermitted);
        assert_eq!(absence.hint.as_deref(), Some("run as root"));
    }

    #[test]
    fn signs_of_a_container() {
        let machine = plain(&[
            ("/.dockerenv", ""),
            ("/proc/self/cgroup", "0::/system.slice/docker-abc.scope\n"),
            ("/proc/self/mountinfo", "1 0 0:1 / / rw - overlay overlay rw\n"),
            ("/proc/self/uid_map", "0 100000 65536\n"),
            ("/run/systemd/container", "podman\n"),
        ]);
        assert_eq!(
            machine.container_signs,
            [
                "/.dockerenv exists",
                "/run/systemd/container contains podman",
                "the cgroup path contains docker",
                "the root file system is an overlay",
                "user ids are mapped by a user namespace",
            ]
        );
        assert_eq!(plain(&[("/proc/self/uid_map", " 0 0 4294967295\n")]).container_signs, [""; 0]);
    }

    #[test]
    fn signatures_become_names_and_unknown_ones_stay() {
        let of = |text: &[u8; 12]| {
            let register =
                |at: usize| u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
            let (ebx, ecx, edx) = (register(0), register(4), register(8));
            from_cpuid(&[CpuidLeaf { leaf: SIGNATURE_LEAF, sub_leaf: 0, eax: 0, ebx, ecx, edx }])
        };
        let name = |text| match of(text) {
            Some(Hypervisor::Present { name, .. }) => Some(name),
            _ => None,
        };
        assert_eq!(name(b"KVMKVMKVM\0\0\0").as_deref(), Some("KVM"));
        assert_eq!(name(b"SomethingNew").as_deref(), Some("SomethingNew"));
        assert_eq!(name(&[0; 12]), None);
        assert_eq!(from_cpuid(&[]), None);
    }
}
