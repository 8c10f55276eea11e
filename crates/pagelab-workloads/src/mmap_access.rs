//! The same accesses through every way of mapping memory. After a laboratory of an operating systems course,
//! whose report compares nine configurations: anonymous or a file, private or shared, populated or not,
//! filled and synced before or not, in sequence or at random, alone or beside a competitor (which is not part
//! of this).
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
//! Every byte has an expected value at the end: what the file or the prefill left there, and 1 where the
//! pattern stored. All lines are looked at, and of a file a sample is read: stores to a shared mapping are in
//! it, stores to a private one are not.
//!
//! `MAP_POPULATE` of a shared mapping that may be written faults its pages in for reading only (mm/gup.c,
//! `populate_vma_page_range`: a write fault would make them dirty for nothing), so on a file system that
//! finds dirty pages by write protection each page still costs a fault at its first store. The figure
//! `write_faults_after_populate` counts them. `MADV_POPULATE_WRITE` (5.14) faults for writing.

mod pattern;
mod setting;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::bytes_map::{BytesMap, BytesPlan};
use pagelab_sys::clock;
use pagelab_sys::faults::Faults;
use pagelab_sys::map::Advice;
use pagelab_sys::page_cache;

use crate::folder::nameless_file;
use crate::options::Options;
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use pattern::{Accesses, LINE, Pattern, STORED};
use setting::{Content, Populate, Prefill, Setting};

/// The accesses as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "mmap-access",
    about: "The same loads and stores through any way of mapping memory: anonymous, file, private, shared",
    generator: "windows in sequence or at starts drawn by a xorshift generator from the seed, passed over 16 \
                times \
                each; one access in eight (lab) or in sixty-four (report) is a store; addresses depend on no \
                loaded \
                value; pages are first touched by populating, by memset, or by the accesses themselves, as \
                the \
                options say",
    options: setting::OPTIONS,
    forks: false,
    run,
};

/// What memset writes.
const FILLED: u8 = 2;
/// What a file has that was written before.
const PREWRITTEN: u8 = 3;

/// One part of a run.
#[derive(Clone, Copy, Debug)]
struct Part {
    wall_ns: u64,
    cpu_ns: u64,
    faults: Faults,
}

impl Part {
    /// Does it, and measures it.
    fn of<T>(work: impl FnOnce() -> T) -> (T, Part) {
        let (faults, cpu_ns) = (Faults::of_this_thread(), clock::thread_cpu_ns());
        let began = clock::monotonic_ns();
        let done = work();
        let wall_ns = clock::monotonic_ns().saturating_sub(began);
        let cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_ns);
        (done, Part { wall_ns, cpu_ns, faults: Faults::of_this_thread().since(faults) })
    }
}

/// What was measured.
struct Measured {
    map: Part,
    prefill: Part,
    /// Of the prefill, what `msync` took.
    sync_ns: u64,
    access: Part,
    accesses: Accesses,
}

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    run_and_look(options, phase, &mut |_| {})
}

