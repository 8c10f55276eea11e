//! Tests of the map against the census of the same scan, frame by frame.

use std::path::Path;

use super::*;
use crate::root::Root;
use pagelab_model::{NodeId, UnlistedFree};

/// Pages of each class by zone, of a map whose zones do not interleave.
fn by_zone(map: &PageMap) -> Vec<[u64; PageClass::COUNT]> {
    let mut counts = vec![[0; PageClass::COUNT]; map.layout.zones.len()];
    for (first, classes) in map.spans() {
        for (at, class) in classes.iter().enumerate() {
            let frame = Pfn(first.0 + at as u64);
            let zone =
                map.layout.zones.iter().rposition(|z| z.frames.first <= frame && frame < z.frames.end());
            counts[zone.unwrap()][class.index()] += 1;
        }
    }
    counts
}

fn check(root: &Root, off_lists: UnlistedFree) -> PageMapScan {
    let reader = Reader::new(root);
    let options = CensusOptions { off_lists, ..CensusOptions::for_page_map(&reader, None).0 };
    let scan = scan_with_counts(&reader, &options).unwrap();
    assert_eq!(scan.map.classes.len() as u64, scan.map.layout.count_frames());
    let counts = by_zone(&scan.map);
    for (zone, counts) in scan.map.layout.zones.iter().zip(counts) {
        let census = scan.census.zones.iter().find(|other| other.key == zone.key).unwrap();
        for class in PageClass::ALL.into_iter().filter(|class| *class != PageClass::Hole) {
            let counted: u64 =
                census.blocks.iter().map(|(_, block)| u64::from(block.pages_of_class(class))).sum();
            let found = counts[class.index()];
            match class {
                // The census leaves out blocks outside of memory, where frames may be reserved.
                PageClass::Reserved => assert!(found >= counted, "{:?}: {found} {counted}", zone.key),
                _ => assert_eq!(found, counted, "{:?} {}", zone.key, class.name()),
            }
        }
    }
    scan
}

fn fixture(name: &str) -> Root {
    Root::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name)).unwrap()
}

#[test]
fn maps_of_saved_machines_count_as_their_census() {
    for name in [
        "guest-6.1-128m.tar.zst",
        "guest-6.1-kernelcore.tar.zst",
        "guest-6.12-2nodes.tar.zst",
        "guest-6.12-hugetlb.tar.zst",
        "host-6.18-vm.tar.zst",
    ] {
        let root = fixture(name);
        for off_lists in [UnlistedFree::Unknown, UnlistedFree::None, UnlistedFree::Pages(1 << 18)] {
            let scan = check(&root, off_lists);
            assert!(scan.map.classes.contains(&PageClass::Free), "{name}");
            assert!(scan.counts_after.is_none() && scan.counts_before.buddyinfo.is_ok());
        }
    }
}

#[test]
fn a_map_of_this_machine_counts_as_its_census() {
    let root = Root::live();
    if root.open_regular_file(paths::KPAGEFLAGS).is_err() {
        eprintln!("skipped: kpageflags-unreadable: not permitted here");
        return;
    }
    let scan = check(&root, UnlistedFree::None);
    assert!(scan.counts_after.is_some() && scan.map.started_ns > 0);
    assert!(scan.map.layout.blocks.iter().all(|block| block.frames.count > Pages(0)));
}

#[test]
fn a_tree_whose_zones_claim_more_than_there_is_takes_no_memory_for_it() {
    let zone = |spanned: u64| {
        format!(
            "Node 0, zone Normal\n  pages free 1\n spanned {spanned}\n present 1\n managed 1\n start_pfn: 0\n"
        )
    };
    let tree = crate::fake_tree::FakeTree::new(&[
        ("/proc/zoneinfo", &zone(1 << 29)),
        ("/proc/kpageflags", "12345678"),
    ]);
    let look = |tree: &crate::fake_tree::FakeTree| {
        let root = tree.root();
        let reader = Reader::new(&root);
        let (options, _) = CensusOptions::for_page_map(&reader, None);
        scan_page_map(&reader, &options).unwrap_err()
    };
    let cut = look(&tree);
    assert!(cut.detail.contains("truncated at byte 8"), "{cut:?}");
    tree.add_file("/proc/zoneinfo", zone(1 << 40).as_bytes());
    let large = look(&tree);
    assert!(large.detail.contains("a map is limited"), "{large:?}");
}

