//! TLB profile of a program: cost of its misses by mapping and offset, so that it holds for the next run.
//!
//! A source counts what it can see. Places that it cannot see are named: without a count their cost is
//! unknown, never 0.

use serde::{Deserialize, Serialize};

use crate::machine::Tlb;
use crate::{Bytes, PageSize};

/// Result of one profiling run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlbProfile {
    /// Profile source.
    pub source: ProfileSource,
    /// The profiled command line; empty for a running process or a file.
    pub command: Vec<String>,
    /// The base page size of the profiled program.
    pub page_size: PageSize,
    /// Its PMD-size huge page size.
    pub huge: Bytes,
    /// The TLBs whose misses are counted, if they were modelled.
    pub tlb: Option<Tlb>,
    /// Cost of a page walk on this machine, by reuse distance; without it, misses are not times.
    pub walk_cost: Option<WalkCostCurve>,
    /// The process images, in the order of their start.
    pub images: Vec<ImageProfile>,
    /// Wall time of the profiled run, or of its observed part.
    pub wall_ns: u64,
    /// Cost of profiling.
    pub effort: ProfilingCost,
    /// Records that the source reported as lost.
    pub lost: u64,
    /// Notes for the reader: limits of the source on this machine, failures, in sentences.
    pub notes: Vec<String>,
    /// Misses with some memory on huge pages, if the source supports it; the first entry is without any, over
    /// the same accesses.
    #[serde(default)]
    pub what_ifs: Vec<MissScenario>,
    /// End of the program, if it was started for this: its exit code, or 128 plus the signal number.
    #[serde(default)]
    pub exit: Option<u8>,
}

impl TlbProfile {
    /// Standard errors on each side of an estimate that hold 95 % of them.
    const Z_95: f64 = 1.96;

    /// Whether the source observed the program: an estimate without any scan knows nothing, which is not 0.
    pub fn is_observed(&self) -> bool {
        self.source != ProfileSource::Accessed || self.effort.count_sweeps() != Some(0)
    }

    /// All misses; `None` if the number is unknown: nothing was read, or scans saw a part of them.
    pub fn total_misses(&self) -> Option<u64> {
        (self.is_observed() && self.lower_bound_reason().is_none()).then(|| self.summed_misses())
    }

    fn summed_misses(&self) -> u64 {
        self.images.iter().fold(0u64, |sum, image| sum.saturating_add(image.misses))
    }

    /// Why the number of misses is a lower bound; `None`: it is none.
    pub fn lower_bound_reason(&self) -> Option<LowerBoundReason> {
        let saturation = self.effort.saturation.filter(|_| self.source == ProfileSource::Accessed)?;
        saturation.lower_bound_reason().filter(|_| self.is_observed())
    }

    /// The lower bound of the misses, if no more is known of their number: the low end of the 95 % interval
    /// of those that scans saw.
    pub fn misses_at_least(&self) -> Option<u64> {
        self.lower_bound_reason()?;
        Some((self.summed_misses() as f64 * self.lower_bound_factor()) as u64)
    }

    /// By what the counts and costs of a profile are multiplied to be lower bounds: 1 if they are not.
    pub fn lower_bound_factor(&self) -> f64 {
        match (self.lower_bound_reason(), self.relative_half_width()) {
            (Some(_), Some(width)) => (-width).exp(),
            _ => 1.0,
        }
    }

    /// The own advice of all images; `None` if the source sees none.
    pub fn own_advice(&self) -> Option<OwnAdvice> {
        self.images.iter().filter_map(|image| image.advice).reduce(OwnAdvice::join)
    }

    /// Whether the number of misses is an estimate: by sweeps and scans, or scaled from stretches of the run.
    pub fn is_estimated(&self) -> bool {
        self.source == ProfileSource::Accessed || self.effort.stretches.is_some()
    }

