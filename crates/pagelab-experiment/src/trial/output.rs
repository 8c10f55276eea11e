//! Output of a trial: keeps its end, finds numbers in it, and never blocks on it.

use std::io::{ErrorKind, Read};

use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::simulation::TrialSeries;
use pagelab_model::{Absence, AbsenceReason};
use serde_json::Value;

use crate::recipe::{OutputMetric, WorkloadCommand};

/// Maximum kept bytes of standard output: the result line of a built-in workload always fits.
const STDOUT_BYTES_MAX: usize = 1 << 20;
/// Maximum kept bytes of standard error.
const STDERR_BYTES_MAX: usize = 64 << 10;
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes read at a time.
const READS_PER_CALL: u32 = 64;
const SHOWN_BYTES_MAX: usize = 2 << 10;
const SHOWN_LINES_MAX: usize = 12;
/// Source of the numbers in a workload's result line.
const WORKLOAD_SOURCE: &str = "the workload";

/// A number, or the text in its place; none if no line matches.
pub(crate) type MetricMatch = Option<Result<f64, String>>;

/// Splits a stream into lines, of which it keeps the first [`LINE_BYTES_MAX`] bytes.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    line: Vec<u8>,
}

impl LineSplitter {
    pub fn push(&mut self, chunk: &[u8], on_line: &mut dyn FnMut(&str)) {
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            let remaining_bytes = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(remaining_bytes)]);
            if part.ends_with(b"\n") {
                self.flush(on_line);
            }
        }
    }

    /// A last line without newline is a line too.
    pub fn flush(&mut self, on_line: &mut dyn FnMut(&str)) {
        if !self.line.is_empty() {
            on_line(String::from_utf8_lossy(&self.line).trim_end());
            self.line.clear();
        }
    }
}

type LineCallback<'e> = Option<&'e mut dyn FnMut(&str)>;

/// One stream, and the matches in it.
#[derive(Debug)]
pub(super) struct OutputStream {
    buffer: Vec<u8>,
    bytes_max: usize,
    lines: LineSplitter,
    /// Whether its end was reached.
    pub is_at_end: bool,
}

#[derive(Debug)]
pub(super) struct TrialOutput {
    pub out: OutputStream,
    pub err: OutputStream,
    metrics: Vec<(OutputMetric, MetricMatch)>,
}

impl OutputStream {
    fn new(bytes_max: usize) -> OutputStream {
        OutputStream { buffer: Vec::new(), bytes_max, lines: LineSplitter::default(), is_at_end: false }
    }

    /// Reads available data without blocking, and hands each complete line to `on_line`, if there is one.
    fn read_available(&mut self, source: &mut impl Read, on_line: &mut LineCallback<'_>) {
        let mut chunk = [0; 16 << 10];
        // A process that writes without end must not keep pagelab from its timers.
        for _ in 0..READS_PER_CALL {
            if self.is_at_end {
                break;
            }
            let count = match source.read(&mut chunk) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => 0,
            };
            self.is_at_end = count == 0;
            self.buffer.extend_from_slice(&chunk[..count]);
            if self.buffer.len() > 2 * self.bytes_max {
                self.buffer.drain(..self.buffer.len() - self.bytes_max);
            }
            if let Some(on_line) = on_line {
                self.lines.push(&chunk[..count], on_line);
            }
        }
        if let (true, Some(on_line)) = (self.is_at_end, on_line) {
            self.lines.flush(on_line);
        }
    }

    fn last_lines(&self) -> String {
        let from = self.buffer.len().saturating_sub(SHOWN_BYTES_MAX);
        let text = String::from_utf8_lossy(&self.buffer[from..]);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..].join("\n")
    }
}

impl TrialOutput {
    /// Looks for these numbers.
    pub fn new(metrics: Vec<OutputMetric>) -> TrialOutput {
        let metrics = metrics.into_iter().map(|metric| (metric, None)).collect();
        TrialOutput {
            out: OutputStream::new(STDOUT_BYTES_MAX),
            err: OutputStream::new(STDERR_BYTES_MAX),
            metrics,
        }
    }

