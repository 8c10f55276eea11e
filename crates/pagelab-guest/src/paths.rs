//! Kernel paths that PID 1 of a guest mounts and uses, and the path of pagelab's own program file. Readers of
//! a machine's memory have theirs in pagelab-host, under a root; these are not read under any.

/// Path of the running program, whatever its file is called now.
pub const SELF_EXE: &str = "/proc/self/exe";
/// Open files of the process that looks.
pub const OPEN_FDS_DIR: &str = "/proc/self/fd";
/// What PID 1 mounts: type, place, data.
pub const MOUNTS: [(&str, &str, &str); 6] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
];
/// Directories with file systems of the kernel and in memory that programs of the tool disk see, too.
pub const SHARED_WITH_TOOLS: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];
/// The kernel's command line.
pub const KERNEL_COMMAND_LINE: &str = "/proc/cmdline";
/// File system with the kernel's command line, and its file there.
pub const KERNEL_COMMAND_LINE_SOURCE: (&str, &str) = ("proc", "cmdline");
/// Where control groups are mounted.
pub const CGROUP_DIR: &str = "/sys/fs/cgroup";
/// The control file of pagelab's own module (`kmod/`).
pub const MODULE_CONTROL: &str = "/sys/kernel/debug/pagelab/control";
/// Switch of the multi-generational LRU (6.1, CONFIG_LRU_GEN).
pub const LRU_GEN_ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
/// Block devices.
pub const BLOCK_CLASS_DIR: &str = "/sys/block";
/// Ports of virtio consoles.
pub const VIRTIO_PORTS_DIR: &str = "/sys/class/virtio-ports";