/// Runs it, and has somebody look at the addresses of the mapping after the accesses, before anything is
/// unmapped.
pub fn run_and_look(
    options: &Options,
    phase: &mut Phase<'_>,
    look: &mut dyn FnMut(Range<u64>),
) -> Result<Done, Failed> {
    let setting = Setting::of(options).map_err(Failed::Options)?;
    let file = match setting.content {
        None => None,
        Some(content) => Some(prepare_file(options, &setting, content)?),
    };
    // What the page cache has of the file before anything is mapped for the run.
    let cached = match &file {
        None => None,
        Some(file) => {
            let looked =
                BytesMap::new(&plan(&setting, Some(file), true, false)).and_then(|map| map.in_memory());
            Some(looked.map_err(|error| Failed::system("cannot look at the page cache", error))?)
        }
    };
    let (map, mapping) = Part::of(|| map_it(options, &setting, file.as_ref()));
    let mut map = map?;
    let (sync_ns, prefill) = Part::of(|| prefill(&setting, &mut map));
    let sync_ns = sync_ns?;
    if setting.pause_ms > 0 {
        std::thread::sleep(Duration::from_millis(setting.pause_ms));
    }
    let pattern =
        Pattern { kind: setting.pattern, order: setting.order, lines: setting.lines(), seed: setting.seed };
    let bytes = &map.bytes()[..setting.len.0 as usize];
    let (accesses, access) = phase.of(|| Part::of(|| pattern.run(bytes, setting.blocks)));
    if (accesses.loads, accesses.stores) != pattern.expected(setting.blocks) {
        return Err(Failed::Wrong(format!(
            "{accesses:?}, where {:?} were due",
            pattern.expected(setting.blocks)
        )));
    }
    let before = match (setting.prefill, setting.content) {
        (Prefill::None, None | Some(Content::Sparse)) => 0,
        (Prefill::None, Some(_)) => PREWRITTEN,
        (Prefill::Memset | Prefill::MemsetAndSync, _) => FILLED,
    };
    let start = bytes.as_ptr().addr() as u64;
    look(start..start + setting.len.0);
    check(bytes, &pattern, setting.blocks, before)?;
    if let Some(file) = &file {
        check_file(file, bytes, &setting)?;
    }
    let measured = Measured { map: mapping, prefill, sync_ns, access, accesses };
    Ok(done(&setting, file.as_ref(), cached, &measured))
}

fn plan<'a>(setting: &Setting, file: Option<&'a File>, is_shared: bool, populate: bool) -> BytesPlan<'a> {
    BytesPlan {
        file: file.map(|file| file.as_fd()),
        is_shared,
        populate,
        len: setting.len,
        align: memory::alignment(setting.len),
    }
}

/// Maps, advises and populates.
fn map_it(options: &Options, setting: &Setting, file: Option<&File>) -> Result<BytesMap, Failed> {
    let populate = setting.populate == Populate::Map;
    let failed = |error| Failed::system(format_args!("cannot map {} bytes", setting.len.0), error);
    let mut map = BytesMap::new(&plan(setting, file, setting.is_shared, populate)).map_err(failed)?;
    match (options.text("advise"), Advice::HugePage, Advice::NoHugePage) {
        ("huge", huge, _) => {
            map.advise(huge).map_err(|error| Failed::system("cannot advise huge pages", error))?;
        }
        // A kernel without transparent huge pages has nothing to be advised about.
        ("nohuge", _, never) => map.advise(never).unwrap_or_default(),
        _ => {}
    }
    if setting.populate == Populate::Write {
        let failed = |error| Failed::system("cannot populate for writing (MADV_POPULATE_WRITE, 5.14)", error);
        map.advise(Advice::PopulateWrite).map_err(failed)?;
    }
    Ok(map)
}

/// Fills and syncs, as far as that is wanted. The time that syncing took.
fn prefill(setting: &Setting, map: &mut BytesMap) -> Result<u64, Failed> {
    if setting.prefill != Prefill::None {
        map.fill(FILLED);
    }
    let before = clock::monotonic_ns();
    if setting.prefill == Prefill::MemsetAndSync {
        map.sync().map_err(|error| Failed::system("cannot sync", error))?;
    }
    Ok(clock::monotonic_ns().saturating_sub(before))
}

/// Makes the file, with what is wanted in it and in the page cache.
fn prepare_file(options: &Options, setting: &Setting, content: Content) -> Result<File, Failed> {
    let file = nameless_file(options, WORKLOAD.name)?;
    let failed = |error| Failed::system("cannot prepare the file", error);
    let free = page_cache::free_space(&file).map_err(failed)?;
    // A store to a page that the disk has no room for is a signal, so some room is left.
    let needed = setting.len.0.saturating_add(setting.len.0 / 8);
    if free.0 < needed {
        return Err(Failed::System(format!(
            "the file needs {needed} bytes of free space and {} are there: choose another folder or a \
             smaller size",
            free.0
        )));
    }
    file.set_len(setting.len.0).map_err(failed)?;
    if content == Content::Sparse {
        return Ok(file);
    }
    let part = vec![PREWRITTEN; (1 << 20).min(setting.len.0 as usize)];
    let mut at = 0;
    while at < setting.len.0 {
        let len = part.len().min((setting.len.0 - at) as usize);
        file.write_all_at(&part[..len], at).map_err(failed)?;
        at += len as u64;
    }
    // Dirty pages cannot be dropped, and would be written back during the run.
    file.sync_all().map_err(failed)?;
    if content == Content::Dropped {
        page_cache::drop_cached(&file).map_err(failed)?;
    }
    Ok(file)
}

