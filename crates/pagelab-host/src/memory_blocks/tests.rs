//! Tests of the reader of memory blocks, on trees of files as kernels 6.1 and 6.12 have them.

use super::*;
use crate::fake_tree::FakeTree;

pub(super) const MEMORY: &str = "/sys/devices/system/memory";
const FRAMES: u64 = (128 << 20) / PageSize::DEFAULT.bytes();

/// Zones of a guest of 768 MiB with `kernelcore=380M`, the limit at 384 MiB.
const ZONEINFO: &str = "Node 0, zone      DMA\n  pages free     1\n  spanned  4095\n  start_pfn: 1\n\
    Node 0, zone    DMA32\n  pages free     1\n  spanned  94208\n  start_pfn: 4096\n\
    Node 0, zone  Movable\n  pages free     1\n  spanned  98272\n  start_pfn: 98304\n";
/// The hole at the end is that of the firmware's tables.
const IOMEM: &str = "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n\
    000f0000-000fffff : System ROM\n00100000-2ffdffff : System RAM\n\
    2ffe0000-2fffffff : Reserved\n140000000-147ffffff : System RAM\n";

fn tree(blocks: &[(u64, &str, &str)]) -> FakeTree {
    let tree = FakeTree::new(&[
        (&format!("{MEMORY}/block_size_bytes"), "8000000\n"),
        ("/proc/zoneinfo", ZONEINFO),
        ("/proc/iomem", IOMEM),
        ("/proc/meminfo", "MemTotal:         700000 kB\n"),
    ]);
    for (number, state, zones) in blocks {
        let dir = format!("{MEMORY}/memory{number}");
        tree.add_file(&format!("{dir}/state"), format!("{state}\n").as_bytes());
        tree.add_file(&format!("{dir}/valid_zones"), format!("{zones}\n").as_bytes());
        tree.add_file(&format!("{dir}/removable"), b"1\n");
        tree.add_file(&format!("{dir}/phys_index"), format!("{number:08x}\n").as_bytes());
        tree.add_file(&format!("{dir}/node0/keep"), b"");
    }
    tree
}

/// Blocks 4 and 5 of the movable zone; 5 has the hole at the end.
pub(super) fn two_blocks() -> FakeTree {
    tree(&[(4, "online", "Movable"), (5, "online", "Movable")])
}

fn read(tree: &FakeTree) -> Reading<MemoryBlockTable> {
    let root = tree.root();
    read_memory_blocks(&Reader::new(&root), PageSize::DEFAULT)
}

/// Number, state, zones and reasons of each block, as one line.
fn describe(table: &MemoryBlockTable) -> Vec<String> {
    let line = |block: &MemoryBlockEntry| {
        let reasons: Vec<String> = block.fixed_reasons.iter().map(FixedReason::to_string).collect();
        format!("{} {} {} | {}", block.number, block.state, block.zones.join(" "), reasons.join("; "))
    };
    table.blocks.iter().map(line).collect()
}

#[test]
fn blocks_that_can_never_go_have_their_reasons() {
    let tree = tree(&[
        (10, "online", "Normal"),
        (0, "online", "none"),
        (2, "online", "DMA32"),
        (3, "offline", "DMA32 Movable"),
        (4, "going-offline", "Movable"),
        (5, "online", "Movable"),
        (40, "online", "Movable"),
    ]);
    let table = read(&tree).unwrap();
    assert_eq!((table.block_size, &table.holes_absence), (Bytes(128 << 20), &None));
    assert_eq!(
        describe(&table),
        [
            // The first frame, and those from 636 KiB to 1 MiB.
            "0 online DMA DMA32 | holes of 98 frames; several zones: DMA, DMA32",
            "2 online DMA32 | ",
            "3 offline DMA32 Movable | ",
            "4 going-offline Movable | ",
            "5 online Movable | holes of 32 frames",
            "10 online Normal | holes of 32768 frames",
            "40 online Movable | ",
        ]
    );
    let frames = table.blocks[1].frames;
    assert_eq!((frames.first, frames.count), (Pfn(2 * FRAMES), Pages(FRAMES)));
    assert!(table.blocks[6].is_movable() && !table.blocks[2].is_movable());
    assert!(table.blocks[1].can_go_offline() && !table.blocks[4].can_go_offline());
    assert_eq!(table.blocks[0].nodes, [NodeId(0)]);
}

/// A limit inside a block, as kernelcore=512M of 1536 MiB made it.
#[test]
fn a_block_in_two_zones_or_on_two_nodes_never_goes() {
    let tree = tree(&[(3, "online", "none"), (2, "online", "none")]);
    tree.add_file(
        "/proc/zoneinfo",
        ZONEINFO.replace("94208", "100000").replace("98272", "92768").replace("98304", "104096").as_bytes(),
    );
    tree.add_file(&format!("{MEMORY}/memory2/node1/keep"), b"");
    tree.add_file(&format!("{MEMORY}/memory3/removable"), b"0\n");
    assert_eq!(
        describe(&read(&tree).unwrap()),
        [
            "2 online DMA32 | several nodes: 0, 1",
            "3 online DMA32 Movable | several zones: DMA32, Movable; removable is 0",
        ]
    );
}

