//! Where a program's TLB misses cost time: by mapping and place in it, so that it holds for the next run.
//!
//! A source counts what it can see. What it cannot see is named, place by place: where nothing was counted
//! there, nothing is known, and never "no cost".

use serde::{Deserialize, Serialize};

use crate::machine::Tlb;
use crate::{Bytes, PageSize};

/// What one profiling run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// How the misses were found.
    pub source: ProfileSource,
    /// The command line that was profiled; empty where a running process or a file was.
    pub command: Vec<String>,
    /// The base page size of the profiled program.
    pub page_size: PageSize,
    /// The size of a huge page of PMD size there.
    pub huge: Bytes,
    /// The TLBs whose misses are counted, where they were modelled.
    pub tlb: Option<Tlb>,
    /// What a page walk costs on this machine, by reuse distance; without it, misses are not times.
    pub walk_cost: Option<WalkCost>,
    /// The process images, in the order in which they began.
    pub images: Vec<ImageProfile>,
    /// Wall time of the profiled run, or of the part of it that was watched.
    pub wall_ns: u64,
    /// What profiling cost.
    pub effort: Effort,
    /// Records that the source says it lost.
    pub lost: u64,
    /// What a reader must know: limits of the source here, what was refused, in sentences.
    pub notes: Vec<String>,
    /// What the misses would be with huge pages in places, where the source can tell; the first is that
    /// without any, over the same accesses.
    #[serde(default)]
    pub what_ifs: Vec<WhatIf>,
    /// How the program ended, where it was started for this: its exit code, or 128 and the signal's number.
    #[serde(default)]
    pub exit: Option<u8>,
}

impl Profile {
    /// Standard errors on each side of an estimate that hold 95 % of them.
    const SIDES: f64 = 1.96;

    /// All misses; `None` where they were to be estimated, and nothing was looked at: unknown is not 0.
    pub fn misses(&self) -> Option<u64> {
        let is_blind = self.source == ProfileSource::Accessed && self.effort.looks() == Some(0);
        let all = self.images.iter().fold(0u64, |sum, image| sum.saturating_add(image.misses));
        (!is_blind).then_some(all)
    }

    /// Whether the number of misses is an estimate: by sweeps and scans, or scaled from stretches of the run.
    pub fn is_estimate(&self) -> bool {
        self.source == ProfileSource::Accessed || self.effort.stretches.is_some()
    }

    /// One standard error of the number of misses as a part of itself; `None` where they are counted, or it
    /// is not known how far they are off. Files without it have the number of sweeps alone: each may be off
    /// by as much as it says.
    pub fn misses_error(&self) -> Option<f64> {
        if self.source != ProfileSource::Accessed {
            let half = self.effort.stretches?.error_permille?;
            return Some(f64::from(half) / 1000.0 / Self::SIDES);
        }
        let looks = self.effort.looks().filter(|looks| *looks > 0)?;
        let told = self.effort.misses_error_permille.map(|permille| f64::from(permille) / 1000.0);
        Some(told.unwrap_or((looks as f64).sqrt().recip()))
    }

    /// Between which numbers the misses lie, with 95 %. That of sweeps is one of factors, so that it never
    /// ends below 0.
    pub fn misses_interval(&self) -> Option<(u64, u64)> {
        let off = Self::SIDES * self.misses_error()?;
        let misses = self.misses()? as f64;
        let (down, up) = match self.source {
            ProfileSource::Accessed => ((-off).exp(), off.exp()),
            _ => ((1.0 - off).max(0.0), 1.0 + off),
        };
        Some(((misses * down) as u64, (misses * up) as u64))
    }
}

/// Misses of all images with memory on pages of certain sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    /// What was on huge pages: `none`, `all`, or the name of a plan.
    pub name: String,
    /// All second-level misses.
    pub misses: u64,
    /// The same by the size of the page that was missed.
    pub sizes: Vec<WhatIfSize>,
    /// Reads of page-table entries besides the last one of a walk: of PDEs, PDPTEs, PML4Es.
    pub upper_reads: [u64; 3],
    /// Misses by region of a huge page: of the first mapping that has some of it.
    pub regions: Vec<WhatIfRegion>,
}

/// Misses of pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfSize {
    /// The page, as the TLB holds it.
    pub page: Bytes,
    /// Misses.
    pub misses: u64,
    /// (log2 of the reuse distance of the line that the walk's last entry stands in, misses); first walks
    /// stand at [`Reuse::FIRST`]. A line of entries of huge pages is one of PDEs.
    pub reuse: Vec<(u32, u64)>,
}

