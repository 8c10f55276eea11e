//! What a trial said of itself, as measures: the JSON line of a built-in, or numbers in a program's output.

use pagelab_model::experiment::{Better, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy};
use serde_json::Value;

use super::output::{Found, Output};
use crate::recipe::{Metric, Runs};

/// What a workload said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Said {
    pub measures: Vec<Measure>,
    /// What must be known before they are believed.
    pub flags: Vec<Flag>,
    /// Equal in all trials of the same command.
    pub checksum: Option<String>,
}

/// The numbers that are looked for while a workload runs: its metric, then its figures.
pub(super) fn metrics(runs: &Runs) -> Vec<Metric> {
    match runs {
        Runs::BuiltIn { .. } | Runs::External { .. } => Vec::new(),
        Runs::Command { metric, figures, .. } => {
            metric.iter().chain(figures.iter().map(|(_, metric)| metric)).cloned().collect()
        }
    }
}

/// Reads it; an error says why it is no result.
pub(super) fn of(runs: &Runs, output: &Output) -> Result<Said, String> {
    match runs {
        Runs::BuiltIn { name, .. } => {
            let line = output.last_line().ok_or("it ended well and said nothing")?;
            built_in(name, &line)
        }
        Runs::External { manifest, .. } => {
            let line = output.last_line().ok_or("it ended well and said nothing")?;
            result_line(&manifest.name, &line)
        }
        Runs::Command { metric, figures, .. } => {
            let mut said = Said::default();
            let names = metric.iter().map(|of| (measures::MERIT.to_owned(), of));
            let names = names.chain(figures.iter().map(|(name, of)| (figure(name), of)));
            for ((name, of), found) in names.zip(output.found()) {
                said.measures.push(found_measure(name, of, found)?);
            }
            Ok(said)
        }
    }
}

fn figure(name: &str) -> String {
    format!("figure.{name}")
}

fn found_measure(name: String, metric: &Metric, found: Found) -> Result<Measure, String> {
    let pattern = format!("{}{{}}{}", metric.before, metric.behind);
    let value = match found {
        Some(Ok(value)) => value,
        Some(Err(text)) => return Err(format!("{text:?} stands where its metric {pattern:?} has a number")),
        None => return Err(format!("no line of its output is like {pattern:?}")),
    };
    let (unit, better) = (Unit(metric.unit.clone()), metric.better);
    Ok(Measure { name, unit, better, value: Ok(value), source: "its output".to_owned() })
}

/// The JSON line of a built-in workload, all of which have a checksum.
fn built_in(name: &str, line: &str) -> Result<Said, String> {
    let said = result_line(name, line)?;
    match said.checksum {
        Some(_) => Ok(said),
        None => Err(format!("the result of {name} has no checksum")),
    }
}

/// The JSON line of a workload; docs/json.md has its fields.
fn result_line(name: &str, line: &str) -> Result<Said, String> {
    let nonsense = |what: &str| format!("the result of {name} {what}");
    let json: Value =
        serde_json::from_str(line).map_err(|error| nonsense(&format!("is no JSON: {error}")))?;
    let mut said = Said::default();
    let merit = json.get("merit").ok_or_else(|| nonsense("has no merit"))?;
    said.measures.push(number(merit, measures::MERIT.to_owned()).ok_or_else(|| nonsense("has no merit"))?);
    said.checksum = json.get("checksum").and_then(Value::as_str).map(str::to_owned);
    if let Some(bytes) = json.get("working_set_bytes").and_then(Value::as_f64) {
        said.measures.push(measure("working_set".to_owned(), Unit::BYTES, Better::Neither, bytes));
    }
    if let Some(Value::Object(latency)) = json.get("latency") {
        for (key, value) in latency {
            said.measures.extend(value.as_f64().and_then(|value| percentile(key, value)));
        }
    }
    for of in json.get("figures").and_then(Value::as_array).into_iter().flatten() {
        let name = of.get("name").and_then(Value::as_str).ok_or_else(|| nonsense("has a nameless figure"))?;
        said.measures.extend(number(of, figure(name)));
    }
    if let Some(phase) = json.get("phase") {
        add_phase(phase, &mut said);
    }
    Ok(said)
}

