//! `pagelab checkup`: shows the state of physical memory, its causes, and what to do.

use std::path::PathBuf;

use pagelab_command::arguments::parse_page_size;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::findings::Finding;
use pagelab_model::run::SampleStream;
use pagelab_model::{AbsenceReason, Bytes, PageSize, Snapshot};
use pagelab_probe::checkup_session::CheckupSession;
use pagelab_probe::journalled_probe::StreamRecorder;
use pagelab_probe::snapshot_recording::Recording;
use pagelab_report::checkup::{View, render, render_brief};
use pagelab_report::style::format_bytes;
use pagelab_report::{html, json};
use pagelab_sys::cpuid;

use crate::atomic_file::{NewRunFile, OutputFile, check_output};
use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output_args::OutputArgs;
use crate::{manifest, output, value_parsers};

const OUTPUT_HELP: &str = "Also write the snapshot and all samples to this run file, for `pagelab report`";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, mut_arg("output", |arg| arg.help(OUTPUT_HELP)))]
pub struct Args {
    /// Print all details
    #[arg(short, long)]
    verbose: bool,
    /// Print only findings that need action, for cron; exit code 0: none, 1: findings
    #[arg(long, conflicts_with_all = ["verbose", "json"])]
    brief: bool,
    /// Print the snapshot and the findings as JSON (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Also write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Read a tree saved by `pagelab capture` (directory, .tar, .tar.zst) instead of this machine
    #[arg(long, value_name = "DIR|TAR", conflicts_with = "probe")]
    root: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Allocate huge pages, measure their benefit, and release them
    #[arg(long)]
    probe: bool,
    /// Add the fragmentation index as defined by Gorman and Whitcroft 2006; implies -v
    #[arg(long)]
    paper: bool,
    /// Add free blocks by migratetype; implies -v (pagetypeinfo: up to 50 ms with interrupts off)
    #[arg(long)]
    migratetypes: bool,
    /// Add THP usage and eligibility of the largest processes, from smaps; implies -v
    #[arg(long)]
    deep: bool,
    /// TLB geometry to assume, for example l1d=64x4:4K,l2=2048x16:4K+2M
    #[arg(long, value_name = "GEOMETRY")]
    tlb: Option<String>,
    /// Base page size, if the saved tree does not state it, for example 64K
    #[arg(long, value_name = "SIZE", requires = "root", value_parser = parse_page_size)]
    page_size: Option<PageSize>,
    /// Seed of the random sample of pageblocks and of the probe's order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parsers::parse_seed)]
    seed: u64,
}

const AFTER_HELP: &str = "\
Read-only, except for --probe and the files written by --output and --html. Takes at most 10 seconds.

Examples:
  pagelab checkup                          this machine, on one screen
  pagelab checkup --probe -o a.pagelab     measure, and write a run file
  pagelab report a.pagelab                 show the run file on any machine
  pagelab checkup --root memory.tar.zst    a captured machine";

/// Reads the machine, computes the findings, and prints.
pub fn run(args: &Args) -> Outcome {
    let (session, html) = &resolve_plan(args)?;
    let recording = args.output.run_file().map(|file| session.begin_recording(&file)).transpose()?;
    let kept = StreamRecorder::new(session.started, recording.as_ref(), html.is_some());
    let text = if args.probe {
        "reading memory statistics and measuring access times"
    } else {
        "reading memory statistics"
    };
    let reading = CommandStatus::start(text, StatusEnd::Unknown);
    let snapshot = session.read_snapshot(&kept);
    drop(reading);
    let streams = kept.into_streams();
    if has_no_data(&snapshot) {
        recording.into_iter().for_each(Recording::abandon);
        let (kind, hint) = match session.root.is_live() {
            true => (FailureKind::NotAvailable, "mount procfs"),
            false => (
                FailureKind::BadInput,
                "create a tree with `pagelab capture DIR`; `pagelab frag --from` reads a single file",
            ),
        };
        let action = format_args!("read {}", session.root.name());
        return Err(Failure::cannot(kind, action, "none of the kernel's memory files is readable").hint(hint));
    }
    // Files are written before anything is printed: the reader of the output may close it.
    let recorded = recording.map(|recording| recording.finish(&snapshot));
    let checkup = Checkup::from_snapshot(&snapshot);
    let html =
        html.as_ref().map(|target| (target, write_html(session, (&snapshot, &checkup), streams, target)));
    print(args, &snapshot, &checkup)?;
    if let Some((target, written)) = html {
        output::print_note(&format!("→ {}, {}", target.name(), format_bytes(written?)));
    }
    if args.brief {
        warn_about_unread(&snapshot);
    }
    if let Some(path) = recorded.transpose()? {
        output::print_note(&format!("→ pagelab report {}", path.display()));
    }
    let is_bad = snapshot.problems.iter().any(|problem| problem.is_bad_input);
    if is_bad && args.brief {
        snapshot.problems.iter().for_each(|problem| output::warn(&format!("warning: {}", problem.message)));
    }
    let is_to_act_on = checkup.findings.iter().any(Finding::needs_action);
    Ok(match (is_bad, args.brief && is_to_act_on) {
        (true, _) => Exit::BadInput,
        (false, true) => Exit::NegativeAnswer,
        (false, false) => Exit::Success,
    })
}