    /// One standard error of the number of misses as a part of itself; `None` if they are counted, or
    /// unknown they are off. Files without it have the number of sweeps alone: each may be off by as much as
    /// it says.
    pub fn misses_error(&self) -> Option<f64> {
        if self.source != ProfileSource::Accessed {
            let half = self.effort.stretches?.error_permille?;
            return Some(f64::from(half) / 1000.0 / Self::Z_95);
        }
        let sweeps = self.effort.count_sweeps().filter(|looks| *looks > 0)?;
        let reported_error = self.effort.misses_error_permille.map(|permille| f64::from(permille) / 1000.0);
        Some(reported_error.unwrap_or((sweeps as f64).sqrt().recip()))
    }

    /// Half of the width of the 95 % interval as a part of the number; for sweeps, of its logarithm.
    fn relative_half_width(&self) -> Option<f64> {
        let quantile = match (self.source, self.effort.misses_error_blocks) {
            (ProfileSource::Accessed, Some(blocks)) => student_quantile_95(blocks.saturating_sub(1)),
            _ => Self::Z_95,
        };
        Some(quantile * self.misses_error()?)
    }

    /// The 95 % interval of the misses; `None` if they are counted, or their number is unknown. For sweeps it
    /// is an interval of factors, so that it never ends below 0.
    pub fn misses_interval(&self) -> Option<(u64, u64)> {
        let width = self.relative_half_width()?;
        let misses = self.total_misses()? as f64;
        let (down, up) = match self.source {
            ProfileSource::Accessed => ((-width).exp(), width.exp()),
            _ => ((1.0 - width).max(0.0), 1.0 + width),
        };
        Some(((misses * down) as u64, (misses * up) as u64))
    }
}

/// Standard errors on each side that hold 95 % of Student's distribution with this many degrees of freedom:
/// its expansion in their inverse, 0.7 % too few for 3 degrees, and infinitely many for none.
fn student_quantile_95(freedom: u32) -> f64 {
    let (z, n) = (TlbProfile::Z_95, f64::from(freedom));
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * n.powi(3))
}

/// How far scans of accessed bits undercount, since a cleared bit that is set again hides further misses, and
/// takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanSaturation {
    /// The part of the misses that scans lack because the program was setting cleared bits again instead of
    /// accessing further pages, in thousandths. With one process it is the part of the CPU time between
    /// clearing and scanning.
    pub reset_permille: u32,
    /// The part of the misses in regions of which nearly all pages were found accessed even after the
    /// shortest pause, in thousandths: how often each was walked is unknown there.
    pub saturated_permille: u32,
}

impl ScanSaturation {
    /// Above this, in thousandths, the number of misses is a lower bound.
    pub const UNDERCOUNT_MAX: u32 = 100;

    fn lower_bound_reason(&self) -> Option<LowerBoundReason> {
        let is_considerable = |permille: u32| permille > ScanSaturation::UNDERCOUNT_MAX;
        if is_considerable(self.reset_permille) {
            return Some(LowerBoundReason::ResetTime { permille: self.reset_permille });
        }
        is_considerable(self.saturated_permille)
            .then_some(LowerBoundReason::SaturatedRegions { permille: self.saturated_permille })
    }
}

/// Why a number of misses is a lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerBoundReason {
    /// [`ScanSaturation::reset_permille`] is considerable.
    ResetTime {
        /// The part, in thousandths.
        permille: u32,
    },
    /// [`ScanSaturation::saturated_permille`] is.
    SaturatedRegions {
        /// The part, in thousandths.
        permille: u32,
    },
}

/// Misses of all images with memory on pages of certain sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissScenario {
    /// Memory on huge pages: `none`, `all`, or the name of a plan.
    pub name: String,
    /// All second-level misses.
    pub misses: u64,
    /// The same by the page size of the miss.
    pub sizes: Vec<ScenarioPageSize>,
    /// Reads of page-table entries before the last one of a walk: of PDEs, PDPTEs, PML4Es.
    pub upper_reads: [u64; 3],
    /// Misses by huge-page region: of the first mapping that has a part of it.
    pub regions: Vec<ScenarioRegion>,
}

