//! Intel processors that report the data address of second-level TLB misses.

use pagelab_sys::perf_ring::AccessSampling;

/// Source of a row: constraints of precise events in arch/x86/events/intel/ds.c (6.18). In these tables
/// 0x11d0 and 0x12d0 have DATALA: the record has the linear address.
const HSW: &str = "intel_hsw_pebs_event_constraints, intel_bdw_pebs_event_constraints";
const SKL: &str = "intel_skl_pebs_event_constraints";
const ICL: &str = "intel_icl_pebs_event_constraints";
const GLC: &str = "intel_glc_pebs_event_constraints";

/// Models of family 6 (arch/x86/include/asm/intel-family.h), with the table that has the event.
const MODELS: [(u32, &str); 31] = [
    (0x3c, HSW), // HASWELL
    (0x3f, HSW), // HASWELL_X
    (0x45, HSW), // HASWELL_L
    (0x46, HSW), // HASWELL_G
    (0x3d, HSW), // BROADWELL
    (0x47, HSW), // BROADWELL_G
    (0x4f, HSW), // BROADWELL_X
    (0x56, HSW), // BROADWELL_D
    (0x4e, SKL), // SKYLAKE_L
    (0x5e, SKL), // SKYLAKE
    (0x55, SKL), // SKYLAKE_X, CASCADELAKE_X, COOPERLAKE_X
    (0x8e, SKL), // KABYLAKE_L
    (0x9e, SKL), // KABYLAKE
    (0xa5, SKL), // COMETLAKE
    (0xa6, SKL), // COMETLAKE_L
    (0x66, SKL), // CANNONLAKE_L
    (0x6a, ICL), // ICELAKE_X
    (0x6c, ICL), // ICELAKE_D
    (0x7d, ICL), // ICELAKE
    (0x7e, ICL), // ICELAKE_L
    (0x8c, ICL), // TIGERLAKE_L
    (0x8d, ICL), // TIGERLAKE
    (0xa7, ICL), // ROCKETLAKE
    (0x8f, GLC), // SAPPHIRERAPIDS_X
    (0xcf, GLC), // EMERALDRAPIDS_X
    (0xad, GLC), // GRANITERAPIDS_X
    (0xae, GLC), // GRANITERAPIDS_D
    (0x97, GLC), // ALDERLAKE, its large cores
    (0x9a, GLC), // ALDERLAKE_L, its large cores
    (0xb7, GLC), // RAPTORLAKE, its large cores
    (0xba, GLC), // RAPTORLAKE_P, its large cores
];

/// `MEM_INST_RETIRED.STLB_MISS_LOADS` (`MEM_UOPS_RETIRED.STLB_MISS_LOADS` before Skylake).
pub const STLB_MISS_LOADS: u64 = 0x11d0;
/// `MEM_INST_RETIRED.STLB_MISS_STORES`.
pub const STLB_MISS_STORES: u64 = 0x12d0;

/// The kernel's table that describes it, where precise samples of [`STLB_MISS_LOADS`] have data addresses.
pub fn find_pebs_constraints(model: u32) -> Option<&'static str> {
    MODELS.iter().find(|(known, _)| *known == model).map(|(_, table)| *table)
}

/// An event as a PMU's folder `events` has it: `event=0xcd,umask=0x1,ldlat=3`. The places of the terms are
/// those of Intel's core PMUs (`format/event` config:0-7, `format/umask` config:8-15, `format/ldlat`
/// config1:0-15).
/// `None`: a term that is not known here.
pub fn parse_event(text: &str, kind: u32) -> Option<AccessSampling> {
    let mut found = AccessSampling { kind, ..AccessSampling::default() };
    for term in text.trim().split(',') {
        let (name, value) = term.split_once('=')?;
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        let value = value.ok()?;
        match name {
            "event" if value <= 0xff => found.config |= value,
            "umask" if value <= 0xff => found.config |= value << 8,
            "ldlat" if value <= 0xffff => found.config1 = value,
            _ => return None,
        }
    }
    Some(found)
}

/// Position of a flag of one bit, from a PMU's folder `format`: `config:19` or `config2:0`. Returns the
/// number of the word, and the bit.
pub fn parse_format_bit(text: &str) -> Option<(u32, u32)> {
    let (word, bit) = text.trim().split_once(':')?;
    let number = word.strip_prefix("config")?;
    let word = if number.is_empty() { 0 } else { number.parse().ok()? };
    bit.parse().ok().filter(|bit| *bit < 64).map(|bit| (word, bit))
}
