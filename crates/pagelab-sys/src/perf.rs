//! Whether `perf_event_open` works here: one event is opened for this process, read, and closed.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// An event to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// CPU cycles of user space: the plainest hardware counter.
    Cycles,
    /// Data-TLB read misses of user space.
    DtlbLoadMisses,
    /// Page faults, counted by the kernel itself.
    PageFaults,
}

/// `struct perf_event_attr` as of its first version (PERF_ATTR_SIZE_VER0): every kernel takes it.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const ATTR_SIZE: u32 = 64;
const _: () = assert!(size_of::<Attr>() == ATTR_SIZE as usize);

/// `exclude_kernel` and `exclude_hv`: what perf_event_paranoid ≤ 2 allows to everybody.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

impl Event {
    /// `type` and `config` of the attribute.
    fn codes(self) -> (u32, u64) {
        match self {
            // PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES.
            Event::Cycles => (0, 0),
            // PERF_TYPE_HW_CACHE: DTLB is 3, op READ 0, result MISS 1.
            Event::DtlbLoadMisses => (3, 3 | 1 << 16),
            // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS.
            Event::PageFaults => (1, 2),
        }
    }
}

/// Opens `event` for this thread in user space, works a little, and returns what was counted. The error
/// is the kernel's own: ENOENT or EOPNOTSUPP without such a counter, EACCES or EPERM where
/// perf_event_paranoid forbids it, ENOSYS without perf events.
pub fn try_event(event: Event) -> io::Result<u64> {
    let (kind, config) = event.codes();
    let attr = Attr { kind, size: ATTR_SIZE, config, flags: USER_ONLY, ..Attr::default() };
    let (this_thread, any_cpu, no_group) = (0 as libc::pid_t, -1 as libc::c_int, -1 as libc::c_int);
    // SAFETY: `attr` is a live, initialised perf_event_attr that names its own size, and the kernel only
    // reads it (it may write `size` on E2BIG, which stays inside the struct: `attr` is not used again).
    // JUSTIFICATION: neither std nor rustix wraps perf_event_open.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            this_thread,
            any_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is a fresh descriptor that nobody else owns.
    // JUSTIFICATION: taking ownership of a raw descriptor is unsafe by nature.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
    let mut sum = 0u64;
    for step in 0..20_000u64 {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(step));
    }
    let mut count = [0u8; 8];
    file.read_exact(&mut count)?;
    Ok(u64::from_ne_bytes(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_ends_in_a_count_or_in_the_kernels_words() {
        for event in [Event::Cycles, Event::DtlbLoadMisses, Event::PageFaults] {
            match try_event(event) {
                Ok(count) => assert!(event != Event::Cycles || count < 1 << 60, "{event:?} {count}"),
                Err(error) => assert!(error.raw_os_error().is_some(), "{event:?} {error}"),
            }
        }
    }
}
