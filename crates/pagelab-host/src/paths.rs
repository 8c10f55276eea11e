//! Paths of the kernel; no other file contains one. They are resolved under a [`crate::root::Root`].

/// Processors.
pub const CPUINFO: &str = "/proc/cpuinfo";
/// The kernel's command line.
pub const KERNEL_CMDLINE: &str = "/proc/cmdline";
/// The kernel's version line.
pub const KERNEL_VERSION: &str = "/proc/version";
/// The kernel's release.
pub const OSRELEASE: &str = "/proc/sys/kernel/osrelease";
/// The machine's name.
pub const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// The machine's architecture (6.1 and later).
pub const ARCH: &str = "/proc/sys/kernel/arch";
/// Seconds since boot.
pub const UPTIME: &str = "/proc/uptime";
/// CPU time and other counts of the whole machine.
pub const STAT: &str = "/proc/stat";
/// Physical address space.
pub const IOMEM: &str = "/proc/iomem";
/// Swap areas.
pub const SWAPS: &str = "/proc/swaps";
/// File system types that this kernel has.
pub const FILESYSTEMS: &str = "/proc/filesystems";
/// Free blocks and pageblocks by migratetype.
pub const PAGETYPEINFO: &str = "/proc/pagetypeinfo";
/// Slab caches.
pub const SLABINFO: &str = "/proc/slabinfo";
/// Allocation sites.
pub const ALLOCINFO: &str = "/proc/allocinfo";
/// Flags of each page frame.
pub const KPAGEFLAGS: &str = "/proc/kpageflags";
/// Processes.
pub const PROC: &str = "/proc";
/// Control groups of the reader.
pub const SELF_CGROUP: &str = "/proc/self/cgroup";
/// Open files of this process, by number: another name for one that is open.
pub const SELF_FD: &str = "/proc/self/fd";
/// Threads of this process, a folder each.
pub const SELF_TASK: &str = "/proc/self/task";
/// Mounts of the reader.
pub const SELF_MOUNTINFO: &str = "/proc/self/mountinfo";
/// Status of the reader.
pub const SELF_STATUS: &str = "/proc/self/status";
/// Totals of the reader's mappings.
pub const SELF_SMAPS_ROLLUP: &str = "/proc/self/smaps_rollup";
/// Mappings of the reader.
pub const SELF_SMAPS: &str = "/proc/self/smaps";
/// Page table of the reader.
pub const SELF_PAGEMAP: &str = "/proc/self/pagemap";
/// User ids of the reader's user namespace.
pub const SELF_UID_MAP: &str = "/proc/self/uid_map";
/// Settings of memory management.
pub const SYSCTL_VM: &str = "/proc/sys/vm";
/// All sysctls, a directory for each part of a name before the last.
pub const SYSCTLS: &str = "/proc/sys";
/// Control file of pagelab's kernel module for guests (docs/kmod.md).
pub const MODULE_CONTROL: &str = "/sys/kernel/debug/pagelab/control";
/// Its counters.
pub const MODULE_COUNTERS: &str = "/sys/kernel/debug/pagelab/counters";
/// Its requests to the page allocator.
pub const MODULE_ATTEMPTS: &str = "/sys/kernel/debug/pagelab/attempts";
/// The multi-generational LRU (6.1 and later, CONFIG_LRU_GEN).
pub const LRU_GEN_ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
/// Most pages in the pipes of one user without privilege; 0 is no limit.
pub const PIPE_USER_PAGES_SOFT: &str = "/proc/sys/fs/pipe-user-pages-soft";
/// Most bytes that a socket may be given for sending without privilege.
pub const WMEM_MAX: &str = "/proc/sys/net/core/wmem_max";
/// Most mappings of one process.
pub const MAX_MAP_COUNT: &str = "/proc/sys/vm/max_map_count";
/// A read makes every processor fold its counters and shrink its lists of free pages.
pub const STAT_REFRESH: &str = "/proc/sys/vm/stat_refresh";
/// Whether allocation profiling counts.
pub const MEM_PROFILING: &str = "/proc/sys/vm/mem_profiling";
/// Permission for perf events.
pub const PERF_EVENT_PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// Samples a second that a frequency may ask for at most.
pub const PERF_EVENT_SAMPLE_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
/// PMUs, a folder each.
pub const PMUS: &str = "/sys/bus/event_source/devices";
/// Whether the kernel's log is for the privileged alone.
pub const DMESG_RESTRICT: &str = "/proc/sys/kernel/dmesg_restrict";
/// There if the kernel has optimised kprobes.
pub const KPROBES_SYSCTL: &str = "/proc/sys/debug/kprobes-optimization";
/// There if perf can set kprobes.
pub const KPROBES_PMU: &str = "/sys/bus/event_source/devices/kprobe/type";
/// Transparent huge pages.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// khugepaged's settings and counters.
pub const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
/// hugetlb pools.
pub const HUGETLB: &str = "/sys/kernel/mm/hugepages";
/// Idle page tracking.
pub const PAGE_IDLE_BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
/// DAMON's interface.
pub const DAMON_ADMIN: &str = "/sys/kernel/mm/damon/admin";
/// DAMON's workers.
pub const DAMON_KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The order from which on free blocks are reported to the hypervisor (5.14). Until a driver asks for it: -1,
/// before 6.2 MAX_ORDER, which is above the largest order.
pub const PAGE_REPORTING_ORDER: &str = "/sys/module/page_reporting/parameters/page_reporting_order";
/// Devices of Hyper-V, a folder each.
pub const VMBUS_DEVICES: &str = "/sys/bus/vmbus/devices";
/// Devices of virtio, a folder each.
pub const VIRTIO_DEVICES: &str = "/sys/bus/virtio/devices";
/// Memory blocks.
pub const MEMORY_BLOCKS: &str = "/sys/devices/system/memory";
/// Processors that are online.
pub const CPU_ONLINE: &str = "/sys/devices/system/cpu/online";
/// CPUs without load balancing (`isolcpus=`).
pub const CPU_ISOLATED: &str = "/sys/devices/system/cpu/isolated";
/// Processors.
pub const CPUS: &str = "/sys/devices/system/cpu";
/// NUMA nodes.
pub const NODES: &str = "/sys/devices/system/node";
/// Nodes that are online.
pub const NODE_ONLINE: &str = "/sys/devices/system/node/online";
/// The hypervisor's name, where it provides one (Xen).
pub const HYPERVISOR_TYPE: &str = "/sys/hypervisor/type";
/// Maker of the machine.
pub const DMI_VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
/// Product name of the machine.
pub const DMI_PRODUCT: &str = "/sys/class/dmi/id/product_name";
/// The hypervisor in a device tree.
pub const DT_HYPERVISOR: &str = "/proc/device-tree/hypervisor/compatible";
/// Where debugfs is usually mounted.
pub const DEBUGFS: &str = "/sys/kernel/debug";
/// Where tracefs is usually mounted.
pub const TRACEFS: &str = "/sys/kernel/tracing";
/// Trace buffers beside the kernel's own one, a folder each; made and removed as folders.
pub const TRACE_INSTANCES: &str = "/sys/kernel/tracing/instances";
/// The tracing folder inside debugfs, on kernels before 4.1.
pub const TRACING_IN_DEBUGFS: &str = "tracing";
/// The kernel's symbols.
pub const KALLSYMS: &str = "/proc/kallsyms";
/// Visibility of kernel addresses.
pub const KPTR_RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";
/// The kernel's log as records.
pub const KMSG: &str = "/dev/kmsg";
/// The kernel's log as text, in a saved tree.
pub const KMSG_TEXT: &str = "/proc/kmsg.txt";
/// Hardware virtualisation.
pub const KVM: &str = "/dev/kvm";
/// Left in a container by Docker.
pub const DOCKERENV: &str = "/.dockerenv";
/// Left in a container by Podman.
pub const CONTAINERENV: &str = "/run/.containerenv";
/// systemd's name for the container that it runs in.
pub const SYSTEMD_CONTAINER: &str = "/run/systemd/container";

