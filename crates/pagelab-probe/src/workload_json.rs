//! Results and lists of workloads as JSON; `docs/json.md` defines fields and units.

use pagelab_experiment::external;
use pagelab_experiment::external::install_dir::{InstallState, install_state};
use pagelab_experiment::external::manifest::Manifest;
use pagelab_experiment::external::run::{RunFigure, RunResult};
use pagelab_experiment::probe::ProbeReadings;
use pagelab_formats::duration;
use pagelab_model::Absence;
use pagelab_model::experiment::{BetterDirection, Flag, Measure};
use pagelab_model::simulation::TrialSeries;
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use pagelab_workloads::WORKLOADS;
use pagelab_workloads::histogram::LatencyHistogram;
use pagelab_workloads::options::{OptionSpec, OptionValue as Chosen, ValueKind, WorkloadOptions};
use pagelab_workloads::{Figure, HotRegion, PhaseFigure, Workload, WorkloadResult};
use serde_json::Value;

/// Returns the result of a run, and the counts of its measured phase.
pub fn outcome_json(
    workload: &Workload,
    options: &WorkloadOptions,
    outcome: &WorkloadResult,
    phase: &ProbeReadings,
) -> Value {
    document_header("workload")
        .field("name", workload.name)
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("options", options_json(options))
        .field("merit", figure_json(&outcome.figure_of_merit))
        .field("working_set_bytes", outcome.working_set.0)
        .field("checksum", format!("{:016x}", outcome.checksum))
        .optional(
            "latency",
            outcome.latencies.as_ref().map(latency_json),
            "it does not time single operations",
        )
        .field("figures", to_array(&outcome.figures, figure_json))
        .with_some("phase_figures", list_json_of(&outcome.phases.figures, phase_figure_json))
        .with_some("series", list_json_of(&outcome.phases.series, series_json))
        .field("phase", phase_json(phase))
        .field("hot_regions", to_array(&outcome.hot_regions, hot_region_json))
        .field("generator", workload.generator)
        .field("generated", outcome.generated_input.as_str())
        .into()
}

/// Returns the counts of the measured phase alone. Missing counts are grouped by reason.
fn phase_json(counts: &ProbeReadings) -> JsonObject {
    let mut counted = Vec::new();
    let mut absent: Vec<(&Absence, Vec<&str>)> = Vec::new();
    for measure in &counts.measures {
        match &measure.value {
            Ok(value) => counted.push((measure, *value)),
            Err(absence) => match absent.iter_mut().find(|(known, _)| *known == absence) {
                Some((_, names)) => names.push(measure.name.as_str()),
                None => absent.push((absence, vec![measure.name.as_str()])),
            },
        }
    }
    let measure = |(measure, value): (&Measure, f64)| {
        value_json(&measure.name, &measure.unit.0, measure.better, value)
            .field("source", measure.source.as_str())
    };
    let reason = |(absence, names): (&Absence, Vec<&str>)| {
        JsonObject::new()
            .field("names", names)
            .field("source", absence.source.as_str())
            .field("reason", absence.reason())
            .with_some("hint", absence.hint.as_deref())
    };
    let flag =
        |flag: &Flag| JsonObject::new().field("kind", flag.kind.as_str()).field("text", flag.text.as_str());
    JsonObject::new()
        .field("measures", to_array(counted, measure))
        .field("absent", to_array(absent, reason))
        .field("flags", to_array(&counts.flags, flag))
}

fn options_json(options: &WorkloadOptions) -> JsonObject {
    let put = |object: JsonObject, (head, value): (&OptionSpec, &Chosen)| {
        object.field(head.name, option_value_json(value))
    };
    options.iter().fold(JsonObject::new(), put)
}

/// Returns a value as it is typed.
fn option_value_json(value: &Chosen) -> Value {
    match value {
        Chosen::Size(bytes) => bytes.0.into(),
        Chosen::Number(number) => (*number).into(),
        Chosen::Thousandths(thousandths) => (*thousandths as f64 / 1000.0).into(),
        Chosen::Duration(time) => duration::format_argument(*time).into(),
        Chosen::Text(text) => text.as_str().into(),
        Chosen::Switch(is_on) => if *is_on { "yes" } else { "no" }.into(),
    }
}

fn figure_json(figure: &Figure) -> JsonObject {
    value_json(figure.name, figure.unit, figure.direction, figure.value)
}

/// An array, or nothing for an empty list.
fn list_json_of<T>(items: &[T], to_json: fn(&T) -> JsonObject) -> Option<Value> {
    (!items.is_empty()).then(|| to_array(items, to_json))
}

fn phase_figure_json(figure: &PhaseFigure) -> JsonObject {
    value_json(&figure.name, figure.unit, figure.direction, figure.value)
        .field("phase", figure.phase.as_str())
}

