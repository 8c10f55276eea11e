//! Texts for a small machine with zones of every state: unfragmented, fragmented, one block, full.

use expect_test::{expect, expect_file};
use pagelab_model::pagetype::{CappedCount, MigratetypeFreeAreas, MigratetypePageblocks};
use pagelab_model::{Absence, AbsenceReason, NodeId, ZoneFreeAreas};

use super::*;
use crate::json;
use crate::style::TextStyle;

fn zone(node: u32, name: &str, counts: [u64; 4]) -> ZoneFreeAreas {
    let areas = FreeAreas::new(counts.to_vec()).unwrap();
    ZoneFreeAreas { key: ZoneKey { node: NodeId(node), zone: name.to_owned() }, areas }
}

fn report(order: u8, zones: Vec<ZoneFreeAreas>) -> FragReport {
    FragReport {
        source: FreeBlockSource { name: "here".to_owned(), kind: "buddyinfo", position: None },
        page_size: PageSize::DEFAULT,
        page_size_source: "sysconf".to_owned(),
        order: Order(order),
        order_source: "as asked".to_owned(),
        buddyinfo: BuddyInfo { zones },
        pagetypeinfo: None,
        request: None,
        watermarks: Vec::new(),
        migratetypes: Err(Absence::new("here", AbsenceReason::NotThere, "none")),
        unpopulated: Vec::new(),
        notes: Vec::new(),
    }
}

fn small(order: u8) -> FragReport {
    report(
        order,
        vec![
            zone(0, "DMA", [0, 0, 0, 2]),
            zone(0, "Normal", [9, 4, 1, 0]),
            zone(1, "Normal", [0, 0, 1, 0]),
            zone(1, "Movable", [0; 4]),
        ],
    )
}

