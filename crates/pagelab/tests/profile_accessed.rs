//! Tests of `pagelab profile --source accessed` on cooperative and uncooperative programs, and after kills.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

use pagelab_model::TlbProfile;
use pagelab_model::profile::{ImageProfile, ImageStart, MappingKind, UnseenReason};
use pagelab_report::profile::SUMMARY_NOTES;
use serde_json::Value;
use support::running::{
    HOLDS, KillOnDrop, SCANS, process_field, process_state, profile, wait_until, with_enough_rounds,
};
use support::{Lab, binary};

/// `None` after saying why: there is no python3.
fn python(script: &str) -> Option<KillOnDrop> {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
    match command.spawn() {
        Ok(child) => {
            let mut running = KillOnDrop(child, None);
            running.1 = running.0.stdout.take().map(BufReader::new);
            assert_eq!(running.line(), "ready");
            Some(running)
        }
        Err(_) => {
            eprintln!("skipped: python3-absent: no program with these habits");
            None
        }
    }
}

/// Mappings of written memory of a process that are left out of core dumps.
fn left_out(pid: u32) -> usize {
    let text = std::fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mappings = pagelab_formats::smaps::parse(&text).unwrap_or_default();
    let is_left_out = |m: &&pagelab_model::process::Mapping| {
        m.permissions.starts_with("rw") && m.vm_flags.iter().any(|flag| flag == "dd")
    };
    mappings.iter().filter(is_left_out).count()
}

fn with(rest: &str) -> String {
    format!("{HOLDS}{rest}")
}

/// Of anonymous memory, wherever it is named by: (misses, address), the most first.
fn cells(image: &ImageProfile) -> Vec<(u64, u64)> {
    let of = |m: &pagelab_model::profile::MappingProfile| {
        let grain = m.grain.0;
        let base = if m.key.kind == MappingKind::Placed { 0 } else { m.start };
        let cells = m.cells.at.iter().zip(&m.cells.misses);
        cells.map(move |(at, misses)| (*misses, base + at * grain)).collect::<Vec<_>>()
    };
    let is_anonymous = |kind: &MappingKind| matches!(kind, MappingKind::Placed | MappingKind::Anonymous);
    let anonymous = image.mappings.iter().filter(|m| is_anonymous(&m.key.kind));
    // Cells may be finer than regions.
    let mut regions: BTreeMap<u64, u64> = BTreeMap::new();
    for (misses, address) in anonymous.flat_map(of) {
        *regions.entry(address >> 21 << 21).or_default() += misses;
    }
    let mut cells: Vec<(u64, u64)> = regions.into_iter().map(|(address, misses)| (misses, address)).collect();
    cells.sort_unstable_by(|a, b| b.cmp(a));
    cells
}

/// A workload's own document, in its output and that of others.
fn parse_document(out: &str) -> Value {
    let start = out.find("{\"pagelab_json\"").unwrap();
    serde_json::Deserializer::from_str(&out[start..]).into_iter().next().unwrap().unwrap()
}

/// Reads 3 of the 32 regions of a buffer far more than the others; while the file `profiled` is there, until
/// its accessed bits were scanned.
const HOT: &str = "
import mmap, os, random, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at] = 1
draw = random.Random(1).random
end = time.time() + 6
while time.time() < end or os.path.exists('profiled') and not is_scanned():
    for n in range(1000): m[((5, 14, 27)[n % 3] << 21) + int(draw() * 512) * 4096]
    for n in range(30): m[int(draw() * 16384) * 4096]
print('all right')
";

