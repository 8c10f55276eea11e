//! States of memory, made for a bench: movable memory in pieces, unmovable memory, page cache.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::fragment::spoiler::Spoiler;
use pagelab_contig::look::{LookOptions, look};
use pagelab_contig::readback::ReadBack;
use pagelab_formats::{buddyinfo, meminfo};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::frag;
use pagelab_model::seed::SplitMix64;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::map::{Advice, Mapping};

use super::files;

/// One state.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The share of the free memory that is left in pieces smaller than a huge page.
    pub target: f64,
    /// Base pages that are kept of each huge page's worth.
    pub keep: u64,
    /// The share of memory that pipes hold.
    pub unmovable: f64,
    /// The share of memory that is read into the page cache.
    pub cache: f64,
    /// The pieces go back once the cache is filled: page cache lies scattered, and most memory is free.
    pub released: bool,
    /// Seed of what is kept.
    pub seed: u64,
}

impl State {
    /// As words of a command line.
    pub fn words(&self) -> Vec<String> {
        let State { target, keep, unmovable, cache, released, seed } = self;
        let numbers = [target.to_string(), keep.to_string(), unmovable.to_string(), cache.to_string()];
        numbers.into_iter().chain([u8::from(*released).to_string(), seed.to_string()]).collect()
    }

    /// From words of a command line.
    pub fn parse(words: &[String]) -> State {
        let number = |at: usize| words[at].parse::<f64>().unwrap();
        State {
            target: number(0),
            keep: number(1) as u64,
            unmovable: number(2),
            cache: number(3),
            released: number(4) > 0.0,
            seed: number(5) as u64,
        }
    }
}

/// What keeps a state.
#[allow(dead_code, reason = "it is held, and dropped")]
pub struct Held {
    spoiler: Option<Spoiler>,
    maps: Vec<Mapping>,
    _pipes: Vec<(std::io::PipeReader, std::io::PipeWriter)>,
}

/// Left free while memory is filled.
const LEFT: u64 = 40 << 20;

fn meminfo(name: &str) -> u64 {
    let root = Root::live();
    Reader::new(&root).parse(paths::MEMINFO, meminfo::parse).unwrap().bytes(name).unwrap_or_default().0
}

/// Makes it. `least_available`: what stays available, in bytes.
pub fn make(state: &State, page: PageSize, huge: Bytes, disk: Option<PathBuf>, least_available: u64) -> Held {
    let total = meminfo("MemTotal");
    let bytes = (total as f64 * state.cache) as u64;
    let folder = disk.filter(|_| state.cache > 0.0);
    if let (Some(folder), true) = (&folder, state.released) {
        files::make(&folder.join("tree"), bytes);
    }
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let mut random = SplitMix64::new(state.seed);
    let pipes = unmovable(state, page, total, &mut random);
    let Some(folder) = folder else { return pieces(state, page, huge, pipes, least_available, &mut random) };
    if state.released {
        let held = pieces(state, page, huge, pipes, least_available, &mut random);
        files::read(&folder.join("tree"), bytes, &mut random);
        return Held { spoiler: None, maps: Vec::new(), ..held };
    }
    cache(&folder.join("fill"), bytes);
    pieces(state, page, huge, pipes, least_available, &mut random)
}

/// Breaks memory up, and holds the pieces.
fn pieces(
    state: &State,
    page: PageSize,
    huge: Bytes,
    pipes: Vec<(std::io::PipeReader, std::io::PipeWriter)>,
    least_available: u64,
    random: &mut SplitMix64,
) -> Held {
    let room = meminfo("MemAvailable").saturating_sub(least_available.max(2 * LEFT));
    let cached = meminfo("Cached");
    // Cache that is to stay is not to be reclaimed for it.
    let room = if state.cache > 0.0 { room.saturating_sub(cached) } else { room };
    // Without PAGEMAP_SCAN (6.7) each huge page is read back by all of smaps: too slow in a guest.
    if state.keep == 1 && ReadBack::open().name() == "PAGEMAP_SCAN" {
        let spoiler = fragment(state, least_available.max(2 * LEFT));
        return Held { spoiler: Some(spoiler), maps: Vec::new(), _pipes: pipes };
    }
    let regions = ((room as f64 * state.target) as u64) / huge.0;
    let mut maps = Vec::new();
    if regions > 0 {
        let mut map = Mapping::anonymous(Bytes(regions * huge.0), huge).unwrap();
        map.advise(0..regions * huge.0, Advice::NoHugePage).unwrap();
        map.touch(0..regions * huge.0).unwrap();
        let pages = huge.0 / page.bytes();
        for region in 0..regions {
            let mut kept: Vec<u64> = (0..state.keep).map(|_| random.below(pages)).collect();
            kept.sort_unstable();
            kept.dedup();
            let mut at = 0;
            for end in kept.iter().copied().chain([pages]) {
                if at < end {
                    let from = region * huge.0;
                    map.advise(from + at * page.bytes()..from + end * page.bytes(), Advice::DontNeed)
                        .unwrap();
                }
                at = end + 1;
            }
        }
        maps.push(map);
    }
    Held { spoiler: None, maps, _pipes: pipes }
}

