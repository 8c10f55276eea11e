//! Benchmark of the engines: pairs of a free and an allocation, interleaved over all of them.

use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_command::output;
use pagelab_contig::thp_request;
use pagelab_formats::cpuinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::random::SplitMix64;
use pagelab_model::{Bytes, PageSize};
use pagelab_report::style::{format_argument, format_bytes};
use pagelab_sim::bench::BenchLoad;
use pagelab_sim::types::{Error, FRAMES_MAX, Frame, ZoneGeometry};
use pagelab_sys::clock;
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_workloads::chase::{PointerChase, link_cycle};

use engines::{BLOCK_ORDER, BenchRun, EngineName, HUGE_PAGE_BYTES, MAX_ORDER};

pub use show::{to_document, to_table_text};

pub mod engines;
mod show;

/// Requested measurements.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// Sizes of the simulated memory.
    pub sizes: Vec<Bytes>,
    /// Loads.
    pub loads: Vec<BenchLoad>,
    /// Engines; one that does not support a load is left out of it.
    pub engines: Vec<EngineName>,
    /// Pairs of a turn.
    pub pairs: u64,
    /// Turns; the median counts.
    pub turns: u32,
    /// Seed.
    pub seed: u64,
}

/// Results of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchResults {
    /// The processor.
    pub processor: String,
    /// One row for each size, load, engine and variant of it.
    pub rows: Vec<BenchRow>,
    /// Read latencies by size: the lower bound for the engines.
    pub floors: Vec<(Bytes, Option<MemoryLatency>)>,
}

/// Divisor of the pairs in a turn for slow engines.
const SLOW_ENGINE_DIVISOR: u64 = 8;

fn is_slow(engine: EngineName) -> bool {
    matches!(engine, EngineName::Trees | EngineName::BTree)
}

/// Row of the results.
#[derive(Clone, Debug)]
pub struct BenchRow {
    /// Simulated memory.
    pub memory: Bytes,
    /// The load.
    pub load: BenchLoad,
    /// The engine.
    pub engine: EngineName,
    /// Whether it has per-CPU lists.
    pub has_pcp_lists: bool,
    /// Whether it uses the frames that are freed next.
    pub has_lookahead: bool,
    /// Picoseconds of a pair, by turn.
    pub pair_ps: Vec<u64>,
    /// Picoseconds of an allocation and of a free, for loads that separate them.
    pub alloc_free_ps: Vec<(u64, u64)>,
    /// Bytes of the engine's metadata.
    pub metadata: Option<Bytes>,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Blocks taken from another migratetype.
    pub stolen_blocks: u64,
}

impl BenchRow {
    fn median_ps(&self) -> f64 {
        median(self.pair_ps.iter().map(|&ps| ps as f64)).unwrap_or(0.0)
    }

    /// Median times of an allocation and of a free, if the load separates them.
    fn median_alloc_free_ps(&self) -> Option<(f64, f64)> {
        let allocation_ps = median(self.alloc_free_ps.iter().map(|halves| halves.0 as f64))?;
        Some((allocation_ps, median(self.alloc_free_ps.iter().map(|halves| halves.1 as f64))?))
    }

