//! Keeping a thread on one CPU, and letting it go again.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// This thread stays on one CPU until the value is dropped; then it may run where it could before.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    cpu: u32,
}

impl Pinned {
    /// Pins the calling thread to the CPU that it runs on, or to the first that it may use.
    pub fn here() -> std::io::Result<Pinned> {
        let before = sched_getaffinity(None)?;
        let here = sched_getcpu();
        let allowed = |cpu: &usize| before.is_set(*cpu);
        let cpu = Some(here).filter(|&cpu| cpu < CpuSet::MAX_CPU && allowed(&cpu));
        let Some(cpu) = cpu.or_else(|| (0..CpuSet::MAX_CPU).find(allowed)) else {
            return Err(std::io::Error::other("no CPU is allowed"));
        };
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one)?;
        Ok(Pinned { before, cpu: cpu as u32 })
    }

    /// Pins the calling thread to this CPU.
    pub fn on(cpu: u32) -> std::io::Result<Pinned> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        one.set(cpu as usize);
        sched_setaffinity(None, &one)?;
        Ok(Pinned { before, cpu })
    }

    /// The CPUs that the calling thread may use.
    pub fn allowed() -> Vec<u32> {
        let set = sched_getaffinity(None);
        let is_set = |cpu: &usize| set.as_ref().is_ok_and(|set| set.is_set(*cpu));
        (0..CpuSet::MAX_CPU).filter(is_set).map(|cpu| cpu as u32).collect()
    }

    /// The CPU's number.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The set was in force before; if the kernel refuses it now, a CPU went offline and there is no
        // better.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_is_undone() {
        let before = sched_getaffinity(None).unwrap();
        let pinned = Pinned::here().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert!(before.is_set(pinned.cpu() as usize));
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
