//! Process image under sweeps: its observations, and its final profile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pagelab_formats::{maps, process_status};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;
use pagelab_model::profile::{
    AccessedBitCost, CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingKind, MappingProfile,
    Program, ReuseHistograms, UnseenRange, UnseenReason,
};
use pagelab_model::{Absence, Bytes, PageSize};
use pagelab_sys::{clock, pagemap_scan};
use pagelab_tlb::engine::mapping_table::{MappingId, MappingTable};

use super::budget::{CostAccount, MemoryGrowth};
use super::estimate::AccessSamples;
use super::named_regions::NamedRegions;
use super::scan_saturation::ResetTime;
use super::sweep::{ScannedPiece, SweepResult};
use super::walk_total::{SweptTotal, TurnCounts};
use super::zero_pages::rescan::{DroppedRun, RescanContext};
use super::zero_pages::{RegionLocation, ZeroPages};
use super::{estimate, sweep};
use crate::accessed::zero_pages::run_selection;
use crate::dontneed::CpuUsage;
use crate::own_advice::AdviceRecord;
use crate::process_injection::ProcessIdentity;
use crate::program;

/// Bytes of a cell of a mapping that does not begin at a huge-page boundary.
pub(super) const FINE_GRAIN: u64 = 64 << 10;

/// Addresses that are one mapping to the user, in any number of pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    addresses: Range<u64>,
    name: String,
    offset: u64,
    is_shared: bool,
    zero_parts: Vec<Range<u64>>,
}

impl Extent {
    /// Whether this is the same mapping, grown or shifted: it overlaps, or has no name and is adjacent.
    fn is_same_mapping(&self, new: &Extent) -> bool {
        let (from, to) =
            (self.addresses.start.max(new.addresses.start), self.addresses.end.min(new.addresses.end));
        self.name == new.name
            && self.is_shared == new.is_shared
            && (from < to || from == to && new.name.is_empty())
    }
}

/// Ranges before a mapping that are searched for the one that it belongs to.
const NEIGHBOURS_MAX: usize = 4;

/// Growth by more than this fraction discards earlier sweeps, until this number of sweeps was made.
const GROWTH_DIVISOR: u64 = 10;
const RESTART_SWEEPS_MAX: u64 = 16;

/// Splits for which the pages in memory are not read again.
const MAPPINGS_REFRESH_TURNS: u64 = 16;

/// Sweeps that waited for a CPU are discarded, except one in this many.
const TORN_SWEEPS_MAX: u32 = 4;

/// Smallest region that sweeps distinguish.
#[derive(Clone, Debug, Default)]
pub(super) struct SweptRegion {
    pub samples: AccessSamples,
    /// Sweeps in which it was on a huge page.
    pub huge_sweeps: u64,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Its own pages and those of files: the zero page is not among them.
    pub resident: u64,
    /// Page tables; memory that is only read has some, too.
    pub page_tables: u64,
}

impl MemoryUsage {
    /// Upper bound of the memory that is only read: what the page tables may map besides its own pages.
    pub fn zero_mapped_max(&self, page: u64) -> u64 {
        (self.page_tables / PTE_BYTES).saturating_mul(page).saturating_sub(self.resident)
    }
}

/// Bytes of an entry of a page table.
const PTE_BYTES: u64 = 8;

/// Differs between the images of a process.
#[derive(Clone, Debug)]
struct ExecMark {
    /// Each exec maps the vdso at a new address. `None` in the middle of an exec.
    vdso_start: Option<u64>,
    /// The path of the program; empty if the process has exited.
    path: String,
}

