//! Tests of reports as written by kernels, loggers and mail programs, and of malformed ones.

use super::*;

const X86: &str = "\
[15443.1] java: page allocation failure: order:4, mode:0x40d0, nodemask=(null)
[15443.2] Mem-Info:
[15443.2] Node 0 Normal free:2104kB min:44kB low:220kB
[15443.3] lowmem_reserve[]: 0 0 0
[15443.4] Node 0 DMA: 2*4kB (U) 1*8kB (UE) 0*16kB = 16kB
[15443.4] Node 0 Normal: 1714*4kB (UME) 0*8kB 3*16kB (M) = 6904kB
[15443.5] Node 0 hugepages_total=0 hugepages_free=0 hugepages_size=2048kB
[15443.5] 4242 total pagecache pages
";

fn reports(text: &str) -> Vec<Result<Report, String>> {
    let read = |span: &ReportSpan| {
        parse(text.as_bytes(), span).map_err(|problems| {
            problems.iter().map(|problem| problem.message_in_file("bug.txt")).collect::<Vec<_>>().join("\n")
        })
    };
    find_reports(text.as_bytes()).iter().map(read).collect()
}

fn counts(report: &Report) -> Vec<(u32, &str, &[u64])> {
    let zones = report.buddyinfo.zones.iter();
    zones.map(|zone| (zone.key.node.0, zone.key.zone.as_str(), zone.areas.counts())).collect()
}

