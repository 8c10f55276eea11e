//! One process image under sweeps: what was seen of it, and its profile in the end.

mod never_written;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pagelab_formats::{maps, status};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;
use pagelab_model::profile::{
    AccessedPrice, Begun, Cells, ImageProfile, MappingKey, MappingKind, MappingProfile, Program, Reuse,
    Unseen, UnseenWhy,
};
use pagelab_model::{Absence, Bytes, PageSize};
use pagelab_sys::{clock, pagemap_scan};
use pagelab_tlb::engine::ledger::Ledger;

use super::budget::{Account, Growth};
use super::estimate::{self, Seen};
use super::names::Names;
use super::sweep::{self, Piece, Swept};
use super::zeros::Zeros;
use crate::identity;
use crate::inject::Identity;
use never_written::PlacedWalks;

/// Bytes of a cell where offsets do not count from a huge-page boundary.
pub(super) const FINE_GRAIN: u64 = 64 << 10;

/// A stretch of addresses that is one mapping to a person, in as many pieces as it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    addresses: Range<u64>,
    name: String,
    offset: u64,
    is_shared: bool,
    /// Never-written parts.
    zero: Vec<Range<u64>>,
}

impl Extent {
    /// Whether this is the same mapping, grown or moved on a bit: it overlaps, or has no name and touches.
    fn is_met_by(&self, new: &Extent) -> bool {
        let (from, to) =
            (self.addresses.start.max(new.addresses.start), self.addresses.end.min(new.addresses.end));
        self.name == new.name
            && self.is_shared == new.is_shared
            && (from < to || from == to && new.name.is_empty())
    }
}

/// How many stretches before a mapping are looked at for the one that it belongs to.
const NEIGHBOURS: usize = 4;

/// Memory that grows by more than this part makes what was swept before worth little, until so many sweeps
/// have been made.
const GROWTH: u64 = 10;
const SWEEPS_KEPT: u64 = 16;

/// Splits for which what is in memory is not looked up again.
const TURNS_KNOWN: u64 = 16;

/// Sweeps that waited for a CPU are left out, but for one in so many.
const TORN_IN_A_ROW: u32 = 4;

/// One region that sweeps tell apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Region {
    pub seen: Seen,
    /// Sweeps in which it was on a huge page.
    pub huge: u64,
}

/// What a process has in memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Its own pages and those of files: the page of zeros is not among them.
    pub resident: u64,
    /// Page tables, which memory that is only read has, too.
    pub tables: u64,
}

impl InMemory {
    /// What the page tables may map besides its own pages, with so many bytes a page: memory that is only
    /// read, at most.
    pub fn beside(&self, page: u64) -> u64 {
        (self.tables / ENTRY_BYTES).saturating_mul(page).saturating_sub(self.resident)
    }
}

/// Bytes of an entry of a page table.
const ENTRY_BYTES: u64 = 8;

/// An image under sweeps.
#[derive(Debug)]
pub struct Image {
    /// Which process.
    pub process: Identity,
    /// Its place in the list of images of the profile.
    pub parent: Option<usize>,
    /// How it began.
    pub begun: Begun,
    /// Whether it may still be swept.
    pub is_alive: bool,
    /// Clears its accessed bits.
    pub clearer: File,
    /// How its memory grew.
    pub growth: Growth,
    /// The pause of the next sweep.
    pub pause_ns: u64,
    /// When it was first seen, and how long it had waited for a CPU by then.
    began: (Instant, Duration),
    /// CPU time that it had used when it was first seen, and when it was last.
    cpu_ns: (u64, u64),
    /// What sweeps may cost it.
    pub account: Account,
    /// Work that its last turn took.
    pub work: Option<Duration>,
    /// When it was last looked what it had accessed.
    pub looked: Instant,
    /// What tells this image from the next one of the process: the vdso's address, and the program.
    mark: (u64, String),
    program: Program,
    arguments: Vec<String>,
    extents: BTreeMap<u64, Extent>,
    /// By first and last address: while memory is filled, the part behind it is one large piece.
    regions: BTreeMap<(u64, u64), Region>,
    /// What has a name that holds in the next run.
    names: Names,
    sweeps: u64,
    /// Sweeps in a row that were left out.
    torn: u32,
    /// Most bytes in memory at any sweep that counts.
    most_resident: u64,
    /// Its memory that was never written.
    pub zeros: Zeros,
    /// Its mappings are not split any more.
    pub is_whole: bool,
    /// How often it was about to be split.
    turns: u64,
    /// Its mappings as the kernel lists them, and what was in memory of them.
    known: (Vec<u8>, Rc<[Mapping]>),
}