/// Misses in one region of the size of a huge page, on the grid of huge pages of the profiled run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfRegion {
    /// The image, by its place in [`Profile::images`].
    pub image: u32,
    /// The mapping, by its place in [`ImageProfile::mappings`].
    pub mapping: u32,
    /// Offset of the region's first byte, rounded down to 0.
    pub offset: u64,
    /// Misses.
    pub misses: u64,
}

/// How misses were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProfileSource {
    /// A modelled TLB, fed with every access by QEMU's user mode.
    Exact,
    /// Accessed bits of page-table entries, swept again and again: an estimate of walks.
    Accessed,
    /// Precise samples of a hardware counter.
    Pmu,
    /// Samples in a file that perf wrote.
    PerfData,
}

/// What profiling cost, where it was accounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// CPU time of the profiler.
    pub cpu_ns: Option<u64>,
    /// Time during which the program was stopped.
    pub stopped_ns: Option<u64>,
    /// The share of the time in which sweeps went on, in thousandths.
    pub duty_permille: Option<u32>,
    /// Time during which mappings were split.
    pub split_ns: Option<u64>,
    /// Sweeps of accessed bits that it rests on, summed over the images.
    #[serde(default)]
    pub sweeps: Option<u64>,
    /// How far the estimated number of misses may be off: one standard error as a part of itself, in
    /// thousandths; `None` where misses are counted, or nothing was seen.
    #[serde(default)]
    pub misses_error_permille: Option<u32>,
    /// What sweeps took of the time of the process image that they slowed down most, at most, in millionths:
    /// cleared pages × what one costs that is accessed again, and the time in which it was stopped.
    #[serde(default)]
    pub slow_down_ppm: Option<u64>,
    /// Picoseconds that a cleared page of that image costs when it is accessed again ([`AccessedPrice`]).
    #[serde(default)]
    pub accessed_page_ps: Option<u64>,
    /// Stops of all threads in which entries of the page of zeros were dropped, to see memory that was read
    /// and never written.
    #[serde(default)]
    pub zero_scans: Option<u64>,
    /// How many entries were dropped in them, and how many were back when it was looked.
    #[serde(default)]
    pub zero_pages: Option<(u64, u64)>,
    /// What the counts rest on where stretches of the run were looked at, and not all of it.
    #[serde(default)]
    pub stretches: Option<Stretches>,
}

impl Effort {
    /// Sweeps and scans that an estimate rests on; `None` where it rests on none.
    pub fn looks(&self) -> Option<u64> {
        match (self.sweeps, self.zero_scans) {
            (None, None) => None,
            (sweeps, scans) => Some(sweeps.unwrap_or(0).saturating_add(scans.unwrap_or(0))),
        }
    }
}

/// Stretches of accesses that were counted; the counts of the profile are scaled to all accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretches {
    /// How many of them were counted to their end.
    pub count: u64,
    /// Accesses that were counted.
    pub counted: u64,
    /// All accesses: what was not counted is estimated from instructions.
    pub accesses: u64,
    /// Half of the 95 % interval of all misses, in thousandths of them, by how far the stretches lie apart;
    /// `None` for fewer than [`Stretches::FEWEST`], and without a miss.
    pub error_permille: Option<u32>,
}

impl Stretches {
    /// Stretches from which on is said how far off the counts may be.
    pub const FEWEST: u64 = 5;

    /// The share of the accesses that was counted.
    pub fn share(&self) -> f64 {
        self.counted as f64 / (self.accesses as f64).max(1.0)
    }
}

/// What a program pays when the accessed bit of a page is set again after it was cleared, by how much memory
/// was cleared: with more of it, page-table lines come from further away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessedPrice {
    /// (bytes that were cleared, picoseconds a page), rising in the first.
    pub points: Vec<(u64, u64)>,
    /// Where it is from: when it was measured, on which processor; or that it was assumed.
    pub origin: String,
}

impl AccessedPrice {
    /// Picoseconds a page where so many bytes are cleared: linear in log2 of the bytes between the points,
    /// and on with the last slope above them, since the price still grows there. Never 0.
    pub fn page_ps(&self, bytes: u64) -> u64 {
        let log = |bytes: u64| (bytes.max(1) as f64).log2();
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return 1 };
        if bytes <= first.0 || self.points.len() < 2 {
            return first.1.max(1);
        }
        let pairs = || self.points.windows(2);
        let around = pairs().find(|two| bytes <= two[1].0).or_else(|| pairs().last());
        let Some([low, high]) = around else { return last.1.max(1) };
        let part = (log(bytes) - log(low.0)) / (log(high.0) - log(low.0)).max(f64::EPSILON);
        let slope = high.1 as f64 - low.1 as f64;
        let slope = if bytes > last.0 { slope.max(0.0) } else { slope };
        ((low.1 as f64 + slope * part).round() as u64).max(1)
    }
}