/// What `pagelab fragment` does: one page is kept of as many blocks as the target takes.
fn fragment(state: &State, least_available: u64) -> Spoiler {
    let root = Root::live();
    let snapshot = look(&root, &LookOptions::default());
    let facts = Facts::of(&snapshot, None).unwrap();
    let order = snapshot.pmd_order;
    let shape = facts.shape(facts.way(), order);
    let mut spoiler = Spoiler::new(facts.way(), shape, state.seed, facts.page_size, None);
    let index = || {
        let buddy = Reader::new(&root).parse(paths::BUDDYINFO, buddyinfo::parse).unwrap();
        frag::unusable(buddy.zone(&facts.zone).unwrap(), order)
    };
    while index() < state.target && meminfo("MemAvailable") > least_available {
        if spoiler.spoil(8).unwrap() == 0 {
            break;
        }
    }
    spoiler
}

/// Fills memory with base pages, gives single pages of it back, and has pipes take them: kernel memory that
/// cannot be moved, spread over blocks. A guest's own; never on a host.
fn unmovable(
    state: &State,
    page: PageSize,
    total: u64,
    random: &mut SplitMix64,
) -> Vec<(std::io::PipeReader, std::io::PipeWriter)> {
    if state.unmovable <= 0.0 {
        return Vec::new();
    }
    const WATERMARK: &str = "/proc/sys/vm/min_free_kbytes";
    let many = rustix::process::Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, many).unwrap();
    let before = std::fs::read_to_string(WATERMARK).unwrap();
    std::fs::write(WATERMARK, "2048").unwrap();
    let wanted = (total as f64 * state.unmovable) as u64 / page.bytes();
    let len = meminfo("MemAvailable").saturating_sub(LEFT) / page.bytes() * page.bytes();
    let mut map = Mapping::anonymous(Bytes(len), Bytes(page.bytes())).unwrap();
    map.advise(0..len, Advice::NoHugePage).unwrap();
    let step = 4 << 20;
    let mut filled = 0;
    while filled + step <= len && meminfo("MemFree") > LEFT {
        map.touch(filled..filled + step).unwrap();
        filled += step;
    }
    let pages = filled / page.bytes();
    for _ in 0..wanted.min(pages) {
        let at = random.below(pages) * page.bytes();
        map.advise(at..at + page.bytes(), Advice::DontNeed).unwrap();
    }
    let mut pipes = Vec::new();
    let mut taken = 0;
    let text = vec![7u8; page.bytes() as usize];
    while taken < wanted {
        let (reader, mut writer) = std::io::pipe().unwrap();
        // F_SETPIPE_SZ by way of a file descriptor is not in std: many small pipes do as well.
        let _ = writer.as_fd();
        for _ in 0..16 {
            writer.write_all(&text).unwrap();
            taken += 1;
        }
        pipes.push((reader, writer));
    }
    drop(map);
    std::fs::write(WATERMARK, before.trim()).unwrap();
    pipes
}

fn cache(path: &std::path::Path, bytes: u64) {
    let piece = vec![1u8; 1 << 20];
    let has = std::fs::metadata(path).map(|meta| meta.len()).unwrap_or(0);
    if has < bytes {
        let mut file = File::create(path).unwrap();
        for _ in 0..bytes >> 20 {
            file.write_all(&piece).unwrap();
        }
        file.sync_all().unwrap();
    }
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0u8; 1 << 20];
    let mut left = bytes >> 20;
    while left > 0 && file.read(&mut buffer).unwrap() > 0 {
        left -= 1;
    }
}