/// An image under sweeps.
#[derive(Debug)]
pub struct SweptImage {
    pub process: ProcessIdentity,
    /// The index of its parent in the images of the profile.
    pub parent: Option<usize>,
    pub start: ImageStart,
    /// Whether it may still be swept.
    pub is_alive: bool,
    /// Clears its accessed bits.
    pub clear_refs: File,
    /// Growth of its memory.
    pub growth: MemoryGrowth,
    /// The pause of the next sweep.
    pub pause_ns: u64,
    /// When it was first seen, and how long it had waited for a CPU by then.
    first_seen: (Instant, Duration),
    /// CPU time that it had used when it was first seen.
    first_cpu_ns: u64,
    /// CPU time that it had used when it was last seen.
    last_cpu_ns: u64,
    /// The budget of its sweeps.
    pub account: CostAccount,
    pub last_turn_work: Option<Duration>,
    /// When its accessed pages were last read.
    pub last_scan: Instant,
    /// Distinguishes this image from the next one of the process.
    exec_mark: ExecMark,
    program: Program,
    arguments: Vec<String>,
    extents: BTreeMap<u64, Extent>,
    /// By first and last address: while memory is being filled, the part after it is one large piece.
    regions: BTreeMap<(u64, u64), SweptRegion>,
    /// Regions that are identified in the next run, too.
    named_regions: NamedRegions,
    /// Sweeps that count.
    pub sweeps: u64,
    /// The same by blocks of turns.
    turn_counts: TurnCounts,
    /// The turn of the first of them.
    first_turn: u64,
    /// The time that it spent on setting cleared bits again.
    reset_time: ResetTime,
    /// Sweeps in a row that were discarded.
    torn_sweeps: u32,
    /// Most bytes in memory at any sweep that counts.
    resident_max: u64,
    /// Its memory that was never written.
    pub zero_pages: ZeroPages,
    /// Its own advice on huge pages.
    advice: AdviceRecord,
    /// Its mappings are not split any more.
    pub is_unsplittable: bool,
    /// The number of turns with a split.
    sweep_turns: u64,
    /// Its mappings as the kernel lists them, and their resident memory.
    cached_mappings: (Vec<u8>, Rc<[Mapping]>),
}

impl SweptImage {
    /// The present image of a process.
    pub fn new(
        root: &Root,
        process: ProcessIdentity,
        start: ImageStart,
        parent: Option<usize>,
        clear_refs: File,
    ) -> SweptImage {
        let exec_mark = read_exec_mark(root, process.pid);
        let program = match exec_mark.path.is_empty() {
            true => Program::default(),
            false => program::identify_program(std::path::Path::new(&exec_mark.path)),
        };
        let cpu_ns = clock::process_cpu_ns(process.pid).unwrap_or(0);
        SweptImage {
            process,
            parent,
            start,
            is_alive: true,
            clear_refs,
            growth: MemoryGrowth::default(),
            pause_ns: 0,
            first_seen: (Instant::now(), run_queue_wait(root, process.pid)),
            first_cpu_ns: cpu_ns,
            last_cpu_ns: cpu_ns,
            account: CostAccount::default(),
            last_turn_work: None,
            last_scan: Instant::now(),
            exec_mark,
            program,
            arguments: read_arguments(root, process.pid),
            extents: BTreeMap::new(),
            regions: BTreeMap::new(),
            named_regions: NamedRegions::default(),
            sweeps: 0,
            turn_counts: TurnCounts::default(),
            first_turn: 0,
            reset_time: ResetTime::default(),
            torn_sweeps: 0,
            resident_max: 0,
            zero_pages: ZeroPages::new(process.start_ticks ^ u64::from(process.pid) << 32),
            advice: AdviceRecord::default(),
            is_unsplittable: false,
            sweep_turns: 0,
            cached_mappings: (Vec::new(), Rc::new([])),
        }
    }

    /// Updates its lifetime and memory; some time has passed since the last scan.
    pub fn update_lifetime(&mut self, root: &Root, resident: u64, bit_cost: &AccessedBitCost) {
        let wait_time = run_queue_wait(root, self.process.pid).saturating_sub(self.first_seen.1);
        self.last_cpu_ns = clock::process_cpu_ns(self.process.pid).unwrap_or(0).max(self.last_cpu_ns);
        self.account.expire_scan();
        self.account.update_lifetime(
            self.first_seen.0.elapsed().saturating_sub(wait_time),
            resident,
            bit_cost,
        );
    }

