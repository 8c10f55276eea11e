//! A trace as JSON: `docs/json.md`, `trace_info`.

use pagelab_metrics::alloc_trace::{Amount, Thread};
use pagelab_model::alloc_trace::{TraceBuffer, TraceCheck, TraceEnd, TraceKind, TraceLoss, TraceZone};
use pagelab_model::run::Ending;
use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use serde_json::Value;

use super::{Info, STATES};
use crate::cmd::trace::words::NAMES;
use crate::exit::{Exit, Failure};

/// The whole document.
pub fn of(info: &Info) -> Result<String, Failure> {
    let document: Value = put(header("trace_info"), info).into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}

/// The fields of a trace, behind those that are there.
pub fn put(object: Object, info: &Info) -> Object {
    let (ending, after_ns, why) = match &info.ending {
        Ending::Complete { after_ns } => ("complete", Some(*after_ns), None),
        Ending::Stopped { after_ns, why } => ("stopped", Some(*after_ns), Some(why.clone())),
        Ending::NotClosed => ("not_closed", None, None),
    };
    let killed = "the file was not closed: its writer was killed or is at work";
    let few = "fewer than two events";
    object
        .put("file", info.name.clone())
        .put("command_line", info.manifest.command_line.clone())
        .put("started_realtime_ns", info.manifest.started.realtime_ns)
        .put("ending", ending)
        .option("ended_after_ns", after_ns, killed)
        .option("ended_why", why, "it was not ended early")
        .put("through", info.head.through.name())
        .put("machine", machine(info))
        .put("events", info.events())
        .option("first_event_ns", info.account.span_ns.map(|span| span.0), few)
        .option("last_event_ns", info.account.span_ns.map(|span| span.1), few)
        .option("events_per_s", info.seconds().map(|seconds| info.events() as f64 / seconds), few)
        .put("kinds", kinds(info))
        .put("blocks", info.blocks as u64)
        .put("block_bytes", info.packed_bytes)
        .put("raw_bytes", info.raw_bytes)
        .put("file_bytes", info.file_bytes)
        .option("bytes_per_event", info.bytes_per_event(), "no event")
        .put("lost", info.lost())
        .put("losses", array(&info.losses, loss))
        .put("buddyinfo_samples", info.samples.len() as u64)
        .put("allocations_failed", info.account.failed)
        .put("allocations", allocations(info))
        .put("frees", frees(info))
        .put("threads", threads(info))
        .option("snapshot", snapshot(info), "it was not recorded")
        .option("freed_pages", freed(info), "the trace names more frames than are told apart")
        .option("recorder", info.end.as_ref().map(|end| Value::from(recorder(end))), killed)
}

fn machine(info: &Info) -> Object {
    let head = &info.head;
    let zone = |zone: &TraceZone| {
        Object::new()
            .put("node", zone.key.node.0)
            .put("zone", zone.key.zone.clone())
            .put("first_frame", zone.first)
            .put("spanned_pages", zone.spanned)
            .put("managed_pages", zone.managed)
            .put("watermark_pages", zone.marks.to_vec())
            .put("per_cpu_batch_high", zone.per_cpu.to_vec())
            .put("lowmem_reserve_pages", zone.reserves.clone())
    };
    Object::new()
        .put("kernel", head.kernel.clone())
        .put("page_bytes", head.page_bytes)
        .put("max_order", head.max_order)
        .put("pageblock_order", head.block_order)
        .put("cpus", head.cpus)
        .put("migratetypes", head.migratetypes.clone())
        .put("zones", array(&head.zones, zone))
}

fn kinds(info: &Info) -> Value {
    let kinds: Vec<(&str, u64)> = NAMES.into_iter().zip(info.kinds).collect();
    array(&kinds, |(name, events)| {
        let rate = info.seconds().map(|seconds| *events as f64 / seconds);
        Object::new().put("kind", *name).put("events", *events).option("per_s", rate, "fewer than two events")
    })
}