#[test]
fn the_kernels_files_are_printed_byte_for_byte() {
    // Trailing blanks are the kernel's; the bars keep editors from taking them away.
    let barred = |which| format_kernel_file(&small(0).buddyinfo, which).replace('\n', "|\n");
    expect![[r#"
        Node 0, zone      DMA 0.000 0.000 0.000 0.000 |
        Node 0, zone   Normal 0.000 0.428 0.809 1.000 |
        Node 1, zone   Normal 0.000 0.000 0.000 1.000 |
        Node 1, zone  Movable 1.000 1.000 1.000 1.000 |
    "#]]
    .assert_eq(&barred(KernelFile::UnusableIndex));
    expect![[r#"
        Node 0, zone      DMA -1.000 -1.000 -1.000 -1.000 |
        Node 0, zone   Normal -1.000 -1.000 -1.000  0.742 |
        Node 1, zone   Normal -1.000 -1.000 -1.000  0.-500 |
        Node 1, zone  Movable  0.000  0.000  0.000  0.000 |
    "#]]
    .assert_eq(&barred(KernelFile::FragmentationIndex));
}

#[test]
fn the_headline_names_the_zone_with_the_most_unusable_memory() {
    let whole = || zone(0, "DMA", [0, 0, 0, 2]);
    let check = |order, zones: Vec<ZoneFreeAreas>, expected: &str| {
        assert_eq!(report(order, zones).format_headline(), expected);
    };
    check(3, vec![whole()], "all free memory is usable for 32 KiB blocks, F_u(3) 0.000");
    check(3, vec![zone(0, "DMA", [0; 4])], "no zone has free memory");
    check(
        2,
        vec![whole(), zone(0, "Normal", [9, 4, 1, 0])],
        "81 % of the free memory in Normal is unusable for 16 KiB blocks, F_u(2) 0.809",
    );
    check(
        3,
        vec![zone(0, "Normal", [1, 0, 0, 0]), zone(1, "Normal", [0, 0, 1, 9])],
        "5.3 % of the free memory in node 1 Normal is unusable for 32 KiB blocks, F_u(3) 0.052",
    );
}

fn check_lines(text: &str) {
    for line in text.lines() {
        assert!(display_width(line) <= TextStyle::PLAIN.width, "too wide: {line}");
        assert_eq!(line.trim_end(), line, "blanks at the end");
    }
}

#[test]
fn the_table() {
    let options = TableOptions { paper: true, is_single_order: false };
    let mut report = small(2);
    report.notes.push("half of it is elsewhere".to_owned());
    report.unpopulated.push(ZoneKey { node: NodeId(2), zone: "DMA".to_owned() });
    report.migratetypes = Ok(vec![["U", "", "UME", "C"].map(str::to_owned).to_vec(); 4]);
    report.source.position = Some(ReadingPosition {
        index: 2,
        total: 3,
        line: 40,
        trigger: Some(("java: order:4".to_owned(), 7)),
    });
    report.source.kind = "show_mem";
    let text = render_table(&report, options, &TextStyle::PLAIN);
    check_lines(&text);
    expect![[r#"
        81 % of the free memory in node 0 Normal is unusable for 16 KiB blocks,
          F_u(2) 0.809
          here, report 2 of 3 (line 40) · 4 KiB pages (sysconf) · order 2: as asked
          line 7: java: order:4
          note: half of it is elsewhere

          node  zone       free  16 KiB now  F_u(2)  F_i(2)   paper  F_u by order 0…3
             0  DMA      64 KiB           4   0.000  -1.000  -1.000  ▁▁▁▁
             0  Normal   84 KiB           1   0.809  -1.000   0.625  ▁▄▇█
             1  Normal   16 KiB           1   0.000  -1.000   0.000  ▁▁▁█
             1  Movable     0 B           0   1.000   0.000   0.000  ████
          zones without memory: node 2 DMA

          node 0, zone DMA
          order   block  free blocks  usable pages    F_u   paper  types
              0   4 KiB            0            16  0.000  -7.000  U
              1   8 KiB            0            16  0.000  -3.000
              2  16 KiB            0            16  0.000  -1.000  UME
              3  32 KiB            2            16  0.000   0.000  C

          node 0, zone Normal
          order   block  free blocks  usable pages    F_u     F_i   paper  types
              0   4 KiB            9            21  0.000  -1.000  -0.500  U
              1   8 KiB            4            12  0.428  -1.000   0.250
              2  16 KiB            1             4  0.809  -1.000   0.625  UME
              3  32 KiB            0             0  1.000   0.742   0.812  C

          node 1, zone Normal
          order   block  free blocks  usable pages    F_u     F_i   paper  types
              0   4 KiB            0             4  0.000  -1.000  -3.000  U
              1   8 KiB            0             4  0.000  -1.000  -1.000
              2  16 KiB            1             4  0.000  -1.000   0.000  UME
              3  32 KiB            0             0  1.000  0.-500   0.500  C

          node 1, zone Movable
          order   block  free blocks  usable pages    F_u    F_i  paper  types
              0   4 KiB            0             0  1.000  0.000  0.000  U
              1   8 KiB            0             0  1.000  0.000  0.000
              2  16 KiB            0             0  1.000  0.000  0.000  UME
              3  32 KiB            0             0  1.000  0.000  0.000  C

          F_u  share of the free memory in blocks too small for the order: 0 none, 1 all
          F_i  −1 a block is free; else: near 0 lack of memory, near 1 fragmentation
               omitted where every order has a free block
               paper: 1 − (free / 2^j) / blocks; meaningless if a block is free
          types  U unmovable, E reclaimable, M movable, H highatomic, C CMA, I isolate
    "#]]
    .assert_eq(&text);

    let ascii = TextStyle { unicode: false, ..TextStyle::PLAIN };
    let text = render_table(&report, options, &ascii);
    assert!(text.is_ascii() && !text.contains('?'), "{text}");
    check_lines(&text);
    let coloured = TextStyle { colour: true, ..TextStyle::PLAIN };
    assert!(render_table(&report, options, &coloured).contains("\x1b[1m81 % of"));
}

#[test]
fn one_order_alone() {
    let options = TableOptions { paper: false, is_single_order: true };
    let text = render_table(&small(3), options, &TextStyle::PLAIN);
    check_lines(&text);
    expect![[r#"
        100 % of the free memory in node 0 Normal is unusable for 32 KiB blocks,
          F_u(3) 1.000
          here · 4 KiB pages (sysconf) · order 3: as asked

          node  zone       free  32 KiB now  F_u(3)  F_i(3)
             0  DMA      64 KiB           2   0.000  -1.000
             0  Normal   84 KiB           0   1.000   0.742
             1  Normal   16 KiB           0   1.000  0.-500
             1  Movable     0 B           0   1.000   0.000

          F_u  share of the free memory in blocks too small for the order: 0 none, 1 all
          F_i  −1 a block is free; else: near 0 lack of memory, near 1 fragmentation
    "#]]
    .assert_eq(&text);
}

#[test]
fn the_working_out() {
    let text = render_explanation(&small(3), true, &TextStyle::PLAIN);
    check_lines(&text);
    expect_file!["tests/explain.txt"].assert_eq(&text);
    let ascii = render_explanation(&small(3), true, &TextStyle { unicode: false, ..TextStyle::PLAIN });
    assert!(ascii.is_ascii() && !ascii.contains('?'), "{ascii}");
    check_lines(&ascii);
}

#[test]
fn counts_that_no_machine_has_are_printed_all_the_same() {
    let mut report = report(3, vec![zone(0, "Normal", [u64::MAX; 4])]);
    report.buddyinfo.zones[0].areas = FreeAreas::new(vec![u64::MAX; 64]).unwrap();
    let options = TableOptions { paper: true, is_single_order: false };
    assert!(render_table(&report, options, &TextStyle::PLAIN).contains("Normal"));
    assert!(render_explanation(&report, true, &TextStyle::PLAIN).contains("free   ="));
    let text = json::to_json_text(&json::frag::to_document(&report)).unwrap();
    // (2^64 − 1)², the sum over 64 orders.
    assert!(text.contains("\"free_pages\": 340282366920938463426481119284349108225,"), "{text}");
}

#[test]
fn json_says_why_a_value_is_absent() {
    let text = json::to_json_text(&json::frag::to_document(&small(3))).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let empty = &value["zones"][3];
    for name in ["unusable_index", "migratetypes"] {
        assert!(empty[name].is_null(), "{name}");
        assert!(empty[format!("{name}_absent_reason")].is_string(), "{name}");
    }
    assert_eq!(empty["unusable_index_permille"][3], 1000);
    assert_eq!(empty["fragmentation_index_paper"], serde_json::json!([0.0, 0.0, 0.0, 0.0]));
    let broken = &value["zones"][1];
    assert_eq!(broken["unusable_index"][2].as_f64(), Some(17.0 / 21.0));
    assert!(broken.get("unusable_index_absent_reason").is_none());
    assert_eq!(value["zones"][2]["fragmentation_index_permille"][3], -500);
}

/// Two zones of four orders, in one of which a count of base pages is capped, with an unknown migratetype.
fn of_types(counts: [CappedCount; 4], order: u8) -> FragReport {
    let key = |name: &str| ZoneKey { node: NodeId(0), zone: name.to_owned() };
    let row = |zone: &str, migratetype: &str, counts: [CappedCount; 4]| MigratetypeFreeAreas {
        key: key(zone),
        migratetype: migratetype.to_owned(),
        counts: counts.to_vec(),
    };
    let exact = |counts: [u64; 4]| counts.map(CappedCount::Exact);
    let pageblocks = [("Unmovable", 5u64), ("Movable", 2), ("CMA", 1), ("HighAtomic", 0), ("Strange", 1)];
    let types = Pagetypeinfo {
        pageblock_order: Some(Order(3)),
        free: vec![
            row("Normal", "Unmovable", counts),
            row("Normal", "Movable", exact([2, 3, 0, 1])),
            row("Normal", "CMA", exact([0, 1, 0, 2])),
            row("Normal", "HighAtomic", exact([0; 4])),
            row("Normal", "Strange", exact([0, 0, 5, 0])),
        ],
        blocks: vec![MigratetypePageblocks {
            key: key("Normal"),
            counts: pageblocks.map(|(name, count)| (name.to_owned(), count)).to_vec(),
        }],
        ..Pagetypeinfo::default()
    };
    let areas = types.free_areas(&key("Normal"), |_| true).unwrap().counts_min;
    let mut report = report(order, vec![ZoneFreeAreas { key: key("Normal"), areas }]);
    report.source.kind = "pagetypeinfo";
    report.pagetypeinfo = Some(types);
    report
}

#[test]
fn free_blocks_by_migratetype() {
    let exact = of_types([9, 4, 1, 0].map(CappedCount::Exact), 3);
    let mut capped = [9, 4, 1, 0].map(CappedCount::Exact);
    capped[0] = CappedCount::MoreThan(9);
    let capped = of_types(capped, 3);
    assert!(exact.capped_zones().is_empty());
    assert_eq!(capped.capped_zones(), ["Normal"]);
    let options = TableOptions { paper: false, is_single_order: false };
    for (report, file) in [(&exact, "types"), (&capped, "capped")] {
        let texts = [
            render_table(report, options, &TextStyle::PLAIN),
            render_explanation(report, false, &TextStyle::PLAIN),
        ];
        texts.iter().for_each(|text| check_lines(text));
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/frag/tests");
        expect_test::ExpectFile { path: format!("{folder}/{file}.txt").into(), position: file!() }
            .assert_eq(&texts.join("\n"));
        let ascii = render_table(report, options, &TextStyle { unicode: false, ..TextStyle::PLAIN });
        assert!(ascii.is_ascii() && !ascii.contains('?'), "{ascii}");
    }
}

/// A bound of which the last digit is rounded would exclude the value.
#[test]
fn the_headline_states_the_side_of_a_bound() {
    let more = CappedCount::MoreThan;
    let counts = |of: [u64; 4]| of.map(CappedCount::Exact);
    for (counts, expected) in [
        (
            [more(11), CappedCount::Exact(4), CappedCount::Exact(1), CappedCount::Exact(0)],
            "at least 68 % of the free memory in Normal is unusable for 32 KiB blocks, F_u(3) ≥0.688",
        ),
        (
            counts([11, 4, 1, 0]),
            "69 % of the free memory in Normal is unusable for 32 KiB blocks, F_u(3) 0.688",
        ),
    ] {
        assert_eq!(of_types(counts, 3).format_headline(), expected);
    }
}