    /// The part of its time in which it waited for a CPU.
    pub fn waited_share(&self) -> f64 {
        let all = self.first_seen.0.elapsed().as_secs_f64().max(1e-9);
        (1.0 - self.account.lifetime.as_secs_f64() / all).clamp(0.0, 1.0)
    }

    /// CPU time that it used while it was watched.
    fn cpu_used_ns(&self) -> u64 {
        self.last_cpu_ns - self.first_cpu_ns
    }

    /// Whether the process has another image by now. A process that exits has none, and a process that was
    /// first seen in the middle of its exec has the same image afterwards.
    pub fn was_replaced(&mut self, root: &Root) -> bool {
        let now = read_exec_mark(root, self.process.pid);
        let known = &mut self.exec_mark;
        if now.path.is_empty() || now.path != known.path {
            return !now.path.is_empty();
        }
        if known.vdso_start.is_none() && now.vdso_start.is_some() {
            known.vdso_start = now.vdso_start;
            self.arguments = read_arguments(root, self.process.pid);
        }
        now.vdso_start.is_some() && now.vdso_start != self.exec_mark.vdso_start
    }

    /// Resident memory now.
    pub fn read_memory(&self, root: &Root) -> MemoryUsage {
        let status =
            Reader::new(root).parse(&paths::process_file(self.process.pid, "status"), process_status::parse);
        let bytes = |name| status.as_ref().ok()?.amount_bytes(name).map(|bytes| bytes.0);
        MemoryUsage { resident: bytes("VmRSS").unwrap_or(0), page_tables: bytes("VmPTE").unwrap_or(0) }
    }

    /// The mappings, before they are split. Their pages in memory are read again if there are
    /// others, and once in a while: that costs as much as a sweep.
    pub fn read_mappings(&mut self, root: &Root, huge: u64) -> Result<Rc<[Mapping]>, Absence> {
        let maps = root.read(&paths::process_file(self.process.pid, "maps"))?;
        let is_new = maps != self.cached_mappings.0;
        if is_new || self.sweep_turns.is_multiple_of(MAPPINGS_REFRESH_TURNS) {
            let mappings = sweep::read_mappings(root, self.process.pid)?;
            self.record_extents(&mappings);
            self.record_advice(&mappings, huge);
            self.cached_mappings = (maps, mappings.into());
        }
        if self.sweep_turns.is_multiple_of(MAPPINGS_REFRESH_TURNS) {
            self.refresh_zero_parts();
        }
        self.sweep_turns += 1;
        Ok(self.cached_mappings.1.clone())
    }

    /// Updates the extents from the mappings, before they are split.
    fn record_extents(&mut self, mappings: &[Mapping]) {
        for mapping in mappings {
            let is_fixed =
                matches!(mapping.name.as_str(), "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]");
            if is_fixed || mapping.end <= mapping.start {
                continue;
            }
            let mut new = Extent {
                addresses: mapping.start..mapping.end,
                name: mapping.name.clone(),
                offset: mapping.offset,
                is_shared: mapping.permissions.ends_with('s'),
                zero_parts: Vec::new(),
            };
            let mut neighbours = self.extents.range(..=new.addresses.end).rev().take(NEIGHBOURS_MAX);
            let same = neighbours.find(|(_, old)| old.is_same_mapping(&new)).map(|(&start, _)| start);
            if let Some(old) = same.and_then(|start| self.extents.remove(&start)) {
                if old.addresses.start < new.addresses.start {
                    new.offset = old.offset;
                }
                let start = old.addresses.start.min(new.addresses.start);
                new.addresses = start..old.addresses.end.max(new.addresses.end);
                new.zero_parts = old.zero_parts;
            }
            self.extents.insert(new.addresses.start, new);
        }
    }

