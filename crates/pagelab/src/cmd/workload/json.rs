//! The JSON of `pagelab workload`: fields and units stand in `docs/json.md`.

use pagelab_experiment::probe::Found;
use pagelab_model::Absence;
use pagelab_model::experiment::{Better, Flag};
use pagelab_report::json::header;
use pagelab_report::json::object::{Object, array};
use pagelab_workloads::histogram::Latencies;
use pagelab_workloads::options::{Kind, OptionHead, Options, Value as Chosen};
use pagelab_workloads::table::WORKLOADS;
use pagelab_workloads::{Done, Figure, HotRegion, Workload};
use serde_json::Value;

/// What a run said, and what was counted in its measured phase.
pub fn done(workload: &Workload, options: &Options, done: &Done, phase: &Found) -> Value {
    let chosen =
        options.all().fold(Object::new(), |object, (head, value)| object.put(head.name, typed(value)));
    header("workload")
        .put("name", workload.name)
        .put("version", env!("CARGO_PKG_VERSION"))
        .put("options", chosen)
        .put(
            "merit",
            figure(&Figure {
                name: done.merit.name,
                unit: done.merit.unit,
                better: done.merit.better,
                value: done.merit.value,
            }),
        )
        .put("working_set_bytes", done.working_set.0)
        .put("checksum", format!("{:016x}", done.checksum))
        .option("latency", done.latencies.as_ref().map(latency), "no operation of it is timed by itself")
        .put("figures", array(&done.figures, figure))
        .put("phase", self::phase(phase))
        .put("hot_regions", array(&done.hot_regions, hot_region))
        .put("generator", workload.generator)
        .put("generated", done.generated.as_str())
        .into()
}

/// What was measured in the measured phase alone. What could not be counted stands together by its reason.
fn phase(found: &Found) -> Object {
    let mut there = Vec::new();
    let mut absent: Vec<(&Absence, Vec<Value>)> = Vec::new();
    for measure in &found.measures {
        let absence = match &measure.value {
            Err(absence) => absence,
            Ok(value) => {
                let of = Object::new()
                    .put("name", measure.name.as_str())
                    .put("unit", measure.unit.0.as_str())
                    .put("better", better(measure.better))
                    .put("value", *value)
                    .put("source", measure.source.as_str());
                there.push(Value::from(of));
                continue;
            }
        };
        match absent.iter_mut().find(|(known, _)| *known == absence) {
            Some((_, names)) => names.push(measure.name.as_str().into()),
            None => absent.push((absence, vec![measure.name.as_str().into()])),
        }
    }
    let reason = |(absence, names): &(&Absence, Vec<Value>)| {
        let of = Object::new()
            .put("names", Value::Array(names.clone()))
            .put("source", absence.source.as_str())
            .put("reason", absence.reason());
        match &absence.way_out {
            Some(way_out) => of.put("way_out", way_out.as_str()),
            None => of,
        }
    };
    let flag = |flag: &Flag| Object::new().put("kind", flag.kind.as_str()).put("text", flag.text.as_str());
    Object::new()
        .put("measures", Value::Array(there))
        .put("absent", array(&absent, reason))
        .put("flags", array(&found.flags, flag))
}

/// A value as it could be typed.
pub(super) fn typed(value: &Chosen) -> Value {
    match value {
        Chosen::Size(bytes) => bytes.0.into(),
        Chosen::Number(number) => (*number).into(),
        Chosen::Thousandths(thousandths) => (*thousandths as f64 / 1000.0).into(),
        Chosen::Text(text) => text.as_str().into(),
        Chosen::Switch(is_on) => if *is_on { "yes" } else { "no" }.into(),
    }
}

fn figure(figure: &Figure) -> Object {
    Object::new()
        .put("name", figure.name)
        .put("unit", figure.unit)
        .put("better", better(figure.better))
        .put("value", figure.value)
}

pub(super) fn better(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
        Better::Neither => "neither",
    }
}

/// The percentiles that are told, in 100 000ths.
const PERCENTILES: [(&str, u64); 5] =
    [("p50_ns", 50_000), ("p90_ns", 90_000), ("p99_ns", 99_000), ("p99.9_ns", 99_900), ("p99.99_ns", 99_990)];

fn latency(latencies: &Latencies) -> Object {
    let object = Object::new().put("count", latencies.count());
    let with_percentiles = PERCENTILES.iter().fold(object, |object, (name, of_100_000)| {
        object.option(name, latencies.percentile_ns(*of_100_000), "there was no operation")
    });
    with_percentiles.put("max_ns", latencies.max_ns())
}

fn hot_region(region: &HotRegion) -> Object {
    Object::new().put("offset_bytes", region.offset).put("address", region.address).put("share", region.share)
}

/// All workloads.
pub fn list() -> Value {
    let workload = |workload: &&'static Workload| {
        Object::new()
            .put("name", workload.name)
            .put("about", workload.about)
            .put("generator", workload.generator)
            .put("forks", workload.forks)
            .put("options", array(workload.options, option))
    };
    header("workloads")
        .put("version", env!("CARGO_PKG_VERSION"))
        .put("workloads", array(WORKLOADS, workload))
        .put("external", array(pagelab_experiment::external::all(), super::external::listed))
        .into()
}

pub(super) fn option(head: &OptionHead) -> Object {
    let (kind, words): (&str, &[&str]) = match head.kind {
        Kind::Size => ("size", &[]),
        Kind::Number(..) => ("number", &[]),
        Kind::Thousandths(_) => ("fraction", &[]),
        Kind::Word(words) => ("word", words),
        Kind::Switch => ("switch", &["yes", "no"]),
        Kind::Path => ("path", &[]),
    };
    Object::new()
        .put("name", head.name)
        .put("value_kind", kind)
        .put("words", words.to_vec())
        .put("default", head.default)
        .put("help", head.help)
}
