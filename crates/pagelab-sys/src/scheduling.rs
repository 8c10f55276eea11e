//! CPU affinity and real-time priority of a thread, set and restored.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// This thread stays on one CPU until the value is dropped; then it may run where it could before.
#[derive(Debug)]
pub struct PinnedThread {
    previous_mask: CpuSet,
    cpu: u32,
}

impl PinnedThread {
    /// Pins the calling thread to the CPU that it runs on, or to the first that it may use.
    pub fn to_current_cpu() -> std::io::Result<PinnedThread> {
        let before = sched_getaffinity(None)?;
        let here = sched_getcpu();
        let allowed = |cpu: &usize| before.is_set(*cpu);
        let cpu = Some(here).filter(|&cpu| cpu < CpuSet::MAX_CPU && allowed(&cpu));
        let Some(cpu) = cpu.or_else(|| (0..CpuSet::MAX_CPU).find(allowed)) else {
            return Err(std::io::Error::other("the affinity mask contains no CPU"));
        };
        PinnedThread::to_cpu(cpu as u32)
    }

    /// Pins the calling thread to this CPU.
    pub fn to_cpu(cpu: u32) -> std::io::Result<PinnedThread> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        one.set(cpu as usize);
        sched_setaffinity(None, &one)?;
        Ok(PinnedThread { previous_mask: before, cpu })
    }

    /// The CPUs that the calling thread may use.
    pub fn allowed_cpus() -> Vec<u32> {
        let set = sched_getaffinity(None);
        let is_set = |cpu: &usize| set.as_ref().is_ok_and(|set| set.is_set(*cpu));
        (0..CpuSet::MAX_CPU).filter(is_set).map(|cpu| cpu as u32).collect()
    }

    /// The CPU's number.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        // The set was in force before; if the kernel refuses it now, a CPU is offline, and no better set is
        // known.
        let _ = sched_setaffinity(None, &self.previous_mask);
    }
}
/// The calling thread runs before all that are not of its kind, for as long as this is kept (`SCHED_FIFO`,
/// the least of its priorities). Its children do not inherit it. The kernel leaves other threads one part of
/// twenty of each CPU (`kernel.sched_rt_runtime_us`), so keep it for a moment only.
#[derive(Debug)]
pub struct RealtimePriority(());

impl RealtimePriority {
    /// `None` if it is not permitted: it needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    pub fn enter() -> Option<RealtimePriority> {
        let least = libc::sched_param { sched_priority: 1 };
        set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &least).then_some(RealtimePriority(()))
    }
}

impl Drop for RealtimePriority {
    fn drop(&mut self) {
        // The nice value was kept by the kernel. Less is always permitted.
        set_scheduler(libc::SCHED_OTHER, &libc::sched_param { sched_priority: 0 });
    }
}

fn set_scheduler(policy: libc::c_int, parameters: &libc::sched_param) -> bool {
    // SAFETY: 0 is the calling thread, and the call only reads `parameters`.
    // JUSTIFICATION: neither std nor rustix sets a policy of the scheduler.
    unsafe { libc::sched_setscheduler(0, policy, parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_is_undone() {
        let before = sched_getaffinity(None).unwrap();
        let pinned = PinnedThread::to_current_cpu().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert!(before.is_set(pinned.cpu() as usize));
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    fn policy() -> i32 {
        // SAFETY: 0 is the calling thread; no memory is touched. JUSTIFICATION: as above: no other crate
        // requests it.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn it_is_so_while_it_is_kept_and_as_before_after() {
        let before = policy();
        if let Some(kept) = RealtimePriority::enter() {
            assert_eq!(policy(), libc::SCHED_FIFO);
            drop(kept);
        }
        assert_eq!(policy(), before);
    }
}
