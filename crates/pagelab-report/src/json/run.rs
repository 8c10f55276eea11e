//! `pagelab report --json`: run files whole and exact, under the contract of docs/json.md.

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::derived;
use pagelab_model::Snapshot;
use pagelab_model::run::{Column, Ending, Event, Manifest, Run, Series, Stream, Values};
use serde::Serialize;
use serde_json::Value;

use super::object::{Object, array, reason};
use super::{Header, averages, checkup, machine, to_text};

/// One of the `runs`. Long lists of numbers are borrowed from the run, not copied.
#[derive(Debug, Serialize)]
struct RunFile<'a> {
    name: &'a str,
    run: Value,
    checkup: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkup_absent_reason: Option<&'static str>,
    series: Vec<SeriesOf<'a>>,
    streams: Vec<StreamOf<'a>>,
    events: Vec<EventOf<'a>>,
    derived: DerivedOf<'a>,
    maps: Value,
    stacks: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stacks_absent_reason: Option<&'static str>,
    experiment: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    experiment_absent_reason: Option<&'static str>,
    profile: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_absent_reason: Option<&'static str>,
    tune: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tune_absent_reason: Option<&'static str>,
    study: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    study_absent_reason: Option<&'static str>,
    trace: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_absent_reason: Option<&'static str>,
    not_shown: &'a [String],
}

/// What is computed from the series.
#[derive(Debug, Serialize)]
struct DerivedOf<'a> {
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_absent_reason: Option<String>,
    series: Vec<SeriesOf<'a>>,
}

#[derive(Debug, Serialize)]
struct SeriesOf<'a> {
    name: &'a str,
    source: &'a str,
    at_ns: &'a [u64],
    columns: Vec<ColumnOf<'a>>,
}

#[derive(Debug, Serialize)]
struct ColumnOf<'a> {
    name: &'a str,
    unit: &'a str,
    is_counter: bool,
    readings_failed: usize,
    constant: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    constant_absent_reason: Option<&'static str>,
    values: Option<&'a [Option<i64>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values_absent_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct StreamOf<'a> {
    name: &'a str,
    unit: &'a str,
    labels: Value,
    at_ns: &'a [u64],
    values: &'a [f64],
}

#[derive(Debug, Serialize)]
struct EventOf<'a> {
    at_ns: u64,
    kind: &'a str,
    text: &'a str,
}

/// The document as text, a piece for each run, so that one run at a time has to be held: what stands before
/// the run if it is the first, and the run. [`end`] ends the document.
pub fn piece(run: &Run, trace: Option<Value>, is_first: bool) -> Result<String, serde_json::Error> {
    let mut text = if is_first { begin()? } else { ",\n".to_owned() };
    // No line end stands inside of a JSON string, so every line can be indented.
    for (at, line) in to_text(&run_file(run, &derived::series(run), trace))?.lines().enumerate() {
        text.extend([if at > 0 { "\n" } else { "" }, "    ", line]);
    }
    Ok(text)
}

/// The end of the document behind its last piece, or the whole document if there was none.
pub fn end(is_empty: bool) -> Result<String, serde_json::Error> {
    let begun = if is_empty { begin()?.trim_end_matches('\n').to_owned() } else { "\n  ".to_owned() };
    Ok(begun + "]\n}\n")
}

fn begin() -> Result<String, serde_json::Error> {
    let header = to_text(&Header::new("report"))?;
    Ok(header.trim_end_matches("\n}\n").to_owned() + ",\n  \"runs\": [\n")
}

fn run_file<'a>(run: &'a Run, derived: &'a [Series], trace: Option<Value>) -> RunFile<'a> {
    let usage = pagelab_metrics::averages::averages(run);
    let look = run.snapshot.as_deref();
    RunFile {
        name: &run.name,
        run: run_object(run).into(),
        checkup: look.map(|snapshot| checkup::document(snapshot, &Checkup::of(snapshot))),
        checkup_absent_reason: look.is_none().then_some("the run holds no look at a machine"),
        series: run.series.iter().map(series).collect(),
        streams: run.streams.iter().map(stream).collect(),
        events: run.events.iter().map(event).collect(),
        derived: DerivedOf {
            usage: usage.as_ref().ok().map(|found| averages::put(Object::new(), found).into()),
            usage_absent_reason: usage.as_ref().err().map(reason),
            series: derived.iter().map(series).collect(),
        },
        maps: array(&run.maps, |map| Object::new().put("at_ns", map.at_ns).put("is_key", map.is_key)),
        stacks: run.stacks.as_deref().map(super::stacks::document),
        stacks_absent_reason: run.stacks.is_none().then_some("no call stacks were recorded"),
        experiment: run.experiment.as_deref().map(|of| super::experiment::document(of, &run.manifest)),
        experiment_absent_reason: run.experiment.is_none().then_some("the run is no experiment"),
        profile: run.profile.as_deref().map(|of| super::profile::put(Object::new(), of, false).into()),
        profile_absent_reason: run.profile.is_none().then_some("the run is no profile"),
        tune: super::tune::document(run),
        tune_absent_reason: run.tune.is_none().then_some("the run is no tuning"),
        study: run.study.as_deref().map(|of| super::study::put(Object::new(), of).into()),
        study_absent_reason: run.study.is_none().then_some("the run is no simulated study"),
        trace_absent_reason: trace.is_none().then_some("the run holds no trace that was read"),
        trace,
        not_shown: &run.not_shown,
    }
}

