//! Clocks in integer nanoseconds.

use pagelab_model::run::ClockReading;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: since boot, without the time asleep.
pub fn monotonic_ns() -> u64 {
    timespec_to_ns(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of `CLOCK_BOOTTIME`: since boot, with the time asleep.
pub fn boottime_ns() -> u64 {
    timespec_to_ns(clock_gettime(ClockId::Boottime))
}

/// Nanoseconds of `CLOCK_REALTIME`: since 1970, UTC. It can be set, so nothing may be decided by it.
pub fn realtime_ns() -> u64 {
    timespec_to_ns(clock_gettime(ClockId::Realtime))
}

/// Reads the realtime and the boottime clock.
pub fn current_moment() -> ClockReading {
    ClockReading { realtime_ns: realtime_ns(), boottime_ns: boottime_ns() }
}

/// Nanoseconds of CPU time that this thread has used (`CLOCK_THREAD_CPUTIME_ID`). Time in which another
/// task ran on the CPU is not in it; time that a hypervisor stole may be.
pub fn thread_cpu_ns() -> u64 {
    timespec_to_ns(clock_gettime(ClockId::ThreadCPUTime))
}

/// Nanoseconds of CPU time, user and system, that all threads of the process `pid` have used so far.
pub fn process_cpu_ns(pid: u32) -> std::io::Result<u64> {
    let mut clock: libc::clockid_t = 0;
    let no_such = || std::io::Error::from_raw_os_error(libc::ESRCH);
    let pid = libc::pid_t::try_from(pid).map_err(|_| no_such())?;
    // SAFETY: `clock` is writable and outlives the call.
    // JUSTIFICATION: neither std nor rustix finds the CPU clock of another process.
    let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if error != 0 {
        return Err(std::io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable and outlives the call; a clock of an exited thread is an error of the call.
    // JUSTIFICATION: rustix reads only clocks that it has names for.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(timespec_to_ns(Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec }))
}

/// A wall clock before 1970 counts as 1970; the other clocks are never negative.
fn timespec_to_ns(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance_with_work() {
        let (wall, cpu) = (monotonic_ns(), thread_cpu_ns());
        let mut x = 1u64;
        while thread_cpu_ns() - cpu < 1_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(monotonic_ns() - wall >= 900_000, "a millisecond of CPU takes about as much wall time");
        assert!(process_cpu_ns(std::process::id()).unwrap() >= 1_000_000, "a process has its threads' time");
        assert!(process_cpu_ns(u32::MAX).is_err());
        let monotonic = monotonic_ns();
        assert!(boottime_ns() >= monotonic, "boot time has the time asleep on top");
    }
}
