//! TLB data of a sample: one table for the bits of `data_src`, one for perf's words.
//!
//! Where the bits are set (kernel 6.18):
//! - Intel loads (arch/x86/events/intel/ds.c, `pebs_set_tlb_lock`): HIT|L1|L2 or MISS|L2, by "missed the
//!   second-level TLB"; stores (`precise_store_data`): HIT or MISS alone, by the same.
//! - AMD IBS (arch/x86/events/amd/ibs.c, `perf_ibs_get_tlb_lvl`): HIT|L1, HIT|L2, MISS|L2, or NA.
//! - Arm SPE (tools/perf/util/arm-spe.c, `arm_spe__synth_data_source`): WK|HIT where the access needed no
//!   walk, WK|MISS where it did.
//!
//! So `Walker hit` has two meanings: on x86 and elsewhere a page walk after all levels of the TLB had missed;
//! on Arm SPE that no walk was needed. [`DataSource::tlb_outcome`] takes it as an argument.
//!
//! Words (tools/perf/util/mem-events.c, `perf_mem__tlb_scnprintf`): the levels N/A, L1, L2, Walker, Fault,
//! joined by ` or `, then ` hit`, ` miss`. The cache column has its own words, some of them the same.

/// Bits of `mem_dtlb` (include/uapi/linux/perf_event.h).
const HIT: u8 = 1 << 1;
const MISS: u8 = 1 << 2;
const L1: u8 = 1 << 3;
const L2: u8 = 1 << 4;
const WALKER: u8 = 1 << 5;
const OS: u8 = 1 << 6;

/// Where `mem_dtlb` begins in `data_src`, and its width of seven bits.
const DTLB_SHIFT: u32 = 26;
const DTLB_MASK: u64 = 0x7f;

/// The words of the levels. `HIT` and `MISS` denote no level in any release of perf.
const LEVEL_WORDS: [(&str, u8); 5] = [("N/A", 0), ("L1", L1), ("L2", L2), ("Walker", WALKER), ("Fault", OS)];

/// Result of the TLB for one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlbOutcome {
    /// Not reported.
    Unknown,
    /// A level of the TLB had it, or no walk was needed.
    Hit,
    /// The first level missed; the second is not reported.
    FirstLevelMiss,
    /// The last level missed: the page tables were walked.
    PageWalk,
}

/// The TLB's part of a `data_src`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataSource {
    bits: u8,
}

impl DataSource {
    /// The TLB's part of this `data_src`.
    pub fn from_data_src(data_src: u64) -> DataSource {
        DataSource { bits: ((data_src >> DTLB_SHIFT) & DTLB_MASK) as u8 }
    }

    /// The TLB column of perf's texts; `None` if it is another column.
    pub fn from_words(text: &str) -> Option<DataSource> {
        let text = text.trim();
        let (text, miss) = text.strip_suffix(" miss").map_or((text, 0), |rest| (rest, MISS));
        let (text, hit) = text.strip_suffix(" hit").map_or((text, 0), |rest| (rest, HIT));
        let mut bits = hit | miss;
        for word in text.split(" or ") {
            bits |= LEVEL_WORDS.iter().find(|(level, _)| *level == word)?.1;
        }
        Some(DataSource { bits })
    }

    /// Result of the TLB. `is_spe`: the sample is from Arm SPE.
    pub fn tlb_outcome(self, is_spe: bool) -> TlbOutcome {
        let has = |bit| self.bits & bit != 0;
        match () {
            () if is_spe && has(WALKER) && has(MISS) => TlbOutcome::PageWalk,
            () if is_spe && has(WALKER) && has(HIT) => TlbOutcome::Hit,
            () if has(WALKER | OS) => TlbOutcome::PageWalk,
            () if has(MISS) && has(L1) && !has(L2) => TlbOutcome::FirstLevelMiss,
            () if has(MISS) => TlbOutcome::PageWalk,
            () if has(HIT) => TlbOutcome::Hit,
            () => TlbOutcome::Unknown,
        }
    }
}

/// Bits of IbsOpData3 (arch/x86/include/asm/amd-ibs.h, `union ibs_op_data3`): bit 0 a load, bit 1 a store,
/// bit 2 the first-level data TLB missed, bit 3 the second-level one too, bit 17 the address is valid.
pub fn ibs_tlb_outcome(data3: u64) -> TlbOutcome {
    let has = |bit: u32| data3 >> bit & 1 != 0;
    match () {
        () if !(has(0) || has(1)) || !has(17) => TlbOutcome::Unknown,
        () if has(2) && has(3) => TlbOutcome::PageWalk,
        () => TlbOutcome::Hit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bits_say_the_same() {
        let (hit, walked, unsaid) = (TlbOutcome::Hit, TlbOutcome::PageWalk, TlbOutcome::Unknown);
        let cases = [
            // Words, `mem_dtlb`, on x86, from SPE.
            ("L1 or L2 hit", 0x1a, hit, hit),
            ("L1 hit", 0x0a, hit, hit),
            ("L2 hit", 0x12, hit, hit),
            ("L2 miss", 0x14, walked, walked),
            ("L1 or L2 miss", 0x1c, walked, walked),
            ("L1 miss", 0x0c, TlbOutcome::FirstLevelMiss, TlbOutcome::FirstLevelMiss),
            ("Walker hit", 0x22, walked, hit),
            ("Walker miss", 0x24, walked, walked),
            ("Fault hit", 0x42, walked, walked),
            ("N/A hit", 0x02, hit, hit),
            ("N/A miss", 0x04, walked, walked),
            ("N/A", 0x01, unsaid, unsaid),
        ];
        for (words, bits, plain, spe) in cases {
            let from_bits = DataSource::from_data_src(bits << DTLB_SHIFT | 0x3ff);
            let from_words = DataSource::from_words(words).unwrap();
            for of in [from_bits, from_words] {
                assert_eq!((of.tlb_outcome(false), of.tlb_outcome(true)), (plain, spe), "{words} {of:?}");
            }
        }
        for no in ["", "LFB/MAB or LFB/MAB hit", "L3 hit", "hit", "Local RAM hit", "L2 miss or so"] {
            assert_eq!(DataSource::from_words(no), None, "{no}");
        }
    }

    #[test]
    fn ibs_counts_second_level_misses_of_valid_addresses() {
        let (load, first, second, valid) = (1, 1 << 2, 1 << 3, 1 << 17);
        assert_eq!(ibs_tlb_outcome(load | first | second | valid), TlbOutcome::PageWalk);
        assert_eq!(ibs_tlb_outcome(load | first | valid), TlbOutcome::Hit);
        assert_eq!(ibs_tlb_outcome(load | first | second), TlbOutcome::Unknown);
        assert_eq!(ibs_tlb_outcome(first | second | valid), TlbOutcome::Unknown);
    }
}
