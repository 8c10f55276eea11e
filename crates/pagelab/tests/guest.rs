//! Tests of real kernels in real guests: four boots, each used for several checks. `PAGELAB_GUEST_KILLS=20`
//! kills pagelab in twenty boots instead of one.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_guest::job::JobStep;
use pagelab_guest::message::StepExit;
use pagelab_guest::outcome::{GuestOutcome, LossReason, StepEnd};
use pagelab_model::Bytes;
use pagelab_model::dimms::Dimms;
use serde_json::Value;
use trial::{binary, finished, lock_guests, pagelab, plan, run};

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(bytes)))
}

/// Where two documents differ first; how long a reading took does not count.
fn difference(one: &Value, other: &Value, place: &str) -> Option<String> {
    let deeper = |key: &str, one: &Value, other: &Value| difference(one, other, &format!("{place}/{key}"));
    match (one, other) {
        (Value::Object(fields), Value::Object(others)) if fields.len() == others.len() => {
            let counts = |name: &&String| !["scan_ns", "read_ns"].contains(&name.as_str());
            let mut names = fields.keys().filter(counts);
            names.find_map(|name| deeper(name, &fields[name], others.get(name).unwrap_or(&Value::Null)))
        }
        (Value::Array(values), Value::Array(others)) if values.len() == others.len() => {
            (0..).zip(values.iter().zip(others)).find_map(|(n, (a, b))| deeper(&format!("{n}"), a, b))
        }
        _ => (one != other).then(|| format!("{place}: {one} and {other}")),
    }
}

fn describe_step(step: &StepEnd) -> String {
    format!(
        "{:?}\n{}{}",
        step.end,
        String::from_utf8_lossy(&step.stdout),
        String::from_utf8_lossy(&step.stderr)
    )
}

#[test]
fn a_guest_with_a_memory_limit_is_captured() {
    let steps = vec![
        pagelab("checkup --json"),
        pagelab("capture saved.tar.zst"),
        pagelab("checkup --root saved.tar.zst --json"),
        pagelab("frag --from given.txt --json"),
        pagelab("frag --no-such-option"),
        JobStep::Write { path: "/no/such/file".into(), text: "x".into() },
        pagelab("restore"),
        pagelab("map --json"),
        pagelab("workload hot-remove"),
        pagelab("workload hugetlb-capability --pages 8"),
    ];
    let Some(mut plan) = plan("6.1", steps) else { return };
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("given.txt");
    fs::write(&given, "Node 0, zone   Normal      1      2      3\n").unwrap();
    plan.input_files = vec![given.clone()];
    plan.output_paths = vec!["saved.tar.zst".into()];
    plan.output_dir = folder.path().to_owned();
    plan.config.cgroup.as_mut().unwrap().limit_bytes = Some(64 << 20);
    plan.config.dimms = Some(Dimms { count: 2, size: Bytes(128 << 20) });
    let turn = lock_guests();
    let ended = finished(&plan);
    drop(turn);
    let [live, captured, saved, frag, wrong, unwritten, restored, map, removed, pool] = &ended.steps[..]
    else {
        panic!()
    };
    for step in [live, captured, saved, frag, restored, map, removed, pool] {
        assert_eq!(step.end, StepExit::Code(0), "{}", describe_step(step));
    }
    assert_eq!(wrong.end, StepExit::Code(2), "{}", describe_step(wrong));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--no-such-option") && wrong.stdout.is_empty());
    assert!(
        matches!(&unwritten.end, StepExit::NotRun(why) if why.contains("No such file")),
        "{}",
        describe_step(unwritten)
    );

    // The limit of a control group of version 2, read on a real kernel.
    let live = json(&live.stdout);
    let group = &live["machine"]["cgroup"];
    assert_eq!(
        (&group["version"], &group["memory_limit_bytes"]),
        (&"2".into(), &(64 << 20).into()),
        "{group}"
    );
    assert_eq!(group["path"], "/pagelab");
    let total_kib = live["use"]["meminfo"]["MemTotal_kib"].as_u64().unwrap();
    assert!(
        (416 << 10..512 << 10).contains(&total_kib),
        "{total_kib}: memory without the kernel's, and DIMMs"
    );
    check_dimms(&json(&map.stdout));
    check_hot_remove(&json(&removed.stdout));
    check_pool(&json(&pool.stdout));
    assert_eq!(live["problems"], Value::Array(vec![]));

    // The same numbers from the same files, there and here.
    let here = |words: &[&str]| {
        Command::new(binary()).args(words).current_dir(folder.path()).output().unwrap().stdout
    };
    let file = &ended.files[..];
    assert!(ended.missing_files.is_empty() && file.len() == 1 && file[0].bytes > Some(5000), "{file:?}");
    let again = json(&here(&["checkup", "--root", "saved.tar.zst", "--json"]));
    assert_eq!(difference(&json(&saved.stdout), &again, ""), None);
    assert_eq!(json(&frag.stdout), json(&here(&["frag", "--from", "given.txt", "--json"])));
}

