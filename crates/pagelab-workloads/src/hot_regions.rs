//! Byte reads that prefer a few regions of a buffer at known addresses: a program for finding hot regions and
//! backing them with huge pages.
//!
//! After the workload of an assignment on large pages against TLB misses (E0243, Indian Institute of Science,
//! 2024): 1 GiB of 512 regions of 2 MiB from 0x18780000000 on, of which a few have most of the misses; a file
//! has their addresses, in decimal, one per line, and the program backs them with huge pages.
//!
//! The hot set is random with repetition, so a region that was selected twice is twice as hot. The reads do
//! not depend on each other: the processor overlaps them, and a TLB miss costs less than in a chase.

use std::collections::BTreeSet;
use std::ops::Range;

use pagelab_formats::region_list;
use pagelab_model::Bytes;
use pagelab_model::failure::describe_io_error;
use pagelab_model::random::SplitMix64;
use pagelab_sys::mapping::{Advice, Mapping};

use crate::lfsr::GaloisLfsr;
use crate::options::{
    OptionSpec, SEED_OPTION, WorkloadOptions, choice_option, number_option, path_option, size_option,
};
use crate::phase::{MeasuredPhase, time_cpu};
use crate::{
    Figure, HotRegion, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult,
    access_regions, mapping,
};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "hot-regions",
    description: "Independent byte reads over a buffer at a fixed address, some of them in a few hot regions",
    generator: "a hot set of random regions, with repetition (splitmix64 from the seed); in each round 3 \
                byte reads at random places of one random hot region and 7 at random places of the entire \
                buffer; addresses from a 64-bit Galois LFSR, 32 shifts per value, so that no read depends on \
                another. Each page is written before the first read, or with first read is never written: \
                then all base pages are the one zero page of the kernel; with first none the measured reads \
                touch the pages",
    options: &[
        size_option("1G", "Bytes of the buffer, a multiple of the region"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        OptionSpec { help: "Bytes of a region", ..access_regions::REGION_OPTION },
        number_option("hot", 1, 1 << 16, "16", "Number of random regions, with repetition, in the hot set"),
        number_option("rounds", 1, 1 << 40, "10000000", "Rounds of 3 hot reads and 7 reads anywhere"),
        choice_option(
            "first",
            &["write", "read", "none"],
            "write",
            "First touch of each page: by a write, by a read, or none (left to the measured reads)",
        ),
        number_option(
            "base",
            0,
            u64::MAX,
            "0x18780000000",
            "Address of the buffer, so that addresses from one run are valid in the next; 0: any address",
        ),
        path_option("largepages", "File of region addresses to back with huge pages: decimal, one per line"),
        choice_option(
            "backing",
            &["hugetlb", "thp"],
            "hugetlb",
            "Huge pages for the file's regions: from the pool (MAP_HUGETLB), or MADV_HUGEPAGE",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_hot_regions,
};

/// Reads of a round: in a hot region, and anywhere.
const HOT_READS_PER_ROUND: u64 = 3;
const UNIFORM_READS_PER_ROUND: u64 = 7;

/// The check reads nothing and repeats one round in this number.
const CHECK_DIVISOR: u64 = 16;

fn run_hot_regions(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (size, region) = (options.get_size("size"), options.get_size("region"));
    let (seed, base) = (options.get_number("seed"), options.get_number("base"));
    let regions = access_regions::count_regions(size, region)?;
    let hot = draw_hot_set(seed, options.get_number("hot"), regions);
    let backing = RequestedBacking::from_options(options, size)?;
    let mut mapping = match base {
        0 => mapping::map_anonymous(options, size)?,
        base => mapping::map_anonymous_at(options, base, size)?,
    };
    let start = mapping.addresses().start;
    let backed = backing.region_count();
    mapping = backing.apply(mapping)?;
    let is_written = options.get_text("first") == "write";
    let (touched, first_touch_ns) = time_cpu(|| match options.get_text("first") {
        "none" => Ok(()),
        _ => touch_pages(&mut mapping, is_written),
    });
    touched?;
    let rounds = options.get_number("rounds");
    let first = rounds.div_ceil(CHECK_DIVISOR);
    let mut reads = ReadGenerator::new(seed, &hot, size, region);
    let mut again = reads.clone();
    let bytes = mapping.values::<u8>();
    let (checkpoint, elapsed_ns) = phase.measure_cpu(|| {
        reads.advance(first, |at| bytes[at as usize]);
        let checkpoint = reads.byte_sum;
        reads.advance(rounds - first, |at| bytes[at as usize]);
        checkpoint
    });
    again.advance(first, |at| if is_written { byte_at(at) } else { 0 });
    if again.byte_sum != checkpoint {
        let text = format!("sum of the first {first} rounds: read {checkpoint}, expected {}", again.byte_sum);
        return Err(WorkloadError::WrongResult(text));
    }
    Ok(WorkloadResult {
        figure_of_merit: Figure::time(
            "read time",
            elapsed_ns as f64 / (rounds * (HOT_READS_PER_ROUND + UNIFORM_READS_PER_ROUND)) as f64,
        ),
        working_set: size,
        checksum: reads.byte_sum ^ reads.random.state(),
        latencies: None,
        figures: vec![
            Figure::time("first_touch_cpu", first_touch_ns as f64),
            Figure::time("reads_cpu", elapsed_ns as f64),
            Figure::neutral("backed_regions", "count", backed as f64),
        ],
        hot_regions: to_hot_regions(&hot, regions, region, start),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{regions} regions of {} bytes at {start:#x}, {} selected as hot ({} distinct), {rounds} rounds \
             of {HOT_READS_PER_ROUND} hot reads and {UNIFORM_READS_PER_ROUND} anywhere, first touch by {}, \
             advise {}, {backed} regions backed from the list, seed {seed}",
            region.0,
            hot.len(),
            count_draws(&hot).len(),
            match options.get_text("first") {
                "none" => "the reads themselves",
                word => word,
            },
            options.get_text("advise"),
        ),
    })
}

/// The hot set in the order of its random selection; a region may be in it more than once.
fn draw_hot_set(seed: u64, hot: u64, regions: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    (0..hot).map(|_| random.next_below(regions)).collect()
}

/// Regions of the hot set with the number of their selections, the most frequent first.
fn count_draws(hot: &[u64]) -> Vec<(u64, usize)> {
    let mut sorted = hot.to_vec();
    sorted.sort_unstable();
    let mut found: Vec<(u64, usize)> =
        sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect();
    found.sort_by_key(|&(region, times)| (std::cmp::Reverse(times), region));
    found
}

/// The reported hot set: shares of all reads.
fn to_hot_regions(hot: &[u64], regions: u64, region: Bytes, start: u64) -> Vec<HotRegion> {
    let reads = (HOT_READS_PER_ROUND + UNIFORM_READS_PER_ROUND) as f64;
    let of_hot = HOT_READS_PER_ROUND as f64 / reads / hot.len() as f64;
    let of_all = UNIFORM_READS_PER_ROUND as f64 / reads / regions as f64;
    let share = |(place, times): (u64, usize)| {
        let offset = place * region.0;
        HotRegion { offset, address: start + offset, share: times as f64 * of_hot + of_all }
    };
    count_draws(hot).into_iter().map(share).collect()
}

/// The byte at an offset once the buffer is written.
#[inline]
fn byte_at(at: u64) -> u8 {
    word_at(at / 8).to_le_bytes()[(at % 8) as usize]
}

#[inline]
fn word_at(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Touches every page: writes each word, or reads a word of each page.
fn touch_pages(mapping: &mut Mapping, is_written: bool) -> Result<(), WorkloadError> {
    if is_written {
        for (index, place) in (0..).zip(mapping.words_mut()) {
            *place = word_at(index).to_le();
        }
        return Ok(());
    }
    let all = 0..mapping.len().0;
    mapping
        .touch_for_reading(all)
        .map_err(|error| WorkloadError::system_error("cannot read the buffer", error))
}

/// The reads: their addresses, and the sum of the values.
#[derive(Clone, Debug)]
struct ReadGenerator<'a> {
    random: GaloisLfsr,
    hot: &'a [u64],
    buffer_bytes: u64,
    region_bytes: u64,
    byte_sum: u64,
}

impl<'a> ReadGenerator<'a> {
    fn new(seed: u64, hot: &'a [u64], size: Bytes, region: Bytes) -> ReadGenerator<'a> {
        // The hot set comes from the seed itself; the register starts elsewhere.
        let random = GaloisLfsr::new(SplitMix64::new(!seed).next_u64());
        ReadGenerator { random, hot, buffer_bytes: size.0, region_bytes: region.0, byte_sum: 0 }
    }

    /// A number of rounds, whose bytes `read` returns.
    #[inline(always)]
    fn advance(&mut self, rounds: u64, read: impl Fn(u64) -> u8) {
        let (mut random, mut sum) = (self.random, self.byte_sum);
        for _ in 0..rounds {
            let hot = self.hot[random.next_below(self.hot.len() as u64) as usize] * self.region_bytes;
            for _ in 0..HOT_READS_PER_ROUND {
                sum += u64::from(read(hot + random.next_below(self.region_bytes)));
            }
            for _ in 0..UNIFORM_READS_PER_ROUND {
                sum += u64::from(read(random.next_below(self.buffer_bytes)));
            }
        }
        self.random = random;
        self.byte_sum = std::hint::black_box(sum);
    }
}

/// Regions to back.
#[derive(Debug)]
struct RequestedBacking {
    /// Offsets of regions in the buffer, each once, ascending.
    offsets: BTreeSet<u64>,
    region: Bytes,
    /// Pages of the pool; else advice.
    is_hugetlb: bool,
}

/// A list has one line per region; a longer file is something else.
const LIST_BYTES_MAX: u64 = 1 << 20;

impl RequestedBacking {
    /// Regions of the option `largepages`; none if it is empty.
    pub fn from_options(options: &WorkloadOptions, size: Bytes) -> Result<RequestedBacking, WorkloadError> {
        let (path, base, region) =
            (options.get_text("largepages"), options.get_number("base"), options.get_size("region"));
        let is_hugetlb = options.get_text("backing") == "hugetlb";
        let mut backing = RequestedBacking { offsets: BTreeSet::new(), region, is_hugetlb };
        if path.is_empty() {
            return Ok(backing);
        }
        if base == 0 {
            let text = "base: a list of addresses needs a buffer at a fixed address; hint: set base to an \
                 address, or remove the option";
            return Err(WorkloadError::InvalidOptions(text.to_owned()));
        }
        backing.offsets = parse_list(path, &read_list(path)?, base..base.saturating_add(size.0), region.0)?;
        Ok(backing)
    }

    /// How many regions are to be backed.
    pub fn region_count(&self) -> usize {
        self.offsets.len()
    }

    /// Puts huge pages in place. Huge pages of the pool replace the content of a region, so nothing may have
    /// been touched yet.
    pub fn apply(&self, mut mapping: Mapping) -> Result<Mapping, WorkloadError> {
        let base = mapping.addresses().start;
        for (backed_before, &offset) in self.offsets.iter().enumerate() {
            let region_range = offset..offset + self.region.0;
            let failed = |error| self.backing_error(backed_before, base + offset, error);
            if self.is_hugetlb {
                mapping = mapping.with_hugetlb(region_range.clone(), self.region).map_err(failed)?;
                // A limit of the control group shows only when the page is taken, as a signal if it is
                // touched and as an error here. The pages of the pool are zeros either way.
                mapping.touch_for_reading(region_range).map_err(failed)?;
            } else {
                mapping.advise(region_range, Advice::HugePage).map_err(failed)?;
            }
        }
        Ok(mapping)
    }

    fn backing_error(&self, backed_before: usize, address: u64, error: std::io::Error) -> WorkloadError {
        let (all, bytes) = (self.offsets.len(), self.region.0);
        let wanted = format!(
            "cannot back {address:#x} with a huge page of {bytes} bytes ({backed_before} of {all} are backed)"
        );
        let hint = match error.kind() {
            _ if !self.is_hugetlb => "this kernel has no transparent huge pages",
            std::io::ErrorKind::OutOfMemory => {
                "the pool has no free page; hint: raise vm.nr_hugepages, or use --backing thp"
            }
            _ => {
                "this kernel has no hugetlb pool of this page size; hint: use another --region, or --backing \
                thp"
            }
        };
        WorkloadError::SystemError(format!("{wanted}: {error}; {hint}"))
    }
}

fn read_list(path: &str) -> Result<String, WorkloadError> {
    let unread = |error: std::io::Error| {
        let text = format!("cannot read {path}: {}", describe_io_error(&error));
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => WorkloadError::NotAvailable(text),
            _ => WorkloadError::InvalidInput(text),
        }
    };
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    let read = std::io::Read::read_to_string(&mut std::io::Read::take(file, LIST_BYTES_MAX + 1), &mut text);
    match read {
        Ok(_) if text.len() as u64 <= LIST_BYTES_MAX => Ok(text),
        Ok(_) => Err(WorkloadError::InvalidInput(format!("{path}: expected at most {LIST_BYTES_MAX} bytes"))),
        Err(error) => Err(unread(error)),
    }
}

/// The offsets of the regions that a list names; a region may be named twice.
fn parse_list(
    path: &str,
    text: &str,
    buffer: Range<u64>,
    region: u64,
) -> Result<BTreeSet<u64>, WorkloadError> {
    let lines = region_list::parse_lines(text.as_bytes());
    let mut offsets = BTreeSet::new();
    for (number, address) in
        lines.map_err(|error| WorkloadError::InvalidInput(error.message_in_file(path)))?
    {
        let line_error = |what: String| WorkloadError::InvalidInput(format!("{path}:{number}: {what}"));
        if !buffer.contains(&address) {
            let (start, end) = (buffer.start, buffer.end);
            return Err(line_error(format!(
                "{address} is outside the buffer, {start} to {end} ({start:#x})"
            )));
        }
        let offset = address - buffer.start;
        if !offset.is_multiple_of(region) {
            return Err(line_error(format!("{address} is not the start of a region of {region} bytes")));
        }
        offsets.insert(offset);
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests;
