//! One sample of a running process: one run of its load, with its measured speed.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use pagelab_experiment::recipe::OutputMetric;
use pagelab_experiment::trial::find_metric;
use pagelab_host::capture::StopSignal;
use pagelab_model::experiment::{BetterDirection, Measure, TrialEnd, measures};
use pagelab_model::run::Unit;
use pagelab_sys::clock;
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::TuningRequest;
use super::super::recipe::unit_of;
use pagelab_command::exit::{Exit, Failure, usage_error};

/// Bytes of the load's output that are kept.
const OUTPUT_MAX: usize = 1 << 20;

pub struct ProcessLoad {
    command: String,
    /// Position of its number; `None`: its time counts.
    metric: Option<OutputMetric>,
    limit: Duration,
}

impl ProcessLoad {
    /// Runs it once, to check that it succeeds and prints a number. Returns `None` after a signal.
    pub fn check(
        command: &str,
        request: &TuningRequest,
        stop: &StopSignal,
    ) -> Result<Option<ProcessLoad>, Failure> {
        let better = if request.is_higher_better { BetterDirection::Higher } else { BetterDirection::Lower };
        let pattern = request.figure.clone().unwrap_or_else(|| "{}".to_owned());
        let (before, behind) = pattern.split_once("{}").ok_or_else(|| {
            usage_error(&format!("--figure {pattern:?}: expected {{}} in place of the number"))
        })?;
        let (prefix, suffix) = (before.to_owned(), behind.to_owned());
        let metric = OutputMetric { prefix, suffix, unit: unit_of(&pattern).to_owned(), better };
        let mut load = ProcessLoad { command: command.to_owned(), metric: None, limit: request.time_limit };
        let (status, output) = load.run_once(stop)?;
        if stop.signal().is_some() {
            return Ok(None);
        }
        if !status.success() {
            let reason = format!("it exited with {status}");
            return Err(Failure::cannot(Exit::BadInput, format_args!("measure `{command}`"), reason));
        }
        let reading =
            match &request.figure {
                Some(_) => find_metric(&metric, &output),
                // Without surrounding text, the last line is the number, or there is no number.
                None => output.lines().rev().find(|line| !line.trim().is_empty()).and_then(|line| {
                    line.trim().parse::<f64>().ok().filter(|number| number.is_finite()).map(Ok)
                }),
            };
        match (reading, &request.figure) {
            (Some(Ok(_)), _) => load.metric = Some(metric),
            (_, Some(figure)) => {
                let action = format_args!("read the figure of `{command}`");
                let reason = format_args!("no line matches {figure:?} with a number");
                return Err(Failure::cannot(Exit::BadInput, action, reason));
            }
            (_, None) => {}
        }
        Ok(Some(load))
    }

    /// Returns `sh -c COMMAND` in its own process group.
    pub fn shell_command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).process_group(0);
        command
    }

    /// Returns the arguments as in the plan of the run file.
    pub fn to_arguments(&self) -> Vec<String> {
        vec!["sh".to_owned(), "-c".to_owned(), self.command.clone()]
    }

    /// Returns the request with the figure that was found.
    pub fn with_figure(&self, request: &TuningRequest) -> TuningRequest {
        let figure = self.metric.as_ref().map(|of| format!("{}{{}}{}", of.prefix, of.suffix));
        TuningRequest { figure, ..request.clone() }
    }

    /// Runs it once: returns its exit status, and its output within the time limit.
    fn run_once(&self, stop: &StopSignal) -> Result<(ExitStatus, String), Failure> {
        let mut command = self.shell_command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = |error: std::io::Error| {
            Failure::cannot(Exit::NotAvailable, format_args!("run `{}`", self.command), error)
        };
        let mut child = command.spawn().map_err(failed)?;
        let out = child.stdout.take();
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            // The rest is read and dropped, so that the load does not block on a full pipe.
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
                end_load(&mut child);
                break child.wait().map_err(failed)?;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = reading.join().unwrap_or_default();
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Takes one sample of the process.
    pub fn sample(&self, pid: u32, stop: &StopSignal) -> (TrialEnd, Vec<Measure>) {
        let cpu_before_ns = clock::process_cpu_ns(pid);
        let began = clock::monotonic_ns();
        let ran = self.run_once(stop);
        let wall = clock::monotonic_ns().saturating_sub(began);
        let cpu_after_ns = clock::process_cpu_ns(pid);
        let (status, output) = match ran {
            Ok(ran) => ran,
            Err(error) => return (TrialEnd::NotStarted(error.to_string()), Vec::new()),
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
        let mut values =
            vec![time_measure(measures::WALL, wall, "CLOCK_MONOTONIC around the metric command")];
        if let (Ok(before), Ok(after)) = (cpu_before_ns, cpu_after_ns) {
            let used = after.saturating_sub(before);
            values.push(time_measure(measures::CPU, used, "the CPU clock of the process"));
        }
        let Some(metric) = &self.metric else { return (TrialEnd::Done, values) };
        match find_metric(metric, &output) {
            Some(Ok(value)) => {
                let (name, unit) = (measures::MERIT.to_owned(), Unit(metric.unit.clone()));
                let source = "the metric command".to_owned();
                values.push(Measure::new(name, unit, metric.better, Ok(value), source));
                (TrialEnd::Done, values)
            }
            _ => (TrialEnd::InvalidResult("its last line has no number".to_owned()), Vec::new()),
        }
    }
}

/// Ends a load with all its processes.
pub fn end_load(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

fn time_measure(name: &str, value: u64, source: &str) -> Measure {
    let unit = Unit::from(Unit::NANOSECONDS);
    let (name, source) = (name.to_owned(), source.to_owned());
    Measure::new(name, unit, BetterDirection::Lower, Ok(value as f64), source)
}

/// Measures of huge pages, as read back after the sample.
pub fn huge_page_measures(huge: usize, bytes: u64, expected: usize, present: usize) -> Vec<Measure> {
    let source = "PAGEMAP_SCAN after the sample";
    let measure = |name: &str, unit: &str, value: f64| {
        Measure::new(name, unit, BetterDirection::Neither, Ok(value), source)
    };
    let mut found = vec![measure(measures::HUGE_BYTES, Unit::BYTES, huge as f64 * bytes as f64)];
    if expected > 0 {
        found.push(measure(measures::PLAN_REQUESTED, Unit::COUNT, expected as f64));
        found.push(measure(measures::PLAN_ALLOCATED, Unit::COUNT, present as f64));
    }
    found
}
