//! Tests of profiles from the samples of real files.

use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_formats::perf_data::{Event, EventInfo, FileInfo, Mapping, MemoryNode, PerfEventAttr, Sample};
use pagelab_model::profile::{CellCounts, ImageStart, MappingKind, ProfileSource, UnseenReason};
use pagelab_model::{Bytes, PageSize, TlbProfile};

use super::tlb_info::{self, TlbInfo, UnusableReason};
use super::{SampleCollector, SamplingOptions, file};

/// A file of the corpus; `None`, with a message, if it does not exist.
fn corpus_file(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let folder = std::env::var_os("PAGELAB_CORPUS").map_or(beside, PathBuf::from).join("perf");
    if folder.is_dir() {
        return Some(folder.join(name));
    }
    let line = format!("skipped: corpus-absent: {} is not there\n", folder.display());
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}

fn read_profile(path: &Path) -> Result<TlbProfile, String> {
    file::read_profile(path, SamplingOptions::new(PageSize::DEFAULT, None)).map_err(|error| error.to_string())
}

const GOOGLE: &str = "google_pdc_intel_skx_loadlatency_14samples.perf.data";
const NUMATOP: &str = "numatop_fork.perf.data";
const FIBO: &str = "linux-perf-data_fibo.compressed2.pipe.data";
/// The one sample of GOOGLE that missed, and its process.
const MISSED_SAMPLE: (u64, u32) = (0x4482_53ad_3300, 17_564);

#[test]
fn one_sample_missed_and_stands_for_its_period() {
    let Some(path) = corpus_file(GOOGLE) else { return };
    let found = read_profile(&path).unwrap();
    let missed: Vec<_> = found.images.iter().filter(|image| image.misses > 0).collect();
    assert_eq!((missed.len(), missed[0].pid, missed[0].misses), (1, MISSED_SAMPLE.1, 10_009));
    let of: Vec<_> = missed[0].mappings.iter().filter(|of| of.cells.misses.iter().any(|&n| n > 0)).collect();
    assert_eq!((of.len(), &of[0].key.kind), (1, &MappingKind::Placed));
    let page = PageSize::DEFAULT.bytes();
    assert_eq!(
        (&of[0].cells.at[..], &of[0].cells.misses[..]),
        (&[MISSED_SAMPLE.0 / page][..], &[10_009][..])
    );
    assert!(of[0].start <= MISSED_SAMPLE.0 && MISSED_SAMPLE.0 < of[0].start + of[0].bytes.0);
    assert!(missed[0].program.path.ends_with("mmanager"), "{}", missed[0].program.path);
    let notes = found.notes.join("\n");
    assert!(notes.contains("1 of 14 samples missed"), "{notes}");
    assert!(notes.contains("oxco15.prod.google.com, Linux 4.15.0-smp-923.44.0.0"), "{notes}");
    // The other samples of programs are there too, as pages that were touched and did not miss.
    let cells: usize = found.images.iter().flat_map(|of| &of.mappings).map(|of| of.cells.at.len()).sum();
    assert_eq!(cells, 6, "14 samples, 8 of them at addresses of the kernel");
}

#[test]
fn texts_of_perf_give_the_same_pages_as_its_files() {
    let pages = |found: &TlbProfile| {
        let mut pages: Vec<(u64, bool)> = found
            .images
            .iter()
            .flat_map(|image| &image.mappings)
            .flat_map(|of| {
                let base = if of.key.kind == MappingKind::Placed { 0 } else { of.start };
                let cells = of.cells.at.iter().zip(&of.cells.misses);
                cells.map(move |(at, &misses)| (base + at * of.grain.0, misses > 0))
            })
            .collect();
        pages.sort_unstable();
        pages
    };
    for (name, user) in [(GOOGLE, 6), (NUMATOP, 2)] {
        let Some(path) = corpus_file(name) else { return };
        let binary = read_profile(&path).unwrap();
        assert_eq!(pages(&binary).len(), user, "{name}: {:#?}", binary.images);
        for text in ["script", "memreport"] {
            let text = read_profile(&path.with_file_name(format!("{name}.{text}.txt"))).unwrap();
            assert_eq!(pages(&text), pages(&binary), "{name}");
        }
    }
}

#[test]
fn a_range_is_one_mapping_and_what_lies_outside_is_not_seen() {
    let Some(path) = corpus_file(GOOGLE) else { return };
    let base = 0x4482_0000_0000;
    let options = SamplingOptions::new(PageSize::DEFAULT, Some(base..base + (1 << 32)));
    let found = file::read_profile(&path, options).unwrap();
    let image = found.images.iter().find(|image| image.pid == MISSED_SAMPLE.1).unwrap();
    assert_eq!((image.mappings[0].start, image.mappings[0].bytes), (base, Bytes(1 << 32)));
    assert_eq!(image.mappings[0].cells.misses, [10_009]);
    let others =
        found.images.iter().filter(|image| image.pid != MISSED_SAMPLE.1).flat_map(|image| &image.mappings);
    let unseen: Vec<_> = others.flat_map(|of| &of.unseen).map(|of| of.why).collect();
    assert_eq!(unseen, [UnseenReason::OutOfRange; 5]);
    assert!(found.notes.iter().any(|note| note.starts_with("5 samples are outside")), "{:?}", found.notes);
}