/// Whether every line is what it should be: 1 where the pattern stored, what was there before elsewhere.
fn check(bytes: &[AtomicU8], pattern: &Pattern, blocks: u64, before: u8) -> Result<(), Failed> {
    let stored = pattern.stored_lines(blocks);
    for (at, line) in bytes.chunks_exact(LINE).enumerate() {
        let is_stored = stored[at / 64] >> (at % 64) & 1 == 1;
        let first = if is_stored { STORED } else { before };
        let found = (line[0].load(Relaxed), line[LINE - 1].load(Relaxed));
        if found != (first, before) {
            return Err(Failed::Wrong(format!(
                "line {at} begins and ends with {found:?}, not {:?}",
                (first, before)
            )));
        }
    }
    Ok(())
}

/// Lines of a file that are read.
const SAMPLE: u64 = 1024;

/// Whether the file has what was stored if the mapping is shared, and what was there before if it is private.
fn check_file(file: &File, bytes: &[AtomicU8], setting: &Setting) -> Result<(), Failed> {
    let kept = if setting.content == Some(Content::Sparse) { 0 } else { PREWRITTEN };
    let mut random = SplitMix64::new(setting.seed);
    for _ in 0..SAMPLE {
        let line = random.below(setting.lines()) * LINE as u64;
        let mut found = [0];
        file.read_exact_at(&mut found, line)
            .map_err(|error| Failed::system("cannot read the file", error))?;
        let wanted = if setting.is_shared { bytes[line as usize].load(Relaxed) } else { kept };
        if found[0] != wanted {
            return Err(Failed::Wrong(format!("byte {line} of the file is {}, not {wanted}", found[0])));
        }
    }
    Ok(())
}

fn done(setting: &Setting, file: Option<&File>, cached: Option<Bytes>, measured: &Measured) -> Done {
    let Measured { map, prefill, sync_ns, access, accesses } = measured;
    let mut figures = Vec::new();
    let mut figure = |name, unit, better, value: u64| {
        figures.push(Figure::new(name, unit, better, value as f64));
    };
    for (name, count) in [("loads", accesses.loads), ("stores", accesses.stores)] {
        figure(name, "accesses", Better::Neither, count);
    }
    for (name, ns) in [
        ("map_wall", map.wall_ns),
        ("prefill_wall", prefill.wall_ns),
        ("msync_wall", *sync_ns),
        ("access_wall", access.wall_ns),
        ("access_cpu", access.cpu_ns),
    ] {
        figure(name, "ns", Better::Lower, ns);
    }
    for (minor, major, phase) in [
        ("map_minor_faults", "map_major_faults", map),
        ("prefill_minor_faults", "prefill_major_faults", prefill),
        ("access_minor_faults", "access_major_faults", access),
    ] {
        figure(minor, "faults", Better::Lower, phase.faults.minor);
        figure(major, "faults", Better::Lower, phase.faults.major);
    }
    if setting.populate != Populate::None && setting.prefill == Prefill::None {
        let faults = access.faults.minor + access.faults.major;
        figure("write_faults_after_populate", "faults", Better::Lower, faults);
    }
    if let Some(cached) = cached {
        figure("cached_before", "bytes", Better::Neither, cached.0);
    }
    let file_system = file.and_then(|file| page_cache::file_system(file).ok());
    let on = file_system.map_or(String::new(), |magic| format!(" on file system {magic:#x}"));
    Done {
        merit: Merit {
            name: "access time",
            unit: "ns",
            better: Better::Lower,
            value: access.wall_ns as f64 / (accesses.loads + accesses.stores).max(1) as f64,
        },
        working_set: setting.len,
        checksum: accesses.checksum(),
        latencies: None,
        hot_regions: Vec::new(),
        figures,
        generated: format!("{setting}{on}"),
    }
}

#[cfg(test)]
mod tests;
