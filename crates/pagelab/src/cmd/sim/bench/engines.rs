//! The engines of `sim bench`: what each takes, and how it is set up.

use std::ops::Range;

use pagelab_model::{Bytes, PageSize};
use pagelab_sim::bench::{Bulk, Drawn, Engine, Load, Nothing, Pairs};
use pagelab_sim::compact::Compact;
use pagelab_sim::lists::LISTED_MAX;
use pagelab_sim::marks::{self, SCALE_USUAL};
use pagelab_sim::memory::{Memory, Setup};
use pagelab_sim::percpu::{Keep, PerCpu};
use pagelab_sim::plain::Plain;
use pagelab_sim::policy::{Lists, Mobility, Standard};
use pagelab_sim::trees::{PER_TREE, Trees};
use pagelab_sim::words::{Shape, Wrong};
use pagelab_sim::zone::{Extras, Zone};
use pagelab_sys::{clock, own_memory};

/// As on x86-64: blocks of up to 4 MiB, pageblocks of 2 MiB.
pub const MAX_ORDER: u8 = 10;
/// The order of a pageblock.
pub const BLOCK_ORDER: u8 = 9;
/// The size of a huge page, here and in what is simulated.
pub const HUGE: usize = 2 << 20;
/// Processors that are simulated: all requests come from the first.
const CPUS: u16 = 1;
/// `batch` of a zone of some GiB.
const BATCH: u32 = 63;
/// Bytes of a frame in the engines with lists of frames: four, and what free blocks take in the rings while
/// these grow.
const LIST_BYTES: u64 = 7;
/// Bytes of a frame in trees, rounded up.
const TREE_BYTES: u64 = 2;
/// Bytes of 2^20 frames in the compact engine, rounded up.
const COMPACT_BYTES: u64 = 230_000;
/// Bytes of a live block in ordered sets and hash tables, as measured, rounded up.
const PLAIN_BYTES: u64 = 96;
/// The frames of DMA32: 3 GiB, as on machines with a hole for devices below 4 GiB.
const DMA32_FRAMES: u32 = 3 << 18;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// One list at each order
    Standard,
    /// The lists of a paper, of two types
    List,
    /// Three kinds and pageblocks, as Linux has them; also with per-CPU lists
    Mobility,
    /// The same with zones and watermarks: the full engine
    Memory,
    /// Lists of pageblocks, for terabytes
    Compact,
    /// The same, and no list of live blocks
    Drawn,
    /// Bit fields and trees of pageblocks that processors reserve, no lists
    Trees,
    /// Ordered sets and a hash table: what the others are measured against
    Plain,
    /// No allocator at all: what the load costs by itself
    Nothing,
}

impl Name {
    /// What results call it.
    pub fn text(self) -> &'static str {
        match self {
            Name::Standard => "standard",
            Name::List => "list, 2 types",
            Name::Mobility => "mobility",
            Name::Memory => "memory",
            Name::Compact => "compact",
            Name::Drawn => "compact, drawn",
            Name::Trees => "trees",
            Name::Plain => "plain",
            Name::Nothing => "nothing",
        }
    }

    /// Whether it can make use of knowing what is freed next.
    pub fn looks_ahead(self) -> bool {
        !matches!(self, Name::Trees | Name::Plain)
    }

    /// Whether it can tell the frames of a memory apart.
    pub fn can_number(self, shape: Shape) -> bool {
        match self {
            Name::Standard | Name::List | Name::Mobility | Name::Memory => shape.frames <= LISTED_MAX,
            Name::Compact | Name::Drawn | Name::Trees | Name::Plain | Name::Nothing => true,
        }
    }

    /// Whether it is measured with per-CPU lists too.
    pub fn has_per_cpu(self) -> bool {
        matches!(self, Name::Mobility | Name::Memory)
    }

    /// Whether it can be measured under a load: what keeps no list of live blocks has none to free.
    pub fn serves(self, load: Load) -> bool {
        load != Load::Bulk || self != Name::Drawn
    }

    /// All memory that it takes here, with the list of live blocks.
    pub fn need(self, shape: Shape, load: Load) -> Bytes {
        let frames = u64::from(shape.frames);
        let live = load.live_blocks(shape.frames);
        let books = match self {
            Name::Compact | Name::Drawn => (frames * COMPACT_BYTES) >> 20,
            Name::Trees => frames * TREE_BYTES,
            Name::Plain => live * PLAIN_BYTES,
            Name::Nothing => 0,
            _ => frames * LIST_BYTES,
        };
        let list = if self == Name::Drawn { 0 } else { live * size_of::<u32>() as u64 };
        Bytes(books + list)
    }

    /// Fills it.
    pub fn set_up(self, shape: Shape, per_cpu: bool, load: Load, seed: u64) -> Result<Box<dyn Run>, Wrong> {
        let keep = if per_cpu { keep(shape) } else { Keep::NOTHING };
        let mobility = || Zone::new(shape, Mobility);
        Ok(match self {
            Name::Standard => pairs(Zone::new(shape, Standard)?, load, seed)?,
            Name::List => pairs(Zone::new(shape, Lists::Two)?, load, seed)?,
            Name::Mobility if per_cpu => pairs(PerCpu::new(mobility()?, keep)?, load, seed)?,
            Name::Mobility => pairs(mobility()?, load, seed)?,
            Name::Memory => pairs(Memory::new(zones(shape), &Mobility, keep)?, load, seed)?,
            Name::Compact => pairs(Compact::new(shape)?, load, seed)?,
            Name::Drawn => Box::new(Drawn::new(Compact::new(shape)?, load, seed)?),
            Name::Trees => {
                let shape = Shape { max_order: BLOCK_ORDER, ..shape };
                pairs(Trees::new(shape, PER_TREE, CPUS)?, load, seed)?
            }
            Name::Plain => pairs(Plain::new(shape)?, load, seed)?,
            Name::Nothing => pairs(Nothing::new(shape.frames), load, seed)?,
        })
    }
}