/// A file of one process: `statm`, `status`, `smaps_rollup` …
pub fn process_file(pid: u32, file: &str) -> String {
    format!("{PROC}/{pid}/{file}")
}

/// Children of the reading thread, with adopted orphans (3.5, if configured).
pub const OWN_CHILDREN: &str = "/proc/thread-self/children";
/// How long this process waited for a CPU.
pub const SELF_SCHEDSTAT: &str = "/proc/self/schedstat";
/// Memory of this process in pages.
pub const SELF_STATM: &str = "/proc/self/statm";
/// Free blocks by zone and order.
pub const BUDDYINFO: &str = "/proc/buddyinfo";
/// Memory totals.
pub const MEMINFO: &str = "/proc/meminfo";
/// Event counters.
pub const VMSTAT: &str = "/proc/vmstat";
/// Zones, watermarks, per-CPU lists.
pub const ZONEINFO: &str = "/proc/zoneinfo";
/// Tasks that run or wait, on average over 1, 5 and 15 minutes.
pub const LOADAVG: &str = "/proc/loadavg";
/// Memory pressure.
pub const PRESSURE_MEMORY: &str = "/proc/pressure/memory";
/// Pressure by resource.
pub const PRESSURE: &str = "/proc/pressure";
/// Pressure on block devices.
pub const PRESSURE_IO: &str = "/proc/pressure/io";
/// Pressure on processors.
pub const PRESSURE_CPU: &str = "/proc/pressure/cpu";
/// Bytes in a transparent huge page of PMD size (4.11 and later).
pub const THP_PMD_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
/// How willingly the kernel kills this process when memory ends.
pub const SELF_OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Program of this process, even if its file was renamed.
pub const SELF_EXE: &str = "/proc/self/exe";

