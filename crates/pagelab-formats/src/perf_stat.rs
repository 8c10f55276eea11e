//! Output of `perf stat -x,`: counters of one run, one per line (tools/perf/util/stat-display.c).
//!
//! A line is value, unit, event, then the cgroup with `-G`, the deviation with `-r`, nanoseconds for which it
//! counted, per cent of the time that it was switched on for which it counted, and a metric with its unit.
//! `perf-stat(1)` puts the deviation behind these two; perf 6.1 and its source put it before them.

use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::ParseError;
use crate::text::{collect_at_most, lines, parse_name, to_printable};

const FORMAT: &str = "perf stat";
/// Lines of one output; perf knows some thousand events.
const LINES_MAX: usize = 1 << 16;
/// Separators that are recognised, as `-x` takes any.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// One counter.
#[derive(Clone, Debug, PartialEq)]
pub struct StatCounter {
    /// Its name, as it was given to perf; never empty.
    pub event: String,
    /// Its unit, such as `msec`; empty for a plain number.
    pub unit: String,
    /// Its value, finite, scaled up by perf if it counted for a part of the time; of several runs their mean.
    pub value: Reading<f64>,
    /// The cgroup that it counted in, with `-G`.
    pub cgroup: Option<String>,
    /// Relative standard error of the mean of several runs, in per cent, with `-r`.
    pub deviation_percent: Option<f64>,
    /// Nanoseconds for which it counted, of all tasks together.
    pub run_ns: Option<u64>,
    /// Per cent of the time that it was switched on for which it counted: below 100, it shared the hardware.
    pub running_percent: Option<f64>,
    /// Value derived by perf, with its unit, such as 0.501 and `CPUs utilized`.
    pub metrics: Vec<(f64, String)>,
}

enum OutputLine {
    Counter(StatCounter),
    /// A further metric of the counter above it.
    Metric(f64, String),
    Empty,
}

/// Reads the whole output of one `perf stat -x,` of a run: its counters, in the order of their lines.
pub fn parse(text: &[u8]) -> Result<Vec<StatCounter>, ParseError> {
    let mut counters: Vec<StatCounter> = Vec::new();
    let mut separator = None;
    let parsed = lines(text).filter_map(|(at, line)| {
        let line = line.trim_ascii();
        (!line.is_empty() && !line.starts_with(b"#")).then(|| {
            let by = *separator.get_or_insert_with(|| detect_separator(line));
            parse_line(at, line, by).map(|line| (at, line))
        })
    });
    for found in collect_at_most(FORMAT, LINES_MAX, parsed)? {
        match found {
            (_, OutputLine::Counter(counter)) => counters.push(counter),
            (_, OutputLine::Empty) => {}
            (at, OutputLine::Metric(value, unit)) => match counters.last_mut() {
                Some(counter) => counter.metrics.push((value, unit)),
                None => return Err(ParseError::at_line(FORMAT, at, "metric without a preceding counter")),
            },
        }
    }
    if counters.is_empty() {
        return Err(ParseError::for_input(
            FORMAT,
            "no counters found; hint: create the file with `perf stat -x, -o FILE`",
        ));
    }
    Ok(counters)
}

/// The separator with which a line has most fields.
fn detect_separator(line: &[u8]) -> u8 {
    let fields = |by: &u8| line.iter().filter(|sign| *sign == by).count();
    SEPARATORS.into_iter().rev().max_by_key(fields).unwrap_or(b',')
}

fn parse_line(line_number: u64, line: &[u8], separator: u8) -> Result<OutputLine, ParseError> {
    let fields = split_fields(line, separator);
    let field = |place: usize| fields.get(place).copied().unwrap_or_default().trim_ascii();
    let fail = |problem: String| Err(ParseError::at_line(FORMAT, line_number, problem));
    let Some(first_value) = parse_value(field(0)) else {
        return match field(0) {
            [] if field(2).is_empty() => Ok(parse_metric(&fields)),
            // `CPU0,89,,context-switches,…`, `S0-D0-C0,1,11,,context-switches,…`
            first if is_value(field(1)) => fail(format!(
                "per-CPU counts for `{}` (perf stat -A, --per-…); expected one line per event",
                to_printable(first)
            )),
            _ => fail(format!("expected `value,unit,event,…`, found `{}`", to_printable(line))),
        };
    };
    if is_value(field(1)) {
        // `     0.100188434,0.84,msec,task-clock,840899,100.00,,`
        return fail(format!(
            "interval counts at {} s (perf stat -I); expected totals for the whole run",
            to_printable(field(0))
        ));
    }
    if field(2).is_empty() || is_value(field(2)) {
        return fail(format!("`{}` has no event name in the third field", to_printable(line)));
    }
    let event = parse_name(FORMAT, line_number, field(2))?.to_owned();
    let value =
        first_value.map_err(|(why, detail)| Absence::new(format!("perf stat, event {event}"), why, detail));
    let mut counter = StatCounter {
        event,
        unit: to_printable(field(1)),
        value,
        cgroup: None,
        deviation_percent: None,
        run_ns: None,
        running_percent: None,
        metrics: Vec::new(),
    };
    match parse_optional_fields(&mut counter, fields.get(3..).unwrap_or_default()) {
        Ok(()) => Ok(OutputLine::Counter(counter)),
        Err(wrong) => fail(format!("`{}`: event {}: expected {wrong}", to_printable(line), counter.event)),
    }
}

