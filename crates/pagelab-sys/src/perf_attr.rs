//! The one layout of `struct perf_event_attr`, and the one call of `perf_event_open`.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `struct perf_event_attr` as of PERF_ATTR_SIZE_VER5 (4.1; `sample_max_stack` came into its padding with
/// 4.8). A later kernel takes a shorter struct, an earlier one takes it while the rest is 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Attr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_watermark: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const ATTR_BYTES: u32 = 112;
const _: () = assert!(size_of::<Attr>() == ATTR_BYTES as usize);
const _: () = assert!(offset_of!(Attr, flags) == 40 && offset_of!(Attr, wakeup_watermark) == 48);
const _: () = assert!(offset_of!(Attr, sample_regs_user) == 80 && offset_of!(Attr, clockid) == 92);
const _: () = assert!(offset_of!(Attr, sample_max_stack) == 108);

/// Bits of [`Attr::flags`] that more than one caller sets: opened disabled; no counts of the kernel and of a
/// hypervisor, which is what perf_event_paranoid ≤ 2 allows to everybody.
pub(crate) const DISABLED: u64 = 1 << 0;
pub(crate) const USER_ONLY: u64 = 1 << 5 | 1 << 6;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

impl Attr {
    /// An event by `type` and `config`; all else is 0.
    pub fn event(kind: u32, config: u64) -> Attr {
        Attr { kind, size: ATTR_BYTES, config, ..Attr::default() }
    }
}

/// Whose events are counted, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// This thread's, on any CPU.
    ThisThread,
    /// Those of the task with this number, on any CPU.
    Task(libc::pid_t),
    /// Those of all processes on this CPU.
    Cpu(u32),
    /// Those of the task with this number while it is on this CPU.
    TaskOnCpu(libc::pid_t, u32),
}

/// Opens an event, in the group of a leader where there is one. The error is the kernel's own.
pub(crate) fn open(mut attr: Attr, of: Of, leader: Option<BorrowedFd<'_>>) -> io::Result<File> {
    let (pid, cpu): (libc::pid_t, libc::c_int) = match of {
        Of::ThisThread => (0, -1),
        Of::Task(pid) => (pid, -1),
        Of::Cpu(cpu) => (-1, cpu as libc::c_int),
        Of::TaskOnCpu(pid, cpu) => (pid, cpu as libc::c_int),
    };
    let group = leader.map_or(-1 as libc::c_int, |leader| leader.as_raw_fd());
    // SAFETY: `attr` is a live, initialised perf_event_attr that names its own size; the kernel reads it, and
    // on E2BIG writes the size that it knows into the struct's own field.
    // JUSTIFICATION: neither std nor rustix wraps perf_event_open.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw mut attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is a fresh descriptor that nobody else owns.
    // JUSTIFICATION: taking ownership of a raw descriptor is unsafe by nature.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_lie_where_the_kernel_reads_them() {
        let attr = Attr { clockid: 0x0102_0304, size: ATTR_BYTES, ..Attr::default() };
        // SAFETY: a plain struct without padding is read as its bytes.
        // JUSTIFICATION: the layout itself is what is tested.
        let bytes = unsafe { std::mem::transmute::<Attr, [u8; ATTR_BYTES as usize]>(attr) };
        assert_eq!(bytes[92..96], 0x0102_0304i32.to_ne_bytes());
        assert_eq!(bytes[4..8], ATTR_BYTES.to_ne_bytes());
        assert!(bytes[8..92].iter().chain(&bytes[96..]).all(|&byte| byte == 0));
    }
}
