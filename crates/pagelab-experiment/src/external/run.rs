//! One run of an external workload: a folder of its own, the command, its figures, and an end at which
//! nothing is left.

use std::fmt;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pagelab_model::experiment::Better;
use pagelab_packages::apt::Watcher;
use pagelab_packages::error;
use pagelab_sys::spawn;
use pagelab_workloads::options::Options;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::home::{self, Home, NO_PLACE};
use super::manifest::Manifest;
use super::trials::Trial;
use super::{data, descendants, setup, words};
use crate::own;
use crate::recipe::Metric;
use crate::trial::output::{Found, find};

/// How long what a run started may outlive its first process: the ends of a pipeline come in any order.
const GRACE: Duration = Duration::from_millis(500);
/// Bytes of a line that are looked at.
const LINE_MOST: usize = 64 << 10;
/// What a script says when its own check found a wrong result: the code that pagelab itself has for it.
const CODE_WRONG: i32 = 70;

/// A number that a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
    /// Finite.
    pub value: f64,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// By what it is judged.
    pub merit: Figure,
    /// More numbers.
    pub figures: Vec<Figure>,
    /// The same for the same options, where the manifest has one.
    pub checksum: Option<String>,
    /// What it worked on.
    pub input: String,
    /// The set-up that it ran from.
    pub home: Home,
}

/// Why a run gave nothing.
#[derive(Debug)]
pub enum Failed {
    /// It is not set up, or its data could not be made.
    NotReady(error::Error),
    /// The system refused a folder or a process.
    System(String),
    /// It ended otherwise than it should, or without its figure.
    Ended(String),
    /// Its own check found a wrong result.
    Wrong(String),
    /// A signal of this number asked to stop.
    Stopped(i32),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::NotReady(error) => error.fmt(f),
            Failed::System(text) | Failed::Ended(text) | Failed::Wrong(text) => f.write_str(text),
            Failed::Stopped(_) => f.write_str("stopped; nothing is left of it"),
        }
    }
}

impl std::error::Error for Failed {}

/// What a run works on, for a report.
pub fn input(manifest: &Manifest, options: &Options) -> String {
    words::filled(&manifest.input, &|name| words::value_of(options, name))
}

/// Carries it out. `said` gets each line of its output.
pub fn run(
    manifest: &Manifest,
    options: &Options,
    watcher: &mut dyn Watcher,
    said: &mut dyn FnMut(&str),
) -> Result<Done, Failed> {
    let home = setup::at_hand(manifest, watcher).map_err(Failed::NotReady)?;
    let data = data::make(manifest, &home, options, false, watcher).map_err(Failed::NotReady)?;
    let system = |what: &str, error: std::io::Error| Failed::System(format!("{what}: {error}"));
    let store = home::store(manifest, "trials").ok_or_else(|| Failed::System(NO_PLACE.to_owned()))?;
    let trial = Trial::begin(&store)
        .map_err(|error| system(&format!("cannot make a folder in {}", store.folder().display()), error))?;
    let value = |name: &str| match name {
        "files" => Some(home.files().display().to_string()),
        "root" => Some(home.root().display().to_string()),
        "data" => Some(data.as_ref().map_or_else(String::new, |data| data.display().to_string())),
        "work" => Some(trial.folder.display().to_string()),
        option => words::value_of(options, option),
    };
    let filled: Vec<String> = manifest.command.iter().map(|word| words::filled(word, &value)).collect();
    let (reader, writer) = std::io::pipe().map_err(|error| system("cannot make a pipe", error))?;
    let second = writer.try_clone().map_err(|error| system("cannot make a pipe", error))?;
    let mut command = Command::new(&filled[0]);
    command.args(&filled[1..]).current_dir(&trial.folder);
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    home.lend(manifest, &mut command);
    command.env("TMPDIR", &trial.folder);
    command.envs(manifest.environment.iter().map(|(name, text)| (name, words::filled(text, &value))));
    spawn::keep_open(&mut command, &[trial.lock.as_fd()]);
    spawn::die_with_parent(&mut command);
    descendants::come_to_us();
    let mut child = command
        .spawn()
        .map_err(|error| system(&format!("workload {}: cannot run {}", manifest.name, filled[0]), error))?;
    // The command holds the pipe's other end open.
    drop(command);
    let mut looked_for = Lines::of(manifest);
    let mut each = |line: &str| {
        looked_for.take(line);
        said(line);
    };
    let listened = listen(reader, &mut || watcher.stop(), &mut each, &mut child);
    let status = match listened {
        Ok(status) => status,
        Err(failed) => {
            descendants::end_all();
            return Err(failed);
        }
    };
    let until = Instant::now() + GRACE;
    while descendants::running() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = descendants::running();
    descendants::end_all();
    judged(manifest, status, left)?;
    let (merit, figures, checksum) = looked_for.result(manifest)?;
    Ok(Done { merit, figures, checksum, input: input(manifest, options), home })
}

