//! Benchmark of the probes: the cost of observing a trial of ten seconds, as a share of its time.
//!
//! Prints one JSON line on stdout. The trial is a pointer chase over 1 GiB that was written first, once on
//! base pages, where each walk over page tables is long, and once on huge pages. What counts is the CPU time
//! of all threads of this process from the gate to the end, and on top the time in which the kernel walked
//! the trial's page tables for us, as if the trial had stood still meanwhile. The larger of the two shares is
//! told.

#![allow(clippy::unwrap_used, reason = "a bench panics to fail")]
#![allow(clippy::zombie_processes, reason = "the child is waited for by wait4")]

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagelab_experiment::cgroup::TrialCgroup;
use pagelab_experiment::probe::{ProbeReadings, ProbeSelection, ProbeTarget, TargetExit, prepare_probes};
use pagelab_host::guard::{Guard, GuardOptions, GuardSite, SignalWatch};
use pagelab_model::Bytes;
use pagelab_sys::clock::{monotonic_ns, process_cpu_ns};
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::wait::wait4;
use pagelab_workloads::chase::{PointerChase, link_cycle};

const BAR: &str = "probe_cost_share";
const SIZE: u64 = 1 << 30;
const ALIGN: u64 = 1 << 30;
const TRIAL_NS: u64 = 10_000_000_000;
const TICK: Duration = Duration::from_millis(100);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().position(|word| word == "chase") {
        Some(at) => chase(words[at + 1] == "huge"),
        None => bench(),
    }
}

/// The trial's program: reads for ten seconds, the writing included.
fn chase(huge: bool) {
    let began_ns = monotonic_ns();
    let mut memory = Mapping::anonymous(Bytes(SIZE), Bytes(ALIGN)).unwrap();
    let advice = if huge { Advice::HugePage } else { Advice::NoHugePage };
    memory.advise(0..SIZE, advice).unwrap();
    link_cycle(memory.words_mut(), 1, || true);
    let mut chase = PointerChase::new(memory.words());
    while monotonic_ns() - began_ns < TRIAL_NS {
        chase.walk(1_000_000);
    }
    std::hint::black_box(chase.slot_count());
}

struct Cost {
    share: f64,
    text: String,
}

fn bench() {
    // Without root there is no group, and anonymous memory is scanned by walks alone.
    let guard = GuardSite::live()
        .and_then(|site| Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()));
    let guard = guard.ok();
    let costs: Vec<Cost> = ["base", "huge"].iter().map(|pages| run_watched(pages, guard.as_ref())).collect();
    let worst = costs.iter().map(|cost| cost.share).fold(0.0, f64::max);
    let samples: Vec<String> = costs.iter().map(|cost| format!("{:.5}", cost.share)).collect();
    let how: Vec<&str> = costs.iter().map(|cost| cost.text.as_str()).collect();
    let line = format!(
        r#"{{"bar":"{BAR}","value":{worst:.5},"unit":"ratio","samples":[{}],"how":"{}"}}"#,
        samples.join(","),
        how.join("; ")
    );
    let _ = writeln!(io::stdout(), "{line}");
}

fn run_watched(pages: &str, guard: Option<&Guard>) -> Cost {
    let made = guard.and_then(|guard| TrialCgroup::create(guard, &format!("cost-{pages}")).ok());
    let group = made.as_ref();
    let mut command = Command::new("sh");
    command.args(["-c", r#"read line; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
    command.args(["chase", pages]).stdin(Stdio::piped()).process_group(0);
    if let Some(group) = group {
        group.join_before_exec(&mut command).unwrap();
    }
    let mut watching = prepare_probes(&ProbeSelection::default());
    let mut child = command.spawn().unwrap();
    let target = ProbeTarget { cgroup: group, limited_cgroup: None, pid: child.id() as i32 };
    let own_cpu_ns = || process_cpu_ns(std::process::id()).unwrap();
    let cpu_ns = own_cpu_ns();
    watching.arm(&target);
    let began_ns = monotonic_ns();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (status, rusage) = loop {
        std::thread::sleep(TICK);
        if let Some(ended) = wait4(child.id(), true).unwrap() {
            break ended;
        }
        watching.tick(&target);
    };
    let wall_ns = monotonic_ns() - began_ns;
    let found = watching.finish(&target, &TargetExit { wall_ns, rusage, orphan_count: 0 });
    assert!(status.success(), "{status}");
    let spent_ns = (own_cpu_ns() - cpu_ns) as f64;
    let stop_ns = reading(&found, "probe.stop");
    let share = (spent_ns + stop_ns) / wall_ns as f64;
    let text = format!(
        "1 GiB on {pages} pages, {:.1} s: {:.1} ms CPU and {:.1} ms of walks, {:.0} scans, {:.0} MiB in huge pages",
        wall_ns as f64 / 1e9,
        spent_ns / 1e6,
        stop_ns / 1e6,
        reading(&found, "probe.scans"),
        reading(&found, "huge.all") / f64::from(1 << 20),
    );
    Cost { share, text }
}

fn reading(found: &ProbeReadings, name: &str) -> f64 {
    let measure = found.measures.iter().find(|measure| measure.name == name);
    measure.and_then(|measure| measure.value.as_ref().ok().copied()).unwrap_or(-1.0)
}
