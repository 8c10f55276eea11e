//! Tests of `pagelab frag` against independent oracles: the kernel's printed tables and totals.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{CommandOutput, Lab, corpus};

/// Files of a folder of the corpus, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn frag(path: &Path, args: &[&str]) -> CommandOutput {
    let from = ["frag", "--from", path.to_str().unwrap()];
    let ran = Lab::new().run(&[&from[..], args].concat());
    assert_eq!(ran.code, Some(0), "{}: {}", path.display(), ran.err);
    ran
}

fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn all_cells_of_the_kernels_printed_indices_agree() {
    let Some(corpus) = corpus() else { return };
    let mut compared = 0;
    for golden in files(&corpus.join("golden-extfrag")) {
        let format = match golden.extension().and_then(|name| name.to_str()) {
            Some("unusable_index") => "unusable",
            Some("extfrag_index") => "extfrag",
            _ => continue,
        };
        let ours = frag(&golden.with_extension("buddyinfo"), &["--format", format]).out;
        let golden = std::fs::read_to_string(&golden).unwrap();
        assert_eq!(cells(&ours), cells(&golden));
        compared += cells(&golden).iter().map(|line| line.len() - 4).sum::<usize>();
    }
    // Two tables of three zones in two forms and one of ten zones, of eleven orders each.
    assert_eq!(compared, 2 * 2 * 33 + 110);
}

#[test]
fn every_report_is_read_and_its_printed_totals_add_up_again() {
    let Some(corpus) = corpus() else { return };
    // Orders, page size, zones with and without memory, as the mails have them.
    let expected = [
        ("arm-13orders-highmem-cma.txt", 13, 4096, 2, 0),
        ("arm64-64k-cma-14orders.txt", 14, 65536, 1, 0),
        ("ia64-16k-17orders.txt", 17, 16384, 2, 2),
        ("ia64-64k-2node.txt", 17, 65536, 3, 0),
        ("nommu-21orders.txt", 21, 4096, 1, 0),
        ("numaq-i386-highmem.txt", 11, 4096, 6, 6),
        ("opteron-8node-oom.txt", 11, 4096, 9, 0),
        ("x86-4node.txt", 11, 4096, 4, 0),
    ];
    let paths = files(&corpus.join("show-mem"));
    assert_eq!(paths.len(), expected.len());
    for (path, (name, orders, page_size, zones, without_memory)) in paths.iter().zip(expected) {
        assert_eq!(path.file_name().unwrap(), name);
        let json: serde_json::Value = serde_json::from_str(&frag(path, &["--json"]).out).unwrap();
        assert_eq!(json["page_size_bytes"], page_size, "{name}");
        assert_eq!(json["zones"].as_array().unwrap().len(), zones, "{name}");
        assert_eq!(json["zones_without_memory"].as_array().unwrap().len(), without_memory, "{name}");
        let text = std::fs::read_to_string(path).unwrap();
        let totals = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(" = ")?.1.strip_suffix("kB")?.parse::<u64>().ok());
        let ours = json["zones"].as_array().unwrap().iter().map(|zone| {
            assert_eq!(zone["free_blocks"].as_array().unwrap().len(), orders, "{name}");
            zone["free_pages"].as_u64().unwrap() * page_size / 1024
        });
        assert!(totals.eq(ours), "{name}");
    }
}

#[test]
fn every_buddyinfo_is_read_in_every_format() {
    let Some(corpus) = corpus() else { return };
    let mut read = 0;
    for machine in files(&corpus.join("proc")) {
        for path in files(&machine) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if !name.eq_ignore_ascii_case("buddyinfo") && !name.starts_with("BUDDYINFO_") {
                continue;
            }
            for args in [&["--json"][..], &["--explain", "--paper"], &["--format", "extfrag"], &["--paper"]] {
                frag(&path, args);
            }
            read += 1;
        }
    }
    assert_eq!(read, 11);
}

