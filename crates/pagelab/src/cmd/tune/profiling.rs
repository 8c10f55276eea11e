//! The profile that a tuning begins with: made by this program started once more, or read.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pagelab_host::capture::Stop;
use pagelab_host::paths;
use pagelab_model::profile::{Cells, Reuse, WalkCost};
use pagelab_model::{Bytes, Profile, Snapshot};
use rustix::process::{Pid, Signal, kill_process};

use super::Source;
use crate::cmd::plan::read;
use crate::exit::{Exit, Failure};
use crate::{out, walk_cost};

/// How often is looked whether a profile is done, or a signal came.
const LOOK: Duration = Duration::from_millis(20);
/// A profile that was asked to end, and its program, have so long for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The larger of the two buffers in which a walk is priced, as `pagelab plan --calibrate` has it.
const PRICED_IN: Bytes = Bytes(1 << 30);

/// How a profile is come by.
#[derive(Clone)]
pub struct How<'h> {
    /// Whether a signal asked to stop.
    pub stop: &'h Stop,
    /// A walk is priced where no price is known.
    pub prices: bool,
    /// With `exact`, which accesses are looked at; `None`: all.
    pub window: Option<String>,
    /// Exit codes of the program that are no failure.
    pub good: &'h [u8],
}

/// What is started for it.
pub fn in_words(source: Source, words: &[String]) -> String {
    format!("pagelab profile --source {} -- {}", source.word(), words.join(" "))
}

/// Profiles the program by `pagelab profile`, whose own output this is; what the program prints is dropped.
/// `None` after a signal, as from all here.
pub fn make(source: Source, words: &[String], at: &Path, how: &How<'_>) -> Result<Option<Profile>, Failure> {
    out::note(&format!("profiling: {}", in_words(source, words)));
    let mut command = own(source, at);
    put_window(&mut command, source, how);
    command.arg("--").args(words);
    finish(command, at, how)
}

fn put_window(command: &mut Command, source: Source, how: &How<'_>) {
    if let Some(window) = how.window.as_ref().filter(|_| source == Source::Exact) {
        command.args(["--window", window]);
    }
}

/// Profiles a process that runs, for so long.
pub fn attach(
    source: Source,
    pid: u32,
    time: &str,
    at: &Path,
    how: &How<'_>,
) -> Result<Option<Profile>, Failure> {
    out::note(&format!("profiling: pagelab profile --source {} --pid {pid} --for {time}", source.word()));
    let mut command = own(source, at);
    command.args(["--for", time, "--pid", &pid.to_string()]);
    finish(command, at, how)
}

/// Counts the misses again as if the plan's regions were on huge pages. `None` if there is no such count.
pub fn recount(words: &[String], plan: &Path, at: &Path, how: &How<'_>) -> Option<Profile> {
    out::note("recounting misses with the plan: pagelab profile --source exact --what-if …");
    let mut command = own(Source::Exact, at);
    put_window(&mut command, Source::Exact, how);
    command.arg("--what-if").arg(plan).arg("--").args(words);
    under(finish(command, at, how).ok()??)
}

