//! Tests of `pagelab map` on captured machines and on this one; an independent decoder reads its pictures.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use expect_test::expect;
use serde_json::Value;
use support::{CommandOutput, Lab};

const MACHINES: [&str; 5] = [
    "guest-6.1-128m.tar.zst",
    "guest-6.1-kernelcore.tar.zst",
    "guest-6.12-2nodes.tar.zst",
    "guest-6.12-hugetlb.tar.zst",
    "host-6.18-vm.tar.zst",
];

fn machine(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name);
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

fn json(ran: &CommandOutput) -> Value {
    assert_eq!(ran.err, "");
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

/// Output of a Python program; `None` after a message that there is no Python.
fn python(lab: &Lab, program: &str, arguments: &[&str]) -> Option<String> {
    lab.write("program.py", program);
    let run = Command::new("python3").arg("program.py").args(arguments).current_dir(lab.path()).output();
    let Ok(output) = run else {
        eprintln!("skipped: python3-absent: pictures are not decoded by another program");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Decodes a PNG of 8 bits without filters, checks its sums, and prints its size, its texts, and how many
/// pixels right of the strips have each colour.
const DECODE: &str = r#"
import struct, sys, zlib
from collections import Counter
data = open(sys.argv[1], 'rb').read()
assert data[:8] == b'\x89PNG\r\n\x1a\n'
at, packed, palette, clear = 8, b'', b'', b''
while at < len(data):
    length, kind = struct.unpack('>I4s', data[at:at + 8])
    body = data[at + 8:at + 8 + length]
    assert struct.unpack('>I', data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + body)
    if kind == b'IHDR': width, height, depth, colour, *rest = struct.unpack('>IIBBBBB', body)
    if kind == b'tEXt': print('text', body.replace(b'\0', b'|').decode('latin-1'))
    if kind == b'PLTE': palette = body
    if kind == b'tRNS': clear = body
    if kind == b'IDAT': packed += body
    at += 12 + length
assert depth == 8 and colour in (2, 3) and rest == [0, 0, 0]
each, raw = (3 if colour == 2 else 1), zlib.decompress(packed)
assert len(raw) == height * (1 + width * each)
print('size', width, height)
counts = Counter()
for y in range(height):
    row = raw[y * (1 + width * each):][:1 + width * each]
    assert row[0] == 0
    for x in range(int(sys.argv[2]), width):
        if colour == 3:
            index = row[1 + x]
            if index < len(clear) and clear[index] == 0: continue
            counts[palette[index * 3:index * 3 + 3].hex()] += 1
        else:
            counts[row[1 + x * 3:4 + x * 3].hex()] += 1
for colour, count in counts.items(): print('colour', colour, count)
"#;

#[test]
fn every_page_is_a_pixel_of_its_class_to_another_decoder() {
    for name in [MACHINES[0], MACHINES[2]] {
        for (order, strips) in [("rows", 16), ("tiles", 16), ("hilbert", 0)] {
            let lab = Lab::new();
            let root = machine(name);
            let words = ["map", &root, "--json", "-o", "a.png", "--force", "--scale", "1", "--layout", order];
            let ran = lab.run(&words);
            let document = json(&ran);
            let strips = if document["memory_blocks"] == Value::Array(vec![]) { strips / 2 } else { strips };
            let Some(decoded) = python(&lab, DECODE, &["a.png", &strips.to_string()]) else { return };
            let line = |prefix: &str| decoded.lines().find(|line| line.starts_with(prefix)).unwrap();
            let legend = line("text Legend|").trim_start_matches("text Legend|");
            let colours: BTreeMap<&str, &str> =
                legend.split(", ").map(|one| one.split_once(' ').unwrap()).map(|(n, c)| (c, n)).collect();
            let mut pixels = BTreeMap::new();
            for line in decoded.lines().filter_map(|line| line.strip_prefix("colour ")) {
                let (colour, count) = line.split_once(' ').unwrap();
                // A legend colour, or that of nothing at all behind a curve's end.
                pixels.insert(colours[colour], count.parse::<u64>().unwrap());
            }
            for class in document["classes"].as_array().unwrap() {
                let (name, pages) = (class["class"].as_str().unwrap(), class["pages"].as_u64().unwrap());
                let drawn = pixels.get(name).copied().unwrap_or(0);
                // Edges of pageblocks that are no memory are drawn as holes besides those of the map.
                assert!(
                    if name == "hole" { drawn >= pages } else { drawn == pages },
                    "{name}: {drawn} {pages}"
                );
            }
            let picture = &document["pictures"][0];
            let size = format!("size {} {}", picture["width"].as_u64().unwrap() + strips, picture["height"]);
            assert_eq!(line("size"), size);
            assert!(line("text Kernel").contains("6.1") && line("text Software").contains("pagelab"));
        }
    }
}

#[test]
fn mixtures_and_grids_are_pictures_too() {
    let lab = Lab::new();
    let root = machine(MACHINES[2]);
    for more in [&["--blend", "mix"][..], &["--grid"], &["--colours", "classic", "--blend", "worst"]] {
        let base = ["map", &root, "-o", "a.png", "--force", "--scale", "4", "--layout", "tiles"];
        let arguments = [&base[..], more].concat();
        let ran = lab.run(&arguments);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{more:?}");
        let Some(decoded) = python(&lab, DECODE, &["a.png", "16"]) else { return };
        assert!(decoded.lines().filter(|line| line.starts_with("colour")).count() > 2, "{decoded}");
    }
}

#[test]
fn an_svg_is_well_formed_and_labelled() {
    const PARSE: &str = r#"
import sys, base64
from xml.dom import minidom
page = minidom.parse(sys.argv[1])
print(page.getElementsByTagName('title')[0].firstChild.data)
print(page.getElementsByTagName('image')[0].getAttribute('href')[:22])
print(' '.join(t.firstChild.data for t in page.getElementsByTagName('text')))
"#;
    let lab = Lab::new();
    for order in ["rows", "tiles", "hilbert"] {
        let ran = lab.run(&["map", &machine(MACHINES[2]), "-o", "a.svg", "--force", "--layout", order]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{order}");
        let Some(said) = python(&lab, PARSE, &["a.svg"]) else { return };
        for word in [
            "Physical memory of",
            "data:image/png;base64,",
            "node 1 DMA32",
            "page table",
            "pageblocks of 2 MiB",
        ] {
            assert!(said.contains(word), "{order}: {word} is not in {said}");
        }
    }
}

#[test]
fn a_terminal_shows_letters_and_a_legend() {
    let lab = Lab::new();
    std::fs::copy(machine(MACHINES[0]), lab.path().join("m.tar.zst")).unwrap();
    let ran = lab.run(&["map", "m.tar.zst"]);
    let text: Vec<&str> = ran.out.lines().filter(|line| !line.contains("read in")).collect();
    expect![[r#"
        128 MiB of memory: 60.0 MiB free (47 %), 7.45 MiB movable, 0 B in huge pages,
        60.4 MiB unmovable or unknown
          Linux 6.1.0-56-cloud-amd64 · m.tar.zst/proc/kpageflags at 2026-11-22 00:58:00

          one pixel per 64 pages (256 KiB), rows of 12 MiB, showing the most frequent class
          DMA        0 B rrrru........................................... 0
          DMA32   12 MiB ................usuuusssussuuuuussssssssssssssss 0
                  24 MiB uuuuuussssssuuuussssssssssssssssssss............ 0
                  36 MiB uuuuuuuuuuuuuusssssskkkkuuusssss................ 0
                  48 MiB ................................................ 0
                  60 MiB ................................rrrrrrrrrrrrrrrr 0
                  72 MiB rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrra....... 0
                  84 MiB rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrra.....arrrrrrrr 0
                  96 MiB rrrrrrrrrrrrrrrra.........arrrrrrrrrrrrra....... 0
                 108 MiB aaaaaaaaaaaaaaaa........................raaaaaaa 0
                 120 MiB rrrrrrrrra.....................a                 0

                class                 pages    memory   share       DMA     DMA32
          .     free                 15 367  60.0 MiB    47 %  14.9 MiB  45.2 MiB
          a     anonymous, shared     1 906  7.45 MiB   5.8 %         —  7.45 MiB
          s     slab                  3 682  14.4 MiB    11 %         —  14.4 MiB
          p     page table               27   108 KiB  0.08 %         —   108 KiB
          r     reserved              9 035  35.3 MiB    28 %     1 MiB  34.3 MiB
          k     other kernel memory     284  1.11 MiB  0.87 %         —  1.11 MiB
          u     unknown: no flags     2 434  9.51 MiB   7.4 %   128 KiB  9.38 MiB
    "#]]
    .assert_eq(&format!("{}\n", text.join("\n")));
}

#[test]
fn a_page_holds_its_pixels_and_nothing_that_a_name_could_open() {
    let lab = Lab::new();
    let name = "a<script>b.tar.zst";
    std::fs::copy(machine(MACHINES[2]), lab.path().join(name)).unwrap();
    let ran = lab.run(&["map", name, "--html", "a.html", "--blend", "mix", "-o", "b.html", "-o", "c.svg"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    let page = std::fs::read_to_string(lab.path().join("a.html")).unwrap();
    assert_eq!(page, std::fs::read_to_string(lab.path().join("b.html")).unwrap());
    // The page's own program, the document, the pixels and their mixed colours.
    assert_eq!(page.matches("<script>").count(), 1);
    assert_eq!(page.matches("<script type=\"application/octet-stream\"").count(), 3);
    assert!(!page.contains("<!--pagelab:") && page.contains("a&lt;script&gt;b.tar.zst"));
    assert!(!std::fs::read_to_string(lab.path().join("c.svg")).unwrap().contains("<script>"));
}

#[test]
fn two_moments_are_compared_page_by_page() {
    let lab = Lab::new();
    let root = machine(MACHINES[1]);
    let same = json(&lab.run(&["map", "--diff", &root, &root, "--json"]));
    assert_eq!(same["changed_pages"], 0);
    assert_eq!(same["transitions"], Value::Array(vec![]));
    // Another machine's memory: parts that only one of the two has are reported.
    let ran = lab.run(&["map", "--diff", &root, &machine(MACHINES[0]), "--letters"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("note: the maps cover different memory"), "{}", ran.out);
    assert!(ran.out.contains("added or removed") && ran.out.contains("class before"), "{}", ran.out);
}

#[test]
fn free_blocks_of_captured_machines_agree_with_their_buddyinfo() {
    let lab = Lab::new();
    for name in MACHINES {
        let ran = lab.run(&["map", &machine(name), "--check", "--json"]);
        let document = json(&ran);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.out);
        for zone in document["zones"].as_array().unwrap() {
            let numbers = |field: &str| -> Vec<i64> {
                zone[field].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
            };
            let differences = numbers("rebuilt_blocks").into_iter().zip(numbers("before_blocks"));
            assert_eq!(differences.map(|(a, b)| a - b).collect::<Vec<_>>(), numbers("outside_blocks"));
        }
    }
    // A tree whose buddyinfo is of another moment altogether.
    let tree = lab.path().join("t");
    let unpacked = Command::new("sh")
        .args(["-c", "mkdir t && zstd -dcq \"$0\" | tar -x -C t", &machine(MACHINES[0])])
        .current_dir(lab.path())
        .status();
    if !unpacked.is_ok_and(|status| status.success()) {
        eprintln!("skipped: zstd-absent: no tree could be unpacked and changed");
        return;
    }
    let file = find(&tree, "buddyinfo").unwrap();
    std::fs::write(
        &file,
        "Node 0, zone DMA 1 1 1 1 1 1 1 1 1 1 1\nNode 0, zone DMA32 9 9 9 9 9 9 9 9 9 9 1\n",
    )
    .unwrap();
    let root = file.parent().unwrap().parent().unwrap().to_str().unwrap().to_owned();
    let ran = lab.run(&["map", &root, "--check"]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.starts_with("no: "), "{}", ran.out);
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|own| own == name) {
            return Some(path);
        }
        if path.is_dir()
            && let Some(found) = find(&path, name)
        {
            return Some(found);
        }
    }
    None
}

#[test]
fn a_process_and_this_machine_are_mapped_if_permitted() {
    let lab = Lab::new();
    let ran = lab.run(&["map", "--check"]);
    if ran.code == Some(4) {
        eprintln!("skipped: kpageflags-unreadable: {}", ran.err);
        assert!(ran.err.contains("run as root"), "{}", ran.err);
        return;
    }
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    let own = std::process::id().to_string();
    let ran = lab.run(&["map", "--pid", &own]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains(&format!("(pid {own})")) && ran.out.contains("longest run"), "{}", ran.out);
    let ran = lab.run(&["map", "--pid", "2"]);
    assert!(ran.code == Some(0) && ran.out.contains("has no user memory"), "{}{}", ran.out, ran.err);
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_read() {
    let lab = Lab::new();
    lab.write("a.tar", "no archive");
    lab.write("empty/proc/meminfo", "MemFree: 1 kB\n");
    let cases: [(&[&str], i32, &str); 20] = [
        (&["--width", "0"], 2, "an integer from 1 to"),
        (&["--width", "-3"], 2, "invalid value '-3' for '--width"),
        (&["--width", "99999999999"], 2, "an integer from 1 to"),
        (&["--layout", "hilbert", "--width", "64"], 2, "cannot be used together"),
        (&["--scale", "0"], 2, "--scale 0: expected a power of two"),
        (&["--scale", "3"], 2, "--scale 3: expected a power of two"),
        (&["--scale", "-1"], 2, "--scale -1: expected a power of two"),
        (&["--scale", "99999999999999999999"], 2, "a power of two"),
        (&["-o", "picture"], 2, "expected a name ending in .png"),
        (&["-o", "picture.gif"], 2, "unknown extension .gif"),
        (&["-o", "nowhere/a.png"], 3, "no directory nowhere"),
        (&["-o", "-"], 2, "expected a name ending in .png"),
        (&["--diff", "now"], 2, "2 values required"),
        (&["--diff", "now", "now", "--check"], 2, "--check and --diff cannot be used together"),
        (&["--check", "--html", "a.html"], 2, "--check draws no picture"),
        (&["--pid", "1", "--root", "empty"], 2, "--pid and MOMENT or --root cannot be used together"),
        (&["--pid", "0x1"], 2, "invalid value"),
        (&["a.tar"], 3, "expected a directory, a .tar or a .tar.zst"),
        (&["--root", "nothing"], 3, "no such file"),
        (&["empty"], 3, "zoneinfo"),
    ];
    for (arguments, code, said) in cases {
        let ran = lab.run(&[&["map"], arguments].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{arguments:?} {}", ran.err);
        assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
    }
    let root = machine(MACHINES[0]);
    let ran = lab.run(&["map", &root, "--grid", "--scale", "512", "-o", "a.png"]);
    assert!(ran.code == Some(2) && ran.err.contains("use --scale 128 or less"), "{}", ran.err);
    let left: Vec<_> = std::fs::read_dir(lab.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_full_disk_leaves_no_picture() {
    let lab = Lab::new();
    let script = format!(
        "\"$0\" map '{}' --scale 1 -o disk/a.png; code=$?; ls disk >&2; exit $code",
        machine(MACHINES[4])
    );
    let Some(ran) = lab.run_with_small_disk("16k", &script) else { return };
    assert_eq!(ran.code, Some(5), "{}", ran.err);
    assert!(
        ran.err.contains("cannot write disk/a.png") && ran.err.contains("hint: free space"),
        "{}",
        ran.err
    );
    assert!(!ran.err.lines().any(|line| line.starts_with("a.png")), "{}", ran.err);
}

#[test]
fn every_field_is_documented_and_no_null_is_without_its_reason() {
    let lab = Lab::new();
    let (a, b) = (machine(MACHINES[0]), machine(MACHINES[1]));
    let own = std::process::id().to_string();
    let runs: [&[&str]; 4] = [
        &["map", &a, "--json", "-o", "a.png", "--force"],
        &["map", "--diff", &a, &b, "--json", "-o", "a.svg", "--force"],
        &["map", &a, "--json", "--check"],
        &["map", "--pid", &own, "--json"],
    ];
    let docs = include_str!("../../../docs/json.md");
    let mut names = BTreeSet::new();
    for run in runs {
        let ran = lab.run(run);
        if ran.code == Some(4) {
            eprintln!("skipped: kpageflags-unreadable: {}", ran.err);
            continue;
        }
        fields(&json(&ran), &mut names);
    }
    let undocumented: Vec<&String> =
        names.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(undocumented.is_empty(), "not in docs/json.md: {undocumented:#?}");
}

fn fields(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match name.strip_suffix("_absent_reason") {
                    Some(of) => assert!(map[of].is_null(), "{name}"),
                    None => {
                        into.insert(name.clone());
                        assert_eq!(
                            value.is_null(),
                            map.contains_key(&format!("{name}_absent_reason")),
                            "{name}"
                        );
                    }
                }
                fields(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
        _ => {}
    }
}
