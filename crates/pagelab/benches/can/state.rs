//! Memory states of a benchmark: fragmented movable memory, unmovable memory, page cache.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use pagelab_contig::fragment::fragmenter::Fragmenter;
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::memory_snapshot::{SnapshotOptions, take_snapshot};
use pagelab_contig::readback::HugeReadback;
use pagelab_formats::{buddyinfo, meminfo};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::fragmentation_index;
use pagelab_model::random::SplitMix64;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::mapping::{Advice, Mapping};

use super::files;

/// One state.
#[derive(Clone, Copy, Debug)]
pub struct MemoryState {
    /// The share of the free memory that is left in pieces smaller than a huge page.
    pub fragmented_share: f64,
    /// Base pages that are kept of each huge page's worth.
    pub pages_kept: u64,
    /// The share of memory that pipes hold.
    pub unmovable_share: f64,
    /// The share of memory that is read into the page cache.
    pub cache_share: f64,
    /// The pieces are freed after the cache is filled: page cache is scattered, and most memory is free.
    pub is_released: bool,
    /// Seed of the kept pages.
    pub seed: u64,
}

impl MemoryState {
    /// As words of a command line.
    pub fn command_arguments(&self) -> Vec<String> {
        let MemoryState {
            fragmented_share: target,
            pages_kept: keep,
            unmovable_share: unmovable,
            cache_share: cache,
            is_released: released,
            seed,
        } = self;
        let numbers = [target.to_string(), keep.to_string(), unmovable.to_string(), cache.to_string()];
        numbers.into_iter().chain([u8::from(*released).to_string(), seed.to_string()]).collect()
    }

    /// From words of a command line.
    pub fn parse(arguments: &[String]) -> MemoryState {
        let number = |at: usize| arguments[at].parse::<f64>().unwrap();
        MemoryState {
            fragmented_share: number(0),
            pages_kept: number(1) as u64,
            unmovable_share: number(2),
            cache_share: number(3),
            is_released: number(4) > 0.0,
            seed: number(5) as u64,
        }
    }
}

/// What keeps a state.
#[allow(dead_code, reason = "it is held, and dropped")]
pub struct HeldMemory {
    fragmenter: Option<Fragmenter>,
    maps: Vec<Mapping>,
    _pipes: Vec<(std::io::PipeReader, std::io::PipeWriter)>,
}

/// Left free while memory is filled.
const FREE_BYTES_LEFT: u64 = 40 << 20;

fn read_meminfo(name: &str) -> u64 {
    let root = Root::live();
    Reader::new(&root).parse(paths::MEMINFO, meminfo::parse).unwrap().bytes(name).unwrap_or_default().0
}

/// Makes it. `available_min`: what stays available, in bytes.
pub fn make_state(
    state: &MemoryState,
    page: PageSize,
    huge: Bytes,
    disk: Option<PathBuf>,
    available_min: u64,
) -> HeldMemory {
    let total = read_meminfo("MemTotal");
    let bytes = (total as f64 * state.cache_share) as u64;
    let folder = disk.filter(|_| state.cache_share > 0.0);
    if let (Some(folder), true) = (&folder, state.is_released) {
        files::create_files(&folder.join("tree"), bytes);
    }
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let mut random = SplitMix64::new(state.seed);
    let pipes = allocate_unmovable(state, page, total, &mut random);
    let Some(folder) = folder else {
        return hold_fragments(state, page, huge, pipes, available_min, &mut random);
    };
    if state.is_released {
        let held = hold_fragments(state, page, huge, pipes, available_min, &mut random);
        files::read_files(&folder.join("tree"), bytes, &mut random);
        return HeldMemory { fragmenter: None, maps: Vec::new(), ..held };
    }
    fill_page_cache(&folder.join("fill"), bytes);
    hold_fragments(state, page, huge, pipes, available_min, &mut random)
}

