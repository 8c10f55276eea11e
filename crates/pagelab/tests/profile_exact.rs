//! Tests of `pagelab profile --source exact`: real programs in QEMU's user mode.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use pagelab_model::TlbProfile;
use pagelab_model::profile::{ImageProfile, ImageStart, MappingKind, MappingProfile};
use serde_json::Value;
use support::{Lab, binary};

/// Profiles; `None`: skipped with a message, because there is no QEMU and none can be downloaded.
fn profile(lab: &Lab, options: &[&str], command: &[&str]) -> Option<(TlbProfile, support::CommandOutput)> {
    let mut args = vec!["profile", "--source", "exact", "-o", "p.pagelab"];
    args.extend(options);
    args.push("--");
    args.extend(command);
    let ran = run(lab, &args);
    if ran.err.contains("cannot profile with --source exact: QEMU") {
        eprintln!("skipped: qemu-user-not-to-be-had: {}", ran.err.trim());
        return None;
    }
    let run = pagelab_runfile::read_run_file(&lab.path().join("p.pagelab"));
    let run = run.unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    Some((*run.profile.unwrap(), ran))
}

/// Runs pagelab with the PATH and the cache of the tester.
fn run(lab: &Lab, args: &[&str]) -> support::CommandOutput {
    let mut command = lab.command(args);
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    support::CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn of_program<'a>(profile: &'a TlbProfile, name: &str) -> Vec<&'a ImageProfile> {
    let is = |image: &&ImageProfile| Path::new(&image.program.path).file_name().unwrap() == name;
    profile.images.iter().filter(is).collect()
}

/// The hot regions that the workload itself tells come first, and nothing near them.
fn hot_regions_come_first(first: &str) {
    let lab = Lab::new();
    let mut command = vec![binary(), "workload", "hot-regions", "--size", "64M", "--hot", "4"];
    command.extend(["--rounds", "40000", "--first", first, "--advise", "nohuge"]);
    let Some((profile, ran)) = profile(&lab, &["--what-if", "all"], &command) else { return };
    let said: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    let hot: BTreeSet<u64> = said["hot_regions"].as_array().unwrap().iter().map(address_of).collect();
    // The buffer is refused as a whole, and all of it is mapped.
    let advice = profile.own_advice().unwrap();
    assert_eq!((advice.refused.0, advice.refused_sparse.0), (64 << 20, 0), "{advice:?}");
    let none = &profile.what_ifs[0];
    let mut order: Vec<(u64, u64)> = misses_by_address(&profile, 0).into_iter().collect();
    order.sort_by_key(|&(_, misses)| std::cmp::Reverse(misses));
    let first: BTreeSet<u64> = order[..hot.len()].iter().map(|(address, _)| *address).collect();
    assert_eq!(first, hot);
    let all = &profile.what_ifs[1];
    assert_eq!((none.name.as_str(), all.name.as_str()), ("none", "all"));
    assert!(all.misses * 20 < none.misses, "{} with huge pages, {} without", all.misses, none.misses);
    assert_eq!(none.misses, profile.images.iter().map(|image| image.misses).sum::<u64>());
    // Two ways to the same sum: by cell, and by thread.
    let cells = profile.images.iter().flat_map(|image| &image.mappings);
    let cells: u64 = cells.clone().map(|mapping| mapping.cells.misses.iter().sum::<u64>()).sum();
    assert_eq!(cells, none.misses);
}

#[test]
fn hot_regions_come_first_when_written() {
    hot_regions_come_first("write");
}

#[test]
fn hot_regions_come_first_when_only_read() {
    hot_regions_come_first("read");
}

#[test]
fn streams_and_exit_codes_are_the_programs_own() {
    let lab = Lab::new();
    let script = "echo out; echo err >&2; exit 7";
    let Some((first, ran)) = profile(&lab, &[], &["sh", "-c", script]) else { return };
    assert!(ran.code == Some(7) && ran.out.starts_with("out\n"), "{}", ran.out);
    assert!(ran.err.contains("err\n"), "{}", ran.err);
    assert_eq!((first.exit, first.images.len()), (Some(7), 1));
    std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    let Some((taken, ran)) = profile(&lab, &["--exit-codes", "0,7"], &["sh", "-c", script]) else { return };
    assert_eq!((ran.code, taken.exit), (Some(0), Some(7)), "{}", ran.err);
    std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    // Killed: the counts until then are stored.
    let Some((killed, ran)) = profile(&lab, &[], &["sh", "-c", "kill -9 $$"]) else { return };
    assert_eq!((ran.code, killed.exit), (Some(137), Some(137)));
    assert!(killed.images[0].accesses.unwrap() > 1000 && killed.images[0].misses > 10);
}

