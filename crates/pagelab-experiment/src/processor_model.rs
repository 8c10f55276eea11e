//! Model of the processor's TLBs, where its counters cannot be read: one run of each workload under each
//! variant in QEMU user mode.
//!
//! The run is `pagelab profile --source exact` as a separate program: the workload's output stays out of
//! ours, and a workload that fails costs only its columns.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::paths;
use pagelab_model::experiment::{BetterDirection, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Snapshot, TlbProfile};
use pagelab_workloads::private_dir::PrivateDir;
use rustix::process::{Pid, Signal, kill_process};

use crate::gate::PAGELAB;
use crate::resolve::ResolvedExperiment;

/// Limit of a run under QEMU, in multiples of a trial's limit; such a run takes about 26 times as long as a
/// trial.
const SLOWDOWN_MAX: u32 = 60;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time that the program gets to end after a request.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the processor's own counters can be read: then no model is needed.
pub fn has_tlb_counters(snapshot: &Snapshot) -> bool {
    let hardware = snapshot.instruments.iter().find(|instrument| instrument.name == "hardware_counters");
    hardware.is_some_and(|instrument| instrument.state.is_ok())
}

/// Measures one run of a workload under a variant, or returns why it has no result.
pub fn measure_modelled(
    resolved: &ResolvedExperiment,
    (workload, variant): (usize, usize),
    stop: &dyn Fn() -> Option<i32>,
) -> Result<Vec<Measure>, String> {
    let folder = PrivateDir::in_temp_dir("model").map_err(|failed| failed.to_string())?;
    let file = folder.path().join("exact.pagelab");
    let own = std::env::current_exe().map_err(|error| format!("cannot re-execute pagelab: {error}"))?;
    let mut command = Command::new(paths::SELF_EXE);
    command.args(["profile", "--source", "exact", "--what-if", "all", "-o"]).arg(&file).arg("--");
    command.args(program_words(resolved.workload_command(workload, variant), &own));
    let of = &resolved.recipe;
    let environment = of.workloads[workload].environment.iter().chain(&of.variants[variant].environment);
    command.envs(environment.map(|(name, value)| (name, value)));
    pagelab_sys::spawn::die_with_parent(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = run_to_end(&mut command, resolved.time_limit(workload) * SLOWDOWN_MAX, stop)?;
    let run = pagelab_runfile::read_run_file(&file).map_err(|_| error_text(&output))?;
    let profile = run.profile.ok_or_else(|| error_text(&output))?;
    let command = &of.workloads[workload].command;
    if let Some(code) = profile.exit.filter(|&code| !command.is_success(i32::from(code))) {
        return Err(format!("it exited with code {code} under QEMU"));
    }
    measures_from_profile(&profile, resolved.asks_for_huge_pages(workload, variant))
}

/// The reason that the program printed: its error without the hint, or its last line.
fn error_text(stderr: &str) -> String {
    let error = stderr.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let last = || stderr.lines().rev().find(|line| !line.trim().is_empty());
    error.or_else(last).unwrap_or("it printed no error").to_owned()
}

/// Runs it to its end, a signal to us, or a limit; returns its output.
fn run_to_end(
    command: &mut Command,
    limit: Duration,
    stop: &dyn Fn() -> Option<i32>,
) -> Result<String, String> {
    let failed = |error: io::Error| format!("cannot start it: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let mut stderr = child.stderr.take();
    let output = thread::spawn(move || {
        let mut output = Vec::new();
        stderr.as_mut().map(|stderr| stderr.read_to_end(&mut output));
        String::from_utf8_lossy(&output).into_owned()
    });
    let began = Instant::now();
    while child.try_wait().map_err(failed)?.is_none() {
        let why = match stop() {
            Some(_) => Some("stopped by a signal".to_owned()),
            None => (began.elapsed() > limit).then(|| format!("not finished after {} s", limit.as_secs())),
        };
        if let Some(why) = why {
            return end_child(&mut child).map_err(failed).and(Err(why));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(output.join().unwrap_or_default())
}

/// Requests its end, and kills it if it does not end.
fn end_child(child: &mut Child) -> io::Result<()> {
    let began = Instant::now();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::TERM)?;
    }
    while child.try_wait()?.is_none() {
        if began.elapsed() > EXIT_TIMEOUT {
            child.kill()?;
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the command line of the program, with pagelab by its path: QEMU runs a file.
fn program_words(mut words: Vec<String>, own_path: &Path) -> Vec<PathBuf> {
    if let Some(first) = words.first_mut().filter(|first| *first == PAGELAB) {
        *first = own_path.to_string_lossy().into_owned();
    }
    words.into_iter().map(PathBuf::from).collect()
}

/// Returns the counts of the entire program: for base pages, or with all private anonymous memory on huge
/// pages if the variant requests that.
fn measures_from_profile(profile: &TlbProfile, is_huge: bool) -> Result<Vec<Measure>, String> {
    let name = if is_huge { "all" } else { "none" };
    let misses = profile.what_ifs.iter().find(|of| of.name == name).map(|of| of.misses);
    let misses = misses.ok_or("the profile has no result for these pages")?;
    let sum = |of: fn(&pagelab_model::profile::ImageProfile) -> Option<u64>| {
        profile.images.iter().map(of).sum::<Option<u64>>()
    };
    let accesses = sum(|image| image.accesses).ok_or("the profile has no access count")?;
    let pages = match is_huge {
        true => "all private anonymous memory on huge pages, as the variant requests",
        false => "base pages",
    };
    let source = format!("modelled TLB, one run of the whole program under QEMU, {pages}");
    let measure = |name: &str, better, value: u64| {
        let name = format!("{}{name}", measures::MODEL_PREFIX);
        Measure::new(name, Unit::COUNT, better, Ok(value as f64), &source)
    };
    let mut found = vec![
        measure("accesses", BetterDirection::Neither, accesses),
        measure("tlb-misses", BetterDirection::Lower, misses),
    ];
    let instructions = sum(|image| image.instructions);
    found.extend(instructions.map(|count| measure("instructions", BetterDirection::Neither, count)));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_error_and_not_its_hint() {
        let text = "note: a\nerror: cannot start QEMU\nhint: fetch it\n\n";
        assert_eq!(error_text(text), "cannot start QEMU");
        assert_eq!(error_text("one\ntwo\n"), "two");
        assert_eq!(error_text(" \n"), "it printed no error");
    }
}
