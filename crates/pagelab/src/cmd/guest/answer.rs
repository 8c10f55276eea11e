//! How a guest went, as JSON.

use std::io::Write;
use std::time::Duration;

use pagelab_guest::boot::Plan;
use pagelab_guest::job::Step;
use pagelab_guest::message::End;
use pagelab_guest::outcome::{Outcome as Guest, StepEnd};
use pagelab_guest::taken::Taken;
use pagelab_report::json::VERSION;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::out;

/// Prints the document (docs/json.md).
pub fn print_json(plan: &Plan, guest: &Guest) -> Result<(), Failure> {
    print(&document(plan, guest))
}

/// Prints the plan (docs/json.md), whose kernel is perhaps still to be fetched: what, and where to.
pub fn print_plan(plan: &Plan, fetches: Option<&str>) -> Result<(), Failure> {
    let step = |step: &Step| match step {
        Step::Pagelab(words) => words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        Step::Write { path, text } => vec![path.clone(), text.clone()],
    };
    let mut document = json!({
        "pagelab_json": VERSION,
        "kind": "guest_plan",
        "memory_bytes": plan.shape.memory.0,
        "cpus": plan.shape.cpus,
        "nodes": plan.shape.nodes,
        "emulator": "tcg",
        "command": plan.steps.first().map(step),
        "qemu": plan.command_line(),
    });
    let (kernel, modules) = match fetches {
        Some(_) => (None, None),
        None => {
            let modules = plan.module_names().map_err(super::failure)?;
            (Some(super::setup::to_json(&plan.kernel)), Some(modules))
        }
    };
    put(&mut document, "kernel", kernel, "it is still to be fetched");
    put(&mut document, "modules", modules, "the kernel is still to be fetched");
    put(&mut document, "fetches", fetches, "the kernel is there");
    print(&document)
}

fn print(document: &Value) -> Result<(), Failure> {
    let mut out = out::stdout();
    writeln!(out, "{document:#}")?;
    out.flush()?;
    Ok(())
}

fn document(plan: &Plan, guest: &Guest) -> Value {
    let about = guest.about();
    let (lost, steps) = match guest {
        Guest::Finished(finished) => (None, &finished.steps),
        Guest::Lost(lost) => (Some(&lost.why), &lost.steps),
    };
    let (files, not_taken) = match guest {
        Guest::Finished(finished) => (&finished.files[..], &finished.not_taken[..]),
        Guest::Lost(_) => (&[][..], &[][..]),
    };
    let mut document = json!({
        "pagelab_json": VERSION,
        "kind": "guest",
        "outcome": if lost.is_some() { "lost" } else { "finished" },
        "kernel": super::setup::to_json(&plan.kernel),
        "memory_bytes": plan.shape.memory.0,
        "cpus": plan.shape.cpus,
        "nodes": plan.shape.nodes,
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
        "files": files.iter().map(file).collect::<Vec<_>>(),
        "not_taken": not_taken,
        "notes": about.notes,
        "wall_ns": ns(about.wall),
        "host_cpu_ns": ns(about.host_cpu),
        "console": String::from_utf8_lossy(&about.console),
        "qemu_said": about.qemu_said,
    });
    let (not_lost, never_came) = ("it was not lost", "it never came");
    put(&mut document, "lost_word", lost.map(|why| why.word()), not_lost);
    put(&mut document, "lost_why", lost.map(ToString::to_string), not_lost);
    put(&mut document, "first_line_wall_ns", about.first_line.map(|first| ns(first.wall)), never_came);
    let cpu = about.first_line.map(|first| ns(first.host_cpu));
    put(&mut document, "first_line_host_cpu_ns", cpu, never_came);
    let uptime = about.hello.as_ref().map(|hello| hello.uptime_ns);
    put(&mut document, "first_line_uptime_ns", uptime, never_came);
    document
}

fn file(file: &Taken) -> Value {
    let mut value = json!({ "path": file.path.to_string_lossy() });
    put(&mut value, "bytes", file.bytes, "a folder, or a link");
    value
}

fn step(step: &StepEnd) -> Value {
    let (code, signal, why) = match &step.end {
        End::Code(code) => (Some(code), None, None),
        End::Signal(signal) => (None, Some(signal), None),
        End::NotRun(why) => (None, None, Some(why)),
    };
    let other = if why.is_some() { "it was not run" } else { "it ended otherwise" };
    let mut value = json!({
        "stdout": String::from_utf8_lossy(&step.stdout),
        "stderr": String::from_utf8_lossy(&step.stderr),
        "is_cut": step.is_cut,
    });
    put(&mut value, "code", code, other);
    put(&mut value, "signal", signal, other);
    put(&mut value, "not_run", why, "it was run");
    value
}

/// A field that may be absent: then its reason stands beside it.
pub fn put(object: &mut Value, name: &str, value: Option<impl serde::Serialize>, reason: &str) {
    let is_absent = value.is_none();
    object[name] = json!(value);
    if is_absent {
        object[format!("{name}_absent_reason")] = json!(reason);
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
