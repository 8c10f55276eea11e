//! Benchmark of guests under load: how many of a hundred are lost, by kernel and by how QEMU emulates CPUs.
//!
//! A guest of 640 MiB opens and closes tracepoints four times, which rewrites the kernel's code while it
//! runs, and requests huge pages. Two guests run side by side. `--boots=N`, `--kernel=SERIES` and
//! `--setting=NAME` select; without them the default setting is measured.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

#[path = "../tests/guest/trial.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod trial;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pagelab_guest::boot::{GuestPlan, QEMU};
use pagelab_guest::job::JobStep;
use pagelab_guest::outcome::GuestOutcome;
use pagelab_model::order_statistics::median;
use pagelab_model::size;
use pagelab_packages::program;

/// A way to emulate CPUs.
struct Setting {
    name: &'static str,
    cpus: u32,
    /// Whether each CPU is emulated by a thread of its own.
    has_thread_per_cpu: bool,
}

const SETTINGS: [Setting; 3] = [
    Setting { name: "default", cpus: 2, has_thread_per_cpu: false },
    Setting { name: "one-cpu", cpus: 1, has_thread_per_cpu: false },
    Setting { name: "thread-per-cpu", cpus: 2, has_thread_per_cpu: true },
];

/// Kernels, their boots, and their bars.
const KERNELS: [(&str, usize, &str); 2] =
    [("6.12", 100, "guest_6_12_lost_of_100"), ("6.1", 50, "guest_6_1_lost_of_100")];

const LANES: usize = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let find = |name: &str| arguments.iter().find_map(|word| word.strip_prefix(name));
    let wanted = find("--setting=").unwrap_or("default");
    let setting = SETTINGS.iter().find(|setting| setting.name == wanted).expect("a known setting");
    for (series, boots, bar) in KERNELS {
        if find("--kernel=").is_some_and(|wanted| wanted != series) {
            continue;
        }
        let boots = find("--boots=").map_or(boots, |boots| boots.parse().unwrap());
        measure(setting, series, boots, bar);
    }
}

/// Boots guests, two side by side, and prints the bar.
fn measure(setting: &Setting, series: &str, boots: usize, bar: &str) {
    let Some(mut plan) = trial::plan(series, load_steps()) else {
        println!(r#"{{"bar":"{bar}","value":null,"unit":"guests","why":"no guest"}}"#);
        return;
    };
    plan.config.memory = size::parse("640M").unwrap();
    plan.config.cpus = setting.cpus;
    plan.timeouts.total = Duration::from_secs(300);
    let folder = tempfile::tempdir().unwrap();
    if setting.has_thread_per_cpu {
        plan.qemu = write_wrapper(folder.path());
    }
    let next = AtomicUsize::new(0);
    let run_lane = || {
        let mut ended = Vec::new();
        while next.fetch_add(1, Ordering::Relaxed) < boots {
            ended.push(run_guest(&plan));
        }
        ended
    };
    let ended: Vec<Result<GuestCost, String>> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(run_lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    let costs: Vec<&GuestCost> = ended.iter().flatten().collect();
    let lost = ended.len() - costs.len();
    let middle = |of: fn(&GuestCost) -> Duration| {
        median(&mut costs.iter().map(|cost| of(cost).as_secs_f64()).collect::<Vec<f64>>()).unwrap_or(f64::NAN)
    };
    let (boot, cpu, wall) =
        (middle(|cost| cost.boot_cpu), middle(|cost| cost.host_cpu), middle(|cost| cost.wall_time));
    let per_hundred = lost as f64 * 100.0 / boots as f64;
    println!(
        r#"{{"bar":"{bar}","value":{per_hundred:.1},"unit":"guests","how":"{lost} of {boots} lost, setting {}, {LANES} side by side; middle: boot {boot:.1} s of CPU, whole {cpu:.1} s of CPU, {wall:.1} s"}}"#,
        setting.name
    );
}

fn load_steps() -> Vec<JobStep> {
    let record = |number: u32| {
        trial::pagelab(&format!(
            "trace record --no-snapshot --backend perf --ring 1M --for 300ms -o /tmp/{number}.pagelab"
        ))
    };
    let mut steps: Vec<JobStep> = (0..4).map(record).collect();
    steps.insert(2, trial::pagelab("can 50 --really --json"));
    steps
}

/// Cost of a guest that ended well.
struct GuestCost {
    boot_cpu: Duration,
    host_cpu: Duration,
    wall_time: Duration,
}

/// Runs a guest; the reason if it was lost, which is printed at once.
fn run_guest(plan: &GuestPlan) -> Result<GuestCost, String> {
    match trial::run(plan) {
        GuestOutcome::Completed(completed) => Ok(GuestCost {
            boot_cpu: completed.report.first_message.map_or(Duration::ZERO, |first| first.host_cpu),
            host_cpu: completed.report.host_cpu,
            wall_time: completed.report.wall_time,
        }),
        GuestOutcome::Lost(lost) => {
            let console = trial::console(&lost);
            let place = console.lines().find(|line| line.contains("RIP:")).unwrap_or("no RIP").to_owned();
            let why = format!("{} after {} steps; {place}", lost.reason, lost.steps.len());
            println!("  lost: {why}");
            Err(why)
        }
    }
}

/// A QEMU that emulates each CPU in a thread of its own, whatever is requested.
fn write_wrapper(folder: &Path) -> PathBuf {
    let qemu = program::find_program(QEMU.as_ref()).expect("QEMU is there");
    let script =
        format!("#!/bin/bash\nexec {} \"${{@/tcg,thread=single/tcg,thread=multi}}\"\n", qemu.display());
    let path = folder.join("qemu");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