impl Image {
    /// The image that a process is now.
    pub fn new(root: &Root, process: Identity, begun: Begun, parent: Option<usize>, clearer: File) -> Image {
        let mark = mark(root, process.pid);
        let arguments = root.read(&paths::process(process.pid, "cmdline")).unwrap_or_default();
        let arguments = arguments.split(|&byte| byte == 0).filter(|part| !part.is_empty());
        let arguments = arguments.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        let program = match mark.1.is_empty() {
            true => Program::default(),
            false => identity::of(std::path::Path::new(&mark.1)),
        };
        let cpu_ns = clock::process_cpu_ns(process.pid).unwrap_or(0);
        Image {
            process,
            parent,
            begun,
            is_alive: true,
            clearer,
            growth: Growth::default(),
            pause_ns: 0,
            began: (Instant::now(), waited(root, process.pid)),
            cpu_ns: (cpu_ns, cpu_ns),
            account: Account::default(),
            work: None,
            looked: Instant::now(),
            mark,
            program,
            arguments,
            extents: BTreeMap::new(),
            regions: BTreeMap::new(),
            names: Names::default(),
            sweeps: 0,
            torn: 0,
            most_resident: 0,
            zeros: Zeros::new(process.start_ticks ^ u64::from(process.pid) << 32),
            is_whole: false,
            turns: 0,
            known: (Vec::new(), Rc::new([])),
        }
    }

    /// It is there, with so much in memory; some time has gone by since it was last looked at.
    pub fn lives(&mut self, root: &Root, resident: u64, price: &AccessedPrice) {
        let waited = waited(root, self.process.pid).saturating_sub(self.began.1);
        self.cpu_ns.1 = clock::process_cpu_ns(self.process.pid).unwrap_or(0).max(self.cpu_ns.1);
        self.account.goes_on();
        self.account.lives(self.began.0.elapsed().saturating_sub(waited), resident, price);
    }

    /// The part of its time in which it waited for a CPU.
    pub fn waited_share(&self) -> f64 {
        let all = self.began.0.elapsed().as_secs_f64().max(1e-9);
        (1.0 - self.account.lived().as_secs_f64() / all).clamp(0.0, 1.0)
    }

    /// CPU time that it used while it was watched.
    fn ran_ns(&self) -> u64 {
        self.cpu_ns.1 - self.cpu_ns.0
    }

    /// Whether the process is another image by now.
    pub fn was_replaced(&self, root: &Root) -> bool {
        mark(root, self.process.pid) != self.mark
    }

    /// What it has in memory now.
    pub fn memory(&self, root: &Root) -> InMemory {
        let status = Reader::new(root).parse(&paths::process(self.process.pid, "status"), status::parse);
        let bytes = |name| status.as_ref().ok()?.bytes(name).map(|bytes| bytes.0);
        InMemory { resident: bytes("VmRSS").unwrap_or(0), tables: bytes("VmPTE").unwrap_or(0) }
    }

    /// The mappings, before they are split. What is in memory of them is looked up again where there are
    /// others, and once in a while: that costs as much as a sweep.
    pub fn mappings(&mut self, root: &Root) -> Result<Rc<[Mapping]>, Absence> {
        let maps = root.read(&paths::process(self.process.pid, "maps"))?;
        let is_new = maps != self.known.0;
        if is_new || self.turns.is_multiple_of(TURNS_KNOWN) {
            let mappings = sweep::mappings(root, self.process.pid)?;
            self.look(&mappings);
            self.known = (maps, mappings.into());
        }
        if self.turns.is_multiple_of(TURNS_KNOWN) {
            self.look_for_zeros();
        }
        self.turns += 1;
        Ok(self.known.1.clone())
    }

