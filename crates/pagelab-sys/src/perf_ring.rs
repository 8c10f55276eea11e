//! Tracepoints through `perf_event_open`, and the ring buffer of their records.
//!
//! One ring a CPU: the first event of a CPU owns it, the others of that CPU are sent to it
//! ([`PerfEvent::set_output`]). Nothing here knows what is in a record but its size.
//!
//! Times are of CLOCK_MONOTONIC. The kernel refuses CLOCK_BOOTTIME for tracepoints, since that clock may not
//! be read in an NMI and the tracepoint PMU does not promise never to be (kernel/events/core.c,
//! `perf_event_set_clock` and `perf_tracepoint`; EINVAL on 6.1 and 6.18).

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::perf_event::{DISABLED, ENABLE_ON_EXEC, EventTarget, PerfEventAttr, USER_ONLY, open_event};
use crate::wait::check_zero;

/// PERF_TYPE_TRACEPOINT.
const TYPE_TRACEPOINT: u32 = 2;
/// Bits of `flags`: wakeup by a watermark, no kernel part and no user part of call chains, a clock of choice.
const WATERMARK: u64 = 1 << 14;
/// Bit of `flags`: all records end with their time and process, not only samples.
pub const SAMPLE_ID_ALL: u64 = 1 << 18;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const USE_CLOCKID: u64 = 1 << 25;
/// PERF_FORMAT_LOST (6.0 and later).
const FORMAT_LOST: u64 = 1 << 4;

/// `_IO('$', N)` and `_IOW('$', 6, char *)` in the encoding of asm-generic/ioctl.h.
const IOC_ENABLE: u32 = 0x2400;
const IOC_DISABLE: u32 = 0x2401;
const IOC_SET_OUTPUT: u32 = 0x2405;
const IOC_SET_FILTER: u32 = (1 << 30) | ((size_of::<*const u8>() as u32) << 16) | 0x2406;

/// Where the kernel and the reader say how far they are, in the first page of a ring
/// (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// How a tracepoint is to be sampled.
#[derive(Clone, Copy, Debug)]
pub struct TracepointSampling {
    /// Bits of `perf_event_attr.sample_type`.
    pub sample_type: u64,
    /// Bytes in the ring after which a waiting reader is woken.
    pub wakeup_bytes: u32,
    /// Frames of a call chain, at most; 0 is the machine's own limit (`kernel.perf_event_max_stack`).
    pub frames_max: u16,
    /// Whether call chains have frames of the kernel.
    pub kernel_frames: bool,
    /// Whether call chains continue in user space. A call chain without either is empty.
    pub user_frames: bool,
}

/// How accesses are sampled: an event of any kind, with the records that say where mappings and programs are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessSampling {
    /// Number of the PMU.
    pub kind: u32,
    /// Which of its events.
    pub config: u64,
    /// Further words of the event.
    pub config1: u64,
    /// Likewise.
    pub config2: u64,
    /// Bits of `perf_event_attr.sample_type`; 0 for an event that only leads a group.
    pub sample_type: u64,
    /// Sampling by period (events between samples) or by frequency (samples per second).
    pub period_or_frequency: u64,
    /// Whether that is a frequency, which the kernel steers to.
    pub is_frequency: bool,
    /// How exactly the sampled instruction must be the one of the event: 0 to 3.
    pub precise: u8,
    /// No samples of the kernel.
    pub is_user_only: bool,
    /// Its ring has records of mappings, names, forks and exits too.
    pub reports_mappings: bool,
    /// Begins at the task's next exec; otherwise it is enabled by hand.
    pub enable_on_exec: bool,
    /// Bytes in the ring after which a waiting reader is woken.
    pub wakeup_bytes: u32,
}

