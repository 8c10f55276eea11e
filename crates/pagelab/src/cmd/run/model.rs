//! `pagelab run --model`: misses of a modelled TLB where the processor's counters cannot be read, from one
//! run of each workload under each variant in QEMU's user mode.
//!
//! The run is `pagelab profile --source exact`, started as a program: what the workload prints stays out of
//! ours, and a workload that fails there costs its columns and nothing else.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_experiment::recipe::Runs;
use pagelab_experiment::resolve::{PAGELAB, Resolved};
use pagelab_host::paths;
use pagelab_model::experiment::{Better, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Profile, Snapshot};
use pagelab_workloads::folder::OwnFolder;
use rustix::process::{Pid, Signal, kill_process};

use crate::out;

/// A run under QEMU takes some 26 times as long as a trial; after so many times the limit of a trial it is
/// ended.
const TIMES_MOST: u32 = 60;
/// How often it is seen whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long one that was asked to end may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the processor's own counters can be read here: then nothing needs to be modelled.
pub fn is_counted(snapshot: &Snapshot) -> bool {
    let hardware = snapshot.instruments.iter().find(|instrument| instrument.name == "hardware_counters");
    hardware.is_some_and(|instrument| instrument.state.is_ok())
}

/// What one run of a workload under a variant says, or why it says nothing.
pub fn measures(
    resolved: &Resolved,
    (workload, variant): (usize, usize),
    stop: &dyn Fn() -> Option<i32>,
) -> Result<Vec<Measure>, String> {
    let heads = (&resolved.plan.workloads[workload].name, &resolved.plan.variants[variant].name);
    out::note(&format!("model: {} under {} runs once in QEMU, some 26 times as long", heads.0, heads.1));
    let folder = OwnFolder::temporary("model").map_err(|failed| failed.to_string())?;
    let file = folder.path().join("exact.pagelab");
    let own =
        std::env::current_exe().map_err(|error| format!("pagelab itself cannot be started: {error}"))?;
    let mut command = Command::new(paths::SELF_EXE);
    command.args(["profile", "--source", "exact", "--what-if", "all", "-o"]).arg(&file).arg("--");
    command.args(words(resolved.program(workload, variant), &own));
    let of = &resolved.recipe;
    let environment = of.workloads[workload].environment.iter().chain(&of.variants[variant].environment);
    command.envs(environment.map(|(name, value)| (name, value)));
    pagelab_sys::spawn::die_with_parent(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let said = ended(&mut command, resolved.time_limit(workload) * TIMES_MOST, stop)?;
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let run = pagelab_runfile::read(&file).map_err(|_| last.trim_start_matches("pagelab: ").to_owned())?;
    let profile = run.profile.ok_or_else(|| last.to_owned())?;
    let is_good = |code: u8| match &of.workloads[workload].runs {
        Runs::Command { good_codes, .. } => good_codes.contains(&i32::from(code)),
        _ => code == 0,
    };
    if let Some(code) = profile.exit.filter(|&code| !is_good(code)) {
        return Err(format!("under QEMU it ended with {code}"));
    }
    of_profile(&profile, resolved.asks_for_huge_pages(workload, variant))
}

/// Runs it to its end, a signal to us, or a limit; what it said.
fn ended(command: &mut Command, limit: Duration, stop: &dyn Fn() -> Option<i32>) -> Result<String, String> {
    let failed = |error: io::Error| format!("it cannot be started: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let mut stderr = child.stderr.take();
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        stderr.as_mut().map(|stderr| stderr.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    let began = Instant::now();
    while child.try_wait().map_err(failed)?.is_none() {
        let why = match stop() {
            Some(_) => Some("stopped by a signal".to_owned()),
            None => (began.elapsed() > limit).then(|| format!("not done after {} s", limit.as_secs())),
        };
        if let Some(why) = why {
            return end(&mut child).map_err(failed).and(Err(why));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(said.join().unwrap_or_default())
}

/// Asks it to end, and kills it where it does not.
fn end(child: &mut Child) -> io::Result<()> {
    let began = Instant::now();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::TERM)?;
    }
    while child.try_wait()?.is_none() {
        if began.elapsed() > PATIENCE {
            child.kill()?;
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The words of the program, this one by its path: QEMU runs a file.
fn words(mut words: Vec<String>, own: &Path) -> Vec<PathBuf> {
    if let Some(first) = words.first_mut().filter(|first| *first == PAGELAB) {
        *first = own.to_string_lossy().into_owned();
    }
    words.into_iter().map(PathBuf::from).collect()
}

/// Counts of the whole program: of base pages, or with all private anonymous memory on huge pages where the
/// variant asks for them.
fn of_profile(profile: &Profile, is_huge: bool) -> Result<Vec<Measure>, String> {
    let name = if is_huge { "all" } else { "none" };
    let misses = profile.what_ifs.iter().find(|of| of.name == name).map(|of| of.misses);
    let misses = misses.ok_or("its model has no such pages")?;
    let sum = |of: fn(&pagelab_model::profile::ImageProfile) -> Option<u64>| {
        profile.images.iter().map(of).sum::<Option<u64>>()
    };
    let accesses = sum(|image| image.accesses).ok_or("it did not count accesses")?;
    let pages = match is_huge {
        true => "all private anonymous memory on huge pages, as the variant asks",
        false => "base pages",
    };
    let source = format!("a modelled TLB, one run under QEMU of the whole program, {pages}");
    let measure = |name: &str, better, value: u64| Measure {
        name: format!("{}{name}", measures::MODEL),
        unit: Unit::COUNT.into(),
        better,
        value: Ok(value as f64),
        source: source.clone(),
    };
    let mut found =
        vec![measure("accesses", Better::Neither, accesses), measure("tlb-misses", Better::Lower, misses)];
    let instructions = sum(|image| image.instructions);
    found.extend(instructions.map(|count| measure("instructions", Better::Neither, count)));
    Ok(found)
}
