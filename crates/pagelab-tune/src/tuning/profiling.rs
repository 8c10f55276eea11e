//! Profile of a tuning: made by this program as a child process, or read from a file.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pagelab_command::output;
use pagelab_formats::duration;
use pagelab_host::capture::StopSignal;
use pagelab_host::paths;
use pagelab_model::profile::{CellCounts, ReuseHistograms, WalkCostCurve};
use pagelab_model::{Bytes, Snapshot, TlbProfile};
use pagelab_probe::{machine_tlb, walk_cost};
use pagelab_sys::spawn;
use pagelab_workloads::private_dir::PrivateDir;
use rustix::process::{Pid, Signal, kill_process};

use pagelab_command::exit::{Exit, Failure, FailureKind};

use crate::profile::MissSource;
use crate::profile_source;

/// Interval of checks whether a profile is done or a signal arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a profile and its program have to end after a request.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the larger of the two buffers in which page walk costs are measured, as in `pagelab plan
/// --calibrate`.
const CALIBRATION_BUFFER: Bytes = Bytes(1 << 30);

pub struct ProfilingOptions<'h> {
    pub stop: &'h StopSignal,
    /// Whether the page walk cost is measured if it is unknown.
    pub measures_walk_cost: bool,
    /// With `exact`, the modelled accesses; `None`: all.
    pub window: Option<String>,
    /// Exit codes of the program that count as success.
    pub success_codes: &'h [u8],
}

/// Returns the command that makes the profile.
pub fn command_text(source: MissSource, program: &[String]) -> String {
    format!("pagelab profile --source {} -- {}", source.name(), program.join(" "))
}

/// Returns the command that makes the profile of a running process.
pub fn attached_command_text(source: MissSource, pid: u32, time: Duration) -> String {
    let (source, time) = (source.name(), duration::format_argument(time));
    format!("pagelab profile --source {source} --pid {pid} --for {time}")
}

/// Profiles the program with `pagelab profile`, whose output is shown; the output of the program is dropped.
/// Returns `None` after a signal, like all functions here.
pub fn profile_command(
    source: MissSource,
    program: &[String],
    profile_path: &Path,
    options: &ProfilingOptions<'_>,
) -> Result<Option<TlbProfile>, Failure> {
    output::print_note(&format!("profiling: {}", command_text(source, program)));
    let mut command = profile_invocation(source, profile_path);
    add_window(&mut command, source, options);
    command.arg("--").args(program);
    run_and_read(command, profile_path, options)
}

fn add_window(command: &mut Command, source: MissSource, options: &ProfilingOptions<'_>) {
    if let Some(window) = options.window.as_ref().filter(|_| source == MissSource::Exact) {
        command.args(["--window", window]);
    }
}

/// Profiles a running process for this time.
pub fn profile_process(
    source: MissSource,
    pid: u32,
    time: Duration,
    profile_path: &Path,
    options: &ProfilingOptions<'_>,
) -> Result<Option<TlbProfile>, Failure> {
    output::print_note(&format!("profiling: {}", attached_command_text(source, pid, time)));
    let mut command = profile_invocation(source, profile_path);
    command.args(["--for", &duration::format_argument(time), "--pid", &pid.to_string()]);
    run_and_read(command, profile_path, options)
}

/// Counts the misses again with the plan's regions on huge pages. Returns `None` if there is no such count.
pub fn recount_with_plan(
    program: &[String],
    plan: &Path,
    profile_path: &Path,
    options: &ProfilingOptions<'_>,
) -> Option<TlbProfile> {
    output::print_note("recounting misses with the plan: pagelab profile --source exact --what-if …");
    let mut command = profile_invocation(MissSource::Exact, profile_path);
    add_window(&mut command, MissSource::Exact, options);
    command.arg("--what-if").arg(plan).arg("--").args(program);
    with_last_what_if(run_and_read(command, profile_path, options).ok()??)
}

/// Returns the profile with the counts of its last what-if: misses by region instead of by page.
fn with_last_what_if(mut profile: TlbProfile) -> Option<TlbProfile> {
    let what_if = profile.what_ifs.pop().filter(|_| !profile.what_ifs.is_empty())?;
    let page = profile.page_size.bytes().max(1);
    for image in &mut profile.images {
        image.misses = 0;
        for mapping in &mut image.mappings {
            (mapping.grain, mapping.cells, mapping.reuse) =
                (Bytes(page), CellCounts::default(), ReuseHistograms::default());
        }
    }
    for region in &what_if.regions {
        let image = profile.images.get_mut(usize::try_from(region.image).ok()?)?;
        image.misses = image.misses.saturating_add(region.misses);
        let mapping = image.mappings.get_mut(usize::try_from(region.mapping).ok()?)?;
        mapping.cells.at.push(region.offset / page);
        mapping.cells.misses.push(region.misses);
    }
    profile.what_ifs = vec![what_if];
    Some(profile)
}

fn profile_invocation(source: MissSource, profile_path: &Path) -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.args(["profile", "--passing", "--source", source.name(), "--output"]).arg(profile_path);
    command
}

