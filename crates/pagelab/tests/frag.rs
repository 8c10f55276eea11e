//! Tests of `pagelab frag`: the real binary in a fresh directory.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::io::Read;
use std::process::{Command, Stdio};

use expect_test::{ExpectFile, expect_file};
use pagelab_model::random::SplitMix64;
use support::Lab;

const BUDDY: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      2 
Node 0, zone   Normal    460    485    375     61      1      7      4      0      1      0      0 
";

const REPORTS: &str = "\
[ 1.0] java: page allocation failure: order:2, mode:0x40d0, nodemask=(null)
[ 1.1] Mem-Info:
[ 1.2] Node 0 DMA: 2*64kB (U) 1*128kB (UE) 0*256kB = 256kB
[ 1.2] Node 0 Normal: 17*64kB (UME) 0*128kB 3*256kB (M) = 1856kB
[ 2.0] cc1 invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0
[ 2.1] Mem-Info:
[ 2.2] Node 0 DMA: empty
[ 2.2] Node 0 Normal: 18*64kB (UME) 0*128kB 0*256kB = 1152kB
";

/// A request of order 2 that failed although DMA has blocks: lowmem_reserve keeps them.
const RESERVED: &str = "\
[ 9.0] ip: page allocation failure: order:2, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)
[ 9.1] Mem-Info:
[ 9.2] Node 0 DMA free:64kB boost:0kB min:16kB low:20kB high:24kB reserved_highatomic:0KB free_cma:0kB
[ 9.2] lowmem_reserve[]: 0 0 20 20 20
[ 9.2] Node 0 Normal free:400kB boost:0kB min:80kB low:100kB high:120kB reserved_highatomic:0KB free_cma:0kB
[ 9.2] lowmem_reserve[]: 0 0 0 0 0
[ 9.2] Node 0 DMA: 0*4kB 0*8kB 0*16kB 2*32kB (U) = 64kB
[ 9.2] Node 0 Normal: 60*4kB (UM) 20*8kB (UM) 0*16kB 0*32kB = 400kB
";

/// A request of order 4 that failed on a machine of 11 orders.
const ORDER_4: &str = "\
[ 9.0] kworker/0:1: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)
[ 9.1] Mem-Info:
[ 9.2] Node 0 Normal: 30*4kB (UM) 12*8kB (UM) 5*16kB (M) 1*32kB (M) 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB \
0*2048kB 0*4096kB = 328kB
";

/// `/proc/pagetypeinfo` of a virtual machine with Linux 6.18.
const TYPES: &str = include_str!("../../../fixtures/pagetypeinfo.txt");

fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("types", TYPES);
    lab.write("types+buddy", format!("{TYPES}{TYPES_BUDDY}"));
    lab.write("capped", capped_types());
    lab.write("cut-types", TYPES.split_once("Number of blocks").unwrap().0);
    lab.write("damaged-types", TYPES.replace("Number of blocks", "Numbr of blocks"));
    lab.write(
        "grepped-types",
        TYPES.lines().filter(|line| line.starts_with("Node")).collect::<Vec<_>>().join("\n"),
    );
    lab.write("blocks", format!("Number of blocks{}", TYPES.split_once("Number of blocks").unwrap().1));
    lab.write("buddy", BUDDY);
    lab.write("bug.txt", REPORTS);
    lab.write("order4.txt", ORDER_4);
    lab.write("reserved.txt", RESERVED);
    lab.write("no-mode.txt", RESERVED.replace("mode:0x40cc0", "mode:"));
    lab.write("dma.txt", RESERVED.replace("0x40cc0(GFP_KERNEL|", "0x40cc1(GFP_KERNEL|GFP_DMA|"));
    lab.write("no-reserve.txt", RESERVED.replace("lowmem_reserve[]", "lowmem"));
    lab.write(
        "types.txt",
        RESERVED.replace("32kB (U) = 64", "32kB (H) = 64").replace("0 0 20 20 20", "0 0 0 0 0"),
    );
    lab.write("cut.txt", REPORTS.replace(" 3*256kB (M) = 1856kB", "").replace("[ 2.", "# [ 2."));
    lab.write("few", "Node 0, zone   Normal    460    485\n");
    lab.write("tree/proc/buddyinfo", BUDDY);
    lab.write("tree/proc/meminfo", "MemTotal: 24000 kB\nMemFree:           24084 kB\n");
    lab.write("tree/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
    lab.write("lazy-tree/proc/buddyinfo", BUDDY);
    lab.write("lazy-tree/proc/meminfo", "MemTotal: 248000 kB\nMemFree:         144000 kB\n");
    // 56 000 pages of memory that the page allocator does not manage yet explain the difference.
    lab.write(
        "lazy-tree/proc/zoneinfo",
        "Node 0, zone   Normal\n  pages free 6983\n        present  62000\n        managed  6000\n",
    );
    lab.write("bad-tree/proc/buddyinfo", "Node 0, zone DMA 1 2 x\n");
    std::fs::create_dir_all(lab.path().join("empty-tree/proc/buddyinfo/is/a/directory")).unwrap();
    std::fs::create_dir_all(lab.path().join("void")).unwrap();
    lab.write("noise", [0u8, 159, 146, 150, 10].repeat(1000));
    lab.write("nothing", "");
    lab.write("packed.gz", b"\x1f\x8b\x08\x00\x00");
    lab
}

