//! Contents of a run of any type as tables: manifest, series, samples, events.

use std::borrow::Cow;

use pagelab_metrics::derived;
use pagelab_model::Snapshot;
use pagelab_model::run::{Column, ColumnValues, Run, RunEvent, SampleStream, Series};
use serde_json::Value;

use super::{Columns, CsvTable};
use crate::json::machine::{machine_fields, settings_fields};
use crate::json::run::{
    ColumnRow, event_fields, known_snapshot, run_fields, series_column_fields, stream_fields,
};
use crate::utc::format_utc;

pub(super) fn recording_tables(run: &Run) -> Vec<CsvTable<'_>> {
    let mut tables = vec![manifest_table(run)];
    if !run.series.is_empty() {
        tables.push(columns_table(run));
        tables.extend(run.series.iter().map(|of| series_table("series", Cow::Borrowed(of))));
        let derived = derived::derive_series(run).into_iter();
        tables.extend(derived.map(|of| series_table("derived", Cow::Owned(of))));
    }
    if !run.streams.is_empty() {
        tables.extend([streams_table(run), samples_table(run)]);
    }
    if run.streams.iter().any(|stream| !stream.header.labels.is_empty()) {
        tables.push(labels_table(run));
    }
    if !run.events.is_empty() {
        tables.push(
            Columns::<&RunEvent>::new()
                .fields(event_fields, "at_ns kind text", |of| Some(*of))
                .table("events", run.events.iter()),
        );
    }
    tables
}

/// Builds the table of the manifest and the ending, a field per line.
fn manifest_table(run: &Run) -> CsvTable<'_> {
    let snapshot = known_snapshot(&run.manifest);
    let Columns { names, cells } = Columns::<(&Run, &Snapshot)>::new()
        .column("file", |(run, _)| run.name.as_str().into())
        .fields(run_fields, "kind tool_version", |(run, _)| Some(*run))
        .column("command_line", |(run, _)| Value::from(run.manifest.command_line.clone()).to_string().into())
        .fields(run_fields, "seed started_realtime_ns", |(run, _)| Some(*run))
        .column("started_boottime_ns", |(run, _)| run.manifest.started.boottime_ns.into())
        .column("started_utc", |(run, _)| format_utc(run.manifest.started.realtime_ns).into())
        .fields(run_fields, "ending ended_after_ns end_reason", |(run, _)| Some(*run))
        .fields(
            machine_fields,
            "host_name kernel_release kernel_version kernel_cmdline architecture \
             cpu_model_name=cpu.model_name cpu_threads=cpu.threads page_size_bytes",
            |(_, snapshot)| Some(*snapshot),
        )
        .fields(settings_fields, "thp_enabled=thp.enabled", |(run, _)| Some(&run.manifest.settings));
    let row = (run, &snapshot);
    let fields = names.into_iter().zip(cells).map(|(name, cell)| vec![Value::from(name), cell(&row)]);
    let vm = run.manifest.settings.vm.iter();
    let vm = vm.map(|(name, value)| vec![Value::from(format!("vm.{name}")), value.into()]);
    let rows: Vec<Vec<Value>> = fields.chain(vm).collect();
    CsvTable::new("manifest", &["field", "value"], rows.into_iter())
}

fn columns_table(run: &Run) -> CsvTable<'_> {
    let rows = run.series.iter().flat_map(|of| of.columns.iter().map(move |column| (of, column)));
    Columns::<ColumnRow<'_>>::new()
        .column("series", |(of, _)| of.name.as_str().into())
        .column("source", |(of, _)| of.source.as_str().into())
        .fields(series_column_fields, "column=name unit is_counter", |of| Some(*of))
        .column("is_constant", |(_, of)| matches!(of.values, ColumnValues::Constant(_)).into())
        .fields(series_column_fields, "readings_failed", |of| Some(*of))
        .table("columns", rows)
}

/// Builds the table of one series: time, then its columns, including those that never changed.
fn series_table<'a>(prefix: &str, series: Cow<'a, Series>) -> CsvTable<'a> {
    let file = format!("{prefix}-{}", series.name);
    let titles: Vec<String> = series.columns.iter().map(column_title).collect();
    let rows = (0..series.at_ns.len()).map(move |at| {
        let values = series.columns.iter().map(|column| Value::from(column.values.value_at(at)));
        std::iter::once(Value::from(series.at_ns[at])).chain(values).collect::<Vec<Value>>()
    });
    let mut table = CsvTable::new(&file, &["at_ns"], rows);
    table.column_names.extend(titles);
    table
}

fn column_title(column: &Column) -> String {
    let head = &column.header;
    if head.unit.0.is_empty() { head.name.clone() } else { format!("{} [{}]", head.name, head.unit.0) }
}

/// Builds the tables of the streams, by the number under which the other tables refer to them.
fn streams_table(run: &Run) -> CsvTable<'_> {
    Columns::<(u64, &SampleStream)>::new()
        .column("stream", |(place, _)| (*place).into())
        .fields(stream_fields, "name unit", |(_, of)| Some(*of))
        .column("samples", |(_, of)| of.values.len().into())
        .table("streams", (1..).zip(&run.streams))
}

fn labels_table(run: &Run) -> CsvTable<'_> {
    let rows = (1u64..).zip(&run.streams).flat_map(|(place, stream)| {
        let row = move |(label, value): &(String, String)| {
            vec![Value::from(place), label.as_str().into(), value.as_str().into()]
        };
        stream.header.labels.iter().map(row)
    });
    CsvTable::new("labels", &["stream", "label", "value"], rows)
}

fn samples_table(run: &Run) -> CsvTable<'_> {
    let rows = (1u64..).zip(&run.streams).flat_map(|(place, stream)| {
        let samples = stream.at_ns.iter().zip(&stream.values);
        samples.map(move |(at_ns, value)| vec![Value::from(place), (*at_ns).into(), (*value).into()])
    });
    CsvTable::new("samples", &["stream", "at_ns", "value"], rows)
}
