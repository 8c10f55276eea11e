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
            assert_eq!(counts[class.index()], counted, "{:?} {}", zone.key, class.name());
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
    assert!(large.detail.contains("a map has"), "{large:?}");
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