    /// Records the program's own advice on huge pages, from its mappings now.
    fn record_advice(&mut self, mappings: &[Mapping], huge: u64) {
        let extents = &self.extents;
        let zero_bytes = |range: &Range<u64>| {
            let before_end = extents.range(..range.end).rev();
            let inside = before_end.take_while(|(_, extent)| extent.addresses.end > range.start);
            let overlap =
                |part: &Range<u64>| part.end.min(range.end).saturating_sub(part.start.max(range.start));
            inside.flat_map(|(_, extent)| &extent.zero_parts).map(overlap).sum()
        };
        self.advice.record_reading(mappings, huge, zero_bytes);
    }

    /// Records that the program disabled THP for itself.
    pub fn record_thp_disable(&mut self) {
        self.advice.record_thp_disable();
    }

    /// Sets the mapping table of the program, unless the process has executed another one meanwhile.
    pub fn set_mapping_table(&mut self, table: Option<(u32, MappingTable)>) {
        if let Some((space, table)) = table
            && *self.named_regions.space.get_or_insert(space) == space
        {
            self.named_regions.mapping_table = Some(table);
        }
    }

    /// Records a sweep, and adapts the next pause.
    pub fn add_sweep(
        &mut self,
        sweep_result: &SweepResult,
        page: u64,
        huge: u64,
        pause_max: Duration,
    ) -> io::Result<()> {
        if sweep_result.is_torn() && self.sweeps > 0 && self.torn_sweeps < TORN_SWEEPS_MAX {
            self.torn_sweeps += 1;
            return Ok(());
        }
        self.torn_sweeps = 0;
        let (pieces, mappings) = sweep_result.parse_pieces()?;
        self.record_advice(&mappings, huge);
        let resident = pieces.iter().map(|piece| piece.resident).sum();
        if self.sweeps < RESTART_SWEEPS_MAX
            && resident > self.resident_max + self.resident_max / GROWTH_DIVISOR
        {
            // Its memory was still being filled.
            self.regions.clear();
            self.named_regions.regions.clear();
            self.sweeps = 0;
            (self.turn_counts, self.reset_time) = (TurnCounts::default(), ResetTime::default());
        }
        if self.sweeps == 0 {
            self.first_turn = self.sweep_turns;
        }
        let turn = self.sweep_turns - self.first_turn;
        self.resident_max = self.resident_max.max(resident);
        self.sweeps += 1;
        self.turn_counts.add_sweep(turn);
        self.record_reset_time(&pieces, page);
        for piece in pieces.iter().filter(|piece| piece.resident > 0) {
            if self.named_regions.add_piece(turn, piece, page) {
                continue;
            }
            let region = self.regions.entry((piece.addresses.start, piece.addresses.end)).or_default();
            let (pages, referenced) = (piece.resident / page, piece.referenced / page);
            region.add_sweep(turn, piece.huge_bytes > 0, pages, referenced, piece.lag_ns);
        }
        let pause_max_ns = u64::try_from(pause_max.as_nanos()).unwrap_or(u64::MAX);
        self.pause_ns = estimate::next_pause_ns(self.pause_ns, hottest_permille(&pieces, huge), pause_max_ns);
        Ok(())
    }

    /// Records the time that it spent on setting the bits again that a sweep had cleared.
    fn record_reset_time(&mut self, pieces: &[ScannedPiece], page: u64) {
        let base_pieces = pieces.iter().filter(|piece| piece.huge_bytes == 0);
        let referenced: u64 = base_pieces.map(|piece| piece.referenced).sum();
        let resident: u128 = pieces.iter().map(|piece| u128::from(piece.resident)).sum();
        let lags: u128 =
            pieces.iter().map(|piece| u128::from(piece.resident) * u128::from(piece.lag_ns)).sum();
        let lag_ns = (lags / resident.max(1)) as u64;
        self.reset_time.add_sweep(referenced / page, self.account.page_ps, lag_ns);
    }

