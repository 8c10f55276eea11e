//! Outcome and plan of a guest as JSON.

use std::time::Duration;

use pagelab_model::Failure;
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};

use crate::accelerator::AcceleratorChoice;
use crate::boot::GuestPlan;
use crate::file_receiver::ReceivedFile;
use crate::job::JobStep;
use crate::kernel::GuestKernel;
use crate::kernel_module::BuiltModule;
use crate::message::StepExit;
use crate::outcome::{GuestOutcome as Guest, StepEnd};
use crate::source_tree::SourceTree;
use crate::tool_disk::ToolDisk;

/// Why there is no size of a DIMM.
const NO_DIMMS: &str = "--dimms was not given";
/// Why instructions were not counted.
const NO_ICOUNT: &str = "--icount was not given";

/// Converts the plan to JSON (docs/json.md). `fetches`: kernel to download and its destination, if it is not
/// cached. The accelerator is the requested one: nothing was probed.
pub fn plan_to_json(
    plan: &GuestPlan,
    accelerator: AcceleratorChoice,
    fetches: Option<&str>,
) -> Result<JsonObject, Failure> {
    let step = |step: &JobStep| match step {
        JobStep::KillBackground | JobStep::Shell(_) => Vec::new(),
        JobStep::Script(text) => vec![text.to_string_lossy().into_owned()],
        JobStep::Pagelab(words) | JobStep::StartBackground(words) => {
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
        }
        JobStep::Write { path, text } => vec![path.clone(), text.clone()],
        JobStep::Read { path } => vec![path.clone()],
        JobStep::LoadModule { parameters } => vec![parameters.clone()],
        JobStep::UnloadModule { name } => vec![name.clone()],
    };
    let (kernel, modules) = match fetches {
        Some(_) => (None, None),
        None => (Some(kernel_to_json(&plan.kernel)), Some(plan.list_module_names()?)),
    };
    let document = document_header("guest_plan")
        .field("memory_bytes", plan.config.memory.0)
        .field("cpus", plan.config.cpus)
        .field("nodes", plan.config.nodes)
        .field("dimms", plan.config.dimms.map_or(0, |dimms| dimms.count))
        .optional("dimm_bytes", plan.config.dimms.map(|dimms| dimms.size.0), NO_DIMMS)
        .optional("icount_shift", plan.config.icount, NO_ICOUNT)
        .field("accelerator", accelerator.name())
        .optional(
            "emulator",
            (accelerator == AcceleratorChoice::Tcg).then_some("tcg"),
            "--accel kvm or auto was given",
        )
        .field("command", plan.steps.first().map(step))
        .field("qemu", plan.command_line())
        .optional("kernel", kernel, "it is not downloaded yet")
        .optional("modules", modules, "the kernel is not downloaded yet")
        .optional("fetches", fetches, "the kernel is in the cache");
    Ok(document)
}