impl AccessSampling {
    /// Arguments for the kernel. Only the first of a group waits for the exec: the others run when it does.
    fn build_attr(&self, is_leader: bool) -> PerfEventAttr {
        const INHERIT: u64 = 1 << 1;
        const MMAP_COMM: u64 = 1 << 8 | 1 << 9;
        const FREQ: u64 = 1 << 10;
        const TASK: u64 = 1 << 13;
        const PRECISE_SHIFT: u32 = 15;
        const MMAP_DATA: u64 = 1 << 17;
        const MMAP2: u64 = 1 << 23;
        const COMM_EXEC: u64 = 1 << 24;
        let flags_if = |set: bool, flags: u64| if set { flags } else { 0 };
        let sampled = self.sample_type != 0;
        let mapping_records = MMAP_COMM | TASK | MMAP_DATA | MMAP2 | COMM_EXEC;
        let records =
            SAMPLE_ID_ALL | WATERMARK | USE_CLOCKID | flags_if(self.reports_mappings, mapping_records);
        let waits = match (is_leader, self.enable_on_exec) {
            (true, true) => DISABLED | ENABLE_ON_EXEC,
            (true, false) => DISABLED,
            (false, _) => 0,
        };
        let flags = INHERIT
            | flags_if(sampled, records)
            | waits
            | flags_if(self.is_user_only, USER_ONLY)
            | flags_if(sampled && self.is_frequency, FREQ)
            | u64::from(self.precise & 3) << PRECISE_SHIFT;
        PerfEventAttr {
            config1: self.config1,
            config2: self.config2,
            sample_period: if sampled { self.period_or_frequency } else { 0 },
            sample_type: self.sample_type,
            flags,
            wakeup_watermark: if sampled { self.wakeup_bytes } else { 0 },
            clockid: if sampled { libc::CLOCK_MONOTONIC } else { 0 },
            ..PerfEventAttr::new(self.kind, self.config)
        }
    }

    /// The bit field of `perf_event_attr`, for readers of the records.
    pub fn attr_flags(&self) -> u64 {
        self.build_attr(true).flags
    }
}

/// One tracepoint on one CPU, for all processes. It counts and writes records while it is enabled.
#[derive(Debug)]
pub struct PerfEvent {
    file: File,
    has_lost_count: bool,
}

/// How often an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// Times while it was enabled and passed its filter.
    pub count: u64,
    /// How many of these did not get into the ring; `None` before Linux 6.0.
    pub lost: Option<u64>,
}

impl PerfEvent {
    /// Opens the tracepoint with this number on this CPU, not enabled yet. The error is the kernel's own:
    /// EACCES or EPERM without the privilege, ENODEV where the CPU is offline, EMFILE without a descriptor
    /// left.
    pub fn open_tracepoint(id: u16, cpu: u32, sampling: &TracepointSampling) -> io::Result<PerfEvent> {
        let kernel = if sampling.kernel_frames { 0 } else { EXCLUDE_CALLCHAIN_KERNEL };
        let user = if sampling.user_frames { 0 } else { EXCLUDE_CALLCHAIN_USER };
        let mut attr = PerfEventAttr {
            sample_period: 1,
            sample_type: sampling.sample_type,
            read_format: FORMAT_LOST,
            flags: DISABLED | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID | kernel | user,
            wakeup_watermark: sampling.wakeup_bytes,
            clockid: libc::CLOCK_MONOTONIC,
            sample_max_stack: sampling.frames_max,
            ..PerfEventAttr::new(TYPE_TRACEPOINT, u64::from(id))
        };
        match open_event(attr, EventTarget::Cpu(cpu), None) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                attr.read_format = 0;
                Ok(PerfEvent { file: open_event(attr, EventTarget::Cpu(cpu), None)?, has_lost_count: false })
            }
            file => Ok(PerfEvent { file: file?, has_lost_count: true }),
        }
    }

    /// Opens an event that samples the accesses of a task, its threads and all that it starts later, while
    /// they are on this CPU; with a `leader`, in its group. The error is the kernel's own: ENOENT,
    /// EOPNOTSUPP, EINVAL or ENODATA if it has no such event, EACCES or EPERM if it is not permitted, ESRCH
    /// if the task has exited.
    pub fn open_accesses(
        task: u32,
        cpu: u32,
        sampling: &AccessSampling,
        leader: Option<&PerfEvent>,
    ) -> io::Result<PerfEvent> {
        let attr = sampling.build_attr(leader.is_none());
        let pid = libc::pid_t::try_from(task).map_err(|_| io::ErrorKind::InvalidInput)?;
        let leader = leader.map(|leader| leader.file.as_fd());
        Ok(PerfEvent {
            file: open_event(attr, EventTarget::TaskOnCpu(pid, cpu), leader)?,
            has_lost_count: false,
        })
    }

    /// Lets only those events pass that the expression holds for: `common_pid != 17 && order > 3`.
    pub fn set_filter(&self, expression: &str) -> io::Result<()> {
        let text = CString::new(expression).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the request reads a zero-terminated string (of a page at most) that outlives the call.
        // JUSTIFICATION: neither std nor rustix has the ioctls of perf events.
        check_zero(unsafe { libc::ioctl(self.file.as_raw_fd(), IOC_SET_FILTER as _, text.as_ptr()) })
    }

    /// Has the records of this event written to the ring of another one of the same CPU.
    pub fn set_output(&self, ring: &Ring) -> io::Result<()> {
        self.ioctl(IOC_SET_OUTPUT, ring.event.file.as_raw_fd() as libc::c_ulong)
    }

    /// Begins to count and to write records.
    pub fn enable(&self) -> io::Result<()> {
        self.ioctl(IOC_ENABLE, 0)
    }

    /// Ends to count and to write records.
    pub fn disable(&self) -> io::Result<()> {
        self.ioctl(IOC_DISABLE, 0)
    }

    /// How often it happened.
    pub fn read_count(&self) -> io::Result<EventCount> {
        let mut words = [0u8; 16];
        let whole = if self.has_lost_count { &mut words[..] } else { &mut words[..8] };
        (&self.file).read_exact(whole)?;
        let [times, lost] = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| words[at + i])));
        Ok(EventCount { count: times, lost: self.has_lost_count.then_some(lost) })
    }

    fn ioctl(&self, request: u32, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the requests that come here take a plain number: flags, or a descriptor that the kernel
        // checks. JUSTIFICATION: neither std nor rustix has the ioctls of perf events.
        check_zero(unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, argument) })
    }
}