#[test]
fn without_root_holes_are_not_known_and_without_valid_zones_spans_decide() {
    let tree = two_blocks();
    tree.add_file("/proc/iomem", b"00000000-00000000 : System RAM\n");
    tree.add_file(&format!("{MEMORY}/memory2/state"), b"online\n");
    let table = read(&tree).unwrap();
    assert_eq!(table.holes_absence.as_ref().map(|absence| absence.why), Some(AbsenceReason::NotPermitted));
    assert_eq!(describe(&table), ["2 online DMA32 | ", "4 online Movable | ", "5 online Movable | "]);
    tree.add_file("/proc/zoneinfo", b"rubbish\n");
    assert_eq!(describe(&read(&tree).unwrap())[0], "2 online  | ");
}

/// The kernel's image in ZONE_MOVABLE, as KASLR puts it there.
#[test]
fn reserved_frames_keep_a_block_and_are_searched_only_where_they_matter() {
    let tree = tree(&[
        (0, "online", "none"),
        (1, "online", "DMA32"),
        (2, "online", "DMA32"),
        (3, "offline", "DMA32"),
    ]);
    let root = tree.root();
    let reader = Reader::new(&root);
    let mut table = read(&tree).unwrap();
    assert!(table.find_reserved_frames(&reader).unwrap_err().source.contains("kpageflags"));
    // The file ends in block 2, inside a word.
    let mut flags = vec![0; (2 * FRAMES as usize + 77) * ENTRY_BYTES + 3];
    let mut set = |frame: u64, flag: PageFlags| {
        let at = frame as usize * ENTRY_BYTES;
        flags[at..at + ENTRY_BYTES].copy_from_slice(&flag.0.to_ne_bytes());
    };
    set(0, PageFlags::RESERVED);
    for frame in [FRAMES, FRAMES + 9000, 2 * FRAMES - 1] {
        set(frame, PageFlags::RESERVED.union(PageFlags::MMAP));
    }
    set(FRAMES + 1, PageFlags::MLOCKED);
    set(2 * FRAMES, PageFlags::LRU);
    tree.add_file(paths::KPAGEFLAGS, &flags);
    table.find_reserved_frames(&reader).unwrap();
    assert_eq!(
        describe(&table)[..3],
        [
            "0 online DMA DMA32 | holes of 98 frames; several zones: DMA, DMA32",
            "1 online DMA32 | 3 reserved frames",
            "2 online DMA32 | ",
        ]
    );
    assert!(table.blocks[3].can_go_offline());
}

#[test]
fn malformed_files_are_errors_with_their_names_and_foreign_names_are_left_out() {
    for name in [
        "memory",
        "memory-1",
        "memoryx",
        "memory1x",
        "power",
        "auto_online_blocks",
        "memory99999999999999999999",
    ] {
        let tree = two_blocks();
        tree.add_file(&format!("{MEMORY}/{name}/state"), b"online\n");
        assert_eq!(read(&tree).unwrap().blocks.len(), 2, "{name}");
    }
    let huge = format!("{MEMORY}/memory{}/state", u64::MAX / 2);
    let long = "x".repeat(1 << 16);
    for (path, content, problem) in [
        ("block_size_bytes", "zz\n", "`zz` is not a hexadecimal number"),
        ("block_size_bytes", "1\n", "a block of 1 bytes has no page"),
        ("memory4/state", "", "unknown state ``"),
        ("memory4/state", "on\u{1b}[2Jline\n", "unknown state `on\\u{1b}[2Jline`"),
        ("memory4/state", &long, "unknown state"),
        ("memory4/removable", "-1\n", "`-1` is not an unsigned number"),
        (&huge[MEMORY.len() + 1..], "online\n", "its frames have no number of 64 bits"),
    ] {
        let tree = two_blocks();
        tree.add_file(&format!("{MEMORY}/{path}"), content.as_bytes());
        let absence = read(&tree).unwrap_err();
        assert_eq!(absence.why, AbsenceReason::Malformed, "{path}");
        let text = absence.to_string();
        let file = path.trim_end_matches(if path.len() > 30 { "/state" } else { "" });
        assert!(text.contains(problem) && text.contains(file), "{text}");
    }
    // Bytes that are no text, and more zones than there are.
    let tree = two_blocks();
    tree.add_file(&format!("{MEMORY}/memory4/valid_zones"), b"\xff\x1b[2J\n");
    tree.add_file(&format!("{MEMORY}/memory5/valid_zones"), "a ".repeat(1000).as_bytes());
    tree.add_file(&format!("{MEMORY}/memory5/state"), b"offline\n");
    let table = read(&tree).unwrap();
    assert_eq!(table.blocks[0].zones, ["\u{fffd}\\u{1b}[2J"]);
    assert_eq!(table.blocks[1].zones.len(), ZONE_KINDS_MAX);
}

#[test]
fn a_kernel_without_memory_blocks_says_so() {
    let empty = FakeTree::new(&[("/proc/meminfo", "MemTotal: 1 kB\n")]);
    assert_eq!(read(&empty).unwrap_err().why, AbsenceReason::NotSaved);
    let absence = read(&tree(&[])).unwrap_err();
    assert!(absence.to_string().contains("CONFIG_MEMORY_HOTPLUG"), "{absence}");
}
