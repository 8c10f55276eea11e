//! The machine: processor, caches, TLBs, kernel, virtualisation, limits.

use crate::{Absence, Bytes, NodeId, Order, PageSize, Reading};

use serde::{Deserialize, Serialize};

/// Description of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name; `None` in a tree saved without it.
    pub host_name: Option<String>,
    /// Kernel release (`uname -r`).
    pub kernel_release: Reading<String>,
    /// The full `/proc/version` line.
    pub kernel_version: Reading<String>,
    /// The kernel's command line.
    pub kernel_cmdline: Reading<String>,
    /// Architecture, as in `uname -m`.
    pub architecture: Reading<String>,
    /// Base page size.
    pub page_size: PageSize,
    /// Source of the page size: `sysconf`, `smaps KernelPageSize`, `manifest`, `--page-size`, `assumed`.
    pub page_size_source: String,
    /// The processor.
    pub cpu: Reading<Cpu>,
    /// Caches of the first online processor, by level.
    pub caches: Reading<Vec<Cache>>,
    /// TLB geometry.
    pub tlb: Reading<Tlb>,
    /// Online NUMA nodes.
    pub nodes: Reading<Vec<NodeId>>,
    /// Whether the machine is virtual, and its hypervisor.
    pub hypervisor: Reading<Hypervisor>,
    /// The kernel's direct map, if the kernel reports it (x86).
    pub direct_map: Reading<DirectMap>,
    /// Control groups.
    pub cgroup: Reading<Cgroup>,
    /// Indications that this process is in a container; empty if there are none.
    pub container_signs: Vec<String>,
    /// Size of a memory block, the unit of hotplug.
    pub memory_block: Reading<Bytes>,
    /// Ranges of physical addresses with memory behind them, ascending (`/proc/iomem`).
    pub ram: Reading<Vec<RamRange>>,
    /// Reporting of free memory to the hypervisor, if any.
    #[serde(default)]
    pub page_reporting: Option<PageReporting>,
}

/// Free page reporting: the guest reports free blocks to the hypervisor, which takes their memory back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageReporting {
    /// Free blocks of this order and larger are reported.
    pub order: Option<Order>,
    /// The order on the kernel's command line, if the kernel did not accept it.
    #[serde(alias = "asked")]
    pub requested_order: Option<i64>,
    /// The device that receives the reports: a virtio balloon by its name, or `hv_balloon`.
    pub device: Option<String>,
    /// Free memory that is reported and was not used since; `None` if kpageflags was not readable.
    pub reported: Option<Bytes>,
}

impl Machine {
    /// A machine of which unknown yet but its page size.
    pub fn new_unread(page_size: PageSize) -> Machine {
        Machine {
            host_name: None,
            kernel_release: Err(Absence::not_read()),
            kernel_version: Err(Absence::not_read()),
            kernel_cmdline: Err(Absence::not_read()),
            architecture: Err(Absence::not_read()),
            page_size,
            page_size_source: "assumed".to_owned(),
            cpu: Err(Absence::not_read()),
            caches: Err(Absence::not_read()),
            tlb: Err(Absence::not_read()),
            nodes: Err(Absence::not_read()),
            hypervisor: Err(Absence::not_read()),
            direct_map: Err(Absence::not_read()),
            cgroup: Err(Absence::not_read()),
            container_signs: Vec::new(),
            memory_block: Err(Absence::not_read()),
            ram: Err(Absence::not_read()),
            page_reporting: None,
        }
    }
}

/// Range of physical addresses of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamRange {
    /// First address.
    pub start: u64,
    /// Last address, inclusive: the range may end at the end of the address space.
    pub last: u64,
}

/// The processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The marketing name.
    pub model_name: String,
    /// `GenuineIntel`, `AuthenticAMD` …; empty if cpuinfo does not have it.
    pub vendor: String,
    /// Family, for the table of TLBs.
    pub family: Option<u32>,
    /// Model number.
    pub model: Option<u32>,
    /// Stepping.
    pub stepping: Option<u32>,
    /// Logical processors that are online.
    pub threads: u32,
    /// Physical cores, if cpuinfo reports them.
    pub cores: Option<u32>,
    /// Bits of a physical address.
    pub physical_bits: Option<u32>,
    /// Bits of a virtual address.
    pub virtual_bits: Option<u32>,
    /// Clock of the first processor at the time of reading, in kHz, if cpuinfo reports it (`cpu MHz` on x86,
    /// arch/x86/kernel/cpu/proc.c). It varies with load; absent in older run files.
    #[serde(default)]
    pub clock_khz: Option<u64>,
    /// Flags of cpuinfo that matter for huge pages and virtualisation: pse, pdpe1gb, hypervisor …
    pub flags: Vec<String>,
}

