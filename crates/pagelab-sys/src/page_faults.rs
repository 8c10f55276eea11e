//! Page fault counters of the calling thread.

use crate::wait::Rusage;

/// Page faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFaults {
    /// Without reading from a device (`ru_minflt`).
    pub minor: u64,
    /// With (`ru_majflt`).
    pub major: u64,
}

impl PageFaults {
    /// Those of the calling thread (`getrusage` with `RUSAGE_THREAD`, 2.6.26). Faults that the kernel takes
    /// on behalf of the thread, as for `MAP_POPULATE`, are counted too (mm/memory.c, `mm_account_fault`).
    pub fn for_this_thread() -> PageFaults {
        let usage = Rusage::read(libc::RUSAGE_THREAD);
        PageFaults { minor: usage.minflt, major: usage.majflt }
    }

    /// Those since an earlier reading.
    pub fn since(self, before: PageFaults) -> PageFaults {
        PageFaults {
            minor: self.minor.saturating_sub(before.minor),
            major: self.major.saturating_sub(before.major),
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;

    use super::*;
    use crate::mapping::{Advice, Mapping};

    #[test]
    fn each_base_page_that_is_touched_is_a_fault() {
        let mut map = Mapping::anonymous(Bytes(1 << 20), Bytes(1)).unwrap();
        // EINVAL where the kernel has no huge pages, and then there is nothing to be kept away.
        let _ = map.advise(0..1 << 20, Advice::NoHugePage);
        let before = PageFaults::for_this_thread();
        map.words_mut().iter_mut().step_by(64).for_each(|word| *word = 1);
        let faults = PageFaults::for_this_thread().since(before);
        let pages = (1u64 << 20) / rustix::param::page_size() as u64;
        assert!((pages..pages + 16).contains(&faults.minor), "{faults:?}");
    }
}
