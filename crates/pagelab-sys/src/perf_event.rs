//! Perf events: `struct perf_event_attr`, the call `perf_event_open`, counters, and a check whether an event
//! can be opened.

use std::fs::File;
use std::io::{self, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::wait::check_zero;

/// `struct perf_event_attr` as of PERF_ATTR_SIZE_VER5 (4.1; 4.8 put `sample_max_stack` into its padding). A
/// later kernel takes a shorter struct, an earlier one takes it while the rest is 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PerfEventAttr {
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
const _: () = assert!(size_of::<PerfEventAttr>() == ATTR_BYTES as usize);
const _: () =
    assert!(offset_of!(PerfEventAttr, flags) == 40 && offset_of!(PerfEventAttr, wakeup_watermark) == 48);
const _: () =
    assert!(offset_of!(PerfEventAttr, sample_regs_user) == 80 && offset_of!(PerfEventAttr, clockid) == 92);
const _: () = assert!(offset_of!(PerfEventAttr, sample_max_stack) == 108);

/// Bits of [`PerfEventAttr::flags`] that more than one caller sets: opened disabled; no counts of the kernel
/// and of a hypervisor, which perf_event_paranoid ≤ 2 permits to all users.
pub(crate) const DISABLED: u64 = 1 << 0;
pub(crate) const USER_ONLY: u64 = 1 << 5 | 1 << 6;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

impl PerfEventAttr {
    /// An event by `type` and `config`; all else is 0.
    pub fn new(kind: u32, config: u64) -> PerfEventAttr {
        PerfEventAttr { kind, size: ATTR_BYTES, config, ..PerfEventAttr::default() }
    }
}

/// Whose events are counted, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EventTarget {
    /// Those of the task with this number, on any CPU; 0 is the calling thread.
    Task(libc::pid_t),
    /// Those of all processes on this CPU.
    Cpu(u32),
    /// Those of the task with this number while it is on this CPU.
    TaskOnCpu(libc::pid_t, u32),
}

/// Opens an event, in the group of a leader if there is one. The error is the kernel's own.
pub(crate) fn open_event(
    mut attr: PerfEventAttr,
    target: EventTarget,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<File> {
    let (pid, cpu): (libc::pid_t, libc::c_int) = match target {
        EventTarget::Task(pid) => (pid, -1),
        EventTarget::Cpu(cpu) => (-1, cpu as libc::c_int),
        EventTarget::TaskOnCpu(pid, cpu) => (pid, cpu as libc::c_int),
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
    // SAFETY: the call succeeded, so `fd` is a new descriptor without another owner. JUSTIFICATION: taking
    // ownership of a raw descriptor is unsafe by nature.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

// Counters of one process and its descendants, from its next exec on.
//
// Each counter is read for itself. A read of a whole group (PERF_FORMAT_GROUP) of inherited events was
// refused by early kernels (EINVAL, kernel/events/core.c, `perf_event_alloc`), and is refused by later ones
// where parent and child differ in what is in the group (ECHILD, 6.6, commit 32671e3799ca). The group is
// still worth having: its counters are on the hardware at the same times, so that their ratios are of the
// same moments.

/// Bits of `flags`.
const INHERIT: u64 = 1 << 1;
/// Copies for threads alone, not for processes (5.13).
const INHERIT_THREAD: u64 = 1 << 35;
const ENABLE_ON_EXEC_BIT: u32 = 12;
pub(crate) const ENABLE_ON_EXEC: u64 = 1 << ENABLE_ON_EXEC_BIT;
/// PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const FORMAT_TIMES: u64 = 1 << 0 | 1 << 1;

/// Event to count (`type` and `config` of the attribute).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEvent {
    /// `PERF_COUNT_HW_…`: cycles are 0, instructions 1.
    Hardware(u64),
    /// `PERF_COUNT_SW_…`.
    Software(u64),
    /// A tracepoint, by the number in its format file.
    Tracepoint(u16),
    /// A cache: which one, which operation, and accesses or misses.
    Cache(HardwareCache, CacheOperation, CacheResult),
    /// An event of this processor: event number and unit mask as its maker lists them.
    Raw {
        /// The event number; AMD's has up to 12 bits.
        event: u16,
        /// The unit mask.
        mask: u8,
    },
}

/// `PERF_COUNT_HW_CACHE_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum HardwareCache {
    L1d = 0,
    L1i = 1,
    LastLevel = 2,
    Dtlb = 3,
    Itlb = 4,
}

/// `PERF_COUNT_HW_CACHE_OP_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum CacheOperation {
    Read = 0,
    Write = 1,
    Prefetch = 2,
}

/// `PERF_COUNT_HW_CACHE_RESULT_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum CacheResult {
    Access = 0,
    Miss = 1,
}