/// The manifest of a run and its ending.
pub fn run_object(run: &Run) -> Object {
    let manifest = &run.manifest;
    let known = known(manifest);
    let object = Object::new()
        .put("kind", manifest.kind.as_str())
        .put("tool_version", manifest.tool_version.as_str())
        .put("command_line", manifest.command_line.clone())
        .option("seed", manifest.seed, "nothing in it was random")
        .put("started_realtime_ns", manifest.started.realtime_ns)
        .option(
            "started_boottime_ns",
            Some(manifest.started.boottime_ns).filter(|&at_ns| at_ns > 0),
            "the imported files do not say",
        );
    let not_told = "the file was never closed";
    let object = match &run.ending {
        Ending::Complete { after_ns } => object
            .put("ending", "complete")
            .put("ended_after_ns", *after_ns)
            .option("ended_why", None::<String>, "it ended as it should"),
        Ending::Stopped { after_ns, why } => {
            object.put("ending", "stopped").put("ended_after_ns", *after_ns).put("ended_why", why.as_str())
        }
        Ending::NotClosed => object
            .put("ending", "not_closed")
            .option("ended_after_ns", None::<u64>, not_told)
            .option("ended_why", None::<String>, not_told),
    };
    object.put("machine", machine::machine(&known)).put("settings", machine::settings(&manifest.settings))
}

/// The manifest's machine and settings as what is known of a machine that was not looked at further.
pub(crate) fn known(manifest: &Manifest) -> Snapshot {
    let mut known = Snapshot::unread("the manifest", manifest.machine.page_size);
    known.machine = manifest.machine.clone();
    known.settings = manifest.settings.clone();
    let said = known.settings.thp.as_ref().ok().and_then(|thp| thp.pmd_size.as_ref().ok());
    if let Some(order) = said.and_then(|&size| known.machine.page_size.order_of(size)) {
        known.pmd_order = order;
        known.pageblock_order = order;
    }
    known
}

fn series(series: &Series) -> SeriesOf<'_> {
    let readings = series.at_ns.len();
    let columns = series.columns.iter().map(|of| column(of, readings)).collect();
    SeriesOf { name: &series.name, source: &series.source, at_ns: &series.at_ns, columns }
}

fn column(column: &Column, readings: usize) -> ColumnOf<'_> {
    let (constant, values, failed, no_constant) = match &column.values {
        Values::Constant(Some(value)) => (Some(*value), None, 0, None),
        Values::Constant(None) => (None, None, readings, Some("every reading of it failed")),
        Values::Varying(values) => {
            let failed = values.iter().filter(|value| value.is_none()).count();
            (None, Some(values.as_slice()), failed, Some("it varies"))
        }
    };
    ColumnOf {
        name: &column.head.name,
        unit: &column.head.unit.0,
        is_counter: column.head.is_counter,
        readings_failed: failed,
        constant,
        constant_absent_reason: no_constant,
        values,
        values_absent_reason: values.is_none().then_some("it never changed"),
    }
}

fn stream(stream: &Stream) -> StreamOf<'_> {
    let head = &stream.head;
    let put = |object: Object, (key, value): &(String, String)| object.put(key, value.as_str());
    let labels = head.labels.iter().fold(Object::new(), put).into();
    StreamOf { name: &head.name, unit: &head.unit.0, labels, at_ns: &stream.at_ns, values: &stream.values }
}

fn event(event: &Event) -> EventOf<'_> {
    EventOf { at_ns: event.at_ns, kind: &event.kind, text: &event.text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::example::{hostile, look, record};

    fn whole(runs: &[Run]) -> String {
        let pieces = runs.iter().enumerate().map(|(at, run)| piece(run, None, at == 0).unwrap());
        pieces.collect::<String>() + &end(runs.is_empty()).unwrap()
    }

    #[test]
    fn the_pieces_are_one_document_laid_out_as_any_other() {
        for runs in [vec![], vec![look()], vec![record(), hostile(), look()]] {
            let text = whole(&runs);
            let document: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&document["pagelab_json"], &document["kind"]), (&1.into(), &"report".into()));
            assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs.len()));
            assert_eq!(to_text(&document).unwrap(), text);
        }
    }

    #[test]
    fn numbers_are_exact_and_the_look_is_the_document_of_checkup() {
        let document: Value = serde_json::from_str(&whole(&[look(), record(), hostile()])).unwrap();
        let run = look();
        let snapshot = run.snapshot.as_deref().unwrap();
        assert_eq!(document["runs"][0]["checkup"], checkup::document(snapshot, &Checkup::of(snapshot)));
        assert_eq!(document["runs"][0]["streams"][1]["labels"]["bytes"], "67108864");
        let free = &document["runs"][1]["series"][0]["columns"];
        assert_eq!(
            (&free[0]["constant"], &free[1]["values"][1]),
            (&(24u64 << 30).into(), &2_095_054_848u64.into())
        );
        assert_eq!((&free[2]["values"][3], &free[2]["readings_failed"]), (&Value::Null, &3.into()));
        assert_eq!(free[3]["constant_absent_reason"], "every reading of it failed");
        let wild = &document["runs"][2];
        assert_eq!(wild["streams"][0]["values"], serde_json::json!([f64::MAX, f64::MIN]));
        assert_eq!(wild["series"][0]["columns"][0]["values"], serde_json::json!([i64::MIN, i64::MAX]));
    }
}
