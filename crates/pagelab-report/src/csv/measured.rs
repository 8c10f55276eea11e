//! What a run of any kind holds as tables: manifest, series, samples, events.

use pagelab_metrics::derived;
use pagelab_model::run::{Column, Ending, Manifest, Run, Series, Values};

use super::{Cell, Table, number, option, real, text, truth};
use crate::utc::utc;

pub(super) fn tables(run: &Run) -> Vec<Table<'_>> {
    let mut tables = vec![manifest(run)];
    if !run.series.is_empty() {
        tables.push(columns(run));
        tables.extend(run.series.iter().map(series));
        tables.extend(derived::series(run).into_iter().map(derived_series));
    }
    if !run.streams.is_empty() {
        tables.extend([streams(run), samples(run)]);
    }
    if run.streams.iter().any(|stream| !stream.head.labels.is_empty()) {
        tables.push(labels(run));
    }
    if !run.events.is_empty() {
        let row = |event: &pagelab_model::run::Event| {
            vec![number(event.at_ns), text(&event.kind), text(&event.text)]
        };
        tables.push(Table::new("events", &["at_ns", "kind", "text"], run.events.iter().map(row)));
    }
    tables
}

/// Manifest and ending, a field in a line.
fn manifest(run: &Run) -> Table<'_> {
    let Manifest { kind, tool_version, command_line, seed, started, machine, settings } = &run.manifest;
    let (ending, after_ns, why) = match &run.ending {
        Ending::Complete { after_ns } => ("complete", Some(*after_ns), None),
        Ending::Stopped { after_ns, why } => ("stopped", Some(*after_ns), Some(why.as_str())),
        Ending::NotClosed => ("not_closed", None, None),
    };
    let words = command_line.iter().map(|word| serde_json::Value::from(word.as_str())).collect();
    let thp = settings.thp.as_ref().ok().and_then(|thp| thp.enabled.as_ref().ok());
    let cpu = machine.cpu.as_ref().ok();
    let said = |reading: &pagelab_model::Reading<String>| option(reading.as_ref().ok(), |said| text(said));
    let fields = [
        ("file", text(&run.name)),
        ("kind", text(kind)),
        ("tool_version", text(tool_version)),
        ("command_line", text(&serde_json::Value::Array(words).to_string())),
        ("seed", option(*seed, number)),
        ("started_realtime_ns", number(started.realtime_ns)),
        ("started_boottime_ns", number(started.boottime_ns)),
        ("started_utc", text(&utc(started.realtime_ns))),
        ("ending", text(ending)),
        ("ended_after_ns", option(after_ns, number)),
        ("ended_why", option(why, text)),
        ("host_name", option(machine.host_name.as_deref(), text)),
        ("kernel_release", said(&machine.kernel_release)),
        ("kernel_version", said(&machine.kernel_version)),
        ("kernel_cmdline", said(&machine.kernel_cmdline)),
        ("architecture", said(&machine.architecture)),
        ("cpu_model_name", option(cpu, |cpu| text(&cpu.model_name))),
        ("cpu_threads", option(cpu, |cpu| number(cpu.threads))),
        ("page_size_bytes", number(machine.page_size.bytes())),
        ("thp_enabled", option(thp, |choice| text(choice.selected()))),
    ];
    let vm = settings.vm.iter().map(|(name, value)| vec![text(&format!("vm.{name}")), number(value)]);
    let rows = fields.into_iter().map(|(name, cell)| vec![text(name), cell]).chain(vm);
    Table::new("manifest", &["field", "value"], rows)
}

/// What the columns of all series are.
fn columns(run: &Run) -> Table<'_> {
    const HEAD: [&str; 7] =
        ["series", "source", "column", "unit", "is_counter", "is_constant", "readings_failed"];
    let rows = run.series.iter().flat_map(|series| {
        series.columns.iter().map(|column| {
            let (is_constant, failed) = match &column.values {
                Values::Constant(Some(_)) => (true, 0),
                Values::Constant(None) => (true, series.at_ns.len()),
                Values::Varying(values) => (false, values.iter().filter(|value| value.is_none()).count()),
            };
            vec![
                text(&series.name),
                text(&series.source),
                text(&column.head.name),
                text(&column.head.unit.0),
                truth(column.head.is_counter),
                truth(is_constant),
                number(failed),
            ]
        })
    });
    Table::new("columns", &HEAD, rows)
}

/// One series: time, then its columns, those that never changed too.
fn series(series: &Series) -> Table<'_> {
    let rows = series.at_ns.iter().enumerate().map(|(at, time)| {
        let values = series.columns.iter().map(|column| option(column.values.at(at), number));
        std::iter::once(number(time)).chain(values).collect::<Vec<Cell>>()
    });
    let mut table = Table::new(&format!("series-{}", series.name), &["at_ns"], rows);
    table.head.extend(series.columns.iter().map(title));
    table
}

/// One series that was computed from another.
fn derived_series<'a>(series: Series) -> Table<'a> {
    let titles: Vec<String> = series.columns.iter().map(title).collect();
    let name = format!("derived-{}", series.name);
    let rows = (0..series.at_ns.len()).map(move |at| {
        let time = number(series.at_ns.get(at).copied().unwrap_or_default());
        let values = series.columns.iter().map(|column| option(column.values.at(at), number));
        std::iter::once(time).chain(values).collect::<Vec<Cell>>()
    });
    let mut table = Table::new(&name, &["at_ns"], rows);
    table.head.extend(titles);
    table
}

/// The name of a column with its unit.
fn title(column: &Column) -> String {
    let head = &column.head;
    if head.unit.0.is_empty() { head.name.clone() } else { format!("{} [{}]", head.name, head.unit.0) }
}

/// The streams, by the number that the other tables name them by.
fn streams(run: &Run) -> Table<'_> {
    let rows = (1u64..).zip(&run.streams).map(|(place, stream)| {
        vec![number(place), text(&stream.head.name), text(&stream.head.unit.0), number(stream.values.len())]
    });
    Table::new("streams", &["stream", "name", "unit", "samples"], rows)
}

fn labels(run: &Run) -> Table<'_> {
    let rows = (1u64..).zip(&run.streams).flat_map(|(place, stream)| {
        let row = move |(label, value): &(String, String)| vec![number(place), text(label), text(value)];
        stream.head.labels.iter().map(row)
    });
    Table::new("labels", &["stream", "label", "value"], rows)
}

fn samples(run: &Run) -> Table<'_> {
    let rows = (1u64..).zip(&run.streams).flat_map(|(place, stream)| {
        let samples = stream.at_ns.iter().zip(&stream.values);
        samples.map(move |(at_ns, value)| vec![number(place), number(at_ns), real(*value)])
    });
    Table::new("samples", &["stream", "at_ns", "value"], rows)
}