impl CounterEvent {
    fn type_and_config(self) -> (u32, u64) {
        match self {
            CounterEvent::Hardware(config) => (0, config),
            CounterEvent::Software(config) => (1, config),
            CounterEvent::Tracepoint(id) => (2, u64::from(id)),
            CounterEvent::Cache(cache, operation, outcome) => {
                (3, cache as u64 | (operation as u64) << 8 | (outcome as u64) << 16)
            }
            // Bits 32 to 35 are the rest of AMD's event number, and reserved on Intel (arch/x86/events/).
            CounterEvent::Raw { event, mask } => {
                let event = u64::from(event);
                (4, (event & 0xff) | u64::from(mask) << 8 | (event >> 8) << 32)
            }
        }
    }
}

/// When a counter begins to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterStart {
    /// With the next exec of its task.
    OnExec,
    /// With [`set_own_counters`], which stops it too.
    Manual,
}

/// Starts or stops all counters that the calling thread has opened (PR_TASK_PERF_EVENTS_ENABLE and
/// _DISABLE, 2.6.31), in one call: with a call for each of them, the first would count the others' calls.
/// Copies in threads and processes that were started since follow.
pub fn set_own_counters(enabled: bool) -> io::Result<()> {
    let option = if enabled { libc::PR_TASK_PERF_EVENTS_ENABLE } else { libc::PR_TASK_PERF_EVENTS_DISABLE };
    // SAFETY: these options take no arguments and touch no memory of this process.
    // JUSTIFICATION: rustix has no face for this option of prctl.
    check_zero(unsafe { libc::prctl(option, 0, 0, 0, 0) })
}

/// A counter that waits for its start.
#[derive(Debug)]
pub struct PerfCounter {
    file: File,
}

/// Value of a counter: of the process, its threads, and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterReading {
    /// Times while it was on the hardware.
    pub count: u64,
    /// How long it was to count, ns, summed over tasks.
    pub enabled_ns: u64,
    /// How long it was on the hardware, ns: less where counters had to take turns.
    pub running_ns: u64,
}

impl PerfCounter {
    /// Opens a counter of `pid`, a task that has not yet started another one; 0 is the calling thread. With
    /// a `leader` it counts whenever that one does. `user_only` leaves the kernel out, which
    /// kernel.perf_event_paranoid may demand. The error is the kernel's own: ENOENT, EOPNOTSUPP or EINVAL
    /// if it has no such event, EACCES or EPERM if it is forbidden, ENOSYS without perf events.
    pub fn open(
        event: CounterEvent,
        pid: i32,
        start: CounterStart,
        leader: Option<&PerfCounter>,
        user_only: bool,
    ) -> io::Result<PerfCounter> {
        let (kind, config) = event.type_and_config();
        let waits = match (leader, start) {
            (Some(_), _) => 0,
            (None, CounterStart::OnExec) => DISABLED | ENABLE_ON_EXEC,
            (None, CounterStart::Manual) => DISABLED,
        };
        let leaves_out = if user_only { USER_ONLY } else { 0 };
        let flags = INHERIT | waits | leaves_out;
        let attr = PerfEventAttr { flags, read_format: FORMAT_TIMES, ..PerfEventAttr::new(kind, config) };
        let file = open_event(attr, EventTarget::Task(pid), leader.map(|leader| leader.file.as_fd()))?;
        Ok(PerfCounter { file })
    }

    /// Opens the CPU time, in nanoseconds, of one thread of another process from now on, with that of the
    /// threads that it starts (PERF_COUNT_SW_TASK_CLOCK). Unlike CPU clocks of other processes, which are as
    /// of the last tick, it is read on the CPU where the thread runs. Before 5.13 threads that are started
    /// later are not in it.
    pub fn open_task_clock(tid: i32) -> io::Result<PerfCounter> {
        let attr = |flags| PerfEventAttr { flags, read_format: FORMAT_TIMES, ..PerfEventAttr::new(1, 1) };
        let file = match open_event(attr(INHERIT | INHERIT_THREAD), EventTarget::Task(tid), None) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                open_event(attr(0), EventTarget::Task(tid), None)?
            }
            opened => opened?,
        };
        Ok(PerfCounter { file })
    }

    /// Its value so far.
    pub fn read(&self) -> io::Result<CounterReading> {
        let mut words = [0u8; 24];
        (&self.file).read_exact(&mut words)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| words[8 * at + i]));
        Ok(CounterReading { count: word(0), enabled_ns: word(1), running_ns: word(2) })
    }
}

/// CPU cycles: the plainest hardware counter.
pub const CYCLES: CounterEvent = CounterEvent::Hardware(0);
/// Data-TLB read misses.
pub const DTLB_LOAD_MISSES: CounterEvent =
    CounterEvent::Cache(HardwareCache::Dtlb, CacheOperation::Read, CacheResult::Miss);
/// Page faults, counted by the kernel itself.
pub const PAGE_FAULTS: CounterEvent = CounterEvent::Software(2);