    /// The numbers of the huge-page pieces of a mapping that have pages in memory. If that is unknown, all of
    /// it counts.
    pub fn find_populated(&self, mapping: &Mapping, huge: u64) -> BTreeSet<u64> {
        let all = || (mapping.start / huge..mapping.end.div_ceil(huge)).collect();
        let resident = mapping.fields_kib.get("Rss").unwrap_or(0).saturating_mul(1024);
        if resident.saturating_mul(2) >= mapping.end - mapping.start {
            return all();
        }
        let Ok(pagemap) = File::open(paths::process_file(self.process.pid, "pagemap")) else { return all() };
        let mut found = BTreeSet::new();
        let scan_result = pagemap_scan::for_each_populated(&pagemap, mapping.start..mapping.end, |part| {
            found.extend(part.start / huge..part.end.div_ceil(huge));
        });
        if scan_result.is_ok() { found } else { all() }
    }

    /// The walks that sweeps saw, in the program's time, and their errors.
    pub fn swept_total(&self) -> SweptTotal {
        let samples = self.all_regions().map(|region| &region.samples);
        SweptTotal::from_samples(samples, &self.turn_counts, self.cpu_used_ns())
    }

    /// The part of the time between clearing and scanning in which it set bits again.
    pub fn reset_share(&self) -> f64 {
        self.reset_time.share()
    }

    fn all_regions(&self) -> impl Iterator<Item = &SweptRegion> {
        self.regions.values().chain(self.named_regions.regions.values())
    }

    /// Whether some of its never-written memory was not scanned.
    pub fn has_unscanned_zeros(&self, huge: u64) -> bool {
        let mut zero_parts = self.extents.values().flat_map(|extent| &extent.zero_parts);
        zero_parts.any(|part| !self.zero_pages.unscanned_parts(part, huge).is_empty())
    }

    /// Bytes in memory at the sweeps and at the peak, if sweeps covered less than half.
    pub fn partly_swept_bytes(&self) -> Option<(u64, u64)> {
        let (seen, most) = (self.resident_max, self.growth.resident_max);
        (self.sweeps > 0 && seen < most / 2).then_some((seen, most))
    }

    /// The profile, with walks scaled to its entire CPU time, and a TLB of this number of entries for base
    /// pages.
    pub fn build_profile(&self, page: PageSize, huge: u64, entries: Option<u64>) -> ImageProfile {
        let mut counts = BTreeMap::new();
        let scale = WalkScale { time_ns: self.cpu_used_ns(), sweeps: self.sweeps, huge };
        let (named, placed) = self.zero_walks(&scale, entries);
        let extents = self.extents.values();
        let mut unseen_zeros = Vec::new();
        let mut mappings: Vec<MappingProfile> = extents
            .map(|extent| self.build_mapping(extent, &scale, &placed, &mut counts, &mut unseen_zeros))
            .collect();
        mappings.extend(self.named_regions.build_mappings(&scale, &unseen_zeros, &named));
        mappings.retain(|mapping| !mapping.cells.at.is_empty() || !mapping.unseen.is_empty());
        let misses = mappings.iter().flat_map(|mapping| &mapping.cells.misses).sum();
        debug_assert!(page.bytes() <= FINE_GRAIN || huge >= page.bytes());
        ImageProfile {
            pid: self.process.pid,
            parent: self.parent,
            begun: self.start,
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            misses,
            mappings,
            advice: self.advice.advice(),
            ..ImageProfile::default()
        }
    }