/// A ring with the event that owns it, and how far it has been read.
///
/// The kernel writes from tail to head and never overwrites bytes that were not released, so the bytes
/// between the two belong to the reader.
#[derive(Debug)]
pub struct Ring {
    event: PerfEvent,
    map: NonNull<u8>,
    map_bytes: usize,
    /// Bytes before the records: one page.
    data_start: usize,
    /// Bytes of records, a power of two.
    data_bytes: usize,
    /// Where the next record begins. Positions count up without end; the place is their remainder.
    position: u64,
    /// Where the last record that [`Ring::update_head`] saw ends.
    head: u64,
    /// Offset up to which space was released.
    tail: u64,
    /// Copy of a record that wraps around the ring's end.
    wrapped_record: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone, and no thread is tied to it. It is not Sync.
// JUSTIFICATION: a recorder opens its rings in one thread and reads them in another.
unsafe impl Send for Ring {}

impl Ring {
    /// The largest room for records.
    pub const DATA_BYTES_MAX: u64 = 1 << 30;

    /// Maps a ring for `event`, with room for at least `data_bytes`, rounded up to a power of two of whole
    /// pages. EPERM: more than `kernel.perf_event_mlock_kb` without CAP_IPC_LOCK.
    pub fn new(event: PerfEvent, data_bytes: u64) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        if data_bytes > Ring::DATA_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let data_bytes = (data_bytes as usize).max(page).next_power_of_two();
        let map_bytes = data_bytes + page;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory that exists.
        // JUSTIFICATION: the ring of a perf event is reached by mmap alone.
        let raw = unsafe {
            libc::mmap(std::ptr::null_mut(), map_bytes, access, libc::MAP_SHARED, event.file.as_raw_fd(), 0)
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(raw.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Ring {
            event,
            map,
            map_bytes,
            data_start: page,
            data_bytes,
            position: 0,
            head: 0,
            tail: 0,
            wrapped_record: Vec::new(),
        })
    }

    /// The event that owns the ring.
    pub fn event(&self) -> &PerfEvent {
        &self.event
    }

    /// Room for records in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes as u64
    }

    /// Looks how far the kernel has written, and returns how many bytes can be read now.
    pub fn update_head(&mut self) -> u64 {
        // Acquire: the records before the head are read after it, as the kernel wrote them before it.
        let head = self.control_word(DATA_HEAD).load(Ordering::Acquire);
        // A head that no kernel writes would let the reader run over its own tail.
        self.head =
            head.clamp(self.position, self.tail.saturating_add(self.data_bytes as u64).max(self.position));
        self.head - self.position
    }