/// Opens `event` for this thread in user space, does some work, and returns the count. The error is the
/// kernel's own: ENOENT or EOPNOTSUPP without such a counter, EACCES or EPERM where perf_event_paranoid
/// forbids it, ENOSYS without perf events.
pub fn try_event(event: CounterEvent) -> io::Result<u64> {
    let (kind, config) = event.type_and_config();
    let attr = PerfEventAttr { flags: USER_ONLY, ..PerfEventAttr::new(kind, config) };
    let mut file = open_event(attr, EventTarget::Task(0), None)?;
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
    use std::io::Write;
    use std::process::{Command, Stdio};

    use pagelab_model::Bytes;

    use super::*;

    #[test]
    fn attributes_lie_where_the_kernel_reads_them() {
        let attr = PerfEventAttr { clockid: 0x0102_0304, size: ATTR_BYTES, ..PerfEventAttr::default() };
        // SAFETY: a plain struct without padding is read as its bytes. JUSTIFICATION: the test is about the
        // layout.
        let bytes = unsafe { std::mem::transmute::<PerfEventAttr, [u8; ATTR_BYTES as usize]>(attr) };
        assert_eq!(bytes[92..96], 0x0102_0304i32.to_ne_bytes());
        assert_eq!(bytes[4..8], ATTR_BYTES.to_ne_bytes());
        assert!(bytes[8..92].iter().chain(&bytes[96..]).all(|&byte| byte == 0));
    }

    #[test]
    fn codes_are_those_of_the_kernels_header() {
        let misses = CounterEvent::Cache(HardwareCache::Dtlb, CacheOperation::Write, CacheResult::Miss);
        let cases = [
            (CounterEvent::Hardware(1), (0, 1)),
            (CounterEvent::Software(2), (1, 2)),
            (CounterEvent::Tracepoint(700), (2, 700)),
            (misses, (3, 0x1_0103)),
            (CounterEvent::Raw { event: 0x49, mask: 0x10 }, (4, 0x1049)),
            (CounterEvent::Raw { event: 0x1c2, mask: 3 }, (4, 0x1_0000_03c2)),
        ];
        for (what, codes) in cases {
            assert_eq!(what.type_and_config(), codes, "{what:?}");
        }
    }

    #[test]
    fn a_counter_counts_from_exec_on_and_children_too() {
        // 20 and more processes, each of which faults dozens of pages.
        let script = r#"read line; exec sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done'"#;
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        // PERF_COUNT_SW_PAGE_FAULTS and _PAGE_FAULTS_MIN.
        let Ok(faults) = PerfCounter::open(CounterEvent::Software(2), pid, CounterStart::OnExec, None, false)
        else {
            drop(child.stdin.take());
            child.wait().unwrap();
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        let minor =
            PerfCounter::open(CounterEvent::Software(5), pid, CounterStart::OnExec, Some(&faults), false)
                .unwrap();
        assert_eq!(faults.read().unwrap(), CounterReading::default(), "nothing before the exec");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        let (all, minor) = (faults.read().unwrap(), minor.read().unwrap());
        assert!(all.count > 10 * 20, "the children's faults are missing: {all:?}");
        assert!(minor.count <= all.count && minor.count > all.count / 2, "{minor:?} of {all:?}");
        assert!(all.enabled_ns > 0 && all.running_ns == all.enabled_ns, "{all:?}");
    }

    #[test]
    fn a_counter_that_is_switched_counts_what_lies_between() {
        let touch = |pages: u64| {
            let page = rustix::param::page_size() as u64;
            let mut map = crate::mapping::Mapping::anonymous(Bytes(pages * page), Bytes(1)).unwrap();
            let _ = map.advise(0..pages * page, crate::mapping::Advice::NoHugePage);
            let step = (page / 8) as usize;
            map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        };
        let Ok(faults) = PerfCounter::open(CounterEvent::Software(5), 0, CounterStart::Manual, None, false)
        else {
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        touch(300);
        assert_eq!(faults.read().unwrap(), CounterReading::default(), "nothing before it is switched on");
        for _ in 0..2 {
            set_own_counters(true).unwrap();
            touch(100);
            // Threads and their work count too.
            std::thread::scope(|scope| drop(scope.spawn(|| touch(50)).join()));
            set_own_counters(false).unwrap();
            touch(300);
        }
        let count = faults.read().unwrap();
        assert!((300..400).contains(&count.count), "{count:?}, where twice 150 and little else were due");
    }

    #[test]
    fn the_task_clock_of_another_process_is_told_between_ticks() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let Ok(clock) = PerfCounter::open_task_clock(child.id() as i32) else {
            child.kill().unwrap();
            child.wait().unwrap();
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        // A clock of ticks moves by a millisecond at least; this one by less, as soon as both run at once.
        let began = std::time::Instant::now();
        let (mut before, mut smallest) = (0, u64::MAX);
        while smallest > 500_000 && began.elapsed().as_secs() < 20 {
            let now = clock.read().unwrap().count;
            assert!(now >= before);
            smallest = if now > before { smallest.min(now - before) } else { smallest };
            before = now;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(smallest <= 500_000, "{smallest} ns");
    }

    #[test]
    fn every_event_ends_in_a_count_or_in_the_kernels_words() {
        for event in [CYCLES, DTLB_LOAD_MISSES, PAGE_FAULTS] {
            match try_event(event) {
                Ok(count) => assert!(event != CYCLES || count < 1 << 60, "{event:?} {count}"),
                Err(error) => assert!(error.raw_os_error().is_some(), "{event:?} {error}"),
            }
        }
    }
}