fn judged(manifest: &Manifest, status: ExitStatus, left: usize) -> Result<(), Failed> {
    let name = &manifest.name;
    match status.code() {
        Some(code) if manifest.exit_codes.contains(&code) && left == 0 => Ok(()),
        Some(code) if manifest.exit_codes.contains(&code) => {
            Err(Failed::Ended(format!("workload {name} left {left} processes behind, which were ended")))
        }
        Some(CODE_WRONG) => Err(Failed::Wrong(format!("workload {name}: its check found a wrong result"))),
        Some(code) => Err(Failed::Ended(format!("workload {name} failed with exit code {code}"))),
        None => Err(Failed::Ended(format!("workload {name} was ended: {status}"))),
    }
}

/// Hands on each line until the first process has ended and nobody writes any more, or a signal asks to stop.
fn listen(
    mut reader: PipeReader,
    stop: &mut dyn FnMut() -> Option<i32>,
    each: &mut dyn FnMut(&str),
    child: &mut std::process::Child,
) -> Result<ExitStatus, Failed> {
    let cannot = |error: std::io::Error| Failed::System(format!("cannot watch the run: {error}"));
    own::do_not_block(&reader).map_err(|errno| cannot(errno.into()))?;
    let (mut line, mut piece) = (Vec::new(), [0; 16 << 10]);
    let mut is_over = false;
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        if let Some(signal) = stop() {
            return Err(Failed::Stopped(signal));
        }
        if ended.is_none() {
            ended = child.try_wait().map_err(cannot)?.map(|status| (status, Instant::now()));
        }
        match reader.read(&mut piece) {
            Ok(0) => is_over = true,
            Ok(count) => {
                split(&mut line, &piece[..count], each);
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot(error)),
        }
        match ended {
            // Who is left behind holds the pipe open, and is not waited for.
            Some((status, at)) if is_over || at.elapsed() > GRACE => {
                if !line.is_empty() {
                    each(&String::from_utf8_lossy(&line));
                }
                return Ok(status);
            }
            _ if is_over => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&wait));
            }
        }
    }
}

fn split(line: &mut Vec<u8>, piece: &[u8], each: &mut dyn FnMut(&str)) {
    for part in piece.split_inclusive(|&byte| byte == b'\n') {
        let room = LINE_MOST.saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        if part.ends_with(b"\n") {
            each(String::from_utf8_lossy(line).trim_end());
            line.clear();
        }
    }
}

/// What is looked for in the lines of a run.
struct Lines<'m> {
    metrics: Vec<(String, &'m Metric, Found)>,
    checksum: Option<(&'m str, Option<String>)>,
}

impl<'m> Lines<'m> {
    fn of(manifest: &'m Manifest) -> Lines<'m> {
        let merit = std::iter::once((manifest.metric_name.clone(), &manifest.metric, None));
        let figures = manifest.figures.iter().map(|(name, metric)| (name.clone(), metric, None));
        let checksum = manifest.checksum.as_deref().map(|before| (before, None));
        Lines { metrics: merit.chain(figures).collect(), checksum }
    }

    fn take(&mut self, line: &str) {
        for (_, metric, found) in &mut self.metrics {
            // The last one counts: a program that tells its progress ends with its result.
            *found = find(metric, line).or(found.take());
        }
        if let Some((before, sum)) = &mut self.checksum
            && let Some((_, behind)) = line.split_once(*before)
            && let Some(word) = behind.split_whitespace().next()
        {
            *sum = Some(word.to_owned());
        }
    }

    fn result(self, manifest: &Manifest) -> Result<(Figure, Vec<Figure>, Option<String>), Failed> {
        let name = &manifest.name;
        let mut figures = Vec::new();
        for (figure, metric, found) in self.metrics {
            let value = match found {
                Some(Ok(value)) => value,
                other => {
                    let why = match other {
                        Some(Err(text)) => format!("{text:?} stands where a number was wanted"),
                        _ => "no line of its output has it".to_owned(),
                    };
                    return Err(Failed::Ended(format!("workload {name}: no {figure}: {why}")));
                }
            };
            let (unit, better) = (metric.unit.clone(), metric.better);
            figures.push(Figure { name: figure, unit, better, value });
        }
        let checksum = match self.checksum {
            Some((before, None)) => {
                let text = format!("workload {name}: no line of its output has the checksum {before:?}");
                return Err(Failed::Ended(text));
            }
            Some((_, sum)) => sum,
            None => None,
        };
        // The first is the metric, which every manifest has.
        let merit = figures.remove(0);
        Ok((merit, figures, checksum))
    }
}
