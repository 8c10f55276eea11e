//! Tests of captured machines with unusual layouts: each is read without a problem and adds up. says of
//! itself what it was booted with.
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::Lab;

/// What a machine was booted with, and so must be found again.
struct Expected {
    name: &'static str,
    /// The beginning of its kernel's release.
    kernel: &'static str,
    nodes: usize,
    cpus: u64,
    /// Zones with memory, as node and name.
    zones: &'static [&'static str],
    /// MiB of memory that it was given; the kernel keeps up to 64 MiB and 10 % for itself.
    memory_mib: u64,
    swap_mib: u64,
    cgroup: &'static str,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines")
}

fn checkup(name: &str) -> Value {
    let archive = folder().join(name).canonicalize().unwrap();
    let ran = Lab::new().run(&["checkup", "--json", "--root", archive.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{name}");
    serde_json::from_str(&ran.out).unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn each_machine_says_what_it_was_booted_with() {
    for expected in &EXPECTED {
        let (name, found) = (expected.name, checkup(expected.name));
        let machine = &found["machine"];
        let kernel = machine["kernel_release"].as_str().unwrap();
        assert!(kernel.starts_with(expected.kernel), "{name}: {kernel}");
        assert_eq!(array(&machine["nodes"]).len(), expected.nodes, "{name}");
        assert_eq!(machine["cpu"]["threads"], expected.cpus, "{name}");
        let zones = array(&found["fragmentation"]["zones"]).iter();
        let zones: Vec<String> =
            zones.map(|zone| format!("{} {}", zone["node"], zone["zone"].as_str().unwrap())).collect();
        assert_eq!(zones, expected.zones, "{name}");
        let total_mib = found["use"]["total_bytes"].as_u64().unwrap() >> 20;
        let least = expected.memory_mib * 9 / 10 - 64;
        assert!((least..=expected.memory_mib).contains(&total_mib), "{name}: {total_mib} MiB");
        let swap_mib = found["use"]["swap_total_bytes"].as_u64().unwrap().div_ceil(1 << 20);
        assert_eq!(swap_mib, expected.swap_mib, "{name}");
        assert_eq!(machine["cgroup"]["version"], expected.cgroup, "{name}");
    }
}

#[test]
fn each_machine_adds_up() {
    for Expected { name, .. } in &EXPECTED {
        let found = checkup(name);
        assert_eq!(array(&found["problems"]), [] as [Value; 0], "{name}");
        let sum = |parts: &[&str]| parts.iter().map(|part| found["use"][part].as_u64().unwrap()).sum::<u64>();
        let parts = [
            "free_bytes",
            "programs_bytes",
            "page_cache_bytes",
            "slab_bytes",
            "page_tables_bytes",
            "kernel_stacks_bytes",
            "hugetlb_bytes",
            "not_accounted_bytes",
        ];
        assert_eq!(sum(&parts), sum(&["total_bytes"]), "{name}");
        // The kernel's own indices, where the capture has them, are the oracle of ours.
        let comparison = &found["fragmentation"]["kernel_comparison"];
        if name.starts_with("guest-") {
            let (cells, differing) = (&comparison["cells"], &comparison["cells_differing"]);
            assert!(cells.as_u64() > Some(0) && *differing == 0, "{name}: {comparison}");
        }
    }
}

#[test]
fn the_folder_the_list_and_the_provenance_name_the_same_machines() {
    let listed: BTreeSet<String> = EXPECTED.iter().map(|expected| expected.name.to_owned()).collect();
    let entries = std::fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = names.filter(|name| name.ends_with(".tar.zst")).collect();
    assert_eq!(there, listed);
    let provenance = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for name in &there {
        assert!(provenance.contains(&format!("| `{name}` |")), "{name} has no line of provenance");
    }
}

const EXPECTED: [Expected; 5] = [
    Expected {
        name: "guest-6.1-128m.tar.zst",
        kernel: "6.1.",
        nodes: 1,
        cpus: 1,
        zones: &["0 DMA", "0 DMA32"],
        memory_mib: 128,
        swap_mib: 0,
        cgroup: "2",
    },
    Expected {
        name: "guest-6.1-kernelcore.tar.zst",
        kernel: "6.1.",
        nodes: 1,
        cpus: 2,
        zones: &["0 DMA", "0 DMA32", "0 Movable"],
        memory_mib: 512,
        swap_mib: 0,
        cgroup: "1",
    },
    Expected {
        name: "guest-6.12-2nodes.tar.zst",
        kernel: "6.12.",
        nodes: 2,
        cpus: 2,
        zones: &["0 DMA", "0 DMA32", "1 DMA32"],
        memory_mib: 512,
        swap_mib: 64,
        cgroup: "2",
    },
    Expected {
        name: "guest-6.12-hugetlb.tar.zst",
        kernel: "6.12.",
        nodes: 3,
        cpus: 3,
        zones: &["0 DMA", "0 DMA32", "0 Movable", "1 DMA32", "1 Movable", "2 DMA32", "2 Movable"],
        memory_mib: 768,
        swap_mib: 0,
        cgroup: "2",
    },
    Expected {
        name: "host-6.18-vm.tar.zst",
        kernel: "6.18.",
        nodes: 1,
        cpus: 2,
        zones: &["0 DMA", "0 DMA32", "0 Normal"],
        memory_mib: 24 << 10,
        swap_mib: 0,
        cgroup: "hybrid",
    },
];

/// Facts of single machines that only they can show: a limit of cgroup v2, a hugetlb pool.
#[test]
fn features_of_a_single_machine_are_found_on_it() {
    let facts: [(&str, &str, Value); 5] = [
        ("guest-6.1-128m.tar.zst", "/machine/cgroup/memory_limit_bytes", (64 << 20).into()),
        ("guest-6.1-128m.tar.zst", "/machine/cgroup/path", "/pagelab".into()),
        ("guest-6.12-hugetlb.tar.zst", "/use/hugetlb_bytes", (32 << 20).into()),
        ("guest-6.12-hugetlb.tar.zst", "/settings/thp/enabled", "always".into()),
        ("host-6.18-vm.tar.zst", "/fragmentation/free_balance/verdict", "agree".into()),
    ];
    for (name, pointer, expected) in facts {
        let found = checkup(name);
        let at = found.pointer(pointer).unwrap_or(&Value::Null);
        assert_eq!(*at, expected, "{name} {pointer}");
    }
}

/// What happens to a file of a saved tree.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Removed,
    Empty,
    /// Its second half is lost.
    Cut,
    /// A directory has its name, so that it cannot be read.
    Unreadable,
}

/// Files above this size hold a word a page, and have their own tests.
const SMALL_BYTES: u64 = 1 << 20;

/// Numbers and truth values of a document, by path. Times of this process, and whether an instrument works,
/// are no values of the machine.
fn values_of(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter().filter(|(name, _)| !name.ends_with("_ns") && *name != "works")
            {
                values_of(field, &format!("{path}.{name}"), found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                values_of(item, &format!("{path}[{at}]"), found);
            }
        }
        Value::Number(_) | Value::Bool(_) => drop(found.insert(path.to_owned(), value.clone())),
        Value::Null | Value::String(_) => {}
    }
}

fn small_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() {
            small_files(&path, found);
        } else if meta.is_file() && meta.len() <= SMALL_BYTES {
            found.push(path);
        }
    }
}

