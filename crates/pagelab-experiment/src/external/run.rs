//! One run of an external workload: its directory, the command, its figures, and the removal of all files and
//! processes at the end.

use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use pagelab_host::paths;
use pagelab_model::Failure;
use pagelab_model::experiment::BetterDirection;
use pagelab_packages::apt::FetchObserver;
use pagelab_packages::store::DirectoryStore;
use pagelab_sys::spawn;
use pagelab_workloads::options::WorkloadOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use super::install_dir::{Installation, NO_CACHE_DIR};
use super::manifest::Manifest;
use super::{install_dir, prepared_data};
use crate::gate;
use crate::recipe::OutputMetric;
use crate::trial::output::{LineSplitter, MetricMatch, find_metric};

/// Time that processes may outlive the first one: the parts of a pipeline end in any order.
const GRACE_PERIOD: Duration = Duration::from_millis(500);
/// Exit code of a script whose check found a wrong result: the same code as that of pagelab.
const EXIT_WRONG_RESULT: i32 = 70;

/// A figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFigure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Direction that is better.
    pub better: BetterDirection,
    /// Finite value.
    pub value: f64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// Figure of merit.
    pub merit: RunFigure,
    /// Further figures.
    pub figures: Vec<RunFigure>,
    /// Equal for equal options, if the manifest has one.
    pub checksum: Option<String>,
    /// Its input.
    pub input: String,
    /// The installation that it ran from.
    pub installation: Installation,
}

/// Failure of a run.
#[derive(Debug)]
pub enum RunError {
    /// It is not set up, or its data could not be prepared.
    NotReady(Failure),
    /// The system did not provide a directory or a process.
    System(String),
    /// It ended with an error, or without its figure.
    BadExit(String),
    /// Its own check found a wrong result.
    WrongResult(String),
    /// This signal requested a stop.
    Stopped(i32),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::NotReady(error) => error.fmt(f),
            RunError::System(text) | RunError::BadExit(text) | RunError::WrongResult(text) => {
                f.write_str(text)
            }
            RunError::Stopped(_) => f.write_str("stopped; nothing was kept"),
        }
    }
}

impl std::error::Error for RunError {}

/// Runs it. `on_line` gets each line of its output.
pub fn run_workload(
    manifest: &Manifest,
    options: &WorkloadOptions,
    watcher: &mut dyn FetchObserver,
    on_line: &mut dyn FnMut(&str),
) -> Result<RunResult, RunError> {
    let home = install_dir::make_available(manifest, watcher).map_err(RunError::NotReady)?;
    let data =
        prepared_data::prepare_data(manifest, &home, options, false, watcher).map_err(RunError::NotReady)?;
    let system_error = |what: &str, error: io::Error| RunError::System(format!("{what}: {error}"));
    let store = install_dir::open_store(manifest, "trials")
        .ok_or_else(|| RunError::System(NO_CACHE_DIR.to_owned()))?;
    let run_dir = RunDir::create(&store).map_err(|error| {
        system_error(&format!("cannot create a directory in {}", store.dir().display()), error)
    })?;
    let (reader, writer) = io::pipe().map_err(|error| system_error("cannot create a pipe", error))?;
    let second = writer.try_clone().map_err(|error| system_error("cannot create a pipe", error))?;
    let dirs = (data.as_deref(), run_dir.path.as_path());
    let mut command = home.build_command(manifest, options, &manifest.command, dirs);
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    if manifest.environment.iter().all(|(name, _)| name != "TMPDIR") {
        command.env("TMPDIR", &run_dir.path);
    }
    spawn::keep_fds_open(&mut command, &[run_dir.lock.as_fd()]);
    spawn::die_with_parent(&mut command);
    become_subreaper();
    let mut child = command.spawn().map_err(|error| {
        let program = command.get_program().display();
        system_error(&format!("workload {}: cannot run {program}", manifest.name), error)
    })?;
    // The command holds the other end of the pipe open.
    drop(command);
    let mut wanted_lines = LineMatcher::from_manifest(manifest);
    let mut handle_line = |line: &str| {
        wanted_lines.match_line(line);
        on_line(line);
    };
    let read_result = read_lines(reader, &mut || watcher.stop_signal(), &mut handle_line, &mut child);
    let status = match read_result {
        Ok(status) => status,
        Err(failed) => {
            kill_all();
            return Err(failed);
        }
    };
    let deadline = Instant::now() + GRACE_PERIOD;
    while count_running() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left_processes = count_running();
    kill_all();
    check_exit(manifest, status, left_processes)?;
    wanted_lines.into_result(manifest, options, home)
}