#[test]
fn zones_counts_letters_and_the_trigger_are_read() {
    let all = reports(X86);
    let [Ok(report)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(counts(report), [(0, "DMA", &[2, 1, 0][..]), (0, "Normal", &[1714, 0, 3])]);
    assert_eq!(report.migratetypes, [["U", "UE", ""], ["UME", "", "M"]]);
    assert_eq!(report.page_size, PageSize::new(4096).unwrap());
    let text = "java: page allocation failure: order:4, mode:0x40d0, nodemask…".to_owned();
    let trigger = report.trigger.as_ref().unwrap();
    assert_eq!((trigger.line, trigger.order), (1, Some(4)));
    assert!(text.starts_with(trigger.text.trim_end_matches('…')), "{}", trigger.text);
}

#[test]
fn prefixes_of_loggers_are_passed_over() {
    let line = "Node 3 Normal: 1*16kB 2*32kB = 80kB";
    for prefix in [
        "",
        "[  728.326634] ",
        "[  728.326634][ T1234] ",
        "Jan  1 00:00:00 host kernel: [  728.3] ",
        "Jan 01 00:00:00 host kernel: ",
        "2026-01-01T00:00:00+0100 host kernel: ",
        "<4>",
        "<4>[  728.3] ",
        "4,1234,728326634,-;",
        "> > ",
        "\t",
    ] {
        let text = format!("{prefix}{line}\r\n");
        let all = reports(&text);
        let [Ok(report)] = &all[..] else { panic!("{prefix:?}: {all:?}") };
        assert_eq!(counts(report), [(3, "Normal", &[1, 2][..])], "{prefix:?}");
        assert_eq!(report.page_size, PageSize::new(16 << 10).unwrap());
        let text = text.replace("Node 3 ", "");
        assert_eq!(counts(reports(&text)[0].as_ref().unwrap()), [(0, "Normal", &[1, 2][..])], "{prefix:?}");
    }
}

#[test]
fn zones_without_memory_are_not_zones_without_free_memory() {
    let all = reports("DMA: 0*64kB 0*128kB = 0kB\nDMA32: empty\nNode 4 Odd: empty\nbattery: empty\nempty\n");
    let [Ok(report)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(counts(report), [(0, "DMA", &[0, 0][..])]);
    let names: Vec<_> = report.unpopulated.iter().map(|key| (key.node.0, key.zone.as_str())).collect();
    assert_eq!(names, [(0, "DMA32"), (4, "Odd")]);
}

#[test]
fn a_log_may_hold_several_reports_and_only_the_one_that_is_read_must_be_whole() {
    let again = X86.replace("1714*4kB", "1715*4kB").replace("6904", "6908");
    let cut = X86.replace(" = 6904kB", "");
    let all = reports(&format!("{cut}{again}{}", again.replace("Mem-Info:", "")));
    assert_eq!(all.len(), 3);
    assert_eq!(
        all[0].as_ref().unwrap_err(),
        "bug.txt:6: zone Normal has no total: the line is truncated or wrapped (read as show_mem)"
    );
    assert_eq!(counts(all[1].as_ref().unwrap())[1].2, [1715, 0, 3]);
    assert_eq!(all[2].as_ref().unwrap().trigger.as_ref().unwrap().line, 17);
}

#[test]
fn counts_up_to_two_to_the_64_are_added_without_overflow() {
    let all = reports("Node 0 Normal: 18446744073709551615*4kB 0*8kB = 5kB\n");
    let error = all[0].as_ref().unwrap_err();
    assert!(error.contains("add up to 73786976294838206460 kB, but the printed total is 5 kB"), "{error}");
}

#[test]
fn bad_lines_are_named() {
    let cases = [
        (
            "DMA: 1*4kB 1*8kB = 12kB\nNode 0 Normal: 1*4kB = 4kB\n",
            "bug.txt:2: zone Normal has 1 counts, but line 1 has 2: one of the lines is truncated",
        ),
        (
            "DMA: 1*4kB 1*8kB = 12kB\nNormal: 1*4kB 3*8k\n",
            "bug.txt:2: zone Normal has 1 counts, but line 1 has 2: one of the lines is truncated",
        ),
        (
            "DMA: 1*4kB 1*8kB = 12kB\nNode 0 Normal:\n",
            "bug.txt:2: zone Normal has 0 counts, but line 1 has 2: one of the lines is truncated",
        ),
        ("DMA: 1*4kB 1*8kB\n", "bug.txt:1: zone DMA has no total: the line is truncated or wrapped"),
        ("DMA: 1*4kB 1*8kB = 12\n", "bug.txt:1: zone DMA has no total: the line is truncated or wrapped"),
        ("DMA: 1*\n", "bug.txt:1: zone DMA has no counts: the line is truncated"),
        (
            "DMA: 1*4kB 1*8kB = 13kB\n",
            "bug.txt:1: zone DMA: the blocks add up to 12 kB, but the printed total is 13 kB",
        ),
        ("DMA: 1*4kB 1*16kB = 20kB\n", "bug.txt:1: zone DMA: blocks of order 1 are 16 kB, not 8 kB"),
        (
            "DMA: 1*3kB 1*6kB = 9kB\n",
            "bug.txt:1: zone DMA starts with blocks of 3 kB, which is not a page size",
        ),
        (
            "DMA: 1*4kB -1*8kB 0*16kB = 9kB\n",
            "bug.txt:1: zone DMA: `-1*8kB` is not a block count (such as 71*4kB)",
        ),
        (
            "DMA: 1*4kB = 4kB\nNormal: 1*16kB = 16kB\n",
            "bug.txt:2: zone Normal has pages of 16 kB, but line 1 has pages of 4 kB",
        ),
        ("Node 0 DMA: empty\n", "bug.txt:1: all zones of this report are empty"),
    ];
    for (text, problem) in cases {
        assert_eq!(
            reports(text)[0].as_ref().unwrap_err(),
            &format!("{problem} (read as show_mem)"),
            "{text}"
        );
    }
    let long = format!("DMA: {}\n", "1*4kB ".repeat(5000));
    assert!(reports(&long)[0].as_ref().unwrap_err().contains("more than 64 counts"));
}

#[test]
fn other_lines_are_no_zones() {
    for text in [
        "",
        "# DMA: 1*4kB = 4kB\n",
        "Node 0 Normal free:2104kB min:44kB low:220kB\n",
        "[    0.000000]   Normal   empty\n",
        "meeting at 10:30: 5\n",
        ":::: 1*4kB\n",
        "\u{0}\u{1}: 1*4kB = 4kB\n",
    ] {
        assert_eq!(find_reports(text.as_bytes()), [], "{text:?}");
    }
}