fn pairs<E: Engine + 'static>(engine: E, load: Load, seed: u64) -> Result<Box<dyn Run>, Wrong> {
    Ok(match load {
        Load::Bulk => Box::new(Bulk::new(engine, seed)),
        _ => Box::new(Pairs::new(engine, load, seed)?),
    })
}

/// The marks of one zone, or of DMA32 and Normal.
fn zones(shape: Shape) -> Vec<Setup> {
    let low = if shape.frames > 2 * DMA32_FRAMES { DMA32_FRAMES } else { 0 };
    let mut parts = vec![("Normal", Shape { first: shape.first + low, frames: shape.frames - low, ..shape })];
    if low > 0 {
        parts.insert(0, ("DMA32", Shape { frames: low, ..shape }));
    }
    let managed: Vec<u64> = parts.iter().map(|(_, shape)| u64::from(shape.frames)).collect();
    let page_kib = PageSize::USUAL.bytes() >> 10;
    let min_free = marks::min_free_kib(u64::from(shape.frames) * page_kib) / page_kib;
    let marks = marks::marks(&managed, &vec![true; parts.len()], min_free, SCALE_USUAL);
    let setup = |(at, (name, shape)): (usize, (&str, Shape))| Setup {
        name: name.to_owned(),
        node: 0,
        height: at as u8,
        shape,
        marks: marks[at],
        reserves: Vec::new(),
        extras: Extras::default(),
    };
    parts.into_iter().enumerate().map(setup).collect()
}

/// What Linux 6.1 lets a processor keep (`zone_highsize`): its part of the zone's low mark, and not less than
/// four batches.
pub fn keep(shape: Shape) -> Keep {
    let low = zones(shape).iter().map(|zone| zone.marks.low).max().unwrap_or(0);
    Keep::batches(CPUS, BATCH, (low / u64::from(CPUS)).max(u64::from(4 * BATCH)) as u32)
}

/// What a turn took, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// A pair.
    pub pair_ps: u64,
    /// An allocation and a free apart, where the load has them one after the other.
    pub halves_ps: Option<(u64, u64)>,
}

/// Picoseconds of one of so many.
fn each(count: u64, run: impl FnOnce() -> Result<(), Wrong>) -> Result<u64, Wrong> {
    let before = clock::thread_cpu_ns();
    run()?;
    Ok(clock::thread_cpu_ns().saturating_sub(before).saturating_mul(1000) / count.max(1))
}

/// An engine under a load, whichever they are.
pub trait Run {
    /// Frees and allocates so many times, or as often as the load says.
    fn turn(&mut self, pairs: u64, ahead: bool) -> Result<Turn, Wrong>;

    /// Allocations that failed, and blocks taken from another list.
    fn counts(&self) -> (u64, u64);

    /// Where its books lie, without the list of live blocks; none: they lie in no one place.
    fn books_places(&self) -> Vec<Range<usize>>;

    /// Where all that it reads and writes lies.
    fn places(&self) -> Vec<Range<usize>>;

    /// The bytes of its books, without the list of live blocks; `None`: they lie in no one place.
    fn books(&self) -> Option<Bytes> {
        let places = self.books_places();
        (!places.is_empty()).then(|| Bytes(places.iter().map(|place| place.len() as u64).sum()))
    }

    /// Puts what it reads on huge pages, as far as the kernel gives them: it is the allocators that are to be
    /// measured, and not the TLB.
    fn collapse(&self) {
        for place in self.places() {
            let _ = own_memory::collapse(place, HUGE);
        }
    }
}

impl<E: Engine> Run for Pairs<E> {
    fn turn(&mut self, pairs: u64, ahead: bool) -> Result<Turn, Wrong> {
        let pair_ps = each(pairs, || if ahead { self.run_ahead(pairs) } else { self.run(pairs) })?;
        Ok(Turn { pair_ps, halves_ps: None })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.stolen)
    }

    fn books_places(&self) -> Vec<Range<usize>> {
        self.engine().places()
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.places()
    }
}

impl<E: Engine> Run for Bulk<E> {
    fn turn(&mut self, _pairs: u64, ahead: bool) -> Result<Turn, Wrong> {
        let frames = self.frames();
        let taken_ps = each(frames, || self.fill())?;
        self.shuffle();
        let freed_ps = each(frames, || if ahead { self.empty_ahead() } else { self.empty() })?;
        Ok(Turn { pair_ps: taken_ps + freed_ps, halves_ps: Some((taken_ps, freed_ps)) })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.stolen)
    }

    fn books_places(&self) -> Vec<Range<usize>> {
        self.engine().places()
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.places()
    }
}

impl Run for Drawn {
    fn turn(&mut self, pairs: u64, ahead: bool) -> Result<Turn, Wrong> {
        let pair_ps = each(pairs, || if ahead { self.run_ahead(pairs) } else { self.run(pairs) })?;
        Ok(Turn { pair_ps, halves_ps: None })
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.stolen)
    }

    fn books_places(&self) -> Vec<Range<usize>> {
        self.places()
    }

    fn places(&self) -> Vec<Range<usize>> {
        self.places()
    }
}
