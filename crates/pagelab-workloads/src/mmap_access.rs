//! The same accesses through each kind of mapping. After a laboratory of an operating systems course, whose
//! report compares nine configurations: anonymous or a file, private or shared, populated or not, filled and
//! synced before or not, in sequence or at random, alone or beside a competitor (which is not part of this
//! module).
//!
//! Two patterns, since the report's text and its figures do not agree:
//!
//! - `lab`: a window of 512 cache lines of 64 bytes, passed over 16 times; every eighth line is a store to
//!   its first byte, the others are loads of theirs. The windows of a sequential run follow each other; at
//!   random, a window starts at any line. Per window 16 × 64 stores and 16 × 448 loads: the report's counts.
//! - `report`: a block of 512 bytes, passed over 16 times, byte by byte; the first byte of each cache line is
//!   a store, the others are loads. Per block 16 × 8 stores and 16 × 504 loads: the report's text.
//!
//! Addresses come from a counter or from a xorshift generator, and depend on no loaded value.
//!
//! Every byte has an expected value at the end: the contents of the file or the prefill, and 1 where the
//! pattern stored. All lines are checked, and a sample of a file: it has the stores to a shared mapping, but
//! not those to a private one.
//!
//! `MAP_POPULATE` of a shared writable mapping faults its pages in for reading only (mm/gup.c,
//! `populate_vma_page_range`: a write fault would make them dirty for nothing), so on a file system that
//! detects dirty pages by write protection each page still costs a fault at its first store. The figure
//! `write_faults_after_populate` counts them. `MADV_POPULATE_WRITE` (5.14) faults for writing.

mod config;
mod pattern;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::random::SplitMix64;
use pagelab_sys::byte_mapping::{ByteMapping, ByteMappingOptions};
use pagelab_sys::clock;
use pagelab_sys::mapping::Advice;
use pagelab_sys::page_cache;
use pagelab_sys::page_faults::PageFaults;

use crate::options::WorkloadOptions;
use crate::phase::MeasuredPhase;
use crate::private_dir::create_tmpfile;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};
use config::{AccessConfig, FileContent, PopulateMode, PrefillMode};
use pattern::{AccessCounts, AccessPattern, LINE_BYTES, STORED_BYTE};

/// The accesses as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "mmap-access",
    description: "The same loads and stores through each kind of mapping: anonymous, file, private, shared",
    generator: "windows in sequence or at random starts (a xorshift generator from the seed), each passed \
                over 16 times; one access in eight (lab) or in sixty-four (report) is a store; addresses \
                depend on no loaded value; pages are first touched by populating, by memset, or by the \
                accesses themselves, as the options select",
    options: config::OPTION_SPECS,
    forks_processes: false,
    guest_parts: &[],
    run: run_mmap_access,
};

/// Byte that memset writes.
const FILL_BYTE: u8 = 2;
/// Byte of a file written before.
const PREWRITTEN_BYTE: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct PhaseCost {
    wall_ns: u64,
    cpu_ns: u64,
    faults: PageFaults,
}

impl PhaseCost {
    fn measure<T>(work: impl FnOnce() -> T) -> (T, PhaseCost) {
        let (faults, cpu_ns) = (PageFaults::for_this_thread(), clock::thread_cpu_ns());
        let began = clock::monotonic_ns();
        let done = work();
        let wall_ns = clock::monotonic_ns().saturating_sub(began);
        let cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_ns);
        (done, PhaseCost { wall_ns, cpu_ns, faults: PageFaults::for_this_thread().since(faults) })
    }
}

struct MappingCosts {
    map: PhaseCost,
    prefill: PhaseCost,
    /// Of the prefill, what `msync` took.
    sync_ns: u64,
    access: PhaseCost,
    accesses: AccessCounts,
}

fn run_mmap_access(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    run_with_observer(options, phase, &mut |_| {})
}