/// The fields of a line. An event of a PMU, `cpu/event=0x3c,umask=0/`, may hold the separator.
fn split_fields(line: &[u8], separator: u8) -> Vec<&[u8]> {
    let mut fields = Vec::new();
    let (mut start, mut is_within) = (0, false);
    for (at, &sign) in line.iter().enumerate() {
        // Only the event is written with slashes; a cgroup's path behind it may have an odd number of them.
        is_within ^= sign == b'/' && fields.len() == 2;
        if sign == separator && !is_within {
            fields.push(&line[start..at]);
            start = at + 1;
        }
    }
    fields.push(&line[start..]);
    fields
}

fn parse_optional_fields(counter: &mut StatCounter, mut fields: &[&[u8]]) -> Result<(), &'static str> {
    let trimmed = |fields: &[&[u8]]| fields.first().map(|field| field.trim_ascii().to_vec());
    let Some(first) = trimmed(fields) else { return Ok(()) };
    let is_deviation = |field: &[u8]| field.strip_suffix(b"%").and_then(parse_number);
    // A name, and no number: the cgroup.
    if !first.is_empty() && parse_number(&first).is_none() && is_deviation(&first).is_none() {
        counter.cgroup = Some(to_printable(&first));
        fields = &fields[1..];
    }
    if let Some(deviation) = trimmed(fields).as_deref().and_then(is_deviation) {
        counter.deviation_percent = Some(deviation);
        fields = &fields[1..];
    }
    let field = |place: usize| fields.get(place).copied().unwrap_or_default().trim_ascii();
    counter.run_ns = match field(0) {
        [] => None,
        digits => Some(crate::text::parse_number(digits).ok_or("the run time in nanoseconds after it")?),
    };
    counter.running_percent = match field(1) {
        [] => None,
        digits => {
            let percent = parse_number(digits).filter(|percent| (0.0..=100.0).contains(percent));
            Some(percent.ok_or("the running time in percent after it")?)
        }
    };
    let (metric, unit) = (field(2), field(3));
    if !metric.is_empty() && !unit.is_empty() {
        // `nan` and `inf` are no metric.
        counter.metrics.extend(parse_number(metric).map(|value| (value, to_printable(unit))));
    }
    Ok(())
}

/// A line without value and event: a further metric, in its last two fields that hold something.
fn parse_metric(fields: &[&[u8]]) -> OutputLine {
    let mut filled = fields.iter().map(|field| field.trim_ascii()).filter(|field| !field.is_empty());
    match (filled.next().map(parse_number), filled.next(), filled.next()) {
        (Some(Some(value)), Some(unit), None) => OutputLine::Metric(value, to_printable(unit)),
        _ => OutputLine::Empty,
    }
}