#[test]
fn deferred_frames_and_holes_are_told_as_the_census_tells_them() {
    let zone =
        "Node 0, zone Normal\n  pages free 1\n spanned 2048\n present 1536\n managed 1024\n start_pfn: 0\n";
    let tree = crate::fake_tree::FakeTree::new(&[("/proc/zoneinfo", zone), ("/proc/buddyinfo", "")]);
    let words = |pages: usize, flags: u64| std::iter::repeat_n(flags, pages).flat_map(u64::to_ne_bytes);
    let free = 1 << 10;
    let bytes: Vec<u8> =
        words(512, free).chain(words(512, 0)).chain(words(512, free)).chain(words(512, 0)).collect();
    tree.add_file("/proc/kpageflags", &bytes);
    let root = tree.root();
    let reader = Reader::new(&root);
    let options =
        CensusOptions { off_lists: UnlistedFree::Pages(512), ..CensusOptions::for_page_map(&reader, None).0 };
    let map = scan_page_map(&reader, &options).unwrap();
    let blocks: Vec<PageClass> = map.classes.chunks(512).map(|block| block[0]).collect();
    let [free, hole, deferred] = [PageClass::Free, PageClass::Hole, PageClass::Deferred];
    assert_eq!(blocks, [free, hole, free, deferred]);
    assert!(map.classes.chunks(512).all(|block| block.iter().all(|class| *class == block[0])));
    assert_eq!(map.layout.zones[0].key.node, NodeId(0));
}

/// Frames below 1 MiB that the firmware keeps have a page structure and are reserved; what the kernel shows
/// without a flag, or as NOPAGE, is a hole.
#[test]
fn frames_outside_of_memory_are_called_what_the_kernel_calls_them() {
    let zone =
        "Node 0, zone DMA\n  pages free 1\n spanned 2047\n present 1182\n managed 1024\n start_pfn: 1\n";
    let iomem = "00001000-0009fbff : System RAM\n0009fc00-000fffff : Reserved\n\
                 00200000-005fffff : System RAM\n";
    let tree = crate::fake_tree::FakeTree::new(&[
        ("/proc/zoneinfo", zone),
        ("/proc/buddyinfo", ""),
        ("/proc/iomem", iomem),
    ]);
    let (reserved, no_page, free) = (1u64 << 32, 1u64 << 20, 1u64 << 10);
    let flags = |pfn: u64| match pfn {
        0..0x100 => reserved,
        0x100..0x180 => 0,
        0x180..0x200 => no_page,
        0x200..0x600 => free,
        _ => reserved,
    };
    let bytes: Vec<u8> = (0..0x800).flat_map(|pfn| flags(pfn).to_ne_bytes()).collect();
    tree.add_file("/proc/kpageflags", &bytes);
    let root = tree.root();
    let reader = Reader::new(&root);
    let (options, _) = CensusOptions::for_page_map(&reader, None);
    let scan = scan_with_counts(&reader, &options).unwrap();
    for (first, classes) in scan.map.spans() {
        for (pfn, &class) in (first.0..).zip(classes) {
            let expected = match pfn {
                0..0x100 | 0x600.. => PageClass::Reserved,
                0x100..0x200 => PageClass::Hole,
                _ => PageClass::Free,
            };
            assert_eq!(class, expected, "frame {pfn:#x}");
        }
    }
    // The block at 0x600 has no memory, and is none of the census.
    let numbers: Vec<u64> = scan.census.zones[0].blocks.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

/// The flags of a live machine are the oracle: reserved frames below 1 MiB do not change.
#[test]
fn reserved_frames_of_this_machine_are_reserved_in_the_map() {
    let root = Root::live();
    let Ok(file) = root.open_regular_file(paths::KPAGEFLAGS) else {
        eprintln!("skipped: kpageflags-unreadable: not permitted here");
        return;
    };
    let reader = Reader::new(&root);
    let (options, _) = CensusOptions::for_page_map(&reader, None);
    let map = scan_page_map(&reader, &options).unwrap();
    let frames = (1 << 20) / options.page_size.bytes();
    let mut reserved = 0;
    for (first, classes) in map.spans() {
        for (pfn, &class) in (first.0..frames).zip(classes) {
            let mut word = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, pfn * 8).unwrap();
            let flags = pagelab_model::PageFlags(u64::from_ne_bytes(word));
            let is_reserved = flags.has_any(pagelab_model::PageFlags::RESERVED);
            assert_eq!(class == PageClass::Reserved, is_reserved, "frame {pfn:#x}: {class:?} {flags:?}");
            reserved += u64::from(is_reserved);
        }
    }
    assert!(reserved > 0 || cfg!(not(target_arch = "x86_64")), "x86 reserves the first megabyte");
}
