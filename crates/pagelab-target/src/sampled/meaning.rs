//! What the samples of an event mean.

use pagelab_formats::perf_data::{About, Answer, DataSource, Sample, ibs_answer};

/// Bits of `sample_type` (include/uapi/linux/perf_event.h).
pub const ADDR: u64 = 1 << 3;
/// The PMU's own record.
pub const RAW: u64 = 1 << 10;
/// What the access met.
pub const DATA_SRC: u64 = 1 << 15;

/// What a sample of an event says about the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The event counts misses of the second-level TLB: each sample is one.
    EachMisses,
    /// The TLB's part of its data source says it.
    ByColumn {
        /// It is of Arm SPE, where `Walker hit` means that no walk was needed.
        spe: bool,
    },
    /// The raw record of AMD IBS says it.
    ByIbs,
    /// Nothing.
    No(Refused),
}

/// Why the samples of an event are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refused {
    /// They have no data address.
    NoAddress,
    /// They have an address and nothing about the TLB.
    NoTlb,
    /// They are page faults: each page once, however often it is used.
    PageFaults,
    /// Arm SPE tells the same access once more, under another name.
    ToldTwice,
}

impl Refused {
    /// In a sentence, with the way out.
    pub fn sentence(self) -> &'static str {
        match self {
            Refused::NoAddress => "its samples have no data address: record them with perf mem record",
            Refused::NoTlb => {
                "its samples have data addresses, but nothing that says what the TLB did: record them with \
                 perf mem record, which asks for the data source"
            }
            Refused::PageFaults => {
                "its samples are page faults: they tell which pages were touched, once each, and nothing \
                 about TLB misses: record with perf mem record"
            }
            Refused::ToldTwice => "its samples tell accesses that other events tell too",
        }
    }
}

/// PERF_TYPE_SOFTWARE, and PERF_COUNT_SW_PAGE_FAULTS with its two halves.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: [u64; 3] = [2, 5, 6];

/// Names under which perf tells records of Arm SPE (tools/perf/util/arm-spe.c, `arm_spe_synth_events`).
/// `memory` has every access; `tlb-miss` those that walked; the others tell the same ones again.
const SPE_AGAIN: [&str; 8] = [
    "l1d-miss",
    "l1d-access",
    "llc-miss",
    "llc-access",
    "tlb-access",
    "branch-miss",
    "branch",
    "remote-access",
];
const SPE_ALL: &str = "memory";
const SPE_MISS: &str = "tlb-miss";

/// What the samples of the event at this place mean.
pub fn of(about: &About, event: usize) -> Meaning {
    let Some(known) = about.events.get(event) else { return Meaning::No(Refused::NoAddress) };
    let attr = &known.attr;
    let pmu = about.pmu(attr.kind).unwrap_or("");
    if !attr.has(ADDR) {
        return Meaning::No(Refused::NoAddress);
    }
    if counts_misses(&known.name) || is_stlb_event(&about.cpuid, attr.kind, attr.config) {
        return Meaning::EachMisses;
    }
    if attr.kind == SOFTWARE && PAGE_FAULTS.contains(&attr.config) {
        return Meaning::No(Refused::PageFaults);
    }
    if attr.has(DATA_SRC) {
        let arm = pmu.starts_with("arm_spe") || about.arch == "aarch64";
        return by_column(&known.name, arm, about.events.iter().any(|event| tells_all(&event.name)));
    }
    let is_ibs = pmu == "ibs_op" || known.name.starts_with("ibs_op");
    if is_ibs && attr.has(RAW) { Meaning::ByIbs } else { Meaning::No(Refused::NoTlb) }
}

/// Whether an event of this name is what perf makes of every access that Arm SPE told.
pub fn tells_all(name: &str) -> bool {
    bare(name) == SPE_ALL
}

/// What samples with a TLB column mean, from the name of their event. `arm`: they are known to be of Arm;
/// `all_told`: another event [tells all accesses](tells_all).
pub fn by_column(name: &str, arm: bool, all_told: bool) -> Meaning {
    let base = bare(name);
    let spe = arm || base == SPE_ALL || base == SPE_MISS || SPE_AGAIN.contains(&base);
    let again = SPE_AGAIN.contains(&base) || base == SPE_MISS && all_told;
    if again { Meaning::No(Refused::ToldTwice) } else { Meaning::ByColumn { spe } }
}

/// Without modifiers: `tlb-miss:u`.
fn bare(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

/// Intel's names of the events in its lists: `MEM_INST_RETIRED.STLB_MISS_LOADS`,
/// `mem_uops_retired.stlb_miss_…`.
pub fn counts_misses(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mem_inst_retired.stlb_miss") || name.contains("mem_uops_retired.stlb_miss")
}

/// PERF_TYPE_RAW or the core's own PMU: event 0xd0, unit mask 0x11 (loads) or 0x12 (stores), on Intel's
/// processors whose precise events tell addresses there (see [`crate::pmu::intel`]).
fn is_stlb_event(cpuid: &str, kind: u32, config: u64) -> bool {
    const RAW_OR_CORE: u32 = 4;
    let mut parts = cpuid.split(',');
    let vendor = parts.next() == Some("GenuineIntel");
    let family = parts.next() == Some("6");
    let model = parts.next().and_then(|model| model.parse().ok());
    vendor
        && family
        && kind == RAW_OR_CORE
        && [0x11d0, 0x12d0].contains(&(config & 0xffff))
        && model.is_some_and(|model| crate::pmu::intel::tells_stlb_addresses(model).is_some())
}

impl Meaning {
    /// What the TLB did in this sample.
    pub fn answer(&self, sample: &Sample) -> Answer {
        match self {
            Meaning::EachMisses => Answer::Walked,
            Meaning::ByColumn { spe } => {
                sample.data_src.map_or(Answer::Unsaid, |data_src| DataSource::of(data_src).answer(*spe))
            }
            Meaning::ByIbs => sample.ibs_data3.map_or(Answer::Unsaid, ibs_answer),
            Meaning::No(_) => Answer::Unsaid,
        }
    }
}

/// The address without what the processor ignores: the uppermost byte on Arm (top-byte ignore), but for the
/// kernel's addresses.
pub fn address(arch: &str, address: u64) -> u64 {
    const TAG: u32 = 56;
    if arch != "aarch64" {
        return address;
    }
    let is_kernel = address >> (TAG - 1) & 1 != 0;
    if is_kernel { address | u64::MAX << TAG } else { address & (u64::MAX >> (64 - TAG)) }
}

/// Whether the address is in the kernel's half.
pub fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}