/// A number, or why there is none.
type CounterValue = Result<f64, (AbsenceReason, &'static str)>;

fn is_value(field: &[u8]) -> bool {
    parse_value(field).is_some()
}

fn parse_value(field: &[u8]) -> Option<CounterValue> {
    match field {
        b"<not counted>" => {
            let detail = "not counted: the event was never scheduled on the PMU";
            Some(Err((AbsenceReason::NotRequested, detail)))
        }
        b"<not supported>" => Some(Err((AbsenceReason::NotThere, "not supported by this machine"))),
        digits => parse_number(digits).map(Ok),
    }
}

/// A finite number as perf prints it: digits, a point, a sign, an exponent.
fn parse_number(field: &[u8]) -> Option<f64> {
    let is_plain = |sign: &u8| sign.is_ascii_digit() || b".-+eE".contains(sign);
    if !field.first().is_some_and(|first| first.is_ascii_digit() || *first == b'-')
        || !field.iter().all(is_plain)
    {
        return None;
    }
    let found: f64 = std::str::from_utf8(field).ok()?.parse().ok()?;
    found.is_finite().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of perf 6.1 in a VM without counters.
    const WRITTEN: &str = "# started on Sun Nov 22 08:07:13 2026\n\n\
        0.98,msec,task-clock,976863,100.00,0.501,CPUs utilized\n\
        47,,page-faults,976863,100.00,48.113,K/sec\n\
        <not supported>,,dTLB-load-misses,0,100.00,,\n\
        <not counted>,,cycles,0,0.00,,\n";

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().message_in_file("f")
    }

    #[test]
    fn all_fields_of_a_file_are_read() {
        let counters = parse(WRITTEN.as_bytes()).unwrap();
        let [clock, faults, misses, cycles] = &counters[..] else { panic!("{counters:?}") };
        assert_eq!(
            (clock.event.as_str(), clock.unit.as_str(), &clock.value),
            ("task-clock", "msec", &Ok(0.98))
        );
        assert_eq!((clock.run_ns, clock.running_percent), (Some(976_863), Some(100.0)));
        assert_eq!(clock.metrics, [(0.501, "CPUs utilized".to_owned())]);
        assert_eq!(faults.metrics, [(48.113, "K/sec".to_owned())]);
        assert_eq!(misses.value.as_ref().unwrap_err().why, AbsenceReason::NotThere);
        assert_eq!(cycles.value.as_ref().unwrap_err().why, AbsenceReason::NotRequested);
        assert_eq!((cycles.running_percent, &cycles.metrics), (Some(0.0), &vec![]));
    }

    #[test]
    fn the_lines_of_the_thp_report_are_read() {
        let text = "524074,,dTLB-load-misses,239317377674,100.00,,\n243742,,iTLB-load-misses,239317371268,100.00,,\n\
                    12672653,,cache-misses,239317364042,100.00,,\n";
        let counters = parse(text.as_bytes()).unwrap();
        let values: Vec<_> = counters.iter().map(|of| (of.event.as_str(), of.value.clone())).collect();
        assert_eq!(
            values,
            [
                ("dTLB-load-misses", Ok(524_074.0)),
                ("iTLB-load-misses", Ok(243_742.0)),
                ("cache-misses", Ok(12_672_653.0))
            ]
        );
        assert_eq!(counters[0].run_ns, Some(239_317_377_674));
    }

    #[test]
    fn repeats_cgroups_other_separators_and_events_of_a_pmu_are_read() {
        let one = |line: &str| parse(line.as_bytes()).unwrap().remove(0);
        let repeated = one("0.55,msec,task-clock,5.31%,552381,100.00,0.865,CPUs utilized");
        assert_eq!((repeated.deviation_percent, repeated.run_ns), (Some(5.31), Some(552_381)));
        let group = one("<not counted>,,context-switches,/,0,100.00,,");
        assert_eq!((group.cgroup.as_deref(), group.run_ns), (Some("/"), Some(0)));
        let both = one("7,,faults,user.slice/a,1.50%,12,100.00,,");
        assert_eq!((both.cgroup.as_deref(), both.deviation_percent), (Some("user.slice/a"), Some(1.5)));
        assert_eq!(one("0.68;msec;task-clock;678736;100.00;0.504;CPUs utilized").run_ns, Some(678_736));
        assert_eq!(one("5\t\tpage-faults\t12\t100.00\t\t").running_percent, Some(100.0));
        let pmu = one("17,,cpu/event=0x3c,umask=0x0/u,239,50.25,,");
        assert_eq!((pmu.event.as_str(), pmu.running_percent), ("cpu/event=0x3c,umask=0x0/u", Some(50.25)));
        // Older than 3.16: nothing behind the event.
        assert_eq!(one("17,,cycles").run_ns, None);
        let more = parse(b"7,,instructions,5,100.00,0.4,insn per cycle\n,,,,,1.25,stalled cycles per insn\n");
        assert_eq!(more.unwrap()[0].metrics[1], (1.25, "stalled cycles per insn".to_owned()));
    }

    #[test]
    fn what_is_not_of_a_whole_run_is_refused_with_its_line() {
        let check = |text: &str, expected: &str| assert_eq!(error(text), expected);
        check(
            "",
            "f: no counters found; hint: create the file with `perf stat -x, -o FILE` (read as perf stat)",
        );
        check(
            "1,,a,5,100.00,,\n     0.100188434,0.84,msec,task-clock,840899,100.00,0.008,CPUs utilized\n",
            "f:2: interval counts at 0.100188434 s (perf stat -I); expected totals for the whole run \
             (read as perf stat)",
        );
        for line in ["CPU0,89,,context-switches,5,100.00,,", "S0-D0-C0,1,11,,context-switches,22,100.00,,"] {
            assert!(error(line).contains("(perf stat -A, --per-…)"), "{}", error(line));
        }
        for line in [
            "hello",
            "1,2",
            "1,,",
            "1,,5,6",
            ",x",
            "x,,cycles,1",
            "1,,cycles,x%,y",
            "1,,cycles,1,101",
            "nan,,cycles",
            "1e999,,cycles",
        ] {
            assert!(error(line).starts_with("f:1: ") || error(line).starts_with("f: no"), "{}", error(line));
        }
    }
}
