//! Engines of the benchmark: their memory, setup and supported loads.

use std::ops::Range;

use pagelab_model::{Bytes, PageSize};
use pagelab_sim::bench::{BenchLoad, BulkFill, Engine, FreeAllocatePairs, NullAllocator, RandomFrames};
use pagelab_sim::btree_buddy::BTreeBuddy;
use pagelab_sim::compact_buddy::CompactBuddy;
use pagelab_sim::free_lists::MAX_LISTED_FRAMES;
use pagelab_sim::llfree::{Llfree, PAGEBLOCKS_PER_TREE};
use pagelab_sim::memory::{Memory, ZoneConfig};
use pagelab_sim::pcp::{PcpConfig, PcpZone};
use pagelab_sim::policies::{AllocationTypeLists, GroupByMobility, SingleList};
use pagelab_sim::types::{Error, ZoneGeometry};
use pagelab_sim::watermarks::{self, DEFAULT_WATERMARK_SCALE_FACTOR};
use pagelab_sim::zone::{Zone, ZoneFeatures};
use pagelab_sys::{advice, clock};

/// Largest order, as on x86-64: blocks of up to 4 MiB, pageblocks of 2 MiB.
pub const MAX_ORDER: u8 = 10;
/// The order of a pageblock.
pub const BLOCK_ORDER: u8 = 9;
/// Size of a huge page, on this machine and in the simulation.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Simulated CPUs: all requests come from the first.
const CPUS: u16 = 1;
/// `batch` of a zone of some GiB.
const PCP_BATCH: u32 = 63;
/// Bytes per frame of the engines with lists of frames: four, plus the ring entries of free blocks while the
/// rings grow.
const LIST_ENGINE_BYTES: u64 = 7;
/// Bytes per frame of the trees, rounded up.
const TREE_ENGINE_BYTES: u64 = 2;
/// Bytes per 2^20 frames of the compact engine, rounded up.
const COMPACT_ENGINE_BYTES: u64 = 230_000;
/// Bytes per live block in ordered sets and hash tables, measured, rounded up.
const BTREE_BLOCK_BYTES: u64 = 96;
/// Frames of DMA32: 3 GiB, as on machines with a device hole below 4 GiB.
const DMA32_FRAMES: u32 = 3 << 18;

/// Engine of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineName {
    /// One list per order.
    Standard,
    /// Two types of lists, as in the paper.
    List,
    /// Three migratetypes and pageblocks, as in Linux; also with per-CPU lists.
    Mobility,
    /// mobility with zones and watermarks: the full engine.
    Memory,
    /// Lists of pageblocks, for terabytes of memory.
    Compact,
    /// The same, without a list of live blocks.
    CompactRandom,
    /// Bit fields and trees of pageblocks that CPUs reserve, no free lists.
    Trees,
    /// Ordered sets and a hash table: the reference.
    BTree,
    /// No allocator: the cost of the load itself.
    Nothing,
}