/// The answers of `expected.txt` of both folders, which a person computed.
#[test]
fn a_pagetypeinfo_is_read_as_its_tables_are_and_not_as_buddyinfo() {
    let Some(corpus) = corpus() else { return };
    let json = |path: &str, args: &[&str]| -> serde_json::Value {
        let ran = frag(&corpus.join("failures").join(path), &[args, &["--json", "--order", "9"]].concat());
        serde_json::from_str(&ran.out).unwrap()
    };
    let document = json("a08-12order-cma-arm64/pagetypeinfo", &[]);
    assert_eq!(document["source"]["kind"], "pagetypeinfo");
    let [dma32, normal] = &document["zones"].as_array().unwrap()[..] else { panic!("{document}") };
    for (zone, free, unusable, blocks, cma_blocks) in
        [(dma32, 197_697, 23, 377, 120), (normal, 6945, 852, 2, 0)]
    {
        assert_eq!(zone["free_blocks"].as_array().unwrap().len(), 12);
        assert_eq!(zone["free_pages"], free);
        assert_eq!(zone["unusable_index_permille"][9], unusable);
        assert_eq!(zone["usable_blocks"][9], blocks);
        assert_eq!(zone["cma"]["usable_blocks"][9], cma_blocks);
        assert_eq!(zone["movable_request"]["usable_blocks"][9], blocks - cma_blocks);
    }
    assert!((dma32["unusable_index"][9].as_f64().unwrap() - 0.0236).abs() < 0.0001);
    assert!((normal["unusable_index"][9].as_f64().unwrap() - 0.8526).abs() < 0.0001);
    let pageblocks = |zone: &serde_json::Value| -> Vec<u64> {
        let rows = zone["free_by_migratetype"].as_array().unwrap();
        rows.iter().map(|row| row["pageblocks"].as_u64().unwrap()).collect()
    };
    assert_eq!(pageblocks(dma32), [16, 804, 12, 0, 192, 0]);
    assert_eq!(pageblocks(normal), [1166, 856, 26, 0, 0, 0]);

    let file = "a02-lg-driver-unmovable/pagetypeinfo+buddyinfo.txt";
    let types = json(file, &["--report", "1"]);
    let (of_types, of_buddy) = (&types["zones"][0], &json(file, &[])["zones"][0]);
    assert_eq!(
        (of_types["free_pages"].as_u64(), of_buddy["free_pages"].as_u64()),
        (Some(27_607), Some(27_590))
    );
    assert_eq!(of_types["free_blocks"][0], 9913);
    assert_eq!(of_buddy["free_blocks"][0], 9880);
    assert_eq!(of_types["movable_request"]["usable_blocks"][9], 3, "Reserve holds them");
    let by_type = of_types["free_by_migratetype"].as_array().unwrap().iter().map(|row| {
        let counts = row["free_blocks_min"].as_array().unwrap().iter().enumerate();
        counts.map(|(order, count)| count.as_u64().unwrap() << order).sum::<u64>() * 4
    });
    assert_eq!(by_type.collect::<Vec<_>>(), [59_008, 6456, 37_472, 7492, 0, 0]);
    assert_eq!(pageblocks(of_types), [135, 3, 124, 2, 0, 0]);
    for (path, orders) in
        [(file, [559, 656, 944]), ("a02-lg-driver-unmovable/after-refill.txt", [309, 467, 944])]
    {
        let zone = &json(path, &[])["zones"][0];
        assert_eq!([3, 4, 9].map(|order| zone["unusable_index_permille"][order].as_u64().unwrap()), orders);
    }
}