    fn build_mapping(
        &self,
        extent: &Extent,
        scale: &WalkScale,
        placed: &PlacedWalks,
        counts: &mut BTreeMap<(MappingKind, u64), u32>,
        unseen_zeros: &mut Vec<Range<u64>>,
    ) -> MappingProfile {
        let (start, end) = (extent.addresses.start, extent.addresses.end);
        let kind_of_mapping = mapping_kind(extent);
        // Difference between offset and address.
        let (shift, grain) = match &kind_of_mapping {
            MappingKind::Placed => (0, scale.huge),
            MappingKind::File(_) => (extent.offset.wrapping_sub(start), FINE_GRAIN),
            _ => (0u64.wrapping_sub(start), FINE_GRAIN),
        };
        // Offsets of a file are its own, so offset 0 is before a mapping of a later part.
        let before = if matches!(kind_of_mapping, MappingKind::File(_)) { extent.offset } else { 0 };
        let requested_bytes = match kind_of_mapping {
            MappingKind::Heap | MappingKind::Stack => 0,
            _ => end - start,
        };
        let nth = counts.entry((kind_of_mapping.clone(), requested_bytes)).or_insert(0);
        let key = MappingIdentity { kind: kind_of_mapping, bytes: Bytes(requested_bytes), nth: *nth };
        *nth += 1;
        let mut builder = MappingBuilder::default();
        for (&(from, to), region) in self.regions.range((start, 0)..(end, 0)) {
            let to = to.min(end);
            builder.add_region(from.wrapping_add(shift)..to.wrapping_add(shift), grain, region, scale);
        }
        for (&(from, to), &walks) in placed.range((start, 0)..(end, 0)) {
            builder.add_walks(from.wrapping_add(shift)..to.min(end).wrapping_add(shift), grain, walks);
        }
        for part in
            extent.zero_parts.iter().flat_map(|part| self.zero_pages.unscanned_parts(part, scale.huge))
        {
            if self.named_regions.covers(&part) {
                unseen_zeros.push(part);
                continue;
            }
            let offsets = part.start.wrapping_add(shift)..part.end.wrapping_add(shift);
            builder.add_unseen(&offsets, UnseenReason::ZeroPage);
        }
        let bytes = Bytes((end - start).saturating_add(before));
        builder.build(key, start.wrapping_sub(before), bytes, Bytes(grain))
    }
}

/// Components of a region's counts.
pub(super) struct WalkScale {
    /// CPU time that it used while it was watched.
    pub time_ns: u64,
    /// Sweeps of the image.
    pub sweeps: u64,
    /// The size of a huge page.
    pub huge: u64,
}

/// Observation of one mapping.
#[derive(Default)]
pub(super) struct MappingBuilder {
    cells: BTreeMap<u64, u64>,
    unseen: Vec<UnseenRange>,
}

impl MappingBuilder {
    /// Adds a region at these offsets.
    pub fn add_region(&mut self, offsets: Range<u64>, grain: u64, region: &SweptRegion, scale: &WalkScale) {
        if region.huge_sweeps > 0 {
            self.add_unseen(&offsets, UnseenReason::AlreadyHuge);
        }
        if region.samples.sweep_count() > 0 {
            // In proportion to the time in which it existed.
            let part = u128::from(scale.time_ns) * u128::from(region.samples.sweep_count().min(scale.sweeps))
                / u128::from(scale.sweeps.max(1));
            self.add_walks(offsets, grain, region.samples.estimate_walks(part as u64));
        }
    }

    /// Spreads walks evenly over a range of offsets, by cells; the sum stays exact.
    pub fn add_walks(&mut self, range: Range<u64>, grain: u64, walks: u64) {
        let length = u128::from(range.end.saturating_sub(range.start));
        if length == 0 {
            return;
        }
        let walks_up_to =
            |offset: u64| (u128::from(walks) * u128::from(offset - range.start) / length) as u64;
        let mut at = range.start;
        while at < range.end {
            let next = (at / grain + 1).saturating_mul(grain).min(range.end);
            *self.cells.entry(at / grain).or_default() += walks_up_to(next) - walks_up_to(at);
            at = next;
        }
    }

    /// Adds a part that was not observed.
    pub fn add_unseen(&mut self, offsets: &Range<u64>, why: UnseenReason) {
        let bytes = Bytes(offsets.end.saturating_sub(offsets.start));
        self.unseen.push(UnseenRange { offset: offsets.start, bytes, why });
    }