/// Values are in millionths, as in run files.
fn series_json(series: &TrialSeries) -> JsonObject {
    let point =
        |(position, millionths): &(u64, i64)| Value::from(vec![(*position).into(), Value::from(*millionths)]);
    JsonObject::new()
        .field("name", series.name.as_str())
        .field("over", series.over.as_str())
        .field("points_millionths", series.points.iter().map(point).collect::<Value>())
}

fn external_figure_json(figure: &RunFigure) -> JsonObject {
    value_json(&figure.name, &figure.unit, figure.better, figure.value)
}

fn value_json(name: &str, unit: &str, better: BetterDirection, value: f64) -> JsonObject {
    let object = JsonObject::new().field("name", name).field("unit", unit);
    object.field("better", better.slug()).field("value", value)
}

/// Reported percentiles, in 100 000ths.
const PERCENTILES: [(&str, u64); 5] =
    [("p50_ns", 50_000), ("p90_ns", 90_000), ("p99_ns", 99_000), ("p99.9_ns", 99_900), ("p99.99_ns", 99_990)];

fn latency_json(latencies: &LatencyHistogram) -> JsonObject {
    let object = JsonObject::new().field("count", latencies.count());
    let with_percentiles = PERCENTILES.iter().fold(object, |object, (name, of_100_000)| {
        object.optional(name, latencies.percentile_ns(*of_100_000), "no operation was timed")
    });
    with_percentiles.field("max_ns", latencies.max_ns())
}

fn hot_region_json(region: &HotRegion) -> JsonObject {
    JsonObject::new()
        .field("offset_bytes", region.offset)
        .field("address", region.address)
        .field("share", region.share)
}

/// Lists all workloads.
pub fn list_json() -> Value {
    let workload = |workload: &&'static Workload| {
        JsonObject::new()
            .field("name", workload.name)
            .field("about", workload.description)
            .field("generator", workload.generator)
            .field("forks", workload.forks_processes)
            .field("options", to_array(workload.options, option_json))
    };
    document_header("workloads")
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("workloads", to_array(WORKLOADS, workload))
        .field("external", to_array(external::manifests(), external_entry_json))
        .into()
}

fn option_json(head: &OptionSpec) -> JsonObject {
    let (kind, words): (&str, &[&str]) = match head.kind {
        ValueKind::Size => ("size", &[]),
        ValueKind::Number(..) => ("number", &[]),
        ValueKind::Thousandths(_) => ("fraction", &[]),
        ValueKind::Duration(_) => ("duration", &[]),
        ValueKind::Choice(words) => ("word", words),
        ValueKind::Switch => ("switch", &["yes", "no"]),
        ValueKind::Path => ("path", &[]),
    };
    JsonObject::new()
        .field("name", head.name)
        .field("value_kind", kind)
        .field("words", words.to_vec())
        .field("default", head.default)
        .field("help", head.help)
}

/// Returns the entry of an external workload in the list.
fn external_entry_json(manifest: &Manifest) -> JsonObject {
    let state = install_state(manifest);
    let (home, missing) = match &state {
        InstallState::Ready(home) => (Some(home.dir.display().to_string()), None),
        InstallState::Available => (None, None),
        InstallState::Missing(why) => (None, Some(why.clone())),
    };
    JsonObject::new()
        .field("name", manifest.name.as_str())
        .field("about", manifest.summary.as_str())
        .field("explanation", manifest.explanation.as_str())
        .field("input", manifest.input.as_str())
        .field("working_set", manifest.working_set.as_str())
        .field("ready", missing.is_none())
        .optional("missing", missing, "nothing: it is ready")
        .optional("home", home, "it is not set up yet")
        .field("options", to_array(manifest.options, option_json))
}

/// Returns the result of a run of an external workload: the document of a built-in workload, and the origin
/// of its programs.
pub fn external_outcome_json(manifest: &Manifest, options: &WorkloadOptions, outcome: &RunResult) -> Value {
    let package = |(name, version): &(String, String)| {
        JsonObject::new().field("name", name.as_str()).field("version", version.as_str())
    };
    let program = |(name, path): &(String, std::path::PathBuf)| {
        JsonObject::new().field("name", name.as_str()).field("path", path.display().to_string())
    };
    document_header("workload")
        .field("name", manifest.name.as_str())
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("options", options_json(options))
        .field("merit", external_figure_json(&outcome.merit))
        .optional("working_set_bytes", None::<u64>, "external workloads do not report it")
        .optional("checksum", outcome.checksum.clone(), "this workload has none")
        .optional("latency", None::<u64>, "external workloads report latency in `figures`")
        .field("figures", to_array(&outcome.figures, external_figure_json))
        .field("hot_regions", Vec::<Value>::new())
        .field("generator", manifest.summary.as_str())
        .field("generated", outcome.input.as_str())
        .field("manifest", manifest.fingerprint.as_str())
        .field("packages", to_array(&outcome.installation.packages, package))
        .field("programs", to_array(&outcome.installation.locate_programs(manifest), program))
        .into()
}