// Files that the guard changes, and files that identify it. A setting that is not reached through one of
// these names is not written by pagelab at all.

/// Where root's journals are.
pub const JOURNAL_DIR: &str = "/run/pagelab";
/// Identity of this boot; 2.6 and later.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The namespace that this process's number belongs to.
pub const SELF_PID_NAMESPACE: &str = "/proc/self/ns/pid";
/// Arguments of this process, each ended by a zero byte.
pub const SELF_CMDLINE: &str = "/proc/self/cmdline";

/// A process's stat line.
pub fn process_stat_file(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

/// Files of `pagelab capture`, and names that identify a saved tree.
pub mod capture_table {
    use Privacy::{Hardware, Local, Memory, Names};

    /// Settings of the kernel; a plain folder of files has `osrelease` without the folders above it.
    pub const SYSCTL_KERNEL: &str = "/proc/sys/kernel/";
    /// Names at the top of a saved tree that is read as `/`.
    pub const TREE_MARKERS: &[&str] = &["proc", "sys", "pagelab-capture.json"];
    /// Names at the top of a plain folder of files from the process file system.
    pub const FLAT_MARKERS: &[&str] = &["buddyinfo", "meminfo", "vmstat", "zoneinfo"];
    /// Files of one record for each page, without text in them.
    pub const BINARY_FILES: &[&str] = &["kpageflags", "kpagecount", "kpagecgroup"];
    /// The kernel's own fragmentation indices (debugfs).
    pub const EXTFRAG: [&str; 2] =
        ["/sys/kernel/debug/extfrag/unusable_index", "/sys/kernel/debug/extfrag/extfrag_index"];

    /// Private information in a file beyond memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Privacy {
        /// Amounts of memory only.
        Memory,
        /// The hardware, without serial numbers.
        Hardware,
        /// Names that someone chose for this machine: kernel command line, mounts, control groups.
        Local,
        /// Names of processes, command lines, the host's name: only on request.
        Names,
    }

    /// One row of the table: a path, or a pattern in which `*` matches a part of a name and a final `**`
    /// everything below.
    #[derive(Debug)]
    pub struct CaptureRow {
        /// The path or pattern.
        pub pattern: &'static str,
        /// Why it is taken.
        pub reason: &'static str,
        /// Contents beyond amounts of memory.
        pub privacy: Privacy,
        /// Information lost without it; empty if that is little, or if most machines lack it.
        pub loss: &'static str,
    }

    const fn row(pattern: &'static str, privacy: Privacy, why: &'static str) -> CaptureRow {
        CaptureRow { pattern, reason: why, privacy, loss: "" }
    }

    impl CaptureRow {
        const fn with_loss(mut self, loss: &'static str) -> CaptureRow {
            self.loss = loss;
            self
        }
    }

    /// Files in reading order: those that change fastest come first and close together. pagetypeinfo,
    /// kpageflags, processes and the kernel log have rules of their own (crate::capture).
    pub const TABLE: &[CaptureRow] = &[
        row("/proc/buddyinfo", Memory, "free blocks by zone and order").with_loss("no fragmentation indices"),
        row("/sys/kernel/debug/extfrag/*", Memory, "the kernel's own indices"),
        row("/proc/meminfo", Memory, "total memory").with_loss("no memory usage"),
        row("/proc/vmstat", Memory, "event counters").with_loss("no history since boot"),
        row("/proc/zoneinfo", Memory, "zones, watermarks, per-CPU lists").with_loss("no watermarks"),
        row("/proc/pressure/memory", Memory, "memory stalls"),
        row("/proc/pressure/cpu", Memory, "CPU stalls"),
        row("/proc/pressure/io", Memory, "I/O stalls"),
        row("/proc/pressure/irq", Memory, "IRQ stalls"),
        row("/proc/slabinfo", Memory, "slab caches").with_loss("no names of polluting slab caches"),
        row("/proc/allocinfo", Memory, "kernel memory by allocation site"),
        row("/proc/swaps", Local, "swap areas"),
        row("/proc/uptime", Memory, "age of the counters"),
        row("/proc/cpuinfo", Hardware, "processor").with_loss("no processor, no TLB"),
        row("/proc/version", Local, "kernel release and build"),
        row("/proc/cmdline", Local, "boot parameters that change memory management"),
        row("/proc/iomem", Hardware, "physical memory layout"),
        row("/proc/config.gz", Memory, "kernel configuration"),
        row("/proc/filesystems", Memory, "whether hugetlbfs and cgroup2 exist"),
        row("/proc/sys/kernel/osrelease", Memory, "kernel release").with_loss("no kernel release"),
        row("/proc/sys/kernel/ostype", Memory, "Linux"),
        row("/proc/sys/kernel/arch", Hardware, "architecture"),
        row("/proc/sys/kernel/dmesg_restrict", Memory, "permission to read the kernel log"),
        row("/proc/sys/kernel/perf_event_paranoid", Memory, "permission to use perf events"),
        row("/proc/sys/kernel/numa_balancing", Memory, "whether pages migrate between nodes"),
        row("/proc/sys/vm/*", Memory, "memory-management settings").with_loss("no settings"),
        row("/proc/self/cgroup", Local, "memory limits in effect"),
        row("/proc/self/mountinfo", Local, "where cgroups, debugfs and hugetlbfs are mounted"),
        row("/proc/self/uid_map", Local, "whether this is a container"),
        row("/.dockerenv", Local, "whether this is a container"),
        row("/run/systemd/container", Local, "whether this is a container"),
        row("/sys/kernel/mm/transparent_hugepage/**", Memory, "THP modes").with_loss("no THP modes"),
        row("/sys/kernel/mm/hugepages/**", Memory, "hugetlb pools"),
        row("/sys/kernel/mm/ksm/*", Memory, "KSM, which splits huge pages"),
        row("/sys/kernel/mm/lru_gen/*", Memory, "multi-generational LRU"),
        row("/sys/kernel/mm/numa/*", Memory, "demotion to slower memory tiers"),
        row("/sys/kernel/mm/swap/*", Memory, "swap readahead"),
        row("/sys/kernel/mm/mempolicy/**", Memory, "interleave weights"),
        row("/sys/kernel/mm/cma/**", Memory, "CMA areas"),
        row("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", Memory, "whether DAMON exists and runs"),
        row("/sys/module/page_reporting/parameters/*", Memory, "free page reporting to a hypervisor"),
        row("/sys/bus/virtio/devices/virtio*/device", Hardware, "whether there is a memory balloon"),
        row("/sys/bus/virtio/devices/virtio*/features", Hardware, "whether it reports free pages"),
        row("/sys/bus/vmbus/devices/*/class_id", Hardware, "whether there is a Hyper-V balloon"),
        row("/sys/devices/system/node/*", Memory, "which nodes are online"),
        row("/sys/devices/system/node/node*/meminfo", Memory, "memory of each node"),
        row("/sys/devices/system/node/node*/vmstat", Memory, "counters of each node"),
        row("/sys/devices/system/node/node*/numastat", Memory, "hits and misses of each node"),
        row("/sys/devices/system/node/node*/distance", Hardware, "distances"),
        row("/sys/devices/system/node/node*/cpulist", Hardware, "processors of each node"),
        row("/sys/devices/system/node/node*/hugepages/**", Memory, "hugetlb pools of each node"),
        row("/sys/devices/system/node/node*/memory_side_cache/**", Hardware, "memory-side caches"),
        row("/sys/devices/system/node/node*/access*/initiators/*", Hardware, "latency and bandwidth"),
        row("/sys/devices/system/node/node*/memory*", Hardware, "memory blocks of each node (links)"),
        row("/sys/devices/system/memory/*", Hardware, "size of a memory block"),
        row("/sys/devices/system/memory/memory*/state", Hardware, "whether each memory block is online"),
        row("/sys/devices/system/memory/memory*/valid_zones", Hardware, "zones of memory blocks"),
        row("/sys/devices/system/memory/memory*/removable", Hardware, "removable memory blocks"),
        row("/sys/devices/system/memory/memory*/phys_index", Hardware, "addresses of memory blocks"),
        row("/sys/devices/system/memory/memory*/node*", Hardware, "node of each memory block (links)"),
        row("/sys/devices/virtual/memory_tiering/memory_tier*/nodelist", Hardware, "memory tiers"),
        row("/sys/devices/system/cpu/online", Hardware, "processors"),
        row("/sys/devices/system/cpu/possible", Hardware, "processors"),
        row("/sys/devices/system/cpu/present", Hardware, "processors"),
        row("/sys/devices/system/cpu/cpu0/cache/index*/*", Hardware, "caches"),
        row("/proc/device-tree/hypervisor/compatible", Hardware, "which hypervisor"),
        row("/sys/hypervisor/type", Hardware, "which hypervisor"),
        row("/sys/class/dmi/id/sys_vendor", Hardware, "which hypervisor"),
        row("/sys/class/dmi/id/product_name", Hardware, "which hypervisor"),
        row("/sys/fs/cgroup/cgroup.controllers", Memory, "whether cgroup v2 has the memory controller"),
        row("/proc/sys/kernel/hostname", Names, "the host's name"),
    ];

    /// Files that the patterns meet and that are not for reading: triggers, some of which act when read
    /// (stat_refresh folds the counters of every processor, mm/vmstat.c since 4.8).
    pub const TRIGGERS: &[&str] = &[
        "/proc/sys/vm/compact_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/stat_refresh",
        "/sys/devices/system/memory/probe",
        "/sys/devices/system/memory/hard_offline_page",
        "/sys/devices/system/memory/soft_offline_page",
    ];

    /// Limits and use of one group: memory controller of version 2, then of version 1, then hugetlb.
    pub const CGROUP_FILES: &[&str] = &[
        "memory.max",
        "memory.high",
        "memory.low",
        "memory.min",
        "memory.current",
        "memory.peak",
        "memory.swap.max",
        "memory.swap.current",
        "memory.stat",
        "memory.events",
        "memory.pressure",
        "memory.limit_in_bytes",
        "memory.soft_limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.memsw.limit_in_bytes",
    ];
}
/// Discards all input.
pub const DEV_NULL: &str = "/dev/null";
