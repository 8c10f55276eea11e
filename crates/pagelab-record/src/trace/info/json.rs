//! Trace as JSON: `trace_info` in `docs/json.md`.

use pagelab_metrics::alloc_trace::{EventTotals, FreeOrigins};
use pagelab_model::alloc_trace::{
    BufferCounts, FreeListCheck, LostEvents, TraceSummary, TraceZone, TracepointCounts,
};
use pagelab_model::run::RunEnd;
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use serde_json::Value;

use pagelab_command::exit::Failure;
use pagelab_command::output;

use super::{STATE_NAMES, TraceInfo};
use crate::trace::session::KIND_NAMES;

/// Renders the complete document.
pub fn to_document(info: &TraceInfo) -> Result<String, Failure> {
    output::json_text(&put_info(document_header("trace_info"), info))
}

/// Appends the fields of a trace to an object.
pub fn put_info(object: JsonObject, info: &TraceInfo) -> JsonObject {
    let (ending, after_ns, why) = match &info.ending {
        RunEnd::Complete { after_ns } => ("complete", Some(*after_ns), None),
        RunEnd::Stopped { after_ns, reason: why } => ("stopped", Some(*after_ns), Some(why.clone())),
        RunEnd::NotClosed => ("not_closed", None, None),
    };
    let killed = "the file was not closed: its writer was killed or is running";
    let too_few_events = "fewer than two events";
    let freed = info.account.free_origins.as_ref().map(freed_json);
    let rate = info.span_seconds().map(|seconds| info.events() as f64 / seconds);
    object
        .field("file", info.name.clone())
        .field("command_line", info.manifest.command_line.clone())
        .field("started_realtime_ns", info.manifest.started.realtime_ns)
        .field("ending", ending)
        .optional("ended_after_ns", after_ns, killed)
        .optional("end_reason", why, "the recording was not stopped early")
        .field("backend", info.head.backend.name())
        .field("machine", machine_json(info))
        .field("events", info.events())
        .optional("first_event_ns", info.account.span_ns.map(|span| span.0), too_few_events)
        .optional("last_event_ns", info.account.span_ns.map(|span| span.1), too_few_events)
        .optional("events_per_s", rate, too_few_events)
        .field("kinds", kinds_json(info))
        .field("blocks", info.block_count as u64)
        .field("block_bytes", info.packed_bytes)
        .field("raw_bytes", info.raw_bytes)
        .field("file_bytes", info.file_bytes)
        .optional("bytes_per_event", info.bytes_per_event(), "no events")
        .field("lost", info.lost_events())
        .field("losses", to_array(&info.losses, loss_json))
        .field("buddyinfo_samples", info.samples.len() as u64)
        .field("allocations_failed", info.account.failed_allocations)
        .field("allocations", allocations_json(info))
        .field("frees", frees_json(info))
        .field("threads", threads_json(info))
        .optional("snapshot", snapshot_json(info), "not recorded")
        .optional("freed_pages", freed, "the trace contains more frames than can be tracked")
        .optional("recorder", info.end.as_ref().map(recorder_json), killed)
}

fn machine_json(info: &TraceInfo) -> JsonObject {
    let head = &info.head;
    let zone = |zone: &TraceZone| {
        JsonObject::for_zone(&zone.key)
            .field("first_frame", zone.first)
            .field("spanned_pages", zone.spanned)
            .field("managed_pages", zone.managed)
            .field("watermark_pages", zone.watermarks.to_vec())
            .field("per_cpu_batch_high", zone.pcp_batch_high.to_vec())
            .field("lowmem_reserve_pages", zone.lowmem_reserve.clone())
    };
    JsonObject::new()
        .field("kernel", head.kernel.clone())
        .field("page_bytes", head.page_bytes)
        .field("max_order", head.max_order)
        .field("pageblock_order", head.pageblock_order)
        .field("cpus", head.cpus)
        .field("migratetypes", head.migratetypes.clone())
        .field("zones", to_array(&head.zones, zone))
}

fn kinds_json(info: &TraceInfo) -> Value {
    to_array(KIND_NAMES.into_iter().zip(info.kinds), |((name, _), events)| {
        let rate = info.span_seconds().map(|seconds| events as f64 / seconds);
        let object = JsonObject::new().field("kind", name).field("events", events);
        object.optional("per_s", rate, "fewer than two events")
    })
}