fn check_exit(manifest: &Manifest, status: ExitStatus, left_processes: usize) -> Result<(), RunError> {
    let name = &manifest.name;
    match status.code() {
        Some(code) if manifest.exit_codes.contains(&code) && left_processes == 0 => Ok(()),
        Some(code) if manifest.exit_codes.contains(&code) => Err(RunError::BadExit(format!(
            "workload {name} left {left_processes} processes, which were killed"
        ))),
        Some(EXIT_WRONG_RESULT) => Err(RunError::WrongResult(format!("workload {name}: wrong result"))),
        Some(code) => Err(RunError::BadExit(format!("workload {name} failed with exit code {code}"))),
        None => Err(RunError::BadExit(format!("workload {name} was killed: {status}"))),
    }
}

/// Passes on each line until the first process has ended and no process writes any more, or a signal requests
/// a stop.
fn read_lines(
    mut reader: PipeReader,
    stop: &mut dyn FnMut() -> Option<i32>,
    on_line: &mut dyn FnMut(&str),
    child: &mut std::process::Child,
) -> Result<ExitStatus, RunError> {
    let read_error = |error: io::Error| RunError::System(format!("cannot monitor the run: {error}"));
    gate::set_nonblocking(&reader).map_err(|errno| read_error(errno.into()))?;
    let (mut lines, mut buffer) = (LineSplitter::default(), [0; 16 << 10]);
    let mut is_over = false;
    let mut exit: Option<(ExitStatus, Instant)> = None;
    loop {
        if let Some(signal) = stop() {
            return Err(RunError::Stopped(signal));
        }
        if exit.is_none() {
            exit = child.try_wait().map_err(read_error)?.map(|status| (status, Instant::now()));
        }
        match reader.read(&mut buffer) {
            Ok(0) => is_over = true,
            Ok(count) => {
                lines.push(&buffer[..count], on_line);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(error)),
        }
        match exit {
            // Remaining processes hold the pipe open, and are not waited for.
            Some((status, at)) if is_over || at.elapsed() > GRACE_PERIOD => {
                lines.flush(on_line);
                return Ok(status);
            }
            _ if is_over => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let poll_timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&poll_timeout));
            }
        }
    }
}

