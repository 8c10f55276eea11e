//! Memory reserve: the amount that a process which fills memory leaves to others.

use pagelab_formats::meminfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Bytes;

/// Memory that stays available (`MemAvailable` of `/proc/meminfo`) in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reserve(pub Bytes);

impl Reserve {
    /// The least that is left by default, on the smallest of machines.
    const MIN: Bytes = Bytes(512 << 20);

    /// Memory that stays available in a guest, which runs one thing at a time: for its own kernel.
    pub const IN_GUEST: Reserve = Reserve(Bytes(32 << 20));

    /// The default of a machine with so much memory: 5 % of it, and 512 MiB at least.
    pub fn from_total_memory(mem_total: Bytes) -> Reserve {
        Reserve(Bytes(mem_total.0 / 20).max(Reserve::MIN))
    }

    /// The default of the machine under `root`.
    pub fn read(root: &Root) -> Reserve {
        let total = Reader::new(root).parse(paths::MEMINFO, meminfo::parse);
        Reserve::from_total_memory(total.ok().and_then(|info| info.bytes("MemTotal")).unwrap_or_default())
    }

    /// How much may still be taken where so much is available.
    pub fn headroom(self, mem_available: Bytes) -> Bytes {
        Bytes(mem_available.0.saturating_sub(self.0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_and_512_mib_at_least() {
        for (total, reserve) in [(1 << 30, 512 << 20), (10 << 30, 512 << 20), (40 << 30, 2 << 30)] {
            assert_eq!(Reserve::from_total_memory(Bytes(total)), Reserve(Bytes(reserve)), "of {total}");
        }
        let reserve = Reserve(Bytes(100));
        assert_eq!((reserve.headroom(Bytes(130)), reserve.headroom(Bytes(99))), (Bytes(30), Bytes(0)));
    }
}
