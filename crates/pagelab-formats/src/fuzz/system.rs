//! Fuzz targets of the parsers that say what a machine and a process are.

use super::{Target, checked, filled};
use crate::{cgroup, cpu_list, cpuinfo, iomem, kernel_log, mountinfo, process_stat, size, status, swaps};

pub(super) const CPUINFO: Target =
    Target { name: "cpuinfo", run: run_cpuinfo, seeds: &[CPUINFO_X86, CPUINFO_ARM] };
pub(super) const SWAPS: Target = Target { name: "swaps", run: run_swaps, seeds: &[SWAPS_TEXT] };
pub(super) const MOUNTINFO: Target =
    Target { name: "mountinfo", run: run_mountinfo, seeds: &[MOUNTINFO_TEXT] };
pub(super) const CGROUP: Target =
    Target { name: "cgroup", run: run_cgroup, seeds: &[b"4:cpu,memory:/a:b\n0::/user.slice\n"] };
pub(super) const STATUS: Target = Target { name: "status", run: run_status, seeds: &[STATUS_TEXT] };
pub(super) const STATM: Target =
    Target { name: "statm", run: run_statm, seeds: &[b"765 410 382 5 0 123 0\n"] };
pub(super) const PROCESS_STAT: Target = Target {
    name: "process_stat",
    run: run_process_stat,
    seeds: &[b"7 (a) b) S 1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 3 0 9731 1 1\n"],
};
pub(super) const KERNEL_LOG: Target =
    Target { name: "kernel_log", run: run_kernel_log, seeds: &[KMSG, DMESG] };
pub(super) const IOMEM: Target = Target { name: "iomem", run: run_iomem, seeds: &[IOMEM_TEXT] };
pub(super) const CPU_LIST: Target =
    Target { name: "cpu_list", run: run_cpu_list, seeds: &[b"0-3,7,9-11\n", b"65535"] };
pub(super) const SUFFIXED_SIZE: Target =
    Target { name: "suffixed_size", run: run_suffixed, seeds: &[b"48K\n", b"1G"] };
pub(super) const HEXADECIMAL_SIZE: Target =
    Target { name: "hexadecimal_size", run: run_hexadecimal, seeds: &[b"8000000\n"] };
pub(super) const UPTIME: Target =
    Target { name: "uptime", run: run_uptime, seeds: &[b"350735.47 234388.90\n"] };

const CPUINFO_X86: &[u8] =
    b"processor\t: 0\nvendor_id\t: X\ncpu family\t: 6\nmodel\t\t: 207\nstepping\t: 2\n\
physical id\t: 0\ncore id\t\t: 0\nflags\t\t: pse hypervisor\n\
address sizes\t: 46 bits physical, 57 bits virtual\n\n";

const CPUINFO_ARM: &[u8] =
    b"Processor\t: ARMv7\nprocessor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";

const SWAPS_TEXT: &[u8] = b"Filename Type Size Used Priority\n/swap\\040file file 2097148 1024 -2\n";

const MOUNTINFO_TEXT: &[u8] = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
36 35 98:0 /mnt\\0401 /mnt2 rw master:1 propagate_from:2 - ext3 /dev/root rw\n";

const STATUS_TEXT: &[u8] =
    b"Name:\tx\nVmRSS:\t 1640 kB\nTHP_enabled:\t1\nCapEff:\t000001fffeffffff\nKthread:\t0\n";

const KMSG: &[u8] = b"4,900,5140900,-;a:1: page allocation failure: order:5, mode:0x1\n SUBSYSTEM=x\n\
6,901,5140901,-;other\n";

const DMESG: &[u8] = b"<4>[   12.000345] [   T7] a invoked oom-killer: gfp_mask=0x1, order=3\nprose\n\
memory: usage 64kB, limit 64kB, failcnt 4\noom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a\n\
Memory cgroup out of memory: Killed process 4 (a) total-vm:7kB\n";

const IOMEM_TEXT: &[u8] =
    b"00001000-0009fbff : System RAM\n  00002000-00002fff : Kernel code\nc0000000-cfffffff : PCI Bus\n";

fn run_cpuinfo(input: &[u8]) {
    let Some(cpu) = checked(input, cpuinfo::parse(input)) else { return };
    assert!(cpu.threads > 0 && cpu.threads as usize <= filled(input).max(1));
    assert!(cpu.cores.is_none_or(|cores| cores > 0 && cores as usize <= filled(input)));
}

fn run_swaps(input: &[u8]) {
    let Some(areas) = checked(input, swaps::parse(input)) else { return };
    assert!(areas.len() < filled(input));
}

fn run_mountinfo(input: &[u8]) {
    let Some(mounts) = checked(input, mountinfo::parse(input)) else { return };
    assert_eq!(mounts.len(), filled(input));
}

fn run_cgroup(input: &[u8]) {
    let Some(groups) = checked(input, cgroup::parse(input)) else { return };
    assert!(groups.iter().all(|group| group.path.starts_with('/')));
}

fn run_status(input: &[u8]) {
    let Some(status) = checked(input, status::parse(input)) else { return };
    assert!(status.amounts_kib.len() < filled(input));
}

fn run_statm(input: &[u8]) {
    checked(input, status::parse_statm(input));
}

fn run_process_stat(data: &[u8]) {
    let Ok(stat) = process_stat::parse(data) else { return };
    // Whatever the command is called, the rest says the same.
    let end = data.iter().rposition(|&byte| byte == b')').expect("one that was read has a command");
    let renamed = [b"1 (x y", &data[end..]].concat();
    assert_eq!(process_stat::parse(&renamed), Ok(stat));
}

fn run_kernel_log(input: &[u8]) {
    checked(input, kernel_log::parse_record(input));
    let Some(failures) = checked(input, kernel_log::parse(input)) else { return };
    assert!(failures.reports.len() + failures.kills.len() <= filled(input));
    for report in &failures.reports {
        assert!(report.process.chars().count() <= 81 && report.detail.chars().count() <= 401);
    }
}

fn run_iomem(input: &[u8]) {
    let Some(iomem) = checked(input, iomem::parse(input)) else { return };
    assert_eq!(iomem.resources.len(), filled(input));
    assert!(iomem.system_ram().all(|(start, last)| start <= last));
}

fn run_cpu_list(input: &[u8]) {
    let Some(numbers) = checked(input, cpu_list::parse(input)) else { return };
    assert!(numbers.is_sorted() && numbers.len() <= 1 << 16);
}

fn run_suffixed(input: &[u8]) {
    checked(input, size::parse_suffixed(input));
}

fn run_hexadecimal(input: &[u8]) {
    checked(input, size::parse_hexadecimal(input));
}

fn run_uptime(input: &[u8]) {
    checked(input, size::parse_uptime(input));
}
