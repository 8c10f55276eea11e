//! `pagelab checkup`: the state of this machine's physical memory, why it is so, and what to do.

mod hypervisor;
pub mod probing;
mod recording;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagelab_contig::look::census_options;
use pagelab_host::census::census;
use pagelab_host::collect::{CollectOptions, collect, identify};
use pagelab_host::machine::Known;
use pagelab_host::paths::PAGETYPEINFO;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::findings::Finding;
use pagelab_model::machine::{CpuidLeaf, Tlb};
use pagelab_model::run::{Moment, Stream};
use pagelab_model::{AbsentWhy, Bytes, Machine, PageSize, Reading, Snapshot};
use pagelab_report::checkup::{View, brief, render};
use pagelab_report::style::bytes;
use pagelab_report::{html, json};
use pagelab_sys::cpuid;
use probing::Kept;
use recording::Recording;

use crate::exit::{Exit, Failure, Outcome};
use crate::whole_file::{self, Target};
use crate::{manifest, out};

/// What `checkup` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Everything, not the summary alone
    #[arg(short, long)]
    verbose: bool,
    /// The findings to act on alone, for cron: exit code 0 none, 1 findings
    #[arg(long, conflicts_with_all = ["verbose", "json"])]
    brief: bool,
    /// The whole look as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write the report as one page of HTML that needs nothing else, besides printing it
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Read a tree saved by `pagelab capture` (folder, .tar, .tar.zst) instead of this machine
    #[arg(long, value_name = "DIR|TAR", conflicts_with = "probe")]
    root: Option<PathBuf>,
    /// Write everything that was seen and measured into a new run file, for `pagelab report`
    #[arg(long, value_name = "FILE")]
    run: Option<PathBuf>,
    /// Ask for huge pages and measure what they would buy; all is given back
    #[arg(long)]
    probe: bool,
    /// The paper's fragmentation index beside the kernel's; implies -v
    #[arg(long)]
    paper: bool,
    /// Free blocks by migratetype; implies -v (pagetypeinfo: up to 50 ms with interrupts off)
    #[arg(long)]
    migratetypes: bool,
    /// Memory eligible for huge pages, from the smaps of the largest processes; implies -v
    #[arg(long)]
    deep: bool,
    /// TLB geometry to assume, such as l1d=64x4:4K,l2=2048x16:4K+2M
    #[arg(long, value_name = "GEOMETRY")]
    tlb: Option<String>,
    /// Base page size of a saved tree that does not say, such as 64K
    #[arg(long, value_name = "SIZE", requires = "root")]
    page_size: Option<String>,
    /// Seed of everything random: the sample of pageblocks, the probe's order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

const AFTER_HELP: &str = "\
Read-only, unless --probe is given; --run and --html write the file that they name, and nothing else. \
Ends in at most 10 seconds.

Examples:
  pagelab checkup                          this machine, on one screen
  pagelab checkup --probe --run a.pagelab  measure, and keep everything
  pagelab report a.pagelab                 read it again, anywhere
  pagelab checkup --root memory.tar.zst    a machine that was captured";

/// Wall time after which a probe is over, counted from the start, so that a checkup ends in 10 s.
const PROBE_ENDS: Duration = Duration::from_millis(9_500);

/// Everything resolved before anything is read.
struct Plan<'a> {
    root: Root,
    tlb: Option<Tlb>,
    page_size: Option<PageSize>,
    /// What the processor says of itself; empty for a saved tree, which is of another.
    leaves: Vec<CpuidLeaf>,
    html: Option<Target>,
    started: Moment,
    args: &'a Args,
}