    /// Takes in how the address space looks, before it is split.
    fn look(&mut self, mappings: &[Mapping]) {
        for mapping in mappings {
            let is_fixed =
                matches!(mapping.name.as_str(), "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]");
            if is_fixed || mapping.end <= mapping.start {
                continue;
            }
            let new = Extent {
                addresses: mapping.start..mapping.end,
                name: mapping.name.clone(),
                offset: mapping.offset,
                is_shared: mapping.permissions.ends_with('s'),
                zero: Vec::new(),
            };
            let met = self.extents.range(..=new.addresses.end).rev().take(NEIGHBOURS);
            let met = met.filter(|(_, old)| old.is_met_by(&new)).map(|(&start, _)| start).next();
            let mut whole = new;
            if let Some(old) = met.and_then(|start| self.extents.remove(&start)) {
                if old.addresses.start < whole.addresses.start {
                    whole.offset = old.offset;
                }
                let start = old.addresses.start.min(whole.addresses.start);
                whole.addresses = start..old.addresses.end.max(whole.addresses.end);
                whole.zero = old.zero;
            }
            self.extents.insert(whole.addresses.start, whole);
        }
    }

    /// Takes in what lies where, by the calls that a program made: this one, unless the process has become
    /// another meanwhile.
    pub fn name(&mut self, ledger: Option<(usize, Ledger)>) {
        if let Some((program, ledger)) = ledger
            && *self.names.program.get_or_insert(program) == program
        {
            self.names.ledger = Some(ledger);
        }
    }

    /// Takes in a sweep, and makes the next pause fit.
    pub fn take(&mut self, swept: &Swept, page: u64, huge: u64, most: Duration) -> io::Result<()> {
        if swept.is_torn() && self.sweeps > 0 && self.torn < TORN_IN_A_ROW {
            self.torn += 1;
            return Ok(());
        }
        self.torn = 0;
        let pieces = swept.pieces()?;
        let resident = pieces.iter().map(|piece| piece.resident).sum();
        if self.sweeps < SWEEPS_KEPT && resident > self.most_resident + self.most_resident / GROWTH {
            // It was still filled.
            self.regions.clear();
            self.names.forget();
            self.sweeps = 0;
        }
        self.most_resident = self.most_resident.max(resident);
        self.sweeps += 1;
        for piece in pieces.iter().filter(|piece| piece.resident > 0) {
            if self.names.take(piece, page) {
                continue;
            }
            let region = self.regions.entry((piece.addresses.start, piece.addresses.end)).or_default();
            region.add(piece.huge > 0, piece.resident / page, piece.referenced / page, piece.lag_ns);
        }
        let most_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        self.pause_ns = estimate::next_pause_ns(self.pause_ns, hottest_permille(&pieces, huge), most_ns);
        Ok(())
    }

    /// Sweeps that count.
    pub fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// The numbers of the huge-page pieces of a mapping that have pages in memory. Where that cannot be
    /// asked, all of it counts.
    pub fn populated(&self, mapping: &Mapping, huge: u64) -> BTreeSet<u64> {
        let all = || (mapping.start / huge..mapping.end.div_ceil(huge)).collect();
        let resident = mapping.fields_kib.get("Rss").unwrap_or(0).saturating_mul(1024);
        if resident.saturating_mul(2) >= mapping.end - mapping.start {
            return all();
        }
        let Ok(pagemap) = File::open(paths::process(self.process.pid, "pagemap")) else { return all() };
        let mut found = BTreeSet::new();
        let told = pagemap_scan::populated(&pagemap, mapping.start..mapping.end, |part| {
            found.extend(part.start / huge..part.end.div_ceil(huge));
        });
        if told.is_ok() { found } else { all() }
    }

    /// Of each region that sweeps found touched: its walks in the program's time, and how far they may be
    /// off.
    pub fn swept(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let time_ns = self.ran_ns();
        let touched = self.all_regions().filter(|region| region.seen.is_touched());
        touched.map(move |region| (region.seen.walks(time_ns), region.seen.error()))
    }

