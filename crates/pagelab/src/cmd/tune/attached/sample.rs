//! One sample of a running process: its load is run once, and says how fast it was.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use pagelab_experiment::recipe::Metric;
use pagelab_experiment::trial::number_in;
use pagelab_host::capture::Stop;
use pagelab_model::experiment::{Better, Measure, TrialEnd, measures};
use pagelab_model::run::Unit;
use pagelab_sys::clock;
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::Args;
use super::super::recipe::{Told, unit_of};
use crate::exit::{Exit, Failure};

/// Bytes of the load's output that are kept.
const OUTPUT_MAX: usize = 1 << 20;

/// What loads the process.
pub struct Load {
    command: String,
    /// Where its number stands; without one its time is taken.
    metric: Option<Metric>,
    limit: Duration,
}

impl Load {
    /// Runs it once, to see whether it ends well and says a number. `None` after a signal.
    pub fn try_out(command: &str, args: &Args, stop: &Stop) -> Result<Option<Load>, Failure> {
        let better = if args.higher { Better::Higher } else { Better::Lower };
        let pattern = args.figure.clone().unwrap_or_else(|| "{}".to_owned());
        let (before, behind) = pattern.split_once("{}").ok_or_else(|| {
            let text = format!("--figure {pattern:?}: it needs a {{}} where the number stands");
            Failure::new(Exit::Usage, text)
        })?;
        let (before, behind) = (before.to_owned(), behind.to_owned());
        let metric = Metric { before, behind, unit: unit_of(&pattern).to_owned(), better };
        let mut load = Load { command: command.to_owned(), metric: None, limit: args.time_limit };
        let (status, output) = load.once(stop)?;
        if stop.signal().is_some() {
            return Ok(None);
        }
        if !status.success() {
            let text =
                format!("--metric: `{command}` ended with {status}, and must end well to be a measure");
            return Err(Failure::new(Exit::BadInput, text));
        }
        let found =
            match &args.figure {
                Some(_) => number_in(&metric, &output),
                // Without a text around it, the last line is the number or there is none.
                None => output.lines().rev().find(|line| !line.trim().is_empty()).and_then(|line| {
                    line.trim().parse::<f64>().ok().filter(|number| number.is_finite()).map(Ok)
                }),
            };
        match (found, &args.figure) {
            (Some(Ok(_)), _) => load.metric = Some(metric),
            (_, Some(figure)) => {
                let text = format!("--figure {figure:?}: no line of `{command}` has a number there");
                return Err(Failure::new(Exit::BadInput, text));
            }
            (_, None) => {}
        }
        Ok(Some(load))
    }

    /// `sh -c COMMAND` in a group of its own.
    pub fn shell(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).process_group(0);
        command
    }

    /// As the plan of the run file has it.
    pub fn words(&self) -> Vec<String> {
        vec!["sh".to_owned(), "-c".to_owned(), self.command.clone()]
    }

    /// What the recipe says of it.
    pub fn told(&self, args: &Args) -> Told {
        let figure = self.metric.as_ref().map(|of| format!("{}{{}}{}", of.before, of.behind));
        Told { figure, ..Told::of(args) }
    }

    /// Runs it once: how it ended, and what it said within its time.
    fn once(&self, stop: &Stop) -> Result<(ExitStatus, String), Failure> {
        let mut command = self.shell();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = |error: std::io::Error| {
            Failure::new(Exit::NotAvailable, format!("`{}` cannot be run", self.command)).because(error)
        };
        let mut child = command.spawn().map_err(failed)?;
        let out = child.stdout.take();
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What is beyond is read and dropped, so that nobody waits for us.
            if let Some(mut out) = out {
                let _ = out.by_ref().take(OUTPUT_MAX as u64).read_to_end(&mut text);
                let _ = std::io::copy(&mut out, &mut std::io::sink());
            }
            text
        });
        let until = std::time::Instant::now() + self.limit;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if stop.signal().is_some() || std::time::Instant::now() >= until {
                end(&mut child);
                break child.wait().map_err(failed)?;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = reading.join().unwrap_or_default();
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    /// One sample of the process.
    pub fn sample(&self, pid: u32, stop: &Stop) -> (TrialEnd, Vec<Measure>) {
        let before = clock::process_cpu_ns(pid);
        let began = clock::monotonic_ns();
        let ran = self.once(stop);
        let wall = clock::monotonic_ns().saturating_sub(began);
        let after = clock::process_cpu_ns(pid);
        let (status, output) = match ran {
            Ok(ran) => ran,
            Err(error) => return (TrialEnd::NotBegun(error.to_string()), Vec::new()),
        };
        if stop.signal().is_some() {
            return (TrialEnd::Stopped, Vec::new());
        }
        if Duration::from_nanos(wall) >= self.limit {
            return (TrialEnd::TimedOut(wall), Vec::new());
        }
        if !status.success() {
            return (TrialEnd::Failed(status.code().unwrap_or(-1)), Vec::new());
        }
        let mut found = vec![ns(measures::WALL, wall, "CLOCK_MONOTONIC around the metric's command")];
        if let (Ok(before), Ok(after)) = (before, after) {
            let used = after.saturating_sub(before);
            found.push(ns(measures::CPU, used, "the CPU clock of the process"));
        }
        let Some(metric) = &self.metric else { return (TrialEnd::Done, found) };
        match number_in(metric, &output) {
            Some(Ok(value)) => {
                let (name, unit) = (measures::MERIT.to_owned(), Unit(metric.unit.clone()));
                let source = "the metric's command".to_owned();
                found.push(Measure { name, unit, better: metric.better, value: Ok(value), source });
                (TrialEnd::Done, found)
            }
            _ => (TrialEnd::Nonsense("its last output has no number".to_owned()), Vec::new()),
        }
    }
}

/// Ends a load with all that it started.
pub fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

fn ns(name: &str, value: u64, source: &str) -> Measure {
    let unit = Unit::from(Unit::NANOSECONDS);
    let (name, source) = (name.to_owned(), source.to_owned());
    Measure { name, unit, better: Better::Lower, value: Ok(value as f64), source }
}

/// Huge pages as they were read back after the sample.
pub fn counts(huge: usize, bytes: u64, wanted: usize, got: usize) -> Vec<Measure> {
    let source = "PAGEMAP_SCAN after the sample";
    let measure = |name: &str, unit: &str, value: f64| Measure {
        name: name.to_owned(),
        unit: Unit::from(unit),
        better: Better::Neither,
        value: Ok(value),
        source: source.to_owned(),
    };
    let mut found = vec![measure(measures::HUGE, Unit::BYTES, huge as f64 * bytes as f64)];
    if wanted > 0 {
        found.push(measure(measures::PLAN_WANTED, Unit::COUNT, wanted as f64));
        found.push(measure(measures::PLAN_GOT, Unit::COUNT, got as f64));
    }
    found
}