    /// Builds the mapping.
    pub fn build(self, key: MappingIdentity, start: u64, bytes: Bytes, grain: Bytes) -> MappingProfile {
        let (at, misses) = self.cells.into_iter().unzip();
        let cells = CellCounts { at, misses, ..CellCounts::default() };
        MappingProfile {
            key,
            start,
            bytes,
            grain,
            cells,
            reuse: ReuseHistograms::default(),
            unseen: self.unseen,
        }
    }
}

impl SweptRegion {
    pub fn add_sweep(&mut self, turn: u64, is_huge: bool, pages: u64, referenced: u64, lag_ns: u64) {
        if is_huge {
            self.huge_sweeps += 1;
        } else {
            self.samples.add_sweep_of_turn(turn, pages, referenced, lag_ns);
        }
    }
}

/// The share of accessed pages in the hottest 64th of the regions that are mostly in memory.
fn hottest_permille(pieces: &[ScannedPiece], huge: u64) -> u64 {
    let is_full = |piece: &&ScannedPiece| piece.huge_bytes == 0 && piece.resident * 2 >= huge;
    let share = |piece: &ScannedPiece| piece.referenced * 1000 / piece.resident.max(1);
    let mut shares: Vec<u64> = pieces.iter().filter(is_full).map(share).collect();
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let counted = shares.len().div_ceil(64).max(4).min(shares.len());
    shares.iter().take(counted).sum::<u64>() / (counted as u64).max(1)
}

fn mapping_kind(extent: &Extent) -> MappingKind {
    let shared_prefixes = ["/dev/zero (deleted)", "/SYSV", "/memfd:", "/dev/shm/"];
    match extent.name.as_str() {
        "[heap]" => MappingKind::Heap,
        "[stack]" => MappingKind::Stack,
        name if shared_prefixes.iter().any(|prefix| name.starts_with(prefix)) && extent.is_shared => {
            MappingKind::Shared
        }
        name if name.starts_with('/') => MappingKind::File(name.to_owned()),
        _ => MappingKind::Placed,
    }
}

/// Time for which the first thread of a process was runnable and waited for a CPU (`schedstat`, its second
/// number; Linux 2.6.23). Zero if the kernel does not report it.
pub(super) fn run_queue_wait(root: &Root, pid: u32) -> Duration {
    let text = root.read(&paths::process_file(pid, "schedstat")).unwrap_or_default();
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    Duration::from_nanos(number.unwrap_or(0))
}