    fn all_regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values().chain(self.names.regions())
    }

    /// Whether something could not be seen for this reason.
    pub fn has_unseen(&self, huge: u64) -> (bool, bool) {
        let is_huge = self.all_regions().any(|region| region.huge > 0);
        let mut zero = self.extents.values().flat_map(|extent| &extent.zero);
        (is_huge, zero.any(|part| !self.zeros.unvisited(part, huge).is_empty()))
    }

    /// Bytes that it had in memory when it was swept, and at its most, where sweeps saw less than half.
    pub fn seen_part(&self) -> Option<(u64, u64)> {
        let (seen, most) = (self.most_resident, self.growth.most);
        (self.sweeps > 0 && seen < most / 2).then_some((seen, most))
    }

    /// Whether any sweep tells of it.
    pub fn was_swept(&self) -> bool {
        self.sweeps > 0
    }

    /// The profile, with walks as of all the CPU time that it used, and a TLB of so many entries for base
    /// pages.
    pub fn profile(&self, page: PageSize, huge: u64, entries: Option<u64>) -> ImageProfile {
        let mut counts = BTreeMap::new();
        let scale = Scale { time_ns: self.ran_ns(), sweeps: self.sweeps, huge };
        let (named, placed) = self.zero_walks(&scale, entries);
        let extents = self.extents.values();
        let mut zeros = Vec::new();
        let mut mappings: Vec<MappingProfile> =
            extents.map(|extent| self.mapping(extent, &scale, &placed, &mut counts, &mut zeros)).collect();
        mappings.extend(self.names.mappings(&scale, &zeros, &named));
        mappings.retain(|mapping| !mapping.cells.at.is_empty() || !mapping.unseen.is_empty());
        let misses = mappings.iter().flat_map(|mapping| &mapping.cells.misses).sum();
        debug_assert!(page.bytes() <= FINE_GRAIN || huge >= page.bytes());
        ImageProfile {
            pid: self.process.pid,
            parent: self.parent,
            begun: self.begun,
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            accesses: None,
            instructions: None,
            misses,
            mappings,
        }
    }

    fn mapping(
        &self,
        extent: &Extent,
        scale: &Scale,
        placed: &PlacedWalks,
        counts: &mut BTreeMap<(MappingKind, u64), u32>,
        zeros: &mut Vec<Range<u64>>,
    ) -> MappingProfile {
        let (start, end) = (extent.addresses.start, extent.addresses.end);
        let kind = kind(extent);
        // What is added to an address to get its offset.
        let (shift, grain) = match &kind {
            MappingKind::Placed => (0, scale.huge),
            MappingKind::File(_) => (extent.offset.wrapping_sub(start), FINE_GRAIN),
            _ => (0u64.wrapping_sub(start), FINE_GRAIN),
        };
        // Offsets of a file are its own, so offset 0 lies before a mapping of a later part.
        let before = if matches!(kind, MappingKind::File(_)) { extent.offset } else { 0 };
        let asked = match kind {
            MappingKind::Heap | MappingKind::Stack => 0,
            _ => end - start,
        };
        let nth = counts.entry((kind.clone(), asked)).or_insert(0);
        let key = MappingKey { kind, bytes: Bytes(asked), nth: *nth };
        *nth += 1;
        let mut found = Found::default();
        for (&(from, to), region) in self.regions.range((start, 0)..(end, 0)) {
            let to = to.min(end);
            found.add(from.wrapping_add(shift)..to.wrapping_add(shift), grain, region, scale);
        }
        for (&(from, to), &walks) in placed.range((start, 0)..(end, 0)) {
            found.count(from.wrapping_add(shift)..to.min(end).wrapping_add(shift), grain, walks);
        }
        for part in extent.zero.iter().flat_map(|part| self.zeros.unvisited(part, scale.huge)) {
            if self.names.knows(&part) {
                zeros.push(part);
                continue;
            }
            found.zero(part.start.wrapping_add(shift)..part.end.wrapping_add(shift));
        }
        let bytes = Bytes((end - start).saturating_add(before));
        found.mapping(key, start.wrapping_sub(before), bytes, Bytes(grain))
    }
}

/// What a region's counts are made of.
pub(super) struct Scale {
    /// CPU time that it used while it was watched.
    pub time_ns: u64,
    /// Sweeps of the image.
    pub sweeps: u64,
    /// The size of a huge page.
    pub huge: u64,
}

/// What is found in a mapping.
#[derive(Default)]
pub(super) struct Found {
    cells: BTreeMap<u64, u64>,
    unseen: Vec<Unseen>,
}

