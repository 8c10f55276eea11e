//! One sample of a running process: one run of its load, with its measured speed.

use std::cell::RefCell;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_experiment::recipe::OutputMetric;
use pagelab_experiment::trial::find_metric;
use pagelab_host::capture::StopSignal;
use pagelab_host::orphan_keeper::{OrphanKeeper, OrphanScope};
use pagelab_model::experiment::{BetterDirection, Measure, TrialEnd, measures};
use pagelab_model::run::Unit;
use pagelab_sys::{clock, spawn};
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::TuningRequest;
use super::super::recipe::unit_of;
use crate::profile::start_orphan_keeper;

/// Bytes of the load's output that are kept.
const OUTPUT_MAX: usize = 1 << 20;

/// Characters of a load's output that an error shows.
const SHOWN_MAX: usize = 80;

/// The number in the output of a load that is judged.
#[derive(Clone, Debug)]
pub struct LoadFigure {
    metric: OutputMetric,
    /// The text around it, as requested; `None`: it is the last line, or the load prints nothing and its run
    /// time is judged.
    given: Option<String>,
}

impl LoadFigure {
    pub fn parse(request: &TuningRequest) -> Result<LoadFigure, Failure> {
        let better = if request.is_higher_better { BetterDirection::Higher } else { BetterDirection::Lower };
        let given = request.figure.clone();
        let pattern = given.as_deref().unwrap_or("{}");
        let (prefix, suffix) = pattern.split_once("{}").ok_or_else(|| {
            usage_error(&format!("--figure {pattern:?}: expected {{}} in place of the number"))
        })?;
        let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
        let metric = OutputMetric { prefix, suffix, unit: unit_of(pattern).to_owned(), better };
        Ok(LoadFigure { metric, given })
    }

    /// Describes what the load must print.
    pub fn describe(&self) -> String {
        match &self.given {
            Some(given) => {
                format!("its output must contain a line like {given:?} with a number, the judged figure")
            }
            None => "the last line of its output must be a number, the judged figure; if it prints nothing, \
                     its run time is judged"
                .to_owned(),
        }
    }

    /// The metric that is in this output; `None`: there is no output, and the run time is judged. Another
    /// output is an error: the number of a user who means one must not become a time silently.
    fn find_in(&self, command: &str, output: &str) -> Result<Option<OutputMetric>, Failure> {
        let last = output.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let (is_number, wanted) = match &self.given {
            Some(given) => {
                let is_number = matches!(find_metric(&self.metric, output), Some(Ok(_)));
                (is_number, format!("an output line matching {given:?}, with a number"))
            }
            None => {
                let Some(line) = last else { return Ok(None) };
                let number = line.parse::<f64>().ok().filter(|number| number.is_finite());
                (number.is_some(), "a number in the last line of its output".to_owned())
            }
        };
        if is_number {
            return Ok(Some(self.metric.clone()));
        }
        let found = match last {
            Some(line) => format!("{:?}", shorten(line)),
            None => "no output".to_owned(),
        };
        let reason = format_args!("expected {wanted}, found {found}");
        let hint = match self.given {
            Some(_) => "give --figure the text around the number exactly as the command prints it",
            None => {
                "print the number last, give the text around it (--figure 'took {} s'), or add >/dev/null to \
                judge by the run time"
            }
        };
        Err(Failure::cannot(FailureKind::BadInput, format_args!("measure `{command}`"), reason).hint(hint))
    }
}

fn shorten(line: &str) -> String {
    line.chars().take(SHOWN_MAX).collect()
}

pub struct ProcessLoad {
    pub command: String,
    /// Position of its number; `None`: its time counts.
    metric: Option<OutputMetric>,
    limit: Duration,
    /// Kills the processes of a load if this process is killed.
    keeper: RefCell<OrphanKeeper>,
}

/// One run of a load.
struct LoadRun {
    status: ExitStatus,
    output: String,
    errors: String,
}