/// The profile as its last what-if has it: misses by region instead of by page.
fn under(mut profile: Profile) -> Option<Profile> {
    let what_if = profile.what_ifs.pop().filter(|_| !profile.what_ifs.is_empty())?;
    let page = profile.page_size.bytes().max(1);
    for image in &mut profile.images {
        image.misses = 0;
        for mapping in &mut image.mappings {
            (mapping.grain, mapping.cells, mapping.reuse) = (Bytes(page), Cells::default(), Reuse::default());
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

fn own(source: Source, at: &Path) -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.args(["profile", "--passing", "--source", source.word(), "--output"]).arg(at);
    command
}

/// Whether the profile can be written at all: no other source would help where its folder takes no file.
fn takes_files(at: &Path) -> Result<(), Failure> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(at);
    if made.is_ok() {
        pagelab_runfile::remove(at);
    }
    let parent = at.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
    made.map(drop).map_err(|error| {
        let text = format!(
            "{}: no file can be made in this folder, where the run file would be; -o names another place",
            folder.display()
        );
        Failure::new(Exit::NotAvailable, text).because(error)
    })
}

fn finish(mut command: Command, at: &Path, how: &How<'_>) -> Result<Option<Profile>, Failure> {
    let unstarted = |error: io::Error| {
        Failure::new(Exit::NotAvailable, "pagelab cannot be started once more for the profile").because(error)
    };
    takes_files(at)?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(unstarted)?;
    let status = end_of(child, how.stop).map_err(unstarted)?;
    if how.stop.signal().is_some() {
        pagelab_runfile::remove(at);
        return Ok(None);
    }
    if !status.success() {
        pagelab_runfile::remove(at);
        let exit = status.code().and_then(Exit::of).unwrap_or(Exit::Partial);
        let text = "without a profile there is nothing to plan; what stood in its way is said above. \
                    Another --source may do, and --profile takes one that is there";
        return Err(Failure::new(exit, text));
    }
    let profile = read(at, how);
    // It is in the run file of the tuning.
    pagelab_runfile::remove(at);
    let Some(profile) = profile? else { return Ok(None) };
    match profile.exit.filter(|exit| !how.good.contains(exit)) {
        None => Ok(Some(profile)),
        Some(exit) => Err(ended_badly(exit)),
    }
}

/// The program itself failed while it was profiled.
fn ended_badly(exit: u8) -> Failure {
    let text = match exit.checked_sub(128).filter(|signal| *signal > 0) {
        Some(signal) => format!(
            "cannot tune the program: it ended by signal {signal} while it was profiled\nhint: run it alone; \
             an exit code of {exit} that is no failure is taken with --exit-codes 0,{exit}"
        ),
        None => format!(
            "cannot tune the program: it ended with exit code {exit} while it was profiled\nhint: \
             --exit-codes 0,{exit} takes that for success"
        ),
    };
    Failure::new(Exit::Partial, text)
}

/// Waits for it. A signal to us is passed on, so that it ends what it started.
fn end_of(mut child: Child, stop: &Stop) -> io::Result<ExitStatus> {
    let mut asked = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match (stop.signal(), asked) {
            (Some(signal), None) => {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
                    let _ = kill_process(pid, signal);
                }
                asked = Some(Instant::now());
            }
            (Some(_), Some(since)) if since.elapsed() > PATIENCE => child.kill()?,
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads a profile, and puts the price of a walk to it where it is of this machine.
pub fn read(path: &Path, how: &How<'_>) -> Result<Option<Profile>, Failure> {
    let read::Source { mut profile, machine } = read::read(path)?;
    let look = read::look();
    if profile.walk_cost.is_none() && machine.is_none_or(|of| of == walk_cost::machine(&look.machine)) {
        profile.walk_cost = walk_cost::known(&look.machine);
        let misses = profile.images.iter().any(|image| image.misses > 0);
        if how.prices && misses && profile.walk_cost.is_none() {
            profile.walk_cost = price(look, how.stop);
        }
    }
    Ok(how.stop.signal().is_none().then_some(profile))
}

/// Whether a walk has a price here that was measured before.
pub fn is_priced() -> bool {
    walk_cost::known(&read::look().machine).is_some()
}

/// Prices a walk, and keeps that for the next time. Without a price no time is predicted, and nothing else
/// is missing: so why there is none is said, and that is all.
fn price(look: Snapshot, stop: &Stop) -> Option<WalkCost> {
    out::complain("pagelab: measuring what a page walk costs here, some 15 s; it is kept for the next time");
    let (says, hears) = mpsc::channel();
    // Its thread ends with the process, should that end first.
    std::thread::spawn(move || says.send(walk_cost::measure(&look, PRICED_IN)));
    loop {
        match hears.recv_timeout(LOOK) {
            Ok(Ok(price)) => return Some(price),
            Ok(Err(failure)) => {
                out::complain(&format!("pagelab: {failure}; no time is predicted"));
                return None;
            }
            Err(RecvTimeoutError::Timeout) if stop.signal().is_none() => {}
            Err(_) => return None,
        }
    }
}