    /// The next complete record before the position that [`Ring::update_head`] read; `None` if there is none.
    /// A record of an impossible size is an error, and everything up to the head is passed over then.
    pub fn next_record(&mut self) -> io::Result<Option<&[u8]>> {
        let bytes_left = self.head - self.position;
        if bytes_left == 0 {
            return Ok(None);
        }
        // Records are a multiple of 8 bytes, so that a header never wraps around the ring's end.
        let size = match bytes_left {
            8.. => u16::from_ne_bytes([self.byte(self.position + 6), self.byte(self.position + 7)]),
            _ => 0,
        };
        if size < 8 || u64::from(size) > bytes_left {
            self.position = self.head;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record of invalid size"));
        }
        let (first, second) = ring_ranges(self.position, usize::from(size), self.data_bytes);
        if second.is_empty() {
            return Ok(Some(self.bytes(first)));
        }
        let mut whole = std::mem::take(&mut self.wrapped_record);
        whole.clear();
        whole.extend_from_slice(self.bytes(first));
        whole.extend_from_slice(self.bytes(second));
        self.wrapped_record = whole;
        Ok(Some(&self.wrapped_record))
    }

    /// Advances by a record of `bytes` bytes. Its space is released by [`Ring::release_space`].
    pub fn advance(&mut self, bytes: usize) {
        self.position = self.position.saturating_add(bytes as u64).min(self.head);
    }

    /// Gives the room of everything that was passed back to the kernel.
    pub fn release_space(&mut self) {
        if self.tail != self.position {
            self.tail = self.position;
            // Release: the records were read before the kernel may overwrite them.
            self.control_word(DATA_TAIL).store(self.tail, Ordering::Release);
        }
    }

    fn control_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset is inside the first page, which is mapped readable and writable until drop, and
        // is a multiple of 8. The kernel changes these two words by whole aligned stores.
        // JUSTIFICATION: the protocol of the ring is two words shared with the kernel.
        unsafe { AtomicU64::from_ptr(self.map.as_ptr().add(offset).cast()) }
    }

    fn byte(&self, position: u64) -> u8 {
        let (range, _) = ring_ranges(position, 1, self.data_bytes);
        self.bytes(range).first().copied().unwrap_or(0)
    }

    /// Part of the data area; it must be between tail and head.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.data_bytes);
        // SAFETY: the range is in the mapping (asserted; it is `data_start + data_bytes` long). All callers
        // ask for bytes between `at` and `head`, which the kernel wrote before it published `head` and does
        // not touch until `release`, which takes `&mut self` and so ends every such view. JUSTIFICATION:
        // copying each record out would cost as much as parsing it.
        unsafe {
            let start = self.map.as_ptr().add(self.data_start + range.start);
            std::slice::from_raw_parts(start, range.end - range.start)
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value, and no view of it can outlive it.
        // JUSTIFICATION: the memory must go back to the system.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// The places in a ring of `data_bytes` of the `length` bytes from `position` on: up to the ring's end, and
/// the rest from its start.
fn ring_ranges(position: u64, length: usize, data_bytes: usize) -> (Range<usize>, Range<usize>) {
    let start = (position % data_bytes as u64) as usize;
    let first = length.min(data_bytes - start);
    (start..start + first, 0..length - first)
}

/// Waits until one of the rings has been filled up to its watermark, at most for `timeout`; a signal ends the
/// wait early. `true` if there is something to read.
pub fn wait_for_records(rings: &[Ring], timeout: Duration) -> io::Result<bool> {
    let mut waited: Vec<PollFd<'_>> =
        rings.iter().map(|ring| PollFd::from_borrowed_fd(ring.event.file.as_fd(), PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut waited, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_goes_over_the_end_is_two_pieces() {
        let cases = [
            (0, 16, (0..16, 0..0)),
            (48, 16, (48..64, 0..0)),
            (56, 16, (56..64, 0..8)),
            (64 * 5 + 40, 64, (40..64, 0..40)),
        ];
        for (position, length, expected) in cases {
            assert_eq!(ring_ranges(position, length, 64), expected, "{position} {length}");
        }
    }

    #[test]
    fn an_event_that_is_not_there_is_an_error_of_the_kernel() {
        let (kernel_frames, user_frames) = (false, false);
        let sampling = TracepointSampling {
            sample_type: 1 << 10,
            wakeup_bytes: 0,
            frames_max: 0,
            kernel_frames,
            user_frames,
        };
        for (id, cpu) in [(u16::MAX, 0), (u16::MAX, 1 << 20)] {
            let error = PerfEvent::open_tracepoint(id, cpu, &sampling).unwrap_err();
            assert!(error.raw_os_error().is_some(), "{error}");
        }
    }
}
