//! Whether `perf_event_open` works here: one event is opened for this process, read, and closed.

use std::io::{self, Read};

use crate::perf_attr::{Attr, Of, USER_ONLY, open};

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
    let attr = Attr { flags: USER_ONLY, ..Attr::event(kind, config) };
    let mut file = open(attr, Of::ThisThread, None)?;
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