/// Misses of pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioPageSize {
    /// The page size, as in the TLB.
    pub page: Bytes,
    /// Misses.
    pub misses: u64,
    /// (log2 of the reuse distance of the line of the walk's last entry, misses); first walks are at
    /// [`ReuseHistograms::FIRST_WALK_BUCKET`]. A line of entries of huge pages is one of PDEs.
    pub reuse: Vec<(u32, u64)>,
}

/// Misses in one huge-page region, on the huge-page grid of the profiled run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioRegion {
    /// The image, by its index in [`TlbProfile::images`].
    pub image: u32,
    /// The mapping, by its index in [`ImageProfile::mappings`].
    pub mapping: u32,
    /// Offset of the region's first byte, rounded down to 0.
    pub offset: u64,
    /// Misses.
    pub misses: u64,
}

/// Profile source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProfileSource {
    /// A modelled TLB that receives every access from QEMU user mode.
    Exact,
    /// Accessed bits of page-table entries in repeated sweeps: an estimate of walks.
    Accessed,
    /// Precise samples of a hardware counter (PMU).
    Pmu,
    /// Samples in a file that perf wrote.
    PerfData,
}

/// Cost of profiling, if it was accounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfilingCost {
    /// CPU time of the profiler.
    pub cpu_ns: Option<u64>,
    /// Time during which the program was stopped.
    pub stopped_ns: Option<u64>,
    /// The share of the time in sweeps, in thousandths.
    pub duty_permille: Option<u32>,
    /// Time during which mappings were split.
    pub split_ns: Option<u64>,
    /// Sweeps of accessed bits behind it, summed over the images.
    #[serde(default)]
    pub sweeps: Option<u64>,
    /// Error of the estimated number of misses: one relative standard error, in thousandths; `None` if misses
    /// are counted, or there are none.
    #[serde(default)]
    pub misses_error_permille: Option<u32>,
    /// Blocks of turns behind that error: its degrees of freedom, and one more; `None` if it is not from the
    /// spread of such blocks.
    #[serde(default)]
    pub misses_error_blocks: Option<u32>,
    /// How far scans undercount; `None` without a sweep.
    #[serde(default)]
    pub saturation: Option<ScanSaturation>,
    /// Upper bound of the slowdown of the most affected process image by sweeps, in millionths: cleared pages
    /// × the cost of accessing one again, and the time in which it was stopped.
    #[serde(default)]
    #[serde(alias = "slow_down_ppm")]
    pub slowdown_ppm: Option<u64>,
    /// Cost in picoseconds of accessing a cleared page of that image again ([`AccessedBitCost`]).
    #[serde(default)]
    pub accessed_page_ps: Option<u64>,
    /// Stops of all threads in which entries of the zero page were dropped, to observe memory that was read
    /// and never written.
    #[serde(default)]
    pub zero_scans: Option<u64>,
    /// Number of entries dropped in them, and of those that were present again at the next reading.
    #[serde(default)]
    pub zero_pages: Option<(u64, u64)>,
    /// Resident memory at the scans and its peak, if scans covered less than half of it in some image.
    #[serde(default)]
    pub partly_scanned: Option<(Bytes, Bytes)>,
    /// The basis of the counts if only stretches of the run were counted.
    #[serde(default)]
    pub stretches: Option<SampledStretches>,
}

impl ProfilingCost {
    /// Sweeps and scans behind an estimate; `None` if there are none.
    pub fn count_sweeps(&self) -> Option<u64> {
        match (self.sweeps, self.zero_scans) {
            (None, None) => None,
            (sweeps, scans) => Some(sweeps.unwrap_or(0).saturating_add(scans.unwrap_or(0))),
        }
    }
}

/// Counted stretches of accesses; the counts of the profile are scaled to all accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledStretches {
    /// Number of completely counted stretches.
    pub count: u64,
    /// Counted accesses.
    pub counted: u64,
    /// All accesses: the uncounted ones are estimated from instructions.
    pub accesses: u64,
    /// Half of the 95 % interval of all misses, in thousandths of them, from the spread of the stretches;
    /// `None` for fewer than [`SampledStretches::MIN_FOR_ERROR`], and without a miss.
    pub error_permille: Option<u32>,
}

