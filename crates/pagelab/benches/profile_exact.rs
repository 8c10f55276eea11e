//! Benchmark of the source `exact`: CPU time of a profiled run, compared with the program alone, and with a
//! window compared with QEMU without the plugin.
//!
//! Prints a JSON line a bar. What is compared runs in turns, three times each; the middle ratio counts. The
//! CPU time of a profiled run is that of QEMU with the program in it.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use pagelab_model::order_statistics::median;
use pagelab_sys::wait::wait4;

const PAGELAB: &str = env!("CARGO_BIN_EXE_pagelab");
/// Odd, so that the middle is one of them.
const RUNS: usize = 3;

fn main() {
    let chase = [PAGELAB, "workload", "chase", "--size", "1G", "--steps", "20000000", "--advise", "nohuge"];
    // Integer code: the first 3 MB of this program, compressed.
    let script = "head -c 3000000 \"$0\" | xz -9 -T1 -c";
    let xz = ["sh", "-c", script, PAGELAB];
    let memory = median_ratio(|| Some(profiled_cpu_ns(&chase, &[])? / native_cpu_ns(&chase)?));
    let integer = median_ratio(|| Some(profiled_cpu_ns(&xz, &[])? / native_cpu_ns(&xz)?));
    let dearer = |of: &[&str]| {
        median_ratio(|| Some(profiled_cpu_ns(of, &["--what-if", "all"])? / profiled_cpu_ns(of, &[])?))
    };
    // The promise is of every program: the worse of both counts.
    let what_if = dearer(&xz).zip(dearer(&chase)).map(|(integer, memory)| integer.max(memory));
    // Of a program, and not of what QEMU needs to begin: some seconds long.
    let (window, rest) = (windowed_ratio("1M/50M"), windowed_ratio("10k/50M"));
    let all = [
        ("exact_window_qemu_ratio", window),
        ("exact_unwatched_qemu_ratio", rest),
        ("exact_memory_cpu_ratio", memory),
        ("exact_integer_cpu_ratio", integer),
        ("exact_what_if_cpu_ratio", what_if),
    ];
    for (bar, value) in all {
        let line = match value {
            Some(value) => format!(r#"{{"bar":"{bar}","value":{value:.3},"unit":"ratio"}}"#),
            None => format!(r#"{{"bar":"{bar}","value":null,"unit":"ratio","why":"a run failed"}}"#),
        };
        let _ = writeln!(io::stdout(), "{line}");
    }
}

/// CPU time of hot-regions that only reads, profiled with a window, to that in QEMU without the plugin.
fn windowed_ratio(window: &str) -> Option<f64> {
    let program = [PAGELAB, "workload", "hot-regions", "--first", "read", "--advise", "nohuge"];
    let command: Vec<&str> = program.into_iter().chain(["--rounds", "40000000"]).collect();
    let qemu = find_qemu()?;
    let plain: Vec<&str> = qemu.iter().map(String::as_str).chain(command.iter().copied()).collect();
    median_ratio(|| Some(profiled_cpu_ns(&command, &["--window", window])? / native_cpu_ns(&plain)?))
}

/// The QEMU of profiles, as reported by `profile setup`, with the libraries of its directory.
fn find_qemu() -> Option<Vec<String>> {
    let told = Command::new(PAGELAB).args(["profile", "setup"]).output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let path = told.split_whitespace().find(|word| word.ends_with("/qemu-x86_64"))?.to_owned();
    let Some(root) = path.strip_suffix("/usr/bin/qemu-x86_64").filter(|root| !root.is_empty()) else {
        return Some(vec![path]);
    };
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib"];
    let libraries: Vec<String> = folders.iter().map(|folder| format!("{root}/{folder}")).collect();
    let loader = "/lib64/ld-linux-x86-64.so.2".to_owned();
    Some(vec![loader, "--library-path".to_owned(), libraries.join(":"), path])
}

fn median_ratio(mut ratio: impl FnMut() -> Option<f64>) -> Option<f64> {
    let mut ratios = (0..RUNS).map(|_| ratio()).collect::<Option<Vec<f64>>>()?;
    median(&mut ratios)
}

/// CPU time of a program and its children, ns.
fn native_cpu_ns(command: &[&str]) -> Option<f64> {
    let mut command_line = Command::new(command[0]);
    command_line.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command_line.spawn().ok()?;
    let (status, used) = wait4(child.id(), false).ok()??;
    status.success().then_some((used.utime_ns + used.stime_ns) as f64)
}

/// The same of a profiled run.
fn profiled_cpu_ns(command: &[&str], options: &[&str]) -> Option<f64> {
    let folder = tempfile::tempdir().ok()?;
    let file = folder.path().join("p.pagelab");
    let mut pagelab = Command::new(PAGELAB);
    pagelab.args(["profile", "--source", "exact", "-o"]).arg(&file).args(options).arg("--").args(command);
    let status = pagelab.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    status.success().then(|| read_cpu_ns(&file)).flatten()
}

fn read_cpu_ns(file: &Path) -> Option<f64> {
    let run = pagelab_runfile::read_run_file(file).ok()?;
    run.profile?.effort.cpu_ns.map(|ns| ns as f64)
}
