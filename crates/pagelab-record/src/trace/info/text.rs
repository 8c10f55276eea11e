//! Trace on the terminal.

use std::collections::BTreeSet;

use pagelab_model::Bytes;
use pagelab_model::run::RunEnd;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{TextStyle, escape_invisible, format_bytes, format_count, format_percent};
use pagelab_report::text_report::{TableColumn, TextReport};

use super::{STATE_NAMES, TraceInfo};
use crate::trace::recording::{format_rate, format_recorder_cost};
use crate::trace::session::KIND_NAMES;

/// Renders the report, with the given number of threads.
pub fn render(info: &TraceInfo, style: TextStyle, threads_max: usize) -> String {
    let mut output = TextReport::new(style);
    write_machine(info, &mut output);
    output.add_gap();
    write_kinds(info, &mut output);
    output.add_gap();
    write_orders(info, &mut output);
    output.add_gap();
    write_threads(info, threads_max, &mut output);
    output.add_gap();
    write_memory(info, &mut output);
    write_recorder(info, &mut output);
    output.into_text()
}

fn write_machine(info: &TraceInfo, output: &mut TextReport) {
    let with = if info.snapshot.is_some() { " with the snapshot" } else { "" };
    let [kernel, cpus, memory] = machine_facts(info);
    let backend = format!("backend {}", info.head.backend.name());
    let size = format!("{}{with}", format_bytes(Bytes(info.file_bytes)));
    let facts = [info.name.clone(), kernel, cpus, memory, backend, size];
    output.add_fact_line(&facts);
    output.add_text(&events_text(info));
    output.add_text(&ending_text(info));
}

/// Kernel, processors and managed memory.
pub fn machine_facts(info: &TraceInfo) -> [String; 3] {
    let head = &info.head;
    let managed: u64 = head.zones.iter().map(|zone| u64::from(zone.managed)).sum();
    let memory = format_bytes(Bytes(managed.saturating_mul(head.page_bytes.into())));
    [format!("Linux {}", head.kernel), format!("{} processors", head.cpus), format!("{memory} managed")]
}

/// Number of events, their rate, and the bytes of each.
pub fn events_text(info: &TraceInfo) -> String {
    let took = info.span_seconds().map(|seconds| {
        let events = format_rate(info.events() as f64 / seconds);
        format!(" in {}: {events}/s", format_duration((seconds * 1e9) as u64))
    });
    let each = info.bytes_per_event().map(|bytes| format!(", {bytes:.2} bytes each")).unwrap_or_default();
    let events = format_count(info.events().into());
    format!("{events} events{}{each}", took.unwrap_or_default())
}

/// Losses, and the end of the recording.
pub fn ending_text(info: &TraceInfo) -> String {
    let lost = match info.lost_events() {
        0 => "no events were lost".to_owned(),
        lost => {
            let share = format_percent(lost as f64 / (lost + info.events()) as f64);
            format!("{} events were lost, {share}: the ring buffers were full", format_count(lost.into()))
        }
    };
    let ended = match &info.ending {
        RunEnd::Complete { .. } => "the recording is complete".to_owned(),
        RunEnd::Stopped { reason: why, .. } => format!("the recording was stopped early: {why}"),
        RunEnd::NotClosed => "the file was not closed: it ends with the last committed block".to_owned(),
    };
    format!("{lost}; {ended}")
}

fn write_kinds(info: &TraceInfo, output: &mut TextReport) {
    let columns = [TableColumn::left("what"), TableColumn::right("events"), TableColumn::right("a second")];
    let rows = KIND_NAMES.iter().zip(info.kinds).filter(|(_, events)| *events > 0);
    let rows: Vec<Vec<String>> = rows
        .map(|((_, what), events)| {
            let times = info.span_seconds().map_or_else(String::new, |s| format_rate(events as f64 / s));
            vec![(*what).to_owned(), format_count(events.into()), times]
        })
        .collect();
    output.add_table(0, &columns, &rows);
}

/// Writes allocations by order, with a column per requested migratetype, and frees.
fn write_orders(info: &TraceInfo, output: &mut TextReport) {
    let account = &info.account;
    let types: BTreeSet<u8> = account.allocated.keys().map(|(_, migratetype)| *migratetype).collect();
    let orders: BTreeSet<u8> = account
        .allocated
        .keys()
        .map(|(order, _)| *order)
        .chain(account.freed_by_order.keys().copied())
        .collect();
    let names: Vec<String> = types.iter().map(|&number| info.migratetype(number)).collect();
    let mut columns = vec![TableColumn::right("order")];
    columns.extend(names.iter().map(|name| TableColumn::right(name)));
    columns.push(TableColumn::right("freed"));
    let cell = |events: Option<u64>| events.map_or_else(String::new, |events| format_count(events.into()));
    let rows: Vec<Vec<String>> = orders
        .iter()
        .map(|&order| {
            let taken = types.iter().map(|&of| cell(account.allocated.get(&(order, of)).map(|a| a.events)));
            let freed = cell(account.freed_by_order.get(&order).map(|amount| amount.events));
            [order.to_string()].into_iter().chain(taken).chain([freed]).collect()
        })
        .collect();
    output.add_line("allocations by requested migratetype, and frees");
    output.add_table(0, &columns, &rows);
    if account.failed_allocations > 0 {
        output.add_text(&format!("{} allocations failed", format_count(account.failed_allocations.into())));
    }
}