/// In DMA blocks of the order are free, and lowmem_reserve refuses the request, as `expected.toml` computes.
#[test]
fn a_zone_that_lowmem_reserve_refuses_is_not_said_to_serve_the_request() {
    let Some(corpus) = corpus() else { return };
    let explain = |name: &str| {
        let path = corpus.join("failures").join(name).join("input.txt");
        let text = frag(&path, &["--explain"]).out;
        assert!(!text.contains("would succeed"), "{text}");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let old = explain("b01-r8169-2632-order3");
    assert!(
        old.contains("3977 − 7 (2^3 − 1) ≤ 3 (3/8 of min) + 3975 (lowmem_reserve for zone Normal)"),
        "{old}"
    );
    assert!(old.contains("3970 ≤ 3978"), "{old}");
    assert!(
        old.contains("without the free blocks below order 1, 275 pages remain, and the watermark is 282"),
        "{old}"
    );
    let new = explain("b03-atlantic-67-boost-order5");
    assert!(new.contains("3327 − 31 (2^5 − 1) ≤ 16 (min) + 15744 (lowmem_reserve for zone Normal)"), "{new}");
    assert!(new.contains("15871 ≤ 15910"), "{new}");
    assert!(new.contains("37444 − 31 (2^5 − 1) − 512 (highatomic reserve) ≤ 36935 (min) + 0"), "{new}");
}

#[test]
fn every_pagetypeinfo_has_the_free_blocks_of_the_buddyinfo_beside_it() {
    let Some(corpus) = corpus() else { return };
    let mut compared = 0;
    for machine in files(&corpus.join("proc")) {
        let path = machine.join("pagetypeinfo");
        if !path.is_file() {
            continue;
        }
        let json = |path: &Path| -> serde_json::Value {
            serde_json::from_str(&frag(path, &["--json"]).out).unwrap()
        };
        let (types, buddy) = (json(&path), json(&machine.join("buddyinfo")));
        let zones = types["zones"].as_array().unwrap().iter().zip(buddy["zones"].as_array().unwrap());
        for (types, buddy) in zones {
            assert_eq!((&types["node"], &types["zone"]), (&buddy["node"], &buddy["zone"]));
            let orders = |zone: &serde_json::Value| zone["free_blocks"].as_array().map(Vec::len);
            assert_eq!(orders(types), orders(buddy), "{}", path.display());
            compared += 1;
        }
        for args in [&["--explain", "--paper"][..], &["--format", "extfrag"], &["--paper"], &["--order", "2"]]
        {
            frag(&path, args);
        }
    }
    assert_eq!(compared, 16);
}

/// Where debugfs is mounted, or the reason that it is not.
#[test]
fn the_kernels_own_files_are_the_same_bytes() {
    let mounted = Path::new("/sys/kernel/debug/extfrag/unusable_index").exists();
    // The mount is made in a mount namespace of its own, which ends with the shell: the host never sees it.
    const SCRIPT: &str = r#"
        [ -e /sys/kernel/debug/extfrag ] || mount -t debugfs debugfs /sys/kernel/debug || exit 99
        for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            cat /proc/buddyinfo > before
            cat /sys/kernel/debug/extfrag/unusable_index > unusable
            cat /sys/kernel/debug/extfrag/extfrag_index > extfrag
            cat /proc/buddyinfo > after
            cmp -s before after && exit 0
        done
        exit 98
    "#;
    let lab = Lab::new();
    let mut command = if mounted { Command::new("sh") } else { Command::new("unshare") };
    if !mounted {
        command.args(["-m", "sh"]);
    }
    let output = command.args(["-c", SCRIPT]).current_dir(lab.path()).output();
    let why = match &output {
        Ok(output) if output.status.code() == Some(98) => {
            eprintln!("skipped: buddyinfo-moving: 20 readings in a row differed");
            return;
        }
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        eprintln!("skipped: debugfs-not-mountable: {why}");
        return;
    }
    for format in ["unusable", "extfrag"] {
        let kernels = std::fs::read_to_string(lab.path().join(format)).unwrap();
        let ours = lab.run(&["frag", "--from", "before", "--format", format]);
        assert_eq!(ours.out, kernels);
    }
}