#[test]
fn a_plan_of_one_run_holds_for_the_next_at_other_addresses() {
    let lab = Lab::new();
    lab.write("program.py", format!("{SCANS}{HOT}"));
    lab.write("profiled", "");
    let program = ["--", "/usr/bin/env", "python3", "program.py"];
    let head = ["profile", "--source", "accessed", "--duty", "50%", "-o", "p.pagelab"];
    let ran = lab.run(&[&head[..], &program].concat());
    if ran.err.contains("No such file") {
        eprintln!("skipped: python3-absent: no program with these habits");
        return;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found = profile(&lab, "p.pagelab");
    let named = |m: &&pagelab_model::profile::MappingProfile| {
        m.key.kind == MappingKind::Anonymous && m.key.bytes.0 == 64 << 20
    };
    let buffer = found.images.iter().flat_map(|image| &image.mappings).find(named);
    let buffer = buffer.unwrap_or_else(|| panic!("{:?} {:?}", found.effort, found.notes));
    let of = |cell: &u64| (cell * buffer.grain.0) >> 21;
    let mut regions: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, misses) in buffer.cells.at.iter().zip(&buffer.cells.misses) {
        *regions.entry(of(at)).or_default() += misses;
    }
    // The order holds on a busy machine too. The share does not: scans are few there, accessed bits saturate,
    // and the rest seems hotter than it is.
    let mut ranked: Vec<(u64, u64)> = regions.into_iter().map(|(region, misses)| (misses, region)).collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    let first: BTreeSet<u64> = ranked.iter().take(3).map(|(_, region)| *region).collect();
    assert_eq!(first, BTreeSet::from([5, 14, 27]), "{ranked:?} {:?}", found.notes);
    std::fs::remove_file(lab.path().join("profiled")).unwrap();
    let planned = lab.run(&["plan", "p.pagelab", "-n", "3", "-o", "plan.toml"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let again = lab.run(&[&["apply", "plan.toml", "--summary", "s.json"][..], &program].concat());
    assert_eq!(again.code, Some(0), "{}", again.err);
    let summary: Value = serde_json::from_slice(&std::fs::read(lab.path().join("s.json")).unwrap()).unwrap();
    let count = |name: &str| summary["regions"][name].as_u64().unwrap();
    assert_eq!(count("requested"), 3, "{summary}");
    // A machine may have no huge page that is free, or none at all; every place was met.
    let refused = summary["regions"]["failed"].as_array().unwrap();
    let is_want = |one: &Value| one["reason"].as_str().unwrap().starts_with("no free huge page");
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    assert!(refused.iter().all(is_want) || enabled.contains("[never]"), "{summary}");
    assert_eq!(count("allocated") + refused.len() as u64, 3, "{summary}");
}

#[test]
fn all_hot_regions_come_first() {
    let lab = Lab::new();
    let head = ["profile", "--source", "accessed", "--duty", "100%", "-o", "p.pagelab", "--", binary()];
    let attempt = |rounds: &str| {
        let _ = std::fs::remove_file(lab.path().join("p.pagelab"));
        let workload = ["workload", "hot-regions", "--size", "256M", "--rounds", rounds];
        let ran = lab.run(&[&head[..], &workload].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        (parse_document(&ran.out), profile(&lab, "p.pagelab"))
    };
    let is_swept = |(_, found): &(Value, TlbProfile)| found.effort.sweeps >= Some(32);
    let (said, profile) = with_enough_rounds(600_000, attempt, is_swept);
    let hot: BTreeSet<u64> =
        said["hot_regions"].as_array().unwrap().iter().map(|r| r["address"].as_u64().unwrap()).collect();
    let [image] = &profile.images[..] else { panic!("{} images {:?}", profile.images.len(), profile.notes) };
    assert_eq!(image.begun, ImageStart::Launched);
    let first: BTreeSet<u64> = cells(image).iter().take(hot.len()).map(|&(_, address)| address).collect();
    assert_eq!(first, hot, "{:?}\n{:?}", cells(image), profile.notes);
    assert!(profile.effort.split_ns.unwrap() > 0 && profile.effort.cpu_ns.unwrap() > 0);
}

/// No note is printed twice, and the reason for a lower bound is in the header alone.
#[test]
fn each_note_is_printed_once() {
    let lab = Lab::new();
    let workload = ["workload", "hot-regions", "--size", "128M", "--rounds", "2000000"];
    let head = ["profile", "--source", "accessed", "--duty", "50%", "-o", "p.pagelab", "--", binary()];
    let ran = lab.run(&[&head[..], &workload].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let in_words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = in_words(&ran.err);
    let found = profile(&lab, "p.pagelab");
    assert!(found.notes.len() >= 2, "{:?}", found.notes);
    // Beside the summary, notes are for a terminal alone.
    for (at, note) in found.notes.iter().enumerate() {
        let count = said.matches(&in_words(note)).count();
        assert!(count <= 1 && (count == 1 || at >= SUMMARY_NOTES), "{count} times {note}\n{said}");
    }
    assert!(said.matches("setting accessed bits again").count() <= 1, "{said}");
    let is_bound = found.lower_bound_reason().is_some();
    assert_eq!(
        (said.contains("misses unknown: at least"), found.total_misses().is_none()),
        (is_bound, is_bound)
    );
    // A command that requested the profile has the notes in its own report.
    let head = ["profile", "--passing", "--source", "accessed", "-o", "q.pagelab", "--", binary()];
    let passed = lab.run(&[&head[..], &workload].concat());
    assert_eq!(passed.code, Some(0), "{}", passed.err);
    let said = in_words(&passed.err);
    for note in &profile(&lab, "q.pagelab").notes {
        assert!(!said.contains(&in_words(note)), "{note}\n{said}");
    }
}

/// A short program gets no sweep that exceeds its budget, and the profile gives the reason.
#[test]
fn sweeps_stay_within_their_budget_and_a_missing_sweep_is_reported() {
    let lab = Lab::new();
    let binary = binary();
    let head = ["profile", "--source", "accessed", "-o"];
    // It is filled, and ends.
    let workload = ["--", binary, "workload", "hot-regions", "--size", "256M", "--rounds", "1000"];
    let ran = lab.run(&[&head[..], &["short.pagelab", "--duty", "0.1%"], &workload].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found = profile(&lab, "short.pagelab");
    let why = found.notes.iter().find(|note| note.contains("no scan"));
    let why = why.unwrap_or_else(|| panic!("{:?}", found.notes));
    assert!(why.contains("per page") && why.contains("--duty") && why.contains("--source exact"), "{why}");
    assert_eq!((found.effort.sweeps, found.effort.slowdown_ppm), (Some(0), None));
    assert!(ran.err.contains("misses unknown") && !ran.err.contains("pagelab plan"), "{}", ran.err);
    let planned = lab.run(&["plan", "short.pagelab"]);
    assert_eq!(planned.code, Some(3), "{}", planned.err);
    assert!(
        planned.err.contains("its misses are unknown") && !planned.err.contains("no miss"),
        "{}",
        planned.err
    );
    // A program that continues gets some, and its account contains at least the cost of each page once.
    let script = with(&format!(
        "{SCANS}
end = time.time() + 8
while time.time() < end or not is_scanned():
    for at in range(0, len(m), 4096): m[at]
print('all right')"
    ));
    lab.write("program.py", &script);
    let ran =
        lab.run(&[&head[..], &["long.pagelab", "--", "/usr/bin/env", "python3", "program.py"]].concat());
    if ran.err.contains("No such file") {
        eprintln!("skipped: python3-absent: no program with these habits");
        return;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let effort = profile(&lab, "long.pagelab").effort;
    let (cost, each) = (effort.slowdown_ppm.unwrap(), effort.accessed_page_ps.unwrap());
    let watched_ns = u128::from(profile(&lab, "long.pagelab").wall_ns);
    let at_least = u128::from(each) * (64 << 8) / 1000 * 1_000_000 / watched_ns;
    assert!(u128::from(cost) >= at_least, "{cost} of {at_least}");
    assert!(effort.stopped_ns.unwrap_or(0) > 0);
}

#[test]
fn ctrl_c_keeps_the_profile_and_merges_the_mappings() {
    let rest = "
end = time.time() + 100
while time.time() < end:
    for at in range(0, len(m), 4096):
        if m[at] != at // 4096 % 251: print('wrong'); raise SystemExit(1)
";
    let Some(target) = python(&with(rest)) else { return };
    let lab = Lab::new();
    let pid = target.0.id();
    let number = pid.to_string();
    let args = ["profile", "--source", "accessed", "--pid", &number, "--duty", "50%", "-o", "p.pagelab"];
    let mut profiler = KillOnDrop(lab.command(&args).spawn().unwrap(), None);
    wait_until("a split", || left_out(pid) > 4);
    profiler.signal(rustix::process::Signal::INT);
    assert_eq!(profiler.0.wait().unwrap().code(), Some(0));
    assert_eq!(left_out(pid), 0);
    let profile = profile(&lab, "p.pagelab");
    assert_eq!(profile.images[0].begun, ImageStart::Attached);
    assert!(profile.notes[0].contains("page walks are estimated"), "{:?}", profile.notes);
    assert!(target.0.id() == pid && Path::new(&format!("/proc/{pid}/smaps")).exists());
}

/// The first child of a process.
fn child_of(parent: u32) -> Option<u32> {
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (process_field(pid, "status", "PPid") == Some(u64::from(parent))).then_some(pid)
    })
}

/// A profiler of a program at rest, stopped while mappings are split, and its splitter, which is idle.
fn in_a_split(pid: u32, pagelab: impl Fn(&[&str]) -> Command) -> (KillOnDrop, u32) {
    let number = pid.to_string();
    let args = [
        "profile",
        "--source",
        "accessed",
        "--pid",
        &number,
        "--duty",
        "100%",
        "--pause",
        "1h",
        "-o",
        "p.pagelab",
    ];
    let profiler = KillOnDrop(pagelab(&args).spawn().unwrap(), None);
    let mut splitter = 0;
    wait_until("a split", || {
        if left_out(pid) <= 4 {
            return false;
        }
        profiler.signal(rustix::process::Signal::STOP);
        wait_until("the stop", || process_state(profiler.0.id()) == 'T');
        splitter = child_of(profiler.0.id()).unwrap();
        // It may have been told to merge before the stop.
        wait_until("the splitter's rest", || {
            process_state(splitter) == 'S' && process_field(pid, "status", "TracerPid") == Some(0)
        });
        let is_split = left_out(pid) > 4;
        if !is_split {
            profiler.signal(rustix::process::Signal::CONT);
        }
        is_split
    });
    (profiler, splitter)
}

/// pagelab with journals of its own: another test's `restore` cannot be first. It has the child's number.
fn aside(lab: &Lab, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$1\" /run || exit 99; shift; exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", script, binary()]).arg(lab.path().join("run"));
    command.args(args).current_dir(lab.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn after_a_kill_the_splitter_merges_and_restore_reports() {
    let Some(target) = python(&with("time.sleep(600)")) else { return };
    let lab = Lab::new();
    std::fs::create_dir(lab.path().join("run")).unwrap();
    let tried = aside(&lab, &["--version"]).output().unwrap();
    if !tried.status.success() {
        eprintln!("skipped: no-mount: {}", String::from_utf8_lossy(&tried.stderr).trim());
        return;
    }
    let pid = target.0.id();
    let (mut profiler, _) = in_a_split(pid, |args| aside(&lab, args));
    profiler.0.kill().unwrap();
    profiler.0.wait().unwrap();
    wait_until("the merge", || left_out(pid) == 0);
    let told = aside(&lab, &["restore"]).output().unwrap();
    let told = [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(told.contains(&format!("process {pid}")), "{told}");
}

#[test]
fn splits_left_by_a_killed_splitter_are_merged_by_the_next_profile() {
    let Some(target) = python(&with("time.sleep(600)")) else { return };
    let lab = Lab::new();
    let (mut profiler, splitter) = in_a_split(target.0.id(), |args| lab.command(args));
    let splitter = rustix::process::Pid::from_raw(splitter as i32).unwrap();
    rustix::process::kill_process(splitter, rustix::process::Signal::KILL).unwrap();
    profiler.0.kill().unwrap();
    profiler.0.wait().unwrap();
    assert!(left_out(target.0.id()) > 4);
    let number = target.0.id().to_string();
    let again = lab.run(&[
        "profile",
        "--source",
        "accessed",
        "--pid",
        &number,
        "--for",
        "100ms",
        "-o",
        "again.pagelab",
    ]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert_eq!(left_out(target.0.id()), 0);
    let notes = profile(&lab, "again.pagelab").notes;
    assert!(
        notes.iter().any(|note| note.contains("by a pagelab process that was killed: undone")),
        "{notes:?}"
    );
    lab.run(&["restore"]);
}

/// Profiles a process that accesses nothing until its accessed bits are cleared: a scan follows.
fn profile_until_scanned(lab: &Lab, pid: u32) {
    let number = pid.to_string();
    let args = ["profile", "--source", "accessed", "--duty", "50%", "--pid", &number, "-o", "p.pagelab"];
    let mut profiler = KillOnDrop(lab.command(&args).spawn().unwrap(), None);
    let kib = |field: &str| process_field(pid, "smaps_rollup", field).unwrap();
    wait_until("a scan", || kib("Referenced") < kib("Rss") / 2);
    profiler.signal(rustix::process::Signal::INT);
    assert_eq!(profiler.0.wait().unwrap().code(), Some(0));
}

/// A server runs on when its profile is over.
#[test]
fn a_process_that_runs_on_is_not_said_to_have_exited() {
    let lab = Lab::new();
    for (first, said) in [("read", "enable it with --zero-page yes"), ("write", "")] {
        let words = ["workload", "hot-regions", "--size", "32M", "--rounds", "4000000000", "--first", first];
        let mut server = Command::new(binary());
        let server = server.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = KillOnDrop(server, None);
        let number = server.0.id().to_string();
        let source = ["profile", "--source", "accessed", "--pid", &number];
        // On a slow machine the profiler's own start is more than 1 % of a second.
        for (time, duty, zero_page) in [("50ms", "1%", "no"), ("50ms", "1%", "yes"), ("1s", "50%", "no")] {
            let file = format!("{first}-{time}-{zero_page}.pagelab");
            let options = ["--for", time, "--duty", duty, "--zero-page", zero_page, "-o", &file];
            let ran = lab.run(&[&source[..], &options].concat());
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            let notes = profile(&lab, &file).notes.join("\n");
            assert!(!notes.contains("exited") && !notes.contains("the program ran for"), "{file}: {notes}");
            assert!(time != "1s" || notes.contains(said), "{file}: {notes}");
        }
    }
}

/// Profiles a python program to its end: its last word must be that all was right.
fn to_its_end(script: &str) -> Option<TlbProfile> {
    to_its_end_with(script, &[])
}

fn to_its_end_with(script: &str, options: &[&str]) -> Option<TlbProfile> {
    let lab = Lab::new();
    lab.write("program.py", script);
    let source = ["profile", "--source", "accessed", "--duty", "50%", "-o", "p.pagelab"];
    let arguments = [&source[..], options, &["--"]].concat();
    let ran = lab.run(&[&arguments[..], &["/usr/bin/env", "python3", "program.py"]].concat());
    if ran.err.contains("No such file") {
        eprintln!("skipped: python3-absent: no program with these habits");
        return None;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("all right"), "{}{}", ran.out, ran.err);
    Some(profile(&lab, "p.pagelab"))
}

const CALLS: &str = "
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = mmap.PAGESIZE
def get(size): return libc.mmap(None, size, 3, 0x4022, -1, 0)
";

#[test]
fn a_program_near_the_map_count_limit_is_profiled() {
    let script = format!(
        "{CALLS}{SCANS}
at = get(60000 * page)
ctypes.memset(at, 1, 60000 * page)
for n in range(0, 60000, 2): assert libc.mprotect(at + n * page, page, 1) == 0
big = get(256 << 20)
# Whatever was scanned before is accessed again.
for n in range(60000): ctypes.c_char.from_address(at + n * page).value
touch_rest()
while not is_scanned(): ctypes.memset(big, 2, 64 << 20)
print('all right')"
    );
    let Some(profile) = to_its_end(&script) else { return };
    assert!(profile.images.iter().any(|image| image.misses > 0), "{:?}", profile.notes);
}

#[test]
fn sparse_memory_unmapped_memory_forks_and_exec_are_profiled() {
    let script = format!(
        "{CALLS}
far = get(1 << 40)
end = time.time() + 5
while time.time() < end:
    for n in range(8): ctypes.memset(far + n * (100 << 30), n, 2 << 20)
    part = get(32 << 20)
    ctypes.memset(part, 7, 32 << 20)
    assert libc.munmap(part, 32 << 20) == 0
if os.fork() == 0:
    x = bytearray(32 << 20)
    end = time.time() + 0.5
    while time.time() < end: x[:] = x
    os._exit(0)
os.wait()
os.execvp('sh', ['sh', '-c', 'echo all right'])"
    );
    let Some(profile) = to_its_end(&script) else { return };
    let far = profile.images.iter().flat_map(|image| &image.mappings).filter(|m| m.bytes.0 >= 1 << 40);
    let far: Vec<_> = far.filter(|m| m.key.kind == MappingKind::Anonymous).collect();
    assert!(far.iter().all(|m| m.key.bytes.0 == 1 << 40), "{:?}", profile.notes);
    // Eight places of one huge page each. What was first touched between a split and its sweep is spread over
    // the gap that it was in. Beside many other programs sweeps are few, and what is touched for a moment may
    // be in none.
    let cells = far.iter().map(|m| (m.cells.misses.iter().filter(|&&n| n > 0).count() as u64, m.grain.0));
    let part = cells.map(|(touched, grain)| touched * grain).max().unwrap_or(0);
    let least = u64::from(profile.effort.sweeps.unwrap() >= 32);
    assert!((least..1 << 39).contains(&part), "{part} {:?}", profile.notes);
    assert!(!profile.notes.iter().any(|note| note.contains("seen whole")), "{:?}", profile.notes);
}

#[test]
fn a_short_or_failing_program_is_reported_and_a_missing_one_refused() {
    let lab = Lab::new();
    let base = ["profile", "--source", "accessed", "-o"];
    let ran = lab.run(&[&base[..], &["a.pagelab", "--", "/bin/sh", "-c", "exit 7"]].concat());
    assert_eq!(ran.code, Some(7), "{}", ran.err);
    let notes = profile(&lab, "a.pagelab").notes;
    assert!(notes.iter().any(|note| note.contains("exited with code 7")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("no scan")), "{notes:?}");
    let ran = lab.run(&[&base[..], &["b.pagelab", "--", "/no/such/program"]].concat());
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("cannot start /no/such/program: no such file"), "{}", ran.err);
    let ran = lab.run(&[&base[..], &["c.pagelab", "--pid", "4194305"]].concat());
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(!lab.path().join("c.pagelab").exists());
}

#[test]
fn a_stopped_process_stays_stopped_and_never_written_memory_is_reported_unseen() {
    let rest = "
z = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(z), 4096): z[at]
print('more')
time.sleep(600)
";
    let Some(mut target) = python(&with(rest)) else { return };
    assert_eq!(target.line(), "more");
    let pid = target.0.id();
    target.signal(rustix::process::Signal::STOP);
    wait_until("the stop", || process_state(pid) == 'T');
    let lab = Lab::new();
    profile_until_scanned(&lab, pid);
    wait_until("the stop again", || process_state(pid) == 'T');
    assert_eq!(left_out(pid), 0);
    let profile = profile(&lab, "p.pagelab");
    let unseen: Vec<_> = profile.images[0].mappings.iter().flat_map(|m| &m.unseen).collect();
    let told = pagelab_host::root::Root::live().read("/proc/self/pagemap").is_ok();
    let zero = unseen.iter().any(|unseen| unseen.why == UnseenReason::ZeroPage && unseen.bytes.0 >= 16 << 20);
    assert!(zero || !told, "{unseen:?} {:?}", profile.notes);
}

/// A filter of system calls that lets all of them pass, set by the program itself.
const FILTER: &str = "
import ctypes
class Step(ctypes.Structure): _fields_ = [('code', ctypes.c_ushort), ('jt', ctypes.c_ubyte),
    ('jf', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Steps(ctypes.Structure): _fields_ = [('count', ctypes.c_ushort), ('at', ctypes.POINTER(Step))]
steps = Steps(1, ctypes.pointer(Step(6, 0, 0, 0x7fff0000)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(steps), 0, 0) == 0
";

#[test]
fn a_program_with_its_own_seccomp_filter_is_observed_by_whole_mappings() {
    let Some(target) = python(&format!("{FILTER}{HOLDS}time.sleep(600)")) else { return };
    let lab = Lab::new();
    profile_until_scanned(&lab, target.0.id());
    let attached = profile(&lab, "p.pagelab");
    let script = format!(
        "{FILTER}{HOLDS}{SCANS}
# Nothing is split: a scan is over once the bits are cleared again.
for n in range(2):
    touch_rest()
    while not is_cleared():
        for at in range(0, len(m), 4096): m[at]
print('all right')"
    );
    let Some(started) = to_its_end(&script) else { return };
    // One that is started may have been swept before it had its filter.
    assert_eq!(attached.effort.split_ns, None, "{:?}", attached.notes);
    for profile in [attached, started] {
        assert!(profile.effort.sweeps.unwrap() > 0, "{:?}", profile.notes);
        let is_told = |note: &String| note.contains("are observed as a whole, not by huge page");
        assert!(profile.notes.iter().any(is_told), "{:?}", profile.notes);
    }
}

/// Becomes another program, for which the kernel refuses this call with EPERM.
const REFUSED: &str = "
import ctypes, os, sys
class Step(ctypes.Structure): _fields_ = [('code', ctypes.c_ushort), ('jt', ctypes.c_ubyte),
    ('jf', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Steps(ctypes.Structure): _fields_ = [('count', ctypes.c_ushort), ('at', ctypes.POINTER(Step))]
number, program = int(sys.argv[1]), sys.argv[2:]
four = (Step * 4)(Step(0x20, 0, 0, 0), Step(0x15, 0, 1, number), Step(6, 0, 0, 0x50001),
    Step(6, 0, 0, 0x7fff0000))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(Steps(4, four)), 0, 0) == 0
os.execv(program[0], program)
";

#[cfg(target_arch = "x86_64")]
#[test]
fn without_ptrace_or_seccomp_a_program_runs_without_a_supervisor() {
    let lab = Lab::new();
    let binary = binary();
    // The calls ptrace and seccomp.
    for (number, why) in [("101", "cannot trace the program"), ("317", "cannot install a seccomp filter")] {
        let mut command = Command::new("python3");
        command.args(["-c", REFUSED, number, binary]).current_dir(lab.path()).stdin(Stdio::null());
        let file = format!("{number}.pagelab");
        command.args(["profile", "--source", "accessed", "--duty", "50%", "-o", &file, "--", binary]);
        command.args(["workload", "hot-regions", "--size", "64M", "--rounds", "300000", "--base", "0"]);
        let Ok(ran) = command.output() else {
            eprintln!("skipped: python3-absent: no program with these habits");
            return;
        };
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let notes = profile(&lab, &file).notes;
        let told = notes.iter().find(|note| note.contains("the supervisor cannot trace the program"));
        assert!(told.is_some_and(|told| told.contains(why) && !told.contains("--no-")), "{notes:?}");
    }
}

#[test]
fn without_splits_mremap_never_fails() {
    let script = format!(
        "{SCANS}
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
size = 64 << 20
# A scan is over once the bits are cleared again.
for n in range(2):
    touch_rest()
    while not is_cleared():
        for at in range(0, len(m), 65536): m[at] = 1
        size += 65536
        m.resize(size)
print('all right')"
    );
    let Some(profile) = to_its_end_with(&script, &["--no-split"]) else { return };
    assert_eq!((profile.effort.split_ns, profile.effort.stopped_ns), (None, None));
    assert!(profile.effort.sweeps.unwrap() > 0, "{:?}", profile.notes);
}

/// pagelab of a user without rights, whose journals have this place.
fn as_nobody(lab: &Lab, journals: Option<&Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", binary()]);
    command.current_dir(lab.path()).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command.envs(journals.map(|path| ("XDG_RUNTIME_DIR", path)));
    command
}

/// The user's own program, swept so often that the sweeps of its first moments count for little.
fn profile_as_nobody(lab: &Lab, journals: Option<&Path>, options: &[&str]) -> TlbProfile {
    let attempt = |rounds: &str| {
        let _ = std::fs::remove_file(lab.path().join("p.pagelab"));
        let mut command = as_nobody(lab, journals);
        command.args(["profile", "--source", "accessed", "--duty", "50%", "-o", "p.pagelab"]).args(options);
        command.args(["--", binary(), "workload", "hot-regions", "--size", "64M", "--base", "0"]);
        let ran = command.args(["--rounds", rounds]).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        profile(lab, "p.pagelab")
    };
    with_enough_rounds(1_000_000, attempt, |found| found.effort.sweeps >= Some(16))
}

#[test]
fn without_root_own_programs_are_profiled_and_those_of_others_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: cannot run as another user");
        return;
    }
    let lab = Lab::new();
    let nobody = rustix::fs::Uid::from_raw(65534);
    rustix::fs::chown(lab.path(), Some(nobody), None).unwrap();
    let of_root = ["profile", "--source", "accessed", "--pid", "1", "-o", "o.pagelab"];
    let Ok(other) = as_nobody(&lab, Some(lab.path())).args(of_root).output() else {
        eprintln!("skipped: no-setpriv: cannot run as another user");
        return;
    };
    let err = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(4), "{err}");
    assert!(err.contains("sudo"), "{err}");
    let found = profile_as_nobody(&lab, Some(lab.path()), &[]);
    assert!(found.effort.split_ns.unwrap_or(0) > 0, "{:?}", found.notes);
    // Without a place for a journal, too: a program under the supervisor ends with it.
    for supervised in [true, false] {
        let options: &[&str] = if supervised { &[] } else { &["--no-supervise"] };
        let found = profile_as_nobody(&lab, None, options);
        let is_whole =
            found.notes.iter().any(|note| note.contains("are observed as a whole, not by huge page"));
        assert_eq!(
            (found.effort.split_ns.is_some(), is_whole),
            (supervised, !supervised),
            "{:?}",
            found.notes
        );
        let mappings = found.images.iter().flat_map(|image| &image.mappings);
        let walked = mappings.filter(|of| of.cells.misses.iter().sum::<u64>() > 0);
        let most = walked.max_by_key(|of| of.cells.misses.iter().sum::<u64>()).unwrap();
        assert_eq!(most.key.kind != MappingKind::Placed, supervised, "{:?}", most.key);
    }
}
