//! Tests of the effects of fragmentation on other programs, on a real kernel in a small guest: one boot, in
//! which this binary is the observer and the victim.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)] // a test may fail where it stands

#[path = "guest/trial.rs"]
#[allow(dead_code)] // some of it is for other tests
mod trial;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use pagelab_guest::message::StepExit;
use pagelab_model::size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Directory in which the agent stores its files and the program under test.
const TRIAL: &str = "/data/trial";
const PAGELAB: &str = "/bin/pagelab";
const MIB: u64 = 1 << 20;
/// Of x86-64, whose guests these are.
const PAGE: usize = 4096;

#[test]
fn a_victim_survives_whatever_fragmenting_is_asked_for() {
    let words = format!(
        "fragment random --size 1M --chunk 1M --reserve 32M -- {TRIAL} in_the_guest --exact --ignored --nocapture"
    );
    let Some(mut plan) = trial::plan("6.12", vec![trial::pagelab(&words)]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("trial");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    plan.input_files = vec![copy];
    // The debug binaries take 160 MiB of it. With 640M the target of 0.8 left the reserve 0.5 MiB of room.
    plan.config.memory = size::parse("704M").unwrap();
    let turn = trial::lock_guests();
    let ended = trial::finished(&plan);
    drop(turn);
    let step = &ended.steps[0];
    let (stdout, stderr) = (String::from_utf8_lossy(&step.stdout), String::from_utf8_lossy(&step.stderr));
    assert_eq!(step.end, StepExit::Code(0), "{stdout}\n{stderr}");
    stdout.lines().filter(|line| line.starts_with("seen: ")).for_each(|line| eprintln!("guest: {line}"));
}

#[test]
#[ignore = "runs-in-a-guest: called in the guest of the test above"]
fn in_the_guest() {
    if std::process::id() == 1 || !fs::exists("/job").unwrap() {
        return;
    }
    let kills_before = counter("/proc/vmstat", "oom_kill");
    let mut victim = Command::new(TRIAL)
        .args(["a_victim", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(victim.stdout.take().unwrap());
    wait_for(&mut said, "ready");
    assert_eq!(fs::read_to_string(format!("/proc/{}/oom_score_adj", victim.id())).unwrap().trim(), "0");

    let began = Instant::now();
    let timed = |what: &str| println!("seen: {what} after {} s", began.elapsed().as_secs());
    // The harness has said something on this line already.
    println!();
    // First, while free memory is whole: earlier steps may leave it fragmented above their targets.
    the_kernel_computes_the_same_index();
    held_pages_that_compaction_moved_are_reported();
    timed("targets were met");
    more_than_fits_backs_off_and_goes_back();
    timed("backed off");
    killed_leaves_nothing_but_a_group(&["--target", "0.9"]);
    killed_leaves_nothing_but_a_group(&[
        "--unmovable",
        "5%",
        "--flavour",
        "dentries,pipes,sockets,pagetables",
    ]);
    timed("killed twice");
    unmovable_pages_are_in_the_requested_share_of_blocks();
    timed("unmovable pages were counted");

    // The victim looks at its memory once more, and ends well.
    drop(victim.stdin.take());
    assert!(victim.wait().unwrap().success(), "the victim's memory is not what it was");
    assert_eq!(counter("/proc/vmstat", "oom_kill"), kills_before, "no process was killed for memory");
}

/// Four times the memory there is, and then somebody needs some.
fn more_than_fits_backs_off_and_goes_back() {
    let free_before = free();
    let (mut fragment, mut stderr) =
        start(&["fragment", "random", "--size", "4G", "--reserve", "64M", "--json"]);
    wait_for(&mut stderr, "holding");
    let pid = fragment.id();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "1000");
    assert!(!own_group(pid).ends_with('/'), "it has a group of its own: {}", own_group(pid));
    let available = counter("/proc/meminfo", "MemAvailable:") << 10;
    assert!((48 * MIB..168 * MIB).contains(&available), "{} MiB are available", available / MIB);
    println!("seen: {} MiB taken of 4 GiB asked", (free_before - free()) / MIB);

    // Another 60 MiB for another program: the memory is released.
    let mut other = vec![1u8; 60 * MIB as usize];
    std::hint::black_box(&mut other);
    wait_for(&mut stderr, "released");
    drop(other);
    kill_process(Pid::from_child(&fragment), Signal::INT).unwrap();
    let mut text = String::new();
    fragment.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(fragment.wait().unwrap().code(), Some(5), "released for other programs");
    let document: Value = serde_json::from_str(&text).unwrap();
    let stopped = document["stopped"].as_str().unwrap();
    assert!(stopped.contains("the reserve") || stopped.contains("reserved"), "{stopped}");
    assert!(document["freed_for_others_bytes"].as_u64().unwrap() >= 24 * MIB, "{document}");
    assert!(document["filled_bytes"].as_u64().unwrap() > 100 * MIB, "{document}");
    assert!(groups().is_empty(), "{:?}", groups());
    is_back(free_before);
}

fn killed_leaves_nothing_but_a_group(words: &[&str]) {
    let free_before = free();
    let (mut fragment, mut stderr) = start(&[&["fragment", "--reserve", "64M"], words].concat());
    wait_for(&mut stderr, "holding");
    let mine = groups();
    assert_eq!(mine.len(), 1, "{mine:?}");
    fragment.kill().unwrap();
    assert_eq!(fragment.wait().unwrap().signal(), Some(9));
    is_back(free_before);
    let restored = Command::new(PAGELAB).arg("restore").output().unwrap();
    assert_eq!(restored.status.code(), Some(0), "{}", String::from_utf8_lossy(&restored.stderr));
    assert!(groups().is_empty(), "{:?}", groups());
}

/// Each flavour pollutes about as many blocks as it has pages, as far as its pages can be told from others:
/// those of pipes have no flags.
fn unmovable_pages_are_in_the_requested_share_of_blocks() {
    let output = Command::new(PAGELAB)
        .args(["fragment", "--unmovable", "20%", "--flavour", "pagetables,sockets,dentries,pipes"])
        .args(["--reserve", "64M", "--json", "--", TRIAL, "nothing", "--exact", "--ignored"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    // The command's own output comes first.
    let text = String::from_utf8(output.stdout).unwrap();
    let document: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let unmovable = &document["unmovable"];
    let wanted = document["blocks_requested"].as_i64().unwrap() / 4;
    for (at, class) in [(0, "page_table"), (1, "slab"), (2, "slab")] {
        let part = &unmovable["parts"][at];
        let holding = |look: &str| unmovable[look]["holding"][class].as_i64().unwrap();
        let polluted = holding("held") - holding("before");
        let kept = part["pages_kept"].as_i64().unwrap();
        println!("seen: {}: {polluted} {class} blocks more, {kept} pages, {wanted} wanted", part["flavour"]);
        assert!(polluted * 10 >= wanted * 6, "{part}: {polluted} of {wanted}: {unmovable}");
        // Free pages in blocks that are polluted already are taken first, and one is kept of them too.
        assert!(kept <= wanted * 2 + 16, "{part}: for {wanted} blocks");
    }
}

/// Fragments to a target while a function of this program runs; the run's JSON, and what that said.
fn to_target(target: &str, meanwhile: &str) -> (Value, String) {
    let output = Command::new(PAGELAB)
        .args(["fragment", "--target", target, "--reserve", "96M", "--json", "--", TRIAL, meanwhile])
        .args(["--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{stderr}");
    let at = text.find("\n{").unwrap();
    (serde_json::from_str(&text[at..]).unwrap(), text[..at].to_owned())
}

/// `extfrag/unusable_index` of debugfs is computed by the kernel itself (mm/vmstat.c, `unusable_show`).
fn the_kernel_computes_the_same_index() {
    let (document, said) = to_target("0.7", "says_the_kernels_index");
    let plan = &document["plan"];
    let zone = plan["zone"].as_str().unwrap();
    let line = said.lines().find(|line| line.contains("zone") && line.contains(&format!(" {zone} ")));
    let Some(line) = line else {
        println!("seen: no kernel's own index here");
        return;
    };
    let kernel: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let held = document["moments"][1]["zones"].as_array().unwrap().iter().find(|of| of["zone"] == zone);
    let held: Vec<f64> =
        held.unwrap()["f_u"].as_array().unwrap().iter().map(|index| index.as_f64().unwrap()).collect();
    let order = plan["order"].as_u64().unwrap() as usize;
    println!("seen: F_u({order}) of {zone}: {:.3}, by the kernel {:.3}", held[order], kernel[order]);
    assert_eq!(held.len(), kernel.len(), "{line}");
    // The kernel rounds to thousandths, and starting the command moves a few blocks.
    for (order, (ours, kernels)) in held.iter().zip(&kernel).enumerate() {
        assert!((ours - kernels).abs() < 0.02, "order {order}: {ours} {kernels}: {line}");
    }
    assert!((kernel[order] - 0.7).abs() <= 0.05, "{line}");
}

#[test]
#[ignore = "runs-in-a-guest: called in the guest of the first test"]
fn says_the_kernels_index() {
    // The harness has said something on this line already.
    println!("\n{}", fs::read_to_string("/sys/kernel/debug/extfrag/unusable_index").unwrap_or_default());
}

/// A command that compacts all memory moves the kept pages together: F_u falls, and it is said why.
fn held_pages_that_compaction_moved_are_reported() {
    let (document, _) = to_target("0.8", "compacts");
    let (first, end) = (&document["verified"], &document["verified_at_end"]);
    assert_eq!(first["blocks"], first["blocks_planned"], "{document}");
    let (blocks, planned) = (end["blocks"].as_u64().unwrap(), end["blocks_planned"].as_u64().unwrap());
    println!("seen: compaction moved kept pages of {planned} blocks into {blocks}");
    assert!(planned > 20 && blocks * 2 < planned, "{document}");
}

#[test]
#[ignore = "runs-in-a-guest: called in the guest of the first test"]
fn compacts() {
    if fs::exists("/job").unwrap() {
        fs::write("/proc/sys/vm/compact_memory", "1").unwrap();
    }
}

#[test]
#[ignore = "runs-in-a-guest: called in the guest of the first test"]
fn nothing() {}

/// Holds 100 MiB and checks it until its standard input ends, and once more.
#[test]
#[ignore = "runs-in-a-guest: called in the guest of the first test"]
fn a_victim() {
    // A byte for all, and each page its number: quick under an emulator, and no page is like another.
    let mut memory = vec![0xa5u8; 100 * MIB as usize];
    for (number, page) in (0u64..).zip(memory.chunks_mut(PAGE)) {
        page[..8].copy_from_slice(&number.to_ne_bytes());
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    for (number, page) in (0u64..).zip(memory.chunks(PAGE)) {
        assert!(page[..8] == number.to_ne_bytes() && page[PAGE - 1] == 0xa5, "page {number}");
    }
}

fn start(words: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut command = Command::new(PAGELAB);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    (child, stderr)
}

fn wait_for(lines: &mut impl BufRead, word: &str) {
    let mut all = String::new();
    loop {
        let before = all.len();
        assert!(lines.read_line(&mut all).unwrap() > 0, "no {word:?} came: {all}");
        if all[before..].contains(word) {
            return;
        }
    }
}

fn counter(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap()
}

fn free() -> u64 {
    counter("/proc/meminfo", "MemFree:") << 10
}

/// Free memory comes back to what it was, but for what the kernel keeps in caches and on lists of its
/// processors; what was held is several times as much.
fn is_back(before: u64) {
    let began = Instant::now();
    while free() + 48 * MIB < before {
        let (now, before) = (free() / MIB, before / MIB);
        assert!(began.elapsed() < Duration::from_secs(120), "{now} MiB are free, {before} were before");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn own_group(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().trim().to_owned()
}

/// Control groups that fragmenting made below the first one, in which this runs.
fn groups() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec!["/sys/fs/cgroup".to_owned()];
    let mine = own_group(std::process::id());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if path.contains("pagelab-fragment") {
                    found.push(path.clone());
                }
                folders.push(path);
            }
        }
    }
    // The outermost fragment, which started this program, has one too.
    found.sort();
    let outermost = outer_group();
    found.retain(|path| Some(path) != outermost.as_ref() && !mine.ends_with(path));
    found
}

/// The group of our parent: the fragment that started this program.
fn outer_group() -> Option<String> {
    let parent = std::os::unix::process::parent_id();
    let group = own_group(parent);
    let path = group.rsplit("::").next()?.to_owned();
    Some(format!("/sys/fs/cgroup{path}"))
}
