//! `pagelab capture`: saves the machine's memory files to a directory or archive for `--root`.

use std::path::PathBuf;

use pagelab_host::capture::{self, CaptureOptions, CaptureSummary};
use pagelab_host::manifest::why_name;
use pagelab_host::paths::capture_table::{Privacy, TABLE};
use pagelab_model::{Absence, AbsenceReason};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style;
use pagelab_report::style::format_plural;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::value_parsers::bounded_ns;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A new directory, or a new archive whose name ends in .tar.zst
    #[arg(value_name = "DIR|FILE.tar.zst", required_unless_present_any = ["list", "output"])]
    target: Option<PathBuf>,
    /// Same as the argument
    #[arg(short, long, value_name = "DIR|FILE.tar.zst", conflicts_with = "target")]
    output: Option<PathBuf>,
    /// Include names and command lines of processes, and the host name
    #[arg(long)]
    with_processes: bool,
    /// Omit kpageflags, the largest file: 2 MiB per GiB of memory before compression
    #[arg(long)]
    without_kpageflags: bool,
    /// Include pagetypeinfo; reading it takes up to 50 ms with interrupts off
    #[arg(long)]
    with_pagetypeinfo: bool,
    /// Omit allocation failures and OOM kills in the kernel log
    #[arg(long)]
    without_kernel_log: bool,
    /// No effect: included by default
    #[arg(long, hide = true, conflicts_with = "without_kernel_log")]
    with_kernel_log: bool,
    /// Replace an existing capture of that name
    #[arg(long)]
    force: bool,
    /// Copy the files from a saved tree instead of this machine
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,
    /// List the files, the reason for each, and what else they reveal; write nothing
    #[arg(long, conflicts_with_all = ["target", "output"])]
    list: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab capture memory.tar.zst            save the state of memory
  pagelab checkup --root memory.tar.zst     show it on any machine
  pagelab can 4000 --root memory.tar.zst    predict from it

Changes nothing on the machine. Of the kernel log, only allocation failures and OOM kills are stored. \
 Process names, command lines and the host name are stored only with --with-processes. The kernel command \
 line, the release and cgroup paths are always stored; `capture --list` prints all files.";

/// Captures the files, and prints a summary and the missing files.
pub fn run(args: &Args) -> Outcome {
    let target = args.target.as_ref().or(args.output.as_ref()).filter(|_| !args.list);
    let Some(target) = target else { return list_files(args.json) };
    let root = super::open_root(args.root.as_deref())?;
    for note in root.notes() {
        output::warn(&format!("note: {note}"));
    }
    let options = CaptureOptions {
        with_processes: args.with_processes,
        without_kpageflags: args.without_kpageflags,
        with_pagetypeinfo: args.with_pagetypeinfo,
        without_kernel_log: args.without_kernel_log && !args.with_kernel_log,
        force: args.force,
    };
    let started = std::time::Instant::now();
    let summary = capture::capture(&root, target, options).map_err(output::exit_if_stopped)?;
    let took_ns = bounded_ns(started.elapsed());
    if args.json {
        print_json(&summary, took_ns)?;
    } else {
        warn_about_missing(&summary);
        let files = style::format_count(summary.manifest.files.len() as u128);
        let took = style::format_three_digits(took_ns as f64 / 1e9);
        let size = style::format_bytes(summary.bytes);
        output::print(&format!("{}   {size}   {files} files   {took} s\n", summary.path.display()))?;
    }
    Ok(Exit::Success)
}

/// Returns the requested files that cannot be read, without those that this machine does not have.
fn unreadable_files(summary: &CaptureSummary) -> impl Iterator<Item = &Absence> {
    summary.manifest.absences.iter().filter(|absence| is_unreadable(absence))
}