/// What was counted in the measured phase alone.
fn add_phase(phase: &Value, said: &mut Said) {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let all = |name: &str| phase.get(name).and_then(Value::as_array).into_iter().flatten();
    for of in all("measures") {
        let found = text(of, "name").and_then(|name| number(of, name));
        let source = text(of, "source").unwrap_or_default();
        said.measures.extend(found.map(|measure| Measure { source, ..measure }));
    }
    for of in all("absent") {
        let mut absence = Absence::new(
            text(of, "source").unwrap_or_default(),
            AbsentWhy::NotThere,
            text(of, "reason").unwrap_or_default(),
        );
        if let Some(way_out) = text(of, "way_out") {
            absence = absence.or(way_out);
        }
        for name in of.get("names").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            said.measures.push(Measure {
                name: name.to_owned(),
                unit: Unit::COUNT.into(),
                better: Better::Lower,
                value: Err(absence.clone()),
                source: absence.source.clone(),
            });
        }
    }
    for of in all("flags") {
        said.flags.extend(text(of, "kind").zip(text(of, "text")).map(|(kind, text)| Flag { kind, text }));
    }
}

/// `p99_9_ns` is `latency.p99.9`; the number of operations is `latency.count`.
fn percentile(key: &str, value: f64) -> Option<Measure> {
    let name = match key.strip_suffix("_ns") {
        Some(name) => format!("{}{}", measures::LATENCY, name.replace('_', ".")),
        None if key == "count" => {
            let name = format!("{}count", measures::LATENCY);
            return Some(measure(name, Unit::COUNT, Better::Neither, value));
        }
        None => return None,
    };
    Some(measure(name, Unit::NANOSECONDS, Better::Lower, value))
}

fn measure(name: String, unit: &str, better: Better, value: f64) -> Measure {
    let source = "the workload".to_owned();
    Measure { name, unit: Unit::from(unit), better, value: Ok(value), source }
}

/// An object with `unit`, `better` and `value`.
fn number(of: &Value, name: String) -> Option<Measure> {
    let value = of.get("value").and_then(Value::as_f64).filter(|value| value.is_finite())?;
    let better = match of.get("better").and_then(Value::as_str)? {
        "lower" => Better::Lower,
        "higher" => Better::Higher,
        _ => Better::Neither,
    };
    Some(measure(name, of.get("unit").and_then(Value::as_str)?, better, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"name":"hash","merit":{"name":"rate","unit":"1/s","better":"higher","value":5e6},
        "working_set_bytes":1024,"checksum":"00ff","latency":{"p50_ns":10,"p99_9_ns":70,"max_ns":99,"count":3},
        "figures":[{"name":"first_touch","unit":"ns","better":"lower","value":7.5}]}"#;

    #[test]
    fn a_result_line_becomes_measures() {
        let said = built_in("hash", LINE).unwrap();
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
                       "reason":"no PMU","way_out":"another machine"}],
            "flags":[{"kind":"multiplexed","text":"2 counters took turns"}]}}"#;
        let said = built_in("x", line).unwrap();
        let [_, wall, cycles, dtlb] = &said.measures[..] else { panic!("{said:?}") };
        assert_eq!(
            (wall.name.as_str(), &wall.value, wall.source.as_str()),
            ("phase.wall", &Ok(5.0), "a clock")
        );
        assert_eq!(dtlb.name, "phase.counter.dTLB-loads");
        let absence = cycles.value.as_ref().unwrap_err();
        assert_eq!((absence.reason(), absence.way_out.as_deref()), ("no PMU", Some("another machine")));
        assert_eq!(said.flags[0].kind, Flag::MULTIPLEXED);
    }

    #[test]
    fn what_is_no_result_says_why() {
        for (line, why) in [
            ("hello", "is no JSON"),
            ("{}", "has no merit"),
            (r#"{"merit":{"unit":"s","better":"lower","value":"x"},"checksum":"1"}"#, "has no merit"),
            (r#"{"merit":{"unit":"s","better":"lower","value":1}}"#, "has no checksum"),
        ] {
            let error = built_in("x", line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