/// Looks, judges, prints.
pub fn run(args: &Args) -> Outcome {
    let plan = resolve(args)?;
    let recording = record(&plan)?;
    let kept = Kept::new(plan.started, recording.as_ref(), plan.html.is_some());
    let snapshot = look(&plan, &kept);
    let streams = kept.into_streams();
    if is_empty(&snapshot) {
        recording.into_iter().for_each(Recording::abandon);
        let (exit, way_out) = match plan.root.is_live() {
            true => (Exit::NotAvailable, "is the process file system mounted?"),
            false => (
                Exit::BadInput,
                "make a tree with `pagelab capture DIR`; a single file is read by `pagelab frag --from`",
            ),
        };
        let what =
            format!("{}: none of the kernel's memory files could be read; {way_out}", plan.root.name());
        return Err(Failure::new(exit, what));
    }
    // Before anything is printed: the reader of the output may go away.
    let recorded = recording.map(|recording| recording.finish(&snapshot));
    let html = plan.html.as_ref().map(|target| (target, write_page(&plan, &snapshot, streams, target)));
    let checkup = Checkup::of(&snapshot);
    print(args, &snapshot, &checkup)?;
    if let Some((target, Ok(size))) = &html {
        out::note(&format!("→ {}, {}: opens in any browser", target.name(), bytes(*size)));
    }
    if let Some((_, Err(failure))) = html {
        return Err(failure);
    }
    if args.brief {
        not_seen(&snapshot);
    }
    if let Some(path) = recorded.transpose()? {
        out::note(&format!("→ pagelab report {}", path.display()));
    }
    let is_bad = snapshot.problems.iter().any(|problem| problem.bad_input);
    if is_bad && args.brief {
        snapshot.problems.iter().for_each(|problem| out::complain(&format!("pagelab: {}", problem.message)));
    }
    let is_to_act_on = checkup.findings.iter().any(Finding::needs_action);
    Ok(match (is_bad, args.brief && is_to_act_on) {
        (true, _) => Exit::BadInput,
        (false, true) => Exit::No,
        (false, false) => Exit::Done,
    })
}