fn loss_json(loss: &LostEvents) -> JsonObject {
    let cpu = (loss.cpu != LostEvents::CPU_UNKNOWN).then_some(loss.cpu);
    JsonObject::new()
        .field("at_ns", loss.at_ns)
        .optional("cpu", cpu, "lost at the end: the kernel reports only the total")
        .field("events", loss.events)
}

fn put_amount(object: JsonObject, amount: &EventTotals) -> JsonObject {
    object.field("events", amount.events).field("pages", amount.pages)
}

fn allocations_json(info: &TraceInfo) -> Value {
    to_array(&info.account.allocated, |((order, migratetype), taken)| {
        let row =
            JsonObject::new().field("order", *order).field("migratetype", info.migratetype(*migratetype));
        put_amount(row, taken)
    })
}

fn frees_json(info: &TraceInfo) -> Value {
    to_array(&info.account.freed_by_order, |(order, freed)| {
        put_amount(JsonObject::new().field("order", *order), freed)
    })
}

fn threads_json(info: &TraceInfo) -> Value {
    to_array(info.account.busiest_threads(info.threads_shown), |(tid, thread)| {
        let name = info.thread_name(tid);
        JsonObject::new()
            .field("tid", tid)
            .optional("name", name.ok(), name.err().unwrap_or_default())
            .field("allocations", thread.allocated.events)
            .field("allocated_pages", thread.allocated.pages)
            .field("frees", thread.freed.events)
            .field("freed_pages", thread.freed.pages)
    })
}

fn snapshot_json(info: &TraceInfo) -> Option<JsonObject> {
    let snapshot = info.snapshot.as_ref()?;
    let frames = STATE_NAMES.iter().zip(snapshot.frames);
    let frames = frames.fold(JsonObject::new(), |object, (name, frames)| object.field(name, frames));
    let object = JsonObject::new().field("frames", frames).field("runs", snapshot.runs as u64);
    Some(object.field("read_from_ns", snapshot.read_ns.0).field("read_to_ns", snapshot.read_ns.1))
}

fn freed_json(freed: &FreeOrigins) -> JsonObject {
    JsonObject::new()
        .field("seen", freed.allocated_in_trace)
        .field("before", freed.in_use_before)
        .field("unknown", freed.unknown)
        .field("allocated_untraced", freed.allocated_untraced)
        .optional("hole_share", freed.untraced_share(), "no frees")
}

fn recorder_json(end: &TraceSummary) -> JsonObject {
    let killed = "not read from the kernel";
    let kind = |kind: &TracepointCounts| {
        JsonObject::new()
            .field("tracepoint", kind.name.clone())
            .optional("occurred", kind.occurred, "ftrace counts by buffer, not by tracepoint")
            .optional("lost", kind.lost, "ftrace counts by buffer; with perf, the count needs Linux 6.0")
            .field("delivered", kind.delivered)
            .field("by_recorder", kind.by_recorder)
    };
    let check = |check: &FreeListCheck| {
        let (agreeing, orders) = check.count_agreeing_orders();
        JsonObject::new()
            .field("rebuilt", check.rebuilt.clone())
            .field("before", check.before.clone())
            .field("after", check.after.clone())
            .field("orders", orders as u64)
            .field("orders_agreeing", agreeing as u64)
            .field("pages_off", check.count_differing_pages().0)
    };
    let buffer = |buffer: &BufferCounts| {
        JsonObject::new()
            .field("cpu", buffer.cpu)
            .field("written", buffer.written)
            .field("read", buffer.read)
            .field("lost", buffer.lost)
    };
    JsonObject::new()
        .field("tracepoints", to_array(&end.tracepoints, kind))
        .field("buffers", to_array(&end.buffers, buffer))
        .field("unreadable", end.unreadable)
        .field("out_of_order", end.out_of_order)
        .field("cpu_ns", end.cpu_ns)
        .field("scan_cpu_ns", end.scan_cpu_ns)
        .field("ring_bytes", end.ring_bytes)
        .field("is_filtered_by_kernel", end.is_filtered)
        .optional("vmstat_allocated_pages", end.vmstat_pages.map(|pages| pages[0]), killed)
        .optional("vmstat_freed_pages", end.vmstat_pages.map(|pages| pages[1]), killed)
        .optional("free_lists", end.free_list_check.as_ref().map(check), "no snapshot was read")
}