#[test]
fn a_file_whose_addresses_are_all_0_is_refused_with_that_reason() {
    let Some(path) = corpus_file(FIBO) else { return };
    let why = read_profile(&path).unwrap_err();
    assert!(why.contains("data address 0") && why.contains("perf mem record"), "{why}");
}

#[test]
fn published_regions_are_cells_of_2_mib() {
    let Some(path) = corpus_file("24623_all_regions_before.txt") else { return };
    let found = read_profile(&path).unwrap();
    let of = &found.images[0].mappings[0];
    assert_eq!((of.grain, of.cells.at.len()), (Bytes(2 << 20), 498), "a line each");
    assert!(of.start >= 0x187_8000_0000 && of.start + of.bytes.0 <= 0x187_c000_0000, "{:#x}", of.start);
    let top = of.cells.at.iter().zip(&of.cells.misses).max_by_key(|(_, misses)| **misses).unwrap();
    assert_eq!((top.0 * of.grain.0, *top.1), (0x187_b500_0000, 4257));
}

/// Synthetic events, for cases that the real files do not have.
struct SyntheticEvents {
    file_info: FileInfo,
    collector: SampleCollector,
}

const SAMPLE_TYPE: u64 = tlb_info::ADDR | tlb_info::DATA_SRC;
const MISS: u64 = 0x14 << 26;
const HIT: u64 = 0x1a << 26;

impl SyntheticEvents {
    fn new(name: &str, arch: &str) -> SyntheticEvents {
        let attr = PerfEventAttr {
            kind: 4,
            period_or_frequency: 7,
            sample_type: SAMPLE_TYPE,
            ..PerfEventAttr::default()
        };
        let events = vec![EventInfo { name: name.to_owned(), attr }];
        let file_info = FileInfo { arch: arch.to_owned(), events, ..FileInfo::default() };
        SyntheticEvents {
            file_info,
            collector: SampleCollector::new(SamplingOptions::new(PageSize::DEFAULT, None)),
        }
    }

    fn add_mapping(&mut self, pid: u32, start: u64, bytes: u64, name: &str, offset: u64) {
        let name = name.to_owned();
        let mapping = Mapping { pid, start, bytes, offset, name, build_id: None, is_kernel: false };
        self.collector.add_event(&self.file_info, Event::Mapped(mapping));
    }

    fn add_access(&mut self, pid: u32, address: u64, data_src: u64) {
        self.add_sample(Sample { pid, address, data_src: Some(data_src), ..Sample::default() });
    }

    fn add_sample(&mut self, sample: Sample) {
        self.collector.add_event(&self.file_info, Event::Sample(sample));
    }

    fn finish_profile(self) -> TlbProfile {
        self.collector.finish(ProfileSource::PerfData, &self.file_info)
    }
}

#[test]
fn a_place_is_kept_through_growth_forks_and_execs() {
    let mut events = SyntheticEvents::new("cpu/mem-loads/P", "x86_64");
    events.add_mapping(1, 0x40_0000, 0x4000, "/bin/a", 0x1000);
    events.add_mapping(1, 0x60_0000, 0x2000, "[heap]", 0);
    events.add_access(1, 0x60_1000, MISS);
    events.add_mapping(1, 0x60_0000, 0x9000, "[heap]", 0);
    events.add_access(1, 0x60_8fff, MISS);
    events.add_access(1, 0x40_1234, MISS);
    events.add_mapping(1, 0x7000_0000, 0x2000, "//anon", 0);
    events.add_mapping(1, 0x7000_2000, 0x2000, "//anon", 0);
    events.add_access(1, 0x7000_2010, HIT);
    events
        .collector
        .add_event(&events.file_info, Event::Forked { pid: 2, parent: 1, inherits_mappings: true });
    events.add_mapping(2, 0x7000_0000, 0x1000, "/lib/b", 0);
    events.add_access(2, 0x7000_0000, MISS);
    events.add_access(1, 0x7000_0000, MISS);
    let name = "c".to_owned();
    events.collector.add_event(&events.file_info, Event::Named { pid: 2, tid: 2, name, is_exec: true });
    events.add_access(2, 0x40_1234, MISS);
    let found = events.finish_profile();
    let of = |image: usize, kind: &MappingKind| {
        let image = &found.images[image];
        let of = image.mappings.iter().find(|of| of.key.kind == *kind).unwrap();
        (of.start, of.bytes.0, of.cells.at.clone(), of.cells.misses.clone())
    };
    assert_eq!(of(0, &MappingKind::Heap), (0x60_0000, 0x9000, vec![1, 8], vec![7, 7]));
    let file = MappingKind::File("/bin/a".to_owned());
    assert_eq!(of(0, &file), (0x3f_f000, 0x4000, vec![2], vec![7]), "the file's page of 0x401234");
    assert_eq!(of(0, &MappingKind::Placed), (0x7000_0000, 0x4000, vec![0x7_0000, 0x7_0002], vec![7, 0]));
    assert_eq!(of(1, &MappingKind::File("/lib/b".to_owned())).2, [0]);
    assert_eq!(of(2, &MappingKind::Placed).2, [0x401], "an exec has nothing of the old image");
    let begun: Vec<_> = found.images.iter().map(|of| (of.begun, of.parent)).collect();
    assert_eq!(
        begun,
        [(ImageStart::Attached, None), (ImageStart::Forked, Some(0)), (ImageStart::Executed, Some(1))]
    );
    assert_eq!(found.images[0].misses, 28);
}