/// The two DIMMs of 128 MiB are the memory blocks from 4 GiB on, and make up the zone Movable.
fn check_dimms(map: &Value) {
    let (first, frames) = ((4_u64 << 30) / (128 << 20), 32_768_u64);
    let blocks = map["memory_blocks"].as_array().unwrap().iter();
    let blocks = blocks.map(|block| ["number", "online", "frames"].map(|name| block[name].clone()));
    let dimms: Vec<_> = blocks.filter(|[number, ..]| number.as_u64() >= Some(first)).collect();
    let expected = [first, first + 1].map(|number| [Value::from(number), true.into(), frames.into()]);
    assert_eq!(dimms, expected);
    let zones = map["zones"].as_array().unwrap();
    let movable: Vec<_> = zones.iter().filter(|zone| zone["zone"] == "Movable").collect();
    let [movable] = movable[..] else { panic!("{zones:?}") };
    let classes = movable["classes"].as_array().unwrap().iter();
    assert_eq!(classes.map(|class| class["pages"].as_u64().unwrap()).sum::<u64>(), 2 * frames, "{movable}");
}

fn figure(outcome: &Value, name: &str) -> Option<f64> {
    let figures = outcome["figures"].as_array().unwrap().iter();
    figures.filter(|figure| figure["name"] == name).find_map(|figure| figure["value"].as_f64())
}

/// The two DIMMs go offline and come back; the two blocks of the memory that the kernel boots with have
/// holes, the first one below 1 MiB and the last one at the end.
fn check_hot_remove(outcome: &Value) {
    for (name, expected) in [
        ("blocks", 4.0),
        ("never", 2.0),
        ("never_by_holes", 2.0),
        ("never_by_zones", 1.0),
        ("offlined", 2.0),
        ("movable_blocks", 2.0),
        ("movable_offlined", 2.0),
        ("stayed_offline", 0.0),
        ("zone_changed", 0.0),
        ("contradictions", 0.0),
    ] {
        assert_eq!(figure(outcome, name), Some(expected), "{name}: {outcome}");
    }
    let text = outcome["generated"].as_str().unwrap();
    assert!(text.contains("33 Movable offline, 32 Movable offline, 1 DMA32 never (holes of "), "{text}");
    assert!(
        text.contains("0 DMA+DMA32 never (holes of ") && text.contains("several zones: DMA, DMA32"),
        "{text}"
    );
}

/// Eight huge pages are in the zones that kpageflags shows, and the pool was empty before.
fn check_pool(outcome: &Value) {
    for name in ["requested", "pages_1", "pages_2", "pages_3"] {
        assert_eq!(figure(outcome, name), Some(8.0), "{name}: {outcome}");
    }
    let zones = ["pages_dma", "pages_dma32", "pages_movable"].map(|name| figure(outcome, name).unwrap());
    assert_eq!(zones.iter().sum::<f64>(), 8.0, "{outcome}");
}

