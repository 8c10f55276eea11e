//! `wait4`: exit status and resource usage of a child.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// `struct rusage`: what a process used, with those of its descendants that were waited for; the nine of its
/// sixteen fields that Linux fills (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rusage {
    /// CPU time in user mode, ns; the kernel gives whole microseconds.
    pub utime_ns: u64,
    /// CPU time in the kernel, ns; whole microseconds too.
    pub stime_ns: u64,
    /// The most memory that one of the processes had resident, KiB. It begins with what the process that
    /// forked had: exec keeps the old high-water mark (fs/exec.c, `exec_mmap`).
    pub maxrss_kib: u64,
    /// Page faults without input or output.
    pub minflt: u64,
    /// Page faults that had to wait for a device.
    pub majflt: u64,
    /// Blocks of 512 bytes that were read from a device.
    pub inblock: u64,
    /// Blocks of 512 bytes that were written, as they became dirty.
    pub oublock: u64,
    /// Switches to another task because it waited.
    pub nvcsw: u64,
    /// Involuntary context switches: its time slice ended, or another task preempted it.
    pub nivcsw: u64,
}

impl From<&libc::rusage> for Rusage {
    fn from(usage: &libc::rusage) -> Rusage {
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        let ns = |time: libc::timeval| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            let us = u64::try_from(time.tv_usec).unwrap_or(0);
            seconds.saturating_mul(1_000_000_000).saturating_add(us.saturating_mul(1000))
        };
        Rusage {
            utime_ns: ns(usage.ru_utime),
            stime_ns: ns(usage.ru_stime),
            maxrss_kib: count(usage.ru_maxrss),
            minflt: count(usage.ru_minflt),
            majflt: count(usage.ru_majflt),
            inblock: count(usage.ru_inblock),
            oublock: count(usage.ru_oublock),
            nvcsw: count(usage.ru_nvcsw),
            nivcsw: count(usage.ru_nivcsw),
        }
    }
}

impl Rusage {
    /// Resource use of two processes: the sum, and the maximum of the peaks.
    #[must_use]
    pub fn combine(self, other: &Rusage) -> Rusage {
        Rusage {
            utime_ns: self.utime_ns.saturating_add(other.utime_ns),
            stime_ns: self.stime_ns.saturating_add(other.stime_ns),
            maxrss_kib: self.maxrss_kib.max(other.maxrss_kib),
            minflt: self.minflt.saturating_add(other.minflt),
            majflt: self.majflt.saturating_add(other.majflt),
            inblock: self.inblock.saturating_add(other.inblock),
            oublock: self.oublock.saturating_add(other.oublock),
            nvcsw: self.nvcsw.saturating_add(other.nvcsw),
            nivcsw: self.nivcsw.saturating_add(other.nivcsw),
        }
    }

    /// Of this process with all its threads, and of its children that were waited for.
    pub fn for_this_process() -> Rusage {
        Rusage::read(libc::RUSAGE_SELF).combine(&Rusage::read(libc::RUSAGE_CHILDREN))
    }

    pub(crate) fn read(who: libc::c_int) -> Rusage {
        Rusage::from(&Rusage::read_raw(who))
    }

    fn read_raw(who: libc::c_int) -> libc::rusage {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is writable and outlives the call; all zeros is a valid rusage, and the kernel
        // writes over it with one.
        // JUSTIFICATION: neither std nor rustix wraps getrusage(2).
        unsafe {
            libc::getrusage(who, usage.as_mut_ptr());
            usage.assume_init()
        }
    }
}

/// Waits for the child `pid`, or only looks: `None` while it runs. The child is reaped by this call, so
/// nothing else may wait for it (`std::process::Child::wait` would find no child). ECHILD: no such child.
pub fn wait4(pid: u32, no_hang: bool) -> io::Result<Option<(ExitStatus, Rusage)>> {
    wait4_raw(to_pid(pid)?, no_hang)
}

/// Waits for one exited child of the process group `group`: a child of this process, or an orphan that it
/// adopted as subreaper. `None` if all of them run; ECHILD: it has no child of this process.
pub fn wait4_group(group: u32) -> io::Result<Option<(ExitStatus, Rusage)>> {
    wait4_raw(-to_pid(group)?, true)
}