impl SampledStretches {
    /// Minimum number of stretches for which an interval of the counts is reported.
    pub const MIN_FOR_ERROR: u64 = 5;

    /// The share of the accesses that was counted.
    pub fn counted_share(&self) -> f64 {
        self.counted as f64 / (self.accesses as f64).max(1.0)
    }
}

/// Cost of setting the accessed bit of a page again after it was cleared, by the amount of cleared memory:
/// with more of it, page-table lines come from more distant caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessedBitCost {
    /// (bytes that were cleared, picoseconds a page), rising in the first.
    pub points: Vec<(u64, u64)>,
    /// Where it is from: when it was measured, on which processor; or that it was assumed.
    pub origin: String,
}

impl AccessedBitCost {
    /// Picoseconds per page for this number of cleared bytes: linear in log2 of the bytes between the points,
    /// and extrapolated with the last slope above them, since the cost still grows there. Never 0.
    pub fn cost_per_page_ps(&self, bytes: u64) -> u64 {
        let log2 = |bytes: u64| (bytes.max(1) as f64).log2();
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return 1 };
        if bytes <= first.0 || self.points.len() < 2 {
            return first.1.max(1);
        }
        let pairs = || self.points.windows(2);
        let surrounding = pairs().find(|two| bytes <= two[1].0).or_else(|| pairs().last());
        let Some([low, high]) = surrounding else { return last.1.max(1) };
        let fraction = (log2(bytes) - log2(low.0)) / (log2(high.0) - log2(low.0)).max(f64::EPSILON);
        let slope = high.1 as f64 - low.1 as f64;
        let slope = if bytes > last.0 { slope.max(0.0) } else { slope };
        ((low.1 as f64 + slope * fraction).round() as u64).max(1)
    }
}

/// Cost of a page walk by the reuse distance of its page-table line: the number of walks of other lines since
/// the last walk of this one. Rising, linear between the points in log2 of the distance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WalkCostCurve {
    /// (log2 of the distance, picoseconds of a walk), rising in both.
    pub points: Vec<(u32, u64)>,
    /// Where it is from: when it was measured, on which processor.
    pub origin: String,
}

/// One process image: a program from its start or exec to its exec or end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageProfile {
    /// Process id.
    pub pid: u32,
    /// The image that it began as, by its place in the list; `None` for the first.
    pub parent: Option<usize>,
    /// How it began.
    pub begun: ImageStart,
    /// The program.
    pub program: Program,
    /// The program's arguments, itself first.
    pub arguments: Vec<String>,
    /// Data accesses that were seen; `None` if the source does not count them.
    pub accesses: Option<u64>,
    /// Instructions that were seen.
    pub instructions: Option<u64>,
    /// All second-level misses, those outside of known mappings too.
    pub misses: u64,
    /// Where.
    pub mappings: Vec<MappingProfile>,
    /// The program's own advice on huge pages; `None` if the source does not see it.
    #[serde(default)]
    pub advice: Option<OwnAdvice>,
}

/// A program's own advice on huge pages for its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnAdvice {
    /// Most bytes of mappings with MADV_HUGEPAGE at a time (`hg` in VmFlags).
    pub requested: Bytes,
    /// Most bytes of mappings with MADV_NOHUGEPAGE at a time (`nh`).
    pub refused: Bytes,
    /// Of those, bytes in mappings of which less than half was mapped, zero pages included: on huge pages
    /// they would need more than twice the memory.
    pub refused_sparse: Bytes,
    /// Of those, bytes in mappings under userfaultfd (`um`, `uw`), which is to see the faults of base pages.
    pub refused_userfaultfd: Bytes,
    /// Bytes of them that were not mapped: memory that huge pages add at most.
    pub refused_unmapped: Bytes,
    /// Whether the program disabled THP for itself (PR_SET_THP_DISABLE).
    pub disables_thp: bool,
}