/// Runs it, and calls a visitor with the addresses of the mapping after the accesses, before anything is
/// unmapped.
pub fn run_with_observer(
    options: &WorkloadOptions,
    phase: &mut MeasuredPhase<'_>,
    observe: &mut dyn FnMut(Range<u64>),
) -> WorkloadOutcome {
    let config = AccessConfig::from_options(options).map_err(WorkloadError::InvalidOptions)?;
    let file = config.content.map(|content| prepare_file(options, &config, content)).transpose()?;
    // Part of the file in the page cache before anything is mapped for the run.
    let read_cached = |file| {
        let map = ByteMapping::new(&mapping_plan(&config, Some(file), true, false));
        let cached = map.and_then(|map| map.resident_bytes());
        cached.map_err(|error| WorkloadError::system_error("cannot read the page cache state", error))
    };
    let cached_bytes = file.as_ref().map(read_cached).transpose()?;
    let (map_cost, mapping) = PhaseCost::measure(|| map_and_populate(options, &config, file.as_ref()));
    let mut map = map_cost?;
    let (sync_ns, prefill) = PhaseCost::measure(|| fill_and_sync(&config, &mut map));
    let sync_ns = sync_ns?;
    if config.pause_ms > 0 {
        std::thread::sleep(Duration::from_millis(config.pause_ms));
    }
    let pattern = AccessPattern {
        kind: config.pattern,
        order: config.order,
        line_count: config.line_count(),
        seed: config.seed,
    };
    let bytes = &map.bytes()[..config.mapping_bytes.0 as usize];
    pattern.fault_in_code();
    let (accesses, access) =
        phase.measure(|| PhaseCost::measure(|| pattern.run_blocks(bytes, config.block_count)));
    if (accesses.loads, accesses.stores) != pattern.expected_counts(config.block_count) {
        return Err(WorkloadError::WrongResult(format!(
            "{accesses:?}; expected {:?}",
            pattern.expected_counts(config.block_count)
        )));
    }
    let before = match (config.prefill, config.content) {
        (PrefillMode::None, None | Some(FileContent::Sparse)) => 0,
        (PrefillMode::None, Some(_)) => PREWRITTEN_BYTE,
        (PrefillMode::Memset | PrefillMode::MemsetAndSync, _) => FILL_BYTE,
    };
    let start = bytes.as_ptr().addr() as u64;
    observe(start..start + config.mapping_bytes.0);
    check_buffer(bytes, &pattern, config.block_count, before)?;
    if let Some(file) = &file {
        check_file_content(file, bytes, &config)?;
    }
    let measured = MappingCosts { map: mapping, prefill, sync_ns, access, accesses };
    Ok(build_result(&config, file.as_ref(), cached_bytes, &measured))
}

fn mapping_plan<'a>(
    config: &AccessConfig,
    file: Option<&'a File>,
    is_shared: bool,
    populate: bool,
) -> ByteMappingOptions<'a> {
    ByteMappingOptions {
        file: file.map(|file| file.as_fd()),
        is_shared,
        populate,
        len: config.mapping_bytes,
        align: mapping::alignment_for(config.mapping_bytes),
    }
}

fn map_and_populate(
    options: &WorkloadOptions,
    config: &AccessConfig,
    file: Option<&File>,
) -> Result<ByteMapping, WorkloadError> {
    let populate = config.populate == PopulateMode::Map;
    let to_error = |error| {
        WorkloadError::system_error(format_args!("cannot map {} bytes", config.mapping_bytes.0), error)
    };
    let mut map =
        ByteMapping::new(&mapping_plan(config, file, config.is_shared, populate)).map_err(to_error)?;
    match options.get_text("advise") {
        "huge" => map
            .advise(Advice::HugePage)
            .map_err(|error| WorkloadError::system_error("cannot advise huge pages", error))?,
        // A kernel without transparent huge pages has nothing to be advised about.
        "nohuge" => map.advise(Advice::NoHugePage).unwrap_or_default(),
        _ => {}
    }
    if config.populate == PopulateMode::Write {
        let to_error = |error| {
            WorkloadError::system_error("cannot populate for writing (MADV_POPULATE_WRITE, 5.14)", error)
        };
        map.advise(Advice::PopulateWrite).map_err(to_error)?;
    }
    Ok(map)
}

/// Fills and syncs, if requested. The time that syncing took.
fn fill_and_sync(config: &AccessConfig, map: &mut ByteMapping) -> Result<u64, WorkloadError> {
    if config.prefill != PrefillMode::None {
        map.fill(FILL_BYTE);
    }
    let before = clock::monotonic_ns();
    if config.prefill == PrefillMode::MemsetAndSync {
        map.sync().map_err(|error| WorkloadError::system_error("cannot sync", error))?;
    }
    Ok(clock::monotonic_ns().saturating_sub(before))
}

/// Creates the file, with the requested contents and page cache state.
fn prepare_file(
    options: &WorkloadOptions,
    config: &AccessConfig,
    content: FileContent,
) -> Result<File, WorkloadError> {
    let file = create_tmpfile(options, WORKLOAD.name)?;
    let to_error = |error| WorkloadError::system_error("cannot prepare the file", error);
    let free = page_cache::free_space(&file).map_err(to_error)?;
    // A store to a page that the disk has failed allocations is a signal, so some room is left.
    let needed = config.mapping_bytes.0.saturating_add(config.mapping_bytes.0 / 8);
    if free.0 < needed {
        return Err(WorkloadError::SystemError(format!(
            "the file needs {needed} bytes, but {} are free; hint: choose another directory or a smaller \
             size",
            free.0
        )));
    }
    file.set_len(config.mapping_bytes.0).map_err(to_error)?;
    if content == FileContent::Sparse {
        return Ok(file);
    }
    let part = vec![PREWRITTEN_BYTE; (1 << 20).min(config.mapping_bytes.0 as usize)];
    let mut at = 0;
    while at < config.mapping_bytes.0 {
        let len = part.len().min((config.mapping_bytes.0 - at) as usize);
        file.write_all_at(&part[..len], at).map_err(to_error)?;
        at += len as u64;
    }
    // Dirty pages cannot be dropped, and would be written back during the run.
    file.sync_all().map_err(to_error)?;
    if content == FileContent::DroppedFromCache {
        page_cache::drop_cached_pages(&file).map_err(to_error)?;
    }
    Ok(file)
}