/// Breaks memory up, and holds the pieces.
fn hold_fragments(
    state: &MemoryState,
    page: PageSize,
    huge: Bytes,
    pipes: Vec<(std::io::PipeReader, std::io::PipeWriter)>,
    least_available: u64,
    random: &mut SplitMix64,
) -> HeldMemory {
    let room = read_meminfo("MemAvailable").saturating_sub(least_available.max(2 * FREE_BYTES_LEFT));
    let cached = read_meminfo("Cached");
    // Cache that is to stay is not to be reclaimed for it.
    let room = if state.cache_share > 0.0 { room.saturating_sub(cached) } else { room };
    // Without PAGEMAP_SCAN (6.7) each huge page is read back by all of smaps: too slow in a guest.
    if state.pages_kept == 1 && HugeReadback::open().name() == "PAGEMAP_SCAN" {
        let fragmenter = fragment_memory(state, least_available.max(2 * FREE_BYTES_LEFT));
        return HeldMemory { fragmenter: Some(fragmenter), maps: Vec::new(), _pipes: pipes };
    }
    let regions = ((room as f64 * state.fragmented_share) as u64) / huge.0;
    let mut maps = Vec::new();
    if regions > 0 {
        let mut map = Mapping::anonymous(Bytes(regions * huge.0), huge).unwrap();
        map.advise(0..regions * huge.0, Advice::NoHugePage).unwrap();
        map.touch_for_writing(0..regions * huge.0).unwrap();
        let pages = huge.0 / page.bytes();
        for region in 0..regions {
            let mut kept: Vec<u64> = (0..state.pages_kept).map(|_| random.next_below(pages)).collect();
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
    HeldMemory { fragmenter: None, maps, _pipes: pipes }
}

/// What `pagelab fragment` does: one page is kept of as many blocks as the target takes.
fn fragment_memory(state: &MemoryState, available_min: u64) -> Fragmenter {
    let root = Root::live();
    let snapshot = take_snapshot(&root, &SnapshotOptions::default());
    let facts = FragmentInputs::from_snapshot(&snapshot, None).unwrap();
    let order = snapshot.pmd_order;
    let shape = facts.keep_pattern(facts.fill_method(), order);
    let mut fragmenter = Fragmenter::new(facts.fill_method(), shape, state.seed, facts.page_size, None);
    let index = || {
        let buddy = Reader::new(&root).parse(paths::BUDDYINFO, buddyinfo::parse).unwrap();
        fragmentation_index::unusable_index(buddy.zone(&facts.zone).unwrap(), order)
    };
    while index() < state.fragmented_share && read_meminfo("MemAvailable") > available_min {
        if fragmenter.fragment_units(8).unwrap() == 0 {
            break;
        }
    }
    fragmenter
}

/// Fills memory with base pages, gives single pages of it back, and has pipes take them: kernel memory that
/// cannot be moved, spread over blocks. A guest's own; never on a host.
fn allocate_unmovable(
    state: &MemoryState,
    page: PageSize,
    total: u64,
    random: &mut SplitMix64,
) -> Vec<(std::io::PipeReader, std::io::PipeWriter)> {
    if state.unmovable_share <= 0.0 {
        return Vec::new();
    }
    const WATERMARK: &str = "/proc/sys/vm/min_free_kbytes";
    let many = rustix::process::Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, many).unwrap();
    let before = std::fs::read_to_string(WATERMARK).unwrap();
    std::fs::write(WATERMARK, "2048").unwrap();
    let wanted = (total as f64 * state.unmovable_share) as u64 / page.bytes();
    let len = read_meminfo("MemAvailable").saturating_sub(FREE_BYTES_LEFT) / page.bytes() * page.bytes();
    let mut map = Mapping::anonymous(Bytes(len), Bytes(page.bytes())).unwrap();
    map.advise(0..len, Advice::NoHugePage).unwrap();
    let step = 4 << 20;
    let mut filled = 0;
    while filled + step <= len && read_meminfo("MemFree") > FREE_BYTES_LEFT {
        map.touch_for_writing(filled..filled + step).unwrap();
        filled += step;
    }
    let pages = filled / page.bytes();
    for _ in 0..wanted.min(pages) {
        let at = random.next_below(pages) * page.bytes();
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

fn fill_page_cache(path: &std::path::Path, bytes: u64) {
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