    /// Reads the available data.
    pub fn read_available(&mut self, out: &mut impl Read, err: &mut impl Read) {
        let has_metrics = !self.metrics.is_empty();
        let metrics = &mut self.metrics;
        let mut match_line = |line: &str| {
            for (metric, found) in metrics.iter_mut() {
                // The last match counts: a program that prints its progress ends with its result.
                *found = find_metric(metric, line).or(found.take());
            }
        };
        // Lines are not split if no callback needs them: the cost would disturb the trial.
        let mut look: LineCallback<'_> = has_metrics.then_some(&mut match_line);
        self.out.read_available(out, &mut look);
        self.err.read_available(err, &mut look);
    }

    /// The last line of standard output.
    fn last_line(&self) -> Result<String, String> {
        let text = String::from_utf8_lossy(&self.out.buffer);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        line.map(str::to_owned).ok_or_else(|| "no output".to_owned())
    }

    /// The end of both streams.
    pub fn last_lines(&self) -> String {
        let mut texts = vec![self.out.last_lines(), self.err.last_lines()];
        texts.retain(|text| !text.trim().is_empty());
        texts.join("\n")
    }

    /// The rest of a line of standard error that starts like this.
    pub fn stderr_line_starting(&self, start: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.err.buffer);
        text.lines().rev().find_map(|line| line.strip_prefix(start).map(str::to_owned))
    }
}

/// The number in a line between the two texts of a metric; an error if the text there is not a number.
pub(crate) fn find_metric(metric: &OutputMetric, line: &str) -> MetricMatch {
    let mut rest = line;
    let mut mismatch = None;
    loop {
        let Some(offset) = rest.find(&metric.prefix) else { return mismatch };
        let from = &rest[offset + metric.prefix.len()..];
        let word = from.trim_start();
        let end = match metric.suffix.as_str() {
            "" => word.find(char::is_whitespace).unwrap_or(word.len()),
            behind => match word.find(behind) {
                Some(end) => end,
                None => return mismatch,
            },
        };
        let text = word[..end].trim().trim_end_matches([',', ';', ')', '.']).replace(['_', ','], "");
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => return Some(Ok(number)),
            _ => mismatch = Some(Err(word[..end].trim().chars().take(60).collect())),
        }
        // An empty prefix matches at every position: one attempt is enough.
        if metric.prefix.is_empty() {
            return mismatch;
        }
        rest = from;
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkloadReport {
    pub measures: Vec<Measure>,
    /// Caveats of its numbers.
    pub flags: Vec<Flag>,
    /// Series of values along it.
    pub series: Vec<TrialSeries>,
    /// Equal in all trials of the same command.
    pub checksum: Option<String>,
}

/// The numbers of a workload: its metric, then its figures.
pub(super) fn output_metrics(runs: &WorkloadCommand) -> Vec<OutputMetric> {
    match runs {
        WorkloadCommand::BuiltIn { .. } | WorkloadCommand::External { .. } => Vec::new(),
        WorkloadCommand::Command { metric, figures, .. } => {
            metric.iter().chain(figures.iter().map(|(_, metric)| metric)).cloned().collect()
        }
    }
}

/// Reads it; an error is the reason why it is not a result.
pub(super) fn read_report(runs: &WorkloadCommand, output: &TrialOutput) -> Result<WorkloadReport, String> {
    match runs {
        WorkloadCommand::BuiltIn { name, .. } => read_built_in(name, &output.last_line()?),
        WorkloadCommand::External { manifest, .. } => parse_result_line(&manifest.name, &output.last_line()?),
        WorkloadCommand::Command { metric, figures, .. } => {
            let mut report = WorkloadReport::default();
            let merit = metric.iter().map(|_| measures::MERIT.to_owned());
            let names = merit.chain(figures.iter().map(|(name, _)| figure_name(name)));
            for (name, (metric, found)) in names.zip(&output.metrics) {
                report.measures.push(metric_measure(name, metric, found)?);
            }
            Ok(report)
        }
    }
}

fn figure_name(name: &str) -> String {
    format!("figure.{name}")
}

fn metric_measure(name: String, metric: &OutputMetric, found: &MetricMatch) -> Result<Measure, String> {
    let pattern = format!("{}{{}}{}", metric.prefix, metric.suffix);
    let value = match found {
        Some(Ok(value)) => *value,
        Some(Err(text)) => return Err(format!("its metric {pattern:?}: expected a number, found {text:?}")),
        None => return Err(format!("no line of its output matches {pattern:?}")),
    };
    let (unit, better) = (Unit(metric.unit.clone()), metric.better);
    Ok(Measure::new(name, unit, better, Ok(value), "its output"))
}

/// The JSON line of a built-in workload, all of which have a checksum.
fn read_built_in(name: &str, line: &str) -> Result<WorkloadReport, String> {
    let report = parse_result_line(name, line)?;
    if report.checksum.is_none() {
        return Err(format!("the result of {name} has no checksum"));
    }
    Ok(report)
}

/// The JSON line of a workload; docs/json.md has its fields.
fn parse_result_line(name: &str, line: &str) -> Result<WorkloadReport, String> {
    let invalid_result = |what: &str| format!("the result of {name} {what}");
    let json: Value =
        serde_json::from_str(line).map_err(|error| invalid_result(&format!("is not JSON: {error}")))?;
    let mut report = WorkloadReport::default();
    let merit = json.get("merit").and_then(|merit| parse_figure(merit, measures::MERIT, WORKLOAD_SOURCE));
    report.measures.push(merit.ok_or_else(|| invalid_result("has no `merit` field"))?);
    report.checksum = json.get("checksum").and_then(Value::as_str).map(str::to_owned);
    if let Some(bytes) = json.get("working_set_bytes").and_then(Value::as_f64) {
        let neither = BetterDirection::Neither;
        report.measures.push(Measure::new("working_set", Unit::BYTES, neither, Ok(bytes), WORKLOAD_SOURCE));
    }
    if let Some(Value::Object(latency)) = json.get("latency") {
        for (key, value) in latency {
            report.measures.extend(value.as_f64().and_then(|value| percentile_measure(key, value)));
        }
    }
    for figure_json in list(&json, "figures") {
        let name = figure_json.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| invalid_result("has a figure without a name"))?;
        report.measures.extend(parse_figure(figure_json, figure_name(name), WORKLOAD_SOURCE));
    }
    for figure_json in list(&json, "phase_figures") {
        let text = |key: &str| figure_json.get(key).and_then(Value::as_str);
        let (Some(phase), Some(name)) = (text("phase"), text("name")) else {
            return Err(invalid_result("has a figure of a phase without their names"));
        };
        let measure = parse_figure(figure_json, name, WORKLOAD_SOURCE);
        report.measures.extend(measure.map(|measure| measure.of_phase(phase)));
    }
    for series_json in list(&json, "series") {
        let series = parse_series(series_json);
        report.series.push(series.ok_or_else(|| invalid_result("has a series that is incomplete"))?);
    }
    if let Some(phase) = json.get("phase") {
        add_phase_measures(phase, &mut report);
    }
    Ok(report)
}