/// Patterns for the lines of a run.
struct LineMatcher<'m> {
    metrics: Vec<(String, &'m OutputMetric, MetricMatch)>,
    checksum: Option<(&'m str, Option<String>)>,
}

impl<'m> LineMatcher<'m> {
    fn from_manifest(manifest: &'m Manifest) -> LineMatcher<'m> {
        let merit = std::iter::once((manifest.metric_name.clone(), &manifest.metric, None));
        let figures = manifest.figures.iter().map(|(name, metric)| (name.clone(), metric, None));
        let checksum = manifest.checksum.as_deref().map(|before| (before, None));
        LineMatcher { metrics: merit.chain(figures).collect(), checksum }
    }

    fn match_line(&mut self, line: &str) {
        for (_, metric, found) in &mut self.metrics {
            // The last match counts: a program that prints its progress ends with its result.
            *found = find_metric(metric, line).or(found.take());
        }
        if let Some((before, sum)) = &mut self.checksum
            && let Some((_, behind)) = line.split_once(*before)
            && let Some(word) = behind.split_whitespace().next()
        {
            *sum = Some(word.to_owned());
        }
    }

    fn into_result(
        self,
        manifest: &Manifest,
        options: &WorkloadOptions,
        installation: Installation,
    ) -> Result<RunResult, RunError> {
        let name = &manifest.name;
        let mut figures = Vec::new();
        for (figure, metric, found) in self.metrics {
            let value = match found {
                Some(found) => found.map_err(|text| format!("expected a number, found {text:?}")),
                None => Err("no line of its output matches".to_owned()),
            };
            let value =
                value.map_err(|why| RunError::BadExit(format!("workload {name}: no {figure}: {why}")))?;
            let (unit, better) = (metric.unit.clone(), metric.better);
            figures.push(RunFigure { name: figure, unit, better, value });
        }
        if let Some((before, None)) = self.checksum {
            let text = format!("workload {name}: no checksum {before:?} in its output");
            return Err(RunError::BadExit(text));
        }
        let checksum = self.checksum.and_then(|(_, sum)| sum);
        // The first is the metric, which every manifest has.
        let merit = figures.remove(0);
        Ok(RunResult { merit, figures, checksum, input: manifest.describe_input(options), installation })
    }
}

// Beside each directory is a file that is locked by the run and by all processes that it starts: the lock
// ends when the last of them has ended, for whatever reason.

const LOCK_FILE: &str = "lock";

#[derive(Debug)]
pub(super) struct RunDir {
    /// Path of the run.
    pub path: PathBuf,
    /// Kept open by the run and by all processes that it starts.
    pub lock: File,
    lock_path: PathBuf,
}

impl RunDir {
    /// Creates a directory, after removing those of finished runs.
    pub fn create(store: &DirectoryStore) -> io::Result<RunDir> {
        // No cleanup runs between the creation of a file and its lock.
        let store_lock = store.lock(&mut || {}, &mut || false)?;
        remove_stale(store.dir())?;
        let mut number = 1;
        let (lock_path, lock) = loop {
            let path = store.dir().join(format!("{number}.{LOCK_FILE}"));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let folder = lock_path.with_extension("");
        fs::create_dir(&folder)?;
        drop(store_lock);
        Ok(RunDir { path: folder, lock, lock_path })
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Files that cannot be removed are removed by the next run.
        if fs::remove_dir_all(&self.path).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Removes the directories whose lock is free.
fn remove_stale(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != LOCK_FILE) || path.file_stem().is_none() {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match fs::remove_dir_all(path.with_extension("")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

// Processes whose parent has ended are reparented to this process, which kills them and waits for them.

/// Makes this process the subreaper: orphans are reparented to it from now on.
pub(crate) fn become_subreaper() {
    // Before 3.4 they are reparented to PID 1, and only children are killed.
    let _ = set_child_subreaper(Some(getpid()));
}

/// The children of this thread. Empty if the kernel does not list them.
pub(super) fn list_children() -> Vec<Pid> {
    let listed = fs::read_to_string(paths::OWN_CHILDREN).unwrap_or_default();
    listed.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// The number of running children; it also reaps those that have ended.
pub(super) fn count_running() -> usize {
    list_children()
        .into_iter()
        .filter(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)))
        .count()
}

/// Kills all, level by level: the children of a killed process are reparented to us.
pub(super) fn kill_all() {
    loop {
        let children = list_children();
        if children.is_empty() {
            return;
        }
        for pid in children {
            let _ = kill_process(pid, Signal::KILL);
            if waitpid(Some(pid), WaitOptions::empty()).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn folders_go_with_their_runs_and_those_of_killed_ones_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let store = DirectoryStore::new(folder.path().join("trials"));
        let names = || {
            let entries = fs::read_dir(store.dir()).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.retain(|name| name != ".lock");
            names.sort();
            names
        };
        let first = RunDir::create(&store).unwrap();
        fs::write(first.path.join("data"), "x").unwrap();
        let second = RunDir::create(&store).unwrap();
        assert_eq!(names(), ["1", "1.lock", "2", "2.lock"]);
        drop(second);
        assert_eq!(names(), ["1", "1.lock"], "a run that is alive is left alone");
        drop(first);
        assert!(names().is_empty());
        // As a kill leaves it: no file is removed, and the lock ends with its last holder.
        fs::create_dir(store.dir().join("1")).unwrap();
        fs::write(store.dir().join("1/data"), "x").unwrap();
        let what_it_started = File::create(store.dir().join("1.lock")).unwrap();
        flock(&what_it_started, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(RunDir::create(&store).unwrap());
        assert_eq!(names(), ["1", "1.lock"], "what it started is alive");
        drop(what_it_started);
        // The child of another test has all open files from its fork to its exec, this lock too.
        let end = Instant::now() + Duration::from_secs(60);
        while !names().is_empty() && Instant::now() < end {
            drop(RunDir::create(&store).unwrap());
        }
        assert_eq!(names(), [""; 0]);
    }
}