/// The buddyinfo of the same machine, a moment later.
const TYPES_BUDDY: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 
Node 0, zone    DMA32      2      2      4      2      5      4      3      3      4      2    752 
Node 0, zone   Normal  36590   7745   1997    480    211    370    176    211    465    236   1001 
";

/// A text of a kernel that stopped to count unmovable base pages in Normal.
fn capped_types() -> String {
    let row = TYPES.lines().find(|line| line.contains("Normal, type    Unmovable")).unwrap();
    let (head, counts) = row.split_once("Unmovable").unwrap();
    let rest = counts.trim_start().split_once(' ').unwrap().1;
    TYPES.replace(row, &format!("{head}Unmovable >100000 {rest}"))
}

/// Runs `pagelab frag` with each line of arguments, and holds the whole transcript against the file:
/// standard output, standard error, exit code.
fn check(cases: &[&str], expected: &ExpectFile) {
    let lab = lab();
    let mut transcript = String::new();
    for args in cases {
        let words: Vec<&str> = ["frag"].into_iter().chain(args.split_whitespace()).collect();
        let ran = lab.run(&words);
        // The kernel's own files are as wide as they are.
        for line in ran.out.lines().filter(|_| !words.contains(&"--format")) {
            assert!(line.chars().count() <= 80, "too wide: {line}");
        }
        // The bar keeps editors from taking the kernel's trailing blanks away.
        let out = ran.out.replace(" \n", " |\n");
        let code = ran.code.unwrap();
        transcript.push_str(&format!("$ pagelab frag {args}\n{out}{}exit {code}\n\n", ran.err));
    }
    expected.assert_eq(&transcript);
}

#[test]
fn outputs() {
    let cases = [
        "--from buddy --order 9",
        "--from buddy --format unusable",
        "--from buddy --format extfrag --page-size 64K",
        "--from bug.txt",
        "--from bug.txt --report 1 --paper",
        "--from order4.txt",
        "--from order4.txt --order 2",
        "--from reserved.txt --explain",
        "--from no-mode.txt --explain",
        "--from dma.txt --explain",
        "--from no-reserve.txt --explain",
        "--from types.txt --explain",
        "--from few --page-size 16K --order 1 --explain",
        "--from types",
        "--from types+buddy --order 9",
        "--from types+buddy --order 9 --report 1",
        "--from types+buddy --report 1 --format unusable",
        "--from capped --order 10",
        "--from capped --explain",
        "--from cut-types --order 9",
        "--root lazy-tree --order 0 --page-size 4096",
        "--root tree --order 8",
        "--root tree --order 5 --page-size 64K",
    ];
    check(&cases, &expect_file!["snapshots/frag_outputs.txt"]);
}

#[test]
fn invalid_arguments_are_refused_with_a_hint() {
    let cases = [
        "--paper --format unusable",
        "--order 3 --format extfrag",
        "--explain --json",
        "--json cannot be used with --format table",
        "--from buddy --root tree",
        "--report 1",
        "--from bug.txt --report 0",
        "--from bug.txt --report 3",
        "--from buddy --report 2",
        "--from buddy --order 11",
        "--from bug.txt --page-size 4K",
        "--from buddy --page-size 3K",
        "--from buddy --page-size 99999999999999999999G",
    ];
    check(&cases, &expect_file!["snapshots/frag_usage.txt"]);
}