impl ProcessLoad {
    /// Runs it once, to check that it succeeds and prints a number. Returns `None` after a signal.
    pub fn check(
        command: &str,
        figure: LoadFigure,
        limit: Duration,
        stop: &StopSignal,
    ) -> Result<Option<ProcessLoad>, Failure> {
        let keeper = RefCell::new(start_orphan_keeper()?);
        let mut load = ProcessLoad { command: command.to_owned(), metric: None, limit, keeper };
        let running = CommandStatus::start(format!("running `{command}` once"), StatusEnd::AtMost(limit));
        let LoadRun { status, output, errors } = load.run_once(stop, true)?;
        drop(running);
        if stop.signal().is_some() {
            return Ok(None);
        }
        if !status.success() {
            let last = errors.lines().rev().map(str::trim).find(|line| !line.is_empty());
            let last = last.map_or(String::new(), |line| format!(": {}", shorten(line)));
            let reason = format!("it ended with {status}{last}");
            return Err(Failure::cannot(FailureKind::BadInput, format_args!("measure `{command}`"), reason)
                .hint("run it alone: it must exit with 0"));
        }
        load.metric = figure.find_in(command, &output)?;
        if load.metric.is_none() {
            output::warn(&format!("note: `{command}` prints no figure, so its run time is judged"));
        }
        Ok(Some(load))
    }

    /// Returns `sh -c COMMAND` in its own process group. The shell dies with the thread that starts it.
    pub fn shell_command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).process_group(0);
        spawn::die_with_parent(&mut command);
        command
    }

    /// Returns the request with the figure that was found.
    pub fn with_figure(&self, request: &TuningRequest) -> TuningRequest {
        let figure = self.metric.as_ref().map(|of| format!("{}{{}}{}", of.prefix, of.suffix));
        TuningRequest { figure, ..request.clone() }
    }

    /// Runs it once, within the time limit. Without `keeps_errors` its standard error is dropped.
    fn run_once(&self, stop: &StopSignal, keeps_errors: bool) -> Result<LoadRun, Failure> {
        let mut command = self.shell_command();
        let errors = if keeps_errors { Stdio::piped() } else { Stdio::null() };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let failed = |error: std::io::Error| {
            Failure::cannot(FailureKind::NotAvailable, format_args!("run `{}`", self.command), error)
        };
        let mut child = command.spawn().map_err(failed)?;
        if let Err(error) = self.keeper.borrow_mut().watch(&OrphanScope::Group(child.id())) {
            end_load(&mut child);
            return Err(failed(error));
        }
        let output = child.stdout.take().map(spawn_reader);
        let errors = child.stderr.take().map(spawn_reader);
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
        let join = |reader: Option<JoinHandle<Vec<u8>>>| {
            let text = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        Ok(LoadRun { status, output: join(output), errors: join(errors) })
    }

    /// Takes one sample of the process.
    pub fn sample(&self, pid: u32, stop: &StopSignal) -> (TrialEnd, Vec<Measure>) {
        let cpu_before_ns = clock::process_cpu_ns(pid);
        let began = clock::monotonic_ns();
        let ran = self.run_once(stop, false);
        let wall = clock::monotonic_ns().saturating_sub(began);
        let cpu_after_ns = clock::process_cpu_ns(pid);
        let LoadRun { status, output, .. } = match ran {
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
            _ => (TrialEnd::InvalidResult("no number found in its output".to_owned()), Vec::new()),
        }
    }
}

/// Reads a stream of a load to its end. What is beyond the limit is dropped, so that the load does not block
/// on a full pipe.
fn spawn_reader(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stream.by_ref().take(OUTPUT_MAX as u64).read_to_end(&mut text);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        text
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_without_the_number_is_an_error_and_no_output_is_a_time() {
        let figure = |given: Option<&str>| {
            let prefix = given.map_or("", |given| given.split("{}").next().unwrap()).to_owned();
            let (suffix, unit, better) = (String::new(), String::new(), BetterDirection::Lower);
            let metric = OutputMetric { prefix, suffix, unit, better };
            LoadFigure { metric, given: given.map(str::to_owned) }
        };
        for (given, output, expected) in [
            (None, "loading\n 5.25 \n\n", Ok(true)),
            (None, "\n \n", Ok(false)),
            (None, "hello\n", Err("expected a number in the last line of its output, found \"hello\"")),
            (None, "5\nreq/s: 7\n", Err("found \"req/s: 7\"")),
            (None, "inf\n", Err("found \"inf\"")),
            (Some("took {}"), "took 7\ndone\n", Ok(true)),
            (Some("took {}"), "took long\n", Err("matching \"took {}\", with a number, found \"took long\"")),
            (Some("took {}"), "", Err("found no output")),
        ] {
            let found = figure(given).find_in("load", output);
            match expected {
                Ok(is_number) => assert_eq!(found.unwrap().is_some(), is_number, "{output:?}"),
                Err(text) => {
                    let said = found.unwrap_err().to_string();
                    assert!(said.contains(text) && said.contains("cannot measure `load`"), "{said}");
                }
            }
        }
    }
}