#[test]
fn what_says_nothing_counts_nowhere_and_is_told() {
    let mut events = SyntheticEvents::new("cpu/mem-loads/P", "x86_64");
    events.add_access(1, 0, MISS);
    events.add_access(1, 0x1000, 1 << 26);
    assert!(
        events
            .collector
            .explain_unusable()
            .unwrap()
            .contains("1 have the data address 0 and 1 have no TLB data")
    );
    events.add_access(1, 0xffff_8000_0000_0000, MISS);
    events.add_access(1, 0x1000, MISS);
    assert_eq!(events.collector.explain_unusable(), None);
    let found = events.finish_profile();
    assert_eq!(found.images.iter().map(|of| of.misses).sum::<u64>(), 7);
    let notes = found.notes.join("\n");
    for note in ["1 samples have no address", "1 samples do not say", "1 samples are in kernel memory"] {
        assert!(notes.contains(note), "{notes}");
    }
    for (config, why) in [(2, "page faults"), (9, "no TLB data")] {
        let mut events = SyntheticEvents::new("e", "x86_64");
        let attr = PerfEventAttr { kind: 1, config, sample_type: tlb_info::ADDR, ..PerfEventAttr::default() };
        events.file_info.events[0].attr = attr;
        events.add_access(1, 0x1000, MISS);
        assert!(events.collector.explain_unusable().unwrap().contains(why), "{config}");
    }
}

#[test]
fn on_arm_a_walker_hit_is_no_walk_and_an_access_counts_once() {
    let walker_hit = 0x22 << 26;
    for (arch, misses) in [("x86_64", 7), ("aarch64", 0)] {
        let mut events = SyntheticEvents::new("dummy", arch);
        events.add_access(1, 0x1000, walker_hit);
        assert_eq!(events.finish_profile().images[0].misses, misses, "{arch}");
    }
    let mut tagged_events = SyntheticEvents::new("memory", "aarch64");
    tagged_events.add_access(1, 0x3400_0000_0000_1000, 0x24 << 26);
    assert_eq!(
        tagged_events.finish_profile().images[0].mappings[0].start,
        0x1000,
        "the tag is no part of the address"
    );
    let classify = |name, all| tlb_info::classify_by_name(name, true, all);
    assert_eq!(classify("tlb-access", false), TlbInfo::Unusable(UnusableReason::Duplicate));
    assert_eq!(classify("tlb-miss:u", true), TlbInfo::Unusable(UnusableReason::Duplicate));
    assert_eq!(classify("tlb-miss", false), TlbInfo::DataSource { spe: true });
}

#[test]
fn events_that_count_misses_need_no_column_and_nodes_come_from_physical_addresses() {
    let mut events = SyntheticEvents::new("cpu/event=0xd0,umask=0x11/pp", "x86_64");
    events.file_info.cpuid = "GenuineIntel,6,85,4".to_owned();
    events.file_info.events[0].attr.config = 0x11d0;
    events.file_info.events[0].attr.sample_type = tlb_info::ADDR;
    events.file_info.block_bytes = 128 << 20;
    events.file_info.nodes = vec![MemoryNode { node: 3, blocks: vec![0b10] }];
    let sample =
        |address, physical| Sample { pid: 1, address, physical_address: Some(physical), ..Sample::default() };
    events.add_sample(sample(0x1000, 200 << 20));
    events.add_sample(sample(0x2000, 300 << 20));
    events.add_sample(Sample { period: Some(100), ..sample(0x2000, 0) });
    let found = events.finish_profile();
    let cells = &found.images[0].mappings[0].cells;
    assert_eq!((&cells.misses[..], &cells.node[..]), (&[7, 107][..], &[3, CellCounts::NO_NODE][..]));
}