fn parse_series(json: &Value) -> Option<TrialSeries> {
    let text = |key: &str| json.get(key).and_then(Value::as_str).map(str::to_owned);
    let points = json.get("points_millionths")?.as_array()?.iter().map(|point| {
        let pair = point.as_array()?;
        Some((pair.first()?.as_u64()?, pair.get(1)?.as_i64()?))
    });
    Some(TrialSeries { name: text("name")?, over: text("over")?, points: points.collect::<Option<_>>()? })
}

/// The elements of a list in an object; none without the list.
fn list<'v>(json: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    json.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Counts of the measured phase alone.
fn add_phase_measures(phase: &Value, report: &mut WorkloadReport) {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    for measure_json in list(phase, "measures") {
        let source = text(measure_json, "source").unwrap_or_default();
        let name = text(measure_json, "name");
        report.measures.extend(name.and_then(|name| parse_figure(measure_json, name, &source)));
    }
    for absence_json in list(phase, "absent") {
        let mut absence = Absence::new(
            text(absence_json, "source").unwrap_or_default(),
            AbsenceReason::NotThere,
            text(absence_json, "reason").unwrap_or_default(),
        );
        if let Some(hint) = text(absence_json, "hint") {
            absence = absence.with_hint(hint);
        }
        for name in list(absence_json, "names").filter_map(Value::as_str) {
            let (value, source) = (Err(absence.clone()), absence.source.clone());
            report.measures.push(Measure::new(name, Unit::COUNT, BetterDirection::Lower, value, source));
        }
    }
    for flag_json in list(phase, "flags") {
        report.flags.extend(
            text(flag_json, "kind").zip(text(flag_json, "text")).map(|(kind, text)| Flag { kind, text }),
        );
    }
}