/// One cache of CPU 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// Its size.
    pub size: Bytes,
    /// Ways, if known.
    pub ways: Option<u32>,
    /// Bytes in a line.
    pub line: Option<Bytes>,
    /// CPUs that share it, as the kernel lists them.
    pub shared_cpus: String,
}

/// The TLBs of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tlb {
    /// Source of the geometry.
    pub source: TlbSource,
    /// The levels, smallest first.
    pub levels: Vec<TlbLevel>,
}

/// Source of a TLB geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlbSource {
    /// The processor's own CPUID leaves; the leaf is named.
    Cpuid(String),
    /// A built-in table by family and model: assumed, and the row is named.
    Assumed(String),
    /// Given by the user.
    #[serde(alias = "Given")]
    UserSupplied,
}

/// The registers of one CPUID leaf, as the processor gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidLeaf {
    /// EAX before the instruction.
    pub leaf: u32,
    /// ECX before the instruction; 0 if the leaf has no sub-leaves.
    pub sub_leaf: u32,
    /// EAX after.
    pub eax: u32,
    /// EBX after.
    pub ebx: u32,
    /// ECX after.
    pub ecx: u32,
    /// EDX after.
    pub edx: u32,
}

/// One TLB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbLevel {
    /// 1 or 2.
    pub level: u32,
    /// Type of its translations.
    pub holds: TlbContent,
    /// Page sizes that share its entries.
    pub page_sizes: Vec<Bytes>,
    /// Entries.
    pub entries: u32,
    /// Ways; `None` if unknown, equal to `entries` if fully associative.
    pub ways: Option<u32>,
}

/// Type of translations in a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlbContent {
    /// Data translations; of loads only if another TLB of the same level holds [`TlbContent::Stores`].
    Data,
    /// Translations of stores only.
    Stores,
    /// Instruction translations.
    Instruction,
    /// Both.
    Unified,
}

impl Tlb {
    /// Reach in bytes of the data TLBs of the outermost level with pages of `page_size`. TLBs of one level
    /// that hold the same page size add up: Golden Cove's second level has two, one of 4 KiB and 2 MiB, one
    /// of 4 KiB and 1 GiB pages.
    pub fn reach(&self, page_size: Bytes) -> Option<Bytes> {
        let holds_page_size = |tlb: &&TlbLevel| {
            matches!(tlb.holds, TlbContent::Data | TlbContent::Unified) && tlb.page_sizes.contains(&page_size)
        };
        let outermost = self.levels.iter().filter(holds_page_size).map(|tlb| tlb.level).max()?;
        let entries = self.levels.iter().filter(holds_page_size).filter(|tlb| tlb.level == outermost);
        let entries = entries.fold(0u64, |sum, tlb| sum.saturating_add(u64::from(tlb.entries)));
        Some(Bytes(page_size.0.saturating_mul(entries)))
    }
}

/// Virtualisation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hypervisor {
    /// No indication of a virtual machine.
    None,
    /// A virtual machine; the name that CPUID, DMI or sysfs gives, and the source of that name.
    Present {
        /// `KVM`, `VMware`, `Xen` … or empty if only its presence is known.
        name: String,
        /// Source of the name.
        source: String,
    },
}

/// The kernel's direct map of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectMap {
    /// Bytes mapped by 4 KiB entries.
    pub base: Bytes,
    /// Bytes mapped by 2 MiB (or 4 MiB) entries.
    pub pmd: Bytes,
    /// Bytes mapped by 1 GiB entries.
    pub pud: Bytes,
    /// 2 MiB mappings split into 4 KiB since boot.
    pub pmd_splits: Option<u64>,
    /// 1 GiB mappings split into 2 MiB since boot.
    pub pud_splits: Option<u64>,
}

/// Control groups of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// 1, 2, or both hierarchies with memory in version 1 (hybrid).
    pub version: CgroupVersion,
    /// Path of this process in the hierarchy that has the memory controller.
    pub path: String,
    /// Lowest memory limit on the way up; `None` if there is none.
    pub memory_limit: Option<Bytes>,
    /// The group that has this limit, as its path in that hierarchy; absent in older files.
    #[serde(default)]
    pub limit_path: Option<String>,
    /// The file that has this limit, as mounted; absent in older files.
    #[serde(default)]
    pub limit_file: Option<String>,
    /// Memory charged in the group of that limit, if there is one.
    pub memory_used: Option<Bytes>,
    /// Memory that can still be charged until any limit on the way up is reached; `None` without a limit, and
    /// if the use of a limited group is not readable.
    pub memory_room: Option<Bytes>,
}

/// Which control group version has the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupVersion {
    /// Version 1.
    V1,
    /// Version 2.
    V2,
    /// Both are mounted, memory is in version 1.
    Hybrid,
}
