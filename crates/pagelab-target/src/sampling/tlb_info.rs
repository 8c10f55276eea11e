//! TLB information in the samples of an event.

use pagelab_formats::perf_data::{DataSource, FileInfo, Sample, TlbOutcome, ibs_tlb_outcome};

/// Bits of `sample_type` (include/uapi/linux/perf_event.h).
pub const ADDR: u64 = 1 << 3;
/// The PMU's own record.
pub const RAW: u64 = 1 << 10;
/// The data source.
pub const DATA_SRC: u64 = 1 << 15;

/// The TLB information in a sample of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbInfo {
    /// The event counts misses of the second-level TLB: each sample is one.
    EverySampleMisses,
    /// From the TLB part of its data source.
    DataSource {
        /// It is of Arm SPE, where `Walker hit` means that no walk was needed.
        spe: bool,
    },
    /// From the raw record of AMD IBS.
    IbsData,
    /// Nothing.
    Unusable(UnusableReason),
}

/// Why the samples of an event are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnusableReason {
    /// They have no data address.
    NoAddress,
    /// They have an address and nothing about the TLB.
    NoTlb,
    /// They are page faults: each page once, however often it is used.
    PageFaults,
    /// Arm SPE records the same access again, under another name.
    Duplicate,
}

impl UnusableReason {
    /// A sentence with a hint.
    pub fn describe(self) -> &'static str {
        match self {
            UnusableReason::NoAddress => "its samples have no data addresses; hint: use perf mem record",
            UnusableReason::NoTlb => {
                "its samples have data addresses, but no TLB data; hint: use perf mem record, which records \
                 the data source"
            }
            UnusableReason::PageFaults => {
                "its samples are page faults, which say nothing about TLB misses; hint: use perf mem record"
            }
            UnusableReason::Duplicate => "its samples duplicate those of other events",
        }
    }
}

/// PERF_TYPE_SOFTWARE, and PERF_COUNT_SW_PAGE_FAULTS with its two halves.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: [u64; 3] = [2, 5, 6];

/// Names of perf for records of Arm SPE (tools/perf/util/arm-spe.c, `arm_spe_synth_events`).
/// `memory` has every access; `tlb-miss` those that walked; the others repeat the same ones.
const SPE_DUPLICATES: [&str; 8] = [
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

/// The TLB information in the samples of the event with this index.
pub fn classify_event(file_info: &FileInfo, event: usize) -> TlbInfo {
    let Some(known) = file_info.events.get(event) else {
        return TlbInfo::Unusable(UnusableReason::NoAddress);
    };
    let attr = &known.attr;
    let pmu = file_info.pmu(attr.kind).unwrap_or("");
    if !attr.has_sample_bit(ADDR) {
        return TlbInfo::Unusable(UnusableReason::NoAddress);
    }
    if is_stlb_miss_name(&known.name) || is_stlb_event(&file_info.cpuid, attr.kind, attr.config) {
        return TlbInfo::EverySampleMisses;
    }
    if attr.kind == SOFTWARE && PAGE_FAULTS.contains(&attr.config) {
        return TlbInfo::Unusable(UnusableReason::PageFaults);
    }
    if attr.has_sample_bit(DATA_SRC) {
        let arm = pmu.starts_with("arm_spe") || file_info.arch == "aarch64";
        let has_memory_event = file_info.events.iter().any(|event| is_spe_memory_event(&event.name));
        return classify_by_name(&known.name, arm, has_memory_event);
    }
    let is_ibs = pmu == "ibs_op" || known.name.starts_with("ibs_op");
    if is_ibs && attr.has_sample_bit(RAW) {
        TlbInfo::IbsData
    } else {
        TlbInfo::Unusable(UnusableReason::NoTlb)
    }
}

/// Whether perf has an event of this name for every access of Arm SPE.
pub fn is_spe_memory_event(name: &str) -> bool {
    strip_modifiers(name) == SPE_ALL
}

/// Meaning of samples with a TLB column, from the name of their event. `arm`: they are known to be of Arm;
/// `has_memory_event`: another event [has all accesses](is_spe_memory_event).
pub fn classify_by_name(name: &str, arm: bool, has_memory_event: bool) -> TlbInfo {
    let base = strip_modifiers(name);
    let spe = arm || base == SPE_ALL || base == SPE_MISS || SPE_DUPLICATES.contains(&base);
    let is_duplicate = SPE_DUPLICATES.contains(&base) || base == SPE_MISS && has_memory_event;
    if is_duplicate { TlbInfo::Unusable(UnusableReason::Duplicate) } else { TlbInfo::DataSource { spe } }
}

/// Without modifiers: `tlb-miss:u`.
fn strip_modifiers(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

/// Intel's names of the events in its lists: `MEM_INST_RETIRED.STLB_MISS_LOADS`,
/// `mem_uops_retired.stlb_miss_…`.
pub fn is_stlb_miss_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mem_inst_retired.stlb_miss") || name.contains("mem_uops_retired.stlb_miss")
}

/// PERF_TYPE_RAW or the core's own PMU: event 0xd0, unit mask 0x11 (loads) or 0x12 (stores), on Intel's
/// processors whose precise events record addresses there (see [`crate::pmu::intel`]).
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
        && model.is_some_and(|model| crate::pmu::intel::find_pebs_constraints(model).is_some())
}

impl TlbInfo {
    /// The outcome in the TLB of this sample.
    pub fn tlb_outcome(&self, sample: &Sample) -> TlbOutcome {
        match self {
            TlbInfo::EverySampleMisses => TlbOutcome::PageWalk,
            TlbInfo::DataSource { spe } => sample.data_src.map_or(TlbOutcome::Unknown, |data_src| {
                DataSource::from_data_src(data_src).tlb_outcome(*spe)
            }),
            TlbInfo::IbsData => sample.ibs_data3.map_or(TlbOutcome::Unknown, ibs_tlb_outcome),
            TlbInfo::Unusable(_) => TlbOutcome::Unknown,
        }
    }
}

/// The address without what the processor ignores: the uppermost byte on Arm (top-byte ignore), but for the
/// kernel's addresses.
pub fn strip_address_tag(arch: &str, address: u64) -> u64 {
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