impl EngineName {
    /// Name of the engine in results.
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Standard => "standard",
            EngineName::List => "list, 2 types",
            EngineName::Mobility => "mobility",
            EngineName::Memory => "memory",
            EngineName::Compact => "compact",
            EngineName::CompactRandom => "compact random",
            EngineName::Trees => "trees",
            EngineName::BTree => "btree",
            EngineName::Nothing => "nothing",
        }
    }

    /// Whether it can use the frames that are freed next.
    pub fn has_lookahead(self) -> bool {
        !matches!(self, EngineName::Trees | EngineName::BTree)
    }

    /// Whether it can address all frames of a memory.
    pub fn supports_frames_of(self, shape: ZoneGeometry) -> bool {
        match self {
            EngineName::Standard | EngineName::List | EngineName::Mobility | EngineName::Memory => {
                shape.frames <= MAX_LISTED_FRAMES
            }
            EngineName::Compact
            | EngineName::CompactRandom
            | EngineName::Trees
            | EngineName::BTree
            | EngineName::Nothing => true,
        }
    }

    /// Whether it is also measured with per-CPU lists.
    pub fn has_pcp_lists(self) -> bool {
        matches!(self, EngineName::Mobility | EngineName::Memory)
    }

    /// Whether it can be measured under a load: without a list of live blocks, bulk has nothing to free.
    pub fn supports_load(self, load: BenchLoad) -> bool {
        load != BenchLoad::Bulk || self != EngineName::CompactRandom
    }

    /// All memory that the engine needs, with the list of live blocks.
    pub fn memory_needed(self, shape: ZoneGeometry, load: BenchLoad) -> Bytes {
        let frames = u64::from(shape.frames);
        let live = load.live_blocks(shape.frames);
        let metadata = match self {
            EngineName::Compact | EngineName::CompactRandom => (frames * COMPACT_ENGINE_BYTES) >> 20,
            EngineName::Trees => frames * TREE_ENGINE_BYTES,
            EngineName::BTree => live * BTREE_BLOCK_BYTES,
            EngineName::Nothing => 0,
            _ => frames * LIST_ENGINE_BYTES,
        };
        let list = if self == EngineName::CompactRandom { 0 } else { live * size_of::<u32>() as u64 };
        Bytes(metadata + list)
    }

    /// Builds and fills the engine.
    pub fn build(
        self,
        shape: ZoneGeometry,
        with_pcp_lists: bool,
        load: BenchLoad,
        seed: u64,
    ) -> Result<Box<dyn BenchRun>, Error> {
        let keep = if with_pcp_lists { pcp_limits(shape) } else { PcpConfig::DISABLED };
        let mobility = || Zone::new(shape, GroupByMobility);
        Ok(match self {
            EngineName::Standard => build_pairs(Zone::new(shape, SingleList)?, load, seed)?,
            EngineName::List => build_pairs(Zone::new(shape, AllocationTypeLists::TwoTypes)?, load, seed)?,
            EngineName::Mobility if with_pcp_lists => {
                build_pairs(PcpZone::new(mobility()?, keep)?, load, seed)?
            }
            EngineName::Mobility => build_pairs(mobility()?, load, seed)?,
            EngineName::Memory => {
                build_pairs(Memory::new(zone_setups(shape), &GroupByMobility, keep)?, load, seed)?
            }
            EngineName::Compact => build_pairs(CompactBuddy::new(shape)?, load, seed)?,
            EngineName::CompactRandom => Box::new(RandomFrames::new(CompactBuddy::new(shape)?, load, seed)?),
            EngineName::Trees => {
                let shape = ZoneGeometry { max_order: BLOCK_ORDER, ..shape };
                build_pairs(Llfree::new(shape, PAGEBLOCKS_PER_TREE, CPUS)?, load, seed)?
            }
            EngineName::BTree => build_pairs(BTreeBuddy::new(shape)?, load, seed)?,
            EngineName::Nothing => build_pairs(NullAllocator::new(shape.frames), load, seed)?,
        })
    }
}

fn build_pairs<E: Engine + 'static>(
    engine: E,
    load: BenchLoad,
    seed: u64,
) -> Result<Box<dyn BenchRun>, Error> {
    Ok(match load {
        BenchLoad::Bulk => Box::new(BulkFill::new(engine, seed)),
        _ => Box::new(FreeAllocatePairs::new(engine, load, seed)?),
    })
}

/// Zones with their watermarks: Normal, or DMA32 and Normal.
fn zone_setups(shape: ZoneGeometry) -> Vec<ZoneConfig> {
    let low = if shape.frames > 2 * DMA32_FRAMES { DMA32_FRAMES } else { 0 };
    let mut parts = vec![(
        "Normal",
        ZoneGeometry { first_frame: shape.first_frame + low, frames: shape.frames - low, ..shape },
    )];
    if low > 0 {
        parts.insert(0, ("DMA32", ZoneGeometry { frames: low, ..shape }));
    }
    let managed: Vec<u64> = parts.iter().map(|(_, shape)| u64::from(shape.frames)).collect();
    let page_kib = PageSize::DEFAULT.bytes() >> 10;
    let min_free = watermarks::default_min_free_kib(u64::from(shape.frames) * page_kib) / page_kib;
    let watermarks = watermarks::compute_watermarks(
        &managed,
        &vec![true; parts.len()],
        min_free,
        DEFAULT_WATERMARK_SCALE_FACTOR,
    );
    let setup = |(at, (name, shape)): (usize, (&str, ZoneGeometry))| ZoneConfig {
        name: name.to_owned(),
        node: 0,
        zone_index: at as u8,
        geometry: shape,
        watermarks: watermarks[at],
        lowmem_reserve: Vec::new(),
        features: ZoneFeatures::default(),
    };
    parts.into_iter().enumerate().map(setup).collect()
}