impl OwnAdvice {
    /// Whether it is against huge pages.
    pub fn is_refusal(&self) -> bool {
        self.refused.0 > 0 || self.disables_thp
    }

    /// The advice of two images.
    fn join(self, other: OwnAdvice) -> OwnAdvice {
        let sum = |a: Bytes, b: Bytes| Bytes(a.0.saturating_add(b.0));
        OwnAdvice {
            requested: sum(self.requested, other.requested),
            refused: sum(self.refused, other.refused),
            refused_sparse: sum(self.refused_sparse, other.refused_sparse),
            refused_userfaultfd: sum(self.refused_userfaultfd, other.refused_userfaultfd),
            refused_unmapped: sum(self.refused_unmapped, other.refused_unmapped),
            disables_thp: self.disables_thp || other.disables_thp,
        }
    }
}

/// How an image began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageStart {
    /// pagelab started it.
    Launched,
    /// A fork of its parent.
    Forked,
    /// An exec of its parent.
    Executed,
    /// It was already running, or comes from a file.
    #[default]
    Attached,
}

/// A program file, as it was when it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// Its path; empty if unknown.
    pub path: String,
    /// Its length.
    pub bytes: Option<Bytes>,
    /// The build id of its ELF notes, or else a checksum of its contents, in hexadecimal.
    pub identity: Option<String>,
}

/// Observations of a source in one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingProfile {
    /// Identity, independent of its address.
    pub key: MappingIdentity,
    /// The address of its offset 0 in the profiled run: that of its first byte, but for a part of a file.
    pub start: u64,
    /// Its length, the largest it ever had.
    pub bytes: Bytes,
    /// Bytes of a cell.
    pub grain: Bytes,
    /// Counts by cell; cells observed as touched are included, also those without a miss.
    pub cells: CellCounts,
    /// Reuse distances of page-table lines, where the source gives them.
    pub reuse: ReuseHistograms,
    /// Places that the source could not see.
    pub unseen: Vec<UnseenRange>,
}

/// Identity of a mapping in every run of the program, independent of its address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MappingIdentity {
    /// Its kind.
    pub kind: MappingKind,
    /// The length requested when it was created, in whole pages; 0 for a heap and a stack.
    pub bytes: Bytes,
    /// Which one of those with equal kind and length, in the order in which the process made them, from 0 on.
    pub nth: u32,
}

/// Kinds of mappings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MappingKind {
    /// Private and anonymous.
    Anonymous,
    /// Shared and anonymous, or of shared memory.
    Shared,
    /// Memory that brk extends; offsets count from the first break.
    Heap,
    /// The stack of the first thread; offsets count from the lowest address it ever had.
    Stack,
    /// Of a file, by its path; offsets are those of the file.
    File(String),
    /// Known only by its address: a mapping of an attached process, or an unreported one; offsets are
    /// addresses.
    Placed,
}

/// Counts by cell, in columns of one length. Cells without anything are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellCounts {
    /// The cell's number: its offset divided by the grain, rising.
    pub at: Vec<u64>,
    /// Misses of the second-level TLB, or an estimate of walks.
    pub misses: Vec<u64>,
    /// Accesses; empty if the source does not count them.
    pub accesses: Vec<u64>,
    /// 1 where it was written, 0 where it was only read; empty if the source does not know.
    pub written: Vec<u8>,
    /// Its NUMA node, [`CellCounts::NO_NODE`] if unknown; empty if the source reports none.
    #[serde(default)]
    pub node: Vec<u32>,
}

impl CellCounts {
    /// The node of a cell whose node is not known.
    pub const NO_NODE: u32 = u32::MAX;
}

