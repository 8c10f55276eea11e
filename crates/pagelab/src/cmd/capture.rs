//! `pagelab capture`: the machine's memory files in one folder or archive, readable again with `--root`.

use std::io::Write;
use std::path::PathBuf;

use pagelab_host::capture::{self, Options, Refusal, Summary};
use pagelab_host::manifest::why_name;
use pagelab_host::paths::captured::{Privacy, TABLE};
use pagelab_model::{Absence, AbsentWhy};
use pagelab_report::json::VERSION;
use pagelab_report::style;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `capture` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A new folder, or a new archive whose name ends in .tar.zst
    #[arg(value_name = "DIR|FILE.tar.zst", required_unless_present = "list")]
    target: Option<PathBuf>,
    /// Store names and command lines of processes, and the host's name
    #[arg(long)]
    with_processes: bool,
    /// Leave out kpageflags, the largest file: 2 MiB for each GiB of memory before compression
    #[arg(long)]
    without_kpageflags: bool,
    /// Take pagetypeinfo too; reading it costs up to 50 ms with interrupts off
    #[arg(long)]
    with_pagetypeinfo: bool,
    /// Leave out what the kernel's log says about failed allocations and kills for lack of memory
    #[arg(long)]
    without_kernel_log: bool,
    /// Taken by default; accepted as earlier versions had it
    #[arg(long, hide = true, conflicts_with = "without_kernel_log")]
    with_kernel_log: bool,
    /// Replace an existing capture of that name
    #[arg(long)]
    force: bool,
    /// Take the files from a saved tree instead of this machine
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,
    /// Print the table of what is taken, why, and what it says about more than memory; take nothing
    #[arg(long, conflicts_with = "target")]
    list: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Nothing is changed on the machine. Of the kernel's log only the reports of failed allocations and of \
kills for lack of memory are stored. Without --with-processes no name of a process, no command line and \
no host name is stored. The kernel's command line, its release and the paths of control groups are; \
`capture --list` prints everything that is taken.";

/// Captures, and says what and what is missing.
pub fn run(args: &Args) -> Outcome {
    let Some(target) = args.target.as_ref().filter(|_| !args.list) else { return list(args.json) };
    let root = super::root(args.root.as_deref())?;
    for note in root.notes() {
        out::complain(&format!("pagelab: {note}"));
    }
    let options = Options {
        with_processes: args.with_processes,
        without_kpageflags: args.without_kpageflags,
        with_pagetypeinfo: args.with_pagetypeinfo,
        without_kernel_log: args.without_kernel_log && !args.with_kernel_log,
        force: args.force,
    };
    let started = std::time::Instant::now();
    let summary = capture::capture(&root, target, options).map_err(|error| {
        let exit = match error.refusal {
            Refusal::Stopped(signal) => {
                out::complain(&format!("pagelab: {error}"));
                out::ended_by(128 + signal)
            }
            Refusal::Target => Exit::Usage,
            Refusal::Input => Exit::BadInput,
            Refusal::NotPermitted => Exit::NotAvailable,
            Refusal::Machine => Exit::Partial,
        };
        Failure::new(exit, error.to_string())
    })?;
    let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if args.json {
        print_json(&summary, took_ns)?;
    } else {
        say_what_is_missing(&summary);
        let mut out = out::stdout();
        let files = style::count(summary.manifest.files.len() as u128);
        let took = style::three_digits(took_ns as f64 / 1e9);
        let size = style::bytes(summary.bytes);
        writeln!(out, "{}   {size}   {files} files   {took} s", summary.path.display())?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

/// What was wanted and could not be had: not what this machine simply does not have, or was not asked for.
fn unreadable(summary: &Summary) -> impl Iterator<Item = &Absence> {
    summary.manifest.absent.iter().filter(|absence| {
        !matches!(absence.why, AbsentWhy::NotAsked | AbsentWhy::NotThere | AbsentWhy::NotSaved)
    })
}

fn say_what_is_missing(summary: &Summary) {
    let unreadable = unreadable(summary).count();
    if summary.losses.is_empty() && unreadable == 0 {
        return;
    }
    for (absence, loss) in &summary.losses {
        let way_out = absence.way_out.as_ref().map(|way| format!(" ({way})")).unwrap_or_default();
        out::complain(&format!("  not in it: {}: {}{way_out}: {loss}", absence.source, absence.reason()));
    }
    let told = summary.losses.iter().filter(|(absence, _)| unreadable_kind(absence)).count();
    let more = unreadable.saturating_sub(told);
    let total = summary.losses.len() + more;
    let rest = match more {
        0 => String::new(),
        more => format!(", {more} of them of little weight and named only in the manifest"),
    };
    let noun = if total == 1 { "entry is" } else { "entries are" };
    out::complain(&format!("pagelab: {total} {noun} missing{rest}"));
}

fn unreadable_kind(absence: &Absence) -> bool {
    !matches!(absence.why, AbsentWhy::NotAsked | AbsentWhy::NotThere | AbsentWhy::NotSaved)
}

fn print_json(summary: &Summary, took_ns: u64) -> Result<(), Failure> {
    let manifest = &summary.manifest;
    let absent = |absence: &Absence| {
        let loss = summary.losses.iter().find(|(lost, _)| lost == absence).map(|(_, loss)| loss);
        json!({
            "path": absence.source,
            "why": why_name(absence.why),
            "reason": absence.reason(),
            "way_out": absence.way_out.as_deref().unwrap_or(""),
            "loss": loss.copied().unwrap_or(""),
        })
    };
    let value = json!({
        "pagelab_json": VERSION,
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
        "unreadable": unreadable(summary).count(),
        "absent": manifest.absent.iter().map(absent).collect::<Vec<_>>(),
    });
    write_json(&value)
}

fn write_json(value: &serde_json::Value) -> Result<(), Failure> {
    let mut out = out::stdout();
    writeln!(out, "{value:#}")?;
    out.flush()?;
    Ok(())
}

fn privacy(privacy: Privacy) -> &'static str {
    match privacy {
        Privacy::Memory => "memory",
        Privacy::Hardware => "hardware",
        Privacy::Local => "local names",
        Privacy::Names => "only --with-processes",
    }
}

/// The files with rules of their own, which are not in the table.
const BESIDE_THE_TABLE: [(&str, &str, &str); 6] = [
    ("kpageflags", "memory", "flags of each page; unless --without-kpageflags"),
    ("pagetypeinfo", "memory", "free pages by migrate type; only --with-pagetypeinfo"),
    ("limits of our own control groups", "memory", "what bounds this process"),
    ("statm, status, smaps_rollup", "memory", "of the 32 largest processes, without names and addresses"),
    ("comm, cmdline of them", "only --with-processes", "whose memory it is"),
    ("/dev/kmsg", "memory", "failed allocations and kills for lack of memory; unless --without-kernel-log"),
];

fn list(as_json: bool) -> Outcome {
    let rows = TABLE.iter().map(|row| (row.pattern, privacy(row.privacy), row.why));
    let rows = rows.chain(BESIDE_THE_TABLE);
    if as_json {
        let row = |(pattern, privacy, why)| json!({"pattern": pattern, "privacy": privacy, "why": why});
        let files: Vec<_> = rows.map(row).collect();
        write_json(&json!({"pagelab_json": VERSION, "kind": "capture_list", "files": files}))?;
        return Ok(Exit::Done);
    }
    let mut out = out::stdout();
    for (pattern, privacy, why) in rows {
        writeln!(out, "{pattern}\n    {privacy}: {why}")?;
    }
    out.flush()?;
    Ok(Exit::Done)
}
