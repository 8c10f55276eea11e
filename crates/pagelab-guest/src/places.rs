//! Places of the kernel that PID 1 of a guest mounts and uses, and our own program file. Readers of a
//! machine's memory have theirs in pagelab-host, under a root; these are not read under any.

/// The program that runs, whatever its name has become.
pub const SELF: &str = "/proc/self/exe";
/// Open files of the process that looks.
pub const OPEN_FILES: &str = "/proc/self/fd";
/// What PID 1 mounts: type, place, data.
pub const MOUNTS: [(&str, &str, &str); 6] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
];
/// Where control groups are mounted.
pub const CGROUPS: &str = "/sys/fs/cgroup";
/// Block devices.
pub const BLOCK: &str = "/sys/block";
/// Ports of virtio consoles.
pub const PORTS: &str = "/sys/class/virtio-ports";