/// What a page walk costs by the reuse distance of its page-table line: how many walks of other lines there
/// were since the last walk of this one. Rising, linear between the points in log2 of the distance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WalkCost {
    /// (log2 of the distance, picoseconds of a walk), rising in both.
    pub points: Vec<(u32, u64)>,
    /// Where it is from: when it was measured, on which processor.
    pub origin: String,
}

/// One process image: a program from its start or exec to its exec or end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageProfile {
    /// Process id.
    pub pid: u32,
    /// The image that it began as, by its place in the list; `None` for the first.
    pub parent: Option<usize>,
    /// How it began.
    pub begun: Begun,
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
}

/// How an image began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begun {
    /// pagelab started it.
    Launched,
    /// A fork of its parent.
    Forked,
    /// An exec of its parent.
    Executed,
    /// It ran already, or a file tells of it.
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

/// What a source saw in one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingProfile {
    /// What it is, whatever its address.
    pub key: MappingKey,
    /// The address of its offset 0 in the profiled run: that of its first byte, but for a part of a file.
    pub start: u64,
    /// Its length, the largest it ever had.
    pub bytes: Bytes,
    /// Bytes of a cell.
    pub grain: Bytes,
    /// What was counted, by cell; cells that were seen to be touched are there, also those without a miss.
    pub cells: Cells,
    /// Reuse distances of page-table lines, where the source gives them.
    pub reuse: Reuse,
    /// What the source could not see.
    pub unseen: Vec<Unseen>,
}

/// What a mapping is in every run of the program: not where it lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MappingKey {
    /// Its kind.
    pub kind: MappingKind,
    /// The length that was asked for when it was made, in whole pages; 0 for a heap and a stack.
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
    /// What brk grows; offsets count from the first break.
    Heap,
    /// The stack of the first thread; offsets count from the lowest address it ever had.
    Stack,
    /// Of a file, by its path; offsets are those of the file.
    File(String),
    /// Known by nothing but its place: a mapping of a process that was attached to, or none that was told;
    /// offsets are addresses.
    Placed,
}

/// Counts by cell, in columns of one length. Cells without anything are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cells {
    /// The cell's number: its offset divided by the grain, rising.
    pub at: Vec<u64>,
    /// Misses of the second-level TLB, or an estimate of walks.
    pub misses: Vec<u64>,
    /// Accesses; empty if the source does not count them.
    pub accesses: Vec<u64>,
    /// 1 where it was written, 0 where it was only read; empty if the source does not know.
    pub written: Vec<u8>,
    /// The NUMA node that it lies on, [`Cells::NO_NODE`] where that is not known; empty if the source tells
    /// none.
    #[serde(default)]
    pub node: Vec<u32>,
}

impl Cells {
    /// The node of a cell whose node is not known.
    pub const NO_NODE: u32 = u32::MAX;
}

/// Histograms of the reuse distance of page-table lines. A line holds the entries of `line` bytes of the
/// mapping: 32 KiB where an entry of 8 bytes maps 4 KiB and a line has 64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reuse {
    /// Bytes of address space that one line maps; 0 where there are no histograms.
    pub line: Bytes,
    /// The line's number: its offset divided by `line`, rising. A line that lies across offsets belongs to
    /// the one in which most of it lies.
    pub at: Vec<u64>,
    /// (log2 of the distance, rounded down, misses) of each line. First walks stand at [`Reuse::FIRST`].
    pub counts: Vec<Vec<(u32, u64)>>,
}

impl Reuse {
    /// The bucket of walks of lines that were never walked before.
    pub const FIRST: u32 = 63;
}

/// A part of a mapping that the source could not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// Its first offset.
    pub offset: u64,
    /// Its length.
    pub bytes: Bytes,
    /// Why.
    pub why: UnseenWhy,
}

/// Why a source could not see a part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnseenWhy {
    /// It is on huge pages already: one bit for all of it.
    AlreadyHuge,
    /// It was read and never written: the kernel's zero page has no bits of its own.
    ZeroPage,
    /// It belongs to another user, or the kernel refuses.
    NotPermitted,
    /// It came or went while it was watched.
    Changed,
    /// The source sees another part of the address space: a range was given, or samples have no address.
    OutOfRange,
    /// Its accesses are the kernel's own, or a device's.
    NotByProgram,
}