fn loss(loss: &TraceLoss) -> Object {
    let cpu = (loss.cpu != TraceLoss::CPU_UNKNOWN).then_some(loss.cpu);
    Object::new()
        .put("at_ns", loss.at_ns)
        .option("cpu", cpu, "at the end: the kernel told their sum alone")
        .put("events", loss.events)
}

fn amount(object: Object, amount: &Amount) -> Object {
    object.put("events", amount.events).put("pages", amount.pages)
}

fn allocations(info: &Info) -> Value {
    let rows: Vec<_> = info.account.taken.iter().collect();
    array(&rows, |((order, migratetype), taken)| {
        let row = Object::new().put("order", *order).put("migratetype", info.migratetype(*migratetype));
        amount(row, taken)
    })
}

fn frees(info: &Info) -> Value {
    let rows: Vec<_> = info.account.freed_by_order.iter().collect();
    array(&rows, |(order, freed)| amount(Object::new().put("order", **order), freed))
}

fn threads(info: &Info) -> Value {
    let part = |tid: u32, thread: &Thread| {
        let name = info.thread_name(tid);
        Object::new()
            .put("tid", tid)
            .option("name", name.ok(), name.err().unwrap_or_default())
            .put("allocations", thread.taken.events)
            .put("allocated_pages", thread.taken.pages)
            .put("frees", thread.freed.events)
            .put("freed_pages", thread.freed.pages)
    };
    array(&info.account.busiest(info.threads), |(tid, thread)| part(*tid, thread))
}

fn snapshot(info: &Info) -> Option<Value> {
    let snapshot = info.snapshot.as_ref()?;
    let frames = STATES.iter().zip(snapshot.frames);
    let frames = frames.fold(Object::new(), |object, (name, frames)| object.put(name, frames));
    let object = Object::new()
        .put("frames", frames)
        .put("runs", snapshot.runs as u64)
        .put("read_from_ns", snapshot.read_ns.0)
        .put("read_to_ns", snapshot.read_ns.1);
    Some(object.into())
}

fn freed(info: &Info) -> Option<Value> {
    let freed = info.account.freed.as_ref()?;
    let object = Object::new()
        .put("seen", freed.seen)
        .put("before", freed.before)
        .put("unknown", freed.unknown)
        .put("taken_unseen", freed.free)
        .option("hole_share", freed.holes(), "no free");
    Some(object.into())
}

fn recorder(end: &TraceEnd) -> Object {
    let killed = "not read from the kernel";
    let kind = |kind: &TraceKind| {
        Object::new()
            .put("tracepoint", kind.name.clone())
            .option("times", kind.times, "ftrace counts by buffer")
            .option("lost", kind.lost, "ftrace counts by buffer, and a kernel before 6.0 not at all")
            .put("delivered", kind.delivered)
            .put("own", kind.own)
    };
    let check = |check: &TraceCheck| {
        let (agreeing, orders) = check.agreeing();
        Value::from(
            Object::new()
                .put("found", check.found.clone())
                .put("before", check.before.clone())
                .put("after", check.after.clone())
                .put("orders", orders as u64)
                .put("orders_agreeing", agreeing as u64)
                .put("pages_off", check.pages_off().0),
        )
    };
    let buffer = |buffer: &TraceBuffer| {
        Object::new()
            .put("cpu", buffer.cpu)
            .put("written", buffer.written)
            .put("read", buffer.read)
            .put("lost", buffer.lost)
    };
    Object::new()
        .put("tracepoints", array(&end.kinds, kind))
        .put("buffers", array(&end.buffers, buffer))
        .put("unreadable", end.unreadable)
        .put("late", end.late)
        .put("cpu_ns", end.cpu_ns)
        .put("scan_cpu_ns", end.scan_cpu_ns)
        .put("ring_bytes", end.ring_bytes)
        .put("own_threads_left_out_by_kernel", end.is_filtered)
        .option("vmstat_allocated_pages", end.vmstat_pages.map(|pages| pages[0]), killed)
        .option("vmstat_freed_pages", end.vmstat_pages.map(|pages| pages[1]), killed)
        .option("free_lists", end.check.as_ref().map(check), "no snapshot was read")
}
