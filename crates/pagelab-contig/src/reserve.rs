//! The memory that is never taken: whoever fills memory on purpose leaves this much to everybody else.

use pagelab_model::Bytes;

/// Memory that stays available (`MemAvailable` of `/proc/meminfo`) whatever is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reserve(pub Bytes);

impl Reserve {
    /// The least that is left by default, on the smallest of machines.
    const LEAST: Bytes = Bytes(512 << 20);

    /// The default of a machine with so much memory: 5 % of it, and 512 MiB at least.
    pub fn of(mem_total: Bytes) -> Reserve {
        Reserve(Bytes(mem_total.0 / 20).max(Reserve::LEAST))
    }

    /// How much may still be taken where so much is available.
    pub fn room(self, mem_available: Bytes) -> Bytes {
        Bytes(mem_available.0.saturating_sub(self.0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_and_512_mib_at_least() {
        for (total, reserve) in [(1 << 30, 512 << 20), (10 << 30, 512 << 20), (40 << 30, 2 << 30)] {
            assert_eq!(Reserve::of(Bytes(total)), Reserve(Bytes(reserve)), "of {total}");
        }
        let reserve = Reserve(Bytes(100));
        assert_eq!((reserve.room(Bytes(130)), reserve.room(Bytes(99))), (Bytes(30), Bytes(0)));
    }
}
