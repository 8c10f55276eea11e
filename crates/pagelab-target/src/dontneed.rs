//! Ranges of memory that a process drops in one call.
//!
//! A call of `madvise` for each range flushes the TLB for each, page by page up to 33 pages
//! (arch/x86/mm/tlb.c, `tlb_single_page_flush_ceiling`), which takes 8 µs a page in a virtual machine on an
//! EPYC of family 25, model 17. `process_madvise` on the own process takes any advice since Linux 6.13
//! (mm/madvise.c), names it without a descriptor since 6.15 (`PIDFD_SELF`), and flushes once for all ranges
//! since 6.16. Its list of ranges is in a page that the process maps for the call and unmaps after it.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use pagelab_formats::process_status;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::clock;
use pagelab_sys::perf_event::PerfCounter;

use crate::process_injection::list_threads;

/// `PIDFD_SELF` of include/uapi/linux/pidfd.h: the calling thread, instead of a descriptor.
const PIDFD_SELF: i64 = -10_000;

/// For fewer ranges the three calls cost more.
const BATCH_RANGES_MIN: usize = 4;

/// Ranges in one call, of the 1024 that the kernel takes (`UIO_MAXIOV`).
const BATCH_RANGES_MAX: usize = 512;

/// Errors below this are addresses.
const ERROR_RANGE: Range<i64> = -4095..0;

/// Whether this kernel drops several ranges in one call; assumed until a call fails.
static BATCH_SUPPORTED: AtomicBool = AtomicBool::new(true);

/// CPU time that a process has used, and its page faults that needed no disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// When that was, in nanoseconds of the clock that all processes share (CLOCK_MONOTONIC).
    pub at_ns: u64,
    /// CPU time in nanoseconds. For another running process, the kernel reports it as of the last tick
    /// (kernel/sched/cputime.c, `thread_group_cputime`): it may be late by 1 to 10 ms.
    pub cpu_ns: u64,
    /// Page faults of all its threads.
    pub faults: u64,
}

impl CpuUsage {
    /// The usage of a process so far; zero if it has ended.
    pub fn read(root: &Root, pid: u32) -> CpuUsage {
        let stat = Reader::new(root).parse(&paths::process_stat_file(pid), process_status::parse_stat);
        let faults = stat.map_or(0, |stat| stat.minor_faults);
        let cpu_ns = clock::process_cpu_ns(pid).unwrap_or(0);
        CpuUsage { at_ns: clock::monotonic_ns(), cpu_ns, faults }
    }
}

/// The CPU time of all threads of a process, precise between ticks.
#[derive(Debug)]
pub struct TaskClock(Vec<PerfCounter>);

/// Each thread has a counter: for more threads, the clock of the process has to do.
const THREADS_MAX: usize = 64;

impl TaskClock {
    /// Begins to count. `None`: perf events are not permitted, or there are too many threads.
    pub fn open(root: &Root, pid: u32) -> Option<TaskClock> {
        let threads = list_threads(root, pid);
        if threads.is_empty() || threads.len() > THREADS_MAX {
            return None;
        }
        let open_counter = |tid: u32| PerfCounter::open_task_clock(tid as i32).ok();
        threads.into_iter().map(open_counter).collect::<Option<Vec<PerfCounter>>>().map(TaskClock)
    }

    /// Nanoseconds since it began; `None` if a counter cannot be read.
    pub fn read_ns(&self) -> Option<u64> {
        self.0.iter().map(|counter| counter.read().ok().map(|count| count.count)).sum()
    }
}