#[test]
fn forks_execs_and_scripts_are_followed() {
    let lab = Lab::new();
    lab.write("script", "#!/bin/sh\necho \"$0 $1\"\n");
    let script = lab.path().join("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = "(exit 0); seq 3 | cat; ./script word; exec seq 1";
    let Some((profile, ran)) = profile(&lab, &[], &["sh", "-c", line]) else { return };
    assert!(ran.out.starts_with("1\n2\n3\n./script word\n1\n"), "{}", ran.out);
    assert_eq!(profile.images[0].begun, ImageStart::Launched);
    assert!(profile.images.iter().filter(|image| image.begun == ImageStart::Forked).count() >= 3);
    assert_eq!(of_program(&profile, "seq").len(), 2);
    assert_eq!(of_program(&profile, "cat").len(), 1);
    for image in of_program(&profile, "seq") {
        assert_eq!(image.begun, ImageStart::Executed);
        assert!(image.parent.is_some() && image.accesses.unwrap() > 1000, "{image:?}");
    }
    // The last one took the place of the first shell.
    let last = of_program(&profile, "seq").pop().unwrap();
    assert!(profile.images.iter().any(|image| image.pid == last.pid && image.begun == ImageStart::Launched));
}

/// xz with two threads, each with its own TLBs and buffer. Its output is that of an unprofiled run.
#[test]
fn threads_are_seen_and_outputs_are_the_same() {
    let lab = Lab::new();
    let text: String = (0..100_000u32).map(|n| format!("{}\n", n.wrapping_mul(2_654_435_761))).collect();
    lab.write("text", &text);
    let threads = ["xz", "-1", "-k", "-T2", "--block-size=500KiB", "text"];
    if Command::new("xz").arg("--version").output().is_err() {
        eprintln!("skipped: xz-absent: there is no xz");
        return;
    }
    let Some((profile, ran)) = profile(&lab, &[], &threads) else { return };
    assert!(ran.code == Some(0), "{}", ran.err);
    let packed = std::fs::read(lab.path().join("text.xz")).unwrap();
    std::fs::remove_file(lab.path().join("text.xz")).unwrap();
    let native = Command::new("xz").args(&threads[1..]).current_dir(lab.path()).status().unwrap();
    assert!(native.success());
    assert!(packed == std::fs::read(lab.path().join("text.xz")).unwrap());
    let image = &profile.images[0];
    let cells = image.mappings.iter().flat_map(|mapping| &mapping.cells.accesses);
    assert_eq!(cells.sum::<u64>(), image.accesses.unwrap(), "no access is lost between two threads");
}

#[test]
fn a_window_reports_the_skipped_part() {
    let lab = Lab::new();
    let command = [binary(), "workload", "chase", "--size", "16M", "--steps", "20000"];
    let Some((profile, _)) = profile(&lab, &["--window", "100k/1M"], &command) else { return };
    let note = profile.notes.iter().find(|note| note.starts_with("counted ")).unwrap();
    assert!(note.contains(" accesses ("), "{note}");
}

/// Rests that are long enough for QEMU to drop its code: counts are scaled to the whole run, and the regions
/// that are hot come first.
#[test]
fn counts_of_a_window_stand_for_the_whole_run() {
    let lab = Lab::new();
    let mut command = vec![binary(), "workload", "hot-regions", "--size", "64M", "--hot", "4"];
    command.extend(["--rounds", "2400000", "--first", "read", "--advise", "nohuge"]);
    let Some((whole, _)) = profile(&lab, &[], &command) else { return };
    std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    let Some((part, ran)) = profile(&lab, &["--window", "300k/6M"], &command) else { return };
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let of = |profile: &TlbProfile| {
        let image = &profile.images[0];
        (image.accesses.unwrap() as f64, image.misses as f64)
    };
    let ((accesses, misses), (accesses_part, misses_part)) = (of(&whole), of(&part));
    let stretches = part.effort.stretches.unwrap();
    assert!(whole.effort.stretches.is_none() && stretches.count >= 8, "{stretches:?}");
    assert!((0.01..0.25).contains(&stretches.counted_share()), "{stretches:?}");
    assert!((accesses_part / accesses - 1.0).abs() < 0.1, "{accesses_part} for {accesses}");
    assert!((misses_part / misses - 1.0).abs() < 0.25, "{misses_part} for {misses}");
    let said: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    let hot: BTreeSet<u64> = said["hot_regions"].as_array().unwrap().iter().map(address_of).collect();
    let mut by_misses: Vec<(u64, u64)> = misses_by_address(&part, 0).into_iter().collect();
    by_misses.sort_by_key(|&(_, misses)| std::cmp::Reverse(misses));
    let first: BTreeSet<u64> = by_misses.iter().take(hot.len()).map(|&(address, _)| address).collect();
    assert_eq!(first, hot);
}

/// The plugin is reset at any moment: in forks, in helpers of QEMU with memory (x87, FXSAVE), and beside a
/// second thread.
#[test]
fn a_window_does_not_change_the_results_of_the_program() {
    let lab = Lab::new();
    let text: String = (0..40_000u64).map(|at| format!("{} {at}\n", at * 7919 % 65_537)).collect();
    lab.write("text", &text);
    for script in [
        "xz -6 -T1 -k -c text",
        "xz -6 -T2 --block-size=65536 -k -c text",
        "i=0; while [ $i -lt 6 ]; do sort -n text | tail -n 3; i=$((i + 1)); done; sort -g text | head -n 4",
    ] {
        let native = Command::new("sh").args(["-c", script]).current_dir(lab.path()).output().unwrap();
        if !native.status.success() {
            eprintln!("skipped: sort-or-xz-absent: {script}");
            continue;
        }
        let into = format!("( {script} ) > out");
        let window = ["--window", "60k/5100k"];
        let Some((found, ran)) = profile(&lab, &window, &["sh", "-c", &into]) else { return };
        assert_eq!(ran.code, Some(0), "{script}: {}", ran.err);
        assert!(std::fs::read(lab.path().join("out")).unwrap() == native.stdout, "{script}");
        let share = found.effort.stretches.unwrap().counted_share();
        assert!(share < 0.6, "{script}: {share}: threads say what they skipped");
        std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    }
}

#[test]
fn programs_that_cannot_be_profiled_are_refused_with_a_hint() {
    let lab = Lab::new();
    lab.write("text", "no program\n");
    let path = lab.path().join("text");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let cases: [(&[&str], &[&str], i32, &str); 6] = [
        (&["--tlb", "l1=64:2M"], &["true"], 3, "has no entries for base pages"),
        (&["--tlb", "x"], &["true"], 2, "--tlb: column 1"),
        (&["--window", "9/3"], &["true"], 2, "for example 10M/100M"),
        (&["--what-if", "nowhere"], &["true"], 3, "use --what-if all, or a plan file"),
        (
            &[],
            &["no-such-program-here"],
            3,
            "cannot start no-such-program-here: no such executable in PATH (",
        ),
        (&[], &["./text"], 4, "--source accessed"),
    ];
    for (options, command, code, says) in cases {
        let mut args = vec!["profile", "--source", "exact", "-o", "p.pagelab"];
        args.extend(options);
        args.push("--");
        args.extend(command);
        let ran = run(&lab, &args);
        assert_eq!(ran.code, Some(code), "{options:?} {command:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{options:?} {command:?}: {}", ran.err);
        assert!(!lab.path().join("p.pagelab").exists());
    }
}

/// There is neither a QEMU in PATH nor apt.
#[test]
fn the_error_without_qemu_names_both_remedies() {
    let lab = Lab::new();
    let mut command = lab.command(&["profile", "--source", "exact", "--", "/bin/true"]);
    command.env("PATH", lab.path()).env("XDG_CACHE_HOME", lab.path().join("cache"));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("cannot find apt-get") && said.contains("qemu-x86_64"), "{said}");
}