fn write_threads(info: &TraceInfo, threads_max: usize, output: &mut TextReport) {
    let columns = [
        TableColumn::right("thread"),
        TableColumn::left("name"),
        TableColumn::right("allocations"),
        TableColumn::right("pages"),
        TableColumn::right("frees"),
        TableColumn::right("pages"),
    ];
    // Thread names are arbitrary and may contain newlines.
    let name = |tid: u32| info.thread_name(tid).map_or("–".to_owned(), escape_invisible);
    let rows: Vec<Vec<String>> = info
        .account
        .busiest_threads(threads_max)
        .iter()
        .map(|(tid, thread)| {
            let amounts =
                [thread.allocated.events, thread.allocated.pages, thread.freed.events, thread.freed.pages];
            [tid.to_string(), name(*tid)]
                .into_iter()
                .chain(amounts.map(|number| format_count(number.into())))
                .collect()
        })
        .collect();
    output.add_table(0, &columns, &rows);
    if info.names.is_empty() && !rows.is_empty() {
        let text = match info.ending {
            RunEnd::NotClosed => "no thread names: the recorder was killed before it stored them",
            _ => "no thread names: they were not read",
        };
        output.add_dim_text(text);
    } else if rows.iter().any(|row| row.get(1).is_some_and(|name| name == "–")) {
        output.add_dim_text("–: exited before its name was read");
    }
}

fn write_memory(info: &TraceInfo, output: &mut TextReport) {
    let page_bytes = u64::from(info.head.page_bytes);
    match &info.snapshot {
        None => output.add_text("no snapshot of memory at the start"),
        Some(snapshot) => {
            let states = STATE_NAMES.iter().zip(snapshot.frames).filter(|(_, frames)| *frames > 0);
            let states: Vec<String> = states
                .map(|(name, frames)| {
                    format!("{name} {}", format_bytes(Bytes(frames.saturating_mul(page_bytes))))
                })
                .collect();
            let took = format_duration(snapshot.read_ns.1.saturating_sub(snapshot.read_ns.0));
            let runs = format_count(snapshot.runs as u128);
            let text = format!("{}; {runs} runs, read in {took}", states.join(", "));
            output.add_paragraph("memory at the start: ", &text);
        }
    }
    if let Some((freed, share)) =
        info.account.free_origins.as_ref().and_then(|freed| Some((freed, freed.untraced_share()?)))
    {
        let text = format!(
            "{} of the freed pages have no recorded allocation: {} were last known as free, {} are unknown; \
             {} were allocated in the trace, {} before it",
            format_percent(share),
            format_count(freed.allocated_untraced.into()),
            format_count(freed.unknown.into()),
            format_count(freed.allocated_in_trace.into()),
            format_count(freed.in_use_before.into()),
        );
        output.add_paragraph("holes: ", &text);
    }
    let samples = format_count(info.samples.len() as u128);
    output.add_text(&format!("buddyinfo was read {samples} times"));
}

fn write_recorder(info: &TraceInfo, output: &mut TextReport) {
    let Some(end) = &info.end else { return };
    if let Some(check) = &end.free_list_check {
        let (agreeing, orders) = check.count_agreeing_orders();
        let (off, free) = check.count_differing_pages();
        let text = format!(
            "{agreeing} of {orders} orders above 0 match buddyinfo before and after the scan; {} of {} free \
             pages differ",
            format_count(off.into()),
            format_count(free.into()),
        );
        output.add_paragraph("free lists at the start: ", &text);
    }
    if let Some([allocated, freed]) = end.vmstat_pages {
        let allocated_pages: u64 = info.account.allocated.values().map(|amount| amount.pages).sum();
        let freed_pages: u64 = info.account.freed_by_order.values().map(|amount| amount.pages).sum();
        let share = |seen: u64, of: u64| format_percent(seen as f64 / of.max(1) as f64);
        let text = format!(
            "the trace covers {} of {} allocated pages and {} of {} freed pages; the rest are the \
             recorder's own pages and bulk allocations, which have no tracepoint",
            share(allocated_pages, allocated),
            format_count(allocated.into()),
            share(freed_pages, freed),
            format_count(freed.into()),
        );
        output.add_paragraph("by vmstat: ", &text);
    }
    output.add_text(&format_recorder_cost(end, info.events()));
}
