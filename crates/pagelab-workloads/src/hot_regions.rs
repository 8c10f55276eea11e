//! Byte reads that prefer a few regions of a buffer at known addresses: the program on which hot regions are
//! found, and then backed by huge pages.
//!
//! After the workload of an assignment on large pages against TLB misses (E0243, Indian Institute of Science,
//! 2024): 1 GiB of 512 regions of 2 MiB from 0x18780000000 on, of which a few take most of the misses; their
//! addresses, in decimal, one a line, go into a file, by which the program backs them with huge pages.
//!
//! The hot set is drawn with repetition, so a region that was drawn twice is twice as hot. The reads do not
//! depend on each other: the processor overlaps them, and a TLB miss costs less than in a chase.

mod backing;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;
use pagelab_sys::map::Mapping;

use crate::lfsr::Lfsr;
use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, HotRegion, Merit, Workload, memory, regions};
use backing::Backing;

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "hot-regions",
    about: "Independent byte reads over a buffer at a fixed address, some of them in a few hot regions",
    generator: "a hot set of regions, drawn with repetition by splitmix64 from the seed; in each round 3 \
                byte reads at random places of one random hot region and 7 at random places of the whole \
                buffer; addresses from a 64-bit Galois LFSR, 32 shifts a draw, so that no read depends on \
                another. Each page is written before the first read, or with first read is never written: \
                then all base pages are the one zero page of the kernel; with first none the reads \
                that are measured touch what they touch",
    options: &[
        size("1G", "Bytes of the buffer, a multiple of the region"),
        SEED,
        memory::ADVISE,
        regions::REGION,
        HOT,
        ROUNDS,
        FIRST,
        BASE,
        LARGEPAGES,
        BACKING,
    ],
    forks: false,
    run,
};

const HOT: OptionHead = OptionHead {
    name: "hot",
    kind: Kind::Number(1, 1 << 16),
    default: "16",
    help: "How many regions are drawn, with repetition, as the hot set",
};
const ROUNDS: OptionHead = OptionHead {
    name: "rounds",
    kind: Kind::Number(1, 1 << 40),
    default: "10000000",
    help: "Rounds of 3 hot reads and 7 reads anywhere",
};
const FIRST: OptionHead = OptionHead {
    name: "first",
    kind: Kind::Word(&["write", "read", "none"]),
    default: "write",
    help: "What touches each page first: a write, a read, or none: the reads that are measured",
};
const BASE: OptionHead = OptionHead {
    name: "base",
    kind: Kind::Number(0, u64::MAX),
    default: "0x18780000000",
    help: "Address of the buffer, so that addresses of one run hold in the next; 0: anywhere",
};
const LARGEPAGES: OptionHead = OptionHead {
    name: "largepages",
    kind: Kind::Path,
    default: "",
    help: "File of region addresses, one a line, decimal: those are backed by huge pages",
};
const BACKING: OptionHead = OptionHead {
    name: "backing",
    kind: Kind::Word(&["hugetlb", "thp"]),
    default: "hugetlb",
    help: "Huge pages for the file's regions: of the pool (MAP_HUGETLB), or MADV_HUGEPAGE",
};

/// Reads of a round: in a hot region, and anywhere.
const HOT_READS: u64 = 3;
const ANY_READS: u64 = 7;