fn print(args: &Args, snapshot: &Snapshot, checkup: &Checkup) -> Result<(), Failure> {
    let mut out = out::stdout();
    let style = out::style();
    if args.json {
        let document = json::checkup::document(snapshot, checkup);
        let text =
            json::to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
        out.write_all(text.as_bytes())?;
    } else if args.brief {
        out.write_all(brief(snapshot, checkup, style).as_bytes())?;
    } else {
        // What these ask for stands in the full report alone.
        let verbose = args.verbose || args.paper || args.migratetypes || args.deep;
        let view = View { verbose, paper: args.paper, saved: false };
        out.write_all(render(snapshot, checkup, view, style).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Writes the page and says how large it became.
fn write_page(
    plan: &Plan<'_>,
    snapshot: &Snapshot,
    streams: Vec<Stream>,
    target: &Target,
) -> Result<Bytes, Failure> {
    let manifest = manifest::of_this_process("checkup", Some(plan.args.seed), plan.started, snapshot);
    let run = manifest::run_of(plan.root.name(), manifest, snapshot.clone(), streams);
    let page =
        html::page(&[run]).map_err(|error| Failure::new(Exit::Bug, "the page's data").because(error))?;
    target.write(page.as_bytes())?;
    Ok(Bytes(page.len() as u64))
}

/// Nothing found is not the same as nothing there: cron's reader is told what this user could not see.
fn not_seen(snapshot: &Snapshot) {
    let mut hidden = Vec::new();
    if let Err(absence) = &snapshot.census
        && absence.why == AbsentWhy::NotPermitted
    {
        hidden.push("pageblocks".to_owned());
    }
    if let Ok(processes) = &snapshot.processes
        && let Some((count, _)) = &processes.unreadable
    {
        hidden.push(format!("{count} processes"));
    }
    if !hidden.is_empty() && snapshot.taken.euid.is_some_and(|euid| euid != 0) {
        out::complain(&format!("pagelab: not seen without root: {}", hidden.join(", ")));
    }
    let unjudged = snapshot.unread_files();
    if !unjudged.is_empty() {
        out::complain(&format!("pagelab: not judged, since it could not be read: {}", unjudged.join(", ")));
    }
}

fn resolve(args: &Args) -> Result<Plan<'_>, Failure> {
    let tlb = args.tlb.as_deref().map(pagelab_tlb::syntax::parse).transpose().map_err(|error| {
        let message = format!("--tlb {}: {error}", args.tlb.as_deref().unwrap_or_default());
        Failure::new(Exit::Usage, message)
    })?;
    let page_size = args.page_size.as_deref().map(super::page_size).transpose()?;
    if args.run.is_some() && args.run == args.html {
        let message = "--run and --html name the same file: give each its own";
        return Err(Failure::new(Exit::Usage, message));
    }
    if let Some(path) = &args.run {
        whole_file::refuse_dash(path, "--run", "file")?;
    }
    let html = args.html.as_deref().map(|path| whole_file::target(path, "--html")).transpose()?;
    let root = super::root(args.root.as_deref())?;
    let leaves = if root.is_live() { cpuid::leaves() } else { Vec::new() };
    Ok(Plan { root, tlb, page_size, leaves, html, started: manifest::now(), args })
}

/// Begins the run file that was asked for, with the machine that the look will be of.
fn record(plan: &Plan<'_>) -> Result<Option<Recording>, Failure> {
    let Some(path) = &plan.args.run else { return Ok(None) };
    let reader = Reader::new(&plan.root);
    let (mut machine, settings) = identify(&reader, &known(plan));
    machine.tlb = tlb(plan, &machine);
    let mut known = Snapshot::unread(plan.root.name(), machine.page_size);
    (known.machine, known.settings) = (machine, settings);
    let manifest = manifest::of_this_process("checkup", Some(plan.args.seed), plan.started, &known);
    Recording::begin(path, &manifest).map(Some)
}

/// Without any of these there is nothing to say.
fn is_empty(snapshot: &Snapshot) -> bool {
    snapshot.buddyinfo.is_err()
        && snapshot.meminfo.is_err()
        && snapshot.vmstat.is_err()
        && snapshot.zoneinfo.is_err()
        && snapshot.problems.is_empty()
}

/// What is known of the machine beside its files.
fn known(plan: &Plan<'_>) -> Known {
    let page_size = plan
        .page_size
        .map(|size| (size, "--page-size".to_owned()))
        .or_else(|| Some((plan.root.manifest()?.page_size?, "manifest".to_owned())));
    Known { page_size, hypervisor: hypervisor::from_cpuid(&plan.leaves) }
}

fn tlb(plan: &Plan<'_>, machine: &Machine) -> Reading<Tlb> {
    match (&machine.cpu, &plan.tlb) {
        (Ok(cpu), _) => pagelab_tlb::choose(cpu, &plan.leaves, plan.tlb.clone()),
        (Err(_), Some(tlb)) => Ok(tlb.clone()),
        (Err(_), None) => machine.tlb.clone(),
    }
}

/// Reads everything that was asked for, from the files to the probe.
fn look(plan: &Plan<'_>, samples: &Kept<'_>) -> Snapshot {
    let begun = Instant::now();
    let reader = Reader::new(&plan.root);
    // Of a saved tree it costs nothing, and `can` reads it too: both predict from the same files.
    let is_saved = !plan.root.is_live() && plan.root.read(PAGETYPEINFO).is_ok();
    let mut options = CollectOptions {
        pagetypeinfo: plan.args.migratetypes || is_saved,
        known: known(plan),
        taken_realtime_ns: plan.root.manifest().and_then(|manifest| manifest.realtime_ns),
        ..CollectOptions::default()
    };
    options.processes.deep = plan.args.deep;
    let mut snapshot = collect(&reader, &options);
    snapshot.machine.tlb = tlb(plan, &snapshot.machine);
    snapshot.census = match &snapshot.zoneinfo {
        Ok(zoneinfo) => {
            let options = census_options(&snapshot, plan.args.seed);
            reader.noted(census(&plan.root, &reader, zoneinfo, &options))
        }
        Err(absence) => Err(absence.clone()),
    };
    if let Some(absence) = plan.root.manifest_absence() {
        let _ = reader.noted::<()>(Err(absence.clone()));
    }
    snapshot.problems = reader.into_problems();
    if plan.args.probe {
        if let Some(recording) = samples.recording {
            recording.so_far(&snapshot);
        }
        let left = PROBE_ENDS.saturating_sub(begun.elapsed());
        probing::probe(&mut snapshot, plan.args.seed, left, samples);
    }
    snapshot
}