fn to_pid(pid: u32) -> io::Result<libc::pid_t> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0);
    pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))
}

fn wait4_raw(pid: libc::pid_t, no_hang: bool) -> io::Result<Option<(ExitStatus, Rusage)>> {
    let options = if no_hang { libc::WNOHANG } else { 0 };
    let mut status: libc::c_int = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `status` and `usage` are writable and outlive the call.
    // JUSTIFICATION: neither std nor rustix gives the rusage of one child.
    let ended = retry_interrupted(|| unsafe { libc::wait4(pid, &mut status, options, usage.as_mut_ptr()) })?;
    if ended == 0 {
        return Ok(None);
    }
    // SAFETY: all zeros is a valid rusage, and the kernel wrote over it with one.
    // JUSTIFICATION: the type is of plain numbers, and safe code cannot say so.
    let usage = unsafe { usage.assume_init_ref() };
    Ok(Some((ExitStatus::from_raw(status), Rusage::from(usage))))
}

/// The result of a call that returns 0, or sets `errno`.
pub(crate) fn check_zero(result: impl Into<i64>) -> io::Result<()> {
    if result.into() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Repeats a system call that signals interrupt. A negative result is the error in `errno`.
pub(crate) fn retry_interrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<libc::c_int> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    #[allow(clippy::zombie_processes, reason = "it is waited for by what is tested")]
    fn a_child_is_waited_for_once_and_tells_what_it_used() {
        let mut child = Command::new("sh");
        child.args(["-c", "read line; exit 7"]).stdin(Stdio::piped());
        let mut child = child.spawn().unwrap();
        assert!(wait4(child.id(), true).unwrap().is_none(), "it waits for a line");
        drop(child.stdin.take());
        let (status, usage) = wait4(child.id(), false).unwrap().unwrap();
        assert_eq!(status.code(), Some(7));
        assert!(usage.minflt > 0 && usage.maxrss_kib > 0, "{usage:?}");
        let raw = Rusage::read_raw(libc::RUSAGE_CHILDREN);
        let never = [raw.ru_ixrss, raw.ru_idrss, raw.ru_isrss, raw.ru_nswap, raw.ru_msgsnd, raw.ru_msgrcv];
        assert_eq!((never, raw.ru_nsignals), ([0; 6], 0), "Linux fills it after all");
        let gone = wait4(child.id(), true).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ECHILD));
        assert!(wait4(0, true).is_err() && wait4(u32::MAX, true).is_err());
    }

    #[test]
    #[allow(clippy::zombie_processes, reason = "it is waited for by what is tested")]
    fn children_of_a_group_are_waited_for_and_no_others() {
        let start = |group: i32, code: &str| {
            let mut child = Command::new("sh");
            child.args(["-c", &format!("read line; exit {code}")]).stdin(Stdio::piped());
            std::os::unix::process::CommandExt::process_group(&mut child, group);
            child.spawn().unwrap()
        };
        let mut leader = start(0, "3");
        let mut member = start(leader.id().cast_signed(), "4");
        let mut stranger = start(0, "5");
        let group = leader.id();
        assert!(wait4_group(group).unwrap().is_none(), "both wait for a line");
        drop((leader.stdin.take(), member.stdin.take(), stranger.stdin.take()));
        let mut codes = Vec::new();
        while codes.len() < 2 {
            codes.extend(wait4_group(group).unwrap().and_then(|(status, _)| status.code()));
        }
        codes.sort_unstable();
        assert_eq!(codes, [3, 4]);
        assert_eq!(wait4_group(group).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        assert_eq!(stranger.wait().unwrap().code(), Some(5));
        assert!(wait4_group(0).is_err(), "0 would be our own group");
    }

    #[test]
    fn what_two_processes_used_is_added_up_but_for_the_largest() {
        let one =
            Rusage { utime_ns: 5, stime_ns: 1, maxrss_kib: 70, minflt: 2, nvcsw: 1, ..Rusage::default() };
        let two = Rusage { utime_ns: 7, majflt: 4, maxrss_kib: 30, inblock: 8, ..Rusage::default() };
        let both = Rusage { utime_ns: 12, majflt: 4, inblock: 8, ..one };
        assert_eq!((one.combine(&two), two.combine(&one)), (both, both));
    }
}
