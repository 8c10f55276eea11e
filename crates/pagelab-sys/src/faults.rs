//! Page faults of the calling thread, as the kernel counts them.

/// Page faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Without reading from a device (`ru_minflt`).
    pub minor: u64,
    /// With (`ru_majflt`).
    pub major: u64,
}

impl Faults {
    /// Those of the calling thread (`getrusage` with `RUSAGE_THREAD`, 2.6.26). Faults that the kernel takes
    /// on behalf of the thread, as for `MAP_POPULATE`, are counted too (mm/memory.c, `mm_account_fault`).
    pub fn of_this_thread() -> Faults {
        // SAFETY: all zeros is a value of this plain struct.
        // JUSTIFICATION: it has private padding on some systems, so it cannot be written out.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable and outlives the call.
        // JUSTIFICATION: neither std nor rustix wraps getrusage(2).
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let count = |count: libc::c_long| u64::try_from(count).unwrap_or(0);
        Faults { minor: count(usage.ru_minflt), major: count(usage.ru_majflt) }
    }

    /// Those since an earlier reading.
    pub fn since(self, before: Faults) -> Faults {
        Faults {
            minor: self.minor.saturating_sub(before.minor),
            major: self.major.saturating_sub(before.major),
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;

    use super::*;
    use crate::map::{Advice, Mapping};

    #[test]
    fn each_base_page_that_is_touched_is_a_fault() {
        let mut map = Mapping::anonymous(Bytes(1 << 20), Bytes(1)).unwrap();
        // EINVAL where the kernel has no huge pages, and then there is nothing to be kept away.
        let _ = map.advise(0..1 << 20, Advice::NoHugePage);
        let before = Faults::of_this_thread();
        map.words_mut().iter_mut().step_by(64).for_each(|word| *word = 1);
        let faults = Faults::of_this_thread().since(before);
        let pages = (1u64 << 20) / rustix::param::page_size() as u64;
        assert!((pages..pages + 16).contains(&faults.minor), "{faults:?}");
    }
}