/// Converts the outcome to JSON (docs/json.md). `kvm_failure`: why TCG had to replace KVM.
pub fn outcome_to_json(plan: &GuestPlan, kvm_failure: Option<&str>, guest: &Guest) -> JsonObject {
    let about = guest.report();
    let (lost, steps, files, not_taken) = match guest {
        Guest::Completed(job) => (None, &job.steps, &job.files[..], &job.missing_files[..]),
        Guest::Lost(lost) => (Some(&lost.reason), &lost.steps, &[][..], &[][..]),
    };
    let (not_lost, never_came) = ("it was not lost", "it was never printed");
    let first = about.first_message;
    document_header("guest")
        .field("outcome", if lost.is_some() { "lost" } else { "finished" })
        .field("kernel", kernel_to_json(&plan.kernel))
        .field("memory_bytes", plan.config.memory.0)
        .field("cpus", plan.config.cpus)
        .field("nodes", plan.config.nodes)
        .field("dimms", plan.config.dimms.map_or(0, |dimms| dimms.count))
        .optional("dimm_bytes", plan.config.dimms.map(|dimms| dimms.size.0), NO_DIMMS)
        .optional("icount_shift", plan.config.icount, NO_ICOUNT)
        .field("accelerator", plan.accelerator.name())
        .optional("kvm_failure", kvm_failure, "KVM was used, or was not requested")
        .field("steps", to_array(steps, step_to_json))
        .field("files", to_array(files, received_file_to_json))
        .field("not_copied", not_taken.to_vec())
        .field("notes", about.notes.clone())
        .field("wall_ns", duration_ns(about.wall_time))
        .field("host_cpu_ns", duration_ns(about.host_cpu))
        .field("console", String::from_utf8_lossy(&about.console))
        .field("qemu_stderr", about.qemu_stderr.as_str())
        .optional("lost_word", lost.map(|why| why.slug()), not_lost)
        .optional("lost_reason", lost.map(ToString::to_string), not_lost)
        .optional("first_line_wall_ns", first.map(|first| duration_ns(first.wall_time)), never_came)
        .optional("first_line_host_cpu_ns", first.map(|first| duration_ns(first.host_cpu)), never_came)
        .optional("first_line_uptime_ns", about.hello.as_ref().map(|hello| hello.uptime_ns), never_came)
}

fn received_file_to_json(file: &ReceivedFile) -> JsonObject {
    let object = JsonObject::new().field("path", file.path.to_string_lossy());
    object.optional("bytes", file.bytes, "a directory or a link")
}

fn step_to_json(step: &StepEnd) -> JsonObject {
    let (code, signal, why) = match &step.end {
        StepExit::Code(code) => (Some(*code), None, None),
        StepExit::Signal(signal) => (None, Some(*signal), None),
        StepExit::NotRun(why) => (None, None, Some(why.as_str())),
    };
    let other = if why.is_some() { "it was not run" } else { "it ended in another way" };
    JsonObject::new()
        .field("stdout", String::from_utf8_lossy(&step.stdout))
        .field("stderr", String::from_utf8_lossy(&step.stderr))
        .field("is_cut", step.is_truncated)
        .optional("code", code, other)
        .optional("signal", signal, other)
        .optional("not_run", why, "it was run")
}

fn duration_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a built module to JSON.
pub fn module_to_json(module: &BuiltModule) -> JsonObject {
    JsonObject::new()
        .field("release", module.record.release.as_str())
        .field("vermagic", module.record.vermagic.as_str())
        .field("path", module.path.to_string_lossy())
}

/// Converts a tool disk to JSON.
pub fn tools_to_json(disk: &ToolDisk) -> JsonObject {
    let packages = disk.record.packages.iter().map(String::as_str).collect::<Vec<_>>();
    JsonObject::new().field("path", disk.path.to_string_lossy()).field("packages", packages)
}

/// Converts a source tree to JSON.
pub fn tree_to_json(tree: &SourceTree) -> JsonObject {
    let record = &tree.record;
    let objects = record.objects.iter().map(String::as_str).collect::<Vec<_>>();
    JsonObject::new()
        .field("path", tree.path.to_string_lossy())
        .field("package", record.package.as_str())
        .field("version", record.version.as_str())
        .field("compiler", record.compiler.as_str())
        .field("objects", objects)
        .field("files", record.files as u64)
        .field("bytes", record.archive_bytes)
}

/// Converts a kernel to JSON.
pub fn kernel_to_json(kernel: &GuestKernel) -> JsonObject {
    let (package, reason) = (kernel.package.as_ref(), "not from a downloaded package");
    JsonObject::new()
        .field("release", kernel.release.as_str())
        .field("image", kernel.image.to_string_lossy())
        .optional("package", package.map(|package| package.name.as_str()), reason)
        .optional("version", package.map(|package| package.version.as_str()), reason)
        .optional("sha256", package.map(|package| package.sha256.as_str()), reason)
}
