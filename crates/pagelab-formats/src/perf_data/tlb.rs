//! What a sample says about the TLB: one table for the bits of `data_src`, one for the words of perf.
//!
//! Where the bits are set (kernel 6.18):
//! - Intel loads (arch/x86/events/intel/ds.c, `pebs_set_tlb_lock`): HIT|L1|L2 or MISS|L2, by "missed the
//!   second-level TLB"; stores (`precise_store_data`): HIT or MISS alone, by the same.
//! - AMD IBS (arch/x86/events/amd/ibs.c, `perf_ibs_get_tlb_lvl`): HIT|L1, HIT|L2, MISS|L2, or NA.
//! - Arm SPE (tools/perf/util/arm-spe.c, `arm_spe__synth_data_source`): WK|HIT where the access needed no
//!   walk, WK|MISS where it did.
//!
//! So `Walker hit` means two things: on x86 and elsewhere that the walker answered, after all levels of the
//! TLB had missed; on Arm SPE that no walk was needed. [`DataSource::answer`] must be told which it is.
//!
//! Words (tools/perf/util/mem-events.c, `perf_mem__tlb_scnprintf`): the levels N/A, L1, L2, Walker, Fault,
//! joined by ` or `, then ` hit`, ` miss`. The cache column has words of its own, some of them the same.

/// Bits of `mem_dtlb` (include/uapi/linux/perf_event.h).
const HIT: u8 = 1 << 1;
const MISS: u8 = 1 << 2;
const L1: u8 = 1 << 3;
const L2: u8 = 1 << 4;
const WALKER: u8 = 1 << 5;
const OS: u8 = 1 << 6;

/// Where `mem_dtlb` begins in `data_src`, and its width of seven bits.
const SHIFT: u32 = 26;
const MASK: u64 = 0x7f;

/// The words of the levels. `HIT` and `MISS` stand for a level in none of perf's releases.
const LEVELS: [(&str, u8); 5] = [("N/A", 0), ("L1", L1), ("L2", L2), ("Walker", WALKER), ("Fault", OS)];

/// What the TLB did for one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Nothing is said.
    Unsaid,
    /// A level of the TLB had it, or no walk was needed.
    Hit,
    /// The first level missed, and of the second nothing is said.
    FirstMissed,
    /// The last level missed: the page tables were walked.
    Walked,
}

/// The TLB's part of a `data_src`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataSource {
    bits: u8,
}

impl DataSource {
    /// The TLB's part of this `data_src`.
    pub fn of(data_src: u64) -> DataSource {
        DataSource { bits: ((data_src >> SHIFT) & MASK) as u8 }
    }

    /// The TLB column of perf's texts; `None` where it is no such column.
    pub fn from_words(text: &str) -> Option<DataSource> {
        let text = text.trim();
        let (text, miss) = text.strip_suffix(" miss").map_or((text, 0), |rest| (rest, MISS));
        let (text, hit) = text.strip_suffix(" hit").map_or((text, 0), |rest| (rest, HIT));
        let mut bits = hit | miss;
        for word in text.split(" or ") {
            bits |= LEVELS.iter().find(|(level, _)| *level == word)?.1;
        }
        Some(DataSource { bits })
    }

    /// What the TLB did. `spe`: the sample is from Arm SPE.
    pub fn answer(self, spe: bool) -> Answer {
        let has = |bit| self.bits & bit != 0;
        match () {
            () if spe && has(WALKER) && has(MISS) => Answer::Walked,
            () if spe && has(WALKER) && has(HIT) => Answer::Hit,
            () if has(WALKER | OS) => Answer::Walked,
            () if has(MISS) && has(L1) && !has(L2) => Answer::FirstMissed,
            () if has(MISS) => Answer::Walked,
            () if has(HIT) => Answer::Hit,
            () => Answer::Unsaid,
        }
    }
}

/// What IbsOpData3 says (arch/x86/include/asm/amd-ibs.h, `union ibs_op_data3`): bit 0 a load, bit 1 a store,
/// bit 2 the first-level data TLB missed, bit 3 the second-level one too, bit 17 the address is valid.
pub fn ibs_answer(data3: u64) -> Answer {
    let has = |bit: u32| data3 >> bit & 1 != 0;
    match () {
        () if !(has(0) || has(1)) || !has(17) => Answer::Unsaid,
        () if has(2) && has(3) => Answer::Walked,
        () => Answer::Hit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bits_say_the_same() {
        let (hit, walked, unsaid) = (Answer::Hit, Answer::Walked, Answer::Unsaid);
        let cases = [
            // Words, `mem_dtlb`, on x86, from SPE.
            ("L1 or L2 hit", 0x1a, hit, hit),
            ("L1 hit", 0x0a, hit, hit),
            ("L2 hit", 0x12, hit, hit),
            ("L2 miss", 0x14, walked, walked),
            ("L1 or L2 miss", 0x1c, walked, walked),
            ("L1 miss", 0x0c, Answer::FirstMissed, Answer::FirstMissed),
            ("Walker hit", 0x22, walked, hit),
            ("Walker miss", 0x24, walked, walked),
            ("Fault hit", 0x42, walked, walked),
            ("N/A hit", 0x02, hit, hit),
            ("N/A miss", 0x04, walked, walked),
            ("N/A", 0x01, unsaid, unsaid),
        ];
        for (words, bits, plain, spe) in cases {
            let from_bits = DataSource::of(bits << SHIFT | 0x3ff);
            let from_words = DataSource::from_words(words).unwrap();
            for of in [from_bits, from_words] {
                assert_eq!((of.answer(false), of.answer(true)), (plain, spe), "{words} {of:?}");
            }
        }
        for no in ["", "LFB/MAB or LFB/MAB hit", "L3 hit", "hit", "Local RAM hit", "L2 miss or so"] {
            assert_eq!(DataSource::from_words(no), None, "{no}");
        }
    }

    #[test]
    fn ibs_counts_second_level_misses_of_valid_addresses() {
        let (load, first, second, valid) = (1, 1 << 2, 1 << 3, 1 << 17);
        assert_eq!(ibs_answer(load | first | second | valid), Answer::Walked);
        assert_eq!(ibs_answer(load | first | valid), Answer::Hit);
        assert_eq!(ibs_answer(load | first | second), Answer::Unsaid);
        assert_eq!(ibs_answer(first | second | valid), Answer::Unsaid);
    }
}