impl Found {
    /// Adds a region at these offsets.
    pub fn add(&mut self, at: Range<u64>, grain: u64, region: &Region, scale: &Scale) {
        if region.huge > 0 {
            let bytes = Bytes(at.end.saturating_sub(at.start));
            self.unseen.push(Unseen { offset: at.start, bytes, why: UnseenWhy::AlreadyHuge });
        }
        if region.seen.sweeps() > 0 {
            // As much of the time as it was there.
            let part = u128::from(scale.time_ns) * u128::from(region.seen.sweeps().min(scale.sweeps))
                / u128::from(scale.sweeps.max(1));
            spread(&mut self.cells, at, grain, region.seen.walks(part as u64));
        }
    }

    /// Adds walks at these offsets.
    pub fn count(&mut self, at: Range<u64>, grain: u64, walks: u64) {
        spread(&mut self.cells, at, grain, walks);
    }

    /// Adds a part that was never written, and not looked at.
    pub fn zero(&mut self, at: Range<u64>) {
        let bytes = Bytes(at.end.saturating_sub(at.start));
        self.unseen.push(Unseen { offset: at.start, bytes, why: UnseenWhy::ZeroPage });
    }

    /// The mapping that all of it is in.
    pub fn mapping(self, key: MappingKey, start: u64, bytes: Bytes, grain: Bytes) -> MappingProfile {
        let (at, misses) = self.cells.into_iter().unzip();
        let cells = Cells { at, misses, ..Cells::default() };
        MappingProfile { key, start, bytes, grain, cells, reuse: Reuse::default(), unseen: self.unseen }
    }
}

impl Region {
    /// One more sweep.
    pub fn add(&mut self, is_huge: bool, pages: u64, referenced: u64, lag_ns: u64) {
        if is_huge {
            self.huge += 1;
        } else {
            self.seen.add(pages, referenced, lag_ns);
        }
    }
}

/// The share of accessed pages in the hottest of the regions that are mostly in memory: a 64th of them.
fn hottest_permille(pieces: &[Piece], huge: u64) -> u64 {
    let is_full = |piece: &&Piece| piece.huge == 0 && piece.resident * 2 >= huge;
    let share = |piece: &Piece| piece.referenced * 1000 / piece.resident.max(1);
    let mut shares: Vec<u64> = pieces.iter().filter(is_full).map(share).collect();
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let counted = shares.len().div_ceil(64).max(4).min(shares.len());
    shares.iter().take(counted).sum::<u64>() / (counted as u64).max(1)
}

/// What a mapping is, as far as its name tells.
fn kind(extent: &Extent) -> MappingKind {
    let is_shared_memory = ["/dev/zero (deleted)", "/SYSV", "/memfd:", "/dev/shm/"];
    match extent.name.as_str() {
        "[heap]" => MappingKind::Heap,
        "[stack]" => MappingKind::Stack,
        name if is_shared_memory.iter().any(|prefix| name.starts_with(prefix)) && extent.is_shared => {
            MappingKind::Shared
        }
        name if name.starts_with('/') => MappingKind::File(name.to_owned()),
        _ => MappingKind::Placed,
    }
}

/// Spreads a count evenly over a range of offsets, by cells; the sum stays exact.
fn spread(cells: &mut BTreeMap<u64, u64>, range: Range<u64>, grain: u64, count: u64) {
    let length = u128::from(range.end.saturating_sub(range.start));
    if length == 0 {
        return;
    }
    let upto = |offset: u64| (u128::from(count) * u128::from(offset - range.start) / length) as u64;
    let mut at = range.start;
    while at < range.end {
        let next = (at / grain + 1).saturating_mul(grain).min(range.end);
        *cells.entry(at / grain).or_default() += upto(next) - upto(at);
        at = next;
    }
}

/// How long the first thread of a process has been ready and waited for a CPU (`schedstat`, its second
/// number; Linux 2.6.23). Nothing where the kernel does not tell.
pub(super) fn waited(root: &Root, pid: u32) -> Duration {
    let text = root.read(&paths::process(pid, "schedstat")).unwrap_or_default();
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    Duration::from_nanos(number.unwrap_or(0))
}

/// The vdso lies anew after each exec, and the program may be another one.
fn mark(root: &Root, pid: u32) -> (u64, String) {
    let maps = Reader::new(root).parse(&paths::process(pid, "maps"), maps::parse).unwrap_or_default();
    let vdso = maps.iter().find(|map| map.name == "[vdso]").map_or(0, |map| map.start);
    (vdso, root.link(&paths::process(pid, "exe")).unwrap_or_default())
}

#[cfg(test)]
mod tests;