/// Histograms of the reuse distance of page-table lines. A line holds the entries of `line` bytes of the
/// mapping: 32 KiB where an entry of 8 bytes maps 4 KiB and a line has 64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReuseHistograms {
    /// Bytes of address space that one line maps; 0 if there are no histograms.
    pub line: Bytes,
    /// The line's number: its offset divided by `line`, rising. A line that spans offsets belongs to the one
    /// with most of it.
    pub at: Vec<u64>,
    /// (log2 of the distance, rounded down, misses) of each line. First walks are in
    /// [`ReuseHistograms::FIRST_WALK_BUCKET`].
    pub counts: Vec<Vec<(u32, u64)>>,
}

impl ReuseHistograms {
    /// The bucket of walks of lines that were never walked before.
    pub const FIRST_WALK_BUCKET: u32 = 63;
}

/// A part of a mapping that the source could not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenRange {
    /// Its first offset.
    pub offset: u64,
    /// Its length.
    pub bytes: Bytes,
    /// Why.
    pub why: UnseenReason,
}

/// Why a source could not see a part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnseenReason {
    /// It is on huge pages already: one bit for all of it.
    AlreadyHuge,
    /// It was read and never written: the kernel's zero page has no accessed bits of this program.
    ZeroPage,
    /// It belongs to another user, or the kernel refuses.
    NotPermitted,
    /// It mapped or unmapped during the profile.
    Changed,
    /// The source sees another part of the address space: a range was given, or samples have no address.
    OutOfRange,
    /// Its accesses are the kernel's own, or a device's.
    #[serde(alias = "NotByProgram")]
    NotFromProgram,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swept_profile(effort: ProfilingCost) -> TlbProfile {
        TlbProfile {
            source: ProfileSource::Accessed,
            command: Vec::new(),
            page_size: PageSize::DEFAULT,
            huge: Bytes(2 << 20),
            tlb: None,
            walk_cost: None,
            images: vec![ImageProfile { misses: 1_000_000, ..ImageProfile::default() }],
            wall_ns: 0,
            effort: ProfilingCost { sweeps: Some(100), misses_error_permille: Some(50), ..effort },
            lost: 0,
            notes: Vec::new(),
            what_ifs: Vec::new(),
            exit: None,
        }
    }

    #[test]
    fn quantiles_of_few_blocks_are_those_of_student() {
        for (freedom, expected) in [(3, 3.182), (7, 2.365), (15, 2.131), (1000, 1.962)] {
            let found = student_quantile_95(freedom);
            assert!((found / expected - 1.0).abs() < 0.008, "{freedom}: {found}");
        }
        let width = |blocks| {
            let effort = ProfilingCost { misses_error_blocks: blocks, ..ProfilingCost::default() };
            swept_profile(effort).misses_interval().unwrap()
        };
        assert!(width(Some(8)).0 < width(None).0 && width(None).1 < width(Some(8)).1);
        let none = width(Some(1));
        assert_eq!(none, (0, u64::MAX), "a single block has no spread");
    }

    #[test]
    fn saturated_scans_have_a_lower_bound_and_neither_a_total_nor_an_interval() {
        for (reset_permille, saturated_permille, reason) in [
            (100, 100, None),
            (450, 900, Some(LowerBoundReason::ResetTime { permille: 450 })),
            (0, 101, Some(LowerBoundReason::SaturatedRegions { permille: 101 })),
        ] {
            let saturation = Some(ScanSaturation { reset_permille, saturated_permille });
            let found = swept_profile(ProfilingCost { saturation, ..ProfilingCost::default() });
            assert_eq!(found.lower_bound_reason(), reason);
            assert_eq!(found.total_misses().is_none(), reason.is_some());
            assert_eq!(found.misses_interval().is_none(), reason.is_some());
            assert_eq!(found.misses_at_least().is_some_and(|least| least < 1_000_000), reason.is_some());
            assert!(found.is_observed() && (found.lower_bound_factor() < 1.0) == reason.is_some());
        }
        let mut unseen = swept_profile(ProfilingCost::default());
        unseen.effort.sweeps = Some(0);
        assert_eq!(
            (unseen.is_observed(), unseen.total_misses(), unseen.misses_at_least()),
            (false, None, None)
        );
    }
}