/// Per-CPU list limits of Linux 6.1 (`zone_highsize`): the CPU's share of the zone's low watermark, at least
/// four batches.
pub fn pcp_limits(shape: ZoneGeometry) -> PcpConfig {
    let low = zone_setups(shape).iter().map(|zone| zone.watermarks.low).max().unwrap_or(0);
    PcpConfig::with_batch(CPUS, PCP_BATCH, (low / u64::from(CPUS)).max(u64::from(4 * PCP_BATCH)) as u32)
}

/// Times of a turn, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct TurnTimes {
    /// Time of a pair.
    pub pair_ps: u64,
    /// Times of an allocation and of a free, if the load separates them.
    pub alloc_free_ps: Option<(u64, u64)>,
}

/// Returns picoseconds per item.
fn time_per_item(count: u64, run: impl FnOnce() -> Result<(), Error>) -> Result<u64, Error> {
    let before = clock::thread_cpu_ns();
    run()?;
    Ok(clock::thread_cpu_ns().saturating_sub(before).saturating_mul(1000) / count.max(1))
}

fn time_pairs(pairs: u64, run: impl FnOnce() -> Result<(), Error>) -> Result<TurnTimes, Error> {
    time_per_item(pairs, run).map(|pair_ps| TurnTimes { pair_ps, alloc_free_ps: None })
}

/// An engine under a load, of any type.
pub trait BenchRun {
    /// Runs the given number of pairs, or as many as the load needs.
    fn run_turn(&mut self, pairs: u64, with_lookahead: bool) -> Result<TurnTimes, Error>;

    /// Failed allocations, and fallbacks.
    fn counts(&self) -> (u64, u64);

    /// Address ranges of the metadata, without the list of live blocks; empty if they are not contiguous.
    fn metadata_ranges(&self) -> Vec<Range<usize>> {
        self.memory_ranges()
    }

    /// Address ranges of all data that it reads and writes.
    fn memory_ranges(&self) -> Vec<Range<usize>>;

    /// Bytes of the metadata, without the list of live blocks; `None` if they are not contiguous.
    fn metadata_bytes(&self) -> Option<Bytes> {
        let places = self.metadata_ranges();
        (!places.is_empty()).then(|| Bytes(places.iter().map(|place| place.len() as u64).sum()))
    }

    /// Collapses its data into huge pages if the kernel allows it: the benchmark measures the allocators, not
    /// the TLB.
    fn collapse_memory(&self) {
        for place in self.memory_ranges() {
            let _ = advice::collapse_range(place, HUGE_PAGE_BYTES);
        }
    }
}

impl<E: Engine> BenchRun for FreeAllocatePairs<E> {
    fn run_turn(&mut self, pairs: u64, ahead: bool) -> Result<TurnTimes, Error> {
        time_pairs(pairs, || if ahead { self.run_with_prefetch(pairs) } else { self.run_pairs(pairs) })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.fallbacks)
    }

    fn metadata_ranges(&self) -> Vec<Range<usize>> {
        self.engine().memory_ranges()
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.memory_ranges()
    }
}

impl<E: Engine> BenchRun for BulkFill<E> {
    fn run_turn(&mut self, _pairs: u64, ahead: bool) -> Result<TurnTimes, Error> {
        let frames = self.frames_per_round();
        let taken_ps = time_per_item(frames, || self.fill_half())?;
        self.shuffle_frees();
        let freed_ps =
            time_per_item(frames, || if ahead { self.free_all_with_prefetch() } else { self.free_all() })?;
        Ok(TurnTimes { pair_ps: taken_ps + freed_ps, alloc_free_ps: Some((taken_ps, freed_ps)) })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.fallbacks)
    }

    fn metadata_ranges(&self) -> Vec<Range<usize>> {
        self.engine().memory_ranges()
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.memory_ranges()
    }
}

impl BenchRun for RandomFrames {
    fn run_turn(&mut self, pairs: u64, ahead: bool) -> Result<TurnTimes, Error> {
        time_pairs(pairs, || if ahead { self.run_with_prefetch(pairs) } else { self.run_pairs(pairs) })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.fallbacks)
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        self.memory_ranges()
    }
}