/// Creates the directory of a tuning's profiles, which `pagelab restore` removes if this process is killed. A
/// run file that cannot be created is reported before anything is profiled.
pub fn create_profile_dir(run_file: &Path) -> Result<PrivateDir, Failure> {
    check_writable(&run_file.with_extension(format!("{}.pagelab", std::process::id())))?;
    PrivateDir::in_temp_dir("tune")
        .map_err(|error| Failure::new(FailureKind::NotAvailable, error.to_string()).hint("set TMPDIR"))
}

/// Checks that a file can be created here, and leaves none.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let created = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    if created.is_ok() {
        let _ = std::fs::remove_file(path);
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
    created.map(drop).map_err(|error| {
        let text =
            format!("{}: cannot create the run file in this directory; hint: use -o", folder.display());
        Failure::new(FailureKind::NotAvailable, text).with_cause(error)
    })
}

fn run_and_read(
    mut command: Command,
    profile_path: &Path,
    options: &ProfilingOptions<'_>,
) -> Result<Option<TlbProfile>, Failure> {
    let unstarted =
        |error: io::Error| Failure::cannot(FailureKind::NotAvailable, "start pagelab for the profile", error);
    spawn::die_with_parent(&mut command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(unstarted)?;
    let status = wait_for(child, options.stop).map_err(unstarted)?;
    if options.stop.signal().is_some() {
        pagelab_runfile::remove_run_file(profile_path);
        return Ok(None);
    }
    if !status.success() {
        pagelab_runfile::remove_run_file(profile_path);
        let kind = status.code().and_then(Exit::from_code).and_then(Exit::failure_kind);
        let text = "cannot tune the program: no profile, see the error above; hint: try another --source, or \
                    --profile FILE";
        return Err(Failure::new(kind.unwrap_or(FailureKind::Partial), text));
    }
    let profile = read_profile(profile_path, options);
    // The profile is in the run file of the tuning.
    pagelab_runfile::remove_run_file(profile_path);
    let Some(profile) = profile? else { return Ok(None) };
    match profile.exit.filter(|exit| !options.success_codes.contains(exit)) {
        None => Ok(Some(profile)),
        Some(exit) => Err(exit_failure(exit)),
    }
}

/// Failure of a program that failed while it was profiled.
fn exit_failure(exit: u8) -> Failure {
    let text = match exit.checked_sub(128).filter(|signal| *signal > 0) {
        Some(signal) => format!(
            "cannot tune the program: signal {signal} killed it during the profile; hint: run it alone; if \
            exit code {exit} means success, use --exit-codes 0,{exit}"
        ),
        None => format!(
            "cannot tune the program: it exited with code {exit} during the profile; hint: if that means \
             success, use --exit-codes 0,{exit}"
        ),
    };
    Failure::new(FailureKind::Partial, text)
}

/// Waits for the child. Forwards a signal to the child, so that it stops what it started.
fn wait_for(mut child: Child, stop: &StopSignal) -> io::Result<ExitStatus> {
    let mut stop_requested = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match (stop.signal(), stop_requested) {
            (Some(signal), None) => {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
                    let _ = kill_process(pid, signal);
                }
                stop_requested = Some(Instant::now());
            }
            (Some(_), Some(since)) if since.elapsed() > EXIT_TIMEOUT => child.kill()?,
            _ => {}
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Reads a profile, and adds the page walk cost if it is of this machine.
pub fn read_profile(path: &Path, options: &ProfilingOptions<'_>) -> Result<Option<TlbProfile>, Failure> {
    let profile_source::ProfileSource { mut profile, machine } = profile_source::read_profile(path)?;
    let snapshot = machine_tlb::read_machine();
    if profile.walk_cost.is_none() && machine.is_none_or(|of| of == walk_cost::machine_key(&snapshot.machine))
    {
        profile.walk_cost = walk_cost::load_cached(&snapshot.machine);
        let misses = profile.images.iter().any(|image| image.misses > 0);
        if options.measures_walk_cost && misses && profile.walk_cost.is_none() {
            profile.walk_cost = measure_walk_cost(snapshot, options.stop);
        }
    }
    Ok(options.stop.signal().is_none().then_some(profile))
}

pub fn has_walk_cost() -> bool {
    walk_cost::load_cached(&machine_tlb::read_machine().machine).is_some()
}

/// Measures the page walk cost and keeps it. Without it only the predicted time is missing: so a failure is
/// reported, and nothing else.
fn measure_walk_cost(snapshot: Snapshot, stop: &StopSignal) -> Option<WalkCostCurve> {
    output::warn("note: measuring the cost of page walks, about 15 s; the result is cached");
    let (says, hears) = mpsc::channel();
    // Its thread ends with the process, if that ends first.
    std::thread::spawn(move || says.send(walk_cost::measure(&snapshot, CALIBRATION_BUFFER)));
    loop {
        match hears.recv_timeout(POLL_INTERVAL) {
            Ok(Ok(cost)) => return Some(cost),
            Ok(Err(failure)) => {
                output::warn(&format!("warning: {failure}; no time is predicted"));
                return None;
            }
            Err(RecvTimeoutError::Timeout) if stop.signal().is_none() => {}
            Err(_) => return None,
        }
    }
}