fn warn_about_missing(summary: &CaptureSummary) {
    let unreadable = unreadable_files(summary).count();
    if summary.losses.is_empty() && unreadable == 0 {
        return;
    }
    for (absence, loss) in &summary.losses {
        let hint = absence.hint.as_ref().map(|way| format!(" ({way})")).unwrap_or_default();
        output::warn(&format!("  missing: {}: {}{hint}: {loss}", absence.source, absence.reason()));
    }
    let told = summary.losses.iter().filter(|(absence, _)| is_unreadable(absence)).count();
    let more = unreadable.saturating_sub(told);
    let total = summary.losses.len() + more;
    let rest = match more {
        0 => String::new(),
        more => format!(", {more} of them minor and listed only in the manifest"),
    };
    let entries = format_plural(total, "entry is|entries are");
    output::warn(&format!("warning: {entries} missing{rest}"));
}

fn is_unreadable(absence: &Absence) -> bool {
    !matches!(absence.why, AbsenceReason::NotRequested | AbsenceReason::NotThere | AbsenceReason::NotSaved)
}

fn print_json(summary: &CaptureSummary, took_ns: u64) -> Result<(), Failure> {
    let manifest = &summary.manifest;
    let absent = |absence: &Absence| {
        let loss = summary.losses.iter().find(|(lost, _)| lost == absence).map(|(_, loss)| loss);
        json!({
            "path": absence.source,
            "kind": why_name(absence.why),
            "reason": absence.reason(),
            "hint": absence.hint.as_deref().unwrap_or(""),
            "loss": loss.copied().unwrap_or(""),
        })
    };
    let value = json!({
        "pagelab_json": CONTRACT_VERSION,
        "kind": "capture",
        "path": summary.path.to_string_lossy(),
        "bytes": summary.bytes.0,
        "files": manifest.files.len(),
        "duration_ns": took_ns,
        "page_size_bytes": manifest.page_size.map(|size| size.bytes()),
        "kernel_release": manifest.kernel_release,
        "with_processes": manifest.with_processes,
        "redactions": manifest.redactions,
        "notes": manifest.notes,
        "unreadable": unreadable_files(summary).count(),
        "absent": manifest.absences.iter().map(absent).collect::<Vec<_>>(),
    });
    output::print_json(&value)
}

fn privacy_name(privacy: Privacy) -> &'static str {
    match privacy {
        Privacy::Memory => "memory",
        Privacy::Hardware => "hardware",
        Privacy::Local => "local names",
        Privacy::Names => "only --with-processes",
    }
}

/// Files with separate rules, which are not in the table.
const FILES_WITH_OWN_RULES: [(&str, &str, &str); 6] = [
    ("kpageflags", "memory", "page flags of every frame; omitted with --without-kpageflags"),
    ("pagetypeinfo", "memory", "free pages by migratetype; only with --with-pagetypeinfo"),
    ("limits of its own cgroups", "memory", "memory limits of this process"),
    ("statm, status, smaps_rollup", "memory", "the 32 largest processes, without names and addresses"),
    ("comm, cmdline of these processes", "only --with-processes", "which program owns the memory"),
    ("/dev/kmsg", "memory", "allocation failures and OOM kills; omitted with --without-kernel-log"),
];

fn list_files(as_json: bool) -> Outcome {
    let rows = TABLE.iter().map(|row| (row.pattern, privacy_name(row.privacy), row.reason));
    let rows = rows.chain(FILES_WITH_OWN_RULES);
    if as_json {
        let row =
            |(pattern, privacy, reason)| json!({"pattern": pattern, "privacy": privacy, "reason": reason});
        let files: Vec<_> = rows.map(row).collect();
        output::print_json(
            &json!({"pagelab_json": CONTRACT_VERSION, "kind": "capture_list", "files": files}),
        )?;
        return Ok(Exit::Success);
    }
    let row = |(pattern, privacy, why)| format!("{pattern}\n    {privacy}: {why}\n");
    output::print(&rows.map(row).collect::<String>())?;
    Ok(Exit::Success)
}