/// The check reads nothing and repeats this part of the rounds: one of so many.
const CHECKED_PART: u64 = 16;

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let (size, region) = (options.size("size"), options.size("region"));
    let (seed, base) = (options.number("seed"), options.number("base"));
    let regions = regions::count(size, region)?;
    let hot = drawn(seed, options.number("hot"), regions);
    let backing = Backing::of(options, size)?;
    let mut mapping = match base {
        0 => memory::map(options, size)?,
        base => memory::map_at(options, base, size)?,
    };
    let start = mapping.addresses().start;
    let backed = backing.regions();
    mapping = backing.back(mapping)?;
    let is_written = options.text("first") == "write";
    let before = clock::thread_cpu_ns();
    match options.text("first") {
        "none" => {}
        _ => touch(&mut mapping, is_written)?,
    }
    let first_touch_ns = clock::thread_cpu_ns().saturating_sub(before);
    let rounds = options.number("rounds");
    let first = rounds.div_ceil(CHECKED_PART);
    let mut reads = Reads::new(seed, &hot, size, region);
    let mut again = reads.clone();
    phase.begin();
    let before = clock::thread_cpu_ns();
    let bytes = mapping.values::<u8>();
    reads.go(first, |at| bytes[at as usize]);
    let checkpoint = reads.sum;
    reads.go(rounds - first, |at| bytes[at as usize]);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();
    again.go(first, |at| if is_written { content(at) } else { 0 });
    if again.sum != checkpoint {
        let text = format!("{first} rounds read {checkpoint} in sum, computed {}", again.sum);
        return Err(Failed::Wrong(text));
    }
    Ok(Done {
        merit: Merit {
            name: "read time",
            unit: "ns",
            better: Better::Lower,
            value: spent_ns as f64 / (rounds * (HOT_READS + ANY_READS)) as f64,
        },
        working_set: size,
        checksum: reads.sum ^ reads.random.state(),
        latencies: None,
        figures: vec![
            Figure::new("first_touch_cpu", "ns", Better::Lower, first_touch_ns as f64),
            Figure::new("reads_cpu", "ns", Better::Lower, spent_ns as f64),
            Figure::neutral("backed_regions", "count", backed as f64),
        ],
        hot_regions: told(&hot, regions, region, start),
        generated: format!(
            "{regions} regions of {} bytes at {start:#x}, {} drawn as hot ({} distinct), {rounds} rounds of \
             {HOT_READS} hot reads and {ANY_READS} anywhere, first touch by {}, advise {}, {backed} regions \
             backed from the list, seed {seed}",
            region.0,
            hot.len(),
            distinct(&hot).len(),
            match options.text("first") {
                "none" => "the reads themselves",
                word => word,
            },
            options.text("advise"),
        ),
    })
}

/// The hot set in the order in which it was drawn; a region may be in it more than once.
fn drawn(seed: u64, hot: u64, regions: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    (0..hot).map(|_| random.below(regions)).collect()
}

/// The regions of the hot set and how often each was drawn, the most often drawn first.
fn distinct(hot: &[u64]) -> Vec<(u64, usize)> {
    let mut sorted = hot.to_vec();
    sorted.sort_unstable();
    let mut found: Vec<(u64, usize)> =
        sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect();
    found.sort_by_key(|&(region, times)| (std::cmp::Reverse(times), region));
    found
}

/// The hot set as it is told: shares of all reads.
fn told(hot: &[u64], regions: u64, region: Bytes, start: u64) -> Vec<HotRegion> {
    let reads = (HOT_READS + ANY_READS) as f64;
    let of_hot = HOT_READS as f64 / reads / hot.len() as f64;
    let of_all = ANY_READS as f64 / reads / regions as f64;
    let told = |(place, times): (u64, usize)| {
        let offset = place * region.0;
        HotRegion { offset, address: start + offset, share: times as f64 * of_hot + of_all }
    };
    distinct(hot).into_iter().map(told).collect()
}

/// The byte at an offset once the buffer is written.
#[inline]
fn content(at: u64) -> u8 {
    word(at / 8).to_le_bytes()[(at % 8) as usize]
}

/// The word at an index of words.
#[inline]
fn word(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Touches every page: writes each word, or reads a word of each page.
fn touch(mapping: &mut Mapping, is_written: bool) -> Result<(), Failed> {
    if is_written {
        for (index, place) in (0..).zip(mapping.words_mut()) {
            *place = word(index).to_le();
        }
        return Ok(());
    }
    let all = 0..mapping.len().0;
    mapping.touch_for_reading(all).map_err(|error| Failed::system("cannot read the buffer", error))
}

/// The reads: where they go, and the sum of what was read.
#[derive(Clone, Debug)]
struct Reads<'a> {
    random: Lfsr,
    hot: &'a [u64],
    size: u64,
    region: u64,
    sum: u64,
}

impl<'a> Reads<'a> {
    fn new(seed: u64, hot: &'a [u64], size: Bytes, region: Bytes) -> Reads<'a> {
        // The hot set comes from the seed itself; the register starts elsewhere.
        let random = Lfsr::new(SplitMix64::new(!seed).draw());
        Reads { random, hot, size: size.0, region: region.0, sum: 0 }
    }

    /// So many rounds, of which `read` says the bytes.
    #[inline(always)]
    fn go(&mut self, rounds: u64, read: impl Fn(u64) -> u8) {
        let (mut random, mut sum) = (self.random, self.sum);
        for _ in 0..rounds {
            let hot = self.hot[random.below(self.hot.len() as u64) as usize] * self.region;
            for _ in 0..HOT_READS {
                sum += u64::from(read(hot + random.below(self.region)));
            }
            for _ in 0..ANY_READS {
                sum += u64::from(read(random.below(self.size)));
            }
        }
        self.random = random;
        self.sum = std::hint::black_box(sum);
    }
}

#[cfg(test)]
mod tests;