/// The tree of an archive, in a folder of `lab`.
fn unpack(archive: &str, lab: &Lab) -> PathBuf {
    let bytes = std::fs::read(folder().join(archive)).unwrap();
    lab.write("tree.tar", zstd::decode_all(&*bytes).unwrap());
    let tree = lab.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let mut unpacking = Command::new("tar");
    unpacking.arg("-xf").arg(lab.path().join("tree.tar")).arg("-C").arg(&tree);
    assert!(unpacking.status().unwrap().success());
    tree
}

/// Each small file of a tree is removed, emptied, cut and made unreadable in turn. No value of the machine
/// becomes zero by that, and a number that may be cut is named.
#[test]
fn a_file_that_cannot_be_read_is_never_a_zero() {
    let lab = Lab::new();
    let tree = unpack("guest-6.1-kernelcore.tar.zst", &lab);
    let look = || {
        let ran = lab.run(&["checkup", "--json", "--root", tree.to_str().unwrap()]);
        let mut values = BTreeMap::new();
        let document = serde_json::from_str(&ran.out).unwrap_or(Value::Null);
        values_of(&document, "", &mut values);
        (ran, document, values)
    };
    let is_zero = |value: &Value| value.as_f64() == Some(0.0) || value == &Value::Bool(false);
    let (intact, _, before) = look();
    assert_eq!((intact.code, before.len() > 500), (Some(0), true), "{}", intact.err);
    let mut files = Vec::new();
    small_files(&tree, &mut files);
    assert!(files.len() > 150, "{}", files.len());
    for file in &files {
        let content = std::fs::read(file).unwrap();
        let name = file.strip_prefix(&tree).unwrap().display().to_string();
        let half = &content[..content.len() / 2];
        for fault in [Fault::Removed, Fault::Empty, Fault::Cut, Fault::Unreadable] {
            std::fs::remove_file(file).unwrap();
            match fault {
                Fault::Removed => {}
                Fault::Empty => std::fs::write(file, b"").unwrap(),
                Fault::Cut => std::fs::write(file, half).unwrap(),
                Fault::Unreadable => std::fs::create_dir(file).unwrap(),
            }
            let (ran, document, after) = look();
            if fault == Fault::Unreadable {
                std::fs::remove_dir(file).unwrap();
            }
            std::fs::write(file, &content).unwrap();
            assert!(matches!(ran.code, Some(0 | 3)), "{name} {fault:?}: {:?} {}", ran.code, ran.err);
            for (path, value) in after.iter().filter(|(_, value)| is_zero(value)) {
                let was = before.get(path).filter(|was| !is_zero(was));
                assert!(was.is_none(), "{name} {fault:?}: {path} is {value}, was {was:?}");
            }
            let may_be_wrong = fault == Fault::Cut && !half.is_empty() && !half.ends_with(b"\n");
            if may_be_wrong && after != before {
                let is_named = document["problems"].to_string().contains(name.trim_end_matches(".zst"));
                assert!(ran.code == Some(3) && is_named, "{name} cut: {}", document["problems"]);
            }
        }
    }
}