/// Makes a process drop these ranges by `call`, an injected system call; returns the result for each.
pub fn drop_ranges<E>(
    pid: u32,
    ranges: &[Range<u64>],
    mut call: impl FnMut(i64, [u64; 6]) -> Result<i64, E>,
) -> Result<Vec<i64>, E> {
    let mut results = Vec::with_capacity(ranges.len());
    for chunk in ranges.chunks(BATCH_RANGES_MAX) {
        let dropped = match BATCH_SUPPORTED.load(Ordering::Relaxed) && chunk.len() >= BATCH_RANGES_MIN {
            true => drop_in_one_call(pid, chunk, &mut call)?,
            false => 0,
        };
        results.resize(results.len() + dropped, 0);
        for range in &chunk[dropped..] {
            let length = range.end.saturating_sub(range.start);
            results
                .push(call(libc::SYS_madvise, [range.start, length, libc::MADV_DONTNEED as u64, 0, 0, 0])?);
        }
    }
    Ok(results)
}

/// Number of ranges that were dropped, from the first on.
fn drop_in_one_call<E>(
    pid: u32,
    ranges: &[Range<u64>],
    call: &mut impl FnMut(i64, [u64; 6]) -> Result<i64, E>,
) -> Result<usize, E> {
    let list: Vec<u8> = ranges
        .iter()
        .flat_map(|range| [range.start, range.end.saturating_sub(range.start)])
        .flat_map(u64::to_ne_bytes)
        .collect();
    let bytes = list.len() as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let at = call(libc::SYS_mmap, [0, bytes, protection, flags, u64::MAX, 0])?;
    if ERROR_RANGE.contains(&at) {
        return Ok(0);
    }
    let advised_bytes = match write_list(pid, at as u64, &list) {
        true => {
            let count = ranges.len() as u64;
            let arguments = [PIDFD_SELF as u64, at as u64, count, libc::MADV_DONTNEED as u64, 0, 0];
            call(libc::SYS_process_madvise, arguments)?
        }
        false => 0,
    };
    call(libc::SYS_munmap, [at as u64, bytes, 0, 0, 0, 0])?;
    // Locked memory gives EINVAL, too.
    if [libc::EBADF, libc::ENOSYS, libc::EPERM].contains(&(-advised_bytes as i32)) {
        BATCH_SUPPORTED.store(false, Ordering::Relaxed);
    }
    Ok(count_covered(ranges, u64::try_from(advised_bytes).unwrap_or(0)))
}

fn write_list(pid: u32, at: u64, list: &[u8]) -> bool {
    let memory = OpenOptions::new().write(true).open(paths::process_file(pid, "mem"));
    memory.is_ok_and(|memory| memory.write_all_at(list, at).is_ok())
}

/// The number of ranges, from the first on, in a number of bytes.
fn count_covered(ranges: &[Range<u64>], bytes: u64) -> usize {
    let mut remaining = bytes;
    let is_done = |range: &&Range<u64>| {
        let length = range.end.saturating_sub(range.start);
        let is_done = length <= remaining;
        remaining = remaining.saturating_sub(length);
        is_done
    };
    ranges.iter().take_while(is_done).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_advised_covers_the_first_ranges() {
        let ranges = [0..10, 20..25, 30..40];
        for (bytes, count) in [(0, 0), (9, 0), (10, 1), (14, 1), (15, 2), (25, 3), (99, 3)] {
            assert_eq!(count_covered(&ranges, bytes), count, "{bytes}");
        }
    }

    #[test]
    fn where_it_cannot_be_done_at_once_each_range_is_dropped_by_itself() {
        let ranges: Vec<Range<u64>> = (0..9).map(|n| n << 20..(n << 20) + 4096).collect();
        let mut calls = Vec::new();
        let results = drop_ranges::<()>(u32::MAX, &ranges, |number, arguments| {
            calls.push((number, arguments[0]));
            // No memory for the list.
            Ok(if number == libc::SYS_mmap { -12 } else { 0 })
        });
        assert_eq!(results, Ok(vec![0; 9]));
        assert_eq!(calls.remove(0).0, libc::SYS_mmap);
        let each: Vec<_> = ranges.iter().map(|range| (libc::SYS_madvise, range.start)).collect();
        assert_eq!(calls, each);
    }
}