fn print(args: &Args, snapshot: &Snapshot, checkup: &Checkup) -> Result<(), Failure> {
    let style = output::stdout_style();
    if args.json {
        output::print_json(&json::checkup::to_document(snapshot, checkup))
    } else if args.brief {
        output::print(&render_brief(snapshot, checkup, style))
    } else {
        // Only the full report contains what these options add.
        let verbose = args.verbose || args.paper || args.migratetypes || args.deep;
        let view = View { verbose, with_paper_index: args.paper, is_saved: false };
        output::print(&render(snapshot, checkup, view, style))
    }
}

/// Writes the HTML page and returns its size.
fn write_html(
    session: &CheckupSession,
    (snapshot, checkup): (&Snapshot, &Checkup),
    streams: Vec<SampleStream>,
    target: &OutputFile,
) -> Result<Bytes, Failure> {
    let manifest = manifest::build_for_process("checkup", Some(session.seed), session.started, snapshot);
    let run = manifest::run_from_snapshot(session.root.name(), manifest, snapshot.clone(), streams);
    let page = html::render_judged_page(&run, checkup)
        .map_err(|error| Failure::not_serialized("the page", error))?;
    target.write(page.as_bytes())?;
    Ok(Bytes(page.len() as u64))
}

/// Warns about files that this user cannot read, so that the lack of findings is not misread.
fn warn_about_unread(snapshot: &Snapshot) {
    let mut hidden = Vec::new();
    if let Err(absence) = &snapshot.census
        && absence.why == AbsenceReason::NotPermitted
    {
        hidden.push("pageblocks".to_owned());
    }
    if let Ok(processes) = &snapshot.processes
        && let Some((count, _)) = &processes.unreadable
    {
        hidden.push(format!("{count} processes"));
    }
    if !hidden.is_empty() && snapshot.taken.euid.is_some_and(|euid| euid != 0) {
        output::warn(&format!("warning: not visible without root: {}", hidden.join(", ")));
    }
    let unjudged = snapshot.list_unread_files();
    if !unjudged.is_empty() {
        output::warn(&format!("warning: not judged, because it cannot be read: {}", unjudged.join(", ")));
    }
}

/// Resolves the arguments before the machine is read: the session, and the page to write.
fn resolve_plan(args: &Args) -> Result<(CheckupSession, Option<OutputFile>), Failure> {
    let tlb = args.tlb.as_deref().map(pagelab_tlb::syntax::parse).transpose().map_err(|error| {
        super::usage_error(&format!("--tlb {}: {error}", args.tlb.as_deref().unwrap_or_default()))
    })?;
    if args.html.is_some() && args.output.path() == args.html.as_deref() {
        return Err(super::usage_error("--output and --html cannot name the same file"));
    }
    args.output.run_file().as_ref().map_or(Ok(()), NewRunFile::check)?;
    let html = args.html.as_deref().map(|path| check_output(path, args.output.replaces())).transpose()?;
    let root = super::open_root(args.root.as_deref())?;
    let leaves = if root.is_live() { cpuid::read_leaves() } else { Vec::new() };
    let session = CheckupSession {
        root,
        tlb,
        page_size: args.page_size,
        leaves,
        started: manifest::current_moment(),
        seed: args.seed,
        with_pagetypeinfo: args.migratetypes,
        with_smaps: args.deep,
        with_probe: args.probe,
    };
    Ok((session, html))
}

/// Whether all files that a report requires are missing.
fn has_no_data(snapshot: &Snapshot) -> bool {
    snapshot.buddyinfo.is_err()
        && snapshot.meminfo.is_err()
        && snapshot.vmstat.is_err()
        && snapshot.zoneinfo.is_err()
        && snapshot.problems.is_empty()
}