/// Files with counts of the machine, each of its own format.
const COUNTED: [&str; 12] = [
    "buddyinfo",
    "meminfo",
    "vmstat",
    "zoneinfo",
    "pagetypeinfo",
    "slabinfo",
    "pressure/memory",
    "cpuinfo",
    "self/mountinfo",
    "swaps",
    "iomem",
    "uptime",
];

/// Each file has the content of each other in turn: it is named, and nothing of it is believed.
#[test]
fn a_file_with_the_content_of_another_is_named() {
    let lab = Lab::new();
    let tree = unpack("guest-6.1-kernelcore.tar.zst", &lab);
    let path = |name: &str| tree.join("proc").join(name);
    let contents = COUNTED.map(|name| std::fs::read(path(name)).unwrap());
    for (name, content) in COUNTED.iter().zip(&contents) {
        for (other, foreign) in COUNTED.iter().zip(&contents).filter(|(other, _)| *other != name) {
            std::fs::write(path(name), foreign).unwrap();
            let ran = lab.run(&["checkup", "--json", "--root", tree.to_str().unwrap()]);
            std::fs::write(path(name), content).unwrap();
            let document: Value = serde_json::from_str(&ran.out).unwrap();
            let problems = document["problems"].to_string();
            assert!(ran.code == Some(3) && problems.contains(name), "{name} <- {other}: {problems}");
        }
    }
}