/// A plan made of a profile, modelled in a second run: its regions are found again by their mappings, and
/// what is left of their misses is one walk of each huge page. The others lose a little, since entries are
/// free for them. All misses together do not halve: 7 of 10 reads go anywhere, to 28 regions that are not
/// planned.
#[test]
fn a_plan_is_a_set_of_huge_pages() {
    let lab = Lab::new();
    // The TLBs of no machine in particular, so that the counts are the same on all.
    let tlb = ["--tlb", "l1d=64x4:4K,32x4:2M,l2=2048x8:4K+2M"];
    let mut command = vec![binary(), "workload", "hot-regions", "--size", "64M", "--hot", "4"];
    command.extend(["--rounds", "20000", "--first", "write", "--advise", "nohuge"]);
    if profile(&lab, &tlb, &command).is_none() {
        return;
    }
    let planned = run(&lab, &["plan", "p.pagelab", "-n", "4", "-o", "plan.toml"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    let options = [&tlb[..], &["--what-if", "plan.toml"]].concat();
    let Some((profile, ran)) = profile(&lab, &options, &command) else { return };
    let said: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    let hot: Vec<u64> = said["hot_regions"].as_array().unwrap().iter().map(address_of).collect();
    assert_eq!(hot.len(), 4);
    let [none, plan] = &profile.what_ifs[..] else { panic!("{:?}", profile.what_ifs.len()) };
    assert_eq!(plan.name, "plan.toml");
    let (before, after) = (misses_by_address(&profile, 0), misses_by_address(&profile, 1));
    let of_hot = |of: &BTreeMap<u64, u64>| -> u64 { hot.iter().map(|at| of.get(at).unwrap_or(&0)).sum() };
    assert!(of_hot(&before) * 5 > none.misses, "{} of {}", of_hot(&before), none.misses);
    assert!((4..=8).contains(&of_hot(&after)), "{} walks of 4 huge pages", of_hot(&after));
    let huge: u64 = plan.sizes.iter().filter(|size| size.page.0 == 2 << 20).map(|size| size.misses).sum();
    assert_eq!(huge, of_hot(&after), "what is walked as huge pages is the plan and nothing else");
    for (address, misses) in before.iter().filter(|(address, _)| !hot.contains(address)) {
        let after = after.get(address).copied().unwrap_or(0);
        assert!(after <= misses + misses / 20 + 8, "{address:#x}: {misses} misses become {after}");
        assert!(after * 4 >= misses * 3, "{address:#x}: {misses} misses become {after}, without a huge page");
    }
    assert!(plan.misses + of_hot(&before) <= none.misses + of_hot(&after), "{} {}", plan.misses, none.misses);
}

fn address_of(region: &Value) -> u64 {
    region["address"].as_u64().unwrap()
}

/// Misses of a pass by the address of the region, in anonymous memory.
fn misses_by_address(profile: &TlbProfile, pass: usize) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for region in &profile.what_ifs[pass].regions {
        let mapping = &profile.images[region.image as usize].mappings[region.mapping as usize];
        if mapping.key.kind == MappingKind::Anonymous {
            *found.entry(mapping.start + region.offset).or_default() += region.misses;
        }
    }
    found
}

/// Mappings over each other, moved, grown, shrunk and cut: each write and each miss is at its key and offset.
#[test]
fn overlaid_moved_and_truncated_mappings_keep_their_identity() {
    let lab = Lab::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mappings.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-o", "mappings"]).arg(source).current_dir(lab.path());
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return eprintln!("skipped: no-cc: {error}"),
    }
    lab.write("file", vec![0u8; 4 << 20]);
    // Fewer entries than any stretch has pages: a visit of a page is one miss.
    let options = ["--tlb", "l1d=16x4:4K,8x4:2M,l2=64x4:4K+2M", "--what-if", "all"];
    let Some((profile, ran)) = profile(&lab, &options, &["./mappings", "file"]) else { return };
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let [image] = &profile.images[..] else { panic!("{} images", profile.images.len()) };
    let anonymous = |megabytes: u64, nth: u32| {
        let is = |mapping: &&MappingProfile| {
            let key = &mapping.key;
            key.kind == MappingKind::Anonymous && key.bytes.0 == megabytes << 20 && key.nth == nth
        };
        image.mappings.iter().find(is).unwrap_or_else(|| panic!("no mapping {nth} of {megabytes} MiB"))
    };
    let file = lab.path().join("file").canonicalize().unwrap();
    let named = MappingKind::File(file.display().to_string());
    let of_file = image.mappings.iter().find(|mapping| mapping.key.kind == named).unwrap();
    // (mapping, [(from MiB, to MiB, accesses and misses of each page)]).
    type Stretch = (u64, u64, u64, u64);
    let cases: [(&MappingProfile, &[Stretch]); 9] = [
        (anonymous(64, 0), &[(0, 1, 1, 1)]),
        (anonymous(9, 0), &[(0, 5, 6, 3), (5, 9, 5, 2)]),
        (anonymous(7, 0), &[(0, 2, 1, 1), (2, 7, 7, 2)]),
        (anonymous(3, 0), &[(0, 3, 4, 1)]),
        (anonymous(5, 0), &[(0, 5, 6, 3), (5, 6, 4, 2), (6, 10, 3, 1)]),
        (anonymous(5, 1), &[(0, 5, 7, 1)]),
        (anonymous(11, 0), &[(0, 8, 1, 1), (8, 11, 3, 2)]),
        (anonymous(2, 0), &[(0, 2, 8, 1)]),
        (of_file, &[]),
    ];
    const PAGES: u64 = (1 << 20) / 4096;
    for (mapping, stretches) in cases {
        let cells = &mapping.cells;
        let counted = cells.at.iter().zip(cells.accesses.iter().zip(&cells.misses));
        let counted: Vec<(u64, u64, u64)> = counted.map(|(&at, (&a, &m))| (at, a, m)).collect();
        let mut wanted: Vec<(u64, u64, u64)> = Vec::new();
        for &(from, to, accesses, misses) in stretches {
            wanted.extend((from * PAGES..to * PAGES).map(|page| (page, accesses, misses)));
        }
        if stretches.is_empty() {
            // The second to the 513th page of the file.
            wanted.extend((1..=2 * PAGES).map(|page| (page, 5, 1)));
        }
        let first = counted.iter().zip(&wanted).find(|(counted, wanted)| counted != wanted);
        assert_eq!((first, counted.len()), (None, wanted.len()), "{:?}", mapping.key);
    }
    let said = ran.out.lines().next().unwrap();
    let said: Vec<u64> = said.split(' ').map(|word| u64::from_str_radix(&word[2..], 16).unwrap()).collect();
    let starts = [(9, 0), (5, 0), (11, 0), (2, 0)].map(|(bytes, nth)| anonymous(bytes, nth).start);
    assert_eq!(starts[..], said, "the last place of the reclaimed pages moved");
    // Part of each mapping has no huge page, because of a hole, the file or the end.
    let (none, all) = (&profile.what_ifs[0], &profile.what_ifs[1]);
    assert!(all.misses * 2 < none.misses, "{} with huge pages, {} without", all.misses, none.misses);
}

/// Each of many children has its own image, and none is lost.
#[test]
fn two_hundred_forks_are_two_hundred_images() {
    let lab = Lab::new();
    let script = "i=0; while [ $i -lt 200 ]; do (exit 3); i=$((i+1)); done; echo $i";
    let Some((profile, ran)) = profile(&lab, &[], &["sh", "-c", script]) else { return };
    assert!(ran.out.starts_with("200\n"), "{}", ran.out);
    let forked: Vec<_> = profile.images.iter().filter(|image| image.begun == ImageStart::Forked).collect();
    assert_eq!(forked.len(), 200);
    assert!(forked.iter().all(|image| image.parent == Some(0) && image.accesses.unwrap() > 0));
}

/// Nothing is downloaded if nothing can be, and a hint is given.
#[test]
fn the_error_of_a_setup_without_apt_has_a_hint() {
    let lab = Lab::new();
    for options in [&[][..], &["--dry-run"]] {
        let mut command = lab.command(&[&["profile", "setup"], options].concat());
        command.env("PATH", lab.path()).env("XDG_CACHE_HOME", lab.path().join("cache"));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("cannot find apt-get") && said.contains("--source accessed"), "{said}");
    }
}