    fn pairs_per_s(&self) -> f64 {
        1e12 / self.median_ps().max(1.0)
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    SampleStatistics::from_samples(values.collect()).map(|found| found.median)
}

/// Measures all engines under all loads at all sizes, after all sizes are known to fit.
pub fn run_bench(request: &BenchRequest) -> Result<BenchResults, Failure> {
    let shapes: Vec<(Bytes, ZoneGeometry)> =
        request.sizes.iter().map(|&size| (size, zone_geometry(size))).collect();
    for &(memory, shape) in &shapes {
        request.loads.iter().try_for_each(|&load| check_fits(memory, shape, load, &request.engines))?;
    }
    let mut rows = Vec::new();
    let mut floors = Vec::new();
    for (memory, shape) in shapes {
        for &load in &request.loads {
            let measured = measure_engines((memory, shape), load, request);
            rows.extend(measured.map_err(|wrong| Failure::new(FailureKind::Bug, wrong.to_string()))?);
        }
        floors.push((memory, measure_latency(shape, request)));
    }
    Ok(BenchResults { processor: processor_name(), rows, floors })
}

fn processor_name() -> String {
    let Ok(cpu) = Reader::new(&Root::live()).parse(paths::CPUINFO, cpuinfo::parse) else {
        return "an unknown processor".to_owned();
    };
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    let numbers = [cpu.family, cpu.model, cpu.stepping].map(number).join("/");
    format!("{} ({numbers})", cpu.model_name)
}

fn zone_geometry(memory: Bytes) -> ZoneGeometry {
    // 16 TiB has a few more frames than can be numbered: the last ones are left out.
    let frames = (memory.0 / PageSize::DEFAULT.bytes()).min(FRAMES_MAX);
    ZoneGeometry {
        first_frame: Frame::new(0),
        frames: frames as u32,
        max_order: MAX_ORDER,
        pageblock_order: BLOCK_ORDER,
    }
}

/// Rejects an engine that cannot be measured under a load.
pub fn check_load_support(engines: &[EngineName], loads: &[BenchLoad]) -> Result<(), Failure> {
    let unfit = |load: &BenchLoad| engines.iter().find(|name| !name.supports_load(*load));
    let Some((name, load)) = loads.iter().find_map(|load| Some((unfit(load)?, load))) else { return Ok(()) };
    Err(usage_error(&format!(
        "--load {} is not supported by the engine {}: it has no list of live blocks; hint: use --engine \
         compact",
        load.name(),
        name.name()
    )))
}

/// Rejects a size that does not fit in the memory of this machine.
fn check_fits(
    memory: Bytes,
    shape: ZoneGeometry,
    load: BenchLoad,
    engines: &[EngineName],
) -> Result<(), Failure> {
    let times = |name: &EngineName| if name.has_pcp_lists() { 2 } else { 1 };
    let needed = engines
        .iter()
        .filter(|name| name.supports_load(load))
        .map(|name| name.memory_needed(shape, load).0 * times(name))
        .sum();
    let available = thp_request::read_available_memory(&Root::live()).unwrap_or(Bytes(u64::MAX));
    if needed <= available.0 / 10 * 9 {
        return check_frame_numbers(memory, shape, engines);
    }
    let least = EngineName::CompactRandom.memory_needed(shape, load);
    let action = format!("simulate {} with the load {}", format_bytes(memory), load.name());
    let (needed, available) = (format_bytes(Bytes(needed)), format_bytes(available));
    let reason = format!("the engines need {needed}, but only {available} is available");
    let hint = format!("select fewer engines, or use --engine random ({})", format_bytes(least));
    Err(Failure::cannot(FailureKind::NotAvailable, action, reason).hint(hint))
}

/// Rejects engines that cannot address this number of frames.
fn check_frame_numbers(memory: Bytes, shape: ZoneGeometry, engines: &[EngineName]) -> Result<(), Failure> {
    let Some(name) = engines.iter().find(|name| !name.supports_frames_of(shape)) else { return Ok(()) };
    Err(usage_error(&format!(
        "--memory {} is not supported by the engine {}: engines with frame lists support up to 4 TiB; hint: \
         use --engine compact or --engine random",
        format_argument(memory),
        name.name()
    )))
}

/// Measures all engines at one size, interleaved in alternating order.
fn measure_engines(
    size: (Bytes, ZoneGeometry),
    load: BenchLoad,
    request: &BenchRequest,
) -> Result<Vec<BenchRow>, Error> {
    let (memory, shape) = size;
    let mut runs: Vec<Box<dyn BenchRun>> = Vec::new();
    let mut rows: Vec<(usize, BenchRow)> = Vec::new();
    for &engine in request.engines.iter().filter(|engine| engine.supports_load(load)) {
        for per_cpu in [false, true] {
            if per_cpu && !engine.has_pcp_lists() {
                continue;
            }
            output::show_status_line(&format!(
                "filling {} of simulated memory: {}",
                format_bytes(memory),
                engine.name()
            ));
            let run = engine.build(shape, per_cpu, load, request.seed)?;
            run.collapse_memory();
            for with_lookahead in [false, true] {
                if !with_lookahead || engine.has_lookahead() {
                    let row = BenchRow {
                        memory,
                        load,
                        engine,
                        has_pcp_lists: per_cpu,
                        has_lookahead: with_lookahead,
                        pair_ps: Vec::new(),
                        alloc_free_ps: Vec::new(),
                        metadata: run.metadata_bytes(),
                        failed_allocations: 0,
                        stolen_blocks: 0,
                    };
                    rows.push((runs.len(), row));
                }
            }
            runs.push(run);
        }
    }
    for round in 0..request.turns {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let engine = rows[at].1.engine.name();
            output::show_status_line(&format!("turn {} of {}: {engine}", round + 1, request.turns));
            let (run, row) = &mut rows[at];
            let run = &mut runs[*run];
            let pairs = if is_slow(row.engine) {
                (request.pairs / SLOW_ENGINE_DIVISOR).max(1)
            } else {
                request.pairs
            };
            let took = run.run_turn(pairs, row.has_lookahead)?;
            row.pair_ps.push(took.pair_ps);
            row.alloc_free_ps.extend(took.alloc_free_ps);
            (row.failed_allocations, row.stolen_blocks) = run.counts();
        }
    }
    output::show_status_line("");
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// Reads in a turn.
const READS_PER_TURN: u64 = 1 << 20;
/// Size limit of the buffer, in bytes.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// Read latencies for one size.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLatency {
    /// Buffer size, on huge pages: nine bytes per frame, at most 1 GiB.
    pub buffer: Bytes,
    /// Picoseconds of a dependent read.
    pub dependent_ps: f64,
    /// Picoseconds of an independent read.
    pub independent_ps: f64,
}

/// Measures the latencies; `None` if the memory cannot be allocated.
fn measure_latency(shape: ZoneGeometry, request: &BenchRequest) -> Option<MemoryLatency> {
    let buffer = Bytes((u64::from(shape.frames) * 9).clamp(1 << 20, BUFFER_BYTES_MAX));
    let mut map = Mapping::anonymous(buffer, Bytes(HUGE_PAGE_BYTES as u64)).ok()?;
    map.advise(0..map.len().0, Advice::HugePage).ok()?;
    link_cycle(map.words_mut(), request.seed, || true);
    let mut chase = PointerChase::new(map.words());
    chase.walk(READS_PER_TURN);
    let dependent_ps = median((0..request.turns).map(|_| chase.measure(READS_PER_TURN) as f64))?;
    let mut random = SplitMix64::new(request.seed);
    let independent_ps =
        median((0..request.turns).map(|_| time_independent_reads(map.words(), &mut random)))?;
    Some(MemoryLatency { buffer, dependent_ps, independent_ps })
}

fn time_independent_reads(words: &[u64], random: &mut SplitMix64) -> f64 {
    let before_ns = clock::thread_cpu_ns();
    let mut sum = 0u64;
    for _ in 0..READS_PER_TURN {
        sum = sum.wrapping_add(words[random.next_below(words.len() as u64) as usize]);
    }
    std::hint::black_box(sum);
    (clock::thread_cpu_ns().saturating_sub(before_ns) * 1000) as f64 / READS_PER_TURN as f64
}