/// `p99_9_ns` is `latency.p99.9`; the number of operations is `latency.count`.
fn percentile_measure(key: &str, value: f64) -> Option<Measure> {
    let (name, unit, better) = match key.strip_suffix("_ns") {
        Some(name) => (name.replace('_', "."), Unit::NANOSECONDS, BetterDirection::Lower),
        None if key == "count" => (key.to_owned(), Unit::COUNT, BetterDirection::Neither),
        None => return None,
    };
    let name = format!("{}{name}", measures::LATENCY_PREFIX);
    Some(Measure::new(name, unit, better, Ok(value), WORKLOAD_SOURCE))
}

/// An object with `unit`, `better` and `value`.
fn parse_figure(json: &Value, name: impl Into<String>, source: &str) -> Option<Measure> {
    let value = json.get("value").and_then(Value::as_f64).filter(|value| value.is_finite())?;
    let better = match json.get("better").and_then(Value::as_str)? {
        "lower" => BetterDirection::Lower,
        "higher" => BetterDirection::Higher,
        _ => BetterDirection::Neither,
    };
    Some(Measure::new(name, json.get("unit").and_then(Value::as_str)?, better, Ok(value), source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::experiment::BetterDirection;

    fn metric(before: &str, behind: &str) -> OutputMetric {
        let (before, behind) = (before.to_owned(), behind.to_owned());
        OutputMetric { prefix: before, suffix: behind, unit: "s".to_owned(), better: BetterDirection::Lower }
    }

    #[test]
    fn figures_of_phases_and_series_come_with_their_names() {
        let line = r#"{"merit":{"unit":"1","better":"higher","value":0.5},"checksum":"1",
            "phase_figures":[{"phase":"at rest","name":"from DMA32","unit":"blocks","better":"higher","value":7}],
            "series":[{"name":"F_u(9) at rest","over":"attempts","points_millionths":[[0,100],[1,-5]]}]}"#;
        let report = read_built_in("x", line).unwrap();
        let of_phase = report.measures.last().unwrap();
        assert_eq!((of_phase.key().as_str(), of_phase.value.clone()), ("at rest/from DMA32", Ok(7.0)));
        let points = vec![(0, 100), (1, -5)];
        let (name, over) = ("F_u(9) at rest".to_owned(), "attempts".to_owned());
        assert_eq!(report.series, [TrialSeries { name, over, points }]);
        for (good, bad) in [("\"phase\":\"at rest\",", ""), ("[1,-5]", "[1]"), ("[1,-5]", "[-1,5]")] {
            let error = read_built_in("x", &line.replace(good, bad)).unwrap_err();
            assert!(error.starts_with("the result of x has a "), "{error}");
        }
    }

    #[test]
    fn numbers_are_found_between_two_texts() {
        let cases: [(&str, &str, &str, MetricMatch); 10] = [
            ("tps = ", " (", "tps = 1234.5 (without)", Some(Ok(1234.5))),
            ("tps = ", "", "tps = 12e3", Some(Ok(12000.0))),
            ("took ", " s", "it took   3 s", Some(Ok(3.0))),
            ("took ", " s", "it took nan s", Some(Err("nan".to_owned()))),
            ("took ", " s", "it took long s", Some(Err("long".to_owned()))),
            ("took ", " s", "took a s, took 4 s", Some(Ok(4.0))),
            ("took ", " s", "took 4", None),
            ("rate: ", "", "rate: 1,234,567, as ever", Some(Ok(1_234_567.0))),
            ("", " MB/s", "17.25 MB/s", Some(Ok(17.25))),
            ("x", "", "", None),
        ];
        for (before, behind, line, found) in cases {
            assert_eq!(find_metric(&metric(before, behind), line), found, "{line}");
        }
    }

    #[test]
    fn the_last_number_counts_and_the_tail_is_kept() {
        let mut output = TrialOutput::new(vec![metric("n=", "")]);
        let mut text = String::new();
        for n in 0..200_000 {
            text.push_str(&format!("n={n}\n"));
        }
        text.push_str("n=the end");
        let (mut out, mut err) = (text.as_bytes(), "oh\nno".as_bytes());
        while !output.out.is_at_end {
            output.read_available(&mut out, &mut err);
        }
        assert_eq!(output.metrics[0].1, Some(Err("the".to_owned())), "a last line needs no end");
        assert_eq!(output.last_line().as_deref(), Ok("n=the end"));
        assert!(output.out.buffer.len() <= 2 * STDOUT_BYTES_MAX);
        let last = output.last_lines();
        assert!(last.ends_with("n=199999\nn=the end\noh\nno") && last.len() <= 3 * SHOWN_BYTES_MAX, "{last}");
        assert_eq!(output.stderr_line_starting("n").as_deref(), Some("o"));
    }

    #[test]
    fn a_line_without_an_end_does_not_grow_for_ever() {
        let mut output = TrialOutput::new(vec![metric("n=", "")]);
        let long = vec![b'x'; 3 << 20];
        let (mut out, mut err) = (&long[..], &long[..]);
        while !output.out.is_at_end {
            output.read_available(&mut out, &mut err);
        }
        assert!(
            output.out.buffer.len() <= 2 * STDOUT_BYTES_MAX
                && output.err.buffer.len() <= 2 * STDERR_BYTES_MAX
        );
    }

    const LINE: &str = r#"{"name":"hash","merit":{"name":"rate","unit":"1/s","better":"higher","value":5e6},
        "working_set_bytes":1024,"checksum":"00ff","latency":{"p50_ns":10,"p99_9_ns":70,"max_ns":99,"count":3},
        "figures":[{"name":"first_touch","unit":"ns","better":"lower","value":7.5}]}"#;

    #[test]
    fn a_result_line_becomes_measures() {
        let said = read_built_in("hash", LINE).unwrap();
        let text: Vec<String> = said
            .measures
            .iter()
            .map(|m| format!("{} {} {:?} {}", m.name, m.unit.0, m.better, m.value.as_ref().unwrap()))
            .collect();
        assert_eq!(
            text,
            [
                "merit 1/s Higher 5000000",
                "working_set bytes Neither 1024",
                "latency.p50 ns Lower 10",
                "latency.p99.9 ns Lower 70",
                "latency.max ns Lower 99",
                "latency.count count Neither 3",
                "figure.first_touch ns Lower 7.5",
            ]
        );
        assert!(said.flags.is_empty());
        assert_eq!(said.checksum.as_deref(), Some("00ff"));
    }

    #[test]
    fn what_was_counted_in_the_measured_phase_is_beside_what_the_whole_process_did() {
        let line = r#"{"merit":{"unit":"s","better":"lower","value":1},"checksum":"1","phase":{
            "measures":[{"name":"phase.wall","unit":"ns","better":"lower","value":5,"source":"a clock"}],
            "absent":[{"names":["phase.counter.cycles","phase.counter.dTLB-loads"],"source":"perf_event_open",
                       "reason":"no PMU","hint":"another machine"}],
            "flags":[{"kind":"multiplexed","text":"2 counters took turns"}]}}"#;
        let said = read_built_in("x", line).unwrap();
        let [_, wall, cycles, dtlb] = &said.measures[..] else { panic!("{said:?}") };
        assert_eq!(
            (wall.name.as_str(), &wall.value, wall.source.as_str()),
            ("phase.wall", &Ok(5.0), "a clock")
        );
        assert_eq!(dtlb.name, "phase.counter.dTLB-loads");
        let absence = cycles.value.as_ref().unwrap_err();
        assert_eq!((absence.reason(), absence.hint.as_deref()), ("no PMU", Some("another machine")));
        assert_eq!(said.flags[0].kind, Flag::MULTIPLEXED);
    }

    #[test]
    fn what_is_no_result_says_why() {
        for (line, why) in [
            ("hello", "is not JSON"),
            ("{}", "has no `merit` field"),
            (r#"{"merit":{"unit":"s","better":"lower","value":"x"},"checksum":"1"}"#, "has no `merit` field"),
            (r#"{"merit":{"unit":"s","better":"lower","value":1}}"#, "has no checksum"),
        ] {
            let error = read_built_in("x", line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