#[test]
fn bad_input_is_named() {
    let cases = [
        "--from cut.txt",
        "--from noise",
        "--from nothing",
        "--from capped --format extfrag",
        "--from damaged-types",
        "--from grepped-types",
        "--from blocks",
        "--from packed.gz",
        "--from nowhere",
        "--from void",
        "--from /dev/zero",
        "--from -",
        "--root bad-tree",
        "--root empty-tree",
        "--root void",
        "--root nowhere",
    ];
    check(&cases, &expect_file!["snapshots/frag_bad_input.txt"]);
}

#[test]
fn the_same_text_is_read_from_standard_input() {
    let lab = lab();
    for from in ["-", "/dev/stdin"] {
        let ran = lab.run_with(&["frag", "--from", from, "--format", "unusable"], BUDDY.as_bytes());
        assert_eq!(ran.out, lab.run(&["frag", "--from", "buddy", "--format", "unusable"]).out);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    }
}

/// The snapshot of a run file gives the numbers of the tree that it was taken from.
#[test]
fn a_run_file_is_read_as_its_tree() {
    let lab = lab();
    let made = lab.run(&["checkup", "--root", "tree", "--run", "a.pagelab"]);
    assert!(lab.path().join("a.pagelab").is_file(), "{}", made.err);
    for format in ["unusable", "extfrag"] {
        let of = |option: &str, path: &str| lab.run(&["frag", option, path, "--format", format]);
        let (run_file, tree) = (of("--from", "a.pagelab"), of("--root", "tree"));
        assert_eq!((run_file.code, &run_file.out), (Some(0), &tree.out), "{}", run_file.err);
    }
    let refused = lab.run(&["frag", "--from", "a.pagelab", "--report", "1"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--report cannot be used with a run file"), "{}", refused.err);
}

#[test]
fn a_fifo_without_a_writer_is_refused_at_once() {
    let lab = Lab::new();
    let made = Command::new("mkfifo").arg(lab.path().join("fifo")).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: mkfifo-absent: no program makes a FIFO here");
        return;
    }
    // Who opened it would wait for ever.
    let ran = lab.run(&["frag", "--from", "fifo"]);
    assert_eq!(ran.code, Some(3));
    let message = "error: fifo: expected a file, found a FIFO\nhint: pipe the text to `--from -` instead\n";
    assert_eq!(ran.err, message);
}

#[test]
fn texts_over_64_mib_are_refused() {
    let lab = Lab::new();
    let file = std::fs::File::create(lab.path().join("large")).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    let ran = lab.run(&["frag", "--from", "large"]);
    assert_eq!(ran.code, Some(3));
    assert!(
        ran.err.starts_with("error: cannot read large: expected at most 64 MiB, found more"),
        "{}",
        ran.err
    );
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let lab = lab();
    // More zones than a pipe holds text for, so that writing must meet the closed end.
    let many: String = (0..3000).map(|node| format!("Node {node}, zone Normal 1 2 3 4 5\n")).collect();
    lab.write("many", many);
    for format in ["table", "unusable", "json"] {
        let mut child = lab.command(&["frag", "--from", "many", "--format", format]).spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("cannot write"));
    }
}

#[test]
fn a_full_disk_is_reported() {
    let lab = lab();
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        eprintln!("skipped: dev-full-absent: /dev/full cannot be opened");
        return;
    };
    let output = lab.command(&["frag", "--from", "buddy"]).stdout(Stdio::from(full)).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the output"));
}

#[test]
fn this_machine_is_read_in_every_format() {
    let lab = Lab::new();
    for format in ["table", "unusable", "extfrag", "json"] {
        let ran = lab.run(&["frag", "--format", format]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(!ran.out.is_empty());
    }
}

#[test]
fn damaged_texts_end_in_an_exit_code_of_the_table() {
    let lab = Lab::new();
    let mut draws = SplitMix64::new(1);
    let mut random = |below: usize| draws.next_below(below as u64) as usize;
    for round in 0..120 {
        let mut text = [BUDDY, REPORTS, TYPES][round % 3].as_bytes().to_vec();
        for _ in 0..=random(4) {
            let at = random(text.len());
            match random(3) {
                0 => text[at] = random(256) as u8,
                1 => text.truncate(at.max(1)),
                _ => text.insert(at, b"9*k=(:\n "[random(8)]),
            }
        }
        let view = ["--json", "--explain", "--paper"][random(3)];
        let ran = lab.run_with(&["frag", "--from", "-", view], &text);
        assert!(matches!(ran.code, Some(0 | 3)), "{ran:?}\n{}", String::from_utf8_lossy(&text));
    }
}