fn read_arguments(root: &Root, pid: u32) -> Vec<String> {
    let text = root.read(&paths::process_file(pid, "cmdline")).unwrap_or_default();
    let arguments = text.split(|&byte| byte == 0).filter(|part| !part.is_empty());
    arguments.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

fn read_exec_mark(root: &Root, pid: u32) -> ExecMark {
    let maps = Reader::new(root).parse(&paths::process_file(pid, "maps"), maps::parse).unwrap_or_default();
    let vdso_start = maps.iter().find(|map| map.name == "[vdso]").map(|map| map.start);
    let path = root.read_link(&paths::process_file(pid, "exe")).unwrap_or_default();
    ExecMark { vdso_start, path }
}

/// Ranges of one mapping on the zero page that are listed one by one.
const PARTS_MAX: usize = 256;

/// Walks in never-written regions, by their names and offsets, and by their addresses.
type NamedWalks = Vec<(MappingId, Range<u64>, u64)>;
type PlacedWalks = BTreeMap<(u64, u64), u64>;

/// Never-written parts of each extent, by where it begins.
type ExtentParts = BTreeMap<u64, Vec<Range<u64>>>;

impl SweptImage {
    /// Lists the never-written ranges whose entries may be dropped, and updates the extents: by one scan of
    /// the page tables for both.
    pub fn list_zero_ranges(&mut self, root: &Root, huge: u64) -> io::Result<()> {
        let not_found = |_| io::Error::from(io::ErrorKind::NotFound);
        let mappings = sweep::read_mappings(root, self.process.pid).map_err(not_found)?;
        let pagemap = File::open(paths::process_file(self.process.pid, "pagemap"))?;
        self.record_extents(&mappings);
        self.record_advice(&mappings, huge);
        let (extents, mut parts) = (&self.extents, ExtentParts::new());
        self.zero_pages.list_zero_ranges(&pagemap, &mappings, huge, |part| {
            if let Some((start, extent)) = extents.range(..=part.start).next_back()
                && part.start < extent.addresses.end
            {
                push_part(parts.entry(*start).or_default(), part);
            }
        })?;
        self.set_zero_parts(parts);
        Ok(())
    }

    /// Finds ranges on the zero page (Linux 6.7; unknown before).
    fn refresh_zero_parts(&mut self) {
        let Ok(pagemap) = File::open(paths::process_file(self.process.pid, "pagemap")) else { return };
        let mut parts = ExtentParts::new();
        let private_extents =
            self.extents.iter().filter(|(_, of)| !of.is_shared && run_selection::is_private_name(&of.name));
        for (start, extent) in private_extents {
            let _ = pagemap_scan::for_each_zero_range(&pagemap, extent.addresses.clone(), |part| {
                push_part(parts.entry(*start).or_default(), part.addresses);
            });
        }
        self.set_zero_parts(parts);
    }

    /// Ranges of an extent are kept if none were found now.
    fn set_zero_parts(&mut self, parts: ExtentParts) {
        for (start, parts) in parts {
            if let Some(extent) = self.extents.get_mut(&start) {
                extent.zero_parts = parts;
            }
        }
    }

    /// Counts returned entries; returns the share of the hottest runs.
    pub fn rescan_dropped(&mut self, dropped: &mut [DroppedRun], context: &RescanContext) -> io::Result<u64> {
        let pagemap = File::open(paths::process_file(self.process.pid, "pagemap"))?;
        self.zero_pages.rescan(&pagemap, dropped, &self.named_regions, context)
    }

    /// Its CPU time over the time.
    pub fn cpu_share(&mut self, usage: CpuUsage) -> f64 {
        let since_first_seen = || {
            let lived_ns = u64::try_from(self.first_seen.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
            CpuUsage { at_ns: usage.at_ns.saturating_sub(lived_ns), cpu_ns: self.first_cpu_ns, faults: 0 }
        };
        self.zero_pages.cpu_share(usage, since_first_seen)
    }

    /// For each region of which entries were dropped and returned: its walks in the program's time, and their
    /// relative error.
    pub fn scanned_walks(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        // TLB hits are ignored here: they hardly change the order.
        let zeros =
            self.zero_pages.estimate_walks(self.cpu_used_ns(), Some(0.0)).filter(|(_, walks, _)| *walks > 0);
        zeros.map(|(_, walks, error)| (walks, error))
    }

    /// Never-written regions and their walks: with names, and by address.
    fn zero_walks(&self, scale: &WalkScale, entries: Option<u64>) -> (NamedWalks, PlacedWalks) {
        let swept =
            self.all_regions().map(|region| (region.samples.mean_pages(), region.samples.page_rate()));
        let groups: Vec<(u64, f64)> = self.zero_pages.rates().chain(swept).collect();
        let residence_ns = entries.map_or(Some(0.0), |entries| run_selection::residence_ns(&groups, entries));
        let (mut named, mut placed) = (Vec::new(), BTreeMap::new());
        for (place, walks, _) in self.zero_pages.estimate_walks(scale.time_ns, residence_ns) {
            match place {
                RegionLocation::InMapping(mapping, from, to) => named.push((*mapping, *from..*to, walks)),
                RegionLocation::AtAddress(from, to) => *placed.entry((*from, *to)).or_default() += walks,
            }
        }
        (named, placed)
    }
}

fn push_part(parts: &mut Vec<Range<u64>>, part: Range<u64>) {
    if let Some(last) = parts.last_mut().filter(|last| last.end == part.start) {
        last.end = part.end;
    } else if parts.len() < PARTS_MAX {
        parts.push(part);
    }
}

#[cfg(test)]
mod tests;
