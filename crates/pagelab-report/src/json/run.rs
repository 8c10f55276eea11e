//! `pagelab report --json`: run files completely and exactly, as specified in docs/json.md.

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::derived;
use pagelab_model::Snapshot;
use pagelab_model::run::{Column, ColumnValues, Manifest, Run, RunEnd, RunEvent, SampleStream, Series};
use serde::Serialize;
use serde_json::Value;

use super::object::{JsonObject, to_array};
use super::{averages, checkup, document_header, lay_out, machine, to_json_text};
use crate::fields::fields;

/// Element of `runs`. Long lists of numbers are borrowed from the run, not copied.
#[derive(Debug, Serialize)]
struct RunFileJson<'a> {
    #[serde(flatten)]
    head: JsonObject,
    series: Vec<SeriesJson<'a>>,
    streams: Vec<StreamJson<'a>>,
    events: Value,
    derived: DerivedJson<'a>,
    #[serde(flatten)]
    contents: JsonObject,
}

/// Data computed from the series.
#[derive(Debug, Serialize)]
struct DerivedJson<'a> {
    #[serde(flatten)]
    usage: JsonObject,
    series: Vec<SeriesJson<'a>>,
}

#[derive(Debug, Serialize)]
struct SeriesJson<'a> {
    name: &'a str,
    source: &'a str,
    at_ns: &'a [u64],
    columns: Vec<ColumnJson<'a>>,
}

#[derive(Debug, Serialize)]
struct ColumnJson<'a> {
    #[serde(flatten)]
    head: JsonObject,
    values: Option<&'a [Option<i64>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values_absent_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct StreamJson<'a> {
    #[serde(flatten)]
    head: JsonObject,
    at_ns: &'a [u64],
    values: &'a [f64],
}

/// A column beside its series.
pub(crate) type ColumnRow<'a> = (&'a Series, &'a Column);

fields! { fn series_column_fields<'a>(of: ColumnRow<'a>);
    "name": string, "unique within the series" => of.1.header.name.as_str();
    "unit": string, "`bytes`, `pages`, `ns`, `us`, `count`, `permille`, `ppm` (millionths) or others" =>
        of.1.header.unit.0.as_str();
    "is_counter": boolean,
        "whether the values only increase, so that only their differences are meaningful" =>
        of.1.header.is_counter;
    "readings_failed": integer, "number of failed readings" => match &of.1.values {
        ColumnValues::Constant(Some(_)) => 0,
        ColumnValues::Constant(None) => of.0.at_ns.len(),
        ColumnValues::Varying(values) => values.iter().filter(|value| value.is_none()).count(),
    };
    "constant": integer (reading), "the value, if it never changed" => match of.1.values {
        ColumnValues::Constant(Some(value)) => Ok(value.into()),
        ColumnValues::Constant(None) => Err("every reading failed".to_owned()),
        ColumnValues::Varying(_) => Err("the value varies".to_owned()),
    };
}

fields! { fn stream_fields(of: SampleStream);
    "name": string, "what was measured" => of.header.name.as_str();
    "unit": string, "unit of the values" => of.header.unit.0.as_str();
    "labels": object, "labels that distinguish it from other streams of the same name" => {
        let put = |object: JsonObject, (key, value): &(String, String)| object.field(key, value.as_str());
        of.header.labels.iter().fold(JsonObject::new(), put)
    };
}

fields! { fn event_fields(of: RunEvent);
    "at_ns": integer, "time since the start of the run" => of.at_ns;
    "kind": string, "`missed`, `warning` …" => of.kind.as_str();
    "text": string, "a phrase" => of.text.as_str();
}

/// Returns a part of the document as text, one for each run, so that only one run at a time is in memory: the
/// beginning of the document if it is the first run, and the run. [`document_end`] ends the document.
pub fn document_piece(
    run: &Run,
    trace: Option<Value>,
    judgement: Option<Value>,
    is_first: bool,
) -> Result<String, serde_json::Error> {
    let mut text = if is_first { document_begin()? } else { ",\n".to_owned() };
    // The values of a large document are dropped before its text is laid out.
    let compact = serde_json::to_string(&run_file_json(run, &derived::derive_series(run), trace, judgement))?;
    // JSON strings contain no line ends, so every line can be indented.
    for (at, line) in lay_out(compact).lines().enumerate() {
        text.extend([if at > 0 { "\n" } else { "" }, "    ", line]);
    }
    Ok(text)
}