/// Whether every line is correct: 1 where the pattern stored, the old contents elsewhere.
fn check_buffer(
    bytes: &[AtomicU8],
    pattern: &AccessPattern,
    blocks: u64,
    initial_byte: u8,
) -> Result<(), WorkloadError> {
    let stored = pattern.stored_lines(blocks);
    for (at, line) in bytes.chunks_exact(LINE_BYTES).enumerate() {
        let is_stored = stored[at / 64] >> (at % 64) & 1 == 1;
        let first = if is_stored { STORED_BYTE } else { initial_byte };
        let found = (line[0].load(Relaxed), line[LINE_BYTES - 1].load(Relaxed));
        if found != (first, initial_byte) {
            return Err(WorkloadError::WrongResult(format!(
                "line {at} starts and ends with {found:?}; expected {:?}",
                (first, initial_byte)
            )));
        }
    }
    Ok(())
}

/// Lines of a file that are read.
const LINES_SAMPLED: u64 = 1024;

/// Whether the file has the stored values if the mapping is shared, and the old contents if it is private.
fn check_file_content(file: &File, bytes: &[AtomicU8], config: &AccessConfig) -> Result<(), WorkloadError> {
    let kept = if config.content == Some(FileContent::Sparse) { 0 } else { PREWRITTEN_BYTE };
    let mut random = SplitMix64::new(config.seed);
    for _ in 0..LINES_SAMPLED {
        let line = random.next_below(config.line_count()) * LINE_BYTES as u64;
        let mut found = [0];
        file.read_exact_at(&mut found, line)
            .map_err(|error| WorkloadError::system_error("cannot read the file", error))?;
        let wanted = if config.is_shared { bytes[line as usize].load(Relaxed) } else { kept };
        if found[0] != wanted {
            return Err(WorkloadError::WrongResult(format!(
                "byte {line} of the file is {}; expected {wanted}",
                found[0]
            )));
        }
    }
    Ok(())
}

fn build_result(
    config: &AccessConfig,
    file: Option<&File>,
    cached_bytes: Option<Bytes>,
    measured: &MappingCosts,
) -> WorkloadResult {
    let MappingCosts { map: map_cost, prefill, sync_ns, access, accesses } = measured;
    let mut figures = Vec::new();
    let mut figure = |name, unit, better, value: u64| {
        figures.push(Figure::new(name, unit, better, value as f64));
    };
    for (name, count) in [("loads", accesses.loads), ("stores", accesses.stores)] {
        figure(name, "accesses", BetterDirection::Neither, count);
    }
    for (name, ns) in [
        ("map_wall", map_cost.wall_ns),
        ("prefill_wall", prefill.wall_ns),
        ("msync_wall", *sync_ns),
        ("access_wall", access.wall_ns),
        ("access_cpu", access.cpu_ns),
    ] {
        figure(name, "ns", BetterDirection::Lower, ns);
    }
    for (minor, major, phase) in [
        ("map_minor_faults", "map_major_faults", map_cost),
        ("prefill_minor_faults", "prefill_major_faults", prefill),
        ("access_minor_faults", "access_major_faults", access),
    ] {
        figure(minor, "faults", BetterDirection::Lower, phase.faults.minor);
        figure(major, "faults", BetterDirection::Lower, phase.faults.major);
    }
    if config.populate != PopulateMode::None && config.prefill == PrefillMode::None {
        let faults = access.faults.minor + access.faults.major;
        figure("write_faults_after_populate", "faults", BetterDirection::Lower, faults);
    }
    if let Some(cached_bytes) = cached_bytes {
        figure("cached_before", "bytes", BetterDirection::Neither, cached_bytes.0);
    }
    let file_system = file.and_then(|file| page_cache::file_system_magic(file).ok());
    let on = file_system.map_or(String::new(), |magic| format!(" on file system {magic:#x}"));
    WorkloadResult {
        figure_of_merit: Figure::time(
            "access time",
            access.wall_ns as f64 / (accesses.loads + accesses.stores).max(1) as f64,
        ),
        working_set: config.mapping_bytes,
        checksum: accesses.checksum(),
        latencies: None,
        hot_regions: Vec::new(),
        figures,
        phases: PhaseResults::default(),
        generated_input: format!("{config}{on}"),
    }
}

#[cfg(test)]
mod tests;
