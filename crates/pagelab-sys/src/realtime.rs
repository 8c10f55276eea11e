//! A thread that is not put off by others for a moment.

/// The calling thread runs before all that are not of its kind, for as long as this is kept (`SCHED_FIFO`,
/// the least of its priorities). Its children do not inherit it. The kernel leaves other threads one part of
/// twenty of each CPU (`kernel.sched_rt_runtime_us`), so keep it for a moment only.
#[derive(Debug)]
pub struct Realtime(());

impl Realtime {
    /// `None` where it is not permitted: it needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    pub fn enter() -> Option<Realtime> {
        let least = libc::sched_param { sched_priority: 1 };
        set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &least).then_some(Realtime(()))
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        // The nice value was kept by the kernel. Less is always permitted.
        set(libc::SCHED_OTHER, &libc::sched_param { sched_priority: 0 });
    }
}

fn set(policy: libc::c_int, parameters: &libc::sched_param) -> bool {
    // SAFETY: 0 is the calling thread, and the call only reads `parameters`.
    // JUSTIFICATION: neither std nor rustix sets a policy of the scheduler.
    unsafe { libc::sched_setscheduler(0, policy, parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: 0 is the calling thread; no memory is touched.
        // JUSTIFICATION: as above: nobody else asks for it.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn it_is_so_while_it_is_kept_and_as_before_after() {
        let before = policy();
        if let Some(kept) = Realtime::enter() {
            assert_eq!(policy(), libc::SCHED_FIFO);
            drop(kept);
        }
        assert_eq!(policy(), before);
    }
}
