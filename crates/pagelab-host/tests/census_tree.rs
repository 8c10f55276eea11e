//! Tests of the census of saved trees: holes, deferred memory, nodes, and truncated, endless or absent files.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{
    Absence, AbsenceReason, Census, NodeId, Order, PageClass, PageFlags, PageSize, Pages, Pfn, UnlistedFree,
    ZoneEntry, ZoneKey, Zoneinfo,
};

const BLOCK: u64 = 512;
const FREE: PageFlags = PageFlags::BUDDY;
const NONE: PageFlags = PageFlags(0);

fn zone(node: u32, name: &str, start: u64, [spanned, present, managed]: [u64; 3]) -> ZoneEntry {
    let mut zone = ZoneEntry::empty(ZoneKey { node: NodeId(node), zone: name.to_owned() });
    zone.start = Some(Pfn(start));
    [zone.spanned, zone.present, zone.managed] = [spanned, present, managed].map(|pages| Some(Pages(pages)));
    zone
}

fn write(tree: &Path, path: &str, bytes: &[u8]) {
    let path = tree.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn flags(tree: &Path, runs: &[(u64, PageFlags)]) {
    let words = runs.iter().flat_map(|&(pages, flags)| std::iter::repeat_n(flags.0, pages as usize));
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    write(tree, "proc/kpageflags", &bytes);
}

fn take_census_of_tree(tree: &Path, zones: &[ZoneEntry], pageblock_order: u8) -> Result<Census, Absence> {
    take_with(tree, zones, pageblock_order, UnlistedFree::Unknown)
}

fn take_with(
    tree: &Path,
    zones: &[ZoneEntry],
    pageblock_order: u8,
    off_lists: UnlistedFree,
) -> Result<Census, Absence> {
    let root = Root::open(tree).unwrap();
    let reader = Reader::new(&root);
    let zoneinfo = Zoneinfo { nodes: Vec::new(), zones: zones.to_vec() };
    let options = CensusOptions {
        off_lists,
        ..CensusOptions::new(PageSize::DEFAULT, Order(pageblock_order), Order(9), 11)
    };
    let found = take_census(&root, &reader, &zoneinfo, &options);
    let malformed = found.as_ref().is_err_and(|absence| absence.why == AbsenceReason::Malformed);
    assert_eq!(!reader.problems().is_empty(), malformed, "{found:?}");
    found
}

/// Blocks of one zone as index and the classes it holds.
fn classes(census: &Census, zone: usize) -> Vec<(u64, Vec<PageClass>)> {
    let held = |counts: &pagelab_model::PageblockCounts| {
        PageClass::ALL.into_iter().filter(|&class| counts.pages_of_class(class) > 0).collect()
    };
    census.zones[zone].blocks.iter().map(|(index, counts)| (*index, held(counts))).collect()
}

#[test]
fn memory_blocks_and_iomem_tell_holes_from_unknown_pages() {
    use PageClass::{Free, Hole, Unknown};
    let tree = tempfile::tempdir().unwrap();
    flags(tree.path(), &[(8 * BLOCK, FREE), (4 * BLOCK, NONE), (4 * BLOCK, FREE)]);
    let zones = [zone(0, "Normal", 0, [16 * BLOCK, 12 * BLOCK, 12 * BLOCK])];
    let all = |from: u64, to: u64, class| (from..to).map(move |index| (index, vec![class]));
    // Without a map, the hole is the spanned memory that is not present.
    let found = take_census_of_tree(tree.path(), &zones, 9).unwrap();
    assert_eq!(classes(&found, 0), all(0, 8, Free).chain(all(12, 16, Free)).collect::<Vec<_>>());
    assert_eq!(found.zones[0].blocks_total, 12);
    // iomem: half of the pages without flags are memory.
    let frame = |block: u64| (block * BLOCK) << 12;
    let iomem = format!(
        "{:08x}-{:08x} : System RAM\n{:08x}-{:08x} : System RAM\n",
        0,
        frame(10) - 1,
        frame(12),
        frame(16) - 1
    );
    write(tree.path(), "proc/iomem", iomem.as_bytes());
    let found = take_census_of_tree(tree.path(), &zones, 9).unwrap();
    let expected = all(0, 8, Free).chain(all(8, 10, Unknown)).chain(all(12, 16, Free));
    assert_eq!(classes(&found, 0), expected.collect::<Vec<_>>());
    // Memory blocks of four pageblocks, one of them offline, one missing.
    let sys = "sys/devices/system/memory";
    write(tree.path(), &format!("{sys}/block_size_bytes"), format!("{:x}\n", frame(4)).as_bytes());
    for (number, state) in [(0, "online\n"), (1, "offline\n"), (3, "going-offline\n")] {
        write(tree.path(), &format!("{sys}/memory{number}/state"), state.as_bytes());
    }
    let found = take_census_of_tree(tree.path(), &zones, 9).unwrap();
    assert_eq!(classes(&found, 0), all(0, 4, Free).chain(all(12, 16, Free)).collect::<Vec<_>>());
    assert_eq!(found.free_blocks.unwrap().counts()[10], 4);
    // A zone that begins inside of a block: the rest of the block is not its own.
    let zones = [zone(0, "DMA", 1, [BLOCK, BLOCK, BLOCK])];
    let found = take_census_of_tree(tree.path(), &zones, 9).unwrap();
    assert_eq!(classes(&found, 0), [(0, vec![Free, Hole]), (1, vec![Free, Hole])]);
}

#[test]
fn the_unmanaged_end_of_a_zone_without_flags_is_deferred() {
    use PageClass::{Deferred, Free, Unknown};
    let tree = tempfile::tempdir().unwrap();
    let check_with = |off_lists, runs: &[(u64, PageFlags)], managed: u64, expected: &[PageClass]| {
        flags(tree.path(), runs);
        let pages = expected.len() as u64 * BLOCK;
        let zones = [zone(0, "Normal", 0, [pages, pages, managed])];
        let found = take_with(tree.path(), &zones, 9, off_lists).unwrap();
        let expected: Vec<_> = (0..).zip(expected.iter().map(|&class| vec![class])).collect();
        assert_eq!(classes(&found, 0), expected);
    };
    // A kernel that does not count deferred memory as free.
    let check = |runs: &[(u64, PageFlags)], managed: u64, expected: &[PageClass]| {
        check_with(UnlistedFree::None, runs, managed, expected);
    };
    check(&[(2 * BLOCK, FREE), (2 * BLOCK, NONE)], 2 * BLOCK, &[Free, Free, Deferred, Deferred]);
    // More pages without flags than are unmanaged: the first of them are unknown.
    check(&[(BLOCK, FREE), (3 * BLOCK, NONE)], 2 * BLOCK, &[Free, Unknown, Deferred, Deferred]);
    // All is managed, so nothing is deferred.
    check(&[(2 * BLOCK, FREE), (2 * BLOCK, NONE)], 4 * BLOCK, &[Free, Free, Unknown, Unknown]);
    // Pages that are not managed are reserved.
    let runs = [(BLOCK, FREE), (BLOCK, PageFlags::RESERVED), (2 * BLOCK, NONE)];
    check(&runs, 3 * BLOCK, &[Free, PageClass::Reserved, Unknown, Unknown]);
    // The run ends at a page with flags.
    check(&[(BLOCK, NONE), (BLOCK, FREE), (2 * BLOCK, NONE)], BLOCK, &[Unknown, Free, Deferred, Deferred]);
    // A kernel that counts it says how much there is: the rest of the run was set aside at boot.
    let (blocks, free) = (40, 30);
    let run = |number: u64| if number < 1 + free { Deferred } else { PageClass::Reserved };
    let expected: Vec<PageClass> = (0..blocks).map(|n| if n == 0 { Free } else { run(n) }).collect();
    let counted = UnlistedFree::Pages(free * BLOCK);
    check_with(counted, &[(BLOCK, FREE), ((blocks - 1) * BLOCK, NONE)], BLOCK, &expected);
    // Without the two counts it is unknown.
    let runs = [(2 * BLOCK, FREE), (2 * BLOCK, NONE)];
    check_with(UnlistedFree::Unknown, &runs, 2 * BLOCK, &[Free, Free, Unknown, Unknown]);
}

#[test]
fn nodes_whose_spans_interleave_share_no_page() {
    let tree = tempfile::tempdir().unwrap();
    flags(tree.path(), &[(8 * BLOCK, FREE)]);
    let zones = [
        zone(1, "Normal", 2 * BLOCK, [2 * BLOCK; 3]),
        zone(0, "Normal", 0, [8 * BLOCK, 6 * BLOCK, 6 * BLOCK]),
        zone(0, "Device", 0, [8 * BLOCK; 3]),
    ];
    let found = take_census_of_tree(tree.path(), &zones, 9).unwrap();
    let indices = |zone: usize| found.zones[zone].blocks.iter().map(|block| block.0).collect::<Vec<_>>();
    assert_eq!(found.zones.len(), 2);
    assert_eq!((found.zones[0].key.node, indices(0)), (NodeId(0), vec![0, 1, 4, 5, 6, 7]));
    assert_eq!((found.zones[1].key.node, indices(1)), (NodeId(1), vec![0, 1]));
    assert_eq!(found.free_blocks.unwrap().free_pages(), u128::from(8 * BLOCK));
}

#[test]
fn bad_absent_and_endless_files() {
    let tree = tempfile::tempdir().unwrap();
    let zones = [zone(0, "Normal", 0, [4 * BLOCK; 3])];
    let error = take_census_of_tree(tree.path(), &zones, 9).unwrap_err();
    assert_eq!(error.why, AbsenceReason::NotSaved);
    assert!(error.hint.unwrap().contains("root"));
    flags(tree.path(), &[(3 * BLOCK, FREE)]);
    let cut = take_census_of_tree(tree.path(), &zones, 9).unwrap_err();
    assert_eq!(cut.detail, "truncated at byte 12288, before the end of the zones in zoneinfo");
    write(tree.path(), "proc/kpageflags", &[0; 4099]);
    let cut = take_census_of_tree(tree.path(), &zones, 9).unwrap_err();
    assert!(cut.detail.starts_with("truncated at byte 4099 (3 bytes of an 8-byte entry)"), "{}", cut.detail);
    // A file of 1 TiB of zeros is read to the zones' end.
    let file = fs::File::create(tree.path().join("proc/kpageflags")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(take_census_of_tree(tree.path(), &zones, 9).unwrap().zones[0].blocks.len(), 4);
    // Zones without end, or more blocks than any machine has.
    let hostile = [zone(0, "Normal", 5, [u64::MAX; 3]), zone(1, "Normal", 0, [1 << 60; 3])];
    assert_eq!(take_census_of_tree(tree.path(), &hostile, 9).unwrap_err().why, AbsenceReason::Failed);
    let many = [zone(0, "Normal", 0, [1 << 29; 3])];
    assert_eq!(take_census_of_tree(tree.path(), &many, 0).unwrap_err().why, AbsenceReason::Failed);
    assert_eq!(take_census_of_tree(tree.path(), &[], 9).unwrap_err().why, AbsenceReason::NotThere);
    let unknown = [ZoneEntry::empty(ZoneKey { node: NodeId(0), zone: "Normal".to_owned() })];
    assert_eq!(take_census_of_tree(tree.path(), &unknown, 9).unwrap_err().why, AbsenceReason::NotThere);
    let crowd = vec![zone(0, "Normal", 0, [BLOCK; 3]); 7000];
    take_census_of_tree(tree.path(), &crowd, 9).unwrap_err();
}