/// Returns the end of the document after its last part, or the complete document if there was none.
pub fn document_end(is_empty: bool) -> Result<String, serde_json::Error> {
    let begun =
        if is_empty { document_begin()?.trim_end_matches('\n').to_owned() } else { "\n  ".to_owned() };
    Ok(begun + "]\n}\n")
}

fn document_begin() -> Result<String, serde_json::Error> {
    let header = to_json_text(&document_header("report"))?;
    Ok(header.trim_end_matches("\n}\n").to_owned() + ",\n  \"runs\": [\n")
}

fn run_file_json<'a>(
    run: &'a Run,
    derived: &'a [Series],
    trace: Option<Value>,
    judgement: Option<Value>,
) -> RunFileJson<'a> {
    let usage = pagelab_metrics::averages::compute_averages(run);
    let snapshot_document = |of: &Snapshot| checkup::to_document(of, &Checkup::from_snapshot(of));
    let stacks = run.stacks.as_deref().map(super::stacks::to_document);
    let experiment = run.experiment.as_deref().map(|of| super::experiment::to_document(of, &run.manifest));
    let profile = run.profile.as_deref().map(|of| super::profile::with_profile(JsonObject::new(), of, false));
    RunFileJson {
        head: JsonObject::new().field("name", run.name.as_str()).field("run", run_json(run)).optional(
            "checkup",
            run.snapshot.as_deref().map(snapshot_document),
            "the run contains no snapshot",
        ),
        series: run.series.iter().map(series).collect(),
        streams: run.streams.iter().map(stream_json).collect(),
        events: event_fields().array(&run.events),
        derived: DerivedJson {
            usage: JsonObject::new()
                .with_reading("usage", &usage, |of| averages::average_fields().object(of)),
            series: derived.iter().map(series).collect(),
        },
        contents: JsonObject::new()
            .field(
                "maps",
                to_array(&run.maps, |map| {
                    JsonObject::new().field("at_ns", map.at_ns).field("is_key", map.is_keyframe)
                }),
            )
            .optional("stacks", stacks, "no call stacks were recorded")
            .optional("experiment", experiment, "the run is not an experiment")
            .with_some("judgement", judgement)
            .optional("profile", profile, "the run is not a profile")
            .optional("tune", super::tune::to_document(run), "the run is not a tuning run")
            .optional("trace", trace, "the run contains no trace, or it was not read")
            .field("not_shown", run.unknown_content.clone()),
    }
}

/// Builds the manifest of a run and its ending.
pub fn run_json(run: &Run) -> JsonObject {
    run_fields().add_to(JsonObject::new(), run)
}

const NOT_CLOSED: &str = "the run file was never closed";

/// Returns the name of an ending, and its time.
fn run_end(end: &RunEnd) -> (&'static str, Option<u64>) {
    match end {
        RunEnd::Complete { after_ns } => ("complete", Some(*after_ns)),
        RunEnd::Stopped { after_ns, .. } => ("stopped", Some(*after_ns)),
        RunEnd::NotClosed => ("not_closed", None),
    }
}

fields! { fn run_fields(of: Run);
    "kind": string, "kind of run, such as `checkup`" => of.manifest.kind.as_str();
    "tool_version": string, "version of pagelab that wrote the file" => of.manifest.tool_version.as_str();
    "command_line": array, "words of the command line, starting with the program" =>
        of.manifest.command_line.clone();
    "seed": integer (null: "nothing in the run is random"), "seed of all random choices" => of.manifest.seed;
    "started_realtime_ns": integer, "wall-clock start time, in nanoseconds since 1970 (UTC)" =>
        of.manifest.started.realtime_ns;
    "started_boottime_ns": integer (null: "not recorded in the imported files"),
        "start time in nanoseconds since boot, including suspend" =>
        Some(of.manifest.started.boottime_ns).filter(|&at_ns| at_ns > 0);
    "ending": string,
        "`complete`, `stopped` (by a signal or a full disk), `not_closed` (killed, or still running)" =>
        run_end(&of.ending).0;
    "ended_after_ns": integer (null: NOT_CLOSED), "time from start to end" => run_end(&of.ending).1;
    "end_reason": string (reading), "why the run was stopped" => match &of.ending {
        RunEnd::Complete { .. } => Err("the run completed".to_owned()),
        RunEnd::Stopped { reason, .. } => Ok(reason.as_str().into()),
        RunEnd::NotClosed => Err(NOT_CLOSED.to_owned()),
    };
    "machine": object, "as `machine` of `checkup`, read at the start" =>
        machine::machine_fields().object(&known_snapshot(&of.manifest));
    "settings": object, "as `settings` of `checkup`, read at the start" =>
        machine::settings_fields().object(&of.manifest.settings);
}

