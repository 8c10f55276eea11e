//! `pagelab profile --source exact`: real programs in QEMU's user mode.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use pagelab_model::Profile;
use pagelab_model::profile::{Begun, ImageProfile, MappingKind};
use serde_json::Value;
use support::Lab;

/// The program under test, also as the one that is profiled: it is static.
const PAGELAB: &str = env!("CARGO_BIN_EXE_pagelab");

/// Profiles; `None` means that it was skipped, which is said: there is no QEMU, and none to be had.
fn profile(lab: &Lab, options: &[&str], command: &[&str]) -> Option<(Profile, support::Ran)> {
    let mut args = vec!["profile", "--source", "exact", "-o", "p.pagelab"];
    args.extend(options);
    args.push("--");
    args.extend(command);
    let ran = run(lab, &args);
    if ran.err.contains("needs QEMU's user mode") {
        eprintln!("skipped: qemu-user-not-to-be-had: {}", ran.err.trim());
        return None;
    }
    let run = pagelab_runfile::read(&lab.path().join("p.pagelab"));
    let run = run.unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    Some((*run.profile.unwrap(), ran))
}

/// Runs pagelab with the PATH and the cache of whoever tests.
fn run(lab: &Lab, args: &[&str]) -> support::Ran {
    let mut command = lab.command(args);
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    support::Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn of_program<'a>(profile: &'a Profile, name: &str) -> Vec<&'a ImageProfile> {
    let is = |image: &&ImageProfile| Path::new(&image.program.path).file_name().unwrap() == name;
    profile.images.iter().filter(is).collect()
}

/// The hot regions that the workload itself tells come first, and nothing near them.
fn hot_regions_come_first(first: &str) {
    let lab = Lab::new();
    let mut command = vec![PAGELAB, "workload", "hot-regions", "--size", "64M", "--hot", "4"];
    command.extend(["--rounds", "40000", "--first", first, "--advise", "nohuge"]);
    let Some((profile, ran)) = profile(&lab, &["--what-if", "all"], &command) else { return };
    let said: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    let hot = said["hot_regions"].as_array().unwrap();
    let hot: std::collections::BTreeSet<u64> =
        hot.iter().map(|region| region["address"].as_u64().unwrap()).collect();
    let none = &profile.what_ifs[0];
    let mut by_address = std::collections::BTreeMap::<u64, u64>::new();
    for region in &none.regions {
        let mapping = &profile.images[region.image as usize].mappings[region.mapping as usize];
        if mapping.key.kind == MappingKind::Anonymous {
            *by_address.entry(mapping.start + region.offset).or_default() += region.misses;
        }
    }
    let mut order: Vec<(u64, u64)> = by_address.into_iter().collect();
    order.sort_by_key(|&(_, misses)| std::cmp::Reverse(misses));
    let first: std::collections::BTreeSet<u64> =
        order[..hot.len()].iter().map(|(address, _)| *address).collect();
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
    // Killed: what was counted until then is there.
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
    assert_eq!(profile.images[0].begun, Begun::Launched);
    assert!(profile.images.iter().filter(|image| image.begun == Begun::Forked).count() >= 3);
    assert_eq!(of_program(&profile, "seq").len(), 2);
    assert_eq!(of_program(&profile, "cat").len(), 1);
    for image in of_program(&profile, "seq") {
        assert_eq!(image.begun, Begun::Executed);
        assert!(image.parent.is_some() && image.accesses.unwrap() > 1000, "{image:?}");
    }
    // The last one took the place of the first shell.
    let last = of_program(&profile, "seq").pop().unwrap();
    assert!(profile.images.iter().any(|image| image.pid == last.pid && image.begun == Begun::Launched));
}

/// xz with two threads, each with TLBs and a buffer of its own; what it writes is what it writes without us.
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
fn a_window_says_what_it_left_out() {
    let lab = Lab::new();
    let command = [PAGELAB, "workload", "chase", "--size", "16M", "--steps", "20000"];
    let Some((profile, _)) = profile(&lab, &["--window", "100k/1M"], &command) else { return };
    let note = profile.notes.iter().find(|note| note.starts_with("watched ")).unwrap();
    assert!(note.contains(" accesses ("), "{note}");
}

#[test]
fn what_cannot_be_profiled_is_said_with_the_way_out() {
    let lab = Lab::new();
    lab.write("text", "no program\n");
    let path = lab.path().join("text");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let cases: [(&[&str], &[&str], i32, &str); 6] = [
        (&["--tlb", "l1=64:2M"], &["true"], 3, "hold no base pages"),
        (&["--tlb", "x"], &["true"], 2, "--tlb: column 1"),
        (&["--window", "9/3"], &["true"], 2, "such as 10M/100M"),
        (&["--what-if", "nowhere"], &["true"], 3, "neither the word `all` nor a plan"),
        (&[], &["no-such-program-here"], 3, "there is no program no-such-program-here"),
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

/// Neither a QEMU in PATH nor apt: the error names both ways out.
#[test]
fn a_machine_without_qemu_is_told_how_to_get_it() {
    let lab = Lab::new();
    let mut command = lab.command(&["profile", "--source", "exact", "--", "/bin/true"]);
    command.env("PATH", lab.path()).env("XDG_CACHE_HOME", lab.path().join("cache"));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("there is no apt-get on this machine") && said.contains("qemu-x86_64"), "{said}");
}

/// A plan made of a profile, modelled in a second run: its regions are found again by their mappings.
#[test]
fn a_plan_is_a_set_of_huge_pages() {
    let lab = Lab::new();
    let mut command = vec![PAGELAB, "workload", "hot-regions", "--size", "64M", "--hot", "4"];
    command.extend(["--rounds", "20000", "--first", "write", "--advise", "nohuge"]);
    if profile(&lab, &[], &command).is_none() {
        return;
    }
    let planned = run(&lab, &["plan", "p.pagelab", "-n", "4", "-o", "plan.toml"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    let Some((profile, _)) = profile(&lab, &["--what-if", "plan.toml"], &command) else { return };
    let [none, plan] = &profile.what_ifs[..] else { panic!("{:?}", profile.what_ifs.len()) };
    assert_eq!(plan.name, "plan.toml");
    // A plan whose mappings were not found again would change nothing.
    assert!(plan.misses * 10 < none.misses * 9, "{} with the plan, {} without", plan.misses, none.misses);
}

/// Each of many children has an account of its own, and none is lost.
#[test]
fn two_hundred_forks_are_two_hundred_images() {
    let lab = Lab::new();
    let script = "i=0; while [ $i -lt 200 ]; do (exit 3); i=$((i+1)); done; echo $i";
    let Some((profile, ran)) = profile(&lab, &[], &["sh", "-c", script]) else { return };
    assert!(ran.out.starts_with("200\n"), "{}", ran.out);
    let forked: Vec<_> = profile.images.iter().filter(|image| image.begun == Begun::Forked).collect();
    assert_eq!(forked.len(), 200);
    assert!(forked.iter().all(|image| image.parent == Some(0) && image.accesses.unwrap() > 0));
}

/// Nothing is fetched where nothing can be, and the way out is named.
#[test]
fn a_setup_without_apt_says_what_to_do() {
    let lab = Lab::new();
    for options in [&[][..], &["--dry-run"]] {
        let mut command = lab.command(&[&["profile", "setup"], options].concat());
        command.env("PATH", lab.path()).env("XDG_CACHE_HOME", lab.path().join("cache"));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("no apt-get") && said.contains("--source accessed"), "{said}");
    }
}