#[test]
fn two_nodes_a_movable_zone_swap_and_a_disk_by_the_command_line() {
    let Some(_) = plan("6.12", vec![]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let turn = lock_guests();
    let output = trial::pagelab_here()
        .args(["guest", "run", "--verbose", "--kernel", "6.12", "--memory", "256M", "--nodes", "2"])
        .args(["--append", "kernelcore=128M", "--swap", "64M", "--disk", "32M"])
        .args(["--take", "/disk/saved", "--", "capture", "/disk/saved"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    drop(turn);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("/disk/saved   "));
    let cost = stderr.lines().find(|line| line.starts_with("first line")).unwrap_or("no first line");
    eprintln!("guest: 6.12, 2 nodes: {cost}");

    let words = ["checkup", "--root", "saved", "--json"];
    let checkup = Command::new(binary()).args(words).current_dir(folder.path()).output().unwrap();
    let checkup = json(&checkup.stdout);
    let zones = checkup["fragmentation"]["zones"].as_array().unwrap();
    let mut movable: Vec<_> =
        zones.iter().filter(|zone| zone["zone"] == "Movable").map(|zone| zone["node"].as_u64()).collect();
    movable.sort();
    assert_eq!(movable, [Some(0), Some(1)], "{zones:?}");
    let swap = checkup["use"]["swap_total_bytes"].as_u64().unwrap();
    assert!(((63 << 20)..=(64 << 20)).contains(&swap), "{swap}");
}

#[test]
fn a_kernel_that_panics_is_a_lost_guest() {
    let panic = JobStep::Write { path: "/proc/sysrq-trigger".into(), text: "c".into() };
    let Some(plan) = plan("6.1", vec![pagelab("frag"), panic, pagelab("frag")]) else { return };
    let turn = lock_guests();
    let outcome = run(&plan);
    drop(turn);
    let GuestOutcome::Lost(lost) = outcome else { panic!("{outcome:?}") };
    assert!(
        matches!(&lost.reason, LossReason::Panic(line) if line.contains("sysrq triggered crash")),
        "{}",
        lost.reason
    );
    let ends: Vec<_> = lost.steps.iter().map(|step| &step.end).collect();
    assert_eq!(ends, [&StepExit::Code(0)], "what had ended before is known");
}

#[test]
fn pagelab_killed_at_any_moment_takes_the_guest_with_it() {
    let Some(_) = plan("6.1", vec![]) else { return };
    let kills = std::env::var("PAGELAB_GUEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(1);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    for kill in 0..kills {
        let _turn = lock_guests();
        let moment = Duration::from_millis(u64::from((clock / 1000 + kill * 1237) % 4000));
        let folder = tempfile::tempdir().unwrap();
        let mut pagelab = trial::pagelab_here()
            .args(["guest", "run", "--memory", "256M", "--swap", "16M", "--take", "x", "--", "capture", "x"])
            .current_dir(folder.path())
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let qemu = child_of(pagelab.id());
        std::thread::sleep(moment);
        // It may have ended by itself by then, and its file is whole.
        pagelab.kill().unwrap();
        pagelab.wait().unwrap();
        let start = Instant::now();
        while is_qemu(qemu) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "QEMU outlives pagelab, killed after {moment:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty() || left == ["x"], "{left:?}, killed after {moment:?}");
        eprintln!("guest: pagelab killed {moment:?} after the start; QEMU gone {:?} later", start.elapsed());
    }
}

/// The first child of a process, once it has one that runs QEMU.
fn child_of(parent: u32) -> u32 {
    let start = Instant::now();
    loop {
        let children =
            fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        if let Some(child) = child.filter(|&child| is_qemu(child)) {
            return child;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no QEMU");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_qemu(pid: u32) -> bool {
    // A zombie has no command line.
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("qemu"))
}