/// Builds the machine and settings of a manifest.
pub(crate) fn known_snapshot(manifest: &Manifest) -> Snapshot {
    let mut snapshot = Snapshot::new_unread("the manifest", manifest.machine.page_size);
    snapshot.machine = manifest.machine.clone();
    snapshot.settings = manifest.settings.clone();
    snapshot.pmd_order = snapshot.settings.pmd_order(snapshot.machine.page_size);
    snapshot.pageblock_order = snapshot.pmd_order;
    snapshot
}

fn series(series: &Series) -> SeriesJson<'_> {
    let columns = series.columns.iter().map(|column| column_json((series, column))).collect();
    SeriesJson { name: &series.name, source: &series.source, at_ns: &series.at_ns, columns }
}

fn column_json(row: ColumnRow<'_>) -> ColumnJson<'_> {
    let head = series_column_fields().add_to(JsonObject::new(), &row);
    match &row.1.values {
        ColumnValues::Varying(values) => {
            ColumnJson { head, values: Some(values), values_absent_reason: None }
        }
        ColumnValues::Constant(_) => {
            ColumnJson { head, values: None, values_absent_reason: Some("the value never changed") }
        }
    }
}

fn stream_json(stream: &SampleStream) -> StreamJson<'_> {
    let head = stream_fields().add_to(JsonObject::new(), stream);
    StreamJson { head, at_ns: &stream.at_ns, values: &stream.values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::example::{hostile, probe_run, record};

    fn full_document(runs: &[Run]) -> String {
        let pieces =
            runs.iter().enumerate().map(|(at, run)| document_piece(run, None, None, at == 0).unwrap());
        pieces.collect::<String>() + &document_end(runs.is_empty()).unwrap()
    }

    #[test]
    fn the_pieces_are_one_document_laid_out_as_any_other() {
        for runs in [vec![], vec![probe_run()], vec![record(), hostile(), probe_run()]] {
            let text = full_document(&runs);
            let document: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&document["pagelab_json"], &document["kind"]), (&2.into(), &"report".into()));
            assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs.len()));
            assert_eq!(to_json_text(&document).unwrap(), text);
        }
    }

    #[test]
    fn numbers_are_exact_and_the_look_is_the_document_of_checkup() {
        let document: Value =
            serde_json::from_str(&full_document(&[probe_run(), record(), hostile()])).unwrap();
        let run = probe_run();
        let snapshot = run.snapshot.as_deref().unwrap();
        assert_eq!(
            document["runs"][0]["checkup"],
            checkup::to_document(snapshot, &Checkup::from_snapshot(snapshot))
        );
        assert_eq!(document["runs"][0]["streams"][1]["labels"]["bytes"], "67108864");
        let free = &document["runs"][1]["series"][0]["columns"];
        assert_eq!(
            (&free[0]["constant"], &free[1]["values"][1]),
            (&(24u64 << 30).into(), &2_095_054_848u64.into())
        );
        assert_eq!((&free[2]["values"][3], &free[2]["readings_failed"]), (&Value::Null, &3.into()));
        assert_eq!(free[3]["constant_absent_reason"], "every reading failed");
        let wild = &document["runs"][2];
        assert_eq!(wild["streams"][0]["values"], serde_json::json!([f64::MAX, f64::MIN]));
        assert_eq!(wild["series"][0]["columns"][0]["values"], serde_json::json!([i64::MIN, i64::MAX]));
    }
}
